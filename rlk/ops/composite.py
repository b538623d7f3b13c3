"""Operators composed of others: one call, with the bits and gradients of its parts one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Never

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.layout import Layout, checked_layout
from rlk.ops.linear import linear_logp
from rlk.ops.losses import Loss
from rlk.ops.policy import (
    GIVEN_WHEN,
    AdvantagesOf,
    loss_of,
    not_an_option,
    of_tokens,
    planned,
    policy_loss,
    without_unknown,
)
from rlk.ops.results import Csr, PolicyLoss, Support
from rlk.runtime.binding.checks import are_tensors, has_dtype
from rlk.runtime.binding.selection import differentiable_in
from rlk.specs.linear_logp import linear_logp as linear_spec

NEVER = -(2**63)
"""An id that no token has, as ignore_index: only the layout decides which tokens are active."""


def linear_policy_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    layout: Layout,
    loss: Loss | str = "ppo",
    ref_logp: torch.Tensor | None = None,
    rollout_logp: torch.Tensor | None = None,
    temperature: float | torch.Tensor = 1.0,
    bias: torch.Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    keep_logits: str | int = "never",
    group: object | None = None,
    vocab_start: int = 0,
    weight_grad_out: torch.Tensor | None = None,
    advantages_of: AdvantagesOf | None = None,
    token_weights: torch.Tensor | None = None,
    support: Support | Csr | None = None,
    math: str | None = None,
    **unknown: Never,
) -> PolicyLoss:
    """Return the policy loss of a linear head's log-probs; the logits never reach memory.

    The bits are those of `policy_loss(linear_logp(hidden, weight, ids, mask=layout.active).logp, ...)`, with
    the entropy where the loss has an entropy_coef.

    hidden: [T, D] of a packed layout, [B, L, D] of a padded one; weight: [V, D]; bias: [V]; one dtype, bf16
    or f16. ids: of the layout's token shape. old_logp, ref_logp, rollout_logp, token_weights: f32 of that
    shape. advantages, advantages_of: f32 of that shape or [sequences], as `policy_loss` takes them. loss: any
    that `policy_loss` takes, by name or as a `Loss`, which says whether ref_logp and rollout_logp are needed.
    temperature, softcap, logit_scale, keep_logits, group, vocab_start, weight_grad_out, support and math are
    those of `linear_logp`.

    Rows of inactive tokens are not read, whatever they hold, and their gradient is 0; an active id outside
    [0, V) gives NaN and sets the error word. Differentiable in hidden, weight and bias; backward
    computes the logits again. Raises LaunchError.
    """
    op, numbers = "linear_policy_loss", {"old_logp": old_logp, "advantages": advantages}
    if unknown:
        raise not_an_option(op, unknown)
    try:
        record = loss_of(loss)
        checked_layout(op, layout)
        more = {"ref_logp": ref_logp, "rollout_logp": rollout_logp, "token_weights": token_weights}
        numbers |= _needed(record, more)
        are_tensors(op, hidden=hidden, weight=weight, ids=ids, **numbers)
        of_tokens(op, advantages, layout, advantages_of)
        shapes = {n: t.shape for n, t in numbers.items() if n != "advantages"}
        _of_layout(layout, {"hidden": hidden.shape[:-1], "ids": ids.shape, **shapes})
        _readable(hidden, numbers)
        made = linear_logp(
            hidden, weight, ids, bias=bias, temperature=temperature, softcap=softcap, logit_scale=logit_scale,
            mask=layout.active, ignore_index=NEVER, needs=_needs(record), keep_logits=keep_logits,
            group=group, vocab_start=vocab_start, weight_grad_out=weight_grad_out,
            support=support, math=math,
        )  # fmt: skip
        assert made.logp is not None
        rest = {**more, "entropy": made.entropy}
        return policy_loss(
            made.logp, old_logp, advantages, layout=layout, loss=record, advantages_of=advantages_of, **rest
        )
    except LaunchError as error:
        raise _told_of(op, error) from None


without_unknown(linear_policy_loss)


def _needs(record: Loss) -> tuple[str, ...]:
    return ("logp", "entropy") if record.entropy_coef != 0.0 else ("logp",)


def _needed(record: Loss, given: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """Return the given log-probs that the loss reads."""
    found: dict[str, torch.Tensor] = {}
    _, _, reads = planned(record, False)
    for name, tensor in given.items():
        if name in reads and tensor is None:
            raise LaunchError(Code.ARG_MISSING, op="linear_policy_loss", name=name, why=GIVEN_WHEN[name])
        if name in reads and tensor is not None:
            found[name] = tensor
    return found


def _of_layout(layout: Layout, shapes: Mapping[str, torch.Size]) -> None:
    """Refuse tensors of other tokens than the layout's, before the first part runs."""
    for name, shape in shapes.items():
        if tuple(shape) != layout.shape:
            raise LaunchError(
                Code.LAYOUT_MISMATCH,
                op="linear_policy_loss",
                name=name,
                got=tuple(shape),
                wanted=layout.shape,
            )


def _readable(hidden: torch.Tensor, numbers: Mapping[str, torch.Tensor]) -> None:
    """Refuse arguments that only the second part would refuse, before the first part runs."""
    op = "linear_policy_loss"
    for name, tensor in numbers.items():
        has_dtype(op, name, tensor, torch.float32)
        if tensor.device != hidden.device:
            raise LaunchError(
                Code.ARG_DEVICE, op=op, name=name, got=tensor.device, other="hidden", wanted=hidden.device
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise LaunchError(Code.NOT_DIFFERENTIABLE, op=op, name=name, choices=_differentiable_in())


def _differentiable_in() -> str:
    return ", ".join(differentiable_in(linear_spec))


def _told_of(op: str, error: LaunchError) -> LaunchError:
    """Return an error of a part under the name of the whole operator, with the mask named as the layout's."""
    return error.reworded(op={"linear_logp": op, "policy_loss": op}, name={"mask": "layout.active"})
