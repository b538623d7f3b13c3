"""Fit the minimax coefficients that rlk/ir/portable.py freezes; run once, and print them as f32 literals.

Each fit minimises max |weight * (target - sum c_k x**k)| by Lawson's reweighting on a dense Chebyshev grid,
then rounds the coefficients to f32 one by one, lowest power first, refitting the others after each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
from numpy.typing import NDArray

mp.mp.dps = 60
GRID = 1201
ROUNDS = 300
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """target and weight as functions of x; the polynomial is in base(x), of `terms` coefficients."""

    name: str
    low: float
    high: float
    terms: int
    target: Callable[[Any], Any]
    weight: Callable[[Any], Any]
    base: Callable[[Any], Any] = lambda x: x
    fixed: tuple[float, ...] = ()  # the lowest coefficients, given


def square(x: Any) -> Any:
    return x * x


def log_tail(x: Any) -> Any:
    return (mp.log1p(x) - x + x * x / 2) / x**3


def log2_tail(x: Any) -> Any:
    return (mp.log1p(x) - x) / x**2 / mp.log(2)


def expm1_tail(x: Any) -> Any:
    return (mp.expm1(x) - x) / x**2


def k3(x: Any) -> Any:
    return mp.expm1(x) - x


def cos_tail(x: Any) -> Any:
    return (mp.cos(x) - 1 + x * x / 2) / x**4


FITS = (
    # 2**g = 1 + g P(g); the part above 1/2 serves only arguments in (127.5, 128)
    Fit("EXP2", -0.5, 1.0, 6, lambda x: (mp.mpf(2) ** x - 1) / x, lambda x: x / mp.mpf(2) ** x),
    Fit("EXP", -0.347, 0.347, 5, expm1_tail, lambda x: x**2 / mp.exp(x)),
    Fit("LOG", -0.2501, 0.5001, 8, log_tail, lambda x: x**3 / mp.log1p(x)),
    Fit("LOG2", -0.25, 0.5, 9, log2_tail, lambda x: x**2 / mp.log1p(x) * mp.log(2)),
    Fit("EXPM1", -0.347, 0.347, 6, expm1_tail, lambda x: x**2 / mp.expm1(x)),
    Fit("K3", -0.75, 0.75, 8, lambda x: k3(x) / x**2, lambda x: x**2 / k3(x), fixed=(0.5,)),
    Fit("TANH", 0.0, 0.56, 5, lambda x: (mp.tanh(x) - x) / x**3, lambda x: x**3 / mp.tanh(x), square),
    # erf(x) = x + x P(x**2); erfc(x) = exp(x Q(x) - x)
    Fit("ERF", 0.0, 0.93, 6, lambda x: mp.erf(x) / x - 1, lambda x: x / mp.erf(x), square),
    Fit("ERFC", 0.92, 4.0, 7, lambda x: mp.log(mp.erfc(x)) / x + 1, lambda x: x * mp.erfc(x) / mp.erf(x)),
    Fit("SIN", 0.0, 0.8, 4, lambda x: (mp.sin(x) - x) / x**3, lambda x: x**3 / mp.sin(x), square),
    Fit("COS", 0.0, 0.8, 4, cos_tail, lambda x: x**4 / mp.cos(x), square),
)


def minimax(matrix: F64, target: F64, weight: F64) -> F64:
    """Return the coefficients of least maximal weighted error, by Lawson's iteration."""
    measure = np.full(len(target), 1.0 / len(target))
    best, least = np.zeros(matrix.shape[1]), np.inf
    for _ in range(ROUNDS):
        root = np.sqrt(measure) * weight
        found = np.linalg.lstsq(matrix * root[:, None], target * root, rcond=None)[0]
        error = np.abs(weight * (target - matrix @ found))
        if error.max() < least:
            best, least = found, error.max()
        measure *= error
        measure = np.maximum(measure / measure.sum(), 1e-300)
    return best


def solve(fit: Fit) -> tuple[list[float], float]:
    """Return the rounded coefficients, lowest power first, and the largest weighted error."""
    angles = np.cos(np.pi * (np.arange(GRID) + 0.5) / GRID)
    points = [mp.mpf(float((fit.low + fit.high) / 2 + (fit.high - fit.low) / 2 * a)) for a in angles]
    points = [p for p in points if abs(p) > 1e-9]
    target = np.array([float(fit.target(p)) for p in points])
    weight = np.array([float(fit.weight(p)) for p in points])
    base = np.array([float(fit.base(p)) for p in points])
    powers = base[:, None] ** np.arange(fit.terms)
    rounded = [float(np.float32(c)) for c in fit.fixed]
    while len(rounded) < fit.terms:
        done = len(rounded)
        rest = target - powers[:, :done] @ np.array(rounded)
        rounded.append(float(np.float32(minimax(powers[:, done:], rest, weight)[0])))
    error = np.abs(weight * (target - powers @ np.array(rounded))).max()
    return rounded, float(error)


def main() -> None:
    for fit in FITS:
        coefficients, error = solve(fit)
        text = ", ".join(str(np.float32(c)) for c in reversed(coefficients))
        print(f"# relative error {error:.2e} = {error * 2**24:.2f} * 2**-24 on [{fit.low}, {fit.high}]")
        print(f"{fit.name} = ({text})", flush=True)


if __name__ == "__main__":
    main()
