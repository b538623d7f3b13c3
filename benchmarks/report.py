"""Recorded rows and their bars: `python -m benchmarks.report [FOLDER]` exits 1 when a row misses its bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, Record, best_peer, label, records

HEADER = ("row", "backend", "ms", "burst", "roofline", "best peer", "ratio", "bits", "bar", "holds", "MiB")
HOLDS = {True: "yes", False: "NO", None: "-"}


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one row of the table."""
    best = best_peer(row)
    peer, ratio = (f"{best[0]} {best[1]:.3f}", f"{row['ms'] / best[1]:.2f}") if best else ("-", "-")
    return (
        label(row),
        row["backend"],
        f"{row['ms']:.4f}",
        f"{row['burst_ms']:.4f}",
        f"{100 * row['roofline']:.0f} %" if row["roofline"] else "-",
        peer,
        ratio,
        row.get("bits") or "-",
        row.get("bar", "-"),
        HOLDS[row.get("holds")],
        extra(row),
    )


def extra(row: Mapping[str, Any]) -> str:
    """Return the memory a row took beyond its arguments and results, and whether it holds its bar."""
    if "extra_mib" not in row:
        return "-"
    return f"{row['extra_mib']:.0f}" + (f" ({HOLDS[row['extra_holds']]})" if "extra_bar" in row else "")


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, columns as wide as their widest cell, numbers on the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        aligned = (
            cell.rjust(width) if i in (2, 3, 4, 6) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        )
        yield "  ".join(aligned).rstrip()


def show(record: Record) -> Iterator[str]:
    """Yield the report of one record."""
    versions = " ".join(f"{name} {version}" for name, version in record.versions.items())
    yield f"{record.family} on {record.device} ({versions})"
    yield from table([HEADER, *(cells(row) for row in record.rows)])
    for row in record.rows:
        for name, peer in row["peers"].items():
            if "ms" not in peer:
                yield f"  {label(row)}: no {name} ({peer.get('absent') or peer.get('failed')})"
    yield ""


def main() -> None:
    """Print every record below a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    found = list(records(folder))
    if not found:
        raise SystemExit(f"no results below {folder}")
    for record in found:
        print("\n".join(show(record)))
    rows = [row for record in found for row in record.rows]
    bars = "holds", "extra_holds", "share_holds"
    missed = [label(row) for row in rows if False in map(row.get, bars)]
    if missed:
        raise SystemExit("misses its bar: " + "; ".join(missed))


if __name__ == "__main__":
    main()
