"""Matrix instructions (MFMA): element layouts on lanes, and the order of their sums.

The sums follow MMA-Sim, arXiv 2511.10909, whose authors compared them with CDNA2 and CDNA3 hardware. Of CDNA4
no rule is known: a sum that one could change is a fault. This is written apart from the oracle: in f64, whole
tiles at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp.scalar import fma
from rlk.testing.simulators.cdna import access
from rlk.testing.simulators.cdna.access import Step
from rlk.testing.simulators.cdna.cdna4 import TARGET
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.text import Instruction, Kind, Operand
from rlk.testing.simulators.cdna.wave import LANE, LANES, Wave

Array = NDArray[Any]
Sum = Callable[[Array, Array, Array], Array]  # a[M, K], b[N, K], c[M, N] -> d[M, N]

FLOOR = {"f16": -14, "bf16": -126, "f32": -126}
"""The least exponent of a normal number of each type."""
ZERO = -126
"""The exponent that a zero counts with."""
SHAPES = {
    "f16": {(16, 16), (32, 8)},
    "bf16": {(16, 16), (32, 8)},
    "f32": {(16, 4), (32, 2)},
    "i8": {(16, 32), (32, 16)},
}  # fmt: skip
"""Rows (and columns), and depth, of the instructions with one block, by the factors' type."""
DEEP = {(16, 32), (32, 16)}
"""Of CDNA4 too, for factors of 16 bits."""


