"""Pipeline model checker: stages filled by TMA or by cp.async of many threads, on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlk.interp import arithmetic as ops
from rlk.testing.simulators import block_memory, simt
from rlk.testing.simulators.simt import Array, Fault, Float32, Int32, Memory, Number

Use = tuple[int, int]  # of a ring, and how often a stage of it was filled before
Flying = Callable[[], list[tuple[list[Any], set[Use]]]]
"""Groups of products that are not waited for: accumulators, and what they read."""
Threads = Callable[[], Array]


@dataclass(slots=True, eq=False, kw_only=True)
class Ring:
    """Stages of tiles by their use: which one is read, and how many were given back.

    flying: the products that may still read one.
    """

    stages: int
    flying: Flying
    reading: int = -1
    taken: int = 0

    def consumer_release(self, state: Any) -> None:
        self.freed(state)

    def freed(self, state: Any) -> None:
        """Take a stage back, which nobody may read any more."""
        if state.count != self.taken:
            raise Fault("a stage is released out of turn")
        if any((id(self), state.count) in uses for _, uses in self.flying()):
            raise Fault("a stage is released that products still read")
        self.taken += 1

    def again(self) -> None:
        """Let others read the same stages, whose part it is to free them too."""
        self.reading, self.taken = -1, 0


# --- TMA tiles ---


@dataclass(slots=True, eq=False, kw_only=True)
class TmaRing(Ring):
    """Stages by their use: the tiles and how many bytes of them have landed.

    kinds: of the elements of each factor. seen, met: whether zeros that threads wrote to the stage that is
    read are visible to the matrix unit, and whether the threads have met since.
    """

    bytes: int
    filled: list[dict[str, Array]] = field(default_factory=list)
    landed: list[int] = field(default_factory=list)
    kinds: dict[str, type[Number]] = field(default_factory=dict)
    seen: bool = True
    met: bool = True

    def producer_acquire(self, state: State) -> None:
        if state.count != len(self.filled):
            raise Fault("a stage is filled out of turn")
        self.filled.append({})
        self.landed.append(0)

    def producer_get_barrier(self, state: State) -> int:
        return state.count

    def producer_tail(self, state: State) -> None:
        pass

    def consumer_wait(self, state: State) -> None:
        if state.count >= len(self.filled):
            raise Fault("a stage is awaited that nothing fills")
        if self.landed[state.count] != self.bytes:
            raise Fault(f"{self.landed[state.count]} bytes landed in a stage that waits for {self.bytes}")
        self.reading, self.seen, self.met = state.count, True, True


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix from a row on, as TMA tiles along its second dim."""

    memory: Memory
    first: int = 0
    along: int = 0
    rows: int = 0
    depth: int = 0
    step: int = 0

    def __getitem__(self, index: tuple[None, Any]) -> Rows:
        return replace(self, step=int(index[1]))

    def tile(self) -> Array:
        """Return the elements of a TMA tile: zeros outside of the tensor."""
        (height, width), (down, right) = self.memory.shape, self.memory.strides
        made = np.zeros((self.rows, self.depth), ops.decode(self.memory.flat[:0], self.memory.dtype).dtype)
        row = np.arange(self.first, self.first + self.rows)
        column = self.along + np.arange(self.step * self.depth, (self.step + 1) * self.depth)
        inside = ((row >= 0) & (row < height))[:, None] & (column < width)
        at = (row[:, None] * down + column * right)[inside]
        made[inside] = ops.decode(self.memory.flat[at], self.memory.dtype)
        return made


@dataclass(slots=True)
class State:
    stages: int
    count: int = 0

    @property
    def index(self) -> int:
        return self.count % self.stages

    def advance(self) -> None:
        self.count += 1

    def clone(self) -> State:
        return replace(self)


# --- vectors ---


