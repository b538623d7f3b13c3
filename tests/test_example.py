"""The GRPO example: exact ratios, exact resume, a reward that rises by its rule, and its messages."""

from __future__ import annotations

import gc
import json
import resource
import signal
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
import torch
from grpo_cases import TINY

pytest.importorskip("transformers")

from examples.grpo import arms, checkpoints, cli, loop, report, supervised, task
from examples.grpo.arms import Sample, StockTrainer, Trainer
from examples.grpo.engine import Answer, RlkEngine, StockEngine
from examples.grpo.loop import Run, Step
from examples.grpo.report import Record
from examples.grpo.setting import SIZES, ExampleError, Setting, Shape

LEARNS = replace(
    TINY,
    demonstrations=replace(TINY.demonstrations, steps=200),
    prompts=8,
    group=8,
    micro=32,
    steps=24,
)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a short supervised phase."""
    folder = tmp_path_factory.mktemp("supervised")
    supervised.train(Setting("rlk", TINY), folder, lambda number, loss: None)
    return folder


def made(setting: Setting, start: Path) -> Run:
    return Run.of(setting, arms.trainer_of(setting, start))


def finished(run: Run) -> Run:
    assert len(list(loop.steps(run, Event()))) > 0
    return run


def bits(run: Run) -> list[torch.Tensor]:
    """Return the bits of all weights and of everything that the optimizer keeps."""
    moments = [x for s in run.optimizer.adam.state.values() for x in s.values()]
    wide = [x.detach().float().view(torch.int32).clone() for x in (*run.optimizer.weights, *moments)]
    return [p.detach().view(torch.int16).clone() for p in run.trainer.model.parameters()] + wide


def same(a: Run, b: Run) -> bool:
    """Return whether runs have equal weights, optimizers and steps; seconds aside."""
    steps = [[replace(s, seconds={}) for s in run.steps] for run in (a, b)]
    return steps[0] == steps[1] and all(map(torch.equal, bits(a), bits(b)))


def test_ratios_of_on_policy_minibatches_are_exactly_1(start: Path) -> None:
    run = finished(made(Setting("rlk", replace(TINY, micro=3)), start))
    assert all(step.exact == step.compared > 8 and step.kl == 0.0 for step in run.steps)
    assert any(step.kl_after > 0 for step in run.steps)  # the other minibatch is one update off


@pytest.mark.parametrize(("arm", "passes"), [("rlk", 0), ("stock", TINY.minibatches)])
def test_the_rlk_arm_makes_no_pass_for_old_log_probs(
    arm: Any, passes: int, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the stock arm makes one for each micro-batch, before the updates."""
    run = made(Setting(arm, TINY), start)
    counts: dict[str, int] = dict.fromkeys(loop.PHASES, 0)
    phase = ""

    def counted(*args: Any) -> None:
        counts[phase] += 1

    @contextmanager
    def clock(_: loop.Clock, name: str) -> Iterator[None]:
        nonlocal phase
        phase = name
        yield

    run.trainer.model.register_forward_pre_hook(counted)
    monkeypatch.setattr(loop.Clock, "__call__", clock)
    loop.make_step(run)
    assert counts[loop.OLD] == passes and counts[loop.UPDATE] == TINY.minibatches, counts


class Moved(RlkEngine):
    """An engine whose first log-prob is off by one unit in the last place."""

    def generate(self, *args: Any) -> list[Answer]:
        first, *rest = super().generate(*args)
        logps = first.logps.clone()
        logps[0] = torch.nextafter(logps[0], torch.tensor(-1e9))
        return [Answer(first.ids, logps), *rest]


def test_a_ratio_that_is_not_1_stops_a_run(start: Path) -> None:
    run = made(Setting("rlk", TINY), start)
    run.trainer.engine = Moved(run.trainer.model, 4)
    with pytest.raises(ExampleError, match="step 1: 1 ratios of"):
        finished(run)


def test_an_engine_of_stale_weights_stops_a_run(start: Path) -> None:
    """The control: weights that are not sent after an update are found in the next step."""
    run = made(Setting("rlk", TINY), start)
    run.trainer.engine = RlkEngine(deepcopy(run.trainer.model), 4)
    with pytest.raises(ExampleError, match="step 2: .* are not 1"):
        finished(run)


def test_stock_ratios_are_not_all_1(tmp_path: Path) -> None:
    """The contrast: from some length on, torch's decoding has other bits than its training."""
    shape = Shape(layers=2, hidden=64, inner=128, heads=4, key_heads=2, head_dim=16)
    size = replace(TINY, shape=shape, levels=(5,), micro=8, steps=3)
    setting = Setting("stock", replace(size, demonstrations=replace(TINY.demonstrations, steps=1)))
    supervised.train(setting, tmp_path, lambda number, loss: None)
    run = finished(made(setting, tmp_path))
    assert any(step.exact < step.compared and step.kl > 0 for step in run.steps)


