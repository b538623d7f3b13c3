"""Selected log-probs, log-sum-exp and entropy of a linear head; the logits never reach memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Scalar,
    Static,
    Tensor,
    Tile,
    Tree,
    bf16,
    boolean,
    f16,
    f32,
    i32,
    i64,
    op,
)
from rlk.specs.logp import NOTHING_CHOSEN, Keeping, M, Scoring, V, active_rows, inverse_of, of_scores

T = Axis("T", piece=8192, dynamic=True)
D = Axis("D")
R = Axis("R")
F = DTypeVar("F", (bf16, f16))
Ids = DTypeVar("Ids", (i64, i32))


@op(
    saves=(
        "hidden", "weight", "ids", "bias", "inv_temperature_row", "mask", "lse", "entropy", "logits",
        "threshold", "last", "words",
    ),
    nonempty=(V,),
)  # fmt: skip
def linear_logp(
    hidden: Tensor[F, T, D],
    weight: Tensor[F, V, D],
    ids: Tensor[Ids, T],
    bias: Tensor[F, V] | None,
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    threshold: Tensor[f32, T] | None,
    last: Tensor[i32, T] | None,
    words: Tensor[i32, T, M] | None,
    inv_temperature: Scalar[f32] | None,
    logit_scale: Scalar[f32] | None,
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    ignore_index: Scalar[i64],
    needs: Static[...] = (),
    keep: Static[False, True] = False,
    states: Static[False, True] = False,
) -> Outputs:
    """log softmax(z)[ids] with lse and entropy, z the scores of hidden weight^T, never rounded to 16 bits.

    The fold over the vocabulary is that of `logp`, so both give the same bits. Inactive rows give 0; an id
    outside [0, V) gives NaN and sets the error word. keep: the products, f32, are an output for the gradient.
    states: the outputs are the fold's state and the picked score, for `linear_logp_join`.
    """
    inverse = inverse_of(inv_temperature_row, inv_temperature)
    scoring = Scoring(logit_scale, softcap, inv_softcap, inverse)
    picked = ids.to(i64)
    active = active_rows(picked, ignore_index, mask)
    kept = Keeping(threshold, last, words)
    soft, hit = L.softmax_sum(entropy="entropy" in needs), L.total()
    for v in L.stream(V, when=active):
        acc = L.dot(hidden, weight[v], over=D)
        if keep:
            L.emit(logits=acc)
        z, _ = scoring.forward(acc, None if bias is None else bias[v])
        soft.absorb(kept.only(z, acc, v.pos))
        # one score and zeros: exact in any order
        hit.absorb(L.where(v.pos.to(i64) == picked, kept.hit(z, acc, v.pos), -0.0))
    if states:
        # inactive rows get constants: their sums would be the identity -0.0, or +0.0 of an empty product
        state = {"m": soft.max, "s": soft.sum, "hits": hit.value}
        state |= {"centred": soft.centred} if "entropy" in needs else {}
        empty = dict.fromkeys(state, 0.0) | {"m": -math.inf}
        return L.out(**{name: L.where(active, x, empty[name]) for name, x in state.items()})
    inside = (picked >= 0) & (picked < L.extent(V).to(i64))
    return _results(soft, hit.value, inside, active, "entropy" in needs)


def _results(soft: Any, hit: Tile, inside: Tile, active: Tile, entropy: bool) -> Outputs:
    lse = soft.lse()
    chosen = L.where(inside, hit, math.nan) - lse
    L.check(active & L.isnan(chosen), NOTHING_CHOSEN)
    return L.out(
        logp=L.where(active, chosen, 0.0),
        lse=L.where(active, lse, 0.0),
        entropy=L.where(active, soft.entropy(), 0.0) if entropy else None,
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

    order: the active rows, ascending, then the others: sums over rows do not depend on inactive ones.
    d hidden: each piece of the vocabulary is one f32 accumulator, pieces merge pairwise. d weight: so is each
    piece of 8192 rows, merged ascending. One rounding each.
    """
    made = _gradients(ctx, order, (d_logp, d_lse, d_entropy), ctx.wants("hidden"), ctx.wants("weight"))
    if "d_hidden" in made:
        L.place("d_hidden", (T, D), ({T: order}, made["d_hidden"].to(ctx.hidden.dtype)))
    if "d_weight" in made:
        L.place("d_weight", (V, D), ({}, made["d_weight"].to(ctx.hidden.dtype)))
    return L.out()


