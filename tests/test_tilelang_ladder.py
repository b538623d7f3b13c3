"""TileLang kernels without a device: accepted, linted, compiled, and run on a CPU with the oracle's bits."""

from __future__ import annotations

import re
from pathlib import Path

import ladder
import numpy as np
import pytest

from rlk.backends import hip
from rlk.interp.run import run
from rlk.lang import Axis, L, Outputs, Tensor, f32, op
from rlk.passes.pipeline import canonical
from rlk.resources import generated
from rlk.schedule.schedule import Schedule, Span
from rlk.target.facts import target
from rlk.testing import check
from rlk.testing.bits import differing
from rlk.testing.generated import run_generated
from rlk.testing.simulators.cdna import host, lint


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


def sources(name: str, on: str = "gfx942") -> list[str]:
    """Return the HIP source of each kernel of a call."""
    from test_tilelang_lowering import lowered

    emitted = lowered(name, on)
    return [hip.hip_source(emitted.source, kernel.name, on) for kernel in emitted.kernels]


# --- L0 to L2: source and machine code ---


@pytest.mark.parametrize("name", ladder.CALLS)
def test_source_has_nothing_that_moves_bits(name: str) -> None:
    for source in sources(name):
        assert list(lint.findings(source, ladder.MI300X)) == []


COMPILED = [(name, "gfx942") for name in ladder.CALLS]
COMPILED += [(name, on) for name in ladder.KINDS for on in ladder.TARGETS if on != "gfx942"]


@pytest.mark.parametrize(("name", "on"), COMPILED)
def test_kernels_compile_without_spilling(name: str, on: str) -> None:
    for source in sources(name, on):
        assembly = hip.assembly(source, on)
        (found,) = hip.resources(assembly)
        assert found.scratch == 0 and found.vector_spills == 0
        assert found.shared <= 1024 * target(on).shared
        assert f"amdgcn-amd-amdhsa--{on}" in assembly


def test_a_code_object_is_an_elf_file_of_its_target() -> None:
    (source,) = sources("swiglu forward")
    made = hip.code_object(hip.assembly(source))
    assert made[:4] == b"\x7fELF" and int.from_bytes(made[18:20], "little") == 224  # EM_AMDGPU


# --- L3: bits ---


@pytest.mark.parametrize("name", ladder.CALLS)
def test_kernels_have_the_bits_of_the_oracle_in_any_order_of_waves(name: str) -> None:
    for waves in ladder.WAVES:
        got = ladder.executed(name, waves=waves)
        assert ladder.differences(name, got) == 0, waves
        assert bool(got.errors[0]) == bool(ladder.wanted(name).errors)


@pytest.mark.parametrize("name", ["rms_norm forward", "rms_norm gradient", "logp forward"])
def test_no_schedule_moves_a_bit(name: str) -> None:
    plans = check.schedules(ladder.call(name), ladder.MI300X)
    assert len(plans) > 1
    for plan in plans:
        assert ladder.differences(name, ladder.executed(name, schedules=plan, waves=1)) == 0


ACROSS = (Schedule(tiles=(("T", 64),), placed=(Span("T", 0, 6), Span("N", 0, 4)), warps=8),)
"""Rows on the lanes of a wave, so that the terms of a sum lie in different waves."""


def test_sums_across_waves_have_the_bits_of_sums_in_one() -> None:
    for waves in ladder.WAVES:
        got = ladder.executed("rms_norm forward", schedules=ACROSS, waves=waves)
        assert "_reduce_smem[c, thread]" in got.emitted.source
        assert ladder.differences("rms_norm forward", got) == 0


T, P, W = Axis("T", dynamic=True), Axis("P"), Axis("W")


@op()
def joined(m: Tensor[f32, T, P], s: Tensor[f32, T, P], v: Tensor[f32, T, P, W]) -> Outputs:
    """States of which only the weighted sums vary along W."""
    made = L.softmax_states(P, m, s, v=v)
    return L.out(o=made.mean("v"), lse=made.lse())


