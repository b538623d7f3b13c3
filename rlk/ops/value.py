"""The public terms beside a policy loss: the critic's loss, the likelihood of known tokens, the bonus."""

from __future__ import annotations

from typing import Literal

import torch

from rlk.ops.layout import Layout, checked_layout
from rlk.ops.results import EntropyBonus, NLLLoss, ValueLoss
from rlk.runtime.binding.checks import are_tensors, is_among, number, positive, wrong_value
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import value as value_spec
from rlk.specs.value import AGGREGATIONS, SEQUENCES

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "sum"]
Counted = Literal["active", "all"]

for _spec in (value_spec.value_loss, value_spec.entropy_bonus):
    worded(_spec, _spec.name, order="layout", active="layout")


def value_loss(
    values: torch.Tensor,
    returns: torch.Tensor,
    *,
    layout: Layout,
    old_values: torch.Tensor | None = None,
    clip: float = 0.2,
    aggregation: Aggregation = "token_mean",
    sequences: Counted = "active",
    normalizer: float | None = None,
) -> ValueLoss:
    """Return the token mean of 0.5 max((v - R)^2, (clip(v, v0 - clip, v0 + clip) - R)^2) (Schulman 2017).

    values, returns, old_values: f32 of the layout's token shape, [T] packed or [B, L] padded. old_values: v0,
    the values of the rollout; without them nothing is clipped. The gradient flows where the unclipped error
    is not the smaller of the two. Differentiable in values.

    aggregation: the mean over active tokens; over sequences, of means ("sequence_mean") or sums
    ("sequence_sum") of their active tokens; or the "sum". sequences: those with active tokens are counted,
    or "all". normalizer: the loss is divided by it as well.

    Sums run over active tokens in their compacted order, in chunks of 1024 as halving trees, 4096 chunks at a
    time in the same way, those ascending; for "sequence_mean" each term is first divided by the number of
    active tokens of its sequence: padded and packed inputs give the same bits. No active token: loss 0,
    metrics["active"] 0. per_token is f32 of the token shape, 0 where inactive: the terms, before they are
    averaged. Metrics: active, and clip_fraction, over tokens, where old_values are there. Raises LaunchError.
    """
    op, given = "value_loss", {"values": values, "returns": returns}
    scalars: Scalars = {}
    if old_values is not None:
        given["old_values"] = old_values
        scalars["clip"] = positive(op, "clip", clip)
    tensors = _of_tokens(op, layout, given)
    statics = _averaging(op, layout, tensors, scalars, aggregation, sequences, normalizer)
    made = call(value_spec.value_loss, tensors, scalars, statics)
    metrics = {"active": made["count"]}
    if old_values is not None:
        metrics["clip_fraction"] = made["clip_fraction"]
    return ValueLoss(made["loss"], made["per_token"].reshape(layout.shape), metrics)


def nll_loss(
    logp: torch.Tensor,
    *,
    layout: Layout,
    weights: torch.Tensor | None = None,
    aggregation: Aggregation = "token_mean",
    sequences: Counted = "active",
    normalizer: float | None = None,
) -> NLLLoss:
    """Return the token mean of -w logp: supervised tokens, or the likelihood term beside a preference loss.

    logp: f32 of the layout's token shape, [T] packed or [B, L] padded, as `logp` or `linear_logp` return it.
    weights: f32 of that shape, 1 without them; a token of weight 0 does not count, whatever it holds. They
    need an aggregation over tokens. aggregation, sequences, normalizer and the order of sums: those of
    `value_loss`. No token: loss 0, metrics["active"] 0. per_token is f32 of the token shape, 0 where a token
    does not count. Differentiable in logp. Raises LaunchError.
    """
    op, given = "nll_loss", {"logp": logp}
    scalars: Scalars = {}
    if weights is not None:
        given["weights"] = weights
        if aggregation in ("sequence_mean", "sequence_sum"):
            raise wrong_value(op, "aggregation", aggregation, "token_mean or sum with weights")
    tensors = _of_tokens(op, layout, given)
    statics = _averaging(op, layout, tensors, scalars, aggregation, sequences, normalizer)
    made = call(value_spec.nll_loss, tensors, scalars, statics)
    return NLLLoss(made["loss"], made["per_token"].reshape(layout.shape), {"active": made["count"]})


def _averaging(
    op: str, layout: Layout, tensors: Tensors, scalars: Scalars, aggregation: str, sequences: str,
    normalizer: float | None,
) -> dict[str, str]:  # fmt: skip
    """Return the statics of an aggregation, and add the tensors that it reads."""
    is_among(op, "aggregation", aggregation, AGGREGATIONS)
    is_among(op, "sequences", sequences, SEQUENCES)
    if normalizer is not None:
        positive(op, "normalizer", normalizer)
        scalars["normalizer"] = float(normalizer)
    if aggregation not in ("sequence_mean", "sequence_sum"):
        return {"aggregation": aggregation, "counted": "active"}
    begin, end = layout.segments
    tensors |= {"sequence": layout.sequence.reshape(-1), "begin": begin, "end": end}
    return {"aggregation": aggregation, "counted": sequences}


def entropy_bonus(entropy: torch.Tensor, *, layout: Layout, coef: float) -> EntropyBonus:
    """Return -coef times the token mean of the entropy, a term to add to a loss.

    entropy: f32 of the layout's token shape, [T] packed or [B, L] padded, as `logp` or `linear_logp` return
    it. Sums run over active tokens in their compacted order: padded and packed inputs give the same bits. No
    active token: 0. A coef below 0 is a penalty. Differentiable in entropy. Raises LaunchError.
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
