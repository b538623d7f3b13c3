"""The arithmetic of fold states: the identity, the state of one chunk, and the merge of two, written once."""

from __future__ import annotations

import math
from functools import cache

from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import Block, Combine, Fma, Fn2, MathFn, MathModel, Value
from rlk.ir.types import DType, TileType

LOG2E = 1.4426950408889634
LOWEST = -3.4028234663852886e38
LAST_INDEX = 2**31 - 1
SMALLEST = -(2**31)
State = tuple[Value, ...]


def init(b: Builder, monoid: Monoid, dtype: DType = DType.F32) -> State:
    """Return the identity: merging it with a state gives that state's bits."""
    match monoid.kind:
        case Kind.TOTAL:
            # -0.0, not 0.0: x + -0.0 == x for every x, including x = -0.0
            return (b.f32(-0.0) if dtype is DType.F32 else b.const(0, dtype),)
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
            lowest = b.f32(-math.inf)
            # +0.0 as a sum of e: `recentred` then keeps the -0.0 beside it; no state's sum of e is -0.0
            sums = (0.0 if monoid.centred else -0.0, *(-0.0 for _ in monoid.state[2:]))
            return (lowest, *map(b.f32, sums))
        case Kind.ARGMAX:
            return (b.f32(-math.inf), b.i32(LAST_INDEX))
        case Kind.LARGEST if dtype is DType.F32:
            return (b.f32(-math.inf),)
        case Kind.LARGEST:
            return (b.const(0 if dtype is DType.U32 else -(1 << (8 * dtype.bytes - 1)), dtype),)
        case Kind.TOP:
            return (b.i32(SMALLEST),) * 3
        case Kind.TOP_K:
            return (b.f32(-math.inf),) * monoid.count + (b.i32(LAST_INDEX),) * monoid.count


def leaf(
    b: Builder, monoid: Monoid, inputs: State, lanes: Axis | None, exists: Value | None, pos: Value
) -> State:
    """Return the state of one chunk: its existing elements, combined along `lanes`.

    lanes is None for chunks of one element; exists is None when every element exists.
    """
    match monoid.kind:
        case Kind.TOTAL:
            x = inputs[0]
            identity = init(b, monoid, b.tile(x).dtype)[0]
            return (_combine(b, Combine.ADD, _only(b, x, exists, identity), lanes, monoid),)
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
            return _softmax_leaf(b, monoid, inputs, lanes, exists)
        case Kind.ARGMAX:
            z = _only(b, inputs[0], exists, b.f32(-math.inf))
            best = _combine(b, Combine.MAX, z, lanes, monoid)
            index = b.select(b.map2(Fn2.EQ, z, best), pos, b.i32(LAST_INDEX))
            index = _only(b, index, exists, b.i32(LAST_INDEX))
            return (best, _combine(b, Combine.MIN, index, lanes, monoid))
        case Kind.LARGEST:
            x = inputs[0]
            lowest = init(b, monoid, b.tile(x).dtype)[0]
            best = _combine(b, Combine.MAX, _only(b, x, exists, lowest), lanes, monoid, "largest")
            # of NaN alone: -inf, which is the identity, so that neither chunks nor their order show
            return (b.max(best, lowest) if b.tile(x).dtype is DType.F32 else best,)
        case Kind.TOP:
            assert lanes is None, "each lane has a state of its own"
            x = _only(b, inputs[0], exists, b.i32(SMALLEST))
            smallest = b.min(x, b.i32(SMALLEST))  # of the axes of x
            return (x, smallest, smallest)
        case Kind.TOP_K:
            lowest, last = b.f32(-math.inf), b.i32(LAST_INDEX)
            # a NaN is -inf, a zero +0.0: equal scores have the same bits, and elements a total order
            x = b.add(b.max(_only(b, inputs[0], exists, lowest), lowest), b.f32(0.0))
            index = b.select(b.map2(Fn2.LE, lowest, x), _only(b, pos, exists, last), last)  # of the axes of x
            if lanes is not None:
                return best_of_lanes(b, monoid, (x, index), lanes)
            absent, more = (b.min(x, lowest), b.max(index, last)), monoid.count - 1
            return (x, *(absent[0],) * more, index, *(absent[1],) * more)


