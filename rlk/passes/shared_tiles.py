"""One tile dim for axes that no value has together, such as the lanes of two streams."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Dot, Kernel, Let, Loop, Merge, Pos, Reduce, Value, operands
from rlk.ir.types import TileType
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.walk import walk


def share_tiles(kernel: Kernel) -> Kernel:
    """Return the kernel with one axis of lanes, and one of pieces, for those of axes that never meet.

    A program's tile has a dim for each axis that the program has whole: streams of two axes, one after the
    other, would have the product of both chunks. Lanes share if their chunks are equal, pieces if their
    numbers are, no value has both, and no tensor has one. A name changes no addition. Kernels with a
    contraction stay: their forms tell axes apart by name.
    """
    lets = tuple(walk(kernel.body))
    if any(isinstance(let.node, Dot) for let in lets):
        return kernel
    laid_out = {a for d in kernel.params for a in d.type.axes}
    tiles = _tiles(lets)
    shared: dict[Axis, Axis] = {}
    for axis in dict.fromkeys(a for tile in tiles for a in tile):
        if _length(axis) is not None and axis not in laid_out:
            shared[axis] = next((a for a in shared.values() if _apart(axis, a, shared, tiles)), axis)
    if all(axis == first for axis, first in shared.items()):
        return kernel
    return rewrite(kernel, _Rename(shared))


def _tiles(lets: tuple[Let, ...]) -> list[tuple[Axis, ...]]:
    """Return the axes of each value, and those of all that a node reads: a store has no value."""
    axes: dict[Value, tuple[Axis, ...]] = {}
    for let in lets:
        if isinstance(let.type, TileType):
            axes[let.value] = let.type.axes
        if isinstance(let.node, Loop):
            axes |= {arg: t.axes for arg, t in zip(let.node.body.args[1:], let.node.types, strict=True)}
    read = [tuple(a for value in operands(let.node) for a in axes.get(value, ())) for let in lets]
    made = [axes.get(let.value, ()) for let in lets]
    return [tuple(dict.fromkeys((*x, *y))) for x, y in zip(read, made, strict=True)] + list(axes.values())


def _apart(axis: Axis, first: Axis, shared: dict[Axis, Axis], tiles: list[tuple[Axis, ...]]) -> bool:
    """Return whether an axis has the length of another and meets none of those that share that one."""
    if (axis.part, _length(axis)) != (first.part, _length(first)):
        return False
    group = {a for a, to in shared.items() if to == first}
    return not any(axis in tile and not group.isdisjoint(tile) for tile in tiles)


def _length(axis: Axis) -> int | None:
    """Return the number of lanes or pieces of an axis; None for its other parts."""
    match axis.part:
        case Part.LANE:
            return axis.chunk
        case Part.PIECE:
            return axis.split
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Rename:
    """The rule: positions, reductions and carried values of an axis become those of the one it shares."""

    shared: dict[Axis, Axis]

    def __call__(self, replay: Replay, let: Let) -> bool:
        b = replay.builder
        match let.node:
            case Pos(axis=axis) if axis in self.shared:
                made = b.let(Pos(self.shared[axis]), let.name)
            case Reduce() | Merge() as node if node.over in self.shared:
                moved = replay.node(node)
                assert isinstance(moved, Reduce | Merge)
                made = b.let(replace(moved, over=self.shared[node.over]), let.name)
            case Loop(types=types) as loop:
                kept = tuple(replace(t, axes=tuple(self.shared.get(a, a) for a in t.axes)) for t in types)
                made = b.let(replay.loop(replace(loop, types=kept)), let.name)
            case _:
                return False
        replay.renamed[let.value] = made
        return True
