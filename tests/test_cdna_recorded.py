"""Recorded machine code of a matrix product has the oracle's bits, where no compiler is installed too."""

from __future__ import annotations

import re

import numpy as np
import pytest
from recorded_machine import COLUMNS, DEPTH, RECORDED, SHARED, WAVES

from rlk.interp.dot import dot
from rlk.interp.floats import bf16_bits, to_bf16
from rlk.ir.dotmodel import DotModel
from rlk.ir.types import DType
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.simulators.cdna import Execution, Fault, FaultKind, descriptor, emulate, kernels

ASSEMBLY = RECORDED.read_text()
Operands = tuple[np.ndarray, np.ndarray]


def operands(rows: int) -> Operands:
    rng = np.random.default_rng(rows)
    return to_bf16(rng.normal(size=(rows, DEPTH))), to_bf16(rng.normal(size=(COLUMNS, DEPTH)))


def product(factors: Operands, assembly: str = ASSEMBLY, schedule: int = 0) -> tuple[np.ndarray, Execution]:
    """Return x w^T as the recorded kernel computes it, and what was executed."""
    x, w = factors
    y = np.full((len(x), COLUMNS), np.nan, np.float32)
    strides = [np.int64(n) for n in (DEPTH, DEPTH, COLUMNS)]
    ran = emulate(
        assembly,
        "matmul",
        (-(-len(x) // 32), 1, 1),
        (64 * WAVES, 1, 1),
        [bf16_bits(x), bf16_bits(w), y, np.int32(len(x)), *strides, np.uint64(0), np.uint64(0)],
        schedule=schedule,
        dynamic_shared=SHARED,
    )
    return y, ran


@pytest.mark.parametrize("rows", [1, 11, 32, 70])
def test_recorded_code_has_the_oracles_bits_in_every_order_of_waves(rows: int) -> None:
    factors = operands(rows)
    want = dot(*factors, DotModel.CDNA3, DType.BF16)
    for schedule in range(5):
        got, ran = product(factors, schedule=schedule)
        assert_same_bits(got, want)
        assert ran.products == 6 * ran.waves
        assert ran.shared <= SHARED and ran.approximations == 0


def test_the_bits_are_those_of_cdna3_alone() -> None:
    """The control: another model, or another order of the terms, is told apart."""
    x, w = operands(70)
    got, _ = product((x, w))
    assert differing(got, dot(x, w, DotModel.CDNA2, DType.BF16))
    turned = np.arange(DEPTH)[::-1]
    assert differing(got, dot(x[:, turned], w[:, turned], DotModel.CDNA3, DType.BF16))


def test_recorded_code_spills_nothing() -> None:
    assert kernels(ASSEMBLY) == ("matmul",)
    taken = descriptor(ASSEMBLY, "matmul").resources
    assert (taken.spilled, taken.scratch, taken.shared) == (0, 0, 0)
    assert 0 < taken.vector <= 512


def lines(start: str) -> list[int]:
    return [m.start() for m in re.finditer(rf"^\t{start}", ASSEMBLY, re.M)]


def without(at: int) -> str:
    end = ASSEMBLY.index("\n", at)
    return f"{ASSEMBLY[:at]}\ts_nop 0{ASSEMBLY[end:]}"


def test_no_barrier_but_the_first_can_be_missed() -> None:
    """The first one keeps reads of what nobody has read yet apart from writes."""
    barriers = lines("s_barrier")
    assert len(barriers) == 12
    for at in barriers[1:]:
        with pytest.raises(Fault):
            for schedule in range(4):
                product(operands(11), without(at), schedule)
    got, _ = product(operands(11), without(barriers[0]))
    assert_same_bits(got, dot(*operands(11), DotModel.CDNA3, DType.BF16))


def test_no_product_but_the_last_can_be_missed() -> None:
    """The last one is of the eight zeros that fill 40 terms up to 48."""
    want = dot(*operands(11), DotModel.CDNA3, DType.BF16)
    differs = [differing(product(operands(11), without(at))[0], want) > 0 for at in lines("v_mfma_")]
    assert differs == [True] * 5 + [False]


def test_no_wait_can_be_missed_but_where_nothing_is_under_way() -> None:
    """Three waits stand before barriers that no access of LDS precedes."""
    missed = []
    for at in lines("s_waitcnt"):
        try:
            product(operands(11), without(at))
            missed.append(ASSEMBLY[at:].splitlines()[1].strip())
        except Fault as fault:
            assert fault.kind is FaultKind.UNFINISHED
    assert missed == ["s_barrier"] * 3
