"""Gated activations of one tensor that holds gate and up, as a merged product gives them."""

from __future__ import annotations

from typing import Any, Literal

import torch

from rlk.runtime.binding.checks import are_tensors, number, wrong_value
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import differentiated, once, write_gradients
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import call, observing, watched
from rlk.specs import gated as spec
from rlk.specs.model import geglu, swiglu

Activation = Literal["silu", "gelu_tanh"]
OPS = {"silu": (swiglu, {}), "gelu_tanh": (geglu, {"approximate": "tanh"})}


def gated(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return activation(gate) * up, [..., N], of x [..., 2 N], gate first: the bits of `swiglu` or `geglu`.

    The gradient is one tensor, into whose halves the kernel writes: no copy joins them.
    """
    op, statics = OPS[activation]
    if observing() or watched(x) or not (torch.is_grad_enabled() and x.requires_grad):
        return call(op, _halves(x), {}, statics)["y"]
    y: torch.Tensor = _Gated.apply(x, activation)
    return y


def _halves(x: torch.Tensor) -> dict[str, torch.Tensor]:
    gate, up = x.chunk(2, dim=-1)
    return {"gate": gate, "up": up}


def clamped_swiglu(x: torch.Tensor, *, limit: float = 7.0, alpha: float = 1.702) -> torch.Tensor:
    """Return (u + 1) g sigmoid(alpha g) of g = min(gate, limit), u = max(min(up, limit), -limit), [..., N].

    x: [..., 2 N] bf16, f16 or f32, gates at even places, ups at odd ones, as the experts of GPT-OSS give
    them. limit: 0 or more. f32, one rounding. NaN stays NaN.

    Differentiable in x: 0 where a number was clamped. Raises LaunchError.
    """
    op = "clamped_swiglu"
    are_tensors(op, x=x)
    if not x.dim() or x.shape[-1] % 2:
        raise wrong_value(op, "x.shape", tuple(x.shape), "[..., 2 N]: a gate and an up for each result")
    scalars = {"limit": number(op, "limit", limit, least=0.0), "alpha": number(op, "alpha", alpha)}
    return call(spec.clamped_swiglu, {"x": x.unflatten(-1, (-1, 2))}, scalars, {})["y"]


class _Gated(torch.autograd.Function):
    """A gated activation whose gradient is written side by side."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        op, statics = OPS[activation]
        ctx.save_for_backward(x)
        ctx.invocation = invoke(op, _halves(x), {}, statics, None)
        return dispatch(ctx.invocation, _halves(x), {})["y"]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            made = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            saved, into = _halves(x.reshape(-1, x.shape[-1])), _halves(made.view(-1, x.shape[-1]))
            write_gradients(ctx.invocation, saved, {"y": grad.reshape(-1, grad.shape[-1])}, into)
        name = ctx.invocation.spec.name
        return once(name, {"x": made}, differentiated(ctx, (x, grad)))["x"], None
