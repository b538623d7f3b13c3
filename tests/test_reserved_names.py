"""Names of outputs, axes and variables of a spec change nothing but names, or are refused."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import CodeType

import numpy as np
import pytest

pytest.importorskip("triton")

from rlk.errors import Code, SpecError
from rlk.interp.run import run
from rlk.ir.nodes import Program
from rlk.lang import Axis, L, Op, Outputs, Scalar, Tensor, Tree, bf16, f32, op
from rlk.lang.reserved import RESERVED, is_free
from rlk.passes.pipeline import canonical
from rlk.runtime.reference import emit
from rlk.target.facts import target
from rlk.testing.bits import differing
from rlk.testing.cases import stored
from rlk.testing.generated import run_generated

SPEC = """
def spec(x: Tensor[bf16, T, N], w: Tensor[f32, N], eps: Scalar[f32]) -> Outputs:
    {local} = x.to(f32) * w
    rstd = L.rsqrt(L.sum({local} * {local}, over=N, tree=Tree.vector8) + eps)
    m = L.max({local}, over=N)
    return L.out({y}={local} * rstd * L.exp({local} - m), {m}=m, rstd=rstd)
"""
T = Axis("T", dynamic=True)
V = Axis("V", chunk=4)


@op()
def keeps(x: Tensor[f32, T]) -> Outputs:
    return L.out(y=L.keep(x + 1.0, "thread") * 2.0)


@op()
def tabled(x: Tensor[f32, T]) -> Outputs:
    return L.out(y=L.table(x + 1.0, "thread").at(L.pos(T)))


SLOTS = ("y", "m", "local", "row", "column")
NEUTRAL = dict(zip(SLOTS, ("y", "m_out", "z", "T", "N"), strict=True))
OWN = {"x", "w", "eps", "rstd", "spec", "L", "f32", "T", "N"}
SIMULATED = ("triton", "cute")  # TileLang's text is read too: nothing runs it here


@cache
def code(y: str, m: str, local: str) -> CodeType:
    return compile(SPEC.format(y=y, m=m, local=local), "spec_of_names.py", "exec")  # a file of an author


def spec(y: str, m: str, local: str, row: str, column: str) -> Op:
    given = {"T": Axis(row, dynamic=True), "N": Axis(column), "L": L, "Tree": Tree, "f32": f32, "bf16": bf16}
    scope = {"Tensor": Tensor, "Scalar": Scalar, "Outputs": Outputs, **given}
    exec(code(y, m, local), scope)
    return op()(scope["spec"])


def program(names: dict[str, str]) -> Program:
    made = spec(**names)
    return canonical(made.trace(made.default_variant()))


def wrong(names: dict[str, str], backend: str) -> int:
    """Return how many elements the source of a backend computes otherwise than the oracle."""
    rng, made, on = np.random.default_rng(0), program(names), target("sm_90a")
    values = {"x": rng.normal(size=(5, 24)), "w": rng.normal(size=24), "eps": 1e-3}
    given = stored(values, made)
    want = run(made, given, softmax=on.softmax)
    got = run_generated(made, given, on=on, backend=backend).tensors
    return sum(differing(got[n], want[n]) for n in (names["y"], names["m"], "rstd"))


def used() -> set[str]:
    """Return the identifiers of modules: all of kernels and host functions, and names of helpers."""
    found = set[str]()
    for backend, on in (("triton", "sm_90a"), ("cute", "sm_90a"), ("tilelang", "gfx942")):
        made, _, _ = emit(program(NEUTRAL), {"T": 5, "N": 24}, target(on), backend)
        for top in ast.parse(made.source).body:
            mine = not isinstance(top, ast.FunctionDef) or top.name.startswith(("spec", "call"))
            for node in ast.walk(top) if mine else [top]:
                match node:
                    case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                        found.add(name)
                    case ast.alias(name=name, asname=other):
                        found.add(other or name)
    return found


def groups() -> Iterator[dict[str, str]]:
    """Yield names for all slots at once: every identifier that may be given, and others that are suspect."""
    names = sorted({n for n in used() | {"i", "j", "k", "s", "t", "print", "id"} if n.islower()} - OWN)
    free = [n for n in names if is_free(n) and n not in (*NEUTRAL.values(), "spec_rows")]
    assert len(free) > 20
    for first in range(0, len(free), len(SLOTS)):
        part = free[first : first + len(SLOTS)]
        some = NEUTRAL | dict(zip(SLOTS, part, strict=False))
        yield some | {"column": some["column"].upper()}  # the letters that an index of it has


def test_names_that_are_not_refused_change_nothing() -> None:
    for names in (NEUTRAL, *groups()):
        for backend in SIMULATED:
            assert wrong(names, backend) == 0, (backend, names)


@pytest.mark.parametrize("slot", ("y", "row"))
def test_a_name_of_the_kernels_own_is_refused(slot: str) -> None:
    with pytest.raises(SpecError, match="c: generated kernels use this name") as caught:
        spec(**NEUTRAL | {slot: "c"}).trace(spec(**NEUTRAL).default_variant())
    assert caught.value.diagnostics[0].code is Code.RESERVED_NAME


def test_an_output_of_a_name_of_the_kernels_own_would_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: `c`, the loop counter of CuTe, is refused for a reason."""
    monkeypatch.setattr(import_module("rlk.lang.op"), "check_free", lambda *_: None)
    monkeypatch.setattr("rlk.lang.trace.check_free", lambda *_: None)
    with pytest.raises(AttributeError, match="'int' object has no attribute 'write'"):
        wrong(NEUTRAL | {"y": "c"}, "cute")


