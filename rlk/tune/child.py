"""A process that measures the shapes it is told on standard input, one JSON line each, and may hang alone."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any, TextIO

import torch

from rlk.runtime.binding.invocation import target_of
from rlk.tune.measure import Report, reports
from rlk.tune.problem import plan, problem
from rlk.tune.shapes import Shape


def serve(jobs: TextIO, answers: TextIO) -> None:
    """Answer each job with its reports and {"done": true}; end with the input, or when a device is lost."""
    for line in jobs:
        job = json.loads(line)
        try:
            for report in _measured(job):
                _say(answers, report)
            torch.cuda.empty_cache()
        except Exception:  # whatever it was, the one who asked decides what is left
            _say(answers, {"failed": traceback.format_exc()[-2000:]})
            return
        _say(answers, {"done": True})


def _measured(job: dict[str, Any]) -> Iterator[Report]:
    """Measure the schedules of a job: names of the shape's plan, the shipped one first."""
    torch.manual_seed(0)
    device = torch.device("cuda", torch.cuda.current_device())
    on = target_of(device)
    assert on is not None
    yield {"at": "the inputs"}
    call = problem(Shape(job["op"], tuple(job["sizes"].items())), "cuda")
    schedules = plan(call, job["backend"], on).schedules
    chosen = {name: schedules[name] for name in job["tried"]}
    yield from reports(call, chosen, job["backend"], on, job["seconds"])


def _say(answers: TextIO, report: Report) -> None:
    answers.write(json.dumps(report) + "\n")
    answers.flush()


def main() -> None:
    """Serve on the original standard output; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
