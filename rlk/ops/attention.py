"""The public operators of attention: their options, mapped to specs."""

from __future__ import annotations

import math as numbers
from typing import Any

import numpy as np
import torch

from rlk.errors import Code, LaunchError
from rlk.ops.offsets import (
    Outside,
    all_good,
    checked_offsets,
    looked_at,
    misplaced,
    on_the_host,
    owners_of,
    refuse_misplaced,
)
from rlk.ops.results import Attention
from rlk.runtime.binding.checks import (
    are_tensors,
    flag,
    has_dims,
    has_dtype,
    positive,
    reciprocal,
    same_device,
    wrong_dims,
    wrong_value,
)
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import attention as spec
from rlk.specs import model
from rlk.specs.packing import CONTEXT, OFFSETS, PAGE

INPUTS = ("q", "k_prefix", "v_prefix", "k", "v")
TENSORS = (*INPUTS, "cu_seqlens_prefix", "cu_seqlens", "groups", "cu_seqlens_q", "sinks")
OPTIONS = ("causal", "window", "softcap", "scale", "math")
OF_Q = {"begin_q": "cu_seqlens_q", "end_q": "cu_seqlens_q"}
worded(spec.varlen_attention, "varlen_attention", **OF_Q, begin_k="cu_seqlens_k", end_k="cu_seqlens_k")
worded(spec.paged_attention, "paged_attention", **OF_Q)
worded(
    spec.prefix_attention, "prefix_attention", **OF_Q, begin_k="cu_seqlens", end_k="cu_seqlens",
    **dict.fromkeys(("begin_prefix", "end_prefix", "begin_shared", "end_shared"), "cu_seqlens_prefix"),
    begin_asks="groups", end_asks="groups", place="cu_seqlens_q",
)  # fmt: skip


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
    math: str | None = None,
) -> Attention:
    """Return softmax(scale q k^T) v of packed sequences, and the log of its denominators.

    q: [Tq, Hq, E], k: [Tk, Hk, E], v: [Tk, Hk, F], one dtype, bf16 or f16; Hk divides Hq, and query head h
    reads head h // (Hq / Hk). cu_seqlens_q, cu_seqlens_k: [B + 1] int32 or int64, ascending from 0: where
    sequences begin; some may be empty. Returns o [Tq, Hq, F] and lse, f32 [Hq, Tq]. Offsets that descend or
    are out of bounds raise on the host; on a device they are checked only under RLK_CHECK=1, and without it
    such a call's results are undefined.

    causal: the last query of a sequence is at the position of its last key, and a query sees the keys up to
    its own position. window: the number of these keys that it sees, its own included. scale: 1 / sqrt(E)
    unless given. softcap: scores z become cap tanh(z / cap). sinks: f32 [Hq], a score for each head that only
    adds to the denominator (and lse). A query that sees no key has o = 0 and lse = -inf, or the sink. Rows of
    q outside
    of every sequence are not computed: their results are undefined.

    Keys are taken in chunks of 64, ascending, in pieces of 512 from the start of their sequence: online
    softmax inside a piece, probabilities rounded to the dtype before P V, f32 sums; pieces merge in ascending
    order (docs/decisions/0025-*). So a row's bits depend only on its sequence up to it, if the data of its
    chunks is finite. math: as in `logp`. Raises LaunchError.

    Differentiable in q, k, v and sinks, through o and lse (but not through lse alone); inputs that need no
    gradient cost nothing. Probabilities and the gradients of scores are rounded to the dtype before they are
    contracted. Each row of a gradient is one f32 sum in a fixed order, rounded once: of q over its keys,
    ascending; of k and v over the queries that see the key, ascending from the first of their sequence, and
    for each of these over the heads that share it (docs/decisions/0027-*). So it depends only on its
    sequence; that of sinks is summed over all queries in packed order. Rows outside of every sequence have
    undefined gradients too. Extra memory: 4 bytes for each query and head.
    """
    name = "varlen_attention"
    are_tensors(name, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    tensors, scalars, statics = queries(name, q, k.shape, cu_seqlens_q, causal, window, softcap, scale, sinks)
    _offsets(name, "cu_seqlens_k", cu_seqlens_k, k.shape[0], "keys")
    _values(name, "v", v)
    tensors |= {"k": k, "v": v, "begin_k": cu_seqlens_k[:-1], "end_k": cu_seqlens_k[1:]}
    return _results(call(spec.varlen_attention, tensors, scalars, statics, math), q, k.shape[0], sinks)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
    math: str | None = None,
) -> Attention:
    """Return `varlen_attention` of keys and values in pages: the same bits, for decode and chunked prefill.

    q: [Tq, Hq, E], the newest tokens of each sequence, whose keys are in the cache already.
    k_cache: [P, page, Hk, E], v_cache: [P, page, Hk, F]. block_table: [B, M] int32, key j of sequence i in
    slot j % page of page block_table[i, j // page]. context_lens: [B] int32, keys of each sequence, those of
    q included. cu_seqlens_q: [B + 1]. The options causal, window, softcap, scale, sinks and math are those of
    `varlen_attention`, and so are the results: o [Tq, Hq, F] and lse, f32 [Hq, Tq]. Differentiable in
    nothing.

    Bad offsets, contexts longer than their pages and pages outside of the cache raise on the host; on a
    device they are checked only under RLK_CHECK=1, and without it such a call's results are undefined.
    Entries of the table and slots beyond a context never affect a result. With few rows, pieces of 512 keys
    run in parallel (split-KV) and merge in a second kernel, in the same order: the same bits. Raises
    LaunchError.
    """
    tensors, scalars, statics, slots = _paged(
        q, k_cache, v_cache, block_table, context_lens, cu_seqlens_q, causal, window, softcap, scale, sinks
    )
    return _results(call(spec.paged_attention, tensors, scalars, statics, math), q, slots, sinks)


