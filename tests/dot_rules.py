"""A slow chain16, term by term in Python's integers, and wrong rules beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rlk.ir.types import DType

NONE = -1000  # no floor


@dataclass(frozen=True, slots=True)
class Rule:
    """The least exponents of nonzero factors, of a nonzero accumulator and of a group, and a zero's sign."""

    factor: int
    acc: int = -126
    group: int = -133
    signed_zero: bool = False


RULES = {DType.BF16: Rule(-126), DType.F16: Rule(-14)}
"""Those of the docstring of DotModel."""


def wrong_rules(dtype: DType) -> dict[str, Rule]:
    """Return rules that differ from the true one in one thing, or in all, where a type can show it.

    Products of f16 are so large that only the floor of its factors is ever seen.
    """
    true = RULES[dtype]
    rules = {
        "every number is normalised": Rule(NONE, NONE, NONE, signed_zero=True),
        "factors are normalised": replace(true, factor=NONE),
        "factors' floor is lower": replace(true, factor=true.factor - 1),
        "factors' floor is higher": replace(true, factor=true.factor + 1),
    }
    if dtype is DType.BF16:
        rules |= {
            "accumulators are normalised": replace(true, acc=NONE),
            "accumulators' floor is lower": replace(true, acc=true.acc - 1),
            "accumulators' floor is higher": replace(true, acc=true.acc + 1),
            "groups have no floor": replace(true, group=NONE),
            "groups' floor is lower": replace(true, group=true.group - 1),
            "groups' floor is higher": replace(true, group=true.group + 1),
            "groups' floor is that of numbers": replace(true, group=-126),
            "zeros have the sum's sign": replace(true, signed_zero=True),
        }
    return rules


def _split(x: float) -> tuple[int, int]:
    """Return (m, e) with x = m * 2**e and 2**52 <= abs(m) < 2**53, for a finite x that is not zero."""
    fraction, e = math.frexp(x)
    return int(math.ldexp(fraction, 53)), e - 53


def _cut(m: int, e: int, unit: int) -> int:
    """Return how many whole 2**unit are in m * 2**e, toward zero."""
    size = abs(m) << (e - unit) if e >= unit else abs(m) >> (unit - e)
    return -size if m < 0 else size


def _rounded_to_zero(m: int, unit: int, signed_zero: bool) -> float:
    drop = max(abs(m).bit_length() - 24, -149 - unit, 0)
    size = abs(m) >> drop << drop
    value = math.ldexp(size, unit) if size.bit_length() + unit <= 128 else math.inf
    return math.copysign(value, m) if value or (m and signed_zero) else 0.0


def _exponent(x: float) -> int:
    return math.frexp(x)[1] - 1


def group(a: list[float], b: list[float], c: float, rule: Rule) -> float:
    """Return the result of one group of products and the accumulator c."""
    products = [x * y for x, y in zip(a, b, strict=True)]  # exact in f64
    if not all(map(math.isfinite, [*a, *b, c])):
        specials = [p for p in [*products, c] if not math.isfinite(p)]
        nan = any(map(math.isnan, specials)) or len(set(specials)) > 1
        return math.nan if nan else specials[0]
    floor = rule.factor
    exponents = [
        max(_exponent(x), floor) + max(_exponent(y), floor) for x, y in zip(a, b) if x != 0 and y != 0
    ]
    exponents += [max(_exponent(c), rule.acc)] * (c != 0)
    unit = max([*exponents, rule.group]) - 25
    total = sum(_cut(*_split(term), unit) for term in [*products, c] if term != 0)
    return _rounded_to_zero(total, unit, rule.signed_zero)


def chain16(a: np.ndarray, b: np.ndarray, acc: np.ndarray, rule: Rule) -> np.ndarray:
    """Return acc + a b^T under a rule, in f64 (which holds every product) and whole numbers."""
    out = np.zeros(acc.shape)
    for i, row in enumerate(a.tolist()):
        for n, column in enumerate(b.tolist()):
            c = float(acc[i, n])
            for k in range(0, len(row), 16):
                c = group(row[k : k + 16], column[k : k + 16], c, rule)
            out[i, n] = c
    with np.errstate(all="raise"):
        return out.astype(np.float32)
