"""The reviewed table of contractions says only what it may, follows its order, and changes no bit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

triton = pytest.importorskip("triton")

from rlk.backends.triton import compile_triton  # noqa: E402
from rlk.errors import ScheduleError  # noqa: E402
from rlk.interp.run import run  # noqa: E402
from rlk.ir.dims import Axis  # noqa: E402
from rlk.ir.nodes import Kernel, MathModel, Program  # noqa: E402
from rlk.lang.op import Op, Variant  # noqa: E402
from rlk.lang.variants import cotangents, differentiable, gradient_variant  # noqa: E402
from rlk.lower.common.emitted import Signature  # noqa: E402
from rlk.lower.triton import lower  # noqa: E402
from rlk.passes.pipeline import canonical, launched, specialize  # noqa: E402
from rlk.schedule import heuristics, triton_table  # noqa: E402
from rlk.schedule.axes import kind, roles  # noqa: E402
from rlk.schedule.entries import MORE, ROW_CLASSES, Entry, Facts, Range, row_class  # noqa: E402
from rlk.schedule.heuristics import apart, choose, factor_tiles  # noqa: E402
from rlk.schedule.schedule import Schedule  # noqa: E402
from rlk.schedule.triton_table import Tiling, parse, tabled  # noqa: E402
from rlk.specs.linear_logp import linear_logp  # noqa: E402
from rlk.specs.matmul import matmul, matmul_leaf8  # noqa: E402
from rlk.target.facts import TARGETS, target  # noqa: E402
from rlk.testing import generated  # noqa: E402
from rlk.testing.bits import assert_same_bits  # noqa: E402

H200 = target("sm_90a")
SM90 = MathModel.SM90
M, N = Axis("M", dynamic=True), Axis("N")
ENTRIES = triton_table.table()
SPECS = {"dot_map": matmul, "stream_dot": linear_logp}
ALIGNED = frozenset(
    "x w y bias residual hidden weight x_t_stride w_n_stride y_t_stride residual_t_stride hidden_t_stride"
    " weight_v_stride".split()
)


def entry(when: str = "", use: str = "rows = 16", why: str = 'why = "x"') -> str:
    return f"[[entry]]\nwhen = {{ {when} }}\nuse = {{ {use} }}\n{why}\n"


# --- what a table may say ---


def test_an_entry_is_read_as_it_is_written() -> None:
    text = entry(
        'target = "sm_90a", kind = "dot_map", rows = { over = 16, most = 64 }, columns = { most = 8192 }',
        "rows = 64, columns = 32, depth = 128, warps = 8, stages = 5, group = 2, per_core = 2, flat = true",
        'why = "measured"',
    )
    use = Tiling(64, 32, depth=128, warps=8, stages=5, group=2, per_core=2, flat=True)
    rows, columns = Range(16, 64), Range(most=8192)
    assert parse(text) == (Entry(use, "measured", "sm_90a", "dot_map", rows=rows, columns=columns),)
    assert use.schedule((M, N), {}, 132) == Schedule(
        (("M", 64), ("N", 32)), warps=8, stages=5, depth=128, group=2, programs=264, flat=True
    )


WRONG = {
    "a key of the table": ("[[entries]]", "entries"),
    "a key of an entry": (entry(why='why = "x"\nnote = 1'), "entry 1='note'"),
    "no reason": (entry(why=""), "'why': missing"),
    "no rows": (entry(use="columns = 64"), "'rows': missing"),
    "a condition": (entry('op = "matmul"'), "when='op'"),
    "a field of a tiling": (entry(use="rows = 16, unroll = 2"), "use='unroll'"),
    "a type": (entry(use="rows = 16, flat = 1"), "use.flat=1: of type bool"),
    "a switch for a number": (entry(use="rows = true"), "use.rows=True: of type int"),
    "a target": (entry('target = "sm_9"'), "when.target='sm_9': one of sm_90a"),
    "a kind": (entry('kind = "rows"'), "when.kind='rows': one of dot_map"),
    "a switch": (entry("plain = 1"), "when.plain=1: one of False, True"),
    "rows between classes": (entry("rows = { most = 100 }"), "when.rows=100: a class of rows: 16, 32, 64"),
    "a bare range": (entry("columns = 64"), "when.columns=64"),
    "a range of no bound": (entry("columns = { }"), "when.columns="),
    "a bound": (entry("columns = { least = 4 }"), "when.columns='least'"),
    "a bound that is no number": (entry('columns = { most = "4" }'), "when.columns="),
    "a tile": (entry(use="rows = 48"), "rows=48: a power of two from 16 to 256"),
    "a tile too large for a box": (entry(use="rows = 512"), "rows=512"),
    "a depth": (entry(use="rows = 16, depth = 8"), "depth"),
    "warps": (entry(use="rows = 16, warps = 3"), "warps"),
    "stages": (entry(use="rows = 16, stages = 25"), "stages"),
    "programs": (entry(use="rows = 16, per_core = -1"), "per_core"),
    "one loop of one tile": (entry(use="rows = 16, flat = true"), "flat"),
    "no TOML": ("[[entry", "TOML"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_an_entry_may_not_say_is_refused(name: str) -> None:
    text, said = WRONG[name]
    with pytest.raises(ScheduleError, match=re.escape(said)):
        parse(text)


def test_the_first_entry_that_holds_is_used() -> None:
    listed = parse(
        entry('kind = "dot_map", rows = { most = 64 }, length = { over = 4096 }', "rows = 16")
        + entry('kind = "dot_map", rows = { most = 64 }', "rows = 32")
        + entry('kind = "dot_map"', "rows = 64")
        + entry("dots = { most = 2 }, rows = { over = 1024 }", "rows = 128")
    )

    def rows(kind: str, rows: int | None, **more: Any) -> int | None:
        found = tabled(Facts("sm_90a", kind, rows=rows, **more), listed)
        return None if found is None else found.rows

    assert rows("dot_map", 64, length=8192) == 16
    assert rows("dot_map", 64, length=4096) == rows("dot_map", 1) == 32
    assert rows("dot_map", 65) == rows("dot_map", None) == 64
    assert rows("dot_map", 4096, dots=2) == rows("stream_dot", 4096) == rows("stream_dot", None) == 128
    assert rows("stream_dot", 4) is None, "the heuristics choose"
    assert rows("dot_map", 4, dots=2) is None, "an entry is for one accumulator, unless it says more"


def test_an_entry_is_for_whole_axes_and_asks_about_the_rest() -> None:
    listed = parse(
        entry("plain = true", "rows = 16")
        + entry("pieces = { over = 1 }", "rows = 32")
        + entry("along = { most = 0 }", "rows = 64")
    )

    def rows(**facts: Any) -> int | None:
        found = tabled(Facts("sm_90a", "dot_map", **facts), listed)
        return None if found is None else found.rows

    assert rows(plain=True, along=3) == 16
    assert rows(pieces=8) == rows(pieces=8, along=2) == 32
    assert rows() == 64
    assert rows(along=1) is None


def test_rows_of_a_class_are_one() -> None:
    assert [row_class(n) for n in (1, 16, 17, 64, 65, 256, 1024)] == [16, 16, 32, 64, 128, 256, 1024]
    assert row_class(1025) == row_class(1 << 20) == row_class(None) == MORE


def test_steps_are_whole_where_they_can_be_and_tiles_no_wider_than_what_they_run_along() -> None:
    use = Tiling(16, 128, depth=128)
    depths = {n: use.schedule((M, N), {}, 1, length=n).depth for n in (4096, 64, 4112, 100)}
    assert depths == {4096: 128, 64: 64, 4112: 16, 100: 64}
    tiles = {n: dict(use.schedule((M, N), {}, 1, columns=n).tiles)["N"] for n in (4096, 100, 33, 5)}
    assert tiles == {4096: 128, 100: 128, 33: 64, 5: 16}
    held = use.schedule((M, N), {N: 256}, 1)
    assert held.tiles == (("M", 16),) and not held.placed
    turned = Tiling(16, 128, turned=True).schedule((M, N), {}, 1)
    assert [str(span) for span in turned.placed] == ["N[6:0]", "M[3:0]"]


# --- what is chosen ---


@cache
def program(spec: Op, present: tuple[str, ...] = (), **statics: object) -> Program:
    """Return the canonical program of a bf16 call, its chunks and pieces side by side if it has some."""
    plain = spec.default_variant()
    variant = Variant.of(dict(plain.dtypes), set(present), {**dict(plain.statics), **statics})
    traced = spec.trace(variant)
    return canonical(traced, apart=apart(canonical(traced), {"T": 1, "V": 512, "N": 16}))


def bound(spec: Op, extents: dict[str, int], present: tuple[str, ...] = (), **statics: object) -> Program:
    static = {name: size for name, size in extents.items() if name != "T"}
    return specialize(program(spec, present, **statics), static, SM90)


def contraction(spec: Op, extents: dict[str, int]) -> Kernel:
    return bound(spec, extents).kernels[0]


LARGE = {"dot_map": {"N": 14336, "K": 4096}, "stream_dot": {"V": 128256, "D": 4096}}


@pytest.mark.parametrize("nest", SPECS)
def test_a_kernel_has_few_variants(nest: str) -> None:
    kernel = contraction(SPECS[nest], LARGE[nest])
    assert kind(kernel) == nest
    chosen = {n: choose(kernel, H200, None, {**LARGE[nest], "T": n}) for n in range(1, 1100)}
    assert len(set(chosen.values())) <= len(ROW_CLASSES) + 1
    for n, schedule in chosen.items():
        assert schedule == chosen[min(row_class(n), 1099)]


@pytest.mark.parametrize("nest", SPECS)
def test_many_rows_and_unknown_rows_get_one_schedule(nest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def source(rows: int | None) -> str:
        extents = LARGE[nest] | ({} if rows is None else {"T": rows})
        what = bound(SPECS[nest], LARGE[nest])
        chosen = [choose(k, H200, None, extents) for k in what.kernels]
        return lower(what, chosen, H200, Signature(tuple(sorted(LARGE[nest].items())))).source

    many, few = [source(n) for n in (2048, 8192, None)], source(1)
    assert many == [source(8192)] * 3
    entered = nest == "dot_map"  # many rows of a plain product are in the table
    monkeypatch.setattr(heuristics, "tabled", lambda facts: None)
    assert (many[0] != source(8192)) is entered
    assert few != source(1), "the control: few rows have an entry"


def test_steps_along_an_axis_of_unknown_length_are_short() -> None:
    kernel = contraction(matmul, LARGE["dot_map"])
    depths = {k: choose(kernel, H200, None, {"N": 4096, "K": k, "T": 1}).depth for k in (0, 4096)}
    use = tabled(Facts("sm_90a", "dot_map", rows=1, columns=4096, length=4096, plain=True))
    assert use is not None and depths == {0: 64, 4096: use.depth}


def test_gradients_of_a_linear_head_have_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = linear_logp.default_variant()
    wanted = gradient_variant(plain, differentiable(linear_logp, plain), cotangents(linear_logp, plain))
    assert linear_logp.gradient is not None
    traced = canonical(linear_logp.gradient.trace(wanted))

    def chosen() -> list[Schedule]:
        found = []
        for rows in (*ROW_CLASSES, 8192):
            extents = {**LARGE["stream_dot"], "T": rows}
            what = launched(traced, LARGE["stream_dot"], SM90, extents)
            found += [choose(k, H200, None, extents) for k in what.kernels]
        return found

    tabulated = chosen()
    monkeypatch.setattr(heuristics, "tabled", lambda facts: None)
    assert tabulated == chosen(), "their epilogues need what a plain product leaves"


def test_pieces_side_by_side_have_entries_of_their_own() -> None:
    extents = {"N": 4096, "K": 4096}
    for rows in (16, 64):
        whole, apiece = (
            choose(contraction(spec, extents), H200, None, {**extents, "T": rows})
            for spec in (matmul, matmul_leaf8)
        )
        assert dict(apiece.tiles)["T"] == rows and apiece.depth == 128 and not apiece.descriptors
        assert whole != apiece


def test_other_targets_have_no_entry() -> None:
    kernel = contraction(matmul, LARGE["dot_map"])
    for name in ("sm_80", "gfx942"):
        assert dict(choose(kernel, target(name), None, {**LARGE["dot_map"], "T": 1}).tiles)["T"] == 128


def test_waves_of_64_lanes_fold_few_rows() -> None:
    """They have 256 registers a lane: Triton 3.5 and 3.6 spill from 64 rows on."""
    kernel = contraction(SPECS["stream_dot"], LARGE["stream_dot"])
    for name, rows in (("gfx942", 32), ("gfx950", 32), ("sm_80", 128)):
        chosen = choose(kernel, target(name), None, {**LARGE["stream_dot"], "T": 8192})
        assert dict(chosen.tiles)["T"] == rows and chosen.warps == 8


# --- bits ---


def normal(seed: int, *shape: int) -> Any:
    """Return patterns of bf16."""
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def small(nest: str, rows: int) -> dict[str, Any]:
    if nest == "dot_map":
        return {"x": normal(1, rows, 256), "w": normal(2, 80, 256)}
    ids = np.random.default_rng(3).integers(0, 2304, rows)
    return {"hidden": normal(1, rows, 128), "weight": normal(2, 2304, 128), "ids": ids, "ignore_index": -100}


USES = list(dict.fromkeys((e.kind or "dot_map", e.use) for e in ENTRIES))
OTHERS = [(nest, Tiling(16, 64, per_core=1, turned=True)) for nest in SPECS]  # of no entry: they may come
OTHERS += [(nest, Tiling(16, 64, descriptors=False)) for nest in SPECS]


@pytest.mark.parametrize(("nest", "use"), USES + OTHERS)
def test_no_tiling_changes_a_bit(nest: str, use: Tiling) -> None:
    spec, given = SPECS[nest], small(nest, 33)
    extents = generated.extents_of(program(spec), given)
    what = bound(spec, extents)
    axes = roles(what.kernels[0], extents)
    sides = factor_tiles(what.kernels[0], axes)
    assert sides is not None
    first = use.schedule(sides, dict(axes.inside), 5, length=extents["K" if nest == "dot_map" else "D"])
    chosen = (first, *(choose(k, H200, None, extents) for k in what.kernels[1:]))
    want = run(program(spec), given, softmax=SM90)
    ran = generated.run_generated(program(spec), given, schedules=chosen, divisible=ALIGNED)
    assert ran.emitted.source.count("make_tensor_descriptor") == 2 * use.descriptors
    for name in want.tensors:
        assert_same_bits(ran.tensors[name], want[name], name)


# --- compiled text ---


def inside(bounds: Range, usual: int) -> int:
    """Return the usual number, or one that bounds hold."""
    return usual if bounds.holds(usual) else bounds.most or 2 * (bounds.over or 0)


def shape_of(listed: Entry) -> dict[str, int]:
    """Return sizes that an entry is for, and none before it."""
    names = ("T", "V", "D") if listed.kind == "stream_dot" else ("T", "N", "K")
    usual = (8192, 128256 if listed.kind == "stream_dot" else 14336, 4096)
    before = [
        e for e in ENTRIES[: ENTRIES.index(listed)] if (e.kind, e.pieces) == (listed.kind, listed.pieces)
    ]
    free = [n for n in ROW_CLASSES if listed.rows.holds(n) and not any(e.rows.holds(n) for e in before)]
    rows = listed.rows if listed.rows.holds(MORE) or not free else Range(most=free[-1])
    bounds = (rows, listed.columns, listed.length)
    return {name: inside(r, n) for name, r, n in zip(names, bounds, usual, strict=True)}


# of each nest, what a call may add to the plain one; biases and sums of streams spill with any wide tile
ADDED: dict[str, list[tuple[tuple[str, ...], dict[str, object]]]] = {
    "dot_map": [
        ((), {}),
        ((), {"keep_f32": True}),
        (("bias", "residual"), {}),
        (("bias", "residual"), {"keep_f32": True}),
    ],
    "stream_dot": [((), {}), (("bias",), {}), (("bias",), {"needs": ("entropy",)})],
}
ADDITIONS = [(at, *added) for at, e in enumerate(ENTRIES) for added in ADDED[e.kind or "dot_map"]]


def shared_memory(what: Program, schedules: list[Schedule], extents: dict[str, int], folder: Path) -> int:
    """Compile for sm_90a with all stages; return the most bytes of shared memory that a kernel asks for."""
    static = tuple(sorted((n, e) for n, e in extents.items() if n != "T"))
    with patch.dict(TARGETS, {"sm_90a": replace(H200, shared=1 << 20)}):  # else it is compiled with fewer
        compile_triton(lower(what, schedules, H200, Signature(static, False, ALIGNED)), "sm_90a", folder)
    launches = json.loads((folder / "launch.json").read_text())["kernels"]
    return int(max(kernel["shared"] for kernel in launches))


@pytest.mark.slow
@pytest.mark.parametrize(("at", "present", "statics"), ADDITIONS)
def test_an_entry_is_reached_and_compiles_without_spills_or_waits(
    at: int,
    present: tuple[str, ...],
    statics: dict[str, object],
    tmp_path: Path,
    assembler: Callable[[], str],
) -> None:
    listed = ENTRIES[at]
    extents = shape_of(listed)
    spec = matmul_leaf8 if listed.pieces.over else SPECS[listed.kind or "dot_map"]
    what = bound(spec, extents, present, **statics)
    chosen = [choose(k, H200, None, extents) for k in what.kernels]
    axes = roles(what.kernels[0], extents)
    sides = factor_tiles(what.kernels[0], axes)
    assert sides is not None
    reached = listed.use.schedule(sides, dict(axes.inside), H200.cores)
    streams = listed.kind == "stream_dot"
    assert replace(chosen[0], parts=1) == reached or (streams and present)
    assert shared_memory(what, chosen, extents, tmp_path) <= H200.shared * 1024
    said = assembler()
    assert "serialized" not in said
    (spilled,) = re.findall(rf"properties for {what.kernels[0].name}\n.*, (\d+) bytes spill stores", said)
    assert spilled == "0" or (streams and present)


@pytest.mark.parametrize(
    ("spec", "rows", "length"), [(matmul, 300, 64), (matmul, 600, 64), (matmul_leaf8, 300, 512)]
)
def test_a_mainloop_of_one_step_fits_into_shared_memory(
    spec: Op, rows: int, length: int, tmp_path: Path
) -> None:
    extents = {"T": rows, "K": length, "N": 2504}
    what = bound(spec, extents, (), keep_f32=True)
    chosen = [choose(kernel, H200, None, extents) for kernel in what.kernels]
    assert shared_memory(what, chosen, extents, tmp_path) <= H200.shared * 1024
    # the schedules that longer axes get would not
    persistent = [replace(each, programs=H200.cores) for each in chosen]
    assert shared_memory(what, persistent, extents, tmp_path) > H200.shared * 1024
