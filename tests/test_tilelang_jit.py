"""TileLang's own compiler and launcher, end to end on the emulator: launches have the oracle's bits."""

from __future__ import annotations

from collections.abc import Callable

import ladder
import numpy as np
import pytest
import torch
from test_tilelang_machine import SHORT

from rlk.backends import hip
from rlk.testing.simulators.cdna import Fault, jit
from rlk.testing.simulators.cdna.jit import Launch, TileLangJit


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


LAUNCHED = [
    *(name for name in ladder.CALLS if name not in SHORT),
    "rms_norm gradient", "swiglu forward", "matmul forward", "gae forward", "embedding gradient",
    "grouped_matmul gradient", "varlen_attention gradient", "paged_attention forward", "write_cache forward",
]  # fmt: skip
"""Calls that no other test emulates, and one of each kind of launch: rows, elements, blocks of a product,
segments, indices, groups, several kernels of attention, pages, a buffer that is written in place.

The rest is emulated by test_tilelang_machine; TileLang compiles the same code for them, as a test holds.
"""


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_tilelang_launches_has_the_bits_of_the_oracle(name: str) -> None:
    device = TileLangJit(schedule=1, perturb=1)
    got = ladder.executed(name, device=device)
    assert ladder.differences(name, got) == 0
    assert len(device.launches) == len(device.executions) >= len(got.emitted.kernels)


def test_a_launch_has_the_grid_of_the_host_function_and_the_block_of_the_plan() -> None:
    device = TileLangJit()
    got = ladder.executed("rms_norm gradient", device=device)
    threads = [build.num_warps * ladder.MI300X.warp for build in got.emitted.kernels]
    assert [launch.block for launch in device.launches] == [(n, 1, 1) for n in threads]
    # rows, the sums of their two pieces, the merge of both
    assert [launch.grid for launch in device.launches] == [(2, 1, 1), (2, 1, 1), (1, 1, 1)]
    assert {launch.shared for launch in device.launches} == {0}
    for build in got.emitted.kernels:  # what other tests emulate is what TileLang launches
        made = hip.assembly(hip.hip_source(got.emitted.source, build.name, "gfx942"), "gfx942")
        assert made in jit._assemblies.values()


# --- the launcher's order of arguments is its own ---


def first_operands(device: TileLangJit) -> list[bytes]:
    return [bytes(p) for p in device.launches[0].parameters[:2] if isinstance(p, np.ndarray)]


def test_parameters_come_in_the_order_of_the_code_object() -> None:
    device, inputs = TileLangJit(), ladder.call("matmul forward").inputs
    got = ladder.executed("matmul forward", device=device)
    names = [argument.name for argument in got.emitted.kernels[0].args[:2]]
    sizes = [2 * np.asarray(inputs[name]).size for name in names]
    assert names == ["x", "w"] and sizes[0] != sizes[1]
    assert [len(each) for each in first_operands(device)] == sizes[::-1]  # the program's order was x, w


def exchanged(real: Callable[..., Launch]) -> Callable[..., Launch]:
    def launch(*given: object) -> Launch:
        made = real(*given)
        one, two, *rest = made.parameters
        return Launch(made.kernel, made.grid, made.block, made.shared, (two, one, *rest))

    return launch


def test_parameters_in_the_order_of_the_program_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_launch", exchanged(jit._launch))
    assert ladder.differences("swiglu forward", ladder.executed("swiglu forward", device=TileLangJit()))


# --- faults come back through the launcher ---


def test_a_fault_of_the_emulator_is_raised_by_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    real = hip.framed

    def further(source: str) -> str:
        return real(source).replace("y[", "y[1048576 + ", 1) if "swiglu_kernel" in source else real(source)

    monkeypatch.setattr(hip, "framed", further)
    jit.compiled.cache_clear()
    with pytest.raises(Fault, match="outside of every argument"):
        ladder.executed("swiglu forward", device=TileLangJit())
    jit.compiled.cache_clear()


def test_tilelangs_launcher_refuses_a_tensor_of_another_type() -> None:
    from test_tilelang_lowering import lowered

    emitted = lowered("swiglu forward")
    kernel = jit.compiled(emitted.source, "swiglu", "gfx942")
    wrong = [jit._on_device(torch.zeros(8).numpy(), "*fp32") for _ in range(3)]
    with pytest.raises(Exception, match="dtype"):
        kernel(*wrong, 1, 8, 8, 8, 1)
