"""A process that compiles what it is told on standard input, one JSON line at a time, and sees no device."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO

from rlk.lower.common.emitted import Emitted
from rlk.runtime.cute import compile_cute
from rlk.runtime.record import decode_request
from rlk.runtime.tilelang import compile_tilelang
from rlk.runtime.toolchain import compile_triton


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each request with {"error": null} or with the exception's text; end with the input."""
    for line in requests:
        answer: dict[str, object] = {"error": None}
        try:
            compile_module(*decode_request(line))
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception as error:  # whatever a compiler throws belongs to the caller
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compile_module(emitted: Emitted, target: str, folder: Path) -> None:
    """Compile a module with its backend's compiler."""
    match emitted.backend:
        case "triton":
            compile_triton(emitted, target, folder)
        case "cute":
            compile_cute(emitted, target, folder)
        case "tilelang":
            compile_tilelang(emitted, target, folder)
        case other:
            raise ValueError(f"there is no compiler for backend {other!r}")


def main() -> None:
    """Serve on the original standard output; whatever compilers print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
