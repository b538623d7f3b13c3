"""The checked-in kernels are those that the passes and the lowerings write now, byte by byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlk.resources import generated
from rlk.runtime.reference import reference_sources


def sources() -> dict[str, str]:
    return dict(reference_sources())


def stale(folder: Path, wanted: dict[str, str]) -> list[str]:
    """Return the files of a folder that differ from the sources, or that one of the two lacks."""
    there = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.glob("*/*/*.py")}
    return sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))


@pytest.fixture(scope="module")
def wanted() -> dict[str, str]:
    return sources()


def test_checked_in_kernels_are_what_is_emitted(wanted: dict[str, str]) -> None:
    assert stale(generated(), wanted) == []


def test_every_backend_has_checked_in_kernels(wanted: dict[str, str]) -> None:
    folders = {name.rpartition("/")[0] for name in wanted}
    assert folders == {"sm90a/triton", "sm90a/cute", "gfx942/tilelang"}


def test_a_changed_a_missing_and_an_unknown_kernel_are_found(wanted: dict[str, str], tmp_path: Path) -> None:
    """The control."""
    changed, missing, *_ = sorted(wanted)
    there = {name: text for name, text in wanted.items() if name != missing}
    there |= {changed: wanted[changed] + "\n", "sm90a/triton/unknown.py": ""}
    for name, text in there.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert stale(tmp_path, wanted) == sorted({changed, missing, "sm90a/triton/unknown.py"})
