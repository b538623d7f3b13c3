"""The oracle's dots of gfx942 and gfx90a have the bits of the published model and of the emulator."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rlk.interp.dot import dot
from rlk.interp.floats import bf16_from_bits, f16_from_bits
from rlk.ir.dotmodel import FLOOR, STEP, DotModel, native, validated
from rlk.ir.types import DType
from rlk.testing.bits import assert_same_bits, differing
from rlk.testing.probe_dot import FAMILIES, operands
from rlk.testing.simulators.cdna.matrix import fused, paired

CDNA3, CDNA2 = DotModel.CDNA3, DotModel.CDNA2
MODELS = {CDNA3: fused, CDNA2: paired}
TYPES = [DType.BF16, DType.F16]
RECORDED = Path(__file__).parent / "recorded" / "dots_cdna.npz"
"""What MMA-Sim (commit c785138) computes for v_mfma_f32_16x16x16: 48 outputs of each family and type."""


@cache
def recorded(dtype: DType, family: str) -> dict[str, np.ndarray]:
    with np.load(RECORDED) as file:
        at = file["families"].tolist().index(family)
        found = {part: file[f"{dtype}.{part}"][at] for part in ("a", "b", "acc", "cdna3", "cdna2")}
    decode = bf16_from_bits if dtype is DType.BF16 else f16_from_bits
    floats = {part: found[part].view(np.float32) for part in ("acc", "cdna3", "cdna2")}
    return {"a": decode(found["a"]), "b": decode(found["b"]), **floats}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("model", MODELS)
def test_a_dot_has_the_bits_of_the_published_simulator(model: DotModel, dtype: DType, family: str) -> None:
    case = recorded(dtype, family)
    assert_same_bits(dot(case["a"], case["b"], model, dtype, case["acc"]), case[model.value])
    emulated = MODELS[model](case["a"], case["b"], case["acc"], FLOOR[dtype])
    assert_same_bits(emulated, case[model.value])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("model", MODELS)
def test_two_codings_of_a_model_agree(model: DotModel, dtype: DType) -> None:
    for seed, family in enumerate(FAMILIES):
        a, b, acc = operands(np.random.default_rng(seed), dtype.value, family, 48)
        assert_same_bits(dot(a, b, model, dtype, acc), MODELS[model](a, b, acc, FLOOR[dtype]), family)


def test_the_models_differ_from_each_other_and_from_chain16() -> None:
    """The control: operands that cannot tell the models apart would prove nothing."""
    a, b, acc = operands(np.random.default_rng(0), "bf16", "normal", 48)
    made = [dot(a, b, model, DType.BF16, acc) for model in (CDNA3, CDNA2, DotModel.CHAIN16)]
    assert all(differing(x, y) for i, x in enumerate(made) for y in made[:i])


@pytest.mark.parametrize("model", MODELS)
def test_a_contraction_may_be_cut_at_its_steps_and_nowhere_else(model: DotModel) -> None:
    a, b, acc = operands(np.random.default_rng(1), "f16", "normal", 32)
    whole = dot(a, b, model, DType.F16, acc)
    step = STEP[model]
    for at in (step, 2 * step):
        start = dot(a[:, :at], b[:, :at], model, DType.F16, acc)
        assert_same_bits(dot(a[:, at:], b[:, at:], model, DType.F16, start), whole)
    start = dot(a[:, : step - 1], b[:, : step - 1], model, DType.F16, acc)
    assert differing(dot(a[:, step - 1 :], b[:, step - 1 :], model, DType.F16, start), whole)


def test_cdna3_rounds_sums_down_so_that_signs_matter() -> None:
    a, b, acc = operands(np.random.default_rng(2), "bf16", "wide", 64)
    finite = np.isfinite(acc)
    plus, minus = dot(a, b, CDNA3, DType.BF16, acc), dot(-a, b, CDNA3, DType.BF16, -acc)
    assert differing(plus[finite], -minus[finite])
    # the control: chain16 cuts toward zero, and does not see the sign
    plus, minus = (dot(s * a, b, DotModel.CHAIN16, DType.BF16, s * acc) for s in (1, -1))
    zero = plus == 0
    assert_same_bits(plus[finite & ~zero], -minus[finite & ~zero])


def test_cdna2_flushes_what_cdna3_keeps() -> None:
    """Sixteen products of 2**-20 are 0 on gfx90a and 2**-36 on gfx942."""
    a = np.full((1, 16), 2.0**-20, np.float32)
    assert dot(a, a, CDNA3, DType.F16)[0, 0] == 2.0**-36
    assert dot(a, a, CDNA2, DType.F16)[0, 0] == 0


def test_a_published_model_is_not_a_validated_one() -> None:
    for target in ("gfx90a", "gfx942"):
        assert native(target) not in validated(target)
    assert native("sm_90a") is DotModel.CHAIN16
