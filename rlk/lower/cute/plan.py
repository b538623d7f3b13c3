"""Plan of GEMM and row kernels on Hopper: tiles, fragments, pipeline stages, warp specialization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Protocol

from rlk.errors import NOWHERE, Loc, LoweringError
from rlk.ir.dims import Axis, Part, fixed_extent, is_power_of_two
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Dot, Kernel, Let, Load, Loop, Reduce, Store, Value, operands
from rlk.ir.tree import padded
from rlk.ir.types import DType, TileType, tile_axes
from rlk.lower.common.bounds import bounds
from rlk.lower.common.contract import (
    Contraction,
    Factor,
    computed_factor_error,
    contractions_of_tiles,
    count_up,
    covered,
    gathered_matrices_error,
    kept,
)
from rlk.lower.common.emitted import Signature
from rlk.lower.common.hoist_masks import hoist_masks
from rlk.lower.common.names import stride_name
from rlk.lower.common.segments import Segments, segments
from rlk.lower.common.thread_values import ThreadValues, TiledAxis
from rlk.lower.cute.piece_loop import PieceLoop, piece_loop
from rlk.lower.cute.protocol import Ring as protocol_ring
from rlk.lower.cute.protocol import claim_registers, verify
from rlk.lower.cute.protocols import gemm_protocol
from rlk.passes.by_index import names_steps
from rlk.passes.piecewise_launch import OnePiece, one_piece
from rlk.passes.walk import walk
from rlk.schedule.axes import kind, roles, types_of
from rlk.schedule.cute_table import accumulators, most_accumulators, room_of_stages
from rlk.schedule.cute_warps import by_warps, casts_of_bytes
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

WARPGROUP = 128  # threads
ROWS_OF_WARPGROUP = 64  # of an accumulator
ROWS_OF_WARP = ROWS_OF_WARPGROUP // 4
INSTRUCTION = 16  # K of a wgmma
SWIZZLED = 128  # bytes of a row of a tile in shared memory
FEWEST_COLUMNS, MOST_COLUMNS = 8, 256
WHOLE_COLUMNS = 8  # rows of a swizzle atom: each multicast part of a tile has a multiple


class Registers(NamedTuple):
    """Registers of a producer thread, and of a consumer thread."""

    fewer: int
    more: int


REGISTERS = {1: Registers(40, 240), 2: Registers(40, 232), 3: Registers(32, 160)}  # by consumers
OF_PIECES = Registers(24, 240)  # of two consumers that add pieces: accumulators live beside the epilogue
WIDE_WITH_SUM = 128  # columns, above which a sum beside an accumulator takes registers of addresses
MOST_SEGMENTS = 512  # a lane counts the tiles of every 32nd, in registers
THREADS_THAT_READ = 1024  # threads of an SM that prefetch one tensor of a loop: 64 registers each


@dataclass(frozen=True, slots=True)
class Fragment:
    """The fragment of a thread along an axis.

    lanes: index bits that select the thread, the lowest first: the i-th is bit i of the lane. The other bits,
    ascending, select the element of the thread's list.
    """

    axis: Axis
    length: int
    lanes: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Return the number of elements of a thread."""
        return self.length >> len(self.lanes)


@dataclass(frozen=True, slots=True)
class TmaTile:
    """The TMA tile of a factor: `rows` of its tensor from the sum of `first` on, along an axis.

    shared: blocks of a cluster that each multicast a part. transposed: MN-major, the rows are contiguous.
    dim: of the rows. batch: the other dims, and the index that a tile has there. dtype: of the tensor, which
    is not that of the product where the factor is computed.
    """

    factor: Factor
    rows: int
    axis: Axis
    first: tuple[Value, ...]
    shared: int
    dim: int
    dtype: DType
    batch: tuple[tuple[int, Value], ...] = ()

    @property
    def transposed(self) -> bool:
        return self.dim > self.factor.at

    @property
    def order(self) -> tuple[int, ...]:
        """Return the dims of the tensor in the order of its TMA descriptor."""
        return self.dim, self.factor.at, *(dim for dim, _ in self.batch)


@dataclass(frozen=True, slots=True)
class Ring:
    """A TMA pipeline: stages, and the arrival counts of their mbarriers."""

    stages: int
    bytes: int  # transaction bytes of a stage's full mbarrier
    releases: int  # arrivals of a stage's empty mbarrier: a lane of each consumer warp of the cluster

    @property
    def barriers(self) -> int:
        return 2 * self.stages


class Merge(NamedTuple):
    """One addition of accumulators, by their numbers: to = left + right."""

    to: int
    left: int
    right: int