@dataclass(slots=True, eq=False, kw_only=True)
class CopyRing(Ring):
    """Stages by their use: tiles, which elements of them are there, and whether the copies were handed on.

    threads: those that act now. producers: how many of them hand a stage on. tiled: whether it has tiles, and
    not numbers alone. inner: the dim of tiles that follows itself in memory. numbers: by name, and which of
    them are there.
    seen: whether the threads that read a stage have made its bytes visible to the matrix unit.
    """

    name: str
    elected: Callable[[], bool]
    threads: Threads
    producers: int = 1
    tiled: bool = True
    tiles: list[Array] = field(default_factory=list)
    there: list[Array] = field(default_factory=list)
    inner: int = 1
    numbers: dict[str, list[tuple[Array, Array]]] = field(default_factory=dict)
    acquired: int = 0
    committed: int = 0
    seen: bool = False

    def producer_acquire(self, state: Any) -> None:
        if state.count != self.acquired or self.committed != self.acquired:
            raise Fault("a stage is filled out of turn")
        self.acquired += 1

    def producer_commit(self, state: Any) -> None:
        if state.count != self.committed or not self.filled:
            raise Fault("a stage is handed on that nothing fills")
        if len(self.threads()) != self.producers:
            raise Fault(f"{len(self.threads())} threads hand a stage on, {self.producers} are awaited")
        self.committed += 1

    def consumer_release(self, state: Any) -> None:
        if not self.elected():
            raise Fault("every thread frees a stage that one of a warp does")
        self.freed(state)

    def consumer_wait(self, state: Any) -> None:
        if state.count >= self.committed:
            raise Fault("a stage is awaited that nothing fills")
        every = [each[state.count][1] for each in self.numbers.values()]
        if not all(there.all() for there in (*([self.there[state.count]] if self.tiled else []), *every)):
            raise Fault("a stage is handed on with elements that no thread wrote")
        self.reading, self.seen = state.count, False

    @property
    def filled(self) -> bool:
        """Return whether the stage that is filled has a tile, or numbers where none travels with them."""
        kinds = [self.tiles] if self.tiled else list(self.numbers.values())
        return bool(kinds) and all(len(each) == self.acquired for each in kinds)

    @property
    def left(self) -> bool:
        """Return whether stages were filled that nobody freed: a single stage used once needs no release."""
        return self.taken != self.committed and max(self.stages, self.committed) > 1


