"""Simulator of dynamic persistent tile scheduling: work tiles, work counter, each tile done once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from rlk.testing.simulators.pipelines import CopyRing
from rlk.testing.simulators.simt import Array, Fault, Int32, Number, Order, shared

WARPGROUP = 128  # threads


@dataclass(slots=True)
class Tiles:
    """The tiles that blocks of a launch took so far, and their number."""

    taken: set[int] = field(default_factory=set)
    count: int | None = None

    def take(self, item: int) -> None:
        if item in self.taken:
            raise Fault(f"tile {item} is taken twice")
        self.taken.add(item)

    def end(self, last: int) -> None:
        """Note the last work tile of a block: its index is the number of tiles."""
        if self.count not in (None, last):
            raise Fault(f"a block stops at {self.count} tiles, another at {last}")
        self.taken.discard(last)
        self.count = last

    def check(self) -> None:
        """Raise where a tile is left."""
        if self.count is not None and self.taken != set(range(self.count)):
            raise Fault(f"{len(self.taken)} tiles of {self.count} are taken")


@dataclass(slots=True)
class WorkTilePipeline:
    """A pipeline of one stage: one thread writes the words of a work tile, and all consumer warps release it.

    size: words of a work tile. sent: work tiles so far. reading: index of the one that is read.
    """

    tiles: Tiles
    threads: Callable[[], Array]
    elected: Callable[[], bool]
    size: int = 0
    written: dict[int, int] = field(default_factory=dict)
    sent: list[list[int]] = field(default_factory=list)
    acquired: int = 0
    reading: int = -1
    taken: int = 0

    def __setitem__(self, index: int, x: Any) -> None:
        self.alone()
        if self.acquired != len(self.sent) + 1:
            raise Fault("a work tile is written before there is room for it")
        self.written[index] = shared(x)

    def __getitem__(self, index: Any) -> Number:
        if not self.taken == self.reading < len(self.sent):
            raise Fault("a work tile is read that was not waited for, or is released")
        return Int32(self.sent[self.reading][shared(index)])

    def alone(self) -> None:
        if len(self.threads()) != 1:
            raise Fault(f"{len(self.threads())} threads do what the one does that writes a work tile")

    def producer_acquire(self, state: Any) -> None:
        self.alone()
        if state.count != self.acquired:
            raise Fault("a work tile is written out of turn")
        self.acquired += 1

    def producer_commit(self, state: Any) -> None:
        self.alone()
        if state.count != len(self.sent) or self.written.keys() != set(range(self.size)):
            raise Fault("a work tile is sent that nothing wrote")
        self.tiles.take(self.written[0])
        self.sent.append([self.written[i] for i in range(self.size)])
        self.written = {}

    def consumer_wait(self, state: Any) -> None:
        if state.count >= len(self.sent):
            raise Fault("a work tile is awaited that nobody sends")
        self.reading = state.count

    def consumer_release(self, state: Any) -> None:
        if not self.elected() or state.count != self.taken:
            raise Fault("a work tile is freed out of turn, or by every thread")
        self.taken += 1

    @property
    def left(self) -> bool:
        return self.taken != len(self.sent)

    def again(self) -> None:
        """Let the next consumer warpgroup read, and release, the same work tiles."""
        self.reading, self.taken = -1, 0


@dataclass(slots=True)
class NextTile:
    """A shared word that one thread writes for its warpgroup, with accesses since the last barrier."""

    threads: Callable[[], Array]
    value: int | None = None
    written: bool = False
    read: bool = False

    def __setitem__(self, index: int, x: Any) -> None:
        if len(self.threads()) != 1 or self.written or self.read:
            raise Fault("the next tile is written while others may write or read it")
        self.value, self.written = shared(x), True

    def __getitem__(self, index: int) -> Number:
        if self.value is None or self.written:
            raise Fault("the next tile is read before the thread that writes it was waited for")
        self.read = True
        return Int32(self.value)

    def barrier(self) -> None:
        """Let the threads of the warpgroup meet."""
        self.written = self.read = False


class SchedulerModel:
    """The scheduler state of a block: work-tile pipeline and next tile."""

    def __init__(self, tiles: Tiles, threads: Callable[[], Array], elected: Callable[[], bool]) -> None:
        self.work_tile, self.next_tile = WorkTilePipeline(tiles, threads, elected), NextTile(threads)

    def words(self, name: str) -> SimpleNamespace:
        """Return these words of shared memory."""
        return SimpleNamespace(data_ptr=lambda: self.work_tile if name == "work_tile" else self.next_tile)

    def ring(
        self, warps: int, *, barrier_storage: str, num_stages: int, producer_group: int, consumer_group: int
    ) -> WorkTilePipeline:
        """Return the work-tile pipeline, which one thread writes and `warps` warps read."""
        if (num_stages, producer_group, consumer_group) != (1, 1, warps):
            raise Fault(f"work tiles of {producer_group} threads for {consumer_group} of {warps} warps")
        return self.work_tile

    def together(self, threads: Array, rings: Iterable[CopyRing]) -> Iterator[Array]:
        """Yield the consumer threads that run at once: in a persistent block one warpgroup after the other.

        Each reads all that is in the pipelines.
        """
        for some in threads.reshape(-1, WARPGROUP) if self.work_tile.sent else [threads]:
            for each in (*rings, self.work_tile):
                each.again()
            yield some
            if any(each.left for each in (*rings, self.work_tile)):
                raise Fault("stages were filled that were not read")

    def end(self) -> None:
        """Note the last tile of the block, if it is persistent."""
        if self.work_tile.sent:
            self.work_tile.tiles.end(self.work_tile.sent[-1][0])


def atomic_add(threads: Callable[[], Array], counter: Array, x: Any) -> Number:
    """Add to a counter for a thread, and return what it was."""
    if len(threads()) != 1:
        raise Fault(f"{len(threads())} threads draw a tile")
    Order.check()
    before = int(counter[0])
    counter[0] += shared(x)
    return Int32(before)


class Branches(ast.NodeTransformer):
    """Rewrite thread-dependent branches to `with acting(condition):`."""

    def visit_If(self, node: ast.If) -> ast.AST:
        """Turn `if thread == 0:` into `with acting(thread == 0):`, and so `if thread >= first:`."""
        self.generic_visit(node)
        match node.test:
            case ast.Compare(left=ast.Name("thread"), ops=[ast.Eq() | ast.GtE()]):
                acting = ast.Call(ast.Name("acting", ast.Load()), [node.test], [])
                made = ast.With([ast.withitem(acting)], node.body)
                return ast.fix_missing_locations(ast.copy_location(made, node))
            case _:
                return node
