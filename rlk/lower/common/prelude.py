"""Helper functions of generated modules: those of a backend's prelude files, and generated ones."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

from rlk.lower.common.lines import Function
from rlk.lower.common.render import render


@dataclass(frozen=True, eq=False)
class PreludeFunction:
    """A function of a prelude file: its source text, decorators included, and its syntax tree.

    names: of all functions of the prelude.
    """

    name: str
    source: str
    node: ast.FunctionDef
    names: frozenset[str]

    @cached_property
    def calls(self) -> tuple[str, ...]:
        """The prelude functions that it reads, sorted; a local of the same name hides one."""
        read: set[str] = set()
        bound = {self.name}
        for each in ast.walk(self.node):
            if isinstance(each, ast.arg):
                bound.add(each.arg)
            elif isinstance(each, ast.Name):
                (read if isinstance(each.ctx, ast.Load) else bound).add(each.id)
        return tuple(sorted(read & self.names - bound))


Helper: TypeAlias = PreludeFunction | Function


@cache
def prelude(*files: Path) -> Mapping[str, PreludeFunction]:
    """Return the functions of prelude files by name.

    The files are parsed, never imported: their decorators need a compiler, and a lowering needs none.
    """
    found: list[tuple[str, ast.FunctionDef]] = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        lines = text.splitlines()
        nodes = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
        found += ((_source(lines, node), node) for node in nodes)
    names = frozenset(node.name for _, node in found)
    assert len(names) == len(found), "two prelude functions of one name"
    return {node.name: PreludeFunction(node.name, source, node, names) for source, node in found}


def _source(lines: list[str], node: ast.FunctionDef) -> str:
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return "\n".join([*lines[first - 1 : node.end_lineno], ""])


@dataclass(frozen=True, slots=True)
class Helpers:
    """The helper functions that a module needs, noted when a line that calls one is written.

    found: by name, shared by the kernels of a module. A function comes after the prelude functions that it
    calls: Triton's own functions do so, and the order is that of the text.
    """

    prelude: Mapping[str, PreludeFunction]
    found: dict[str, Helper] = field(default_factory=dict)

    def use(self, *names: str) -> None:
        """Add prelude functions, after those that they call."""
        for name in names:
            if name not in self.found:
                self.add(self.prelude[name])

    def add(self, helper: Helper) -> None:
        """Add a function, after those that it calls."""
        self.use(*helper.calls)
        self.found.setdefault(helper.name, helper)

    def call(self, name: str, *operands: str) -> str:
        """Return the text of a call of a prelude function, and add the function."""
        self.use(name)
        return f"{name}({', '.join(operands)})"

    def define(self, name: str, make: Callable[[str], Function]) -> str:
        """Return the name of the function that `make(name)` generates; equal ones are shared.

        name: a hint, in which what no identifier has becomes an underscore: axes have names like Q*g.
        """
        name = "".join(c if c.isalnum() else "_" for c in name)
        count, unique, made = 1, name, make(name)
        while self.found.get(unique, made) != made:
            count += 1
            unique = f"{name}_{count}"
            made = make(unique)
        self.found[unique] = made
        return unique


def sources(backend: str, helpers: Iterable[Helper]) -> tuple[str, ...]:
    """Return the text of each function; the backend's template has that of generated ones."""
    return tuple(
        each.source if isinstance(each, PreludeFunction) else render(backend, "function.py.j2", each)
        for each in helpers
    )
