"""The step of an optimizer, and the sums that a norm of gradients is made of."""

from __future__ import annotations

from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Tensor, Tile, Tree, bf16, f16, f32, i32, i64, op, u32

T = Axis("T", dynamic=True)
N = Axis("N")
W = DTypeVar("W", (f32, bf16, f16))
G = DTypeVar("G", (f32, bf16, f16))
DROPPED = 16  # bits of an f32 that a bf16 lacks
INFINITE = 0x7F800000


WRITTEN = {f"{name}_out": name for name in ("weight", "exp_avg", "exp_avg_sq", "master")}


@op(into=WRITTEN, returns=tuple(WRITTEN))
def adamw(
    weight: Tensor[W, T],
    grad: Tensor[G, T],
    exp_avg: Tensor[f32, T],
    exp_avg_sq: Tensor[f32, T],
    master: Tensor[f32, T] | None,
    kept: Scalar[f32],
    rest1: Scalar[f32],
    beta2: Scalar[f32],
    rest2: Scalar[f32],
    rate: Scalar[f32],
    root: Scalar[f32],
    eps: Scalar[f32],
    seed: Scalar[i64] | None,
    step: Scalar[i64] | None,
    parameter: Scalar[i64] | None,
    first: Scalar[i64] | None,
    width: Scalar[i64] | None,
    stride: Scalar[i64] | None,
) -> Outputs:
    """One step of AdamW (Loshchilov and Hutter 2019, algorithm 2), as `torch.optim.AdamW` orders it.

    m += (g - m) (1 - beta1); v = v beta2 + (1 - beta2) g g; w = w (1 - lr decay) + -lr / (1 - beta1^t) *
    (m / (sqrt(v) / sqrt(1 - beta2^t) + eps)). Each operation is rounded once to f32. w is the master weight
    where there is one, else the weight. The weight is w rounded to nearest, or stochastically to bf16: 16
    random bits are added to those that bf16 lacks, then these are dropped; what is not finite is kept.
    Given a seed the rounding is stochastic.

    kept: 1 - lr decay. rest1, rest2: 1 - beta. rate: -lr / (1 - beta1^t). root: sqrt(1 - beta2^t). Random
    bits are the lower ones of the first word of Philox, whose counter is (element, parameter, step) and whose
    key is the seed. The element at index t here is element first + t // width * stride + t % width of a whole
    parameter, of which this may be a shard.
    """
    g = grad.to(f32)
    w = weight.to(f32) if master is None else master.whole()
    m = exp_avg + (g - exp_avg) * rest1
    v = exp_avg_sq * beta2 + rest2 * g * g
    w = w * kept + rate * (m / (L.sqrt(v) / root + eps))
    if seed is not None:
        t = L.pos(T).to(i64)
        element = first + t // width * stride + t % width
        rounded = _stochastic(w, _words(element, parameter, step), (_low(seed), _high(seed)))
    else:
        rounded = w
    return L.out(
        weight_out=rounded.to(weight.dtype),
        exp_avg_out=m,
        exp_avg_sq_out=v,
        master_out=None if master is None else w,
    )


def _low(x: Tile) -> Tile:
    return x.to(u32)


def _high(x: Tile) -> Tile:
    return (x >> 32).to(u32)


def _words(element: Tile, parameter: Tile, step: Tile) -> tuple[Tile, ...]:
    return _low(element), _high(element), _low(parameter), _low(step)


def _stochastic(w: Tile, counter: tuple[Tile, ...], key: tuple[Tile, ...]) -> Tile:
    """Return w as f32 numbers that bf16 holds, rounded away from 0 as often as what is dropped says."""
    word, *_ = L.philox(counter, key)
    bits = w.bits(i32)
    noise = (word & ((1 << DROPPED) - 1)).to(i32)
    finite = (bits & INFINITE) != INFINITE
    moved = ((bits + noise) >> DROPPED) << DROPPED
    return L.where(finite, moved.bits(f32), w)


@op()
def square_sums(x: Tensor[G, T, N]) -> Outputs:
    """The f32 sum of squares of each row: a vector8 tree over N, as the mean of `rms_norm`."""
    wide = x.to(f32)
    return L.out(sums=L.sum(wide * wide, over=N, tree=Tree.vector8))
