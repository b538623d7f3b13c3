"""Preference losses on log-probs of whole completions: each a value and its slopes, written side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlk.lang import Axis, DTypeVar, L, Outputs, Scalar, Static, Tensor, Tile, boolean, f32, i32, i64, op

P = Axis("P", chunk=1024, dynamic=True)
M = Axis("M", chunk=1024, dynamic=True)
Count = DTypeVar("Count", (i64, i32))
OF_MARGIN = ("sigmoid", "robust", "hinge", "ipo", "exo_pair", "discopop")
"""Losses of the difference of the scores alone."""
OF_BOTH = ("nca_pair", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "orpo")
OF_RANK = ("aot", "aot_unpaired")
"""Losses of margins between what has one rank in the batch (Melnyk 2024)."""
KINDS = (*OF_MARGIN, *OF_BOTH, *OF_RANK)
LINKS = ("none", "forward_kl", "js", "alpha", "alphapo")
"""What a score is: f' of a probability ratio (Wang 2023), or a power of a probability (Gupta 2025)."""
MOST = 80.0  # of the exponent of a ratio's power: what TRL's alpha divergence is limited to in f32


def _log_sigmoid(x: Tile) -> Tile:
    return L.minimum(x, 0.0) - L.log1p(L.exp(-abs(x)))


def _bell(x: Tile) -> Tile:
    """Return sigmoid'(x)."""
    return L.sigmoid(x) * L.sigmoid(-x)


@dataclass(frozen=True, slots=True)
class _Term:
    """A loss of two scores, and its slopes by them."""

    value: Tile
    by_chosen: Tile
    by_rejected: Tile


@dataclass(frozen=True, slots=True)
class _Constants:
    """The numbers of a loss; those that it does not name are None."""

    beta: Tile
    smoothing: Tile | None
    margin: Tile | None
    tau: Tile | None


def _term(kind: str, chosen: Tile, rejected: Tile, by: _Constants) -> _Term:
    """Return the term of one pair, given its scores: log-prob ratios, or log-probs without a reference."""
    if kind not in OF_MARGIN:
        return _of_both(kind, chosen, rejected, by.beta)
    if kind == "ipo":
        away = (chosen - rejected) - 0.5 / by.beta
        return _Term(away * away, away * 2.0, away * -2.0)
    u = by.beta * (chosen - rejected)
    if by.margin is not None:
        u = u - by.margin
    value, slope = _of_margin(kind, u, by)
    return _Term(value, by.beta * slope, -(by.beta * slope))


def _of_margin(kind: str, u: Tile, by: _Constants) -> tuple[Tile, Tile]:
    """Return a loss of the scaled margin u = beta (chosen - rejected) - margin, and its slope by u."""
    up, down = _log_sigmoid(u), _log_sigmoid(-u)
    win, lose = L.sigmoid(u), L.sigmoid(-u)
    match kind:
        case "sigmoid" if by.smoothing is None:
            return -up, -lose
        case "sigmoid":
            kept = 1.0 - by.smoothing
            return -(kept * up) - by.smoothing * down, by.smoothing * win - kept * lose
        case "robust":
            kept, span = 1.0 - by.smoothing, 1.0 - 2.0 * by.smoothing
            value = by.smoothing * down - kept * up
            return value / span, -(kept * lose + by.smoothing * win) / span
        case "hinge":
            return L.where(u >= 1.0, 0.0, 1.0 - u), L.where(u >= 1.0, 0.0, -1.0)
        case "exo_pair":
            clean, flipped = L.log1p(-by.smoothing), L.log(by.smoothing)
            value = win * (up - clean) + lose * (down - flipped)
            return value, (win * lose) * ((u - clean) + flipped)
        case _:
            mix, steep = L.sigmoid(u / by.tau), L.exp(-u)
            turn = _bell(u / by.tau) / by.tau
            value = steep * mix - up * (1.0 - mix)
            return value, (turn * (steep + up) - lose * (1.0 - mix)) - steep * mix


