"""Folds, which reduce the chunks of a stream, and carries, the values from one step to the next."""

from __future__ import annotations

from typing import NoReturn

from rlk.errors import Code, SpecError, author
from rlk.ir.dims import Axis, union
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import Fma, Fold, MathFn, MathModel, Merge, Value
from rlk.ir.tree import Order, Rule, bind
from rlk.ir.types import TileType
from rlk.lang.reserved import is_free
from rlk.lang.trace import Absorbing, Carrying, Folding, Number, TensorArg, Tile, Tracer, as_tile, tracer

LN2 = 0.6931471805599453
_STATES = ("max", "sum", "centred", "m", "l")  # of softmax folds, here and in generated kernels
Operand = Tile | TensorArg | Number


def an_axis(what: str, over: object) -> None:
    """Raise for what is no axis, such as the name of one."""
    if not isinstance(over, Axis):
        raise SpecError(Code.AXIS_WANTED, author(), what=what, got=over)


def an_order(what: str, given: object) -> None:
    """Raise for what is no order of a sum, such as the name of one."""
    if given is not None and not isinstance(given, Order):
        raise SpecError(Code.ORDER_WANTED, author(), what=what, got=given)


class _Fold(Folding):
    """A fold in a spec: absorb once inside a stream, read the state after it."""

    what = "fold"

    def __init__(
        self, *, lanes: Order = Rule.HALVING, kept: bool = False, open: bool = False,
        after: tuple[Operand, ...] = (),
    ) -> None:  # fmt: skip
        """Declare a fold. open: do not merge the last piece. after: continue from `states` of such a fold."""
        self._absorbing: Absorbing | None = None
        an_order(f"L.{self.what}", lanes)
        self._lanes, self._kept, self._open, self._after = lanes, kept, open, after

    def named(self, variable: str) -> dict[Value, str]:
        """Return the author's name of a state of one component; others are called after the components."""
        states = () if self._absorbing is None else self._absorbing.states
        return {states[0].value: variable} if len(states) == 1 else {}

    def _absorb(self, monoid: Monoid, *inputs: Operand) -> None:
        t = tracer(self.what)
        if t.scope.axis is None:
            raise SpecError(Code.FOLD_OUTSIDE, author(), what=self.what)
        if self._absorbing is not None:
            raise SpecError(Code.FOLD_TWICE, author(), what=self.what)
        tiles = [as_tile(t, x, what=self.what) for x in inputs]
        axes = union(*(x.axes for x in tiles))
        if t.scope.axis not in axes:
            names = ", ".join(map(str, axes))
            raise SpecError(Code.NO_SUCH_AXIS, author(), what=self.what, axis=t.scope.axis, axes=names)
        if t.scope.axis.chunk is not None:
            bind(monoid.lanes, t.scope.axis.chunk)
        if t.scope.axis.fan_in is not None and monoid.kind is not Kind.TOTAL:
            axis = t.scope.axis
            raise SpecError(
                Code.FAN_IN_NEEDS_SUM, author(), what=self.what, axis=axis.name, fan_in=axis.fan_in
            )
        held = tuple(t.use(as_tile(t, x)) for x in self._after)
        used = tuple(t.use(x) for x in tiles)
        self._absorbing = Absorbing(Fold(monoid, used, self._kept, self._open, held, t.here()))
        t.scope.folds.append(self._absorbing)

    def _state(self, index: int) -> Tile:
        tracer(self.what).whole()
        if self._absorbing is None:
            raise SpecError(Code.FOLD_UNUSED, author(), what=self.what)
        if not self._absorbing.states:
            raise SpecError(Code.STREAM_LEAK, author(), made=author().line)
        return self._absorbing.states[index]

    @property
    def states(self) -> tuple[Tile, ...]:
        """The states of an open fold: that of the last piece, then the merged one of the pieces before it."""
        self._state(0)
        assert self._absorbing is not None
        return self._absorbing.states


