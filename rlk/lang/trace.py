"""The tracer: it runs a spec once with symbolic tiles and records a block of tile IR."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from rlk.errors import NOWHERE, Code, Loc, SpecError, author, author_variables
from rlk.ir.build import Builder
from rlk.ir.dims import Axis, Share
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Decl,
    Extent,
    Fn1,
    Fn2,
    Fold,
    Let,
    Load,
    Map1,
    Param,
    Pos,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
    defined,
)
from rlk.ir.types import DType, TileType, dtype_of
from rlk.lang.instead import no_assignment, written_instead
from rlk.lang.narrow import holds, map1, map2
from rlk.lang.reserved import check_free

Number = float | int | bool


@dataclass(slots=True)
class Scope:
    """One open stream: its axis, its folds, and its carried values."""

    id: int
    axis: Axis | None
    folds: list[Absorbing] = field(default_factory=list)
    carries: list[Carrying] = field(default_factory=list)


class Tracer:
    """The state of one trace."""

    def __init__(self, params: dict[str, Decl], dims: tuple[Axis, ...], *, kernels: bool = False) -> None:
        self.kernels, self.asked = kernels, False  # whether `for_kernels` holds, and was asked for
        self.builder = Builder(params=dict(params))
        self.scopes = [Scope(0, None)]
        self.closed: set[int] = set()
        self.count = 0
        self.broken: Loc | None = None
        self.dims = dims  # the order of the dims of outputs
        self.outputs: list[str] = []
        self.names: dict[Value, str] = {}  # what the author's variables call values
        self.states: dict[Value, str] = {}  # and states of folds
        self.into: dict[str, tuple[Axis, ...]] = {}  # dims of the outputs that are written into inputs
        self.place: Loc | None = None  # in place of the author's running line, for a derived gradient

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def place_of(self, axis: Axis) -> tuple[int, bool]:
        """Return what sorts the dims of outputs; an axis that no input has follows that of its extent."""
        names = [each.name for each in self.dims]
        if axis in self.dims:
            return self.dims.index(axis), False
        of = axis.extent.axis if isinstance(axis.extent, Share) else None
        return (names.index(of) if of in names else len(names)), True

    def whole(self) -> None:
        """Raise if a stream was left before its end."""
        if self.broken is not None:
            raise SpecError(Code.STREAM_BROKEN, self.broken)

    def use(self, tile: Tile) -> Value:
        """Return a tile's value, if it is still in scope."""
        self.whole()
        if tile.scope in self.closed:
            raise SpecError(Code.STREAM_LEAK, author(), made=tile.loc.line)
        return tile.value

    def at(self) -> Builder:
        """Return the builder, placed at the author's current line."""
        self.whole()
        if self.place is None:
            self.note_names()
        self.builder.loc = self.here()
        return self.builder

    def here(self) -> Loc:
        """Return the author's current line."""
        return self.place or author()

    def note_names(self) -> None:
        """Note which variables of the author hold which values; the first name of a value stays."""
        for variable, x in author_variables():
            for name, value in _named(variable, x):
                self.names.setdefault(value, name)
            folds = x.items() if isinstance(x, dict) else ((variable, x),)
            for name, fold in folds:
                if isinstance(fold, Folding):
                    self.states |= fold.named(str(name))

    def wrap(self, value: Value) -> Tile:
        return Tile(self, value, self.scope.id, self.builder.loc)

    def streamed(self) -> tuple[Axis, ...]:
        return tuple(s.axis for s in self.scopes if s.axis is not None)

    def stream(
        self, axis: Axis, *bounds: Value | None, reverse: bool = False, rows: Axis | None = None
    ) -> Iterator[StreamVar]:
        """Yield the one symbolic chunk of a stream, then record the stream with all its folds and carries.

        bounds: in the order of `nodes.bounds_of`. rows: the axis of materialized states.
        """
        loc = self.here()
        if axis.chunk is None:
            raise SpecError(Code.AXIS_NEEDS_CHUNK, loc, axis=axis.name)
        if axis in self.streamed():
            raise SpecError(Code.AXIS_TWO_ROLES, loc, axis=axis)
        if self.scope.axis is not None and axis.piece is not None and axis.leaf == "chunk":
            what = f"a stream of {axis}, whose pieces merge in memory,"
            raise SpecError(Code.STREAM_NESTED, loc, what=what, outer=self.scope.axis)
        self.count += 1
        scope = Scope(self.count, axis)
        self.scopes.append(scope)
        with self.builder.region() as lets:
            try:
                self.builder.loc = loc
                yield StreamVar(self, axis, self.wrap(self.builder.let(Pos(axis), axis.name.lower())))
            except GeneratorExit:
                self.broken = loc
                raise
        self.scopes.pop()
        self.closed.add(scope.id)
        self.builder.loc = loc
        if reverse or scope.carries:
            one_by_one(axis, lets, "a stream in reverse" if reverse else "a carry", loc)
        folds, carries = tuple(a.fold for a in scope.folds), tuple(scope.carries)
        body = Block(tuple(c.held for c in carries), tuple(lets), tuple(c.left(loc) for c in carries))
        init, types = tuple(c.init for c in carries), tuple(c.type for c in carries)
        begin, end, when, since, until, row, kept, after = bounds
        stream = Stream(
            axis, body, folds, begin, end, when, init, types, reverse, since, until, row, kept, rows, after
        )
        made = self.builder.let(stream)
        names = (*(n for f in folds for n in f.yielded), *("" for _ in carries))
        states = iter(self.builder.results(made, names))
        for absorbing in scope.folds:
            absorbing.states = tuple(self.wrap(next(states)) for _ in absorbing.fold.yielded)
        for carrying in carries:
            carrying.last = self.wrap(next(states))

    def position(self, axis: Axis) -> Value:
        """Return the position along an axis; inside its stream, that of the current chunk."""
        return self.builder.let(Pos(axis), axis.name.lower())

    def write(
        self, name: str, axes: tuple[Axis, ...], index: tuple[Value, ...], value: Value,
        guard: Value | None = None,
    ) -> None:  # fmt: skip
        """Store to an output under a guard, declaring the output at its first write."""
        b = self.builder
        if name not in b.params:
            check_free(name, axes, b.loc)
            b.params[name] = Decl(name, TileType(b.tile(value).dtype, axes), Role.OUT)
            self.outputs.append(name)
        elif b.params[name].role is not Role.OUT:
            raise SpecError(taken(b.params[name]), b.loc, name=name)
        b.let(Store(name, index, value, guard))

    def table(
        self, name: str, tile: Tile, axes: tuple[Axis, ...], where: Mapping[Axis, Tile], when: Tile | None
    ) -> TensorArg:
        """Store a tile to a workspace of its own, at its positions or given ones; return it as a tensor."""
        b = self.at()
        if name in b.params:
            raise SpecError(taken(b.params[name]), b.loc, name=name)
        check_free(name, axes, b.loc)
        b.params[name] = Decl(name, TileType(tile.dtype, axes), Role.WORK)
        index = tuple(self.use(where[axis]) if axis in where else b.let(Pos(axis)) for axis in axes)
        b.let(Store(name, index, self.use(tile), None if when is None else self.use(when)))
        return TensorArg(self, b.params[name])

    def state(self) -> tuple[dict[str, Decl], list[Let], list[str]]:
        """Return what was recorded at the top level, for `restore`."""
        return dict(self.builder.params), list(self.builder.open[0]), list(self.outputs)

    def restore(self, state: tuple[dict[str, Decl], list[Let], list[str]]) -> None:
        """Forget what was recorded since."""
        params, lets, outputs = state
        self.builder.params, self.builder.open[0], self.outputs = dict(params), list(lets), list(outputs)

    def finish(self, spec: Loc) -> Block:
        """Return the traced body of the spec at a place."""
        self.whole()
        if not self.outputs:
            raise SpecError(Code.OUTPUT_MISSING, spec)
        return self.named(self.builder.body())

    def named(self, block: Block) -> Block:
        """Return a block whose values have the author's names, where they had none or that of an axis."""
        lets = []
        for let in block.lets:
            if isinstance(let.node, Stream):
                let = replace(let, node=replace(let.node, body=self.named(let.node.body)))
            if isinstance(let.node, Result):
                let = replace(let, name=self.states.get(let.value, let.name))
            elif not let.name or isinstance(let.node, Pos):
                let = replace(let, name=self.names.get(let.value, let.name))
            lets.append(let)
        return replace(block, lets=tuple(lets))