class PieceMerges(NamedTuple):
    """A piece: its accumulator, and merges of earlier ones.

    before: merges without which no accumulator is free; the products of the piece before are waited for.
    overlapped: merges that run while the first products of the piece do. spills: whether the sum of the first
    half of the pieces is then copied to shared memory.
    """

    slot: int
    before: tuple[Merge, ...]
    overlapped: tuple[Merge, ...]
    spills: bool


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of the contracted axis in sequence, each with its own accumulator, summed pairwise.

    index: the piece index. steps: whole K steps of a piece, and `rest` instructions of one more. live:
    accumulators in registers. shared: whether the first half's sum is spilled to shared memory.
    """

    index: str
    count: int
    steps: int
    rest: int
    live: int
    shared: bool

    @property
    def merges(self) -> tuple[PieceMerges, ...]:
        """Return what is done for each piece."""
        return self._walked[0]

    @property
    def last(self) -> tuple[Merge, ...]:
        """Return the merges after all pieces, but for that with the sum in shared memory."""
        return self._walked[1]

    @property
    def freeing(self) -> int:
        """Return how many of these there are until the first accumulator is free for the next tile."""
        return max(i + 1 for i, merge in enumerate(self.last) if 0 in (merge.left, merge.right))

    @property
    def result(self) -> int:
        """Return the accumulator of the sum, which is not the first."""
        return self.last[-1].to

    @property
    def spare(self) -> int:
        """Return an accumulator for the sum in shared memory, beside the other half's and the first."""
        return min({1, 2} - {self.result})

    @property
    def _walked(self) -> tuple[tuple[PieceMerges, ...], tuple[Merge, ...]]:
        """Walk the pieces as a binary counter counts: those of a set bit are one sum.

        A piece gets the lowest free accumulator, so that its products can begin before those of the piece
        before are done.
        """
        sums: list[int] = []  # accumulators, the lowest pieces first
        walked = []
        for piece in range(self.count):
            merges = self._merges(piece - 1, sums) if piece else []
            before = []
            while len(sums) == self.live:
                before.append(merges.pop(0))
                sums.remove(before[-1].right)
            slot = min(set(range(self.live)) - set(sums))
            for merge in merges:
                sums.remove(merge.right)
            away = self.shared and 2 * piece == self.count
            sums = [*([] if away else sums), slot]
            walked.append(PieceMerges(slot, tuple(before), tuple(merges), away))
        last = self._merges(self.count - 1, sums)
        if last[-1].to == 0:
            last[-1] = last[-1]._replace(to=last[-1].right)
        return tuple(walked), tuple(last)

    def _merges(self, piece: int, sums: list[int]) -> list[Merge]:
        """Return the merges after a piece, which is the last of the sums: one for each trailing bit."""
        number = piece % (self.count >> self.shared)
        count = (~number & (number + 1)).bit_length() - 1
        pairs = zip(sums[::-1][1 : count + 1], sums[::-1][:count], strict=True)
        return [Merge(left, left, right) for left, right in pairs]

    @property
    def copied(self) -> int:
        """Return the number of loaded K steps of a piece."""
        return self.steps + (self.rest > 0)


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction of a kernel, with an accumulator of its own: its value, and the numbers of its tiles."""

    value: Value
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Products over one axis, which share its K steps and the tiles of one side.

    contraction: the first of them. a_tiles, b_tiles: of a stage, each loaded once. steps: of the contracted
    axis, or of a piece; None: a tile counts them.
    """

    contraction: Contraction
    products: tuple[Product, ...]
    a_tiles: tuple[TmaTile, ...]
    b_tiles: tuple[TmaTile, ...]
    steps: int | None

    @property
    def tma_tiles(self) -> tuple[TmaTile, ...]:
        """Return the tiles of a stage."""
        return *self.a_tiles, *self.b_tiles


