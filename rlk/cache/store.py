"""How an entry is found, built once, published whole and mistrusted once changed: never with an exception."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from rlk.cache import gc as eviction
from rlk.cache.gc import Entry
from rlk.cache.key import CacheKey
from rlk.cache.lock import Hold, hold
from rlk.cache.manifest import MANIFEST, BadEntry, Manifest, describe, read_manifest, sync, write_synced
from rlk.cache.root import refusal, temporary_root
from rlk.digest import Json, below

__all__ = ["Counters", "Entry", "Finding", "Store"]

logger = logging.getLogger("rlk.cache")

# Errors of the place where files are written, as opposed to errors of what is being built.
_STORAGE_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EFBIG,
    errno.EMFILE, errno.ENFILE,
}  # fmt: skip
# Errors that say nothing of what is read: this process has too much open, or a server was away.
_PASSING_ERRORS = {
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip
_PUBLICATIONS_PER_GC = 32


@dataclass(slots=True)
class Counters:
    """What this process's store has done.

    `waited`: built by another process meanwhile. `quarantined`: damaged entries moved aside. `unpublished`:
    built into a temporary directory because the store could not take it. `trouble`: failed file operations
    that were survived. `refused`: roots that were not trusted.
    """

    hits: int = 0
    misses: int = 0
    builds: int = 0
    waited: int = 0
    quarantined: int = 0
    unpublished: int = 0
    evicted: int = 0
    trouble: int = 0
    refused: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged entry that `Store.verify` moved aside, and what was wrong with it."""

    name: str
    problem: str


def _no_step(step: str) -> None:
    """Do nothing: the hook by which tests stop a process between two steps."""


