"""Where entries may live: a directory no other user can write, or one that ends with the process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_TEMPORARY_PLACES = (None, "/dev/shm", "/var/tmp")  # None: where TMPDIR says


def refusal(root: Path) -> str | None:
    """Create `root` if need be; say why it cannot be trusted, or None.

    Kernels are code: whoever can write the store can run code as its reader. The superuser can do that
    anyway, so a store that belongs to root is accepted.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(root)
    except OSError as error:
        return f"cannot be used: {error.strerror or error}"
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return f"can be written by other users; run: chmod go-w '{root}'"
    return None


def temporary_root() -> Path:
    """Create a private directory which is removed when this process ends."""
    owner = os.getpid()
    for place in _TEMPORARY_PLACES:
        try:
            path = Path(tempfile.mkdtemp(prefix="rlk-", dir=place))
        except OSError as error:
            problem = error
            continue
        atexit.register(_remove, path, owner)
        return path
    raise problem


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the registration, not the directory
        shutil.rmtree(path, ignore_errors=True)
