"""Consumer mainloop where a loop carries accumulators alone, as in attention gradients.

A step reads nothing of the one before it but accumulators, so S is not issued ahead: the elementwise work
of one consumer warpgroup overlaps the products of the other.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise

from rlk.ir.nodes import Dot, Let, Load, Value
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name, stem
from rlk.lower.cute.attention.consumer import EACH_ROW, ConsumerEmitter
from rlk.lower.cute.attention.plan import Step
from rlk.lower.cute.attention.producer import ROWS
from rlk.lower.cute.attention.step import MASKED, call, masks_of
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import refused
from rlk.passes.walk import backward_slice


class GradientEmitter(ConsumerEmitter):
    """Writes steps of several contractions: all S products are issued, each is used as soon as it is done."""

    about_step = "One tile of streamed rows: S and dP, the elementwise work, and products onto the sums."

    def limits(self, start: Value, *stops: Value) -> None:
        """Write the step range of a tile, and its range of unmasked steps."""
        self.line(f"first_steps = {self.extreme(start, 'least')}")
        self.line(f"last_steps = select(first < count, {self.extreme(stops[-1], 'most')}, first_steps)")
        before = "first_steps"
        if len(stops) > 2:
            late = f"least({self.extreme(stops[0], 'most')}, last_steps)"
            self.line(f"late_steps = most({before}, {late})")
            before = "late_steps"
        if len(stops) > 1:
            full = f"least({self.extreme(stops[-2], 'least')}, last_steps)"
            self.line(f"full_steps = most({before}, {full})")

    def first_scores(self) -> tuple[Line, ...]:
        """Return the wait for the resident factors."""
        self.own_rows()
        return lines(self.lines)

    def loop_lines(self) -> tuple[Line, ...]:
        """Return all steps: masked, unmasked, and masked again."""
        name = self.names.fresh(f"{axis_name(self.plan.last.loop.axis)}_step")
        self.write_step(name)
        count = len(self.plan.parts)
        limits = ("first_steps", *("late_steps", "full_steps")[3 - count :], "last_steps")
        for part, (start, stop) in zip(self.plan.parts, pairwise(limits), strict=True):
            masked = bool(masks_of(part.loop).selects)
            with self.inner(f"for {name} in cutlass.range({start}, {stop}, unroll=1):"):
                self.line(call(self.step_function, name, masked=masked))
        return lines(self.lines)

    def step(self, part: Step, name: str) -> None:
        """Write a step."""
        with self.one_step(part.loop, name) as lets:
            self.phases(part, [let for let in lets if let.value not in self.written])
            self.line("warpgroup.wait_group(0)")
            if self.plan.numbers_pipelined:
                with self.inner("with cute.arch.elect_one():"):
                    self.line(f"{self.plan.numbers_ring}.consumer_release(get)")
            self.free(*["get"] * len(self.plan.streamed))

    def phases(self, part: Step, lets: list[Let]) -> None:
        """Issue all S products; after each, issue every accumulation whose register operand is complete."""
        waited: set[str] = set()
        cleared = False  # whether masked steps have waited for all tiles

        def arrived(let: Let) -> None:
            copies = self.factor(let, "b")
            if copies.param not in waited:
                with self.switch(f"not {MASKED}") if cleared else nullcontext():
                    self.awaited(copies, "get")
                waited.add(copies.param)

        if self.plan.by_tma and (guards := self.guards(part, self.plan.streamed)):
            with self.where_masked():
                for let in (*part.scores, *part.sums):
                    arrived(let)
                self.clear(guards, "get")
            if self.masks is not None:
                waited, cleared = set(), True
        for i, let in enumerate(part.scores):
            arrived(let)
            self.score(part, i, "get")
        left = [let for let in lets if let not in (*part.scores, *part.sums)]
        begun, last = 0, len(part.scores) - 1
        for i, score in enumerate(part.scores):
            self.line(f"warpgroup.wait_group({last - i + begun})")
            self.text[score.value] = f"{self.score_names[i]}[r, c]"
            self.whole.add(score.value)
            self.written.add(score.value)
            now = self.of_phase(part, left, i)
            if self.plan.numbers_pipelined and self.of_columns(now) and self.plan.numbers_ring not in waited:
                self.line(f"{self.plan.numbers_ring}.consumer_wait(get)")
                waited.add(self.plan.numbers_ring)
            again = self.repeated(score, now, [let for let in left if let not in now])
            left = [let for let in left if let not in now or let in again]
            missing = {let.value for let in left}
            ready = [k for k in range(begun, len(part.sums)) if probs_of(part.sums[k]) not in missing]
            self.weighed(part, now, left, ready)
            for k in ready:
                arrived(part.sums[k])
                self.sum(part, k, "get")
            begun += len(ready)

    def weighed(self, part: Step, now: list[Let], left: list[Let], sums: list[int]) -> None:
        """Write the elementwise values of finished scores; lists that later phases read stay live."""
        columns = self.of_columns(now)
        for let in columns:
            self.at(let)
            self.column(let)
            self.written.add(let.value)
        self.targets = {probs_of(part.sums[k]): f"{self.prob_names[k]}[r, c]" for k in sums}
        now = [let for let in now if let not in columns]
        ends = self.waiting(now, left) - {let.value for let in left}
        if not all(map(self.listed, ends)):
            raise refused("a row value that is used after other scores", self.plan.target)
        kept = f"[{', '.join(['[]'] * ROWS)}]"
        waiting = [let for let in now if let.value in ends]
        self.crossing = {let.value: self.let(let.name or stem(let), kept) for let in waiting}
        with self.inner(EACH_ROW):
            self.ordered(now)
        self.targets, self.crossing = {}, {}

    def waiting(self, now: list[Let], left: list[Let]) -> set[Value]:
        """Return the values of this phase that later ones read."""
        return {v for let in left for v in self.operands(let)} & {let.value for let in now}

    def repeated(self, score: Let, now: list[Let], left: list[Let]) -> list[Let]:
        """Return the values to recompute in a later phase, so that one list stays live instead of several.

        Live lists take registers; where there are several, they are recomputed from a common ancestor.
        """
        ends, lets = self.waiting(now, left), {let.value: let for let in now}
        if len(ends) < 2:
            return []
        for let in reversed(now):
            kept = {value: x for value, x in lets.items() if value != let.value}
            made = backward_slice(ends, kept, self.operands)
            if not any(score.value in self.operands(kept[value]) for value in made):
                return [kept[value] for value in kept if value in made]
        return []

    def of_phase(self, part: Step, lets: list[Let], last: int) -> list[Let]:
        """Return the values that need no later scores, without column values that only later ones need."""
        later = {let.value for let in part.scores[last + 1 :]}
        known = [let for let in lets if not later & backward_slice([let.value], self.lets, self.operands)]
        columns = {let.value for let in self.of_columns(known)}
        rows = [let.value for let in known if let.value not in columns]
        found = backward_slice(rows, {let.value: let for let in known}, self.operands)
        return [let for let in known if let.value in found]

    def of_columns(self, lets: list[Let]) -> list[Let]:
        """Return the column values: made of a step's per-row numbers, the same for all query rows."""
        numbers = {each.param for each in self.plan.numbers}
        found: list[Let] = []
        for let in lets:
            read = isinstance(let.node, Load) and let.node.param in numbers
            if read or (not self.by_row(let.value) and {x.value for x in found} & set(self.operands(let))):
                found.append(let)
        return found

    def column(self, let: Let) -> None:
        """Write a column value."""
        if isinstance(let.node, Load):
            self.uses("numbers_of")
            given = f"{let.node.param}_numbers, quad, get.index, {self.plan.scores.count}"
            self.text[let.value] = self.let(let.name or let.node.param, f"numbers_of({given})")
        else:
            self.node(let)


def probs_of(let: Let) -> Value:
    assert isinstance(let.node, Dot)
    return let.node.a
