"""Check that operators obey the laws, shipped ones by name or one's own as path/to/spec.py:name.

A spec whose inputs cannot be drawn from their types alone says how beside itself: `<op>_inputs(rng)` returns
arrays and numbers by name, `<op>_grad_inputs(saved)` what its gradient takes beside saved tensors and
cotangents.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path

from rlk.cli.listing import subject
from rlk.cli.text import Progress, given_extents, natural, positive, table
from rlk.errors import Code, LaunchError
from rlk.ir.text import print_program
from rlk.lang.op import Op, axes_of
from rlk.pages.tried import page_failures
from rlk.runtime.binding.invocation import is_own
from rlk.runtime.kernels.pool import pool
from rlk.runtime.reference import TARGETS
from rlk.runtime.registry import authored, known, unknown
from rlk.target.facts import Target, target
from rlk.terminal import printable
from rlk.testing.check import Law, Verdict, check
from rlk.testing.examples import Example, of_module

_MEASURED = {
    Law.TEXT: "{count} forms, {worst:.0f} differ",
    Law.FLOAT64: "{count} outputs, largest relative error {worst:.1e}",
    Law.SLOPE: "{count} slopes, largest relative error {worst:.1e}",
    Law.TILES: "{count} tilings, {worst:.0f} elements differ",
    Law.ROWS: "{count} batches, {worst:.0f} elements differ",
    Law.SOURCE: "{count} schedules, {worst:.0f} elements differ",
    Law.SIMULATED: "{count} runs, {worst:.0f} elements differ",
    Law.LOWERS: "{count} kernels",
    Law.COMPILES: "{count} kernels",
    Law.MACHINE: "{count} orders of waves, {worst:.0f} elements differ",
    Law.PAGE: "{count} rows, {worst:.0f} do not hold",
}
LAST_WRITES_S = 5.0  # in which a killed process has ended
_RESULT = {True: "ok", False: "FAILED", None: "not tried"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk check`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "op", nargs="*", metavar="OP", help="an operator of rlk list, or path/to/spec.py:name"
    )
    parser.add_argument("--all", action="store_true", help="every operator of rlk and of other packages")
    parser.add_argument(
        "--except", action="append", default=[], dest="left_out", metavar="OP", help="of --all, not this one"
    )  # fmt: skip
    parser.add_argument(
        "--target",
        action="append",
        metavar="NAME",
        help=f"whose exp2 and schedules; default: {' and '.join(TARGETS)}; may be repeated",
    )
    laws = ", ".join(f"{law.name.lower()} ({law.value})" for law in Law)
    parser.add_argument(
        "--law",
        action="append",
        choices=[law.name.lower() for law in Law],
        metavar="LAW",
        help=f"only these; may be repeated: {laws}",
    )
    parser.add_argument(
        "--extent",
        action="append",
        default=[],
        metavar="NAME=N",
        help="of an axis: where source of other backends is run once more, and threads of a kernel have"
        " several elements; may be repeated; default: the registered extents, halved until they take seconds",
    )
    parser.add_argument("--seed", type=natural, default=0, help="of the drawn inputs")
    parser.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help="operators at a time, default 1"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check, print one line for each operator and law, then every failure; return 1 if there is one."""
    names = _names(arguments)
    subjects = [_subject(name)[0] for name in names]
    targets = [target(name) for name in arguments.target or TARGETS]
    laws = [law for law in Law if not arguments.law or law.name.lower() in arguments.law]
    axes = {axis.name for op in subjects for axis in axes_of(op.formals)}
    extents = given_extents("rlk check", arguments.extent, axes)
    progress, start = Progress(len(subjects)), time.monotonic()
    found: list[Verdict] = []
    one = partial(_checked, targets=targets, laws=laws, seed=arguments.seed, extents=extents)
    if arguments.jobs > 1 and len(names) > 1:
        found += _side_by_side(one, names, arguments.jobs, progress)
    else:
        for op, name in zip(subjects, names, strict=True):
            progress.say(op.name)
            for verdict in one(name):
                found.append(verdict)
                by = f" by {verdict.backend}" if verdict.backend else ""
                said = f"{op.name} ({verdict.case}{by}): {verdict.law.value}"
                progress.say(said)
                _told(progress, f"{said}: {_RESULT[verdict.ok]}")
            progress.step()
    progress.clear()
    shown = [law for law in laws if law is not Law.LOWERS]  # which has a table of its own
    rows = [row for op in subjects for law in shown for row in _rows(op.name, law, found)]
    print(table(("operator", "law", "cases", "", "measured"), rows, right=("cases",)))
    if Law.LOWERS in laws:
        print()
        print(table(("operator", "backend", "target", "program", "variants", "lowers"), _lowered(found)))
    for note in dict.fromkeys(v.note for v in found if v.law is Law.SIMULATED and v.ok is None):
        print(f"\n{note}")
    for v in found:
        if v.ran:
            print(f"\n{v.op} ({v.case}): {v.ran}")
    failures = [v for v in found if v.ok is False]
    causes: dict[str, list[Verdict]] = {}  # one cause fails several laws, in every variant
    for v in failures:
        causes.setdefault(v.note or _measured(v.law, v.count, v.worst), []).append(v)
    for note, of_it in causes.items():
        print()
        for v in of_it:
            print(f"FAILED {v.op} ({v.case}): {v.law.value}")
        print("    " + "\n    ".join(note.splitlines()))
    tried = sum(v.ok is not None for v in found)
    seconds = f"{time.monotonic() - start:.0f} s"
    print(f"\n{tried} checks on {', '.join(t.name for t in targets)} in {seconds}: ", end="")
    untried = f" ({len(found) - tried} not tried)" if tried < len(found) else ""
    print(f"{len(failures)} FAILED{untried}" if failures else f"all ok{untried}")
    return 1 if failures else 0