@dataclass(frozen=True, slots=True)
class ContractionPlan:
    """A GEMM: one TMA producer warp, consumer warpgroups with 64 rows of the tile each.

    phases: what a block multiplies for a tile, one after the other, in stages of one layout. by_warps: warps
    multiply by themselves (mma.sync), each as soon as it has its rows of A. Instructions of a warpgroup would
    wait for one another: none may be in flight while registers of the next are written.
    """

    kernel: Kernel
    kind: str
    phases: tuple[Phase, ...]
    rows: TiledAxis
    others: tuple[TiledAxis, ...]
    fragment: Fragment
    ring: Ring
    dtype: DType
    depth: int
    pieces: Pieces | None
    loop: PieceLoop | None  # over pieces of a number that a tile counts, added in ascending order
    clears: bool  # whether the contracted axis ends inside of a step, where both tensors go on
    segments: Segments | None  # of the rows, or of the columns where operands are swapped
    by_warps: bool
    cluster: int
    consumers: int
    registers: Registers
    group: int
    programs: int
    signature: Signature
    target: Target

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def contraction(self) -> Contraction:
        """Return the first contraction."""
        return self.phases[0].contraction

    @property
    def products(self) -> tuple[Product, ...]:
        """Return the products of all phases, in the order of their accumulators."""
        return tuple(product for phase in self.phases for product in phase.products)

    @property
    def tma_tiles(self) -> tuple[TmaTile, ...]:
        """Return the tiles of all phases."""
        return tuple(tile for phase in self.phases for tile in phase.tma_tiles)

    @property
    def a_tiles(self) -> tuple[TmaTile, ...]:
        """Return the tiles of A of a stage: those of the first phase, whose layout others have."""
        return self.phases[0].a_tiles

    @property
    def b_tiles(self) -> tuple[TmaTile, ...]:
        """Return the tiles of B of a stage."""
        return self.phases[0].b_tiles

    @property
    def steps(self) -> int | None:
        """Return the K steps of the first phase; None: a tile counts them, and no other follows."""
        return self.phases[0].steps

    @property
    def prologue(self) -> tuple[Let, ...]:
        """Return what A is computed of, if it is: consumers read its tile, and hold A in registers."""
        return self.a_tiles[0].factor.prologue

    @property
    def of_bytes(self) -> tuple[Let, ...]:
        """Return the casts of signed bytes to 16-bit floats that consumers do for two at once, if any."""
        return casts_of_bytes(self.prologue, self.contraction.over, types_of(self.kernel))

    @property
    def consumer_threads(self) -> int:
        return WARPGROUP * self.consumers

    @property
    def columns(self) -> int:
        return self.fragment.length

    @property
    def blocks_of_columns(self) -> int:
        return self.columns // 8

    @property
    def blocks_of_depth(self) -> int:
        return self.depth // 8

    @property
    def instructions(self) -> int:
        """Return the wgmma instructions of a K step."""
        return self.depth // INSTRUCTION

    @property
    def spilled(self) -> int:
        """Return the elements of the accumulator that is spilled to shared memory."""
        return self.rows.tile * self.columns if self.pieces is not None and self.pieces.shared else 0

    @property
    def quads(self) -> int:
        """Return the 4-register vectors of an accumulator."""
        return self.columns // 8

    @property
    def spilled_of_warp(self) -> int:
        """Return the words of it that a warp has, which are its epilogue scratch afterwards."""
        return ROWS_OF_WARP * self.columns

    @property
    def columns_of_segments(self) -> bool:
        """Return whether the columns of a tile are rows of a segment: operands are swapped."""
        return self.segments is not None and self.segments.axis == self.fragment.axis

    @property
    def tile_of_segment(self) -> int:
        """Return the rows of a segment that a cluster has."""
        return self.columns if self.columns_of_segments else self.rows.tile * self.cluster

    @property
    def clustered(self) -> bool:
        return self.cluster > 1

    @property
    def moves_registers(self) -> bool:
        """Return whether the producer gives up registers: a single consumer has the maximum already."""
        return self.consumers > 1

    @property
    def peers(self) -> int:
        """Return the multicast mask of a cluster."""
        return (1 << self.cluster) - 1

    @property
    def copy(self) -> str:
        """Return the TMA operation of the tiles that a cluster shares."""
        return "CopyBulkTensorTileG2SMulticastOp" if self.clustered else "CopyBulkTensorTileG2SOp"


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """A kernel without a contraction: a block has a tile of the parallel axes, and reduces whole axes.

    thread_value_layouts: of these axes. ahead: prefetch distance of loops in steps. segments: of the
    first axis, if it is packed.
    """

    kernel: Kernel
    kind: str
    tiled: tuple[TiledAxis, ...]
    thread_value_layouts: tuple[ThreadValues, ...]
    threads: int
    ahead: int
    unroll: int
    signature: Signature
    target: Target
    segments: Segments | None = None

    @property
    def fragment(self) -> None:
        """Return None: lists of a thread may run over several axes."""
        return None

    @property
    def fewest_blocks(self) -> int:
        """Return the minimum of blocks per SM (0: no minimum), which bounds registers.

        A prefetching loop without stores is bound by memory latency, and wants as many threads as the
        registers of its fragments allow: half as many where a step loads two tensors.
        """
        loops = [let.node for let in walk(self.kernel.body) if isinstance(let.node, Loop)]
        steps = [[let.node for let in walk(loop.body)] for loop in loops]
        if not steps or not self.ahead or any(isinstance(node, Store) for step in steps for node in step):
            return 0
        read = max(sum(isinstance(node, Load) for node in step) for step in steps)
        return THREADS_THAT_READ // (self.threads * max(1, read))


Plan = ContractionPlan | RowsPlan


class Placed(Protocol):
    """The fields of all plans that the emitter base reads."""

    @property
    def kernel(self) -> Kernel: ...

    @property
    def fragment(self) -> Fragment | None: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def target(self) -> Target: ...


