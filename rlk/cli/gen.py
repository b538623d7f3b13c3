"""Write the checked-in kernels and stubs of rlk, or kernels or stubs of operators of other packages.

Kernels have the reference schedules at the reference shapes: the same bytes each time.
"""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from rlk.cli.listing import subject
from rlk.cli.text import Progress, made_folder
from rlk.errors import Code, LaunchError
from rlk.resources import generated
from rlk.runtime.reference import TARGETS, reference_sources
from rlk.runtime.registry import defined_in, operators

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
    parser.add_argument(
        "--stubs", action="store_true",
        help="write no kernels, but a .pyi beside the file of each operator named: signatures for editors",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or compare them."""
    if arguments.stubs:
        return _stubs(arguments)
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
    if arguments.out is None:
        from rlk.pages.stubs import stubs  # which imports rlk.ops

        sources |= stubs()
    stale = [path for path in sorted(sources) if _text(path) != sources[path]]
    # of a folder for some operators, the other files are not ours to judge
    extra = [path for path in _there(out) if path not in sources] if subjects is None else []
    if arguments.check:
        return _report(out, sources, stale, extra)
    _write(stale, sources)
    for path in extra:
        path.unlink()
    for path in stale:
        print(f"wrote    {_shown(path, out)}")
    for path in extra:
        print(f"removed  {path.relative_to(out)}")
    print(f"{len(sources)} files in {out}: {len(stale)} written, {len(extra)} removed")
    return 0


def _stubs(arguments: argparse.Namespace) -> int:
    """Write the stub of each file that has an operator named, of all its operators; or compare it."""
    from rlk.pages.stubs import MARK as FIRST
    from rlk.pages.stubs import module_stub

    if not arguments.op:
        raise LaunchError(Code.ARG_MISSING, op="rlk gen", name="OP", why="whose stub is to be written")
    if arguments.out is not None:
        wanted = "without --stubs: a stub is written beside the operator's file"
        raise LaunchError(Code.ARG_VALUE, op="rlk gen", name="--out", value=arguments.out, wanted=wanted)
    sources: dict[Path, str] = {}
    for name in arguments.op:
        op, module = subject(name)
        if op in operators().values():
            wanted = "an operator of another package: `rlk gen` writes the stub of rlk.ops"
            raise LaunchError(Code.ARG_VALUE, op="rlk gen --stubs", name="OP", value=name, wanted=wanted)
        path = Path(op.loc.file).resolve().with_suffix(".pyi")
        text = _text(path)
        if text is not None and not text.startswith(FIRST):
            wanted = f"no operator beside a stub that rlk did not write: {path}"
            raise LaunchError(Code.ARG_VALUE, op="rlk gen --stubs", name="OP", value=name, wanted=wanted)
        sources[path] = module_stub(module, list(defined_in(module)))
    here, stale = Path.cwd(), [path for path in sorted(sources) if _text(path) != sources[path]]
    if arguments.check:
        return _report(here, sources, stale, [])
    _write(stale, sources)
    for path in sources:
        print(f"{'wrote   ' if path in stale else 'current '} {_shown(path, here)}")
    return 0


def _write(stale: list[Path], sources: dict[Path, str]) -> None:
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sources[path], encoding="utf-8", newline="\n")


def _shown(path: Path, out: Path) -> str:
    """Return a path below a folder, or another one as it is."""
    return (path.relative_to(out) if path.is_relative_to(out) else path).as_posix()


def _there(out: Path) -> list[Path]:
    """Return the kernels in the folder that rlk wrote; files of anyone else are not its business."""
    return sorted(path for path in out.glob("*/*/*.py") if MARK in (_text(path) or "")[:300])


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _report(out: Path, sources: dict[Path, str], stale: list[Path], extra: list[Path]) -> int:
    for path in stale:
        before = (_text(path) or "").splitlines()
        name = _shown(path, out)
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
