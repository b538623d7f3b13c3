"""CuTe tiles of contractions: the first entry of the reviewed table that matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from rlk.ir.dims import Axis, is_power_of_two
from rlk.ir.types import DType
from rlk.schedule.entries import Entry, Facts, Range, first, read, wrong
from rlk.schedule.schedule import MAX_STAGES, Schedule, is_round
from rlk.target.facts import Target, target

TABLE = Path(__file__).parent / "tables" / "warpgroups.toml"
TARGET = "sm_90a"
ROWS = (64, 128)  # rows of a tile of one warpgroup, of two
FEW = (8, 16, 32)  # rows of a tile with swapped operands: they are the N of a wgmma
FEWEST_COLUMNS, MOST_COLUMNS = 32, 256
WHOLE = 16  # columns of which others than powers of two are multiples
FEWEST_STAGES = 2
DEPTH = 64  # K of a step: rows of 128 bytes, for the 128-byte swizzle
STAGE = 2 * DEPTH  # bytes of a row of a tile in a stage
BARRIERS = 1  # KiB of shared memory beside the stages
EPILOGUE = 1  # KiB of scratch per consumer warp, which has 16 rows of a wgmma
CLUSTERS = (1, 2)
ACCUMULATORS = 192  # registers of a thread for accumulators; the others are for addresses and the epilogue
COLUMN = 2  # columns of a tile per accumulator register: a thread has 1/128 of 64 rows

Sides = tuple[Axis, Axis]


@dataclass(frozen=True, slots=True)
class Warpgroups:
    """The tile and pipeline of a matrix product by warpgroups, without the names of its axes.

    rows: of a tile, 64 per warpgroup; below 64 operands are swapped, and the columns are 64 per warpgroup.
    columns: of a tile; a side that blocks have whole keeps its length, with tiles of 64 rows or more.
    stages, group: as in Schedule. cluster: blocks with different rows that share TMA loads of the columns
    (multicast). per_core: blocks per SM, which loop over tiles (persistent kernel).
    """

    rows: int
    columns: int
    stages: int
    group: int
    cluster: int = 1
    per_core: int = 1

    def __post_init__(self) -> None:
        if self.rows not in FEW + ROWS:
            raise wrong("rows", self.rows, "64 or 128, one warpgroup or two, or fewer: 8, 16 or 32")
        if self.rows in FEW and self.columns not in ROWS:
            raise wrong("columns", self.columns, "64 or 128 beside fewer than 64 rows")
        whole = is_power_of_two(self.columns) or is_round(self.columns) and self.columns % WHOLE == 0
        if not whole or not FEWEST_COLUMNS <= self.columns <= MOST_COLUMNS:
            known = f"a power of two, or three or five times one, from {FEWEST_COLUMNS} to {MOST_COLUMNS}"
            raise wrong("columns", self.columns, known)
        if self.cluster not in CLUSTERS:
            raise wrong("cluster", self.cluster, "1 or 2")
        if self.group < 1 or self.per_core < 1:
            name = "group" if self.group < 1 else "per_core"
            raise wrong(name, getattr(self, name), "a count of 1 or more")
        most = most_stages(self.rows, self.columns, self.per_core)
        if not FEWEST_STAGES <= self.stages <= most:
            size = STAGE * (self.rows + self.columns) >> 10
            raise wrong("stages", self.stages, f"{FEWEST_STAGES} to {most}, each of {size} KiB")

    def schedule(self, chosen: Schedule, sides: Sides, held: Mapping[Axis, int], cores: int) -> Schedule:
        """Return the schedule of a kernel whose tiles run along two axes, rows first.

        chosen: another lowering's schedule. held: the lengths of the axes that blocks have whole.
        """
        columns = held.get(sides[1], self.columns)
        rows = max(self.rows, ROWS[0]) if sides[1] in held else self.rows
        lengths = zip(sides, (rows, columns), strict=True)
        return replace(
            chosen,
            tiles=tuple(sorted((str(axis), n) for axis, n in lengths if axis not in held)),
            stages=max(FEWEST_STAGES, min(self.stages, most_stages(rows, columns, self.per_core))),
            depth=DEPTH,
            group=self.group,
            programs=self.per_core * cores,
            cluster=self.cluster,
            flat=False,
            parts=1,
        )


def most_stages(rows: int, columns: int, per_core: int = 1, pieces: int = 1) -> int:
    """Return the number of stages of a tile that fit into the shared memory of an SM, at most MAX_STAGES.

    pieces: the number of pieces that a block adds; some accumulators are in shared memory.
    """
    warps = (columns if rows < ROWS[0] else rows) // 16
    kept = accumulators(columns, pieces)[1] * rows * columns * DType.F32.bytes
    room = room_of_stages(target(TARGET), warps, kept, per_core)
    return min(MAX_STAGES, room // (STAGE * (rows + columns)))


def room_of_stages(on: Target, warps: int, kept: int, per_core: int = 1) -> int:
    """Return the bytes of shared memory that a block has for stages.

    warps: consumer warps. kept: bytes of accumulators in shared memory, which are the scratch of the epilogue
    afterwards. per_core: blocks per SM.
    """
    return ((on.shared // per_core - BARRIERS) << 10) - max(kept, EPILOGUE * warps << 10)


def accumulators(columns: int, pieces: int) -> tuple[int, int]:
    """Return the numbers of accumulators of a tile in registers, and in shared memory.

    Pieces are added as a binary counter counts: one accumulator is that of the running product, and one is
    for each binary digit. Those of the highest digits, which are used least, are in shared memory.
    """
    all_of_them = pieces.bit_length()
    held = min(all_of_them, ACCUMULATORS * COLUMN // columns)
    return held, all_of_them - held


def tabled(facts: Facts, entries: tuple[Entry[Warpgroups], ...] | None = None) -> Warpgroups | None:
    """Return the tiling of the first entry that matches a contraction; None: heuristics decide."""
    found = first(facts, table() if entries is None else entries)
    return None if found is None else found.use


@cache
def table() -> tuple[Entry[Warpgroups], ...]:
    """Return the reviewed table, read when a contraction is first scheduled for warpgroups."""
    return parse(TABLE.read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Entry[Warpgroups], ...]:
    """Return the entries of a table in TOML; raise ScheduleError for illegal ones."""
    entries = read(text, Warpgroups)
    for i, entry in enumerate(entries, 1):
        _shares_with_another(entry.use, entry.rows, f"entry {i}, when.rows")
    return entries


def _shares_with_another(use: Warpgroups, rows: Range, place: str) -> None:
    """Refuse a cluster whose second block would have no rows."""
    fewest = (use.cluster - 1) * use.rows
    if (rows.over or 0) < fewest:
        raise wrong(place, rows.over, f"over {fewest} or more, for a cluster of {use.cluster} tiles of rows")
