"""Generated contractions have the oracle's bits under any schedule, by pointers and by descriptors."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edited_text import edit_text

triton = pytest.importorskip("triton")

from rlk.backends.triton import compile_triton  # noqa: E402
from rlk.errors import ScheduleError, UnsupportedError  # noqa: E402
from rlk.interp.run import run  # noqa: E402
from rlk.ir.nodes import Let, MathModel, Program, Select  # noqa: E402
from rlk.lang import Axis, DTypeVar, L, Op, Ragged, Scalar, Tensor, Variant, bf16, f16, f32, i32, i64, op  # noqa: E402
from rlk.lower import triton as lowering  # noqa: E402
from rlk.lower.common.contract import contractions, covered  # noqa: E402
from rlk.lower.common.emitted import Emitted, Signature  # noqa: E402
from rlk.lower.triton import lower  # noqa: E402
from rlk.passes.pipeline import canonical, specialize  # noqa: E402
from rlk.passes.rewrite import Replay, rewrite  # noqa: E402
from rlk.schedule.axes import kind  # noqa: E402
from rlk.schedule.heuristics import apart, choose, variety  # noqa: E402
from rlk.schedule.schedule import Schedule  # noqa: E402
from rlk.target.facts import target  # noqa: E402
from rlk.testing import generated  # noqa: E402
from rlk.testing.bits import assert_same_bits, differing  # noqa: E402

SM90 = MathModel.SM90
H200 = target("sm_90a")
M = Axis("M", dynamic=True)
N = Axis("N")
C = Axis("C")
B = Axis("B")
K = Axis("K")
T = Axis("T", dynamic=True)
V = Axis("V", chunk=256, split=8)
D = Axis("D")
R = Ragged("R", over=B)
F = DTypeVar("F", (bf16, f16))
DTYPES = {"bf16": bf16, "f16": f16, "f32": f32}
ALIGNED = frozenset(
    "x w bias base hidden weight x_m_stride w_n_stride x_k_stride w_k_stride hidden_t_stride "
    "weight_v_stride base_n_stride x_b_stride x_t_stride w_b_stride w_t_stride".split()
)


@op()
def product(x: Tensor[F, M, K], w: Tensor[F, N, K], bias: Tensor[F, N], base: Tensor[F, M, N]):
    z = L.dot(x, w, over=K) + bias.to(f32)
    return L.out(y=z + base.to(f32), low=z.to(bf16))


@op()
def turned(x: Tensor[F, K, M], w: Tensor[F, K, N]):
    return L.out(y=L.dot(x, w, over=K))


@op()
def batched(x: Tensor[F, M, B, K], w: Tensor[F, B, N, K]):
    return L.out(y=L.dot(x, w, over=K, each=(B,)))


@op()
def ended(x: Tensor[F, B, M, K], w: Tensor[F, B, N, K], end: Tensor[i32, B]):
    inside = L.pos(K) < end
    x, w = (t.at(B, axis, K, when=inside) for t, axis in ((x, M), (w, N)))
    return L.out(y=L.dot(x, w, over=K, each=(B,)))


@op(bounds={R: (T,)})
def begun(x: Tensor[F, T, M], w: Tensor[F, B, T, N], begin: Tensor[i32, B], end: Tensor[i32, B]):
    inside = L.pos(R) < end - begin
    x = x.at(begin + L.pos(R), M, when=inside, inside=True)
    return L.out(y=L.dot(x, w.at(B, L.pos(R), N, when=inside, inside=True), over=R, each=(B,)))


@op()
def ended_rows(x: Tensor[F, M, K], w: Tensor[F, N, K], end: Scalar[i32]):
    inside = L.pos(K) < end
    return L.out(y=L.dot(x.at(M, K, when=inside), w.at(N, K, when=inside), over=K))


@op()
def gated(x: Tensor[F, M, K], w: Tensor[F, N, K], base: Tensor[F, N, K]):
    gate = L.dot(x, w, over=K)
    return L.out(y=(gate * L.sigmoid(gate) * L.dot(x, base, over=K)).to(bf16))


@op()
def exact(x: Tensor[f32, M, K], w: Tensor[f32, N, K]):
    return L.out(y=L.dot(x, w, over=K))


@op()
def linear(hidden: Tensor[F, T, D], weight: Tensor[F, V, D], ids: Tensor[i64, T], temperature: Scalar[f32]):
    soft, picked = L.softmax_sum(), L.total()
    for v in L.stream(V):
        z = L.dot(hidden, weight[v], over=D) * temperature
        soft.absorb(z, mean=z)
        picked.absorb(L.where(v.pos == ids.to(i32), z, -0.0))
    return L.out(lse=soft.lse(), mean=soft.mean("mean"), z=picked.value)


@op()
def computed(x: Tensor[bf16, M, K], w: Tensor[bf16, N, K], u: Tensor[bf16, C, N]):
    return L.out(y=L.dot(L.dot(x, w, over=K).to(bf16), u, over=N))


@op()
def used_twice(x: Tensor[bf16, M, K], w: Tensor[bf16, N, K]):
    return L.out(y=L.dot(x, w, over=K), x2=x.to(f32) * 2.0)


@cache
def program(spec: Op, dtype: str = "f16") -> Program:
    """Return the canonical program, its chunks side by side if it streams."""
    traced = spec.trace(Variant.of({} if spec is exact else {"F": DTYPES[dtype]}, frozenset(), {}))
    serial = canonical(traced)
    return canonical(traced, apart=apart(serial, {"T": 1 << 20, "M": 1 << 20, "V": 512, "N": 16}))


def array(dtype: str, *shape: int) -> Any:
    values = np.random.default_rng(shape[0] + sum(shape)).standard_normal(shape).astype(np.float32)
    match dtype:
        case "f16":
            return values.astype(np.float16)
        case "bf16":
            return (values.view(np.uint32) >> 16).astype(np.uint16)
        case _:
            return values


def products(m: int, n: int, k: int, dtype: str = "f16") -> dict[str, Any]:
    given = {"x": array(dtype, m, k), "w": array(dtype, n, k)}
    return {**given, "bias": array(dtype, n), "base": array(dtype, m, n)}


def rows(t: int, v: int, d: int, dtype: str = "bf16") -> dict[str, Any]:
    ids = np.random.default_rng(t).integers(0, v, t)
    factors = {"hidden": array(dtype, t, d), "weight": array(dtype, v, d)}
    return {**factors, "ids": ids, "temperature": 1.25}


def agree(
    what: Program,
    given: dict[str, Any],
    schedules: tuple[Schedule, ...] | None = None,
    aligned: bool = False,
    extents: dict[str, int] | None = None,
) -> Emitted:
    """Hold a generated program to the oracle's bits; return what ran."""
    divisible = ALIGNED if aligned else frozenset[str]()
    ran = generated.run_generated(what, given, schedules=schedules, divisible=divisible, extents=extents)
    want = run(what, given, softmax=SM90, extents=extents)
    for name in want.tensors:
        assert_same_bits(ran.tensors[name], want[name], name)
    return ran.emitted


