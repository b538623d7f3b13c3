"""The table of what each backend takes, in docs/limits.md, says what the lowerings do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlk.errors import Code, LoweringError, SpecError
from rlk.interp.run import run
from rlk.ir.nodes import Program, Role
from rlk.lang import (
    Axis,
    L,
    Outputs,
    Ragged,
    Tensor,
    Tile,
    Tree,
    Variant,
    bf16,
    boolean,
    e4m3,
    f16,
    f32,
    i8,
    i32,
    op,
    u8,
)  # fmt: skip
from rlk.lang.op import Op
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import emit
from rlk.target.facts import target
from rlk.testing.cases import stored

PAGE = Path(__file__).parents[1] / "docs/limits.md"
T, N, K, J, D = Axis("T", dynamic=True), Axis("N"), Axis("K"), Axis("J"), Axis("D")
B, E, C = Axis("B"), Axis("E"), Axis("C", dynamic=True)
V, U, I = Axis("V", chunk=64), Axis("U", chunk=64), Axis("I", chunk=1)
S, Z = Axis("S", chunk=64, leaf="segment"), Ragged("Z", over=E, chunk=64, leaf="segment")
R, A = Ragged("R", over=E), Axis("A", extent=4)
EXTENTS = {
    "T": 300, "N": 256, "K": 256, "J": 128, "D": 128, "B": 4, "E": 4, "C": 300, "V": 256, "U": 128, "I": 32,
    "S": 256, "Z": 300, "R": 300, "A": 4,
}  # fmt: skip
SMALL = {**dict.fromkeys(EXTENTS, 4), "A": 4}
FORMS: dict[str, Callable[[], Op]] = {}
BACKENDS = {"Triton": "triton", "CuTe": "cute", "TileLang": "tilelang"}


def form(name: str, **options: object) -> Callable[[Callable[..., Outputs]], Callable[..., Outputs]]:
    """Note a spec by the first column of its row; it is traced when its row is tested."""

    def noted(fn: Callable[..., Outputs]) -> Callable[..., Outputs]:
        FORMS[name] = lambda: op(name="tried", **options)(fn)  # type: ignore[arg-type]
        return fn

    return noted


# --- several contractions ---


@form("two products of one `x`: SwiGLU of two weights")
def _(x: Tensor[bf16, T, K], gate: Tensor[bf16, N, K], up: Tensor[bf16, N, K]) -> Outputs:
    g = L.dot(x, gate, over=K)
    return L.out(y=g * L.sigmoid(g) * L.dot(x, up, over=K))


@form("two products that share nothing")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], z: Tensor[bf16, T, J], v: Tensor[bf16, N, J]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K) + L.dot(z, v, over=J))


@form("the same, one of a length that calls decide")
def _(x: Tensor[bf16, C, J], w: Tensor[bf16, C, N], z: Tensor[bf16, K, J], v: Tensor[bf16, K, N]) -> Outputs:
    return L.out(y=L.dot(x, w, over=C) + L.dot(z, v, over=K))


@form("two products, a factor of one computed")
def _(x: Tensor[bf16, T, K], gate: Tensor[i8, N, K], up: Tensor[bf16, N, K]) -> Outputs:
    return L.out(y=L.dot(x, gate.to(bf16), over=K) * L.dot(x, up, over=K))


@form("a product of a product: LoRA")
def _(
    x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], down: Tensor[bf16, J, K], up: Tensor[bf16, N, J]
) -> Outputs:
    h = L.dot(x, down, over=K).to(bf16)
    return L.out(y=L.dot(x, w, over=K) + L.dot(h, up, over=J))


@form("LoRA, the small product kept")
def _(
    x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], down: Tensor[bf16, J, K], up: Tensor[bf16, N, J]
) -> Outputs:
    h = L.keep(L.dot(x, down, over=K).to(bf16), "h")
    return L.out(y=L.dot(x, w, over=K) + L.dot(h, up, over=J))


# --- batches, conditions, gathers ---


@form("batched matmul, `each=(B,)`")
def _(x: Tensor[bf16, B, T, K], w: Tensor[bf16, B, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K, each=(B,)))


@form("batched matmul without `each=`")
def _(x: Tensor[bf16, B, T, K], w: Tensor[bf16, B, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K))


@form("rows of two dims, one matrix")
def _(x: Tensor[bf16, B, T, K], w: Tensor[bf16, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K))


@form("rows with a condition, `x.at(T, K, when=live)`")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], live: Tensor[boolean, T]) -> Outputs:
    return L.out(y=L.dot(x.at(T, K, when=live), w, over=K))


@form("the same, the result masked by it")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], live: Tensor[boolean, T]) -> Outputs:
    return L.out(y=L.where(live, L.dot(x.at(T, K, when=live), w, over=K), 0.0))


@form("a condition along K, `L.where(live, x, 0.0)`")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], live: Tensor[boolean, K]) -> Outputs:
    return L.out(y=L.dot(L.where(live, x, 0.0), w, over=K))


@form("gathered rows, `x.at(row, K)`")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], row: Tensor[i32, T]) -> Outputs:
    return L.out(y=L.dot(x.at(row, K), w, over=K))


@form("gathered along K, `x.at(T, order)`")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], order: Tensor[i32, K]) -> Outputs:
    return L.out(y=L.dot(x.at(T, order), w, over=K))


@form("a factor with `fill=`")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w.at(N, L.pos(K) + 3, fill=L.number(0.0, bf16)), over=K))


@form("grouped GEMM, rows sorted by expert", bounds={R: (T,)})
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, E, N, K], begin: Tensor[i32, E], end: Tensor[i32, E]) -> Outputs:
    row, inside = begin + L.pos(R), L.pos(R) < end - begin
    y = L.dot(x.at(row, K, when=inside, inside=True), w.at(E, N, K), over=K, each=(E,))
    L.place("y", (T, N), ({T: row}, y.to(bf16)), when=inside)
    return L.out()


@form("grouped GEMM, `w.at(expert, N, K)`")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, E, N, K], expert: Tensor[i32, T]) -> Outputs:
    return L.out(y=L.dot(x, w.at(expert, N, K), over=K, each=(T,)))


# --- streams ---


@form("two streams with a product in each")
def _(x: Tensor[bf16, T, D], w: Tensor[bf16, V, D]) -> Outputs:
    soft, total = L.softmax_sum(), L.total()
    for v in L.stream(V):
        soft.absorb(L.dot(x, w[v], over=D))
    lse = soft.lse()
    for v in L.stream(V):
        total.absorb(L.maximum(L.dot(x, w[v], over=D) - lse, 0.0))
    return L.out(lse=lse, total=total.value)


@form("`absorb(p, by=v)` of a sum")
def _(q: Tensor[bf16, T, D], k: Tensor[bf16, S, D], v: Tensor[bf16, S, N]) -> Outputs:
    total = L.total()
    for s in L.stream(S):
        total.absorb(L.maximum(L.dot(q, k[s], over=D), 0.0), by=v[s])
    return L.out(y=total.value)


@form("the same, rows and keys in segments", bounds={R: (T,)})
def _(
    q: Tensor[bf16, T, D], k: Tensor[bf16, Z, D], v: Tensor[bf16, Z, N], begin: Tensor[i32, E],
    end: Tensor[i32, E],
) -> Outputs:  # fmt: skip
    row, inside = begin + L.pos(R), L.pos(R) < end - begin
    queries = q.at(row, D, when=inside, inside=True)
    total = L.total()
    for z in L.stream(Z, begin=begin, end=end):
        scores = L.dot(queries, k.at(z.pos, D, inside=True), over=D)
        total.absorb(L.maximum(scores, 0.0), by=v.at(z.pos, N, inside=True))
    L.place("y", (T, N), ({T: row}, total.value), when=inside)
    return L.out()


@form("a stream inside a stream")
def _(x: Tensor[f32, T, V], y: Tensor[f32, T, U]) -> Outputs:
    total = L.total()
    for v in L.stream(V):
        inner = L.total()
        for u in L.stream(U):
            inner.absorb(y[u])
        total.absorb(x[v] * inner.value)
    return L.out(z=total.value)


@form("the same, with a product in the inner one")
def _(x: Tensor[f32, T], k: Tensor[bf16, V, D], v: Tensor[bf16, U, D]) -> Outputs:
    total = L.total()
    for i in L.stream(V):
        inner = L.softmax_sum()
        for j in L.stream(U):
            inner.absorb(L.dot(k[i], v[j], over=D))
        total.absorb(inner.lse())
    return L.out(z=x * total.value)


@form("a scan, `L.carry` with `chunk=1`")
def _(x: Tensor[f32, T, I]) -> Outputs:
    run = L.carry(0.0, T)
    for i in L.stream(I):
        run.hand(run.value + x[i])
        L.emit(y=run.value + x[i])
    return L.out()


@form("a scan by chunks, `L.carry` with `chunk=64`")
def _(x: Tensor[f32, T, V]) -> Outputs:
    run = L.carry(0.0, T)
    for v in L.stream(V):
        run.hand(run.value + x[v])
    return L.out(y=run.value)


@form("a sum inside of a chunk, `L.sum(x[v], over=V)`")
def _(x: Tensor[f32, T, V]) -> Outputs:
    most = L.argmax()
    for v in L.stream(V):
        most.absorb(x[v] - L.sum(x[v], over=V, tree=Tree.halving))
    return L.out(y=most.max)


# --- elementwise, dtypes ---


def silu(x: Tile) -> Tile:
    """x * sigmoid(x)."""
    return x * L.sigmoid(x)


@form("causal conv of segments, four taps", bounds={R: (T,)})
def _(x: Tensor[bf16, T, N], w: Tensor[bf16, A, N], begin: Tensor[i32, E], end: Tensor[i32, E]) -> Outputs:
    at, inside = L.pos(R), L.pos(R) < end - begin
    y: Tile | None = None
    for j in range(4):
        here = x.at(begin + at - j, N, when=inside & (at >= j)).to(f32)
        tap = here * w.at(L.number(j, i32), N).to(f32)
        y = tap if y is None else y + tap
    assert y is not None
    L.place("y", (T, N), ({T: begin + at}, silu(y).to(bf16)), when=inside)
    return L.out()


@form("`sqrt` of rows and of products")
def _(x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], z: Tensor[f32, T, N]) -> Outputs:
    return L.out(y=L.sqrt(L.maximum(L.dot(x, w, over=K), 0.0)) + L.sqrt(z))


@form("`e4m3` by `e4m3`")
def _(x: Tensor[e4m3, T, K], w: Tensor[e4m3, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K))


@form("`f16` by `e4m3`")
def _(x: Tensor[f16, T, K], w: Tensor[e4m3, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w.to(f16), over=K))


@form("`i8` by `i8`")
def _(x: Tensor[i8, T, K], w: Tensor[i8, N, K]) -> Outputs:
    return L.out(y=L.dot(x, w, over=K))


@form("`bf16` by 4 bits, two in a byte")
def _(x: Tensor[bf16, T, K], w: Tensor[u8, N, J]) -> Outputs:
    byte = w.at(N, L.pos(K) // 2).to(i32)
    number = ((byte >> (L.pos(K) % 2 * 4)) & 15) - 8
    return L.out(y=L.dot(x, number.to(bf16), over=K))


# --- the table ---


def rows() -> dict[str, list[str]]:
    """Return the cells of the table by form."""
    text = PAGE.read_text("utf-8").partition("## What each backend takes")[2]
    lines = re.findall(r"^\| (.*) \|$", text.partition("\n## ")[0], re.MULTILINE)
    return {cells[0]: cells[1:] for line in lines[1:] if (cells := line.split(" | "))}


def taken(program: Program, backend: str, on: str) -> str:
    """Return whether a backend lowers a program; an error must have a line, and say what to write."""
    try:
        emit(program, EXTENTS, target(on), backend)
    except LoweringError as error:
        assert Path(__file__).name in str(error.loc) and error.loc.line and error.instead, str(error)
        return "no"
    return "yes"


def test_the_table_has_every_form() -> None:
    assert list(rows()) == list(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_a_row_says_what_backends_do(name: str) -> None:
    pytest.importorskip("triton")
    cells = dict(zip(("oracle", *BACKENDS, "instead"), rows()[name], strict=True))
    made = FORMS[name]()
    try:
        program = canonical(made.trace(Variant.of({})))
    except SpecError as error:
        (first, *_) = error.diagnostics
        assert Path(__file__).name in str(first.loc) and first.loc.line, str(error)
        assert f"`{first.code.name}`" in cells["instead"], first.code
        assert {cells[each] for each in ("oracle", *BACKENDS)} == {"no"}
        return
    assert f"`{Code.CANNOT_LOWER.name}`" not in cells["instead"]
    found = {label: taken(program, backend, "sm_90a") for label, backend in BACKENDS.items()}
    for label in ("Triton", "TileLang"):
        on_cdna = taken(program, BACKENDS[label], "gfx942")
        if on_cdna != found[label]:
            found[label] = "CDNA" if on_cdna == "yes" else "Hopper"
    assert found == {label: cells[label] for label in BACKENDS}
    assert (cells["instead"] == "") == (set(found.values()) == {"yes"}), "what to write instead"
    decls = {d.name: d.type for k in program.kernels for d in k.params if d.role is Role.IN}
    given = {n: np.zeros([SMALL[axis.name] for axis in type.axes]) for n, type in decls.items()}
    assert run(program, stored(given, program), extents=SMALL).tensors
    assert cells["oracle"] == "yes"
