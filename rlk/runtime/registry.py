"""The registry of operators: those that rlk ships and those of others, by name or in a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rlk.errors import Code, LaunchError, Loc, RlkError, SpecError
from rlk.ir.nodes import Program
from rlk.ir.numerics import Tier, numerics_id, tier
from rlk.ir.types import TileType
from rlk.lang.op import OWN, Op, axes_of
from rlk.lang.record import Edge, Example, Record
from rlk.lang.types import StaticType
from rlk.passes.pipeline import specialize
from rlk.passes.walk import walk
from rlk.runtime.binding.checks import integer, is_choice, names_among, python_name, wrong_type, wrong_value
from rlk.runtime.call import library
from rlk.runtime.operator import publish
from rlk.target.facts import Target

if TYPE_CHECKING:
    import numpy as np


GROUP = "rlk.operators"
"""The group of entry points whose modules have operators; an entry point's name is their namespace."""
_others: dict[str, Op] = {}


def register(
    op: Op,
    *,
    namespace: str,
    reference: Callable[..., Any] | None = None,
    inputs: Callable[[np.random.Generator], dict[str, Any]] | None = None,
    gradient_inputs: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    extents: Mapping[str, int] | None = None,
    present: Sequence[str] = (),
    statics: Mapping[str, object] | None = None,
    usage: str = "",
    edges: Sequence[tuple[str, str, str]] = (),
) -> Op:
    """Make an operator known to torch, to the commands of `rlk`, and as `rlk.ops.<namespace>.<name>`.

    Compilers, fake tensors and DTensors see registered operators only. The namespace is yours alone: not
    "rlk", nor that of another package. Registering an operator again replaces it, if it is of the same file.

    reference: the operator in float64: takes what a call takes (tensors as float64), returns the result, or a
    dict of outputs by name; `rlk check` compares the operator with it. inputs: takes a generator of numpy,
    returns arrays and numbers by name, for inputs that their types do not describe; shapes fix extents.
    gradient_inputs: takes saved tensors by name and returns what the gradient takes beside them. extents:
    sizes at which `rlk show` and `rlk gen` write kernels; halved, also those of simulators in `rlk check`.
    present, statics: the optional inputs and options of that variant. usage: lines of Python for the
    operator's page, the tensors made in them. edges: (case, what happens, an expression that is true), f
    being the operator.

    Returns the operator. Raises LaunchError for a name that is taken, or is no name, and for arguments that
    name what the operator has not.
    """
    _check_record(op, extents, present, statics, usage, edges)
    for argument, fn in (("reference", reference), ("inputs", inputs), ("gradient_inputs", gradient_inputs)):
        if fn is not None and not callable(fn):
            raise wrong_type("rlk.register", argument, fn, "function")
    python_name("rlk.register", "namespace", namespace)
    python_name("rlk.register", "op", op.name)
    name = f"{namespace}.{op.name}"
    if op.name == "name":  # an attribute of torch.ops.<namespace>
        raise LaunchError(Code.NAME_TAKEN, name=name, by=f"torch.ops.{namespace}.name is torch's own")
    if namespace in _TORCH or namespace in _names_of_ops():
        whose = "torch's own operators" if namespace in _TORCH else f"rlk.ops.{namespace}"
        raise LaunchError(Code.NAME_TAKEN, name=f"namespace {namespace}", by=whose)
    old = _others.get(name)
    if namespace == OWN or (old is not None and not _same_place(old, op)):
        by = "rlk's own operators" if old is None else f"an operator of {old.loc}"
        raise LaunchError(Code.NAME_TAKEN, name=name, by=by)
    if op.calls.namespace not in ("", namespace):
        raise LaunchError(Code.NAME_TAKEN, name=op.name, by=f"it is registered as {op.qualified}")
    if old is not None:
        unregister(name)
    for defined in (op.name, *([op.gradient.name] if op.gradient is not None else [])):
        if library.defined(namespace, defined):
            by = f"torch.ops.{namespace}.{defined} is another package's"
            raise LaunchError(Code.NAME_TAKEN, name=name, by=by)
    example = None
    if inputs is not None or gradient_inputs is not None:
        example = Example(inputs or Example().inputs, gradient_inputs or Example().gradient)
    op.record = Record(
        reference, example, dict(extents or {}), tuple(present), dict(statics or {}),
        inspect.cleandoc(usage), tuple(Edge(*edge) for edge in edges),
    )  # fmt: skip
    library.register(op, namespace)
    try:
        publish(op)
    except BaseException:  # torch must not keep what is mended and registered again
        library.unregister(op)
        raise
    _others[name] = op
    return op


_TORCH = frozenset("aten prim prims torch c10d quantized onednn mkldnn inductor debugprims rngprims".split())
"""Namespaces of torch's own operators."""


def _names_of_ops() -> set[str]:
    """Return the names that `rlk.ops` has for other things than namespaces."""
    folder = Path(__file__).resolve().parents[1] / "ops"
    there = vars(sys.modules["rlk.ops"]) if "rlk.ops" in sys.modules else {}
    own = {name for name, value in there.items() if not isinstance(value, Namespace)}
    return own | {module.name for module in pkgutil.iter_modules([str(folder)])} | set(operators())


