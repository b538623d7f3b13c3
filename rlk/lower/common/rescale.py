"""Which steps of a loop exchange what it carries, and what is computed for them alone."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.nodes import Let, Loop, Select, Value, operands
from rlk.ir.types import TileType, Type


@dataclass(frozen=True, slots=True)
class Turning:
    """Where a truth value of a step holds, what is carried is exchanged before anything reads it.

    rare: what only the new values need. changes: what a choice yields, the carried value, the new one.
    """

    condition: Value
    rare: tuple[Let, ...]
    changes: tuple[tuple[Value, Value, Value], ...]

    @property
    def waiting(self) -> frozenset[Value]:
        """The values that are not computed where they stand."""
        return frozenset({let.value for let in self.rare} | {value for value, _, _ in self.changes})

    @property
    def at(self) -> Value:
        """The choice after which everything that the turn needs is there."""
        return self.changes[-1][0]


def turning(loop: Loop) -> Turning | None:
    """Return how a loop's steps turn; None where no carried value is chosen so, or one is read elsewhere."""
    carried = set(loop.body.args[1:])
    types = {let.value: let.type for let in loop.body.lets}
    choices = {
        let.value: let.node
        for let in loop.body.lets
        if isinstance(let.node, Select) and let.node.b in carried and _one_number(types.get(let.node.cond))
    }
    conditions = {node.cond for node in choices.values()}
    if len(conditions) != 1:
        return None
    needed = {*loop.body.results, *conditions}
    for let in reversed(loop.body.lets):
        effect = not isinstance(let.type, TileType)
        if let.value not in choices and (effect or let.value in needed):
            needed |= {let.value, *operands(let.node)}
    rare = tuple(let for let in loop.body.lets if let.value not in needed | choices.keys())
    if needed.intersection(node.b for node in choices.values()):
        return None
    changes = tuple((value, node.b, node.a) for value, node in choices.items())
    return Turning(conditions.pop(), rare, changes)


def _one_number(type: Type | None) -> bool:
    return isinstance(type, TileType) and not type.axes
