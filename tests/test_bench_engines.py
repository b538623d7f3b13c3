"""Rows of `benchmarks.engines`, of lines that its children write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, report
from benchmarks.engine_child import Asked, groups
from benchmarks.engines import ARMS, RANK, TINY, Child, Children, rows, step_row, with_earlier_peers
from benchmarks.merge import merged
from benchmarks.rows import Record

START = {"start_s": 30.0, "warm": False, "runner": 2, "attention": ["FLASH_ATTN"], "lacks": ["flashinfer"]}
AGAIN = {"start_s": 10.0, "warm": True}
COUNTS = {"compared": 24, "max": 0.0}


def lines(rlk_ms: float, differing: int = 0, seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Return what children wrote whose decode steps of a batch of 1 take rlk_ms, those of vLLM 1 ms."""

    def arm(ms: float) -> list[dict[str, Any]]:
        seconds = [1e-3 * TINY.new * ms] * 3
        return [START, {"backend": "triton"}, {"batch": 1, "decode_s": seconds, "prefill_s": seconds}]

    trainer = [
        {"numerics_id": "a1", "sigma": 4.0},
        {"of": "rlk", "batch": 1, **COUNTS, "differing": differing},
        {"of": "vllm", "batch": 1, **COUNTS, "differing": 24},
    ]
    drew = [{"numerics_id": "a1"}, {"batch": 1, "drawn": 24, "s": 0.012, "seed": seed}]
    given = {"rlk": [*arm(rlk_ms), *drew], "vllm": arm(1.0), "vllm_batch_invariant": []}
    return {**given, "trainer": trainer}


def test_a_row_names_an_adapter_and_an_engine_in_its_own_process() -> None:
    plain, adapted, apart = (
        rows(model, lines(1.0), {})[0]
        for model in (TINY, replace(TINY, adapter=RANK), replace(TINY, apart=True))
    )
    assert adapted["shape"] == plain["shape"] | {"LoRA": 16}
    assert apart["shape"] == plain["shape"] | {"in_process": "no"}
    assert len(merged(None, [{"versions": {"rlk": "c"}, "rows": [plain, adapted, apart]}])["rows"]) == 3


FAKE = """
import json, sys
arm, file, broken = sys.argv[1:]
def say(**line):
    with open(file, "a") as out: out.write(json.dumps({"arm": arm, **line}) + "\\n")
say(ready=True)
for line in sys.stdin:
    if line == "end\\n": say(ended=True); break
    if line.strip() == broken: sys.exit(3)
    say(batch=int(line), decode_s=[1.0])
"""


