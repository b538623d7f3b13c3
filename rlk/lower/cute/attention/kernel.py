"""The fused attention kernel (back-to-back GEMM) on Hopper: one producer warpgroup, 1 to 3 consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.emitted import CallArg
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.liveness import live, names_read
from rlk.lower.common.names import axis_name
from rlk.lower.cute import text
from rlk.lower.cute.attention import gradient, scheduler
from rlk.lower.cute.attention.consumer import ConsumerEmitter
from rlk.lower.cute.attention.plan import AttentionPlan, Copies
from rlk.lower.cute.attention.producer import FRAGMENT, TRANSPOSED, Limits, Place, one_tile_limits
from rlk.lower.cute.attention.step import PRODUCER, TILE_PRODUCER
from rlk.lower.cute.epilogue_vectorize import EPILOGUE_WORDS
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import (
    Frame,
    KernelText,
    Order,
    build,
    framed,
    owning,
)
from rlk.lower.cute.plan import WARPGROUP, refused

AHEAD = "Consumers own 64 rows each; S of the next step is issued before the softmax of this one."
BY_THREADS = "Producer: each thread copies vectors by cp.async, zeros for out-of-bounds rows."
BY_SCHEDULER = (
    "Producer: draw work tiles, copy their rows by cp.async; one warp issues TMA loads of streamed tiles."
)
BY_TMA = "Producer: copy the block's rows by cp.async; one warp issues TMA loads of streamed tiles."
TMA_AND_STATISTICS = (
    "Producer: copy the block's rows and row statistics by cp.async; TMA loads of streamed tiles."
)
WITH_PINGPONG = "Consumers own 64 rows each; the elementwise work of one overlaps the products of the other."


@dataclass(frozen=True, slots=True)
class View:
    """A view of a factor's smem tiles for one wgmma operand: layout, instruction, and side (A or B)."""

    tiles: str
    factor: str
    memory: str
    layout: str
    unit: str
    side: str
    major: str
    shape: str
    stages: int
    tma_tile: str  # extents of a TMA tile

    @property
    def of(self) -> str:
        """The side as the instruction's methods are named after it."""
        return self.side.upper()


@dataclass(frozen=True, slots=True)
class Streamed:
    """A factor for the template: its smem tiles, and the threads that copy them."""

    name: str
    rows: int
    elements: int
    stages: int
    by_tma: bool
    threads: int = WARPGROUP

    @property
    def ring(self) -> str:
        """Return the pipeline class."""
        return "PipelineTmaAsync" if self.by_tma else "PipelineCpAsync"

    @property
    def producers(self) -> str:
        """Return the producer group: every copying thread, or the one thread that issues TMA."""
        return "pipeline.Agent.Thread" if self.by_tma else f"pipeline.Agent.Thread, {self.threads}"

    @property
    def bytes(self) -> int:
        """Bytes of a stage."""
        return self.rows * self.elements * DType.BF16.bytes

    @property
    def size(self) -> int:
        """Elements of all stages."""
        return self.rows * self.elements * self.stages

    @property
    def barriers(self) -> int:
        return 2 * self.stages


@dataclass(frozen=True, slots=True)
class SmemAccumulator:
    """An accumulator of f32 in shared memory, each thread's elements its own."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Factors that one copy loop loads, and its lines."""

    factors: tuple[Streamed, ...]
    copy: tuple[Line, ...]

    @property
    def by_threads(self) -> tuple[Streamed, ...]:
        """Return the factors that threads commit (cp.async)."""
        return tuple(each for each in self.factors if not each.by_tma)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """An accumulator or a register operand, and its instruction."""

    name: str
    of: str
    unit: str