def _told(progress: Progress, line: str) -> None:
    """Print a line on stderr where no line of progress is shown: checks take minutes."""
    if not progress.live:
        print(printable(line), file=sys.stderr, flush=True)


def _checked(
    name: str, targets: Sequence[Target], laws: Sequence[Law], seed: int, extents: dict[str, int]
) -> Iterator[Verdict]:
    import rlk.ops  # noqa: F401 - which gives rlk's own operators their float64 forms

    op, example = _subject(name)
    with authored(op):
        own = {axis.name: extents[axis.name] for axis in axes_of(op.formals) if axis.name in extents}
        yield from check(op, example, targets, laws, seed, pool().compile, own or None)
        if Law.PAGE in laws:
            yield _page(op)


def _page(op: Op) -> Verdict:
    """Run what the page of an operator of another package says; tests do so for rlk's own pages."""
    record = op.record
    if is_own(op) or not (record.usage or record.edges):
        own = "tests run the pages of rlk" if op.calls.namespace else "it is not registered"
        why = own if is_own(op) else "its registration has neither usage= nor edges="
        return Verdict(Law.PAGE, op.name, "page", None, note=why)
    count, failures = page_failures(op, record)
    return Verdict(Law.PAGE, op.name, "page", not failures, count, len(failures), "\n".join(failures))


def _all_of(one: Callable[[str], Iterator[Verdict]], name: str) -> list[Verdict]:
    """Return what is found of an operator, in a process of its own."""
    return list(one(name))