def _check_record(
    op: object, extents: object, present: object, statics: object, usage: object, edges: object
) -> None:
    """Refuse facts of an operator that are of another kind, or name what it has not."""
    at = "rlk.register"
    if not isinstance(op, Op):
        raise wrong_type(at, "op", op, "operator, a function under @op(...)")
    for name, given in (("extents", extents), ("statics", statics)):
        if given is not None and not isinstance(given, Mapping):
            raise wrong_type(at, name, given, "dict")
    for name, given in (("present", present), ("edges", edges)):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise wrong_type(at, name, given, "list")
    if not isinstance(usage, str):
        raise wrong_type(at, "usage", usage, "str")
    assert isinstance(present, Sequence) and isinstance(edges, Sequence)
    for axis, size in _known(extents, "extents", _axes(op)):
        integer(at, f"extents[{axis!r}]", size, 1, 2**31 - 1)
    list(_known(dict.fromkeys(present), "present", {f.name for f in op.formals if f.optional}))
    types = {f.name: f.type for f in op.formals if isinstance(f.type, StaticType)}
    for name, value in _known(statics, "statics", types):
        _check_static(f"statics[{name!r}]", types[name], value)
    for edge in edges:
        if not (isinstance(edge, Sequence) and len(edge) == 3 and all(isinstance(x, str) for x in edge)):
            wanted = "three texts: (case, what happens, an expression that is true)"
            raise wrong_value(at, "edges", edge, wanted)


def _check_static(name: str, type: StaticType, value: object) -> None:
    if type.several:
        names_among("rlk.register", name, value, type.choices)
    elif type.choices:
        is_choice("rlk.register", name, value, type.choices)


def _known(given: object, what: str, names: Collection[str]) -> Iterator[tuple[str, object]]:
    """Yield the members of a mapping; raise LaunchError for a name that is none of those there are."""
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if name not in names:
            choices = ", ".join(sorted(names)) or "none: the operator has none"
            raise LaunchError(
                Code.UNKNOWN_NAME, what=f"rlk.register: name in {what}=", name=name, choices=choices
            )
        yield name, value


def _axes(op: Op) -> set[str]:
    """Return the names of the axes of an operator and of its gradient."""
    formals = op.formals + (op.gradient.formals if op.gradient is not None else ())
    found = {axis.name for axis in axes_of(formals)} | {axis for axis, _ in op.bounds}
    kernels = op.trace(op.default_variant()).kernels
    types = [let.type for k in kernels for let in walk(k.body) if isinstance(let.type, TileType)]
    types += [d.type for k in kernels for d in k.params]
    return found | {axis.whole.name for type in types for axis in type.axes}


def _same_place(old: Op, new: Op) -> bool:
    """Return whether one operator is the other written again, as when a cell or a module is run twice."""
    return os.path.realpath(old.loc.file) == os.path.realpath(new.loc.file)


def unregister(name: str) -> None:
    """Remove an operator by its qualified name, from torch's registry as well."""
    library.unregister(_others.pop(name))


@cache
def load_entry_points() -> None:
    """Import the modules of the entry points of the group `rlk.operators`, once.

    A module may register its operators itself; those that it does not are registered in the namespace that is
    the entry point's name. One that cannot be imported is skipped, with a warning.
    """
    for point in metadata.entry_points(group=GROUP):
        before = set(_others)
        try:
            found = point.load()
            listed = [found] if isinstance(found, Op) else defined_in(found)
            for op in listed:
                if not op.calls.namespace:
                    register(op, namespace=point.name)
            why = _why_nothing(point.name, found)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            for name in set(_others) - before:  # of a package that is not whole
                unregister(name)
        if why:
            warnings.warn(f"rlk: operators of {point.name} ({point.value}) are left out: {why}", stacklevel=2)


def _why_nothing(name: str, found: object) -> str:
    """Return why an entry point has no operators; "" if it has."""
    if any(op.calls.namespace == name for op in _others.values()) or isinstance(found, Op):
        return ""
    if any(isinstance(value, Op) for value in vars(found).values()):
        return ""
    where = getattr(found, "__file__", None) or ", ".join(getattr(found, "__path__", ()))
    return f"{where} registers none"


def known() -> dict[str, Op]:
    """Return every operator by name: rlk's, then those of others as namespace.name."""
    load_entry_points()
    return {**operators(), **_others}


def others() -> dict[str, Op]:
    """Return the registered operators that are not rlk's, by qualified name."""
    load_entry_points()
    return dict(_others)


