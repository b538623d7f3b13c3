"""Definition of a benchmark, the order in which its variants run, and the row that it records."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import Absent
from benchmarks.rows import RESULTS, best_peer, label, text_of
from benchmarks.timing import Ceilings, Launch, Timing, ceilings, extra_mib, measure
from benchmarks.turns import alone
from rlk.env import Env
from rlk.tune.record import versions

PACKAGES = (
    "torch",
    "triton",
    "nvidia-cutlass-dsl",
    "tilelang",
    "liger-kernel",
    "cut-cross-entropy",
    "quack-kernels",
    "numpy",
)


BEST_PEER = "best peer"
"""Stands for the fastest peer of a row."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The limit of a row's time: `factor` ms, or `factor` times the time of a peer in the same run."""

    factor: float
    peer: str | None = None

    @staticmethod
    def of(text: str) -> Bar:
        """Return the bar that a row records as this text."""
        factor, _, peer = text.removeprefix("<= ").partition(" x ")
        return Bar(float(factor), peer) if peer else Bar(float(text.removeprefix("<= ").removesuffix(" ms")))

    def __str__(self) -> str:
        return f"<= {self.factor:g} x {self.peer}" if self.peer else f"<= {self.factor:g} ms"

    def holds(self, ms: float, peers: Mapping[str, Mapping[str, Any]]) -> bool | None:
        """Say whether a time is within the bar; None where the peer was not measured."""
        if self.peer is None:
            return ms <= self.factor
        if self.peer == BEST_PEER:
            best = best_peer({"peers": peers})
            return None if best is None else ms <= self.factor * best[1]
        there = peers.get(self.peer, {}).get("ms")
        return None if there is None else ms <= self.factor * there


def of_backend(*, triton: Bar | None, cute: Bar | None) -> Bar | None:
    """Return the bar of the backend that the environment asks for."""
    return cute if Env.current().backend == "cute" else triton


@dataclass(frozen=True, slots=True)
class Room:
    """The limit of a row's memory beyond its arguments and results: MiB, or times that of a peer."""

    factor: float
    peer: str | None = None

    def __str__(self) -> str:
        return f"<= {self.factor:g} x {self.peer}" if self.peer else f"<= {self.factor:g} MiB"

    def holds(self, mib: float, peers: Mapping[str, Mapping[str, Any]]) -> bool | None:
        """Say whether memory is within the limit; None where the peer was not measured."""
        if self.peer is None:
            return mib <= self.factor
        there = peers.get(self.peer, {}).get("extra_mib")
        return None if there is None else mib <= self.factor * there


