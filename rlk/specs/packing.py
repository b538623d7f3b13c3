"""Moves of rows between padded and packed tensors, and checks of layouts on the device."""

from __future__ import annotations

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Static,
    Tensor,
    bf16,
    boolean,
    f16,
    f32,
    i32,
    i64,
    op,
)

T = Axis("T", dynamic=True)
R = Axis("R", dynamic=True)
B = Axis("B", dynamic=True)
D = Axis("D")
F = DTypeVar("F", (bf16, f16, f32))
Moved = DTypeVar("Moved", (i64, i32, boolean, bf16, f16, f32))
OFFSETS = "offsets that do not ascend from 0 to the number of tokens"
LENGTH = "a length outside of its row"
TOKENS = "a count of tokens below 1"
SPAN = "a span outside of its sequence"
PAGE = "a page outside of the cache"
CONTEXT = "a context outside of its pages"
POSITIONS = "a length beyond the tables of positions"


@op(saves=("x", "back"))
def take_rows(source: Tensor[i64, T], x: Tensor[F, R, D], back: Tensor[i64, R]) -> Outputs:
    """y[t] = x[source[t]], 0 where source is negative; back[r] is the t that takes row r, or negative.

    A row that is taken twice sets the error word: the gradient would have to sum.
    """
    again = back.at(source) != L.pos(T).to(i64)
    L.check((source >= 0) & again, "a row that is taken twice")
    return L.out(y=x.at(source, D))


@take_rows.vjp("x")
def take_rows_grad(ctx, d_y: Tensor[F, T, D]) -> Outputs:
    """d x[r] = d_y[back[r]], 0 where nothing took the row: none is taken twice, so nothing is summed."""
    return L.out(d_x=d_y.at(ctx.back, D))


@op()
def take_whole(source: Tensor[i64, T], x: Tensor[Moved, R, D]) -> Outputs:
    """y[t] = x[source[t]], 0 where source is negative; without a gradient."""
    return L.out(y=x.at(source, D))


@op()
def reported(
    bad: Tensor[boolean, B],
    what: Static[OFFSETS, LENGTH, SPAN, PAGE, CONTEXT, TOKENS, POSITIONS] = OFFSETS,
) -> Outputs:
    """Return which rows are good; bad ones set the error word."""
    L.check(bad, what)
    return L.out(good=~bad)
