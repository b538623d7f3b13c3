"""Contractions by pieces: loops of launches keep every bit, in the order of the pieces, in little memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from piecewise_cases import (
    SPECS,
    E,
    Extents,
    F,
    K,
    M,
    N,
    P,
    S,
    by_eighths,
    by_fours,
    by_threes,
    execute,
    head,
    inputs,
    length_of,
    meaning,
    program,
    steps,
    swept,
)

from rlk.errors import Code, SpecError, UnsupportedError
from rlk.interp.run import run
from rlk.ir.dims import fixed_extent
from rlk.ir.nodes import Dot, Launch, Phase, Program, Role, Turn
from rlk.ir.text import parse_program, print_program
from rlk.ir.types import DType
from rlk.ir.verify import verify
from rlk.lang import L, Tensor, f32, op
from rlk.lang.op import Variant
from rlk.lower.common.host_loops import host_lines, length_name, loop_extents
from rlk.lower.common.memory import ALIGNED, LINE, memory_shape, placed, workspaces
from rlk.passes.pipeline import canonical
from rlk.passes.walk import walk
from rlk.specs.linear_logp import linear_logp
from rlk.specs.logp import V
from rlk.testing.bits import assert_same_bits, differing

SIZES: tuple[dict[str, int], ...] = (
    {"M": 5, "N": 6, "K": 7, "S": 37, "E": 50, "P": 10},
    {"M": 1, "N": 2, "K": 20, "S": 3, "E": 3, "P": 3},
    {"M": 3, "N": 1, "K": 1, "S": 64, "E": 17, "P": 7},
    {"M": 2, "N": 3, "K": 16, "S": 5, "E": 1, "P": 1},
    {"M": 2, "N": 3, "K": 5, "S": 8, "E": 128, "P": 6},
)
CASES = [(name, dtype) for name in SPECS for dtype in ("bf16", "f16", "f32")]


def assert_same(got, want, about: object = "") -> None:
    for name, array in want.items():
        assert_same_bits(got[name], array, f"{name} {about}", None if array.dtype.kind == "f" else "bf16")


# --- the same bits ---


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_pieces_mean_a_product_each_merged_in_order(name: str, dtype: str) -> None:
    for extents in SIZES:
        given = inputs(SPECS[name], extents, dtype)
        want = meaning(SPECS[name], given, dtype)
        assert_same(run(program(SPECS[name], dtype), given), want, extents)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_loops_of_launches_keep_every_bit(name: str, dtype: str) -> None:
    for extents in SIZES:
        given = inputs(SPECS[name], extents, dtype)
        made = swept(program(SPECS[name], dtype), extents)
        assert made.launches
        verify(made)
        assert_same(execute(made, given, extents), meaning(SPECS[name], given, dtype), extents)


@pytest.mark.parametrize("name", [name for name in SPECS if name.startswith("by")])
def test_pieces_side_by_side_keep_every_bit(name: str) -> None:
    for extents in SIZES:
        given = inputs(SPECS[name], extents)
        apart = program(SPECS[name], apart=frozenset("SEP"))
        assert len(apart.kernels) > len(program(SPECS[name]).kernels)
        assert_same(run(apart, given), meaning(SPECS[name], given, "bf16"), extents)
        assert_same(
            execute(swept(apart, extents), given, extents), meaning(SPECS[name], given, "bf16"), extents
        )


def test_pieces_of_what_is_kept_are_never_side_by_side() -> None:
    """They are launched one after the other: the product of one would be written over by the next."""
    for extents in SIZES:
        given = inputs(SPECS["head"], extents)
        apart = program(SPECS["head"], apart=frozenset("SEP"))
        assert_same(
            execute(swept(apart, extents), given, extents), meaning(SPECS["head"], given, "bf16"), extents
        )


def test_a_chain_of_fma_that_ends_as_minus_zero_counts_as_zero() -> None:
    """In a short piece zeros follow it, and -0.0 + 0.0 is +0.0."""
    extents = {"M": 1, "N": 1, "S": 5}
    given = {"x": np.full((1, 5), -1e-30, np.float32), "w": np.full((1, 5), 1e-30, np.float32)}
    want = np.zeros((1, 1), np.float32)
    assert_same_bits(run(program(by_fours, "f32"), given)["y"], want)
    assert_same_bits(execute(swept(program(by_fours, "f32"), extents), given, extents)["y"], want)


@pytest.mark.parametrize("name", SPECS)
def test_generated_loops_keep_every_bit(name: str) -> None:
    pytest.importorskip("triton")
    from rlk.testing.generated import run_generated

    for dtype, extents in (("bf16", SIZES[0]), ("f16", SIZES[1]), ("f32", SIZES[2]), ("bf16", SIZES[3])):
        given = inputs(SPECS[name], extents, dtype)
        got = run_generated(program(SPECS[name], dtype), given, extents=extents).tensors
        assert_same(got, meaning(SPECS[name], given, dtype), extents)


# --- controls ---


def reordered(what: Program) -> Program:
    """Return the program with the pieces of eight taken in other turns."""
    other = {(0, 2, 4, 6): (0, 1, 4, 6), (1, 5): (2, 5)}

    def turn(x: Turn) -> Turn:
        return replace(x, only=other.get(x.only, x.only)) if isinstance(x.only, tuple) else x

    launches = tuple(replace(a, turns=tuple(map(turn, a.turns))) for a in what.launches)
    return replace(what, launches=launches)


def test_another_order_of_pieces_is_seen() -> None:
    extents = {"M": 40, "N": 40, "E": 200}
    given = inputs(by_eighths, extents, "f32")
    made = swept(program(by_eighths, "f32"), extents)
    wrong = execute(reordered(made), given, extents)["y"]
    assert differing(wrong, execute(made, given, extents)["y"])


def test_a_merge_of_the_other_rule_is_seen() -> None:
    extents = {"N": 40, "K": 40, "P": 11}
    given = inputs(by_threes, extents, "f32")
    whole = inputs(by_eighths, {"M": 40, "N": 40, "E": 11}, "f32")
    whole["x"], whole["w"] = given["x"], given["w"]
    assert differing(run(program(by_threes, "f32"), given)["y"], run(program(by_eighths, "f32"), whole)["y"])


def test_a_place_that_two_workspaces_share_at_once_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import piecewise_cases

    extents = SIZES[0]
    given, made = inputs(head, extents), swept(program(head), extents)
    starts, size = placed(made, extents)
    monkeypatch.setattr(piecewise_cases, "placed", lambda *_: (dict.fromkeys(starts, 0), size))
    assert differing(execute(made, given, extents)["left"], meaning(head, given, "bf16")["left"])


# --- launches ---


def listed(what: Program) -> list[tuple[str, ...]]:
    """Return launches as they are printed."""
    lines = [line.split() for line in print_program(what).splitlines() if line.startswith("launch ")]
    return [(name, *(turn.removeprefix("for=") for turn in turns)) for _, name, *turns in lines]


def test_a_pairwise_merge_counts_as_a_binary_counter() -> None:
    assert listed(swept(program(by_eighths), SIZES[0])) == [
        ("by_eighths_0", "E.piece:0,2,4,6"),
        ("by_eighths_1", "E.piece:1,5"),
        ("by_eighths_2", "E.piece:3"),
        ("by_eighths_3", "E.piece:7"),
    ]
    assert listed(swept(program(by_fours), SIZES[0])) == [
        ("by_fours_0", "S.piece:0,2"),
        ("by_fours_1", "S.piece:1"),
        ("by_fours_2", "S.piece:3"),
    ]


def test_an_ascending_merge_has_a_first_a_middle_and_a_last_turn() -> None:
    names = [(f"by_threes_{phase}", f"P.piece:{phase}") for phase in ("first", "middle", "last")]
    for count in (4, 7, 10):
        assert listed(swept(program(by_threes), {**SIZES[0], "P": count})) == names
    for count in (1, 3):
        assert listed(swept(program(by_threes), {**SIZES[0], "P": count})) == [("by_threes", "P.piece")]


HIDDEN = [("3_0", ":0,2,4,6"), ("3_1", ":1,5"), ("3_2", ":3"), ("3_3", ":7")]


def gradient(*wanted: str) -> Program:
    assert linear_logp.gradient is not None
    plain = linear_logp.default_variant()
    chosen = Variant(plain.dtypes, frozenset({"d_logp"}), plain.statics, frozenset(wanted))
    return canonical(linear_logp.gradient.trace(chosen))


def test_several_pieces_of_rows_have_a_nest_for_each_result() -> None:
    made = swept(gradient("hidden", "weight"), {"T": 20000, "D": 16, "V": 100})
    g = "linear_logp_grad"
    assert listed(made) == [
        (f"{g}_1", "T.piece"),
        (f"{g}_2", "T.piece", "V.piece"),
        *[(f"{g}_{name}", "T.piece", f"V.piece{turns}") for name, turns in HIDDEN],
        (f"{g}_1", "V.piece", "T.piece"),
        (f"{g}_2", "V.piece", "T.piece"),
        *[(f"{g}_4_{phase}", "V.piece", f"T.piece:{phase}") for phase in ("first", "middle", "last")],
    ]


def test_one_piece_of_rows_has_one_nest_for_both_results() -> None:
    made = swept(gradient("hidden", "weight"), {"T": 8192, "D": 16, "V": 100})
    g = "linear_logp_grad"
    assert listed(made) == [
        (f"{g}_1", "T.piece"),
        (f"{g}_2", "T.piece", "V.piece"),
        *[(f"{g}_{name}", "T.piece", f"V.piece{turns}") for name, turns in HIDDEN],
        (f"{g}_4", "T.piece", "V.piece"),
    ]


@pytest.mark.parametrize("rows", [1, 8192, 8193, 40000])
@pytest.mark.parametrize("wanted", ["hidden", "weight"])
def test_a_result_that_nobody_wants_has_no_launch(wanted: str, rows: int) -> None:
    made = swept(gradient(wanted), {"T": rows, "D": 16, "V": 100})
    outs = {d.name for k in made.kernels for d in k.params if d.role is Role.OUT}
    assert outs == {f"d_{wanted}"}
    nests = {tuple(t.axis.name for t in a.turns) for a in made.launches}
    assert nests == ({("T",), ("T", "V")} if wanted == "hidden" or rows <= 8192 else {("V", "T")})


@pytest.mark.parametrize("name", SPECS)
def test_a_swept_program_is_text_and_back(name: str) -> None:
    for extents in SIZES:
        made = swept(program(SPECS[name]), extents)
        assert parse_program(print_program(made)) == made
        assert made != replace(made, launches=made.launches[:-1])


def test_a_program_without_pieces_is_left_alone() -> None:
    @op()
    def plain(x: Tensor[F, M, K], w: Tensor[F, N, K]):
        return L.out(y=L.dot(x, w, over=K))

    what = program(plain)
    assert swept(what, SIZES[0]).launches == () and [k.name for k in what.kernels] == ["plain"]


# --- the host function ---


def assert_the_host_follows(made: Program, known: Extents, extents: Extents) -> None:
    """Run the lines of a host function: hold its launches, and what it says of lengths, to the loops."""
    found: list[tuple[str, dict[str, int]]] = []
    of = {a.kernel: [f"launch(({a.kernel!r}, dict(locals())))"] for a in made.order}
    asked = [a.name for a in loop_extents(made.order, known)]
    lines = [f"def call({', '.join(['launch', *asked])}):"]
    lines += ["    " + line for line in host_lines(made.order, of, known)]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    scope["call"](found.append, *(extents[name] for name in asked))
    for step, (kernel, local) in zip(steps(made.order, extents), found, strict=True):
        assert kernel == step.kernel
        for axis, piece in step.pieces:
            assert local[Turn(axis).index] == piece
            if fixed_extent(axis.within, known) is None:
                assert local[length_name(axis)] == length_of(axis, piece, extents)


HOSTS = [(name, extents) for name in SPECS for extents in SIZES]


@pytest.mark.parametrize("known", [(), ("S",), ("E", "S"), ("E", "S", "P")], ids="".join)
def test_the_host_launches_what_the_loops_say(known: tuple[str, ...]) -> None:
    for name, extents in HOSTS:
        made = swept(program(SPECS[name]), extents)
        static = {axis: extents[axis] for axis in known}
        assert_the_host_follows(made, static, extents)


@pytest.mark.parametrize("rows", [1, 8192, 8193, 16384, 20000])
@pytest.mark.parametrize("vocabulary", [3, 100, 128])
def test_the_host_launches_what_the_loops_of_a_gradient_say(rows: int, vocabulary: int) -> None:
    extents = {"T": rows, "D": 16, "V": vocabulary}
    made = swept(gradient("hidden", "weight"), extents)
    assert_the_host_follows(made, {"V": vocabulary, "D": 16}, extents)


def test_lengths_are_computed_only_where_pieces_differ() -> None:
    of = {name: [f"{name}()"] for name in ("one", "two")}
    eight = Launch("one", (Turn(E),))
    assert host_lines([eight], of, {"E": 16}) == ["for E_piece in range(8):", "    one()"]
    assert host_lines([eight], of, {"E": 17}) == [
        "for E_piece in range(8):",
        "    E_length = min(3, max(0, 17 - E_piece * 3))",
        "    one()",
    ]
    ends = [Launch("one", (Turn(P, Phase.FIRST),)), Launch("two", (Turn(P, Phase.LAST),))]
    assert host_lines(ends, of, {}) == [
        "P_pieces = (P + 2) // 3",
        "for P_piece in range(P_pieces):",
        "    P_length = min(3, P - P_piece * 3)",
        "    if P_piece == 0:",
        "        one()",
        "    if P_piece == P_pieces - 1:",
        "        two()",
    ]


# --- memory ---


def alive(made: Program) -> dict[str, set[int]]:
    """Return the outermost loops in which each workspace is named."""
    found: dict[str, set[int]] = {}
    loop, before = -1, None
    for launch in made.order:
        axis = launch.turns[0].axis if launch.turns else None
        loop += axis is None or axis != before
        before = axis
        kernel = next(k for k in made.kernels if k.name == launch.kernel)
        for d in kernel.params:
            if d.role is Role.WORK:
                found.setdefault(d.name, set()).add(loop)
    return found


GRADIENTS = [
    {"T": t, "D": d, "V": v} for t in (7, 8192, 8193, 50000) for d in (16, 512) for v in (3, 100, 5003)
]


@pytest.mark.parametrize("extents", [*GRADIENTS, *SIZES], ids=str)
def test_workspaces_that_are_needed_together_lie_apart(extents: dict[str, int]) -> None:
    what = gradient("hidden", "weight") if "T" in extents else program(head)
    made = swept(what, extents)
    starts, size = placed(made, extents)
    decls, loops = {d.name: d for d in workspaces(made)}, alive(made)
    assert starts.keys() == decls.keys() == loops.keys()
    ends = {
        n: starts[n] + math.prod(memory_shape(decls[n], extents)) * decls[n].type.dtype.bytes for n in decls
    }
    assert all(start % ALIGNED == 0 for start in starts.values()) and max(ends.values()) <= size
    for a in decls:
        for b in decls:
            between = range(min(loops[a]), max(loops[a]) + 1)
            if a < b and any(min(loops[b]) <= loop <= max(loops[b]) for loop in between):
                assert ends[a] <= starts[b] or ends[b] <= starts[a], (a, b)


def test_nests_share_the_memory_of_their_partial_results() -> None:
    for rows, sharing in ((8192, False), (20000, True)):
        extents = {"T": rows, "D": 512, "V": 5003}
        made = swept(gradient("hidden", "weight"), extents)
        sizes = [math.prod(memory_shape(d, extents)) * d.type.dtype.bytes for d in workspaces(made)]
        assert (placed(made, extents)[1] < sum(sizes)) == sharing


def test_memory_does_not_grow_with_the_number_of_rows() -> None:
    made = {t: swept(gradient("hidden", "weight"), {"T": t, "D": 64, "V": 1001}) for t in (8193, 100, 10**6)}
    sizes = {t: placed(p, {"T": t, "D": 64, "V": 1001})[1] for t, p in made.items()}
    assert sizes[8193] == sizes[10**6] > sizes[100]


def test_rows_of_a_workspace_of_pieces_are_whole_lines() -> None:
    extents = {"T": 100, "D": 24, "V": 1001}  # pieces of 126
    decls = {d.name: d for d in workspaces(swept(gradient("hidden", "weight"), extents))}
    assert memory_shape(decls["dz"], extents) == (100, 128) and 128 % LINE == 0
    assert memory_shape(decls["rows"], extents) == (100, 24)
    outs = {d.name: d for k in gradient("hidden").kernels for d in k.params if d.role is Role.OUT}
    assert memory_shape(outs["d_hidden"], extents) == (100, 24)
    for name in ("merged_3_0", "merged_3_1", "merged_3_2"):
        assert decls[name].type.dtype is DType.F32 and memory_shape(decls[name], extents) == (100, 24)


# --- cuts ---


def test_each_result_contracts_in_a_kernel_of_its_own() -> None:
    @op()
    def two(x: Tensor[F, M, S], w: Tensor[F, N, S], u: Tensor[F, N, S]):
        return L.out(y=L.dot(x, w, over=S), z=L.dot(x, u, over=S) * 2.0)

    for what in (program(two), program(head), gradient("hidden", "weight")):
        outs = [[d.name for d in k.params if d.role is Role.OUT] for k in what.kernels]
        assert all(len(names) <= 1 for names in outs)
        for kernel in what.kernels:
            assert sum(isinstance(let.node, Dot) for let in walk(kernel.body)) <= 1
    extents = SIZES[0]
    given = inputs(two, extents)
    assert_same(execute(swept(program(two), extents), given, extents), run(program(two), given).tensors)


def test_an_axis_of_pieces_is_not_combined_otherwise() -> None:
    @op()
    def reduced(x: Tensor[F, M, S], w: Tensor[F, N, S]):
        return L.out(y=L.dot(x, w, over=S), top=L.max(x.to(f32), over=S))

    @op()
    def streamed(x: Tensor[F, M, V], w: Tensor[F, N, V]):
        total = L.total()
        for v in L.stream(V):
            total.absorb(x[v].to(f32))
        return L.out(y=L.dot(x, w, over=V), total=total.value)

    for spec in (reduced, streamed):
        with pytest.raises(SpecError) as refused:
            program(spec)
        assert refused.value.code is Code.PIECES_COMBINED, spec.name


def test_two_contractions_of_one_result_are_kept_apart_or_refused() -> None:
    @op()
    def gated(x: Tensor[F, M, S], w: Tensor[F, N, S], u: Tensor[F, N, S]):
        return L.out(y=L.dot(x, w, over=S) * L.dot(x, u, over=S))

    @op()
    def kept(x: Tensor[F, M, S], w: Tensor[F, N, S], u: Tensor[F, N, S]):
        return L.out(y=L.keep(L.dot(x, w, over=S), "gate") * L.dot(x, u, over=S))

    extents = SIZES[0]
    given = inputs(kept, extents)
    want = run(program(gated), given)["y"]
    assert_same_bits(execute(swept(program(kept), extents), given, extents)["y"], want)
    with pytest.raises(UnsupportedError, match="two contractions") as refused:
        swept(program(gated), extents)
    assert "L.dot(x, w, over=S) * L.dot(x, u, over=S)" in refused.value.diagnostics[0].loc.source()


def test_what_loops_of_launches_cannot_compute_is_refused() -> None:
    @op()
    def chained(x: Tensor[F, M, S], w: Tensor[F, S, E], u: Tensor[F, N, E]):
        return L.out(y=L.dot(L.keep(L.dot(x, w, over=S).to(x.dtype), "first"), u, over=E))

    with pytest.raises(UnsupportedError, match="without S.piece"):
        swept(program(chained), SIZES[0])


def test_a_result_along_the_contracted_axis_has_a_kernel_of_its_own() -> None:
    @op()
    def stored(x: Tensor[F, M, S], w: Tensor[F, N, S]):
        return L.out(y=L.dot(x, w, over=S), twice=x.to(f32) * 2.0)

    for extents in SIZES:
        given = inputs(stored, extents)
        made = swept(program(stored), extents)
        twice = [k for k in made.kernels if any(d.name == "twice" for d in k.params)]
        assert len(twice) == 1 and not any(isinstance(let.node, Dot) for let in walk(twice[0].body))
        want = {name: run(program(stored), given)[name] for name in ("y", "twice")}
        assert_same(execute(made, given, extents), want, extents)