def merge(b: Builder, monoid: Monoid, one: State, two: State, exp2: MathModel = MathModel.SOFTMAX) -> State:
    """Return the state of the union of two disjoint sets; commutative bit for bit."""
    match monoid.kind:
        case Kind.TOTAL:
            return (b.add(one[0], two[0], "total"),)
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
            return _softmax_merge(b, monoid, one, two, exp2)
        case Kind.ARGMAX:
            later = b.map2(Fn2.LT, one[0], two[0])
            tie = b.map2(Fn2.AND, b.map2(Fn2.EQ, one[0], two[0]), b.map2(Fn2.LT, two[1], one[1]))
            take = b.map2(Fn2.OR, later, tie)
            return (b.select(take, two[0], one[0], "m"), b.select(take, two[1], one[1], "index"))
        case Kind.LARGEST:
            return (b.max(one[0], two[0], "largest"),)
        case Kind.TOP:
            second = b.max(b.min(one[0], two[0]), b.max(one[1], two[1]), "second")
            crossed = b.max(b.min(one[0], two[1]), b.min(one[1], two[0]))
            third = b.max(crossed, b.max(one[2], two[2]), "third")
            return (b.max(one[0], two[0], "first"), second, third)
        case Kind.TOP_K:
            for i in range(monoid.count):  # an element comes after those before it, in either state
                one = _inserted(b, monoid, one, (two[i], two[monoid.count + i]), i)
            return one


def absorbed(b: Builder, monoid: Monoid, state: State, element: State) -> State:
    """Return the state with the state of one more element, as `leaf` gives it without lanes."""
    if monoid.kind is Kind.TOP_K:
        return _inserted(b, monoid, state, (element[0], element[monoid.count]))
    return merge(b, monoid, state, element)


