"""compute-sanitizer finds nothing in attention over ragged lengths, page edges and empty sequences."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from gpu.children import TESTS
from gpu.sanitized import CASES

FOUND = 9  # how the sanitizer ends where it found something
SANITIZER = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")


@pytest.mark.parametrize("name", CASES)
def test_no_access_is_out_of_bounds(name: str) -> None:
    if SANITIZER is None:
        pytest.skip("needs compute-sanitizer of the CUDA toolkit")
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])
    # an allocation for each tensor: in a pool what lies beyond one is another's
    environment = {**os.environ, "PYTHONPATH": path, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # calls into the driver that fail are the callers': rlk and the CuTe DSL ask what there is by such calls
    tool = [SANITIZER, "--tool", "memcheck", "--report-api-errors", "no", f"--error-exitcode={FOUND}"]
    command = [*tool, sys.executable, "-m"]
    done = subprocess.run(
        [*command, "gpu.sanitized", name], env=environment, capture_output=True, text=True, timeout=300
    )
    wanted = FOUND if name == "reads_beyond" else 0
    assert done.returncode == wanted, (done.stdout + done.stderr)[-4000:]
