"""Advantages, value losses and preferences in float64 torch, straight from their formulas."""

from __future__ import annotations

import math

import torch
from torch.nn.functional import logsigmoid

from rlk.ops.advantages import Overlong
from rlk.ops.layout import Layout
from rlk.ops.results import (
    EntropyBonus,
    Gae,
    KTOLoss,
    NLLLoss,
    PreferenceLoss,
    TokenAdvantages,
    TokenRewards,
    ValueLoss,
)


def group_advantage(
    rewards: torch.Tensor,
    groups: torch.Tensor,
    *,
    scale: str = "group",
    baseline: str = "mean",
    std: str = "unbiased",
    eps: float = 1e-4,
    eps_mode: str = "add",
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `rlk.ops.group_advantage` in float64."""
    r = rewards.double()
    made = torch.zeros_like(r)
    edges = groups.tolist()
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        x = r[begin:end]
        scored = ~x.isnan()
        n = int(scored.sum())
        away = x - x[scored].mean()
        if baseline == "loo":
            away = away * (n / max(n - 1, 1))
        if baseline == "length" and lengths is not None:
            weight = lengths[begin:end][scored].double()
            away = x - (weight * x[scored]).sum() / weight.sum()
        if baseline == "best":
            away = torch.zeros_like(x)
            if n > 1:
                most = x.nan_to_num(nan=-torch.inf).topk(2)
                away[most.indices[0]] = most.values[0] - most.values[1]
        if scale != "none":
            away = away / _deviation(x if scale == "group" else r, std, eps, eps_mode)
        made[begin:end] = torch.where(scored, away, 0.0)
    return made


def _deviation(x: torch.Tensor, std: str, eps: float, eps_mode: str) -> torch.Tensor:
    """Return what deviations are divided by; infinity where there is no spread."""
    x = x[~x.isnan()]
    if x.numel() == 0 or bool((x == x[0]).all()):
        return torch.tensor(torch.inf, dtype=torch.float64)
    variance = x.var(correction=1 if std == "unbiased" else 0)
    match eps_mode:
        case "add":
            return variance.sqrt() + eps
        case "max":
            return variance.sqrt().clamp(min=eps)
        case _:
            return (variance + eps).sqrt()


def scatter_rewards(
    rewards: torch.Tensor,
    offsets: torch.Tensor,
    *,
    layout: Layout,
    at: str = "last",
    costs: torch.Tensor | None = None,
    overlong: Overlong | None = None,
) -> torch.Tensor | TokenRewards:
    """Return `rlk.ops.scatter_rewards` in float64."""
    packed = [
        torch.arange(int(first), int(first + n))
        for first, n in zip(layout.first, layout.lengths, strict=True)
    ]
    flat, alive = torch.cat([torch.arange(0), *packed]), layout.active.reshape(-1)
    made = torch.zeros(2, layout.tokens, dtype=torch.float64)
    edges = offsets.tolist()
    for n, (begin, end) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        there = flat[begin:end][alive[flat[begin:end]]]
        given = rewards[n].double()
        if overlong is not None:
            over = (overlong.limit - overlong.buffer - there.numel()) / overlong.buffer
            given = given + overlong.factor * min(max(over, -1.0), 0.0)
        takes = there if at == "all" else there[-1:]
        made[0, takes] = given
        made[1, takes] = 0.0 if costs is None else costs[n].double()
    placed = [x.reshape(layout.shape) for x in made]
    return placed[0] if costs is None else TokenRewards(*placed)


def gae(
    values: torch.Tensor,
    rewards: torch.Tensor,
    *,
    layout: Layout,
    gamma: float,
    lam: float,
    bootstrap: torch.Tensor | None = None,
) -> Gae:
    """Return `rlk.ops.gae` in float64."""
    v, r = values.double().reshape(-1), rewards.double().reshape(-1)
    alive, advantages = layout.active.reshape(-1), torch.zeros_like(v)
    for sequence, (begin, end) in enumerate(layout.bounds.tolist()):
        after = v.new_zeros(()) if bootstrap is None else bootstrap[sequence].double()
        ahead = v.new_zeros(())
        for t in reversed(range(begin, end)):
            if alive[t]:
                ahead = r[t] + gamma * after - v[t] + gamma * lam * ahead
                after, advantages[t] = v[t], ahead
    returns = torch.where(alive, advantages + v, 0.0)
    return Gae(advantages.reshape(layout.shape), returns.reshape(layout.shape))


def optimal_token_baseline(
    rewards: torch.Tensor,
    logp: torch.Tensor,
    sum_pi_squared: torch.Tensor,
    groups: torch.Tensor,
    *,
    layout: Layout,
    align: str = "position",
    tail: str = "zero",
    eps: float = 1e-8,
    rollout_weights: torch.Tensor | None = None,
) -> TokenAdvantages:
    """Return `rlk.ops.optimal_token_baseline` in float64, of one sequence and one place after the other."""
    r, lp, squares = (x.double().reshape(-1) for x in (rewards, logp, sum_pi_squared))
    w = (1.0 - 2.0 * lp.exp() + squares).clamp(min=0)
    if rollout_weights is not None:
        w = w * rollout_weights.double().reshape(-1) ** 2
    alive, position = layout.active.reshape(-1), layout.position.reshape(-1)
    returns, advantages = torch.zeros_like(r), torch.zeros_like(r)
    owner = layout.sequence.reshape(-1)
    tokens = [torch.nonzero(alive & (owner == b)).reshape(-1) for b in range(layout.sequences)]
    path = torch.zeros_like(r)
    for there in tokens:
        returns[there], path[there] = r[there].flip(0).cumsum(0).flip(0), w[there].cumsum(0)
    places = [position[t] if align == "position" else torch.arange(len(t)) for t in tokens]
    edges = groups.tolist()
    for begin, end in zip(edges[:-1], edges[1:], strict=True):
        members = [b for b in range(begin, end) if len(tokens[b])]
        extents = {b: int(places[b][-1]) + 1 for b in members}
        for b in members:
            others = [extents[m] for m in members if m != b]
            for t, p in zip(tokens[b].tolist(), places[b].tolist(), strict=True):
                beside = torch.cat([tokens[m][places[m] == p] for m in members])
                weight = path[beside].sum() + eps
                baseline = (path[beside] * returns[beside]).sum() / weight if weight else 0.0
                if not others or (tail == "zero" and p >= max(others)):
                    baseline = 0.0
                advantages[t] = returns[t] - baseline
    return TokenAdvantages(advantages.reshape(layout.shape), returns.reshape(layout.shape))


def sequence_logp(
    logp: torch.Tensor,
    *,
    layout: Layout,
    over: str = "sum",
    shared: torch.Tensor | None = None,
    tail: float | None = None,
) -> torch.Tensor:
    """Return `rlk.ops.sequence_logp` in float64, of one sequence after the other."""
    flat, owner = logp.double().reshape(-1), layout.sequence.reshape(-1)
    made = []
    for b in range(layout.sequences):
        x = flat[layout.active.reshape(-1) & (owner == b)]
        if shared is not None and tail is not None:
            x = torch.where(torch.arange(len(x), device=x.device) < shared[b], x, tail * x)
        made.append(x.sum() if over == "sum" else x.sum() / max(len(x), 1))
    whole = torch.stack(made) if made else flat.new_zeros(0)
    return whole.exp() if over == "probability" else whole


def preference_loss(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor | None = None,
    ref_rejected: torch.Tensor | None = None,
    *,
    loss: str = "sigmoid",
    beta: float = 0.1,
    smoothing: float = 0.0,
    margin: float = 0.0,
    tau: float = 0.05,
    chosen_tokens: torch.Tensor | None = None,
    rejected_tokens: torch.Tensor | None = None,
    divergence: str = "reverse_kl",
    alpha: float | None = None,
    weights: torch.Tensor | None = None,
) -> PreferenceLoss:
    """Return `rlk.ops.preference_loss` in float64; ranks are those of f32 differences."""
    c = _score(chosen, ref_chosen, chosen_tokens, divergence, alpha)
    r = _score(rejected, ref_rejected, rejected_tokens, divergence, alpha)
    if loss == "alphapo" and alpha:
        c, r = (-torch.expm1(-alpha * x) / alpha for x in (c, r))
    if loss in ("aot", "aot_unpaired"):
        assert ref_chosen is not None and ref_rejected is not None
        sides = (chosen, rejected, ref_chosen, ref_rejected)
        term = _preference("sigmoid", *_by_rank(loss, *sides), beta, smoothing, margin, tau)
    else:
        term = _preference(loss, c, r, beta, smoothing, margin, tau)
    term = term if weights is None else torch.where(weights == 0, 0.0, weights.double() * term)
    means = {"accuracy": (c > r).double(), "chosen_reward": beta * c, "rejected_reward": beta * r}
    count = max(term.numel(), 1)
    return PreferenceLoss(
        term.sum() / count, term.detach(), {n: x.detach().sum() / count for n, x in means.items()}
    )


def _by_rank(
    loss: str, chosen: torch.Tensor, rejected: torch.Tensor, ref_chosen: torch.Tensor, ref: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two numbers of each pair that have one rank, at the place of the first."""
    one, two = (chosen, rejected), (ref_chosen, ref)
    if loss == "aot_unpaired":
        one, two = (chosen, ref_chosen), (rejected, ref)
    by, other = (
        torch.sort(a.detach().float() - b.detach().float(), stable=True).indices for a, b in (one, two)
    )
    second = two[0].double() - two[1].double()
    return one[0].double() - one[1].double(), second[other[by.argsort()]]


def _score(
    logp: torch.Tensor, ref: torch.Tensor | None, tokens: torch.Tensor | None, divergence: str,
    alpha: float | None,
) -> torch.Tensor:  # fmt: skip
    score = logp.double() if ref is None else logp.double() - ref.double()
    match divergence:
        case "forward_kl":
            score = -torch.expm1(-score)
        case "js":
            score = math.log(2) + logsigmoid(score)
        case "alpha" if alpha is not None and alpha != 1:
            score = torch.expm1(((alpha - 1) * score).clamp(max=80)) / (alpha - 1)
    return score if tokens is None else score / tokens.clamp(min=1)


def _preference(
    loss: str, c: torch.Tensor, r: torch.Tensor, beta: float, s: float, margin: float, tau: float
) -> torch.Tensor:
    """Return the term of each pair, as published."""
    a, b, u = beta * c, beta * r, beta * (c - r) - margin
    match loss:
        case "sigmoid" | "cpo" | "simpo" | "alphapo":
            return -(1 - s) * logsigmoid(u) - s * logsigmoid(-u)
        case "robust":
            return (-(1 - s) * logsigmoid(u) + s * logsigmoid(-u)) / (1 - 2 * s)
        case "hinge":
            return torch.relu(1 - u)
        case "ipo":
            return (c - r - 1 / (2 * beta)) ** 2
        case "exo_pair":
            clean, flipped = torch.tensor([1 - s, s], dtype=torch.float64).log()
            return u.sigmoid() * (logsigmoid(u) - clean) + (-u).sigmoid() * (logsigmoid(-u) - flipped)
        case "discopop":
            mix = torch.sigmoid(u / tau)
            return -logsigmoid(u) * (1 - mix) + torch.exp(-u) * mix
        case "nca_pair":
            return -logsigmoid(a) - 0.5 * logsigmoid(-a) - 0.5 * logsigmoid(-b)
        case "bco_pair":
            return -logsigmoid(a) - logsigmoid(-b)
        case "sppo_hard":
            return (c - 0.5 / beta) ** 2 + (r + 0.5 / beta) ** 2
        case "apo_zero":
            return 1 - a.sigmoid() + b.sigmoid()
        case "apo_down":
            return a.sigmoid() + 1 - torch.sigmoid(a - b)
        case _:
            odds = (c - r) - (torch.log(-torch.expm1(c)) - torch.log(-torch.expm1(r)))
            return -beta * logsigmoid(odds)


def kto_loss(
    logp: torch.Tensor,
    ref_logp: torch.Tensor,
    desirable: torch.Tensor,
    *,
    beta: float = 0.1,
    mismatched: tuple[torch.Tensor, torch.Tensor] | None = None,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    loss: str = "kto",
) -> KTOLoss:
    """Return `rlk.ops.kto_loss` in float64."""
    r = logp.double() - ref_logp.double()
    z = torch.zeros((), dtype=torch.float64, device=r.device)
    if mismatched is not None:
        z = (mismatched[0].double() - mismatched[1].double()).detach().mean().clamp(min=0)
    better = desirable_weight * (1 - torch.sigmoid(beta * (r - z)))
    worse = undesirable_weight * (1 - torch.sigmoid(beta * (z - r)))
    term = torch.where(desirable, better, worse)
    return KTOLoss(term.sum() / max(term.numel(), 1), term.detach(), {"divergence": z})


def value_loss(
    values: torch.Tensor,
    returns: torch.Tensor,
    *,
    layout: Layout,
    old_values: torch.Tensor | None = None,
    clip: float = 0.2,
    aggregation: str = "token_mean",
    sequences: str = "active",
    normalizer: float | None = None,
) -> ValueLoss:
    """Return `rlk.ops.value_loss` in float64 (metrics: only `active`)."""
    v, target = values.double(), returns.double()
    term = (v - target) ** 2
    if old_values is not None:
        old = old_values.double()
        term = torch.maximum(term, (torch.clamp(v, old - clip, old + clip) - target) ** 2)
    term = torch.where(layout.active, 0.5 * term, 0.0)
    loss = _averaged(term, layout.active, layout, aggregation, sequences, normalizer)
    return ValueLoss(loss, term.detach(), {"active": layout.active.sum()})


def nll_loss(
    logp: torch.Tensor,
    *,
    layout: Layout,
    weights: torch.Tensor | None = None,
    aggregation: str = "token_mean",
    sequences: str = "active",
    normalizer: float | None = None,
) -> NLLLoss:
    """Return `rlk.ops.nll_loss` in float64."""
    counts = layout.active if weights is None else layout.active & (weights != 0)
    term = -logp.double() if weights is None else -weights.double() * logp.double()
    term = torch.where(counts, term, 0.0)
    loss = _averaged(term, counts, layout, aggregation, sequences, normalizer)
    return NLLLoss(loss, term.detach(), {"active": counts.sum()})


def _averaged(
    term: torch.Tensor, counts: torch.Tensor, layout: Layout, aggregation: str, sequences: str,
    normalizer: float | None,
) -> torch.Tensor:  # fmt: skip
    """Return a mean or sum of terms that are 0 where a token does not count."""
    owner = layout.sequence.reshape(-1).long()
    zeros = torch.zeros(layout.sequences, dtype=torch.float64, device=term.device)
    lengths = zeros.index_add(0, owner, counts.reshape(-1).double())
    there = (lengths > 0).sum().clamp(min=1) if sequences == "active" else max(layout.sequences, 1)
    match aggregation:
        case "token_mean":
            value = term.sum() / counts.sum().clamp(min=1)
        case "sum":
            value = term.sum()
        case "sequence_sum":
            value = term.sum() / there
        case _:
            value = (zeros.index_add(0, owner, term.reshape(-1)) / lengths.clamp(min=1)).sum() / there
    return value if normalizer is None else value / normalizer


def entropy_bonus(entropy: torch.Tensor, *, layout: Layout, coef: float) -> EntropyBonus:
    """Return `rlk.ops.entropy_bonus` in float64."""
    total = torch.where(layout.active, entropy.double(), 0.0).sum()
    mean = total / layout.active.sum().clamp(min=1)
    return EntropyBonus(-coef * mean, mean.detach())


def pack(x: torch.Tensor, layout: Layout, *, side: str = "right") -> torch.Tensor:
    """Return `rlk.ops.pack` row by row, floats in float64."""
    wide = x.double() if x.dtype.is_floating_point else x
    lengths = layout.lengths.tolist()
    rows = [r[:n] if side == "right" else r[len(r) - n :] for r, n in zip(wide, lengths, strict=True)]
    behind = wide.new_zeros((layout.tokens - sum(lengths), *x.shape[2:]))
    return torch.cat((*rows, behind))


def unpack(x: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return `rlk.ops.unpack` row by row, floats in float64."""
    wide = x.double() if x.dtype.is_floating_point else x
    made = wide.new_zeros((*layout.shape, *x.shape[1:]))
    lengths = layout.lengths.tolist()
    begins = (layout.first - layout.bounds[:, 0]).tolist()
    for row, begin, part in zip(made, begins, wide.split(lengths), strict=True):
        row[begin : begin + len(part)] = part
    return made
