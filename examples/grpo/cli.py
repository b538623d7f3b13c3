"""The command: options, the runs of arms and seeds, progress, and what a user is told."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from examples.grpo import arms, checkpoints, loop, report, supervised
from examples.grpo.checkpoints import written
from examples.grpo.loop import Run
from examples.grpo.report import Record
from examples.grpo.setting import ARMS, ENGINES, SIZES, ExampleError, Setting
from examples.grpo.vllm_engine import imported_vllm
from rlk.cli.text import natural, positive
from rlk.errors import LaunchError, UnsupportedError

INTERRUPTED = 130  # the shell's status of a command that Ctrl-C ended


@dataclass(frozen=True, slots=True)
class Asked:
    """The runs to make, the folder of all, and what is done about runs that are there already."""

    settings: tuple[Setting, ...]
    out: Path
    resume: bool
    overwrite: bool
    every: int


def parsed(arguments: Sequence[str] | None) -> Asked:
    """Return what the options ask for; exits with a message for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.grpo",
        description="Train a small model by GRPO on puzzles; the rollout's log-probs are the old log-probs.",
    )
    arms_help = "rlk (default): no pass for old log-probs; stock: transformers and torch; both: compare them"
    parser.add_argument("--arm", choices=(*ARMS, "both"), default="rlk", help=arms_help)
    engine_help = "of the rlk arm (own): that of rlk.nn, or vLLM by rlk's plugin"
    parser.add_argument("--engine", choices=ENGINES, default="own", help=engine_help)
    parser.add_argument("--size", choices=tuple(SIZES), help="default: toy on a CPU, real on a GPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is one")
    parser.add_argument("--seed", type=natural, default=0, help="of the first run (0)")
    parser.add_argument("--seeds", type=positive, default=1, help="how many seeds, ascending from --seed (1)")
    parser.add_argument("--steps", type=positive, help="default: that of the size")
    parser.add_argument("--every", type=positive, default=10, help="steps between checkpoints (10)")
    parser.add_argument("--out", type=Path, default=Path("build/grpo"), help="folder of runs (build/grpo)")
    parser.add_argument("--resume", action="store_true", help="continue the runs of --out")
    parser.add_argument("--overwrite", action="store_true", help="replace the runs of --out")
    given = parser.parse_args(arguments)
    if given.resume and given.overwrite:
        parser.error("--resume and --overwrite exclude each other")
    if given.engine != "own" and given.arm == "stock":
        parser.error(f"--engine {given.engine} is of the rlk arm: the stock arm generates by transformers")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here; leave the option out for a run on the CPU")
    size = SIZES[given.size or ("toy" if device == "cpu" else "real")]
    size = replace(size, steps=given.steps or size.steps)
    chosen = ARMS if given.arm == "both" else (given.arm,)
    numbers = range(given.seed, given.seed + given.seeds)
    settings = tuple(
        Setting(arm, size, device, seed, given.engine if arm == "rlk" else "own")
        for seed in numbers
        for arm in chosen
    )
    return Asked(settings, given.out, given.resume, given.overwrite, given.every)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status."""
    asked = parsed(arguments)
    logging.disable_progress_bar()  # transformers' own bars, of loading and writing
    try:
        _prepare(asked)
        with stopping() as stop:
            runs = [run for setting in asked.settings if (run := _run(asked, setting, stop)) is not None]
        if made := [run for run in runs if run.steps]:
            print(f"report: {report.write(asked.out, made)}, {asked.out / report.CURVES}")
        return INTERRUPTED if stop.is_set() else 0
    except (ExampleError, LaunchError, UnsupportedError) as error:
        print(f"grpo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        why = str(error) or "stopped at once; continue from the newest checkpoints by --resume"
        print(f"\ngrpo: {why}", file=sys.stderr)
        return INTERRUPTED


def _prepare(asked: Asked) -> None:
    """Look at what is installed and in the folder before anything runs."""
    if any(setting.engine == "vllm" for setting in asked.settings):
        imported_vllm()
    with written(asked.out):
        asked.out.mkdir(parents=True, exist_ok=True)
    for setting in asked.settings:
        folder = asked.out / setting.name
        if folder.exists() and asked.overwrite:
            with written(folder):
                shutil.rmtree(folder)
        elif checkpoints.newest(folder) is not None and not asked.resume:
            raise ExampleError(
                f"{folder} holds a run: continue it by --resume, replace it by --overwrite, or choose "
                "another --out"
            )


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Let the first Ctrl-C set an event, so that a step is finished; the second one stops at once."""
    stop = threading.Event()

    def first(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


# --- one run ----------------------------------------------------------------------------------------------


def _run(asked: Asked, setting: Setting, stop: threading.Event) -> Record | None:
    """Make or continue a run, and give its memory back; None if it was stopped before it began."""
    if stop.is_set():
        return None
    folder = asked.out / setting.name
    start = checkpoints.newest(folder)
    if start is not None:
        run = checkpoints.load(setting, start)
        print(f"{setting.name}: continues after step {len(run.steps)} of {setting.size.steps}")
    else:
        run = Run.of(setting, arms.trainer_of(setting, _demonstrated(asked, setting, stop)))
    try:
        for _ in _shown(run, loop.steps(run, stop)):
            if len(run.steps) % asked.every == 0 or not run.left or stop.is_set():
                checkpoints.save(run, folder)
    finally:
        run.trainer.engine.close()
    if run.steps and stop.is_set() and run.left:
        print(f"{setting.name}: stopped after step {len(run.steps)}; continue it by --resume")
    return Record.of(run)


def _demonstrated(asked: Asked, setting: Setting, stop: threading.Event) -> Path:
    """Return the checkpoint of the supervised phase, which runs of one seed share."""
    folder = asked.out / f"supervised-seed{setting.seed}"
    wanted = repr((setting.size.shape, setting.size.demonstrations, setting.size.kinds, setting.device))
    mark = folder / "setting.txt"
    if mark.exists() and mark.read_text() == wanted:
        return folder
    total = setting.size.demonstrations.steps
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    with _bar(f"demonstrations, seed {setting.seed}", total) as show:

        def progress(number: int, loss: float) -> None:
            if stop.is_set():
                raise KeyboardInterrupt("stopped in the supervised phase, which begins anew next time")
            show(number, f"loss {loss:.3f}")

        supervised.train(setting, part, progress)
    with written(asked.out):
        (part / mark.name).write_text(wanted)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    return folder


def _shown(run: Run, steps: Iterator[loop.Step]) -> Iterator[loop.Step]:
    """Yield steps, with a line of progress."""
    with _bar(run.setting.name, run.setting.size.steps, len(run.steps)) as show:
        for step in steps:
            said = f"reward {step.reward:.3f}, ratios of 1: {step.exact}/{step.compared}, {step.example}"
            show(len(run.steps), said)
            yield step


@contextmanager
def _bar(name: str, total: int, done: int = 0) -> Iterator[Any]:
    """Give a function that shows progress: a bar on a terminal, else a line for each tenth."""
    from tqdm import tqdm

    with tqdm(total=total, initial=done, desc=name, disable=None, leave=True) as bar:

        def show(number: int, said: str) -> None:
            if not bar.disable:
                bar.set_postfix_str(said, refresh=False)
                bar.update(number - bar.n)
            elif number % max(1, total // 10) == 0 or number == total:
                print(f"{name}: {number} of {total}, {said}", flush=True)

        yield show
