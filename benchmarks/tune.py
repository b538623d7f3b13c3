"""Which schedules of contractions are fastest: each class of rows tries a short list beside cuBLAS."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import versions
from benchmarks.tilings import FOLDS, PIECES, PRODUCTS, tiling, written
from rlk.lower.common.emitted import Emitted
from rlk.runtime import calls
from rlk.runtime.build import obtain_later
from rlk.runtime.dispatch import bind_lowered, entry_key, lowered
from rlk.runtime.invocation import Invocation, Run, geometry_of
from rlk.schedule.axes import roles
from rlk.schedule.entries import ROW_CLASSES, row_class
from rlk.schedule.heuristics import factor_tiles
from rlk.schedule.schedule import Schedule
from rlk.specs.linear_logp import linear_logp
from rlk.specs.matmul import matmul, matmul_leaf8
from rlk.target.facts import Target, target

ROWS = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)
SIDES = (4096, 14336)
HEAD_ROWS = (1, 64, 300, 1024, 8192)
PIECE_ROWS = (16, 64, 128, 256, 512)  # of a product by pieces, whose columns are few: 4096
VOCABULARY, HIDDEN = 128256, 4096
TRIED = {"matmul": PRODUCTS, "matmul_leaf8": PIECES, "linear_logp": FOLDS}
SHIPPED = "shipped"  # what a call runs today
FORGOTTEN = 160 * 2**20  # bytes read between two uses of a weight: three times the largest L2 that we know
ROUND_MS = 2.0  # of launches that are timed together
COMPILE_S, MEASURE_S, START_S = 0.6, 0.07, 25.0  # a pair on one core; a schedule of a shape; all else


@dataclass(frozen=True, slots=True)
class Shape:
    """A contraction's sizes: columns are the vocabulary of linear_logp."""

    op: str
    rows: int
    columns: int
    length: int

    def __str__(self) -> str:
        return f"{self.op} {self.rows} x {self.columns} x {self.length}"

    @property
    def tried(self) -> tuple[str, ...]:
        """The tilings that are tried, as text: the first list for so many rows, else the last."""
        lists = TRIED[self.op]
        return lists[min((most for most in lists if row_class(self.rows) <= most), default=max(lists))]


def shapes() -> list[Shape]:
    """Return what is tuned, few rows first."""
    found = [Shape("matmul", m, n, k) for m in ROWS for n in SIDES for k in SIDES]
    found += [Shape("matmul_leaf8", m, SIDES[0], k) for m in PIECE_ROWS for k in SIDES]
    return [Shape("linear_logp", m, VOCABULARY, HIDDEN) for m in HEAD_ROWS] + found


@dataclass(slots=True)
class Problem:
    """A shape as a call of the operator: tensors by name, in as many copies as forget each other."""

    shape: Shape
    invocation: Invocation
    tensors: list[dict[str, Tensor]]
    scalars: dict[str, Any]

    def schedules(self, text: str, on: Target) -> tuple[Schedule, ...]:
        """Return the schedules of every kernel, the contracting ones with this tiling."""
        geometry = geometry_of(self.invocation, self.tensors[0])
        program, _, chosen, _ = lowered(self.invocation, on.softmax, geometry, self.tensors[0], on)
        if text == SHIPPED:
            return chosen
        found = []
        for kernel, default in zip(program.kernels, chosen, strict=True):
            axes = roles(kernel, geometry.extents)
            sides = factor_tiles(kernel, axes) if axes.contracted else None
            held = dict(axes.inside)
            found.append(default if sides is None else tiling(text).schedule(sides, held, on.cores))
        return tuple(found)


