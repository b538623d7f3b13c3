"""Where a kernel that contracts what it computed lives on Hopper: rows in warpgroups, tiles in rings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from rlk.ir.dims import fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Check, Dot, Kernel, Let, Load, Loop, Result, Store, Value
from rlk.ir.types import DType, TileType
from rlk.lower.common.bounds import bounds
from rlk.lower.common.emitted import Signature
from rlk.lower.common.peel import peel
from rlk.lower.common.segments import Segments, segments
from rlk.lower.common.spread import Owned
from rlk.lower.cute.plan import (
    INSTRUCTION,
    REGISTERS,
    ROWS_OF_WARPGROUP,
    WARPGROUP,
    Held,
    Registers,
    refused,
    stride_name,
)
from rlk.lower.cute.protocol import claim_registers, streams_protocol, verify
from rlk.passes.walk import walk
from rlk.schedule.axes import roles, types_of
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

CONSUMERS = 2
PAIRS = (1, 2)  # index bits that tell the four threads apart which share a row of an accumulator
MOST_ACROSS = 8  # threads that copy a row: 128 bytes, all banks of shared memory
VECTOR = 16  # bytes that a thread copies at once
NARROW = 96  # elements of a row's sums that leave more registers to threads that copy
NARROWER = Registers(56, 224)
WIDEST = 128  # elements of a row's sums, of which a thread holds two lists for two rows
BOX = 1024  # bytes by which the threads of a warp trade elements
BARRIERS = 1024  # bytes beside the tiles, and what aligns these


@dataclass(frozen=True, slots=True)
class Copies:
    """How the threads of a warpgroup copy a tile: so many share a row, and go down the rows in passes.

    param: of the tensor. load: what is copied, from the loop's last part, where nothing is left unmasked.
    """

    load: Value
    param: str
    rows: int
    elements: int
    width: int  # elements of a vector

    @property
    def across(self) -> int:
        """How many threads share a row: eight at most, so that each has several vectors of few rows."""
        vectors = self.elements // self.width
        return min(MOST_ACROSS, vectors & -vectors)

    @property
    def vectors(self) -> int:
        """Vectors of a thread in a row."""
        return self.elements // self.width // self.across

    @property
    def down(self) -> int:
        """Rows of a pass."""
        return WARPGROUP // self.across

    @property
    def passes(self) -> int:
        return self.rows // self.down


@dataclass(frozen=True, slots=True)
class Step:
    """A loop's part: a contraction of factors from memory, and one of what it computed."""

    loop: Loop
    scores: Let
    sums: Let


@dataclass(frozen=True, slots=True)
class ChainedPlan:
    """A warpgroup that copies, and warpgroups that hold 64 rows of a tile each.

    parts: of the loop: steps where every element exists, then all others; or the others alone. scores, sums:
    how threads hold the results of both contractions. rows_of, columns, values: the factors from memory.
    """

    kernel: Kernel
    kind: str
    segments: Segments
    rows: Owned
    others: tuple[Owned, ...]
    scores: Held
    sums: Held
    parts: tuple[Step, ...]
    queries: Copies
    columns: Copies
    values: Copies
    dtype: DType
    stages: int
    registers: Registers
    signature: Signature
    target: Target

    @property
    def held(self) -> None:
        """Lists of a thread run along one axis or the other."""
        return None

    @property
    def last(self) -> Step:
        return self.parts[-1]

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + CONSUMERS)

    @property
    def warps(self) -> int:
        """Warps that multiply, of which one thread each frees a stage."""
        return 4 * CONSUMERS

    @property
    def copied(self) -> tuple[Copies, Copies, Copies]:
        return self.queries, self.columns, self.values


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> ChainedPlan:
    """Place a specialized kernel; raise UnsupportedError where there is no form for it."""
    extents = dict(signature.extents)
    if signature.split_rows or signature.strided or target.name != "sm_90a":
        raise refused("rows of two strides, or elements that do not follow each other", target)
    kernel = peel(bounds(kernel, dict(roles(kernel, extents).inside)))
    found = roles(kernel, extents)
    rows = segments(kernel, found.parallel)
    if rows is None:
        raise refused("contractions of what is computed, of rows that are no segments", target)
    parts = _parts(kernel, target)
    scores, sums = _held(parts[-1], kernel, extents, target)
    tile = CONSUMERS * ROWS_OF_WARPGROUP
    if schedule.tile(str(rows.axis)) != tile:
        raise refused(f"tiles of {schedule.tile(str(rows.axis))} rows", target)
    queries, columns, values = _copies(parts[-1], kernel, tile, scores, sums, extents, target)
    for each in (queries, columns, values):
        _copyable(kernel, each, signature, target)
    others = tuple(a for a in found.parallel if a not in (rows.axis, rows.over, sums.axis))
    owned = tuple(Owned(a, 1, fixed_extent(a, extents)) for a in others)
    if any(o.length is None for o in owned):
        raise refused("a parallel axis of unknown extent beside segments", target)
    dtype = next(d.type.dtype for d in kernel.params if d.name == queries.param)
    registers = REGISTERS[CONSUMERS] if sums.length > NARROW else NARROWER
    claim_registers(WARPGROUP * (1 + CONSUMERS), (registers.fewer, *[registers.more] * CONSUMERS))
    stages = _stages(schedule, dtype, queries, columns, values, target)
    _sound(stages, CONSUMERS)
    return ChainedPlan(
        kernel=kernel,
        kind="chained_dot",
        segments=rows,
        rows=Owned(rows.axis, tile, None),
        others=owned,
        scores=scores,
        sums=sums,
        parts=parts,
        queries=queries,
        columns=columns,
        values=values,
        dtype=dtype,
        stages=stages,
        registers=registers,
        signature=signature,
        target=target,
    )


