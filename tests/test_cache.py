"""Laws of the kernel store: built once, published whole, mistrusted when changed, and never an exception."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rlk.cache import CacheKey, Store
from rlk.cache import manifest as manifest_module
from rlk.cache.lock import Hold, hold
from rlk.digest import canonical, digest, digest_sources

KEY = CacheKey("ir", None, "sm_90a", "triton", "emitter", (("triton", "3.6.0"),))
STEPS = ("missed", "locked", "rechecked", "staged", "built", "described", "listed", "synced", "published")
AS_ROOT = os.geteuid() == 0
NOBODY = 65534


def key(number: int) -> CacheKey:
    return replace(KEY, ir=f"ir {number}")


def writer(content: str = "kernel", log: list[str] | None = None) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        if log is not None:
            log.append(content)
        (folder / "kernel.py").write_text(content)
        (folder / "bin").mkdir()
        (folder / "bin" / "kernel.cubin").write_bytes(bytes(range(256)) * 8)

    return build


def never(folder: Path) -> None:
    raise AssertionError("this key is built already")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


CHILD = """
import os, signal, sys, time
from pathlib import Path
from rlk.cache import CacheKey, Store
key = CacheKey("ir", None, "sm_90a", "triton", "emitter", (("triton", "3.6.0"),))
root, log = Path(sys.argv[1]), Path(sys.argv[2])
def build(folder):
    with log.open("a") as stream:
        stream.write(f"{os.getpid()}\\n")
    (folder / "kernel.py").write_text("kernel")
    time.sleep(PAUSE)
