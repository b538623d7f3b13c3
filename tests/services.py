"""A launch's functions of torch, without a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlk.runtime.launch.launcher import Services


class Torch:
    """A device with a current one beside it; `of` is the handle of device 0's current stream."""

    def __init__(self, current: int = 0, of: int = 0x50) -> None:
        self.now = current
        self.services = Services(lambda device: of + device, lambda: self.now, self.entered)

    @contextmanager
    def entered(self, device: int) -> Iterator[None]:
        before, self.now = self.now, device
        try:
            yield
        finally:
            self.now = before


NO_STREAM = Services(lambda device: 0, lambda: 0, Torch().entered)
