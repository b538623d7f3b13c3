"""Whether a directory is the entry it claims to be: its files, their sizes and their digests."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rlk.digest import Json, below, canonical, digest, digest_file

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST = 1 << 24  # bytes of a manifest
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class BadEntry(Exception):
    """An entry that must not be used; the message says why. Never leaves the cache."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of an entry."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of an entry's manifest.json; `label` is for people, everything else is checked."""

    key: Json
    label: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """The bytes of the entry's files together."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Return the manifest's text, which ends in a digest of itself."""
        files: dict[str, Json] = {f.name: {"bytes": f.size, "sha256": f.sha256} for f in self.files}
        members: dict[str, Json] = {
            "format": FORMAT,
            "key": self.key,
            "label": self.label,
            "files": files,
        }
        return canonical({**members, "sha256": digest(members)})

    def check_sizes(self, folder: Path, forbidden: int = OTHERS_WRITE) -> None:
        """Raise BadEntry when a file is missing, is no plain file, lies behind a link, or has another size.

        forbidden: permissions that neither a file nor a folder of the entry may have.
        """
        for inside in sorted({parent for file in self.files for parent in PurePosixPath(file.name).parents}):
            _checked(folder, inside.as_posix(), stat.S_ISDIR, "directory", forbidden)
        for file in self.files:
            status = _checked(folder, file.name, stat.S_ISREG, "plain file", forbidden)
            if status.st_size != file.size:
                raise BadEntry(f"{file.name} has {status.st_size} bytes instead of {file.size}")

    def check_content(self, folder: Path) -> None:
        """Raise BadEntry when the content of a file differs from what was published."""
        for file in self.files:
            if digest_file(folder / file.name) != file.sha256:
                raise BadEntry(f"{file.name} has another sha256 than when it was published")


def _checked(
    folder: Path, name: str, kind: Callable[[int], bool], what: str, forbidden: int
) -> os.stat_result:
    try:
        status = os.lstat(folder / name)
    except FileNotFoundError:
        raise BadEntry(f"{name} is missing") from None
    if not kind(status.st_mode):
        raise BadEntry(f"{name} is not a {what}")
    if status.st_mode & forbidden:
        raise BadEntry(f"{name} can be written by other users")
    return status


def read_manifest(folder: Path, name: str) -> Manifest:
    """Read and check the manifest of entry `name`; raises BadEntry, or FileNotFoundError without a folder."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise BadEntry("it is not a directory")
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise BadEntry("another user could have written it")
    return decode_manifest(folder, name)


def decode_manifest(folder: Path, name: str) -> Manifest:
    """Read and check the manifest of entry `name`, whoever owns it; raises BadEntry."""
    try:
        with (folder / MANIFEST).open("rb") as stream:
            data = stream.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadEntry(f"{MANIFEST} is larger than {LARGEST} bytes")
        return _decode(data, name)
    except FileNotFoundError:
        raise BadEntry(f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadEntry(f"{MANIFEST} cannot be read: {error}") from None


def _decode(data: bytes, name: str) -> Manifest:
    members = json.loads(data)
    claimed = members.pop("sha256")
    if members["format"] != FORMAT or digest(members) != claimed:
        raise BadEntry(f"{MANIFEST} is damaged")
    if digest(members["key"]) != name:
        raise BadEntry(f"{MANIFEST} belongs to another key")
    files = tuple(
        File(file, members["files"][file]["bytes"], members["files"][file]["sha256"])
        for file in sorted(members["files"])
    )
    if not all(is_inside(file.name) and file.size >= 0 for file in files):
        raise BadEntry(f"{MANIFEST} names files outside the entry")
    return Manifest(members["key"], members["label"], files)


def is_inside(name: str) -> bool:
    """Tell whether a name is one that `describe` writes: relative, forward, and of nothing but names."""
    parts = name.split("/")
    return bool(name) and "\0" not in name and not {"", ".", ".."} & set(parts) and name != MANIFEST


def describe(folder: Path, key: Json, label: str) -> Manifest:
    """Return the manifest of the files that now stand in `folder`, and flush them to the disk."""
    files = []
    for path in below(folder):
        if path.is_dir() and not path.is_symlink():
            continue
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise ValueError(f"{path.name} is not a plain file: entries hold plain files only")
        sync(path)
        files.append(File(path.relative_to(folder).as_posix(), path.stat().st_size, digest_file(path)))
    return Manifest(key, label, tuple(sorted(files, key=lambda file: file.name)))


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, data: bytes) -> None:
    """Write a whole file and flush it to the disk."""
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
