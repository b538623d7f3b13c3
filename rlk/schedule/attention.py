"""Schedules of fused attention kernels (back-to-back GEMM): rows of a tile and streamed steps."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rlk.ir.dims import Axis, Part, extent_of
from rlk.ir.nodes import Const, Dot, Fn2, Kernel, Load, Loop, Map2, Math, MathFn
from rlk.ir.tree import padded
from rlk.ir.types import TileType
from rlk.passes.pack_gqa import indices_of, one_axis_of_rows
from rlk.passes.prologue import is_computed
from rlk.passes.walk import backward_slice, walk
from rlk.schedule.axes import Roles, roles, types_of
from rlk.schedule.schedule import Schedule
from rlk.target.facts import HOPPER, Target

TABLE = Path(__file__).parent / "tables" / "streams.toml"
ROWS_OF_WARPGROUP = 64
FEWEST_ROWS, MOST_ROWS = 16, 128  # rows of a tile: those of an MMA; those of two warpgroups' accumulators
WIDE = 128  # accumulator elements per row beyond which half as many rows fit
FEW_ROWS_STAGES, STAGES = 3, 2
CORES = 132  # SMs of the largest device
FILLED = 3 * CORES // 2
"""Programs from which pieces stay in one loop. One H200, a query each, 8 heads of keys, in us by parallel
pieces and by loops, with the most keys that a table has room for; pieces without keys were merged, too:

| sequences | 576 of 1536 keys | 576 of 8192 | 576 of 32768 | 4096 of 8192 |
|---|---|---|---|---|
| 8 | 24.1, 21.1 | 28.3, 21.4 | 51.0, 21.1 | 51.8, 118 |
| 16 | 26.7, 26.1 | 40.1, 25.2 | 86.6, 25.3 | 93.1, 142 |
| 32 | 42.1, 28.6 | 65.6, 28.3 | 154, 28.5 | 180, 154 |
"""
SLOWER_PERCENT = 107  # time of a row in tiles of two warpgroups, of that in tiles of three (decision 68)
LARGEST_STATES = 1 << 28  # limit of the bytes of parallel pieces' states
MERGED_ROWS = 4096
"""Rows of all heads from which pieces stay in one loop, measured where a row had a state of every piece that
a table has room for. Loops take 20 ns a key while one wave runs all tiles; merges about 1 ns for each such.
16 heads on 8 of 128, in us by loops and by parallel pieces; keys fill the table, but in the last column:

