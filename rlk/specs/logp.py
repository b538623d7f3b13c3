"""Selected log-probs, log-sum-exp and entropy of given logits, and their gradient."""

from __future__ import annotations

import math

from rlk.lang import Axis, DTypeVar, L, Scalar, Static, Tensor, Tile, boolean, bf16, f16, f32, i32, i64, op

T = Axis("T", dynamic=True)
V = Axis("V", chunk=256, split=8)
F = DTypeVar("F", (bf16, f16, f32))
I = DTypeVar("I", (i64, i32))  # noqa: E741

LOG2E = 1.4426950408889634


def scores(logits: Tile, bias: Tile | None, logit_scale, softcap, inv_softcap, inv_temperature) -> Tile:  # type: ignore[no-untyped-def]
    """z <- logits + bias; z <- scale z; z <- cap tanh(z / cap); z <- z / temperature; an absent step is not run."""
    z = logits.to(f32)
    if bias is not None:
        z = z + bias.to(f32)
    if logit_scale is not None:
        z = z * logit_scale
    if softcap is not None:
        z = L.tanh(z * inv_softcap) * softcap
    if inv_temperature is not None:
        z = z * inv_temperature
    return z


@op(saves=("logits", "ids", "bias", "inv_temperature_row", "mask", "lse", "entropy"))
def logp(
    logits: Tensor[F, T, V],
    ids: Tensor[I, T],
    bias: Tensor[F, V] | None,
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    inv_temperature: Scalar[f32] | None,
    logit_scale: Scalar[f32] | None,
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    ignore_index: Scalar[i64],
    needs: Static[...] = ("logp",),
):
    """log softmax(z)[ids] with lse, entropy, argmax and lse2 = log sum exp(2 z); z as `scores` says.

    Inactive rows (mask false, or ids == ignore_index) give 0. An id outside [0, V) gives NaN and sets the error word.
    """
    inverse = inv_temperature_row if inv_temperature_row is not None else inv_temperature
    picked = ids.to(i64)
    active = picked != ignore_index
    if mask is not None:
        active = active & mask
    soft, soft2, best = L.softmax_sum(), L.softmax_sum(), L.argmax()
    for v in L.stream(V, when=active):
        z = scores(logits[v], None if bias is None else bias[v], logit_scale, softcap, inv_softcap, inverse)
        if "entropy" in needs:
            soft.absorb(z, zbar=z)
        else:
            soft.absorb(z)
        if "lse2" in needs:
            soft2.absorb(z + z)
        if "argmax" in needs:
            best.absorb(z)
    at_id = logits.at(T, picked, fill=math.nan)
    hit = scores(
        at_id, None if bias is None else bias.at(picked), logit_scale, softcap, inv_softcap, inverse
    )
    lse = soft.lse()
    chosen = hit - lse
    L.check(active & L.isnan(chosen), "an id outside the vocabulary, or no finite logit")
    return L.out(
        logp=L.where(active, chosen, 0.0),
        lse=L.where(active, lse, 0.0),
        entropy=L.where(active, lse - soft.mean("zbar"), 0.0) if "entropy" in needs else None,
        argmax=L.where(active, best.index, -1) if "argmax" in needs else None,
        lse2=L.where(active, soft2.lse(), 0.0) if "lse2" in needs else None,
    )


@logp.vjp("logits", "bias")
def logp_grad(
    ctx,
    d_logp: Tensor[f32, T] | None,
    d_lse: Tensor[f32, T] | None,
    d_entropy: Tensor[f32, T] | None,
):
    """dz = g_lp (1[y] - p) - g_H p (z - lse + H) + g_lse p, then the chain through 1 / T, tanh and scale."""
    inverse = ctx.inv_temperature_row if ctx.inv_temperature_row is not None else ctx.inv_temperature
    picked = ctx.ids.to(i64)
    active = picked != ctx.ignore_index
    if ctx.mask is not None:
        active = active & ctx.mask
    z = scores(ctx.logits.at(T, V, when=active), ctx.bias, ctx.logit_scale, ctx.softcap, ctx.inv_softcap, inverse)
    p = L.softmax_exp2((z - ctx.lse) * LOG2E)
    of_p = 0.0 if d_lse is None else d_lse.whole()
    if d_logp is not None:
        of_p = of_p - d_logp
    dz = p * of_p
    if d_entropy is not None:
        shifted = L.where(p == 0.0, 0.0, (z - ctx.lse) + ctx.entropy)
        dz = dz - (d_entropy * p) * shifted
    if d_logp is not None:
        dz = dz + L.where(L.pos(V).to(i64) == picked, d_logp, 0.0)
    dz = L.where(active, dz, 0.0)
    if inverse is not None:
        dz = dz * inverse
    if ctx.softcap is not None:
        t = z * (1.0 if inverse is None else 1.0)
        dz = dz * (1.0 - t * t)
    if ctx.logit_scale is not None:
        dz = dz * ctx.logit_scale
    return L.out(d_logits=dz.to(ctx.logits.dtype))
