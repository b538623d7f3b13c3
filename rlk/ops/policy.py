"""The public `policy_loss`: a loss by name or record, its operator, and the tensors that it reads."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Literal, Never

import torch

from rlk.errors import Code, LaunchError
from rlk.lang.op import Op
from rlk.ops.layout import Layout, checked_layout
from rlk.ops.losses import LIVING, METRICS, Loss, form_of
from rlk.ops.presets import LOSSES
from rlk.ops.results import PolicyLoss
from rlk.runtime.binding.checks import is_among, is_tensor, wrong_type, wrong_value
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.call.entry import call, worded
from rlk.runtime.call.library import register
from rlk.specs.policy import EDGES, policy_covariance, policy_covariance_of_sequences, policy_spec

NAME = "policy_loss"
LAYOUT = dict.fromkeys(("order", "active", "sequence", "begin", "end"), "layout")
"""Inputs of specs that a layout holds, as callers know them."""
for _spec in (policy_covariance, policy_covariance_of_sequences):
    worded(_spec, NAME, **LAYOUT)
ADVANTAGES_OF = ("tokens", "sequences")
AdvantagesOf = Literal["tokens", "sequences"]
GIVEN_WHEN = {
    "ref_logp": "when beta is not 0",
    "entropy": "when entropy_coef is not 0",
    "rollout_logp": "by corrections and rejections",
    "token_weights": "by a weighted loss",
}


def policy_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    layout: Layout,
    loss: Loss | str = "ppo",
    ref_logp: torch.Tensor | None = None,
    rollout_logp: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    advantages_of: AdvantagesOf | None = None,
    token_weights: torch.Tensor | None = None,
    **unknown: Never,
) -> PolicyLoss:
    """Return a policy loss of tokens, what each contributes, and metrics.

    logp, old_logp, ref_logp, rollout_logp, entropy, token_weights: f32 of the layout's token shape.
    advantages: f32 of that shape, one for each token, or [sequences], one for each sequence. advantages_of:
    which of the two, "tokens" or "sequences"; it may be left out where only one fits, and must be given where
    a packed layout has as many tokens as sequences. loss: a `Loss`, or a name of `rlk.ops.LOSSES`, such as
    "ppo", "gspo", "trl/grpo", "verl/cispo". ref_logp is needed when beta != 0, entropy when entropy_coef !=
    0, rollout_logp by a correction or a rejection, token_weights by a loss that is `weighted`; others are not
    read. Differentiable in logp and entropy.

    Sums run over active tokens in their compacted order, in chunks of 1024 as halving trees, 4096 chunks at a
    time in the same way, those ascending; sums of a sequence in chunks of 1024 from its first active token,
    ascending: padded and packed inputs give the same bits. A `Selection` ranks tokens by covariances whose
    means are summed in the same order, equal ones by their place in it. No active token: loss 0,
    metrics["active"] 0. metrics: active (tokens that count), and those of the loss; log_ratio_histogram: i32,
    how many log ratios lie below, between and at or above `rlk.specs.policy.EDGES`. Raises LaunchError.
    """
    if unknown:
        raise not_an_option(NAME, unknown)
    record = loss_of(loss)
    checked_layout(NAME, layout)
    given = {"logp": logp, "old_logp": old_logp, "advantages": advantages}
    extra = {"ref_logp": ref_logp, "rollout_logp": rollout_logp, "entropy": entropy}
    extra["token_weights"] = token_weights
    per_token = of_tokens(NAME, advantages, layout, advantages_of)
    if record.selection is not None:
        extra["selected"] = _selected(record, given, layout, per_token).reshape(layout.shape)
    name, numbers, reads = planned(record, per_token)
    tensors = _read(reads, {**given, **extra}, layout, per_token)
    made = call(_operators[name], tensors, dict(numbers), {})
    reported = {n: x for n, x in made.items() if n in METRICS or n.startswith("above_")}
    metrics = {"active": made["count"]} | reported
    if "log_ratio_histogram" in record.metrics:
        metrics["log_ratio_histogram"] = _histogram(metrics)
    return PolicyLoss(made["loss"], made["per_token"].reshape(layout.shape), metrics)


def without_unknown(fn: Callable[..., object]) -> None:
    """Leave what is taken only to be refused out of a function's signature."""
    found = inspect.signature(fn)
    named = [p for p in found.parameters.values() if p.kind is not p.VAR_KEYWORD]
    fn.__signature__ = found.replace(parameters=named)  # type: ignore[attr-defined]


without_unknown(policy_loss)


def not_an_option(op: str, unknown: Mapping[str, object]) -> TypeError:
    """Return Python's error for an unknown option, with what to write for one that belongs to the loss."""
    name = next(iter(unknown))
    said = f"{op}() got an unexpected keyword argument {name!r}"
    if name not in {each.name for each in fields(Loss)}:
        return TypeError(said)
    return TypeError(f"{said}: write loss=dataclasses.replace(rlk.ops.LOSSES[...], {name}=...)")