| queries | 512 keys | 1536 | 4096 | 8192 | 512, table of 8192 |
|---|---|---|---|---|---|
| 128 | 16.6, 23.3 | 36.0, 23.3 | 84.6, 58.3 | 164, 70 | 16.6, 49.6 |
| 512 | 16.4, 44.1 | 35.7, 52.7 | 84.1, 183 | 162, 219 | 16.4, 154 |
| 2 x 512 | 22.8, 79.9 | | | 171, 438 | |
"""


def fused_attention(kernel: Kernel, found: Roles, extents: Mapping[str, int], target: Target) -> Schedule:
    """Return the schedule: row tiles of the mean length of segments, and other axes whole."""
    rows = rows_of(kernel, found)
    if rows is None:
        return Schedule()
    held = {str(axis): padded(extents[axis.name]) for axis in columns(kernel, found)}
    wide = widest(kernel, found, extents)
    most = MOST_ROWS if wide <= WIDE else MOST_ROWS // 2
    tile = min(most, max(FEWEST_ROWS, padded(mean_rows(rows, extents))))
    if target.vendor == "amd":
        # two products beside the sums fill the registers of 4 waves of 64 lanes: no prefetched loads
        alone = replace(scheduled(str(rows), held, min(tile, MOST_ROWS // 2), wide), warps=4, stages=1)
        return scheduled(str(rows), held, tile, wide) if held else alone
    if target.name != HOPPER:
        # the choices below were measured on Hopper only
        return replace(scheduled(str(rows), held, tile, wide), descriptors=False)
    if by_table(kernel) or two_tensors(kernel):
        made = scheduled(str(rows), held, tile, wide)  # addresses take registers of all 8 warps
        widths = {*lengths_of_rows(kernel, found, extents)}
        decodes = tile == FEWEST_ROWS and widths == {WIDE} and by_table(kernel) and whole_pages(kernel)
        return _decoding(made, found, _programs(kernel, found, tile, extents)) if decodes else made
    if held and wide <= WIDE:
        # two programs per SM: one runs its products while the other runs exp2
        tile = min(tile, ROWS_OF_WARPGROUP)
    widths = lengths_of_rows(kernel, found, extents)
    # with wider rows, which warps share, ptxas serializes the wgmmas of a loop with TMA loads
    by_tma = bool(held) or max(widths) <= WIDE
    chosen = replace(
        scheduled(str(rows), held, tile, wide), descriptors=by_tma, shared_kv_descriptor=bool(held)
    )
    if chosen.stages < FEW_ROWS_STAGES and sums(kernel) > 1 and not held:
        return chosen  # two accumulators per row leave no registers for more stages
    chunk = max((n for axis, n in found.inside if axis.chunk is not None), default=0)
    needed = 2 * (tile + FEW_ROWS_STAGES * chunk) * sum(widths)
    return replace(chosen, stages=FEW_ROWS_STAGES if needed <= target.shared << 10 else STAGES)


def _programs(kernel: Kernel, found: Roles, tile: int, extents: Mapping[str, int]) -> int:
    """Return the number of row tiles, of all heads and segments."""
    rows, whole = rows_of(kernel, found), columns(kernel, found)
    assert rows is not None
    others = (extents.get(a.name, 1) for a in found.parallel if a not in (rows, *whole) and not a.piece)
    return math.prod(others) * -(-mean_rows(rows, extents) // tile)


def _decoding(chosen: Schedule, found: Roles, programs: int) -> Schedule:
    """Return the schedule of 16 rows over pages of whole steps.

    A lookup takes a stage: of three, none loads a step ahead. Five and two warps let three programs share a
    multiprocessor, each with its next step on the way; two stages and 128 registers let four, which is faster
    where all run at once and three per multiprocessor would not. One H200, 16 heads on 8, 576 keys, in us; of
    1 and 16 sequences pieces run in parallel:

    | sequences | 4 warps, 3 stages | 2, 5 | 4, 2, 128 registers |
    |---|---|---|---|
    | 1 | 19.2 | 18.7 | 22.2 |
    | 16 | 26.4 | 24.7 | 28.8 |
    | 64 | 52.0 | 52.4 | 47.7 |
    | 256 | 192.0 | 158.1 | 166.4 |
    """
    pieces = any(axis.part is Part.PIECE for axis in found.parallel)
    if not pieces and 3 * CORES < programs <= 4 * CORES:
        return replace(chosen, warps=4, stages=2, registers=128)
    return replace(chosen, warps=2, stages=5)


def head_axes(kernel: Kernel, found: Roles) -> tuple[Axis, ...]:
    """Return the axes of the row elements of factors and accumulators, which a tile has whole."""
    contracted = (axis for axis in found.contracted if axis.part is Part.ALL)
    return tuple(dict.fromkeys((*columns(kernel, found), *contracted)))


def lengths_of_rows(kernel: Kernel, found: Roles, extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the padded row lengths of the factors in a tile."""
    return tuple(padded(extents[axis.name]) for axis in head_axes(kernel, found))


