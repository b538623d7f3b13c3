"""Search for cliffs: shapes of published models, and random ones around them, beside the best peer.

`python -m benchmarks.cliffs --seconds 1200` measures the rows of known cliffs, then drawn ones until the
time is over. It writes benchmarks/results/<device>/cliffs.json after each and prints the worst ratios first.
Run again, it goes on: rows of the same commit are not measured twice. `--gate FILE` measures the rows of a
results file and exits with 1 where a ratio is worse than the recorded one, a bar is lost or bits differ.
Without a device, `--list` prints the rows, and `--dry` builds and calls each with fake tensors.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import rlk
from benchmarks import (
    bench_attention,
    bench_linear,
    bench_logp,
    bench_loss,
    bench_norm,
    bench_overhead,
    bench_sample,
    peers,
)
from benchmarks.dry import shapes_alone
from benchmarks.harness import Case, Checked, Session, device_slug, line, record_of, run_case
from benchmarks.identity import compare, describe
from benchmarks.merge import merged
from benchmarks.rows import RESULTS, best_peer, label, text_of
from benchmarks.shapes import Row, drawn, fixed, recorded
from benchmarks.timing import ceilings
from benchmarks.turns import alone
from rlk.tune.record import versions

FAMILY = "cliffs"
WORSE = 1.08
"""The factor by which a ratio may grow before the gate fails: more than what runs differ by."""
SAMPLED = (0, -1)

Recorded = Mapping[str, Any]


# --- the call of a row ---


def case_of(row: Row) -> Case:
    """Return the case of a row, named as the row is."""
    notes = {"origin": row.origin, **row.options}
    made = _built(row)
    named = replace(made, op=row.op, passes=row.passes, shape=row.shape, bar=row.bar)
    return replace(named, room=None, notes={**made.notes, **notes})


def cases() -> Iterator[Case]:
    """Yield the cases of known cliffs."""
    return map(case_of, fixed())


def _built(row: Row) -> Case:
    shape = row.shape
    size = {name: n for name, n in shape.items() if isinstance(n, int)}
    match row.op, row.passes:
        case "logp", "fwd":
            return bench_logp.forward(bench_logp.inputs(size["N"], size["V"]), ("logp", "lse"))
        case "logp", "fwd+bwd":
            return bench_logp.forward_backward(bench_logp.inputs(size["N"], size["V"]), None)
        case "linear_logp", "fwd":
            return bench_linear.linear(size["N"], size["V"], ("logp", "lse"), None, depth=size["D"])
        case "matmul", "fwd":
            return bench_linear.product(size["M"], size["N"], size["K"], None)
        case "rms_norm", "fwd" | "bwd":
            i = bench_norm.inputs(size["M"], size["N"])
            return bench_norm.case(i, row.passes, (2 if row.passes == "fwd" else 3) * i.x.nbytes, None)
        case "rms_norm", "host":
            return bench_overhead.call_case(autograd=row.options["autograd"], bar=row.bar)
        case ("swiglu" | "geglu") as gate, "fwd":
            return gated(gate, size["M"], size["N"])
        case "sample", "fwd":
            return bench_sample.case(bench_sample.inputs(size["B"], size["V"]), str(shape["options"]))
        case "policy_loss", "fwd":
            return bench_loss.tokens(size["B"], size["L"])
        case "varlen_attention", ("fwd" | "bwd") as passes:
            build = bench_attention.forward if passes == "fwd" else bench_attention.backward
            return build(lengths_of(row), dict(shape), (size["Hq"], size["Hk"], size["d"]))
        case "paged_attention", "fwd":
            heads = size["Hq"], size["Hk"], size["d"]
            return bench_attention.pages(size["B"], size["S"], size.get("asks", 1), heads)
    raise ValueError(f"no call for {row.op} {row.passes}")


def lengths_of(row: Row) -> list[int]:
    """Return the lengths of a row's sequences: all S, or drawn from `lengths`, the same ones each time."""
    count = int(row.shape["B"])
    if "S" in row.shape:
        return [int(row.shape["S"])] * count
    least, most = (int(n) for n in str(row.shape["lengths"]).split("-"))
    draw = random.Random(f"{count} {least} {most}")
    return [most, *(draw.randint(least, most) for _ in range(count - 1))]


