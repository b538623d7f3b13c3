"""The performance page: `python -m benchmarks.page` writes docs/performance.md and the README's table.

Both come from benchmarks/results/ alone. `--check` writes nothing and exits with 1 where either is stale.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.rows import Record, best_peer, label, records

ROOT = Path(__file__).parent.parent
PAGE, README = ROOT / "docs" / "performance.md", ROOT / "README.md"
MARKS = ("<!-- benchmarks.page: begin -->", "<!-- benchmarks.page: end -->")

Row = Mapping[str, Any]
BACKENDS = {
    "triton": "Triton",
    "cute": "CuTe DSL",
    "tilelang-cuda": "TileLang",
    "nccl": "NCCL",
    "symmetric": "symmetric memory",
}

FAMILIES = {
    "logp": "Log-probs from logits",
    "linear": "Log-probs from hidden states, and products",
    "groups": "A GRPO step from hidden states as the group grows",
    "attention": "Attention",
    "model": "Models",
    "norm": "RMSNorm",
    "step": "Heads before attention",
    "router": "Routing of experts",
    "moe": "Products of experts",
    "loss": "Policy losses",
    "distillation": "Distillation",
    "sample": "Sampling",
    "tokens": "Operators that move bytes",
    "advantages": "Advantages",
    "optim": "Optimizer steps",
    "parallel": "Ranks that share sums and weights",
    "overhead": "Host time",
    "cliffs": "Shapes of published models",
    "digest": "Digests of weights",
    "engines": "vLLM by rlk",
    "authors": "Operators of an outside package",
}
"""The sections in order; a family of results without a title is a KeyError, so that none is left out."""

HEADLINES = (
    "logp fwd N=8192 V=128256",
    "linear_logp fwd N=8192 D=4096 V=128256",
    "linear_logp fwd+bwd N=8192 D=4096 V=128256 +entropy",
    "rms_norm fwd M=32768 N=4096",
    "matmul fwd M=8192 N=4096 K=4096",
    "varlen_attention fwd B=4 S=4096 Hq=32 Hk=8 d=128",
    "varlen_attention bwd B=4 S=4096 Hq=32 Hk=8 d=128",
    "paged_attention fwd B=64 S=16384 Hq=32 Hk=8 d=128",
    "sample fwd B=256 V=151936 options=top_k 50, top_p 0.9",
)
"""The rows that the README shows."""

DECIMALS = ((100, 0), (10, 1), (1, 2), (0.1, 3), (0, 4))
"""How many decimals a time in ms has, from which time on."""

INTRODUCTION = """\
# Performance

Written by `python -m benchmarks.page` from `benchmarks/results/`; a test fails where this page is stale. No
number here is typed by hand.

Times are sustained medians in milliseconds on one GPU (0.2 to 1 s of launches of each variant alone), but for
sums over ranks, which have two. A row has the fastest peer of the same run: rlk and its peers are measured in
one process, the reference first and last; engines have a process each, on one machine.
`roofline` is the time that the counted bytes or floating-point operations need at the measured
ceilings of the device, divided by the time taken; the sustained clock varies between runs, so that products
reach a little over 100 %. `bits` says whether sampled rows had the oracle's bits: `exact` means that none
differed. `MiB` is workspace beyond arguments and results. A bar is the limit that the project set for a
row; **missed** bars are marked. Each row is of the commit named above its table, or of the commit in its
own last column.

Peers promise less: Liger, quack, CCE, torch.compile, cuBLAS and FlashAttention 4 are not batch-invariant,
and FlashAttention's fast gradients are not deterministic.
"""


@dataclass(frozen=True, slots=True)
class Beside:
    """A peer of a row and rlk's time in the same run, in ms."""

    name: str
    ms: float
    rlk_ms: float

    @property
    def ratio(self) -> str:
        """Return rlk's time divided by the peer's."""
        return f"{self.rlk_ms / self.ms:.2f}"

    def __str__(self) -> str:
        return f"{self.name} {milliseconds(self.ms)}"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: a row of the results by every backend that was measured."""

    name: str
    backends: Mapping[str, Row]

    @property
    def best(self) -> Row:
        """The row of the fastest backend."""
        return min(self.backends.values(), key=lambda row: row["ms"])

    @property
    def peer(self) -> Beside | None:
        """The fastest peer that any backend was measured beside, and the fastest backend of such a run."""
        found = [Beside(*best, row["ms"]) for row in self.backends.values() if (best := best_peer(row))]
        if not found:
            return None
        name = min(found, key=lambda beside: beside.ms).name
        return min((beside for beside in found if beside.name == name), key=lambda beside: beside.rlk_ms)


def column(row: Row) -> str:
    """Return the backend under which a row stands: the first, where a composite runs kernels of several."""
    return str(row["backend"]).split(", ")[0]


def lines(rows: Sequence[Row]) -> list[Line]:
    """Return the rows of a record, one line for each name, in the order of the file."""
    named: dict[str, dict[str, Row]] = {}
    for row in rows:
        named.setdefault(label(row), {})[column(row)] = row
    return [Line(name, backends) for name, backends in named.items()]


def milliseconds(ms: float) -> str:
    """Return a time with three significant digits."""
    return f"{ms:.{next(places for least, places in DECIMALS if ms >= least)}f}"


def _of(row: Row | None) -> str:
    return milliseconds(row["ms"]) if row else ""


def _bar(line: Line) -> str:
    """Return the bars of a line's backends, a missed one marked."""
    found = []
    for backend, row in line.backends.items():
        missed = False in (row.get("holds"), row.get("extra_holds"), row.get("share_holds"))
        if missed or "bar" in row or "share_bar" in row:
            share = [f"≥ {100 * row['share_bar']:.0f} % of a copy"] if "share_bar" in row else []
            bars = [row["bar"]] if "bar" in row else [] if share else ["memory"]
            words = f"{BACKENDS[backend]} {', '.join([*bars, *share])}".replace("<=", "≤")
            found.append(f"**missed**: {words}" if missed else words)
    return "; ".join(found)


