"""Laws of compiling: the bytes of a binary depend on a kernel's text and on versions, on no place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from rlk.backends.triton import LINE_INFO, compile_triton  # noqa: E402
from rlk.env import Env  # noqa: E402
from rlk.lower.common.emitted import Emitted, KernelArg, KernelBuild  # noqa: E402

INSTALLED = Path(triton.__file__).parent
SOURCE = """import triton
import triton.language as tl


@triton.jit
def softened(x_ptr, y_ptr):
    at = tl.arange(0, 256)
    x = tl.load(x_ptr + at)
    tl.device_assert(x == x, "no NaN")
    tl.store(y_ptr + at, tl.exp2(x - tl.max(x, 0)) / tl.sum(tl.where(x > 0, x, 0.0), 0))
"""
SOFTENED = Emitted(
    SOURCE,
    (KernelBuild("softened", (KernelArg("x_ptr", "*fp32"), KernelArg("y_ptr", "*fp32"))),),
    (),
    (),
    "rlk/tests/softened.py",
)
"""Calls functions that triton.language itself writes as kernels, which compilers know by their files."""
COMPILE = """
import sys, triton
from pathlib import Path
from test_toolchain import SOFTENED
from rlk.backends.triton import compile_triton
assert Path(triton.__file__).is_relative_to(sys.argv[1])
compile_triton(SOFTENED, sys.argv[2], Path(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed Triton once more."""
    folder = tmp_path_factory.mktemp("another environment")
    shutil.copytree(INSTALLED, folder / "triton", copy_function=os.symlink)
    return folder


def _compiled(folder: Path, target: str, site: Path | None) -> dict[str, bytes]:
    """Return what is compiled with the Triton of a folder, or with the installed one, by name."""
    folder.mkdir()
    if site is None:
        compile_triton(SOFTENED, target, folder)
    else:
        path = os.pathsep.join(map(str, (site, Path(__file__).parent, *filter(None, sys.path))))
        command = [sys.executable, "-c", COMPILE, str(site), target, str(folder)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_where_triton_is_installed_changes_no_byte(target: str, elsewhere: Path, tmp_path: Path) -> None:
    here, there = _compiled(tmp_path / "a", target, None), _compiled(tmp_path / "b", target, elsewhere)
    assert len(here) == 4 and here == there


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_what_is_compiled_names_no_file_of_this_machine(target: str, tmp_path: Path) -> None:
    for name, data in _compiled(tmp_path / "a", target, None).items():
        for place in (str(INSTALLED), str(tmp_path), str(Path.home()), "site-packages", "standard.py"):
            assert place == "/" or place.encode() not in data, (name, place)


def test_who_asks_for_line_tables_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINE_INFO, "0")
    monkeypatch.setattr(Env, "current", lambda: Env.read(os.environ))
    assert b".debug_line" in _compiled(tmp_path / "a", "sm_90a", None)["softened.cubin"]


def test_compiling_leaves_what_others_set_for_triton(tmp_path: Path) -> None:
    before = triton.knobs.compilation.disable_line_info
    compile_triton(SOFTENED, "sm_90a", tmp_path)
    assert triton.knobs.compilation.disable_line_info == before
