"""Contents of a wheel of kernels, read from its file; nothing of it is installed or run."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlk.aot.matrix import wrong
from rlk.digest import digest, digest_bytes
from rlk.runtime.wheels.reader import CALLS, ENTRIES, HEAD

_LARGEST = 1 << 28  # bytes of a member that is read
# what zipfile raises for files that are no archives, or hold what it cannot unpack; what else is in them
_WRONG = (
    OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    KeyError, TypeError, AttributeError, IndexError, OverflowError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """One entry: the members of its key, and the bytes of its files."""

    key: dict[str, Any]
    size: int


@dataclass(frozen=True, slots=True)
class Contents:
    """A wheel: what wheel.json says, its entries by what they are, the size of its file, what is damaged."""

    head: dict[str, Any]
    entries: tuple[Held, ...]
    size: int
    damaged: tuple[str, ...]


def contents(path: Path) -> Contents:
    """Return what a wheel's file holds, every digest checked; raise LaunchError for another file."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")  # a pipe would wait for a writer, a device has no end
        with zipfile.ZipFile(path) as archive:
            return _contents(archive, path.stat().st_size)
    except _WRONG as error:
        why = error if str(error) else type(error).__name__
        raise wrong("WHEEL", str(path), f"a wheel that rlk aot build wrote ({why})") from None


def signature(held: Held, entries: Iterable[Held]) -> str:
    """Return what an entry is compiled for, with what tells it from others of the same sizes and options."""
    alike = [h.key for h in entries if (h.key["op"], h.key["what"]) == (held.key["op"], held.key["what"])]
    parts = [held.key["what"].removeprefix(held.key["op"]).strip()]
    for member, said in (("divisible", "multiples of 16"), ("schedules", "schedule")):
        if any(key.get(member) != held.key.get(member) for key in alike):
            parts.append(f"{said}: {', '.join(map(str, held.key.get(member) or ())) or 'none'}")
    return "; ".join(part for part in parts if part)


def _contents(archive: zipfile.ZipFile, size: int) -> Contents:
    heads = [name for name in archive.namelist() if name.endswith(f"/{HEAD}") and name.count("/") == 1]
    if len(heads) != 1:
        raise ValueError(f"it has {len(heads)} files {HEAD}")
    package = heads[0].split("/")[0]
    head = json.loads(_read(archive, heads[0]))
    _same_types(head, {"target": "", "backend": "", "abi": "", "rlk": "", "toolchain": {}})
    found: list[Held] = []
    damaged: list[str] = []
    if "calls" in head and digest_bytes(_read(archive, f"{package}/{CALLS}")) != head["calls"]["sha256"]:
        damaged.append(CALLS)
    for name in sorted(archive.namelist()):
        if not (name.startswith(f"{package}/{ENTRIES}/") and name.endswith("/manifest.json")):
            continue
        members = json.loads(_read(archive, name))
        folder = name.removesuffix("manifest.json")
        files = members["files"]
        bad = [f for f, said in files.items() if digest_bytes(_read(archive, folder + f)) != said["sha256"]]
        if bad or digest(members["key"]) != folder.rstrip("/").rsplit("/", 1)[1]:
            damaged.append(f"{folder}: {', '.join(bad) or 'the name of another key'}")
        _same_types(members["key"], {"op": "", "what": "", "numerics_id": "", "exact": True})
        found.append(Held(members["key"], sum(said["bytes"] for said in files.values())))
    return Contents(
        head, tuple(sorted(found, key=lambda h: (h.key["op"], h.key["what"]))), size, tuple(damaged)
    )


def _same_types(members: dict[str, Any], like: dict[str, Any]) -> None:
    for name, value in like.items():
        if type(members[name]) is not type(value):
            raise ValueError(f"{name} is {members[name]!r}")


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _LARGEST:
        raise ValueError(f"{name} is too large")
    return archive.read(name)
