"""Contractions whose matrix a row's index names, w.at(expert, N, K): tiles of rows, a step for each index."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_text import edit_text
from test_computed_factors import aligned, small
from test_several_products import weights

from rlk.errors import LoweringError
from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.lang import (
    Axis,
    L,
    Outputs,
    Static,
    Tensor,
    Variant,
    bf16,
    boolean,
    f32,
    i8,
    i32,
    i64,
    op,
)  # fmt: skip
from rlk.lang.op import Op
from rlk.lower import triton as lowering
from rlk.passes.pipeline import canonical, launched
from rlk.runtime.reference import emit
from rlk.schedule.heuristics import variety
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import run_generated

HOPPER = target("sm_90a")
T, N, K, E, J = Axis("T", dynamic=True), Axis("N"), Axis("K"), Axis("E"), Axis("J")
S, V = Axis("S", dynamic=True), Axis("V", chunk=16)
INSIDE = Static[False, True]


@op()
def grouped(
    x: Tensor[bf16, T, K], w: Tensor[bf16, E, N, K], bias: Tensor[bf16, E, N], expert: Tensor[i32, T],
    inside: INSIDE = False,
) -> Outputs:  # fmt: skip
    """A token's expert; where there is none the matrix is 0."""
    y = L.dot(x, w.at(expert, N, K, inside=inside), over=K, each=(T,))
    return L.out(y=y + bias.at(expert, N).to(f32))


@op()
def gated(
    x: Tensor[bf16, S, K], gate: Tensor[bf16, E, N, K], up: Tensor[bf16, E, N, K], token: Tensor[i32, T],
    expert: Tensor[i64, T],
) -> Outputs:  # fmt: skip
    """SwiGLU of a token's expert, of gathered rows: both products share a loop."""
    rows = x.at(token, K)
    g, u = (L.dot(rows, w.at(expert, N, K), over=K, each=(T,)) for w in (gate, up))
    return L.out(y=(g * L.sigmoid(g) * u).to(bf16))


@op()
def choices(x: Tensor[bf16, T, K], w: Tensor[bf16, E, N, K], ids: Tensor[i32, T, J]) -> Outputs:
    """Several experts of each token."""
    return L.out(y=L.dot(x, w.at(ids, N, K, inside=True), over=K, each=(T,)))


@op()
def adapters(
    x: Tensor[bf16, T, K], w: Tensor[bf16, N, K], down: Tensor[bf16, E, K, J], up: Tensor[bf16, E, J, N],
    adapter: Tensor[i32, T], live: Tensor[boolean, T],
) -> Outputs:  # fmt: skip
    """LoRA of a token's adapter beside one product of all tokens; the contracted axes outside."""
    how = {"when": live, "inside": True}
    h = L.keep(L.dot(x, down.at(adapter, K, J, **how), over=K, each=(T,)).to(bf16), "h")
    return L.out(y=L.dot(x, w, over=K) + L.dot(h, up.at(adapter, J, N, **how), over=J, each=(T,)))


@op()
def quantized(
    x: Tensor[bf16, T, K], w: Tensor[i8, E, N, K], scale: Tensor[f32, E, N], expert: Tensor[i32, T]
) -> Outputs:
    """Matrices that are computed."""
    b = (w.at(expert, N, K).to(f32) * scale.at(expert, N)).to(bf16)
    return L.out(y=L.dot(x, b, over=K, each=(T,)))


SPECS = {"grouped": grouped, "gated": gated, "choices": choices, "adapters": adapters, "quantized": quantized}
ROWS, EXPERTS, COLUMNS, DEPTH = 37, 5, 40, 48


@cache
def program(name: str, **statics: Any) -> Program:
    return canonical(SPECS[name].trace(Variant.of({}, statics=statics)))


def case(name: str, expert: np.ndarray) -> dict[str, Any]:
    """Return inputs of a spec, for the experts of its rows, of which some are none."""
    rows, k, n, e = len(expert), DEPTH, COLUMNS, EXPERTS
    rng, x, w = np.random.default_rng(1), small(rows, k), weights(e, n, k, seed=1)
    x[expert < 0, 0] = 0x7F80  # inf * 0
    live = (expert >= 0) & (expert < e)
    return {
        "grouped": {"x": x, "w": w, "bias": weights(e, n, seed=2), "expert": expert},
        "gated": {
            "x": small(20, k), "gate": w, "up": weights(e, n, k, seed=3),
            "token": rng.integers(0, 20, rows, np.int32), "expert": expert.astype(np.int64),
        },
        "choices": {"x": small(rows, k), "w": w, "ids": rng.integers(0, e, (rows, 3), np.int32)},
        "adapters": {
            "x": x, "w": weights(n, k, seed=3), "down": weights(e, k, 16, seed=4),
            "up": weights(e, 16, n, seed=5), "adapter": expert, "live": live,
        },
        "quantized": {
            "x": x, "w": rng.integers(-128, 128, (e, n, k), np.int8), "expert": expert,
            "scale": rng.uniform(0.001, 0.01, (e, n)).astype(np.float32),
        },
    }[name]  # fmt: skip


def drawn(rows: int = ROWS, *, ordered: bool = False) -> np.ndarray:
    """Return an expert for each row; -1 and the one behind the last are none."""
    found = np.random.default_rng(rows).integers(-1, EXPERTS + 1, rows, np.int32)
    return np.sort(found) if ordered else found


