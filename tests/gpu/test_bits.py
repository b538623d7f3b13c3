"""On a device every operator has the oracle's bits under every schedule, and a row's bits are its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from gpu.calls import CHANGES
from gpu.cases import CASES
from gpu.children import Children, assert_same_outputs, selected

SCHEDULES = 6
SECONDS = 240
CHILDREN = max(8, min(32, (os.cpu_count() or 1) // 2))  # at once: they wait for compilers, not for the device


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected."""
    with selected(request, tmp_path_factory.mktemp("gpu"), "gpu.child", SECONDS, CHILDREN) as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_has_the_bits_of_the_oracle(name: str, children: Children) -> None:
    run = children.start(name).result()
    asked = len(CASES[name].changes or CHANGES)
    assert len(run["outputs"]) >= min(SCHEDULES, asked), [text for text, _ in run["outputs"]]
    assert_same_outputs(run)
