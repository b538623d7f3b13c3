"""Trees, text, types and the verifier of the tile IR keep their laws, and each law can fail."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_cases import CALLS, GRADIENTS, variant
from random_programs import K, X, random_program

from rlk.errors import Code, Loc, SpecError
from rlk.interp import floats
from rlk.ir.build import Builder
from rlk.ir.dims import Axis, Ragged
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import (
    Bits,
    Block,
    Check,
    Combine,
    Decl,
    Fn1,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    MathModel,
    Merge,
    Node,
    Param,
    Pos,
    Program,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    const_bits,
    const_value,
    operands,
)
from rlk.ir.text import parse_program, print_program
from rlk.ir.tree import Rule, Tree, bind, padded
from rlk.ir.types import NONE, DType, TileType, TupleType
from rlk.ir.verify import verify
from rlk.passes.pipeline import specialize
from rlk.passes.walk import walk
from rlk.testing.bits import assert_same_bits, differing

WIDTHS = [1 << n for n in range(13)]


def terms(seed: int, count: int) -> np.ndarray:
    """Draw floats whose sum depends on its order, some of them -0.0."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=count) * 2.0 ** rng.integers(-8, 9, count)).astype(np.float32)
    x[rng.random(count) < 0.1] = -0.0
    return x


# --- trees ---


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("width", WIDTHS)
def test_a_bound_rule_is_a_permutation_of_the_index_bits(rule: Rule, width: int) -> None:
    assert sorted(bind(rule, width).order) == list(range(width.bit_length() - 1))


def test_rules_differ_where_they_can() -> None:
    assert bind(Rule.HALVING, 4) != bind(Rule.PAIRWISE, 4)
    assert bind(Rule.VECTOR8, 8) == bind(Rule.HALVING, 8)
    assert len({bind(rule, 16) for rule in Rule}) == 3


def last_pair(x: np.ndarray, order: tuple[int, ...], index: int = 0) -> np.float32:
    """Sum top down: the bit that is paired last splits the terms into the operands of the last addition."""
    if not order:
        return x[index]
    bit = 1 << order[-1]
    return np.float32(last_pair(x, order[:-1], index) + last_pair(x, order[:-1], index | bit))


