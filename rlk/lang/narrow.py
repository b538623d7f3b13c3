"""Arithmetic of integers of 8 bits: in i32, and cast back modulo 2**8."""

from __future__ import annotations

from rlk.ir.build import Builder
from rlk.ir.nodes import Cast, Const, Fn1, Fn2, Value
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
    """Return an integer of 8 bits as an i32; a number as it was before its cast."""
    node = b.node(x)
    if isinstance(node, Cast) and isinstance(b.node(node.x), Const):
        return node.x
    return b.let(Cast(x, DType.I32))
