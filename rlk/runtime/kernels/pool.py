"""A pool of compiler processes, which see no device and cannot take this process down."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

from rlk.backends.registry import of_name
from rlk.env import Env, without_devices
from rlk.errors import Code, CompileError
from rlk.lower.common.emitted import Emitted
from rlk.runtime.launch.record import encode_request

T = TypeVar("T")

logger = logging.getLogger("rlk.compile")
PACKAGES = Path(__file__).resolve().parents[3]
"""Where rlk is: on the path of `python -c` in a checkout only as the current folder."""


class WorkerDied(Exception):
    """A compiler ended its process; the message holds what it last said."""


class Stopped(Exception):
    """Nothing more is compiled: somebody interrupted this process."""


class _Worker:
    """One compile process. Not multiprocessing: that would run the user's main module a second time."""

    def __init__(self) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._scratch = tempfile.mkdtemp(prefix="rlk-compile-")  # the process removes it, or who kills it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlk.runtime.kernels.worker", str(os.getpid()), self._scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=without_devices({"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(PACKAGES)])}),
            process_group=0,  # the compilers that it starts end with it, and Ctrl-C reaches none of them
        )

    def ask(self, request: str) -> dict[str, object]:
        """Send a request, wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerDied(self._last_words())
        answer: dict[str, object] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()[-20:]
        return "\n".join([f"the compile process ended with status {status}", *said])

    def close(self) -> None:
        """End the process: it stops when its input does."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it ended before it read all
                self._process.stdin.close()
        self._log.close()

    def kill(self) -> None:
        """End the process and what it started, whatever they do, and remove what they would have removed."""
        with suppress(ProcessLookupError, PermissionError):  # it ended meanwhile
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)


class Pool:
    """Up to `jobs` compile processes, started when first needed."""

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="rlk-compile")
        self._slots = threading.Semaphore(jobs)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._guard = threading.Lock()
        self._stopped = False
        self.compiled = 0  # modules, so far

    def compile(self, emitted: Emitted, target: str, folder: Path) -> None:
        """Compile a module into `folder`; raises CompileError naming the kept source, OSError, or Stopped."""
        request = encode_request(emitted, target, folder, of_name(emitted.backend).compiler)
        with self._slots:
            worker, begin = self._take(), time.monotonic()
            try:
                answer = worker.ask(request)
            except WorkerDied as death:
                answer = {"error": str(death)}
                self._drop(worker)
                worker.kill()  # what it started, and its files
                worker.close()
            except BaseException:  # Ctrl-C while waiting: its answer would be taken for the next one's
                self._drop(worker)
                worker.kill()
                raise
            else:
                self._drop(worker, idle=True)
        error = answer["error"]
        if error is None:
            with self._guard:
                self.compiled += 1
            seconds = time.monotonic() - begin
            logger.info("%s compiled %s for %s in %.1f s", emitted.backend, emitted.file, target, seconds)
            return
        if isinstance(answer.get("errno"), int):
            raise OSError(answer["errno"], str(error))
        raise CompileError(
            Code.COMPILE_FAILED,
            backend=emitted.backend,
            kernel=emitted.file,
            reason=str(error),
            path=_keep(emitted),
        )

    def _take(self) -> _Worker:
        with self._guard:
            if self._stopped:
                raise Stopped
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.add(worker)
            return worker

    def _drop(self, worker: _Worker, *, idle: bool = False) -> None:
        """Count a worker as no longer busy; raise Stopped where it was killed."""
        with self._guard:
            self._busy.discard(worker)
            if self._stopped:
                raise Stopped
            if idle:
                self._idle.append(worker)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, which waits for a compile, in the background."""
        return self._threads.submit(work)

    def close(self) -> None:
        """End the processes after their current work."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._idle:
            worker.close()
        self._idle.clear()

    def stop(self) -> None:
        """End the processes now and start none: what waits for a compile is cancelled, or raises Stopped."""
        with self._guard:
            self._stopped = True
            workers = [*self._busy, *self._idle]
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()


def _keep(emitted: Emitted) -> str:
    """Write a source that does not compile to where its author can read it."""
    path = Path(tempfile.mkdtemp(prefix="rlk-failed-")) / Path(emitted.file).name
    path.write_text(emitted.source)
    return str(path)


_pools: dict[int, Pool] = {}
_pools_guard = threading.Lock()


def pool() -> Pool:
    """Return this process's pool; a forked child gets its own, for it has none of its parent's threads."""
    with _pools_guard:
        if os.getpid() not in _pools:
            _pools.clear()
            _pools[os.getpid()] = Pool(Env.current().jobs)
        return _pools[os.getpid()]


def stop_pool() -> None:
    """Stop this process's pool, if it has one, for good."""
    made = _pools.get(os.getpid())
    if made is not None:
        made.stop()
