"""Cross-entropy with label smoothing: one stream over the vocabulary with two folds."""

from __future__ import annotations

import math

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Tensor, bf16, f16, f32, i64, op

T = Axis("T", dynamic=True)
V = Axis("V", chunk=256, split=8)
F = DTypeVar("F", (bf16, f16, f32))
LOG2E = 1.4426950408889634


@op(saves=("logits", "targets", "lse"), returns=("loss",), nonempty=(V,))
def smoothed_loss(
    logits: Tensor[F, T, V], targets: Tensor[i64, T], smoothing: Scalar[f32, 0.0:1.0] = 0.1
) -> Outputs:
    """loss = (1 - s) (lse - z[target]) + s (lse - mean z), with lse = ln sum e^z (Szegedy et al. 2016).

    Chunks of 256 logits, 8 pieces that merge pairwise. NaN where a target is outside of the vocabulary.
    """
    soft, total = L.softmax_sum(), L.total()
    for v in L.stream(V):
        z = logits[v].to(f32)
        soft.absorb(z)
        total.absorb(z)
    lse = soft.lse()
    hit = logits.at(T, targets, fill=math.nan).to(f32)
    level = total.value / L.extent(V).to(f32)
    return L.out(loss=(1.0 - smoothing) * (lse - hit) + smoothing * (lse - level), lse=lse)


@smoothed_loss.vjp("logits")
def smoothed_loss_grad(ctx, d_loss: Tensor[f32, T]) -> Outputs:
    """dz = g (p - (1 - s) 1[target] - s / V)."""
    p = L.softmax_exp2((ctx.logits.to(f32) - ctx.lse) * LOG2E)
    hit = L.where(L.pos(V).to(i64) == ctx.targets, 1.0 - ctx.smoothing, 0.0)
    level = ctx.smoothing / L.extent(V).to(f32)
    return L.out(d_logits=(d_loss * ((p - hit) - level)).to(ctx.logits.dtype))


def smoothed_loss_float64(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.1
) -> torch.Tensor:
    """The same in float64."""
    logp = torch.log_softmax(logits, -1)
    hit = logp.gather(-1, targets[..., None])[..., 0]
    return -(1.0 - smoothing) * hit - smoothing * logp.mean(-1)


rlk.register(
    smoothed_loss,
    namespace="gallery",
    reference=smoothed_loss_float64,
    inputs=lambda rng: {"logits": rng.normal(size=(5, 301)), "targets": rng.integers(0, 301, 5)},
    extents={"V": 128256},
    usage="""
        logits, targets = torch.randn(4, 1000, requires_grad=True), torch.arange(4)
        loss = rlk.ops.gallery.smoothed_loss(logits, targets, smoothing=0.1)
        loss.sum().backward()
    """,
    edges=[
        ("no rows", "nothing", "f(logits[:0], targets[:0]).shape == (0,)"),
        ("a row alone or in a batch", "the same bits", "same(f(logits[2:], targets[2:]), loss[2:])"),
        (
            "a target outside of the vocabulary",
            "NaN in its row",
            "f(logits[:1], targets[:1] + 1000).isnan().all()",
        ),
        ("smoothing above 1", "raises", "f(logits, targets, smoothing=1.5)"),
    ],
)
