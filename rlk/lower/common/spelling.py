"""How builds spell the types of arguments, whatever lowering a kernel is of, and what a module says first."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Header:
    """What the first lines of a module say."""

    title: str
    numerics: str
    version: str
    target: str
    schedules: tuple[str, ...]