def _begin_child(scratch: str) -> None:
    """Leave Ctrl-C to the process that asked, which ends this one; temporary files, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = scratch
    gc.set_threshold(50_000, 20, 50)  # it makes programs and text, which no cycle holds


@contextmanager
def _scratch() -> Iterator[str]:
    """Hold a folder for temporary files; compilers of killed children write until they have ended."""
    folder = tempfile.mkdtemp(prefix="rlk-check-")
    try:
        yield folder
    finally:
        end = time.monotonic() + LAST_WRITES_S
        while Path(folder).exists() and time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.01)


def _side_by_side(
    one: Callable[[str], Iterator[Verdict]], names: Sequence[str], jobs: int, progress: Progress
) -> list[Verdict]:
    """Return what is found of several operators at a time, in the order of their names."""
    made: dict[str, list[Verdict]] = {}
    strangers = set(active_children())
    with (
        _scratch() as scratch,
        ProcessPoolExecutor(jobs, get_context("spawn"), _begin_child, (scratch,)) as children,
    ):
        # the longest first, so that none of them is the last to begin
        running = {children.submit(_all_of, one, name): name for name in sorted(names, key=_length)[::-1]}
        try:
            for done in as_completed(running):
                made[running[done]] = done.result()
                progress.say(running[done])
                failed = sum(verdict.ok is False for verdict in made[running[done]])
                _told(progress, f"{running[done]}: {len(made[running[done]])} checks, {failed} failed")
                progress.step()
        except BaseException:
            for child in set(active_children()) - strangers:  # their compilers end with them
                child.kill()
            children.shutdown(cancel_futures=True)
            raise
    return [verdict for name in names for verdict in made[name]]


def _length(name: str) -> int:
    """Return the length of an operator's traced program, a measure of what its checks take."""
    op, _ = _subject(name)
    return len(print_program(op.trace(op.default_variant())))


def _subject(name: str) -> tuple[Op, Example]:
    op, module = subject(name)
    return op, of_module(module, op)


def _names(arguments: argparse.Namespace) -> list[str]:
    for name in arguments.left_out:  # one that is not there would leave nothing out
        if name not in known():
            raise unknown(name, sorted(known()))
    every = [name for name in known() if name not in arguments.left_out]
    names: Sequence[str] = every if arguments.all else arguments.op
    if not names or (arguments.all and arguments.op):
        raise LaunchError(Code.ARG_MISSING, op="rlk check", name="OP or --all", why="(one of them)")
    return list(names)


def _rows(op: str, law: Law, found: Sequence[Verdict]) -> Iterator[tuple[object, ...]]:
    """Yield a row for a law, or one for each backend of a law that is tried by backend."""
    mine = [v for v in found if v.op == op and v.law is law]
    for backend in dict.fromkeys(v.backend for v in mine) or ("",):
        said = f"{law.value}: {backend}" if backend else law.value
        yield _row(op, law, said, [v for v in mine if v.backend == backend])


def _row(op: str, law: Law, said: str, mine: Sequence[Verdict]) -> tuple[object, ...]:
    tried = [v for v in mine if v.ok is not None]
    if not tried:
        note = mine[0].note if mine else "no case"
        return op, said, 0, "-", "not run, see below" if mine and law is Law.SIMULATED else note
    result = "ok" if all(v.ok for v in tried) else "FAILED"
    count, worst = sum(v.count for v in tried), max(v.worst for v in tried)
    return op, said, len(tried), result, _measured(law, count, worst)


def _lowered(found: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """Return rows: which backend lowers which variants of which program, or why not."""
    variants: dict[tuple[str, ...], list[str]] = {}
    every: dict[tuple[str, ...], int] = {}
    for v in found:
        if v.law is Law.LOWERS:
            variant, _, program = v.case.rpartition(", ")
            what, _, on = program.partition(" on ")
            row = (v.op, v.backend, on, what)
            every[row] = every.get(row, 0) + 1
            variants.setdefault((*row, "yes" if v.ok else f"no: {v.note}"), []).append(variant)
    return [
        (*row, "all" if len(labels) == every[tuple(row)] else ", ".join(labels), said)
        for (*row, said), labels in variants.items()
    ]


def _measured(law: Law, count: int, worst: float) -> str:
    return _MEASURED[law].format(count=count, worst=worst)
