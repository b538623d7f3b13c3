"""How blocks of a kernel that contracts what it computed stay, and take one tile after another by tickets."""

from __future__ import annotations

from rlk.lower.common.emitted import From
from rlk.lower.cute.chained_plan import ChainedPlan, Step
from rlk.lower.cute.chained_steps import StepEmitter
from rlk.lower.cute.functions import Helper

OF_TICKETS = frozenset("item items blocks mail mail_ring ticket own".split())


class TicketEmitter(StepEmitter):
    """Writes the lines of a tile: a block's rows lie in a ring, and are freed before the tile is done."""

    item = "item"
    own = "own"
    sums_first = True  # measured; where a block has one tile the other order is the faster one

    def __init__(self, plan: ChainedPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.names.taken |= OF_TICKETS
        self.uses("send_mail", "read_mail", "next_item")
        name = f"{plan.kernel.name}_tickets"
        self.tickets = self.memory.argument(name, From.TICKETS, plan.kernel.name)

    def step(self, part: Step, name: str, *, more: bool) -> None:
        """Write a step; all scores of a tile are there before its last: another's rows may come."""
        if not more:
            with self.inner("with cute.arch.elect_one():"):
                for copies in self.plan.owned:
                    self.line(f"{copies.param}_ring.consumer_release(own)")
        super().step(part, name, more=more)
