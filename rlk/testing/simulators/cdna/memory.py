"""Global, buffer and scalar memory instructions: every access lies inside one argument's bytes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.testing.simulators.cdna import access, waits
from rlk.testing.simulators.cdna.access import Step, pair, row, rows, scalar, word
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.storage import Storage, extended, loaded
from rlk.testing.simulators.cdna.text import Instruction, Kind, Operand
from rlk.testing.simulators.cdna.wave import LANES, Wave, every_lane, lanes_of

Array = NDArray[Any]

REGION = 32
"""Each argument's bytes start at a multiple of 2**32, far from any other's."""
_ADDRESS = (1 << 48) - 1
_OFFSET = np.uint64((1 << REGION) - 1)


@dataclass(slots=True)
class Region:
    """The bytes of one argument and what it is called."""

    name: str
    storage: Storage


class Memory:
    """All bytes that a kernel may touch."""

    __slots__ = ("regions",)

    def __init__(self) -> None:
        self.regions: dict[int, Region] = {}

    def add(self, name: str, storage: Storage) -> int:
        """Add bytes; return their address."""
        number = 16 + len(self.regions)
        self.regions[number] = Region(name, storage)
        return number << REGION

    def region(self, number: int, what: str) -> Region:
        """Return the region of addresses; raise Fault for one that is nobody's."""
        if number not in self.regions:
            raise Fault(
                FaultKind.OUT_OF_BOUNDS, f"{what} at 0x{number << REGION:x}..., which is no argument's"
            )
        return self.regions[number]

    def split(self, addresses: Array, count: int, what: str) -> list[tuple[Region, Array, Array]]:
        """Return, for each region that lanes touch, which lanes do and at which offsets, all within it."""
        numbers = addresses >> np.uint64(REGION)
        found = []
        alone = bool((numbers == numbers[0]).all())
        for number in [int(numbers[0])] if alone else np.unique(numbers).tolist():
            region = self.region(number, what)
            mine = np.arange(len(numbers)) if alone else np.flatnonzero(numbers == number)
            at = (addresses[mine] & _OFFSET).astype(np.int64)
            if int(at.max()) + count > region.storage.size:
                lane, last = int(mine[at.argmax()]), int(at.max())
                text = f"{what} of {region.name}: bytes {last} to {last + count - 1} of {region.storage.size}"
                raise Fault(FaultKind.OUT_OF_BOUNDS, f"{text} (active lane {lane})")
            if (at % min(count, 4)).any():
                raise Fault(FaultKind.MISALIGNED, f"{what} of {region.name}: {count} bytes at {int(at[0])}")
            found.append((region, mine, at))
        return found

    def scalar(self, address: int, words: int) -> list[int]:
        """Return words at an address that all lanes share."""
        region, at = self.region(address >> REGION, "scalar load"), address & (1 << REGION) - 1
        if at + 4 * words > region.storage.size:
            text = (
                f"scalar load of {region.name}: bytes {at} to {at + 4 * words - 1} of {region.storage.size}"
            )
            raise Fault(FaultKind.OUT_OF_BOUNDS, text)
        found: list[int] = region.storage.views[4][at // 4 : at // 4 + words].tolist()
        return found


_SIZES = {
    "ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2,
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
}  # fmt: skip
_ACCESS = re.compile(
    rf"(global|buffer|flat)_(load|store)_({'|'.join(sorted(_SIZES, reverse=True))})(_d16_hi|_d16)?$"
)
Addresses = Callable[[Wave], tuple[Any, Any]]


def decode(i: Instruction) -> Step | None:
    """Return what a global, buffer or scalar memory instruction does to a wave; None for an unknown one."""
    if match := re.match(r"s_load_dword(?:x(\d+))?$", i.name):
        return _scalar_load(i, int(match[1] or 1))
    if match := re.match(r"global_atomic_(smax|smin|umax|umin|add|or|and|cmpswap)$", i.name):
        return _atomic(i, match[1])
    match = _ACCESS.match(i.name)
    if match is None or match[1] == "flat" or "lds" in i.modifiers:
        return None
    addresses: Addresses | None
    is_load, count = match[2] == "load", _SIZES[match[3]]
    if match[1] == "global":
        data, address = (i.operands[0], i.operands[1]) if is_load else (i.operands[1], i.operands[0])
        addresses = _global_addresses(i, address, i.operands[2])
    else:
        data, addresses = i.operands[0], _buffer_addresses(i, count)
    if addresses is None:
        return None
    signed = match[3] in ("sbyte", "sshort")
    return _load(i, data, addresses, count, signed) if is_load else _store(i, data, addresses, count)


def _scalar_load(i: Instruction, words: int) -> Step:
    first, base, offset = i.operands[0].index, i.operands[1].index, scalar(i.operands[2])
    destination = waits.registers(i.operands[:1])
    extra = i.number("offset")

    def step(w: Wave) -> None:
        address = w.pair(base) + offset(w) + extra & _ADDRESS
        for part, value in enumerate(w.group.memory.scalar(address & ~3, words)):
            w.set_scalar(first + part, value)
        waits.issue(w, waits.SCALAR_MEMORY, destination)

    return step


def _global_addresses(i: Instruction, address: Operand, base: Operand) -> Addresses:
    """Return 64-bit addresses of lanes: a register pair, or a scalar base and 32-bit offsets."""
    offset = np.uint64(i.number("offset") & (1 << 64) - 1)
    if base.kind is Kind.ABSENT:
        read = pair(address)
        return lambda w: (read(w) + offset, True)
    first, along = base.index, word(address)
    return lambda w: (np.uint64(w.pair(first)) + offset + along(w).astype(np.uint64), True)


def _buffer_addresses(i: Instruction, count: int) -> Addresses | None:
    """Return addresses inside a buffer and which lanes are in its range: others read 0 and write nothing."""
    if "idxen" in i.modifiers:
        return None
    _, along, resource, start = i.operands
    offset, first, base = np.uint64(i.number("offset")), resource.index, scalar(start)
    read = word(along) if "offen" in i.modifiers else None

    def get(w: Wave) -> tuple[Any, Any]:
        at = offset + (np.uint64(0) if read is None else read(w).astype(np.uint64))
        inside = at + np.uint64(count) <= np.uint64(w.scalars[first + 2])
        return np.uint64((w.pair(first) & _ADDRESS) + base(w)) + at, inside

    return get


def _load(i: Instruction, data: Operand, addresses: Addresses, count: int, signed: bool) -> Step:
    out = rows(data, max(1, count // 4))
    destination, what = waits.registers([data]), i.name

    def step(w: Wave) -> None:
        at, inside = addresses(w)
        registers = out(w)
        active = lanes_of(w.mask) if inside is True else np.flatnonzero(w.active & inside)
        if len(active) < w.mask.bit_count():
            outside = np.flatnonzero(w.active & ~np.broadcast_to(inside, LANES))
            loaded(w, registers, outside, np.zeros((len(outside), len(registers)), np.uint32), i)
        if len(active):
            for region, mine, offsets in w.group.memory.split(every_lane(at)[active], count, what):
                words = extended(region.storage.gather(offsets, count), count, signed)
                loaded(w, registers, active[mine], words, i)
        waits.issue(w, waits.VECTOR_MEMORY, destination)

    return step


def _store(i: Instruction, data: Operand, addresses: Addresses, count: int) -> Step:
    read = access.words(data, max(1, count // 4))
    shift, what = np.uint32(16 if i.name.endswith("_d16_hi") else 0), i.name

    def step(w: Wave) -> None:
        at, inside = addresses(w)
        active = lanes_of(w.mask) if inside is True else np.flatnonzero(w.active & inside)
        if len(active):
            words = (read(w)[:, active] >> shift).T
            for region, mine, offsets in w.group.memory.split(every_lane(at)[active], count, what):
                region.storage.scatter(offsets, count, words[mine])
        waits.issue(w, waits.VECTOR_MEMORY, 0)

    return step


_ATOMICS: dict[str, Callable[[Any, Any], Any]] = {
    "smax": lambda a, b: np.maximum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
    "smin": lambda a, b: np.minimum(a.view(np.int32), b.view(np.int32)).view(np.uint32),
    "umax": np.maximum,
    "umin": np.minimum,
    "add": lambda a, b: a + b,
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
}


def _atomic(i: Instruction, name: str) -> Step:
    """An integer atomic; `sc0` (or `glc`, on gfx90a) returns what was there. Lanes go one after the other."""
    returns = bool({"sc0", "glc"} & i.modifiers.keys())
    address, data, base = i.operands[1:] if returns else i.operands
    addresses, change = _global_addresses(i, address, base), _change(name, data)
    out = row(i.operands[0]) if returns else None
    destination = waits.registers(i.operands[:1]) if returns else 0

    def step(w: Wave) -> None:
        at, new = np.broadcast_to(addresses(w)[0], LANES), change(w)
        for lane in np.flatnonzero(w.active).tolist():
            ((region, _, offset),) = w.group.memory.split(at[lane : lane + 1], 4, i.name)
            old = region.storage.gather(offset, 4)
            region.storage.scatter(offset, 4, new(old, lane))
            if out is not None:  # last: the destination may be a source
                out(w)[lane] = old[0, 0]
        waits.issue(w, waits.VECTOR_MEMORY, destination)

    return step


def _change(name: str, data: Operand) -> Callable[[Wave], Callable[[Any, int], Any]]:
    """Return what gives a wave's new value at a place, from the old one and the lane."""
    value = word(data)
    if name != "cmpswap":
        fn = _ATOMICS[name]
        return lambda w: lambda old, lane: fn(old, np.broadcast_to(value(w), LANES)[lane : lane + 1, None])
    expected = word(data, 1)
    return lambda w: lambda old, lane: np.where(old == expected(w)[lane], value(w)[lane], old)
