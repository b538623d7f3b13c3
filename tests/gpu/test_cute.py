"""On a Hopper the CuTe lowering has the oracle's bits; first launches are in children that may hang alone."""

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
from gpu.cute_cases import CASES

from rlk.runtime import cute
from rlk.runtime.invocation import target_of
from rlk.testing.bits import assert_same_bits

SECONDS = 150  # a kernel that waits for ever would take the whole sitting
CHILDREN = 12
TESTS = Path(__file__).parent.parent

Found = Mapping[str, Any]


def run_child(name: str, file: Path) -> Found:
    """Run a case in a child of its own; raise with the end of its output."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "RLK_BACKEND": "cute", "RLK_JOBS": "1"}
    with file.with_suffix(".log").open("w") as log:
        try:
            command = [sys.executable, "-m", "gpu.cute_child", name, str(file)]
            code = subprocess.run(
                command, env=environment, stdout=log, stderr=log, timeout=SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    if code != 0:
        ended = f"did not end within {SECONDS} s" if code is None else f"ended with {code}"
        raise AssertionError(f"{name} {ended}:\n{file.with_suffix('.log').read_text()[-4000:]}")
    found: Found = torch.load(file)
    return found


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Found]]]:
    """Start every case, a few at a time."""
    on = target_of(torch.device("cuda", 0))
    if on is None or on.name not in cute.TARGETS or cute.toolchain() is None:
        pytest.skip("no Hopper, or no cutlass-dsl")
    folder = tmp_path_factory.mktemp("cute")
    with ThreadPoolExecutor(CHILDREN) as pool:
        yield {name: pool.submit(run_child, name, folder / f"{i}.pt") for i, name in enumerate(CASES)}


@pytest.mark.parametrize("name", CASES)
def test_cute_has_the_bits_of_the_oracle(name: str, children: Mapping[str, Future[Found]]) -> None:
    run = children[name].result()
    assert run["backend"] == "cute"
    for schedule, got in run["outputs"]:
        for output, want in run["want"].items():
            assert_same_bits(got[output], want, f"{output} under {schedule}")
