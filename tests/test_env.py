"""Laws of the environment: read once, refused when wrong, and nowhere else in rlk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from rlk.env import DEFAULT_CACHE_LIMIT, Env
from rlk.errors import LaunchError

HOME = {"HOME": "/home/ada"}
ROOT = Path(__file__).resolve().parent.parent


def test_an_empty_environment_has_defaults() -> None:
    env = Env.read(HOME)
    assert env.cache_dir == Path("/home/ada/.cache/rlk")
    assert env.cache_limit == DEFAULT_CACHE_LIMIT
    assert (env.backend, env.check, env.interpret, env.log, env.toolchain) == (
        None,
        False,
        False,
        None,
        (),
    )
    assert env.jobs >= 1 and env.overlap and not Env.read({"RLK_OVERLAP": "0"}).overlap
    assert Env.read({}).cache_dir.is_absolute()


def test_the_cache_directory_follows_its_variables_in_order() -> None:
    xdg = {**HOME, "XDG_CACHE_HOME": "/x"}
    assert Env.read(xdg).cache_dir == Path("/x/rlk")
    assert Env.read({**HOME, "XDG_CACHE_HOME": "relative"}).cache_dir == Path("/home/ada/.cache/rlk")
    assert Env.read({**xdg, "RLK_CACHE_DIR": "/y"}).cache_dir == Path("/y")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("2K", 2048),
        ("500M", 500 * 2**20),
        ("8g", 2**33),
        ("8GiB", 2**33),
        ("1TB", 2**40),
    ],
)
def test_sizes_have_binary_suffixes(text: str, size: int) -> None:
    assert Env.read({**HOME, "RLK_CACHE_LIMIT": text}).cache_limit == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLK_CACHE_DIR", "relative/path"),
        ("RLK_CACHE_LIMIT", "lots"),
        ("RLK_CACHE_DIR", "~nobody-of-this-name/x"),
        ("RLK_CACHE_LIMIT", "-1"),
        ("RLK_CACHE_LIMIT", "1.5G"),
        ("RLK_CHECK", "yes"),
        ("RLK_OVERLAP", "off"),
        ("RLK_INTERPRET", "2"),
        ("RLK_BACKEND", "cuda"),
        ("RLK_LOG", "loud"),
        ("RLK_JOBS", "0"),
        ("RLK_JOBS", "many"),
        ("SOURCE_DATE_EPOCH", "x"),
        ("SOURCE_DATE_EPOCH", "-1"),
        ("SOURCE_DATE_EPOCH", "4354819200"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_it_may_be(name: str, value: str) -> None:
    with pytest.raises(LaunchError, match=rf"{name}={re.escape(repr(value))} is not allowed\n    expected "):
        Env.read({**HOME, name: value})


@pytest.mark.parametrize("name", ["RLK_CACHE_LIMIT", "RLK_JOBS", "SOURCE_DATE_EPOCH"])
def test_a_number_that_is_too_long_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(LaunchError, match=rf"{name}='9+\.\.\.' is not allowed") as caught:
        Env.read({**HOME, name: "9" * 5000})
    assert len(str(caught.value)) < 300


LOGGING = """
import logging, sys
from rlk.env import Env
if sys.argv[1:]:
    logging.basicConfig(level="DEBUG", format="program: %(message)s")
Env.current()
for level in ("debug", "info", "warning", "error"):
    getattr(logging.getLogger("rlk.cache"), level)(level)
"""
WORSE = ["WARNING rlk.cache: warning", "ERROR rlk.cache: error"]


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        ("", ["warning", "error"]),
        ("debug", ["DEBUG rlk.cache: debug", "INFO rlk.cache: info", *WORSE]),
        ("warning", WORSE),
        ("ERROR", WORSE[1:]),
    ],
)
def test_the_log_says_what_its_level_asks_for(level: str, heard: list[str]) -> None:
    assert logged(level) == heard


def test_a_program_that_logs_hears_each_line_once() -> None:
    assert logged("info", "configured") == ["program: info", "program: warning", "program: error"]
    assert logged("", "configured")[0] == "program: debug"


def logged(level: str, *arguments: str) -> list[str]:
    """Return what a process of its own writes to stderr under RLK_LOG."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RLK_LOG": level}
    command = [sys.executable, "-c", LOGGING, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_the_docs_name_every_variable_and_no_other() -> None:
    page = (ROOT / "docs/environment.md").read_text()
    table = set(re.findall(r"^\| `([A-Z_]+)` ", page, re.MULTILINE))
    read = set(re.findall(r'"(RLK_[A-Z_]+|CC|SOURCE_DATE_EPOCH)"', (ROOT / "rlk/env.py").read_text()))
    assert table == read
    texts = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    mentioned = {name for path in texts for name in re.findall(r"\bRLK_[A-Z_]*[A-Z]\b", path.read_text())}
    assert mentioned <= read


@pytest.mark.parametrize("named", ["/nonexistent", "gcc 'unended", " "])
def test_a_c_compiler_that_is_not_there_is_an_error(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlk.backends import cute

    monkeypatch.setattr(Env, "current", staticmethod(lambda: Env.read({**HOME, "CC": named})))
    with pytest.raises(LaunchError, match="environment: CC=.* is not allowed") as caught:
        cute._linker()
    assert repr(named) in str(caught.value)
    here = f"{sys.executable} -O"
    monkeypatch.setattr(Env, "current", staticmethod(lambda: Env.read({**HOME, "CC": here})))
    assert cute._linker() == here.split()


def test_compiler_variables_are_kept_when_set() -> None:
    env = Env.read({**HOME, "TRITON_F32_DEFAULT": "ieee", "TRITON_CACHE_DIR": "/z", "PTXAS_OPTIONS": ""})
    assert env.toolchain == (("TRITON_F32_DEFAULT", "ieee"),)


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Env.current()
    monkeypatch.setenv("RLK_CHECK", "0" if first.check else "1")
    assert Env.current() is first
    with pytest.raises(FrozenInstanceError):
        first.check = True  # type: ignore[misc]


def test_only_env_reads_the_environment() -> None:
    package = ROOT / "rlk"
    reading = re.compile(r"\bos\.(environ|getenv|putenv)\b")
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if reading.search(path.read_text())
    }
    assert readers == {"env.py"}


def test_a_bad_variable_is_said_at_every_import_that_it_stops() -> None:
    program = """
for _ in range(3):
    try:
        import rlk.ops
    except Exception as error:
        print(error)
"""
    environment = {**os.environ, "RLK_CHECK": "yes"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.count("environment: RLK_CHECK='yes' is not allowed") == 3, done.stdout
