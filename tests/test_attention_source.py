"""Generated attention has the oracle's bits under any schedule; what it does in its rare steps is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Inputs, batch, extents, of, oracle, packed, paged
from edited_text import edit_text, substituted

pytest.importorskip("triton")

from rlk.errors import ScheduleError, UnsupportedError
from rlk.interp.run import run
from rlk.ir.dims import Part
from rlk.ir.nodes import Let, Load, Loop, MathModel, Store
from rlk.lower import triton
from rlk.lower.common.rescale import rescale_of
from rlk.lower.common.segments import segments
from rlk.lower.triton.whole_pages import once_a_step
from rlk.passes.pipeline import launched
from rlk.passes.walk import walk
from rlk.schedule import heuristics
from rlk.schedule.attention import scheduled
from rlk.schedule.axes import kind, roles
from rlk.schedule.schedule import Schedule
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing

H200 = target("sm_90a")
RAGGED = batch((9, 0, 5, 1), (70, 0, 5, 530), group=3, e=24, w=40)
SINKS = np.array([[0.5, -2.0, 3.0]], np.float32)
FORMS: dict[str, Inputs] = {
    "packed": packed(RAGGED),
    "i64 offsets": packed(RAGGED, np.int64),
    "f16": packed(batch((9, 0, 5, 1), (70, 0, 5, 530), heads=2, group=1, e=32, w=16, dtype="f16")),
    "window": packed(RAGGED) | {"window": 20},
    "softcap and sinks": packed(RAGGED) | {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": SINKS},
    "paged": paged(RAGGED),
    "paged, one query each": paged(RAGGED.tail(1).only(0, 2, 3), 64),
    "pages of two steps": paged(RAGGED, 128),
    "pages of a step, window": paged(RAGGED, 64) | {"window": 70},
}


def interpreted(inputs: Inputs, tile: int | None = None, **more: Any) -> generated.Ran:
    schedules = None if tile is None else (scheduled("Q*G", {"W": inputs_width(inputs)}, tile),)
    return generated.run_generated(of(inputs, **more), inputs, extents=extents(inputs), schedules=schedules)


def inputs_width(inputs: Inputs) -> int:
    width = inputs["v_cache" if "v_cache" in inputs else "v"].shape[-1]
    return 1 << (width - 1).bit_length()


def assert_same(ran: generated.Ran, want: Any) -> None:
    for name in ("o", "lse"):
        assert_same_bits(
            ran.tensors[name], want[name], name, "bf16" if ran.tensors[name].dtype == np.uint16 else None
        )


# --- the same bits ---


@pytest.mark.parametrize("tile", [16, 32, 128])
@pytest.mark.parametrize("form", FORMS)
def test_generated_attention_has_the_bits_of_the_oracle(form: str, tile: int) -> None:
    assert_same(interpreted(FORMS[form], tile), oracle(FORMS[form]))


@pytest.mark.parametrize("form", FORMS)
def test_pieces_with_programs_of_their_own_have_the_same_bits(form: str) -> None:
    ran = interpreted(FORMS[form], apart=True)
    assert len(ran.emitted.kernels) == 2
    assert_same(ran, oracle(FORMS[form]))


def roomy(inputs: Inputs, pages: int = 170) -> Inputs:
    """Return paged inputs whose table has room for more pages, and so for pieces that no row has."""
    beyond = np.full((len(inputs["block_table"]), pages), 1 << 30, np.int32)
    return inputs | {"block_table": np.concatenate((inputs["block_table"], beyond), 1)}


ROOMY = roomy(paged(batch((2, 0, 1, 1), (70, 0, 1100, 530), group=3, e=24, w=40)))


def in_roomy_pieces(programs: int = 0) -> generated.Ran:
    """Run pieces of few rows, and merge them; memory that nobody wrote is NaN."""
    placed = (replace(scheduled("Q*G", {"W": 64}, 16), programs=programs), Schedule((("W", 32),), unroll=2))
    sizes = extents(ROOMY) | {"Q*G": 12}
    return generated.run_generated(
        of(ROOMY, apart=True), ROOMY, extents=sizes, schedules=placed, backend="triton"
    )


@pytest.mark.parametrize("programs", [0, 8])
def test_pieces_without_keys_are_not_stored(programs: int) -> None:
    ran = in_roomy_pieces(programs)
    assert_same(ran, oracle(ROOMY))
    before_queries = ran.emitted.source.partition("tl.load(q_ptr")[0]
    assert ("if s_piece >= last_pieces:" in before_queries) == (programs == 0)  # a loop over tiles goes on
    written = ~np.isnan(ran.tensors["max_of_piece"][:, :, 0, 0])
    assert written.sum(0).tolist() == [1, 1, 3, 2]  # of 6 that the table has room for


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"exists = s_piece_step < pieces", "exists = s_piece_step < 1000"),  # pieces that nobody wrote
        (r"= steps_plus_7 // 8", "= steps // 8"),  # not the last one
        (r"if s_piece >= last_pieces:", "if s_piece >= last_pieces - 1:"),  # its program has returned
    ],
)
def test_a_piece_too_many_or_too_few_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, triton, substituted(pattern, new))
    ran, want = in_roomy_pieces(), oracle(ROOMY)
    assert any(differing(ran.tensors[n], want[n], "bf16" if n == "o" else None) for n in ("o", "lse"))


def test_without_a_mask_too() -> None:
    assert_same(interpreted(FORMS["packed"], 16, causal=False), oracle(FORMS["packed"], causal=False))


# --- what the kernels are ---


def kernel_of(inputs: Inputs) -> Any:
    bound = launched(of(inputs), statics(inputs), MathModel.SM90, sizes(inputs))
    return bound.kernels[0]


def statics(inputs: Inputs) -> dict[str, int]:
    _, heads, group, width = inputs["q"].shape
    if "k_cache" not in inputs:
        return {"H": heads, "G": group, "E": width, "W": inputs["v"].shape[-1]}
    values = inputs["v_cache"].shape
    return {"H": heads, "G": group, "E": width, "O": values[1], "W": values[-1]}


def sizes(inputs: Inputs, **more: int) -> dict[str, int]:
    rows, keys = len(inputs["q"]), len(inputs.get("k", ()))
    return {**statics(inputs), "B": len(inputs["begin_q"]), "Q": rows, "T": rows, "S": keys, **more}


def test_rows_of_all_heads_that_share_keys_are_one_axis() -> None:
    kernel = kernel_of(FORMS["packed"])
    found = segments(kernel, roles(kernel, sizes(FORMS["packed"])).parallel)
    assert kind(kernel) == "back_to_back_gemm" and found is not None
    assert (str(found.axis), found.whole, found.each, found.begin, found.end) == (
        "Q*G",
        "Q",
        3,
        "begin_q",
        "end_q",
    )


def test_one_loop_walks_all_pieces_and_merges_at_its_turns() -> None:
    (loop,) = (let.node for let in walk(kernel_of(FORMS["packed"]).body) if isinstance(let.node, Loop))
    found = rescale_of(loop)
    assert found is not None and len(found.changes) == 4  # the maximum starts anew; three merged states
    assert found.rare


@pytest.mark.parametrize(
    ("more", "apart"),
    [({"Q": 8, "T": 8, "B": 8, "S": 8192}, True), ({"Q": 8, "T": 8, "B": 8, "S": 512}, False),
     ({"Q": 4096, "T": 4096, "B": 1, "S": 4096, "H": 8, "G": 4}, False),
     ({"Q": 128, "T": 128, "B": 1, "S": 8192, "H": 8, "G": 2}, True),
     ({"Q": 512, "T": 512, "B": 1, "S": 8192, "H": 8, "G": 2}, False),
     ({"Q": 16, "T": 16, "B": 16, "S": 8192, "H": 8, "G": 2}, True),
     ({"Q": 32, "T": 32, "B": 32, "S": 8192, "H": 8, "G": 2}, False)],
)  # fmt: skip
def test_few_rows_have_their_pieces_apart(more: dict[str, int], apart: bool) -> None:
    found = heuristics.apart(of(FORMS["packed"]), sizes(FORMS["packed"], **more))
    assert found == (frozenset({"S"}) if apart else frozenset())


# --- controls ---


def edited(pattern: str, new: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many results differ from the oracle's after an edit of the generated text."""
    edit_text(monkeypatch, triton, substituted(pattern, new))
    ran, want = interpreted(inputs, 16), oracle(inputs)
    return sum(differing(ran.tensors[n], want[n], "bf16" if n == "o" else None) for n in ("o", "lse"))


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"if new_piece:", "if s_step < 0:"),  # one split
        (r"% 8", "% 4"),  # pieces of half the size
        (r"= p\.to\(tl\.bfloat16\)", "= (p * 0.99).to(tl.bfloat16)"),
        (r"alpha = tl\.exp2\((\w+)\)", r"alpha = tl.exp2(\1) * 0.999"),
    ],
)
def test_an_edit_of_the_text_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert edited(pattern, new, FORMS["packed"], monkeypatch)


