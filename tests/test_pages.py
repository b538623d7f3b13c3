"""Every public operator has a page, and what the page says of examples, edges and options is so."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rlk
from rlk.cli import main
from rlk.errors import Code, LaunchError, RlkError, UnsupportedError
from rlk.ir.tree import Tree
from rlk.ops.collective import OVER_RANKS
from rlk.pages.facts import Edge, facts, facts_of
from rlk.pages.order import orders, words
from rlk.pages.page import (
    SECTIONS,
    backends,
    differentiable_in,
    lowered,
    page,
    programs,
    public,
    shown,
    specs_of,
)
from rlk.pages.tried import page_failures
from rlk.runtime.registry import operators
from rlk.target.facts import Target


def run_example(name: str) -> None:
    torch.manual_seed(0)
    exec(compile(shown(name), f"the example of {name}", "exec"), {})


def calls(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield the arguments of every call of the operator itself that its example makes."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    fn = public()[name]

    def recorded(*args: Any, **options: Any) -> Any:
        found.append((args, options))
        return fn(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(rlk.ops, name, recorded)
        run_example(name)
    yield from found


@pytest.mark.parametrize("name", public())
def test_a_page_has_every_section_and_says_something_in_each(name: str) -> None:
    text = page(name, targets=())
    headed = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    assert tuple(headed[1::2]) == SECTIONS
    assert all(part.strip() for part in headed)
    assert ("$ python -m benchmarks." in text) == (name not in OVER_RANKS)


def test_facts_are_of_operators_that_there_are() -> None:
    assert facts().keys() == public().keys()


@pytest.mark.parametrize("name", public())
def test_examples_run_and_every_row_of_edges_is_true(name: str) -> None:
    record = facts_of(name)
    assert record.usage and record.edges
    assert page_failures(public()[name], record) == (1 + len(record.edges), [])


def test_rows_that_are_not_true_fail() -> None:
    record = facts_of("logp")
    for happens, code in (
        ("a number", "f(logits, ids).logp[1] == 1"),
        ("a number", "f(logits.double(), ids)"),
        ("raises", "f(logits, ids).logp[1] == 0"),
        ("the same bits", "same(f(logits, ids).logp, f(2 * logits, ids).logp)"),
    ):
        _, failures = page_failures(rlk.ops.logp, replace(record, edges=(Edge("a case", happens, code),)))
        assert len(failures) == 1 and failures[0].startswith("a case")


@pytest.mark.parametrize("name", public())
def test_a_dtype_that_is_not_listed_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for args, options in calls(name, monkeypatch):
        for at, x in enumerate(args):
            if isinstance(x, torch.Tensor):
                with pytest.raises(LaunchError):
                    public()[name](*args[:at], x.to(torch.complex64), *args[at + 1 :], **options)


@pytest.mark.parametrize("name", sorted(public().keys() - OVER_RANKS.keys() - {"sample"}))
def test_gradients_are_those_of_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all but `sample`, which detaches, and of sums over ranks, as tests/test_collective.py has them."""
    op, names = public()[name], inspect.signature(public()[name]).parameters
    for args, options in calls(name, monkeypatch):
        given = {
            p: x.detach() if isinstance(x, torch.Tensor) else x for p, x in zip(names, args, strict=False)
        }
        for p, x in given.items():
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                continue
            asked = {**given, p: x.clone().requires_grad_()}
            if p not in differentiable_in(name):
                with pytest.raises(RlkError, match="no gradient for"):
                    op(**asked, **options)
                continue
            made = op(**asked, **options)
            parts = (made,) if isinstance(made, torch.Tensor) else made
            result = next(part for part in parts if isinstance(part, torch.Tensor) and part.requires_grad)
            (slope,) = torch.autograd.grad(result.sum(), asked[p], create_graph=True)
            assert slope.shape == x.shape
            with pytest.raises(RlkError, match="second derivative"):
                slope.sum().backward()


# --- what is said ---


def strange_options(name: str, doc: str) -> set[str]:
    """Return what a docstring writes as `option=` that neither the operator nor its specs have."""
    others = "|".join({*public(), *(kind for kind in vars(rlk.ops) if kind[0].isupper())} - {name})
    flat = re.sub(r"\([^()=]*\)", "", doc)
    own = re.sub(rf"\b(?:{others})\([^)]*\)", "", flat)
    known = {
        *inspect.signature(public()[name]).parameters,
        *(f.name for s in specs_of(name) for f in s.formals),
    }
    return set(re.findall(r"(?<![\w.])([a-z_]\w*)=(?!=)", own)) - known


@pytest.mark.parametrize("name", public())
def test_a_docstring_names_every_option_and_no_other(name: str) -> None:
    doc = public()[name].__doc__ or ""
    assert not strange_options(name, doc)
    assert strange_options(name, f"{doc} colour=1") == {"colour"}
    assert [p for p in inspect.signature(public()[name]).parameters if not re.search(rf"\b{p}\b", doc)] == []


def test_orders_are_those_of_the_spec() -> None:
    (of_logp,) = orders(programs(operators()["logp"])["forward"])
    assert "8 pieces of ceil(V / 8), chunks of 256" in of_logp and "pieces merge pairwise" in of_logp
    leaf8 = orders(programs(operators()["matmul_leaf8"])["forward"])
    assert leaf8 != orders(programs(operators()["matmul"])["forward"])
    assert any(
        "one f32 accumulator in each piece" in text
        for text in orders(programs(operators()["varlen_attention"])["forward"])
    )
    assert not orders(programs(operators()["rope"])["forward"])
    assert words(Tree((1, 0))) != words(Tree((0, 1))) != words(Tree.halving)


def test_lowerings_are_asked_and_their_reasons_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(program: object, extents: object, on: Target, backend: str) -> None:
        if backend == "cute":
            raise UnsupportedError(
                Code.UNSUPPORTED, what="it", backend=backend, target=on.name, alternatives=""
            )

    spec = operators()["swiglu"]
    assert {why for *_, why in lowered(spec, ("sm_90a", "gfx942"))} == {""}
    monkeypatch.setattr("rlk.pages.page.emit", refuses)
    lowered.cache_clear()
    found = {(what, on, by): why for what, on, by, why in lowered(spec, ("sm_90a", "gfx942"))}
    lowered.cache_clear()
    assert found["gradient", "sm_90a", "cute"] == "it is not supported by cute on sm_90a"
    assert found["gradient", "sm_90a", "triton"] == found["forward", "gfx942", "tilelang"] == ""


def test_the_command_writes_a_page_for_each_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests above look at what is in them, and `make docs` writes all of them."""
    assert main(["docs", "-o", str(tmp_path), "logp"]) == 0
    assert (tmp_path / "logp.md").read_text() == page("logp")
    monkeypatch.setattr("rlk.cli.docs.page", lambda name: f"# {name}\n")
    monkeypatch.setattr("rlk.cli.docs.backends", lambda: backends(targets=()))
    assert main(["docs", "-o", str(tmp_path)]) == 0
    written = {path.stem: path.read_text() for path in tmp_path.glob("*.md")}
    assert written.keys() == {*public(), "backends", "index"}
    assert all(written[name] == f"# {name}\n" for name in public())
