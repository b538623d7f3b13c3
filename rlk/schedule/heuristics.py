"""Default schedules, from dataflow and extents, never from names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from rlk.ir.dims import Axis, Part, extent_of
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Combine, Dot, Kernel, Load, Loop, Math, Merge, Program, Reduce, Role, Select, Store
from rlk.ir.tree import padded
from rlk.ir.types import DType, TileType, Type, tile_axes
from rlk.passes.rotation import windows
from rlk.passes.rows_beside import name_of
from rlk.passes.walk import backward_slice, walk
from rlk.schedule.attention import fused_attention, parallel_pieces, rows_axis
from rlk.schedule.attention import variety as attention_variety
from rlk.schedule.axes import Roles, kind, roles, types_of
from rlk.schedule.entries import Facts, row_class
from rlk.schedule.rows import carried_columns, carried_matrix
from rlk.schedule.schedule import LARGEST_TILE, Schedule, Span
from rlk.schedule.triton_table import UNEVEN_DEPTH, Tiling, tabled
from rlk.target.facts import Target

ELEMENTWISE = 2048  # elements of a program without reductions
WASTE = 9 / 8  # elements that tiles of an axis cover, of those that exist, above which half a tile is tried
ROWS = 1024  # elements of a program with several short rows
FOLD = 4096  # elements of one step of a fold along rows
SQUARE = 1 << 14  # elements of a step of a row along two axes: 32 registers a lane
SQUARE_THREADS = 512
SQUARE_THREADS_ALONE = 128
"""Of a row along two axes without a loop. The end of a sampler's walk of 64 rows takes 11.6 us by Triton on
an H200, 11.4 by 256 threads, 15.5 by 512."""
VECTOR_BITS = 3  # of 16-bit elements in a 16-byte load
UNROLLED = 128  # nodes of an unrolled loop
MERGED_AHEAD = 32  # the most steps whose states of few rows are in flight together
THREADS = 1024  # the most of a program
LONGEST_LANE = 64  # elements of a row that a lane has
WIDEST_LANE = 32  # elements of a lane that has a row, the next ones and a sum of them: with more it spills
SUMMED_VECTOR, SUMMED_ROWS = 8, 8  # of sums of rows: elements of a lane, and rows whose loads are in flight
GATHERED_LANE, GATHERED_REGISTERS = 8, 80
"""Elements and registers of a lane where chunks are read at loaded indices: 24 warps an SM. The tokens of a
loss of 16.8 M take 113 us on an H200 so, 114 with 64 registers, 120 with 96; 118 with 16 elements and 128."""
STREAMING_WARPS, STREAMED_AHEAD = 8, 8
"""Warps of a program that streams a whole row where programs leave SMs idle, and the chunks whose loads are
in flight together. A sampler of 1, 16, 64 rows of 151936 takes 42, 45, 65 us on an H200 so; with 16 chunks
46, 48, 68; by 2 warps with one chunk 96, 102, 124."""
FEW_WARPS = 4  # of a row with one sum after the other: each waits for all of its warps
WIDEST_STATE = 64  # columns that a program has of a carried matrix
LONGEST_STATE = 256  # elements of such a column: two lanes for each
STATE_COLUMNS = 16  # columns of such matrices for each core, from which programs have several
WHOLE_STATE = 1024  # elements of a carried matrix that a program has whole, from which CuTe runs it
ROWS_ALONE = 1024  # rows below which a stream's pieces run in parallel
LANES = 128  # terms of a chunk above which its dims are placed explicitly
ACCUMULATOR = 1 << 15  # elements of a contraction's tile: 128 registers a lane of 8 warps
FMA_ACCUMULATOR = 1 << 13  # of a contraction by fma, without a matrix unit
PROGRAMS = 128  # of loops over pieces of rows: fewer leave SMs idle
WIDEST_SUM = 8192  # elements of a row beside its sum: 32 registers each of 8 warps' lanes
DOT_ROWS = 128
DOT_GROUP = 16  # consecutive row tiles of a column tile, whose factors stay in L2
DOT_STAGES = 4
SMALLEST_TILE = 16  # of a matrix unit
LARGEST_TMA_TILE = 256  # columns of the largest tile of a TMA load
FEW_ROWS, CROWDED_WARPS = 64, 8  # tile and warps of a fold that needs registers beside its scores
WAVE_ROWS = 32  # of such a fold by 8 waves of 64 lanes, 256 registers each: Triton 3.5 and 3.6 spill beyond
PARTS = 4  # parts of a wide tile's epilogue, one after the other, if it needs registers


def choose(kernel: Kernel, target: Target, signature: object, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a specialized kernel on a target.

    extents: of all axes in this call. Of dynamic axes only the class of the extent matters (see
    `entries.ROW_CLASSES`), so that a kernel has few variants.
    """
    found = roles(kernel, extents)
    if kind(kernel) == "back_to_back_gemm":
        return fused_attention(kernel, found, extents, target)
    if found.contracted:
        return _contraction(kernel, found, target, extents)
    lengths = dict(found.inside)
    lanes = next((a for a in lengths if a.part is Part.LANE and a.split and lengths[a] >= LANES), None)
    if lanes is not None and lanes.pieces in (*lengths, *found.parallel):
        rotated = any(window.lanes == lanes for window in windows(kernel, extents))
        placed = pieces_as_lanes(
            lanes, lengths, rotated or extents.get(lanes.name, 0) % (8 * lanes.split) == 0
        )
        return placed if lanes.pieces in lengths else placed.with_tile(str(lanes.pieces), lanes.split or 1)
    match kind(kernel):
        case "col_fold" if found.parallel:
            return _columns(found, extents)
        case "merge":
            return _partials(kernel, found, target, extents)
        case _:
            return _rows(kernel, found, target, extents)


