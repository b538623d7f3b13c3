"""Parser of AMDGPU assembly lines: mnemonic, operands and modifiers, as LLVM prints them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from rlk.testing.simulators.cdna.faults import Fault, FaultKind

VCC, M0, EXEC = 106, 124, 126
"""Scalar registers with names; VCC and EXEC are pairs."""

_NAMED = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1), "flat_scratch": (102, 2), "xnack_mask": (104, 2),
}  # fmt: skip
_DECIMAL = re.compile(r"-?\d+\.\d+(e[+-]?\d+)?$")
_REGISTER = re.compile(r"([sva])(?:(\d+)|\[(\d+)(?::(\d+))?\])$")
_FLAGS = "offen|idxen|sc0|sc1|nt|glc|slc|clamp|lds|gds|row_mirror|row_half_mirror"
_MODIFIER = re.compile(
    rf"(?:^|\s)(?:([a-z][a-z0-9_]*):(\[[^\]]*\]|[A-Za-z_]+\([^)]*\)|[^\s\]]+)|({_FLAGS})(?=\s|$))"
)
_ENCODING = re.compile(r"_(e32|e64|dpp|sdwa)$")
_DISTANCE = re.compile(r"\((\.\w+)-(\.\w+)\)(&4294967295|>>32)$")
_COMMENT = re.compile(r"\s*(?:;|//).*")


STEP = 4
"""Bytes that an instruction is counted as where a kernel computes with addresses of instructions."""


class Kind(Enum):
    """The place of an operand's value."""

    SCALAR = "s"
    VECTOR = "v"
    ACCUMULATOR = "a"
    LITERAL = "literal"
    CONDITION = "scc"
    SYMBOL = "symbol"
    ABSENT = "off"


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand.

    index, width: first register and how many. value: of a literal, in two's complement of 64 bits; for a
    decimal one the pattern of its f32. A source is `negate` after `absolute`.
    """

    text: str
    kind: Kind
    index: int = 0
    width: int = 1
    value: int = 0
    decimal: bool = False
    negate: bool = False
    absolute: bool = False
    signed: bool = False

    @property
    def plain(self) -> bool:
        """Return whether the source is read without a modifier."""
        return not (self.negate or self.absolute or self.signed)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line: mnemonic without its encoding's suffix, operands, and modifiers by name ("1" for flags)."""

    line: int
    text: str
    name: str
    operands: tuple[Operand, ...]
    modifiers: Mapping[str, str] = field(default_factory=dict)

    def number(self, modifier: str, default: int = 0) -> int:
        """Return the number that a modifier gives."""
        text = self.modifiers.get(modifier)
        return default if text is None else int(text, 0)

    def numbers(self, modifier: str, count: int, default: int) -> tuple[int, ...]:
        """Return the list of numbers that a modifier gives, or `count` times the default."""
        text = self.modifiers.get(modifier)
        return (default,) * count if text is None else tuple(int(n) for n in text.strip("[]").split(","))


def instructions(assembly: str, kernel: str) -> tuple[tuple[Instruction, ...], dict[str, int]]:
    """Return the instructions of a kernel's body, and at which of them each label stands.

    Raises Fault where the text has no such kernel.
    """
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for number, line in _body(assembly, kernel):
        if line.endswith(":"):
            labels[line[:-1]] = len(found)
        elif not line.startswith("."):
            found.append(instruction(line, number))
    return tuple(_located(i, labels) for i in found), labels


def _located(i: Instruction, labels: Mapping[str, int]) -> Instruction:
    """Return an instruction whose distances between labels are numbers: branches too far for an s_branch."""
    if not any(o.kind is Kind.SYMBOL and _DISTANCE.match(o.text) for o in i.operands):
        return i
    return replace(i, operands=tuple(_distance(o, labels) for o in i.operands))


def _distance(o: Operand, labels: Mapping[str, int]) -> Operand:
    match = _DISTANCE.match(o.text)
    if match is None or not {match[1], match[2]} <= labels.keys():
        return o
    apart = STEP * (labels[match[1]] - labels[match[2]])
    value = apart >> 32 if match[3] == ">>32" else apart
    return replace(o, kind=Kind.LITERAL, value=value & 0xFFFFFFFF)


def _body(assembly: str, kernel: str) -> Iterator[tuple[int, str]]:
    """Yield the lines from a kernel's label to its end, without comments and empty ones."""
    inside = False
    for number, raw in enumerate(assembly.splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        if inside and line.startswith((".section", ".Lfunc_end", ".amdhsa_kernel")):
            return
        if inside and line:
            yield number, line
        inside = inside or line == f"{kernel}:"
    if not inside:
        raise Fault(FaultKind.ARGUMENTS, f"the assembly has no kernel {kernel!r}")


def instruction(text: str, line: int = 0) -> Instruction:
    """Parse one instruction."""
    return Instruction(line, text, *_parts(text))


@lru_cache(maxsize=1 << 16)
def _parts(text: str) -> tuple[str, tuple[Operand, ...], Mapping[str, str]]:
    """Return an instruction's mnemonic, operands and modifiers; kernels share most of their lines."""
    name, _, rest = text.replace("\t", " ").strip().partition(" ")
    name = _ENCODING.sub("", name)
    if name.startswith(("s_waitcnt", "s_nop", "s_setprio", "s_sleep", "s_sethalt")):
        return name, (), {"counts": rest.strip()}
    modifiers: dict[str, str] = {}
    for match in _MODIFIER.finditer(rest):
        modifiers[match[1] or match[3]] = match[2] or "1"
    bare = _MODIFIER.sub("", rest).strip()
    parts = re.split(r",\s*(?![^\[(]*[\])])", bare) if bare else []
    return name, tuple(operand(p.strip()) for p in parts), modifiers


@lru_cache(maxsize=1 << 14)
def operand(text: str) -> Operand:
    """Parse one operand."""
    inner, negate, absolute, signed = text, False, False, False
    if match := re.match(r"sext\((.*)\)$", inner):
        inner, signed = match[1], True
    if match := re.match(r"neg\((.*)\)$", inner) or re.match(r"-([|a-z].*)$", inner):
        inner, negate = match[1], True
    if match := re.match(r"(?:abs\((.*)\)|\|(.*)\|)$", inner):
        inner, absolute = match[1] or match[2], True
    kind, index, width, value, decimal = _place(inner)
    return Operand(text, kind, index, width, value, decimal, negate, absolute, signed)


def _place(text: str) -> tuple[Kind, int, int, int, bool]:
    if match := _REGISTER.match(text):
        first = int(match[2] or match[3])
        last = int(match[4] or first)
        return Kind(match[1]), first, last - first + 1, 0, False
    if text in _NAMED:
        return Kind.SCALAR, *_NAMED[text], 0, False
    if text in ("scc", "src_scc"):
        return Kind.CONDITION, 0, 1, 0, False
    if text == "off":
        return Kind.ABSENT, 0, 1, 0, False
    if _DECIMAL.match(text):
        return Kind.LITERAL, 0, 1, struct.unpack("<I", struct.pack("<f", float(text)))[0], True
    try:
        return Kind.LITERAL, 0, 1, int(text, 0) & (2**64 - 1), False
    except ValueError:
        return Kind.SYMBOL, 0, 1, 0, False