def problem(shape: Shape, device: str) -> Problem:
    """Return a shape's call, its numbers drawn from N(0, 1) where the device has memory."""
    scale = 3.0 / math.sqrt(shape.length)

    def drawn(rows: int, std: float) -> Tensor:
        made = torch.empty(rows, shape.length, dtype=torch.bfloat16, device=device)
        return made if device == "meta" else made.normal_(0.0, std)

    weight = drawn(shape.columns, scale)
    copies = 1 if device == "meta" else 2 + FORGOTTEN // weight.nbytes
    weights = [weight, *(weight.clone() for _ in range(copies - 1))]
    x = drawn(shape.rows, 1.0)
    if shape.op != "linear_logp":
        tensors = [{"x": x, "w": w} for w in weights]
        spec = matmul if shape.op == "matmul" else matmul_leaf8
        return _problem(shape, spec, tensors, {}, {"keep_f32": False})
    ids = torch.empty(shape.rows, dtype=torch.int64, device=device)
    if device != "meta":
        ids.random_(shape.columns)
    tensors = [{"hidden": x, "weight": w, "ids": ids} for w in weights]
    return _problem(shape, linear_logp, tensors, {"ignore_index": -100}, {"needs": ()})


def _problem(
    shape: Shape,
    spec: Any,
    tensors: list[dict[str, Tensor]],
    scalars: dict[str, Any],
    statics: dict[str, Any],
) -> Problem:
    invocation = calls.invoke(spec, tensors[0], scalars, statics, None)
    return Problem(shape, invocation, tensors, scalars)


# --- compiling ----------------------------------------------------------------------------------------------


def compile_all(wanted: Sequence[Shape], on: Target) -> tuple[int, dict[tuple[Shape, str], str]]:
    """Compile every schedule of every shape in worker processes; return their number, and what failed."""
    failed: dict[tuple[Shape, str], str] = {}
    waiting: dict[str, Any] = {}
    pairs: dict[tuple[Shape, str], str] = {}
    for shape in wanted:
        call = problem(shape, "meta")
        geometry = geometry_of(call.invocation, call.tensors[0])
        for text in (SHIPPED, *shape.tried):
            try:
                program, _, chosen, emitted = lowered(
                    call.invocation, on.softmax, geometry, call.tensors[0], on, call.schedules(text, on)
                )
                key = entry_key(program, chosen, emitted, on)
            except Exception as error:  # the other schedules are still worth their machine time
                failed[shape, text] = f"{type(error).__name__}: {error}"
                continue
            name = pairs[shape, text] = key.digest()
            if name not in waiting:
                waiting[name] = obtain_later(key, partial(_itself, emitted), label=emitted.file)
    for pair, name in pairs.items():
        why = waiting[name].exception()
        if why is not None:
            failed[pair] = f"{type(why).__name__}: {why}"
    return len(waiting), failed


def _itself(emitted: Emitted) -> Emitted:
    return emitted


# --- timing -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Timed:
    """A variant of a shape: its launch on a copy of the weight, and milliseconds of one launch by round."""

    launch: Callable[[int], Any]
    rounds: list[float] = field(default_factory=list)
    launches: int = 4
    host_ms: float = 1.0

    @property
    def ms(self) -> float:
        return statistics.median(self.rounds)


def warm(timed: Timed, turn: Iterable[int]) -> None:
    """Run a variant a few times, and set how many launches a round takes."""
    places = iter(turn)
    timed.launch(next(places))
    torch.cuda.synchronize()
    first, last = _event(), _event()
    begin = time.perf_counter()
    first.record()
    for _ in range(4):
        timed.launch(next(places))
    last.record()
    timed.host_ms = 250.0 * (time.perf_counter() - begin)
    last.synchronize()
    timed.launches = max(4, min(40, round(ROUND_MS / max(first.elapsed_time(last) / 4, 1e-3))))


def one_round(timed: Timed, turn: Iterable[int]) -> None:
    """Time launches that follow each other without a pause: the device waits until all are queued."""
    places = iter(turn)
    for _ in range(3):
        first, last = _event(), _event()
        torch.cuda.synchronize()
        torch.cuda._sleep(int(2e6 * (0.1 + 1.5 * timed.host_ms * timed.launches)))  # cycles, about 2e6 a ms
        first.record()
        begin = time.perf_counter()
        for _ in range(timed.launches):
            timed.launch(next(places))
        host = 1e3 * (time.perf_counter() - begin)
        late = first.query()
        last.record()
        last.synchronize()
        timed.host_ms = max(timed.host_ms, host / timed.launches)
        if not late:
            break
    timed.rounds.append(first.elapsed_time(last) / timed.launches)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def _launch(run: Run, call: Problem, copy: int) -> None:
    run(call.tensors[copy], call.scalars)


