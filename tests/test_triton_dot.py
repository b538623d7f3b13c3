"""An interpreted `tl.dot` has the bits of the dot models, and the probe of devices sees other bits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from rlk.cli import doctor  # noqa: E402
from rlk.interp.dot import Floors, chain16, dot  # noqa: E402
from rlk.interp.floats import bf16_from_bits  # noqa: E402
from rlk.ir.dotmodel import DotModel  # noqa: E402
from rlk.runtime import probes  # noqa: E402
from rlk.runtime.toolchain import compile_triton  # noqa: E402
from rlk.target.facts import target  # noqa: E402
from rlk.testing import probe_dot  # noqa: E402
from rlk.testing.bits import assert_same_bits, differing  # noqa: E402
from rlk.testing.interpreter import (  # noqa: E402
    InterpreterFault,
    NotModelled,
    OutOfBounds,
    interpret,
)

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def product(x, w, acc, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    at = m[:, None] * N + n[None, :]
    a = tl.load(x + m[:, None] * K + k[None, :])
    b = tl.load(w + n[None, :] * K + k[:, None])
    tl.store(out + at, tl.dot(a, b, tl.load(acc + at), input_precision=PRECISION))


@triton.jit
def described(x, w, out, M, N, D, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    a = tl.make_tensor_descriptor(x, shape=[M, D], strides=[D, 1], block_shape=[BM, BK])
    b = tl.make_tensor_descriptor(w, shape=[N, D], strides=[D, 1], block_shape=[BN, BK])
    y = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, D, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    y.store([m, n], acc)
"""

CONTROL = """
import torch
import kernels as k

x, w, acc = torch.load("operands.pt")
out = torch.zeros_like(acc)
k.product[(1,)](x, w, acc, out, M=x.shape[0], N=w.shape[0], K=x.shape[1], PRECISION=None)
torch.save(out, "out.pt")
"""
CHAIN16 = DotModel.CHAIN16
SHAPE = (32, 64, 48)


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return interpret(SOURCE)


def drawn(dtype: torch.dtype, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(m + n + k)
    return torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype), torch.randn(m, n)


