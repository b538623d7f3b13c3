"""A wheel of CuTe kernels: repeatable, served without the compiler, and with nothing of NVIDIA's inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from aot_cases import REPOSITORY, built, installed

pytestmark = [
    pytest.mark.cutlass,
    pytest.mark.skipif(torch.cuda.is_available(), reason="would launch with made-up addresses"),
]

CALL = """
import json, sys
sys.modules["cutlass"] = sys.modules["triton"] = None
import torch
from rlk.errors import LaunchError
from rlk.ops import swiglu
from rlk.backends import binaries
from rlk.runtime.call import dispatch
from rlk.runtime.binding.selection import invoke
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.launch.launcher import Services
from rlk.target.facts import target

on = target("sm_90a")
x = torch.randn(40, 512, dtype=torch.bfloat16)
tensors = {"gate": x, "up": x}
invocation = invoke(swiglu.specs[0], tensors, {}, {}, None)
call = (invocation, on.softmax, geometry_of(invocation, tensors), tensors, on)
binaries.services = lambda: Services(lambda device: 0, lambda: 0, lambda device: None)
found = dispatch.ship(*call, dispatch.serving(on)).found
run = dispatch.bind_lowered(*call, torch.device("cpu", 0))
try:
    run(tensors, {})
except LaunchError as error:
    said = str(error)
print(json.dumps([found.form.backend, found.kernel.wheel.label, said]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("aot") / "one", "--backend", "cute")


def test_two_builds_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert built(tmp_path / "another place", "--backend", "cute").read_bytes() == wheel.read_bytes()


def test_the_runtime_is_required_and_not_contained(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
        data = b"".join(archive.read(name) for name in names)
    assert "Requires-Dist: nvidia-cutlass-dsl>=4.7,<4.9" in metadata
    kinds = {Path(name).suffix for name in names if "/entries/" in name}
    assert kinds == {".py", ".json", ".so"}
    assert str(wheel.parents[1]).encode() not in data and str(REPOSITORY).encode() not in data


@pytest.mark.parametrize("backend", ["", "cute"])
def test_a_kernel_is_served_up_to_the_driver_without_the_compiler(
    backend: str, wheel: Path, tmp_path: Path
) -> None:
    """Also where nobody asks for CuTe: nothing else can be had, and the numbers are the same."""
    site = installed(wheel, tmp_path / "site")
    paths = os.pathsep.join([str(site), str(REPOSITORY)])
    variables = {"PYTHONPATH": paths, "RLK_CACHE_DIR": str(tmp_path / "store"), "RLK_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", CALL], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    served, label, said = json.loads(done.stdout)
    assert served == "cute" and label.startswith("rlk_aot_sm90a_cute ")
    assert "cudaErrorInsufficientDriver" in said
