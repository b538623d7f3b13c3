"""Children of a process that has computed get its bits, however they were started, and none hangs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_have_the_bits_of_their_parent(method: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-m", "process_cases", method, "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    parent, first, second, other = done.stdout.split()
    assert first == second == parent
    assert other not in (parent, "nothing")
