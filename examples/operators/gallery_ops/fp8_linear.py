"""A linear layer of 8-bit weights and 8-bit activations, each row of both with a scale."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, L, Outputs, Tensor, bf16, e4m3, f32, op

T = Axis("T", dynamic=True)
N = Axis("N")
K = Axis("K")


@op()
def fp8_linear(
    x: Tensor[e4m3, T, K], w: Tensor[e4m3, N, K], x_scale: Tensor[f32, T], w_scale: Tensor[f32, N]
) -> Outputs:
    """y = x w^T * x_scale * w_scale, in bf16.

    f16 has every number of e4m3: products are those of f16 factors, one chain of f32 sums over K (chain16).
    """
    return L.out(y=(L.dot(x, w, over=K) * x_scale * w_scale).to(bf16))


def fp8_linear_float64(
    x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> torch.Tensor:
    """The same in float64."""
    return x.double() @ w.double().T * x_scale.double()[:, None] * w_scale.double()


rlk.register(
    fp8_linear,
    namespace="gallery",
    reference=fp8_linear_float64,
    inputs=lambda rng: {
        "x": rng.normal(size=(6, 48)),
        "w": rng.normal(size=(40, 48)),
        "x_scale": rng.uniform(0.5, 1.5, 6),
        "w_scale": rng.uniform(0.5, 1.5, 40),
    },
    extents={"N": 4096, "K": 4096},
    usage="""
        x, x_scale = rlk.ops.gallery.fp8_rows(torch.randn(4, 64, dtype=torch.bfloat16))
        w, w_scale = rlk.ops.gallery.fp8_rows(torch.randn(48, 64, dtype=torch.bfloat16))
        y = rlk.ops.gallery.fp8_linear(x, w, x_scale, w_scale)
    """,
    edges=[
        ("no rows", "nothing", "f(x[:0], w, x_scale[:0], w_scale).shape == (0, 48)"),
        ("a row alone or in a batch", "the same bits", "same(f(x[2:], w, x_scale[2:], w_scale), y[2:])"),
        ("scales of twice the size", "twice the result", "same(f(x, w, 2 * x_scale, w_scale), 2 * y)"),
        ("weights of f32", "raises", "f(x, w.float(), x_scale, w_scale)"),
    ],
)
