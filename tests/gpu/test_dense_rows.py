"""Sums of products of computed factors and of dense rows: on a device, the bits of the oracle."""

from __future__ import annotations

import pytest
from gpu.test_products_together import tensor
from test_dense_rows import SPECS, case

from rlk.testing.bits import assert_same_bits


@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("name", SPECS)
def test_their_bits(name: str, rows: int) -> None:
    given = {n: tensor(x) for n, x in case(name, rows).items()}
    found = [SPECS[name](**{n: x.to(where) for n, x in given.items()}) for where in ("cuda", "cpu")]
    results = [[each] if not isinstance(each, tuple) else [*each] for each in found]
    for got, want in zip(*results, strict=True):
        assert_same_bits(got.cpu(), want, name)
