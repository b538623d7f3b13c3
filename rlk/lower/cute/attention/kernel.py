"""A kernel that contracts what it computed, on Hopper: a warpgroup copies, others multiply and weigh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.emitted import CallArg
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.cute import text
from rlk.lower.cute.attention.plan import ChainedPlan, Copies
from rlk.lower.cute.attention.producer import TURNED, Place, numbered
from rlk.lower.cute.attention.consumer import StepEmitter
from rlk.lower.cute.attention.gradient import SumsEmitter
from rlk.lower.cute.attention.scheduler import TicketEmitter
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
from rlk.lower.cute.epilogue_vectorize import BOX_WORDS

AHEAD = "Warpgroups hold 64 rows each; the scores of the next step are made while this one's are weighed."
BY_THREADS = "A warpgroup copies: each thread vectors of some rows, and zeros for rows that are not there."
BY_TICKETS = (
    "A warpgroup draws tiles and copies their rows; of what is streamed one warp lets hardware copy boxes."
)
BY_BOXES = "A warpgroup copies a block's rows; of what is streamed one warp lets hardware copy boxes."
BESIDE_BOXES = (
    "A warpgroup copies a block's rows, and numbers of those that are streamed as boxes, by hardware."
)
IN_TURN = "Warpgroups hold 64 rows each; while one weighs, the products of the other are made."


@dataclass(frozen=True, slots=True)
class View:
    """How products read a factor's tiles: through a layout, by an instruction, from one side of it."""

    tiles: str
    factor: str
    memory: str
    layout: str
    unit: str
    side: str
    major: str
    shape: str
    stages: int
    box: str  # the extents of a stage

    @property
    def of(self) -> str:
        """The side as the instruction's methods are named after it."""
        return self.side.upper()


@dataclass(frozen=True, slots=True)
class Streamed:
    """A factor as its template has it: how its tiles lie, and how many threads copy them."""

    name: str
    rows: int
    elements: int
    stages: int
    boxed: bool
    threads: int = WARPGROUP

    @property
    def ring(self) -> str:
        """The class of its ring."""
        return "PipelineTmaAsync" if self.boxed else "PipelineCpAsync"

    @property
    def producers(self) -> str:
        """Who hands a stage on: every thread that copies, or the one that names the barrier to hardware."""
        return "pipeline.Agent.Thread" if self.boxed else f"pipeline.Agent.Thread, {self.threads}"

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
class Kept:
    """So many numbers that threads have in shared memory."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Factors that are copied together, and the lines that do."""

    factors: tuple[Streamed, ...]
    copy: tuple[Line, ...]

    @property
    def by_threads(self) -> tuple[Streamed, ...]:
        """The factors whose stages threads hand on."""
        return tuple(each for each in self.factors if not each.boxed)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The registers of a contraction's result, or of what is contracted, and the instruction they are of."""

    name: str
    of: str
    unit: str


@dataclass(frozen=True, slots=True)
class Unit:
    """An instruction that sums what it weighs: so many elements of a row."""

    name: str
    width: int


