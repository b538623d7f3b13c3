"""What a row says of the numbers it timed: id, tier and schedule, and whether they are the oracle's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rlk.testing.bits import differing


def describe(op: Any, *args: Any, **options: Any) -> Mapping[str, str]:
    """Return numerics_id, tier and schedule of a call, as far as the operator tells them."""
    device = next(arg.device for arg in args if isinstance(arg, Tensor))
    return {
        "numerics_id": str(op.numerics_id(device)),
        "tier": str(op.tier(device)),
        "schedule": schedule_of(op.explain(*args, **options)),
    }


def schedule_of(decision: Any) -> str:
    """Return the schedule that a decision names, on one line."""
    return " ".join(str(getattr(decision, "schedule", decision)).split())


def compare(op: Any, got: Sequence[Tensor], names: Sequence[str], *args: Any, **options: Any) -> int | None:
    """Count the values that differ from the oracle's for the same target, None where it has none."""
    oracle = getattr(op, "oracle", None)
    if oracle is None:
        return None
    device = got[0].device
    want = oracle(*(arg.cpu() if isinstance(arg, Tensor) else arg for arg in args), device=device, **options)
    return sum(differing(value.cpu(), getattr(want, name)) for name, value in zip(names, got))