def taken(decl: Decl) -> Code:
    """Return the error of an output that has the name of another parameter of the kernel."""
    return Code.OUTPUT_IS_INPUT if decl.role in (Role.IN, Role.SCALAR) else Code.OUTPUT_TWICE


def _named(variable: str, x: object) -> Iterator[tuple[str, Value]]:
    """Yield the values that a variable of the author holds: a tile, or tiles in a record or dict."""
    match x:
        case Tile():
            yield variable, x.value
        case StreamVar():
            yield variable, x.pos.value
        case dict():
            yield from ((str(name), each.value) for name, each in x.items() if isinstance(each, Tile))
        case _ if is_dataclass(x) and not isinstance(x, type):
            members = ((f.name, getattr(x, f.name, None)) for f in fields(x))
            yield from ((name, each.value) for name, each in members if isinstance(each, Tile))


class Folding:
    """Something in a spec that has states once its stream is closed.

    reads: how a spec reads them.
    """

    what = "fold"
    reads: tuple[str, ...] = ()

    def named(self, variable: str) -> dict[Value, str]:
        """Return names of its states, under the author's name for it."""
        raise NotImplementedError

    def _no_value(self, *_: object) -> NoReturn:
        raise fold_as_value(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_value
    __pow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _no_value

    if not TYPE_CHECKING:  # where a misspelled method is an error already

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_"):
                what, instead = f"an assignment to .{name} of L.{self.what}()", ".absorb(x), in a stream"
                raise SpecError(Code.TILE_OPERATOR, author(), what=what, instead=instead)
            object.__setattr__(self, name, value)

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            has = ", ".join(f".{n}" for n in dir(type(self)) if not n.startswith("_") and n not in _OF_FOLDS)
            what = f".{name} of L.{self.what}()"
            raise NoSuchName(Code.TILE_OPERATOR, author(), what=what, instead=f"one of {has}")


_OF_FOLDS = ("what", "kind", "named", "reads", "states")


def fold_as_value(fold: Folding) -> SpecError:
    """Return the error of a fold in the place of a tile."""
    return SpecError(
        Code.FOLD_AS_VALUE, author(), what=f"L.{fold.what}()",
        instead=f"{' or '.join(fold.reads)} after the stream; .absorb(x) inside it takes one chunk",
    )  # fmt: skip


@dataclass(slots=True)
class Absorbing:
    """A fold of an open stream, and its states once the stream is closed."""

    fold: Fold
    states: tuple[Tile, ...] = ()


@dataclass(slots=True)
class Carrying:
    """A carried value of an open stream: that of the current step, for the next step, and the last."""

    init: Value
    type: TileType
    held: Value
    result: Tile | None = None
    last: Tile | None = None

    def left(self, loc: Loc) -> Value:
        """Return the value for the next step."""
        if self.result is None:
            raise SpecError(Code.FOLD_UNUSED, loc, what="carry")
        return self.result.value


def one_by_one(axis: Axis, lets: Iterable[Let], what: str, loc: Loc) -> None:
    """Raise unless a stream may take the elements of an axis one after the other."""
    taken = f"{axis.split} pieces" if axis.split else f"pieces of {axis.piece}" if axis.piece else ""
    if not taken and axis.leaf != "chunk":
        taken = "one accumulator"
    if any(isinstance(let.node, Reduce) and let.node.over == axis for let in lets):
        taken = taken or "chunks that are reduced"
    if taken:
        raise SpecError(Code.CARRY_STEPS, loc, what=what, axis=axis, taken=taken)


_active: list[Tracer] = []


def activate(tracer: Tracer) -> None:
    _active.append(tracer)


def deactivate() -> None:
    _active.pop()


def tracer(what: str) -> Tracer:
    """Return the running trace; `what` is named when there is none."""
    if not _active:
        raise SpecError(Code.TRACE_OUTSIDE, author(), what=what)
    return _active[-1]


def for_kernels() -> bool:
    """Return whether the running trace is of what kernels are made of, not of what defines the bits.

    A spec may then compute what it has proved to be the same bits in fewer passes over a row. The oracle and
    numerics ids are those of the other trace, with which every test of generated source compares.
    """
    t = tracer("for_kernels")
    t.asked = True
    return t.kernels


class Tile:
    """A symbolic value over named axes. Arithmetic broadcasts by axis name; each operation rounds once.

    Operators: + - * of numbers; / of floats; // % << >> of integers; & | ^ ~ of integers and booleans; <
    <= > >= == != give boolean; -x and abs(x) of numbers.
    Shapes: the axes of both operands: no dim is matched by its place, and none needs a transpose or
    unsqueeze.
    Dtypes: both alike; a Python number takes the tile's. 16-bit floats are cast to f32 before arithmetic,
    and so are e4m3 and e5m2. i8 and u8 are computed with modulo 2**8: in i32, and cast.
    Raises: DTYPE_MIX, DTYPE_WANTED, QUOTIENT, INTEGER_UNDEFINED, TILE_OPERATOR for ** @ and an index,
    TILE_HAS_NO_TRUTH for if, and, or, not; TILE_NOT_ITERABLE.

    >>> (x * y - 1.0) / 2.0                         # [T, N] and [N]
    [[4.5, -20.5, 44.5, 9.5], [19.5, 2, -15.5, 39.5]]
    >>> ((n << 1) | 1) % 5 // 2
    [[0, 1, 0, 1], [0, 1, 0, 2]]
    >>> (x > 0.0) & ~(x > 2.0) | (abs(x) == 2.0)
    [[True, True, False, True], [False, True, False, True]]
    >>> q = (n * 40).to(i8)
    >>> q + 100                                     # modulo 2**8
    [[100, -116, -76, -36], [124, 84, 44, 4]]
    >>> x + n
    [DTYPE_MIX]
    >>> x ** 2
    [TILE_OPERATOR]
    """

    __slots__ = ("loc", "scope", "tracer", "value")

    def __init__(self, tracer: Tracer, value: Value, scope: int, loc: Loc = NOWHERE) -> None:
        self.tracer, self.value, self.scope, self.loc = tracer, value, scope, loc

    @property
    def type(self) -> TileType:
        """The dtype and the axes, known while tracing.

        Shapes: none: it is a fact of the trace.
        Dtypes: of the tile.
        Raises: nothing.

        >>> (x + y).type
        f32[T, N]
        """
        return self.tracer.builder.tile(self.value)

    @property
    def dtype(self) -> DType:
        """The dtype, known while tracing: `if x.dtype is bf16` is ordinary Python.

        Shapes: none: it is a fact of the trace.
        Dtypes: of the tile.
        Raises: nothing.

        >>> h.to(f32).dtype
        f32
        """
        return self.type.dtype

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, in the order of first appearance.

        Shapes: none: it is a fact of the trace.
        Dtypes: none.
        Raises: nothing.

        >>> (y * x).axes
        N, T
        """
        return self.type.axes

    def to(self, dtype: DType) -> Tile:
        """Convert: to nearest even between floats, toward zero to integers.

        Shapes: kept.
        Dtypes: any to any. A float outside an integer's range saturates and NaN gives 0; between integers
        modulo 2**n; a boolean is 0 or 1. To e4m3 and e5m2 by way of f32: numbers beyond the largest (448,
        57344) and infinities become +-largest, as `cvt.satfinite` does; torch makes them NaN or infinite.
        NaN stays NaN, 0x7f. From e4m3 and e5m2 every cast to f32, bf16 and f16 is exact.
        Raises: DTYPE_UNKNOWN.

        >>> (x * 1.7).to(i32)
        [[1, -3, 5, 0], [6, 0, -1, 3]]
        >>> (x * 100.0).to(i8)
        [[100, -128, 127, 50], [127, 25, -100, 127]]
        >>> (x * 150.0).to(e4m3).to(f32)                 # 3 bits of fraction
        [[144, -288, 448, 72], [448, 36, -144, 288]]
        >>> x.to("float32")
        [DTYPE_UNKNOWN]
        """
        wanted = dtype_of(dtype, "to")
        if wanted is self.dtype:
            return self
        step = self._before(wanted)
        return self._node(Cast(self.tracer.use(self), wanted)) if step is None else step.to(wanted)

    def _before(self, wanted: DType) -> Tile | None:
        """Return what is cast to a dtype in place of this tile, if its cast takes more than one step."""
        mine = self.dtype
        if wanted.is_float8 or mine.is_float8:
            return None if DType.F32 in (mine, wanted) else self.to(DType.F32)
        if wanted.is_storage and mine.is_float:
            low, b = -128.0 if wanted is DType.I8 else 0.0, self.tracer.at()
            x = self.to(DType.F32)
            limited = x._map2(Fn2.MAX, low)._map2(Fn2.MIN, low + 255.0)  # before it is an i32 out of range
            is_nan = b.let(Map1(Fn1.ISNAN, x.value))
            return self.tracer.wrap(b.let(Select(is_nan, b.f32(0.0), limited.value))).to(DType.I32)
        if (wanted.is_storage or mine.is_storage) and DType.I32 not in (mine, wanted):
            whole = self.to(DType.I32)
            return whole.to(DType.F32) if wanted in (DType.F16, DType.BF16) else whole
        return None

    def bits(self, dtype: DType) -> Tile:
        """Reinterpret the bits as another dtype of the same width.

        Shapes: kept.
        Dtypes: f32, i32 and u32 among each other.
        Raises: DTYPE_UNKNOWN, DTYPE_WANTED for another width.

        >>> ((x.bits(u32) >> 23) & 0xFF).to(i32) - 127   # the exponent
        [[0, 1, 1, -1], [2, -2, 0, 1]]
        >>> x.bits(i64)
        [DTYPE_WANTED]
        """
        return self._node(Bits(self.tracer.use(self), dtype_of(dtype, "bits")))

    def _node(self, node: Cast | Bits) -> Tile:
        return self.tracer.wrap(self.tracer.at().let(node))

    def _map2(self, fn: Fn2, other: object, swapped: bool = False) -> Tile:
        self.tracer.at()
        mine, theirs = self.tracer.use(self), lift(self.tracer, other, self.dtype)
        a, c = (theirs, mine) if swapped else (mine, theirs)
        if not swapped:
            self._limited(fn, other)
        return self.tracer.wrap(map2(self.tracer.builder, fn, a, c))

    def _quotient(self, sign: str, other: object, swapped: bool = False) -> Tile:
        """Return x / y of floats or x // y of integers; raise for the other operator."""
        is_float, whole = sign == "/", self.dtype.is_int or self.dtype.is_int8
        if whole if is_float else not whole:
            wanted = "floats" if is_float else "integers"
            raise SpecError(Code.QUOTIENT, author(), sign=sign, wanted=wanted, got=self.type)
        return self._map2(Fn2.DIV, other, swapped)

    def _limited(self, fn: Fn2, other: object) -> None:
        """Raise for a number by which no value of this dtype can be divided or shifted."""
        dtype = DType.I32 if self.dtype.is_int8 and fn in (Fn2.DIV, Fn2.MOD) else self.dtype
        rule = fn.domain(dtype)
        if rule is not None and isinstance(other, int) and not defined(fn, 1, other, dtype):
            raise SpecError(Code.INTEGER_UNDEFINED, author(), what=f"{fn.value} by {other}", rule=rule)

    def _map1(self, fn: Fn1) -> Tile:
        return self.tracer.wrap(map1(self.tracer.at(), fn, self.tracer.use(self)))

    def __add__(self, other: object) -> Tile:
        return self._map2(Fn2.ADD, other)

    def __radd__(self, other: object) -> Tile:
        return self._map2(Fn2.ADD, other, True)

    def __sub__(self, other: object) -> Tile:
        return self._map2(Fn2.SUB, other)

    def __rsub__(self, other: object) -> Tile:
        return self._map2(Fn2.SUB, other, True)

    def __mul__(self, other: object) -> Tile:
        return self._map2(Fn2.MUL, other)

    def __rmul__(self, other: object) -> Tile:
        return self._map2(Fn2.MUL, other, True)

    def __truediv__(self, other: object) -> Tile:
        return self._quotient("/", other)

    def __rtruediv__(self, other: object) -> Tile:
        return self._quotient("/", other, True)

    def __floordiv__(self, other: object) -> Tile:
        return self._quotient("//", other)

    def __mod__(self, other: object) -> Tile:
        return self._map2(Fn2.MOD, other)

    def __and__(self, other: object) -> Tile:
        return self._map2(Fn2.AND, other)

    def __or__(self, other: object) -> Tile:
        return self._map2(Fn2.OR, other)

    def __xor__(self, other: object) -> Tile:
        return self._map2(Fn2.XOR, other)

    def __lshift__(self, other: object) -> Tile:
        return self._map2(Fn2.SHL, other)

    def __rshift__(self, other: object) -> Tile:
        return self._map2(Fn2.SHR, other)

    def __lt__(self, other: object) -> Tile:
        return self._map2(Fn2.LT, other)

    def __le__(self, other: object) -> Tile:
        return self._map2(Fn2.LE, other)

    def __gt__(self, other: object) -> Tile:
        return self._map2(Fn2.LT, other, True)

    def __ge__(self, other: object) -> Tile:
        return self._map2(Fn2.LE, other, True)

    def __eq__(self, other: object) -> Tile:  # type: ignore[override]
        return self._map2(Fn2.EQ, other)

    def __ne__(self, other: object) -> Tile:  # type: ignore[override]
        return self._map2(Fn2.NE, other)

    def __rfloordiv__(self, other: object) -> Tile:
        return self._quotient("//", other, True)

    def __rmod__(self, other: object) -> Tile:
        return self._map2(Fn2.MOD, other, True)

    def __rand__(self, other: object) -> Tile:
        return self._map2(Fn2.AND, other, True)

    def __ror__(self, other: object) -> Tile:
        return self._map2(Fn2.OR, other, True)

    def __rxor__(self, other: object) -> Tile:
        return self._map2(Fn2.XOR, other, True)

    def __rlshift__(self, other: object) -> Tile:
        return self._map2(Fn2.SHL, other, True)

    def __rrshift__(self, other: object) -> Tile:
        return self._map2(Fn2.SHR, other, True)

    def __pow__(self, other: object) -> NoReturn:
        self._undefined("**", "x * x, L.sqrt(x), or L.exp(p * L.log(x)) for the power p of x > 0")

    def __rpow__(self, other: object) -> NoReturn:
        self._undefined("**", "L.exp2(x) for 2 ** x, L.exp(x * ln_of_base) for others")

    def __matmul__(self, other: object) -> NoReturn:
        self._undefined("@", "L.dot(a, b, over=axis)")

    __rmatmul__ = __matmul__

    def __divmod__(self, other: object) -> NoReturn:
        self._undefined("divmod", "a // b and a % b, of integers")

    def __round__(self, digits: object = None) -> NoReturn:
        self._undefined("round", "L.round(x), to even numbers where two are as near")

    def __getitem__(self, items: object) -> NoReturn:
        instead = 'param[v] in a stream, param.at(...), or L.table(x, "name").at(...) of a computed value'
        self._undefined("an index", instead)

    __setitem__ = no_assignment

    def __array_ufunc__(self, function: object, *_: object, **__: object) -> NoReturn:
        name = getattr(function, "__name__", "")
        instead = (
            "a Python number beside a tile"
            if name in ("add", "subtract", "multiply")
            else written_instead(name)
        )
        self._undefined(f"numpy's {name}", instead)

    @classmethod
    def __torch_function__(cls, function: object, *_: object, **__: object) -> NoReturn:
        name = getattr(function, "__name__", "")
        what = f"torch's {name}"
        raise SpecError(Code.TILE_OPERATOR, _above_torch(), what=what, instead=written_instead(name))

    def _python_number(self) -> NoReturn:
        self._undefined(
            "a Python number",
            "L.exp(x), L.sqrt(x), x.to(dtype) and the like: math and numpy see none; a count is a Static",
        )

    __float__ = __int__ = __index__ = __complex__ = _python_number

    def _python_length(self) -> NoReturn:
        self._undefined("len", "L.extent(axis), i32: a tile, as extents are known when a kernel runs")

    __len__ = _python_length

    @staticmethod
    def _undefined(what: str, instead: str) -> NoReturn:
        raise SpecError(Code.TILE_OPERATOR, author(), what=what, instead=instead)

    def __neg__(self) -> Tile:
        return self._map1(Fn1.NEG)

    def __invert__(self) -> Tile:
        return self._map1(Fn1.NOT)

    def __abs__(self) -> Tile:
        return self._map1(Fn1.ABS)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise SpecError(Code.TILE_HAS_NO_TRUTH, author())

    def __iter__(self) -> NoReturn:
        raise SpecError(Code.TILE_NOT_ITERABLE, author())

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or name in Tile.__slots__:  # as Python and its libraries probe
            raise AttributeError(name)
        raise NoSuchName(Code.TILE_OPERATOR, author(), what=f".{name}", instead=written_instead(name))

    def __repr__(self) -> str:
        return f"<%{self.value}: {self.type}>"


def _above_torch() -> Loc:
    """Return the author's line that called a function of torch, of which some are written in Python."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("torch.", "rlk.lang.")):
            break
        frame = frame.f_back
    assert frame is not None
    return Loc(frame.f_code.co_filename, frame.f_lineno)


class NoSuchName(SpecError, AttributeError):
    """A method or attribute that tiles, folds or L do not have; `hasattr` is false for it."""


@dataclass(slots=True)
class StreamVar:
    """The symbolic chunk of an open stream: `param[v]` is a parameter's chunk, `v.pos` its positions.

    Shapes: `v.pos` has the streamed axis.
    Dtypes: `v.pos` is i32: a position along the axis, for a ragged axis through the packed tensor.
    Raises: nothing of its own.

    >>> total = L.total()
    >>> for v in L.stream(V):
    ...     total.absorb(L.where(v.pos < 3, z[v], 0.0))
    >>> total.value
    [6, 8]
    """

    tracer: Tracer
    axis: Axis
    pos: Tile


class TensorArg:
    """A tensor parameter. Used as a value it is loaded whole; `[v]` loads the chunk of a stream.

    Shapes: the axes of its annotation, dims outermost first; `x[v]` has the chunk of v's axis.
    Dtypes: of its annotation.
    Raises: INDEX_WHAT for an index that is no stream variable, NO_SUCH_AXIS, AXIS_TWO_ROLES for a streamed
    axis that is loaded whole.

    >>> total = L.total()
    >>> for v in L.stream(V):
    ...     total.absorb(z[v] * 2.0)
    >>> total.value
    [20, 18]
    >>> x[0]
    [INDEX_WHAT]
    """

    __slots__ = ("_loaded", "decl", "tracer")

    def __init__(self, tracer: Tracer, decl: Decl) -> None:
        self.tracer, self.decl = tracer, decl
        self._loaded: dict[int, Tile] = {}

    @property
    def dtype(self) -> DType:
        """The dtype of the variant that is traced.

        Shapes: none: it is a fact of the trace.
        Dtypes: of its annotation.
        Raises: nothing.

        >>> h.dtype
        bf16
        """
        return self.decl.type.dtype

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of its annotation, dims outermost first.

        Shapes: none: it is a fact of the trace.
        Dtypes: none.
        Raises: nothing.

        >>> z.axes
        T, V
        """
        return self.decl.type.axes

    __setitem__ = no_assignment

    def __getitem__(self, items: StreamVar | tuple[StreamVar, ...]) -> Tile:
        windows: dict[Axis, Tile] = {}
        for v in items if isinstance(items, tuple) else (items,):
            if not isinstance(v, StreamVar):
                got = f"the tensor {v.decl.name}" if isinstance(v, TensorArg) else v
                raise SpecError(Code.INDEX_WHAT, author(), what=self.decl.name, got=got)
            windows[v.axis] = v.pos
        for axis in windows:
            if axis not in self.axes:
                names = ", ".join(map(str, self.axes))
                raise SpecError(Code.NO_SUCH_AXIS, author(), what=self.decl.name, axis=axis, axes=names)
        return self.at(*(windows.get(axis, axis) for axis in self.axes))

    def at(
        self, *index: Tile | TensorArg | Axis | int, fill: Tile | Number | None = None,
        when: Tile | None = None, inside: bool | Axis | tuple[Axis, ...] = False,
    ) -> Tile:  # fmt: skip
        """Load at one index per dim: an axis stands for its own positions, an integer tile gathers.

        An out-of-bounds index reads nothing and gives `fill` (default 0; of a tile, the element there),
        and so does an element where `when` is false. inside: promise that no index (True), or none along one
        dim or a tuple of dims, is out of bounds where `when` is true and the element of the stream exists.

        Shapes: the axes of all indices together.
        Dtypes: of the parameter; indices are i32 or i64, `when` is boolean.
        Raises: INDEX_COUNT, INDEX_WHAT, INSIDE_WHAT, AXIS_TWO_ROLES, NO_SUCH_AXIS for another tensor's dim in
        `inside`, DTYPE_MIX for a fill of another dtype.

        >>> x.at(row, N)                                # a gather of rows
        [[4, 0.25, -1, 2], [1, -2, 3, 0.5]]
        >>> x.at(T, n, fill=-1.0)                       # of columns; [T, N] indices, some of them too large
        [[1, -2, 3, 0.5], [-1, -1, -1, -1]]
        >>> x.at(row)
        [INDEX_COUNT]
        """
        if len(index) != len(self.axes):
            got = len(index)
            raise SpecError(Code.INDEX_COUNT, author(), what=self.decl.name, dims=len(self.axes), got=got)
        match inside:
            case bool():
                trusted = self.axes if inside else ()
            case Axis():
                trusted = (inside,)
            case tuple():
                trusted = inside
            case _:
                raise SpecError(Code.INSIDE_WHAT, author(), what=self.decl.name, got=inside)
        for axis in trusted:
            if axis not in self.axes:
                names = ", ".join(map(str, self.axes))
                raise SpecError(Code.NO_SUCH_AXIS, author(), what=self.decl.name, axis=axis, axes=names)
        b = self.tracer.at()
        values: list[Value] = []
        guard: Value | None = None if when is None else self.tracer.use(when)
        tiles = (i.whole() if isinstance(i, TensorArg) else i for i in index)
        for i, dim in zip(tiles, self.axes, strict=True):
            value = self._index(i, dim)
            values.append(value)
            if isinstance(i, Tile) and dim not in trusted and not self._is_position(value, dim):
                found = b.map2(
                    Fn2.AND,
                    b.map2(Fn2.LE, b.const(0, i.dtype), value),
                    b.map2(Fn2.LT, value, self._extent(dim, i.dtype)),
                )
                guard = found if guard is None else b.map2(Fn2.AND, guard, found)
        filled = None if fill is None else lift(self.tracer, fill, self.dtype)
        return self.tracer.wrap(b.let(Load(self.decl.name, tuple(values), guard, filled), self.decl.name))

    def _is_position(self, value: Value, dim: Axis) -> bool:
        """Return whether a value is the position along a dim itself, which is in bounds."""
        return self.tracer.builder.node(value) == Pos(dim)

    def _extent(self, dim: Axis, dtype: DType) -> Value:
        b = self.tracer.builder
        extent = b.let(Extent(dim))
        return extent if dtype is DType.I32 else b.let(Cast(extent, dtype))

    def _index(self, index: Tile | Axis | int, dim: Axis) -> Value:
        b = self.tracer.builder
        match index:
            case Tile() if index.dtype.is_int:
                return self.tracer.use(index)
            case Axis():
                if index in self.tracer.streamed():
                    raise SpecError(Code.AXIS_TWO_ROLES, author(), axis=index)
                return b.let(Pos(index), index.name.lower())
            case int():
                return b.i32(index)
            case _:
                raise SpecError(Code.INDEX_WHAT, author(), what=self.decl.name, got=index)

    def whole(self) -> Tile:
        """Load the tensor whole, once for each open stream; arithmetic does it by itself.

        Shapes: the axes of its annotation.
        Dtypes: of its annotation.
        Raises: AXIS_TWO_ROLES inside a stream of one of its axes.

        >>> x.whole() + 1.0
        [[2, -1, 4, 1.5], [5, 1.25, 0, 3]]
        """
        key = self.tracer.scope.id
        if key not in self._loaded:
            self._loaded[key] = self.at(*self.axes)
        return self._loaded[key]

    def __getattr__(self, name: str) -> object:
        return getattr(self.whole(), name)


class ScalarArg:
    """A scalar parameter in a trace."""

    @staticmethod
    def load(tracer: Tracer, decl: Decl) -> Tile:
        return tracer.wrap(tracer.builder.let(Param(decl.name), decl.name))


def lift(tracer: Tracer, x: object, dtype: DType, what: str = "arithmetic") -> Value:
    """Return the value of a tile, a tensor parameter or a Python number (of the given dtype)."""
    match x:
        case Tile():
            return tracer.use(x)
        case TensorArg():
            return tracer.use(x.whole())
        case float() if not dtype.is_float:
            raise SpecError(Code.DTYPE_MIX, author(), what="arithmetic", a=dtype, b=f"the float {x}")
        case int() if not holds(dtype, x):
            raise SpecError(Code.DTYPE_MIX, author(), what="arithmetic", a=dtype, b=f"the number {x}")
        case bool() | int() | float():
            narrow = dtype in (DType.F16, DType.BF16) or dtype.is_storage
            kind = (DType.F32 if dtype.is_float else DType.I32) if narrow else dtype
            made = tracer.builder.const(x, kind)
            return made if kind is dtype else tracer.builder.let(Cast(made, dtype))
        case Folding():
            raise fold_as_value(x)
        case None:
            instead = "an optional input is None where a call leaves it out: write if x is not None"
            raise SpecError(Code.VALUE_WANTED, author(), what=what, got="None", instead=instead)
        case _:
            instead = "use a parameter of the spec, a tile made of some, or a Python number"
            if isinstance(x, Share):
                instead = f"a number of the kernel is L.extent({x.axis}) // n; {x} is for Axis(extent=)"
            if isinstance(x, Axis):
                instead = f"write L.pos({x}) for the index along it, L.extent({x}) for its length"
            if isinstance(x, tuple | list):
                instead = "name each: first, second = top.values, and L.out(first=first, second=second)"
            got = f"a {type(x).__name__}"
            raise SpecError(Code.VALUE_WANTED, author(), what=what, got=got, instead=instead)


def as_tile(tracer: Tracer, x: object, dtype: DType | None = None, what: str = "arithmetic") -> Tile:
    """Return x as a tile, numbers in the given dtype; without one, a float is f32 and an integer an error."""
    if isinstance(x, Tile):
        tracer.use(x)
        return x
    if isinstance(x, TensorArg):
        return x.whole()
    if dtype is None and isinstance(x, int):
        raise SpecError(Code.DTYPE_OF_NUMBERS, author(), what=what, value=x)
    return tracer.wrap(lift(tracer, x, dtype or DType.F32, what))


def _forward(name: str) -> object:
    """Make a binary operator of a tensor parameter act on its loaded tile."""

    def operate(self: TensorArg, *args: object) -> object:
        return getattr(self.whole(), name)(*args)

    return operate


for _name in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod and rand or ror xor rxor lshift "
    "rlshift rshift rrshift pow rpow matmul rmatmul divmod round float int index complex len lt le gt ge eq "
    "ne neg invert abs bool iter"
).split():
    setattr(TensorArg, f"__{_name}__", _forward(f"__{_name}__"))
for _name in ("__torch_function__", "__array_ufunc__"):  # which torch and NumPy look for in the class
    setattr(TensorArg, _name, getattr(Tile, _name))
