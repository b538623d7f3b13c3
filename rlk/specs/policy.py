"""Policy losses of any form: one forward and one backward spec, generated from the parts of a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rlk.lang import (
    Axis,
    L,
    Op,
    Outputs,
    Ragged,
    Scalar,
    Slopes,
    Tensor,
    Tile,
    boolean,
    f32,
    generated,
    i32,
    op,
)
from rlk.specs.loss import S, kl_slope, kl_value, over_tokens
from rlk.specs.surrogates import Surrogate, Term, Token, clip

T = Axis("T", dynamic=True)
B = Axis("B", dynamic=True)
Q = Ragged("Q", B, chunk=1024)
EDGES = (-1.0, -0.3, -0.1, -0.03, -0.01, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Edges of the histogram of log ratios: for each the number of ratios at or above it is counted."""
NO_WEIGHT = 1e-8  # a mean weight of this or less normalises nothing, as in verl


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a policy loss that select code; its numbers are run-time scalars, listed by name.

    `rlk.ops.Loss` says what each field means. correction: "", "truncate", "mask" or "sequence_mask".
    rejections: (statistic, over) of each. per_token: advantages of tokens, not of sequences. selects: tokens
    that a selection took are told to the surrogate.
    """

    surrogate: Surrogate = clip
    numbers: tuple[str, ...] = ("surrogate_least", "surrogate_most")
    level: str = "token"
    pessimistic: bool = False
    correction: str = ""
    correction_level: str = "token"
    normalized: bool = False
    rejections: tuple[tuple[str, str], ...] = ()
    kl: str = ""
    kl_enters: str = "loss"
    entropy: str = ""
    aggregation: str = "token_mean"
    sequences: str = "active"
    metrics: tuple[str, ...] = ("clip_fraction", "approx_kl")
    per_token: bool = False
    bypass: bool = False
    weighted: bool = False
    selects: bool = False

    @property
    def of_sequences(self) -> tuple[str, ...]:
        """The numbers of each sequence that are sums over its tokens, in a pass of their own."""
        rejected = any(over != "token" for _, over in self.rejections)
        wanted = {
            "ratio_of_sequence": self.level != "token",
            "weight_of_sequence": bool(self.correction) and self.correction_level == "sequence",
            "kept_of_sequence": rejected or (self.drops_tokens and self.reads_lengths),
            "drift_of_sequence": "most_drift" in self.numbers,
            "filter_of_sequence": self.correction == "sequence_mask",
        }
        return tuple(name for name, there in wanted.items() if there)

    @property
    def drops_tokens(self) -> bool:
        """Return whether some active tokens may not count."""
        return bool(self.rejections) or self.weighted

    @property
    def corrects_ratio(self) -> bool:
        """Return whether weights of tokens enter the ratio of their sequence, and multiply no surrogate."""
        return bool(self.correction) and self.correction_level == "token" and self.level == "sequence_sum"

    @property
    def reads_lengths(self) -> bool:
        """Return whether the loss depends on the number of tokens of a sequence that count."""
        return self.level != "token" or self.aggregation in ("sequence_mean", "sequence_sum")

    @property
    def reads_sequences(self) -> bool:
        """Return whether a token reads a number of its sequence other than its advantage."""
        by_sequence = self.normalized and self.correction_level == "sequence"
        return bool(self.of_sequences) or self.reads_lengths or by_sequence

    @property
    def tensors(self) -> dict[str, Any]:
        """The inputs by name, in order."""
        advantages = Tensor[f32, T] if self.per_token else Tensor[f32, B]
        found = {"logp": Tensor[f32, T], "old_logp": Tensor[f32, T], "advantages": advantages}
        found |= {"ref_logp": Tensor[f32, T]} if self.kl else {}
        reads_rollout = (self.correction or self.rejections) and not self.bypass
        found |= {"rollout_logp": Tensor[f32, T]} if reads_rollout else {}
        found |= {"entropy": Tensor[f32, T]} if self.entropy else {}
        found |= {"token_weights": Tensor[f32, T]} if self.weighted else {}
        found |= {"selected": Tensor[boolean, T]} if self.selects else {}
        found |= {"order": Tensor[i32, S], "active": Tensor[boolean, T]}
        if self.reads_sequences or not self.per_token:
            found |= {"sequence": Tensor[i32, T]}
        if self.reads_sequences:
            found |= {"begin": Tensor[i32, B], "end": Tensor[i32, B]}
        return found

    @property
    def saves(self) -> tuple[str, ...]:
        """Return the names that the gradient reads: the bonus is linear, its slope needs no entropy."""
        inputs = (n for n in self.tensors if n != "entropy")
        return (*inputs, *self.of_sequences, "count", "sequences", "mean_weight")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tensors of a call, read at some tokens: gathered `at` them, or all.

    rows: what sequences have is read by row, one for each sequence.
    """

    form: Form
    tensors: Mapping[str, Any]
    numbers: Mapping[str, Tile]
    at: Tile | None = None
    rows: bool = False

    def __getitem__(self, name: str) -> Tile:
        found = self.tensors[name]
        read: Tile = found.whole() if self.at is None else found.at(self.at)
        return read

    def of_sequence(self, name: str) -> Tile:
        """Return the element of a tensor over sequences for each token's sequence."""
        found = self.tensors[name]
        read: Tile = found.whole() if self.rows else found.at(self["sequence"])
        return read

    def number(self, name: str) -> Tile | None:
        return self.numbers.get(name)

    @property
    def rollout_ratio(self) -> Tile:
        """Return the log ratio to the rollout: of the policy before the update, or (bypass) of it now."""
        if self.form.bypass:
            return self["logp"] - self["old_logp"]
        return self["old_logp"] - self["rollout_logp"]

    @property
    def advantage(self) -> Tile:
        given = self["advantages"] if self.form.per_token else self.of_sequence("advantages")
        if self.form.kl and self.form.kl_enters == "advantage":
            given = given - self.numbers["beta"] * kl_of(self).value
        return given


