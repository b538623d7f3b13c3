"""Policy losses in float64 torch, straight from their formulas: the accuracy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlk.errors import Code, UnsupportedError
from rlk.ops.layout import Layout
from rlk.ops.losses import Bounds, Correction, Loss
from rlk.ops.policy import AdvantagesOf, of_tokens
from rlk.ops.results import PolicyLoss
from rlk.specs import surrogates

Wide = torch.Tensor  # float64
Numbers = Mapping[str, Any]  # floats, and which tokens are selected


@dataclass(frozen=True, slots=True)
class _Batch:
    """Tokens in a row, float64: which count, whose they are, and what is known of each."""

    layout: Layout
    tensors: Mapping[str, Wide]

    def __getitem__(self, name: str) -> Wide:
        return self.tensors[name]

    def by_sequence(self, x: Wide, counts: Wide) -> Wide:
        """Return the sum over each sequence's tokens that count."""
        owner = self.layout.sequence.reshape(-1).long()
        zeros = torch.zeros(self.layout.sequences, dtype=torch.float64, device=x.device)
        return zeros.index_add(0, owner, torch.where(counts, x, 0.0))

    def of_tokens(self, x: Wide) -> Wide:
        """Return a number of sequences for each of their tokens."""
        return x[self.layout.sequence.reshape(-1).long()]

    def mean(self, x: Wide, counts: Wide) -> Wide:
        return self.by_sequence(x, counts) / self.by_sequence(torch.ones_like(x), counts).clamp(min=1)


def estimate(d: Wide, kl: str) -> Wide:
    """Return the KL estimate of d = lp_ref - lp; a trailing + has the gradient of k2."""
    value = {"k1": -d, "k2": d * d / 2, "k3": torch.expm1(d) - d, "abs": d.abs()}[kl.removesuffix("+")]
    return (value - d * d / 2).detach() + d * d / 2 if kl.endswith("+") else value


def policy_loss(
    logp: torch.Tensor,
    old_logp: torch.Tensor,
    advantages: torch.Tensor,
    *,
    layout: Layout,
    loss: Loss,
    advantages_of: AdvantagesOf | None = None,
    **given: torch.Tensor | None,
) -> PolicyLoss:
    """Return `rlk.ops.policy_loss` in float64 (metrics: only `active`)."""
    wide = {n: x.reshape(-1).double() for n, x in given.items() if x is not None}
    wide |= {"logp": logp.reshape(-1).double(), "old_logp": old_logp.reshape(-1).double()}
    b = _Batch(layout, wide)
    a = advantages.double().reshape(-1)
    a = a if of_tokens("policy_loss", advantages, layout, advantages_of) else b.of_tokens(a)
    active = layout.active.reshape(-1)
    counts = _kept(b, loss, active)
    if loss.beta and loss.kl_enters == "advantage":
        a = a - loss.beta * _kl(b, loss).detach()
    shared = _token_ratio(b, loss, a)
    log_ratio = _log_ratio(b, loss, shared, counts)
    if loss.selection is not None:
        b = _Batch(layout, {**b.tensors, "selected": _selected(loss, b, a)})
    term = _surrogate(loss, b, log_ratio, a)
    if loss.correction is not None and not _enters_ratio(loss):
        weight = _weights(b, loss, loss.correction, active)
        term = torch.where(weight == 0.0, 0.0, weight * term)
    if loss.most_drift is not None:
        drift = b.of_tokens(b.mean((b["old_logp"] - b["logp"]).detach(), counts))
        term = torch.where((a < 0) & (drift > loss.most_drift), 0.0, term)
    if loss.beta and loss.kl_enters != "advantage":
        kl = _kl(b, loss)
        term = term + loss.beta * kl if loss.kl_enters == "loss" else term
        if loss.kl_enters == "ratio":
            limit = None if loss.kl_limit is None else -loss.kl_limit, loss.kl_limit
            term = term + loss.beta * _limited(kl * log_ratio.exp(), limit)
    if loss.entropy_coef and loss.entropy_mean == "loss":
        term = term - loss.entropy_coef * b["entropy"]
    if loss.weighted:
        term = b["token_weights"] * term
    term = torch.where(counts, term, 0.0)
    value = _averaged(b, loss, term, active, counts)
    if loss.entropy_coef and loss.entropy_mean == "tokens":
        bonus = torch.where(counts, b["entropy"], 0.0).sum() / counts.sum().clamp(min=1)
        value = value - loss.entropy_coef * bonus
    return PolicyLoss(value, term.detach().reshape(layout.shape), {"active": counts.sum()})