def test_an_answer_depends_on_its_seed_and_not_on_its_batch(start: Path) -> None:
    engine = made(Setting("rlk", TINY), start).trainer.engine
    prompts = [p.prompt_ids for p in task.draw(("sort",), (1, 2), 3, Random(0))]
    together = engine.generate(prompts, [5, 6, 7], 4)
    (alone,) = engine.generate(prompts[1:2], [6], 4)
    assert alone.ids == together[1].ids and torch.equal(alone.logps, together[1].logps)
    others = [engine.generate(prompts[1:2], [seed], 4)[0].ids for seed in (8, 9, 10)]
    assert set(others) != {alone.ids}


def gradient(trainer: Trainer, samples: list[Sample], old: torch.Tensor) -> torch.Tensor:
    trainer.model.zero_grad()
    trainer.backward(samples, old, len(old))
    return torch.cat([p.grad.double().flatten() for _, p in sorted(trainer.model.named_parameters())])


def test_both_arms_have_the_gradient_of_one_loss(start: Path) -> None:
    """Both trainers are given the same samples; ratios of 1, and some beyond the bounds of the clip."""
    ours, stock = (made(Setting(arm, TINY), start).trainer for arm in ("rlk", "stock"))
    puzzles = task.draw(("sort",), (1, 2), 4, Random(1))
    answers = ours.engine.generate([p.prompt_ids for p in puzzles], [1, 2, 3, 4], 4)
    advantages = (1.0, -0.5, 0.3, -1.2)
    samples = [Sample(p.prompt_ids, a, x) for p, a, x in zip(puzzles, answers, advantages, strict=True)]
    old = torch.cat([a.logps for a in answers])
    for shift in (torch.zeros(len(old)), torch.linspace(-0.5, 0.5, len(old))):
        a, b = (gradient(trainer, samples, old + shift) for trainer in (ours, stock))
        assert torch.cosine_similarity(a, b, dim=0) > 0.999
        assert 0.98 < a.norm() / b.norm() < 1.02
    rewards = torch.tensor([1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0])
    torch.testing.assert_close(ours.advantages(rewards, 4), stock.advantages(rewards, 4))


# --- learning: of the stock arm, which is fast on a CPU; the loss of both is one ---------------------------


@dataclass
class Scaled(StockTrainer):
    """A trainer whose advantages are multiplied by a number."""

    scale: float = 1.0

    def advantages(self, rewards: torch.Tensor, group: int) -> torch.Tensor:
        return self.scale * super().advantages(rewards, group)


def test_reward_rises_by_advantages_and_not_without_them_or_against_them(tmp_path: Path) -> None:
    setting = Setting("stock", LEARNS)
    supervised.train(setting, tmp_path, lambda number, loss: None)
    rises = []
    for scale in (1.0, 0.0, -1.0):
        run = made(setting, tmp_path)
        model = run.trainer.model
        run.trainer = Scaled(model, StockEngine(model), scale=scale)
        rewards = [step.reward for step in finished(run).steps]
        rises.append((sum(rewards[-6:]) - sum(rewards[:6])) / 6)
    assert rises[0] > 0.12 and rises[1] < 0.06 and rises[2] < 0.0, rises


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "toy", TINY)


def grpo(out: Path, *options: str) -> int:
    return cli.main(["--device", "cpu", "--size", "toy", "--every", "1", "--out", str(out), *options])


