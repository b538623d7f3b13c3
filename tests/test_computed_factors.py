"""Factors of contractions that are computed elementwise: the bits of the same factors in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from derived_specs import unit_rows
from edited_text import edit_text

from rlk.backends.interface import Bound
from rlk.backends.registry import of_name
from rlk.errors import LoweringError
from rlk.interp.run import run
from rlk.ir.nodes import Launch
from rlk.ir.verify import verify
from rlk.lang import (
    Axis,
    DTypeVar,
    L,
    Outputs,
    Ragged,
    Static,
    Tensor,
    Tile,
    Variant,
    bf16,
    f16,
    f32,
    i8,
    i32,
    op,
)  # fmt: skip
from rlk.lang.op import Op
from rlk.lower import cute
from rlk.lower.common.memory import placed
from rlk.lower.common.names import stride_name
from rlk.passes import pipeline, split_reduction
from rlk.passes.factors_apart import factors_apart
from rlk.passes.pipeline import canonical, specialize
from rlk.runtime.reference import emit
from rlk.schedule.backend_choice import by_cute_first
from rlk.schedule.cute_table import most_stages
from rlk.schedule.schedule import Schedule
from rlk.schedule.user_table import overridden, parse
from rlk.schedule.written_factors import with_factors_written, with_products_written, writes_factors
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.generated import run_generated
from rlk.testing.simulators.simt import Fault

M, N, K = Axis("M", dynamic=True), Axis("N"), Axis("K")
S, P = Axis("S", split=4), Axis("P", piece=48, dynamic=True)
V, D, G = Axis("V", chunk=32), Axis("D"), Axis("G")
E, B = Axis("E"), Axis("B")
R = Ragged("R", over=E)
T = Axis("T", dynamic=True)
F = DTypeVar("F", (bf16, f16))
HOW = Static["computed", "kept"]
LOADED = Static["computed", "loaded"]


def held(x: Tile, how: object, name: str) -> Tile:
    """Return a factor as it is, or in memory."""
    return L.keep(x, name) if how == "kept" else x


@op()
def dequantised(
    x: Tensor[bf16, M, K], w: Tensor[i8, N, K], scale: Tensor[f32, N], group: Tensor[f32, N, G],
    how: HOW = "computed",
) -> Outputs:  # fmt: skip
    """Both factors are computed, and neither is 0 where nothing is loaded."""
    a = held(L.exp(x.to(f32)).to(bf16), how, "a")
    each = group.at(N, L.pos(K) // 16)  # a scale for 16 of K
    b = held((w.to(f32) * scale * each + 1.0).to(bf16), how, "b")
    return L.out(y=L.dot(a, b, over=K))


@op()
def in_pieces(x: Tensor[bf16, M, S], w: Tensor[i8, N, S], how: HOW = "computed") -> Outputs:
    """The last piece of a split axis is short."""
    b = held((w.to(f32) + 0.5).to(bf16), how, "b")
    return L.out(y=L.dot(x, b, over=S))


@op()
def both_in_pieces(x: Tensor[bf16, P, M], w: Tensor[i8, P, N], how: HOW = "computed") -> Outputs:
    """Rows are contracted by pieces of 48, factors with the contracted axis outside."""
    a, b = (held((t.to(f32) - 0.5).to(bf16), how, n) for t, n in ((x, "a"), (w, "b")))
    return L.out(y=L.dot(a, b, over=P))


@op()
def as_16_bits(x: Tensor[bf16, M, K], w: Tensor[bf16, N, K], how: LOADED = "computed") -> Outputs:
    """A plain product, or one that squares a factor."""
    b = (w.to(f32) * w.to(f32)).to(bf16) if how == "computed" else w
    return L.out(y=L.dot(x, b, over=K).to(bf16))


@op()
def in_f32(x: Tensor[f32, M, K], w: Tensor[i8, N, K], how: HOW = "computed") -> Outputs:
    """A chain of fma."""
    return L.out(y=L.dot(x, held(w.to(f32) * 0.125, how, "b"), over=K))


@op()
def gathered(
    x: Tensor[bf16, M, K], order: Tensor[i32, K], shift: Tensor[i32, N], w: Tensor[bf16, N, K],
    how: HOW = "computed",
) -> Outputs:  # fmt: skip
    """Columns in another order, and others beyond whose end is a number."""
    a = held(x.at(M, order), how, "a")
    b = held(w.at(N, L.pos(K) + shift, fill=L.number(1.5, bf16)), how, "b")
    return L.out(y=L.dot(a, b, over=K))


@op()
def head(hidden: Tensor[bf16, M, D], weight: Tensor[i8, V, D], scale: Tensor[f32, V]) -> Outputs:
    """A chunk of an int8 head in each step."""
    soft = L.softmax_sum()
    for v in L.stream(V):
        soft.absorb(L.dot(hidden, weight[v].to(bf16), over=D) * scale[v])
    return L.out(lse=soft.lse())


@op(bounds={R: (T,)})
def grouped(
    x: Tensor[bf16, T, K], w: Tensor[i8, E, N, K], scale: Tensor[f32, E, N], begin: Tensor[i32, E],
    end: Tensor[i32, E],
) -> Outputs:  # fmt: skip
    """Experts with int8 weights."""
    row, inside = begin + L.pos(R), L.pos(R) < end - begin
    y = L.dot(x.at(row, K, when=inside, inside=True), w.at(E, N, K).to(bf16), over=K, each=(E,))
    L.place("y", (T, N), ({T: row}, (y * scale).to(bf16)), when=inside)
    return L.out()


@op()
def weighed(x: Tensor[F, M, K], w: Tensor[i8, N, K], scale: Tensor[f32, N]) -> Outputs:
    """Bytes as they are; int8 numbers are exact in 16 bits."""
    return L.out(y=(L.dot(x, w.to(x.dtype), over=K) * scale).to(x.dtype))


@op()
def scaled_rows(
    x: Tensor[bf16, M, K], w: Tensor[i8, N, K], scale: Tensor[f32, N], how: HOW = "computed"
) -> Outputs:
    """Numbers of a row, and an index: NaN where nothing is loaded."""
    left = (64 - L.pos(K) % 64).to(f32) - (L.pos(K) // 112).to(f32) * 16.0
    return L.out(y=L.dot(x, held((w.to(f32) * scale / left).to(bf16), how, "b"), over=K))


@op()
def activated(x: Tensor[f32, M, K], w: Tensor[bf16, N, K]) -> Outputs:
    """The rows are computed."""
    return L.out(y=L.dot(L.exp(x).to(bf16), w, over=K))


@op()
def down(x: Tensor[bf16, M, K], w: Tensor[i8, K, N]) -> Outputs:
    """Bytes with the contracted axis outside."""
    return L.out(y=L.dot(x, w.to(bf16), over=K))


@op()
def squared(x: Tensor[bf16, M, K], w: Tensor[i8, N, K]) -> Outputs:
    """Bytes that are read twice."""
    b = w.to(f32)
    return L.out(y=L.dot(x, (b * b).to(bf16), over=K))


@op()
def by_columns(x: Tensor[bf16, K, B], w: Tensor[i8, N, K]) -> Outputs:
    """The plain factor has the contracted axis outside."""
    return L.out(y=L.dot(x, w.to(bf16), over=K))


def small(*shape: int, seed: int = 0) -> np.ndarray:
    """Return bf16 patterns of normal numbers."""
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def whole(*shape: int) -> np.ndarray:
    return np.random.default_rng(9).integers(-128, 128, shape, np.int8)


def ones(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).uniform(0.5, 1.5, shape).astype(np.float32)


CASES: dict[str, tuple[Op, dict[str, Any]]] = {
    "dequantised": (
        dequantised,
        {"x": small(19, 100), "w": whole(40, 100), "scale": ones(40) / 100, "group": ones(40, 7)},
    ),
    "in_pieces": (in_pieces, {"x": small(5, 75), "w": whole(33, 75)}),
    "both_in_pieces": (both_in_pieces, {"x": small(110, 33), "w": whole(110, 20)}),
    "in_f32": (in_f32, {"x": ones(7, 21), "w": whole(18, 21)}),
    "gathered": (
        gathered,
        {
            "x": small(9, 75), "w": small(20, 75), "shift": np.arange(20, dtype=np.int32) % 5 - 2,
            "order": np.random.default_rng(3).permutation(75).astype(np.int32),
        },
    ),
    "head": (head, {"hidden": small(9, 48), "weight": whole(77, 48), "scale": ones(77) / 100}),
    "grouped": (
        grouped,
        {
            "x": small(40, 64), "w": whole(3, 24, 64), "scale": ones(3, 24),
            "begin": np.array([0, 7, 7], np.int32), "end": np.array([7, 7, 40], np.int32),
        },
    ),
}  # fmt: skip


def program(spec: Op, how: str = "computed", dtype: Any = bf16) -> Any:
    has = "how" in {formal.name for formal in spec.formals}
    dtypes = {"F": dtype} if spec is weighed else {}
    return canonical(spec.trace(Variant.of(dtypes, statics={"how": how} if has else {})))


def tiled(name: str, rows: int) -> tuple[Op, dict[str, Any]]:
    """Return a spec whose factors are each one tile of a tensor, and tensors with so many rows."""
    if name == "grouped":
        spec, given = CASES[name]
        return spec, given
    scale, x = ones(72) / 100, small(rows, 112)
    return {
        "weighed": (weighed, {"x": x, "w": whole(72, 112), "scale": scale}),
        "weighed in f16": (
            weighed,
            {"x": ones(rows, 112).astype(np.float16), "w": whole(72, 112), "scale": scale},
        ),
        "scaled_rows": (scaled_rows, {"x": x, "w": whole(72, 112), "scale": scale}),
        "activated": (activated, {"x": ones(rows, 112), "w": small(72, 112)}),
        "down": (down, {"x": x, "w": whole(112, 80)}),
    }[name]


TILED = ("weighed", "weighed in f16", "scaled_rows", "activated", "down", "grouped")


def assert_seen(
    monkeypatch: pytest.MonkeyPatch, made: Any, given: dict[str, Any], text: str, by: str
) -> None:
    """Replace a text of CuTe's source; the simulator refuses what it does, or its bits are other ones."""
    want = run(made, given).tensors["y"]
    edit_text(monkeypatch, cute, lambda source: source.replace(text, by))
    try:
        got = run_generated(made, given, backend="cute", divisible=aligned(made)).tensors["y"]
    except Fault:
        return
    assert differing(got, want)


