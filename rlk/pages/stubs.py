"""Stubs (.pyi) of operators for editors and type checkers: real signatures, docstrings, methods."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import rlk.ops
from rlk.lang.op import Op
from rlk.ops import OPERATORS
from rlk.runtime.operator import shown_outputs

PUBLIC = Path(rlk.ops.__file__).with_suffix(".pyi")
"""The stub of `rlk.ops`, beside its source."""
ROOT = Path(rlk.__file__).with_suffix(".pyi")
"""That of `rlk`, whose names are imported when they are used: a type checker sees none of them."""
MARK = "# written by rlk gen"
"""The first line of a stub: no other one is overwritten."""


def stubs() -> dict[Path, str]:
    """Return rlk's own stubs by their files."""
    return {ROOT: root_stub(), PUBLIC: public_stub()}


def root_stub() -> str:
    """Return the stub of `rlk`."""
    names = {name: module if attribute else "rlk" for name, (module, attribute) in rlk.LAZY.items()}
    return _text("The names that `import rlk` offers.", _lines(names, names), ["__version__: str"])


def public_stub() -> str:
    """Return the stub of `rlk.ops`: a class for each operator, and its other names where they come from."""
    classes: list[str] = []
    names = {"Namespace": "rlk.runtime.registry"}
    origins = _imported(rlk.ops)
    for name in rlk.ops.__all__:
        if name in OPERATORS:
            fn = OPERATORS[name].fn
            classes += _class(name, fn, "Operator", _returns(fn))
            names |= _names(fn)
        elif name in origins:
            names[name] = origins[name]
    tail = [
        "OPERATORS: dict[str, Operator]",
        "",
        "def __getattr__(name: str) -> Namespace: ...  # the operators of another package",
    ]
    text = "The public operators, `rlk.ops.logp(...)`."
    return _text(text, _lines(names, set(rlk.ops.__all__)), [*classes, *tail])


def module_stub(module: ModuleType, ops: Sequence[Op]) -> str:
    """Return the stub of a module of another package with these operators; its other names are Any."""
    classes: list[str] = []
    names = {"Any": "typing", "Op": "rlk.lang.op"}
    for op in ops:
        fn = op.public
        made, returns = _results(op, _returns(fn))
        classes += [*made, *_class(op.name, fn, "Op", returns)]
        names |= _names(fn)
    doc = (inspect.getdoc(module) or f"The operators of {module.__name__}.").splitlines()[0]
    return _text(doc, _lines(names), [*classes, "def __getattr__(name: str) -> Any: ..."])


def _text(doc: str, imports: Sequence[str], body: list[str]) -> str:
    return "\n".join([MARK, f'"""{doc}"""', "", *imports, "", *body]) + "\n"


def _lines(names: Mapping[str, str], shown: Collection[str] = ()) -> list[str]:
    """Return the imports of names from modules, of a module itself where that is "".

    shown: the names that are those of the stub as well.
    """
    modules = sorted(f"import {name}" for name, module in names.items() if not module)
    found = sorted((module, name) for name, module in names.items() if module)
    again = {name: f" as {name}" for name in shown}  # so that a type checker takes it for the stub's own
    return [*modules, *(f"from {module} import {name}{again.get(name, '')}" for module, name in found)]


def _class(name: str, fn: Callable[..., Any], base: str, returns: str) -> Iterator[str]:
    """Yield the class of an operator, whose call has its signature, and the operator."""
    kind = f"_{_camel(name)}"
    yield f"class {kind}({base}):"
    parameters = list(inspect.signature(fn).parameters.values())
    listed = [_parameter(p) for p in parameters]
    keyword = [p.kind is p.KEYWORD_ONLY for p in parameters]
    if True in keyword:
        listed.insert(keyword.index(True), "*")
    yield "    def __call__("
    yield from (f"        {line}," for line in ("self", *listed))
    yield f"    ) -> {returns}:"
    doc = (inspect.getdoc(fn) or "").replace("\\", "\\\\").replace('"""', r"\"\"\"")
    yield textwrap.indent(f'"""{doc}\n"""', " " * 8, lambda line: bool(line.strip()))
    yield ""
    yield f"{name}: {kind}"
    yield ""


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _parameter(parameter: inspect.Parameter) -> str:
    annotation = "Any" if parameter.annotation is parameter.empty else parameter.annotation
    said = f"{parameter.name}: {_written(annotation)}"
    return said if parameter.default is parameter.empty else f"{said} = {_default(parameter.default)}"


def _written(annotation: Any) -> str:
    """Return an annotation as text: modules with annotations of later versions of Python have it so."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: object) -> str:
    """Return a default as its literal, or ... for one that has none."""
    try:
        return repr(value) if ast.literal_eval(repr(value)) == value else "..."
    except (SyntaxError, ValueError):
        return "..."


def _returns(fn: Callable[..., Any]) -> str:
    return _written(inspect.signature(fn).return_annotation)


def _results(op: Op, returns: str) -> tuple[list[str], str]:
    """Return the class of several results, with a name for each, and what a call returns with that class."""
    several = "tuple[torch.Tensor, ...]"
    if several not in returns:
        return [], returns
    kind = f"_{_camel(op.name)}Results"
    names = tuple(op.returns.values()) or shown_outputs(op)
    fields = [f"    {name}: torch.Tensor" for name in names]
    return [f"class {kind}({several}):", *fields, ""], returns.replace(several, kind)


def _names(fn: Callable[..., Any]) -> dict[str, str]:
    """Return the names in a function's annotations with their modules, "" for the name of a module."""
    signature = inspect.signature(fn)
    annotations = [p.annotation for p in signature.parameters.values()] + [signature.return_annotation]
    used = {n.id for a in annotations for n in ast.walk(ast.parse(_written(a))) if isinstance(n, ast.Name)}
    known: Mapping[str, Any] = inspect.unwrap(fn).__globals__
    return {name: _home(fn, name, known[name]) for name in sorted(used & known.keys())}


def _home(fn: Callable[..., Any], name: str, found: Any) -> str:
    """Return the module that defines what a function's annotation names, "" for a module."""
    if isinstance(found, ModuleType):
        package, _, last = found.__name__.rpartition(".")
        return package if last == name else _imported(sys.modules[fn.__module__]).get(name, "")
    home = getattr(found, "__module__", None)
    if home is not None and getattr(sys.modules.get(home), name, None) is found:
        return str(home)
    return _imported(sys.modules[fn.__module__]).get(name, fn.__module__)  # an alias, such as a union


def _imported(module: ModuleType) -> dict[str, str]:
    """Return the names that a module imports, each with the module that it is imported from."""
    nodes = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: str(node.module) for node in found for alias in node.names}
