"""Scalar loop bounds where static extents decide them: the largest stop, the smallest full step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rlk.ir.dims import Axis
from rlk.ir.nodes import Kernel, Let, Loop, Node, Select, Value
from rlk.lower.common.static import Integers, Static
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk

Pick = Callable[[Integers], int]


def bounds(kernel: Kernel, lengths: Mapping[Axis, int]) -> Kernel:
    """Return the kernel with one number for each bound that only static axes vary.

    lengths: of the axes that a program has whole. A bound that a condition selects from two known ones
    becomes a select of two numbers, so that the trip count is uniform over lanes.
    """
    static = Static(lengths)
    for let in walk(kernel.body):
        static.note(let)
    nodes = {let.value: let.node for let in walk(kernel.body)}
    return simplify(rewrite(kernel, _Bound(static, nodes)))


@dataclass(frozen=True, slots=True)
class _Bound:
    """The rule: a loop's stop is the largest over its tile, its full steps the smallest."""

    static: Static
    nodes: Mapping[Value, Node]

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Loop(stop=stop, full=full) as loop:
                last = self.scalar(replay, stop, "steps", lambda known: int(known.max()))
                whole = full
                if full is not None:
                    whole = self.scalar(replay, full, "full_steps", lambda known: int(known.min()))
                made = replace(replay.loop(loop), stop=last, full=whole)
                replay.renamed[let.value] = replay.builder.let(made, let.name)
                return True
            case _:
                return False

    def scalar(self, replay: Replay, value: Value, name: str, pick: Pick) -> Value:
        """Return a bound as one number, as a select of two, or unchanged."""
        b, known = replay.builder, self.static[value]
        if known is not None:
            return b.i32(pick(known))
        match self.nodes.get(value):
            case Select(cond=cond, a=one, b=two):
                sides = self.static[one], self.static[two]
                if sides[0] is not None and sides[1] is not None:
                    return b.select(replay[cond], b.i32(pick(sides[0])), b.i32(pick(sides[1])), name)
            case _:
                pass
        return replay[value]
