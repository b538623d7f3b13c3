"""Launches of emulated kernels: arguments to bytes, workgroups, and bytes to arrays again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.target.cdna3 import limits
from rlk.testing.simulators.cdna.descriptor import Descriptor, Parameter, Resources
from rlk.testing.simulators.cdna.faults import Fault, FaultKind, Place
from rlk.testing.simulators.cdna.memory import Memory
from rlk.testing.simulators.cdna.program import Program, program
from rlk.testing.simulators.cdna.scheduling import drive, groups
from rlk.testing.simulators.cdna.shared import Shared
from rlk.testing.simulators.cdna.storage import Storage
from rlk.testing.simulators.cdna.wave import LANE, LANES, Wave

Array = NDArray[Any]
Size = tuple[int, int, int]

LIMIT = 5_000_000
"""Instructions that one wave may execute."""

CHECKS = (
    FaultKind.OUT_OF_BOUNDS,
    FaultKind.MISALIGNED,
    FaultKind.RACE,
    FaultKind.UNINITIALISED,
    FaultKind.UNFINISHED,
    FaultKind.BARRIER,
    FaultKind.UNKNOWN,
)
"""What every run is checked for."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Counts of a run.

    opcodes, lines: how often each instruction, and each line of the text, was executed. approximations:
    executed hardware approximations (whose bits this emulator does not know). shared: the end of the highest
    byte of LDS that was touched. checks: what would have stopped the run.
    """

    kernel: str
    target: str
    schedule: int
    workgroups: int
    waves: int
    opcodes: Mapping[str, int]
    lines: Mapping[int, int]
    approximations: int
    shared: int
    resources: Resources
    checks: tuple[FaultKind, ...] = CHECKS

    @property
    def instructions(self) -> int:
        """Return the number of instructions that all waves executed."""
        return sum(self.opcodes.values())

    @property
    def products(self) -> int:
        """Return the number of executed matrix instructions."""
        return sum(n for name, n in self.opcodes.items() if name.startswith("v_mfma_"))

    @property
    def accesses(self) -> int:
        """Return the number of accesses of global memory or LDS, each checked lane by lane."""
        prefixes = ("global_", "buffer_", "ds_", "s_load")
        return sum(n for name, n in self.opcodes.items() if name.startswith(prefixes))


class Group:
    """State shared by the waves of a workgroup: memory, LDS, and counts of the whole run."""

    __slots__ = ("approximations", "memory", "perturb", "shared")

    def __init__(self, memory: Memory, shared: int, perturb: np.random.Generator | None) -> None:
        self.memory, self.perturb = memory, perturb
        self.shared = Shared(shared)
        self.approximations = 0


def emulate(
    assembly: str,
    kernel: str,
    grid: Size,
    block: Size,
    arguments: Sequence[Array | np.generic],
    *,
    target: str = "gfx942",
    sums: str | None = None,
    schedule: int = 0,
    perturb: int | None = None,
    dynamic_shared: int = 0,
    limit: int = LIMIT,
) -> Execution:
    """Execute a kernel of AMDGPU assembly text, as LLVM prints it, on arrays, and say what was executed.

    grid: workgroups along x, y and z; block: lanes of one. arguments: one contiguous array (changed in place;
    its bytes are all that the kernel may touch through it) or NumPy scalar for each explicit argument, in
    order; a pointer that is never followed may be a scalar of 8 bytes. sums: the target whose matrix units'
    sums stand in for this one's, where nobody has published those. schedule: 0 runs waves in order, 1 in
    reverse, others interleave them at random. perturb: the seed of random errors, up to one ulp, in hardware
    approximations (v_exp, v_log, v_rcp, v_rsq, v_sqrt), which are otherwise correctly rounded.
    dynamic_shared: bytes of LDS beside the kernel's own. limit: instructions that one wave may execute.

    Raises Fault where a device would do something else than was meant: an access out of bounds, a race or an
    uninitialised read in LDS, a register used before its load is back, an instruction that is not known.
    Arrays hold what was written until then. Not modelled: time, hazards between instructions that need
    s_nop, and the order of memory between workgroups.
    """
    decoded = program(assembly, kernel, target, sums or target)
    shared = _shared(decoded.descriptor, block, dynamic_shared, target)
    memory = Memory()
    backs = _Backs(memory)
    segment = memory.add("the argument segment", _segment(decoded.descriptor, arguments, backs, grid, block))
    counts = [0] * len(decoded.steps)
    random = None if perturb is None else np.random.default_rng(perturb)
    touched = approximations = 0
    places = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    try:
        with np.errstate(all="ignore"):
            for number in groups(len(places), schedule):
                group = Group(memory, shared, random)
                waves = _waves(decoded.descriptor, group, places[number], block, segment, schedule)
                _run_group(decoded, waves, places[number], schedule, counts, limit)
                touched = max(touched, group.shared.touched)
                approximations += group.approximations
    finally:
        backs.write()
    return Execution(
        kernel=kernel,
        target=target,
        schedule=schedule,
        workgroups=len(places),
        waves=len(places) * -(-_lanes(block) // LANES),
        opcodes=_opcodes(decoded, counts),
        lines={i.line: n for i, n in zip(decoded.instructions, counts, strict=True) if n},
        approximations=approximations,
        shared=touched,
        resources=decoded.descriptor.resources,
    )


def _opcodes(what: Program, counts: Sequence[int]) -> dict[str, int]:
    """Return how often each instruction was executed, most often first."""
    found = Counter[str]()
    for instruction, count in zip(what.instructions, counts, strict=True):
        found[instruction.name] += count
    return {name: n for name, n in found.most_common() if n}


def _lanes(block: Size) -> int:
    return block[0] * block[1] * block[2]


def _shared(what: Descriptor, block: Size, dynamic: int, target: str) -> int:
    """Return the bytes of LDS of a workgroup; raise Fault for more lanes or bytes than there are."""
    most, shared = limits(target), what.resources.shared + dynamic
    if shared > most.shared:
        raise Fault(
            FaultKind.RESOURCES, f"{what.kernel} takes {shared} bytes of LDS, {target} has {most.shared}"
        )
    if not 0 < _lanes(block) <= most.threads:
        raise Fault(FaultKind.RESOURCES, f"{_lanes(block)} lanes in a workgroup, {target} has {most.threads}")
    return shared


# --- arguments -------------------------------------------------------------------------------------------


class _Backs:
    """Arrays and the bytes that stand for them while a kernel runs."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.held: list[tuple[Array, Storage, int]] = []

    def address(self, array: Array, name: str) -> int:
        """Return the address of an array's bytes; one array may be given twice."""
        if not array.flags.c_contiguous:
            raise Fault(FaultKind.ARGUMENTS, f"{name} is not contiguous")
        for other, _, address in self.held:
            if np.may_share_memory(array, other):
                same = array.ctypes.data == other.ctypes.data and array.nbytes == other.nbytes
                if not same:
                    raise Fault(FaultKind.ARGUMENTS, f"{name} overlaps another argument")
                return address
        storage = Storage(array.nbytes, np.frombuffer(array.tobytes(), np.uint8))
        address = self.memory.add(name, storage)
        self.held.append((array, storage, address))
        return address

    def write(self) -> None:
        """Copy the bytes back into the arrays that can be written."""
        for array, storage, _ in self.held:
            if array.flags.writeable:
                array[...] = storage.bytes[: storage.size].view(array.dtype).reshape(array.shape)


