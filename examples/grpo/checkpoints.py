"""Checkpoints of a run: the model as `save_pretrained` writes it, the optimizer's state, and the steps made.

A folder `checkpoint` has its name only when it is complete; `checkpoint.old` is the one before it, for the
moment between two renames.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from examples.grpo import arms
from examples.grpo.loop import Run, Step
from examples.grpo.setting import ExampleError, Setting, differences

CURRENT, OLD = "checkpoint", "checkpoint.old"
STATE, MODEL = "state.pt", "model"
PACKAGES = ("torch", "transformers", "rlk")
OF_ENGINES = {"own": (), "vllm": ("vllm",)}


def described(run: Run) -> dict[str, Any]:
    """Return everything that the bits of later steps depend on, beside the state."""
    numerics = getattr(run.trainer.model, "numerics_id", None)
    return {
        **asdict(run.setting),
        "numerics": numerics(run.setting.device) if numerics else None,
        "versions": {name: version(name) for name in (*PACKAGES, *OF_ENGINES[run.setting.engine])},
    }


def save(run: Run, folder: Path) -> Path:
    """Write a checkpoint in place of the one before, and return its folder; raise ExampleError if it cannot.

    The one before stays whole until the new one is.
    """
    part = folder / f"{CURRENT}.part"
    with written(folder):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        run.trainer.model.save_pretrained(part / MODEL)
        state = {
            "run": described(run),
            "steps": [asdict(step) for step in run.steps],
            "optimizer": run.optimizer.state(),
        }
        torch.save(state, part / STATE)
        shutil.rmtree(folder / OLD, ignore_errors=True)
        if (folder / CURRENT).exists():
            os.replace(folder / CURRENT, folder / OLD)
        os.replace(part, folder / CURRENT)
        shutil.rmtree(folder / OLD, ignore_errors=True)
    return folder / CURRENT


def newest(folder: Path) -> Path | None:
    """Return the checkpoint of a run's folder, if it has one."""
    return next((folder / name for name in (CURRENT, OLD) if (folder / name / STATE).exists()), None)


def load(setting: Setting, checkpoint: Path) -> Run:
    """Return a run as a checkpoint has it; raise ExampleError for one of another setting or version."""
    try:
        # names, numbers and tensors alone: nothing in the file is run
        state = torch.load(checkpoint / STATE, map_location=setting.device, weights_only=True)
        found, made, optimizer = state["run"], state["steps"], state["optimizer"]
    except Exception as error:  # torch raises many types for what it cannot read
        why = f"{checkpoint / STATE} cannot be read ({error}); start anew by --overwrite"
        raise ExampleError(why) from None
    asked = differences(found, asdict(setting) | {n: found.get(n) for n in ("numerics", "versions")})
    if not asked:
        run = Run.of(setting, arms.trainer_of(setting, checkpoint / MODEL))
        asked = differences(found, described(run))
    if asked:
        raise ExampleError(
            f"{checkpoint} is of another run: {'; '.join(asked)}. Continue it by the options and versions "
            "that it was started with, or choose another --out"
        )
    run.optimizer.load(optimizer)
    run.steps = [Step(**step) for step in made]
    return run


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """Turn what writing into a folder raises into one message."""
    try:
        yield
    except ExampleError:
        raise
    except Exception as error:  # OSError, torch's RuntimeError, safetensors' own error
        kept = newest(folder)
        left = "; the checkpoint before it is whole: continue from it by --resume" if kept else ""
        raise ExampleError(f"{folder} cannot be written: {error}{left}") from error