"""


def child(code: str, *args: object, pause: float = 0.0) -> subprocess.Popen[str]:
    source = CHILD.replace("PAUSE", str(pause)) + code
    repository = Path(__file__).resolve().parent.parent
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )


# the canonical form and keys


@dataclass(frozen=True, slots=True)
class Left:
    size: int


@dataclass(frozen=True, slots=True)
class Right:
    size: int


def test_canonical_form_tells_values_apart_and_ignores_order() -> None:
    assert canonical({"b": 1, "a": (1, 2)}) == canonical({"a": [1, 2], "b": 1}) == b'{"a":[1,2],"b":1}'
    values = [1, 1.0, True, "1", None, [1], -0.0, 0.0, Left(1), Right(1)]
    assert len({canonical(value) for value in values}) == len(values)


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), float("inf"), object(), {1: 2}])
def test_canonical_form_refuses_what_has_none(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


def test_every_member_of_a_key_changes_its_digest() -> None:
    changed = [
        replace(KEY, ir="x"),
        replace(KEY, schedule=Left(1)),
        replace(KEY, schedule=Right(1)),
        replace(KEY, target="x"),
        replace(KEY, backend="x"),
        replace(KEY, emitter="x"),
        replace(KEY, toolchain=(("triton", "3.7.1"),)),
        replace(KEY, flags=(("check", True),)),
        replace(KEY, abi="x"),
    ]
    assert len({k.digest() for k in (KEY, *changed)}) == len(changed) + 1
    assert KEY.digest() == digest(KEY)


def test_source_digest_follows_content_and_names_not_places(tmp_path: Path) -> None:
    for place in ("a", "b", "c", "d"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "emit.py").write_text("x = 1")
        (tmp_path / place / "__pycache__").mkdir()
        (tmp_path / place / "__pycache__" / "emit.pyc").write_text(place)
    (tmp_path / "c" / "emit.py").write_text("x = 2")
    (tmp_path / "d" / "emit.py").rename(tmp_path / "d" / "other.py")
    a, b, c, d = (digest_sources([tmp_path / place]) for place in ("a", "b", "c", "d"))
    assert a == b
    assert len({a, c, d}) == 3


# finding and building


def test_a_key_is_built_once_and_found_by_a_new_store(root: Path) -> None:
    log: list[str] = []
    first = Store(root).get_or_build(KEY, writer(log=log), label="logp")
    store = Store(root)
    assert store.get_or_build(KEY, never) == first == store.find(KEY)
    assert log == ["kernel"]
    assert store.counters.hits == 1
    assert (first / "bin" / "kernel.cubin").stat().st_size == 2048
    (entry,) = store.entries()
    assert (entry.label, entry.name, entry.size) == ("logp", KEY.digest(), 2054)


def test_new_stores_are_private(root: Path) -> None:
    path = Store(root).get_or_build(KEY, writer())
    for folder in (root, path, path.parent, root / "staging"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_what_a_build_raises_is_passed_on_and_nothing_is_left(root: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("does not compile")

    store = Store(root)
    with pytest.raises(RuntimeError, match="does not compile"):
        store.get_or_build(KEY, broken)
    assert not list((root / "staging").iterdir())
    assert store.get_or_build(KEY, writer()).is_dir()


# death and races


@pytest.mark.parametrize("step", STEPS)
def test_kill_after_any_step_leaves_a_store_that_works(root: Path, tmp_path: Path, step: str) -> None:
    log = tmp_path / "log"
    killed = child(
        "def stop(step):\n"
        "    if step == sys.argv[3]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Store(root, on_step=stop).get_or_build(key, build)\n",
        root, log, step,
    )  # fmt: skip
    assert killed.wait(20) == -signal.SIGKILL
    rebuilt: list[str] = []
    store = Store(root, lock_timeout=0.0)  # nobody waits for the lock of the dead
    path = store.get_or_build(KEY, writer(log=rebuilt))
    assert store.counters.unpublished == 0
    assert len(rebuilt) == (0 if step == "published" else 1)
    assert (path / "kernel.py").read_text() == "kernel"
    assert not list((root / "staging").iterdir())
    assert not Store(root).verify()


def test_the_steps_above_are_all_the_steps(root: Path) -> None:
    seen: list[str] = []
    Store(root, on_step=seen.append).get_or_build(KEY, writer())
    assert tuple(seen) == STEPS


def test_racing_processes_build_a_key_once(root: Path, tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    racers = [
        child(
            "while not Path(sys.argv[3]).exists(): time.sleep(0.002)\n"
            "print(Store(root).get_or_build(key, build))\n",
            root, log, gate, pause=0.3,
        )
        for _ in range(6)
    ]  # fmt: skip
    time.sleep(0.6)
    gate.touch()
    answers = {racer.communicate(timeout=20)[0] for racer in racers}
    assert len(answers) == 1
    assert len(log.read_text().splitlines()) == 1
    assert all(racer.returncode == 0 for racer in racers)


def test_without_locks_the_race_is_lost_politely(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlockable(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", unlockable)
    log: list[str] = []
    store, other = Store(root), Store(root)

    def overtaken(folder: Path) -> None:
        writer("ours")(folder)
        other.get_or_build(KEY, writer("theirs", log))

    path = store.get_or_build(KEY, overtaken)
    assert (path / "kernel.py").read_text() == "theirs"
    assert len(store.entries()) == 1


def test_a_lock_that_never_frees_does_not_stop_the_caller(root: Path) -> None:
    store = Store(root, lock_timeout=0.1)
    with hold(root / "locks" / f"{KEY.digest()}.lock", 0) as outcome:
        assert outcome is Hold.OWNED
        path = store.get_or_build(KEY, writer())
    assert (path / "kernel.py").read_text() == "kernel"
    assert not path.is_relative_to(root)
    assert store.get_or_build(KEY, never) == path
    assert store.counters.unpublished == 1


def test_readers_survive_concurrent_eviction(root: Path, tmp_path: Path) -> None:
    evictor = child(
        "store = Store(root)\nend = time.monotonic() + 1.5\n"
        "while time.monotonic() < end: store.gc(0, grace=0)\n"
        "print(store.counters.evicted)\n",
        root, tmp_path / "log",
    )  # fmt: skip
    stores = [Store(root), Store(root)]
    rounds = 0
    while evictor.poll() is None:
        path = stores[rounds % 2].get_or_build(key(rounds % 3), writer())
        try:
            assert (path / "kernel.py").read_text() == "kernel"
        except FileNotFoundError:  # evicted before it was opened: grace was zero
            pass
        rounds += 1
    assert evictor.returncode == 0
    assert int(evictor.communicate()[0]) > 0
    assert sum(store.counters.trouble for store in stores) == 0


# damage


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 0x10
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated kernel": lambda entry: os.truncate(entry / "bin/kernel.cubin", 100),
    "flipped kernel": lambda entry: flip(entry / "bin/kernel.cubin", 999),
    "grown kernel": lambda entry: (entry / "kernel.py").write_text("kernel and more"),
    "missing kernel": lambda entry: (entry / "kernel.py").unlink(),
    "kernel is a link": lambda entry: ((entry / "kernel.py").unlink(), (entry / "kernel.py").symlink_to("x")),
    "kernel is a folder": lambda entry: ((entry / "kernel.py").unlink(), (entry / "kernel.py").mkdir()),
    "truncated manifest": lambda entry: os.truncate(entry / "manifest.json", 40),
    "empty manifest": lambda entry: os.truncate(entry / "manifest.json", 0),
    "missing manifest": lambda entry: (entry / "manifest.json").unlink(),
    "manifest is binary": lambda entry: (entry / "manifest.json").write_bytes(b"\xff\x00"),
    "manifest is a list": lambda entry: (entry / "manifest.json").write_text("[]"),
    "entry is a file": lambda entry: (shutil.rmtree(entry), entry.write_text("x")),
    "entry is empty": lambda entry: (shutil.rmtree(entry), entry.mkdir(mode=0o700)),
    "entry is writable by all": lambda entry: entry.chmod(0o777),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_moved_aside_and_rebuilt(root: Path, damage: Callable[[Path], object]) -> None:
    damage(Store(root).get_or_build(KEY, writer()))
    store, log = Store(root), list[str]()
    path = store.get_or_build(KEY, writer(log=log))
    assert log == ["kernel"]
    assert (path / "kernel.py").read_text() == "kernel"
    assert store.counters.quarantined == 1
    assert len(list((root / "quarantine").iterdir())) == 1
    assert Store(root).get_or_build(KEY, never) == path


def test_every_flipped_bit_of_a_manifest_is_seen(root: Path) -> None:
    entry = Store(root).get_or_build(KEY, writer(), label="logp")
    file = entry / "manifest.json"
    sound = file.read_bytes()
    for offset in range(len(sound)):
        damaged = bytearray(sound)
        damaged[offset] ^= 1 << (offset % 8)
        file.write_bytes(damaged)
        assert Store(root).find(KEY) is None, sound[max(0, offset - 20) : offset + 20]
    file.write_bytes(sound)
    assert Store(root).find(KEY) == entry


def test_sizes_are_checked_on_every_load_and_content_on_the_first(root: Path) -> None:
    store = Store(root)
    entry = store.get_or_build(KEY, writer())
    flip(entry / "kernel.py", 0)
    assert store.find(KEY) == entry  # the negative control: this process has hashed it already
    assert Store(root).find(KEY) is None
    os.truncate(entry / "kernel.py", 1)
    assert store.find(KEY) is None


def test_a_rebuilt_entry_is_hashed_again(root: Path) -> None:
    store = Store(root)
    entry = store.get_or_build(KEY, writer())
    shutil.copytree(entry, root / "copy")
    shutil.rmtree(entry)
    (root / "copy").rename(entry)
    flip(entry / "kernel.py", 0)
    assert store.find(KEY) is None


def test_verify_finds_silent_damage_and_leaves_the_rest(root: Path) -> None:
    store = Store(root)
    entries = [store.get_or_build(key(number), writer()) for number in range(3)]
    flip(entries[1] / "kernel.py", 3)
    (finding,) = store.verify()
    assert finding.name == entries[1].name
    assert "sha256" in finding.problem
    assert {entry.path for entry in store.entries()} == {entries[0], entries[2]}
    assert not store.verify()


# places that cannot take an entry


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("function", ["write_synced", "sync"])
def test_a_disk_that_fills_while_publishing_is_survived(
    root: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    store = Store(root)
    monkeypatch.setattr(f"rlk.cache.store.{function}", full)
    path = store.get_or_build(KEY, writer())
    assert (path / "kernel.py").read_text() == "kernel"
    assert not path.is_relative_to(root)
    assert store.counters.trouble == store.counters.unpublished == 1
    assert not list((root / "staging").iterdir())
    monkeypatch.undo()
    assert store.get_or_build(KEY, never) == path
    assert Store(root).get_or_build(KEY, writer()).is_relative_to(root)


def test_a_disk_that_fills_while_building_is_survived(root: Path) -> None:
    def build(folder: Path) -> None:
        writer()(folder)
        if folder.is_relative_to(root):
            full()

    path = Store(root).get_or_build(KEY, build)
    assert (path / "kernel.py").read_text() == "kernel"
    assert not path.is_relative_to(root)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "mount"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(mount)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True, timeout=10)


def test_a_really_full_disk_is_survived(small_disk: Path) -> None:
    def large(folder: Path) -> None:
        (folder / "kernel.py").write_bytes(b"x" * 200_000)

    store = Store(small_disk / "store")
    paths = [store.get_or_build(key(number), large) for number in range(3)]
    assert all((path / "kernel.py").stat().st_size == 200_000 for path in paths)
    assert [path.is_relative_to(small_disk) for path in paths] == [True, False, False]
    assert store.counters.unpublished == 2


def test_a_really_read_only_disk_is_survived(small_disk: Path) -> None:
    root = small_disk / "store"
    present = Store(root).get_or_build(KEY, writer())
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, timeout=10)
    store = Store(root)
    assert store.root == root
    assert store.get_or_build(KEY, never) == present
    missing = store.get_or_build(key(1), writer())
    assert (missing / "kernel.py").read_text() == "kernel"
    assert not missing.is_relative_to(small_disk)


READ_ONLY = """
place = Path(sys.argv[3])
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
root = place / "store"
present = Store(root).get_or_build(key, build)
from rlk.cache import manifest
damaged = Store(root).get_or_build(CacheKey("damaged", None, "", "", "", ()), build)
(damaged / "kernel.py").write_text("xernel")
for folder in (*root.rglob("*"), root):
    folder.chmod(0o500 if folder.is_dir() else 0o400)
