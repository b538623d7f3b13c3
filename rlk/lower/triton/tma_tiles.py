"""Factors that are loaded by tensor descriptors (TMA), without addresses in threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.nodes import Decl, Dot, Kernel, Let, Load, Loop, Pos, Role, Value
from rlk.ir.types import Type, tile_axes
from rlk.lower.common.emitted import Signature
from rlk.lower.common.names import stride_name
from rlk.lower.common.tma_tiles import TmaTile, is_multiple, tma_tile_of
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of

LARGEST_TMA_TILE = 256  # elements along a dim that one descriptor load copies


def tma_tiles_of(
    kernel: Kernel, rows: Axis, lengths: Mapping[Axis, int], signature: Signature
) -> dict[Value, TmaTile]:
    """Return the TMA tiles of the streamed factors of a kernel's products, by their loads.

    None unless all are TMA tiles: then no load needs a mask of its rows, since TMA writes zeros for
    out-of-bounds rows.

    rows: the axis of a tile's rows. lengths: of the axes that a program's tensors have.
    """
    lets = {let.value: let for let in walk(kernel.body)}
    found = _Found(kernel, lets, types_of(kernel), rows, lengths, signature)
    dots = [let.node for let in lets.values() if isinstance(let.node, Dot)]
    streamed = dict.fromkeys(v for dot in dots for v in (dot.a, dot.b) if found.streams(v))
    tma_tiles = {value: found.tma_tile(value) for value in streamed}
    return (
        {value: tma_tile for value, tma_tile in tma_tiles.items() if tma_tile}
        if all(tma_tiles.values())
        else {}
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """Properties of a load that decide whether it is a TMA load."""

    kernel: Kernel
    lets: Mapping[Value, Let]
    types: Mapping[Value, Type]
    rows: Axis
    lengths: Mapping[Axis, int]
    signature: Signature

    def axes(self, value: Value) -> tuple[Axis, ...]:
        return tile_axes(self.types[value])

    def streams(self, value: Value) -> bool:
        """Return whether a factor from memory is streamed, while the other factor stays in a program."""
        if value not in self.lets or not isinstance(self.lets[value].node, Load):
            return False
        axes = self.axes(value)
        return self.rows not in axes and any(axis.chunk is not None for axis in axes)

    def tma_tile(self, value: Value) -> TmaTile | None:
        """Return the TMA tile of a load, if its loop has the end of the rows, and they are aligned."""
        load = self.lets[value].node
        assert isinstance(load, Load)
        decl = next(d for d in self.kernel.params if d.name == load.param)
        lane = next(axis for axis in self.axes(value) if axis.chunk is not None)
        extents = [fixed_extent(axis, dict(self.signature.extents)) for axis in decl.type.axes]
        nodes = {v: let.node for v, let in self.lets.items()}
        made = tma_tile_of(load, extents, nodes, self.types, (self.rows, lane), self.lengths[lane])
        last = len(load.index) - 1
        if made is None or load.fill is not None or not self.once(value) or not self.aligned(decl):
            return None
        others = [v for d, v in enumerate(load.index) if d not in (*made.dims, last)]
        known = all(self.fixed(v) for v in (*others, made.end)) and is_multiple(made.end, made.each, nodes)
        whole = last not in made.dims and self.whole(decl, load.index[last], extents[last])
        return made if known and whole else None

    def once(self, value: Value) -> bool:
        """Return whether a load is in an outermost loop without inner loops."""
        loops = [let.node.body for let in self.kernel.body.lets if isinstance(let.node, Loop)]
        own = [body for body in loops if any(let.value == value for let in body.lets)]
        return bool(own) and not any(isinstance(let.node, Loop) for let in own[0].lets)

    def aligned(self, decl: Decl) -> bool:
        """Return whether a tensor and its rows are aligned to 16 bytes, with a contiguous last dim."""
        split = self.signature.split_rows and decl.role is Role.IN and decl.type.axes[0].dynamic
        strides = {stride_name(decl, dim) for dim in range(len(decl.type.axes) - 1)}
        told = {decl.name, *strides} <= self.signature.divisible
        return told and not split and decl.name not in self.signature.strided

    def fixed(self, value: Value) -> bool:
        """Return whether a value is a scalar of a program, defined before its loops."""
        there = any(let.value == value for let in self.kernel.body.lets)
        return there and self.lengths.keys().isdisjoint(self.axes(value))

    def whole(self, decl: Decl, index: Value, extent: int | None) -> bool:
        """Return whether an index covers a tensor's whole last dim."""
        node = self.lets[index].node if index in self.lets else None
        if not isinstance(node, Pos) or node.axis != decl.type.axes[-1] or extent is None:
            return False
        return extent <= self.lengths.get(node.axis, 0) <= LARGEST_TMA_TILE
