"""Schedules of rows: sums that share steps, and loads behind them, have the bits of the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")

from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.lang import Axis, L, Outputs, Tensor, Tree, f32, i32, op
from rlk.passes.pipeline import canonical
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.specs.sampling import sample
from rlk.target.facts import target
from rlk.testing.bits import differing
from rlk.testing.generated import run_generated

T, N = Axis("T", dynamic=True), Axis("N")
S = Axis("S", chunk=32, piece=64, dynamic=True)
H200, GFX = target("sm_90a"), target("gfx942")


@op()
def moments(x: Tensor[f32, T, N], weight: Tensor[f32, N]) -> Outputs:
    """Three sums of a row, the third of what the first two give, and a row that a weight scales."""
    one, two = L.sum(x, over=N, tree=Tree.vector8), L.sum(x * x, over=N, tree=Tree.vector8)
    rest = L.sum(x * one + two, over=N, tree=Tree.vector8)
    return L.out(y=x * rest * weight, one=one, two=two)


@op()
def gathered(order: Tensor[i32, S], x: Tensor[f32, T], y: Tensor[f32, T]) -> Outputs:
    """A sum at loaded indices."""
    total = L.total()
    for s in L.stream(S):
        at = order[s]
        total.absorb(x.at(at) * y.at(at))
    return L.out(total=total.value)


def of(spec: Any) -> Program:
    return canonical(spec.trace(spec.default_variant()))


def given(rows: int = 3, width: int = 200) -> dict[str, Any]:
    draw = np.random.default_rng(rows)
    return {"x": draw.normal(size=(rows, width)).astype(np.float32), "weight": np.float32(range(width))}


def chosen(program: Program, on: Any = H200, **extents: int) -> Schedule:
    return choose(program.kernels[0], on, None, extents)


@pytest.mark.parametrize("warps", [2, 8])
def test_two_sums_of_one_order_share_their_steps(warps: int) -> None:
    made = run_generated(of(moments), given(), schedules=[Schedule(warps=warps)])
    want = run(of(moments), given())
    assert made.emitted.source.count("tl.join(") == 1 and "one, two = sums_over_n(" in made.emitted.source
    assert all(differing(made.tensors[name], want[name]) == 0 for name in ("y", "one", "two"))
    turned = {**given(), "x": np.roll(given()["x"], 3, axis=1)}
    assert differing(run(of(moments), turned)["one"], want["one"]) > 0, "the control: another order"


def test_a_warp_alone_adds_one_tile_after_the_other() -> None:
    made = run_generated(of(moments), given(), schedules=[Schedule(warps=1)])
    assert "tl.join(" not in made.emitted.source


def test_late_loads_are_behind_the_sums() -> None:
    late = chosen(of(moments), T=3, N=200)
    assert late.late and late.warps <= 4 and not chosen(of(moments), GFX, T=3, N=200).late
    want = run(of(moments), given())
    for schedule, behind in ((late, True), (replace(late, late=False), False)):
        made = run_generated(of(moments), given(), schedules=[schedule])
        kernel = made.emitted.source.split("def moments(")[1]
        assert (kernel.index("tl.load(weight_ptr") > kernel.index("sum_over_n(")) == behind
        assert differing(made.tensors["y"], want["y"]) == 0


def test_chunks_of_few_whole_rows_are_in_flight_together() -> None:
    """The controls: as many rows as fill a device, and another device."""
    few, many = (chosen(of(sample), T=rows, V=151936) for rows in (1, 128))
    assert (few.warps, few.unroll, many.unroll) == (8, 8, 1)
    assert chosen(of(sample), GFX, T=1, V=151936).unroll == 1


def test_loads_at_loaded_indices_are_in_levels() -> None:
    found = chosen(of(gathered), S=200, T=90)
    assert found.levels and found.registers and not chosen(of(moments), T=3, N=200).levels
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=90).astype(np.float32) for _ in range(2))
    tensors = {"order": rng.integers(0, 90, 200).astype(np.int32), "x": x, "y": y}
    made = run_generated(of(gathered), tensors)
    assert "tl.debug_barrier()" in made.emitted.source
    assert differing(made.tensors["total"], run(of(gathered), tensors)["total"]) == 0
