"""Programs of pieces: those whose piece has no element of a row return at once."""

from __future__ import annotations

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Check, Fn2, Kernel, Let, Map2, Pos, Store, Value
from rlk.lower.common.contract import implies
from rlk.lower.triton.addresses import Addressed
from rlk.passes.walk import backward_slice, walk


def in_pieces(e: Addressed, lets: tuple[Let, ...]) -> None:
    """Write a kernel's outermost block, behind the exit of programs whose piece no row of theirs has.

    One of several pieces, or of a loop over tiles, cannot return.
    """
    found = held_pieces(e.plan.kernel)
    schedule = e.plan.schedule
    if found is None or schedule.programs or schedule.tile(str(found[0])) > 1:
        e.block(lets)
        return
    axis, count = found
    first = backward_slice({count}, {let.value: let for let in lets})
    e.block(tuple(let for let in lets if let.value in first))
    last = e.bound(count, "tl.max")
    with e.inner(f"if {e.addresses.coordinates[axis]} >= {last}:"):
        e.line("return")
    e.block(tuple(let for let in lets if let.value not in first))


def held_pieces(kernel: Kernel) -> tuple[Axis, Value] | None:
    """Return an axis of pieces, and how many of a row's have all effects; None if no mask says so."""
    lets = tuple(walk(kernel.body))
    nodes = {let.value: let.node for let in lets}
    stores = [node for node in nodes.values() if isinstance(node, Store)]
    if not stores or any(isinstance(node, Check) for node in nodes.values()):
        return None
    for let in kernel.body.lets:
        match let.node:
            case Map2(fn=Fn2.LT, a=a, b=count):
                at = nodes.get(a)
                every = (s.guard is not None and implies(nodes, s.guard, let.value) for s in stores)
                if isinstance(at, Pos) and at.axis.part is Part.PIECE and all(every):
                    return at.axis, count
            case _:
                pass
    return None
