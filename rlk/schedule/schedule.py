"""The fields of a schedule; none names a chunk, a piece, a tree or a model of arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlk.errors import Code, ScheduleError
from rlk.ir.dims import is_power_of_two

MAX_WARPS = 32
MAX_STAGES = 24
LEAST_REGISTERS, MOST_REGISTERS = 24, 255  # of a thread
LARGEST_TILE = 1 << 17  # elements of a tensor; Triton refuses 2**20, registers end long before
SMALLEST_DEPTH = 16  # K of a step of a matrix unit


def is_round(tile: int) -> bool:
    """Return whether a number is a power of two, or three or five times one."""
    odd = next((n for n in (3, 5) if tile % n == 0), 1)
    return is_power_of_two(tile // odd)


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
    """The schedule of a kernel.

    tiles: indices of a parallel axis per program, by axis; 1 for axes without an entry. A power of two, or
    three or five times one, which not every lowering supports.
    placed: the dims of a tile, outermost first; other dims follow in the order of the IR.
    warps: of a program. stages: of the pipeline of a loop's loads; the Triton backend compiles with fewer
    where they exceed shared memory. unroll: unrolled steps of a loop.
    depth: K of a step of a contraction. group: consecutive row tiles of a contraction with the same columns
    (tile swizzle for L2). programs: the size of a persistent grid, whose programs loop over tiles; 0: one
    program per tile. flat: tiles and K steps of a persistent program are one loop, so that loads of the next
    tile are prefetched too; it needs registers and memory for two tiles. descriptors: load tiles by TMA; a
    program builds the descriptors first, which costs short programs time. shared_kv_descriptor: K and V, if
    of equal shape and strides (different base pointers), share one descriptor. parts: column parts of an
    epilogue, one after the other, which needs fewer registers and less memory than all at once. registers:
    the most of a thread in a kernel of Triton for NVIDIA, so that more programs fit into an SM; 0: as many as
    the compiler takes. levels: a Triton kernel for NVIDIA issues the loads of a step before it waits for one,
    then those at indices that they loaded, with a barrier between. late: a Triton kernel loads a tile that
    its first sum does not need where it is first used, which takes fewer registers.
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
    registers: int = 0
    levels: bool = False
    late: bool = False

    def __post_init__(self) -> None:
        for axis, tile in self.tiles:
            if not is_round(tile):
                why = "a power of two, or three or five times one"
                raise ScheduleError(Code.SCHEDULE_FIELD, field=f"tiles[{axis}]", value=tile, why=why)
        if not is_power_of_two(self.warps) or self.warps > MAX_WARPS:
            raise ScheduleError(Code.SCHEDULE_FIELD, field="warps", value=self.warps, why="1, 2, 4, ... 32")
        if self.unroll < 1:
            raise ScheduleError(Code.SCHEDULE_FIELD, field="unroll", value=self.unroll, why="a count")
        if not is_power_of_two(self.depth) or self.depth < SMALLEST_DEPTH:
            raise ScheduleError(Code.SCHEDULE_FIELD, field="depth", value=self.depth, why="16, 32, 64, ...")
        if self.group < 1 or self.programs < 0:
            field, value = ("group", self.group) if self.group < 1 else ("programs", self.programs)
            raise ScheduleError(Code.SCHEDULE_FIELD, field=field, value=value, why="a count")
        if not is_power_of_two(self.parts):
            raise ScheduleError(Code.SCHEDULE_FIELD, field="parts", value=self.parts, why="a power of two")
        if not is_power_of_two(self.cluster):
            raise ScheduleError(Code.SCHEDULE_FIELD, field="cluster", value=self.cluster, why="1, 2 or 4")
        if self.registers and not LEAST_REGISTERS <= self.registers <= MOST_REGISTERS:
            why = f"0, or {LEAST_REGISTERS} to {MOST_REGISTERS}"
            raise ScheduleError(Code.SCHEDULE_FIELD, field="registers", value=self.registers, why=why)
        if not 1 <= self.stages <= MAX_STAGES:
            raise ScheduleError(
                Code.SCHEDULE_FIELD, field="stages", value=self.stages, why=f"1 to {MAX_STAGES}"
            )

    def check_powers(self) -> None:
        """Raise ScheduleError unless every tile is a power of two, for lowerings that support no others."""
        for axis, tile in self.tiles:
            if not is_power_of_two(tile):
                raise ScheduleError(
                    Code.SCHEDULE_FIELD, field=f"tiles[{axis}]", value=tile, why="a power of two"
                )

    def tile(self, axis: str) -> int:
        """Return the number of indices of a parallel axis per program."""
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
        turns += f", at most {self.registers} registers" if self.registers else ""
        turns += ", loads in levels" if self.levels else ""
        turns += ", late loads" if self.late else ""
        turns += ", shared K/V descriptor" if self.shared_kv_descriptor else ""
        return (
            f"tiles {tiles or '1'}, {self.warps} warps, {self.stages} stages, unroll {self.unroll}"
            f"{dots}{turns}{'' if self.descriptors else ', by pointers'}{placed}"
        )
