"""Digests of everything that the trace of a spec reads, by the objects that are there and not by files.

A trace runs the author's Python. Everything that it can read is followed from the spec's function: code,
defaults, closures, and the globals that its code names, functions and classes among them in the same way. A
spec that reads what cannot be followed (an import in a function, the environment, a clock, a cache, an object
of an extension module) has no digest, and every process traces it.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

PACKAGE = str(Path(__file__).resolve().parents[1])
_OWN = ("rlk.lang", "rlk.ir", "rlk.specs", "rlk.errors")
"""Packages of rlk whose functions and classes go by their names: keys of what is kept digest rlk's text."""
_PURE = frozenset(
    "math cmath operator _operator functools _functools itertools enum dataclasses typing types abc "
    "collections collections.abc numbers fractions reprlib".split()
)
"""Modules of Python whose functions and classes go by their names: results depend on arguments alone."""
_BUILTINS = frozenset(
    "abs all any ascii bin bool bytearray bytes callable chr complex dict divmod enumerate filter float "
    "format frozenset getattr hasattr hex int isinstance issubclass iter len list map max min next "
    "object oct ord pow print property range repr reversed round set slice sorted staticmethod "
    "classmethod str sum super tuple type zip None True False Ellipsis NotImplemented __build_class__ "
    "__debug__ __name__".split()
)
_UNFOLLOWED = frozenset(
    "__globals__ __builtins__ __self__ __subclasses__ __import__ __loader__ __spec__ f_globals f_locals "
    "f_back f_builtins gi_frame ag_frame cr_frame tb_frame modules __doc__ __annotations__ __annotate__ "
    "get_type_hints __dataclass_params__ __parameters__ __orig_bases__".split()
)
"""Names through which code reads what it does not name, or what is not followed."""
_SKIPPED = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __annotate__ __annotate_func__ "
    "__annotations_cache__ __dataclass_params__ __abstractmethods__ _abc_impl __firstlineno__ "
    "__static_attributes__ __parameters__ __orig_bases__ __slots__ __hash__".split()
)
"""Attributes of classes that the class statement or a decorator writes, or that decide no value."""
_SCALARS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    types.NoneType,
    types.EllipsisType,
    types.NotImplementedType,
)
_CONTAINERS = (int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_REFUSED = frozenset({"IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_MOST = 20_000
"""Objects, beyond which a spec counts as one that cannot be followed."""


class _UnknownError(Exception):
    """Something that a trace may read and that has no digest."""


class Unset(Enum):
    """The digest of a spec that was not traced yet."""

    UNSET = ""


@functools.cache
def is_rlks(file: str) -> bool:
    """Return whether a file is one of rlk, whose text keys of what is kept digest."""
    return os.path.isabs(file) and os.path.realpath(file).startswith(f"{PACKAGE}{os.sep}")


def digest_of(*what: object) -> str | None:
    """Return a digest of values and of everything that calls of the functions among them read.

    None where something cannot be followed.
    """
    try:
        facts = _Walk().value(what)
    except (_UnknownError, RecursionError, AttributeError, TypeError, ValueError):
        return None
    version = (sys.implementation.cache_tag, *sys.version_info[:3])
    return hashlib.sha256(repr((version, facts)).encode("utf-8", "surrogatepass")).hexdigest()


# --- code ---


@dataclass(frozen=True, slots=True)
class _Code:
    """Facts of a code object, and of those in it, that no value changes.

    reads: names of globals, each with the attributes that are read of it at once.
    """

    code: types.CodeType
    facts: tuple[object, ...]
    reads: tuple[tuple[str, tuple[str, ...]], ...]


_codes: dict[int, _Code] = {}


def _facts_of(code: types.CodeType) -> _Code:
    found = _codes.get(id(code))
    if found is None:
        found = _codes[id(code)] = _Code(code, _written(code), tuple(sorted(set(_names(code)))))
    return found


def _written(code: types.CodeType) -> tuple[object, ...]:
    """Return what is written in a code object; lines and files are in comments of kernels."""
    return (
        code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
        code.co_exceptiontable, code.co_firstlineno, code.co_linetable, Path(code.co_filename).parts[-2:],
        tuple(map(_constant, code.co_consts)),
    )  # fmt: skip


def _constant(value: object) -> object:
    match value:
        case types.CodeType():
            return _written(value)
        case tuple():
            return tuple(map(_constant, value))
        case frozenset():
            return ("frozenset", tuple(sorted(map(repr, value))))
        case _:
            return (type(value).__name__, repr(value))


def _names(code: types.CodeType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the globals that code reads, each with the attributes that are read of it at once."""
    if not _UNFOLLOWED.isdisjoint((*code.co_names, *(c for c in code.co_consts if isinstance(c, str)))):
        raise _UnknownError
    root, chain = "", []
    for at in (i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"):
        if at.opname in _REFUSED:
            raise _UnknownError
        if root and at.opname in _ATTRIBUTES and not at.is_jump_target:
            chain.append(str(at.argval))
            continue
        if root:
            yield root, tuple(chain)
        root, chain = (str(at.argval), []) if at.opname in _GLOBALS else ("", [])
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


# --- values ---


class _Walk:
    """One walk over objects: those that may be met again are numbered, and kept so that no id is reused."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        self._kept: list[object] = []

    def _first(self, x: object) -> bool:
        if id(x) in self._met:
            return False
        self._met[id(x)] = len(self._kept)
        self._kept.append(x)
        if len(self._kept) > _MOST:
            raise _UnknownError
        return True

    def value(self, x: object) -> object:
        """Return what is read of a value, as nested tuples of texts and numbers."""
        if type(x) in _SCALARS:
            return (type(x).__name__, repr(x))
        if type(x) is tuple:
            return ("tuple", *map(self.value, x))
        if type(x) is frozenset or type(x) is set:
            return self._set(x)
        if isinstance(x, types.ModuleType):
            raise _UnknownError
        if _is_named(x):
            return ("named", x.__module__, x.__qualname__)  # type: ignore[attr-defined]
        if isinstance(x, types.CellType):
            return ("cell", self.value(x.cell_contents)) if _is_filled(x) else ("cell",)
        if not self._first(x):
            return ("met", self._met[id(x)])
        return self._object(x)

    def _object(self, x: Any) -> object:
        """Return what is read of an object that is met for the first time."""
        followed = getattr(type(x), "read_by_traces", None)
        if followed is not None and _is_named(type(x)):
            return (type(x).__name__, *map(self.value, followed(x)))
        match x:
            case types.FunctionType():
                return self._function(x)
            case types.MethodType():
                return ("method", self.value(x.__func__), self.value(x.__self__))
            case property():
                return ("property", *map(self.value, (x.fget, x.fset, x.fdel)))
            case staticmethod() | classmethod():
                return (type(x).__name__, self.value(x.__func__))
            case types.GetSetDescriptorType() | types.MemberDescriptorType():
                return ("slot", x.__name__)
            case types.BuiltinMethodType() | types.MethodWrapperType():
                return ("bound", x.__name__, self.value(x.__self__))
            case types.WrapperDescriptorType() | types.MethodDescriptorType():
                return ("unbound", x.__name__, self.value(x.__objclass__))
            case types.UnionType():
                return ("union", *map(self.value, x.__args__))
            case range():
                return ("range", repr(x))
            case _ if type(x) is functools.partial:
                return ("partial", *map(self.value, (x.func, x.args, x.keywords, vars(x))))
            case Enum():
                return ("member", self.value(type(x)), x.name, self.value(x._value_))
            case type():
                return self._class(x)
            case _ if type(x) in _CONTAINERS:
                return self._contents(x)
            case _:
                return self._array(x) or self._instance(x)

    def _set(self, x: set[object] | frozenset[object]) -> object:
        before = len(self._kept)
        found = sorted(repr(self.value(each)) for each in x)
        if len(self._kept) != before:  # numbered in an order that another process has not
            raise _UnknownError
        return (type(x).__name__, *found)

    def _contents(self, x: Any) -> object:
        """Return the contents of a builtin container, or of an instance of a class that derives from one."""
        if isinstance(x, dict):
            return ("dict", *((self.value(key), self.value(each)) for key, each in dict.items(x)))
        if isinstance(x, list):
            return ("list", *map(self.value, list.__iter__(x)))
        if isinstance(x, tuple):
            return ("tuple", *map(self.value, tuple.__iter__(x)))
        if isinstance(x, set | frozenset):
            return self._set(frozenset(x))
        kind: Any = next(kind for kind in _SCALARS if isinstance(x, kind))
        return (kind.__name__, kind.__repr__(x))

    def _function(self, x: types.FunctionType) -> object:
        held = tuple(map(self.value, (x.__defaults__, x.__kwdefaults__, x.__closure__, vars(x))))
        module = str(x.__globals__.get("__name__"))
        if _is_known(module) and x.__globals__ is vars(
            sys.modules[module]
        ):  # a function in a function: what is around it, beside the module's text
            return ("function", module, x.__code__.co_qualname, held)
        known = _facts_of(x.__code__)
        reads = ((name, chain, self._global(x, name, chain)) for name, chain in known.reads)
        return ("function", x.__qualname__, known.facts, held, *reads)

    def _global(self, fn: types.FunctionType, name: str, chain: tuple[str, ...]) -> object:
        """Return what is read of a global, through modules: the attribute that is read of them."""
        if name not in fn.__globals__:
            there = cast(Any, fn).__builtins__
            there = there if isinstance(there, Mapping) else vars(there)
            if name not in there:
                return ("missing",)
            found = there[name]
            usual = found is vars(builtins).get(name)
            error = isinstance(found, type) and issubclass(found, BaseException)
            if usual and (name in _BUILTINS or error):
                return ("builtin", name)
            raise _UnknownError
        value, rest = fn.__globals__[name], list(chain)
        if name == "__name__":
            return ("str", repr(value))
        while isinstance(value, types.ModuleType):
            if not rest or rest[0] not in vars(value):
                raise _UnknownError
            value = vars(value)[rest.pop(0)]
        return self.value(value)

    def _class(self, x: type) -> object:
        """Return what is read of a class that is written in Python."""
        if not _is_pythons(x):
            raise _UnknownError
        members = {name: member for name, member in vars(x).items() if name not in _SKIPPED}
        return (
            "class", x.__module__, x.__qualname__, self.value(type(x)), *map(self.value, x.__bases__),
            *((name, self._member(name, members[name])) for name in sorted(members)),
        )  # fmt: skip

    def _member(self, name: str, x: Any) -> object:
        if name == "__dataclass_fields__":
            parts = ((f.name, f.default, f.default_factory, dict(f.metadata), f.kw_only) for f in x.values())
            return tuple(map(self.value, parts))
        if type(x).__name__ == "_tuplegetter":  # a field of a named tuple
            return ("field", repr(x.__reduce__()[1]))
        return self.value(x)

    def _instance(self, x: Any) -> object:
        """Return what is read of an instance of a class that is written in Python."""
        kind = type(x)
        for each in kind.__mro__:
            if each not in (object, *_CONTAINERS) and not _is_pythons(each):
                raise _UnknownError
        held = {**getattr(x, "__dict__", {})}
        for each in kind.__mro__:
            slots = (n for n, v in vars(each).items() if isinstance(v, types.MemberDescriptorType))
            held |= {name: getattr(x, name) for name in slots if hasattr(x, name)}
        inside = self._contents(x) if isinstance(x, _CONTAINERS) else ()
        shown = ((name, self.value(held[name])) for name in sorted(held))
        return ("instance", self.value(kind), inside, *shown)

    def _array(self, x: Any) -> object:
        """Return the elements of an array or number of numpy."""
        numpy = sys.modules.get("numpy")
        if numpy is None or type(x) is not numpy.ndarray and not isinstance(x, numpy.generic):
            return None
        if x.dtype.hasobject:
            raise _UnknownError
        return ("array", x.dtype.str, x.dtype.descr, x.shape, x.tobytes())


_HEAP = 1 << 9
"""The flag of a class that a class statement, or an extension module at run time, has made."""
_OF_EXTENSIONS = types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType


def _is_pythons(kind: type) -> bool:
    """Return whether a class is written in Python, so that its instances hold nothing but attributes."""
    for member in vars(kind).values():
        if isinstance(member, _OF_EXTENSIONS) and member.__objclass__ is kind:
            return False
        if isinstance(member, types.BuiltinMethodType) and member.__self__ is kind:
            return False
    return bool(kind.__flags__ & _HEAP)


def _is_named(x: Any) -> bool:
    """Return whether a function or class is of a module that names stand for, and is what its name says."""
    if not isinstance(x, type | types.FunctionType | types.BuiltinFunctionType):
        return False
    module = getattr(x, "__module__", None) or ""
    builtin = module == "builtins" and (isinstance(x, type) or x.__name__ in _BUILTINS)
    if not builtin and not _is_known(module):
        return False
    found: Any = sys.modules.get(module)
    for part in x.__qualname__.split("."):
        found = None if found is None else vars(found).get(part)
        found = found.__func__ if isinstance(found, staticmethod) else found
    return found is x


def _is_known(module: str) -> bool:
    """Return whether a module's text is digested otherwise, or decided by the version of Python."""
    return module in _PURE or any(module == own or module.startswith(f"{own}.") for own in _OWN)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not _HEAP
    except ValueError:
        return False
