"""The law of registered operators that have a float64 form: they agree with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlk.errors import Code, LaunchError
from rlk.interp.run import run_wide
from rlk.lang.op import Op
from rlk.lang.variants import outputs
from rlk.runtime.operator import ordered
from rlk.testing.cases import Case, forward_program, sizes

TOLERANCE = 1e-9  # relative to the largest element: both forms are sums in float64


def worst_difference(case: Case) -> tuple[int, float, str]:
    """Compare the outputs of a case, every float an f64, with those of the registered float64 form.

    Returns how many outputs were compared, the largest difference relative to its output's largest element,
    and where it is. Infinities and NaN must be at the same places.
    """
    op = case.op
    program = forward_program(op, case.variant)
    ran = run_wide(program, case.values, extents=sizes(program, case.values, op=op))
    there = {d.name: np.asarray(ran[d.name]) for d in outputs(program)}
    wanted = {n: x for n, x in float64_outputs(case).items() if n in there}
    worst, where = 0.0, ""
    for name, reference in wanted.items():
        error = _difference(there[name], np.asarray(reference))
        if not error <= worst:
            worst, where = error, f"{name}: {error:.2e} from the float64 form"
    return len(wanted), worst, where


def float64_outputs(case: Case) -> Mapping[str, Any]:
    """Return the outputs of the registered float64 form for a case's inputs, by their names in the spec."""
    op = case.op
    assert op.record.reference is not None
    statics = dict(case.variant.statics)
    given = {f.name: case.values[f.name] for f in ordered(op) if f.name in case.values}
    made = op.record.reference(**{n: _argument(x) for n, x in given.items()}, **statics)
    program = op.trace(case.variant)
    names = [d.name for d in outputs(program) if not op.returns or d.name in op.returns]
    if op.returns:
        names = [n for n in op.returns if n in names]
    if not isinstance(made, Mapping):
        listed = [made] if isinstance(made, torch.Tensor) else [x for x in made if x is not None]
        if len(listed) != len(names):
            raise _other_results(op, f"{len(listed)} tensors", names)
        made = dict(zip(names, listed, strict=True))
    elif made.keys() - set(names) and (missing := [n for n in names if n not in made]):
        # a result that float64 does not have, such as one rounded at random, may be left out
        raise _other_results(op, f"{', '.join(made)} without {', '.join(missing)}", names)
    for name, value in made.items():
        if not isinstance(value, torch.Tensor):
            raise _other_results(op, f"a {type(value).__name__} for {name}", names)
    return {name: value.detach().numpy() for name, value in made.items()}


def _other_results(op: Op, got: str, names: Sequence[str]) -> LaunchError:
    return LaunchError(Code.FLOAT64_RESULTS, op=op.qualified, got=got, wanted=", ".join(names))


def _argument(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    array = np.asarray(value)
    return torch.from_numpy(np.ascontiguousarray(array)) if array.ndim else array.item()


def _difference(got: Any, want: Any) -> float:
    """Return the largest difference of two arrays relative to the largest finite element wanted."""
    if got.shape != want.shape:
        return math.inf
    same = (got == want) | (np.isnan(got.astype(float)) & np.isnan(want.astype(float)))
    if same.all():
        return 0.0
    gap = np.abs(got.astype(float) - want.astype(float))[~same]
    finite = np.abs(want[np.isfinite(want.astype(float))])
    if not np.isfinite(gap).all():
        return math.inf
    return float(gap.max()) / max(float(finite.max(initial=0.0)), 1e-300)
