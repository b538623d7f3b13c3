"""Install functions of rlk into another package, beside its own or in their place, and remove them."""

from __future__ import annotations

import importlib
import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from rlk.errors import Code, LaunchError, UnsupportedError

Holder = dict[str, Any] | type
Place = tuple[Holder, str, Any]
"""Where an object of a package is bound: a namespace or registry, or a class; the name; and the object."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The releases of a package from the oldest to the newest, both tested; those between are accepted."""

    oldest: str
    newest: str

    def __contains__(self, version: str) -> bool:
        try:
            low, got, high = (tuple(map(int, v.split("."))) for v in (self.oldest, version, self.newest))
        except ValueError:  # a development version
            return False
        return low <= got <= high

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


Known = tuple[str, ...] | Versions


def listed(versions: Known) -> str:
    """Return versions as messages name them."""
    return str(versions) if isinstance(versions, Versions) else ", ".join(versions)


Looked = tuple[Sequence[str], list[str]]
"""Functions that were looked for, and descriptions of missing or changed ones."""


def known_version(peer: str, versions: Known, look: Callable[[], Looked] = lambda: ((), [])) -> None:
    """Raise UnsupportedError for a package that is absent, of another version, or lacks what `look` says."""
    try:
        got = version(peer)
    except PackageNotFoundError:
        raise UnsupportedError(Code.PEER_ABSENT, peer=peer, versions=listed(versions)) from None
    looked, missing = look()
    if missing or got not in versions:
        raise UnsupportedError(
            Code.PEER_UNKNOWN, peer=peer, got=got, versions=listed(versions),
            missing="; ".join(missing) or "nothing", looked=", ".join(looked) or "its version",
        )  # fmt: skip


class Switch(ABC):
    """Something that is switched on and off; `patched` does both."""

    __slots__ = ()

    @abstractmethod
    def patch(self) -> None:
        """Switch on."""

    @abstractmethod
    def unpatch(self) -> None:
        """Undo one `patch()`."""

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Switch on for the length of a `with`."""
        self.patch()
        try:
            yield
        finally:
            self.unpatch()


@dataclass(slots=True)
class Change(Switch):
    """A change of one package. Changes nest: the outermost puts back. Not for several threads at once.

    peer: the package. versions: those that ours was compared with; others are refused.
    """

    peer: str
    versions: Known
    depth: int = field(default=0, init=False)

    def patch(self) -> None:
        """Switch on; raise UnsupportedError for a package, version, name or signature that is not known."""
        if self.depth == 0:
            known_version(self.peer, self.versions, self._look)
            self._put()
        self.depth += 1

    def unpatch(self) -> None:
        """Undo one `patch()`; raise LaunchError without one, or if other code replaced a patched function."""
        if self.depth == 0:
            raise LaunchError(Code.SWAP_OFF, peer=self.peer)
        self.depth -= 1
        if self.depth:
            return
        if lost := self._put_back():
            raise LaunchError(Code.SWAP_LOST, peer=self.peer, names=", ".join(lost))

    @property
    def on(self) -> bool:
        """Return whether the package calls rlk's functions."""
        return self.depth > 0

    @abstractmethod
    def _look(self) -> tuple[Sequence[str], list[str]]:
        """Return the functions found in the package, and descriptions of missing or changed ones."""

    @abstractmethod
    def _put(self) -> None: ...

    @abstractmethod
    def _put_back(self) -> list[str]:
        """Restore the package; return the names that other code replaced in between."""


@dataclass(slots=True)
class Entry(Change):
    """A name of ours in registries of a package. places: "module:Class.name" of each, and what it gets."""

    name: str
    places: Mapping[str, Callable[..., Any]]

    def _mappings(self) -> list[tuple[dict[str, Any], Callable[..., Any]]]:
        return [(_bound(place)[2], ours) for place, ours in self.places.items()]

    def _look(self) -> tuple[Sequence[str], list[str]]:
        try:
            taken = any(self.name in mapping for mapping, _ in self._mappings())
        except (ImportError, AttributeError, KeyError) as error:
            return tuple(self.places), [f"{error} (not there)"]
        return (f"no {self.name!r}",), [f"the name {self.name!r} is taken"] if taken else []

    def _put(self) -> None:
        for mapping, ours in self._mappings():
            mapping[self.name] = ours

    def _put_back(self) -> list[str]:
        lost = []
        for mapping, ours in self._mappings():
            if mapping.get(self.name) is ours:
                del mapping[self.name]
            else:
                lost.append(ours.__name__)
        return lost


