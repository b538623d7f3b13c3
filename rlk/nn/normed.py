"""The norm of a residual stream that is summed already, with the gradients of the norm that sums it."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import gradients
from rlk.runtime.call.dispatch import dispatch
from rlk.specs.norm import rms_norm


def norm_of_total(
    total: torch.Tensor, weight: torch.Tensor, eps: float, profile: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of total [..., N], and total: as `rms_norm(x, weight, residual=...)` of what it sums.

    The gradient of total is that of x there: both cotangents added in f32, one rounding. profile: not "vllm",
    whose sum stays f32.
    """
    made: tuple[torch.Tensor, torch.Tensor] = _NormOfTotal.apply(total, weight, eps, profile)
    return made


class _NormOfTotal(torch.autograd.Function):
    """The norm of a sum, and the sum."""

    @staticmethod
    def forward(
        ctx: Any, total: torch.Tensor, weight: torch.Tensor, eps: float, profile: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given, ctx.scalars, ctx.statics = {"x": total, "weight": weight}, {"eps": eps}, {"profile": profile}
        made = dispatch(invoke(rms_norm, given, ctx.scalars, ctx.statics, None), given, ctx.scalars)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, weight, made["rstd"])
        return made["y"], total.view_as(total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: torch.Tensor | None, d_total: torch.Tensor | None) -> Any:
        total, weight, rstd = ctx.saved_tensors
        summed = {"x": total, "weight": weight, "residual": total}  # of the shapes of the norm that sums
        wanted = [n for n, need in zip(("x", "weight"), ctx.needs_input_grad, strict=False) if need]
        found = gradients(
            invoke(rms_norm, summed, ctx.scalars, ctx.statics, None),
            {"x": total, "weight": weight, "residual_out": total, "rstd": rstd},
            {"y": d_y, "residual_out": d_total},
            ctx.scalars,
            wanted,
        )
        return found.get("x"), found.get("weight"), None, None
