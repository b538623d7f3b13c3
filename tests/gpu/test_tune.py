"""On a device the tuner measures every candidate, and none has other bits than the shipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlk import cli
from rlk.backends import cute
from rlk.runtime.binding.invocation import target_of

GALLERY = Path(__file__).parents[2] / "examples" / "operators"
CALLS = {
    "matmul": ("matmul", "M=300,N=1024,K=512"),
    "linear_logp": ("linear_logp", "N=64,V=8192,D=256"),
    "swiglu": ("swiglu", "T=300,N=1024"),
    "rms_norm_grad": ("rms_norm", "T=300,N=1024"),
    "linear_logp_grad": ("linear_logp", "N=300,V=5120,D=256"),
}


@pytest.mark.parametrize("backend", ["triton", "cute"])
@pytest.mark.parametrize("name", CALLS)
def test_candidates_are_measured_and_have_the_shipped_bits(name: str, backend: str, tmp_path: Path) -> None:
    on = target_of(torch.device("cuda", 0))
    if backend == "cute" and (on is None or on.name not in cute.TARGETS or cute.toolchain() is None):
        pytest.skip("no Hopper, or no cutlass-dsl")
    op, sizes = CALLS[name]
    out = tmp_path / "tune.json"
    argv = ["tune", op, "--shape", sizes, "--backend", backend, "--seconds", "0.01", "--out", str(out)]
    status = cli.main([*argv, "--grad"] if name.endswith("_grad") else argv)
    (row,) = json.loads(out.read_text())["rows"]
    assert status == 0 and "failed" not in row and not row["differing"] and not row["hung"]
    assert row["shipped"]["ms"] > 0 and len(row["cublas"]) == 2 and row["unfinished"] == []
    assert row["tried"] and len(row["tried"]) + len(row["errors"]) == len(row["schedules"]) - 1


def test_an_operator_of_another_package_is_tuned_into_a_users_table(tmp_path: Path) -> None:
    """The package is found as an installed one is: by the entry points of its distribution."""
    site = tmp_path / "gallery_ops-0.dist-info"
    site.mkdir()
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: gallery_ops\nVersion: 0\n")
    (site / "entry_points.txt").write_text("[rlk.operators]\ngallery = gallery_ops\n")
    out, table = tmp_path / "tune.json", tmp_path / "table.toml"
    argv = ["tune", "gallery.layer_norm", "--shape", "T=4096,N=4096", "--seconds", "0.02"]
    found = [str(GALLERY), str(tmp_path), os.environ.get("PYTHONPATH", "")]
    made = subprocess.run(
        [sys.executable, "-m", "rlk.cli", *argv, "--out", str(out), "--write", str(table)],
        capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(found)},
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert "failed" not in row and not row["differing"] and not row["hung"]
    assert row["shipped"]["ms"] > 0 and row["tried"] and row["unfinished"] == []