def _of_both(kind: str, chosen: Tile, rejected: Tile, beta: Tile) -> _Term:
    """Return a loss in which each score has its own place."""
    a, b = beta * chosen, beta * rejected
    match kind:
        case "nca_pair":
            value = (-_log_sigmoid(a) - 0.5 * _log_sigmoid(-a)) - 0.5 * _log_sigmoid(-b)
            by_a, by_b = 0.5 * L.sigmoid(a) - L.sigmoid(-a), 0.5 * L.sigmoid(b)
        case "bco_pair":
            value = -_log_sigmoid(a) - _log_sigmoid(-b)
            by_a, by_b = -L.sigmoid(-a), L.sigmoid(b)
        case "sppo_hard":
            won, lost = chosen - 0.5 / beta, rejected + 0.5 / beta
            return _Term(won * won + lost * lost, won * 2.0, lost * 2.0)
        case "apo_zero":
            value = L.sigmoid(-a) + L.sigmoid(b)
            by_a, by_b = -_bell(a), _bell(b)
        case "apo_down":
            u = beta * (chosen - rejected)
            value = L.sigmoid(a) + L.sigmoid(-u)
            by_a, by_b = _bell(a) - _bell(u), _bell(u)
        case _:
            return _odds(chosen, rejected, beta)
    return _Term(value, beta * by_a, beta * by_b)


def _odds(chosen: Tile, rejected: Tile, beta: Tile) -> _Term:
    """Return -beta log sigmoid of the log odds ratio of two mean log-probs (Hong 2024)."""
    u = (chosen - rejected) - (_log_of_rest(chosen) - _log_of_rest(rejected))
    slope = beta * L.sigmoid(-u)
    # d log(p / (1 - p)) = 1 / (1 - p) = -1 / expm1(log p)
    return _Term(-(beta * _log_sigmoid(u)), slope / L.expm1(chosen), -(slope / L.expm1(rejected)))


def _log_of_rest(x: Tile) -> Tile:
    """Return log(1 - e^x), by the form that does not cancel (Maechler 2012)."""
    return L.where(x < -math.log(2), L.log1p(-L.exp(x)), L.log(-L.expm1(x)))


@dataclass(frozen=True, slots=True)
class _Score:
    """A completion's quantity that a loss compares, and its slope by the log-prob per token (None: 1)."""

    value: Tile
    slope: Tile | None = None


def _score(logp: Tile, ref: Tile | None, tokens: Tile | None, link: str, power: Tile | None) -> _Score:
    """Return a log-prob over its reference, linked, per token where their number is there."""
    score, slope = logp if ref is None else logp - ref, None
    if link in ("forward_kl", "js", "alpha"):
        score, slope = _linked(score, link, power)
    if tokens is not None:
        score = score / _count(tokens)
    if link == "alphapo":
        slope = L.exp(power * score)
        score = L.expm1(power * score) / power
    return _Score(score, slope)


def _linked(d: Tile, link: str, power: Tile | None) -> tuple[Tile, Tile]:
    """Return f'(t) at t = e^d and its slope by d: 1 - e^-d; log 2 + ls(d); (e^(power d) - 1) / power."""
    match link:
        case "forward_kl":
            return -L.expm1(-d), L.exp(-d)
        case "js":
            return math.log(2) + _log_sigmoid(d), L.sigmoid(-d)
        case _:
            x = power * d
            held = L.where(x > MOST, MOST, x)
            return L.expm1(held) / power, L.where(x > MOST, 0.0, L.exp(held))


def _by_rank(kind: str, x: Mapping[str, Tensor[f32, P] | None], i: Tile, j: Tile) -> Tile:
    """Return the margin of two ranks: of pairs against references (aot), of chosen against rejected."""

    def at(name: str, place: Tile) -> Tile:
        found = x[name]
        return 0.0 * x["chosen"].at(place) if found is None else found.at(place)

    if kind == "aot":
        return (at("chosen", i) - at("rejected", i)) - (at("ref_chosen", j) - at("ref_rejected", j))
    return (at("chosen", i) - at("ref_chosen", i)) - (at("rejected", j) - at("ref_rejected", j))


def _count(tokens: Tile) -> Tile:
    return L.maximum(tokens, 1).to(f32)