def within(x: Tile, low: Tile | None, high: Tile | None) -> tuple[Tile, Tile | None]:
    """Return x clamped to limits, NaN staying NaN, and where it was clamped (None without limits)."""
    moved, outside = x, None
    if low is not None:
        outside = x < low
        moved = L.where(outside, low, moved)
    if high is not None:
        moved = L.where(x > high, high, moved)
        outside = x > high if outside is None else outside | (x > high)
    return moved, outside


def _both(x: Tile, limit: Tile | None) -> tuple[Tile, Tile | None]:
    return within(x, None if limit is None else -limit, limit)


# --- what the tokens of a sequence share -----------------------------------------------------------------


def ratio_of_token(x: _Tokens) -> tuple[Tile, Tile | None]:
    """Return log r of each token within its limits, and where the limits took its gradient.

    Pessimistic limits hold only what is gained: above for A > 0, below for A < 0; for A = 0 it is 0 (GMPO).
    """
    d = x["logp"] - x["old_logp"]
    low, high = x.number("token_low"), x.number("token_high")
    if not x.form.pessimistic:
        return within(d, low, high)
    assert low is not None and high is not None
    a = x.advantage
    over, under = (a > 0.0) & (d > high), (a < 0.0) & (d < low)
    limited = L.where(over, high, L.where(under, low, d))
    return L.where(a == 0.0, 0.0, limited), over | under | (a == 0.0)


def weight_of(x: _Tokens, log_ratio: Tile) -> Tile:
    """Return an importance weight exp(log ratio), truncated to its bounds, or 0 outside of them."""
    raw = L.exp(_both(log_ratio, x.number("correction_limit"))[0])
    bounded, outside = within(raw, x.number("correction_low"), x.number("correction_high"))
    if x.form.correction == "truncate" or outside is None:
        return bounded
    return L.where(outside, 0.0, raw)


def _statistic(x: _Tokens, index: int) -> Tile:
    """Return a divergence of the policy before the update from the rollout's, for one token."""
    d, _ = _both(x.rollout_ratio, x.number(f"rejection{index}_limit"))
    return kl_value(d, x.form.rejections[index][0])


