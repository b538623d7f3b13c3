"""The demo's report: JSON for programs, markdown and a chart for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RLK, TORCH = "#1f6f8b", "#c97b4a"
CHAIN = "chain.png"


@dataclass(frozen=True, slots=True)
class BitsRow:
    """One comparison of bit patterns: how many values were compared and how many differed."""

    what: str
    against: str
    compared: int
    differing: int


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The largest absolute errors of rlk and of plain torch against float64, for one quantity."""

    what: str
    rlk: float
    torch: float


@dataclass(frozen=True, slots=True)
class CostRow:
    """Time and memory beyond the inputs of one piece of work; memory is None where it cannot be measured."""

    what: str
    rlk_ms: float
    torch_ms: float
    rlk_mib: float | None
    torch_mib: float | None


@dataclass(frozen=True, slots=True)
class ViewRow:
    """The count and the largest difference of a view's log-probs that are not those of sequences alone."""

    view: str
    compared: int
    stock_differing: int
    stock_largest: float
    rlk_differing: int
    rlk_largest: float


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one run of the demo measured."""

    setting: dict[str, str]
    outcome: dict[str, float]
    numerics: dict[str, str]
    chain: tuple[ViewRow, ...]
    bits: tuple[BitsRow, ...]
    contrast: tuple[BitsRow, ...]
    errors: tuple[ErrorRow, ...]
    costs: tuple[CostRow, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def differing(self) -> int:
        """Count the differing values over all comparisons."""
        return sum(row.differing for row in self.bits)


def table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    """Lay out a markdown table whose columns also line up as plain text."""
    cells = [head, *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    lines = ["| " + " | ".join(row) + " |" for row in padded]
    return [lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]]


def _cell(value: Any) -> str:
    match value:
        case None:
            return "not measured"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)


def _bits_table(rows: tuple[BitsRow, ...]) -> list[str]:
    cells = [(row.what, row.against, row.compared, row.differing) for row in rows]
    return table(("what", "against", "values compared", "values differing"), cells)


def markdown(report: Report) -> str:
    """Write the report as markdown; every number in it was measured in this run."""
    errors = [(row.what, row.rlk, row.torch) for row in report.errors]
    costs = [(r.what, r.rlk_ms, r.torch_ms, r.rlk_mib, r.torch_mib) for r in report.costs]
    views = [
        (r.view, r.compared, r.stock_differing, r.stock_largest, r.rlk_differing, r.rlk_largest)
        for r in report.chain
    ]
    parts = [
        ["# rlk demo"],
        table(("setting", "value"), list(report.setting.items())),
        ["## A model's log-probs, against those of sequences run one by one"],
        table(
            (
                "the same tokens run as",
                "log-probs",
                "transformers: differing",
                "by at most",
                "rlk: differing",
                "by at most",
            ),
            views,
        ),
        [f"![differences of log-probs]({CHAIN})"],
        [
            "A trainer runs padded batches, a rollout runs token by token. A log-prob that differs between",
            "them is a policy ratio that is not 1 although the policy is the same.",
        ],
        ["## One GRPO step from logits"],
        table(("quantity", "value"), list(report.outcome.items())),
        ["## Bits"],
        _bits_table(report.bits),
        ["The same comparisons of plain torch, for contrast:"],
        _bits_table(report.contrast),
        ["## Largest absolute error against float64"],
        table(("quantity", "rlk", "plain torch"), errors),
        ["## Time and peak memory beyond the inputs"],
        table(("work", "rlk ms", "torch ms", "rlk MiB", "torch MiB"), costs),
        ["![errors, memory and time](chart.png)"],
        ["## Numerics ids"],
        table(("operator", "numerics_id"), list(report.numerics.items())),
        ["## Notes", "", *(f"- {note}" for note in report.notes)],
        [f"The run took {report.seconds:.0f} s."],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def chart(report: Report, path: Path) -> None:
    """Draw errors, memory and time of rlk beside plain torch as one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    errors = [(row.what, row.rlk, row.torch) for row in report.errors]
    _bars(panels[0], "largest absolute error against float64", errors, log=True)
    memory = [(r.what, r.rlk_mib, r.torch_mib) for r in report.costs if r.rlk_mib is not None]
    _bars(panels[1], "peak memory beyond the inputs, MiB", memory, log=False)
    times = [(row.what, row.rlk_ms, row.torch_ms) for row in report.costs]
    _bars(panels[2], "time, ms", times, log=False)
    compared = sum(row.compared for row in report.bits)
    where = report.setting.get("device", "")
    figure.suptitle(f"rlk demo on {where}: {report.differing:,} of {compared:,} values differ in bits")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in (RLK, TORCH)]
    figure.legend(handles, ["rlk", "plain torch"], loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _bars(panel: Any, title: str, rows: list[tuple[str, Any, Any]], log: bool) -> None:
    panel.set_title(title, fontsize=10)
    if not rows:
        panel.text(0.5, 0.5, "not measured", ha="center", va="center")
        panel.set_axis_off()
        return
    for offset, side, colour in ((-0.2, 1, RLK), (0.2, 2, TORCH)):
        places = [number + offset for number in range(len(rows))]
        bars = panel.barh(places, [row[side] for row in rows], 0.38, color=colour)
        panel.bar_label(bars, [_cell(float(row[side])) for row in rows], padding=3, fontsize=8)
    panel.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.18)
    if log and all(row[1] > 0 and row[2] > 0 for row in rows):
        panel.set_xscale("log")
        panel.set_xlim(left=min(min(row[1:]) for row in rows) / 10)
    panel.spines[["top", "right"]].set_visible(False)


def write(report: Report, folder: Path) -> None:
    """Write report.json, report.md and chart.png into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")
    chart(report, folder / "chart.png")
