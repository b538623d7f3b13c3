"""Children that launch kernels for the first time, where they may hang or crash alone; a few at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rlk.testing.bits import assert_same_bits

TESTS = Path(__file__).parent.parent
Found = Mapping[str, Any]


class Children:
    """Child processes `python -m MODULE CASE FILE`, and the content of their files, by case.

    seconds: after which a child counts as hung. most: children at once. environment: of theirs.
    """

    def __init__(self, folder: Path, module: str, seconds: float, most: int, **environment: str) -> None:
        self.folder, self.module, self.seconds = folder, module, seconds
        path = os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])
        self.environment = {**os.environ, "PYTHONPATH": path, **environment}
        self.pool = ThreadPoolExecutor(most)
        self.started: dict[str, Future[Found]] = {}

    def start(self, name: str) -> Future[Found]:
        """Start a case, if it was not."""
        if name not in self.started:
            file = self.folder / f"{len(self.started)}.pt"
            self.started[name] = self.pool.submit(self.run, name, file)
        return self.started[name]

    def start_selected(self, request: pytest.FixtureRequest) -> None:
        """Start the cases of all tests that were selected; a worker of xdist has only some of them."""
        items = [item for item in request.session.items if isinstance(item, pytest.Function)]
        mine = [i for i in items if i.module is request.module and hasattr(i, "callspec")]
        for item in mine if "PYTEST_XDIST_WORKER" not in os.environ else ():
            self.start(item.callspec.params["name"])

    def run(self, name: str, file: Path) -> Found:
        """Run a case in a child of its own; raise with the end of its output."""
        command = [sys.executable, "-m", self.module, name, str(file)]
        log = file.with_suffix(".log")
        with log.open("w") as said:
            try:
                code = subprocess.run(
                    command, env=self.environment, stdout=said, stderr=said, timeout=self.seconds
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
        if code != 0:
            ended = f"did not end within {self.seconds} s" if code is None else f"ended with {code}"
            raise AssertionError(f"{name} {ended}:\n{log.read_text()[-4000:]}")
        found: Found = torch.load(file)
        return found


@contextmanager
def selected(
    request: pytest.FixtureRequest, folder: Path, module: str, seconds: float, most: int, **environment: str
) -> Iterator[Children]:
    """Start the children of all tests of a module that were selected, and wait for none at the end."""
    found = Children(folder, module, seconds, most, **environment)
    found.start_selected(request)
    yield found
    found.pool.shutdown(cancel_futures=True)


def assert_same_outputs(run: Found) -> None:
    """Compare what a child found under each schedule with what the oracle wants."""
    for schedule, got in run["outputs"]:
        for output, want in run["want"].items():
            assert_same_bits(got[output], want, f"{output} under {schedule}")
