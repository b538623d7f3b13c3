"""Attention by the CuTe lowering, thread by thread: the oracle's bits, and what changes them is seen."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Inputs, batch, extents, last, of, oracle, packed, paged, rows, stored
from edited_text import assert_refused, edit_text, substituted

pytest.importorskip("triton")  # the harness knows both lowerings

from rlk.errors import UnsupportedError
from rlk.interp.ex2_sm90 import exp2_sm90
from rlk.ir.nodes import MathModel
from rlk.ir.online import SLACK
from rlk.ir.text import parse_program, print_program
from rlk.lower import cute
from rlk.lower.common.emitted import Signature
from rlk.lower.common.lagging import BOUND
from rlk.lower.cute.attention.plan import plan
from rlk.lower.cute.protocol import Hazard, Release, Repeat, check
from rlk.lower.cute.protocols import attention_protocol
from rlk.passes.pipeline import launched
from rlk.schedule.attention import by_warpgroups, table
from rlk.schedule.cute_tiles import warpgroups
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators import hopper

H200 = target("sm_90a")
DIMS = {"q": "thg", "k": "sh", "v": "sh", "k_cache": "poh", "v_cache": "poh", "o": "thg"}
DIVISIBLE = frozenset({*DIMS, *(f"{name}_{axis}_stride" for name, axes in DIMS.items() for axis in axes)})
LENGTHS = (9, 0, 5, 1, 70), (70, 0, 5, 530, 70)
RAGGED = batch(*LENGTHS, heads=2, group=2, e=64, w=64)
SINKS = np.array([[0.5, -2.0], [3.0, 1.0]], np.float32)
FORMS: dict[str, Inputs] = {
    "heads of 64": packed(RAGGED),
    "heads of 128": packed(batch(*LENGTHS, heads=2, group=4, e=128, w=128)),
    "heads of 96, f16": packed(batch(*LENGTHS, heads=2, group=1, e=96, w=96, dtype="f16")),
    "heads of 32, f16": packed(batch(*LENGTHS, heads=2, group=1, e=32, w=32, dtype="f16")),
    "heads of 256": packed(batch((9, 0, 5), (70, 0, 530), heads=2, group=2, e=256, w=256)),
    "keys of 192, values of 128": packed(batch((9, 0, 5), (70, 0, 530), group=3, e=192, w=128)),
    "keys of 64, values of 128": packed(batch((9, 0, 5), (70, 0, 530), group=3, e=64, w=128)),
    "keys of 48, values of 16": packed(batch((9, 0, 5), (70, 0, 530), group=3, e=48, w=16)),
    "i64 offsets": packed(RAGGED, np.int64),
    "window": packed(RAGGED) | {"window": 20},
    "softcap and sinks": packed(RAGGED) | {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": SINKS},
    "paged": paged(RAGGED),
    "pages of 64 keys": paged(RAGGED, 64) | {"window": 100},
    "paged, one query each": paged(RAGGED.tail(1).only(0, 2, 3, 4), 64),
    "paged, window": paged(RAGGED, 16) | {"window": 100},
    "pieces before a window": packed(batch((1, 2, 1), (1400, 300, 1100), e=64, w=64)) | {"window": 90},
    "more keys than a tile has rows": packed(batch((300, 3), (700, 1100), group=2, e=64, w=64)),
    "maxima that grow": packed(batch((9, 70), (70, 530), group=4, e=96, w=96)) | {"scale": 3.0},
    "maxima that grow, heads of 64": packed(batch((9, 70), (70, 530), group=4, e=64, w=64)) | {"scale": 3.0},
    "maxima that grow, pages": paged(batch((9, 70), (70, 530), e=64, w=64), 64) | {"scale": 3.0},
}


def schedule(stages: int = 4, rows: int = 128) -> Schedule:
    return Schedule(tiles=(("Q*G", rows),), warps=8, stages=stages)


def ran(
    inputs: Inputs, stages: int = 4, divisible: frozenset[str] = DIVISIBLE, rows: int = 128, **more: Any
) -> generated.Ran:
    return generated.run_generated(
        of(inputs, **more), inputs, extents=extents(inputs), schedules=(schedule(stages, rows),),
        divisible=divisible, backend="cute",
    )  # fmt: skip


def assert_same(found: generated.Ran, want: Any) -> None:
    for name in ("o", "lse"):
        made = found.tensors[name]
        assert_same_bits(made, want[name], name, "bf16" if made.dtype == np.uint16 else None)


# --- the same bits ---


@pytest.mark.parametrize("form", FORMS)
def test_it_has_the_bits_of_the_oracle(form: str) -> None:
    assert_same(ran(FORMS[form]), oracle(FORMS[form]))


@pytest.mark.parametrize("form", ["heads of 128", "paged, one query each", "softcap and sinks"])
def test_one_warpgroup_of_few_rows_has_them_too(form: str) -> None:
    found = ran(FORMS[form], rows=64)
    assert "block=(256, 1, 1)" in found.emitted.source
    assert_same(found, oracle(FORMS[form]))


@pytest.mark.parametrize(
    "form",
    [
        "heads of 128",
        "heads of 96, f16",
        "maxima that grow",
        "maxima that grow, heads of 64",
        "more keys than a tile has rows",
        "pages of 64 keys",
        "softcap and sinks",
    ],  # fmt: skip
)
def test_three_warpgroups_have_them_too(form: str) -> None:
    """Use three warpgroups: values that are rarely rescaled wait in shared memory."""
    found = ran(FORMS[form], rows=192)
    assert (
        "block=(512, 1, 1)" in found.emitted.source
        and "memory.o_before.data_ptr() + 4 * mine" in found.emitted.source
    )
    assert_same(found, oracle(FORMS[form]))


APART = ["window", "pieces before a window", "paged, one query each", "softcap and sinks"]


@pytest.mark.parametrize("form", APART)
def test_pieces_with_programs_of_their_own_have_them_too(form: str) -> None:
    """A second kernel merges them: a block of it has a query, which belongs to one sequence."""
    inputs = FORMS[form]
    program = of(inputs, apart=True)
    sizes = {**generated.extents_of(program, inputs), **extents(inputs)}
    static = {name: size for name, size in sizes.items() if name in "HGEW" or name == "O"}
    kernels = launched(program, static, MathModel.SM90, sizes).kernels
    chosen = [warpgroups(k, choose(k, H200, None, sizes), H200, sizes) for k in kernels]
    aligned = {"o_of_piece2", *(f"o_of_piece2_{axis}_stride" for axis in ("s_piece", "t", "h", "g"))}
    found = generated.run_generated(
        program, inputs, extents=sizes, schedules=chosen, divisible=DIVISIBLE | aligned, backend="cute"
    )
    assert "to_vectors(epilogue_tile, o_of_piece2" in found.emitted.source
    assert len(found.emitted.kernels) == 2
    assert_same(found, oracle(inputs))


@pytest.mark.parametrize("stages", [2, 3, 8])
def test_stages_change_no_bit(stages: int) -> None:
    found = ran(FORMS["heads of 64"], stages)
    assert f"num_stages={stages}," in found.emitted.source
    assert_same(found, oracle(FORMS["heads of 64"]))


def test_without_a_mask_too() -> None:
    assert_same(ran(FORMS["heads of 64"], causal=False), oracle(FORMS["heads of 64"], causal=False))


def test_triton_has_the_same_bits() -> None:
    inputs = FORMS["heads of 128"]
    other = generated.run_generated(of(inputs), inputs, extents=extents(inputs))
    assert_same(ran(inputs), other.tensors)


def test_a_query_does_not_know_its_neighbours_or_how_its_keys_lie() -> None:
    """Alone, packed, as a chunk of a prefill and over pages."""
    whole = rows(ran(packed(RAGGED)).tensors, RAGGED)
    for i in (0, 3, 4):
        alone = RAGGED.only(i)
        for inputs in (packed(alone), paged(alone, 32)):
            ((o, lse),) = rows(ran(inputs).tensors, alone)
            assert np.array_equal(o, whole[i][0]) and np.array_equal(
                lse.view(np.uint32), whole[i][1].view(np.uint32)
            )
    chunk = RAGGED.tail(3)
    found = rows(ran(packed(chunk)).tensors, chunk)
    assert all(equal(one, two) for one, two in zip(found, last(whole, 3), strict=True))


def equal(one: tuple[Any, Any], two: tuple[Any, Any]) -> bool:
    """Return whether two results have the same bits."""
    return all(np.array_equal(bits(a), bits(b)) for a, b in zip(one, two, strict=True))


def bits(x: Any) -> Any:
    return np.ascontiguousarray(x).view(np.uint8)


@pytest.mark.parametrize("rows_of", [128, 192])
def test_values_of_a_neighbour_that_are_not_numbers_stay_with_it(
    rows_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero times NaN is NaN: rows behind the end of a sequence are zeros, not what lies there."""
    inputs = dict(packed(RAGGED))
    inputs["v"] = inputs["v"].copy()
    inputs["k"] = inputs["k"].copy()
    inputs["v"][75:] = inputs["k"][75:] = stored(np.nan, "bf16")
    count = len(RAGGED.q[0]) + len(RAGGED.q[2])
    want = ran(packed(RAGGED), rows=rows_of).tensors["o"][:count]
    assert np.array_equal(ran(inputs, rows=rows_of).tensors["o"][:count], want)
    edit_text(monkeypatch, cute, substituted(r"clear_vector_where\(select.*", "pass"))
    leaked = ran(inputs, rows=rows_of).tensors["o"][:count]
    assert not np.array_equal(leaked, want), "the control: what lies there is read"


