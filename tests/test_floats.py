"""The oracle's arithmetic is the exact arithmetic, rounded once."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlk.interp import ex2_sm90, floats
from rlk.interp.philox import philox, uniform
from rlk.interp.scalar import fma, maximum, minimum
from rlk.ir.tree import Rule, Tree, bind

f = np.float32
SPECIALS = np.array(
    [
        0,
        -0.0,
        1,
        -1,
        np.inf,
        -np.inf,
        np.nan,
        2.0**-149,
        -(2.0**-149),
        2.0**-126,
        3.4028235e38,
        -3.4028235e38,
        1.5,
    ],
    f,
)
any_f32 = st.integers(0, 2**32 - 1).map(lambda b: np.uint32(b).view(f))
finite = any_f32.filter(np.isfinite)
# exponents near one another, so that cancellation and half-way cases are common
close = st.builds(
    lambda m, e, s: f(math.ldexp(m * (-1 if s else 1), e)),
    st.integers(2**23, 2**24 - 1),
    st.integers(-30, -16),
    st.booleans(),
)


def bits(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, f)
    return np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32))


def random_floats(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32).view(f)


def rounded(exact: Fraction, negative_zero: bool) -> np.float32:
    """Round a rational to f32, to nearest even, by integers alone."""
    if exact == 0:
        return f(-0.0) if negative_zero else f(0.0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = max(exponent, -126) - 23
    units = size / Fraction(2) ** quantum
    whole, rest = divmod(units.numerator, units.denominator)
    twice = 2 * rest
    whole += twice > units.denominator or (twice == units.denominator and whole % 2 == 1)
    value = math.ldexp(whole, quantum) if whole.bit_length() + quantum <= 128 else math.inf
    return f(-value if exact < 0 else value)


def exact_fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    product = Fraction(float(a)) * Fraction(float(b))
    sign = np.signbit(a) != np.signbit(b)
    return rounded(product + Fraction(float(c)), bool(sign and np.signbit(c)))


def odd_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """f32 fma by f64 with round-to-odd; right where the f64 sum neither overflows nor underflows."""
    p = a.astype("f8") * b.astype("f8")
    c = c.astype("f8")
    s = p + c
    y = s - p
    e = (p - (s - y)) + (c - y)
    i = s.view("i8").copy()
    i += np.where((e != 0) & (i & 1 == 0), np.where((e > 0) == (s > 0), 1, -1), 0)
    return i.view("f8").astype(f)


# --- fma ---


@settings(max_examples=400, deadline=None)
@given(finite, finite, finite)
def test_fma_rounds_the_exact_value_once(a: np.float32, b: np.float32, c: np.float32) -> None:
    with np.errstate(all="ignore"):
        assert bits(fma(a, b, c)) == bits(exact_fma(a, b, c))


@settings(max_examples=400, deadline=None)
@given(close, close, close)
def test_fma_survives_cancellation(a: np.float32, b: np.float32, c: np.float32) -> None:
    assert bits(fma(a, b, c)) == bits(exact_fma(a, b, c))
    assert bits(fma(a, b, -f(a * b))) == bits(exact_fma(a, b, -f(a * b)))


def test_fma_equals_round_to_odd_on_many_arguments() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=1 << 20).astype(f) for _ in range(2))
    c = (-(a * b) * (1 + rng.normal(size=1 << 20) * 2.0**-20)).astype(f)
    assert np.array_equal(bits(fma(a, b, c)), bits(odd_fma(a, b, c)))


def test_a_separate_multiply_and_add_is_not_fma() -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.normal(size=1 << 16).astype(f) for _ in range(3))
    assert (bits(a * b + c) != bits(fma(a, b, c))).mean() > 0.1


def test_fma_of_special_values_follows_ieee() -> None:
    a, b, c = np.meshgrid(SPECIALS, SPECIALS, SPECIALS, indexing="ij")
    with np.errstate(all="ignore"):
        got = fma(a, b, c)
        wide = a.astype("f8") * b.astype("f8") + c.astype(
            "f8"
        )  # exact enough: only special results are compared
    special = ~np.isfinite(wide)
    assert np.array_equal(bits(got[special]), bits(wide[special].astype(f)))
    plain = ~special & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    want = np.array([exact_fma(x, y, z) for x, y, z in zip(a[plain], b[plain], c[plain])], f)
    assert np.array_equal(bits(got[plain]), bits(want))


def test_fma_broadcasts_and_keeps_f32() -> None:
    got = fma(np.ones((3, 1), f), np.ones((1, 4), f), f(2))
    assert got.shape == (3, 4) and got.dtype == f
    assert fma(np.ones(2), np.ones(2), np.ones(2)).dtype == np.float64


# --- maximum and minimum ---


def test_arrays_of_any_layout_and_dtype_broadcast_as_numpys_do() -> None:
    x = np.arange(24, dtype=f).reshape(4, 6) - 12
    fixed = x.copy()
    fixed.flags.writeable = False
    shifted = np.frombuffer(b"0" + x.tobytes(), f, offset=1).reshape(x.shape)
    pairs: list[tuple[object, object]] = [
        (x, x[::-1]), (x.T, x[:, :1].T), (x[:, ::2], x[:, 1::2]), (fixed, shifted), (x, 0.5), (f(1), f(-2)),
        (np.broadcast_to(x[0], x.shape), x), (x.astype("f8"), x), (x, np.arange(6)), (x[:0], x[0]),
    ]  # fmt: skip
    for a, b in pairs:
        made, want = maximum(a, b), np.maximum(a, b)
        assert made.dtype == want.dtype and made.shape == want.shape and np.array_equal(made, want)
    assert np.shares_memory(maximum(x, x), x) is False
    for wrong in (x * 1j, x.astype("O")):
        with pytest.raises(TypeError, match="maximum takes float32 or float64, got"):
            maximum(x, wrong)


def test_maximum_and_minimum_ignore_nan_and_order_zeros() -> None:
    a, b = np.meshgrid(SPECIALS, SPECIALS, indexing="ij")

    def key(x: np.float32) -> tuple[float, bool]:
        return float(x), not np.signbit(x)

    with np.errstate(all="ignore"):
        largest, smallest = maximum(a, b), minimum(a, b)
    for x, y, high, low in zip(a.ravel(), b.ravel(), largest.ravel(), smallest.ravel()):
        numbers = [v for v in (x, y) if not np.isnan(v)] or [f(np.nan)]
        assert bits(high) == bits(max(numbers, key=key)) and bits(low) == bits(min(numbers, key=key))


def test_maximum_equals_numpy_away_from_zeros_and_nan() -> None:
    a, b = random_floats(3, 1 << 18), random_floats(4, 1 << 18)
    fine = ~(np.isnan(a) | np.isnan(b))
    with np.errstate(all="ignore"):
        assert np.array_equal(bits(maximum(a, b)[fine]), bits(np.maximum(a, b)[fine]))
        assert np.array_equal(bits(minimum(a, b)[fine]), bits(np.minimum(a, b)[fine]))


# --- casts ---


def half_way(kind: str) -> np.ndarray:
    """Every 16-bit pattern's number, the midpoints between neighbours, and both sides of each midpoint."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    numbers = (floats.bf16_from_bits if kind == "bf16" else floats.f16_from_bits)(patterns)
    numbers = np.unique(numbers[np.isfinite(numbers)])
    middle = ((numbers[1:].astype("f8") + numbers[:-1].astype("f8")) / 2).astype(f)
    return np.concatenate(
        [numbers, middle, np.nextafter(middle, f(np.inf)), np.nextafter(middle, f(-np.inf))]
    )