def placed(axes: tuple[str, str], tile: int, depth: int, **more: int) -> Schedule:
    return Schedule(tiles=tuple(sorted((a, tile) for a in axes)), depth=depth, **more)


# --- the same bits ---


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 17, 40), (7, 33, 16), (130, 31, 100), (20, 16, 1), (64, 64, 256)]
)
def test_products_of_any_size_have_the_oracles_bits(dtype: str, m: int, n: int, k: int) -> None:
    agree(program(product, dtype), products(m, n, k, dtype))


@pytest.mark.parametrize("depth", [16, 32, 64])
@pytest.mark.parametrize("tile", [16, 64, 128])
@pytest.mark.parametrize("aligned", [False, True])
def test_no_tile_depth_or_placement_changes_a_product(tile: int, depth: int, aligned: bool) -> None:
    more = {"group": 1 + tile % 5, "programs": depth % 7}
    agree(program(product), products(70, 48, 192), (placed(("M", "N"), tile, depth, **more),), aligned)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("k", [40, 128])
def test_factors_may_be_contracted_along_their_first_dim(k: int, aligned: bool) -> None:
    m, n = (48, 32) if aligned else (50, 21)
    given = {"x": array("f16", k, m), "w": array("f16", k, n)}
    agree(program(turned), given, aligned=aligned)


