"""Loading of binaries through a device's driver, and what a launch asks of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlk.backends.interface import Launcher
from rlk.runtime.launch.driver import driver, may_overlap
from rlk.runtime.launch.launcher import Services, make_launcher
from rlk.runtime.launch.record import LaunchRecord


def load_binaries(
    folder: Path, kernels: tuple[LaunchRecord, ...], kind: str, device: int
) -> dict[str, Launcher]:
    """Load binaries through the driver; all are read before the first, for the entry may vanish meanwhile."""
    images = {record.name: (folder / record.file).read_bytes() for record in kernels}
    loading = driver(kind)
    torch_services, allocate = services(), _scratch(device)
    launchers: dict[str, Launcher] = {}
    for record in map(overlapping, kernels):
        function = loading.load(images[record.name], record.symbol or record.name, record.shared, device)
        launchers[record.name] = make_launcher(record, function, loading, torch_services, allocate)
    return launchers


def overlapping(record: LaunchRecord) -> LaunchRecord:
    """Return a record whose kernel overlaps those before it only where the user and the driver let it."""
    return record if may_overlap() else replace(record, overlaps=False)


def services() -> Services:
    """Return what a launch asks of torch."""
    import torch

    return Services(
        torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice, lambda index: torch.cuda.device(index)
    )


def _scratch(device: int) -> Callable[[int], Any]:
    """Return what allocates bytes that a launch needs for itself."""
    import torch

    where = torch.device("cuda", device)
    return lambda size: torch.empty(size, dtype=torch.uint8, device=where)
