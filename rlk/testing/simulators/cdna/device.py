"""Kernels of a TileLang module as machine code: clang's assembly, executed by the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from rlk.backends import hip
from rlk.lower.common.emitted import Emitted, KernelBuild
from rlk.testing.simulators.cdna.emulator import Execution, emulate
from rlk.testing.simulators.cdna.host import memory_of

_SCALARS = {"int": np.int32, "int64_t": np.int64, "uint": np.uint32, "float": np.float32, "bool": np.bool_}


@dataclass(slots=True)
class EmulatedWaves:
    """A device that executes TileLang's kernels on a CPU, instruction by instruction.

    schedule, perturb, sums: as `emulate` has them. executions: one for each launch so far.
    """

    target: str = "gfx942"
    schedule: int = 0
    perturb: int | None = None
    executions: list[Execution] = field(default_factory=list)
    sums: str | None = None

    @contextmanager
    def __call__(self, emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
        """Compile a module; yield its host function and its kernels by name."""
        kernels = {build.name: self._launcher(emitted, build) for build in emitted.kernels}
        yield hip.load(emitted.source).call, SimpleNamespace(**kernels)

    def _launcher(self, emitted: Emitted, build: KernelBuild) -> Callable[..., None]:
        source = hip.hip_source(emitted.source, build.name, self.target)
        found, assembly = hip.entry(source), hip.assembly(source, self.target)
        names = [argument.name for argument in build.args]

        def launch(grid: tuple[int], *values: Any) -> None:
            given = dict(zip(names, values, strict=True)) | {"programs": grid[0]}
            ran = emulate(
                assembly,
                found.name,
                (grid[0], 1, 1),
                (found.threads, 1, 1),
                _arguments(found, given),
                target=self.target,
                sums=self.sums,
                schedule=self.schedule,
                perturb=self.perturb,
            )
            self.executions.append(ran)

        return launch


def _arguments(found: hip.Entry, given: dict[str, Any]) -> list[Any]:
    """Return a launch's arguments in the order of the kernel's parameters, which is TileLang's own."""
    return [
        memory_of(given[p.name]) if p.is_pointer else _SCALARS[p.type](given[p.name])
        for p in found.parameters
    ]
