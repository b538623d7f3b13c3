"""The text of one elementwise node for one element of a thread, its operands already rendered."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import assert_never

from rlk.ir.nodes import Fn1, Fn2
from rlk.ir.types import DType

TYPES = {
    DType.F32: "Float32",
    DType.F16: "Float16",
    DType.BF16: "BFloat16",
    DType.I32: "Int32",
    DType.I64: "Int64",
    DType.U32: "Uint32",
    DType.BOOL: "Boolean",
    DType.I8: "cutlass.Int8",  # the others are imported by name
    DType.U8: "Uint8",
    DType.E4M3: "Uint8",
    DType.E5M2: "Uint8",
}
OF_SCALARS = {"fp32": "Float32", "i32": "Int32", "i64": "Int64", "u32": "Uint32", "i1": "Boolean"}
_SIGNS = {
    Fn2.ADD: "+",
    Fn2.SUB: "-",
    Fn2.AND: "&",
    Fn2.OR: "|",
    Fn2.XOR: "^",
    Fn2.LT: "<",
    Fn2.LE: "<=",
    Fn2.EQ: "==",
    Fn2.NE: "!=",
}
_INTEGER_SIGNS = {Fn2.MUL: "*", Fn2.DIV: "//", Fn2.MOD: "%", Fn2.SHL: "<<", Fn2.SHR: ">>"}
Call = Callable[..., str]
"""Returns the text of a call of a prelude function, given its name and operands, and notes the function."""


def is_negative_zero(number: float | int | bool) -> bool:
    """Return whether an f32 constant is -0.0."""
    single = struct.unpack("<f", struct.pack("<f", number))[0] if isinstance(number, float) else 1.0
    return single == 0 and math.copysign(1, single) < 0


def literal(number: float | int | bool, dtype: DType) -> str:
    """Return text that the DSL reads as exactly this constant; -0.0 is the prelude's `negative_zero`."""
    if not isinstance(number, float):
        return f"{TYPES[dtype]}({number})"
    if math.isnan(number):
        return 'Float32(float("nan"))'
    if math.isinf(number):
        return f'Float32(float("{"-" if number < 0 else ""}inf"))'
    assert not is_negative_zero(number)
    single = struct.unpack("<f", struct.pack("<f", number))[0]
    return f"Float32({single!r})"


def map1(fn: Fn1, x: str, dtype: DType, call: Call) -> str | None:
    """Return the text of an exact function of one operand; None: this lowering does not have it."""
    match fn:
        case Fn1.NEG:
            return f"-{x}"
        case Fn1.NOT if dtype is DType.BOOL:
            return call("select", x, "Boolean(False)", "Boolean(True)")
        case Fn1.NOT if dtype in (DType.I32, DType.I64):
            return f"{TYPES[dtype]}({x}) ^ {TYPES[dtype]}(-1)"
        case Fn1.NOT if dtype is DType.U32:
            return f"Uint32({x}) ^ Uint32(0xFFFFFFFF)"
        case Fn1.ISNAN:
            return f"{x} != {x}"
        case Fn1.ABS if dtype is DType.F32:
            return call("magnitude", x)
        case Fn1.ABS if dtype is DType.I32:
            return f"cutlass.max({x}, -{x})"
        case Fn1.SQRT:
            return call("square_root", x)
        case Fn1.FLOOR:
            return call("rounded_down", x)
        case Fn1.ABS | Fn1.NOT:
            return None
        case _:
            assert_never(fn)


def map2(fn: Fn2, a: str, b: str, dtype: DType, call: Call) -> str | None:
    """Return the text of an exact function of two operands; None: this lowering does not have it.

    A product of floats is a call with its rounding said: `a * b + c` would become one fused operation.
    """
    if fn in _SIGNS:
        return f"{a} {_SIGNS[fn]} {b}"
    if dtype.is_float:
        names = {Fn2.MUL: "mul", Fn2.DIV: "div", Fn2.MAX: "fmax", Fn2.MIN: "fmin"}
        return call(names[fn], a, b) if fn in names else None
    if fn is Fn2.MULHI:
        return call("mulhi", a, b)
    if fn in (Fn2.MIN, Fn2.MAX):
        return f"cutlass.{fn.value}({a}, {b})"
    return f"{a} {_INTEGER_SIGNS[fn]} {b}" if fn in _INTEGER_SIGNS else None


def numbered(name: str, index: int) -> str:
    """Return the name of one of several, the first of which needs no number."""
    return name if index == 0 else f"{name}_{index + 1}"
