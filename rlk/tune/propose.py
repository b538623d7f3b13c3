"""Proposed table entries that a record supports, for review, in the format of the tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlk.schedule import user_table
from rlk.schedule.entries import ROW_CLASSES, Entry, Facts, row_class
from rlk.tune.candidates import Use, table_of, tiling, written
from rlk.tune.problem import SHIPPED, named
from rlk.tune.session import Row
from rlk.tune.shapes import SUBJECTS, text_of

MARGIN = 0.01  # by which what is proposed is faster, or as much as cuBLAS itself moved meanwhile
SHOWN = 4  # shapes that a reason names
BOTH = 2  # timings of cuBLAS, before and after: without the second nobody knows how far the chip moved


@dataclass(frozen=True, slots=True)
class Proposal:
    """An entry that measurements support; above: the entry of the table that is used now, from 1."""

    backend: str
    text: str
    above: int | None

    @property
    def path(self) -> Path:
        """The table that the entry is for."""
        path: Path = table_of(self.backend).TABLE
        return path

    def __str__(self) -> str:
        place = "after the others" if self.above is None else f"above entry {self.above}"
        return f"# {self.path.name}, {place}\n{self.text}"


@dataclass(frozen=True, slots=True)
class _Place:
    """The key of an entry: facts without rows, and the class of the rows."""

    backend: str
    facts: Facts
    rank: int

    @property
    def without_sizes(self) -> _Place:
        return replace(self, facts=replace(self.facts, columns=None, length=None))


def proposals(rows: Iterable[Row], device: str) -> list[Proposal]:
    """Return the entries that would be faster than what is shipped.

    A tiling is proposed where it was at least as fast in every shape of a place (nest, class of rows,
    columns, length) and faster in their mean; places that differ in sizes alone and agree are one entry. What
    changed a bit is nowhere.
    """
    places: dict[_Place, list[tuple[Row, str]]] = defaultdict(list)
    for row in rows:
        if "failed" in row or row["shipped"] is None or len(row["cublas"]) < BOTH:
            continue
        for site, found in row["sites"].items():
            facts = Facts(**found)
            place = _Place(row["backend"], replace(facts, rows=None), row_class(facts.rows))
            places[place].append((row, site))
    chosen = {place: text for place, found in places.items() if (text := _fastest(found))}
    alike: dict[_Place, list[_Place]] = defaultdict(list)
    for place in places:
        alike[place.without_sizes].append(place)
    made = []
    for group in alike.values():
        texts = {chosen.get(place) for place in group}
        sizes = {(place.facts.columns is None, place.facts.length is None) for place in group}
        parts = [group] if len(texts) == len(sizes) == 1 else [[place] for place in group]
        made += [
            _proposal(part, text, [m for p in part for m in places[p]], device)
            for part in parts
            if (text := chosen.get(part[0])) is not None
        ]
    return made


def _fastest(measured: Sequence[tuple[Row, str]]) -> str | None:
    """Return the tiling to propose for the shapes of one place, if there is one."""
    margin = max(MARGIN, *(row["drift"] for row, _ in measured))
    gains: dict[str, list[float]] = defaultdict(list)
    for row, site in measured:
        for name, gain in _gains(row).items():
            at, _, text = name.partition(": ")
            if at == site:
                gains[text].append(gain)
    means = {
        text: math.exp(sum(map(math.log, found)) / len(found))
        for text, found in gains.items()
        if len(found) == len(measured) and min(found) >= 1 - MARGIN
    }
    best = max(means, key=lambda text: means[text], default=None)
    return best if best is not None and means[best] > 1 + margin else None


def _gains(row: Row) -> dict[str, float]:
    """Return, for every candidate with the shipped bits, the shipped time over its own."""
    shipped = row["shipped"]["ms"]
    gains = {n: shipped / found["ms"] for n, found in row["tried"].items() if n not in row["differing"]}
    return gains | dict.fromkeys(row["same"], 1.0)


# --- as text ------------------------------------------------------------------------------------------------


def _proposal(
    places: Sequence[_Place], text: str, measured: Sequence[tuple[Row, str]], device: str
) -> Proposal:
    backend, facts = places[0].backend, [place.facts for place in places]
    rank = places[0].rank
    when = {"target": f'"{facts[0].target}"', "kind": f'"{facts[0].kind}"'}
    if facts[0].kind == "dot_map":
        when["plain"] = str(facts[0].plain).lower()
    else:
        when["sums"] = _between([facts[0].sums])
    when |= {n: _between([v]) for n in ("dots", "pieces") if (v := getattr(facts[0], n)) > 1}
    when["rows"] = _rows(rank)
    when |= {n: _between([getattr(f, n) for f in facts]) for n in ("columns", "length")}
    conditions = ", ".join(f"{name} = {value}" for name, value in when.items())
    use = tiling(text)
    why = "; ".join(_why(row, named(site, text)) for row, site in measured[:SHOWN])
    more = f"; {len(measured) - SHOWN} more shapes" if len(measured) > SHOWN else ""
    entry = f'[[entry]]\nwhen = {{ {conditions} }}\nuse = {written(use)}\nwhy = "{why}{more}; {device}"\n'
    listed = table_of(backend).parse(entry)  # a table would refuse what is wrong here
    assert listed[0].use == use
    entries: Sequence[Entry[Use]] = table_of(backend).table()
    at = replace(facts[0], rows=rank)
    above = next((i for i, found in enumerate(entries, 1) if found.meets(at)), None)
    return Proposal(backend, entry, above)


def _rows(rank: int) -> str:
    """Return the condition of one class of rows."""
    below = [bound for bound in ROW_CLASSES if bound < rank]
    over = [f"over = {below[-1]}"] if below else []
    most = [f"most = {rank}"] if rank in ROW_CLASSES else []
    return "{ " + ", ".join(over + most) + " }"


def _between(numbers: Sequence[int | None]) -> str:
    """Return the condition that holds for these numbers and those between them."""
    known = [n for n in numbers if n is not None]
    if not known:
        return "{ unknown = true }"
    over = [f"over = {min(known) - 1}"] if min(known) else []
    return "{ " + ", ".join([*over, f"most = {max(known)}"]) + " }"


def _why(row: Row, name: str) -> str:
    size = sizes_of(row)
    times = f"from {row['shipped']['ms']:.4g}, {bound_of(row)} {row['cublas_ms']:.4g}"
    if name not in row["tried"]:
        return f"{size}: as shipped, {times}"
    others = [other for other in row["tried"] if other != name]
    after = f", next {others[0].partition(': ')[2]} {row['tried'][others[0]]['ms']:.4g}" if others else ""
    return f"{size}: {row['tried'][name]['ms']:.4g} ms, {times}{after}"


def sizes_of(row: Row) -> str:
    """Return the sizes of a row as messages have them."""
    return text_of(row["op"], row["sizes"]).removeprefix(row["op"]).strip()


def bound_of(row: Row) -> str:
    """Return the name of what a row's times are compared with."""
    return "cuBLAS" if row["op"] in SUBJECTS else "copy"


