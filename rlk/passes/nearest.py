"""Integers of 8 bits from floats that are rounded first: one addition rounds, in place of two floors.

`L.round(x).to(i8)` is a dozen operations, two of them floors, which a GPU does at a quarter of its rate.
Within 2**22 the sum x + 1.5 * 2**23 is rounded to an integer, of two the even one, and its last bits are that
integer.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.nodes import (
    Bits,
    Cast,
    Const,
    Fn1,
    Fn2,
    Kernel,
    Let,
    Map1,
    Map2,
    Node,
    Select,
    Value,
    const_value,
)
from rlk.ir.types import DType, TileType
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.walk import walk

ROUNDS = 1.5 * 2.0**23
"""A float at which consecutive floats are consecutive integers, and those around it too."""
ROUNDED = 0x4B400000  # its bits
MOST = 2.0**22


def nearest(kernel: Kernel) -> Kernel:
    """Return the kernel with the same integers of rounded and limited floats, by one addition each."""
    lets = {let.value: let for let in walk(kernel.body)}
    if not any(isinstance(let.node, Cast) and let.node.dtype.is_int8 for let in lets.values()):
        return kernel
    return rewrite(kernel, _Nearest({value: let.node for value, let in lets.items()}, lets))


class _Nearest:
    """The rule: a cast to i32 of a limited integer is the bits of a sum, if what was rounded is known."""

    def __init__(self, nodes: Mapping[Value, Node], lets: Mapping[Value, Let]) -> None:
        self.nodes, self.lets = nodes, lets

    def __call__(self, replay: Replay, let: Let) -> bool:
        found = self.found(let)
        if found is None:
            return False
        x, least, most = found
        b = replay.builder
        low, high, zero, rounds = (b.f32(number) for number in (least, most, 0.0, ROUNDS))
        limited = b.map2(Fn2.MIN, b.map2(Fn2.MAX, replay[x], low), high)
        chosen = b.let(Select(b.map1(Fn1.ISNAN, replay[x]), zero, limited))
        bits = b.let(Bits(b.map2(Fn2.ADD, chosen, rounds), DType.I32))
        replay.renamed[let.value] = b.let(Map2(Fn2.SUB, bits, b.i32(ROUNDED)), let.name)
        return True

    def found(self, let: Let) -> tuple[Value, float, float] | None:
        """Return what is rounded, and its limits, of a cast to i32; None for another node."""
        match let.node:
            case Cast(x=x, dtype=DType.I32):
                pass
            case _:
                return None
        match self.nodes.get(x):
            case Select(cond=is_nan, a=zero, b=limited) if self.number(zero) == 0.0:
                pass
            case _:
                return None
        below, least = self.limited(limited, Fn2.MIN), None
        if below is not None:
            least = self.limited(below[0], Fn2.MAX)
        if below is None or least is None or self.nodes.get(is_nan) != Map1(Fn1.ISNAN, least[0]):
            return None
        rounded = self.rounded(least[0])
        within = -MOST <= least[1] <= below[1] <= MOST
        return (rounded, least[1], below[1]) if rounded is not None and within else None

    def limited(self, value: Value, fn: Fn2) -> tuple[Value, float] | None:
        """Return the other operand and the integer of a maximum or minimum with a number."""
        match self.nodes.get(value):
            case Map2(fn=found, a=a, b=b) if found is fn:
                number = self.number(b)
                return None if number is None or not number.is_integer() else (a, number)
            case _:
                return None

    def rounded(self, value: Value) -> Value | None:
        """Return the x of L.round(x), as `surface.L.round` writes it."""
        match self.nodes.get(value):
            case Select(cond=up, a=above, b=below):
                pass
            case _:
                return None
        match self.nodes.get(below):
            case Map1(fn=Fn1.FLOOR, x=x) if self.adds(above, below, 1.0) and self.is_up(up, x, below):
                return x
            case _:
                return None

    def is_up(self, up: Value, x: Value, below: Value) -> bool:
        """Return whether `up` is rest > 0.5 | (rest == 0.5 & floor(below / 2) != below / 2)."""
        match self.nodes.get(up):
            case Map2(fn=Fn2.OR, a=a, b=b):
                over, tie = self.nodes.get(a), self.nodes.get(b)
            case _:
                return False
        match over, tie:
            case Map2(fn=Fn2.LT, a=half, b=rest), Map2(fn=Fn2.AND, a=equal, b=odd):
                pass
            case _:
                return False
        match self.nodes.get(odd):
            case Map2(fn=Fn2.NE, a=floor, b=halved) if self.nodes.get(floor) == Map1(Fn1.FLOOR, halved):
                pass
            case _:
                return False
        return (
            self.number(half) == 0.5
            and self.nodes.get(rest) == Map2(Fn2.SUB, x, below)
            and self.nodes.get(equal) in (Map2(Fn2.EQ, rest, half), Map2(Fn2.EQ, half, rest))
            and self.nodes.get(halved) in (Map2(Fn2.MUL, below, half), Map2(Fn2.MUL, half, below))
        )

    def adds(self, value: Value, to: Value, number: float) -> bool:
        """Return whether a value is the sum of another one and a number."""
        match self.nodes.get(value):
            case Map2(fn=Fn2.ADD, a=a, b=b):
                return a == to and self.number(b) == number
            case _:
                return False

    def number(self, value: Value) -> float | None:
        """Return an f32 constant."""
        let = self.lets.get(value)
        match let:
            case Let(node=Const(bits=bits), type=TileType(dtype=DType.F32)):
                return float(const_value(bits, DType.F32))
            case _:
                return None