def scheduled(rows: str, held: Mapping[str, int], tile: int, wide: int = 1) -> Schedule:
    """Return the schedule with tiles of `tile` rows; wide: accumulator elements per row."""
    many = tile >= MOST_ROWS or tile * max(wide, *held.values(), 1) > MOST_ROWS // 2 * WIDE
    tiles = {rows: tile, **{axis: max(FEWEST_ROWS, n) for axis, n in held.items()}}
    return Schedule(
        tiles=tuple(sorted(tiles.items())),
        warps=8 if many else 4,
        stages=STAGES if many else FEW_ROWS_STAGES,
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """Rows of a tile and pipeline stages, for factors and accumulators of at most `most` elements a row."""

    most: int
    rows: int
    stages: int
    why: str


@cache
def table() -> tuple[Entry, ...]:
    """Return the reviewed table, the narrowest sums first."""
    read = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(Entry(**entry) for entry in read["entry"])


def by_warpgroups(kernel: Kernel, chosen: Schedule, extents: Mapping[str, int]) -> Schedule:
    """Return the CuTe schedule, from the table.

    One consumer warpgroup where segments average at most 64 rows; three where they average more than 128 and
    the loop leaves registers; else two.
    """
    found = roles(kernel, extents)
    rows, wide = rows_of(kernel, found), max((extents[a.name] for a in head_axes(kernel, found)), default=1)
    entry = next((e for e in table() if wide <= e.most), None)
    if rows is None or entry is None:
        return chosen
    many = leaves_registers(kernel) and mean_rows(rows, extents) > MOST_ROWS
    most = entry.rows if many else min(entry.rows, MOST_ROWS)
    if most > MOST_ROWS and by_table(kernel):  # few queries of many keys: tiles are long, and alike
        most = min(MOST_ROWS, most, key=lambda tile: _time_of_waves(kernel, found, tile, extents))
    tile = most if mean_rows(rows, extents) > ROWS_OF_WARPGROUP else ROWS_OF_WARPGROUP
    warps = 8 if tile > ROWS_OF_WARPGROUP else 4
    return replace(chosen, stages=entry.stages, warps=warps, shared_kv_descriptor=False).with_tile(
        str(rows), tile
    )


def _time_of_waves(kernel: Kernel, found: Roles, tile: int, extents: Mapping[str, int]) -> int:
    """Return the time of all tiles, one per multiprocessor, in rows of three warpgroups."""
    rows, whole = rows_of(kernel, found), columns(kernel, found)
    assert rows is not None
    others = (extents.get(a.name, 1) for a in found.parallel if a not in (rows, *whole))
    return time_of_waves(math.prod(others), mean_rows(rows, extents), tile)


def time_of_waves(segments: int, mean: int, tile: int) -> int:
    """Return the time of the tiles of segments with `mean` rows each, in rows of three warpgroups."""
    tiles = segments * -(-mean // tile)
    return -(-tiles // CORES) * (tile if tile > MOST_ROWS else tile * SLOWER_PERCENT // 100)


def leaves_registers(kernel: Kernel) -> bool:
    """Return whether loops carry a softmax state, compute no function but exp2, and look up whole pages."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    nodes = {let.value: let.node for loop in loops for let in loop.body.lets}
    carries = any(not isinstance(nodes.get(v), Dot) for loop in loops for v in loop.body.results)
    powers = all(n.fn is MathFn.EXP2 for n in nodes.values() if isinstance(n, Math))
    return carries and powers and (not by_table(kernel) or whole_pages(kernel))


def by_table(kernel: Kernel) -> bool:
    """Return whether steps load through a page table."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    lets = {let.value: let for loop in loops for let in loop.body.lets}
    loads = [let.node for let in lets.values() if isinstance(let.node, Load)]
    places = backward_slice([v for load in loads for v in load.index], lets)
    return any(isinstance(lets[value].node, Load) for value in places)


def whole_pages(kernel: Kernel) -> bool:
    """Return whether the rows of every step lie in one page: TMA loads them after a single lookup."""
    nodes = {let.value: let.node for let in walk(kernel.body)}
    for loop in (node for node in nodes.values() if isinstance(node, Loop)):
        loads = [let.node for let in walk(loop.body) if isinstance(let.node, Load)]
        for load in loads:
            index = [nodes.get(value) for value in load.index]
            if any(isinstance(node, Load) for node in index):
                slots = [nodes.get(x.b) for x in index if isinstance(x, Map2) and x.fn is Fn2.MOD]
                sizes = [node.bits for node in slots if isinstance(node, Const)]
                if not sizes or loop.axis.chunk is None or sizes[0] % loop.axis.chunk:
                    return False
    return True


def two_tensors(kernel: Kernel) -> bool:
    """Return whether a step loads from one of two tensors (prefix sharing)."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    loads = [let.node for loop in loops for let in loop.body.lets if isinstance(let.node, Load)]
    return any(load.fill is not None for load in loads)


def variety(kernel: Kernel, found: Roles, extents: Mapping[str, int], target: Target) -> tuple[Schedule, ...]:
    """Return schedules with other tiles, for tests: all must give the same bits."""
    rows = rows_of(kernel, found)
    held = {str(axis): padded(extents[axis.name]) for axis in columns(kernel, found)}
    made = [fused_attention(kernel, found, extents, target)]
    if rows is not None:
        wide = widest(kernel, found, extents)
        made += [scheduled(str(rows), held, tile, wide) for tile in (16, 32, 64, 128)]
    return tuple(dict.fromkeys(made))


def rows_axis(found: Roles) -> Axis | None:
    """Return the parallel axis of query rows, which are segments."""
    return next((axis for axis in found.parallel if axis.over is not None and axis.part is Part.ALL), None)


def rows_of(kernel: Kernel, found: Roles) -> Axis | None:
    """Return the axis of query rows: of segments, else one that computed factors have alone."""
    alone = alone_in_factors(kernel, found)
    rows = next((axis for axis in reversed(alone) if axis.dynamic), alone[-1] if alone else None)
    return rows_axis(found) or rows


def alone_in_factors(kernel: Kernel, found: Roles) -> tuple[Axis, ...]:
    """Return the parallel axes that a stream's computed factor has and the other factor lacks."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    stepped = {let.value for loop in loops for let in walk(loop.body)}
    lets, types = {let.value: let for let in walk(kernel.body)}, types_of(kernel)
    alone: dict[Axis, None] = {}
    for dot in (lets[value].node for value in lets if value in stepped):
        if isinstance(dot, Dot) and is_computed(dot, lets):
            for factor, other in ((dot.a, dot.b), (dot.b, dot.a)):
                one, two = types[factor], types[other]
                assert isinstance(one, TileType) and isinstance(two, TileType)
                if factor not in lets or not isinstance(lets[factor].node, Load):
                    alone.update(dict.fromkeys(x for x in one.axes if x not in two.axes))
    return tuple(axis for axis in found.parallel if axis in alone)


def columns(kernel: Kernel, found: Roles) -> tuple[Axis, ...]:
    """Return the column axes of accumulators; a program has all their columns."""
    types = types_of(kernel)
    rows = alone_in_factors(kernel, found) if rows_axis(found) is None else ()
    made: dict[Axis, None] = {}
    for let in walk(kernel.body):
        if isinstance(let.node, Dot):
            a, b = (types[v] for v in (let.node.a, let.node.b))
            assert isinstance(a, TileType) and isinstance(b, TileType)
            alone = (*(x for x in b.axes if x not in a.axes), *(x for x in a.axes if x not in b.axes))
            whole = (x for x in alone if x in found.parallel and not x.dynamic and x not in rows)
            made.update(dict.fromkeys(whole))
    return tuple(made)


def sums(kernel: Kernel) -> int:
    """Return the largest number of values that a loop carries."""
    return max((len(let.node.types) for let in walk(kernel.body) if isinstance(let.node, Loop)), default=0)


def widest(kernel: Kernel, found: Roles, extents: Mapping[str, int]) -> int:
    """Return the elements of the widest accumulator row."""
    held = {*columns(kernel, found), *(axis for axis in found.contracted if axis.part is Part.ALL)}
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    carried = {axis for loop in loops for type in loop.types for axis in type.axes}
    return max((padded(extents[axis.name]) for axis in held & carried), default=1)


def mean_rows(axis: Axis, extents: Mapping[str, int]) -> int:
    """Return an upper bound of the mean number of rows of a segment."""
    return max(1, indices_of(axis, extents) // max(1, extents.get(axis.over or "", 1)))


def parallel_pieces(kernel: Kernel, extents: Mapping[str, int]) -> set[str]:
    """Return the name of the streamed axis whose pieces should run in parallel (split-KV, flash decoding).

    They should if one program per row tile would not fill the device, their rows are few (MERGED_ROWS), and
    their states fit in LARGEST_STATES.
    """
    walked = one_axis_of_rows(kernel, extents)
    found = roles(walked, extents)
    loops = [let.node for let in walk(walked.body) if isinstance(let.node, Loop)]
    streamed = next((loop.axis for loop in loops if loop.axis.leaf == "piece"), None)
    rows = rows_axis(found)
    if streamed is None or streamed.name not in extents or rows is None:
        return set()
    whole = columns(walked, found)
    others = [extents.get(axis.name, 1) for axis in found.parallel if axis not in (rows, *whole)]
    wide = math.prod(extents.get(axis.name, 1) for axis in whole)
    segments = max(1, extents.get(rows.over or "", 1))
    pieces = extent_of(streamed.pieces, extents[streamed.name])
    merged = math.prod(others) // segments * indices_of(rows, extents)
    programs = math.prod(others) * -(-mean_rows(rows, extents) // MOST_ROWS)
    few = programs < FILLED and merged < MERGED_ROWS and 4 * merged * (wide + 2) * pieces <= LARGEST_STATES
    return {streamed.name} if pieces > 1 and few else set()
