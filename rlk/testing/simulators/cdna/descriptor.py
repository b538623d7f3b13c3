"""Kernel descriptors: initial registers, arguments, and resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlk.testing.simulators.cdna.faults import Fault, FaultKind


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel argument: where it lies in the argument segment, its bytes, and LLVM's value_kind."""

    offset: int
    size: int
    kind: str

    @property
    def hidden(self) -> bool:
        """Return whether the runtime passes it, not the caller."""
        return self.kind.startswith("hidden_")


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a kernel, as the compiler reports them.

    vector, accumulation, scalar: registers. spilled: vector registers in memory; lanes: scalar registers that
    live in lanes of vector registers. scratch: bytes of private memory a lane. shared: static bytes of LDS.
    """

    vector: int
    accumulation: int
    scalar: int
    spilled: int
    lanes: int
    scratch: int
    shared: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel's descriptor (the .amdhsa_ directives as numbers) and metadata."""

    kernel: str
    directives: Mapping[str, int]
    parameters: tuple[Parameter, ...]
    resources: Resources

    def asks(self, directive: str, default: int = 0) -> int:
        """Return a directive's value, without its .amdhsa_ prefix."""
        return self.directives.get(directive, default)


def kernels(assembly: str) -> tuple[str, ...]:
    """Return the names of the kernels in an assembly text."""
    return tuple(re.findall(r"^\s*\.amdhsa_kernel\s+(\S+)", assembly, re.M))


def descriptor(assembly: str, kernel: str) -> Descriptor:
    """Read a kernel's descriptor and metadata; raise Fault where the text has none."""
    name = re.escape(kernel)
    block = re.search(rf"\.amdhsa_kernel\s+{name}\s*\n(.*?)\.end_amdhsa_kernel", assembly, re.S)
    entry = _metadata(assembly, kernel)
    if block is None or entry is None:
        raise Fault(FaultKind.ARGUMENTS, f"the assembly has no descriptor or metadata of {kernel!r}")
    pairs = re.findall(r"\.amdhsa_(\w+)\s+(-?(?:0x)?[0-9a-fA-F]+)\s*$", block[1], re.M)
    return Descriptor(kernel, {k: int(v, 0) for k, v in pairs}, _parameters(entry), _resources(entry))


def _metadata(assembly: str, kernel: str) -> str | None:
    """Return a kernel's entry in amdhsa.kernels: a list item of YAML, two columns in."""
    text = re.search(r"amdhsa\.kernels:\s*\n(.*?)^amdhsa\.", assembly, re.S | re.M)
    entries = re.split(r"^ {2}- ", text[1], flags=re.M)[1:] if text else []
    wanted = re.compile(rf"^ *\.name:\s+{re.escape(kernel)}\s*$", re.M)
    return next((entry for entry in entries if wanted.search(entry)), None)


def _parameters(entry: str) -> tuple[Parameter, ...]:
    found = []
    for item in re.split(r"^ {6}- ", entry, flags=re.M)[1:]:
        fields = dict(re.findall(r"\.(\w+):\s+(\S+)", item.split("\n    .", 1)[0]))
        found.append(Parameter(int(fields["offset"]), int(fields["size"]), fields["value_kind"]))
    return tuple(found)


def _resources(entry: str) -> Resources:
    def number(key: str) -> int:
        match = re.search(rf"^ *\.{key}:\s+(\d+)", entry, re.M)
        return int(match[1]) if match else 0

    return Resources(
        vector=number("vgpr_count"),
        accumulation=number("agpr_count"),
        scalar=number("sgpr_count"),
        spilled=number("vgpr_spill_count"),
        lanes=number("sgpr_spill_count"),
        scratch=number("private_segment_fixed_size"),
        shared=number("group_segment_fixed_size"),
    )
