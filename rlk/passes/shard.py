"""Sharding of an axis over ranks: the program of one rank, with its share of the pieces."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from rlk.errors import Code, LaunchError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Program

Part = TypeVar("Part")


def shard(program: Program, axis: str, ranks: int) -> Program:
    """Return the traced program of one of `ranks` ranks; its extent of the axis is that of the shard.

    Each rank has an equal number of whole pieces of an axis with `split`, so that merging the ranks' results
    pairwise is the order of the unsharded program. Raises LaunchError if `ranks` does not divide the pieces.
    """
    return program if ranks == 1 else _replaced(program, axis, ranks)


def _replaced(part: Part, axis: str, ranks: int) -> Part:
    """Return a part of a program with the pieces of one rank."""
    if isinstance(part, Axis):
        if part.name != axis or part.split is None:
            return part
        if part.split % ranks:
            wanted = f"a divisor of {part.split}"
            raise LaunchError(Code.ARG_VALUE, op="shard", name="ranks", value=ranks, wanted=wanted)
        return replace(part, split=part.split // ranks)
    if isinstance(part, tuple):
        return tuple(_replaced(item, axis, ranks) for item in part)  # type: ignore[return-value]
    if is_dataclass(part) and not isinstance(part, type):
        old = {f.name: getattr(part, f.name) for f in fields(part) if f.init}
        new = {name: _replaced(value, axis, ranks) for name, value in old.items()}
        return replace(part, **{n: v for n, v in new.items() if v is not old[n]}) if new != old else part
    return part