@pytest.mark.parametrize(("name", "backend"), [("block", "cute"), ("programs", "triton")])
def test_an_axis_of_a_name_of_the_kernels_own_would_break_it(
    name: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: numbers that kernels and their launches count by are refused for a reason."""
    assert not is_free(name)
    monkeypatch.setattr(import_module("rlk.lang.op"), "check_free", lambda *_: None)
    monkeypatch.setattr("rlk.lang.trace.check_free", lambda *_: None)
    assert wrong(NEUTRAL | {"row": name}, backend) > 0


@pytest.mark.parametrize(
    "name", ["tl", "cute", "kernels", "programs", "sum_over_n", "y_ptr", "shared", "_", "T", "new"]
)
def test_outputs_have_no_name_of_generated_kernels(name: str) -> None:
    made = spec(**NEUTRAL | {"y": name})
    with pytest.raises(SpecError, match=f"{name}: generated kernels use this name"):
        made.trace(made.default_variant())


def test_an_output_has_not_the_name_of_its_operators_function() -> None:
    made = spec(**NEUTRAL | {"y": "spec_rows"})
    with pytest.raises(SpecError, match="spec_rows: generated kernels use this name"):
        made.trace(made.default_variant())


@pytest.mark.parametrize("name", ["tl", "call", "sum_over_n"])
def test_an_operator_has_not_the_name_of_generated_kernels(name: str) -> None:
    @op(name=name)
    def made(x: Tensor[f32, T]) -> Outputs:
        return L.out(y=x + 1.0)

    with pytest.raises(SpecError, match=f"{name}: generated kernels use this name") as caught:
        made.trace(made.default_variant())
    assert is_free(f"my_{name}_op") and f"my_{name}_op" in str(caught.value)


@pytest.mark.parametrize("name", ["m", "max", "c", "sum_over_n"])
def test_payloads_have_no_name_of_a_state_or_of_generated_kernels(name: str) -> None:
    @op()
    def made(z: Tensor[f32, T, V]) -> Outputs:
        soft = L.softmax_sum()
        for v in L.stream(V):
            soft.absorb(z[v], **{name: z[v] * z[v]})
        return L.out(y=soft.mean(name))

    with pytest.raises(SpecError, match=f"{name}: generated kernels use this name"):
        made.trace(made.default_variant())


def test_reserved_names_and_keywords_are_not_free() -> None:
    assert not any(map(is_free, (*RESERVED, *keyword.kwlist)))


def test_kept_tiles_and_tables_have_no_name_of_generated_kernels() -> None:
    for each in (keeps, tabled):
        with pytest.raises(SpecError, match="thread: generated kernels use this name"):
            each.trace(each.default_variant())
