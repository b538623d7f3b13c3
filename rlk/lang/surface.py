"""The language of specs: streams and folds, `L.sum`, `L.where`, `L.out`, and functions of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from rlk.errors import Code, SpecError, author
from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import (
    Check,
    Combine,
    Dot,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Keep,
    MathFn,
    MathModel,
    Philox,
    Pos,
    Reduce,
    Select,
    Value,
)
from rlk.ir.tree import Order
from rlk.ir.types import DType, dtype_of
from rlk.lang.folds import (
    Argmax,
    Carry,
    Operand,
    PowerSum,
    SoftmaxStates,
    SoftmaxSum,
    Top,
    Total,
    an_axis,
    an_order,
)
from rlk.lang.reserved import check_free
from rlk.lang.trace import (
    NoSuchName,
    Number,
    ScalarArg,
    StreamVar,
    TensorArg,
    Tile,
    Tracer,
    as_tile,
    hint,
    taken,
    tracer,
)

__all__ = ["L", "ScalarArg"]


class Outputs(dict[str, Tile]):
    """The result of a spec: named tiles, already stored."""


class _Names(type):
    """The class of L: says what to write for a function that it has not."""

    if not TYPE_CHECKING:  # where such a name is an error already

        def __getattr__(cls, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            instead = hint(name) or f"one of: {', '.join(n for n in sorted(vars(cls)) if n[0] != '_')}"
            raise NoSuchName(Code.TILE_OPERATOR, author(), what=f"L.{name}", instead=instead)


class L(metaclass=_Names):
    """The functions of a spec. Tiles broadcast by axis name; numbers take the other operand's dtype."""

    # --- streams and folds ---

    @staticmethod
    def stream(
        axis: Axis,
        *,
        begin: Operand | None = None,
        end: Operand | None = None,
        when: Operand | None = None,
        reverse: bool = False,
        since: Operand | None = None,
        until: Operand | None = None,
        rows: tuple[Axis, Operand, Operand] | None = None,
        after: Operand | None = None,
    ) -> Iterator[StreamVar]:
        """Iterate an axis chunk by chunk, ascending; the body is traced once.

        begin, end: the segment of a ragged axis, i32 or i64 over the axis of segments.
        when: where it is false the axis is empty: folds keep the identity and nothing is read.
        reverse: from the last element to the first, one by one.
        since, until: for an axis whose leaf is the piece or the segment: the bounds of the elements that are
        visible to a row, as in causal or window attention. Chunks and pieces still count from `begin`.
        rows: an axis, the index of each row along it, and a condition: where states of rows are materialized,
        if they do not fit into a program. Where it is false a state is undefined and must not be stored.
        after: the number of elements from `begin` on, in whole chunks, that another stream took, from whose
        states the folds continue; this stream takes the others. Chunks and pieces still count from `begin`.
        """
        t = tracer("stream")
        an_axis("L.stream", axis)
        over, *place = (None, None, None) if rows is None else rows
        given = (begin, end, when, since, until, *place, after)
        bounds = [None if x is None else t.use(as_tile(t, x, DType.I32)) for x in given]
        t.names |= {v: name for v, name in zip(bounds[3:5], ("since", "until"), strict=True) if v is not None}
        return t.stream(axis, *bounds, reverse=reverse, rows=over)

    softmax_sum = SoftmaxSum
    power_sum = PowerSum
    softmax_states = SoftmaxStates
    total = Total
    argmax = Argmax
    carry = Carry
    top = Top

    @staticmethod
    def keep(x: Operand, name: str) -> Tile:
        """Return x, materialized to memory: its consumers are in later launches.

        So a value that several contractions need, such as the gradient of scores, is computed once.
        """
        t = tracer("keep")
        if t.scope.axis is not None:
            raise SpecError(Code.KEEP_IN_STREAM, author(), name=name)
        tile = as_tile(t, x)
        check_free(name, tile.axes, author())
        return t.wrap(t.at().let(Keep(t.use(tile)), name))

    @staticmethod
    def table(
        x: Operand,
        name: str,
        axes: tuple[Axis, ...] | None = None,
        where: Mapping[Axis, Tile] | None = None,
        when: Tile | None = None,
    ) -> TensorArg:
        """Return x, materialized to memory as with `keep`, as a tensor for gathers.

        So tokens read a number of their sequence, such as a sum over its tokens.
        axes, where, when: axes of the tensor, indices of the elements, and which are written, as in `place`.
        """
        t = tracer("table")
        if t.scope.axis is not None:
            raise SpecError(Code.KEEP_IN_STREAM, author(), name=name)
        tile = as_tile(t, x)
        return t.table(name, tile, tile.axes if axes is None else axes, where or {}, when)

    # --- reductions of whole axes ---

    @staticmethod
    def sum(x: Operand, over: Axis, tree: Order | None = None) -> Tile:
        """Return the sum over a whole axis, padded to 2**n with -0.0, in the order of a tree."""
        return L._reduce(Combine.ADD, x, over, tree)

    @staticmethod
    def max(x: Operand, over: Axis) -> Tile:
        """Return the largest element over a whole axis; NaN loses."""
        return L._reduce(Combine.MAX, x, over, None)

    @staticmethod
    def min(x: Operand, over: Axis) -> Tile:
        """Return the smallest element over a whole axis; NaN loses."""
        return L._reduce(Combine.MIN, x, over, None)

    @staticmethod
    def any(x: Operand, over: Axis) -> Tile:
        """Return whether any element over a whole axis is true."""
        return L._reduce(Combine.OR, x, over, None)

    @staticmethod
    def _reduce(fn: Combine, x: Operand, over: Axis, tree: Order | None) -> Tile:
        t = tracer("sum")
        named = "sum" if fn is Combine.ADD else "any" if fn is Combine.OR else fn.value
        an_axis(f"L.{named}(over=)", over)
        an_order(f"L.{named}(tree=)", tree)
        tile = as_tile(t, x, what=fn.value)
        if over in t.streamed():
            raise SpecError(Code.AXIS_TWO_ROLES, author(), axis=over)
        return t.wrap(t.at().let(Reduce(fn, t.use(tile), over, tree)))

    @staticmethod
    def dot(
        a: Operand, b: Operand, over: Axis, onto: Operand | None = None, each: tuple[Axis, ...] = ()
    ) -> Tile:
        """Return the contraction over an axis of two 16-bit tiles (chain16) or two f32 ones (an fma chain).

        f32: one accumulator takes the axis in ascending order; `rlk.ir.dotmodel` has the rules. An axis with
        `split` or `piece` is contracted piece by piece: pieces of a split merge pairwise, others ascending.
        onto: for an axis with `piece`, the f32 initial value of the ascending sum over pieces.
        each: batch axes, which both tiles have; every index of them has a contraction of its own.
        """
        t = tracer("dot")
        for axis in (over, *each):
            an_axis("L.dot", axis)
        x, y = as_tile(t, a), as_tile(t, b)
        model = DotModel.FMA if x.dtype is DType.F32 else DotModel.CHAIN16
        begin = None if onto is None else t.use(as_tile(t, onto))
        if begin is not None and over.piece is None:
            raise SpecError(Code.DOT_ONTO, author(), axis=over)
        return t.wrap(t.at().let(Dot(t.use(x), t.use(y), over, model, begin, each or None)))

    # --- elementwise ---

    @staticmethod
    def _math(fn: MathFn, x: Operand, model: MathModel = MathModel.PORTABLE) -> Tile:
        t = tracer(fn.value)
        tile = as_tile(t, x, DType.F32)
        return t.wrap(t.at().math(fn, t.use(tile), model))

    @staticmethod
    def exp2(x: Operand) -> Tile:
        return L._math(MathFn.EXP2, x)

    @staticmethod
    def softmax_exp2(x: Operand) -> Tile:
        """Return 2**x in the model of softmax folds, for gradients that recompute probabilities."""
        return L._math(MathFn.EXP2, x, MathModel.SOFTMAX)

    @staticmethod
    def exp(x: Operand) -> Tile:
        return L._math(MathFn.EXP, x)

    @staticmethod
    def log2(x: Operand) -> Tile:
        return L._math(MathFn.LOG2, x)

    @staticmethod
    def log(x: Operand) -> Tile:
        return L._math(MathFn.LOG, x)

    @staticmethod
    def expm1(x: Operand) -> Tile:
        return L._math(MathFn.EXPM1, x)

    @staticmethod
    def log1p(x: Operand) -> Tile:
        return L._math(MathFn.LOG1P, x)

    @staticmethod
    def tanh(x: Operand) -> Tile:
        return L._math(MathFn.TANH, x)

    @staticmethod
    def erf(x: Operand) -> Tile:
        return L._math(MathFn.ERF, x)

    @staticmethod
    def sigmoid(x: Operand) -> Tile:
        return L._math(MathFn.SIGMOID, x)

    @staticmethod
    def rsqrt(x: Operand) -> Tile:
        return L._math(MathFn.RSQRT, x)

    @staticmethod
    def sin(x: Operand) -> Tile:
        return L._math(MathFn.SIN, x)

    @staticmethod
    def cos(x: Operand) -> Tile:
        return L._math(MathFn.COS, x)

    @staticmethod
    def k3(d: Operand) -> Tile:
        """Return exp(d) - 1 - d, accurate near 0."""
        return L._math(MathFn.K3, d)

    @staticmethod
    def sqrt(x: Operand) -> Tile:
        return L._map1(Fn1.SQRT, x)

    @staticmethod
    def floor(x: Operand) -> Tile:
        return L._map1(Fn1.FLOOR, x)

    @staticmethod
    def isnan(x: Operand) -> Tile:
        return L._map1(Fn1.ISNAN, x)

    @staticmethod
    def _map1(fn: Fn1, x: Operand) -> Tile:
        t = tracer(fn.value)
        tile = as_tile(t, x)
        return t.wrap(t.at().map1(fn, t.use(tile)))

    @staticmethod
    def maximum(a: Operand, b: Operand) -> Tile:
        """Return the larger of two; NaN loses, -0.0 < +0.0."""
        return L._map2(Fn2.MAX, a, b)

    @staticmethod
    def minimum(a: Operand, b: Operand) -> Tile:
        """Return the smaller of two; NaN loses, -0.0 < +0.0."""
        return L._map2(Fn2.MIN, a, b)

    @staticmethod
    def clip(x: Operand, low: Operand, high: Operand) -> Tile:
        """Return min(max(x, low), high)."""
        return L.minimum(L.maximum(x, low), high)

    @staticmethod
    def mulhi(a: Operand, b: Operand) -> Tile:
        """Return the upper 32 bits of a u32 product."""
        return L._map2(Fn2.MULHI, a, b)

    @staticmethod
    def _map2(fn: Fn2, a: Operand, b: Operand) -> Tile:
        t = tracer(fn.value)
        x, y = L._pair(t, fn.value, a, b)
        return t.wrap(t.at().map2(fn, x, y))

    @staticmethod
    def fma(a: Operand, b: Operand, c: Operand) -> Tile:
        """Return a * b + c, rounded once."""
        t = tracer("fma")
        x, y, z = (t.use(as_tile(t, v, DType.F32)) for v in (a, b, c))
        return t.wrap(t.at().let(Fma(x, y, z)))

    @staticmethod
    def where(cond: Operand, a: Operand, b: Operand) -> Tile:
        """Return a where the condition is true, b elsewhere. NaN of the side not taken has no effect."""
        t = tracer("where")
        c = t.use(as_tile(t, cond, DType.BOOL))
        x, y = L._pair(t, "where", a, b)
        return t.wrap(t.at().let(Select(c, x, y)))

    @staticmethod
    def _pair(t: Tracer, what: str, a: Operand, b: Operand) -> tuple[Value, Value]:
        """Return two operands as values, a number in the other's dtype."""
        known = next((x for x in (a, b) if isinstance(x, Tile | TensorArg)), None)
        dtype = None if known is None else known.dtype
        if known is None and any(isinstance(x, float) for x in (a, b)):
            dtype = DType.F32
        t.at()
        return t.use(as_tile(t, a, dtype, what)), t.use(as_tile(t, b, dtype, what))

    # --- random ---

    @staticmethod
    def philox(counter: tuple[Operand, ...], key: tuple[Operand, ...]) -> tuple[Tile, ...]:
        """Return four u32 words of random bits: Philox 4x32-10 of four counter words and two key words.

        Make counters of positions and request ids, so that draws do not depend on a row's place in a batch.
        """
        t = tracer("philox")
        words = [tuple(t.use(as_tile(t, w, DType.U32)) for w in group) for group in (counter, key)]
        b = t.at()
        return tuple(t.wrap(v) for v in b.results(b.let(Philox(*words), "word")))

    # --- positions and numbers ---

    @staticmethod
    def number(value: Number, dtype: DType) -> Tile:
        """Return a Python number as a tile of a dtype without axes."""
        t = tracer("number")
        t.at()
        return as_tile(t, value, dtype_of(dtype, "number"))

    @staticmethod
    def pos(axis: Axis) -> Tile:
        """Return the index along an axis, i32."""
        t = tracer("pos")
        an_axis("L.pos", axis)
        if axis in t.streamed():
            raise SpecError(Code.AXIS_TWO_ROLES, author(), axis=axis)
        return t.wrap(t.at().let(Pos(axis), axis.name.lower()))

    @staticmethod
    def extent(axis: Axis) -> Tile:
        """Return the extent of an axis, i32."""
        t = tracer("extent")
        an_axis("L.extent", axis)
        return t.wrap(t.at().let(Extent(axis)))

    # --- effects ---

    @staticmethod
    def check(bad: Operand, what: str) -> None:
        """Report bad data without stopping: the device error word gets `what` where `bad` holds."""
        t = tracer("check")
        value = t.use(as_tile(t, bad, DType.BOOL))
        t.at().let(Check(value, what))

    @staticmethod
    def emit(**tiles: Tile) -> None:
        """Write outputs inside a stream: they keep the streamed axis."""
        t = tracer("emit")
        for name, tile in tiles.items():
            _new(t, name)
            _store(t, name, as_tile(t, tile, what=f"output {name}"))

    @staticmethod
    def place(
        name: str,
        axes: tuple[Axis, ...],
        *parts: tuple[dict[Axis, Operand], Tile] | tuple[dict[Axis, Operand], Tile, Operand],
        when: Operand | None = None,
    ) -> None:
        """Scatter to an output in disjoint parts: tiles index some axes, positions the others.

        when: where it is false nothing is written; a third member of a part is the same for that part alone.
        """
        t = tracer("place")
        _new(t, name)
        shared = None if when is None else as_tile(t, when, DType.BOOL)
        for where, tile, *own in parts:
            alone = shared
            for guard in own:
                mine = as_tile(t, guard, DType.BOOL)
                alone = mine if shared is None else shared & mine
            for axis in where:
                if axis not in axes:
                    names = ", ".join(map(str, axes))
                    what = f"output {name}"
                    raise SpecError(Code.NO_SUCH_AXIS, author(), what=what, axis=axis, axes=names)
            b = t.at()
            index = tuple(
                t.use(as_tile(t, where[axis], DType.I32)) if axis in where else b.let(Pos(axis))
                for axis in axes
            )
            t.write(name, axes, index, t.use(tile), None if alone is None else t.use(alone))

    @staticmethod
    def out(**tiles: Tile | TensorArg | None) -> Outputs:
        """Write the outputs of a spec by name; None leaves one out."""
        t = tracer("out")
        written = Outputs()
        for name, given in tiles.items():
            if given is None:
                continue
            tile = as_tile(t, given, what=f"output {name}")
            if t.scope.axis is not None:
                raise SpecError(Code.OUTPUT_IN_STREAM, author(), name=name)
            _new(t, name)
            _store(t, name, tile)
            written[name] = tile
        return written


def _new(t: Tracer, name: str) -> None:
    if name in t.builder.params:
        raise SpecError(taken(t.builder.params[name]), author(), name=name)


def _store(t: Tracer, name: str, tile: Tile) -> None:
    """Store a tile at its own positions, dims in the order of the spec's inputs."""
    value = t.use(tile)
    b = t.at()
    axes = tuple(axis for axis in t.dims if axis in tile.axes)
    for axis in (*tile.axes, *t.streamed()):
        if axis not in axes:
            raise SpecError(Code.OUTPUT_AXES, author(), name=name, axis=axis)
    index = tuple(t.position(axis) for axis in axes)
    b.loc = author()
    t.write(name, axes, index, value)
