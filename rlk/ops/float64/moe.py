"""Choice of experts, and moves of rows to them and back, in float64."""

from __future__ import annotations

import torch

from rlk.ops.moe import Permuted, Route, RouterLosses
from rlk.ops.routes import Routes


def route(
    scores: torch.Tensor,
    k: int,
    *,
    score: str = "softmax",
    bias: torch.Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    group_score: str = "top2",
    renormalize: bool = True,
    scale: float = 1.0,
    replay: Routes | None = None,
    layer: int = 0,
) -> Route:
    """Return `rlk.ops.route` in float64; ids are int64."""
    x = scores.double()
    p = torch.softmax(x, -1) if score == "softmax" else torch.sigmoid(x)
    compared = p if bias is None else p + bias.double()
    if groups > 1:
        parts = compared.unflatten(-1, (groups, -1))
        best = parts.max(-1).values if group_score == "max" else parts.topk(2, -1).values.sum(-1)
        kept = best.sort(dim=-1, descending=True, stable=True).indices[..., :kept_groups]
        inside = torch.zeros_like(best, dtype=torch.bool).scatter(-1, kept, True)
        compared = torch.where(inside[..., None], parts, -torch.inf).flatten(-2)
    ids = compared.sort(dim=-1, descending=True, stable=True).indices[..., :k].sort(-1).values
    flipped = None
    if replay is not None:
        recorded = replay.ids[:, layer].long().reshape(ids.shape)
        flipped, ids = (ids != recorded).any(-1), recorded
    weights = p.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return Route(ids, scale * weights, flipped)


def permute(x: torch.Tensor, ids: torch.Tensor, *, experts: int, **_: object) -> Permuted:
    """Return `rlk.ops.permute` in float64."""
    found, order = torch.sort(ids.reshape(-1).long(), stable=True)
    place = torch.argsort(order).view(ids.shape)
    offsets = torch.searchsorted(found, torch.arange(experts + 1))
    return Permuted(x.double()[order // ids.shape[1]], order, place, offsets)


def combine(rows: torch.Tensor, weights: torch.Tensor, permuted: Permuted, **_: object) -> torch.Tensor:
    """Return `rlk.ops.combine` in float64."""
    return (rows.double()[permuted.place.long()] * weights.double()[..., None]).sum(1)


def router_losses(
    scores: torch.Tensor,
    ids: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    tokens: int | None = None,
    load: torch.Tensor | None = None,
) -> RouterLosses:
    """Return `rlk.ops.router_losses` in float64."""
    alive = torch.ones(len(ids), dtype=torch.bool) if mask is None else mask
    own = max(1, int(alive.sum()))
    count = own if tokens is None else tokens
    x, chosen = scores.double()[alive], ids.long()[alive]
    p = torch.softmax(x, -1)
    counts = torch.bincount(chosen.flatten(), minlength=scores.shape[1]).double()
    share = counts / own if load is None else load.double()
    entropy = -torch.where(p == 0, 0.0, p * torch.log_softmax(x, -1)).sum() / count
    balance = scores.shape[1] * (share * p.sum(0) / count).sum()
    return RouterLosses(balance, torch.logsumexp(x, -1).square().sum() / count, entropy, counts / count)
