"""Attention by TileLang without a device: forward, in pages, of shared prompts, and gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import ladder
import numpy as np
import pytest
import test_prefix_attention as prefix
from attention_cases import OPTIONS, Inputs, batch, extents, of, packed, paged
from attention_gradients import WANTED, gradient_of, longest, pull
from test_tilelang_hopper import HOPPER, PORTABLE, Threads

from rlk.errors import UnsupportedError
from rlk.interp.run import Outcome, run
from rlk.ir.dotmodel import native
from rlk.ir.nodes import Program
from rlk.lang import Variant, bf16, i32
from rlk.lower import tilelang
from rlk.lower.common.emitted import Emitted, Signature
from rlk.passes.pipeline import canonical, launched
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.schedule.waves import by_waves
from rlk.specs.attention import prefix_attention
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import differing
from rlk.testing.cdna import hip, host, lint
from rlk.testing.cdna.device import EmulatedWaves
from rlk.testing.cdna.jit import TileLangJit
from rlk.testing.generated import Ran, run_generated

MI300X = ladder.MI300X
SINKS = np.array([[0.5, -2.0, 3.0]], np.float32)
RAGGED = batch((9, 0, 5, 1), (70, 0, 5, 530), group=3, e=64, w=64)
CAPPED = packed(batch((9, 3), (70, 3), group=3, e=128, w=128))
CAPPED |= {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": SINKS}
HALVES = packed(batch((9, 0, 70), (40, 0, 70), heads=2, group=1, e=96, w=96, dtype="f16"), np.int64)
FORMS: dict[str, Inputs] = {
    "heads of 64": packed(RAGGED),
    "f16 heads of 96, window": HALVES | {"window": 20},
    "heads of 128, softcap and sinks": CAPPED,
    "heads of 24 and 40 in pages": paged(batch((9, 0, 5), (70, 0, 530), group=3, e=24, w=40)),
    "one query each in pages": paged(RAGGED.tail(1).only(0, 2, 3), 64),
}
LEARNT: dict[str, Inputs] = {
    "heads of 24 and 40": packed(batch((9, 0, 5, 70, 4), (70, 6, 3, 130, 0), group=3, e=24, w=40)),
    "f16 heads of 96, window": HALVES | {"window": 20},
    "heads of 128, softcap and sinks": CAPPED,
}
SHARED = {
    "sinks": prefix.drawn((70,) * 3, tuple((2,) * n for n in (1, 3, 8))),
    "window": prefix.drawn((130, 600, 0), ((0, 5), (), (70, 0, 1))),
}


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


def apart(inputs: Mapping[str, Any]) -> Inputs:
    """Return inputs of which no two lie in the same memory: a device is given each alone."""
    return {n: np.array(x) if isinstance(x, np.ndarray) else x for n, x in inputs.items()}


def oracle(program: Program, inputs: Inputs, sizes: Mapping[str, int]) -> Outcome:
    return run(program, inputs, softmax=MI300X.softmax, dots=native(MI300X.name), extents=sizes)


def executed(program: Program, inputs: Inputs, sizes: Mapping[str, int], **options: Any) -> Ran:
    return run_generated(program, apart(inputs), extents=sizes, backend="tilelang", **options)


def differences(ran: Ran, want: Outcome) -> int:
    """Count the elements of all results that differ from the oracle's."""
    got = {n: x for n, x in ran.tensors.items() if n in ("o", "lse") or n.startswith("d_")}
    assert got
    return sum(differing(x, want[n], "bf16" if x.dtype == np.uint16 else None) for n, x in got.items())


# --- calls ---


@cache
def forward(form: str) -> Outcome:
    """Return what the oracle says of a form."""
    inputs = FORMS[form]
    return oracle(of(inputs), inputs, longest_of(inputs))


def longest_of(inputs: Inputs) -> dict[str, int]:
    """Return the bounds of the axes that no tensor of a forward call has."""
    return {**extents(inputs), "Q": int((inputs["end_q"] - inputs["begin_q"]).max())}


def ran(form: str, pieces_apart: bool = False, **options: Any) -> Ran:
    inputs = FORMS[form]
    return executed(of(inputs, apart=pieces_apart), inputs, extents(inputs), **options)


@cache
def gradient(form: str) -> tuple[Program, Inputs, Outcome]:
    """Return the program of a form's gradient, its inputs, and what the oracle says."""
    inputs = LEARNT[form]
    made = oracle(of(inputs), inputs, longest(inputs))
    given = {**inputs, "o": made["o"], "lse": made["lse"], **pull(inputs, lse=True)}
    program = gradient_of(given, WANTED | ({"sinks"} & inputs.keys()))
    return program, given, oracle(program, given, longest(given))


def learnt(form: str, **options: Any) -> Ran:
    program, given, _ = gradient(form)
    rows, keys, group = len(given["q"]), len(given["k"]), given["q"].shape[2]
    sizes = {"Q": rows, "X": rows, "R": rows * group, "J": keys, "Z": keys}
    return executed(program, given, sizes, **options)


