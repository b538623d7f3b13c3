"""Masks that only partial steps need, in a loop that is not peeled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlk.ir.nodes import Let, Loop, Select, Value, operands
from rlk.ir.types import TileType
from rlk.lower.common.peel import conjuncts
from rlk.passes.walk import backward_slice

Reads = Callable[[Let], Iterable[Value]]


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks of a loop, as selects by a bounds condition, each with the lets that only its condition needs.

    unread: values that only these conditions read, or nothing.
    """

    choices: dict[Value, tuple[Let, ...]]
    unread: frozenset[Value]


def is_whole(loop: Loop) -> bool:
    """Return whether a loop has both full and masked steps: it has not been peeled."""
    return loop.full is not None and loop.exists is not None


def masks(loop: Loop, reads: Reads) -> Masks:
    """Return the masks of an unpeeled loop. reads: the operands of a let, masks not included."""
    assert loop.exists is not None
    lets = {let.value: let for let in loop.body.lets}
    true = conjuncts(loop, loop.exists)
    chosen = {v: n for v, let in lets.items() if isinstance(n := let.node, Select) and n.cond in true}

    def needs(let: Let) -> Iterable[Value]:
        return (chosen[let.value].a, chosen[let.value].b) if let.value in chosen else reads(let)

    effects = [v for v, let in lets.items() if not isinstance(let.type, TileType)]
    roots = {*loop.body.results, *effects, *(v for e in effects for v in operands(lets[e].node))}
    live = backward_slice(roots, lets, needs)

    def rare(condition: Value) -> tuple[Let, ...]:
        wanted = backward_slice({condition}, lets, reads) - live
        return tuple(let for let in loop.body.lets if let.value in wanted)

    return Masks({v: rare(n.cond) for v, n in chosen.items() if v in live}, frozenset(lets.keys() - live))
