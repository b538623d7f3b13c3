"""Which arithmetic a contraction has: the order of its products, and how their sums are cut and rounded."""

from __future__ import annotations

from enum import Enum

from rlk.ir.types import DType

GROUP = 16
FRACTION = 25
LEAVES = 8
"""Of chain16: products that enter one sum, and fraction bits that a term keeps; of leaf8: how many chains."""


class DotModel(Enum):
    """A rule that gives c[m, n] = acc[m, n] + sum over k of a[m, k] b[n, k] its bits.

    Every model is one f32 accumulator (acc, or +0.0) that takes k in ascending order, so a contraction may be
    cut where the model allows and continued from the accumulator. Tiles of m and n are never part of a rule.
    Every NaN is one NaN.

    chain16: the tensor core of sm_90 on bf16 or f16 factors (both of wgmma and of mma.sync). k advances in
    groups of 16; a last, shorter group is filled with zeros. One group makes c of the 17 terms c and a b:
      1. The exponent of a number is floor(log2(abs(x))), also of a subnormal one; of a product, the sum of
         its factors' exponents (so a product lies in [1, 4) times 2**exponent). Zeros have none.
      2. top is the largest exponent of the 17 terms; without one the result is +0.0.
      3. Products are exact. Each term is cut toward zero to a multiple of 2**(top - 25).
      4. The sum of the cut terms is exact, and is rounded toward zero to f32: to 24 significant bits, or to
         a multiple of 2**-149 if that is coarser. Subnormal results are kept. 2**128 and beyond are infinite.
         A sum of zero is +0.0; a negative one that is rounded to zero is -0.0.
      5. With an infinity or a NaN among factors or in c, the result is what IEEE arithmetic says: NaN for a
         NaN, for inf * 0 and for inf - inf, else the infinity. Finite products never overflow on their own.
    A group of zeros is the identity (but makes +0.0 of -0.0), so K may be padded with zeros and cut at every
    multiple of 16. The rule is the fused dot product of MMA-Sim, arXiv 2511.10909, but for the exponents of
    zeros and subnormal numbers, which have a floor there.

    On an H200 factors of usual and of wide exponents give no difference. Of an adversarial mix of 1,179,648
    bf16 outputs 47,446 differ: floors of factors' and groups' exponents at -126, which are not modelled yet,
    would explain all but 4,028 of them. `rlk doctor --probe-dot` shows them by family.

    fma: c = fma(a[m, k], b[n, k], c) for each k in ascending order, f32 factors, each step rounded once to
    nearest even. K may be cut anywhere.
    """

    CHAIN16 = "chain16"
    FMA = "fma"


FACTORS: dict[DotModel, frozenset[DType]] = {
    DotModel.CHAIN16: frozenset({DType.BF16, DType.F16}),
    DotModel.FMA: frozenset({DType.F32}),
}
"""The types of factors that a model is a rule for; both factors have one type, the accumulator is f32."""


STEP: dict[DotModel, int] = {DotModel.CHAIN16: GROUP, DotModel.FMA: 1}
"""A contraction continued from its accumulator at multiples of this has the bits of an uncut one."""


VALIDATED: dict[str, frozenset[DotModel]] = {"sm_90a": frozenset({DotModel.CHAIN16})}
"""The models that a target's matrix units have been compared with, bit by bit (`rlk doctor --probe-dot`).

fma is not a matter of targets: it is as portable as `Fma` wherever a lowering executes that chain.
"""


def validated(target: str) -> frozenset[DotModel]:
    """Return the models whose bits are known on a target."""
    return VALIDATED.get(target, frozenset()) | {DotModel.FMA}
