"""Nests that combine without a contraction: the CuTe text has the oracle's bits under any placement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from edited_text import edit_text, substituted

pytest.importorskip("triton")  # the harness knows both lowerings

import test_triton_lowering as specs
from random_programs import random_program, random_tensors
from test_cute_ops import by_cute

from rlk import ops
from rlk.errors import UnsupportedError
from rlk.interp.run import run
from rlk.ir.nodes import MathModel, Program
from rlk.lang import Axis, L, Outputs, Tensor, f32, i32, op, u32
from rlk.lower import cute
from rlk.lower.common.emitted import Emitted
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.cute.reduce_steps import Where, steps
from rlk.passes.pipeline import canonical, specialize
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule.cute_tiles import warpgroups
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule, Span
from rlk.specs.linear_logp import linear_logp_join
from rlk.specs.norm import rms_norm
from rlk.target.facts import target
from rlk.testing import generated
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.simt import Fault

H200 = target("sm_90a")
SM90 = MathModel.SM90
ROWS = [n for n in specs.CASES if n.startswith(("scores", "norms", "walks", "masked_mean", "fanned_sum"))]


@pytest.fixture(autouse=True)
def restored() -> Any:
    """Leave the oracle in charge."""
    yield
    dispatch.interpret_with(None)


def placed(program: Program, extents: Mapping[str, int]) -> list[Schedule]:
    """Return the schedules that a call of these sizes gets."""
    dynamic = {a.name for k in program.kernels for d in k.params for a in d.type.axes if a.dynamic}
    bound = specialize(program, {n: e for n, e in extents.items() if n not in dynamic}, SM90)
    return [warpgroups(k, choose(k, H200, None, extents), H200, extents) for k in bound.kernels]


def kinds(program: Program) -> dict[str, str]:
    decls = [d for k in program.kernels for d in k.params if d.type.dtype.is_float]
    return {d.name: str(d.type.dtype) for d in decls}


def agree(program: Program, given: Mapping[str, Any], **options: Any) -> Emitted:
    made = generated.run_generated(program, given, backend="cute", **options)
    want = run(program, given, softmax=SM90)
    for name in want.tensors:
        assert_same_bits(made.tensors[name], want[name], name, kinds(program).get(name))
    assert bool(made.errors[0]) == bool(want.errors)
    return made.emitted


# --- the same bits ---


@pytest.mark.parametrize("case", ROWS)
def test_every_placement_has_the_bits_of_the_oracle(case: str) -> None:
    spec, given = specs.CASES[case]
    program = specs.program(spec)
    tried = [placed(program, generated.extents_of(program, given))]
    agree(program, given, schedules=tried[0])
    for chosen in specs.schedules(program, given):
        try:
            agree(program, given, schedules=chosen)
        except UnsupportedError as refused:  # rows of a block that walk different ways
            assert "differ between the elements" in str(refused)
        else:
            tried.append(chosen)
    assert len(tried) >= 2


PLACEMENTS = (
    Schedule(warps=1),
    Schedule(tiles=(("X", 4),), placed=(Span("K", 0, 3), Span("X", 0, 2)), warps=1),
    Schedule(tiles=(("X", 2),), placed=(Span("K", 3, 2), Span("X", 0, 1), Span("K", 0, 3)), warps=4),
    Schedule(placed=(Span("K", 2, 3),), warps=8),
    Schedule(placed=(Span("K", 1, 4), Span("K", 5, 1)), warps=2, stages=2),
)


@pytest.mark.parametrize("seed", range(16))
def test_random_programs_have_the_bits_of_the_oracle(seed: int) -> None:
    program = random_program(seed)
    given = random_tensors(seed, *((5, 32) if seed % 2 else (3, 64)))
    for schedule in PLACEMENTS:
        agree(program, given, schedules=[schedule])


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 5, 9])
def test_steps_that_are_read_early_have_the_same_bits(rows: int, stages: int) -> None:
    drawn = specs.normal(2, rows, 40)
    given = {name: specs.floats.bf16_bits(each) for name, each in zip("xd", drawn, strict=True)}
    schedule = Schedule(placed=(Span("N", 0, 6),), warps=2, stages=stages)
    agree(specs.program(specs.walks), given, schedules=[schedule, schedule])


@pytest.mark.parametrize("pieces", [1, 2, 16, 24, 100, 600])
def test_states_of_many_pieces_merge_in_order(pieces: int) -> None:
    rows = 45
    rng = np.random.default_rng(pieces)
    state = {name: rng.standard_normal((pieces, rows)).astype(np.float32) for name in ("m", "s", "hits")}
    state["m"][: pieces // 2, 3] = -np.inf
    ids = np.arange(rows)
    ids[4] = -100
    given = {**state, "s": np.abs(state["s"]), "ids": ids, "ignore_index": -100, "vocabulary": 40}
    program = canonical(linear_logp_join.trace(linear_logp_join.default_variant()))
    emitted = agree(program, given, schedules=placed(program, {"T": rows, "R": pieces}))
    assert ("merged_across" in emitted.source) == (pieces > 1)


def test_a_sum_names_its_order_and_a_maximum_says_that_it_has_none() -> None:
    orders: dict[str, set[str]] = {"sum": set(), "max": set()}
    for case in ("scores 5 x 200", "norms 5 x 100"):
        spec, given = specs.CASES[case]
        for what, order in re.findall(
            r"# The (sum|max) over [^,]+, (.+)\.", agree(specs.program(spec), given).source
        ):
            orders[what].add(order)
    assert orders["sum"] and "in any order" not in orders["sum"] and orders["max"] == {"in any order"}


P, W = Axis("P"), Axis("W")


@op()
def joined(m: Tensor[f32, specs.T, P], s: Tensor[f32, specs.T, P], v: Tensor[f32, specs.T, P, W]) -> Outputs:
    """States of which only the weighted sums vary along W."""
    made = L.softmax_states(P, m, s, v=v)
    return L.out(o=made.mean("v"), lse=made.lse())


@pytest.mark.parametrize("pieces", [1, 4])
def test_what_a_state_has_for_a_row_is_that_of_its_own_row(pieces: int) -> None:
    """A thread has several rows, and of each several sums: a row's maximum is in no list along both."""
    rows, width = 100, 16
    m, s = specs.normal(2, rows, pieces)
    given = {"m": m, "s": 1 + s * s, "v": specs.normal(rows, pieces, width)}
    made, tiles = canonical(joined.trace(joined.default_variant())), (("T", 64), ("W", width))
    ran = generated.run_generated(made, given, schedules=[Schedule(tiles=tiles, warps=2)], backend="cute")
    want = run(made, given, softmax=MathModel.SM90)
    assert_same_bits(ran.tensors["o"], want["o"])
    assert_same_bits(ran.tensors["lse"], want["lse"])
    assert differing(np.roll(want["lse"], 1), want["lse"]) > rows // 2, "the control: of the row before"


