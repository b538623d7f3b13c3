"""Limits of a block of threads on the devices that TileLang writes for."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.dotmodel import DotModel
from rlk.target.cdna3 import LIMITS


@dataclass(frozen=True, slots=True)
class Block:
    """shared: bytes of shared memory that a kernel may declare. threads: of a block.

    dots: the rules of the sums of its matrix instructions, as programs say them. ring: bytes of shared memory
    that a launch may ask for, those that a kernel declares among them; 0 where it may ask for none.
    """

    shared: int
    threads: int
    dots: frozenset[DotModel]
    ring: int = 0


_STATIC = 48 * 1024  # of CUDA: more is asked of the driver

BLOCKS: dict[str, Block] = {
    # programs say chain16 of 16-bit factors everywhere: what it is there, `native` says
    **{
        name: Block(found.shared, found.threads, frozenset({DotModel.CHAIN16, DotModel.FMA}))
        for name, found in LIMITS.items()
    },
    # factors of f32 would lose 13 of their 24 bits there
    "sm_90a": Block(_STATIC, 1024, frozenset({DotModel.CHAIN16}), ring=227 * 1024),
}
