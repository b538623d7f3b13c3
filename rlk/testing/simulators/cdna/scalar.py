"""Scalar instructions: 32- and 64-bit numbers that all lanes of a wave share, and SCC."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rlk.testing.simulators.cdna.access import Step, scalar, scalar_pair, unknown
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.text import EXEC, STEP, VCC, Instruction, Kind, Operand
from rlk.testing.simulators.cdna.wave import Wave

Binary = Callable[[int, int, int], int]

_FORM = re.compile(r"s_(\w+?)_(?:([biu])(32|64)_)?([biu])(32|64|16)$")


def signed(x: int, bits: int) -> int:
    """Return the number that a pattern of some bits stands for in two's complement."""
    return x - (1 << bits) if x >> bits - 1 & 1 else x


def _field(control: int, bits: int) -> tuple[int, int]:
    """Return offset and width of a bit field, as s_bfe packs them."""
    return control & bits - 1, control >> 16 & 127


def _extract(x: int, control: int, bits: int) -> int:
    offset, width = _field(control, bits)
    return x >> offset & (1 << width) - 1


def _extract_signed(x: int, control: int, bits: int) -> int:
    width = min(_field(control, bits)[1], bits)
    return signed(_extract(x, control, bits), width) if width else 0


# Results are cut to the destination's width; SCC says whether what is left differs from zero.
_LOGIC: dict[str, Binary] = {
    "and": lambda a, b, n: a & b,
    "or": lambda a, b, n: a | b,
    "xor": lambda a, b, n: a ^ b,
    "andn2": lambda a, b, n: a & ~b,
    "orn2": lambda a, b, n: a | ~b,
    "nand": lambda a, b, n: ~(a & b),
    "nor": lambda a, b, n: ~(a | b),
    "xnor": lambda a, b, n: ~(a ^ b),
}
_SHIFTS: dict[str, Binary] = {
    "lshl": lambda a, b, n: a << (b & n - 1),
    "lshr": lambda a, b, n: a >> (b & n - 1),
    "ashr": lambda a, b, n: signed(a, n) >> (b & n - 1),
}
_FIELDS: dict[str, Binary] = {"bfe_u": _extract, "bfe_i": _extract_signed}
_SAVEEXEC = {name: _LOGIC[name] for name in ("and", "or", "xor", "andn2", "orn2")}

