"""Benchmarks judge and show their rows right; the timing itself needs a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report, rows
from benchmarks.harness import Bar, Case, Checked, Session, device_slug, line, run_case
from benchmarks.peers import absent
from benchmarks.timing import Ceilings, Launch, Timing

TIMES = {"ours": 0.5, "slow": 2.0, "fast": 0.4}


def fake_case(bar: Bar | None) -> Case:
    def build(name: str) -> Launch:
        return lambda: name

    def timer(launch: Launch) -> Timing:
        ms = TIMES[launch()]
        return Timing(ms, 0.9 * ms, (ms, ms))

    return Case(
        op="logp",
        passes="fwd",
        shape={"N": 4, "V": 8},
        rlk=lambda: build("ours"),
        peers={
            "slow": lambda: build("slow"),
            "liger": lambda: build("fast"),
            "quack": absent("no such compiler"),
        },
        moved=1e9,
        bar=bar,
        reference="liger",
        check=lambda: Checked(1e-6, 0),
        describe=lambda: {"tier": "exact"},
        timer=timer,
        extra=False,
    )


def test_a_bar_is_a_time_or_a_ratio() -> None:
    peers = {"cublas_gemm": {"ms": 10.0}, "quack": {"absent": "not installed"}}
    assert Bar(0.58).holds(0.58, {}) and not Bar(0.58).holds(0.5801, {})
    assert Bar(1.08, "cublas_gemm").holds(10.8, peers) and not Bar(1.08, "cublas_gemm").holds(10.81, peers)
    assert Bar(1.0, "quack").holds(1.0, peers) is None
    assert [str(Bar(0.58)), str(Bar(1.08, "cublas_gemm"))] == ["<= 0.58 ms", "<= 1.08 x cublas_gemm"]


def test_a_row_records_absent_peers_and_measures_the_reference_again() -> None:
    row = run_case(fake_case(Bar(1.2, "liger")), Session(Ceilings(4e12, None), 1.0, None))
    assert row["peers"]["quack"] == {"absent": "no such compiler"}
    assert row["peers"]["liger"]["ms_again"] == 0.4
    assert row["bits"] == "exact" and row["roofline"] == 0.5
    assert row["holds"] is False and row["bar"] == "<= 1.2 x liger"
    assert "MISSES" in line(row)


def test_peers_that_were_not_asked_for_are_recorded() -> None:
    row = run_case(fake_case(None), Session(Ceilings(4e12, None), 1.0, frozenset({"liger"})))
    assert row["peers"]["slow"] == {"absent": "not asked for"} and "ms" in row["peers"]["liger"]


@pytest.mark.parametrize(
    ("name", "slug"),
    [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("AMD Instinct MI300X", "mi300x")],
)
def test_a_device_has_a_short_name(name: str, slug: str) -> None:
    assert device_slug(name) == slug


def test_the_report_fails_when_a_bar_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = run_case(fake_case(Bar(0.1)), Session(Ceilings(4e12, None), 1.0, None))
    record = {"device": "NVIDIA H200", "versions": {"torch": "2"}, "rows": [row]}
    (tmp_path / "logp.json").write_text(json.dumps(record))
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])
    with pytest.raises(SystemExit, match="misses its bar: logp fwd N=4 V=8"):
        report.main()
    shown = capsys.readouterr().out
    assert "no quack (no such compiler)" in shown and "liger 0.400" in shown and "1.25" in shown


def test_figures_are_drawn(tmp_path: Path) -> None:
    plot = pytest.importorskip("benchmarks.plot", reason="needs matplotlib")
    row = run_case(fake_case(None), Session(Ceilings(4e12, None), 1.0, None))
    record = rows.Record("logp", "NVIDIA H200", {}, (row,))
    assert plot.figure(record, record.rows, tmp_path).stat().st_size > 1000
