"""The gallery: a package of operators beside rlk, installed, tested, and shown on its page."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_gallery
from benchmarks.dry import OnCpu
from rlk.aot.matrix import read_matrix
from rlk.runtime import registry

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "examples/operators"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the package is installed, as pip would record it."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    folder = site / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir()
    names = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\n{names}")
    (points,) = project["entry-points"].items()
    lines = [f"[{points[0]}]", *(f"{name} = {value}" for name, value in points[1].items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PACKAGE, site, ROOT)))}


@pytest.fixture(scope="module")
def tool() -> Iterator[dict[str, Any]]:
    """The names of tools/gallery.py; operators of the package are forgotten afterwards."""
    path, known = list(sys.path), set(registry.others())
    yield runpy.run_path(str(ROOT / "tools/gallery.py"))
    for name in set(registry.others()) - known:
        registry.unregister(name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "gallery_ops"]:
        del sys.modules[name]
    sys.path[:] = path


@pytest.mark.slow
def test_the_package_passes_its_own_tests(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run(
        [*command, "tests"], cwd=PACKAGE, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and "15 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_and_the_kernels_are_current(
    tool: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    from rlk.cli import main

    names = [op.qualified for op in tool["operators"]().values()]
    assert main(["gen", *names, "--out", str(tool["GENERATED"]), "--check"]) == 0, (
        "run: python tools/gallery.py"
    )
    assert tool["PAGE"].read_text() == tool["page"](), "run: python tools/gallery.py"
    capsys.readouterr()


def test_an_operator_has_at_most_half_of_the_lines_of_its_triton_kernels(tool: dict[str, Any]) -> None:
    for name, op in tool["operators"]().items():
        assert 2 * tool["spec_lines"](op) <= tool["kernel_lines"](name, "triton").own, name


def test_lines_of_code_are_counted_without_comments_docstrings_and_imports(tool: dict[str, Any]) -> None:
    head = '"""Doc."""\nimport a\n\nX = 1  # one\n\n\n'
    source = head + '@deco\ndef f(\n    x\n):\n    """Doc.\n\n    More."""\n    # no\n    return x\n'
    assert tool["code"](source) == {"": 1, "f": 5}
    assert tool["code"](source, without=frozenset({"f"})) == {"": 1}


def test_the_matrix_of_the_package_names_its_operators(tool: dict[str, Any]) -> None:
    found = read_matrix(str(PACKAGE / "kernels.toml"))
    names = {op.qualified for op in tool["operators"]().values()}
    assert len(found.calls) == 3 and {call.op for call in found.calls} <= names


SIZES = {
    "layer_norm": (8, 64),
    "smoothed_loss": (8, 600),
    "zloss_head": (8, 32, 600),
    "router": (8, 16),
    "adamw": (8, 32),
    "linear_attention": (2, 128, 4),
    "int8_rows": (8, 64),
    "w8a16": (8, 48, 64),
    "fp8_rows": (8, 64),
    "fp8_linear": (8, 48, 64),
    "swiglu_linear": (8, 48, 64),
    "lora": (8, 48, 64, 16),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_benchmark_times_the_same_formula_as_its_peers(tool: dict[str, Any], name: str) -> None:
    assert name in tool["operators"]() or name == "lora"
    with OnCpu():
        torch.manual_seed(0)
        work = getattr(bench_gallery, name)(*SIZES[name])
        checked = bench_gallery.check(work)
        made, plain = work.ours(), work.plain(*work.args, **work.options)
    assert checked.differing == 0 and (checked.max_abs_err or 0.0) < 2e-2
    ours, theirs = (x if isinstance(x, torch.Tensor) else x[0] for x in (made, plain))
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)
