"""The commands of `rlk` and their exit codes: 0 done, 1 something is wrong, 2 not tried, 130 interrupted."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress

from rlk import __version__
from rlk.env import Env
from rlk.errors import RlkError
from rlk.resources import installing
from rlk.terminal import Plain, Unwritable, printable, write_over

COMMANDS = {
    "list": "the operators, what they are differentiable in, and their numerics ids",
    "show": "one operator: its signature, its tile IR after any pass, its generated source",
    "check": "whether operators obey the laws: gradients, tilings, rows, bits of generated source",
    "verify": "whether a whole model has the same bits in training, scoring, prefill and decoding",
    "gen": "write the checked-in kernels, or say whether they are stale",
    "tune": "measure schedules of an operator on the device, and propose entries of tables",
    "aot": "wheels of kernels compiled ahead: build them without a GPU, show what one holds",
    "warmup": "prepare every kernel that a model needs, before it is first called",
    "cache": "the kernel store: list, shrink, verify, export, import",
    "drift": "whether two engines give the same tokens the same log-probs, and the operator where they part",
    "doctor": "versions, devices, the store, and what this machine's arithmetic does",
    "new-op": "an operator of your own: spec, float64 form, tests and docs, in a package that installs",
    "docs": "a page for every operator, as Markdown, from its spec",
    "demo": "one GRPO step from logits on real text, measured against the oracle, float64 and torch",
}

logger = logging.getLogger("rlk.cli")

COMPILING = ("aot", "tune", "warmup")  # into the store
EXTRAS = {"demo": "demo", "drift": "models"}  # whose packages commands import
PATIENCE = 5.0  # seconds that a process has to end after Ctrl-C

MODULES = {"list": "listing", "new-op": "new_op"}  # a module called list would hide the builtin in this one


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; without argv those of this process, which then ends."""
    if argv is None:
        _obey_interrupts()
    given = list(sys.argv[1:] if argv is None else argv)
    with (
        open(os.devnull, "w") as nowhere,  # for streams that whoever started this process closed
        redirect_stdout(Plain(sys.stdout or nowhere)),  # type: ignore[type-var]
        redirect_stderr(Plain(sys.stderr or nowhere)),  # type: ignore[type-var]
    ):
        try:
            return _ended(given, ends=argv is None)
        except BrokenPipeError:  # the reader, such as head, has seen enough
            _discard_output()
            return 141
        except Unwritable as error:
            _discard_output()
            with suppress(Unwritable, BrokenPipeError):
                print(f"rlk {given[0] if given else ''}: cannot write its output: {error}", file=sys.stderr)
            return 2


def _ended(given: list[str], *, ends: bool) -> int:
    """Return the status of a command, what it raised said in one line."""
    command = given[0] if given else ""
    try:
        try:
            return _run(given)
        finally:
            sys.stdout.flush()
    except RlkError as error:
        logger.debug("rlk %s", command, exc_info=error)
        text = str(error)
        print(text if text.startswith("rlk") else f"rlk {command}: {text}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "rlk":
            raise
        print(f"rlk {command}: {error.name} is not installed: {_extra(command)}", file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError as error:
        logger.debug("rlk %s", command, exc_info=error)
        place = "" if error.filename is None else f"{printable(error.filename2 or error.filename)}: "
        print(f"rlk {command}: {place}{error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        _stop(command, ends=ends)
        return 130
    return 2


def _discard_output() -> None:
    """Let what is still buffered go nowhere when the interpreter flushes it."""
    with suppress(OSError, ValueError):  # no file of the system, such as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(given: list[str]) -> int:
    if not given or given[0] not in COMMANDS:
        top = _top()
        top.parse_args(given)
        top.print_help()
        return 2 if given else 0
    command = given[0]
    Env.current()  # what cannot be used in the environment is said first, and RLK_LOG obeyed
    module = importlib.import_module(f"rlk.cli.{MODULES.get(command, command)}")
    parser = argparse.ArgumentParser(prog=f"rlk {command}", description=module.__doc__)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(given[1:])))


# --- Ctrl-C -------------------------------------------------------------------------------------------


def _obey_interrupts() -> None:
    """Let Ctrl-C end the command in order, and the process a little later whatever it still waits for."""

    def interrupted(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # impatience would only interrupt tidying up
        signal.signal(signal.SIGALRM, lambda *_: os._exit(130))  # compile processes end with their parent
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it
        signal.signal(signal.SIGINT, interrupted)


def _stop(command: str, *, ends: bool) -> None:
    """Say that a command was interrupted; ends: this process, so that nothing more is compiled in it."""
    from rlk.runtime.kernels.pool import stop_pool

    if ends:
        logging.disable()  # what fails from now on fails because it was stopped
    if sys.stderr.isatty():
        write_over(sys.stderr, "")
    kept = (
        ": what was compiled is kept, and the same command goes on from there" if command in COMPILING else ""
    )
    print(f"rlk {command}: interrupted{kept}", file=sys.stderr, flush=True)
    if ends:
        stop_pool()


def _top() -> argparse.ArgumentParser:
    lines = [f"  {name:<8} {text}" for name, text in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="rlk",
        usage="rlk COMMAND [options]     (rlk COMMAND --help says more)",
        description="Reinforcement-learning kernels whose bits are part of the operator.",
        epilog="commands:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rlk {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", nargs="?", help=argparse.SUPPRESS)
    return parser


def _extra(command: str) -> str:
    return installing(EXTRAS[command] if command in EXTRAS else "triton")
