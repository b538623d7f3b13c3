"""Carries along axes with chunks, one element at a time, and reductions of a chunk in its stream."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from edited_text import edit_text

from rlk.errors import Code, SpecError
from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.lang import Axis, L, Outputs, Tensor, Tree, Variant, f32, i32, op
from rlk.lower import triton as lowering
from rlk.passes.pipeline import canonical, launched
from rlk.schedule.heuristics import variety
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import run_generated

HOPPER = target("sm_90a")
T, V, N = Axis("T", dynamic=True), Axis("V", chunk=16, dynamic=True), Axis("N")
U = Axis("U", chunk=8, split=2)
SIZES = {"T": 5, "V": 41, "N": 6, "U": 50}


@op()
def sums(x: Tensor[f32, T, V], top: Tensor[f32, T]) -> Outputs:
    """Cumulative sums, how many of them are below a number, and a decayed sum from the other end."""
    along, count, behind = L.carry(0.0, T), L.total(), L.carry(0.0, T)
    for v in L.stream(V):
        L.emit(along=along.value + x[v])
        count.absorb((along.value + x[v] < top).to(i32))
        along.hand(along.value + x[v])
    for v in L.stream(V, reverse=True):
        behind.hand(behind.value * 0.5 + x[v])
        L.emit(behind=behind.value * 0.5 + x[v])
    return L.out(total=along.value, count=count.value, first=behind.value)


@op()
def states(x: Tensor[f32, T, V], key: Tensor[f32, N, V]) -> Outputs:
    """A vector as state, and a stream for each element of it."""
    state = L.carry(0.0, T, N)
    for v in L.stream(V):
        new = state.value * 0.5 + x[v] * key[v]
        largest = L.argmax()
        for u in L.stream(Axis("W", chunk=4, extent=9)):
            largest.absorb(x[v] * u.pos.to(f32))
        state.hand(new)
        L.emit(y=L.sum(new * key[v], over=N, tree=Tree.halving) + largest.max)
    return L.out(state=state.value)


@op()
def blocks(x: Tensor[f32, T, U]) -> Outputs:
    """Scales of blocks; the last of each piece is short."""
    worst = L.argmax()
    for u in L.stream(U):
        mean = L.sum(x[u], over=U, tree=Tree.halving) * 0.125
        near = (x[u] - mean) / L.max(abs(x[u]), over=U)
        some = L.any(near > 0.9, over=U)
        L.emit(near=L.where(some, near, 0.0))
        worst.absorb(near)
    return L.out(worst=worst.max, index=worst.index)


SPECS = {each.name: each for each in (sums, states, blocks)}


@cache
def program(name: str) -> Program:
    return canonical(SPECS[name].trace(Variant.of({})))


def case(name: str) -> dict[str, Any]:
    """Return inputs of a spec."""
    shapes = {f.name: [SIZES[axis.name] for axis in f.type.axes] for f in SPECS[name].formals}
    return {n: np.random.default_rng(1).normal(size=s).astype(np.float32) for n, s in shapes.items()}


def ran(name: str, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    options = {"backend": "triton", "on": HOPPER, "extents": {"W": 9}} | options
    return run_generated(program(name), given, **options).tensors


def wanted(name: str, given: dict[str, Any]) -> dict[str, Any]:
    return run(program(name), given, softmax=HOPPER.softmax, extents={"W": 9}).tensors


def assert_oracle(got: dict[str, Any], want: dict[str, Any]) -> None:
    for out, right in want.items():
        assert_same_bits(got[out], right, out)


@pytest.mark.parametrize("backend", ["triton", "cute"])
@pytest.mark.parametrize("name", SPECS)
def test_steps_have_the_bits_of_the_oracle(name: str, backend: str) -> None:
    pytest.importorskip("triton")
    given = case(name)
    assert_oracle(ran(name, given, backend=backend), wanted(name, given))


def test_a_chunk_is_no_order_of_a_carry() -> None:
    """The sums of elements one after the other, which neither a chunk nor another row can change."""
    pytest.importorskip("triton")
    given = case("sums")
    want = wanted("sums", given)
    ascending = np.zeros(5, np.float32)
    for i in range(41):
        ascending = ascending + given["x"][:, i]
        assert_same_bits(want["along"][:, i], ascending)
    static: dict[str, int] = {}
    (kernel, *_) = launched(program("sums"), static, HOPPER.softmax, SIZES).kernels
    assert len(program("sums").kernels) == 1
    for schedule in variety(kernel, HOPPER, SIZES)[:3]:
        assert_oracle(ran("sums", given, schedules=[schedule]), want)
    some = [4, 0]
    rows = ran("sums", {n: x[some] for n, x in given.items()})
    assert_oracle(rows, {out: x[some] for out, x in want.items()})
    # the control: other orders of the same elements
    assert differing(want["first"], want["total"]) and differing(want["total"], given["x"].sum(1))


@pytest.mark.parametrize(
    ("name", "text", "by"),
    [
        ("sums", "along_value = v_state + x", "along_value = x"),
        ("blocks", "tl.where(exists, x, negative_zero())", "tl.where(exists, x, 1.0)"),
    ],
)
def test_a_wrong_step_is_seen(name: str, text: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    given = case(name)
    want = wanted(name, given)
    edit_text(monkeypatch, lowering, lambda source: source.replace(text, by))
    got = ran(name, given)
    assert any(differing(got[out], right) for out, right in want.items())


def test_pieces_and_reduced_chunks_are_refused_beside_a_carry() -> None:
    @op()
    def of_pieces(x: Tensor[f32, T, U]) -> Outputs:
        run = L.carry(0.0, T)
        for u in L.stream(U):  # this line
            run.hand(run.value + x[u])
        return L.out(y=run.value)

    @op()
    def of_chunks(x: Tensor[f32, T, V]) -> Outputs:
        run = L.carry(0.0, T)
        for v in L.stream(V):  # this line
            run.hand(run.value + L.max(x[v], over=V))
        return L.out(y=run.value)

    for spec, said in ((of_pieces, "taken by 2 pieces"), (of_chunks, "taken by chunks that are reduced")):
        with pytest.raises(SpecError) as found:
            spec.trace(Variant.of({}))
        assert found.value.code is Code.CARRY_STEPS
        assert said in str(found.value) and "# this line" in str(found.value)


def test_no_gradient_is_derived_through_a_reduced_chunk() -> None:
    @op()
    def spec(x: Tensor[f32, T, U]) -> Outputs:
        total = L.total()
        for u in L.stream(U):
            total.absorb(x[u] - L.max(x[u], over=U))  # this line
        return L.out(total=total.value)

    spec.derive_vjp("x")
    with pytest.raises(SpecError) as found:
        assert spec.gradient is not None
        spec.gradient.trace(Variant.of({}, {"d_total"}))
    assert found.value.code is Code.VJP_DERIVED and "# this line" in str(found.value)
