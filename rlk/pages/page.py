"""The page of a public operator, section by section, mostly from its specs."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import rlk
from rlk.errors import UnsupportedError
from rlk.ir.dims import Axis
from rlk.ir.nodes import MathModel, Program
from rlk.ir.numerics import Tier
from rlk.ir.tree import Rule
from rlk.lang.op import Formal, Op, Variant
from rlk.lang.types import DTypeVar, ScalarType, TensorType
from rlk.lang.variants import cotangents, differentiable, gradient_variant, outputs
from rlk.ops import LOSSES, OPERATORS
from rlk.ops.collective import OVER_RANKS
from rlk.pages.facts import facts_of
from rlk.pages.order import orders, part_of, words
from rlk.runtime.binding.invocation import Invocation, judged
from rlk.runtime.call.dispatch import Decision, lowering
from rlk.runtime.prefetch import joined
from rlk.runtime.reference import emit, placed, reference_extents, reference_gradient, reference_variant
from rlk.runtime.registry import others
from rlk.target.facts import Target, target

TARGETS = ("sm_90a", "sm_80", "gfx942")
SECTIONS = (
    "Signature", "Example", "Formula", "Arguments and results", "Shapes, dtypes, roles", "Gradients",
    "Order of additions", "Edges", "Where it runs", "Numerics", "Benchmark",
)  # fmt: skip
ROOT = Path(rlk.__file__).resolve().parents[1]


def public() -> dict[str, Callable[..., Any]]:
    """Return every public operator by name, those of other packages as namespace.name."""
    made: dict[str, Callable[..., Any]] = {name: operator.fn for name, operator in OPERATORS.items()}
    return {**made, **OVER_RANKS, **{name: op.public for name, op in others().items()}}


def page(name: str, targets: Sequence[str] = TARGETS) -> str:
    """Return the page of an operator as Markdown.

    targets: whose lowerings are asked whether they have it, which takes a second or two.
    """
    written: dict[str, Iterable[str]] = {
        "Signature": _signature(name), "Formula": _formula(name), "Arguments and results": _arguments(name),
        "Shapes, dtypes, roles": _shapes(name), "Gradients": _gradients(name),
        "Order of additions": _orders(name), "Edges": _edges(name), "Example": _example(name),
        "Where it runs": _lowerings(name, targets), "Numerics": _numerics(name),
        "Benchmark": _benchmark(name),
    }  # fmt: skip
    lines = [f"# {name}", "", prose(_doc(name).partition("\n\n")[0])]
    for section in SECTIONS:
        lines += ["", f"## {section}", "", *written[section]]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def index() -> str:
    """Return the page that lists the operators."""
    rows = [
        (
            f"[{name}]({name}.md)",
            prose(_doc(name).partition("\n\n")[0]).removeprefix("Return "),
            ", ".join(differentiable_in(name)),
        )
        for name in public()
    ]
    text = "Every page is written from the operator's spec; its examples and edges are run by tests."
    return "\n".join(["# Operators", "", text, "", *table(("operator", "returns", "gradients"), rows)]) + "\n"


def backends(targets: Sequence[str] = TARGETS) -> str:
    """Return the page that says which lowering has which operator."""
    specs = dict.fromkeys(spec for name in public() for spec in specs_of(name))
    return "\n".join(["# Backends", "", *_BACKENDS, "", *_matrix(specs, targets)]) + "\n"


_BACKENDS = (
    "On CPU tensors the oracle runs, on a GPU kernels that Triton compiles, or CuTe: on Hopper, where its",
    "compiler is installed, for products and heads of more than 1024 rows. `RLK_BACKEND` asks for another:",
    "",
    "- `triton`: on every GPU.",
    "- `cute`: on Hopper. Where it has no form for a call, Triton's kernel runs: the same id, the same bits.",
    "- `tilelang`: on CDNA and Hopper. What it has no form for is refused.",
    "",
    "`rlk.explain(op, ...)` says what a call runs and where its kernels come from: a store, a compiler,",
    "[a wheel](../aot.md).",
    "",
    "A yes below is source that was written; [limits](../limits.md) says what has run on a device.",
    "",
)


# --- what an operator is made of ---


def specs_of(name: str) -> tuple[Op, ...]:
    """Return the specs that are an operator's own, and no public operator's beside it."""
    if name in others():
        return (others()[name],)
    if name not in OPERATORS:
        return ()
    own = [spec for spec in OPERATORS[name].specs if spec.name == name or spec.name not in OPERATORS]
    return (*own, *OPERATORS[name].forms)


def parts_of(name: str) -> tuple[str, ...]:
    """Return the public operators that an operator runs."""
    specs = OPERATORS[name].specs if name in OPERATORS else ()
    return tuple(dict.fromkeys(s.name for s in specs if s.name in OPERATORS and s.name != name))


@cache
def programs(spec: Op) -> dict[str, Program]:
    """Return the traced forward of an operator's reference, and its gradient if there is one."""
    variant = reference_variant(spec)
    found = {"forward": spec.trace(variant)}
    wanted, given = differentiable(spec, variant), cotangents(spec, variant)
    if spec.gradient is not None and wanted and given:
        found["gradient"] = spec.gradient.trace(gradient_variant(variant, wanted, given))
    return found