def test_sums_of_earlier_pieces_of_256_elements_are_words_of_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They lie in memory of the kernel: registers and shared memory are full."""
    mistake = r"(block \* 32768 \+ 4 \*) mine", r"\1 (mine // 2)", "two threads write"
    assert_refused(monkeypatch, cute, mistake, lambda: ran(FORMS["heads of 256"]))


@pytest.mark.parametrize(("size", "rows"), [(64, 192), (128, 128)])
def test_pages_of_whole_steps_are_loaded_by_tma(size: int, rows: int) -> None:
    """Keys of a page that does not exist are zeros, as they are where threads copy them."""
    inputs = paged(batch((9, 0, 70), (70, 0, 530), group=2, e=64, w=64), size)
    inputs["block_table"][2, 0] = -7
    found = ran(inputs, rows=rows)
    assert "tma_k_cache: cute.CopyAtom" in found.emitted.source
    assert_same(found, oracle(inputs))


# --- controls ---


def test_a_page_that_does_not_exist_is_not_another(monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, cute, substituted(r"(page_or_none = .*)Int32\(-1\)", r"\1Int32(0)"))
    inputs = paged(batch((70,), (130,), group=2, e=64, w=64), 64)
    inputs["block_table"][0, 0] = -7
    inputs["k_cache"][0] = inputs["v_cache"][0] = inputs["v_cache"][inputs["block_table"][0, 1]]  # no NaN
    found, want = ran(inputs), oracle(inputs)
    assert any(differing(found.tensors[name], want[name]) for name in ("o", "lse"))


SEEN = {
    "another piece": (r"s_step % 8", "s_step % 4"),
    "a row's weights for the other row": (r"p_bf16\[r, c\] =", "p_bf16[1 - r, c] ="),
    "sums that are not scaled again": (
        r"acc_o\[r, c\] = mul\(acc_o\[r, c\], alpha\[r\]\)",
        "acc_o[r, c] = acc_o[r, c]",
    ),
    "a key too many": (r"((?:exists_below|kv_lt_until) = \w+) < ", r"\1 <= "),
    "another order of a sum": (
        r"folded\(x, 8, add\)\n(.*)folded\(x, 4, add\)",
        r"folded(x, 2, add)\n\1folded(x, 4, add)",
    ),
    "the columns of another thread": (r"quad = 2 \* \(mine % 4\)", "quad = 2 * ((mine + 1) % 4)"),
    "a maximum that does not start anew": (r"m_piece\[r\], m_before\[r\]", "m_before[r], m_before[r]"),
    "masked steps without a mask": (r"append\(select\(exists, ", "append(select(True, "),
    "the last step alone masked": (r"of_rows\(full_steps\w*, imin\)", "of_rows(steps, imin)"),
}


@pytest.mark.parametrize("mistake", SEEN)
def test_a_mistake_in_the_text_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, cute, substituted(*SEEN[mistake]))
    inputs = FORMS["heads of 64"]
    found, want = ran(inputs), oracle(inputs)
    assert any(differing(found.tensors[name], want[name]) for name in ("o", "lse"))


GROWING = {
    "a bound that every sum is below": (r"Float32\(256.0\)", 'Float32(float("inf"))'),
    "a sum of the scale before": (r"= m_new, l_scaled", "= m_new, l_piece[r]"),
    "partial sums under the maximum before": (
        r"(if any_lane\(select\(stays(?:.*\n)+?.*)= l_chunk_of_row\w*\[i\]",
        r"\1= l_chunk_parts[2 * r + i]",
    ),
}


BOTH_ROWS = {
    "a boundary that merges no state": (r"if s_step > first_steps:", "if s_step > first_steps + 8:"),
    "a row that does not ask": (r"(all_below\(\[l_chunk_parts\[i\] for i in range\()4", r"\g<1>2"),
}
GROWN = [
    *((mistake, f"maxima that grow{heads}") for mistake in GROWING for heads in ("", ", heads of 64")),
    ("a boundary that merges no state", "heads of 64"),
    ("a row that does not ask", "maxima that grow, heads of 64"),
]


@pytest.mark.parametrize(("mistake", "form"), GROWN)
def test_a_maximum_that_grows_is_not_missed(mistake: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps that follow the first of a piece, of scores that exceed the maximum by more than 8."""
    edit_text(monkeypatch, cute, substituted(*(GROWING | BOTH_ROWS)[mistake]))
    inputs = FORMS[form]
    found, want = ran(inputs, rows=192), oracle(inputs)
    assert any(differing(found.tensors[name], want[name]) for name in ("o", "lse"))