def test_a_segment_behind_empty_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place that is tried first is for segments of one query each: here it is too low."""
    inputs = packed(batch((0,) * 7 + (5,), (3,) * 7 + (20,), group=3, e=16, w=16))
    assert_same(interpreted(inputs, 16), oracle(inputs))
    assert edited(r"found = \(near \+ 1 >= count\)", "found = (near >= 0)", inputs, monkeypatch)


@pytest.mark.parametrize("form", ["paged, one query each", "pages of two steps", "pages of a step, window"])
def test_pages_of_whole_steps_are_looked_up_once(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows are masked still: nobody wrote what follows the last key of a page."""
    kernel = once_a_step(kernel_of(FORMS[form]))
    loops = [let.node for let in walk(kernel.body) if isinstance(let.node, Loop)]
    tables = [let for loop in loops for let in loop.body.lets if param_of(let) == "block_table"]
    assert len(tables) == 1 and not any(axis.part is Part.LANE for axis in tables[0].type.axes)
    assert edited(r"k_cache_guard_(\d+) = in_range_2 & ", r"k_cache_guard_\1 = ", FORMS[form], monkeypatch)


def test_pages_shorter_than_a_step_are_looked_up_for_every_row() -> None:
    kernel = kernel_of(FORMS["paged"])
    assert once_a_step(kernel) is kernel


