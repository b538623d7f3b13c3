"""Benchmarks judge and show their rows right; the timing itself needs a device."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import bench_tokens, harness, page, report, rows, timing
from benchmarks.dry import shapes_alone
from benchmarks.harness import Bar, Case, Checked, Room, Session, device_slug, line, run_case
from benchmarks.merge import merged
from benchmarks.peers import absent
from benchmarks.timing import Ceilings, Launch, Timing
from rlk.nn import rotary
from rlk.runtime import registry

TIMES = {"ours": 0.5, "slow": 2.0, "fast": 0.4}


@pytest.fixture(autouse=True)
def no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that are made up leave no memory behind: a collection before each takes half a second."""
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=lambda: 0))


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


def test_room_is_memory_or_a_ratio() -> None:
    peers = {"liger": {"extra_mib": 50.0}, "quack": {"absent": "not installed"}}
    assert Room(128.0).holds(128.0, {}) and not Room(128.0).holds(128.1, {})
    assert Room(1.0, "liger").holds(50.0, peers) and not Room(1.0, "liger").holds(50.1, peers)
    assert Room(1.0, "quack").holds(1.0, peers) is None
    assert [str(Room(128.0)), str(Room(1.0, "liger"))] == ["<= 128 MiB", "<= 1 x liger"]


def test_a_row_records_absent_peers_and_measures_the_reference_again() -> None:
    row = run_case(fake_case(Bar(1.2, "liger")), Session(Ceilings(4e12, None), 1.0, None))
    assert row["peers"]["quack"] == {"absent": "no such compiler"}
    assert row["peers"]["liger"]["ms_again"] == 0.4
    assert row["bits"] == "exact" and row["roofline"] == 0.5
    assert row["holds"] is False and row["bar"] == "<= 1.2 x liger"
    assert "MISSES" in line(row)


def test_a_row_records_the_memory_of_every_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "extra_mib", lambda launch: {"ours": 100.0, "slow": 9e3}.get(launch(), 1.0))

    def full() -> Launch:
        raise RuntimeError("CUDA out of memory. Tried to allocate 62.62 GiB")

    case = replace(fake_case(None), extra=True, room=Room(99.0))
    case = replace(case, peers={**case.peers, "torch_eager": full})
    row = run_case(case, Session(Ceilings(4e12, None), 1.0, None))
    assert row["extra_mib"] == 100.0 and row["extra_bar"] == "<= 99 MiB" and row["extra_holds"] is False
    assert row["peers"]["slow"]["extra_mib"] == 9e3
    assert row["peers"]["torch_eager"] == {"absent": "out of memory"}
    assert "100 MiB MISSES" in line(row) and report.cells(row)[-1] == "100 (NO)"
    assert run_case(replace(case, room=Room(100.0)), Session(Ceilings(4e12, None), 1.0, None))["extra_holds"]


def test_rlk_and_its_reference_take_turns_where_the_case_says_so() -> None:
    """One time is of a slow phase of the machine: alone, the reference was measured before it."""
    held: list[list[str]] = []

    def turns(launches: Sequence[Launch]) -> list[Timing]:
        held.append([launch() for launch in launches])
        return [Timing(ms, ms, (ms, ms)) for ms in (0.8, 0.8)]

    case = replace(fake_case(Bar(1.03, "liger")), turns=turns)
    session = Session(Ceilings(4e12, None), 1.0, None)
    row = run_case(case, session)
    assert held == [["ours", "fast"]] and row["holds"] is True and row["ms"] == 0.8
    assert row["peers"]["liger"] == {"ms": 0.8, "burst_ms": 0.8, "spread": [0.8, 0.8]}
    assert list(row["peers"])[0] == "liger" and row["peers"]["slow"]["ms"] == 2.0
    assert run_case(replace(case, turns=None), session)["holds"] is False  # the control: 0.5 beside 0.4
    row = run_case(case, replace(session, wanted=frozenset({"slow"})))
    assert len(held) == 1 and row["ms"] == 0.5 and row["peers"]["liger"] == {"absent": "not asked for"}


