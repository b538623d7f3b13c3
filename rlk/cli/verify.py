"""Run a model in every way that training and a rollout run it, and say whether the bits agree.

MODEL is a checkpoint's folder, a config (a .json file, which gets random weights), or a built-in tiny model:
tiny, or tiny-FAMILY. Results are compared with those of packed training by digests of their bits; errors
against float64 are held to a bar. A few controls break the model on purpose, and must be found to differ.
Exit status: 0 if every promise that was tried holds and every control was detected, 1 if not, 2 if nothing
was tried.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rlk.cli.text import Progress, file_to_write, positive
from rlk.errors import Code, LaunchError
from rlk.verify.bench import Bench
from rlk.verify.contract import GROUPS
from rlk.verify.models import BUILT_IN, DTYPES, OP, subject
from rlk.verify.page import page
from rlk.verify.report import closing, lines_of, opening
from rlk.verify.run import Report, Row, promises, verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk verify`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "model", metavar="MODEL", help=f"a folder, a .json file, or one of {', '.join(BUILT_IN)}"
    )
    groups = "; ".join(f"{name} ({what})" for name, what in GROUPS.items())
    parser.add_argument(
        "--views", action="extend", type=_groups, default=[], metavar="GROUP,...",
        help=f"only these, beside the controls; with commas between them, or repeated: {groups}",
    )  # fmt: skip
    parser.add_argument(
        "--tokens",
        type=positive,
        metavar="N",
        help="random tokens to run; default: 90 on a CPU, 8192 on a GPU",
    )
    parser.add_argument(
        "--device", metavar="cuda:0", help="default: the first GPU, or cpu where there is none"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="bfloat16", help="of the weights, default bfloat16"
    )
    parser.add_argument(
        "--seconds", type=positive, metavar="S",
        help="about what all of it may take: views then compare fewer tokens, at least one call each",
    )  # fmt: skip
    parser.add_argument(
        "--stock", action="store_true",
        help="run the views by stock transformers too: what it does not promise, measured",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON; the lines go to stderr")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with charts, which needs no network"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE",
        help="keep finished rows in this file; the same command goes on from there after an interruption",
    )  # fmt: skip


def _groups(text: str) -> list[str]:
    """Return the groups of views that an option names, with commas between them."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in GROUPS]:
        told = ", ".join(map(repr, unknown))
        raise argparse.ArgumentTypeError(f"invalid choice: {told} (choose from {', '.join(GROUPS)})")
    return names


def run(arguments: argparse.Namespace) -> int:
    """Verify, print a line for each row and everything that is wrong, write the page; return the status."""
    for option in ("html", "resume"):
        if (path := getattr(arguments, option)) is not None:
            file_to_write(path, OP, f"--{option}")
    device = _device(arguments.device)
    under_test = subject(arguments.model, DTYPES[arguments.dtype], device)
    bench = Bench.of(under_test, arguments.tokens)
    rows = promises(bench, arguments.views, arguments.stock)
    out = sys.stderr if arguments.json else sys.stdout
    progress, groups = Progress(len(rows)), list[str]()

    def say(lines: Sequence[str]) -> None:
        progress.clear()
        print("\n".join(lines), file=out, flush=True)

    def told(row: Row) -> None:
        say(list(lines_of(row, heading=row["group"] not in groups)))
        groups.append(row["group"])
        progress.step()

    try:
        report = verify(
            bench, rows, seconds=arguments.seconds or math.inf, state=arguments.resume,
            begun=lambda about: say([opening(about)]), told=told, doing=progress.say,
        )  # fmt: skip
    except KeyboardInterrupt:
        progress.clear()
        _say_where(arguments.resume)
        raise
    progress.clear()
    say(["", closing(report)])
    _write(report, arguments)
    return report.status


def _write(report: Report, arguments: argparse.Namespace) -> None:
    found: dict[str, Any] = report.json()
    if arguments.html is not None:
        arguments.html.write_text(page(found), encoding="utf-8")
        print(f"page: {arguments.html}", file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(found, indent=1, allow_nan=False))


def _say_where(state: Path | None) -> None:
    """Say after an interruption where finished rows are."""
    if state is None:
        said = "with --resume FILE finished rows are kept, and the same command goes on from there"
    elif not state.exists():
        said = f"no row was finished, and {state} was not written: begin anew"
    else:
        said = f"finished rows are in {state}: the same command goes on from there"
    print(f"rlk verify: {said}", file=sys.stderr)


def _device(name: str | None) -> torch.device:
    """Return the device of a name, by default the first GPU or the CPU. Raises LaunchError."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None:
        return torch.device("cuda", 0) if count else torch.device("cpu")
    there = ["cpu", *(f"cuda:{i}" for i in range(count))]
    full = f"{name}:0" if name == "cuda" else name
    if full not in there:
        raise LaunchError(
            Code.ARG_VALUE, op=OP, name="--device", value=name, wanted=f"one of {', '.join(there)}"
        )
    return torch.device(full)
