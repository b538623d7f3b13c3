"""Laws of preference losses: published formulas with their gradients, references, counts, extreme scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid, relu

from rlk import ops
from rlk.errors import Code, LaunchError
from rlk.testing.bits import as_bits, assert_same_bits, differing

PAIRS = 1500
Formula = Callable[..., torch.Tensor]


def drawn(seed: int = 0, pairs: int = PAIRS) -> dict[str, torch.Tensor]:
    """Summed log-probs, those of a reference, and numbers of tokens."""
    generator = torch.Generator().manual_seed(seed)
    names = ("chosen", "rejected", "ref_chosen", "ref_rejected")
    made = {name: -60 * torch.rand(pairs, generator=generator) - 1 for name in names}
    tokens = {f"{n}_tokens": torch.randint(5, 40, (pairs,), generator=generator) for n in names[:2]}
    return made | tokens


# As published, in the words of TRL's trainers: c and r are log ratios, beta b, smoothing s.
FORMULAS: dict[str, Formula] = {
    "sigmoid": lambda c, r, b, s: -logsigmoid(b * (c - r)),
    "sigmoid, smoothed": lambda c, r, b, s: -(1 - s) * logsigmoid(b * (c - r)) - s * logsigmoid(-b * (c - r)),
    "robust": lambda c, r, b, s: (
        (-(1 - s) * logsigmoid(b * (c - r)) + s * logsigmoid(-b * (c - r))) / (1 - 2 * s)
    ),
    "hinge": lambda c, r, b, s: relu(1 - b * (c - r)),
    "ipo": lambda c, r, b, s: (c - r - 1 / (2 * b)) ** 2,
    "exo_pair": lambda c, r, b, s: (
        torch.sigmoid(b * (c - r)) * (logsigmoid(b * (c - r)) - math.log(1 - s))
        + torch.sigmoid(-b * (c - r)) * (logsigmoid(-b * (c - r)) - math.log(s))
    ),
    "discopop": lambda c, r, b, s: (
        -logsigmoid(b * (c - r)) * (1 - torch.sigmoid(b * (c - r) / 0.5))
        + torch.exp(-b * (c - r)) * torch.sigmoid(b * (c - r) / 0.5)
    ),
    "nca_pair": lambda c, r, b, s: -logsigmoid(b * c) - 0.5 * logsigmoid(-b * c) - 0.5 * logsigmoid(-b * r),
    "bco_pair": lambda c, r, b, s: -logsigmoid(b * c) - logsigmoid(-b * r),
    "sppo_hard": lambda c, r, b, s: (c - 0.5 / b) ** 2 + (r + 0.5 / b) ** 2,
    "apo_zero": lambda c, r, b, s: 1 - torch.sigmoid(b * c) + torch.sigmoid(b * r),
    "apo_down": lambda c, r, b, s: torch.sigmoid(b * c) + 1 - torch.sigmoid(b * (c - r)),
    "cpo": lambda c, r, b, s: -logsigmoid(b * (c - r)),
    "simpo": lambda c, r, b, s: -logsigmoid(b * (c - r) - 0.7),
    "orpo": lambda c, r, b, s: (
        -b * logsigmoid((c - r) - (torch.log1p(-torch.exp(c)) - torch.log1p(-torch.exp(r))))
    ),
}
CONSTANTS: dict[str, dict[str, float]] = {
    "sigmoid, smoothed": {"smoothing": 0.1},
    "robust": {"smoothing": 0.1},
    "exo_pair": {"smoothing": 0.1},
    "discopop": {"tau": 0.5},
    "simpo": {"margin": 0.7},
}
ALONE = ("cpo", "simpo", "orpo")


def arguments(name: str, given: dict[str, torch.Tensor], per_token: bool) -> dict[str, torch.Tensor]:
    """Return what a loss takes: no reference where it has none, counts where scores are per token."""
    counted = per_token or name in ("simpo", "orpo")
    return {
        n: x
        for n, x in given.items()
        if (counted or not n.endswith("_tokens")) and not (name in ALONE and n.startswith("ref_"))
    }


def close(got: torch.Tensor, want: torch.Tensor, rtol: float = 2e-6, atol: float = 2e-6) -> None:
    torch.testing.assert_close(got.detach().double(), want.detach().double(), rtol=rtol, atol=atol)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_preference_loss_is_its_formula_with_its_gradients(name: str, per_token: bool) -> None:
    given = arguments(name, drawn(), per_token)
    leaves = {n: given[n].clone().requires_grad_() for n in ("chosen", "rejected")}
    wide = {n: given[n].double().requires_grad_() for n in ("chosen", "rejected")}
    options: dict[str, Any] = {"loss": name.split(",")[0], "beta": 0.2, **CONSTANTS.get(name, {})}
    made = ops.preference_loss(**{**given, **leaves}, **options)
    scores = []
    for n in ("chosen", "rejected"):
        score = wide[n] - given[f"ref_{n}"].double() if f"ref_{n}" in given else wide[n]
        scores.append(score / given[f"{n}_tokens"] if f"{n}_tokens" in given else score)
    terms = FORMULAS[name](*scores, 0.2, 0.1)
    close(made.per_pair, terms, 2e-6, 1e-5)
    close(made.loss, terms.mean())
    close(made.metrics["accuracy"], (scores[0] > scores[1]).double().mean())
    for metric, score in zip(("chosen_reward", "rejected_reward"), scores, strict=True):
        close(made.metrics[metric], 0.2 * score.mean())
    (1.7 * made.loss).backward()
    (1.7 * terms.mean()).backward()
    for n, leaf in leaves.items():
        assert leaf.grad is not None
        close(leaf.grad, wide[n].grad, 1e-5, 2e-8)
    exact = ops.preference_loss.reference(**given, **options)
    close(exact.per_pair, terms, 1e-10, 1e-10)
    close(exact.loss, terms.mean(), 1e-10, 1e-10)


LINKED: dict[str, Formula] = {
    "forward_kl": lambda d, alpha: 1 - torch.exp(-d),
    "js": lambda d, alpha: math.log(2) + logsigmoid(d),
    "alpha": lambda d, alpha: (torch.exp((alpha - 1) * d) - 1) / (alpha - 1),
}
PAIR = ("chosen", "rejected")


def compared(
    given: dict[str, torch.Tensor], want: Callable[..., torch.Tensor], **options: Any
) -> dict[str, torch.Tensor]:
    """Compare a loss with a formula of float64 log-probs, values and gradients; return the gradients."""
    leaves = {n: given[n].clone().requires_grad_() for n in PAIR}
    wide = {n: given[n].double().requires_grad_() for n in PAIR}
    made = ops.preference_loss(**{**given, **leaves}, **options)
    terms = want(**{n: x.double() if x.is_floating_point() else x for n, x in {**given, **wide}.items()})
    close(made.per_pair, terms, 5e-6, 1e-5)
    close(made.loss, terms.mean(), 5e-6)
    (1.7 * made.loss).backward()
    (1.7 * terms.mean()).backward()
    for n, leaf in leaves.items():
        assert leaf.grad is not None and wide[n].grad is not None
        close(leaf.grad, wide[n].grad, 2e-5, 2e-8)
    exact = ops.preference_loss.reference(**given, **options)
    close(exact.per_pair, terms, 1e-10, 1e-10)
    close(exact.loss, terms.mean(), 1e-10, 1e-10)
    return {n: x.grad for n, x in leaves.items() if x.grad is not None}


def near(pairs: int = PAIRS) -> dict[str, torch.Tensor]:
    """Log-probs near those of the reference: ratios whose powers are no infinities."""
    given = drawn(7, pairs)
    noise = torch.randn(2, pairs, generator=torch.Generator().manual_seed(8))
    return {
        **given,
        **{n: given[f"ref_{n}"] + 1.5 * noise[i] for i, n in enumerate(PAIR)},
    }


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("loss", ["sigmoid", "hinge", "ipo", "exo_pair"])
@pytest.mark.parametrize("divergence", LINKED)
def test_a_divergence_is_its_formula_with_its_gradients(divergence: str, loss: str, per_token: bool) -> None:
    """As TRL's DPOTrainer: f' of the ratio, then per token."""
    given = arguments(loss, near(), per_token)
    options: dict[str, Any] = {"loss": loss, "beta": 0.2, "divergence": divergence, **CONSTANTS.get(loss, {})}
    if divergence == "alpha":
        options["alpha"] = 0.5

    def want(**x: torch.Tensor) -> torch.Tensor:
        scores = [LINKED[divergence](x[n] - x[f"ref_{n}"], 0.5) for n in PAIR]
        if per_token:
            scores = [s / x[f"{n}_tokens"] for s, n in zip(scores, PAIR, strict=True)]
        return FORMULAS[loss](*scores, 0.2, 0.1)

    if loss == "exo_pair":
        options["smoothing"] = 0.1
    compared(given, want, **options)


def test_an_alpha_of_one_is_the_reverse_kl_and_of_none_simpo() -> None:
    given = arguments("sigmoid", near(), False)
    one = ops.preference_loss(**given, divergence="alpha", alpha=1.0)
    assert_same_bits(one.per_pair, ops.preference_loss(**given).per_pair)
    given = arguments("simpo", drawn(), True)
    none = ops.preference_loss(**given, loss="alphapo", alpha=0.0, margin=0.7)
    assert_same_bits(none.per_pair, ops.preference_loss(**given, loss="simpo", margin=0.7).per_pair)


@pytest.mark.parametrize("alpha", [0.25, -0.5])
def test_alphapo_is_its_formula_with_its_gradients(alpha: float) -> None:
    def want(**x: torch.Tensor) -> torch.Tensor:
        p = [torch.exp(x[n] / x[f"{n}_tokens"]) for n in PAIR]
        a, b = ((1 - q**-alpha) / alpha for q in p)
        return -logsigmoid(2.0 * (a - b) - 0.7)

    given = arguments("simpo", drawn(), True)
    compared(given, want, loss="alphapo", alpha=alpha, beta=2.0, margin=0.7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["aot", "aot_unpaired"])
def test_a_loss_of_ranks_is_its_formula_with_its_gradients(loss: str, smoothing: float) -> None:
    """TRL sorts both sides; a pair has the term of its first difference."""
    given = arguments(loss, drawn(3), False)

    def want(**x: torch.Tensor) -> torch.Tensor:
        sides = (x["chosen"], x["ref_chosen"], x["rejected"], x["ref_rejected"])
        c, rc, r, rr = sides
        one, two = (c - r, rc - rr) if loss == "aot" else (c - rc, r - rr)
        u = 0.2 * (one.sort().values - two.sort().values)
        terms = -logsigmoid(u) * (1 - smoothing) - logsigmoid(-u) * smoothing
        return torch.empty_like(terms).scatter(0, one.sort().indices, terms)

    grads = compared(given, want, loss=loss, beta=0.2, smoothing=smoothing)
    assert bool(differing(grads["chosen"], -grads["rejected"])) == (loss == "aot_unpaired")


def test_equal_ranks_are_in_the_order_of_the_batch() -> None:
    """The gradient of a tie goes to the first: the same calls have the same bits."""
    zero, half = torch.zeros(3), torch.tensor([0.0, 1.0, 2.0])
    chosen = torch.zeros(3, requires_grad=True)
    ops.preference_loss(chosen, zero, half, zero, loss="aot", beta=1.0).loss.backward()
    assert chosen.grad is not None
    want = -torch.sigmoid(half) / 3
    close(chosen.grad, want)


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "apo_zero"])
def test_weights_multiply_what_a_pair_adds(loss: str) -> None:
    given = arguments(loss, drawn(4), False)
    given["weights"] = torch.rand(PAIRS, generator=torch.Generator().manual_seed(9))

    def want(weights: torch.Tensor, **x: torch.Tensor) -> torch.Tensor:
        return weights * FORMULAS[loss](*(x[n] - x[f"ref_{n}"] for n in PAIR), 0.2, 0.0)

    compared(given, want, loss=loss, beta=0.2)
    given["weights"][5], given["chosen"][5] = 0.0, math.nan
    made = ops.preference_loss(**given, loss=loss)
    assert made.per_pair[5] == 0 and made.loss.isfinite()


# odds need probabilities below 1, and discopop is e^-u itself
@pytest.mark.parametrize("name", [name for name in FORMULAS if name not in ("orpo", "discopop")])
def test_extreme_scores_stay_what_they_are(name: str) -> None:
    """No loss overflows on the way to a finite value, and none is NaN where its formula is not."""
    big = torch.tensor([400.0, -400.0, 90.0, -90.0, 0.0])
    given = {"chosen": big, "rejected": torch.zeros(5), "ref_chosen": torch.zeros(5)}
    given |= {"ref_rejected": torch.zeros(5), "chosen_tokens": torch.ones(5, dtype=torch.int32)}
    given = arguments(name, given | {"rejected_tokens": torch.ones(5, dtype=torch.int32)}, False)
    options: dict[str, Any] = {"loss": name.split(",")[0], "beta": 1.0, **CONSTANTS.get(name, {})}
    made = ops.preference_loss(**given, **options)
    wide = ops.preference_loss.reference(**given, **options)
    close(made.per_pair, wide.per_pair)


def test_the_naive_logarithm_would_overflow() -> None:
    """The control: log(sigmoid(u)) is -inf where log sigmoid(u) is u."""
    u = torch.tensor([-200.0])
    assert torch.log(torch.sigmoid(u)).isinf().all()
    zero = torch.zeros(1)
    assert ops.preference_loss(u, zero, zero, zero, beta=1.0).loss == 200.0


def test_odds_of_likely_completions_keep_their_digits() -> None:
    """log(1 - e^x) by log1p(-e^x) alone is worthless where e^x is nearly 1."""
    tiny = -torch.logspace(-7, -1, 50)
    tokens = torch.ones(50, dtype=torch.int64)
    counts = {"chosen_tokens": tokens, "rejected_tokens": tokens}
    made = ops.preference_loss(tiny, 2 * tiny, loss="orpo", beta=1.0, **counts)
    wide = ops.preference_loss.reference(tiny, 2 * tiny, loss="orpo", beta=1.0, **counts)
    close(made.per_pair, wide.per_pair)
    naive = torch.log1p(-torch.exp(tiny))
    assert (naive.double() - torch.log(-torch.expm1(tiny.double()))).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["sigmoid", "apo_down"])
def test_a_pair_does_not_know_its_neighbours(name: str) -> None:
    given = arguments(name, drawn(2), False)
    whole = ops.preference_loss(**given, loss=name)
    for rows in (slice(0, 1), slice(700, 1100)):
        part = ops.preference_loss(**{n: x[rows] for n, x in given.items()}, loss=name)
        assert_same_bits(part.per_pair, whole.per_pair[rows])
        assert differing(part.loss, whole.loss)


def test_no_pair_is_no_loss() -> None:
    none = torch.zeros(0)
    made = ops.preference_loss(none, none, none, none)
    assert int(as_bits(made.loss)) == 0 and made.per_pair.shape == (0,)
    kept = ops.kto_loss(none, none, none.bool())
    assert int(as_bits(kept.loss)) == 0


# samples without a partner


@pytest.mark.parametrize("shift", [0.5, -0.5])
@pytest.mark.parametrize("others", [False, True])
def test_a_kto_loss_is_its_formula_with_its_gradient(others: bool, shift: float) -> None:
    given = drawn(3)
    desirable = given["chosen_tokens"] % 3 > 0
    logp, ref = given["chosen"].clone().requires_grad_(), given["chosen"] + 3 * torch.sin(given["rejected"])
    mismatched = (given["ref_chosen"] + shift, given["ref_chosen"]) if others else None
    options: dict[str, Any] = {"beta": 0.3, "desirable_weight": 1.3, "undesirable_weight": 0.8}
    made = ops.kto_loss(logp, ref, desirable, mismatched=mismatched, **options)
    wide = given["chosen"].double().requires_grad_()
    z = torch.tensor(max(0.0, shift) if others else 0.0, dtype=torch.float64)
    ahead = 0.3 * (wide - ref.double() - z)
    terms = torch.where(desirable, 1.3 * (1 - torch.sigmoid(ahead)), 0.8 * (1 - torch.sigmoid(-ahead)))
    close(made.per_sample, terms)
    close(made.loss, terms.mean())
    close(made.metrics["divergence"], z, 1e-5)
    made.loss.backward()
    terms.mean().backward()
    assert logp.grad is not None and wide.grad is not None
    close(logp.grad, wide.grad, 1e-5, 1e-9)
    exact = ops.kto_loss.reference(given["chosen"], ref, desirable, mismatched=mismatched, **options)
    close(exact.per_sample, terms, 1e-5, 1e-6)


def test_the_unpaired_zero_is_kto_without_a_divergence() -> None:
    given = drawn(5)
    desirable, beta = given["chosen_tokens"] % 3 > 0, 0.3
    logp, ref = given["chosen"], given["chosen"] + 3 * torch.sin(given["rejected"])
    made = ops.kto_loss(logp, ref, desirable, beta=beta, loss="apo_zero_unpaired")
    ahead = torch.sigmoid(beta * (logp.double() - ref.double()))
    close(made.per_sample, torch.where(desirable, 1 - ahead, ahead), 1e-5)
    with pytest.raises(LaunchError, match="mismatched"):
        ops.kto_loss(logp, ref, desirable, loss="apo_zero_unpaired", mismatched=(logp, ref))


def test_a_divergence_that_is_nan_is_not_zero() -> None:
    row = torch.zeros(4)
    made = ops.kto_loss(row, row, row == 0, mismatched=(row + math.nan, row))
    assert made.loss.isnan() and made.metrics["divergence"].isnan()


ROW = torch.zeros(4)
REFUSED = {
    "no reference": (lambda: ops.preference_loss(ROW, ROW), Code.ARG_MISSING, "ref_chosen"),
    "half a reference": (lambda: ops.preference_loss(ROW, ROW, ROW), Code.ARG_MISSING, "ref_rejected"),
    "a reference too many": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="cpo"), Code.ARG_VALUE, "None for cpo"
    ),
    "no counts": (lambda: ops.preference_loss(ROW, ROW, loss="simpo"), Code.ARG_MISSING, "per token"),
    "half the counts": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, chosen_tokens=ROW.int()), Code.ARG_MISSING, "other"
    ),
    "an unknown loss": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="slic"),  # type: ignore[arg-type]
        Code.ARG_VALUE, "sigmoid, robust",
    ),
    "a smoothing that means nothing": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="hinge", smoothing=0.1), Code.ARG_VALUE, "0 for"
    ),
    "no smoothing": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="exo_pair"), Code.ARG_VALUE, "above 0"
    ),
    "a margin that means nothing": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="ipo", margin=1.0), Code.ARG_VALUE, "0 for ipo"
    ),
    "beta 0": (lambda: ops.preference_loss(ROW, ROW, ROW, ROW, beta=0.0), Code.ARG_VALUE, "positive"),
    "tokens": (
        lambda: ops.preference_loss(ROW[None], ROW, ROW, ROW), Code.ARG_RANK, "chosen has 2 dims"
    ),
    "fewer": (lambda: ops.preference_loss(ROW, ROW[:3], ROW, ROW), Code.ARG_SIZE, "rejected"),
    "a divergence of a loss without ratios": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="apo_zero", divergence="js"),
        Code.ARG_VALUE, "reverse_kl for apo_zero",
    ),
    "no alpha": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, divergence="alpha"), Code.ARG_MISSING, "alpha"
    ),
    "an alpha that nothing reads": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, alpha=0.5), Code.ARG_VALUE, "None for sigmoid"
    ),
    "ranks with weights": (
        lambda: ops.preference_loss(ROW, ROW, ROW, ROW, loss="aot", weights=ROW), Code.ARG_VALUE, "for aot"
    ),
    "ranks of fewer": (
        lambda: ops.preference_loss(ROW, ROW, ROW[:3], ROW, loss="aot"), Code.ARG_SIZE, "ref_chosen"
    ),
    "halves": (lambda: ops.kto_loss(ROW.half(), ROW, ROW == 0), Code.ARG_DTYPE, "logp"),
    "labels that are numbers": (lambda: ops.kto_loss(ROW, ROW, ROW), Code.ARG_DTYPE, "desirable"),
    "a gradient of the reference": (
        lambda: ops.kto_loss(ROW, torch.zeros(4, requires_grad=True), ROW == 0),
        Code.NOT_DIFFERENTIABLE, "ref_logp",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_named(name: str) -> None:
    attempt, code, text = REFUSED[name]
    with pytest.raises(LaunchError, match=text) as caught:
        attempt()
    assert caught.value.diagnostics[0].code is code
