"""Limits of a workgroup on CDNA devices: LDS, registers, lanes."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.errors import Code, UnsupportedError


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one workgroup, or of one lane.

    shared: bytes of LDS of a workgroup. threads: lanes of a workgroup. vector: 32-bit registers of a lane,
    accumulation registers included (one file of both); scalar: of a wave.
    """

    shared: int
    threads: int = 1024
    vector: int = 512
    scalar: int = 102


LIMITS: dict[str, Limits] = {
    "gfx90a": Limits(shared=64 * 1024),
    "gfx942": Limits(shared=64 * 1024),
    "gfx950": Limits(shared=160 * 1024),
}


def limits(target: str) -> Limits:
    """Return the limits of a CDNA target; raise UnsupportedError for other targets."""
    if target not in LIMITS:
        raise UnsupportedError(
            Code.UNSUPPORTED,
            what="this device",
            backend="CDNA",
            target=target,
            alternatives=", ".join(LIMITS),
        )
    return LIMITS[target]
