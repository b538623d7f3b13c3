"""The report of runs: curves as a picture, a table for people, JSON for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from examples.grpo.checkpoints import described, written
from examples.grpo.loop import PHASES, ROLLOUT, Run, Step
from examples.grpo.setting import Setting
from rlk.demo.report import RLK, TORCH, table

COLORS = {"rlk": RLK, "stock": TORCH}
CURVES = "curves.png"
PARTS = 10  # rows of a run in the table
PANELS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    ("reward", lambda step: step.reward),
    ("KL of engine and trainer, on-policy", lambda step: step.kl),
    ("entropy, nats", lambda step: step.entropy),
    ("share of ratios that are exactly 1", lambda step: step.share),
    ("tokens drawn per second of rollout", lambda step: step.tokens / step.seconds[ROLLOUT]),
)
HEAD = (
    "steps", "reward", "solved", "KL", "KL, later", "entropy", "clipped", "ratios of 1", "of", "answer"
)  # fmt: skip
FOOT = (
    "KL: mean of r - 1 - log r, r the ratio of the trainer's probability of a token to the engine's, over "
    "the first minibatch of each step, which is on-policy, and the later ones. Ratios of 1 are of the first."
)
CPU_NOTE = (
    "On a CPU rlk's operators run on its oracle, which has the bits of a GPU and is slow: seconds of the two "
    "arms are no comparison of speed here."
)


@dataclass(frozen=True, slots=True)
class Record:
    """The reported part of a run, without its model. described: by `checkpoints.described`."""

    setting: Setting
    described: dict[str, Any]
    parameters: int
    steps: tuple[Step, ...]

    @staticmethod
    def of(run: Run) -> Record:
        """Return the record of the steps that a run has made."""
        count = sum(p.numel() for p in run.trainer.model.parameters())
        return Record(run.setting, described(run), count, tuple(run.steps))


def write(folder: Path, runs: Sequence[Record]) -> Path:
    """Write report.md, report.json and curves.png of runs that made steps, and return the first."""
    with written(folder):
        content = [{"run": run.described, "steps": [asdict(step) for step in run.steps]} for run in runs]
        (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n")
        picture(folder / CURVES, runs)
        (folder / "report.md").write_text(markdown(runs))
    return folder / "report.md"


def markdown(runs: Sequence[Record]) -> str:
    """Return the report for people."""
    lines = ["# GRPO", "", *table(("setting", "value"), _setting(runs)), ""]
    lines += [*table(("run", "steps", "reward: first", "last", "solved: first", "last", "exact ratios", "of"),
                     [_outcome(run) for run in runs]), ""]  # fmt: skip
    lines += ["First and last: means over a tenth of the steps. Seconds of a step, by phase:", ""]
    lines += [*table(("run", *PHASES, "whole"), [_seconds(run) for run in runs]), ""]
    if any(run.setting.device == "cpu" for run in runs):
        lines += [CPU_NOTE, ""]
    lines += [f"![curves]({CURVES})", ""]
    for run in runs:
        lines += [f"## {run.setting.name}", "", *table(HEAD, _rows(run)), "", *_levels(run), ""]
    lines += [FOOT]
    return "\n".join(lines) + "\n"


def _setting(runs: Sequence[Record]) -> list[tuple[str, Any]]:
    setting, size = runs[0].setting, runs[0].setting.size
    cuda = setting.device != "cpu"
    name = torch.cuda.get_device_name() if cuda else f"a CPU ({platform.machine()})"
    versions = {name: version for run in runs for name, version in run.described["versions"].items()}
    engines = {f"{run.setting.arm}: {_engine(run.setting)}": None for run in runs}
    count = runs[0].parameters
    return [
        ("device", name),
        ("versions", ", ".join(f"{n} {v}" for n, v in versions.items())),
        ("engine", ", ".join(engines)),
        ("model", f"Qwen3, {count} parameters, layers {size.shape.layers}, hidden {size.shape.hidden}, bf16"),
        ("puzzles", f"{', '.join(size.kinds)}; levels {', '.join(map(str, size.levels))}"),
        ("step", f"{size.prompts} puzzles, {size.group} answers each, {size.minibatches} optimizer steps"),
        ("demonstrations", f"{size.demonstrations.mistakes:.0%} with a mistake"),
    ]


def _engine(setting: Setting) -> str:
    if setting.arm == "stock":
        return "transformers"
    return "vLLM by rlk" if setting.engine == "vllm" else "rlk.nn"


def _parts(steps: Sequence[Step], count: int) -> list[Sequence[Step]]:
    each = max(1, len(steps) // count)
    return [steps[at : at + each] for at in range(0, len(steps), each)]


def _mean(steps: Sequence[Step], of: Callable[[Step], float]) -> float:
    return sum(map(of, steps)) / len(steps)


def _outcome(run: Record) -> tuple[Any, ...]:
    tenth = max(1, len(run.steps) // 10)
    first, last = run.steps[:tenth], run.steps[-tenth:]
    found = [f"{_mean(part, of):.3f}" for of in (PANELS[0][1], _solved) for part in (first, last)]
    exact, compared = sum(s.exact for s in run.steps), sum(s.compared for s in run.steps)
    return (run.setting.name, len(run.steps), *found, exact, compared)


def _solved(step: Step) -> float:
    return step.solved


def _seconds(run: Record) -> tuple[Any, ...]:
    phases = [_mean(run.steps, lambda s, p=phase: s.seconds[p]) for phase in PHASES]  # type: ignore[misc]
    return (run.setting.name, *(f"{x:.3f}" for x in (*phases, sum(phases))))


def _rows(run: Record) -> list[tuple[Any, ...]]:
    rows, done = [], 0
    for part in _parts(run.steps, PARTS):
        done += len(part)
        means = [_mean(part, of) for of in (PANELS[0][1], _solved)]
        exact, compared = sum(s.exact for s in part), sum(s.compared for s in part)
        small = [_mean(part, of) for of in (lambda s: s.kl, lambda s: s.kl_after)]
        rest = [_mean(part, of) for of in (lambda s: s.entropy, lambda s: s.clipped)]
        cells = (*(f"{x:.3f}" for x in means), *(f"{x:.1e}" if x else "0" for x in small))
        rows.append((done, *cells, *(f"{x:.3f}" for x in rest), exact, compared, part[-1].example))
    return rows


def _levels(run: Record) -> list[str]:
    """Return the share of right answers by level, of the first and the last tenth."""
    tenth = max(1, len(run.steps) // 10)
    parts = (run.steps[:tenth], run.steps[-tenth:])
    rows = []
    for level in map(str, run.setting.size.levels):
        counts = [[sum(s.levels.get(level, (0, 0))[i] for s in part) for i in (0, 1)] for part in parts]
        rows.append((level, *(f"{right / drawn:.3f}" if drawn else "none drawn" for drawn, right in counts)))
    return table(("level", "solved: first", "last"), rows)


def picture(path: Path, runs: Sequence[Record]) -> None:
    """Draw the curves of runs: a line for each, one color for an arm."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
    from PIL import Image  # with which matplotlib writes PNGs

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 6.4), layout="constrained")
    panels = axes.reshape(-1)
    arms = list(dict.fromkeys(run.setting.arm for run in runs))
    for panel, (title, of) in zip(panels, PANELS):
        _lines(panel, title, runs, of)
    panels[0].set_ylim(0, 1.02)
    panels[3].set_ylim(-0.02, 1.05)
    panels[1].set_yscale("symlog", linthresh=1e-10)
    panels[1].set_ylim(bottom=-2e-11)
    panels[4].set_yscale("log")
    for which in (panels[4].yaxis.set_major_formatter, panels[4].yaxis.set_minor_formatter):
        which(ticker.LogFormatter(labelOnlyBase=False))
    _phases(panels[5], arms, runs)
    handles = [pyplot.Line2D([], [], color=COLORS[arm], label=arm) for arm in arms]
    panels[0].legend(handles=handles, fontsize=9, frameon=False, loc="lower right")
    for panel in panels:
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    with Image.open(path) as drawing:
        small = drawing.convert("RGB").quantize(32)  # a third of the bytes
    small.save(path, optimize=True)


