"""Advantages, value losses and preferences in float64 torch, straight from their formulas."""

from __future__ import annotations

import torch

from rlk.ops.layout import Layout
from rlk.ops.results import Gae


def group_advantage(
    rewards: torch.Tensor,
    groups: torch.Tensor,
    *,
    scale: str = "group",
    baseline: str = "mean",
    std: str = "unbiased",
    eps: float = 1e-4,
    eps_mode: str = "add",
) -> torch.Tensor:
    """Return `rlk.ops.group_advantage` in float64."""
    r = rewards.double()
    made = torch.zeros_like(r)
    edges = groups.tolist()
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        x = r[begin:end]
        scored = ~x.isnan()
        n = int(scored.sum())
        away = x - x[scored].mean()
        if baseline == "loo":
            away = away * (n / max(n - 1, 1))
        if scale != "none":
            away = away / _deviation(x if scale == "group" else r, std, eps, eps_mode)
        made[begin:end] = torch.where(scored, away, 0.0)
    return made


def _deviation(x: torch.Tensor, std: str, eps: float, eps_mode: str) -> torch.Tensor:
    """Return what deviations are divided by; infinity where there is no spread."""
    x = x[~x.isnan()]
    if x.numel() == 0 or bool((x == x[0]).all()):
        return torch.tensor(torch.inf, dtype=torch.float64)
    variance = x.var(correction=1 if std == "unbiased" else 0)
    match eps_mode:
        case "add":
            return variance.sqrt() + eps
        case "max":
            return variance.sqrt().clamp(min=eps)
        case _:
            return (variance + eps).sqrt()


def gae(
    values: torch.Tensor,
    rewards: torch.Tensor,
    *,
    layout: Layout,
    gamma: float,
    lam: float,
    bootstrap: torch.Tensor | None = None,
) -> Gae:
    """Return `rlk.ops.gae` in float64."""
    v, r = values.double().reshape(-1), rewards.double().reshape(-1)
    alive, advantages = layout.active.reshape(-1), torch.zeros_like(v)
    for sequence, (begin, end) in enumerate(layout.bounds.tolist()):
        after = v.new_zeros(()) if bootstrap is None else bootstrap[sequence].double()
        ahead = v.new_zeros(())
        for t in reversed(range(begin, end)):
            if alive[t]:
                ahead = r[t] + gamma * after - v[t] + gamma * lam * ahead
                after, advantages[t] = v[t], ahead
    returns = torch.where(alive, advantages + v, 0.0)
    return Gae(advantages.reshape(layout.shape), returns.reshape(layout.shape))
