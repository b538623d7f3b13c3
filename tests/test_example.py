"""The example learns by its rule and not without it, repeats to the bit, and its ratios are exactly 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpo_tiny
import pytest
import torch
from grpo_report import write
from grpo_task import Task

pytest.importorskip("transformers")
SHORT = grpo_tiny.Setting(task=Task(3, 2, 2), prompts=4, group=8, minibatches=2, steps=2)
LEARNS = replace(SHORT, group=16, minibatches=1, steps=24)
MARGIN, PART = 0.15, 4


def trained(setting: grpo_tiny.Setting) -> tuple[list[grpo_tiny.Step], list[torch.Tensor]]:
    """Return the steps of a run and the bits that it ends with."""
    model = grpo_tiny.make_model(setting)
    steps = [step for step, _ in grpo_tiny.train(setting, model)]
    return steps, [p.detach().view(torch.int32).clone() for p in model.parameters()]


def rise(setting: grpo_tiny.Setting) -> float:
    """Return by how much the mean reward of the last steps is above that of the first."""
    rewards = [step.reward for step, _ in grpo_tiny.train(setting)]
    return (sum(rewards[-PART:]) - sum(rewards[:PART])) / PART


def test_ratios_of_on_policy_minibatches_are_exactly_1() -> None:
    steps, _ = trained(SHORT)
    assert all(step.exact == step.tokens > 60 for step in steps)
    assert all(step.kl > 0 for step in steps)  # the other minibatch is one step off


def test_ratios_are_not_1_where_the_model_reads_other_shapes() -> None:
    """The control: torch's products of other shapes have other bits, and nothing here hides it."""
    steps, _ = trained(replace(SHORT, rollout="growing"))
    assert any(step.exact < step.tokens for step in steps)


def test_a_ratio_that_is_not_1_stops_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    roll_out = grpo_tiny.roll_out

    def moved(*args: object) -> grpo_tiny.Rollout:
        made = roll_out(*args)
        place = tuple(made.drawn[:, 1:].nonzero()[0])
        made.old_logp[place] = torch.nextafter(made.old_logp[place], torch.tensor(-1e9))
        return made

    monkeypatch.setattr(grpo_tiny, "roll_out", moved)
    with pytest.raises(RuntimeError, match="step 1: 1 ratios of"):
        trained(SHORT)


def test_a_run_repeats_to_the_bit() -> None:
    (steps, weights), (again, same) = trained(SHORT), trained(SHORT)
    assert steps == again and all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    _, other = trained(replace(SHORT, seed=1))
    assert not all(torch.equal(a, b) for a, b in zip(weights, other, strict=True))


@pytest.mark.slow
def test_reward_rises() -> None:
    assert rise(LEARNS) > MARGIN


def test_what_was_drawn_stays_in_its_support_when_the_policy_moves() -> None:
    """With thresholds of scores instead of ids, this KL becomes infinite."""
    steps, _ = trained(replace(SHORT, min_p=0.3, steps=4, rate=2e-2))
    assert all(0 < step.kl < float("inf") for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_reward_does_not_rise_without_advantages_or_against_them(scale: float) -> None:
    assert rise(replace(LEARNS, scale=scale)) < MARGIN / 3


def test_rewards_are_shares_of_the_right_answer() -> None:
    task = Task(5, 2, 4)
    assert task.reward("dba", "abd.") == 1.0
    assert task.reward("dba", "abd_") == 0.75 and task.reward("dba", "dba.") == 0.5
    assert task.reward("dba", "") == 0.0 and task.reward("dba", "_abd.") == 0.0
    prompts = task.prompts(50, torch.Generator().manual_seed(0))
    ids, lengths = task.rows(prompts)
    assert {len(p) for p in prompts} == {2, 3, 4}
    for prompt, row, length in zip(prompts, ids.tolist(), lengths.tolist(), strict=True):
        assert task.decode(row).rstrip("_") == f"^{prompt}>" and length == len(prompt) + 2


def test_a_report_has_every_step_and_a_small_chart(tmp_path: Path) -> None:
    step = grpo_tiny.Step(0.5, 0.25, 0.01, 0.02, 1.0, 0.1, 90, 90)
    steps = [step._replace(reward=i / 40, kl=0.0 if i == 3 else 0.01) for i in range(40)]
    text = write(tmp_path, grpo_tiny.described(SHORT, 1.0), steps, ["ab."] * 40)
    assert text.count("\n| ") == 1 + 8 + 1 + 10 and "| 360 " in text  # four steps a row
    assert (tmp_path / "chart.png").stat().st_size < 40_000
    assert (tmp_path / "report.json").read_text().count('"exact": 90') == 40