def _parts(kernel: Kernel, target: Target) -> tuple[Step, ...]:
    """Return the parts of the only loop, if each is a contraction of memory and one of what it computed."""
    loops = [(let.value, let.node) for let in kernel.body.lets if isinstance(let.node, Loop)]
    nodes = {let.value: let.node for let in walk(kernel.body)}
    stepped = [let.node for _, loop in loops for let in walk(loop.body)]
    checked = any(isinstance(node, Check) for node in nodes.values())
    if checked or any(isinstance(node, Store) for node in stepped):
        raise refused("contractions of what is computed that are stored or checked step by step", target)
    if not 1 <= len(loops) <= 2:
        raise refused("contractions of what is computed in several loops", target)
    for (first, _), (_, second) in zip(loops, loops[1:], strict=False):
        goes_on = tuple(nodes.get(v) for v in second.init)
        if goes_on != tuple(Result(first, i) for i in range(len(goes_on))):
            raise refused("a loop that changes what another yields", target)
    return tuple(_step(loop, nodes, target) for _, loop in loops)


def _step(loop: Loop, nodes: Mapping[Value, object], target: Target) -> Step:
    dots = [let for let in loop.body.lets if isinstance(let.node, Dot)]
    if len(dots) != 2 or any(isinstance(let.node, Loop) for let in loop.body.lets):
        raise refused(f"a loop of {len(dots)} contractions", target)
    one, two = (let.node for let in dots)
    assert isinstance(one, Dot) and isinstance(two, Dot)
    of_memory = all(isinstance(nodes.get(v), Load) for v in (one.a, one.b, two.b))
    inside = {let.value for let in loop.body.lets}
    streamed = one.b in inside and two.b in inside and one.a not in inside
    carried = two.onto is not None and dots[1].value in loop.body.results
    chained = one.onto is None and two.a in inside and not isinstance(nodes.get(two.a), Load)
    if not (of_memory and streamed and carried and chained):
        raise refused("contractions that are no weights of rows, and then sums of what they weigh", target)
    if DotModel.CHAIN16 is not one.model or one.model is not two.model:
        raise refused(f"products of the model {one.model.value}", target)
    return Step(loop, dots[0], dots[1])


def _held(step: Step, kernel: Kernel, extents: dict[str, int], target: Target) -> tuple[Held, Held]:
    """Return how threads hold scores, along the streamed axis, and sums, along that of what is weighed."""
    types, dot = types_of(kernel), step.sums.node
    assert isinstance(dot, Dot)
    values = types[dot.b]
    assert isinstance(values, TileType)
    new = [a for a in values.axes if a != dot.over and a not in (dot.each or ())]
    width = fixed_extent(new[0], extents) if len(new) == 1 else None
    length = dict(roles(kernel, extents).inside).get(dot.over, 0)
    if width is None or width % INSTRUCTION or not INSTRUCTION <= width <= WIDEST or length % INSTRUCTION:
        raise refused(f"sums of {width} elements over {length} at a time", target)
    return Held(dot.over, length, PAIRS), Held(new[0], width, PAIRS)


def _copies(
    step: Step, kernel: Kernel, tile: int, scores: Held, sums: Held, extents: dict[str, int], target: Target
) -> tuple[Copies, Copies, Copies]:
    one, two = step.scores.node, step.sums.node
    assert isinstance(one, Dot) and isinstance(two, Dot)
    depth = fixed_extent(one.over, extents) or 0
    if depth % INSTRUCTION or not INSTRUCTION <= depth <= WIDEST:
        raise refused(f"rows of {depth} elements", target)
    nodes = {let.value: let.node for let in walk(kernel.body)}
    dtypes = {d.name: d.type.dtype for d in kernel.params}

    def copies(load: Value, rows: int, elements: int) -> Copies:
        node = nodes[load]
        assert isinstance(node, Load)
        dtype = dtypes[node.param]
        made = Copies(load, node.param, rows, elements, VECTOR // dtype.bytes)
        if dtype.bytes != 2 or node.fill is not None or rows % made.down:
            raise refused(f"a factor of {rows} x {elements} {dtype}", target)
        return made

    found = copies(one.a, tile, depth), copies(one.b, scores.length, depth)
    return (*found, copies(two.b, scores.length, sums.length))


def _copyable(kernel: Kernel, copies: Copies, signature: Signature, target: Target) -> None:
    """Refuse a tensor whose vectors do not lie at multiples of 16 bytes."""
    decl = next(d for d in kernel.params if d.name == copies.param)
    extents = dict(signature.extents)
    outer = [d for d, axis in enumerate(decl.type.axes[:-1]) if fixed_extent(axis, extents) != 1]
    if not {decl.name, *(stride_name(decl, d) for d in outer)} <= signature.divisible:
        raise refused(f"{decl.name}, whose rows do not lie at multiples of {VECTOR} bytes", target)


def _stages(
    schedule: Schedule, dtype: DType, queries: Copies, columns: Copies, values: Copies, target: Target
) -> int:
    own = queries.rows * queries.elements * dtype.bytes + BOX * 4 * CONSUMERS
    each = (columns.rows * columns.elements + values.rows * values.elements) * dtype.bytes
    return max(2, min(schedule.stages, ((target.shared << 10) - BARRIERS * 2 - own) // each))


@cache
def _sound(stages: int, consumers: int) -> None:
    """Raise InternalError where the roles could wait for ever, or read what is not there."""
    for steps in (1, 2, 2 * stages + 3):
        verify(streams_protocol(stages, consumers, steps))
