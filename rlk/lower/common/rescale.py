"""Conditional rescaling in a loop: the condition, the rescaled carried values, and values only these use."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.nodes import Let, Loop, Select, Value, operands
from rlk.ir.types import TileType, Type


@dataclass(frozen=True, slots=True)
class Rescale:
    """Carried values that a step replaces before it reads them, where a scalar condition holds.

    rare: values that only the replacements need. changes: (select, carried value, replacement).
    """

    condition: Value
    rare: tuple[Let, ...]
    changes: tuple[tuple[Value, Value, Value], ...]

    @property
    def waiting(self) -> frozenset[Value]:
        """Return the values that are computed only under the condition."""
        return frozenset({let.value for let in self.rare} | {value for value, _, _ in self.changes})

    @property
    def at(self) -> Value:
        """Return the last select."""
        return self.changes[-1][0]


def rescale_of(loop: Loop) -> Rescale | None:
    """Return the rescale of a loop; None without one, or where a replaced value is read elsewhere."""
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
    return Rescale(conditions.pop(), rare, changes)


def _one_number(type: Type | None) -> bool:
    return isinstance(type, TileType) and not type.axes
