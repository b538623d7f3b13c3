"""Write docs/language.md, the reference of the language of specs, from its docstrings; run their examples."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rlk import lang
from rlk.errors import Code, Loc, RlkError
from rlk.interp.run import run
from rlk.ir.nodes import Program, Role
from rlk.lang import Axis, DType, L, Ragged, Scalar, Tensor, Tile, Tree, bf16, i32
from rlk.lang.op import Formal, Op
from rlk.lang.surface import Outputs
from rlk.lang.trace import StreamVar, TensorArg
from rlk.lang.types import DTypeVar, Needs, Static
from rlk.passes.pipeline import canonical

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "language.md"

SETTING = """
T = Axis("T", dynamic=True)                 # 2 rows
N = Axis("N")                               # 4 columns
V = Axis("V", chunk=2)                      # 4 columns, streamed 2 at a time
K = Axis("K")                               # 2
I = Axis("I", chunk=1)                      # 4, streamed one by one
P = Axis("P", dynamic=True)                 # 6 elements of all segments
B = Axis("B", dynamic=True)                 # 2 segments
S = Ragged("S", over=B)                     # elements of a segment, one by one

x: Tensor[f32, T, N]  = [[1.0, -2.0, 3.0, 0.5], [4.0, 0.25, -1.0, 2.0]]
y: Tensor[f32, N]     = [10.0, 20.0, 30.0, 40.0]
z: Tensor[f32, T, V]  = [[1.0, 2.0, 3.0, 4.0], [0.0, 8.0, 0.0, 1.0]]
h: Tensor[bf16, T, N] = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 8.0, 1.0]]
w: Tensor[bf16, K, N] = [[1.0, 1.0, 1.0, 1.0], [0.0, 2.0, 0.0, 0.0]]
n: Tensor[i32, T, N]  = [[0, 1, 2, 3], [7, 6, 5, 4]]
q: Tensor[i32, T, V]  = [[5, 1, 7, 3], [2, 2, 9, 4]]
u: Tensor[i32, T, I]  = [[1, 2, 3, 4], [10, 0, 0, 1]]
row: Tensor[i32, T]   = [1, 0]
p: Tensor[f32, P]     = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
begin: Tensor[i32, B] = [0, 2]
end: Tensor[i32, B]   = [2, 6]
s: Scalar[f32]        = 0.5
"""
"""Axes and parameters of the examples, with their values."""
EXTENTS = {"T": 2, "N": 4, "V": 4, "K": 2, "I": 4, "P": 6, "B": 2}

GROUPS = (
    ("Streams", "stream carry"),
    ("Folds of a stream", "total softmax_sum power_sum softmax_states argmax top"),
    ("Reductions of a whole axis", "sum max min any"),
    ("Contractions", "dot"),
    (
        "Functions of f32",
        "exp exp2 softmax_exp2 expm1 log log2 log1p tanh sigmoid erf sin cos sqrt rsqrt k3 floor round isnan",
    ),
    ("Elementwise, of several tiles", "where maximum minimum clip fma mulhi"),
    ("Numbers and positions", "number pos extent"),
    ("Memory between kernels", "keep table"),
    ("Random numbers and checks", "philox check"),
    ("Outputs", "out emit place"),
)
"""The functions of L in the order of the page."""

LITERAL = re.compile(r"^(\w+): (.*?) *= (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Word:
    """A public word of the language and its docstring."""

    name: str
    doc: str
    signature: str = ""


def _setting() -> tuple[dict[str, Any], dict[str, Formal], dict[str, Any]]:
    """Return the names that examples see, their parameters, and the parameters' values."""
    scope: dict[str, Any] = {name: getattr(lang, name) for name in lang.__all__}
    exec(LITERAL.sub("", SETTING), scope)
    formals = {m[1]: Formal(m[1], eval(m[2], scope)) for m in LITERAL.finditer(SETTING)}
    return scope, formals, {m[1]: eval(m[3], scope) for m in LITERAL.finditer(SETTING)}


SCOPE, FORMALS, VALUES = map(MappingProxyType, _setting())


def words() -> Iterator[Word]:
    """Yield every public word of L, Tile, tensor parameters, stream variables, Axis and the declarations."""
    for name in listed():
        yield Word(f"L.{name}", _doc(getattr(L, name)), _signature(name, getattr(L, name)))
    for owner, title in ((Tile, "Tile"), (TensorArg, "Tensor parameters"), (StreamVar, "Stream variables")):
        yield Word(title, _doc(owner))
        yield from _members(owner)
    yield Word("Axis", _doc(Axis), _signature("Axis", Axis))
    yield from _members(Axis)
    yield Word("Ragged", _doc(Ragged), _signature("Ragged", Ragged))
    for declaration in (Tensor, Scalar, Static, Needs, DTypeVar, DType, Tree):
        yield Word(declaration.__name__, _doc(declaration))


def listed() -> list[str]:
    """Return the public functions of L, in the order of the page; raise for one without a group."""
    known = [name for _, names in GROUPS for name in names.split()]
    there = [name for name in vars(L) if not name.startswith("_")]
    assert sorted(known) == sorted(there), set(known) ^ set(there)
    return known


def _members(owner: type) -> Iterator[Word]:
    for name, member in vars(owner).items():
        if name.startswith("_") or not (isinstance(member, property) or inspect.isfunction(member)):
            continue
        said = _signature(name, member) if inspect.isfunction(member) else ""
        yield Word(f".{name}" if owner is not Axis else f"Axis.{name}", _doc(member), said)


def _doc(what: Any) -> str:
    return inspect.getdoc(what) or ""


