"""Streams of axes that no value has together take one dim of a program's tile."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from rlk.errors import LoweringError
from rlk.interp.run import run
from rlk.lang import Axis, L, Op, Outputs, Ragged, Tensor, f32, i32, op
from rlk.passes.pipeline import canonical, launched
from rlk.passes.shared_tiles import share_tiles
from rlk.runtime.reference import emit
from rlk.schedule.axes import roles
from rlk.target.facts import target
from rlk.testing.bits import differing
from rlk.testing.cases import stored
from rlk.testing.generated import run_generated

P, Q, B = Axis("P", dynamic=True), Axis("Q", dynamic=True), Axis("B", dynamic=True)
ON = target("sm_90a")


def margin(chosen: int, rejected: int) -> Op:
    """Return a difference of two sums over segments, streamed by chunks of these sizes."""
    c, r = Ragged("C", over=B, chunk=chosen), Ragged("R", over=B, chunk=rejected)

    @op()
    def difference(
        x: Tensor[f32, P], y: Tensor[f32, Q], x_ends: Tensor[i32, B], y_ends: Tensor[i32, B]
    ) -> Outputs:
        first, second, top = L.total(), L.total(), L.argmax()
        for i in L.stream(c, begin=x_ends - 3, end=x_ends):
            first.absorb(x.at(i.pos))
        for j in L.stream(r, begin=y_ends - 5, end=y_ends):
            second.absorb(y.at(j.pos) * first.value)
            top.absorb(y.at(j.pos))
        return L.out(d=first.value - second.value, best=top.index)

    return difference


V, W = Axis("V", chunk=4), Axis("W", chunk=4)


@op()
def crossed(x: Tensor[f32, B, V], y: Tensor[f32, B, W]) -> Outputs:
    """The largest sum of a lane of each: these lanes meet."""
    first, second = L.total(kept=True), L.total(kept=True)
    for v in L.stream(V):
        first.absorb(x[v])
    for w in L.stream(W):
        second.absorb(y[w])
    return L.out(m=L.max(L.max(first.value + second.value, over=W.lanes), over=V.lanes))


@pytest.mark.parametrize("backend", ["triton", "cute"])
@pytest.mark.parametrize(("made", "dims"), [(margin(64, 64), 1), (margin(64, 32), 2), (crossed, 2)])
def test_axes_that_never_meet_share_a_dim_and_keep_their_bits(made: Op, dims: int, backend: str) -> None:
    """Equal chunks alone share, and lanes that meet in a value do not: those are the controls."""
    rng, ends = np.random.default_rng(0), np.array([5, 9, 12], np.int32)
    drawn = {"x": rng.normal(size=12), "y": rng.normal(size=12), "x_ends": ends, "y_ends": ends}
    if made is crossed:
        drawn = {"x": rng.normal(size=(3, 8)), "y": rng.normal(size=(3, 12))}
    program = canonical(made.trace(made.default_variant()))
    given = stored(drawn, program)
    want = run(program, given, softmax=ON.softmax)
    got = run_generated(program, given, on=ON, backend=backend)
    assert not any(differing(got.tensors[n], v) for n, v in want.tensors.items())
    static = {"V": 8, "W": 12} if made is crossed else {}
    (kernel,) = launched(program, static, ON.softmax, {"P": 12, "Q": 12, "B": 3, **static}).kernels
    assert len(roles(kernel, static).inside) == dims
    assert share_tiles(kernel) == kernel


@pytest.mark.parametrize("backend", ["triton", "cute", "tilelang"])
def test_long_chunks_fit_side_by_side(backend: str) -> None:
    """Two streams of 1024 elements at a time; their product fits no program, and the error says so."""
    for sizes, fits in (((1024, 1024), True), ((1024, 512), False)):
        program = canonical(margin(*sizes).trace(margin(*sizes).default_variant()))
        extents = {"P": 4096, "Q": 4096, "B": 16}
        if fits:
            emit(program, extents, ON, backend)
            continue
        with pytest.raises(LoweringError, match="chunks of one size for C and R"):
            emit(program, extents, ON, backend)
