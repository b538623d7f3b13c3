"""Constant evaluation of the integers of a kernel that depend on static extents only, for planning."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rlk.ir.dims import Axis
from rlk.ir.nodes import Const, Fn2, Let, Map2, Pos, Value, const_value
from rlk.ir.types import DType, TileType

Integers = NDArray[np.int64]


class Static:
    """The known values of a kernel, each as an array over its axes."""

    def __init__(self, lengths: Mapping[Axis, int]) -> None:
        self.axes = tuple(lengths)
        self.lengths = lengths
        self.known: dict[Value, Integers] = {}

    def __getitem__(self, value: Value) -> Integers | None:
        return self.known.get(value)

    def note(self, let: Let) -> None:
        """Evaluate a let if its operands are known."""
        if not isinstance(let.type, TileType) or let.type.dtype.is_float:
            return
        match let.node:
            case Const(bits=bits):
                self.known[let.value] = np.array(const_value(bits, let.type.dtype), np.int64)
            case Pos(axis=axis) if axis in self.lengths:
                shape = [self.lengths[axis] if a == axis else 1 for a in self.axes]
                self.known[let.value] = np.arange(self.lengths[axis]).reshape(shape)
            case Map2(fn=fn, a=a, b=b) if (
                a in self.known and b in self.known and let.type.dtype is not DType.U32
            ):
                found = _apply(fn, self.known[a], self.known[b])
                if found is not None:
                    self.known[let.value] = found
            case _:
                pass

    def smaller(self, a: Value, b: Value) -> Value | None:
        """Return the one of two values that is nowhere above the other; None if neither is known to be."""
        x, y = self.known.get(a), self.known.get(b)
        if x is None or y is None:
            return None
        return a if bool((x <= y).all()) else b if bool((y <= x).all()) else None


def _apply(fn: Fn2, a: Integers, b: Integers) -> Integers | None:
    match fn:
        case Fn2.ADD:
            return a + b
        case Fn2.SUB:
            return a - b
        case Fn2.MUL:
            return a * b
        case Fn2.MIN:
            return np.minimum(a, b)
        case Fn2.MAX:
            return np.maximum(a, b)
        case Fn2.DIV if bool((a >= 0).all() and (b > 0).all()):
            return a // b
        case Fn2.MOD if bool((a >= 0).all() and (b > 0).all()):
            return a % b
        case _:
            return None
