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
CHILDREN = 8  # at once: they wait for compilers more than for the device
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


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Mapping[str, Any]]]]:
    """Start the children of all tests that were selected, a few at a time."""
    folder = tmp_path_factory.mktemp("gpu")
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [
        i.callspec.params["name"] for i in items if i.module is request.module and hasattr(i, "callspec")
    ]
    pool = ThreadPoolExecutor(CHILDREN)
    yield {name: pool.submit(run_child, name, folder / f"{n}.pt") for n, name in enumerate(names)}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_has_the_bits_of_the_oracle(
    name: str, found: dict[str, Future[Mapping[str, Any]]]
) -> None:
    run = found[name].result()
    asked = len(CASES[name].changes or CHANGES)
    assert len(run["outputs"]) >= min(SCHEDULES, asked), [text for text, _ in run["outputs"]]
    for schedule, got in run["outputs"]:
        for output, want in run["want"].items():
            assert_same_bits(got[output], want, f"{output} under {schedule}")
