"""A backend that another package registers runs public calls, with the oracle's bits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy_backend
import pytest
import torch
from numpy_backend import BACKEND, CPU

import rlk
from rlk.backends import registry
from rlk.backends.interface import Backend
from rlk.backends.registry import register, unregister
from rlk.cache import Store
from rlk.cli import main
from rlk.env import Env
from rlk.errors import Code, InternalError, LaunchError, UnsupportedError
from rlk.lower.common.emitted import Emitted
from rlk.ops import ratio_kl, rms_norm, swiglu
from rlk.runtime.binding import selection
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call import dispatch
from rlk.runtime.kernels import build
from rlk.runtime.kernels.pool import pool
from rlk.target.facts import target

TESTS = Path(__file__).resolve().parent
H200 = target("sm_90a")


def chosen(monkeypatch: pytest.MonkeyPatch, backend: str | None) -> None:
    """Choose a backend as RLK_BACKEND does."""
    env = replace(Env.current(), backend=backend)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))
    dispatch.dispatch.forget()


@pytest.fixture
def fourth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """Register the backend of NumPy text, choose it, and give it a store of its own."""
    store = Store(tmp_path / "store", limit=1 << 30)
    monkeypatch.setattr(build, "store", lambda: store)
    register(BACKEND)
    chosen(monkeypatch, BACKEND.name)
    yield store
    unregister(BACKEND.name)


def calls() -> list[tuple[Any, tuple[torch.Tensor, ...]]]:
    """Return public calls of elementwise operators: f32, bf16, and rows of two dims."""
    torch.manual_seed(1)
    shapes = ((7, 33), (2, 3, 33))
    gates = [
        (torch.randn(s, dtype=d), torch.randn(s, dtype=d))
        for s in shapes
        for d in (torch.float32, torch.bfloat16)
    ]
    found: list[tuple[Any, tuple[torch.Tensor, ...]]] = [(swiglu, pair) for pair in gates]
    return [*found, (ratio_kl, tuple(torch.randn(500) for _ in range(3)))]


def bits(op: Any, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return a call's results as integers."""
    made = op(*given)
    tensors = [made] if isinstance(made, torch.Tensor) else list(made)
    return [t.view(torch.int16 if t.dtype is torch.bfloat16 else torch.int32) for t in tensors]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def wanted() -> list[list[torch.Tensor]]:
    """Return the oracle's bits."""
    return [bits(*call) for call in calls()]


def test_a_registered_backend_has_the_oracles_bits(
    wanted: list[list[torch.Tensor]], fourth: Store, launched: list[str]
) -> None:
    for call, want in zip(calls(), wanted, strict=True):
        assert same(bits(*call), want), call[0].__name__
    assert not launched  # the oracle computed none of it
    entries = [each for each in fourth.entries() if (each.path / "module.py").exists()]
    assert len(entries) == 3  # a module for each dtype of swiglu: its rows are a run-time size
    for entry in entries:
        text = (entry.path / "module.py").read_text()
        assert "import numpy as np" in text and (entry.path / "launch.json").exists()


def wrong_lower(*args: Any, **options: Any) -> Emitted:
    """Lower with results of functions that are too large by a hundredth, which bf16 does not round away."""
    made = numpy_backend.lower(*args, **options)
    source = made.source.replace("portable\n", "portable as exact\n", 1)
    nudged = "\n\ndef portable(name):\n    return lambda x: exact(name)(x) * np.float32(1.01)\n"
    return replace(made, source=source.replace("import memory\n", f"import memory\n{nudged}"))