class Namespace:
    """The registered operators of a namespace, as attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Op:
        found = _others.get(f"{self._name}.{name}")
        if found is not None:
            return found
        if name.startswith("__"):
            raise AttributeError(name)
        choices = ", ".join(dir(self)) or "none"
        raise LaunchError(Code.UNKNOWN_NAME, what=f"operator of {self._name}", name=name, choices=choices)

    def __dir__(self) -> list[str]:
        return [op.name for op in _others.values() if op.calls.namespace == self._name]

    def __repr__(self) -> str:
        return f"<rlk.ops.{self._name}: {', '.join(dir(self))}>"


def namespaces() -> tuple[str, ...]:
    """Return the namespaces of other packages, in the order of registration."""
    load_entry_points()
    return tuple(dict.fromkeys(op.calls.namespace for op in _others.values()))


def namespace(name: str) -> Namespace | None:
    """Return a namespace that has operators, those of entry points among them."""
    if not any(op.calls.namespace == name for op in _others.values()):
        load_entry_points()
    return Namespace(name) if any(op.calls.namespace == name for op in _others.values()) else None


@cache
def operators() -> dict[str, Op]:
    """Return every operator that rlk ships, by name."""
    import rlk.specs

    names = (m.name for m in pkgutil.iter_modules(rlk.specs.__path__))
    modules = (importlib.import_module(f"rlk.specs.{name}") for name in names)
    return {op.name: op for module in modules for op in defined_in(module)}


def defined_in(module: ModuleType) -> Iterator[Op]:
    """Yield the operators that a module defines, in the order of its lines."""
    found = (value for value in vars(module).values() if isinstance(value, Op))
    yield from sorted((op for op in found if op.fn.__module__ == module.__name__), key=lambda op: op.loc.line)


def find(name: str) -> tuple[Op, ModuleType]:
    """Return an operator and the module of its spec: by name, or as path/to/spec.py:name.

    The file may define the operator or import it, under any name. Raises LaunchError with the names there
    are, SpecError for a file that is no spec.
    """
    path, colon, inside = name.rpartition(":")
    if not colon and not name.endswith(".py"):
        there = operators() if name in operators() else known()
        if name not in there:
            raise unknown(name, sorted(there))
        return there[name], sys.modules[there[name].fn.__module__]
    module = _module(Path(path if colon else name))
    there = {op.name: op for op in defined_in(module)}
    if not colon and len(there) == 1:
        return next(iter(there.values())), module
    imported = {n: op for n, op in vars(module).items() if isinstance(op, Op) and op not in there.values()}
    if inside not in there and inside in imported:
        op = imported[inside]
        return op, sys.modules[op.fn.__module__]
    if inside not in there:
        choices = [f"{path or name}:{n}" for n in (*there, *imported)]
        if inside in known():  # such as a function of rlk.ops that the file imports
            choices = [inside, *choices]
        said = ", ".join(choices) or "none: the file has no @op, and imports none"
        raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=inside or name, choices=said)
    return there[inside], module


def unknown(name: str, choices: Iterable[str]) -> LaunchError:
    """Return the error for an operator that none of these is, or for a namespace that is not there."""
    space, dot, op = name.rpartition(".")
    if dot and space != OWN and space not in namespaces():
        there = ", ".join(namespaces()) or "none"
        return LaunchError(Code.UNKNOWN_NAMESPACE, name=space, op=op, choices=there)
    every = list(choices)
    near = get_close_matches(name, every, 3)
    said = f"{', '.join(near)}; rlk list has all" if near else ", ".join(every)
    return LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=said)


def _module(path: Path) -> ModuleType:
    """Import the spec file at a path, under a name of its own; raise SpecError where that fails."""
    if not path.is_file():
        raise LaunchError(Code.ARG_VALUE, op="rlk", name="OP", value=str(path), wanted="a file that exists")
    name, place = f"rlk_spec_{path.stem}", str(path.resolve())
    spec = importlib.util.spec_from_loader(name, SourceFileLoader(name, place), origin=place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for the module of a class
    sys.path.append(str(path.resolve().parent))  # a spec may import what stands beside it, as a script may
    try:
        with _located(place):
            spec.loader.exec_module(module)
        return module
    except SyntaxError as error:
        raise _failed(Loc(error.filename or place, error.lineno or 0), error.msg) from error
    except (OSError, ValueError) as error:  # it cannot be read, or is no text
        raise _failed(Loc(place), str(error)) from error


@contextmanager
def authored(op: Op) -> Iterator[None]:
    """Raise errors of an operator's own file as a SpecError at its line, and other errors unchanged."""
    with _located(op.fn.__code__.co_filename):
        yield


@contextmanager
def _located(file: str) -> Iterator[None]:
    try:
        yield
    except RlkError:
        raise
    except (Exception, SystemExit) as error:
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        if not lines:
            raise
        raise _failed(Loc(file, lines[-1]), f"{type(error).__name__}: {error}") from error


def _failed(place: Loc, why: str) -> SpecError:
    return SpecError(Code.SPEC_FAILS, place, why=" ".join(why.split()))


def numerics(program: Program, on: Target) -> tuple[str, dict[str, Tier]]:
    """Return the numerics id of a canonical program on a target, and the tier of each output."""
    bound = specialize(program, {}, on.softmax)
    return numerics_id((bound,), on.name), tier(bound, on.name)
