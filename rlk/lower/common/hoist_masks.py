"""Mask hoisting: fold a row's condition into the end of its columns, one comparison an element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.ir.nodes import Const, Extent, Fn2, Kernel, Let, Map2, Node, Pos, Select, Value, const_value
from rlk.ir.types import DType, TileType, Type
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of

NOWHERE = 0  # the end of an empty range of indices, which count from 0 up


def hoist_masks(kernel: Kernel, axis: Axis) -> Kernel:
    """Return the kernel with `i < end and counts` along an axis as `i < (end if counts else 0)`.

    The select runs once per row, not once per element.
    """
    nodes = {let.value: let.node for let in walk(kernel.body)}
    return rewrite(kernel, _HoistMasks(axis, nodes, types_of(kernel)))


def never_negative(value: Value, nodes: Mapping[Value, Node]) -> bool:
    """Return whether an i32 is provably not negative: a position, or made of such numbers without a minus."""
    match nodes.get(value):
        case Pos() | Extent():
            return True
        case Const(bits=bits):
            return const_value(bits, DType.I32) >= 0
        case Map2(fn=Fn2.ADD | Fn2.MUL | Fn2.MIN | Fn2.MAX | Fn2.DIV | Fn2.MOD, a=a, b=b):
            return never_negative(a, nodes) and never_negative(b, nodes)
        case Select(a=a, b=b):
            return never_negative(a, nodes) and never_negative(b, nodes)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _HoistMasks:
    axis: Axis
    nodes: Mapping[Value, Node]
    types: Mapping[Value, Type]

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Map2(fn=Fn2.AND, a=a, b=b):
                for one, counts in ((a, b), (b, a)):
                    found = self.nodes.get(one)
                    if isinstance(found, Map2) and self.fits(found, counts):
                        builder = replay.builder
                        nowhere = builder.const(NOWHERE, DType.I32)
                        end = builder.select(replay[counts], replay[found.b], nowhere, "end")
                        made = builder.let(Map2(Fn2.LT, replay[found.a], end), let.name)
                        replay.renamed[let.value] = made
                        return True
                return False
            case _:
                return False

    def fits(self, found: Map2, counts: Value) -> bool:
        """Return whether indices from 0 up are compared with an end, and the other condition is per row."""
        type = self.types[found.a]
        return (
            found.fn is Fn2.LT
            and isinstance(type, TileType)
            and type.dtype is DType.I32
            and self.along(found.a)
            and not self.along(found.b)
            and not self.along(counts)
            and never_negative(found.a, self.nodes)
            and never_negative(found.b, self.nodes)
        )

    def along(self, value: Value) -> bool:
        type = self.types[value]
        return isinstance(type, TileType) and self.axis in type.axes
