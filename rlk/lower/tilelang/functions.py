"""Functions that generated TileLang modules call: those of the preludes, and portable functions as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from rlk.ir.types import DType
from rlk.lower.common.lines import Function
from rlk.lower.common.machine import TextMachine, written
from rlk.lower.common.prelude import PreludeFunction, prelude
from rlk.lower.tilelang.text import literal, variable

FRAME = ("memory", "f32")
"""The functions of every module: parameters and literals call them."""


@cache
def functions(vendor: str) -> Mapping[str, PreludeFunction]:
    """Return the functions of TileLang's preludes for a vendor's devices by name."""
    here = Path(__file__)
    return prelude(here.with_name("prelude.py"), here.with_name(f"prelude_{vendor}.py"))


class TileLangMachine(TextMachine):
    """The operations of portable functions in TileLang."""

    __slots__ = ()
    real = "y"

    def let(self, text: str, stem: str) -> str:
        return super().let(variable(text, DType.I32 if stem == "i" else DType.F32), stem)

    def f32(self, value: float) -> str:
        return literal(value, DType.F32)

    def i32(self, value: int) -> str:
        return literal(value, DType.I32)

    def div(self, a: str, b: str) -> str:
        return self.let(f"{a} / {b}", "y")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.let(self.call("fma", a, b, c), "y")

    def min(self, a: str, b: str) -> str:
        return self.let(self.call("smaller", a, b), "y")

    def max(self, a: str, b: str) -> str:
        return self.let(self.call("larger", a, b), "y")

    def lt(self, a: str, b: str) -> str:
        return f"{a} < {b}"

    def eq(self, a: str, b: str) -> str:
        # TileLang takes x == x for true, of a NaN too
        return f"tl.Not({self.call('is_nan', a)})" if a == b else f"{a} == {b}"

    def select(self, cond: str, a: str, b: str) -> str:
        return self.let(f"tl.Select({cond}, {a}, {b})", "y")

    def ieq(self, a: str, b: str) -> str:
        return f"{a} == {b}"

    def as_i32(self, x: str) -> str:
        return self.let(self.call("bits_of", x), "i")

    def as_f32(self, i: str) -> str:
        return self.let(self.call("number_of", i), "y")

    def to_f32(self, i: str) -> str:
        return self.let(f'tl.Cast("float32", {i})', "y")


@cache
def portable(name: str) -> Function:
    """Return a portable function as a TileLang macro."""
    return written(name, TileLangMachine())
