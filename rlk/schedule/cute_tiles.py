"""CuTe schedules of contractions on Hopper: warpgroup tiles and clusters that fill the SMs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rlk.ir.dims import Axis, extent_of
from rlk.ir.nodes import Dot, Kernel, Load, Loop, Program, Store
from rlk.ir.types import DType, TileType
from rlk.passes.pack_gqa import indices_of
from rlk.passes.piecewise_launch import one_piece
from rlk.passes.prologue import prologue
from rlk.passes.walk import walk
from rlk.schedule.attention import by_warpgroups as streams
from rlk.schedule.axes import kind, roles, types_of
from rlk.schedule.cute_table import (
    DEPTH,
    FEW,
    FEWEST_STAGES,
    ROWS,
    Warpgroups,
    accumulators,
    most_accumulators,
    most_stages,
    room_of_stages,
    tabled,
)
from rlk.schedule.cute_warps import by_warps
from rlk.schedule.entries import MORE, row_class
from rlk.schedule.heuristics import factor_tiles, facts_of
from rlk.schedule.rows import rows as placed_rows
from rlk.schedule.schedule import MAX_STAGES, Schedule
from rlk.target.facts import Target

FEW_ROWS = ROWS[0]
COLUMNS = (256, 128, 64, 32)
MORE_COLUMNS = (256, 192, 160, 128, 96, 64, 48, 32)  # of factors whose rows are contiguous
LOOPED_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32))  # several accumulators fit
NARROW = 64  # columns of a tile whose accumulators leave registers for an epilogue with loads
SHORT = 256  # elements of a piece: the compiler unrolls shorter loops, which takes registers
GROUP = 8  # row tiles of a cluster that are consecutive along the columns (L2 reuse)
BEST = (128, 2)
SHARED = 512  # mean rows of a segment from which two tiles of rows share loads
EQUAL = 0.85  # least share of SMs that load at any time
SPEEDS = {BEST: 1.0, (128, 1): 0.95, (64, 2): 0.92, (64, 1): 0.62}
"""Speeds by (rows of a tile, blocks of a cluster), relative to the best. 8192 x 128256 x 4096 took 13.37 ms
without a cluster and 12.65 with; tiles of 64 rows had 0.90 to 0.93 of the speed for 256 to 1024 x 14336; 300
x 128256 in tiles of 64 rows without a cluster took as long as 512 rows of the best
(docs/measured/cute.md)."""

WIDTHS = {256: 1.0, 192: 0.93, 160: 0.9, 128: 0.92, 96: 0.8, 64: 0.76, 48: 0.65, 32: 0.6}
"""Speeds by columns of a tile, relative to 256: low ones, so that narrow tiles are chosen for fewer waves
alone. 1024 x 14336 has 0.875 of the waves with 128 columns and took 0.949 of the time; one wave of 128
columns for 512 x 4096 took 0.81 to 0.90 of the time of two waves of 64 (warpgroups.toml). Those of 192, 160,
96 and 48 are guesses."""


def warpgroups(kernel: Kernel, chosen: Schedule, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the CuTe schedule of a kernel: from the reviewed table, else with tiles that fill the SMs."""
    if kind(kernel) == "back_to_back_gemm":
        return streams(kernel, chosen, extents)
    if kind(kernel) not in ("dot_map", "stream_dot"):
        return placed_rows(kernel, chosen, extents)
    if one_piece(kernel) is not None:
        return scheduled(_looping(kernel, target, extents), kernel, chosen, target, extents)
    facts, sides = facts_of(kernel, target, extents), factor_tiles(kernel, roles(kernel, extents))
    if facts is None or sides is None:
        return chosen
    if any(isinstance(let.node, Loop) for let in kernel.body.lets):
        return scheduled(_in_loop(kernel, sides, target, extents), kernel, chosen, target, extents)
    if sides[0].over is not None:
        use = _of_segments(sides, target, extents)
    else:
        use = tabled(facts) or _filling(kernel, target, extents, facts.dots)
    if facts.dots > 1:
        use = _of_several(use, facts.dots)
    if sides[1] in _of_computed(kernel):
        use = _in_registers(use)
        if sides[0].over is None and use.rows < FEW_ROWS:
            use = _converted(*(_extent(side, extents, use.rows) for side in sides), target)
    return scheduled(use, kernel, chosen, target, extents)


