"""Registers with loads in flight, which a wave may not touch before s_waitcnt."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlk.testing.simulators.cdna.access import Step
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.text import Instruction, Kind, Operand
from rlk.testing.simulators.cdna.wave import REGISTERS, SCALARS, Wave

VECTOR_MEMORY, LDS, SCALAR_MEMORY = "vmcnt", "lgkmcnt", "smem"
"""What a load is counted by; scalar loads share lgkmcnt with LDS but come back in any order."""

LDS_ACCESS = 1 << (SCALARS + 2 * REGISTERS)
"""Stands in a set of registers for a read or write of LDS that is under way."""

_FIRST = {Kind.SCALAR: 0, Kind.VECTOR: SCALARS, Kind.ACCUMULATOR: SCALARS + REGISTERS}


def registers(operands: Iterable[Operand]) -> int:
    """Return the set of registers that operands name, as a number with a bit for each."""
    found = 0
    for operand in operands:
        if operand.kind in _FIRST:
            found |= ((1 << operand.width) - 1) << _FIRST[operand.kind] + operand.index
    return found


def issue(w: Wave, counter: str, destination: int) -> None:
    """Note a memory access that is under way, and the registers that it will write."""
    w.loads[counter].append(destination)
    w.pending |= destination


def decode(i: Instruction) -> Step | None:
    """Return what s_waitcnt does to a wave; None for another instruction."""
    if i.name != "s_waitcnt":
        return None
    counts = {name: int(n) for name, n in re.findall(r"(\w+)\((\d+)\)", i.modifiers["counts"])}
    if not counts:
        counts = {VECTOR_MEMORY: 0, LDS: 0} if i.modifiers["counts"] == "0" else {}
    if not counts:
        raise Fault(FaultKind.UNKNOWN, f"the counts {i.modifiers['counts']!r} are not emulated")

    def step(w: Wave) -> None:
        if VECTOR_MEMORY in counts:
            _retire(w, VECTOR_MEMORY, counts[VECTOR_MEMORY])
        if LDS in counts:
            _retire_shared(w, counts[LDS])
        w.pending = _pending(w)

    return step


def _retire(w: Wave, counter: str, left: int) -> None:
    """Loads of one kind come back in order: all but the last ones have."""
    queue = w.loads[counter]
    while len(queue) > left:
        queue.popleft()


def _retire_shared(w: Wave, left: int) -> None:
    if left == 0:
        w.loads[SCALAR_MEMORY].clear()
    if not w.loads[SCALAR_MEMORY]:  # otherwise the count does not say which ones are back
        _retire(w, LDS, left)


def _pending(w: Wave) -> int:
    found = 0
    for queue in w.loads.values():
        for destination in queue:
            found |= destination
    return found
