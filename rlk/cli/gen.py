"""Write the checked-in kernels: the reference schedules at the reference shapes, the same bytes each time."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from rlk.cli.listing import subject
from rlk.cli.text import Progress, made_folder
from rlk.errors import Code, LaunchError
from rlk.resources import generated
from rlk.runtime.reference import TARGETS, reference_sources
from rlk.runtime.registry import operators

SHOWN = 40  # lines of a difference
MARK = "written by rlk"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk gen`."""
    parser.add_argument(
        "op", nargs="*", metavar="OP",
        help="your operators, as namespace.name or path/to/spec.py:name; default: those that rlk ships",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    parser.add_argument("--out", type=Path, help="the folder; default: generated/ of this checkout")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or compare them."""
    subjects = [subject(name)[0] for name in arguments.op] or None
    if subjects is not None and arguments.out is None:
        why = "where operators are named"
        raise LaunchError(Code.ARG_MISSING, op="rlk gen", name="--out", why=why)
    out: Path = arguments.out or generated()
    if arguments.out is None and out.name.startswith("_"):
        raise LaunchError(
            Code.ARG_MISSING, op="rlk gen", name="--out", why="outside a checkout: the installed files stay"
        )
    if not arguments.check:
        made_folder(out, "rlk gen", "--out")
    progress = Progress(2 * len(TARGETS) * len(subjects or operators()))
    sources: dict[Path, str] = {}
    for name, source in reference_sources(subjects):
        progress.say(name)
        sources[out / name] = source
        progress.step()
    progress.clear()
    stale = [path for path in sorted(sources) if _text(path) != sources[path]]
    # of a folder for some operators, the other files are not ours to judge
    extra = [path for path in _there(out) if path not in sources] if subjects is None else []
    if arguments.check:
        return _report(out, sources, stale, extra)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sources[path], encoding="utf-8", newline="\n")
    for path in extra:
        path.unlink()
    for path in stale:
        print(f"wrote    {path.relative_to(out)}")
    for path in extra:
        print(f"removed  {path.relative_to(out)}")
    print(f"{len(sources)} files in {out}: {len(stale)} written, {len(extra)} removed")
    return 0


def _there(out: Path) -> list[Path]:
    """Return the kernels in the folder that rlk wrote; files of anyone else are not its business."""
    return sorted(path for path in out.glob("*/*/*.py") if MARK in (_text(path) or "")[:300])


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _report(out: Path, sources: dict[Path, str], stale: list[Path], extra: list[Path]) -> int:
    for path in stale:
        before = (_text(path) or "").splitlines()
        name = path.relative_to(out).as_posix()
        lines = list(
            difflib.unified_diff(before, sources[path].splitlines(), name, "as emitted now", lineterm="")
        )
        print("\n".join(lines[:SHOWN]))
        if len(lines) > SHOWN:
            print(f"... and {len(lines) - SHOWN} more lines")
    for path in extra:
        print(f"{path.relative_to(out)}: no operator emits this file")
    wrong = len(stale) + len(extra)
    print(f"{len(sources)} files, {wrong} stale" + ("; run: rlk gen" if wrong else ""))
    return 1 if wrong else 0
