"""Benchmark of attention beside its peers: packed sequences, and decode over pages."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import rlk
from benchmarks import peers
from benchmarks.harness import Bar, Case, Checked, main, of_backend
from benchmarks.identity import compare, describe
from benchmarks.peers import Absent, Launch
from benchmarks.turns import aside
from rlk.runtime.call import library
from rlk.runtime.call.entry import call
from rlk.specs import attention
from rlk.testing.bits import differing

HEADS, SHARED, WIDTH = 32, 8, 128
Heads = tuple[int, int, int]
"""Heads of queries, heads of keys and values, and the width of each."""
PAGE = 64
SAMPLED = 2  # queries of a sequence that are compared with the oracle
LAST = 64  # rows of one whose gradients are
OTHER_HEADS: tuple[Heads, ...] = ((24, 8, 64), (32, 8, 96), (16, 2, 256))
DECODES = (
    (8, 4096), (8, 32768), (8, 131072), (64, 4096), (64, 16384), (64, 131072), (1, 16384), (1, 131072),
)  # fmt: skip
PREFILLS = ((8, 4096, 512), (8, 16384, 512), (1, 131072, 2048))
"""Sequences, the keys of each, and the queries that come last."""
ENGINE_HEADS, ENGINE_PAGES, ENGINE_BATCHES = ((16, 8, 128), (32, 8, 128)), (16, 64), (1, 16, 64, 256)
"""Decodes of engines: of Qwen3-0.6B and Qwen3-8B, in vLLM's pages and longer ones."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Sequences one after the other, and where they begin."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu: Tensor
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def heads(self) -> Heads:
        return self.q.shape[1], self.k.shape[1], self.q.shape[2]


def packed(lengths: Sequence[int], heads: Heads = (HEADS, SHARED, WIDTH)) -> Packed:
    """Draw queries, keys and values of sequences."""
    total, (asks, shared, width) = sum(lengths), heads
    q, k, v = (
        torch.randn(total, each, width, device="cuda", dtype=torch.bfloat16)
        for each in (asks, shared, shared)
    )
    cu = torch.tensor([0, *accumulate(lengths)], device="cuda", dtype=torch.int32)
    return Packed(q, k, v, cu, tuple(lengths))


def flops(x: Packed) -> float:
    """Return the operations of causal attention: two products over half of each square."""
    heads, _, width = x.heads
    return sum(2.0 * heads * 2 * width * n * (n + 1) / 2 for n in x.lengths)


# --- peers ---


def fa4_cute(x: Packed) -> Launch:
    """FlashAttention's CuTe kernel for packed sequences."""
    op = peers.module("flash_attn.cute.interface").flash_attn_varlen_func
    return peers.without_grad(lambda: op(x.q, x.k, x.v, cu_seqlens_q=x.cu, cu_seqlens_k=x.cu, causal=True))


def cudnn(x: Packed) -> Launch:
    """cuDNN's kernel behind torch's attention; it takes sequences of one length."""
    if len(set(x.lengths)) > 1:
        raise Absent("cudnn: sequences of different lengths")
    shape = (len(x.lengths), x.longest, -1, x.heads[-1])
    q, k, v = (t.reshape(shape).transpose(1, 2).contiguous() for t in (x.q, x.k, x.v))

    def launch() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return launch


def fa4_cute_paged(
    q: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, lens: Tensor, cu: Tensor
) -> Launch:
    """FlashAttention's CuTe kernel over pages."""
    op = peers.module("flash_attn.cute.interface").flash_attn_varlen_func
    given = {"cu_seqlens_q": cu, "seqused_k": lens, "page_table": table, "causal": True}
    return peers.without_grad(lambda: op(q, *caches, **given))


def unmerged(x: Packed) -> Launch:
    """The same kernel over one piece, so that no states merge: other bits."""
    spec = one_piece().varlen_attention
    library.register(spec, "one_piece")  # with torch alone: it is no operator of anyone
    tensors = {"q": x.q.unflatten(1, (x.heads[1], -1)), "k": x.k, "v": x.v}
    bounds = {f"{edge}_{n}": t for n in "qk" for edge, t in (("begin", x.cu[:-1]), ("end", x.cu[1:]))}
    scalars = {"scale": x.heads[-1] ** -0.5}
    return peers.without_grad(lambda: call(spec, tensors | bounds, scalars, {"causal": True})["o"])


