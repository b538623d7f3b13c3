"""An interpreted `tl.dot` has the bits of the dot models, and the probe of devices sees other bits."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import dot_rules
import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from rlk.backends.triton import compile_triton  # noqa: E402
from rlk.cli import doctor  # noqa: E402
from rlk.interp.dot import dot  # noqa: E402
from rlk.interp.floats import bf16_from_bits, f16_from_bits  # noqa: E402
from rlk.ir.dotmodel import DotModel  # noqa: E402
from rlk.ir.types import DType  # noqa: E402
from rlk.runtime.kernels import probes  # noqa: E402
from rlk.target.facts import target  # noqa: E402
from rlk.testing import probe_dot  # noqa: E402
from rlk.testing.bits import assert_same_bits, differing  # noqa: E402
from rlk.testing.simulators.interpreter import (  # noqa: E402
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
    dtype = {torch.bfloat16: DType.BF16, torch.float16: DType.F16, torch.float32: DType.F32}[x.dtype]
    return dot(x.float().numpy(), w.float().numpy(), model, dtype, None if acc is None else acc.numpy())


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
    assert found.wrong == 0 and not found.examples
    assert found.compared == seen[-1] == 2 * len(probe_dot.FAMILIES) * 64 * 64


def unit(rules: dict[DType, dot_rules.Rule] | None = None) -> probes.Place:
    """A stand-in for a device: the models, or other rules for 16-bit factors."""

    def host(emitted: Any) -> Any:
        dtype = next(d for d in (DType.BF16, DType.F16, DType.F32) if f"dot_{d}_" in emitted.file)

        def launch(a: Any, b: Any, acc: Any, out: Any, *extents: int) -> None:
            decode = {DType.BF16: bf16_from_bits, DType.F16: f16_from_bits}.get(dtype)
            x, y = (decode(t.view(np.uint16)) if decode else t.view(np.float32) for t in (a, b))
            if decode is None:
                out[:] = dot(x, y, DotModel.FMA, dtype, acc)
            elif rules is None:
                out[:] = dot(x, y, CHAIN16, dtype, acc)
            else:
                out[:] = dot_rules.chain16(x, y, acc, rules[dtype])

        return launch

    return probes.Place("a stand-in", host, lambda x: np.array(x), lambda x: x)


NORMALISED = {d: dot_rules.wrong_rules(d)["every number is normalised"] for d in dot_rules.RULES}


def test_the_probe_counts_what_is_wrong() -> None:
    """Negative control: a device that normalises subnormal numbers."""
    families = ("normal", "subnormal")
    found = probe_dot.probe(unit(NORMALISED), "f16", 1, side=48, families=families)
    assert found.wrong > 100 and found.differing["warp", "normal"] == 0 < found.differing["warp", "subnormal"]
    text = "\n".join(probe_dot.describe(found))
    assert f"{found.wrong:,} of {found.compared:,} outputs differ from chain16" in text
    assert "subnormal: 0x" in text and "normal 0" not in text
    assert probe_dot.probe(unit(dot_rules.RULES), "f16", 1, side=48, families=families).wrong == 0


@pytest.mark.parametrize(
    ("dtype", "wrong"), [(d, wrong) for d in dot_rules.RULES for wrong in dot_rules.wrong_rules(d)]
)
def test_the_probe_tells_every_rule_for_small_numbers_apart(dtype: DType, wrong: str) -> None:
    """A probe that could not see a difference would validate anything."""
    family = "subnormal" if "factors" in wrong else "few"
    a, b, acc = probe_dot.operands(np.random.default_rng(0), dtype.value, family, side=80)
    other = dot_rules.chain16(a, b, acc, dot_rules.wrong_rules(dtype)[wrong])
    assert differing(dot(a, b, CHAIN16, dtype, acc), other)


def test_doctor_reports_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DOT_OUTPUTS", 1)
    monkeypatch.setattr(probe_dot, "probe", partial(probe_dot.probe, side=32))
    sound: list[str] = []
    text = doctor._dots(unit(), target("sm_90a"), True, sound)
    assert not sound and text.count("0 of ") == 3 and "f32: 0 of" in text
    assert "add --probe-dot" in doctor._dots(unit(), target("sm_90a"), False, sound)
    assert "not probed" in doctor._dots(unit(), None, True, sound)
    wrong: list[str] = []
    doctor._dots(unit(NORMALISED), target("sm_90a"), True, wrong)
    assert len(wrong) == 2 and "f16 dots of a stand-in differ from chain16" in wrong[1]
    doctor._dots(unit(NORMALISED), target("sm_80"), True, sound)
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
