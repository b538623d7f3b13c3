"""On a device every operator has the oracle's bits under every schedule, and a row's bits are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu.calls import CHANGES
from gpu.cases import CASES

from rlk.testing.bits import assert_same_bits

SCHEDULES = 6
SECONDS = 240
CHILDREN = max(8, min(32, (os.cpu_count() or 1) // 2))  # at once: they wait for compilers, not for the device
TESTS = Path(__file__).parent.parent


def run_child(name: str, file: Path) -> Mapping[str, Any]:
    """Launch a case's kernels for the first time, in a child that may hang or crash alone."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])}
    command = [sys.executable, "-m", "gpu.child", name, str(file)]
    with file.with_suffix(".log").open("w") as log:
        try:
            code = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    if code != 0:
        ended = f"did not end within {SECONDS} s" if code is None else f"ended with {code}"
        raise AssertionError(f"{name} {ended}:\n{file.with_suffix('.log').read_text()[-4000:]}")
    found: Mapping[str, Any] = torch.load(file)
    return found


class Children:
    """The children of tests, a few at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pool = folder, ThreadPoolExecutor(CHILDREN)
        self.started: dict[str, Future[Mapping[str, Any]]] = {}

    def start(self, name: str) -> Future[Mapping[str, Any]]:
        if name not in self.started:
            file = self.folder / f"{len(self.started)}.pt"
            self.started[name] = self.pool.submit(run_child, name, file)
        return self.started[name]


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected; a worker of xdist has only some of them."""
    found = Children(tmp_path_factory.mktemp("gpu"))
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    mine = [i for i in items if i.module is request.module and hasattr(i, "callspec")]
    for item in mine if "PYTEST_XDIST_WORKER" not in os.environ else ():
        found.start(item.callspec.params["name"])
    yield found
    found.pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_has_the_bits_of_the_oracle(name: str, children: Children) -> None:
    run = children.start(name).result()
    asked = len(CASES[name].changes or CHANGES)
    assert len(run["outputs"]) >= min(SCHEDULES, asked), [text for text, _ in run["outputs"]]
    for schedule, got in run["outputs"]:
        for output, want in run["want"].items():
            assert_same_bits(got[output], want, f"{output} under {schedule}")
