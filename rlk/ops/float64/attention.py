"""Attention in float64 torch, straight from its formula: the accuracy reference."""

from __future__ import annotations

import math

import torch

from rlk.ops.results import Attention


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
    **_: object,
) -> Attention:
    """Return `rlk.ops.varlen_attention` in float64; rows outside of every sequence are 0."""
    o = q.new_zeros((q.shape[0], q.shape[1], v.shape[2]), dtype=torch.float64)
    lse = q.new_zeros((q.shape[1], q.shape[0]), dtype=torch.float64)
    wide = 1 / math.sqrt(q.shape[2]) if scale is None else scale
    for i in range(len(cu_seqlens_q) - 1):
        mine, keys = slice(*cu_seqlens_q[i : i + 2].tolist()), slice(*cu_seqlens_k[i : i + 2].tolist())
        z = _scores(q[mine], k[keys], wide, softcap, causal, window)
        if sinks is not None:
            z = torch.cat([z, sinks.double()[:, None, None].expand(-1, z.shape[1], 1)], -1)
        lse[:, mine] = torch.logsumexp(z, -1)
        p = torch.exp(z - lse[:, mine, None]).nan_to_num(0.0)[..., : keys.stop - keys.start]
        o[mine] = torch.einsum("hqk,khf->qhf", p, _by_query_head(v[keys], q.shape[1]))
    return Attention(o, lse)


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    **options: object,
) -> Attention:
    """Return `rlk.ops.paged_attention` in float64."""
    cu = torch.nn.functional.pad(context_lens.cumsum(0), (1, 0))
    page = k_cache.shape[1]
    k, v = (_unpaged(cache, block_table, context_lens, page) for cache in (k_cache, v_cache))
    return varlen_attention(q, k, v, cu_seqlens_q, cu, **options)  # type: ignore[arg-type]


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
    cu_seqlens_q: torch.Tensor | None = None,
    **options: object,
) -> Attention:
    """Return `rlk.ops.prefix_attention` in float64."""
    shared = [p for p, n in enumerate(groups.diff().tolist()) for _ in range(n)]

    def joined(prompt: torch.Tensor, own: torch.Tensor) -> list[torch.Tensor]:
        prompts = prompt.tensor_split(cu_seqlens_prefix[1:-1].long().cpu())
        owns = own.tensor_split(cu_seqlens[1:-1].long().cpu())
        return [torch.cat([prompts[p], x]) for p, x in zip(shared, owns, strict=True)]

    keys, values = joined(k_prefix, k), joined(v_prefix, v)
    cu = torch.tensor([0, *map(len, keys)]).cumsum(0)
    asks = cu_seqlens if cu_seqlens_q is None else cu_seqlens_q
    return varlen_attention(q, torch.cat(keys), torch.cat(values), asks, cu, **options)  # type: ignore[arg-type]


def _unpaged(cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, page: int) -> torch.Tensor:
    """Return the rows of all contexts, one sequence after the other."""
    rows = [cache[table[i, : -(-n // page)].long()].flatten(0, 1)[:n] for i, n in enumerate(lengths.tolist())]
    return torch.cat(rows)


def _scores(
    q: torch.Tensor, k: torch.Tensor, scale: float, softcap: float | None, causal: bool, window: int | None
) -> torch.Tensor:
    """Return the scores [heads, queries, keys], -inf where a query does not see a key."""
    z = torch.einsum("qhe,khe->hqk", q.double(), _by_query_head(k, q.shape[1])) * scale
    if softcap is not None:
        z = torch.tanh(z / softcap) * softcap
    at = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    key = torch.arange(len(k), device=q.device)[None]
    hidden = (key > at) & causal
    if window is not None:
        hidden = hidden | (key <= at - window)
    return z.masked_fill(hidden, -math.inf)


def _by_query_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.double().repeat_interleave(heads // x.shape[1], 1)
