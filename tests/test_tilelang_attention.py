"""Attention by TileLang without a device: forward, in pages, of shared prompts, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ladder
import numpy as np
import pytest
import test_prefix_attention as prefix
from attention_cases import OPTIONS, Inputs, batch, extents, of, packed, paged
from attention_gradients import WANTED, gradient_of, longest, pull
from edited_text import edit_text, substituted
from test_tilelang_hopper import HOPPER, PORTABLE, Threads

from rlk.backends import hip
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
from rlk.schedule.tilelang_tiles import by_tilelang_tiles
from rlk.specs.attention import prefix_attention
from rlk.target.facts import target
from rlk.testing.bits import differing
from rlk.testing.generated import Ran, run_generated
from rlk.testing.simulators.cdna import host, lint
from rlk.testing.simulators.cdna.device import EmulatedWaves
from rlk.testing.simulators.cdna.jit import TileLangJit

Call = tuple[Program, Inputs, dict[str, int]]
RAGGED = batch((9, 0, 5, 1), (70, 0, 5, 530), group=3, e=64, w=64)
CAPPED = packed(batch((9, 3), (70, 3), group=3, e=128, w=128))
CAPPED |= {"softcap": 3.0, "inv_softcap": 1 / 3.0, "sinks": np.array([[0.5, -2.0, 3.0]], np.float32)}
HALVES = packed(batch((9, 0, 70), (40, 0, 70), heads=2, group=1, e=96, w=96, dtype="f16"), np.int64)
LEARNT = {
    "gradient of heads of 24 and 40": packed(batch((9, 0, 5, 70), (70, 6, 3, 130), group=3, e=24, w=40)),
    "gradient of f16 heads of 96, window": HALVES | {"window": 20},
    "gradient of heads of 128, softcap and sinks": CAPPED,
}
FORMS = {
    "heads of 64": packed(RAGGED),
    "f16 heads of 96, window": HALVES | {"window": 20},
    "heads of 128, softcap and sinks": CAPPED,
    "heads of 24 and 40 in pages": paged(batch((9, 0, 5), (70, 0, 530), group=3, e=24, w=40)),
    "one query each in pages": paged(RAGGED.tail(1).only(0, 2, 3), 64),
    **LEARNT,
}
PLAIN, PAGES, GRADIENT = "heads of 64", "one query each in pages", "gradient of heads of 24 and 40"
TWO_WAVES = [Schedule(tiles=(("Q*G", 32), ("W", 64)))]


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


def oracle(call: Call, **options: Any) -> Outcome:
    program, inputs, sizes = call
    return run(program, inputs, extents=sizes, **{"softmax": PORTABLE, **options})


@cache
def call(form: str) -> Call:
    """Return a form's program, its inputs, and tight bounds of the axes that no tensor has."""
    inputs = FORMS[form]
    queries = int((inputs["end_q"] - inputs["begin_q"]).max())
    forward = of(inputs), inputs, {**extents(inputs), "Q": queries}
    if form not in LEARNT:
        return forward
    made = oracle(forward)
    given = {**inputs, "o": made["o"], "lse": made["lse"], **pull(inputs, lse=True)}
    return gradient_of(given, WANTED | ({"sinks"} & inputs.keys())), given, longest(given)


@cache
def wanted(form: str, on: str = "gfx942") -> Outcome:
    return oracle(call(form), dots=native(on))


def executed(given: Call, **options: Any) -> Ran:
    """Run a call's kernels on inputs of which no two lie in the same memory.

    A launch counts blocks by the rows and keys of all sequences together.
    """
    program, inputs, sizes = given
    q, keys = inputs["q"], len(inputs.get("k", ()))
    whole = {"Q": len(q), "C": len(q), "X": len(q), "R": len(q) * q.shape[2], "J": keys, "Z": keys}
    sizes = {**sizes, **{n: size for n, size in whole.items() if n in sizes}}
    alone = {n: np.array(x) if isinstance(x, np.ndarray) else x for n, x in inputs.items()}
    return run_generated(program, alone, extents=sizes, backend="tilelang", **options)


def ran(form: str, **options: Any) -> Ran:
    return executed(call(form), **options)


def differences(ran: Ran, want: Outcome) -> int:
    """Count the elements of all results that differ from the oracle's."""
    got = {n: x for n, x in ran.tensors.items() if n in ("o", "lse") or n.startswith("d_")}
    assert got
    return sum(differing(x, want[n], "bf16" if x.dtype == np.uint16 else None) for n, x in got.items())


# --- bits ---


@pytest.mark.parametrize("form", FORMS)
def test_attention_has_the_bits_of_the_oracle_in_any_order_of_waves(form: str) -> None:
    for waves in ladder.WAVES:
        assert differences(ran(form, waves=waves), wanted(form)) == 0, waves


def test_pieces_with_blocks_of_their_own_have_the_same_bits() -> None:
    _, inputs, sizes = call(PAGES)
    got = executed((of(inputs, apart=True), inputs, sizes), device=TileLangJit(schedule=1))
    assert len(got.emitted.kernels) == 2
    assert differences(got, wanted(PAGES)) == 0


def test_tiles_of_rows_do_not_move_bits() -> None:
    got = ran(PLAIN, schedules=[TWO_WAVES[0].with_tile("Q*G", 128)], waves=1)
    assert got.emitted.kernels[0].num_warps == 8
    assert differences(got, wanted(PLAIN)) == 0


