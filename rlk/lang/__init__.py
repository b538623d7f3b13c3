"""The language in which operators are written: `@op`, `L.*`, axes, tensors and trees."""

from __future__ import annotations

from rlk.ir.dims import Axis, Ragged
from rlk.ir.tree import ASCENDING, Tree
from rlk.ir.types import DType, bf16, boolean, e4m3, e5m2, f16, f32, i8, i32, i64, u8, u32
from rlk.lang.op import Op, Slopes, Variant, generated, op
from rlk.lang.surface import L, Outputs
from rlk.lang.trace import TensorArg, Tile
from rlk.lang.types import DTypeVar, Needs, Scalar, Static, Tensor

__all__ = [
    "ASCENDING",
    "Axis",
    "DType",
    "DTypeVar",
    "L",
    "Needs",
    "Op",
    "Outputs",
    "Ragged",
    "Scalar",
    "Slopes",
    "Static",
    "Tensor",
    "TensorArg",
    "Tile",
    "Tree",
    "Variant",
    "bf16",
    "boolean",
    "e4m3",
    "e5m2",
    "f16",
    "f32",
    "generated",
    "i8",
    "i32",
    "i64",
    "op",
    "u8",
    "u32",
]
