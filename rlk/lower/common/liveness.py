"""Backward liveness of the names of generated text: assignments whose values nothing reads."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Any

from rlk.lower.common.lines import Line

DECLARATIONS = ("alloc_var", "alloc_local")  # of TileLang: memory, which is written later


def live(lines: Iterable[Line], read: Collection[str] = ()) -> tuple[Line, ...]:
    """Return the lines without those that only name a value that nothing reads.

    read: names that what follows may read. A line is one statement.
    """
    given, needed = list(lines), set[int]()
    tree, gone = _parsed(given), set[int]()
    named = {i for i, line in enumerate(given, 1) if line.assigned is not None}
    known: dict[ast.AST, frozenset[str]] = {}
    while True:
        removable = named - needed
        found = Liveness(tree, removable, known)
        found.block(tree.body, set(read))
        dead = {line for line, _ in found.dead if line in removable}
        last = {body[-1].lineno for body in _bodies(tree.body) if {each.lineno for each in body} <= dead}
        if last:
            needed |= last  # a block has a statement
        elif dead:
            _prune(tree, dead)
            gone, needed = gone | dead, set()
        else:
            return tuple(line for i, line in enumerate(given, 1) if i not in gone)


def _prune(tree: ast.Module, dead: Collection[int]) -> None:
    """Take the statements of these lines out of a tree: parsing what is left would take far longer."""
    for body in (tree.body, *_bodies(tree.body)):
        body[:] = [each for each in body if each.lineno not in dead]


def names_read(lines: Iterable[Line]) -> set[str]:
    """Return the names that lines read."""
    return _reads(_parsed(lines))


def _bodies(block: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield the blocks inside of a block that are not empty."""
    for node in block:
        for name in ("body", "orelse"):
            if body := getattr(node, name, []):
                yield body
                yield from _bodies(body)


def _parsed(lines: Iterable[Line]) -> ast.Module:
    return ast.parse("\n".join(line.text for line in lines))


def dead_stores(source: str) -> list[str]:
    """Return the functions, lines and names of a module's assignments whose values nothing reads."""
    found = []
    for function in _functions(ast.parse(source)):
        nested = {n for inner in _functions(function) if inner is not function for n in _reads(inner)}
        liveness = Liveness(function)
        liveness.block(function.body, nested)
        found += [f"{function.name}, line {line}: {name}" for line, name in sorted(liveness.dead)]
    return found


