"""The manifest of an entry: its files, their sizes and digests, and their verification."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rlk.cache.trust import Trust
from rlk.digest import Json, below, canonical, digest, digest_file

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST = 1 << 24  # bytes of a manifest
DEEPEST = 16  # names of folders and of a file that one file of an entry may have
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NO_FLUSH = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


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

    def check_sizes(self, folder: Path, trust: Trust | None = None) -> None:
        """Raise BadEntry when a file is missing, is no plain file, lies behind a link, or has another size.

        trust: who may own and write the files and folders of the entry; None: this user and the superuser.
        """
        trust = trust or Trust.own()
        for inside in sorted({parent for file in self.files for parent in PurePosixPath(file.name).parents}):
            _checked(folder, inside.as_posix(), stat.S_ISDIR, "directory", trust)
        for file in self.files:
            status = _checked(folder, file.name, stat.S_ISREG, "plain file", trust)
            if status.st_size != file.size:
                raise BadEntry(f"{file.name} has {status.st_size} bytes instead of {file.size}")

    def check_content(self, folder: Path) -> None:
        """Raise BadEntry when the content of a file differs from what was published."""
        for file in self.files:
            if digest_file(folder / file.name) != file.sha256:
                raise BadEntry(f"{file.name} has another sha256 than when it was published")


def _checked(folder: Path, name: str, kind: Callable[[int], bool], what: str, trust: Trust) -> os.stat_result:
    try:
        status = os.lstat(folder / name)
    except FileNotFoundError:
        raise BadEntry(f"{name} is missing") from None
    if not kind(status.st_mode):
        raise BadEntry(f"{name} is not a {what}")
    problem = trust.problem(status)
    if problem is not None:
        raise BadEntry(f"{name} {problem}")
    return status


def read_plain(path: Path, largest: int, trust: Trust) -> bytes:
    """Return the content of a plain file; raise BadEntry for a link or a pipe, without waiting for a pipe.

    Raises BadEntry also for more than `largest` bytes and for files that `trust` refuses; OSError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise BadEntry(f"{path.name} is not a plain file") from None
        raise
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise BadEntry(f"{path.name} is not a plain file")
        problem = trust.problem(status)
        if problem is not None:
            raise BadEntry(f"{path.name} {problem}")
        data = stream.read(largest + 1)
    if len(data) > largest:
        raise BadEntry(f"{path.name} is larger than {largest} bytes")
    return data


def read_manifest(folder: Path, name: str) -> Manifest:
    """Read and check the manifest of entry `name`; raises BadEntry, or FileNotFoundError without a folder.

    The folder of entries, the entry and its manifest are bad if another user owns them or can write to them.
    """
    trust = Trust.own()
    for place, what in ((folder.parent, "the folder that holds it"), (folder, "it")):
        status = os.lstat(place)
        if not stat.S_ISDIR(status.st_mode):
            raise BadEntry(f"{what} is not a directory")
        problem = trust.problem(status)
        if problem is not None:
            raise BadEntry(f"{what} {problem}")
    return decode_manifest(folder, name, trust)


def decode_manifest(folder: Path, name: str, trust: Trust) -> Manifest:
    """Read and check the manifest of entry `name`, whoever owns its folder; raises BadEntry, OSError."""
    try:
        return _decode(read_plain(folder / MANIFEST, LARGEST, trust), name)
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
    """Return whether a name is one that `describe` writes: relative, without `.` and `..`."""
    parts = name.split("/")
    return (
        0 < len(name)
        and len(parts) <= DEEPEST
        and "\0" not in name
        and not {"", ".", ".."} & set(parts)
        and name != MANIFEST
    )


def describe(folder: Path, key: Json, label: str) -> Manifest:
    """Return the manifest of the files in `folder`, and flush them to the disk.

    Afterwards no other user can write them, whatever the builder's umask was.
    """
    files = []
    for path in below(folder):
        status = os.lstat(path)
        if status.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(status.st_mode):
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS_WRITE)
        if stat.S_ISDIR(status.st_mode):
            continue
        name = path.relative_to(folder).as_posix()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is not a plain file: entries hold plain files only")
        if not is_inside(name):
            raise ValueError(f"{name[:40]!r} is no name for a file of an entry")
        sync(path)
        files.append(File(name, path.stat().st_size, digest_file(path)))
    return Manifest(key, label, tuple(sorted(files, key=lambda file: file.name)))


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk, where its file system can."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _flush(handle)
    finally:
        os.close(handle)


def _flush(handle: int) -> None:
    """Flush an open file. Where that is not offered, an entry torn by a power cut fails its digests."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FLUSH:
            raise


def write_synced(path: Path, data: bytes) -> None:
    """Write a whole new file, which no other user can write, and flush it to the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        _flush(handle)
