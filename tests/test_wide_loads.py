"""Vectors are loaded at every size, and the elements beside them have the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_machine_code import DISASSEMBLER

from benchmarks import machine_code
from rlk.interp.run import run
from rlk.lang import Axis, L, Outputs, Tensor, f32, i32, op
from rlk.lower.triton.emit import Emitter
from rlk.passes.pipeline import canonical
from rlk.runtime.registry import operators
from rlk.testing.bits import differing
from rlk.testing.generated import Ran, run_generated

T = Axis("T", dynamic=True)
B = Axis("B", dynamic=True)


@op()
def weighted(x: Tensor[f32, T], segment: Tensor[i32, T], weight: Tensor[f32, B]) -> Outputs:
    """x and its place, times a number of the segment; a NaN is an error."""
    L.check(L.isnan(x.whole()), "an x that is NaN")
    return L.out(y=(x + L.pos(T).to(f32)) * weight.at(segment))


def given(elements: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(elements)
    x, weight = drawn.standard_normal(elements, np.float32), drawn.standard_normal(3, np.float32)
    return {"x": x, "segment": drawn.integers(3, size=elements, dtype=np.int32), "weight": weight}


def generated(inputs: dict[str, np.ndarray]) -> Ran:
    return run_generated(canonical(weighted.trace(weighted.default_variant())), inputs)


def missed(elements: int) -> int:
    inputs = given(elements)
    want = run(canonical(weighted.trace(weighted.default_variant())), inputs)["y"]
    return differing(generated(inputs).tensors["y"], want)


@pytest.mark.parametrize("elements", [1, 15, 16, 2047, 2048, 2063, 4096])
def test_the_elements_behind_the_last_vector_are_computed(elements: int) -> None:
    assert missed(elements) == 0


def test_without_them_bits_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Emitter, "remainder", lambda self, axis: None)
    assert missed(2048) == 0 and missed(2063) == 15


@pytest.mark.parametrize("bad", [3, 2062])
def test_checks_see_all_elements(bad: int) -> None:
    inputs = given(2063)
    inputs["x"][bad] = np.nan
    assert generated(inputs).errors == (1, bad + 1)


@pytest.mark.skipif(DISASSEMBLER is None, reason="Triton came without a disassembler")
def test_an_optimizer_loads_vectors_of_a_weight_of_any_size(tmp_path: Path) -> None:
    """The control: with a mask that may end within a vector every access is narrow."""
    source, schedules = machine_code.emitted(operators()["adamw"], grad=False, extents={"T": 1_000_001})
    code = next(machine_code.codes(source, schedules, tmp_path))
    assert code.loads[128] == 16 and code.stores[128] == 12
    narrow = replace(source, source=source.source.replace("t < T // 16 * 16", "t < T // 15 * 15"))
    code = next(machine_code.codes(narrow, schedules, tmp_path))
    assert 128 not in code.loads and 128 not in code.stores
