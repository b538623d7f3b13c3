"""Lane and sub-register selection of sources: DPP, SDWA, permutes and lane counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.text import Instruction
from rlk.testing.simulators.cdna.wave import LANE, LANES, Wave, Words, every_lane

Read = Callable[[Wave], Any]
Bits = NDArray[np.bool_]
Places = NDArray[np.intp]

ROW = 16  # lanes of a row, DPP's unit
_IN_ROW = LANE % ROW
_START = LANE - _IN_ROW
_EVERYWHERE = np.ones(LANES, bool)

_PATTERNS = (
    "quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_shr", "wave_rol", "wave_ror",
    "row_mirror", "row_half_mirror", "row_bcast", "row_newbcast",
)  # fmt: skip


# --- DPP -------------------------------------------------------------------------------------------------


def moves(instruction: Instruction) -> bool:
    """Return whether an instruction's first source comes from other lanes."""
    return _pattern(instruction) is not None


def _pattern(instruction: Instruction) -> str | None:
    return next((p for p in _PATTERNS if p in instruction.modifiers), None)


def _origin(instruction: Instruction) -> tuple[Places, Bits]:
    """Return each lane's source lane, and where there is one."""
    pattern = _pattern(instruction)
    assert pattern is not None
    if pattern == "quad_perm":
        quad = np.array(instruction.numbers(pattern, 4, 0))
        return LANE - LANE % 4 + quad[LANE % 4], _EVERYWHERE
    if pattern == "row_mirror":
        return _START + ROW - 1 - _IN_ROW, _EVERYWHERE
    if pattern == "row_half_mirror":
        return LANE - LANE % 8 + 7 - LANE % 8, _EVERYWHERE
    count = instruction.number(pattern)
    match pattern:
        case "row_shl":
            return LANE + count, _IN_ROW + count < ROW
        case "row_shr":
            return LANE - count, _IN_ROW >= count
        case "row_ror":
            return _START + (_IN_ROW - count) % ROW, _EVERYWHERE
        case "wave_shl":
            return LANE + 1, LANE < LANES - 1
        case "wave_shr":
            return LANE - 1, LANE > 0
        case "wave_rol":
            return (LANE + 1) % LANES, _EVERYWHERE
        case "wave_ror":
            return (LANE - 1) % LANES, _EVERYWHERE
        case "row_newbcast":
            return _START + count, _EVERYWHERE
        case _:
            # the last lane of a row (15) or of the lower half (31) goes to the next row or half
            return (_START - 1, LANE >= ROW) if count == 15 else (np.full(LANES, 31), LANE >= 32)


def moved(instruction: Instruction, read: Read) -> Read:
    """Return the reader of a source whose lanes DPP moves; a lane that has no source reads 0."""
    origin, exists = _origin(instruction)
    place = np.clip(origin, 0, LANES - 1)
    kept = np.where(exists, ~np.uint32(0), np.uint32(0))

    def get(w: Wave) -> Any:
        value = every_lane(read(w))[place]
        return value & kept if w.full else np.where(exists & w.active[place], value, np.uint32(0))

    return get


def writes(instruction: Instruction) -> Callable[[Wave], Bits]:
    """Return which lanes an instruction with DPP writes: those with a source, unless bound_ctrl gives 0."""
    origin, exists = _origin(instruction)
    place = np.clip(origin, 0, LANES - 1)
    row_mask, bank_mask = instruction.number("row_mask", 15), instruction.number("bank_mask", 15)
    enabled = (row_mask >> LANE // ROW & bank_mask >> _IN_ROW // 4 & 1).astype(bool)
    if "bound_ctrl" in instruction.modifiers:
        return lambda w: enabled if w.full else w.active & enabled
    with_source = enabled & exists
    return lambda w: with_source if w.full else w.active & with_source & w.active[place]


# --- SDWA ------------------------------------------------------------------------------------------------

_PARTS = {
    "DWORD": (0, 32), "WORD_0": (0, 16), "WORD_1": (16, 16),
    "BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8),
}  # fmt: skip


def selected(instruction: Instruction, source: int, signed: bool, read: Read) -> Read:
    """Return the reader of the part of a source that SDWA selects, extended with zeros or its sign."""
    shift, width = _PARTS[instruction.modifiers.get(f"src{source}_sel", "DWORD")]
    if width == 32:
        return read
    if signed:
        left, right = np.int32(32 - width - shift), np.int32(32 - width)
        return lambda w: (read(w).view(np.int32) << left >> right).view(np.uint32)
    down, keep = np.uint32(shift), np.uint32((1 << width) - 1)
    return lambda w: read(w) >> down & keep


def whole(instruction: Instruction) -> bool:
    """Return whether an instruction writes all of its destination."""
    return instruction.modifiers.get("dst_sel", "DWORD") == "DWORD"


def placed(instruction: Instruction) -> Callable[[Any, Words], Any]:
    """Return what SDWA makes of a result and a register: the result in a part of it, padded or not."""
    part = instruction.modifiers["dst_sel"]
    shift, width = _PARTS[part]
    up, keep = np.uint32(shift), np.uint32((1 << width) - 1)
    match instruction.modifiers.get("dst_unused"):
        case "UNUSED_PAD":
            return lambda value, register: (value & keep) << up
        case "UNUSED_PRESERVE":
            return lambda value, register: (value & keep) << up | register & ~(keep << up)
        case unused:
            raise Fault(FaultKind.UNKNOWN, f"dst_sel:{part} dst_unused:{unused} is not emulated")


# --- permutes --------------------------------------------------------------------------------------------


def swizzled(instruction: Instruction) -> Places:
    """Return each lane's source lane under ds_swizzle_b32, as LLVM writes it: swizzle(SWAP, n) and others."""
    text = instruction.modifiers.get("offset", "")
    name, _, rest = text.removeprefix("swizzle(").removesuffix(")").partition(",")
    match name:
        case "SWAP":
            return LANE ^ int(rest)
        case "REVERSE":
            return LANE ^ (int(rest) - 1)
        case "BROADCAST":
            group, which = (int(n) for n in rest.split(","))
            return LANE - LANE % group + which
        case "QUAD_PERM":
            quad = np.array([int(n) for n in rest.split(",")])
            return LANE - LANE % 4 + quad[LANE % 4]
        case "BITMASK_PERM":
            bits = rest.strip("\"' ")
            zero, one, flip = (_mask(bits, c) for c in ("0", "1", "i"))
            return LANE & ~31 | ((LANE & 31 & ~zero | one) ^ flip)
        case _:
            raise Fault(FaultKind.UNKNOWN, f"the swizzle {text!r} is not emulated")


def _mask(bits: str, character: str) -> int:
    return sum(1 << i for i, c in enumerate(reversed(bits)) if c == character)


def before(half: int) -> NDArray[np.uint64]:
    """Return, for each lane, the mask of lower lanes within the lower (0) or upper (1) half of a wave."""
    count = np.clip(LANE - 32 * half, 0, 32).astype(np.uint64)
    return (np.uint64(1) << count) - np.uint64(1)
