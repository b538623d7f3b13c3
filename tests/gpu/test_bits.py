"""On a device every operator has the oracle's bits under every schedule, and a row's bits are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu.calls import by_oracle, invocation_of
from gpu.cases import CASES

from rlk.runtime.dispatch import Tensors, model_of
from rlk.testing.bits import assert_same_bits

SCHEDULES = 6
SECONDS = 240
TESTS = Path(__file__).parent.parent


def run_child(name: str, file: Path) -> tuple[Tensors, list[tuple[str, Tensors]]]:
    """Launch a case's kernels for the first time, in a child that may hang or crash alone."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])}
    command = [sys.executable, "-m", "gpu.child", name, str(file)]
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired as hung:
        shown = (hung.stdout or b"").decode() if isinstance(hung.stdout, bytes) else hung.stdout
        pytest.fail(f"{name} did not end within {SECONDS} s; its output:\n{shown}")
    if child.returncode:
        pytest.fail(f"{name} failed with {child.returncode}:\n{child.stdout}\n{child.stderr[-4000:]}")
    found = torch.load(file)
    return found["inputs"], found["outputs"]


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_has_the_bits_of_the_oracle(name: str, tmp_path: Path) -> None:
    inputs, outputs = run_child(name, tmp_path / "found.pt")
    case = CASES[name]
    want = by_oracle(case, inputs, model_of(invocation_of(case), torch.device("cuda", 0)))
    assert len(outputs) >= SCHEDULES, [text for text, _ in outputs]
    for schedule, got in outputs:
        for output, tensor in want.items():
            assert_same_bits(got[output], tensor, f"{output} under {schedule}")