@dataclass(slots=True, eq=False, kw_only=True)
class TmaStages(CopyRing):
    """Stages that hardware fills, of so many bytes, which threads may clear in part before they are read.

    came: tiles as they were when they came. landed: bytes of each use. met: whether the threads that cleared
    rows have met since.
    """

    bytes: int
    came: list[Array] = field(default_factory=list)
    landed: list[int] = field(default_factory=list)
    met: bool = True

    def consumer_release(self, state: Any) -> None:
        if self.elected():
            raise Fault("the thread that is elected need not be the one that frees a stage")
        self.freed(state)

    def consumer_wait(self, state: Any) -> None:
        if state.count >= self.acquired:
            raise Fault("a stage is awaited that nothing fills")
        if self.landed[state.count] != self.bytes:
            raise Fault(f"{self.landed[state.count]} bytes landed in a stage that waits for {self.bytes}")
        self.reading, self.seen = state.count, True

    @property
    def left(self) -> bool:
        return self.taken != self.acquired

    def again(self) -> None:
        """Let others read the same stages, in which they clear rows for themselves."""
        Ring.again(self)
        self.tiles, self.met = [tile.copy() for tile in self.came], True

    def fill(self, state: Any, tile: Array, layout: Layout) -> None:
        """Let a TMA tile land in the next stage."""
        if state.count != self.acquired or tile.shape != layout.shape:
            raise Fault(f"a TMA tile of {tile.shape} in a stage of {layout.shape}, or out of turn")
        self.acquired += 1
        self.came.append(tile)
        self.inner = layout.inner
        self.landed.append(tile.size * 2)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tile: its extents, and which of its dims is contiguous in memory."""

    shape: tuple[int, int]
    inner: int


@dataclass(frozen=True, slots=True)
class Storage:
    """A part of shared memory by its name; `rings` are those of the block by theirs."""

    name: str
    rings: dict[str, CopyRing]

    def data_ptr(self) -> str:
        return self.name

    def get_tensor(self, outer: Any, *, swizzle: Any = None) -> Any:
        if isinstance(outer, Layout):
            return Tiles(self, outer)
        if (own := self.rings.get(f"{self.name}_ring")) is not None:
            own.tiled = False
        return RowStatistic(self, *outer.shape)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of a factor; `stage`, `step`: the part of them that an instruction reads."""

    of: Storage
    layout: Layout
    stage: int = -1
    step: int = -1

    @property
    def ring(self) -> CopyRing:
        return self.of.rings[f"{self.of.name}_ring"]

    @property
    def reading(self) -> Array:
        """Return the tile that is read."""
        return self.ring.tiles[self.ring.reading]

    def __getitem__(self, index: tuple[Any, ...]) -> Tiles:
        last = int(index[-1])
        return replace(self, stage=last) if len(index) == 4 else replace(self, step=last)

    def part(self, depth: int) -> tuple[Array, Use]:
        """Return what an instruction reads, and of which use of a stage."""
        ring = self.ring
        if self.stage != ring.reading % ring.stages:
            raise Fault("factors of a stage that is not read")
        check_cleared(ring)
        if ring.taken > ring.reading:
            raise Fault("a stage is read that was freed")
        tile = ring.tiles[ring.reading]
        if ring.inner != self.layout.inner:
            tile = tile.T
        if tile.shape != self.layout.shape:
            raise Fault(f"a tile of {tile.shape} read as one of {self.layout.shape}")
        return tile[:, self.step * depth : (self.step + 1) * depth], (id(ring), ring.reading)

    def put(self, place: Any, values: list[Number], threads: Array) -> None:
        """Write the vectors of all threads: each element once."""
        ring, inner = self.ring, self.layout.inner
        *at, stage = (np.broadcast_to(Int32(p).data, threads.shape) for p in place)
        if len(ring.tiles) < ring.acquired:
            ring.tiles.append(np.zeros(self.layout.shape, np.float32))
            ring.there.append(np.zeros(self.layout.shape, np.bool_))
            ring.inner = inner
        if (stage != (ring.acquired - 1) % ring.stages).any() or ring.committed == ring.acquired:
            raise Fault("a vector lands in another stage than the one that is filled")
        if (at[inner] % len(values)).any():
            raise Fault("a vector in shared memory that is not aligned")
        tile, there = ring.tiles[-1], ring.there[-1]
        for i, x in enumerate(values):
            to = tuple(a + i if dim == inner else a for dim, a in enumerate(at))
            if any(((a < 0) | (a >= n)).any() for a, n in zip(to, self.layout.shape, strict=True)):
                raise Fault("a vector outside of its tile")
            if len(set(zip(*(a.tolist() for a in to), strict=True))) != len(threads):
                raise Fault("two threads write one element of a tile")
            if there[to].any():
                raise Fault("an element of a tile is written twice")
            there[to] = True
            tile[to] = np.broadcast_to(x.data, threads.shape)


def copy_vector_where(
    threads: Threads, condition: Any, memory: Memory, index: Any, tiles: Tiles, place: Any, count: int
) -> None:
    """Send vectors to a tile, zeros where a condition does not hold."""
    zero = memory.element_type(0.0)
    tiles.put(place, block_memory.load_vector_where(condition, memory, index, zero, count), threads())


