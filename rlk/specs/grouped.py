"""Grouped matrix products: rows sorted by expert, each multiplied with the weight of its own expert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rlk.lang import Axis, DTypeVar, L, Outputs, Ragged, Static, Tensor, Tile, bf16, f16, f32, i32, i64, op

PIECE = 8192
"""Rows of an expert that one f32 accumulator of its weight's gradient takes, as of `matmul`."""

T = Axis("T", dynamic=True)  # rows of all experts
E = Axis("E")  # experts
N = Axis("N")
K = Axis("K")
K2, K4, K8 = (Axis("K", split=leaves) for leaves in (2, 4, 8))
R = Ragged("R", over=E)  # rows of one expert
P = Ragged("P", over=E)  # its pieces of 8192 rows
W = Ragged("W", over=E)  # rows of one piece
S = Ragged("S", over=E, chunk=64, piece=PIECE, leaf="piece")  # rows of one expert, as its bias adds them
F = DTypeVar("F", (bf16, f16))
Offsets = DTypeVar("Offsets", (i32, i64))
BOUNDS = {R: (T,), P: (T,), W: (T,), S: (T,)}


@op(saves=("x", "w", "begin", "end", "bias"), bounds=BOUNDS)
def grouped_matmul(
    x: Tensor[F, T, K],
    w: Tensor[F, E, N, K],
    begin: Tensor[Offsets, E],
    end: Tensor[Offsets, E],
    bias: Tensor[F, E, N] | None,
    keep_f32: Static[False, True] = False,
    grad_leaves: Static[...] = 1,
) -> Outputs:
    """y[t] = x[t] w[e]^T + bias[e] for begin[e] <= t < end[e].

    One f32 accumulator over ascending K (chain16), an f32 sum, one rounding; keep_f32: y is the f32 sum.
    grad_leaves: d x contracts N in so many pieces, added pairwise; the result does not depend on it.
    """
    return _product(x, w, begin, end, bias, keep_f32, K)


@op(saves=("x", "w", "begin", "end", "bias"), bounds=BOUNDS)
def grouped_matmul_leaf2(
    x: Tensor[F, T, K2],
    w: Tensor[F, E, N, K2],
    begin: Tensor[Offsets, E],
    end: Tensor[Offsets, E],
    bias: Tensor[F, E, N] | None,
    keep_f32: Static[False, True] = False,
    grad_leaves: Static[...] = 1,
) -> Outputs:
    """As grouped_matmul, but K in 2 pieces, one f32 accumulator each, added pairwise."""
    return _product(x, w, begin, end, bias, keep_f32, K2)


@op(saves=("x", "w", "begin", "end", "bias"), bounds=BOUNDS)
def grouped_matmul_leaf4(
    x: Tensor[F, T, K4],
    w: Tensor[F, E, N, K4],
    begin: Tensor[Offsets, E],
    end: Tensor[Offsets, E],
    bias: Tensor[F, E, N] | None,
    keep_f32: Static[False, True] = False,
    grad_leaves: Static[...] = 1,
) -> Outputs:
    """As grouped_matmul, but K in 4 pieces, one f32 accumulator each, added pairwise."""
    return _product(x, w, begin, end, bias, keep_f32, K4)


@op(saves=("x", "w", "begin", "end", "bias"), bounds=BOUNDS)
def grouped_matmul_leaf8(
    x: Tensor[F, T, K8],
    w: Tensor[F, E, N, K8],
    begin: Tensor[Offsets, E],
    end: Tensor[Offsets, E],
    bias: Tensor[F, E, N] | None,
    keep_f32: Static[False, True] = False,
    grad_leaves: Static[...] = 1,
) -> Outputs:
    """As grouped_matmul, but K in 8 pieces, one f32 accumulator each, added pairwise."""
    return _product(x, w, begin, end, bias, keep_f32, K8)


BY_LEAVES = {1: grouped_matmul, 2: grouped_matmul_leaf2, 4: grouped_matmul_leaf4, 8: grouped_matmul_leaf8}


def _product(x: Any, w: Any, begin: Any, end: Any, bias: Any, keep_f32: bool, k: Axis) -> Outputs:
    rows = Rows.of(begin, end)
    y = _by_leaves(
        k,
        lambda at: x.at(rows.row, at, when=rows.inside, inside=True),
        lambda at, **how: w.at(E, N, at, **how),
    )
    if bias is not None:
        y = y + bias.to(f32)
    L.place("y", (T, N), ({T: rows.row}, y if keep_f32 else y.to(x.dtype)), when=rows.inside)
    return L.out()


