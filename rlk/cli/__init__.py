"""Which commands `rlk` has, and how they end: 0 done, 1 something is wrong, 2 it could not be tried."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from rlk import __version__
from rlk.errors import RlkError

COMMANDS = {
    "list": "the operators, what they are differentiable in, and their numerics ids",
    "show": "one operator: its signature, its tile IR after any pass, its generated source",
    "check": "whether operators obey the laws: gradients, tilings, rows, bits of generated source",
    "gen": "write the checked-in kernels, or say whether they are stale",
    "tune": "measure schedules of a contraction, and propose entries of the reviewed tables",
    "aot": "wheels of kernels compiled ahead: build them without a GPU, show what one holds",
    "warmup": "prepare every kernel that a model needs, before it is first called",
    "cache": "the kernel store: list, shrink, verify, export, import",
    "doctor": "versions, devices, the store, and what this machine's arithmetic does",
    "docs": "a page for every operator, as Markdown, from its spec",
    "demo": "one GRPO step from logits on real text, measured against the oracle, float64 and torch",
}

MODULES = {"list": "listing"}  # a module called list would hide the builtin in this one


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in COMMANDS:
        top = _top()
        top.parse_args(given)
        top.print_help()
        return 2 if given else 0
    command = given[0]
    try:
        module = importlib.import_module(f"rlk.cli.{MODULES.get(command, command)}")
        parser = argparse.ArgumentParser(prog=f"rlk {command}", description=module.__doc__)
        module.add_arguments(parser)
        return int(module.run(parser.parse_args(given[1:])))
    except RlkError as error:
        text = str(error)
        print(text if text.startswith("rlk") else f"rlk {command}: {text}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "rlk":
            raise
        print(f"rlk {command}: {error.name} is not installed: {_extra(command)}", file=sys.stderr)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return 2


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
    return f"pip install 'rlk[{'demo' if command == 'demo' else 'triton'}]'"
