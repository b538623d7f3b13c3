"""Take rows measured elsewhere into the results: `python -m benchmarks.merge FOLDER... [--into RESULTS]`.

A row takes the place of the one with its name and backend; one that counts over runs keeps those of other
seeds. A row of another commit than its file's says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import RESULTS, label, text_of

Row = dict[str, Any]


def merged(old: Mapping[str, Any] | None, new: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of a family with new records in it: the last one's versions, command and ceilings."""
    rows: dict[tuple[str, str], Row] = {}
    for record in (*([old] if old else []), *new):
        for row in record["rows"]:
            commit = {"rlk": record["versions"]["rlk"]}
            made = {**commit, **row}
            if "runs" in row:
                made["runs"] = [{**commit, **run} for run in row["runs"]]
                made = added_up(rows.get(name(row), {}), made)
            rows[name(row)] = made
    last = new[-1]
    commit = last["versions"]["rlk"]
    found = [{k: v for k, v in row.items() if (k, v) != ("rlk", commit)} for row in rows.values()]
    return {**last, "rows": sorted(found, key=lambda row: row.get("backend", "triton") != "triton")}


def added_up(old: Mapping[str, Any], new: Row) -> Row:
    """Return a row that counts over runs, with an older row's of other seeds and equal numerics."""
    seeds = {run["seed"] for run in new["runs"]}
    runs = [x for x in old.get("runs", ()) if x["id"] == new["numerics_id"] and x["seed"] not in seeds]
    runs = sorted([*runs, *new["runs"]], key=lambda run: run["seed"])
    made = new | {"runs": runs} | {key: sum(run[key] for run in runs) for key in ("compared", "differing")}
    return made | ({"bits": "mismatch", "holds": False} if made["differing"] else {})


def name(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the backend of a row; of one of engines, which has neither, their names."""
    if "pass" in row:
        return label(row), row["backend"]
    return " ".join(str(row[key]) for key in ("op", "a", "b", "shape") if key in row), ""


def merge(folders: Iterable[Path], into: Path) -> list[Path]:
    """Merge every record below folders into those of the same device and family; return the files."""
    groups: dict[Path, list[Any]] = {}
    for folder in folders:
        for file in sorted(folder.rglob("*.json")):
            place = into / file.parent.name / file.name
            groups.setdefault(place, []).append(json.loads(file.read_text(encoding="utf-8")))
    for place, new in groups.items():
        old = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text_of(merged(old, new)), encoding="utf-8")
    return list(groups)


def main() -> None:
    """Merge from the command line."""
    parser = argparse.ArgumentParser(description="Take rows that were measured elsewhere into the results.")
    parser.add_argument("folders", nargs="+", type=Path, help="that hold <device>/<family>.json")
    parser.add_argument("--into", type=Path, default=RESULTS, help=f"default: {RESULTS.name}")
    options = parser.parse_args()
    for file in merge(options.folders, options.into):
        print(file)


if __name__ == "__main__":
    main()
