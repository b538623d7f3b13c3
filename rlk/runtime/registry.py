"""The registry of operators: lookup by name or in a file, and numerics ids."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from rlk.errors import Code, LaunchError, Loc, RlkError, SpecError
from rlk.ir.nodes import Program
from rlk.ir.numerics import Tier, numerics_id, tier
from rlk.lang.op import Op
from rlk.passes.pipeline import specialize
from rlk.target.facts import Target


@cache
def operators() -> dict[str, Op]:
    """Return every operator that rlk ships, by name."""
    import rlk.specs

    names = (m.name for m in pkgutil.iter_modules(rlk.specs.__path__))
    modules = (importlib.import_module(f"rlk.specs.{name}") for name in names)
    return {op.name: op for module in modules for op in _ops(module)}


def _ops(module: ModuleType) -> Iterator[Op]:
    """Yield the operators that a module defines, in the order of its lines."""
    found = (value for value in vars(module).values() if isinstance(value, Op))
    yield from sorted((op for op in found if op.fn.__module__ == module.__name__), key=lambda op: op.loc.line)


def find(name: str) -> tuple[Op, ModuleType]:
    """Return an operator and the module of its spec: by name, or as path/to/spec.py:name.

    Raises LaunchError with the names there are, SpecError for a file that is no spec.
    """
    path, colon, inside = name.rpartition(":")
    if not colon and not name.endswith(".py"):
        shipped = operators()
        if name not in shipped:
            choices = ", ".join(sorted(shipped))
            raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=name, choices=choices)
        return shipped[name], sys.modules[shipped[name].fn.__module__]
    module = _module(Path(path if colon else name))
    there = {op.name: op for op in _ops(module)}
    if not colon and len(there) == 1:
        return next(iter(there.values())), module
    if inside not in there:
        choices = ", ".join(f"{path or name}:{n}" for n in there) or "none: the file has no @op"
        raise LaunchError(Code.UNKNOWN_NAME, what="operator", name=inside or name, choices=choices)
    return there[inside], module


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
