"""Write docs/gallery.md and examples/operators/generated: an outside package's operators and kernels."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rlk.cli import main
from rlk.errors import Code, RlkError
from rlk.lang import Op
from rlk.runtime.reference import (
    TARGETS,
    emit,
    placed,
    reference_extents,
    reference_gradient,
    reference_variant,
)
from rlk.target.facts import target

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "examples" / "operators"
GENERATED = PACKAGE / "generated"
PAGE = ROOT / "docs" / "gallery.md"
FOLDERS = {"triton": "sm90a/triton", "cute": "sm90a/cute", "tilelang": "gfx942/tilelang"}
LABELS = {"triton": "Triton", "cute": "CuTe", "tilelang": "TileLang"}
SHOWS = {
    "layer_norm": "rows of statistics; a gradient that streams rows and sums two weights over them",
    "smoothed_loss": "two folds in one stream; the gradient in one kernel",
    "zloss_head": "a contraction in a stream: no logits in memory; two products of one workspace",
    "router": "a loop of Python that is traced k times; reductions that need no order",
    "adamw": "random numbers, bits of a float as an integer, three outputs",
    "linear_attention": "a carried state that is a matrix; two streams of one axis, the second in reverse",
    "int8_rows": "storage in int8; rounding to the nearest even",
    "w8a16": "factors of a product that are computed: int8 weights, a scaled gradient",
    "fp8_rows": "storage in e4m3; a cast that rounds and saturates",
    "fp8_linear": "a product of 8-bit floats, with the bits of f16 factors",
    "swiglu_linear": "two products in one kernel, which share the tiles of x; a derived gradient",
}
"""The operators in their order, and what each has that the ones before it have not."""
HEAD = """# Gallery

Operators of an outside package, `examples/operators`, laid out as `rlk new-op` writes one. Each module has
the spec, its gradient, a float64 form and its registration; the package's tests hold all of them to the laws
of `rlk check`.

```console
$ pip install -e examples/operators
$ rlk check gallery.router                       # laws, on the oracle and in simulators
$ rlk show gallery.router --source triton        # its kernels; --source cute, tilelang
$ python -m benchmarks.bench_gallery             # on a GPU: times beside torch.compile
```

`python tools/gallery.py` writes this page and the kernels that it links. Lines are those of code: without
comments, docstrings and imports. A spec's are those of the operator and its gradient, with helpers and axes;
a backend's are those of forward and gradient, with the functions that they call and the code of the launches.
The last column compares the spec with the Triton text without these functions (trees, exp, log), which one
would not write by hand.

