"""What `import rlk` costs and offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rlk
from rlk import resources

PROBE = """
import sys, time
before = set(sys.modules)
start = time.perf_counter()
import rlk
print(time.perf_counter() - start)
print(sorted({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""


def test_importing_rlk_is_cheap_and_pulls_nothing_in() -> None:
    runs = [_probe() for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.15
    assert runs[0][1] == "['rlk']"


def _probe() -> tuple[float, str]:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    seconds, modules = done.stdout.splitlines()
    return float(seconds), modules


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'linear_lopg'"):
        _ = rlk.linear_lopg


def test_lazy_names_are_listed() -> None:
    assert {"ops", "Layout", "explain"} <= set(dir(rlk))


def test_the_trees_beside_the_package_are_found() -> None:
    assert (resources.templates() / "README.md").is_file()
    assert (resources.generated() / "README.md").is_file()