class SoftmaxSum(_Fold):
    """The state (max, sum of e, sum of e * payload) of scores z, with e = exp2((z - max) * log2 e).

    lanes: the tree of the lanes of a chunk. kept: a state for each piece and lane, unmerged. open: do not
    merge the last piece. after: continue from `states` of an open fold.
    entropy: the state also has the sum of e * (z - max), from which the entropy of softmax(z) is computed.

    Shapes: scores have the streamed axis; a state has their other axes.
    Dtypes: f32; a payload may be 16-bit on an axis whose leaf is the piece.
    Raises: FOLD_OUTSIDE, FOLD_TWICE, FOLD_UNUSED, FOLD_WITHOUT_ENTROPY, FOLD_AS_VALUE, FAN_IN_NEEDS_SUM,
    RESERVED_NAME for a payload.

    >>> soft = L.softmax_sum(entropy=True)
    >>> for v in L.stream(V):
    ...     soft.absorb(z[v], square=z[v] * z[v])
    >>> L.out(lse=soft.lse(), mean=soft.mean("square"), added=soft.payload("square"), entropy=soft.entropy())
    lse: [4.44019, 8.00158]
    mean: [12.8152, 63.8998]
    added: [19.902, 64.0009]
    entropy: [0.947537, 0.0133135]
    >>> soft = L.softmax_sum()
    >>> for v in L.stream(V):
    ...     soft.absorb(z[v])
    >>> L.out(m=soft.max, s=soft.sum, d=soft.centred)
    [FOLD_WITHOUT_ENTROPY]
    """

    what = "softmax_sum"
    reads = (".lse()", ".sum", ".max")
    kind = Kind.SOFTMAX_SUM

    def __init__(
        self, *, lanes: Order = Rule.HALVING, kept: bool = False, open: bool = False,
        after: tuple[Operand, ...] = (), entropy: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(lanes=lanes, kept=kept, open=open, after=after)
        self._centred = entropy

    def absorb(self, z: Operand, **payloads: Operand) -> None:
        """Absorb one chunk of scores, f32, and named payloads.

        On an axis whose leaf is the piece, a 16-bit payload with axes that the scores lack is contracted with
        e, rounded to its dtype (O += P V): all chunks of a piece go into one accumulator.
        """
        self._names = tuple(payloads)
        for name in payloads:
            if name in _STATES or not is_free(name):
                raise SpecError(Code.RESERVED_NAME, author(), name=name, instead=f"{name}_value")
        self._absorb(Monoid(self.kind, self._names, self._lanes, self._centred), z, *payloads.values())

    @property
    def max(self) -> Tile:
        """The largest score."""
        return self._state(0)

    @property
    def sum(self) -> Tile:
        """The sum of e."""
        return self._state(1)

    def lse(self) -> Tile:
        """Return log sum exp of the scores: max + ln(sum), portable ln; -inf where every score is -inf."""
        return self.max + _log(self.sum)

    @property
    def centred(self) -> Tile:
        """The sum of e * (z - max), of a fold with `entropy`."""
        if not self._centred:
            raise SpecError(Code.FOLD_WITHOUT_ENTROPY, author(), what=self.what)
        return self._state(2)

    def entropy(self) -> Tile:
        """Return the entropy of softmax(z), ln(sum) - centred / sum, portable ln; NaN if all scores are -inf.

        ln(sum) and -centred / sum are not negative and do not grow with the scores: nothing cancels.
        """
        return _log(self.sum) - self.centred / self.sum

    def payload(self, name: str) -> Tile:
        """Return the sum of e * payload."""
        return self._state(2 + self._centred + self._names.index(name))

    def mean(self, name: str) -> Tile:
        """Return the payload's mean under softmax(z)."""
        return self.payload(name) / self.sum


class PowerSum(SoftmaxSum):
    """The state of scores in units of ln 2 (scores times log2 e), which need no product: e = exp2(z - max).

    On an axis whose leaf is the piece, max changes only if that of a chunk exceeds it by more than 8.

    Shapes: scores have the streamed axis; a state has their other axes.
    Dtypes: f32; a payload may be 16-bit on an axis whose leaf is the piece.
    Raises: as softmax_sum: FOLD_OUTSIDE, FOLD_TWICE, FOLD_UNUSED, FOLD_WITHOUT_ENTROPY, FOLD_AS_VALUE.

    >>> soft = L.power_sum()
    >>> for v in L.stream(V):
    ...     soft.absorb(z[v] * 1.4426950408889634)
    >>> soft.lse()
    [4.44019, 8.00158]
    """

    what = "power_sum"
    kind = Kind.POWER_SUM

    def lse(self) -> Tile:
        """Return log sum exp of scores * ln 2: fma(max, ln 2, ln(sum)), portable ln."""
        t = tracer(self.what)
        m, ln2, log = (t.use(as_tile(t, x)) for x in (self.max, LN2, _log(self.sum)))
        return t.wrap(t.at().let(Fma(m, ln2, log)))

    def entropy(self) -> Tile:
        """Return the entropy of softmax of the scores times ln 2: fma(-centred / sum, ln 2, ln(sum)).

        With a lagging maximum ln(sum) may exceed the entropy by up to 8 ln 2, which costs precision.
        """
        t = tracer(self.what)
        mean, ln2, log = (t.use(as_tile(t, x)) for x in (-(self.centred / self.sum), LN2, _log(self.sum)))
        return t.wrap(t.at().let(Fma(mean, ln2, log)))


class SoftmaxStates(SoftmaxSum):
    """States of softmax sums along an axis, merged pairwise: neighbours first.

    m, s, centred and payloads: `max`, `sum`, `centred` and `payload(name)` of the folds.

    Shapes: all have the axis `over`; a merged state has their other axes.
    Dtypes: f32.
    Raises: MERGE_NEEDS_STATES, FOLD_WITHOUT_ENTROPY, NO_SUCH_AXIS.

    >>> both = L.softmax_states(N, x, L.where(x > -9.0, 1.0, 1.0))     # states of one score each
    >>> both.lse()
    [3.20225, 4.15323]
    """

    what = "softmax_states"

    def __init__(
        self, over: Axis, m: Operand, s: Operand, centred: Operand | None = None, **payloads: Operand
    ) -> None:
        super().__init__(entropy=centred is not None)
        t = tracer(self.what)
        given = (m, s, *(() if centred is None else (centred,)), *payloads.values())
        states = tuple(t.use(as_tile(t, x)) for x in given)
        self._names = tuple(payloads)
        for name in payloads:
            if name in _STATES or not is_free(name):
                raise SpecError(Code.RESERVED_NAME, author(), name=name, instead=f"{name}_value")
        monoid = Monoid(Kind.SOFTMAX_SUM, self._names, centred=self._centred)
        b = t.at()
        merged = b.let(Merge(monoid, states, over, Rule.PAIRWISE))
        self._merged = tuple(t.wrap(v) for v in b.results(merged, monoid.symbols))

    def _state(self, index: int) -> Tile:
        return self._merged[index]


class Total(_Fold):
    """The sum of the absorbed tiles: a tree inside a chunk, chunks ascending.

    lanes: the tree of the lanes of a chunk. open, after: as of softmax_sum.
    kept: a sum for each piece of the axis and each lane of a chunk, steps ascending: a tile over V.pieces
    and V.lanes.

    Shapes: the tile has the streamed axis; the value has its other axes.
    Dtypes: f32 and integers, kept. With `by`, 16-bit factors and an f32 value.
    Raises: FOLD_OUTSIDE, FOLD_TWICE for a second absorb in one stream, FOLD_UNUSED, FOLD_LEAF,
    FOLD_AS_VALUE, NO_SUCH_AXIS for a tile without the streamed axis.

    >>> total, count = L.total(), L.total()
    >>> for v in L.stream(V):
    ...     total.absorb(z[v])
    ...     count.absorb((z[v] > 2.0).to(i32))
    >>> L.out(total=total.value, count=count.value)
    total: [10, 9]
    count: [2, 1]
    >>> total = L.total()
    >>> for v in L.stream(V):
    ...     total.absorb(z[v])
    >>> total + 1.0
    [FOLD_AS_VALUE]
    """

    what = "total"
    reads = (".value",)

    def absorb(self, x: Operand, by: Operand | None = None, times: Operand | None = None) -> None:
        """Absorb one chunk. by: 16-bit, contracted with x * times (rounded to its dtype) in one accumulator.

        Where an element is not visible to a row x counts as 0: if `by` is finite there, no bit changes.
        """
        axis, more = tracer(self.what).scope.axis, [y for y in (by, times) if y is not None]
        if by is not None and axis is not None and (axis.leaf == "chunk" or (axis.chunk or 1) < 16):
            raise SpecError(Code.FOLD_LEAF, author(), what=self.what, axis=axis, chunk=axis.chunk)
        self._absorb(Monoid(Kind.TOTAL, ("products",) if more else (), self._lanes), x, *more)

    @property
    def value(self) -> Tile:
        """The sum, after the stream."""
        return self._state(0)


class Argmax(_Fold):
    """The largest score and its lowest index; kept: of each piece of the axis and each lane of a chunk.

    Shapes: scores have the streamed axis; both results have their other axes.
    Dtypes: f32 scores; the index is i32.
    Raises: FOLD_OUTSIDE, FOLD_TWICE, FOLD_UNUSED, FOLD_AS_VALUE.

    >>> best = L.argmax()
    >>> for v in L.stream(V):
    ...     best.absorb(z[v])
    >>> L.out(index=best.index, largest=best.max)
    index: [3, 1]
    largest: [4, 8]
    """

    what = "argmax"
    reads = (".index", ".max")

    def __init__(self, *, kept: bool = False) -> None:
        super().__init__(kept=kept)

    def absorb(self, z: Operand) -> None:
        """Absorb one chunk of f32 scores."""
        self._absorb(Monoid(Kind.ARGMAX), z)

    @property
    def index(self) -> Tile:
        """The lowest index of the largest score, i32."""
        return self._state(1)

    @property
    def max(self) -> Tile:
        """The largest score."""
        return self._state(0)


class Carry:
    """A value carried from each step of a stream to the next: the state of a recurrence.

    Its stream takes one element at a time, whatever its chunk, from either end; so do the folds in it. A
    state may be a vector or a matrix: name its axes beside those of the segments. Of nested streams a
    carry is of the one that is opened next, and is handed on in its body.

    Shapes: the axes of the initial value and those named behind it.
    Dtypes: that of the initial value; a Python float is f32.
    Raises: CARRY_STEPS for an axis with split, piece or leaf, or chunks that are reduced, CARRY_TYPE for a
    value of another dtype or with other axes, FOLD_OUTSIDE, FOLD_TWICE for a second `hand`.

    >>> run = L.carry(L.number(0, i32), T)
    >>> for i in L.stream(I, reverse=True):
    ...     run.hand(run.value * 2 + u[i])
    >>> run.value
    [49, 18]
    >>> run = L.carry(0.0, B)
    >>> for e in L.stream(S, begin=begin, end=end):         # one by one: decayed by a half
    ...     run.hand(0.5 * run.value + p.at(e.pos))
    >>> run.value
    [2.5, 9.875]
    >>> run = L.carry(0.0, T)
    >>> for v in L.stream(V):                               # one by one, too
    ...     run.hand(0.5 * run.value + z[v])
    >>> run.value
    [6.125, 3]
    >>> run = L.carry(0.0, T)
    >>> for v in L.stream(V):
    ...     run.hand(run.value + L.max(z[v], over=V))
    >>> run.value
    [CARRY_STEPS]
    """

    what = "carry"

    def __init__(self, init: Operand, *rows: Axis) -> None:
        """Begin with `init`, for each index of `rows`, the axes of the stream's segments."""
        t = tracer(self.what)
        self._init = as_tile(t, init, what=self.what)
        self._type = TileType(self._init.dtype, union(self._init.axes, rows))
        self._depth = len(t.scopes)
        self._carrying: Carrying | None = None

    @property
    def value(self) -> Tile:
        """The value of the previous step inside the stream (`init` in the first), after it of the last."""
        t = tracer(self.what)
        carrying = self._in(t)
        return t.wrap(carrying.held) if carrying.last is None else carrying.last

    @value.setter
    def value(self, given: object) -> NoReturn:
        what, instead = "an assignment to .value of L.carry()", ".hand(x): x is .value in the next step"
        raise SpecError(Code.TILE_OPERATOR, author(), what=what, instead=instead)

    def hand(self, value: Operand) -> None:
        """Set the value for the next step."""
        t = tracer(self.what)
        carrying, tile = self._in(t), as_tile(t, value, self._type.dtype)
        if carrying.result is not None or carrying.last is not None:
            raise SpecError(Code.FOLD_TWICE, author(), what=self.what)
        if all(each is not carrying for each in t.scope.carries):
            raise SpecError(Code.FOLD_OUTSIDE, author(), what=self.what)
        axes = {*self._type.axes, *t.streamed()}
        if tile.dtype is not self._type.dtype or not {*tile.axes} <= axes:
            raise SpecError(Code.CARRY_TYPE, author(), held=self._type, given=tile.type)
        t.use(tile)
        carrying.result = tile

    def _in(self, t: Tracer) -> Carrying:
        """Return its stream's record of the carry: of the one that was opened first after the carry."""
        t.whole()
        if self._carrying is None:
            if t.scope.axis is None:
                raise SpecError(Code.FOLD_OUTSIDE, author(), what=self.what)
            self._carrying = Carrying(t.use(self._init), self._type, t.builder.fresh(self._type))
            t.scopes[min(self._depth, len(t.scopes) - 1)].carries.append(self._carrying)
        return self._carrying


MOST_BEST = 32
"""The largest k of `L.top(k)`: a thread keeps k scores and k indices in registers for each of its lanes."""


class Top(_Fold):
    """The k largest scores and their indices, largest first; of equal scores the lower index comes first.

    A NaN is -inf, a zero +0.0. Where there are fewer than k elements the score is -inf, the index 2**31 - 1.
    Without k: the three largest integers of each piece of the axis and each lane of a chunk.

    Each element costs about 7 k operations: beyond k = 2 or 3 more than reading it does.

    Shapes: the tile has the streamed axis V; values have its other axes. Without k, they have V.pieces and
    V.lanes in its place.
    Dtypes: f32 scores, i32 indices; i32 without k. k is a Python number of 1 to 32.
    Raises: TOP_COUNT, FOLD_OUTSIDE, FOLD_TWICE, FOLD_UNUSED, FOLD_AS_VALUE.

    >>> top = L.top(3)
    >>> for v in L.stream(V):
    ...     top.absorb(z[v])
    >>> (first, _, third), (index, _, last) = top.values, top.indices
    >>> L.out(first=first, third=third, index=index, last=last)
    first: [4, 8]
    third: [2, 0]
    index: [3, 1]
    last: [1, 0]
    >>> top = L.top()
    >>> for v in L.stream(V):
    ...     top.absorb(q[v])
    >>> first, second, third = top.values
    >>> L.max(first, over=V.lanes)
    [7, 9]
    >>> L.top(0)
    [TOP_COUNT]
    """

    what = "top"
    reads = (".values", ".indices")

    def __init__(self, k: int | None = None) -> None:
        super().__init__(kept=k is None)
        if k is not None and (not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MOST_BEST):
            raise SpecError(Code.TOP_COUNT, author(), k=k, most=MOST_BEST)
        self._k = k

    def absorb(self, x: Operand) -> None:
        """Absorb one chunk: of f32 scores, or without k of i32."""
        self._absorb(Monoid(Kind.TOP) if self._k is None else Monoid(Kind.TOP_K, count=self._k), x)

    @property
    def values(self) -> tuple[Tile, ...]:
        """The k largest; without k the largest, the second, the third: -2**31 where there are fewer."""
        return tuple(self._state(i) for i in range(self._k or 3))

    @property
    def indices(self) -> tuple[Tile, ...]:
        """The index of each of the k largest, i32."""
        if self._k is None:
            raise SpecError(Code.TOP_COUNT, author(), k="L.top()", most=MOST_BEST)
        return tuple(self._state(self._k + i) for i in range(self._k))


def _log(x: Tile) -> Tile:
    t = tracer("log")
    return t.wrap(t.at().math(MathFn.LOG, t.use(x), MathModel.PORTABLE))