@given(st.permutations(range(6)), st.integers(0, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_any_tree_is_its_recursive_definition(bits: list[int], n: int, seed: int) -> None:
    order = tuple(b for b in bits if b < n)
    x = terms(seed, 1 << n)
    assert_same_bits(floats.tree_sum(x, 0, Tree(order)), last_pair(x, order))


def halving(x: np.ndarray) -> np.ndarray:
    while len(x) > 1:
        x = x[: len(x) // 2] + x[len(x) // 2 :]
    return x[0]


def pairwise(x: np.ndarray) -> np.ndarray:
    return x[0] if len(x) == 1 else pairwise(x[0::2] + x[1::2])


def vector8(x: np.ndarray) -> np.ndarray:
    return halving(np.array([halving(v) for v in np.split(x, max(1, len(x) // 8))]))


@pytest.mark.parametrize("rule, definition", list(zip(Rule, (halving, pairwise, vector8))))
@pytest.mark.parametrize("width", WIDTHS)
def test_a_rule_is_its_definition(rule: Rule, definition: Callable[..., np.ndarray], width: int) -> None:
    x = terms(width, width)
    assert_same_bits(floats.tree_sum(x, 0, rule), definition(x))


def test_another_order_has_other_bits() -> None:
    x = terms(1, 64 * 256).reshape(256, 64)
    sums = [floats.tree_sum(x, 1, rule) for rule in Rule]
    assert all(differing(a, b) > 50 for a, b in itertools.combinations(sums, 2))


@pytest.mark.parametrize("rule", list(Rule))
@given(st.integers(1, 70), st.integers(0, 3), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_padding_with_negative_zero_changes_nothing(rule: Rule, count: int, wider: int, seed: int) -> None:
    x, width = terms(seed, count), padded(count)
    least = floats.tree_sum(floats.pad(x, 0, width, -0.0), 0, rule)
    assert_same_bits(floats.tree_sum(floats.pad(x, 0, width << wider, -0.0), 0, rule), least)


@pytest.mark.parametrize("rule", list(Rule))
def test_padding_with_positive_zero_is_seen(rule: Rule) -> None:
    x = np.full(3, -0.0, np.float32)
    assert np.signbit(floats.tree_sum(floats.pad(x, 0, 4, -0.0), 0, rule))
    assert not np.signbit(floats.tree_sum(floats.pad(x, 0, 4, 0.0), 0, rule))


def test_a_tree_must_fit() -> None:
    for code, make in (
        (Code.TREE_NOT_A_PERMUTATION, lambda: Tree((0, 2))),
        (Code.TREE_WIDTH, lambda: bind(Rule.HALVING, 12)),
        (Code.TREE_WIDTH, lambda: bind(Tree((0, 1)), 8)),
    ):
        with pytest.raises(SpecError) as caught:
            make()
        assert caught.value.code is code
    assert bind(Tree((0, 2, 1)), 8) == Tree((0, 2, 1))


# --- constants ---


@given(st.integers(-(2**31), 2**31 - 1))
def test_integer_constants_come_back(value: int) -> None:
    assert const_value(const_bits(value, DType.I32), DType.I32) == value
    assert const_value(const_bits(value << 20, DType.I64), DType.I64) == value << 20
    assert const_value(const_bits(value, DType.U32), DType.U32) == value % 2**32


@given(st.floats(width=32, allow_nan=False))
def test_float_constants_come_back(value: float) -> None:
    back = const_value(const_bits(value, DType.F32), DType.F32)
    assert_same_bits(np.float32(back), np.float32(value))


# --- equality ---


def test_names_and_places_take_no_part_in_equality() -> None:
    node = Pos(X)
    plain = Let(0, node, TileType(DType.I32, (X,)))
    named = Let(0, node, TileType(DType.I32, (X,)), "x", Loc("spec.py", 7))
    assert plain == named and hash(plain) == hash(named)
    for other in (
        replace(plain, value=1),
        replace(plain, node=Pos(K)),
        replace(plain, type=TileType(DType.I64)),
    ):
        assert plain != other


def test_the_length_of_segments_is_known_at_run_time_alone() -> None:
    """No cache key may hold it: each batch of sequences has another."""
    made = Ragged("S", over=X, chunk=16)
    assert made == Axis("S", chunk=16, over="X", dynamic=True)
    assert made != replace(made, dynamic=False)


def test_numerics_of_an_axis_take_part_in_equality() -> None:
    base = Axis("V", chunk=256, split=8)
    changed = (replace(base, chunk=128), replace(base, split=4), base.pieces)
    sized = Axis("V", chunk=256, piece=512)
    assert len({base, *changed, sized, replace(sized, leaf="piece")}) == 6
    assert all(axis.whole == base for axis in (base.pieces, base.lanes, base))


# --- text ---


@cache
def shipped() -> dict[str, Program]:
    """Return every operator and gradient of the cases, as traced, canonical and specialised."""
    found: dict[str, Program] = {}
    for name, make in CALLS.items():
        call = make()
        found[name] = call.program
        found[f"{name}, specialised"] = specialize(call.program, static(call.extents), MathModel.SM90)
    for name, make_gradient in GRADIENTS.items():
        case = make_gradient()
        found[f"{name}, traced"] = case.op.trace(variant(case.op, case.present, case.statics))
        backward = case.backward()
        found[f"{name}, backward"] = backward
        found[f"{name}, backward specialised"] = specialize(
            backward, static(case.extents), MathModel.PORTABLE
        )
    return found


def static(extents: dict[str, int]) -> dict[str, int]:
    return {name: n for name, n in extents.items() if name not in ("T", "S", "B", "P")}


def test_shipped_programs_are_printed_and_read_back() -> None:
    for name, program in shipped().items():
        for places in (False, True):
            assert parse_program(print_program(program, places=places)) == program, name


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_are_printed_and_read_back(seed: int) -> None:
    program = random_program(seed)
    verify(program)
    assert parse_program(print_program(program)) == program


def test_different_programs_have_different_texts() -> None:
    texts = [print_program(random_program(seed)) for seed in range(60)]
    assert len(set(texts)) == len(texts)


def test_strings_and_options_of_axes_survive() -> None:
    ragged = Ragged("S", X, chunk=8, piece=32)
    b = Builder(params={"x": Decl("x", TileType(DType.BOOL, (ragged,)), Role.IN)})
    bad = b.let(Load("x", (b.let(Pos(ragged)),)))
    for what in ("it can't be", 'a "quoted" \\x20 word', "  # no comment", "new\nline", ""):
        b.let(Check(bad, what))
    program = Program("p", (Kernel("p", tuple(b.params.values()), b.body()),))
    assert parse_program(print_program(program)) == program


@pytest.mark.parametrize("blank", [False, True], ids=["dense", "with blank lines"])
def test_a_parse_error_names_its_line(blank: bool) -> None:
    lines = print_program(random_program(3)).splitlines()
    for at in range(len(lines)):
        broken = [*lines[:at], "??? !!!", *lines[at + 1 :]]
        with pytest.raises(SpecError) as caught:
            parse_program(("\n\n" if blank else "\n").join(broken))
        assert caught.value.code is Code.PARSE
        line = 2 * at + 1 if blank else at + 1
        assert str(caught.value).startswith(f"cannot parse line {line}: '??? !!!'"), at


def test_a_cut_text_is_refused() -> None:
    lines = print_program(random_program(4)).splitlines()
    for end in range(len(lines)):
        with pytest.raises(SpecError) as caught:
            parse_program("\n".join(lines[:end]))
        assert caught.value.code is Code.PARSE


# --- the verifier ---


Y = Decl("y", TileType(DType.F32, (X,)), Role.OUT)
A = Decl("a", TileType(DType.F32, (X, K)), Role.IN)
F, I = TileType(DType.F32, (X,)), TileType(DType.I32, (X,))
PLACE = Loc("spec.py", 3)


def kernel(*lets: Let) -> Program:
    """Return a program with (0) the position, (1) the column, (2) the tile, (3) its sum, and more lets."""
    two = TileType(DType.F32, (X, K))
    start = (
        Let(0, Pos(X), I),
        Let(1, Pos(K), TileType(DType.I32, (K,))),
        Let(2, Load("a", (0, 1)), two),
        Let(3, Reduce(Combine.ADD, 2, K, Rule.HALVING), F),
    )
    placed = tuple(replace(let, loc=PLACE) for let in lets)
    return Program("p", (Kernel("p", (A, Y), Block((), start + placed)),))


def store(value: int) -> Let:
    return Let(9, Store("y", (0,), value), NONE)


def let(value: int, node: Node, type: object = F) -> Let:
    return Let(value, node, type)  # type: ignore[arg-type]


def looped(body: Block) -> Let:
    return let(8, Loop(K, 4, 5, (3,), (F,), body), TupleType((F,)))


INT = TileType(DType.I32)
BOUNDS = (let(4, Pos(X), I), let(5, Pos(X), I))
WRONG: dict[str, tuple[Code, Program]] = {
    "an undefined value": (Code.VALUE_UNDEFINED, kernel(store(7))),
    "an undefined result": (Code.VALUE_UNDEFINED, kernel(*BOUNDS, looped(Block((6, 7), (), (77,))))),
    "a value of a loop's body after it": (
        Code.VALUE_UNDEFINED,
        kernel(*BOUNDS, looped(Block((6, 7), (let(10, Pos(X), I),), (7,))), store(10)),
    ),
    "a second definition": (Code.VALUE_TWICE, kernel(let(3, Pos(X), I), store(2))),
    "a wrong type": (Code.TYPE_WRONG, kernel(let(4, Pos(X), F))),
    "a tuple as a tile": (
        Code.TYPE_WRONG,
        kernel(*BOUNDS, looped(Block((6, 7), (), (7,))), let(10, Select(8, 3, 3))),
    ),
    "a result that is not there": (
        Code.RESULT_INDEX,
        kernel(*BOUNDS, looped(Block((6, 7), (), (7,))), let(10, Result(8, 1))),
    ),
    "a loop that yields another dtype": (
        Code.LOOP_TYPES,
        kernel(*BOUNDS, looped(Block((6, 7), (), (6,)))),
    ),
    "a loop that yields too little": (Code.LOOP_TYPES, kernel(*BOUNDS, looped(Block((6, 7), (), ())))),
    "a store to an input": (Code.STORE_TARGET, kernel(let(4, Store("a", (0, 1), 2), NONE))),
    "a store to nowhere": (Code.PARAM_UNKNOWN, kernel(let(4, Store("z", (0,), 3), NONE))),
    "a load from nowhere": (Code.PARAM_UNKNOWN, kernel(let(4, Load("z", (0,))))),
    "an unknown scalar": (Code.PARAM_UNKNOWN, kernel(let(4, Param("z"), TileType(DType.F32)))),
    "a merge of nothing": (
        Code.MERGE_NEEDS_STATES,
        kernel(let(4, Merge(Monoid(Kind.TOTAL), (), X.pieces, Rule.PAIRWISE), TupleType((F,)))),
    ),
    "too few indices": (Code.INDEX_COUNT, kernel(let(4, Load("a", (0,))))),
    "a float index": (Code.DTYPE_WANTED, kernel(let(4, Load("a", (3, 1))))),
    "a guard that is no condition": (Code.DTYPE_WANTED, kernel(let(4, Load("a", (0, 1), 0)))),
    "a fill of another dtype": (Code.DTYPE_MIX, kernel(let(4, Load("a", (0, 1), None, 0)))),
    "a sum without an order": (Code.FLOAT_SUM_NEEDS_TREE, kernel(let(4, Reduce(Combine.ADD, 2, K)))),
    "a sum over another axis": (Code.NO_SUCH_AXIS, kernel(let(4, Reduce(Combine.MAX, 3, K)))),
    "bits of another width": (Code.DTYPE_WANTED, kernel(let(4, Bits(3, DType.I64)))),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_verifier_finds(case: str) -> None:
    code, program = WRONG[case]
    with pytest.raises(SpecError) as caught:
        verify(program)
    found = caught.value.diagnostics
    assert code in {d.code for d in found}, [d.code for d in found]
    assert all(d.loc == PLACE for d in found)


def test_the_verifier_passes_their_neighbours() -> None:
    verify(kernel(store(3)))
    verify(kernel(*BOUNDS, looped(Block((6, 7), (), (7,))), let(10, Result(8, 0)), store(10)))
    for program in shipped().values():
        verify(program)


def test_all_findings_are_raised_at_once() -> None:
    first, second = let(4, Pos(X), F), let(5, Load("z", (0,)))
    with pytest.raises(SpecError) as caught:
        verify(kernel(first, second, store(77)))
    codes = [d.code for d in caught.value.diagnostics]
    assert codes == [Code.TYPE_WRONG, Code.PARAM_UNKNOWN, Code.VALUE_UNDEFINED]


def test_operands_are_all_values_that_a_node_names() -> None:
    for seed in range(20):
        program = random_program(seed)
        lines = {line.split(":")[0].strip(): line for line in print_program(program).splitlines()}
        for made in walk(program.kernels[0].body):
            _, node = lines[f"%{made.value}"].split(" = ", 1)
            assert {int(v) for v in re.findall(r"%(\d+)", node)} == set(operands(made.node)), node


def test_functions_are_refused_on_dtypes_without_them() -> None:
    b = Builder()
    half = b.fresh(TileType(DType.BF16, (X,)))
    f, i, t = b.f32(1.0), b.i32(1), b.const(True, DType.BOOL)
    u = b.const(1, DType.U32)
    wrong: list[Callable[[], int]] = [
        lambda: b.add(half, half), lambda: b.add(t, t), lambda: b.map2(Fn2.MOD, f, f),
        lambda: b.map2(Fn2.AND, f, f), lambda: b.map2(Fn2.MULHI, i, i), lambda: b.map1(Fn1.NOT, f),
        lambda: b.map1(Fn1.SQRT, i), lambda: b.map1(Fn1.NEG, t), lambda: b.select(i, f, f),
        lambda: b.reduce(Combine.MAX, half, X), lambda: b.let(Check(i, "")),
    ]  # fmt: skip
    for make in wrong:
        with pytest.raises(SpecError) as caught:
            make()
        assert caught.value.code is Code.DTYPE_WANTED
    for make in (lambda: b.add(f, f), lambda: b.map2(Fn2.MULHI, u, u), lambda: b.map1(Fn1.NOT, t)):
        make()
