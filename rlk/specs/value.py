"""Losses of a critic, of known tokens and of exploration: means over active tokens in compacted order."""

from __future__ import annotations

from rlk.lang import Axis, L, Outputs, Scalar, Static, Tensor, Tile, boolean, f32, i32, op

T = Axis("T", dynamic=True)
B = Axis("B", dynamic=True)
S = Axis("S", chunk=1024, piece=1024, fan_in=4096, dynamic=True)
AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum", "sum")
SEQUENCES = ("active", "all")


def _errors(value: Tile, target: Tile, old: Tile | None, clip: Tile | None) -> tuple[Tile, Tile | None]:
    """Return v - R, and the same of the value moved no further than the clip; NaN stays NaN."""
    if old is None:
        return value - target, None
    bounded = L.where(old == old, L.clip(value, old - clip, old + clip), old)
    return value - target, bounded - target


def _clipped(away: Tile, held: Tile) -> Tile:
    """Return where the clipped error is the larger: there the value has no slope."""
    return held * held > away * away


def _length(
    sequence: Tensor[i32, T] | None, begin: Tensor[i32, B] | None, end: Tensor[i32, B] | None, t: Tile | None
) -> Tile | None:
    """Return how many active tokens the sequence of a token has, f32; of all tokens where t is None."""
    if sequence is None:
        return None
    owner = sequence.whole() if t is None else sequence.at(t)
    return L.maximum(end.at(owner) - begin.at(owner), 1).to(f32)


def _share(x: Tile, length: Tile | None, aggregation: str) -> Tile:
    """Return a token's share of its sequence's mean, where means of sequences are taken; else x."""
    return x / length if aggregation == "sequence_mean" and length is not None else x


def _denominator(aggregation: str, count: Tile, sequences: Tile | None) -> Tile | None:
    """Return how many tokens or sequences a sum of shares is a mean of, f32; None for a sum."""
    if aggregation == "sum":
        return None
    by_token = sequences is None or aggregation == "token_mean"
    return L.maximum(count if by_token else sequences, 1).to(f32)


def _over(x: Tile, *denominators: Tile | None) -> Tile:
    """Return x over the denominators that there are, one after the other."""
    for each in denominators:
        x = x if each is None else x / each
    return x


SAVED = ("sequence", "begin", "end", "active", "count", "sequences")


@op(saves=("values", "returns", "old_values", *SAVED))
def value_loss(
    values: Tensor[f32, T],
    returns: Tensor[f32, T],
    old_values: Tensor[f32, T] | None,
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    sequence: Tensor[i32, T] | None,
    begin: Tensor[i32, B] | None,
    end: Tensor[i32, B] | None,
    clip: Scalar[f32] | None,
    normalizer: Scalar[f32] | None,
    aggregation: Static[AGGREGATIONS] = "token_mean",
    counted: Static[SEQUENCES] = "active",
) -> Outputs:
    """Mean over active tokens of 0.5 max((v - R)^2, (clip(v, v0 - c, v0 + c) - R)^2) (Schulman 2017).

    order lists all tokens, the active ones first; sums run over it in chunks of 1024 (halving trees), then
    over 4096 chunks at a time in the same way, so that padded and packed inputs have the same bits. A mean
    over sequences sums each token's term over the number of tokens of its sequence, in that order too.
    """
    loss, count, clipped, sequences = L.total(), L.total(), L.total(), L.total()
    for s in L.stream(S):
        t = order[s]
        alive = active.at(t)
        old = None if old_values is None else old_values.at(t)
        away, held = _errors(values.at(t), returns.at(t), old, clip)
        term, over = away * away, None
        if held is not None:
            over = _clipped(away, held)
            term = L.where(over | (held != held), held * held, term)
            clipped.absorb((alive & over).to(i32))
        term = term * 0.5
        L.place("per_token", (T,), ({T: t}, L.where(alive, term, 0.0)))
        share = _share(term, _length(sequence, begin, end, t), aggregation)
        loss.absorb(L.where(alive, share, -0.0))
        count.absorb(alive.to(i32))
        if sequence is not None:
            sequences.absorb((alive & (s.pos == begin.at(sequence.at(t)))).to(i32))
    number = None
    if sequence is not None:
        number = sequences.value if counted == "active" else L.extent(B)
    denominator = _denominator(aggregation, count.value, number)
    # + 0.0: the sum of no tokens is -0.0, their loss is +0
    mean = _over(loss.value + 0.0, denominator, normalizer)
    fraction = None
    if old_values is not None:
        fraction = clipped.value.to(f32) / L.maximum(count.value, 1).to(f32)
    return L.out(loss=mean, count=count.value, clip_fraction=fraction, sequences=number)


