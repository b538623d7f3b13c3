"""Integers of 8 bits by one addition: the bits of rounding first, for ties, limits, infinities and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlk.interp.run import run
from rlk.ir.nodes import Fn1, Map1, Program
from rlk.lang import Axis, L, Outputs, Tensor, f32, i8, i32, op, u8
from rlk.passes import nearest
from rlk.passes.pipeline import canonical, specialize
from rlk.passes.walk import walk
from rlk.target.facts import target
from rlk.testing.bits import differing

T = Axis("T", dynamic=True)
SOFTMAX = target("sm_90a").softmax


@op()
def rounded(x: Tensor[f32, T]) -> Outputs:
    """Nearest integers, limited by both dtypes."""
    return L.out(near=L.round(x).to(i8), positive=L.round(x).to(u8), again=L.round(3.0 * x).to(i8))


@op()
def not_rounded(x: Tensor[f32, T]) -> Outputs:
    """Integers towards 0, below, and without limits."""
    up = L.where(x - L.floor(x) > 0.25, L.floor(x) + 1.0, L.floor(x))
    return L.out(cut=x.to(i8), below=L.floor(x).to(i8), free=L.round(x).to(i32), other=up.to(i8))


def of(spec: Any) -> Program:
    return canonical(spec.trace(spec.default_variant()))


def bound(spec: Any) -> Program:
    return specialize(of(spec), {}, SOFTMAX)


def floors(program: Program) -> int:
    nodes = [let.node for kernel in program.kernels for let in walk(kernel.body)]
    return sum(isinstance(node, Map1) and node.fn is Fn1.FLOOR for node in nodes)


def numbers() -> np.ndarray[Any, Any]:
    halves = np.arange(-600, 600, dtype=np.float32) / 2
    beside = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    few = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 2**22, 2**23, 2**24, -(2**23), 3e38])
    drawn = np.random.default_rng(0).normal(size=2000).astype(np.float32) * 80
    return np.concatenate([halves, *beside, few, drawn])


def test_a_sum_gives_the_integers_of_rounding_first() -> None:
    given = {"x": numbers()}
    want, got = run(of(rounded), given), run(bound(rounded), given)
    assert floors(of(rounded)) == 4 and floors(bound(rounded)) == 0
    for name in ("near", "positive", "again"):
        assert differing(got[name], want[name]) == 0, name


def test_another_number_to_add_gives_other_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"x": numbers()}
    want = run(of(rounded), given)
    monkeypatch.setattr(nearest, "ROUNDS", 2.0**22)  # its neighbours are halves
    assert differing(run(bound(rounded), given)["near"], want["near"]) > 0, "the control"


def test_what_is_not_rounded_to_the_nearest_stays() -> None:
    given = {"x": numbers()[:3600]}
    given["x"] = given["x"][np.abs(given["x"]) < 1e6]
    want, got = run(of(not_rounded), given), run(bound(not_rounded), given)
    assert floors(bound(not_rounded)) == floors(of(not_rounded)) > 0
    for name in ("cut", "below", "free", "other"):
        assert differing(got[name], want[name]) == 0, name
