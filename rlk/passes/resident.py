"""Rows of fused attention before the loop that multiplies them: each program loads them once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlk.ir.nodes import Block, Dot, Kernel, Let, Load, Loop, Role, Value, operands
from rlk.ir.types import TileType
from rlk.passes.pack_gqa import computed_factor
from rlk.passes.walk import backward_slice, walk


def resident(kernel: Kernel) -> Kernel:
    """Return a kernel of fused attention with the factors that no step changes before its loops.

    Specs of segments load their rows before the stream themselves; a parameter that is named in a stream is
    loaded there.
    """
    types = [let.type for let in walk(kernel.body)]
    ragged = any(axis.over is not None for t in types if isinstance(t, TileType) for axis in t.axes)
    if ragged or not computed_factor(kernel):
        return kernel
    inputs = {decl.name for decl in kernel.params if decl.role is Role.IN}
    lets = (made for let in kernel.body.lets for made in _apart(let, inputs))
    return replace(kernel, body=replace(kernel.body, lets=tuple(lets)))


def _apart(let: Let, inputs: set[str]) -> Iterator[Let]:
    """Yield a let; before a loop, what its factors of inputs are loaded by, if no step varies it."""
    if not isinstance(let.node, Loop):
        yield let
        return
    body = let.node.body
    inside = {each.value: each for each in body.lets}
    factors = {v for each in body.lets if isinstance(each.node, Dot) for v in (each.node.a, each.node.b)}
    moved: set[Value] = set()
    for value in factors & inside.keys():
        load, needed = inside[value].node, backward_slice([value], inside)
        read = {v for each in needed for v in operands(inside[each].node)}
        if isinstance(load, Load) and load.param in inputs and read.isdisjoint(body.args):
            moved |= needed
    yield from (each for each in body.lets if each.value in moved)
    kept = tuple(each for each in body.lets if each.value not in moved)
    yield replace(let, node=replace(let.node, body=Block(body.args, kept, body.results)))
