"""Functions that generated Triton modules call: those of the prelude, and portable functions as text."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlk.lower.common.lines import Function
from rlk.lower.common.machine import TextMachine, written
from rlk.lower.common.prelude import PreludeFunction, prelude

SMALLEST_NORMAL = 2.0**-126
LARGEST = (2.0 - 2.0**-23) * 2.0**127  # a literal above it is an f64 to Triton


@cache
def functions() -> Mapping[str, PreludeFunction]:
    """Return the functions of Triton's prelude by name."""
    return prelude(Path(__file__).with_name("prelude.py"))


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


@cache
def portable(name: str) -> Function:
    """Return a portable function as a Triton function."""
    return written(name, TritonMachine())
