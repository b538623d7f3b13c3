"""The same GRPO step in plain eager torch: the peer measured beside rlk, and the float64 reference."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlk.demo.batch import Case

CLIP = 0.2
BETA = 0.04


class Terms(NamedTuple):
    """The results of a GRPO step, per token and in all."""

    logp: Tensor
    entropy: Tensor
    ratio: Tensor
    kl: Tensor
    loss: Tensor


def log_probs(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probs of the ids and entropies, computed in the type of the logits."""
    scores = torch.log_softmax(logits, -1)
    chosen = scores.gather(-1, ids[..., None])[..., 0]
    return chosen, -(scores.exp() * scores).sum(-1)


def grpo(case: Case, logits: Tensor) -> Terms:
    """Run a GRPO step forward from logits [B, L, V] in f32, the rest of the case as it is."""
    batch = case.batch
    chosen, spread = log_probs(logits.float(), batch.targets)
    return objective(chosen, spread, case.old, case.ref, batch.advantages, batch.mask)


def objective(
    logp: Tensor, entropy: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, mask: Tensor
) -> Terms:
    """Compute the clipped surrogate with a k3 penalty, averaged over active tokens.

    logp, entropy, old, ref and mask [B, L]; advantages [B].
    """
    ratio = torch.exp(logp - old)
    gap = ref - logp
    kl = torch.expm1(gap) - gap
    clipped = torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
    weight = advantages[:, None]
    per_token = torch.maximum(-ratio * weight, -clipped * weight) + BETA * kl
    loss = torch.where(mask, per_token, 0.0).sum() / mask.sum().clamp(min=1)
    nothing, one = torch.zeros_like(logp), torch.ones_like(logp)
    return Terms(
        torch.where(mask, logp, nothing),
        torch.where(mask, entropy, nothing),
        torch.where(mask, ratio, one),
        torch.where(mask, kl, nothing),
        loss,
    )


def step(case: Case) -> tuple[Terms, Tensor]:
    """Run a GRPO step forward and back to the logits."""
    leaf = case.logits.detach().requires_grad_()
    terms = grpo(case, leaf)
    (gradient,) = torch.autograd.grad(terms.loss, leaf)
    return Terms(*(term.detach() for term in terms)), gradient
