"""The fields of a schedule; none names a chunk, a piece, a tree or a model of arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlk.errors import Code, ScheduleError
from rlk.ir.dims import is_power_of_two

MAX_WARPS = 32
MAX_STAGES = 24
SMALLEST_DEPTH = 16  # of a step of a matrix unit


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous range of the index bits of a tile axis, placed as one tensor dim: [low, low + bits)."""

    axis: str
    low: int
    bits: int

    def __str__(self) -> str:
        return f"{self.axis}[{self.low + self.bits - 1}:{self.low}]"


@dataclass(frozen=True, slots=True)
class Schedule:
    """tiles: how many indices of a parallel axis one program owns (a power of two; 1 where none is named).

    tiles: powers of two, or three times one, which not every lowering has.
    placed: the dims of a tile, outermost first; what it does not name follows in the order of the IR.
    warps: of a program. stages: of a loop whose loads run ahead. unroll: steps of a loop written in a row.
    depth: indices of a contracted axis that one step takes. group: row tiles of a contraction that go through
    its columns together. programs: how many take the tiles in turns; 0: a program for every tile. flat: turns
    and steps of a contraction are one loop, so that loads of the next tile run ahead too; it needs registers
    and memory for two tiles. descriptors: load tiles by tensor descriptors (TMA), which a program builds
    first, at a cost to short ones. halves: K and V, if of equal shape and strides (different base pointers),
    share one descriptor. parts: what follows a contraction is done for so many parts of
    its columns one after the other, which needs fewer registers and less memory than all at once.
    """

    tiles: tuple[tuple[str, int], ...] = ()
    placed: tuple[Span, ...] = ()
    warps: int = 4
    stages: int = 1
    unroll: int = 1
    depth: int = 64
    group: int = 1
    programs: int = 0
    flat: bool = False
    descriptors: bool = True
    shared_kv_descriptor: bool = False
    parts: int = 1
    cluster: int = 1

    def __post_init__(self) -> None:
        for axis, tile in self.tiles:
            if not is_power_of_two(tile // 3 if tile % 3 == 0 else tile):
                why = "a power of two, or three times one"
                raise ScheduleError(Code.SCHEDULE_FIELD, field=f"tiles[{axis}]", value=tile, why=why)
        if not is_power_of_two(self.warps) or self.warps > MAX_WARPS:
            raise ScheduleError(Code.SCHEDULE_FIELD, field="warps", value=self.warps, why="1, 2, 4, ... 32")
        if not is_power_of_two(self.unroll):
            raise ScheduleError(Code.SCHEDULE_FIELD, field="unroll", value=self.unroll, why="a power of two")
        if not is_power_of_two(self.depth) or self.depth < SMALLEST_DEPTH:
            raise ScheduleError(Code.SCHEDULE_FIELD, field="depth", value=self.depth, why="16, 32, 64, ...")
        if self.group < 1 or self.programs < 0:
            field, value = ("group", self.group) if self.group < 1 else ("programs", self.programs)
            raise ScheduleError(Code.SCHEDULE_FIELD, field=field, value=value, why="a count")
        if not is_power_of_two(self.parts):
            raise ScheduleError(Code.SCHEDULE_FIELD, field="parts", value=self.parts, why="a power of two")
        if not is_power_of_two(self.cluster):
            raise ScheduleError(Code.SCHEDULE_FIELD, field="cluster", value=self.cluster, why="1, 2 or 4")
        if not 1 <= self.stages <= MAX_STAGES:
            raise ScheduleError(
                Code.SCHEDULE_FIELD, field="stages", value=self.stages, why=f"1 to {MAX_STAGES}"
            )

    def check_powers(self) -> None:
        """Raise ScheduleError unless every tile is a power of two: for lowerings that have no others."""
        for axis, tile in self.tiles:
            if not is_power_of_two(tile):
                raise ScheduleError(
                    Code.SCHEDULE_FIELD, field=f"tiles[{axis}]", value=tile, why="a power of two"
                )

    def tile(self, axis: str) -> int:
        """Return how many indices of a parallel axis one program owns."""
        return dict(self.tiles).get(axis, 1)

    def with_tile(self, axis: str, tile: int) -> Schedule:
        """Return the schedule with one tile changed."""
        return replace(self, tiles=tuple(sorted({**dict(self.tiles), axis: tile}.items())))

    def __str__(self) -> str:
        tiles = ", ".join(f"{axis}={tile}" for axis, tile in self.tiles)
        placed = f" placed {' '.join(map(str, self.placed))}" if self.placed else ""
        dots = f", depth {self.depth}, group {self.group}" if (self.depth, self.group) != (64, 1) else ""
        turns = f", {self.programs} programs{' in one loop' * self.flat}" if self.programs else ""
        turns += f", {self.parts} parts" if self.parts > 1 else ""
        turns += f", clusters of {self.cluster}" if self.cluster > 1 else ""
        turns += ", shared K/V descriptor" if self.shared_kv_descriptor else ""
        return (
            f"tiles {tiles or '1'}, {self.warps} warps, {self.stages} stages, unroll {self.unroll}"
            f"{dots}{turns}{'' if self.descriptors else ', by pointers'}{placed}"
        )
