"""The patched Triton interpreter computes a device's bits, and the unpatched one does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from rlk.interp.ex2_sm90 import exp2_sm90  # noqa: E402
from rlk.interp.scalar import fma, maximum  # noqa: E402
from rlk.lower.triton.module import installed  # noqa: E402
from rlk.testing.bits import as_bits, assert_same_bits  # noqa: E402
from rlk.testing.simulators import interpreter_versions  # noqa: E402
from rlk.testing.simulators.interpreter import (  # noqa: E402
    Interpreted,
    InterpreterFault,
    NotModelled,
    OutOfBounds,
    interpret,
)

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def fma(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@triton.jit
def product_and_sum(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * tl.load(y + i) + tl.load(z + i))


@triton.jit
def to_bf16(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.bfloat16))


@triton.jit
def from_bf16(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.float32))


@triton.jit
def sum_of_two(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    pair = tl.load(x + i[:, None] + N * tl.arange(0, 2)[None, :])
    tl.store(out + i, tl.sum(pair, 1))


@triton.jit
def halving_sum(x, out, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, N))
    for k in tl.static_range(6):
        v = tl.sum(tl.reshape(v, (2, N >> (k + 1))), 0)
    tl.store(out, tl.max(v, 0))


@triton.jit
def one_sum(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def maximum(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.maximum(tl.load(x + i), tl.load(y + i)))


@triton.jit
def minimum(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.minimum(tl.load(x + i), tl.load(y + i)))


@triton.jit
def row_max(x, out, N: tl.constexpr):
    tl.store(out, tl.max(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def row_argmax(x, out, N: tl.constexpr):
    tl.store(out, tl.argmax(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def exp2(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.exp2(tl.load(x + i)))


@triton.jit
def divide_and_root(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    tl.store(out + i, tl.div_rn(a, tl.load(y + i)) + tl.sqrt_rn(tl.abs(tl.floor(a))))


@triton.jit
def umulhi(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i).to(tl.uint32, bitcast=True)
    tl.store(out + i, tl.umulhi(a, tl.load(y + i).to(tl.uint32, bitcast=True)).to(tl.int32, bitcast=True))


@triton.jit
def to_int(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.int32))


@triton.jit
def merge(m, s, n, t):
    top = tl.maximum(m, n)
    return top, s * tl.exp2(m - top) + t * tl.exp2(n - top)


@triton.jit
def merge_pairs(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * 2 + tl.arange(0, 2)[None, :]
    m, s = tl.reduce((tl.load(x + i), tl.load(y + i)), 1, merge)
    tl.store(out + tl.arange(0, N), s)
    tl.store(out + N + tl.arange(0, N), m)


@triton.jit
def shifts(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    u = v.to(tl.uint32, bitcast=True)
    tl.store(out + i, (v >> 3) ^ (u >> 5).to(tl.int32, bitcast=True) ^ (v << 2))


@triton.jit
def strided_rows(x, out, rows, columns, scale, B: tl.constexpr):
    for r in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        i = tl.arange(0, B)
        v = tl.load(x + r.to(tl.int64) * columns + i, mask=i < columns, other=-0.0)
        tl.store(out + r * columns + i, v * scale, mask=i < columns)


@triton.jit
def forgotten_mask(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i), mask=i < n)


@triton.jit
def undefined_lanes(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n))


@triton.jit
def fast_divide(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) / 3.0)
"""

f32 = np.float32
RNG = np.random.default_rng(7)
WIDE = (RNG.standard_normal(512) * np.exp2(RNG.integers(-30, 30, 512))).astype(f32)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 65504.0], f32)
X = np.concatenate([WIDE[:248], SPECIAL])
Y = np.concatenate([WIDE[256:504], SPECIAL[::-1]])
Z = np.concatenate([-(X[:248] * Y[:248]), SPECIAL[[1, 0, 4, 2, 3, 6, 7, 5]]])
A, B = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return interpret(SOURCE)


