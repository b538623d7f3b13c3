"""Policy losses as data: surrogate, ratio level, corrections, penalties and aggregation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakValueDictionary

from rlk.errors import Code, LaunchError
from rlk.runtime.binding.checks import (
    flag,
    is_among,
    names_among,
    number,
    ordered,
    positive,
    wrong_type,
    wrong_value,
)
from rlk.specs import surrogates
from rlk.specs.policy import Form
from rlk.specs.surrogates import Term, Token

KL = ("k1", "k2", "k3", "abs", "k1+", "k3+")
KLName = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]
METRICS = ("clip_fraction", "approx_kl", "ess", "masked_fraction", "log_ratio_histogram")
Bounds = tuple[float | None, float | None]
LIVING: WeakValueDictionary[int, Loss] = WeakValueDictionary()
"""Every loss, by its `id`."""
CHOICES: dict[str, tuple[str, ...]] = {
    "level": ("token", "sequence", "sequence_own", "sequence_sum"),
    "kl": KL,
    "kl_enters": ("loss", "ratio", "advantage"),
    "entropy_mean": ("loss", "tokens"),
    "aggregation": ("token_mean", "sequence_mean", "sequence_sum", "sum"),
    "sequences": ("active", "all"),
}


@dataclass(frozen=True, slots=True)
class Surrogate:
    """The summand of a token as a function of tiles, and the numbers that it takes by name.

    fn(token, **numbers) -> Term is traced once for a loss of this form: see `rlk.specs.surrogates`.
    """

    fn: Callable[..., Term]
    numbers: tuple[tuple[str, float], ...] = ()


def limit(op: str, name: str, value: float | None) -> None:
    """Raise LaunchError for a limit or divisor that is neither None nor positive."""
    if value is not None:
        positive(op, name, value)


def limits(
    op: str, low: tuple[str, float | None], high: tuple[str, float | None], least: float = -math.inf
) -> None:
    """Raise LaunchError for limits by name that are no numbers of at least `least`, or not in order."""
    for name, value in (low, high):
        if value is not None:
            number(op, name, value, least=least, infinite=True)
    ordered(op, low, high)


def drift_of(op: str, drift: float | None) -> None:
    """Raise LaunchError for the weight of a drift that is no finite number; None is none."""
    if drift is not None:
        number(op, "drift", drift)


def surrogate(fn: Callable[..., Term], **numbers: float | None) -> Surrogate:
    """Return the surrogate of a function with its numbers; those that are None are left out."""
    given = {
        n: number("surrogate", n, value, infinite=True) for n, value in numbers.items() if value is not None
    }
    return Surrogate(fn, tuple(given.items()))


@dataclass(frozen=True, slots=True)
class Correction:
    """An importance weight exp(old_logp - rollout_logp) that multiplies the surrogate, without a gradient.

    kind: "truncate" moves it between low and high (TIS); "mask" makes it 0 outside of them (MIS, IcePop);
    "sequence_mask" leaves it as it is, of each token, and makes it 0 where the geometric mean of its
    sequence's lies outside (OpenRLHF's seq-mask-tis).
    level: of each token, or of its sequence, whose log ratio is the sum. log_limit: log ratios are moved
    between -log_limit and log_limit first. normalized: weights are divided by their mean over the batch.
    """

    kind: Literal["truncate", "mask", "sequence_mask"] = "truncate"
    level: Literal["token", "sequence"] = "token"
    low: float | None = None
    high: float | None = 2.0
    log_limit: float | None = None
    normalized: bool = False

    def __post_init__(self) -> None:
        is_among("Correction", "kind", self.kind, ("truncate", "mask", "sequence_mask"))
        levels = ("token",) if self.kind == "sequence_mask" else ("token", "sequence")
        is_among("Correction", "level", self.level, levels)
        limits("Correction", ("low", self.low), ("high", self.high), least=0.0)
        limit("Correction", "log_limit", self.log_limit)
        flag("Correction", "normalized", self.normalized)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Tokens that do not count at all, since old_logp left rollout_logp too far.

    statistic: k1 = -d, k2 = d^2 / 2 or k3 = exp(d) - 1 - d, d = old_logp - rollout_logp. over: the token, or
    the sum, mean or maximum over its sequence, which is then rejected whole. low, high: what is kept lies
    between them. log_limit: as a correction's.
    """

    statistic: Literal["k1", "k2", "k3"] = "k3"
    over: Literal["token", "sum", "mean", "max"] = "token"
    low: float | None = None
    high: float | None = None
    log_limit: float | None = None

    def __post_init__(self) -> None:
        is_among("Rejection", "statistic", self.statistic, ("k1", "k2", "k3"))
        is_among("Rejection", "over", self.over, ("token", "sum", "mean", "max"))
        limits("Rejection", ("low", self.low), ("high", self.high))
        limit("Rejection", "log_limit", self.log_limit)
        if self.low is None and self.high is None:
            raise LaunchError(Code.ARG_MISSING, op="Rejection", name="low or high", why="to reject anything")


