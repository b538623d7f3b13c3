"""Which schedule a contraction gets from the reviewed table: that of the first entry that its facts meet."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from rlk.errors import Code, ScheduleError
from rlk.ir.dims import Axis, is_power_of_two
from rlk.ir.tree import padded
from rlk.schedule.schedule import SMALLEST_DEPTH, Schedule, Span
from rlk.target.facts import TARGETS

TABLE = Path(__file__).parent / "tables" / "contraction.toml"
KINDS = ("dot_map", "stream_dot")  # nests that contract
# A call's rows count as the next of these, or as more: a kernel has at most one variant more than there are.
ROW_CLASSES = (16, 32, 64, 128, 256, 512, 1024)
SMALLEST_TILE = 16  # of a matrix unit
UNEVEN_DEPTH = 64  # of a contracted axis that no depth divides, or whose length is not known
LARGEST_TILE = 256  # rows of a box that a descriptor copies

Sides = tuple[Axis, Axis]


@dataclass(frozen=True, slots=True)
class Facts:
    """What an entry may ask about a contraction; an extent is None where no call has fixed it.

    dots: accumulators held at once. sums: float sums of the epilogue. rows, columns: extents of what the two
    sides of a tile run along. length: of the contracted axis, or of a piece. pieces: of the contracted axis,
    side by side. along: reads along the columns but those of the factors. plain: the contracted axis is
    whole, and its products meet no transcendental function and no f32 tile from memory.
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
    """Numbers above `over` up to `most`; None: no bound on that side."""

    over: int | None = None
    most: int | None = None

    def holds(self, number: int | None) -> bool:
        """Say whether a number is inside; one that is not known is only where nothing is asked."""
        if number is None:
            return self.over is None and self.most is None
        return (self.over is None or number > self.over) and (self.most is None or number <= self.most)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a matrix product is run, without the names of its axes.

    rows, columns: of a tile; a side that programs hold whole keeps its length. depth, warps, stages, group,
    flat, descriptors: as in Schedule. per_core: programs for each multiprocessor, which take tiles in turns;
    0: a program for every tile. turned: columns are the outer dim of the accumulator, so that a matrix unit
    whose smallest outer dim is 64 takes fewer rows than that.
    """

    rows: int
    columns: int = LARGEST_TILE
    depth: int = 64
    warps: int = 4
    stages: int = 4
    group: int = 1
    per_core: int = 0
    flat: bool = False
    descriptors: bool = True
    turned: bool = False

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            tile = getattr(self, name)
            if not is_power_of_two(tile) or not SMALLEST_TILE <= tile <= LARGEST_TILE:
                raise _wrong(name, tile, f"a power of two from {SMALLEST_TILE} to {LARGEST_TILE}")
        if self.per_core < 0:
            raise _wrong("per_core", self.per_core, "a count")
        if self.flat and not self.per_core:
            raise _wrong("flat", self.flat, "programs that take tiles in turns, so per_core of 1 or more")
        self.schedule(_SOME, {}, 1)

    def schedule(
        self,
        sides: Sides,
        held: Mapping[Axis, int],
        cores: int,
        columns: int | None = None,
        length: int | None = None,
    ) -> Schedule:
        """Return the schedule of a kernel whose tiles run along two axes, rows first.

        held: the lengths of the axes that programs hold whole. columns, length: how many there are, where
        known: a tile is no wider, and steps are whole where a depth of 16 or more makes them so.
        """
        wide = self.columns if columns is None else max(SMALLEST_TILE, min(self.columns, padded(columns)))
        depths = (
            self.depth >> i for i in range(self.depth.bit_length()) if self.depth >> i >= SMALLEST_DEPTH
        )
        depth = next((d for d in depths if length is None or length % d == 0), min(self.depth, UNEVEN_DEPTH))
        lengths = [held.get(axis, tile) for axis, tile in zip(sides, (self.rows, wide), strict=True)]
        spans = [Span(str(axis), 0, n.bit_length() - 1) for axis, n in zip(sides, lengths, strict=True)]
        tiles = [(str(axis), n) for axis, n in zip(sides, lengths, strict=True) if axis not in held]
        return Schedule(
            tiles=tuple(sorted(tiles)),
            placed=tuple(reversed(spans)) if self.turned else (),
            warps=self.warps,
            stages=self.stages,
            depth=depth,
            group=self.group,
            programs=self.per_core * cores,
            flat=self.flat,
            descriptors=self.descriptors,
        )


_SOME = (Axis("M"), Axis("N"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A tiling, and the contractions that it is for. No target, kind or plain: any. why: what measured it."""

    use: Tiling
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
        """Return whether an entry is for a contraction."""
        named = all(getattr(self, name) in (None, getattr(facts, name)) for name in _NAMED)
        ranges = all(getattr(self, name).holds(getattr(facts, name)) for name in _RANGES)
        return named and ranges and self.rows.holds(row_class(facts.rows))