def test_shared_prompts_have_the_bits_of_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = prefix.drawn((130, 600, 0), ((0, 5), (), (70, 0, 1)))
    inputs = prefix.inputs_of(shapes, monkeypatch, window=70, sinks=prefix.OPTIONS["sinks"]["sinks"])
    present = {"scale", *OPTIONS.intersection(inputs)}
    variant = Variant.of({"F": bf16, "Offsets": i32}, present, {"causal": True})
    program = canonical(prefix_attention.trace(variant))
    given = program, inputs, dict.fromkeys("QC", len(inputs["q"]))
    assert differences(executed(given, waves=1), oracle(given, dots=native("gfx942"))) == 0


def test_cuda_source_has_the_bits_of_the_oracle() -> None:
    form = "f16 heads of 96, window"
    got = ran(form, on=HOPPER, softmax=PORTABLE, device=Threads(1))
    assert "ptx_mma" in got.emitted.source
    assert differences(got, wanted(form, HOPPER.name)) == 0


# --- machine code ---


def fits(made: Emitted, on: str) -> None:
    """Assert that kernels of a module fit a device, and that some multiply by its matrix cores."""
    assemblies = []
    for kernel in made.kernels:
        source = hip.hip_source(made.source, kernel.name, on)
        assemblies.append(hip.assembly(source, on))
        (found,) = hip.resources(assemblies[-1])
        assert list(lint.findings(source, target(on))) == []
        assert found.vector_spills == found.scratch == 0
        assert found.shared <= 1024 * target(on).shared
    assert any("v_mfma_f32_16x16x16" in text for text in assemblies)


def lowered(program: Program, head: int, on: str) -> Emitted:
    """Lower a program of a model: 8 heads of keys, 4 of queries for each, 4096 tokens in 4 sequences."""
    static, rows = {"H": 8, "G": 4, "E": head, "W": head}, 4096
    known = {**static, "B": 4, **dict.fromkeys("TSQXJZ", rows), "R": 4 * rows}
    bound = launched(program, static, target(on).softmax, known)
    signature = Signature(tuple(sorted(static.items())))
    chosen = [choose(kernel, target(on), signature, known) for kernel in bound.kernels]
    return tilelang.lower(bound, by_tilelang_tiles(bound, chosen, known, target(on)), target(on), signature)


@pytest.mark.parametrize(("head", "on"), [(64, "gfx90a"), (128, "gfx942"), (128, "gfx950")])
def test_tiles_of_a_model_fit_registers_and_shared_memory(head: int, on: str) -> None:
    for form in (PLAIN, GRADIENT):
        made = lowered(call(form)[0], head, on)
        assert made.kernels[-1].num_warps == 4
        fits(made, on)


@pytest.mark.parametrize(
    ("head", "on", "said"),
    [(256, "gfx942", "68608 bytes of shared"), (192, "sm_90a", "registers for 128 elements")],
)
def test_heads_whose_tiles_do_not_fit_are_refused(head: int, on: str, said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        lowered(call(PLAIN)[0], head, on)
    assert lowered(call(PLAIN)[0], head, "gfx950").kernels


@pytest.mark.parametrize("on", ["gfx90a", "gfx942"])
@pytest.mark.parametrize("form", [PLAIN, "f16 heads of 96, window"])
def test_machine_code_has_the_bits_of_the_oracle(form: str, on: str) -> None:
    device = EmulatedWaves(target=on, schedule=1, perturb=1)
    schedules = TWO_WAVES if form == PLAIN else None
    got = ran(form, on=target(on), device=device, schedules=schedules)
    assert differences(got, wanted(form, on)) == 0
    assert device.executions[-1].products
    fits(got.emitted, on)


# --- controls ---


@pytest.mark.parametrize(
    ("pattern", "new"),
    [
        (r"s_step \* 64", "(imax_q_g_2 - 1 - s_step) * 64"),  # the last chunk first
        (r"if new_piece:", "if s_step < 0:"),  # one piece
        (r"thread // 16 % 4 \* 4 \+ i,", "(3 - thread // 16 % 4) * 4 + i,"),  # other values for the weights
    ],
)
def test_an_edit_of_the_text_is_seen(pattern: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_text(monkeypatch, tilelang, substituted(pattern, new))
    assert differences(ran(PLAIN), wanted(PLAIN))


@pytest.mark.parametrize("numerics", [(32, 512), (64, 256)])
def test_chunks_and_pieces_of_other_sizes_have_other_bits(numerics: tuple[int, int]) -> None:
    _, inputs, sizes = call(PLAIN)
    assert differences(executed((of(inputs, numerics=numerics), inputs, sizes)), wanted(PLAIN))


def without(which: int) -> Callable[..., str]:
    """Return a compiler that leaves one of the meetings of a step out."""
    real = hip.hip_source

    def made(source: str, kernel: str, on: str = "gfx942") -> str:
        text = real(source, kernel, on)
        start = text.index("for (int s_step")
        for _ in range(which):
            start = text.index("__syncthreads();", start) + 1
        return text[:start] + text[start:].replace("__syncthreads();", "", 1)

    return made


@pytest.mark.parametrize("which", [0, 1])
def test_waves_that_do_not_meet_around_a_tile_are_seen(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step's two meetings, one is before its tiles are written, one before they are read."""
    monkeypatch.setattr(host, "hip_source", without(which))
    runs = (ran(PLAIN, schedules=TWO_WAVES, waves=waves) for waves in range(6))
    assert any(differences(each, wanted(PLAIN)) for each in runs)
