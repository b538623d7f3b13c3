"""Where each value of a kernel lives on Hopper, and who computes it: decided here, written elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Protocol

from rlk.errors import Code, Loc, UnsupportedError
from rlk.ir.dims import Axis, Part, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Kernel, Load, Loop, Store, Value
from rlk.ir.types import DType, TileType
from rlk.lower.common.bounds import bounds
from rlk.lower.common.contract import Contraction, Factor, contractions, count_up, covered
from rlk.lower.common.emitted import Signature
from rlk.lower.common.names import stride_name
from rlk.lower.common.hoist_masks import narrowed
from rlk.lower.common.segments import Segments
from rlk.lower.common.thread_values import Owned, Spread
from rlk.lower.cute.protocol import Ring as protocol_ring
from rlk.lower.cute.protocol import claim_registers, verify
from rlk.lower.cute.protocols import ring_protocol
from rlk.passes.piecewise_launch import OnePiece, one_piece
from rlk.passes.walk import walk
from rlk.schedule.axes import kind, roles, types_of
from rlk.schedule.schedule import Schedule
from rlk.schedule.cute_table import accumulators, room_of_stages
from rlk.target.facts import Target

WARPGROUP = 128  # threads
ROWS_OF_WARPGROUP = 64  # of an accumulator
LANES_OF_ROW = 4  # threads that share a row of it
INSTRUCTION = 16  # elements of the contracted axis
SWIZZLED = 128  # bytes of a row of a tile in shared memory
FEWEST_COLUMNS, MOST_COLUMNS = 8, 256
WHOLE_COLUMNS = 8  # that swizzling needs of each share of a tile that a cluster copies


class Registers(NamedTuple):
    """What a thread has that copies, and one that multiplies."""

    fewer: int
    more: int


REGISTERS = {1: Registers(40, 240), 2: Registers(40, 232), 3: Registers(32, 160)}  # by consumers
THREADS_THAT_READ = 1024  # of a multiprocessor: 64 registers to each, for one tensor of a loop


@dataclass(frozen=True, slots=True)
class Held:
    """An axis whose elements threads hold as lists.

    lanes: the index bits that tell threads apart, the lowest first: the i-th is bit i of the lane. The other
    bits, ascending, are those of an element's place in the list.
    """

    axis: Axis
    length: int
    lanes: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many elements a thread has."""
        return self.length >> len(self.lanes)


@dataclass(frozen=True, slots=True)
class Box:
    """What TMA copies of a factor for a step: `rows` of its tensor from the sum of `first` on, along an axis.

    shared: blocks of a cluster that each copy a part for all. turned: these rows follow each other in memory,
    and the elements of the contracted axis lie across.
    """

    factor: Factor
    rows: int
    axis: Axis
    first: tuple[Value, ...]
    shared: int

    @property
    def turned(self) -> bool:
        return self.factor.at == 0


