"""TileLang tiles of contractions: multistage pipelines on Hopper, shared-memory GEMM on CDNA."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Dot, Kernel, Load, Pos, Program
from rlk.ir.tree import padded
from rlk.ir.types import DType
from rlk.passes.walk import walk
from rlk.schedule.attention import rows_of
from rlk.schedule.axes import Roles, kind, roles
from rlk.schedule.heuristics import factor_tiles
from rlk.schedule.schedule import Schedule, Span
from rlk.target.blocks import BLOCKS
from rlk.target.facts import Target

WAVES = 4
WAVE_ROWS = 16  # of a wave whose products are factors of a second GEMM
SQUARE = 64  # rows and columns of a tile, if free
FEW_ROWS = 32  # of a tile whose columns are a whole chunk
DEPTH = {DotModel.FMA: 16}
HALF_DEPTH = 32  # K of a step with 16-bit factors
DEPTHS = (64, 32, 16)  # K of such a step if shared memory is scarce, the best first
PLACE = 8  # bytes of shared memory for the address of a factor's row
RING_ROWS = (64, 128)  # of one or two warpgroups with accumulators of 64 rows each
RING_COLUMNS = (32, 256)  # the fewest and the most
RING_DEPTH = 64
RING_STAGES = 4
RING_GROUP = 16  # consecutive row tiles with the same columns (0.167 ms instead of 0.213)


def by_tilelang_tiles(
    program: Program, chosen: Sequence[Schedule], extents: Mapping[str, int], on: Target
) -> tuple[Schedule, ...]:
    """Return the schedules of a program's kernels, those of contractions with tiles for matrix cores."""
    return tuple(
        waves(kernel, schedule, extents, on) for kernel, schedule in zip(program.kernels, chosen, strict=True)
    )


def waves(kernel: Kernel, chosen: Schedule, extents: Mapping[str, int], on: Target) -> Schedule:
    """Return a kernel's schedule: matrix core tiles for contractions, else the chosen schedule."""
    found = roles(kernel, extents)
    if kind(kernel) == "back_to_back_gemm":
        return _of_segments(kernel, chosen, found)
    sides = factor_tiles(kernel, found) if found.contracted else None
    if sides is None:
        return chosen
    whole = dict(found.inside)
    rows, columns = sides
    fits = rows not in whole and RING_COLUMNS[0] <= whole.get(columns, RING_COLUMNS[0]) <= RING_COLUMNS[-1]
    if on.name in BLOCKS and BLOCKS[on.name].ring and fits and _along_rows(kernel, extents):
        return ring(rows, columns, whole.get(columns), extents)
    tiles: dict[Axis, int] = {}
    for axis, other in ((rows, columns), (columns, rows)):
        if axis not in whole:
            tiles[axis] = FEW_ROWS if other in whole else SQUARE
    models = [let.node.model for let in walk(kernel.body) if isinstance(let.node, Dot)]
    depth = min(DEPTH.get(model, HALF_DEPTH) for model in models)
    if on.vendor == "nvidia":
        depth = _deepest([tiles.get(axis) or whole[axis] for axis in (rows, columns)], len(models), on)
    named = tuple(sorted((str(axis), tile) for axis, tile in tiles.items()))
    of_rows = (tiles.get(rows) or whole[rows]).bit_length() - 1
    # a wave has all columns of its rows, so that sums along rows need no exchange between waves
    apart = WAVES.bit_length() - 1
    placed = (Span(str(columns), 0, on.warp.bit_length() - 1), Span(str(rows), of_rows - apart, apart))
    return Schedule(tiles=named, placed=placed, warps=WAVES, depth=depth)


def _of_segments(kernel: Kernel, chosen: Schedule, found: Roles) -> Schedule:
    """Return the schedule of fused attention: 16 query rows to a wave."""
    rows = rows_of(kernel, found)
    if rows is None:
        return chosen
    tile = max(WAVE_ROWS, min(WAVES * WAVE_ROWS, chosen.tile(str(rows))))
    return replace(chosen.with_tile(str(rows), tile), warps=tile // WAVE_ROWS, stages=1)


def ring(rows: Axis, columns: Axis, whole: int | None, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a contraction whose accumulators stay in the registers of warpgroups.

    whole: the required number of columns of a block; None if free.
    """
    few = extents.get(rows.name, RING_ROWS[-1]) <= RING_ROWS[0]
    tile = RING_ROWS[0] if few else RING_ROWS[-1]
    least, most = RING_COLUMNS
    wide = whole or max(least, min(most, padded(extents.get(columns.name, most))))
    tiles = {str(rows): tile} | ({} if whole else {str(columns): wide})
    of_rows = tile.bit_length() - 1
    placed = (Span(str(columns), 1, 2), Span(str(rows), 0, 3), Span(str(rows), 4, of_rows - 4))
    return Schedule(
        tiles=tuple(sorted(tiles.items())),
        placed=placed,
        warps=tile // 16,
        stages=RING_STAGES,
        depth=RING_DEPTH,
        group=1 if whole else RING_GROUP,  # a fold over chunks is faster without: 3.15 ms instead of 3.68
    )


def _along_rows(kernel: Kernel, extents: Mapping[str, int]) -> bool:
    """Return whether a kernel has one contraction, along contiguous 16-bit rows of known length."""
    lets = {let.value: let.node for let in walk(kernel.body)}
    top = [let.node for let in kernel.body.lets if isinstance(let.node, Dot)]
    dots = [node for node in lets.values() if isinstance(node, Dot)]
    if len(dots) != 1 or len(top) != 1 or dots[0].onto is not None or dots[0].each:
        return False
    if dots[0].model is not DotModel.CHAIN16 or dots[0].over.dynamic:
        return False
    decls = {d.name: d for d in kernel.params}
    for value in (dots[0].a, dots[0].b):
        load = lets.get(value)
        if not isinstance(load, Load) or decls[load.param].type.dtype not in (DType.BF16, DType.F16):
            return False
        if lets.get(load.index[-1]) != Pos(dots[0].over) or load.fill is not None:
            return False
    return kind(kernel) in ("dot_map", "stream_dot") and dots[0].over.name in extents


def _deepest(sides: Sequence[int], products: int, on: Target) -> int:
    """Return the largest depth of a step whose factors fit into shared memory, those of all products."""
    product, lines = products * 4 * math.prod(sides), products * sum(sides)
    room = BLOCKS[on.name].shared if on.name in BLOCKS else 0
    fitting = (depth for depth in DEPTHS if product + lines * (2 * depth + PLACE) <= room)
    return next(fitting, DEPTHS[-1])
