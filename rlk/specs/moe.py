"""Mixture of experts: the choice of experts, their weights, and the moves of rows to experts and back."""

from __future__ import annotations

import math
from functools import reduce
from operator import add, or_

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
    u8,
)

T = Axis("T", dynamic=True)  # tokens
E = Axis("E")  # experts
K = Axis("K")  # choices of a token
S = Axis("S", chunk=1, piece=64, dynamic=True)  # tokens, as sums count them
R = Axis("R", dynamic=True)  # pairs of a token and a choice, sorted by expert
D = Axis("D")
O = Axis("O")  # experts + 1
P = Axis("P", chunk=256, dynamic=True)  # all pairs of a token and a choice, as one of them counts them
F = DTypeVar("F", (bf16, f16, f32))
Ids = DTypeVar("Ids", (u8, i32, i64))

SCORES = ("softmax", "sigmoid")
GROUP_SCORES = ("top2", "max")
SIGN, MAGNITUDE = 31, 0x7FFFFFFF
EXCLUDED = -(1 << 31)  # below the key of -inf, -0x7F800001
TINY = 1e-20
EXPERT = "an expert outside of the range of experts"
ASCENDING = "experts of a token that do not ascend"


def _ordered(x: Tile) -> Tile:
    """Return an i32 that compares as x does; NaN is -inf, and -0.0 is +0.0."""
    bits = (L.maximum(x, -math.inf) + 0.0).bits(i32)
    return bits ^ ((bits >> SIGN) & MAGNITUDE)


def _number(key: Tile) -> Tile:
    """Return the f32 of a key of `_ordered`."""
    return (key ^ ((key >> SIGN) & MAGNITUDE)).bits(f32)


def _best(keys: Tile) -> tuple[Tile, Tile]:
    """Return the largest key of a row and its lowest index."""
    best = L.max(keys, over=E)
    return best, L.min(L.where(keys == best, L.pos(E), L.extent(E)), over=E)


def _exps(x: Tile) -> tuple[Tile, Tile]:
    """Return exp(x - largest) of every expert and their sum, a halving tree over experts."""
    e = L.exp(x - L.max(x, over=E))
    return e, L.sum(e, over=E, tree=Tree.halving)


def _affinity(scores: Tensor, score: str) -> Tile:  # type: ignore[valid-type]
    """Return what the scores of all experts are after softmax or sigmoid, f32."""
    if score == "sigmoid":
        return L.sigmoid(scores.to(f32))
    e, total = _exps(scores.to(f32))
    return e / total


def _in_best_groups(keys: Tile, groups: int, kept: int, group_score: str) -> Tile:
    """Return the keys of experts in the groups with the best scores, EXCLUDED for the others.

    The score of a group is its largest key, or the f32 sum of its two largest numbers; of equal groups the
    lowest comes first.
    """
    group = L.pos(E) // (L.extent(E) // groups)
    found = []
    for g in range(groups):
        own = L.where(group == g, keys, EXCLUDED)
        best, at = _best(own)
        if group_score == "top2":
            second = L.max(L.where(L.pos(E) == at, EXCLUDED, own), over=E)
            best = _ordered(_number(best) + _number(second))
        found.append(best)
    chosen = []
    for g, mine in enumerate(found):
        others = [(i, other) for i, other in enumerate(found) if i != g]
        ahead = [((other >= mine) if i < g else (other > mine)).to(i32) for i, other in others]
        chosen.append((group == g) & (reduce(add, ahead) < kept))
    return L.where(reduce(or_, chosen), keys, EXCLUDED)


def _ascending(found: list[Tile]) -> list[Tile]:
    """Sort tiles elementwise, by exchanges of neighbours."""
    n = len(found)
    for turn in range(n):
        for i in range(turn % 2, n - 1, 2):
            low, high = L.minimum(found[i], found[i + 1]), L.maximum(found[i], found[i + 1])
            found[i], found[i + 1] = low, high
    return found