def _selected(
    record: Loss, given: Mapping[str, torch.Tensor], layout: Layout, per_token: bool
) -> torch.Tensor:
    """Return which tokens a loss's selection takes, bool [T]; nothing waits for the device."""
    selection, numbers = record.selection, dict(record.surrogate.numbers)
    assert selection is not None
    reads = ("logp", "old_logp", "advantages") if selection.unclipped else ("logp", "advantages")
    reads = (*reads, "order", "active") if per_token else (*reads, "sequence", "order", "active")
    tensors = _read(reads, given, layout, per_token)
    tensors["logp"] = tensors["logp"].detach()
    bounds = {"low": selection.low, "high": selection.high}
    if selection.unclipped:
        bounds |= {name: numbers[name] for name in ("least", "most")}
    scalars = {name: float(value) for name, value in bounds.items() if value is not None}
    spec = policy_covariance if per_token else policy_covariance_of_sequences
    made = call(spec, tensors, scalars, {})
    order = layout.order.to(torch.int64)
    ranked = torch.sort(made["score"][order], descending=True, stable=True)
    most = (made["count"].double() * selection.share).floor().clamp(min=1)
    place = torch.arange(layout.tokens, device=order.device)
    takes = (place < most) & (ranked.values > -math.inf)
    return torch.zeros_like(takes).scatter(0, order[ranked.indices], takes)


def loss_of(loss: Loss | str) -> Loss:
    """Return a loss by its name; raise LaunchError with the nearest names."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise wrong_type(NAME, "loss", loss, "Loss, or a name")
    if loss not in LOSSES:
        near = difflib.get_close_matches(loss, LOSSES, n=3) or difflib.get_close_matches(
            loss.rpartition("/")[2], LOSSES, n=3, cutoff=0.5
        )
        nearest = f" (nearest: {', '.join(near)})" if near else ""
        raise wrong_value(NAME, "loss", loss, f"a Loss, or a name among rlk.ops.LOSSES{nearest}")
    return LOSSES[loss]


Plan = tuple[str, tuple[tuple[str, float], ...], tuple[str, ...]]
"""The call of a loss: its operator by name, its numbers as scalars, and the tensors that it reads."""
_operators: dict[str, Op] = {}


def planned(loss: Loss, per_token: bool) -> Plan:
    """Return the call of a loss; per_token: advantages are of tokens, not of sequences."""
    return _known(id(loss), per_token)


def _known(loss: int, per_token: bool) -> Plan:
    return _planned(LIVING[loss], per_token)


# the attribute of torch.compiler.assume_constant_result: losses and names are constants of a compiled graph;
# before torch 2.11 a number may be an argument of such a function, and a frozen dataclass may not
_known._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=1024)  # numbers may change with every step
def _planned(loss: Loss, per_token: bool) -> Plan:
    form, numbers = form_of(loss, per_token)
    op = policy_spec(form)
    register(op)
    worded(op, NAME, **LAYOUT)
    _operators[op.name] = op
    return op.name, tuple(numbers.items()), tuple(form.tensors)


def of_tokens(op: str, advantages: object, layout: Layout, of: AdvantagesOf | None) -> bool:
    """Return whether advantages are of tokens, not of sequences: as said, or where only one of both fits."""
    if of is not None:
        is_among(op, "advantages_of", of, ADVANTAGES_OF)
    shape = tuple(is_tensor(op, "advantages", advantages).shape)
    fits = {"tokens": layout.shape, "sequences": (layout.sequences,)}
    found = [name for name in ADVANTAGES_OF if shape == fits[name] and of in (None, name)]
    if not found:
        wanted = fits[of] if of is not None else " or ".join(map(str, fits.values()))
        raise LaunchError(Code.LAYOUT_MISMATCH, op=op, name="advantages", got=shape, wanted=wanted)
    if len(found) > 1 and shape[0] > 1:  # one token of one sequence has one advantage, none has none
        why = f"where {shape[0]} tokens and as many sequences have one shape"
        raise LaunchError(Code.ARG_MISSING, op=op, name="advantages_of", why=why)
    return found[0] == "tokens"


def _read(
    reads: tuple[str, ...], given: Mapping[str, torch.Tensor | None], layout: Layout, per_token: bool
) -> Tensors:
    """Return the tensors that an operator reads, tokens in a row; raise LaunchError for a missing one."""
    found: Tensors = {}
    for name in reads:
        if name not in given:
            found[name] = _of_layout(layout, name)
            continue
        tensor = given[name]
        if tensor is None and name in GIVEN_WHEN:
            raise LaunchError(Code.ARG_MISSING, op=NAME, name=name, why=GIVEN_WHEN[name])
        tensor = is_tensor(NAME, name, tensor)
        found[name] = layout.tokens_like(NAME, name, tensor) if per_token or name != "advantages" else tensor
    return found


def _of_layout(layout: Layout, name: str) -> torch.Tensor:
    match name:
        case "order":
            return layout.order
        case "begin":
            return layout.segments[0]
        case "end":
            return layout.segments[1]
        case "active":
            return layout.active.reshape(-1)
        case _:
            return layout.sequence.reshape(-1)


def _histogram(metrics: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the number of tokens in each bin, given the numbers of tokens at or above each edge."""
    above = [metrics.pop(f"above_{i}") for i in range(len(EDGES))]
    return torch.stack([metrics["active"], *above]).diff(append=torch.zeros_like(above[:1][0])[None]).neg()