@dataclass(frozen=True, slots=True)
class Unit:
    """The wgmma instruction of O += P V for one head width."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class AttentionText:
    """Rendered text that the template reads beside its plan."""

    frame: Frame
    plan: AttentionPlan
    dtype: str
    resident: tuple[Batch, ...]
    streamed: tuple[Batch, ...]
    views: tuple[View, ...]
    step: str  # name of the step index in the producer
    place: Place
    steps: tuple[Line, ...]
    multiplying: tuple[Line, ...]
    width: str  # number of tiles with the same rows
    work_counter: str
    vectorized: bool  # whether the epilogue stores vectors through shared memory
    smem_accumulators: tuple[SmemAccumulator, ...]
    step_function: Function
    score_names: tuple[str, ...]
    prob_names: tuple[str, ...]
    about: str

    @property
    def one_writer(self) -> bool:
        """Return whether one of the four threads of a row stores what all of them have."""
        return {"first_of_quad"} <= names_read(self.multiplying)

    @property
    def copied(self) -> set[str]:
        """Return the names that the producer's copies and step range read."""
        batches = (*self.resident, *self.streamed)
        return {"first_steps", "last_steps", *names_read(line for batch in batches for line in batch.copy)}

    @property
    def block_lines(self) -> tuple[Line, ...]:
        """Return the lines of all threads of a block with one tile: its coordinates and step range."""
        read = self.copied | names_read(self.multiplying)
        return live((*self.place.count, *self.place.every, *self.steps), read)

    @property
    def producer_lines(self) -> tuple[Line, ...]:
        """Return the producer's lines of a work tile: its coordinates and step ranges."""
        published = names_read([Line(f"({self.words_published})")])
        return live((*self.place.every, *self.steps), self.copied | published)

    @property
    def consumer_lines(self) -> tuple[Line, ...]:
        """Return the consumers' lines of a work tile: its coordinates."""
        return live(self.place.consumer, names_read(self.multiplying))

    @property
    def shared_words(self) -> tuple[str, ...]:
        """Return the words of a work tile for all consumers; `all_steps` is the end of the copied steps."""
        return "item", self.place.segment, "first_steps", "all_steps"

    @property
    def consumer_words(self) -> tuple[str, ...]:
        """Return the words of a work tile for each consumer: the ends of its own step ranges."""
        return ("full_steps", "last_steps")[-len(self.plan.parts) :]

    @property
    def words_read(self) -> str:
        """Return the words of a work tile as a consumer names them."""
        return ", ".join((*self.shared_words, *self.consumer_words))

    @property
    def words_published(self) -> str:
        """Return the words of a work tile as the producer names them."""
        apart = ("*full_of", "*last_of")[-len(self.plan.parts) :]
        return ", ".join(("item", self.place.segment, "first_steps", "last_steps", *apart))

    @property
    def words_of_end(self) -> str:
        """Return the words that are published after the last tile."""
        return f"items, *[0] * {self.work_tile_words - 1}"

    @property
    def work_tile_words(self) -> int:
        """Return the number of words of a work tile."""
        return self.shared_count + self.plan.consumers * len(self.consumer_words)

    @property
    def shared_count(self) -> int:
        """Return how many of them all consumers share."""
        return len(self.shared_words)

    @property
    def words(self) -> int:
        """Return the words of epilogue scratch of all warps."""
        return EPILOGUE_WORDS * self.plan.warps

    @property
    def factors(self) -> tuple[Streamed, ...]:
        return tuple(each for batch in (*self.resident, *self.streamed) for each in batch.factors)

    @property
    def rings(self) -> tuple[Streamed, ...]:
        """Return the pipelines: of factors, and one without tiles for row statistics beside TMA loads."""
        if not self.plan.statistics_pipelined:
            return self.factors
        name, threads = self.plan.row_statistics[0].param, self.plan.statistics_threads
        return (*self.factors, Streamed(name, 0, 0, self.plan.stages, by_tma=False, threads=threads))

    @property
    def chunk(self) -> int:
        """Columns of a step."""
        return self.plan.scores.length

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(Unit(text.numbered("mma_pv", i), width) for i, width in enumerate(self.plan.units))

    @property
    def instructions(self) -> str:
        """The instructions of a kernel, as arguments have them."""
        return ", ".join(self.tiled_mmas)

    @property
    def tiled_mmas(self) -> tuple[str, ...]:
        return "mma_qk", *(unit.name for unit in self.units)

    @property
    def tma_loads(self) -> tuple[View, ...]:
        """Return the views of factors that TMA loads."""
        names = {each.param for each in self.plan.streamed if self.plan.by_tma}
        return tuple(v for v in self.views if v.memory in names and v.tiles == f"{v.memory}_tiles")

    @property
    def copying(self) -> str:
        """Return the comment of the producer."""
        if self.plan.dynamic_schedule:
            return BY_SCHEDULER
        if self.plan.by_tma:
            return TMA_AND_STATISTICS if self.plan.row_statistics else BY_TMA
        return BY_THREADS

    @property
    def resident_state(self) -> str:
        """Return the pipeline state of resident rows."""
        return TILE_PRODUCER

    @property
    def parameters(self) -> str:
        tma_loads = (f"tma_{v.memory}: cute.CopyAtom, {v.memory}: cute.Tensor" for v in self.tma_loads)
        return ", ".join((*(f"{name}: cute.TiledMma" for name in self.tiled_mmas), *tma_loads))

    @property
    def given(self) -> str:
        """Return the host arguments beside those of every kernel."""
        return ", ".join((self.instructions, *(f"tma_{v.memory}, {v.memory}" for v in self.tma_loads)))

    @property
    def scores(self) -> tuple[Accumulator, ...]:
        return tuple(Accumulator(name, name + FRAGMENT, "mma_qk") for name in self.score_names)

    @property
    def probs(self) -> tuple[Accumulator, ...]:
        units = (self.units[self.plan.units.index(fragment.length)].name for fragment in self.plan.sums)
        return tuple(
            Accumulator(name, name + FRAGMENT, unit)
            for name, unit in zip(self.prob_names, units, strict=True)
        )

    @property
    def statistics_size(self) -> int:
        """Return the f32 elements of all stages of one row statistic."""
        return self.chunk * self.plan.stages

    @property
    def score_blocks(self) -> int:
        return self.chunk // 8


