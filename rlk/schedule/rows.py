"""CuTe schedules of kernels without a contraction: vectors first, then lanes, then warps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlk.ir.dims import Axis, Part, extent_of
from rlk.ir.nodes import Fn2, Kernel, Let, Load, Loop, Map2, Pos, Store, Value
from rlk.ir.tree import padded
from rlk.ir.types import TileType, Type
from rlk.passes.walk import walk
from rlk.schedule.axes import Roles, kind, roles, types_of
from rlk.schedule.schedule import MAX_WARPS, Schedule, Span

WARP = 32
VECTOR = 16  # bytes of the widest access
BLOCK = 128  # threads of a block of short rows
VECTORS = 2  # vectors of a row per thread
LISTED = 64  # register elements of a thread along several axes
MANY_TILES = 8  # tiles of an axis, above which a nearly empty last one does not matter
ROW_OF_PIECES = 3  # lane bits of a chunk whose pieces are on the other lanes
COLUMN_WARPS = 4  # of a block that folds columns
MERGE_WARPS = 8  # of a block that merges states of 32 rows
MERGED = 16  # states of a thread, above which more warps share them
MERGE_UNROLLED = 8  # steps whose loads are in flight together
HOISTED_WARPS = 16  # of a block with hoisted loads: more would leave its threads too few registers
HELD_OF_COLUMN = 32  # elements of a thread of a carried column: the next step's factors are beside them
STEPS_AHEAD = 2  # prefetched steps of a loop over rows: two rows fill an SM's share of the bandwidth


def rows(kernel: Kernel, chosen: Schedule, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a kernel without a contraction: the index bits of warps, lanes and registers.

    The last bits are those of registers: a thread's elements are contiguous in memory.
    """
    found = roles(kernel, extents)
    inside = {a: n for a, n in found.inside if n > 1}
    if found.contracted or not (found.parallel or inside):
        return chosen
    made = _placed(kernel, found, inside, chosen, extents)
    lengths = {str(a): n for a, n in inside.items()} | dict(made.tiles)
    named = {(s.axis, bit) for s in made.placed for bit in range(s.low, s.low + s.bits)}
    rest = [
        Span(a, b, 1) for a, n in lengths.items() for b in range(n.bit_length() - 1) if (a, b) not in named
    ]
    return replace(made, placed=(*made.placed, *_joined(rest)))


def _joined(bits: list[Span]) -> list[Span]:
    """Return spans of single bits with adjacent ones joined."""
    found: list[Span] = []
    for span in bits:
        last = found[-1] if found else None
        if last is not None and (last.axis, last.low + last.bits) == (span.axis, span.low):
            found[-1] = Span(last.axis, last.low, last.bits + 1)
        else:
            found.append(span)
    return found


def _placed(
    kernel: Kernel,
    found: Roles,
    inside: Mapping[Axis, int],
    chosen: Schedule,
    extents: Mapping[str, int],
) -> Schedule:
    """Return a schedule with a thread-value layout of the given spans."""
    if not inside:
        return _elements(kernel, found, chosen, extents)
    columns = carried_columns(kernel, found)
    if columns is not None and len(inside) == 1:
        return _carried(columns, *next(iter(inside.items())), extents)
    matrix = carried_matrix(kernel, found)
    if matrix is not None:
        return _square(*(inside[axis].bit_length() - 1 for axis in matrix), *matrix)
    near = _contiguous(kernel, tuple(inside))
    if near is None:
        return _column_per_lane(kernel, found, inside, extents)
    others = [a for a in inside if a != near] + [a for a in found.parallel if a == near.pieces]
    if others and near.split is not None and near.part is Part.LANE:
        return _pieces(kernel, near, others[0], inside, extents)
    return _row_per_block(kernel, found, near, inside[near], extents)


