"""Lookup, building and atomic publication of entries; damaged ones are quarantined, never raised."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

from rlk.cache import gc as eviction
from rlk.cache.gc import Entry
from rlk.cache.key import CacheKey
from rlk.cache.known import PASSING_ERRORS, Known, hashed
from rlk.cache.lock import Hold, hold
from rlk.cache.manifest import MANIFEST, BadEntry, Manifest, describe, sync, write_synced
from rlk.cache.removal import remove
from rlk.cache.root import is_there, open_root, temporary_root
from rlk.cache.trust import Trust
from rlk.digest import Json, below

__all__ = ["Counters", "Entry", "Finding", "Store"]

logger = logging.getLogger("rlk.cache")

# Errors of the disk where files are written, as opposed to errors of the builder.
_STORAGE_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EFBIG,
    errno.EMFILE, errno.ENFILE, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV,
    errno.EBUSY, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.ENOLCK, errno.ENODEV, errno.ENXIO,
    errno.ENAMETOOLONG, errno.EMLINK, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EREMOTEIO,
}  # fmt: skip
_PUBLICATIONS_PER_GC = 32


@dataclass(slots=True)
class Counters:
    """Counters of this process's use of the store.

    `waited`: built by another process meanwhile. `quarantined`: damaged entries moved aside. `unpublished`:
    built into a temporary directory because the store could not take it. `trouble`: failed file operations
    with a fallback. `refused`: roots that were not trusted.
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


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged entry that `Store.verify` quarantined, and the reason."""

    name: str
    problem: str


_stores: WeakSet[Store] = WeakSet()


def _after_fork() -> None:
    for store in _stores:
        store.leave_parent()


os.register_at_fork(after_in_child=_after_fork)


def _no_step(step: str) -> None:
    """Do nothing: the hook by which tests stop a process between two steps."""


class Store:
    """Entries below one root directory, shared by processes and threads.

    `limit` is the size in bytes to which publishing trims the store; None never trims. A root that another
    user could write, or with other files and no store, is replaced by a temporary directory, with a warning:
    `refused` is the reason, as the predicate of a sentence. `trouble` is the last failure that was handled.
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
        self._known = Known()
        self._private: dict[str, tuple[Path, Manifest | None]] = {}  # entries that could not be published
        self._temporary: list[Path] = []  # the last one is in use
        self._warned: set[str] = set()
        self._root = root
        self.refused = open_root(root)
        self.trouble: str | None = None
        _stores.add(self)
        if self.refused is not None:
            self._count("refused")
            logger.warning("kernel store %s %s; using %s for this process", root, self.refused, self.root)

    @property
    def root(self) -> Path:
        """The directory in use: the given one or, if that is refused, a temporary one."""
        if self.refused is None:
            return self._root
        fallback = self._temporary_root() / "store"
        if not fallback.is_dir():
            open_root(fallback)
        return fallback

    def why_lost(self, path: Path) -> str | None:
        """Return why the entry at a path is removed with this process; None if it stays."""
        with self._guard:
            lost = any(path.is_relative_to(place) for place in self._temporary)
        if not lost:
            return None
        return f"{self._root} {self.refused}" if self.refused else f"{self._root}: {self.trouble}"

    def get_or_build(self, key: CacheKey, build: Callable[[Path], None], *, label: str = "") -> Path:
        """Return the directory of the entry for `key`, written by `build` at most once among processes.

        `build` gets an empty directory and writes plain files into it; its exceptions are passed on, except
        failures of the store's own disk, after which it runs again on a temporary directory. The result must
        not be changed, and should be read soon: later it may be evicted.
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
        """Try to publish the files that `write` writes for `key`; return whether it succeeded.

        For dispensable entries: it waits for no lock, has no fallback directory, raises no failure of the
        disk, logs failures at the debug level, and does not count as a build.
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
                manifest = describe(staging, key.members(), label)
                return self._publish(name, manifest, staging) is not None
            except OSError as error:
                logger.debug("kernel store %s: %s was not kept: %s", self.root, label, error)
                return False
            finally:
                remove(staging)

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
                self._known.drop(entry.name)
        eviction.sweep(self.root)
        return evicted

    def verify(self) -> tuple[Finding, ...]:
        """Hash every file of every entry; quarantine damaged entries and return them."""
        findings = []
        for path in eviction.folders(self.root / "entries"):
            try:
                hashed(path, path.name)
            except FileNotFoundError:
                continue
            except (BadEntry, OSError) as error:
                with hold(self.root / "locks" / f"{path.name}.lock", 0.0) as outcome:
                    if outcome is not Hold.TIMED_OUT:
                        self._quarantine(path, str(error))
                findings.append(Finding(path.name, str(error)))
        return tuple(findings)

    def adopt(self, folder: Path, name: str) -> bool:
        """Publish a folder on the store's disk as entry `name`; return False if the entry exists.

        The folder is moved. Raises BadEntry unless it has exactly the files of that entry; OSError.
        """
        manifest = hashed(folder, name)
        paths = below(folder)
        held = {path.relative_to(folder).as_posix() for path in paths if not path.is_dir()}
        if held != {MANIFEST, *(file.name for file in manifest.files)}:
            raise BadEntry("it holds files that its manifest does not name")
        with hold(self.root / "locks" / f"{name}.lock", self.lock_timeout):
            if self._load(name, quarantine=True) is not None:
                return False
            for path in (*paths, folder):
                sync(path)
            os.rename(folder, self._place(name))
        return True

    # loading ------------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> Path:
        return self.root / "entries" / name[:2] / name

    def _load(self, name: str, *, quarantine: bool) -> Path | None:
        """Return the sound entry `name`, or None. Only the holder of its lock may quarantine a bad one."""
        private = self._find_private(name)
        if private is not None:
            return private
        path = self._entry(name)
        try:
            self._known.check(path, name)
        except FileNotFoundError:
            return None
        except (BadEntry, OSError) as error:
            if quarantine and not (isinstance(error, OSError) and error.errno in PASSING_ERRORS):
                self._quarantine(path, str(error))
            return None
        self._touch(path)
        return path

    def _find_private(self, name: str) -> Path | None:
        """Return an entry that could not be published, unless its temporary files were removed."""
        held = self._private.get(name)
        if held is None:
            return None
        folder, manifest = held
        try:
            if manifest is not None:
                manifest.check_sizes(folder)
            elif not folder.is_dir():
                raise BadEntry("it is missing")
        except (BadEntry, OSError):
            with self._guard:
                self._private.pop(name, None)
            return None
        return folder

    def _place(self, name: str) -> Path:
        """Return the path of an entry to publish, in a folder that no other user can write."""
        path = self._entry(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        problem = Trust.own().problem(os.lstat(path.parent))
        if problem is not None:
            self._quarantine(path.parent, problem)
            path.parent.mkdir(mode=0o700, exist_ok=True)
        return path

    def _touch(self, path: Path) -> None:
        """Mark the entry as used now: the order of eviction."""
        try:
            os.utime(path / MANIFEST)
        except OSError:
            pass  # a read-only store has no eviction

    def _quarantine(self, path: Path, problem: str) -> None:
        aside = self.root / "quarantine" / f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
        logger.warning("kernel store entry %s: %s; it will be rebuilt", path.name[:12], problem)
        self._count("quarantined")
        with self._guard:
            self._known.drop(path.name)
        with self._survive("quarantine"):
            os.rename(path, aside)

    # building -----------------------------------------------------------------------------------------------

    def _build_shared(self, name: str, key: Json, build: Callable[[Path], None], label: str) -> Path | None:
        """Build in the store's staging folder and publish; None when the store's disk cannot take it."""
        staging = self._new_staging(name)
        if staging is None:
            return None
        try:
            if not self._built(build, staging):
                return None
            return self._published(name, key, label, staging)
        finally:
            remove(staging)

    def _new_staging(self, name: str) -> Path | None:
        with self._survive("staging"):
            try:
                return self._staging(name)
            except FileNotFoundError:
                if open_root(self.root) is not None:  # it was removed since it was opened
                    raise
                return self._staging(name)
        return None

    def _staging(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.root / "staging"))

    def _built(self, build: Callable[[Path], None], staging: Path) -> bool:
        """Build on the store's disk; return False if the disk failed."""
        try:
            self._step("staged")
            self._run(build, staging)
            self._step("built")
        except OSError as error:
            # a folder that vanished was swept by someone else, whose clock may be far ahead
            if error.errno not in _STORAGE_ERRORS and staging.is_dir():
                raise
            self._trouble("build", str(error))
            return False
        return True

    def _published(self, name: str, key: Json, label: str, staging: Path) -> Path | None:
        """Publish the staged files or, if the store cannot take them, keep them in this process; else None.

        No OSError is raised: the kernel was built, and the call can use it.
        """
        manifest = None
        try:
            manifest = describe(staging, key, label)
            path = self._publish(name, manifest, staging)
            if path is not None:
                return path
            self._trouble("publish", f"{name[:12]} is damaged and cannot be replaced")
        except OSError as error:
            self._trouble("publish", str(error))
        return None if manifest is None else self._copied(name, manifest, staging)

    def _copied(self, name: str, manifest: Manifest, staging: Path) -> Path | None:
        """Copy the staged files to a directory of this process; None if that fails too."""
        try:
            folder = self._private_folder()
            shutil.copytree(staging, folder, symlinks=True, dirs_exist_ok=True)
            manifest.check_sizes(folder)
            manifest.check_content(folder)
        except (BadEntry, OSError) as error:
            logger.debug("kernel store %s: %s is built again: %s", self._root, name[:12], error)
            return None
        return self._keep_private(name, folder, manifest)

    def _run(self, build: Callable[[Path], None], folder: Path) -> None:
        self._count("builds")
        build(folder)

    def _publish(self, name: str, manifest: Manifest, staging: Path) -> Path | None:
        self._step("described")
        write_synced(staging / MANIFEST, manifest.encode())
        self._step("listed")
        for folder in (*(path for path in below(staging) if path.is_dir()), staging):
            sync(folder)
        self._step("synced")
        path = self._place(name)
        inode = os.lstat(staging).st_ino
        try:
            os.rename(staging, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            # Without working locks another process may publish first: its entry is as good as ours.
            return self._load(name, quarantine=False)
        self._step("published")
        self._known.add(name, inode, manifest)
        with self._survive("sync"):
            sync(path.parent)
        return path

    def _build_private(self, name: str, build: Callable[[Path], None]) -> Path:
        """Build in a directory of this process."""
        folder = self._private_folder()
        self._run(build, folder)
        try:
            manifest = describe(folder, None, "")
        except (OSError, ValueError):
            manifest = None
        return self._keep_private(name, folder, manifest)

    def _private_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="entry-", dir=self._temporary_root()))

    def _keep_private(self, name: str, folder: Path, manifest: Manifest | None) -> Path:
        self._count("unpublished")
        with self._guard:
            return self._private.setdefault(name, (folder, manifest))[0]

    def _temporary_root(self) -> Path:
        """Return a directory that is removed with this process; a new one if it was removed before."""
        with self._guard:
            if not self._temporary or not is_there(self._temporary[-1]):
                self._temporary.append(temporary_root())
            return self._temporary[-1]

    def leave_parent(self) -> None:
        """Forget the temporary entries of the process that this one was forked from: it removes them."""
        self._guard = threading.Lock()  # another thread of the parent may have held it
        self._private, self._temporary = {}, []

    def _remove_dead_staging(self, name: str) -> None:
        """Remove the staging folders of killed builders of this key: its lock is held, so none is alive."""
        with self._survive("staging"):
            for folder in (self.root / "staging").glob(f"{name}.*"):
                remove(folder)

    def _trim_sometimes(self) -> None:
        if self.limit is not None and self.counters.builds % _PUBLICATIONS_PER_GC == 1:
            with self._survive("gc"):
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
        self.trouble = f"{what} failed: {detail}"
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        logger.log(level, "kernel store %s: %s failed: %s", self.root, what, detail)

    def _count(self, counter: str, by: int = 1) -> None:
        with self._guard:
            setattr(self.counters, counter, getattr(self.counters, counter) + by)
