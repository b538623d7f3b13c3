"""Arithmetic models of contractions: the order of products, and the truncation and rounding of their sums."""

from __future__ import annotations

from enum import Enum

from rlk.ir.types import DType

GROUP = 16
FRACTION = 25
LEAVES = 8
"""Products in one sum of chain16; fraction bits of its truncated terms; chains of a leaf8 contraction."""


class DotModel(Enum):
    """A rule for the bits of c[m, n] = acc[m, n] + sum over k of a[m, k] b[n, k].

    In every model but integer one f32 accumulator (acc, or +0.0) takes k in ascending order, so a contraction
    may be cut where the model allows and continued from the accumulator. Tiles of m and n are never part of a
    rule. All NaNs are equal.

    chain16: the tensor core of sm_90 on bf16 or f16 factors (both of wgmma and of mma.sync). k advances in
    groups of 16; a last, shorter group is filled with zeros. One group makes c of the 17 terms c and a b:
      1. The exponent of a number x is floor(log2(abs(x))), but at least that of the smallest normal number of
         its type: -126 for a bf16 factor and for c, -14 for an f16 factor. So a subnormal number is not
         normalised. The exponent of a product is the sum of its factors'. A term that is zero has none.
      2. top is the largest exponent of the 17 terms, and at least -133 (so where c is zero, and all products
         are smaller).
      3. Products are exact. Each term is cut toward zero to a multiple of 2**(top - 25).
      4. The sum of the cut terms is exact, and is rounded toward zero to f32: to 24 significant bits, or to
         a multiple of 2**-149 if that is coarser. Subnormal results are not flushed. 2**128 and beyond are
         infinite. Every zero is +0.0, also a negative sum that is rounded to zero.
      5. With an infinity or a NaN among factors or in c, the result is that of IEEE arithmetic: NaN for a
         NaN, for inf * 0 and for inf - inf, else the infinity. Finite products never overflow on their own.
    No group results in -0.0, and a group of zeros is the identity on every other accumulator: K may be padded
    with zeros and cut at every multiple of 16. The rule is the fused dot product of MMA-Sim, arXiv
    2511.10909, but for zero terms, whose exponent there is -126.

    Outputs of an H200 with factors of six distributions (usual, wide, tiny, subnormal, huge, any bits) equal
    the model's; `rlk doctor --probe-dot` compares a device's.

    fma: c = fma(a[m, k], b[n, k], c) for each k in ascending order, f32 factors, each step rounded once to
    nearest even. K may be cut anywhere.

    cdna3, cdna2: the matrix units of gfx942 and gfx90a on bf16 or f16 factors, as published by MMA-Sim (arXiv
    2511.10909). Its authors compared them with devices; rlk's tests have not.

    cdna3: k advances in groups of 8. One group makes c of c and its products:
      1. The exponent of a number is that of chain16, but a zero has -126. The exponent of a product is the
         sum of its factors'; e is the largest of the group, top the larger of e and that of c.
      2. Products are exact, each is cut toward zero to a multiple of 2**(e - 24), and their sum is exact.
      3. The sum is rounded down to a multiple of 2**(top - 31), c down to one of 2**(top - 24).
      4. Both are added and rounded to nearest even to f32. Subnormal results are not flushed; a zero is +0.0
         unless a negative sum is rounded to it.
      5. With an infinity or a NaN the result is IEEE's; products beyond 2**128 are infinite.
    So a group of zeros is the identity on every accumulator but -0.0, and K may be cut at multiples of 8.

    integer: i8 factors, an i32 accumulator from 0, modulo 2**32. Sums of integers have no order: every target
    has these bits, and K may be cut anywhere. Nothing wraps for K up to 131071.

    cdna2: k advances in groups of 4. Factors and c that are subnormal in their type count as +0.0. Products
    are rounded to f32 (none is -0.0), added in pairs, the pairs added, their sum added to c; each result is
    rounded to nearest even, and subnormal results are flushed to a zero of their sign.
    """

    CHAIN16 = "chain16"
    FMA = "fma"
    CDNA3 = "cdna3"
    CDNA2 = "cdna2"
    INTEGER = "integer"


NATIVE: dict[str, DotModel] = {"gfx90a": DotModel.CDNA2, "gfx942": DotModel.CDNA3}
"""The models of targets' matrix units that stand in for chain16; for other targets no model is known."""


def native(target: str) -> DotModel:
    """Return the model of a target's products of 16-bit factors, as far as one is published."""
    return NATIVE.get(target, DotModel.CHAIN16)


FLOOR: dict[DType, int] = {DType.BF16: -126, DType.F16: -14, DType.F32: -126}
"""Of chain16 and cdna3: the least exponent of a number of a type that is not zero, as a factor or as c."""

LEAST = -133
"""The least value of `top` in chain16."""

FACTORS: dict[DotModel, frozenset[DType]] = {
    DotModel.CHAIN16: frozenset({DType.BF16, DType.F16}),
    DotModel.FMA: frozenset({DType.F32}),
    DotModel.CDNA3: frozenset({DType.BF16, DType.F16}),
    DotModel.CDNA2: frozenset({DType.BF16, DType.F16}),
    DotModel.INTEGER: frozenset({DType.I8}),
}
"""The dtypes of factors that a model covers; both factors have one dtype, the accumulator is f32, or i32."""


STEP: dict[DotModel, int] = {
    DotModel.CHAIN16: GROUP,
    DotModel.FMA: 1,
    DotModel.CDNA3: 8,
    DotModel.CDNA2: 4,
    DotModel.INTEGER: 1,
}
"""A contraction continued from its accumulator at multiples of this has the bits of an uncut one."""


VALIDATED: dict[str, frozenset[DotModel]] = {"sm_90a": frozenset({DotModel.CHAIN16})}
"""The models that a target's matrix units have been compared with, bit by bit (`rlk doctor --probe-dot`).

fma is valid on every target: a lowering executes it as a chain of `Fma`. So is integer, whose sums are exact.
"""


def validated(target: str) -> frozenset[DotModel]:
    """Return the models whose bits are known on a target."""
    return VALIDATED.get(target, frozenset()) | {DotModel.FMA, DotModel.INTEGER}
