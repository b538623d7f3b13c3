"""Triton tiles of contractions: the first entry of the reviewed table that matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlk.ir.dims import Axis, is_power_of_two
from rlk.ir.tree import padded
from rlk.schedule.entries import Entry, Facts, first, read, wrong
from rlk.schedule.schedule import SMALLEST_DEPTH, Schedule, Span

TABLE = Path(__file__).parent / "tables" / "contraction.toml"
SMALLEST_TILE = 16  # of a matrix unit
UNEVEN_DEPTH = 64  # K of a step if no depth divides the contracted axis, or its length is unknown
LARGEST_TILE = 256  # rows of a TMA tile

Sides = tuple[Axis, Axis]


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tile and pipeline of a matrix product, without the names of its axes.

    rows, columns: of a tile; a side that programs have whole keeps its length. depth, warps, stages, group,
    flat, descriptors: as in Schedule. per_core: persistent programs per SM; 0: one program per tile. turned:
    operands are swapped: columns are the M of the matrix unit, whose smallest M is 64, so that tiles of fewer
    rows are possible.
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
                raise wrong(name, tile, f"a power of two from {SMALLEST_TILE} to {LARGEST_TILE}")
        if self.per_core < 0:
            raise wrong("per_core", self.per_core, "a count")
        if self.flat and not self.per_core:
            raise wrong("flat", self.flat, "programs that take tiles in turns, so per_core of 1 or more")
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

        held: the lengths of the axes that programs have whole. columns, length: extents, if known: a tile is
        no wider, and the depth divides the length if one of 16 or more does.
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


def tabled(facts: Facts, entries: tuple[Entry[Tiling], ...] | None = None) -> Tiling | None:
    """Return the tiling of the first entry that matches a contraction; None: heuristics decide."""
    found = first(facts, table() if entries is None else entries)
    return None if found is None else found.use


@cache
def table() -> tuple[Entry[Tiling], ...]:
    """Return the reviewed table, read when a contraction is first scheduled."""
    return parse(TABLE.read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Entry[Tiling], ...]:
    """Return the entries of a table in TOML; raise ScheduleError for illegal ones."""
    return read(text, Tiling)
