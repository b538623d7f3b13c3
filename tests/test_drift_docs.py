"""The guide "Is my rollout on-policy?" as it is shown: commands with output, Python, the measured page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from benchmarks import drift
from rlk.cli import main
from rlk.drift.faults import FAULTS
from rlk.drift.recorded import Recorded

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs/on-policy.md").read_text(encoding="utf-8")


def blocks() -> list[list[tuple[str, list[str]]]]:
    """Return the commands of each block of the guide, and the lines of output that are shown."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL):
        parts = [part.splitlines() for part in re.split(r"^\$ rlk ", block, flags=re.MULTILINE)[1:]]
        found.append([(command, lines) for command, *lines in parts])
    return found


def shows(shown: list[str], printed: str) -> bool:
    """Return whether an output has the shown lines in their order; "..." stands for anything."""
    pattern = ".*".join(re.escape(part) for part in "\n".join(shown).split("..."))
    return re.search(pattern, printed, re.DOTALL) is not None


@pytest.mark.parametrize("block", blocks(), ids=lambda block: block[0][0])
def test_the_commands_of_the_guide_print_what_is_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    block: list[tuple[str, list[str]]],
) -> None:
    monkeypatch.chdir(tmp_path)
    for command, shown in block:
        same = "no difference" in shown[-1]
        assert main(command.split()) == (0 if same else 1)
        printed = capsys.readouterr().out
        assert shows(shown, printed), printed
        assert not shows([*shown[:-1], "result: another"], printed)


def test_the_python_of_the_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs: list[Any] = []
    own, record, any_engine, monitor = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    exec(compile(own, "own.py", "exec"), {})
    assert "result: model.layers.0.self_attn.attention" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no sequence"):
        exec(compile(record, "record.py", "exec"), {"outputs": outputs})
    exec(compile(any_engine, "any_engine.py", "exec"), {})
    assert Recorded("mine.safetensors").sequences.lists() == [[1, 5, 7], [3, 8]]
    exec(compile(monitor, "monitor.py", "exec"), {})
    assert json.loads(capsys.readouterr().out)["tokens_above"][0]["id"] == 8


def test_the_generated_page_and_the_chart_are_those_of_the_results() -> None:
    record = json.loads(drift.FILE.read_text(encoding="utf-8"))
    assert drift.PAGE.read_text(encoding="utf-8") == drift.page(record)
    assert drift.CHART.read_text(encoding="utf-8") == drift.chart(record["rows"])
    rows = {row["op"]: row for row in record["rows"]}
    assert all(row["holds"] for row in record["rows"])
    assert rows["faults"]["located"] == rows["faults"]["faults"] == len(FAULTS) >= 40
    assert rows["clean"]["false_alarms"] == 0
    worse = json.loads(json.dumps(record).replace('"located": true', '"located": false'))
    assert drift.page(worse) != drift.page(record)
