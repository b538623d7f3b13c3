"""Vector instructions on integers and bits, lane by lane."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rlk.testing.simulators.cdna import lanes
from rlk.testing.simulators.cdna.access import (
    Step,
    as_signed,
    pair,
    row,
    scalar,
    scalar_pair,
    sources,
    word,
    written,
    written_pair,
)
from rlk.testing.simulators.cdna.text import VCC, Instruction, Kind
from rlk.testing.simulators.cdna.wave import WORD, Wave, bits_of, every_lane

Function = Callable[..., Any]

U32, I32, U64, I64 = np.uint32, np.int32, np.uint64, np.int64
_FIVE, _SIX = U32(31), U64(63)
_LOW24 = U32(0xFFFFFF)


def _reversed_bits(x: Any) -> Any:
    for step, lower in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0xFFFF)):
        x = x >> U32(step) & U32(lower) | (x & U32(lower)) << U32(step)
    return x


def _field(x: Any, offset: Any, width: Any) -> Any:
    return x >> (offset & _FIVE) & (U32(1) << (width & _FIVE)) - U32(1)


def _signed_field(x: Any, offset: Any, width: Any) -> Any:
    size = width & _FIVE
    cut = _field(x, offset, width)
    top = U32(1) << np.where(size == 0, U32(0), size - U32(1))
    return np.where(size == 0, U32(0), (cut ^ top) - top)


def _bytes(x: Any, y: Any, choice: Any) -> Any:
    """v_perm_b32: a byte of the choice names a byte of y (0-3) or x (4-7), a sign (8-11), 0 (12) or 255."""
    result: Any = U32(0)
    both = x.astype(U64) << U64(32) | y.astype(U64)
    if not choice.shape:  # nearly always a constant, or a scalar register
        for at, index in enumerate(int(choice).to_bytes(4, "little")):
            if index < 8:
                found = (both >> U64(8 * index) & U64(255)).astype(U32)
            elif index < 12:
                found = (both >> U64(16 * (index - 8) + 15) & U64(1)).astype(U32) * U32(255)
            else:
                found = U32(0 if index == 12 else 255)
            result = result | found << U32(8 * at)
        return result
    for at in range(4):
        index = choice >> U32(8 * at) & U32(255)
        signs = both >> (
            np.where(index == 8, 15, np.where(index == 9, 31, np.where(index == 10, 47, 63)))
        ).astype(U64)
        byte = (both >> ((index & U32(7)) * U32(8)).astype(U64) & U64(255)).astype(U32)
        sign = np.where(signs & U64(1), U32(255), U32(0))
        constant = np.where(index == 12, U32(0), U32(255))
        found = np.where(index < 8, byte, np.where(index < 12, sign, constant))
        result = result | found << U32(8 * at)
    return result


def _med3(a: Any, b: Any, c: Any) -> Any:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _first_bit(x: Any) -> Any:
    """v_ffbh_u32: how many zeros come before the highest one, -1 where there is none."""
    length = np.frexp(x.astype(np.float64))[1].astype(U32)
    return np.where(x == 0, ~U32(0), U32(32) - length)


_UNSIGNED: dict[str, Function] = {
    "mov_b32": lambda a: a,
    "accvgpr_read_b32": lambda a: a,
    "accvgpr_write_b32": lambda a: a,
    "accvgpr_mov_b32": lambda a: a,
    "not_b32": lambda a: ~a,
    "bfrev_b32": _reversed_bits,
    "ffbh_u32": _first_bit,
    "add_u32": lambda a, b: a + b,
    "sub_u32": lambda a, b: a - b,
    "subrev_u32": lambda a, b: b - a,
    "mul_lo_u32": lambda a, b: a * b,
    "mul_hi_u32": lambda a, b: (a.astype(U64) * b.astype(U64) >> U64(32)).astype(U32),
    "mul_u32_u24": lambda a, b: (a & _LOW24) * (b & _LOW24),
    "bcnt_u32_b32": lambda a, b: np.bitwise_count(a).astype(U32) + b,
    "and_b32": lambda a, b: a & b,
    "or_b32": lambda a, b: a | b,
    "xor_b32": lambda a, b: a ^ b,
    "xnor_b32": lambda a, b: ~(a ^ b),
    "lshlrev_b32": lambda a, b: b << (a & _FIVE),
    "lshrrev_b32": lambda a, b: b >> (a & _FIVE),
    "max_u32": np.maximum,
    "min_u32": np.minimum,
    "bfm_b32": lambda a, b: (U32(1) << (a & _FIVE)) - U32(1) << (b & _FIVE),
    "add3_u32": lambda a, b, c: a + b + c,
    "lshl_add_u32": lambda a, b, c: (a << (b & _FIVE)) + c,
    "add_lshl_u32": lambda a, b, c: a + b << (c & _FIVE),
    "lshl_or_b32": lambda a, b, c: a << (b & _FIVE) | c,
    "and_or_b32": lambda a, b, c: a & b | c,
    "or3_b32": lambda a, b, c: a | b | c,
    "xad_u32": lambda a, b, c: (a ^ b) + c,
    "bfi_b32": lambda a, b, c: a & b | ~a & c,
    "mad_u32_u24": lambda a, b, c: (a & _LOW24) * (b & _LOW24) + c,
    "bfe_u32": _field,
    "bfe_i32": _signed_field,
    "perm_b32": _bytes,
    "alignbit_b32": lambda a, b, c: ((a.astype(U64) << U64(32) | b) >> (c & _FIVE).astype(U64)).astype(U32),
    "max3_u32": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "min3_u32": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "med3_u32": _med3,
}
_SIGNED: dict[str, Function] = {
    "ashrrev_i32": lambda a, b: b >> (a & I32(31)),
    "max_i32": np.maximum,
    "min_i32": np.minimum,
    "mul_hi_i32": lambda a, b: (a.astype(I64) * b.astype(I64) >> I64(32)).astype(I32),
    "max3_i32": lambda a, b, c: np.maximum(np.maximum(a, b), c),
    "min3_i32": lambda a, b, c: np.minimum(np.minimum(a, b), c),
    "med3_i32": _med3,
}


def _signed_half(x: Any) -> Any:
    """Return the lower 16 bits as a signed number."""
    return (x << U32(16)).astype(I32) >> I32(16)


# Of 16 bits: the upper half of the destination becomes zero.
_HALVES: dict[str, Function] = {
    "add_u16": lambda a, b: a + b,
    "sub_u16": lambda a, b: a - b,
    "mul_lo_u16": lambda a, b: a * b,
    "lshlrev_b16": lambda a, b: b << (a & U32(15)),
    "lshrrev_b16": lambda a, b: (b & U32(0xFFFF)) >> (a & U32(15)),
    "ashrrev_i16": lambda a, b: _signed_half(b) >> (a & U32(15)).astype(I32),
    "max_u16": lambda a, b: np.maximum(a & U32(0xFFFF), b & U32(0xFFFF)),
    "min_u16": lambda a, b: np.minimum(a & U32(0xFFFF), b & U32(0xFFFF)),
}


def decode(i: Instruction) -> Step | None:
    """Return what a vector instruction on whole numbers does to a wave; None for one that is not known."""
    name = i.name.removeprefix("v_")
    if name in _UNSIGNED:
        return _mapped(i, _UNSIGNED[name])
    if name in _SIGNED:
        return _mapped_signed(i, _SIGNED[name])
    if name in _HALVES:
        fn = _HALVES[name]
        return _mapped(i, lambda *x: fn(*x).astype(U32) & U32(0xFFFF))
    if name in _WIDE:
        return _WIDE[name](i)
    if name in _LANES:
        return _LANES[name](i)
    if match := re.match(r"(addc|add|subbrev|subb|subrev|sub)_co_u32$", name):
        return _with_carry(i, match[1])
    return None


def _mapped(i: Instruction, fn: Function) -> Step:
    write, read = written(i), sources(i)
    match read:
        case [a]:
            return lambda w: write(w, fn(a(w)))
        case [a, b]:
            return lambda w: write(w, fn(a(w), b(w)))
        case _:
            a, b, c = read
            return lambda w: write(w, fn(a(w), b(w), c(w)))


def _mapped_signed(i: Instruction, fn: Function) -> Step:
    write, read = written(i), [as_signed(r) for r in sources(i)]
    return lambda w: write(w, fn(*(r(w) for r in read)).view(U32))


# --- 64 bits ---------------------------------------------------------------------------------------------


def _shifted(fn: Function) -> Callable[[Instruction], Step]:
    """Return the decoder of a shift of 64 bits: the count comes first."""

    def make(i: Instruction) -> Step:
        write, count, x = written_pair(i), word(i.operands[1]), pair(i.operands[2])
        return lambda w: write(w, fn(x(w), U64(count(w)) & _SIX))

    return make


def _shift_add(i: Instruction) -> Step:
    write, x, count, y = written_pair(i), pair(i.operands[1]), word(i.operands[2]), pair(i.operands[3])
    return lambda w: write(w, (x(w) << (U64(count(w)) & U64(7))) + y(w))


def _multiply_add(signed: bool) -> Callable[[Instruction], Step]:
    def make(i: Instruction) -> Step:
        write, a, b, c = written_pair(i), word(i.operands[2]), word(i.operands[3]), pair(i.operands[4])

        def step(w: Wave) -> None:
            x, y = a(w), b(w)
            if signed:
                product = (x.view(I32).astype(I64) * y.view(I32).astype(I64)).view(U64)
            else:
                product = x.astype(U64) * y.astype(U64)
            write(w, product + c(w))

        return step

    return make


def _move_pair(i: Instruction) -> Step:
    write, x = written_pair(i), pair(i.operands[1])
    return lambda w: write(w, x(w))


_WIDE: dict[str, Callable[[Instruction], Step]] = {
    "mov_b64": _move_pair,
    "lshlrev_b64": _shifted(lambda x, n: x << n),
    "lshrrev_b64": _shifted(lambda x, n: x >> n),
    "ashrrev_i64": _shifted(lambda x, n: (x.astype(I64) >> n.astype(I64)).astype(U64)),
    "lshl_add_u64": _shift_add,
    "mad_u64_u32": _multiply_add(False),
    "mad_i64_i32": _multiply_add(True),
}


# --- carries, selections, single lanes -------------------------------------------------------------------


def _with_carry(i: Instruction, name: str) -> Step:
    """Sums of 32 bits with a carry out, and for addc, subb and subbrev one in."""
    write, out = written(i), i.operands[1].index
    read = sources(i, 2)
    taken = scalar_pair(i.operands[4]) if len(i.operands) > 4 else None
    a, b = (read[1], read[0]) if "rev" in name else (read[0], read[1])
    sign = I64(1 if name.startswith("add") else -1)

    def step(w: Wave) -> None:
        carry = bits_of(taken(w)).astype(I64) if taken is not None else I64(0)
        total = every_lane(a(w).astype(I64) + sign * (b(w).astype(I64) + carry))
        write(w, (total & I64(WORD)).astype(U32))
        w.set_mask(out, (total < 0) | (total > WORD))

    return step


def _select(i: Instruction) -> Step:
    write, (a, b) = written(i), sources(i)[:2]
    mask = scalar_pair(i.operands[3]) if len(i.operands) > 3 else (lambda w: w.pair(VCC))
    return lambda w: write(w, np.where(bits_of(mask(w)), b(w), a(w)))


def _first_lane(i: Instruction) -> Step:
    out, x = i.operands[0].index, row(i.operands[1])

    def step(w: Wave) -> None:
        lane = (w.mask & -w.mask).bit_length() - 1 if w.mask else 0
        w.set_scalar(out, int(x(w)[lane]))

    return step


def _read_lane(i: Instruction) -> Step:
    out, x, lane = i.operands[0].index, row(i.operands[1]), scalar(i.operands[2])
    return lambda w: w.set_scalar(out, int(x(w)[lane(w) & 63]))


def _write_lane(i: Instruction) -> Step:
    out, x, lane = row(i.operands[0]), scalar(i.operands[1]), scalar(i.operands[2])

    def step(w: Wave) -> None:
        out(w)[lane(w) & 63] = x(w)

    return step


def _count_below(half: int) -> Callable[[Instruction], Step]:
    below = lanes.before(half)

    def make(i: Instruction) -> Step:
        write, (mask, start) = written(i), sources(i)

        def step(w: Wave) -> None:
            count = np.bitwise_count(U64(mask(w)) & below).astype(U32)
            write(w, count + start(w))

        return step

    return make


def _swap(i: Instruction) -> Step:
    one, other = row(i.operands[0]), row(i.operands[1])

    def step(w: Wave) -> None:
        x, y = one(w).copy(), other(w).copy()
        w.write(one(w), y)
        w.write(other(w), x)

    return step


_LANES: dict[str, Callable[[Instruction], Step]] = {
    "cndmask_b32": _select,
    "readfirstlane_b32": _first_lane,
    "readlane_b32": _read_lane,
    "writelane_b32": _write_lane,
    "mbcnt_lo_u32_b32": _count_below(0),
    "mbcnt_hi_u32_b32": _count_below(1),
    "swap_b32": _swap,
}


# --- comparisons -----------------------------------------------------------------------------------------

COMPARE: dict[str, Function] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def decode_comparison(i: Instruction) -> Step | None:
    """Return what a comparison of whole numbers does to a wave; None for one that is not known."""
    match = re.match(r"v_cmp_(\w+)_([iu])(16|32|64)$", i.name)
    if match is None or match[1] not in COMPARE or i.operands[0].kind is not Kind.SCALAR:
        return None
    fn, out, bits = COMPARE[match[1]], i.operands[0].index, int(match[3])
    kind = np.dtype(f"{match[2]}{bits // 8}")
    if bits == 64:
        a, b = pair(i.operands[1]), pair(i.operands[2])
    else:
        a, b = sources(i)
    if bits == 16:
        return lambda w: w.set_mask(
            out, fn(a(w).astype(np.uint16).view(kind), b(w).astype(np.uint16).view(kind))
        )
    return lambda w: w.set_mask(out, fn(a(w).view(kind), b(w).view(kind)))
