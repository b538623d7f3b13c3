"""CDNA without a device: HIP source is compiled and run on a CPU, assembly executed lane by lane.

    ran = emulate(assembly, "kernel", (4, 1, 1), (256, 1, 1), [x, y, np.int32(n)], schedule=2)
    print(ran.instructions, ran.opcodes, ran.resources)

`text` and `descriptor` parse what LLVM prints; `wave` holds registers, `access` and `lanes` reach them;
`scalar`, `integers`, `floating`, `cdna4` and `matrix` compute; `shared`, `memory` and `storage` keep bytes;
`waits` and `scheduling` order what happens; `program` decodes a kernel, `emulator` launches it, `faults` says
what is wrong. `host` compiles HIP source for the CPU and runs it there, `lint` reads it; `device` runs its
machine code (which `rlk.backends.hip` compiles), and `jit` what TileLang itself compiles and launches.
"""

from __future__ import annotations

from typing import Any

from rlk.testing.simulators.cdna.descriptor import Resources as Resources
from rlk.testing.simulators.cdna.descriptor import descriptor as descriptor
from rlk.testing.simulators.cdna.descriptor import kernels as kernels
from rlk.testing.simulators.cdna.faults import Fault as Fault
from rlk.testing.simulators.cdna.faults import FaultKind as FaultKind


def __getattr__(name: str) -> Any:
    """Return what is the emulator's: what reads assembly alone needs neither it nor numba."""
    if name not in ("Execution", "emulate"):
        raise AttributeError(f"module 'rlk.testing.simulators.cdna' has no attribute {name!r}")
    from rlk.testing.simulators.cdna import emulator

    return getattr(emulator, name)
