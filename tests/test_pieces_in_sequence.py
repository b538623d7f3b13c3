"""Blocks that walk all pieces of a contraction and add them in registers have the bits of the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from edited_text import edit_text, substituted

from rlk.errors import UnsupportedError
from rlk.interp.run import run
from rlk.ir.nodes import MathModel, Program
from rlk.lang import Variant, bf16, f16
from rlk.lower import cute
from rlk.lower.common.emitted import Emitted, Signature
from rlk.lower.cute.plan import Pieces
from rlk.passes.piecewise_launch import one_piece
from rlk.passes.pipeline import canonical, specialize
from rlk.runtime.registry import operators
from rlk.schedule import cute_tiles as placement
from rlk.schedule.cute_table import accumulators
from rlk.schedule.schedule import Schedule
from rlk.specs.matmul import matmul_leaf8
from rlk.target.facts import target
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.simt import Fault

pytest.importorskip("triton")  # stands in where CuTe has no form
from rlk import ops
from rlk.runtime.binding.invocation import Invocation, geometry_of
from rlk.runtime.call import dispatch as runtime
from rlk.runtime.call.dispatch import dispatch, lowered
from rlk.testing import generated
from rlk.testing.simulators import hopper
from rlk.testing.simulators.interpreter import interpret

H200 = target("sm_90a")
DTYPES = {"bf16": bf16, "f16": f16}
ALIGNED = frozenset("x w y bias residual x_t_stride w_n_stride y_t_stride residual_t_stride".split())
BOTH = ("bias", "residual")


def program(dtype: str = "bf16", present: tuple[str, ...] = (), keep_f32: bool = False) -> Program:
    variant = Variant.of({"F": DTYPES[dtype]}, frozenset(present), {"keep_f32": keep_f32})
    return canonical(matmul_leaf8.trace(variant))


def array(dtype: str, *shape: int) -> Any:
    values = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return values.astype(np.float16) if dtype == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16)


def given(m: int, n: int, k: int, dtype: str = "bf16", present: tuple[str, ...] = ()) -> dict[str, Any]:
    every = {"bias": array(dtype, n), "residual": array(dtype, m, n)}
    factors = {"x": array(dtype, m, k), "w": array(dtype, n, k)}
    return {**factors, **{name: every[name] for name in present}}


def schedule(rows: int, columns: int, cluster: int = 1, stages: int = 3, group: int = 2) -> Schedule:
    tiles = (("N", columns), ("T", rows))
    return Schedule(tiles, stages=stages, group=group, programs=6, cluster=cluster)


def ran(what: Program, inputs: dict[str, Any], by: Schedule) -> generated.Ran:
    return generated.run_generated(what, inputs, schedules=(by,), divisible=ALIGNED, backend="cute")


def agree(what: Program, inputs: dict[str, Any], by: Schedule) -> Emitted:
    made, want = ran(what, inputs, by), run(what, inputs, softmax=MathModel.SM90)
    assert len(made.emitted.kernels) == 1
    assert_same_bits(made.tensors["y"], want["y"], "y")
    return made.emitted


# --- the same bits ---

SCHEDULES = {
    "64 x 64": schedule(64, 64),
    "64 x 32, two stages": schedule(64, 32, stages=2),
    "128 x 64": schedule(128, 64),
    "128 x 64, clusters": schedule(128, 64, cluster=2, stages=5),
    "64 x 64, clusters, groups of three": schedule(64, 64, cluster=2, group=3),
    "64 x 128, half of the sum in shared memory": schedule(64, 128),
    "128 x 128, half of the sum in shared memory": schedule(128, 128, cluster=2),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_schedule_changes_a_bit(name: str, dtype: str) -> None:
    agree(program(dtype, BOTH), given(150, 144, 640, dtype, BOTH), SCHEDULES[name])


@pytest.mark.parametrize("k", [128, 256, 384, 512, 640, 1152, 2048, 4096])
@pytest.mark.parametrize("columns", [64, 128])
def test_any_length_of_whole_instructions_has_the_oracles_bits(k: int, columns: int) -> None:
    agree(program(), given(70, 48, k), schedule(64, columns))


@pytest.mark.parametrize("present", [(), ("bias",), ("residual",), BOTH])
@pytest.mark.parametrize("keep_f32", [False, True])
def test_what_follows_the_sum_has_the_oracles_bits(present: tuple[str, ...], keep_f32: bool) -> None:
    what = program("bf16", present, keep_f32)
    for columns in (64, 128):
        agree(what, given(70, 80, 256, "bf16", present), schedule(128, columns))


@pytest.mark.parametrize("m", [1, 64, 65, 200, 520])
def test_any_number_of_rows_has_the_oracles_bits(m: int) -> None:
    agree(program("f16"), given(m, 72, 256, "f16"), schedule(64, 64, cluster=2))


@pytest.mark.parametrize(("count", "shared"), [(2, False), (4, False), (8, False), (8, True), (16, True)])
def test_merges_add_pieces_as_a_pairwise_tree(count: int, shared: bool) -> None:
    held = count.bit_length() - shared
    pieces = Pieces("piece", count, 1, 0, held, shared)
    parts: dict[int, str] = {}
    waited = 0
    for piece, each in enumerate(pieces.merges):
        running = {m.right for m in each.overlapped} | {m.left for m in each.overlapped}
        assert each.slot < held and each.slot not in running, "read while it is written"
        waited += bool(each.before)
        for merges in (each.before, each.overlapped):
            for to, left, right in merges:
                parts[to] = f"({parts[left]}+{parts.pop(right)})"
            if merges is each.before:
                assert each.slot not in parts
                running_piece = each.slot
        if each.spills:
            parts[-1] = parts.pop(0)
        parts[running_piece] = str(piece)
    for i, (to, left, right) in enumerate(pieces.last, 1):
        parts[to] = f"({parts.pop(left)}+{parts.pop(right)})"
        assert i < pieces.freeing or 0 not in parts, "read while the next tile's first piece is written"
    assert pieces.result and waited <= shared <= (pieces.spare not in (0, pieces.result))
    found = f"({parts[-1]}+{parts[pieces.result]})" if shared else parts[pieces.result]
    level = [str(i) for i in range(count)]
    while len(level) > 1:
        level = [f"({a}+{b})" for a, b in zip(level[::2], level[1::2], strict=True)]
    assert found == level[0]


# --- through the runtime ---


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """Let blocks walk pieces however few tiles there are; collect what runs: a backend, and its kernels."""
    seen: list[tuple[str, int]] = []

    def collected(*args: Any, **options: Any) -> Any:
        made = lowered(*args, **options)
        seen.append((made[3].backend, len(made[0].kernels)))
        return made

    monkeypatch.setattr(runtime, "lowered", collected)
    monkeypatch.setattr(
        placement, "pieces_in_sequence", lambda whole, on, extents: placement.may_loop_over_pieces(whole)
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield seen
    torch.use_deterministic_algorithms(False)
    dispatch.interpret_with(None)


def factors(m: int, n: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(m + n + k)
    return torch.randn(m, k, generator=drawn).to(dtype), torch.randn(n, k, generator=drawn).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [5, 16, 40, 72, 128, 136, 200, 512, 1000, 4096])
def test_what_has_no_form_falls_back_with_the_same_bits(
    k: int, dtype: torch.dtype, forms: list[tuple[str, int]]
) -> None:
    x, w = factors(70, 24, k, dtype)
    want = ops.matmul(x, w, order="leaf8", out_dtype=torch.float32)
    dispatch.interpret_with(interpret, cute=hopper.interpret)
    got = ops.matmul(x, w, order="leaf8", out_dtype=torch.float32)
    assert_same_bits(got, want, f"K = {k}")
    assert (forms == [("cute", 1)]) == (k % 128 == 0)


def test_schedules_say_by_their_number_which_form_they_are_for() -> None:
    x, w = factors(70, 24, 512, torch.bfloat16)
    tensors = {"x": x, "w": w}
    invocation = Invocation(matmul_leaf8, Variant.of({"F": bf16}, frozenset(), {"keep_f32": False}))
    geometry = geometry_of(invocation, tensors)

    def found(schedules: tuple[Schedule, ...] | None) -> tuple[str, int]:
        made = lowered(invocation, MathModel.SM90, geometry, tensors, H200, schedules, "cute")
        return made[3].backend, len(made[0].kernels)

    assert found(None) == ("cute", 2), "side by side: few tiles"
    assert found((schedule(64, 64),)) == ("cute", 1)
    assert found((schedule(64, 64),) * 4) == ("cute", 4)
    with pytest.raises(UnsupportedError, match="256 columns"):
        found((schedule(64, 256),))


# --- which form is chosen ---

CHOSEN = {
    (1, 2048, 4096): None,
    (1, 4096, 4096): (64, 32, 1),
    (64, 4096, 4096): (64, 32, 1),
    (64, 14336, 4096): (64, 128, 1),
    (65, 4096, 4096): (64, 64, 2),
    (128, 4096, 4096): (64, 64, 2),
    (128, 14336, 4096): (128, 128, 1),
    (129, 4096, 4096): (128, 64, 2),
    (256, 4096, 14336): (128, 64, 2),
    (257, 4096, 4096): (128, 128, 2),
    (512, 4096, 4096): (128, 128, 2),
    (1024, 4096, 4096): (128, 128, 2),
    (8192, 1024, 4096): (128, 128, 2),
    (8192, 14336, 4096): (128, 128, 2),
    (512, 4096, 1024): (128, 64, 2),
    (512, 64, 4096): None,
}
"""Rows, columns and length, and the tile and the cluster of blocks that walk pieces."""


@pytest.mark.parametrize("size", CHOSEN)
def test_blocks_walk_pieces_where_their_tiles_give_work_to_half_of_the_cores(
    size: tuple[int, int, int],
) -> None:
    extents = dict(zip("TNK", size, strict=True))
    whole = specialize(program(), {"N": size[1], "K": size[2]}, MathModel.SM90)
    assert placement.pieces_in_sequence(whole, H200, extents) == (CHOSEN[size] is not None)
    if CHOSEN[size] is not None:
        (made,) = placement.by_warpgroups(whole, (Schedule(),), H200, extents)
        assert (made.tile("T"), made.tile("N"), made.cluster) == CHOSEN[size]


def test_results_that_need_registers_get_narrow_tiles() -> None:
    extents = {"T": 512, "N": 4096, "K": 4096}
    for what in (program(present=("residual",)), program(keep_f32=True)):
        whole = specialize(what, {"N": 4096, "K": 4096}, MathModel.SM90)
        (made,) = placement.by_warpgroups(whole, (Schedule(),), H200, extents)
        assert made.tile("N") == 64


@pytest.mark.parametrize(("columns", "found"), [(32, (4, 0)), (64, (4, 0)), (128, (3, 1)), (256, (1, 3))])
def test_accumulators_beside_each_other_leave_registers(columns: int, found: tuple[int, int]) -> None:
    assert accumulators(columns, 8) == found


def test_only_sums_of_products_are_walked() -> None:
    """Every other program of the library that merges is refused: weights, maxima, sums onto others."""
    for op in operators().values():
        for kernel in canonical(op.trace(op.default_variant())).kernels:
            assert (one_piece(kernel) is not None) == op.name.startswith("matmul_leaf")


# --- controls ---


def edited(pattern: str, new: str, by: Schedule, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many results differ from the oracle after an edit of the generated text."""
    edit_text(monkeypatch, cute, substituted(pattern, new))
    what, inputs = program(keep_f32=True), given(70, 80, 1024)
    return differing(ran(what, inputs, by).tensors["y"], run(what, inputs, softmax=MathModel.SM90)["y"])