def pieces_in_sequence(program: Program, target: Target, extents: Mapping[str, int]) -> bool:
    """Return whether blocks should loop over all pieces of their contraction and add them in registers.

    program: specialized. They should if there are tiles for half of the SMs; else pieces run in parallel, or
    are launched one after the other.
    """
    return may_loop_over_pieces(program) and all(
        _tiles(k, _looping(k, target, extents), extents) * 2 >= target.cores for k in program.kernels
    )


def may_loop_over_pieces(program: Program) -> bool:
    """Return whether blocks of a program without host loops could loop over all pieces of contractions."""
    return all(one_piece(kernel) is not None for kernel in program.kernels)


def by_warpgroups(
    program: Program, chosen: Iterable[Schedule], target: Target, extents: Mapping[str, int]
) -> tuple[Schedule, ...]:
    """Return the CuTe schedules of a program's kernels."""
    pairs = zip(program.kernels, chosen, strict=True)
    return tuple(warpgroups(kernel, schedule, target, extents) for kernel, schedule in pairs)


def scheduled(
    use: Warpgroups, kernel: Kernel, chosen: Schedule, target: Target, extents: Mapping[str, int]
) -> Schedule:
    """Return the schedule that a tiling gives a contraction; other kernels keep the chosen one."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    if (
        sides is not None
        and use.columns not in COLUMNS
        and use.columns % DEPTH
        and _contiguous(kernel, sides[1])
    ):
        columns = max(n for n in COLUMNS if n < use.columns)
        use = replace(use, columns=columns, stages=min(use.stages, most_stages(use.rows, columns)))
    if one_piece(kernel) is not None:
        most = most_stages(use.rows, use.columns, use.per_core, _pieces(kernel))
        use = replace(use, stages=min(use.stages, most))
    if sides is None:
        return chosen
    made = use.schedule(chosen, sides, dict(found.inside), target.cores)
    alone = sides[1] not in dict(found.inside) and by_warps(kernel, sides[1], use.rows)
    if use.cluster == 1 and alone:
        return replace(made, depth=2 * DEPTH, stages=_stages_of_bytes(use, target))
    return made


def _filling(kernel: Kernel, target: Target, extents: Mapping[str, int], products: int) -> Warpgroups:
    """Return tiles that fill the SMs with little padding of rows, and have so many accumulators."""
    widths = _widths(products)
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
        powers = _contiguous(kernel, sides[1]) or sides[1] in _of_computed(kernel)
        widths = widths if powers or products > 1 else MORE_COLUMNS
        waves = {n: -(-row_tiles * -(-wide // n) // target.cores) for n in widths}
        if rows == FEW_ROWS:  # bound by loads
            columns = min(widths, key=lambda n: waves[n] * (products * n + min(count or rows, rows)))
        else:
            columns = min(widths, key=lambda n: waves[n] * n / WIDTHS[n])
    else:
        columns = next((n for n in widths if n <= wide), widths[-1])  # an axis that blocks have whole stays
    return Warpgroups(rows, columns, most_stages(rows, columns), GROUP, cluster)


def _widths(products: int) -> tuple[int, ...]:
    """Return the columns of tiles for whose accumulators registers have room."""
    return tuple(n for n in COLUMNS if products <= most_accumulators(n)) or COLUMNS[-1:]


def _of_several(use: Warpgroups, products: int) -> Warpgroups:
    """Return tiles for several products that share rows or columns: a stage has a tile of each other side."""
    columns = use.columns if use.rows < FEW_ROWS else min(use.columns, _widths(products)[0])
    return replace(use, columns=columns, stages=most_stages(use.rows, columns), per_core=1)


def _contiguous(kernel: Kernel, columns: Axis) -> bool:
    """Return whether the elements of a factor along the columns of tiles are contiguous."""
    types, lets = types_of(kernel), {let.value: let.node for let in walk(kernel.body)}
    factors = [lets[v] for dot in lets.values() if isinstance(dot, Dot) for v in (dot.a, dot.b) if v in lets]
    ends = [types[node.index[-1]] for node in factors if isinstance(node, Load)]
    return any(isinstance(type, TileType) and columns in type.axes for type in ends)


def _of_segments(sides: tuple[Axis, Axis], target: Target, extents: Mapping[str, int]) -> Warpgroups:
    """Return the tiles of rows in segments, whose lengths no host knows, by their mean number of rows."""
    rows, wide = sides
    count, length = indices_of(rows, extents), _extent(wide, extents, COLUMNS[0])
    segments = max(1, extents.get(rows.over or "", 1))
    each = max(1, -(-count // segments))
    if each <= FEW[-1] // 2:
        return _of_few(each, min(count, segments), length, target)
    if each <= FEW_ROWS:
        return Warpgroups(FEW_ROWS, BEST[0], most_stages(FEW_ROWS, BEST[0]), GROUP)
    tiles = -(-count // BEST[0])
    filling = (n for n in COLUMNS if n < 2 * length and tiles * -(-length // n) >= target.cores)
    columns = next(filling, FEW_ROWS)
    cluster = 2 if each >= SHARED else 1
    return Warpgroups(BEST[0], columns, most_stages(BEST[0], columns), GROUP, cluster)


def _of_computed(kernel: Kernel) -> frozenset[Axis]:
    """Return the axes of factors that are computed from their tiles."""
    lets = {let.value: let for let in walk(kernel.body)}
    dots = [let.node for let in lets.values() if isinstance(let.node, Dot)]
    made = [prologue(v, dot.over, lets) for dot in dots for v in (dot.a, dot.b)]
    types = [each[-1].type for each in made if each]
    return frozenset(axis for type in types if isinstance(type, TileType) for axis in type.axes)


def _in_registers(use: Warpgroups) -> Warpgroups:
    """Return tiles whose columns are the rows of an instruction: two warpgroups hold A.

    Not measured yet.
    """
    columns = min(use.columns, BEST[0])
    stages = most_stages(use.rows, columns, use.per_core)
    return use if use.rows < FEW_ROWS else replace(use, columns=columns, stages=stages, cluster=1)


def _converted(count: int, wide: int, target: Target) -> Warpgroups:
    """Return the tiles of few rows beside a computed factor, bound by its conversions in registers.

    They are as narrow as the rows allow, and on as many SMs as there are: two blocks of 64 columns share an
    SM where blocks of 128 leave some idle. 12288 x 4096 takes as long as by one block of 128 columns an SM
    where L2 has to write back modified lines (decision 70); not measured elsewhere.
    """
    rows = next(n for n in FEW if n >= count)
    tiles = -(-wide // BEST[0])
    full = tiles >= EQUAL * target.cores * -(-tiles // target.cores)
    columns, per_core = (BEST[0], 1) if full else (FEW_ROWS, 2)
    return Warpgroups(rows, columns, most_stages(rows, columns, per_core), GROUP, 1, per_core)


def _stages_of_bytes(use: Warpgroups, target: Target) -> int:
    """Return the stages that fit of steps of 128 elements: bytes of columns, and 16-bit elements of rows."""
    room = room_of_stages(target, use.columns // 16, 0, use.per_core)
    return max(FEWEST_STAGES, min(MAX_STAGES, room // (2 * DEPTH * (use.columns + 2 * use.rows))))


def _of_few(each: int, segments: int, length: int, target: Target) -> Warpgroups:
    """Return the tiles of segments of few rows, bound by loads of what the rows are multiplied with.

    They are the columns of an instruction: a segment reads its factor once, in one tile of twice the mean.
    SMs have equal shares of loads, or tiles are smaller, down to 32 rows of the factor as the columns.
    """
    few = next(n for n in FEW if n >= 2 * each)
    cluster = 2 if few == FEW[-1] else 1  # of blocks that share the rows, a fifth of all loads
    wide = Warpgroups(few, BEST[0], most_stages(few, BEST[0]), GROUP, cluster)
    half = Warpgroups(few, FEW_ROWS, most_stages(few, FEW_ROWS, 2), GROUP, 1, 2)
    narrow = Warpgroups(FEW_ROWS, COLUMNS[-1], most_stages(FEW_ROWS, COLUMNS[-1], 3), GROUP, 1, 3)
    for use in (wide, half, narrow):
        tiles = segments * -(-length // use.columns)
        if tiles >= EQUAL * target.cores * -(-tiles // target.cores):
            return use
    return narrow


def _in_loop(
    kernel: Kernel, sides: tuple[Axis, Axis], target: Target, extents: Mapping[str, int]
) -> Warpgroups:
    """Return tiles whose accumulator has registers beside the sum of earlier pieces. Not measured yet."""
    counts = [_extent(side, extents, BEST[0]) for side in sides]
    found = roles(kernel, extents)
    each = math.prod(_extent(axis, extents, 1) for axis in found.parallel if axis not in sides)
    for rows, columns in LOOPED_TILES:
        if each * -(-counts[0] // rows) * -(-counts[1] // columns) * 4 >= target.cores * 3:
            break
    return Warpgroups(rows, columns, most_stages(rows, columns), GROUP, 2 if counts[0] > rows else 1)


def _padded(count: int, use: tuple[int, int]) -> int:
    """Return the number of rows padded to whole clusters; use: rows of a tile, tiles of a cluster."""
    each = use[0] * use[1]
    return -(-count // each) * each


def _looping(kernel: Kernel, target: Target, extents: Mapping[str, int]) -> Warpgroups:
    """Return the largest tile that leaves few SMs idle, with accumulators for the partial sums of pieces."""
    sides = factor_tiles(kernel, roles(kernel, extents))
    assert sides is not None
    count, pieces = _rows(sides[0], extents), _pieces(kernel)
    narrow = _needs_registers(kernel, sides) or _extent(_contracted(kernel), extents, 0) < SHORT
    sizes = (
        (rows, columns)
        for rows, columns in LOOPED_TILES
        if (rows == FEW_ROWS or count > FEW_ROWS) and (columns <= NARROW or not narrow)
    )
    found = [Warpgroups(r, c, most_stages(r, c, 1, pieces), GROUP, 2 if count > r else 1) for r, c in sizes]
    busy = (use for use in found if _tiles(kernel, use, extents) * 4 >= target.cores * 3)
    return next(busy, found[-1])


def in_registers(kernel: Kernel, extents: Mapping[str, int]) -> bool:
    """Return whether the factor of the columns is computed: they are the rows of instructions then."""
    sides = factor_tiles(kernel, roles(kernel, extents))
    return sides is not None and sides[1] in _of_computed(kernel)


def fits(use: Warpgroups, kernel: Kernel) -> bool:
    """Return whether blocks of a tiling have room for a kernel's accumulators, or a factor in registers."""
    if any(isinstance(let.node, Loop) for let in kernel.body.lets):
        return use.rows in ROWS and accumulators(use.columns, 2)[0] > 1
    if one_piece(kernel) is None:
        products = sum(isinstance(let.node, Dot) for let in walk(kernel.body))
        room = use.rows < FEW_ROWS or products <= most_accumulators(use.columns)
        return room and (use.columns in ROWS or not _of_computed(kernel))  # rows of warpgroups
    held, shared = accumulators(use.columns, _pieces(kernel))
    return use.rows in ROWS and held > 1 + shared and shared < 2


