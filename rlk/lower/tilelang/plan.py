"""Plan of a TileLang kernel: axes on the grid, on the threads of a block, and in their lists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlk.errors import NOWHERE, Loc, LoweringError
from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Dot, Kernel
from rlk.lower.common.bounds import bounds
from rlk.lower.common.contract import dense_rows_error, unfused_error
from rlk.lower.common.emitted import Signature
from rlk.lower.common.hoist_loads import factors_first, hoist_loads
from rlk.lower.common.hoist_masks import hoist_masks
from rlk.lower.common.peel import peel
from rlk.lower.common.segments import Segments, segments
from rlk.lower.common.thread_values import ThreadValues, TiledAxis, distribute, fewer_elements
from rlk.lower.tilelang.units import DEPTH, ROWS, UNITS
from rlk.passes.walk import walk
from rlk.schedule.attention import rows_of
from rlk.schedule.axes import Roles, kind, length, roles
from rlk.schedule.heuristics import factor_tiles
from rlk.schedule.schedule import Schedule
from rlk.target.blocks import BLOCKS, Block
from rlk.target.facts import Target

TARGETS = frozenset(BLOCKS)
MOST_LISTED = 64  # elements of a list: more would spill
LANES = 3  # bits of the thread's number for the vectors of a row in a pipeline stage
ALL_REGISTERS = 256  # threads of a block up to which each may use all registers that instructions can address


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The plan of a block, which has a tile of the parallel axes and reduced axes whole.

    kernel: with peeled loops. thread_value_layouts: of its axes. segments: those of the rows, if
    another axis has a segment of rows per index.
    """

    kernel: Kernel
    kind: str
    tiled: tuple[TiledAxis, ...]
    thread_value_layouts: tuple[ThreadValues, ...]
    threads: int
    signature: Signature
    schedule: Schedule
    target: Target
    segments: Segments | None = None

    @property
    def block(self) -> Block:
        """Return the limits of a block on the device."""
        return BLOCKS[self.target.name]

    def thread_values(self, axis: Axis) -> ThreadValues | None:
        """Return the thread-value layout of an axis; None where the block has one index of it."""
        return next((s for s in self.thread_value_layouts if s.axis == axis), None)

    def lists(self, axes: tuple[Axis, ...]) -> tuple[ThreadValues, ...]:
        """Return the axes that a thread has a list along, the last fastest."""
        return tuple(s for s in self.thread_value_layouts if s.axis in axes and s.count > 1)

    def size(self, axes: tuple[Axis, ...]) -> int:
        """Return the number of a thread's elements of a value over these axes."""
        return math.prod(s.count for s in self.lists(axes))


def rings(kernel: Kernel, schedule: Schedule, target: Target) -> bool:
    """Return whether the factors of a contraction go through a multistage pipeline in shared memory."""
    contracts = any(isinstance(let.node, Dot) for let in walk(kernel.body))
    return contracts and schedule.stages > 1 and BLOCKS[target.name].ring > 0


def accumulated_rows(thread_values: ThreadValues) -> ThreadValues:
    """Return the layout of an accumulator's rows: 64 per warpgroup, 16 per warp, eight on lanes."""
    bits = thread_values.length.bit_length() - 1
    threads = (*((b, b + 2) for b in range(3)), *((b, b + 1) for b in range(4, bits)))
    return ThreadValues(thread_values.axis, thread_values.length, threads)


def accumulated_columns(thread_values: ThreadValues) -> ThreadValues:
    """Return the layout of an accumulator's columns: pairs, on four adjacent lanes."""
    return ThreadValues(thread_values.axis, thread_values.length, ((1, 0), (2, 1)))


def copying(plan: TilePlan) -> TilePlan:
    """Return a plan for the addresses of copies: eight threads per row, each copying vectors of its rows."""
    bits = plan.threads.bit_length() - 1 - LANES
    threads = tuple((b, b + LANES) for b in range(bits))
    return replace(
        plan,
        thread_value_layouts=tuple(
            ThreadValues(s.axis, s.length, threads) for s in plan.thread_value_layouts
        ),
    )


def in_parts(plan: TilePlan, parted: ThreadValues) -> TilePlan:
    """Return a plan in which a thread handles its elements of an axis one after the other."""
    apart = replace(parted, part=parted.listed)
    return replace(
        plan, thread_value_layouts=tuple(apart if s == parted else s for s in plan.thread_value_layouts)
    )


