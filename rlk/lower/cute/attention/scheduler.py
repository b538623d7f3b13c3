"""How blocks of a kernel that contracts what it computed stay, and take one tile after another by tickets."""

from __future__ import annotations

from rlk.ir.nodes import Value
from rlk.lower.common import abi
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.cute.attention.plan import LANES, ChainedPlan, Step
from rlk.lower.cute.attention.consumer import StepEmitter
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import ROWS_OF_WARPGROUP

OF_TICKETS = frozenset("item items blocks mail mail_ring ticket own all_steps full_of last_of".split())


class TicketEmitter(StepEmitter):
    """Writes the lines of a tile: a block's rows lie in a ring, and are freed before the tile is done.

    Who copies tells those who multiply what the steps of a tile are. Each warpgroup has as many as its own
    rows need, and lets what comes for the rows of others pass.
    """

    item = "item"
    own = "own"
    sums_first = True  # measured; where a block has one tile the other order is the faster one

    def __init__(self, plan: ChainedPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.names.taken |= OF_TICKETS
        self.uses("send_mail", "read_mail", "next_item")
        self.tickets = self.memory.argument(abi.counter(plan.kernel.name, f"{plan.kernel.name}_tickets"))

    def limits(self, start: Value, *stops: Value) -> None:
        """Write the first step of a tile, the last of each warpgroup and of all, and where its parts end.

        There is one step at least: one that no row sees changes no state.
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
        """Return the least or the most of a number over the rows of warpgroup `g`."""
        if value not in self.rowwise:
            return self.extreme(value, pick)
        self.uses("of_rows")
        count = ROWS_OF_WARPGROUP // LANES
        return f"of_rows({self.text[value]}[{count} * g : {count} * (g + 1)], {pick})"

    def loop_lines(self) -> tuple[Line, ...]:
        """Return the steps of a warpgroup, and how stages pass that only others need."""
        own = super().loop_lines()
        name = self.names.fresh(f"{axis_name(self.plan.last.loop.axis)}_step")
        with self.inner(f"for {name} in cutlass.range(last_steps, all_steps, unroll=1):"):
            for copies, state in zip(self.plan.streamed, ("get", "got"), strict=True):
                self.awaited(copies, state)
            self.free("get", "got")
        return *own, *lines(self.lines)

    def step(self, part: Step, name: str, *, more: bool) -> None:
        """Write a step; all scores of a tile are there before its last: another's rows may come."""
        if not more:
            with self.inner("with cute.arch.elect_one():"):
                for copies in self.plan.owned:
                    self.line(f"{copies.param}_ring.consumer_release(own)")
        super().step(part, name, more=more)
