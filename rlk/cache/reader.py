"""Read-only access to a store that belongs to another user: nothing is created, touched or moved."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from rlk.cache.key import CacheKey
from rlk.cache.known import PASSING_ERRORS, Known
from rlk.cache.manifest import BadEntry
from rlk.cache.trust import Trust

logger = logging.getLogger("rlk.cache")


class Reader:
    """The entries below a root directory that the machine's owner fills, such as one in a container image.

    A root that a user other than this one and the superuser owns, or can write, counts as empty: kernels are
    code. A bad entry counts as missing, and is logged once.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known = Known()
        self._bad: set[str] = set()
        self.problem = _refusal(root)
        if self.problem is not None:
            logger.warning("system cache %s %s: it is not used", root, self.problem)

    def find(self, key: CacheKey) -> Path | None:
        """Return the sound entry of `key`, or None."""
        name = key.digest()
        if self.problem is not None or name in self._bad:
            return None
        path = self.root / "entries" / name[:2] / name
        try:
            self._known.check(path, name)
        except FileNotFoundError:
            return None
        except (BadEntry, OSError) as error:
            if not (isinstance(error, OSError) and error.errno in PASSING_ERRORS):
                self._bad.add(name)
            logger.warning("system cache entry %s: %s; it is not used", name[:12], error)
            return None
        return path


def _refusal(root: Path) -> str | None:
    for place in (root, root / "entries"):
        try:
            status = os.lstat(place)
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        if not stat.S_ISDIR(status.st_mode):
            return f"({place.name}) is not a directory"
        problem = Trust.own().problem(status)
        if problem is not None:
            return problem
    return None