def _selected(loss: Loss, b: _Batch, a: Wide) -> Wide:
    """Return which tokens the selection takes, by covariances in float64."""
    s, n, active, lp = (
        loss.selection,
        dict(loss.surrogate.numbers),
        b.layout.active.reshape(-1),
        b["logp"].detach(),
    )
    assert s is not None
    score = (a - a[active].mean()) * (lp - lp[active].mean())
    takes = active & ~score.isnan()
    takes &= (score > (-torch.inf if s.low is None else s.low)) & (
        score < (torch.inf if s.high is None else s.high)
    )
    if s.unclipped:
        r = (lp - b["old_logp"]).exp()
        takes &= ~(-r.clamp(n["least"], n["most"]) * a > -r * a)
    most = max(int(s.share * int(active.sum())), 1)
    found = takes.nonzero()[:, 0]
    best = found[score[found].argsort(descending=True, stable=True)[:most]]
    return torch.zeros_like(takes).index_fill(0, best, True)


def _rollout_ratio(loss: Loss, b: _Batch) -> Wide:
    return b["logp"].detach() - b["old_logp"] if loss.bypass else b["old_logp"] - b["rollout_logp"]


def _limited(x: Wide, bounds: Bounds) -> Wide:
    low, high = bounds
    return x if low is None and high is None else x.clamp(low, high)


def _enters_ratio(loss: Loss) -> bool:
    """Return whether weights of tokens are in the ratio of their sequence, not factors of the surrogate."""
    return loss.level == "sequence_sum" and loss.correction is not None and loss.correction.level == "token"


def _token_ratio(b: _Batch, loss: Loss, a: Wide) -> Wide:
    d = b["logp"] - b["old_logp"]
    if not loss.pessimistic:
        return _limited(d, loss.token_limits)
    low, high = loss.token_limits
    gained = torch.where(a > 0, d.clamp(max=high), d.clamp(min=low))
    return torch.where(a == 0, 0.0, gained)


def _log_ratio(b: _Batch, loss: Loss, d: Wide, counts: Wide) -> Wide:
    match loss.level:
        case "token":
            return d
        case "sequence_sum":
            if loss.correction is not None and _enters_ratio(loss):
                weight = _weights(b, loss, loss.correction, b.layout.active.reshape(-1))
                d = d + _limited(weight.log(), loss.sequence_limits)
            return _limited(b.of_tokens(b.by_sequence(d, counts)), loss.sequence_limits)
        case "sequence":
            return _limited(b.of_tokens(b.mean(d, counts)), loss.sequence_limits)
        case "sequence_own":
            mean = b.of_tokens(b.mean(d, counts)).detach()
            return _limited(b["logp"] - b["logp"].detach() + mean, loss.sequence_limits)


def _weights(b: _Batch, loss: Loss, c: Correction, active: Wide) -> Wide:
    d = _rollout_ratio(loss, b)
    if c.level == "sequence":
        d = b.of_tokens(b.by_sequence(d, active))
    limit = None if c.log_limit is None else -c.log_limit, c.log_limit
    raw = _limited(d, limit).exp()
    if c.kind == "truncate":
        weight = _limited(raw, (c.low, c.high))
    else:
        low, high = 0.0 if c.low is None else c.low, torch.inf if c.high is None else c.high
        judged = raw if c.kind == "mask" else _limited(b.of_tokens(b.mean(d, active)), limit).exp()
        weight = torch.where((judged < low) | (judged > high), 0.0, raw)
    if not c.normalized:
        return weight
    mean = torch.where(active, weight, 0.0).sum() / active.sum().clamp(min=1)
    if c.level == "sequence":
        there = b.by_sequence(torch.ones_like(weight), active) > 0
        mean = torch.where(there, b.mean(weight, active), 0.0).sum() / there.sum().clamp(min=1)
    return torch.where(mean > 1e-8, weight / mean, weight)


def _kept(b: _Batch, loss: Loss, active: Wide) -> Wide:
    kept = active & (b["token_weights"] != 0) if loss.weighted else active
    for r in loss.rejections:
        limit = None if r.log_limit is None else -r.log_limit, r.log_limit
        x = estimate(_limited(_rollout_ratio(loss, b), limit), r.statistic)
        match r.over:
            case "token":
                pass
            case "sum":
                x = b.of_tokens(b.by_sequence(x, active))
            case "mean":
                x = b.of_tokens(b.mean(x, active))
            case "max":
                owner = b.layout.sequence.reshape(-1).long()
                most = x.new_full((b.layout.sequences,), -torch.inf)
                x = most.scatter_reduce(0, owner, torch.where(active, x, -torch.inf), "amax")[owner]
        low, high = -torch.inf if r.low is None else r.low, torch.inf if r.high is None else r.high
        kept = kept & (x >= low) & (x <= high)
    return kept


def _kl(b: _Batch, loss: Loss) -> Wide:
    d = b["ref_logp"] - b["logp"]
    most = None if loss.kl_enters == "ratio" else loss.kl_limit  # there it is a limit of the product with r
    limits = [(None if limit is None else -limit, limit) for limit in (loss.kl_log_limit, most)]
    name = loss.kl.removesuffix("+")
    value = _limited(estimate(_limited(d, limits[0]), name), limits[1])
    return (value - d * d / 2).detach() + d * d / 2 if loss.kl.endswith("+") else value