@pytest.mark.parametrize("arm", ["rlk", "stock"])
def test_a_run_that_was_stopped_continues_to_the_bits_of_one_that_was_not(
    arm: Any, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = Setting(arm, TINY)
    assert grpo(tmp_path / "whole", "--arm", arm) == 0
    with monkeypatch.context() as patch:
        patch.setattr(loop, "make_step", interrupted(loop.make_step))
        assert grpo(tmp_path / "cut", "--arm", arm) == cli.INTERRUPTED
    assert "stopped after step 1; continue it by --resume" in capsys.readouterr().out
    assert grpo(tmp_path / "cut", "--arm", arm) == 1
    assert "holds a run: continue it by --resume" in capsys.readouterr().err
    assert grpo(tmp_path / "cut", "--arm", arm, "--resume") == 0
    runs = [checkpoints.load(setting, tmp_path / x / setting.name / "checkpoint") for x in ("whole", "cut")]
    assert len(runs[0].steps) == TINY.steps and same(*runs)
    other = made(Setting(arm, TINY, seed=1), tmp_path / "whole/supervised-seed0")
    assert not same(finished(other), runs[0])  # the control
    rows = json.loads((tmp_path / "cut/report.json").read_text())
    assert len(rows[0]["steps"]) == TINY.steps and (tmp_path / "cut/curves.png").stat().st_size < 100_000


def interrupted(step: Any) -> Any:
    """Return a function that makes a step in whose middle somebody presses Ctrl-C."""

    def make(run: Run) -> Step:
        signal.raise_signal(signal.SIGINT)
        return step(run)

    return make


def test_a_run_is_closed_and_its_model_freed_before_the_next_begins(
    start: Path, tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    closed: list[int] = []

    def trainer_of(setting: Setting, folder: Path) -> Trainer:
        gc.collect()
        assert len(closed) == len(models) and not any(held() for held in models)
        trainer = make(setting, folder)
        models.append(weakref.ref(trainer.model))
        return trainer

    make = arms.trainer_of
    monkeypatch.setattr(arms, "trainer_of", trainer_of)
    monkeypatch.setattr(cli, "_demonstrated", lambda *args: start)
    monkeypatch.setattr(StockEngine, "close", lambda engine: closed.append(1))
    assert grpo(tmp_path, "--arm", "stock", "--seeds", "2", "--steps", "1") == 0
    assert len(models) == len(closed) == 2
    assert len(json.loads((tmp_path / "report.json").read_text())) == 2


def test_a_checkpoint_of_another_run_is_refused(start: Path, tmp_path: Path) -> None:
    run = made(Setting("stock", TINY), start)
    saved = checkpoints.save(run, tmp_path)
    for other, said in (
        (Setting("stock", TINY, seed=1), "seed is 0, not 1"),
        (Setting("rlk", TINY), "arm is stock, not rlk"),
        (Setting("stock", replace(TINY, steps=9, rate=1e-4)), r"size.steps is 2, not 9; size.rate is 0.002"),
    ):
        with pytest.raises(ExampleError, match=said):
            checkpoints.load(other, saved)
    (saved / "state.pt").write_bytes(b"half")
    with pytest.raises(ExampleError, match=r"state.pt cannot be read .* --overwrite"):
        checkpoints.load(run.setting, saved)


@contextmanager
def no_space(most: int) -> Iterator[None]:
    """Let no file grow beyond some bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_checkpoint_before_it(start: Path, tmp_path: Path) -> None:
    run = made(Setting("stock", TINY), start)
    checkpoints.save(run, tmp_path)
    for most in (100, 30_000):  # within the model's weights, and within the state
        with no_space(most), pytest.raises(ExampleError, match="cannot be written: .*--resume"):
            checkpoints.save(run, tmp_path)
    kept = checkpoints.newest(tmp_path)
    assert kept is not None and same(checkpoints.load(run.setting, kept), run)


def test_wrong_options_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--arm", "best"], "invalid choice: 'best'"),
        (["--steps", "0"], "'0' is no whole number of at least 1"),
        (["--resume", "--overwrite"], "exclude each other"),
        (["--arm", "stock", "--engine", "vllm"], "--engine vllm is of the rlk arm"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(options)
        assert said in capsys.readouterr().err


def test_a_missing_engine_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # as where it is not installed
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setattr(cli, "_run", lambda *_: pytest.fail("a run began"))
    assert cli.main(["--engine", "vllm", "--device", "cpu", "--out", str(tmp_path / "runs")]) == 1
    assert "needs vLLM" in capsys.readouterr().err and not (tmp_path / "runs").exists()


# --- puzzles ------------------------------------------------------------------------------------------------


def test_puzzles_have_right_answers_and_rewards_follow_the_rule() -> None:
    puzzle = task.Puzzle(2, "sort cab=", "abc")
    answers = {"abc.": 1.0, "abc": 0.375, "acb.": 0.25, "": 0.0, "_abc.": 0.0, "abc..": 0.5}
    assert {text: puzzle.reward(tuple(task.encode(text))) for text in answers} == answers
    for level in task.LEVELS:
        for each in task.draw(task.KINDS, (level,), 40, Random(level)):
            kind, question = each.prompt.rstrip("=").split(" ")
            right = {
                "add": lambda q: str(sum(map(int, q.split("+")))),
                "subtract": lambda q: str(int(q.split("-")[0]) - int(q.split("-")[1])),
                "reverse": lambda q: "".join(reversed(q)),
                "sort": lambda q: "".join(sorted(q)),
            }[kind](question)
            assert right == each.answer and len(right) < task.longest_answer((level,))
            assert task.decode(tuple(each.prompt_ids)) == f"^{each.prompt}"
            wrong = task.mistaken(each, Random(0))
            assert len(wrong) == len(right) and wrong != right


def test_a_report_compares_arms(start: Path, tmp_path: Path) -> None:
    seconds = dict.fromkeys(loop.PHASES, 1.0)
    step = Step(0.5, 0.25, {"1": [8, 2]}, 1e-9, 1e-3, 1.0, 0.0, 90, 45, 45, "sort ba=ab.", seconds)
    steps = tuple(replace(step, reward=i / 40) for i in range(40))
    runs = [replace(Record.of(made(Setting(arm, TINY), start)), steps=steps) for arm in ("rlk", "stock")]
    text = report.write(tmp_path, runs).read_text()
    assert text.count("sort ba=ab.") == 20 and text.count("1,800") == 4
    assert "rlk: rlk.nn, stock: transformers" in text
    assert (tmp_path / "curves.png").stat().st_size < 100_000
    assert [each["run"]["arm"] for each in json.loads((tmp_path / "report.json").read_text())] == [
        "rlk",
        "stock",
    ]
