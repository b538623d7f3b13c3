"""Generated CuTe kernels have the oracle's bits, thread by thread, under any schedule."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from edited_text import edit_text

from rlk.errors import UnsupportedError
from rlk.interp.run import run
from rlk.ir.nodes import MathModel, Program
from rlk.lang import Axis, DTypeVar, L, Op, Scalar, Tensor, Variant, bf16, f16, f32, i32, i64, op
from rlk.lower import cute
from rlk.lower.common.emitted import Emitted, Signature
from rlk.lower.cute.functions import functions
from rlk.passes.pipeline import canonical, specialize
from rlk.schedule.axes import kind
from rlk.schedule.cute_tiles import warpgroups
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators import block_memory, hopper
from rlk.testing.simulators.simt import Fault, Memory

pytest.importorskip("triton")  # the harness knows both lowerings
from rlk.testing import generated

H200 = target("sm_90a")
M, N, K = Axis("M", dynamic=True), Axis("N"), Axis("K")
T, D = Axis("T", dynamic=True), Axis("D")
V = Axis("V", chunk=256, split=8)
F = DTypeVar("F", (bf16, f16))
DTYPES = {"bf16": bf16, "f16": f16, "f32": f32}
FACTORS = frozenset(
    "x w hidden weight x_m_stride x_k_stride w_n_stride w_k_stride hidden_t_stride weight_v_stride".split()
)
RESULTS = frozenset("y low y_m_stride low_m_stride".split())


@op()
def product(x: Tensor[F, M, K], w: Tensor[F, N, K], bias: Tensor[F, N], base: Tensor[F, M, N]):
    z = L.dot(x, w, over=K) + bias.to(f32)
    return L.out(y=z + base.to(f32), low=z.to(bf16))


@op()
def turned(x: Tensor[F, K, M], w: Tensor[F, K, N]):
    return L.out(y=L.dot(x, w, over=K))


@op()
def half_transposed(x: Tensor[F, M, K], w: Tensor[F, K, N]):
    return L.out(y=L.dot(x, w, over=K))


@op()
def exact(x: Tensor[f32, M, K], w: Tensor[f32, N, K]):
    return L.out(y=L.dot(x, w, over=K))


@op()
def linear(hidden: Tensor[F, T, D], weight: Tensor[F, V, D], ids: Tensor[i64, T], inverse: Scalar[f32]):
    soft, picked = L.softmax_sum(), L.total()
    active = ids != -100
    for v in L.stream(V, when=active):
        z = L.dot(hidden, weight[v], over=D) * inverse
        soft.absorb(z, zbar=z)
        picked.absorb(L.where(v.pos.to(i64) == ids, z, -0.0))
    lse = soft.lse()
    L.check(active & L.isnan(lse), "no finite score")
    return L.out(lse=L.where(active, lse, 0.0), mean=soft.mean("zbar"), z=picked.value)


@op()
def before(hidden: Tensor[F, T, D], weight: Tensor[F, V, D], ids: Tensor[i64, T], end: Scalar[i32]):
    """Elements before an index, in rows that count: a comparison of indices that may be negative."""
    total = L.total()
    counts = ids != -100
    for v in L.stream(V):
        z = L.dot(hidden, weight[v], over=D)
        total.absorb(L.where(((v.pos - 9) < end) & counts, z, -0.0))
    return L.out(y=total.value)


@cache
def program(spec: Op, dtype: str = "f16") -> Program:
    """Return the canonical program, its chunks side by side if it streams."""
    traced = spec.trace(Variant.of({} if spec is exact else {"F": DTYPES[dtype]}, frozenset(), {}))
    return canonical(traced, apart=apart(canonical(traced), {"T": 1 << 20, "M": 1 << 20, "V": 512, "N": 16}))


def array(dtype: str, *shape: int) -> Any:
    values = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return values.astype(np.float16) if dtype == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16)


def products(m: int, n: int, k: int, dtype: str = "f16") -> dict[str, Any]:
    given = {"x": array(dtype, m, k), "w": array(dtype, n, k)}
    return {**given, "bias": array(dtype, n), "base": array(dtype, m, n)}


def rows(t: int, v: int, d: int, dtype: str = "bf16") -> dict[str, Any]:
    """Return a head and ids: the ends of pieces and chunks, none of the vocabulary, and inactive rows."""
    ids = np.random.default_rng(t).integers(0, v, t)
    odd = [0, 255, 256, v - 1, v, -1, -100, 2**31, -(2**63), v // 8, v // 8 - 1][:t]
    ids[: len(odd)] = odd
    factors = {"hidden": array(dtype, t, d), "weight": array(dtype, v, d)}
    return {**factors, "ids": ids, "inverse": 1.25}


def schedules(what: Program, extents: dict[str, int], **changes: Any) -> tuple[Schedule, ...]:
    chosen = (warpgroups(k, choose(k, H200, None, extents), H200, extents) for k in what.kernels)
    return tuple(replace(s, programs=6, **changes) if s.cluster or s.stages > 1 else s for s in chosen)


def ran(what: Program, given: dict[str, Any], divisible: frozenset[str], **changes: Any) -> generated.Ran:
    extents = generated.extents_of(what, given)
    chosen = schedules(what, extents, **changes)
    return generated.run_generated(what, given, schedules=chosen, divisible=divisible, backend="cute")


def agree(
    what: Program, given: dict[str, Any], divisible: frozenset[str] = FACTORS, **changes: Any
) -> Emitted:
    made = ran(what, given, divisible, **changes)
    want = run(what, given, softmax=MathModel.SM90)
    for name in want.tensors:
        assert_same_bits(made.tensors[name], want[name], name)
    return made.emitted


# --- the same bits ---


@pytest.mark.parametrize("t", [1, 70, 130, 300])
@pytest.mark.parametrize(("v", "d", "dtype"), [(2300, 64, "bf16"), (1001, 40, "f16"), (3, 16, "bf16")])
def test_a_fold_of_products_has_the_oracles_bits(t: int, v: int, d: int, dtype: str) -> None:
    what = program(linear, dtype)
    assert [kind(k) for k in what.kernels] == ["stream_dot", "merge"]
    agree(what, rows(t, v, d, dtype))


CHANGES = {
    "blocks alone": {"cluster": 1},
    "clusters": {"cluster": 2},
    "groups": {"group": 3, "cluster": 1},
    "two stages": {"stages": 2},
    "64 rows": {"tiles": (("T", 64),), "cluster": 1},
    "64 rows, clusters": {"tiles": (("T", 64),), "cluster": 2},
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_schedule_changes_a_fold_of_products(change: str) -> None:
    agree(program(linear, "bf16"), rows(190, 2300, 96), **CHANGES[change])


SIZES = [(1, 17, 40), (70, 33, 16), (130, 264, 104), (20, 16, 8), (300, 520, 128)]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_any_size_have_the_oracles_bits(dtype: str, m: int, n: int, k: int) -> None:
    divisible = FACTORS | RESULTS if n % 8 == 0 else FACTORS
    agree(program(product, dtype), products(m, n, k, dtype), divisible)


@pytest.mark.parametrize("columns", [32, 64, 96, 128, 160, 256])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_results_are_written_by_vectors_where_they_lie_so(
    dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every element once, 16 bytes at a time; the control: none where strides are not known to divide."""
    given, tiles = products(70, 272, 40, dtype), (("M", 128), ("N", columns))
    moved = vectors_of(monkeypatch)
    agree(program(product, dtype), given, FACTORS, tiles=tiles)
    assert not moved
    agree(program(product, dtype), given, FACTORS | RESULTS | {"base", "base_m_stride"}, tiles=tiles)
    low, narrow = ("store", "bf16", 8), ("load", dtype, 8)
    assert moved == {("store", "f32", 4): 70 * 272, low: 70 * 272, narrow: 70 * 272}