def paged_attention_into(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> None:
    """Write the o of `paged_attention` into out [Tq, Hq, F], dense and of q's dtype, as engines ask for it.

    Records no gradient. Raises what `paged_attention` raises, and LaunchError for another out.
    """
    name = "paged_attention"
    tensors, scalars, statics, _ = _paged(
        q, k_cache, v_cache, block_table, context_lens, cu_seqlens_q, True, window, softcap, scale, None
    )
    has_dims(name, "v_cache", v_cache.shape, 4, "4 dims [P, page, Hk, F]")
    wanted = (*q.shape[:2], v_cache.shape[-1])
    if out.shape != wanted or not out.is_contiguous():
        got = f"{list(out.shape)}, strides {list(out.stride())}"
        raise wrong_value(name, "out", got, f"a dense tensor {list(wanted)}")
    has_dtype(name, "out", out, q.dtype)
    same_device(name, "out", out, "q", q.device)
    o = out.unflatten(1, tensors["q"].shape[1:3])
    call(spec.paged_attention, tensors, scalars, statics, into={"o": o})


def _paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    sinks: torch.Tensor | None,
) -> tuple[Tensors, Scalars, dict[str, object], int]:
    """Return the checked arguments of `paged_attention`, and how many slots a block table could name."""
    name = "paged_attention"
    are_tensors(name, q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table)
    are_tensors(name, context_lens=context_lens, cu_seqlens_q=cu_seqlens_q)
    shape = k_cache.shape[1:] if k_cache.dim() == 4 else k_cache.shape
    tensors, scalars, statics = queries(name, q, shape, cu_seqlens_q, causal, window, softcap, scale, sinks)
    _values(name, "v_cache", v_cache)
    tensors |= {"k_cache": k_cache, "v_cache": v_cache}
    tensors |= {"block_table": block_table, "context_lens": context_lens}
    _pages(name, block_table, context_lens, cu_seqlens_q.shape[0] - 1, k_cache)
    return tensors, scalars, statics, block_table.shape[-1] * k_cache.shape[0] * shape[0]


