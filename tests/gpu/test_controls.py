"""The device does what the numbers rest on: its exp2 is the table, and what rlk forbids does change bits."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.testing.bits import differing

ROWS, WIDTH = 512, 4096


@triton.jit
def unordered_sums(x, y, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row, tl.sum(tl.load(x + row * WIDTH + tl.arange(0, WIDTH)), 0))


@triton.jit
def halving_sums(x, y, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * WIDTH + tl.arange(0, WIDTH))
    for level in tl.static_range(LEVELS):
        v = tl.sum(tl.reshape(v, [2, WIDTH >> (level + 1)]), 0)
    tl.store(y + row, tl.sum(v, 0))


@triton.jit
def products_and_sums(x, y, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    v = tl.load(x + at)
    tl.store(y + at, v * 0.7 + v)


@triton.jit
def powers(x, y, WIDTH: tl.constexpr):
    at = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    tl.store(y + at, tl.exp2(tl.load(x + at)))


def sums(kernel: triton.JITFunction, x: torch.Tensor, warps: int, *static: int) -> torch.Tensor:
    y = torch.full((ROWS,), float("nan"), device="cuda")
    kernel[(ROWS,)](x, y, WIDTH, *static, num_warps=warps, enable_fp_fusion=False)
    return y


def test_an_unordered_sum_changes_with_the_warps_and_a_tree_does_not() -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda")
    assert differing(sums(unordered_sums, x, 1), sums(unordered_sums, x, 8)) > ROWS // 4
    trees = [sums(halving_sums, x, warps, 12) for warps in (1, 2, 4, 8)]
    v = x.cpu().numpy()
    while v.shape[1] > 1:
        v = v[:, : v.shape[1] // 2] + v[:, v.shape[1] // 2 :]
    assert [differing(tree.cpu().numpy(), v[:, 0]) for tree in trees] == [0, 0, 0, 0]


def test_contraction_changes_bits() -> None:
    x = torch.randn(ROWS, WIDTH, device="cuda")
    apart, fused = torch.empty_like(x), torch.empty_like(x)
    products_and_sums[(ROWS,)](x, apart, WIDTH, enable_fp_fusion=False)
    products_and_sums[(ROWS,)](x, fused, WIDTH, enable_fp_fusion=True)
    v = x.cpu().numpy()
    assert differing(apart.cpu().numpy(), v * np.float32(0.7) + v) == 0
    assert differing(apart, fused) > x.numel() // 20


def test_exp2_of_sm90_is_the_table() -> None:
    if torch.version.hip or torch.cuda.get_device_capability() != (9, 0):
        return
    x = torch.empty(ROWS, WIDTH, device="cuda").uniform_(-150.0, 20.0)
    x[0] = torch.linspace(-1.0, 1.0, WIDTH, device="cuda")
    x[1, :4] = torch.tensor([-float("inf"), float("inf"), float("nan"), -0.0], device="cuda")
    y = torch.full_like(x, float("nan"))
    powers[(ROWS,)](x, y, WIDTH, enable_fp_fusion=False)
    assert differing(y.cpu().numpy(), exp2_sm90(x.cpu().numpy())) == 0
