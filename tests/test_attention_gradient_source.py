"""Generated gradients of attention have the bits of the oracle under any schedule; all their loops count."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attention_cases import Inputs, batch, packed
from attention_gradients import gradient_of, longest, pulled
from edited_text import edit_text, substituted

pytest.importorskip("triton")

from rlk.interp.run import run
from rlk.ir.nodes import Loop, MathModel
from rlk.lower import triton
from rlk.lower.common.peel import peel
from rlk.passes.pipeline import launched
from rlk.passes.walk import walk
from rlk.schedule.attention import rows_axis, scheduled, widest
from rlk.schedule.axes import kind, roles
from rlk.schedule.heuristics import choose
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing

H200 = target("sm_90a")
RAGGED = batch((9, 0, 5, 70, 4), (70, 6, 3, 130, 0), group=3, e=24, w=40)
SINKS = np.array([[0.5, -2.0, 3.0]], np.float32)
HALVES = batch((9, 0, 5, 70), (70, 0, 5, 70), heads=2, group=1, e=32, w=16, dtype="f16")
FORMS: dict[str, Inputs] = {
    "packed": packed(RAGGED),
    "i64 offsets": packed(RAGGED, np.int64),
    "f16": packed(HALVES),
    "window": packed(RAGGED) | {"window": 20},
    "softcap and sinks": packed(RAGGED) | {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": SINKS},
}


def wanted_of(inputs: Inputs) -> frozenset[str]:
    return frozenset({"q", "k", "v"} | ({"sinks"} & inputs.keys()))


def sizes(inputs: Inputs) -> dict[str, int]:
    """Return bounds that a call without a look at the lengths has."""
    t, heads, group, width = inputs["q"].shape
    s = len(inputs["k"])
    known = {"H": heads, "G": group, "E": width, "W": inputs["v"].shape[-1], "B": len(inputs["begin_q"])}
    return {**known, "T": t, "S": s, "Q": t, "X": t, "R": t * group, "J": s, "Z": s}


def statics(inputs: Inputs) -> dict[str, int]:
    return {n: size for n, size in sizes(inputs).items() if n in "HGEW"}


def interpreted(inputs: Inputs, tile: int | None = None, **more: Any) -> generated.Ran:
    program = gradient_of(inputs, wanted_of(inputs), **more)
    schedules = None
    if tile is not None:
        extents = sizes(inputs)
        schedules = []
        for kernel in launched(program, statics(inputs), MathModel.SM90, extents).kernels:
            found = roles(kernel, extents)
            rows = rows_axis(found) if kind(kernel) == "back_to_back_gemm" else None
            wide = widest(kernel, found, extents)
            chosen = choose(kernel, H200, None, extents)
            schedules.append(chosen if rows is None else scheduled(str(rows), {}, tile, wide))
    return generated.run_generated(program, inputs, extents=sizes(inputs), schedules=schedules)


def assert_same(inputs: Inputs, ran: generated.Ran, **more: Any) -> None:
    wanted = wanted_of(inputs)
    program = gradient_of(inputs, wanted, **more)
    want = run(program, inputs, softmax=MathModel.SM90, extents=longest(inputs))
    for name in sorted(wanted):
        got = ran.tensors[f"d_{name}"]
        assert_same_bits(got, want[f"d_{name}"], name, "bf16" if got.dtype == np.uint16 else None)


# --- the same bits ---


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("form", FORMS)
def test_generated_gradients_have_the_bits_of_the_oracle(form: str, tile: int) -> None:
    inputs = pulled(FORMS[form], lse=True)
    assert_same(inputs, interpreted(inputs, tile))


def test_the_schedules_that_a_call_gets_have_them_too() -> None:
    inputs = pulled(FORMS["packed"])
    assert_same(inputs, interpreted(inputs))


def test_without_a_mask_too() -> None:
    inputs = pulled(FORMS["packed"], causal=False)
    assert_same(inputs, interpreted(inputs, 16, causal=False), causal=False)


FEW = ("q", "k", "v", "q k", "q v", "k v", "sinks", "q sinks", "k sinks", "v sinks", "q k sinks", "k v sinks")


@pytest.mark.parametrize("few", FEW)
def test_any_few_of_the_gradients_have_the_bits_of_all(few: str) -> None:
    wanted = frozenset(few.split())
    inputs = pulled(FORMS["softcap and sinks"])
    want = run(
        gradient_of(inputs, wanted_of(inputs)), inputs, softmax=MathModel.SM90, extents=longest(inputs)
    )
    ran = generated.run_generated(gradient_of(inputs, wanted), inputs, extents=sizes(inputs))
    assert {n for n in ran.tensors if n.startswith("d_")} - inputs.keys() == {f"d_{n}" for n in wanted}
    for name in sorted(wanted):
        got = ran.tensors[f"d_{name}"]
        assert_same_bits(got, want[f"d_{name}"], name, "bf16" if got.dtype == np.uint16 else None)


# --- what the kernels are ---


def kernels(inputs: Inputs) -> list[Any]:
    program = gradient_of(inputs, wanted_of(inputs))
    return list(launched(program, statics(inputs), MathModel.SM90, sizes(inputs)).kernels)


def test_queries_and_keys_have_kernels_of_their_own() -> None:
    found = kernels(pulled(FORMS["packed"]))
    assert [kind(k) for k in found] == ["rows", "back_to_back_gemm", "back_to_back_gemm"]
    rows = [str(rows_axis(roles(k, sizes(FORMS["packed"])))) for k in found[1:]]
    assert rows == ["Q*G", "J"]


def test_full_steps_stand_between_those_of_the_first_queries_and_of_the_last() -> None:
    _, of_queries, of_keys = kernels(pulled(FORMS["packed"]))
    for kernel, parts in ((of_queries, 2), (of_keys, 3)):
        loops = [let.node for let in walk(peel(kernel).body) if isinstance(let.node, Loop)]
        assert len(loops) == parts
        assert [loop.exists is None for loop in loops] == [i == parts - 2 for i in range(parts)]


def test_programs_that_take_longest_come_first() -> None:
    """Without a number of its own a segment's last queries, and its first keys."""
    tiles = re.findall(r"    tile = (.*)", interpreted(pulled(FORMS["packed"]), 16).emitted.source)
    assert tiles == ["tiles - 1 - tl.program_id(0) % tiles", "tl.program_id(0) % tiles"]


