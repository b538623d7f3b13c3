"""On a device the matrix units have the bits of the dot models, edges included."""

from __future__ import annotations

import pytest
import torch

from rlk.ir.dotmodel import DotModel, validated
from rlk.runtime import probes
from rlk.runtime.dispatch import target_of
from rlk.testing import probe_dot


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_wgmma_and_mma_sync_are_chain16(kind: str) -> None:
    on = target_of(torch.device("cuda", 0))
    if on is None or DotModel.CHAIN16 not in validated(on.name):
        pytest.skip("the dots of this device have another model, or none")
    found = probe_dot.probe(probes.device(0, on.name, "cuda"), kind, 10**6)
    assert found.wrong == 0, "\n".join(probe_dot.describe(found))