@dataclass(frozen=True, slots=True)
class Selection:
    """Tokens of the batch that the surrogate treats in a way of its own: clip_cov, kl_cov.

    share: of all active tokens, floor(share n) but at least one, are taken: those whose covariance
    (A - mean A) (logp - mean logp) is largest, equal ones in compacted order; none whose covariance is NaN.
    Means are over active tokens, summed as the loss is. low, high: only covariances between them are
    candidates, neither included. unclipped: nor are tokens whose gradient the surrogate's clip takes. Fewer
    candidates are all taken. (verl's clip_cov draws among its candidates at random; here nothing is random.)
    """

    share: float = 2e-4
    low: float | None = None
    high: float | None = None
    unclipped: bool = False

    def __post_init__(self) -> None:
        number("Selection", "share", self.share, above=0.0, most=1.0)
        limits("Selection", ("low", self.low), ("high", self.high))
        flag("Selection", "unclipped", self.unclipped)


def clip(
    low: float | None = 0.2,
    high: float | None = 0.2,
    *,
    dual: float | None = None,
    delta: float | None = None,
) -> Surrogate:
    """max(-r A, -clip(r, 1 - low, 1 + high) A) (PPO); None: no bound on that side.

    dual: for A < 0 at most -dual A. delta: the unclipped branch has min(r, delta).
    """
    if low is not None and number("clip", "low", low, least=0.0) >= 1.0:  # no ratio is below 0
        raise wrong_value("clip", "low", low, "a number of at least 0 and below 1, or None for no bound")
    least = None if low is None else 1.0 - float(low)
    most = None if high is None else 1.0 + number("clip", "high", high, least=0.0, infinite=True)
    if dual is not None:
        number("clip", "dual", dual, least=1.0)
    limit("clip", "delta", delta)
    return surrogate(surrogates.clip, least=least, most=most, dual=dual, delta=delta)


def cispo(least: float | None = None, most: float | None = 5.0) -> Surrogate:
    """-sg[clip(r, least, most)] A lp. The bounds are ratios, as in TRL; verl has 1 - low and 1 + high."""
    limits("cispo", ("least", least), ("most", most), least=0.0)
    return surrogate(surrogates.cispo, least=least, most=most)


