"""On a Hopper the CuTe lowering has the oracle's bits; first launches are in children that may hang alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from gpu.children import Children, assert_same_outputs, selected
from gpu.cute_cases import CASES

from rlk.backends import cute
from rlk.runtime.binding.invocation import target_of

SECONDS = 400  # a kernel that waits for ever would take the whole sitting
CHILDREN = 12


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected."""
    on = target_of(torch.device("cuda", 0))
    if on is None or on.name not in cute.TARGETS or cute.toolchain() is None:
        pytest.skip("no Hopper, or no cutlass-dsl")
    folder, own = tmp_path_factory.mktemp("cute"), {"RLK_BACKEND": "cute", "RLK_JOBS": "1"}
    with selected(request, folder, "gpu.cute_child", SECONDS, CHILDREN, **own) as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_cute_has_the_bits_of_the_oracle(name: str, children: Children) -> None:
    run = children.start(name).result()
    assert run["backend"] == "cute"
    assert_same_outputs(run)
