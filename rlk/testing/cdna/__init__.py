"""CDNA without a device: HIP source is compiled and run on a CPU, assembly executed lane by lane."""

from __future__ import annotations

from rlk.testing.cdna.descriptor import Resources as Resources
from rlk.testing.cdna.descriptor import descriptor as descriptor
from rlk.testing.cdna.descriptor import kernels as kernels
from rlk.testing.cdna.emulator import Execution as Execution
from rlk.testing.cdna.emulator import emulate as emulate
from rlk.testing.cdna.faults import Fault as Fault
from rlk.testing.cdna.faults import FaultKind as FaultKind
