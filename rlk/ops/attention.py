"""The public operators of attention: their options, mapped to specs."""

from __future__ import annotations

import math as numbers

import numpy as np
import torch

from rlk.errors import Code, LaunchError
from rlk.ops.losses import number
from rlk.ops.results import Attention
from rlk.ops.signatures import _index, _positive, _reciprocal, _tensors
from rlk.runtime.calls import call
from rlk.runtime.invocation import Scalars, Tensors
from rlk.specs import attention as spec


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
    sequences begin; some may be empty. Returns o [Tq, Hq, F] and lse, f32 [Hq, Tq].

    causal: the last query of a sequence stands at its last key, and a query sees the keys up to its own.
    window: of these only so many, its own included. scale: 1 / sqrt(E) unless given. softcap: scores z become
    cap tanh(z / cap). sinks: f32 [Hq], a score for each head that adds to the denominator (and lse) alone. A
    query that sees no key has o = 0 and lse = -inf, or the sink. Rows of q outside of every sequence are not
    computed: their results are undefined.

    Keys come in chunks of 64, ascending, in pieces of 512 from the start of their sequence: a softmax whose
    maximum runs along inside a piece, the weights rounded to the dtype before they multiply v, f32 sums;
    pieces merge in ascending order (docs/decisions/0025-*). So a row's bits depend on its sequence up to it
    and on nothing else, as long as what its chunks hold is finite. math: as in `logp`. Raises LaunchError.

    Differentiable in q, k, v and sinks, through o and lse (but not through lse alone); one that needs no
    gradient costs none. Weights and the gradients of scores are rounded to the dtype before they are
    contracted. Each row of a gradient is one f32 sum in a fixed order, rounded once: of q over its keys,
    ascending; of k and v over the queries that see the key, ascending from the first of their sequence, and
    for each of these over the heads that share it (docs/decisions/0027-*). So it depends on its sequence
    alone; that of sinks is summed over all queries as they are packed. Rows outside of every sequence have
    undefined gradients too. Extra memory: 4 bytes for each query and head.
    """
    name = "varlen_attention"
    _tensors(name, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    tensors, scalars, statics = _queries(
        name, q, k.shape, cu_seqlens_q, causal, window, softcap, scale, sinks
    )
    _offsets(name, "cu_seqlens_k", cu_seqlens_k)
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

    What lies beyond a context, in tables and in slots, is never read into a result, whatever it holds. Where
    few rows would leave a device idle, pieces of 512 keys have programs of their own and merge in a second
    kernel, in the same order: the same bits. Raises LaunchError.
    """
    name = "paged_attention"
    _tensors(name, q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, context_lens=context_lens)
    _tensors(name, cu_seqlens_q=cu_seqlens_q)
    shape = k_cache.shape[1:] if k_cache.dim() == 4 else k_cache.shape
    tensors, scalars, statics = _queries(name, q, shape, cu_seqlens_q, causal, window, softcap, scale, sinks)
    tensors |= {"k_cache": k_cache, "v_cache": v_cache}
    tensors |= {"block_table": block_table, "context_lens": context_lens}
    slots = block_table.shape[-1] * k_cache.shape[0] * shape[0]
    return _results(call(spec.paged_attention, tensors, scalars, statics, math), q, slots, sinks)


def _queries(
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
    """Return what all forms of attention take: queries by the head that they read, and what makes scores."""
    if q.dim() != 3 or len(keys) != 3:
        found = ("q", q.dim(), tuple(q.shape)) if q.dim() != 3 else ("k", len(keys), tuple(keys))
        wanted = "3 dims [T, heads, elements]"
        raise LaunchError(Code.ARG_RANK, op=op, name=found[0], got=found[1], shape=found[2], wanted=wanted)
    heads, shared = q.shape[1], keys[1]
    if shared == 0 or heads % shared:
        raise LaunchError(
            Code.ARG_SIZE,
            op=op,
            name="q",
            axis="heads",
            got=heads,
            other="k",
            wanted=f"a multiple of {shared}",
        )
    _offsets(op, "cu_seqlens_q", offsets)
    _positive(op, "softcap", softcap)
    _positive(op, "scale", scale)
    group = (shared, heads // shared)
    tensors: Tensors = {"q": q.unflatten(1, group), "begin_q": offsets[:-1], "end_q": offsets[1:]}
    factor = 1 / numbers.sqrt(q.shape[2]) if scale is None else scale
    scalars: Scalars = {"scale": float(np.float32(factor))}
    if softcap is not None:
        scalars |= {
            "softcap": number(op, "softcap", softcap),
            "inv_softcap": _reciprocal(op, "softcap", softcap),
        }
    if window is not None:
        if _index(op, "window", window) < 1 or not causal:
            wanted = "at least 1 key, with causal=True"
            raise LaunchError(Code.ARG_VALUE, op=op, name="window", value=window, wanted=wanted)
        scalars["window"] = window
    if sinks is not None:
        _tensors(op, sinks=sinks)
        if sinks.shape != (heads,):
            got, wanted = tuple(sinks.shape), f"({heads},)"
            raise LaunchError(
                Code.ARG_SIZE, op=op, name="sinks", axis="heads", got=got, other="q", wanted=wanted
            )
        tensors["sinks"] = sinks.unflatten(0, group)
    return tensors, scalars, {"causal": bool(causal)}


def _offsets(op: str, name: str, offsets: torch.Tensor) -> None:
    if offsets.dim() != 1 or offsets.shape[0] < 1:
        shape = tuple(offsets.shape)
        raise LaunchError(Code.ARG_RANK, op=op, name=name, got=len(shape), shape=shape, wanted="[B + 1]")


def _results(made: Tensors, q: torch.Tensor, keys: int, sinks: torch.Tensor | None) -> Attention:
    """Return results by query head. Without a key nothing was run: every query sees its sink alone."""
    o, lse = made["o"].flatten(1, 2), made["lse"].flatten(0, 1)
    if keys == 0 and lse.numel():
        lse = torch.full_like(lse, -numbers.inf) if sinks is None else sinks[:, None].expand_as(lse).clone()
    return Attention(o, lse)
