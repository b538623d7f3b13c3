"""How contractions are placed on Hopper by warpgroups: blocks in clusters, tiles that fill the cores."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Axis, extent_of
from rlk.ir.nodes import Kernel
from rlk.schedule.axes import kind, roles
from rlk.schedule.heuristics import factor_tiles, facts_of
from rlk.schedule.rows import rows as placed_rows
from rlk.schedule.schedule import Schedule
from rlk.schedule.warpgroups import FEW, ROWS, Warpgroups, most_stages, tabled
from rlk.target.facts import Target

FEW_ROWS = ROWS[0]
COLUMNS = (256, 128, 64, 32)
GROUP = 8  # row tiles of a cluster that go through the columns together
BEST = (128, 2)
SPEEDS = {BEST: 1.0, (128, 1): 0.95, (64, 2): 0.92, (64, 1): 0.85}
"""Of rows of a tile and tiles of a cluster, beside the best: 8192 x 128256 x 4096 took 13.37 alone for 12.65,
and 256 to 1024 x 14336 in tiles of 64 rows 0.90 to 0.93 (docs/measured/cute.md); 64 rows alone by traffic."""


def warpgroups(kernel: Kernel, chosen: Schedule, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a kernel for a lowering that places threads itself.

    That of the reviewed table, else one whose tiles fill the cores.
    """
    if kind(kernel) not in ("dot_map", "stream_dot"):
        return placed_rows(kernel, chosen, extents)
    facts = facts_of(kernel, target, extents)
    if facts is None:
        return chosen
    use = tabled(facts) or _filling(kernel, target, extents)
    return scheduled(use, kernel, chosen, target, extents)


def scheduled(
    use: Warpgroups, kernel: Kernel, chosen: Schedule, target: Target, extents: Mapping[str, int]
) -> Schedule:
    """Return the schedule that a tiling gives a contraction; other kernels keep the chosen one."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    return chosen if sides is None else use.schedule(chosen, sides, dict(found.inside), target.cores)


def _filling(kernel: Kernel, target: Target, extents: Mapping[str, int]) -> Warpgroups:
    """Return tiles that fill the cores, and leave few of their rows empty."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    assert sides is not None
    count = _extent(sides[0], extents, 0)
    wide = dict(found.inside).get(sides[1])
    if 0 < count <= FEW[-1] and wide is None:
        fewest = next(n for n in FEW if n >= count)
        return Warpgroups(fewest, FEW_ROWS, most_stages(fewest, FEW_ROWS), GROUP)
    rows, cluster = min(SPEEDS, key=lambda use: _padded(count, use) / SPEEDS[use]) if count else BEST
    row_tiles = -(-(count or rows) // rows)
    if wide is None:
        wide = _extent(sides[1], extents, COLUMNS[0])
        filling = (n for n in COLUMNS if row_tiles * -(-wide // n) >= target.cores)
        columns = next(filling, COLUMNS[-1])
    else:
        columns = next((n for n in COLUMNS if n <= wide), COLUMNS[-1])  # what blocks hold whole stays so
    return Warpgroups(rows, columns, most_stages(rows, columns), GROUP, cluster)


def _padded(count: int, use: tuple[int, int]) -> int:
    """Return how many rows are multiplied for so many, in tiles of some rows and clusters of some tiles."""
    each = use[0] * use[1]
    return -(-count // each) * each


def _extent(axis: Axis, extents: Mapping[str, int], unknown: int) -> int:
    return extent_of(axis, extents[axis.name]) if axis.name in extents else unknown
