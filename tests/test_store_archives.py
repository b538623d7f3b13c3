"""Imports from harmful archives, and messages of stores that take nothing."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_cache import KEY, key, small_disk, writer
from test_cache_faults import Members, named, rewritten

from rlk.cache import Store
from rlk.cache.archive import StoreError, export_entries, import_entries
from rlk.cache.removal import remove
from rlk.cli import main
from rlk.digest import below
from rlk.env import Env

__all__ = ["small_disk"]
FIRST = key(0).digest()
DAYS = 3 * 86400


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Three entries."""
    store = Store(tmp_path / "made")
    for number in range(3):
        store.get_or_build(key(number), writer())
    export_entries(store.entries(), tmp_path / "kernels.tar")
    return tmp_path / "kernels.tar"


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder that may hold more folders in one another than pytest can remove."""
    (tmp_path / "pit").mkdir()
    yield tmp_path / "pit"
    subprocess.run(["rm", "-rf", str(tmp_path / "pit")], check=True, timeout=20)


def deep(folder: Path, folders: int) -> None:
    """Make folders in one another, whose path no call could take whole."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(folders):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)


POISON: dict[str, Callable[[Members], Members]] = {
    "three thousand folders": lambda m: [*m, (named(f"{FIRST}/{'d/' * 3000}x"), b"x")],
    "a thousand folders": lambda m: [*m, (named(f"{FIRST}/{'d/' * 1000}x"), b"x")],
    "seventeen folders": lambda m: [*m, (named(f"{FIRST}/{'d/' * 17}x"), b"x")],
    "an over-long name": lambda m: [*m, (named(f"{FIRST}/{'x' * 300}"), b"x")],
    "an over-long folder": lambda m: [*m, (named(f"{FIRST}/{'x' * 300}/x"), b"x")],
    "a long name of two-byte letters": lambda m: [*m, (named(f"{FIRST}/{'ä' * 200}"), b"x")],
    "an over-long name of an entry": lambda m: [*m, (named(f"{'0' * 5000}/x"), b"x")],
    "a folder upwards": lambda m: [*m, (named("../x"), b"x")],
    "names that are no text": lambda m: [*m, (named(f"{FIRST}/a\udcff\x1b[31m\n"), b"x")],
}


@pytest.mark.parametrize("first", [False, True], ids=["at the end", "at the start"])
@pytest.mark.parametrize("case", POISON)
def test_a_refused_member_costs_its_own_entry_alone(case: str, first: bool, archive: Path, pit: Path) -> None:
    def change(members: Members) -> Members:
        made = POISON[case](members)
        return [made[-1], *made[:-1]] if first else made

    store = Store(pit / "other")
    made = import_entries(store, rewritten(archive, change))
    (refused,) = made.refused
    assert set(made.added) >= {key(1).digest(), key(2).digest()} and len(refused[1]) < 200
    assert len(made.added) == (3 if refused[0] != FIRST else 2)
    assert not list((store.root / "staging").iterdir()) and not store.verify()
    assert refused[1].isprintable()