# --- controls ---


def edited(pattern: str, new: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how many results differ from the oracle's after an edit of the generated text."""
    edit_text(monkeypatch, triton, substituted(pattern, new))
    inputs = pulled(inputs)
    ran = interpreted(inputs, 16)
    want = run(gradient_of(inputs), inputs, softmax=MathModel.SM90, extents=longest(inputs))
    return {n: differing(ran.tensors[f"d_{n}"], want[f"d_{n}"], "bf16") for n in ("q", "k", "v")}


@pytest.mark.parametrize(
    ("pattern", "new", "seen"),
    [
        (r"(first_first_step) = tl\.min", r"\1 = tl.max", "kv"),  # queries that only the first keys meet
        (r"(last_first_full_step) = tl\.max", r"\1 = tl.min", "kv"),  # masks end too early
        (r"tl\.range\(rest,", "tl.range(full_steps,", "kv"),  # steps twice: those before the full ones
        (r"(first_full_steps) = tl\.min", r"\1 = tl.max", "q"),
        (r"ds = (\w+) \* (\w+)", r"ds = \1 * \2 * 1.01", "qk"),
        (r"tl\.fma\((\w+), (\w+), (\w+)\)", r"(\1 * \2 + \3 * 1.001)", "qkv"),
    ],
)
def test_an_edit_of_the_text_is_seen(
    pattern: str, new: str, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = edited(pattern, new, FORMS["packed"], monkeypatch)
    assert "".join(n for n in ("q", "k", "v") if found[n]) in (seen, "".join(sorted(seen)))
