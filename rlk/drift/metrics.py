"""Statistics of the log-probs that two engines give to the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlk.drift.engine import Scores

QUANTILES = (0.5, 0.9, 0.99, 0.999)
EDGES = (-torch.inf, -1.0, -0.1, -0.01, -1e-3, -1e-4, -1e-6, 0.0)
"""Edges of the histogram of log ratios below 0; those above are the same with the other sign."""
BANDS = 8  # of positions
LIMIT = 80.0  # nats: e^80 is a float32


@dataclass(frozen=True, slots=True)
class LogProbDrift:
    """Differences d = log p_b - log p_a of the tokens that both engines scored, the log ratios of b to a.

    exact: the share with equal bits. not_finite: how many d are infinite or NaN; these are in exact, clipped
    and histogram alone. mean, largest: of |d|; quantiles: of |d| by their level. k1, k2, k3: estimates of
    KL(a, b) on tokens that a sampled: the means of -d, d^2 / 2 and e^d - 1 - d (Schulman 2020), of d within
    80 nats. histogram: counts of d by its edges, those with d = 0 in a bin of their own. clipped: the share
    of ratios e^d outside of [1 - clip, 1 + clip]. by_position: (first, last, mean |d|, largest |d|) of bands
    of places in a sequence. by_sequence: (mean |d|, largest |d|, sum d) of each. distance: the largest
    distance of two distributions over the vocabulary by their digests, and unequal: the share of tokens
    whose have other bits; None without digests.
    """

    tokens: int
    exact: float
    not_finite: int
    mean: float
    largest: float
    quantiles: dict[str, float]
    k1: float
    k2: float
    k3: float
    clip: float
    clipped: float
    histogram: tuple[tuple[str, int], ...]
    by_position: tuple[tuple[int, int, float, float], ...]
    by_sequence: tuple[tuple[float, float, float], ...]
    distance: float | None
    unequal: float | None


def log_prob_drift(a: Scores, b: Scores, clip: float = 0.2) -> LogProbDrift | None:
    """Compare the log-probs of tokens that both engines scored; None where there are none.

    Scores must be of the same tokens. Equal infinities are no difference.
    """
    known = a.known & b.known
    if not bool(known.any()):
        return None
    x, y = a.logps[known], b.logps[known]
    same = x.view(torch.int32) == y.view(torch.int32)
    every = torch.where(same | (x == y), 0.0, y.double() - x.double()).nan_to_num(
        torch.inf, torch.inf, -torch.inf
    )
    inside = every.isfinite()
    d, places, owners = every[inside], a.tokens.places[known][inside], a.tokens.owners[known][inside]
    size, limited, ratio = d.abs(), d.clamp(-LIMIT, LIMIT), every.exp()
    digests = None if a.digest is None or b.digest is None else (a.digest, b.digest)
    distance = None if digests is None else digests[0].distance(digests[1])[a.tokens.has_next]
    unequal = None if digests is None else (digests[0].bits != digests[1].bits)[a.tokens.has_next]
    return LogProbDrift(
        tokens=len(every),
        exact=float(same.double().mean()),
        not_finite=len(every) - len(d),
        mean=_mean(size),
        largest=float(size.max()) if len(d) else 0.0,
        quantiles={
            str(q): float(size.quantile(q, interpolation="lower")) if len(d) else 0.0 for q in QUANTILES
        },
        k1=_mean(-limited),
        k2=_mean(limited**2 / 2),
        k3=_mean(torch.expm1(limited) - limited),
        clip=clip,
        clipped=float(((ratio < 1 - clip) | (ratio > 1 + clip)).double().mean()),
        histogram=tuple(zip(bin_names(), histogram(every).tolist(), strict=True)),
        by_position=_by_position(size, places),
        by_sequence=_by_sequence(d, owners, len(a.tokens)),
        distance=None if distance is None else float(distance.max()) if len(distance) else 0.0,
        unequal=None if unequal is None else float(unequal.double().mean()) if len(unequal) else 0.0,
    )


def _mean(x: torch.Tensor) -> float:
    return float(x.mean()) if len(x) else 0.0


def bin_names() -> list[str]:
    """Return the names of the bins of a histogram of log ratios."""
    below = [f"{a:g} to {b:g}" for a, b in zip(EDGES, EDGES[1:], strict=False)]
    above = [f"{0.0 - b:g} to {0.0 - a:g}" for a, b in zip(EDGES, EDGES[1:], strict=False)]
    return [*below, "0", *above[::-1]]


def edges(device: torch.device | str = "cpu") -> torch.Tensor:
    """Return the sorted inner edges of a histogram of log ratios, f32, without those at 0."""
    inner = EDGES[1:-1]
    return torch.tensor([*inner, *(-x for x in inner[::-1])], device=device)


def histogram(d: torch.Tensor, at: torch.Tensor | None = None) -> torch.Tensor:
    """Return the counts of log ratios d [N] in the bins of `bin_names`, int64. at: `edges` of d's device."""
    at = edges(d.device) if at is None else at
    half = len(EDGES) - 1
    index = torch.bucketize(d.float(), at)  # the middle bin holds what is near 0, of either sign
    index = torch.where(index < half - 1, index, torch.where(index > half - 1, index + 2, half))
    near = index == half
    index = torch.where(near & (d < 0), half - 1, torch.where(near & (d > 0), half + 1, index))
    return torch.zeros(2 * half + 1, dtype=torch.int64, device=d.device).index_add_(
        0, index, torch.ones_like(index)
    )


def _by_position(size: torch.Tensor, places: torch.Tensor) -> tuple[tuple[int, int, float, float], ...]:
    if not len(places):
        return ()
    low, high = int(places.min()), int(places.max())
    width = max(1, -(-(high - low + 1) // BANDS))
    found = []
    for first in range(low, high + 1, width):
        inside = size[(places >= first) & (places < first + width)]
        if len(inside):
            found.append((first, min(first + width - 1, high), float(inside.mean()), float(inside.max())))
    return tuple(found)


def _by_sequence(d: torch.Tensor, owners: torch.Tensor, count: int) -> tuple[tuple[float, float, float], ...]:
    found: list[tuple[float, float, float]] = []
    for i in range(count):
        own = d[owners == i]
        none = len(own) == 0
        found.append(
            (0.0, 0.0, 0.0) if none else (float(own.abs().mean()), float(own.abs().max()), float(own.sum()))
        )
    return tuple(found)


def bars(counts: Sequence[tuple[str, int]], width: int = 40) -> list[str]:
    """Return a histogram as lines of text; empty bins are left out."""
    most = max((n for _, n in counts), default=0)
    wide = max((len(name) for name, n in counts if n), default=0)
    return [f"{name:>{wide}}  {n:>7}  {'#' * max(1, n * width // most)}" for name, n in counts if n]