def nearest_even(x: np.ndarray, fraction: int, smallest: int, largest: float) -> np.ndarray:
    """Round to a format with that many fraction bits and that least normal exponent, by scaled f64 rint."""
    wide = x.astype("f8")
    quantum = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, smallest) - fraction)
    near = np.rint(wide / quantum) * quantum
    return np.where(abs(near) > largest, np.copysign(np.inf, near), near).astype(f)


@pytest.mark.parametrize(
    ("kind", "cast", "fraction", "smallest", "largest"),
    [("bf16", floats.to_bf16, 7, -126, 3.3895313892515355e38), ("f16", floats.to_f16, 10, -14, 65504.0)],
)
def test_casts_round_to_nearest_even(kind, cast, fraction, smallest, largest) -> None:  # type: ignore[no-untyped-def]
    x = np.concatenate(
        [half_way(kind), random_floats(5, 1 << 18), SPECIALS, f([65519.99, 65520, 3.3961775e38])]
    )
    with np.errstate(all="ignore"):
        want = np.where(np.isfinite(x), nearest_even(x, fraction, smallest, largest), x)
    assert np.array_equal(bits(cast(x)), bits(want))


def test_every_16_bit_pattern_survives_a_round_trip() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for to, back in ((floats.bf16_from_bits, floats.bf16_bits), (floats.f16_from_bits, floats.f16_bits)):
        numbers = to(patterns)
        fine = ~np.isnan(numbers)
        assert np.array_equal(back(numbers)[fine], patterns[fine])
        assert np.all(back(numbers)[~fine] == 0x7FFF)


