"""The arithmetic of chain16, compiled: vectors for the usual range of numbers, integers for every range."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from rlk.interp.machine_code import kept
from rlk.interp.scalar import as_i32_one
from rlk.ir.dotmodel import FLOOR, FRACTION, GROUP, LEAST
from rlk.ir.types import DType

F32 = NDArray[np.float32]

WIDTH = 64  # columns whose accumulators advance together: the length of a vector
STEPS = 32  # groups of k whose factors stay in the L2 cache for all rows
DEPTH = STEPS * GROUP

ABSENT = -1000  # the exponent of a zero: below every real one
BITS = {DType.BF16: 8, DType.F16: 11}  # significant bits of a factor
LARGEST = {DType.BF16: 127, DType.F16: 15}  # exponents of factors
ACC_FLOOR = FLOOR[DType.F32]
SPECIAL = -3000  # the lowest exponent of a group with an infinity or a NaN: never in the vectors' range

# Vectors are right for products in [2**LOWEST, 2**(HIGHEST + 2)): they are f32 numbers, and multiples of
# 2**(LOWEST - FRACTION), where they are cut, are zero or normal. All are above the floors of groups.
LOWEST, HIGHEST = -100, 80
# An accumulator below 2**LARGE that is zero or normal stays so through STEPS groups of such products.
LARGE = 100


def chain16(a: F32, b: F32, acc: F32, dtype: DType) -> F32:
    """Return acc[M, N] + a[M, K] b[N, K]^T; see DotModel.

    Raises ValueError for factors that are no numbers of dtype.
    """
    out = np.array(acc, np.float32, order="C")
    floor, unused = FLOOR[dtype], (1 << (24 - BITS[dtype])) - 1
    # f32 has the exponents of bf16: only an f16 that is subnormal has fewer bits
    tiny = 2.0 ** (BITS[dtype] - 1 - floor) if floor > ACC_FLOOR else 0.0
    type = np.int32(floor), np.int32(LARGEST[dtype]), np.int32(unused), np.float32(tiny)
    if not _compiled(_advance_chain16)(np.ascontiguousarray(a), np.ascontiguousarray(b), out, type):
        raise ValueError(f"chain16 takes factors that {dtype} can hold")
    return out


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    return kept(numba.njit(nogil=True, error_model="numpy")(function))


# --- factors -----------------------------------------------------------------------------------------


@numba.njit(inline="always")
def _exponent_of(x, floor):  # type: ignore[no-untyped-def]
    """Return floor(log2(abs(x))) of a factor, at least the floor; ABSENT for zero."""
    bits = np.int32(as_i32_one(x) & 0x7FFFFFFF)
    own = np.int32((bits >> 23) - 127)
    own = own if own > floor else floor
    return np.int16(own) if bits else np.int16(ABSENT)


@numba.njit(inline="always")
def _bounds_of(x):  # type: ignore[no-untyped-def]
    """Return bounds of floor(log2(abs(x))): none for zero, SPECIAL for an infinity or a NaN."""
    bits = np.int32(as_i32_one(x) & 0x7FFFFFFF)
    own = np.int32((bits >> 23) - 127)
    low = np.int32(-149) if own == -127 else own
    low = np.int32(SPECIAL) if own == 128 else low
    return np.int32(-ABSENT) if bits == 0 else low, np.int32(ABSENT) if bits == 0 or own == 128 else own


@numba.njit(inline="always")
def _misfits(x, type):  # type: ignore[no-untyped-def]
    """Return whether a finite x is no number of a 16-bit type."""
    floor, largest, unused, tiny = type
    bits = np.int32(as_i32_one(x) & 0x7FFFFFFF)
    own = np.int32((bits >> 23) - 127)
    units = np.float32(x * tiny) if own < floor else np.float32(0)
    broken = np.float32(np.int32(units)) != units
    return ((bits & unused) != 0 or own > largest or broken) and own != 128


@numba.njit
def _prepare_rows(x, y, e, low, high, type):  # type: ignore[no-untyped-def]
    """Copy x[M, K] with zeros up to whole groups; return whether all of it fits the type.

    e: the exponent of each factor; low, high: bounds of the exponents of each group.
    """
    misfits = np.int32(0)
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            y[i, k] = x[i, k]
            misfits |= np.int32(_misfits(x[i, k], type))
        for k in range(x.shape[1], y.shape[1]):
            y[i, k] = np.float32(0)
        for g in range(low.shape[1]):
            least, most = np.int32(-ABSENT), np.int32(ABSENT)
            for k in range(g * GROUP, g * GROUP + GROUP):
                below, above = _bounds_of(y[i, k])
                e[i, k] = _exponent_of(y[i, k], type[0])
                least = below if below < least else least
                most = above if above > most else most
            low[i, g], high[i, g] = least, most
    return misfits == 0


@numba.njit
def _prepare_columns(x, first, start, y, e, low, high, type):  # type: ignore[no-untyped-def]
    """Transpose x[first:first + WIDTH, start:start + DEPTH] to y[DEPTH, WIDTH], as `_prepare_rows` copies."""
    columns, depth = min(WIDTH, x.shape[0] - first), min(DEPTH, x.shape[1] - start)
    for n in range(columns):
        for k in range(depth):
            y[k, n] = x[first + n, start + k]
    for k in range(depth + -depth % GROUP):
        for n in range(columns if k < depth else 0, WIDTH):
            y[k, n] = np.float32(0)
    misfits = np.int32(0)
    for g in range(-(-depth // GROUP)):
        for n in range(WIDTH):
            low[g, n], high[g, n] = np.int32(-ABSENT), np.int32(ABSENT)
        for k in range(g * GROUP, g * GROUP + GROUP):
            for n in range(WIDTH):
                below, above = _bounds_of(y[k, n])
                e[k, n] = _exponent_of(y[k, n], type[0])
                low[g, n] = below if below < low[g, n] else low[g, n]
                high[g, n] = above if above > high[g, n] else high[g, n]
                misfits |= np.int32(_misfits(y[k, n], type))
    return misfits == 0


# --- vectors of accumulators ---------------------------------------------------------------------------


def _every(build: Any, kind: Any, value: Any) -> Any:
    """Return a vector of one constant or of one scalar."""
    if not isinstance(value, ir.Value):
        return ir.Constant(kind, [value] * WIDTH)
    i32 = ir.IntType(32)
    one = build.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(i32, 0))
    return build.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, WIDTH), [0] * WIDTH))


def _larger(build: Any, x: Any, y: Any) -> Any:
    return build.select(build.icmp_signed(">", x, y), x, y)


@intrinsic
def _add_group(typingctx: Any, a: Any, ea: Any, at: Any, b: Any, eb: Any, k: Any, c: Any) -> Any:
    """Add a.flat[at:at + GROUP] b[k:k + GROUP, :] to c[WIDTH], in the vectors' range.

    Written with LLVM's vectors: for loops it would ask each time whether arrays overlap, which takes longer.
    """

    def generate(context: Any, build: Any, signature: Any, args: Any) -> Any:
        i16, i32, i64 = (ir.VectorType(ir.IntType(bits), WIDTH) for bits in (16, 32, 64))
        f32, f64 = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(ir.DoubleType(), WIDTH)
        pointers = [
            context.make_array(signature.args[i])(context, build, args[i]).data for i in (0, 1, 3, 4, 6)
        ]
        at, k = args[2], args[5]

        every, larger = partial(_every, build), partial(_larger, build)

        def factor(which: int, j: int, kind: Any) -> Any:
            place = build.gep(pointers[which], [build.add(at, ir.Constant(at.type, j))])
            return every(kind, build.load(place))

        def column(which: int, row: Any, kind: Any) -> Any:
            place = build.gep(pointers[which], [build.mul(row, ir.Constant(k.type, WIDTH))])
            return build.bitcast(place, kind.as_pointer())

        def factors(which: int, j: int, kind: Any) -> Any:
            return build.load(column(which, build.add(k, ir.Constant(k.type, j)), kind), align=2)

        into = build.bitcast(pointers[4], f32.as_pointer())
        old = build.load(into, align=4)
        field = build.and_(build.lshr(build.bitcast(old, i32), every(i32, 23)), every(i32, 255))
        field = build.trunc(field, i16)
        zero = build.icmp_signed("==", field, every(i16, 0))
        top = build.select(zero, every(i16, ABSENT), build.sub(field, every(i16, 127)))
        for j in range(GROUP):
            top = larger(top, build.add(factor(1, j, i16), factors(3, j, i16)))

        # a group of zeros may have any finite scale
        scale = build.sub(every(i32, 127 + FRACTION), build.sext(larger(top, every(i16, LOWEST)), i32))
        scale = build.bitcast(build.shl(scale, every(i32, 23)), f32)
        total = every(i32, 0)
        for j in range(GROUP):
            product = build.fmul(build.fmul(factor(0, j, f32), factors(2, j, f32)), scale)
            total = build.add(total, build.fptosi(product, i32))

        def power(exponent: Any) -> Any:
            return build.bitcast(build.shl(build.add(exponent, every(i64, 1023)), every(i64, 52)), f64)

        top = build.sext(larger(top, every(i16, -200)), i64)
        scaled = build.fmul(build.fpext(old, f64), power(build.sub(every(i64, FRACTION), top)))
        kept = build.sitofp(build.fptosi(scaled, i32), f64)
        whole = build.fadd(build.sitofp(total, f64), kept)  # 33 bits
        # 24 significant bits, toward zero
        cut = build.and_(build.bitcast(whole, i64), every(i64, -1 << 29))
        new = build.fmul(build.bitcast(cut, f64), power(build.sub(top, every(i64, FRACTION))))
        build.store(build.fptrunc(new, f32), into, align=4)
        return context.get_dummy_value()

    return types.void(a, ea, at, b, eb, k, c), generate


# --- one accumulator, in integers ----------------------------------------------------------------------


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


@intrinsic
def _as_f64_one(typingctx: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


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
def _special_one(a, k, b, row, c, n):  # type: ignore[no-untyped-def]
    """Return the IEEE value of a sum with an infinity or a NaN; finite terms do not matter."""
    up, down = c == np.inf, c == -np.inf
    undefined = c != c
    for j in range(GROUP):
        x, y = a[k + j], b[row + j, n]
        if not (np.isfinite(x) and np.isfinite(y)):
            undefined |= x != x or y != y or x == 0 or y == 0
            up |= (x > 0) == (y > 0)
            down |= (x > 0) != (y > 0)
    if undefined or (up and down):
        return np.float32(np.nan)
    return np.float32(np.inf) if up else np.float32(-np.inf)


@numba.njit
def _exact_one(a, ea, k, b, eb, row, c, n):  # type: ignore[no-untyped-def]
    """Add one group of finite products to a finite accumulator, in integers."""
    ec = _exponent_one(c)
    top = max(ec, ACC_FLOOR) if c != 0 else LEAST
    for j in range(GROUP):
        top = max(top, np.int64(ea[k + j]) + np.int64(eb[row + j, n]))
    total = np.int64(0)
    if c != 0:
        total += _cut_one(_significand_one(c, ec) << (FRACTION - 23), top - ec)
    for j in range(GROUP):
        x, y = a[k + j], b[row + j, n]
        if x != 0 and y != 0:
            ex, ey = _exponent_one(x), _exponent_one(y)
            # 11 significant bits a factor: 20 fraction bits a product
            product = (_significand_one(x, ex) >> 13) * (_significand_one(y, ey) >> 13)
            total += _cut_one(product << (FRACTION - 20), top - ex - ey)
    return _round_one(total, top - FRACTION)


@numba.njit
def _group_one(a, ea, k, b, eb, row, c, n):  # type: ignore[no-untyped-def]
    """Add a[k:k + GROUP] b[row:row + GROUP, n] to one accumulator, in every range."""
    wild = not np.isfinite(c)
    for j in range(GROUP):
        wild |= not (np.isfinite(a[k + j]) and np.isfinite(b[row + j, n]))
    if wild:
        return _special_one(a, k, b, row, c, n)
    return _exact_one(a, ea, k, b, eb, row, c, n)


# --- a whole product -----------------------------------------------------------------------------------


@numba.njit
def _is_calm(c, low_a, high_a, start, low_b, high_b, steps):  # type: ignore[no-untyped-def]
    """Return whether all accumulators are in the vectors' range, and stay there for a number of groups."""
    least, most = np.int32(-ABSENT), np.int32(ABSENT)
    for g in range(start, start + steps):
        least = min(least, low_a[g])
        most = max(most, high_a[g])
    wild = np.int32(least + low_b < LOWEST or most + high_b > HIGHEST)
    for n in range(WIDTH):
        bits = np.int32(as_i32_one(c[n]) & 0x7FFFFFFF)
        wild |= np.int32(bits >= (127 + LARGE) << 23) | np.int32(bits < 1 << 23 and bits != 0)
    return wild == 0