NARROW, WIDE = schedule(64, 64), schedule(64, 128)
SEEN = {
    "sums in another order": (
        r"\[\(2, 2, 1\), \(0, 0, 2\)\]",
        "[(0, 0, 2), (0, 0, 1)]",
        NARROW,
    ),
    "one sum less": (r"\(1, \[\], \[\(0, 0, 1\)\]|\[\(2, 2, 1\), \(3, 3, 2\), ", "[(2, 2, 1), ", NARROW),
    "a piece that begins late": (r"K_piece \* 128", "K_piece * 128 + 16", NARROW),
    "a piece twice": (r"K_piece \* 128", "K_piece // 2 * 256", NARROW),
    "half of the pieces, in shared memory": (r"put_sums\(parts, \[\(1, 2, 1\)\]\)", "pass", WIDE),
    "the sum so far put away early": (
        r"(\(0, 0, 1\)\]), False(.*?), True",
        r"\1, True\2, False",
        WIDE,
    ),
    "a chain that goes on": (r"Field.ACCUMULATE, False", "Field.ACCUMULATE, True", NARROW),
}


@pytest.mark.parametrize("mistake", SEEN)
def test_a_mistake_in_the_text_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert edited(*SEEN[mistake], monkeypatch) > 70 * 80 // 8


