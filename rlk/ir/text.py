"""Programs as text and back: print -> parse -> equal; digests are of this text without names and places."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

from rlk.errors import Code, SpecError
from rlk.ir import nodes as n
from rlk.ir.dims import Axis, Part, Share
from rlk.ir.dotmodel import DotModel
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.tree import ASCENDING, Rule, Tree
from rlk.ir.types import NONE, DType, NoType, TileType, TupleType, Type

_NODES: dict[str, Any] = {
    c.__name__.lower(): c
    for c in (
        n.Param, n.Const, n.Pos, n.Extent, n.Map1, n.Map2, n.Math, n.Fma, n.Select, n.Cast, n.Bits,
        n.Philox, n.Load, n.Store, n.Check, n.Reduce, n.Dot, n.Merge, n.Loop, n.Result, n.Keep, n.Stream,
    )
}  # fmt: skip
_FIELDS = {kind: [(f.name, str(f.type)) for f in fields(kind)] for kind in _NODES.values()}
"""The names and the annotations of the fields of a node."""
_NAMES = {enum.__name__: enum for enum in (n.Fn1, n.Fn2, n.MathFn, n.MathModel, n.Combine, DType, DotModel)}


NUMBER = "@"


def print_program(program: n.Program, *, places: bool = False) -> str:
    """Return a program as text; with places, each line ends with the spec line it came from.

    Of axes of one name, which have the same extent but not the same pieces, all but the first have a number.
    """
    program, axes = _numbered(program)
    lines = [f"program {program.name}"]
    for axis in axes:
        lines.append(f"axis {_axis(axis)}")
    for launch in program.launches:
        lines.append(" ".join([f"launch {launch.kernel}", *map(_turn, launch.turns)]))
    for kernel in program.kernels:
        lines.append(f"kernel {kernel.name}")
        lines += [f"  {d.role.value} {d.name}: {d.type}" for d in kernel.params]
        lines.append("  {")
        _print_block(kernel.body, "    ", lines, places)
        lines.append("  }")
    return "\n".join(lines) + "\n"


def _numbered(program: n.Program) -> tuple[n.Program, list[Axis]]:
    """Return a program with a name of its own for each axis, and its axes; a number comes after `NUMBER`."""
    seen: dict[str, int] = {}
    names: dict[Axis, str] = {}
    axes = axes_in(program)
    for axis in axes:
        seen[axis.name] = count = seen.get(axis.name, 0) + 1
        names[axis] = axis.name if count == 1 else f"{axis.name}{NUMBER}{count}"

    def of(value: Any) -> Any:
        match value:
            case Axis():
                return replace(value, name=names[value.whole])
            case tuple():
                return tuple(map(of, value))
            case Enum():
                return value
            case _ if is_dataclass(value) and not isinstance(value, type):
                kept = {f.name: of(getattr(value, f.name)) for f in fields(value)}
                return replace(value, **kept)
            case _:
                return value

    if all(count == 1 for count in seen.values()):
        return program, axes
    changed = of(program)
    return changed, axes_in(changed)


def _axis(axis: Axis) -> str:
    plain = Axis(axis.name)
    given = [
        f"{f.name}={getattr(axis, f.name)}"
        for f in fields(axis)
        if f.name not in ("name", "part") and getattr(axis, f.name) != getattr(plain, f.name)
    ]
    if isinstance(axis.extent, Share) and axis.extent.dynamic:
        given[-1] += "~"
    return " ".join([axis.name, *given])


def _turn(turn: n.Turn) -> str:
    match turn.only:
        case None:
            return f"for={turn.axis}"
        case n.Phase():
            return f"for={turn.axis}:{turn.only.value}"
        case tuple():
            return f"for={turn.axis}:{','.join(map(str, turn.only))}"


def axes_in(program: n.Program) -> list[Axis]:
    """Return the whole axes of a program, sorted by name."""
    found: dict[Axis, None] = {t.axis.whole: None for launch in program.launches for t in launch.turns}

    noted: set[tuple[Axis, ...]] = set()

    def note(type: Type) -> None:
        match type:
            case TileType(axes=axes):
                if axes not in noted:
                    noted.add(axes)
                    found.update({a.whole: None for a in axes})
            case TupleType(items=items):
                for item in items:
                    note(item)
            case NoType():
                pass

    def visit(block: n.Block) -> None:
        for let in block.lets:
            note(let.type)
            for name, _ in _FIELDS[type(let.node)]:
                value = getattr(let.node, name)
                if isinstance(value, Axis):
                    found[value.whole] = None
                if isinstance(value, n.Block):
                    visit(value)

    for kernel in program.kernels:
        for decl in kernel.params:
            note(decl.type)
        visit(kernel.body)
    return sorted(found, key=lambda a: a.name)


def _print_block(block: n.Block, indent: str, lines: list[str], places: bool) -> None:
    if block.args:
        lines.append(f"{indent}args {' '.join(f'%{v}' for v in block.args)}")
    for let in block.lets:
        body: n.Block | None = None
        parts: list[str] = []
        for name, annotation in _FIELDS[type(let.node)]:
            value = getattr(let.node, name)
            if isinstance(value, n.Block):
                body = value
            elif value is not None:
                parts.append(f"{name}={_write(value, annotation)}")
        place = f"  # {let.name + ' ' if let.name else ''}{let.loc}" if places else ""
        kind = type(let.node).__name__.lower()
        lines.append(f"{indent}%{let.value}: {let.type} = {' '.join([kind, *parts])}{place}")
        if body is not None:
            lines.append(f"{indent}{{")
            _print_block(body, indent + "  ", lines, places)
            lines.append(f"{indent}}}")
    if block.results:
        lines.append(f"{indent}yield {' '.join(f'%{v}' for v in block.results)}")


def _write(value: object, annotation: str) -> str:
    match value:
        case Enum():
            return str(value.value)
        case Axis() | TileType():
            return str(value).replace(" ", "")
        case Tree(order=order):
            return f"tree<{','.join(map(str, order))}>"
        case Monoid(kind=kind, payloads=payloads, lanes=lanes, centred=centred, count=count):
            named = f"{'centred_' * centred}{kind.value}{count or ''}"
            return f"{named}<{','.join(payloads)};{_write(lanes, 'Order')}>"
        case n.Fold(monoid=monoid, inputs=inputs, after=after) as fold:
            given = "|".join(",".join(f"%{v}" for v in values) for values in (inputs, after) if values)
            return f"{'kept_' * fold.kept}{'open_' * fold.open}{_write(monoid, 'Monoid')}({given})"
        case tuple():
            inner = annotation.removeprefix("tuple[").split(",")[0]
            return f"({';'.join(_write(v, inner) for v in value)})"
        case str():
            return repr(value).replace(" ", "\\x20")
        case int():
            return f"%{value}" if annotation.startswith("Value") else str(value)
        case _:
            raise TypeError(value)


def parse_program(text: str) -> n.Program:
    """Parse the text of a program; raise SpecError with the line that cannot be read."""
    return _Parser(text).program()


class _Parser:
    """A line-by-line reader of the output of print_program."""

    def __init__(self, text: str) -> None:
        stripped = [line.split("  # ")[0].strip() for line in text.splitlines()]
        self.lines = [line for line in stripped if line]
        self.numbers = [number for number, line in enumerate(stripped, 1) if line]
        self.at = 0
        self.axes: dict[str, Axis] = {}

    def peek(self) -> str:
        return self.lines[self.at] if self.at < len(self.lines) else ""

    def take(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def fail(self) -> SpecError:
        at = min(self.at, len(self.lines)) - 1
        if at < 0:
            return SpecError(Code.PARSE, line=1, text="")
        return SpecError(Code.PARSE, line=self.numbers[at], text=self.lines[at])

    def program(self) -> n.Program:
        try:
            head, name = self.take().split(" ")
            if head != "program":
                raise self.fail()
            while self.peek().startswith("axis "):
                self.axis(self.take().split()[1:])
            launches, kernels = [], []
            while self.peek().startswith("launch "):
                launches.append(self.launch(self.take().split()[1:]))
            while self.peek().startswith("kernel "):
                kernels.append(self.kernel())
            if self.peek() or not kernels:
                self.take()
                raise self.fail()
            return n.Program(name, tuple(kernels), tuple(launches))
        except (KeyError, ValueError, IndexError, AttributeError, TypeError, SyntaxError) as error:
            raise self.fail() from error

    def axis(self, words: list[str]) -> None:
        options: dict[str, Any] = {}
        for word in words[1:]:
            key, value = word.split("=")
            if key == "extent" and not value.isdigit():
                options[key] = self.share(value)
                continue
            options[key] = int(value) if value.isdigit() else {"True": True, "False": False}.get(value, value)
        self.axes[words[0]] = Axis(words[0].partition(NUMBER)[0], **options)

    def share(self, text: str) -> Share:
        """Parse an extent that follows from another axis: N*2//3, -(-N//4); of a dynamic one with a ~."""
        up, dynamic = text.startswith("-(-"), text.endswith("~")
        plain = text.removesuffix("~").removeprefix("-(-").removesuffix(")" * up)
        whole, _, per = plain.partition("//")
        name, _, times = whole.partition("*")
        return Share(name, int(times or 1), int(per or 1), up, dynamic=dynamic)

    def launch(self, words: list[str]) -> n.Launch:
        return n.Launch(words[0], tuple(self.turn(word.removeprefix("for=")) for word in words[1:]))

    def turn(self, text: str) -> n.Turn:
        axis, _, only = text.partition(":")
        if not only:
            return n.Turn(self.named(axis))
        numbers = tuple(map(int, only.split(","))) if only[0].isdigit() else n.Phase(only)
        return n.Turn(self.named(axis), numbers)

    def kernel(self) -> n.Kernel:
        name = self.take().removeprefix("kernel ")
        params = []
        while self.peek() != "{":
            role, rest = self.take().split(" ", 1)
            param, type = rest.split(": ")
            params.append(n.Decl(param, self.tile(type), n.Role(role)))
        self.take()
        return n.Kernel(name, tuple(params), self.block())

    def block(self) -> n.Block:
        args: tuple[int, ...] = ()
        results: tuple[int, ...] = ()
        lets = []
        while (line := self.take()) != "}":
            if line.startswith("args "):
                args = self.values(line)
            elif line.startswith("yield "):
                results = self.values(line)
            else:
                lets.append(self.let(line))
        return n.Block(args, tuple(lets), results)

    def values(self, line: str) -> tuple[int, ...]:
        return tuple(int(word[1:]) for word in line.split()[1:])

    def let(self, line: str) -> n.Let:
        head, rest = line.split(" = ", 1)
        value, type = head.split(": ", 1)
        kind, *words = rest.split(" ")
        cls = _NODES[kind]
        given = dict(word.split("=", 1) for word in words)
        arguments: dict[str, Any] = {}
        for field in fields(cls):
            if field.type == "Block":
                if self.take() != "{":
                    raise self.fail()
                arguments[field.name] = self.block()
            elif field.name in given:
                arguments[field.name] = self.read(given[field.name], str(field.type))
        return n.Let(int(value[1:]), cls(**arguments), self.type(type))

    def type(self, text: str) -> Type:
        if text == "none":
            return NONE
        if text.startswith("("):
            return TupleType(tuple(self.tile(t) for t in re.findall(r"\w+\[[^\]]*\]", text)))
        return self.tile(text)

    def tile(self, text: str) -> TileType:
        dtype, axes = text[:-1].split("[")
        return TileType(DType(dtype), tuple(self.named(a.strip()) for a in axes.split(",") if a.strip()))

    def named(self, text: str) -> Axis:
        name, _, part = text.partition(".")
        axis = self.axes[name]
        return replace(axis, part=Part(part))

    def read(self, text: str, annotation: str) -> Any:
        kind = annotation.removesuffix(" | None")
        if kind == "tuple[Fold, ...]":
            return tuple(self.fold(t) for t in re.findall(r"\w+<[^>]*>?>?\([^)]*\)", text[1:-1]))
        if kind.startswith("tuple["):
            inner = kind.removeprefix("tuple[").split(",")[0]
            return tuple(self.read(t, inner) for t in text[1:-1].split(";") if t)
        match kind:
            case "Value":
                return int(text[1:])
            case "int":
                return int(text)
            case "bool":
                return text == str(True)
            case "str":
                return ast.literal_eval(text)
            case "Axis":
                return self.named(text)
            case "TileType":
                return self.tile(text)
            case "Order":
                return self.order(text)
            case "MergeOrder":
                return ASCENDING if text == ASCENDING.value else self.order(text)
            case "Monoid":
                return self.monoid(text)
            case _:
                return _NAMES[kind](text)

    def order(self, text: str) -> Rule | Tree:
        if text.startswith("tree<"):
            return Tree(tuple(int(b) for b in text[5:-1].split(",") if b))
        return Rule(text)

    def monoid(self, text: str) -> Monoid:
        kind, rest = text.split("<", 1)
        payloads, lanes = rest[:-1].split(";")
        named = tuple(p for p in payloads.split(",") if p)
        centred, plain = kind.startswith("centred_"), kind.removeprefix("centred_").rstrip("0123456789")
        count = int(kind.removeprefix("centred_").removeprefix(plain) or 0)
        return Monoid(Kind(plain), named, self.order(lanes), centred, count)

    def fold(self, text: str) -> n.Fold:
        monoid, given = text[:-1].rsplit("(", 1)
        kept, left = monoid.startswith("kept_"), monoid.startswith("open_")
        inputs, _, after = given.partition("|")
        values = (tuple(int(v[1:]) for v in part.split(",") if v) for part in (inputs, after))
        name = monoid.removeprefix("kept_").removeprefix("open_")
        return n.Fold(self.monoid(name), next(values), kept, left, next(values))
