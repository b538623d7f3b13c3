"""Constants of peers that no test can run: what slime's corrections make of a ratio, by their formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from rlk import ops

RATIOS = torch.tensor([0.01, 0.4, 0.6, 1.0, 1.9, 2.1, 4.0, 30.0])  # of the trainer's policy to the rollout's
CORRECTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slime/tis": lambda r: r.clamp(0.0, 2.0),
    "slime/icepop": lambda r: torch.where(r <= 2.0, r, 0.0),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_weighs_tokens_by_the_peers_limits(name: str) -> None:
    """One token a sequence: the loss is the mean of -A times the weight, as old and new policies agree."""
    old = torch.full((len(RATIOS),), -1.5)
    rollout = old - RATIOS.log()
    for at in range(len(RATIOS)):
        advantages = torch.zeros(len(RATIOS))
        advantages[at] = 3.0
        layout = ops.Layout.packed(torch.arange(len(RATIOS) + 1, dtype=torch.int32), tokens=len(RATIOS))
        arguments = {"layout": layout, "rollout_logp": rollout, "loss": name, "advantages_of": "sequences"}
        got = ops.policy_loss(old.clone(), old, advantages, **arguments).loss
        want = -3.0 * CORRECTIONS[name](RATIOS)[at] / len(RATIOS)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
