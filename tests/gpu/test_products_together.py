"""Several products in one kernel have on a device the bits of the oracle, by Triton and by CuTe."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from test_several_products import NAMES, case

import rlk
from rlk.testing.bits import assert_same_bits

ROWS = (5, 300)


def tensor(x: Any) -> torch.Tensor:
    """Return an array as a tensor, u16 patterns as bf16."""
    return (
        torch.from_numpy(x.view("int16")).view(torch.bfloat16) if x.dtype == "uint16" else torch.from_numpy(x)
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", NAMES)
def test_their_bits(name: str, rows: int) -> None:
    spec, given, _ = case(name, rows)
    held = {n: tensor(x) for n, x in given.items()}
    there = {n: x.cuda() for n, x in held.items()}
    found = [[r] if isinstance(r := spec(**t), torch.Tensor) else [*r] for t in (there, held)]
    for got, want in zip(*found, strict=True):
        assert_same_bits(got.cpu(), want, name)
    if os.environ.get("RLK_BACKEND") == "cute":
        assert rlk.explain(spec, **there).backends == ("cute",)


def test_the_same_by_cute() -> None:
    pytest.importorskip("cutlass")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::test_their_bits"]
    done = subprocess.run(
        command, env=os.environ | {"RLK_BACKEND": "cute"}, capture_output=True, text=True, timeout=600
    )
    count = len(ROWS) * len(NAMES)
    assert done.returncode == 0 and f"{count} passed" in done.stdout, done.stdout + done.stderr