PAIRS = ("chosen", "rejected", "ref_chosen", "ref_rejected")
SAVED = (*PAIRS, "chosen_tokens", "rejected_tokens", "weights", "partner", "back", "count")


@op(saves=SAVED)
def preference_loss(
    chosen: Tensor[f32, P],
    rejected: Tensor[f32, P],
    ref_chosen: Tensor[f32, P] | None,
    ref_rejected: Tensor[f32, P] | None,
    chosen_tokens: Tensor[Count, P] | None,
    rejected_tokens: Tensor[Count, P] | None,
    weights: Tensor[f32, P] | None,
    partner: Tensor[i32, P] | None,
    back: Tensor[i32, P] | None,
    beta: Scalar[f32],
    smoothing: Scalar[f32] | None,
    margin: Scalar[f32] | None,
    tau: Scalar[f32] | None,
    power: Scalar[f32] | None,
    kind: Static[KINDS] = "sigmoid",
    link: Static[LINKS] = "none",
) -> Outputs:
    """The mean over pairs of a preference loss (Rafailov 2023 and those after it), and what trainers log.

    Scores are log-probs, minus those of the reference where there is one, linked, per token where counts are
    there. Sums run over pairs in chunks of 1024 (halving trees), chunks ascending. `tests/test_preference.py`
    has each formula as published. partner[p] has the rank of p on the other side, back is its inverse.
    """
    sides = dict(zip(PAIRS, (chosen, rejected, ref_chosen, ref_rejected), strict=True))
    loss, right, won, lost = L.total(), L.total(), L.total(), L.total()
    by = _Constants(beta, smoothing, margin, tau)
    for p in L.stream(P):
        refs = [None if x is None else x[p] for x in (ref_chosen, ref_rejected)]
        counts = [None if x is None else x[p] for x in (chosen_tokens, rejected_tokens)]
        up = _score(chosen[p], refs[0], counts[0], link, power).value
        down = _score(rejected[p], refs[1], counts[1], link, power).value
        if kind in OF_RANK:
            u = beta * _by_rank(kind, sides, p.pos, p.pos if partner is None else partner[p])
            term = _of_margin("sigmoid", u, by)[0]
        else:
            term = _term(kind, up, down, by).value
        if weights is not None:
            term = _weighed(weights[p], term)
        L.emit(per_pair=term)
        loss.absorb(term)
        right.absorb((down < up).to(i32))
        won.absorb(beta * up)
        lost.absorb(beta * down)
    count = L.maximum(L.extent(P), 1)
    sums = {"loss": loss, "chosen_reward": won, "rejected_reward": lost}
    # + 0.0: the sum of no pairs is -0.0, their loss is +0
    means = {name: (total.value + 0.0) / count.to(f32) for name, total in sums.items()}
    return L.out(**means, accuracy=right.value.to(f32) / count.to(f32), count=count)


@preference_loss.vjp("chosen", "rejected")
def preference_loss_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d chosen = g / pairs df/dscore, per token where scores are; the same for rejected."""
    if ctx.kind in OF_RANK:
        return _by_rank_grad(ctx, d_loss)
    up = _score(ctx.chosen, ctx.ref_chosen, ctx.chosen_tokens, ctx.link, ctx.power)
    down = _score(ctx.rejected, ctx.ref_rejected, ctx.rejected_tokens, ctx.link, ctx.power)
    by = _Constants(ctx.beta, ctx.smoothing, ctx.margin, ctx.tau)
    term = _term(ctx.kind, up.value, down.value, by)
    scale = d_loss / ctx.count.to(f32)
    made = {
        "chosen": (term.by_chosen, up.slope, ctx.chosen_tokens),
        "rejected": (term.by_rejected, down.slope, ctx.rejected_tokens),
    }
    found = {}
    for name, (slope, link, tokens) in made.items():
        if ctx.wants(name):
            slope = slope if link is None else slope * link
            slope = scale * (slope if tokens is None else slope / _count(tokens))
            found[f"d_{name}"] = slope if ctx.weights is None else _weighed(ctx.weights, slope)
    return L.out(**found)


def _weighed(weight: Tile, x: Tile) -> Tile:
    """Return a product; a weight of 0 takes a pair out, whatever it holds."""
    return L.where(weight == 0.0, 0.0, weight * x)


def _by_rank_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """Return the gradients of a loss of ranks: each side's from the margin that it is part of."""
    by = _Constants(ctx.beta, ctx.smoothing, ctx.margin, ctx.tau)
    sides = {name: getattr(ctx, name) for name in PAIRS}
    here = L.pos(P)
    scale = ctx.beta * (d_loss / ctx.count.to(f32))

    def slope(i: Tile, j: Tile) -> Tile:
        u = ctx.beta * _by_rank(ctx.kind, sides, i, j)
        found = scale * _of_margin("sigmoid", u, by)[1]
        return found if ctx.weights is None else _weighed(ctx.weights.at(i), found)

    partner = here if ctx.partner is None else ctx.partner.whole()
    back = here if ctx.back is None or ctx.kind == "aot" else ctx.back.whole()
    up = slope(here, partner)
    down = up if ctx.kind == "aot" else slope(back, here)
    found = {"d_chosen": up, "d_rejected": -down}
    return L.out(**{n: x for n, x in found.items() if ctx.wants(n.removeprefix("d_"))})


