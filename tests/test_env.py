"""Laws of the environment: read once, refused when wrong, and nowhere else in rlk."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from rlk.env import DEFAULT_CACHE_LIMIT, Env
from rlk.errors import LaunchError

HOME = {"HOME": "/home/ada"}


def test_an_empty_environment_has_defaults() -> None:
    env = Env.read(HOME)
    assert env.cache_dir == Path("/home/ada/.cache/rlk")
    assert env.cache_limit == DEFAULT_CACHE_LIMIT
    assert (env.backend, env.check, env.interpret, env.log, env.toolchain) == (
        None,
        False,
        False,
        "warning",
        (),
    )
    assert env.jobs >= 1
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
        ("RLK_CACHE_LIMIT", "-1"),
        ("RLK_CACHE_LIMIT", "1.5G"),
        ("RLK_CHECK", "yes"),
        ("RLK_INTERPRET", "2"),
        ("RLK_BACKEND", "cuda"),
        ("RLK_LOG", "loud"),
        ("RLK_JOBS", "0"),
        ("RLK_JOBS", "many"),
    ],
)
def test_a_wrong_value_names_the_variable_and_what_it_may_be(name: str, value: str) -> None:
    with pytest.raises(LaunchError, match=rf"{name}={re.escape(repr(value))} is not allowed\n    expected "):
        Env.read({**HOME, name: value})


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
    package = Path(__file__).resolve().parent.parent / "rlk"
    reading = re.compile(r"\bos\.(environ|getenv|putenv)\b")
    readers = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if reading.search(path.read_text())
    }
    assert readers == {"env.py"}
