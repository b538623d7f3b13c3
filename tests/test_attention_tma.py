"""Attention by Triton whose streamed factors hardware copies: the same bits, no masks where all exists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import Inputs, batch, extents, of, oracle, packed, paged
from attention_gradients import gradient_of, longest, pulled
from edited_text import edit_text, substituted

pytest.importorskip("triton")

from rlk.interp.floats import bf16_bits
from rlk.interp.run import run
from rlk.ir.nodes import MathModel
from rlk.lower import triton
from rlk.lower.triton.functions import functions
from rlk.schedule.attention import scheduled
from rlk.schedule.heuristics import choose
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.interpreter import InterpreterFault, interpret
from rlk.testing.simulators.interpreter_builder import FaithfulBuilder

DIMS = {"q": "thg", "k": "sh", "v": "sh", "k_cache": "poh", "v_cache": "poh", "o": "thg", "d_o": "thg"}
DIVISIBLE = frozenset({*DIMS, *(f"{name}_{axis}_stride" for name, axes in DIMS.items() for axis in axes)})
LENGTHS = (9, 0, 5, 1, 70), (70, 0, 5, 530, 70)
RAGGED = packed(batch(*LENGTHS, heads=2, group=4, e=32, w=48))
SINKS = np.array([[0.5, -2.0, 3.0, 1.0], [0.0, 1.0, -1.0, 2.0]], np.float32)
FORMS: dict[str, Inputs] = {
    "values of 48": RAGGED,
    "one head each": packed(batch(*LENGTHS, group=1, e=64, w=64)),
    "i64 offsets": packed(batch(*LENGTHS, group=4, e=16, w=16), np.int64),
    "f16": packed(batch(*LENGTHS, heads=2, group=2, e=32, w=32, dtype="f16")),
    "window": RAGGED | {"window": 20},
    "softcap and sinks": RAGGED | {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": SINKS},
    "many sequences": packed(batch((1, 3, 0, 2) * 20, (5, 3, 0, 66) * 20, group=2)),
}
RESULTS = ("o", "lse")
GRADIENTS = ("d_q", "d_k", "d_v")


def forward(
    inputs: Inputs,
    rows: int = 64,
    divisible: frozenset[str] = DIVISIBLE,
    *,
    shared_kv_descriptor: bool = False,
    **more: Any,
) -> Any:
    width = 1 << (inputs.get("v", inputs.get("v_cache")).shape[-1] - 1).bit_length()
    schedules = (replace(scheduled("Q*G", {"W": width}, rows), shared_kv_descriptor=shared_kv_descriptor),)
    sizes = extents(inputs)
    return generated.run_generated(
        of(inputs, **more), inputs, extents=sizes, schedules=schedules, divisible=divisible
    )


def backward(inputs: Inputs, **more: Any) -> Any:
    t, s = len(inputs["q"]), len(inputs["k"])
    sizes = {"Q": t, "X": t, "R": t * inputs["q"].shape[2], "J": s, "Z": s}
    return generated.run_generated(gradient_of(inputs, **more), inputs, extents=sizes, divisible=DIVISIBLE)


def pulled_back(inputs: Inputs, **more: Any) -> Any:
    return run(gradient_of(inputs, **more), inputs, softmax=MathModel.SM90, extents=longest(inputs))


def bits(tensors: Any, name: str) -> tuple[Any, str | None]:
    return tensors[name], "bf16" if tensors[name].dtype == np.uint16 else None


def assert_same(found: Any, want: Any, names: tuple[str, ...]) -> None:
    for name in names:
        got, kind = bits(found.tensors, name)
        assert_same_bits(got, want[name], name, kind)


def different(found: Any, want: Any, names: tuple[str, ...]) -> int:
    return sum(differing(found.tensors[n], want[n], bits(found.tensors, n)[1]) for n in names)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Collect the arguments whose tiles a kernel loads by a descriptor of their own while it runs."""
    seen: set[str] = set()
    real = FaithfulBuilder.create_descriptor_load

    def load(self: Any, descriptor: Any, *rest: Any) -> Any:
        seen.add(descriptor.base.attr["argument"].removesuffix("_ptr"))
        return real(self, descriptor, *rest)

    monkeypatch.setattr(FaithfulBuilder, "create_descriptor_load", load)
    return seen


# --- the same bits ---


