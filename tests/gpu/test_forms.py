"""Loops over indices, streams in streams, carries and dense rows have on a device the bits of the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu.children import Children, assert_same_outputs, selected
from gpu.forms_child import CASES

SECONDS, CHILDREN = 120, 8  # a fault of one kernel fails no other test


@pytest.fixture(scope="module")
def children(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Start the children of all tests that were selected."""
    folder = tmp_path_factory.mktemp("forms")
    with selected(request, folder, "gpu.forms_child", SECONDS, CHILDREN, RLK_JOBS="1") as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_their_bits(name: str, children: Children) -> None:
    assert_same_outputs(children.start(name).result())
