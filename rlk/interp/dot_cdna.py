"""The arithmetic of AMD's matrix units, compiled: exact integers for CDNA3, rounded pairs for CDNA2."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from rlk.interp.machine_code import kept
from rlk.interp.scalar import as_i32_one, fma_one
from rlk.ir.dotmodel import FLOOR, STEP, DotModel
from rlk.ir.types import DType

Array = NDArray[Any]
F32 = NDArray[np.float32]

GROUP, FOUR = STEP[DotModel.CDNA3], STEP[DotModel.CDNA2]
SIGNIFICANT = {DType.BF16: 7, DType.F16: 10}  # fraction bits of a factor
FRACTION = 24  # bits that a product keeps below the group's exponent
ZERO = -126  # the exponent of a zero
TINY = np.float32(2.0**-126)
HUGE = 2.0**128


def cdna3(a: F32, b: F32, acc: F32, dtype: DType) -> F32:
    """Return acc[M, N] + a[M, K] b[N, K]^T as gfx942 computes it; see DotModel."""
    x, y = _grouped(a, GROUP), _grouped(b, GROUP)
    bits, floor = SIGNIFICANT[dtype], FLOOR[dtype]
    out = np.array(acc, np.float32, order="C")
    factors = (*_split(x, bits, floor), x), (*_split(y, bits, floor), y)
    _compiled(_advance_cdna3)(*factors[0], *factors[1], 2 * bits, out)
    return out


def cdna2(a: F32, b: F32, acc: F32, dtype: DType) -> F32:
    """Return acc[M, N] + a[M, K] b[N, K]^T as gfx90a computes it; see DotModel."""
    tiny = np.float32(2.0 ** FLOOR[dtype])
    x, y = (_grouped(np.where(np.abs(z) < tiny, np.float32(0), z), FOUR) for z in (a, b))
    out = np.where(np.abs(acc) < TINY, np.float32(0), acc).astype(np.float32, order="C")
    _compiled(_advance_cdna2)(x, y, out)
    return out


@cache
def _compiled(function: Callable[..., None]) -> Any:
    return kept(numba.njit(nogil=True, error_model="numpy")(function))


def _grouped(x: F32, group: int) -> F32:
    """Return x[N, K] with zeros up to a whole number of groups."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % group))).astype(np.float32, order="C")


def _split(x: F32, bits: int, floor: int) -> tuple[Array, Array]:
    """Return whole numbers m and exponents e with x = m * 2**(e - bits); of infinities and NaN, any."""
    finite = np.where(np.isfinite(x), x, np.float32(0))
    exponents = np.where(finite == 0, ZERO, np.maximum(np.frexp(finite)[1] - 1, floor))
    whole = np.ldexp(finite.astype(np.float64), bits - exponents)
    if (whole != np.trunc(whole)).any():
        raise ValueError(f"the factors have more than {bits} fraction bits")
    return whole.astype(np.int64), exponents.astype(np.int64)


@numba.njit
def _special_one(x, y, c, start):  # type: ignore[no-untyped-def]
    """Return the result of a group with an infinity or a NaN, and whether it has one."""
    plain = np.float64(c)
    up, down = False, False
    for k in range(start, start + GROUP):
        product = np.float64(x[k]) * np.float64(y[k])
        plain += product
        up |= product >= HUGE
        down |= product <= -HUGE
    if not np.isfinite(plain):
        return np.float32(plain), True
    if up or down:
        return np.float32(np.nan if up and down else np.inf if up else -np.inf), True
    return c, False


@numba.njit
def _group_one(mx, ex, my, ey, bits, c):  # type: ignore[no-untyped-def]
    """Add one group of finite products to a finite accumulator, in whole numbers."""
    largest = np.int64(2 * ZERO)
    for k in range(GROUP):
        largest = max(largest, ex[k] + ey[k])
    kept = np.int64(0)  # in units of 2**(largest - 24)
    for k in range(GROUP):
        product = mx[k] * my[k] << (FRACTION - bits)
        cut = abs(product) >> min(largest - ex[k] - ey[k], 63)
        kept += -cut if product < 0 else cut
    field = np.int64(as_i32_one(c) >> 23 & 255)
    own = max(field, 1) - 127
    whole = np.int64(as_i32_one(c) & 0x7FFFFF) | (np.int64(field > 0) << 23)
    whole = -whole if c < 0 else whole  # c is whole * 2**(own - 23)
    top = max(largest, own)
    # arithmetic shifts round down
    total = ((kept << 7) >> min(top - largest, 63)) + (((whole << 1) >> min(top - own, 63)) << 7)
    return np.float32(math.ldexp(np.float64(total), top - 31))


def _advance_cdna3(mx, ex, x, my, ey, y, bits, out):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        for n in range(y.shape[0]):
            c = out[i, n]
            for start in range(0, x.shape[1], GROUP):
                special, found = _special_one(x[i], y[n], c, start)
                part = slice(start, start + GROUP)
                c = (
                    special
                    if found
                    else _group_one(mx[i, part], ex[i, part], my[n, part], ey[n, part], bits, c)
                )
            out[i, n] = c


@numba.njit(inline="always")
def _flushed(x):  # type: ignore[no-untyped-def]
    return x * np.float32(0) if abs(x) < TINY else x


def _advance_cdna2(x, y, out):  # type: ignore[no-untyped-def]
    zero = np.float32(0)
    for i in range(x.shape[0]):
        for n in range(y.shape[0]):
            c = out[i, n]
            for k in range(0, x.shape[1], FOUR):
                p = _flushed(fma_one(x[i, k], y[n, k], zero))
                q = _flushed(fma_one(x[i, k + 1], y[n, k + 1], zero))
                r = _flushed(fma_one(x[i, k + 2], y[n, k + 2], zero))
                s = _flushed(fma_one(x[i, k + 3], y[n, k + 3], zero))
                c = _flushed(c + _flushed(_flushed(p + q) + _flushed(r + s)))
            out[i, n] = c
