"""The loop: draw puzzles, answer, reward, update; a record of each step."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import torch

from examples.grpo import task
from examples.grpo.arms import Measured, Sample, Trainer
from examples.grpo.optimizer import MasterAdamW
from examples.grpo.setting import ExampleError, Setting

ROLLOUT, OLD, UPDATE = "rollout", "old log-probs", "update"
PHASES = (ROLLOUT, OLD, UPDATE)


@dataclass(frozen=True, slots=True)
class Step:
    """Measurements of a step.

    reward: mean over samples. solved: share of right answers. levels: samples and right answers by level. kl:
    mean of r - 1 - log r over tokens, r the ratio of the trainer's probability to the engine's, in the first
    minibatch, which is on-policy, and (kl_after) in the later ones. tokens: drawn. compared, exact: tokens of
    the first minibatch, and those whose log-prob has the engine's bits, which is a ratio of 1. example: an
    answer of the step. seconds: by phase.
    """

    reward: float
    solved: float
    levels: dict[str, list[int]]
    kl: float
    kl_after: float
    entropy: float
    clipped: float
    tokens: int
    compared: int
    exact: int
    example: str
    seconds: dict[str, float]

    @property
    def share(self) -> float:
        """Return the share of exact ratios."""
        return self.exact / self.compared


@dataclass(slots=True, eq=False)
class Run:
    """A run between two steps."""

    setting: Setting
    trainer: Trainer
    optimizer: MasterAdamW
    steps: list[Step] = field(default_factory=list)

    @staticmethod
    def of(setting: Setting, trainer: Trainer) -> Run:
        """Return a run that has made no step."""
        size = setting.size
        return Run(setting, trainer, MasterAdamW(trainer.model, size.rate, size.steps * size.minibatches))

    @property
    def left(self) -> int:
        """Return how many steps are to be made."""
        return self.setting.size.steps - len(self.steps)


@dataclass(slots=True, eq=False)
class Clock:
    """Seconds by phase; on a GPU a phase ends when its work has."""

    device: str
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self.device != "cpu":
            torch.cuda.synchronize()
        self.seconds[phase] += time.perf_counter() - begin


def steps(run: Run, stop: threading.Event) -> Iterator[Step]:
    """Make the steps that are left, or those until `stop` is set; raise ExampleError for an inexact ratio."""
    while run.left and not stop.is_set():
        step = make_step(run)
        run.steps.append(step)
        yield step


def make_step(run: Run) -> Step:
    """Make one step. It depends on the weights, the optimizer, the seed and the step's number alone."""
    setting, size, number = run.setting, run.setting.size, len(run.steps)
    clock = Clock(setting.device)
    puzzles = [
        puzzle
        for puzzle in task.draw(size.kinds, size.levels, size.prompts, Random(f"{setting.seed} {number}"))
        for _ in range(size.group)
    ]
    with clock(ROLLOUT):
        seeds = [(setting.seed << 40) + number * size.samples + i for i in range(size.samples)]
        most = task.longest_answer(size.levels)
        answers = run.trainer.engine.generate([p.prompt_ids for p in puzzles], seeds, most)
    rewards = torch.tensor([p.reward(a.ids) for p, a in zip(puzzles, answers, strict=True)])
    advantages = run.trainer.advantages(rewards.to(setting.device), size.group).tolist()
    samples = [
        Sample(p.prompt_ids, answer, advantage)
        for p, answer, advantage in zip(puzzles, answers, advantages, strict=True)
    ]
    with clock(OLD):
        parts = [
            [(each, run.trainer.old_logps(each)) for each in _cut(minibatch, size.micro)]
            for minibatch in _cut(samples, size.samples // size.minibatches)
        ]
    with clock(UPDATE):
        measured = [_update(run, minibatch) for minibatch in parts]
    engine = [torch.cat([s.answer.logps for each, _ in minibatch for s in each]) for minibatch in parts]
    step = _summary(puzzles, samples, rewards, measured, engine, clock.seconds)
    if run.trainer.exact and step.exact != step.compared:
        raise ExampleError(
            f"step {number + 1}: {step.compared - step.exact} ratios of {step.compared} are not 1, although "
            "the samples are on-policy: the engine's log-probs are not the trainer's"
        )
    return step


def _cut(samples: list[Sample], count: int) -> list[list[Sample]]:
    return [samples[at : at + count] for at in range(0, len(samples), count)]


def _update(run: Run, minibatch: list[tuple[list[Sample], torch.Tensor]]) -> Measured:
    """Take one optimizer step, and return what its forward passes measured."""
    tokens = sum(len(old) for _, old in minibatch)
    made = []
    for samples, old in minibatch:
        made.append(run.trainer.backward(samples, old, tokens))
        run.optimizer.accumulate()
    run.optimizer.step()
    run.trainer.engine.update(run.trainer.model)
    return Measured(
        torch.cat([m.logps for m in made]),
        torch.cat([m.entropy for m in made]),
        torch.stack([m.clipped for m in made]).sum(),
    )


def _summary(
    puzzles: list[task.Puzzle],
    samples: list[Sample],
    rewards: torch.Tensor,
    measured: list[Measured],
    engine: list[torch.Tensor],
    seconds: dict[str, float],
) -> Step:
    right = [reward == 1.0 for reward in rewards.tolist()]
    levels: dict[str, list[int]] = {}
    for puzzle, solved in zip(puzzles, right, strict=True):
        found = levels.setdefault(str(puzzle.level), [0, 0])
        found[0] += 1
        found[1] += solved
    tokens = sum(len(logps) for logps in engine)
    first, *later = (m.logps.double() - old.double() for m, old in zip(measured, engine, strict=True))
    return Step(
        reward=float(rewards.mean()),
        solved=sum(right) / len(right),
        levels=levels,
        kl=_k3(first),
        kl_after=_k3(torch.cat(later)) if later else 0.0,
        entropy=float(torch.cat([m.entropy for m in measured]).mean()),
        clipped=float(sum(m.clipped for m in measured)) / tokens,
        tokens=tokens,
        compared=len(first),
        exact=int((measured[0].logps.view(torch.int32) == engine[0].view(torch.int32)).sum()),
        example=puzzles[0].prompt + task.decode(samples[0].answer.ids),
        seconds=seconds,
    )


def _k3(log_ratio: torch.Tensor) -> float:
    return float((log_ratio.expm1() - log_ratio).mean())