def write(
    plan: AttentionPlan, helpers: dict[str, Helper], checks: list[str], loop_indices: Mapping[str, str]
) -> KernelText:
    """Write the kernel."""
    emitter = ConsumerEmitter(plan, helpers, checks)
    params = [*(p for copies in plan.copied for p in copies.params), *(n.param for n in plan.row_statistics)]
    if len(set(params)) < len(params):
        raise refused("one tensor as two factors of a product", plan.target)
    place, steps = emitter.of_tile(), emitter.steps(_limits(plan))
    resident = tuple(_batch(each, 1, emitter.copies(each, "0")) for each in plan.batches(plan.resident))
    step = f"{axis_name(plan.last.loop.axis)}_step"
    emitter.name_step(step)
    streamed = _streamed(plan, emitter)
    multiplying = _consumer(plan, emitter)
    tma_loads = plan.streamed if plan.by_tma else ()
    vectors = {param: c.width for c in plan.copied for param in c.params if c not in tma_loads}
    frame, given = framed(
        plan,
        emitter,
        loop_indices,
        owning(plan),
        copied={c.param: c.width for c in tma_loads},
        vectors=vectors,
        orders={c.param: _order(c, emitter) for c in tma_loads},
    )
    subject = AttentionText(
        frame=frame,
        plan=plan,
        dtype=text.TYPES[plan.dtype],
        resident=resident,
        streamed=streamed,
        views=tuple(_views(plan)),
        step=step,
        place=place,
        steps=steps,
        multiplying=multiplying,
        width=emitter.width,
        work_counter=emitter.work_counter,
        vectorized=emitter.vectorized,
        smem_accumulators=tuple(SmemAccumulator(*each) for each in emitter.in_smem.items()),
        step_function=emitter.step_function,
        score_names=emitter.score_names,
        prob_names=emitter.prob_names,
        about=AHEAD if plan.ahead else WITH_PINGPONG,
    )
    return KernelText(
        template="attention.py.j2",
        subject=subject,
        arguments=tuple(given),
        sizes=_sizes(plan),
        programs=(f"programs = {_count(plan, emitter)}",),
        build=build(plan.kernel, given, emitter),
    )