def _allowed(x: _Tokens, index: int, statistic: Tile) -> Tile:
    low, high = x.number(f"rejection{index}_low"), x.number(f"rejection{index}_high")
    # comparisons that hold: a statistic that is NaN is rejected
    kept = statistic == statistic
    if low is not None:
        kept = kept & (statistic >= low)
    return kept if high is None else kept & (statistic <= high)


def _token_passes(x: _Tokens) -> Tile | None:
    """Return whether a token passes all rejections of tokens and has a weight; None where there are none."""
    passes = x["token_weights"] != 0.0 if x.form.weighted else None
    for i, (_, over) in enumerate(x.form.rejections):
        if over == "token":
            found = _allowed(x, i, _statistic(x, i))
            passes = found if passes is None else passes & found
    return passes


def sequence_sums(x: _Tokens) -> dict[str, Tile]:
    """Return the sums over each sequence's own tokens, by name, f32 or i32 over B.

    The tokens of a sequence are taken in compacted order, in chunks of 1024 counted from its first (halving
    trees), chunks ascending: tokens between, before and behind them do not matter.
    """
    folds: dict[str, Any] = {}
    for q in L.stream(Q, begin=x.tensors["begin"], end=x.tensors["end"]):
        at = replace(x, at=x.tensors["order"].at(q.pos))
        for name, (make, tile) in _absorbed(at).items():
            folds[name] = make()
            folds[name].absorb(tile)
    count = x.tensors["end"].whole() - x.tensors["begin"].whole()
    return _finished(x, folds, count)


def _absorbed(x: _Tokens) -> dict[str, tuple[Any, Tile]]:
    """Return the folds of the sequence pass, by name, each with the tile that it absorbs."""
    form, found = x.form, dict[str, tuple[Any, Tile]]()
    alive = _token_passes(x)

    def total(name: str, value: Tile, everywhere: bool = False) -> None:
        counted = value if alive is None or everywhere else L.where(alive, value, -0.0)
        found[name] = (L.total, counted)

    if alive is not None:
        found["count"] = (L.total, alive.to(i32))
    if form.level != "token":
        value, _ = ratio_of_token(x)
        if form.corrects_ratio:
            low, high = x.number("sequence_low"), x.number("sequence_high")
            value = value + within(L.log(_normalized(x, correction_of(x))), low, high)[0]
        total("ratio", value)
    if "weight_of_sequence" in form.of_sequences:
        total("weight", x.rollout_ratio, everywhere=True)
    if "filter_of_sequence" in form.of_sequences:
        total("filter", x.rollout_ratio, everywhere=True)
    if "drift_of_sequence" in form.of_sequences:
        total("drift", x["old_logp"] - x["logp"])
    for i, (_, over) in enumerate(form.rejections):
        if over == "max":
            statistic = _statistic(x, i)
            found[f"rejection{i}"] = (L.argmax, statistic)
            # a maximum ignores NaN, which a sum propagates
            found[f"unknown{i}"] = (L.total, (statistic != statistic).to(i32))
        elif over != "token":
            total(f"rejection{i}", _statistic(x, i), everywhere=True)
    return found


def _finished(x: _Tokens, folds: Mapping[str, Any], count: Tile) -> dict[str, Tile]:
    """Return the numbers of sequences, given their folds and their numbers of tokens."""
    form, made = x.form, dict[str, Tile]()
    kept = folds["count"].value if "count" in folds else count
    tokens = L.maximum(kept, 1).to(f32)
    for i, (_, over) in enumerate(form.rejections):
        if over == "token":
            continue
        statistic = folds[f"rejection{i}"].max if over == "max" else folds[f"rejection{i}"].value
        if over == "mean":
            statistic = statistic / L.maximum(count, 1).to(f32)
        allowed = _allowed(x, i, statistic)
        if over == "max":
            allowed = allowed & (folds[f"unknown{i}"].value == 0)
        kept = L.where(allowed, kept, 0)
    if "kept_of_sequence" in form.of_sequences:
        made["kept_of_sequence"] = kept
    if "ratio" in folds:
        # + 0.0: the sum of no tokens is -0.0
        total = folds["ratio"].value + 0.0
        made["ratio_of_sequence"] = total if form.level == "sequence_sum" else total / tokens
    if "weight" in folds:
        made["weight_of_sequence"] = weight_of(x, folds["weight"].value + 0.0)
    if "filter" in folds:
        mean = (folds["filter"].value + 0.0) / L.maximum(count, 1).to(f32)
        made["filter_of_sequence"] = L.exp(_both(mean, x.number("correction_limit"))[0])
    if "drift" in folds:
        made["drift_of_sequence"] = (folds["drift"].value + 0.0) / tokens
    return made