@pytest.mark.parametrize("rows", [16, 64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_attention_by_tma_has_the_bits_of_the_oracle(form: str, rows: int, loaded: set[str]) -> None:
    found = forward(FORMS[form], rows)
    assert loaded == {"k", "v"}
    assert_same(found, oracle(FORMS[form]), RESULTS)


def test_without_a_mask_too() -> None:
    assert_same(forward(RAGGED, causal=False), oracle(RAGGED, causal=False), RESULTS)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_by_tma_have_the_bits_of_the_oracle(form: str, loaded: set[str]) -> None:
    inputs = pulled(FORMS[form], lse=True)
    found = backward(inputs)
    assert loaded == {"q", "k", "v", "d_o"}
    assert_same(found, pulled_back(inputs), GRADIENTS)


def test_gradients_without_a_mask_too() -> None:
    inputs = pulled(RAGGED, causal=False)
    assert_same(backward(inputs, causal=False), pulled_back(inputs, causal=False), GRADIENTS)


def test_a_neighbour_of_nan_is_not_seen() -> None:
    """Hardware puts zeros behind a sequence's end, where the next one's keys and values lie."""
    inputs, clean = dict(RAGGED), oracle(RAGGED)
    nan = bf16_bits(np.full((), np.nan, np.float32))
    for name in "kv":
        inputs[name] = inputs[name].copy()
        inputs[name][70:75] = nan  # the sequence of 5 keys, behind that of 70
    found = forward(inputs)
    for name, others in (("o", np.s_[:9]), ("o", np.s_[14:]), ("lse", np.s_[..., :9])):
        got, kind = bits(found.tensors, name)
        assert_same_bits(got[others], clean[name][others], name, kind)


# --- two tensors by one descriptor ---


def _one_memory(k: Any, v: Any, order: tuple[int, int]) -> tuple[Any, Any]:
    """Return keys and values, one behind the other's end."""
    memory = np.concatenate([(k, v)[i] for i in order])
    halves = memory[: len(k)], memory[len(k) :]
    return halves[order[0]], halves[order[1]]


def _rows_of_both(k: Any, v: Any) -> tuple[Any, Any]:
    """Return keys and values whose tokens lie beside each other."""
    memory = np.stack([v, k], 1)
    return memory[:, 1], memory[:, 0]


LYING: dict[str, Any] = {
    "keys first": lambda k, v: _one_memory(k, v, (0, 1)),
    "values first": lambda k, v: _one_memory(k, v, (1, 0)),
    "token by token": _rows_of_both,
    "one tensor": lambda k, v: (k, k),
    "rows of other strides": lambda k, v: (np.concatenate([k, k], 1)[:, :2], v),
}
ONE_WIDTH = packed(batch(*LENGTHS, heads=2, group=2, e=32, w=32))


@pytest.mark.parametrize("form", ["one head each", "f16", "softcap and sinks"])
def test_gradients_by_halves_have_the_bits_of_the_oracle(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        generated, "choose", lambda *given: replace(choose(*given), shared_kv_descriptor=True)
    )
    inputs = pulled(FORMS[form], lse=True)
    found = backward(inputs)
    shared = inputs["k"].shape[-1] == inputs["v"].shape[-1]  # tensors of other widths are no halves
    assert found.emitted.source.count("_rows = tl.make_tensor_descriptor") == (2 if shared else 4)
    assert_same(found, pulled_back(inputs), GRADIENTS)


def lying(how: str) -> Inputs:
    k, v = LYING[how](ONE_WIDTH["k"], ONE_WIDTH["v"])
    return ONE_WIDTH | {"k": k, "v": v}


@pytest.mark.parametrize("how", LYING)
def test_where_keys_and_values_lie_does_not_count(how: str) -> None:
    inputs = lying(how)
    found = forward(inputs, shared_kv_descriptor=True)
    assert "k_rows.load([k_half, " in found.emitted.source and "v_rows.load([v_half, " in found.emitted.source
    assert_same(found, oracle(inputs), RESULTS)


def test_a_forward_asks_for_one_descriptor_and_gradients_do_not() -> None:
    """Measured: described together keys and values take less time, and what gradients stream takes more."""
    found = generated.run_generated(of(ONE_WIDTH), ONE_WIDTH, extents=extents(ONE_WIDTH), divisible=DIVISIBLE)
    assert "v_rows.load([v_half, " in found.emitted.source
    assert_same(found, oracle(ONE_WIDTH), RESULTS)
    assert "_half" not in backward(pulled(ONE_WIDTH, lse=True)).emitted.source


def test_two_tensors_farther_apart_than_strides_reach_have_a_descriptor_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edit_text(monkeypatch, triton, substituted("1 << 40", "1 << 4"))
    assert_same(forward(lying("keys first"), shared_kv_descriptor=True), oracle(ONE_WIDTH), RESULTS)


@pytest.mark.parametrize(
    ("how", "pattern", "new"),
    [
        ("keys first", r"v_half = 1 - k_half", "v_half = k_half"),
        ("values first", r"ordered = alone \| \(apart > 0\)", "ordered = apart == apart"),
        ("keys first", r"tl\.abs\(apart\) // 2\)", "tl.abs(apart) // 2 - 32)"),
        ("rows of other strides", r"\(k_s_stride != v_s_stride\)", "(k_s_stride < 0)"),
    ],
)
def test_an_edit_of_a_shared_descriptor_is_seen(
    how: str, pattern: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_text(monkeypatch, triton, substituted(pattern, new))
    inputs = lying(how)
    assert refused_or_different(inputs)


def refused_or_different(inputs: Inputs) -> bool:
    """Return whether a text that is wrong reads what no argument has, or finds other bits."""
    try:
        return bool(different(forward(inputs, shared_kv_descriptor=True), oracle(inputs), RESULTS))
    except InterpreterFault:
        return True


# --- when there are none ---


@pytest.mark.parametrize("missing", ["k", "v", "k_s_stride", "v_h_stride"])
def test_a_tensor_whose_rows_are_not_aligned_is_read_by_pointers(missing: str, loaded: set[str]) -> None:
    found = forward(RAGGED, divisible=DIVISIBLE - {missing})
    assert not loaded
    assert_same(found, oracle(RAGGED), RESULTS)


def test_pages_are_read_by_pointers(loaded: set[str]) -> None:
    inputs = paged(batch(*LENGTHS, group=2, e=32, w=32))
    found = forward(inputs)
    assert not loaded
    assert_same(found, oracle(inputs), RESULTS)


def test_heads_that_do_not_divide_a_step_are_read_by_pointers(loaded: set[str]) -> None:
    inputs = pulled(packed(batch((9, 5), (70, 5), group=3, e=32, w=32)))
    found = backward(inputs)
    assert loaded == {"k", "v"}
    assert_same(found, pulled_back(inputs), GRADIENTS)


# --- controls ---


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"if s_step >= first_full_steps:", "if s_step > first_full_steps:"),  # a step without its mask
        (r"k_rows\.load\(\[(\w+), 0\]\)", r"k_rows.load([\1 + 1, 0])"),
    ],
)
def test_an_edit_of_the_text_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, triton, substituted(pattern, new))
    assert different(forward(RAGGED, 16), oracle(RAGGED), RESULTS)