def _streamed(plan: AttentionPlan, emitter: ConsumerEmitter) -> tuple[Batch, ...]:
    """Return the copies of the streamed factors and of the row statistics."""
    if plan.by_tma:
        batch = _batch(plan.streamed, plan.stages, emitter.tma_loads(plan.streamed))
        return (batch, Batch((), emitter.statistics_beside_tma())) if plan.statistics_pipelined else (batch,)
    first, *others = plan.batches(plan.streamed)
    stage = f"{PRODUCER}.index"
    batch = _batch(first, plan.stages, (*emitter.copies(first, stage), *emitter.statistics()))
    return batch, *(_batch(each, plan.stages, emitter.copies(each, stage)) for each in others)


def _consumer(plan: AttentionPlan, emitter: ConsumerEmitter) -> tuple[Line, ...]:
    """Return the lines of a consumer: prologue, mainloop, epilogue."""
    before = emitter.before()
    if plan.ahead:
        mainloop = *emitter.first_scores(), *emitter.loop_lines()
    else:
        mainloop = *gradient.first_scores(emitter), *gradient.loop_lines(emitter)
    return live((*before, *mainloop, *emitter.after()))


def _limits(plan: AttentionPlan) -> Limits:
    return scheduler.limits if plan.dynamic_schedule else one_tile_limits


def _order(copies: Copies, emitter: ConsumerEmitter) -> Order:
    """Return the order of a tensor's dims in its TMA descriptor: the two of a tile first."""
    assert copies.tma_tile is not None
    dims = copies.tma_tile.dims
    last, rows = len(emitter.memory.decls[copies.param].type.axes) - 1, dims if len(dims) > 1 else dims[0]
    tma_tile = (rows, last) if copies.along else (last, rows)
    return (*tma_tile, *(d for d in range(last) if d not in dims))


def _batch(batch: tuple[Copies, ...], stages: int, lines: tuple[Line, ...]) -> Batch:
    factors = (Streamed(c.param, c.rows, c.elements, stages, c.tma_tile is not None) for c in batch)
    return Batch(tuple(factors), live(lines))


def _views(plan: AttentionPlan) -> Iterator[View]:
    """Yield the views of each factor: K-major, MN-major (transposed), or both."""
    rows, chunk, count = plan.rows.tile, plan.scores.length, 0
    for copies in plan.copied:
        side, stages = ("a", 1) if copies in plan.resident else ("b", plan.stages)
        forms = []
        if copies.along:
            tma_tile = f"({copies.rows}, {copies.elements})"
            forms.append(("mma_qk", "ROW_MAJOR", f"({rows}, {chunk}, {copies.elements})", tma_tile))
        if copies.transposed:
            unit = text.numbered("mma_pv", plan.units.index(copies.elements))
            tma_tile = f"({copies.elements}, {copies.rows})"
            forms.append((unit, "COL_MAJOR", f"({rows}, {copies.elements}, {chunk})", tma_tile))
        for i, (unit, major, shape, tma_tile) in enumerate(forms):
            tiles, factor = (f"{copies.param}_{what}" for what in (TRANSPOSED if i else ("tiles", "factor")))
            layout = f"layouts[{count}]"
            yield View(tiles, factor, copies.param, layout, unit, side, major, shape, stages, tma_tile)
            count += 1


def _sizes(plan: AttentionPlan) -> tuple[CallArg, ...]:
    """Return the arguments of the host's grid size."""
    names = (plan.segments.whole, plan.segments.over.name)
    return tuple(map(abi.extent, names))


def _count(plan: AttentionPlan, emitter: ConsumerEmitter) -> str:
    """Return the grid size: an upper bound of the row tiles of all segments, for each other index."""
    found = plan.segments
    tiles = f"({found.whole} * {found.each} // {plan.rows.tile} + {found.over.name})"
    count = f"{tiles} * {emitter.width}" if plan.others else tiles
    return f"min({count}, {plan.programs})" if plan.dynamic_schedule else count