def _gradients(
    x: Any, order: Tile, cotangents: tuple[Tile | None, ...], of_hidden: bool, of_weight: bool
) -> dict[str, Tile]:
    """Return the f32 gradients, rows of d_hidden in `order`; x has what the forward read and saved."""

    def row(tensor: Any) -> Tile | None:
        return None if tensor is None else tensor.at(order, inside=True)

    dtype, picked = x.hidden.dtype, row(x.ids).to(i64)
    active = active_rows(picked, x.ignore_index, row(x.mask))
    inverse = inverse_of(row(x.inv_temperature_row), x.inv_temperature)
    scoring = Scoring(x.logit_scale, x.softcap, x.inv_softcap, inverse)
    # zeros in inactive rows: 0 times their NaN would reach every row of the weight's gradient
    rows = L.keep(L.where(active, x.hidden.at(order, D, inside=True), 0.0), "rows")
    if x.logits is None:
        acc = L.dot(rows, x.weight, over=D)
    else:
        acc = x.logits.at(order, V, when=active, inside=True)
    z, t = scoring.forward(acc, x.bias)
    support = Keeping(row(x.threshold), row(x.last), x.words, order)
    dz = of_scores(support.only(z, acc, L.pos(V)), picked, row(x.lse), row(x.entropy), *map(row, cotangents))
    grad = L.where(active, scoring.backward(dz, t), 0.0)
    if not support.everything:
        grad = L.where(support.holds(acc, L.pos(V)), grad, 0.0)
    kept = L.keep(grad.to(dtype), "dz")
    made: dict[str, Tile] = {}
    if of_hidden:
        made["d_hidden"] = L.dot(kept, x.weight, over=V)
    if of_weight:
        made["d_weight"] = L.dot(kept, rows, over=T)
    return made


@dataclass(frozen=True, slots=True)
class _Saved:
    """Tensors that a gradient reads, as `linear_logp` saves them."""

    hidden: Tile
    weight: Tile
    ids: Tile
    bias: Tile | None
    inv_temperature_row: Tile | None
    mask: Tile | None
    lse: Tile
    entropy: Tile | None
    logits: Tile | None
    threshold: Tile | None
    last: Tile | None
    words: Any
    inv_temperature: Tile | None
    logit_scale: Tile | None
    softcap: Tile | None
    inv_softcap: Tile | None
    ignore_index: Tile


