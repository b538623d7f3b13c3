"""Resources of a compiled CUDA kernel, read from its bytes without a disassembler."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_FATBIN = b"\x50\xed\x55\xba"
_ELF = b"\x7fELF"
_CUDA_MACHINE = 190  # e_machine of a cubin
_SYMBOLS = 2  # sh_type of a symbol table

# .nv.info lists attributes: a format, a number, then a value of 16 bits, or that many bytes of payload.
_PAYLOAD = 4
_REGISTERS, _FRAME, _LEAST_STACK = 0x2F, 0x11, 0x12


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of one kernel: registers of a thread, bytes of its stack, static bytes of shared memory.

    A stack means spilled registers, or local arrays that did not fit into registers.
    """

    registers: int
    stack: int
    shared: int


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    type: int
    size: int
    data: bytes
    link: int


def cubins(data: bytes) -> tuple[bytes, ...]:
    """Return the device code in an object file or a shared library, in its order there."""
    found: list[bytes] = []
    start = data.find(_FATBIN)
    while start >= 0:
        found += _images(data, start)
        start = data.find(_FATBIN, start + len(_FATBIN))
    return tuple(found)


def _images(data: bytes, start: int) -> Iterator[bytes]:
    header, size = struct.unpack_from("<HQ", data, start + 6)
    at, end = start + header, start + header + size
    while at < end:
        skip, length = struct.unpack_from("<IQ", data, at + 4)
        image = data[at + skip : at + skip + length]
        if image[:4] == _ELF and struct.unpack_from("<H", image, 18) == (_CUDA_MACHINE,):
            yield image
        at += skip + length


def usage(cubin: bytes) -> dict[str, Usage]:
    """Return the resources of each kernel of a cubin, by the kernel's symbol."""
    sections = _sections(cubin)
    names = _symbol_names(sections)
    shared = {
        s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")
    }
    registers: dict[str, int] = {}
    stack: dict[str, int] = {}
    for section in sections:
        if section.name != ".nv.info":
            continue
        for attribute, symbol, value in _attributes(section.data):
            if attribute == _REGISTERS:
                registers[names[symbol]] = value
            elif attribute in (_FRAME, _LEAST_STACK):
                stack[names[symbol]] = max(value, stack.get(names[symbol], 0))
    code = {s.name.removeprefix(".text.") for s in sections if s.name.startswith(".text.")}
    return {
        name: Usage(count, stack.get(name, 0), shared.get(name, 0))
        for name, count in registers.items()
        if name in code
    }


def _attributes(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Walk the attributes that give a symbol a number."""
    at = 0
    while at + 4 <= len(data):
        form, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _PAYLOAD:
            if length == 8:
                yield attribute, *struct.unpack_from("<II", data, at)
            at += length


def _sections(elf: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", elf, 40)
    step, count, names_at = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQI", elf, table + index * step) for index in range(count)]
    names = elf[headers[names_at][4] :]
    return [
        _Section(_text(names, name), type, size, elf[offset : offset + size], link)
        for name, type, _, _, offset, size, link in headers
    ]


def _symbol_names(sections: list[_Section]) -> list[str]:
    found: list[str] = []
    for section in sections:
        if section.type == _SYMBOLS:
            strings = sections[section.link].data
            found += [_text(strings, name) for name, *_ in struct.iter_unpack("<I20x", section.data)]
    return found


def _text(strings: bytes, start: int) -> str:
    return strings[start : strings.index(b"\0", start)].decode()
