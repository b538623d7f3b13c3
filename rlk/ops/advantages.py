"""The public operators between rewards and a loss: advantages of samples and of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rlk.errors import Code, LaunchError
from rlk.ops.layout import Layout, checked_layout
from rlk.ops.offsets import (
    bounds_of,
    misplaced,
    on_the_host,
    refuse_misplaced,
    segments_of,
    some_offsets,
)
from rlk.ops.results import Gae, TokenAdvantages, TokenRewards
from rlk.runtime.binding.checks import (
    are_tensors,
    has_dims,
    is_among,
    number,
    same_device,
    wrong_type,
    wrong_value,
)
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import advantage as advantage_spec
from rlk.specs.advantage import BASELINES, EPS_MODES, PLACES, SCALES, STDS, TAILS

worded(advantage_spec.group_advantage, "group_advantage", bounds="groups")
worded(advantage_spec.scatter_rewards, "scatter_rewards", bounds="offsets", active="layout")
worded(advantage_spec.gae, "gae", bounds="layout", active="layout")
worded(advantage_spec.token_paths, "optimal_token_baseline", bounds="layout", active="layout")
worded(
    advantage_spec.token_baseline,
    "optimal_token_baseline",
    **dict.fromkeys(("active", "sequence", "place", "order", "begin", "end"), "layout"),
    **dict.fromkeys(("bounds", "group"), "groups"),
)
ALIGNMENTS = ("position", "active")


def group_advantage(
    rewards: torch.Tensor,
    groups: torch.Tensor,
    *,
    scale: Literal["group", "batch", "none"] = "group",
    baseline: Literal["mean", "loo", "length", "best"] = "mean",
    std: Literal["unbiased", "pop"] = "unbiased",
    eps: float = 1e-4,
    eps_mode: Literal["add", "max", "inside"] = "add",
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the advantage of each sample over the others of its group, f32 [N].

    rewards: f32 [N]; NaN: not scored, takes no part in any statistic and has advantage 0. groups: int32 or
    int64 offsets [G + 1], group g holds the samples [groups[g], groups[g + 1]) and may be empty.
    baseline: "mean" of the group; "loo", the mean of its other samples; "length", its mean weighted by
    lengths (OPO, Hao 2025), int32 or int64 [N]; or "best": the largest reward less the second, all others 0
    (Tang 2025; verl's grpo_passk). scale: divide by the standard
    deviation of the rewards of the "group", of the whole "batch", or by nothing ("none"). std: "unbiased"
    (n - 1) or "pop" (n). eps_mode: divide by std + eps ("add"), max(std, eps) ("max") or
    sqrt(var + eps) ("inside"). GRPO (Shao 2024) is the default; Dr.GRPO scale="none"; RLOO baseline="loo",
    scale="none"; OPO baseline="length", scale="none"; REINFORCE++ one group of all samples; its baseline form
    the scale="none" advantages once more as one group.

    Where the deviation is 0, as in a group of equal rewards or of one, the advantage is exactly 0. Offsets
    that do not ascend from 0 to N raise on the host; on a device they give NaN and set the error word.
    Negative lengths raise on the host. Differentiable in nothing. Raises LaunchError.
    """
    op = "group_advantage"
    are_tensors(op, rewards=rewards)
    has_dims(op, "rewards", rewards.shape, 1, "1 dim [N]")
    choices = {"scale": (scale, SCALES), "baseline": (baseline, BASELINES), "std": (std, STDS)}
    for name, (value, among) in (choices | {"eps_mode": (eps_mode, EPS_MODES)}).items():
        is_among(op, name, value, among)
    bounds = bounds_of(op, "groups", groups, rewards.numel(), "rewards")
    statics = {"scale": scale, "baseline": baseline, "std": std, "eps_mode": eps_mode}
    tensors = {"rewards": rewards, "bounds": bounds}
    if (lengths is None) == (baseline == "length"):
        if lengths is not None:
            raise wrong_value(op, "lengths", "a tensor", f"None for baseline {baseline}")
        raise LaunchError(Code.ARG_MISSING, op=op, name="lengths", why="by baseline length")
    if lengths is not None:
        are_tensors(op, lengths=lengths)
        if on_the_host(lengths) and bool((lengths < 0).any()):
            raise wrong_value(op, "lengths", int(lengths.min()), "0 or more tokens")
        tensors["lengths"] = lengths
    return call(advantage_spec.group_advantage, tensors, {"eps": number(op, "eps", eps, least=0.0)}, statics)[
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
    checked_layout(op, layout)
    given = {"values": values, "rewards": rewards}
    are_tensors(op, **given)
    tensors = {name: layout.tokens_like(op, name, x) for name, x in given.items()}
    tensors |= {"active": layout.active.reshape(-1), "bounds": layout.bounds}
    if bootstrap is not None:
        are_tensors(op, bootstrap=bootstrap)
        tensors["bootstrap"] = bootstrap
    factor = np.float32(number(op, "gamma", gamma, least=0.0, most=1.0))
    decay = np.float32(number(op, "lam", lam, least=0.0, most=1.0))
    scalars = {"gamma": float(factor), "decay": float(factor * decay)}
    made = call(advantage_spec.gae, tensors, scalars, {})
    return Gae(made["advantages"].reshape(layout.shape), made["returns"].reshape(layout.shape))


def optimal_token_baseline(
    rewards: torch.Tensor,
    logp: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    groups: torch.Tensor,
    *,
    layout: Layout,
    align: Literal["position", "active"] = "position",
    tail: Literal["zero", "group"] = "zero",
    eps: float = 1e-8,
    rollout_weights: torch.Tensor | None = None,
) -> TokenAdvantages:
    """Return advantages of tokens over the optimal baseline of their place in the group, and returns.

    verl's `optimal_token_baseline` (align="position") and `tir_optimal_token_baseline` (align="active"). With
    G the rewards from a token of its sequence on, w = 1 - 2 pi + sum pi^2 the squared gradient of its
    log-prob by the logits, and W the sum of w up to it: A = G - B, B = sum W G / (sum W + eps), sums over the
    tokens that the sequences of the group have at one place. Only active tokens take part; others give 0.

    rewards, logp, sum_pi_squared, rollout_weights: f32 of the layout's token shape, [T] packed or [B, L]
    padded. logp: of the policy that drew the tokens. sum_pi_squared: the sum of the squares of its
    probabilities, exp(lse2 - 2 lse) of `logp`, detached. rollout_weights: w is multiplied by their squares.
    groups: int32 or int64 offsets [groups + 1], group g holds the sequences [groups[g], groups[g + 1]).
    align: a token's place is its "position" in the sequence, or its number among the "active" tokens, which
    is that of other turns where the environment's answers differ in length. tail: the baseline of tokens
    after the last active token of every other sequence of the group, "zero" or that of the "group", which is
    there G itself up to eps.

    A sequence without others in its group has no baseline: A = G. Sequences without active tokens take no
    part. G is summed from the last active token back, W from the first on, one addition a token; W G and W
    over the sequences of a group in chunks of 16 (halving trees), chunks ascending. G enters as a difference
    from the largest at its place: with eps=0, equal returns give exactly 0. A token's bits depend on its
    group's active tokens alone. Offsets that do not ascend from 0 to the number of sequences raise on the
    host; on a device they give NaN and set the error word. Differentiable in nothing. Raises LaunchError.
    """
    op = "optimal_token_baseline"
    checked_layout(op, layout)
    given = {"rewards": rewards, "logp": logp, "sum_pi_squared": sum_pi_squared}
    given |= {} if rollout_weights is None else {"rollout_weights": rollout_weights}
    are_tensors(op, **given)
    is_among(op, "align", align, ALIGNMENTS)
    is_among(op, "tail", tail, TAILS)
    scalars: Scalars = {"eps": number(op, "eps", eps, least=0.0)}
    of_groups = _members(op, groups, layout)
    tensors = {name: layout.tokens_like(op, name, x) for name, x in given.items()}
    active = layout.active.reshape(-1)
    paths = call(advantage_spec.token_paths, tensors | {"active": active, "bounds": layout.bounds}, {}, {})
    places = _places(layout, align)
    at = {"active": active, "sequence": layout.sequence.reshape(-1), **places, **of_groups}
    made = call(advantage_spec.token_baseline, {**paths, **at}, scalars, {"tail": tail})
    return TokenAdvantages(*(x.reshape(layout.shape) for x in (made["advantages"], paths["returns"])))


def _members(op: str, groups: torch.Tensor, layout: Layout) -> Tensors:
    """Return the bounds of groups of sequences, and the group of each sequence.

    On a device wrong bounds are passed on in a form that the kernel reports.
    """
    found = some_offsets(op, "groups", groups, layout.sequences, "sequences")
    if on_the_host(found):
        refuse_misplaced(op, "groups", found, layout.sequences, "sequences")
    elif found.numel() > 1:
        found = torch.where(misplaced(found, layout.sequences).any(), -1, found)
    numbers = torch.arange(layout.sequences, device=found.device, dtype=found.dtype)
    group = torch.searchsorted(found[1:].contiguous(), numbers, right=True)
    return {"bounds": segments_of(found), "group": group.clamp(max=max(found.numel() - 2, 0)).to(torch.int32)}


def _places(layout: Layout, align: str) -> Tensors:
    """Return an index of tokens by place: that of sequence b is order[begin[b] + place], below end[b]."""
    (begin, end), order = layout.segments, layout.order
    numbers = torch.arange(layout.tokens, dtype=torch.int32, device=order.device)
    if align == "active":
        rank = torch.empty_like(order).scatter(0, order.to(torch.int64), numbers)
        place = rank - begin[layout.sequence.reshape(-1).to(torch.int64)] if layout.sequences else rank
        return {"order": order, "begin": begin, "end": end, "place": place}
    first = layout.first.to(torch.int32)
    behind = first
    if layout.tokens:
        behind = torch.where(end > begin, order[(end.to(torch.int64) - 1).clamp(min=0)] + 1, first)
    place = layout.position.reshape(-1).to(torch.int32)
    return {"order": numbers, "begin": first, "end": behind, "place": place}


@dataclass(frozen=True, slots=True)
class Overlong:
    """A penalty on length: 0 up to limit - buffer tokens, falling to -factor at the limit (Yu 2025, DAPO)."""

    limit: int
    buffer: int
    factor: float = 1.0

    def __post_init__(self) -> None:
        for name, wanted in (("buffer", "1 or more"), ("limit", "the buffer or more, below 2**31")):
            value, least = getattr(self, name), self.buffer if name == "limit" else 1
            if type(value) is not int or not least <= value < 2**31:
                raise wrong_value("Overlong", name, value, wanted)
        number("Overlong", "factor", self.factor)


def scatter_rewards(
    rewards: torch.Tensor,
    offsets: torch.Tensor,
    *,
    layout: Layout,
    at: Literal["last", "all"] = "last",
    costs: torch.Tensor | None = None,
    overlong: Overlong | None = None,
) -> torch.Tensor | TokenRewards:
    """Return the rewards of regions as rewards of tokens: f32 of the layout's token shape, else 0.

    rewards, costs: f32 [N]. offsets: int32 or int64 [N + 1]; region n holds the tokens
    [offsets[n], offsets[n + 1]) of all sequences one after the other, padding not counted, so that the same
    offsets fit packed and padded layouts. Regions lie inside of sequences and cover all tokens: cu_seqlens
    for a reward per sequence, finer ones for turns or steps, with reward 0 where there is none. at: "last",
    the last active token of the region, which `gae` reads, or "all" its active tokens. costs: placed like
    rewards and kept apart; then (rewards, costs) is returned. overlong: a penalty on the number of active
    tokens of a region, added to its reward.

    A region without an active token gives nothing. Offsets that miss a token raise on the host; on a device
    they give NaN and set the error word. Differentiable in nothing. Raises LaunchError.
    """
    op = "scatter_rewards"
    checked_layout(op, layout)
    are_tensors(op, rewards=rewards, offsets=offsets)
    same_device(op, "offsets", offsets, "layout", layout.active.device)
    is_among(op, "at", at, PLACES)
    if overlong is not None and not isinstance(overlong, Overlong):
        raise wrong_type(op, "overlong", overlong, "penalty made by Overlong")
    tensors: Tensors = {"rewards": rewards, "bounds": _regions(op, offsets, layout)}
    if tuple(rewards.shape) != (offsets.numel() - 1,):
        got, wanted = tuple(rewards.shape), (offsets.numel() - 1,)
        raise LaunchError(
            Code.ARG_SIZE, op=op, name="rewards", axis="N", got=got, other="offsets", wanted=wanted
        )
    scalars: Scalars = {}
    if costs is not None:
        are_tensors(op, costs=costs)
        tensors["costs"] = costs
    if overlong is not None:
        scalars = {"soft": float(overlong.limit - overlong.buffer), "buffer": float(overlong.buffer)}
        scalars["factor"] = float(overlong.factor)
    tensors["active"] = layout.active.reshape(-1)
    made = call(advantage_spec.scatter_rewards, tensors, scalars, {"at": at})
    placed = made["token_rewards"].reshape(layout.shape)
    return placed if costs is None else TokenRewards(placed, made["token_costs"].reshape(layout.shape))


def _regions(op: str, offsets: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the bounds of regions in a flat row of tokens; padding goes to the region before it.

    On a device wrong bounds are passed on in a form that the kernel reports.
    """
    found = some_offsets(op, "offsets", offsets, layout.tokens, "tokens").to(torch.int64)
    if found.numel() < 2:
        return segments_of(found)
    before = torch.cat((layout.lengths.new_zeros(1), layout.lengths.cumsum(0)))
    ends = before[1:].contiguous()
    owner = torch.searchsorted(ends, found, right=True).clamp(max=max(layout.sequences - 1, 0))
    crosses = (found[1:] > ends[owner[:-1]]) if layout.sequences else found[1:] > 0
    if on_the_host(found) and on_the_host(ends):
        refuse_misplaced(op, "offsets", found, int(before[-1]), "tokens")
        if bool(crosses.any()):
            at = int(crosses.to(torch.int8).argmax())
            value, wanted = found[at : at + 2].tolist(), "a region inside of a sequence"
            raise wrong_value(op, f"offsets[{at}:{at + 2}]", value, wanted)
    good = ~(misplaced(found, before[-1]) | crosses).any()
    flat = layout.first[owner] + found - before[owner] if layout.sequences else found
    flat = torch.cat((flat.new_zeros(1), flat[1:-1], flat.new_full((1,), layout.tokens)))
    return segments_of(torch.where(good, flat, -1))