@dataclass(frozen=True, slots=True)
class ChainedText:
    """What the template reads beside its plan."""

    frame: Frame
    plan: ChainedPlan
    dtype: str
    owned: tuple[Batch, ...]
    streamed: tuple[Batch, ...]
    views: tuple[View, ...]
    step: str  # the name of a step, in the role that copies
    place: Place
    steps: tuple[Line, ...]
    multiplying: tuple[Line, ...]
    width: str  # how many tiles there are of the same rows
    tickets: str
    boxed: bool  # whether warps trade pairs for vectors
    kept: tuple[Kept, ...]
    about: str

    @property
    def told(self) -> tuple[str, ...]:
        """What all who multiply are told of a tile; `all_steps` is where the steps end that are copied."""
        return "item", self.place.segment, "first_steps", "all_steps"

    @property
    def told_apart(self) -> tuple[str, ...]:
        """What each warpgroup is told for itself: where the parts of its own steps end."""
        return ("full_steps", "last_steps")[-len(self.plan.parts) :]

    @property
    def heard(self) -> str:
        return ", ".join((*self.told, *self.told_apart))

    @property
    def sent(self) -> str:
        """The same as who copies has it."""
        apart = ("*full_of", "*last_of")[-len(self.plan.parts) :]
        return ", ".join(("item", self.place.segment, "first_steps", "last_steps", *apart))

    @property
    def sent_last(self) -> str:
        """What is sent when no tile is left."""
        return f"items, *[0] * {self.mail - 1}"

    @property
    def mail(self) -> int:
        """Words of what is told."""
        return self.alike + self.plan.consumers * len(self.told_apart)

    @property
    def alike(self) -> int:
        """Those of them that are the same for all."""
        return len(self.told)

    @property
    def words(self) -> int:
        """Words of shared memory by which all warps do."""
        return BOX_WORDS * self.plan.warps

    @property
    def factors(self) -> tuple[Streamed, ...]:
        return tuple(each for batch in (*self.owned, *self.streamed) for each in batch.factors)

    @property
    def rings(self) -> tuple[Streamed, ...]:
        """Those of factors, and one without tiles for numbers beside boxes."""
        if not self.plan.numbers_apart:
            return self.factors
        numbers, threads = self.plan.numbers[0].param, self.plan.number_threads
        return (*self.factors, Streamed(numbers, 0, 0, self.plan.stages, boxed=False, threads=threads))

    @property
    def chunk(self) -> int:
        """Columns of a step."""
        return self.plan.scores.length

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(Unit(numbered("summing", i), width) for i, width in enumerate(self.plan.units))

    @property
    def instructions(self) -> str:
        """The instructions of a kernel, as arguments have them."""
        return ", ".join(("scoring", *(unit.name for unit in self.units)))

    @property
    def boxes(self) -> tuple[View, ...]:
        """What hardware copies, as products read it."""
        names = {each.param for each in self.plan.streamed if self.plan.by_boxes}
        return tuple(v for v in self.views if v.memory in names and v.tiles == f"{v.memory}_tiles")

    @property
    def copying(self) -> str:
        """Who copies, in words."""
        if self.plan.by_tickets:
            return BY_TICKETS
        if self.plan.by_boxes:
            return BESIDE_BOXES if self.plan.numbers else BY_BOXES
        return BY_THREADS

    @property
    def own(self) -> str:
        """The state by which rows of a tile are copied: blocks that stay have one for it."""
        return "own" if self.plan.by_tickets else "put"

    @property
    def parameters(self) -> str:
        boxes = (f"tma_{v.memory}: cute.CopyAtom, {v.memory}: cute.Tensor" for v in self.boxes)
        return ", ".join((*(f"{name}: cute.TiledMma" for name in self.instructions.split(", ")), *boxes))

    @property
    def given(self) -> str:
        """What the host passes beside what every frame passes."""
        return ", ".join((self.instructions, *(f"tma_{v.memory}, {v.memory}" for v in self.boxes)))

    @property
    def scores(self) -> tuple[Accumulator, ...]:
        count = range(len(self.plan.last.scores))
        return tuple(
            Accumulator(numbered("acc_scores", i), numbered("acc_of_scores", i), "scoring") for i in count
        )

    @property
    def weights(self) -> tuple[Accumulator, ...]:
        units = (self.units[self.plan.units.index(held.length)].name for held in self.plan.sums)
        return tuple(
            Accumulator(numbered("weights", i), numbered("acc_of_weights", i), unit)
            for i, unit in enumerate(units)
        )

    @property
    def numbers(self) -> int:
        """Numbers of all stages, of each kind that travels beside rows."""
        return self.chunk * self.plan.stages

    @property
    def score_blocks(self) -> int:
        return self.chunk // 8