def _lines(panel: Any, title: str, runs: Sequence[Record], of: Callable[[Step], float]) -> None:
    for run in runs:
        values = [of(step) for step in run.steps]
        at = range(1, len(values) + 1)
        panel.plot(at, values, color=COLORS[run.setting.arm], linewidth=1.2, alpha=0.9)
    panel.set_title(title, fontsize=10)
    panel.set_xlabel("step", fontsize=8)
    panel.xaxis.get_major_locator().set_params(integer=True)


def _phases(panel: Any, arms: Sequence[str], runs: Sequence[Record]) -> None:
    """Draw the mean seconds of a step by phase, one bar for an arm."""
    shades = (1.0, 0.3, 0.6)
    for place, arm in enumerate(arms):
        steps = [step for run in runs if run.setting.arm == arm for step in run.steps]
        left = 0.0
        for phase, shade in zip(PHASES, shades, strict=True):
            seconds = _mean(steps, lambda s, p=phase: s.seconds[p])  # type: ignore[misc]
            panel.barh(place, seconds, 0.5, left=left, color=COLORS[arm], alpha=shade)
            left += seconds
        panel.text(left, place, f" {left:.2f} s", va="center", fontsize=8)
    panel.set_yticks(range(len(arms)), arms)
    panel.invert_yaxis()
    panel.margins(x=0.2)
    panel.set_title("seconds of a step", fontsize=10)
    names = [
        panel.barh(0, 0, color="black", alpha=shade, label=phase)
        for phase, shade in zip(PHASES, shades, strict=True)
    ]
    below = (0.5, -0.3)
    panel.legend(handles=names, fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=below, ncols=3)