store = Store(root)
assert store.root == root
assert store.get_or_build(key, None) == present
for name in ("missing", "damaged"):
    path = store.get_or_build(CacheKey(name, None, "", "", "", ()), build)
    assert (path / "kernel.py").read_text() == "kernel" and not path.is_relative_to(place)
assert not store.gc(0, grace=0)
assert store.counters.unpublished == 2, store.counters
never = Store(place / "store" / "below")
assert not never.root.is_relative_to(place) and never.counters.refused == 1
assert never.get_or_build(key, build).is_dir()
for folder in (root, *root.rglob("*")):
    folder.chmod(0o700)
"""


def test_a_read_only_directory_is_survived() -> None:
    # The superuser ignores permissions, so as root the child becomes nobody first.
    place = Path(tempfile.mkdtemp())
    try:
        if AS_ROOT:
            os.chown(place, NOBODY, NOBODY)
        (place / "log").touch(0o666)
        (place / "log").chmod(0o666)
        reader = child(READ_ONLY, place, place / "log", place)
        assert reader.wait(20) == 0
    finally:
        shutil.rmtree(place)


# trust


def refused(store: Store, root: Path) -> bool:
    path = store.get_or_build(KEY, writer())
    assert (path / "kernel.py").read_text() == "kernel"
    return store.counters.refused == 1 and not path.is_relative_to(root)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o1777])
def test_a_root_that_others_can_write_is_refused(
    root: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    root.mkdir()
    root.chmod(mode)
    assert refused(Store(root), root)
    assert "chmod go-w" in caplog.text


def test_a_folder_inside_that_others_can_write_is_refused(root: Path) -> None:
    Store(root)
    (root / "entries").chmod(0o777)
    assert refused(Store(root), root)


def test_a_root_of_another_user_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir(mode=0o700)
    if AS_ROOT:
        os.chown(root, NOBODY, NOBODY)
    else:
        monkeypatch.setattr("os.geteuid", lambda: NOBODY)
    assert refused(Store(root), root)


def test_a_root_that_is_a_file_is_refused(root: Path) -> None:
    root.write_text("")
    assert refused(Store(root), root)


def test_a_temporary_store_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reader = child("print(Store(root).get_or_build(key, build))", tmp_path / "file", tmp_path / "log")
    path = Path(reader.communicate(timeout=20)[0].strip())
    assert reader.returncode == 0
    assert path.name == KEY.digest()
    assert not path.exists()


# eviction


def used_at(path: Path, seconds: float) -> None:
    os.utime(path / "manifest.json", (seconds, seconds))


def test_gc_evicts_the_least_recently_used_first(root: Path) -> None:
    store = Store(root)
    entries = [store.get_or_build(key(number), writer()) for number in range(5)]
    for age, number in enumerate((3, 0, 4, 1, 2)):
        used_at(entries[number], 1000.0 + age)
    assert Store(root).find(key(3)) == entries[3]  # a use moves an entry to the end
    evicted = store.gc(3 * 2054)
    assert [entry.path for entry in evicted] == [entries[0], entries[4]]
    assert [entry.path for entry in store.entries()] == [entries[1], entries[2], entries[3]]
    assert store.counters.evicted == 2
    log: list[str] = []
    store.get_or_build(key(0), writer(log=log))
    assert log == ["kernel"]
    assert not list((root / "staging").iterdir())


def test_gc_spares_entries_in_use_and_being_built(root: Path) -> None:
    store = Store(root)
    entry = store.get_or_build(KEY, writer())
    assert not store.gc(0)
    with hold(root / "locks" / f"{KEY.digest()}.lock", 0):
        assert not store.gc(0, grace=0)
    assert [e.path for e in store.gc(0, grace=0)] == [entry]
    assert not list((root / "locks").iterdir())


def test_gc_keeps_the_newest_of_the_quarantine(root: Path) -> None:
    store = Store(root)
    for _ in range(20):
        flip(store.get_or_build(KEY, writer()) / "manifest.json", 5)
    store.get_or_build(KEY, writer())
    store.gc(2**30)
    assert len(list((root / "quarantine").iterdir())) == 16


def test_publishing_trims_a_store_that_has_a_limit(root: Path) -> None:
    old = Store(root).get_or_build(key(0), writer())
    used_at(old, 1000.0)
    Store(root, limit=3000).get_or_build(key(1), writer())
    assert not old.exists()


def test_a_lock_file_that_was_unlinked_is_not_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path, 0) as first:
        path.unlink()
        with hold(path, 0) as second:
            assert (first, second) == (Hold.OWNED, Hold.OWNED)
            with hold(path, 0.01) as third:
                assert third is Hold.TIMED_OUT


def test_manifests_are_readable_json(root: Path) -> None:
    path = Store(root).get_or_build(KEY, writer(), label="logp")
    members = json.loads((path / manifest_module.MANIFEST).read_text())
    assert members["key"]["target"] == "sm_90a"
    assert set(members["files"]) == {"bin/kernel.cubin", "kernel.py"}
