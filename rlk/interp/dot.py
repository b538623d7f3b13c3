"""The arithmetic of contractions on arrays: the exact bits of each dot model, compiled, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, assert_never

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from rlk.interp.dot_cdna import cdna2, cdna3
from rlk.interp.floats import bf16_from_bits, tree_sum
from rlk.interp.machine_code import kept
from rlk.interp.scalar import as_f32_one, as_i32_one, fma_one
from rlk.ir.dotmodel import FACTORS, FLOOR, FRACTION, GROUP, LEAST, LEAVES, DotModel
from rlk.ir.tree import Tree
from rlk.ir.types import DType

Array = NDArray[Any]
F32 = NDArray[np.float32]

WIDTH = 64  # columns whose accumulators advance together: the constant length of every vector loop
COLUMNS = 4096  # columns of b that are copied at a time, to bound memory
STEPS = 32  # groups of k whose factors stay in the L2 cache for all rows

ABSENT = -1000  # the exponent of a zero: below every real one
BITS = {DType.BF16: 8, DType.F16: 11}  # significant bits of a factor
LARGEST = {DType.BF16: 127, DType.F16: 15}  # exponents of factors
# Products of the fast path lie in [2**LOWEST, 2**(HIGHEST + 2)): they are f32 numbers, and multiples of
# 2**(LOWEST - FRACTION), where they are cut, are zero or normal. All are above the floors of groups.
LOWEST, HIGHEST = -100, 80
ACC_FLOOR = FLOOR[DType.F32]
SPECIAL = -3000  # the lowest exponent of a group with an infinity or a NaN: never in the fast range


def dot(a: Array, b: Array, model: DotModel, dtype: DType, acc: Array | None = None) -> F32:
    """Return acc[M, N] + a[M, K] b[N, K]^T as a model computes it, f32[M, N]; acc is +0.0 if not given.

    dtype: the factors' type, which all models but fma depend on. Operands are f32 arrays of numbers that fit
    it (as everywhere in the oracle), f16 arrays, or u16 patterns of bf16. Raises ValueError for other
    operands and for shapes that do not fit. The call holds no lock and starts no thread: callers split the
    rows as they like, the bits do not change.
    """
    if dtype not in FACTORS[model]:
        raise ValueError(f"{model.value} is no rule for factors of {dtype}")
    x, y = _operand(a), _operand(b)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"a[M, K] and b[N, K] expected, got {list(x.shape)} and {list(y.shape)}")
    shape = (len(x), len(y))
    start = np.zeros(shape, np.float32) if acc is None else np.asarray(acc)
    if start.shape != shape or start.dtype != np.float32:
        raise ValueError(f"acc is {start.dtype}{list(start.shape)}, f32{list(shape)} expected")
    match model:
        case DotModel.CHAIN16:
            return _wide_enough(x, y, start, partial(_chain16, dtype=dtype))
        case DotModel.FMA:
            return _wide_enough(x, y, start, _fma_chain)
        case DotModel.CDNA3:
            return _wide_enough(x, y, start, partial(cdna3, dtype=dtype))
        case DotModel.CDNA2:
            return _wide_enough(x, y, start, partial(cdna2, dtype=dtype))
        case _:
            assert_never(model)


def leaf8(a: Array, b: Array, dtype: DType) -> F32:
    """Return a[M, K] b[N, K]^T with K in 8 leaves of ceil(K / 8), each a chain16, added by a pairwise tree.

    A leaf beyond the end of K is +0.0, the accumulator of no products.
    """
    x, y = _operand(a), _operand(b)
    size = max(1, -(-x.shape[1] // LEAVES))
    parts = [slice(i * size, (i + 1) * size) for i in range(LEAVES)]
    leaves = np.stack([dot(x[:, p], y[:, p], DotModel.CHAIN16, dtype) for p in parts])
    with np.errstate(all="ignore"):
        total: F32 = tree_sum(leaves, 0, Tree.pairwise)
    return total


def _operand(x: Array) -> F32:
    x = np.asarray(x)
    if x.dtype in (np.uint16, np.int16):
        return bf16_from_bits(x)
    if x.dtype not in (np.float16, np.float32):
        raise ValueError(f"an operand of a dot is f32, f16 or u16 patterns of bf16, not {x.dtype}")
    return x.astype(np.float32, copy=False)


def _wide_enough(a: F32, b: F32, acc: F32, advance: Callable[[F32, F32, F32], F32]) -> F32:
    """Swap a and b if b has few rows, so that the vector axis is the longer one: products commute."""
    if len(b) < WIDTH // 2 < len(a):
        return np.ascontiguousarray(advance(b, a, acc.T).T)
    return advance(a, b, acc)


# --- the f32 chain -----------------------------------------------------------------------------------


def _fma_chain(a: F32, b: F32, acc: F32) -> F32:
    out = np.array(acc, np.float32, order="C")
    _compiled(_advance_fma)(np.ascontiguousarray(a), np.ascontiguousarray(b.T), out)
    return out


def _advance_fma(a: Any, b: Any, out: Any) -> None:
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            x = a[i, k]
            for n in range(b.shape[1]):
                out[i, n] = fma_one(x, b[k, n], out[i, n])


# --- chain16 -----------------------------------------------------------------------------------------


def _chain16(a: F32, b: F32, acc: F32, dtype: DType) -> F32:
    x, ex, low_x, high_x = (t[..., 0] for t in _prepared(a, 1, dtype))
    out = np.empty(acc.shape, np.float32)
    for first in range(0, len(b), COLUMNS):
        part = slice(first, first + COLUMNS)
        right = _prepared(b[part], WIDTH, dtype)
        columns = len(b[part])
        c = np.zeros((len(acc), len(right[0]) * WIDTH), np.float32)
        c[:, :columns] = acc[:, part]
        blocks = c.reshape(len(acc), len(right[0]), WIDTH)
        _compiled(_advance_chain16)(x, ex, low_x, high_x, *right, blocks)
        out[:, part] = c[:, :columns]
    return out


def _prepared(x: F32, width: int, dtype: DType) -> tuple[Array, ...]:
    """Return x[N, K] as blocks[N / width, K, width] padded with zeros, and the exponents of its factors.

    The exponents (ABSENT for zero, else at least the floor) come for each factor and, without the floor, as
    the least and the largest of each group. A group of zeros has an empty range, which fits every condition.
    """
    blocks, groups = -(-len(x) // width), -(-x.shape[1] // GROUP)
    y = np.zeros((blocks, groups * GROUP, width), np.float32)
    e = np.empty(y.shape, np.int16)
    low, high = (np.empty((blocks, groups, width), np.int16) for _ in range(2))
    limits = BITS[dtype], FLOOR[dtype], LARGEST[dtype]
    if not _compiled(_prepare)(np.ascontiguousarray(x), y, e, low, high, *limits):
        raise ValueError(f"chain16 takes factors that {dtype} can hold")
    return y, e, low, high


@cache
def _compiled(function: Callable[..., None]) -> Any:
    return kept(numba.njit(nogil=True, error_model="numpy")(function))


@intrinsic
def _as_i64_one(typingctx: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


@intrinsic
def _as_f64_one(typingctx: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


@numba.njit(inline="always")
def _exponent_one(x):  # type: ignore[no-untyped-def]
    """Return floor(log2(abs(x))) of a finite f32, ABSENT for zero."""
    field = (as_i32_one(x) >> 23) & 255
    if field:
        return field - 127
    fraction = as_i32_one(x) & 0x7FFFFF
    e = ABSENT
    for bit in range(23):
        e = bit - 149 if fraction >> bit & 1 else e
    return e


@numba.njit(inline="always")
def _significand_one(x, e):  # type: ignore[no-untyped-def]
    """Return x / 2**(e - 23) for its own exponent e: an integer of 24 bits and a sign."""
    field = (as_i32_one(x) >> 23) & 255
    fraction = np.int64(as_i32_one(x) & 0x7FFFFF)
    m = fraction | 0x800000 if field else fraction << (-126 - e)
    return -m if as_i32_one(x) < 0 else m


@numba.njit(inline="always")
def _cut_one(m, shift):  # type: ignore[no-untyped-def]
    """Return m * 2**-shift cut toward zero; shift >= 0."""
    size = abs(m) >> min(shift, 63)
    return -size if m < 0 else size


@numba.njit
def _round_one(s, unit):  # type: ignore[no-untyped-def]
    """Return s * 2**unit as f32, rounded toward zero; 2**128 and beyond are infinite."""
    size = abs(s)
    bits = 0
    while size >> bits:
        bits += 1
    drop = max(bits - 24, -149 - unit, 0)
    size = size >> min(drop, 63) << min(drop, 63)
    if size == 0:
        return np.float32(0)
    value = np.float64(size) * _as_f64_one(np.int64(unit + 1023) << 52)
    return np.float32(-value if s < 0 else value)


@numba.njit
def _special_one(a, b, c, n):  # type: ignore[no-untyped-def]
    """Return the IEEE value of a sum with an infinity or a NaN; finite terms do not matter."""
    up, down = c == np.inf, c == -np.inf
    undefined = c != c
    for j in range(GROUP):
        x, y = a[j], b[j, n]
        if not (np.isfinite(x) and np.isfinite(y)):
            undefined |= x != x or y != y or x == 0 or y == 0
            up |= (x > 0) == (y > 0)
            down |= (x > 0) != (y > 0)
    if undefined or (up and down):
        return np.float32(np.nan)
    return np.float32(np.inf) if up else np.float32(-np.inf)


@numba.njit
def _exact_one(a, ea, b, eb, c, n):  # type: ignore[no-untyped-def]
    """Add one group of finite products to a finite accumulator, in integers."""
    ec = _exponent_one(c)
    top = max(ec, ACC_FLOOR) if c != 0 else LEAST
    for j in range(GROUP):
        top = max(top, np.int64(ea[j]) + np.int64(eb[j, n]))
    total = np.int64(0)
    if c != 0:
        total += _cut_one(_significand_one(c, ec) << (FRACTION - 23), top - ec)
    for j in range(GROUP):
        x, y = a[j], b[j, n]
        if x != 0 and y != 0:
            ex, ey = _exponent_one(x), _exponent_one(y)
            # 11 significant bits a factor: 20 fraction bits a product
            product = (_significand_one(x, ex) >> 13) * (_significand_one(y, ey) >> 13)
            total += _cut_one(product << (FRACTION - 20), top - ex - ey)
    return _round_one(total, top - FRACTION)


@numba.njit(inline="always")
def _fits_one(x, e, bits, floor, largest):  # type: ignore[no-untyped-def]
    """Return whether a nonzero finite x of exponent e is a number of a 16-bit type."""
    if e >= floor:
        return e <= largest and as_i32_one(x) & ((1 << (24 - bits)) - 1) == 0
    return _significand_one(x, e) & ((np.int64(1) << (24 - bits + floor - e)) - 1) == 0


def _prepare(x, y, e, low, high, bits, floor, largest):  # type: ignore[no-untyped-def]
    blocks, groups, width = low.shape
    fits = True
    for block in range(blocks):
        for g in range(groups):
            for n in range(width):
                least, most, row = np.int64(-ABSENT), np.int64(ABSENT), block * width + n
                for k in range(g * GROUP, (g + 1) * GROUP):
                    value = x[row, k] if row < x.shape[0] and k < x.shape[1] else np.float32(0)
                    own = _exponent_one(value)
                    y[block, k, n] = value
                    e[block, k, n] = max(own, floor) if value != 0 else ABSENT
                    if not np.isfinite(value):
                        least = np.int64(SPECIAL)
                    elif value != 0:
                        least, most = min(least, own), max(most, own)
                        fits &= _fits_one(value, own, bits, floor, largest)
                low[block, g, n], high[block, g, n] = least, most
    return fits


@numba.njit
def _leaves_fast_range(c, low_a, high_a, low_b, high_b, old, slow):  # type: ignore[no-untyped-def]
    """Save the accumulators, mark the columns that need `_group_one`, and return whether there are any."""
    some = np.int32(0)
    for n in range(WIDTH):
        field = np.int32((as_i32_one(c[n]) >> 23) & 255)
        plain = (field != 255) & ((field != 0) | (c[n] == 0))
        products = (np.int32(low_a + low_b[n]) >= LOWEST) & (np.int32(high_a + high_b[n]) <= HIGHEST)
        old[n] = c[n]
        slow[n] = np.int32(not (plain & products))
        some |= slow[n]
    return some != 0


@numba.njit
def _fast_group(a, ea, b, eb, c, top, total):  # type: ignore[no-untyped-def]
    """Add a[16] b[16, WIDTH] to the accumulators c[WIDTH], in vector loops; right within the fast range."""
    for n in range(WIDTH):
        field = np.int16((as_i32_one(c[n]) >> 23) & 255)
        t = np.int16(ABSENT) if field == 0 else np.int16(field - 127)
        for j in range(GROUP):
            e = np.int16(ea[j] + eb[j, n])
            t = e if e > t else t
        top[n] = t
    for n in range(WIDTH):
        # a group of zeros may have any finite scale
        e32 = np.int32(top[n])
        e32 = np.int32(LOWEST) if e32 < LOWEST else e32
        scale = as_f32_one(np.int32(np.int32(127 + FRACTION - e32) << 23))
        s = np.int32(0)
        for j in range(GROUP):
            s = np.int32(s + np.int32(a[j] * b[j, n] * scale))
        total[n] = s
    for n in range(WIDTH):
        e64 = np.int64(top[n])
        e64 = np.int64(-200) if e64 < -200 else e64
        kept = np.int32(np.float64(c[n]) * _as_f64_one((1023 + FRACTION - e64) << 52))
        whole = np.float64(total[n]) + np.float64(kept)  # 33 bits
        cut = _as_f64_one(_as_i64_one(whole) & ~np.int64((1 << 29) - 1))  # 24 significant bits, toward zero
        c[n] = np.float32(cut * _as_f64_one((1023 - FRACTION + e64) << 52))


@numba.njit
def _group_one(a, ea, b, eb, c, n):  # type: ignore[no-untyped-def]
    """Add one group of products to one accumulator, in every range."""
    wild = not np.isfinite(c)
    for j in range(GROUP):
        wild |= not (np.isfinite(a[j]) and np.isfinite(b[j, n]))
    if wild:
        return _special_one(a, b, c, n)
    return _exact_one(a, ea, b, eb, c, n)


def _advance_chain16(a, ea, low_a, high_a, b, eb, low_b, high_b, out):  # type: ignore[no-untyped-def]
    old, slow = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.int32)
    top, total = np.empty(WIDTH, np.int16), np.empty(WIDTH, np.int32)
    groups = low_a.shape[1]
    for block in range(b.shape[0]):
        for first in range(0, groups, STEPS):
            for i in range(a.shape[0]):
                c = out[i, block]
                for g in range(first, min(first + STEPS, groups)):
                    x, ex = a[i, g * GROUP : (g + 1) * GROUP], ea[i, g * GROUP : (g + 1) * GROUP]
                    y, ey = b[block, g * GROUP : (g + 1) * GROUP], eb[block, g * GROUP : (g + 1) * GROUP]
                    some = _leaves_fast_range(
                        c, low_a[i, g], high_a[i, g], low_b[block, g], high_b[block, g], old, slow
                    )
                    _fast_group(x, ex, y, ey, c, top, total)
                    if some:
                        for n in range(WIDTH):
                            if slow[n]:
                                c[n] = _group_one(x, ex, y, ey, old[n], n)