def prefix_attention(
    q: torch.Tensor,
    k_prefix: torch.Tensor,
    v_prefix: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_prefix: torch.Tensor,
    cu_seqlens: torch.Tensor,
    groups: torch.Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    math: str | None = None,
) -> Attention:
    """Return `varlen_attention` of completions that continue shared prompts: the bits of prompt + completion.

    k_prefix: [Tp, Hk, E], v_prefix: [Tp, Hk, F], prompts one after the other, cu_seqlens_prefix: [P + 1].
    q: [Tq, Hq, E], k: [Tk, Hk, E], v: [Tk, Hk, F], of completions alone, cu_seqlens: [B + 1]; those of prompt
    p are groups[p] to groups[p + 1] - 1 of them, groups: [P + 1]. Offsets are int32 or int64, ascending from
    0. cu_seqlens_q: [B + 1], if only the newest tokens of each completion ask, as in decoding. The options
    causal, window, softcap, scale, sinks and math are those of `varlen_attention`, and so are the results:
    o [Tq, Hq, F] and lse, f32 [Hq, Tq].

    A prompt's keys are read once for a tile of queries of all its completions, up to its last multiple of 64;
    each completion reads those behind it with its own (docs/attention.md counts bytes). Extra memory: 8 F +
    16 bytes for each query and head. Differentiable in q, k_prefix, v_prefix, k, v and sinks: where a
    gradient is wanted, keys are gathered and `varlen_attention` is run, which has the same bits and saves
    nothing; the host waits for the length. In a compiled graph the gradient gathers, and runs it once more. A
    gradient of a prompt's keys is the f32 sum of those of its completions, each rounded to the dtype, in
    order (`embedding`), rounded once. Raises LaunchError.
    """
    name = "prefix_attention"
    given = {"q": q, "k_prefix": k_prefix, "v_prefix": v_prefix, "k": k, "v": v}
    asks = cu_seqlens if cu_seqlens_q is None else cu_seqlens_q
    are_tensors(name, **given, cu_seqlens_prefix=cu_seqlens_prefix, cu_seqlens=cu_seqlens, groups=groups)
    tensors, scalars, statics = queries(name, q, k.shape, asks, causal, window, softcap, scale, sinks)
    _shared_factors(name, given)
    offsets = {"cu_seqlens_prefix": cu_seqlens_prefix, "cu_seqlens": cu_seqlens, "groups": groups}
    for what, x in (*offsets.items(), ("cu_seqlens_q", asks)):
        same_device(name, what, x, "q", q.device)
    _offsets(name, "cu_seqlens_prefix", cu_seqlens_prefix, len(k_prefix), "keys of prompts")
    _offsets(name, "cu_seqlens", cu_seqlens, len(k), "keys")
    _offsets(name, "groups", groups, len(cu_seqlens) - 1, "completions", "nothing")
    leaves = [x for x in (*given.values(), sinks) if x is not None and x.requires_grad]
    wanted = bool(leaves) and torch.is_grad_enabled()
    if wanted and torch.compiler.is_compiling():
        options = {"causal": causal, "window": window, "softcap": softcap, "scale": scale, "math": math}
        optional = {"cu_seqlens_q": cu_seqlens_q, "sinks": sinks}
        return _through_dispatcher({**given, **offsets, **optional}, options)
    bounds = shared_bounds(cu_seqlens_prefix, cu_seqlens, asks, groups)
    if wanted or 0 in (len(q), len(k), len(k_prefix)):
        keys, values, cu = _unshared((k_prefix, k), (v_prefix, v), bounds)
        return varlen_attention(
            q, keys, values, asks, cu, causal=causal, window=window, softcap=softcap, scale=scale,
            sinks=sinks, math=math,
        )  # fmt: skip
    tensors |= {n: x for n, x in given.items() if n != "q"} | bounds | {"place": _places(len(q), bounds)}
    return _results(call(spec.prefix_attention, tensors, scalars, statics, math), q, 1, sinks)