def carried_columns(kernel: Kernel, found: Roles) -> Axis | None:
    """Return the parallel axis of a vector or matrix that a recurrence carries, whose other axes are whole.

    Sums over rows by pieces carry matrices too: those stay as they are, and so do columns whose steps differ
    in number, as those of pieces.
    """
    types = types_of(kernel)
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    recurrences = [loop for loop in loops if loop.axis.piece is None and loop.axis.split is None]
    states = [type.axes for loop in recurrences for type in loop.types]
    last = found.parallel[-1] if found.parallel else None
    if last is None or last.dynamic or last.over is not None:
        return None
    bounds = [types[v] for loop in loops for v in (loop.start, loop.stop)]
    if any(isinstance(type, TileType) and last in type.axes for type in bounds):
        return None
    inside = [axis for axis, _ in found.inside]
    carried = any(last in axes and (not inside or any(axis in axes for axis in inside)) for axes in states)
    return last if carried else None


def _carried(columns: Axis, inside: Axis, length: int, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule with columns of a carried matrix on the lanes of a warp.

    A thread has as much of a column as fits beside the factors of two steps, consecutive elements, which it
    reads by vectors. 512 sequences of 128 tokens, 64 x 64, take 0.135 ms on an H200; 0.167 where a column's
    two threads have every other element, 0.179 by a thread for each without loads ahead.
    """
    apart = min(WARP, max(1, length // HELD_OF_COLUMN))
    width = extents.get(columns.name, 1)
    tile = min(WARP // apart, padded(extent_of(columns, width)))
    low = (length // apart).bit_length() - 1
    placed = (Span(str(columns), 0, tile.bit_length() - 1), Span(str(inside), low, apart.bit_length() - 1))
    spans = tuple(span for span in placed if span.bits)
    return Schedule(tiles=((str(columns), tile),) * (tile > 1), placed=spans, warps=1, stages=2)


def carried_matrix(kernel: Kernel, found: Roles) -> tuple[Axis, Axis] | None:
    """Return the two axes of a matrix that a recurrence carries whole: its steps may sum along each of them.

    None where a kernel has others inside, as a fold does, whose lanes and pieces are no whole axes.
    """
    inside = {axis for axis, length in found.inside if length > 1}
    if any(axis.part is not Part.ALL for axis in inside):
        return None
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    alone = (loop for loop in loops if (loop.axis.piece, loop.axis.split) == (None, None))
    states = [[axis for axis in type.axes if axis in inside] for loop in alone for type in loop.types]
    return next(((axes[0], axes[1]) for axes in states if len(axes) == 2 == len(inside)), None)


def _square(rows: int, columns: int, first: Axis, last: Axis) -> Schedule:
    """Return the schedule of a carried matrix of 2^rows x 2^columns that a block has whole.

    A thread has the high bits of both indices, so that most of a sum is in its registers, along either axis,
    and a sum along the columns stays in a warp: their low bits are the first lanes. With all rows of a column
    in a thread, 64 x 64, a step of the gradient of linear attention had 6680 instructions, of which 3360 were
    spilled registers; it has 1200 so.
    """
    told = max(WARP.bit_length() - 1, rows + columns - LISTED.bit_length() + 1)
    across = min(columns, max(0, told - rows, (told + columns - rows) // 2), WARP.bit_length() - 1)
    down = min(rows, told - across)
    placed = (Span(str(last), 0, across), Span(str(first), 0, down))
    warps = (1 << told) // WARP
    stages = 2 if warps <= HOISTED_WARPS // 2 else 1
    return Schedule(placed=tuple(span for span in placed if span.bits), warps=warps, stages=stages)


def _contiguous(kernel: Kernel, inside: tuple[Axis, ...]) -> Axis | None:
    """Return the reduced axis along which memory is contiguous; None if that is a parallel axis."""
    types = types_of(kernel)
    loads = [x.node for x in walk(kernel.body) if isinstance(x.node, Load)]
    reads = [load for load in loads if any(_along(types, i, inside) for i in load.index)]
    wide = [load for load in reads if len(load.index) > 1] or reads
    last = [axis for load in wide for axis in _along(types, load.index[-1], inside)]
    return max(last, key=lambda a: (last.count(a), a.part is Part.LANE)) if last else None


def _along(types: Mapping[Value, Type], value: Value, axes: tuple[Axis, ...]) -> list[Axis]:
    type = types[value]
    return [a for a in axes if isinstance(type, TileType) and a in type.axes]


def _vector(kernel: Kernel, axis: Axis, extents: Mapping[str, int]) -> int:
    """Return the number of index bits of a vector along an axis: 0 if its rows or pieces are not aligned."""
    types, bytes = types_of(kernel), {d.name: d.type.dtype.bytes for d in kernel.params}
    nodes = [let.node for let in walk(kernel.body)]
    accesses = [node for node in nodes if isinstance(node, Load | Store) and node.index]
    sizes = [bytes[node.param] for node in accesses if _along(types, node.index[-1], (axis,))]
    width = VECTOR // min([s for s in sizes if s > 1], default=4)
    known = extents.get(axis.name, 0)
    aligned = known % (width * (axis.split or 1)) == 0 or axis.dynamic
    return width.bit_length() - 1 if aligned else 0


def _row_per_block(
    kernel: Kernel, found: Roles, near: Axis, length: int, extents: Mapping[str, int]
) -> Schedule:
    """Return the schedule with a row per block, or several short ones."""
    bits = length.bit_length() - 1
    low = min(_vector(kernel, near, extents), bits)
    walks = any(isinstance(let.node, Loop) for let in walk(kernel.body))
    writes = any(isinstance(x.node, Store) for x in _steps(kernel))
    many = near.piece is None or near.piece > length  # steps of a piece
    each = low if walks and writes and many else low + VECTORS.bit_length() - 1
    beside = math.prod(n for a, n in found.inside if a != near)
    if beside > 1:
        each = min(each, max(0, (LISTED // beside).bit_length() - 1))
        low = min(low, each)  # what a thread has of a vector is adjacent
    told = max(0, min(bits - each, (WARP * MAX_WARPS).bit_length() - 1))
    placed = [Span(str(near), low, told)] * (told > 0)
    rows = max(1, BLOCK >> told) if found.parallel and not walks else 1
    tiles = []
    for axis, count in _several(found, rows, extents):
        tiles.append((str(axis), count))
        placed.append(Span(str(axis), 0, count.bit_length() - 1))
    threads = max(WARP, rows << told)
    ahead = walks and writes and many and threads <= WARP * HOISTED_WARPS
    stages = 1 + STEPS_AHEAD if ahead else 1
    return Schedule(tiles=tuple(sorted(tiles)), placed=tuple(placed), warps=threads // WARP, stages=stages)


def _several(found: Roles, rows: int, extents: Mapping[str, int]) -> Iterator[tuple[Axis, int]]:
    """Yield the number of indices of each parallel axis in a block, the last axes first; `rows` in all.

    An axis of few indices leaves the rest to the one before it; a remainder is padding.
    """
    left = [axis for axis in found.parallel if axis.over is None] or list(found.parallel)
    while left and rows > 1:
        axis = left.pop()
        known = left and axis.name in extents and not axis.dynamic
        count = min(rows, padded(extent_of(axis, extents[axis.name]))) if known else rows
        if count > 1:
            yield axis, count
        rows //= count


def _steps(kernel: Kernel) -> list[Let]:
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    return [each for loop in loops for each in walk(loop.body)]


def _elements(kernel: Kernel, found: Roles, chosen: Schedule, extents: Mapping[str, int]) -> Schedule:
    """Return the elementwise schedule: a vector per thread; with loops an element per thread, few warps."""
    walks = any(isinstance(let.node, Loop) for let in walk(kernel.body))
    last = found.parallel[-1]
    low = 0 if walks or last.dynamic or not _counts(kernel, last) else _vector(kernel, last, extents)
    left = (WARP if walks else BLOCK).bit_length() - 1
    tiles, placed = [], []
    alone = {*_walked(kernel), *(axis for axis in found.parallel if axis.over is not None)}
    for axis in (a for a in reversed(found.parallel) if a not in alone):
        known = axis.name in extents and not axis.dynamic
        bits = padded(extent_of(axis, extents[axis.name])).bit_length() - 1 - low if known else left
        told = max(0, min(left, bits))
        more = VECTORS.bit_length() - 1 if low and _fills(extents[axis.name], 1 << told + low) else 0
        if told + low:
            tiles.append((str(axis), 1 << told + low + more))
            placed.append(Span(str(axis), low, told))
        left, low = left - told, 0
    warps = (WARP if walks else BLOCK) // WARP
    spans = tuple(span for span in placed if span.bits)
    return Schedule(tiles=tuple(sorted(tiles)), placed=spans, warps=warps, unroll=chosen.unroll)


def _fills(extent: int, tile: int) -> bool:
    """Return whether an axis is long enough for tiles of several vectors to each thread."""
    return extent % (VECTORS * tile) == 0 or extent >= MANY_TILES * VECTORS * tile


def _walked(kernel: Kernel) -> set[Axis]:
    """Return the axes whose indices have loops of different lengths: a block has one index of each."""
    types = types_of(kernel)
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    bounds = [types[v] for loop in loops for v in (loop.start, loop.stop)]
    return {axis for type in bounds if isinstance(type, TileType) for axis in type.axes}


def _counts(kernel: Kernel, axis: Axis) -> bool:
    """Return whether every access along an axis has stride 1 in its index."""
    types = types_of(kernel)
    nodes = {let.value: let.node for let in walk(kernel.body)}

    def follows(value: Value) -> bool:
        match nodes.get(value):
            case Pos():
                return True
            case Map2(fn=Fn2.ADD, a=a, b=b):
                along = [v for v in (a, b) if _along(types, v, (axis,))]
                return len(along) == 1 and follows(along[0])
            case _:
                return False

    accesses = [node for node in nodes.values() if isinstance(node, Load | Store)]
    ends = [node.index[-1] for node in accesses if any(_along(types, i, (axis,)) for i in node.index)]
    return all(follows(end) for end in ends)


def _pieces(
    kernel: Kernel, near: Axis, pieces: Axis, inside: Mapping[Axis, int], extents: Mapping[str, int]
) -> Schedule:
    """Return the schedule of a row with pieces: a block has the same chunk of every piece.

    High bits of a chunk are in registers, so that most of its tree needs no exchange between threads. If a
    step loads several tensors, each thread has fewer elements of each, so that all of them fit in registers.
    """
    count, bits = near.split or 1, inside[near].bit_length() - 1
    low = min(_vector(kernel, near, extents), bits)
    share = ROW_OF_PIECES + _most_reads(kernel, near).bit_length() - 1
    told = min(bits - low, share if low else WARP.bit_length() - 1)
    placed = (Span(str(near), low, told), Span(str(pieces), 0, count.bit_length() - 1))
    tiles = () if pieces in inside else ((str(pieces), count),)
    warps = max(1, (count << told) // WARP)
    return Schedule(tiles=tiles, placed=placed, warps=warps, stages=1 + (1 if low else STEPS_AHEAD))


def _most_reads(kernel: Kernel, axis: Axis) -> int:
    """Return the largest number of tensors that a step of a loop loads along an axis, at least 1."""
    types = types_of(kernel)
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    reads = [[x.node for x in walk(loop.body) if isinstance(x.node, Load)] for loop in loops]
    return max([1, *(sum(any(_along(types, i, (axis,)) for i in x.index) for x in step) for step in reads)])


def _column_per_lane(
    kernel: Kernel, found: Roles, inside: Mapping[Axis, int], extents: Mapping[str, int]
) -> Schedule:
    """Return the schedule with a column or a vector of them per lane, reduced axes in registers or warps."""
    axis = found.parallel[-1]
    if kind(kernel) == "col_fold":
        # all rows of a step are in registers
        rows = math.prod(n for _, n in found.inside)
        low = min(_vector(kernel, axis, extents), max(0, (LISTED // rows).bit_length() - 1))
        known = extents.get(axis.name, 0)
        width = extent_of(axis, known) if known and not axis.dynamic else WARP << low
        columns = max(WARP << low, min(padded(width), WARP * COLUMN_WARPS << low))
        told = columns.bit_length() - 1 - low
        return Schedule(
            tiles=((str(axis), columns),), placed=(Span(str(axis), low, told),), warps=(1 << told) // WARP
        )
    first, length = next(iter(inside.items()))
    warps = min(length, max(MERGE_WARPS, min(MAX_WARPS, length // MERGED)))
    low = length.bit_length() - warps.bit_length()
    lanes, apart = WARP.bit_length() - 1, warps.bit_length() - 1
    placed = (Span(str(axis), 0, lanes), Span(str(first), low, apart))
    return Schedule(tiles=((str(axis), WARP),), placed=placed, warps=warps, unroll=MERGE_UNROLLED)
