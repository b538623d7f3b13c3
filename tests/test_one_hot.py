"""A sum that picks one element of a row is made by the tiles that hold an element, with the oracle's bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from rlk.interp.run import run
from rlk.ir.nodes import MathModel, Program
from rlk.lang import Axis, L, Op, Tensor, Variant, bf16, f32, i64, op
from rlk.lower import triton as lowering
from rlk.lower.common.one_hot import one_hot_sums
from rlk.lower.triton import lower
from rlk.passes.pipeline import canonical
from rlk.schedule.heuristics import apart
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing

T, D = Axis("T", dynamic=True), Axis("D")
V = Axis("V", chunk=256, split=8)
ROWS, WIDE, DEPTH = 48, 8 * 300, 32
INSIDE = "(ahead >= 0) & (ahead < 256)"


@op()
def picking(hidden: Tensor[bf16, T, D], weight: Tensor[bf16, V, D], ids: Tensor[i64, T]):
    hit = L.total()
    for v in L.stream(V):
        hit.absorb(L.where(ids == v.pos.to(i64), L.dot(hidden, weight[v], over=D), -0.0))
    return L.out(z=hit.value)


@op()
def with_other_zeros(hidden: Tensor[bf16, T, D], weight: Tensor[bf16, V, D], ids: Tensor[i64, T]):
    hit = L.total()
    for v in L.stream(V):
        hit.absorb(L.where(v.pos.to(i64) == ids, L.dot(hidden, weight[v], over=D), 0.0))
    return L.out(z=hit.value)


@op()
def up_to(hidden: Tensor[bf16, T, D], weight: Tensor[bf16, V, D], ids: Tensor[i64, T]):
    hit = L.total()
    for v in L.stream(V):
        hit.absorb(L.where(v.pos.to(i64) <= ids, L.dot(hidden, weight[v], over=D), -0.0))
    return L.out(z=hit.value)


@op()
def from_memory(logits: Tensor[f32, T, V], ids: Tensor[i64, T]):
    hit = L.total()
    for v in L.stream(V):
        hit.absorb(L.where(v.pos.to(i64) == ids, logits[v], -0.0))
    return L.out(z=hit.value)


def program(spec: Op) -> Program:
    traced = spec.trace(Variant.of({}, frozenset(), {}))
    return canonical(traced, apart=apart(canonical(traced), {"T": 1 << 20, "V": 512}))


def drawn(numbers: np.random.Generator, *shape: int) -> Any:
    """Return bf16 as u16 patterns."""
    return (numbers.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def inputs() -> dict[str, Any]:
    """Return rows whose ids lie at both ends of every chunk, beyond the vocabulary, at the ends of i64."""
    numbers = np.random.default_rng(0)
    ends = [p * 300 + c for p in range(8) for c in (0, 255, 256, 299)]
    odd = [-1, -256, WIDE, WIDE + 17, 2**31, 2**32 + 5, -(2**63), 2**63 - 1]
    ids = np.array([*ends, *odd, *range(7, 7 + ROWS - len(ends) - len(odd))], np.int64)
    return {"hidden": drawn(numbers, ROWS, DEPTH), "weight": drawn(numbers, WIDE, DEPTH), "ids": ids}


def test_every_place_of_an_index_has_the_oracles_bits() -> None:
    what, given = program(picking), inputs()
    ran = generated.run_generated(what, given)
    assert f"here = {INSIDE}" in ran.emitted.source
    want = run(what, given, softmax=MathModel.SM90)["z"]
    assert np.count_nonzero(want) > ROWS // 2, "hits, not zeros, are compared"
    assert_same_bits(ran.tensors["z"], want, "z")


@pytest.mark.parametrize("wrong", ["(ahead > 0) & (ahead < 256)", "(ahead >= 0) & (ahead < 255)"])
def test_a_tile_that_misses_its_first_or_last_index_is_seen(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*args: Any, **kwargs: Any) -> Any:
        emitted = lower(*args, **kwargs)
        assert INSIDE in emitted.source
        return replace(emitted, source=emitted.source.replace(INSIDE, wrong))

    monkeypatch.setattr(lowering, "lower", changed)
    given = {name: x if name == "weight" else x[:1] for name, x in inputs().items()}
    given["ids"] = np.array([300 if "> 0" in wrong else 300 + 255], np.int64)  # alone in its tile
    made = generated.run_generated(program(picking), given).tensors["z"]
    assert differing(made, run(program(picking), given, softmax=MathModel.SM90)["z"]) == 1


def test_what_only_the_sum_needs_waits_for_it() -> None:
    (one_hot,) = one_hot_sums(program(picking).kernels[0]).values()
    assert str(one_hot.lane) == "V.lane"
    assert {type(let.node).__name__ for let in one_hot.inside} == {"Cast", "Map2", "Select"}


@pytest.mark.parametrize("spec", [with_other_zeros, up_to, from_memory])
def test_sums_of_other_terms_are_made_by_every_tile(spec: Op) -> None:
    """Zeros that are not the sum's identity, a range of indices, rows that memory delivers."""
    assert not any(one_hot_sums(kernel) for kernel in program(spec).kernels)