def ran(name: str, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    made = program(name)
    options = {"divisible": aligned(made), "on": HOPPER} | options
    return run_generated(made, given, backend="triton", **options).tensors


def assert_oracle(got: dict[str, Any], want: dict[str, Any], name: str) -> None:
    for out, right in want.items():
        assert_same_bits(got[out], right, f"{name} {out}", "bf16" if right.dtype == np.uint16 else None)


@pytest.mark.parametrize(
    ("name", "ordered", "on"),
    [
        ("grouped", True, "sm_90a"), ("grouped", False, "gfx942"), ("gated", False, "sm_90a"),
        ("choices", False, "sm_90a"), ("adapters", True, "sm_90a"), ("quantized", False, "sm_90a"),
    ],
)  # fmt: skip
def test_a_row_has_the_product_of_its_matrix(name: str, ordered: bool, on: str) -> None:
    pytest.importorskip("triton")
    given = case(name, drawn(ordered=ordered))
    assert_oracle(ran(name, given, on=target(on)), run(program(name), given).tensors, name)


def test_schedules_and_rows_beside_it_change_no_row() -> None:
    pytest.importorskip("triton")
    expert = drawn(ordered=True)
    given, order = case("grouped", expert), np.random.default_rng(3).permutation(ROWS)[:20]
    want = run(program("grouped"), given).tensors["y"]
    extents = {"T": ROWS, "N": COLUMNS, "K": DEPTH, "E": EXPERTS}
    static = {name: n for name, n in extents.items() if name != "T"}
    (kernel,) = launched(program("grouped"), static, HOPPER.softmax, extents).kernels
    for schedule in variety(kernel, HOPPER, extents):
        assert_same_bits(ran("grouped", given, schedules=[schedule])["y"], want, str(schedule))
    others = given | {"x": given["x"][order], "expert": expert[order]}
    assert_same_bits(ran("grouped", others)["y"], want[order], "other rows")
    # the control: the same products in another order of K
    turned = given | {n: np.ascontiguousarray(given[n][..., ::-1]) for n in ("x", "w")}
    assert differing(ran("grouped", turned)["y"], want)


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("here = expert_masked == e_step", "here = expert_masked <= e_step"),
        ("tl.where(here, w, y)", "w"),
        ("w_ptr + e_step.to(tl.int64) * w_e_stride", "w_ptr + first_expert_masked.to(tl.int64) * w_e_stride"),
        (".to(tl.int32), (128,)), 0) > 0", ".to(tl.int32), (128,)), 0) > 1"),
        ("mask=e_step_lt_5 & n_inside, other=0.0", "mask=e_step_lt_5 & n_inside, other=1.0"),
    ],
)
def test_a_wrong_step_is_seen(text: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    given = case("grouped", np.array([4, 0, 2, -1, 2], np.int32))
    want = run(program("grouped"), given).tensors["y"]
    edit_text(monkeypatch, lowering, lambda source: source.replace(text, by))
    assert differing(ran("grouped", given, divisible=frozenset())["y"], want)


def test_the_loop_has_the_oracles_bits_and_is_shared_by_products_of_one_index() -> None:
    given = case("gated", drawn())
    static = {"N": COLUMNS, "K": DEPTH, "E": EXPERTS}
    made = launched(program("gated"), static, HOPPER.softmax, static | {"T": ROWS, "S": 20})
    assert_oracle(run(made, given).tensors, run(program("gated"), given).tensors, "gated")
    source = emit(program("gated"), static | {"T": ROWS, "S": 20}, HOPPER)[0].source
    assert source.count("for e_step in") == 1 and source.count("tl.dot(") == 2


# --- compilers ---


@pytest.mark.parametrize("on", ["sm_90a", "gfx942"])
def test_it_compiles(on: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from rlk.backends.triton import compile_triton

    extents = {"T": 16, "N": 16, "K": 64, "E": 8}
    emitted = emit(program("grouped"), extents, target(on))[0]
    if on == "sm_90a":
        assert "w_tiles.load([e_step, n_first, k_first])" in emitted.source
    compile_triton(emitted, on, tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} & {".cubin", ".hsaco"}


# --- refusals ---


@op()
def head(x: Tensor[bf16, T, K], w: Tensor[bf16, E, V, K], expert: Tensor[i32, T]) -> Outputs:
    """A head of each row's own, in a stream."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(L.dot(x, w.at(expert, v.pos, K), over=K, each=(T,)))
    return L.out(y=soft.lse())


@op()
def two_indices(
    x: Tensor[bf16, T, K], w: Tensor[bf16, E, S, N, K], expert: Tensor[i32, T], other: Tensor[i32, T]
) -> Outputs:
    """A matrix that two indices name."""
    return L.out(y=L.dot(x, w.at(expert, other, N, K), over=K, each=(T,)))


@pytest.mark.parametrize(("spec", "backend"), [(head, "triton"), (two_indices, "triton"), (grouped, "cute")])
def test_others_are_refused_at_the_line(spec: Op, backend: str) -> None:
    made = canonical(spec.trace(spec.default_variant()))
    extents = {"T": 300, "N": 128, "K": 128, "E": 8, "V": 64, "S": 3}
    with pytest.raises(LoweringError) as found:
        emit(made, extents, HOPPER, backend)
    text = str(found.value)
    said = "over K of w gathered for each row", "test_by_index.py:", "L.dot(", "instead: rows sorted by index"
    assert all(part in text for part in said), text