def apart(program: Program, extents: Mapping[str, int]) -> frozenset[str]:
    """Return the names of axes whose chunks or pieces should run in parallel: rows do not fill the SMs.

    - Chunks with a contraction are tiles of one matrix product and always run in parallel, for one piece of
      the rows at a time if rows have pieces;
    - pieces of a contraction run in parallel if its results are few;
    - pieces at which a fold restarts run in parallel if its rows are few;
    - pieces of single elements whose totals are integers always run in parallel: one program would read them
      with a piece between the elements of adjacent lanes.
    program: canonical. The partial results are materialized and merged in a second kernel, with the same
    bits.
    """
    found: set[str] = set()
    for kernel in program.kernels:
        if kind(kernel) == "back_to_back_gemm":
            found |= parallel_pieces(kernel, extents)
            continue
        loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
        found |= {loop.axis.name for loop in loops if _by_chunks(loop) and _contracts(loop)}
        streamed = {let.node.axis for let in walk(kernel.body) if isinstance(let.node, Loop)}
        parallel = roles(kernel, extents).parallel
        if any(_contracts(loop) for loop in loops):
            found |= {a.name for a in parallel if a.piece and extents.get(a.name, 0) > a.piece}
        rows = 1
        for axis in parallel:
            rows *= extents.get(axis.name, 1)
        merged = {let.node.over for let in walk(kernel.body) if isinstance(let.node, Merge)}
        if rows < ROWS_ALONE:
            # unmerged states of pieces would take too much memory: those streams stay serial
            found |= {a.name for a in streamed if a.part is Part.ALL and a.split and a.pieces in merged}
        found |= {loop.axis.name for loop in loops if _counts_pieces(loop)}
        found |= _few_products(kernel, extents)
        found |= _rows_beside(kernel, extents)
    return frozenset(found)


def _rows_beside(kernel: Kernel, extents: Mapping[str, int]) -> set[str]:
    """Return the names of the rows that a loop over single rows stores beside its sums, to run in parallel.

    They read the inputs once more. That is worth it where pieces do not fill the SMs, where no program has
    the registers for a sum along a whole row and the row, and where no sum is left.
    """
    if not _walks_rows(kernel):
        return set()
    found = roles(kernel, extents)
    pieces = math.prod(extent_of(a, extents.get(a.name, 1)) for a in found.parallel)
    serial = pieces >= PROGRAMS and _held(found) <= WIDEST_SUM
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    return {
        name_of(loop.axis) for loop in loops if loop.axis.part is Part.ALL and not (serial and loop.types)
    }


