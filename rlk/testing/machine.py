"""Kernels as machine code without a device: compiled for CDNA, executed by the emulator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.backends.source import executed
from rlk.backends.triton import compile_triton
from rlk.lower.common.emitted import Emitted
from rlk.runtime.launch.record import LaunchRecord, ModuleRecord
from rlk.target.cdna3 import limits
from rlk.testing.simulators.cdna import Execution, Resources, descriptor, emulate

Array = NDArray[Any]
Compiler = Callable[[Emitted, str, Path], None]  # of a module, for a target, into a folder

WAVE = 64
_SCALARS = {
    "i1": np.int8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "u1": np.uint8, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
    "fp32": np.float32, "fp64": np.float64,
}  # fmt: skip
_NOWHERE = np.uint64(0)
"""Every kernel of Triton ends with two pointers to scratch memory, which ours do not follow."""


@dataclass(frozen=True, slots=True)
class Code:
    """The machine code of one kernel: assembly, what its launch needs, and whether its source has a dot."""

    record: LaunchRecord
    assembly: str
    multiplies: bool

    @property
    def resources(self) -> Resources:
        """Return the resources that the compiler reports for the kernel, without LDS that a launch adds."""
        return descriptor(self.assembly, self.record.name).resources

    def wrong(self, target: str) -> list[str]:
        """Return what a kernel must not have: registers in memory, too much LDS, a dot without MFMA."""
        found, most = self.resources, limits(target)
        shared = found.shared + self.record.shared
        faults = {
            f"spills {found.spilled} vector registers": found.spilled > 0,
            f"takes {found.scratch} bytes of scratch": found.scratch > 0,
            f"takes {shared} bytes of LDS of {most.shared}": shared > most.shared,
            f"takes {found.vector} vector registers of {most.vector}": found.vector > most.vector,
            "has a dot and no matrix instruction": self.multiplies and "v_mfma_" not in self.assembly,
        }
        return [f"{self.record.name} {what}" for what, is_so in faults.items() if is_so]


@cache
def compiled(emitted: Emitted, target: str, compiler: Compiler = compile_triton) -> tuple[Code, ...]:
    """Compile a module's kernels for a CDNA target; no device is needed."""
    with TemporaryDirectory(prefix="rlk-machine-") as name:
        folder = Path(name)
        compiler(emitted, target, folder)
        records = ModuleRecord.read(folder).kernels
        texts = [(folder / f"{r.name}.amdgcn").read_text() for r in records]
    return tuple(Code(r, t, _multiplies(emitted, r.name)) for r, t in zip(records, texts, strict=True))


def _multiplies(emitted: Emitted, kernel: str) -> bool:
    """Return whether a kernel's own source has a dot."""
    body = re.search(rf"^def {kernel}\(.*?(?=^\S*(?:def|@)|\Z)", emitted.source, re.S | re.M)
    assert body is not None
    return "tl.dot(" in body[0]


@dataclass(slots=True)
class Emulated:
    """A device that executes kernels' machine code on a CPU.

    schedule, perturb, sums: as `emulate` has them. edit: changes a kernel's code before it is launched.
    executions: one for each launch so far.
    """

    target: str
    schedule: int = 0
    perturb: int | None = None
    compiler: Compiler = compile_triton
    edit: Callable[[Code], Code] = lambda code: code
    sums: str | None = None
    executions: list[Execution] = field(default_factory=list)

    @contextmanager
    def __call__(self, emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
        """Compile a module; yield its host function and its kernels by name."""
        codes = [self.edit(code) for code in compiled(emitted, self.target, self.compiler)]
        with executed(emitted.source, emitted.file) as module:
            yield module.call, SimpleNamespace(**{c.record.name: self._launcher(c) for c in codes})

    def _launcher(self, code: Code) -> Callable[..., None]:
        def launch(grid: tuple[int, ...], *values: Any) -> None:
            found = [_argument(t, v) for t, v in zip(code.record.types, values, strict=True)]
            x, y, z = (*grid, 1, 1)[:3]
            ran = emulate(
                code.assembly,
                code.record.name,
                (x, y, z),
                (WAVE * code.record.num_warps, 1, 1),
                [*found, _NOWHERE, _NOWHERE],
                target=self.target,
                sums=self.sums,
                schedule=self.schedule,
                perturb=self.perturb,
                dynamic_shared=code.record.shared,
            )
            self.executions.append(ran)

        return launch


def _argument(kind: str, value: Any) -> Array | np.generic:
    """Return a launch's argument as the emulator takes it: a tensor's memory, or a number of its size."""
    if not kind.startswith("*"):
        return np.asarray(value).astype(_SCALARS[kind])[()]  # type: ignore[no-any-return]
    if isinstance(value, np.ndarray):
        return value
    import torch

    assert value.storage_offset() == 0, "a view of memory that another argument may have too"
    return np.asarray(torch.tensor([], dtype=torch.uint8).set_(value.untyped_storage()).numpy())


def described(executions: Sequence[Execution]) -> str:
    """Return in words what a run's launches executed."""
    opcodes: Counter[str] = Counter()
    for ran in executions:
        opcodes.update(ran.opcodes)
    taken = [ran.resources for ran in executions]
    return ", ".join(
        (
            f"{len({ran.kernel for ran in executions})} kernels, {len(executions)} launches",
            f"{sum(ran.waves for ran in executions)} waves",
            f"{opcodes.total():,} instructions of {len(opcodes)} kinds",
            f"{sum(ran.products for ran in executions):,} of them MFMA",
            f"{sum(ran.accesses for ran in executions):,} checked accesses",
            f"at most {max(t.vector for t in taken)} vector registers",
            f"{max(ran.shared for ran in executions)} bytes of LDS",
            f"{sum(t.spilled for t in taken)} spills",
            f"{sum(t.scratch for t in taken)} bytes of scratch",
        )
    )
