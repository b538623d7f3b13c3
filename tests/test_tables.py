"""Tables: what a kernel leaves for others to gather from; and generated operators."""

from __future__ import annotations

import numpy as np
import pytest

from rlk.errors import Code, SpecError
from rlk.interp.run import run
from rlk.lang import Axis, L, Op, Outputs, Slopes, Tensor, Variant, f32, generated, i32, op
from rlk.passes.pipeline import canonical
from rlk.schedule.axes import kind

T = Axis("T", dynamic=True)
R = Axis("R", dynamic=True)
N = Axis("N", chunk=8)
M = Axis("M", chunk=8)


@op()
def centred(x: Tensor[f32, R, N], y: Tensor[f32, T], owner: Tensor[i32, T]) -> Outputs:
    """y minus the sum of its owner's row."""
    total = L.total()
    for n in L.stream(N):
        total.absorb(x[n])
    sums = L.table(total.value, "sums")
    return L.out(centred=y - sums.at(owner), first=y - sums.at(owner * 0))


@op()
def apart(x: Tensor[f32, R, N], y: Tensor[f32, T, M]) -> Outputs:
    """Two sums that have nothing in common."""
    rows, others = L.total(), L.total()
    for n in L.stream(N):
        rows.absorb(x[n])
    for m in L.stream(M):
        others.absorb(y[m])
    return L.out(rows=rows.value, others=others.value)


def program(of: Op) -> object:
    return canonical(of.trace(of.default_variant()))


def test_a_table_is_gathered_from_in_a_kernel_of_its_own() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 20)).astype(np.float32), rng.normal(size=9).astype(np.float32)
    owner = rng.integers(0, 5, 9).astype(np.int32)
    made = run(program(centred), {"x": x, "y": y, "owner": owner})  # type: ignore[arg-type]
    sums = made["sums"]
    np.testing.assert_allclose(sums, x.sum(1, dtype=np.float64), rtol=1e-5)
    assert (made["centred"] == y - sums[owner]).all() and (made["first"] == y - sums[0]).all()
    assert [kind(k) for k in program(centred).kernels] == ["rows", "rows"]  # type: ignore[attr-defined]


def test_results_of_loops_along_other_axes_get_kernels_of_their_own() -> None:
    kernels = program(apart).kernels  # type: ignore[attr-defined]
    assert [{d.name for d in k.params} for k in kernels] == [{"x", "rows"}, {"y", "others"}]


def test_a_table_is_made_outside_of_streams_once() -> None:
    @op()
    def inside(x: Tensor[f32, R, N]) -> Outputs:
        for n in L.stream(N):
            L.table(x[n], "found")
        return L.out()

    @op()
    def twice(x: Tensor[f32, T]) -> Outputs:
        L.table(x + 1.0, "found")
        return L.out(y=L.table(x, "found").whole())

    for wrong, code in ((inside, Code.KEEP_IN_STREAM), (twice, Code.OUTPUT_TWICE)):
        with pytest.raises(SpecError) as caught:
            wrong.trace(wrong.default_variant())
        assert caught.value.code is code


def scaled(factor: float) -> Op:
    """Return a generated operator: x times a constant."""

    def spec(x: object) -> Outputs:
        return L.out(y=x * factor)  # type: ignore[operator]

    def gradient(ctx: object, d_y: object) -> Outputs:
        return L.out(d_x=d_y * factor)  # type: ignore[operator]

    slopes = Slopes(gradient, ("x",), {"d_y": Tensor[f32, T]})
    return generated("scaled_", spec, {"x": Tensor[f32, T]}, (), "x times a constant.", slopes)


def test_generated_operators_that_do_the_same_are_one() -> None:
    assert scaled(2.0) is scaled(2.0)
    assert scaled(2.0).name != scaled(3.0).name and scaled(2.0).name.startswith("scaled_")
    made = scaled(2.0)
    assert made.gradient is not None
    backward = made.gradient.trace(Variant.of(wanted={"x"}))
    assert backward.name == f"{made.name}_grad" and made.trace(made.default_variant()).name == made.name
