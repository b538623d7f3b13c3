"""The report of a run of grpo_tiny.py: a table for people, JSON for programs, and a chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlk.demo.report import RLK, TORCH, table

HEAD = ("step", "reward", "solved", "KL", "clipped", "entropy", "ratios of 1", "of", "answers")


def row(number: int, step: Any, answers: str) -> tuple[Any, ...]:
    """Return the cells of a step."""
    measured = (step.reward, step.solved, step.kl, step.clipped, step.entropy)
    return (number, *(f"{x:.4f}" for x in measured), step.exact, step.tokens, answers)


def mean_rows(steps: Sequence[Any], answers: Sequence[str], every: int) -> list[tuple[Any, ...]]:
    """Return rows of means over `every` steps each; counts are sums."""
    found = []
    for start in range(0, len(steps), every):
        part = steps[start : start + every]
        mean = {f: sum(getattr(s, f) for s in part) / len(part) for f in part[0]._fields}
        mean |= {f: sum(getattr(s, f) for s in part) for f in ("tokens", "exact")}
        found.append(row(start + len(part), part[0]._replace(**mean), answers[start + len(part) - 1]))
    return found


def write(folder: Path, setting: Mapping[str, str], steps: Sequence[Any], answers: Sequence[str]) -> str:
    """Write report.md, report.json and chart.png, and return the markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"setting": dict(setting), "steps": [step._asdict() for step in steps]}
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = [
        "# GRPO on sorted strings, through rlk", "",
        *table(("setting", "value"), list(setting.items())), "",
        *table(HEAD, mean_rows(steps, answers, max(1, len(steps) // 10))), "",
        "Means over the steps of a row; ratios are counted in on-policy minibatches, the first of each step.",
        "", "![reward, KL and clip fraction](chart.png)",
    ]  # fmt: skip
    text = "\n".join(lines) + "\n"
    (folder / "report.md").write_text(text)
    chart(folder / "chart.png", steps)
    return text


def chart(path: Path, steps: Sequence[Any]) -> None:
    """Draw reward, KL and clip fraction by step as one small PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image  # what matplotlib writes PNGs with

    figure, panels = pyplot.subplots(1, 3, figsize=(10, 2.8), layout="constrained")
    lines = (
        ("reward", (("mean reward", "reward", RLK), ("solved", "solved", TORCH))),
        ("KL of the sampler from the policy", (("k3", "kl", RLK),)),
        ("clipped tokens", (("fraction", "clipped", RLK),)),
    )
    for panel, (title, drawn) in zip(panels, lines, strict=True):
        for label, name, color in drawn:
            panel.plot([getattr(step, name) for step in steps], color=color, linewidth=1, label=label)
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("step", fontsize=8)
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(0, 1)
    panels[0].legend(fontsize=8, frameon=False)
    panels[1].set_yscale("log")
    panels[1].yaxis.set_major_formatter("{x:g}")
    panels[1].yaxis.set_minor_formatter("")
    figure.savefig(path, dpi=64)
    pyplot.close(figure)
    with Image.open(path) as drawing:
        small = drawing.convert("RGB").quantize(16)
    small.save(path, optimize=True)
