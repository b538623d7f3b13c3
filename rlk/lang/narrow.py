"""Arithmetic of integers of 8 bits: in i32, and cast back modulo 2**8."""

from __future__ import annotations

from rlk.ir.build import Builder
from rlk.ir.nodes import Cast, Const, Fn1, Fn2, Value, const_bits, const_value
from rlk.ir.types import DType


def map1(b: Builder, fn: Fn1, x: Value) -> Value:
    """Append an exact function of one operand of any dtype."""
    dtype = b.tile(x).dtype
    return b.let(Cast(b.map1(fn, _widened(b, x)), dtype)) if dtype.is_int8 else b.map1(fn, x)


def map2(b: Builder, fn: Fn2, x: Value, y: Value) -> Value:
    """Append an exact function of two operands of any dtype; comparisons are boolean."""
    dtype = b.tile(x).dtype
    if not dtype.is_int8 or b.tile(y).dtype is not dtype or fn is Fn2.MULHI:
        return b.map2(fn, x, y)
    made = b.map2(fn, _widened(b, x), _widened(b, y))
    return made if fn.compares else b.let(Cast(made, dtype))


def _widened(b: Builder, x: Value) -> Value:
    """Return an integer of 8 bits as an i32; a number that the dtype holds as it was before its cast."""
    node = b.node(x)
    if isinstance(node, Cast) and _is_kept(b, node):
        return node.x
    return b.let(Cast(x, DType.I32))


def _is_kept(b: Builder, cast: Cast) -> bool:
    """Return whether a cast is of an i32 number that it leaves as it is."""
    number = b.node(cast.x)
    if not isinstance(number, Const) or b.tile(cast.x).dtype is not DType.I32:
        return False
    return holds(cast.dtype, int(const_value(number.bits, DType.I32)))


def holds(dtype: DType, number: int) -> bool:
    """Return whether a dtype has an integer; floats round it."""
    match dtype:
        case DType.I8:
            return -128 <= number <= 127
        case DType.U8:
            return 0 <= number <= 255
        case _:
            return not dtype.is_int or const_value(const_bits(number, dtype), dtype) == number
