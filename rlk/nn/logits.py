"""Logits of a linear head in f32, which reach memory: for samplers and inspection."""

from __future__ import annotations

import torch

from rlk import ops
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
