"""Dynamic persistent tile scheduler of the fused attention kernel, by an atomic work counter."""

from __future__ import annotations

from rlk.ir.nodes import Value
from rlk.lower.common import abi
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.cute.attention.consumer import ConsumerEmitter
from rlk.lower.cute.attention.plan import LANES, AttentionPlan
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import ROWS_OF_WARPGROUP

SCHEDULER_NAMES = frozenset(
    "item items blocks work_tile work_tile_pipeline next_tile own all_steps full_of last_of".split()
)


class SchedulerEmitter(ConsumerEmitter):
    """Writes the consumer of a persistent block: resident rows have a pipeline, released before the epilogue.

    The producer publishes each work tile with the step ranges of all consumers. A consumer runs the steps
    that its own rows need, and releases the stages of the others unread.
    """

    item = "item"
    own = "own"
    sums_first = True  # measured; with one tile a block the other order is faster

    def __init__(self, plan: AttentionPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.names.taken |= SCHEDULER_NAMES
        self.uses("publish_work_tile", "read_work_tile", "next_work_tile")
        self.work_counter = self.memory.argument(
            abi.counter(plan.kernel.name, f"{plan.kernel.name}_work_counter")
        )

    def limits(self, start: Value, *stops: Value) -> None:
        """Write the first step of a tile, the last of each consumer and of all, and the ends of its ranges.

        There is at least one step: a fully masked step changes no state.
        """
        self.line(f"first_steps = {self.first_step(start)}")
        there = f"first + {ROWS_OF_WARPGROUP} * g < count"
        last = f"most({self.of_warpgroup(stops[-1], 'most')}, first_steps + 1)"
        self.line(f"last_of = {self.of_each(f'select({there}, {last}, first_steps + 1)')}")
        if len(stops) > 1:
            full = f"least({self.of_warpgroup(stops[0], 'least')}, last_of[g] - 1)"
            self.line(f"full_of = {self.of_each(f'most(first_steps, {full})')}")
        last = "last_of[0]"
        for g in range(1, self.plan.consumers):
            last = f"most({last}, last_of[{g}])"
        self.line(f"last_steps = {last}")

    def of_each(self, text: str) -> str:
        return f"[{text} for g in range({self.plan.consumers})]"

    def of_warpgroup(self, value: Value, pick: str) -> str:
        """Return the minimum or maximum of a row value over consumer `g`."""
        if value not in self.rowwise:
            return self.extreme(value, pick)
        self.uses("of_rows")
        count = ROWS_OF_WARPGROUP // LANES
        return f"of_rows({self.text[value]}[{count} * g : {count} * (g + 1)], {pick})"

    def loop_lines(self) -> tuple[Line, ...]:
        """Return the steps of a consumer, and the release of stages that only others need."""
        own = super().loop_lines()
        name = self.names.fresh(f"{axis_name(self.plan.last.loop.axis)}_step")
        with self.inner(f"for {name} in cutlass.range(last_steps, all_steps, unroll=1):"):
            for copies, state in zip(self.plan.streamed, ("get", "got"), strict=True):
                self.awaited(copies, state)
            self.free("get", "got")
        return *own, *lines(self.lines)

    def before_last(self) -> None:
        """Release the resident rows: S of the tile is complete."""
        with self.inner("with cute.arch.elect_one():"):
            for copies in self.plan.owned:
                self.line(f"{copies.param}_ring.consumer_release(own)")
