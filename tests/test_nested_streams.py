"""Streams in the body of streams: loops in loops, with the oracle's bits on every backend that takes them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_text import edit_text
from test_computed_factors import small

from rlk.errors import Code, LoweringError, SpecError
from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.lang import Axis, L, Outputs, Ragged, Tensor, Variant, bf16, f32, i32, op
from rlk.lang.op import Op
from rlk.lower import triton as lowering
from rlk.passes.pipeline import canonical, launched
from rlk.runtime.reference import emit
from rlk.schedule.heuristics import variety
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import run_generated

HOPPER = target("sm_90a")
T, D = Axis("T", dynamic=True), Axis("D")
V, U, W = Axis("V", chunk=8, split=2), Axis("U", chunk=8, dynamic=True), Axis("W", chunk=32)
P = Axis("P", chunk=16, piece=32, leaf="piece")
I, B = Axis("I", chunk=1), Axis("B", dynamic=True)
S, Z = Ragged("S", over=B, chunk=16), Ragged("Z", over=B, chunk=8)
SIZES = {"T": 5, "V": 50, "U": 21, "W": 70, "P": 45, "I": 9, "D": 40, "B": 3, "S": 60, "Z": 60}


@op()
def pairs(x: Tensor[f32, T, V], y: Tensor[f32, T, U], shift: Tensor[i32, V], t: Tensor[f32, T, D]) -> Outputs:
    """A fold of each element; what it leaves is absorbed, stored, and read by a second inner stream."""
    total, most = L.total(), L.argmax()
    for v in L.stream(V):
        soft, near = L.softmax_sum(), L.total()
        for u in L.stream(U):
            soft.absorb(x[v] * y[u])
        for u in L.stream(U, begin=0, end=shift[v] + 5):
            near.absorb(y[u] * t.at(T, shift[v] + u.pos, inside=True) - soft.max)
        total.absorb(soft.lse())
        most.absorb(near.value)
        L.emit(near=near.value)
    return L.out(total=total.value, index=most.index)


@op()
def causal(x: Tensor[f32, S], y: Tensor[f32, S], begin: Tensor[i32, B], end: Tensor[i32, B]) -> Outputs:
    """Each element of a segment with those up to it."""
    total = L.total()
    for s in L.stream(S, begin=begin, end=end):
        soft = L.softmax_sum()
        for z in L.stream(Z, begin=begin, end=s.pos + 1):
            soft.absorb(x.at(s.pos) * y.at(z.pos))
        total.absorb(soft.lse())
    return L.out(total=total.value)


@op()
def deep(x: Tensor[f32, T, V], y: Tensor[f32, T, U], p: Tensor[f32, T, P], i: Tensor[f32, T, I]) -> Outputs:
    """Pieces in the third stream; a state for each element of the first; a state around a stream."""
    total = L.total()
    for v in L.stream(V):
        inner = L.total()
        for u in L.stream(U):
            soft = L.softmax_sum()
            for q in L.stream(P):
                soft.absorb(x[v] * y[u] + p[q])
            inner.absorb(soft.lse())
        run = L.carry(0.0, T, V)
        for step in L.stream(I):
            run.hand(run.value * 0.5 + x[v] * i[step])
        total.absorb(inner.value + run.value)
    state = L.carry(0.0, T)
    for step in L.stream(I):
        largest = L.argmax()
        for u in L.stream(U):
            largest.absorb(y[u] * state.value)
        state.hand(i[step] + largest.max)
    return L.out(total=total.value, state=state.value)


@op()
def similar(x: Tensor[bf16, W, D], y: Tensor[bf16, P, D], scale: Tensor[f32, T]) -> Outputs:
    """A product of two chunks: the mean of a kernel function of two samples."""
    total = L.total()
    for w in L.stream(W):
        inner = L.total()
        for p in L.stream(P):
            inner.absorb(L.exp2(L.dot(x[w], y[p], over=D) * 0.1))
        total.absorb(inner.value)
    return L.out(total=total.value * scale)


@op()
def below(x: Tensor[f32, T, W], y: Tensor[f32, T, U]) -> Outputs:
    """Pairs counted."""
    total = L.total()
    for w in L.stream(W):
        inner = L.total()
        for u in L.stream(U):
            inner.absorb((y[u] < x[w]).to(i32))
        total.absorb(inner.value)
    return L.out(total=total.value)


SPECS = {each.name: each for each in (pairs, causal, deep, similar, below)}


@cache
def program(name: str, *apart: str) -> Program:
    return canonical(SPECS[name].trace(Variant.of({})), apart=frozenset(apart))


def case(name: str) -> dict[str, Any]:
    """Return inputs of a spec."""
    made: dict[str, Any] = {}
    for i, formal in enumerate(SPECS[name].formals):
        shape = [SIZES[axis.name] for axis in formal.type.axes]
        x = np.random.default_rng(i).normal(size=shape).astype(np.float32)
        made[formal.name] = small(*shape, seed=i) if formal.type.dtype is bf16 else x
    if name == "pairs":
        made["shift"] = np.arange(50, dtype=np.int32) % 16
    if name == "causal":
        made |= {"begin": np.array([0, 7, 7], np.int32), "end": np.array([7, 7, 60], np.int32)}
    return made


def ran(name: str, given: dict[str, Any], made: Program | None = None, **options: Any) -> dict[str, Any]:
    options = {"backend": "triton", "on": HOPPER, "extents": SIZES} | options
    return run_generated(made or program(name), given, **options).tensors


def assert_oracle(got: dict[str, Any], want: dict[str, Any]) -> None:
    for out, right in want.items():
        assert_same_bits(got[out], right, out)


@pytest.mark.parametrize(
    ("name", "backend", "on"),
    [
        ("pairs", "triton", "sm_90a"), ("causal", "triton", "gfx942"), ("deep", "triton", "sm_90a"),
        ("similar", "triton", "sm_90a"), ("deep", "cute", "sm_90a"),
    ],
)  # fmt: skip
def test_loops_in_loops_have_the_bits_of_the_oracle(name: str, backend: str, on: str) -> None:
    pytest.importorskip("triton")
    given = case(name)
    want = run(program(name), given, softmax=target(on).softmax, extents=SIZES).tensors
    assert_oracle(ran(name, given, backend=backend, on=target(on)), want)


def test_a_row_is_that_of_other_tiles_and_of_chunks_side_by_side() -> None:
    pytest.importorskip("triton")
    given = case("pairs")
    want = run(program("pairs"), given, softmax=HOPPER.softmax).tensors
    static = {name: SIZES[name] for name in "VD"}
    (kernel,) = launched(program("pairs"), static, HOPPER.softmax, SIZES).kernels
    for schedule in variety(kernel, HOPPER, SIZES)[:3]:
        assert_oracle(ran("pairs", given, schedules=[schedule]), want)
    assert_oracle(ran("pairs", given, program("pairs", "V", "U")), want)
    some = [3, 1]
    rows = ran("pairs", {n: x if n == "shift" else x[some] for n, x in given.items()}, extents=None)
    assert_oracle(rows, {out: x[some] for out, x in want.items()})
    # the control: the inner stream in another order
    turned = given | {"y": np.ascontiguousarray(given["y"][:, ::-1])}
    assert differing(ran("pairs", turned)["total"], want["total"])


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("= z < s_plus_1", "= z < s_plus_1 + 1"),
        ("tl.range(first_full_steps_2, last_steps_2)", "tl.range(first_full_steps_2, last_steps_2 - 1)"),
    ],
)
def test_a_wrong_inner_loop_is_seen(text: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    given = case("causal")
    want = run(program("causal"), given, softmax=HOPPER.softmax, extents=SIZES).tensors["total"]
    edit_text(monkeypatch, lowering, lambda source: source.replace(text, by))
    assert differing(ran("causal", given)["total"], want)


def test_it_compiles(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from rlk.backends.triton import compile_triton

    for name, on in (("similar", "sm_90a"), ("below", "gfx942")):
        (tmp_path / on).mkdir()
        compile_triton(emit(program(name), SIZES, target(on))[0], on, tmp_path / on)
        assert {file.suffix for file in (tmp_path / on).iterdir()} & {".cubin", ".hsaco"}


# --- refusals ---


def refused(spec: Op, backend: str) -> str:
    with pytest.raises(LoweringError) as found:
        emit(canonical(spec.trace(Variant.of({}))), SIZES, HOPPER, backend)
    return str(found.value)


def test_cute_has_no_products_in_a_stream_of_streams() -> None:
    text = refused(similar, "cute")
    said = "a contraction beside a stream", "test_nested_streams.py:", "instead: "
    assert all(part in text for part in said), text


def test_no_gradient_is_derived_through_it() -> None:
    @op()
    def spec(x: Tensor[f32, T, V], y: Tensor[f32, T, U]) -> Outputs:
        total = L.total()
        for v in L.stream(V):
            inner = L.total()
            for u in L.stream(U):  # this line
                inner.absorb(x[v] * y[u])
            total.absorb(inner.value)
        return L.out(total=total.value)

    spec.derive_vjp("y")
    with pytest.raises(SpecError) as found:
        assert spec.gradient is not None
        spec.gradient.trace(Variant.of({}, {"d_total"}))
    assert found.value.code is Code.VJP_DERIVED and "# this line" in str(found.value)
