"""Every vjp is the derivative of its operator: finite differences of the oracle in f64."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_cases import GRADIENTS, Gradient, Inputs, params, random_inputs

from rlk.interp.run import run, run_wide
from rlk.ir.nodes import Role

STEP = 1e-5
PARTS = ("T.piece", "T.within", "V.piece", "V.within", "S.piece")


def inputs_of(case: Gradient) -> Inputs:
    drawn = random_inputs(case.forward(), case.extents, 3, case.given)
    return {n: np.float64(x) if np.asarray(x).dtype.kind == "f" else x for n, x in drawn.items()}


def slopes(case: Gradient, wrong: float = 0.0) -> tuple[float, float]:
    """Return a directional derivative by differences and by the vjp; wrong is added to one cotangent."""
    forward, backward = case.forward(), case.backward()
    inputs = inputs_of(case)
    rng = np.random.default_rng(4)
    outputs = run_wide(forward, inputs, extents=case.extents)
    weights = {n: rng.normal(size=outputs[n.removeprefix("d_")].shape) for n in case.cotangents()}
    direction = {n: rng.normal(size=inputs[n].shape) for n in case.wrt}

    def objective(step: float) -> float:
        moved = {**inputs, **{n: inputs[n] + step * d for n, d in direction.items()}}
        got = run_wide(forward, moved, extents=case.extents)
        return sum(float((w * got[n.removeprefix("d_")]).sum()) for n, w in weights.items())

    by_difference = (objective(STEP) - objective(-STEP)) / (2 * STEP)
    known = {**inputs, **outputs.tensors, **case.extra, **{n: w + wrong for n, w in weights.items()}}
    grads = run_wide(backward, {n: x for n, x in known.items() if reads(backward, n)}, extents=case.extents)
    return by_difference, sum(float((grads[f"d_{n}"] * d).sum()) for n, d in direction.items())


def reads(program: object, name: str) -> bool:
    decl = params(program).get(name)  # type: ignore[arg-type]
    return decl is not None and decl.role in (Role.IN, Role.SCALAR)


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_vjp_is_the_derivative(name: str) -> None:
    by_difference, by_vjp = slopes(GRADIENTS[name]())
    assert abs(by_difference - by_vjp) <= 1e-6 * max(1.0, abs(by_difference)), (by_difference, by_vjp)


def test_a_wrong_cotangent_is_seen() -> None:
    by_difference, by_vjp = slopes(GRADIENTS["swiglu"](), wrong=1e-3)
    assert abs(by_difference - by_vjp) > 1e-5 * abs(by_difference)


@pytest.mark.parametrize("name", GRADIENTS)
def test_tiles_do_not_change_a_gradient(name: str) -> None:
    case = GRADIENTS[name]()
    program = case.backward()
    exact = {n: np.float32(x) if np.asarray(x).dtype.kind == "f" else x for n, x in inputs_of(case).items()}
    outputs = run(case.forward(), exact, extents=case.extents)
    known = {**exact, **outputs.tensors, **case.extra}
    rng = np.random.default_rng(5)
    for n in case.cotangents():
        known[n] = rng.normal(size=outputs[n.removeprefix("d_")].shape).astype(np.float32)
    known = {n: x for n, x in known.items() if reads(program, n)}
    whole = run(program, known, extents=case.extents, tile={})
    for size in (1, 3, 17):
        tile = dict.fromkeys(("T", "V", "N", "D", "H", *PARTS), size)
        cut = run(program, known, extents=case.extents, tile=tile)
        for output, x in whole.tensors.items():
            assert np.array_equal(x.view(np.uint32), cut[output].view(np.uint32)), output
