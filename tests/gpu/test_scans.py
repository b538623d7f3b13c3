"""Carries along axes with chunks, and reductions of a chunk: on a device, the bits of the oracle."""

from __future__ import annotations

import pytest
import torch
from gpu.test_products_together import tensor
from test_scans import SPECS, case

from rlk.testing.bits import assert_same_bits


@pytest.mark.parametrize("name", SPECS)
def test_their_bits(name: str) -> None:
    given = {n: tensor(x) for n, x in case(name).items()}
    found = [SPECS[name](**{n: x.to(where) for n, x in given.items()}) for where in ("cuda", "cpu")]
    results = [[each] if isinstance(each, torch.Tensor) else [*each] for each in found]
    for got, want in zip(*results, strict=True):
        assert_same_bits(got.cpu(), want, name)
