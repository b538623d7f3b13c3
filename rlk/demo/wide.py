"""Errors of rlk and of plain torch against the same step in float64, sample by sample so that it fits."""

from __future__ import annotations

import torch
from torch import Tensor

from rlk.demo import plain
from rlk.demo.batch import Case
from rlk.demo.measure import largest_error
from rlk.demo.report import ErrorRow
from rlk.demo.step import Step


def errors(case: Case, ours: Step, theirs: plain.Terms, their_gradient: Tensor) -> list[ErrorRow]:
    """Return the largest absolute error of every quantity over the active tokens."""
    batch = case.batch
    chosen, spread = zip(*(_log_probs(case, row) for row in range(len(batch.lengths))), strict=True)
    leaf = torch.stack(chosen).requires_grad_()
    old, ref = case.old.double(), case.ref.double()
    wide = plain.objective(leaf, torch.stack(spread), old, ref, batch.advantages.double(), batch.mask)
    (d_logp,) = torch.autograd.grad(wide.loss, leaf)
    found = []
    for name in ("logp", "entropy", "ratio", "kl", "loss"):
        want = getattr(wide, name).detach()
        pair = (largest_error(getattr(side, name), want) for side in (ours, theirs))
        found.append(ErrorRow(name, *pair))
    sides = (ours.d_logits, their_gradient)
    gaps = [_gradient_errors(case, row, d_logp[row], *sides) for row in range(len(leaf))]
    found.append(ErrorRow("d logits", max(gap[0] for gap in gaps), max(gap[1] for gap in gaps)))
    return found


def _log_probs(case: Case, row: int) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return plain.log_probs(case.logits[row].double(), case.batch.targets[row])


def _gradient_errors(
    case: Case, row: int, d_logp: Tensor, ours: Tensor, theirs: Tensor
) -> tuple[float, float]:
    scores = case.logits[row].double().requires_grad_()
    logp, _ = plain.log_probs(scores, case.batch.targets[row])
    (wide,) = torch.autograd.grad(logp, scores, d_logp)
    return largest_error(ours[row], wide), largest_error(theirs[row], wide)
