"""Casts of storage dtypes, and factors computed from them, have on a device the bits of the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from test_computed_factors import CASES, TILED, tiled, weighed
from test_storage_dtypes import narrowed, numbers, widened

import rlk
from rlk.testing.bits import assert_same_bits

BYTES = torch.arange(7 * 512, dtype=torch.int32).remainder(256).to(torch.uint8).reshape(7, 512)
DTYPES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


def same(made: Any, want: Any) -> None:
    each = zip(*(([x] if isinstance(x, torch.Tensor) else x) for x in (made, want)), strict=True)
    for i, (got, right) in enumerate(each):
        assert_same_bits(got.cpu(), right, f"result {i}")


def test_casts() -> None:
    x = torch.from_numpy(numbers((7, 512)))
    for given in (x, x.bfloat16(), x.half()):
        same(narrowed(given.cuda()), narrowed(given))
    for dtype in DTYPES:
        y = BYTES.view(dtype)
        same(widened(y.cuda(), y.flip(0).cuda()), widened(y, y.flip(0)))


@pytest.mark.parametrize(
    ("test", "count"),
    [("test_casts", 1), ("test_factors_of_one_tile", 10), ("test_bytes_at_any_number_of_rows", 6)],
)
def test_the_same_by_cute(test: str, count: int) -> None:
    pytest.importorskip("cutlass")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{test}"]
    done = subprocess.run(
        command, env=os.environ | {"RLK_BACKEND": "cute"}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and f"{count} passed" in done.stdout, done.stdout + done.stderr


def tensor(x: Any) -> torch.Tensor:
    """Return an array as a tensor, u16 patterns as bf16."""
    return (
        torch.from_numpy(x.view("int16")).view(torch.bfloat16) if x.dtype == "uint16" else torch.from_numpy(x)
    )


@pytest.mark.parametrize("name", [name for name in CASES if name != "grouped"])
def test_computed_factors(name: str) -> None:
    spec, given = CASES[name]
    held = {n: tensor(v) for n, v in given.items()}
    same(spec(**{n: v.cuda() for n, v in held.items()}), spec(**held))


@pytest.mark.parametrize("rows", [5, 70])
@pytest.mark.parametrize("name", [name for name in TILED if name != "grouped"])
def test_factors_of_one_tile(name: str, rows: int) -> None:
    spec, given = tiled(name, rows)
    held = {n: tensor(v) for n, v in given.items()}
    same(spec(**{n: v.cuda() for n, v in held.items()}), spec(**held))


@pytest.mark.parametrize("rows", [1, 8, 16, 32, 64, 4096])
def test_bytes_at_any_number_of_rows(rows: int) -> None:
    """The bits of the plain product of a factor in memory: few rows by warps, many by a kernel before."""
    torch.manual_seed(rows)
    x = torch.randn(rows, 1024, dtype=torch.bfloat16, device="cuda")
    w = torch.randint(-128, 128, (1024, 1024), dtype=torch.int8, device="cuda")
    one = torch.ones(1024, device="cuda")
    assert len(weighed.explain(x, w, one).schedules) == (2 if rows == 4096 else 1)
    same(weighed(x, w, one), rlk.ops.matmul(x, w.bfloat16()).cpu())
