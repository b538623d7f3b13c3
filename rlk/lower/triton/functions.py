"""The text of portable functions: each as a Triton function, one operation a line."""

from __future__ import annotations

import math
import struct

from rlk.lower.common.lines import Function, Line
from rlk.lower.common.machine import TextMachine, written

SMALLEST_NORMAL = 2.0**-126
_LOW, _HIGH = 0x21800000, 0x5D800000  # 2**-60 and 2**60: between them nothing that corrects is rounded away
LARGEST = (2.0 - 2.0**-23) * 2.0**127  # a literal above it is an f64 to Triton


NEGATIVE_ZERO = Function(
    "negative_zero",
    (),
    "Triton reads the literal -0.0 as +0.0.",
    (Line("return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)"),),
)


PHILOX = Function(
    "philox",
    ("c0", "c1", "c2", "c3", "k0", "k1"),
    "Four random words: Philox 4x32-10.",
    (
        Line("for _ in tl.static_range(10):"),
        Line("    high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53"),
        Line("    high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57"),
        Line("    c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0"),
        Line("    k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85"),
        Line("return c0, c1, c2, c3"),
    ),
)
SIGNED_HALF = Function(
    "signed_half",
    ("x",),
    "LLVM's AMD backend casts a product to f16 as f16(a * b + 0.0), which loses the sign of a zero.",
    (
        Line("half = x.to(tl.float16).to(tl.int16, bitcast=True)"),
        Line("sign = (x.to(tl.int32, bitcast=True) >> 16).to(tl.int16) & -32768"),
        Line("return (half | sign).to(tl.float16, bitcast=True)"),
    ),
)
DIVIDED = Function(
    "divided",
    ("x", "by"),
    "Rows over a number of each, rounded once: corrected twice where nothing is very small or large.",
    (
        Line("bits, below = x.to(tl.uint32, bitcast=True), by.to(tl.int32, bitcast=True)"),
        Line("least = (tl.min(bits * 2 - 1, 1) >> 1).to(tl.int32)[:, None]  # of magnitudes but zeros"),
        Line("most = tl.sum(tl.abs(x), 1).to(tl.int32, bitcast=True)[:, None]  # at least"),
        Line(f"room = (least - {_LOW - 1:#x}) | ({_HIGH:#x} - most)"),
        Line(f"room = room | (below - {_LOW:#x}) | ({_HIGH:#x} - below)"),
        Line("if tl.min(tl.min(room, 1), 0) >= 0:"),
        Line("    inverse, negative = tl.div_rn(1.0, by), x * -1.0"),
        Line("    near = x * inverse"),
        Line("    near = tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)  # zeros keep their signs"),
        Line("    quotients = tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)"),
        Line("else:"),
        Line("    quotients = tl.div_rn(x, by)"),
        Line("return quotients"),
    ),
)


def float_literal(value: float) -> str:
    """Return text that Triton reads as exactly this f32."""
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    negative_zero = single == 0 and math.copysign(1.0, single) < 0
    if negative_zero or 0 < abs(single) < SMALLEST_NORMAL:  # Triton reads them as +0.0, and as an f64
        bits = struct.unpack("<i", struct.pack("<f", value))[0]
        return f"tl.full((), {bits}, tl.int32).to(tl.float32, bitcast=True)"
    return repr(_short(single))


def _short(single: float) -> float:
    """Return the decimal with the fewest digits that still rounds to this f32."""
    for digits in range(6, 10):
        short = float(f"{single:.{digits}g}")
        if abs(short) <= LARGEST and struct.pack("<f", short) == struct.pack("<f", single):
            return short
    return single


class TritonMachine(TextMachine):
    """The operations of portable functions in Triton."""

    __slots__ = ()

    def f32(self, value: float) -> str:
        return float_literal(value)

    def i32(self, value: int) -> str:
        return str(value)

    def div(self, a: str, b: str) -> str:
        return self.let(f"tl.div_rn({a}, {b})", "f")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(f"tl.fma({a}, {b}, {c})", "f")

    def min(self, a: str, b: str) -> str:
        return self.let(f"tl.minimum({a}, {b})", "f")

    def max(self, a: str, b: str) -> str:
        return self.let(f"tl.maximum({a}, {b})", "f")

    def select(self, cond: str, a: str, b: str) -> str:
        return self.let(f"tl.where({cond}, {a}, {b})", "f")

    def as_i32(self, x: str) -> str:
        return self.let(f"{x}.to(tl.int32, bitcast=True)", "i")

    def as_f32(self, i: str) -> str:
        return self.let(f"{i}.to(tl.float32, bitcast=True)", "f")

    def to_f32(self, i: str) -> str:
        return self.let(f"{i}.to(tl.float32)", "f")


def portable(name: str) -> Function:
    """Return a portable function as a Triton function."""
    return written(name, TritonMachine())
