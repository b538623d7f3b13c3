"""Compiled code that an earlier process kept is loaded where it is the same, and compiled anew elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from rlk import env
from rlk.cache import Store
from rlk.env import Env
from rlk.interp import machine_code
from rlk.interp.machine_code import FOLDER, MOST, kept

FACTOR = 3
X = np.arange(4, dtype=np.float32)
CHILD = """
import numpy as np
from numba.core.event import install_recorder
from rlk.interp import chain16, dot, dot_cdna, floats
from rlk.ir.dotmodel import DotModel
from rlk.ir.types import DType
a = np.random.default_rng(0).integers(-99, 99, (5, 40)).astype(np.float32)
for model, dtype in ((DotModel.CHAIN16, DType.BF16), (DotModel.FMA, DType.F32), (DotModel.CDNA3, DType.F16)):
    print(dot.dot(a, a, model, dtype).view(np.int32).tolist())
ran = [m._compiled(m.__dict__[f"_advance_{f}"]) for m, f in
       ((chain16, "chain16"), (dot, "fma"), (dot_cdna, "cdna3"))]
print([sum(f._cache_hits.values()) for f in ran])
with install_recorder("numba:compile") as compiled:
    print(floats.portable("exp2")(floats.to_bf16(floats.maximum(a, a[:1]))).view(np.int32).tolist())
print(len(compiled.buffer))
"""


def scaled(x: Any) -> Any:
    return x * FACTOR


@numba.njit
def _inner(x):  # type: ignore[no-untyped-def]
    return x * FACTOR


def outer(x: Any) -> Any:
    return _inner(x) + np.float32(1)


def begun(function: Callable[..., Any]) -> Any:
    """Return a function as a process has it that has just begun."""
    return kept(numba.njit(function))


def hits(compiled: Any) -> int:
    return sum(compiled._cache_hits.values())


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    here = replace(Env.current(), cache_dir=tmp_path / "store")
    monkeypatch.setattr(env, "_current", lambda: here)
    return here.cache_dir / FOLDER


def test_a_second_process_compiles_nothing_and_has_the_same_bits(tmp_path: Path) -> None:
    store = {"RLK_CACHE_DIR": str(tmp_path / "store"), "PYTHONPATH": os.pathsep.join(sys.path)}
    child = partial(subprocess.run, env={**os.environ, **store}, text=True, capture_output=True, check=True)
    runs = [child([sys.executable, "-c", CHILD]) for _ in range(2)]
    (*first, compiled, x, made), (*second, loaded, y, again) = (run.stdout.splitlines() for run in runs)
    assert first == second and len(first) == 3 and x == y
    assert compiled == "[0, 0, 0]" and "0" not in loaded.strip("[]").split(", ")
    assert int(made) >= 3 and again == "0"


@pytest.mark.parametrize("function", [scaled, outer])
def test_code_is_loaded_where_nothing_changed(function: Callable[..., Any], place: Path) -> None:
    first, second = begun(function), begun(function)
    want = first(X)
    assert hits(first) == 0 and len(list(place.iterdir())) == 1
    assert np.array_equal(second(X).view(np.int32), want.view(np.int32)) and hits(second) == 1


@pytest.mark.parametrize("function", [scaled, outer])
def test_a_constant_that_it_reads_is_part_of_the_code(
    function: Callable[..., Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(function)(X)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    _inner.recompile()  # numba's own memory of it, which a new process has not
    try:
        changed = begun(function)
        assert np.array_equal(changed(X), X * 5 + (function is outer)) and hits(changed) == 0
    finally:
        monkeypatch.undo()
        _inner.recompile()


def test_other_types_are_other_code(place: Path) -> None:
    begun(scaled)(X)
    other = begun(scaled)
    assert other(X.astype(np.float64)).dtype == np.float64 and hits(other) == 0


def test_oracles_of_another_text_share_no_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(scaled)(X)
    monkeypatch.setattr(machine_code, "_sources", lambda: "another text")
    other = begun(scaled)
    other(X)
    assert hits(other) == 0


def test_a_text_that_was_changed_meanwhile_keeps_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_code, "changed_after", lambda *_: True)
    machine_code._sources.cache_clear()
    assert np.array_equal(begun(scaled)(X), X * 3) and not list(place.iterdir())


@pytest.mark.parametrize("damage", [b"", b"0" * 64, b"another"])
def test_a_damaged_file_costs_a_compilation(damage: bytes, place: Path) -> None:
    begun(scaled)(X)
    (path,) = place.iterdir()
    path.write_bytes(damage + path.read_bytes()[len(damage) + 1 :] if damage else b"")
    after, again = begun(scaled), begun(scaled)
    assert np.array_equal(after(X), X * 3) and hits(after) == 0
    assert np.array_equal(again(X), X * 3) and hits(again) == 1  # it was written anew


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_no_code_is_loaded_that_another_user_could_write(mode: int, place: Path) -> None:
    begun(scaled)(X)
    place.chmod(mode)
    refused = begun(scaled)
    assert np.array_equal(refused(X), X * 3) and hits(refused) == 0
    place.chmod(0o755)
    believed = begun(scaled)
    believed(X)
    assert hits(believed) == 1


@pytest.mark.parametrize("of", ["folder", "file"])
def test_links_are_not_followed(of: str, place: Path, tmp_path: Path) -> None:
    begun(scaled)(X)
    (path,) = place.iterdir()
    linked = place if of == "folder" else path
    linked.symlink_to(linked.rename(tmp_path / "moved"))
    refused = begun(scaled)
    assert np.array_equal(refused(X), X * 3) and hits(refused) == 0


def test_a_place_that_cannot_be_written_costs_a_compilation(place: Path) -> None:
    place.parent.write_text("a file where the folder would stand")
    assert np.array_equal(begun(scaled)(X), X * 3)


def test_a_disk_that_fills_up_leaves_no_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(machine_code.os, "replace", full)
    assert np.array_equal(begun(scaled)(X), X * 3) and not list(place.iterdir())


def test_files_of_versions_that_are_gone_are_removed(place: Path) -> None:
    place.mkdir(parents=True, mode=0o700)
    for age in range(MOST):
        (place / f"old{age}").touch()
        os.utime(place / f"old{age}", (age, age))
    begun(scaled)(X)
    left = {path.name for path in place.iterdir()}
    assert len(left) <= MOST and f"old{MOST - 1}" in left and "old0" not in left
    again = begun(scaled)
    again(X)
    assert hits(again) == 1


def test_a_store_of_kernels_leaves_it_alone(place: Path) -> None:
    begun(scaled)(X)
    store = Store(place.parent, limit=0)
    assert store.refused is None and not store.verify() and not store.gc(0)
    again = begun(scaled)
    again(X)
    assert hits(again) == 1