def run(kernel: Interpreted, *inputs: Any, like: Any = None, **constants: Any) -> torch.Tensor:
    like = inputs[0] if like is None else like
    tensors = [torch.from_numpy(np.array(x)) if isinstance(x, np.ndarray) else x for x in inputs]
    out = torch.zeros_like(torch.from_numpy(np.array(like)) if isinstance(like, np.ndarray) else like)
    kernel[(1,)](*tensors, out, N=constants.pop("N", len(tensors[0])), **constants)
    return out


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Patterns that Triton's own interpreter computes for the same kernels."""
    folder = tmp_path_factory.mktemp("unpatched")
    (folder / "kernels.py").write_text(SOURCE)
    np.savez(folder / "inputs.npz", X=X, Y=Y, Z=Z, A=A, B=B)
    (folder / "control.py").write_text(CONTROL)
    env = dict(os.environ, TRITON_INTERPRET="1")
    done = subprocess.run(
        [sys.executable, "control.py"], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


CONTROL = """
import json
import numpy as np, torch
import kernels as k

d = {n: torch.from_numpy(v) for n, v in np.load("inputs.npz").items()}
results = {}
def control(name, kernel, *inputs, out, **more):
    with np.errstate(all="ignore"):
        kernel[(1,)](*inputs, out, N=more.pop("N", len(inputs[0])))
    kind = {4: torch.int32, 2: torch.int16}[out.element_size()]
    results[name] = [v & (2 ** (8 * out.element_size()) - 1) for v in out.view(kind).tolist()]
like = torch.zeros_like
control("fma", k.fma, d["X"], d["Y"], d["Z"], out=like(d["X"]))
control("to_bf16", k.to_bf16, d["X"], out=like(d["X"]).bfloat16())
control("maximum", k.maximum, d["A"], d["B"], out=like(d["A"]))
control("exp2", k.exp2, d["X"] / 16, out=like(d["X"]))
control("sum_of_two", k.sum_of_two, torch.full((8,), -0.0), out=torch.zeros(4), N=4)
control("row_max", k.row_max, torch.tensor([0.0, -0.0, -1.0, float("nan")]), out=torch.zeros(1))
print(json.dumps(results))
"""


def control_differs(got: torch.Tensor, unpatched: dict[str, list[int]], name: str) -> bool:
    kind = {2: "bf16", 4: "f32"}[got.element_size()]
    theirs = np.array(unpatched[name], np.uint16 if kind == "bf16" else np.uint32)
    return bool((as_bits(got).ravel() != as_bits(theirs, kind)).any())


def test_fma_rounds_once(kernels: ModuleType, unpatched: dict[str, list[int]]) -> None:
    got = run(kernels.fma, X, Y, Z)
    with np.errstate(all="ignore"):
        assert_same_bits(got, fma(X, Y, Z))
        # The residual of a product is what only a fused multiply-add sees.
        exact = (X[:248].astype(np.float64) * Y[:248]) + Z[:248].astype(np.float64)
        assert_same_bits(got[:248], exact.astype(f32))
    # Triton's own fma is one since 3.9.
    assert control_differs(got, unpatched, "fma") == (installed() < (3, 9))


def test_a_product_next_to_a_sum_is_not_fused(kernels: ModuleType) -> None:
    with np.errstate(all="ignore"):
        assert_same_bits(run(kernels.product_and_sum, X, Y, Z), (X * Y).astype(f32) + Z)


def test_bf16_rounds_to_nearest_even(kernels: ModuleType, unpatched: dict[str, list[int]]) -> None:
    ties = (np.arange(0x3F7F8000, 0x3F7F8000 + 256 * 0x8000, 0x8000, dtype=np.int64)).astype(np.uint32)
    for x in (X, ties.view(f32), -ties.view(f32), np.array([3.4e38, -3.4e38, 1e-45, 1e-40], f32)):
        got = run(kernels.to_bf16, x, like=torch.zeros(len(x), dtype=torch.bfloat16))
        assert_same_bits(got, torch.from_numpy(x).bfloat16())
    got = run(kernels.to_bf16, X, like=torch.zeros(len(X), dtype=torch.bfloat16))
    assert control_differs(got, unpatched, "to_bf16")


def test_every_bf16_pattern_widens_exactly(kernels: ModuleType) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    assert_same_bits(run(kernels.from_bf16, every, like=torch.zeros(2**16)), every.float())


def test_a_sum_of_two_negative_zeros_keeps_its_sign(
    kernels: ModuleType, unpatched: dict[str, list[int]]
) -> None:
    x = np.full(8, -0.0, f32)
    got = run(kernels.sum_of_two, x, N=4)[:4]
    assert_same_bits(got, np.full(4, -0.0, f32))
    # NumPy's sum starts from -0.0 or from 0.0 depending on its version.
    assert control_differs(got, unpatched, "sum_of_two") == (np.signbit(np.sum(x[:2])) == np.False_)


def test_two_term_sums_make_the_halving_tree_and_one_sum_does_not(kernels: ModuleType) -> None:
    x = RNG.standard_normal(64).astype(f32)
    want = x
    while len(want) > 1:
        want = want[: len(want) // 2] + want[len(want) // 2 :]
    assert_same_bits(run(kernels.halving_sum, x, like=np.zeros(1, f32)), want)
    assert as_bits(run(kernels.one_sum, x, like=np.zeros(1, f32))) != as_bits(want)


def test_max_and_min_are_the_number_operations(kernels: ModuleType, unpatched: dict[str, list[int]]) -> None:
    high, low = run(kernels.maximum, A, B), run(kernels.minimum, A, B)
    for a, b, h, l in zip(A, B, high.tolist(), low.tolist()):
        numbers = [v for v in (a, b) if not np.isnan(v)]
        key = [(float(v), not np.signbit(v)) for v in numbers] or [(np.nan, True)]
        for got, want in ((h, max(key)), (l, min(key))):
            assert np.array_equal(got, want[0], equal_nan=True)
            assert np.isnan(got) or bool(np.signbit(got)) != want[1]
    assert control_differs(high, unpatched, "maximum")


def test_a_row_maximum_ignores_nan_and_orders_zeros(kernels: ModuleType) -> None:
    for row, want in (([0.0, -0.0, -1.0, np.nan], 0.0), ([-0.0, -0.0, -1.0, -2.0], -0.0)):
        for turn in range(4):
            x = np.roll(np.array(row, f32), turn)
            assert_same_bits(run(kernels.row_max, x, like=np.zeros(1, f32)), np.array([want], f32))


def test_argmax_takes_the_lowest_index(kernels: ModuleType) -> None:
    x = np.array([1.0, 3.0, 2.0, 3.0, 3.0, -1.0, 0.0, 3.0], f32)
    assert run(kernels.row_argmax, x, like=np.zeros(1, np.int32)).item() == 1


def test_exp2_is_the_hardware_table(kernels: ModuleType, unpatched: dict[str, list[int]]) -> None:
    got = run(kernels.exp2, X / f32(16))
    with np.errstate(all="ignore"):
        assert_same_bits(got, exp2_sm90(X / f32(16)))
    assert control_differs(got, unpatched, "exp2")


def test_division_and_root_round_correctly(kernels: ModuleType) -> None:
    with np.errstate(all="ignore"):
        want = (X / Y) + np.sqrt(np.abs(np.floor(X)))
    assert_same_bits(run(kernels.divide_and_root, X, Y), want)


def test_umulhi_reads_unsigned_words(kernels: ModuleType) -> None:
    x, y = RNG.integers(-(2**31), 2**31, (2, 256)).astype(np.int32)
    want = (x.view(np.uint32).astype(np.uint64) * y.view(np.uint32).astype(np.uint64)) >> np.uint64(32)
    assert_same_bits(run(kernels.umulhi, x, y), want.astype(np.uint32).view(np.int32))


def test_float_to_int_truncates_and_saturates(kernels: ModuleType) -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, np.nan, np.inf, -np.inf, 2147483520.0], f32)
    want = np.array([1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31), 2147483520], np.int32)
    assert_same_bits(run(kernels.to_int, x, like=np.zeros(8, np.int32)), want)


