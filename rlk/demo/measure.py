"""Measurements of the demo: bit patterns, largest errors, times and peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlk.demo.report import BitsRow, CostRow
from rlk.testing.bits import differing
from rlk.testing.digests import bits_of

MIB = 2**20
PIECE = 2**26
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def same_bits(what: str, against: str, got: Tensor, want: Tensor) -> BitsRow:
    """Compare two tensors as bit patterns, every NaN being one pattern."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ValueError(f"{what}: {got.dtype}{list(got.shape)} against {want.dtype}{list(want.shape)}")
    return BitsRow(what, against, got.numel(), _differing(got, want))


def _differing(got: Tensor, want: Tensor) -> int:
    """Count differing patterns where the tensors are, in pieces: copies of real sizes would dominate."""
    if got.device.type == "cpu":
        return differing(got, want)
    count = torch.zeros((), dtype=torch.int64, device=got.device)
    for a, b in zip(got.reshape(-1).split(PIECE), want.reshape(-1).split(PIECE), strict=True):
        other = bits_of(a) != bits_of(b)
        count += (other & ~(a.isnan() & b.isnan())).sum()
    return int(count)


def largest_error(got: Tensor, wide: Tensor) -> float:
    """Return the largest absolute difference from a float64 tensor; equal infinities differ by nothing."""
    narrow = got.detach().to(wide)
    gap = torch.where(narrow == wide, torch.zeros_like(wide), (narrow - wide).abs())
    return float(gap.max()) if gap.numel() else 0.0


def milliseconds(work: Callable[[], Any], device: str, repeats: int) -> float:
    """Return the median time of the work after one warm call."""
    work()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def peak_mib(work: Callable[[], Any], device: str) -> float | None:
    """Return the work's peak memory above the memory in use before it; None if unknown."""
    gc.collect()
    if device != "cpu":
        _wait(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        _wait(device)
        return (torch.cuda.max_memory_allocated() - before) / MIB
    _trim()
    before = _resident("VmRSS")
    if before is None or not _forget_peak():
        return None
    work()
    after = _resident("VmHWM")
    return None if after is None else max(0.0, after - before)


def cost(what: str, rlk: Callable[[], Any], plain: Callable[[], Any], device: str, repeats: int) -> CostRow:
    """Measure two ways to do one piece of work, one after the other."""
    times = [milliseconds(work, device, repeats) for work in (rlk, plain)]
    peaks = [peak_mib(work, device) for work in (rlk, plain)]
    return CostRow(what, times[0], times[1], peaks[0], peaks[1])


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _resident(field: str) -> float | None:
    """Read a memory figure of this process in MiB, on Linux."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    return None


def _trim() -> None:
    """Return freed memory to the system, so that the work's allocations are seen again; glibc only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _forget_peak() -> bool:
    """Start the kernel's peak figure of this process again; False where that is not allowed."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True