@dataclass(slots=True)
class Swap(Change):
    """Functions of one package that stand for other functions while the swap is on.

    names: what is replaced, "module:name" or "module:Class.name", by what. registries: "module:name" of dicts
    that hold some of these functions too.

    A function is replaced wherever a module of the package has it under any name, also in modules that are
    imported while the swap is on; one that was put elsewhere before (an attribute of an object, a compiled
    graph) is not seen.
    """

    names: Mapping[str, Callable[..., Any]]
    registries: tuple[str, ...] = ()
    originals: dict[str, Any] = field(default_factory=dict, init=False)

    def original(self, name: str) -> Any:
        """Return the package's original function."""
        return self.originals[name] if self.on else _bound(name)[2]

    def _look(self) -> tuple[Sequence[str], list[str]]:
        missing = []
        for name, ours in self.names.items():
            try:
                found = _parameters(_bound(name)[2])
            except (ImportError, AttributeError, KeyError):
                missing.append(f"{name} (not there)")
                continue
            if found != _parameters(ours):
                missing.append(f"{name}({', '.join(_parameters(ours))}), found ({', '.join(found)})")
        return tuple(self.names), missing

    def _put(self) -> None:
        originals = {name: _bound(name)[2] for name in self.names}
        self._exchange({id(old): self.names[name] for name, old in originals.items()})
        self.originals = originals

    def _put_back(self) -> list[str]:
        originals, self.originals = self.originals, {}
        lost = [name for name in originals if _bound(name)[2] is not self.names[name]]
        self._exchange({id(self.names[name]): old for name, old in originals.items()})
        return lost

    def _exchange(self, new: Mapping[int, Any]) -> None:
        """Replace the given objects wherever the package refers to them, all or none."""
        done: list[Place] = []
        try:
            for holder, name, old in self._places(new):
                _bind(holder, name, new[id(old)])
                done.append((holder, name, old))
        except BaseException:
            for holder, name, old in done:
                _bind(holder, name, old)
            raise

    def _places(self, of: Mapping[int, Any]) -> list[Place]:
        """Return every place of the package that holds one of some objects."""
        holders: list[Holder] = [vars(module) for module in _modules(self.peer)]
        holders += [_bound(name)[2] for name in self.registries]
        found: list[Place] = [
            (holder, key, value)
            for holder in holders
            if isinstance(holder, dict)
            for key, value in list(holder.items())
            if id(value) in of
        ]
        for name in self.names:
            holder, key, value = _bound(name)
            if isinstance(holder, type) and id(value) in of:
                found.append((holder, key, value))
        return found


@dataclass(frozen=True, slots=True)
class Swaps(Switch):
    """Several swaps of one package, switched on together: all of them or none."""

    parts: tuple[Change, ...]

    def patch(self) -> None:
        """Switch all on; raise what `Swap.patch` raises, with none of them switched."""
        with ExitStack() as undo:
            for part in self.parts:
                part.patch()
                undo.callback(part.unpatch)
            undo.pop_all()

    def unpatch(self) -> None:
        """Undo one `patch()` of each, the last one first."""
        with ExitStack() as undo:
            for part in self.parts:
                undo.callback(part.unpatch)


def _modules(package: str) -> list[ModuleType]:
    """Return the modules of a package that are loaded."""
    named = list(sys.modules.items())
    return [m for n, m in named if n.split(".")[0] == package and isinstance(m, ModuleType)]


def _bound(name: str) -> Place:
    """Return where "module:name" or "module:Class.name" is bound, without calling a module's __getattr__."""
    path, _, rest = name.partition(":")
    module = vars(importlib.import_module(path))
    first, _, attribute = rest.partition(".")
    if not attribute:
        return module, first, module[first]
    owner = module[first]
    return owner, attribute, vars(owner)[attribute]


def _bind(holder: Holder, name: str, value: Any) -> None:
    if isinstance(holder, type):
        setattr(holder, name, value)
    else:
        holder[name] = value


def _parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters; of a class, those of its apply, or as autograd's."""
    if not isinstance(function, type):
        return tuple(inspect.signature(function).parameters)
    if "apply" in vars(function):
        return tuple(inspect.signature(function.apply).parameters)
    return tuple(inspect.signature(function.forward).parameters)[1:]  # without ctx