class Liveness:
    """Walks the statements of a tree backward; `dead` are the lines and names that nothing reads.

    removable: lines that read nothing if they are dead. known: what expressions of the tree read.
    """

    def __init__(
        self,
        tree: ast.AST,
        removable: Collection[int] = (),
        known: dict[ast.AST, frozenset[str]] | None = None,
    ) -> None:
        self.tree, self.removable = tree, removable
        self.dead: dict[tuple[int, str], None] = {}
        self.after_loop: list[set[str]] = []
        self.known = {} if known is None else known

    @cached_property
    def mentions(self) -> Counter[str]:
        """Count how often the tree mentions each name."""
        return Counter(node.id for node in _names(self.tree))

    def reads(self, *nodes: ast.AST | None) -> set[str]:
        """Return the names that expressions read: each is walked once, whatever loops do."""
        found = set[str]()
        for node in nodes:
            if node is not None:
                if node not in self.known:
                    self.known[node] = frozenset(_reads(node))
                found |= self.known[node]
        return found

    def block(self, body: Iterable[ast.stmt], live: set[str]) -> set[str]:
        for statement in reversed(list(body)):
            live = self.statement(statement, set(live))
        return live

    def statement(self, node: ast.stmt, live: set[str]) -> set[str]:
        match node:
            case ast.Assign(targets=[target], value=value):
                return self.assign(node, target, value, live)
            case ast.AugAssign(target=target, value=value):
                self.check(node, target, live)
                return live | _writes(target) | self.reads(target, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return self.assign(node, target, value, live)
            case ast.If(test=test, body=body, orelse=other):
                return self.block(body, live) | self.block(other, live) | self.reads(test)
            case ast.While(test=test, body=body):
                return self.loop(body, live | self.reads(test)) | self.reads(test)
            case ast.For(target=target, iter=iterated, body=body):
                return (
                    (self.loop(body, live) - _writes(target))
                    | (live - _writes(target))
                    | self.reads(iterated)
                )
            case ast.With(items=items, body=body):
                return self.block(body, live) | {n for i in items for n in self.reads(i.context_expr)}
            case ast.FunctionDef(name=name):
                return (live - {name}) | self.reads(node)  # it may run wherever it is named
            case ast.Return(value=value):
                return self.reads(value)
            case ast.Expr(value=value):
                return live | self.reads(value)
            case ast.Pass() | ast.Import() | ast.ImportFrom():
                return live
            case ast.Break():
                return set(self.after_loop[-1])
            case ast.Assert(test=test):
                return live | self.reads(test)
            case _:
                return live | self.reads(node)  # nothing inside of it is called dead

    def assign(self, node: ast.stmt, target: ast.expr, value: ast.expr, live: set[str]) -> set[str]:
        if self.check(node, target, live) and node.lineno in self.removable:
            return live
        return (live - _writes(target)) | self.reads(target, value)

    def check(self, node: ast.stmt, target: ast.expr, live: set[str]) -> bool:
        """Note a dead statement: none of the names that it assigns is live, and it writes no memory."""
        names = _writes(target)
        if not names or names & live or _stores_memory(target):
            return False
        if isinstance(node, ast.Assign) and _declares(node.value) and self.mentions[min(names)] > 1:
            return False
        self.dead[node.lineno, ", ".join(sorted(names))] = None
        return True

    def loop(self, body: list[ast.stmt], after: set[str]) -> set[str]:
        """Return what is live before a loop that may run any number of times."""
        self.after_loop.append(after)
        live, before = set(after), set(self.dead)
        while (found := self.block(body, live) | after) != live:
            live = found
            self.dead = {each: None for each in self.dead if each in before}  # of fewer live names
        self.block(body, live)
        self.after_loop.pop()
        return live


def _declares(value: ast.expr) -> bool:
    """Return whether a value is memory without an initial value."""
    match value:
        case ast.Call(func=ast.Attribute(attr=attr), args=args):
            return attr in DECLARATIONS and len(args) == 1 + (attr != "alloc_var")
        case _:
            return False


def _reads(*nodes: ast.AST | None) -> set[str]:
    """Return the names that expressions read, those inside of comprehensions and lambdas included."""
    inner = (n for node in nodes if node is not None for n in _names(node))
    return {n.id for n in inner if isinstance(n.ctx, ast.Load)}


_NO_NAMES = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.Constant)


def _names(tree: ast.AST) -> Iterator[ast.Name]:
    """Yield the names inside of a node, as `ast.walk` would; most nodes are no names."""
    left: list[Any] = [tree]
    while left:
        node = left.pop()
        kind = type(node)
        if kind is ast.Name:
            yield node
        elif kind is ast.BinOp:
            left += (node.left, node.right)
        elif kind is ast.Attribute:
            left.append(node.value)
        elif kind is ast.Call:
            left += (node.func, *node.args, *node.keywords)
        elif kind is not ast.Constant:
            for field in node._fields:
                value = getattr(node, field, None)
                if isinstance(value, list):
                    left += [each for each in value if isinstance(each, ast.AST)]
                elif isinstance(value, ast.AST) and not isinstance(value, _NO_NAMES):
                    left.append(value)


def _writes(target: ast.expr) -> set[str]:
    """Return the names that a target assigns; an element or an attribute is memory, which is not followed."""
    match target:
        case ast.Name(id=name):
            return {name}
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return {name for each in elts for name in _writes(each)}
        case _:
            return set()


def _stores_memory(target: ast.expr) -> bool:
    return any(isinstance(n, ast.Subscript | ast.Attribute) for n in ast.walk(target))


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
