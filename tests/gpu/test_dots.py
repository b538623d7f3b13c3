"""On a device the matrix units have the bits of the dot models."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from rlk.ir.dotmodel import DotModel, validated
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.kernels import probes
from rlk.testing import probe_dot


@cache
def found(kind: str) -> probe_dot.Found:
    on = target_of(torch.device("cuda", 0))
    if on is None or DotModel.CHAIN16 not in validated(on.name):
        pytest.skip("the dots of this device have another model, or none")
    return probe_dot.probe(probes.device(0, on.name, "cuda"), kind, 10**6)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_dots_of_every_number_are_chain16(kind: str) -> None:
    assert found(kind).wrong == 0, "\n".join(probe_dot.describe(found(kind)))