def _contracted(kernel: Kernel) -> Axis:
    return next(let.node.over for let in walk(kernel.body) if isinstance(let.node, Dot))


def _pieces(kernel: Kernel) -> int:
    """Return the number of pieces of a kernel that loops over them."""
    return _contracted(kernel).split or 1


def _needs_registers(kernel: Kernel, sides: tuple[Axis, Axis]) -> bool:
    """Return whether the epilogue loads a tile, or stores f32: both need registers."""
    types = types_of(kernel)
    met = [types[x.value] for x in walk(kernel.body) if isinstance(x.node, Load)]
    written = [types[x.node.value] for x in walk(kernel.body) if isinstance(x.node, Store)]
    tiles = [t for t in met if isinstance(t, TileType) and set(sides) <= set(t.axes)]
    return bool(tiles) or any(isinstance(t, TileType) and t.dtype is DType.F32 for t in written)


def _tiles(kernel: Kernel, use: Warpgroups, extents: Mapping[str, int]) -> int:
    """Return the number of tiles of a contraction."""
    sides = factor_tiles(kernel, roles(kernel, extents))
    assert sides is not None
    return -(-_rows(sides[0], extents) // use.rows) * -(-_extent(sides[1], extents, NARROW) // use.columns)


def _rows(axis: Axis, extents: Mapping[str, int]) -> int:
    """Return the rows of a call, rounded up to their class (not in the last class)."""
    count = _extent(axis, extents, BEST[0])
    return row_class(count) if row_class(count) < MORE else count


def _extent(axis: Axis, extents: Mapping[str, int], unknown: int) -> int:
    return extent_of(axis, extents[axis.name]) if axis.name in extents else unknown