def _segment(
    what: Descriptor, arguments: Sequence[Array | np.generic], backs: _Backs, grid: Size, block: Size
) -> Storage:
    """Return the bytes through which a kernel finds its arguments."""
    explicit = [p for p in what.parameters if not p.hidden]
    if len(explicit) != len(arguments):
        text = f"{what.kernel} takes {len(explicit)} arguments, {len(arguments)} are given"
        raise Fault(FaultKind.ARGUMENTS, text)
    end = max((p.offset + p.size for p in what.parameters), default=0)
    content = np.zeros(max(end, what.asks("kernarg_size")), np.uint8)
    for number, (parameter, argument) in enumerate(zip(explicit, arguments, strict=True)):
        if isinstance(argument, np.ndarray):
            address = np.uint64(backs.address(argument, f"argument {number}"))
            _put(content, parameter, address, number)
        else:
            _put(content, parameter, argument, number)
    for parameter in what.parameters:
        if parameter.hidden:
            _put(content, parameter, _hidden(parameter, grid, block), -1)
    return Storage(len(content), content)


def _put(content: Array, parameter: Parameter, value: np.generic, number: int) -> None:
    raw = np.frombuffer(value.tobytes(), np.uint8)
    if len(raw) != parameter.size:
        text = f"argument {number} has {len(raw)} bytes, the kernel takes {parameter.size} ({parameter.kind})"
        raise Fault(FaultKind.ARGUMENTS, text)
    content[parameter.offset : parameter.offset + parameter.size] = raw