def tma_load(
    threads: Threads, ring: TmaStages, state: Any, atom: Any, memory: Memory, first: Any, shape: Any,
    tiles: Tiles,
) -> None:  # fmt: skip
    """Let a TMA tile of a tensor land in a stage: zeros where the tensor ends."""
    if atom.tile != shape or tiles.ring is not ring:
        raise Fault(f"a TMA tile of {shape} by a copy of tiles of {atom.tile}")
    made = np.zeros(shape, np.float32)
    (down, there), (right, also) = map(_side, first, shape, memory.shape, memory.strides)
    inside, offset = there[:, None] & also, down[:, None] + right
    made[inside] = ops.decode(memory.flat[offset[inside]], memory.dtype)
    ring.fill(state, made, tiles.layout)


def _side(first: Any, count: int, extent: Any, stride: Any) -> tuple[Array, Array]:
    """Return how far from a tensor's begin the rows of a TMA tile lie, and which of them are in the tensor.

    A row of two indices is a head of a token: a TMA tile has all heads of some tokens.
    """
    if not isinstance(extent, tuple):
        at = simt.shared(first) + np.arange(count)
        return at * stride, (at >= 0) & (at < extent)
    heads, tokens = extent
    if count % heads or simt.shared(first[0]) != 0:
        raise Fault(f"a TMA tile of {count} rows of {heads} heads each, from head {first[0]} on")
    head, token = np.arange(count) % heads, simt.shared(first[1]) + np.arange(count) // heads
    return head * stride[0] + token * stride[1], (token >= 0) & (token < tokens)


def clear_vector_where(threads: Threads, condition: Any, tiles: Tiles, place: Any, count: int) -> None:
    """Write zeros to vectors of a stage that hardware filled."""
    ring, layout = tiles.ring, tiles.layout
    on = np.broadcast_to(condition.data, threads().shape)
    *at, stage = (np.broadcast_to(Int32(p).data, on.shape)[on] for p in place)
    if (stage != ring.reading % ring.stages).any():
        raise Fault("a vector of another stage is cleared than the one that is read")
    if any((id(ring), ring.reading) in uses for _, uses in ring.flying()):
        raise Fault("a stage is cleared that products read")
    if any(((a < 0) | (a >= n)).any() for a, n in zip(at, layout.shape, strict=True)):
        raise Fault("a vector outside of its tile")
    if (at[layout.inner] % count).any():
        raise Fault("a vector in shared memory that is not aligned")
    for i in range(count):
        tiles.reading[tuple(a + i if dim == layout.inner else a for dim, a in enumerate(at))] = 0.0
    ring.seen = False
    if isinstance(ring, TmaStages | TmaRing):
        ring.met = False


