"""The demo's report says what was measured, in all three of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the demo extra is not installed")

from rlk.demo import report

SAMPLE = report.Report(
    setting={"device": "a CPU", "seed": "0"},
    outcome={"loss": -0.0821, "mean entropy": 7.28},
    numerics={"logp": "abc"},
    chain=(report.ViewRow("token by token", 300, 291, 0.0371, 0, 0.0),),
    bits=(
        report.BitsRow("logp, alone and together", "all samples", 270, 0),
        report.BitsRow("d logits", "oracle", 1_000_000, 2),
    ),
    contrast=(report.BitsRow("loss", "packed against padded", 1, 1),),
    errors=(report.ErrorRow("logp", 1e-6, 2e-6), report.ErrorRow("entropy", 3e-6, 4e-6)),
    costs=(
        report.CostRow("forward", 1.5, 2.5, None, None),
        report.CostRow("backward", 10.0, 250.0, 4.0, 3000.0),
    ),
    notes=("first note",),
    seconds=12.3,
)


def test_markdown_holds_every_measured_row() -> None:
    text = report.markdown(SAMPLE)
    for row in (*SAMPLE.bits, *SAMPLE.errors, *SAMPLE.costs):
        assert f"| {row.what} " in text
    assert (
        "| token by token " in text and "| 291 " in text and "![differences of log-probs](chain.png)" in text
    )
    assert "| 1,000,000 " in text and "not measured" in text and "first note" in text


def test_table_columns_line_up() -> None:
    lines = report.table(("a", "b"), [("x", 1), ("longer", 22222)])
    assert len({len(line) for line in lines}) == 1


def test_differences_are_added_up() -> None:
    assert SAMPLE.differing == 2


def test_write_leaves_three_files(tmp_path: Path) -> None:
    report.write(SAMPLE, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["bits"][1]["differing"] == 2
    assert (tmp_path / "out" / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "report.md").is_file()