@cache
def one_piece() -> ModuleType:
    """Return the specs of attention with pieces that no sequence fills."""
    text = Path(attention.__file__).read_text()
    assert text.count(f"PIECE = 64, {attention.PIECE}\n") == 1
    with TemporaryDirectory() as folder:
        file = Path(folder, "one_piece.py")
        file.write_text(text.replace(f"PIECE = 64, {attention.PIECE}\n", f"PIECE = 64, {1 << 20}\n"))
        found = importlib.util.spec_from_file_location("one_piece", file)
        assert found is not None and found.loader is not None
        made = sys.modules["one_piece"] = importlib.util.module_from_spec(found)
        found.loader.exec_module(made)
    return made


# --- rows ---


def forward(
    lengths: Sequence[int], shape: dict[str, int | str], heads: Heads = (HEADS, SHARED, WIDTH)
) -> Case:
    """Causal attention of packed sequences, forward."""
    x = packed(lengths, heads)
    arguments = (x.q, x.k, x.v, x.cu, x.cu)

    def check() -> Checked:
        first = slice(0, x.lengths[0])
        few = slice(x.lengths[0] - SAMPLED, x.lengths[0])
        got = rlk.ops.varlen_attention(*arguments)
        cu_q, cu_k = (torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in (SAMPLED, x.lengths[0]))
        sampled = (x.q[few], x.k[first], x.v[first], cu_q, cu_k)
        wide = rlk.ops.varlen_attention.reference(*sampled)
        error = float((got.o[few].double() - wide.o).abs().max())
        return Checked(error, compare(rlk.ops.varlen_attention, (got.o[few], got.lse[:, few]), *sampled))

    return Case(
        op="varlen_attention",
        passes="fwd",
        shape={**shape, **dict(zip(("Hq", "Hk", "d"), heads, strict=True))},
        rlk=lambda: peers.without_grad(lambda: rlk.ops.varlen_attention(*arguments)),
        peers={
            "fa4_cute": lambda: fa4_cute(x),
            "cudnn": lambda: cudnn(x),
            "rlk_unmerged": lambda: unmerged(x),
        },
        moved=2 * x.q.nbytes + x.k.nbytes + x.v.nbytes,
        flops=flops(x),
        bar=of_backend(triton=Bar(round(1 / 0.60, 3), "fa4_cute"), cute=Bar(round(1 / 0.85, 3), "fa4_cute")),
        reference="fa4_cute",
        check=check,
        describe=lambda: describe(rlk.ops.varlen_attention.explain(*arguments)),
    )


def fa4_cute_backward(x: Packed, seed: Tensor) -> Launch:
    """The backward of FlashAttention's CuTe kernel for packed sequences."""
    op = peers.module("flash_attn.cute.interface").flash_attn_varlen_func

    def call() -> Tensor:
        made = op(x.q, x.k, x.v, cu_seqlens_q=x.cu, cu_seqlens_k=x.cu, causal=True)
        return made[0] if isinstance(made, tuple) else made

    return peers.backward_of(call, (x.q, x.k, x.v), seed)


def cudnn_backward(x: Packed, seed: Tensor) -> Launch:
    """The backward of cuDNN's kernel behind torch's attention; it takes sequences of one length."""
    if len(set(x.lengths)) > 1:
        raise Absent("cudnn: sequences of different lengths")
    shape = (len(x.lengths), x.longest, -1, x.heads[-1])
    q, k, v, d = (t.detach().reshape(shape).transpose(1, 2).contiguous() for t in (x.q, x.k, x.v, seed))
    inputs = tuple(t.requires_grad_() for t in (q, k, v))

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)

    return peers.backward_of(call, inputs, d)


def last_rows(x: Packed, got: Sequence[Tensor], seed: Tensor) -> Checked:
    """Compare the gradients of the first sequence's last rows and first heads with float64 and the oracle.

    No other query sees those keys, and a multiple of 16 rows before them leaves an accumulator as it is.
    """
    length, shared = x.lengths[0], x.heads[0] // x.heads[1]
    few = LAST + length % 4
    tail, ends = slice(length - few, length), (few, length)
    parts = (x.q[tail, :shared], x.k[:length, :1], x.v[:length, :1])
    cus = tuple(torch.tensor([0, n], dtype=torch.int32) for n in ends)
    found = (got[0][tail, :shared], got[1][tail, :1], got[2][tail, :1])
    pull = seed[tail, :shared].cpu()

    def gradients(call: Callable[..., Any], dtype: torch.dtype, **options: Any) -> list[Tensor]:
        inputs = tuple(t.detach().cpu().to(dtype).requires_grad_() for t in parts)
        with aside():
            made = torch.autograd.grad(call(*inputs, *cus, **options).o, inputs, pull.to(dtype))
        return [grad[-few:] for grad in made]

    op = rlk.ops.varlen_attention
    wide = gradients(op.reference, torch.float64)
    want = gradients(op, torch.bfloat16, math=op.explain(x.q.device).math.value)
    error = max(float((a.cpu().double() - b).abs().max()) for a, b in zip(found, wide, strict=True))
    return Checked(error, sum(differing(a.cpu(), b) for a, b in zip(found, want, strict=True)))