def sapo(tau_positive: float = 1.0, tau_negative: float = 1.05) -> Surrogate:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A."""
    positive("sapo", "tau_positive", tau_positive)
    positive("sapo", "tau_negative", tau_negative)
    return surrogate(surrogates.sapo, tau_positive=tau_positive, tau_negative=tau_negative)


def vespo(
    power_positive: float = 2.0, decay_positive: float = 3.0, power_negative: float = 3.0,
    decay_negative: float = 2.0,
) -> Surrogate:  # fmt: skip
    """-phi(w) A lp, log phi = c + k log w - c w; for level "sequence_sum", w the product of a sequence."""
    numbers = {
        "power_positive": power_positive, "decay_positive": decay_positive,
        "power_negative": power_negative, "decay_negative": decay_negative,
    }  # fmt: skip
    for name, value in numbers.items():
        number("vespo", name, value)
    return surrogate(
        surrogates.vespo, power_positive=power_positive, decay_positive=decay_positive,
        power_negative=power_negative, decay_negative=decay_negative,
    )  # fmt: skip


def reinforce() -> Surrogate:
    """-A lp (REINFORCE, GPG)."""
    return surrogate(surrogates.reinforce)


def dro(penalty: float = 0.1) -> Surrogate:
    """-A lp + penalty / 2 (log r)^2."""
    number("dro", "penalty", penalty, least=0.0)
    return surrogate(surrogates.dro, penalty=penalty)


def dppo_tv(
    below: float = 0.2, above: float = 0.2, *, most: float | None = 20.0, drift: float | None = None
) -> Surrogate:
    """Tokens whose probability moved along A by at most below or above; `most`, `drift`: see the formulas."""
    number("dppo_tv", "below", below, least=0.0)
    number("dppo_tv", "above", above, least=0.0)
    limit("dppo_tv", "most", most)
    drift_of("dppo_tv", drift)
    return surrogate(surrogates.dppo_tv, below=below, above=above, most=most, drift=drift)


def dppo_kl(below: float = 0.2, above: float = 0.2, *, most: float = 20.0) -> Surrogate:
    """Tokens whose binary KL along A is at most below or above."""
    number("dppo_kl", "below", below, least=0.0)
    number("dppo_kl", "above", above, least=0.0)
    positive("dppo_kl", "most", most)
    return surrogate(surrogates.dppo_kl, below=below, above=above, most=most)


def ipo_mask(threshold: float = 0.2, *, drift: float = 1e-3) -> Surrogate:
    """Tokens whose probability moved by at most threshold, and a drift (log r)^2 of all."""
    number("ipo_mask", "threshold", threshold, least=0.0)
    drift_of("ipo_mask", drift)
    return surrogate(surrogates.ipo_mask, threshold=threshold, drift=drift)


def lower_mask(below: float = 0.2, *, drift: float = 1e-3) -> Surrogate:
    """Tokens whose probability fell by at most below, and a drift (log r)^2 of all."""
    number("lower_mask", "below", below, least=0.0)
    drift_of("lower_mask", drift)
    return surrogate(surrogates.lower_mask, below=below, drift=drift)


def clip_cov(low: float = 0.2, high: float = 0.2) -> Surrogate:
    """max(-r A, -clip(r, 1 - low, 1 + high) A), 0 for selected tokens."""
    least = 1.0 - number("clip_cov", "low", low, least=0.0)
    most = 1.0 + number("clip_cov", "high", high, least=0.0)
    return surrogate(surrogates.clip_cov, least=least, most=most)


def kl_cov(coef: float = 0.1) -> Surrogate:
    """-r A, + coef abs(log r) for selected tokens."""
    number("kl_cov", "coef", coef)
    return surrogate(surrogates.kl_cov, coef=coef)


SELECTING = (surrogates.clip_cov, surrogates.kl_cov)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Loss:
    """A policy loss as data; d = logp - old_logp, r = exp(d), A the advantage. Numbers are run-time values.

    surrogate: the summand of a token. level: r is that of the "token", or of its sequence: the mean of d
    ("sequence"), the same with the gradient of the token alone ("sequence_own"), or the sum of d
    ("sequence_sum"), to which a correction of tokens adds the logs of its weights instead of multiplying by
    them. token_limits: d is moved between them; pessimistic: only where A gains by it, as GMPO.
    sequence_limits: the same for the log ratio of a sequence.
    correction, rejections: for rollouts by another policy than old_logp's; they read rollout_logp.
    most_drift: the surrogate of a token with A < 0 is 0 where the mean of -d over its sequence is larger. A
    token whose surrogate is 0 by this or by a correction adds nothing to it, even if its ratio is infinite.
    beta, kl: a KL estimate against ref_logp, weighted by beta, is added to the summand ("loss"), multiplied
    by r first ("ratio"), or taken from A without a gradient ("advantage"). kl_log_limit moves ref_logp - logp
    between -limit and limit, kl_limit the estimate (its product with r, where it enters so). entropy_coef: an
    entropy bonus, below 0 a penalty, averaged as the loss, or over tokens.
    aggregation: the mean over tokens; over sequences, of means ("sequence_mean") or sums ("sequence_sum") of
    their tokens; or the sum. sequences: those that have tokens, or all. normalizer: the loss is divided by
    it as well. metrics: which are computed, of clip_fraction, approx_kl, ess, masked_fraction,
    log_ratio_histogram.
    bypass: old_logp is the rollout's: corrections and rejections are by logp - old_logp, without a gradient,
    and rollout_logp is not read (verl's bypass_mode). weighted: token_weights multiply all that a token adds;
    one of weight 0 does not count. selection: which tokens of the batch clip_cov and kl_cov single out.
    """

    surrogate: Surrogate = clip()
    level: Literal["token", "sequence", "sequence_own", "sequence_sum"] = "token"
    token_limits: Bounds = (None, None)
    pessimistic: bool = False
    sequence_limits: Bounds = (None, None)
    correction: Correction | None = None
    rejections: tuple[Rejection, ...] = ()
    most_drift: float | None = None
    beta: float = 0.0
    kl: KLName = "k3"
    kl_enters: Literal["loss", "ratio", "advantage"] = "loss"
    kl_log_limit: float | None = None
    kl_limit: float | None = None
    entropy_coef: float = 0.0
    entropy_mean: Literal["loss", "tokens"] = "loss"
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "sum"] = "token_mean"
    sequences: Literal["active", "all"] = "active"
    normalizer: float | None = None
    metrics: tuple[str, ...] = ("clip_fraction", "approx_kl")
    bypass: bool = False
    weighted: bool = False
    selection: Selection | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, each.name) for each in fields(self))

    def __post_init__(self) -> None:
        LIVING[id(self)] = self
        for name, choices in CHOICES.items():
            is_among("Loss", name, getattr(self, name), choices)
        names_among("Loss", "metrics", self.metrics, METRICS)
        for name in ("pessimistic", "bypass", "weighted"):
            flag("Loss", name, getattr(self, name))
        self._are_records()
        self._are_numbers()
        self._agree()

    def _are_records(self) -> None:
        """Refuse parts of another type; records are keys of compiled code."""
        if not isinstance(self.metrics, tuple):
            raise wrong_type("Loss", "metrics", self.metrics, "tuple of names")
        if not isinstance(self.surrogate, Surrogate):
            raise wrong_type("Loss", "surrogate", self.surrogate, "Surrogate")
        if not callable(self.surrogate.fn):
            raise wrong_type("Loss", "surrogate.fn", self.surrogate.fn, "function of a token")
        if not isinstance(self.surrogate.numbers, tuple):
            raise wrong_type("Loss", "surrogate.numbers", self.surrogate.numbers, "tuple of (name, number)")
        if not isinstance(self.selection, Selection | None):
            raise wrong_type("Loss", "selection", self.selection, "Selection")
        if not isinstance(self.correction, Correction | None):
            raise wrong_type("Loss", "correction", self.correction, "Correction")
        if not isinstance(self.rejections, tuple) or not all(
            isinstance(each, Rejection) for each in self.rejections
        ):
            raise wrong_type("Loss", "rejections", self.rejections, "tuple of Rejection")

    def _are_numbers(self) -> None:
        """Refuse numbers that limit nothing, or are none."""
        for name in ("token_limits", "sequence_limits"):
            pair = getattr(self, name)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise wrong_value("Loss", name, pair, "(low, high), each a number or None")
            limits("Loss", (f"{name}[0]", pair[0]), (f"{name}[1]", pair[1]))
        number("Loss", "beta", self.beta, least=0.0)
        number("Loss", "entropy_coef", self.entropy_coef)
        for name in ("kl_log_limit", "kl_limit", "normalizer"):
            limit("Loss", name, getattr(self, name))
        if self.most_drift is not None:
            number("Loss", "most_drift", self.most_drift, infinite=True)

    def _agree(self) -> None:
        """Refuse parts that mean nothing beside each other."""
        if self.selection is None and self.surrogate.fn in SELECTING:
            why = "by clip_cov and kl_cov"
            raise LaunchError(Code.ARG_MISSING, op="Loss", name="selection", why=why)
        if self.selection is not None and self.surrogate.fn not in SELECTING:
            raise wrong_value("Loss", "selection", "a Selection", "None but for clip_cov and kl_cov")
        if self.selection is not None and self.level != "token":
            raise wrong_value("Loss", "level", self.level, "token with a selection")
        filtered = self.correction is not None and self.correction.kind == "sequence_mask"
        if filtered and self.level == "sequence_sum":
            raise wrong_value("Loss", "level", self.level, "no sequence_sum with a sequence_mask")
        added = self.correction is not None and self.correction.level == "token"
        if added and self.level == "sequence_sum" and self.surrogate.fn is surrogates.reinforce:
            # its logs go into the ratio of the sequence, which this surrogate does not read
            raise wrong_value(
                "Loss", "level", self.level, "token with a correction of tokens and reinforce()"
            )
        if self.pessimistic and (None in self.token_limits or self.level == "token"):
            raise LaunchError(
                Code.ARG_MISSING,
                op="Loss",
                name="token_limits",
                why="on both sides, and the level of sequences, to be pessimistic",
            )


def _numbers(loss: Loss) -> dict[str, float]:
    """Return the numbers of a loss that are there, by the names of the scalars of its spec."""
    found: dict[str, float | None] = {
        "token_low": loss.token_limits[0], "token_high": loss.token_limits[1],
        "most_drift": loss.most_drift, "normalizer": loss.normalizer,
    }  # fmt: skip
    if loss.level != "token":
        found |= {"sequence_low": loss.sequence_limits[0], "sequence_high": loss.sequence_limits[1]}
    if loss.correction is not None:
        c = loss.correction
        found |= {"correction_low": c.low, "correction_high": c.high, "correction_limit": c.log_limit}
    for i, r in enumerate(loss.rejections):
        found |= {
            f"rejection{i}_low": r.low,
            f"rejection{i}_high": r.high,
            f"rejection{i}_limit": r.log_limit,
        }
    if loss.beta != 0.0:
        found |= {"beta": loss.beta, "kl_log_limit": loss.kl_log_limit, "kl_limit": loss.kl_limit}
    if loss.entropy_coef != 0.0:
        found["entropy_coef"] = loss.entropy_coef
    found |= {f"surrogate_{name}": value for name, value in loss.surrogate.numbers}
    return {name: value for name, value in found.items() if value is not None}


@lru_cache(maxsize=1024)  # numbers may change with every step
def form_of(loss: Loss, per_token: bool) -> tuple[Form, dict[str, float]]:
    """Return the form of a loss, which selects code, and its numbers by the names of its spec's scalars."""
    given = _numbers(loss)
    correction = loss.correction
    form = Form(
        surrogate=loss.surrogate.fn,
        numbers=tuple(sorted(given)),
        level=loss.level,
        pessimistic=loss.pessimistic,
        correction="" if correction is None else correction.kind,
        correction_level="token" if correction is None else correction.level,
        normalized=correction is not None and correction.normalized,
        rejections=tuple((r.statistic, r.over) for r in loss.rejections),
        kl=loss.kl if loss.beta != 0.0 else "",
        kl_enters=loss.kl_enters if loss.beta != 0.0 else "loss",
        entropy=loss.entropy_mean if loss.entropy_coef != 0.0 else "",
        aggregation=loss.aggregation,
        sequences=loss.sequences,
        metrics=loss.metrics,
        per_token=per_token,
        bypass=loss.bypass and (correction is not None or bool(loss.rejections)),
        weighted=loss.weighted,
        selects=loss.selection is not None,
    )
    return form, {name: float(value) for name, value in given.items()}


__all__ = [
    "Correction", "Loss", "Rejection", "Selection", "Surrogate", "Term", "Token", "cispo", "clip", "clip_cov",
    "dppo_kl", "dppo_tv", "dro", "ipo_mask", "kl_cov", "lower_mask", "reinforce", "sapo", "surrogate",
    "vespo",
]  # fmt: skip