# --- vectors ---

ALIGNED = frozenset("x residual weight y residual_out rstd x_t_stride y_t_stride".split())
FIRST = 3  # elements by which a tensor is moved


@cache
def norm() -> Program:
    return canonical(rms_norm.trace(rms_norm.default_variant()))


def normed(rows: int, width: int) -> dict[str, Any]:
    drawn = np.random.default_rng(width).standard_normal((rows + 1, width)).astype(np.float32)
    x = (drawn.view(np.uint32) >> 16).astype(np.uint16)
    return {"x": x[:-1], "weight": x[-1].copy(), "eps": 1e-6}


@pytest.mark.parametrize(("rows", "width"), [(3, 64), (5, 2048), (2, 4112), (7, 48)])
def test_vectors_have_the_bits_of_elements(rows: int, width: int) -> None:
    given = normed(rows, width)
    chosen = placed(norm(), {"T": rows, "N": width})
    wide = agree(norm(), given, schedules=chosen, divisible=ALIGNED)
    single = agree(norm(), given, schedules=chosen)
    for name in ("load_vector", "store_vector"):
        assert name in wide.source and name not in single.source


@pytest.mark.parametrize("width", [40, 1001, 4098])
def test_rows_that_end_inside_a_vector_are_read_by_elements(width: int) -> None:
    given = normed(4, width)
    emitted = agree(norm(), given, schedules=placed(norm(), {"T": 4, "N": width}), divisible=ALIGNED)
    assert ("load_vector" in emitted.source) == (width % 8 == 0)


# --- what the runtime calls ---


def compare(call: Callable[[], list[torch.Tensor]]) -> None:
    want = call()
    by_cute()
    for i, (a, b) in enumerate(zip(call(), want, strict=True)):
        assert_same_bits(a, b, f"result {i}")


