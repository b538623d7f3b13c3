"""Bits of a step that must not change when the batch is cut, permuted or packed: the comparison."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlk.demo import plain
from rlk.demo.batch import Case
from rlk.demo.measure import same_bits
from rlk.demo.report import BitsRow
from rlk.demo.step import PerToken, Step, Tokens, grpo, logits_gradient, per_token


def rows(case: Case, whole: Step, seed: int) -> Iterator[BitsRow]:
    """Compare the whole padded batch with single samples, another order, and the packed batch."""
    yield from _alone(case, whole)
    yield from _permuted(case, whole, seed)
    yield from _packed(case, whole)


def plain_rows(case: Case, whole: plain.Terms) -> Iterator[BitsRow]:
    """Make the same comparisons of plain torch: a contrast, nothing that rlk promises."""
    batch = case.batch
    scores, ids = case.logits.float(), batch.targets
    parts = [plain.log_probs(scores[row : row + 1], ids[row : row + 1]) for row in range(len(ids))]
    for name, column in (("logp", 0), ("entropy", 1)):
        got = torch.where(batch.mask, torch.cat([part[column] for part in parts]), 0.0)
        yield same_bits(name, "batch of 1 against all", batch.pack(got), batch.pack(getattr(whole, name)))
    # a packed batch is one of T sequences of one token, each with its sample's advantage
    advantages = batch.advantages[:, None].expand_as(batch.mask)
    ends = (case.old, case.ref, batch.mask)
    old, ref, mask = (batch.pack(tensor)[:, None] for tensor in ends)
    chosen, spread = plain.log_probs(batch.pack(scores), batch.pack(ids))
    packed = plain.objective(chosen[:, None], spread[:, None], old, ref, batch.pack(advantages), mask)
    for name in ("logp", "entropy"):
        want = batch.pack(getattr(whole, name))
        yield same_bits(name, "packed against padded", getattr(packed, name)[:, 0], want)
    yield same_bits("loss", "packed against padded", packed.loss, whole.loss)


def _alone(case: Case, whole: Step) -> Iterator[BitsRow]:
    """Run every sample as a batch of one, without its padding."""
    parts: dict[str, list[Tensor]] = {name: [] for name in (*PerToken._fields, "d_logits")}
    for row, length in enumerate(case.batch.lengths.tolist()):
        one = case.select([row], length)
        tokens = Tokens.padded(one)
        values = per_token(one.logits, tokens)
        for name in PerToken._fields:
            parts[name].append(getattr(values, name)[0])
        # a batch of one averages over fewer tokens, so it is the whole batch's d_logp that is pulled back
        d_logp = whole.d_logp[row : row + 1, :length]
        parts["d_logits"].append(logits_gradient(one.logits, tokens, d_logp)[0])
    for name, pieces in parts.items():
        want = case.batch.pack(getattr(whole, name))
        yield same_bits(name, "batch of 1 against all", torch.cat(pieces), want)


def _permuted(case: Case, whole: Step, seed: int) -> Iterator[BitsRow]:
    """Run the samples in another order; the loss sums in that order, so values per token are compared."""
    order = torch.randperm(len(case.batch.lengths), generator=torch.Generator().manual_seed(seed))
    moved = case.select(order.tolist())
    values = per_token(moved.logits, Tokens.padded(moved))
    for name in PerToken._fields:
        want = getattr(whole, name)[order.to(whole.logp.device)]
        yield same_bits(name, "permuted samples", getattr(values, name), want)


def _packed(case: Case, whole: Step) -> Iterator[BitsRow]:
    """Run the samples end to end without padding; everything must agree, the loss and its gradient too."""
    step = grpo(case.batch.pack(case.logits), Tokens.packed(case))
    for name in (*PerToken._fields, "d_logits"):
        want = case.batch.pack(getattr(whole, name))
        yield same_bits(name, "packed against padded", getattr(step, name), want)
    yield same_bits("loss", "packed against padded", step.loss, whole.loss)
