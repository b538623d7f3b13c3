"""Functions that generated CuTe modules call: those of the prelude, and portable functions as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlk.ir.types import DType
from rlk.lower.common.lines import Function
from rlk.lower.common.machine import TextMachine, written
from rlk.lower.common.prelude import Helper, PreludeFunction, prelude
from rlk.lower.cute.text import is_negative_zero, literal

__all__ = ["Helper", "functions", "portable"]


@cache
def functions() -> Mapping[str, PreludeFunction]:
    """Return the functions of CuTe's prelude by name."""
    return prelude(Path(__file__).with_name("prelude.py"))


class CuteMachine(TextMachine):
    """Spellings of CuTe DSL."""

    __slots__ = ()

    def f32(self, value: float) -> str:
        return self.call("negative_zero") if is_negative_zero(value) else literal(float(value), DType.F32)

    def i32(self, value: int) -> str:
        return literal(value, DType.I32)

    def mul(self, a: str, b: str) -> str:
        return self.let(self.call("mul", a, b), "f")

    def div(self, a: str, b: str) -> str:
        return self.let(self.call("div", a, b), "f")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(self.call("fma", a, b, c), "f")

    def min(self, a: str, b: str) -> str:
        return self.let(self.call("fmin", a, b), "f")

    def max(self, a: str, b: str) -> str:
        return self.let(self.call("fmax", a, b), "f")

    def select(self, cond: str, a: str, b: str) -> str:
        return self.let(self.call("select", cond, a, b), "f")

    def shl(self, a: str, bits: int) -> str:
        return self.let(f"{a} << Int32({bits})", "i")

    def sar(self, a: str, bits: int) -> str:
        return self.let(f"{a} >> Int32({bits})", "i")

    def as_i32(self, x: str) -> str:
        return self.let(f"Float32({x}).bitcast(Int32)", "i")

    def as_f32(self, i: str) -> str:
        return self.let(f"Int32({i}).bitcast(Float32)", "f")

    def to_f32(self, i: str) -> str:
        return self.let(f"Int32({i}).to(Float32)", "f")


@cache
def portable(name: str) -> Function:
    """Return a portable function as a function of one element."""
    return written(name, CuteMachine())
