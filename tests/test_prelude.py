"""Preludes: functions that generated modules carry are files of code, and come with what they call."""

from __future__ import annotations

import ast
import builtins
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from lints import ROOT

from rlk.digest import digest_sources
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.prelude import Helpers, PreludeFunction, prelude, sources
from rlk.lower.cute.functions import functions as cute
from rlk.lower.cute.functions import portable
from rlk.lower.tilelang.functions import FRAME
from rlk.lower.tilelang.functions import functions as tilelang
from rlk.lower.triton.functions import functions as triton

PRELUDES = {
    "triton": triton(),
    "cute": cute(),
    "tilelang/gfx942": tilelang("amd"),
    "tilelang/sm90a": tilelang("nvidia"),
}
GENERATED = sorted((ROOT / "generated").rglob("*.py"))
UNDECORATED = frozenset(FRAME)


def of_module(path: Path) -> Mapping[str, PreludeFunction]:
    """Return the prelude of a checked-in kernel's backend and target."""
    target, backend = path.parts[-3:-1]
    return PRELUDES.get(backend) or PRELUDES[f"{backend}/{target}"]


def bound(tree: ast.AST) -> set[str]:
    """Return the names that a syntax tree binds anywhere."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.split(".")[0])
    return found


def read(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def unbound(source: str) -> set[str]:
    """Return the names that the functions of a module read and nothing binds."""
    tree = ast.parse(source)
    outside = set().union(*(bound(n) if not _defines(n) else {n.name} for n in tree.body))
    return set().union(*(read(n) - bound(n) for n in tree.body)) - outside - set(dir(builtins))


def unused(source: str) -> set[str]:
    """Return the helper functions of a module that no kernel reaches."""
    tree = ast.parse(source)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    helpers = functions.keys() & set().union(*(names for names in map(set, PRELUDES.values()))) | {
        name for name in functions if name.startswith("portable_")
    }
    reached, waiting = set(), [n for n in tree.body if getattr(n, "name", "") not in helpers]
    while waiting:
        for name in read(waiting.pop()) & functions.keys() - reached:
            reached.add(name)
            waiting.append(functions[name])
    return helpers - reached - UNDECORATED


def _defines(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


def functions_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each top-level function."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, "\n".join([*lines[first - 1 : node.end_lineno], ""])


# --- generated modules ---


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_module_has_every_function_that_it_calls_and_no_other(path: Path) -> None:
    source = path.read_text()
    assert not unbound(source)
    assert not unused(source)


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_module_carries_prelude_functions_as_their_files_have_them(path: Path) -> None:
    known = of_module(path)
    carried = {name: text for name, text in functions_of(path.read_text()) if name in known}
    assert carried == {name: known[name].source for name in carried}


def test_a_function_that_is_missing_or_not_called_is_found() -> None:
    source = next(p for p in GENERATED if p.parts[-2] == "cute").read_text()
    kept = dict(functions_of(source))
    assert "select" in kept and not unbound(source)
    assert unbound(source.replace(kept["select"], "")) == {"select"}
    assert unused(source + "\n\n" + cute()["philox"].source) == {"philox"}


def test_some_module_of_each_backend_carries_prelude_functions() -> None:
    for backend in ("triton", "cute", "tilelang"):
        paths = [p for p in GENERATED if p.parts[-2] == backend]
        assert any(name in of_module(p) for p in paths for name, _ in functions_of(p.read_text()))


# --- preludes ---


@pytest.mark.parametrize("name", ["triton", "cute", "tilelang"])
def test_preludes_read_nothing_that_modules_do_not_bind(name: str) -> None:
    """Imports and constants of a prelude are there for the reader: a module has those of its template."""
    head = (ROOT / "templates" / name / "module.py.j2").read_text().partition('"""\n\n')[2].partition("{%")[0]
    for files in PRELUDES if name not in PRELUDES else [name]:
        if files.startswith(name):
            texts = "\n\n".join(each.source for each in PRELUDES[files].values())
            assert not unbound(head + texts)
            assert unbound(texts)


