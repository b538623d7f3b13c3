"""Gradients of attention by the CuTe lowering, thread by thread: the oracle's bits, and mistakes are seen."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Inputs, batch, packed, stored
from attention_gradients import WANTED, gradient_of, longest, pulled
from edited_text import assert_refused, edit_text, substituted
from test_cute_attention import DIMS as OF_FORWARD
from test_cute_attention import REFUSED_OF_CLEARS

pytest.importorskip("triton")  # the harness knows both lowerings


from rlk.errors import UnsupportedError
from rlk.interp.run import run
from rlk.ir.nodes import Load, Map2, MathModel
from rlk.lower import cute
from rlk.lower.common.emitted import Signature
from rlk.lower.common.tma_tiles import TmaTile, tma_tile_of
from rlk.lower.cute.attention.plan import AttentionPlan
from rlk.lower.cute.placement import plan
from rlk.lower.cute.protocol import Hazard, Release, Repeat, check
from rlk.lower.cute.protocols import gradient_protocol
from rlk.passes.pipeline import launched
from rlk.passes.sums_apart import sums_apart
from rlk.passes.walk import walk
from rlk.schedule.attention import rows_axis
from rlk.schedule.axes import kind, roles, types_of
from rlk.schedule.cute_tiles import warpgroups
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing

H200 = target("sm_90a")
DIMS = {**OF_FORWARD, "d_o": "thg", "d_q": "thg", "d_k": "sh", "d_v": "sh"}
DIVISIBLE = frozenset({*DIMS, *(f"{name}_{axis}_stride" for name, axes in DIMS.items() for axis in axes)})
LENGTHS = (9, 0, 5, 70, 4), (70, 6, 3, 130, 0)
SINKS = np.array([[0.5, -2.0]], np.float32)
RAGGED = packed(batch(*LENGTHS, heads=2, group=2, e=64, w=64))
NARROW = packed(batch(*LENGTHS, e=32, w=32))
FORMS: dict[str, Inputs] = {
    "heads of 64": RAGGED,
    "heads of 128": packed(batch(*LENGTHS, group=4, e=128, w=128)),
    "heads of 96, f16": packed(batch(*LENGTHS, group=1, e=96, w=96, dtype="f16")),
    "keys of 64, values of 128": packed(batch(*LENGTHS, group=3, e=64, w=128)),
    "keys of 48, values of 16": packed(batch(*LENGTHS, group=3, e=48, w=16)),
    "i64 offsets": packed(batch(*LENGTHS, e=32, w=32), np.int64),
    "window": NARROW | {"window": 20},
    "softcap and sinks": NARROW | {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": SINKS},
    "more than a tile has rows": packed(batch((300, 3), (700, 1100), group=2, e=32, w=32)),
    "the same by TMA": packed(batch((300, 3), (700, 1100), group=2, e=64, w=64)),
}


def extents(inputs: Inputs) -> dict[str, int]:
    """Return bounds that a call without a look at the lengths has."""
    t, heads, group, width = inputs["q"].shape
    s = len(inputs["k"])
    known = {"H": heads, "G": group, "E": width, "W": inputs["v"].shape[-1], "B": len(inputs["begin_q"])}
    return {**known, "T": t, "S": s, "Q": t, "X": t, "R": t * group, "J": s, "Z": s}


def wanted_of(inputs: Inputs) -> frozenset[str]:
    return WANTED | ({"sinks"} & inputs.keys())


def ran(
    given: Inputs, stages: int = 3, wanted: frozenset[str] | None = None, *, apart: bool = False, **more: Any
) -> generated.Ran:
    """Run a gradient; apart: with a kernel for each sum."""
    program, sizes = gradient_of(given, wanted or wanted_of(given), **more), extents(given)
    static = {name: size for name, size in sizes.items() if name in "HGEW"}
    schedules = []
    bound = launched(program, static, MathModel.SM90, sizes)
    for kernel in (sums_apart(bound) if apart else bound).kernels:
        rows = rows_axis(roles(kernel, sizes)) if kind(kernel) == "back_to_back_gemm" else None
        chosen = warpgroups(kernel, choose(kernel, H200, None, sizes), H200, sizes)
        schedules.append(Schedule(tiles=((str(rows), 128),), warps=8, stages=stages) if rows else chosen)
    return generated.run_generated(
        program, given, extents=sizes, schedules=schedules, divisible=DIVISIBLE, backend="cute"
    )


def oracle(given: Inputs, **more: Any) -> Any:
    return run(
        gradient_of(given, wanted_of(given), **more), given, softmax=MathModel.SM90, extents=longest(given)
    )


def assert_same(found: generated.Ran, want: Any, wanted: frozenset[str]) -> None:
    for name in sorted(wanted):
        made = found.tensors[f"d_{name}"]
        assert_same_bits(made, want[f"d_{name}"], name, "bf16" if made.dtype == np.uint16 else None)


@pytest.fixture(scope="module")
def small() -> Inputs:
    return pulled(NARROW)


@pytest.fixture(scope="module")
def tma_tiled() -> Inputs:
    """Return the gradient with TMA loads of 16-bit tiles, and f32 numbers copied by threads."""
    return pulled(RAGGED)


# --- the same bits ---


@pytest.mark.parametrize("form", FORMS)
def test_gradients_have_the_bits_of_the_oracle(form: str) -> None:
    given = pulled(FORMS[form], lse="sinks" in FORMS[form])
    assert_same(ran(given), oracle(given), wanted_of(given))


WIDE = {
    "heads of 256": packed(batch((9, 0, 70), (70, 6, 130), group=2, e=256, w=256)),
    "keys of 192, values of 128": packed(batch((9, 0, 70), (70, 6, 130), group=1, e=192, w=128)),
    "heads of 64": packed(batch((9, 0, 70), (70, 6, 130), group=2, e=64, w=64)),
}


@pytest.mark.parametrize("form", WIDE)
def test_sums_apart_have_the_bits_of_the_oracle(form: str) -> None:
    """Registers hold one sum of 256 elements: keys and values have kernels of their own."""
    given = pulled(WIDE[form])
    found = ran(given, apart=True)
    assert [k.name for k in found.emitted.kernels][2:] == [f"varlen_attention_grad_3_{i}" for i in (1, 2)]
    assert_same(found, oracle(given), WANTED)


def test_sums_that_do_not_fit_together_are_refused() -> None:
    for form, what in (("heads of 256", 512), ("keys of 192, values of 128", 320)):
        with pytest.raises(UnsupportedError, match=f"add to {what} elements"):
            ran(pulled(WIDE[form]))


@pytest.mark.parametrize("stages", [2, 8])
def test_stages_change_no_bit(stages: int, small: Inputs) -> None:
    found = ran(small, stages)
    assert f"num_stages={stages}," in found.emitted.source
    assert_same(found, oracle(small), WANTED)


def test_one_stage_changes_no_bit(tma_tiled: Inputs) -> None:
    """A factor that no sum reads comes first, and is released before the sum begins."""
    found = ran(tma_tiled, 1, apart=True)
    text = found.emitted.source
    released = re.findall(r"wait_group\(1\)\n +(\w+)_ring.consumer_release\(consumer_state\)\n", text)
    assert "num_stages=1," in text and "num_stages=2," not in text and released == ["v", "d_o"]
    assert_same(found, oracle(tma_tiled), WANTED)


def test_without_a_mask_too() -> None:
    given = pulled(NARROW, causal=False)
    assert_same(ran(given, causal=False), oracle(given, causal=False), WANTED)


@pytest.mark.parametrize("name", ["q", "k"])
def test_a_gradient_alone_has_the_same_bits(name: str, small: Inputs) -> None:
    assert_same(ran(small, wanted=frozenset({name})), oracle(small), frozenset({name}))


def with_neighbours(given: Inputs) -> Inputs:
    """Return inputs of which only the first three sequences are numbers."""
    changed = dict(given)
    for name, count in OWN.items():
        changed[name] = given[name].copy()
        changed[name][count:] = stored(np.nan, "bf16")
    return changed


OWN = {"q": 14, "k": 79, "v": 79, "d_o": 14}


@pytest.mark.parametrize("form", ["small", "tma_tiled"])
def test_what_a_neighbour_has_that_is_no_number_stays_with_it(
    form: str, request: pytest.FixtureRequest
) -> None:
    """Zero times NaN is NaN: a tile's rows behind the end of a sequence are zeros, not what lies there."""
    given = request.getfixturevalue(form)
    want, found = ran(given).tensors, ran(with_neighbours(given)).tensors
    for name, count in list(OWN.items())[:3]:
        assert np.array_equal(found[f"d_{name}"][:count], want[f"d_{name}"][:count]), name
        assert not np.array_equal(found[f"d_{name}"][count:], want[f"d_{name}"][count:]), "the control"