@pytest.mark.parametrize("pieces", [1, 4])
def test_what_a_state_has_for_a_row_is_that_of_its_own_row(pieces: int) -> None:
    """A thread has several rows, and of each several sums: a row's maximum is in no list along both."""
    rng, rows, width = np.random.default_rng(pieces), 100, 16
    given = {n: rng.uniform(1, 2, (rows, pieces)).astype(np.float32) for n in "ms"}
    given["v"] = rng.standard_normal((rows, pieces, width)).astype(np.float32)
    made, plan = (
        canonical(joined.trace(joined.default_variant())),
        Schedule(tiles=(("T", 128), ("W", width)), warps=2),
    )
    ran = run_generated(made, given, on=ladder.MI300X, schedules=[plan], backend="tilelang")
    want = run(made, given, softmax=ladder.MI300X.softmax)
    assert [differing(ran.tensors[n], want[n]) for n in ("o", "lse")] == [0, 0]
    assert differing(np.roll(want["lse"], 1), want["lse"]) > rows // 2, "the control: of the row before"


# --- controls: what is wrong is seen ---


def broken(monkeypatch: pytest.MonkeyPatch, old: str, new: str, count: int = -1) -> list[int]:
    """Return how many elements differ in each order of waves when a HIP source with barriers is changed."""
    name = "rms_norm forward"
    real = hip.hip_source

    def changed(source: str, kernel: str, on: str = "gfx942") -> str:
        made = real(source, kernel, on)
        assert old in made
        return made.replace(old, new, count)

    monkeypatch.setattr(host, "hip_source", changed)
    runs = (ladder.executed(name, schedules=ACROSS, waves=waves) for waves in range(6))
    return [ladder.differences(name, ran) for ran in runs]


def test_waves_that_do_not_meet_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(broken(monkeypatch, "__syncthreads();", ""))


def test_an_exchange_with_another_lane_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(broken(monkeypatch, "^ 128", "^ 64", 1))


def test_lanes_that_come_to_another_barrier_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    some = "if (threadIdx.x < 5) __syncthreads();"
    with pytest.raises(host.HostFault, match="different barriers"):
        broken(monkeypatch, "__syncthreads();", some, 1)


def test_a_constant_of_seven_digits_is_found() -> None:
    (source,) = sources("swiglu forward")
    wrong = source.replace("__builtin_bit_cast(float, (uint)1065353216)", "1.000000e+00f")
    assert wrong != source
    assert any("seven digits" in each for each in lint.findings(wrong, ladder.MI300X))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = __expf(y);", "whose bits are a device's"),
        ("atomicAdd((&(y[0])), x);", "no order of additions"),
        ("x = x + __shfl_xor(x, 16, 32);", "an exchange of 32 lanes"),
        ("extern __shared__ __align__(1024) float board[];", "only a launch would tell"),
        ("__shared__ float board[20000];", "80000 bytes of shared memory"),
    ],
)
def test_what_moves_bits_or_passes_a_limit_is_found(text: str, said: str) -> None:
    (source,) = sources("swiglu forward")
    assert any(said in each for each in lint.findings(source + text, ladder.MI300X))


def test_a_program_that_tilelang_refuses_names_its_kernel() -> None:
    from rlk.errors import CompileError

    source = (
        "import tilelang.language as tl\n\n\n@tl.prim_func\ndef wrong(x: tl.Tensor((4,), 'float32')):\n"
        "    with tl.Kernel(1, threads=48) as block:\n        y = tl.alloc_fragment((64, 64), 'float16')\n"
        "        a = tl.alloc_shared((64, 8), 'float16')\n        tl.gemm(a, a, y, transpose_B=True)\n"
    )
    with pytest.raises(CompileError, match="wrong"):
        hip.hip_source(source, "wrong")


@pytest.mark.parametrize(
    "path", sorted((generated() / "gfx942" / "tilelang").glob("*.py")), ids=lambda p: p.stem
)
def test_checked_in_kernels_compile_without_spilling_to_memory(path: Path) -> None:
    module = path.read_text(encoding="utf-8")
    for kernel in re.findall(r"^@tl\.prim_func\ndef (\w+)\(", module, re.MULTILINE):
        source = hip.hip_source(module, kernel)
        assert list(lint.findings(source, ladder.MI300X)) == []
        (found,) = hip.resources(hip.assembly(source))
        assert found.scratch == found.vector_spills == 0