@dataclass(frozen=True, slots=True)
class Ring:
    """Stages through which boxes travel, and the counts of their barriers."""

    stages: int
    bytes: int  # that a stage's "full" waits for
    releases: int  # arrivals that a stage's "empty" waits for: a lane of each consuming warp of the cluster

    @property
    def barriers(self) -> int:
        return 2 * self.stages


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of the contracted axis in turn, each with an accumulator of its own, which a tree adds.

    index: the scalar that numbers them. steps: whole ones of each, and `rest` instructions of one more. held:
    accumulators of a thread. shared: of which a block has one more in shared memory, for the first half.
    """

    index: str
    count: int
    steps: int
    rest: int
    held: int
    shared: bool

    @property
    def turns(self) -> tuple[tuple[int, int], ...]:
        """For each piece, which accumulator it is multiplied into, and how many are then added downwards.

        A binary counter: as many wait as a piece's number has ones, and as many are added as it ends in.
        """
        numbers = [i % (self.count >> self.shared) for i in range(self.count)]
        return tuple((i.bit_count(), (~i & (i + 1)).bit_length() - 1) for i in numbers)

    @property
    def copied(self) -> int:
        """How many steps of a piece are copied."""
        return self.steps + (self.rest > 0)

    @property
    def half(self) -> int:
        """The piece after which the sum so far goes to shared memory."""
        return self.count // 2 - 1


@dataclass(frozen=True, slots=True)
class ContractionPlan:
    """One contraction: a warp that copies, warpgroups that multiply and hold 64 rows of the tile each."""

    kernel: Kernel
    kind: str
    contraction: Contraction
    rows: Owned
    others: tuple[Owned, ...]
    held: Held
    boxes: tuple[Box, Box]
    ring: Ring
    dtype: DType
    depth: int
    steps: int | None  # of the contracted axis, or of a piece; None: a tile counts them
    pieces: Pieces | None
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
    def columns(self) -> int:
        return self.held.length

    @property
    def blocks_of_columns(self) -> int:
        return self.columns // 8

    @property
    def instructions(self) -> int:
        """How many matrix instructions a step has."""
        return self.depth // INSTRUCTION

    @property
    def kept(self) -> int:
        """Elements of an accumulator that a block has in shared memory."""
        return self.rows.tile * self.columns if self.pieces is not None and self.pieces.shared else 0

    @property
    def quads(self) -> int:
        """How many fours of registers an accumulator is."""
        return self.columns // 8

    @property
    def apart(self) -> int:
        """How far apart a thread's fours lie in shared memory, where those of its neighbours come between."""
        return 4 * WARPGROUP * self.consumers

    @property
    def clustered(self) -> bool:
        return self.cluster > 1

    @property
    def moves_registers(self) -> bool:
        """Whether copying threads give registers away: a single warpgroup that multiplies has all it can."""
        return self.consumers > 1

    @property
    def peers(self) -> int:
        """The blocks of a cluster, as a mask."""
        return (1 << self.cluster) - 1

    @property
    def copy(self) -> str:
        """What copies the tiles that a cluster shares."""
        return "CopyBulkTensorTileG2SMulticastOp" if self.clustered else "CopyBulkTensorTileG2SOp"


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """No contraction: a block owns a tile of the parallel axes, and has all of what it combines.

    spreads: how these lie on its threads. ahead: how many steps early a loop reads what it will need.
    segments: what the first axis is, if it is the rows of one for each index of another.
    """

    kernel: Kernel
    kind: str
    owned: tuple[Owned, ...]
    spreads: tuple[Spread, ...]
    threads: int
    ahead: int
    unroll: int
    signature: Signature
    target: Target
    segments: Segments | None = None

    @property
    def held(self) -> None:
        """Lists of a thread may run over several axes here."""
        return None

    @property
    def fewest_blocks(self) -> int:
        """How many blocks a multiprocessor must have room for, 0 where that is left to the compiler.

        A loop that prefetches and writes nothing waits for memory alone, and wants all threads that the
        registers of its fragments allow: half as many where a step reads two tensors.
        """
        loops = [let.node for let in walk(self.kernel.body) if isinstance(let.node, Loop)]
        steps = [[let.node for let in walk(loop.body)] for loop in loops]
        if not steps or not self.ahead or any(isinstance(node, Store) for step in steps for node in step):
            return 0
        read = max(sum(isinstance(node, Load) for node in step) for step in steps)
        return THREADS_THAT_READ // (self.threads * max(1, read))


Plan = ContractionPlan | RowsPlan


class Placed(Protocol):
    """What every plan says, and emitters of all nests read."""

    @property
    def kernel(self) -> Kernel: ...

    @property
    def held(self) -> Held | None: ...

    @property
    def signature(self) -> Signature: ...

    @property
    def target(self) -> Target: ...


def refused(what: str, target: Target, loc: Loc | None = None) -> UnsupportedError:
    """Return the error of a nest that this lowering does not write."""
    more = (loc,) if loc is not None else ()
    return UnsupportedError(
        Code.UNSUPPORTED, *more, what=what, backend="cute", target=target.name, alternatives="triton"
    )


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> ContractionPlan:
    """Place a specialized kernel that contracts; raise UnsupportedError where there is no form for it."""
    if signature.split_rows or signature.strided:
        raise refused(
            "tensors whose rows have two strides, or whose elements do not follow each other", target
        )
    kernel = bounds(kernel, dict(roles(kernel, dict(signature.extents)).inside))
    what = kind(kernel)
    if what in ("stream_dot", "dot_map"):
        return _contraction(kernel, what, schedule, target, signature)
    raise refused(f"a nest of the kind {what}", target)


# --- contractions ---


