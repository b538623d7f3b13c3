"""Calls of attention that are compared with the oracle on a device: packed, in pages, of shared prompts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu.calls import ATTENTION_CHANGES, WIDE_ATTENTION_CHANGES, Case

from rlk.ir.types import DType
from rlk.runtime.binding.invocation import Tensors
from rlk.specs.attention import paged_attention, prefix_attention, varlen_attention

ENDS = ("begin", "end")


def lengths(queries: tuple[int, ...], keys: tuple[int, ...]) -> Callable[[torch.device], Tensors]:
    """Say where packed sequences of so many queries and keys begin and end."""

    def draw(device: torch.device) -> Tensors:
        cu_q, cu_k = (torch.tensor((0, *n), device=device).cumsum(0).int() for n in (queries, keys))
        return {"begin_q": cu_q[:-1], "end_q": cu_q[1:], "begin_k": cu_k[:-1], "end_k": cu_k[1:]}

    return draw


def attention(
    queries: tuple[int, ...], keys: tuple[int, ...], heads: tuple[int, int], e: int, w: int,
    scalars: dict[str, float] | None = None, **options: object,
) -> Case:  # fmt: skip
    """A varlen_attention call: heads of keys, and of queries for each of them."""
    made = {"T": sum(queries), "S": sum(keys), "B": len(keys), "H": heads[0], "G": heads[1], "E": e, "W": w}
    fixed = {"given": lengths(queries, keys), "changes": ATTENTION_CHANGES}
    scoring = {"scale": e**-0.5, **(scalars or {})}
    return Case(varlen_attention, made, scoring, **{**fixed, **options})  # type: ignore[arg-type]


def pages(keys: tuple[int, ...], queries: tuple[int, ...], page: int) -> Callable[[torch.device], Tensors]:
    """Say where sequences lie in pages in any order; tables name no page beyond them."""

    def draw(device: torch.device) -> Tensors:
        offsets = lengths(queries, keys)(device)
        counts = [-(-n // page) for n in keys]
        free = iter(torch.randperm(sum(counts)).tolist())
        table = torch.full((len(keys), max(counts)), 1 << 30, dtype=torch.int32)
        for row, count in zip(table, counts, strict=True):
            row[:count] = torch.tensor([next(free) for _ in range(count)])
        bounds = {n: offsets[n] for n in ("begin_q", "end_q")}
        lens = torch.tensor(keys, dtype=torch.int32, device=device)
        return {**bounds, "block_table": table.to(device), "context_lens": lens}

    return draw


def paged(
    keys: tuple[int, ...], queries: tuple[int, ...], page: int, heads: tuple[int, int], e: int,
    sequences: int | None = None,
) -> Case:  # fmt: skip
    """A paged_attention call; few queries have their pieces of keys apart."""
    counts = [-(-n // page) for n in keys]
    made = {"T": sum(queries), "B": len(keys), "P": sum(counts), "O": page, "M": max(counts)}
    made |= {"H": heads[0], "G": heads[1], "E": e, "W": e}
    drawn = pages(keys, queries, page)
    fixed = {"given": drawn, "changes": ATTENTION_CHANGES, "sequences": sequences}
    return Case(paged_attention, made, {"scale": e**-0.5}, **fixed)  # type: ignore[arg-type]


def continued(
    prompts: tuple[int, ...], completions: tuple[tuple[int, ...], ...], heads: tuple[int, int], e: int,
    asks: int = 1 << 30, scalars: dict[str, float] | None = None, **options: object,
) -> Case:  # fmt: skip
    """A prefix_attention call: lengths of prompts, and of the completions of each; the newest tokens ask."""
    own = [n for group in completions for n in group]
    queries = [min(asks, n) for n in own]
    of = [i for i, group in enumerate(completions) for _ in group]

    def draw(device: torch.device) -> Tensors:
        cu = [torch.tensor([0, *n]).cumsum(0).int() for n in (prompts, own, queries, map(len, completions))]
        keys = torch.tensor([prompts[i] for i in of]) + cu[1].diff()
        place = torch.arange(sum(queries)) + (keys - cu[2][1:]).repeat_interleave(cu[2].diff())
        edges = {"prefix": cu[0], "k": cu[1], "q": cu[2], "asks": cu[2][cu[3]]}
        found = {f"{end}_{n}": x[i : len(x) - 1 + i] for n, x in edges.items() for i, end in enumerate(ENDS)}
        found |= {f"{end}_shared": found[f"{end}_prefix"][of] for end in ENDS} | {"place": place.int()}
        return {n: x.to(device).contiguous() for n, x in found.items()}

    made = {"T": sum(queries), "S": sum(own), "K": sum(prompts), "B": len(own), "N": len(prompts)}
    made |= {"H": heads[0], "G": heads[1], "E": e, "W": e}
    fixed = {"given": draw, "changes": ATTENTION_CHANGES}
    scoring = {"scale": e**-0.5, **(scalars or {})}
    return Case(prefix_attention, made, scoring, **{**fixed, **options})  # type: ignore[arg-type]


ATTENDED: dict[str, Case] = {
    "varlen_attention 2 x 4 heads of 128, ragged": attention(
        (300, 0, 70, 1), (300, 0, 1100, 900), (2, 4), 128, 128
    ),
    "varlen_attention 8 heads of 64 f16, window": attention(
        (200, 333), (1200, 333), (8, 1), 64, 64, {"window": 300}, f=DType.F16
    ),
    "varlen_attention 1 x 7 heads of 96, softcap and sinks": attention(
        (130, 5), (130, 777), (1, 7), 96, 96, {"softcap": 20.0, "inv_softcap": 0.05}, present=("sinks",)
    ),
    "varlen_attention 2 x 2 heads of 256": attention((150,), (700,), (2, 2), 256, 256),
    "varlen_attention 2 heads of 192 and 128, no mask": attention(
        (150, 20), (700, 20), (2, 1), 192, 128, statics={"causal": False}
    ),
    "varlen_attention 8 x 4 heads of 128, one loop": attention(
        (90,) * 12, (90, 700, 1100) * 4, (8, 4), 128, 128, sequences=3
    ),
    "varlen_attention 8 x 4 heads of 64 f16, one loop, window": attention(
        (90,) * 12, (90, 700, 1100) * 4, (8, 4), 64, 64, {"window": 333}, f=DType.F16, sequences=3
    ),
    "varlen_attention_grad 2 x 4 heads of 128, ragged": attention(
        (300, 0, 70, 1), (300, 20, 310, 200), (2, 4), 128, 128, wanted=("q", "k", "v")
    ),
    "varlen_attention_grad 8 heads of 64 f16, window": attention(
        (200, 333), (320, 333), (8, 1), 64, 64, {"window": 100}, f=DType.F16, wanted=("q", "k", "v")
    ),
    "varlen_attention_grad 1 x 7 heads of 96, softcap and sinks": attention(
        (130, 5),
        (130, 77),
        (1, 7),
        96,
        96,
        {"softcap": 20.0, "inv_softcap": 0.05},
        present=("sinks",),
        wanted=("q", "k", "v", "sinks"),
    ),  # fmt: skip
    "varlen_attention_grad 2 x 2 heads of 256": attention(
        (150,),
        (200,),
        (2, 2),
        256,
        256,
        wanted=("q", "k", "v"),
        cotangents=("o",),
        changes=WIDE_ATTENTION_CHANGES,
    ),  # fmt: skip
    "varlen_attention_grad 2 heads of 192 and 128, no mask": attention(
        (150, 20),
        (200, 20),
        (2, 1),
        192,
        128,
        statics={"causal": False},
        wanted=("q", "k", "v"),
        changes=WIDE_ATTENTION_CHANGES,
    ),  # fmt: skip
    "prefix_attention 2 x 4 heads of 128": continued(
        (600, 63, 0, 512), ((100, 1, 257), (64,), (3, 0), (1, 600)), (2, 4), 128
    ),
    "prefix_attention decode of 8 heads of 64 f16, window": continued(
        (1500, 17), ((1, 70, 513, 9), (5, 64)), (8, 1), 64, 1, {"window": 700}, f=DType.F16
    ),
    "paged_attention decode, one loop": paged(
        (600, 70, 1, 1025) * 10, (1,) * 40, 64, (8, 4), 128, sequences=4
    ),
    "paged_attention decode, pieces apart": paged((3000, 17, 513, 1), (1, 1, 1, 1), 64, (2, 4), 128),
    "paged_attention chunked prefill": paged((900, 600), (100, 257), 16, (4, 8), 64),
}
