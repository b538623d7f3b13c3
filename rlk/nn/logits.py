"""Results of a linear head: log-probs, and logits in f32, which reach memory, for samplers and inspection."""

from __future__ import annotations

from typing import Any

import torch

from rlk import ops
from rlk.nn.ranks import Ranks
from rlk.ops.results import LogProbs
from rlk.ops.sharded import arguments_alike
from rlk.runtime.binding.checks import reciprocal
from rlk.runtime.call.entry import call
from rlk.specs import logp as spec


def head_logits(hidden: torch.Tensor, weight: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return z = hidden weight^T, f32 [..., V], or cap tanh(z / cap) where there is a softcap.

    `ops.logp` of them has the bits of `ops.linear_logp(hidden, weight, ..., softcap=softcap)`.
    """
    z = ops.matmul(hidden, weight, out_dtype=torch.float32)
    if softcap is None:
        return z
    scalars = {"softcap": float(softcap), "inv_softcap": reciprocal("logits", "softcap", softcap)}
    return call(spec.softcapped, {"logits": z}, scalars, {})["y"]


def head_logp(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, ranks: Ranks | None, **options: Any
) -> LogProbs:
    """Return `ops.linear_logp` of a head that ranks may share.

    They compare nothing here: a model did so when its weights were shared, and with the ids that are on the
    host.
    """
    if ranks is None:
        return ops.linear_logp(hidden, weight, ids, **options)
    shard = {"group": ranks.group, "vocab_start": ranks.rank * len(weight)}
    with arguments_alike():
        return ops.linear_logp(hidden, weight, ids, **options, **shard)
