"""Fixtures of tests of wheels of kernels: a small matrix, and its wheels, built and installed as users do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TABLE = """
[[model]]
name = "tiny"
hidden = 256
vocab = 1024
intermediate = 512
heads = 4
kv_heads = 2
head_dim = 64

[[call]]
op = "swiglu"
rows = [8191]
backward = true
"""
CONFIG = {
    "model_type": "qwen3", "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "torch_dtype": "bfloat16",
}  # fmt: skip


def built(folder: Path, *options: str, on: str = "sm_90a", **variables: str) -> Path:
    """Build a wheel in a folder that is made for it, with a store of its own."""
    folder.mkdir()
    (folder / "matrix.toml").write_text(TABLE)
    place = {"PYTHONPATH": str(REPOSITORY), "RLK_CACHE_DIR": str(folder / "store")}
    command = [sys.executable, "-m", "rlk.cli", "aot", "build", "matrix.toml", "--target", on, *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **place, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    assert wheel.name in done.stdout and "2/2" in done.stderr
    return wheel


def installed(wheel: Path, place: Path) -> Path:
    """Install a wheel alone into a folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(place), str(wheel)], check=True)
    return place
