"""Order of the waves of a workgroup: bound by barriers, otherwise the schedule's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.wave import Wave

FOREVER = 1 << 62
LONGEST = 64
"""Instructions that a wave runs at most before another one's turn, in schedules that interleave."""

Run = Callable[[Wave, int], None]  # up to so many instructions, or to a barrier or the end


def groups(count: int, schedule: int) -> Sequence[int]:
    """Return the order in which workgroups run: the first of a random one is never before the last."""
    match schedule:
        case 0:
            return range(count)
        case 1:
            return range(count)[::-1]
        case _:
            order: list[int] = np.random.default_rng(schedule).permutation(count).tolist()
            return order if count < 2 or order[0] > order[-1] else order[::-1]


def drive(waves: Sequence[Wave], schedule: int, run: Run, barrier: Callable[[], None]) -> None:
    """Run the waves of a workgroup to their ends.

    Schedule 0 runs each wave as far as it can in ascending order, schedule 1 in descending order; every other
    number seeds a random interleaving, wave by wave and slice by slice.
    """
    random = np.random.default_rng(schedule)
    while live := [w for w in waves if not w.done]:
        ready = [w for w in live if not w.arrived]
        if not ready:
            _pass(live, waves, barrier)
            continue
        match schedule:
            case 0:
                run(ready[0], FOREVER)
            case 1:
                run(ready[-1], FOREVER)
            case _:
                run(ready[random.integers(len(ready))], int(random.integers(1, LONGEST)))


def _pass(live: Sequence[Wave], waves: Sequence[Wave], barrier: Callable[[], None]) -> None:
    """Let all waves past the barrier at which they stand; it must be the same one for each."""
    places = {w.next for w in live}
    if len(places) > 1 or len(live) < len(waves):
        ended = f", {len(waves) - len(live)} have ended" if len(live) < len(waves) else ""
        raise Fault(FaultKind.BARRIER, f"waves stand at {len(places)} different barriers{ended}")
    barrier()
    for w in live:
        w.arrived = False