def cells(line: Line, backends: Sequence[str], commit: str) -> list[str]:
    """Return the cells of one line of the page."""
    best, peer = line.best, line.peer
    bits = sorted({str(row.get("bits") or "-") for row in line.backends.values()})
    commits = sorted({row.get("rlk", commit) for row in line.backends.values()} - {commit})
    return [
        f"`{line.name}`",
        *(_of(line.backends.get(backend)) for backend in backends),
        str(peer or ""),
        peer.ratio if peer else "",
        f"{100 * best['roofline']:.0f} %" if best.get("roofline") else "",
        f"{best['extra_mib']:.0f}" if "extra_mib" in best else "",
        ", ".join(bits),
        _bar(line),
        ", ".join(commits),
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown; columns that no row fills are left out."""
    kept = [i for i, _ in enumerate(head) if any(row[i] for row in rows)]
    yield "| " + " | ".join(head[i] for i in kept) + " |"
    yield "|" + "|".join("---" for _ in kept) + "|"
    for row in rows:
        yield "| " + " | ".join(row[i] for i in kept) + " |"


def section(record: Record, device: str) -> Iterator[str]:
    """Yield a family: what it was measured with, its figure where there is one, its table.

    device: the one whose sections name none.
    """
    found = lines(record.rows)
    backends = [name for name in BACKENDS if any(name in line.backends for line in found)]
    commit = record.versions.get("rlk", "")
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items() if name != "rlk")
    yield f"## {FAMILIES[record.family]}{'' if record.device == device else f', on one {record.device}'}"
    yield ""
    yield f"{record.device}; rlk at {commit}; {versions}."
    yield ""
    figure = f"figures/{record.device.lower().replace(' ', '-')}-{record.family}.png"
    if (PAGE.parent / figure).exists():
        yield f"![{FAMILIES[record.family]} on one {record.device}]({figure})"
        yield ""
    head = [
        "work",
        *(BACKENDS[name] for name in backends),
        "fastest peer",
        "rlk / peer",
        "roofline",
        "MiB",
        "bits",
        "bar",
        "commit",
    ]
    yield from table(head, [cells(line, backends, commit) for line in found])
    yield ""
    if counted := [row for row in record.rows if "runs" in row]:
        compared, differing = (sum(row[key] for row in counted) for key in ("compared", "differing"))
        runs = len({(row["shape"]["model"], run["seed"]) for row in counted for run in row["runs"]})
        yield "`vllm_logps`: ms for each drawn token."
        yield f"{compared:,} log-probs of drawn tokens, of {runs} runs, were compared with those of a trainer"
        yield f"by rlk: {differing:,} differ."
        yield ""


def page(found: Sequence[Record]) -> str:
    """Return docs/performance.md."""
    order, first = list(FAMILIES), most_measured(found)
    ordered = sorted(
        found, key=lambda record: (record.device != first, record.device, order.index(record.family))
    )
    text = [INTRODUCTION, *(line for record in ordered for line in section(record, first))]
    return "\n".join(text).rstrip() + "\n"


def most_measured(found: Sequence[Record]) -> str:
    """Return the device of most families."""
    return Counter(record.device for record in found).most_common(1)[0][0]


def headlines(found: Sequence[Record]) -> str:
    """Return the README's table: a line for each name of HEADLINES, measured on one device."""
    device = most_measured(found)
    named = {line.name: line for record in found if record.device == device for line in lines(record.rows)}
    shown = [named[name] for name in HEADLINES]
    rows = [
        [
            f"`{line.name}`",
            milliseconds(line.best["ms"]),
            BACKENDS[column(line.best)],
            str(line.peer or ""),
            line.peer.ratio if line.peer else "",
        ]
        for line in shown
    ]
    head = [f"one {device}, bf16", "rlk, ms", "backend", "fastest peer, ms", "rlk / peer"]
    return "\n".join(table(head, rows)) + "\n"


def with_headlines(readme: str, found: Sequence[Record]) -> str:
    """Return a README whose table between the two marks is that of the records."""
    begin, end = (re.escape(mark) for mark in MARKS)
    part = f"{MARKS[0]}\n{headlines(found)}{MARKS[1]}"
    text, count = re.subn(f"{begin}.*?{end}", lambda _: part, readme, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"the README needs one pair of {MARKS[0]} and {MARKS[1]}; it has {count}")
    return text


def main() -> None:
    """Write both files, or compare them with what stands there."""
    found = list(records())
    wanted = {PAGE: page(found), README: with_headlines(README.read_text(encoding="utf-8"), found)}
    stale = [file for file, text in wanted.items() if not file.exists() or file.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(file.relative_to(ROOT).as_posix() for file in stale)
            raise SystemExit(f"stale: {names}; run python -m benchmarks.page")
        return
    for file in stale:
        file.write_text(wanted[file], encoding="utf-8")
        print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