def differentiable_in(name: str) -> tuple[str, ...]:
    """Return the arguments that have a gradient, from the docstring, which tests verify."""
    said = re.search(r"Differentiable\s+in\s+([^.:;(]*?)(?:,? through|[.:;(])", _doc(name))
    assert said is not None, f"the docstring of {name} does not say what it is differentiable in"
    return tuple(n for n in inspect.signature(public()[name]).parameters if re.search(rf"\b{n}\b", said[1]))


def _doc(name: str) -> str:
    return inspect.getdoc(public()[name]) or ""


# --- Markdown ---


def prose(text: str) -> str:
    """Return a docstring as Markdown: its markup stays, decisions become links."""
    marked = re.sub(r"(?<!`)docs/(decisions/\d{4})-\*", _decision, text)
    parts = re.split(r"(`[^`]*`|\[[^]]*\]\(\S+\.md\))", marked)
    parts[::2] = [re.sub(r"([\\*_<\[|])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def explained(text: str, names: Iterable[str]) -> Iterator[str]:
    """Yield a docstring as Markdown, an item of a list for each of the names that it explains as `name:`."""
    one = "|".join(map(re.escape, names)) or "$^"
    split = re.compile(rf"(?:^|(?<=[.,;\n])\s*)((?:(?:{one}), )*(?:{one})):\s")
    for paragraph in text.split("\n\n"):
        before, *items = split.split(paragraph)
        yield from ("", prose(before), "")
        for listed, said in zip(items[::2], items[1::2], strict=True):
            bold = ", ".join(f"**`{name}`**" for name in listed.split(", "))
            yield f"- {bold}: " + prose(said.strip().rstrip(",;")).replace("\n", "\n  ")


def _decision(found: re.Match[str]) -> str:
    file = next((ROOT / "docs").glob(f"{found[1]}-*.md"), None)
    return found[0] if file is None else f"[decision {int(found[1][-4:])}](../decisions/{file.name})"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def _headed(specs: Sequence[Op], of: Callable[[Op], Iterable[str]]) -> Iterator[str]:
    """Yield the text of each spec, under its name if there are several."""
    for spec in specs:
        if len(specs) > 1:
            yield from ("", f"### {spec.name}", "")
        yield from of(spec)


def _parts(name: str) -> list[str]:
    links = " and ".join(f"[{part}]({part}.md)" for part in parts_of(name))
    return ["", f"It runs {links}, whose pages say the rest."] if links else []


# --- sections ---


def _signature(name: str) -> Iterator[str]:
    signature = inspect.signature(public()[name])
    parameters = signature.parameters.values()
    shown = [_parameter(p) for p in parameters]
    keyword = [p.kind is p.KEYWORD_ONLY for p in parameters]
    if True in keyword:
        shown.insert(keyword.index(True), "*")
    result = signature.return_annotation
    yield from ("```python", f"rlk.ops.{name}(", *(f"    {each}," for each in shown), f") -> {result}", "```")


def _parameter(p: inspect.Parameter) -> str:
    return f"{p.name}: {p.annotation}" + ("" if p.default is p.empty else f" = {p.default!r}")


def _formula(name: str) -> Iterator[str]:
    def said(spec: Op) -> Iterator[str]:
        yield prose(spec.doc)
        if spec.gradient is not None:
            yield from ("", "Gradient: " + prose(spec.gradient.doc))

    yield from _headed(specs_of(name), said) if specs_of(name) else [prose(_doc(name).partition("\n\n")[0])]
    yield from _parts(name)


def _arguments(name: str) -> Iterator[str]:
    signature = inspect.signature(public()[name])
    yield from explained(_doc(name).partition("\n\n")[2], signature.parameters)
    hints = typing.get_type_hints(public()[name]).values()
    flat = (part for hint in hints for part in (hint, *typing.get_args(hint)))
    for kind in dict.fromkeys(k for k in flat if getattr(k, "__module__", "").startswith("rlk")):
        yield from ("", f"### {kind.__name__}", "")
        yield from explained(inspect.getdoc(kind) or "", inspect.get_annotations(kind))
        if kind.__name__ == "Loss":
            yield from ("", "Names: " + ", ".join(f"`{each}`" for each in LOSSES))
            yield from ("", "Their formulas, and how to write one: [policy losses](../losses.md).")


def _shapes(name: str) -> Iterator[str]:
    def said(spec: Op) -> Iterator[str]:
        variant = reference_variant(spec)
        every = Variant(variant.dtypes, frozenset(f.name for f in spec.formals))
        slopes = differentiable(spec, every)
        inputs = [(f"`{f.name}`", *_kind(f), "yes" if f.name in slopes else "") for f in spec.formals]
        yield from table(("input", "dtype", "dims", "is", "gradient"), inputs)
        takes = cotangents(spec, variant)
        made = [(d, "yes" if d.name in takes else "") for d in outputs(programs(spec)["forward"])]
        rows = [(f"`{d.name}`", d.type.dtype, _dims(d.type.axes), takes) for d, takes in made]
        yield from ("", *table(("output", "dtype, of the first variant", "dims", "takes a gradient"), rows))
        kept = [f"`{d.name}`" for d, _ in made if spec.returns and d.name not in spec.returns]
        if kept:
            yield from ("", f"Kept for the gradient, and not returned by a call: {', '.join(kept)}.")
        yield from ("", *table(("axis", "extent", "role", "cut"), _axes(spec)))

    specs = specs_of(name)
    if specs:
        yield "Of the spec, which the options above are mapped to; layouts and lists arrive as tensors."
    yield from ("", *_headed(specs, said), *_parts(name))
    if not specs and not parts_of(name):
        yield "No spec of the tile IR: ranks exchange what torch.distributed carries."


def _kind(formal: Formal) -> tuple[str, str, str]:
    match formal.type:
        case TensorType(dtype=dtype, axes=axes):
            choices = dtype.choices if isinstance(dtype, DTypeVar) else (dtype,)
            named = f" ({dtype.name})" if isinstance(dtype, DTypeVar) else ""
            what = "tensor, optional" if formal.optional else "tensor"
            return " or ".join(map(str, choices)) + named, _dims(axes), what
        case ScalarType(dtype=dtype):
            return str(dtype), "", "number, optional" if formal.optional else "number"
        case found:
            listed = ", ".join(f"`{c}`" for c in found.choices)
            return "", "", f"one of {listed}" if listed else "names"


def _dims(axes: Sequence[Axis]) -> str:
    return f"`[{', '.join(map(str, axes))}]`"


def _axes(spec: Op) -> Iterator[tuple[str, ...]]:
    axes: dict[Axis, set[str]] = {}
    for program in programs(spec).values():
        for axis, part in part_of(program):
            axes.setdefault(axis.whole, set()).add(part)
    for axis, parts in sorted(axes.items(), key=lambda item: item[0].name):
        cuts = (("chunk", axis.chunk), ("split", axis.split), ("piece", axis.piece), ("fan-in", axis.fan_in))
        cut = ", ".join(f"{what} {n}" for what, n in cuts if n and n > 1)
        extent = "at run time" if axis.dynamic else "static"
        ragged = f", a segment for each index of {axis.over}" if axis.over else ""
        yield f"`{axis.name}`", extent + ragged, ", ".join(sorted(parts)), cut


def _gradients(name: str) -> Iterator[str]:
    names = " and ".join(f"`{n}`" for n in differentiable_in(name))
    if not names:
        yield "None. What requires a gradient raises `NOT_DIFFERENTIABLE` where nothing else is said."
        return
    fn: Any = public()[name]
    taken = [cotangents(spec, reference_variant(spec)) for spec in getattr(fn, "specs", ())]
    through = f", through {' and '.join(f'`{n}`' for n in taken[-1])}" if taken and taken[-1] else ""
    yield f"In {names}{through}. An input that needs no gradient costs none. Asking for the gradient of"
    yield "another one raises `NOT_DIFFERENTIABLE`, differentiating twice `DOUBLE_BACKWARD`."


def _orders(name: str) -> Iterator[str]:
    def said(spec: Op) -> Iterator[str]:
        found = [(what, text) for what, program in programs(spec).items() for text in orders(program)]
        yield from [f"- {what}: {prose(text)}" for what, text in found] or ["It adds no floats."]

    specs = specs_of(name)
    if specs:
        yield "Of the reference variant; integers and maxima have no order."
    yield from ("", *_headed(specs, said), *_parts(name))
    if not specs and not parts_of(name):
        yield f"- {words(Rule.PAIRWISE)} over ranks"


def _edges(name: str) -> Iterator[str]:
    edges = facts_of(name).edges
    if not edges:
        yield "Its registration names none."
        return
    yield "`f` is the operator, other names are those of the example; `same` compares bits, not values:"
    rows = [(prose(e.case), prose(e.happens), f"`{e.code}`") for e in edges]
    yield from ("", *table(("case", "what happens", "in Python"), rows), "")
    yield "A tensor of a dtype that is not listed raises `LaunchError`, and nothing is launched."


def _example(name: str) -> Iterator[str]:
    yield from ("```python", shown(name), "```")


def shown(name: str) -> str:
    """Return an operator's example as one can run it."""
    usage = facts_of(name).usage or "# its registration has no usage="
    return f"import torch\n\nimport rlk\n\n{usage}"


def _lowerings(name: str, targets: Sequence[str]) -> Iterator[str]:
    yield "On CPU tensors the oracle runs it." if specs_of(name) else "Wherever its parts do."
    yield from _matrix(specs_of(name), targets)
    yield from ("", f"`rlk.ops.{name}.explain(...)`, with the arguments of a call, says what it runs.")


def _matrix(specs: Iterable[Op], targets: Sequence[str]) -> Iterator[str]:
    """Yield which lowering has which program, and why others have not."""
    asked = ((spec.name, found) for spec in specs for found in lowered(spec, tuple(targets)))
    found = {(name, what, on, by): why for name, (what, on, by, why) in asked}
    columns = list(dict.fromkeys((on, by) for _, _, on, by in found))
    rows = [
        (f"{name}, {what}", *("no" if found[name, what, *column] else "yes" for column in columns))
        for name, what in dict.fromkeys((name, what) for name, what, _, _ in found)
    ]
    if rows:
        yield "Lowerings were asked for kernels of the reference shapes; one that says no may have others."
        yield from ("", *table(("program", *(f"{by}, {on}" for on, by in columns)), rows), "")
        reasons = (f"- {by}, {on}, {name}: {why}" for (name, _, on, by), why in found.items() if why)
        yield from map(prose, dict.fromkeys(reasons))


@cache
def lowered(spec: Op, targets: tuple[str, ...]) -> tuple[tuple[str, str, str, str], ...]:
    """Return, for forward and gradient, target and backend, why there is no form; "" where there is one."""
    variant = reference_variant(spec)
    forward = placed(spec, spec.trace_for_kernels(variant))
    made = {"forward": forward, "gradient": reference_gradient(spec, variant)}
    return tuple(
        (what, on.name, backend, _refusal(spec, program, on, backend))
        for on in map(target, targets)
        for what, program in made.items()
        if program is not None
        for backend in lowering(on)
    )


def _refusal(spec: Op, program: Program, on: Target, backend: str) -> str:
    try:
        emit(program, reference_extents(spec, program), on, backend)
    except UnsupportedError as error:
        return error.diagnostics[0].message
    return ""


def _numerics(name: str) -> Iterator[str]:
    fn: Any = public()[name]
    asked = [("cpu", fn.explain("cpu"))]
    if hasattr(fn, "specs"):
        asked += [(on, _decided(fn.specs, on)) for on in TARGETS]
    rows = []
    for on, decision in asked:
        pinned = ", ".join(f"`{n}`" for n, tier in decision.tiers if tier is Tier.PINNED)
        rows.append((f"`{on}`", f"`{decision.numerics_id}`", f"pinned: {pinned}" if pinned else "exact"))
    yield from table(("target", "numerics id of the plain variant", "tiers"), rows)
    yield from ("", "Equal ids have equal bits. exact: the oracle predicts them; pinned: they repeat.")


def _decided(specs: Sequence[Op], on: str) -> Decision:
    model: MathModel = target(on).softmax
    parts = [Invocation(spec, spec.default_variant(), model) for spec in specs]
    return joined([Decision((), on, model, *judged(part, model, on)) for part in parts])


def _benchmark(name: str) -> Iterator[str]:
    families = sorted({family for op, family in _measured() if op == name})
    commands = [f"$ python -m benchmarks.{family} --only {name}" for family in families]
    nothing = "rlk measures its own operators." if name in others() else "None measures it by itself yet."
    yield from ("```console", *commands, "```") if commands else [nothing]


@cache
def _measured() -> tuple[tuple[str, str], ...]:
    """Return which operator is measured by which family of benchmarks, in a checkout."""
    files = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    written = re.compile(r'(?:op=|^ +)"(\w+)"(?:,$|: Call)', re.MULTILINE)
    named = [(op, f.stem) for f in files for op in written.findall(f.read_text(encoding="utf-8"))]
    results = sorted((ROOT / "benchmarks" / "results").rglob("*.json"))
    rows = [(row["op"], f"bench_{f.stem}") for f in results for row in json.loads(f.read_text())["rows"]]
    return (*named, *rows)