def test_an_axis_that_both_factors_keep_has_a_product_for_each_index() -> None:
    x, w = array("f16", 37, 3, 40), array("f16", 3, 50, 40)
    made = run(program(batched), {"x": x, "w": w})["y"]
    for i in range(3):
        alone = {"x": np.ascontiguousarray(x[:, i : i + 1]), "w": w[i : i + 1]}
        assert_same_bits(made[:, i : i + 1], run(program(batched), alone)["y"])
    agree(program(batched), {"x": x, "w": w})
    assert differing(made, run(program(batched), {"x": x, "w": w[::-1].copy()})["y"])


@pytest.mark.parametrize("spec", [ended, begun, ended_rows])
def test_nothing_past_the_end_of_a_contraction_is_read_into_it(spec: Op) -> None:
    """By TMA too, which reads zeros only past the end of the tensor: what follows the end is NaN here."""
    given: dict[str, Any]
    match spec.name:
        case "ended":
            given = {
                "x": array("f16", 3, 32, 128),
                "w": array("f16", 3, 48, 128),
                "end": np.int32([37, 100, 0]),
            }
            ended_at = [(given[name][b].T, end) for name in "xw" for b, end in enumerate(given["end"])]
        case "begun":
            given = {"x": array("f16", 128, 32), "w": array("f16", 3, 128, 48)}
            given |= {"begin": np.int32([0, 37, 100]), "end": np.int32([37, 100, 100])}
            lengths = given["end"] - given["begin"]
            ended_at = [(given["x"], 100), *((given["w"][b], n) for b, n in enumerate(lengths))]
        case _:
            given = {"x": array("f16", 32, 128), "w": array("f16", 48, 128), "end": 37}
            ended_at = [(given[name].T, 37) for name in "xw"]
    for rows, end in ended_at:
        rows[end:] = np.nan
    emitted = agree(program(spec), given, aligned=True, extents={"R": 128} if spec is begun else None)
    assert ("make_tensor_descriptor" in emitted.source) == (spec is not ended_rows)


@pytest.mark.parametrize("aligned", [False, True])
def test_two_contractions_may_share_a_factor(aligned: bool) -> None:
    given = {"x": array("f16", 40, 64), "w": array("f16", 33, 64), "base": array("f16", 33, 64)[::-1].copy()}
    emitted = agree(program(gated), given, aligned=aligned)
    assert emitted.source.count("make_tensor_descriptor") == (3 if aligned else 0)


@pytest.mark.parametrize(
    ("factor", "sum"),
    [(0x0D80, 0.0), (0x1C80, -(2.0**-138))],
    ids=["below any f32", "subnormal"],
)
def test_a_step_of_padding_alone_changes_nothing(factor: int, sum: float) -> None:
    given = products(16, 16, 40, "bf16")
    for name, bits in (("x", factor | 0x8000), ("w", factor), ("bias", 0x8000), ("base", 0x8000)):
        given[name][:] = 0
        given[name][(..., slice(36, 40)) if name in "xw" else ...] = bits  # four products, and -0.0
    what = program(product, "bf16")
    assert_same_bits(run(what, given)["y"], np.full((16, 16), sum, np.float32))
    for depth in (16, 32, 64):
        agree(what, given, (placed(("M", "N"), 16, depth),))


