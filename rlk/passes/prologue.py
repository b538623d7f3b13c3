"""Elementwise prologues: factors of contractions that are computed from loads along the contracted axis."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import (
    Dot,
    Elementwise,
    Let,
    Load,
    Pos,
    Value,
    operands,
)
from rlk.ir.types import TileType
from rlk.passes.walk import backward_slice


def prologue(factor: Value, over: Axis, lets: Mapping[Value, Let]) -> tuple[Let, ...]:
    """Return what computes a factor along the contracted axis, in order, down to its loads.

    Values without the axis (a scale of each row) are none of it. Empty for a factor that is a load, for
    one that is made of other contractions or reductions, as in fused attention, and for one along the lanes
    of a stream.

    lets: of a kernel, regions included, in order.
    """
    if factor not in lets or isinstance(lets[factor].node, Load):
        return ()
    return elementwise(factor, over, lets)


def elementwise(value: Value, over: Axis, lets: Mapping[Value, Let]) -> tuple[Let, ...]:
    """Return what computes a value along an axis, as `prologue` does, also of one that is a load."""
    if over.part is Part.LANE:
        return ()
    along = {v: let for v, let in lets.items() if isinstance(let.type, TileType) and over in let.type.axes}
    found = backward_slice([value], along)
    made = tuple(let for v, let in along.items() if v in found)
    of_elements = Elementwise | Load | Pos
    # nothing that a loop carries; its step may be an index
    known = all(v in lets or _indexes(v, let) for let in made for v in operands(let.node))
    loads = any(isinstance(let.node, Load) for let in made)
    return made if known and loads and all(isinstance(let.node, of_elements) for let in made) else ()


def _indexes(value: Value, let: Let) -> bool:
    return isinstance(let.node, Load) and value in let.node.index


def is_computed(dot: Dot, lets: Mapping[Value, Let]) -> bool:
    """Return whether a factor is computed in a program, from other contractions or reductions."""
    return any(
        (v not in lets or not isinstance(lets[v].node, Load)) and not prologue(v, dot.over, lets)
        for v in (dot.a, dot.b)
    )
