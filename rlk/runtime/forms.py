"""Which form of a program a lowering writes: blocks that walk all pieces, or launches of one each."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.errors import UnsupportedError
from rlk.ir.nodes import Program
from rlk.lower.common.emitted import Emitted, Signature
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

Schedules = tuple[Schedule, ...]


def by_cute(
    program: Program, chosen: Schedules, whole: Program, on: Target, signature: Signature,
    extents: Mapping[str, int], identity: str, schedules: Schedules | None = None,
) -> tuple[Program, Schedules, Emitted]:  # fmt: skip
    """Return what is lowered, its schedules, and its source; raise UnsupportedError where there is no form.

    program, chosen: as another lowering launches it. whole: the same, specialized and not swept; its blocks
    walk the pieces of what they contract, where heuristics want that and the lowering can, or where
    `schedules` are for it.
    """
    from rlk.lower import cute
    from rlk.schedule.heuristics import choose
    from rlk.schedule.hopper import by_warpgroups, in_turn

    def written(what: Program, placed: Schedules) -> tuple[Program, Schedules, Emitted]:
        return what, placed, cute.lower(what, placed, on, signature, numerics_id=identity)

    if schedules is not None:
        return written(whole if walks_pieces(whole, schedules) else program, schedules)
    if in_turn(whole, on, extents):
        alone = tuple(choose(k, on, signature, extents) for k in whole.kernels)
        try:
            return written(whole, by_warpgroups(whole, alone, on, extents))
        except UnsupportedError:
            pass  # pieces that it launches one after the other
    return written(program, by_warpgroups(program, chosen, on, extents))


def walks_pieces(whole: Program, schedules: Schedules) -> bool:
    """Return whether schedules are for a program whose blocks walk all pieces: their number says so."""
    from rlk.schedule.hopper import walks

    return walks(whole) and len(schedules) == len(whole.kernels)


def by_tilelang(
    program: Program, chosen: Schedules, on: Target, signature: Signature, extents: Mapping[str, int],
    identity: str, schedules: Schedules | None = None,
) -> tuple[Schedules, Emitted]:  # fmt: skip
    """Return the schedules of a program in TileLang, and its source; raise UnsupportedError without a form.

    program, chosen: as another lowering launches it. schedules: instead of what heuristics choose.
    """
    from rlk.lower import tilelang
    from rlk.schedule.waves import by_waves

    placed = schedules or by_waves(program, chosen, extents, on)
    return placed, tilelang.lower(program, placed, on, signature, numerics_id=identity)
