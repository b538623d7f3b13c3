"""Export and import of entries between stores: a tar of whole entries, verified on import."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from rlk.cache.manifest import MANIFEST, BadEntry, is_inside, read_manifest
from rlk.cache.removal import remove
from rlk.cache.store import Entry, Store

Made = TypeVar("Made")
_NAME = re.compile(r"[0-9a-f]{64}")
_LARGEST = 1 << 28  # bytes of one file
_MOST = 1 << 16  # files of an archive
_BAD_NAMES = {
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
}  # a file system's errors for names that it cannot store


class StoreError(Exception):
    """A store that takes no entries; the message says why."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import: entries that are new, that were there already, that were refused, and why."""

    added: tuple[str, ...]
    present: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def export_entries(entries: Iterable[Entry], path: Path) -> int:
    """Write entries to a tar whose bytes depend on them alone; return how many.

    Damaged entries are left out. The file is replaced whole; raises OSError.
    """
    count = 0
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as archive:
            for entry in sorted(entries, key=lambda entry: entry.name):
                files = _whole(entry)
                for name, data in files:
                    member = tarfile.TarInfo(f"{entry.name}/{name}")
                    member.size, member.mode = len(data), 0o600
                    archive.addfile(member, io.BytesIO(data))
                count += bool(files)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return count


def _whole(entry: Entry) -> list[tuple[str, bytes]]:
    """Return the files of an entry, its manifest first; nothing if it is damaged or was evicted."""
    try:
        manifest = read_manifest(entry.path, entry.name)
        manifest.check_sizes(entry.path)
        manifest.check_content(entry.path)
        names = [MANIFEST, *(file.name for file in manifest.files)]
        return [(name, (entry.path / name).read_bytes()) for name in names]
    except (BadEntry, OSError):
        return []


def import_entries(store: Store, path: Path) -> Imported:
    """Add the entries of an archive to a store, each checked as at a load; entries that are there stay.

    Kernels are code: the digests prove that an entry is complete, not who made it. Raises OSError for a file
    that cannot be read, tarfile.TarError for one that is no tar, and StoreError if the store takes no
    entries.
    """
    if store.refused is not None:
        raise StoreError(store.refused)
    added: list[str] = []
    present: list[str] = []
    with tarfile.open(path, mode="r:") as archive, _room(store) as place:
        refused = _unpacked(archive, place)
        for folder in _written(sorted, place.iterdir()):
            if folder.name in refused:
                continue
            try:
                (added if _written(store.adopt, folder, folder.name) else present).append(folder.name)
            except BadEntry as error:
                refused[folder.name] = str(error)
    return Imported(tuple(added), tuple(present), tuple(sorted(refused.items())))


@contextmanager
def _room(store: Store) -> Iterator[Path]:
    """Make a folder on a store's disk for the duration of the block."""
    place = Path(_written(tempfile.mkdtemp, prefix="import.", dir=store.root / "staging"))
    try:
        yield place
    finally:
        remove(place)


def _written(work: Callable[..., Made], *arguments: Any, **options: Any) -> Made:
    """Do work on the store's disk, whose failures raise StoreError, not those of the archive."""
    try:
        return work(*arguments, **options)
    except OSError as error:
        raise StoreError(f"takes no entries: {error.strerror or error}") from error


def _unpacked(archive: tarfile.TarFile, place: Path) -> dict[str, str]:
    """Write the plain files of an archive below `place`; return the names of refused members, and why."""
    refused: dict[str, str] = {}
    for count, member in enumerate(archive):
        entry, _, name = member.name.partition("/")
        why = _wrong(member, entry, name, count)
        if member.size < 0:
            raise tarfile.ReadError("a member has less than no bytes")  # the next member cannot be found
        stream = None if why else archive.extractfile(member)
        if stream is None:
            refused.setdefault(entry, why or "cannot be read")
            continue
        why = _written(_unpack, stream, place, Path(entry, name))
        if why is not None:
            refused.setdefault(entry, f"{_short(name)} {why}")
    return refused


def _unpack(stream: IO[bytes], place: Path, name: Path) -> str | None:
    """Write a file below `place`; return why its name cannot be used."""
    try:
        for folder in reversed(name.parents[:-1]):
            (place / folder).mkdir(mode=0o700, exist_ok=True)
        handle = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        return "is there twice"
    except OSError as error:
        if error.errno not in _BAD_NAMES:
            raise
        return "is no name of a file here"
    with os.fdopen(handle, "wb") as out:
        shutil.copyfileobj(stream, out)
    return None


def _wrong(member: tarfile.TarInfo, entry: str, name: str, count: int) -> str | None:
    if not _NAME.fullmatch(entry):
        return "it is not the name of an entry"
    if not member.isreg() or member.issparse():
        return f"{_short(name)} is not a plain file"
    if name != MANIFEST and not is_inside(name):
        return f"{_short(name)} lies outside of it, or too deep in it"
    if member.size > _LARGEST:
        return f"{_short(name)} has {member.size} bytes"
    return "the archive holds too many files" if count >= _MOST else None


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else f"{name[:57]}...")