class Store:
    """Entries below one root directory, shared by processes and threads.

    `limit` is the size in bytes to which publishing trims the store; None never trims. A root that another
    user could write is replaced by a temporary directory, with a warning.
    """

    def __init__(
        self,
        root: Path,
        *,
        limit: int | None = None,
        lock_timeout: float = 900.0,
        on_step: Callable[[str], None] = _no_step,
    ) -> None:
        self.counters = Counters()
        self.limit = limit
        self.lock_timeout = lock_timeout
        self._step = on_step
        self._guard = threading.Lock()
        self._verified: dict[str, int] = {}  # entry name -> inode of the directory whose content was hashed
        self._private: dict[str, Path] = {}  # entries that could not be published
        self._temporary: Path | None = None
        self._warned: set[str] = set()
        self.root = self._trusted(root)

    def _trusted(self, root: Path) -> Path:
        problem = refusal(root) or self._lay_out(root)
        if problem is None:
            return root
        self._count("refused")
        fallback = self._temporary_root() / "store"
        logger.warning("kernel store %s %s; using %s for this process", root, problem, fallback)
        fallback.mkdir(mode=0o700, exist_ok=True)
        self._lay_out(fallback)
        return fallback

    def _lay_out(self, root: Path) -> str | None:
        """Create the folders of a store; say what cannot be trusted. A store that is read-only is fine."""
        for name in ("entries", "locks", "staging", "quarantine"):
            problem = refusal(root / name)
            if problem is not None and os.path.lexists(root / name):
                return f"({name}) {problem}"
        return None

    def get_or_build(self, key: CacheKey, build: Callable[[Path], None], *, label: str = "") -> Path:
        """Return a directory that holds what `build` wrote for `key`, building at most once among processes.

        `build` gets an empty directory and writes plain files into it; whatever it raises is passed on,
        except failures of the store's own disk, after which it runs again on a temporary directory. The
        result must not be changed, and should be read soon: later it may be evicted.
        """
        name = key.digest()
        found = self._load(name, quarantine=False)
        if found is not None:
            self._count("hits")
            return found
        self._count("misses")
        self._step("missed")
        with hold(self.root / "locks" / f"{name}.lock", self.lock_timeout) as outcome:
            if outcome is Hold.TIMED_OUT:
                self._trouble("lock", f"{name[:12]} stayed locked for {self.lock_timeout:.0f} s")
                return self._build_private(name, build)
            self._step("locked")
            found = self._load(name, quarantine=True)
            if found is not None:
                self._count("waited")
                return found
            self._step("rechecked")
            if outcome is Hold.OWNED:
                self._remove_dead_staging(name)
            result = self._build_shared(name, key.members(), build, label)
        if result is None:
            return self._build_private(name, build)
        self._trim_sometimes()
        return result

    def offer(self, key: CacheKey, write: Callable[[Path], None], *, label: str = "") -> bool:
        """Publish what `write` writes for `key`, if that is easily done; return whether it was.

        For what can be done without: no lock is waited for, nothing is put elsewhere, no failure of the disk
        is raised or reported above the level of debugging, and it counts as no build.
        """
        name = key.digest()
        with hold(self.root / "locks" / f"{name}.lock", 0.0) as outcome:
            if outcome is Hold.TIMED_OUT or self._load(name, quarantine=outcome is Hold.OWNED) is not None:
                return False
            try:
                staging = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.root / "staging"))
            except OSError as error:
                logger.debug("kernel store %s: nothing more is kept: %s", self.root, error)
                return False
            try:
                write(staging)
                return self._publish(name, key.members(), label, staging) is not None
            except OSError as error:
                logger.debug("kernel store %s: %s was not kept: %s", self.root, label, error)
                return False
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def find(self, key: CacheKey) -> Path | None:
        """Return the entry of `key` if there is a sound one."""
        return self._load(key.digest(), quarantine=False)

    def entries(self) -> tuple[Entry, ...]:
        """List the published entries, the least recently used first."""
        return eviction.entries(self.root / "entries")

    def gc(self, limit: int, *, grace: float = 60.0) -> tuple[Entry, ...]:
        """Evict least recently used entries until at most `limit` bytes remain; return the evicted.

        Entries used in the last `grace` seconds stay: their readers may not have opened the files yet. Also
        removes what dead processes and quarantines left behind.
        """
        evicted = eviction.evict(self.root, limit, grace)
        self._count("evicted", len(evicted))
        with self._guard:
            for entry in evicted:
                self._verified.pop(entry.name, None)
        eviction.sweep(self.root)
        return evicted

    def verify(self) -> tuple[Finding, ...]:
        """Hash every file of every entry; move damaged entries aside and report them."""
        findings = []
        for path in eviction.folders(self.root / "entries"):
            try:
                self._check(path, path.name, hashed=True)
            except FileNotFoundError:
                continue
            except (BadEntry, OSError) as error:
                with hold(self.root / "locks" / f"{path.name}.lock", 0.0) as outcome:
                    if outcome is not Hold.TIMED_OUT:
                        self._quarantine(path, str(error))
                findings.append(Finding(path.name, str(error)))
        return tuple(findings)

    def adopt(self, folder: Path, name: str) -> bool:
        """Publish what stands in a folder of the store's disk as entry `name`; False where there is one.

        The folder is moved. Raises BadEntry for what is not that entry, whole and alone; OSError.
        """
        manifest = self._check(folder, name, hashed=True)
        paths = below(folder)
        held = {path.relative_to(folder).as_posix() for path in paths if not path.is_dir()}
        if held != {MANIFEST, *(file.name for file in manifest.files)}:
            raise BadEntry("it holds files that its manifest does not name")
        with hold(self.root / "locks" / f"{name}.lock", self.lock_timeout):
            if self._load(name, quarantine=True) is not None:
                return False
            for path in (*paths, folder):
                sync(path)
            path = self._entry(name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            os.rename(folder, path)
        return True

    # loading ------------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Path:
        return self.root / "entries" / name[:2] / name

    def _load(self, name: str, *, quarantine: bool) -> Path | None:
        """Return the sound entry `name`, or None. Only the holder of its lock may move a bad one aside."""
        private = self._private.get(name)
        if private is not None and private.is_dir():
            return private
        path = self._entry(name)
        try:
            inode = os.lstat(path).st_ino
            self._check(path, name, hashed=self._verified.get(name) != inode)
        except FileNotFoundError:
            return None
        except (BadEntry, OSError) as error:
            if quarantine and not (isinstance(error, OSError) and error.errno in _PASSING_ERRORS):
                self._quarantine(path, str(error))
            return None
        with self._guard:
            self._verified[name] = inode
        self._touch(path)
        return path

    def _check(self, path: Path, name: str, *, hashed: bool) -> Manifest:
        manifest = read_manifest(path, name)
        manifest.check_sizes(path)
        if hashed:
            try:
                manifest.check_content(path)
            except FileNotFoundError as error:
                raise BadEntry(f"{error.filename} vanished") from None
        return manifest

    def _touch(self, path: Path) -> None:
        """Mark the entry as used now: the order of eviction."""
        try:
            os.utime(path / MANIFEST)
        except OSError:
            pass  # a read-only store is not evicted from either

    def _quarantine(self, path: Path, problem: str) -> None:
        aside = self.root / "quarantine" / f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
        logger.warning("kernel store entry %s: %s; it will be rebuilt", path.name[:12], problem)
        self._count("quarantined")
        with self._guard:
            self._verified.pop(path.name, None)
        with self._survive("quarantine"):
            os.rename(path, aside)

    # building -----------------------------------------------------------------------------------------------

    def _build_shared(self, name: str, key: Json, build: Callable[[Path], None], label: str) -> Path | None:
        """Build in the store's staging folder and publish; None when the store's disk cannot take it."""
        staging = self._new_staging(name)
        if staging is None:
            return None
        try:
            self._step("staged")
            self._run(build, staging)
            self._step("built")
            return self._publish(name, key, label, staging)
        except OSError as error:
            # a folder that vanished was swept by someone else, whose clock may be far ahead
            if error.errno not in _STORAGE_ERRORS and staging.is_dir():
                raise
            self._trouble("publish", str(error))
            return None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _new_staging(self, name: str) -> Path | None:
        with self._survive("staging"):
            return Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.root / "staging"))
        return None

    def _run(self, build: Callable[[Path], None], folder: Path) -> None:
        self._count("builds")
        build(folder)

    def _publish(self, name: str, key: Json, label: str, staging: Path) -> Path | None:
        manifest = describe(staging, key, label)
        self._step("described")
        write_synced(staging / MANIFEST, manifest.encode())
        self._step("listed")
        for folder in (*(path for path in below(staging) if path.is_dir()), staging):
            sync(folder)
        self._step("synced")
        path = self._entry(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        inode = os.lstat(staging).st_ino
        try:
            os.rename(staging, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            # Without working locks another process may publish first: its entry is as good as ours.
            return self._load(name, quarantine=False)
        self._step("published")
        with self._guard:
            self._verified[name] = inode
        with self._survive("sync"):
            sync(path.parent)
        return path

    def _build_private(self, name: str, build: Callable[[Path], None]) -> Path:
        """Build where only this process will find it."""
        folder = Path(tempfile.mkdtemp(prefix="entry-", dir=self._temporary_root()))
        self._count("unpublished")
        self._run(build, folder)
        with self._guard:
            return self._private.setdefault(name, folder)

    def _temporary_root(self) -> Path:
        with self._guard:
            if self._temporary is None:
                self._temporary = temporary_root()
            return self._temporary

    def _remove_dead_staging(self, name: str) -> None:
        """Remove what killed builders of this key left: its lock is ours, so none of them is alive."""
        with self._survive("staging"):
            for folder in (self.root / "staging").glob(f"{name}.*"):
                shutil.rmtree(folder, ignore_errors=True)

    def _trim_sometimes(self) -> None:
        if self.limit is not None and self.counters.builds % _PUBLICATIONS_PER_GC == 1:
            self.gc(self.limit)

    # trouble ------------------------------------------------------------------------------------------------

    @contextmanager
    def _survive(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._trouble(what, str(error))

    def _trouble(self, what: str, detail: str) -> None:
        self._count("trouble")
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        logger.log(level, "kernel store %s: %s failed: %s", self.root, what, detail)

    def _count(self, counter: str, by: int = 1) -> None:
        with self._guard:
            setattr(self.counters, counter, getattr(self.counters, counter) + by)
