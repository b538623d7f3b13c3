"""Operand reads and writes of instructions: each decoded once, to a function of the wave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlk.testing.simulators.cdna import lanes
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.text import Instruction, Kind, Operand
from rlk.testing.simulators.cdna.wave import WORD, Wave, Words, every_lane

Step = Callable[[Wave], None]
Read = Callable[[Wave], Any]
Write = Callable[[Wave, Any], None]

SIGN = np.uint32(0x80000000)
REST = np.uint32(0x7FFFFFFF)


def unknown(operand: Operand, what: str) -> Fault:
    """Return the fault of an operand that an instruction cannot have."""
    return Fault(FaultKind.UNKNOWN, f"{operand.text!r} is no {what}")


# --- scalars ---------------------------------------------------------------------------------------------


def scalar(operand: Operand) -> Callable[[Wave], int]:
    """Return the reader of a source of 32 bits that all lanes share."""
    index, value = operand.index, operand.value & WORD
    match operand.kind:
        case Kind.SCALAR:
            return lambda w: w.scalars[index]  # type: ignore[no-any-return]
        case Kind.LITERAL:
            return lambda w: value
        case Kind.CONDITION:
            return lambda w: w.condition
        case _:
            raise unknown(operand, "scalar source")


def scalar_pair(operand: Operand) -> Callable[[Wave], int]:
    """Return the reader of a source of 64 bits that all lanes share."""
    index, value = operand.index, operand.value
    match operand.kind:
        case Kind.SCALAR:
            return lambda w: w.pair(index)
        case Kind.LITERAL:
            return lambda w: value
        case _:
            raise unknown(operand, "scalar pair")


# --- vector sources --------------------------------------------------------------------------------------


def word(operand: Operand, part: int = 0) -> Read:
    """Return the reader of a source's 32 bits in every lane, or of the part-th register of a wide one."""
    index = operand.index + part
    match operand.kind:
        case Kind.VECTOR:
            return lambda w: w.vectors[index]
        case Kind.ACCUMULATOR:
            return lambda w: w.accumulators[index]
        case Kind.SCALAR:
            return lambda w: np.uint32(w.scalars[index])
        case Kind.CONDITION:
            return lambda w: np.uint32(w.condition)
        case Kind.LITERAL:
            value = np.uint32(operand.value >> 32 * part & WORD)
            return lambda w: value
        case _:
            raise unknown(operand, "vector source")


def words(operand: Operand, count: int) -> Callable[[Wave], Words]:
    """Return the reader of so many registers of a source, as words[part, lane], which nobody may change."""
    first, end = operand.index, operand.index + count
    match operand.kind:
        case Kind.VECTOR:
            return lambda w: w.vectors[first:end]  # type: ignore[no-any-return]
        case Kind.ACCUMULATOR:
            return lambda w: w.accumulators[first:end]  # type: ignore[no-any-return]
        case _:
            read = [word(operand, part) for part in range(count)]
            return lambda w: np.stack([every_lane(r(w)) for r in read])


def pair(operand: Operand) -> Read:
    """Return the reader of a source of 64 bits as u64."""
    if operand.kind is Kind.LITERAL and not operand.decimal:
        value = np.uint64(operand.value)
        return lambda w: value
    if operand.kind is Kind.SCALAR:
        index = operand.index
        return lambda w: np.uint64(w.pair(index))
    low, high = word(operand), word(operand, 1)
    return lambda w: low(w).astype(np.uint64) | high(w).astype(np.uint64) << np.uint64(32)


def sources(instruction: Instruction, first: int = 1) -> list[Read]:
    """Return the readers of an instruction's sources from the first-th operand on, as u32.

    DPP moves lanes of the first source; SDWA selects parts; signs of floats are changed as f32.
    """
    found = [word(o) for o in instruction.operands[first:]]
    for at, operand in enumerate(instruction.operands[first:]):
        found[at] = lanes.selected(instruction, at, operand.signed, found[at])
        if operand.negate or operand.absolute:
            found[at] = _signed(found[at], operand)
    if found and lanes.moves(instruction):
        found[0] = lanes.moved(instruction, found[0])
    return found


def _signed(read: Read, operand: Operand) -> Read:
    keep = REST if operand.absolute else np.uint32(WORD)
    flip = SIGN if operand.negate else np.uint32(0)
    return lambda w: read(w) & keep ^ flip


def as_float(read: Read) -> Read:
    """Return a reader of f32 from one of u32."""
    return lambda w: read(w).view(np.float32)


def as_signed(read: Read) -> Read:
    """Return a reader of i32 from one of u32."""
    return lambda w: read(w).view(np.int32)


def half(operand: Operand, read: Read, upper: bool = False) -> Read:
    """Return a reader of f16: the lower or the upper half of a source; a decimal constant is an f16 one."""
    if operand.decimal:
        constant = np.float16(np.uint32(operand.value).view(np.float32))
        value = -constant if operand.negate else constant
        return lambda w: value
    shift = np.uint32(16 if upper else 0)
    keep = np.uint16(0x7FFF if operand.absolute else 0xFFFF)
    flip = np.uint16(0x8000 if operand.negate else 0)
    return lambda w: ((read(w) >> shift).astype(np.uint16) & keep ^ flip).view(np.float16)


# --- destinations ----------------------------------------------------------------------------------------


def row(operand: Operand, part: int = 0) -> Callable[[Wave], Words]:
    """Return what gives a wave's vector register that an operand names."""
    index = operand.index + part
    match operand.kind:
        case Kind.VECTOR:
            return lambda w: w.vectors[index]
        case Kind.ACCUMULATOR:
            return lambda w: w.accumulators[index]
        case _:
            raise unknown(operand, "vector destination")


def rows(operand: Operand, count: int, first: int = 0) -> Callable[[Wave], Words]:
    """Return what gives so many of a wave's vector registers that an operand names, from the first-th on."""
    start, end = operand.index + first, operand.index + first + count
    match operand.kind:
        case Kind.VECTOR:
            return lambda w: w.vectors[start:end]  # type: ignore[no-any-return]
        case Kind.ACCUMULATOR:
            return lambda w: w.accumulators[start:end]  # type: ignore[no-any-return]
        case _:
            raise unknown(operand, "vector destination")


def written(instruction: Instruction, part: int = 0) -> Write:
    """Return the writer of an instruction's vector destination; values are u32."""
    register = row(instruction.operands[0], part)
    if lanes.moves(instruction):
        writes = lanes.writes(instruction)

        def write(w: Wave, value: Any) -> None:
            np.copyto(register(w), value, where=writes(w))

        return write
    if lanes.whole(instruction):
        return lambda w, value: w.write(register(w), value)
    placed = lanes.placed(instruction)
    return lambda w, value: w.write(register(w), placed(value, register(w)))


def written_pair(instruction: Instruction) -> Write:
    """Return the writer of a destination of two registers; values are u64."""
    low, high = written(instruction), written(instruction, 1)

    def write(w: Wave, value: Any) -> None:
        low(w, (value & np.uint64(WORD)).astype(np.uint32))
        high(w, (value >> np.uint64(32)).astype(np.uint32))

    return write
