"""TileLang kernels as machine code on an emulator: the bits of the oracle, and none of an approximation."""

from __future__ import annotations

import ladder
import pytest

from rlk.testing.simulators.cdna import Fault, FaultKind
from rlk.testing.simulators.cdna.device import EmulatedWaves

SHORT = [name for name in ladder.CALLS if not name.startswith(("logp", "policy_loss", "linear_logp"))]
"""Calls of at most some hundred thousand instructions."""


@pytest.fixture(autouse=True)
def compilers() -> None:
    ladder.require()


@pytest.mark.parametrize("name", SHORT)
def test_machine_code_has_the_bits_of_the_oracle(name: str) -> None:
    device = EmulatedWaves(schedule=1, perturb=1)  # hardware approximations are off by an ulp
    assert ladder.differences(name, ladder.executed(name, device=device)) == 0
    assert device.executions
    assert {FaultKind.OUT_OF_BOUNDS, FaultKind.RACE} <= {*device.executions[0].checks}


@pytest.mark.parametrize("on", ["gfx90a", "gfx950"])
def test_other_devices_have_these_bits_too(on: str) -> None:
    for name in ("rms_norm forward", "swiglu gradient", "gae forward"):
        device = EmulatedWaves(target=on)
        assert ladder.differences(name, ladder.executed(name, device=device)) == 0


def test_products_on_gfx950_run_by_published_sums_only() -> None:
    name, device = "matmul_leaf8 forward", EmulatedWaves(target="gfx950", sums="gfx942")
    with pytest.raises(Fault, match="UNPUBLISHED"):
        ladder.executed(name, device=EmulatedWaves(target="gfx950"))
    assert ladder.differences(name, ladder.executed(name, device=device)) == 0
    assert any("v_bitop3_b32" in ran.opcodes for ran in device.executions)


def test_products_are_matrix_instructions() -> None:
    device = EmulatedWaves()
    assert ladder.differences("matmul forward", ladder.executed("matmul forward", device=device)) == 0
    assert all(ran.products for ran in device.executions)
