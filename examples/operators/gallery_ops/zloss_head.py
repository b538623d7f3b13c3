"""Cross-entropy with z-loss from a model's head: the logits are never in memory."""

from __future__ import annotations

import torch

import rlk
from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Tensor, bf16, f16, f32, i64, op

T = Axis("T", piece=8192, dynamic=True)  # the gradient of the weight: one accumulator for 8192 rows
V = Axis("V", chunk=256, split=8)
D = Axis("D")
F = DTypeVar("F", (bf16, f16))
LOG2E = 1.4426950408889634


@op(saves=("hidden", "weight", "targets", "lse"), returns=("loss",), nonempty=(V,))
def zloss_head(
    hidden: Tensor[F, T, D], weight: Tensor[F, V, D], targets: Tensor[i64, T], z_weight: Scalar[f32] = 1e-4
) -> Outputs:
    """loss = lse - z[target] + z_weight lse^2, z = hidden weight^T (Chowdhery et al. 2022).

    Each z is one chain of f32 sums over D; the log-sum-exp folds chunks of 256 in 8 pieces.
    """
    soft, hit = L.softmax_sum(), L.total()
    for v in L.stream(V):
        z = L.dot(hidden, weight[v], over=D)
        soft.absorb(z)
        hit.absorb(L.where(v.pos.to(i64) == targets, z, 0.0))
    lse = soft.lse()
    return L.out(loss=(lse - hit.value) + z_weight * (lse * lse), lse=lse)


@zloss_head.vjp("hidden", "weight")
def zloss_head_grad(ctx, d_loss: Tensor[f32, T]) -> Outputs:
    """dz = g (p (1 + 2 z_weight lse) - 1[target]); d hidden = dz weight; d weight = dz^T hidden."""
    z = L.dot(ctx.hidden, ctx.weight, over=D)  # the bits of the forward
    p = L.softmax_exp2((z - ctx.lse) * LOG2E)
    pull = p * (1.0 + (2.0 * ctx.z_weight) * ctx.lse)
    hit = L.where(L.pos(V).to(i64) == ctx.targets, 1.0, 0.0)
    dz = L.keep((d_loss * (pull - hit)).to(ctx.hidden.dtype), "dz")  # computed once, for two products
    if ctx.wants("hidden"):
        d_hidden = L.dot(dz, ctx.weight, over=V)  # 8 accumulators, pairwise
        L.place("d_hidden", (T, D), ({}, d_hidden.to(ctx.hidden.dtype)))
    if ctx.wants("weight"):
        d_weight = L.dot(dz, ctx.hidden, over=T)  # one for every 8192 rows, ascending
        L.place("d_weight", (V, D), ({}, d_weight.to(ctx.hidden.dtype)))
    return L.out()


def zloss_head_float64(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, z_weight: float = 1e-4
) -> torch.Tensor:
    """The same in float64."""
    z = hidden @ weight.T
    lse = torch.logsumexp(z, -1)
    return lse - z.gather(-1, targets[..., None])[..., 0] + z_weight * lse.square()


rlk.register(
    zloss_head,
    namespace="gallery",
    reference=zloss_head_float64,
    inputs=lambda rng: {
        "hidden": rng.normal(size=(6, 48)),
        "weight": 0.4 * rng.normal(size=(301, 48)),
        "targets": rng.integers(0, 301, 6),
    },
    extents={"V": 128256, "D": 4096},
    usage="""
        hidden, weight = torch.randn(4, 64, dtype=torch.bfloat16), torch.randn(500, 64, dtype=torch.bfloat16)
        hidden.requires_grad_(), weight.requires_grad_()
        targets = torch.arange(4)
        loss = rlk.ops.gallery.zloss_head(hidden, weight, targets)
        loss.sum().backward()
    """,
    edges=[
        ("no rows", "nothing", "f(hidden[:0], weight, targets[:0]).shape == (0,)"),
        ("a row alone or in a batch", "the same bits", "same(f(hidden[2:], weight, targets[2:]), loss[2:])"),
        ("tensors of f32", "raises", "f(hidden.float(), weight.float(), targets)"),
    ],
)
