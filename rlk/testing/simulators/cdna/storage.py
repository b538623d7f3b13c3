"""Bytes of memory by lane: gathers and scatters of one, two, or a multiple of four bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.testing.simulators.cdna.text import Instruction
from rlk.testing.simulators.cdna.wave import Wave, Words

Array = NDArray[Any]

PADDING = 16
_SMALL = {1: np.uint8, 2: np.uint16}


class Storage:
    """Bytes with room behind them, so that views of words exist; accesses are checked against `size`."""

    __slots__ = ("bytes", "size", "views")

    def __init__(self, size: int, content: Array | None = None, fill: int = 0) -> None:
        self.size = size
        self.bytes = np.full(-(-(size + PADDING) // PADDING) * PADDING, fill, np.uint8)
        if content is not None:
            self.bytes[:size] = content
        self.views: dict[int, Array] = {
            1: self.bytes,
            2: self.bytes.view(np.uint16),
            4: self.bytes.view(np.uint32),
        }

    def gather(self, at: Array, count: int) -> Words:
        """Return `count` bytes at each address as words[lane, word]; zeros fill up fewer than four."""
        if count in _SMALL:
            found: Words = self.views[count][at // count].astype(np.uint32)
            return found[:, None]
        words: Words = self.views[4][at[:, None] // 4 + np.arange(count // 4)]
        return words

    def scatter(self, at: Array, count: int, words: Words) -> None:
        """Write `count` bytes of words[lane, word] at each address; the highest lane wins."""
        if count in _SMALL:
            self.views[count][at // count] = words[:, 0].astype(_SMALL[count])
        else:
            self.views[4][at[:, None] // 4 + np.arange(count // 4)] = words


def extended(words: Words, count: int, signed: bool) -> Words:
    """Extend one or two bytes with their sign."""
    if not signed:
        return words
    shift = np.int32(32 - 8 * count)
    return (words.view(np.int32) << shift >> shift).view(np.uint32)


def loaded(w: Wave, rows: Words, lanes: Array, words: Words, i: Instruction) -> None:
    """Write loaded words into the destination's registers; d16 loads write one half and keep the other."""
    if i.name.endswith("_d16_hi"):
        rows[0][lanes] = rows[0][lanes] & np.uint32(0xFFFF) | words[:, 0] << np.uint32(16)
    elif i.name.endswith("_d16"):
        rows[0][lanes] = rows[0][lanes] & np.uint32(0xFFFF0000) | words[:, 0] & np.uint32(0xFFFF)
    else:
        rows[:, lanes] = words.T
