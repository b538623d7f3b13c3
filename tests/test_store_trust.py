"""Nothing is loaded that another user owns, can write, or has put behind a link or a pipe."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cache import KEY, never, writer

from rlk.backends import triton
from rlk.cache import Reader, Store
from rlk.cache.lock import Hold, hold
from rlk.cache.manifest import MANIFEST, BadEntry
from rlk.cache.root import MARKER
from rlk.cache.trust import Trust
from rlk.env import TOOLCHAIN_VARIABLES, Env
from rlk.runtime.kernels import build, trace_cache
from rlk.runtime.wheels import reader
from rlk.target.facts import target

STRANGER = 60001


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


class _Status:
    """The status of a file, of another user."""

    def __init__(self, real: os.stat_result) -> None:
        self._real = real
        self.st_uid = STRANGER

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


Give = Callable[[Path], object]


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Iterator[Give]:
    """Make a file another user's, as far as the operating system says of it, for whoever runs the tests."""
    given: set[tuple[int, int]] = set()

    def told(call: Callable[..., os.stat_result]) -> Callable[..., Any]:
        def tell(*args: Any, **options: Any) -> Any:
            found = call(*args, **options)
            return _Status(found) if (found.st_dev, found.st_ino) in given else found

        return tell

    lstat = os.lstat
    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, told(getattr(os, name)))
    yield lambda path: given.add((lstat(path).st_dev, lstat(path).st_ino))


def replaced_by_link(path: Path) -> None:
    moved = path.parents[3] / f"moved {path.name}"
    path.rename(moved)
    path.symlink_to(moved)


def replaced_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replaced_by_socket(path: Path) -> None:
    path.unlink()
    before = os.getcwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


PLACES = {
    "shard": "..",
    "entry": ".",
    "manifest": MANIFEST,
    "kernel": "kernel.py",
    "folder": "bin",
    "kernel in it": "bin/kernel.cubin",
}
CHANGES: dict[str, Callable[[Path], object]] = {
    f"{what}, {how}": lambda path, place=place, mode=mode: (path / place).chmod(
        stat.S_IMODE((path / place).lstat().st_mode) | mode
    )
    for what, place in PLACES.items()
    for how, mode in {"written by all": 0o002, "written by a group": 0o020}.items()
}
CHANGES |= {
    "manifest, a link": lambda path: replaced_by_link(path / MANIFEST),
    "manifest, a pipe": lambda path: replaced_by_pipe(path / MANIFEST),
    "manifest, a socket": lambda path: replaced_by_socket(path / MANIFEST),
    "manifest, a folder": lambda path: ((path / MANIFEST).unlink(), (path / MANIFEST).mkdir()),
    "kernel, a link": lambda path: replaced_by_link(path / "kernel.py"),
    "kernel, a pipe": lambda path: replaced_by_pipe(path / "kernel.py"),
    "entry, a link": replaced_by_link,
    "shard, a link": lambda path: replaced_by_link(path.parent),
}


def built_anew(root: Path, path: Path) -> None:
    """A bad entry is seen by all that read, is rebuilt once, and is found from then on."""
    assert Reader(root).find(KEY) is None
    assert Store(root).find(KEY) is None
    Store(root).entries()  # waits for no pipe
    log: list[str] = []
    store = Store(root)
    assert (store.get_or_build(KEY, writer(log=log)) / "kernel.py").read_text() == "kernel"
    assert log == ["kernel"] and store.counters.unpublished == 0 and store.counters.quarantined >= 1
    assert Store(root).get_or_build(KEY, never) == path and Reader(root).find(KEY) == path


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_others_may_have_written_is_built_anew(root: Path, change: Callable[[Path], object]) -> None:
    path = Store(root).get_or_build(KEY, writer())
    assert Reader(root).find(KEY) == path
    change(path)
    built_anew(root, path)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_what_another_user_owns_is_built_anew(root: Path, place: str, give: Give) -> None:
    path = Store(root).get_or_build(KEY, writer())
    give(path / place)
    if place in ("..", ".", MANIFEST):
        assert not Store(root).entries()
    built_anew(root, path)