def refused(lacks: str, target: Target, loc: Loc = NOWHERE, instead: str = "") -> LoweringError:
    """Return the error of a kernel that this lowering does not support; another backend may.

    instead: what an author can write for this one.
    """
    other = "backend triton"
    return LoweringError(
        lacks, f"{instead}, or {other}" if instead else other, loc, backend="tilelang", target=target.name
    )


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> TilePlan:
    """Return the plan of a specialized kernel; raise LoweringError if this lowering has no form for it."""
    if target.name not in TARGETS:
        raise refused("kernels for this target", target)
    schedule.check_powers()
    extents = dict(signature.extents)
    nest, bounded = kind(kernel), bounds(kernel, dict(roles(kernel, extents).inside))
    # steps without masks would be a copy of all instructions: more than a cache of them holds
    peeled = bounded if nest == "back_to_back_gemm" else peel(bounded)
    found = roles(peeled, extents)
    tiled = tuple(TiledAxis(a, schedule.tile(str(a)), fixed_extent(a, extents)) for a in found.parallel)
    lengths = {a: n for a, n in found.inside if n > 1} | {o.axis: o.tile for o in tiled if o.tile > 1}
    if nest == "back_to_back_gemm":
        return attention_plan(
            TilePlan(peeled, nest, tiled, (), 0, signature, schedule, target), found, lengths
        )
    _share(peeled, found, lengths, schedule, target)
    threads = min(target.warp * schedule.warps, BLOCKS[target.name].threads)
    thread_value_layouts = distribute(lengths, schedule.placed, threads)
    listed = math.prod(s.count for s in thread_value_layouts) // (2 if rings(kernel, schedule, target) else 1)
    _fits(listed, threads, target, tuple(lengths))
    for thread_values in thread_value_layouts if rings(kernel, schedule, target) else ():
        if thread_values == accumulated_columns(thread_values):
            peeled = hoist_masks(peeled, thread_values.axis)
    ordered = hoist_loads(peeled, lambda type: lengths.keys().isdisjoint(type.axes))
    rows = segments(ordered, found.parallel)
    return TilePlan(ordered, nest, tiled, thread_value_layouts, threads, signature, schedule, target, rows)


def attention_plan(plan: TilePlan, found: Roles, lengths: Mapping[Axis, int]) -> TilePlan:
    """Return the plan of fused attention: 16 query rows per wave, other axes in the layout of MMA fragments.

    plan: without layouts.
    """
    extents, unit = dict(plan.signature.extents), UNITS[plan.target.vendor]
    rows = rows_of(plan.kernel, found)
    if rows is None:
        raise unfused_error(plan.kernel)
    if rows.over is None and plan.target.vendor == "nvidia":
        error = dense_rows_error(plan.kernel)
        raise refused(error.lacks, plan.target, error.loc, error.instead)
    if plan.schedule.tile(str(rows)) < ROWS:
        raise refused("fused attention with tiles of fewer than 16 rows", plan.target)
    beside = {a: max(DEPTH, n) for a, n in lengths.items() if a != rows}
    beside |= {a: max(DEPTH, length(a, extents)) for a in found.contracted if a not in beside}
    tile = plan.schedule.tile(str(rows))
    threads = plan.target.warp * tile // ROWS
    others = [ThreadValues(axis, n, unit.beside) for axis, n in beside.items()]
    thread_value_layouts = (unit.layout_of_rows(rows, tile), *others)
    _fits(thread_value_layouts[0].count * max(s.count for s in others), threads, plan.target, (rows, *beside))
    ordered = factors_first(hoist_loads(plan.kernel, lambda type: {*beside, rows}.isdisjoint(type.axes)))
    return replace(
        plan,
        kernel=ordered,
        thread_value_layouts=thread_value_layouts,
        threads=threads,
        segments=segments(ordered, found.parallel),
    )


def _share(
    kernel: Kernel, found: Roles, lengths: Mapping[Axis, int], schedule: Schedule, target: Target
) -> None:
    """Raise LoweringError for a product of two chunks of which not every wave has a part."""
    sides = factor_tiles(kernel, found) if target.vendor == "amd" else None
    sizes = [lengths.get(axis, 1) for axis in sides or ()]
    dots = [let for let in walk(kernel.body) if isinstance(let.node, Dot)]
    by_unit = all(isinstance(let.node, Dot) and let.node.model is not DotModel.FMA for let in dots)
    if sides is not None and by_unit and math.prod(max(1, n // ROWS) for n in sizes) < schedule.warps:
        lacks = f"products of {sizes[0]} of {sides[0]} by {sizes[1]} of {sides[1]} by {schedule.warps} waves"
        raise refused(lacks, target, dots[0].loc, f"chunks of {ROWS} and {schedule.warps * ROWS} or more")


def _fits(listed: int, threads: int, target: Target, axes: tuple[Axis, ...]) -> None:
    """Raise LoweringError if lists have more elements than a thread's registers."""
    if listed * max(threads, ALL_REGISTERS) > MOST_LISTED * ALL_REGISTERS:
        beside = ", ".join(map(str, axes))
        most = MOST_LISTED * ALL_REGISTERS // max(threads, ALL_REGISTERS)
        lacks = f"registers for {listed} elements of {beside} in a thread, which may have {most}"
        raise refused(lacks, target, instead=fewer_elements(axes))
