"""A kernel that contracts what it computed, on Hopper: a warpgroup copies, others multiply and weigh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.lower.common.emitted import CallArg, From
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.cute import text
from rlk.lower.cute.chained_plan import ChainedPlan, Copies
from rlk.lower.cute.chained_steps import StepEmitter
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import (
    Frame,
    KernelText,
    build,
    framed,
    owning,
)
from rlk.lower.cute.plan import refused
from rlk.lower.cute.trades import BOX_WORDS


@dataclass(frozen=True, slots=True)
class Streamed:
    """A factor as its template has it: how its tiles lie, and the lines that copy one."""

    name: str
    rows: int
    elements: int
    stages: int
    copy: tuple[Line, ...]

    @property
    def size(self) -> int:
        """Elements of all stages."""
        return self.rows * self.elements * self.stages

    @property
    def barriers(self) -> int:
        return 2 * self.stages


@dataclass(frozen=True, slots=True)
class ChainedText:
    """What the template reads beside its plan."""

    frame: Frame
    plan: ChainedPlan
    dtype: str
    queries: Streamed
    columns: Streamed
    values: Streamed
    step: str  # the name of a step, in the role that copies
    place: tuple[Line, ...]
    steps: tuple[Line, ...]
    before: tuple[Line, ...]
    first: tuple[Line, ...]
    loop: tuple[Line, ...]
    after: tuple[Line, ...]
    boxed: bool  # whether warps trade pairs for vectors

    @property
    def words(self) -> int:
        """Words of shared memory by which all warps do."""
        return BOX_WORDS * self.plan.warps

    @property
    def factors(self) -> tuple[Streamed, Streamed, Streamed]:
        return self.queries, self.columns, self.values

    @property
    def depth(self) -> int:
        """Elements that a score is the sum of."""
        return self.queries.elements

    @property
    def chunk(self) -> int:
        """Columns of a step."""
        return self.columns.rows

    @property
    def width(self) -> int:
        """Elements of a row's sums."""
        return self.values.elements

    @property
    def score_blocks(self) -> int:
        return self.chunk // 8


def write(
    plan: ChainedPlan, helpers: dict[str, Helper], checks: list[str], turns: Mapping[str, str]
) -> KernelText:
    """Write the kernel."""
    emitter = StepEmitter(plan, helpers, checks)
    if len({copies.param for copies in plan.copied}) < len(plan.copied):
        raise refused("a tensor multiplied with itself", plan.target)
    place, steps = emitter.of_tile(), emitter.steps()
    queries = _streamed(plan.queries, 1, emitter.copies(plan.queries, "0", turned=False))
    step = f"{axis_name(plan.last.loop.axis)}_step"
    emitter.name_step(step)
    columns = _streamed(plan.columns, plan.stages, emitter.copies(plan.columns, "put.index", turned=False))
    values = _streamed(plan.values, plan.stages, emitter.copies(plan.values, "put.index", turned=True))
    before, first, loop = emitter.before(), emitter.first_scores(), emitter.loop_lines()
    after = emitter.after()
    vectors = {c.param: c.width for c in plan.copied}
    frame, given = framed(plan, emitter, turns, owning(plan), vectors=vectors)
    subject = ChainedText(
        frame=frame,
        plan=plan,
        dtype=text.TYPES[plan.dtype],
        queries=queries,
        columns=columns,
        values=values,
        step=step,
        place=place,
        steps=steps,
        before=before,
        first=first,
        loop=loop,
        after=after,
        boxed=emitter.boxed,
    )
    return KernelText(
        template="chained.py.j2",
        subject=subject,
        arguments=tuple(given),
        sizes=_sizes(plan),
        programs=(f"programs = {_count(plan)}",),
        build=build(plan.kernel, given, emitter),
    )


def _streamed(copies: Copies, stages: int, lines: tuple[Line, ...]) -> Streamed:
    return Streamed(copies.param, copies.rows, copies.elements, stages, lines)


def _sizes(plan: ChainedPlan) -> tuple[CallArg, ...]:
    """Return the arguments that the host counts blocks with."""
    names = (plan.segments.whole, plan.segments.over.name)
    return tuple(CallArg(name, From.EXTENT, name) for name in names)


def _count(plan: ChainedPlan) -> str:
    """Return how many blocks there are: none too few tiles of rows of all segments, for each other index."""
    found = plan.segments
    tiles = f"({found.whole} * {found.each} // {plan.rows.tile} + {found.over.name})"
    return " * ".join([tiles, *(str(o.tiles) for o in plan.others)])
