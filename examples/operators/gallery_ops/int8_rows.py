"""Rows as int8 with a scale each: the activations, weights or cache entries of a quantised model."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Tensor, bf16, f16, f32, i8, op

T = Axis("T", dynamic=True)
N = Axis("N")
F = DTypeVar("F", (bf16, f16, f32))


@op(nonempty=(N,))
def int8_rows(x: Tensor[F, T, N]) -> Outputs:
    """scale = m / 127, m = max |x| of a row; q = x (127 / m) to the nearest integer, of two the even one.

    A row of numbers below 2**-120 has scale 0 and q = 0, as one of zeros. A NaN becomes 0, and a row with an
    infinity has scale inf and q = 0. A row has one division: an element that is 1e-7 from a tie between two
    integers may go to the other one.
    """
    m = L.max(abs(x.to(f32)), over=N)
    scale, inverse = (L.where(m >= 2.0**-120, y, 0.0) for y in (m / 127.0, 127.0 / m))
    return L.out(q=L.round(x.to(f32) * inverse).to(i8), scale=scale)


def int8_rows_float64(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same in float64."""
    scale = x.abs().amax(-1) / 127.0
    return {"q": torch.round(x / torch.where(scale > 0, scale, 1.0)[..., None]), "scale": scale}


rlk.register(
    int8_rows,
    namespace="gallery",
    reference=int8_rows_float64,
    extents={"N": 4096},
    usage="""
        x = torch.randn(4, 64, dtype=torch.bfloat16)
        q, scale = rlk.ops.gallery.int8_rows(x)
        back = q.float() * scale[:, None]
    """,
    edges=[
        ("the error", "half a step", "((back - x.float()).abs() <= 0.5001 * scale[:, None]).all()"),
        ("the largest of a row", "127 or -127", "(q.abs().amax(-1) == 127).all()"),
        ("a row alone or in a batch", "the same bits", "same(f(x[2:])[0], q[2:])"),
        ("a row of zeros", "zeros", "f(torch.zeros(1, 8)).q.any().item() is False"),
        ("a row below 2**-120", "zeros", "f(torch.full((1, 8), 2.0**-121)).q.any().item() is False"),
        ("a row of 2**-120", "127", "f(torch.full((1, 8), 2.0**-120)).q.eq(127).all()"),
    ],
)