def gated(name: str, rows: int, width: int) -> Case:
    """A gated activation inside a layer: gate and up are the halves of what one product gave."""
    op = getattr(rlk.ops, name)
    both = torch.randn(rows, 2 * width, dtype=torch.bfloat16, device="cuda")
    gate, up = both[:, :width], both[:, width:]

    def plain(gate: Tensor, up: Tensor) -> Tensor:
        return (F.silu(gate) if name == "swiglu" else F.gelu(gate, approximate="tanh")) * up

    def check() -> Checked:
        few = torch.tensor(SAMPLED, device="cuda") % rows
        got = op(gate, up)[few]
        wide = plain(gate[few].double(), up[few].double())
        differ = compare(op, [got], gate[few], up[few])
        return Checked(float((got.double() - wide).abs().max()), differ)

    return Case(
        op=name,
        passes="fwd",
        shape={"M": rows, "N": width},
        rlk=lambda: peers.without_grad(lambda: op(gate, up)),
        peers={
            "torch_eager": lambda: peers.without_grad(lambda: plain(gate, up)),
            "torch_compile": lambda: peers.without_grad(peers.compiled(plain, gate, up)),
        },
        moved=3.0 * rows * width * both.element_size(),
        reference="torch_compile",
        check=check,
        describe=lambda: describe(op.explain(gate, up)),
    )


# --- what was found ---


def ratio(row: Recorded) -> float | None:
    """Return rlk's time divided by the fastest peer's; None without a peer."""
    best = best_peer(row)
    return None if best is None else row["ms"] / best[1]


def worst_first(rows: Iterable[Recorded]) -> list[Recorded]:
    """Return rows by their ratio to the best peer, the largest first; those without a peer last."""
    return sorted(rows, key=lambda row: -(ratio(row) or 0.0))


def table(rows: Sequence[Recorded]) -> str:
    """Return rows as text: ratio, name, time, best peer, bar, and where the shape is from."""
    lines = []
    for row in rows:
        best, found = best_peer(row), ratio(row)
        holds = {True: "holds", False: "MISSES", None: "no peer"}[row.get("holds")]
        peer = f"{best[0]} {best[1]:.4f}" if best else "-"
        bits = " BITS DIFFER" if row.get("bits") == "mismatch" else ""
        lines.append(
            f"{'-' if found is None else format(found, '.2f'):>6s}  {label(row):60s}  {row['ms']:9.4f} ms  "
            f"{peer:24s}  {row.get('bar', ''):22s}  {holds}{bits}  ({row.get('origin', '')})"
        )
    return "\n".join(lines)


def regressions(old: Sequence[Recorded], new: Sequence[Recorded]) -> list[str]:
    """Return what is worse in rows that were measured again: ratios, bars that held, bits."""
    before = {(label(row), row["backend"]): row for row in old}
    found = []
    for row in new:
        name = label(row), row["backend"]
        if row.get("bits") == "mismatch":
            found.append(f"{name[0]}: bits differ from the oracle's")
        past = before.get(name)
        if past is None:
            continue
        was, now = ratio(past), ratio(row)
        if was is not None and now is not None and now > WORSE * was:
            found.append(f"{name[0]}: {now:.2f} x the best peer, was {was:.2f} x")
        elif past.get("holds") and row.get("holds") is False and (was is None or now is None):
            found.append(f"{name[0]}: misses {row['bar']}, which held")
    return found


# --- running ---


def wanted(options: argparse.Namespace, gate: Sequence[Recorded] | None) -> Iterator[Row]:
    """Yield the rows of a run in order: those of the gate, else known cliffs and then drawn rows."""
    every = map(recorded, gate) if gate is not None else chain(fixed(), drawn(options.seed))
    return (row for row in every if not options.only or options.only in row.label)


