"""Steps of a tree reduction by location of their terms: thread list, lanes, or warps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rlk.lower.common.thread_values import ThreadValues

LANE_BITS = 5  # of a thread's number: those of its place in the warp


class Where(Enum):
    """Location of the two terms of a tree step."""

    LIST = "in the list of a thread"
    RECURSIVE_HALVING = "in two lanes: each sends half of its list and reduces the other half"
    LANES = "in two lanes"
    WARPS = "in warps"


@dataclass(frozen=True, slots=True)
class Step:
    """A tree step, or several through shared memory; apart: the strides between their terms."""

    where: Where
    strides: tuple[int, ...]


def steps(
    thread_values: ThreadValues, lists: Sequence[ThreadValues], order: Sequence[int], *, halving: bool
) -> list[Step]:
    """Return the steps that pair the index bits of an axis away in this order.

    lists: layouts of a thread's list, the last fastest. halving: allow recursive halving between two lanes,
    which exchanges half as many elements; the list bit that tells the two halves then becomes a lane bit.
    """
    where = dict(thread_values.threads)
    left = [(each.axis, bit) for each in reversed(lists) for bit in each.listed]
    found: list[Step] = []
    for bit in order:
        at = where.get(bit)
        if at is None:
            place = left.index((thread_values.axis, bit))
            left.pop(place)
            found.append(Step(Where.LIST, (1 << place,)))
        elif at >= LANE_BITS:
            before = found.pop().strides if found and found[-1].where is Where.WARPS else ()
            found.append(Step(Where.WARPS, (*before, 1 << at)))
        elif halving and left and left[-1][0] == thread_values.axis:
            where[left.pop()[1]] = at
            found.append(Step(Where.RECURSIVE_HALVING, (1 << at,)))
        else:
            found.append(Step(Where.LANES, (1 << at,)))
    return found
