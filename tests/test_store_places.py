"""Places of a store, and kernels that are returned even if the disk fails after they were built."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cache import KEY, child, key, never, writer
from test_cache_faults import ended, forked

from rlk.cache import Reader, Store
from rlk.cache.root import MARKER, open_root, share

OWN = ("entries", "locks", "quarantine", "staging")
REFUSALS = (
    errno.EINVAL, errno.ENOTSUP, errno.EXDEV, errno.EBUSY, errno.ETIMEDOUT, errno.ENOSYS, errno.ENOTCONN,
    errno.EREMOTEIO, errno.ENOENT, errno.EMLINK, errno.ENAMETOOLONG,
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def whole(path: Path) -> bool:
    return (path / "kernel.py").read_text() == "kernel" and (path / "bin/kernel.cubin").stat().st_size == 2048


def refusing(code: int) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


# failures to publish


@pytest.mark.parametrize("code", REFUSALS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_no_refusal_to_publish_takes_a_built_kernel_away(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    log: list[str] = []
    store = Store(root)
    monkeypatch.setattr(os, call, refusing(code))
    path = store.get_or_build(KEY, writer(log=log))
    assert whole(path) and store.get_or_build(KEY, never) == path
    monkeypatch.undo()
    unflushed = call == "fsync" and code in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
    assert path.is_relative_to(root) == unflushed  # a disk that flushes nothing still keeps entries
    assert not list((root / "staging").iterdir())
    if call == "rename":
        assert log == ["kernel"]  # nothing is compiled a second time only because it could not be moved


@pytest.mark.parametrize("code", REFUSALS[:5], ids=lambda code: errno.errorcode[code])
def test_a_disk_that_refuses_a_build_is_left_for_another(root: Path, code: int) -> None:
    def build(folder: Path) -> None:
        writer()(folder)
        if folder.is_relative_to(root):
            refusing(code)()

    assert whole(Store(root).get_or_build(KEY, build))


def test_an_error_of_what_is_built_is_passed_on(root: Path) -> None:
    """The control: a compiler that is not there is no trouble of the store."""
    with pytest.raises(FileNotFoundError):
        Store(root).get_or_build(KEY, refusing(errno.ENOENT))


def test_what_was_built_is_copied_only_when_it_is_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(staging: Path, folder: Path, **_: object) -> None:
        writer()(folder)
        (folder / "kernel.py").write_text("xernel")

    log: list[str] = []
    store = Store(root)
    monkeypatch.setattr(os, "rename", refusing(errno.EXDEV))
    monkeypatch.setattr(shutil, "copytree", torn)
    assert whole(store.get_or_build(KEY, writer(log=log))) and log == ["kernel"] * 2


EXHAUSTED = """
import resource
store = Store(root)
present = store.get_or_build(key, build)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
found = store.get_or_build(key, None), store.find(key)
other = Store(root).find(key)
for handle in held: os.close(handle)
assert found == (present, present) and other is None, (found, other)
assert Store(root).get_or_build(key, None) == present
assert store.counters.quarantined == store.counters.trouble == 0
"""


def test_a_process_with_too_many_open_files_finds_what_it_has_read(root: Path, tmp_path: Path) -> None:
    assert child(EXHAUSTED, root, tmp_path / "log").wait(20) == 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT])
def test_an_entry_that_cannot_be_opened_now_is_not_set_aside(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    present = Store(root).get_or_build(KEY, writer())
    store, opened = Store(root), os.open

    def exhausted(path: Any, *args: Any, **options: Any) -> int:
        if Path(os.fsdecode(path)).is_relative_to(present):
            raise OSError(code, os.strerror(code))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", exhausted)
    assert whole(store.get_or_build(KEY, writer()))
    monkeypatch.undo()
    assert store.counters.quarantined == 0 and not list((root / "quarantine").iterdir())
    assert Store(root).get_or_build(KEY, never) == present


def test_an_entry_that_can_never_be_opened_is_set_aside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    present = Store(root).get_or_build(KEY, writer())
    store, opened = Store(root), os.open

    def broken(path: Any, *args: Any, **options: Any) -> int:
        if str(path) == str(present / "manifest.json") and not store.counters.quarantined:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", broken)
    assert whole(store.get_or_build(KEY, writer())) and store.counters.quarantined == 1


def test_gc_that_fails_fails_no_call(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(root, limit=1)
    monkeypatch.setattr(store, "gc", refusing(errno.EIO))
    assert store.get_or_build(KEY, writer()).is_relative_to(root)


# folders that are no store


def listing(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything about a tree that its owner could miss."""
    return {
        path.relative_to(folder).as_posix(): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *folder.rglob("*"))
    }


