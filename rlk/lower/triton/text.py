"""The text of one elementwise node, its operands already rendered."""

from __future__ import annotations

from typing import assert_never

from rlk.ir.nodes import Fn1, Fn2
from rlk.ir.types import DType

TYPES = {
    DType.F32: "tl.float32",
    DType.F16: "tl.float16",
    DType.BF16: "tl.bfloat16",
    DType.I32: "tl.int32",
    DType.I64: "tl.int64",
    DType.U32: "tl.uint32",
    DType.BOOL: "tl.int1",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.E4M3: "tl.uint8",
    DType.E5M2: "tl.uint8",
}
FLOAT8 = {DType.E4M3: "tl.float8e4nv", DType.E5M2: "tl.float8e5"}
"""What f32 is converted to where memory has the bytes as integers."""
COMMUTE = frozenset({Fn2.ADD, Fn2.MUL, Fn2.MAX, Fn2.MIN, Fn2.AND, Fn2.OR, Fn2.XOR, Fn2.EQ, Fn2.NE})


def map1(fn: Fn1, x: str, dtype: DType) -> str:
    """Return the text of an exact function of one operand."""
    match fn:
        case Fn1.NEG:
            # Triton's -x is 0 - x, which turns 0.0 into +0.0
            return f"{x} * -1.0" if dtype.is_float else f"0 - {x}"
        case Fn1.ABS:
            return f"tl.abs({x})"
        case Fn1.NOT:
            return f"{x} ^ 0xFFFFFFFF" if dtype is DType.U32 else f"~{x}"
        case Fn1.SQRT:
            return f"tl.sqrt_rn({x})"
        case Fn1.FLOOR:
            return f"tl.floor({x})"
        case Fn1.ISNAN:
            return f"{x} != {x}"
        case _:
            assert_never(fn)


def map2(fn: Fn2, a: str, b: str, dtype: DType) -> str:
    """Return the text of an exact function of two operands."""
    match fn:
        case Fn2.ADD:
            return f"{a} + {b}"
        case Fn2.SUB:
            return f"{a} - {b}"
        case Fn2.MUL:
            return f"{a} * {b}"
        case Fn2.DIV:
            return f"tl.div_rn({a}, {b})" if dtype.is_float else f"{a} // {b}"
        case Fn2.MOD:
            return f"{a} % {b}"
        case Fn2.MAX:
            return f"tl.maximum({a}, {b})"
        case Fn2.MIN:
            return f"tl.minimum({a}, {b})"
        case Fn2.AND:
            return f"{a} & {b}"
        case Fn2.OR:
            return f"{a} | {b}"
        case Fn2.XOR:
            return f"{a} ^ {b}"
        case Fn2.SHL:
            return f"{a} << {b}"
        case Fn2.SHR:
            return f"{a} >> {b}"
        case Fn2.LT:
            return f"{a} < {b}"
        case Fn2.LE:
            return f"{a} <= {b}"
        case Fn2.EQ:
            return f"{a} == {b}"
        case Fn2.NE:
            return f"{a} != {b}"
        case Fn2.MULHI:
            return f"tl.umulhi({a}, {b})"
        case _:
            assert_never(fn)


def swapped(fn: Fn2, a: str, b: str, dtype: DType) -> str | None:
    """Return the text with its operands swapped, for commutative functions."""
    if fn in COMMUTE:
        return map2(fn, b, a, dtype)
    match fn:
        case Fn2.LT:
            return f"{b} > {a}"
        case Fn2.LE:
            return f"{b} >= {a}"
        case _:
            return None
