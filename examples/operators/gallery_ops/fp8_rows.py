"""Rows as e4m3 with a scale each: the activations, weights or cache entries of a model in 8-bit floats."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Tensor, bf16, e4m3, f16, f32, op

T = Axis("T", dynamic=True)
N = Axis("N")
F = DTypeVar("F", (bf16, f16, f32))
LARGEST = 448.0  # of e4m3


@op(nonempty=(N,))
def fp8_rows(x: Tensor[F, T, N]) -> Outputs:
    """scale = m / 448, m = max |x| of a row; q = x (448 / m), rounded to e4m3. A row has one division.

    A row of numbers below 2**-119 has scale 0 and q = 0, as one of zeros. A NaN stays one, and a row with an
    infinity has scale inf.
    """
    m = L.max(abs(x.to(f32)), over=N)
    scale, inverse = (L.where(m >= 2.0**-119, y, 0.0) for y in (m / LARGEST, LARGEST / m))
    return L.out(q=(x.to(f32) * inverse).to(e4m3), scale=scale)


def fp8_rows_float64(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same in float64, where q is not rounded."""
    scale = x.abs().amax(-1) / LARGEST
    return {"q": x / torch.where(scale > 0, scale, 1.0)[..., None], "scale": scale}


rlk.register(
    fp8_rows,
    namespace="gallery",
    reference=fp8_rows_float64,
    extents={"N": 4096},
    usage="""
        x = torch.randn(4, 64, dtype=torch.bfloat16)
        q, scale = rlk.ops.gallery.fp8_rows(x)
        back = q.float() * scale[:, None]
    """,
    edges=[
        (
            "the error",
            "a sixteenth of a number",
            "((back - x.float()).abs() <= x.abs() / 15 + scale[:, None] / 512).all()",
        ),
        ("the largest of a row", "448 or -448", "(q.float().abs().amax(-1) == 448).all()"),
        ("a row alone or in a batch", "the same bits", "same(f(x[2:])[0], q[2:])"),
        ("a row of zeros", "zeros", "f(torch.zeros(1, 8)).q.float().any().item() is False"),
        ("a row of 2**-119", "448", "f(torch.full((1, 8), 2.0**-119)).q.float().eq(448).all()"),
    ],
)
