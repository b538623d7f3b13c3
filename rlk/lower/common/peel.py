"""Loop peeling: full steps run without masks, in a loop of their own."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.ir.nodes import Block, Dot, Fn2, Kernel, Let, Loop, Map2, Result, Value
from rlk.ir.types import DType
from rlk.passes.rewrite import Replay
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk


def peel(kernel: Kernel) -> Kernel:
    """Return the kernel with each loop of full steps in two: the full steps, then the rest.

    The first runs to the smallest element of `full`; the second starts there. If the loop has `first`, the
    bound where full steps begin, a masked loop before them runs to its largest element, and no later step is
    below. A loop has no rest where its bounds vary along batch axes of contractions alone, of which a tile
    has one index, and all of its steps are full.
    """
    results = [let for let in walk(kernel.body) if isinstance(let.node, Result)]
    names = {(r.node.of, r.node.index): r.name for r in results if isinstance(r.node, Result)}
    batch = frozenset(
        axis for let in walk(kernel.body) if isinstance(let.node, Dot) for axis in let.node.each or ()
    )
    replay = Replay(kernel, _Peel(names, batch))
    replay.block(kernel.body.lets)
    params = tuple(replay.builder.params.values())
    return simplify(Kernel(kernel.name, params, replay.builder.body()))


@dataclass(frozen=True, slots=True)
class _Peel:
    """The rule; `names` are those of loops' results, `batch` the axes of which a tile has one index."""

    names: dict[tuple[Value, int], str]
    batch: frozenset[Axis]

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Loop(full=full, exists=exists) as loop if full is not None and exists is not None:
                replay.renamed[let.value] = _in_two(self, replay, let, loop, full, exists)
                return True
            case _:
                return False


def conjuncts(loop: Loop, condition: Value) -> frozenset[Value]:
    """Return a condition and the conditions of a loop's body that it implies."""
    nodes = {let.value: let.node for let in loop.body.lets}
    found: set[Value] = set()
    left = [condition]
    while left:
        value = left.pop()
        if value in nodes:
            found.add(value)
            node = nodes[value]
            left += [node.a, node.b] if isinstance(node, Map2) and node.fn is Fn2.AND else []
    return frozenset(found)


def _in_two(peel: _Peel, replay: Replay, let: Let, loop: Loop, full: Value, exists: Value) -> Value:
    b, limit, names = replay.builder, replay[full], peel.names
    hints = tuple(names.get((let.value, i), "") for i in range(len(loop.types)))
    outer, start, init = replay.rule, replay[loop.start], tuple(replay[v] for v in loop.init)
    if loop.first is not None:
        begin = start
        start = replay[loop.first]
        init = b.results(_masked(replay, let, loop, (begin, start), init), hints)

    true = conjuncts(loop, exists)

    def every(inner: Replay, each: Let) -> bool:
        if each.value in true:
            inner.renamed[each.value] = b.const(True, DType.BOOL)
            return True
        return outer(inner, each)

    replay.rule = every
    with b.region() as lets:
        args = replay.arguments(loop)
        replay.block(loop.body.lets)
        results = tuple(replay[v] for v in loop.body.results)
    body, late = Block(args, tuple(lets), results), replay.optional(loop.first)
    made = b.let(Loop(loop.axis, start, limit, init, loop.types, body, limit, None, late), let.name)
    replay.rule = outer
    if limit == replay[loop.stop] and peel.batch.issuperset(b.tile(limit).axes):
        return made
    return _masked(replay, let, loop, (limit, replay[loop.stop]), b.results(made, hints), late)


def _masked(
    replay: Replay, let: Let, loop: Loop, bounds: tuple[Value, Value], init: tuple[Value, ...],
    late: Value | None = None,
) -> Value:  # fmt: skip
    """Append a loop over masked steps, none of them below the largest element of `late`."""
    b = replay.builder
    with b.region() as lets:
        args = replay.arguments(loop)
        replay.block(loop.body.lets)
        results = tuple(replay[v] for v in loop.body.results)
        there = replay.optional(loop.exists)
    body = Block(args, tuple(lets), results)
    return b.let(Loop(loop.axis, *bounds, init, loop.types, body, None, there, late), let.name)
