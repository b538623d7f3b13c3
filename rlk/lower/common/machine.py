"""Portable functions as text: an operation a line, most of them spelled alike by all backends."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from rlk.ir.portable import definition as portable_definition
from rlk.lower.common.lines import Function, Line

# 1 / d within 2e-3, highest power first: the Chebyshev polynomial of [1, 2.064]. Just below 2 it is too
# large: from below, Newton's step would round 1 / (2 - 2**-23) down (Markstein 2004). A test
# compares all d of [1, 2] with the division.
INVERSE = (-0.20604426, 1.2625691, -2.8429258, 2.7843392)


@dataclass(slots=True)
class TextMachine(ABC):
    """A machine of rlk.ir.portable whose values are names: every operation appends a line.

    calls: the prelude functions that lines call, in order of first use.
    """

    lines: list[Line] = field(default_factory=list)
    calls: dict[str, None] = field(default_factory=dict)
    real: ClassVar[str] = "f"  # what names of floats begin with

    def let(self, text: str, stem: str) -> str:
        name = f"{stem}{len(self.lines)}"
        self.lines.append(Line(f"{name} = {text}"))
        return name

    def call(self, name: str, *operands: str) -> str:
        """Return the text of a call of a prelude function."""
        self.calls[name] = None
        return f"{name}({', '.join(operands)})"

    def add(self, a: str, b: str) -> str:
        return self.let(f"{a} + {b}", self.real)

    def sub(self, a: str, b: str) -> str:
        return self.let(f"{a} - {b}", self.real)

    def mul(self, a: str, b: str) -> str:
        return self.let(f"{a} * {b}", self.real)

    def inverse(self, d: str) -> str:
        # a division takes 14 instructions and a branch; here a polynomial, a cubic step, and Newton's
        r, one, negative = self.f32(INVERSE[0]), self.f32(1.0), self.mul(d, self.f32(-1.0))
        for coefficient in INVERSE[1:]:
            r = self.fma(r, d, self.f32(coefficient))
        e = self.fma(r, negative, one)
        r = self.fma(r, self.fma(e, e, e), r)
        return self.fma(r, self.fma(r, negative, one), r)

    def lt(self, a: str, b: str) -> str:
        return f"({a} < {b})"

    def eq(self, a: str, b: str) -> str:
        return f"({a} == {b})"

    def ieq(self, a: str, b: str) -> str:
        return f"({a} == {b})"

    def iadd(self, a: str, b: str) -> str:
        return self.let(f"{a} + {b}", "i")

    def isub(self, a: str, b: str) -> str:
        return self.let(f"{a} - {b}", "i")

    def iand(self, a: str, b: str) -> str:
        return self.let(f"{a} & {b}", "i")

    def ior(self, a: str, b: str) -> str:
        return self.let(f"{a} | {b}", "i")

    def ixor(self, a: str, b: str) -> str:
        return self.let(f"{a} ^ {b}", "i")

    def shl(self, a: str, bits: int) -> str:
        return self.let(f"{a} << {bits}", "i")

    def sar(self, a: str, bits: int) -> str:
        return self.let(f"{a} >> {bits}", "i")

    @abstractmethod
    def f32(self, value: float) -> str: ...

    @abstractmethod
    def i32(self, value: int) -> str: ...

    @abstractmethod
    def div(self, a: str, b: str) -> str: ...

    @abstractmethod
    def fma(self, a: str, b: str, c: str) -> str: ...

    @abstractmethod
    def min(self, a: str, b: str) -> str: ...

    @abstractmethod
    def max(self, a: str, b: str) -> str: ...

    @abstractmethod
    def select(self, cond: str, a: str, b: str) -> str: ...

    @abstractmethod
    def as_i32(self, x: str) -> str: ...

    @abstractmethod
    def as_f32(self, i: str) -> str: ...

    @abstractmethod
    def to_f32(self, i: str) -> str: ...


def written(name: str, machine: TextMachine) -> Function:
    """Return the portable function of a name as a machine writes it."""
    definition = portable_definition(name)
    result = definition(machine, "x")
    lines = (*machine.lines, Line(f"return {result}"))
    about = (inspect.getdoc(definition) or name).splitlines()[0]
    return Function(f"portable_{name}", ("x",), about, lines, tuple(machine.calls))
