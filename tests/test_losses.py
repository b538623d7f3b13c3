"""Laws of every policy loss: formulas and slopes, layouts and neighbours that change no bit, edges."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loss_cases import GIVEN, LENGTHS, RECORDS, SEQUENCES, WIDTH, batch, forms, laid_out, run

from rlk import Layout, ops
from rlk.errors import Code, LaunchError
from rlk.ops import LOSSES, Loss
from rlk.ops.laws import check_loss
from rlk.ops.losses import METRICS, Correction, Rejection, Selection, clip, form_of, kl_cov, surrogate
from rlk.ops.policy import planned
from rlk.specs import surrogates
from rlk.specs.policy import EDGES, policy_spec
from rlk.specs.surrogates import Term, Token
from rlk.testing.bits import as_bits, assert_same_bits, differing
from rlk.testing.check import Law

RIGHT = forms()["right"]


def near(got: torch.Tensor, want: torch.Tensor, tolerance: float = 2e-6) -> None:
    """Compare with float64, relative to the largest element: sums cancel."""
    scale = want.abs().max().clamp(min=1e-3)
    assert float((got.double() - want).abs().max() / scale) <= tolerance, (got, want)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("name", RECORDS)
def test_a_loss_is_its_formula_with_its_gradients(name: str, per_token: bool) -> None:
    given = batch()
    if per_token:
        given["advantages"] = torch.randn(len(LENGTHS), WIDTH, generator=torch.Generator().manual_seed(9))
    made, grads, _ = run(RIGHT, given, RECORDS[name])
    want, wanted, _ = run(RIGHT, given, RECORDS[name], ops.policy_loss.reference)
    # a mean weight is one number of all tokens: its rounding enters the sum over a sequence once for each
    tolerance = 2e-5 if name == "vespo of normalized weights" else 4e-6
    near(made.per_token, want.per_token, tolerance)
    near(made.loss.detach(), want.loss.detach(), 2e-5)  # of terms of both signs
    assert int(made.metrics["active"]) == int(want.metrics["active"])
    for leaf, grad in grads.items():
        near(grad, wanted[leaf], tolerance)


@pytest.mark.parametrize("name", RECORDS)
def test_layouts_change_no_bit(name: str) -> None:
    given, layouts = batch(1), forms()
    made, grads, laid = run(layouts["packed"], given, RECORDS[name])
    for form in ("right", "left", "wide"):
        other, others, layout = run(layouts[form], given, RECORDS[name])
        assert_same_bits(other.loss, made.loss, form)
        for metric, value in made.metrics.items():
            assert_same_bits(other.metrics[metric], value, metric)
        assert_same_bits(other.per_token[layout.active], made.per_token[laid.active], form)
        for leaf, grad in grads.items():
            assert_same_bits(others[leaf][layout.active], grad[laid.active], f"{form}: {leaf}")
            assert (as_bits(others[leaf][~layout.active]) == 0).all()


LONG = (2100, 5, 1030)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_does_not_know_its_neighbours(name: str) -> None:
    """Of more than a chunk, and sums: what the batch is divided by is its own affair."""
    loss = replace(RECORDS[name], aggregation="sum", normalizer=None)
    if loss.correction is not None:
        loss = replace(loss, correction=replace(loss.correction, normalized=False))
    given = batch(2, LONG, 2200)
    whole, grads, layout = run(forms(LONG, 2200)["right"], given, loss)
    for i, length in enumerate(LONG):
        alone = {n: x[i : i + 1] for n, x in given.items()}
        made, own, laid = run(forms((length,), 2200)["left"], alone, loss)
        assert_same_bits(made.per_token[laid.active], whole.per_token[i][layout.active[i]], f"sequence {i}")
        assert_same_bits(own["logp"][laid.active], grads["logp"][i][layout.active[i]], f"gradient {i}")


def test_other_chunks_of_a_sequence_have_other_bits() -> None:
    """The control: the same tokens, the last ones first."""
    loss = Loss(clip(None, None), level="sequence", aggregation="sum")
    seen = 0
    for seed in range(4):
        given = batch(seed, LONG, 2200)
        made, _, layout = run(forms(LONG, 2200)["right"], given, loss)
        turned = {n: x if n == "advantages" else x.flip(1) for n, x in given.items() if n not in GIVEN}
        turned.pop("mask")
        back = Layout.padded(torch.full((3,), 2200), 2200, mask=layout.active.flip(1))
        other = ops.policy_loss(**turned, layout=back, loss=loss)
        seen += differing(other.per_token.flip(1)[layout.active], made.per_token[layout.active])
    assert seen


@pytest.mark.parametrize("junk", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["grpo", *SEQUENCES])
def test_nothing_of_an_inactive_token_is_seen(name: str, junk: float) -> None:
    given = batch(3)
    made, grads, layout = run(RIGHT, given, RECORDS[name])
    whole = ("mask", "advantages")
    spoiled = {n: x if n in whole else torch.where(layout.active, x, junk) for n, x in given.items()}
    other, others, _ = run(RIGHT, spoiled, RECORDS[name])
    assert_same_bits(other.loss, made.loss)
    assert_same_bits(other.per_token, made.per_token)
    for metric, value in made.metrics.items():
        assert_same_bits(other.metrics[metric], value, metric)
    for leaf, grad in grads.items():
        assert_same_bits(others[leaf], grad)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_nan_stays_in_its_sequence(name: str) -> None:
    given = batch(4)
    clean, _, _ = run(RIGHT, given, replace(RECORDS[name], aggregation="sum"))
    row, column = clean.per_token.nonzero()[0].tolist()
    given["logp"][row, column] = math.nan
    made, grads, _ = run(RIGHT, given, replace(RECORDS[name], aggregation="sum"))
    others = torch.arange(len(LENGTHS)) != row
    assert made.per_token[row].isnan().any() and made.loss.isnan()
    assert_same_bits(made.per_token[others], clean.per_token[others])
    assert not grads["logp"][others].isnan().any()


@pytest.mark.parametrize("tokens", [0, 5])
@pytest.mark.parametrize("name", ["ppo", *SEQUENCES])
def test_no_active_token_is_no_loss(name: str, tokens: int) -> None:
    nothing = torch.full((tokens,), math.nan)
    lp = nothing.clone().requires_grad_()
    layout = Layout.packed(torch.tensor([0, tokens]), mask=torch.zeros(tokens, dtype=torch.bool))
    extra = dict.fromkeys(GIVEN, nothing)
    loss = replace(RECORDS[name], metrics=METRICS)
    made = ops.policy_loss(lp, nothing, torch.ones(1), layout=layout, loss=loss, **extra)
    made.loss.backward()
    assert int(as_bits(made.loss)) == 0
    assert all(not x.any() for x in made.metrics.values())
    assert lp.grad is not None and (as_bits(lp.grad) == 0).all()


def of_tokens(delta: list[float], advantages: list[float], loss: Loss) -> Any:
    n = len(delta)
    lp = torch.tensor(delta, requires_grad=True)
    layout = Layout.packed(torch.arange(2) * n, tokens=n)
    made = ops.policy_loss(lp, torch.zeros(n), torch.tensor(advantages), layout=layout, loss=loss)
    made.loss.backward()
    return made, lp.grad


@pytest.mark.parametrize("name", ["clip", "cispo", "sapo", "gspo", "dppo_tv", "ipo_mask", "gmpo", "luspo"])
def test_an_infinite_ratio_without_advantage_counts_for_nothing(name: str) -> None:
    loss = LOSSES.get(name, Loss())
    if name == "ipo_mask":
        loss = Loss(surrogate(loss.surrogate.fn, threshold=0.2))
    made, grad = of_tokens([200.0, 150.0, 300.0], [0.0, 0.0, -0.0], loss)
    assert (made.per_token == 0).all() and float(made.loss.detach()) == 0 and (grad == 0).all()


TAKEN_OUT: dict[str, tuple[Loss, float, float]] = {
    "a mask of tokens": (Loss(correction=Correction("mask", low=0.5, high=2.0)), 200.0, 3.0),
    "slime/icepop": (LOSSES["slime/icepop"], 200.0, 3.0),
    "trl/grpo_mis": (LOSSES["trl/grpo_mis"], 200.0, 3.0),
    "a drift": (Loss(most_drift=1.0), -200.0, 0.0),
}
"""Losses, log ratios and the log of importance weights of a token that a weight of 0 takes out."""


@pytest.mark.parametrize("name", TAKEN_OUT)
def test_a_token_of_no_weight_adds_nothing_even_if_its_ratio_is_infinite(name: str) -> None:
    loss, log_ratio, log_weight = TAKEN_OUT[name]
    loss = replace(loss, aggregation="sum", normalizer=None)
    layout = Layout.packed(torch.tensor([0, 1, 2]), tokens=2)
    old = torch.tensor([-1.0, -1.0])
    for ratio in (math.inf, log_ratio):
        # of the drift, a ratio that is infinite by its sequence: old_logp far above logp has a ratio of 0
        lp = torch.tensor([-1.0, -1.0 + (ratio if name != "a drift" else log_ratio)], requires_grad=True)
        given = {"rollout_logp": old - torch.tensor([0.0, log_weight])} if loss.correction else {}
        made = ops.policy_loss(lp, old, torch.tensor([1.0, -1.0]), layout=layout, loss=loss,
                               advantages_of="sequences", **given)  # fmt: skip
        made.loss.backward()
        assert made.per_token.tolist() == [-1.0, 0.0] and float(made.loss.detach()) == -1.0
        assert lp.grad is not None and lp.grad.tolist() == [-1.0, 0.0]


@pytest.mark.parametrize("name", [name for name in LOSSES if not name.startswith("trl/grpo_mis")])
def test_a_nan_of_a_token_that_counts_is_seen(name: str) -> None:
    loss = replace(LOSSES[name], aggregation="sum", normalizer=None)
    layout = Layout.packed(torch.tensor([0, 2, 4]), tokens=4)
    for which in ("logp", "old_logp"):
        for advantage in (1.0, -1.0):
            given = {n: torch.tensor([-1.0, -1.1, -0.9, -1.0]) for n in ("logp", "old_logp", *GIVEN)}
            given[which][1] = math.nan
            given["logp"].requires_grad_()
            advantages = torch.full((2,), advantage)
            made = ops.policy_loss(**given, advantages=advantages, layout=layout, loss=loss)
            made.loss.backward()
            by_policy = (
                loss.surrogate.fn is surrogates.reinforce and loss.level == "token" and not loss.bypass
            )
            reads = which == "logp" or not by_policy
            assert made.loss.isnan() == reads and made.per_token[1].isnan() == reads
            assert not made.per_token[2:].isnan().any()


@pytest.mark.parametrize("bounds", [{"high": 1.0}, {"low": -1.0}, {"low": -1.0, "high": 1.0}])
@pytest.mark.parametrize("over", ["token", "sum", "mean", "max"])
def test_a_statistic_that_is_nan_is_rejected_with_what_it_is_of(over: str, bounds: dict[str, float]) -> None:
    layout = Layout.packed(torch.tensor([0, 2, 5]), tokens=5)
    same, rollout = torch.zeros(5), torch.tensor([0.0, 0.0, 0.0, math.nan, 0.0])
    loss = Loss(rejections=(Rejection("k2", over, **bounds),))  # type: ignore[arg-type]
    logp = torch.zeros(5, requires_grad=True)
    made = ops.policy_loss(logp, same, torch.ones(5), layout=layout, loss=loss, rollout_logp=rollout)
    made.loss.backward()
    counted = [True, True, over == "token", False, over == "token"]
    assert (made.per_token != 0).tolist() == counted and int(made.metrics["active"]) == sum(counted)
    assert logp.grad is not None and (logp.grad != 0).tolist() == counted
    kept = ops.policy_loss(logp, same, torch.ones(5), layout=layout, loss=loss, rollout_logp=same)
    assert int(kept.metrics["active"]) == 5  # the control: the same loss rejects nothing that is there


def test_the_effective_sample_size_is_of_importance_weights_not_of_masks() -> None:
    """ess = (sum w)^2 / (n sum w^2) of ratios, or of what corrects them; a drift masks, it weighs nothing."""
    given = batch(6)
    drifted = Loss(most_drift=0.0, metrics=METRICS)
    made, _, layout = run(RIGHT, given, drifted)
    plain, _, _ = run(RIGHT, given, replace(drifted, most_drift=None))
    assert_same_bits(made.metrics["ess"], plain.metrics["ess"])
    ratio = (given["logp"] - given["old_logp"]).double()[layout.active].exp()
    near(made.metrics["ess"], ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()), 1e-5)
    assert made.metrics["masked_fraction"] > plain.metrics["masked_fraction"]


def test_what_advantages_are_of_is_said_where_both_fit() -> None:
    layout = Layout.packed(torch.tensor([0, 0, 2, 3]), tokens=3)
    lp, advantages = torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])
    shared = {"layout": layout, "loss": Loss(metrics=())}
    tokens = ops.policy_loss(lp, lp, advantages, advantages_of="tokens", **shared)
    sequences = ops.policy_loss(lp, lp, advantages, advantages_of="sequences", **shared)
    assert tokens.per_token.tolist() == [-1.0, -2.0, -3.0]
    assert sequences.per_token.tolist() == [-2.0, -2.0, -3.0]
    for made, of in ((tokens, "tokens"), (sequences, "sequences")):
        want = ops.policy_loss.reference(lp, lp, advantages, advantages_of=of, **shared)
        near(made.per_token, want.per_token)
    with pytest.raises(LaunchError, match="advantages_of is required") as caught:
        ops.policy_loss(lp, lp, advantages, **shared)
    assert caught.value.code is Code.ARG_MISSING
    with pytest.raises(LaunchError, match="advantages_of") as caught:
        ops.policy_loss(lp, lp, advantages, advantages_of="rows", **shared)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="advantages has"):
        ops.policy_loss(lp, lp, torch.ones(2), advantages_of="tokens", **shared)


def test_one_token_is_a_sequence() -> None:
    """Of one token, the ratio of a sequence is that of the token."""
    token, by_token = of_tokens([0.1], [2.0], Loss())
    sequence, by_sequence = of_tokens([0.1], [2.0], Loss(level="sequence", aggregation="sequence_mean"))
    assert_same_bits(sequence.loss, token.loss)
    assert_same_bits(by_sequence, by_token)


def test_segments_are_those_of_the_active_tokens_in_order() -> None:
    mask = torch.tensor([[True, False, True], [True, True, True], [False, False, True]])
    layout = Layout.padded(torch.tensor([3, 0, 2]), 3, mask=mask)
    assert [x.tolist() for x in layout.segments] == [[0, 2, 2], [2, 2, 2]]
    packed = Layout.packed(torch.tensor([0, 3, 3, 5]), mask=torch.tensor([True, False, True, False, False]))
    assert [x.tolist() for x in packed.segments] == [[0, 2, 2], [2, 2, 2]]


# what selects code


def test_numbers_are_no_part_of_an_operator() -> None:
    names = {
        policy_spec(form_of(loss, False)[0]).name for loss in (Loss(), Loss(clip(0.1, 0.4)), LOSSES["dapo"])
    }
    assert len(names) == 1
    other = policy_spec(form_of(Loss(clip(dual=3.0)), False)[0])
    assert other.name not in names and other.name.startswith("policy_loss_")


def test_a_term_of_no_weight_costs_nothing() -> None:
    plain, _ = form_of(Loss(), False)
    assert form_of(Loss(beta=0.0, kl="k1", kl_limit=1.0), False)[0] == plain
    assert "ref_logp" not in plain.tensors and "begin" not in plain.tensors


WRONG: dict[str, tuple[Any, Code, str]] = {
    "a level": (lambda: Loss(level="word"), Code.ARG_VALUE, "sequence"),  # type: ignore[arg-type]
    "a metric": (lambda: Loss(metrics=("kl",)), Code.ARG_VALUE, "ess"),
    "a number": (lambda: clip(torch.tensor(0.2)), Code.ARG_TYPE, "low"),  # type: ignore[arg-type]
    "a normalizer": (lambda: Loss(normalizer=torch.tensor(2)), Code.ARG_TYPE, "normalizer"),  # type: ignore[arg-type]
    "a surrogate": (lambda: Loss(max), Code.ARG_TYPE, "surrogate"),  # type: ignore[arg-type]
    "a kind of correction": (lambda: Correction("drop"), Code.ARG_VALUE, "truncate"),  # type: ignore[arg-type]
    "a statistic": (lambda: Rejection("k4", high=1.0), Code.ARG_VALUE, "k3"),  # type: ignore[arg-type]
    "a selection of nothing": (lambda: Selection(0.0), Code.ARG_VALUE, "share"),
    "a surrogate without its selection": (lambda: Loss(kl_cov()), Code.ARG_MISSING, "selection"),
    "a selection that nothing reads": (lambda: Loss(selection=Selection()), Code.ARG_VALUE, "selection"),
    "a selection of sequences": (
        lambda: Loss(kl_cov(), selection=Selection(), level="sequence"),
        Code.ARG_VALUE,
        "level",
    ),
    "masked weights of sequences": (lambda: Correction("sequence_mask", "sequence"), Code.ARG_VALUE, "token"),
    "masked weights in a product": (
        lambda: Loss(correction=Correction("sequence_mask"), level="sequence_sum"),
        Code.ARG_VALUE,
        "level",
    ),
    "a rejection of nothing": (Rejection, Code.ARG_MISSING, "low or high"),
    "pessimistic tokens": (lambda: Loss(pessimistic=True), Code.ARG_MISSING, "token_limits"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_record_is_refused_where_it_is_made(name: str) -> None:
    make, code, word = WRONG[name]
    with pytest.raises(LaunchError) as caught:
        make()
    assert caught.value.code is code and word in str(caught.value)


@pytest.mark.parametrize("missing", ["ref_logp", "rollout_logp", "entropy"])
def test_a_tensor_that_a_loss_reads_is_asked_for(missing: str) -> None:
    loss = Loss(beta=0.1, entropy_coef=0.1, correction=Correction())
    moved, layout = laid_out(RIGHT, batch())
    with pytest.raises(LaunchError, match=missing) as caught:
        ops.policy_loss(**{**moved, missing: None}, layout=layout, loss=loss)
    assert caught.value.code is Code.ARG_MISSING


# selections, weights, bypasses


@pytest.mark.parametrize("name", ["clip_cov of many", "kl_cov of many"])
@pytest.mark.parametrize("per_token", [False, True])
def test_a_selection_takes_its_share_of_the_largest(name: str, per_token: bool) -> None:
    """Counted in NumPy; equal covariances are taken in the order of the batch."""
    given, loss = batch(3), RECORDS[name]
    if per_token:
        given["advantages"] = torch.randn(given["logp"].shape, generator=torch.Generator().manual_seed(3))
    made, _, layout = run(RIGHT, given, loss)
    a = given["advantages"] if per_token else given["advantages"][:, None].expand_as(given["logp"])
    a, lp = (x[layout.active].double().numpy() for x in (a, given["logp"]))
    score = (a - a.mean()) * (lp - lp.mean())
    selection, numbers = loss.selection, dict(loss.surrogate.numbers)
    assert selection is not None
    if selection.unclipped:
        assert selection.low is not None and selection.high is not None
        r = np.exp(lp - given["old_logp"][layout.active].double().numpy())
        clipped = -np.clip(r, numbers["least"], numbers["most"]) * a > -r * a
        score[clipped | (score <= selection.low) | (score >= selection.high)] = -np.inf
    wanted = np.argsort(-score, kind="stable")[: int(selection.share * len(score))]
    wanted = wanted[score[wanted] > -np.inf]
    assert 10 < len(wanted) < len(score) / 2
    near(made.metrics["clip_fraction"], torch.tensor(len(wanted) / len(score), dtype=torch.float64))


def test_equal_covariances_are_taken_in_the_order_of_the_batch() -> None:
    rows = torch.zeros(6)
    layout = Layout.packed(torch.tensor([0, 6]), tokens=6, mask=torch.tensor([False, *[True] * 5]))
    loss = Loss(kl_cov(1.0), selection=Selection(0.4))
    advantages = torch.zeros(6)
    made = ops.policy_loss(rows, rows - 1.0, advantages, layout=layout, loss=loss, advantages_of="tokens")
    assert made.per_token.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_a_token_of_weight_0_does_not_count() -> None:
    """The same loss as with those tokens left out of the layout, and weights of 1."""
    given = batch(6)
    weights = (given["token_weights"] != 0).float()
    loss = replace(RECORDS["weighted means of sequences"], rejections=())
    one, grads, _ = run(RIGHT, {**given, "token_weights": weights}, loss)
    mask = given["mask"] & (weights != 0)
    two, others, _ = run(RIGHT, {**given, "mask": mask}, replace(loss, weighted=False))
    near(one.loss, two.loss.detach().double())
    assert int(one.metrics["active"]) == int(two.metrics["active"])
    torch.testing.assert_close(grads["logp"], others["logp"], rtol=1e-5, atol=1e-8)


# metrics


def test_metrics_are_their_formulas() -> None:
    given = batch(5)
    loss = Loss(correction=Correction(high=1.1), rejections=(Rejection("k2", high=0.01),), metrics=METRICS)
    made, _, layout = run(RIGHT, given, loss)
    d = (given["old_logp"] - given["rollout_logp"]).double()
    kept = layout.active & (d * d / 2 <= 0.01)
    weights, moved = d.exp().clamp(max=1.1)[kept], (given["logp"] - given["old_logp"]).double()[kept]
    near(made.metrics["ess"], weights.sum() ** 2 / (weights**2).sum() / kept.sum())
    near(made.metrics["approx_kl"], (torch.expm1(-moved) + moved).mean())
    near(made.metrics["masked_fraction"], 1 - kept.sum() / layout.active.sum().double())
    histogram, _ = np.histogram(moved.float().numpy(), bins=[-np.inf, *np.float32(EDGES), np.inf])
    assert made.metrics["log_ratio_histogram"].tolist() == histogram.tolist()
    assert made.metrics["log_ratio_histogram"].dtype is torch.int32


# the laws of specs


def soft(token: Token, scale: Any) -> Term:
    """A surrogate that rlk does not have."""
    from rlk.lang import L

    bent = L.tanh(scale * token.log_ratio)
    return Term(-(token.advantage * bent) / scale, by_ratio=-(token.advantage * (1.0 - bent * bent)))


CHECKED = (
    "verl/vanilla", "sapo", "dro", "prime/default", "slime/unbiased_kl", "gmpo", "sequence, sequence_mean",
    "sequence_sum, sum", "mask sequence, normalized", "rejected by k3 sum",
)  # fmt: skip


@pytest.mark.parametrize("name", [*CHECKED, "soft"])
def test_a_loss_obeys_the_laws_of_specs(name: str) -> None:
    """Slopes against central differences, tilings, and the text of the intermediate form."""
    loss = RECORDS.get(name, Loss(surrogate(soft, scale=2.0), level="sequence"))
    loss = replace(loss, kl=loss.kl.removesuffix("+"), metrics=())
    found = check_loss(loss, (Law.TEXT, Law.SLOPE, Law.TILES))
    assert found and all(v.ok for v in found), [v for v in found if not v.ok]


def test_a_wrong_slope_is_seen() -> None:
    def wrong(token: Token, scale: Any) -> Term:
        made = soft(token, scale)
        return replace(made, by_ratio=1.001 * made.by_ratio)  # type: ignore[operator]

    loss = Loss(surrogate(wrong, scale=2.0), metrics=())
    (found,) = check_loss(loss, (Law.SLOPE,))
    assert not found.ok and found.worst > 1e-4


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
def test_a_copy_of_a_loss_is_one_that_runs(copied: Any) -> None:
    for name, loss in LOSSES.items():
        other = copied(loss)
        assert other == loss and planned(other, True) == planned(loss, True), name
