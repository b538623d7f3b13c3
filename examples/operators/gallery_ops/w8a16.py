"""A linear layer of int8 weights and 16-bit activations: the loop of its product dequantises weights."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Tensor, bf16, f16, f32, i8, op

T = Axis("T", dynamic=True)
N = Axis("N")
K = Axis("K")
F = DTypeVar("F", (bf16, f16))


@op(saves=("w", "scale"))
def w8a16(x: Tensor[F, T, K], w: Tensor[i8, N, K], scale: Tensor[f32, N]) -> Outputs:
    """y = scale * (x w^T), rounded once after the scale; int8 numbers are exact in 16 bits.

    Each product is one chain of f32 sums over K (chain16).
    """
    z = L.dot(x, w.to(x.dtype), over=K)  # a computed factor: w is read as bytes
    return L.out(y=(z * scale).to(x.dtype))


@w8a16.vjp("x")
def w8a16_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """dx = (d_y * scale) w, with d_y * scale rounded to 16 bits; w is frozen."""
    d_z = (d_y.to(f32) * ctx.scale).to(d_y.dtype)
    return L.out(d_x=L.dot(d_z, ctx.w.to(d_y.dtype), over=N).to(d_y.dtype))


def w8a16_float64(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same in float64."""
    return x.double() @ (w.double() * scale.double()[:, None]).T


rlk.register(
    w8a16,
    namespace="gallery",
    reference=w8a16_float64,
    inputs=lambda rng: {
        "x": rng.normal(size=(6, 48)),
        "w": rng.integers(-127, 128, (40, 48)),
        "scale": rng.uniform(0.5, 1.5, 40) / 127.0,
    },
    extents={"N": 4096, "K": 4096},
    usage="""
        x = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)
        q, scale = torch.randint(-127, 128, (48, 64), dtype=torch.int8), torch.rand(48) / 127.0
        y = rlk.ops.gallery.w8a16(x, q, scale)
        y.float().square().sum().backward()
    """,
    edges=[
        ("no rows", "nothing", "f(x[:0], q, scale).shape == (0, 48)"),
        ("a row alone or in a batch", "the same bits", "same(f(x[2:], q, scale), y[2:])"),
        (
            "weights of the same numbers in 16 bits",
            "the same product",
            "same(f(x, q, torch.ones(48)), rlk.ops.matmul(x, q.to(x.dtype)))",
        ),
        ("weights of f32", "raises", "f(x, q.float(), scale)"),
    ],
)
