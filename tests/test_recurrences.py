"""Schedules of recurrences: columns of what is carried share a program, and the bits are the oracle's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.lang import Axis, L, Outputs, Ragged, Tensor, Tree, f32, i32, op
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import placed, reference_extents, reference_variant
from rlk.runtime.registry import operators
from rlk.schedule.axes import roles
from rlk.schedule.backend_choice import by_cute_first
from rlk.schedule.rows import carried_matrix
from rlk.target.facts import target
from rlk.testing.bits import differing
from rlk.testing.generated import run_generated

T, B, S = Axis("T", dynamic=True), Axis("B", dynamic=True), Axis("S", chunk=1)
R, K, W = Ragged("R", over=B), Axis("K"), Axis("W")


@op()
def average(x: Tensor[f32, B, S, W], a: Tensor[f32, W]) -> Outputs:
    """y_t = a y_(t-1) + x_t."""
    y = L.carry(0.0, B, W)
    for s in L.stream(S):
        new = a * y.value + x[s]
        L.emit(y=new)
        y.hand(new)
    return L.out()


@op()
def attention(
    q: Tensor[f32, T, K], k: Tensor[f32, T, K], v: Tensor[f32, T, W], begin: Tensor[i32, B],
    end: Tensor[i32, B],
) -> Outputs:  # fmt: skip
    """S_t = S_(t-1) / 2 + k_t v_t^T, o_t = S_t^T q_t."""
    state = L.carry(0.0, B, K, W)
    for r in L.stream(R, begin=begin, end=end):
        new = 0.5 * state.value + k.at(r.pos, K) * v.at(r.pos, W)
        L.place("o", (T, W), ({T: r.pos}, L.sum(q.at(r.pos, K) * new, over=K, tree=Tree.halving)))
        state.hand(new)
    return L.out()


@op()
def both_ways(
    q: Tensor[f32, T, K], k: Tensor[f32, T, K], v: Tensor[f32, T, W], begin: Tensor[i32, B],
    end: Tensor[i32, B],
) -> Outputs:  # fmt: skip
    """From the end: S_t = S_(t+1) / 2 + k_t v_t^T, a_t = S_t v_t, b_t = S_t^T q_t."""
    state = L.carry(0.0, B, K, W)
    for r in L.stream(R, begin=begin, end=end, reverse=True):
        new = 0.5 * state.value + k.at(r.pos, K) * v.at(r.pos, W)
        L.place("a", (T, K), ({T: r.pos}, L.sum(new * v.at(r.pos, W), over=W, tree=Tree.halving)))
        L.place("b", (T, W), ({T: r.pos}, L.sum(new * q.at(r.pos, K), over=K, tree=Tree.halving)))
        state.hand(new)
    return L.out()


def of(spec: Any) -> Program:
    return canonical(spec.trace(spec.default_variant()))


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("width", [40, 5])
def test_a_lane_has_a_column_of_a_vector(width: int) -> None:
    pytest.importorskip("triton")
    given = {"x": drawn(3, 4, width), "a": drawn(width)}
    ran = run_generated(of(average), given)
    assert f"1 of B, {min(32, width + 3)} of W" in ran.emitted.source
    assert differing(ran.tensors["y"], run(of(average), given)["y"]) == 0


def test_columns_of_a_matrix_share_a_program_where_they_are_many() -> None:
    pytest.importorskip("triton")
    begin = np.cumsum([0, *(i % 4 for i in range(80))]).astype(np.int32)
    q, k, v = (drawn(begin[-1], n) for n in (32, 32, 40))
    given = {"q": q, "k": k, "v": v, "begin": begin[:-1], "end": begin[1:]}
    want, ran = run(of(attention), given)["o"], run_generated(of(attention), given)
    assert "1 of B, 64 of W" in ran.emitted.source and differing(ran.tensors["o"], want) == 0
    few = {**given, "begin": begin[:16], "end": begin[1:17]}
    assert "1 of B, 1 of W" in run_generated(of(attention), few).emitted.source
    order = np.random.default_rng(0).permutation(32)
    other = run(of(attention), {**given, "q": q[:, order], "k": k[:, order]})["o"]
    assert differing(other, want) > 0, "the control: another order of K has other bits"


@pytest.mark.parametrize(("height", "width", "tile"), [(32, 40, 32), (64, 64, 16), (64, 5, 8), (128, 16, 8)])
def test_columns_of_a_matrix_are_lanes_by_cute(height: int, width: int, tile: int) -> None:
    begin = np.cumsum([0, *(i % 4 for i in range(20))]).astype(np.int32)
    q, k, v = (drawn(begin[-1], n) for n in (height, height, width))
    given = {"q": q, "k": k, "v": v, "begin": begin[:-1], "end": begin[1:]}
    want, ran = run(of(attention), given)["o"], run_generated(of(attention), given, backend="cute")
    assert f"1 of B, {tile} of W" in ran.emitted.source and differing(ran.tensors["o"], want) == 0
    order = np.random.default_rng(0).permutation(height)
    other = run(of(attention), {**given, "q": q[:, order], "k": k[:, order]})["o"]
    assert differing(other, want) > 0, "the control: another order of K has other bits"


SQUARES = {
    (64, 64): "8 8", (128, 64): "8 8", (16, 40): "4 8", (5, 6): "1 2", (2, 100): "2 4", (100, 2): "4 2",
}  # fmt: skip


@pytest.mark.parametrize(("height", "width"), SQUARES)
def test_threads_have_the_high_bits_of_a_matrix_that_is_summed_both_ways(height: int, width: int) -> None:
    begin = np.cumsum([0, 1, 0, 3]).astype(np.int32)
    q, k, v = (drawn(begin[-1], n) for n in (height, height, width))
    given = {"q": q, "k": k, "v": v, "begin": begin[:-1], "end": begin[1:]}
    want, ran = run(of(both_ways), given), run_generated(of(both_ways), given, backend="cute")
    assert " ".join(re.findall(r"(\d+) to each", ran.emitted.source)) == SQUARES[height, width]
    assert all(differing(ran.tensors[name], want[name]) == 0 for name in "ab")
    for name, axis in (("b", height), ("a", width)):
        order = np.random.default_rng(0).permutation(axis)
        moved = {n: given[n][:, order] for n in ("qk" if name == "b" else "v")}
        other = run(of(both_ways), {**given, **moved})[name]
        assert axis < 9 or differing(other, want[name]) > 0, "the control: another order has other bits"


def test_cute_runs_recurrences_of_whole_matrices() -> None:
    sizes = {"T": 4096, "B": 16, "K": 64, "W": 64}
    assert by_cute_first(of(both_ways), target("sm_90a"), sizes)
    assert not by_cute_first(of(both_ways), target("sm_90a"), {**sizes, "K": 8, "W": 8})


def test_cute_runs_recurrences_of_many_columns_alone() -> None:
    sizes = {"T": 65536, "B": 512, "K": 64, "W": 64}
    assert by_cute_first(of(attention), target("sm_90a"), sizes)
    assert not by_cute_first(of(attention), target("sm_90a"), {**sizes, "B": 16})
    assert not by_cute_first(of(average), target("sm_90a"), {"B": 512, "S": 9, "W": 4096})


def test_a_fold_over_lanes_and_pieces_carries_no_matrix() -> None:
    op = operators()["sample"]
    program = placed(op, op.trace(reference_variant(op)))
    extents = reference_extents(op, program)
    assert not any(carried_matrix(kernel, roles(kernel, extents)) for kernel in program.kernels)
    sizes = {"T": 4096, "B": 16, "K": 64, "W": 64}
    matrices = [carried_matrix(kernel, roles(kernel, sizes)) for kernel in of(both_ways).kernels]
    assert any(matrices), "the control: axes of a recurrence's state"
