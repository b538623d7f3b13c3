"""Recorded rows: finding and reading them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OWN_PAGES = ("drift", "views")
"""Files whose rows are no times of operators; other pages have their numbers."""


@dataclass(frozen=True, slots=True)
class Record:
    """One results file: a family on a device."""

    family: str
    device: str
    versions: Mapping[str, str]
    rows: tuple[Mapping[str, Any], ...]


def records(folder: Path = RESULTS) -> Iterator[Record]:
    """Yield the records of operators below a folder, by device and family."""
    for file in sorted(folder.rglob("*.json")):
        if file.stem in OWN_PAGES:
            continue
        data = json.loads(file.read_text(encoding="utf-8"))
        yield Record(file.stem, data["device"], data["versions"], tuple(data["rows"]))


def text_of(record: Mapping[str, Any]) -> str:
    """Return a record as JSON with a row in each line, so that a comparison of versions shows rows."""
    dense = json.JSONEncoder(separators=(",", ":")).encode
    head = dense({name: value for name, value in record.items() if name != "rows"})
    rows = ",\n".join(dense(row) for row in record["rows"])
    return f'{head[:-1]},"rows":[\n{rows}\n]}}\n'


def label(row: Mapping[str, Any]) -> str:
    """Return a row's name: logp fwd N=8192 V=128256, and what else tells it from its neighbours."""
    words = [row["op"], row["pass"], *(f"{key}={value}" for key, value in row["shape"].items())]
    needs = [name for name in row.get("needs", ()) if name not in ("logp", "lse")]
    words += [f"+{name}" for name in needs]
    words += [
        f"{key}={row[key]}"
        for key in ("temperature", "autograd", "keep_logits", "support", "order", "leaves", "grad_leaves")
        if key in row
    ]
    return " ".join(words)


def best_peer(row: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the fastest peer that was measured, rlk's own variants apart."""
    times = [(p["ms"], name) for name, p in row["peers"].items() if "ms" in p and not name.startswith("rlk")]
    return (min(times)[1], min(times)[0]) if times else None
