"""Where a kernel that contracts what it computed lives on Hopper: rows in warpgroups, tiles in rings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import (
    Check,
    Dot,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    Map2,
    Node,
    Pos,
    Result,
    Select,
    Store,
    Value,
    operands,
)
from rlk.ir.types import DType, TileType
from rlk.lower.common.bounds import bounds
from rlk.lower.common.tma_tiles import Box, box_of
from rlk.lower.common.emitted import Signature
from rlk.lower.common.names import stride_name
from rlk.lower.common.peel import peel
from rlk.lower.common.segments import Segments, segments
from rlk.lower.common.thread_values import Owned
from rlk.lower.common.rescale import turning
from rlk.lower.cute.plan import (
    INSTRUCTION,
    REGISTERS,
    ROWS_OF_WARPGROUP,
    WARPGROUP,
    Held,
    Registers,
    refused,
)
from rlk.lower.cute.protocol import claim_registers, verify
from rlk.lower.cute.protocols import streams_protocol, sums_protocol, tickets_protocol
from rlk.passes.walk import behind, walk
from rlk.schedule.axes import roles, types_of
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

CONSUMERS = (1, 2, 3)  # warpgroups that multiply
FEW_REGISTERS = 3  # of these: each thread has so few that sums which steps seldom exchange wait elsewhere
PAIRS = (1, 2)  # index bits that tell the four threads apart which share a row of an accumulator
MOST_ACROSS = 8  # threads that copy a row: 128 bytes, all banks of shared memory
BOXED = (64, 128)  # elements of rows that hardware copies: whole lines of 128 bytes
LANES = 32  # of a warp
VECTOR = 16  # bytes that a thread copies at once
NARROW = 192  # elements of all sums of a row that leave more registers to threads that copy
NARROWER = Registers(56, 224)
ALONE = Registers(96, 240)  # where one warpgroup multiplies
WIDEST = 128  # elements of a row's sums, of which a thread holds two lists for two rows
BOX = 1024  # bytes by which the threads of a warp trade elements
BARRIERS = 1024  # bytes beside the tiles, and what aligns these


@dataclass(frozen=True, slots=True)
class Copies:
    """How the threads of a warpgroup copy a tile: so many share a row, and go down the rows in passes.

    param: of the tensor. load: what is copied, from the loop's last part, where nothing is left unmasked.
    along, turned: whether products are over a row's elements, and over rows: the same bytes serve both.
    beside: the tensor that has the rows that `param` lacks. box: the rows, where hardware copies them, those
    that are not there too.
    """

    load: Value
    param: str
    rows: int
    elements: int
    width: int  # elements of a vector
    along: bool
    turned: bool
    beside: str | None = None
    box: Box | None = None

    @property
    def params(self) -> tuple[str, ...]:
        """The tensors that rows come from."""
        return (self.param,) if self.beside is None else (self.param, self.beside)

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
class Numbers:
    """What travels beside the rows of a step, a number for each, as `Copies` say it."""

    load: Value
    param: str


@dataclass(frozen=True, slots=True)
class Step:
    """A loop's part: contractions of factors from memory, and those of what it computed."""

    loop: Loop
    scores: tuple[Let, ...]
    sums: tuple[Let, ...]

    @property
    def sums_alone(self) -> bool:
        """Whether a loop carries nothing but what it sums."""
        return {let.value for let in self.sums} == set(self.loop.body.results)


