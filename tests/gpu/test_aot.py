"""Kernels of a wheel on a device: the bits of those that are compiled here, with no compiler and no cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlk.testing.bits import assert_same_bits

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = """
[[model]]
name = "tiny"
hidden = 512
vocab = 4096
intermediate = 1024
heads = 8
kv_heads = 2
head_dim = 64

[[call]]
op = "linear_logp"
rows = [999]
options = [{}, { needs = ["logp", "entropy"] }]
backward = true

[[call]]
op = "logp"
rows = [999]
backward = true

[[call]]
op = "rms_norm"
rows = [999]
backward = true

[[call]]
op = "swiglu"
rows = [999]
backward = true

[[call]]
op = "varlen_attention"
rows = [999]
"""
STEP = """
import sys
if sys.argv[2] == "no compiler":
    sys.modules["triton"] = sys.modules["cutlass"] = None
import torch
import rlk
from rlk import ops

torch.manual_seed(0)
bf16 = dict(dtype=torch.bfloat16, device="cuda")
rows = 777
h, w = torch.randn(rows, 512, **bf16), torch.randn(4096, 512, **bf16) / 16
ids = torch.randint(0, 4096, (rows,), device="cuda")
z, x, up = torch.randn(rows, 4096, **bf16), torch.randn(rows, 512, **bf16), torch.randn(rows, 1024, **bf16)
q, k = torch.randn(rows, 8, 64, **bf16), torch.randn(rows, 2, 64, **bf16)
edges = torch.tensor([0, 300, rows], dtype=torch.int32, device="cuda")


def of(fn, *inputs):
    leaves = [t.detach().requires_grad_() for t in inputs]
    made = fn(*leaves)
    torch.manual_seed(1)
    return [made.detach(), *torch.autograd.grad(made, leaves, torch.randn_like(made))]


def entropy(h, w):
    made = ops.linear_logp(h, w, ids, needs=("logp", "entropy"))
    return made.logp


found = [
    *of(lambda h, w: ops.linear_logp(h, w, ids).logp, h, w),
    *of(entropy, h, w),
    *of(lambda z: ops.logp(z, ids).logp, z),
    *of(ops.rms_norm, x, torch.ones(512, **bf16)),
    *of(ops.swiglu, up, up.flip(0).contiguous()),
    *ops.varlen_attention(q, k, k.flip(0).contiguous(), edges, edges),
]
torch.save([t.cpu() for t in found], sys.argv[1])
print(rlk.explain(ops.linear_logp, h, w, ids).source)
"""

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="a wheel for sm_90a"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and install a wheel, in a process that sees no device."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("aot")
    (folder / "matrix.toml").write_text(TABLE)
    command = [sys.executable, "-m", "rlk.cli", "aot", "build", "matrix.toml", "--target", "sm_90a"]
    variables = {"CUDA_VISIBLE_DEVICES": "", "RLK_CACHE_DIR": str(folder / "store")}
    run(command, folder, PYTHONPATH=str(REPOSITORY), **variables)
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        "site",
    ]
    run([*install, *map(str, (folder / "dist").glob("*.whl"))], folder)
    return folder / "site"


def run(command: list[str], folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def stepped(folder: Path, how: str, *places: Path, **variables: str) -> tuple[list[torch.Tensor], str]:
    path = os.pathsep.join([*map(str, places), str(REPOSITORY)])
    command = [sys.executable, "-c", STEP, str(folder / "out.pt"), how]
    said = run(command, folder, PYTHONPATH=path, RLK_CACHE_DIR=str(folder / "store"), **variables)
    return torch.load(folder / "out.pt"), said.strip().splitlines()[-1]


def test_a_wheel_has_the_bits_of_kernels_that_are_compiled_here(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    one, two = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("compiled")
    shipped, source = stepped(one, "no compiler", site)
    assert source.startswith("rlk_aot_sm90a_triton ")
    assert not list((one / "store").rglob("manifest.json"))
    compiled, source = stepped(two, "compiler", RLK_AOT="0")
    assert source == "cache" and len(shipped) == len(compiled)
    for index, (got, want) in enumerate(zip(shipped, compiled, strict=True)):
        assert_same_bits(got, want, str(index))


def test_without_the_wheel_nothing_runs(site: Path, tmp_path: Path) -> None:
    """The control: the first test compiled nothing behind anybody's back."""
    with pytest.raises(AssertionError, match="or a wheel of kernels for sm_90a"):
        stepped(tmp_path, "no compiler", site, RLK_AOT="0")