NAME = KEY.digest()
FOREIGN: dict[str, tuple[str, ...]] = {
    "a home": (".bashrc", "thesis.tex"),
    "data beside our names": ("entries/ab/x", "staging/run.1", "notes.txt"),
    "staging alone": ("staging/run-2024/weights.bin",),
    "quarantine alone": ("quarantine/mail.1",),
    "entries of another program": ("entries/2024/january.csv",),
    "entries two deep": ("entries/ab/january.csv",),
    "our names, a file of another": (f"entries/{NAME[:2]}/{NAME}/manifest.json", "staging/weights.bin"),
    "our names, mail": ("entries/ab/" + NAME, "quarantine/mail"),
    "our names, a lock of another": ("entries/ab/" + NAME, "locks/pid"),
    "an entry's name that is a file": ("entries",),
    "our names, no entries": (f"quarantine/{NAME}.1", f"staging/{NAME}.1/x"),
    "a marker that is a folder": (f"{MARKER}/x",),
}


@pytest.mark.parametrize("files", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_folder_that_holds_something_else_is_never_changed(
    root: Path, files: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(files):
        (root / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / name).write_text(f"mine {number}")
    for path in sorted(root.rglob("*"), reverse=True):
        os.utime(path, (1.0, 1.0))
    root.chmod(0o700)
    before = listing(root)
    store = Store(root, limit=1)
    for number in range(2):
        assert whole(store.get_or_build(key(number), writer()))
    store.gc(0, grace=0)
    store.verify()
    assert listing(root) == before
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(root) in warning and ("is no store" in warning or "no store" in warning or MARKER in warning)
    assert store.counters.refused == 1 and store.refused is not None


def test_a_marker_behind_a_link_is_none(root: Path, tmp_path: Path) -> None:
    other = Store(tmp_path / "other").root
    root.mkdir(mode=0o700)
    (root / MARKER).symlink_to(other / MARKER)
    assert Store(root).counters.refused == 1


@pytest.mark.parametrize("held", [(), ("lost+found",), (".rlk-oracle",)])
def test_an_empty_folder_becomes_a_store(root: Path, held: tuple[str, ...]) -> None:
    root.mkdir(mode=0o700)
    for name in held:
        (root / name).mkdir()
    assert Store(root).get_or_build(KEY, writer()).is_relative_to(root)
    assert {path.name for path in root.iterdir()} == {*OWN, MARKER, *held}


def test_a_store_without_a_marker_is_taken_over(root: Path) -> None:
    """As stores were before there was one: nothing but our folders, and in these nothing but our names."""
    store = Store(root)
    present = [store.get_or_build(key(number), writer()) for number in range(2)]
    (present[1] / "kernel.py").write_text("xernel")
    assert store.verify()  # and so something is in quarantine
    (root / "locks" / "evicted.lock").touch()
    for name in (f"{NAME}.x1y2", "import.abc", "clock.1", "evicted.12.ab"):
        (root / "staging" / name).mkdir()
    (root / MARKER).unlink()
    assert Store(root).get_or_build(key(0), never) == present[0]
    assert (root / MARKER).is_file()


def test_a_store_is_recognised_by_its_marker_whatever_else_is_there(root: Path) -> None:
    present = Store(root).get_or_build(KEY, writer())
    (root / "notes.txt").touch()
    assert Store(root).get_or_build(KEY, never) == present


def test_two_processes_may_open_a_new_store_at_once(root: Path) -> None:
    children = [
        forked(lambda: [open_root(root / str(n)) and os._exit(3) for n in range(40)]) for _ in range(4)
    ]
    assert [ended(each) for each in children] == [0] * 4


# temporary folders


def refused_store(root: Path) -> Store:
    root.mkdir(mode=0o700)
    (root / "mine").touch()
    return Store(root)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary folders."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def cleared(scratch: Path) -> None:
    for path in scratch.iterdir():
        shutil.rmtree(path)


def test_a_cleaner_of_temporary_folders_is_survived(root: Path, scratch: Path) -> None:
    store = refused_store(root)
    assert whole(store.get_or_build(KEY, writer()))
    cleared(scratch)
    assert whole(store.get_or_build(KEY, writer())) and whole(store.get_or_build(key(1), writer()))
    assert store.get_or_build(KEY, never).is_relative_to(scratch)
    cleared(scratch)
    assert store.find(KEY) is None and store.offer(KEY, writer()) and store.find(KEY) is not None


def test_a_cleaner_that_takes_files_alone_is_survived(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(root)
    monkeypatch.setattr(os, "rename", refusing(errno.EXDEV))
    path = store.get_or_build(KEY, writer())
    assert path.is_relative_to(scratch) and store.get_or_build(KEY, never) == path
    (path / "bin" / "kernel.cubin").unlink()
    again = store.get_or_build(KEY, writer())
    assert whole(again) and store.get_or_build(KEY, never) == again
    cleared(scratch)
    assert whole(store.get_or_build(KEY, writer()))


def test_a_temporary_folder_that_another_user_made_anew_is_not_used(root: Path, scratch: Path) -> None:
    store = refused_store(root)
    place = store.root.parent
    shutil.rmtree(place)
    place.mkdir()
    place.chmod(0o777)
    assert not store.get_or_build(KEY, writer()).is_relative_to(place)


def test_a_store_that_is_removed_meanwhile_is_made_again(root: Path) -> None:
    store = Store(root)
    store.get_or_build(KEY, writer())
    shutil.rmtree(root)
    path = store.get_or_build(KEY, writer())
    assert whole(path) and path.is_relative_to(root) and (root / MARKER).is_file()
    assert store.counters.trouble == 0


@pytest.mark.parametrize("kept", [True, False])
def test_a_fork_outlives_its_parent(root: Path, tmp_path: Path, kept: bool) -> None:
    """The parent removes its temporary folders when it ends; what it forked goes on."""
    if kept:
        Store(root)
    else:
        refused_store(root)
    lines = (
        "import shutil, threading",
        "store = Store(root)",
        "os.rename = lambda *_: (_ for _ in ()).throw(OSError(18, 'Invalid cross-device link'))"
        if kept
        else "pass",
        "first = store.get_or_build(key, build)",
        "reading, writing = os.pipe()",
        "store._guard.acquire()",  # as another thread of the parent may
        "if os.fork() == 0:",
        "    os.close(writing); os.read(reading, 1)",  # until the parent is gone
        "    while first.exists(): time.sleep(0.01)",
        "    again = store.get_or_build(key, build)",
        "    print(again != first and (again / 'kernel.py').read_text(), flush=True)",
        "    shutil.rmtree(again.parents[3] if 'store' in again.parts[-4:] else again.parent)",
        "    os._exit(0)",
        "store._guard.release()",
    )
    parent = child("\n".join(lines), root, tmp_path / "log")
    assert parent.communicate(timeout=20)[0] == "kernel\n"


def test_a_child_leaves_its_parents_entries_alone(root: Path, scratch: Path) -> None:
    store = refused_store(root)
    path = store.get_or_build(KEY, writer())

    def work() -> None:
        assert not store.get_or_build(KEY, writer()).is_relative_to(path.parents[3])

    assert ended(forked(work)) == 0
    assert whole(path) and store.get_or_build(KEY, never) == path


def test_what_ends_with_the_process_is_told_apart(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(root)
    assert store.why_lost(store.get_or_build(KEY, writer())) is None
    monkeypatch.setattr(os, "rename", refusing(errno.EXDEV))
    why = store.why_lost(store.get_or_build(key(1), writer()))
    assert why is not None and str(root) in why and os.strerror(errno.EXDEV) in why
    other = refused_store(root.with_name("other"))
    monkeypatch.undo()
    assert "no store" in (other.why_lost(other.get_or_build(KEY, writer())) or "")


# modes


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_entries_are_found_again_whatever_the_umask(root: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = Store(root).get_or_build(KEY, writer())
        assert Store(root).get_or_build(KEY, never) == path
    finally:
        os.umask(before)
    for each in (root, *root.rglob("*")):
        assert not stat.S_IMODE(each.lstat().st_mode) & 0o022, each


def read_by_another_user(root: Path) -> int:
    """Look an entry up as a user who owns none of it; return 0 where it is found and whole."""

    def look() -> None:
        os.setuid(65534)
        found = Reader(root).find(key(0))
        if found is None or not whole(found):
            os._exit(1)

    return ended(forked(look))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become another user")
def test_a_shared_store_serves_every_user() -> None:
    # below a folder that everybody may enter, which pytest's own is not
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        place.chmod(0o755)
        root = place / "store"
        Store(root).get_or_build(key(0), writer())
        assert read_by_another_user(root) == 1  # control: modes are private until the store is shared
        assert share(root) > 0
        assert read_by_another_user(root) == 0
        assert share(root) == 0
    finally:
        shutil.rmtree(place)


def test_a_shared_store_is_still_trusted(root: Path) -> None:
    Store(root).get_or_build(key(0), writer())
    share(root)
    assert all(not each.stat().st_mode & 0o022 for each in (root, *root.rglob("*")))
    assert Reader(root).problem is None
    assert Store(root).get_or_build(key(0), never) == Store(root).find(key(0))