def vectors_of(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str, int]]:
    """Count the elements of matrices of results that vectors move: which way, of a dtype, so many at once."""
    moved = Counter[tuple[str, str, int]]()

    def spied(way: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def move(condition: Any, memory: Memory, index: Any, what: Any, *count: int) -> Any:
            width = len(what) if way == "store" else count[0]
            if len(memory.shape) == 2:
                on = memory.touched(condition, index)
                moved[way, str(memory.dtype), width] += width * int(on.sum())
            return real(condition, memory, index, what, *count)

        return move

    for way in ("load", "store"):
        name = f"{way}_vector_where"
        monkeypatch.setitem(hopper.OVERRIDDEN, name, spied(way, getattr(block_memory, name)))
    return moved


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("rows", [8, 16, 32])
@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("m", [1, 16, 37])
def test_few_rows_may_be_the_columns_of_an_instruction(m: int, columns: int, rows: int, dtype: str) -> None:
    made = agree(program(product, dtype), products(m, 200, 72, dtype), tiles=(("M", rows), ("N", columns)))
    assert f"tile = ({columns}, {rows}, 64)" in made.source


@pytest.mark.parametrize(("rows", "columns"), [(64, 48), (128, 80), (128, 192)])
def test_columns_may_be_three_or_five_times_a_power_of_two(rows: int, columns: int) -> None:
    made = agree(program(product), products(70, 200, 72), tiles=(("M", rows), ("N", columns)))
    assert f"tile = ({rows}, {columns}, 64)" in made.source


@pytest.mark.parametrize(("spec", "columns"), [(product, 40), (turned, 96), (turned, 48)])
def test_columns_that_tiles_in_shared_memory_cannot_have_are_refused(spec: Op, columns: int) -> None:
    with pytest.raises(UnsupportedError, match=f"tiles of .*{columns}"):
        agree(program(spec), products(70, 200, 72), tiles=(("M", 64), ("N", columns)))


def test_results_are_written_in_pairs_or_alone_where_vectors_would_not_lie_so() -> None:
    pairs = agree(program(product), products(70, 62, 40), FACTORS | RESULTS)
    single = agree(program(product), products(70, 64, 40), FACTORS)
    assert "store_pair_where" in pairs.source and "store_vector_where(" not in pairs.source
    assert "store_where" in single.source and "store_vector_where(" not in single.source


@pytest.mark.parametrize(("m", "n", "k"), [(72, 40, 24), (136, 264, 200)])
@pytest.mark.parametrize("spec", [turned, half_transposed])
def test_factors_may_be_contracted_along_their_first_dim(spec: Op, m: int, n: int, k: int) -> None:
    x = array("f16", k, m) if spec is turned else array("f16", m, k)
    emitted = agree(program(spec), {"x": x, "w": array("f16", k, n)})
    assert "OperandMajorMode.MN" in emitted.source and "COL_MAJOR, tile" in emitted.source


def test_what_a_check_finds_is_reported_with_its_row() -> None:
    given = rows(70, 2300, 64)
    given["hidden"][41] = 0x7FC0  # NaN
    assert ran(program(linear, "bf16"), given, FACTORS).errors == (1, 42)
    given["ids"][41] = -100
    assert ran(program(linear, "bf16"), given, FACTORS).errors == (0, 0)


@pytest.mark.parametrize("end", [-(2**31), -5, 0, 300, 2**31 - 1])
def test_a_mask_of_indices_below_zero_keeps_its_meaning(end: int) -> None:
    given = rows(70, 2300, 64)
    del given["inverse"]
    given["ids"][::3] = -100
    agree(program(before, "bf16"), {**given, "end": end})


# --- controls ---


def edited(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str], what: Program | None = None
) -> dict[str, int]:
    """Return how many elements of each result differ from the oracle after an edit of the generated text."""
    edit_text(monkeypatch, cute, edit)
    if what is None:
        what, given, divisible = program(linear, "bf16"), rows(190, 2300, 96), FACTORS
    else:
        given, divisible = products(70, 272, 40), FACTORS | RESULTS
    made, want = ran(what, given, divisible), run(what, given, softmax=MathModel.SM90)
    return {name: differing(made.tensors[name], want[name]) for name in made.tensors}


