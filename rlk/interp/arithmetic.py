"""Elementwise nodes on arrays: in f32 bit for bit, or everything in f64."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from rlk.errors import Code, UnsupportedError
from rlk.interp import floats
from rlk.interp.dot import dot, integer
from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Combine, Fn1, Fn2, MathFn, MathModel, const_value
from rlk.ir.types import DType

Array = NDArray[Any]
INTEGERS: dict[DType, type[np.generic]] = {
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.U32: np.uint32,
    DType.BOOL: np.bool_,
    DType.I8: np.int8,
    DType.U8: np.uint8,
}


class Arithmetic(Protocol):
    """Representation and arithmetic of floats. Integers and truth values are the same for all."""

    @property
    def float(self) -> type[np.floating[Any]]: ...

    def const(self, bits: int, dtype: DType) -> Array: ...
    def cast(self, x: Array, dtype: DType) -> Array: ...
    def bits(self, x: Array, source: DType, dtype: DType) -> Array: ...
    def fma(self, a: Array, b: Array, c: Array) -> Array: ...
    def math(self, fn: MathFn, x: Array, model: MathModel) -> Array: ...
    def dot(self, a: Array, b: Array, model: DotModel, dtype: DType, onto: Array | None) -> Array: ...


class Exact:
    """Every float is an f32 and every operation rounds once; narrower floats are f32 that fit."""

    float = np.float32

    def __init__(self, softmax: MathModel = MathModel.PORTABLE, dots: DotModel = DotModel.CHAIN16) -> None:
        self.softmax, self.dots = softmax, dots

    def const(self, bits: int, dtype: DType) -> Array:
        if dtype is DType.F32:
            return np.array(bits, np.uint32).view(np.float32)
        return np.array(const_value(bits, dtype), INTEGERS[dtype])

    def cast(self, x: Array, dtype: DType) -> Array:
        match dtype:
            case DType.F32:
                return x.astype(np.float32, copy=False)
            case DType.BF16:
                return floats.to_bf16(x.astype(np.float32, copy=False))
            case DType.F16:
                return floats.to_f16(x.astype(np.float32, copy=False))
            case DType.E4M3 | DType.E5M2:
                code = floats.float8_bits(x.astype(np.float32, copy=False), dtype.value)
                return floats.float8_from_bits(code, dtype.value)
            case _:
                return to_integer(x, dtype)

    def bits(self, x: Array, source: DType, dtype: DType) -> Array:
        return decode(encode(x, source).view(storage(dtype)), dtype)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        y: Array = floats.fma(a, b, c)
        assert y.dtype == np.float32
        return y

    def math(self, fn: MathFn, x: Array, model: MathModel) -> Array:
        match self.softmax if model is MathModel.SOFTMAX else model:
            case MathModel.PORTABLE:
                return floats.portable(fn.value)(x)
            case MathModel.SM90 if fn is MathFn.EXP2:
                return exp2_sm90(x)
            case other:
                raise UnsupportedError(
                    Code.UNSUPPORTED,
                    what=f"{fn.value} in the model {other.value}",
                    backend="the oracle",
                    target="every target",
                    alternatives="portable, or exp2 in sm90",
                )

    def dot(self, a: Array, b: Array, model: DotModel, dtype: DType, onto: Array | None) -> Array:
        return dot(a, b, self.dots if model is DotModel.CHAIN16 else model, dtype, onto)


def _k3(x: Array) -> Array:
    small = np.where(np.abs(x) < 0.1, x, 0.0)
    total, term = np.zeros_like(x), small * small / 2
    for n in range(3, 14):
        total, term = total + term, term * small / n
    return np.where(np.abs(x) < 0.1, total, np.expm1(x) - x)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


WIDE_MATH: dict[MathFn, Callable[[Array], Array]] = {
    MathFn.EXP2: np.exp2,
    MathFn.EXP: np.exp,
    MathFn.LOG2: np.log2,
    MathFn.LOG: np.log,
    MathFn.EXPM1: np.expm1,
    MathFn.LOG1P: np.log1p,
    MathFn.TANH: np.tanh,
    MathFn.ERF: np.vectorize(math.erf, otypes=[np.float64]),
    MathFn.SIGMOID: _sigmoid,
    MathFn.RSQRT: lambda x: 1.0 / np.sqrt(x),
    MathFn.SIN: np.sin,
    MathFn.COS: np.cos,
    MathFn.K3: _k3,
}

# A constant that is the f32 of one of these stands for the number itself.
IRRATIONAL = {
    struct.unpack("<I", struct.pack("<f", sign * value))[0]: sign * value
    for value in (
        1 / math.log(2),
        math.log(2),
        math.pi,
        math.pi / 2,
        2 * math.pi,
        math.sqrt(2 / math.pi),
        math.sqrt(8 / math.pi),
        math.sqrt(0.5 / math.pi),
        math.sqrt(0.5),
    )
    for sign in (1, -1)
}


class Wide:
    """Every float is an f64, casts between floats change nothing: for gradients and accuracy."""

    float = np.float64

    def const(self, bits: int, dtype: DType) -> Array:
        value = const_value(bits, dtype)
        if dtype is DType.F32:
            return np.array(IRRATIONAL.get(bits, value), np.float64)
        return np.array(value, INTEGERS[dtype])

    def cast(self, x: Array, dtype: DType) -> Array:
        return x.astype(np.float64, copy=False) if dtype.is_float else to_integer(x, dtype)

    def bits(self, x: Array, source: DType, dtype: DType) -> Array:
        narrow = Exact().bits(x.astype(np.float32) if source.is_float else x, source, dtype)
        return self.cast(narrow, dtype)

    def dot(self, a: Array, b: Array, model: DotModel, dtype: DType, onto: Array | None) -> Array:
        if model is DotModel.INTEGER:
            return integer(a, b, onto)
        return np.asarray(a @ b.T if onto is None else onto + a @ b.T)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        return a * b + c

    def math(self, fn: MathFn, x: Array, model: MathModel) -> Array:
        return WIDE_MATH[fn](x)


def map1(fn: Fn1, x: Array) -> Array:
    """Apply an exact function of one operand."""
    match fn:
        case Fn1.NEG:
            return np.negative(x)
        case Fn1.ABS:
            return np.abs(x)
        case Fn1.NOT:
            return np.invert(x)
        case Fn1.SQRT:
            return np.sqrt(x)
        case Fn1.FLOOR:
            return np.floor(x)
        case Fn1.ISNAN:
            return np.isnan(x)
        case _:
            assert_never(fn)


FUNCTIONS2: dict[Fn2, Callable[[Array, Array], Array]] = {
    Fn2.ADD: np.add,
    Fn2.SUB: np.subtract,
    Fn2.MUL: np.multiply,
    Fn2.MOD: np.remainder,
    Fn2.AND: np.bitwise_and,
    Fn2.OR: np.bitwise_or,
    Fn2.XOR: np.bitwise_xor,
    Fn2.SHL: np.left_shift,
    Fn2.SHR: np.right_shift,  # arithmetic on signed dtypes, logical on unsigned ones
    Fn2.LT: np.less,
    Fn2.LE: np.less_equal,
    Fn2.EQ: np.equal,
    Fn2.NE: np.not_equal,
}


def map2(fn: Fn2, a: Array, b: Array) -> Array:
    """Apply an exact function of two operands of one dtype."""
    if a.dtype != b.dtype:
        raise AssertionError(f"{fn.value} of {a.dtype} and {b.dtype}")
    if (plain := FUNCTIONS2.get(fn)) is not None:
        return plain(a, b)
    match fn:
        case Fn2.DIV:
            return np.divide(a, b) if a.dtype.kind == "f" else np.floor_divide(a, b)
        case Fn2.MAX:
            return maximum(a, b)
        case Fn2.MIN:
            return minimum(a, b)
        case Fn2.MULHI:
            return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
        case _:
            raise AssertionError(f"{fn.value} has no function")


def maximum(a: Array, b: Array) -> Array:
    """maximumNumber of floats, the larger of integers."""
    y: Array = floats.maximum(a, b) if a.dtype.kind == "f" else np.maximum(a, b)
    return y


def minimum(a: Array, b: Array) -> Array:
    """minimumNumber of floats, the smaller of integers."""
    y: Array = floats.minimum(a, b) if a.dtype.kind == "f" else np.minimum(a, b)
    return y


def identity(fn: Combine, dtype: np.dtype[Any]) -> float | int:
    """Return the identity of a reduction in a dtype."""
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    match fn:
        case Combine.ADD:
            return 0 if limits else -0.0
        case Combine.MAX:
            return limits.min if limits else -math.inf
        case Combine.MIN:
            return limits.max if limits else math.inf
        case Combine.OR:
            return 0


def to_integer(x: Array, dtype: DType) -> Array:
    """Convert to an integer or truth value: floats toward zero and saturating, integers modulo 2**n."""
    if dtype is DType.BOOL:
        return x != 0
    if x.dtype.kind == "f":
        return floats.to_int(x, INTEGERS[dtype])  # type: ignore[arg-type]
    return x.astype(INTEGERS[dtype], copy=False)


# --- storage ---


def storage(dtype: DType) -> type[np.generic]:
    """Return the NumPy type that stores a tensor of a dtype: patterns of bf16 are u16, of 8-bit floats u8."""
    match dtype:
        case DType.F32:
            return np.float32
        case DType.F16:
            return np.float16
        case DType.BF16:
            return np.uint16
        case DType.E4M3 | DType.E5M2:
            return np.uint8
        case _:
            return INTEGERS[dtype]


def decode(x: Array, dtype: DType) -> Array:
    """Convert stored values to the oracle's representation; f32 and f64 stay as they are."""
    match dtype:
        case DType.BF16 if x.dtype.kind in "ui":
            return floats.bf16_from_bits(x)
        case DType.F16 if x.dtype.itemsize == 2:
            return floats.f16_from_bits(x)
        case DType.E4M3 | DType.E5M2 if x.dtype.kind in "ui":
            return floats.float8_from_bits(x, dtype.value)
        case _:
            return x


def encode(x: Array, dtype: DType) -> Array:
    """Convert values of the oracle to their stored form."""
    match dtype:
        case DType.BF16:
            bits: Array = floats.bf16_bits(x)
            return bits
        case DType.F16:
            return floats.f16_bits(x).view(np.float16)
        case DType.E4M3:
            return floats.float8_bits(x, dtype.value)
        case DType.E5M2:  # a cast makes no infinity, but memory may have one
            infinity = np.where(x > 0, np.uint8(0x7C), np.uint8(0xFC))
            return np.where(np.isinf(x), infinity, floats.float8_bits(x, dtype.value))
        case _:
            return x
