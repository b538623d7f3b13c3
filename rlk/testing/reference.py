"""Two laws of registered operators: agreement with their float64 form, and the truth of their page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

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
    if isinstance(made, Mapping):
        return {n: x.detach().numpy() for n, x in made.items()}
    program = op.trace(case.variant)
    names = [d.name for d in outputs(program) if not op.returns or d.name in op.returns]
    if op.returns:
        names = [n for n in op.returns if n in names]
    listed = [made] if isinstance(made, torch.Tensor) else [x for x in made if x is not None]
    return dict(zip(names, (x.detach().numpy() for x in listed), strict=True))


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


def page_failures(op: Op) -> tuple[int, list[str]]:
    """Run the example and the edges of a registered operator's page; return how many, and what is not so."""
    record = op.record
    import rlk

    names: dict[str, Any] = {
        "torch": torch, "rlk": rlk, "f": op, "nan": math.nan, "inf": math.inf, "same": same_bits
    }  # fmt: skip
    failures: list[str] = []
    torch.manual_seed(0)
    if record.usage:
        try:
            exec(compile(record.usage, f"<usage of {op.qualified}>", "exec"), names)
        except Exception as error:
            return 1, [f"the example raises {type(error).__name__}: {error}"]
    for edge in record.edges:
        raises = edge.happens.startswith("raises")
        try:
            holds = bool(eval(edge.code, names))
            why = "is not so"
        except Exception as error:
            holds, why = raises, f"raises {type(error).__name__}: {error}"
        else:
            if raises:
                holds, why = False, "does not raise"
        if not holds:
            failures.append(f"{edge.case}: {edge.code} {why}")
    return len(record.edges) + bool(record.usage), failures


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    raw = [x.detach().contiguous().view(torch.uint8) if x.dim() else x.detach().reshape(1).view(torch.uint8)
           for x in (a, b)]  # fmt: skip
    return torch.equal(*raw)
