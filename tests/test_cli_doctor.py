"""`rlk doctor` says which compilers are here, and which folders of a store this user cannot use."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlk.backends import cute, tilelang, triton
from rlk.cli import doctor
from rlk.cli.places import unusable

NOBODY = 65534


def compilers(monkeypatch: pytest.MonkeyPatch, *here: str) -> dict[str, object]:
    """Return what doctor says where these backends have what they need."""
    some = (("a compiler", "1"),)
    monkeypatch.setattr(triton, "triton_version", lambda: "3.7.1" if "triton" in here else None)
    monkeypatch.setattr(cute, "toolchain", lambda: some if "cute" in here else None)
    monkeypatch.setattr(cute, "compiles", lambda: "cute" in here)
    monkeypatch.setattr(tilelang, "toolchain", lambda on: some if "tilelang" in here else None)
    return dict(doctor._compilers())


def test_each_compiler_is_listed_and_what_it_compiles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = compilers(monkeypatch, "cute")
    assert list(said)[:-1] == ["triton", "nvidia-cutlass-dsl", "apache-tvm-ffi", "tilelang", "ziglang"]
    assert said["GPU kernels"] == "cute for sm_90a"
    both = str(compilers(monkeypatch, "triton", "tilelang")["GPU kernels"]).splitlines()
    assert both[0].startswith("triton for sm_90a, ") and both[1].startswith("tilelang for ")
    assert "gfx942" in both[0] and "gfx942" in both[1] and len(both) == 2


def test_without_any_the_command_that_installs_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = str(compilers(monkeypatch)["GPU kernels"])
    assert said.startswith("none can be compiled here: pip install ") and "[triton]'" in said


# --- folders ---


@pytest.fixture
def root() -> Iterator[Path]:
    """A store that anyone may reach, whose folders anyone may read."""
    place = Path(tempfile.mkdtemp(prefix="rlk-test-"))
    place.chmod(0o755)
    for name in ("entries/ab/abcd", "entries/ab/abef", "entries/cd/cdef", "locks", "staging", "quarantine"):
        (place / name).mkdir(parents=True)
    yield place
    place.chmod(0o755)
    for folder in place.rglob("*"):
        folder.chmod(0o755)
    shutil.rmtree(place)


def by_another(root: Path, *, filled: bool) -> list[str]:
    """Return what another user than root is told of a store; a user that is none already is told it here."""
    if os.geteuid():
        return unusable(root, filled=filled)
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(into, json.dumps(unusable(root, filled=filled)).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(said)
    return found


def test_a_store_that_serves_is_not_complained_of(root: Path) -> None:
    assert not by_another(root, filled=False)
    assert not unusable(root, filled=True)
    assert not unusable(root / "nowhere", filled=True)


def test_folders_of_another_user_are_named_with_their_modes(root: Path) -> None:
    for folder in ("entries/ab/abcd", "entries/ab/abef", "entries/cd"):
        (root / folder).chmod(0o000)
    me = os.geteuid()
    assert by_another(root, filled=False) == [
        f"{root / 'entries/ab/abcd'} and 2 more: cannot be read: it is of user {me}, with mode 0000"
    ]
    (root / "entries").chmod(0o000)
    (line,) = by_another(root, filled=False)
    assert line == f"{root / 'entries'}: cannot be read: it is of user {me}, with mode 0000"


def test_folders_that_cannot_be_written_matter_to_who_fills_a_store(root: Path) -> None:
    for folder in root.iterdir():
        folder.chmod(0o555)
    assert not by_another(root, filled=False)
    (line,) = [line for line in by_another(root, filled=True) if "0555" in line]
    assert line.startswith(f"{root / 'locks'} and 3 more: cannot be written: ")


@pytest.mark.parametrize("filled", [False, True])
def test_a_store_that_is_closed_to_this_user_is_named_itself(root: Path, filled: bool) -> None:
    """Close the folder: its entries cannot even be asked for."""
    root.chmod(0o000)
    assert by_another(root, filled=filled) == [
        f"{root}: cannot be read: it is of user {os.getuid()}, with mode 0000"
    ]


def test_a_folder_of_no_use_is_a_problem() -> None:
    wrong: list[str] = []
    assert doctor._closed("the store", [], wrong) == [] and not wrong
    assert doctor._closed("the store", ["/x\x1b: why"], wrong) == [("not usable", "/x\\x1b: why")]
    assert len(wrong) == 1 and "chmod" in wrong[0]
