"""Errors of commands: a located line, with status 2, before anything is written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rlk import cli
from rlk.cli.text import made_folder
from rlk.errors import LaunchError
from rlk.runtime.launch.record import ABI

Rlk = Callable[..., tuple[int, str, str]]
MANY = "9" * 5000


@pytest.fixture
def rlk(capsys: pytest.CaptureFixture[str]) -> Rlk:
    def call(*argv: str) -> tuple[int, str, str]:
        try:
            status = cli.main(argv)
        except SystemExit as end:  # argparse ends so
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


SPEC = """from rlk.lang import Axis, L, Outputs, Tensor, f32, op

T = Axis("T", dynamic=True)


@op()
def x(a: Tensor[f32, T]) -> Outputs:
    {body}
"""
NO_SPECS: dict[str, tuple[str | bytes, str]] = {
    "one that does not parse": ("def x(:\n", "spec.py:1: not a spec: invalid syntax"),
    "one that raises": ("\n1 / 0\n", "spec.py:2: not a spec: ZeroDivisionError: division by zero"),
    "one that ends": ("import sys\nsys.exit(0)\n", "spec.py:2: not a spec: SystemExit: 0"),
    "one that lacks a package": ("import nosuch\n", "spec.py:1: not a spec: ModuleNotFoundError: No module"),
    "bytes": (b"\xff\xfe\x00", "not a spec: "),
    "zeros": (b"x = 1\x00", "not a spec: "),
    "one whose operator raises": (SPEC.format(body="return {}[0]"), "spec.py:8: not a spec: KeyError: 0"),
    "one whose operator returns nothing": (SPEC.format(body="pass"), "spec.py:6: the spec writes no output"),
    "one without operators": ("y = 1\n", "the file has no @op"),
}


@pytest.mark.parametrize("case", NO_SPECS)
@pytest.mark.parametrize("command", ["show", "check"])
def test_a_file_that_is_no_spec_is_named(rlk: Rlk, case: str, command: str, tmp_path: Path) -> None:
    text, why = NO_SPECS[case]
    path = tmp_path / "spec.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status, out, err = rlk(command, f"{path}:x", "--target", "sm_90a")
    assert status == 2 and not out and why in err, err


@pytest.mark.parametrize(("level", "shown"), [("debug", True), ("", False)])
def test_the_traceback_is_logged_where_that_is_asked_for(level: str, shown: bool, tmp_path: Path) -> None:
    (tmp_path / "spec.py").write_text("1 / 0\n")
    command = [sys.executable, "-m", "rlk.cli", "show", str(tmp_path / "spec.py")]
    done = subprocess.run(
        command, env={**os.environ, "RLK_LOG": level}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and ("Traceback" in done.stderr) is shown


def test_a_file_of_any_name_may_be_a_spec(rlk: Rlk, tmp_path: Path) -> None:
    (tmp_path / "norm.txt").write_text(SPEC.format(body="return L.out(y=a + 1.0)"))
    status, out, _ = rlk("show", f"{tmp_path / 'norm.txt'}:x")
    assert status == 0 and out.startswith("x ")


def test_a_file_may_import_the_operator_it_is_asked_for(rlk: Rlk, tmp_path: Path) -> None:
    (tmp_path / "held_elsewhere.py").write_text(SPEC.format(body="return L.out(y=a + 1.0)"))
    path = tmp_path / "uses.py"
    path.write_text("from held_elsewhere import x as mine\nfrom rlk.ops import matmul\n")
    law = ("--target", "sm_90a", "--law", "tiles")
    status, out, err = rlk("check", f"{path}:mine", *law)
    assert status == 0 and "x " in out and "all ok" in out, err
    for name, choices in (("x", f"{path}:mine"), ("matmul", f"matmul, {path}:mine")):  # the last: a function
        status, _, err = rlk("check", f"{path}:{name}", *law)
        assert status == 2 and f"choose one of: {choices} " in err, err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("check", "logp", "--seed", "-1"), "argument --seed: '-1' is no whole number of at least 0"),
        (("check", "logp", "--seed", MANY), "is no whole number of at least 0"),
        (("check", "logp", "--jobs", "0"), "argument --jobs: '0' is no whole number of at least 1"),
        (("warmup", "--model-config", "x", "--rows", "0"), "argument --rows: '0' is no whole number"),
        (("warmup", "--model-config", "x", "--tp", "-2"), "argument --tp: '-2' is no whole number"),
        (("warmup", "--model-config", "x", "--tp", "3"), "expected a power of two"),
        (("warmup", "--model-config", "x", "--tp", "3"), "rlk warmup: --tp=3"),
        (("show", "logp", "--extent", f"V={MANY}"), "expected a positive number"),
        (("cache", "gc", "--limit", MANY), "such as 8G"),
        (("tune", "matmul", "--dry", "--lane", f"1/{MANY}"), "expected I/N"),
        (("tune", "matmul", "--dry", "--shape", f"M={MANY},N=1,K=1"), "expected M=4096"),
    ],
)
def test_a_number_out_of_range_is_refused(rlk: Rlk, arguments: tuple[str, ...], why: str) -> None:
    status, out, err = rlk(*arguments)
    assert status == 2 and not out and why in err and len(err) < 1000


@pytest.mark.parametrize("place", ["a file", "below a file", "/dev/null"])
@pytest.mark.parametrize(
    "arguments", [("docs",), ("gen",), ("aot", "build", "common", "--target", "sm_90a")], ids=lambda a: a[0]
)
def test_an_output_that_is_no_folder_is_refused_first(
    rlk: Rlk, arguments: tuple[str, ...], place: str, tmp_path: Path
) -> None:
    if arguments[0] == "aot":
        pytest.importorskip("triton", reason="a wheel needs a compiler")
    (tmp_path / "file").write_text("kept")
    out = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "x"}.get(place, Path(place))
    status, said, err = rlk(*arguments, "--out", str(out))
    assert status == 2 and not said and "expected a folder that can be written to (" in err
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LaunchError, match="Permission denied"):
        made_folder(tmp_path, "rlk docs", "--out")


def test_a_full_disk_is_one_line(rlk: Rlk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    assert rlk("docs", "--out", str(tmp_path)) == (2, "", "rlk docs: No space left on device\n")


# --- wheels that are none ---


def zipped(path: Path, head: object = None, **members: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        if head is not None:
            archive.writestr("p/wheel.json", head if isinstance(head, str) else json.dumps(head))
        for name, text in members.items():
            archive.writestr(f"p/entries/ab/cd/{name}", text)


HEAD = {"target": "sm_90a", "backend": "triton", "abi": ABI, "rlk": "0", "toolchain": {}}


def encrypted(path: Path) -> None:
    zipped(path, HEAD)
    data = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + at] |= 1
    path.write_bytes(data)


def unpackable(path: Path) -> None:
    zipped(path, HEAD)
    data = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        data[data.index(mark) + at] = 77  # a way to pack that there is not
    path.write_bytes(data)


NO_WHEELS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "empty": lambda path: path.touch(),
    "text": lambda path: path.write_text("PK"),
    "an archive": lambda path: zipped(path),
    "a list": lambda path: zipped(path, [1]),
    "a deep list": lambda path: zipped(path, "[" * 99999),
    "an empty object": lambda path: zipped(path, {}),
    "a toolchain of text": lambda path: zipped(path, {**HEAD, "toolchain": "x"}),
    "calls of text": lambda path: zipped(path, {**HEAD, "calls": "x"}),
    "entries of lists": lambda path: zipped(path, HEAD, **{"x/manifest.json": "[]"}),
    "entries without keys": lambda path: zipped(
        path, HEAD, **{"x/manifest.json": '{"files": {}, "key": {}}'}
    ),
    "files that are not there": lambda path: zipped(
        path, HEAD, **{"x/manifest.json": '{"files": {"f": {"sha256": 1}}, "key": {}}'}
    ),
    "encrypted": encrypted,
    "unpackable": unpackable,
}


@pytest.mark.parametrize("case", NO_WHEELS)
def test_what_is_no_wheel_is_said_to_be_none(rlk: Rlk, case: str, tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    NO_WHEELS[case](path)
    status, out, err = rlk("aot", "inspect", str(path))
    assert status == 2 and not out and "expected a wheel that rlk aot build wrote (" in err
