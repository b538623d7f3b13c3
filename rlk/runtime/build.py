"""Acquisition of kernels: from the store, or lowered, compiled and stored; also ahead of use."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlk.cache import CacheKey, Reader, Store
from rlk.digest import digest_sources
from rlk.env import Env
from rlk.errors import Code, InternalError, UnsupportedError
from rlk.lower.common.emitted import Emitted
from rlk.resources import installing, templates
from rlk.runtime import cute, tilelang
from rlk.runtime.pool import pool
from rlk.runtime.record import ABI

Toolchain = tuple[tuple[str, str], ...]

_PACKAGE = Path(__file__).resolve().parent.parent


@cache
def store() -> Store:
    """Return the process's kernel store, at the place the environment names."""
    env = Env.current()
    return Store(env.cache_dir, limit=env.cache_limit)


@cache
def triton_version() -> str | None:
    """Return the version of the installed Triton without importing it; None when there is none."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    match = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", Path(spec.origin).read_text(), re.MULTILINE)
    return match[1] if match else "unknown"


def kernel_key(backend: str, ir: str, schedule: object, target: str) -> CacheKey:
    """Return the key of a kernel of a backend, "triton", "cute" or "tilelang"; `ir` as in `triton_key`."""
    match backend:
        case "triton":
            return triton_key(ir, schedule, target)
        case "cute":
            return cute_key(ir, schedule, target)
        case "tilelang":
            return tilelang_key(ir, schedule, target)
        case other:
            raise InternalError(Code.INTERNAL, what=f"there is no compiler for backend {other!r}")


def triton_key(ir: str, schedule: object, target: str) -> CacheKey:
    """Return the key of a Triton kernel; `ir` digests all that the lowering reads, but for the schedule."""
    version = triton_version()
    return _key("triton", ir, schedule, target, None if version is None else (("triton", version),))


def cute_key(ir: str, schedule: object, target: str) -> CacheKey:
    """Return the key of a CuTe kernel; `ir` digests all that the lowering reads, but for the schedule."""
    return _key("cute", ir, schedule, target, cute.toolchain())


def tilelang_key(ir: str, schedule: object, target: str) -> CacheKey:
    """Return the key of a TileLang kernel; `ir` digests all that the lowering reads, but for the schedule."""
    return _key("tilelang", ir, schedule, target, tilelang.toolchain(target), tilelang.SOURCES)


def _key(
    backend: str,
    ir: str,
    schedule: object,
    target: str,
    toolchain: Toolchain | None,
    beside: tuple[Path, ...] = (),
) -> CacheKey:
    if toolchain is None:
        raise UnsupportedError(
            Code.UNSUPPORTED,
            what="compiling a kernel",
            backend=backend,
            target=target,
            alternatives=installing(backend),
        )
    sources = [_PACKAGE / "lower" / "common", _PACKAGE / "lower" / backend, templates() / backend, *beside]
    return CacheKey(
        ir=ir,
        schedule=schedule,
        target=target,
        backend=backend,
        emitter=digest_sources(sources),
        toolchain=toolchain,
        flags=Env.current().toolchain,
        abi=ABI,
    )


@cache
def system_store() -> Reader | None:
    """Return the store that is only read, which a machine's owner fills; None where there is none."""
    place = Env.current().system_cache
    return None if place is None else Reader(place)


def stored(key: CacheKey) -> tuple[Path, str] | None:
    """Return the entry of `key` and the name of the store that has it, if one has."""
    system = system_store()
    held = None if system is None else system.find(key)
    if held is not None:
        return held, "system cache"
    held = store().find(key)
    return None if held is None else (held, "cache")


def obtain(key: CacheKey, emit: Callable[[], Emitted], *, label: str) -> Path:
    """Return the entry of `key`; on a miss lower with `emit` and compile in a worker process."""
    system = system_store()
    present = None if system is None else system.find(key)
    if present is not None:
        return present
    return store().get_or_build(key, lambda folder: pool().compile(emit(), key.target, folder), label=label)


def obtain_later(key: CacheKey, emit: Callable[[], Emitted], *, label: str) -> Future[Path]:
    """Start obtaining the entry of `key` in the background."""
    return pool().submit(lambda: obtain(key, emit, label=label))