def test_turns_go_forth_and_back() -> None:
    order: list[int] = []
    launches = [lambda at=at: order.append(at) for at in range(2)]

    def measured(launch: Launch) -> float:
        launch()
        return float(len(order))

    found = timing._turns(launches, measured)
    assert order == [0, 1, 1, 0] * (timing.TURNS // 2) and timing.TURNS % 2 == 0
    assert sum(found[0]) == sum(found[1])  # what grows with time is the same for both


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
    (tmp_path / "logp.json").write_text(rows.text_of(record))
    assert json.loads(rows.text_of(record)) == record
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


def test_growing_groups_are_drawn_as_curves_that_end_where_memory_does(tmp_path: Path) -> None:
    plot = pytest.importorskip("benchmarks.plot", reason="needs matplotlib")
    session = Session(Ceilings(4e12, None), 1.0, None)
    made = []
    for size in (64, 128, 256):
        row = run_case(replace(fake_case(None), shape={"G": size, "L": 512}), session)
        eager = {"ms": 3.0, "extra_mib": 6e4} if size == 64 else {"absent": "out of memory"}
        row["peers"] = {**row["peers"], "torch_eager": eager}
        made.append({**row, "extra_mib": 650.0})
    record = rows.Record("groups", "NVIDIA H200", {}, tuple(made))
    figure, axes = plot.plt.subplots()
    plot.curves(axes, record.rows, "extra_mib", 1024.0)
    drawn = {drawing.get_label(): list(drawing.get_xdata()) for drawing in axes.get_lines()}
    plot.plt.close(figure)
    assert drawn["torch_eager: out of memory at 128"] == [64]
    assert drawn["rlk triton"] == [64, 128, 256]
    assert plot.grown(record, tmp_path).stat().st_size > 1000


def test_new_rows_take_the_places_of_their_names_and_backends() -> None:
    def record(commit: str, *rows: tuple[str, int, float]) -> dict[str, Any]:
        made = [
            {"op": "logp", "pass": "fwd", "backend": b, "shape": {"N": n, "V": 9}, "ms": ms}
            for b, n, ms in rows
        ]
        return {"device": "d", "versions": {"rlk": commit}, "command": commit, "rows": made}

    old = record("one", ("triton", 1, 1.0), ("triton", 2, 2.0))
    new = [record("two", ("cute", 1, 0.5)), record("two", ("triton", 2, 1.5))]
    found = merged(old, new)
    assert found["command"] == "two" and found["versions"] == {"rlk": "two"}
    rows = [(r["backend"], r["shape"]["N"], r["ms"], r.get("rlk")) for r in found["rows"]]
    assert rows == [("triton", 1, 1.0, "one"), ("triton", 2, 1.5, None), ("cute", 1, 0.5, None)]
    again = merged(found, [record("three", ("cute", 1, 0.4))])
    assert [r.get("rlk") for r in again["rows"]] == ["one", "two", None]


def test_rows_of_compared_engines_are_taken_by_their_engines() -> None:
    def record(commit: str, *rows: tuple[str, float]) -> dict[str, Any]:
        made = [{"op": "drift", "a": "rlk.nn", "b": b, "exact": exact} for b, exact in rows]
        return {"device": "d", "versions": {"rlk": commit}, "command": commit, "rows": made}

    found = merged(record("one", ("x", 0.5), ("y", 0.5)), [record("two", ("y", 1.0))])
    rows = [(r["b"], r["exact"], r.get("rlk")) for r in found["rows"]]
    assert rows == [("x", 0.5, "one"), ("y", 1.0, None)]


def test_backends_of_a_row_are_drawn_in_one_panel() -> None:
    plot = pytest.importorskip("benchmarks.plot", reason="needs matplotlib")
    one = {"op": "logp", "pass": "fwd", "shape": {"N": 1}, "backend": "triton", "ms": 2.0}
    peers = {"liger": {"ms": 3.0}, "quack": {"absent": "no"}, "cce": {"ms": 5.0}}
    rows = [{**one, "peers": peers}, {**one, "backend": "cute", "ms": 1.0, "peers": {"liger": {"ms": 4.0}}}]
    (found,) = plot.joined(rows)
    assert plot.bars(found) == [("rlk cute", 1.0), ("rlk triton", 2.0), ("liger", 4.0), ("cce", 5.0)]


def test_calls_that_are_timed_give_numbers() -> None:
    for name, call in bench_tokens.calls("cpu", bench_tokens.FEW).items():
        assert all(x.isfinite().all() for x in bench_tokens.results(name, call)), name


# --- every row, without a device ---


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Operators that a benchmark registers are no one's afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(registry.others())
    yield
    for name in set(registry.others()) - known:
        registry.unregister(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "gallery_ops"]:
        del sys.modules[name]


FAMILIES = sorted(file.stem for file in Path(harness.__file__).parent.glob("bench_*.py"))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_row_can_be_built_and_called(
    name: str, monkeypatch: pytest.MonkeyPatch, forgotten: None
) -> None:
    """Shapes alone: fake tensors have no memory, and no kernel runs."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    table = SimpleNamespace(rope_table=lambda count, dim, **_: torch.empty(2, count, dim // 2))
    monkeypatch.setattr(rotary, "ops", table)  # numpy makes it, from numbers
    family = importlib.import_module(f"benchmarks.{name}")
    with shapes_alone():
        for case in family.cases():
            case.rlk()()
            if "rlk_unmerged" in case.peers:
                case.peers["rlk_unmerged"]()()


def test_the_performance_page_and_the_table_of_the_readme_are_those_of_the_results() -> None:
    found = list(rows.records())
    assert page.PAGE.read_text("utf-8") == page.page(found)
    readme = page.README.read_text("utf-8")
    assert page.with_headlines(readme, found) == readme
    assert {record.family for record in found} <= set(page.FAMILIES)


def test_a_changed_result_makes_the_page_and_the_readme_stale() -> None:
    found = list(rows.records())
    name = page.HEADLINES[0]
    slower = [
        replace(
            record,
            rows=tuple(
                {**row, "ms": 2 * row["ms"]} if rows.label(row) == name else row for row in record.rows
            ),
        )
        for record in found
    ]
    assert page.page(slower) != page.page(found)
    assert page.headlines(slower) != page.headlines(found)
    assert page.headlines([*found, replace(slower[0], device="another")]) == page.headlines(found)


def test_a_line_of_the_page_compares_times_of_one_run() -> None:
    """The fastest peer is one of any run; rlk's time beside it is of a run that has this peer."""
    shared = {"op": "logp", "pass": "fwd", "shape": {"N": 8}, "roofline": 0.5, "bits": "exact"}
    slow = {**shared, "backend": "triton", "ms": 2.0, "peers": {"quack": {"ms": 1.0}, "liger": {"ms": 4.0}}}
    fast = {**shared, "backend": "cute", "ms": 1.5, "peers": {"liger": {"ms": 3.0}, "cce": {"absent": "no"}}}
    (line,) = page.lines([slow, fast])
    assert line.best is fast and line.peer == page.Beside("quack", 1.0, 2.0)
    (alone,) = page.lines([{**fast, "peers": {}}])
    assert alone.peer is None