@dataclass(frozen=True, slots=True)
class ChainedPlan:
    """A warpgroup that copies, and warpgroups that hold 64 rows of a tile each.

    parts: of the loop: steps where every element exists, then all others; or the others alone; or some of
    these before. scores, sums: how threads hold the results of contractions. waiting: which of what loops
    carry lies in shared memory: sums that are exchanged at turns alone, where registers are few. owned,
    streamed: the factors from memory, in the order of their products. programs: how many blocks take tiles in
    turns, where they do.
    """

    kernel: Kernel
    kind: str
    segments: Segments
    rows: Owned
    others: tuple[Owned, ...]
    scores: Held
    sums: tuple[Held, ...]
    waiting: tuple[int, ...]
    parts: tuple[Step, ...]
    owned: tuple[Copies, ...]
    streamed: tuple[Copies, ...]
    numbers: tuple[Numbers, ...]
    dtype: DType
    stages: int
    programs: int
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
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.rows.tile // ROWS_OF_WARPGROUP

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def warps(self) -> int:
        """Warps that multiply, of which one thread each frees a stage."""
        return 4 * self.consumers

    @property
    def ahead(self) -> bool:
        """Whether the scores of a step are made while the one before is weighed: a state is carried along."""
        return not self.last.sums_alone

    @property
    def by_tickets(self) -> bool:
        """Whether blocks stay and draw tiles: what lies between two takes long where a block fills a core."""
        return self.ahead and self.by_boxes and self.consumers >= FEW_REGISTERS

    @property
    def units(self) -> tuple[int, ...]:
        """The widths of sums, for each of which there is a kind of instruction."""
        return tuple(dict.fromkeys(held.length for held in self.sums))

    def batches(self, factors: tuple[Copies, ...]) -> tuple[tuple[Copies, ...], ...]:
        """Return which factors are copied together, as nobody waits for one alone: those of a shape."""
        if self.ahead or any(copies.box is not None for copies in factors):
            return tuple((copies,) for copies in factors)
        return tuple(tuple(some) for _, some in groupby(factors, lambda copies: copies.across))

    @property
    def by_boxes(self) -> bool:
        """Whether hardware copies what is streamed."""
        return all(copies.box is not None for copies in self.streamed)

    @property
    def numbers_apart(self) -> bool:
        """Whether numbers have a ring of their own, as hardware hands the tiles on."""
        return self.by_boxes and bool(self.numbers)

    @property
    def numbers_ring(self) -> str:
        """Its name: that of the first of them."""
        return f"{self.numbers[0].param}_ring" if self.numbers_apart else ""

    @property
    def number_threads(self) -> int:
        """How many threads copy these numbers: the last ones, for the first warp lets boxes travel."""
        return max(LANES, self.scores.length)

    @property
    def copied(self) -> tuple[Copies, ...]:
        return (*self.owned, *self.streamed)

    def __str__(self) -> str:
        """Say what a schedule says, of what this plan made of one."""
        who = f"{self.warps} warps that multiply, {WARPGROUP // LANES} that copy"
        by = f", {self.programs} blocks by tickets" if self.by_tickets else ""
        return f"tiles {self.rows.axis}={self.rows.tile}, {who}, {self.stages} stages{by}"


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
    tile = schedule.tile(str(rows.axis))
    consumers = tile // ROWS_OF_WARPGROUP
    few = consumers >= FEW_REGISTERS and parts[-1].sums_alone
    if consumers not in CONSUMERS or tile % ROWS_OF_WARPGROUP or few:
        raise refused(f"tiles of {tile} rows", target)
    owned, streamed = _copies(parts[-1], kernel, tile, scores.length, extents, target)
    for each in (*owned, *streamed):
        _copyable(kernel, each, signature, target)
    numbers = _numbers(parts[-1], kernel, rows.axis, scores, target)
    streamed = _boxes(parts[-1], kernel, streamed, (rows.axis, scores.axis), extents)
    others = tuple(a for a in found.parallel if a not in (rows.axis, rows.over, *(s.axis for s in sums)))
    indices = tuple(Owned(a, 1, fixed_extent(a, extents)) for a in others)
    dtype = next(d.type.dtype for d in kernel.params if d.name == owned[0].param)
    carried = [a for type in parts[-1].loop.types for a in type.axes]
    wide = sum(held.length for held in sums for axis in carried if axis == held.axis) > NARROW
    registers = ALONE if consumers == 1 else REGISTERS[consumers]
    if consumers == 2 and not wide:
        registers = NARROWER
    claim_registers(WARPGROUP * (1 + consumers), (registers.fewer, *[registers.more] * consumers))
    waiting = _waiting(parts[-1], sums) if consumers >= FEW_REGISTERS else ()
    kept = len(waiting) * tile * sums[0].length * DType.F32.bytes
    stages = _stages(schedule, dtype, owned, streamed, scores.length * len(numbers), kept, target)
    made = ChainedPlan(
        kernel=kernel,
        kind="chained_dot",
        segments=rows,
        rows=Owned(rows.axis, tile, None),
        others=indices,
        scores=scores,
        sums=sums,
        waiting=waiting,
        parts=parts,
        owned=owned,
        streamed=streamed,
        numbers=numbers,
        dtype=dtype,
        stages=stages,
        programs=schedule.programs or target.cores,
        registers=registers,
        signature=signature,
        target=target,
    )
    own, stepped = (tuple(map(len, made.batches(factors))) for factors in (owned, streamed))
    batches = (own, (*stepped, *(1,) * made.numbers_apart))
    _sound(stages, consumers, None if made.ahead else batches, made.by_tickets)
    return made


