"""Plan of the fused attention kernel: tiles, fragments, TMA tiles, pipeline stages, registers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from rlk.errors import LoweringError
from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import (
    Check,
    Dot,
    Kernel,
    Let,
    Load,
    Loop,
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
from rlk.lower.common.contract import dense_rows_error, unfused_error
from rlk.lower.common.emitted import Signature
from rlk.lower.common.names import stride_name
from rlk.lower.common.peel import peel
from rlk.lower.common.rescale import rescale_of
from rlk.lower.common.segments import Segments, segments
from rlk.lower.common.thread_values import TiledAxis
from rlk.lower.common.tma_tiles import TmaTile, conjunction, paged_tma_tile_of, tma_tile_of
from rlk.lower.cute.plan import (
    INSTRUCTION,
    REGISTERS,
    ROWS_OF_WARPGROUP,
    WARPGROUP,
    Fragment,
    Registers,
    refused,
)
from rlk.lower.cute.protocol import claim_registers, verify
from rlk.lower.cute.protocols import attention_protocol, gradient_protocol, scheduler_protocol
from rlk.passes.walk import backward_slice, walk
from rlk.schedule.attention import rows_of
from rlk.schedule.axes import Roles, roles, types_of
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

CONSUMERS = (1, 2, 3)  # consumer warpgroups
FEW_REGISTERS = 3  # consumers from which accumulators that are rarely rescaled live in shared memory
PAIRS = (1, 2)  # index bits that select one of the four threads of an accumulator row
MOST_ACROSS = 8  # threads that copy a row: 128 bytes, all banks of shared memory
TMA_LEAST = 64  # elements of a row that TMA loads: of fewer, its tiles are lines of 32 bytes
LANES = 32  # of a warp
VECTOR = 16  # bytes that a thread copies at once
NARROW = 192  # accumulator elements of a row up to which the producer keeps more registers
NARROWER = Registers(56, 224)
ALONE = Registers(96, 240)  # with one consumer warpgroup
NARROW_VALUES = 64  # columns of V up to which three warpgroups have registers for the scores of both rows
SCRATCH_LEAST = 256  # elements of a row from which rarely rescaled accumulators live in global memory
WIDEST = 256  # elements of an accumulator row: the columns of a wgmma
WIDE = 128  # elements of a row beyond which shared memory holds one block of two consumer warpgroups
MOST_SUMS = 256  # accumulator elements of a row that each step of a gradient adds to, in registers
FEWEST_STAGES = 2  # S of the next step is issued while V of this one is read; of sums alone, one is enough
EPILOGUE_BYTES = 1024  # bytes of epilogue scratch of a warp
BARRIERS = 1024  # bytes of mbarriers and of alignment


@dataclass(frozen=True, slots=True)
class Copies:
    """The copy of a tile by a producer warpgroup: `across` threads share a row, in passes over the rows.

    param: the tensor. load: the IR load of the loop's last part, which has all masks. along, transposed:
    whether products contract a row's elements, and the rows: one smem tile serves both. beside: the tensor
    that holds the rows that `param` lacks. tma_tile: the TMA tile, out-of-bounds rows included, where TMA
    loads it.
    """

    load: Value
    param: str
    rows: int
    elements: int
    width: int  # elements of a vector
    along: bool
    transposed: bool
    beside: str | None = None
    tma_tile: TmaTile | None = None

    @property
    def params(self) -> tuple[str, ...]:
        """Return the tensors that hold the rows."""
        return (self.param,) if self.beside is None else (self.param, self.beside)

    @property
    def across(self) -> int:
        """Return the threads of a row: eight at most, so that each copies several vectors of few rows."""
        vectors = self.elements // self.width
        return min(MOST_ACROSS, vectors & -vectors)

    @property
    def vectors(self) -> int:
        """Return the vectors of a thread in a row."""
        return self.elements // self.width // self.across

    @property
    def down(self) -> int:
        """Return the rows of a pass."""
        return WARPGROUP // self.across

    @property
    def passes(self) -> int:
        return self.rows // self.down


@dataclass(frozen=True, slots=True)
class RowStatistic:
    """A tensor of one f32 for each streamed row (lse or delta of attention gradients)."""

    load: Value
    param: str


@dataclass(frozen=True, slots=True)
class Step:
    """A loop's part: S = Q K^T contractions of factors from memory, and O += P V of computed factors."""

    loop: Loop
    scores: tuple[Let, ...]
    sums: tuple[Let, ...]

    @property
    def sums_alone(self) -> bool:
        """Return whether a loop carries accumulators alone."""
        return {let.value for let in self.sums} == set(self.loop.body.results)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A producer warpgroup, and consumer warpgroups with 64 rows of a tile each.

    parts: of the loop: unmasked steps, then masked ones; or masked ones alone; or masked, unmasked, masked.
    scores, sums: accumulator fragments. rare_accumulators: indices of carried accumulators that change at
    piece boundaries alone. resident, streamed: factors from memory that a tile, and that each step reads, in
    the order of their products. programs: persistent blocks of the tile scheduler.
    """

    kernel: Kernel
    kind: str
    segments: Segments
    rows: TiledAxis
    others: tuple[TiledAxis, ...]
    scores: Fragment
    sums: tuple[Fragment, ...]
    rare_accumulators: tuple[int, ...]
    parts: tuple[Step, ...]
    resident: tuple[Copies, ...]
    streamed: tuple[Copies, ...]
    row_statistics: tuple[RowStatistic, ...]
    dtype: DType
    stages: int
    programs: int
    registers: Registers
    signature: Signature
    target: Target

    @property
    def fragment(self) -> None:
        """Return None: fragments run along one axis or the other."""
        return None

    @property
    def last(self) -> Step:
        return self.parts[-1]

    @property
    def consumers(self) -> int:
        """Return the number of consumer warpgroups."""
        return self.rows.tile // ROWS_OF_WARPGROUP

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def warps(self) -> int:
        """Return the consumer warps, of which one thread each releases a stage."""
        return 4 * self.consumers

    @property
    def ahead(self) -> bool:
        """Return whether S of the next step is issued before the softmax of this one: online softmax."""
        return not self.last.sums_alone

    @property
    def maximum_last(self) -> bool:
        """Return whether a step takes a maximum only where its numerators may need one (decision 68)."""
        return self.dynamic_schedule and (self.consumers >= FEW_REGISTERS or self.few_by_pages)

    @property
    def rare_together(self) -> bool:
        """Return whether a step has two rare branches for both rows: a piece boundary, and a new maximum.

        That takes registers for the scores of both rows. The boundary stands behind the issue of S.
        """
        narrow = all(each.length <= NARROW_VALUES for each in self.sums)
        return self.maximum_last and (narrow or self.consumers < FEW_REGISTERS)

    @property
    def dynamic_schedule(self) -> bool:
        """Return whether blocks are persistent with a dynamic tile scheduler: one block fills an SM."""
        wide = self.consumers > 1 and self.widest > WIDE
        return self.ahead and self.by_tma and (wide or self.consumers >= FEW_REGISTERS or self.few_by_pages)

    @property
    def waits_early(self) -> bool:
        """Return whether a step waits for the factors of the next while its own O += P V is computed."""
        return self.dynamic_schedule and self.widest <= WIDE

    @property
    def widest(self) -> int:
        """Return the elements of the widest row of a factor."""
        return max(copies.elements for copies in self.copied)

    @property
    def smem_accumulators(self) -> tuple[int, ...]:
        """Return the rare accumulators that live in shared memory: registers are few."""
        return self.rare_accumulators if self.consumers >= FEW_REGISTERS else ()

    @property
    def scratch_accumulators(self) -> tuple[int, ...]:
        """Return those that live in global memory, as a thread's own words too: shared memory is full."""
        wide = self.dynamic_schedule and self.sums[0].length >= SCRATCH_LEAST
        return self.rare_accumulators if wide and self.consumers < FEW_REGISTERS else ()

    @property
    def units(self) -> tuple[int, ...]:
        """Return the accumulator widths, each with an instruction of its own."""
        return tuple(dict.fromkeys(fragment.length for fragment in self.sums))

    def batches(self, factors: tuple[Copies, ...]) -> tuple[tuple[Copies, ...], ...]:
        """Return the factors of each copy loop: of one shape, where no consumer waits for a single one."""
        if self.ahead or any(copies.tma_tile is not None for copies in factors):
            return tuple((copies,) for copies in factors)
        return tuple(tuple(some) for _, some in groupby(factors, lambda copies: copies.across))

    @property
    def by_tma(self) -> bool:
        """Return whether TMA loads the streamed factors."""
        return all(copies.tma_tile is not None for copies in self.streamed)

    @property
    def few_by_pages(self) -> bool:
        """Return whether TMA loads whole pages for two warpgroups, whose registers leave room."""
        pages = any(c.tma_tile is not None and c.tma_tile.page is not None for c in self.streamed)
        return pages and self.consumers == 2 and self.widest <= WIDE

    @property
    def released_early(self) -> tuple[Copies, ...]:
        """Return the streamed factors of one stage that no sum reads: the next step's load need not wait."""
        first = self.stages == 1 and self.by_tma
        return tuple(copies for copies in self.streamed if first and not copies.transposed)

    @property
    def statistics_pipelined(self) -> bool:
        """Return whether row statistics have a pipeline of their own, beside that of TMA loads."""
        return self.by_tma and bool(self.row_statistics)

    @property
    def statistics_ring(self) -> str:
        """Return the name of that pipeline."""
        return f"{self.row_statistics[0].param}_ring" if self.statistics_pipelined else ""

    @property
    def statistics_threads(self) -> int:
        """Return how many threads copy them: the last ones, since the first warp issues TMA."""
        return max(LANES, self.scores.length)

    @property
    def copied(self) -> tuple[Copies, ...]:
        return (*self.resident, *self.streamed)

    def __str__(self) -> str:
        """Return the plan in the words of a schedule."""
        who = f"{self.warps} consumer warps, {WARPGROUP // LANES} producer warps"
        by = f", {self.programs} persistent blocks" if self.dynamic_schedule else ""
        return f"tiles {self.rows.axis}={self.rows.tile}, {who}, {self.stages} stages{by}"


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> AttentionPlan:
    """Place a specialized kernel; raise UnsupportedError where there is no form for it."""
    extents = dict(signature.extents)
    if signature.split_rows or signature.strided or target.name != "sm_90a":
        what = "fused attention of tensors with two row strides, or a last dim that is not contiguous"
        raise refused(what, target, instead="a call with .contiguous() tensors")
    kernel = peel(bounds(kernel, dict(roles(kernel, extents).inside)))
    found = roles(kernel, extents)
    rows = segments(kernel, found.parallel)
    if rows is None:
        raise _without_segments(kernel, found, target)
    parts = _parts(kernel, target)
    scores, sums = _fragments(parts[-1], kernel, extents, target)
    tile = schedule.tile(str(rows.axis))
    consumers = tile // ROWS_OF_WARPGROUP
    few = consumers >= FEW_REGISTERS and parts[-1].sums_alone
    if consumers not in CONSUMERS or tile % ROWS_OF_WARPGROUP or few:
        raise refused(f"fused attention with tiles of {tile} rows", target)
    resident, streamed = _copies(parts[-1], kernel, tile, scores.length, extents, target)
    for each in (*resident, *streamed):
        _copyable(kernel, each, signature, target)
    statistics = _row_statistics(parts[-1], kernel, rows.axis, scores, target)
    others = tuple(a for a in found.parallel if a not in (rows.axis, rows.over, *(s.axis for s in sums)))
    dtype = next(d.type.dtype for d in kernel.params if d.name == resident[0].param)
    registers = _registers(parts[-1], sums, consumers, target)
    rare = _rare_accumulators(parts[-1], sums, target)
    in_smem = (len(rare) if consumers >= FEW_REGISTERS else 0) * tile * sums[0].length * DType.F32.bytes
    fewest = 1 if parts[-1].sums_alone else FEWEST_STAGES
    row = scores.length * len(statistics)
    stages = _stages(schedule, dtype, resident, streamed, row, in_smem, fewest, target)
    if stages == 1:
        parts = tuple(map(_released_first, parts))
        resident, streamed = _copies(parts[-1], kernel, tile, scores.length, extents, target)
    pages = consumers > 1  # of few rows a table's latency counts, which the first step waits for
    streamed = _tma_tiles(parts[-1], kernel, streamed, (rows.axis, scores.axis), extents, pages)
    made = AttentionPlan(
        kernel=kernel,
        kind="back_to_back_gemm",
        segments=rows,
        rows=TiledAxis(rows.axis, tile, None),
        others=tuple(TiledAxis(a, 1, fixed_extent(a, extents)) for a in others),
        scores=scores,
        sums=sums,
        rare_accumulators=rare,
        parts=parts,
        resident=resident,
        streamed=streamed,
        row_statistics=statistics,
        dtype=dtype,
        stages=stages,
        programs=schedule.programs or target.cores,
        registers=registers,
        signature=signature,
        target=target,
    )
    own, stepped = (tuple(map(len, made.batches(factors))) for factors in (resident, streamed))
    batches = None if made.ahead else (own, (*stepped, *(1,) * made.statistics_pipelined))
    _sound(stages, consumers, batches, made.dynamic_schedule, made.waits_early, len(made.released_early))
    return made


