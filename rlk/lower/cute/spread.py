"""How an index lies on a block: some of its bits tell threads apart, the others elements of a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from rlk.ir.dims import Axis

LANE_BITS = 5  # of a thread's number: those of its place in the warp


@dataclass(frozen=True, slots=True)
class Spread:
    """An axis of which a block has a tile of a power of two.

    threads: index bits, each with the bit of the thread's number that it is. The other index bits, ascending,
    are those of an element's place in the list of a thread.
    """

    axis: Axis
    length: int
    threads: tuple[tuple[int, int], ...] = ()

    @property
    def listed(self) -> tuple[int, ...]:
        """The index bits that tell elements of a list apart."""
        apart = dict(self.threads)
        return tuple(b for b in range(self.length.bit_length() - 1) if b not in apart)

    @property
    def count(self) -> int:
        """How many elements a thread has."""
        return 1 << len(self.listed)

    @property
    def vector(self) -> int:
        """How many elements of a list follow each other along the axis, the first at a multiple of that."""
        run = 0
        while run in self.listed:
            run += 1
        return 1 << run

    @property
    def mask(self) -> int:
        """The bits of a thread's number that tell indices apart."""
        return sum(1 << at for _, at in self.threads)

    def place(self, thread_bits: int) -> str:
        """Return the index that `thread` has, of element `c` where it has several."""
        terms = [_part("thread", at, low, n, thread_bits) for low, at, n in _runs(self.threads)]
        own = [(bit, i) for i, bit in enumerate(self.listed)]
        terms += [_part("c", at, low, n, len(own)) for low, at, n in _runs(own)]
        return " + ".join(terms) or "0"


def _runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of bits that follow each other on both sides: where each begins, and how long it is."""
    low = at = length = 0
    for bit, other in pairs:
        if length and (bit, other) == (low + length, at + length):
            length += 1
            continue
        if length:
            yield low, at, length
        low, at, length = bit, other, 1
    if length:
        yield low, at, length


def _part(name: str, at: int, low: int, length: int, bits: int) -> str:
    """Return some bits of a number, moved to where they belong in an index."""
    text = f"{name} // {1 << at}" if at else name
    if at + length < bits:
        text += f" % {1 << length}"
    return f"{text} * {1 << low}" if low else text


class Where(Enum):
    """Where the two terms of a step of a tree are."""

    LIST = "in the list of a thread"
    HALVES = "in two lanes: each goes on with a half of the list"
    LANES = "in two lanes"
    WARPS = "in warps"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a tree, or several that meet through shared memory: how far apart its terms are."""

    where: Where
    apart: tuple[int, ...]


def steps(spread: Spread, lists: Sequence[Spread], order: Sequence[int], *, halves: bool) -> list[Step]:
    """Return the steps that pair the index bits of an axis away in this order.

    lists: what the list of a thread runs over, the last fastest. halves: two lanes may part a list among
    them, so that an exchange is of half as many elements; the bit that told the halves apart is then one of
    lanes.
    """
    where = dict(spread.threads)
    left = [(each.axis, bit) for each in reversed(lists) for bit in each.listed]
    found: list[Step] = []
    for bit in order:
        at = where.get(bit)
        if at is None:
            place = left.index((spread.axis, bit))
            left.pop(place)
            found.append(Step(Where.LIST, (1 << place,)))
        elif at >= LANE_BITS:
            before = found.pop().apart if found and found[-1].where is Where.WARPS else ()
            found.append(Step(Where.WARPS, (*before, 1 << at)))
        elif halves and left and left[-1][0] == spread.axis:
            where[left.pop()[1]] = at
            found.append(Step(Where.HALVES, (1 << at,)))
        else:
            found.append(Step(Where.LANES, (1 << at,)))
    return found


def nearest_first(spread: Spread) -> list[int]:
    """Return the index bits in the cheapest order: those of a list, of lanes, of warps."""
    return [*spread.listed, *(bit for bit, _ in sorted(spread.threads, key=lambda each: each[1]))]
