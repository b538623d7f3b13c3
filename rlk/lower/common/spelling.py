"""What all lowerings spell alike: types of arguments, names of values, the head of a module."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.nodes import Fn2
from rlk.ir.types import DType

POINTERS = {
    DType.F32: "*fp32",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.I32: "*i32",
    DType.I64: "*i64",
    DType.U32: "*u32",
    DType.BOOL: "*i1",
}
SCALARS = {DType.F32: "fp32", DType.I32: "i32", DType.I64: "i64", DType.U32: "u32", DType.BOOL: "i1"}

STEMS = {
    Fn2.ADD: "total",
    Fn2.SUB: "difference",
    Fn2.MUL: "product",
    Fn2.DIV: "quotient",
    Fn2.MOD: "remainder",
    Fn2.MAX: "larger",
    Fn2.MIN: "smaller",
    Fn2.AND: "both",
    Fn2.OR: "either",
    Fn2.XOR: "xor",
    Fn2.SHL: "shifted",
    Fn2.SHR: "shifted",
    Fn2.LT: "below",
    Fn2.LE: "at_most",
    Fn2.EQ: "equal",
    Fn2.NE: "differs",
    Fn2.MULHI: "high",
}
"""How a value that the author gave no name is called after its function."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the first lines of a module say."""

    title: str
    numerics: str
    version: str
    target: str
    schedules: tuple[str, ...]
