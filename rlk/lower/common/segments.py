"""Rows of a kernel that are segments (packed sequences), one for each index of another axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.errors import Loc, LoweringError
from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Cast, Const, Fn2, Kernel, Load, Map2, Node, Pos, Store, Value, const_value
from rlk.ir.types import DType
from rlk.lower.common.contract import implies
from rlk.passes.pack_gqa import segments_of
from rlk.passes.walk import walk


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments of rows: index i of `over` has `each` rows per element of [begin[i], end[i]), ascending.

    axis: of the rows; whole: the name of the axis whose extent bounds the sum of the segments' lengths.
    begin, end: names of tensors over `over`. inside: the condition that a row is in its segment; other rows
    are not stored.
    """

    axis: Axis
    whole: str
    over: Axis
    begin: str
    end: str
    each: int
    inside: Value


def segments(kernel: Kernel, parallel: tuple[Axis, ...]) -> Segments | None:
    """Return the segments of a kernel's rows; None if no parallel axis has segments.

    Raises LoweringError if a store is not masked to them.
    """
    axis = next((a for a in parallel if a.over is not None and a.part is Part.ALL), None)
    over = next((a for a in parallel if axis is not None and a.name == axis.over), None)
    if axis is None or over is None:
        return None
    lets = tuple(walk(kernel.body))
    nodes = {let.value: let.node for let in lets}
    limits = (_limit(value, nodes, axis, over) for value in nodes)
    found = next((limit for limit in limits if limit is not None), None)
    for let in lets:
        if isinstance(let.node, Store):
            guard = let.node.guard
            if found is None or guard is None or not implies(nodes, guard, found.inside):
                raise _unsupported(let.loc, axis)
    return found


def _limit(value: Value, nodes: Mapping[Value, Node], axis: Axis, over: Axis) -> Segments | None:
    """Return the segments of a condition that masks an index to its segment; None for other conditions."""
    match nodes[value]:
        case Map2(fn=Fn2.LT, a=a, b=b):
            each, length = _every(nodes.get(a), nodes, axis), nodes.get(b)
            if each is not None and isinstance(length, Map2) and length.fn is Fn2.SUB:
                begin, end = (_element(nodes.get(v), nodes, over) for v in (length.b, length.a))
                if begin is not None and end is not None:
                    return Segments(axis, segments_of(axis), over, begin, end, each, value)
    return None


def _every(node: Node | None, nodes: Mapping[Value, Node], axis: Axis) -> int | None:
    """Return the number of rows per element of a segment, from the divisor of a row index."""
    match node:
        case Pos(axis=found) if found == axis:
            return 1
        case Map2(fn=Fn2.DIV, a=a, b=b) if nodes.get(a) == Pos(axis):
            count = nodes.get(b)
            return int(const_value(count.bits, DType.I32)) if isinstance(count, Const) else None
        case _:
            return None


def _element(node: Node | None, nodes: Mapping[Value, Node], over: Axis) -> str | None:
    """Return the name of the tensor that a value is loaded from, at the index of an axis; else None."""
    match node:
        case Cast(x=x):
            return _element(nodes.get(x), nodes, over)
        case Load(param=param, index=(only,), guard=None) if nodes.get(only) == Pos(over):
            return param
        case _:
            return None


def _unsupported(loc: Loc, axis: Axis) -> LoweringError:
    lacks = f"a store that reaches beyond the segments of {axis}"
    return LoweringError(lacks, "L.place(..., when=position < end - begin)", loc)