def row_class(rows: int | None) -> int:
    """Return the number that stands for so many rows: rows of one class get one schedule.

    Those above the largest class, and those that are not known, are one class too.
    """
    most = ROW_CLASSES[-1] + 1
    return most if rows is None else next((bound for bound in ROW_CLASSES if rows <= bound), most)


def tabled(facts: Facts, entries: tuple[Entry, ...] | None = None) -> Tiling | None:
    """Return the tiling of the first entry that is for a contraction; None where heuristics decide."""
    listed = table() if entries is None else entries
    return next((entry.use for entry in listed if entry.meets(facts)), None)


@cache
def table() -> tuple[Entry, ...]:
    """Return the reviewed table, read when a contraction is first scheduled."""
    return parse(TABLE.read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Entry, ...]:
    """Return the entries of a table in TOML; raise ScheduleError for what it may not say."""
    try:
        document = _keys(tomllib.loads(text), "the table", {"entry"})
    except tomllib.TOMLDecodeError as error:
        raise _wrong("the table", str(error), "TOML") from error
    return tuple(_entry(found, f"entry {i}") for i, found in enumerate(document.get("entry", ()), 1))


def _entry(found: object, place: str) -> Entry:
    entry = _keys(found, place, {"when", "use", "why"}, required={"when", "use", "why"})
    when = _keys(entry["when"], f"{place}, when", {f.name for f in fields(Entry)} - {"use", "why"})
    use = _keys(entry["use"], f"{place}, use", {f.name for f in fields(Tiling)}, required={"rows"})
    for name, value in use.items():
        wanted = bool if name in ("flat", "descriptors", "turned") else int
        if type(value) is not wanted:
            raise _wrong(f"{place}, use.{name}", value, f"of type {wanted.__name__}")
    for name, choices in _NAMED.items():
        # 1 is no choice of a switch, though it equals True
        if name in when and (when[name] not in choices or type(when[name]) is not type(choices[0])):
            raise _wrong(f"{place}, when.{name}", when[name], f"one of {', '.join(map(str, choices))}")
    ranges = {name: _range(v, f"{place}, when.{name}") for name, v in when.items() if name not in _NAMED}
    rows = ranges.get("rows", Range())
    for bound in (rows.over, rows.most):
        if bound is not None and bound not in ROW_CLASSES:
            raise _wrong(f"{place}, when.rows", bound, f"a class of rows: {', '.join(map(str, ROW_CLASSES))}")
    conditions: dict[str, Any] = {**ranges, **{n: v for n, v in when.items() if n in _NAMED}}
    return Entry(Tiling(**use), str(entry["why"]), **conditions)


_NAMED: dict[str, tuple[str | bool, ...]] = {
    "target": tuple(TARGETS),
    "kind": KINDS,
    "plain": (False, True),
}
_RANGES = ("dots", "sums", "columns", "length", "pieces", "along")


def _range(value: object, place: str) -> Range:
    found = _keys(value, place, {"over", "most"})
    if not found or any(type(n) is not int for n in found.values()):
        raise _wrong(place, value, "{ over = n }, { most = n } or both")
    return Range(**found)


def _keys(found: object, place: str, keys: Set[str], required: Set[str] = frozenset()) -> dict[str, Any]:
    """Return a table of TOML; raise ScheduleError where it has another key, or lacks one."""
    if not isinstance(found, dict):
        raise _wrong(place, found, "a table")
    for name in sorted(found.keys() - keys):
        raise _wrong(place, name, f"one of {', '.join(sorted(keys))}")
    for name in sorted(required - found.keys()):
        raise _wrong(place, name, "missing")
    return found


def _wrong(field: str, value: object, why: str) -> ScheduleError:
    return ScheduleError(Code.SCHEDULE_FIELD, field=field, value=value, why=why)
