"""Cost and names of `import rlk`."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import rlk
from rlk import resources

PROBE = """
import sys
before = set(sys.modules)
import rlk
print(*sorted(set(sys.modules) - before))
"""
MOST_MODULES = 120  # 61 with Python 3.11, in 10 to 20 ms; numpy alone has more
HEAVY = {
    "argparse",
    "asyncio",
    "concurrent",
    "importlib.metadata",
    "logging",
    "multiprocessing",
    "subprocess",
}


def test_importing_rlk_is_cheap_and_pulls_nothing_in() -> None:
    """Counted, for the seconds that it takes are those of whatever else the machine does."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    others = {name.split(".")[0] for name in modules} - sys.stdlib_module_names - {"rlk"}
    assert not others and len(modules) <= MOST_MODULES and not modules & HEAVY
    assert {name for name in modules if name.startswith("rlk")} == {"rlk", "rlk.digest"}


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'linear_lopg'"):
        _ = rlk.linear_lopg


def test_every_name_that_is_offered_exists() -> None:
    assert {"ops", "Layout", "explain"} <= set(rlk.__all__) <= set(dir(rlk))
    assert all(getattr(rlk, name) is not None for name in rlk.__all__)


def test_explain_says_what_a_call_runs() -> None:
    wide, narrow = (torch.ones(2, 8, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    one, two = rlk.explain(rlk.ops.swiglu, wide, wide), rlk.explain(rlk.ops.swiglu, narrow, narrow)
    assert one.numerics_id != two.numerics_id
    assert one.numerics_id in str(one)


def test_the_trees_beside_the_package_are_found() -> None:
    assert (resources.templates() / "README.md").is_file()
    assert (resources.generated() / "README.md").is_file()


def test_the_oldest_and_the_newest_triton_that_are_allowed_are_tested() -> None:
    root = Path(__file__).resolve().parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    (asked,) = project["optional-dependencies"]["triton"]
    first, major, after = re.findall(r"triton>=(\d+\.\d+),<(\d+)\.(\d+);", asked)[0]
    pins = []
    for version in (first, f"{major}.{int(after) - 1}"):
        text = (root / "constraints" / f"triton-{version}.txt").read_text()
        pins += re.findall(rf"^triton==({version}\.\d+)$", text, re.MULTILINE)
    assert 'ENDS = ("triton-{}", "triton-{}")'.format(*pins) in (root / "tools/compat.py").read_text()