SEEN = {
    "another pair of rows": (r"row \+ 8 \* r", "row + 8 * (1 - r)"),
    "columns of the next thread": (r"quad = 2 \* \(mine % 4\)", "quad = 2 * ((mine + 1) % 4)"),
    "another order of a sum": (
        r"folded\(x, 32, add\)\n(.*)folded\(x, 16, add\)",
        r"folded(x, 2, add)\n\1folded(x, 16, add)",
    ),
    "lanes in another order": (
        r"exchanged\(x, 2, add\)\n(.*)exchanged\(x, 1, add\)",
        r"exchanged(x, 1, add)\n\1exchanged(x, 2, add)",
    ),
    "a step that overwrites": (
        r"( +)for k in cutlass.range\(1, ",
        r"\1unit.set(warpgroup.Field.ACCUMULATE, False)\n\1for k in cutlass.range(1, ",
    ),
    "a mask that ends late": (r"at > 8 \* ", "at + 1 > 8 * "),
    "picked beside the index": (r"at_2 == 8", "at_2 + 1 == 8"),
}


@pytest.mark.parametrize("mistake", SEEN)
def test_a_mistake_in_the_text_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(edited(monkeypatch, lambda text: re.sub(*SEEN[mistake], text)).values())


REFUSED = {
    "a product that may be fused": (r"mul\((\w+), inverse\)", r"\1 * inverse", "without its rounding"),
    "four threads write": (r" & first_of_quad", "", "two threads write"),
    "fewer bytes than a stage": (r"tx_count=(\d+)", r"tx_count=\1 + 16", "bytes landed"),
    "a stage that nobody frees": (
        r"ring.consumer_release\(free\)\n            free.advance\(\)\n",
        "free.advance()\n",
        "released out of turn|were filled",
    ),
    "rows out of bounds": (
        r"load_where\(t_inside\[r\], ids",
        "load_where(Boolean(True), ids",
        "an index outside",
    ),
    "a zero that may lose its sign": (
        r"Int32\(-\(2\*\*31\)\).bitcast\(Float32\)",
        "Float32(-0.0)",
        "-0.0 as a constant",
    ),
    "memory that other kernels still write": (r" +cute.arch.griddepcontrol_.*\n", "", "before the kernels"),
    "a branch of some threads": (r"if any_lane\((.*)\):", r"if (\1):", "threads disagree"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_device_would_not_do_is_refused(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, new, why = REFUSED[mistake]
    with pytest.raises(Fault, match=why):
        edited(monkeypatch, lambda text: re.sub(pattern, new, text))


SYNC = "cute.arch.sync_warp()\n"
TRADES = {
    "vectors read before they are written": (f"{SYNC}    made = []", "made = []", "before the thread"),
    "pairs over vectors that are still read": (
        f"{SYNC}    for i in range(len(x)",
        "for i in range(len(x)",
        "may still",
    ),
    "vectors between words": (
        "cute.assume(vectors ^ 16 * i",
        "cute.assume((vectors ^ 16 * i) + 1",
        "assumed",
    ),
    "results between vectors": ("quad + 32 * i)), vectors", "quad + 1 + 32 * i)), vectors", "not aligned"),
    "two rows in one": ("lane // 4 * 36", "lane // 8 * 36", "two threads write"),
}
"""What is replaced, by what, and the fault that follows."""


@pytest.mark.parametrize("mistake", TRADES)
def test_a_race_in_shared_memory_is_refused(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, why = TRADES[mistake]
    with pytest.raises(Fault, match=why):
        edited(monkeypatch, lambda text: text.replace(old, new), program(product))


def test_vectors_of_the_wrong_columns_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    found = edited(
        monkeypatch, lambda text: text.replace("vectors ^ 16 * i", "vectors ^ 8 * i"), program(product)
    )
    assert found["y"]


def test_an_edit_that_means_the_same_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = edited(monkeypatch, lambda text: text.replace("row + 8 * r", "8 * r + row"))
    assert not any(found.values())


# --- the text ---


@pytest.mark.parametrize("name", functions())
def test_a_helper_is_traced_where_it_branches_on_what_threads_know_and_nowhere_else(name: str) -> None:
    """Python would take an untraced `if` once, at compile time, and a traced helper is compiled apart."""
    (body,) = ast.parse(functions()[name].source).body
    assert isinstance(body, ast.FunctionDef)
    loops = [node.iter for node in ast.walk(body) if isinstance(node, ast.For)]
    on_device = any(ast.unparse(loop).startswith("cutlass.range") for loop in loops)
    branches = any(isinstance(node, ast.If | ast.With) for node in ast.walk(body))
    assert [ast.unparse(each) for each in body.decorator_list] == ["cute.jit"] * (branches or on_device)


def test_the_text_is_the_same_each_time_and_names_its_lines() -> None:
    sizes = {"V": 2300, "D": 64}
    bound = specialize(program(linear, "bf16"), sizes, MathModel.SM90)
    signature = Signature(tuple(sorted(sizes.items())), divisible=FACTORS)
    chosen = schedules(bound, {**sizes, "T": 512})
    one, two = (cute.lower(bound, chosen, H200, signature) for _ in range(2))
    assert one == two and one.backend == "cute"
    assert re.search(r"# test_cute_lowering.py:\d+", one.source)
    assert "clusters of 2" in one.source


@pytest.mark.parametrize(
    ("spec", "signature", "why"),
    [
        (exact, {}, "contractions of f32"),
        (product, {"divisible": frozenset()}, "multiples of 16 bytes"),
        (product, {"strided": frozenset({"bias"})}, "two row strides"),
    ],
)
def test_nests_without_a_form_are_refused(spec: Op, signature: dict[str, Any], why: str) -> None:
    sizes = {"N": 64, "K": 64}
    bound = specialize(program(spec), sizes, MathModel.SM90)
    given = Signature(tuple(sorted(sizes.items())), **{"divisible": FACTORS | {"base"}, **signature})
    with pytest.raises(UnsupportedError, match=why):
        cute.lower(bound, schedules(bound, {**sizes, "M": 300}), H200, given)
