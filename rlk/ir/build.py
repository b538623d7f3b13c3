"""Build blocks of tile IR: numbers values, infers types, broadcasts by axis name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlk.errors import NOWHERE, Code, Loc, SpecError
from rlk.ir.dims import Axis, union, without
from rlk.ir.monoid import Kind
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Check,
    Combine,
    Const,
    Decl,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Fold,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    MathFn,
    MathModel,
    Merge,
    Node,
    Param,
    Pos,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
    const_bits,
)
from rlk.ir.types import NONE, DType, TileType, TupleType, Type


@dataclass(slots=True)
class Builder:
    """Appends nodes to the innermost open block."""

    params: dict[str, Decl] = field(default_factory=dict)
    types: dict[Value, Type] = field(default_factory=dict)
    next: Value = 0
    loc: Loc = NOWHERE
    open: list[list[Let]] = field(default_factory=lambda: [[]])

    # --- values ----------------------------------------------------------------------------------------------

    def fresh(self, type: Type) -> Value:
        """Return a new value of a type without a node: an argument of a region."""
        value = self.next
        self.next += 1
        self.types[value] = type
        return value

    def let(self, node: Node, name: str = "") -> Value:
        """Append value = node and return the value."""
        type = infer(node, self.types, self.params, self.loc)
        value = self.fresh(type)
        self.open[-1].append(Let(value, node, type, name, self.loc))
        return value

    def tile(self, value: Value) -> TileType:
        """Return the tile type of a value."""
        type = self.types[value]
        assert isinstance(type, TileType), (value, type)
        return type

    @contextmanager
    def region(self) -> Iterator[list[Let]]:
        """Open a block; the list it yields is filled while it is open."""
        lets: list[Let] = []
        self.open.append(lets)
        try:
            yield lets
        finally:
            self.open.pop()

    def body(self) -> Block:
        """Return what was appended at the top level."""
        return Block((), tuple(self.open[0]))

    # --- shorthands ------------------------------------------------------------------------------------------

    def const(self, value: float | int | bool, dtype: DType) -> Value:
        node = Const(const_bits(value, dtype))
        made = self.fresh(TileType(dtype))
        self.open[-1].append(Let(made, node, self.types[made], "", self.loc))
        return made

    def f32(self, value: float) -> Value:
        return self.const(value, DType.F32)

    def i32(self, value: int) -> Value:
        return self.const(value, DType.I32)

    def map1(self, fn: Fn1, x: Value, name: str = "") -> Value:
        return self.let(Map1(fn, x), name)

    def map2(self, fn: Fn2, a: Value, b: Value, name: str = "") -> Value:
        return self.let(Map2(fn, a, b), name)

    def math(self, fn: MathFn, x: Value, model: MathModel, name: str = "") -> Value:
        return self.let(Math(fn, x, model), name)

    def select(self, cond: Value, a: Value, b: Value, name: str = "") -> Value:
        return self.let(Select(cond, a, b), name)

    def add(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.ADD, a, b, name)

    def sub(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.SUB, a, b, name)

    def mul(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.MUL, a, b, name)

    def max(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.MAX, a, b, name)

    def min(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.MIN, a, b, name)

    def reduce(self, fn: Combine, x: Value, over: Axis, order: object = None, name: str = "") -> Value:
        return self.let(Reduce(fn, x, over, order), name)  # type: ignore[arg-type]

    def results(self, of: Value, names: tuple[str, ...] = ()) -> tuple[Value, ...]:
        """Project every value that a node yields."""
        type = self.types[of]
        assert isinstance(type, TupleType)
        hints = names or ("",) * len(type.items)
        return tuple(self.let(Result(of, i), hints[i]) for i in range(len(type.items)))


def infer(node: Node, types: dict[Value, Type], params: dict[str, Decl], loc: Loc = NOWHERE) -> Type:
    """Return the type that a node computes; raise a located SpecError when its operands do not fit."""

    def tile(value: Value) -> TileType:
        type = types[value]
        if not isinstance(type, TileType):
            raise SpecError(Code.TYPE_WRONG, loc, value=value, declared="a tile", computed=type)
        return type

    def joined(values: tuple[Value, ...]) -> tuple[Axis, ...]:
        return union(*(tile(v).axes for v in values))

    def same(what: str, a: Value, b: Value) -> DType:
        if tile(a).dtype is not tile(b).dtype:
            raise SpecError(Code.DTYPE_MIX, loc, what=what, a=tile(a), b=tile(b))
        return tile(a).dtype

    def want(what: str, value: Value, ok: bool, wanted: str) -> None:
        if not ok:
            raise SpecError(Code.DTYPE_WANTED, loc, what=what, wanted=wanted, got=tile(value))

    match node:
        case Param(name=name):
            return _declared(params, name, loc).type
        case Const():
            raise ValueError("a constant's dtype is not inferred; use Builder.const")
        case Pos(axis=axis):
            return TileType(DType.I32, (axis,))
        case Extent():
            return TileType(DType.I32)
        case Map1(fn=fn, x=x):
            if fn in (Fn1.SQRT, Fn1.FLOOR, Fn1.ISNAN):
                want(fn.value, x, tile(x).dtype is DType.F32, "f32")
            return TileType(DType.BOOL if fn is Fn1.ISNAN else tile(x).dtype, tile(x).axes)
        case Map2(fn=fn, a=a, b=b):
            dtype = same(fn.value, a, b)
            want(fn.value, a, _accepts(fn, dtype), "f32 or integers" if not fn.compares else "numbers")
            return TileType(DType.BOOL if fn.compares else dtype, joined((a, b)))
        case Math(fn=fn, x=x):
            want(fn.value, x, tile(x).dtype is DType.F32, "f32")
            return tile(x)
        case Fma(a=a, b=b, c=c):
            for v in (a, b, c):
                want("fma", v, tile(v).dtype is DType.F32, "f32")
            return TileType(DType.F32, joined((a, b, c)))
        case Select(cond=cond, a=a, b=b):
            want("where", cond, tile(cond).dtype is DType.BOOL, "a bool condition")
            return TileType(same("where", a, b), joined((cond, a, b)))
        case Cast(x=x, dtype=dtype):
            return TileType(dtype, tile(x).axes)
        case Bits(x=x, dtype=dtype):
            want("bits", x, tile(x).dtype.bytes == dtype.bytes, f"a dtype of {dtype.bytes} bytes")
            return TileType(dtype, tile(x).axes)
        case Load(param=param, index=index, guard=guard, fill=fill):
            decl = _declared(params, param, loc)
            _count(param, decl, index, loc)
            if fill is not None and tile(fill).dtype is not decl.type.dtype:
                raise SpecError(Code.DTYPE_MIX, loc, what=f"fill of {param}", a=decl.type.dtype, b=tile(fill).dtype)
            extra = tuple(v for v in (guard, fill) if v is not None)
            return TileType(decl.type.dtype, joined(index + extra))
        case Store(param=param, index=index, value=value):
            decl = _declared(params, param, loc)
            _count(param, decl, index, loc)
            if decl.role not in (Role.OUT, Role.WORK):
                raise SpecError(Code.STORE_TARGET, loc, name=param)
            if decl.type.dtype is not tile(value).dtype:
                raise SpecError(
                    Code.DTYPE_MIX, loc, what=f"store to {param}", a=decl.type.dtype, b=tile(value).dtype
                )
            return NONE
        case Check(bad=bad):
            want("check", bad, tile(bad).dtype is DType.BOOL, "a bool condition")
            return NONE
        case Reduce(fn=fn, x=x, over=over, order=order):
            if over not in tile(x).axes:
                raise SpecError(Code.NO_SUCH_AXIS, loc, what=tile(x), axis=over, axes=_names(tile(x).axes))
            if fn is Combine.ADD and tile(x).dtype.is_float and order is None:
                raise SpecError(Code.FLOAT_SUM_NEEDS_TREE, loc, axis=over)
            return TileType(tile(x).dtype, without(tile(x).axes, over))
        case Merge(states=states, over=over):
            for s in states:
                if over not in tile(s).axes:
                    raise SpecError(Code.NO_SUCH_AXIS, loc, what=tile(s), axis=over, axes=_names(tile(s).axes))
            return TupleType(tuple(TileType(tile(s).dtype, without(tile(s).axes, over)) for s in states))
        case Loop(types=carried):
            return TupleType(carried)
        case Result(of=of, index=i):
            type = types[of]
            if not isinstance(type, TupleType) or i >= len(type.items):
                count = len(type.items) if isinstance(type, TupleType) else 1
                raise SpecError(Code.RESULT_INDEX, loc, index=i, value=of, count=count)
            return type.items[i]
        case Stream(axis=axis, folds=folds, begin=begin, end=end, when=when):
            bounds = joined(tuple(v for v in (begin, end, when) if v is not None))
            return TupleType(tuple(t for f in folds for t in _fold_types(f, axis, bounds, types)))


def _fold_types(fold: Fold, axis: Axis, bounds: tuple[Axis, ...], types: dict[Value, Type]) -> list[TileType]:
    """Return the types of a fold's state: the axes of its inputs and of the stream's bounds, not the streamed one."""
    tiles = [t for t in (types[v] for v in fold.inputs) if isinstance(t, TileType)]
    rows = without(union(*(t.axes for t in tiles), bounds), axis)
    match fold.monoid.kind:
        case Kind.TOTAL:
            return [TileType(tiles[0].dtype, rows)]
        case Kind.SOFTMAX_SUM:
            return [TileType(DType.F32, rows) for _ in fold.monoid.state]
        case Kind.ARGMAX:
            return [TileType(DType.F32, rows), TileType(DType.I32, rows)]


def _names(axes: tuple[Axis, ...]) -> str:
    return ", ".join(map(str, axes)) or "none"


def _declared(params: dict[str, Decl], name: str, loc: Loc) -> Decl:
    if name not in params:
        raise SpecError(Code.PARAM_UNKNOWN, loc, name=name)
    return params[name]


def _count(param: str, decl: Decl, index: tuple[Value, ...], loc: Loc) -> None:
    if len(index) != len(decl.type.axes):
        raise SpecError(Code.INDEX_COUNT, loc, what=param, dims=len(decl.type.axes), got=len(index))


def _accepts(fn: Fn2, dtype: DType) -> bool:
    """Return whether an exact function of two operands is defined on a dtype (16-bit floats must be cast first)."""
    match fn:
        case Fn2.ADD | Fn2.SUB | Fn2.MUL | Fn2.MAX | Fn2.MIN | Fn2.DIV:
            return dtype is DType.F32 or dtype.is_int
        case Fn2.MOD | Fn2.SHL | Fn2.SHR:
            return dtype.is_int
        case Fn2.AND | Fn2.OR | Fn2.XOR:
            return dtype.is_int or dtype is DType.BOOL
        case Fn2.MULHI:
            return dtype is DType.U32
        case Fn2.LT | Fn2.LE | Fn2.EQ | Fn2.NE:
            return True
