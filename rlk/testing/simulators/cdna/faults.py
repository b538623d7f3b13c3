"""Faults of the emulator: the reason why a device would misbehave, and the place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """A kind of fault and where to look for its cause."""

    OUT_OF_BOUNDS = (
        "an access lies outside of every argument: compare the mask of the access with the extents"
    )
    MISALIGNED = (
        "an address is no multiple of the access's size: the caller or the divisibility hint is wrong"
    )
    RACE = "two waves touch the same bytes of LDS between two barriers: put a barrier between the accesses"
    UNINITIALISED = (
        "LDS is read that nobody has written: check the store's mask and the barrier before the load"
    )
    UNFINISHED = (
        "a load has not come back yet: the wait (s_waitcnt) before this instruction is missing or weak"
    )
    BARRIER = (
        "waves of a workgroup disagree on a barrier: it must not stand under a condition that waves differ in"
    )
    UNKNOWN = "the emulator does not know this instruction: add its semantics to rlk/testing/simulators/cdna"
    UNPUBLISHED = "no rule of this device's sums is published: take whole numbers, or another's sums"
    ARGUMENTS = (
        "the call does not fit the kernel's metadata: pass one array or scalar for each explicit argument"
    )
    RESOURCES = "the kernel asks for more than the device has: use a smaller tile"
    ENDLESS = (
        "a wave has executed more instructions than allowed: a loop does not end, or the limit is too low"
    )


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a fault: kernel, workgroup, wave, and the assembly line with its number."""

    kernel: str
    workgroup: tuple[int, int, int]
    wave: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.kernel}, workgroup {self.workgroup}, wave {self.wave}, line {self.line}: {self.text}"


class Fault(RuntimeError):
    """A kernel does what no device would do right; `place` is known once the kernel runs."""

    def __init__(self, kind: FaultKind, what: str, place: Place | None = None) -> None:
        self.kind, self.what, self.place = kind, what, place
        where = f"{place}\n    " if place else ""
        super().__init__(f"{where}{what}\n    {kind.value}   [{kind.name}]")

    def at(self, place: Place) -> Fault:
        """Return the fault with its place."""
        return Fault(self.kind, self.what, place)
