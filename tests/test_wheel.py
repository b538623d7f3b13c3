"""A built wheel, installed outside the checkout, is complete: it imports, carries its trees, and compiles."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="building a wheel needs the dev extra")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(out), str(ROOT)], check=True)
    (built,) = out.glob("rlk-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside every other package of this environment."""
    borrowed = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    return installed(wheel, tmp_path_factory.mktemp("installed") / "venv", borrowed)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside every package that has nothing to do with compiling kernels."""
    links = tmp_path_factory.mktemp("links")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.lower().startswith(TOOLCHAINS):
            (links / path.name).symlink_to(path)
    return installed(wheel, tmp_path_factory.mktemp("bare") / "venv", {str(links)})


TOOLCHAINS = ("triton", "nvidia_cutlass", "cutlass", "tilelang", "tvm", "apache_tvm", "ziglang")


def installed(wheel: Path, home: Path, borrowed: set[str]) -> Path:
    """Install the wheel alone into an empty environment that borrows other packages from folders.

    These come last on the path, so that an editable rlk there, if any, is never reached.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(home)
    python = home / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet"]
    subprocess.run([*command, "--no-index", str(wheel)], check=True)
    site = Path(ask(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
    # a plain path line: .pth files of the borrowed folder, such as an editable install's, are not followed
    (site / "zz_borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    return python


def ask(python: Path, program: str) -> str:
    """Run a program far from the checkout, so that nothing is found there by accident."""
    done = subprocess.run(
        [str(python), "-I", "-c", program], cwd=python.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_holds_the_trees_of_the_repository(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    trees = {"rlk": "rlk", "templates": "rlk/_templates", "generated": "rlk/_generated"}
    for folder, inside in trees.items():
        for path in (ROOT / folder).rglob("*"):
            tracked = path.is_file() and "__pycache__" not in path.parts
            assert not tracked or f"{inside}/{path.relative_to(ROOT / folder).as_posix()}" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    assert [name for name in names if name.endswith("licenses/LICENSE")]


def test_the_installed_package_is_the_wheel(python: Path) -> None:
    place = ask(python, "import rlk; print(rlk.__file__)")
    assert Path(place).is_relative_to(python.parents[1])


def test_every_module_of_the_wheel_parses_and_the_base_imports(python: Path) -> None:
    ask(python, "import rlk.errors, rlk.env, rlk.digest, rlk.ir.nodes, rlk.ir.tree")


def test_the_installed_package_compiles_a_kernel(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiling needs triton")
    files = compile_from(python, tmp_path / "kernel")
    assert {Path(name).suffix for name in files} >= {".cubin", ".py"}


BARE = """
import torch
from rlk import ops
from rlk.cli import main
from rlk.errors import UnsupportedError
from rlk.runtime.call import dispatch
from rlk.runtime.binding.selection import invoke
from rlk.runtime.binding.invocation import geometry_of
from rlk.target.facts import target

x = torch.ones(2, 512, dtype=torch.bfloat16)
assert ops.swiglu(x, x).isfinite().all() and main(["doctor"]) == 0
tensors = {"gate": x, "up": x}
invocation = invoke(ops.swiglu.specs[0], tensors, {}, {}, None)
for backend, name in (("triton", "sm_90a"), ("cute", "sm_90a"), ("triton", "gfx942"), ("tilelang", "gfx942")):
    on = target(name)
    call = (invocation, on.softmax, geometry_of(invocation, tensors), tensors, on)
    try:
        dispatch.resolve(*call, torch.device("cpu", 0), backend=backend)
    except UnsupportedError as error:
        print("REFUSED", backend, name, " ".join(str(error).split()))
"""


def test_without_toolchains_calls_run_and_each_backend_says_what_it_needs(bare: Path) -> None:
    said = [line for line in ask(bare, BARE).splitlines() if line.startswith("REFUSED")]
    assert len(said) == 4
    for line in said:
        _, backend, name, *_ = line.split()
        hint = f"-py3-none-any.whl[{backend}]', the wheel that rlk was installed from"
        assert f"by {backend} on {name}" in line and "pip install './rlk-" in line and hint in line, line


COMPILE = """
from pathlib import Path

from rlk import ops
from rlk.lower.common.emitted import Signature
from rlk.lower.triton import lower
from rlk.passes.pipeline import canonical, specialize
from rlk.runtime.kernels.pool import pool
from rlk.schedule.heuristics import choose
from rlk.target.facts import target

if __name__ == "__main__":
    (spec,), on, sizes = ops.swiglu.specs, target("sm_90a"), {"T": 4, "N": 1000}
    program = specialize(canonical(spec.trace(spec.default_variant())), {"N": 1000}, on.softmax)
    signature = Signature((("N", 1000),), None)
    schedules = [choose(kernel, on, signature, sizes) for kernel in program.kernels]
    folder = Path(FOLDER)
    folder.mkdir()
    pool().compile(lower(program, schedules, on, signature), on.name, folder)
    print(*sorted(path.name for path in folder.iterdir()))
"""


def compile_from(python: Path, folder: Path) -> list[str]:
    """Lower and compile a kernel for sm_90a with the installed package; nothing is run, no GPU is needed."""
    return ask(python, COMPILE.replace("FOLDER", repr(str(folder)))).split()
