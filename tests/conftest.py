"""Fixtures of several files of tests."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlk.backends import cute
from rlk.passes import pipeline
from rlk.runtime.call import dispatch as runtime

if "RLK_CACHE_DIR" not in os.environ:  # workers and children find it set: tests leave the user's store alone
    os.environ["RLK_CACHE_DIR"] = tempfile.mkdtemp(prefix="rlk-tests-")
    atexit.register(shutil.rmtree, os.environ["RLK_CACHE_DIR"], ignore_errors=True)

gc.disable()  # until all tests are collected, a third of whose time it took: what is imported stays


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what is slow, so that no worker is left with it when the others have ended."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave modules and collected tests out of garbage collections: they are most of the heap, and stay."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)  # with (700, 10, 10) tests of passes spend 8 % of their CPU time on it


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest collects all garbage five times at its end, Python twice


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cutlass") and cute.toolchain() is None:
        pytest.skip("nvidia-cutlass-dsl is not installed")


@pytest.fixture(autouse=True)
def no_texts_of_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that changes something finds no texts and programs made before, nor leaves its own to others."""
    changes = "monkeypatch" in request.fixturenames
    before = runtime.dispatch._memory, pipeline._known
    if changes:
        runtime.dispatch._memory, pipeline._known = {}, {}
    yield
    runtime.dispatch._memory, pipeline._known = before


@pytest.fixture(autouse=True, scope="module")
def environment_of_vllm() -> Iterator[None]:
    """Forget the environment that a file's engines of vLLM were started in, which vLLM keeps."""
    yield
    envs: Any = sys.modules.get("vllm.envs")
    if envs is not None:
        envs.disable_envs_cache()


@pytest.fixture(autouse=True, scope="module")
def objects_of_other_files() -> None:
    """Leave what tests of other files keep out of collections, of which transformers asks for many."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def assembler(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Give what returns the words of ptxas about the kernels that Triton compiled since it was asked last."""
    from triton import knobs

    def said() -> str:
        found = capsys.readouterr().out
        assert "Compiling entry function" in found
        return found

    with knobs.nvidia.scope():
        knobs.nvidia.dump_ptxas_log = True
        yield said


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the backend of every text that runs."""
    seen: list[str] = []
    real: Any = runtime.lowered

    def lowered(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        seen.append(made[3].backend)
        return made

    monkeypatch.setattr(runtime, "lowered", lowered)
    return seen


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count what runs: every bound call passes through the oracle's evaluation here."""
    from rlk.runtime.call import oracle

    seen: list[str] = []
    evaluate = oracle.evaluate

    def spy(program: Any, *args: Any, **options: Any) -> Any:
        seen.append(program.name)
        return evaluate(program, *args, **options)

    monkeypatch.setattr(oracle, "evaluate", spy)
    return seen