def aligned(made: Any) -> frozenset[str]:
    """Return the tensors and strides of a program, as if all were aligned."""
    decls = [decl for kernel in made.kernels for decl in kernel.params]
    strides = {stride_name(decl, dim) for decl in decls for dim in range(len(decl.type.axes) - 1)}
    return frozenset({decl.name for decl in decls} | strides)


@pytest.mark.parametrize("rows", [5, 70])
@pytest.mark.parametrize("name", TILED)
def test_registers_hold_a_factor_that_a_tile_becomes(name: str, rows: int) -> None:
    pytest.importorskip("triton")
    spec, given = tiled(name, rows)
    made = program(spec, dtype=f16 if "f16" in name else bf16)
    want = run(made, given, extents={"R": 40}).tensors["y"]
    got = run_generated(made, given, backend="cute", divisible=aligned(made), extents={"R": 40})
    assert_same_bits(got.tensors["y"], want, name, "bf16" if want.dtype == np.uint16 else None)
    bytes_of_few = rows == 5 and name.startswith("weighed") or name == "grouped"
    assert ("warp_products" if bytes_of_few else "OperandSource.RMEM") in got.emitted.source
    assert ("bytes_as_floats" in got.emitted.source) == (name in ("weighed", "weighed in f16", "grouped"))