def user_entries(rows: Iterable[Row], device: str) -> list[user_table.Entry]:
    """Return the entries of a user's table that would be faster than what is shipped.

    A candidate is chosen as for `proposals`, of all shapes of the same sizes of an entry.
    """
    places: dict[tuple[str, str, str, str], list[tuple[Row, str]]] = defaultdict(list)
    for row in rows:
        if "failed" in row or row["shipped"] is None or len(row["cublas"]) < BOTH:
            continue
        found = {name.partition(": ")[0]: text for name, text in row.get("entries", {}).items()}
        for site, text in found.items():
            (first, *_) = user_table.parse(text, site).entries
            places[row["op"], row["backend"], site, str(first.sizes)].append((row, site))
    made = []
    for measured in places.values():
        text, (row, site) = _fastest(measured), measured[0]
        entries = row["entries"].get(named(site, text)) if text is not None else None
        if entries is not None and text is not None:
            why = "; ".join(_why(each, named(at, text)) for each, at in measured[:SHOWN])
            made += [replace(e, why=f"{why}; {device}") for e in user_table.parse(entries, site).entries]
    return made


def summary(row: Row) -> list[tuple[str, ...]]:
    """Return what was timed of a shape as cells: its name, ms, their range, times shipped, times cuBLAS."""
    if row["shipped"] is None:
        return []
    bare, shipped = row["cublas_ms"], row["shipped"]["ms"]
    cells: list[tuple[str, ...]] = []
    for name, timing in {SHIPPED: row["shipped"], **row["tried"]}.items():
        ms, (least, most) = timing["ms"], timing["spread"]
        spread = f"{least:.4f} - {most:.4f}"
        cells.append((name, f"{ms:.4f}", spread, f"{shipped / ms:.3f}", f"{bare / ms:.3f}"))
    return cells