`benchmarks/bench_gallery.py` writes times beside torch.compile ([performance](performance.md)); bars that are
missed are listed with their causes ([measured](measured/cliffs.md#the-gallery)).
"""
TAIL = """
## JSD, from logits and from heads

rlk ships both. `jsd_loss` (`rlk/specs/distill.py`) has two streams over the vocabulary in one spec: the first
for both log-sum-exps, the second for the divergence, which needs them. `linear_jsd_loss` is the same from
hidden states.

## Grouped products

`grouped_matmul` (`rlk/specs/grouped.py`) has a matrix for each expert: rows are sorted by expert, and are the
segments of a ragged axis. [Contractions](writing-a-spec.md#contractions) shows the spec. Where a token's
expert is an index, one line is the operator, for rows in any order:

```text
y = L.dot(x, w.at(expert, N, K), over=K, each=(T,))
```

## Not in the language

| an author would write | missing | written instead |
|---|---|---|
| a recurrence in chunks, by `L.dot` of its state | carries along chunks above 1 | one token after the other |
"""


class Lines(NamedTuple):
    """Lines of code: of the operator itself, and of functions that it calls and does not define."""

    own: int
    called: int

    @property
    def all(self) -> int:
        return self.own + self.called


def package() -> ModuleType:
    """Import the package from its folder, whether or not it is installed."""
    if str(PACKAGE) not in sys.path:
        sys.path.insert(0, str(PACKAGE))
    return importlib.import_module("gallery_ops")


def operators() -> dict[str, Op]:
    """Return the operators of the gallery by name, in the order of the page."""
    module = package()
    return {name: getattr(module, name) for name in SHOWS}


def code(source: str, *, without: frozenset[str] = frozenset()) -> dict[str, int]:
    """Count lines of code by the name of the function that has them, "" for those of none.

    without: functions that do not count; nor do imports, docstrings, comments and bare calls.
    """
    tree, counts = ast.parse(source), {"": 0}
    bare = {n for token in tokenize.generate_tokens(io.StringIO(source).readline) for n in _held(token)}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr):
            continue
        name = statement.name if isinstance(statement, ast.FunctionDef | ast.ClassDef) else ""
        if name not in without:
            counts[name] = counts.get(name, 0) + len(bare & set(_lines(statement)))
    return counts


def _held(token: tokenize.TokenInfo) -> range:
    """Return the lines of a token of code."""
    empty = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    return range(0) if token.type in empty else range(token.start[0], token.end[0] + 1)


def _lines(statement: ast.stmt) -> Iterator[int]:
    """Yield the lines of a statement, its decorators included and the docstring left out."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(d.lineno for d in decorators)])
    assert statement.end_lineno is not None
    inside = set(range(first, statement.end_lineno + 1))
    if isinstance(statement, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(statement):
        doc = statement.body[0]
        assert doc.end_lineno is not None
        inside -= set(range(doc.lineno, doc.end_lineno + 1))
    yield from inside


def spec_lines(op: Op) -> int:
    """Count the lines of an operator's spec, of its gradient, and of what they name in their module."""
    module = sys.modules[op.fn.__module__]
    return sum(code(inspect.getsource(module), without=_beside(op)).values())


def _beside(op: Op) -> frozenset[str]:
    """Return the functions of an operator's module that its spec and its gradient do not name."""
    record = op.record
    beside = {record.reference, record.example.inputs if record.example else None}
    return frozenset(fn.__name__ for fn in beside if fn is not None)


def _spec(op: Op) -> str:
    """Return the axes, helpers, spec and gradient of an operator: all of its module that a reader needs."""
    source = inspect.getsource(sys.modules[op.fn.__module__])
    lines, parts, left = source.splitlines(), [], _beside(op)
    for statement in ast.parse(source).body:
        decorators = [d.lineno for d in getattr(statement, "decorator_list", [])]
        text = "\n".join(lines[min([statement.lineno, *decorators]) - 1 : statement.end_lineno])
        if isinstance(statement, ast.Assign):
            parts.append(text)
        elif isinstance(statement, ast.FunctionDef) and statement.name not in left:
            parts.append(f"\n{text}")
    return "\n".join(parts)


def kernel_lines(name: str, backend: str) -> Lines | None:
    """Count the lines of an operator's generated modules of a backend; None where it has none."""
    own = called = 0
    files = [GENERATED / FOLDERS[backend] / f"{each}.py" for each in (name, f"{name}_grad")]
    there = [file for file in files if file.exists()]
    for file in there:
        for function, count in code(file.read_text("utf-8")).items():
            if function == "call" or function.startswith(name):
                own += count
            else:
                called += count
    return Lines(own, called) if there else None


def refusals(op: Op) -> Iterator[str]:
    """Yield what a backend says of the programs that it does not lower, with the place in the spec."""
    variant = reference_variant(op)
    made = [placed(op, op.trace(variant)), reference_gradient(op, variant)]
    for on in map(target, TARGETS):
        for backend in FOLDERS if on.name == "sm_90a" else ("triton", "tilelang"):
            for program in made:
                if program is None:
                    continue
                try:
                    emit(program, reference_extents(op, program), on, backend)
                except RlkError as error:
                    if error.code not in (Code.CANNOT_LOWER, Code.UNSUPPORTED):
                        raise
                    yield str(error)


def page() -> str:
    """Return the page."""
    rows = [
        "| operator | shows | gradient | spec | " + " | ".join(LABELS.values()) + " | spec / Triton |",
        "|---|---|---|---|---|---|---|---|",
    ]
    sections = []
    for name, op in operators().items():
        mine, lines = spec_lines(op), {b: kernel_lines(name, b) for b in FOLDERS}
        cells = [str(found.all) if found else "refused" for found in lines.values()]
        assert lines["triton"] is not None
        share = f"{mine / lines['triton'].own:.2f}"
        wrt = ", ".join(op.gradient.wrt) if op.gradient else "none"
        rows.append(f"| [{name}](#{name}) | {SHOWS[name]} | {wrt} | {mine} | {' | '.join(cells)} | {share} |")
        sections.append(_section(name, op))
    return f"{HEAD}\n" + "\n".join(rows) + "\n" + "".join(sections) + TAIL


def _section(name: str, op: Op) -> str:
    """Return the part of the page about an operator: its spec, and links to its kernels."""
    module = sys.modules[op.fn.__module__]
    up = "../examples/operators"
    links = [
        f"[{LABELS[backend]}{of}]({up}/generated/{folder}/{file})"
        for backend, folder in FOLDERS.items()
        for file, of in ((f"{name}.py", ""), (f"{name}_grad.py", ", gradient"))
        if (GENERATED / folder / file).exists()
    ]
    spec = _spec(op)
    refused = "".join(f"\n```text\n{text}\n```\n" for text in dict.fromkeys(refusals(op)))
    return (
        f"\n## {name}\n\n{inspect.getdoc(module)}\n[The module]({up}/gallery_ops/{name}.py). "
        f"Kernels: {', '.join(links)}.\n{refused}\n```py\n{spec}\n```\n\n"
        f"The forward in Triton, without the functions that it calls:\n\n```py\n{_kernels(name)}\n```\n"
    )


def _kernels(name: str) -> str:
    """Return the kernels of an operator's generated Triton module."""
    source = (GENERATED / FOLDERS["triton"] / f"{name}.py").read_text("utf-8")
    kernels = (each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef))
    lines = source.splitlines()
    own = [each for each in kernels if each.name.startswith(name)]
    return "\n\n".join("\n".join(lines[each.lineno - 2 : each.end_lineno]) for each in own)


if __name__ == "__main__":
    names = [op.qualified for op in operators().values()]
    if main(["gen", *names, "--out", str(GENERATED)]) == 0:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