def _without_segments(kernel: Kernel, found: Roles, target: Target) -> LoweringError:
    """Return the error of a kernel whose rows are no segments."""
    error = (unfused_error if rows_of(kernel, found) is None else dense_rows_error)(kernel)
    return refused(error.lacks, target, error.loc, error.instead)


def _parts(kernel: Kernel, target: Target) -> tuple[Step, ...]:
    """Return the parts of the only loop, if each is S = Q K^T followed by O += P V."""
    loops = [(let.value, let.node) for let in kernel.body.lets if isinstance(let.node, Loop)]
    nodes = {let.value: let.node for let in walk(kernel.body)}
    stepped = [let.node for _, loop in loops for let in walk(loop.body)]
    checked = any(isinstance(node, Check) for node in nodes.values())
    if checked or any(isinstance(node, Store) for node in stepped):
        raise refused("fused attention that stores or checks values in its steps", target)
    if not 1 <= len(loops) <= 3:
        raise refused("fused attention in several loops", target)
    for (first, _), (_, second) in zip(loops, loops[1:], strict=False):
        goes_on = tuple(nodes.get(v) for v in second.init)
        if goes_on != tuple(Result(first, i) for i in range(len(goes_on))):
            raise refused("a loop that changes what another yields", target)
    parts = tuple(_step(loop, nodes, target) for _, loop in loops)
    if len(parts) > 2 and not parts[-1].sums_alone:
        raise refused("fused attention in several loops", target)
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
        back_to_back = dot.a in inside and not of_memory and let.value in loop.body.results
        if not streamed or not (back_to_back if let in sums else of_memory and dot.a not in inside):
            raise refused("products other than S = Q K^T followed by O += P V", target, let.loc)
        if dot.model is not DotModel.CHAIN16:
            raise refused("fused attention of f32", target, let.loc, "factors of bf16 or f16")
    return step


