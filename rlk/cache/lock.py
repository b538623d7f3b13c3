"""A lock for each key: one builder at a time, by flock on a file that outlives its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_LONGEST_PAUSE = 0.05


class Hold(Enum):
    """The outcome of asking for a lock."""

    OWNED = "owned"
    TIMED_OUT = "timed out"
    UNAVAILABLE = "unavailable"  # a read-only directory, or a file system without flock


@contextmanager
def hold(path: Path, timeout: float) -> Iterator[Hold]:
    """Hold an exclusive lock on `path` for the duration of the block; wait for at most `timeout` seconds.

    Never raises: the caller decides what to do without the lock. The kernel drops the lock when its holder
    dies, however it dies.
    """
    handle, outcome = _acquire(path, time.monotonic() + timeout)
    try:
        yield outcome
    finally:
        if handle is not None:
            _release(handle)


def _acquire(path: Path, deadline: float) -> tuple[int | None, Hold]:
    pause = 0.001
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return None, Hold.UNAVAILABLE
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_named(handle, path):
                return handle, Hold.OWNED
            # gc unlinked the file between open and flock: another process may lock a new one by now.
            _release(handle)
            continue
        except OSError as error:
            os.close(handle)
            if error.errno not in _BUSY:
                return None, Hold.UNAVAILABLE
        if time.monotonic() >= deadline:
            return None, Hold.TIMED_OUT
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _still_named(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _release(handle: int) -> None:
    # Unlock before closing: a forked child may still share this open file description.
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError:
        pass  # closing unlocks too, unless another process shares the description
    finally:
        os.close(handle)