def refused(lacks: str, target: Target, loc: Loc = NOWHERE, instead: str = "") -> LoweringError:
    """Return the error of a kernel that this lowering does not support; another backend may.

    instead: what an author can write for this one.
    """
    other = "backend triton"
    return LoweringError(
        lacks, f"{instead}, or {other}" if instead else other, loc, backend="cute", target=target.name
    )


SECOND_DYNAMIC, STATIC = "a second dynamic axis that programs share", "an axis without dynamic=True"


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> ContractionPlan:
    """Return the plan of a specialized GEMM kernel; raise LoweringError if there is no form for it."""
    if signature.split_rows or signature.strided:
        what = "tensors with two row strides, or a last dim that is not contiguous"
        raise refused(what, target, instead="a call with .contiguous() tensors")
    kernel = bounds(kernel, dict(roles(kernel, dict(signature.extents)).inside))
    what = kind(kernel)
    if what in ("stream_dot", "dot_map"):
        made = _contraction(kernel, what, schedule, target, signature)
        _check_protocol(made)
        return made
    raise refused(f"a kernel with a contraction of the kind {what}", target)


# --- contractions ---


def _contraction(
    kernel: Kernel, what: str, schedule: Schedule, target: Target, signature: Signature
) -> ContractionPlan:
    extents, walked, loop = dict(signature.extents), one_piece(kernel), piece_loop(kernel)
    kernel = next((each.kernel for each in (walked, loop) if each is not None), kernel)
    found = roles(kernel, extents)
    of_segments = _segments(kernel, found.parallel, extents, target)
    inside = {a: n for a, n in found.inside if n > 1}
    tiled = (*found.parallel, *inside)
    of_pieces = walked is not None or loop is not None
    first, sides = _checked(kernel, tiled, of_pieces, extents, target)
    transposed = _swapped(kernel, first, sides, schedule, extents, of_pieces, target)
    if loop is None:  # which names values of the kernel
        kernel = hoist_masks(kernel, sides[not transposed].axis)
    if walked is not None:  # the number of a piece is no argument
        kernel = replace(kernel, params=tuple(d for d in kernel.params if d.name != walked.index))
    of = contractions_of_tiles(kernel, target, refused).of
    pairs = {v: _rows_first(_sides(each, tiled, kernel, target), transposed) for v, each in of.items()}
    rows, columns = (side.axis for side in next(iter(pairs.values())))
    width = inside.get(columns) or schedule.tile(str(columns))
    schedule.with_tile(str(columns), 1).check_powers()
    consumers = _consumers(schedule, rows, width, found.parallel, target, len(pairs) + (loop is not None))
    tile = consumers * ROWS_OF_WARPGROUP
    others = _others(found.parallel, of_segments, rows, TiledAxis(columns, width, None), extents, target)
    loaded, dtype = _dtypes(kernel, pairs.values(), signature, target)
    sums = walked is not None or loop is not None and width > WIDE_WITH_SUM
    registers, cluster = _registers(consumers, sums), schedule.cluster
    tiles = {v: (a.tile(tile, 1, loaded), b.tile(width, cluster, dtype)) for v, (a, b) in pairs.items()}
    warps_alone = by_warps(kernel, rows, width)
    depth = _depth(schedule, next(iter(tiles.values()))[1], warps_alone, target)
    pieces = _pieces(walked, of_segments, first, depth, width, extents, target)
    phases = _phases(of, tiles, depth, extents, None if pieces is None else pieces.copied, target)
    own = len(phases[0].a_tiles) * tile * depth * loaded.bytes
    shared = len(phases[0].b_tiles) * width * depth * dtype.bytes
    spilled = tile * width * DType.F32.bytes if pieces is not None and pieces.shared else 0
    ring = _ring(schedule.stages, own + shared, consumers, cluster, spilled, target)
    return ContractionPlan(
        kernel=kernel,
        kind=what,
        phases=phases,
        rows=TiledAxis(rows, tile, fixed_extent(rows, extents)),
        others=others,
        fragment=Fragment(columns, width, (1, 2)),
        ring=ring,
        dtype=dtype,
        depth=depth,
        pieces=pieces,
        loop=loop,
        clears=walked is None and _clears(phases, depth, extents, target),
        segments=of_segments,
        by_warps=warps_alone,
        cluster=cluster,
        consumers=consumers,
        registers=registers,
        group=schedule.group,
        programs=schedule.programs or target.cores,
        signature=signature,
        target=target,
    )


def _rows_first(sides: tuple[_Side, _Side], transposed: bool) -> tuple[_Side, _Side]:
    """Return the sides of A and of B: the rows of a tile first, unless operands are swapped."""
    return (sides[1], sides[0]) if transposed else sides


