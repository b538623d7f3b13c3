"""Chunks that may be rotated: every combination of a chunk's elements is the same sum of pairs.

A halving tree pairs element i with i + n / 2 (mod n), then i with i + n / 4 (mod n / 2), and so on: element i
may stand in place (i + shift) mod n for any shift, and every sum has the same two terms. So a chunk that
does not start at a vector of memory is read in whole vectors, its first elements from the vector after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    Node,
    Pos,
    Reduce,
    Store,
    Value,
    operands,
)
from rlk.ir.tree import Ascending, bind
from rlk.ir.types import TileType, Type
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
    """Return the chunks of a kernel that may be rotated, and whose pieces need it: one of each loop, or one.

    extents: of static axes. The first load of several dims along a chunk is the one whose vectors count.
    """
    sizes = {d.name: d.type.dtype.bytes for d in kernel.params}
    types = {let.value: let.type for let in walk(kernel.body)}
    lanes = {x.value: x.node.axis for x in walk(kernel.body) if isinstance(x.node, Pos)}
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    regions = [(loop.body, loop.types) for loop in loops] or [(kernel.body, ())]
    found = (_window(tuple(walk(body)), carried, lanes, types) for body, carried in regions)
    nodes = {let.value: let.node for let in walk(kernel.body)}
    return tuple(window for window in found if window and _needed(window, nodes[window.load], sizes, extents))


def _window(
    region: Sequence[Let], carried: Sequence[TileType], positions: Mapping[Value, Axis],
    types: Mapping[Value, Type],
) -> Window | None:  # fmt: skip
    """Return the window of a region; None if an element's place in its chunk matters, or none is loaded."""
    lets = {let.value: let for let in region}
    for let in region:
        match let.node:
            case Load(index=(_, *_, place)) as load if place in lets:
                node = lets[place].node
                if not isinstance(node, Map2) or node.fn is not Fn2.ADD or node.b not in positions:
                    continue
                lane = positions[node.b]

                def along(value: Value, lane: Axis = lane) -> bool:
                    type = types.get(value)
                    return isinstance(type, TileType) and lane in type.axes

                guards = _conjuncts(load.guard, lets)
                ends = [n.b for v in guards if (n := _below(v, lets)) is not None and n.a == place]
                rows = tuple(v for v in guards if not along(v))
                told = len(ends) + len(rows) == len(guards) and len(ends) <= 1
                apart = not any(map(along, (node.a, *load.index[:-1], *ends)))
                if lane.part is Part.LANE and lane not in {a for t in carried for a in t.axes}:
                    if told and apart and _rotates(region, node.b, lane, types, along):
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


def _rotates(
    region: Sequence[Let], position: Value, lanes: Axis, types: Mapping[Value, Type],
    along: Callable[[Value], bool],
) -> bool:  # fmt: skip
    """Return whether a region has the same results wherever the elements of its chunks stand."""
    for let in region:
        match let.node:
            case Map2(fn=Fn2.ADD, b=b) if b == position:
                pass
            case _ if position in operands(let.node):
                return False
            case Reduce(over=over) as reduce if over == lanes:
                if not _is_rotation_free(reduce, types, lanes):
                    return False
            case Store() | Check() | Dot() | Merge() | Loop() if any(map(along, operands(let.node))):
                return False
            case _:
                pass
    return True


def _is_rotation_free(reduce: Reduce, types: Mapping[Value, Type], lanes: Axis) -> bool:
    x = types.get(reduce.x)
    if not isinstance(x, TileType):
        return False
    if reduce.fn is not Combine.ADD or not x.dtype.is_float:
        return True  # exact, or an extreme: in any order
    if reduce.order is None or isinstance(reduce.order, Ascending) or lanes.chunk is None:
        return False
    order = bind(reduce.order, lanes.chunk).order
    return order == tuple(reversed(range(len(order))))


def _needed(window: Window, load: Node, sizes: Mapping[str, int], extents: Mapping[str, int]) -> bool:
    """Return whether pieces start between vectors, and no vector of a full step ends behind the tensor."""
    lanes = window.lanes
    assert isinstance(load, Load)
    extent, chunk, split = extents.get(lanes.name, 0), lanes.chunk or 1, lanes.split or 1
    width = VECTOR // sizes[load.param]
    last = extent - (split - 1) * -(-extent // split)  # the shortest: all have as many full steps
    aligned = extent % (width * split) == 0
    if aligned or width < 2 or chunk % width or lanes.piece is not None or lanes.dynamic:
        return False
    return extent >= LEAST_STEPS * chunk * split and last % chunk >= width - 1
