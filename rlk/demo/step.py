"""One GRPO step from logits through rlk.ops, on padded or packed tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import rlk
from rlk import ops
from rlk.demo.batch import Case
from rlk.demo.plain import BETA, CLIP
from rlk.ops.losses import clip


@dataclass(frozen=True, slots=True)
class Tokens:
    """A step's inputs beside the logits, in one layout: padded [B, L] or packed [T]; advantages are [B]."""

    ids: Tensor
    mask: Tensor
    old: Tensor
    ref: Tensor
    advantages: Tensor
    layout: Any

    @staticmethod
    def padded(case: Case) -> Tokens:
        """Take the tokens of a case as they are."""
        batch = case.batch
        layout = rlk.Layout.padded(batch.lengths, batch.mask.shape[1], side="right", mask=batch.mask)
        return Tokens(batch.targets, batch.mask, case.old, case.ref, batch.advantages, layout)

    @staticmethod
    def packed(case: Case) -> Tokens:
        """Lay the real tokens of a case end to end."""
        batch = case.batch
        mask = batch.pack(batch.mask)
        layout = rlk.Layout.packed(batch.cu_seqlens, mask=mask)
        parts = (batch.pack(batch.targets), mask, batch.pack(case.old), batch.pack(case.ref))
        return Tokens(*parts, batch.advantages, layout)


class PerToken(NamedTuple):
    """The results of a step for every token."""

    logp: Tensor
    entropy: Tensor
    lse: Tensor
    ratio: Tensor
    kl: Tensor


class Step(NamedTuple):
    """The results of a step: per token, in all, and the gradients that go back."""

    logp: Tensor
    entropy: Tensor
    lse: Tensor
    ratio: Tensor
    kl: Tensor
    loss: Tensor
    d_logp: Tensor
    d_logits: Tensor


def log_probs(logits: Tensor, ids: Tensor, mask: Tensor | None = None) -> Any:
    """Return log-probs, entropies and log-sum-exps of logits [..., V]."""
    return ops.logp(logits, ids, mask=mask, needs=("logp", "entropy", "lse"))


def per_token(logits: Tensor, tokens: Tokens) -> PerToken:
    """Run the part of a step that is per token, forward only."""
    with torch.no_grad():
        probs = log_probs(logits, tokens.ids, tokens.mask)
        apart = ops.ratio_kl(probs.logp, tokens.old, tokens.ref, mask=tokens.mask)
    return PerToken(probs.logp, probs.entropy, probs.lse, apart.ratio, apart.kl)


def loss_with(logp: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, layout: Any) -> Tensor:
    """Return GRPO's loss: the clipped surrogate with a k3 penalty, averaged over active tokens."""
    loss = ops.Loss(clip(CLIP, CLIP), kl="k3", beta=BETA)
    result: Tensor = ops.policy_loss(logp, old, advantages, layout=layout, loss=loss, ref_logp=ref).loss
    return result


def grpo(logits: Tensor, tokens: Tokens) -> Step:
    """Run a step forward and back to the logits."""
    leaf = logits.detach().requires_grad_()
    probs = log_probs(leaf, tokens.ids, tokens.mask)
    apart = ops.ratio_kl(probs.logp.detach(), tokens.old, tokens.ref, mask=tokens.mask)
    loss = loss_with(probs.logp, tokens.old, tokens.ref, tokens.advantages, tokens.layout)
    d_logp, d_logits = torch.autograd.grad(loss, (probs.logp, leaf))
    values = (probs.logp, probs.entropy, probs.lse, apart.ratio, apart.kl, loss)
    return Step(*(value.detach() for value in values), d_logp, d_logits)


def logits_gradient(logits: Tensor, tokens: Tokens, d_logp: Tensor) -> Tensor:
    """Pull a given gradient of the log-probs back to the logits."""
    leaf = logits.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(log_probs(leaf, tokens.ids, tokens.mask).logp, leaf, d_logp)
    return gradient