# --- one token -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of the KL divergence from the reference, its derivative by logp."""

    value: Tile
    slope: Tile


def kl_of(x: _Tokens) -> Estimate:
    """Return the KL estimate of a token within its limits; a straight-through slope knows no limits."""
    kl = x.form.kl
    raw = x["ref_logp"] - x["logp"]
    d, outside = _both(raw, x.number("kl_log_limit"))
    # where the estimate enters times r, the limit is one of the product
    value, beyond = _both(kl_value(d, kl), None if x.form.kl_enters == "ratio" else x.number("kl_limit"))
    slope = kl_slope(raw if kl.endswith("+") else d, kl)
    for cut in (outside, beyond):
        slope = slope if cut is None or kl.endswith("+") else L.where(cut, 0.0, slope)
    return Estimate(value, slope)


@dataclass(frozen=True, slots=True)
class Summand:
    """The term of a token in the loss before averaging, and its slopes by log ratio and by logp."""

    value: Tile
    by_ratio: Tile | None
    by_logp: Tile | None
    clipped: Tile | None
    weight: Tile | None
    importance: Tile


def kept_of(x: _Tokens) -> Tile:
    """Return which tokens count: the active ones that nothing rejects."""
    alive = x["active"]
    if x.form.drops_tokens:
        passes = _token_passes(x)
        alive = alive if passes is None else alive & passes
    if "kept_of_sequence" in x.form.of_sequences:
        alive = alive & (x.of_sequence("kept_of_sequence") > 0)
    return alive


def summand(x: _Tokens) -> Summand:
    """Return the summand of a token: surrogate, times its weight, plus KL penalty, minus entropy bonus."""
    form, a = x.form, x.advantage
    log_ratio, passes = _log_ratio(x)
    # r = inf with A = 0 contributes exactly 0
    ratio = L.exp(log_ratio)
    selected = x["selected"] if form.selects else None
    token = Token(x["logp"], x["old_logp"], log_ratio, L.where(a == 0.0, 1.0, ratio), a, selected)
    numbers = {n.removeprefix("surrogate_"): v for n, v in x.numbers.items() if n.startswith("surrogate_")}
    term: Term = form.surrogate(token, **numbers)
    importance = _importance(x)
    weight = _following(x, a, importance)
    value, by_ratio, by_logp = (_weighed(weight, v) for v in (term.value, term.by_ratio, term.by_logp))
    if form.kl and form.kl_enters != "advantage":
        beta, kl = x.numbers["beta"], kl_of(x)
        if form.kl_enters == "ratio":
            product, cut = _both(ratio * kl.value, x.number("kl_limit"))
            value, slopes = value + beta * product, (beta * product, beta * (ratio * kl.slope))
            if cut is not None:
                slopes = (L.where(cut, 0.0, slopes[0]), L.where(cut, 0.0, slopes[1]))
            by_ratio, by_logp = _plus(by_ratio, slopes[0]), _plus(by_logp, slopes[1])
        else:
            value, by_logp = value + beta * kl.value, _plus(by_logp, beta * kl.slope)
    if form.entropy == "loss":
        value = value - x.numbers["entropy_coef"] * x["entropy"]
    if form.weighted:
        value, by_ratio, by_logp = (_weighed(x["token_weights"], v) for v in (value, by_ratio, by_logp))
    if passes is not None and by_ratio is not None:
        by_ratio = L.where(passes, 0.0, by_ratio)
    return Summand(
        value, by_ratio, by_logp, term.clipped, weight, ratio if importance is None else importance
    )


