"""The search for cliffs draws the same rows each time, goes on where it stopped, and gates on ratios."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import cliffs, harness, shapes
from benchmarks.harness import BEST_PEER, Bar, Case
from benchmarks.rows import label
from benchmarks.shapes import Row
from benchmarks.timing import Ceilings, Launch, Timing

PEER_MS = 1.0


def test_the_models_are_many_and_whole() -> None:
    models = shapes.models()
    assert len({m.source for m in models}) == len(models) >= 40
    assert all(m.heads % m.key_heads == 0 and m.active <= m.experts for m in models)
    assert {m.head_dim for m in models} >= {64, 80, 96, 128, 192, 256}
    assert sum(m.experts > 0 for m in models) >= 8


def test_a_seed_draws_the_same_rows_and_none_twice() -> None:
    first, again, other = (list(islice(shapes.drawn(seed), 1500)) for seed in (0, 0, 1))
    assert first == again and first != other
    names = [row.label for row in (*shapes.fixed(), *first)]
    assert len(set(names)) == len(names)
    assert {row.op for row in first} >= {row.op for row in shapes.fixed()} - {"policy_loss"}


def test_rows_can_be_built_and_called_and_a_wrong_one_is_named() -> None:
    rows = [*shapes.fixed(), *islice(shapes.drawn(3), 24)]
    wrong = Row("matmul", "sideways", {"M": 1, "N": 8, "K": 8}, "nowhere")
    failed = cliffs.dry([*rows, wrong])
    assert failed == ["matmul sideways M=1 N=8 K=8: ValueError: no call for matmul sideways"]


def test_lengths_are_those_of_the_row_alone() -> None:
    row = Row("varlen_attention", "fwd", {"B": 16, "lengths": "1-8191"}, "here")
    lengths = cliffs.lengths_of(row)
    assert lengths == cliffs.lengths_of(replace(row, origin="there")) and len(lengths) == 16
    assert max(lengths) == 8191 and min(lengths) >= 1 and len(set(lengths)) > 8


def test_a_bar_is_read_as_it_was_recorded() -> None:
    for bar in (Bar(0.009), Bar(1.15, BEST_PEER), Bar(1.05, "cublas_gemm")):
        assert Bar.of(str(bar)) == bar
    peers = {"rlk_other": {"ms": 0.1}, "quack": {"ms": 2.0}, "liger": {"ms": 1.0}, "cce": {"absent": "no"}}
    assert Bar(1.15, BEST_PEER).holds(1.15, peers) and not Bar(1.15, BEST_PEER).holds(1.16, peers)
    assert Bar(1.15, BEST_PEER).holds(1.0, {"cce": {"absent": "no"}}) is None


def timed(ms: float) -> Any:
    """Return what builds cases whose time is known, and the names of those it built."""
    built: list[str] = []

    def case_of(row: Row) -> Case:
        built.append(row.label)
        if row.shape.get("M") == 13:
            raise RuntimeError("no form")

        def timer(launch: Launch) -> Timing:
            found = launch()
            return Timing(found, found, (found, found))

        return Case(
            row.op, row.passes, row.shape, lambda: lambda: ms, {"quack": lambda: lambda: PEER_MS}, moved=1e6,
            bar=row.bar, timer=timer, extra=False, notes={"origin": row.origin, **row.options},
        )  # fmt: skip

    return SimpleNamespace(case_of=case_of, built=built)


def test_a_search_goes_on_and_its_gate_fails_where_a_ratio_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=lambda: 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(cliffs, "ceilings", lambda **_: Ceilings(4e12, 7e14))
    rows = [Row("matmul", "fwd", {"M": m, "N": 8, "K": 8}, "a model") for m in (1, 2, 13, 3)]
    file = tmp_path / "h200" / "cliffs.json"

    def search(ms: float, seconds: float, commit: str) -> tuple[list[Any], list[str], list[str]]:
        fake = timed(ms)
        monkeypatch.setattr(cliffs, "case_of", fake.case_of)
        options = Namespace(seconds=seconds, each=0.1, peers=None, commit=commit)
        ticks = iter(range(100))
        found, failed = cliffs.measured(rows, options, file, clock=lambda: next(ticks))
        return found, failed, fake.built

    found, failed, _ = search(1.1, 3, "one")  # the clock moves by one second a row
    assert [row["shape"]["M"] for row in found] == [1, 2] and not failed
    found, failed, built = search(1.1, 50, "one")
    assert [row["shape"]["M"] for row in found] == [1, 2, 3]
    assert built == [rows[2].label, rows[3].label] and failed == [f"{rows[2].label}: RuntimeError: no form"]
    recorded = json.loads(file.read_text())["rows"]
    assert [shapes.recorded(row) for row in recorded] == [rows[0], rows[1], rows[3]]
    assert [row["holds"] for row in recorded] == [True] * 3

    same, _, built = search(1.15, 50, "two")
    assert len(built) == 4 and cliffs.regressions(recorded, same) == []
    slow, _, _ = search(1.5, 50, "three")
    names = [f"{rows[i].label}: 1.50 x the best peer, was 1.10 x" for i in (0, 1, 3)]
    assert cliffs.regressions(recorded, slow) == names
    wrong = [{**same[0], "bits": "mismatch"}]
    assert cliffs.regressions(recorded, wrong) == [f"{rows[0].label}: bits differ from the oracle's"]


def test_the_worst_ratio_is_printed_first() -> None:
    def row(m: int, ms: float, peer: float | None) -> dict[str, Any]:
        peers = {"quack": {"ms": peer} if peer else {"absent": "no"}}
        return {"op": "matmul", "pass": "fwd", "shape": {"M": m}, "ms": ms, "peers": peers, "origin": "x"}

    rows = [row(1, 5.0, None), row(2, 1.0, 2.0), row(3, 3.0, 1.0)]
    assert [r["shape"]["M"] for r in cliffs.worst_first(rows)] == [3, 2, 1]
    lines = cliffs.table(cliffs.worst_first(rows)).splitlines()
    assert [line.split()[0] for line in lines] == ["3.00", "0.50", "-"]
    assert label(rows[2]) in lines[0]
