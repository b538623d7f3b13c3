"""Laws of log-probs of completions: sums, means, tails, layouts, and the weights that are made of them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rlk import Layout, ops
from rlk.errors import LaunchError
from rlk.testing.bits import as_bits, assert_same_bits, differing

LENGTHS = torch.tensor([700, 0, 1400, 3, 650])
WIDTH = 1500
VALID = torch.arange(WIDTH) < LENGTHS[:, None]
SHARED = torch.tensor([300, 5, 1100, 9, 0])


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logp = -0.2 * torch.rand(5, WIDTH, generator=generator)
    return logp, torch.rand(5, WIDTH, generator=generator) < 0.7


@pytest.mark.parametrize("tail", [None, 0.3])
@pytest.mark.parametrize("over", ["sum", "mean", "probability"])
def test_a_log_prob_of_sequences_is_its_formula_with_its_gradient(over: Any, tail: float | None) -> None:
    """LD-DPO: `logps = shared_logps + ld_alpha * tail_logps` over active tokens (TRL's DPOTrainer)."""
    logp, mask = drawn()
    layout = Layout.padded(LENGTHS, WIDTH, mask=mask)
    leaf, wide = logp.clone().requires_grad_(), logp.double().requires_grad_()
    options: dict[str, Any] = {} if tail is None else {"shared": SHARED, "tail": tail}
    made = ops.sequence_logp(leaf, layout=layout, over=over, **options)
    active = mask & VALID
    place = active.cumsum(1)
    behind = place > SHARED[:, None] if tail is not None else place < 0
    factor = torch.ones(5, WIDTH, dtype=torch.float64).masked_fill(behind, tail or 1.0)
    want = torch.where(active, factor * wide, 0.0).sum(1)
    want = want if over == "sum" else want / active.sum(1).clamp(min=1)
    want = want.exp() if over == "probability" else want
    torch.testing.assert_close(made.double(), want, rtol=2e-6, atol=1e-7)
    weights = torch.arange(1.0, 6.0)
    (made * weights).sum().backward()
    (want * weights).sum().backward()
    assert leaf.grad is not None and wide.grad is not None
    torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=2e-6, atol=1e-9)
    exact = ops.sequence_logp.reference(logp, layout=layout, over=over, **options)
    torch.testing.assert_close(exact, want.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tail", [None, 0.3])
def test_padding_changes_no_bit(tail: float | None) -> None:
    logp, mask = drawn(1)
    options: dict[str, Any] = {} if tail is None else {"shared": SHARED, "tail": tail}
    padded = Layout.padded(LENGTHS, WIDTH, mask=mask)
    edges = torch.cat((LENGTHS[:1] * 0, LENGTHS.cumsum(0)))
    packed = Layout.packed(edges, mask=mask[VALID])
    one, two = logp.clone().requires_grad_(), logp[VALID].clone()
    two[~packed.active] = math.nan
    two.requires_grad_()
    found = [ops.sequence_logp(x, layout=at, **options) for x, at in ((one, padded), (two, packed))]
    assert_same_bits(*found)
    for made in found:
        made.sum().backward()
    assert one.grad is not None and two.grad is not None
    assert_same_bits(one.grad[padded.active], two.grad[packed.active])
    assert (as_bits(two.grad[~packed.active]) == 0).all()


def test_another_order_of_the_tokens_has_other_bits() -> None:
    """The control: the same tokens of a sequence, the last first."""
    logp, _ = drawn(2)
    row, layout = logp[2], Layout.packed(torch.tensor([0, WIDTH]), tokens=WIDTH)
    assert differing(ops.sequence_logp(row, layout=layout), ops.sequence_logp(row.flip(0), layout=layout))


def test_a_tail_says_where_it_begins() -> None:
    row, layout = torch.zeros(4), Layout.packed(torch.tensor([0, 4]), tokens=4)
    for given in ({"tail": 0.5}, {"shared": torch.tensor([2])}):
        with pytest.raises(LaunchError, match="shared|tail"):
            ops.sequence_logp(row, layout=layout, **given)  # type: ignore[arg-type]
