"""Sequences as they are trained on, packed, and as they are served: in pages, chunk by chunk, token by token.

`python -m gpu.serving CASE FILE` writes what training gives, for a process of another backend.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlk import ops

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = (5000, 1, 4096, 513, 2048, 300, 17)
Result = tuple[torch.Tensor, torch.Tensor]  # o [rows, heads, elements], lse [heads, rows]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One sequence with all its queries, keys and values."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def __len__(self) -> int:
        return len(self.q)


def drawn(
    lengths: Sequence[int] = LENGTHS, heads: int = 16, shared: int = 4, width: int = 128, seed: int = 0
) -> list[Tokens]:
    made = torch.Generator().manual_seed(seed)

    def one(rows: int, count: int) -> torch.Tensor:
        return torch.randn(rows, count, width, generator=made).to(DEVICE, torch.bfloat16)

    return [Tokens(one(n, heads), one(n, shared), one(n, shared)) for n in lengths]


def offsets(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


def trained(given: Sequence[Tokens], **options: int) -> list[Result]:
    """Return results of every sequence, of one packed call."""
    lengths = [len(x) for x in given]
    q, k, v = (torch.cat([getattr(x, n) for x in given]) for n in "qkv")
    cu = offsets(lengths)
    made = ops.varlen_attention(q, k, v, cu, cu, **options)  # type: ignore[arg-type]
    return list(zip(made.o.split(lengths), made.lse.split(lengths, dim=1), strict=True))


@dataclass(frozen=True, slots=True)
class Cache:
    """Pages in any order; NaN where nobody wrote, and no page where none is needed."""

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor


def cached(given: Sequence[Tokens], page: int, seed: int = 1) -> Cache:
    counts = [-(-len(x) // page) for x in given]
    order = torch.randperm(sum(counts) + 3, generator=torch.Generator().manual_seed(seed)).int()
    table = torch.full((len(given), max(counts) + 1), 1 << 30, dtype=torch.int32)
    pages: list[torch.Tensor] = []
    first = given[0]
    for name in "kv":
        rows = getattr(first, name)
        pages.append(torch.full((len(order), page, *rows.shape[1:]), torch.nan, device=DEVICE).to(rows.dtype))
    at = 0
    for i, (x, count) in enumerate(zip(given, counts, strict=True)):
        mine = order[at : at + count]
        table[i, :count], at = mine, at + count
        for held, rows in zip(pages, (x.k, x.v), strict=True):
            slots = (mine.long()[:, None] * page + torch.arange(page)).flatten()[: len(x)].to(DEVICE)
            held.flatten(0, 1)[slots] = rows
    return Cache(*pages, table.to(DEVICE))


def served(
    given: Sequence[Tokens], cache: Cache, firsts: Sequence[int], ends: Sequence[int], **options: int
) -> list[Result]:
    """Return results of tokens [first, end) of each sequence, of one call when it was no longer than end."""
    spans = list(zip(given, firsts, ends, strict=True))
    q = torch.cat([x.q[first:end] for x, first, end in spans])
    counts = [end - first for _, first, end in spans]
    held = torch.tensor(list(ends), dtype=torch.int32, device=DEVICE)
    made = ops.paged_attention(q, cache.k, cache.v, cache.table, held, offsets(counts), **options)  # type: ignore[arg-type]
    return list(zip(made.o.split(counts), made.lse.split(counts, dim=1), strict=True))


def unequal(got: Result, want: Result, first: int = 0, end: int | None = None) -> int:
    """Return how many of a span's results have other bits than those of the whole sequence."""
    pairs = ((got[0], want[0][first:end], torch.int16), (got[1], want[1][:, first:end], torch.int32))
    return sum(int((a.contiguous().view(kind) != b.contiguous().view(kind)).sum()) for a, b, kind in pairs)


def unequal_when_served(
    given: Sequence[Tokens], want: Sequence[Result], cache: Cache, firsts: Sequence[int], ends: Sequence[int],
    **options: int,
) -> list[int]:  # fmt: skip
    """Return, for each sequence, how many results of its tokens [first, end) are not those of training."""
    found = served(given, cache, firsts, ends, **options)
    return [unequal(*spans) for spans in zip(found, want, firsts, ends, strict=True)]


if __name__ == "__main__":
    results = [tuple(t.cpu() for t in x) for x in trained(drawn())]
    torch.save({"found": results}, sys.argv[-1])
