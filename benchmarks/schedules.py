"""Rows of known cliffs under entries of a user's table, one after the other, in one process.

`python -m benchmarks.schedules table.toml --only "policy_loss fwd"` times each row as it is shipped, then
with each entry for its operator alone, then as it is shipped again, and prints the time of every kernel.
`rlk tune` draws its own inputs and lists; this has a benchmark's inputs, and the entries that somebody wrote.
`--of bench_moe` takes the cases of another benchmark in place of those of known cliffs.
Results must have the same bits: a row that differs ends the command with status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from benchmarks.cliffs import case_of
from benchmarks.harness import Case
from benchmarks.kernel_times import measured
from benchmarks.rows import label
from benchmarks.shapes import fixed
from benchmarks.timing import measure
from benchmarks.turns import alone
from rlk.runtime.call.dispatch import dispatch
from rlk.schedule.user_table import Table, read, using
from rlk.testing.bits import differing


def tables(table: Table, case: Case) -> Iterator[tuple[str, Table]]:
    """Yield the shipped schedules, each entry of a table for a case's operator, and the shipped ones."""
    yield "as shipped", Table()
    for entry in table.entries:
        if entry.op.startswith(case.op):  # as that of its gradient does
            used = ", ".join(f"{name} {value}" for name, value in entry.use)
            yield f"{entry.backend} {entry.kernel}: {used}", Table((entry,))
    yield "as shipped", Table()


def results(launch: Any) -> list[Tensor]:
    """Return the tensors of a call's result."""
    return [x.cpu() for x in _pytree.tree_leaves(launch()) if isinstance(x, Tensor)]


def compare(case: Case, table: Table, seconds: float) -> bool:
    """Time a case under each table and print it; return whether all results have the same bits."""
    first: list[Tensor] | None = None
    same = True
    for name, each in tables(table, case):
        # a backward pass in another thread would not see the table
        with using(each), torch.autograd.set_multithreading_enabled(False):
            dispatch.forget()
            torch.manual_seed(0)  # of a gradient's cotangent
            try:
                launch = case.rlk()
                found = results(launch)
            except Exception as error:  # the other entries are still worth a look
                print(f"  {name}: {type(error).__name__}: {error}"[:300], flush=True)
                continue
            first = found if first is None else first
            differ = sum(differing(a, b) for a, b in zip(found, first, strict=True))
            same &= differ == 0
            with alone():
                ms = measure(launch, seconds=seconds).ms
                kernels = " ".join(f"{k.name[:24]} {k.us:.1f}" for k in measured(launch)[:4])
        print(f"  {ms:9.4f} ms  {name}  [{kernels}]{f'  {differ} DIFFER' if differ else ''}", flush=True)
    dispatch.forget()
    return same


def cases(of: str, only: str, wanted: frozenset[str]) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the labels of the rows of known cliffs, or of a benchmark's cases, and their cases."""
    if not of:
        for row in fixed():
            if only in row.label and any(name.startswith(row.op) for name in wanted):
                yield row.label, partial(case_of, row)
        return
    for case in import_module(f"benchmarks.{of}").cases():
        name = label({"op": case.op, "pass": case.passes, "shape": case.shape, **case.notes})
        if only in name and any(entry.startswith(case.op) for entry in wanted):
            yield name, partial(_itself, case)


def _itself(case: Case) -> Case:
    return case


def main(argv: Sequence[str] | None = None) -> None:
    """Compare from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", type=Path, help="entries as RLK_SCHEDULES has them")
    parser.add_argument("--only", default="", help="rows whose 'op pass shape' contains this text")
    parser.add_argument("--of", default="", help="a benchmark whose cases are timed, such as bench_moe")
    parser.add_argument("--seconds", type=float, default=0.15, help="sustained time of each")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("schedules are timed on a CUDA or ROCm device")
    table, same = read(options.table), True
    wanted = frozenset(entry.op for entry in table.entries)
    for name, case in cases(options.of, options.only, wanted):
        torch.manual_seed(0)
        print(name, flush=True)
        same &= compare(case(), table, options.seconds)
        torch.cuda.empty_cache()
    if not same:
        print("results differ", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
