"""TileLang's CUDA source, run on a CPU: warps of 32 lanes and mma.sync have the oracle's bits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import ladder
import numpy as np
import pytest
from test_tilelang_dots import drawn, heads, product, program

from rlk.backends import hip
from rlk.backends.tilelang import cuda_source
from rlk.interp import arithmetic
from rlk.interp.run import Outcome, run
from rlk.ir.nodes import MathModel
from rlk.ir.types import DType
from rlk.lang import bf16, f16
from rlk.lower.common.emitted import Emitted, KernelBuild
from rlk.schedule.schedule import Schedule, Span
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import Ran, run_generated
from rlk.testing.simulators.cdna import host

HOPPER = target("sm_90a")
FRAME = hip.FRAME + '#include "hopper.h"\n'
ASKED = re.compile(r"extern (__shared__ __align__\(1024\)) (\w+ \w+)\[\];")
PORTABLE = MathModel.PORTABLE  # the hardware's exp2 is a table that C has not


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


@dataclass(frozen=True)
class Threads:
    """A device that runs CUDA source on the CPU.

    waves: the order in which work-items run. change: of the source.
    """

    waves: int = 0
    change: Callable[[str], str] = lambda source: source

    @contextmanager
    def __call__(self, emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
        kernels = {build.name: self.launcher(emitted, build) for build in emitted.kernels}
        yield hip.load(emitted.source).call, SimpleNamespace(**kernels)

    def launcher(self, emitted: Emitted, build: KernelBuild) -> Callable[..., None]:
        text = cuda_source(emitted.source, build.name, HOPPER.name)
        if "wgmma" in text:  # other kernels are lowered once, for the tests of nvcc too
            text = cuda_source(emitted.source, build.name, HOPPER.name, wgmma=False)
        text = text[text.index('extern "C" __global__') :]
        asked = ASKED.search(text)
        if asked:
            text = text.replace(asked[0], f"{asked[1]} {asked[2]}[{build.shared // 2}];\n  tl::rlk_begin();")
        source = self.change(FRAME + text)
        return host.starter(source, build, self.waves)


# --- operators


def executed(name: str, device: Threads) -> Ran:
    call = ladder.call(name)
    options = {"extents": call.extents, "softmax": PORTABLE, "device": device}
    return run_generated(call.placed, call.inputs, on=HOPPER, backend="tilelang", **options)  # type: ignore[arg-type]


@cache
def wanted(name: str) -> Outcome:
    call = ladder.call(name)
    return run(call.program, call.inputs, softmax=PORTABLE, extents=call.extents)


def differences(name: str, got: Ran) -> int:
    call, want = ladder.call(name), wanted(name)
    kinds = {d.name: str(d.type.dtype) if d.type.dtype.is_float else None for d in call.stores}
    return sum(differing(got.tensors[n], np.asarray(want[n]), kind) for n, kind in kinds.items())


@pytest.mark.parametrize("name", ladder.CALLS)
def test_cuda_source_has_the_bits_of_the_oracle_in_any_order_of_waves(name: str) -> None:
    for waves in ladder.WAVES:
        assert differences(name, executed(name, Threads(waves))) == 0, waves


def test_exchanges_with_other_lanes_are_seen() -> None:
    device = Threads(1, lambda source: source.replace(", 4, 32)", ", 2, 32)", 1))
    assert differences("rms_norm forward", executed("rms_norm forward", device))


# --- contractions


def multiplied(spec: Any, dtype: DType, given: dict[str, Any], device: Threads, **options: Any) -> Ran:
    options |= {"on": HOPPER, "softmax": PORTABLE, "backend": "tilelang", "device": device}
    return run_generated(program(spec, dtype), given, **options)


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize(("rows", "columns", "k"), [(37, 70, 45), (64, 64, 128), (1, 5, 1)])
def test_products_are_chains_of_sixteen(dtype: DType, rows: int, columns: int, k: int) -> None:
    given = drawn(rows, columns, k, dtype)
    want = run(program(product, dtype), given)["y"]
    for waves in (0, 1, 2):
        assert_same_bits(multiplied(product, dtype, given, Threads(waves)).tensors["y"], want)


ALIGNED = frozenset({"x", "w", "x_t_stride", "w_n_stride", "w_v_stride"})


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize(
    ("tiles", "stages"), [((64, 32), 3), ((128, 256), 4), ((64, 128), 5), ((128, 64), 3)]
)
def test_vectors_through_a_ring_have_the_bits_of_the_oracle(
    dtype: DType, tiles: tuple[int, int], stages: int
) -> None:
    rows, columns = tiles
    group = (Span("N", 1, 2), Span("T", 0, 3), Span("T", 4, rows.bit_length() - 5))
    schedule = Schedule((("N", columns), ("T", rows)), group, rows // 16, stages, depth=64, group=stages - 2)
    given = drawn(150, 300, 344, dtype)
    want = run(program(product, dtype), given)["y"]
    for waves in (0, 1, 2):
        got = multiplied(product, dtype, given, Threads(waves), divisible=ALIGNED, schedules=[schedule])
        assert_same_bits(got.tensors["y"], want)


def test_folds_of_vectors_through_a_ring_have_the_bits_of_the_oracle() -> None:
    given = drawn(140, 600, 200, bf16)
    want = run(program(heads, bf16), given, softmax=PORTABLE)["lse"]
    for waves in (0, 1, 2):
        got = multiplied(heads, bf16, given, Threads(waves), divisible=ALIGNED)
        assert_same_bits(got.tensors["lse"], want)


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("cp_async_wait<1>", "cp_async_wait<2>"),  # a step is multiplied before it is there
        ("wait_wgmma<1>", "wait_wgmma<2>"),  # a stage is filled while it is multiplied
        ("wait_wgmma<0>", "wait_wgmma<1>"),  # accumulators are read while they are added to
        ("& 63) >> 3)", "& 31) >> 3)"),  # vectors exchanged by another row
    ],
)
def test_a_ring_that_waits_too_little_is_seen(was: str, becomes: str) -> None:
    def change(source: str) -> str:
        start = source.index('extern "C"')
        assert was in source[start:]
        return source[:start] + source[start:].replace(was, becomes)

    given = drawn(70, 300, 512, bf16)
    want = run(program(product, bf16), given)["y"]
    got = multiplied(product, bf16, given, Threads(1, change), divisible=ALIGNED)
    assert differing(got.tensors["y"], want, "f32")


def special(dtype: DType) -> dict[str, Any]:
    """Return factors with every kind of number in them, some rows without infinities and NaN."""
    rng = np.random.default_rng(3)
    numbers = np.array([0.0, -0.0, 1.0, -1.5, 6e-8, -3e-5, 1e-40, 6e4, np.inf, -np.inf, np.nan], np.float32)
    made = []
    for rows in (48, 40):
        x = numbers[rng.integers(0, 8, (rows, 50))]
        x[:8] = numbers[rng.integers(0, len(numbers), (8, 50))]
        made.append(arithmetic.encode(arithmetic.Exact().cast(x, dtype), dtype))
    return dict(zip("xw", made, strict=True))


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_zeros_subnormals_infinities_and_nan_are_the_models(dtype: DType) -> None:
    given = special(dtype)
    want = run(program(product, dtype), given)["y"]
    assert np.isnan(want).any() and np.isfinite(want).any()
    assert_same_bits(multiplied(product, dtype, given, Threads()).tensors["y"], want)


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_a_product_folded_where_it_stands_has_the_bits_of_the_oracle(dtype: DType) -> None:
    given = drawn(40, 600, 50, dtype)
    want = run(program(heads, dtype), given, softmax=PORTABLE)["lse"]
    for waves in (0, 1, 2, 3):
        assert_same_bits(multiplied(heads, dtype, given, Threads(waves)).tensors["lse"], want)


def test_waves_that_do_not_meet_are_seen() -> None:
    given = drawn(64, 64, 128, bf16)
    want = run(program(product, bf16), given)["y"]

    def alone(source: str) -> str:
        assert "__syncthreads();" in source
        return source.replace("__syncthreads();", "")

    found = (multiplied(product, bf16, given, Threads(waves, alone)).tensors["y"] for waves in range(6))
    assert any(differing(got, want, "f32") for got in found)


def test_products_in_another_order_are_seen() -> None:
    given = drawn(37, 70, 45, bf16)
    turned = {name: np.ascontiguousarray(x[:, ::-1]) for name, x in given.items()}
    want = run(program(product, bf16), given)["y"]
    assert differing(multiplied(product, bf16, turned, Threads()).tensors["y"], want) > 0
