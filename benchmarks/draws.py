"""Frequencies of ten million drawn tokens a row beside their probabilities: `python -m benchmarks.draws`."""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch

import rlk

VOCABULARY, ROWS, MANY = 1000, 50_000, 10_000_000
LIKELY = 5.0  # expected draws from which on a token is counted by itself
FAR = 5.0  # standard deviations
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature 0.7": {"temperature": 0.7},
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.02": {"min_p": 0.02},
    "all of them": {"temperature": 1.2, "top_k": 200, "top_p": 0.95, "min_p": 0.001},
}


def chi_square(tokens: torch.Tensor, likely: torch.Tensor) -> float:
    """Return how many standard deviations the statistic of drawn tokens lies above its mean.

    likely: f64 [V]; tokens that are expected less than five times count as one.
    """
    counts = torch.bincount(tokens, minlength=len(likely)).double()
    wanted = likely * len(tokens)
    alone = wanted >= LIKELY
    counts = torch.cat((counts[alone], counts[~alone].sum()[None]))
    wanted = torch.cat((wanted[alone], wanted[~alone].sum()[None]))
    counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    return (float(((counts - wanted) ** 2 / wanted).sum()) - freedom) / math.sqrt(2 * freedom)


def draw(row: torch.Tensor, draws: int, options: dict[str, Any]) -> torch.Tensor:
    """Return the tokens of so many positions of one request, whose scores are a row."""
    rows = min(ROWS, draws)
    logits, found = row.expand(rows, -1).contiguous(), []
    request = torch.zeros(rows, dtype=torch.int64, device=row.device)
    for first in range(0, draws, rows):
        position = torch.arange(first, first + rows, device=row.device)
        found.append(rlk.ops.sample(logits, seed=1, request_id=request, position=position, **options).token)
    return torch.cat(found)


def main() -> None:
    """Draw, and exit with 1 where a token lies outside its support or is too frequent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=MANY)
    draws = parser.parse_args().draws
    device = "cuda" if torch.cuda.is_available() else "cpu"
    row = 2.0 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0)).to(device)
    wrong = 0
    for name, options in OPTIONS.items():
        exact = rlk.ops.sample.reference(row[None], **options)[0]
        tokens = draw(row, draws, options)
        outside = int((exact[tokens] == -torch.inf).sum())
        away = chi_square(tokens, exact.exp())
        wrong += outside > 0 or abs(away) > FAR
        print(f"{name:18s} {len(tokens)} draws, {outside} outside the support, chi-square {away:+.2f} sigma")
    raise SystemExit(int(wrong > 0))


if __name__ == "__main__":
    main()
