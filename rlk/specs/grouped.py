"""Grouped matrix products: rows sorted by expert, each multiplied with the weight of its own expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlk.lang import Axis, DTypeVar, L, Outputs, Ragged, Static, Tensor, Tile, bf16, f16, f32, i32, i64, op

PIECE = 8192
"""Rows of an expert that one f32 accumulator of its weight's gradient takes, as of `matmul`."""

T = Axis("T", dynamic=True)  # rows of all experts
E = Axis("E")  # experts
N = Axis("N")
K = Axis("K")
R = Ragged("R", over=E)  # rows of one expert
P = Ragged("P", over=E)  # its pieces of 8192 rows
W = Ragged("W", over=E)  # rows of one piece
S = Ragged("S", over=E, chunk=64, piece=PIECE, leaf="piece")  # rows of one expert, as its bias adds them
F = DTypeVar("F", (bf16, f16))
Offsets = DTypeVar("Offsets", (i32, i64))


@op(saves=("x", "w", "begin", "end", "bias"), bounds={R: (T,), P: (T,), W: (T,), S: (T,)})
def grouped_matmul(
    x: Tensor[F, T, K],
    w: Tensor[F, E, N, K],
    begin: Tensor[Offsets, E],
    end: Tensor[Offsets, E],
    bias: Tensor[F, E, N] | None,
    keep_f32: Static[False, True] = False,
) -> Outputs:
    """y[t] = x[t] w[e]^T + bias[e] for begin[e] <= t < end[e].

    One f32 accumulator over ascending K (chain16), an f32 sum, one rounding; keep_f32: y is the f32 sum.
    """
    rows = Rows.of(begin, end)
    y = L.dot(x.at(rows.row, K, when=rows.inside, inside=True), w.at(E, N, K), over=K, each=(E,))
    if bias is not None:
        y = y + bias.to(f32)
    L.place("y", (T, N), ({T: rows.row}, y if keep_f32 else y.to(x.dtype)), when=rows.inside)
    return L.out()


@grouped_matmul.vjp("x", "w", "bias")
def grouped_matmul_grad(ctx, d_y: Tensor[F, T, N]) -> Outputs:
    """d x[t] = d_y[t] w[e], d w[e] = d_y^T x, d bias[e] = sum of d_y, over the rows of e.

    Casts pass gradients. d_y is rounded to the dtype of x. d x: one f32 accumulator over ascending N. d w:
    one for each piece of 8192 rows, counted from the first row of the expert, added ascending. d bias: the
    same pieces, in each the sums of 64 rows by halving, ascending. +0 for an expert without rows. One
    rounding each.
    """
    if ctx.wants("x"):
        rows = Rows.of(ctx.begin, ctx.end)
        d = d_y.at(rows.row, N, when=rows.inside, inside=True)
        d_x = L.dot(d, ctx.w.at(E, N, K), over=N, each=(E,))
        L.place("d_x", (T, K), ({T: rows.row}, d_x.to(d_y.dtype)), when=rows.inside)
    if ctx.wants("w"):
        # an expert without rows sums to -0.0; a gradient of nothing is +0
        d_w = _d_w(d_y, ctx.x, ctx.begin, ctx.end) + 0.0
        L.place("d_w", (E, N, K), ({}, d_w.to(d_y.dtype)))
    if ctx.wants("bias"):
        total = L.total()
        for s in L.stream(S, begin=ctx.begin.to(i32), end=ctx.end.to(i32)):
            total.absorb(d_y.at(s.pos, N).to(f32))
        L.place("d_bias", (E, N), ({}, (total.value + 0.0).to(d_y.dtype)))
    return L.out()


def _d_w(d_y: Any, x: Any, begin: Any, end: Any) -> Tile:
    """Return the f32 sums of the pieces of each expert, -0.0 without any."""
    # wrong offsets read nothing outside of the tensors
    first, last = L.maximum(begin.to(i32), 0), L.minimum(end.to(i32), L.extent(T))
    total = L.total()
    for p in L.stream(P, begin=0, end=(L.maximum(last - first, 0) + (PIECE - 1)) // PIECE):
        start = first + p.pos * PIECE
        row, inside = start + L.pos(W), L.pos(W) < L.minimum(last - start, PIECE)
        d, a = (t.at(row, axis, when=inside, inside=True) for t, axis in ((d_y, N), (x, K)))
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