@pytest.mark.parametrize("code", [errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ])
def test_a_name_that_this_disk_cannot_have_costs_its_own_entry_alone(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some have shorter names than others, or fewer letters."""
    store, opened = Store(tmp_path / "other"), os.open

    def picky(path: Any, *args: Any, **options: Any) -> int:
        if f"{FIRST}/kernel.py" in str(path):
            raise OSError(code, os.strerror(code))
        return opened(path, *args, **options)

    monkeypatch.setattr(os, "open", picky)
    made = import_entries(store, archive)
    assert len(made.added) == 2 and [name for name, _ in made.refused] == [FIRST]


def test_files_that_a_manifest_does_not_name_are_refused(archive: Path, tmp_path: Path) -> None:
    """Each in a folder of its own, or beside the others: none becomes part of an entry."""
    for name in ("more.py", "bin/more", "more/x", ".hidden"):
        extra = named(f"{FIRST}/{name}"), b"x"
        store = Store(tmp_path / name.replace("/", "-"))
        made = import_entries(store, rewritten(archive, lambda m, extra=extra: [*m, extra]))
        assert [why for _, why in made.refused] == ["it holds files that its manifest does not name"]
        assert len(made.added) == 2 and store.find(key(0)) is None
        rewritten(archive, lambda m, extra=extra: [each for each in m if each[0].name != extra[0].name])
    assert len(import_entries(Store(tmp_path / "control"), archive).added) == 3


def test_an_archive_that_runs_backwards_ends(archive: Path, tmp_path: Path) -> None:
    """Its second member begins where its first does: this size is that of three blocks before it."""
    header = named(f"{FIRST}/x")
    header.pax_headers = {"size": "-1536"}
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as target:
        target.addfile(header, io.BytesIO(b""))
    with pytest.raises(tarfile.TarError):
        import_entries(Store(tmp_path / "other"), archive)


# folders in one another


@pytest.mark.parametrize("folders", [3, 3000])
def test_a_store_that_was_poisoned_before_recovers(
    pit: Path, monkeypatch: pytest.MonkeyPatch, folders: int
) -> None:
    store = Store(pit / "store", limit=10**9)
    (place := store.root / "staging" / "import.poison").mkdir()
    deep(place, folders)
    monkeypatch.setattr("rlk.cache.gc._changed", lambda path, now: now - DAYS)
    assert store.get_or_build(KEY, writer()).is_relative_to(store.root)  # the first call a day later
    assert not place.exists()
    store.gc(10**9)


def test_the_staging_of_a_builder_that_digs_is_removed(pit: Path) -> None:
    store = Store(pit / "store")
    with pytest.raises(ValueError, match="no name for a file of an entry"):
        store.get_or_build(KEY, lambda folder: deep(folder, 500))
    assert not list((store.root / "staging").iterdir())


def test_what_is_below_a_folder_is_found_at_any_depth(pit: Path) -> None:
    deep(pit, 1200)
    assert len(below(pit)) == 1201


def test_removal_takes_everything_and_follows_no_link(tmp_path: Path) -> None:
    outside, victim = tmp_path / "outside", tmp_path / "victim"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "kept").write_text("kept")
    victim.mkdir()
    deep(victim, 40)
    for place in (victim, victim / "d", victim / "d" / "d"):
        (place / "link").symlink_to(outside)
        (place / "d" / "file").touch()
        os.mkfifo(place / "pipe")
    assert remove(victim) and not victim.exists()
    (tmp_path / "link").symlink_to(outside)
    assert remove(tmp_path / "link") and remove(tmp_path / "missing")
    assert (outside / "inner" / "kept").read_text() == "kept"


def test_removal_that_is_refused_says_so_and_takes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "victim" / name).mkdir(parents=True)
        (tmp_path / "victim" / name / "file").touch()
    unlinked = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if options.get("dir_fd") is not None and os.readlink(f"/proc/self/fd/{options['dir_fd']}").endswith(
            "b"
        ):
            raise PermissionError(errno.EACCES, "denied")
        unlinked(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    assert not remove(tmp_path / "victim")
    assert [path.name for path in (tmp_path / "victim").iterdir()] == ["b"]


# stores that take nothing


def at(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = replace(Env.current(), cache_dir=place)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))


@pytest.fixture
def commands(archive: Path) -> list[list[str]]:
    return [["import", str(archive)], ["export", str(archive)], ["ls"], ["gc"], ["verify"]]


def test_no_command_reports_of_a_store_that_is_not_the_one_that_was_named(
    commands: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o777)
    at(place, monkeypatch)
    for command in commands:
        assert main(["cache", *command]) == 2
        said = capsys.readouterr()
        assert said.out == "" and str(place) in said.err and "written by other users" in said.err


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("call", ["mkdir", "rename", "write"])
def test_an_import_that_keeps_nothing_blames_the_store(
    archive: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    code: int,
) -> None:
    place = Store(tmp_path / "store").root
    at(place, monkeypatch)

    def failing(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(*{
        "mkdir": ("tempfile.mkdtemp", failing),
        "rename": ("os.rename", failing),
        "write": ("shutil.copyfileobj", failing),
    }[call])  # fmt: skip
    assert main(["cache", "import", str(archive)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and str(place) in said.err and os.strerror(code) in said.err
    assert str(archive) not in said.err
    monkeypatch.undo()
    assert not Store(place).entries() and (call == "rename" or not list((place / "staging").iterdir()))


def test_an_import_to_a_read_only_disk_blames_the_store(archive: Path, small_disk: Path) -> None:
    (small_disk / "store").mkdir(mode=0o700)
    for made in (False, True):
        if made:
            Store(small_disk / "store")
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True, timeout=10)
        with pytest.raises(StoreError):
            import_entries(Store(small_disk / "store"), archive)
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True, timeout=10)


def test_an_import_to_a_full_disk_blames_the_store(archive: Path, small_disk: Path) -> None:
    store = Store(small_disk / "store")
    (small_disk / "ballast").write_bytes(b"x" * 240_000)
    with pytest.raises(StoreError, match="No space"):
        import_entries(store, archive)
    (small_disk / "ballast").unlink()
    assert len(import_entries(store, archive).added) == 3


def test_an_import_to_a_folder_that_is_no_store_changes_nothing(archive: Path, tmp_path: Path) -> None:
    store = Store(archive.parent)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="no store"):
        import_entries(store, archive)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_archive_that_cannot_be_read_is_blamed_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control."""
    at(tmp_path / "store", monkeypatch)
    assert main(["cache", "import", str(tmp_path / "missing.tar")]) == 2
    assert "missing.tar" in capsys.readouterr().err
