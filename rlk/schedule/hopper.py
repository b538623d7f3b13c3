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

FEW_ROWS, MANY_ROWS = ROWS
COLUMNS = (256, 128, 64, 32)
GROUP = 8  # row tiles of a cluster that go through the columns together


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
    """Two blocks share what they copy of the columns, where there are two tiles of rows."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    assert sides is not None
    count = _extent(sides[0], extents, MANY_ROWS)
    if count <= FEW[-1] and sides[1] not in dict(found.inside):
        fewest = next(n for n in FEW if n >= count)
        return Warpgroups(fewest, FEW_ROWS, most_stages(fewest, FEW_ROWS), GROUP)
    rows = FEW_ROWS if count <= FEW_ROWS else MANY_ROWS
    row_tiles = -(-count // rows)
    wide = dict(found.inside).get(sides[1])
    if wide is None:
        wide = _extent(sides[1], extents, COLUMNS[0])
        filling = (n for n in COLUMNS if row_tiles * -(-wide // n) >= target.cores)
        columns = next(filling, COLUMNS[-1])
    else:
        columns = next((n for n in COLUMNS if n <= wide), COLUMNS[-1])  # what blocks hold whole stays so
    cluster = 2 if row_tiles > 1 else 1
    return Warpgroups(rows, columns, most_stages(rows, columns), GROUP, cluster)


def _extent(axis: Axis, extents: Mapping[str, int], unknown: int) -> int:
    return extent_of(axis, extents[axis.name]) if axis.name in extents else unknown
