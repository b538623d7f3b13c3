"""Eviction from a store that has grown too large, and removal of leftovers of dead processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlk.cache.key import CALLS
from rlk.cache.lock import Hold, hold
from rlk.cache.manifest import MANIFEST, BadEntry, read_manifest
from rlk.cache.removal import remove
from rlk.digest import Json

_DAY = 86400.0
_MONTH = 30 * _DAY
_KEPT_IN_QUARANTINE = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A published entry: `size` in bytes, `last_used` in seconds since the epoch, `key` as JSON."""

    name: str
    path: Path
    label: str
    key: Json
    size: int
    last_used: float


def is_of_calls(entry: Entry) -> bool:
    """Return whether an entry is a record of a call (which kernel it runs), and not a kernel."""
    return isinstance(entry.key, dict) and entry.key.get("backend") == CALLS


def folders(root: Path) -> Iterator[Path]:
    """Walk the entries' directories below `root`, in the order of their names."""
    for shard in _listing(root):
        yield from _listing(shard)


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def entries(root: Path) -> tuple[Entry, ...]:
    """List the readable entries below `root`, the least recently used first."""
    found = []
    for path in folders(root):
        try:
            manifest = read_manifest(path, path.name)
            used = os.stat(path / MANIFEST).st_mtime
        except (BadEntry, OSError):
            continue
        found.append(Entry(path.name, path, manifest.label, manifest.key, manifest.size, used))
    return tuple(sorted(found, key=lambda entry: (entry.last_used, entry.name)))


def evict(root: Path, limit: int, grace: float) -> tuple[Entry, ...]:
    """Remove least recently used entries until at most `limit` bytes remain; return the removed."""
    now = clock(root)

    def stale(entry: Entry) -> bool:
        """Return whether an entry is a long unused record of a call: too small for a limit of bytes."""
        return is_of_calls(entry) and now - entry.last_used > _MONTH

    # a time of use in the future of the store's clock is wrong: such entries are removed next
    present = sorted(
        entries(root / "entries"), key=lambda e: (not stale(e), e.last_used <= now + grace, e.last_used)
    )
    excess = sum(entry.size for entry in present) - limit
    evicted = []
    for entry in present:
        if excess <= 0 and not stale(entry):
            break
        if abs(now - entry.last_used) >= grace and _remove(root, entry):
            excess -= entry.size
            evicted.append(entry)
    return tuple(evicted)


def clock(root: Path) -> float:
    """Return the time of the clock that dates files below `root`: another machine's on a shared disk."""
    try:
        handle, path = tempfile.mkstemp(prefix="clock.", dir=root / "staging")
    except OSError:
        return time.time()
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        remove(Path(path))


def _remove(root: Path, entry: Entry) -> bool:
    """Remove an entry atomically, so that readers see all of it or nothing; skip one that is being built."""
    lock = root / "locks" / f"{entry.name}.lock"
    aside = root / "staging" / f"evicted.{os.getpid()}.{os.urandom(4).hex()}"
    with hold(lock, 0.0) as outcome:
        if outcome is not Hold.OWNED:
            return False
        try:
            os.rename(entry.path, aside)
            lock.unlink()
        except OSError:
            return False
    remove(aside)
    return True


def sweep(root: Path) -> None:
    """Remove staging folders without a builder for a day, and all but the newest quarantined entries."""
    now = clock(root)
    for path in _listing(root / "staging"):
        if now - _changed(path, now) > _DAY:
            with hold(root / "locks" / f"{path.name.split('.')[0]}.lock", 0.0) as outcome:
                if outcome is not Hold.TIMED_OUT:  # the lock of an entry that is being built is held
                    remove(path)  # remaining files are tried again at the next sweep
    aside = sorted(_listing(root / "quarantine"), key=lambda path: _changed(path, now), reverse=True)
    for path in aside[_KEPT_IN_QUARANTINE:]:
        remove(path)


def _changed(path: Path, now: float) -> float:
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return now