def _log_ratio(x: _Tokens) -> tuple[Tile, Tile | None]:
    """Return the log ratio that a token's surrogate sees, and where limits took its gradient."""
    if x.form.level == "token":
        return ratio_of_token(x)
    shared = x.of_sequence("ratio_of_sequence")
    return within(shared, x.number("sequence_low"), x.number("sequence_high"))


def _importance(x: _Tokens) -> Tile | None:
    """Return the importance weight of a token's surrogate; None where nothing corrects it by a product."""
    if not x.form.correction or x.form.corrects_ratio:
        return None
    return _normalized(x, correction_of(x))


def _normalized(x: _Tokens, weight: Tile) -> Tile:
    """Return a weight, over the mean of the batch's if the form says so."""
    if not x.form.normalized:
        return weight
    mean = x.tensors["mean_weight"].whole()
    return L.where(mean > NO_WEIGHT, weight / mean, weight)


def _following(x: _Tokens, advantage: Tile, weight: Tile | None) -> Tile | None:
    """Return a weight that is 0 where a token with A < 0 belongs to a sequence that drifted too far."""
    if "drift_of_sequence" not in x.form.of_sequences:
        return weight
    # a drift that is NaN is not too far: the token that is NaN stays so
    far = (advantage < 0.0) & (x.of_sequence("drift_of_sequence") > x.numbers["most_drift"])
    return L.where(far, 0.0, 1.0 if weight is None else weight)


def correction_of(x: _Tokens) -> Tile:
    """Return the importance weight of a token, before it is normalised."""
    if x.form.correction_level == "sequence":
        return x.of_sequence("weight_of_sequence")
    if x.form.correction == "sequence_mask":
        return _filtered(x)
    return weight_of(x, x.rollout_ratio)


def _filtered(x: _Tokens) -> Tile:
    """Return the weight of a token, 0 where the geometric mean of its sequence's leaves the bounds."""
    raw, mean = (
        L.exp(_both(x.rollout_ratio, x.number("correction_limit"))[0]),
        x.of_sequence("filter_of_sequence"),
    )
    _, outside = within(mean, x.number("correction_low"), x.number("correction_high"))
    # a mean that is NaN is not outside: it stays NaN
    weight = L.where(mean == mean, raw, mean)
    return weight if outside is None else L.where(outside, 0.0, weight)


def _weighed(weight: Tile | None, x: Tile | None) -> Tile | None:
    """Return a product with a weight; a weight of 0 takes a token out, whatever its ratio is."""
    return x if weight is None or x is None else L.where(weight == 0.0, 0.0, weight * x)


def _plus(a: Tile | None, b: Tile) -> Tile:
    return b if a is None else a + b


# --- the loss --------------------------------------------------------------------------------------------


def forward(form: Form, tensors: Mapping[str, Any], numbers: Mapping[str, Tile]) -> Outputs:
    """Trace the loss: the pass over sequences where there is one, then the pass over all tokens."""
    x = _Tokens(form, dict(tensors), numbers)
    if form.normalized and form.corrects_ratio:
        x = _tabled(x, {"mean_weight": _mean_weight(x)})
    if form.of_sequences:
        x = _tabled(x, sequence_sums(replace(x, rows=True)))
    if form.normalized and not form.corrects_ratio:
        x = _tabled(x, {"mean_weight": _mean_weight(x)})
    made = over_tokens(tensors["order"], lambda t, place: _counted(replace(x, at=t), place))
    return L.out(**_reduced(form, made, numbers))


def _tabled(x: _Tokens, made: Mapping[str, Tile]) -> _Tokens:
    """Return tokens that can read the sequence sums, which the gradient reads too."""
    L.out(**made)
    return replace(x, tensors={**x.tensors, **{n: L.table(tile, f"{n}_table") for n, tile in made.items()}})


