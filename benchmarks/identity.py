"""Id, tier and schedule of a timed row, and whether its results equal the oracle's."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.turns import aside
from rlk.testing.bits import differing


def describe(decision: Any) -> Mapping[str, str]:
    """Return backend, numerics_id, tier and schedules of what `op.explain(*args)` says that a call runs."""
    tiers = {found.value for _, found in decision.tiers}
    return {
        "backend": decision.backend,
        "numerics_id": decision.numerics_id,
        "tier": "exact" if tiers == {"exact"} else "pinned",
        "schedule": "; ".join(decision.schedules) or decision.backend,
    }


def oracle(op: Any, device: torch.device, *args: Tensor, **options: Any) -> Any:
    """Call an operator on CPU copies, which is the oracle, with the exp2 of a device."""
    if "math" in inspect.signature(op).parameters:
        options["math"] = op.explain(device).math.value
    there = [arg.cpu() for arg in args]
    options = {n: x.detach().cpu() if isinstance(x, Tensor) else x for n, x in options.items()}
    with aside():
        return op(*there, **options)


def compare(op: Any, got: Sequence[Tensor], *args: Tensor, **options: Any) -> int:
    """Count the values that differ from the oracle's."""
    want = oracle(op, args[0].device, *(arg.detach() for arg in args), **options)
    there = [want] if isinstance(want, Tensor) else [value for value in want if value is not None]
    return sum(differing(a.cpu(), b) for a, b in zip(got, there, strict=True))


def differing_there(got: Tensor, want: Tensor) -> int:
    """Count the values of 16 bits whose patterns differ, on the device: too many to move."""
    return int((got.view(torch.int16) != want.view(torch.int16)).sum())
