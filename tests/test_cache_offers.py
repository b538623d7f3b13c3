"""Side records of a store beside kernels: offered, never waited for, and gone once nobody uses them."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_cache import KEY, key, never, used_at, writer

from rlk.cache import CALLS, Store
from rlk.cache.lock import hold


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_an_offer_is_published_once_and_is_no_build(root: Path) -> None:
    store = Store(root)
    assert store.offer(KEY, writer(), label="a call") and not store.offer(KEY, never)
    (entry,) = store.entries()
    assert entry.label == "a call" and Store(root).get_or_build(KEY, never) == entry.path
    assert store.counters.builds == 0 and not list((root / "staging").iterdir())


def test_an_offer_waits_for_no_lock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waited(Exception):
        pass

    def wait(seconds: float) -> None:
        raise Waited

    store = Store(root)
    with hold(root / "locks" / f"{KEY.digest()}.lock", 0):
        monkeypatch.setattr(time, "sleep", wait)
        assert not store.offer(KEY, never)
        with pytest.raises(Waited):  # the control
            store.get_or_build(KEY, never)


@pytest.mark.parametrize("failing", ["mkdtemp", "write", "rename"])
def test_an_offer_that_fails_is_dropped_silently(
    root: Path, failing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    store = Store(root)
    if failing != "write":
        monkeypatch.setattr(tempfile if failing == "mkdtemp" else os, failing, full)
    assert not store.offer(KEY, full if failing == "write" else writer())
    monkeypatch.undo()
    assert not store.entries() and not list((root / "staging").iterdir())
    assert store.counters.unpublished == store.counters.trouble == 0 and not caplog.records
    assert store.offer(KEY, writer())


def test_what_says_which_kernels_calls_run_goes_after_a_month_without_use(root: Path) -> None:
    store = Store(root)
    for number, backend in enumerate((CALLS, CALLS, "triton")):
        store.get_or_build(replace(key(number), backend=backend), writer())
    old, new, kernel = (e.path for e in sorted(store.entries(), key=lambda e: str(e.key)))
    for path in (old, kernel):
        used_at(path, time.time() - 31 * 86400)
    assert [entry.path for entry in store.gc(2**30)] == [old]
    assert {entry.path for entry in store.entries()} == {new, kernel}
