"""Laws of sample and of log-probs over its support: equal to sorting, alone as in a batch, and as likely."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sampling_cases import DTYPES, EVERY, Options, by_row, by_sorting, numerator, requests, scores

from benchmarks.draws import chi_square
from rlk import ops
from rlk.errors import LaunchError
from rlk.ops import sampling
from rlk.ops.sampling import Sample
from rlk.testing.bits import assert_same_bits, differing

WHO: dict[str, Any] = {"seed": 7}


def everything(made: Sample) -> list[torch.Tensor]:
    return [made.token, made.raw_logp, made.logp, *made.support]


def options_of(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("temperature", "top_k", "top_p", "min_p")}


# against sorting


@pytest.mark.parametrize("vocabulary", [1, 31, 1025, 2300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_are_those_of_a_sort(dtype: torch.dtype, vocabulary: int) -> None:
    rows = len(EVERY)
    x, who = scores(rows, vocabulary, dtype, seed=vocabulary), requests(rows)
    chosen, options = by_row(rows)
    made = ops.sample(x, **who, **options)
    kept = made.support.to_csr(x)
    for i, each in enumerate(chosen):
        part = numerator(*(int(who[name][i]) for name in ("seed", "request_id", "position")))
        want = by_sorting(x[i], each, part)
        assert tuple(kept.ids[kept.offsets[i] : kept.offsets[i + 1]].tolist()) == want.kept, (i, each)
        assert int(made.token[i]) == want.token, (i, each)
        equal = x[i].float() == made.support.threshold[i]
        assert int(made.support.ties[i]) == sum(bool(equal[j]) for j in want.kept)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_that_hold_most_of_a_support_are_searched(dtype: torch.dtype) -> None:
    """Of each lane of 1024 tokens the three best are known at once: here one lane has the nine best."""
    rows, vocabulary = len(EVERY), 9300
    x, who, (chosen, options) = scores(rows, vocabulary, dtype, seed=4), requests(rows), by_row(rows, turn=2)
    x[:, 77::1024] = 14.0 - torch.arange(10) / 8
    made = ops.sample(x, **who, **options)
    kept = made.support.to_csr(x)
    for i, each in enumerate(chosen):
        part = numerator(*(int(who[name][i]) for name in ("seed", "request_id", "position")))
        want = by_sorting(x[i], each, part)
        assert tuple(kept.ids[kept.offsets[i] : kept.offsets[i + 1]].tolist()) == want.kept, (i, each)
        assert int(made.token[i]) == want.token, (i, each)


def test_a_sort_that_breaks_ties_the_other_way_is_told_apart() -> None:
    """The control: the last of equals in the place of the first."""
    x, who = scores(4, 500, torch.bfloat16), requests(4)
    made = ops.sample(x, **who, top_k=20)
    backwards = ops.sample(x.flip(1), **who, top_k=20)
    here, there = (m.support.to_csr(s).ids for m, s in ((made, x), (backwards, x.flip(1))))
    assert sorted(here.tolist()) != sorted((499 - there).tolist())


def test_log_probs_are_those_of_float64() -> None:
    rows = 2 * len(EVERY)
    x, (_, options) = scores(rows, 2300, torch.float32).nan_to_num(nan=-9.0), by_row(rows)
    made = ops.sample(x, **requests(rows), **options)
    kept = made.support.to_csr(x)
    assert (kept.ids == made.token.repeat_interleave(kept.offsets.diff())).sum() == rows
    exact = ops.sample.reference(x, **options).gather(1, made.token[:, None])[:, 0]
    # the edge of top_p: unlikely tokens weigh whole units of 2**-22 here
    torch.testing.assert_close(made.logp.double(), exact, rtol=0.0, atol=5e-5)
    raw = torch.log_softmax(x.double(), -1).gather(1, made.token[:, None])[:, 0]
    torch.testing.assert_close(made.raw_logp.double(), raw, rtol=0.0, atol=2e-5)


# who is drawn for, and who stands beside


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_draws_the_same_alone_in_a_batch_and_permuted(dtype: torch.dtype) -> None:
    rows = 256 if dtype is torch.bfloat16 else 12
    x, who, (_, options) = scores(rows, 600, dtype), requests(rows), by_row(rows)
    whole = everything(ops.sample(x, **who, **options))
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    permuted = ops.sample(x[order], **{n: t[order] for n, t in {**who, **options}.items()})
    for a, b in zip(everything(permuted), whole, strict=True):
        assert_same_bits(a, b[order], "permuted")
    for i in (0, rows // 3, rows - 1):
        alone = ops.sample(x[i : i + 1], **{n: t[i : i + 1] for n, t in {**who, **options}.items()})
        for a, b in zip(everything(alone), whole, strict=True):
            assert_same_bits(a, b[i : i + 1], f"row {i} alone")


def test_a_draw_by_slot_is_told_apart() -> None:
    """The control: the slot in the batch as the request."""
    x, rows = scores(64, 600, torch.float32), torch.arange(64)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    position = torch.zeros(64, dtype=torch.int64)
    whole = ops.sample(x, seed=1, request_id=rows, position=position)
    permuted = ops.sample(x[order], seed=1, request_id=rows, position=position)
    assert differing(permuted.token, whole.token[order])


@pytest.mark.parametrize("changed", ["seed", "request_id", "position"])
def test_every_word_of_a_request_changes_the_draw(changed: str) -> None:
    x, who = torch.zeros(64, 500), requests(64)
    tokens = ops.sample(x, **who).token
    for shift in (0, 32):
        other = who | {changed: who[changed] + (1 << shift)}
        assert differing(ops.sample(x, **other).token, tokens) > 32


def test_options_that_are_off_are_as_good_as_absent() -> None:
    x, who = scores(8, 700, torch.bfloat16), requests(8)
    plain = everything(ops.sample(x, **who))
    off = ops.sample(
        x, **who, temperature=torch.ones(8), top_k=torch.zeros(8, dtype=torch.int64), top_p=torch.ones(8),
        min_p=torch.zeros(8),
    )  # fmt: skip
    for a, b in zip(everything(off), plain, strict=True):
        assert_same_bits(a, b)
    for a, b in zip(everything(ops.sample(x, **who, top_k=700)), plain, strict=True):
        assert_same_bits(a, b)
    assert differing(ops.sample(x, **who, top_k=3).logp, plain[2])


def test_a_number_is_one_for_each_row() -> None:
    x, who = scores(8, 700, torch.bfloat16), requests(8)
    numbers = options_of(Options(0.7, 20, 0.8, 0.01))
    rows = {
        name: torch.full((8,), value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        for name, value in numbers.items()
    }
    for a, b in zip(*(everything(ops.sample(x, **who, **each)) for each in (numbers, rows)), strict=True):
        assert_same_bits(a, b)


# replay


@pytest.mark.parametrize("dtype", DTYPES)
def test_replaying_a_support_gives_the_ratio_one(dtype: torch.dtype) -> None:
    rows = len(EVERY)
    x, (_, options) = scores(rows, 1500, dtype), by_row(rows)
    made = ops.sample(x, **requests(rows), **options)
    heat = torch.where(options["temperature"] == 0, 1.0, options["temperature"])
    for support in (made.support, made.support.to_csr(x)):
        again = ops.logp(x, made.token, temperature=heat, support=support).logp
        assert again is not None
        assert_same_bits(again, made.logp)
        assert torch.equal(torch.exp(again - made.logp), torch.ones(rows))
    without = ops.logp(x, made.token, temperature=heat).logp
    assert without is not None and differing(without, made.logp) > rows // 2, "the control: no support"


@pytest.mark.parametrize("listed", [False, True])
def test_rows_of_a_support_may_have_several_dims(listed: bool) -> None:
    x = scores(6, 300, torch.bfloat16)
    made = ops.sample(x, **requests(6), top_k=9)
    shaped = type(made.support)(*(t.reshape(2, 3) for t in made.support))
    support = made.support.to_csr(x) if listed else shaped
    again = ops.logp(x.reshape(2, 3, 300), made.token.reshape(2, 3), support=support).logp
    assert again is not None
    assert_same_bits(again.reshape(6), made.logp)


def test_listed_ids_stay_when_scores_move() -> None:
    x, who = scores(6, 900, torch.float32).nan_to_num(nan=0.0), requests(6)
    made = ops.sample(x, **who, top_k=30)
    kept = made.support.to_csr(x)
    moved = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    got = ops.logp(moved, made.token, support=kept, needs=("logp", "entropy", "argmax"))
    mask = torch.zeros(x.shape, dtype=torch.bool)
    mask[torch.arange(6).repeat_interleave(kept.offsets.diff()), kept.ids] = True
    exact = torch.log_softmax(moved.double().masked_fill(~mask, -torch.inf), -1)
    assert got.logp is not None and got.entropy is not None and got.argmax is not None
    torch.testing.assert_close(
        got.logp.double(), exact.gather(1, made.token[:, None])[:, 0], rtol=0.0, atol=2e-5
    )
    torch.testing.assert_close(
        got.entropy.double(), -(exact.exp() * exact.nan_to_num(neginf=0.0)).sum(1), rtol=0.0, atol=1e-4
    )
    assert torch.equal(got.argmax.long(), exact.argmax(1))


@pytest.mark.parametrize("listed", [False, True])
def test_gradients_stay_inside_a_support(listed: bool) -> None:
    x, who = scores(6, 900, torch.float32).nan_to_num(nan=0.0, neginf=-9.0), requests(6)
    made = ops.sample(x, **who, top_k=30, temperature=0.7)
    kept = made.support.to_csr(x)
    mask = torch.zeros(x.shape, dtype=torch.bool)
    mask[torch.arange(6).repeat_interleave(kept.offsets.diff()), kept.ids] = True
    leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    got = ops.logp(leaf, made.token, temperature=0.7, support=kept if listed else made.support)
    assert got.logp is not None
    got.logp.sum().backward()
    z = torch.log_softmax((exact / 0.7).masked_fill(~mask, -torch.inf), -1)
    z.gather(1, made.token[:, None]).sum().backward()
    assert leaf.grad is not None and exact.grad is not None
    assert not leaf.grad[~mask].any() and leaf.grad[mask].any()
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)


def test_a_token_outside_a_support_is_impossible() -> None:
    x, who = scores(3, 200, torch.float32).nan_to_num(nan=0.0), requests(3)
    made = ops.sample(x, **who, top_k=1)
    worst = x.masked_fill(x == -torch.inf, torch.inf).argmin(1)
    leaf = x.clone().requires_grad_()
    got = ops.logp(leaf, worst, support=made.support)
    assert got.logp is not None and torch.equal(got.logp, torch.full((3,), -torch.inf))


# statistics


DISTRIBUTIONS = {
    "plain": Options(1.3), "top-k": Options(top_k=9), "top-p": Options(0.9, top_p=0.8),
    "min-p": Options(min_p=0.05),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_tokens_are_as_frequent_as_they_are_likely(name: str) -> None:
    """Few draws: `python -m benchmarks.draws` makes ten million on a GPU."""
    draws, vocabulary = 1200, 40
    row = 1.5 * torch.randn(vocabulary, generator=torch.Generator().manual_seed(5))
    options = options_of(DISTRIBUTIONS[name])
    position = torch.arange(draws)
    made = ops.sample(
        row.expand(draws, vocabulary), seed=11, request_id=position % 3, position=position, **options
    )
    exact = ops.sample.reference(row[None], **options)[0]
    assert torch.isfinite(exact[made.token]).all(), "no token outside of the support"
    assert abs(chi_square(made.token, exact.exp())) < 4
    flat = torch.softmax(exact * 0.5, -1)
    assert chi_square(made.token, flat) > 8, "the control: twice the temperature"


# edges


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("best", [0.0, 1.0, -1.0])
def test_scores_at_the_bound_of_min_p_are_kept_where_it_is_zero(best: float, dtype: torch.dtype) -> None:
    """Put -0.0 at the bound, which a log-prob compares as equal to +0.0; 1.0 and -1.0 are controls."""
    x = torch.full((8, 40), best, dtype=dtype)
    x[:, ::2] = -3.0
    x[0, 1] = -best if best == 0.0 else best
    who = {"seed": 0, "request_id": torch.arange(8), "position": torch.arange(8)}
    made = ops.sample(x, **who, min_p=1.0)
    assert (made.token % 2 == 1).all()
    torch.testing.assert_close(made.logp, torch.full((8,), -math.log(20)), rtol=1e-6, atol=0)
    assert_same_bits(ops.logp(x, made.token, support=made.support).logp, made.logp)
    worst = ops.logp(x, torch.zeros(8, dtype=torch.int64), support=made.support)
    assert worst.logp is not None and torch.equal(worst.logp, torch.full((8,), -torch.inf))


def test_rows_of_options_beyond_their_range_are_at_its_end() -> None:
    inf, nan = math.inf, math.nan
    x, who = scores(6, 200, torch.float32).nan_to_num(nan=0.0), requests(6)
    for name, given, meant in (
        ("min_p", [2.0, inf, nan, -1.0, -inf, 0.5], [1.0, 1.0, 0.0, 0.0, 0.0, 0.5]),
        ("top_p", [2.0, inf, nan, -1.0, -inf, 0.5], [1.0, 1.0, 1.0, 0.0, 0.0, 0.5]),
        ("top_k", [-1, -7, 0, -(2**31), 2**31 - 1, 5], [0, 0, 0, 0, 0, 5]),
    ):
        made, want = (ops.sample(x, **who, **{name: torch.tensor(row)}) for row in (given, meant))
        assert_same_bits(made.token, want.token)
        assert_same_bits(made.logp, want.logp)
        assert len(set(want.logp.tolist())) > 1


def test_zero_temperature_takes_the_first_of_the_best() -> None:
    x = scores(5, 300, torch.bfloat16)
    x[:, 200] = x[:, 100] = 50.0
    made = ops.sample(x, **requests(5), temperature=0.0, top_p=0.1)
    assert made.token.tolist() == [100] * 5
    assert_same_bits(made.logp, torch.zeros(5))
    assert made.support.ties.tolist() == [1] * 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_never_drawn(dtype: torch.dtype) -> None:
    x = torch.full((100, 50), math.nan, dtype=dtype)
    x[:, ::7] = -math.inf
    x[:, 13], x[:, 31] = -3.0, -3.0
    made = ops.sample(x, seed=1, request_id=torch.arange(100), position=torch.arange(100))
    assert set(made.token.tolist()) == {13, 31}


def test_a_row_without_a_finite_score_is_reported() -> None:
    x = torch.zeros(3, 40)
    x[1] = -math.inf
    made = ops.sample(x, **requests(3), top_k=3, top_p=0.9)
    assert int(made.token[1]) == -1 and bool(made.logp[1].isnan()) and bool(made.raw_logp[1].isnan())
    assert made.support.ties[1] == 0 and bool((made.token[[0, 2]] >= 0).all())
    alone = ops.sample(x[:1], **{n: t[:1] for n, t in requests(3).items()}, top_k=3, top_p=0.9)
    assert_same_bits(alone.token, made.token[:1])


BAD_ROWS = {
    "a score that is +inf": (math.inf, 1.0),
    "a temperature below 0": (0.0, -1.0),
    "an infinite temperature": (0.0, math.inf),
    "a temperature that is NaN": (0.0, math.nan),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_has_no_distribution_draws_nothing(name: str) -> None:
    score, temperature = BAD_ROWS[name]
    x = torch.zeros(3, 40)
    good = ops.sample(x, **requests(3), temperature=torch.tensor([1.0, 0.5, 2.0]), top_k=7)
    x[1, 5] = score
    heat = torch.tensor([1.0, temperature, 2.0])
    made = ops.sample(x, **requests(3), temperature=heat, top_k=7)
    assert int(made.token[1]) == -1 and bool(made.logp[1].isnan()) and bool(made.raw_logp[1].isnan())
    for row in (0, 2):
        assert_same_bits(made.token[row], good.token[row])
        assert_same_bits(made.logp[row], good.logp[row])


def test_a_temperature_whose_reciprocal_overflows_is_greedy() -> None:
    x = torch.tensor([[0.0, 2.0, 1.0]] * 2)
    tiny = ops.sample(x, **requests(2), temperature=torch.tensor([1e-45, 0.0]))
    assert tiny.token.tolist() == [1, 1] and tiny.logp.tolist() == [0.0, 0.0]


def test_no_rows_give_no_tokens() -> None:
    nobody = torch.zeros(0, dtype=torch.int64)
    made = ops.sample(torch.zeros(0, 9), seed=1, request_id=nobody, position=nobody, top_k=3)
    assert [tuple(t.shape) for t in everything(made)] == [(0,)] * 6


def test_rows_may_be_strided() -> None:
    x = scores(6, 301, torch.bfloat16)
    sliced = everything(ops.sample(x[::2, :-1], **requests(3), top_k=9))
    for a, b in zip(
        sliced, everything(ops.sample(x[::2, :-1].contiguous(), **requests(3), top_k=9)), strict=True
    ):
        assert_same_bits(a, b)


# penalties


def penalties(rows: int, vocabulary: int) -> ops.Penalties:
    generator = torch.Generator().manual_seed(2)
    counts = torch.poisson(torch.full((rows, vocabulary), 0.3), generator=generator).int()
    prompt = torch.rand(rows, vocabulary, generator=generator) < 0.2
    repetition = torch.linspace(1.0, 2.0, rows)
    return ops.Penalties(counts, prompt, repetition, frequency=0.3, presence=torch.linspace(-0.5, 1.0, rows))


@pytest.mark.parametrize("dtype", DTYPES)
def test_penalties_are_those_of_float64_and_replayed(dtype: torch.dtype) -> None:
    x, record = scores(8, 400, dtype).nan_to_num(nan=0.0, neginf=-9.0), penalties(8, 400)
    penalized = ops.penalize(x, record)
    torch.testing.assert_close(penalized.double(), ops.penalize.reference(x, record), rtol=1e-6, atol=1e-6)
    made = ops.sample(x, **requests(8), temperature=0.8, top_k=40, penalties=record)
    replayed = ops.logp(penalized, made.token, temperature=0.8, support=made.support).logp
    assert replayed is not None
    assert_same_bits(replayed, made.logp)
    again = ops.sample(penalized, **requests(8), temperature=0.8, top_k=40)
    assert_same_bits(again.token, made.token)
    raw = ops.logp(x, made.token).logp
    assert raw is not None
    assert_same_bits(made.raw_logp, raw)
    assert differing(ops.sample(x, **requests(8), temperature=0.8, top_k=40).logp, made.logp)


def test_penalties_of_one_and_zero_change_nothing() -> None:
    x = scores(4, 100, torch.float32)
    none = ops.Penalties(torch.ones(4, 100, dtype=torch.int64), torch.ones(4, 100, dtype=torch.bool))
    made = ops.penalize(x, none)
    assert torch.equal(made.nan_to_num(), x.nan_to_num())


# refusals


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1.5}, "seed"),
        ({"request_id": torch.zeros(3)}, "request_id"),
        ({"position": torch.zeros(4, dtype=torch.int64)}, "position"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_p": torch.ones(3, dtype=torch.int64)}, "top_p"),
        ({"min_p": torch.ones(2)}, "min_p"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": float("nan")}, "min_p"),
        ({"logits": torch.zeros(9)}, "logits"),
        ({"logits": torch.zeros(3, 0)}, "logits"),
        ({"penalties": ops.Penalties(torch.zeros(3, 8, dtype=torch.int32))}, "counts"),
        ({"penalties": ops.Penalties(torch.zeros(3, 9))}, "counts"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    call: dict[str, Any] = {"logits": torch.zeros(3, 9), **requests(3)} | change
    with pytest.raises(LaunchError, match=named):
        ops.sample(call.pop("logits"), **call)


def test_a_support_of_other_rows_is_refused() -> None:
    x = scores(4, 50, torch.float32)
    made = ops.sample(x, **requests(4), top_k=3)
    for support in (made.support, made.support.to_csr(x)):
        with pytest.raises(LaunchError, match="support"):
            ops.logp(x[:3], made.token[:3], support=support)
    with pytest.raises(LaunchError, match="support"):
        ops.logp(x, made.token, support=made.token)  # type: ignore[arg-type]


def test_numbers_for_each_row_of_a_device_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_constants", {})
    monkeypatch.setattr(sampling, "_finished", lambda make, device: make())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recorded)
    logits, recorded = torch.empty(4, 8, device="meta"), False

    def of(k: object, rows: torch.Tensor = logits) -> torch.Tensor:
        return sampling._cuts(rows, k, 1.0, 0.0)["top_k"]  # type: ignore[arg-type]

    first = of(50)
    assert of(50) is first and of(49) is not first and of(50, logits[:3]) is not first
    with pytest.raises(LaunchError):
        of(50.0)
    zero, negative = (sampling._constant("t", x, logits, lambda: (logits + 1,)) for x in (0.0, -0.0))
    assert zero[0] is not negative[0]
    rows = torch.full((4,), 3, dtype=torch.int32, device="meta")
    assert of(rows) is rows
    recorded = True
    assert of(50) is first and of(48) is not of(48)  # a graph may read what is kept, and keeps nothing
    recorded = False
    monkeypatch.setattr(sampling, "MOST_CONSTANTS", 0)
    assert of(50) is first and of(48) is not of(48)