@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("tile", [(8, 64), (16, 128), (32, 64)])
def test_warps_multiply_bytes_by_few_rows(tile: tuple[int, int], depth: int) -> None:
    pytest.importorskip("triton")
    spec, given = tiled("weighed", 37)
    made = program(spec)
    tiles = tuple(zip(("M", "N"), tile, strict=True))
    use = Schedule(tiles=tiles, stages=3, depth=depth, group=2, programs=2)
    got = run_generated(made, given, backend="cute", divisible=aligned(made), schedules=(use,))
    assert f"warp_products(unit, fragment, a, b_bytes, [place + {2 * depth * tile[0]} " in got.emitted.source
    assert_same_bits(got.tensors["y"], run(made, given).tensors["y"], f"{tile} {depth}", "bf16")


@pytest.mark.parametrize("spec", [weighed, down, squared, by_columns], ids=lambda spec: spec.name)
def test_schedules_of_bytes_are_those_of_what_multiplies_them(spec: Op) -> None:
    rows_axis = "B" if spec is by_columns else "M"
    for rows in (16, 32) if spec is by_columns else (1, 16, 32):
        sizes = {rows_axis: rows, "N": 512, "K": 512}
        emitted, (use,), _ = emit(program(spec), sizes, target("sm_90a"), "cute")
        alone = "warp_products" in emitted.source
        assert alone == (spec is weighed)
        tile = dict(use.tiles)
        most = most_stages(tile[rows_axis], tile["N"], use.programs // target("sm_90a").cores)
        assert (use.depth, use.stages < most) == ((128, True) if alone else (64, False)), (rows, use)


@pytest.mark.parametrize(
    ("name", "text", "by"),
    [
        ("weighed", "Int32(0x5150)", "Int32(0x5051)"),  # the other byte first
        ("weighed", "// 8 % parts ^ i", "// 4 % parts ^ i"),  # another swizzle
        ("weighed", "row ^ i % 2 * 4", "row ^ i % 2 * 2"),  # other elements of the plain factor
        ("weighed", "            fragment.fill(0.0)\n", "            fragment.fill(1.0)\n"),
        ("scaled_rows", " < 112, ", " < 128, "),  # what is computed of nothing is multiplied with 0
        ("scaled_rows", "warpgroup.wait_group(0)\n", "pass\n"),  # registers are written that products read
    ],
)
def test_a_change_of_what_fills_registers_is_seen(
    name: str, text: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    spec, given = tiled(name, 5)
    assert_seen(monkeypatch, program(spec), given, text, by)


@pytest.mark.parametrize("name", CASES)
def test_a_computed_factor_has_the_bits_of_one_in_memory(name: str) -> None:
    spec, given = CASES[name]
    extents = {"R": 40} if name == "grouped" else {}
    want = run(program(spec), given, extents=extents).tensors
    out = next(iter(want))
    if "how" in {formal.name for formal in spec.formals}:
        assert_same_bits(run(program(spec, "kept"), given)[out], want[out])
    pytest.importorskip("triton")
    for on in ("sm_90a", "gfx942") if name != "grouped" else ("sm_90a",):
        kind = "bf16" if want[out].dtype == np.uint16 else None
        got = run_generated(program(spec), given, on=target(on), extents=extents).tensors[out]
        assert_same_bits(got, want[out], f"{name} on {on}", kind)


def test_products_of_computed_factors_are_cutes_where_they_were_measured() -> None:
    def by_cute(name: str) -> bool:
        spec, given = CASES.get(name) or tiled(name, 70)
        sizes = {"M": 64, "N": 40, "K": 64, "S": 64, "P": 64, "V": 64, "D": 64, "E": 3, "T": 40, "G": 1}
        made = specialize(program(spec), sizes, target("sm_90a").softmax)
        return by_cute_first(made, target("sm_90a"), sizes | {"R": 40})

    assert by_cute("weighed") and by_cute("down")
    assert not any(map(by_cute, ("activated", "head", "grouped")))


WRITTEN = ("weighed", "weighed in f16", "scaled_rows", "activated", "down", "dequantised")


@pytest.mark.parametrize("name", WRITTEN)
def test_factors_that_are_written_first_have_the_same_bits(name: str) -> None:
    spec, given = CASES.get(name) or tiled(name, 5)
    made = program(spec, dtype=f16 if "f16" in name else bf16)
    want = run(made, given).tensors["y"]
    kind = "bf16" if want.dtype == np.uint16 else None
    apart = factors_apart(made)
    verify(apart)
    assert len(apart.kernels) == (3 if name == "dequantised" else 2)
    assert apart.kernels[-1].name == made.kernels[-1].name  # by which tables know the product
    writers = [f"{made.kernels[-1].name}_{each.params[-1].name}" for each in apart.kernels[:-1]]
    assert [each.name for each in apart.kernels[:-1]] == writers
    assert_same_bits(run(apart, given).tensors["y"], want, name, kind)
    unwritten = replace(apart, launches=tuple(Launch(each.name) for each in apart.kernels[1:]))
    pytest.importorskip("triton")
    whole = aligned(apart) if name != "dequantised" else frozenset()  # rows of 100 elements
    for by in ("triton", "cute") if whole else ("triton",):
        got = run_generated(apart, given, backend=by, divisible=whole)
        assert_same_bits(got.tensors["y"], want, f"{name} by {by}", kind)
        lacking = run_generated(unwritten, given, backend=by, divisible=whole).tensors["y"]
        assert differing(lacking, want)  # what no kernel writes is NaN


def test_wide_products_whose_rows_are_reduced_whole_are_written_first() -> None:
    pytest.importorskip("triton")
    made = canonical(unit_rows.trace(Variant.of({})))
    for rows, columns, kernels in ((5, 256, 1), (5, 300, 2), (17, 4096, 2), (512, 8192, 2), (4096, 4096, 2)):
        sizes = {"M": columns, "D": 512, "R": rows}
        assert len(emit(made, sizes, target("sm_90a"), "triton")[0].kernels) == kernels
    for columns in (512, 304):  # of 304 a row is padded: beyond its end there is no memory
        given = {"x": small(5, 32), "w": small(columns, 32, seed=1)}
        apart = with_products_written(made, {"R": 5, "M": columns, "D": 32})
        verify(apart)
        assert [each.name for each in apart.kernels] == ["unit_rows_z_f32", "unit_rows"]
        want = run(made, given).tensors["y"]
        unwritten = replace(apart, launches=apart.launches[1:])
        for by in ("triton", "cute"):
            got = run_generated(apart, given, backend=by, divisible=aligned(apart))
            assert_same_bits(got.tensors["y"], want, by)
            lacking = run_generated(unwritten, given, backend=by, divisible=aligned(apart)).tensors["y"]
            assert differing(lacking, want)  # what no kernel writes is NaN


@pytest.mark.parametrize("by", ["triton", "cute"])
def test_factors_are_written_first_for_many_rows_and_where_schedules_say_so(by: str) -> None:
    spec, _ = tiled("weighed", 5)
    sizes = {"N": 1024, "K": 1024}

    def emitted(rows: int) -> Any:
        return emit(program(spec), {"M": rows, **sizes}, target("sm_90a"), by)

    (many, schedules, wrote), (few, plain, whole) = emitted(4096), emitted(64)
    assert [len(made.kernels) for made in (many, few)] == [2, 1] and len(schedules) == 2
    multiples = {arg.name.removesuffix("_ptr") for k in many.kernels for arg in k.args if arg.divisible}
    assert {"w_bf16", "w_bf16_n_stride"} <= multiples
    with_rows = specialize(program(spec), sizes, target("sm_90a").softmax)
    bound = Bound(with_rows, plain, lambda: with_rows, target("sm_90a"), {"M": 64, **sizes})
    assert len(of_name(by).program_of(bound, schedules).kernels) == 2
    assert placed(wrote, {"M": 4096, **sizes})[1] == 2 * 1024 * 1024
    assert writes_factors(with_rows, {"M": 4096, **sizes}) and not writes_factors(with_rows, bound.extents)
    for_product = (
        f'op = "weighed"\nkernel = "weighed"\ntarget = "sm_90a"\nbackend = "{by}"\nuse = {{ group = 5 }}'
    )
    (entry,) = parse(f"[[entry]]\n{for_product}", "mine").entries
    for form, chosen in ((wrote, schedules), (whole, plain)):
        made, used = overridden((entry,), by, form.kernels, chosen, bound.extents)
        assert made == (*chosen[:-1], replace(chosen[-1], group=5)) and used == (entry,)
    short = {"M": 4096, "N": 64, "K": 1024}  # a launch takes longer than it saves
    assert not writes_factors(with_rows, short)


def test_factors_of_streams_segments_and_pieces_stay_in_the_loop() -> None:
    for name in ("head", "in_pieces"):
        made = program(CASES[name][0])
        assert factors_apart(made) is made
    sizes = {"E": 2, "N": 64, "K": 64, "T": 2**16, "R": 2**16}  # a host does not know the rows of a segment
    assert with_factors_written(program(grouped), sizes) == program(grouped)


def test_what_is_computed_beyond_an_end_would_count(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, given = CASES["both_in_pieces"]
    want = run(program(spec), given)["y"]
    monkeypatch.setattr(split_reduction._Pieces, "factor", lambda self, b, factor, axis: factor)
    monkeypatch.setattr(pipeline, "_known", {})  # canonical forms of before
    assert differing(run(program(spec), given)["y"], want)
    monkeypatch.undo()
    pytest.importorskip("triton")
    from rlk.lower.triton.contract import Dots

    spec, given = CASES["dequantised"]
    right = Dots.computed

    def unmasked(self: Any, contraction: Any, factor: Any, along: str, within: str | None) -> str:
        right(self, contraction, factor, along, within)
        return str(self.e[factor.prologue[-1].value])

    monkeypatch.setattr(Dots, "computed", unmasked)
    assert differing(run_generated(program(spec), given).tensors["y"], run(program(spec), given)["y"])


@pytest.mark.parametrize(
    ("name", "by", "on"),
    [
        *((name, "cute", "sm_90a") for name in ("dequantised", "head", "gathered")),
        *((name, "tilelang", "gfx942") for name in ("dequantised", "gathered")),
    ],
)
def test_other_backends_refuse_them_at_the_line(name: str, by: str, on: str) -> None:
    pytest.importorskip("triton")
    spec, given = CASES[name]
    with pytest.raises(LoweringError) as found:
        run_generated(program(spec), given, backend=by, on=target(on), extents={"R": 40})
    said = str(found.value)
    assert "L.dot(" in said and "L.keep" in said and by in said, said