def _mean_weight(x: _Tokens) -> Tile:
    """Return the mean of the correction's weights: over active tokens, or over sequences that have some."""

    def body(t: Tile, place: Tile) -> dict[str, Tile]:
        at = replace(x, at=t)
        counts = at["active"]
        if x.form.correction_level == "sequence":
            counts = counts & (place == at.of_sequence("begin"))
        return {"weight": L.where(counts, correction_of(at), -0.0), "count": counts.to(i32)}

    made = over_tokens(x.tensors["order"], body)
    return (made["weight"] + 0.0) / L.maximum(made["count"], 1).to(f32)


def _counted(x: _Tokens, place: Tile) -> dict[str, Tile]:
    """Write a token's summand, and return the terms of sums over tokens, by name, in compacted order."""
    form, alive, s = x.form, kept_of(x), summand(x)
    L.place("per_token", (T,), ({T: x.at}, L.where(alive, s.value, 0.0)))
    made = {"loss": L.where(alive, _share(x, s.value), -0.0), "count": alive.to(i32)}
    if form.aggregation in ("sequence_mean", "sequence_sum") and form.sequences == "active":
        first = x["active"] & (place == x.of_sequence("begin"))
        if "kept_of_sequence" in form.of_sequences:
            first = first & (x.of_sequence("kept_of_sequence") > 0)
        made["sequences"] = first.to(i32)
    if form.entropy == "tokens":
        made["bonus"] = L.where(alive, x["entropy"], -0.0)
    return made | _measured(x, alive, s)


def _measured(x: _Tokens, alive: Tile, s: Summand) -> dict[str, Tile]:
    """Return the terms of the metrics' sums over tokens."""
    metrics, made = x.form.metrics, dict[str, Tile]()
    delta = x["logp"] - x["old_logp"]
    if "clip_fraction" in metrics:
        clipped = s.clipped if s.clipped is not None else delta != delta
        made["clipped"] = (alive & clipped).to(i32)
    if "approx_kl" in metrics:
        made["moved"] = L.where(alive, L.k3(-delta), -0.0)
    if "ess" in metrics:
        made["weights"] = L.where(alive, s.importance, -0.0)
        made["squares"] = L.where(alive, s.importance * s.importance, -0.0)
    if "masked_fraction" in metrics:
        none = ~alive if s.weight is None else ~alive | (s.weight == 0.0)
        made["masked"] = (x["active"] & none).to(i32)
        made["active"] = x["active"].to(i32)
    if "log_ratio_histogram" in metrics:
        made |= {f"above_{i}": (alive & (delta >= edge)).to(i32) for i, edge in enumerate(EDGES)}
    return made


def _length(x: _Tokens) -> Tile:
    """Return the number of counted tokens of a token's sequence, f32, at least 1."""
    if "kept_of_sequence" in x.form.of_sequences:
        kept = x.of_sequence("kept_of_sequence")
    else:
        kept = x.of_sequence("end") - x.of_sequence("begin")
    return L.maximum(kept, 1).to(f32)


def _share(x: _Tokens, value: Tile) -> Tile:
    """Return a token's share of its sequence's mean, where means of sequences are taken; else the value."""
    return value / _length(x) if x.form.aggregation == "sequence_mean" else value


def _denominator(form: Form, count: Tile, sequences: Tile | None) -> Tile | None:
    """Return what the sum of shares is divided by; None for nothing."""
    match form.aggregation:
        case "token_mean":
            return L.maximum(count, 1).to(f32)
        case "sum":
            return None
        case _:
            number = L.extent(B) if sequences is None else sequences
            return L.maximum(number, 1).to(f32)


def _divided(form: Form, x: Tile, count: Tile, sequences: Tile | None, numbers: Mapping[str, Tile]) -> Tile:
    denominator = _denominator(form, count, sequences)
    x = x if denominator is None else x / denominator
    return x / numbers["normalizer"] if "normalizer" in numbers else x