@op()
def choose_experts(
    scores: Tensor[F, T, E],
    bias: Tensor[f32, E] | None,
    k: Static[...] = 2,
    score: Static[SCORES] = "softmax",
    groups: Static[...] = 1,
    kept_groups: Static[...] = 1,
    group_score: Static[GROUP_SCORES] = "top2",
) -> Outputs:
    """Return the k experts with the largest scores of each token, ids ascending; of equals the lowest ids.

    With a bias, or groups scored by two experts, the numbers compared are softmax or sigmoid of the scores
    plus the bias; else the scores themselves. NaN counts as -inf. ids: [T, 2**n >= k], the last one repeated.
    """
    if bias is not None or (groups > 1 and group_score == "top2"):
        compared = _affinity(scores, score)
        if bias is not None:
            compared = compared + bias
    else:
        compared = scores.to(f32)
    keys = _ordered(compared)
    if groups > 1:
        keys = _in_best_groups(keys, groups, kept_groups, group_score)
    found = []
    for _ in range(k):
        _, at = _best(keys)
        keys = L.where(L.pos(E) == at, EXCLUDED, keys)
        found.append(at)
    # an output needs an axis with a known extent: 2**n pieces of that of experts, the last id repeated
    width = 1 << (k - 1).bit_length()
    columns = Axis("E", split=width).pieces
    ids = _ascending(found)
    ids += ids[-1:] * (width - k)
    L.place("ids", (T, columns), *(({columns: L.number(i, i32)}, at) for i, at in enumerate(ids)))
    return L.out()


def _ascends(found: list[Tile]) -> None:
    """Set the error word where a token's ids, or the places of its pairs, do not ascend."""
    if len(found) > 1:
        falls = [a >= b for a, b in zip(found, found[1:], strict=False)]
        L.check(reduce(or_, falls), ASCENDING)


@op(saves=("scores", "ids"))
def expert_weights(
    scores: Tensor[F, T, E],
    ids: Tensor[i32, T, K],
    k: Static[...] = 2,
    score: Static[SCORES] = "softmax",
    renormalize: Static[False, True] = True,
    scale: Scalar[f32] = 1.0,
) -> Outputs:
    """Return scale times softmax or sigmoid of the scores at ids, over their sum if renormalize.

    The sum is over choices, ascending from -0.0. A token with a NaN among its scores has NaN weights.
    """
    parts, total, _ = _chosen(scores, ids, k, score, renormalize)
    weights = [scale * (p / total) for p in parts]
    L.place("weights", (T, K), *(({K: L.number(i, i32)}, w) for i, w in enumerate(weights)))
    return L.out()


def _chosen(
    scores: Tensor,  # type: ignore[valid-type]
    ids: Tensor,  # type: ignore[valid-type]
    k: int,
    score: str,
    renormalize: bool,
) -> tuple[list[Tile], Tile, list[Tile]]:
    """Return the terms of a token's weights, their divisor, and the ids; NaN where any score is NaN."""
    x = scores.to(f32)
    at = [ids.at(T, L.number(i, i32)) for i in range(k)]
    chosen = [scores.at(T, each, fill=math.nan).to(f32) for each in at]
    outside = [(each < 0) | (each >= L.extent(E)) for each in at]
    L.check(reduce(or_, outside), EXPERT)
    _ascends(at)
    nan = L.where(L.any(L.isnan(x), over=E), math.nan, 0.0)
    if score == "sigmoid":
        parts, total = [L.sigmoid(c) for c in chosen], L.number(1.0, f32)
    else:
        largest = L.max(x, over=E)
        parts = [L.exp(c - largest) for c in chosen]
        total = _exps(x)[1]
    if renormalize:
        total = reduce(add, parts)
        if score == "sigmoid":
            total = total + TINY  # as DeepSeek-V3: not 0 / 0 where every sigmoid is 0
    return parts, total + nan, at


@expert_weights.vjp("scores")
def expert_weights_grad(ctx, d_weights: Tensor[f32, T, K]) -> Outputs:
    """q = w / scale: renormalised, dq = q (g - sum of g q), else q g; sums over choices, ascending.

    softmax: dx at ids is dq, and -p sum of g q of every expert where the sum of all experts divides.
    sigmoid: dq (1 - s). Experts that were not chosen get +0 of the first term.
    """
    parts, total, at = _chosen(ctx.scores, ctx.ids, ctx.k, ctx.score, ctx.renormalize)
    q = [p / total for p in parts]
    g = [d_weights.at(T, L.number(i, i32)) * ctx.scale for i in range(ctx.k)]
    mean = reduce(add, [a * b for a, b in zip(g, q, strict=True)])
    slopes = [b * (a - mean) if ctx.renormalize else b * a for a, b in zip(g, q, strict=True)]
    if ctx.score == "sigmoid":
        slopes = [d * (1.0 - s) for d, s in zip(slopes, parts, strict=True)]
    d_x = mean - mean  # +0, and NaN in rows of NaN
    for each, slope in zip(at, slopes, strict=True):
        d_x = L.where(L.pos(E) == each, slope, d_x)
    if ctx.score == "softmax" and not ctx.renormalize:
        d_x = d_x - (_exps(ctx.scores.to(f32))[0] / total) * mean
    return L.out(d_scores=d_x.to(ctx.scores.dtype))