def cublas(call: Problem) -> Callable[[int], Any]:
    """Return the bare product, written as bf16 into memory that stays."""
    names = ("hidden", "weight") if call.shape.op == "linear_logp" else ("x", "w")
    pairs = [tuple(tensors[name] for name in names) for tensors in call.tensors]
    out = torch.empty(call.shape.rows, call.shape.columns, dtype=torch.bfloat16, device="cuda")
    return lambda i: torch.matmul(pairs[i][0], pairs[i][1].t(), out=out)


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Return whether outputs have the same bits."""
    return all(torch.equal(a[n].view(torch.uint8), b[n].view(torch.uint8)) for n in a)


def tune(shape: Shape, on: Target, failed: Mapping[tuple[Shape, str], str], rounds: int) -> dict[str, Any]:
    """Measure every schedule of one shape, cuBLAS first in each round; return the row of the record."""
    call = problem(shape, "cuda")
    device = torch.device("cuda", torch.cuda.current_device())
    geometry = geometry_of(call.invocation, call.tensors[0])
    turn = itertools.cycle(range(len(call.tensors)))
    timed = {"cublas": Timed(cublas(call))}
    names, errors, differing = {}, {}, []
    expected: dict[str, Tensor] | None = None
    for text in (SHIPPED, *shape.tried):
        try:
            if (shape, text) in failed:
                raise RuntimeError(failed[shape, text])
            chosen = call.schedules(text, on)
            run = bind_lowered(call.invocation, on.softmax, geometry, call.tensors[0], on, device, chosen)
            got = run(call.tensors[0], call.scalars)
            torch.cuda.synchronize()
        except Exception as error:  # a schedule that does not fit is a result
            errors[text] = f"{type(error).__name__}: {error}"[:300]
            continue
        names[text] = "; ".join(map(str, chosen))
        expected = got if expected is None else expected
        differing += [text] * (not same(expected, got))
        timed[text] = Timed(partial(_launch, run, call))
    for variant in timed.values():
        warm(variant, turn)
    for _ in range(rounds):
        for variant in timed.values():
            one_round(variant, turn)
    return _row(call, timed, names, errors, differing)


def _row(
    call: Problem, timed: Mapping[str, Timed], names: Mapping[str, str], errors: Mapping[str, str],
    differing: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    shape, bare = call.shape, timed["cublas"].ms
    moved = sum(t.nbytes for t in call.tensors[0].values())
    found = [
        {
            "tiling": text,
            "schedule": names[text],
            "ms": round(v.ms, 5),
            "rounds": [round(t, 5) for t in v.rounds],
            "host_ms": round(v.host_ms, 5),
            "of_cublas": round(bare / v.ms, 3),
            "tb_per_s": round(moved / v.ms / 1e9, 2),
        }
        for text, v in timed.items()
        if text != "cublas"
    ]
    return {
        "op": shape.op, "rows": shape.rows, "columns": shape.columns, "length": shape.length,
        "cublas_ms": round(bare, 5), "cublas_rounds": [round(t, 5) for t in timed["cublas"].rounds],
        "tried": sorted(found, key=lambda r: r["ms"]), "errors": dict(errors), "differing": list(differing),
    }  # fmt: skip


# --- what is said -------------------------------------------------------------------------------------------


def line(row: Mapping[str, Any]) -> str:
    """Return the shipped schedule and the best three of a shape as text."""
    ours = next((r for r in row["tried"] if r["tiling"] == SHIPPED), None)
    words = [f"{row['op']} {row['rows']:5d} x {row['columns']:6d} x {row['length']:5d}"]
    words.append(f"cublas {row['cublas_ms']:8.4f}")
    words.append("shipped -" if ours is None else f"shipped {ours['ms']:8.4f} ({ours['of_cublas']:.2f})")
    best = [r for r in row["tried"] if r["tiling"] != SHIPPED][:3]
    words += [f"{r['tiling']}: {r['ms']:.4f} ({r['of_cublas']:.2f}, {r['tb_per_s']:.1f} TB/s)" for r in best]
    words += [f"DIFFERS: {', '.join(row['differing'])}"] if row["differing"] else []
    words += [f"failed: {name}: {why[:80]}" for name, why in row["errors"].items()]
    return " | ".join(words)


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, for each class of rows, the tilings by their geometric mean of times cuBLAS's speed."""
    groups: dict[tuple[str, int, int | str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        rank = row_class(row["rows"])
        for columns in (row["columns"], "all"):
            groups[row["op"], rank, columns].append(row)
    said = []
    for (op, rank, columns), found in groups.items():
        speeds: dict[str, list[float]] = defaultdict(list)
        for row in found:
            for r in row["tried"]:
                speeds[r["tiling"]].append(r["of_cublas"])
        means = {
            t: math.exp(statistics.fmean(map(math.log, s))) for t, s in speeds.items() if len(s) == len(found)
        }
        order = sorted(means, key=lambda t: -means[t])
        name = f"<= {rank}" if rank in ROW_CLASSES else f"> {ROW_CLASSES[-1]}"
        said.append(
            f"{op} rows {name}, columns {columns}: " + ", ".join(f"{t} {means[t]:.3f}" for t in order[:5])
        )
        use = next((t for t in order if t != SHIPPED), None)
        said += [f"    use = {written(tiling(use))}"] if use else []
    return said


def main() -> None:
    """Tune from the command line; write the record after every shape."""
    parser = argparse.ArgumentParser(description="Try schedules of contractions beside cuBLAS.")
    parser.add_argument("--out", default="tune.json", help="file of the record (default: tune.json)")
    parser.add_argument("--only", default="", help="tune the shapes whose text contains this")
    parser.add_argument("--rounds", type=int, default=5, help="times that each schedule is timed")
    parser.add_argument("--limit-s", type=float, default=200.0, help="seconds after which no shape is begun")
    parser.add_argument("--commit", help="what to record as rlk's version, where there is no git checkout")
    parser.add_argument("--dry", action="store_true", help="compile for sm_90a, launch nothing")
    options = parser.parse_args()
    begin = time.perf_counter()
    jobs = int(os.environ.setdefault("RLK_JOBS", str(len(os.sched_getaffinity(0)))))
    wanted = [shape for shape in shapes() if options.only in str(shape)]
    tried = sum(1 + len(shape.tried) for shape in wanted)
    seconds = START_S + COMPILE_S * tried / 2 / jobs + MEASURE_S * tried
    print(f"{len(wanted)} shapes, {tried} schedules, {jobs} compile processes: about {seconds:.0f} s")
    on = target("sm_90a")
    count, failed = compile_all(wanted, on)
    print(f"{time.perf_counter() - begin:.1f} s: {count} modules compiled, {len(failed)} failed", flush=True)
    for (shape, text), why in failed.items():
        print(f"    {shape} {text}: {why[:200]}", file=sys.stderr)
    if options.dry:
        return
    rows: list[dict[str, Any]] = []
    record = {"device": torch.cuda.get_device_name(), "versions": versions(options.commit), "rows": rows}
    for shape in wanted:
        if time.perf_counter() - begin > options.limit_s:
            print(f"out of time before {shape}", flush=True)
            break
        try:
            rows.append(tune(shape, on, failed, options.rounds))
        except Exception as error:  # the other shapes are still worth their machine time
            print(f"{shape}: {type(error).__name__}: {error}", flush=True)
            continue
        print(line(rows[-1]), flush=True)
        Path(options.out).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        torch.cuda.empty_cache()
    print("\n".join(summary(rows)))
    print(f"{time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