def _reduced(form: Form, made: Mapping[str, Tile], numbers: Mapping[str, Tile]) -> dict[str, Tile | None]:
    """Return the outputs that are one number, given the sums over tokens."""
    tokens = L.maximum(made["count"], 1).to(f32)
    # + 0.0: the sum of no tokens is -0.0, their loss is +0
    loss = _divided(form, made["loss"] + 0.0, made["count"], made.get("sequences"), numbers)
    if "bonus" in made:
        loss = loss - numbers["entropy_coef"] * ((made["bonus"] + 0.0) / tokens)
    found: dict[str, Tile | None] = {"loss": loss, "count": made["count"], "sequences": made.get("sequences")}
    if "clipped" in made:
        found["clip_fraction"] = made["clipped"].to(f32) / tokens
    if "moved" in made:
        found["approx_kl"] = (made["moved"] + 0.0) / tokens
    if "weights" in made:
        total = made["weights"] + 0.0
        squares = tokens * (made["squares"] + 0.0)
        found["ess"] = L.where(squares == 0.0, 0.0, (total * total) / squares)
    if "masked" in made:
        found["masked_fraction"] = made["masked"].to(f32) / L.maximum(made["active"], 1).to(f32)
    return found | {n: tile for n, tile in made.items() if n.startswith("above_")}


# --- the gradient ----------------------------------------------------------------------------------------


def backward(form: Form, ctx: Any, d_loss: Tile) -> Outputs:
    """Trace the gradient by logp and entropy; 0 where a token does not count.

    A log ratio that a sequence shares passes on the sum of its tokens' slopes, summed as it was itself.
    """
    tensors = {name: getattr(ctx, name) for name in form.saves}
    numbers = {name: getattr(ctx, name) for name in form.numbers}
    x = _Tokens(replace(form, entropy=""), tensors, numbers)
    scale = _divided(form, d_loss, ctx.count, ctx.sequences, numbers)
    alive = kept_of(x)
    d_logp = None
    if ctx.wants("logp"):
        d_logp = L.where(alive, _shared_slope(x, scale) if form.level in SHARED else _slope(x, scale), 0.0)
    if not form.entropy or not ctx.wants("entropy"):
        return L.out(d_logp=d_logp)
    tokens = L.maximum(ctx.count, 1).to(f32)
    share = d_loss / tokens if form.entropy == "tokens" else _share(x, scale)
    if form.weighted and form.entropy == "loss":
        share = share * x["token_weights"]
    return L.out(d_logp=d_logp, d_entropy=L.where(alive, -(share * numbers["entropy_coef"]), 0.0))


SHARED = ("sequence", "sequence_sum")
"""Levels at which every token of a sequence moves the ratio of all of them."""


def _slope(x: _Tokens, scale: Tile) -> Tile:
    """Return the gradient of a token that moves its own summand alone."""
    s = summand(x)
    slope = s.by_ratio if s.by_logp is None else _plus(s.by_ratio, s.by_logp)
    assert slope is not None, "a surrogate has a slope"
    return _share(x, scale * slope)


def _shared_slope(x: _Tokens, scale: Tile) -> Tile:
    """Return the gradient of a token of which all summands of its sequence depend."""
    total = L.total()
    rows = replace(x, rows=True)
    for q in L.stream(Q, begin=x.tensors["begin"], end=x.tensors["end"]):
        at = replace(rows, at=x.tensors["order"].at(q.pos))
        by_ratio = summand(at).by_ratio
        slope = L.where(kept_of(at), 0.0 if by_ratio is None else by_ratio, -0.0)
        total.absorb(_share(at, slope))
    slopes = L.table(total.value + 0.0, "slopes_of_sequence")
    shared = replace(x, tensors={**x.tensors, "slopes_of_sequence": slopes})
    slope = shared.of_sequence("slopes_of_sequence")
    if x.form.level == "sequence":
        slope = slope / _length(x)
    _, stopped = ratio_of_token(x)
    if stopped is not None:
        slope = L.where(stopped, 0.0, slope)
    own = summand(x).by_logp
    if own is not None:
        slope = slope + _share(x, own)
    return scale * slope


# --- which tokens are selected ---------------------------------------------------------------------------


