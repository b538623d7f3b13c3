"""The arithmetic of folds with one state per piece or segment: the first state, and the update by a chunk."""

from __future__ import annotations

from rlk.ir import fold
from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.fold import State
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import Cast, Combine, Dot, Fn2, Value
from rlk.ir.types import DType

SLACK = 8.0  # a power_sum's scores may exceed its maximum by this much before it is rescaled
NOTES = {"m_limit": f"numerators of up to 2 ** {SLACK:g} keep the scale: most chunks rescale no sum"}
"""Reasons of values by their names, which generated text repeats."""


def start(b: Builder, monoid: Monoid, dtype: DType) -> State:
    """Return the state of a piece before its first chunk."""
    match monoid.kind:
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
            # 0.0, not -0.0: a contraction of zeros makes +0.0 of -0.0, so only a state that starts at +0.0
            # keeps its bits through a chunk that is fully masked for a row
            return (fold.init(b, monoid)[0], *(b.f32(0.0) for _ in monoid.state[1:]))
        case Kind.TOTAL if monoid.contracts:
            return (b.f32(0.0),)
        case Kind.TOTAL | Kind.ARGMAX | Kind.LARGEST | Kind.TOP | Kind.TOP_K:
            return fold.init(b, monoid, dtype)


def restart(b: Builder, monoid: Monoid, state: State) -> State:
    """Return the first state of the next piece, made of the state of the last one.

    Weighted sums stay: under a maximum of -inf their factor is 0, if they are finite.
    """
    match monoid.kind:
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
            return (fold.init(b, monoid)[0], *state[1:])
        case Kind.TOTAL if monoid.contracts:
            return (b.f32(0.0),)
        case Kind.TOTAL | Kind.ARGMAX | Kind.LARGEST | Kind.TOP | Kind.TOP_K:
            return fold.init(b, monoid, b.tile(state[0]).dtype)


def absorb(
    b: Builder, monoid: Monoid, state: State, inputs: State, lanes: Axis | None, exists: Value, pos: Value
) -> State:
    """Return the state of a piece with one more chunk; for a softmax_sum by online softmax.

    m' = max(m, max z), e = exp2((z - m') log2 e), and a = exp2((m - m') log2 e) rescales each sum x:
      - x a + sum of e y, by the monoid's tree;
      - for a payload that is contracted: the accumulator x a plus the products of y and of e, rounded to the
        dtype of y;
      - for a centred sum c: (c + (m - m') s) a + sum of e (z - m').
    Every operation rounds. (Online softmax: Milakov and Gimelshein, arXiv 1805.02867; with products: Dao,
    arXiv 2307.08691.) A total with a payload adds the products of y and of x, rounded to the dtype of y, to
    its accumulator.

    For a power_sum e = exp2(z - m') and a = exp2(m - m'), and m' = m unless max z > m + SLACK: numerators of
    up to 2 ** SLACK need no other scale, and in most steps a = 1 and no sum is rescaled (conditional
    rescaling with the threshold of FlashAttention-4).
    """
    match monoid.kind:
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM if lanes is not None:
            return _softmax(b, monoid, state, inputs, lanes, exists)
        case Kind.TOTAL if monoid.contracts and lanes is not None:
            x = b.select(exists, inputs[0], b.f32(0.0))
            for factor in inputs[2:]:
                x = b.mul(x, factor)
            return (_products(b, x, inputs[1], lanes, state[0], "acc_new"),)
        case (
            Kind.SOFTMAX_SUM
            | Kind.POWER_SUM
            | Kind.TOTAL
            | Kind.ARGMAX
            | Kind.LARGEST
            | Kind.TOP
            | Kind.TOP_K
        ):
            return fold.merge(b, monoid, state, fold.leaf(b, monoid, inputs, lanes, exists, pos))


def _softmax(b: Builder, monoid: Monoid, state: State, inputs: State, lanes: Axis, exists: Value) -> State:
    score, *payloads = inputs
    z = b.select(exists, score, b.f32(float("-inf")))
    m = _maximum(b, monoid, state[0], b.reduce(Combine.MAX, z, lanes, None, "m_chunk"))
    alpha, moved = fold.weighted(b, monoid, state[0], m, "alpha")
    e, distance = fold.weighted(b, monoid, z, m, "p")
    centred = [b.mul(e, distance)] if monoid.centred else []
    s_before = b.mul(state[1], alpha, "l_scaled")
    sums = [b.add(s_before, b.reduce(Combine.ADD, e, lanes, monoid.lanes, "l_chunk"), "l_new")]
    for term in centred:
        before = fold.recentred(b, b.mul(state[2], alpha), s_before, moved, "centred_before")
        chunk = b.reduce(Combine.ADD, term, lanes, monoid.lanes, "centred_chunk")
        sums.append(b.add(before, chunk, "centred_new"))
    for name, x, y in zip(monoid.payloads, state[1 + len(sums) :], payloads, strict=True):
        before = b.mul(x, alpha, f"acc_{name}_scaled")
        dtype = b.tile(y).dtype
        if dtype is DType.F32:
            chunk = b.reduce(Combine.ADD, b.mul(e, y), lanes, monoid.lanes, f"{name}_chunk")
            sums.append(b.add(before, chunk, f"{name}_new"))
        else:
            sums.append(_products(b, e, y, lanes, before, f"acc_{name}_new"))
    return (m, *sums)


def _maximum(b: Builder, monoid: Monoid, before: Value, chunk: Value) -> Value:
    """Return the maximum for a chunk: of a power_sum the previous one, unless exceeded by SLACK."""
    if monoid.kind is not Kind.POWER_SUM:
        return b.max(before, chunk, "m_new")
    far = b.map2(Fn2.LT, b.add(before, b.f32(SLACK), "m_limit"), chunk, "m_grows")
    return b.select(far, chunk, before, "m_new")


def _products(b: Builder, x: Value, y: Value, lanes: Axis, onto: Value, name: str) -> Value:
    """Return the accumulator `onto` plus the products of y and of x, rounded to the dtype of y."""
    p = b.let(Cast(x, b.tile(y).dtype))
    each = tuple(a for a in b.tile(p).axes if a in b.tile(y).axes and a != lanes) or None
    return b.let(Dot(p, y, lanes, DotModel.CHAIN16, onto, each), name)