# SCC stays as it is.
_PLAIN: dict[str, Binary] = {
    "mul": lambda a, b, n: a * b,
    "mul_hi_u": lambda a, b, n: a * b >> 32,
    "mul_hi_i": lambda a, b, n: signed(a, 32) * signed(b, 32) >> 32,
    "bfm": lambda a, b, n: ((1 << (a & n - 1)) - 1) << (b & n - 1),
    "pack_ll": lambda a, b, n: a & 0xFFFF | b << 16,
    "pack_lh": lambda a, b, n: a & 0xFFFF | b & 0xFFFF0000,
    "pack_hh": lambda a, b, n: a >> 16 | b & 0xFFFF0000,
}
_UNARY: dict[str, Callable[[int, int], int]] = {
    "mov": lambda a, n: a,
    "movk": lambda a, n: signed(a & 0xFFFF, 16),
    "brev": lambda a, n: int(format(a, f"0{n}b")[::-1], 2),
    "ff1": lambda a, n: (a & -a).bit_length() - 1,
    "flbit": lambda a, n: n - a.bit_length() if a else -1,
    "sext_i8": lambda a, n: signed(a & 0xFF, 8),
    "sext_i16": lambda a, n: signed(a & 0xFFFF, 16),
}
_UNARY_SCC: dict[str, Callable[[int, int], int]] = {
    "not": lambda a, n: ~a,
    "bcnt1": lambda a, n: a.bit_count(),
    "abs": lambda a, n: abs(signed(a, n)),
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def decode(i: Instruction) -> Step | None:
    """Return what a scalar instruction does to a wave; None for one that is not known."""
    if i.name.startswith(("s_cmp_", "s_cmpk_")):
        return _comparison(i)
    if match := re.match(r"s_(\w+)_saveexec_b64$", i.name):
        return _saveexec(i, _SAVEEXEC[match[1]]) if match[1] in _SAVEEXEC else None
    if match := re.match(r"s_lshl(\d)_add_u32$", i.name):
        return _shift_add(i, int(match[1]))
    if i.name in ("s_sext_i32_i16", "s_sext_i32_i8"):
        return _unary(i, _UNARY[i.name.replace("i32_", "").removeprefix("s_")], 32, 32)
    if match := re.match(r"s_bit(cmp|set)([01])_b(32|64)$", i.name):
        made = _tested_bit if match[1] == "cmp" else _written_bit
        return made(i, int(match[2]), int(match[3]))
    match = _FORM.match(i.name)
    return _arithmetic(i, match) if match else None


def _arithmetic(i: Instruction, match: re.Match[str]) -> Step | None:
    name, kind, bits = match[1], match[4], max(32, int(match[5]))
    written = int(match[3] or bits)
    typed = f"{name}_{kind}"
    if name in _UNARY:
        return _unary(i, _UNARY[name], bits, written)
    if name in _UNARY_SCC:
        return _unary(i, _UNARY_SCC[name], bits, written, scc=True)
    if name in _LOGIC:
        return _binary(i, _LOGIC[name], bits, bits, scc=True)
    if name in _SHIFTS or typed in _FIELDS:
        return _binary(i, _SHIFTS.get(name) or _FIELDS[typed], bits, 32, scc=True)
    if name in _PLAIN or typed in _PLAIN:
        return _binary(i, _PLAIN.get(name) or _PLAIN[typed], bits, 32, scc=False)
    match name:
        case "add" | "sub":
            return _sum(i, 1 if name == "add" else -1, kind == "i")
        case "addc":
            return _carried(i, 1)
        case "subb":
            return _carried(i, -1)
        case "addk" | "mulk":
            return _short(i, name == "addk")
        case "min" | "max":
            return _extreme(i, name == "max", kind == "i")
        case "cselect":
            return _select(i, bits)
        case _:
            return None


def _source(operand: Operand, bits: int) -> Callable[[Wave], int]:
    return scalar_pair(operand) if bits == 64 else scalar(operand)


def _target(operand: Operand, bits: int) -> Callable[[Wave, int], None]:
    index = operand.index
    if operand.kind is not Kind.SCALAR:
        raise unknown(operand, "scalar destination")
    if bits == 64:
        return lambda w, x: w.set_pair(index, x)
    return lambda w, x: w.set_scalar(index, x)


def _unary(i: Instruction, fn: Callable[[int, int], int], bits: int, written: int, scc: bool = False) -> Step:
    put, get, keep = _target(i.operands[0], written), _source(i.operands[1], bits), (1 << written) - 1

    def step(w: Wave) -> None:
        x = fn(get(w), bits) & keep
        put(w, x)
        if scc:
            w.condition = int(x != 0)

    return step


def _binary(i: Instruction, fn: Binary, bits: int, right: int, scc: bool) -> Step:
    put, keep = _target(i.operands[0], bits), (1 << bits) - 1
    a, b = _source(i.operands[1], bits), _source(i.operands[2], right)

    def step(w: Wave) -> None:
        x = fn(a(w), b(w), bits) & keep
        put(w, x)
        if scc:
            w.condition = int(x != 0)

    return step


def _tested_bit(i: Instruction, wanted: int, bits: int) -> Step:
    word, number = _source(i.operands[0], bits), _source(i.operands[1], 32)

    def step(w: Wave) -> None:
        w.condition = int(word(w) >> (number(w) & bits - 1) & 1 == wanted)

    return step


def _written_bit(i: Instruction, value: int, bits: int) -> Step:
    put, word, number = _target(i.operands[0], bits), _source(i.operands[0], bits), _source(i.operands[1], 32)

    def step(w: Wave) -> None:
        place = number(w) & bits - 1
        put(w, word(w) & ~(1 << place) | value << place)

    return step


def _sum(i: Instruction, sign: int, signed_overflow: bool) -> Step:
    put, a, b = _target(i.operands[0], 32), scalar(i.operands[1]), scalar(i.operands[2])

    def step(w: Wave) -> None:
        x, y = a(w), b(w)
        put(w, x + sign * y)
        if signed_overflow:
            w.condition = int(not -(1 << 31) <= signed(x, 32) + sign * signed(y, 32) < 1 << 31)
        else:
            w.condition = int(not 0 <= x + sign * y < 1 << 32)

    return step


def _carried(i: Instruction, sign: int) -> Step:
    put, a, b = _target(i.operands[0], 32), scalar(i.operands[1]), scalar(i.operands[2])

    def step(w: Wave) -> None:
        x = a(w) + sign * (b(w) + w.condition)
        put(w, x)
        w.condition = int(not 0 <= x < 1 << 32)

    return step


def _short(i: Instruction, add: bool) -> Step:
    """s_addk and s_mulk: the destination with a constant of 16 bits."""
    put, a, b = _target(i.operands[0], 32), scalar(i.operands[0]), scalar(i.operands[1])

    def step(w: Wave) -> None:
        x, y = signed(a(w), 32), signed(b(w) & 0xFFFF, 16)
        put(w, x + y if add else x * y)
        if add:
            w.condition = int(not -(1 << 31) <= x + y < 1 << 31)

    return step


def _extreme(i: Instruction, larger: bool, is_signed: bool) -> Step:
    put, a, b = _target(i.operands[0], 32), scalar(i.operands[1]), scalar(i.operands[2])

    def step(w: Wave) -> None:
        x, y = a(w), b(w)
        left, right = (signed(x, 32), signed(y, 32)) if is_signed else (x, y)
        w.condition = int(left >= right if larger else left < right)
        put(w, x if w.condition else y)

    return step


def _select(i: Instruction, bits: int) -> Step:
    put, a, b = _target(i.operands[0], bits), _source(i.operands[1], bits), _source(i.operands[2], bits)
    return lambda w: put(w, a(w) if w.condition else b(w))


def _shift_add(i: Instruction, count: int) -> Step:
    put, a, b = _target(i.operands[0], 32), scalar(i.operands[1]), scalar(i.operands[2])

    def step(w: Wave) -> None:
        x = (a(w) << count) + b(w)
        put(w, x)
        w.condition = int(x >= 1 << 32)

    return step


def _saveexec(i: Instruction, fn: Binary) -> Step:
    put, get = _target(i.operands[0], 64), scalar_pair(i.operands[1])

    def step(w: Wave) -> None:
        x, old = get(w), w.mask
        put(w, old)
        w.set_pair(EXEC, fn(x, old, 64) & (1 << 64) - 1)
        w.condition = int(w.mask != 0)

    return step


def _comparison(i: Instruction) -> Step | None:
    match = re.match(r"s_cmp(k?)_(\w+)_([iu])(32|64)$", i.name)
    if match is None or match[2] not in _COMPARE:
        return None
    bits, fn = int(match[4]), _COMPARE[match[2]]
    a, b = _source(i.operands[0], bits), _source(i.operands[1], bits)
    if match[1] and match[3] == "i":
        constant = signed(i.operands[1].value & 0xFFFF, 16)

        def step(w: Wave) -> None:
            w.condition = int(fn(signed(a(w), bits), constant))
    elif match[3] == "i":

        def step(w: Wave) -> None:
            w.condition = int(fn(signed(a(w), bits), signed(b(w), bits)))
    else:

        def step(w: Wave) -> None:
            w.condition = int(fn(a(w), b(w)))

    return step


_BRANCHES: dict[str, Callable[[Wave], Any]] = {
    "s_branch": lambda w: True,
    "s_cbranch_scc0": lambda w: not w.condition,
    "s_cbranch_scc1": lambda w: w.condition,
    "s_cbranch_vccz": lambda w: not w.pair(VCC),
    "s_cbranch_vccnz": lambda w: w.pair(VCC),
    "s_cbranch_execz": lambda w: not w.mask,
    "s_cbranch_execnz": lambda w: w.mask,
}


def decode_branch(i: Instruction, labels: Mapping[str, int]) -> Step | None:
    """Return what a branch does to a wave; None for an instruction that is none."""
    if i.name in ("s_getpc_b64", "s_setpc_b64"):
        index = i.operands[0].index
        return partial(_far, index) if i.name == "s_setpc_b64" else partial(_here, index)
    taken = _BRANCHES.get(i.name)
    if taken is None:
        return None
    target = labels[i.operands[0].text]

    def step(w: Wave) -> None:
        if taken(w):
            w.next = target

    return step


def _here(index: int, w: Wave) -> None:
    """s_getpc_b64: where the next instruction is."""
    w.set_pair(index, STEP * w.next)


def _far(index: int, w: Wave) -> None:
    """s_setpc_b64: go on where two registers say."""
    at = w.pair(index)
    if at % STEP:
        raise Fault(FaultKind.UNKNOWN, f"{at:#x} is the address of no instruction")
    w.next = at // STEP