def _hidden(parameter: Parameter, grid: Size, block: Size) -> np.generic:
    """Return what the runtime passes by itself: sizes of the launch, else zero."""
    name = parameter.kind.removeprefix("hidden_")
    by_axis = {"block_count": grid, "group_size": block}
    stem, _, axis = name.rpartition("_")
    value = by_axis[stem]["xyz".index(axis)] if stem in by_axis else 3 if name == "grid_dims" else 0
    return np.frombuffer(value.to_bytes(parameter.size, "little"), f"V{parameter.size}")[0]  # type: ignore[no-any-return]


# --- workgroups ------------------------------------------------------------------------------------------

# User registers before the argument segment's address, and how many each takes.
_BEFORE = (("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2))


def _waves(
    what: Descriptor, group: Group, place: Size, block: Size, segment: int, schedule: int
) -> list[Wave]:
    """Return a workgroup's waves with the registers that the device sets at launch."""
    lanes, made = _lanes(block), []
    for number in range(-(-lanes // LANES)):
        w = Wave(number, min(LANES, lanes - LANES * number), group, (schedule, *place))
        at = LANES * number + LANE
        x, y, z = at % block[0], at // block[0] % block[1], at // (block[0] * block[1])
        w.vectors[0] = x | y << 10 | z << 20
        pointer = sum(size for name, size in _BEFORE if what.asks(f"user_sgpr_{name}"))
        if what.asks("user_sgpr_kernarg_segment_ptr"):
            w.set_pair(pointer, segment)
        user = what.asks("user_sgpr_count", 2)
        _preload(what, w, user, segment)
        for axis, value in zip("xyz", place, strict=True):
            if what.asks(f"system_sgpr_workgroup_id_{axis}", int(axis == "x")):
                w.set_scalar(user, value)
                user += 1
        made.append(w)
    return made


def _preload(what: Descriptor, w: Wave, user: int, segment: int) -> None:
    """Set the arguments that the device puts into the last user registers by itself."""
    count, offset = (
        what.asks("user_sgpr_kernarg_preload_length"),
        what.asks("user_sgpr_kernarg_preload_offset"),
    )
    if count:
        for part, value in enumerate(w.group.memory.scalar(segment + 4 * offset, count)):
            w.set_scalar(user - count + part, value)


def _run_group(
    what: Program, waves: Sequence[Wave], place: Size, schedule: int, counts: list[int], limit: int
) -> None:
    """Run a workgroup's waves to their ends; a fault learns its place."""
    steps, touched = what.steps, what.touched
    current = waves[0]

    def run(w: Wave, slice: int) -> None:
        nonlocal current
        current = w
        left = min(slice, limit - w.executed)
        while left and not (w.done or w.arrived):
            at = w.next
            w.next = at + 1
            if w.pending & touched[at]:
                raise Fault(FaultKind.UNFINISHED, "a register whose load is under way")
            steps[at](w)
            counts[at] += 1
            w.executed += 1
            left -= 1
        if w.executed >= limit:
            raise Fault(FaultKind.ENDLESS, f"{limit} instructions")

    try:
        drive(waves, schedule, run, waves[0].group.shared.barrier)
    except Fault as fault:
        i = what.instructions[max(0, current.next - 1)]
        where = Place(what.descriptor.kernel, place, current.number, i.line, i.text)
        raise fault.at(where) from None
