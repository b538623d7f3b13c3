"""Entries that this process has hashed already and does not hash again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rlk.cache.manifest import BadEntry, Manifest, read_manifest

# Errors that do not prove an entry bad: this process has too many open files, or a server was away.
PASSING_ERRORS = {
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip


class Known:
    """The manifests of entries whose content was hashed, with the inodes of their folders."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, Manifest]] = {}

    def add(self, name: str, inode: int, manifest: Manifest) -> None:
        """Note that the content of the entry in this folder is right."""
        self._held[name] = inode, manifest

    def drop(self, name: str) -> None:
        """Hash an entry again when it is next checked."""
        self._held.pop(name, None)

    def check(self, path: Path, name: str) -> None:
        """Check an entry, its content at its first check only; raises BadEntry, FileNotFoundError, OSError.

        An entry that was hashed needs no file to be opened: its files must be there, with their sizes.
        """
        inode = os.lstat(path).st_ino
        held = self._held.get(name)
        if held is None or held[0] != inode:
            manifest = hashed(path, name)
        else:
            try:
                manifest = read_manifest(path, name)
            except OSError as error:
                if error.errno not in PASSING_ERRORS:
                    raise
                manifest = held[1]
            manifest.check_sizes(path)
        self._held[name] = inode, manifest


def hashed(path: Path, name: str) -> Manifest:
    """Return the manifest of an entry whose files have all been hashed; raises as `Known.check`."""
    manifest = read_manifest(path, name)
    manifest.check_sizes(path)
    try:
        manifest.check_content(path)
    except FileNotFoundError as error:
        raise BadEntry(f"{error.filename} vanished") from None
    return manifest