@op()
def linear_logp_backward(
    hidden: Tensor[F, T, D],
    weight: Tensor[F, V, D],
    ids: Tensor[Ids, T],
    lse: Tensor[f32, T],
    order: Tensor[i64, T],
    entropy: Tensor[f32, T] | None,
    bias: Tensor[F, V] | None,
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    logits: Tensor[f32, T, V] | None,
    threshold: Tensor[f32, T] | None,
    last: Tensor[i32, T] | None,
    words: Tensor[i32, T, M] | None,
    d_logp: Tensor[f32, T] | None,
    d_lse: Tensor[f32, T] | None,
    d_entropy: Tensor[f32, T] | None,
    weight_grad: Tensor[f32, V, D] | None,
    inv_temperature: Scalar[f32] | None,
    logit_scale: Scalar[f32] | None,
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    ignore_index: Scalar[i64],
    wants: Static[...] = ("hidden", "weight"),
    partial: Static[False, True] = False,
) -> Outputs:
    """The gradient of `linear_logp` with unfinished results: one rank's part, or a running sum.

    partial: d_hidden is the f32 sum over this vocabulary's pieces. weight_grad: d_weight is it, plus the f32
    sum of all pieces of rows, once. Otherwise the bits are those of the gradient itself.
    """
    saved = _Saved(
        hidden, weight, ids, bias, inv_temperature_row, mask, lse, entropy, logits, threshold, last, words,
        inv_temperature, logit_scale, softcap, inv_softcap, ignore_index,
    )  # fmt: skip
    cotangents = (d_logp, d_lse, d_entropy)
    made = _gradients(saved, order, cotangents, "hidden" in wants, "weight" in wants)
    if "d_hidden" in made:
        total = made["d_hidden"]
        L.place("d_hidden", (T, D), ({T: order}, total if partial else total.to(hidden.dtype)))
    if "d_weight" in made:
        total = made["d_weight"]
        L.place(
            "d_weight", (V, D), ({}, total.to(hidden.dtype) if weight_grad is None else weight_grad + total)
        )
    return L.out()


@op()
def linear_logp_scores(
    hidden: Tensor[F, T, D],
    weight: Tensor[F, V, D],
    ids: Tensor[Ids, T],
    lse: Tensor[f32, T],
    entropy: Tensor[f32, T] | None,
    bias: Tensor[F, V] | None,
    inv_temperature_row: Tensor[f32, T] | None,
    mask: Tensor[boolean, T] | None,
    threshold: Tensor[f32, T] | None,
    last: Tensor[i32, T] | None,
    words: Tensor[i32, T, M] | None,
    d_logp: Tensor[f32, T] | None,
    d_lse: Tensor[f32, T] | None,
    d_entropy: Tensor[f32, T] | None,
    inv_temperature: Scalar[f32] | None,
    logit_scale: Scalar[f32] | None,
    softcap: Scalar[f32] | None,
    inv_softcap: Scalar[f32] | None,
    ignore_index: Scalar[i64],
) -> Outputs:
    """The gradient of the products of a piece of the vocabulary, dz, as `linear_logp_backward` rounds it.

    Inactive rows give -0.0, which changes no sum.
    """
    picked = ids.to(i64)
    active = active_rows(picked, ignore_index, mask)
    inverse = inverse_of(inv_temperature_row, inv_temperature)
    scoring = Scoring(logit_scale, softcap, inv_softcap, inverse)
    acc = L.dot(hidden, weight, over=D)
    z, t = scoring.forward(acc, bias)
    support = Keeping(threshold, last, words)
    dz = of_scores(support.only(z, acc, L.pos(V)), picked, lse, entropy, d_logp, d_lse, d_entropy)
    grad = L.where(active, scoring.backward(dz, t), -0.0)
    if not support.everything:
        grad = L.where(support.holds(acc, L.pos(V)), grad, 0.0)
    L.place("dz", (T, V), ({}, grad.to(hidden.dtype)))
    return L.out()


@op()
def linear_logp_join(
    ids: Tensor[Ids, T],
    m: Tensor[f32, R, T],
    s: Tensor[f32, R, T],
    hits: Tensor[f32, R, T],
    centred: Tensor[f32, R, T] | None,
    mask: Tensor[boolean, T] | None,
    ignore_index: Scalar[i64],
    vocabulary: Scalar[i64],
) -> Outputs:
    """Compute the results of `linear_logp` from the states of ranks that hold a shard of the vocabulary each.

    States merge pairwise over ranks, as the pieces of each rank did: the order of one rank with all pieces.
    """
    picked = ids.to(i64)
    active = active_rows(picked, ignore_index, mask)
    soft = L.softmax_states(R, m, s, centred)
    # one score and zeros: exact in any order
    hit = L.sum(hits, over=R, tree=Tree.pairwise)
    inside = (picked >= 0) & (picked < vocabulary)
    return _results(soft, hit, inside, active, centred is not None)