def _registers(consumers: int, sums: bool) -> Registers:
    """Return the registers of threads; sums: whether consumers have accumulators in most of theirs."""
    found = OF_PIECES if sums and consumers == 2 else REGISTERS[consumers]
    claim_registers(WARPGROUP * (1 + consumers), (found.fewer, *[found.more] * consumers))
    return found


def _dtypes(
    kernel: Kernel, pairs: Iterable[tuple[_Side, _Side]], signature: Signature, target: Target
) -> tuple[DType, DType]:
    """Return the dtypes of A and of B, the same in all products; raise if TMA cannot load a factor."""
    a, b, *_ = (_copyable(kernel, side.factor, signature, target) for pair in pairs for side in pair)
    return a, b


def _phases(
    of: Mapping[Value, Contraction],
    tiles: Mapping[Value, tuple[TmaTile, TmaTile]],
    depth: int,
    extents: dict[str, int],
    of_piece: int | None,
    target: Target,
) -> tuple[Phase, ...]:
    """Return the phases of a kernel: products of one axis that share a side are one, if stages are alike.

    of_piece: the K steps of one of several pieces.
    """
    groups: list[list[Value]] = []
    for value, each in of.items():
        for group in groups:
            first, sides = of[group[0]], zip(*(tiles[v] for v in (*group, value)), strict=True)
            together = (first.over, first.stop) == (each.over, each.stop)
            if together and any(len(set(side)) == 1 for side in sides):
                group.append(value)
                break
        else:
            groups.append([value])

    def made(group: list[Value]) -> Phase:
        a_tiles, b_tiles = (tuple(dict.fromkeys(s)) for s in zip(*(tiles[v] for v in group), strict=True))
        products = (Product(v, a_tiles.index(tiles[v][0]), b_tiles.index(tiles[v][1])) for v in group)
        steps = _steps(of[group[0]], depth, extents) if of_piece is None else of_piece
        return Phase(of[group[0]], tuple(products), a_tiles, b_tiles, steps)

    phases = tuple(map(made, groups))
    if len({(len(phase.a_tiles), len(phase.b_tiles)) for phase in phases}) > 1:
        phases = tuple(made([value]) for value in of)
    if len(phases) > 1 and any(phase.steps is None for phase in phases):
        raise refused("several contractions of lengths that calls decide", target)
    return phases


def _depth(schedule: Schedule, columns: TmaTile, by_warps: bool, target: Target) -> int:
    """Return the K of a step: rows of the swizzle's width, of bytes too; those of B have two parts then."""
    twice = by_warps and schedule.cluster == 1 and schedule.depth == SWIZZLED
    depth = SWIZZLED if twice else SWIZZLED // columns.dtype.bytes
    whole = depth if columns.transposed else INSTRUCTION
    if not is_power_of_two(columns.rows) and columns.rows % whole:
        lacks = f"tiles of {columns.rows} columns, elements of {columns.factor.load.param}"
        raise refused(lacks, target, instead=f"a power of two, or a multiple of {whole}")
    return depth


def _swapped(
    kernel: Kernel,
    contraction: Contraction,
    sides: tuple[_Side, _Side],
    schedule: Schedule,
    extents: dict[str, int],
    in_pieces: bool,
    target: Target,
) -> bool:
    """Return whether to swap A and B: fewer rows than an instruction has, or B is computed."""
    parallel, (first, last) = roles(kernel, extents).parallel, (side.axis for side in sides)
    if any(side.factor.prologue for side in sides):  # registers hold A
        swapped = bool(sides[1].factor.prologue)
        counted = _steps(contraction, INSTRUCTION, extents) is None
        if in_pieces or counted or swapped and last not in parallel:
            raise _computed_refused(kernel, target)
        return swapped
    swapped = last in parallel and _transposed(schedule.tile(str(first)), schedule.tile(str(last)))
    if swapped and in_pieces:
        raise refused("pieces in sequence with fewer rows than a wgmma instruction", target)
    return swapped


def _others(
    parallel: tuple[Axis, ...],
    of_segments: Segments | None,
    rows: Axis,
    columns: TiledAxis,
    extents: dict[str, int],
    target: Target,
) -> tuple[TiledAxis, ...]:
    """Return the parallel axes of a tile beside its rows, a dynamic one first, without that of segments."""
    over = None if of_segments is None else of_segments.over
    lengths = {columns.axis: columns.tile}
    others = (a for a in parallel if a not in (rows, over))
    tiled = (TiledAxis(a, lengths.get(a, 1), fixed_extent(a, extents)) for a in others)
    made = tuple(sorted(tiled, key=lambda each: each.tiles is not None))
    if any(each.tiles is None for each in made[1:]):
        raise refused(SECOND_DYNAMIC, target, instead=STATIC)
    return made


