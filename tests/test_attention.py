"""A row of attention has the same bits in training, prefill, prefix hits and decode, whoever is beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Batch, batch, last, of, oracle, packed, paged, rows, stored

from rlk.interp import floats
from rlk.interp.floats import bf16_from_bits
from rlk.interp.run import run, run_wide
from rlk.ir.nodes import MathModel
from rlk.ir.tree import Rule
from rlk.testing.bits import assert_same_bits, differing

LENGTHS = (700, 3, 64, 513)  # keys: two pieces and a half chunk; fewer than a chunk; one; a piece and one key
WHOLE = batch((40, 3, 20, 30), LENGTHS)
SMALL = batch((9, 0, 5, 1), (70, 0, 5, 530), group=3, e=24, w=40)
Found = list[tuple[Any, Any]]


def assert_same_rows(got: Found, want: Found) -> None:
    for i, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        assert_same_bits(mine[0], theirs[0], f"o of sequence {i}", "bf16")
        assert_same_bits(mine[1], theirs[1], f"lse of sequence {i}")


def moved(got: Found, want: Found) -> int:
    return sum(differing(a[0], b[0], "bf16") + differing(a[1], b[1]) for a, b in zip(got, want, strict=True))


def exact(given: Batch, causal: bool = True) -> Found:
    """Return attention by its formula, in f64."""
    options, made = dict(given.options), []
    for x, k, v in zip(given.q, given.k, given.v, strict=True):
        q64, k64, v64 = (bf16_from_bits(t).astype(np.float64) for t in (x, k, v))
        z = np.einsum("qhge,khe->hgqk", q64, k64) * 0.3
        if "softcap" in options:
            z = options["softcap"] * np.tanh(z / options["softcap"])
        at = np.arange(len(x))[:, None] + len(k) - len(x)
        hidden = (np.arange(len(k)) > at) & causal
        hidden |= np.arange(len(k)) <= at - options.get("window", 1 << 30)
        z = np.where(hidden, -np.inf, z)
        sink = options.get("sinks", np.full(x.shape[1:3], -np.inf))[:, :, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            lse = np.logaddexp(np.logaddexp.reduce(z, axis=-1), sink)
            p = np.where(lse[..., None] == -np.inf, 0.0, np.exp(z - lse[..., None]))
        made.append((np.einsum("hgqk,khw->qhgw", p, v64), np.moveaxis(lse, 2, 0)))
    return made


# --- what it computes ---


SINKS = np.array([[0.5, -2.0, 3.0]], np.float32)


@pytest.mark.parametrize(
    "options", [{}, {"window": 20}, {"softcap": 2.0, "inv_softcap": 0.5}, {"sinks": SINKS}]
)
@pytest.mark.parametrize("causal", [True, False])
def test_the_wide_oracle_computes_the_formula(options: dict[str, Any], causal: bool) -> None:
    if "window" in options and not causal:
        pytest.skip("a window is one of the keys up to a query's own")
    given = batch((9, 0, 5, 7), (70, 0, 3, 530), group=3, e=24, w=40, **options)
    inputs = packed(given)
    made = run_wide(of(inputs, causal=causal), inputs, extents={"Q": 9})
    for (o, lse), (o64, lse64) in zip(rows(made, given), exact(given, causal), strict=True):
        np.testing.assert_allclose(o, o64, rtol=0, atol=1e-12)
        np.testing.assert_allclose(lse, lse64, rtol=0, atol=1e-12)


def test_bits_are_close_to_float64() -> None:
    """Weights are rounded to 8 bits before they multiply, and results after it; lse is rounded nowhere."""
    for (o, lse), (o64, lse64) in zip(rows(oracle(packed(SMALL)), SMALL), exact(SMALL), strict=True):
        np.testing.assert_allclose(bf16_from_bits(o), o64, rtol=2**-8, atol=2**-8)
        np.testing.assert_allclose(lse, lse64, rtol=0, atol=2e-6)


def test_a_query_without_keys_is_zero() -> None:
    """More queries than keys: the first ones stand before every key."""
    given = batch((5,), (2,))
    ((o, lse),) = rows(oracle(packed(given)), given)
    assert not o[:3].any() and (lse[:3] == -np.inf).all()
    assert o[3:].all() and np.isfinite(lse[3:]).all()


def denominators(scores: Any, slack: float) -> np.float32:
    """Return log sum exp of scores in units of ln 2, of chunks of 64 and pieces of 512."""
    f, exp2 = np.float32, floats.portable("exp2")

    def merged(one: tuple[Any, Any], two: tuple[Any, Any]) -> tuple[Any, Any]:
        m = max(one[0], two[0])
        return m, one[1] * exp2(one[0] - m) + two[1] * exp2(two[0] - m)

    before: tuple[Any, Any] = (f(-np.inf), f(-0.0))
    for piece in range(0, len(scores), 512):
        m, s = f(-np.inf), f(0.0)
        for first in range(piece, min(piece + 512, len(scores)), 64):
            z = floats.pad(scores[first : min(first + 64, piece + 512)], 0, 64, -np.inf)
            new = z.max() if m + f(slack) < z.max() else m
            s = s * exp2(np.array(m - new))[()] + floats.tree_sum(exp2(z - new), 0, Rule.HALVING)
            m = new
        before = merged(before, (m, s))
    return floats.fma(before[0], f(0.6931471805599453), floats.portable("log")(np.array(before[1])))


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_denominators_against_a_program_written_apart(slope: float) -> None:
    """Scores that grow exceed their maximum by 8 now and then; of unit vectors they are exact."""
    given = batch((16,), (700,), group=1)
    given.q[0][:, 0, 0] = stored(np.eye(16), "bf16")
    given.k[0][...] = stored(bf16_from_bits(given.k[0]) + slope * np.arange(-700, 0)[:, None, None], "bf16")
    inputs = packed(given) | {"scale": 1.0}
    made = run(of(inputs), inputs, softmax=MathModel.PORTABLE, extents={"Q": 16}).tensors["lse"]
    scores = bf16_from_bits(given.k[0][:, 0]) * np.float32(1.4426950408889634)
    rows = [scores[: 685 + i, i] for i in range(16)]
    assert_same_bits(made.ravel(), np.array([denominators(row, 8.0) for row in rows]), "lse")
    moving = np.array([denominators(row, 0.0) for row in rows])
    assert differing(made.ravel(), moving), "the control: a maximum that always moves"


# --- the same bits ---


@pytest.fixture(scope="module")
def training() -> Found:
    return rows(oracle(packed(WHOLE)), WHOLE)


def test_neighbours_and_places_do_not_count(training: Found) -> None:
    for order in ((3, 0), (1,), (2, 1, 3)):
        some = WHOLE.only(*order)
        assert_same_rows(rows(oracle(packed(some)), some), [training[i] for i in order])


@pytest.mark.parametrize("step", [1, 17, 25])
def test_chunked_prefill_has_the_bits_of_training(training: Found, step: int) -> None:
    """Queries come in groups of `step`, when no later key is there yet."""
    long = WHOLE.only(0)
    for first in range(0, 40, step):
        here = min(first + step, 40)
        part = long.until(660 + here).tail(here - first)
        want = [(training[0][0][first:here], training[0][1][first:here])]
        assert_same_rows(rows(oracle(packed(part)), part), want)


LONG = batch((600,), (600,))


@pytest.fixture(scope="module")
def long_training() -> Found:
    return rows(oracle(packed(LONG)), LONG)


@pytest.mark.parametrize("step", [64, 100, 512])
def test_whole_prompts_in_chunks_have_the_bits_of_training(long_training: Found, step: int) -> None:
    for first in range(0, 600, step):
        here = slice(first, min(first + step, 600))
        part = LONG.until(here.stop).tail(here.stop - first)
        want = [tuple(x[here] for x in long_training[0])]
        assert_same_rows(rows(oracle(packed(part)), part), want)


@pytest.mark.parametrize("hit", [0, 1, 15, 16, 17, 255, 512])
def test_hits_of_any_length_have_the_bits_of_training(long_training: Found, hit: int) -> None:
    """Of a prompt of 600 tokens so many are in pages already; the others ask at once."""
    tail = LONG.tail(600 - hit)
    assert_same_rows(rows(oracle(paged(tail)), tail), last(long_training, 600 - hit))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_bits(training: Found, side: str) -> None:
    """Rows of one length, not a number beside the sequences, which begin and end where they do."""
    longest = max(LENGTHS)
    room = [(longest - n, 0) if side == "left" else (0, longest - n) for n in LENGTHS]

    def padded(parts: tuple[Any, ...]) -> Any:
        ends = zip(parts, room, strict=True)
        gaps = ((0, 0),) * (parts[0].ndim - 1)
        return np.concatenate([np.pad(x, (gap, *gaps), constant_values=0x7FC0) for x, gap in ends])

    inputs = packed(WHOLE)
    starts = np.cumsum([0, *(n + sum(gap) for n, gap in zip(LENGTHS, room, strict=True))])[:-1]
    starts = (starts + [gap[0] for gap in room]).astype(np.int32)
    bounds = {"begin_k": starts, "end_k": (starts + LENGTHS).astype(np.int32)}
    spread = {**inputs, **bounds, "k": padded(WHOLE.k), "v": padded(WHOLE.v)}
    assert_same_rows(rows(oracle(spread), WHOLE), training)


@pytest.mark.parametrize("page", [16, 64, 256])
@pytest.mark.parametrize("apart", [False, True], ids=["in one loop", "pieces apart"])
def test_decode_from_pages_has_the_bits_of_training(training: Found, page: int, apart: bool) -> None:
    """Slots that nobody wrote hold NaN, and tables name pages that do not exist: none of it is read."""
    decode = WHOLE.tail(1)
    assert_same_rows(rows(oracle(paged(decode, page), apart=apart), decode), last(training, 1))


@pytest.mark.parametrize("hit", [1, 15, 16, 17, 39])
def test_prefix_hits_have_the_bits_of_training(training: Found, hit: int) -> None:
    """The cache holds all but the last few tokens: prefill begins after them."""
    tail = WHOLE.tail(40 - hit)
    assert_same_rows(rows(oracle(paged(tail)), tail), last(training, 40 - hit))


def test_pieces_in_one_loop_and_apart_are_the_same(training: Found) -> None:
    assert_same_rows(rows(oracle(packed(WHOLE), apart=True), WHOLE), training)


def test_a_window_has_the_bits_of_its_own_keys_in_place() -> None:
    """Put anything, NaN included, outside of the window, in chunks that it does not touch."""
    given = batch((6,), (700,), window=100)
    want = rows(oracle(packed(given)), given)
    k, v = (x[0].copy() for x in (given.k, given.v))
    k[:576], v[:576] = 0x7FC0, 0x7FC0  # key 595 is the first that is seen: chunks before its own
    spoiled = Batch(given.q, (k,), (v,), given.dtype, given.options)
    assert_same_rows(rows(oracle(packed(spoiled)), given), want)


# --- controls: other orders have other bits ---


@pytest.mark.parametrize("numerics", [(32, 512), (128, 512), (64, 256), (64, 4096)])
def test_other_chunks_pieces_or_a_single_split_are_seen(training: Found, numerics: tuple[int, int]) -> None:
    assert moved(rows(oracle(packed(WHOLE), numerics=numerics), WHOLE), training)


def test_a_descending_order_is_seen() -> None:
    """Without a mask the order of keys changes nothing but the order of additions."""
    given = batch((8,), (700,))
    turned = Batch(given.q, (given.k[0][::-1],), (given.v[0][::-1],), given.dtype)
    want = rows(oracle(packed(given), causal=False), given)
    assert moved(rows(oracle(packed(turned), causal=False), given), want)


def test_counting_from_elsewhere_is_seen(training: Found) -> None:
    """Keys shifted by one slot, with a key that weighs nothing before them: pieces begin one key later."""
    k = np.concatenate([np.zeros_like(WHOLE.k[0][:1]), WHOLE.k[0]])
    v = np.concatenate([np.zeros_like(WHOLE.v[0][:1]), WHOLE.v[0]])
    given = Batch(WHOLE.q[:1], (k,), (v,), options=(("window", 1 << 20),))
    hidden = packed(given)
    want = [training[0]]
    hidden["begin_k"] = hidden["begin_k"] + 1
    assert_same_rows(rows(oracle(hidden), given), want)  # a segment that begins one row later is the same
    hidden["begin_k"] = hidden["begin_k"] - 1
    assert moved(rows(oracle(hidden), given), want)
