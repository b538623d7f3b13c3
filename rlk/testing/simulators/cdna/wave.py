"""State of a wave of 64 lanes: registers, masks, and outstanding loads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.testing.simulators.cdna.text import EXEC

Array = NDArray[Any]
Words = NDArray[np.uint32]

LANES = 64
LANE = np.arange(LANES)
ALL = (1 << LANES) - 1
WORD = (1 << 32) - 1
REGISTERS = 512
SCALARS = 128


@lru_cache(maxsize=1 << 14)
def bits_of(mask: int) -> NDArray[np.bool_]:
    """Return a mask of 64 lanes as truth values, which nobody may change."""
    packed = np.frombuffer(mask.to_bytes(8, "little"), np.uint8)
    found = np.unpackbits(packed, bitorder="little").view(np.bool_)
    found.flags.writeable = False
    return found


def mask_of(bits: NDArray[np.bool_]) -> int:
    """Return truth values of 64 lanes as a mask."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


@lru_cache(maxsize=1 << 14)
def lanes_of(mask: int) -> NDArray[np.intp]:
    """Return the lanes of a mask, which nobody may change."""
    found = np.flatnonzero(bits_of(mask))
    found.flags.writeable = False
    return found


def every_lane(value: Any) -> Any:
    """Return a value of each lane, which nobody may change: one that all share is repeated."""
    return value if value.shape else np.full(LANES, value)


class Wave:
    """One wave; `number` counts within its workgroup.

    Registers that nobody has set hold what a seed gives, so that a use of one shows between schedules. Waves
    of a workgroup have the same: Triton lets several waves compute and store one value, undefined ones too.
    """

    __slots__ = (
        "accumulators", "active", "arrived", "condition", "done", "executed", "full", "group", "loads",
        "mask", "next", "number", "pending", "scalars", "vectors",
    )  # fmt: skip

    def __init__(self, number: int, lanes: int, group: Any, seed: Sequence[int]) -> None:
        garbage = np.random.default_rng(seed)
        self.number, self.group = number, group
        self.scalars = garbage.integers(0, 1 << 32, SCALARS).tolist()
        registers = garbage.integers(0, 1 << 32, (2, REGISTERS, 1), np.uint32)
        self.vectors, self.accumulators = (np.repeat(r, LANES, 1) for r in registers)
        self.condition = 0
        self.next = 0
        self.executed = 0
        self.done = self.arrived = False
        self.pending = 0
        self.loads: dict[str, deque[int]] = {"vmcnt": deque(), "lgkmcnt": deque(), "smem": deque()}
        self.enable((1 << lanes) - 1)

    def enable(self, mask: int) -> None:
        """Set EXEC: the lanes that vector instructions write."""
        self.scalars[EXEC], self.scalars[EXEC + 1] = mask & WORD, mask >> 32
        self.mask, self.full = mask, mask == ALL
        self.active = bits_of(mask)

    def pair(self, index: int) -> int:
        """Return the 64 bits of two scalar registers."""
        low: int = self.scalars[index]
        return low | self.scalars[index + 1] << 32

    def set_scalar(self, index: int, value: int) -> None:
        """Write 32 bits."""
        self.scalars[index] = value & WORD
        if index >= EXEC:
            self.enable(self.pair(EXEC))

    def set_pair(self, index: int, value: int) -> None:
        """Write 64 bits."""
        if index == EXEC:
            self.enable(value & ALL)
        else:
            self.scalars[index], self.scalars[index + 1] = value & WORD, value >> 32 & WORD

    def write(self, row: Words, value: Any) -> None:
        """Write the active lanes of a vector register."""
        if self.full:
            row[:] = value
        else:
            np.copyto(row, value, where=self.active)

    def set_mask(self, index: int, truth: Any) -> None:
        """Write a comparison's result; lanes that are not active have 0."""
        self.set_pair(index, mask_of(truth if self.full and truth.shape else truth & self.active))
