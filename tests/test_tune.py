"""What the tuner tries can be entered in the table, and what it prints follows from what it measured."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from benchmarks.tilings import FOLDS, PIECES, PRODUCTS, tiling, written
from benchmarks.tune import SHIPPED, Shape, line, problem, shapes, summary
from rlk.runtime.dispatch import lowered
from rlk.runtime.invocation import geometry_of
from rlk.schedule.entries import row_class
from rlk.schedule.table import Tiling, parse
from rlk.target.facts import target

H200 = target("sm_90a")
TRIED = sorted({text for lists in (PRODUCTS, PIECES, FOLDS) for texts in lists.values() for text in texts})


def test_a_tiling_is_read_as_it_is_written() -> None:
    found = tiling("64x32x128 8w 5s p2 g16 flat turned")
    assert found == Tiling(64, 32, 128, 8, 5, group=16, per_core=2, flat=True, turned=True)
    assert tiling("16x32x64 4w 4s pointers") == Tiling(16, 32, descriptors=False)
    for text in TRIED:
        entry = f"[[entry]]\nwhen = {{}}\nuse = {written(tiling(text))}\nwhy = 'x'"
        assert parse(entry)[0].use == tiling(text)


def test_every_class_of_rows_has_a_short_list() -> None:
    for shape in shapes():
        assert 0 < len(set(shape.tried)) == len(shape.tried) <= 24
        rows = {tiling(text).rows for text in shape.tried}
        assert min(rows) <= max(16, row_class(shape.rows)), "a tile that these rows fill"


ONES = [
    Shape("matmul", 16, 4096, 4096),
    Shape("matmul_leaf8", 64, 4096, 4096),
    Shape("linear_logp", 64, 2304, 256),
]


@pytest.mark.parametrize("shape", ONES)
def test_a_tiling_becomes_the_schedule_of_what_contracts_alone(shape: Shape) -> None:
    call = problem(shape, "meta")
    plain = call.schedules(SHIPPED, H200)
    for text in shape.tried:
        first, *rest = call.schedules(text, H200)
        assert (first.warps, first.stages) == (tiling(text).warps, tiling(text).stages)
        assert rest == list(plain[1:])
        geometry = geometry_of(call.invocation, call.tensors[0])
        given = (call.invocation, H200.softmax, geometry, call.tensors[0], H200, (first, *rest))
        assert ("make_tensor_descriptor" in lowered(*given)[3].source) is tiling(text).descriptors


def row(rows: int, **speeds: float) -> dict[str, object]:
    tried = [
        {"tiling": name.replace("_", " "), "ms": 1 / s, "of_cublas": s, "tb_per_s": 1.0}
        for name, s in sorted(speeds.items(), key=lambda pair: -pair[1])
    ]
    sizes = {"op": "matmul", "rows": rows, "columns": 4096, "length": 4096}
    return {**sizes, "cublas_ms": 1.0, "tried": tried, "errors": {}, "differing": []}


def test_the_summary_ranks_what_every_shape_of_a_class_has() -> None:
    a, b = "16x32x128 4w 7s", "16x64x64 4w 8s"
    rows = [row(1, **{a: 0.5, b: 0.9, SHIPPED: 0.6}), row(16, **{a: 0.98, b: 0.9}), row(32, **{b: 0.4})]
    said = summary(rows)
    assert said[0] == f"matmul rows <= 16, columns 4096: {b} 0.900, {a} 0.700"
    assert said[1] == "    use = { rows = 16, columns = 64, warps = 4, stages = 8 }"
    assert "shipped   1.6667 (0.60)" in line(rows[0]) and f"{b}: 1.1111 (0.90" in line(rows[0])
    assert "DIFFERS: x | failed: y: z" in line({**rows[2], "differing": ["x"], "errors": {"y": "z"}})
