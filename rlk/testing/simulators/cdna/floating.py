"""Vector instructions on f32 and f16, lane by lane: each rounds once, to nearest even."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlk.interp.scalar import fma, maximum, minimum
from rlk.testing.simulators.cdna.access import Read, Step, as_float, half, sources, word, written
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.integers import COMPARE
from rlk.testing.simulators.cdna.text import VCC, Instruction, Kind
from rlk.testing.simulators.cdna.wave import LANES, Wave, bits_of, every_lane

Function = Callable[..., Any]

F16, F32, F64, U16, U32, I32 = np.float16, np.float32, np.float64, np.uint16, np.uint32, np.int32
TINY = F32(2.0**-126)


def _med3(a: Any, b: Any, c: Any) -> Any:
    return maximum(minimum(a, b), minimum(maximum(a, b), c))


_ROUNDED: dict[str, Function] = {
    "add_f32": lambda a, b: a + b,
    "sub_f32": lambda a, b: a - b,
    "subrev_f32": lambda a, b: b - a,
    "mul_f32": lambda a, b: a * b,
    "max_f32": maximum,
    "min_f32": minimum,
    "fma_f32": fma,
    "fmaak_f32": fma,
    "fmamk_f32": fma,
    "max3_f32": lambda a, b, c: maximum(maximum(a, b), c),
    "min3_f32": lambda a, b, c: minimum(minimum(a, b), c),
    "med3_f32": _med3,
    "rndne_f32": np.rint,
    "floor_f32": np.floor,
    "ceil_f32": np.ceil,
    "trunc_f32": np.trunc,
    "fract_f32": lambda a: np.minimum(a - np.floor(a), np.nextafter(F32(1), F32(0))),
}
# The hardware's own functions, about one ulp wide: here correctly rounded, unless a run perturbs them.
_APPROXIMATE: dict[str, Function] = {
    "exp_f32": np.exp2,
    "log_f32": np.log2,
    "rcp_f32": lambda x: 1 / x,
    "rcp_iflag_f32": lambda x: 1 / x,
    "rsq_f32": lambda x: 1 / np.sqrt(x),
    "sqrt_f32": np.sqrt,
}
_HALVES: dict[str, Function] = {
    "add_f16": lambda a, b: a + b,
    "sub_f16": lambda a, b: a - b,
    "subrev_f16": lambda a, b: b - a,
    "mul_f16": lambda a, b: a * b,
    "max_f16": lambda a, b: maximum(a.astype(F32), b.astype(F32)).astype(F16),
    "min_f16": lambda a, b: minimum(a.astype(F32), b.astype(F32)).astype(F16),
}


def decode(i: Instruction) -> Step | None:
    """Return what a vector instruction on floats does to a wave; None for one that is not known."""
    name = i.name.removeprefix("v_")
    if "mul" in i.modifiers or "div" in i.modifiers or "clamp" in i.modifiers and name not in _ROUNDED:
        return None
    if name in _ROUNDED:
        return _mapped(i, _clamped(_ROUNDED[name]) if "clamp" in i.modifiers else _ROUNDED[name])
    if name in _APPROXIMATE:
        return _approximated(i, _APPROXIMATE[name])
    if name in _CONVERSIONS:
        return _converted(i, _CONVERSIONS[name])
    if name in _HALVES:
        return _halves(i, _HALVES[name])
    return _OTHERS[name](i) if name in _OTHERS else None


def _words(x: Any) -> Any:
    return x.view(U32)


def _mapped(i: Instruction, fn: Function) -> Step:
    write, read = written(i), [as_float(r) for r in sources(i)]
    match read:
        case [a]:
            return lambda w: write(w, fn(a(w)).view(U32))
        case [a, b]:
            return lambda w: write(w, fn(a(w), b(w)).view(U32))
        case _:
            a, b, c = read
            return lambda w: write(w, fn(a(w), b(w), c(w)).view(U32))


def _clamped(fn: Function) -> Function:
    """Return a function whose results are cut to what lies between 0 and 1; NaN becomes 0 (dx10_clamp).

    What becomes of -0.0 is not documented: it is a NaN here, which no output survives unseen.
    """

    def clamped(*given: Any) -> Any:
        x = np.asarray(fn(*given))
        cut = np.where(np.isnan(x), F32(0), np.clip(x, F32(0), F32(1)))
        return np.where((x == 0) & np.signbit(x), F32(np.nan), cut).astype(F32)

    return clamped


def _accumulated(i: Instruction) -> Step:
    """v_fmac_f32: the destination is also the third term."""
    write, (a, b), c = written(i), (as_float(r) for r in sources(i)), as_float(word(i.operands[0]))
    return lambda w: write(w, fma(a(w), b(w), c(w)).view(U32))


def _flushed(x: Any) -> Any:
    return np.where(np.abs(x) < TINY, np.copysign(F32(0), x), x)


def _approximated(i: Instruction, fn: Function) -> Step:
    """Subnormal arguments and results count as zero, as these units have it."""
    write, (a,) = written(i), (as_float(r) for r in sources(i))

    def step(w: Wave) -> None:
        x = every_lane(_flushed(a(w)))
        exact = fn(x.astype(F64))
        y = exact.astype(F32)
        w.group.approximations += 1
        if w.group.perturb is not None:
            y = _perturbed(y, exact, w.group.perturb)
        write(w, _words(_flushed(y).astype(F32)))

    return step


def _perturbed(y: Any, exact: Any, random: np.random.Generator) -> Any:
    """Return for each inexact result one of the two f32 beside it: an error below one ulp, as documented.

    A whole ulp beside the nearest would be more than the hardware's, and break LLVM's integer division.
    """
    beyond = np.nextafter(y, np.where(exact > y, F32(np.inf), F32(-np.inf)))
    moves = (y != exact) & np.isfinite(y) & random.integers(0, 2, LANES).astype(bool)
    return np.where(moves, beyond, y).astype(F32)


# --- conversions -----------------------------------------------------------------------------------------


def _to_integer(low: int, high: int) -> Function:
    def convert(x: Any) -> Any:
        wide = np.trunc(np.nan_to_num(x.astype(F64), nan=0.0, posinf=np.inf, neginf=-np.inf))
        return (np.clip(wide, low, high).astype(np.int64) & 0xFFFFFFFF).astype(U32)

    return convert


_CONVERSIONS: dict[str, Function] = {
    "cvt_f32_i32": lambda x: x.view(I32).astype(F32).view(U32),
    "cvt_f32_u32": lambda x: x.astype(F32).view(U32),
    "cvt_f32_ubyte0": lambda x: (x & U32(255)).astype(F32).view(U32),
    "cvt_f32_f16": lambda x: x.astype(U16).view(F16).astype(F32).view(U32),
    "cvt_f16_f32": lambda x: x.view(F32).astype(F16).view(U16).astype(U32),
    "cvt_i32_f32": lambda x: _to_integer(-(1 << 31), (1 << 31) - 1)(x.view(F32)),
    "cvt_u32_f32": lambda x: _to_integer(0, (1 << 32) - 1)(x.view(F32)),
}


def _converted(i: Instruction, fn: Function) -> Step:
    write, (a,) = written(i), sources(i)
    return lambda w: write(w, fn(every_lane(a(w))))


def _halves(i: Instruction, fn: Function) -> Step:
    write = written(i)
    a, b = (half(o, r) for o, r in zip(i.operands[1:], [word(o) for o in i.operands[1:]], strict=True))
    return lambda w: write(w, fn(a(w), b(w)).view(U16).astype(U32))


def _packed_halves(i: Instruction) -> Step:
    """v_pack_b32_f16: two halves side by side; op_sel takes upper ones."""
    write, upper = written(i), i.numbers("op_sel", 2, 0)
    a, b = (half(o, word(o), bool(u)) for o, u in zip(i.operands[1:], upper, strict=False))

    def step(w: Wave) -> None:
        low, high = (np.asarray(x(w)).view(U16).astype(U32) for x in (a, b))
        write(w, low | high << U32(16))

    return step


def _paired_halves(fn: Function) -> Callable[[Instruction], Step | None]:
    """Two f16 in a register; op_sel picks the half of the lower result, op_sel_hi of the upper."""

    def make(i: Instruction) -> Step | None:
        if any(o.decimal for o in i.operands) or {"neg_lo", "neg_hi"} & i.modifiers.keys():
            return None
        write, sides = written(i), (i.numbers("op_sel", 2, 0), i.numbers("op_sel_hi", 2, 1))
        read = [[half(o, word(o), bool(p)) for o, p in zip(i.operands[1:], at, strict=True)] for at in sides]

        def step(w: Wave) -> None:
            x, y = (np.asarray(fn(*(r(w) for r in each))).view(U16).astype(U32) for each in read)
            write(w, x | y << U32(16))

        return step

    return make


def _mixed(high: bool) -> Callable[[Instruction], Step]:
    """v_fma_mixlo_f16 and mixhi: an f32 fma whose sources may be halves, rounded to f16 into one half."""

    def make(i: Instruction) -> Step:
        write, old, summed = written(i), word(i.operands[0]), _mixed_sum(i)

        def step(w: Wave) -> None:
            x = summed(w).astype(F16).view(U16).astype(U32)
            kept = old(w)
            write(w, kept & U32(0xFFFF) | x << U32(16) if high else kept & U32(0xFFFF0000) | x)

        return step

    return make


def _mixed_whole(i: Instruction) -> Step:
    """v_fma_mix_f32: an f32 fma whose sources may be halves."""
    write, summed = written(i), _mixed_sum(i)
    return lambda w: write(w, _words(summed(w)))


def _mixed_sum(i: Instruction) -> Read:
    is_half, upper = i.numbers("op_sel_hi", 3, 0), i.numbers("op_sel", 3, 0)
    read = [_mixed_source(i, at, bool(is_half[at]), bool(upper[at])) for at in range(3)]
    return lambda w: fma(*(r(w) for r in read))


def _mixed_source(i: Instruction, at: int, is_half: bool, upper: bool) -> Read:
    operand = i.operands[1 + at]
    if not is_half:
        return as_float(sources(i)[at])
    read = half(operand, word(operand), upper)
    return lambda w: read(w).astype(F32)


# --- scaling and division --------------------------------------------------------------------------------


def _scaled(i: Instruction) -> Step:
    """v_ldexp_f32: x * 2**n, rounded once."""
    write, (x, n) = written(i), sources(i)

    def step(w: Wave) -> None:
        power = np.clip(n(w).view(I32), -400, 400)
        # in f64 only the last conversion rounds
        write(w, _words(np.ldexp(np.asarray(x(w)).view(F32).astype(F64), power).astype(F32)))

    return step


def _exponent(x: Any) -> Any:
    """Return the biased exponent field."""
    return (x.view(U32) >> U32(23) & U32(255)).astype(I32)


def _subnormal(x: Any) -> Any:
    return (np.abs(x) < TINY) & (x != 0)


def _division_scale(i: Instruction) -> Step:
    """v_div_scale_f32 d, mask, x, denominator, numerator: x scaled so that a division does not lose bits."""
    write, out = written(i), i.operands[1].index
    read = [as_float(r) for r in sources(i, 2)]

    def step(w: Wave) -> None:
        x, y, z = (every_lane(r(w)) for r in read)
        up, down = F32(2.0**64), F32(2.0**-64)
        reciprocal, quotient = 1 / y.astype(F64), z.astype(F64) / y.astype(F64)
        far = _exponent(z) - _exponent(y) >= 96
        conditions = [
            (y == 0) | (z == 0),
            far,
            _subnormal(y),
            _subnormal(reciprocal) & _subnormal(quotient),
            _subnormal(reciprocal),
            _subnormal(quotient),
            _exponent(z) <= 23,
        ]
        is_denominator, is_numerator = x.view(U32) == y.view(U32), x.view(U32) == z.view(U32)
        scaled = [
            np.full(LANES, np.nan, F32),
            np.where(is_denominator, x * up, x),
            x * up,
            np.where(is_denominator, x * up, x),
            x * down,
            np.where(is_numerator, x * up, x),
            x * up,
        ]
        write(w, np.select(conditions, scaled, x).astype(F32).view(U32))
        which = np.select(conditions, [0, 1, 0, 1, 0, 1, 0], 0)
        w.set_mask(out, which == 1)

    return step


def _division_step(i: Instruction) -> Step:
    """v_div_fmas_f32: fma, scaled back by 2**64 or 2**-64 where VCC says that div_scale has scaled."""
    write, read = written(i), [as_float(r) for r in sources(i)]

    def step(w: Wave) -> None:
        a, b, c = (every_lane(r(w)) for r in read)
        exact = fma(a, b, c)
        power = np.where(_exponent(c) > 127, 64, -64)
        scaled = np.ldexp(exact.astype(F64), power).astype(F32)
        write(w, np.where(bits_of(w.pair(VCC)), scaled, exact).view(U32))

    return step


def _division_end(i: Instruction) -> Step:
    """v_div_fixup_f32 quotient, denominator, numerator: the special cases and the sign."""
    write, read = written(i), [as_float(r) for r in sources(i)]

    def step(w: Wave) -> None:
        q, y, x = (every_lane(r(w)) for r in read)
        sign = np.signbit(x) ^ np.signbit(y)
        undefined = np.isnan(x) | np.isnan(y) | ((x == 0) & (y == 0)) | (np.isinf(x) & np.isinf(y))
        size = np.select(
            [undefined, np.isinf(x) | (y == 0), np.isinf(y) | (x == 0)],
            [F32(np.nan), F32(np.inf), F32(0)],
            np.abs(q),
        ).astype(F32)
        write(w, np.where(sign & ~undefined, -size, size).view(U32))

    return step


# --- packed f32 ------------------------------------------------------------------------------------------


def _packed(fn: Function) -> Callable[[Instruction], Step]:
    """Two f32 in two registers; op_sel picks the register of the lower result, op_sel_hi of the upper."""

    def make(i: Instruction) -> Step:
        count = len(i.operands) - 1
        low = _packed_sources(i, i.numbers("op_sel", count, 0), i.numbers("neg_lo", count, 0))
        high = _packed_sources(i, i.numbers("op_sel_hi", count, 1), i.numbers("neg_hi", count, 0))
        first, second = written(i), written(i, 1)

        def step(w: Wave) -> None:
            # both results are computed before either is written: a destination may be a source
            x, y = fn(*(r(w) for r in low)), fn(*(r(w) for r in high))
            first(w, _words(x))
            second(w, _words(y))

        return step

    return make


def _packed_sources(i: Instruction, picks: tuple[int, ...], signs: tuple[int, ...]) -> list[Read]:
    found = []
    for operand, pick, sign in zip(i.operands[1:], picks, signs, strict=True):
        single = operand.kind is Kind.LITERAL or operand.width == 1
        read = as_float(word(operand, 0 if single else pick))
        found.append(_negated(read) if sign else read)
    return found


def _negated(read: Read) -> Read:
    return lambda w: -read(w)


def _packed_move(i: Instruction) -> Step:
    """v_pk_mov_b32: the lower result from the first source, the upper from the second."""
    picks = i.numbers("op_sel", 2, 0)
    a, b = (word(o, p if o.width == 2 else 0) for o, p in zip(i.operands[1:], picks, strict=True))
    first, second = written(i), written(i, 1)

    def step(w: Wave) -> None:
        x, y = np.array(a(w)), np.array(b(w))
        first(w, x)
        second(w, y)

    return step


def _rounded_bf16(x: Any) -> Any:
    is_nan = np.isnan(x.view(F32))
    return np.where(is_nan, U32(0x7FC0), x + U32(0x7FFF) + (x >> U32(16) & U32(1)) >> U32(16))


def _packed_narrow(rounded: Function) -> Callable[[Instruction], Step]:
    """Two f32 rounded to 16 bits, to nearest even, side by side."""

    def make(i: Instruction) -> Step:
        write, (a, b) = written(i), sources(i)
        return lambda w: write(w, rounded(a(w)) | rounded(b(w)) << U32(16))

    return make


_OTHERS: dict[str, Callable[[Instruction], Step | None]] = {
    "fmac_f32": _accumulated,
    "pack_b32_f16": _packed_halves,
    "pk_max_f16": _paired_halves(_HALVES["max_f16"]),
    "pk_min_f16": _paired_halves(_HALVES["min_f16"]),
    "fma_mix_f32": _mixed_whole,
    "fma_mixlo_f16": _mixed(False),
    "fma_mixhi_f16": _mixed(True),
    "ldexp_f32": _scaled,
    "div_scale_f32": _division_scale,
    "div_fmas_f32": _division_step,
    "div_fixup_f32": _division_end,
    "pk_add_f32": _packed(lambda a, b: a + b),
    "pk_mul_f32": _packed(lambda a, b: a * b),
    "pk_fma_f32": _packed(fma),
    "pk_mov_b32": _packed_move,
    "cvt_pk_bf16_f32": _packed_narrow(_rounded_bf16),
    "cvt_pk_f16_f32": _packed_narrow(_CONVERSIONS["cvt_f16_f32"]),
}


# --- comparisons -----------------------------------------------------------------------------------------

_FLOAT_COMPARE: dict[str, Function] = {
    **{name: fn for name, fn in COMPARE.items() if name != "ne"},
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}


def decode_comparison(i: Instruction) -> Step | None:
    """Return what a comparison of floats does to a wave; None for one that is not known."""
    match = re.match(r"v_cmp_(\w+)_f(16|32)$", i.name)
    if match is None or i.operands[0].kind is not Kind.SCALAR:
        return None
    out = i.operands[0].index
    if match[1] == "class" and match[2] == "32":
        return _class(i, out)
    if match[1] not in _FLOAT_COMPARE:
        return None
    fn = _FLOAT_COMPARE[match[1]]
    if match[2] == "32":
        a, b = (as_float(r) for r in sources(i))
    else:
        a, b = (half(o, word(o)) for o in i.operands[1:])
    return lambda w: w.set_mask(out, fn(a(w), b(w)))


def _class(i: Instruction, out: int) -> Step:
    """v_cmp_class_f32: whether x is of a kind whose bit is set."""
    x, kinds = sources(i)

    def step(w: Wave) -> None:
        value, chosen = every_lane(x(w)).view(F32), kinds(w)
        negative, size = np.signbit(value), np.abs(value)
        normal = np.isfinite(value) & (size >= TINY)
        is_kind = (
            np.isnan(value), np.isnan(value), np.isinf(value) & negative, normal & negative,
            _subnormal(value) & negative, (value == 0) & negative, (value == 0) & ~negative,
            _subnormal(value) & ~negative, normal & ~negative, np.isinf(value) & ~negative,
        )  # fmt: skip
        bits = (chosen >> U32(n) & U32(1) for n in range(len(is_kind)))
        w.set_mask(out, np.any([k & (b != 0) for k, b in zip(is_kind, bits, strict=True)], axis=0))

    return step


def check_modes(directives: Mapping[str, int]) -> None:
    """Refuse a kernel that rounds otherwise than to nearest even, or that flushes subnormal numbers."""
    wanted = {
        "float_round_mode_32": 0,
        "float_round_mode_16_64": 0,
        "float_denorm_mode_32": 3,
        "float_denorm_mode_16_64": 3,
        "dx10_clamp": 1,
    }
    for name, value in wanted.items():
        if directives.get(name, value) != value:
            raise Fault(FaultKind.UNKNOWN, f".amdhsa_{name} {directives[name]} is not emulated, only {value}")
