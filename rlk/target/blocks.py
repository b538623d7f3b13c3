"""Limits of a thread block on the targets of TileLang."""

from __future__ import annotations

from dataclasses import dataclass

from rlk.ir.dotmodel import DotModel
from rlk.target.cdna3 import LIMITS


@dataclass(frozen=True, slots=True)
class Block:
    """Limits of a thread block.

    shared: bytes of shared memory that a kernel may declare. threads: of a block. dots: the dot models of its
    matrix instructions, by their names in programs. ring: bytes of shared memory that a launch may request,
    those that a kernel declares included; 0: none.
    """

    shared: int
    threads: int
    dots: frozenset[DotModel]
    ring: int = 0


_STATIC = 48 * 1024  # the limit of CUDA without an opt-in by a driver call

BLOCKS: dict[str, Block] = {
    # programs have chain16 for 16-bit factors on every target: `native` has the model of the matrix unit
    **{
        name: Block(found.shared, found.threads, frozenset({DotModel.CHAIN16, DotModel.FMA}))
        for name, found in LIMITS.items()
    },
    # factors of f32 would lose 13 of their 24 bits there
    "sm_90a": Block(_STATIC, 1024, frozenset({DotModel.CHAIN16}), ring=227 * 1024),
}
