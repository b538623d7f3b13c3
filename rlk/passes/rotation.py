"""Loops whose chunks may be rotated: every combination of a chunk's elements is the same sum of pairs.

A halving tree pairs element i with i + n / 2 (mod n), then i with i + n / 4 (mod n / 2), and so on: element i
may stand in place (i + shift) mod n for any shift, and every sum has the same two terms. So a chunk that
does not start at a vector of memory is read in whole vectors, its first elements from the vector after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import (
    Check,
    Combine,
    Dot,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    Map2,
    Merge,
    Pos,
    Reduce,
    Store,
    Value,
    operands,
)
from rlk.ir.tree import Ascending, bind
from rlk.ir.types import TileType
from rlk.passes.walk import walk

VECTOR = 16  # bytes
LEAST_STEPS = 4  # of a piece, below which rows are short


@dataclass(frozen=True, slots=True)
class Window:
    """A chunk that is read by vectors. load: of its elements. place: their indices, begin + lane.

    end: of the indices that are read, in steps that are masked. rows: the other conditions of these.
    """

    load: Value
    place: Value
    begin: Value
    lanes: Axis
    end: Value | None = None
    rows: tuple[Value, ...] = ()


def windows(kernel: Kernel, extents: Mapping[str, int]) -> tuple[Window, ...]:
    """Return the chunks of a kernel's loops that may be rotated, and whose pieces need it.

    extents: of static axes. The first load of several dims along a chunk is the one whose vectors count.
    """
    sizes = {d.name: d.type.dtype.bytes for d in kernel.params}
    types = {let.value: let.type for let in walk(kernel.body)}
    lanes = {x.value: x.node.axis for x in walk(kernel.body) if isinstance(x.node, Pos)}
    found = []
    for let in walk(kernel.body):
        if isinstance(let.node, Loop):
            made = _window(let.node, lanes, types)
            if made is not None and _needed(made, let.node, sizes, extents):
                found.append(made)
    return tuple(found)


def _window(loop: Loop, positions: Mapping[Value, Axis], types: Mapping[Value, object]) -> Window | None:
    """Return the window of a loop; None if an element's place in its chunk matters, or none is loaded."""
    lets = {let.value: let for let in walk(loop.body)}

    def along(value: Value, axis: Axis) -> bool:
        type = types.get(value)
        return isinstance(type, TileType) and axis in type.axes

    for let in lets.values():
        match let.node:
            case Load(index=(_, *_, place)) as load if place in lets:
                node = lets[place].node
                if isinstance(node, Map2) and node.fn is Fn2.ADD and positions.get(node.b):
                    lane = positions[node.b]
                    apart = not any(along(v, lane) for v in (node.a, *load.index[:-1]))
                    guards = _conjuncts(load.guard, lets)
                    ends = [n.b for v in guards if (n := _below(v, lets)) is not None and n.a == place]
                    rows = tuple(v for v in guards if not along(v, lane))
                    told = len(ends) + len(rows) == len(guards) and len(ends) <= 1
                    told = told and not any(along(v, lane) for v in ends)
                    if lane.part is Part.LANE and apart and told and _rotates(loop, lets, node.b, lane):
                        return Window(let.value, place, node.a, lane, ends[0] if ends else None, rows)
            case _:
                pass
    return None


def _conjuncts(guard: Value | None, lets: Mapping[Value, Let]) -> tuple[Value, ...]:
    """Return the conditions that a guard is the conjunction of."""
    if guard is None:
        return ()
    node = lets[guard].node if guard in lets else None
    if isinstance(node, Map2) and node.fn is Fn2.AND:
        return (*_conjuncts(node.a, lets), *_conjuncts(node.b, lets))
    return (guard,)


def _below(value: Value, lets: Mapping[Value, Let]) -> Map2 | None:
    node = lets[value].node if value in lets else None
    return node if isinstance(node, Map2) and node.fn is Fn2.LT else None


def _rotates(loop: Loop, lets: Mapping[Value, Let], position: Value, lanes: Axis) -> bool:
    """Return whether a loop has the same results wherever the elements of its chunks stand."""
    if any(lanes in type.axes for type in loop.types):
        return False
    for let in lets.values():
        match let.node:
            case Map2(fn=Fn2.ADD, b=b) if b == position:
                pass
            case _ if position in operands(let.node):
                return False
            case Reduce(over=over) as reduce if over == lanes:
                if not _is_rotation_free(reduce, lets, lanes):
                    return False
            case Store() | Check() | Dot() | Merge() | Loop():
                return False
            case _:
                pass
    return True


def _is_rotation_free(reduce: Reduce, lets: Mapping[Value, Let], lanes: Axis) -> bool:
    x = lets[reduce.x].type if reduce.x in lets else None
    if not isinstance(x, TileType):
        return False
    if reduce.fn is not Combine.ADD or not x.dtype.is_float:
        return True  # exact, or an extreme: in any order
    if reduce.order is None or isinstance(reduce.order, Ascending) or lanes.chunk is None:
        return False
    order = bind(reduce.order, lanes.chunk).order
    return order == tuple(reversed(range(len(order))))


def _needed(window: Window, loop: Loop, sizes: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Return whether pieces start between vectors, and no vector of a full step ends behind the tensor."""
    lanes, load = window.lanes, next(x.node for x in walk(loop.body) if x.value == window.load)
    assert isinstance(load, Load)
    extent, chunk, split = extents.get(lanes.name, 0), lanes.chunk or 1, lanes.split or 1
    width = VECTOR // sizes[load.param]
    last = extent - (split - 1) * -(-extent // split)  # the shortest: all have as many full steps
    aligned = extent % (width * split) == 0
    if aligned or width < 2 or chunk % width or lanes.piece is not None or lanes.dynamic:
        return False
    return extent >= LEAST_STEPS * chunk * split and last % chunk >= width - 1