def _contraction(
    kernel: Kernel, what: str, schedule: Schedule, target: Target, signature: Signature
) -> ContractionPlan:
    extents = dict(signature.extents)
    walked = one_piece(kernel)
    kernel = kernel if walked is None else walked.kernel
    found = roles(kernel, extents)
    inside = {a: n for a, n in found.inside if n > 1}
    tiled = (*found.parallel, *inside)
    first, last = (side.axis for side in _sides(_checked(kernel, target), tiled, kernel, target))
    turned = last in found.parallel and _turned(schedule.tile(str(first)), schedule.tile(str(last)))
    if turned and walked is not None:
        raise refused("pieces in turn with fewer rows than an instruction has", target)
    kernel = narrowed(kernel, first if turned else last)
    if walked is not None:  # the number of a piece is no argument
        kernel = replace(kernel, params=tuple(d for d in kernel.params if d.name != walked.index))
    (contraction,) = contractions(kernel).of.values()
    row_side, column_side = _sides(contraction, tiled, kernel, target)[:: -1 if turned else 1]
    rows, columns = row_side.axis, column_side.axis
    width = inside.get(columns) or schedule.tile(str(columns))
    consumers = _consumers(schedule, rows, width, found.parallel, target)
    tile, others = consumers * ROWS_OF_WARPGROUP, [a for a in found.parallel if a != rows]
    owned = tuple(Owned(a, width if a == columns else 1, fixed_extent(a, extents)) for a in others)
    if any(o.tiles is None for o in owned[1:]):
        raise refused("a second parallel axis of unknown extent", target)
    for side in (row_side, column_side):
        _copyable(kernel, side.factor, signature, target)
    dtype = next(d.type.dtype for d in kernel.params if d.name == row_side.factor.load.param)
    depth = SWIZZLED // dtype.bytes
    registers, cluster = REGISTERS[consumers], schedule.cluster
    claim_registers(WARPGROUP * (1 + consumers), (registers.fewer, *[registers.more] * consumers))
    pieces = None if walked is None else _pieces(walked, contraction, depth, width, extents, target)
    stage = (tile + width) * depth * dtype.bytes
    kept = tile * width * DType.F32.bytes if pieces is not None and pieces.shared else 0
    ring = _ring(schedule.stages, stage, consumers, cluster, kept, target)
    _sound(ring, consumers, cluster, tile * depth * dtype.bytes, width * depth * dtype.bytes)
    return ContractionPlan(
        kernel=kernel,
        kind=what,
        contraction=contraction,
        rows=Owned(rows, tile, fixed_extent(rows, extents)),
        others=owned,
        held=Held(columns, width, (1, 2)),
        boxes=(
            Box(row_side.factor, tile, rows, row_side.first, 1),
            Box(column_side.factor, width, columns, column_side.first, cluster),
        ),
        ring=ring,
        dtype=dtype,
        depth=depth,
        steps=_steps(contraction, depth, extents, target) if pieces is None else pieces.copied,
        pieces=pieces,
        cluster=cluster,
        consumers=consumers,
        registers=registers,
        group=schedule.group,
        programs=schedule.programs or target.cores,
        signature=signature,
        target=target,
    )


