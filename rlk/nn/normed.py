"""Norms with gradients of their own: of a stream that is summed already, of a rank's tokens, of its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from rlk import ops
from rlk.nn.config import Profile
from rlk.nn.ranks import BLOCK, Ranks
from rlk.ops.heads import sum_of_heads, weight_partials
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import gradients
from rlk.runtime.call.dispatch import dispatch
from rlk.specs.norm import rms_norm

Sums = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The f32 sums [P, N] of all ranks in a weight's gradient, of a cotangent and of what was normed."""


def norm_of_total(
    total: torch.Tensor, weight: torch.Tensor, eps: float, profile: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of total [..., N], and total: as `rms_norm(x, weight, residual=...)` of what it sums.

    The gradient of total is that of x there: both cotangents added in f32, one rounding. profile: not "vllm",
    whose sum stays f32. The total that is returned has the memory of the one given, unknown to autograd:
    write neither in place.
    """
    made: tuple[torch.Tensor, torch.Tensor] = _NormOfTotal.apply(total, weight, eps, profile)
    return made


class _NormOfTotal(torch.autograd.Function):
    """The norm of a sum, and the sum, in the memory that it was given in: write it not in place."""

    @staticmethod
    def forward(
        ctx: Any, total: torch.Tensor, weight: torch.Tensor, eps: float, profile: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        given, ctx.scalars, ctx.statics = {"x": total, "weight": weight}, {"eps": eps}, {"profile": profile}
        made = dispatch(invoke(rms_norm, given, ctx.scalars, ctx.statics, None), given, ctx.scalars)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, weight, made["rstd"])
        return made["y"], total.detach()  # no view: FSDP2 warns of one that a module returns

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


# --- over ranks ---------------------------------------------------------------------------------------------


def head_norm(x: torch.Tensor, weight: torch.Tensor, *, ranks: Ranks, **options: Any) -> torch.Tensor:
    """Return `ops.qk_norm` of the heads of a rank, x [T, H / ranks, E]; the gradient of weight is of all.

    It sums tokens for each head; ranks gather the sums, which are added by heads, ascending.
    """
    y = ops.qk_norm(x, weight.detach(), **options)

    def sums(d_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        own = weight_partials(d_y, x, **options)
        return ranks.rows_of_all(own, len(own), len(own) * ranks.size)

    made: torch.Tensor = _WithWeight.apply(y, weight, x.detach(), sums)
    return made


def rms_norm_of_rows(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    profile: Profile,
    ranks: Ranks,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `ops.rms_norm` of the tokens that a rank has, x [T, N], and the sum that it is the norm of.

    The gradient of weight is of all tokens: pieces of 64 tokens have a sum each; ranks gather them, and they
    are added in the order of tokens. profile: not "vllm", whose sum stays f32.
    """
    made = ops.rms_norm(x, weight.detach(), residual=residual, eps=eps, profile=profile)
    y, source = (made, x) if residual is None else (made.y, made.residual)
    return with_weight_of_rows(y, source, weight, eps, profile, ranks), source


def with_weight_of_rows(
    y: torch.Tensor, source: torch.Tensor, weight: torch.Tensor, eps: float, profile: str, ranks: Ranks
) -> torch.Tensor:
    """Return y, the norm of source by a detached weight, which gives weight its gradient in backward.

    The result has the memory of the y given, unknown to autograd: write neither in place.
    """
    most, pieces = ranks.longest(ranks.tokens) // BLOCK, -(-ranks.tokens // BLOCK)

    def sums(d_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        own = _sums_of_pieces(d_y, x, {"eps": eps, "profile": profile})
        return ranks.rows_of_all(own, most, pieces)

    made: torch.Tensor = _WithWeight.apply(y, weight, source.detach(), sums)
    return made


class _WithWeight(torch.autograd.Function):
    """A norm as it is; backward adds the gradient of its weight, from the sums of all ranks, in order.

    The result has the memory of y, unknown to autograd: write neither in place.
    """

    @staticmethod
    def forward(
        ctx: Any, y: torch.Tensor, weight: torch.Tensor, source: torch.Tensor, sums: Sums
    ) -> torch.Tensor:
        ctx.save_for_backward(source)
        ctx.sums, ctx.dtype = sums, weight.dtype
        return y.detach()  # no view: FSDP2 warns of one that a module returns

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = sum_of_heads(ctx.sums(d_y, *ctx.saved_tensors), ctx.dtype)
        return d_y, d_weight, None, None


def _sums_of_pieces(d_y: torch.Tensor, x: torch.Tensor, options: Any) -> torch.Tensor:
    """Return the f32 sums [P, N] of each 64 tokens in the gradient of a norm's weight; the last may be short.

    A piece takes the place of a head: `qk_norm` sums the tokens of each head as `rms_norm` those of a piece.
    """
    found = []
    edge = len(x) // BLOCK * BLOCK
    for part, size in ((slice(0, edge), BLOCK), (slice(edge, None), len(x) - edge)):
        if len(x[part]):
            pieces = (t[part].unflatten(0, (-1, size)).transpose(0, 1) for t in (d_y, x))
            found.append(weight_partials(*pieces, **options))
    return torch.cat(found) if found else x.new_empty(0, x.shape[1], dtype=torch.float32)
