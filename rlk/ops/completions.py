"""The public sums of log-probs over completions, the inputs of preference losses."""

from __future__ import annotations

from typing import Literal

import torch

from rlk.errors import Code, LaunchError
from rlk.ops.layout import Layout, checked_layout
from rlk.runtime.binding.checks import are_tensors, is_among, number
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.call.entry import call, worded
from rlk.specs import completions as completions_spec
from rlk.specs.completions import OVER

OF_LAYOUT = dict.fromkeys(("order", "active", "sequence", "begin", "end", "rank"), "layout")
worded(completions_spec.sequence_logp, "sequence_logp", untouched="shared", **OF_LAYOUT)


def sequence_logp(
    logp: torch.Tensor,
    *,
    layout: Layout,
    over: Literal["sum", "mean", "probability"] = "sum",
    shared: torch.Tensor | None = None,
    tail: float | None = None,
) -> torch.Tensor:
    """Return the log-prob of each sequence, the sum over its active tokens: f32 [sequences].

    logp: f32 of the layout's token shape, [T] packed or [B, L] padded. over: their "sum", "mean", or
    "probability", the exponential of the mean. shared, tail: int32 or int64 [sequences] and a number; active
    tokens of a sequence behind its first `shared` ones count `tail` times (LD-DPO, Liu 2024, where shared is
    the smaller number of tokens of a pair; TRL's ld_alpha). A sequence without active tokens: 0, probability
    1.

    The weight of a completion under WPO (Zhou 2024) is the probability of logp - log sum of p^2, which is
    `lse2 - 2 lse` of `logp`.

    The tokens of a sequence are added in chunks of 1024 counted from its first active one, as halving trees,
    ascending: padded and packed inputs give the same bits. Differentiable in logp. Raises LaunchError.
    """
    op = "sequence_logp"
    checked_layout(op, layout)
    are_tensors(op, logp=logp)
    is_among(op, "over", over, OVER)
    if (shared is None) != (tail is None):
        name, other = ("shared", "tail") if shared is None else ("tail", "shared")
        raise LaunchError(Code.ARG_MISSING, op=op, name=name, why=f"where {other} is there")
    scalars: Scalars = {}
    begin, end = layout.segments
    order = layout.order
    rank = torch.empty_like(order).scatter(
        0, order.to(torch.int64), torch.arange(layout.tokens, dtype=torch.int32, device=order.device)
    )
    tensors: Tensors = {
        "logp": layout.tokens_like(op, "logp", logp), "order": order, "active": layout.active.reshape(-1),
        "sequence": layout.sequence.reshape(-1), "begin": begin, "end": end, "rank": rank,
    }  # fmt: skip
    if shared is not None and tail is not None:
        are_tensors(op, shared=shared)
        tensors["untouched"], scalars["tail"] = shared, number(op, "tail", tail)
    return call(completions_spec.sequence_logp, tensors, scalars, {"over": over})["made"]
