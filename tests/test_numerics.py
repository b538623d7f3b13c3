"""An id names numerics and nothing else; a tier follows an unvalidated model wherever it flows."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from oracle_cases import GRADIENTS
from random_programs import random_program, random_tensors

from rlk.errors import Loc
from rlk.interp.run import run
from rlk.ir import computed, dotmodel, fold, philox, portable
from rlk.ir.nodes import Block, Let, Loop, Math, MathFn, MathModel, Program, Role, Stream
from rlk.ir.numerics import Tier, numerics_id, tier
from rlk.ir.text import parse_program, print_program
from rlk.ir.types import DType
from rlk.lang import Axis, L, Op, Outputs, Tensor, Tree, bf16, f32, i32, i64, op, u32
from rlk.passes.pipeline import canonical, specialize
from rlk.passes.rewrite import each, rewrite
from rlk.passes.walk import walk
from rlk.testing.bits import as_bits

T, N = Axis("T", dynamic=True), Axis("N")
V = Axis("V", chunk=16, split=2)
R = Axis("R")
Q = Axis("Q", chunk=16, piece=64, dynamic=True)
HOPPER, OTHER = "sm_90a", "gfx942"


def program_of(spec: Op, softmax: MathModel = MathModel.PORTABLE) -> Program:
    return specialize(canonical(spec.trace(spec.default_variant())), {}, softmax)


def fold_of(
    chunk: int = 16,
    split: int = 2,
    lanes: object = Tree.halving,
    tree: object = Tree.pairwise,
    last: Callable[[Any], Any] = L.tanh,
) -> Op:
    """Return an operator of every kind of numerics, each open to change."""
    axis = Axis("V", chunk=chunk, split=split)

    def fold(x: Any, y: Any) -> Outputs:
        soft = L.softmax_sum(lanes=lanes)
        for v in L.stream(axis):
            soft.absorb(x[v])
        return L.out(a=soft.lse(), b=last(L.sum(y, over=N, tree=tree)))

    fold.__annotations__ = {"x": Tensor[f32, T, axis], "y": Tensor[f32, T, N]}
    return op()(fold)


def id_of(spec: Op, softmax: MathModel = MathModel.PORTABLE, target: str = HOPPER) -> str:
    return numerics_id((program_of(spec, softmax),), target)


# --- ids ---

CHANGES: dict[str, Op] = {
    "a chunk": fold_of(chunk=32),
    "a split": fold_of(split=4),
    "the lanes' tree": fold_of(lanes=Tree.pairwise),
    "an explicit tree": fold_of(lanes=Tree((0, 2, 1, 3))),
    "a whole axis' tree": fold_of(tree=Tree.vector8),
    "a function": fold_of(last=L.expm1),
    "an operation": fold_of(last=lambda x: x + x),
    "a constant": fold_of(last=lambda x: L.tanh(x * 1.0000001)),
    "an order of operands": fold_of(last=lambda x: L.tanh(1.0 - x)),
}


def test_each_change_of_numerics_changes_the_id() -> None:
    ids = {name: id_of(spec) for name, spec in CHANGES.items()}
    ids["nothing"] = id_of(fold_of())
    ids["the softmax model"] = id_of(fold_of(), MathModel.SM90)
    assert len(set(ids.values())) == len(ids), ids


def test_an_id_is_sixteen_hex_digits_and_repeats() -> None:
    assert re.fullmatch("[0-9a-f]{16}", id_of(fold_of()))
    assert id_of(fold_of()) == id_of(fold_of())


@op()
def plain(x: Tensor[f32, T, N]) -> Outputs:
    return L.out(y=L.tanh(x * 2.0) - x)


def renamed() -> Op:
    """Return the same operator in other words: other locals, another line, something computed in vain."""

    @op()
    def plain(x: Tensor[f32, T, N]) -> Outputs:
        L.exp(x) + 17.0

        doubled = x * 2.0
        bent = L.tanh(doubled)
        return L.out(y=bent - x)

    return plain


def test_names_places_and_dead_values_are_no_numerics() -> None:
    assert id_of(plain) == id_of(renamed())
    assert print_program(program_of(plain)) == print_program(program_of(renamed()))
    assert plain.loc != renamed().loc


def test_hints_of_values_are_no_numerics() -> None:
    for make in GRADIENTS.values():
        program = make().backward()
        bare = replace(program, kernels=tuple(replace(k, body=stripped(k.body)) for k in program.kernels))
        assert numerics_id((program,), HOPPER) == numerics_id((bare,), HOPPER)
        assert bare == program


def stripped(block: Block) -> Block:
    def bare(let: Let) -> Let:
        node = replace(let.node, body=stripped(let.node.body)) if isinstance(let.node, Loop) else let.node
        return replace(let, node=node, name="other", loc=Loc("elsewhere.py", 1))

    return replace(block, lets=tuple(bare(let) for let in block.lets))


def test_a_text_keeps_its_id() -> None:
    program = program_of(fold_of(), MathModel.SM90)
    assert numerics_id((parse_program(print_program(program)),), HOPPER) == numerics_id((program,), HOPPER)


def test_ids_are_equal_where_programs_are() -> None:
    programs = {make().backward() for make in GRADIENTS.values()}
    ids = {numerics_id((program,), HOPPER) for program in programs}
    assert len(ids) == len(programs) > 10


def test_portable_numerics_are_of_every_target() -> None:
    assert id_of(fold_of(), target=HOPPER) == id_of(fold_of(), target=OTHER)
    program = program_of(fold_of(), MathModel.SM90)
    assert numerics_id((program,), HOPPER) != numerics_id((program,), OTHER)


@op()
def counted(x: Tensor[f32, T, V]) -> Outputs:
    """Folds over pieces that merge without any exp2."""
    best, total = L.argmax(), L.total()
    for v in L.stream(V):
        best.absorb(x[v])
        total.absorb(x[v])
    return L.out(best=best.index, total=total.value)


def test_the_softmax_model_is_no_numerics_of_other_folds() -> None:
    assert id_of(counted, MathModel.PORTABLE) == id_of(counted, MathModel.SM90)
    assert id_of(loops, MathModel.PORTABLE) != id_of(loops, MathModel.SM90)


def test_a_toolchain_enters_where_bits_are_pinned() -> None:
    program = program_of(fold_of(), MathModel.SM90)
    exact, pinned = ({numerics_id((program,), t, chain) for chain in ("a 1", "b 2")} for t in (HOPPER, OTHER))
    assert (len(exact), len(pinned)) == (1, 2)


def test_the_text_of_rlk_is_no_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are of what is computed: they read no file."""
    before = id_of(fold_of()), id_of(dotted), id_of(random_bits)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("an id read a file")

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(Path, "read_text", refused)
    monkeypatch.setattr("builtins.open", refused)
    assert (id_of(fold_of()), id_of(dotted), id_of(random_bits)) == before


