"""Advantages from rewards: of samples within their groups, on tokens, and along sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Ragged,
    Scalar,
    Static,
    Tensor,
    Tile,
    boolean,
    f32,
    i32,
    i64,
    op,
)

N = Axis("N", chunk=1024, dynamic=True)
G = Axis("G", dynamic=True)
E = Axis("E")
S = Ragged("S", G, chunk=16)
T = Axis("T", dynamic=True)
B = Axis("B", dynamic=True)
R = Ragged("R", B)
Q = Axis("Q", dynamic=True)
M = Ragged("M", T, chunk=16)
W = Ragged("W", N, chunk=128)
Ids = DTypeVar("Ids", (i64, i32))
Lengths = DTypeVar("Lengths", (i64, i32))
SCALES = ("group", "batch", "none")
BASELINES = ("mean", "loo", "length", "best")
STDS = ("unbiased", "pop")
EPS_MODES = ("add", "max", "inside")
PLACES = ("last", "all")
TAILS = ("zero", "group")


class _Spread:
    """Statistics of the scored rewards of a segment, all relative to the largest of them.

    Differences from a reward of the segment are exact where rewards are close to each other, and +0 where
    they are equal: 1000 +- 0.1 keeps its digits, and a constant group has no spread at all.
    """

    def __init__(self, rewards: Tensor[f32, N], axis: Axis, **bounds: Tile) -> None:
        self._axis, self._bounds = axis, bounds
        largest, smallest = L.argmax(), L.argmax()
        count, total, squares = L.total(), L.total(), L.total()
        for s in self.stream():
            reward = rewards.at(s.pos)
            largest.absorb(reward)
            smallest.absorb(-reward)
            count.absorb((~L.isnan(reward)).to(i32))
        self._largest, self._place, self.count = largest.max, largest.index, count.value
        self._unit = _unit(largest.max + smallest.max)
        for s in self.stream():
            reward = rewards.at(s.pos)
            total.absorb(L.where(L.isnan(reward), -0.0, reward - self._largest))
        self._mean = total.value / _reduced(self.count, 0)
        for s in self.stream():
            reward = rewards.at(s.pos)
            away = self.away(reward) * self._unit
            squares.absorb(L.where(L.isnan(reward), -0.0, away * away))
        self._squares = squares.value
        self._rewards = rewards

    def stream(self) -> Iterator[object]:
        """Iterate the segment."""
        return L.stream(self._axis, **self._bounds)

    def away(self, reward: Tile) -> Tile:
        """Return the deviation of a reward from the mean."""
        return (reward - self._largest) - self._mean

    def weighted_mean(self, lengths: Tensor[Lengths, N]) -> Tile:
        """Return the mean weighted by lengths, as a difference from the largest; 0 of no length."""
        total, weights = L.total(), L.total()
        for s in self.stream():
            reward = self._rewards.at(s.pos)
            weight = L.where(L.isnan(reward), 0, lengths.at(s.pos)).to(f32)
            total.absorb(L.where(weight == 0.0, -0.0, weight * (reward - self._largest)))
            weights.absorb(weight)
        return L.where(weights.value == 0.0, 0.0, total.value / weights.value)

    def ahead(self) -> tuple[Tile, Tile]:
        """Return the index of the largest reward, and its distance to the second; 0 for a single reward."""
        second = L.argmax()
        for s in self.stream():
            second.absorb(L.where(s.pos == self._place, -math.inf, self._rewards.at(s.pos)))
        return self._place, L.where(self.count < 2, 0.0, self._largest - second.max)

    def beyond(self) -> Tile:
        """Return NaN where a reward is infinite, else 0."""
        return L.where(L.isnan(self._mean), self._mean, 0.0)

    def relative(self, reward: Tile) -> Tile:
        """Return a reward as a difference from the largest."""
        return reward - self._largest

    def divisor(self, std: str, eps: Tile, eps_mode: str) -> Tile:
        """Return the divisor of deviations; 0 where all rewards are equal."""
        variance = self._squares / _reduced(self.count, 1 if std == "unbiased" else 0)
        if eps_mode == "inside":
            root = _root(variance + (eps * self._unit) * self._unit) / self._unit
        else:
            root = _root(variance) / self._unit
            root = root + eps if eps_mode == "add" else L.maximum(root, eps)
        return L.where(variance == 0.0, 0.0, root)


def _unit(width: Tile) -> Tile:
    """Return a power of two that keeps squares of deviations within a width finite, and above 0.

    Products with it are exact: where it is not 1 a square would overflow, or lose its bits below 2^-126.
    """
    large = L.where(width > 2.0**96, 2.0**-112, L.where(width > 2.0**32, 2.0**-64, 1.0))
    return L.where(width < 2.0**-32, 2.0**56, large)


def _reduced(count: Tile, by: int) -> Tile:
    """Return count - by as f32, at least 1."""
    return L.maximum(count - by, 1).to(f32)


def _root(x: Tile) -> Tile:
    """Return the square root of a positive number."""
    # not L.sqrt, which some devices compute in several steps and a branch
    return x * L.rsqrt(x)


def _segment(bounds: Tensor[Ids, G, E], rows: Axis, count: Tile, of: str) -> tuple[Tile, Tile, Tile]:
    """Return the begin and end of each segment, and whether its bounds were bad: then they are corrected.

    The first and the last segment reach the ends of the axis, so that every result is written.
    """
    row, last, size = L.pos(rows), L.extent(rows) - 1, count.to(i64)
    low, high = bounds.at(rows, 0).to(i64), bounds.at(rows, 1).to(i64)
    begin = L.clip(L.where(row == 0, 0, low), 0, size)
    end = L.maximum(begin, L.minimum(L.where(row == last, size, high), size))
    bad = (begin != low) | (end != high)
    L.check(bad, f"offsets that do not ascend from 0 to the number of {of}")
    return begin, end, bad


@op()
def group_advantage(
    rewards: Tensor[f32, N],
    lengths: Tensor[Lengths, N] | None,
    bounds: Tensor[Ids, G, E],
    eps: Scalar[f32],
    scale: Static[SCALES] = "group",
    baseline: Static[BASELINES] = "mean",
    std: Static[STDS] = "unbiased",
    eps_mode: Static[EPS_MODES] = "add",
) -> Outputs:
    """(r - baseline) / deviation within groups (Shao 2024; loo: Kool 2019, Ahmadian 2024; length: Hao 2025).

    bounds[g] = (begin, end) of group g; groups follow each other and cover all rewards. Three passes: the
    largest reward, the mean of the differences from it, the squares around that mean; sums run in chunks
    of 16 (halving trees; of 1024 over a batch), chunks ascending. NaN rewards take no part and give 0.
    length: the mean weighted by lengths, its two sums in a pass of their own, in the same order. best: the
    largest reward less the second, 0 for the others (Tang 2025).
    """
    divisor = None
    if scale == "batch":
        divisor = L.keep(_Spread(rewards, N).divisor(std, eps, eps_mode), "divisor")
    begin, end, bad = _segment(bounds, G, L.extent(N), "rewards")
    group = _Spread(rewards, S, begin=begin, end=end)
    if scale == "group":
        divisor = group.divisor(std, eps, eps_mode)
    weighted = group.weighted_mean(lengths) if baseline == "length" and lengths is not None else None
    best = group.ahead() if baseline == "best" else None
    for s in group.stream():
        reward = rewards.at(s.pos)
        if weighted is not None:
            away = group.relative(reward) - weighted
        elif best is not None:
            away = L.where(s.pos == best[0], best[1], 0.0) + group.beyond()
        else:
            away = group.away(reward)
        if baseline == "loo":
            away = away * (group.count.to(f32) / _reduced(group.count, 1))
        if divisor is not None:
            away = L.where(divisor == 0.0, 0.0, away / divisor)
        away = L.where(bad, math.nan, L.where(L.isnan(reward), 0.0, away))
        L.place("advantages", (N,), ({N: s.pos}, away))
    return L.out()


@op()
def gae(
    values: Tensor[f32, T],
    rewards: Tensor[f32, T],
    active: Tensor[boolean, T],
    bounds: Tensor[Ids, B, E],
    bootstrap: Tensor[f32, B] | None,
    gamma: Scalar[f32],
    decay: Scalar[f32],
) -> Outputs:
    """A = delta + decay A', delta = r + gamma V' - V, from the last active token back (Schulman 2015).

    bounds[b] = (begin, end) of sequence b; sequences follow each other and cover all tokens. V' and A' are
    those of the next active token; behind the last one V' = bootstrap (0 without it), A' = 0. decay is
    gamma lambda. Every operation is rounded; inactive tokens are passed over and give 0.
    """
    begin, end, bad = _segment(bounds, B, L.extent(T), "tokens")
    after = L.carry(0.0 if bootstrap is None else bootstrap, B)
    ahead = L.carry(0.0, B)
    for r in L.stream(R, begin=begin, end=end, reverse=True):
        alive, value = active.at(r.pos), values.at(r.pos)
        delta = (rewards.at(r.pos) + gamma * after.value) - value
        advantage = delta + decay * ahead.value
        after.hand(L.where(alive, value, after.value))
        ahead.hand(L.where(alive, advantage, ahead.value))
        for name, made in (("advantages", advantage), ("returns", advantage + value)):
            shown = L.where(alive, L.where(bad, math.nan, made), 0.0)
            L.place(name, (T,), ({T: r.pos}, shown))
    return L.out()


@op()
def scatter_rewards(
    rewards: Tensor[f32, N],
    costs: Tensor[f32, N] | None,
    bounds: Tensor[Ids, N, E],
    active: Tensor[boolean, T],
    soft: Scalar[f32] | None,
    buffer: Scalar[f32] | None,
    factor: Scalar[f32] | None,
    at: Static[PLACES] = "last",
) -> Outputs:
    """The reward of a region on its last active token, or on all of them; other tokens get 0.

    bounds[n] = (begin, end) of region n; regions follow each other and cover all tokens. With soft: of n
    active tokens, factor clip((soft - n) / buffer, -1, 0) is added to the reward (Yu 2025). Costs go where
    rewards go, and take no penalty.
    """
    begin, end, bad = _segment(bounds, N, L.extent(T), "tokens")
    last, count = L.argmax(), L.total()
    for w in L.stream(W, begin=begin, end=end):
        alive = active.at(w.pos)
        last.absorb(L.where(alive, (w.pos - begin.to(i32)).to(f32), -math.inf))
        count.absorb(alive.to(i32))
    given = rewards
    if soft is not None:
        given = rewards + factor * L.clip((soft - count.value.to(f32)) / buffer, -1.0, 0.0)
    for w in L.stream(W, begin=begin, end=end):
        takes = active.at(w.pos)
        if at == "last":
            takes = takes & (w.pos == last.index)
        for name, each in (("token_rewards", given), ("token_costs", costs)):
            if each is not None:
                made = L.where(bad, math.nan, L.where(takes, each, 0.0))
                L.place(name, (T,), ({T: w.pos}, made))
    return L.out()


@op()
def token_paths(
    rewards: Tensor[f32, T],
    logp: Tensor[f32, T],
    sum_pi_squared: Tensor[f32, T],
    rollout_weights: Tensor[f32, T] | None,
    active: Tensor[boolean, T],
    bounds: Tensor[Ids, B, E],
) -> Outputs:
    """The rewards from each token on, and W, the sum of |s|^2 up to it, along each sequence's active tokens.

    bounds[b] = (begin, end) of sequence b; sequences follow each other and cover all tokens. |s|^2 =
    (1 - 2 pi) + sum pi^2, at least 0, times the square of the token's rollout weight: the squared gradient of
    the log-prob by the logits. One addition a token: rewards from the last active token back, |s|^2 from the
    first on. Inactive tokens give 0.
    """
    begin, end, bad = _segment(bounds, B, L.extent(T), "tokens")
    ahead, behind = L.carry(0.0, B), L.carry(0.0, B)
    for r in L.stream(R, begin=begin, end=end, reverse=True):
        alive = active.at(r.pos)
        made = L.where(alive, rewards.at(r.pos) + ahead.value, ahead.value)
        ahead.hand(made)
        L.place("returns", (T,), ({T: r.pos}, L.where(alive, L.where(bad, math.nan, made), 0.0)))
    for r in L.stream(R, begin=begin, end=end):
        alive, pi = active.at(r.pos), L.exp(logp.at(r.pos))
        # both differences are exact where pi is above 1/2; rounding of sum pi^2 may leave less than 0
        energy = L.maximum((1.0 - 2.0 * pi) + sum_pi_squared.at(r.pos), 0.0)
        if rollout_weights is not None:
            weight = rollout_weights.at(r.pos)
            energy = energy * (weight * weight)
        made = L.where(alive, behind.value + energy, behind.value)
        behind.hand(made)
        L.place("path", (T,), ({T: r.pos}, L.where(alive, L.where(bad, math.nan, made), 0.0)))
    return L.out()


@op()
def token_baseline(
    returns: Tensor[f32, T],
    path: Tensor[f32, T],
    active: Tensor[boolean, T],
    sequence: Tensor[i32, T],
    place: Tensor[i32, T],
    order: Tensor[i32, Q],
    begin: Tensor[i32, B],
    end: Tensor[i32, B],
    group: Tensor[i32, B],
    bounds: Tensor[Ids, G, E],
    eps: Scalar[f32],
    tail: Static[TAILS] = "zero",
) -> Outputs:
    """Returns less the mean, weighted by W, of those that a token's group has at its place.

    bounds[g] = (begin, end) of group g, sequences; group[b]: of sequence b. The token of sequence b at place
    p is order[begin[b] + p], where that is below end[b] and active. B = sum W G / (sum W + eps), computed
    from the largest return R: A = (G - R) - sum W (G - R) / (sum W + eps) + R eps / (sum W + eps). Sums run
    over the sequences of a group in chunks of 16 (halving trees), chunks ascending.
    """
    alive, owner, at = active.whole(), sequence.whole(), place.whole()
    row, mine = group.at(owner), returns.whole()
    low, high = bounds.at(row, 0).to(i64), bounds.at(row, 1).to(i64)
    own = owner.to(i64)
    bad = (low < 0) | (own < low) | (own >= high)
    L.check(alive & bad, "offsets that do not ascend from 0 to the number of sequences")
    first, last = L.where(bad, own, low), L.where(bad, own, high)
    largest, longer, members = L.argmax(), L.total(), L.total()

    def token(of: Tile) -> tuple[Tile, Tile, Tile]:
        """Return the token of a sequence at this place, whether there is one, and the sequence's extent."""
        start = begin.at(of)
        size = end.at(of) - start
        index = order.at(L.where(at < size, start + at, -1))
        return index, (at < size) & active.at(index), size

    for m in L.stream(M, begin=first, end=last, when=alive):
        index, there, size = token(m.pos)
        largest.absorb(L.where(there, returns.at(index), -math.inf))
        members.absorb((size > 0).to(i32))
        longer.absorb(((size > at) & (m.pos != owner)).to(i32))
    highest = largest.max
    weights, total = L.total(), L.total()
    for m in L.stream(M, begin=first, end=last, when=alive):
        index, there, _ = token(m.pos)
        weight = path.at(index)
        weights.absorb(L.where(there, weight, -0.0))
        total.absorb(L.where(there, weight * (returns.at(index) - highest), -0.0))
    divisor = weights.value + eps
    made = ((mine - highest) - total.value / divisor) + highest * (eps / divisor)
    alone = members.value < 2
    if tail == "zero":
        alone = alone | (longer.value == 0)
    made = L.where(alone | (divisor == 0.0), mine, made)
    return L.out(advantages=L.where(alive, L.where(bad, math.nan, made), 0.0))
