"""Type inference for nodes, and checks of their operands."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache

from rlk.errors import NOWHERE, Code, Loc, SpecError
from rlk.ir.dims import Axis, union, without
from rlk.ir.dotmodel import FACTORS, DotModel
from rlk.ir.monoid import Kind
from rlk.ir.nodes import (
    Bits,
    Cast,
    Check,
    Combine,
    Const,
    Decl,
    Dot,
    Elementwise,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Fold,
    Keep,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    Merge,
    Node,
    Param,
    Philox,
    Pos,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
)
from rlk.ir.types import NONE, DType, NoType, TileType, TupleType, Type

EVERY = frozenset(DType)
INTS = frozenset(d for d in DType if d.is_int)
F32 = frozenset({DType.F32})
NUMBERS = F32 | INTS
STORAGE = frozenset(d for d in DType if d.is_storage)


def infer(node: Node, types: Mapping[Value, Type], params: Mapping[str, Decl], loc: Loc = NOWHERE) -> Type:
    """Return the type that a node computes; raise a located SpecError when its operands do not fit."""
    known = _Known(types, params, loc)
    match node:
        case Param(name=name):
            return known.declared(name).type
        case Const():
            raise ValueError("a constant's dtype is not inferred; use Builder.const")
        case Pos(axis=axis):
            return TileType(DType.I32, (axis,))
        case Extent():
            return TileType(DType.I32)
        case Map1() | Map2() | Math() | Fma() | Select() | Cast() | Bits():
            return _elementwise(node, known)
        case Philox(counter=counter, key=key):
            return _philox(counter, key, known)
        case Keep(x=x):
            return known.tile(x)
        case Load() | Store() | Check():
            return _memory(node, known)
        case Reduce(fn=fn, x=x, over=over, order=order):
            reduced = known.reduced(x, over)
            _combines(fn, x, known)
            if fn is Combine.ADD and reduced.dtype.is_float and order is None:
                raise SpecError(Code.FLOAT_SUM_NEEDS_TREE, loc, axis=over)
            return reduced
        case Dot():
            return _dot(node, known)
        case Merge(states=states, over=over):
            return TupleType(tuple(known.reduced(s, over) for s in states))
        case Loop(types=carried):
            return TupleType(carried)
        case Result(of=of, index=i):
            type = types[of]
            items = type.items if isinstance(type, TupleType) else ()
            if i >= len(items):
                raise SpecError(Code.RESULT_INDEX, loc, index=i, value=of, count=len(items))
            return items[i]
        case Stream(axis=axis, folds=folds, when=when, types=carried) as stream:
            numbers = (stream.begin, stream.end, stream.since, stream.until, stream.after, stream.row)
            known.integers("the bounds of a stream", *(v for v in numbers if v is not None))
            for name, condition in (("when", when), ("kept", stream.kept)):
                known.condition(name, condition)
            bounds = known.joined(*(v for v in (*numbers[:5], when) if v is not None))
            for held in carried:
                if not {*bounds} <= {*held.axes}:
                    rows = TileType(held.dtype, bounds)
                    raise SpecError(Code.CARRY_TYPE, loc, held=held, given=f"{rows}, as the segments are")
            places = [known if f.loc == NOWHERE else replace(known, loc=f.loc) for f in folds]
            made = [_fold_types(f, axis, bounds, at) for f, at in zip(folds, places, strict=True)]
            for f, types_of_state, at in zip(folds, made, places, strict=True):
                _goes_on(f, axis, types_of_state, at)
            folded = (t for f, found in zip(folds, made, strict=True) for t in found * (1 + f.open))
            return TupleType((*folded, *carried))


@dataclass(slots=True)  # not frozen: one is made for every node, and that takes four times as long
class _Known:
    """The values and parameters that a node may refer to, and the place for error messages."""

    types: Mapping[Value, Type]
    params: Mapping[str, Decl]
    loc: Loc

    def declared(self, name: str) -> Decl:
        if name not in self.params:
            raise SpecError(Code.PARAM_UNKNOWN, self.loc, name=name)
        return self.params[name]

    def indexed(self, name: str, index: tuple[Value, ...]) -> Decl:
        """Return a parameter that is given one index per dim."""
        decl = self.declared(name)
        if len(index) != len(decl.type.axes):
            raise SpecError(Code.INDEX_COUNT, self.loc, what=name, dims=len(decl.type.axes), got=len(index))
        self.integers(f"an index of {name}", *index)
        return decl

    def tile(self, value: Value) -> TileType:
        type = self.types[value]
        if not isinstance(type, TileType):
            raise SpecError(Code.TYPE_WRONG, self.loc, value=value, declared="a tile", computed=type)
        return type

    def joined(self, *values: Value) -> tuple[Axis, ...]:
        axes: tuple[Axis, ...] = ()
        for value in values:
            others = self.tile(value).axes
            if others and others != axes:  # most often they are the same, or none
                axes = union(axes, others)
        return axes

    def same(self, what: str, a: Value, b: Value) -> DType:
        if self.tile(a).dtype is not self.tile(b).dtype:
            raise SpecError(Code.DTYPE_MIX, self.loc, what=what, a=self.tile(a), b=self.tile(b))
        return self.tile(a).dtype

    def holds(self, what: str, value: Value, dtype: DType) -> None:
        """Raise unless a value has the dtype that a parameter is declared with."""
        if self.tile(value).dtype is not dtype:
            raise SpecError(Code.DTYPE_MIX, self.loc, what=what, a=dtype, b=self.tile(value).dtype)

    def want(self, what: str, value: Value, ok: bool, wanted: str) -> None:
        if not ok:
            raise SpecError(Code.DTYPE_WANTED, self.loc, what=what, wanted=wanted, got=self.tile(value))

    def one_of(self, what: str, value: Value, wanted: AbstractSet[DType]) -> None:
        """Raise unless a value has one of these dtypes."""
        if self.tile(value).dtype not in wanted:
            self.want(what, value, False, " or ".join(d.value for d in DType if d in wanted))

    def condition(self, what: str, value: Value | None) -> None:
        if value is not None:
            self.want(what, value, self.tile(value).dtype is DType.BOOL, "a bool condition")

    def integers(self, what: str, *values: Value) -> None:
        for value in values:
            self.want(what, value, self.tile(value).dtype.is_int, "integers")

    def reduced(self, value: Value, over: Axis) -> TileType:
        """Return the type of a value without one of its axes; raise if it has no such axis."""
        tile = self.tile(value)
        if over not in tile.axes:
            names = ", ".join(map(str, tile.axes)) or "none"
            raise SpecError(Code.NO_SUCH_AXIS, self.loc, what=tile, axis=over, axes=names)
        return TileType(tile.dtype, without(tile.axes, over))


def _elementwise(node: Elementwise, known: _Known) -> TileType:
    tile = known.tile
    match node:
        case Map1(fn=fn, x=x):
            type = tile(x)
            if type.dtype not in _accepted1(fn):
                known.one_of(fn.value, x, _accepted1(fn))
            return TileType(DType.BOOL, type.axes) if fn is Fn1.ISNAN else type
        case Map2(fn=fn2, a=a, b=b):
            dtype = tile(a).dtype
            if tile(b).dtype is not dtype or dtype not in _accepted2(fn2):
                known.same(fn2.value, a, b)
                known.one_of(fn2.value, a, _accepted2(fn2))
            return TileType(DType.BOOL if fn2.compares else dtype, known.joined(a, b))
        case Math(fn=math, x=x):
            known.want(math.value, x, tile(x).dtype is DType.F32, "f32")
            return tile(x)
        case Fma(a=a, b=b, c=c):
            for v in (a, b, c):
                known.want("fma", v, tile(v).dtype is DType.F32, "f32")
            return TileType(DType.F32, known.joined(a, b, c))
        case Select(cond=cond, a=a, b=b):
            known.condition("where", cond)
            return TileType(known.same("where", a, b), known.joined(cond, a, b))
        case Cast(x=x, dtype=dtype):
            for one, other in ((tile(x).dtype, dtype), (dtype, tile(x).dtype)):
                through = DType.F32 if one.is_float8 else DType.I32
                fits = not one.is_storage or other in (one, through)
                known.want(f"a cast to {dtype}", x, fits, f"a cast through {through}")
            return TileType(dtype, tile(x).axes)
        case Bits(x=x, dtype=dtype):
            fits = tile(x).dtype.bytes == dtype.bytes and not {tile(x).dtype, dtype} & STORAGE
            known.want("bits", x, fits, f"a dtype of {dtype.bytes} bytes, none of storage")
            return TileType(dtype, tile(x).axes)


def _philox(counter: tuple[Value, ...], key: tuple[Value, ...], known: _Known) -> TupleType:
    """Return the type of a block of random words: four u32, over the axes of counter and key."""
    if (len(counter), len(key)) != (4, 2):
        got = f"{len(counter)} and {len(key)} words"
        raise SpecError(
            Code.DTYPE_WANTED, known.loc, what="philox", wanted="a counter of 4 words, a key of 2", got=got
        )
    for word in (*counter, *key):
        known.want("philox", word, known.tile(word).dtype is DType.U32, "u32")
    return TupleType((TileType(DType.U32, known.joined(*counter, *key)),) * 4)


def _memory(node: Load | Store | Check, known: _Known) -> TileType | NoType:
    match node:
        case Load(param=param, index=index, guard=guard, fill=fill):
            decl = known.indexed(param, index)
            known.condition(f"guard of {param}", guard)
            if fill is not None:
                known.holds(f"fill of {param}", fill, decl.type.dtype)
            extra = tuple(v for v in (guard, fill) if v is not None)
            return TileType(decl.type.dtype, known.joined(*index, *extra))
        case Store(param=param, index=index, value=value, guard=guard):
            decl = known.indexed(param, index)
            known.condition(f"guard of {param}", guard)
            if decl.role not in (Role.OUT, Role.WORK):
                raise SpecError(Code.STORE_TARGET, known.loc, name=param)
            known.holds(f"store to {param}", value, decl.type.dtype)
            return NONE
        case Check(bad=bad):
            known.condition("check", bad)
            return NONE


def _dot(node: Dot, known: _Known) -> TileType:
    """Return the type of a contraction over the other axes of both factors, batch axes once: f32, or i32."""
    a, b = known.reduced(node.a, node.over), known.reduced(node.b, node.over)
    if a.dtype is not b.dtype:
        raise SpecError(Code.DTYPE_MIX, known.loc, what="dot", a=known.tile(node.a), b=known.tile(node.b))
    known.one_of("dot", node.a, FACTORS[node.model])
    each = node.each or ()
    for axis in each:
        if axis not in a.axes or axis not in b.axes:
            factor = known.tile(node.a if axis not in a.axes else node.b)
            names = ", ".join(map(str, factor.axes))
            raise SpecError(Code.NO_SUCH_AXIS, known.loc, what=factor, axis=axis, axes=names)
    shared = [axis for axis in a.axes if axis in b.axes and axis not in (node.over.pieces, *each)]
    if shared:
        raise SpecError(Code.DOT_SHARES_AXIS, known.loc, axis=shared[0])
    axes = union(a.axes, b.axes)
    if node.onto is not None:
        onto = known.tile(node.onto)
        fits = onto.dtype is DType.F32 and set(onto.axes) == set(axes)
        known.want("onto", node.onto, fits, f"f32 over {', '.join(map(str, axes))}")
    return TileType(DType.I32 if node.model is DotModel.INTEGER else DType.F32, axes)


def _combines(fn: Combine, x: Value, known: _Known) -> None:
    wanted = {DType.BOOL, *INTS} if fn is Combine.OR else NUMBERS
    known.one_of(fn.value, x, wanted)


def _fold_types(fold: Fold, axis: Axis, bounds: tuple[Axis, ...], known: _Known) -> list[TileType]:
    """Return the types of a fold's state: over the axes of its inputs and of the stream's bounds.

    A payload that is contracted adds its own axes to those of the scores.
    """
    if axis.leaf != "chunk" and fold.monoid.is_softmax:
        return _online_types(fold, axis, bounds, known)
    rows = without(union(known.joined(*fold.inputs), bounds), axis)
    if fold.kept:
        rows = union(rows, kept_axes(axis))
    accepted = {Kind.TOTAL: NUMBERS, Kind.LARGEST: NUMBERS, Kind.TOP: frozenset({DType.I32})}
    wanted = accepted.get(fold.monoid.kind, F32)
    if fold.monoid.contracts:
        return [_products(fold, rows, known)]
    for x in fold.inputs:
        known.one_of(fold.monoid.kind.value, x, wanted)
    match fold.monoid.kind:
        case Kind.TOTAL | Kind.LARGEST:
            return [TileType(known.tile(fold.inputs[0]).dtype, rows)]
        case Kind.SOFTMAX_SUM | Kind.POWER_SUM:
            return [TileType(DType.F32, rows) for _ in fold.monoid.state]
        case Kind.ARGMAX:
            return [TileType(DType.F32, rows), TileType(DType.I32, rows)]
        case Kind.TOP:
            return [TileType(DType.I32, rows)] * 3
        case Kind.TOP_K:
            k = fold.monoid.count
            return [TileType(DType.F32, rows)] * k + [TileType(DType.I32, rows)] * k


def _goes_on(fold: Fold, axis: Axis, state: list[TileType], known: _Known) -> None:
    """Raise unless a fold continues from states of its own type, on an axis whose leaf is the piece."""
    given = [known.tile(v) for v in fold.after]
    fits = not given or [(t.dtype, {*t.axes}) for t in given] == [(t.dtype, {*t.axes}) for t in state * 2]
    if not fits or ((given or fold.open) and axis.leaf != "piece"):
        held, found = (", ".join(map(str, types)) for types in (state * 2, given))
        raise SpecError(Code.LOOP_TYPES, known.loc, carried=held, yielded=found or f"leaf={axis.leaf}")


def kept_axes(axis: Axis) -> tuple[Axis, ...]:
    """Return the axes of a kept fold's states beside its rows: pieces and lanes of the axis."""
    pieces = (axis.pieces,) if axis.split is not None or axis.piece is not None else ()
    return (*pieces, *((axis.lanes,) if (axis.chunk or 1) > 1 else ()))