def backward(
    lengths: Sequence[int], shape: dict[str, int | str], heads: Heads = (HEADS, SHARED, WIDTH)
) -> Case:
    """The gradients of causal attention of packed sequences, after a forward that ran before."""
    x = packed(lengths, heads)
    leaves = tuple(t.requires_grad_() for t in (x.q, x.k, x.v))
    seed = torch.randn_like(x.q)
    arguments = (*leaves, x.cu, x.cu)

    def check() -> Checked:
        got = torch.autograd.grad(rlk.ops.varlen_attention(*arguments).o, leaves, seed)
        return last_rows(x, got, seed)

    return Case(
        op="varlen_attention",
        passes="bwd",
        shape={**shape, **dict(zip(("Hq", "Hk", "d"), heads, strict=True))},
        rlk=lambda: peers.backward_of(lambda: rlk.ops.varlen_attention(*arguments).o, leaves, seed),
        peers={"fa4_cute": lambda: fa4_cute_backward(x, seed), "cudnn": lambda: cudnn_backward(x, seed)},
        moved=4 * x.q.nbytes + 2 * (x.k.nbytes + x.v.nbytes),
        flops=2.5 * flops(x),
        bar=of_backend(triton=Bar(2.0, "fa4_cute"), cute=Bar(1.25, "fa4_cute")),
        reference="fa4_cute",
        check=check,
        describe=lambda: describe(rlk.ops.varlen_attention.explain(*arguments)),
    )