def test_a_neighbour_that_others_can_replace_is_moved_aside_with_its_folder(root: Path) -> None:
    """Even one that was missing, and so was never read."""
    store = Store(root)
    shard = root / "entries" / KEY.digest()[:2]
    shard.mkdir(mode=0o700)
    shard.chmod(0o777)
    path = store.get_or_build(KEY, writer())
    assert path.parent == shard and stat.S_IMODE(shard.stat().st_mode) == 0o700
    assert store.counters.quarantined == 1 and Store(root).get_or_build(KEY, never) == path


def test_an_import_puts_nothing_where_others_can_write(root: Path, tmp_path: Path) -> None:
    from rlk.cache.archive import export_entries, import_entries

    made = Store(tmp_path / "made")
    made.get_or_build(KEY, writer())
    export_entries(made.entries(), tmp_path / "kernels.tar")
    store = Store(root)
    shard = root / "entries" / KEY.digest()[:2]
    shard.mkdir()
    shard.chmod(0o770)
    assert import_entries(store, tmp_path / "kernels.tar").added == (KEY.digest(),)
    assert Store(root).find(KEY) is not None


@pytest.mark.parametrize("place", [".", "entries", "locks", "staging", "quarantine", MARKER])
def test_a_store_that_another_user_owns_part_of_is_refused(root: Path, place: str, give: Give) -> None:
    Store(root).get_or_build(KEY, writer())
    give(root / place)
    store = Store(root)
    assert store.counters.refused == 1 and f"belongs to user {STRANGER}" in str(store.refused)
    assert not store.get_or_build(KEY, writer()).is_relative_to(root)


# links on the way


@pytest.mark.parametrize("through", ["store", "above", "twice"])
def test_a_link_of_another_user_leads_nowhere(root: Path, tmp_path: Path, through: str, give: Give) -> None:
    """Such as one in /tmp, where the store of a user without a home is."""
    real = tmp_path / "real"
    Store(real / "store").get_or_build(KEY, writer())
    theirs, named = tmp_path / "rlk-1000", tmp_path / "rlk-1000"
    match through:
        case "store":
            theirs.symlink_to(real / "store")
        case "above":
            theirs.symlink_to(real)
            named = theirs / "store"
        case _:
            theirs.symlink_to(real / "store")
            named = tmp_path / "mine"
            named.symlink_to(theirs)
    assert Store(named).get_or_build(KEY, never).exists()  # the control: one's own links may be followed
    give(theirs)
    store = Store(named)
    assert f"lies behind a link of user {STRANGER}" in str(store.refused)
    assert not store.get_or_build(KEY, writer()).is_relative_to(tmp_path / "real")


def test_a_folder_of_a_store_behind_another_users_link_is_refused(root: Path, give: Give) -> None:
    Store(root)
    (root / "staging").rename(root.parent / "elsewhere")
    (root / "staging").symlink_to(root.parent / "elsewhere")
    assert Store(root).counters.refused == 0
    give(root / "staging")
    assert "(staging) lies behind a link" in str(Store(root).refused)


# wheels


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    place = tmp_path / "rlk_aot_x"
    (place / reader.ENTRIES).mkdir(parents=True)
    (place / reader.HEAD).write_text(json.dumps({"format": reader.FORMAT}))
    for each in (place, place / reader.ENTRIES, place / reader.HEAD):
        each.chmod(0o755)
    return place


def trusting(monkeypatch: pytest.MonkeyPatch, trust: Trust) -> None:
    monkeypatch.setattr(reader, "trusted", lambda: trust)


