"""Laws of names in generated text: the author's where there are some, else the IR's or roles; no numerics."""

from __future__ import annotations

import re

import pytest

from rlk.ir.nodes import Program
from rlk.ir.numerics import numerics_id
from rlk.ir.text import parse_program, print_program
from rlk.lang import Axis, L, Op, Tensor, Variant, bf16, f32, op
from rlk.lower.common.names import Names, named
from rlk.passes.pipeline import canonical
from rlk.passes.walk import walk
from rlk.runtime.reference import reference_variant
from rlk.runtime.registry import operators

T = Axis("T", dynamic=True)
V = Axis("V", chunk=16, split=4)


@op()
def shifted(x: Tensor[bf16, T, V], shift: Tensor[f32, T], list: Tensor[f32, T]):  # a builtin's name
    """Named values, an expression without names, a fold, and a name in a dict."""
    hit = L.total()
    kept = {}
    for v in L.stream(V):
        kept["moved"] = x[v].to(f32) + shift
        square = kept["moved"] * kept["moved"]
        hit.absorb(square * (2.0 + shift))
    return L.out(y=hit.value - list)


def traced(spec: Op) -> Program:
    return canonical(spec.trace(Variant.of({}, frozenset(), {})))


def names(program: Program) -> list[str]:
    """Return the names of a program's values as lowerings see them."""
    return [let.name for kernel in program.kernels for let in walk(named(kernel).body)]


def test_a_value_has_the_name_of_the_authors_variable() -> None:
    found = names(traced(shifted))
    assert {"moved", "square", "hit"} <= set(found)


def test_a_value_without_a_name_is_called_after_its_operands() -> None:
    found = names(traced(shifted))
    assert {"x_f32", "shift_plus_2"} <= set(found)


@pytest.mark.parametrize("name", ["varlen_attention", "policy_loss", "linear_logp", "rope"])
def test_every_elementwise_value_has_a_name_that_says_more_than_its_function(name: str) -> None:
    program = canonical(operators()[name].trace(reference_variant(operators()[name])))
    for kernel in program.kernels:
        for let in walk(named(kernel).body):
            if type(let.node).__name__ in ("Map1", "Map2", "Math", "Fma", "Select", "Cast", "Bits"):
                assert re.fullmatch(r"[A-Za-z]\w*", let.name), let
                assert not re.fullmatch(r"(product|difference|selected|fma_sum)(_\d+)?", let.name), let


def test_attention_has_the_names_of_the_papers() -> None:
    spec = operators()["varlen_attention"]
    program = canonical(spec.trace(reference_variant(spec)))
    wanted = {"s", "s_masked", "m_chunk", "m_new", "alpha", "p", "p_bf16", "l_chunk", "l_new", "acc_o_new"}
    assert wanted <= set(names(program))


def test_names_change_no_numerics() -> None:
    program = traced(shifted)
    bare = parse_program(print_program(program))  # text has no names
    assert not {"moved", "square", "hit"} & set(names(bare))
    assert numerics_id((program,), "sm_90a") == numerics_id((bare,), "sm_90a")


def test_names_are_the_same_in_every_trace() -> None:
    again = Op(**{f: getattr(shifted, f) for f in ("name", "fn", "formals", "saves", "doc", "loc")})
    assert names(traced(again)) == names(traced(shifted))


def test_naming_changes_nothing_but_names() -> None:
    for kernel in traced(shifted).kernels:
        assert named(kernel) == kernel  # names do not count in comparisons
        before, after = list(walk(kernel.body)), list(walk(named(kernel).body))
        assert [let.value for let in before] == [let.value for let in after]
        assert all(b.name in ("", a.name) for b, a in zip(before, after, strict=True))


def test_a_name_hides_no_builtin_no_keyword_and_no_tensor() -> None:
    given = Names(taken={"x"}, tensors={"x"})
    made = [given.fresh(hint) for hint in ("list", "lambda", "x", "x", "8 rows", "sum")]
    assert made == ["list_value", "_lambda", "x_value", "x_value_2", "_8_rows", "total"]
