"""The public terms beside a policy loss: the critic's loss and the entropy bonus."""

from __future__ import annotations

import torch

from rlk.ops.checks import are_tensors, number, positive
from rlk.ops.layout import Layout, checked_layout
from rlk.ops.results import EntropyBonus, ValueLoss
from rlk.runtime.calls import call, worded
from rlk.runtime.invocation import Scalars, Tensors
from rlk.specs import value as value_spec

for _spec in (value_spec.value_loss, value_spec.entropy_bonus):
    worded(_spec, _spec.name, order="layout", active="layout")


def value_loss(
    values: torch.Tensor,
    returns: torch.Tensor,
    *,
    layout: Layout,
    old_values: torch.Tensor | None = None,
    clip: float = 0.2,
) -> ValueLoss:
    """Return the token mean of 0.5 max((v - R)^2, (clip(v, v0 - clip, v0 + clip) - R)^2) (Schulman 2017).

    values, returns, old_values: f32 of the layout's token shape, [T] packed or [B, L] padded. old_values: v0,
    the values of the rollout; without them nothing is clipped. The gradient flows where the unclipped error
    is not the smaller of the two. Differentiable in values.

    Sums run over active tokens in their compacted order: padded and packed inputs give the same bits. No
    active token: loss 0, metrics["active"] 0. per_token is f32 of the token shape, 0 where inactive. Metrics:
    active, and clip_fraction where old_values are there. Raises LaunchError.
    """
    op, given = "value_loss", {"values": values, "returns": returns}
    scalars: Scalars = {}
    if old_values is not None:
        given["old_values"] = old_values
        scalars["clip"] = positive(op, "clip", clip)
    made = call(value_spec.value_loss, _of_tokens(op, layout, given), scalars, {})
    metrics = {"active": made["count"]}
    if old_values is not None:
        metrics["clip_fraction"] = made["clip_fraction"]
    return ValueLoss(made["loss"], made["per_token"].reshape(layout.shape), metrics)


def entropy_bonus(entropy: torch.Tensor, *, layout: Layout, coef: float) -> EntropyBonus:
    """Return -coef times the token mean of the entropy, a term to add to a loss.

    entropy: f32 of the layout's token shape, [T] packed or [B, L] padded, as `logp` or `linear_logp` return
    it. Sums run over active tokens in their compacted order: padded and packed inputs give the same bits. No
    active token: 0. Differentiable in entropy. Raises LaunchError.
    """
    op = "entropy_bonus"
    tensors = _of_tokens(op, layout, {"entropy": entropy})
    made = call(value_spec.entropy_bonus, tensors, {"coef": number(op, "coef", coef)}, {})
    return EntropyBonus(made["loss"], made["mean"])


def _of_tokens(op: str, layout: Layout, given: Tensors) -> Tensors:
    """Return tensors of one number per token as flat rows, with which tokens count and in which order."""
    checked_layout(op, layout)
    are_tensors(op, **given)
    flat = {name: layout.tokens_like(op, name, x) for name, x in given.items()}
    return flat | {"order": layout.order, "active": layout.active.reshape(-1)}
