"""Results of streams that are materialized: where an output lies along the streamed axis and reads them."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Axis
from rlk.ir.nodes import Block, Keep, Kernel, Let, Load, Store, Stream, Value, operands
from rlk.ir.types import tile_axes
from rlk.passes.rewrite import Replay
from rlk.passes.walk import backward_slice, walk


def kept(kernel: Kernel) -> Kernel:
    """Return a traced kernel with `Keep` of what a stream of an axis finds for stores along the whole axis.

    Without, each tile of such a store would run the stream again: the work would grow with the square of the
    axis, as in L.out(p=L.exp(z - soft.lse())). Stores that need no kept value come first, so that they share
    the kernel of the stream.
    """
    lets = {let.value: let for let in kernel.body.lets}
    for let in kernel.body.lets:
        if isinstance(let.node, Stream) and let.node.axis.over is None:
            found = _found(let.value, let.node.axis, lets)
            if found:
                return kept(_with_keeps(kernel, let.node.axis, found))
    return kernel


def _found(stream: Value, axis: Axis, lets: Mapping[Value, Let]) -> frozenset[Value]:
    """Return what comes of a stream without its axis, and is read along the axis for a store."""
    derived = {stream}
    for value, let in lets.items():
        if not derived.isdisjoint(_reads(let)):
            derived.add(value)
    stores = [let for let in lets.values() if _stores_along(let, axis, lets)]
    wanted = backward_slice((v for let in stores for v in operands(let.node)), lets)
    readers = [*stores, *(lets[v] for v in wanted if axis in tile_axes(lets[v].type))]
    read = {v for let in readers for v in _reads(let) if v in derived}
    found = {v for v in read if axis not in tile_axes(lets[v].type)}
    return frozenset(v for v in found if not isinstance(lets[v].node, Keep))


def _with_keeps(kernel: Kernel, axis: Axis, found: frozenset[Value]) -> Kernel:
    """Return the kernel with values kept for stores along an axis, and for what these stores alone need."""
    lets = {let.value: let for let in kernel.body.lets}
    late: set[Value] = set()
    written: set[str] = set()  # by late stores
    for let in kernel.body.lets:
        inner = [x.node for x in walk(Block((), (let,)))]
        along = axis in tile_axes(let.type) and not found.isdisjoint(_reads(let))
        again = not late.isdisjoint(_reads(let)) or any(
            isinstance(n, Load) and n.param in written for n in inner
        )
        if along or again or _stores_along(let, axis, lets):
            late.add(let.value)
            written |= {n.param for n in inner if isinstance(n, Store)}
    replay = Replay(kernel, lambda replay, let: False)
    replay.block(tuple(let for let in kernel.body.lets if let.value not in late))
    for let in kernel.body.lets:
        if let.value in found:
            replay.builder.loc = let.loc
            # a tensor's name: the author's variable has any, or none
            name = f"kept_{let.name or 'value'}"
            replay.renamed[let.value] = replay.builder.let(Keep(replay[let.value]), name)
    replay.block(tuple(let for let in kernel.body.lets if let.value in late))
    return Kernel(kernel.name, tuple(replay.builder.params.values()), replay.builder.body())


def _stores_along(let: Let, axis: Axis, lets: Mapping[Value, Let]) -> bool:
    """Return whether a let stores along a whole axis."""
    return isinstance(let.node, Store) and any(axis in tile_axes(lets[i].type) for i in let.node.index)


def _reads(let: Let) -> set[Value]:
    """Return the values that a let reads, in its region too."""
    read = set(operands(let.node))
    if isinstance(let.node, Stream):
        read |= {v for inner in let.node.body.lets for v in _reads(inner)}
        read |= {v for fold in let.node.folds for v in fold.inputs} | {*let.node.body.results}
    return read
