"""The public operators between rewards and a loss: advantages of samples and of tokens."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from rlk.errors import Code, LaunchError
from rlk.ops.layout import Layout
from rlk.ops.losses import number
from rlk.ops.offsets import bounds_of
from rlk.ops.policy import check_layout
from rlk.ops.results import Gae
from rlk.ops.signatures import _among, _tensors
from rlk.runtime.calls import call
from rlk.specs import advantage as advantage_spec
from rlk.specs.advantage import BASELINES, EPS_MODES, SCALES, STDS


def group_advantage(
    rewards: torch.Tensor,
    groups: torch.Tensor,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    baseline: Literal["mean", "loo"] = "mean",
    std: Literal["unbiased", "pop"] = "unbiased",
    eps: float = 1e-4,
    eps_mode: Literal["add", "max", "inside"] = "add",
) -> torch.Tensor:
    """Return the advantage of each sample over the others of its group, f32 [N].

    rewards: f32 [N]; NaN: not scored, takes no part in any statistic and has advantage 0. groups: int32 or
    int64 offsets [G + 1], group g holds the samples [groups[g], groups[g + 1]) and may be empty.
    baseline: "mean" of the group, or "loo", the mean of its other samples. scale: divide by the standard
    deviation of the rewards of the "group", of the whole "batch", or by nothing ("none"). std: "unbiased"
    (n - 1) or "pop" (n). eps_mode: divide by std + eps ("add"), max(std, eps) ("max") or
    sqrt(var + eps) ("inside"). GRPO (Shao 2024) is the default; Dr.GRPO scale="none"; RLOO baseline="loo",
    scale="none"; REINFORCE++ one group of all samples; its baseline form the scale="none" advantages once
    more as one group.

    Where the deviation is 0, as in a group of equal rewards or of one, the advantage is exactly 0. Offsets
    that do not ascend from 0 to N raise on the host; on a device they give NaN and set the error word.
    Differentiable in nothing. Raises LaunchError.
    """
    op = "group_advantage"
    _tensors(op, rewards=rewards)
    if rewards.dim() != 1:
        got, shape = rewards.dim(), tuple(rewards.shape)
        raise LaunchError(Code.ARG_RANK, op=op, name="rewards", got=got, shape=shape, wanted="1 dim [N]")
    choices = {"scale": (scale, SCALES), "baseline": (baseline, BASELINES), "std": (std, STDS)}
    for name, (value, among) in (choices | {"eps_mode": (eps_mode, EPS_MODES)}).items():
        _among(op, name, (value,), among)
    bounds = bounds_of(op, "groups", groups, rewards.numel(), "rewards")
    statics = {"scale": scale, "baseline": baseline, "std": std, "eps_mode": eps_mode}
    tensors = {"rewards": rewards, "bounds": bounds}
    return call(advantage_spec.group_advantage, tensors, {"eps": number(op, "eps", eps)}, statics)[
        "advantages"
    ]


def gae(
    values: torch.Tensor,
    rewards: torch.Tensor,
    *,
    layout: Layout,
    gamma: float,
    lam: float,
    bootstrap: torch.Tensor | None = None,
) -> Gae:
    """Return generalised advantage estimates and returns of tokens (Schulman 2015).

    A_t = delta_t + gamma lam A_next, delta_t = r_t + gamma V_next - V_t, returns = A + V, where next is the
    next active token of the sequence: tool outputs and padding are passed over, and give 0. The last active
    token of a sequence ends it, with V_next = 0, or bootstrap[sequence] where it was cut off; A_next = 0.

    values, rewards: f32 of the layout's token shape, [T] packed or [B, L] padded. bootstrap: f32
    [sequences]. A token's bits depend on the active tokens after it in its sequence alone: one pass from the
    last to the first, each operation rounded, gamma * lam rounded once. Differentiable in nothing. Raises
    LaunchError.
    """
    op = "gae"
    check_layout(op, layout)
    given = {"values": values, "rewards": rewards}
    _tensors(op, **given)
    tensors = {name: layout.tokens_like(op, name, x) for name, x in given.items()}
    tensors |= {"active": layout.active.reshape(-1), "bounds": layout.bounds}
    if bootstrap is not None:
        _tensors(op, bootstrap=bootstrap)
        tensors["bootstrap"] = bootstrap
    factor, decay = np.float32(number(op, "gamma", gamma)), np.float32(number(op, "lam", lam))
    scalars = {"gamma": float(factor), "decay": float(factor * decay)}
    made = call(advantage_spec.gae, tensors, scalars, {})
    return Gae(made["advantages"].reshape(layout.shape), made["returns"].reshape(layout.shape))
