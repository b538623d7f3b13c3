"""The one canonical JSON form, and the sha256 digests that name kernels, keys and emitters."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path

STARTED = time.time()
"""When this process began to read rlk's text: what it runs is the text of then."""
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def plain(value: object) -> Json:
    """Turn frozen data (dataclasses, enums, tuples, mappings with string keys) into plain JSON values.

    A dataclass becomes an object that also carries its class name under "", so that two classes with equal
    fields differ. Sets, NaN, infinities and arbitrary objects raise TypeError: they have no canonical form.
    """
    if value is None or isinstance(value, bool | str) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} has no canonical JSON form")
        return float(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_name(key): plain(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        members: dict[str, Json] = {"": type(value).__name__}
        for field in fields(value):
            if field.compare:  # excluded from equality, such as source locations: excluded from digests
                members[field.name] = plain(getattr(value, field.name))
        return members
    raise TypeError(f"{type(value).__name__} has no canonical JSON form")


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"JSON keys are strings, not {type(key).__name__}")
    return key


def canonical(value: object) -> bytes:
    """Return the one JSON text of `value`: sorted keys, no spaces, ASCII, shortest round-trip floats."""
    text = json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def digest(value: object) -> str:
    """Return the sha256 of `value`'s canonical JSON, in hex."""
    return digest_bytes(canonical(value))


def digest_bytes(data: bytes) -> str:
    """Return the sha256 of `data`, in hex."""
    return hashlib.sha256(data).hexdigest()


def digest_word(data: bytes) -> int:
    """Return the first 64 bits of the sha256 of `data`, as a number that an int64 holds."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], signed=True)


def digest_file(path: Path) -> str:
    """Return the sha256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def below(folder: Path) -> list[Path]:
    """Return every file and folder below `folder`, sorted; links are not followed.

    Raises OSError where a folder cannot be listed. Path.rglob leaves its files out and says nothing.
    """
    found, unread = [], [folder]
    while unread:
        with os.scandir(unread.pop()) as listing:
            for entry in listing:
                found.append(Path(entry.path))
                if entry.is_dir(follow_symlinks=False):
                    unread.append(found[-1])
    return sorted(found)


def digest_sources(folders: Iterable[Path]) -> str:
    """Return one digest of every file below `folders`, or that is named itself: an emitter and its templates.

    Files are named relative to their folder, so the digest is the same wherever rlk is installed. The content
    is read once per process.
    """
    return _digest_sources(tuple(folders))


@cache
def _digest_sources(folders: tuple[Path, ...]) -> str:
    listing: list[list[tuple[str, str]]] = []
    for folder in folders:
        if folder.is_file():
            listing.append([(folder.name, digest_file(folder))])
            continue
        files = sorted(_sources(str(folder)))
        if not files:
            raise FileNotFoundError(f"no source files below {folder}")
        listing.append(files)
    return digest(listing)


def changed_after(folders: Iterable[Path], when: float) -> bool:
    """Return whether a file that `digest_sources` reads was changed, or came, after a time in seconds."""
    return any(entry.stat().st_ctime >= when for folder in folders for _, entry in _files(str(folder), ""))


def _sources(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the files below a folder that are no bytecode, named by their places in it, and their digests."""
    for name, entry in _files(folder, ""):
        with open(entry.path, "rb") as stream:
            yield name, digest_bytes(stream.read())


def _files(folder: str, inside: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the files below a folder that are no bytecode, with their places in it.

    Written without Path, which takes five times as long: a process does this before its first kernel runs.
    """
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":  # where other processes write and rename
                    yield from _files(entry.path, f"{inside}{entry.name}/")
            elif entry.is_file() and not entry.name.endswith(".pyc"):
                yield f"{inside}{entry.name}", entry