@value_loss.vjp("values")
def value_loss_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d v = g / count (v - R) where the unclipped error is not the smaller, else 0; 0 where inactive."""
    denominator = _denominator(ctx.aggregation, ctx.count, ctx.sequences)
    scale = _over(d_loss.whole(), denominator, ctx.normalizer)
    slope, held = _errors(ctx.values, ctx.returns, ctx.old_values, ctx.clip)
    if held is not None:
        slope = L.where(_clipped(slope, held), 0.0, L.where(held == held, slope, held))
    length = _length(ctx.sequence, ctx.begin, ctx.end, None)
    return L.out(d_values=L.where(ctx.active, _share(scale * slope, length, ctx.aggregation), 0.0))


@op(saves=("weights", *SAVED))
def nll_loss(
    logp: Tensor[f32, T],
    weights: Tensor[f32, T] | None,
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    sequence: Tensor[i32, T] | None,
    begin: Tensor[i32, B] | None,
    end: Tensor[i32, B] | None,
    normalizer: Scalar[f32] | None,
    aggregation: Static[AGGREGATIONS] = "token_mean",
    counted: Static[SEQUENCES] = "active",
) -> Outputs:
    """Mean over active tokens of -w lp, summed as in `value_loss`; a token of weight 0 does not count."""
    loss, count, sequences = L.total(), L.total(), L.total()
    for s in L.stream(S):
        t = order[s]
        alive = active.at(t)
        term = -logp.at(t)
        if weights is not None:
            weight = weights.at(t)
            alive, term = alive & (weight != 0.0), weight * term
        L.place("per_token", (T,), ({T: t}, L.where(alive, term, 0.0)))
        share = _share(term, _length(sequence, begin, end, t), aggregation)
        loss.absorb(L.where(alive, share, -0.0))
        count.absorb(alive.to(i32))
        if sequence is not None:
            sequences.absorb((alive & (s.pos == begin.at(sequence.at(t)))).to(i32))
    number = None
    if sequence is not None:
        number = sequences.value if counted == "active" else L.extent(B)
    denominator = _denominator(aggregation, count.value, number)
    mean = _over(loss.value + 0.0, denominator, normalizer)
    return L.out(loss=mean, count=count.value, sequences=number)


@nll_loss.vjp("logp")
def nll_loss_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d lp = -g w / denominator; 0 where a token does not count."""
    denominator = _denominator(ctx.aggregation, ctx.count, ctx.sequences)
    scale = _over(-d_loss.whole(), denominator, ctx.normalizer)
    share = _share(scale, _length(ctx.sequence, ctx.begin, ctx.end, None), ctx.aggregation)
    alive = ctx.active
    if ctx.weights is not None:
        alive, share = alive & (ctx.weights != 0.0), share * ctx.weights
    return L.out(d_logp=L.where(alive, share, 0.0))


@op(saves=("active", "count"))
def entropy_bonus(
    entropy: Tensor[f32, T],
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    coef: Scalar[f32],
) -> Outputs:
    """-c times the token mean of the entropy over active tokens, summed as in `value_loss`."""
    total, count = L.total(), L.total()
    for s in L.stream(S):
        t = order[s]
        alive = active.at(t)
        total.absorb(L.where(alive, entropy.at(t), -0.0))
        count.absorb(alive.to(i32))
    mean = (total.value + 0.0) / L.maximum(count.value, 1).to(f32)
    # + 0.0: -c times no entropy is -0.0
    return L.out(loss=-(coef * mean) + 0.0, mean=mean, count=count.value)


@entropy_bonus.vjp("entropy")
def entropy_bonus_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d H = -g c / count; 0 where inactive."""
    scale = d_loss / L.maximum(ctx.count, 1).to(f32)
    return L.out(d_entropy=L.where(ctx.active, -(scale * ctx.coef), 0.0))
