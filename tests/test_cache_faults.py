"""A store under attack: failing calls, damage, killed writers, races, skewed clocks, hostile archives.

Whatever happens, a caller gets the kernel that it asked for, and soon.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import random
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlk.cache import CacheKey, Reader, Store
from rlk.cache import archive as archive_module
from rlk.cache.archive import export_entries, import_entries
from rlk.cache.manifest import MANIFEST, BadEntry
from rlk.cli import main
from rlk.env import Env
from rlk.runtime.kernels import build

KEY = CacheKey("ir", None, "sm_90a", "triton", "emitter", (("triton", "3.6.0"),))
ABOUT_ARCHIVES = Path(__file__).resolve().parents[1] / "docs" / "aot.md"
SCHEDULES = 4_000
KILLS = 50
ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EMFILE,
)  # fmt: skip
CALLS = (
    "rename",
    "open",
    "fsync",
    "utime",
    "lstat",
    "stat",
    "mkdir",
    "unlink",
    "rmdir",
    "scandir",
    "listdir",
)


def key(number: int) -> CacheKey:
    return replace(KEY, ir=f"ir {number}")


def content(number: int) -> bytes:
    return f"kernel {number} ".encode() * 20


def writer(number: int) -> Callable[[Path], None]:
    def build_it(folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "kernel.cubin").write_bytes(content(number))
        (folder / "module.py").write_bytes(content(-number))

    return build_it


def right(path: Path, number: int) -> bool:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return right_inside(folder, number)
    finally:
        os.close(folder)


def right_inside(folder: int, number: int) -> bool:
    def read(name: str) -> bytes:
        with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=folder)) as stream:
            return stream.read()

    return [read("bin/kernel.cubin"), read("module.py")] == [content(number), content(-number)]


def right_or_gone(path: Path, number: int) -> bool:
    """A caller reads soon: later an entry may be evicted, or moved aside when its disk fails.

    Another process may then have built the entry again: what is read is the folder that stood there, and a
    file may be missing only of a folder that stands there no longer.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        return right_inside(folder, number)
    except FileNotFoundError:
        return not standing(folder, path)
    finally:
        os.close(folder)


def standing(folder: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.lstat(path))
    except FileNotFoundError:
        return False


@pytest.fixture
def root() -> Iterator[Path]:
    """A store in memory where there is such a disk: thousands of schedules flush thousands of files."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    place.chmod(0o700)
    yield place / "store"
    shutil.rmtree(place, ignore_errors=True)


# random faults


class Faults:
    """Makes calls of the operating system fail now and then, below one folder and on open files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.rate, self.made = str(root), 0.0, 0
        self.random = random.Random(0)
        for name in CALLS:
            monkeypatch.setattr(os, name, self.failing(getattr(os, name)))
        monkeypatch.setattr(fcntl, "flock", self.failing(fcntl.flock, (errno.ENOLCK, errno.EINTR, errno.EIO)))

    def failing(self, call: Callable[..., Any], errors: tuple[int, ...] = ERRORS) -> Callable[..., Any]:
        def maybe(*args: Any, **options: Any) -> Any:
            if self.rate and self.random.random() < self.rate and self.concerns(args[0] if args else ""):
                self.made += 1
                code = self.random.choice(errors)
                raise OSError(code, os.strerror(code), None if isinstance(args[0], int) else str(args[0]))
            return call(*args, **options)

        return maybe

    def concerns(self, what: object) -> bool:
        return isinstance(what, int) or str(what).startswith(self.root)


