"""Run the steps of a loop in which every element exists without the masks of the others."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.nodes import Fn2, Kernel, Let, Loop, Map2, Result, Value
from rlk.ir.types import DType
from rlk.passes.rewrite import Replay
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk


def peel(kernel: Kernel) -> Kernel:
    """Return the kernel with each loop of full steps in two: the full steps, then the rest.

    The first has `full` as its stop and runs to its smallest element; the second starts there.
    """
    results = [let for let in walk(kernel.body) if isinstance(let.node, Result)]
    names = {(r.node.of, r.node.index): r.name for r in results if isinstance(r.node, Result)}
    replay = Replay(kernel, _Peel(names))
    replay.block(kernel.body.lets)
    params = tuple(replay.builder.params.values())
    return simplify(Kernel(kernel.name, params, replay.builder.body()))


@dataclass(frozen=True, slots=True)
class _Peel:
    """The rule; `names` are those of what loops yield."""

    names: dict[tuple[Value, int], str]

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Loop(full=full, exists=exists) as loop if full is not None and exists is not None:
                replay.renamed[let.value] = _in_two(self, replay, let, loop, full, exists)
                return True
            case _:
                return False


def _conjuncts(loop: Loop, condition: Value) -> frozenset[Value]:
    """Return a condition and those of a loop's body that hold wherever it does."""
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
    b, limit = replay.builder, replay[full]
    head = Loop(loop.axis, loop.start, full, loop.init, loop.types, loop.body, full, None)
    outer = replay.rule

    true = _conjuncts(loop, exists)

    def every(inner: Replay, each: Let) -> bool:
        if each.value in true:
            inner.renamed[each.value] = b.const(True, DType.BOOL)
            return True
        return outer(inner, each)

    replay.rule = every
    first = b.let(replay.loop(head), let.name)
    replay.rule = outer
    init = b.results(first, tuple(peel.names.get((let.value, i), "") for i in range(len(loop.types))))
    with b.region() as lets:
        args = replay.arguments(loop)
        replay.block(loop.body.lets)
        results = tuple(replay[v] for v in loop.body.results)
        there = replay[exists]
    body = type(loop.body)(args, tuple(lets), results)
    return b.let(Loop(loop.axis, limit, replay[loop.stop], init, loop.types, body, None, there), let.name)