def covariance(given: Mapping[str, Any]) -> Outputs:
    """Trace (A - mean A) (lp - mean lp) of active tokens; -inf of those that no selection may take.

    Means are over active tokens, summed as the loss is. low, high: what may be taken lies between them,
    neither included; least, most: what a clip of the ratio to them takes the gradient of may not.
    """
    sequence = given["sequence"]

    def numbers(t: Tile | None) -> tuple[Tile, Tile, Tile]:
        read = (lambda x: x.whole()) if t is None else (lambda x: x.at(t))
        a = given["advantages"]
        a = read(a) if sequence is None else a.at(read(sequence))
        return a, read(given["logp"]), read(given["active"])

    def body(t: Tile, place: Tile) -> dict[str, Tile]:
        a, lp, alive = numbers(t)
        absorbed = {"a": L.where(alive, a, -0.0), "lp": L.where(alive, lp, -0.0)}
        return absorbed | {"count": alive.to(i32)}

    made = over_tokens(given["order"], body)
    tokens = L.maximum(made["count"], 1).to(f32)
    means = [L.keep((made[name] + 0.0) / tokens, f"mean_{name}") for name in ("a", "lp")]
    a, lp, alive = numbers(None)
    score = (a - means[0]) * (lp - means[1])
    takes = alive & (score == score)
    if given["low"] is not None:
        takes = takes & (score > given["low"])
    if given["high"] is not None:
        takes = takes & (score < given["high"])
    if given["least"] is not None:
        ratio = L.exp(lp - given["old_logp"].whole())
        held = L.minimum(L.maximum(ratio, given["least"]), given["most"])
        takes = takes & ~(-(held * a) > -(ratio * a))
    return L.out(score=L.where(takes, score, -math.inf), count=made["count"])


# --- specs of forms --------------------------------------------------------------------------------------

DOC = "The mean over tokens of max(-r A, -clip(r) A) + beta kl, or what else a record says (rlk.ops.Loss)."
GRPO = Form(numbers=("beta", "surrogate_least", "surrogate_most"), kl="k3")
GSPO = Form(
    numbers=("correction_high", "surrogate_least", "surrogate_most"),
    level="sequence",
    correction="truncate",
    correction_level="sequence",
    aggregation="sequence_mean",
)
NAMED = {GRPO: "policy_loss", GSPO: "policy_loss_of_sequences"}
"""Forms whose operator has a name of its own: those whose kernels are checked in."""


@cache
def policy_spec(form: Form) -> Op:
    """Return the operator of a form; forms that compute the same share one."""

    def spec(**given: Any) -> Outputs:
        return forward(form, {n: given[n] for n in form.tensors}, {n: given[n] for n in form.numbers})

    def gradient(ctx: Any, d_loss: Any) -> Outputs:
        return backward(form, ctx, d_loss.whole())

    gradient.__doc__ = "d lp = g / denominator times a token's slope by lp; 0 where it is inactive."
    inputs = {**form.tensors, **dict.fromkeys(form.numbers, Scalar[f32])}
    wrt = ("logp", "entropy") if form.entropy else ("logp",)
    slopes = Slopes(gradient, wrt, {"d_loss": Tensor[f32]})
    return generated(NAMED.get(form, "policy_loss_"), spec, inputs, form.saves, DOC, slopes)


@op()
def policy_covariance(
    logp: Tensor[f32, T],
    old_logp: Tensor[f32, T] | None,
    advantages: Tensor[f32, T],
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    low: Scalar[f32] | None,
    high: Scalar[f32] | None,
    least: Scalar[f32] | None,
    most: Scalar[f32] | None,
) -> Outputs:
    """Compute the covariance of tokens' advantages and log-probs, for a selection of tokens (Cui 2025)."""
    return covariance({**locals(), "sequence": None})


@op()
def policy_covariance_of_sequences(
    logp: Tensor[f32, T],
    old_logp: Tensor[f32, T] | None,
    advantages: Tensor[f32, B],
    sequence: Tensor[i32, T],
    order: Tensor[i32, S],
    active: Tensor[boolean, T],
    low: Scalar[f32] | None,
    high: Scalar[f32] | None,
    least: Scalar[f32] | None,
    most: Scalar[f32] | None,
) -> Outputs:
    """The same with one advantage a sequence."""
    return covariance(locals())


policy_loss = policy_spec(GRPO)
policy_loss_of_sequences = policy_spec(GSPO)
