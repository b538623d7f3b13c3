"""The surrogates of policy losses: what one token contributes, and its slopes, as functions of tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlk.lang import L, Tile


@dataclass(frozen=True, slots=True)
class Token:
    """The inputs of a surrogate for a token, f32.

    logp, old_logp: under the policy and the one of the rollout. log_ratio: of the token, or of its sequence
    where the loss is at that level, within its limits; ratio: its exponential, 1 where the advantage is 0, so
    that inf times 0 never arises. advantage: of the token. selected: bool, whether the loss's selection took
    it; None without one.
    """

    logp: Tile
    old_logp: Tile
    log_ratio: Tile
    ratio: Tile
    advantage: Tile
    selected: Tile | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """The term of a token in the loss, which is minimised.

    by_ratio: the derivative of value by log_ratio; by_logp: by logp, the ratio apart. None: there is none.
    clipped: bool, where a clip or a mask takes the gradient away, for the clip fraction.
    """

    value: Tile
    by_ratio: Tile | None = None
    by_logp: Tile | None = None
    clipped: Tile | None = None


Surrogate = Callable[..., Term]
"""(token, **numbers) -> Term: numbers are f32 tiles of no axes, or None where the loss leaves them out."""


def clip(
    t: Token,
    least: Tile | None = None,
    most: Tile | None = None,
    dual: Tile | None = None,
    delta: Tile | None = None,
) -> Term:
    """max(-r A, -clip(r, least, most) A) (Schulman 2017); the gradient flows when unclipped >= clipped.

    dual: for A < 0 at most -dual A (Ye 2020). delta: the unclipped branch has min(r, delta) (INTELLECT-2).
    """
    plain = -(t.ratio * t.advantage)
    bounded = t.ratio
    if least is not None:
        bounded = L.maximum(bounded, least)
    if most is not None:
        bounded = L.minimum(bounded, most)
    limited = -(bounded * t.advantage)
    free = plain if delta is None else -(L.where(t.ratio > delta, delta, t.ratio) * t.advantage)
    # not limited <= free: what is NaN is no clipped term, it stays NaN
    flows = ~(limited > free)
    value = L.where(flows, free, limited)
    moves = flows
    if delta is not None:  # a delta within the bounds leaves the clipped branch ratios that move
        moves = (flows & ~(t.ratio > delta)) | (~flows & (bounded == t.ratio))
    if dual is not None:
        bound = -(dual * t.advantage)
        over = (t.advantage < 0.0) & (bound < value)
        value, moves = L.where(over, bound, value), moves & ~over
    slope = L.where(moves & (t.advantage != 0.0), plain, 0.0)
    return Term(value, slope, clipped=~flows)


def cispo(t: Token, least: Tile | None = None, most: Tile | None = None) -> Term:
    """-sg[clip(r, least, most)] A lp (MiniMax-M1, arXiv 2506.13585): clipped tokens keep a gradient."""
    weight, clipped = t.ratio, t.ratio != t.ratio
    if least is not None:
        weight, clipped = L.where(t.ratio < least, least, weight), clipped | (t.ratio < least)
    if most is not None:
        weight, clipped = L.where(t.ratio > most, most, weight), clipped | (t.ratio > most)
    slope = -(weight * t.advantage)
    return Term(_times(slope, t.logp), by_logp=slope, clipped=clipped)


def sapo(t: Token, tau_positive: Tile, tau_negative: Tile) -> Term:
    """-A (4 / tau) sigmoid(tau (r - 1)), tau by the sign of A (SAPO, arXiv 2511.20347)."""
    tau = L.where(t.advantage > 0.0, tau_positive, tau_negative)
    gate = L.sigmoid(tau * (t.ratio - 1.0))
    slope = -(t.advantage * (4.0 * (gate * (1.0 - gate))))
    # where the gate is shut its slope is 0, whatever the ratio
    return Term(-(t.advantage * (gate * (4.0 / tau))), _times(slope, t.ratio))


def vespo(
    t: Token, power_positive: Tile, decay_positive: Tile, power_negative: Tile, decay_negative: Tile
) -> Term:
    """-phi(w) A lp, log phi = c + k log w - c w, w the sequence's ratio and k, c by the sign of A (VESPO)."""
    gains = t.advantage >= 0.0
    power, decay = (
        L.where(gains, power_positive, power_negative),
        L.where(gains, decay_positive, decay_negative),
    )
    # of the log ratio, not of t.ratio, which is 1 without advantage: the weight is reported there too
    weight = L.exp((decay + power * t.log_ratio) - decay * L.exp(t.log_ratio))
    slope = -(weight * t.advantage)
    return Term(_times(slope, t.logp), by_logp=slope)


