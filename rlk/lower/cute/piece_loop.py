"""Loops over pieces of a contracted axis whose sums are added in ascending order, in one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.ir.nodes import (
    Const,
    Decl,
    Dot,
    Fn2,
    Kernel,
    Let,
    Loop,
    Map2,
    Node,
    Param,
    Result,
    Role,
    Turn,
    Value,
    const_value,
    operands,
)
from rlk.ir.types import DType, TileType
from rlk.lower.common.peel import peel
from rlk.passes.rewrite import Replay
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of


@dataclass(frozen=True, slots=True)
class PieceLoop:
    """A kernel for one piece, of which the scalar `index` is the number; its product stands for the sum.

    pieces: their number, a value of the kernel that may be 0. init: the first partial sum.
    """

    kernel: Kernel
    index: str
    pieces: Value
    init: float


def piece_loop(kernel: Kernel) -> PieceLoop | None:
    """Return the loop in which a kernel adds the products of pieces, s = s + product; None without one.

    Every step adds: a loop with masked steps is none of these.
    """
    kernel = peel(kernel)
    lets = tuple(walk(kernel.body))
    loops = [let for let in kernel.body.lets if isinstance(let.node, Loop)]
    if len(loops) != 1 or sum(isinstance(let.node, Loop) for let in lets) != 1:
        return None
    (outer,) = loops
    assert isinstance(outer.node, Loop)
    loop, nodes = outer.node, {let.value: let.node for let in lets}
    if len(loop.init) != 1 or loop.types[0].dtype is not DType.F32 or loop.exists is not None:
        return None
    init, product = nodes.get(loop.init[0]), _added(loop, nodes)
    if product is None or nodes.get(loop.start) != Const(0) or not isinstance(init, Const):
        return None
    stop, dot = types_of(kernel)[loop.stop], nodes[product]
    assert isinstance(stop, TileType) and isinstance(dot, Dot)
    if not set(stop.axes) <= set(dot.each or ()):  # tiles would have pieces of several numbers
        return None
    index = Turn(loop.axis).index
    replay = Replay(kernel, _Flat(outer.value, loop, product, index))
    replay.block(kernel.body.lets)
    flat = Kernel(kernel.name, kernel.params, replay.builder.body())
    return PieceLoop(flat, index, replay[loop.stop], float(const_value(init.bits, DType.F32)))


def _added(loop: Loop, nodes: Mapping[Value, Node]) -> Value | None:
    """Return the product that a step adds to the carried sum, where neither has other readers."""
    carried, last = loop.body.args[1], loop.body.results[0]
    match nodes.get(last):
        case Map2(fn=Fn2.ADD, a=a, b=product) if a == carried and isinstance(nodes.get(product), Dot):
            others = [let.node for let in loop.body.lets if let.value != last]
            read = {value for node in others for value in operands(node)}
            return product if not read & {carried, product} else None
        case _:
            return None


@dataclass(slots=True)
class _Flat:
    """The rule: the body of the loop takes its place, and the product is its result."""

    value: Value
    loop: Loop
    product: Value
    index: str

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Loop():
                step, last = self.loop.body.args[0], self.loop.body.results[0]
                replay.builder.params[self.index] = Decl(self.index, TileType(DType.I32), Role.SCALAR)
                replay.renamed[step] = replay.builder.let(Param(self.index), self.index)
                replay.block(tuple(each for each in self.loop.body.lets if each.value != last))
            case Result(of=of) if of == self.value:
                replay.renamed[let.value] = replay[self.product]
            case _:
                return False
        return True