def test_truncation_to_bf16_would_differ() -> None:
    x = np.random.default_rng(6).normal(size=1 << 14).astype(f)
    cut = floats.bf16_from_bits((x.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
    assert (bits(cut) != bits(floats.to_bf16(x))).mean() > 0.4


def test_floats_to_integers_cut_and_saturate() -> None:
    x = f([1.9, -1.9, np.nan, np.inf, -np.inf, 3e9, -3e9, 0.5, -0.0])
    want = [1, -1, 0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 0]
    assert floats.to_int(x, np.int32).tolist() == want
    assert floats.to_int(x, np.uint32).tolist() == [1, 0, 0, 2**32 - 1, 0, 3000000000, 0, 0, 0]
    assert floats.to_int(f([9.3e18, -9.3e18]), np.int64).tolist() == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_a_float_beyond_an_integer_dtype_is_its_end(wide: type, dtype: type) -> None:
    """Powers of two and their neighbours, of which 2**63 is the first that is no i64."""
    powers = wide(2.0) ** np.arange(70, dtype=wide)
    near = np.concatenate([np.nextafter(powers, wide(0)), powers, np.nextafter(powers, wide(np.inf))])
    x = np.concatenate([near, -near, near + wide(0.5), -near - wide(0.5)])
    limits = np.iinfo(dtype)
    want = [min(max(math.trunc(v), int(limits.min)), int(limits.max)) for v in x.tolist()]
    assert floats.to_int(x, dtype).tolist() == want


# --- trees ---


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6).flatmap(lambda n: st.permutations(range(n))), st.integers(0, 2**32 - 1))
def test_a_tree_pairs_its_bits_in_order(order: list[int], seed: int) -> None:
    width = 1 << len(order)
    x = np.random.default_rng(seed).normal(size=(3, width)).astype(f)
    terms = {i: x[:, i] for i in range(width)}
    for bit in order:
        terms = {i: terms[i] + terms[i | 1 << bit] for i in terms if not i >> bit & 1}
    assert np.array_equal(bits(floats.tree_sum(x, 1, Tree(tuple(order)))), bits(terms[0]))
    assert np.array_equal(bits(floats.tree_sum(x.T, 0, tuple(order))), bits(terms[0]))


def test_trees_of_one_rule_ignore_padding_with_the_identity() -> None:
    x = np.random.default_rng(7).normal(size=(5, 32)).astype(f)
    x[0] = -0.0
    for rule in Rule:
        wide = floats.tree_sum(floats.pad(x, 1, 256, -0.0), 1, bind(rule, 256))
        assert np.array_equal(bits(wide), bits(floats.tree_sum(x, 1, bind(rule, 32))))


