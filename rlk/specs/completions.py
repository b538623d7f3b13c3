"""Log-probs of completions: sums, means and geometric means of their tokens', in compacted order."""

from __future__ import annotations

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Ragged,
    Scalar,
    Static,
    Tensor,
    Tile,
    boolean,
    f32,
    i32,
    i64,
    op,
)

T = Axis("T", dynamic=True)
B = Axis("B", dynamic=True)
S = Axis("S", dynamic=True)
Q = Ragged("Q", B, chunk=1024)
Lengths = DTypeVar("Lengths", (i64, i32))
OVER = ("sum", "mean", "probability")


def _finished(total: Tile, count: Tile, over: str) -> Tile:
    """Return the sum, the mean, or the exponential of the mean, given a sum and the number of its terms."""
    # + 0.0: the sum of no tokens is -0.0
    made = total + 0.0
    if over != "sum":
        made = made / L.maximum(count, 1).to(f32)
    return L.exp(made) if over == "probability" else made


@op(saves=("active", "sequence", "begin", "end", "rank", "untouched", "made"))
def sequence_logp(
    logp: Tensor[f32, T],
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    sequence: Tensor[i32, T],
    begin: Tensor[i32, B],
    end: Tensor[i32, B],
    rank: Tensor[i32, T],
    untouched: Tensor[Lengths, B] | None,
    tail: Scalar[f32] | None,
    over: Static[OVER] = "sum",
) -> Outputs:
    """The sum of lp over the active tokens of each sequence; those from the shared-th on times tail.

    order lists all tokens, the active ones first; rank is its inverse. The tokens of a sequence are taken in
    compacted order, in chunks of 1024 counted from its first (halving trees), chunks ascending.
    """
    total = L.total()
    for q in L.stream(Q, begin=begin, end=end):
        x = logp.at(order.at(q.pos))
        if untouched is not None and tail is not None:
            x = L.where((q.pos - begin).to(i64) < untouched.to(i64), x, tail * x)
        total.absorb(x)
    made = _finished(total.value, end - begin, over)
    return L.out(made=made)


@sequence_logp.vjp("logp")
def sequence_logp_grad(ctx, d_made: Tensor[f32, B]) -> Outputs:
    """d lp = g of its sequence, over its length for a mean, times the result for a probability."""
    owner = ctx.sequence.whole()
    begin, end = ctx.begin.at(owner), ctx.end.at(owner)
    slope = d_made.at(owner)
    if ctx.over != "sum":
        slope = slope / L.maximum(end - begin, 1).to(f32)
    if ctx.over == "probability":
        slope = slope * ctx.made.at(owner)
    if ctx.untouched is not None and ctx.tail is not None:
        slope = L.where((ctx.rank - begin).to(i64) < ctx.untouched.at(owner).to(i64), slope, ctx.tail * slope)
    return L.out(d_logp=L.where(ctx.active, slope, 0.0))
