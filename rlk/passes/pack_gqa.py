"""Pack-GQA: the query heads that share a KV head become rows of one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlk.ir.dims import Axis
from rlk.ir.nodes import Dot, Fn2, Kernel, Let, Loop, Pos
from rlk.ir.types import DType, TileType
from rlk.passes.prologue import is_computed
from rlk.passes.rewrite import Replay
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk

JOINT = "*"  # joins the names of two packed axes: no axis name contains it


def segments_of(axis: Axis) -> str:
    """Return the name of the axis of segments in an axis of rows, packed with another axis or not."""
    return axis.name.partition(JOINT)[0]


def indices_of(axis: Axis, extents: Mapping[str, int]) -> int:
    """Return the extent of an axis, packed or not; for segments a bound of the sum of their lengths."""
    return math.prod(extents[name] for name in axis.name.split(JOINT))


def computed_factor(kernel: Kernel) -> bool:
    """Return whether a kernel multiplies what it contracts or reduces (back-to-back GEMM)."""
    lets = {let.value: let for let in walk(kernel.body)}
    return any(is_computed(let.node, lets) for let in lets.values() if isinstance(let.node, Dot))


def one_axis_of_rows(kernel: Kernel, extents: Mapping[str, int]) -> Kernel:
    """Return the kernel with an axis of segments and a static axis of n indices packed into one axis of rows.

    Row i is index i // n of a segment and i % n of the other axis. So a tile has as many rows as a matrix
    unit takes even for few queries, and all rows of a tile use one tile of keys.
    """
    pair = _pair(kernel) if computed_factor(kernel) else None
    if pair is None or pair[1].name not in extents:
        return kernel
    segments, other = pair
    axis = replace(segments, name=f"{segments.name}{JOINT}{other.name}")
    replay = Replay(kernel, _Rows(segments, other, axis, extents[other.name]))
    replay.block(kernel.body.lets)
    return simplify(Kernel(kernel.name, tuple(replay.builder.params.values()), replay.builder.body()))


def _pair(kernel: Kernel) -> tuple[Axis, Axis] | None:
    """Return the axis of segments and the static axis that only one factor of a product has."""
    types = {let.value: let.type for let in walk(kernel.body)}
    for let in walk(kernel.body):
        if isinstance(let.node, Dot):
            a, b = types[let.node.a], types[let.node.b]
            assert isinstance(a, TileType) and isinstance(b, TileType)
            rows = [axis for axis in a.axes if axis not in b.axes]
            segments = [axis for axis in rows if axis.over is not None]
            others = [axis for axis in rows if not axis.dynamic]
            if len(segments) == len(others) == 1:
                return segments[0], others[0]
    return None


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rule: positions along both axes are computed from the position along the packed one."""

    segments: Axis
    other: Axis
    axis: Axis
    count: int

    def __call__(self, replay: Replay, let: Let) -> bool:
        b = replay.builder
        match let.node:
            case Pos(axis=axis) if axis == self.segments:
                row = b.let(Pos(self.axis), self.axis.name.lower())
                replay.renamed[let.value] = b.map2(Fn2.DIV, row, b.i32(self.count), let.name)
            case Pos(axis=axis) if axis == self.other and self.count == 1:
                replay.renamed[let.value] = b.const(0, DType.I32)
            case Pos(axis=axis) if axis == self.other:
                row = b.let(Pos(self.axis), self.axis.name.lower())
                replay.renamed[let.value] = b.map2(Fn2.MOD, row, b.i32(self.count), let.name)
            case Loop() as loop:
                types = tuple(self.fused(t) for t in loop.types)
                replay.renamed[let.value] = b.let(replay.loop(replace(loop, types=types)), let.name)
            case _:
                return False
        return True

    def fused(self, type: TileType) -> TileType:
        both = (self.segments, self.other)
        axes = dict.fromkeys(self.axis if axis in both else axis for axis in type.axes)
        return replace(type, axes=tuple(axes))
