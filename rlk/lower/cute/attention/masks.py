"""Zero out-of-bounds rows of TMA tiles in shared memory (consumer warpgroups)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlk.ir.nodes import Load, Map2, Value, operands
from rlk.lower.cute.attention.plan import Copies, Step
from rlk.lower.cute.attention.producer import AttentionEmitter
from rlk.lower.cute.plan import WARPGROUP


class MaskEmitter(AttentionEmitter):
    """Writes the lines that zero out-of-bounds rows."""

    def guards(self, part: Step, factors: Iterable[Copies]) -> dict[Copies, Value]:
        """Return the in-bounds predicate of each factor whose tiles may have out-of-bounds rows."""
        lets = part.loop.body.lets
        found = {let.node.param: let.node.guard for let in lets if isinstance(let.node, Load)}
        return {copies: guard for copies in factors if (guard := found[copies.param]) is not None}

    def clear(self, guards: Mapping[Copies, Value], state: str) -> None:
        """Zero the out-of-bounds rows of tiles: 0 * inf and 0 * NaN are not 0.

        Each consumer warpgroup zeroes for itself, behind a branch, and then meets at a named barrier.
        """
        ends: dict[str, None] = {}
        self.uses("select", "clear_vector_where")
        for copies, guard in guards.items():
            first, stop = self.end_of(guard)
            self.write(self.needed([first, stop]))
            ends[f"({self[stop]} < {self[first]} + {copies.rows})"] = None
        with self.inner(f"if {' | '.join(ends)}:"):
            for copies, guard in guards.items():
                self.clear_rows(copies, guard, state)
            self.line("cute.arch.fence_view_async_shared()")
            self.line(f"cute.arch.barrier(barrier_id=group, number_of_threads={WARPGROUP})")

    def clear_rows(self, copies: Copies, guard: Value, state: str) -> None:
        axis = self.plan.scores.axis
        with self.isolated():
            self.fragments = {}
            of_rows = {value for value in self.written if axis in self.axes(value)}
            self.written, self.whole = self.written - of_rows, self.whole - of_rows
            self.line(f"column = {copies.width} * (mine % {copies.across})")
            with self.inner(f"for i in cutlass.range_constexpr({copies.passes}):"):
                self.line(f"down = mine % {WARPGROUP} // {copies.across} + {copies.down} * i")
                self.memory.coordinates[axis] = "down"
                self.write(self.needed([guard]))
                missing = f"select({self[guard]}, Boolean(False), Boolean(True))"
                with self.inner(f"for j in cutlass.range_constexpr({copies.vectors}):"):
                    column = f"column + {copies.width * copies.across} * j"
                    place = f"down, {column}" if copies.along else f"{column}, down"
                    given = f"{copies.param}_tiles, ({place}, {state}.index), {copies.width}"
                    self.line(f"clear_vector_where({missing}, {given})")

    def end_of(self, guard: Value) -> tuple[Value, Value]:
        """Return the first row of a step, and the end of the rows."""
        there = self.lets[guard].node
        assert isinstance(there, Map2)
        parts = operands(self.lets[there.a].node)
        return next(v for v in parts if self.plan.scores.axis not in self.axes(v)), there.b
