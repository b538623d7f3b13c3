"""Load hoisting: issue loads before the reductions that would otherwise delay them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rlk.ir.dims import Part
from rlk.ir.nodes import (
    Block,
    Check,
    Dot,
    Kernel,
    Let,
    Load,
    Loop,
    Merge,
    Reduce,
    Role,
    Store,
    Value,
    operands,
)
from rlk.ir.types import TileType, tile_axes
from rlk.passes.walk import backward_slice, walk

FEWEST_AT_LOADED = 2  # loads at loaded indices of a step, from which on its loads are issued in levels
Scalar = Callable[[TileType], bool]


def hoist_loads(kernel: Kernel, scalar: Scalar, *, late: bool = False) -> Kernel:
    """Return the kernel with its loads of inputs first, if they do not depend on a reduction.

    A tile that is used after a loop (or dot) is not loaded before it: it would occupy registers during the
    loop. A scalar (a value of a type that `scalar` accepts) is. late: outside of loops, nor is a tile that
    the first reduction does not need.
    """
    inputs = frozenset(d.name for d in kernel.params if d.role is Role.IN)
    return replace(kernel, body=_block(kernel.body, inputs, scalar, late))


def _block(block: Block, inputs: frozenset[str], scalar: Scalar, late: bool = False) -> Block:
    lets = tuple(_inside(let, inputs, scalar) for let in block.lets)
    ahead = _needed(lets, lambda load: load.param in inputs, scalar)
    ordered = [let for let in lets if let.value in ahead]
    rest = [let for let in lets if let.value not in ahead]
    while rest:
        stop = next((i for i, let in enumerate(rest) if isinstance(let.node, Dot | Loop)), len(rest))
        segment, rest = rest[:stop], rest[stop:]
        soon = _needed(tuple(segment), lambda load: load.param in inputs, lambda type: True)
        soon &= _of_first_sum(segment) if late else soon
        ordered += [let for let in segment if let.value in soon]
        ordered += [let for let in segment if let.value not in soon]
        ordered += rest[:1]
        rest = rest[1:]
    return replace(block, lets=tuple(ordered))


def _of_first_sum(lets: Sequence[Let]) -> frozenset[Value]:
    """Return what the first reduction is computed from; everything where there is none."""
    first = next((let for let in lets if isinstance(let.node, Reduce)), None)
    producers = {let.value: let for let in lets}
    return frozenset(producers if first is None else backward_slice([first.value], producers))


def load_levels(lets: tuple[Let, ...], inputs: frozenset[str]) -> list[tuple[Let, ...]]:
    """Return the lets of a step in levels: loads, then those at indices that these loaded, then the rest.

    One level where no two loads of chunks are at loaded indices. Loads are of inputs, and wait for no sum.
    """
    early = _needed(lets, lambda load: load.param in inputs, lambda type: True)
    producers = {let.value: let for let in lets}
    depths: dict[Value, int] = {}
    for let in lets:
        axes = tile_axes(let.type)
        chunk = [axis.part for axis in axes if axis.part is not Part.PIECE] == [Part.LANE]
        loads = let.value in early and isinstance(let.node, Load) and chunk
        depths[let.value] = max((depths.get(v, 0) for v in operands(let.node)), default=0) + loads
    of_loads = [let.value for let in lets if let.value in early and isinstance(let.node, Load)]
    if sum(depths[v] > 1 for v in of_loads) < FEWEST_AT_LOADED:
        return [lets]
    found: list[tuple[Let, ...]] = []
    told: set[Value] = set()
    for depth in range(1, max(depths[v] for v in of_loads) + 1):
        level = backward_slice([v for v in of_loads if depths[v] == depth], producers)
        found.append(tuple(let for let in lets if let.value in level and let.value not in told))
        told.update(level)
    return [*found, tuple(let for let in lets if let.value not in told)]


def _inside(let: Let, inputs: frozenset[str], scalar: Scalar) -> Let:
    match let.node:
        case Loop(body=body) as loop:
            return replace(let, node=replace(loop, body=_block(body, inputs, scalar)))
        case _:
            return let


def _needed(lets: tuple[Let, ...], wanted: Callable[[Load], bool], scalar: Scalar) -> frozenset[Value]:
    """Return the loads that can go first, with their backward slices."""
    producers = {let.value: let for let in lets}
    waits: set[Value] = set()
    for let in lets:
        combines = isinstance(let.node, Reduce | Dot | Merge | Loop | Store | Check)
        if combines or not waits.isdisjoint(operands(let.node)):
            waits.add(let.value)
    loads = [
        let.value
        for let in lets
        if isinstance(let.node, Load) and wanted(let.node) and let.value not in waits and _is(let, scalar)
    ]
    return frozenset(backward_slice(loads, producers))


def _is(let: Let, scalar: Scalar) -> bool:
    return isinstance(let.type, TileType) and scalar(let.type)


def factors_first(kernel: Kernel) -> Kernel:
    """Return the kernel with the loads of factors, and their backward slices, first in each loop.

    All steps have masks: none counts as full.
    """
    lets = {let.value: let for let in walk(kernel.body)}
    dots = (let.node for let in lets.values() if isinstance(let.node, Dot))
    factors = {v for dot in dots for v in (dot.a, dot.b) if isinstance(lets[v].node, Load)}
    return replace(kernel, body=_factors_first(kernel.body, factors))


def _factors_first(block: Block, factors: set[Value]) -> Block:
    own = {let.value: let for let in block.lets}
    ahead = backward_slice((value for value in own if value in factors), own)
    made = []
    for let in sorted(block.lets, key=lambda let: let.value not in ahead):
        match let.node:
            case Loop(body=body) as loop:
                inner = replace(loop, body=_factors_first(body, factors), full=None, first=None)
                made.append(replace(let, node=inner))
            case _:
                made.append(let)
    return replace(block, lets=tuple(made))
