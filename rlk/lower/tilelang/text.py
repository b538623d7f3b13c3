"""The text of one elementwise node for one element of a thread, its operands already rendered."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from rlk.ir.nodes import Fn1, Fn2
from rlk.ir.types import DType

TYPES = {
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U32: "uint32",
    DType.BOOL: "bool",
    DType.I8: "int8",
    DType.U8: "uint8",
    DType.E4M3: "uint8",
    DType.E5M2: "uint8",
}
OF_SCALARS = {"fp32": "float32", "i32": "int32", "i64": "int64", "u32": "uint32", "i1": "bool"}
Call = Callable[..., str]
"""Returns the text of a call of a prelude function, given its name and operands, and notes the function."""
SIGNS = {
    Fn2.ADD: "+",
    Fn2.SUB: "-",
    Fn2.MUL: "*",
    Fn2.AND: "&",
    Fn2.OR: "|",
    Fn2.XOR: "^",
    Fn2.SHL: "<<",
    Fn2.SHR: ">>",
    Fn2.LT: "<",
    Fn2.LE: "<=",
    Fn2.EQ: "==",
    Fn2.NE: "!=",
}


def literal(number: float | int | bool, dtype: DType) -> str:
    """Return text that TileLang reads as exactly this constant."""
    match number:
        case float():
            return f'f32(float("{number}"))' if number - number != 0 else f"f32({number!r})"
        case bool():
            return f"tl.bool({number})"
        case _ if number == -(2**31) and dtype is DType.I32:
            return 'tl.reinterpret(tl.uint32(0x80000000), "int32")'  # C++ reads -2147483648 as a long
        case _:
            return f"tl.{TYPES[dtype]}({number})"


def variable(expression: str, dtype: DType) -> str:
    """Return a value as a variable: the text of one without is copied to each of its uses."""
    return f'tl.alloc_var("{TYPES[dtype]}", {expression})'


def map1(fn: Fn1, x: str, dtype: DType, call: Call) -> str:
    """Return the text of an exact function of one operand."""
    match fn:
        case Fn1.NEG:
            return f"{x} * f32(-1.0)" if dtype.is_float else f"0 - {x}"  # 0 - x turns 0.0 into +0.0
        case Fn1.ABS:
            return call("magnitude", x) if dtype.is_float else f"tl.abs({x})"
        case Fn1.NOT:
            return f"tl.Not({x})" if dtype is DType.BOOL else f"tl.bitwise_not({x})"
        case Fn1.SQRT:
            return f"tl.sqrt({x})"
        case Fn1.FLOOR:
            return f"tl.floor({x})"
        case Fn1.ISNAN:
            return call("is_nan", x)
        case _:
            assert_never(fn)


def map2(fn: Fn2, a: str, b: str, dtype: DType, call: Call) -> str:
    """Return the text of an exact function of two operands."""
    match fn:
        case Fn2.DIV:
            return f"{a} / {b}" if dtype.is_float else f"tl.truncdiv({a}, {b})"
        case Fn2.MOD:
            return f"tl.truncmod({a}, {b})"
        case Fn2.MAX:
            return call("larger", a, b) if dtype.is_float else f"tl.max({a}, {b})"
        case Fn2.MIN:
            return call("smaller", a, b) if dtype.is_float else f"tl.min({a}, {b})"
        case Fn2.MULHI:
            return call("high_product", a, b)
        case _:
            return f"{a} {SIGNS[fn]} {b}"
