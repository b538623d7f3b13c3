"""On a device every operator has the oracle's bits under every schedule, and a row's bits are its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from gpu.calls import CHANGES
from gpu.cases import CASES
from gpu.children import Children

from rlk.testing.bits import assert_same_bits

SCHEDULES = 6
SECONDS = 240
CHILDREN = max(8, min(32, (os.cpu_count() or 1) // 2))  # at once: they wait for compilers, not for the device


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected."""
    found = Children(tmp_path_factory.mktemp("gpu"), "gpu.child", SECONDS, CHILDREN)
    found.start_selected(request)
    yield found
    found.pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_has_the_bits_of_the_oracle(name: str, children: Children) -> None:
    run = children.start(name).result()
    asked = len(CASES[name].changes or CHANGES)
    assert len(run["outputs"]) >= min(SCHEDULES, asked), [text for text, _ in run["outputs"]]
    for schedule, got in run["outputs"]:
        for output, want in run["want"].items():
            assert_same_bits(got[output], want, f"{output} under {schedule}")