K = Axis("K")
U = Axis("U")


@op()
def dotted(a: Tensor[bf16, T, K], b: Tensor[bf16, U, K]) -> Outputs:
    return L.out(y=L.dot(a, b, over=K))


@op()
def random_bits(x: Tensor[u32, T]) -> Outputs:
    first, *_ = L.philox((x, x, x, x), (x, x))
    return L.out(y=first)


def constants_of_portable() -> list[tuple[str, str, int | None]]:
    """Return every float constant of the portable functions: a function that uses it, its name, its index."""
    users = {"LOG": "log", "EXPM1": "expm1", "TANH": "tanh", "SIN": "sin", "COS": "cos", "K3": "k3"}
    users |= {"EXP": "exp", "EXP2": "exp2", "LOG2": "log2", "HALF_PI": "sin", "TWO_OVER_PI": "sin"}
    users |= {"TRIG_LIMIT": "cos", "MAGIC": "exp", "SMALLEST_NORMAL": "log", "LN2_HIGH": "exp"}
    users |= {"LN2_LOW": "exp", "LOG2E": "expm1", "LOG2E_HIGH": "log2", "LOG2E_LOW": "log2"}
    found: list[tuple[str, str, int | None]] = []
    for name, user in users.items():
        value = getattr(portable, name)
        places = range(len(value)) if isinstance(value, tuple) else (None,)
        found += [(user, name, place) for place in places]
    return found


