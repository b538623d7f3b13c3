"""Sampling in float64 torch: the distribution that a row is drawn from, and its log-probs."""

from __future__ import annotations

import torch

from rlk.ops.sampling import Penalties


def penalize(logits: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    """Return `rlk.ops.penalize` in float64."""
    z, counts = logits.double(), penalties.counts
    seen = counts > 0 if penalties.prompt is None else (counts > 0) | penalties.prompt
    r, f, p = (_column(x) for x in (penalties.repetition, penalties.frequency, penalties.presence))
    z = torch.where(seen, torch.where(z > 0, z / r, z * r), z)
    return z - f * counts - p * (counts > 0)


def sample(
    logits: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    top_k: int | torch.Tensor = 0,
    top_p: float | torch.Tensor = 1.0,
    min_p: float | torch.Tensor = 0.0,
    penalties: Penalties | None = None,
    **_: object,
) -> torch.Tensor:
    """Return log-probs, [B, V], of what `rlk.ops.sample` draws from: -inf outside of the support.

    By sorting: min-p, then the first k of a stable descending sort, then its first tokens up to top_p.
    """
    z = logits.double() if penalties is None else penalize(logits, penalties)
    z = torch.where(torch.isnan(z), -torch.inf, z)
    heat, k, p, least = (_column(x) for x in (temperature, top_k, top_p, min_p))
    greedy = torch.as_tensor(heat == 0, device=z.device)
    k = torch.where(greedy, 1, torch.as_tensor(k, device=z.device))
    order = torch.sort(z, descending=True, stable=True)
    scaled = order.values / torch.where(greedy, 1.0, torch.as_tensor(heat, device=z.device))
    share = torch.softmax(scaled, -1)
    rank = torch.arange(z.shape[1], device=z.device)
    kept = (order.values > -torch.inf) & (share >= least * share[:, :1]) & ((rank < k) | (k < 1))
    share = torch.softmax(torch.where(kept, scaled, -torch.inf), -1)
    kept &= (share.cumsum(-1) - share < p) | torch.as_tensor(p >= 1) | (rank == 0) & kept
    found = torch.log_softmax(torch.where(kept, scaled, -torch.inf), -1)
    return torch.empty_like(z).scatter_(1, order.indices, found)


def _column(x: float | torch.Tensor) -> float | torch.Tensor:
    return x.double()[:, None] if isinstance(x, torch.Tensor) else x
