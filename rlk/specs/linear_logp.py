"""Selected log-probs, log-sum-exp and entropy of a linear head; the logits never reach memory."""

from __future__ import annotations

import math

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Scalar,
    Static,
    Tensor,
    Tile,
    bf16,
    boolean,
    f16,
    f32,
    i32,
    i64,
    op,
)
from rlk.specs.logp import Scoring, V, active_rows, of_scores

T = Axis("T", piece=8192, dynamic=True)
D = Axis("D")
F = DTypeVar("F", (bf16, f16))
Ids = DTypeVar("Ids", (i64, i32))


@op(saves=("hidden", "weight", "ids", "bias", "inv_temperature_row", "mask", "lse", "entropy"))
def linear_logp(
    hidden: Tensor[F, T, D],
    weight: Tensor[F, V, D],
    ids: Tensor[Ids, T],
    bias: Tensor[F, V] | None,
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    inv_temperature: Scalar[f32] | None,
    logit_scale: Scalar[f32] | None,
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    ignore_index: Scalar[i64],
    needs: Static[...] = (),
) -> Outputs:
    """log softmax(z)[ids] with lse and entropy, z the scores of hidden weight^T, never rounded to 16 bits.

    The fold over the vocabulary is that of `logp`, so both give the same bits. Inactive rows give 0; an id
    outside [0, V) gives NaN and sets the error word.
    """
    inverse = inv_temperature_row if inv_temperature_row is not None else inv_temperature
    scoring = Scoring(logit_scale, softcap, inv_softcap, inverse)
    picked = ids.to(i64)
    active = active_rows(picked, ignore_index, mask)
    soft, hit = L.softmax_sum(), L.total()
    for v in L.stream(V, when=active):
        z, _ = scoring.forward(L.dot(hidden, weight[v], over=D), None if bias is None else bias[v])
        if "entropy" in needs:
            soft.absorb(z, zbar=z)
        else:
            soft.absorb(z)
        # one score and zeros: exact in any order
        hit.absorb(L.where(v.pos.to(i64) == picked, z, -0.0))
    inside = (picked >= 0) & (picked < L.extent(V).to(i64))
    lse = soft.lse()
    chosen = L.where(inside, hit.value, math.nan) - lse
    L.check(active & L.isnan(chosen), "an id outside the vocabulary, or no finite logit")
    return L.out(
        logp=L.where(active, chosen, 0.0),
        lse=L.where(active, lse, 0.0),
        entropy=L.where(active, lse - soft.mean("zbar"), 0.0) if "entropy" in needs else None,
    )


@linear_logp.vjp("hidden", "weight")
def linear_logp_grad(
    ctx,
    order: Tensor[i64, T],
    d_logp: Tensor[f32, T] | None,
    d_lse: Tensor[f32, T] | None,
    d_entropy: Tensor[f32, T] | None,
) -> Outputs:
    """d hidden = dz weight, d weight = dz^T hidden; dz, that of `logp`, is rounded to the dtype of hidden.

    order: the active rows, ascending, then the others: sums over rows do not know what lies between them.
    d hidden: each piece of the vocabulary is one f32 accumulator, pieces merge pairwise. d weight: so is each
    piece of 8192 rows, merged ascending. One rounding each.
    """

    def row(x: Tensor | None) -> Tile | None:  # type: ignore[valid-type]
        return None if x is None else x.at(order)

    dtype, picked = ctx.hidden.dtype, row(ctx.ids).to(i64)
    active = active_rows(picked, ctx.ignore_index, row(ctx.mask))
    inverse = ctx.inv_temperature if ctx.inv_temperature_row is None else row(ctx.inv_temperature_row)
    scoring = Scoring(ctx.logit_scale, ctx.softcap, ctx.inv_softcap, inverse)
    # zeros, not what an inactive row holds: 0 times NaN would reach every row of the weight's gradient
    hidden = L.keep(L.where(active, ctx.hidden.at(order, D), 0.0), "rows")
    z, t = scoring.forward(L.dot(hidden, ctx.weight, over=D), ctx.bias)
    dz = of_scores(z, picked, row(ctx.lse), row(ctx.entropy), row(d_logp), row(d_lse), row(d_entropy))
    kept = L.keep(L.where(active, scoring.backward(dz, t), 0.0).to(dtype), "dz")
    if ctx.wants("hidden"):
        L.place("d_hidden", (T, D), ({T: order}, L.dot(kept, ctx.weight, over=V).to(dtype)))
    if ctx.wants("weight"):
        L.place("d_weight", (V, D), ({}, L.dot(kept, hidden, over=T).to(dtype)))
    return L.out()
