"""On a Hopper TileLang's kernels have the oracle's bits; first launches are in children that may hang."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu.children import Children, assert_same_outputs, selected
from gpu.tilelang_cases import CASES

from rlk.backends import tilelang
from rlk.runtime.binding.invocation import target_of
from rlk.testing.bits import differing

SECONDS = 240  # a kernel that waits for ever would take the whole sitting
CHILDREN = 12


def require() -> None:
    on = target_of(torch.device("cuda", 0))
    if on is None or on.name not in tilelang.TARGETS or tilelang.toolchain(on.name) is None:
        pytest.skip("no device that TileLang is lowered for, or no TileLang, or no compiler below it")


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected."""
    require()
    folder, own = tmp_path_factory.mktemp("tilelang"), {"RLK_BACKEND": "tilelang", "RLK_JOBS": "1"}
    with selected(request, folder, "gpu.tilelang_child", SECONDS, CHILDREN, **own) as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_tilelang_has_the_bits_of_the_oracle(name: str, children: Children) -> None:
    run = children.start(name).result()
    assert run["backend"] == "tilelang"
    assert_same_outputs(run)


def test_products_fused_into_sums_would_be_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    require()
    folder = tmp_path_factory.mktemp("fused")
    # the last of two values counts; the flags of the environment are part of a kernel's key
    fused = {"NVCC_APPEND_FLAGS": "-fmad=true", "RLK_BACKEND": "tilelang", "RLK_JOBS": "1"}
    run = Children(folder, "gpu.tilelang_child", SECONDS, 1, **fused).start("gae 300 sequences").result()
    pairs = [(got[name], want) for _, got in run["outputs"] for name, want in run["want"].items()]
    assert sum(differing(got, want) for got, want in pairs) > 100
