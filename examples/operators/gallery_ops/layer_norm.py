"""Layer normalisation with its gradient: rows of statistics, sums over rows."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Tensor, Tree, bf16, f16, f32, op

T = Axis("T", chunk=1, piece=64, dynamic=True)  # rows; the gradient sums over them in pieces of 64
N = Axis("N")
F = DTypeVar("F", (bf16, f16, f32))


@op(saves=("x", "weight", "mean", "rstd"), returns=("y",))
def layer_norm(
    x: Tensor[F, T, N], weight: Tensor[F, N], bias: Tensor[F, N] | None, eps: Scalar[f32, 0.0:] = 1e-5
) -> Outputs:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba, Kiros and Hinton 2016).

    Mean and variance are vector8 trees over N in f32, the variance of the centred row: nothing cancels.
    """
    n = L.extent(N).to(f32)
    z = x.to(f32)
    mean = L.sum(z, over=N, tree=Tree.vector8) / n
    centred = z - mean
    rstd = L.rsqrt(L.sum(centred * centred, over=N, tree=Tree.vector8) / n + eps)
    y = (centred * rstd) * weight.to(f32)
    if bias is not None:
        y = y + bias.to(f32)
    return L.out(y=y.to(x.dtype), mean=mean, rstd=rstd)


@layer_norm.vjp("x", "weight", "bias")
def layer_norm_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """dx = rstd (g w - mean(g w) - h mean(g w h)), h = (x - mean) rstd; dw = sum of g h, db = sum of g."""
    n = L.extent(N).to(f32)
    d_weight, d_bias = L.total(), L.total()
    for t in L.stream(T):  # the rows, ascending in each piece of 64; pieces ascending
        rstd = ctx.rstd[t]
        h = (ctx.x[t].to(f32) - ctx.mean[t]) * rstd
        g = d_y[t].to(f32)
        gw = g * ctx.weight.to(f32)
        along = L.sum(gw * h, over=N, tree=Tree.vector8) / n
        level = L.sum(gw, over=N, tree=Tree.vector8) / n
        if ctx.wants("x"):
            L.emit(d_x=(((gw - level) - h * along) * rstd).to(d_y.dtype))
        if ctx.wants("weight"):
            d_weight.absorb(g * h)
        if ctx.wants("bias"):
            d_bias.absorb(g)
    return L.out(
        d_weight=d_weight.value.to(d_y.dtype) if ctx.wants("weight") else None,
        d_bias=d_bias.value.to(d_y.dtype) if ctx.wants("bias") else None,
    )


def layer_norm_float64(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-5
) -> torch.Tensor:
    """The same in float64."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


rlk.register(
    layer_norm,
    namespace="gallery",
    reference=layer_norm_float64,
    extents={"N": 4096},
    usage="""
        x, weight = torch.randn(3, 100, requires_grad=True), torch.ones(100, requires_grad=True)
        y = rlk.ops.gallery.layer_norm(x, weight)
        y.square().sum().backward()
    """,
    edges=[
        ("no rows", "nothing", "f(x[:0], weight).shape == (0, 100)"),
        ("a row alone or in a batch", "the same bits", "same(f(x[2:], weight), y[2:])"),
        ("a constant row", "the bias alone", "not f(torch.ones(1, 100), weight).any()"),
        ("a negative eps", "raises", "f(x, weight, eps=-1.0)"),
    ],
)
