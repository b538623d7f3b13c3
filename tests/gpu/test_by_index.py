"""Matrices that a row's index names: on a device, the bits of the oracle."""

from __future__ import annotations

import pytest
from gpu.test_products_together import tensor
from test_by_index import SPECS, case, drawn

from rlk.testing.bits import assert_same_bits


@pytest.mark.parametrize("rows", [5, 700])
@pytest.mark.parametrize("name", SPECS)
def test_their_bits(name: str, rows: int) -> None:
    given = {n: tensor(x) for n, x in case(name, drawn(rows, ordered=rows > 5)).items()}
    got, want = (SPECS[name](**{n: x.to(where) for n, x in given.items()}) for where in ("cuda", "cpu"))
    assert_same_bits(got.cpu(), want, name)