def test_shifts_follow_the_sign_of_their_type(kernels: ModuleType) -> None:
    x = RNG.integers(-(2**31), 2**31, 64).astype(np.int32)
    want = (x >> 3) ^ (x.view(np.uint32) >> np.uint32(5)).view(np.int32) ^ (x << 2)
    assert_same_bits(run(kernels.shifts, x), want)


def test_a_custom_combine_sees_both_terms_at_once(kernels: ModuleType) -> None:
    m, s = X[:128].clip(-50, 50), np.abs(X[128:]).clip(0, 8)
    m, s = np.nan_to_num(m), np.nan_to_num(s)
    out = run(kernels.merge_pairs, m, s, like=np.zeros(128, f32), N=64)
    a, b, c, d = m[::2], s[::2], m[1::2], s[1::2]
    top = maximum(a, c)
    assert_same_bits(out[64:], top)
    assert_same_bits(out[:64], b * exp2_sm90(a - top) + d * exp2_sm90(c - top))


def test_loops_run_over_integer_tensors_and_grids_over_programs(kernels: ModuleType) -> None:
    x = np.ascontiguousarray(WIDE[:35].reshape(7, 5))
    out = np.zeros_like(x)
    kernels.strided_rows[(3,)](x, out, 7, 5, 0.7, B=8, num_warps=4)
    assert_same_bits(out, x * f32(0.7))


