"""A tuning session: shapes handed to child processes; results survive a child that hangs or dies."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Protocol

from rlk.env import inherited
from rlk.schedule.user_table import written
from rlk.tune.measure import Report
from rlk.tune.precompile import Compiled
from rlk.tune.problem import BARE, SHIPPED, Plan
from rlk.tune.shapes import Shape

Row = dict[str, Any]
LAST_WORDS = 1500  # characters of what a child said last
END_S = 20.0  # that a child's end is waited for
SLACK_S = 0.05  # of a clock


class Silent(Exception):
    """A child said nothing for as long as it may."""


class Ended(Exception):
    """A child ended its process; the message holds what it last said."""


class Worker(Protocol):
    """A process that measures a job: a child, or a replacement in tests."""

    def ask(self, job: dict[str, Any]) -> None:
        """Send a job."""

    def next(self, seconds: float) -> Report:
        """Return the next report; raise Silent after so many seconds, Ended where there will be none."""

    def stop(self) -> None:
        """End the process."""


class Child:
    """A process that measures, and a thread that listens to it."""

    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlk.tune.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=inherited({"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}),
        )
        self._said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put(None)

    def ask(self, job: dict[str, Any]) -> None:
        """Send a job."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the next report says how it ended

    def next(self, seconds: float) -> Report:
        """Return the next report; raise Silent after so many seconds, Ended where there will be none."""
        try:
            line = self._said.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise Silent from None
        if line is None:
            status = self._process.wait()
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()[-LAST_WORDS:]
            raise Ended(f"its process ended with status {status}: {said}")
        report: Report = json.loads(line)
        return report

    def stop(self) -> None:
        """End the process: a kernel that waits for ever ends with it."""
        self._process.kill()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass  # the driver still takes its device away


@dataclass(slots=True)
class Session:
    """Measures one shape after the other, in one child while it lives.

    seconds: of each schedule. child_limit_s: how long a child may say nothing. deadline: by time.monotonic,
    when the last report is waited for. start: makes a child.
    """

    backend: str
    seconds: float
    child_limit_s: float
    deadline: float
    start: Callable[[], Worker] = Child
    child: Worker | None = field(default=None, init=False)

    def measure(self, shape: Shape, compiled: Compiled) -> Row:
        """Return the row of a shape: everything that could be measured, and what became of the rest."""
        plan = compiled.plans[shape]
        row = _row(shape, self.backend, plan)
        names = list(plan.schedules)
        row["errors"] = {n: compiled.failed[shape, n][:300] for n in names if (shape, n) in compiled.failed}
        if SHIPPED in row["errors"]:
            row["failed"] = f"{SHIPPED}: {row['errors'][SHIPPED]}"
            return row
        late = [n for n in names if (shape, n) in compiled.unreached]
        left = [n for n in names if n != SHIPPED and n not in row["errors"] and n not in late]
        while True:
            at = self._ask(row, [SHIPPED, *left])
            left = [n for n in left if not _settled(row, n)]
            if at is None or "failed" in row or not left:
                break
        row["unfinished"] = [*left, *late]
        _finish(row)
        return row

    def _ask(self, row: Row, tried: Sequence[str]) -> str | None:
        """Measure what is left of a shape; return what a child was at when it was given up, if it was."""
        child = self.child = self.child or self.start()
        child.ask(
            {
                "op": row["op"],
                "sizes": row["sizes"],
                "backend": self.backend,
                "seconds": self.seconds,
                "tried": list(tried),
            }
        )
        at = "the start"
        try:
            for report in self._reports(child):
                at = report.get("at", at)
                _keep(row, report)
            return None
        except Silent:
            if time.monotonic() >= self.deadline - SLACK_S:
                row["out_of_time"] = True
                self.close()
                return None
            why = f"said nothing for {self.child_limit_s:g} s"
            row["hung"].append(at)
        except Ended as ended:
            why = str(ended)
        self.close()
        if at in tried and at != SHIPPED:
            row["errors"][at] = why
        else:  # nothing can be measured beside it
            row["failed"] = f"{at}: {why}"
        return at

    def _reports(self, child: Worker) -> Iterator[Report]:
        """Yield the reports of a job as they come."""
        while True:
            report = child.next(min(self.child_limit_s, self.deadline - time.monotonic()))
            if "done" in report:
                return
            if "failed" in report:
                raise Ended(report["failed"])
            yield report

    def close(self) -> None:
        """End the child, if there is one."""
        if self.child is not None:
            self.child.stop()
            self.child = None


def _row(shape: Shape, backend: str, plan: Plan) -> Row:
    return {
        "op": shape.op, "sizes": dict(shape.sizes),
        "backend": backend, "sites": {site: asdict(facts) for site, facts in plan.sites.items()},
        "cublas": [], "shipped": None, "tried": {}, "same": list(plan.same), "errors": {},
        "differing": {}, "hung": [], "unfinished": [],
        "schedules": {name: "; ".join(map(str, chosen)) for name, chosen in plan.schedules.items()},
        "entries": {name: "\n".join(map(written, made)) for name, made in plan.entries.items()},
    }  # fmt: skip


def _settled(row: Row, name: str) -> bool:
    return name in row["tried"] or name in row["errors"] or name in row["differing"]


def _keep(row: Row, report: Report) -> None:
    """Put what was found into its row."""
    name = report.get("name")
    if "error" in report:
        row["errors"][name] = report["error"]
        if name == SHIPPED:
            row["failed"] = f"{SHIPPED}: {report['error']}"
    elif "differing" in report:
        row["differing"][name] = report["differing"]
    elif name == BARE:
        row["cublas"].append(report["ms"])
    elif "ms" in report:
        found = {key: report[key] for key in ("ms", "spread", "host_ms")}
        if name == SHIPPED:
            row["shipped"] = found
        else:
            row["tried"][name] = found


def _finish(row: Row) -> None:
    """Say how far cuBLAS moved meanwhile, and order what was tried by its time."""
    row["tried"] = dict(sorted(row["tried"].items(), key=lambda pair: float(pair[1]["ms"])))
    if row["cublas"]:
        row["cublas_ms"] = round(sum(row["cublas"]) / len(row["cublas"]), 5)
        row["drift"] = round(max(row["cublas"]) / min(row["cublas"]) - 1, 4)