def scores(rows: int, vocabulary: int, dtype: torch.dtype) -> list[torch.Tensor]:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)).to(dtype)
    logits[0, : vocabulary // 2] = -torch.inf
    ids = torch.arange(rows) * 7 % vocabulary
    made = ops.logp(logits, ids, needs=("logp", "entropy", "lse", "argmax", "lse2"), math="sm90")
    return [made.logp, made.entropy, made.lse, made.argmax, made.lse2]


SCORES = [(n, dtype) for n in ((1, 1), (3, 72), (2, 2048), (5, 4104))
          for dtype in (torch.bfloat16, torch.float16, torch.float32)]  # fmt: skip
SCORES.append(((1100, 320), torch.bfloat16))
"""Rows and words. Which rows a block has depends on their number alone: many rows are of one dtype."""


@pytest.mark.parametrize(("size", "dtype"), SCORES)
def test_scores_of_any_size(size: tuple[int, int], dtype: torch.dtype, backends: list[str]) -> None:
    rows, vocabulary = size
    compare(lambda: scores(rows, vocabulary, dtype))
    assert set(backends) == {"cute"}


@pytest.mark.parametrize("width", [8, 48, 1000, 1032, 2048, 33])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_columns_are_folded_in_the_order_of_rows(width: int, dtype: torch.dtype, backends: list[str]) -> None:
    def call() -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(width)
        weight = torch.randn(9, width, generator=generator).to(dtype).requires_grad_()
        ids = torch.tensor([0] * 30 + [3, 3, 8, 1])
        y = ops.embedding(ids, weight)
        return list(torch.autograd.grad(y, [weight], torch.randn(34, width, generator=generator).to(dtype)))

    compare(call)
    assert set(backends) == {"cute"}


def test_tensors_that_are_not_aligned_are_read_by_elements(backends: list[str]) -> None:
    def call() -> list[torch.Tensor]:
        storage = torch.randn(FIRST + 6 * 512, generator=torch.Generator().manual_seed(2)).bfloat16()
        x = storage[FIRST:].reshape(6, 512)
        return [ops.rms_norm(x, storage[:512])]

    compare(call)
    assert backends == ["cute"]


def test_an_expanded_cotangent_has_the_same_bits(backends: list[str]) -> None:
    def call() -> list[torch.Tensor]:
        x = torch.randn(6, 512, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
        y = ops.rms_norm(x, torch.ones(512).bfloat16())
        return list(torch.autograd.grad(y, [x], torch.ones(1).bfloat16().expand(6, 512)))

    compare(call)
    assert len(backends) == 2


def test_a_row_does_not_know_its_neighbours() -> None:
    by_cute()
    x = torch.randn(130, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    w = torch.randn(96, generator=torch.Generator().manual_seed(2)).bfloat16()
    whole = ops.rms_norm(x, w)
    for rows in (slice(0, 1), slice(67, 100), slice(129, 130)):
        assert_same_bits(ops.rms_norm(x[rows].contiguous(), w), whole[rows], str(rows))


# --- controls ---


def edited(
    monkeypatch: pytest.MonkeyPatch, case: tuple[Program, dict[str, Any], Schedule], edit: tuple[str, str]
) -> int:
    """Return how many elements differ from the oracle after an edit of the generated text."""
    edit_text(monkeypatch, cute, substituted(*edit))
    program, given, schedule = case
    made = generated.run_generated(
        program, given, backend="cute", schedules=[schedule] * len(program.kernels)
    )
    want = run(program, given, softmax=SM90)
    return sum(differing(made.tensors[name], want[name], kinds(program).get(name)) for name in want.tensors)


def wide() -> tuple[Program, dict[str, Any], Schedule]:
    """Rows of four warps, the elements of a thread in two runs."""
    return norm(), normed(40, 2048), Schedule(placed=(Span("N", 3, 7),), warps=4)


def walking() -> tuple[Program, dict[str, Any], Schedule]:
    """Rows one after the other, whose sums meet in shared memory once a step."""
    spec, given = specs.CASES["walks 7 x 100"]
    return specs.program(spec), given, Schedule(placed=(Span("N", 0, 7),), warps=4, stages=3)


def folding() -> tuple[Program, dict[str, Any], Schedule]:
    spec, given = specs.CASES["scores 5 x 200"]
    schedule = Schedule(placed=(Span("V.lane", 2, 2), Span("V.piece", 0, 2)), warps=1, stages=2)
    return specs.program(spec), given, schedule


SEEN = {
    "another order of a sum": (
        folding,
        r"exchanged\(x, 1, add\)\n(.*\n.*)exchanged\(x, 16, add\)",
        r"exchanged(x, 16, add)\n\1exchanged(x, 1, add)",
    ),
    "lanes in another order": (
        wide,
        r"exchanged\(x, 16, add\)\n((?:.*\n)*.*)exchanged\(x, 1, add\)",
        r"exchanged(x, 1, add)\n\1exchanged(x, 16, add)",
    ),
    "warps in another order": (wide, r"\(64, 32\), thread, add", "(32, 64), thread, add"),
    "elements in another place": (wide, r"c // 8 \* 1024", "c // 8 * 1016"),
    "lanes that are not exchanged": (wide, r"exchanged\(x, 16, add\)", "exchanged(x, 8, add)"),
    "the same half for both lanes": (folding, r"\(upper, x\[i \+ half\], x\[i\]\)", "(upper, x[i], x[i])"),
    "a step that is read again": (folding, r"next_v = Int32\(0\)", "next_v = Int32(1)"),
    "pieces in another order": (
        folding,
        r"(merged_lanes\(\(m, l, mean,\), )4(.*\n.*merged_lanes\(\(m, l, mean,\), )8",
        r"\g<1>8\g<2>4",
    ),
}


@pytest.mark.parametrize("mistake", SEEN)
def test_a_mistake_in_the_text_is_seen(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, *edit = SEEN[mistake]
    assert edited(monkeypatch, case(), (edit[0], edit[1]))


REFUSED = {
    "no barrier": (wide, r"    cute.arch.sync_threads\(\)\n", "", "another thread writes before"),
    "one reduce_smem for every step": (walking, r"r_step % 2", "0", "another thread uses before"),
    "a reduce_smem that nobody filled": (
        wide,
        r"    reduce_smem\[i, thread\] = x\[i\]",
        "    pass",
        "nobody wrote",
    ),
    "a sum at the place of another": (
        wide,
        r"reduce_smem\[i, thread\] = x",
        "reduce_smem[i, thread // 2] = x",
        "one element",
    ),
    "several threads write": (
        wide,
        r"store_where\(writes, rstd",
        "store_where(Boolean(True), rstd",
        "two threads",
    ),
    "memory that other kernels still write": (
        wide, r" +cute.arch.griddepcontrol_.*\n", "", "before the kernels"
    ),
    "a next kernel that need not wait": (
        wide, r" +cute.arch.griddepcontrol_wait.*\n", "", "before the kernels"
    ),
    "rows out of bounds": (walking, r"n < 100", "n < 128", "an index outside"),
    "a step too many": (walking, r"comes_3 = .*", "comes_3 = Boolean(True)", "an index outside"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_a_device_would_not_do_is_refused(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, pattern, new, why = REFUSED[mistake]
    with pytest.raises(Fault, match=why):
        edited(monkeypatch, case(), (pattern, new))


def test_an_edit_that_means_the_same_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not edited(monkeypatch, wide(), (r"return x\[0\]", "return x[0 * 1]"))


# --- trees ---


def test_two_lanes_part_a_list_among_them() -> None:
    spread = ThreadValues(specs.N, 64, ((3, 0), (4, 1), (5, 2)))
    halving = steps(spread, (spread,), (5, 4, 3, 2, 1, 0), halving=True)
    assert [each.where for each in halving] == [Where.RECURSIVE_HALVING] * 3 + [Where.LANES] * 3
    assert [each.strides for each in halving] == [(4,), (2,), (1,), (4,), (2,), (1,)]
    whole = steps(spread, (spread,), (5, 4, 3, 2, 1, 0), halving=False)
    assert [each.where for each in whole] == [Where.LANES] * 3 + [Where.LIST] * 3


def test_warps_that_follow_each_other_meet_once() -> None:
    spread = ThreadValues(specs.N, 256, tuple((bit, bit) for bit in range(8)))
    found = steps(spread, (), tuple(reversed(range(8))), halving=True)
    assert found[0].where is Where.WARPS and found[0].strides == (128, 64, 32)
    assert [each.where for each in found[1:]] == [Where.LANES] * 5


@op()
def roots_and_words(x: Tensor[f32, specs.T, specs.N]) -> Outputs:
    """Functions that round, and a block of random words for each element."""
    at = (L.pos(specs.T).to(u32), L.pos(specs.N).to(u32))
    first, *_, last = L.philox((*at, 0, 0), (7, 0))
    words = {"first": first.to(i32), "last": (last >> 8).to(f32)}
    return L.out(root=L.sqrt(x), below=L.floor(x), near=L.round(x), turned=abs(first.to(i32)), **words)


@pytest.mark.parametrize("width", [7, 512])
def test_roots_floors_and_random_words_are_those_of_the_oracle(width: int) -> None:
    x = (np.random.default_rng(0).normal(size=(5, width)) * 10).astype(np.float32)
    x[0, :7] = [0.0, -0.0, np.inf, np.nan, -1.0, 1e-40, 2.0**-149]
    program = canonical(roots_and_words.trace(roots_and_words.default_variant()))
    want = run(program, {"x": x}).tensors
    got = generated.run_generated(program, {"x": x}, backend="cute", on=H200).tensors
    for name, right in want.items():
        assert_same_bits(got[name], right, name)
    assert_same_bits(want["root"][1:], np.sqrt(np.where(x[1:] < 0, np.float32(np.nan), x[1:])))
    assert len(np.unique(want["first"])) == want["first"].size
