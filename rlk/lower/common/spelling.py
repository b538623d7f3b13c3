"""Text that all lowerings share: types of arguments, names of values, the head of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Decl, Fn2, Turn
from rlk.ir.types import DType
from rlk.lower.common.emitted import CallArg, From

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
    """The first lines of a module."""

    title: str
    numerics: str
    version: str
    target: str
    schedules: tuple[str, ...]


def argument_type(argument: CallArg, decls: Mapping[str, Decl]) -> str:
    """Return the type of an argument, as builds spell it."""
    match argument.kind:
        case From.TENSOR:
            return POINTERS[decls[argument.source].type.dtype]
        case From.SCALAR:
            return SCALARS[decls[argument.source].type.dtype]
        case From.ERRORS | From.WORK_COUNTER:
            return "*i32"
        case From.EXTENT | From.INNER_EXTENT | From.LENGTH | From.LOOP_INDEX:
            return "i32"
        case From.STRIDE | From.OUTER_STRIDE | From.INNER_STRIDE:
            return "i64"


def row_number(axes: Iterable[Axis], own: Callable[[Axis], str]) -> str | None:
    """Return the text of a row number for an error word, counted from 1; None without a row axis.

    own: the text of the index of an axis.
    """
    for axis in axes:
        match axis.part:
            case Part.ALL:
                return f"{own(axis)} + 1"
            case Part.WITHIN if axis.piece is not None:
                return f"{Turn(axis.pieces).index} * {axis.piece} + {own(axis)} + 1"
    return None