def reinforce(t: Token) -> Term:
    """-A lp (Williams 1992; GPG, arXiv 2504.02546)."""
    return Term(_times(-t.advantage, t.logp), by_logp=-t.advantage)


def dro(t: Token, penalty: Tile) -> Term:
    """-A lp + penalty / 2 (log r)^2 (DRO, arXiv 2405.19107)."""
    square = 0.5 * penalty * (t.log_ratio * t.log_ratio)
    return Term(_times(-t.advantage, t.logp) + square, penalty * t.log_ratio, -t.advantage)


def dppo_tv(t: Token, below: Tile, above: Tile, most: Tile | None = None, drift: Tile | None = None) -> Term:
    """Policy gradient where the probability moved by no more than a total variation (DPPO, arXiv 2602.04879).

    With `most`: -A sg[min(r, most)] lp, as the paper. Without: -A r + drift (log r)^2. A token counts while
    p - p_old is at most `above` (A > 0), or at least -below (otherwise).
    """
    moved = L.exp(t.logp) - L.exp(t.old_logp)
    # comparisons that fail: a token whose log-prob is NaN is kept, and stays NaN
    kept = ~L.where(t.advantage > 0.0, moved > above, moved < -below)
    return _inside(t, kept, most, drift)


def dppo_kl(t: Token, below: Tile, above: Tile, most: Tile) -> Term:
    """-A sg[min(r, most)] lp where the binary KL from p_old to p is small, or p moved against A (DPPO)."""
    p, q = L.exp(t.logp), L.exp(t.old_logp)
    rest = L.log(((1.0 - q) + 1e-8) / ((1.0 - p) + 1e-8))
    divergence = q * (t.old_logp - t.logp) + (1.0 - q) * rest
    kept = L.where(t.advantage > 0.0, (divergence <= above) | (p <= q), (divergence <= below) | (p >= q))
    kept = kept | (p != p) | (q != q)  # NaN stays NaN
    return _inside(t, kept, most, None)


def ipo_mask(t: Token, threshold: Tile, drift: Tile | None = None) -> Term:
    """-A r where |p - p_old| <= threshold, + drift (log r)^2 everywhere (prime-rl)."""
    moved = L.exp(t.logp) - L.exp(t.old_logp)
    return _inside(t, ~(abs(moved) > threshold), None, drift)


def lower_mask(t: Token, below: Tile, drift: Tile | None = None) -> Term:
    """-A r where p - p_old >= -below, + drift (log r)^2 everywhere (prime-rl's ref_kl)."""
    moved = L.exp(t.logp) - L.exp(t.old_logp)
    return _inside(t, ~(moved < -below), None, drift)


def clip_cov(t: Token, least: Tile, most: Tile) -> Term:
    """max(-r A, -clip(r, least, most) A), 0 for selected tokens (Clip-Cov, arXiv 2505.22617)."""
    assert t.selected is not None
    whole = clip(t, least, most)
    assert whole.by_ratio is not None
    value, slope = (L.where(t.selected, 0.0, x) for x in (whole.value, whole.by_ratio))
    return Term(value, slope, clipped=t.selected)


def kl_cov(t: Token, coef: Tile) -> Term:
    """-r A, + coef abs(log r) for selected tokens (KL-Cov, arXiv 2505.22617)."""
    assert t.selected is not None
    plain, d = -(t.ratio * t.advantage), t.log_ratio
    side = L.where(d > 0.0, coef, L.where(d < 0.0, -coef, 0.0))
    slope = L.where(t.advantage == 0.0, 0.0, plain)
    value, bent = plain + coef * abs(d), slope + side
    return Term(L.where(t.selected, value, plain), L.where(t.selected, bent, slope), clipped=t.selected)


def _inside(t: Token, kept: Tile, most: Tile | None, drift: Tile | None) -> Term:
    """Return the term of a trust region by mask: a score with a detached ratio, or the ratio itself."""
    if most is not None:
        weight = -(L.where(t.ratio > most, most, t.ratio) * t.advantage)
        slope = L.where(kept, weight, 0.0)
        return Term(L.where(kept, _times(weight, t.logp), 0.0), by_logp=slope, clipped=~kept)
    value = slope = L.where(kept, -(t.ratio * t.advantage), 0.0)
    if drift is not None:
        value = value + drift * (t.log_ratio * t.log_ratio)
        slope = slope + (2.0 * drift) * t.log_ratio
    return Term(value, slope, clipped=~kept)


def _times(slope: Tile, x: Tile) -> Tile:
    """Return a product that is 0 where the slope is 0, whatever it multiplies."""
    return L.where(slope == 0.0, 0.0, slope * x)