def pages(
    batch: int,
    context: int,
    queries: int = 1,
    heads: Heads = (HEADS, SHARED, WIDTH),
    page: int = PAGE,
    longest: int = 0,
) -> Case:
    """The last queries of sequences whose keys lie in pages in any order: one each, or those of a prefill.

    longest: tokens that the table has room for, if that is more than the context, as an engine's has.
    """
    (asks, shared, width), count = heads, -(-context // page)
    table = torch.randperm(batch * count, device="cuda").int().reshape(batch, count)
    room = torch.zeros(batch, max(count, longest // page), device="cuda", dtype=torch.int32)
    room[:, :count] = table
    cache = torch.empty(2, batch * count, page, shared, width, device="cuda", dtype=torch.bfloat16).normal_()
    q = torch.randn(batch * queries, asks, width, device="cuda", dtype=torch.bfloat16)
    lens = torch.full((batch,), context, device="cuda", dtype=torch.int32)
    cu = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * queries
    arguments = (q, cache[0], cache[1], room, lens, cu)

    def check() -> Checked:
        got, of = rlk.ops.paged_attention(*arguments), table[0].long()
        few = slice(max(0, queries - SAMPLED), queries)
        own = torch.arange(count, device="cuda", dtype=torch.int32)[None]
        ends = torch.tensor([0, few.stop - few.start], device="cuda", dtype=torch.int32)
        sampled = (q[few], cache[0][of], cache[1][of], own, lens[:1], ends)
        wide = rlk.ops.paged_attention.reference(*sampled)
        error = float((got.o[few].double() - wide.o).abs().max())
        return Checked(error, compare(rlk.ops.paged_attention, (got.o[few], got.lse[:, few]), *sampled))

    seen = context - (queries - 1) / 2
    return Case(
        op="paged_attention",
        passes="fwd",
        shape={
            "B": batch,
            "S": context,
            **({"asks": queries} if queries > 1 else {}),
            **dict(zip(("Hq", "Hk", "d"), heads, strict=True)),
            **({"page": page} if page != PAGE else {}),
            **({"longest": longest} if longest else {}),
        },
        rlk=lambda: peers.without_grad(lambda: rlk.ops.paged_attention(*arguments)),
        peers={"fa4_cute": lambda: fa4_cute_paged(q, (cache[0], cache[1]), room, lens, cu)},
        moved=cache.nbytes + 2 * q.nbytes if queries > 1 else cache.nbytes,
        flops=4.0 * len(q) * asks * width * seen if queries > 1 else 0.0,
        bar=of_backend(triton=None, cute=Bar(1.20, "fa4_cute") if queries == 1 else None),
        reference="fa4_cute",
        check=check,
        describe=lambda: describe(rlk.ops.paged_attention.explain(*arguments)),
        notes={"page": page},
    )


def shared(groups: tuple[int, int, int, int], asks: int | None = None) -> Case:
    """Completions of shared prompts beside the same call on copies: prompts, completions of each, lengths."""
    prompts, each, prompt, own = groups
    of_prompts, mine = packed([prompt] * prompts), packed([own] * (prompts * each))
    queries = own if asks is None else asks
    q = mine.q[: prompts * each * queries]
    cu_q = torch.arange(prompts * each + 1, device="cuda", dtype=torch.int32) * queries
    group = torch.arange(prompts + 1, device="cuda", dtype=torch.int32) * each
    arguments = (q, of_prompts.k, of_prompts.v, mine.k, mine.v, of_prompts.cu, mine.cu, group)

    def copied(name: str) -> Tensor:
        first = getattr(of_prompts, name).unflatten(0, (prompts, prompt)).repeat_interleave(each, 0)
        return torch.cat([first, getattr(mine, name).unflatten(0, (-1, own))], 1).flatten(0, 1)

    k, v = copied("k"), copied("v")
    copies = (
        q,
        k,
        v,
        cu_q,
        torch.arange(prompts * each + 1, device="cuda", dtype=torch.int32) * (prompt + own),
    )

    def check() -> Checked:
        got, want = rlk.ops.prefix_attention(*arguments, cu_seqlens_q=cu_q), rlk.ops.varlen_attention(*copies)
        moved = sum(differing(a, b) for a, b in zip(got, want, strict=True))
        few, seen = slice(max(0, queries - SAMPLED), queries), slice(prompt + own)
        ends = (few.stop - few.start, prompt + own)
        cus = (torch.tensor([0, n], dtype=torch.int32, device="cuda") for n in ends)
        sampled = (q[few], k[seen], v[seen], *cus)
        wide = rlk.ops.varlen_attention.reference(*sampled)
        moved += compare(rlk.ops.varlen_attention, (got.o[few], got.lse[:, few]), *sampled)
        return Checked(float((got.o[few].double() - wide.o).abs().max()), moved)

    seen = prompt + own - (queries - 1) / 2
    return Case(
        op="prefix_attention",
        passes="fwd",
        shape={
            "P": prompts,
            "G": each,
            "prompt": prompt,
            "own": own,
            "asks": queries,
            "Hq": HEADS,
            "d": WIDTH,
        },
        rlk=lambda: peers.without_grad(lambda: rlk.ops.prefix_attention(*arguments, cu_seqlens_q=cu_q)),
        peers={"unshared": lambda: peers.without_grad(lambda: rlk.ops.varlen_attention(*copies))},
        moved=2 * q.nbytes + 2 * (of_prompts.k.nbytes + mine.k.nbytes),
        flops=4.0 * len(q) * HEADS * WIDTH * seen,
        bar=of_backend(triton=None, cute=None),
        reference="unshared",
        check=check,
        describe=lambda: describe(rlk.ops.prefix_attention.explain(*arguments, cu_seqlens_q=cu_q)),
    )


PROMPTS = (
    ((8, 8, 4096, 512), None),
    ((8, 8, 512, 512), None),
    ((8, 16, 4096, 512), 1),
    ((64, 16, 4096, 512), 1),
)


def cases() -> Iterator[Case]:
    """Yield the rows of the family; the inputs of one row live at a time."""
    draw = random.Random(0)
    rows: list[tuple[list[int], dict[str, int | str]]] = [
        ([length] * batch, {"B": batch, "S": length}) for batch, length in ((4, 4096), (16, 1024), (1, 16384))
    ]
    rows.append(([draw.randint(200, 10000) for _ in range(64)], {"B": 64, "lengths": "200-10000"}))
    few = random.Random(1)
    ragged = [8191, *(few.randint(200, 8191) for _ in range(15))], {"B": 16, "lengths": "200-8191"}
    for build in (forward, backward):
        for lengths, shape in rows:
            torch.cuda.empty_cache()
            yield build(lengths, shape)
    for heads in OTHER_HEADS:
        for build in (forward, backward):
            for lengths, shape in (rows[0], ragged):
                torch.cuda.empty_cache()
                yield build(lengths, shape, heads)
    for groups, asks in PROMPTS:
        torch.cuda.empty_cache()
        yield shared(groups, asks)
    for batch, context in DECODES:
        torch.cuda.empty_cache()
        yield pages(batch, context)
    for batch, context, queries in PREFILLS:
        torch.cuda.empty_cache()
        yield pages(batch, context, queries)
    for heads, page, batch in product(ENGINE_HEADS, ENGINE_PAGES, ENGINE_BATCHES):
        torch.cuda.empty_cache()
        yield pages(batch, 576, 1, heads, page, 1536)


if __name__ == "__main__":
    main("attention", cases, matrix=True)