def test_a_device_function_has_the_decorator_of_its_compiler() -> None:
    for name, known in PRELUDES.items():
        for each in known.values():
            (node,) = ast.parse(each.source).body
            assert isinstance(node, ast.FunctionDef) and node.name == each.name
            decorators = [ast.unparse(d) for d in node.decorator_list]
            if name == "triton":
                assert decorators == ["triton.jit"]
            elif name == "cute":
                assert decorators in ([], ["cute.jit"])
            else:
                assert decorators == ([] if each.name in FRAME else ["tl.macro"])


def test_vendors_differ_in_the_functions_of_their_own_files_alone() -> None:
    amd, nvidia = tilelang("amd"), tilelang("nvidia")
    assert list(amd) == list(nvidia)
    assert {n for n in amd if amd[n].source != nvidia[n].source} == {"larger", "smaller"}


# --- what a function calls ---

FILE = '''"""A prelude."""

import compiler


def low(x):
    return x


@compiler.jit
def high(x, *, mid):
    # low(x) in a comment
    name = "low(x)"
    return mid(x) + compiler.low(x) + len(name)


def top(x, low=None):
    return pick(high, x)


def pick(f, x):
    return f(x, mid=low)
'''


def test_dependencies_are_names_of_the_syntax_tree(tmp_path: Path) -> None:
    """No comment, literal, attribute or local of a function's name is a call of it."""
    file = tmp_path / "prelude.py"
    file.write_text(FILE)
    found = prelude(file)
    assert {name: each.calls for name, each in found.items()} == {
        "low": (),
        "high": (),
        "top": ("high", "pick"),
        "pick": ("low",),
    }
    assert found["high"].source.startswith("@compiler.jit\ndef high(") and "# low(x)" in found["high"].source


def test_functions_come_after_those_that_they_call(tmp_path: Path) -> None:
    file = tmp_path / "prelude.py"
    file.write_text(FILE)
    helpers = Helpers(prelude(file))
    assert helpers.call("top", "x", "3") == "top(x, 3)"
    assert list(helpers.found) == ["high", "low", "pick", "top"]
    assert sources("triton", helpers.found.values())[0] == prelude(file)["high"].source


def test_a_portable_function_brings_what_its_lines_call() -> None:
    helpers = Helpers(cute())
    helpers.add(portable("exp2"))
    assert {"mul", "fma", "portable_exp2"} <= helpers.found.keys()
    head = "Float32 = Int32 = NEAREST = cute = cutlass = None\n"
    assert not unbound(head + "\n".join(sources("cute", helpers.found.values())))


def test_generated_functions_of_a_name_are_shared_if_they_are_equal() -> None:
    helpers = Helpers(cute())

    def make(text: str) -> str:
        return helpers.define("sum_over_q*g", lambda name: Function(name, ("x",), "A sum.", (Line(text),)))

    assert make("return x") == make("return x") == "sum_over_q_g"
    assert make("return x[0]") == "sum_over_q_g_2" == make("return x[0]")


@pytest.mark.parametrize("backend", ["triton", "cute", "tilelang"])
def test_an_edit_of_a_prelude_makes_other_kernels(backend: str, tmp_path: Path) -> None:
    """The key of a kernel digests the folder of its lowering."""
    folder = tmp_path / backend
    shutil.copytree(ROOT / "rlk" / "lower" / backend, folder, ignore=shutil.ignore_patterns("__pycache__"))
    again = tmp_path / "again" / backend
    shutil.copytree(folder, again)
    edited = tmp_path / "edited" / backend
    shutil.copytree(folder, edited)
    (edited / "prelude.py").write_text((edited / "prelude.py").read_text() + "\n")
    one, same, other = (digest_sources([each]) for each in (folder, again, edited))
    assert one == same != other