@pytest.mark.parametrize(("m", "n", "k"), [(1, 5, 3), (33, 70, 41)])
def test_products_of_f32_are_a_chain_of_fma(m: int, n: int, k: int) -> None:
    given = {"x": array("f32", m, k), "w": array("f32", n, k)}
    for schedule in variety(program(exact).kernels[0], H200, {"M": m, "N": n, "K": k}):
        agree(program(exact), given, (schedule,))


@pytest.mark.parametrize("t", [1, 7, 130])
@pytest.mark.parametrize(("v", "d", "dtype"), [(2300, 64, "bf16"), (1001, 40, "f16")])
def test_streams_of_products_have_the_oracles_bits(t: int, v: int, d: int, dtype: str) -> None:
    what = program(linear, dtype)
    assert [kind(k) for k in what.kernels] == ["stream_dot", "merge"]
    agree(what, rows(t, v, d, dtype))


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("tile", "depth"), [(16, 16), (64, 64), (128, 32)])
def test_no_schedule_changes_a_stream_of_products(tile: int, depth: int, aligned: bool) -> None:
    what, given = program(linear, "bf16"), rows(70, 2300, 64)
    merge = choose(what.kernels[1], H200, None, {"V": 2300, "D": 64})
    turns = 5 if tile > 16 else 0
    first = Schedule(tiles=(("T", tile),), depth=depth, group=3, programs=turns, flat=tile > 64)
    emitted = agree(what, given, (first, merge), aligned)
    assert ("make_tensor_descriptor" in emitted.source) == aligned


def test_the_chosen_schedules_differ_and_agree() -> None:
    sizes = {"M": 50, "N": 40, "K": 64}
    schedules = variety(program(product).kernels[0], H200, sizes)
    assert len(schedules) == 4
    for schedule in schedules:
        agree(program(product), products(50, 40, 64), (schedule,))


@pytest.mark.parametrize("spec", [linear, product, turned])
def test_a_host_passes_the_same_to_pointers_and_descriptors(spec: Op) -> None:
    sizes = {"V": 2300, "D": 64, "N": 48, "K": 64}
    bound = specialize(program(spec), sizes, SM90)
    chosen = [choose(k, H200, None, sizes) for k in bound.kernels]
    texts = [
        lower(bound, chosen, H200, Signature(tuple(sorted(sizes.items())), False, divisible))
        for divisible in (frozenset[str](), ALIGNED)
    ]
    assert texts[0].call == texts[1].call and texts[0].source != texts[1].source


def test_rows_of_a_neighbour_are_read_only_where_a_mask_drops_them() -> None:
    kernel = program(linear).kernels[0]
    unmasked = rewrite(kernel, _without_selects)
    for given, dropped in ((kernel, True), (unmasked, False)):
        ((value, contraction),) = contractions(given).of.items()
        guards = [f.load.guard for f in (contraction.a, contraction.b) if f.load.guard is not None]
        assert guards and all(covered(given, value, guard) == dropped for guard in guards)


def _without_selects(replay: Replay, let: Let) -> bool:
    if isinstance(let.node, Select) and len(replay.builder.tile(replay[let.node.a]).axes) > 3:
        replay.renamed[let.value] = replay[let.node.a]  # of whole tiles: what drops scores
        return True
    return False


# --- controls ---


def edited(monkeypatch: pytest.MonkeyPatch, edit: Callable[[str], str]) -> int:
    """Return how many elements differ from the oracle after an edit of the generated text."""
    given = products(64, 48, 128)
    edit_text(monkeypatch, lowering, edit)
    ran = generated.run_generated(program(product), given, schedules=(placed(("M", "N"), 32, 16),))
    return differing(ran.tensors["y"], run(program(product), given)["y"])


def test_a_reversed_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert edited(monkeypatch, lambda text: text.replace("k = k_first +", "k = 112 - k_first +"))


def test_accumulators_that_are_added_later_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    later = "acc = acc + tl.dot(x, w)"
    assert edited(
        monkeypatch, lambda text: text.replace("acc = tl.dot(x, w, acc, max_num_imprecise_acc=1)", later)
    )


