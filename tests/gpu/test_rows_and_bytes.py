"""Tops of rows, rows of any length, bytes and products of 8-bit floats have on a device the oracle's bits."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from test_storage_dtypes import of_8_bits, of_16_bits, whole_bytes
from test_top import SPECS, rows, segments
from test_whole_axes import extremes, normed, rms, scored

from rlk.lang.op import Op
from rlk.testing.bits import assert_same_bits


def same(spec: Op, *given: torch.Tensor) -> Any:
    """Compare each result of a call on the device with the oracle's; return them."""
    made, want = spec(*(x.cuda() for x in given)), spec(*given)
    each = zip(*(([x] if isinstance(x, torch.Tensor) else x) for x in (made, want)), strict=True)
    for i, (got, right) in enumerate(each):
        assert_same_bits(got.cpu(), right, f"result {i} of {spec.name}")
    return made


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_tops(spec: Op) -> None:
    for width in (301, 5000, 3):
        same(spec, torch.from_numpy(rows(width)))


def test_tops_of_segments() -> None:
    begin, end = torch.tensor([0, 90, 90], dtype=torch.int32), torch.tensor([90, 90, 400], dtype=torch.int32)
    same(segments, torch.from_numpy(rows(400)[3]), begin, end)


def test_rows_of_any_length() -> None:
    g = torch.Generator().manual_seed(0)
    for width in (37, 4096, 200_003):
        same(normed, torch.randn(3, width, generator=g))
    n = torch.randint(-100, 100, (5, 3000), generator=g, dtype=torch.int32)
    same(extremes, torch.randn(5, 3000, generator=g), n)
    same(scored, torch.randn(70, 64, generator=g).bfloat16(), torch.randn(1000, 64, generator=g).bfloat16())


def test_gradients_along_rows_of_any_length() -> None:
    g = torch.Generator().manual_seed(0)
    for width in (300, 70_001):
        held = [torch.randn(70, width, generator=g).bfloat16(), torch.randn(width, generator=g).bfloat16()]
        found = []
        for device in ("cpu", "cuda"):
            x, weight = (t.detach().to(device).requires_grad_() for t in held)
            rms(x, weight).float().square().sum().backward()
            found.append((x.grad.cpu(), weight.grad.cpu()))
        for want, got in zip(*found, strict=True):
            assert_same_bits(got, want)


def test_bytes() -> None:
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 7, 512)).astype(np.uint8))
    for dtype in (torch.int8, torch.uint8):
        same(whole_bytes, *codes.view(dtype))


def test_products_of_8_bits() -> None:
    g = torch.Generator().manual_seed(0)
    for m, n, k in ((5, 7, 300), (200, 256, 1024), (64, 4096, 4096)):
        x, w = (torch.randn(rows, k, generator=g) * 4 for rows in (m, n))
        a, b = x.to(torch.float8_e4m3fn), w.to(torch.float8_e5m2)
        made = of_8_bits(a.cuda(), b.cuda())
        assert_same_bits(made.cpu(), of_16_bits(a.half().cuda(), b.half().cuda()).cpu())
        if k < 4096:  # the oracle takes minutes there
            assert_same_bits(made.cpu(), of_8_bits(a, b))


def test_roots_and_random_words() -> None:
    from test_cute_rows import roots_and_words

    x = torch.randn(5, 4096, generator=torch.Generator().manual_seed(0)) * 10
    x[0, :6] = torch.tensor([0.0, -0.0, torch.inf, torch.nan, -1.0, 1e-40])
    same(roots_and_words, x)


def test_the_same_by_cute() -> None:
    pytest.importorskip("cutlass")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not cute"]
    done = subprocess.run(
        command, env=os.environ | {"RLK_BACKEND": "cute"}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "11 passed" in done.stdout, done.stdout + done.stderr
