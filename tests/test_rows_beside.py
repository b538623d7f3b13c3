"""Rows that a stream stores run beside its folds: the same bits, in the oracle and in generated source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlk.aot.matrix import read_matrix
from rlk.interp.run import run
from rlk.ir.nodes import Dot, Load, Loop, Program, Role, Store, Stream
from rlk.lang import Axis, L, Op, Outputs, Tensor, Tree, Variant, bf16, f32, op
from rlk.lang.variants import cotangents, gradient_variant
from rlk.passes.pipeline import canonical, specialize
from rlk.passes.rows_beside import beside
from rlk.passes.walk import walk
from rlk.runtime.binding.shape_buckets import class_of
from rlk.schedule.axes import kind
from rlk.schedule.heuristics import apart, choose
from rlk.specs.norm import rms_norm
from rlk.target.facts import target
from rlk.testing.bits import differing

ROWS = frozenset({"T.rows"})
T, N = 150, 40  # two whole pieces of 64 rows and a short one
ON = target("sm_90a")


def traced(*wanted: str) -> Program:
    variant = Variant.of({"F": f32, "W": f32}, frozenset(), {"profile": "hf_llama"})
    assert rms_norm.gradient is not None
    return rms_norm.gradient.trace(gradient_variant(variant, wanted, cotangents(rms_norm, variant)))


def inputs() -> dict[str, object]:
    rng = np.random.default_rng(0)
    x, d_y = (rng.standard_normal((T, N)).astype(np.float32) for _ in range(2))
    x[3, 7], d_y[70, 5] = np.inf, np.nan
    rstd = (1.0 / np.sqrt((x * x).mean(-1))).astype(np.float32)
    return {"x": x, "d_y": d_y, "rstd": rstd, "weight": rng.standard_normal(N).astype(np.float32)}


def test_rows_have_a_kernel_without_a_loop_and_sums_one_without_the_row() -> None:
    rows, sums, merge = canonical(traced("x", "weight"), apart=ROWS).kernels
    assert {d.name for d in rows.params if d.role is Role.OUT} == {"d_x"}
    assert not any(isinstance(let.node, Loop) for let in walk(rows.body))
    assert {let.node.param for let in walk(sums.body) if isinstance(let.node, Load)} == {"x", "d_y", "rstd"}
    assert kind(merge) == "merge"
    (alone,) = canonical(traced("x"), apart=ROWS).kernels
    assert {d.name for d in alone.params if d.role is Role.OUT} == {"d_x"}


def test_the_oracle_gives_the_same_bits_beside() -> None:
    given = inputs()
    one, two = (run(canonical(traced("x", "weight"), apart=a), given) for a in (frozenset(), ROWS))
    assert not differing(one["d_x"], two["d_x"]) and not differing(one["d_weight"], two["d_weight"])
    # the control: rows that change places are summed in another order
    swapped = {**given, **{n: given[n].copy() for n in ("x", "d_y", "rstd")}}  # type: ignore[attr-defined]
    for tensor in (swapped["x"], swapped["d_y"], swapped["rstd"]):
        tensor[[10, 90]] = tensor[[90, 10]]  # type: ignore[index]
    other = run(canonical(traced("x", "weight"), apart=ROWS), swapped)
    assert differing(one["d_weight"], other["d_weight"])


@pytest.mark.parametrize("names", [frozenset(), ROWS])
def test_generated_source_gives_the_same_bits_beside(names: frozenset[str]) -> None:
    """Both forms: calls of a few rows run one, of many rows the other."""
    pytest.importorskip("triton")
    from rlk.testing.generated import run_generated

    given = inputs()
    want = run(canonical(traced("x", "weight")), given)
    got = run_generated(canonical(traced("x", "weight"), apart=names), given)
    for name in ("d_x", "d_weight"):
        assert not differing(got.tensors[name], want[name]), name


def test_few_pieces_wide_rows_and_no_sum_run_rows_beside() -> None:
    both, alone = canonical(traced("x", "weight")), canonical(traced("x"))
    assert apart(both, {"T": 4096, "N": 4096}) == ROWS
    assert apart(both, {"T": 8192, "N": 4096}) == frozenset()
    assert apart(both, {"T": 65536, "N": 8192}) == frozenset()
    assert apart(both, {"T": 65536, "N": 16384}) == ROWS
    assert apart(alone, {"T": 65536, "N": 4096}) == ROWS
    assert apart(canonical(traced("weight")), {"T": 64, "N": 4096}) == frozenset()


@pytest.mark.parametrize("width", [64, 4096, 16384])
def test_the_number_of_pieces_changes_no_schedule(width: int) -> None:
    program = specialize(canonical(traced("x", "weight"), apart=ROWS), {"N": width}, ON.softmax)
    for kernel in program.kernels:
        assert len({choose(kernel, ON, None, {"T": t, "N": width}) for t in (16, 65, 512, 4096, 7680)}) == 1


def test_the_shipped_matrix_has_every_form_of_the_gradient() -> None:
    both = canonical(traced("x", "weight"))
    matrix = read_matrix("common")
    (calls,) = (each for each in matrix.calls if each.op == "rms_norm")

    def forms(width: int, *rows: int) -> set[frozenset[str]]:
        return {apart(both, {"T": class_of(n, (64,)), "N": width}) for n in rows}

    for width in {model.hidden for model in matrix.models}:
        assert forms(width, 1, 64, 512, 4096, 7680) == {ROWS}  # as the documents say
        assert forms(width, 7681, 8191, 8192, 65536) == {frozenset()}
        assert forms(width, *calls.rows) == {ROWS, frozenset()}
        assert all(n % 16 for n in calls.rows)  # kernels of a multiple serve no other number


def test_no_lane_has_more_of_a_row_than_its_registers_hold() -> None:
    for width, warps in ((128, 1), (4096, 4), (8192, 8), (16384, 16), (32768, 32)):
        serial = specialize(canonical(traced("x", "weight")), {"N": width}, ON.softmax)
        found = choose(serial.kernels[0], ON, None, {"T": 1 << 20, "N": width})
        assert found.warps == warps and found.stages == 3
    amd = target("gfx942")
    assert choose(serial.kernels[0], amd, None, {"T": 1 << 20, "N": 32768}).warps * amd.warp == 1024


def test_streams_whose_rows_need_others_stay_whole() -> None:
    program = traced("x", "weight")
    (kernel,) = program.kernels
    at, stream = next((i, x) for i, x in enumerate(kernel.body.lets) if isinstance(x.node, Stream))

    def changed(**fields: object) -> Program:
        lets = list(kernel.body.lets)
        lets[at] = replace(stream, node=replace(stream.node, **fields))
        return replace(program, kernels=(replace(kernel, body=replace(kernel.body, lets=tuple(lets))),))

    assert len(beside(program, ROWS).kernels) == 2
    body = stream.node.body
    zero = kernel.body.lets[0].value
    reads = tuple(
        replace(x, node=replace(x.node, param="d_x")) if getattr(x.node, "param", "") == "x" else x
        for x in body.lets
    )
    one_place = tuple(
        replace(x, node=replace(x.node, index=(zero, zero))) if isinstance(x.node, Store) else x
        for x in body.lets
    )
    for wrong in (
        {"begin": zero},
        {"axis": replace(stream.node.axis, chunk=2)},
        {"body": replace(body, lets=reads)},
        {"body": replace(body, lets=one_place)},
    ):
        assert len(beside(changed(**wrong), ROWS).kernels) == 1, wrong


ROW = Axis("T", chunk=1, piece=64, dynamic=True)
COLUMN, INNER = Axis("N"), Axis("K")
Rows = Tensor[f32, ROW, COLUMN]


@op()
def of_a_table(x: Rows, y: Rows) -> Outputs:
    """z = y sum(2 x y), of a table of 2 x; r = sum of z over rows."""
    w = L.table(x * 2.0, "w")
    total = L.total()
    for t in L.stream(ROW):
        z = y[t] * L.sum(w[t] * y[t], over=COLUMN, tree=Tree.halving)
        L.emit(z=z)
        total.absorb(z)
    return L.out(r=total.value)


@op()
def after_another(x: Rows, y: Rows) -> Outputs:
    """s = 2 sum of x over rows; z = x sum(x y); r = sum of y sum(x y) over rows."""
    first = L.total()
    for t in L.stream(ROW):
        first.absorb(x[t])
    s = first.value * 2.0
    second = L.total()
    for t in L.stream(ROW):
        along = L.sum(x[t] * y[t], over=COLUMN, tree=Tree.halving)
        L.emit(z=x[t] * along)
        second.absorb(y[t] * along)
    return L.out(s=s, r=second.value)


@op()
def of_a_product(x: Rows, y: Rows, u: Tensor[bf16, COLUMN, INNER], v: Tensor[bf16, INNER]) -> Outputs:
    """z = y u v; r = sum of x over rows."""
    product = L.dot(u, v, over=INNER)
    total = L.total()
    for t in L.stream(ROW):
        L.emit(z=y[t] * product)
        total.absorb(x[t])
    return L.out(r=total.value)


@op()
def beside_a_product(x: Rows, y: Rows, u: Tensor[bf16, COLUMN, INNER], v: Tensor[bf16, INNER]) -> Outputs:
    """z = 2 y; r = sum of x over rows, plus u v."""
    product = L.keep(L.dot(u, v, over=INNER), "w")
    total = L.total()
    for t in L.stream(ROW):
        L.emit(z=y[t] * 2.0)
        total.absorb(x[t])
    return L.out(r=total.value + product)


@op()
def of_a_sum(x: Rows, y: Rows, u: Tensor[f32, COLUMN]) -> Outputs:
    """z = y sum(u); r = sum of x over rows."""
    scale = L.sum(u, over=COLUMN, tree=Tree.halving)
    total = L.total()
    for t in L.stream(ROW):
        L.emit(z=y[t] * scale)
        total.absorb(x[t])
    return L.out(r=total.value)


def parts(spec: Op) -> tuple[Program, Program]:
    program = spec.trace(Variant.of({}, frozenset(), {}))
    return program, beside(program, ROWS)


@pytest.mark.parametrize("spec", [of_a_table, of_a_product, of_a_sum], ids=lambda spec: spec.name)
def test_rows_of_what_is_computed_once_stay_in_their_stream(spec: Op) -> None:
    program, split = parts(spec)
    assert split == program
    canonical(program, apart=ROWS)


def test_rows_of_a_table_follow_its_store() -> None:
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((65, 40)).astype(np.float32) for name in "xy"}
    one, two = (run(canonical(parts(of_a_table)[0], apart=a), given) for a in (frozenset(), ROWS))
    assert not differing(one["z"], two["z"]) and not differing(one["r"], two["r"])


def test_rows_after_another_stream_have_only_what_they_need() -> None:
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((130, 40)).astype(np.float32) for name in "xy"}
    program, split = parts(after_another)
    rows, rest = split.kernels
    assert not any(isinstance(let.node, Stream) for let in walk(rows.body))
    assert sum(isinstance(let.node, Stream) for let in walk(rest.body)) == 2
    one, two = (run(canonical(program, apart=a), given) for a in (frozenset(), ROWS))
    for name in "zsr":
        assert not differing(one[name], two[name]), name


def test_a_product_beside_rows_is_computed_once() -> None:
    _, split = parts(beside_a_product)
    products = [sum(isinstance(let.node, Dot) for let in walk(k.body)) for k in split.kernels]
    assert products == [0, 1]
