"""DTensor support: replicated and row-sharded calls of row-independent operators; others are refused."""

from __future__ import annotations

import math as numbers
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.lang.op import Op, Variant
from rlk.lang.types import TensorType
from rlk.passes.row_independence import rows_are_independent
from rlk.runtime.binding.invocation import Scalars, Tensors, row_axis
from rlk.runtime.binding.selection import DTypes, Statics, selected
from rlk.runtime.call.library import registered

Call = Callable[[Op, Tensors, Scalars, Statics, str | None], Tensors]
"""How an operator is run on tensors of this process."""
Leads = dict[str, int]
"""How many leading dims of a tensor are dims of rows; tensors without rows are not there."""


def across(
    call: Call, op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None
) -> Tensors:
    """Run an operator on the local shards of its tensors, and return DTensors with their placements.

    Inputs are copies (Replicate; a plain tensor counts as one), or all tensors of rows are sharded along the
    same dim of the rows (Shard), where each row's results depend on it alone. No process waits for another.
    Raises LaunchError for anything else, and where a gradient would sum the rows of all processes.
    """
    from torch.distributed.tensor import DTensor

    spread: dict[str, Any] = {n: t for n, t in tensors.items() if isinstance(t, DTensor)}
    first = next(iter(spread.values()))
    leads = _leads(op, tensors)
    # any tensor of rows has the placements: that all agree is checked
    whose = next((t for n, t in spread.items() if n in leads), first)
    for name, tensor in spread.items():
        _check(op.name, name, tensor, whose, leads.get(name, 0))
    shared = any(p.is_shard() for p in whose.placements)
    if shared:
        _check_shared(op, tensors, spread, leads, tuple(scalars), statics)
    local = {n: spread[n].to_local() if n in spread else t for n, t in tensors.items()}
    made = call(op, local, scalars, statics, math)
    return {n: _placed(x, whose, next(iter(leads.values())) if shared else 0) for n, x in made.items()}


def _leads(op: Op, tensors: Tensors) -> Leads:
    rows, found = row_axis(op), {}
    for name, tensor in tensors.items():
        type = op.formal(name).type
        if rows is not None and isinstance(type, TensorType) and type.axes[:1] == (rows,):
            found[name] = tensor.dim() - len(type.axes) + 1
    return found


def _check(op: str, name: str, tensor: Any, whose: Any, lead: int) -> None:
    """Refuse a tensor on another mesh, with a Partial placement, or sharded along an illegal dim."""
    if tensor.device_mesh != whose.device_mesh:
        raise _refused(op, name, tensor, f"others lie on {whose.device_mesh}")
    for mine, wanted in zip(tensor.placements, whose.placements, strict=True):
        if mine.is_partial():
            raise _refused(op, name, tensor, "a term of a sum is no input")
        if mine.is_shard() and (not lead or type(mine).__name__ != "Shard" or not 0 <= mine.dim < lead):
            whole = f"only the first {lead} dims may be shared out" if lead else "it is read as a whole"
            raise _refused(op, name, tensor, whole)
        if lead and mine != wanted:
            raise _refused(op, name, tensor, f"other tensors of these rows are {list(whose.placements)}")


def _check_shared(
    op: Op, tensors: Tensors, spread: Tensors, leads: Leads, scalars: tuple[str, ...], statics: Statics
) -> None:
    """Refuse rows in shards where one row's results need others, or all of them have one gradient."""
    dtypes = tuple((name, t.dtype) for name, t in tensors.items())
    if not _alone(op.qualified, dtypes, scalars, tuple(statics.items())):
        name = next(n for n in leads if n in spread)
        raise _refused(op.name, name, spread[name], "a row's results depend on other rows")
    for name, tensor in tensors.items():
        if name in leads and name not in spread:
            raise _refused(op.name, name, tensor, "a plain tensor, where others of its rows are in shards")
        if name not in leads and tensor.requires_grad and torch.is_grad_enabled():
            raise _refused(op.name, name, tensor, "its gradient would sum the rows of all processes")


def _alone(
    op: str, dtypes: DTypes, scalars: tuple[str, ...], statics: tuple[tuple[str, object], ...]
) -> bool:
    spec = registered(op)
    return _rows_alone(spec, selected(spec, dtypes, scalars, dict(statics), None).variant)


_alone._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as `_names` of the library


@cache
def _rows_alone(spec: Op, variant: Variant) -> bool:
    rows = row_axis(spec)
    return rows is not None and rows_are_independent(spec.trace(variant), rows)


def _placed(local: torch.Tensor, whose: Any, lead: int) -> torch.Tensor:
    """Return results as a DTensor: their first dims are rows, `lead` of them in shards, and all of these."""
    from torch.distributed.tensor import DTensor

    shape = (*whose.shape[:lead], *local.shape[lead:])
    strides = tuple(numbers.prod(shape[i + 1 :]) for i in range(len(shape)))
    placed: torch.Tensor = DTensor.from_local(
        local, whose.device_mesh, whose.placements, run_check=False, shape=torch.Size(shape), stride=strides
    )
    return placed


def _refused(op: str, name: str, tensor: Any, why: str) -> LaunchError:
    found = list(getattr(tensor, "placements", ["no DTensor"]))
    return LaunchError(Code.ARG_PLACED, op=op, name=name, got=found, why=why)
