"""LDS instructions: bounds checks, and races between barriers as faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.testing.simulators.cdna import access, lanes, waits
from rlk.testing.simulators.cdna.access import Step, rows, word, written
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.storage import Storage, extended, loaded
from rlk.testing.simulators.cdna.text import Instruction, Operand
from rlk.testing.simulators.cdna.wave import LANES, Wave, Words, every_lane, lanes_of

Array = NDArray[Any]


class Shared:
    """A workgroup's LDS: bytes, whether each was written, and which waves touched it since the last barrier.

    writers, readers: for each byte a set of waves, as bits.
    """

    __slots__ = ("filled", "readers", "storage", "touched", "writers")

    def __init__(self, size: int) -> None:
        self.storage = Storage(size, fill=0xFF)
        self.filled = np.zeros(size, bool)
        self.writers, self.readers = (np.zeros(size, np.uint16) for _ in range(2))
        self.touched = 0

    def barrier(self) -> None:
        """Order all accesses so far before later ones, for all waves."""
        self.writers[:] = 0
        self.readers[:] = 0

    def read(self, w: Wave, at: Array, count: int) -> Words:
        """Return `count` bytes at each address; raise Fault for bytes that nobody has written yet."""
        index = self.index(at, count)
        if not self.filled[index].all():
            raise Fault(FaultKind.UNINITIALISED, f"LDS byte {int(index[~self.filled[index]][0])}")
        mine, writers = np.uint16(1 << w.number), self.writers[index]
        # a wave that wrote a byte itself reads what it wrote: the others wrote the same
        refuse((writers != 0) & (writers & mine == 0), index, writers, "writes")
        self.readers[index] |= mine
        return self.storage.gather(at, count)

    def write(self, w: Wave, at: Array, count: int, words: Words) -> None:
        """Write `count` bytes at each address; raise Fault where another wave would see a byte change."""
        index = self.index(at, count)
        mine, before = np.uint16(1 << w.number), self.writers[index]
        writers, readers = before & ~mine, self.readers[index] & ~mine
        if writers.any() or readers.any():
            changes = ~self.filled[index] | self._differs(index, at, count, words)
            refuse(changes & (writers != 0), index, writers, "writes")
            refuse(changes & (readers != 0), index, readers, "reads")
        self.writers[index] = before | mine
        self.filled[index] = True
        self.storage.scatter(at, count, words)

    def _differs(self, index: Array, at: Array, count: int, words: Words) -> Array:
        """Return which bytes would change; of a word, a NaN may take the place of another one."""
        new = words.astype("<u4").view(np.uint8).reshape(len(at), -1)[:, :count]
        differs = self.storage.bytes[index] != new
        if count >= 4 and differs.any():
            old = self.storage.gather(at, count)
            same = np.isnan(old.view(np.float32)) & np.isnan(words.view(np.float32))
            differs &= ~np.repeat(same, 4, 1)
        found: Array = differs
        return found

    def index(self, at: Array, count: int) -> Array:
        """Return the places of all bytes; raise Fault for one out of bounds, or an address not aligned."""
        end = int(np.maximum.reduce(at)) + count
        some = int(np.bitwise_or.reduce(at))  # has the sign and the low bits that some address has
        if end > self.storage.size or some < 0:
            raise Fault(FaultKind.OUT_OF_BOUNDS, f"LDS byte {end - 1} of {self.storage.size}")
        if some % min(count, 4):
            raise Fault(
                FaultKind.MISALIGNED, f"{count} bytes of LDS at {int(at[(at % min(count, 4)) != 0][0])}"
            )
        self.touched = max(self.touched, end)
        places: Array = at[:, None] + np.arange(count)
        return places


def refuse(wrong: Array, index: Array, waves: Array, verb: str) -> None:
    """Raise Fault where an access is wrong, naming the byte and a wave that touches it too."""
    if wrong.any():
        byte, others = int(index[wrong][0]), int(waves[wrong][0])
        wave = (others & -others).bit_length() - 1
        raise Fault(FaultKind.RACE, f"LDS byte {byte}, which wave {wave} also {verb}")


_ACCESS = re.compile(r"ds_(read|write)(2st64|2)?_([bui])(8|16|32|64|96|128)(_d16_hi|_d16)?$")


def decode(i: Instruction) -> Step | None:
    """Return what an LDS instruction does to a wave; None for one that is not known."""
    if i.name in _PERMUTES:
        return _PERMUTES[i.name](i)
    match = _ACCESS.match(i.name)
    if match is None or "gds" in i.modifiers:
        return None
    count = int(match[4]) // 8
    unit = count * (64 if match[2] == "2st64" else 1)
    offsets = [unit * i.number("offset0"), unit * i.number("offset1")] if match[2] else [i.number("offset")]
    if match[1] == "read":
        return _read(i, count, offsets, match[3] == "i")
    return _write(i, count, offsets)


def _read(i: Instruction, count: int, offsets: list[int], signed: bool) -> Step:
    address, words = word(i.operands[1]), max(1, count // 4)
    out = [rows(i.operands[0], words, words * turn) for turn in range(len(offsets))]
    destination = waits.registers(i.operands[:1]) | waits.LDS_ACCESS

    def step(w: Wave) -> None:
        active = lanes_of(w.mask)
        if len(active):
            shared: Shared = w.group.shared
            base = every_lane(address(w))[active].astype(np.int64)
            for offset, registers in zip(offsets, out, strict=True):
                found = extended(shared.read(w, base + offset, count), count, signed)
                loaded(w, registers(w), active, found, i)
        waits.issue(w, waits.LDS, destination)

    return step


def _write(i: Instruction, count: int, offsets: list[int]) -> Step:
    address, words = word(i.operands[0]), max(1, count // 4)
    values = [_stored(i.operands[1 + turn], words, i.name) for turn in range(len(offsets))]

    def step(w: Wave) -> None:
        active = lanes_of(w.mask)
        if len(active):
            shared: Shared = w.group.shared
            base = every_lane(address(w))[active].astype(np.int64)
            for offset, value in zip(offsets, values, strict=True):
                shared.write(w, base + offset, count, value(w)[active])
        waits.issue(w, waits.LDS, waits.LDS_ACCESS)

    return step


def _stored(operand: Operand, words: int, name: str) -> Callable[[Wave], Array]:
    """Return the reader of what a store writes, as words[lane, word]."""
    read = access.words(operand, words)
    shift = np.uint32(16 if name.endswith("_d16_hi") else 0)
    return lambda w: (read(w) >> shift).T


# --- permutes --------------------------------------------------------------------------------------------


def _pull(i: Instruction) -> Step:
    """ds_bpermute_b32: each lane reads the lane that its address names; a lane that is not active gives 0."""
    write, address, value = written(i), word(i.operands[1]), word(i.operands[2])
    offset, destination = np.uint32(i.number("offset")), waits.registers(i.operands[:1])

    def step(w: Wave) -> None:
        place = every_lane(address(w) + offset) >> np.uint32(2) & np.uint32(LANES - 1)
        write(w, np.where(w.active, value(w), np.uint32(0))[place])
        waits.issue(w, waits.LDS, destination)

    return step


def _push(i: Instruction) -> Step:
    """ds_permute_b32: each active lane writes to the lane that its address names; the highest one wins."""
    write, address, value = written(i), word(i.operands[1]), word(i.operands[2])
    offset, destination = np.uint32(i.number("offset")), waits.registers(i.operands[:1])

    def step(w: Wave) -> None:
        place = every_lane(address(w) + offset) >> np.uint32(2) & np.uint32(LANES - 1)
        found = np.zeros(LANES, np.uint32)
        found[place[w.active]] = every_lane(value(w))[w.active]
        write(w, found)
        waits.issue(w, waits.LDS, destination)

    return step


def _swizzle(i: Instruction) -> Step:
    write, value, place = written(i), word(i.operands[1]), lanes.swizzled(i)
    destination = waits.registers(i.operands[:1])

    def step(w: Wave) -> None:
        write(w, np.where(w.active, value(w), np.uint32(0))[place])
        waits.issue(w, waits.LDS, destination)

    return step


_PERMUTES: dict[str, Callable[[Instruction], Step]] = {
    "ds_bpermute_b32": _pull,
    "ds_permute_b32": _push,
    "ds_swizzle_b32": _swizzle,
}
