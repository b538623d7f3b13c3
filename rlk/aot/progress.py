"""A line of progress: rewritten in place on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any, TextIO

from rlk.runtime.kernels.pool import Stopped
from rlk.terminal import write_over

WIDTH = 24
PAUSE = 10.0  # seconds between lines where nothing is written over


class Progress:
    """Counts what is done of a total that may still grow; threads may share it."""

    def __init__(self, stream: TextIO, what: str) -> None:
        self._stream, self._what = stream, what
        self._over = stream.isatty()
        self._started = self._shown = time.monotonic()
        self.done = self.total = 0
        self._guard = threading.Lock()

    def step(self, name: str) -> None:
        """Count one as done."""
        with self._guard:
            self.done += 1
            self._show(name, last=False)

    def follow(self, work: Future[Any], name: str) -> None:
        """Count work in the total, and as done once it is, unless it is interrupted."""
        self.total += 1

        def done(ended: Future[Any]) -> None:
            if not (ended.cancelled() or isinstance(ended.exception(), Stopped)):
                self.step(name)

        work.add_done_callback(done)

    def end(self) -> None:
        """Say how long all took."""
        self._show(f"in {time.monotonic() - self._started:.0f} s", last=True)

    def _show(self, name: str, *, last: bool) -> None:
        now = time.monotonic()
        if not (self._over or last or now - self._shown >= PAUSE):
            return
        self._shown = now
        filled = WIDTH * self.done // max(1, self.total)
        bar = "#" * filled + "." * (WIDTH - filled)
        line = f"{self._what} [{bar}] {self.done}/{self.total} {name}"
        if self._over:
            write_over(self._stream, line)
        else:
            self._stream.write(f"{line}\n")
        if last and self._over:
            self._stream.write("\n")
        self._stream.flush()