def _by_leaves(axis: Axis, rows: Callable[[Any], Any], columns: Callable[..., Any]) -> Tile:
    """Return the contraction of an axis in its pieces, one accumulator each, added pairwise in registers.

    rows, columns: the factors, given the index along the axis. The sum of two pieces is made before the next.
    """
    if axis.split is None:
        return L.dot(rows(axis), columns(axis), over=axis, each=(E,))

    def added(first: int, count: int) -> Tile:
        if count > 1:
            return added(first, count // 2) + added(first + count // 2, count // 2)
        at = L.number(first, i32) * L.extent(axis.within) + L.pos(axis.within)
        return L.dot(rows(at), columns(at, inside=True), over=axis.within, each=(E,))

    return added(0, axis.split)


@grouped_matmul.vjp("x", "w", "bias")
def grouped_matmul_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """d x[t] = d_y[t] w[e], d w[e] = d_y^T x, d bias[e] = sum of d_y, over the rows of e.

    Casts pass gradients. d_y is rounded to the dtype of x. d x: `grad_leaves` pieces of N, one f32
    accumulator each, added pairwise. d w: one for each piece of 8192 rows, counted from the first row of the
    expert, added ascending. d bias: the same pieces, in each the sums of 64 rows by halving, ascending. +0
    for an expert without rows. One rounding each.
    """
    return _gradients(ctx, d_y, K)


@grouped_matmul_leaf2.vjp("x", "w", "bias")
def grouped_matmul_leaf2_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """As that of grouped_matmul: no gradient contracts K."""
    return _gradients(ctx, d_y, K2)


@grouped_matmul_leaf4.vjp("x", "w", "bias")
def grouped_matmul_leaf4_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """As that of grouped_matmul: no gradient contracts K."""
    return _gradients(ctx, d_y, K4)


@grouped_matmul_leaf8.vjp("x", "w", "bias")
def grouped_matmul_leaf8_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """As that of grouped_matmul: no gradient contracts K."""
    return _gradients(ctx, d_y, K8)


def _gradients(ctx: Any, d_y: Any, k: Axis) -> Outputs:
    if ctx.wants("x"):
        over = replace(N, split=ctx.grad_leaves) if ctx.grad_leaves > 1 else N
        rows = Rows.of(ctx.begin, ctx.end)
        d_x = _by_leaves(
            over,
            lambda at: d_y.at(rows.row, at, when=rows.inside, inside=True),
            lambda at, **how: ctx.w.at(E, at, k, **how),
        )
        L.place("d_x", (T, k), ({T: rows.row}, d_x.to(d_y.dtype)), when=rows.inside)
    if ctx.wants("w"):
        # an expert without rows sums to -0.0; a gradient of nothing is +0
        d_w = _d_w(d_y, ctx.x, ctx.begin, ctx.end, k) + 0.0
        L.place("d_w", (E, N, k), ({}, d_w.to(d_y.dtype)))
    if ctx.wants("bias"):
        total = L.total()
        for s in L.stream(S, begin=ctx.begin.to(i32), end=ctx.end.to(i32)):
            total.absorb(d_y.at(s.pos, N).to(f32))
        L.place("d_bias", (E, N), ({}, (total.value + 0.0).to(d_y.dtype)))
    return L.out()


def _d_w(d_y: Any, x: Any, begin: Any, end: Any, k: Axis = K) -> Tile:
    """Return the f32 sums of the pieces of each expert, -0.0 without any."""
    # wrong offsets read nothing outside of the tensors
    first, last = L.maximum(begin.to(i32), 0), L.minimum(end.to(i32), L.extent(T))
    total = L.total()
    for p in L.stream(P, begin=0, end=(L.maximum(last - first, 0) + (PIECE - 1)) // PIECE):
        start = first + p.pos * PIECE
        row, inside = start + L.pos(W), L.pos(W) < L.minimum(last - start, PIECE)
        d, a = (t.at(row, axis, when=inside, inside=True) for t, axis in ((d_y, N), (x, k)))
        total.absorb(L.dot(d, a, over=W, each=(E, P)))
    return total.value


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of every expert: the index in the packed tensor, and a mask.

    The mask excludes rows outside of the packed tensor, too: wrong offsets read and write nothing there.
    """

    row: Tile
    inside: Tile

    @staticmethod
    def of(begin: Any, end: Any) -> Rows:
        first, at = begin.to(i32), L.pos(R)
        row = first + at
        return Rows(row, (at < end.to(i32) - first) & (row >= 0) & (row < L.extent(T)))


@op(bounds={P: (T,), W: (T,)})
def grouped_weight_grad(
    d_y: Tensor[F, T, N],
    x: Tensor[F, T, K],
    begin: Tensor[Offsets, E],
    end: Tensor[Offsets, E],
    weight_grad: Tensor[f32, E, N, K],
) -> Outputs:
    """d_w = weight_grad plus the f32 sums of d_y^T x, in the order of the gradient of `grouped_matmul`."""
    L.place("d_w", (E, N, K), ({}, weight_grad + _d_w(d_y, x, begin, end)))
    return L.out()
