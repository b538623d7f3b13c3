"""Workspace layout: padded rows, and workspaces of disjoint lifetime that share memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlk.ir.dims import Part, extent_of
from rlk.ir.nodes import Decl, Program, Role
from rlk.lower.common.names import stride_name

LINE = 64  # elements of a 16-bit type in a cache line
ALIGNED = 512  # bytes; as torch's allocator aligns tensors
VECTOR = 16  # bytes of the widest access


def memory_shape(decl: Decl, extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the extents of an output or workspace in memory, by dim of its declaration.

    The last dim of a workspace of pieces is padded to whole cache lines, as TMA requires.
    """
    shape = [extent_of(axis, extents[axis.name]) for axis in decl.type.axes]
    if decl.role is Role.WORK and shape and decl.type.axes[-1].part is Part.WITHIN:
        shape[-1] = -(-shape[-1] // LINE) * LINE
    return tuple(shape)


def workspaces(program: Program) -> tuple[Decl, ...]:
    """Return the workspaces of a program, each once."""
    return tuple({d.name: d for k in program.kernels for d in k.params if d.role is Role.WORK}.values())


def aligned_workspaces(program: Program, static: Mapping[str, int]) -> frozenset[str]:
    """Return the workspaces, and those of their strides, that are aligned to 16 bytes by static extents."""
    found: set[str] = set()
    for decl in workspaces(program):
        found.add(decl.name)
        for dim in range(len(decl.type.axes) - 1):
            inner = decl.type.axes[dim + 1 :]
            if all(axis.name in static and axis.part is Part.ALL for axis in inner):
                stride = math.prod(extent_of(axis, static[axis.name]) for axis in inner)
                found |= {stride_name(decl, dim)} if stride * decl.type.dtype.bytes % VECTOR == 0 else set()
    return frozenset(found)


def placed(program: Program, extents: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the offset of each workspace in one block of memory, in bytes, and the size of the block.

    Workspaces that no loop of launches (or single launch) needs at the same time may overlap.
    """
    spans = _spans(program)
    sizes = {
        d.name: -(-math.prod(memory_shape(d, extents)) * d.type.dtype.bytes // ALIGNED) * ALIGNED
        for d in workspaces(program)
    }
    starts: dict[str, int] = {}
    for name in sorted(sizes, key=lambda n: -sizes[n]):
        low, high = spans[name]
        taken = sorted(
            (starts[o], starts[o] + sizes[o]) for o in starts if spans[o][0] <= high and low <= spans[o][1]
        )
        start = 0
        for begin, end in taken:
            if begin - start >= sizes[name]:
                break
            start = max(start, end)
        starts[name] = start
    return starts, max((starts[n] + sizes[n] for n in starts), default=0)


def _spans(program: Program) -> dict[str, tuple[int, int]]:
    """Return the live range of each workspace: the first and the last loop of launches that uses it."""
    names = {k.name: {d.name for d in k.params if d.role is Role.WORK} for k in program.kernels}
    spans: dict[str, tuple[int, int]] = {}
    loop, outer = -1, None
    for launch in program.order:
        axis = launch.turns[0].axis if launch.turns else None
        loop += axis is None or axis != outer
        outer = axis
        for name in names[launch.kernel]:
            spans[name] = (spans.get(name, (loop, loop))[0], loop)
    return spans