def test_numerators_below_the_bound_prove_that_a_maximum_stays() -> None:
    """No difference of SLACK or more has a numerator below it: exp2 of the hardware, as it was captured."""
    least, most = (int(np.float32(x).view(np.uint32)) for x in (SLACK, 2 * SLACK))
    numerators = exp2_sm90(np.arange(least, most, dtype=np.uint32).view(np.float32))
    assert numerators.min() == BOUND and (exp2_sm90(np.float32([16, 128, np.inf])) > BOUND).all()
    assert exp2_sm90(np.float32([np.nextafter(np.float32(SLACK), np.float32(0))]))[0] < BOUND


REFUSED = {
    "no fence": (r" +cute.arch.fence_view_async_shared\(\)\n", "", "no fence made visible"),
    "products that nothing waits for": (
        r"(p_f16_fragment, (?:.*\n)+? +)warpgroup.wait_group\(0\)",
        r"\1warpgroup.wait_group(1)",
        "before its products|products still read",
    ),
    "a stage that nobody frees": (r"v_ring.consumer_release\(v_consumer_state\)", "pass", "were not read"),
    "a stage that is freed too early": (
        r"( +)(v_ring.consumer_wait\(v_consumer_state\)\n)",
        r"\1\2\1with cute.arch.elect_one():\n\1    v_ring.consumer_release(v_consumer_state)\n",
        "was freed",
    ),
    "threads on each other's vectors": (r"8 \* \(thread % 4\)", "8 * (thread % 2)", "two threads write"),
    "rows that nobody copies": (
        r"range_constexpr\(2\):\n(.*down = thread)",
        r"range_constexpr(1):\n\1",
        "no thread wrote",
    ),
    "keys that are not there": (
        r"copy_vector_where\(in_range, k",
        "copy_vector_where(Boolean(True), k",
        "an index outside",
    ),
    "a stage that is not waited for": (
        r" +k_ring.consumer_wait\(k_consumer_state\)\n",
        "",
        "not read|fence",
    ),
    "four threads write": (r" & first_of_quad", "", "two threads write"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_device_would_not_do_is_refused(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(monkeypatch, cute, REFUSED[mistake], lambda: ran(FORMS["heads of 32, f16"]))


REFUSED_OF_CLEARS = {
    "no fence behind what is cleared": (
        r"fence_view_async_shared\(\)\n( +cute.arch.barrier)",
        r"sync_warp()\n\1",
        "no fence made visible",
    ),
    "no barrier behind what is cleared": (r" +cute.arch.barrier\(.*\n", "", "may still clear rows"),
}
REFUSED_OF_TMA = {
    **REFUSED_OF_CLEARS,
    "a barrier of all threads": ("barrier_id=group", "barrier_id=0", "not the one of a warpgroup"),
    "another stage that is cleared": (
        r"(clear_vector_where\(select.*)v_consumer_state.index",
        r"\g<1>(v_consumer_state.index + 1)",
        "another stage is cleared",
    ),
    "a TMA tile of half the rows": (r"\(s_begin, 0\), \(64", "(s_begin, 0), (32", "by a copy of tiles"),
    "a barrier that counts other bytes": ("tx_count=8192", "tx_count=4096", "bytes landed"),
    "a stage that nobody frees": (r"k_ring.consumer_release\(k_consumer_state\)", "pass", "were not read"),
    "a stage that is not waited for": (r" +k_ring.consumer_wait\(k_consumer_state\)\n", "", "not read"),
    "a warpgroup that copies nothing": (r" +tma_load\(v_ring.*\n", "", "nothing fills"),
    "a warpgroup that hands TMA tiles on": (
        r"(k_ring = .*?producer_group=pipeline.CooperativeGroup\(pipeline.Agent.Thread)\)",
        r"\1, 128)",
        "128 threads hand",
    ),
    "fewer warps that free a stage": (r"Agent.Thread, 8\)", "Agent.Thread, 4)", "4 warps free"),
    "a thread that is elected frees": (
        r"( +)(v_ring.consumer_release\(v_consumer_state\))\n",
        r"\1with cute.arch.elect_one():\n\1    \2\n",
        "need not be the one",
    ),
    "another head's keys": (r"k\[None, None, h\]", "k[None, None, h + 2]", "an index outside"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED_OF_TMA)
def test_what_a_device_would_not_do_with_tma_tiles_is_refused(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(monkeypatch, cute, REFUSED_OF_TMA[mistake], lambda: ran(FORMS["heads of 64"]))


# --- what has a form, and how it is scheduled ---


@pytest.mark.parametrize(
    ("choice", "by_tma"),
    [
        (r"select cond=\1 a=\4 b=\5", True),
        (r"select cond=\3 a=\4 b=\5", False),  # not all that guards the keys
        (r"select cond=\1 a=\5 b=\4", False),  # chosen where they are not there
        (r"map2 fn=add a=\4 b=\5", False),
    ],
)
def test_tma_tiles_are_for_scores_that_a_mask_hides(choice: str, by_tma: bool) -> None:
    sizes = {"H": 2, "G": 4, "E": 128, "W": 128}
    program = launched(of(FORMS["heads of 128"]), sizes, MathModel.SM90, sizes)
    text = print_program(program)
    both = r"(%\d+)(: bool\[B, S.lane, Q\*G\] = map2 fn=and a=%\d+ b=(%\d+)\n"
    masked = rf"{both}(?:.*\n)*?.* = )select cond=\1 a=(%\d+) b=(%\d+)"
    changed, count = re.subn(masked, r"\1\2" + choice, text)
    assert count == 1 and (changed == text) == by_tma
    (kernel,) = parse_program(changed).kernels
    found = plan(kernel, schedule(), H200, Signature(tuple(sizes.items()), divisible=DIVISIBLE))
    assert found.by_tma == by_tma


def test_what_has_no_form_is_refused() -> None:
    inputs = FORMS["heads of 64"]
    with pytest.raises(UnsupportedError, match="multiples of 16 bytes"):
        ran(inputs, divisible=DIVISIBLE - {"k_s_stride"})
    with pytest.raises(UnsupportedError, match="rows of 24 elements"):
        ran(packed(batch((9,), (70,), e=24, w=64)))
    few = (schedule(rows=32),)
    with pytest.raises(UnsupportedError, match="tiles of 32 rows"):
        generated.run_generated(
            of(inputs), inputs, extents=extents(inputs), schedules=few, divisible=DIVISIBLE, backend="cute"
        )


def test_schedules_are_those_of_the_table_for_as_many_warpgroups_as_rows_fill() -> None:
    assert [e.most for e in table()] == sorted(e.most for e in table())
    sizes = {"H": 2, "G": 2, "E": 64, "W": 64, "Q": 1000, "B": 2}
    (kernel,) = launched(of(FORMS["heads of 64"]), sizes, MathModel.SM90, sizes).kernels
    assert by_warpgroups(kernel, schedule(2), sizes).stages == table()[0].stages
    for queries, rows_of in ((1, 64), (32, 64), (33, 128)):
        found = by_warpgroups(kernel, schedule(2), sizes | {"Q": 2 * queries})
        assert (found.tile("Q*G"), found.warps) == (rows_of, rows_of // 16)


def test_three_warpgroups_are_for_long_segments_and_steps_that_leave_registers() -> None:
    def rows_of(each: int, form: str = "heads of 128", page: int = 64, **more: float) -> int:
        inputs, sizes = FORMS[form] | more, {"H": 2, "G": 4, "E": 128, "W": 128, "O": page}
        (kernel,) = launched(of(inputs), sizes, MathModel.SM90, sizes).kernels
        return by_warpgroups(kernel, schedule(2), sizes | {"B": 5, "Q": 5 * each}).tile("Q*G")

    assert (rows_of(33), rows_of(32)) == (192, 128)
    assert rows_of(33, softcap=3.0, inv_softcap=1 / 3.0) == rows_of(33, "paged") == 128
    assert (rows_of(1024, "paged"), rows_of(1024, "paged", 16)) == (192, 128)


@pytest.mark.parametrize("stages", [2, 3, 6])
def test_a_stage_that_is_freed_before_its_products_end_is_found(stages: int) -> None:
    sound = attention_protocol(stages, 2, 2 * stages + 3)
    assert check(sound).fault is None
    reader = sound.roles[1]
    body = tuple(
        replace(op, body=(Release("values", 4), *op.body[:-1])) if isinstance(op, Repeat) else op
        for op in reader.body
    )
    found = check(replace(sound, roles=(sound.roles[0], replace(reader, body=body), sound.roles[2]))).fault
    assert found is not None and found.hazard in (Hazard.OVERWRITE, Hazard.ARRIVALS)


def test_a_step_that_waits_for_a_stage_that_comes_later_is_found() -> None:
    """The control: with one stage the next scores wait for columns whose place this step's still hold."""
    assert check(attention_protocol(1, 2, 5)).fault is None
    sound = attention_protocol(2, 2, 5)
    producer = replace(sound.roles[0], body=sound.roles[0].body[:-1])
    found = check(replace(sound, roles=(producer, *sound.roles[1:]))).fault
    assert found is not None and found.hazard is Hazard.DEADLOCK


def quotients(source: str, x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return what `divided` of a generated module makes of lists, an element of each for every thread."""
    names = hopper.interpret(source)
    made = names.divided([names.Float32(row) for row in x], names.Float32(by))
    return np.stack([q.data for q in made])


def test_quotients_of_a_row_are_correctly_rounded() -> None:
    source = ran(FORMS["keys of 48, values of 16"]).emitted.source
    draw = np.random.default_rng(0)
    words = draw.integers(0, 1 << 23, (400, 512)) | draw.integers(127 - 55, 127 + 55, (400, 512)) << 23
    words[:, :64] |= 0x7FFFF0  # nearly two
    x, by = words.astype(np.int32).view(np.float32), np.roll(words[0], 64).astype(np.int32).view(np.float32)
    x[::2] *= -1
    x[7] = draw.choice([0.0, -0.0, 1e-40, 3e38, np.inf, np.nan], 512)
    for some in (np.delete(x, 7, 0), x):  # the last asks for divisions
        with np.errstate(all="ignore"):
            assert_same_bits(quotients(source, some, by), some / by)
    once = source.replace("made[i] = fma(fma(-by, near, x[i]), inverse, near)", "made[i] = near")
    never = once.replace("near = fma(fma(-by, near, x[i]), inverse, near)", "pass")
    assert source != once != never
    assert differing(quotients(never, np.delete(x, 7, 0), by), np.delete(x, 7, 0) / by) > 1000