def _parts(kernel: Kernel, target: Target) -> tuple[Step, ...]:
    """Return the parts of the only loop, if each is a contraction of memory and one of what it computed."""
    loops = [(let.value, let.node) for let in kernel.body.lets if isinstance(let.node, Loop)]
    nodes = {let.value: let.node for let in walk(kernel.body)}
    stepped = [let.node for _, loop in loops for let in walk(loop.body)]
    checked = any(isinstance(node, Check) for node in nodes.values())
    if checked or any(isinstance(node, Store) for node in stepped):
        raise refused("contractions of what is computed that are stored or checked step by step", target)
    if not 1 <= len(loops) <= 3:
        raise refused("contractions of what is computed in several loops", target)
    for (first, _), (_, second) in zip(loops, loops[1:], strict=False):
        goes_on = tuple(nodes.get(v) for v in second.init)
        if goes_on != tuple(Result(first, i) for i in range(len(goes_on))):
            raise refused("a loop that changes what another yields", target)
    parts = tuple(_step(loop, nodes, target) for _, loop in loops)
    if len(parts) > 2 and not parts[-1].sums_alone:
        raise refused("contractions of what is computed in several loops", target)
    return parts


def _step(loop: Loop, nodes: Mapping[Value, object], target: Target) -> Step:
    lets = [let for let in loop.body.lets if isinstance(let.node, Dot)]
    inside = {let.value for let in loop.body.lets}
    dots = {let.value: let.node for let in lets if isinstance(let.node, Dot)}
    scores = tuple(let for let in lets if dots[let.value].onto is None)
    sums = tuple(let for let in lets if let not in scores)
    step = Step(loop, scores, sums)
    if not scores or not sums or any(isinstance(let.node, Loop) for let in loop.body.lets):
        raise refused(f"a loop of {len(dots)} contractions", target)
    if not step.sums_alone and len(dots) != 2:
        raise refused(f"a loop of {len(dots)} contractions that carries more than their sums", target)
    for let in lets:
        dot = dots[let.value]
        streamed = isinstance(nodes.get(dot.b), Load) and dot.b in inside
        of_memory = isinstance(nodes.get(dot.a), Load)
        chained = dot.a in inside and not of_memory and let.value in loop.body.results
        if not streamed or not (chained if let in sums else of_memory and dot.a not in inside):
            raise refused("contractions that are no weights of rows, or sums of what they weigh", target)
        if dot.model is not DotModel.CHAIN16:
            raise refused(f"products of the model {dot.model.value}", target)
    return step


def _held(
    step: Step, kernel: Kernel, extents: dict[str, int], target: Target
) -> tuple[Held, tuple[Held, ...]]:
    """Return how threads hold scores, along the streamed axis, and sums, along that of what is weighed."""
    types = types_of(kernel)
    made = []
    for dot in (let.node for let in step.sums):
        assert isinstance(dot, Dot)
        values = types[dot.b]
        assert isinstance(values, TileType)
        new = [a for a in values.axes if a != dot.over and a not in (dot.each or ())]
        width = fixed_extent(new[0], extents) if len(new) == 1 else None
        over, length = dot.over, dict(roles(kernel, extents).inside).get(dot.over, 0)
        if width is None or width % INSTRUCTION or not INSTRUCTION <= width <= WIDEST or length % INSTRUCTION:
            raise refused(f"sums of {width} elements over {length} at a time", target)
        made.append(Held(new[0], width, PAIRS))
    return Held(over, length, PAIRS), tuple(made)