@dataclass(frozen=True, slots=True)
class Shape:
    """rows x rows outputs of depth products each; a lane holds `own` neighbouring k of one row."""

    rows: int
    depth: int
    kind: str

    @property
    def own(self) -> int:
        return self.depth // (LANES // self.rows)

    @property
    def registers(self) -> int:
        """Registers of a factor."""
        return max(1, self.own // {"f32": 1, "i8": 4}.get(self.kind, 2))

    @property
    def sums(self) -> type[np.generic]:
        """The type of the accumulator."""
        return np.int32 if self.kind == "i8" else np.float32

    @property
    def results(self) -> int:
        """Registers of the accumulator."""
        return self.rows * self.rows // LANES


def decode(i: Instruction, target: str, sums: str) -> Step | None:
    """Return what a matrix instruction does to a wave, by the sums of a target; None for one not known."""
    match = re.match(r"v_mfma_(?:f32|i32)_(\d+)x\d+x(\d+)_?(f16|bf16|f32|i8)(_1k)?$", i.name)
    if match is None or any(i.number(m) for m in ("cbsz", "abid", "blgp")):
        return None
    shape = Shape(int(match[1]), int(match[2]), match[3])
    deep = DEEP if target == TARGET and shape.kind in ("f16", "bf16") else set()
    if (shape.rows, shape.depth) not in SHAPES[shape.kind] | deep:
        return None
    if shape.kind == "bf16" and target == "gfx90a" and not match[4]:
        return None  # the older instruction sums pairs, not fours
    return _step(i, shape, summation(shape, sums))


def summation(shape: Shape, target: str) -> Sum:
    """Return how a target sums the products of a matrix instruction."""
    if shape.kind == "i8":
        return whole
    floor = FLOOR[shape.kind]
    if target == TARGET:
        return lambda a, b, c: undisputed(a, b, c, floor)
    if shape.kind == "f32":
        return chained
    if target == "gfx90a":
        return lambda a, b, c: paired(a, b, c, floor)
    return lambda a, b, c: fused(a, b, c, floor)


def _step(i: Instruction, shape: Shape, total: Sum) -> Step:
    a, b, c = (
        _factor(i.operands[1], shape),
        _factor(i.operands[2], shape),
        _accumulator(i.operands[3], shape),
    )
    out = access.rows(i.operands[0], shape.results)
    rows, columns = places(shape)

    def step(w: Wave) -> None:
        result = total(a(w), b(w), c(w)).astype(shape.sums)
        out(w)[:] = result[rows, columns].view(np.uint32)  # EXEC does not matter here

    return step


def places(shape: Shape) -> tuple[Array, Array]:
    """Return the row and the column of each accumulator register in each lane."""
    part = np.arange(shape.results)[:, None]
    block = LANE // shape.rows
    if shape.rows == 16:
        rows = 4 * block + part
    else:
        rows = 8 * (part // 4) + 4 * block + part % 4
    return rows, np.broadcast_to(LANE % shape.rows, rows.shape)


def _factor(operand: Operand, shape: Shape) -> Callable[[Wave], Array]:
    """Return the reader of a factor as [row, k]: lane / rows counts blocks of `own` neighbouring k."""
    read = access.words(operand, shape.registers)

    def get(w: Wave) -> Array:
        raw = np.ascontiguousarray(read(w).T)
        elements = _numbers(raw, shape.kind)
        return (
            elements.reshape(LANES // shape.rows, shape.rows, shape.own)
            .transpose(1, 0, 2)
            .reshape(shape.rows, -1)
        )

    return get


def _numbers(raw: Array, kind: str) -> Array:
    match kind:
        case "f16":
            return raw.view(np.float16).astype(np.float32)
        case "bf16":
            return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "i8":
            return raw.view(np.int8)
        case _:
            return raw.view(np.float32)


def _accumulator(operand: Operand, shape: Shape) -> Callable[[Wave], Array]:
    square = (shape.rows, shape.rows)
    if operand.kind is Kind.LITERAL:
        constant = np.full(square, np.uint32(operand.value)).view(shape.sums)
        return lambda w: constant
    read = access.words(operand, shape.results)
    rows, columns = places(shape)

    def get(w: Wave) -> Array:
        c = np.empty(square, shape.sums)
        c[rows, columns] = read(w).view(shape.sums)
        return c

    return get


# --- sums ------------------------------------------------------------------------------------------------


def whole(a: Array, b: Array, c: Array) -> Array:
    """i8, every CDNA: sums modulo 2**32, in any order."""
    return c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64).T


def chained(a: Array, b: Array, c: Array) -> Array:
    """f32, every CDNA: a chain of fma over k, ascending."""
    for k in range(a.shape[1]):
        c = fma(*np.broadcast_arrays(a[:, k, None], b[None, :, k], c))
    return c


def undisputed(a: Array, b: Array, c: Array, floor: int) -> Array:
    """Return sums that no rule which keeps the 24 bits of f32 can change; raise Fault where one could.

    Every partial sum is a multiple of the lowest bit that a product or c has, and at most 2**24 of it. No
    number is subnormal, infinite or NaN.
    """
    a, b, c = (x.astype(np.float64) for x in (a, b, c))
    unit = np.minimum(np.outer(_lowest(a).min(1), _lowest(b).min(1)), _lowest(c))
    size = np.abs(a) @ np.abs(b).T + np.abs(c)
    tiny = any(((x != 0) & (np.abs(x) < 2.0**floor)).any() for x in (a, b))
    with np.errstate(invalid="ignore"):
        agreed = (size <= 2.0**24 * unit) & (unit >= 2.0**-126) & ~((size == 0) & np.signbit(c))
    if tiny or not agreed.all():
        raise Fault(FaultKind.UNPUBLISHED, "sums of products that depend on the rule")
    return a @ b.T + c


def _lowest(x: Array) -> Array:
    """Return the value of the lowest bit that is set in each f32; zero has an infinite one, NaN and inf 0."""
    fraction, exponent = np.frexp(x)
    whole = np.ldexp(np.where(np.isfinite(x), fraction, 0), 24).astype(np.int64)
    return np.where(x == 0, np.inf, np.ldexp((whole & -whole).astype(np.float64), exponent - 24))


def fused(a: Array, b: Array, c: Array, floor: int) -> Array:
    """f16 and bf16 on CDNA3: 8 products at a time, aligned to the largest, cut, and added to c."""
    for first in range(0, a.shape[1], 8):
        part = slice(first, first + 8)
        c = _fused_group(a[:, part].astype(np.float64), b[:, part].astype(np.float64), c, floor)
    return c


def _fused_group(a: Array, b: Array, c: Array, floor: int) -> Array:
    # terms[k, M, N]: NumPy reduces a leading dim several times faster than a short last one
    x, y = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(b.T)[:, None]
    largest = (_exponents(x, floor) + _exponents(y, floor)).max(0)
    with np.errstate(all="ignore"):
        products = x * y  # exact
        plain = products.sum(0) + c
        wild = ~np.isfinite(plain)
        over = (products >= 2.0**128).any(0), (products <= -(2.0**128)).any(0)
        kept = np.trunc(np.ldexp(products, 24 - largest)).sum(0)  # in units of 2**(largest - 24)
        top = np.maximum(largest, _exponents(c.astype(np.float64), -126))
        products_part = np.floor(np.ldexp(kept, largest - top + 7))  # in units of 2**(top - 31)
        c_part = np.floor(np.ldexp(c.astype(np.float64), 24 - top))  # in units of 2**(top - 24)
        total = products_part + 128.0 * c_part + 0.0  # an exact zero is +0.0
        result = np.ldexp(total, top - 31)
        result = np.where(over[0], np.where(over[1], np.nan, np.inf), np.where(over[1], -np.inf, result))
        return np.where(wild, plain, result).astype(np.float32)


def _exponents(x: Array, floor: int) -> Array:
    return np.where(x == 0, ZERO, np.maximum(np.frexp(x)[1] - 1, floor))


def paired(a: Array, b: Array, c: Array, floor: int) -> Array:
    """f16 and bf16 on CDNA2: four products in pairs, every step rounded, subnormal numbers as zero."""
    tiny = np.float32(2.0**floor)
    a, b = (np.where(np.abs(x) < tiny, np.float32(0), x) for x in (a, b))
    c = np.where(np.abs(c) < np.float32(2.0**-126), np.float32(0), c)
    with np.errstate(all="ignore"):
        for k in range(0, a.shape[1], 4):
            w, x, y, z = (_product(a[:, None, k + n], b[None, :, k + n]) for n in range(4))
            c = _flushed(c + _flushed(_flushed(w + x) + _flushed(y + z)))
    return c


def _product(a: Array, b: Array) -> Array:
    """Return fma(a, b, +0.0): the product of a zero is +0.0, one that underflows keeps its sign."""
    product = a * b
    return _flushed(np.where((product == 0) & ((a == 0) | (b == 0)), np.float32(0), product))


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)