def dry(rows: Iterable[Row]) -> list[str]:
    """Build and call rows with fake tensors; return the names of those that fail, with the error."""
    failed = []
    for row in rows:
        try:
            with shapes_alone():
                case_of(row).rlk()()
        except Exception as error:  # the other rows are still worth a look
            failed.append(f"{row.label}: {type(error).__name__}: {error}")
    return failed


def measured(
    rows: Iterable[Row],
    options: argparse.Namespace,
    file: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Recorded], list[str]]:
    """Measure rows until the time is over; return those of this commit in the file, and what failed.

    The file is written after each row. Rows that it holds of this commit are not measured again.
    """
    end = clock() + options.seconds
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    done = _of_commit(old, versions((), options.commit)["rlk"])
    names = {label(row) for row in done}
    with alone():
        session = Session(ceilings(matrix=True), options.each, _peers(options.peers))
    new: list[dict[str, Any]] = []
    failed = []
    for row in rows:
        if clock() >= end:
            break
        if row.label in names:
            continue
        try:
            with alone():
                new.append(run_case(case_of(row), session))
        except Exception as error:  # a row that fails is the worst of cliffs: the others are still measured
            failed.append(f"{row.label}: {type(error).__name__}: {error}"[:300])
            print(failed[-1], file=sys.stderr, flush=True)
            continue
        finally:
            torch.cuda.empty_cache()
        print(line(new[-1]), flush=True)
        found = merged(old, [record_of("benchmarks.cliffs", new, session, options.commit)])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text_of(found), encoding="utf-8")
    return [*done, *new], failed


def _of_commit(record: Recorded | None, commit: str) -> list[Recorded]:
    if record is None:
        return []
    return [row for row in record["rows"] if row.get("rlk", record["versions"]["rlk"]) == commit]


def _peers(given: str | None) -> frozenset[str] | None:
    return None if given is None else frozenset(filter(None, given.split(",")))


def main(argv: Sequence[str] | None = None) -> None:
    """Search from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=1200.0, help="time budget of the run (default: 1200)"
    )
    parser.add_argument(
        "--each", type=float, default=0.3, help="sustained time of each variant (default: 0.3)"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws another order and other random rows")
    parser.add_argument("--only", help="rows whose 'op pass shape' contains this text")
    parser.add_argument("--peers", help="peer families, such as liger,quack,torch_compile (default: all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--commit", help="what to record as rlk's version, where there is no git checkout")
    parser.add_argument(
        "--gate", type=Path, metavar="FILE", help="measure its rows and fail where one is worse"
    )
    parser.add_argument("--rows", type=int, default=100, help="how many --list and --dry take (default: 100)")
    without = parser.add_mutually_exclusive_group()
    without.add_argument("--list", action="store_true", help="print the rows")
    without.add_argument("--dry", action="store_true", help="build and call them with fake tensors")
    options = parser.parse_args(argv)
    gate = json.loads(options.gate.read_text(encoding="utf-8"))["rows"] if options.gate else None
    rows = wanted(options, gate)
    if options.list or options.dry:
        some = list(islice(rows, options.rows))
        for row in some:
            print(f"{row.label:64s}  {row.bar!s:24s}  {row.origin}")
        failed = dry(some) if options.dry else []
    else:
        if not torch.cuda.is_available():
            raise SystemExit("benchmarks need a CUDA or ROCm device; --dry and --list do not")
        torch.manual_seed(0)
        file = options.out / device_slug(torch.cuda.get_device_name()) / f"{FAMILY}.json"
        found, failed = measured(rows, options, file)
        print(table(worst_first(found)))
        if gate is not None:
            failed += regressions(gate, found)
            names = {label(row) for row in found}
            left = sum(label(row) not in names for row in gate)
            print(f"{len(gate) - left} of {len(gate)} recorded rows measured again")
            if left == len(gate):
                failed.append("no recorded row was measured again")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