def test_padding_with_positive_zero_loses_negative_zero() -> None:
    x = np.full((1, 2), -0.0, f)
    assert np.signbit(floats.tree_sum(floats.pad(x, 1, 4, -0.0), 1, Rule.HALVING))
    assert not np.signbit(floats.tree_sum(floats.pad(x, 1, 4, 0.0), 1, Rule.HALVING))


def test_two_orders_give_two_sums() -> None:
    x = np.random.default_rng(8).normal(size=(64, 256)).astype(f)
    halving, pairwise = (floats.tree_sum(x, 1, rule) for rule in (Rule.HALVING, Rule.PAIRWISE))
    assert (bits(halving) != bits(pairwise)).any()


def test_a_tree_keeps_operands_in_place() -> None:
    first = floats.tree_fold(lambda a, b: a, np.arange(8), 0, Rule.HALVING)
    last = floats.tree_fold(lambda a, b: b, np.arange(8), 0, Rule.PAIRWISE)
    assert (int(first), int(last)) == (0, 7)


def test_a_tree_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(ValueError, match="does not order"):
        floats.tree_sum(np.zeros(8, f), 0, (0, 1))


# --- Philox ---


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter, key, want) -> None:  # type: ignore[no-untyped-def]
    assert tuple(int(word) for word in philox(counter, key)) == want


def test_philox_depends_on_the_counter_alone() -> None:
    counter = np.arange(1000, dtype=np.uint32)
    words = philox((counter, 0, 0, 0), (7, 9))
    order = np.random.default_rng(9).permutation(1000)
    again = philox((counter[order], 0, 0, 0), (7, 9))
    assert all(np.array_equal(a[order], b) for a, b in zip(words, again))
    assert len(np.unique(words[0])) > 990


def test_uniform_draws_are_strictly_inside() -> None:
    ends = uniform(np.array([0, 2**32 - 1], np.uint32))
    assert ends.dtype == f and ends[0] == 2.0**-24 and ends[1] == 1 - 2.0**-24


# --- the hardware exp2 of sm_90 ---


def slow_ex2(x: np.float32, table: np.ndarray) -> np.float32:
    """The rule in words: cut |x| to 23 fraction bits; a negative argument indexes by one's complement."""
    if x >= 128 or x < -126:
        return f(np.inf) if x > 0 else f(0)
    steps = math.floor(Fraction(abs(float(x))) * ex2_sm90.STEPS)
    whole, k = divmod(steps, ex2_sm90.STEPS)
    if x >= 0:
        return f(math.ldexp(float(table[k]), whole))
    y = f(math.ldexp(1.0, -whole) if k == 0 else math.ldexp(float(table[ex2_sm90.STEPS - 1 - k]), -whole - 1))
    return y if y >= 2.0**-126 else f(0)


def test_the_hardware_exp2_follows_its_table() -> None:
    rng = np.random.default_rng(10)
    x = np.concatenate(
        [rng.uniform(-130, 130, 2000), rng.normal(size=2000), -(2.0 ** -rng.uniform(0, 40, 2000))]
    )
    x = np.concatenate([x.astype(f), f([0, -0.0, 1, -1, 127.99999, 128, -126, -126.00001, np.inf, -np.inf])])
    want = np.array([slow_ex2(v, ex2_sm90.table()) for v in x], f)
    assert np.array_equal(bits(ex2_sm90.exp2_sm90(x)), bits(want))
    assert np.isnan(ex2_sm90.exp2_sm90(f([np.nan]))[0])


def test_the_hardware_exp2_is_close_to_exp2_and_not_the_portable_one() -> None:
    x = -np.random.default_rng(11).exponential(10, 1 << 16).astype(f)
    hardware = ex2_sm90.exp2_sm90(x)
    exact = np.exp2(x.astype("f8"))
    assert (abs(hardware - exact) / exact).max() < 2.0**-22
    assert (bits(hardware) != bits(floats.portable("exp2")(x))).mean() > 0.01
