"""Benchmarks of several processes on one device take turns: whoever measures has it alone."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import torch


@cache
def _lock() -> IO[str] | None:
    """Open the lock of the current device; None where there is none."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    return (Path(tempfile.gettempdir()) / f"rlk-benchmarks-{name}.lock").open("w")


@contextmanager
def alone() -> Iterator[None]:
    """Hold the device: others wait until this ends, or is aside."""
    lock = _lock()
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock is not None:
            torch.cuda.synchronize()
            fcntl.flock(lock, fcntl.LOCK_UN)


@contextmanager
def aside() -> Iterator[None]:
    """Let others have the device while a CPU works for whoever holds it."""
    lock = _lock()
    if lock is not None:
        torch.cuda.synchronize()
        fcntl.flock(lock, fcntl.LOCK_UN)
    try:
        yield
    finally:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
