"""A compiled dot has the bits of its rule in Python's whole numbers, and both have those of a device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import dot_rules
import numba
import numpy as np
import pytest

from rlk.interp import chain16 as code
from rlk.interp.dot import dot, leaf8
from rlk.interp.floats import bf16_bits, bf16_from_bits, f16_from_bits, fma, to_bf16
from rlk.ir.dotmodel import FACTORS, FLOOR, STEP, DotModel, validated
from rlk.ir.types import DType
from rlk.testing.bits import as_bits, assert_same_bits, differing
from rlk.testing.probe_dot import FAMILIES, accumulators, factors

f = np.float32
CHAIN16, FMA = DotModel.CHAIN16, DotModel.FMA
BF16, F16, F32 = DType.BF16, DType.F16, DType.F32
RECORDED = Path(__file__).parent / "recorded" / "dots_sm_90.npz"
"""What an H200 computed, by wgmma and by mma.sync alike: 64 outputs of each family and type of factors."""


def chain16(a: np.ndarray, b: np.ndarray, acc: np.ndarray | None = None, dtype: DType = BF16) -> np.ndarray:
    return dot(a, b, CHAIN16, dtype, acc)


def reference(a: np.ndarray, b: np.ndarray, acc: np.ndarray, dtype: DType = BF16) -> np.ndarray:
    return dot_rules.chain16(a, b, acc, dot_rules.RULES[dtype])


# --- inputs ---


def reference_cases(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, DType]]:
    rng = np.random.default_rng(count)
    cases = []
    for dtype in (BF16, F16):
        for family in FAMILIES:
            for k in (16, 23):
                a = factors(rng, (count, k), dtype.value, family)
                b = factors(rng, (70, k), dtype.value, family if rng.random() < 0.7 else "normal")
                cases.append((a, b, accumulators(rng, a, b), dtype))
    return cases


@cache
def recorded(dtype: DType) -> dict[str, tuple[np.ndarray, ...]]:
    """Return (a, b, acc, y) by family of what a device computed."""
    decode = bf16_from_bits if dtype is BF16 else f16_from_bits
    found = {}
    with np.load(RECORDED) as file:
        for family in sorted({name.split(".")[1] for name in file if name.startswith(f"{dtype}.")}):
            a, b, acc, y = (file[f"{dtype}.{family}.{part}"] for part in ("a", "b", "acc", "y"))
            found[family] = (decode(a), decode(b), acc.view(f), y.view(f))
    return found


# --- chain16 ---


def test_chain16_has_the_bits_of_its_rule() -> None:
    compared = 0
    for a, b, acc, dtype in reference_cases(40):
        want = reference(a, b, acc, dtype)
        assert_same_bits(chain16(a, b, acc, dtype), want)
        compared += want.size
    assert compared >= 10**5


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_chain16_has_the_bits_of_a_device_near_the_smallest_numbers(dtype: DType) -> None:
    assert {"subnormal", "two terms"} <= set(recorded(dtype))
    for a, b, acc, y in recorded(dtype).values():
        assert_same_bits(chain16(a, b, acc, dtype), y)
        assert_same_bits(reference(a, b, acc, dtype), y)


@pytest.mark.parametrize(
    ("dtype", "wrong"), [(dtype, wrong) for dtype in (BF16, F16) for wrong in dot_rules.wrong_rules(dtype)]
)
def test_what_a_device_computed_tells_every_other_rule_apart(dtype: DType, wrong: str) -> None:
    """Negative control: a floor that is absent or moved by one, and the sign of a sum that is cut to zero."""
    rule = dot_rules.wrong_rules(dtype)[wrong]
    assert (
        sum(differing(dot_rules.chain16(a, b, acc, rule), y) for a, b, acc, y in recorded(dtype).values())
        >= 5
    )


def test_the_reference_is_no_sum_of_another_kind() -> None:
    """Negative control: rounding to nearest, a wider sum or groups of 8 are seen."""
    rng = np.random.default_rng(1)
    a, b = (factors(rng, (20, 64), "bf16", "normal") for _ in range(2))
    want = chain16(a, b)
    nearest = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(f)
    halves = np.zeros_like(want)
    for k in range(0, 64, 8):
        halves = chain16(a[:, k : k + 8], b[:, k : k + 8], halves)
    assert differing(nearest, want) > want.size // 4 and differing(halves, want) > want.size // 10


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 130, 40), (200, 5, 33), (2, 64, 0), (0, 7, 16), (7, 0, 16)])
def test_any_shape_has_the_bits_of_its_rule(shape: tuple[int, int, int]) -> None:
    rows, columns, k = shape
    rng = np.random.default_rng(2)
    a, b = (factors(rng, (n, k), "bf16", "wide") for n in (rows, columns))
    acc = np.zeros((rows, columns), f)
    assert_same_bits(chain16(a, b), reference(a, b, acc) if acc.size else acc)


def test_a_group_of_zeros_is_the_identity() -> None:
    rng = np.random.default_rng(3)
    a, b = factors(rng, (30, 48), "bf16", "wide"), factors(rng, (40, 48), "bf16", "normal")
    want = chain16(a, b)
    wide_a, wide_b = (np.pad(x, ((0, 0), (0, 80))) for x in (a, b))
    assert_same_bits(chain16(wide_a, wide_b), want)
    # one zero factor is enough, however large the other is
    wide_b[:, 48:] = 2.0**120
    assert_same_bits(chain16(wide_a, wide_b), want)
    assert_same_bits(chain16(np.zeros((1, 16), f), np.zeros((1, 16), f), np.full((1, 1), -0.0, f)), [[f(0)]])


def test_k_may_be_cut_at_groups_and_nowhere_else() -> None:
    rng = np.random.default_rng(4)
    a, b = (factors(rng, (40, 160), "bf16", "wide") for _ in range(2))
    whole = chain16(a, b)
    for at in (16, 64, 144):
        assert_same_bits(chain16(a[:, at:], b[:, at:], chain16(a[:, :at], b[:, :at])), whole)
    for at in (8, 60, 150):
        parts = chain16(a[:, at:], b[:, at:], chain16(a[:, :at], b[:, :at]))
        assert differing(parts, whole) > whole.size // 100
    permuted = np.roll(np.arange(160), 16)
    assert differing(chain16(a[:, permuted], b[:, permuted]), whole) > whole.size // 100


def test_rows_and_columns_do_not_see_one_another() -> None:
    rng = np.random.default_rng(5)
    a, b = factors(rng, (70, 64), "bf16", "wide"), factors(rng, (90, 64), "bf16", "wide")
    whole = chain16(a, b)
    a[3], b[5] = np.nan, np.inf
    spoilt = chain16(a, b)
    rows, columns = np.delete(np.arange(70), 3), np.delete(np.arange(90), 5)
    assert np.isnan(spoilt[3]).all()
    assert_same_bits(spoilt[np.ix_(rows, columns)], whole[np.ix_(rows, columns)])
    assert_same_bits(chain16(b, a).T, spoilt)
    assert_same_bits(chain16(a[7:9], b[60:61]), spoilt[7:9, 60:61])


@pytest.mark.parametrize(
    ("terms", "acc", "want"),
    [
        ([(1.0, 1.0), (-1.0, 1.0)], 0.0, 0.0),
        ([(-1.0, 2.0**-20)], 2.0**-20, 0.0),
        ([(0.0, 5.0)], -0.0, 0.0),
        ([(-(2.0**-100), 2.0**-60)], 0.0, 0.0),
        ([(2.0**-133, 2.0**120), (2.0**-16, 2.0**-16)], 0.0, 2.0**-13),
        ([(2.0**-133, 2.0**120), (2.0**-15, 2.0**-16)], 0.0, 2.0**-13 + 2.0**-31),
        ([(2.0**-76, 2.0**-76)], -(2.0**-130), -(2.0**-130)),
        ([(2.0**-75, 2.0**-76)], -(2.0**-130), -(2.0**-130 - 2.0**-149)),
        ([(2.0**-75, 2.0**-74), (-(2.0**-80), 2.0**-79)], 0.0, 2.0**-149),
        ([(2.0**-75, 2.0**-74), (-(2.0**-79), 2.0**-79)], 0.0, 0.0),
        ([(2.0**-100, 2.0**-49)], 0.0, 2.0**-149),
        ([(1.0, 2.0**-26)], 1.0, 1.0),
        ([(1.0, 2.0**-24)], 1.0, 1.0),
        ([(1.0, -(2.0**-25))], 1.0, 1.0 - 2.0**-24),
        ([(1.0, -(2.0**-26))], 1.0, 1.0),
        ([(2.0**-13, 2.0**-13)] * 16, 1.0, 1.0),
        ([(2.0**-12, 2.0**-13)] * 16, 1.0, 1.0 + 2.0**-21),
        ([(2.0**64, 2.0**64)], 0.0, math.inf),
        ([(2.0**64, 2.0**64), (-(2.0**64), 2.0**64)], 3.0, 0.0),
        ([(-(2.0**127), 2.0**127)], 1.0, -math.inf),
        ([(2.0**103, 1.9921875)], 3.4028234663852886e38, 3.4028234663852886e38),
        ([(math.inf, 1.0)], -1.0, math.inf),
        ([(math.inf, -(2.0**-133))], 0.0, -math.inf),
        ([(math.inf, 0.0)], 0.0, math.nan),
        ([(math.inf, 1.0), (math.inf, -1.0)], 0.0, math.nan),
        ([(math.inf, 1.0)], -math.inf, math.nan),
        ([(2.0**127, 2.0**127)], -math.inf, -math.inf),
        ([(1.0, math.nan)], math.inf, math.nan),
    ],
)
def test_edges_of_chain16(terms: list[tuple[float, float]], acc: float, want: float) -> None:
    for turn in range(0, 16, 5):
        a, b = np.zeros((2, 1, 16), f)
        for i, (x, y) in enumerate(terms):
            a[0, (i + turn) % 16], b[0, (i + turn) % 16] = x, y
        start = np.full((1, 1), acc, f)
        assert_same_bits(chain16(a, b, start), np.full((1, 1), want, f))
        assert_same_bits(reference(a, b, start), np.full((1, 1), want, f))


def test_factors_come_as_patterns_f16_or_f32_that_fits() -> None:
    rng = np.random.default_rng(6)
    a, b = (factors(rng, (9, 40), "bf16", "normal") for _ in range(2))
    assert_same_bits(chain16(bf16_bits(a), bf16_bits(b).view(np.int16)), chain16(a, b))
    for x in (2.0**-134, 3 * 2.0**-133 + 2.0**-149, 1 + 2.0**-8):
        with pytest.raises(ValueError, match="bf16 can hold"):
            chain16(np.full_like(a, x), b)
    a, b = (factors(rng, (9, 40), "f16", "wide") for _ in range(2))
    assert_same_bits(chain16(a.astype(np.float16), b.astype(np.float16), dtype=F16), chain16(a, b, dtype=F16))
    for x in (2.0**-25, 3 * 2.0**-24 + 2.0**-26, 1 + 2.0**-11, 2.0**16):
        with pytest.raises(ValueError, match="f16 can hold"):
            chain16(np.full_like(a, x), b, dtype=F16)
    for model, dtype in ((CHAIN16, F32), (FMA, BF16)):
        with pytest.raises(ValueError, match="no rule for factors"):
            dot(a, b, model, dtype)
    for wrong in (a.astype(np.float64), a[0], a[:, :8]):
        with pytest.raises(ValueError, match="operand of a dot|expected"):
            chain16(wrong, b, dtype=F16)
    with pytest.raises(ValueError, match="acc is"):
        chain16(a, b, np.zeros((9, 1), f), F16)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("family", ["normal", "tiny", "huge", "patterns"])
def test_chains_longer_than_a_block_have_the_bits_of_the_rule(dtype: DType, family: str) -> None:
    """Numbers that vectors cannot add: in whole rows and columns, and in one group of each block of a row."""
    rng = np.random.default_rng(11)
    a, b = (factors(rng, (n, code.DEPTH + 17), dtype.value, "normal") for n in (3, 40))
    for part in (a[0], b[::9], a[1, 5:21], a[1, -3:]):
        part[...] = factors(rng, part.shape, dtype.value, family)
    acc = accumulators(rng, a, b)
    assert_same_bits(chain16(a, b, acc, dtype), reference(a, b, acc, dtype))


@cache
def vectors_alone() -> Callable[..., None]:
    @numba.njit
    def advance(x, ex, y, ey, out):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            for k in range(0, x.shape[1], code.GROUP):
                code._add_group(x, ex, i * x.shape[1] + k, y, ey, k, out[i])

    return advance


def by_vectors(a: np.ndarray, b: np.ndarray, acc: np.ndarray, dtype: DType) -> np.ndarray:
    """Return chain16 by the code for the usual range of numbers alone."""

    def exponents(x: np.ndarray) -> np.ndarray:
        return np.where(x == 0, code.ABSENT, np.maximum(np.frexp(x)[1] - 1, FLOOR[dtype])).astype(np.int16)

    out, columns = acc.copy(), np.ascontiguousarray(b.T)
    vectors_alone()(a, exponents(a), columns, exponents(columns), out)
    return out


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_vectors_are_right_in_their_range_and_nowhere_else(dtype: DType) -> None:
    rng = np.random.default_rng(12)
    for family in ("normal", "cancelling", "sparse"):
        a, b = (factors(rng, (n, 48), dtype.value, family) for n in (4, code.WIDTH))
        acc = np.where(rng.random((4, code.WIDTH)) < 0.5, rng.standard_normal((4, code.WIDTH)), 0).astype(f)
        assert_same_bits(by_vectors(a, b, acc, dtype), reference(a, b, acc, dtype))
    for family in ("edges", "tiny") if dtype is BF16 else ("edges",):
        a, b = (factors(rng, (n, 48), dtype.value, family) for n in (4, code.WIDTH))
        assert differing(by_vectors(a, b, acc, dtype), chain16(a, b, acc, dtype)) > 0


def test_chain16_is_near_the_real_sum() -> None:
    """Each of K / 16 groups loses less than 17 cut terms and one rounding, of the largest term or sum."""
    rng = np.random.default_rng(7)
    for scale in (1.0, 6.0):
        a = to_bf16(rng.standard_normal((20, 4096)).astype(f))
        b = to_bf16((rng.standard_normal((300, 4096)) * scale / 64).astype(f))
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        got = chain16(a, b)
        sums = np.abs(a).astype(np.float64) @ np.abs(b).T.astype(np.float64)
        assert (np.abs(got - exact) <= 256 * (17 * 2.0**-25 + 2.0**-23) * sums).all()
        assert np.abs(got - exact).max() < 2e-4 * max(1.0, np.abs(exact).max() / 8)


def test_chain16_is_fast_enough_to_be_an_oracle() -> None:
    """In time of this thread: enough for a head of 64 x 4096 x 128256 in a minute of two cores."""
    rng = np.random.default_rng(8)
    a, b = (to_bf16(rng.standard_normal((n, 1024)).astype(f)) for n in (128, 512))
    chain16(a[:2], b[:64])
    times = []
    for _ in range(3):
        start = time.thread_time()
        chain16(a, b)
        times.append(time.thread_time() - start)
    assert a.size * len(b) / min(times) > 64 * 4096 * 128256 / 60 / 2


# --- the others ---


def test_leaf8_is_a_pairwise_tree_of_chains() -> None:
    rng = np.random.default_rng(9)
    for k in (512, 100, 5):
        a, b = (factors(rng, (12, k), "bf16", "wide") for _ in range(2))
        size = -(-k // 8)
        at = range(0, 8 * size, size)
        leaves = [chain16(a[:, i : i + size], b[:, i : i + size]) for i in at]
        pairs = [leaves[i] + leaves[i + 1] for i in range(0, 8, 2)]
        assert_same_bits(leaf8(a, b, BF16), (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]))
        halved = [leaves[i] + leaves[i + 4] for i in range(4)]
        other = (halved[0] + halved[2]) + (halved[1] + halved[3])
        assert k == 5 or (differing(leaf8(a, b, BF16), other) and differing(leaf8(a, b, BF16), chain16(a, b)))


def test_fma_is_a_chain_of_ascending_k() -> None:
    rng = np.random.default_rng(10)
    shape = (40, 70, 33)
    a, b = (rng.standard_normal((n, shape[2])).astype(f) for n in shape[:2])
    a[:, 5], b[3, 7] = rng.integers(0, 1 << 32, 40, np.uint32).view(f), f(2.0**-149)
    want = np.full(shape[:2], 0.1, f)
    start = want.copy()
    for k in range(shape[2]):
        want = fma(a[:, k, None], b[None, :, k], want)
    assert_same_bits(dot(a, b, FMA, F32, start), want)
    assert_same_bits(dot(b[:3], a, FMA, F32, start.T[:3]), want.T[:3])
    assert_same_bits(dot(a, b[:3], FMA, F32, start[:, :3]), want[:, :3])
    assert differing(dot(a[:, ::-1], b[:, ::-1], FMA, F32, start), want) > want.size // 4
    middle = dot(a[:, :11], b[:, :11], FMA, F32, start)
    assert_same_bits(dot(a[:, 11:], b[:, 11:], FMA, F32, middle), want)


def test_every_model_says_what_it_is_for() -> None:
    assert set(FACTORS) == set(STEP) == set(DotModel)
    assert FACTORS[FMA] == {DType.F32} and DType.F32 not in FACTORS[CHAIN16]
    assert CHAIN16 in validated("sm_90a") and CHAIN16 not in validated("gfx942")
    assert FMA in validated("gfx942")


def test_nan_is_one_nan() -> None:
    a, b = np.full((1, 16), np.nan, f), np.ones((1, 16), f)
    assert as_bits(chain16(a, b))[0, 0] == as_bits(dot(a, b, FMA, F32))[0, 0] == 0x7FC00000
