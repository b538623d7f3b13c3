"""A process that compiles what it is told on standard input, one JSON line at a time, and sees no device."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TextIO

from rlk.lower.common.emitted import Emitted
from rlk.runtime.launch.record import decode_request

_PAUSE = 0.5  # seconds between looks at whether the parent lives


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each request with {"error": null} or with the exception's text; end with the input."""
    for line in requests:
        answer: dict[str, object] = {"error": None}
        try:
            if tempfile.tempdir is not None:  # of days without a request, who cleans /tmp may have removed it
                os.makedirs(tempfile.tempdir, 0o700, exist_ok=True)
            compile_module(*decode_request(line))
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception as error:  # whatever a compiler throws belongs to the caller
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compile_module(emitted: Emitted, target: str, folder: Path, by: str) -> None:
    """Compile a module with its backend's compiler, the function `by`: "module:function"."""
    module, _, name = by.partition(":")
    compiler = attrgetter(name)(import_module(module))
    compiler(emitted, target, folder)


def _end_with(parent: int, scratch: str) -> None:
    """End this process, and the compilers that it started, when nobody waits for them any more."""
    while os.getppid() == parent:
        time.sleep(_PAUSE)
    shutil.rmtree(scratch, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main(parent: int, scratch: str) -> None:
    """Serve on the original standard output; whatever compilers print goes to standard error.

    parent: the process that asks. scratch: a folder of this process alone, for all temporary files, which is
    removed at its end.
    """
    gc.set_threshold(50_000, 20, 50)  # of the time of a compile, more often would take some percent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    threading.Thread(target=_end_with, args=(parent, scratch), daemon=True).start()
    tempfile.tempdir = scratch
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