def _few_products(kernel: Kernel, extents: Mapping[str, int]) -> set[str]:
    """Return the names of axes contracted by pieces, of inputs, with a result of few rows.

    A dynamic contracted axis is one of rows: its result has as many as a weight.
    """
    inputs = {d.name: d.type.axes for d in kernel.params if d.role is Role.IN}
    loads = {x.value: x.node for x in walk(kernel.body) if isinstance(x.node, Load)}
    found: set[str] = set()
    for let in walk(kernel.body):
        if isinstance(let.node, Dot) and let.node.over.part is Part.WITHIN and not let.node.over.dynamic:
            factors = [loads.get(v) for v in (let.node.a, let.node.b)]
            axes = [inputs.get(f.param) for f in factors if f is not None]
            rows = [extents.get(a.name, 1) for group in axes if group for a in group if a.dynamic]
            if len(axes) == 2 and None not in axes and max(rows, default=1) < ROWS_ALONE:
                found.add(let.node.over.name)
    return found


def _by_chunks(loop: Loop) -> bool:
    """Return whether steps of a loop are chunks of elements: those of single elements run in turn."""
    return loop.axis.part is Part.ALL and (loop.axis.chunk or 1) > 1


def _counts_pieces(loop: Loop) -> bool:
    """Return whether a loop of single elements adds integers, in each piece of an axis."""
    single = loop.axis.split is not None and (loop.axis.chunk or 1) == 1
    kept = (t.dtype is DType.I32 and loop.axis.pieces in t.axes for t in loop.types)
    return single and bool(loop.types) and all(kept)


def _contracts(loop: Loop) -> bool:
    return any(isinstance(let.node, Dot) for let in walk(loop.body))


def factor_tiles(kernel: Kernel, found: Roles) -> tuple[Axis, Axis] | None:
    """Return the row axis and the column axis of a contraction's tiles; None without tiles of two factors."""
    tiled = (*found.parallel, *(a for a, n in found.inside if n > 1))
    for let in walk(kernel.body):
        if isinstance(let.node, Dot):
            types = types_of(kernel)
            sides = [types[v] for v in (let.node.a, let.node.b)]
            held = [tile_axes(t) for t in sides]
            shared = (*(a for a in tiled if a.part is Part.PIECE), *(let.node.each or ()))
            axes = [[a for a in tiled if a in group and a not in shared] for group in held]
            if all(axes):
                rows, columns = sorted((axes[0][-1], axes[1][-1]), key=tiled.index)
                return rows, columns
    return None