def _registers(step: Step, sums: tuple[Fragment, ...], consumers: int, target: Target) -> Registers:
    """Return the registers of producer and consumers; refuse sums that do not fit in those."""
    carried = [a for type in step.loop.types for a in type.axes]
    elements = sum(fragment.length for fragment in sums for axis in carried if axis == fragment.axis)
    if step.sums_alone and elements > MOST_SUMS:
        raise refused(f"attention gradients that add to {elements} elements of a row", target)
    registers = ALONE if consumers == 1 else REGISTERS[consumers]
    if consumers == 2 and elements <= NARROW:
        registers = NARROWER
    claim_registers(WARPGROUP * (1 + consumers), (registers.fewer, *[registers.more] * consumers))
    return registers


def _released_first(step: Step) -> Step:
    """Return a step with the scores first whose streamed factor no sum reads.

    With one stage its next tile is loaded while the sums are computed, and multiplied while the others are.
    """
    summed = {let.node.b for let in step.sums if isinstance(let.node, Dot)}
    scores = sorted(step.scores, key=lambda let: isinstance(let.node, Dot) and let.node.b in summed)
    return replace(step, scores=tuple(scores))


def _fragments(
    step: Step, kernel: Kernel, extents: dict[str, int], target: Target
) -> tuple[Fragment, tuple[Fragment, ...]]:
    """Return the fragments of S, along the streamed axis, and of O, along the columns of V."""
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
            what = f"fused attention with sums of {width} elements over {length} at a time"
            raise refused(what, target, instead=f"a multiple of {INSTRUCTION}, and at most {WIDEST} elements")
        made.append(Fragment(new[0], width, PAIRS))
    return Fragment(over, length, PAIRS), tuple(made)