def _consumers(
    schedule: Schedule, rows: Axis, width: int, parallel: tuple[Axis, ...], target: Target, count: int
) -> int:
    """Return the consumer warpgroups of a tile with `width` columns; raise if unsupported.

    count: of the tile's accumulators, or of those and sums of pieces.
    """
    if count > max(1, most_accumulators(width)):
        lacks = f"{count} accumulators for a tile of {width} columns"
        most = MOST_COLUMNS // padded(count)
        raise refused(lacks, target, instead=f"a chunk or extent of at most {most} columns")
    consumers = max(1, schedule.tile(str(rows)) // ROWS_OF_WARPGROUP)
    shared = width % (WHOLE_COLUMNS * schedule.cluster) == 0 or schedule.cluster == 1
    known = FEWEST_COLUMNS <= width <= MOST_COLUMNS and consumers <= 2 and rows in parallel
    if not shared or not known:
        if rows not in parallel:
            lacks = f"a reduction over both axes of a product, {rows} too, in the kernel that computes it"
            raise refused(
                lacks, target, instead=f'z = L.keep(z, "z") of the product before the sum over {rows}'
            )
        lacks = f"products with tiles of {consumers * ROWS_OF_WARPGROUP} x {width}"
        known_widths = f"{FEWEST_COLUMNS} to {MOST_COLUMNS} columns: a chunk or extent of these"
        raise refused(lacks, target, instead=known_widths)
    return consumers


def _transposed(rows: int, columns: int) -> bool:
    """Return whether to swap A and B: a tile with fewer rows than a wgmma instruction."""
    return rows < ROWS_OF_WARPGROUP <= columns and columns % ROWS_OF_WARPGROUP == 0


def _checked(
    kernel: Kernel, tiled: tuple[Axis, ...], in_pieces: bool, extents: dict[str, int], target: Target
) -> tuple[Contraction, tuple[_Side, _Side]]:
    """Return the first contraction of a kernel, and its sides, if wgmma supports all of them."""
    of = contractions_of_tiles(kernel, target, refused).of
    lets = {let.value: let for let in walk(kernel.body)}
    (value, first), *others = of.items()
    loops = [let.node for let in lets.values() if isinstance(let.node, Loop)]
    if any(names_steps(loop, lets) for loop in loops):
        sides = sorted((first.a, first.b), key=lambda side: not lets.keys() >= set(side.load.index))
        error = gathered_matrices_error(lets[value], *(side.name for side in sides))
        raise refused(f"{error.lacks} for each row", target, error.loc, error.instead)
    if loops:
        instead = kept(_names(lets, value), lets[value].loc, 'z = L.keep(z, "z") of the product')
        raise refused("a contraction beside a stream", target, lets[value].loc, instead)
    for value, contraction in of.items():
        _supported(kernel, value, contraction, lets[value], tiled, target)
    for value, other in others:
        one, two = (_sides(each, tiled, kernel, target) for each in (first, other))
        lacks = f"in pieces of {first.over.whole}" if in_pieces else _unlike(kernel, one, two)
        counted = any(_steps(each, INSTRUCTION, extents) is None for each in (first, other))
        if not lacks and counted and (first.over, first.stop) != (other.over, other.stop):
            lacks = "of lengths that calls decide"
        if lacks:
            instead = kept(_names(lets, value), lets[value].loc, 'z = L.keep(z, "z") of each product but one')
            raise refused(f"a kernel of two contractions {lacks}", target, lets[value].loc, instead)
    return first, _sides(first, tiled, kernel, target)


def _supported(
    kernel: Kernel, value: Value, contraction: Contraction, let: Let, tiled: tuple[Axis, ...], target: Target
) -> None:
    """Raise LoweringError for a contraction that is none for wgmma, or whose factors TMA cannot load."""
    loc = let.loc
    if contraction.a.prologue and contraction.b.prologue:
        raise _computed_refused(kernel, target)
    if target.name != "sm_90a":
        raise refused("contractions for this target", target, loc)
    if contraction.model is not DotModel.CHAIN16:
        kind = "i8" if contraction.model is DotModel.INTEGER else "f32"
        raise refused(f"contractions of {kind}", target, loc, "factors of bf16 or f16")
    for factor in (contraction.a, contraction.b):
        _side(factor, tiled, kernel, target)
        guard = factor.load.guard
        if guard is not None and not covered(kernel, value, guard):
            lacks = f"a factor {factor.name} whose elements have a condition that does not mask the result"
            raise refused(lacks, target, loc, "L.where(condition, product, 0.0)")


def _names(lets: Mapping[Value, Let], value: Value) -> list[str]:
    """Return the name of a product, or else that of a value made of it."""
    users = (let.name for let in lets.values() if value in operands(let.node))
    return [name for name in (lets[value].name, *users) if name][:1]


def _unlike(kernel: Kernel, one: tuple[_Side, _Side], two: tuple[_Side, _Side]) -> str:
    """Return why the tiles of two contractions have no stages of one layout; empty if they have."""
    dtypes = {decl.name: decl.type.dtype for decl in kernel.params}
    for a, b in zip(one, two, strict=True):
        names = f"{a.factor.name} and {b.factor.name}"
        if a.factor.prologue or b.factor.prologue:
            return "of which a factor is computed"
        if a.axis != b.axis:
            return f"of {names}, whose rows have the axes {a.axis} and {b.axis}"
        if dtypes[a.factor.load.param] is not dtypes[b.factor.load.param]:
            return f"of {names}, which have other dtypes"
        if (a.dim > a.factor.at) != (b.dim > b.factor.at):
            return f"of {names}, whose dims have another order"
    return ""


def _computed_refused(kernel: Kernel, target: Target) -> LoweringError:
    """Return the error of a computed factor where registers cannot hold it.

    That is one of two, one whose axis a block reduces, and one along an axis whose length a tile counts.
    """
    lets = {let.value: let for let in walk(kernel.body)}
    dot = next(let for let in lets.values() if isinstance(let.node, Dot))
    error = computed_factor_error(dot, lets)
    return refused(error.lacks, target, error.loc, error.instead)


@dataclass(frozen=True, slots=True)
class _Side:
    """A factor, the axis of its tile rows, and the scalars that sum to its first row."""

    factor: Factor
    axis: Axis
    first: tuple[Value, ...]
    dim: int
    batch: tuple[tuple[int, Value], ...]

    def tile(self, rows: int, shared: int, dtype: DType) -> TmaTile:
        return TmaTile(self.factor, rows, self.axis, self.first, shared, self.dim, dtype, self.batch)


def _sides(
    contraction: Contraction, tiled: tuple[Axis, ...], kernel: Kernel, target: Target
) -> tuple[_Side, _Side]:
    """Return the factor of the rows of a tile, and that of its columns."""
    one, two = (_side(f, tiled, kernel, target) for f in (contraction.a, contraction.b))
    return (one, two) if tiled.index(one.axis) < tiled.index(two.axis) else (two, one)


def _side(factor: Factor, tiled: tuple[Axis, ...], kernel: Kernel, target: Target) -> _Side:
    nodes, types = {let.value: let.node for let in walk(kernel.body)}, types_of(kernel)
    each = {axis for node in nodes.values() if isinstance(node, Dot) for axis in node.each or ()}
    axes = [
        a
        for a in tiled
        if a in factor.axes and a not in each and a.part in (Part.ALL, Part.WITHIN, Part.LANE)
    ]
    index = factor.load.index

    def along(value: Value) -> bool:
        type = types[value]
        return isinstance(type, TileType) and axes[-1] in type.axes

    dims = [d for d, value in enumerate(index) if d != factor.at and axes and along(value)]
    batch = tuple((d, value) for d, value in enumerate(index) if d not in (factor.at, *dims))
    combined = {node.over for node in nodes.values() if isinstance(node, Reduce)}
    alone = each.union(a for a in tiled if a not in combined and a != axes[-1]) if axes else each
    if len(dims) != 1 or any(not alone.issuperset(tile_axes(types[value])) for _, value in batch):
        lacks = f"a contraction of {factor.load.param}, which has {len(index)} dims"
        raise refused(lacks, target, instead="factors of two dims, and others that are not reduced")
    counted = count_up(
        index[dims[0]], nodes, lambda value: isinstance(types[value], TileType) and not along(value)
    )
    if counted is None or counted[1] != axes[-1]:
        name = factor.name
        lacks = f"a contraction of rows of {factor.load.param} that are not consecutive"
        rows, of = (f"{name}_rows", f"{name}.at(...)") if name == factor.load.param else (name, name)
        raise refused(lacks, target, instead=f'{rows} = L.keep({of}, "{rows}") before it')
    return _Side(factor, axes[-1], counted[0], dims[0], batch)


def _segments(
    kernel: Kernel, parallel: tuple[Axis, ...], extents: dict[str, int], target: Target
) -> Segments | None:
    """Return the segments of a kernel's rows, if it has any; each thread of a warp counts some of them."""
    found = segments(kernel, parallel)
    if found is None:
        return None
    count = fixed_extent(found.over, extents)
    if found.each != 1 or count is None or count > MOST_SEGMENTS:
        number = "an unknown number of" if count is None else count
        lacks = f"contractions of rows in {number} segments of {found.axis}"
        raise refused(lacks, target, instead=f"{MOST_SEGMENTS} segments at most, of one row an element")
    return found


def _steps(contraction: Contraction, depth: int, extents: dict[str, int]) -> int | None:
    """Return the number of K steps, if it is static."""
    over = contraction.over
    length = fixed_extent(over, extents) if contraction.stop is None else None
    return None if length is None else -(-length // depth)


def _clears(phases: tuple[Phase, ...], depth: int, extents: dict[str, int], target: Target) -> bool:
    """Return whether consumers write zeros beyond the end of the contracted axis, into MN-major tiles."""
    short = [phase for phase in phases if _ends_inside_a_step(phase.contraction, depth, extents)]
    for phase in short:
        computed = any(tile.factor.prologue for tile in phase.tma_tiles)
        counted = phase.contraction.stop is not None and len(phases) == 1
        if not counted or computed or not all(tile.transposed for tile in phase.tma_tiles):
            raise refused(f"parts of {phase.contraction.over.whole} that end between steps", target)
    return bool(short)


def _ends_inside_a_step(contraction: Contraction, depth: int, extents: dict[str, int]) -> bool:
    """Return whether the last K step may have elements of both tensors beyond the end of the axis.

    Where one factor ends with its tensor, TMA fills zeros. Of pieces of whole steps only the last, which ends
    there, is shorter. A computed factor is 0 there, which must not meet what is infinite.
    """
    over = contraction.over
    length = fixed_extent(over, extents) if contraction.stop is None else None
    whole = length is not None and length % depth == 0
    whole = whole or over.part is Part.WITHIN and over.piece is not None and over.piece % depth == 0
    a, b = contraction.a, contraction.b
    return not whole and bool(a.base or b.base if a.prologue or b.prologue else a.base and b.base)


def _pieces(
    walked: OnePiece | None,
    of_segments: Segments | None,
    contraction: Contraction,
    depth: int,
    width: int,
    extents: dict[str, int],
    target: Target,
) -> Pieces | None:
    """Return the sequential pieces, if any, whose static length is a multiple of a wgmma instruction's K.

    The last K step of a piece loads elements of the next, which no instruction reads.
    """
    if walked is None:
        return None
    if of_segments is not None:
        raise refused(f"pieces of {walked.axis.whole} in sequence for rows in segments", target)
    length = fixed_extent(contraction.over, extents)
    if length is None or length % INSTRUCTION or contraction.stop is not None:
        raise refused(f"pieces of {contraction.over.whole} that end inside of an instruction", target)
    count = walked.axis.split or 1
    live, shared = accumulators(width, count)
    if live < 2 + shared or shared > 1:
        raise refused(f"{count} pieces in turn of a tile of {width} columns", target)
    steps, rest = divmod(length, depth)
    return Pieces(walked.index, count, steps, rest // INSTRUCTION, live, shared > 0)


def _copyable(kernel: Kernel, factor: Factor, signature: Signature, target: Target) -> DType:
    """Return the dtype of a tensor; refuse one that TMA cannot load.

    Its address and strides must be multiples of 16 bytes.
    """
    decl = next(d for d in kernel.params if d.name == factor.load.param)
    strides = {stride_name(decl, dim) for dim in range(len(decl.type.axes) - 1)}
    if not {decl.name, *strides} <= signature.divisible:
        lacks = f"a factor {decl.name} whose rows do not lie at multiples of 16 bytes"
        raise refused(lacks, target, instead="rows of a multiple of 16 bytes")
    return decl.type.dtype


def _ring(stages: int, size: int, consumers: int, cluster: int, spilled: int, target: Target) -> Ring:
    warps = 4 * consumers
    fitting = room_of_stages(target, warps, spilled) // size
    if fitting < 2:
        lacks = f"shared memory for two stages of {size} bytes"
        raise refused(lacks, target, instead="a smaller chunk")
    return Ring(max(2, min(stages, fitting)), size, cluster * warps)


def _check_protocol(made: ContractionPlan) -> None:
    """Check the pipeline of a plan."""
    tiles = made.phases[0].a_tiles, made.phases[0].b_tiles
    own, shared = (sum(tile.rows * made.depth * tile.dtype.bytes for tile in each) for each in tiles)
    idle, computed = made.segments is not None and not made.columns_of_segments, bool(made.prologue)
    of = made.ring, made.consumers, made.cluster, own, shared, idle, computed, made.by_warps
    _sound(*of)


@cache
def _sound(
    ring: Ring,
    consumers: int,
    cluster: int,
    own: int,
    shared: int,
    idle: bool,
    computed: bool,
    by_warps: bool,
) -> None:
    """Raise InternalError where the pipeline protocol can deadlock or read an unfilled stage."""
    arrivals = ring.releases // (consumers * cluster)
    protocol = gemm_protocol(
        ring.stages,
        consumers,
        cluster,
        own=own,
        shared=shared,
        arrivals=arrivals,
        idle=idle,
        computed=computed,
        by_warps=by_warps,
    )
    counted = protocol_ring(protocol.rings[0].name, ring.stages, ring.bytes, ring.releases)
    verify(replace(protocol, rings=(counted,)))