def _averaged(b: _Batch, loss: Loss, term: Wide, active: Wide, counts: Wide) -> Wide:
    lengths = b.by_sequence(torch.ones_like(term), counts)
    sequences = (lengths > 0).sum().clamp(min=1) if loss.sequences == "active" else max(b.layout.sequences, 1)
    match loss.aggregation:
        case "token_mean":
            value = term.sum() / counts.sum().clamp(min=1)
        case "sum":
            value = term.sum()
        case "sequence_sum":
            value = term.sum() / sequences
        case "sequence_mean":
            value = b.mean(term, counts).sum() / sequences
    return value if loss.normalizer is None else value / loss.normalizer


# --- surrogates ---


def _surrogate(loss: Loss, b: _Batch, log_ratio: Wide, a: Wide) -> Wide:
    formula = _FORMULAS.get(loss.surrogate.fn)
    if formula is None:
        raise UnsupportedError(
            Code.UNSUPPORTED, what=f"the surrogate {loss.surrogate.fn.__qualname__}", backend="the reference",
            target="every target", alternatives="rlk check, which has float64 of its own",
        )  # fmt: skip
    numbers = dict(loss.surrogate.numbers)
    if loss.selection is not None:
        numbers["selected"] = b["selected"]
    return formula(b["logp"], b["old_logp"], log_ratio, a, numbers)


def _clip(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    r = torch.where(a == 0, 1.0, log_ratio.exp())
    free = -(r if "delta" not in n else r.clamp(max=n["delta"])) * a
    limited = -_limited(r, (n.get("least"), n.get("most"))) * a
    term = torch.where(limited <= free, free, limited)
    return term if "dual" not in n else torch.where(a < 0, torch.minimum(term, -n["dual"] * a), term)


def _cispo(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    return -_limited(log_ratio.exp(), (n.get("least"), n.get("most"))).detach() * a * lp


def _sapo(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    tau = torch.where(a > 0, n["tau_positive"], n["tau_negative"])
    return -a * torch.sigmoid(tau * (log_ratio.exp() - 1)) * 4 / tau


def _vespo(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    power = torch.where(a >= 0, n["power_positive"], n["power_negative"])
    decay = torch.where(a >= 0, n["decay_positive"], n["decay_negative"])
    return -torch.exp(decay + power * log_ratio - decay * log_ratio.exp()).detach() * a * lp


def _reinforce(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    return -a * lp


def _dro(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    return -a * lp + n["penalty"] / 2 * log_ratio**2


def _dppo_tv(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    moved = (lp.exp() - old.exp()).detach()
    kept = ~torch.where(a > 0, moved > n["above"], moved < -n["below"])
    return _inside(lp, log_ratio, a, kept, n)


def _dppo_kl(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    p, q = lp.exp().detach(), old.exp()
    kl = q * (old - lp.detach()) + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
    kept = (
        torch.where(a > 0, (kl <= n["above"]) | (p <= q), (kl <= n["below"]) | (p >= q))
        | p.isnan()
        | q.isnan()
    )
    return _inside(lp, log_ratio, a, kept, n)


def _ipo_mask(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    return _inside(lp, log_ratio, a, ~((lp.exp() - old.exp()).detach().abs() > n["threshold"]), n)


def _lower_mask(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    return _inside(lp, log_ratio, a, ~((lp.exp() - old.exp()).detach() < -n["below"]), n)


def _clip_cov(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    return torch.where(n["selected"], 0.0, _clip(lp, old, log_ratio, a, n))


def _kl_cov(lp: Wide, old: Wide, log_ratio: Wide, a: Wide, n: Numbers) -> Wide:
    plain = -torch.where(a == 0, 1.0, log_ratio.exp()) * a
    return torch.where(n["selected"], plain + n["coef"] * log_ratio.abs(), plain)


def _inside(lp: Wide, log_ratio: Wide, a: Wide, kept: Wide, n: Numbers) -> Wide:
    if "most" in n:
        return torch.where(kept, -a * log_ratio.exp().clamp(max=n["most"]).detach() * lp, 0.0)
    return torch.where(kept, -a * log_ratio.exp(), 0.0) + n.get("drift", 0.0) * log_ratio**2


_FORMULAS: dict[Callable[..., Any], Callable[[Wide, Wide, Wide, Wide, Numbers], Wide]] = {
    surrogates.clip: _clip,
    surrogates.cispo: _cispo,
    surrogates.sapo: _sapo,
    surrogates.vespo: _vespo,
    surrogates.reinforce: _reinforce,
    surrogates.dro: _dro,
    surrogates.dppo_tv: _dppo_tv,
    surrogates.dppo_kl: _dppo_kl,
    surrogates.ipo_mask: _ipo_mask,
    surrogates.lower_mask: _lower_mask,
    surrogates.clip_cov: _clip_cov,
    surrogates.kl_cov: _kl_cov,
}