def oracle(
    x: torch.Tensor, w: torch.Tensor, acc: torch.Tensor | None = None, model: DotModel = CHAIN16
) -> Any:
    return dot(x.float().numpy(), w.float().numpy(), model, None if acc is None else acc.numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_interpreted_dot_is_chain16_and_the_unpatched_one_is_not(
    kernels: ModuleType, dtype: torch.dtype, tmp_path: Path
) -> None:
    x, w, acc = drawn(dtype, 32, 64, 32)
    want, out = oracle(x, w, acc), torch.zeros(32, 64)
    kernels.product[(1,)](x, w, acc, out, M=32, N=64, K=32, PRECISION=None)
    assert_same_bits(out, want)
    (tmp_path / "kernels.py").write_text(SOURCE)
    (tmp_path / "control.py").write_text(CONTROL)
    torch.save((x, w, acc), tmp_path / "operands.pt")
    env = dict(os.environ, TRITON_INTERPRET="1")
    subprocess.run([sys.executable, "control.py"], cwd=tmp_path, env=env, capture_output=True, check=True)
    assert differing(torch.load(tmp_path / "out.pt"), want) > want.size // 10


def test_an_interpreted_f32_dot_is_a_chain_of_fma(kernels: ModuleType) -> None:
    x, w, acc = drawn(torch.float32, 16, 16, 32)
    out = torch.zeros(16, 16)
    kernels.product[(1,)](x, w, acc, out, M=16, N=16, K=32, PRECISION="ieee")
    assert_same_bits(out, oracle(x, w, acc, DotModel.FMA))
    with pytest.raises(InterpreterFault, match="TF32") as e:
        kernels.product[(1,)](x, w, acc, out, M=16, N=16, K=32, PRECISION="tf32")
    assert isinstance(e.value.__cause__, NotModelled)


@pytest.mark.parametrize("block_k", [16, 32, 64])
def test_descriptors_read_zeros_outside_and_write_nothing_there(kernels: ModuleType, block_k: int) -> None:
    m, n, k = 40, 68, 48
    x, w, _ = drawn(torch.bfloat16, m + 3, n + 3, k)
    x[m:], w[n:] = torch.nan, torch.nan  # rows that the descriptors must not see
    memory = torch.full((m + 2, n), 7.0)
    kernels.described[(2, 3)](x, w, memory, m, n, k, BM=32, BN=32, BK=block_k)
    assert_same_bits(memory[:m], oracle(x[:m], w[:n]))
    assert (memory[m:] == 7).all()


def test_a_descriptor_larger_than_its_tensor_is_reported(kernels: ModuleType) -> None:
    x, w, _ = drawn(torch.bfloat16, 40, 64, 32)
    with pytest.raises(InterpreterFault, match="load of argument 'x'.*it has 1280") as e:
        kernels.described[(2, 1)](x, w, torch.zeros(41, 64), 41, 64, 32, BM=32, BN=64, BK=32)
    assert isinstance(e.value.__cause__, OutOfBounds)


# --- the probe of devices ---


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_the_probe_runs_in_the_interpreter(kind: str) -> None:
    place, seen = probes.interpreter(), list[int]()
    assert place is not None
    found = probe_dot.probe(place, kind, 1, side=64, say=seen.append)
    assert found.wrong == 0 and not found.examples and not found.explained
    assert found.compared == seen[-1] == 2 * len(probe_dot.FAMILIES) * 64 * 64


def unit(floors: Floors) -> probes.Place:
    """A stand-in for a device: chain16 with floors for 16-bit factors, a chain of fma for f32."""

    def host(emitted: Any) -> Any:
        def launch(a: Any, b: Any, acc: Any, out: Any, *extents: int) -> None:
            if a.dtype == np.int32:
                out[:] = dot(a.view(np.float32), b.view(np.float32), DotModel.FMA, acc)
                return
            kind = np.float16 if "dot_f16" in emitted.file else np.uint16
            x, y = (t.view(kind) for t in (a, b))
            if kind == np.uint16:
                x, y = (bf16_from_bits(t) for t in (x, y))
            out[:] = chain16(x.astype(np.float32), y.astype(np.float32), acc, floors)

        return launch

    return probes.Place("a stand-in", host, lambda x: np.array(x), lambda x: x)


def test_the_probe_counts_what_is_wrong_and_says_what_would_be_right() -> None:
    """Negative control: a device whose subnormal factors have the exponent of the smallest normal number."""
    found = probe_dot.probe(unit(Floors(factor=-14)), "f16", 1, side=64)
    assert found.wrong > 100 and found.differing["warp", "normal"] == 0 < found.differing["warp", "subnormal"]
    assert found.explained["factors' exponents are at least -14"] == 0
    assert found.explained["a group's exponent is at least -126"] == found.wrong
    text = "\n".join(probe_dot.describe(found))
    assert f"{found.wrong:,} of {found.compared:,} outputs differ from chain16" in text
    assert "at least -14: 0 would differ" in text and "subnormal: 0x" in text and "normal 0" not in text


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_the_probe_tells_every_rule_for_small_numbers_apart(kind: str) -> None:
    """A probe that could not see a difference would validate anything."""
    low = probe_dot.LOWEST[kind]
    for floors in (Floors(low), Floors(low, -126), Floors(acc=-126), Floors(group=-126)):
        if kind == "bf16" or floors.factor == low:  # the products of f16 are far above the others
            assert (
                probe_dot.probe(unit(floors), kind, 1, side=128, families=("tiny", "subnormal")).wrong > 100
            )


def test_doctor_reports_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DOT_OUTPUTS", 1)
    monkeypatch.setattr(probe_dot, "probe", partial(probe_dot.probe, side=64))
    sound: list[str] = []
    text = doctor._dots(unit(Floors()), target("sm_90a"), True, sound)
    assert not sound and text.count("0 of ") == 3 and "f32: 0 of" in text
    assert "add --probe-dot" in doctor._dots(unit(Floors()), target("sm_90a"), False, sound)
    assert "not probed" in doctor._dots(unit(Floors()), None, True, sound)
    wrong: list[str] = []
    doctor._dots(unit(Floors(-14)), target("sm_90a"), True, wrong)
    assert len(wrong) == 2 and "f16 dots of a stand-in differ from chain16" in wrong[1]
    doctor._dots(unit(Floors(-14)), target("sm_80"), True, sound)
    assert not sound, "no promise is made there"


@pytest.mark.parametrize(
    ("kind", "tile", "instruction"),
    [
        ("bf16", probe_dot.WARPGROUP, "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"),
        ("f16", probe_dot.WARPGROUP, "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16"),
        ("bf16", probe_dot.WARP, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
        ("f16", probe_dot.WARP, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
        ("f32", probe_dot.WARPGROUP, "fma.rn.f32"),
    ],
)
def test_the_probe_compiles_to_the_instructions_it_is_about(
    kind: str, tile: probe_dot.Tile, instruction: str, tmp_path: Path
) -> None:
    compile_triton(probe_dot.kernel(kind, tile), "sm_90a", tmp_path)
    (ptx,) = tmp_path.glob("*.ptx")
    assert instruction in ptx.read_text()
