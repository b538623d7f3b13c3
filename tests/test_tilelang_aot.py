"""A wheel of TileLang kernels: repeatable, what was verified, and served where there is no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import ladder
import pytest
import torch
from aot_cases import REPOSITORY, built, installed
from test_tilelang_runtime import Loaded

from rlk.aot.build import build
from rlk.aot.matrix import Calls, Matrix, Model
from rlk.aot.progress import Progress
from rlk.backends import tilelang
from rlk.env import Env
from rlk.errors import UnsupportedError
from rlk.ops import swiglu
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call import dispatch
from rlk.target.facts import target
from rlk.testing.bits import differing

FOUND = """
import json, sys
sys.modules["tilelang"] = sys.modules["triton"] = None
import torch
from rlk.ops import swiglu
from rlk.runtime.call import dispatch
from rlk.runtime.binding.selection import invoke
from rlk.runtime.binding.invocation import geometry_of
from rlk.target.facts import target

on = target("gfx942")
x = torch.zeros(40, 512, dtype=torch.bfloat16)
tensors = {"gate": x, "up": x}
invocation = invoke(swiglu.specs[0], tensors, {}, {}, None)
geometry = geometry_of(invocation, tensors)
found = dispatch.ship(invocation, on.softmax, geometry, tensors, on, dispatch.serving(on)).found
print(json.dumps(found and [found.form.backend, found.kernel.wheel.label, str(found.kernel.folder)]))
"""


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ladder.require()
    return built(tmp_path_factory.mktemp("aot") / "one", "--backend", "tilelang", on="gfx942")


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("aot") / "site")


def served(site: Path, **variables: str) -> list[str] | None:
    """Return the backend, the wheel and the folder that serve a call, in a process without compilers."""
    paths = {"PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    done = subprocess.run(
        [sys.executable, "-c", FOUND],
        env={**os.environ, **paths, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] | None = json.loads(done.stdout)
    return found


def test_two_builds_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    again = built(tmp_path / "another place", "--backend", "tilelang", on="gfx942", PYTHONHASHSEED="7")
    assert again.name == wheel.name == "rlk_aot_gfx942_tilelang-0.1.0-py3-none-any.whl"
    assert again.read_bytes() == wheel.read_bytes()


def test_a_wheel_holds_code_objects_and_asks_for_rlk_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))
    assert [x for x in metadata.splitlines() if x.startswith("Requires-Dist")] == [
        "Requires-Dist: rlk>=0.1.0"
    ]
    assert {Path(name).suffix for name in names if "/entries/" in name} == {".py", ".json", ".hsaco"}


def test_a_call_is_served_without_compilers(site: Path) -> None:
    for asked in ("", "tilelang"):
        found = served(site, RLK_BACKEND=asked)
        assert found is not None and found[:2] == ["tilelang", "rlk_aot_gfx942_tilelang 0.1.0"]
    assert served(site, RLK_BACKEND="triton") is None


def test_what_is_served_is_what_the_emulator_runs_and_has_the_bits_of_the_oracle(
    site: Path, tmp_path: Path
) -> None:
    found = served(site)
    assert found is not None
    x, y = (torch.randn(40, 512).bfloat16() for _ in range(2))
    device, folder = Loaded(tmp_path / "entry"), Path(found[2])
    invocation = invoke(swiglu.specs[0], {"gate": x, "up": y}, {}, {}, None)
    on, geometry = target("gfx942"), geometry_of(invocation, {"gate": x, "up": y})
    _, _, _, emitted = dispatch.lowered(
        invocation, on.softmax, geometry, {"gate": x, "up": y}, on, None, "tilelang"
    )
    with device(emitted) as (call, kernels):
        for made in device.folder.glob("*.hsaco"):
            assert (folder / made.name).read_bytes() == made.read_bytes()
        out = torch.empty_like(x)
        strides = {f"{name}_t_stride": 512 for name in ("gate", "up", "y")}
        given = {"gate": x, "up": y, "y": out, "T": 40, **strides}
        call(kernels, *(given[each.name] for each in emitted.call))
    assert differing(out, swiglu(x, y)) == 0 and out.ne(0).any()
    assert device.executions


def test_what_has_no_form_is_left_to_others_and_said(tmp_path: Path) -> None:
    tiny = Model("tiny", 256, 1024, 512, 4, 2, 256)
    wanted = (Calls("swiglu", (40,)), Calls("varlen_attention", (40,)))
    (made,) = build(
        Matrix((tiny,), wanted), [(target("gfx942"), "tilelang")], tmp_path, Progress(sys.stderr, "")
    )
    assert made.entries == 1 and len(made.left) == 1
    assert made.left[0].startswith("varlen_attention E=256") and "lacks" in made.left[0]


def test_only_devices_of_amd_have_such_wheels(tmp_path: Path) -> None:
    assert dispatch.backends_of(target("gfx942")) == ("triton", "tilelang")
    assert "sm_90a" in tilelang.TARGETS and "tilelang" not in dispatch.backends_of(target("sm_90a"))
    with pytest.raises(UnsupportedError, match="triton, cute"):
        build(Matrix((), ()), [(target("sm_90a"), "tilelang")], tmp_path, Progress(sys.stderr, ""))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    from dataclasses import replace

    env = replace(Env.current(), backend=request.param)
    monkeypatch.setattr(Env, "current", staticmethod(lambda: env))
    yield


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [("tilelang", ("tilelang",)), ("triton", ("triton", "tilelang")), (None, ("triton", "tilelang"))],
    indirect=["asked"],
)
def test_a_refusal_is_answered_by_another_wheel_unless_tilelang_is_asked_for(
    asked: None, wanted: tuple[str, ...]
) -> None:
    assert dispatch.standing_in(target("gfx942")) == wanted