@pytest.mark.parametrize("factor", ["q", "d_o", "k", "v"])
def test_rows_of_a_neighbour_that_nobody_clears_are_seen(
    factor: str, tma_tiled: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = ran(tma_tiled).tensors
    edit_text(monkeypatch, cute, substituted(rf"clear_vector_where\(select.*{factor}_tiles.*", "pass"))
    found = ran(with_neighbours(tma_tiled)).tensors
    names = [f"d_{name}" for name in OWN if f"d_{name}" in found]
    assert any(differing(found[name][: OWN[name[2:]]], want[name][: OWN[name[2:]]]) for name in names)


# --- controls ---

SEEN = {
    "masked steps without a mask": (r"append\(select\(exists\w*, ", "append(select(True, "),
    "all steps as if every element existed": (r"late_steps = .*", "late_steps = first_steps"),
    "a query too few": (r"((?:exists_at_most|since_le_qg) = \w+\[r\]) <= ", r"\1 < "),
    "weights of the other row": (r"ds_bf16\[r, c\] =", "ds_bf16[1 - r, c] ="),
    "numbers of other columns": (
        r"statistics_of\(shift_statistics, quad",
        "statistics_of(shift_statistics, quad ^ 2",
    ),
    "factors that changed places": (r"\bq_transposed_factor\[", "d_o_transposed_factor["),
    "a sum that begins again": (r"(multiply\(mma_pv, (?:dk|acc_2)_fragment.*), True,", r"\1, False,"),
}


@pytest.mark.parametrize("mistake", SEEN)
def test_a_mistake_in_the_text_is_seen(mistake: str, small: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, cute, substituted(*SEEN[mistake]))
    found, want = ran(small).tensors, oracle(small)
    assert any(differing(found[f"d_{name}"], want[f"d_{name}"]) for name in WANTED)


REFUSED = {
    "no fence": (r" +cute.arch.fence_view_async_shared\(\)\n", "", "no fence made visible"),
    "scores that nothing waits for": (
        r"wait_group\(1\)(\n +shift)",
        r"wait_group(2)\1",
        "before its products",
    ),
    "stages freed with their products made": (
        r"wait_group\(0\)(\n +with)",
        r"wait_group(1)\1",
        "products still read",
    ),
    "a stage that nobody frees": (r"q_ring.consumer_release\(consumer_state\)", "pass", "were not read"),
    "numbers that nobody copies": (r"copy_statistic_where\(thread // 64 == 1.*", "pass", "that is not read"),
    "half of the numbers": (r"down = thread % 64", "down = thread % 32", "two threads write one number"),
    "queries that nobody copies": (r"copy_vector_where\(in_range, q,.*", "pass", "nothing fills"),
    "queries that are not there": (
        r"copy_vector_where\(in_range, q,",
        "copy_vector_where(Boolean(True), q,",
        "an index outside",
    ),
    "rows read as columns": (r"q_transposed_factor\[", "q_factor[", "columns for an instruction"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_device_would_not_do_is_refused(
    mistake: str, small: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(monkeypatch, cute, REFUSED[mistake], lambda: ran(small))


REFUSED_OF_TMA = {
    **REFUSED_OF_CLEARS,
    "a tile that is cleared before it came": (
        r" +d_o_ring.consumer_wait\(consumer_state\)\n( +if )",
        r"\1",
        "another stage is cleared",
    ),
    "a box from inside of a token": (r"\(\(0, r_begin", "((1, r_begin", "from head 1 on"),
    "numbers that are not waited for": (
        r" +shift_ring.consumer_wait\(consumer_state\)\n",
        "",
        "that is not read",
    ),
    "numbers that nobody frees": (r"shift_ring.consumer_release\(consumer_state\)", "pass", "were not read"),
    "numbers that nobody hands on": (r" +commit_from\(64, .*\n", "", "nothing fills"),
    "numbers that nobody copies": (r"copy_statistic_where\(.*, delta,.*", "pass", "that is not read"),
    "numbers that too few threads hand on": (r"_from\(64,", "_from(96,", "32 threads hand"),
    "stages freed with their products made": REFUSED["stages freed with their products made"],
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED_OF_TMA)
def test_what_a_device_would_not_do_with_tma_tiles_is_refused(
    mistake: str, tma_tiled: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(monkeypatch, cute, REFUSED_OF_TMA[mistake], lambda: ran(tma_tiled))


REFUSED_OF_ONE_STAGE = {
    "a stage that is freed before its scores": (
        r"( +)(warpgroup.wait_group\(1\))\n +(v_ring.consumer_release\(consumer_state\))\n",
        r"\1\3\n\1\2\n",
        "products still read",
    ),
    "a stage that nobody frees": (r"v_ring.consumer_release\(consumer_state\)", "pass", "were not read"),
}


@pytest.mark.parametrize("mistake", REFUSED_OF_ONE_STAGE)
def test_what_a_device_would_not_do_with_one_stage_is_refused(
    mistake: str, tma_tiled: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(monkeypatch, cute, REFUSED_OF_ONE_STAGE[mistake], lambda: ran(tma_tiled, 1))


# --- TMA tiles ---


@pytest.mark.parametrize(
    ("group", "e", "w", "copied"),
    [
        (1, 64, 64, {"q", "d_o"}),
        (4, 128, 64, {"q", "d_o"}),
        (3, 64, 64, set()),  # 64 rows are no whole tokens
        (2, 96, 80, {"q", "d_o"}),
        (2, 64, 48, set()),  # rows of less than 128 bytes
    ],
)
def test_tma_tiles_are_heads_of_whole_tokens(group: int, e: int, w: int, copied: set[str]) -> None:
    given = pulled(packed(batch((9,), (70,), group=group, e=e, w=w)))
    sizes, static = extents(given), {"H": 1, "G": group, "E": e, "W": w}
    keys = launched(gradient_of(given, WANTED), static, MathModel.SM90, sizes).kernels[2]
    schedule = Schedule(tiles=((str(rows_axis(roles(keys, sizes))), 128),), warps=8, stages=3)
    found = plan(keys, schedule, H200, Signature(tuple(sorted(static.items())), divisible=DIVISIBLE))
    assert isinstance(found, AttentionPlan)
    assert {each.param for each in found.copied if each.tma_tile is not None} == copied
    assert {each.param for each in found.copied} == {"k", "v", "q", "d_o"}


@pytest.mark.parametrize(
    ("rows", "heads", "each"), [(64, 4, 4), (64, 8, None), (64, None, None), (62, 4, None), (8, 4, 4)]
)
def test_a_tma_tile_is_of_tokens_whose_heads_are_all_there_are(
    rows: int, heads: int | None, each: int | None
) -> None:
    given = pulled(packed(batch((9,), (70,), group=4, e=64, w=64)))
    sizes = {"H": 1, "G": 4, "E": 64, "W": 64}
    keys = launched(gradient_of(given, WANTED), sizes, MathModel.SM90, extents(given)).kernels[2]
    found, lets = roles(keys, sizes), {let.value: let.node for let in walk(keys.body)}
    load = next(node for node in lets.values() if isinstance(node, Load) and node.param == "q")
    axes = (
        next(a for a in found.parallel if a.name == "J"),
        next(a for a, _ in found.inside if a.name == "R"),
    )
    tma_tile = tma_tile_of(load, (None, 1, heads, 64), lets, types_of(keys), axes, rows)
    assert load.guard is not None
    guard = lets[load.guard]
    assert isinstance(guard, Map2)
    wanted = TmaTile(tma_tile.first if tma_tile else 0, guard.b, (2, 0), load.guard, each or 0)
    assert tma_tile == (None if each is None else wanted)


def test_tiles_of_all_heads_come_before_the_next_keys(tma_tiled: Inputs) -> None:
    """One head after another leaves multiprocessors without work: tiles differ, and are few."""
    queries, keys = ran(tma_tiled).emitted.source.split("class varlen_attention_grad_3_memory")
    assert "tile = block // 2\n" in keys and "h = block % 2\n" in keys
    assert "tile = tiles - 1 - block % tiles\n" in queries and "h = block // tiles\n" in queries


# --- the rings ---


@pytest.mark.parametrize("batches", [((2,), (2,)), ((1, 1), (1, 1)), ((1,), (2,)), ((2,), (1, 1, 1))])
@pytest.mark.parametrize(("stages", "early"), [(1, 1), (2, 0), (4, 0)])
def test_a_stage_freed_before_its_products_end_is_found(stages: int, early: int, batches: Any) -> None:
    sound = gradient_protocol(stages, 2, 2 * stages + 3, *batches, early=early)
    assert check(sound).fault is None
    reader = sound.roles[1]
    freed = tuple(
        replace(op, body=tuple(sorted(op.body, key=lambda x: not isinstance(x, Release))))
        if isinstance(op, Repeat)
        else op
        for op in reader.body
    )
    roles_of = (sound.roles[0], replace(reader, body=freed), sound.roles[2])
    found = check(replace(sound, roles=roles_of)).fault
    assert found is not None and found.hazard in (Hazard.OVERWRITE, Hazard.ARRIVALS)


def test_a_factor_that_nobody_copies_is_found() -> None:
    sound = gradient_protocol(2, 2, 5, (2,), (2,))
    producer = replace(sound.roles[0], body=sound.roles[0].body[:-1])
    found = check(replace(sound, roles=(producer, *sound.roles[1:]))).fault
    assert found is not None and found.hazard is Hazard.DEADLOCK