def _sum_of_choices(rows: list[Tile], place: list[Tile], offsets: Tensor, leaves: int) -> Tile:  # type: ignore[valid-type]
    """Add a token's rows by ascending place, in `leaves` pieces of the range of experts, pieces pairwise."""
    if leaves == 1:
        return reduce(add, rows)
    size = (L.extent(O) - 1) // leaves
    bounds = [offsets.at(L.number(i, i32) * size) for i in range(leaves + 1)]
    pieces = []
    for low, high in zip(bounds, bounds[1:], strict=False):
        terms = [L.where((at >= low) & (at < high), row, -0.0) for at, row in zip(place, rows, strict=True)]
        pieces.append(reduce(add, terms))
    while len(pieces) > 1:
        pieces = [a + b for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
    return pieces[0]


def _places(place: Tensor, k: int) -> list[Tile]:  # type: ignore[valid-type]
    found = [place.at(T, L.number(i, i32)) for i in range(k)]
    _ascends(found)
    return found


@op()
def places_by_expert(ids: Tensor[Ids, R], others: Tensor[Ids, P]) -> Outputs:
    """place[r] = how many pairs are of a lower expert, or of the same one and before r: a stable sort.

    order[place[r]] = r. others: ids.
    """
    mine, total = ids.to(i32), L.total()
    for p in L.stream(P):
        other = others[p].to(i32)
        total.absorb(((other < mine) | ((other == mine) & (p.pos < L.pos(R)))).to(i32))
    L.place("order", (R,), ({R: total.value}, L.pos(R)))
    return L.out(place=total.value)


@op()
def expert_offsets(ids: Tensor[Ids, P], edges: Tensor[i32, O]) -> Outputs:
    """offsets[e] = how many pairs are of experts below e. edges: for its shape alone."""
    total = L.total()
    for p in L.stream(P):
        total.absorb((ids[p].to(i32) < L.pos(O)).to(i32))
    L.place("offsets", (O,), ({}, total.value))
    return L.out()


@op(saves=("place", "offsets", "x"))  # x for its shape: a trace knows no other
def rows_by_expert(
    place: Tensor[i32, T, K],
    order: Tensor[i32, R],
    x: Tensor[F, T, D],
    offsets: Tensor[i32, O],
    k: Static[...] = 2,
    leaves: Static[1, 2, 4, 8] = 1,
) -> Outputs:
    """y[r] = x[order[r] // k]: the rows of pairs (token, choice), token * k + choice, sorted by expert."""
    return L.out(y=x.at(order // k, D))


@rows_by_expert.vjp("x")
def rows_by_expert_grad(ctx, d_y: Tensor[F, R, D]) -> Outputs:
    """d x[t] = sum of d_y[place[t]] by ascending expert, in pieces of experts, pairwise, f32."""
    place = _places(ctx.place, ctx.k)
    rows = [d_y.at(at, D).to(f32) for at in place]
    return L.out(d_x=_sum_of_choices(rows, place, ctx.offsets, ctx.leaves).to(d_y.dtype))


@op(saves=("order", "rows", "weights"))
def combine_rows(
    place: Tensor[i32, T, K],
    order: Tensor[i32, R],
    rows: Tensor[F, R, D],
    weights: Tensor[f32, T, K],
    offsets: Tensor[i32, O],
    k: Static[...] = 2,
    leaves: Static[1, 2, 4, 8] = 1,
) -> Outputs:
    """y[t] = sum of weights[t, i] rows[place[t, i]] by ascending expert, in pieces of experts, pairwise.

    Products and sums in f32, one rounding. order: of the gradient.
    """
    at = _places(place, k)
    terms = [rows.at(each, D).to(f32) * weights.at(T, L.number(i, i32)) for i, each in enumerate(at)]
    return L.out(y=_sum_of_choices(terms, at, offsets, leaves).to(rows.dtype))


@combine_rows.vjp("rows", "weights")
def combine_rows_grad(ctx, d_y: Tensor[F, T, D]) -> Outputs:
    """d rows[r] = w d_y[t], rounded once; d w = sum of rows[r] d_y[t], a vector8 tree over D, f32.

    t, i = order[r] // k, order[r] % k: each pair is one row, so nothing else is summed.
    """
    token, choice = ctx.order // ctx.k, ctx.order % ctx.k
    d = d_y.at(token, D).to(f32)
    w = ctx.weights.at(token, choice)
    slope = L.sum(ctx.rows.to(f32) * d, over=D, tree=Tree.vector8)
    if ctx.wants("weights"):
        L.place("d_weights", (T, K), ({T: token, K: choice}, slope))
    if ctx.wants("rows"):
        L.place("d_rows", (R, D), ({}, (d * w).to(d_y.dtype)))
    return L.out()


@op(saves=("scores", "share", "inverse", "active"), returns=("balance", "z", "entropy", "load"))
def router_losses(
    scores: Tensor[F, S, E],
    ids: Tensor[Ids, S, K],
    active: Tensor[boolean, S] | None,
    given: Tensor[f32, E] | None,
    tokens: Scalar[f32] | None,
    k: Static[...] = 2,
) -> Outputs:
    """balance = E sum of share p, z = mean of lse^2, and the mean entropy of softmax, over active tokens.

    p: the mean probability of each expert. share: that of the call's active tokens that go through an expert,
    or given. tokens: the number of active tokens, or of those of all calls; load: counts over it. inverse:
    1 / tokens. Sums over tokens are f32, ascending in pieces of 64, pieces ascending; over experts halving
    trees; counts are integers. Fedus et al. 2021, Zoph et al. 2022.
    """
    mass, square, spread, counts = (L.total() for _ in range(4))
    own = None if active is None else L.total()
    for s in L.stream(S):
        x = scores[s].to(f32)
        largest = L.max(x, over=E)
        e = L.exp(x - largest)
        total = L.sum(e, over=E, tree=Tree.halving)
        rest = L.log(total)
        lse = largest + rest
        entropy = rest - L.sum(L.where(e > 0.0, e * (x - largest), 0.0), over=E, tree=Tree.halving) / total
        chosen = [ids.at(s.pos, L.number(i, i32)).to(i32) == L.pos(E) for i in range(k)]
        hits = reduce(add, [each.to(i32) for each in chosen])
        there = active[s] if active is not None else None
        for sum_of, value in ((mass, e / total), (square, lse * lse), (spread, entropy), (counts, hits)):
            sum_of.absorb(value if there is None else L.where(there, value, 0 if value is hits else 0.0))
        if own is not None and there is not None:
            own.absorb(there.to(i32))
    alive = L.maximum(L.extent(S) if own is None else own.value, 1).to(f32)
    count = alive if tokens is None else tokens
    inverse, load = 1.0 / count, counts.value.to(f32) / count
    share = counts.value.to(f32) / alive if given is None else given.at(E)
    mean = L.keep(mass.value * inverse, "mean")
    kept = L.keep(share, "kept")
    balance = L.extent(E).to(f32) * L.sum(kept * mean, over=E, tree=Tree.halving)
    return L.out(
        balance=balance, z=square.value * inverse, entropy=spread.value * inverse,
        load=load, share=share, inverse=inverse,
    )  # fmt: skip


@router_losses.vjp("scores")
def router_losses_grad(ctx, d_balance: Tensor[f32] | None, d_z: Tensor[f32] | None) -> Outputs:
    """d x = p (c - sum of p c) + 2 p lse d z / tokens, c = E share d balance / tokens; 0 where inactive."""
    x = ctx.scores.to(f32)
    largest = L.max(x, over=E)
    e, total = _exps(x)
    p = e / total
    slope = L.number(0.0, f32)
    if d_balance is not None:
        c = (L.extent(E).to(f32) * ctx.share) * (d_balance * ctx.inverse)
        slope = c - L.sum(p * c, over=E, tree=Tree.halving)
    if d_z is not None:
        slope = slope + 2.0 * (largest + L.log(total)) * (d_z * ctx.inverse)
    d_x = p * slope
    if ctx.active is not None:
        d_x = L.where(ctx.active, d_x, 0.0)
    return L.out(d_scores=d_x.to(ctx.scores.dtype))