@dataclass(frozen=True, slots=True)
class Checked:
    """An output's error against float64, and the number of values unlike the oracle's (None: unknown)."""

    max_abs_err: float | None = None
    differing: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row: an operator on one shape, the work it must do, and the calls that are compared.

    `moved` and `flops` count the fewest bytes through device memory and operations. `rlk` and each peer build
    a launch; a peer that cannot be built raises Absent. `reference` is the peer measured first and last.
    `share` is the least part of the roofline, which without flops is the copy rate. `turns` times rlk and the
    reference in turns: of calls so alike that two measurements one after the other differ by more.
    """

    op: str
    passes: str
    shape: dict[str, int | str]
    rlk: Callable[[], Launch]
    peers: Mapping[str, Callable[[], Launch]]
    moved: float
    flops: float = 0.0
    dtype: str = "bf16"
    backend: str = "triton"
    bar: Bar | None = None
    share: float | None = None
    room: Room | None = None
    reference: str | None = None
    check: Callable[[], Checked] | None = None
    describe: Callable[[], Mapping[str, str]] | None = None
    timer: Callable[[Launch], Timing] | None = None
    turns: Callable[[Sequence[Launch]], Sequence[Timing]] | None = None
    extra: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """One run of a family: its ceilings, how long a variant is timed, which peers are wanted (None: all)."""

    ceilings: Ceilings
    seconds: float
    wanted: frozenset[str] | None

    def time(self, case: Case, launch: Launch) -> Timing:
        """Time a launch the way its case asks for."""
        return case.timer(launch) if case.timer else measure(launch, seconds=self.seconds)

    def wants(self, peer: str | None) -> bool:
        """Return whether a peer, of whose name a beginning may be asked for, is measured."""
        return peer is not None and (self.wanted is None or any(map(peer.startswith, self.wanted)))


def run_case(case: Case, session: Session) -> dict[str, Any]:
    """Measure one case: its reference peer first and last, or in turns with rlk; all others alone."""
    peers: dict[str, dict[str, Any]] = {}
    names = sorted(case.peers, key=lambda name: name != case.reference)
    beside = case.reference if case.turns and session.wants(case.reference) else None
    for name in names:
        peers[name] = {} if name == beside else _run_peer(case, session, name)
    launch = case.rlk()
    if case.turns and beside:
        timing, other = case.turns((launch, case.peers[beside]()))
        spread = [round(t, 5) for t in other.spread]
        peers[beside] = {"ms": round(other.ms, 5), "burst_ms": round(other.burst_ms, 5), "spread": spread}
    else:
        timing = session.time(case, launch)
    row = _row(case, session, timing)
    if case.extra:
        row["extra_mib"] = _extra(timing, launch)
    del launch
    row.update(_identity(case))
    if case.reference and case.reference != beside and "ms" in peers.get(case.reference, {}):
        peers[case.reference]["ms_again"] = _run_peer(case, session, case.reference).get("ms")
    if case.bar:
        row["bar"], row["holds"] = str(case.bar), case.bar.holds(timing.ms, peers)
    if case.share:
        row["share_bar"], row["share_holds"] = case.share, row["roofline"] >= case.share
    if case.room and case.extra:
        row["extra_bar"], row["extra_holds"] = str(case.room), case.room.holds(row["extra_mib"], peers)
    return {**row, **case.notes, "peers": peers}


def _run_peer(case: Case, session: Session, name: str) -> dict[str, Any]:
    if not session.wants(name):
        return {"absent": "not asked for"}
    launch: Launch | None = None
    try:
        launch = case.peers[name]()
        timing = session.time(case, launch)
        found = {"ms": round(timing.ms, 5), "burst_ms": round(timing.burst_ms, 5)}
        return {**found, "extra_mib": _extra(timing, launch)} if case.extra else found
    except Absent as absent:
        return {"absent": str(absent)}
    except Exception as error:  # a peer's own failure is a result, not ours
        if "out of memory" in str(error).lower():
            return {"absent": "out of memory"}
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    finally:
        launch = None
        gc.collect()  # graphs of a call that did not end
        torch.cuda.empty_cache()


def _extra(timing: Timing, launch: Launch) -> float:
    return round(extra_mib(launch) if timing.extra_mib is None else timing.extra_mib, 1)


def _row(case: Case, session: Session, timing: Timing) -> dict[str, Any]:
    seconds = 1e-3 * timing.ms
    rate = (
        f"{case.flops / seconds / 1e12:.1f} TFLOP/s"
        if case.flops
        else f"{case.moved / seconds / 1e12:.2f} TB/s"
    )
    limit = session.ceilings.limit_ms(case.moved, case.flops)
    return {
        "op": case.op,
        "pass": case.passes,
        "backend": case.backend,
        "shape": case.shape,
        "dtype": case.dtype,
        "ms": round(timing.ms, 5),
        "burst_ms": round(timing.burst_ms, 5),
        "spread": [round(t, 5) for t in timing.spread],
        "rate": rate,
        "roofline": round(limit / timing.ms, 3),
    }


def _identity(case: Case) -> dict[str, Any]:
    """Return what was computed: its error, its bits, its id and its schedule."""
    checked = case.check() if case.check else Checked()
    described = dict(case.describe()) if case.describe else {}
    bits = None if checked.differing is None else ("mismatch" if checked.differing else described.get("tier"))
    return {"max_abs_err": checked.max_abs_err, "bits": bits, "differing": checked.differing, **described}


# --- what is written ---


def device_slug(name: str) -> str:
    """Return the folder name of a device: NVIDIA H200 -> h200, NVIDIA H100 80GB HBM3 -> h100."""
    words = re.sub(r"(?i)\b(nvidia|amd|instinct|geforce|tesla)\b", " ", name).lower().split()
    return re.sub(r"[^a-z0-9]+", "-", words[0]) if words else "unknown"


def record_of(
    command: str, rows: Sequence[Mapping[str, Any]], session: Session, commit: str | None
) -> dict[str, Any]:
    """Return the record of rows measured by a module of this package."""
    return {
        "device": torch.cuda.get_device_name(),
        "versions": versions(PACKAGES, commit),
        "command": " ".join(["python -m", command, *sys.argv[1:]]),
        "ceilings": {
            "copy_bytes_per_s": session.ceilings.bytes_per_s,
            "gemm_flops_per_s": session.ceilings.flops_per_s,
        },
        "rows": list(rows),
    }


def write(
    family: str, rows: Sequence[Mapping[str, Any]], session: Session, options: argparse.Namespace
) -> Path:
    """Write the rows of one family and return the file."""
    record = record_of(f"benchmarks.{Path(sys.argv[0]).stem}", rows, session, options.commit)
    file = Path(options.out) / device_slug(record["device"]) / f"{family}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(record), encoding="utf-8")
    return file


def main(
    family: str, cases: Callable[[], Iterable[Case]], *, matrix: bool = False, reports: bool = True
) -> None:
    """Run a family from the command line, printing each row as it comes and writing after each.

    reports: whether this process does; of several ranks one does.
    """
    parser = argparse.ArgumentParser(description=f"Measure the {family} family beside its peers.")
    parser.add_argument(
        "--out", default=str(RESULTS), help="folder of the results (default: benchmarks/results)"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="sustained time of each variant")
    parser.add_argument("--peers", help="peer families, such as liger,quack,torch_eager (default: all)")
    parser.add_argument(
        "--only", help="run the cases whose 'op pass shape' contains this text, or one of a,b"
    )
    parser.add_argument("--commit", help="what to record as rlk's version, where there is no git checkout")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks need a CUDA or ROCm device")
    torch.manual_seed(0)
    wanted = None if options.peers is None else frozenset(filter(None, options.peers.split(",")))
    with alone():
        session = Session(ceilings(matrix=matrix), options.seconds, wanted)
    rows: list[dict[str, Any]] = []
    remaining = iter(cases())
    while True:
        with alone():
            case = next(remaining, None)
            if case is None:
                break
            name = label({"op": case.op, "pass": case.passes, "shape": case.shape, **case.notes})
            if options.only and not any(part in name for part in options.only.split(",")):
                continue
            try:
                rows.append(run_case(case, session))
            except Exception as error:  # the other rows are still worth their machine time
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
        if reports:
            print(line(rows[-1]), flush=True)
            write(family, rows, session, options)
        torch.cuda.empty_cache()
    if not rows:
        raise SystemExit("no row was measured")


def line(row: Mapping[str, Any]) -> str:
    """Return one row as text, its peers behind it."""
    holds = {True: "holds", False: "MISSES", None: ""}[row.get("holds")]
    words = [f"{label(row):52s}", f"{row['ms']:9.4f} ms", f"{100 * row['roofline']:4.0f} %"]
    words += [f"{row['bits'] or '-':8s}", f"{row.get('bar', ''):12s}", f"{holds:6s}"]
    if row.get("share_holds") is False:
        words.append(f"MISSES {100 * row['share_bar']:.0f} % of the copy rate")
    if "extra_bar" in row:
        words.append(f"{row['extra_mib']:.0f} MiB{' MISSES' if row['extra_holds'] is False else ''}")
    words += [
        f"{name} {peer['ms']:.3f}" if "ms" in peer else f"no {name}" for name, peer in row["peers"].items()
    ]
    return "  ".join(words)
