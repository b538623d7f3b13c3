"""The oracle's compiled code on disk: numba compiles a function once for all processes, not in each."""

from __future__ import annotations

import logging
import os
import pickle
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any
from uuid import uuid4

import llvmlite
import numba
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher
from numba.core.serialize import dumps

from rlk.digest import STARTED, changed_after, digest, digest_bytes, digest_sources
from rlk.env import Env

logger = logging.getLogger("rlk.oracle")
FOLDER = ".rlk-oracle"
"""In the folder of the kernel store, which leaves it alone."""
MOST = 256  # files, of which one version of rlk has about 40
SOURCES = Path(__file__).parent
_DIGEST = 64  # characters that a file begins with, of the rest


def kept(dispatcher: Any) -> Any:
    """Let a function that numba compiles at its first call look for its code on disk; return it."""
    dispatcher._cache = Kept(dispatcher.py_func)
    return dispatcher


@dataclass(frozen=True, slots=True)
class Kept:
    """The code of one function on disk, with the methods that numba asks of a cache.

    A file is named by the digest of all that decides its content: no version meets another's. Whatever fails
    (a disk that is full, or can only be read) costs a compilation and nothing else.
    """

    function: FunctionType

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled function for a signature, None where it is not on disk."""
        context.refresh()
        with _survived("load", self.function), _opened(create=False) as folder:
            data = _read(folder, self._name(signature, context.codegen()))
            return None if data is None else CompileResult._rebuild(context, *pickle.loads(data))
        return None

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep a compiled function, unless its code holds addresses of this process."""
        if made.library.has_dynamic_globals or made.lifted:
            return
        with _survived("keep", self.function), _opened(create=True) as folder:
            _write(folder, self._name(signature, made.library.codegen), dumps(made._reduce()))

    def _name(self, signature: Any, codegen: Any) -> str:
        machine = [str(each) for each in codegen.magic_tuple()]
        return digest([_versions(), _sources(), machine, str(signature), _text(self.function, ())])


def _versions() -> list[str]:
    settings = numba.config.OPT, numba.config.BOUNDSCHECK, numba.config.DEBUGINFO_DEFAULT
    return [numba.__version__, llvmlite.__version__, np.__version__, sys.version, repr(settings)]


@cache
def _sources() -> str:
    """Return a digest of the oracle's text; OSError where it was changed since this process began."""
    if changed_after([SOURCES], STARTED):
        raise OSError("the oracle's text was changed since this process began")
    return digest_sources([SOURCES])


def _text(function: FunctionType, above: tuple[str, ...]) -> list[Any]:
    """Return what a function computes: its code, its constants, and what it reads and calls."""
    code = function.__code__
    reads: list[Any] = []
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    for name in sorted({*code.co_names, *code.co_freevars} & found.keys()):
        value = found[name]
        if isinstance(value, CPUDispatcher) and name not in above:
            reads.append([name, _text(value.py_func, (*above, name))])
        elif isinstance(value, int | float | np.number):
            reads.append([name, repr(value)])
    return [code.co_qualname, code.co_code.hex(), repr(code.co_consts), reads]


# --- files ---


@contextmanager
def _survived(what: str, function: FunctionType) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever a file holds, or a numba that rlk does not know raises
        logger.debug("cannot %s the compiled code of %s: %r", what, function.__name__, error)


@contextmanager
def _opened(create: bool) -> Iterator[int]:
    """Open the folder, if it can be written by this user or root alone: who can write code can run it."""
    place = Env.current().cache_dir / FOLDER
    if create:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    # all files are opened below this handle: the folder cannot be swapped after it was looked at
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if status.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(f"{place} can be written by other users")
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str) -> bytes | None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with closing(os.fdopen(handle, "rb")) as file:
        found: bytes = file.read()
    written, data = found[:_DIGEST], found[_DIGEST:]
    if digest_bytes(data).encode() != written:
        raise ValueError(f"{name} is damaged")
    return data


def _write(folder: int, name: str, data: bytes) -> None:
    """Publish a file at once: a reader finds all of it, or none."""
    staged = f"{name}.{uuid4().hex}"
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(digest_bytes(data).encode() + data)
        os.replace(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged, dir_fd=folder)
        raise
    _trim(folder)


def _trim(folder: int) -> None:
    """Remove the oldest files, of versions that are gone."""
    held = os.listdir(folder)
    if len(held) > MOST:
        oldest = sorted(held, key=lambda name: os.stat(name, dir_fd=folder).st_mtime)
        for name in oldest[: len(held) - MOST // 2]:
            os.unlink(name, dir_fd=folder)