def _waiting(step: Step, sums: tuple[Held, ...]) -> tuple[int, ...]:
    """Return which sums a loop carries that its steps exchange at turns alone."""
    found, loop = turning(step.loop), step.loop
    yielded = {value for value, _, _ in found.changes} if found is not None else set()
    summed = {held.axis for held in sums}
    carried = enumerate(zip(loop.body.results, loop.types, strict=True))
    return tuple(i for i, (value, type) in carried if value in yielded and summed & set(type.axes))


def _copies(
    step: Step, kernel: Kernel, tile: int, chunk: int, extents: dict[str, int], target: Target
) -> tuple[tuple[Copies, ...], tuple[Copies, ...]]:
    """Return the factors of a block's rows, and those of a step, each once."""
    nodes = {let.value: let.node for let in walk(kernel.body)}
    dtypes = {d.name: d.type.dtype for d in kernel.params}
    scores, sums = ([x.node for x in lets if isinstance(x.node, Dot)] for lets in (step.scores, step.sums))

    def copies(load: Value, rows: int) -> Copies:
        node = nodes[load]
        assert isinstance(node, Load)
        last = nodes[node.index[-1]]
        elements = (fixed_extent(last.axis, extents) if isinstance(last, Pos) else None) or 0
        if elements % INSTRUCTION or not INSTRUCTION <= elements <= WIDEST:
            raise refused(f"rows of {elements} elements", target)
        dtype = dtypes[node.param]
        along, turned = (any(load in (d.a, d.b) for d in dots) for dots in (scores, sums))
        fill = None if node.fill is None else nodes[node.fill]
        beside = fill.param if isinstance(fill, Load) and fill.fill is None else None
        made = Copies(load, node.param, rows, elements, VECTOR // dtype.bytes, along, turned, beside)
        if dtype.bytes != 2 or (fill is None) != (beside is None) or rows % made.down:
            raise refused(f"a factor of {rows} x {elements} {dtype}", target)
        return made

    streamed = dict.fromkeys(dot.b for dot in (*scores, *sums))
    owned = tuple(copies(load, tile) for load in dict.fromkeys(dot.a for dot in scores))
    return owned, tuple(copies(load, chunk) for load in streamed)


def _boxes(
    step: Step,
    kernel: Kernel,
    streamed: tuple[Copies, ...],
    axes: tuple[Axis, Axis],
    extents: dict[str, int],
) -> tuple[Copies, ...]:
    """Say where boxes of rows begin, if all of them may be boxes: rows in a row, of whole vectors.

    A row that is not there comes as whatever lies in its place: no score of it may be chosen, where scores
    are made before anybody could clear it.
    """
    nodes, types = {let.value: let.node for let in walk(kernel.body)}, types_of(kernel)
    dims = {d.name: [fixed_extent(axis, extents) for axis in d.type.axes] for d in kernel.params}

    def box(copies: Copies) -> Box | None:
        load = nodes[copies.load]
        assert isinstance(load, Load)
        if copies.elements not in BOXED or copies.beside:
            return None
        return box_of(load, dims[copies.param], nodes, types, axes, copies.rows)

    given = tuple(replace(copies, box=box(copies)) for copies in streamed)
    both = any(copies.along and copies.turned for copies in streamed)
    exposed = not step.sums_alone and (both or not _hidden(step, nodes))
    return streamed if exposed or any(copies.box is None for copies in given) else given


def _hidden(step: Step, nodes: Mapping[Value, Node]) -> bool:
    """Return whether scores of rows that are not there are replaced, whatever they are.

    What is chosen where all guards hold is not looked behind; scores must not be there otherwise.
    """
    lets = {let.value: let for let in step.loop.body.lets}
    read = (nodes[let.node.b] for let in (*step.scores, *step.sums) if isinstance(let.node, Dot))
    guards = {load.guard for load in read if isinstance(load, Load)}

    def reads(let: Let) -> Iterable[Value]:
        if isinstance(let.node, Select) and guards <= _terms(let.node.cond, nodes):
            return (let.node.b,)
        return operands(let.node)

    return None not in guards and step.scores[0].value not in behind(step.loop.body.results, lets, reads)


def _terms(condition: Value, nodes: Mapping[Value, Node]) -> set[Value]:
    """Return a condition and those that it needs to hold, all of them."""
    match nodes.get(condition):
        case Map2(fn=Fn2.AND, a=a, b=b):
            return {condition} | _terms(a, nodes) | _terms(b, nodes)
        case _:
            return {condition}


def made_of(let: Let) -> tuple[Value, ...]:
    """Return what a value is made of by those who multiply: no contraction needs what is in memory."""
    match let.node:
        case Dot(a=a, onto=onto):
            return () if onto is None else (a, onto)
        case Loop() | Load():
            return ()
        case _:
            return tuple(operands(let.node))


def _numbers(step: Step, kernel: Kernel, rows: Axis, scores: Held, target: Target) -> tuple[Numbers, ...]:
    """Return what a loop reads for each row that is streamed: numbers that all rows of a block share."""
    types, made = types_of(kernel), []
    lets = {let.value: let for let in step.loop.body.lets}
    for let in lets.values():
        if isinstance(let.node, Load) and let.value in behind(step.loop.body.results, lets, made_of):
            type = types[let.value]
            assert isinstance(type, TileType)
            if not step.sums_alone or type.dtype is not DType.F32 or let.node.fill is not None:
                raise refused(f"{let.node.param} read in each step", target, let.loc)
            if rows in type.axes or scores.axis not in type.axes or WARPGROUP % scores.length:
                raise refused(f"{let.node.param} of a step's rows and others", target, let.loc)
            made.append(Numbers(let.value, let.node.param))
    return tuple(made)


def _copyable(kernel: Kernel, copies: Copies, signature: Signature, target: Target) -> None:
    """Refuse a tensor whose vectors do not lie at multiples of 16 bytes."""
    extents = dict(signature.extents)
    for decl in (d for d in kernel.params if d.name in copies.params):
        outer = [d for d, axis in enumerate(decl.type.axes[:-1]) if fixed_extent(axis, extents) != 1]
        if not {decl.name, *(stride_name(decl, d) for d in outer)} <= signature.divisible:
            raise refused(f"{decl.name}, whose rows do not lie at multiples of {VECTOR} bytes", target)


def _stages(
    schedule: Schedule,
    dtype: DType,
    owned: tuple[Copies, ...],
    streamed: tuple[Copies, ...],
    numbers: int,
    kept: int,
    target: Target,
) -> int:
    warps = 4 * (owned[0].rows // ROWS_OF_WARPGROUP)
    own = sum(c.rows * c.elements for c in owned) * dtype.bytes + BOX * warps + kept
    each = sum(c.rows * c.elements for c in streamed) * dtype.bytes + numbers * DType.F32.bytes
    return max(2, min(schedule.stages, ((target.shared << 10) - BARRIERS * 2 - own) // each))


@cache
def _sound(
    stages: int, consumers: int, batches: tuple[tuple[int, ...], ...] | None, by_tickets: bool
) -> None:
    """Raise InternalError where the roles could wait for ever, or read what is not there."""
    for steps in (0, 1, 2, 2 * stages + 3):
        if batches is not None:
            verify(sums_protocol(stages, consumers, steps, *batches))
        elif steps and by_tickets:
            for fewer in ((), tuple(range(consumers)), (stages + 1, *(0,) * (consumers - 1))):
                verify(tickets_protocol(stages, consumers, (steps, 1, steps), fewer))
        elif steps:
            verify(streams_protocol(stages, consumers, steps))
