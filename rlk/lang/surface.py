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
from rlk.lang.by_chunks import by_chunks, is_by_chunks
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
from rlk.lang.instead import hint
from rlk.lang.narrow import map2
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

        A kernel may have several streams, one after the other, of one axis as well: what a stream found is
        a value for the next. Inside its stream an axis is not used whole.

        A stream may stand in the body of another, and runs for each of its chunks: folds made in the
        body are those of one element of the outer axis, and the outer stream's folds absorb their values.

        begin, end: the segment of a ragged axis, i32 or i64 over the axis of segments.
        when: where it is false the axis is empty: folds keep the identity and nothing is read.
        reverse: from the last element to the first, one by one.
        since, until: for an axis whose leaf is the piece or the segment: the bounds of the elements that
        are visible to a row, as in causal or window attention. Chunks and pieces still count from `begin`.
        rows: an axis, the index of each row along it, and a condition: where states of rows are
        materialized, if they do not fit into a program. Where it is false a state is undefined and must
        not be stored.
        after: the number of elements from `begin` on, in whole chunks, that another stream took, from
        whose states the folds continue; this stream takes the others. Chunks and pieces still count from
        `begin`.

        Shapes: yields v; a parameter's chunk `param[v]` has the parameter's axes, `v.pos` (i32) the
        streamed one.
        Dtypes: bounds are i32 or i64, `when` is boolean.
        Raises: AXIS_NEEDS_CHUNK, AXIS_TWO_ROLES for a stream of an axis inside its own, STREAM_NESTED
        for an axis with piece= inside another stream, STREAM_BROKEN for break or return in the body,
        STREAM_LEAK for a value of the body that is used after it.

        >>> largest, total = L.argmax(), L.total()
        >>> for v in L.stream(V):
        ...     largest.absorb(z[v])
        >>> for v in L.stream(V):                       # again, with what the first stream found
        ...     total.absorb(z[v] - largest.max)
        >>> total.value
        [-6, -23]
        >>> total = L.total()
        >>> for v in L.stream(V):
        ...     below = L.total()
        ...     for i in L.stream(I):
        ...         below.absorb((u[i].to(f32) < z[v]).to(i32))
        ...     total.absorb(below.value)               # pairs with u < z
        >>> total.value
        [6, 5]
        >>> total = L.total()
        >>> for e in L.stream(S, begin=begin, end=end):
        ...     total.absorb(p.at(e.pos))
        >>> total.value
        [3, 18]
        >>> for v in L.stream(V):
        ...     kept = z[v]
        >>> kept + 1.0
        [STREAM_LEAK]
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

        So a value that several contractions need, such as the gradient of scores, is computed once. A name
        is that of a workspace: no other output or workspace has it.

        Shapes: those of x.
        Dtypes: any, kept.
        Raises: KEEP_IN_STREAM.

        >>> doubled = L.keep((x + x).to(bf16), "doubled")
        >>> L.dot(doubled, w, over=N)
        [[5, -8], [10.5, 1]]
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
        axes, where, when: axes of the tensor, indices of the elements, and which are written, as in
        `place`.

        Shapes: a tensor over x's axes, or `axes`; `.at(...)` reads it.
        Dtypes: any, kept; indices are integers.
        Raises: KEEP_IN_STREAM, OUTPUT_TWICE or OUTPUT_IS_INPUT for a name that is taken.

        >>> sums = L.table(L.sum(x, over=N, tree=Tree.halving), "sums")
        >>> sums.at(row)
        [5.25, 2.5]
        """
        t = tracer("table")
        if t.scope.axis is not None:
            raise SpecError(Code.KEEP_IN_STREAM, author(), name=name)
        tile = as_tile(t, x)
        return t.table(name, tile, tile.axes if axes is None else axes, where or {}, when)

    # --- reductions of whole axes ---

    @staticmethod
    def sum(x: Operand, over: Axis, tree: Order | None = None) -> Tile:
        """Return the sum over a whole axis, padded to 2**n with -0.0, in the order of a tree.

        Along a dynamic axis with chunks, of any length, it is a stream, as are `max`, `min` and `any`: the
        tree inside a chunk, chunks ascending, as of `L.total`. What is summed is computed again in the
        stream, of what is in memory. A static axis is whole in a program, which has room for 131072 elements.
        In a stream of the axis, where x is made of x[v], it is the sum of the chunk's elements that exist.

        tree: Tree.halving, Tree.pairwise, Tree.vector8 or Tree(order of index bits); integers need none.

        Shapes: x has the axis; the result has x's other axes.
        Dtypes: f32 and integers, kept: cast 16-bit floats to f32 and 8-bit integers to i32 first.
        Raises: FLOAT_SUM_NEEDS_TREE, NO_SUCH_AXIS, AXIS_TWO_ROLES for an axis with another leaf than "chunk"
        in its stream, and of an outer stream, TREE_WIDTH, CARRY_STEPS beside a carry, STREAM_NESTED and
        WHOLE_OF_STREAM along a dynamic axis.

        >>> L.sum(x, over=N, tree=Tree.halving)         # (x0 + x2) + (x1 + x3)
        [2.5, 5.25]
        >>> L.sum(n, over=N)
        [6, 22]
        >>> L.sum(x, over=N)
        [FLOAT_SUM_NEEDS_TREE]
        >>> for v in L.stream(V):                       # of each chunk of two
        ...     L.emit(shares=z[v] / L.sum(z[v], over=V, tree=Tree.halving))
        >>> L.out()
        shares: [[0.333333, 0.666667, 0.428571, 0.571429], [0, 1, 0, 1]]
        """
        return L._reduce(Combine.ADD, x, over, tree)

    @staticmethod
    def max(x: Operand, over: Axis) -> Tile:
        """Return the largest element over a whole axis; NaN loses, -0.0 < +0.0.

        Of NaN alone: -inf, but NaN along a static axis of 2**n elements, which nothing pads.

        Shapes: x has the axis; the result has x's other axes.
        Dtypes: f32 and integers, of 8 bits too, kept.
        Raises: NO_SUCH_AXIS, AXIS_TWO_ROLES in its stream as `sum`.

        >>> L.max(x, over=N)
        [3, 4]
        """
        return L._reduce(Combine.MAX, x, over, None)

    @staticmethod
    def min(x: Operand, over: Axis) -> Tile:
        """Return the smallest element over a whole axis; NaN loses, -0.0 < +0.0.

        Of NaN alone: inf, but NaN along a static axis of 2**n elements, which nothing pads.

        Shapes: x has the axis; the result has x's other axes.
        Dtypes: f32 and integers, of 8 bits too, kept.
        Raises: NO_SUCH_AXIS, AXIS_TWO_ROLES in its stream as `sum`.

        >>> L.min(L.where(x > 2.0, L.pos(N), 4), over=N)        # the first index that is true
        [2, 0]
        """
        return L._reduce(Combine.MIN, x, over, None)

    @staticmethod
    def any(x: Operand, over: Axis) -> Tile:
        """Return whether any element over a whole axis is true.

        Shapes: x has the axis; the result has x's other axes.
        Dtypes: boolean.
        Raises: DTYPE_WANTED, NO_SUCH_AXIS, AXIS_TWO_ROLES in its stream as `sum`.

        >>> L.any(x > 3.0, over=N)
        [False, True]
        """
        return L._reduce(Combine.OR, x, over, None)

    @staticmethod
    def _reduce(fn: Combine, x: Operand, over: Axis, tree: Order | None) -> Tile:
        t = tracer("sum")
        named = "sum" if fn is Combine.ADD else "any" if fn is Combine.OR else fn.value
        an_axis(f"L.{named}(over=)", over)
        an_order(f"L.{named}(tree=)", tree)
        tile = as_tile(t, x, what=fn.value)
        if over in t.streamed() and (over != t.scope.axis or over.leaf != "chunk"):
            raise SpecError(Code.AXIS_TWO_ROLES, author(), axis=over)
        if tile.dtype.is_int8 and fn in (Combine.MAX, Combine.MIN):
            return L._reduce(fn, tile.to(DType.I32), over, tree).to(tile.dtype)
        if is_by_chunks(over) and over != t.scope.axis:
            return by_chunks(t, fn, tile, over, tree)
        return t.wrap(t.at().let(Reduce(fn, t.use(tile), over, tree)))

    @staticmethod
    def dot(
        a: Operand, b: Operand, over: Axis, onto: Operand | None = None, each: tuple[Axis, ...] = ()
    ) -> Tile:
        """Return the contraction over an axis of two tiles: 16-bit (chain16), f32 (an fma chain), i8 (exact).

        i8: an i32 accumulator, modulo 2**32: integer sums have no order. e4m3 and e5m2: f16 has every number
        of both, so factors are converted to f16, exactly, and contracted as those. f32 accumulators take the
        axis in ascending order; `rlk.ir.dotmodel` has the rules. An axis with `split` or `piece` is
        contracted piece by piece: pieces of a split merge pairwise, others ascending.
        onto: for an axis with `piece`, the f32 initial value of the ascending sum over pieces.
        each: batch axes, which both tiles have; every index of them has a contraction of its own.

        A factor is a tensor, or computed elementwise (dequantised, scaled, activated), or gathered along the
        axis, with a fill. On CuTe one factor may be computed, of one tensor along the axis and numbers
        of its rows, where the axis is static and has no pieces; on TileLang for CDNA both. What they
        lack runs on Triton, or is kept. Where many products have each element, CuTe and Triton write
        the factor first, with the same bits.

        Shapes: both have `over`; the result has the other axes of both. No axis needs a transpose: factors
        are contracted over the axis of this name, wherever it is among their dims.
        Dtypes: bf16 with bf16, f16 with f16, f32 with f32, e4m3 and e5m2 with each other, to f32; i8 with
        i8, to i32. Another 8-bit factor is cast: `w.to(bf16)` beside bf16.
        Raises: DTYPE_MIX, DTYPE_WANTED, DOT_SHARES_AXIS, DOT_ONTO, DOT_PIECES for i8 over an axis with
        pieces, and CANNOT_LOWER where no backend has the form.

        >>> L.dot(h, w, over=N)                         # [T, N] and [K, N]: h @ w.T
        [[10, 4], [9.75, 0.5]]
        >>> L.dot(h, L.maximum(w.to(f32) - y * 0.05, 0.0).to(bf16), over=N)
        [[0.5, 2], [0.25, 0.25]]
        >>> L.dot(n.to(i8), L.where(w > 1.0, L.number(3, i8), L.number(0, i8)), over=N)
        [[0, 3], [0, 18]]
        >>> L.dot(h.to(e4m3), w.to(e5m2), over=N)
        [[10, 4], [9.75, 0.5]]
        >>> L.dot(h, w.to(f32), over=N)
        [DTYPE_MIX]
        """
        t = tracer("dot")
        for axis in (over, *each):
            an_axis("L.dot", axis)
        x, y = as_tile(t, a), as_tile(t, b)
        if x.dtype.is_float8 and y.dtype.is_float8:
            x, y = x.to(DType.F16), y.to(DType.F16)
        wanted = {DType.F32, DType.F16, DType.BF16, DType.I8}
        if x.dtype is y.dtype and x.dtype not in wanted:
            names = "f32, f16, bf16, i8, e4m3 or e5m2"
            raise SpecError(Code.DTYPE_WANTED, author(), what="dot", wanted=names, got=x.type)
        model = {DType.F32: DotModel.FMA, DType.I8: DotModel.INTEGER}.get(x.dtype, DotModel.CHAIN16)
        if model is DotModel.INTEGER and (over.split is not None or over.piece is not None):
            raise SpecError(Code.DOT_PIECES, author(), axis=over)
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
        """Return 2**x, the portable function: the same bits on every target.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.exp2(y * 0.1)
        [2, 4, 8, 16]
        """
        return L._math(MathFn.EXP2, x)

    @staticmethod
    def softmax_exp2(x: Operand) -> Tile:
        """Return 2**x in the model of softmax folds, for gradients that recompute probabilities.

        On sm_90 folds use the hardware's exp2, whose bits the oracle has; elsewhere it is the portable
        one.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> soft = L.softmax_sum()
        >>> for v in L.stream(V):
        ...     soft.absorb(z[v])
        >>> L.softmax_exp2((soft.max - soft.lse()) * 1.4426950408889634)    # the largest probability
        [0.643914, 0.99842]
        """
        return L._math(MathFn.EXP2, x, MathModel.SOFTMAX)

    @staticmethod
    def exp(x: Operand) -> Tile:
        """Return e**x, portable, with gradual underflow.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED: cast a 16-bit tile first.

        >>> L.exp(x)
        [[2.71828, 0.135335, 20.0855, 1.64872], [54.5981, 1.28403, 0.367879, 7.38906]]
        >>> L.exp(h)
        [DTYPE_WANTED]
        """
        return L._math(MathFn.EXP, x)

    @staticmethod
    def log2(x: Operand) -> Tile:
        """Return the logarithm to base 2, portable; -inf at 0, NaN below.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.log2(y)
        [3.32193, 4.32193, 4.90689, 5.32193]
        """
        return L._math(MathFn.LOG2, x)

    @staticmethod
    def log(x: Operand) -> Tile:
        """Return the natural logarithm, portable; -inf at 0, NaN below.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.log(y)
        [2.30259, 2.99573, 3.4012, 3.68888]
        """
        return L._math(MathFn.LOG, x)

    @staticmethod
    def expm1(x: Operand) -> Tile:
        """Return e**x - 1, portable, accurate near 0.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.expm1(y * 1e-6)
        [1e-05, 2.00002e-05, 3.00004e-05, 4.00008e-05]
        """
        return L._math(MathFn.EXPM1, x)

    @staticmethod
    def log1p(x: Operand) -> Tile:
        """Return ln(1 + x), portable, accurate near 0; -inf at -1, NaN below.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.log1p(y * 1e-6)
        [9.99995e-06, 1.99998e-05, 2.99995e-05, 3.99992e-05]
        """
        return L._math(MathFn.LOG1P, x)

    @staticmethod
    def tanh(x: Operand) -> Tile:
        """Return the hyperbolic tangent, portable.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.tanh(x)
        [[0.761594, -0.964028, 0.995055, 0.462117], [0.999329, 0.244919, -0.761594, 0.964028]]
        """
        return L._math(MathFn.TANH, x)

    @staticmethod
    def erf(x: Operand) -> Tile:
        """Return the error function, portable.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.erf(x)
        [[0.842701, -0.995322, 0.999978, 0.5205], [1, 0.276326, -0.842701, 0.995322]]
        """
        return L._math(MathFn.ERF, x)

    @staticmethod
    def sigmoid(x: Operand) -> Tile:
        """Return 1 / (1 + e**-x), portable; neither tail overflows.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> x * L.sigmoid(x)                            # silu
        [[0.731059, -0.238406, 2.85772, 0.31123], [3.92806, 0.140544, -0.268941, 1.76159]]
        """
        return L._math(MathFn.SIGMOID, x)

    @staticmethod
    def rsqrt(x: Operand) -> Tile:
        """Return 1 / sqrt(x), portable; inf at 0, NaN below.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.rsqrt(y)
        [0.316228, 0.223607, 0.182574, 0.158114]
        """
        return L._math(MathFn.RSQRT, x)

    @staticmethod
    def sin(x: Operand) -> Tile:
        """Return the sine of x in radians, portable.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.sin(x)
        [[0.841471, -0.909297, 0.14112, 0.479426], [-0.756802, 0.247404, -0.841471, 0.909297]]
        """
        return L._math(MathFn.SIN, x)

    @staticmethod
    def cos(x: Operand) -> Tile:
        """Return the cosine of x in radians, portable.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.cos(x)
        [[0.540302, -0.416147, -0.989992, 0.877583], [-0.653644, 0.968912, 0.540302, -0.416147]]
        """
        return L._math(MathFn.COS, x)

    @staticmethod
    def k3(d: Operand) -> Tile:
        """Return exp(d) - 1 - d, accurate near 0: the term of a KL estimate that is never negative.

        Shapes: those of d.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.k3(x)
        [[0.718282, 1.13534, 16.0855, 0.148721], [49.5981, 0.0340254, 0.367879, 4.38906]]
        """
        return L._math(MathFn.K3, d)

    @staticmethod
    def sqrt(x: Operand) -> Tile:
        """Return the square root, correctly rounded; NaN below 0.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.sqrt(y)
        [3.16228, 4.47214, 5.47723, 6.32456]
        """
        return L._map1(Fn1.SQRT, x)

    @staticmethod
    def floor(x: Operand) -> Tile:
        """Return the largest integer that is not above x, as a float.

        -L.floor(-x) rounds up, L.round(x) to the nearest.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.floor(x)
        [[1, -2, 3, 0], [4, 0, -1, 2]]
        """
        return L._map1(Fn1.FLOOR, x)

    @staticmethod
    def round(x: Operand) -> Tile:
        """Return the nearest integer as a float, of two the even one, as `torch.round`; -0.5 gives 0.0.

        Shapes: those of x.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.round(x * 1.5)
        [[2, -3, 4, 1], [6, 0, -2, 3]]
        """
        below = L.floor(x)
        rest, half = x - below, below * 0.5
        up = (rest > 0.5) | ((rest == 0.5) & (L.floor(half) != half))
        return L.where(up, below + 1.0, below)

    @staticmethod
    def isnan(x: Operand) -> Tile:
        """Return whether x is NaN.

        Shapes: those of x.
        Dtypes: f32; the result is boolean.
        Raises: DTYPE_WANTED.

        >>> L.isnan(L.sqrt(x))
        [[False, True, False, False], [False, False, True, False]]
        """
        return L._map1(Fn1.ISNAN, x)

    @staticmethod
    def _map1(fn: Fn1, x: Operand) -> Tile:
        t = tracer(fn.value)
        tile = as_tile(t, x)
        return t.wrap(t.at().map1(fn, t.use(tile)))

    @staticmethod
    def maximum(a: Operand, b: Operand) -> Tile:
        """Return the larger of two; NaN loses, -0.0 < +0.0.

        Shapes: the axes of both.
        Dtypes: f32 or an integer, both alike; a number takes the other's.
        Raises: DTYPE_MIX, DTYPE_WANTED, DTYPE_OF_NUMBERS for two integers without a tile.

        >>> L.maximum(x, 0.0)
        [[1, 0, 3, 0.5], [4, 0.25, 0, 2]]
        >>> L.maximum(x, n)
        [DTYPE_MIX]
        """
        return L._map2(Fn2.MAX, a, b)

    @staticmethod
    def minimum(a: Operand, b: Operand) -> Tile:
        """Return the smaller of two; NaN loses, -0.0 < +0.0.

        Shapes: the axes of both.
        Dtypes: f32 or an integer, both alike; a number takes the other's.
        Raises: DTYPE_MIX, DTYPE_WANTED, DTYPE_OF_NUMBERS for two integers without a tile.

        >>> L.minimum(n, 4)
        [[0, 1, 2, 3], [4, 4, 4, 4]]
        """
        return L._map2(Fn2.MIN, a, b)

    @staticmethod
    def clip(x: Operand, low: Operand, high: Operand) -> Tile:
        """Return min(max(x, low), high); NaN becomes low.

        Shapes: the axes of all three.
        Dtypes: f32 or an integer, all alike; numbers take the tile's.
        Raises: DTYPE_MIX, DTYPE_WANTED.

        >>> L.clip(x, -1.0, 1.0)
        [[1, -1, 1, 0.5], [1, 0.25, -1, 1]]
        """
        return L.minimum(L.maximum(x, low), high)

    @staticmethod
    def mulhi(a: Operand, b: Operand) -> Tile:
        """Return the upper 32 bits of a u32 product.

        Shapes: the axes of both.
        Dtypes: u32.
        Raises: DTYPE_WANTED, DTYPE_MIX.

        >>> L.mulhi(n.to(u32), L.number(1 << 31, u32))   # half, rounded down
        [[0, 0, 1, 1], [3, 3, 2, 2]]
        """
        return L._map2(Fn2.MULHI, a, b)

    @staticmethod
    def _map2(fn: Fn2, a: Operand, b: Operand) -> Tile:
        t = tracer(fn.value)
        x, y = L._pair(t, fn.value, a, b)
        return t.wrap(map2(t.builder, fn, x, y))

    @staticmethod
    def fma(a: Operand, b: Operand, c: Operand) -> Tile:
        """Return a * b + c, rounded once. No other expression is fused: x * y + z rounds twice.

        Shapes: the axes of all three.
        Dtypes: f32.
        Raises: DTYPE_WANTED.

        >>> L.fma(x, 2.0, y)
        [[12, 16, 36, 41], [18, 20.5, 28, 44]]
        """
        t = tracer("fma")
        x, y, z = (t.use(as_tile(t, v, DType.F32)) for v in (a, b, c))
        return t.wrap(t.at().let(Fma(x, y, z)))

    @staticmethod
    def where(cond: Operand, a: Operand, b: Operand) -> Tile:
        """Return a where the condition is true, b elsewhere. NaN of the side not taken has no effect.

        Shapes: the axes of all three.
        Dtypes: cond boolean; a and b alike, any dtype; a number takes the other's, two floats are f32.
        Raises: DTYPE_MIX, DTYPE_WANTED, DTYPE_OF_NUMBERS for two integers: write L.number(1, i32).

        >>> L.where(x > 0.0, x, -1.0)
        [[1, -1, 3, 0.5], [4, 0.25, -1, 2]]
        >>> L.where(x > 0.0, 1, 0)
        [DTYPE_OF_NUMBERS]
        """
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

        Make counters of positions and request ids, so that draws do not depend on a row's place in a
        batch.

        Shapes: the axes of all words.
        Dtypes: u32; a number is one.
        Raises: DTYPE_WANTED, DTYPE_MIX for a number that is no u32.

        >>> first, *_ = L.philox((row.to(u32), L.pos(N).to(u32), 0, 0), (7, 0))     # a seed of 7
        >>> (first >> 8).to(f32) * 2.0**-24                                    # in [0, 1)
        [[0.40696, 0.237281, 0.698378, 0.975435], [0.954597, 0.182693, 0.323341, 0.542467]]
        """
        t = tracer("philox")
        words = [tuple(t.use(as_tile(t, w, DType.U32)) for w in group) for group in (counter, key)]
        b = t.at()
        return tuple(t.wrap(v) for v in b.results(b.let(Philox(*words), "word")))

    # --- positions and numbers ---

    @staticmethod
    def number(value: Number, dtype: DType) -> Tile:
        """Return a Python number as a tile of a dtype without axes.

        Shapes: no axes; it broadcasts.
        Dtypes: any of rlk.lang.
        Raises: DTYPE_UNKNOWN, DTYPE_MIX for a number that the dtype does not hold.

        >>> L.where(x > 0.0, L.number(1, i32), 0)
        [[1, 0, 1, 1], [1, 1, 0, 1]]
        >>> L.number(3000000000, i32)
        [DTYPE_MIX]
        """
        t = tracer("number")
        t.at()
        return as_tile(t, value, dtype_of(dtype, "number"))

    @staticmethod
    def pos(axis: Axis) -> Tile:
        """Return the index along an axis. Of a streamed axis `v.pos` is that of the chunk.

        Shapes: the axis.
        Dtypes: i32.
        Raises: AXIS_WANTED, AXIS_TWO_ROLES inside a stream of the axis.

        >>> L.pos(N) + n
        [[0, 2, 4, 6], [7, 7, 7, 7]]
        >>> L.pos("N")
        [AXIS_WANTED]
        """
        t = tracer("pos")
        an_axis("L.pos", axis)
        if axis in t.streamed():
            raise SpecError(Code.AXIS_TWO_ROLES, author(), axis=axis)
        return t.wrap(t.at().let(Pos(axis), axis.name.lower()))

    @staticmethod
    def extent(axis: Axis) -> Tile:
        """Return the extent of an axis: a run-time number if it is dynamic.

        Shapes: no axes.
        Dtypes: i32.
        Raises: AXIS_WANTED.

        >>> L.sum(x, over=N, tree=Tree.halving) / L.extent(N).to(f32)       # a mean
        [0.625, 1.3125]
        """
        t = tracer("extent")
        an_axis("L.extent", axis)
        return t.wrap(t.at().let(Extent(axis)))

    # --- effects ---

    @staticmethod
    def check(bad: Operand, what: str) -> None:
        """Report bad data without stopping: the device error word gets `what` where `bad` holds.

        A call under RLK_CHECK=1 raises it as BAD_ROW, with the row; without it nothing waits for the
        device.

        Shapes: any; the row is the index along the first axis.
        Dtypes: boolean.
        Raises: DTYPE_WANTED.

        >>> L.check(row < 0, "a negative row")
        >>> x.at(row, N)
        [[4, 0.25, -1, 2], [1, -2, 3, 0.5]]
        """
        t = tracer("check")
        value = t.use(as_tile(t, bad, DType.BOOL))
        t.at().let(Check(value, what))

    @staticmethod
    def emit(**tiles: Tile) -> None:
        """Write outputs inside a stream: they keep the streamed axis.

        Shapes: the axes of the tile and of the stream.
        Dtypes: any.
        Raises: OUTPUT_TWICE, OUTPUT_IS_INPUT, OUTPUT_AXES.

        >>> run = L.carry(L.number(0, i32), T)
        >>> for i in L.stream(I):                       # a cumulative sum
        ...     L.emit(sums=run.value + u[i])
        ...     run.hand(run.value + u[i])
        >>> L.out()
        sums: [[1, 3, 6, 10], [10, 10, 10, 11]]
        """
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

        It is how an output gets dims in an order of its own, as a transpose.
        when: where it is false nothing is written; a third member of a part is the same for that part
        alone.

        Shapes: `axes` are the output's dims, outermost first; each is an axis of an input.
        Dtypes: any; indices are i32 or i64, `when` is boolean. An element that no part writes is
        undefined. Indices are inside where `when` is true: others are INDEX_OUTSIDE on a CPU, and write
        somewhere else on a device.
        Raises: NO_SUCH_AXIS, OUTPUT_TWICE, OUTPUT_IS_INPUT, OUTPUT_AXES.

        >>> L.place("turned", (N, T), ({}, x))
        >>> L.place("swapped", (T, N), ({T: row}, x))
        >>> L.out()
        turned: [[1, 4], [-2, 0.25], [3, -1], [0.5, 2]]
        swapped: [[4, 0.25, -1, 2], [1, -2, 3, 0.5]]
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
        """Write the outputs of a spec by name; None leaves one out.

        Dims are in the order of the spec's inputs; `place` has another. An axis that no input has, and whose
        extent is declared, comes after the one that its extent follows from, or last. A spec returns it;
        outputs that `emit` and `place` wrote are there too.

        Shapes: each output has all axes of its tile.
        Dtypes: any.
        Raises: OUTPUT_IN_STREAM, OUTPUT_TWICE, OUTPUT_IS_INPUT, OUTPUT_AXES for an axis that no input
        has and without a declared extent, OUTPUT_MISSING for a spec without any.

        >>> L.out(doubled=x + x, absent=None, largest=L.max(x, over=N))
        doubled: [[2, -4, 6, 1], [8, 0.5, -2, 4]]
        largest: [3, 4]
        """
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
    declared = (a for a in tile.axes if a not in t.dims and a.extent is not None)
    axes = tuple(sorted((*(a for a in t.dims if a in tile.axes), *declared), key=t.place_of))
    if name in t.into and {*tile.axes} <= {*t.into[name]}:
        axes = t.into[name]  # a tile without an axis is written along all of it
    for axis in (*tile.axes, *t.streamed()):
        if axis not in axes:
            raise SpecError(Code.OUTPUT_AXES, author(), name=name, axis=axis)
    index = tuple(t.position(axis) for axis in axes)
    b.loc = author()
    t.write(name, axes, index, value)