def _through_dispatcher(tensors: dict[str, torch.Tensor | None], options: dict[str, Any]) -> Attention:
    """Call `prefix_attention` through torch's dispatcher, given its arguments by name."""
    given = [tensors[name] for name in TENSORS] + [options[name] for name in OPTIONS]
    return Attention(*torch.ops.rlk.prefix_attention_gathered(*given))


def _places(rows: int, bounds: Tensors) -> torch.Tensor:
    """Return the position of each query among the keys of its sequence."""
    row = torch.arange(rows, device=bounds["end_q"].device)
    sample = owners_of(bounds["end_q"], rows)
    keys = bounds["end_shared"] - bounds["begin_shared"] + bounds["end_k"] - bounds["begin_k"]
    return (row - bounds["end_q"][sample] + keys[sample]).to(torch.int32)


def shared_bounds(
    prompts: torch.Tensor, samples: torch.Tensor, asks: torch.Tensor, groups: torch.Tensor
) -> Tensors:
    """Return the bounds of prompts, of completions, and of the queries of both."""
    name = "prefix_attention"
    for what, got, other, like in (
        ("groups", groups, "cu_seqlens_prefix", prompts), ("cu_seqlens_q", asks, "cu_seqlens", samples),
    ):  # fmt: skip
        if got.shape != like.shape:
            sizes = {"got": tuple(got.shape), "other": other, "wanted": str(tuple(like.shape))}
            raise LaunchError(Code.ARG_SIZE, op=name, name=what, axis="B + 1", **sizes)
    wide = torch.int64 if torch.int64 in (x.dtype for x in (prompts, samples, asks, groups)) else torch.int32
    prompts, samples, asks = (x.to(wide) for x in (prompts, samples, asks))
    of = torch.arange(len(samples) - 1, device=groups.device)
    prompt = torch.searchsorted(groups[1:].contiguous(), of, right=True).clamp(max=max(0, len(groups) - 2))
    rows = asks[groups.long()]
    return {
        "begin_prefix": prompts[:-1], "end_prefix": prompts[1:],
        "begin_asks": rows[:-1], "end_asks": rows[1:],
        "begin_shared": prompts[prompt], "end_shared": prompts[prompt + 1],
        "begin_q": asks[:-1], "end_q": asks[1:], "begin_k": samples[:-1], "end_k": samples[1:],
    }  # fmt: skip


