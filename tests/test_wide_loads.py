"""Vectors are loaded at every size, and the elements beside them have the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_machine_code import DISASSEMBLER

from benchmarks import machine_code
from rlk.interp.floats import bf16_bits
from rlk.interp.run import run
from rlk.ir.nodes import MathModel
from rlk.lang import Axis, L, Op, Outputs, Tensor, Tree, bf16, f32, i32, op
from rlk.lower.triton.emit import Emitter
from rlk.passes import rotation
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


# --- rows that start between vectors ---------------------------------------------------------------------

V = Axis("V", chunk=256, split=8)
WIDTH = 8211  # pieces of 1027 and 1022 elements: steps that are full, and one that is masked
ROWS = 5


@op()
def of_logits(logits: Tensor[bf16, T, V], bias: Tensor[bf16, V]) -> Outputs:
    soft, best, far = L.softmax_sum(entropy=True), L.argmax(), L.total(lanes=Tree.halving)
    for v in L.stream(V):
        z = logits[v].to(f32) + bias[v].to(f32)
        soft.absorb(z)
        best.absorb(z)
        far.absorb(z * v.pos.to(f32))
    return L.out(lse=soft.lse(), entropy=soft.entropy(), best=best.index, far=far.value)


@op()
def of_active_rows(logits: Tensor[f32, T, V], active: Tensor[i32, T]) -> Outputs:
    """Rows without a condition's truth have a number in place of their elements."""
    total, on = L.total(lanes=Tree.halving), active.whole() > 0
    for v in L.stream(V):
        total.absorb(logits.at(T, v.pos, when=on, fill=1.0))
    return L.out(total=total.value)


@op()
def by_neighbours(logits: Tensor[f32, T, V]) -> Outputs:
    """A tree that is not the same for rotated chunks."""
    total = L.total(lanes=Tree.pairwise)
    for v in L.stream(V):
        total.absorb(logits[v])
    return L.out(total=total.value)


def outcome(of: Op, inputs: dict[str, np.ndarray]) -> tuple[int, str]:
    """Return how many results differ from the oracle's, and the source of aligned tensors."""
    program = canonical(of.trace(of.default_variant()))
    aligned, want = frozenset(inputs), run(program, inputs)
    got = run_generated(program, inputs, softmax=MathModel.PORTABLE, divisible=aligned)
    return sum(differing(got.tensors[name], want[name]) for name in want.tensors), got.emitted.source


def logits(*shape: int) -> np.ndarray:
    return 3 * np.random.default_rng(shape[-1]).standard_normal(shape, np.float32)


def test_rows_between_vectors_are_rotated() -> None:
    inputs = {"logits": bf16_bits(logits(ROWS, WIDTH)), "bias": bf16_bits(logits(WIDTH))}
    differ, source = outcome(of_logits, inputs)
    assert differ == 0 and source.count("logits_after = ") == 2  # full and masked steps


def test_rotated_chunks_heed_conditions_of_their_rows() -> None:
    active = np.array([1, 0, 1, 0, 1], np.int32)
    differ, source = outcome(of_active_rows, {"logits": logits(ROWS, WIDTH), "active": active})
    assert differ == 0 and source.count("logits_after = ") == 2


def test_trees_that_a_rotation_changes_are_not_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"logits": logits(ROWS, WIDTH)}
    differ, source = outcome(by_neighbours, inputs)
    assert differ == 0 and "logits_after" not in source
    monkeypatch.setattr(rotation, "_is_rotation_free", lambda *_: True)
    differ, source = outcome(by_neighbours, inputs)
    assert differ > 0 and "logits_after" in source


@pytest.mark.skipif(DISASSEMBLER is None, reason="Triton came without a disassembler")
def test_logits_of_an_odd_vocabulary_are_loaded_by_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without windows every load of logits is narrow."""
    extents = {"V": 151937, "T": 4096}

    def loads() -> Mapping[int, int]:
        source = machine_code.emitted(operators()["logp"], grad=False, extents=extents)
        return next(machine_code.codes(*source, tmp_path)).loads

    # 4 vectors of a lane and the one after them, in both loops; the last row's masked step, and the id's
    assert (loads()[128], loads()[16]) == (10, 33)
    monkeypatch.setattr(rotation, "_needed", lambda *_: False)
    assert 128 not in loads()