@op(saves=("logp", "ref_logp", "desirable", "divergence", "count"))
def kto_loss(
    logp: Tensor[f32, P],
    ref_logp: Tensor[f32, P],
    desirable: Tensor[boolean, P],
    other_logp: Tensor[f32, M] | None,
    other_ref_logp: Tensor[f32, M] | None,
    beta: Scalar[f32],
    desirable_weight: Scalar[f32],
    undesirable_weight: Scalar[f32],
) -> Outputs:
    """The mean of w (1 - sigmoid(beta (r - z))), for undesirable ones of w (1 - sigmoid(beta (z - r))).

    r = logp - ref_logp; z = max(0, mean of it over mismatched completions), or 0 without them: no gradient
    (Ethayarajh 2024). Sums run in chunks of 1024 (halving trees), chunks ascending.
    """
    divergence = None
    if other_logp is not None:
        divergence = L.keep(_mismatch(other_logp, other_ref_logp), "mismatch")
    loss = L.total()
    for p in L.stream(P):
        side, weight = _sided(desirable[p], desirable_weight, undesirable_weight)
        term = weight * L.sigmoid(-(beta * (side * _ahead(logp[p], ref_logp[p], divergence))))
        L.emit(per_sample=term)
        loss.absorb(term)
    count = L.maximum(L.extent(P), 1)
    return L.out(loss=(loss.value + 0.0) / count.to(f32), divergence=divergence, count=count)


def _mismatch(logp: Tensor[f32, M], ref_logp: Tensor[f32, M]) -> Tile:
    """Return the estimate of the divergence, not below 0."""
    total = L.total()
    for m in L.stream(M):
        total.absorb(logp[m] - ref_logp[m])
    mean = total.value / L.maximum(L.extent(M), 1).to(f32)
    # not L.maximum, which would turn NaN into 0
    return L.where(mean < 0.0, 0.0, mean + 0.0)


def _ahead(logp: Tile, ref_logp: Tile, divergence: Tile | None) -> Tile:
    """Return r - z."""
    return logp - ref_logp if divergence is None else (logp - ref_logp) - divergence


def _sided(desirable: Tile, weight: Tile, other: Tile) -> tuple[Tile, Tile]:
    """Return +1 or -1, and the weight."""
    return L.where(desirable, 1.0, -1.0), L.where(desirable, weight, other)


@kto_loss.vjp("logp")
def kto_loss_grad(ctx, d_loss: Tensor[f32]) -> Outputs:
    """d logp = -g / samples w beta side sigmoid'(beta (r - z))."""
    side, weight = _sided(ctx.desirable, ctx.desirable_weight, ctx.undesirable_weight)
    u = ctx.beta * _ahead(ctx.logp, ctx.ref_logp, ctx.divergence)
    scale = d_loss / ctx.count.to(f32)
    return L.out(d_logp=-(scale * (((weight * ctx.beta) * side) * _bell(u))))
