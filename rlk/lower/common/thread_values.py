"""How an index lies on a block: some of its bits tell threads apart, the others elements of a list."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.schedule.schedule import Span


@dataclass(frozen=True, slots=True)
class Owned:
    """A parallel axis of which a block has one index, or a tile; length: its extent where that is static."""

    axis: Axis
    tile: int
    length: int | None

    @property
    def tiles(self) -> int | None:
        return None if self.length is None else -(-self.length // self.tile)


@dataclass(frozen=True, slots=True)
class Spread:
    """An axis of which a block has a tile of a power of two.

    threads: index bits, each with the bit of the thread's number that it is. The other index bits, ascending,
    are those of an element's place in the list of a thread, but for those of `part`: of a number that counts
    the parts in which a thread does its work, one after the other.
    """

    axis: Axis
    length: int
    threads: tuple[tuple[int, int], ...] = ()
    part: tuple[int, ...] = ()

    @property
    def listed(self) -> tuple[int, ...]:
        """The index bits that tell elements of a list apart."""
        apart = {*dict(self.threads), *self.part}
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

    def place(self, thread_bits: int, element: str = "c") -> str:
        """Return the index that `thread` has, of one element where it has several."""
        terms = [_part("thread", at, low, n, thread_bits) for low, at, n in _runs(self.threads)]
        for name, bits in (("part", self.part), (element, self.listed)):
            own = [(bit, i) for i, bit in enumerate(bits)]
            terms += [_part(name, at, low, n, len(own)) for low, at, n in _runs(own)]
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


def spread_out(lengths: Mapping[Axis, int], placed: tuple[Span, ...], threads: int) -> tuple[Spread, ...]:
    """Hand the threads of a block out: to the spans of index bits in their order, then to the other bits.

    What is left when every thread is told from the others lies in the lists of threads.
    """
    named = {str(axis): axis for axis in lengths}
    bits = [(named[s.axis], b) for s in placed if s.axis in named for b in range(s.low, s.low + s.bits)]
    every = [(axis, bit) for axis, n in lengths.items() for bit in range(n.bit_length() - 1)]
    bits = [each for each in bits if each in every]
    bits += [each for each in every if each not in bits]
    room = threads.bit_length() - 1
    told = {each: at for at, each in enumerate(bits[:room])}
    return tuple(
        Spread(axis, n, tuple((b, told[axis, b]) for b in range(n.bit_length() - 1) if (axis, b) in told))
        for axis, n in lengths.items()
    )


def nearest_first(spread: Spread) -> list[int]:
    """Return the index bits in the cheapest order: those of a list, of lanes, of warps."""
    return [*spread.listed, *(bit for bit, _ in sorted(spread.threads, key=lambda each: each[1]))]


def first_along_others(own: Sequence[Spread], among: Sequence[Spread]) -> str:
    """Return where in a list along `among` element `c` of one along `own` is: the first along the others."""
    terms, below = [], 1
    for spread in reversed(own):
        apart = math.prod(s.count for s in among[among.index(spread) + 1 :])
        at = "c" if below == 1 else f"c // {below}"
        at = at if spread == own[0] else f"{at} % {spread.count}"
        terms.append(at if apart == 1 else f"{at} * {apart}")
        below *= spread.count
    return " + ".join(reversed(terms)) or "0"
