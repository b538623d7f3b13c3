"""Reductions of a whole dynamic axis: a stream of its chunks, which computes what is reduced again."""

from __future__ import annotations

from typing import TypeVar

from rlk.errors import Code, SpecError
from rlk.ir.dims import Axis, Part
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import Combine, Keep, Let, Loop, Result, Stream, Value, operands, with_operands
from rlk.ir.tree import Order
from rlk.ir.types import DType, TileType, TupleType, Type
from rlk.lang.folds import Argmax, Total, _Fold
from rlk.lang.trace import Tile, Tracer

F = TypeVar("F", Total, Argmax, "_Largest")


def is_by_chunks(axis: Axis) -> bool:
    """Return whether a reduction over a whole axis takes it chunk by chunk: no tile is as long as it is."""
    return axis.dynamic and axis.chunk is not None and axis.part is Part.ALL and axis.over is None


def by_chunks(t: Tracer, fn: Combine, x: Tile, over: Axis, tree: Order | None) -> Tile:
    """Return a reduction of a tile along a dynamic axis, as a stream of it.

    Sums are those of `L.total`: the tree inside a chunk, chunks (and pieces) as the axis says. Largest and
    smallest elements and `any` have no order.
    """
    match fn, x.dtype:
        case Combine.ADD, _ if tree is None and x.dtype.is_float:
            raise SpecError(Code.FLOAT_SUM_NEEDS_TREE, t.here(), axis=over)
        case Combine.ADD, _:
            total = Total() if tree is None else Total(lanes=tree)
            return _streamed(t, x, over, total).value
        case Combine.OR, DType.BOOL:
            return _largest(t, x.to(DType.I32), over) > 0
        case Combine.MAX, _:
            return _largest(t, x, over)
        case Combine.MIN, DType.F32:
            return -_largest(t, -x, over)
        case _:
            return ~_largest(t, ~x, over)  # ~x is in the opposite order, without exception


class _Largest(_Fold):
    """The largest number; -0.0 < +0.0, a NaN is -inf."""

    what = "max"

    def absorb(self, x: Tile) -> None:
        """Absorb one chunk of numbers."""
        self._absorb(Monoid(Kind.LARGEST), x)

    @property
    def value(self) -> Tile:
        """The largest, after the stream."""
        return self._state(0)


def _largest(t: Tracer, x: Tile, over: Axis) -> Tile:
    # a gradient is that of the element at the index of an argmax, whose maximum may be -0.0 for +0.0
    beside = (Argmax(),) if x.dtype is DType.F32 else ()
    return _streamed(t, x, over, _Largest(), *beside).value


def _streamed(t: Tracer, x: Tile, over: Axis, fold: F, *beside: Argmax) -> F:
    """Return a fold that has absorbed a tile along an axis, as others beside it have."""
    if t.scope.axis is not None:
        what = f"a reduction over all of {over} by chunks"
        raise SpecError(Code.STREAM_NESTED, t.here(), what=what, outer=t.scope.axis)
    b, lets, value = t.builder, _along(t, x, over), t.use(x)
    again: dict[Value, Value] = {}
    for _ in t.stream(over, *(None,) * 8):
        for let in lets:
            with b.at(let.loc):
                again[let.value] = b.let(with_operands(let.node, lambda v: again.get(v, v)), let.name)
        chunk = t.wrap(again.get(value, value))
        fold.absorb(chunk)
        for each in beside:
            each.absorb(chunk)
    return fold


def _along(t: Tracer, x: Tile, over: Axis) -> list[Let]:
    """Return the nodes that a tile is computed of and that vary along an axis, in order."""
    found: set[Value] = set()
    waiting = [x.value]
    lets = {let.value: let for let in t.builder.open[0]}
    while waiting:
        value = waiting.pop()
        let = lets.get(value)
        if let is None or value in found or not _varies(let, lets, over):
            continue
        if isinstance(let.node, Keep | Loop | Stream):
            raise SpecError(Code.WHOLE_OF_STREAM, t.here(), axis=over, made=let.loc.line)
        found.add(value)
        waiting += operands(let.node)
    return [let for let in lets.values() if let.value in found]


def _varies(let: Let, lets: dict[Value, Let], over: Axis) -> bool:
    return over in _axes(lets[let.node.of].type if isinstance(let.node, Result) else let.type)


def _axes(type: Type) -> tuple[Axis, ...]:
    match type:
        case TileType(axes=axes):
            return axes
        case TupleType(items=items):
            return tuple(axis for item in items for axis in item.axes)
        case _:
            return ()