def _signature(name: str, what: Any) -> str:
    """Return a call as an author writes it: names and defaults, without annotations."""
    found = inspect.signature(what)
    plain = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in found.parameters.values()
        if p.name not in ("self", "part")
    ]
    text = str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return f"{name}{text}".replace("<Rule.HALVING: 'halving'>", "Tree.halving")


# --- examples ---


def examples(word: Word) -> Iterator[tuple[list[str], str]]:
    """Yield the examples of a docstring: their statements, and what the last one gives."""
    pending: list[str] = []
    for each in doctest.DocTestParser().get_examples(word.doc):
        pending.append(each.source)
        if each.want:
            yield pending, each.want.strip()
            pending = []
    if pending:
        yield pending, ""


def traced(statements: list[str]) -> tuple[Program, list[str]]:
    """Return the canonical program of statements as a spec, and the last one as text if it is no tile.

    Raises the RlkError of a mistake.
    """
    said: list[str] = []

    def spec(**given: Any) -> Outputs:
        scope = {**SCOPE, **given}
        exec("".join(statements[:-1]), scope)
        value = eval(statements[-1].strip(), scope)
        match value:
            case Outputs():
                return value
            case Tile() | TensorArg():
                return L.out(value=value)
            case tuple() if all(isinstance(each, Tile) for each in value):
                return L.out(**{f"value{i}": each for i, each in enumerate(value)})
            case _:  # a fact of the trace, such as a dtype
                said.append(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
                return L.out(value=given["x"])

    op = Op("example", spec, tuple(FORMALS.values()), (), "", Loc())
    return canonical(op.trace(op.default_variant())), said


def result(statements: list[str]) -> str:
    """Run statements as a spec on the oracle and return the last one's value as text, or its error's code."""
    try:
        program, said = traced(statements)
        outs = [d for k in program.kernels for d in k.params if d.role is Role.OUT]
        inputs = {name: np.asarray(VALUES[name], _storage(FORMALS[name])) for name in FORMALS}
        found = run(program, inputs, extents=EXTENTS)
    except RlkError as error:
        return f"[{error.code.name}]"
    if said:
        return said[0]
    shown = {d.name: _shown(found[d.name], d.type.dtype) for d in outs}
    if all(name.startswith("value") for name in shown):
        return "\n".join(shown.values())
    return "\n".join(f"{name}: {value}" for name, value in shown.items())


def _storage(formal: Formal) -> Any:
    return np.int32 if formal.type.dtype is i32 else np.float32  # type: ignore[union-attr]


def _shown(array: Any, dtype: DType) -> str:
    """Return an array as nested lists, floats with up to 6 digits."""
    if dtype is bf16 and array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return _text(array.tolist())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- the page ---


def page(head: str) -> str:
    """Return the page: the text above its first heading of words, then every word with its docstring."""
    found = {word.name: word for word in words()}
    lines = [head.rstrip(), "", "```python", SETTING.strip(), "```", ""]
    for title, names in GROUPS:
        lines += [f"## {title}", ""]
        for name in names.split():
            lines += _entry(found.pop(f"L.{name}"), 3)
            lines += _methods(getattr(L, name))
    for word in found.values():
        titled = not word.name.startswith((".", "Axis."))
        lines += _entry(word, 2 if titled else 3)
    return "\n".join(lines).rstrip() + "\n"


def _methods(what: Any) -> Iterator[str]:
    """Yield a row for each member of a fold."""
    if not inspect.isclass(what):
        return
    rows = {name: _summary(getattr(what, name)) for name in members(what)}
    yield from ("| member | |", "|---|---|")
    yield from (f"| `{name}` | {text} |" for name, text in rows.items())
    yield ""


def members(fold: type) -> list[str]:
    """Return the public methods and properties of a fold."""
    found = inspect.getmembers(fold, lambda m: isinstance(m, property) or inspect.isfunction(m))
    return [name for name, _ in found if not name.startswith("_") and name != "named"]


def _summary(what: Any) -> str:
    first = _doc(what).partition("\n\n")[0].replace("\n", " ").replace("|", r"\|")
    return first


def _entry(word: Word, level: int) -> list[str]:
    """Return the lines of a word: its call, its text, its examples as code."""
    prose, code = _split(word.doc)
    call = [f"`{word.signature}`", ""] if word.signature else []
    shown = ["```pycon", *code, "```", ""] if code else []
    return [f"{'#' * level} {word.name}", "", *call, *prose, "", *shown]


def _split(doc: str) -> tuple[list[str], list[str]]:
    """Return a docstring's prose, a list of its facts, and the lines of its examples."""
    text, mark, rest = doc.partition("\n>>> ")
    prose: list[str] = []
    for line in text.strip().splitlines():
        fact = re.match(r"(\w+(?:, \w+)*): ", line)
        if fact is not None:
            line = f"- **{fact[1]}**: {line[fact.end() :]}"
            if prose and prose[-1] and not prose[-1].startswith(("- ", "  ")):
                prose.append("")
        elif prose and prose[-1].startswith(("- ", "  ")) and line:
            line = f"  {line}"
        prose.append(line)
    return prose, f">>> {rest}".splitlines() if mark else []


def head() -> str:
    """Return the hand-written part of the page, which ends with its mark."""
    return PAGE.read_text("utf-8").partition(MARK)[0] + MARK


MARK = "<!-- from here on written by tools/language.py -->"


def codes(word: Word) -> Mapping[str, bool]:
    """Return the codes of errors that a docstring names, and whether they exist."""
    return {
        name: name in Code.__members__ for name in re.findall(r"\b(?!RLK_)[A-Z]+(?:_[A-Z]+)+\b", word.doc)
    }


if __name__ == "__main__":
    PAGE.write_text(page(head()), encoding="utf-8")
    print(f"wrote {PAGE}")