def shared(option: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Program, Inputs, dict[str, int]]:
    """Return a call of shared prompts."""
    inputs = prefix.inputs_of(SHARED[option], monkeypatch, **prefix.OPTIONS[option])
    present = {"scale", *OPTIONS.intersection(inputs)}
    variant = Variant.of({"F": bf16, "Offsets": i32}, present, {"causal": True})
    rows = len(inputs["q"])
    return canonical(prefix_attention.trace(variant)), inputs, {"Q": rows, "C": rows}


# --- bits ---


@pytest.mark.parametrize("form", FORMS)
def test_attention_has_the_bits_of_the_oracle_in_any_order_of_waves(form: str) -> None:
    for waves in ladder.WAVES:
        assert differences(ran(form, waves=waves), forward(form)) == 0, waves


@pytest.mark.parametrize("form", ["heads of 64", "one query each in pages"])
def test_pieces_with_blocks_of_their_own_have_the_same_bits(form: str) -> None:
    got = ran(form, pieces_apart=True, waves=1)
    assert len(got.emitted.kernels) == 2
    assert differences(got, forward(form)) == 0


@pytest.mark.parametrize("rows", [16, 64, 128])
def test_tiles_of_rows_do_not_move_bits(rows: int) -> None:
    schedule = Schedule(tiles=(("Q*G", rows), ("W", 64)))
    for waves in (1, 2):
        got = ran("heads of 64", schedules=[schedule], waves=waves)
        assert got.emitted.kernels[0].num_warps == rows // 16
        assert differences(got, forward("heads of 64")) == 0


