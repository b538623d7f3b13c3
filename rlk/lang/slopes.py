"""The derivatives of elementwise functions: one rule for each function of tile IR."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

from rlk.ir.nodes import Fn1, Fn2, MathFn
from rlk.lang.folds import LN2
from rlk.lang.surface import L
from rlk.lang.trace import Tile

LOG2E = 1.4426950408889634


class At(Protocol):
    """A node of the forward: its value y and its operands, computed in the gradient only if a rule asks."""

    @property
    def y(self) -> Tile: ...
    @property
    def a(self) -> Tile: ...
    @property
    def b(self) -> Tile: ...


Slope = Callable[[Tile, At], Tile]
"""Returns the cotangent of an operand, given g, that of the result."""


def same(g: Tile, at: At) -> Tile:
    """The slope of sums, casts between floats, and materialized values."""
    return g


MATH: Mapping[MathFn, Slope] = {
    MathFn.EXP2: lambda g, at: g * (at.y * LN2),
    MathFn.EXP: lambda g, at: g * at.y,
    MathFn.LOG2: lambda g, at: (g / at.a) * LOG2E,
    MathFn.LOG: lambda g, at: g / at.a,
    MathFn.EXPM1: lambda g, at: g * L.exp(at.a),
    MathFn.LOG1P: lambda g, at: g / (at.a + 1.0),
    MathFn.TANH: lambda g, at: g * L.fma(-at.y, at.y, 1.0),
    MathFn.ERF: lambda g, at: g * (L.exp(-(at.a * at.a)) * (2.0 / math.sqrt(math.pi))),
    MathFn.SIGMOID: lambda g, at: g * (at.y * L.sigmoid(-at.a)),
    MathFn.RSQRT: lambda g, at: g * (((at.y * at.y) * at.y) * -0.5),
    MathFn.SIN: lambda g, at: g * L.cos(at.a),
    MathFn.COS: lambda g, at: -(g * L.sin(at.a)),
    MathFn.K3: lambda g, at: g * L.expm1(at.a),
}

MAP1: Mapping[Fn1, Slope | None] = {
    Fn1.NEG: lambda g, at: -g,
    Fn1.ABS: lambda g, at: L.where(at.a > 0.0, g, L.where(at.a < 0.0, -g, 0.0)),  # 0 at 0
    Fn1.SQRT: lambda g, at: (g * 0.5) / at.y,
    Fn1.FLOOR: None,
    Fn1.NOT: None,
    Fn1.ISNAN: None,
}
"""None: the slope is 0 wherever there is one."""

MAP2: Mapping[Fn2, tuple[Slope, Slope]] = {
    Fn2.ADD: (same, same),
    Fn2.SUB: (same, lambda g, at: -g),
    Fn2.MUL: (lambda g, at: g * at.b, lambda g, at: g * at.a),
    Fn2.DIV: (lambda g, at: g / at.b, lambda g, at: -((g / at.b) * at.y)),
    # of two equal operands the first has the slope; NaN loses, and equals nothing
    Fn2.MAX: (lambda g, at: L.where(at.y == at.a, g, 0.0), lambda g, at: L.where(at.y == at.a, 0.0, g)),
    Fn2.MIN: (lambda g, at: L.where(at.y == at.a, g, 0.0), lambda g, at: L.where(at.y == at.a, 0.0, g)),
}
"""The functions of two floats; all others are of integers and conditions."""