@dataclass(frozen=True, slots=True)
class RowStatistic:
    """RowStatistic of all stages, which travel through the ring that threads fill meanwhile."""

    of: Storage
    count: int
    stages: int

    def put(self, mine: Array, place: Any, x: Number) -> None:
        """Write the numbers of those threads."""
        filled = (x for x in self.of.rings.values() if not isinstance(x, TmaStages))
        ring = next(each for each in filled if each.acquired > each.committed)
        at, stage = (np.broadcast_to(Int32(p).data, mine.shape)[mine] for p in place)
        held = ring.numbers.setdefault(self.of.name, [])
        if len(held) < ring.acquired:
            held.append((np.zeros(self.count, np.float32), np.zeros(self.count, np.bool_)))
        numbers, there = held[-1]
        if (stage != (ring.acquired - 1) % ring.stages).any() or self.stages != ring.stages:
            raise Fault("a number lands in another stage than the one that is filled")
        if len(np.unique(at)) != len(at) or there[at].any():
            raise Fault("two threads write one number of a stage")
        numbers[at], there[at] = np.broadcast_to(x.data, mine.shape)[mine], True

    def get(self, first: Any, stage: Any, count: int) -> list[Number]:
        """Read pairs of every eight, from the first on."""
        ring = next((each for each in self.of.rings.values() if self.of.name in each.numbers), None)
        if ring is None or int(stage) != ring.reading % ring.stages or ring.taken > ring.reading:
            raise Fault("numbers of a stage that is not read")
        if (first.data % 2).any():
            raise Fault("two numbers that are not aligned")
        held, _ = ring.numbers[self.of.name][ring.reading]
        return [Float32.of(held[first.data + 8 * (i // 2) + i % 2]) for i in range(count)]


def copy_statistic_where(
    threads: Threads, mine: Any, condition: Any, memory: Memory, index: Any, numbers: RowStatistic, place: Any
) -> None:
    """Send numbers of some threads, zeros where a condition does not hold."""
    chosen = np.broadcast_to(mine.data, threads().shape)
    numbers.put(chosen, place, simt.load_where(mine & condition, memory, index, memory.element_type(0.0)))


def copy_either_vector(
    threads: Threads, condition: Any, memory: Memory, index: Any, otherwise: Any, other: Memory, beside: Any,
    tiles: Tiles, place: Any, count: int,
) -> None:  # fmt: skip
    """Send vectors of one tensor or of another to a tile, zeros where neither condition holds."""
    zero = memory.element_type(0.0)
    one = block_memory.load_vector_where(condition, memory, index, zero, count)
    two = block_memory.load_vector_where(otherwise, other, beside, zero, count)
    tiles.put(place, [simt.select(condition, a, b) for a, b in zip(one, two, strict=True)], threads())


COPIES = (copy_vector_where, copy_statistic_where, copy_either_vector, tma_load, clear_vector_where)


def statistics_of(numbers: RowStatistic, first: Any, stage: Any, count: int) -> list[Number]:
    return numbers.get(first, stage, count)


def layout(order: str, rows: int, depth: int) -> Layout:
    """Return how a tile of so many rows of a factor lies: contracted elements, or rows, follow each other."""
    return Layout((rows, depth), 1 if order == "row" else 0)


@dataclass(frozen=True, slots=True)
class Around:
    """The block's state for its pipelines: other pipelines, wgmma groups, consumer warps, acting threads."""

    rings: dict[str, CopyRing]
    flying: Flying
    warps: int
    elected: Callable[[], bool]
    threads: Threads


def ring(
    around: Around, *, barrier_storage: str, num_stages: int, producer_group: int, consumer_group: int
) -> CopyRing:
    """Return the ring of this name, whose full barrier so many threads signal."""
    given = {"name": barrier_storage, "stages": num_stages, "producers": producer_group}
    return _ring(around, consumer_group, CopyRing, **given)


def tma_ring(
    around: Around, *, barrier_storage: str, num_stages: int, tx_count: int, producer_group: int,
    consumer_group: int, cta_layout_vmnk: Any,
) -> CopyRing:  # fmt: skip
    """Return the ring of this name, whose full barrier counts bytes."""
    if producer_group != 1:
        raise Fault(f"{producer_group} threads hand a stage on that hardware fills")
    return _ring(around, consumer_group, TmaStages, name=barrier_storage, stages=num_stages, bytes=tx_count)


def _ring(around: Around, warps: int, kind: type[CopyRing], **given: Any) -> CopyRing:
    if warps != around.warps:
        raise Fault(f"{warps} warps free a stage that {around.warps} read")
    made = kind(flying=around.flying, elected=around.elected, threads=around.threads, **given)
    return around.rings.setdefault(made.name, made)


def barrier(rings: Iterable[Ring]) -> None:
    """Let the threads of a warpgroup meet, whose writes were made visible."""
    for each in rings:
        if isinstance(each, TmaStages | TmaRing):
            each.met = each.met or each.seen


def fence(rings: Iterable[CopyRing | TmaRing]) -> None:
    """Make what threads wrote to the stages that are read visible to the matrix unit."""
    for each in rings:
        each.seen = each.reading >= 0


def check_cleared(ring: CopyRing | TmaRing) -> None:
    """Raise where a product reads a stage before zeros that threads wrote are visible to it."""
    if not ring.seen:
        raise Fault("a tile is multiplied that threads wrote, and no fence made visible")
    if isinstance(ring, TmaStages | TmaRing) and not ring.met:
        raise Fault("a tile is multiplied of which other threads may still clear rows")