@pytest.mark.parametrize("option", SHARED)
def test_shared_prompts_have_the_bits_of_the_oracle(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs, sizes = shared(option, monkeypatch)
    want = oracle(program, inputs, sizes)
    for waves in (1, 2):
        assert differences(executed(program, inputs, sizes, waves=waves), want) == 0


@pytest.mark.parametrize("form", LEARNT)
def test_gradients_have_the_bits_of_the_oracle_in_any_order_of_waves(form: str) -> None:
    for waves in ladder.WAVES:
        assert differences(learnt(form, waves=waves), gradient(form)[2]) == 0, waves


# --- machine code ---


def measured(got: Emitted, on: str) -> None:
    """Assert that kernels of a module fit a device, and multiply by its matrix cores."""
    for kernel in got.kernels:
        source = hip.hip_source(got.source, kernel.name, on)
        assembly = hip.assembly(source, on)
        (found,) = hip.resources(assembly)
        assert list(lint.findings(source, target(on))) == []
        assert found.vector_spills == found.scratch == 0
        assert found.shared <= 1024 * target(on).shared
        assert found.threads == kernel.num_warps * target(on).warp
        assert ("v_mfma_f32_16x16x16" in assembly) == ("tvm_mfma(" in _text(got.source, kernel.name))


def _text(source: str, kernel: str) -> str:
    """Return the text of a kernel of a module."""
    return source.split(f"def {kernel}(")[1].split("\n@tl.prim_func")[0].split("\ndef call(")[0]


def lowered(program: Program, head: int, on: str) -> Emitted:
    """Lower a program of a model: 8 heads of keys, 4 of queries for each, 4096 tokens in 4 sequences."""
    static, rows = {"H": 8, "G": 4, "E": head, "W": head}, 4096
    known = {**static, "B": 4, **dict.fromkeys("TSQXJZ", rows), "R": 4 * rows}
    bound = launched(program, static, target(on).softmax, known)
    signature = Signature(tuple(sorted(static.items())))
    chosen = [choose(kernel, target(on), signature, known) for kernel in bound.kernels]
    return tilelang.lower(bound, by_waves(bound, chosen, known, target(on)), target(on), signature)


@pytest.mark.parametrize(("head", "on"), [(64, "gfx90a"), (128, "gfx942"), (128, "gfx950")])
def test_tiles_of_a_model_fit_registers_and_shared_memory(head: int, on: str) -> None:
    made = lowered(of(FORMS["heads of 64"]), head, on)
    assert made.kernels[0].num_warps == 4
    measured(made, on)
    measured(lowered(gradient("heads of 24 and 40")[0], head, on), on)


def test_heads_whose_tiles_pass_shared_memory_are_refused() -> None:
    program = of(FORMS["heads of 64"])
    with pytest.raises(UnsupportedError, match="68608 bytes of shared memory in a block"):
        lowered(program, 256, "gfx942")
    assert lowered(program, 256, "gfx950").kernels


EMULATED = ("f16 heads of 96, window", "heads of 24 and 40 in pages", "one query each in pages")


@pytest.mark.parametrize("form", EMULATED)
def test_machine_code_of_attention_has_the_bits_of_the_oracle(form: str) -> None:
    device = EmulatedWaves(schedule=1, perturb=1)
    got = ran(form, device=device)
    assert differences(got, forward(form)) == 0
    assert all(each.products for each in device.executions)
    measured(got.emitted, MI300X.name)


def test_waves_that_share_tiles_have_them_on_the_emulator_too() -> None:
    device = EmulatedWaves(schedule=2)
    schedule = Schedule(tiles=(("Q*G", 32), ("W", 64)))
    assert differences(ran("heads of 64", schedules=[schedule], device=device), forward("heads of 64")) == 0


def test_machine_code_of_gradients_has_the_bits_of_the_oracle() -> None:
    form, device = "heads of 24 and 40", EmulatedWaves(schedule=1, perturb=1)
    got = learnt(form, device=device)
    assert differences(got, gradient(form)[2]) == 0
    assert [bool(each.products) for each in device.executions] == [False, True, True]
    measured(got.emitted, MI300X.name)


def test_what_tilelang_launches_of_attention_has_the_bits_of_the_oracle() -> None:
    device = TileLangJit(schedule=1)
    form = "one query each in pages"
    assert differences(ran(form, pieces_apart=True, device=device), forward(form)) == 0
    assert len(device.launches) == 2


# --- Hopper ---


@pytest.mark.parametrize("form", ["heads of 64", "f16 heads of 96, window", "one query each in pages"])
def test_cuda_source_of_attention_has_the_bits_of_the_oracle(form: str) -> None:
    inputs = FORMS[form]
    want = run(of(inputs), inputs, softmax=PORTABLE, extents=longest_of(inputs))
    for waves in (1, 2):
        got = ran(form, on=HOPPER, softmax=PORTABLE, device=Threads(waves))
        assert "ptx_mma" in got.emitted.source
        assert differences(got, want) == 0


def test_cuda_source_of_gradients_has_the_bits_of_the_oracle() -> None:
    form = "heads of 24 and 40"
    program, given, _ = gradient(form)
    want = run(program, given, softmax=PORTABLE, extents=longest(given))
    got = learnt(form, on=HOPPER, softmax=PORTABLE, device=Threads(1))
    assert differences(got, want) == 0


def test_heads_whose_lists_pass_registers_are_refused_on_hopper() -> None:
    with pytest.raises(UnsupportedError, match="lists of 128 elements"):
        lowered(of(FORMS["heads of 64"]), 192, "sm_90a")


# --- controls ---


def edited(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many results of a form differ when the text of its module is changed."""
    real = generated.tilelang.lower

    def changed(*args: Any, **kwargs: Any) -> Emitted:
        emitted = real(*args, **kwargs)
        source = re.sub(pattern, new, emitted.source)
        assert source != emitted.source
        return replace(emitted, source=source)

    monkeypatch.setattr(generated.tilelang, "lower", changed)
    return differences(ran("heads of 64", waves=1), forward("heads of 64"))


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"s_step \* 64", "(most_q_g_2 - 1 - s_step) * 64"),  # the last chunk first
        (r"tl\.truncmod\(s_step, tl\.int32\(8\)\)", "tl.truncmod(s_step, tl.int32(4))"),  # shorter pieces
        (r"if turn:", "if s_step < 0:"),  # one piece
        (r"thread // 16 % 4 \* 4 \+ i,", "(3 - thread // 16 % 4) * 4 + i,"),  # other values for the weights
    ],
)
def test_an_edit_of_the_text_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert edited(pattern, new, monkeypatch)


@pytest.mark.parametrize("numerics", [(32, 512), (64, 256)])
def test_chunks_and_pieces_of_other_sizes_have_other_bits(numerics: tuple[int, int]) -> None:
    inputs = FORMS["heads of 64"]
    got = executed(of(inputs, numerics=numerics), inputs, extents(inputs))
    assert differences(got, forward("heads of 64"))


def without(change: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many results differ, in several orders of waves, when the HIP source is changed."""
    real = hip.hip_source

    def made(source: str, kernel: str, on: str = "gfx942") -> str:
        text = real(source, kernel, on)
        assert change(text) != text
        return change(text)

    monkeypatch.setattr(host, "hip_source", made)
    schedule = Schedule(tiles=(("Q*G", 32), ("W", 64)))
    runs = (ran("heads of 64", schedules=[schedule], waves=waves) for waves in range(6))
    return [differences(each, forward("heads of 64")) for each in runs]


@pytest.mark.parametrize("which", [0, 1])
def test_waves_that_do_not_meet_around_a_tile_are_seen(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step's two meetings, one is before its tiles are written, one before they are read."""

    def removed(source: str) -> str:
        start = source.index("for (int s_step")
        for _ in range(which):
            start = source.index("__syncthreads();", start) + 1
        return source[:start] + source[start:].replace("__syncthreads();", "", 1)

    assert any(without(removed, monkeypatch))