def test_a_wrong_mask_is_reported_with_its_argument(kernels: ModuleType) -> None:
    x = np.zeros(100, f32)
    with pytest.raises(
        InterpreterFault, match=r"forgotten_mask, program \(3, 0, 0\).*'x'.*96..127, it has 100"
    ) as e:
        kernels.forgotten_mask[(4,)](x, np.zeros(100, f32), 100, B=32)
    assert isinstance(e.value.__cause__, OutOfBounds)
    backing = np.zeros(128, f32)
    kernels.forgotten_mask[(4,)](backing[:100], np.zeros(100, f32), 100, B=32, checked=False)


def test_undefined_lanes_show(kernels: ModuleType) -> None:
    out = np.zeros(8, f32)
    kernels.undefined_lanes[(1,)](np.ones(5, f32), out, 5, B=8)
    assert (out[:5] == 1).all() and (np.abs(out[5:]) > 1e38).all()


def test_an_operation_without_a_bit_model_is_refused(kernels: ModuleType) -> None:
    with pytest.raises(InterpreterFault, match="without tl.div_rn has no bit model") as e:
        kernels.fast_divide[(1,)](X, np.zeros_like(X), N=len(X))
    assert isinstance(e.value.__cause__, NotModelled)


def test_triton_itself_is_left_as_it_was(kernels: ModuleType) -> None:
    import triton.language as tl

    core = tl.core
    owners = [tl, core, tl.math, tl.standard, core.dtype, core.tensor, core.tensor_descriptor_base]
    before = {owner: dict(vars(owner)) for owner in owners}
    patched = {owner for owner, _, _ in interpreter_versions.hooks()}.difference(owners)
    before |= {owner: dict(vars(owner)) for owner in patched}
    run(kernels.fma, X, Y, Z)
    for owner, had in before.items():
        assert [n for n, v in vars(owner).items() if n not in had or v is not had[n]] == [], owner
        assert vars(owner).keys() == had.keys()
    assert isinstance(tl.sum, triton.runtime.jit.JITFunction)
    assert isinstance(kernels.fma, Interpreted)