def _consumers(schedule: Schedule, rows: Axis, width: int, parallel: tuple[Axis, ...], target: Target) -> int:
    """Return how many warpgroups multiply a tile of so many columns, if they can."""
    consumers = max(1, schedule.tile(str(rows)) // ROWS_OF_WARPGROUP)
    shared = width % (WHOLE_COLUMNS * schedule.cluster) == 0 or schedule.cluster == 1
    known = FEWEST_COLUMNS <= width <= MOST_COLUMNS and consumers <= 2 and rows in parallel
    if not shared or not known:
        raise refused(f"tiles of {consumers * ROWS_OF_WARPGROUP} x {width}", target)
    return consumers


def _turned(rows: int, columns: int) -> bool:
    """Return whether a tile has fewer rows than an instruction, whose rows are then its columns."""
    return rows < ROWS_OF_WARPGROUP <= columns and columns % ROWS_OF_WARPGROUP == 0


def _checked(kernel: Kernel, target: Target) -> Contraction:
    """Return the only contraction of a kernel, if warpgroups can do it."""
    of = contractions(kernel).of
    if len(of) != 1 or any(isinstance(let.node, Loop) for let in walk(kernel.body)):
        raise refused("a nest of more than one contraction", target)
    ((value, contraction),) = of.items()
    if contraction.model is not DotModel.CHAIN16 or target.name != "sm_90a":
        raise refused(f"products of the model {contraction.model.value}", target)
    for factor in (contraction.a, contraction.b):
        guard = factor.load.guard
        if guard is not None and not covered(kernel, value, guard):
            raise refused(f"elements of {factor.load.param} that are read against a guard", target)
    return contraction


@dataclass(frozen=True, slots=True)
class _Side:
    """A factor, the axis that its tiles run along, and the scalars whose sum its first row is."""

    factor: Factor
    axis: Axis
    first: tuple[Value, ...]


def _sides(
    contraction: Contraction, tiled: tuple[Axis, ...], kernel: Kernel, target: Target
) -> tuple[_Side, _Side]:
    """Return the factor of the rows of a tile, and that of its columns."""
    one, two = (_side(f, tiled, kernel, target) for f in (contraction.a, contraction.b))
    return (one, two) if tiled.index(one.axis) < tiled.index(two.axis) else (two, one)


def _side(factor: Factor, tiled: tuple[Axis, ...], kernel: Kernel, target: Target) -> _Side:
    axes = [a for a in tiled if a in factor.axes and a.part in (Part.ALL, Part.WITHIN, Part.LANE)]
    if not axes or len(factor.load.index) != 2:
        raise refused("a factor that is no matrix", target)
    nodes, types = {let.value: let.node for let in walk(kernel.body)}, types_of(kernel)
    axis = axes[-1]

    def scalar(value: Value) -> bool:
        type = types[value]
        return isinstance(type, TileType) and axis not in type.axes

    counted = count_up(factor.load.index[1 - factor.at], nodes, scalar)
    if counted is None or counted[1] != axis:
        raise refused(f"rows of {factor.load.param} that do not follow each other", target)
    return _Side(factor, axis, counted[0])


def _steps(contraction: Contraction, depth: int, extents: dict[str, int], target: Target) -> int | None:
    """Return how many steps the contracted axis has, if that is known.

    The last may pass the end of the axis: one factor at least must end there, so that hardware reads zeros.
    """
    length = fixed_extent(contraction.over, extents) if contraction.stop is None else None
    whole = length is not None and length % depth == 0
    if not whole and contraction.a.base and contraction.b.base:
        raise refused(f"parts of {contraction.over.whole} that end between steps", target)
    return None if length is None else -(-length // depth)


def _pieces(
    walked: OnePiece,
    contraction: Contraction,
    depth: int,
    width: int,
    extents: dict[str, int],
    target: Target,
) -> Pieces:
    """Return how a block walks pieces whose lengths are known and multiples of an instruction's.

    The last step of a piece copies elements of the next, which no instruction multiplies.
    """
    length = fixed_extent(contraction.over, extents)
    if length is None or length % INSTRUCTION or contraction.stop is not None:
        raise refused(f"pieces of {contraction.over.whole} that end inside of an instruction", target)
    count = walked.axis.split or 1
    held, shared = accumulators(width, count)
    if held < 2 or shared > 1:
        raise refused(f"{count} pieces in turn of a tile of {width} columns", target)
    steps, rest = divmod(length, depth)
    return Pieces(walked.index, count, steps, rest // INSTRUCTION, held, shared > 0)


def _copyable(kernel: Kernel, factor: Factor, signature: Signature, target: Target) -> None:
    """Refuse a tensor that hardware cannot copy boxes of: its address and rows are multiples of 16 bytes."""
    decl = next(d for d in kernel.params if d.name == factor.load.param)
    stride = stride_name(decl, 0)
    if not {decl.name, stride} <= signature.divisible:
        raise refused(f"{decl.name}, whose rows do not lie at multiples of 16 bytes", target)


def _ring(stages: int, size: int, consumers: int, cluster: int, kept: int, target: Target) -> Ring:
    warps = 4 * consumers
    fitting = room_of_stages(target, warps, kept) // size
    if fitting < 2:
        raise refused(f"two stages of {size} bytes", target)
    return Ring(max(2, min(stages, fitting)), size, cluster * warps)


@cache
def _sound(ring: Ring, consumers: int, cluster: int, own: int, shared: int) -> None:
    """Raise InternalError where the roles of a contraction could wait for ever, or read what is not there."""
    arrivals = ring.releases // (consumers * cluster)
    protocol = ring_protocol(ring.stages, consumers, cluster, own=own, shared=shared, arrivals=arrivals)
    counted = protocol_ring(protocol.rings[0].name, ring.stages, ring.bytes, ring.releases)
    verify(replace(protocol, rings=(counted,)))
