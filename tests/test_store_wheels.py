"""A wheel that several processes write at once is whole at every moment, and leaves nothing beside it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from test_cache_faults import ended, forked

from rlk.aot.wheel import Facts, write_wheel

FACTS = Facts("rlk_aot_x", "1", "Kernels", (), "py3-none-any")
FILES = {f"{number}.cubin": os.urandom(200_000) for number in range(8)}


def test_processes_may_write_one_wheel_at_once(tmp_path: Path) -> None:
    path = write_wheel(FACTS, FILES, tmp_path)
    want = path.read_bytes()

    def work() -> None:
        for _ in range(6):
            assert write_wheel(FACTS, FILES, tmp_path).read_bytes() == want
            with zipfile.ZipFile(path) as archive:
                assert archive.testzip() is None

    children = [forked(work) for _ in range(4)]
    assert [ended(each) for each in children] == [0] * 4
    assert list(tmp_path.iterdir()) == [path]


def test_a_wheel_that_cannot_be_written_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_wheel(FACTS, FILES, tmp_path)
    want = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with pytest.raises(OSError, match="No space"):
        write_wheel(FACTS, {}, tmp_path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == want
