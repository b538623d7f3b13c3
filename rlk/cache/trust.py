"""Trust in files: owned and writable by this user or root alone, and not behind another user's link."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Trust:
    """The users whose files are trusted, and the groups that may write them.

    Kernels are code: a user who can write one can run code as its reader.
    """

    owners: frozenset[int]
    groups: frozenset[int] = frozenset()

    @staticmethod
    def own() -> Trust:
        """Trust this user and the superuser."""
        return Trust(frozenset({os.geteuid(), 0}))

    @staticmethod
    def like(place: Path) -> Trust:
        """Trust also the users who can write the file at `place`, such as rlk's own code; raises OSError."""
        status = os.stat(place)
        groups = {status.st_gid} if status.st_mode & stat.S_IWGRP else set()
        return Trust(Trust.own().owners | {status.st_uid}, frozenset(groups))

    def problem(self, status: os.stat_result) -> str | None:
        """Return why a file or a directory is not trusted, as the predicate of a sentence, or None."""
        if status.st_uid not in self.owners:
            return f"belongs to user {status.st_uid}"
        mode = status.st_mode
        if mode & stat.S_IWOTH or mode & stat.S_IWGRP and status.st_gid not in self.groups:
            return "can be written by other users"
        return None

    def foreign_link(self, path: Path) -> str | None:
        """Describe an untrusted link on an existing absolute path, with its owner; None without one."""
        for place in (*reversed(path.parents), path):
            status = os.lstat(place)
            if not stat.S_ISLNK(status.st_mode):
                continue
            if status.st_uid not in self.owners:
                return f"lies behind a link of user {status.st_uid}"
            found = self.foreign_link(place.parent / os.readlink(place))
            if found is not None:
                return found
        return None
