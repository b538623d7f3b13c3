"""What a critic and an exploration bonus add to a loss: means over active tokens in their compacted order."""

from __future__ import annotations

from rlk.lang import Axis, L, Outputs, Scalar, Tensor, Tile, boolean, f32, i32, op

T = Axis("T", dynamic=True)
S = Axis("S", chunk=1024, piece=1024, fan_in=4096, dynamic=True)


def _errors(value: Tile, target: Tile, old: Tile | None, clip: Tile | None) -> tuple[Tile, Tile | None]:
    """Return v - R, and the same of the value that may not have moved further than the clip."""
    if old is None:
        return value - target, None
    return value - target, L.clip(value, old - clip, old + clip) - target


def _clipped(away: Tile, held: Tile) -> Tile:
    """Return where the clipped error is the larger: there the value has no slope."""
    return held * held > away * away


@op(saves=("values", "returns", "old_values", "active", "count"))
def value_loss(
    values: Tensor[f32, T],
    returns: Tensor[f32, T],
    old_values: Tensor[f32, T] | None,
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    clip: Scalar[f32] | None,
) -> Outputs:
    """Token mean over active tokens of 0.5 max((v - R)^2, (clip(v, v0 - c, v0 + c) - R)^2) (Schulman 2017).

    order lists all tokens, the active ones first; sums run over it in chunks of 1024 (halving trees), then
    over 4096 chunks at a time in the same way, so that padded and packed inputs have the same bits.
    """
    loss, count, clipped = L.total(), L.total(), L.total()
    for s in L.stream(S):
        t = order[s]
        alive = active.at(t)
        old = None if old_values is None else old_values.at(t)
        away, held = _errors(values.at(t), returns.at(t), old, clip)
        term, over = away * away, None
        if held is not None:
            over = _clipped(away, held)
            term = L.where(over, held * held, term)
            clipped.absorb((alive & over).to(i32))
        term = term * 0.5
        L.place("per_token", (T,), ({T: t}, L.where(alive, term, 0.0)))
        loss.absorb(L.where(alive, term, -0.0))
        count.absorb(alive.to(i32))
    tokens = L.maximum(count.value, 1).to(f32)
    # + 0.0: the sum of no tokens is -0.0, their loss is +0
    return L.out(
        loss=(loss.value + 0.0) / tokens,
        count=count.value,
        clip_fraction=None if old_values is None else clipped.value.to(f32) / tokens,
    )


@value_loss.vjp("values")
def value_loss_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d v = g / count (v - R) where the unclipped error is not the smaller, else 0; 0 where inactive."""
    scale = d_loss / L.maximum(ctx.count, 1).to(f32)
    slope, held = _errors(ctx.values, ctx.returns, ctx.old_values, ctx.clip)
    if held is not None:
        slope = L.where(_clipped(slope, held), 0.0, slope)
    return L.out(d_values=L.where(ctx.active, scale * slope, 0.0))


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