@pytest.mark.parametrize("place", [".", reader.ENTRIES, reader.HEAD])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_wheel_that_others_can_write_is_refused(
    wheel: Path, place: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusting(monkeypatch, Trust.own())
    assert reader.read_head(wheel)["format"] == reader.FORMAT
    (wheel / place).chmod(mode)
    with pytest.raises(BadEntry, match="can be written by other users"):
        reader.read_head(wheel)


@pytest.mark.parametrize("place", [".", reader.ENTRIES, reader.HEAD])
def test_a_wheel_of_another_user_is_refused(
    wheel: Path, place: str, monkeypatch: pytest.MonkeyPatch, give: Give
) -> None:
    trusting(monkeypatch, Trust.own())
    give(wheel / place)
    with pytest.raises(BadEntry, match=f"belongs to user {STRANGER}"):
        reader.read_head(wheel)


def test_who_can_write_rlk_itself_can_write_its_wheels(tmp_path: Path, give: Give) -> None:
    """Such as a group, where a user's umask is 002, or who installed both for all."""
    package = tmp_path / "rlk"
    package.mkdir()
    package.chmod(0o755)
    group = package.stat().st_gid
    assert Trust.like(package) == Trust.own()
    package.chmod(0o775)
    assert Trust.like(package).groups == {group}
    give(package)
    assert Trust.like(package).owners == Trust.own().owners | {STRANGER}


def test_a_group_that_is_trusted_is_no_other(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    status = os.stat(tmp_path)
    owners = frozenset({status.st_uid})
    assert Trust(owners, frozenset({status.st_gid})).problem(status) is None
    assert Trust(owners, frozenset({status.st_gid + 1})).problem(status) is not None
    tmp_path.chmod(0o777)
    assert Trust(owners, frozenset({status.st_gid})).problem(os.stat(tmp_path)) is not None
    tmp_path.chmod(0o755)


@pytest.mark.parametrize("change", [replaced_by_pipe, replaced_by_link], ids=["a pipe", "a link"])
def test_a_wheel_whose_head_is_no_file_is_refused(
    wheel: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    trusting(monkeypatch, Trust.own())
    change(wheel / reader.HEAD)
    with pytest.raises(BadEntry, match="not a plain file"):
        reader.read_head(wheel)


# locks


def test_a_lock_that_is_unlinked_while_it_is_taken_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between open and flock gc may unlink the file: whoever asks next makes another, and locks that."""
    import fcntl

    path, taken = tmp_path / "lock", fcntl.flock
    unlinked: list[int] = []

    def late(handle: int, how: int) -> None:
        if not unlinked:
            unlinked.append(handle)
            path.unlink()
        taken(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with hold(path, 1.0) as outcome:
        assert outcome is Hold.OWNED and unlinked
        with hold(path, 0.0) as other:
            assert other is Hold.TIMED_OUT


# what a key holds


@pytest.mark.parametrize("backend", ["triton", "cute", "tilelang"])
def test_each_variable_of_a_compiler_changes_each_key(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels, and of what is kept of calls."""
    for tool in ("cute", "tilelang"):
        monkeypatch.setattr(f"rlk.backends.{tool}.toolchain", lambda *_: (("compiler", "1"),))
    monkeypatch.setattr(triton, "triton_version", lambda: "3")
    monkeypatch.setattr(trace_cache, "own_text", lambda: "text")
    kernels: set[str] = set()
    calls: set[str] = set()
    settings = [{}, *({name: value} for name in TOOLCHAIN_VARIABLES for value in "12")]
    for variables in settings:
        found = Env.read({"HOME": "/", **variables})
        monkeypatch.setattr(Env, "current", staticmethod(lambda found=found: found))
        kernels.add(build.kernel_key(backend, "ir", None, "sm_90a").digest())
        call = trace_cache._key("code", target("sm_90a"), [["operator", "x"]])
        assert call is not None
        calls.add(call.digest())
    assert len(kernels) == len(calls) == len(settings) > 80


ASKED = """
import os, re
from triton._C import libtriton
data = open(libtriton.__file__, "rb").read()
for name in set(re.findall(rb"\\x00([A-Z][A-Z0-9]*_[A-Z0-9_]{3,60})(?=\\x00)", data)):
    os.environ[name.decode()] = "1"
print(*libtriton.get_cache_invalidating_env_vars())
"""


REPORTS = re.compile("DUMP|TIMING|DIAGNOSTICS|LLVM_DEBUG|MULTITHREADING|VERSION_CHECK")  # and no code


def test_what_triton_says_changes_its_code_is_in_the_list() -> None:
    """The names are in its library, which tells which of those that are set matter."""
    pytest.importorskip("triton")
    asked = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    told = {name for name in asked.stdout.split() if not REPORTS.search(name)}
    assert len(told) > 10 and told <= set(TOOLCHAIN_VARIABLES)