def param_of(let: Let) -> str:
    return let.node.param if isinstance(let.node, Load) else ""


def test_a_store_beyond_segments_is_refused() -> None:
    kernel = kernel_of(FORMS["packed"])
    bare = tuple(
        replace(let, node=replace(let.node, guard=None)) if isinstance(let.node, Store) else let
        for let in kernel.body.lets
    )
    open_ended = replace(kernel, body=replace(kernel.body, lets=bare))
    with pytest.raises(UnsupportedError, match=r"beyond the segments of Q\*G"):
        segments(open_ended, roles(kernel, sizes(FORMS["packed"])).parallel)


def test_tiles_that_no_matrix_unit_takes_are_refused() -> None:
    with pytest.raises(ScheduleError, match="16 or more"):
        interpreted(FORMS["packed"], 8)


def test_the_rule_of_rows_changes_no_bit() -> None:
    """The oracle runs the kernel with one axis of rows, too: n rows for every query that there is."""
    inputs = packed(RAGGED.only(0))
    fused = launched(of(inputs), statics(inputs), MathModel.SM90, sizes(inputs))
    got = run(fused, inputs, extents={"Q*G": 27, "Q": 9})
    want = run(of(inputs), inputs, softmax=MathModel.SM90, extents={"Q": 9})
    for name in ("o", "lse"):
        assert_same_bits(got[name], want[name], name)
