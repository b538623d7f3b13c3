"""Both products of a SwiGLU layer and its activation: one kernel, and nothing in between is in memory."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Tensor, bf16, f16, f32, op

T = Axis("T", dynamic=True)
N = Axis("N")
K = Axis("K")
F = DTypeVar("F", (bf16, f16))


@op(saves=("x", "gate", "up"))
def swiglu_linear(x: Tensor[F, T, K], gate: Tensor[F, N, K], up: Tensor[F, N, K]) -> Outputs:
    """y = silu(x gate^T) * (x up^T) (Shazeer 2020), rounded where the three operators by themselves round.

    Both products are chains of f32 sums over K (chain16), and read each tile of x once.
    """
    g = L.dot(x, gate, over=K).to(x.dtype).to(f32)
    u = L.dot(x, up, over=K).to(x.dtype).to(f32)
    silu = (g * L.sigmoid(g)).to(x.dtype).to(f32)
    return L.out(y=(silu * u).to(x.dtype))


swiglu_linear.derive_vjp("x", "gate", "up")  # both products are computed again, with the bits of the forward


def swiglu_linear_float64(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The same in float64."""
    return torch.nn.functional.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)


rlk.register(
    swiglu_linear,
    namespace="gallery",
    reference=swiglu_linear_float64,
    inputs=lambda rng: {
        "x": rng.normal(size=(6, 48)),
        "gate": rng.normal(size=(40, 48)) / 7.0,
        "up": rng.normal(size=(40, 48)) / 7.0,
    },
    extents={"N": 4096, "K": 4096},
    usage="""
        x = torch.randn(4, 64, dtype=torch.bfloat16, requires_grad=True)
        gate, up = (torch.randn(48, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        y = rlk.ops.gallery.swiglu_linear(x, gate, up)
        y.float().square().sum().backward()
    """,
    edges=[
        ("no rows", "nothing", "f(x[:0], gate, up).shape == (0, 48)"),
        ("a row alone or in a batch", "the same bits", "same(f(x[2:], gate, up), y[2:])"),
        (
            "the operators one after the other",
            "the same bits",
            "same(rlk.ops.swiglu(rlk.ops.matmul(x, gate), rlk.ops.matmul(x, up)), y)",
        ),
        ("weights of f32", "raises", "f(x, gate.float(), up.float())"),
    ],
)