def best_of_lanes(b: Builder, monoid: Monoid, state: State, lanes: Axis) -> State:
    """Return the merged state of a top_k along lanes; each lane has a state, or one element."""
    lists = list(zip(state[: len(state) // 2], state[len(state) // 2 :], strict=True))
    absent = b.f32(-math.inf), b.i32(LAST_INDEX)
    scores: list[Value] = []
    indices: list[Value] = []
    for more in reversed(range(monoid.count)):
        x, n = lists[0]
        scores.append(b.reduce(Combine.MAX, x, lanes, None, f"best{len(scores)}"))
        tied = b.select(b.map2(Fn2.EQ, x, scores[-1]), n, absent[1])
        indices.append(b.reduce(Combine.MIN, tied, lanes, None, f"index{len(indices)}"))
        taken = b.map2(Fn2.EQ, n, indices[-1])
        moved = zip(lists, [*lists[1:], absent], strict=True)
        lists = [(b.select(taken, y, x), b.select(taken, m, n)) for (x, n), (y, m) in moved][:more]
    return (*scores, *indices)


def _inserted(
    b: Builder, monoid: Monoid, state: State, element: tuple[Value, Value], first: int = 0
) -> State:
    """Return the state of a top_k with one more element, which comes at place `first` or later, or not."""
    k, made = monoid.count, list(state)
    x, n = element
    for i in range(first, k):
        y, m = made[i], made[k + i]
        tie = b.map2(Fn2.AND, b.map2(Fn2.EQ, y, x), b.map2(Fn2.LT, n, m))
        takes = b.map2(Fn2.OR, b.map2(Fn2.LT, y, x), tie)
        made[i], made[k + i] = b.select(takes, x, y, f"best{i}"), b.select(takes, n, m, f"index{i}")
        x, n = b.select(takes, y, x), b.select(takes, m, n)
    return tuple(made)


@cache
def merging(monoid: Monoid, dtypes: tuple[DType, ...], exp2: MathModel) -> Block:
    """Return the merge of two states of a monoid as a block: (one, two) -> merged."""
    b = Builder()
    one, two = (tuple(b.fresh(TileType(dtype)) for dtype in dtypes) for _ in range(2))
    merged = merge(b, monoid, one, two, exp2)
    return Block((*one, *two), b.body().lets, merged)


def weighted(
    b: Builder, monoid: Monoid, z: Value, m: Value, name: str, exp2: MathModel = MathModel.SOFTMAX
) -> tuple[Value, Value]:
    """Return e = exp2((z - m) * log2 e), each operation rounded, and z - m.

    e = 0 where z is -inf, for every m. For a power_sum, whose scores are in units of ln 2, e = exp2(z - m).
    """
    # m = -inf before the first finite score: z - 0 = -inf avoids the NaN of (-inf) - (-inf)
    nothing = b.map2(Fn2.EQ, m, b.f32(-math.inf), "is_empty")
    safe = b.select(nothing, b.f32(0.0), m, "m_safe")
    natural = monoid.kind is not Kind.POWER_SUM
    power = distance = b.sub(z, safe, f"{name}_{'distance' if natural else 'exponent'}")
    if natural:
        power = b.mul(power, b.f32(LOG2E), f"{name}_exponent")
    e = b.math(MathFn.EXP2, power, exp2, name)
    # finite where z is -inf: e is 0 there, and 0 * -inf would be NaN; a NaN in z is in e already
    return e, b.max(distance, b.f32(LOWEST), f"{name}_moved_by") if monoid.centred else distance


def recentred(b: Builder, centred: Value, s: Value, distance: Value, name: str = "") -> Value:
    """Return the sum of e (z - M) of a state with maximum m under another maximum M; distance = m - M.

    centred, s: the state's sums of e (z - m) and of e, both already rescaled to M. The result is
    centred + s (m - M), rounded once.
    """
    return b.let(Fma(s, distance, centred), name)


def _softmax_merge(b: Builder, monoid: Monoid, one: State, two: State, exp2: MathModel) -> State:
    m = b.max(one[0], two[0], "m")
    (w1, d1), (w2, d2) = (
        weighted(b, monoid, x[0], m, f"alpha_{side}", exp2) for side, x in zip("ab", (one, two), strict=True)
    )
    s1, s2 = b.mul(one[1], w1, "l_a_scaled"), b.mul(two[1], w2, "l_b_scaled")
    sums = [b.add(s1, s2, "l")]
    if monoid.centred:
        c1, c2 = b.mul(one[2], w1, "centred_a_scaled"), b.mul(two[2], w2, "centred_b_scaled")
        moved = recentred(b, c1, s1, d1, "centred_a_moved"), recentred(b, c2, s2, d2, "centred_b_moved")
        sums.append(b.add(*moved, "centred"))
    payloads = zip(one[1 + len(sums) :], two[1 + len(sums) :], strict=True)
    scaled = (
        (name, b.mul(x, w1, f"{name}_a_scaled"), b.mul(y, w2, f"{name}_b_scaled"))
        for name, (x, y) in zip(monoid.payloads, payloads, strict=True)
    )
    return (m, *sums, *(b.add(x, y, name) for name, x, y in scaled))


def _softmax_leaf(
    b: Builder, monoid: Monoid, inputs: State, lanes: Axis | None, exists: Value | None
) -> State:
    score, payloads = inputs[0], inputs[1:]
    z = _only(b, score, exists, b.f32(-math.inf))
    m = _combine(b, Combine.MAX, z, lanes, monoid, "m_chunk")
    e, distance = weighted(b, monoid, z, m, "p")
    # before the sum of e, so that z - m need not stay live in registers during that sum
    centred = [b.mul(e, distance)] if monoid.centred else []
    sums = [_combine(b, Combine.ADD, e, lanes, monoid, "l_chunk")]
    sums += [_combine(b, Combine.ADD, term, lanes, monoid, "centred_chunk") for term in centred]
    for name, y in zip(monoid.payloads, payloads, strict=True):
        if y == score:
            # e is 0 where z is -inf; a finite replacement avoids 0 * -inf, and a NaN in z is in e already
            term = b.mul(e, b.max(z, b.f32(LOWEST)))
        else:
            term = b.select(b.map2(Fn2.EQ, z, b.f32(-math.inf)), b.f32(-0.0), b.mul(e, y))
        sums.append(_combine(b, Combine.ADD, term, lanes, monoid, f"{name}_chunk"))
    return (m, *sums)


def _only(b: Builder, x: Value, exists: Value | None, identity: Value) -> Value:
    return x if exists is None else b.select(exists, x, identity)


def _combine(b: Builder, fn: Combine, x: Value, lanes: Axis | None, monoid: Monoid, name: str = "") -> Value:
    if lanes is None or lanes not in b.tile(x).axes:
        return x
    order = monoid.lanes if fn is Combine.ADD else None
    return b.reduce(fn, x, lanes, order, name)
