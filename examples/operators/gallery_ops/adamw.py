"""AdamW with weights in bf16 that are rounded at random: the step of an optimizer as one operator."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, L, Outputs, Scalar, Tensor, Tile, bf16, f32, i32, op, u32

R = Axis("R", dynamic=True)  # rows of a weight
C = Axis("C")


def rounded(x: Tile, random: Tile) -> Tile:
    """Return f32 as bf16, up with the probability of the part that is cut off: 16 random bits are added."""
    bits = x.bits(u32)
    up = ((bits + (random & 0xFFFF)) >> 16) << 16
    finite = (bits & 0x7F800000) != 0x7F800000
    return L.where(finite, up, bits).bits(f32).to(bf16)


@op(returns=("weight_out", "m_out", "v_out"))
def adamw(
    weight: Tensor[bf16, R, C], grad: Tensor[bf16, R, C], m: Tensor[f32, R, C], v: Tensor[f32, R, C],
    row: Tensor[i32, R],
    lr: Scalar[f32], beta1: Scalar[f32, 0.0:1.0], beta2: Scalar[f32, 0.0:1.0], eps: Scalar[f32, 0.0:],
    decay: Scalar[f32, 0.0:], scale1: Scalar[f32], scale2: Scalar[f32], seed: Scalar[i32], step: Scalar[i32],
) -> Outputs:  # fmt: skip
    """w <- w (1 - lr decay) - lr (m scale1) / (sqrt(v scale2) + eps), rounded to bf16 at random.

    Loshchilov and Hutter 2019; scale1 = 1 / (1 - beta1^step), scale2 likewise. row: the number of a
    row in the whole weight. Its random bits are Philox(row, column, step; seed): a shard rounds as the whole.
    """
    w, g = weight.to(f32), grad.to(f32)
    m_new = L.fma(beta1, m, (1.0 - beta1) * g)
    v_new = L.fma(beta2, v, (1.0 - beta2) * (g * g))
    update = (m_new * scale1) / (L.sqrt(v_new * scale2) + eps)
    moved = w * (1.0 - lr * decay) - lr * update
    zero = L.number(0, u32)
    random, *_ = L.philox((row.to(u32), L.pos(C).to(u32), step.to(u32), zero), (seed.to(u32), zero))
    return L.out(weight_out=rounded(moved, random), m_out=m_new, v_out=v_new)


def adamw_float64(
    weight: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, row: torch.Tensor, *,
    beta1: float, beta2: float, **_: float,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The moments in float64; a weight that is rounded at random has no form without the draw."""
    return {"m_out": beta1 * m + (1 - beta1) * grad, "v_out": beta2 * v + (1 - beta2) * grad.square()}


rlk.register(
    adamw,
    namespace="gallery",
    reference=adamw_float64,
    inputs=lambda rng: {"v": 0.1 * rng.random((5, 37)), "row": range(5)},
    extents={"C": 4096},
    usage="""
        weight, grad = torch.ones(10, 100, dtype=torch.bfloat16), torch.ones(10, 100, dtype=torch.bfloat16)
        m, v, row = torch.zeros(10, 100), torch.zeros(10, 100), torch.arange(10, dtype=torch.int32)
        options = dict(beta1=0.9, beta2=0.95, eps=1e-8, decay=0.0, scale1=10.0, scale2=20.0, seed=1, step=1)
        made = rlk.ops.gallery.adamw(weight, grad, m, v, row, lr=2**-10, **options)
        w = made.weight_out
    """,
    edges=[
        ("a step of a quarter of the distance to the next bf16", "a quarter of the weights move",
         "200 < (f(weight, grad, m, v, row, lr=2**-10, **options).weight_out != 1).sum() < 300"),
        ("a shard of the rows", "the same bits",
         "same(f(weight[4:], grad[4:], m[4:], v[4:], row[4:], lr=2**-10, **options).weight_out, w[4:])"),
        ("lr=0", "the weights as they were",
         "same(f(weight, grad, m, v, row, lr=0.0, **options).weight_out, weight)"),
    ],
)  # fmt: skip