def _online_types(fold: Fold, axis: Axis, bounds: tuple[Axis, ...], known: _Known) -> list[TileType]:
    score, *payloads = fold.inputs
    known.want(fold.monoid.kind.value, score, known.tile(score).dtype is DType.F32, "f32")
    rows = without(union(known.tile(score).axes, bounds), axis)
    types = [TileType(DType.F32, rows)] * (3 if fold.monoid.centred else 2)
    for x in payloads:
        other = [a for a in known.tile(x).axes if a not in (*rows, axis)]
        wanted = FACTORS[DotModel.CHAIN16] if other else F32
        known.one_of(fold.monoid.kind.value, x, wanted)
        types.append(TileType(DType.F32, union(rows, tuple(other))))
    return types


def _products(fold: Fold, rows: tuple[Axis, ...], known: _Known) -> TileType:
    """Return the type of a sum of products: f32; its first factors are rounded to the dtype of the second."""
    held, other, *times = fold.inputs
    wanted = FACTORS[DotModel.CHAIN16]
    for x in (held, *times):
        known.want(fold.monoid.kind.value, x, known.tile(x).dtype is DType.F32, "f32")
    known.one_of(fold.monoid.kind.value, other, wanted)
    return TileType(DType.F32, rows)


@cache
def _accepted1(fn: Fn1) -> frozenset[DType]:
    """Return the dtypes on which a function of one operand is defined."""
    match fn:
        case Fn1.SQRT | Fn1.FLOOR | Fn1.ISNAN:
            return F32
        case Fn1.NEG | Fn1.ABS:
            return EVERY - {DType.BOOL} - STORAGE
        case Fn1.NOT:
            return INTS | {DType.BOOL}


@cache
def _accepted2(fn: Fn2) -> frozenset[DType]:
    """Return the dtypes on which a function of two operands is defined (16-bit floats must be cast first)."""
    match fn:
        case Fn2.ADD | Fn2.SUB | Fn2.MUL | Fn2.MAX | Fn2.MIN | Fn2.DIV:
            return NUMBERS
        case Fn2.MOD | Fn2.SHL | Fn2.SHR:
            return INTS
        case Fn2.AND | Fn2.OR | Fn2.XOR:
            return INTS | {DType.BOOL}
        case Fn2.MULHI:
            return frozenset({DType.U32})
        case Fn2.LT | Fn2.LE | Fn2.EQ | Fn2.NE:
            return EVERY - STORAGE