class Fakes(Children):
    """Children that answer at once; vLLM's ends at a batch of 4."""

    def start(self, module: Sequence[str], arm: str, name: str, most: float = inf) -> Child | str:
        command = [sys.executable, "-c", FAKE, arm, str(self.out), "4" if arm == "vllm" else "none"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        return Child(process, name, time.monotonic(), self.limit)


def test_engines_are_timed_in_turns_and_one_that_ends_stops_no_other(tmp_path: Path) -> None:
    file, kept = tmp_path / "lines", []
    fakes = Fakes(file, time.monotonic() + 60, 60, dry=True)
    asked = [Asked("engine", arm, "", str(file), batches=(1, 4)) for arm in ("rlk", "vllm")]
    assert fakes.in_turns(asked, 2, lambda: kept.append(1)) == {"vllm": "ended with status 3"}
    said = [json.loads(line) for line in file.read_text().splitlines()]
    turns = [(x["arm"], x["batch"]) for x in said if "batch" in x]
    assert turns == [("rlk", 1), ("vllm", 1), ("vllm", 1), ("rlk", 1), ("rlk", 4), ("rlk", 4)]
    assert said[-1] == {"arm": "rlk", "ended": True} and kept == [1]


def test_an_interrupt_between_turns_ends_all_engines(tmp_path: Path) -> None:
    made: list[Child] = []

    class Interrupted(Fakes):
        def _answer(self, child: Child, arm: str, name: str, count: int) -> str | None:
            made.append(child)
            if name == "decode_s":
                raise KeyboardInterrupt
            return super()._answer(child, arm, name, count)

    fakes = Interrupted(tmp_path / "lines", time.monotonic() + 60, 60, dry=True)
    asked = [Asked("engine", arm, "", str(fakes.out), batches=(1,)) for arm in ("rlk", "vllm")]
    with pytest.raises(KeyboardInterrupt):
        fakes.in_turns(asked, 1, lambda: None)
    assert [child.process.poll() for child in made[:2]] == [-signal.SIGKILL] * 2


def equality(given: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the row of log-probs."""
    return next(row for row in rows(TINY, given, {}) if row["op"] == "vllm_logps")


@pytest.mark.parametrize(("ms", "holds"), [(1.05, True), (1.06, False)])
def test_a_decode_holds_within_the_time_of_95_percent_of_the_tokens(ms: float, holds: bool) -> None:
    decode = rows(TINY, lines(ms), {ARMS[2]: "did not end in 9 s"})[0]
    assert decode["op"] == "vllm_decode" and decode["ms"] == pytest.approx(ms)
    assert decode["holds"] is holds and decode["peers"][ARMS[2]] == {"absent": "did not end in 9 s"}
    peer = decode["peers"]["vllm"]
    assert (peer["attention"], peer["lacks"]) == (["FLASH_ATTN"], ["flashinfer"])


def test_log_probs_hold_if_none_differs_and_all_controls_do() -> None:
    same, other = (equality(lines(1.0, n)) for n in (0, 1))
    assert (same["bits"], other["bits"]) == ("exact", "mismatch")
    assert (same["holds"], other["holds"]) == (True, False)
    assert other["differing"] == 1 and other["controls"]["vllm"]["differing"] == 24
    assert same["ms"] == 0.5 and same["rate"] == "2000 tokens/s"
    blind, alone, foreign = lines(1.0), lines(1.0), lines(1.0)
    blind["trainer"][-1]["differing"] = 0
    del alone["trainer"][-1]
    foreign["trainer"][0]["numerics_id"] = "b2"
    assert [equality(x)["holds"] for x in (blind, alone, foreign)] == [False, None, False]


def test_log_probs_are_counted_over_runs_of_other_seeds() -> None:
    def record(seed: int, differing: int = 0, numerics_id: str = "a1") -> dict[str, Any]:
        given = lines(1.0, differing, seed)
        for line in (given["trainer"][0], given["rlk"][-2]):
            line["numerics_id"] = numerics_id
        return {"versions": {"rlk": f"c{seed}"}, "rows": [equality(given)]}

    def sums(*records: dict[str, Any]) -> tuple[int, int, bool]:
        (row,) = merged(None, records)["rows"]
        return row["compared"], row["differing"], row["holds"]

    assert sums(record(0), record(1)) == (48, 0, True)
    assert sums(record(0), record(1), record(1)) == (48, 0, True)  # a run is counted once
    assert sums(record(0, 3), record(1)) == (48, 3, False)
    assert sums(record(0, 3), record(1), record(0)) == (48, 0, True)  # it was run again
    assert sums(record(0), record(1, numerics_id="b2")) == (24, 0, True)  # other bits say nothing of these
    both = merged(None, [record(0), record(1)])
    assert [run["rlk"] for run in both["rows"][0]["runs"]] == ["c0", "c1"]
    text = "\n".join(page.section(Record("engines", "x", both["versions"], tuple(both["rows"])), "x"))
    assert "48 log-probs of drawn tokens, of 2 runs" in text and "by rlk: 0 differ" in text


def test_a_start_is_judged_only_if_both_arms_started_again() -> None:
    given = lines(1.0)
    assert rows(TINY, given, {})[-1]["holds"] is None
    given["rlk"].append(AGAIN | {"start_s": 13.0})
    given["vllm"].append(AGAIN)
    start = rows(TINY, given, {})[-1]
    assert start["holds"] is False and start["peers"]["vllm"]["ms"] == 1e4
    assert start["cold_s"]["rlk"] == 30.0
    given["rlk"] = [line for line in given["rlk"] if line is not START]  # it had started before
    start = rows(TINY, given, {})[-1]
    assert start["holds"] is False and start["cold_s"] == {"vllm": 30.0}


def test_peers_of_an_earlier_run_stay_for_equal_engines() -> None:
    both, alone = lines(1.05), lines(1.04)
    alone["vllm"] = []
    old = {"rows": rows(TINY, both, {}), "versions": {"rlk": "1234"}}
    new = rows(TINY, alone, {})
    kept = with_earlier_peers(new, old)[0]
    assert kept["peers"]["vllm"] == new[0]["peers"]["vllm"] | {"earlier_ms": 1.0, "at": "1234"}
    assert kept["holds"] is None  # beside peers of the same run alone
    again = with_earlier_peers(rows(TINY, lines(1.04), {}), old)[0]["peers"]["vllm"]
    assert again["ms"] == 1.0 and "at" not in again
    other = old | {"rows": [row | {"engine": {"runner": 1}} for row in old["rows"]]}
    assert with_earlier_peers(new, other) == new == with_earlier_peers(new, None)


def test_steps_of_grpo_leave_the_first_out() -> None:
    def steps(seconds: float, exact: int) -> list[dict[str, Any]]:
        each = {"phases": {"rollout": seconds}, "tokens": 8, "exact": exact}
        return [START, *({"step": n, "step_s": 100.0 if n == 0 else seconds, **each} for n in range(3))]

    (row,) = step_row(TINY, {"rlk": steps(2.0, 8), "vllm": steps(3.0, 0)}, {})
    assert row["ms"] == 2000 and row["holds"] and row["bits"] == "exact"
    assert row["phases_s"]["vllm"] == {"rollout": 3.0}
    assert row["controls"]["vllm"] == {"differing": 16, "compared": 16}


def test_rows_can_be_shown() -> None:
    row = rows(TINY, lines(1.0), {})[0]
    (line,) = page.lines([row])
    assert "vllm 1.000" in report.cells(row) and page.cells(line, ["triton"], "")


def test_sequences_are_scored_in_groups_of_all_of_them() -> None:
    assert list(groups([30000, 2000, 2000, 40000, 5])) == [[0, 1], [2], [3], [4]]