def test_a_box_that_does_not_end_with_its_sequence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, triton, substituted(r"shape=\[end_k,", "shape=[tl.minimum(end_k + 5, 675),"))
    with pytest.raises(AssertionError):
        test_a_neighbour_of_nan_is_not_seen()


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"if \(r_step < \w+\) \| \(r_step >= full_steps\):", "if r_step >= full_steps:"),
        (r"(q_rows\.load\(\[\w+ // 4), 0, 0\]", r"\1, 1, 0]"),  # from the second head on
        (r"(d_o_rows.load\(\[\w+ // 4)", r"\1 + 1"),
    ],
)
def test_an_edit_of_a_gradient_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = pulled(RAGGED)
    edit_text(monkeypatch, triton, substituted(pattern, new))
    assert different(backward(inputs), pulled_back(inputs), GRADIENTS)


# --- quotients of a row ---

QUOTIENTS = """
import triton
import triton.language as tl


{}

@triton.jit
def rows(x_ptr, by_ptr, out_ptr):
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 64)[None, :]
    tl.store(out_ptr + row * 64 + column, divided(tl.load(x_ptr + row * 64 + column), tl.load(by_ptr + row)))
"""
DIVIDED = functions()["divided"].source


def quotients(x: Any, by: Any, divided: str = DIVIDED) -> Any:
    out = np.zeros_like(x)
    interpret(QUOTIENTS.format(divided)).rows[(1,)](x, by, out)
    return out


def numbers(scale: float) -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(16, 64)) * 2.0 ** rng.uniform(-scale, scale, (16, 64))
    return x.astype(np.float32), (2.0 ** rng.uniform(-scale, scale, (16, 1))).astype(np.float32)


@pytest.mark.parametrize("scale", [0.0, 8.0, 50.0, 100.0])
def test_quotients_of_a_row_are_rounded_once(scale: float) -> None:
    x, by = numbers(scale)
    with np.errstate(over="ignore"):
        assert_same_bits(quotients(x, by), x / by, "quotients")


def test_zeros_keep_their_sign_and_what_is_no_number_stays_so() -> None:
    x, by = numbers(8.0)
    x[0, :4] = 0.0, -0.0, np.inf, np.nan
    by[1:4, 0] = 0.0, np.inf, -3.0
    x[5, 0], by[6, 0] = 2.0**-140, 2.0**-130
    with np.errstate(all="ignore"):
        assert_same_bits(quotients(x, by), x / by, "quotients")
    x, by = numbers(8.0)
    x[0, :2] = 0.0, -0.0
    assert_same_bits(quotients(x, by), x / by, "quotients")


def test_quotients_that_are_not_corrected_are_seen() -> None:
    x, by = numbers(8.0)
    near = DIVIDED.replace("tl.fma(tl.fma(by, near, negative) * -1.0, inverse, near)", "near")
    assert near != DIVIDED and differing(quotients(x, by, near), x / by)
