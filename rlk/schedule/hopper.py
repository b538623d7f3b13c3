"""How contractions are placed on Hopper by warpgroups: blocks in clusters, tiles that fill the cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlk.ir.dims import extent_of
from rlk.ir.nodes import Kernel
from rlk.schedule.axes import kind, roles
from rlk.schedule.heuristics import factor_tiles
from rlk.schedule.rows import rows as placed_rows
from rlk.schedule.schedule import MAX_STAGES, Schedule
from rlk.target.facts import Target

ROWS = 128  # of two warpgroups
FEW_ROWS = 64
COLUMNS = (256, 128, 64, 32)
DEPTH = 64
GROUP = 8  # row tiles of a cluster that go through the columns together
STAGE = 2 * DEPTH  # bytes of a row of a tile
ROOM = 224 << 10  # bytes of stages


def warpgroups(kernel: Kernel, chosen: Schedule, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a kernel for a lowering that places threads itself.

    Two blocks share what they copy of the columns, where there are two tiles of rows.
    """
    if kind(kernel) not in ("dot_map", "stream_dot"):
        return placed_rows(kernel, chosen, extents)
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    if sides is None:
        return chosen
    count = extent_of(sides[0], extents[sides[0].name]) if sides[0].name in extents else ROWS
    rows = FEW_ROWS if count <= FEW_ROWS else ROWS
    row_tiles = -(-count // rows)
    columns = dict(found.inside).get(sides[1])
    if columns is None:
        name = sides[1].name
        wide = extent_of(sides[1], extents[name]) if name in extents else COLUMNS[0]
        filling = (n for n in COLUMNS if row_tiles * -(-wide // n) >= target.cores)
        columns = next(filling, COLUMNS[-1])
    held = dict(found.inside)
    tiles = tuple(sorted((str(a), n) for a, n in zip(sides, (rows, columns), strict=True) if a not in held))
    return replace(
        chosen,
        tiles=tiles,
        stages=max(2, min(MAX_STAGES, ROOM // (STAGE * (rows + columns)))),
        depth=DEPTH,
        group=GROUP,
        programs=target.cores,
        cluster=2 if row_tiles > 1 else 1,
        flat=False,
        parts=1,
    )
