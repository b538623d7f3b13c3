"""The arithmetic of the oracle: f32 operations that round once; narrower floats are f32 numbers that fit.

A bf16, f16, e4m3 or e5m2 value is represented by the f32 of the same number; `*_bits` and `*_from_bits`
convert it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp.portable import portable as portable
from rlk.interp.scalar import as_i32_one, elementwise
from rlk.interp.scalar import fma as fma
from rlk.interp.scalar import maximum as maximum
from rlk.interp.scalar import minimum as minimum
from rlk.ir.tree import Order, bind

Array = NDArray[Any]
Binary = Callable[[Array, Array], Array]


# --- bits ---


def as_i32(x: Array) -> Array:
    """Reinterpret f32 as i32."""
    return np.asarray(x, np.float32).view(np.int32)


def as_f32(bits: Array) -> Array:
    """Reinterpret i32 or u32 as f32."""
    return np.asarray(bits).view(np.float32)


# --- 16-bit floats ---


def _bf16_bits(x):  # type: ignore[no-untyped-def]
    """Return the u16 pattern of an f32 rounded to bf16, to nearest even; every NaN is 0x7fff."""
    bits = np.uint32(as_i32_one(x))
    kept = np.uint32(bits >> np.uint32(16))
    rounded = np.uint32(bits + np.uint32(0x7FFF) + (kept & np.uint32(1)))
    is_nan = np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(0x7FFF) if is_nan else np.uint16(rounded >> np.uint32(16))


bf16_bits = elementwise(_bf16_bits, {"float32": "uint16"})


def bf16_from_bits(bits: Array) -> Array:
    """Return the f32 that a u16 (or i16) pattern of bf16 stands for."""
    return (np.asarray(bits).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(x: Array) -> Array:
    """Round f32 to the nearest bf16 number, ties to even."""
    return bf16_from_bits(bf16_bits(np.asarray(x, np.float32)))


def f16_bits(x: Array) -> Array:
    """Return the u16 pattern of an f32 rounded to f16, to nearest even; every NaN is 0x7fff."""
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16))


def f16_from_bits(bits: Array) -> Array:
    """Return the f32 that a u16 (or i16) pattern of f16 stands for."""
    return np.asarray(bits).view(np.float16).astype(np.float32)


def to_f16(x: Array) -> Array:
    """Round f32 to the nearest f16 number, ties to even; beyond 65520 to infinity."""
    return f16_from_bits(f16_bits(x))


def float8_bits(x: Array, name: str) -> Array:
    """Return the u8 pattern of an f32 rounded to "e4m3" or "e5m2", to nearest even, saturating."""
    with np.errstate(invalid="ignore"):
        return portable(f"to_{name}")(np.asarray(x, np.float32)).astype(np.uint8)


def float8_from_bits(bits: Array, name: str) -> Array:
    """Return the f32 that a u8 (or i8) pattern of "e4m3" or "e5m2" stands for."""
    return portable(f"from_{name}")(np.asarray(bits).view(np.uint8).astype(np.int32))


def to_f32(x: Array) -> Array:
    """Round f64 or integers to f32, to nearest even."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(x).astype(np.float32)


def to_int(x: Array, dtype: type[np.signedinteger[Any]] | type[np.unsignedinteger[Any]]) -> Array:
    """Truncate floats toward zero, saturating at an integer dtype's limits; NaN gives 0, as cvt.rzi does."""
    limits = np.iinfo(dtype)
    wide = np.trunc(np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    # 2**63 - 1 is no f64: it rounds to 2**63, which is already too big
    low, high = wide <= limits.min, wide >= float(limits.max)
    inside = np.where(low | high, 0.0, wide).astype(dtype)
    return np.where(low, dtype(limits.min), np.where(high, dtype(limits.max), inside))


# --- ordered folds ---


def tree_fold(fn: Binary, x: Array, axis: int, order: Order | tuple[int, ...]) -> Array:
    """Fold an axis of 2**n elements: index bit order[0] is paired away first, with bit = 0 on fn's left."""
    x = np.moveaxis(np.asarray(x), axis, 0)
    width, rest = len(x), x.shape[1:]
    steps = order if isinstance(order, tuple) else bind(order, width).order
    if 1 << len(steps) != width or sorted(steps) != list(range(len(steps))):
        raise ValueError(f"{steps} does not order {width} terms")
    if not x.size:
        return x[0]
    bits = list(range(len(steps)))  # ascending: the last is the outermost
    for bit in steps:
        inner = 1 << bits.index(bit)
        pairs = x.reshape(-1, 2, inner, *rest)
        x = fn(pairs[:, 0], pairs[:, 1]).reshape(-1, *rest)
        bits.remove(bit)
    return x[0]


def tree_sum(x: Array, axis: int, order: Order | tuple[int, ...]) -> Array:
    """Sum an axis of 2**n elements in the order of a tree; the dtype is kept."""
    return tree_fold(np.add, x, axis, order)


def pad(x: Array, axis: int, width: int, identity: float) -> Array:
    """Extend an axis to a width with an identity: -0.0 for a sum, -inf for a maximum."""
    missing = [(0, 0)] * x.ndim
    missing[axis] = (0, width - x.shape[axis])
    return np.pad(x, missing, constant_values=x.dtype.type(identity))
