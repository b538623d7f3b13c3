"""Acquisition of kernels: from the store, or lowered, compiled and stored; also ahead of use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path

from rlk.backends.registry import of_name
from rlk.cache import CacheKey, Reader, Store
from rlk.digest import digest_sources
from rlk.env import Env
from rlk.errors import Code, UnsupportedError
from rlk.lower.common.emitted import Emitted
from rlk.runtime.kernels.pool import pool
from rlk.runtime.launch.record import ABI


@cache
def store() -> Store:
    """Return the process's kernel store, at the place the environment names."""
    env = Env.current()
    return Store(env.cache_dir, limit=env.cache_limit)


def kernel_key(name: str, ir: str, schedule: object, target: str) -> CacheKey:
    """Return the key of a kernel of a backend; `ir` digests what its lowering reads, but for the schedule.

    Raises UnsupportedError where its compiler is not installed.
    """
    by = of_name(name)
    toolchain = by.toolchain(target)
    if toolchain is None:
        raise UnsupportedError(
            Code.UNSUPPORTED,
            what="compiling a kernel",
            backend=name,
            target=target,
            alternatives=by.install(),
        )
    return CacheKey(
        ir=ir,
        schedule=schedule,
        target=target,
        backend=name,
        emitter=digest_sources(by.sources),
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