def _contraction(kernel: Kernel, found: Roles, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a GEMM: a tile of rows and columns per program, a loop over K."""
    sides = factor_tiles(kernel, found)
    if sides is None:
        return Schedule()
    facts = _facts(kernel, found, sides, target, extents)
    chosen = _tiled(kernel, found, sides, facts, target, extents)
    in_waves, functions = target.vendor == "amd", _functions(kernel)
    rows, columns = (chosen.tile(str(side)) for side in sides)
    whole = math.prod(n for axis, n in found.inside if axis != sides[0])
    if rows * whole > LARGEST_TILE and sides[0] not in dict(found.inside):
        # a row of products that is reduced whole; the table is of tiles
        rows = max(SMALLEST_TILE, ACCUMULATOR // whole)
        chosen = chosen.with_tile(str(sides[0]), rows)
    single_step = facts.length is not None and facts.length <= chosen.depth
    if kind(kernel) == "dot_map" and single_step and not chosen.flat:
        # Triton removes a mainloop of one step and pipelines the persistent loop over tiles instead: stages
        # of operands beside a whole f32 tile do not fit into shared memory
        chosen = replace(chosen, programs=0)
    if kind(kernel) != "stream_dot":
        full = in_waves and functions > 1 and rows * columns >= ACCUMULATOR  # Triton 3.5 spills
        return chosen.with_tile(str(sides[0]), rows // 2) if full else chosen
    few = WAVE_ROWS if in_waves else FEW_ROWS
    # a fused fold needs registers for its scores, for loads along the columns and for functions
    if rows < few or not (in_waves or facts.along > 0 or functions > 1):
        return chosen
    return replace(chosen.with_tile(str(sides[0]), few), warps=CROWDED_WARPS, flat=False)


def _functions(kernel: Kernel) -> int:
    """Return the number of transcendental functions of a kernel; each takes registers."""
    return sum(isinstance(x.node, Math) for x in walk(kernel.body))


def _tiled(
    kernel: Kernel, found: Roles, sides: tuple[Axis, Axis], facts: Facts, target: Target,
    extents: Mapping[str, int],
) -> Schedule:  # fmt: skip
    """Return the schedule from the reviewed table, else one whose accumulator fills the registers."""
    held = dict(found.inside)
    tiles: dict[str, int] = {}
    dots = [let.node for let in walk(kernel.body) if isinstance(let.node, Dot)]
    by_fma = all(dot.model is DotModel.FMA for dot in dots)
    integers = any(dot.model is DotModel.INTEGER for dot in dots)
    reviewed = None if by_fma or integers else tabled(facts)
    if reviewed is not None:
        return _by(reviewed, kernel, found, sides, facts, target, extents)
    accumulators = padded(len(dots) + len(_sums_of_products(kernel)))
    room = (FMA_ACCUMULATOR if by_fma else ACCUMULATOR) // accumulators
    columns = held.get(sides[1]) or _dot_tile(sides[1], room // DOT_ROWS, extents)
    rows = held.get(sides[0]) or _dot_tile(sides[0], min(DOT_ROWS, room // columns), extents)
    tiles.update({str(a): n for a, n in zip(sides, (rows, columns), strict=True) if a not in held})
    lengths = [extents.get(a.name, 0) for a in found.contracted if not a.dynamic]
    depths = (128, 64, 32) if integers else (64, 32, 16)  # of i8 a step has at least 32
    depth = next((d for d in depths if lengths and all(n % d == 0 for n in lengths)), 64)
    programs = target.cores if target.descriptors and not (by_fma or integers) else 0
    stage = 2 * depth * (rows + columns) / 1024
    return Schedule(
        tiles=tuple(sorted(tiles.items())),
        warps=max(4, min(8, accumulators * rows * columns // 4096)),
        stages=max(1, min(DOT_STAGES, int(target.shared // stage))),
        depth=depth,
        group=DOT_GROUP,
        programs=programs,
        parts=_parts(kernel, sides, columns, flat=False),
    )


def _by(
    use: Tiling, kernel: Kernel, found: Roles, sides: tuple[Axis, Axis], facts: Facts, target: Target,
    extents: Mapping[str, int],
) -> Schedule:  # fmt: skip
    wide = _extent(sides[1], extents, use.columns)
    chosen = use.schedule(sides, dict(found.inside), target.cores, wide, facts.length or UNEVEN_DEPTH)
    columns = 0 if use.turned else chosen.tile(str(sides[1]))
    return replace(chosen, parts=_parts(kernel, sides, columns, chosen.flat))


def scheduled(use: Tiling, kernel: Kernel, target: Target, extents: Mapping[str, int]) -> Schedule | None:
    """Return the schedule that a tiling gives a kernel; None for one without tiles of two factors."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    if sides is None:
        return None
    return _by(use, kernel, found, sides, _facts(kernel, found, sides, target, extents), target, extents)


def facts_of(kernel: Kernel, target: Target, extents: Mapping[str, int]) -> Facts | None:
    """Return the facts of a kernel for the reviewed tables; None for one without tiles of two factors."""
    found = roles(kernel, extents)
    sides = factor_tiles(kernel, found)
    return None if sides is None else _facts(kernel, found, sides, target, extents)


def _parts(kernel: Kernel, sides: tuple[Axis, Axis], columns: int, flat: bool) -> int:
    """Return the number of column parts of a tile that the epilogue handles one after the other.

    With loads in its epilogue a wide tile would need its registers twice. In a flat loop, with the loads of
    the next tile in flight, an f32 tile would not fit, nor would one of half the columns.
    """
    if kind(kernel) != "dot_map" or columns < LARGEST_TMA_TILE // 2:
        return 1
    reads, writes = _tiles(kernel, sides)
    widest = columns == LARGEST_TMA_TILE
    return PARTS if reads and widest or flat and DType.F32 in writes else 1


def _tiles(kernel: Kernel, sides: tuple[Axis, Axis]) -> tuple[set[DType], set[DType]]:
    """Return the dtypes of loaded tiles along both sides, and of stored ones."""
    types = types_of(kernel)
    lets = tuple(walk(kernel.body))
    both = [types[x.value] for x in lets if isinstance(x.node, Load)]
    written = [types[x.node.value] for x in lets if isinstance(x.node, Store)]

    def dtypes(found: list[Type]) -> set[DType]:
        return {t.dtype for t in found if isinstance(t, TileType) and set(sides) <= set(t.axes)}

    return dtypes(both), dtypes(written)


def _facts(
    kernel: Kernel, found: Roles, sides: tuple[Axis, Axis], target: Target, extents: Mapping[str, int]
) -> Facts:
    """Return the facts of a contraction for the reviewed tables."""
    columns = None if sides[1].dynamic else extents.get(sides[1].name)
    axis = found.contracted[0] if len(found.contracted) == 1 else None
    known = axis is not None and not axis.dynamic and axis.name in extents
    apart = axis is not None and axis.part is Part.WITHIN and axis.pieces in found.parallel
    whole = axis is not None and axis.part is Part.ALL and axis.split is None
    functions = any(isinstance(let.node, Math) for let in walk(kernel.body))
    return Facts(
        target=target.name,
        kind=kind(kernel),
        dots=sum(1 for let in walk(kernel.body) if isinstance(let.node, Dot)),
        sums=_float_sums(kernel),
        rows=_rows_of(sides[0], extents),
        columns=columns,
        length=extent_of(axis, extents[axis.name]) if axis is not None and known else None,
        pieces=extent_of(axis.pieces, extents.get(axis.name, 1)) if axis is not None and apart else 1,
        along=_along(kernel, sides[1], found.contracted),
        plain=whole
        and not functions
        and DType.F32 not in _tiles(kernel, sides)[0]
        and not _sums_of_products(kernel),
    )


def _sums_of_products(kernel: Kernel) -> list[TileType]:
    """Return the types of the tiles that loops around contractions carry, beside their accumulators."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    return [t for loop in loops if _contracts(loop) for t in loop.types if t.axes]


def _rows_of(axis: Axis, extents: Mapping[str, int]) -> int | None:
    """Return the extent of an axis; of rows in segments the mean length of one, where both are known."""
    rows, segments = extents.get(axis.name), extents.get(axis.over or "")
    return rows if rows is None or not segments else -(-rows // segments)


def _along(kernel: Kernel, columns: Axis, contracted: tuple[Axis, ...]) -> int:
    """Return the number of loads along the columns of a tile, without those of its factors."""
    types = types_of(kernel)
    read = [types[x.value] for x in walk(kernel.body) if isinstance(x.node, Load)]
    axes = [t.axes for t in read if isinstance(t, TileType)]
    return sum(1 for group in axes if columns in group and not set(contracted) & set(group))


def _float_sums(kernel: Kernel) -> int:
    reduces = [let.node for let in walk(kernel.body) if isinstance(let.node, Reduce)]
    return sum(1 for r in reduces if r.fn is Combine.ADD and r.order is not None)


def _dot_tile(axis: Axis, most: int, extents: Mapping[str, int]) -> int:
    return max(SMALLEST_TILE, min(most, padded(_extent(axis, extents, most))))


def pieces_as_lanes(lanes: Axis, lengths: Mapping[Axis, int], aligned: bool) -> Schedule:
    """Place a chunk so that its tree stays inside a warp: vectors, high bits in registers, pieces on lanes.

    Triton gives 16-byte vectors to the last dim, then lanes and warps to the others in the order placed.
    aligned: whether chunks are read by vectors.
    """
    split = lanes.split or 1
    bits = lengths[lanes].bit_length() - 1
    middle = 3 if aligned else 2
    placed = (
        Span(str(lanes), VECTOR_BITS, middle),
        Span(str(lanes.pieces), 0, split.bit_length() - 1),
        Span(str(lanes), VECTOR_BITS + middle, bits - VECTOR_BITS - middle),
        Span(str(lanes), 0, VECTOR_BITS),
    )
    return Schedule(placed=placed, warps=2 if aligned else 8)


def _rows(kernel: Kernel, found: Roles, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a row kernel: whole rows per program, or a tile of the contiguous axis."""
    held = _held(found)
    if _walks_rows(kernel):
        state = _columns_of_state(kernel, found, target, extents)
        if state is not None:
            return _state(state, found, target, extents)
        # a loop over rows that prefetches the next ones: it needs registers rather than warps
        wide = min(THREADS // target.warp, padded(max(1, held // (WIDEST_LANE * target.warp))))
        return Schedule(warps=max(min(4, warps(held)), wide), stages=3)
    room = (ROWS if found.inside else ELEMENTWISE) // held
    tiles: dict[str, int] = {}
    for axis in reversed(found.parallel):
        extent = _extent(axis, extents, room)
        tile = min(room, padded(extent))
        if not found.inside and tile == ELEMENTWISE and _covered(extent, tile) > WASTE * extent:
            tile = min(tile, tile // 2, key=lambda t: _covered(extent, t))  # 3072: three times 1024
        if tile > 1:
            tiles[str(axis)] = tile
            room //= tile
            held *= tile
    if _sums_rows(kernel, found):
        return _row_sums(found, target, extents)
    many = len(found.inside) > 1 and held >= SQUARE
    least = min(THREADS, held // LONGEST_LANE) // target.warp  # a row of 32768 by 8 warps spills
    threads = SQUARE_THREADS if target.vendor == "amd" or _loops(kernel) else SQUARE_THREADS_ALONE
    placed = threads // target.warp if many else max(warps(held), padded(least))
    chosen = Schedule(tiles=tuple(sorted(tiles.items())), warps=placed)
    if target.vendor != "nvidia":
        return chosen
    if _gathers(kernel):
        many = padded(max(1, held // (GATHERED_LANE * target.warp)))
        return replace(chosen, warps=min(8, many), levels=True, registers=GATHERED_REGISTERS)
    if _loops(kernel) and not found.parallel:  # one program: it waits for all of its warps
        return replace(chosen, warps=min(placed, FEW_WARPS))
    if _sums_of_sums(kernel):
        return replace(chosen, warps=min(placed, FEW_WARPS), late=True)
    if _streams_whole_rows(kernel) and held <= ROWS and _programs(found, extents) < PROGRAMS:
        return replace(chosen, warps=max(placed, STREAMING_WARPS), unroll=STREAMED_AHEAD)
    return chosen


def _streams_whole_rows(kernel: Kernel) -> bool:
    """Return whether a program reads chunks of a whole row, one after the other, in loops without others."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    nested = any(isinstance(x.node, Loop) for loop in loops for x in walk(loop.body))
    return bool(loops) and not nested and all(_by_chunks(x) and x.axis.split is None for x in loops)


def _programs(found: Roles, extents: Mapping[str, int]) -> int:
    return math.prod(extents.get(a.name, ROWS_ALONE if a.dynamic else 1) for a in found.parallel)


def _gathers(kernel: Kernel) -> bool:
    """Return whether a loop over chunks loads several tiles at indices that it loaded."""
    types = types_of(kernel)
    lets = {let.value: let for let in walk(kernel.body)}
    loops = [let.node for let in lets.values() if isinstance(let.node, Loop)]
    for loop in loops:
        own = {let.value: let for let in walk(loop.body)}
        loads = {v: let.node for v, let in own.items() if isinstance(let.node, Load)}
        chunks = [v for v in loads if any(a.part is Part.LANE for a in tile_axes(types[v]))]
        at_loaded = [v for v in chunks if backward_slice(loads[v].index, own) & loads.keys()]
        if len(at_loaded) > 1:
            return True
    return False


def _sums_of_sums(kernel: Kernel) -> bool:
    """Return whether a row outside of loops has a float sum of what depends on another one's."""
    lets = {let.value: let for let in kernel.body.lets}
    sums = {v for v, let in lets.items() if isinstance(let.node, Reduce) and let.node.order is not None}
    return any(len(backward_slice((v,), lets) & sums) > 1 for v in sums) and not _loops(kernel)


def _columns_of_state(
    kernel: Kernel, found: Roles, target: Target, extents: Mapping[str, int]
) -> Axis | None:
    """Return the parallel axis of a vector or matrix that a recurrence carries, whose other axes are whole.

    None where columns of matrices are few: alone in its program each is ready sooner.
    """
    last = carried_columns(kernel, found)
    if last is None or _held(found) > LONGEST_STATE:
        return None
    columns = _extent(last, extents, 1)
    for axis in found.parallel[:-1]:
        columns *= row_class(extents.get(axis.name))
    return last if not found.inside or columns > STATE_COLUMNS * target.cores else None


def carries_many(kernel: Kernel, target: Target, extents: Mapping[str, int]) -> bool:
    """Return whether a recurrence carries matrices of many columns, which share programs, or whole ones."""
    found = roles(kernel, extents)
    if found.contracted or not found.inside or not _walks_rows(kernel):
        return False
    whole = carried_matrix(kernel, found) is not None and _held(found) >= WHOLE_STATE
    return whole or _columns_of_state(kernel, found, target, extents) is not None


def _state(columns: Axis, found: Roles, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a recurrence: columns of what it carries share a program.

    Of a vector each lane has one. Columns of a matrix share the loads of what a step reads: with the other
    dims first and two lanes for each of their elements, Triton keeps the sum over them in lanes. A step of a
    matrix of 64 x 64 has 1288 instructions for sm_90a so, 2782 by half of the warps, 1760 by twice as many,
    and 6336 where each column is a program's. 512 sequences of 128 tokens take 0.179 ms on an H200, 0.314
    with the next two steps' loads in flight, by copies to shared memory, and 0.695 column by column.
    """
    held = _held(found)
    tile = min(WIDEST_STATE if held > 1 else target.warp, padded(_extent(columns, extents, 1)))
    placed = tuple(Span(str(axis), 0, n.bit_length() - 1) for axis, n in found.inside if n > 1)
    return Schedule(
        tiles=((str(columns), tile),) if tile > 1 else (),
        placed=placed if tile > 1 else (),
        warps=max(1, 2 * held // target.warp),
        stages=1 if held > 1 else 3,
    )


def _loops(kernel: Kernel) -> bool:
    return any(isinstance(let.node, Loop) for let in walk(kernel.body))


def _covered(extent: int, tile: int) -> int:
    return -(-extent // tile) * tile


def _row_sums(found: Roles, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of sums of rows by pieces: a warp's tile of columns, a vector of each lane.

    The smallest tile gives few pieces the most programs; so the number of pieces changes no kernel. Loads of
    several rows are in flight together: steps differ in nothing but the sum that waits for them.
    """
    columns, most = found.parallel[-1], SUMMED_VECTOR * target.warp
    tile = min(padded(_extent(columns, extents, most)), most)
    return Schedule(tiles=((str(columns), tile),) if tile > 1 else (), warps=1, unroll=SUMMED_ROWS)


def _columns(found: Roles, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a column fold: a tile of columns per program, a loop over chunks of rows."""
    axis = found.parallel[-1]
    tile = max(32, min(1024, FOLD // _held(found)))
    tile = min(tile, padded(_extent(axis, extents, tile)))
    return Schedule(tiles=((str(axis), tile),), warps=warps(_held(found) * tile))


def _partials(kernel: Kernel, found: Roles, target: Target, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a merge of states: few columns per program, loads of many steps in flight."""
    # with segments, a program has one row, and a vector of its sums
    near = [a for a in found.parallel if rows_axis(found) is None or not a.dynamic]
    bodies = [_work(let.node) for let in walk(kernel.body) if isinstance(let.node, Loop)]
    # a merge of softmax states is long: 64 of them in a row take minutes to compile
    steps = max(1, min(64, UNROLLED // padded(max(bodies, default=1))))
    held = _held(found)
    many, columns = held >= 8, 32
    alone = many and _programs(found, extents) < ROWS_ALONE
    if alone:
        # by one warp, ptxas loads the states of all unrolled steps before it merges the first
        columns, steps = max(1, target.warp // held), max(steps, _ahead(kernel, extents))
    tiles = [(str(a), min(columns, padded(_extent(a, extents, columns)))) for a in near[-1:]]
    return Schedule(
        tiles=tuple(t for t in tiles if t[1] > 1), warps=8 if many and not alone else 1, unroll=steps
    )


def _work(loop: Loop) -> int:
    """Return the number of a step's nodes, but for conditions that only mask its loads."""
    lets = {let.value: let for let in loop.body.lets}
    guards = [n.guard for let in lets.values() if isinstance(n := let.node, Load) and n.guard is not None]
    chosen = {let.node.cond for let in lets.values() if isinstance(let.node, Select)}
    masks = (lets[v].type for v in backward_slice(guards, lets) - chosen)
    return len(lets) - sum(isinstance(t, TileType) and t.dtype is DType.BOOL for t in masks)


def _ahead(kernel: Kernel, extents: Mapping[str, int]) -> int:
    """Return how many states of a merge are loaded together: steps that are left over wait one by one."""
    axes = {let.node.axis for let in walk(kernel.body) if isinstance(let.node, Loop)}
    steps = [extent_of(a, extents[a.name]) for a in axes if a.name in extents and not a.dynamic]
    longest = max(steps, default=MERGED_AHEAD)
    return min(range(MERGED_AHEAD, 0, -1), key=lambda n: longest // n + longest % n)


def _walks_rows(kernel: Kernel) -> bool:
    """Return whether a loop over single rows stores in its body."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    stores = [any(isinstance(x.node, Store) for x in walk(loop.body)) for loop in loops]
    return any(wrote and (loop.axis.chunk or 1) == 1 for loop, wrote in zip(loops, stores, strict=True))


def _sums_rows(kernel: Kernel, found: Roles) -> bool:
    """Return whether a kernel only adds single rows of a piece, column by column."""
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    single = all(loop.axis.pieces in found.parallel and (loop.axis.chunk or 1) == 1 for loop in loops)
    stores = any(isinstance(x.node, Store) for loop in loops for x in walk(loop.body))
    whole = len(found.parallel) > 1 and not found.parallel[-1].dynamic and not found.inside
    return bool(loops) and single and whole and not stores


def _held(found: Roles) -> int:
    held = 1
    for _, length in found.inside:
        held *= length
    return held


def _extent(axis: Axis, extents: Mapping[str, int], unknown: int) -> int:
    """Return the known extent of an axis, else `unknown`."""
    known = axis.part in (Part.ALL, Part.WITHIN) and not axis.dynamic and axis.name in extents
    return extent_of(axis, extents[axis.name]) if known else max(1, unknown)


def warps(elements: int) -> int:
    """Return the number of warps for a tile with 16 elements a lane, at most 8."""
    return min(8, padded(max(1, elements // 512)))


def variety(kernel: Kernel, target: Target, extents: Mapping[str, int]) -> tuple[Schedule, ...]:
    """Return different schedules of a kernel, for tests: all of them must give the same bits."""
    found = roles(kernel, extents)
    if kind(kernel) == "back_to_back_gemm":
        return attention_variety(kernel, found, extents, target)
    if found.contracted:
        return _contraction_variety(kernel, found, target, extents)
    names = [str(a) for a in found.parallel]
    last = names[-1:]
    room = 1 << 15
    split: list[Span] = []
    low: list[Span] = []
    for axis, length in found.inside:
        bits = length.bit_length() - 1
        room //= length
        half = bits // 2
        split += [Span(str(axis), half, bits - half)] * (bits > half)
        low += [Span(str(axis), 0, half)] * (half > 0)
    few, more = (max(1, min(n, room)) for n in ((4, 16) if found.inside else (64, 512)))
    made = (
        choose(kernel, target, None, extents),
        Schedule(tiles=() if found.inside else tuple((n, 32) for n in last), warps=1),
        Schedule(tiles=tuple((n, few) for n in last), warps=2),
        Schedule(tiles=tuple((n, 8 if n in last else 2) for n in names) if room >= 64 else (), warps=4),
        Schedule(tiles=tuple((n, few) for n in last), placed=(*low, *split), warps=8),
        Schedule(tiles=tuple((n, more) for n in last), placed=(*split[::-1], *low), warps=4, stages=2),
        Schedule(
            tiles=tuple((n, few) for n in names[-2:]),
            placed=(*split, *low[::-1]),
            warps=2,
            unroll=2,
            levels=True,
        ),
    )
    return tuple(dict.fromkeys(made))


def _contraction_variety(
    kernel: Kernel, found: Roles, target: Target, extents: Mapping[str, int]
) -> tuple[Schedule, ...]:
    chosen = _contraction(kernel, found, target, extents)
    sides = factor_tiles(kernel, found)
    parallel = [str(a) for a in sides or () if a in found.parallel]
    integers = any(isinstance(x.node, Dot) and x.node.model is DotModel.INTEGER for x in walk(kernel.body))
    made = [chosen]
    for tile, depth, group, programs, warps in ((16, 16, 1, 0, 4), (64, 32, 2, 3, 4), (32, 64, 3, 0, 8)):
        tiles = tuple(sorted((name, tile) for name in parallel))
        flat = programs > 0
        depth = max(depth, 32) if integers else depth
        made.append(Schedule(tiles, warps=warps, depth=depth, group=group, programs=programs, flat=flat))
    return tuple(dict.fromkeys(made))