@numba.njit
def _leaves_range(c, low_a, high_a, low_b, high_b, old, slow):  # type: ignore[no-untyped-def]
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
def _bounds_of_columns(low, high, steps):  # type: ignore[no-untyped-def]
    least, most = np.int32(-ABSENT), np.int32(ABSENT)
    for g in range(steps):
        for n in range(WIDTH):
            least, most = min(least, low[g, n]), max(most, high[g, n])
    return least, most


def _advance_chain16(a, b, out, type):  # type: ignore[no-untyped-def]
    """Add a[M, K] b[N, K]^T to out[M, N]; return whether all factors fit the type."""
    rows, groups = a.shape[0], -(-a.shape[1] // GROUP)
    x, ex = np.empty((rows, groups * GROUP), np.float32), np.empty((rows, groups * GROUP), np.int16)
    low_x, high_x = np.empty((rows, groups), np.int32), np.empty((rows, groups), np.int32)
    y, ey = np.empty((DEPTH, WIDTH), np.float32), np.empty((DEPTH, WIDTH), np.int16)
    low_y, high_y = np.empty((STEPS, WIDTH), np.int32), np.empty((STEPS, WIDTH), np.int32)
    c, old, slow = np.zeros(WIDTH, np.float32), np.empty(WIDTH, np.float32), np.empty(WIDTH, np.int32)
    fits = _prepare_rows(a, x, ex, low_x, high_x, type)
    for first in range(0, b.shape[0], WIDTH):
        columns = min(WIDTH, b.shape[0] - first)
        for n in range(columns, WIDTH):
            c[n] = np.float32(0)
        for start in range(0, groups, STEPS):
            steps = min(STEPS, groups - start)
            fits &= _prepare_columns(b, first, start * GROUP, y, ey, low_y, high_y, type)
            low, high = _bounds_of_columns(low_y, high_y, steps)
            for i in range(rows):
                for n in range(columns):
                    c[n] = out[i, first + n]
                calm = _is_calm(c, low_x[i], high_x[i], start, low, high, steps)
                for g in range(steps):
                    k = (start + g) * GROUP
                    some = not calm and _leaves_range(
                        c, low_x[i, start + g], high_x[i, start + g], low_y[g], high_y[g], old, slow
                    )
                    _add_group(x, ex, i * groups * GROUP + k, y, ey, g * GROUP, c)
                    if some:
                        for n in range(WIDTH):
                            if slow[n]:
                                c[n] = _group_one(x[i], ex[i], k, y, ey, g * GROUP, old[n], n)
                for n in range(columns):
                    out[i, first + n] = c[n]
    return fits
