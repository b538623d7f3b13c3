"""Laws of the layout of generated text: no line over 120 columns, spec lines named once, no token changed."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from edited_text import joined

from rlk.ir.nodes import Role
from rlk.lower.common.layout import COLUMNS, laid_out
from rlk.runtime.reference import reference_gradient, reference_variant
from rlk.runtime.registry import operators

GENERATED = sorted((Path(__file__).parents[1] / "generated").rglob("*.py"))
PLACE = "  # norm.py:14"
NAMES = [f"argument_{i}" for i in range(20)]
LONG = {
    "a call": f"x = f({', '.join(NAMES)})",
    "a call in a call": f"x = f({', '.join(NAMES[:3])}, g({', '.join(NAMES)}), h({', '.join(NAMES[:9])}))",
    "a sum": f"x = {' + '.join(NAMES)}",
    "a sum of products": f"x = {' + '.join(f'{a} * {b}' for a, b in zip(NAMES, NAMES, strict=True))}",
    "a condition": f"if {' & '.join(f'({a} < 3)' for a in NAMES)}:\n    pass",
    "a return": f"def f():\n    return {' | '.join(NAMES)}",
    "a list": f"x = [select({NAMES[0]}, {', '.join(NAMES)}) for i in range({NAMES[2]}) if {NAMES[3]}]",
    "a keyword": f"x = f({NAMES[0]}, mask={' & '.join(NAMES)})",
    "a tuple to names": f"{', '.join(NAMES)} = {', '.join(NAMES)}",
    "a function": f"def f({', '.join(f'{name}: Int32' for name in NAMES)}):\n    pass",
    "a launch": f"f({', '.join(NAMES)}).launch(grid=({', '.join(NAMES)}), stream={NAMES[0]})",
    "strings with brackets": f"x = f('({NAMES[0]}, ', {', '.join(NAMES)}, \"[\", -{NAMES[1]})",
    "a subscript": f"x[{', '.join(NAMES)}] = f({', '.join(NAMES)})[{NAMES[0]} : {NAMES[1]}]",
    "brackets over lines": f"x = f(\n    {', '.join(NAMES)},\n    (1,),\n)",
}


def lines_of(text: str) -> list[int]:
    return [len(line) for line in text.split("\n")]


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: "/".join(path.parts[-3:]))
def test_no_line_of_a_checked_in_kernel_is_longer_than_the_limit(path: Path) -> None:
    long = [i + 1 for i, length in enumerate(lines_of(path.read_text())) if length > COLUMNS]
    assert not long, f"lines {long}"


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: "/".join(path.parts[-3:]))
def test_the_head_of_a_checked_in_kernel_lists_what_its_call_takes(path: Path) -> None:
    """Tensors with dtypes and axes, and scalars; beside them a call takes extents, strides and workspaces."""
    module = ast.parse(path.read_text())
    listed = re.findall(r"^  (\w+): \w+(?: \[.+\])?$", ast.get_docstring(module) or "", re.M)
    (call,) = (node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "call")
    taken = [argument.arg for argument in call.args.args]
    assert listed and set(listed) <= set(taken)
    program = {kernel for kernel in taken if kernel in public_names(path.stem)}
    assert program <= set(listed)


@cache
def public_names(name: str) -> set[str]:
    """Return the tensors and scalars of the spec of a checked-in module that its variant has."""
    op = operators()[name.removesuffix("_grad")]
    variant = reference_variant(op)
    program = reference_gradient(op, variant) if name.endswith("_grad") else op.trace(variant)
    assert program is not None
    roles = (Role.IN, Role.OUT, Role.SCALAR)
    return {d.name for kernel in program.kernels for d in kernel.params if d.role in roles}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG.keys())
def test_breaking_a_statement_changes_no_token_that_runs(text: str) -> None:
    assert max(lines_of(text)) > COLUMNS  # else nothing is broken
    made = laid_out(text)
    assert max(lines_of(made)) <= COLUMNS
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(text))
    assert laid_out(made) == made
    assert len(ast.parse(text).body) <= joined(made).count("\n") + 1 <= text.count("\n") + 1
    assert ast.dump(ast.parse(joined(made))) == ast.dump(ast.parse(text))


def test_the_comparison_of_programs_sees_a_changed_token() -> None:
    text = LONG["a sum of products"]
    assert ast.dump(ast.parse(laid_out(text).replace("argument_19", "argument_18"))) != ast.dump(
        ast.parse(text)
    )


def test_a_line_of_the_spec_is_named_where_it_changes() -> None:
    given = [
        f"a = 1{PLACE}",
        f"b = 2{PLACE}",
        "c = 3  # norm.py:15",
        f"d = 4{PLACE}",
        "def f():",
        f"    e = 5{PLACE}",
    ]
    wanted = [given[0], "b = 2", *given[2:]]
    assert laid_out("\n".join(given)) == "\n".join(wanted)


def test_the_line_of_a_broken_statement_stays_with_it() -> None:
    made = laid_out(LONG["a call"] + PLACE).split("\n")
    assert made[0] == f"x = f({PLACE}"
    assert joined("\n".join(made)) == LONG["a call"] + PLACE
    assert laid_out("\n".join(made)).split("\n") == made
    name = "x" * 112
    assert laid_out(f"{name} = f(1, 2, 3){PLACE}").split("\n")[0] == PLACE.strip()


def test_prose_is_broken_between_words() -> None:
    words = " ".join(NAMES)
    made = laid_out(f'"""Head.\n\nschedule: {words}\n"""\n# {words}\nx = 1\n').split("\n")
    assert max(map(len, made)) <= COLUMNS
    start = next(i for i, line in enumerate(made) if line.startswith("# "))
    assert all(line.startswith("# ") for line in made[start:-2])
    assert "".join(made).count("argument_") == 2 * len(NAMES)
