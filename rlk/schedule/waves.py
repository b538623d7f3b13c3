"""Which tiles a contraction has in TileLang: products fit in shared memory beside the factors of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Dot, Kernel, Program
from rlk.passes.walk import walk
from rlk.schedule.axes import roles
from rlk.schedule.heuristics import factor_tiles
from rlk.schedule.schedule import Schedule, Span
from rlk.target.blocks import BLOCKS
from rlk.target.facts import Target

WAVES = 4
SQUARE = 64  # rows and columns of a tile that a kernel may choose
FEW_ROWS = 32  # of a tile whose columns are a whole chunk
DEPTH = {DotModel.FMA: 16}
HALF_DEPTH = 32  # of a step with factors of 16 bits
DEPTHS = (64, 32, 16)  # of such a step where shared memory is scarce, the best first
PLACE = 8  # bytes of shared memory that say where a row of a factor starts


def by_waves(
    program: Program, chosen: Sequence[Schedule], extents: Mapping[str, int], on: Target
) -> tuple[Schedule, ...]:
    """Return the schedules of a program's kernels, those of contractions with tiles for matrix cores."""
    return tuple(
        waves(kernel, schedule, extents, on) for kernel, schedule in zip(program.kernels, chosen, strict=True)
    )


def waves(kernel: Kernel, chosen: Schedule, extents: Mapping[str, int], on: Target) -> Schedule:
    """Return a kernel's schedule; another one than was chosen only where it contracts."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found) if found.contracted else None
    if sides is None:
        return chosen
    whole = dict(found.inside)
    rows, columns = sides
    tiles: dict[Axis, int] = {}
    for axis, other in ((rows, columns), (columns, rows)):
        if axis not in whole:
            tiles[axis] = FEW_ROWS if other in whole else SQUARE
    models = {let.node.model for let in walk(kernel.body) if isinstance(let.node, Dot)}
    depth = min(DEPTH.get(model, HALF_DEPTH) for model in models)
    if on.vendor == "nvidia":
        depth = _deepest([tiles.get(axis) or whole[axis] for axis in (rows, columns)], on)
    named = tuple(sorted((str(axis), tile) for axis, tile in tiles.items()))
    of_rows = (tiles.get(rows) or whole[rows]).bit_length() - 1
    # a wave has the columns of its rows, so that sums along them leave no wave
    apart = WAVES.bit_length() - 1
    placed = (Span(str(columns), 0, on.warp.bit_length() - 1), Span(str(rows), of_rows - apart, apart))
    return Schedule(tiles=named, placed=placed, warps=WAVES, depth=depth)


def _deepest(sides: Sequence[int], on: Target) -> int:
    """Return the depth of the steps of a product that fit beside it."""
    product, lines = 4 * math.prod(sides), sum(sides)
    room = BLOCKS[on.name].shared if on.name in BLOCKS else 0
    fitting = (depth for depth in DEPTHS if product + lines * (2 * depth + PLACE) <= room)
    return next(fitting, DEPTHS[-1])