def test_the_edits_leave_a_text_that_agrees_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not edited(monkeypatch, lambda text: text.replace("tl.dot(x, w, acc, ", "tl.dot(x, w, acc=acc, "))


# --- refusals ---


def test_a_factor_that_is_a_result_too_is_read_by_another_kernel() -> None:
    given = {"x": array("bf16", 20, 64), "w": array("bf16", 24, 64)}
    made = canonical(used_twice.trace(used_twice.default_variant()))
    assert len(made.kernels) == 2
    ran, want = generated.run_generated(made, given), run(made, given)
    for name in ("y", "x2"):
        assert not differing(ran.tensors[name], want[name])


def test_factors_that_are_not_read_from_memory_are_refused() -> None:
    bound = specialize(canonical(computed.trace(computed.default_variant())), {"N": 16, "K": 64}, SM90)
    with pytest.raises(UnsupportedError, match="dot"):
        lower(bound, [Schedule(tiles=(("M", 16), ("N", 16)))], H200, Signature((("K", 64), ("N", 16))))


def test_a_schedule_gives_both_factors_a_tile() -> None:
    bound = specialize(program(product), {"N": 16, "K": 64}, SM90)
    for tiles in ((), (("M", 16),), (("M", 8), ("N", 16))):
        with pytest.raises(ScheduleError, match="16 or more"):
            lower(bound, [Schedule(tiles=tiles)], H200, Signature((("K", 64), ("N", 16))))
    with pytest.raises(ScheduleError, match="depth"):
        Schedule(depth=8)


# --- compiled text ---


def compiled(what: Program, extents: dict[str, int], on: str, aligned: bool, folder: Path) -> str:
    """Return the assembly of a program's first kernel."""
    machine, divisible = target(on), ALIGNED if aligned else frozenset[str]()
    bound = specialize(what, extents, machine.softmax)
    chosen = [choose(k, machine, None, extents) for k in bound.kernels]
    emitted = lower(bound, chosen, machine, Signature(tuple(sorted(extents.items())), False, divisible))
    compile_triton(emitted, on, folder)
    ending = "ptx" if machine.vendor == "nvidia" else "amdgcn"
    return (folder / f"{bound.kernels[0].name}.{ending}").read_text()


SHAPES = [
    (linear, {"V": 50257, "D": 768}),
    (product, {"N": 4096, "K": 4096}),
    (turned, {"N": 768, "K": 4096}),
    (gated, {"N": 4096, "K": 4096}),
]


@pytest.mark.parametrize(("spec", "extents"), SHAPES)
def test_sm_90_multiplies_by_wgmma_what_descriptors_copy(
    spec: Op, extents: Any, tmp_path: Path, assembler: Callable[[], str]
) -> None:
    text = compiled(program(spec, "bf16"), extents, "sm_90a", True, tmp_path)
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor" in text
    # an epilogue that touches the accumulator too early makes every step wait, and says so only here
    assert "serialized" not in assembler()
    launches = json.loads((tmp_path / "launch.json").read_text())["kernels"]
    assert max(kernel["shared"] for kernel in launches) <= H200.shared * 1024
    text = compiled(program(spec, "bf16"), extents, "sm_90a", False, tmp_path)
    assert "mma" in text and "cp.async.bulk.tensor" not in text


@pytest.mark.parametrize(("spec", "extents"), SHAPES)
def test_gfx942_compiles_by_pointers(spec: Op, extents: Any, tmp_path: Path) -> None:
    assert "v_mfma" in compiled(program(spec, "bf16"), extents, "gfx942", True, tmp_path)


@pytest.mark.parametrize("on", ["sm_90a", "gfx942"])
def test_a_chain_of_fma_compiles_without_a_matrix_unit(on: str, tmp_path: Path) -> None:
    text = compiled(program(exact), {"N": 512, "K": 300}, on, True, tmp_path)
    assert "mma" not in text.replace("v_fma", "") and "fma" in text
