"""Sums of products of computed factors, absorb(p, by=v), of rows that are no segments: one tile of rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_text import edit_text
from test_computed_factors import aligned, small

from rlk.errors import LoweringError
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
T, D, N, B, H = Axis("T", dynamic=True), Axis("D"), Axis("N"), Axis("B"), Axis("H")
S = Axis("S", chunk=64, leaf="segment", dynamic=True)
P = Axis("P", chunk=32, piece=64, leaf="piece")
M = Axis("M")
SIZES = {"T": 37, "D": 48, "N": 32, "B": 2, "H": 3, "S": 160, "P": 150, "M": 20}
ODD = {"D": 42, "N": 22, "S": 150}  # rows at no multiple of 16 bytes
"""Sizes whose rows begin at no multiple of 32 bytes: without TMA, and with both factors in one place."""


@op()
def plain(q: Tensor[bf16, T, D], k: Tensor[bf16, S, D], v: Tensor[bf16, S, N]) -> Outputs:
    """Products of scores that are not negative, and values."""
    total = L.total()
    for s in L.stream(S):
        total.absorb(L.maximum(L.dot(q, k[s], over=D), 0.0), by=v[s])
    return L.out(y=total.value)


@op()
def decayed(
    q: Tensor[bf16, T, D], k: Tensor[bf16, P, D], v: Tensor[bf16, P, N], rate: Tensor[f32, T],
    weight: Tensor[f32, P],
) -> Outputs:  # fmt: skip
    """Numbers of rows and of keys beside the scores; keys in pieces."""
    total = L.total()
    for p in L.stream(P):
        total.absorb(L.exp2(L.dot(q, k[p], over=D) * 0.1 - rate) * weight[p], by=v[p])
    return L.out(y=total.value * rate)


@op()
def causal(
    q: Tensor[bf16, B, T, H, D], k: Tensor[bf16, B, S, H, D], v: Tensor[bf16, B, S, H, N]
) -> Outputs:
    """Heads of batches: linear attention."""
    total = L.total()
    for s in L.stream(S):
        scores = L.dot(q, k[s], over=D, each=(B, H))
        total.absorb(L.where(s.pos <= L.pos(T), scores, 0.0), by=v[s])
    return L.out(y=total.value)


@op()
def beside(q: Tensor[bf16, M, H, D], k: Tensor[bf16, S, D], v: Tensor[bf16, S, N]) -> Outputs:
    """Two static dims of rows; a softmax beside a sum."""
    soft, total = L.softmax_sum(), L.total()
    for s in L.stream(S):
        scores = L.dot(q, k[s], over=D)
        soft.absorb(scores, v=v[s])
        total.absorb(scores, by=v[s])
    return L.out(y=soft.mean("v"), z=total.value)


@op()
def loaded(p: Tensor[f32, T, S], v: Tensor[bf16, S, N]) -> Outputs:
    """A factor that is computed of an input."""
    total = L.total()
    for s in L.stream(S):
        total.absorb(L.maximum(p[s], 0.0), by=v[s])
    return L.out(y=total.value)


SPECS = {each.name: each for each in (plain, decayed, causal, beside, loaded)}


@cache
def program(name: str) -> Program:
    return canonical(SPECS[name].trace(Variant.of({})))


def case(name: str, rows: int = SIZES["T"], **others: int) -> dict[str, Any]:
    """Return inputs of a spec with so many rows, and other sizes where they are given."""
    made, sizes = {}, SIZES | {"T": rows} | others
    for i, formal in enumerate(SPECS[name].formals):
        shape = [sizes[axis.name] for axis in formal.type.axes]
        x = np.random.default_rng(i).normal(size=shape).astype(np.float32)
        made[formal.name] = x if formal.type.dtype is f32 else small(*shape, seed=i)
    return made


def ran(name: str, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    options = {"divisible": aligned(program(name)), "on": HOPPER, "backend": "triton"} | options
    return run_generated(program(name), given, **options).tensors


@pytest.mark.parametrize(
    ("name", "rows", "on"),
    [
        ("plain", 37, "sm_90a"), ("plain", 5, "gfx942"), ("decayed", 37, "sm_90a"), ("causal", 37, "sm_90a"),
        ("beside", 37, "sm_90a"), ("loaded", 37, "gfx942"),
    ],
)  # fmt: skip
def test_sums_have_the_bits_of_the_oracle(name: str, rows: int, on: str) -> None:
    pytest.importorskip("triton")
    given = case(name, rows)
    got = ran(name, given, on=target(on))
    for out, want in run(program(name), given, softmax=target(on).softmax).tensors.items():
        assert_same_bits(got[out], want, f"{name} {out}")


def test_tiles_and_rows_beside_it_change_no_row() -> None:
    pytest.importorskip("triton")
    given, extents = case("plain"), {a: SIZES[a] for a in "TDNS"}
    want = run(program("plain"), given).tensors["y"]
    static = {a: n for a, n in extents.items() if a in "DN"}
    (kernel,) = launched(program("plain"), static, HOPPER.softmax, extents).kernels
    for schedule in variety(kernel, HOPPER, extents):
        assert_same_bits(ran("plain", given, schedules=[schedule])["y"], want, str(schedule))
    some = np.arange(30, 10, -1)
    assert_same_bits(ran("plain", given | {"q": given["q"][some]})["y"], want[some], "other rows")
    # the control: the same sums over keys in another order
    turned = given | {name: np.ascontiguousarray(given[name][::-1]) for name in "kv"}
    assert differing(ran("plain", turned)["y"], want)


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("tl.where(exists, acc_new_larger, 0.0)", "tl.where(s < 159, acc_new_larger, 0.0)"),
        ("acc_new_larger_bf16, v, total)", "acc_new_larger_bf16, v)"),
        ("64 + tl.arange(0, 64)[:, None]", "64 + tl.arange(0, 64)[:, None] // 2 * 2"),
    ],
)
def test_a_wrong_step_is_seen(text: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    given = case("plain")
    want = run(program("plain"), given).tensors["y"]
    edit_text(monkeypatch, lowering, lambda source: source.replace(text, by))
    assert differing(ran("plain", given)["y"], want)


def test_it_compiles(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from rlk.backends.triton import compile_triton

    emitted = emit(program("plain"), {"T": 16, "D": 16, "N": 16, "S": 500}, target("gfx942"))[0]
    compile_triton(emitted, "gfx942", tmp_path)
    assert ".hsaco" in {file.suffix for file in tmp_path.iterdir()}


@op()
def vector(p: Tensor[f32, S], v: Tensor[bf16, S, N]) -> Outputs:
    """A computed factor without rows."""
    total = L.total()
    for s in L.stream(S):
        total.absorb(p[s], by=v[s])
    return L.out(y=total.value)


@pytest.mark.parametrize(
    ("spec", "backend", "said"),
    [
        (plain, "cute", ("query rows T are not the segments", "instead: rows of Ragged(")),
        (plain, "tilelang", ("query rows T are not the segments", "instead: rows of Ragged(")),
        (vector, "triton", ("of a computed vector", "instead: absorb(p * v.to(f32))")),
    ],
)
def test_others_are_refused_at_the_line(spec: Op, backend: str, said: tuple[str, ...]) -> None:
    made = canonical(spec.trace(Variant.of({})))
    with pytest.raises(LoweringError) as found:
        emit(made, {"T": 300, "D": 64, "N": 64, "S": 500}, target("sm_90a"), backend)
    text = str(found.value)
    assert all(part in text for part in ("test_dense_rows.py:", "absorb(", *said)), text


G = Axis("G")
R, Z = Ragged("R", over=G), Ragged("Z", over=G, chunk=64, piece=128, leaf="piece")


@op(bounds={R: (T,)})
def pieces(
    q: Tensor[bf16, T, D], k: Tensor[bf16, Z, D], v: Tensor[bf16, Z, N], begin: Tensor[i32, G],
    end: Tensor[i32, G],
) -> Outputs:  # fmt: skip
    """Segments with keys in pieces, and nothing beside the sum."""
    row, inside = begin + L.pos(R), L.pos(R) < end - begin
    queries, total = q.at(row, D, when=inside, inside=True), L.total()
    for z in L.stream(Z, begin=begin, end=end):
        scores = L.dot(queries, k.at(z.pos, D, inside=True), over=D)
        total.absorb(scores, by=v.at(z.pos, N, inside=True))
    L.place("y", (T, N), ({T: row}, total.value), when=inside)
    return L.out()


def test_cute_refuses_sums_in_pieces_without_a_softmax() -> None:
    """Formerly its writer failed."""
    made = canonical(pieces.trace(Variant.of({})))
    with pytest.raises(LoweringError, match="sums in pieces without a softmax") as found:
        emit(made, {"T": 300, "D": 64, "N": 64, "G": 4, "Z": 300, "R": 300}, target("sm_90a"), "cute")
    assert "absorb(" in str(found.value) and 'leaf="segment"' in str(found.value)