def test_sums_the_other_way_round_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, new = r"add_here\(a\[i\], b\[i\]\)", "add_here(b[i], a[i])"
    assert edited(pattern, new, NARROW, monkeypatch) == 0


REFUSED = {
    "sums of products that are still made": (
        r"warpgroup.wait_group\(0\)\n( +ring.consumer_release\(free\)\n +free.advance\(\)\n +put_sums)",
        r"pass\n\1",
        "waited for|still read",
    ),
    "a sum of products that run on": (r"wait_group\(1\)(?=[^#]+#)", "wait_group(2)", "waited for|still read"),
    "a stage given back too early": (
        r"(if cutlass.const_expr\(piece > 0 and len\(before\) == 0\):\n +)warpgroup.wait_group\(1\)",
        r"\1pass",
        "still read|waited for",
    ),
    "every other stage kept": (r"piece > 0 and", "piece > 1 and", "stages were filled"),
    "an accumulator that is summed and written": (
        r"\(2, \[\], \[\(0, 0, 1\)",
        "(1, [], [(0, 0, 1)",
        "waited for",
    ),
    "threads that share what waits": (r"mine % 32 \* 4", "mine % 32 // 2 * 4", "two threads write"),
    "a step that nobody copies": (r"cutlass.range\(2, unroll=1\)", "cutlass.range(1, unroll=1)", "awaited"),
    "a piece that nobody copies": (r"cutlass.range\(8, unroll=1\)", "cutlass.range(7, unroll=1)", "awaited"),
    "registers that wait at another place": (r"stride=\(1, 128\)", "stride=(1, 126)", "not aligned|one word"),
    "what waits is read before it is there": (r"True\)", "False)", "nothing wrote"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_device_would_not_do_is_refused(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, new, why = REFUSED[mistake]
    with pytest.raises((Fault, IndexError), match=why):
        edited(pattern, new, WIDE, monkeypatch)


def test_the_next_tile_begins_when_its_stage_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = r"(< items:\n +)ring.consumer_wait\(get\)(?=\n +fragment = parts\[0\])"
    with pytest.raises(Fault, match="not read"):
        edited(pattern, r"\1pass", replace(WIDE, programs=1), monkeypatch)


@pytest.mark.parametrize(
    ("k", "by", "why"),
    [
        (200, NARROW, "end inside of an instruction"),
        (1000, NARROW, "end inside of an instruction"),
        (132, NARROW, "end inside of an instruction"),
        (512, schedule(32, 64), "fewer rows than a wgmma instruction"),
        (512, schedule(128, 256), "256 columns"),
    ],
)
def test_what_has_no_form_is_refused(k: int, by: Schedule, why: str) -> None:
    whole = specialize(program(), {"N": 64, "K": k}, MathModel.SM90)
    signature = Signature((("K", k), ("N", 64)), divisible=ALIGNED)
    with pytest.raises(UnsupportedError, match=why):
        cute.lower(whole, (by,), H200, signature)
