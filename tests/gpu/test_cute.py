"""On a Hopper the CuTe lowering has the oracle's bits; first launches are in children that may hang alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu.children import Children
from gpu.cute_cases import CASES

from rlk.runtime import cute
from rlk.runtime.invocation import target_of
from rlk.testing.bits import assert_same_bits

SECONDS = 400  # a kernel that waits for ever would take the whole sitting
CHILDREN = 12


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected."""
    on = target_of(torch.device("cuda", 0))
    if on is None or on.name not in cute.TARGETS or cute.toolchain() is None:
        pytest.skip("no Hopper, or no cutlass-dsl")
    folder = tmp_path_factory.mktemp("cute")
    found = Children(folder, "gpu.cute_child", SECONDS, CHILDREN, RLK_BACKEND="cute", RLK_JOBS="1")
    found.start_selected(request)
    yield found
    found.pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", CASES)
def test_cute_has_the_bits_of_the_oracle(name: str, children: Children) -> None:
    run = children.start(name).result()
    assert run["backend"] == "cute"
    for schedule, got in run["outputs"]:
        for output, want in run["want"].items():
            assert_same_bits(got[output], want, f"{output} under {schedule}")
