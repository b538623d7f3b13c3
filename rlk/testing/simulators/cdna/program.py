"""Decoding of a kernel: each instruction once, to a function of the wave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rlk.testing.simulators.cdna import cdna4, floating, integers, matrix, memory, scalar, shared, waits
from rlk.testing.simulators.cdna.access import Step
from rlk.testing.simulators.cdna.descriptor import Descriptor, descriptor
from rlk.testing.simulators.cdna.faults import Fault, FaultKind
from rlk.testing.simulators.cdna.text import Instruction, Kind, instruction, instructions
from rlk.testing.simulators.cdna.wave import Wave

_NOTHING = frozenset(
    {"s_nop", "s_setprio", "s_sleep", "s_inst_prefetch", "s_icache_inv", "buffer_wbl2", "buffer_inv"}
)
_LOADS = ("ds_read", "ds_bpermute", "ds_permute", "ds_swizzle", "global_load", "buffer_load", "s_load")


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel's decoded instructions.

    steps: what each does. touched: the registers that it reads or writes, which no load may still own.
    """

    descriptor: Descriptor
    instructions: tuple[Instruction, ...]
    steps: tuple[Step, ...]
    touched: tuple[int, ...]


@lru_cache(maxsize=32)
def program(assembly: str, kernel: str, target: str, sums: str) -> Program:
    """Decode a kernel; what the emulator does not know becomes a fault when it is executed.

    sums: the target whose matrix units say how products are summed.
    """
    found, labels = instructions(assembly, kernel)
    what = descriptor(assembly, kernel)
    floating.check_modes(what.directives)
    made = [_alone(i.text, target, sums) or _made(i, labels, target, sums) for i in found]
    return Program(what, found, tuple(step for step, _ in made), tuple(touched for _, touched in made))


@lru_cache(maxsize=1 << 16)
def _alone(text: str, target: str, sums: str) -> tuple[Step, int] | None:
    """Decode an instruction that names no label; kernels share most of their instructions' text."""
    i = instruction(text)
    return None if any(o.kind is Kind.SYMBOL for o in i.operands) else _made(i, {}, target, sums)


def _made(i: Instruction, labels: Mapping[str, int], target: str, sums: str) -> tuple[Step, int]:
    return _step(i, labels, target, sums), _touched(i)


def _touched(i: Instruction) -> int:
    # loads of one kind come back in order, so that the last one to a register wins
    return waits.registers(i.operands[1:] if i.name.startswith(_LOADS) else i.operands)


def _step(i: Instruction, labels: Mapping[str, int], target: str, sums: str) -> Step:
    try:
        found = decoded(i, labels, target, sums)
    except Fault as fault:
        return _refusal(fault)
    return found or _refusal(Fault(FaultKind.UNKNOWN, f"{i.name} with {i.text.partition(' ')[2]!r}"))


def _refusal(fault: Fault) -> Step:
    def step(w: Wave) -> None:
        raise fault

    return step


def decoded(i: Instruction, labels: Mapping[str, int], target: str, sums: str) -> Step | None:
    """Return what one instruction does; None for one that is not known."""
    name = i.name
    if name in _NOTHING:
        return lambda w: None
    if target == cdna4.TARGET and (found := cdna4.decode(i)):
        return found
    if name == "s_endpgm":
        return _end
    if name == "s_barrier":
        return _arrive
    if name.startswith("s_load"):
        return memory.decode(i)
    if name.startswith("s_"):
        return waits.decode(i) or scalar.decode_branch(i, labels) or scalar.decode(i)
    if name.startswith("v_mfma_"):
        return matrix.decode(i, target, sums)
    if name.startswith("v_cmp_"):
        return integers.decode_comparison(i) or floating.decode_comparison(i)
    if name.startswith("v_"):
        return integers.decode(i) or floating.decode(i)
    return shared.decode(i) if name.startswith("ds_") else memory.decode(i)


def _end(w: Wave) -> None:
    w.done = True


def _arrive(w: Wave) -> None:
    if w.pending & waits.LDS_ACCESS:
        raise Fault(FaultKind.UNFINISHED, "s_barrier while an access of LDS is under way")
    w.arrived = True