def _rare_accumulators(step: Step, sums: tuple[Fragment, ...], target: Target) -> tuple[int, ...]:
    """Return the carried accumulators that change at piece boundaries alone, of a fold with a softmax."""
    found, loop = rescale_of(step.loop), step.loop
    yielded = {value for value, _, _ in found.changes} if found is not None else set()
    summed = {fragment.axis for fragment in sums}
    carried = enumerate(zip(loop.body.results, loop.types, strict=True))
    rare = tuple(i for i, (value, type) in carried if value in yielded and summed & set(type.axes))
    if rare and len(rare) + len(sums) == len(loop.types):
        instead = 'leaf="segment" for the axis'
        raise refused("sums in pieces without a softmax", target, step.sums[0].loc, instead)
    return rare


def _copies(
    step: Step, kernel: Kernel, tile: int, chunk: int, extents: dict[str, int], target: Target
) -> tuple[tuple[Copies, ...], tuple[Copies, ...]]:
    """Return the resident and the streamed factors, each once."""
    nodes = {let.value: let.node for let in walk(kernel.body)}
    dtypes = {d.name: d.type.dtype for d in kernel.params}
    scores, sums = ([x.node for x in lets if isinstance(x.node, Dot)] for lets in (step.scores, step.sums))

    def copies(load: Value, rows: int) -> Copies:
        node = nodes[load]
        assert isinstance(node, Load)
        last = nodes[node.index[-1]]
        elements = (fixed_extent(last.axis, extents) if isinstance(last, Pos) else None) or 0
        if elements % INSTRUCTION or not INSTRUCTION <= elements <= WIDEST:
            what = f"fused attention with rows of {elements} elements"
            raise refused(what, target, instead=f"a multiple of {INSTRUCTION}, and at most {WIDEST} elements")
        dtype = dtypes[node.param]
        along, transposed = (any(load in (d.a, d.b) for d in dots) for dots in (scores, sums))
        fill = None if node.fill is None else nodes[node.fill]
        beside = fill.param if isinstance(fill, Load) and fill.fill is None else None
        made = Copies(load, node.param, rows, elements, VECTOR // dtype.bytes, along, transposed, beside)
        if dtype.bytes != 2 or (fill is None) != (beside is None) or rows % made.down:
            raise refused(f"a factor of {rows} x {elements} {dtype}", target)
        return made

    streamed = dict.fromkeys(dot.b for dot in (*scores, *sums))
    resident = tuple(copies(load, tile) for load in dict.fromkeys(dot.a for dot in scores))
    return resident, tuple(copies(load, chunk) for load in streamed)


def _tma_tiles(
    step: Step,
    kernel: Kernel,
    streamed: tuple[Copies, ...],
    axes: tuple[Axis, Axis],
    extents: dict[str, int],
    pages: bool,
) -> tuple[Copies, ...]:
    """Return the streamed factors with their TMA tiles, if all of them can be loaded by TMA.

    pages: whether it loads from pages, too.

    TMA loads out-of-bounds rows of a segment as whatever lies there (the next segment): where S is issued
    before consumers could zero them, a mask must replace every such score.
    """
    nodes, types = {let.value: let.node for let in walk(kernel.body)}, types_of(kernel)
    dims = {d.name: [fixed_extent(axis, extents) for axis in d.type.axes] for d in kernel.params}

    def tma_tile(copies: Copies) -> TmaTile | None:
        load = nodes[copies.load]
        assert isinstance(load, Load)
        if copies.elements < TMA_LEAST or copies.beside:
            return None
        found = tma_tile_of(load, dims[copies.param], nodes, types, axes, copies.rows)
        return found or (paged_tma_tile_of(load, nodes, types, axes[1], copies.rows) if pages else None)

    given = tuple(replace(copies, tma_tile=tma_tile(copies)) for copies in streamed)
    both = any(copies.along and copies.transposed for copies in streamed)
    inside = frozenset(copies.tma_tile.inside for copies in given if copies.tma_tile is not None)
    exposed = not step.sums_alone and (both or not _hidden(step, nodes, inside))
    return streamed if exposed or any(copies.tma_tile is None for copies in given) else given


def _hidden(step: Step, nodes: Mapping[Value, Node], inside: frozenset[Value]) -> bool:
    """Return whether a mask replaces the scores of out-of-bounds rows, whatever they are.

    Results must not depend on scores but through selects whose condition implies that rows are inside.
    """
    lets = {let.value: let for let in step.loop.body.lets}

    def reads(let: Let) -> Iterable[Value]:
        if isinstance(let.node, Select) and inside <= set(conjunction(let.node.cond, nodes)):
            return (let.node.b,)
        return operands(let.node)

    return step.scores[0].value not in backward_slice(step.loop.body.results, lets, reads)


def made_of(let: Let) -> tuple[Value, ...]:
    """Return the operands of a value in consumer warps: contractions read memory through shared memory."""
    match let.node:
        case Dot(a=a, onto=onto):
            return () if onto is None else (a, onto)
        case Loop() | Load():
            return ()
        case _:
            return tuple(operands(let.node))


def _row_statistics(
    step: Step, kernel: Kernel, rows: Axis, scores: Fragment, target: Target
) -> tuple[RowStatistic, ...]:
    """Return the per-row tensors of streamed rows, which all rows of a block share."""
    types, made = types_of(kernel), []
    lets = {let.value: let for let in step.loop.body.lets}
    for let in lets.values():
        if isinstance(let.node, Load) and let.value in backward_slice(step.loop.body.results, lets, made_of):
            type = types[let.value]
            assert isinstance(type, TileType)
            if not step.sums_alone or type.dtype is not DType.F32 or let.node.fill is not None:
                raise refused(f"{let.node.param} read in each step", target, let.loc)
            if rows in type.axes or scores.axis not in type.axes or WARPGROUP % scores.length:
                raise refused(f"{let.node.param} of a step's rows and others", target, let.loc)
            made.append(RowStatistic(let.value, let.node.param))
    return tuple(made)


def _copyable(kernel: Kernel, copies: Copies, signature: Signature, target: Target) -> None:
    """Refuse a tensor whose vectors do not lie at multiples of 16 bytes."""
    extents = dict(signature.extents)
    for decl in (d for d in kernel.params if d.name in copies.params):
        outer = [d for d, axis in enumerate(decl.type.axes[:-1]) if fixed_extent(axis, extents) != 1]
        if not {decl.name, *(stride_name(decl, d) for d in outer)} <= signature.divisible:
            what = f"a factor {decl.name} whose rows do not lie at multiples of {VECTOR} bytes"
            raise refused(what, target, instead="rows of a multiple of 16 bytes")


def _stages(
    schedule: Schedule,
    dtype: DType,
    resident: tuple[Copies, ...],
    streamed: tuple[Copies, ...],
    statistics: int,
    in_smem: int,
    fewest: int,
    target: Target,
) -> int:
    """Return the stages that fit beside what a block keeps: resident rows, epilogue, smem accumulators."""
    rows, warps = resident[0].rows, 4 * (resident[0].rows // ROWS_OF_WARPGROUP)
    own = sum(c.rows * c.elements for c in resident) * dtype.bytes + EPILOGUE_BYTES * warps + in_smem
    each = sum(c.rows * c.elements for c in streamed) * dtype.bytes + statistics * DType.F32.bytes
    fit = ((target.shared << 10) - BARRIERS * 2 - own) // each
    if fit < fewest:
        what = f"fused attention with tiles of {rows} rows and steps of {each} bytes in shared memory"
        raise refused(what, target)
    return max(fewest, min(schedule.stages, fit))


@cache
def _sound(
    stages: int,
    consumers: int,
    batches: tuple[tuple[int, ...], ...] | None,
    dynamic_schedule: bool,
    waits_early: bool,
    early: int,
) -> None:
    """Raise InternalError where the pipeline protocol can deadlock or read an unfilled stage."""
    for steps in (0, 1, 2, 2 * stages + 3):
        if batches is not None:
            verify(gradient_protocol(stages, consumers, steps, *batches, early=early))
        elif steps and dynamic_schedule:
            for fewer in ((), tuple(range(consumers)), (stages + 1, *(0,) * (consumers - 1))):
                verify(scheduler_protocol(stages, consumers, (steps, 1, steps), fewer, early=waits_early))
        elif steps:
            verify(attention_protocol(stages, consumers, steps))
