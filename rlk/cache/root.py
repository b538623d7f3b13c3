"""Choice of the store's directory: one that no other user can write, or a temporary one."""

from __future__ import annotations

import atexit
import os
import re
import stat
import tempfile
from pathlib import Path

from rlk.cache.removal import remove
from rlk.cache.trust import Trust

MARKER = ".rlk-store"
_SAYS = b"A store of rlk's kernels: what stands here is removed as it sees fit. `rlk cache ls` lists it.\n"
# Names inside each folder of a store, by which a store without a marker (of an old version) is recognized.
_HOLDS = {
    "entries": re.compile(r"[0-9a-f]{2}"),
    "locks": re.compile(r".+\.lock"),
    "staging": re.compile(r"([0-9a-f]{64}|evicted|clock|import)\..+"),
    "quarantine": re.compile(r"([0-9a-f]{64}|[0-9a-f]{2})\..+"),
}
_ENTRY = re.compile(r"[0-9a-f]{64}")
# of a disk that was made for the store, and of the oracle (`FOLDER` of rlk/interp/machine_code.py)
_NO_FILE_OF_ANYBODY = {"lost+found", ".rlk-oracle"}
_TEMPORARY_PLACES = (None, "/dev/shm", "/var/tmp")  # None: where TMPDIR says


def open_root(root: Path) -> str | None:
    """Make `root` a store, with its folders, unless it is one; return why it cannot be trusted, or None.

    Nothing is written into a directory with other files, whoever owns it. A read-only store is fine, and so
    is one that belongs to the superuser.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _believed(root, os.stat(root)) or _foreign(root)
    except OSError as error:
        return f"cannot be used: {error.strerror or error}"
    if problem is not None:
        return problem
    _mark(root)
    for name in _HOLDS:
        problem = _inside(root / name)
        if problem is not None:
            return f"({name}) {problem}"
    return None


def _believed(place: Path, status: os.stat_result) -> str | None:
    trust = Trust.own()
    problem = trust.foreign_link(place) or trust.problem(status)
    if problem is not None and status.st_uid in trust.owners and status.st_mode & 0o022:
        return f"{problem}; run: chmod go-w '{place}'"
    return problem


def _foreign(root: Path) -> str | None:
    """Return a description of a directory that is not a store, or None."""
    held = set(os.listdir(root)) - _NO_FILE_OF_ANYBODY
    if MARKER in held:
        status = os.lstat(root / MARKER)
        if not stat.S_ISREG(status.st_mode):
            return f"({MARKER}) is not a plain file"
        problem = Trust.own().problem(status)
        return None if problem is None else f"({MARKER}) {problem}"
    stray = sorted(held - _HOLDS.keys())
    stray = stray or [f"{name}/{each}" for name in sorted(held) for each in _stray(root, name)]
    if not held or "entries" in held and not stray:
        return None
    return f"is not empty and no store ({(stray or sorted(held))[0]!r}); name a new or an empty folder"


def _stray(root: Path, name: str) -> list[str]:
    """Return the names in a folder of a store that a store does not have."""
    if not stat.S_ISDIR(os.lstat(root / name).st_mode):
        return ["."]
    held = sorted(os.listdir(root / name))
    if name == "entries":
        shards = [each for each in held if stat.S_ISDIR(os.lstat(root / name / each).st_mode)]
        within = [f"{shard}/{each}" for shard in shards for each in os.listdir(root / name / shard)]
        held = [each for each in held if each not in shards or not _HOLDS[name].fullmatch(each)]
        return held + [each for each in within if not _ENTRY.fullmatch(each[3:])]
    return [each for each in held if not _HOLDS[name].fullmatch(each)]


def _mark(root: Path) -> None:
    try:
        handle = os.open(root / MARKER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError:
        return  # it is there, or nothing can be written
    try:
        os.write(handle, _SAYS)
    except OSError:
        pass  # its name says it
    finally:
        os.close(handle)


def _inside(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return _believed(folder, os.stat(folder))
    except OSError as error:
        return f"cannot be used: {error.strerror or error}" if os.path.lexists(folder) else None


def share(root: Path) -> int:
    """Let every user of the machine read the entries of a store; return the number of changed modes.

    No other user may write them, so that they stay trusted. Raises OSError if a mode cannot be changed.
    """
    places = [root, root / "entries", *(root / "entries").rglob("*")]
    changed = 0
    for place in places:
        status = os.lstat(place)
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
            continue
        executable = stat.S_ISDIR(status.st_mode) or status.st_mode & stat.S_IXUSR
        mode = status.st_mode & 0o7755 | (0o555 if executable else 0o444)
        if stat.S_IMODE(status.st_mode) != mode:
            os.chmod(place, mode)
            changed += 1
    return changed


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


def is_there(temporary: Path) -> bool:
    """Return whether a directory that `temporary_root` made still exists, and still belongs to this user."""
    try:
        status = os.lstat(temporary)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and Trust.own().problem(status) is None


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the registration, not the directory
        remove(path)