def damage(entry: Path, how: random.Random) -> None:
    """Do what a bad disk, a careless user or an enemy with the user's rights does to an entry."""
    files = [path for path in entry.rglob("*") if path.is_file()]
    if not files:
        return
    victim = how.choice(files)
    match how.randrange(7):
        case 0:
            os.truncate(victim, how.randrange(victim.stat().st_size + 1))
        case 1:
            data = bytearray(victim.read_bytes() or b"x")
            data[how.randrange(len(data))] ^= 1 << how.randrange(8)
            victim.write_bytes(data)
        case 2:
            victim.unlink()
        case 3:
            moved = victim.with_suffix(f".{how.random()}")
            victim.rename(moved)
            victim.symlink_to(moved)
        case 4:
            victim.chmod(0o666)
        case 5:
            shutil.rmtree(entry)
            entry.write_bytes(b"entry")
        case _:
            elsewhere = entry.parents[3] / f"elsewhere {how.random()}"
            (entry / "bin").rename(elsewhere)
            (entry / "bin").symlink_to(elsewhere)


@pytest.mark.slow
def test_no_schedule_of_faults_yields_a_wrong_kernel(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of random schedules: stores opened, kernels built, found, damaged, evicted, verified."""
    faults, how = Faults(root, monkeypatch), random.Random(7)
    monkeypatch.setattr("rlk.cache.store.logger.disabled", True)
    temporary = root.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("rlk.cache.store.temporary_root", lambda: Path(tempfile.mkdtemp(dir=temporary)))
    slowest, totals = 0.0, dict.fromkeys(("hits", "builds", "quarantined", "unpublished", "trouble"), 0)
    for _ in range(SCHEDULES):
        number = how.randrange(6)
        faults.rate = how.choice((0.0, 0.02, 0.1, 0.5))
        started = time.monotonic()
        store = Store(root, limit=how.choice((None, 500, 3000)), lock_timeout=0.2)
        path = store.get_or_build(key(number), writer(number))
        again = store.get_or_build(key(number), writer(number))
        slowest = max(slowest, time.monotonic() - started)
        faults.rate = 0.0
        assert right_or_gone(path, number), (path, number)
        assert right(again, number), (again, number)
        for name in totals:
            totals[name] += getattr(store.counters, name)
        match how.randrange(8):
            case 0:
                store.gc(how.randrange(3000), grace=0)
            case 1:
                store.verify()
            case 2 | 3:
                entry = root / "entries" / key(number).digest()[:2] / key(number).digest()
                damage(entry, how) if entry.is_dir() else None
        shutil.rmtree(root.parent / "temporary")
        temporary.mkdir()
    assert faults.made > SCHEDULES // 4 and all(totals.values()), (faults.made, totals)
    assert slowest < 60  # of a busy machine: far from the 900 s of a lock that somebody holds
    Store(root).verify()
    shutil.rmtree(root / "quarantine", ignore_errors=True)
    for number in range(6):
        assert right(Store(root).get_or_build(key(number), writer(number)), number)
    assert not Store(root).verify()


def test_the_checks_of_a_schedule_can_fail(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a store that does not hash serves a flipped bit."""
    path = Store(root).get_or_build(KEY, writer(1))
    data = bytearray((path / "module.py").read_bytes())
    data[3] ^= 1
    (path / "module.py").write_bytes(data)
    monkeypatch.setattr("rlk.cache.manifest.Manifest.check_content", lambda *_: None)
    assert not right(Store(root).get_or_build(KEY, writer(1)), 1)
    monkeypatch.undo()
    assert right(Store(root).get_or_build(KEY, writer(1)), 1)


@pytest.mark.parametrize("at", range(9))
def test_a_failure_at_each_step_of_a_publication_is_survived(root: Path, at: int) -> None:
    from test_cache import STEPS

    def fail(step: str) -> None:
        if step == STEPS[at]:
            raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(root, on_step=fail)
    try:
        path = store.get_or_build(KEY, writer(3))
    except OSError:
        assert at < 3  # the hook itself, where no file is written
    else:
        assert right(path, 3)
    assert right(Store(root).get_or_build(KEY, writer(3)), 3)
    assert not Store(root).verify() and not list((root / "staging").iterdir())


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EIO])
def test_an_entry_whose_folder_cannot_be_listed_is_not_published(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A manifest without a folder's files would be sound, and damage to these files never seen."""
    listed = os.scandir

    def failing(folder: str | Path | int = ".") -> Iterator[os.DirEntry[str]]:
        if str(folder).endswith("/bin"):
            raise OSError(code, os.strerror(code), str(folder))
        return listed(folder)

    store = Store(root)
    monkeypatch.setattr(os, "scandir", failing)
    assert right(store.get_or_build(KEY, writer(1)), 1)
    monkeypatch.setattr(os, "scandir", listed)
    assert store.counters.unpublished == 1 and Store(root).find(KEY) is None
    (Store(root).get_or_build(KEY, writer(1)) / "bin" / "kernel.cubin").write_bytes(content(2))
    assert right(Store(root).get_or_build(KEY, writer(1)), 1)


# deaths


def forked(work: Callable[[], object]) -> int:
    """Run work in a copy of this process, which ends without cleaning up."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def ended(child: int, seconds: float = 60.0) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def test_killed_writers_leave_a_store_that_works(root: Path) -> None:
    """Real kills, at random moments of building, publishing, evicting and verifying."""
    how = random.Random(3)

    def busy() -> None:
        store, number = Store(root, limit=3000), 0
        while True:
            path = store.get_or_build(key(number % 5), writer(number % 5))
            assert right_or_gone(path, number % 5)
            store.gc(1500, grace=0)
            number += 1

    for _ in range(KILLS):
        children = [forked(busy) for _ in range(2)]
        time.sleep(how.uniform(0.001, 0.04))
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert [ended(child) for child in children] == [-signal.SIGKILL] * 2
        number, store = how.randrange(5), Store(root, lock_timeout=0.0)  # nobody waits for the dead
        assert right(store.get_or_build(key(number), writer(number)), number)
        assert store.counters.unpublished == 0
        assert not store.verify()


def test_sixteen_processes_build_a_key_once(root: Path) -> None:
    Store(root)
    log = root.parent / "log"
    reading, writing = os.pipe()

    def slow(folder: Path) -> None:
        with log.open("a") as stream:
            stream.write("built\n")
        time.sleep(0.2)
        writer(1)(folder)

    def race() -> None:
        os.close(writing)
        os.read(reading, 1)  # until all are there
        assert right(Store(root).get_or_build(KEY, slow), 1)

    children = [forked(race) for _ in range(16)]
    os.close(writing)
    os.close(reading)
    assert [ended(child) for child in children] == [0] * 16
    assert log.read_text() == "built\n"


# clocks


def test_a_use_in_the_future_protects_nothing_for_ever(root: Path) -> None:
    store = Store(root)
    paths = [store.get_or_build(key(number), writer(number)) for number in range(3)]
    ahead = time.time() + 10 * 86400
    os.utime(paths[1] / MANIFEST, (ahead, ahead))
    assert [entry.path for entry in store.gc(0, grace=60.0)] == [paths[1]]


def test_a_machine_whose_clock_is_ahead_takes_no_work_away(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(root)

    def swept(folder: Path) -> None:
        writer(1)(folder)
        monkeypatch.setattr("time.time", lambda: 4e9)
        Store(root).gc(2**30)
        monkeypatch.undo()

    assert right(store.get_or_build(KEY, swept), 1)
    assert store.counters.unpublished == 0


def test_work_that_was_taken_away_is_done_again(root: Path) -> None:
    def vanishing(folder: Path) -> None:
        writer(1)(folder)
        if folder.is_relative_to(root):
            shutil.rmtree(folder)

    store = Store(root)
    assert right(store.get_or_build(KEY, vanishing), 1)
    assert store.counters.unpublished == store.counters.trouble == 1


# hostile entries


def test_files_that_others_can_write_are_not_loaded(root: Path) -> None:
    for place in ("module.py", "bin/kernel.cubin", "bin"):
        path = Store(root).get_or_build(KEY, writer(1))
        (path / place).chmod(0o777)
        assert Store(root).find(KEY) is None, place
        store = Store(root)
        assert right(store.get_or_build(KEY, writer(1)), 1) and store.counters.quarantined == 1


def test_an_entry_never_reaches_outside_of_itself(root: Path) -> None:
    path = Store(root).get_or_build(KEY, writer(1))
    shutil.copytree(path / "bin", root.parent / "outside")
    shutil.rmtree(path / "bin")
    (path / "bin").symlink_to(root.parent / "outside")  # the same bytes, behind a link
    assert Store(root).find(KEY) is None


# a system cache


@pytest.fixture
def system(root: Path) -> Path:
    Store(root).get_or_build(KEY, writer(1))
    return root


def test_a_system_cache_is_read_and_never_written(system: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in system.rglob("*")}
    reader = Reader(system)
    found = reader.find(KEY)
    assert found is not None and right(found, 1)
    assert reader.find(key(5)) is None
    assert {path: path.lstat().st_mtime_ns for path in system.rglob("*")} == before


@pytest.mark.parametrize("place", [".", "entries"])
def test_a_system_cache_that_others_can_write_is_not_used(system: Path, place: str) -> None:
    (system / place).chmod(0o777)
    assert Reader(system).find(KEY) is None
    (system / place).chmod(0o755)
    assert Reader(system).find(KEY) is not None


def test_a_damaged_entry_of_a_system_cache_is_left_where_it_is(system: Path) -> None:
    found = Reader(system).find(KEY)
    assert found is not None
    (found / "module.py").write_bytes(b"x" * len(content(-1)))
    assert Reader(system).find(KEY) is None
    assert found.is_dir()


def test_the_system_cache_is_asked_before_the_users(
    system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Env.read({"RLK_SYSTEM_CACHE": str(system), "RLK_CACHE_DIR": str(tmp_path / "own")})
    assert env.system_cache == system
    own = Store(env.cache_dir)
    monkeypatch.setattr(build, "system_store", lambda: Reader(system))
    monkeypatch.setattr(build, "store", lambda: own)
    found = build.obtain(KEY, lambda: pytest.fail("it is there"), label="")
    assert found.is_relative_to(system) and build.stored(KEY) == (found, "system cache")
    mine = own.get_or_build(key(2), writer(2))
    assert build.stored(key(2)) == (mine, "cache") and build.stored(key(3)) is None
    with pytest.raises(Exception, match="absolute"):
        Env.read({"RLK_SYSTEM_CACHE": "here"})


# archives


@pytest.fixture
def archive(root: Path) -> Path:
    store = Store(root)
    for number in range(3):
        store.get_or_build(key(number), writer(number))
    assert export_entries(store.entries(), root.parent / "kernels.tar") == 3
    return root.parent / "kernels.tar"


def test_entries_travel_whole(archive: Path, root: Path, tmp_path: Path) -> None:
    assert export_entries(reversed(Store(root).entries()), tmp_path / "again.tar") == 3
    assert (tmp_path / "again.tar").read_bytes() == archive.read_bytes()
    other = Store(tmp_path / "other")
    other.get_or_build(key(1), writer(1))
    made = import_entries(other, archive)
    assert (len(made.added), len(made.present), made.refused) == (2, 1, ())
    for number in range(3):
        found = Store(tmp_path / "other").find(key(number))
        assert found is not None and right(found, number)
    assert not list((tmp_path / "other" / "staging").iterdir())


def test_a_damaged_entry_does_not_travel(archive: Path, root: Path) -> None:
    found = Store(root).find(KEY.__class__(**{f: getattr(key(1), f) for f in KEY.__slots__}))
    assert found is not None
    (found / "module.py").write_bytes(b"x" * len(content(-1)))
    assert export_entries(Store(root).entries(), archive) == 2


Members = list[tuple[tarfile.TarInfo, bytes]]


def rewritten(archive: Path, change: Callable[[Members], Members]) -> Path:
    with tarfile.open(archive) as source:
        members = [(m, stream.read()) for m in source if (stream := source.extractfile(m)) is not None]
    with tarfile.open(archive, "w") as target:
        for member, data in change(members):
            member.size = len(data) if member.isreg() else 0
            target.addfile(member, io.BytesIO(data))
    return archive


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


FIRST = key(0).digest()
HOSTILE: dict[str, Callable[[Members], Members]] = {
    "a path upwards": lambda m: [*m, (named(f"{FIRST}/../../x"), b"x")],
    "an absolute path": lambda m: [*m, (named("/tmp/rlk-hostile"), b"x")],
    "a path inside that is absolute": lambda m: [*m, (named(f"{FIRST}//x"), b"x")],
    "a link": lambda m: [*m, (named(f"{FIRST}/l", tarfile.SYMTYPE, "/etc/passwd"), b"")],
    "a hard link": lambda m: [*m, (named(f"{FIRST}/l", tarfile.LNKTYPE, f"{FIRST}/module.py"), b"")],
    "a device": lambda m: [*m, (named(f"{FIRST}/d", tarfile.CHRTYPE), b"")],
    "a file twice": lambda m: [*m, (named(f"{FIRST}/module.py"), b"x")],
    "a file more": lambda m: [*m, (named(f"{FIRST}/more.py"), b"x")],
    "a file below a file": lambda m: [*m, (named(f"{FIRST}/module.py/x"), b"x")],
    "another name": lambda m: [*m, (named("0" * 64 + "/manifest.json"), m[0][1])],
    "no name": lambda m: [*m, (named("entries/x"), b"x")],
    "another content": lambda m: [(i, d.replace(b"kernel 0", b"kernel 1")) for i, d in m],
    "no manifest": lambda m: [(i, d) for i, d in m if not i.name.endswith(MANIFEST)],
    "a cut file": lambda m: [(i, d[:-1]) for i, d in m],
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_adds_nothing_of_its_own(case: str, archive: Path, tmp_path: Path) -> None:
    outside = set(tmp_path.rglob("*"))
    store = Store(tmp_path / "other")
    made = import_entries(store, rewritten(archive, HOSTILE[case]))
    assert made.refused
    for entry in store.entries():
        assert entry.name in made.added and not store.verify()
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "other")} == outside
    assert not list((tmp_path / "other" / "staging").iterdir()) and not Path("/tmp/rlk-hostile").exists()


def test_an_archive_holds_so_many_files_and_not_one_more(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is counted in members, wherever it lies; what is beyond it costs its own entry alone."""
    assert f"an archive of more than {archive_module._MOST:,} files" in ABOUT_ARCHIVES.read_text()
    with tarfile.open(archive) as source:
        count = len(source.getnames())
    for most, refused in ((count, 0), (count - 1, 1)):
        monkeypatch.setattr(archive_module, "_MOST", most)
        made = import_entries(Store(tmp_path / f"other {most}"), archive)
        assert [why for _, why in made.refused] == ["the archive holds too many files"] * refused
        assert len(made.added) == 3 - refused


def test_only_whole_entries_are_adopted(root: Path, tmp_path: Path) -> None:
    store = Store(root)
    (root / "staging" / "x").mkdir()
    with pytest.raises(BadEntry):
        store.adopt(root / "staging" / "x", "0" * 64)


def test_archives_are_made_and_read_by_commands(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def at(place: Path) -> None:
        env = replace(Env.current(), cache_dir=place)
        monkeypatch.setattr(Env, "current", staticmethod(lambda: env))

    at(archive.parent / "store")
    assert main(["cache", "export", str(tmp_path / "k.tar"), "--target", "sm_90a"]) == 0
    assert main(["cache", "export", str(tmp_path / "none.tar"), "--backend", "cute"]) == 0
    said = capsys.readouterr().out
    assert "3 entries" in said and "0 entries" in said
    at(tmp_path / "new")
    assert main(["cache", "import", str(tmp_path / "k.tar")]) == 0
    assert "3 entries added" in capsys.readouterr().out
    assert main(["cache", "import", str(rewritten(tmp_path / "k.tar", HOSTILE["a link"]))]) == 1
    assert "refused" in capsys.readouterr().out
    for bad in (tmp_path / "missing.tar", Path(sys.executable)):
        assert main(["cache", "import", str(bad)]) == 2
