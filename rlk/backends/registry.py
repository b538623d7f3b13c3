"""The registry of backends: those of rlk, and those that other packages register."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import metadata

from rlk.backends import cute, tilelang, triton
from rlk.backends.interface import Backend
from rlk.env import BACKENDS, ENTRY_POINTS, Env, accept_backend, refuse_backend
from rlk.errors import Code, InternalError, LaunchError
from rlk.target.facts import Target

_NAME = re.compile(r"[a-z][a-z0-9_]*")

_backends: dict[str, Backend] = {each.name: each for each in (triton.BACKEND, cute.BACKEND, tilelang.BACKEND)}
_changing: list[Callable[[], None]] = []


def register(backend: Backend) -> None:
    """Add a backend after those that are registered: RLK_BACKEND may then name it.

    Call it before the environment is read, which `import rlk.ops` does; an entry point of the group
    "rlk.backends", whose name is the backend's and whose object is a `Backend`, needs no call. Raises
    LaunchError for a name that is taken or no name, for a second complete backend, and for a `compile` that
    no other process can import.
    """
    name, function = backend.name, backend.compile
    if not _NAME.fullmatch(name) or name in _backends or name in ("or", "oracle"):
        wanted = f"a name of lower-case letters, digits and _ that is none of {', '.join(_backends)}"
        raise _refused("name", name, wanted)
    if backend.complete:
        raise _refused("complete", True, "False: another backend runs what all others refuse")
    qualified = getattr(function, "__qualname__", "<lambda>")
    if "<" in qualified or getattr(function, "__module__", "__main__") == "__main__":
        wanted = "a function at the top of a module that a compile process can import"
        raise _refused("compile", qualified, wanted)
    accept_backend(name)
    _backends[name] = backend
    _changed()


def unregister(name: str) -> None:
    """Remove a backend that was registered."""
    refuse_backend(name)
    del _backends[name]
    _changed()


def changes(forget: Callable[[], None]) -> None:
    """Call `forget` whenever a backend is registered or removed."""
    _changing.append(forget)


def _changed() -> None:
    _from_entry_point.cache_clear()
    for forget in _changing:
        forget()


def _refused(field: str, value: object, wanted: str) -> LaunchError:
    return LaunchError(
        Code.ARG_VALUE, op="rlk.backends.registry.register", name=field, value=value, wanted=wanted
    )


def find(name: str) -> Backend | None:
    """Return a backend by name: a registered one, else that of an installed entry point, else None."""
    found = _backends.get(name)
    return _from_entry_point(name) if found is None and name not in BACKENDS else found


@cache
def _from_entry_point(name: str) -> Backend | None:
    for point in metadata.entry_points(group=ENTRY_POINTS, name=name):
        try:
            backend = point.load()
        except (ImportError, AttributeError) as error:
            raise _refused("entry point", point.value, f"a Backend that can be imported: {error}") from error
        if isinstance(backend, Backend) and backend.name == name:
            register(backend)
            return backend
        raise _refused("entry point", point.value, f"a Backend of the name {name}")
    return None


def of_name(name: str) -> Backend:
    """Return a backend by name; raise InternalError where there is none."""
    found = find(name)
    if found is None:
        raise InternalError(Code.INTERNAL, what=f"there is no compiler for backend {name!r}")
    return found


def registered() -> tuple[Backend, ...]:
    """Return all backends, in the order in which they are offered."""
    return tuple(_backends.values())


def installed() -> dict[str, str]:
    """Return the entry points of other packages by the names of their backends, loaded or not."""
    return {point.name: point.value for point in metadata.entry_points(group=ENTRY_POINTS)}


def complete() -> Backend:
    """Return the backend that lowers every program."""
    return next(each for each in _backends.values() if each.complete)


def of_target(on: Target) -> tuple[Backend, ...]:
    """Return the backends that a call on a target may ask for."""
    asked = Env.current().backend
    if asked is not None:
        find(asked)  # an entry point's counts from when it is asked for
    return tuple(each for each in _backends.values() if on.name in each.targets)


def in_wheels(on: Target) -> tuple[Backend, ...]:
    """Return the backends whose kernels lie in wheels for a target, and stand in for one another."""
    return tuple(b for b in _backends.values() if b.wheels is not None and on.name in b.wheels.targets)


def default_backends(on: Target) -> tuple[Backend, ...]:
    """Return the backends that run calls on a target where RLK_BACKEND names none, the complete one last."""
    faster = [b for b in of_target(on) if b.faster is not None and b.ready()]
    return (*faster, complete())


def on_cpu() -> Target | None:
    """Return the target as which RLK_BACKEND's backend runs CPU tensors; None: the oracle does."""
    asked = Env.current().backend
    found = None if asked is None else find(asked)
    return None if found is None else found.cpu
