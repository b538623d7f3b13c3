"""Entries of the reviewed schedule tables: their conditions, and the reader of a table."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Set
from dataclasses import MISSING, dataclass, fields
from typing import Any, Generic, TypeVar, get_type_hints

from rlk.errors import Code, ScheduleError
from rlk.target.facts import TARGETS

KINDS = ("dot_map", "stream_dot")  # nests that contract
# The number of rows is rounded up to a class, which bounds the variants of a kernel.
ROW_CLASSES = (16, 32, 64, 128, 256, 512, 1024)
MORE = ROW_CLASSES[-1] + 1  # more rows than the largest class, or an unknown number

U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties of a contraction that an entry may test; an extent is None where no call has fixed it.

    dots: the number of accumulators. sums: float sums of the epilogue. rows, columns: extents of the axes of
    the tile's two sides. length: of the contracted axis, or of a piece. pieces: parallel pieces of the
    contracted axis. along: loads along the columns, without those of the factors. plain: the contracted axis
    is whole, and the epilogue has no transcendental function and loads no f32 tile.
    """

    target: str
    kind: str
    dots: int = 1
    sums: int = 0
    rows: int | None = None
    columns: int | None = None
    length: int | None = None
    pieces: int = 1
    along: int = 0
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers above `over` up to `most`; None: no bound on that side. unknown: matches only None."""

    over: int | None = None
    most: int | None = None
    unknown: bool = False

    def holds(self, number: int | None) -> bool:
        """Return whether a number is inside; None is inside only without bounds or with `unknown`."""
        if number is None or self.unknown:
            return number is None and self.over is None and self.most is None
        return (self.over is None or number > self.over) and (self.most is None or number <= self.most)


@dataclass(frozen=True, slots=True)
class Entry(Generic[U]):
    """A tiling and its conditions. target, kind, plain: None matches any. why: the measurement behind it."""

    use: U
    why: str
    target: str | None = None
    kind: str | None = None
    plain: bool | None = None
    dots: Range = Range(most=1)
    sums: Range = Range()
    rows: Range = Range()
    columns: Range = Range()
    length: Range = Range()
    pieces: Range = Range(most=1)
    along: Range = Range()

    def meets(self, facts: Facts) -> bool:
        """Return whether an entry matches a contraction."""
        named = all(getattr(self, name) in (None, getattr(facts, name)) for name in _NAMED)
        ranges = all(getattr(self, name).holds(getattr(facts, name)) for name in _RANGES)
        return named and ranges and self.rows.holds(row_class(facts.rows))


def row_class(rows: int | None) -> int:
    """Return the class of a number of rows, the smallest in ROW_CLASSES that is not less, else MORE.

    Rows of one class get one schedule. None, an unknown number, is in the class MORE.
    """
    return MORE if rows is None else next((bound for bound in ROW_CLASSES if rows <= bound), MORE)


def first(facts: Facts, entries: Iterable[Entry[U]]) -> Entry[U] | None:
    """Return the first entry that matches a contraction; None: heuristics decide."""
    return next((entry for entry in entries if entry.meets(facts)), None)


# --- reading ------------------------------------------------------------------------------------------------


def read(text: str, use: type[U]) -> tuple[Entry[U], ...]:
    """Return the entries of a table in TOML, each of which uses a dataclass of numbers and switches.

    Raises ScheduleError for what a table may not say.
    """
    try:
        document = _keys(tomllib.loads(text), "the table", {"entry"})
    except tomllib.TOMLDecodeError as error:
        raise wrong("the table", str(error), "TOML") from error
    return tuple(_entry(found, f"entry {i}", use) for i, found in enumerate(document.get("entry", ()), 1))


def _entry(found: object, place: str, of: type[U]) -> Entry[U]:
    entry = _keys(found, place, {"when", "use", "why"}, required={"when", "use", "why"})
    when = _keys(entry["when"], f"{place}, when", {f.name for f in fields(Entry)} - {"use", "why"})
    for name, choices in _NAMED.items():
        # 1 is no choice of a switch, though it equals True
        if name in when and (when[name] not in choices or type(when[name]) is not type(choices[0])):
            raise wrong(f"{place}, when.{name}", when[name], f"one of {', '.join(map(str, choices))}")
    ranges = {name: _range(v, f"{place}, when.{name}") for name, v in when.items() if name not in _NAMED}
    rows = ranges.get("rows", Range())
    for bound in (rows.over, rows.most):
        if bound is not None and bound not in ROW_CLASSES:
            raise wrong(f"{place}, when.rows", bound, f"a class of rows: {', '.join(map(str, ROW_CLASSES))}")
    conditions: dict[str, Any] = {**ranges, **{n: v for n, v in when.items() if n in _NAMED}}
    return Entry(_use(entry["use"], f"{place}, use", of), str(entry["why"]), **conditions)


def _use(found: object, place: str, of: type[U]) -> U:
    """Return what an entry uses: the fields of a dataclass, of exactly their types."""
    types: dict[str, type] = get_type_hints(of)
    required = {f.name for f in fields(of) if f.default is MISSING}  # type: ignore[arg-type]
    values = _keys(found, place, types.keys(), required)
    for name, value in values.items():
        if type(value) is not types[name]:
            raise wrong(f"{place}.{name}", value, f"of type {types[name].__name__}")
    return of(**values)


_NAMED: dict[str, tuple[str | bool, ...]] = {
    "target": tuple(TARGETS),
    "kind": KINDS,
    "plain": (False, True),
}
_RANGES = ("dots", "sums", "columns", "length", "pieces", "along")


def _range(value: object, place: str) -> Range:
    found = _keys(value, place, {"over", "most", "unknown"})
    if found == {"unknown": True}:
        return Range(unknown=True)
    if not found or any(type(n) is not int for n in found.values()):
        raise wrong(place, value, "{ over = n }, { most = n } or both, or { unknown = true }")
    return Range(**found)


def _keys(found: object, place: str, keys: Set[str], required: Set[str] = frozenset()) -> dict[str, Any]:
    """Return a table of TOML; raise ScheduleError where it has another key, or lacks one."""
    if not isinstance(found, dict):
        raise wrong(place, found, "a table")
    for name in sorted(found.keys() - keys):
        raise wrong(place, name, f"one of {', '.join(sorted(keys))}")
    for name in sorted(required - found.keys()):
        raise wrong(place, name, "missing")
    return found


def wrong(field: str, value: object, why: str) -> ScheduleError:
    """Return the error of a value that a table may not have."""
    return ScheduleError(Code.SCHEDULE_FIELD, field=field, value=value, why=why)