def gathered_rows(bounds: Tensors, prefixes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of prompts and completions in a table of both, sequence by sequence, and their offsets.

    prefixes: the number of keys of prompts, which precede those of completions. Waits for the device.
    """
    shared, own = bounds["end_shared"] - bounds["begin_shared"], bounds["end_k"] - bounds["begin_k"]
    cu = torch.nn.functional.pad((shared + own).cumsum(0), (1, 0))
    sample = torch.repeat_interleave(torch.arange(len(own), device=own.device), shared + own)
    at = torch.arange(len(sample), device=own.device) - cu[sample]
    left = at - shared[sample]
    row = torch.where(
        left < 0, bounds["begin_shared"][sample] + at, prefixes + bounds["begin_k"][sample] + left
    )
    return row, cu.to(shared.dtype)


def _unshared(
    keys: tuple[torch.Tensor, torch.Tensor], values: tuple[torch.Tensor, torch.Tensor], bounds: Tensors
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the keys and values of every prompt + completion, concatenated, and their offsets."""
    row, cu = gathered_rows(bounds, len(keys[0]))

    def gathered(parts: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        table = torch.cat(parts)
        rows = call(model.embedding, {"ids": row, "weight": table.flatten(1)}, {}, {})["y"]
        return rows.unflatten(1, table.shape[1:])

    return gathered(keys), gathered(values), cu


def queries(
    op: str,
    q: torch.Tensor,
    keys: torch.Size,
    offsets: torch.Tensor,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    sinks: torch.Tensor | None,
) -> tuple[Tensors, Scalars, dict[str, object]]:
    """Return the common inputs of all forms of attention: queries grouped by KV head, and score options."""
    for name, shape in (("q", q.shape), ("k", keys)):
        has_dims(op, name, shape, 3, "3 dims [T, heads, elements]")
    heads, shared = q.shape[1], keys[1]
    if shared == 0 or heads % shared:
        wanted = f"a multiple of the {shared} heads of k"
        raise wrong_value(op, "q.shape[1]", heads, wanted)
    if q.shape[2] == 0:
        raise wrong_value(op, "q.shape[2]", 0, "at least 1 element of a query")
    _offsets(op, "cu_seqlens_q", offsets, q.shape[0], "queries")
    group = (shared, heads // shared)
    tensors: Tensors = {"q": q.unflatten(1, group), "begin_q": offsets[:-1], "end_q": offsets[1:]}
    factor = 1 / numbers.sqrt(q.shape[2]) if scale is None else positive(op, "scale", scale)
    scalars: Scalars = {"scale": float(np.float32(factor))}
    if softcap is not None:
        scalars |= {
            "inv_softcap": reciprocal(op, "softcap", softcap),
            "softcap": float(softcap),
        }
    if window is not None:
        if type(window) is not int or window < 1 or not causal:
            wanted = "an int of at least 1 key, with causal=True"
            raise wrong_value(op, "window", window, wanted)
        scalars["window"] = min(window, 2**31 - 1)  # no sequence has more keys
    if sinks is not None:
        are_tensors(op, sinks=sinks)
        if sinks.shape != (heads,):
            got, wanted = tuple(sinks.shape), f"({heads},)"
            raise LaunchError(
                Code.ARG_SIZE, op=op, name="sinks", axis="heads", got=got, other="q", wanted=wanted
            )
        tensors["sinks"] = sinks.unflatten(0, group)
    return tensors, scalars, {"causal": flag(op, "causal", causal)}


def _offsets(
    op: str, name: str, offsets: torch.Tensor, count: int, of: str, outside: Outside = "padding"
) -> None:
    """Refuse offsets that do not ascend between 0 and a count: on the host, and on a device when asked to."""
    checked_offsets(op, name, offsets)
    if offsets.shape[0] < 1:
        raise wrong_dims(op, name, offsets.shape, "[B + 1]")
    if on_the_host(offsets):
        refuse_misplaced(op, name, offsets, count, of, outside)
    elif looked_at(offsets) and len(offsets) > 1:
        all_good(op, misplaced(offsets, count, outside), OFFSETS)


def check_pages(
    op: str,
    cu_seqlens_q: torch.Tensor,
    tokens: int,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    k_cache: torch.Tensor,
) -> None:
    """Refuse what `paged_attention` refuses of the layout of new tokens, and contexts shorter than these.

    A context of 0 is none at all, whatever its new tokens. Raises LaunchError, as `paged_attention` does.
    """
    are_tensors(op, cu_seqlens_q=cu_seqlens_q, context_lens=context_lens, block_table=block_table)
    for name, x in (
        ("cu_seqlens_q", cu_seqlens_q), ("context_lens", context_lens), ("block_table", block_table),
    ):  # fmt: skip
        same_device(op, name, x, "k_cache", k_cache.device)
    _offsets(op, "cu_seqlens_q", cu_seqlens_q, tokens, "new tokens")
    _pages(op, block_table, context_lens, cu_seqlens_q.shape[0] - 1, k_cache)
    if not (on_the_host(context_lens) or looked_at(context_lens)):
        return
    short = (context_lens < cu_seqlens_q.diff()) & (context_lens != 0)
    if not on_the_host(short):
        all_good(op, short, CONTEXT)
    elif bool(short.any()):
        at = int(short.to(torch.int8).argmax())
        wanted = f"at least the {int(cu_seqlens_q.diff()[at])} new tokens of its sequence, or 0: padding"
        raise wrong_value(op, f"context_lens[{at}]", int(context_lens[at]), wanted)


def _pages(op: str, table: torch.Tensor, lengths: torch.Tensor, sequences: int, cache: torch.Tensor) -> None:
    """Refuse contexts longer than their pages, and page numbers out of bounds, as `_offsets` does."""
    has_dtype(op, "block_table", table, torch.int32)
    has_dims(op, "block_table", table.shape, 2, "2 dims [B, M]")
    has_dtype(op, "context_lens", lengths, torch.int32)
    for name, x in (("block_table", table), ("context_lens", lengths)):
        if x.shape[0] != sequences or (x is lengths and x.dim() != 1):
            got, wanted = tuple(x.shape), sequences
            raise LaunchError(
                Code.ARG_SIZE, op=op, name=name, axis="B", got=got, other="cu_seqlens_q", wanted=wanted
            )
    there = on_the_host(table) and on_the_host(lengths)
    if cache.dim() != 4 or not (there or looked_at(table)):
        return
    pages, page = cache.shape[:2]
    too_long = (lengths < 0) | (lengths > table.shape[1] * page)
    used = torch.arange(table.shape[1], device=table.device) * page < lengths[:, None]
    astray = (used & ((table < 0) | (table >= pages))).any(1)
    if there:
        for name, bad, wanted in (
            ("context_lens", too_long, f"0 to {table.shape[1] * page}, the slots of a row of block_table"),
            ("block_table", astray, f"pages from 0 to {pages - 1} up to the context's end"),
        ):
            if bool(bad.any()):
                at = int(bad.to(torch.int8).argmax())
                given = lengths[at].item() if name == "context_lens" else table[at].tolist()
                raise wrong_value(op, f"{name}[{at}]", given, wanted)
    else:
        all_good(op, too_long, CONTEXT)
        all_good(op, astray, PAGE)


def _values(op: str, name: str, v: torch.Tensor) -> None:
    """Refuse values without elements: nothing would be run, and lse depends on keys alone."""
    if v.shape[-1:] == (0,):
        raise wrong_value(op, f"{name}.shape[-1]", 0, "at least 1 element of a value")


def _shared_factors(op: str, given: Tensors) -> None:
    """Refuse keys and values of prompts and completions of different shapes: a gradient concatenates them."""
    for name, x in given.items():
        has_dims(op, name, x.shape, 3, "3 dims [T, heads, elements]")
        same_device(op, name, x, "q", given["q"].device)
        if x.dtype is not given["q"].dtype and given["q"].dtype in (torch.bfloat16, torch.float16):
            has_dtype(op, name, x, given["q"].dtype)
    _values(op, "v", given["v"])
    pairs = (
        ("k_prefix", "k", slice(1, 3), "heads, E"), ("v_prefix", "v", slice(1, 3), "heads, F"),
        ("v", "k", slice(0, 2), "T, heads"), ("v_prefix", "k_prefix", slice(0, 2), "T, heads"),
    )  # fmt: skip
    for name, other, dims, axes in pairs:
        got, wanted = tuple(given[name].shape[dims]), tuple(given[other].shape[dims])
        if got != wanted:
            raise LaunchError(Code.ARG_SIZE, op=op, name=name, axis=axes, got=got, other=other, wanted=wanted)


def _results(made: Tensors, q: torch.Tensor, keys: int, sinks: torch.Tensor | None) -> Attention:
    """Return results by query head. Without keys nothing was run: every query has only its sink."""
    o, lse = made["o"].flatten(1, 2), made["lse"].flatten(0, 1)
    if keys == 0 and lse.numel():
        lse = torch.full_like(lse, -numbers.inf) if sinks is None else sinks[:, None].expand_as(lse).clone()
    return Attention(o, lse)