@op()
def every_function(x: Tensor[f32, T, N]) -> Outputs:
    y = L.exp(x) + L.exp2(x) + L.log(x) + L.log2(x) + L.expm1(x) + L.log1p(x) + L.tanh(x) + L.sigmoid(x)
    return L.out(y=y + L.rsqrt(x) + L.sin(x) + L.cos(x) + L.k3(x))


def test_every_constant_of_the_portable_functions_is_numerics(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(every_function)
    before, seen = numerics_id((program,), HOPPER), set()
    assert not {fn.value for fn in MathFn} - set(portable.FUNCTIONS)
    for user, name, place in constants_of_portable():
        value = getattr(portable, name)
        if place is None:
            changed: Any = math.nextafter(struct.unpack("f", struct.pack("f", value))[0] * (1 + 2**-20), 9e9)
        else:
            changed = tuple(v * (1 + 2**-20) if i == place else v for i, v in enumerate(value))
        with monkeypatch.context() as patched:
            patched.setattr(portable, name, changed)
            seen.add(numerics_id((program,), HOPPER))
            assert portable.listing(user)
    assert before not in seen and len(seen) == len(constants_of_portable())


DEFINED: dict[str, tuple[Op, Any, str, Any]] = {
    "products of a group": (dotted, dotmodel, "GROUP", 32),
    "fraction bits of a term": (dotted, dotmodel, "FRACTION", 24),
    "the least exponent of a group": (dotted, dotmodel, "LEAST", -134),
    "the least exponent of a factor": (dotted, dotmodel, "FLOOR", {DType.BF16: -127}),
    "rounds of Philox": (random_bits, philox, "DEFINITION", {**philox.DEFINITION, "rounds": 7}),
    "the trees of a rule": (fold_of(), computed, "bind", lambda rule, width: Tree(tuple(range(0)))),
    "a merge of states": (fold_of(), computed, "merging", lambda *_: Block((), (), ())),
}


@pytest.mark.parametrize("what", DEFINED)
def test_what_a_program_names_is_numerics_of_those_that_name_it(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, module, name, changed = DEFINED[what]
    before, other = id_of(spec), id_of(plain)
    computed.tree_rule.cache_clear()
    monkeypatch.setattr(module, name, changed)
    assert id_of(spec) != before
    assert id_of(plain) == other  # control: an operator without it keeps its id
    computed.tree_rule.cache_clear()


def test_a_merge_with_another_constant_is_another_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    before = id_of(fold_of())
    fold.merging.cache_clear()
    monkeypatch.setattr(fold, "LOG2E", 1.4426951)
    assert id_of(fold_of()) != before
    fold.merging.cache_clear()


def softmax_over(rows: str, words: str, payload: str) -> Op:
    """Return one operator, its axes and its payload under any names."""
    t, v = Axis(rows, dynamic=rows == "T"), Axis(words, chunk=16, split=2)

    def mean(x: Any) -> Outputs:
        soft = L.softmax_sum()
        for at in L.stream(v):
            soft.absorb(x[at], **{payload: x[at]})
        L.check(soft.lse() < -1e30, "a row of nothing")
        return L.out(y=soft.mean(payload))

    mean.__annotations__ = {"x": Tensor[f32, t, v]}
    return op()(mean)


@op()
def unchecked(x: Tensor[f32, T, V]) -> Outputs:
    """The mean of softmax_over without its check, in other words."""
    fold_of_rows = L.softmax_sum()
    for step in L.stream(V):
        fold_of_rows.absorb(x[step], other=x[step])
    return L.out(y=fold_of_rows.mean("other"))


def test_names_of_axes_payloads_and_operators_and_checks_are_no_numerics() -> None:
    names = [("T", "V", "zbar"), ("Z", "A", "zbar"), ("V", "T", "mean_logit"), ("rows", "words", "b")]
    ids = {id_of(softmax_over(*each)) for each in names} | {id_of(unchecked)}
    assert len(ids) == 1
    assert id_of(fold_of()) not in ids  # control


def test_a_centred_sum_is_no_payload() -> None:
    """States of as many components that merge by another rule."""

    def joined_by(centred: bool) -> Op:
        def states(m: Any, s: Any, y: Any) -> Outputs:
            soft = L.softmax_states(R, m, s, y) if centred else L.softmax_states(R, m, s, y=y)
            return L.out(added=soft.centred if centred else soft.payload("y"))

        states.__annotations__ = dict.fromkeys("msy", Tensor[f32, R, T])
        return op()(states)

    one, other = (computed.computed(program_of(joined_by(centred))) for centred in (True, False))
    assert one["definitions"] != other["definitions"]
    assert id_of(joined_by(True)) != id_of(joined_by(False))


def test_an_id_names_each_result_and_each_input() -> None:
    """Swapped names are other bits under one name."""

    @op()
    def one(x: Tensor[f32, T], y: Tensor[f32, T]) -> Outputs:
        return L.out(a=x - y, b=x * y)

    @op()
    def swapped_results(x: Tensor[f32, T], y: Tensor[f32, T]) -> Outputs:
        return L.out(b=x - y, a=x * y)

    @op()
    def swapped_inputs(x: Tensor[f32, T], y: Tensor[f32, T]) -> Outputs:
        return L.out(a=y - x, b=y * x)

    assert len({id_of(one), id_of(swapped_results), id_of(swapped_inputs)}) == 3


# --- tiers ---


def pinned(program: Program, target: str = OTHER) -> set[str]:
    return {name for name, found in tier(program, target).items() if found is Tier.PINNED}


@op()
def beside(x: Tensor[f32, T, N]) -> Outputs:
    """Two outputs, one of them of the hardware's exp2."""
    fast = L.softmax_exp2(x)
    return L.out(a=x * 2.0, b=fast * x, e=L.sum(fast, over=N, tree=Tree.halving), d=L.tanh(x))


@op()
def loops(x: Tensor[f32, T, V], y: Tensor[f32, T, V]) -> Outputs:
    """Folds side by side in one loop: only sums of e depend on exp2."""
    soft, best, total = L.softmax_sum(), L.argmax(), L.total()
    for v in L.stream(V):
        soft.absorb(x[v], ybar=y[v])
        best.absorb(x[v])
        total.absorb(y[v])
    return L.out(most=soft.max, lse=soft.lse(), mean=soft.mean("ybar"), best=best.index, total=total.value)


@op()
def workspaces(x: Tensor[f32, Q], y: Tensor[f32, Q]) -> Outputs:
    """Pieces meet through workspaces, in a second kernel."""
    soft, total, other = L.softmax_sum(), L.total(), L.total()
    for q in L.stream(Q):
        soft.absorb(x[q])
        total.absorb(y[q])
        other.absorb(L.softmax_exp2(y[q]))
    return L.out(most=soft.max, lse=soft.lse(), total=total.value, other=other.value)


@op()
def joined(m: Tensor[f32, R, T], s: Tensor[f32, R, T], y: Tensor[f32, R, T]) -> Outputs:
    """States that were made elsewhere: the exp2 of their merge alone weighs their sums, and no maximum."""
    soft = L.softmax_states(R, m, s, y=y)
    total = L.sum(y, over=R, tree=Tree.halving)
    return L.out(most=soft.max, lse=soft.lse(), mean=soft.mean("y"), total=total)


@op()
def indices(x: Tensor[f32, T, N], table: Tensor[f32, N], ids: Tensor[i64, T]) -> Outputs:
    """Make the index of an element feed the result, as its value does."""
    chosen = L.softmax_exp2(L.max(x, over=N)).to(i32)
    return L.out(a=table.at(chosen), b=table.at(ids), e=L.where(chosen > 3, 1.0, 2.0))


@op()
def lengths(x: Tensor[f32, Q], y: Tensor[f32, T]) -> Outputs:
    """Make the length of a stream feed all that it carries."""
    short, whole = L.total(), L.total()
    for q in L.stream(replaced(Q), end=L.softmax_exp2(y).to(i32)):
        short.absorb(q.pos)
    for q in L.stream(replaced(Q), end=y.to(i32)):
        whole.absorb(q.pos)
    return L.out(brief=short.value, whole=whole.value)


def replaced(axis: Axis) -> Axis:
    return replace(axis, piece=None)


@op()
def emitted(x: Tensor[f32, T, V]) -> Outputs:
    """Stores inside a loop, beside what it carries."""
    total = L.total()
    for v in L.stream(V):
        L.emit(a=L.softmax_exp2(x[v]), b=x[v] * 2.0)
        total.absorb(x[v])
    return L.out(e=total.value)


TIERS: dict[str, tuple[Op, set[str]]] = {
    "elementwise and reductions": (beside, {"b", "e"}),
    "loops": (loops, {"lse", "mean"}),
    "workspaces": (workspaces, {"lse", "other"}),
    "merges": (joined, {"lse", "mean"}),
    "indices and conditions": (indices, {"a", "e"}),
    "bounds": (lengths, {"brief"}),
    "stores in loops": (emitted, {"a"}),
}


@pytest.mark.parametrize("case", TIERS)
def test_an_output_is_pinned_where_an_unvalidated_model_feeds_it(case: str) -> None:
    spec, want = TIERS[case]
    program = program_of(spec, MathModel.SM90)
    assert pinned(program) == want
    assert set(tier(program, OTHER)) == {
        d.name for k in program.kernels for d in k.params if d.role is Role.OUT
    }
    assert pinned(program, HOPPER) == set()
    assert pinned(program_of(spec), OTHER) == set()


def test_the_cases_reach_what_they_name() -> None:
    assert len(program_of(workspaces).kernels) == 2
    assert any(isinstance(let.node, Loop) for let in walk(program_of(loops).kernels[0].body))
    traced = emitted.trace(emitted.default_variant())
    assert any(isinstance(let.node, Stream) for let in walk(traced.kernels[0].body))


def with_exp2(program: Program, change: Callable[[Any, Any, Math], int]) -> Program:
    """Return the program with every exp2 replaced."""

    def rule(replay: Any, let: Let) -> bool:
        if not isinstance(let.node, Math) or let.node.fn is not MathFn.EXP2:
            return False
        replay.renamed[let.value] = change(replay.builder, replay[let.node.x], let.node)
        return True

    return each(program, lambda kernel: rewrite(kernel, rule))


def test_an_output_that_a_model_changes_is_pinned() -> None:
    """The flow of bits, observed by disturbing them, never leaves what the tier follows."""
    changed = exact = 0
    for seed in range(100):
        program = random_program(seed, 60)
        other = with_exp2(program, lambda b, x, node: b.math(node.fn, x, MathModel.SM90))
        disturbed = with_exp2(program, lambda b, x, node: b.mul(b.math(node.fn, x, node.model), b.f32(1.25)))
        tensors = random_tensors(seed, 3, 8)
        one, two = run(program, tensors), run(disturbed, tensors)
        differ = {n for n in one.tensors if (as_bits(one[n]) != as_bits(two[n])).any()}
        assert differ <= pinned(other), seed
        changed += len(differ)
        exact += len(one.tensors) - len(pinned(other))
        assert pinned(program) == set()
    assert changed > 15 and exact > 100, (changed, exact)


def test_shipped_operators_are_exact_on_hopper_and_elsewhere_in_portable_math() -> None:
    for make in GRADIENTS.values():
        for program in (make().forward(), make().backward()):
            assert pinned(specialize(program, {}, MathModel.SM90), HOPPER) == set()
            assert pinned(specialize(program, {}, MathModel.PORTABLE), OTHER) == set()


def test_an_unbound_softmax_is_pinned_everywhere() -> None:
    assert pinned(canonical(loops.trace(loops.default_variant())), HOPPER) == {"lse", "mean"}
