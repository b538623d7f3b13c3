"""Selected log-probs, log-sum-exp and entropy of a linear head; the logits never reach memory."""

from __future__ import annotations

import math

from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Static, Tensor, bf16, boolean, f16, f32, i32, i64, op
from rlk.specs.logp import Scoring, V, active_rows

T = Axis("T", dynamic=True)
D = Axis("D")
F = DTypeVar("F", (bf16, f16))
Ids = DTypeVar("Ids", (i64, i32))


@op()
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
