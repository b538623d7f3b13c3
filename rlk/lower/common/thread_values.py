"""Thread-value layouts: bits of an axis index that select the thread, others the element in registers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlk.ir.dims import Axis, Part
from rlk.schedule.schedule import Span


@dataclass(frozen=True, slots=True)
class TiledAxis:
    """A parallel axis with its tile (1: one index); length: its static extent, or None."""

    axis: Axis
    tile: int
    length: int | None

    @property
    def tiles(self) -> int | None:
        """Return the number of tiles; None where the extent is dynamic."""
        return None if self.length is None else -(-self.length // self.tile)

    @property
    def exact(self) -> bool:
        """Return whether no tile reaches beyond the extent."""
        return self.tile == 1 or (self.length is not None and self.length % self.tile == 0)


@dataclass(frozen=True, slots=True)
class ThreadValues:
    """The thread-value layout of an axis with a power-of-two tile.

    threads: pairs (index bit, bit of the thread index). part: index bits of a sequential part. The other
    index bits, ascending, select the element of a thread's list.
    """

    axis: Axis
    length: int
    threads: tuple[tuple[int, int], ...] = ()
    part: tuple[int, ...] = ()

    @property
    def listed(self) -> tuple[int, ...]:
        """Return the index bits of a thread's list."""
        apart = {*dict(self.threads), *self.part}
        return tuple(b for b in range(self.length.bit_length() - 1) if b not in apart)

    @property
    def count(self) -> int:
        """Return the elements of a thread."""
        return 1 << len(self.listed)

    @property
    def vector(self) -> int:
        """Return the length of contiguous, aligned runs in a thread's list."""
        run = 0
        while run in self.listed:
            run += 1
        return 1 << run

    @property
    def mask(self) -> int:
        """Return the mask of thread-index bits along this axis."""
        return sum(1 << at for _, at in self.threads)

    def place(self, thread_bits: int, element: str = "c") -> str:
        """Return the text of the index of thread `thread`'s element `element`."""
        terms = [_part("thread", at, low, n, thread_bits) for low, at, n in _runs(self.threads)]
        for name, bits in (("part", self.part), (element, self.listed)):
            own = [(bit, i) for i, bit in enumerate(bits)]
            terms += [_part(name, at, low, n, len(own)) for low, at, n in _runs(own)]
        return " + ".join(terms) or "0"


def _runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of bits that are consecutive on both sides: both begins and the length."""
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
    """Return the text of some bits of a number, shifted to their position in an index."""
    text = f"{name} // {1 << at}" if at else name
    if at + length < bits:
        text += f" % {1 << length}"
    return f"{text} * {1 << low}" if low else text


def distribute(
    lengths: Mapping[Axis, int], placed: tuple[Span, ...], threads: int
) -> tuple[ThreadValues, ...]:
    """Assign thread-index bits: to the spans of the schedule in order, then to the other index bits.

    Index bits beyond the number of threads go to the threads' lists.
    """
    named = {str(axis): axis for axis in lengths}
    bits = [(named[s.axis], b) for s in placed if s.axis in named for b in range(s.low, s.low + s.bits)]
    every = [(axis, bit) for axis, n in lengths.items() for bit in range(n.bit_length() - 1)]
    bits = [each for each in bits if each in every]
    bits += [each for each in every if each not in bits]
    room = threads.bit_length() - 1
    told = {each: at for at, each in enumerate(bits[:room])}
    return tuple(
        ThreadValues(
            axis, n, tuple((b, told[axis, b]) for b in range(n.bit_length() - 1) if (axis, b) in told)
        )
        for axis, n in lengths.items()
    )


def nearest_first(thread_values: ThreadValues) -> list[int]:
    """Return the index bits in the order of exchange cost: of registers, of lanes, of warps."""
    return [
        *thread_values.listed,
        *(bit for bit, _ in sorted(thread_values.threads, key=lambda each: each[1])),
    ]


def first_along_others(own: Sequence[ThreadValues], among: Sequence[ThreadValues]) -> str:
    """Return the position in a list along `among` of element `c` of one along `own`, 0 along the others."""
    terms, below = [], 1
    for thread_values in reversed(own):
        apart = math.prod(s.count for s in among[among.index(thread_values) + 1 :])
        at = "c" if below == 1 else f"c // {below}"
        at = at if thread_values == own[0] else f"{at} % {thread_values.count}"
        terms.append(at if apart == 1 else f"{at} * {apart}")
        below *= thread_values.count
    return " + ".join(reversed(terms)) or "0"


def fewer_elements(axes: Iterable[Axis]) -> str:
    """Return what an author can write for a tile of so many elements that no thread's registers hold them."""
    chunks = [axis.whole for axis in axes if axis.part is Part.LANE]
    if len(chunks) > 1:
        named = " and ".join(map(str, chunks))
        return f"chunks of one size for {named} if no value has both, or smaller ones"
    if chunks:
        return f"a smaller chunk of {chunks[0]}, or one axis fewer beside it"
    return "Axis(..., chunk=1024, dynamic=True), along which it is a stream of chunks; or L.stream and folds"