def test_a_wrong_backend_is_seen(
    wanted: list[list[torch.Tensor]], fourth: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    unregister(BACKEND.name)
    register(replace(BACKEND, lower=wrong_lower))
    differing = [not same(bits(*call), want) for call, want in zip(calls(), wanted, strict=True)]
    assert all(differing)


def test_a_second_process_reads_what_was_compiled(fourth: Store) -> None:
    op, given = calls()[-1]
    first, compiled = bits(op, given), pool().compiled
    dispatch.dispatch.forget()  # as a process that bound nothing yet
    assert same(bits(op, given), first) and pool().compiled == compiled


def test_its_choice_is_explained_and_prefetched(fourth: Store) -> None:
    given = calls()[0][1]
    said = rlk.explain(swiglu, *given)
    assert (said.backend, said.target) == ("numpy", "cpu") and "compiled at the first call" in said.source
    path = rlk.prefetch(swiglu, *given).result(timeout=120)
    assert path is not None and (path / "module.py").exists()
    assert rlk.explain(swiglu, *given).source == "cache"


def test_what_it_refuses_is_an_error(fourth: Store) -> None:
    with pytest.raises(UnsupportedError, match="not supported by numpy on cpu"):
        rms_norm(torch.ones(2, 8), torch.ones(8))


def test_it_takes_nothing_where_it_is_not_asked_for(fourth: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(monkeypatch, None)
    assert rlk.explain(swiglu, *calls()[0][1]).backend == "oracle"
    for name in ("sm_90a", "gfx942", "sm_80"):
        assert BACKEND not in registry.of_target(target(name))
        assert BACKEND not in registry.in_wheels(target(name))
    chosen(monkeypatch, BACKEND.name)
    with pytest.raises(UnsupportedError, match="RLK_BACKEND is not supported by numpy on sm_90a"):
        dispatch.asked_for(target("sm_90a"))
    assert dispatch.asked_for(CPU) == ("numpy",)


def refusing(*args: Any, **options: Any) -> Emitted:
    raise UnsupportedError(Code.UNSUPPORTED, what="it", backend="numpy", target="", alternatives="")


@pytest.mark.parametrize("lower", [numpy_backend.lower, refusing])
def test_a_faster_backend_runs_by_default_and_others_run_what_it_refuses(
    lower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen(monkeypatch, None)
    given = {name: torch.randn(40, 64) for name in ("gate", "up")}
    invocation = selection.invoke(swiglu.specs[0], given, {}, {}, None)  # type: ignore[attr-defined]
    call = (invocation, H200.softmax, geometry_of(invocation, given), given, H200)
    fast = replace(BACKEND, targets=frozenset({H200.name}), faster=lambda *_: True, lower=lower)
    register(fast)
    try:
        asked = dispatch.asked_for(H200)
        assert asked[-2:] == ("numpy", "triton")
        made = dispatch.lowered(*call, None, asked)[3]
        assert made.backend == ("triton" if lower is refusing else "numpy")
        if lower is refusing:
            with pytest.raises(UnsupportedError):  # by name it does not fall back
                dispatch.lowered(*call, None, "numpy")
    finally:
        unregister(fast.name)
    assert "numpy" not in dispatch.asked_for(H200)


def test_wrong_registrations_are_refused() -> None:
    def local(emitted: Emitted, target: str, folder: Path) -> None: ...

    for wrong, field in (
        (replace(BACKEND, name="Numpy"), "name"),
        (replace(BACKEND, name="triton"), "name"),
        (replace(BACKEND, name="oracle"), "name"),
        (replace(BACKEND, complete=True), "complete"),
        (replace(BACKEND, compile=local), "compile"),
        (replace(BACKEND, compile=lambda *_: None), "compile"),
    ):
        with pytest.raises(LaunchError, match=f"register: {field}="):
            register(wrong)
    assert BACKEND.name not in {each.name for each in registry.registered()}
    with pytest.raises(InternalError, match="there is no compiler for backend 'numpy'"):
        build.kernel_key("numpy", "ir", None, "cpu")


def test_the_environment_names_registered_backends_only(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"HOME": "/home/x", "RLK_BACKEND": "numpy"}
    with pytest.raises(LaunchError, match="one of triton, cute, tilelang, oracle"):
        Env.read(variables)
    register(BACKEND)
    assert Env.read(variables).backend == "numpy"
    unregister(BACKEND.name)
    with pytest.raises(LaunchError):
        Env.read(variables)


def test_an_entry_point_registers_its_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = []

    def load() -> Backend:
        loaded.append(1)
        return BACKEND

    point = SimpleNamespace(name="numpy", value="numpy_backend:BACKEND", load=load)
    monkeypatch.setattr(
        registry.metadata,
        "entry_points",
        lambda group, name="numpy": [point] * (name == "numpy" and group == "rlk.backends"),
    )
    registry._from_entry_point.cache_clear()
    assert Env.read({"HOME": "/home/x", "RLK_BACKEND": "numpy"}).backend == "numpy" and not loaded
    assert registry.find("jax") is None
    assert registry.of_name("numpy") is registry.of_name("numpy") is BACKEND and loaded == [1]
    assert registry.installed() == {"numpy": point.value}
    assert main(["show", "swiglu", "--source", "numpy", "--target", "cpu"]) == 0  # its own target
    assert "import numpy as np" in capsys.readouterr().out
    unregister("numpy")
    point.load = lambda: numpy_backend.NOTHING
    with pytest.raises(LaunchError, match="entry point='numpy_backend:BACKEND' .*\n.*no attribute 'NOTHING'"):
        registry.find("numpy")
    with pytest.raises(LaunchError, match="one of triton, cute, tilelang, oracle, numpy"):
        Env.read({"HOME": "/home/x", "RLK_BACKEND": "nunpy"})
    registry._from_entry_point.cache_clear()


SCRIPT = """
import numpy_backend
from rlk.backends.registry import register
register(numpy_backend.BACKEND)
import rlk, torch
from rlk.ops import ratio_kl
x = torch.linspace(-3, 3, 64)
print(rlk.explain(ratio_kl, x, x / 2, -x).backend, ratio_kl(x, x / 2, -x).ratio.sum().item())
"""


def test_a_program_registers_before_it_imports_the_operators(tmp_path: Path) -> None:
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    env = {**os.environ, "PYTHONPATH": path, "RLK_CACHE_DIR": str(tmp_path), "RLK_BACKEND": "numpy"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120
    )
    x = torch.linspace(-3, 3, 64)
    assert done.stdout.split() == ["numpy", str(ratio_kl(x, x / 2, -x).ratio.sum().item())], done.stderr