def write(
    plan: ChainedPlan, helpers: dict[str, Helper], checks: list[str], turns: Mapping[str, str]
) -> KernelText:
    """Write the kernel."""
    emitter = _emitter(plan)(plan, helpers, checks)
    params = [*(p for copies in plan.copied for p in copies.params), *(n.param for n in plan.numbers)]
    if len(set(params)) < len(params):
        raise refused("a tensor multiplied with itself", plan.target)
    place, steps = emitter.of_tile(), emitter.steps()
    owned = tuple(_batch(each, 1, emitter.copies(each, "0")) for each in plan.batches(plan.owned))
    step = f"{axis_name(plan.last.loop.axis)}_step"
    emitter.name_step(step)
    if plan.by_boxes:
        streamed = [_batch(plan.streamed, plan.stages, emitter.boxes(plan.streamed))]
        if plan.numbers_apart:
            streamed.append(Batch((), emitter.numbers_beside_boxes()))
    else:
        first, *others = plan.batches(plan.streamed)
        streamed = [_batch(first, plan.stages, (*emitter.copies(first, "put.index"), *emitter.numbers()))]
        streamed += [_batch(each, plan.stages, emitter.copies(each, "put.index")) for each in others]
    before, begun, loop = emitter.before(), emitter.first_scores(), emitter.loop_lines()
    after = emitter.after()
    boxed = plan.streamed if plan.by_boxes else ()
    vectors = {param: c.width for c in plan.copied for param in c.params if c not in boxed}
    frame, given = framed(
        plan,
        emitter,
        turns,
        owning(plan),
        copied={c.param: c.width for c in boxed},
        vectors=vectors,
        orders={c.param: _order(c, emitter) for c in boxed},
    )
    subject = ChainedText(
        frame=frame,
        plan=plan,
        dtype=text.TYPES[plan.dtype],
        owned=owned,
        streamed=tuple(streamed),
        views=tuple(_views(plan)),
        step=step,
        place=place,
        steps=steps,
        multiplying=(*before, *begun, *loop, *after),
        width=emitter.width,
        tickets=emitter.tickets,
        boxed=emitter.boxed,
        kept=tuple(Kept(*each) for each in emitter.kept.items()),
        about=AHEAD if plan.ahead else IN_TURN,
    )
    return KernelText(
        template="attention.py.j2",
        subject=subject,
        arguments=tuple(given),
        sizes=_sizes(plan),
        programs=(f"programs = {_count(plan, emitter)}",),
        build=build(plan.kernel, given, emitter),
    )


def _emitter(plan: ChainedPlan) -> type[StepEmitter]:
    if plan.by_tickets:
        return TicketEmitter
    return StepEmitter if plan.ahead else SumsEmitter


def _order(copies: Copies, emitter: StepEmitter) -> Order:
    """Return the order of a tensor's dims as boxes have them: the two of a box first, as it lies."""
    assert copies.box is not None
    dims = copies.box.dims
    last, rows = len(emitter.memory.decls[copies.param].type.axes) - 1, dims if len(dims) > 1 else dims[0]
    box = (rows, last) if copies.along else (last, rows)
    return (*box, *(d for d in range(last) if d not in dims))


def _batch(batch: tuple[Copies, ...], stages: int, lines: tuple[Line, ...]) -> Batch:
    factors = (Streamed(c.param, c.rows, c.elements, stages, c.box is not None) for c in batch)
    return Batch(tuple(factors), lines)


def _views(plan: ChainedPlan) -> Iterator[View]:
    """Yield how products read each factor: along its elements, along its rows, or both ways."""
    rows, chunk, count = plan.rows.tile, plan.scores.length, 0
    for copies in plan.copied:
        side, stages = ("a", 1) if copies in plan.owned else ("b", plan.stages)
        forms = []
        if copies.along:
            box = f"({copies.rows}, {copies.elements})"
            forms.append(("scoring", "ROW_MAJOR", f"({rows}, {chunk}, {copies.elements})", box))
        if copies.turned:
            unit = numbered("summing", plan.units.index(copies.elements))
            box = f"({copies.elements}, {copies.rows})"
            forms.append((unit, "COL_MAJOR", f"({rows}, {copies.elements}, {chunk})", box))
        for i, (unit, major, shape, box) in enumerate(forms):
            tiles, factor = (f"{copies.param}_{what}" for what in (TURNED if i else ("tiles", "factor")))
            layout = f"layouts[{count}]"
            yield View(tiles, factor, copies.param, layout, unit, side, major, shape, stages, box)
            count += 1


def _sizes(plan: ChainedPlan) -> tuple[CallArg, ...]:
    """Return the arguments that the host counts blocks with."""
    names = (plan.segments.whole, plan.segments.over.name)
    return tuple(map(abi.extent, names))


def _count(plan: ChainedPlan, emitter: StepEmitter) -> str:
    """Return how many blocks there are: none too few tiles of rows of all segments, for each other index."""
    found = plan.segments
    tiles = f"({found.whole} * {found.each} // {plan.rows.tile} + {found.over.name})"
    count = f"{tiles} * {emitter.width}" if plan.others else tiles
    return f"min({count}, {plan.programs})" if plan.by_tickets else count
