"""A compiled dot has the bits of its rule: the same rule in Python's whole numbers, term by term."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from rlk.interp.dot import dot, leaf8
from rlk.interp.floats import bf16_bits, fma, to_bf16
from rlk.ir.dotmodel import FACTORS, STEP, DotModel, validated
from rlk.ir.types import DType
from rlk.testing.bits import as_bits, assert_same_bits, differing
from rlk.testing.probe_dot import FAMILIES, accumulators, factors

f = np.float32
CHAIN16, FMA = DotModel.CHAIN16, DotModel.FMA


# --- the rule, slowly ---


def split(x: float) -> tuple[int, int]:
    """Return (m, e) with x = m * 2**e and 2**52 <= abs(m) < 2**53, for a finite x that is not zero."""
    fraction, e = math.frexp(x)
    return int(math.ldexp(fraction, 53)), e - 53


def cut(m: int, e: int, unit: int) -> int:
    """Return how many whole 2**unit are in m * 2**e, toward zero."""
    size = abs(m) << (e - unit) if e >= unit else abs(m) >> (unit - e)
    return -size if m < 0 else size


def rounded_to_zero(m: int, unit: int) -> float:
    if m == 0:
        return 0.0
    drop = max(abs(m).bit_length() - 24, -149 - unit, 0)
    size = abs(m) >> drop << drop
    value = math.ldexp(size, unit) if size.bit_length() + unit <= 128 else math.inf
    return math.copysign(value, m)


def group_reference(a: list[float], b: list[float], c: float) -> float:
    products = [x * y for x, y in zip(a, b, strict=True)]  # exact in f64
    if not all(map(math.isfinite, [*a, *b, c])):
        specials = [p for p in [*products, c] if not math.isfinite(p)]
        nan = any(map(math.isnan, specials)) or len(set(specials)) > 1
        return math.nan if nan else specials[0]
    exponents = [math.frexp(x)[1] + math.frexp(y)[1] - 2 for x, y in zip(a, b) if x != 0 and y != 0]
    exponents += [math.frexp(c)[1] - 1] * (c != 0)
    if not exponents:
        return 0.0
    unit = max(exponents) - 25
    total = sum(cut(*split(term), unit) for term in [*products, c] if term != 0)
    return rounded_to_zero(total, unit)


def chain16_reference(a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    """The rule in the docstring of DotModel, in f64 (which holds every product) and whole numbers."""
    out = np.zeros(acc.shape)
    for i, row in enumerate(a.tolist()):
        for n, column in enumerate(b.tolist()):
            c = float(acc[i, n])
            for k in range(0, len(row), 16):
                c = group_reference(row[k : k + 16], column[k : k + 16], c)
            out[i, n] = c
    with np.errstate(all="raise"):
        return out.astype(f)


# --- inputs ---


def reference_cases(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(count)
    cases = []
    for kind in ("bf16", "f16"):
        for family in FAMILIES:
            for k in (16, 23):
                a = factors(rng, (count, k), kind, family)
                b = factors(rng, (70, k), kind, family if rng.random() < 0.7 else "normal")
                cases.append((a, b, accumulators(rng, a, b)))
    return cases


# --- chain16 ---


def test_chain16_has_the_bits_of_its_rule() -> None:
    compared = 0
    for a, b, acc in reference_cases(40):
        want = chain16_reference(a, b, acc)
        assert_same_bits(dot(a, b, CHAIN16, acc), want)
        compared += want.size
    assert compared >= 10**5


def test_the_reference_is_no_sum_of_another_kind() -> None:
    """Negative control: rounding to nearest, a wider sum or groups of 8 are seen."""
    rng = np.random.default_rng(1)
    a, b = (factors(rng, (20, 64), "bf16", "normal") for _ in range(2))
    want = dot(a, b, CHAIN16)
    nearest = (a.astype(np.float64) @ b.T.astype(np.float64)).astype(f)
    halves = np.zeros_like(want)
    for k in range(0, 64, 8):
        halves = dot(a[:, k : k + 8], b[:, k : k + 8], CHAIN16, halves)
    assert differing(nearest, want) > want.size // 4 and differing(halves, want) > want.size // 10


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 130, 40), (200, 5, 33), (2, 64, 0), (0, 7, 16), (7, 0, 16)])
def test_any_shape_has_the_bits_of_its_rule(shape: tuple[int, int, int]) -> None:
    rows, columns, k = shape
    rng = np.random.default_rng(2)
    a, b = (factors(rng, (n, k), "bf16", "wide") for n in (rows, columns))
    acc = np.zeros((rows, columns), f)
    assert_same_bits(dot(a, b, CHAIN16), chain16_reference(a, b, acc) if acc.size else acc)


def test_a_group_of_zeros_is_the_identity() -> None:
    rng = np.random.default_rng(3)
    a, b = factors(rng, (30, 48), "bf16", "wide"), factors(rng, (40, 48), "bf16", "normal")
    want = dot(a, b, CHAIN16)
    wide_a, wide_b = (np.pad(x, ((0, 0), (0, 80))) for x in (a, b))
    assert_same_bits(dot(wide_a, wide_b, CHAIN16), want)
    # one zero factor is enough, however large the other is
    wide_b[:, 48:] = 2.0**120
    assert_same_bits(dot(wide_a, wide_b, CHAIN16), want)
    assert_same_bits(
        dot(np.zeros((1, 16), f), np.zeros((1, 16), f), CHAIN16, np.full((1, 1), -0.0, f)), [[f(0)]]
    )


def test_k_may_be_cut_at_groups_and_nowhere_else() -> None:
    rng = np.random.default_rng(4)
    a, b = (factors(rng, (40, 160), "bf16", "wide") for _ in range(2))
    whole = dot(a, b, CHAIN16)
    for at in (16, 64, 144):
        assert_same_bits(dot(a[:, at:], b[:, at:], CHAIN16, dot(a[:, :at], b[:, :at], CHAIN16)), whole)
    for at in (8, 60, 150):
        parts = dot(a[:, at:], b[:, at:], CHAIN16, dot(a[:, :at], b[:, :at], CHAIN16))
        assert differing(parts, whole) > whole.size // 100
    permuted = np.roll(np.arange(160), 16)
    assert differing(dot(a[:, permuted], b[:, permuted], CHAIN16), whole) > whole.size // 100


def test_rows_and_columns_do_not_see_one_another() -> None:
    rng = np.random.default_rng(5)
    a, b = factors(rng, (70, 64), "bf16", "wide"), factors(rng, (90, 64), "bf16", "wide")
    whole = dot(a, b, CHAIN16)
    a[3], b[5] = np.nan, np.inf
    spoilt = dot(a, b, CHAIN16)
    rows, columns = np.delete(np.arange(70), 3), np.delete(np.arange(90), 5)
    assert np.isnan(spoilt[3]).all()
    assert_same_bits(spoilt[np.ix_(rows, columns)], whole[np.ix_(rows, columns)])
    assert_same_bits(dot(b, a, CHAIN16).T, spoilt)
    assert_same_bits(dot(a[7:9], b[60:61], CHAIN16), spoilt[7:9, 60:61])


@pytest.mark.parametrize(
    ("terms", "acc", "want"),
    [
        ([(1.0, 1.0), (-1.0, 1.0)], 0.0, 0.0),
        ([(-1.0, 2.0**-20)], 2.0**-20, 0.0),
        ([(0.0, 5.0)], -0.0, 0.0),
        ([(-(2.0**-100), 2.0**-60)], 0.0, -0.0),
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
        assert_same_bits(dot(a, b, CHAIN16, start), np.full((1, 1), want, f))
        assert_same_bits(chain16_reference(a, b, start), np.full((1, 1), want, f))


def test_factors_come_as_patterns_f16_or_f32_that_fits() -> None:
    rng = np.random.default_rng(6)
    a, b = (factors(rng, (9, 40), "bf16", "normal") for _ in range(2))
    assert_same_bits(dot(bf16_bits(a), bf16_bits(b).view(np.int16), CHAIN16), dot(a, b, CHAIN16))
    a, b = (factors(rng, (9, 40), "f16", "wide") for _ in range(2))
    assert_same_bits(dot(a.astype(np.float16), b.astype(np.float16), CHAIN16), dot(a, b, CHAIN16))
    with pytest.raises(ValueError, match="11 significant bits"):
        dot(a + f(2.0**-20), b, CHAIN16)
    for wrong in (a.astype(np.float64), a[0], a[:, :8]):
        with pytest.raises(ValueError, match="operand of a dot|expected"):
            dot(wrong, b, CHAIN16)
    with pytest.raises(ValueError, match="acc is"):
        dot(a, b, CHAIN16, np.zeros((9, 1), f))


def test_chain16_is_near_the_real_sum() -> None:
    """Each of K / 16 groups loses less than 17 cut terms and one rounding, of the largest term or sum."""
    rng = np.random.default_rng(7)
    for scale in (1.0, 6.0):
        a = to_bf16(rng.standard_normal((20, 4096)).astype(f))
        b = to_bf16((rng.standard_normal((300, 4096)) * scale / 64).astype(f))
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        got = dot(a, b, CHAIN16)
        sums = np.abs(a).astype(np.float64) @ np.abs(b).T.astype(np.float64)
        assert (np.abs(got - exact) <= 256 * (17 * 2.0**-25 + 2.0**-23) * sums).all()
        assert np.abs(got - exact).max() < 2e-4 * max(1.0, np.abs(exact).max() / 8)


def test_chain16_is_fast_enough_to_be_an_oracle() -> None:
    rng = np.random.default_rng(8)
    a, b = (to_bf16(rng.standard_normal((n, 1024)).astype(f)) for n in (128, 512))
    dot(a[:2], b[:64], CHAIN16)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        dot(a, b, CHAIN16)
        times.append(time.perf_counter() - start)
    assert a.size * len(b) / min(times) > 0.1e9, "GMAC/s of one core"


# --- the others ---


def test_leaf8_is_a_pairwise_tree_of_chains() -> None:
    rng = np.random.default_rng(9)
    for k in (512, 100, 5):
        a, b = (factors(rng, (12, k), "bf16", "wide") for _ in range(2))
        size = -(-k // 8)
        at = range(0, 8 * size, size)
        leaves = [dot(a[:, i : i + size], b[:, i : i + size], CHAIN16) for i in at]
        pairs = [leaves[i] + leaves[i + 1] for i in range(0, 8, 2)]
        assert_same_bits(leaf8(a, b), (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]))
        halved = [leaves[i] + leaves[i + 4] for i in range(4)]
        other = (halved[0] + halved[2]) + (halved[1] + halved[3])
        assert k == 5 or (differing(leaf8(a, b), other) and differing(leaf8(a, b), dot(a, b, CHAIN16)))


def test_fma_is_a_chain_of_ascending_k() -> None:
    rng = np.random.default_rng(10)
    shape = (40, 70, 33)
    a, b = (rng.standard_normal((n, shape[2])).astype(f) for n in shape[:2])
    a[:, 5], b[3, 7] = rng.integers(0, 1 << 32, 40, np.uint32).view(f), f(2.0**-149)
    want = np.full(shape[:2], 0.1, f)
    start = want.copy()
    for k in range(shape[2]):
        want = fma(a[:, k, None], b[None, :, k], want)
    assert_same_bits(dot(a, b, FMA, start), want)
    assert_same_bits(dot(b[:3], a, FMA, start.T[:3]), want.T[:3])
    assert_same_bits(dot(a, b[:3], FMA, start[:, :3]), want[:, :3])
    assert differing(dot(a[:, ::-1], b[:, ::-1], FMA, start), want) > want.size // 4
    middle = dot(a[:, :11], b[:, :11], FMA, start)
    assert_same_bits(dot(a[:, 11:], b[:, 11:], FMA, middle), want)


def test_every_model_says_what_it_is_for() -> None:
    assert set(FACTORS) == set(STEP) == set(DotModel)
    assert FACTORS[FMA] == {DType.F32} and DType.F32 not in FACTORS[CHAIN16]
    assert CHAIN16 in validated("sm_90a") and CHAIN16 not in validated("gfx942")
    assert FMA in validated("gfx942")


def test_nan_is_one_nan() -> None:
    a, b = np.full((1, 16), np.nan, f), np.ones((1, 16), f)
    assert as_bits(dot(a, b, CHAIN16))[0, 0] == as_bits(dot(a, b, FMA))[0, 0] == 0x7FC00000
