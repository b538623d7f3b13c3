"""Exchange of elements in a warp through shared memory, on a CPU, with a device's races."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlk.interp import arithmetic as ops
from rlk.testing.simulators.simt import Array, Fault, Float32, Int32, Number

WORD = 4  # bytes


@dataclass(slots=True)
class Registers:
    """A few elements of each thread: `kind` is what they are."""

    kind: type[Number]
    count: int
    held: list[Number] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.held = self.held or [self.kind(0)] * self.count

    @property
    def element_type(self) -> type[Number]:
        return self.kind

    def __getitem__(self, index: int) -> Number:
        return self.held[index]

    def __setitem__(self, index: int, x: Number) -> None:
        if type(x) is not self.kind:
            raise Fault(f"{type(x).__name__} held as {self.kind.__name__}")
        self.held[index] = x

    def fill(self, x: float) -> None:
        self.held = [self.kind(x)] * self.count

    def words(self) -> list[Array]:
        """Return the bits, as words of 4 bytes."""
        bits = [np.atleast_1d(ops.encode(x.data, self.kind.dtype)) for x in self.held]
        if bits[0].dtype.itemsize == WORD:
            return [b.view(np.uint32) for b in bits]
        wide = [b.view(np.uint16).astype(np.uint32) for b in bits]
        return [low | high << np.uint32(16) for low, high in zip(wide[::2], wide[1::2], strict=True)]

    def take(self, words: list[Array]) -> None:
        """Hold the elements that these words are."""
        storage = ops.storage(self.kind.dtype)
        if np.dtype(storage).itemsize == WORD:
            bits = words
        else:
            bits = [(w >> np.uint32(16 * half)).astype(np.uint16) for w in words for half in range(2)]
        self.held = [self.kind.of(ops.decode(b.view(storage), self.kind.dtype)) for b in bits]


@dataclass(frozen=True, slots=True)
class Recast:
    """Registers as words."""

    of: Registers


@dataclass(slots=True)
class Shared:
    """Words that warps share, and who wrote and read each since the threads of a warp last met."""

    count: int
    bits: Array = field(init=False)
    written: Array = field(init=False)
    writer: Array = field(init=False)
    looked: Array = field(init=False)
    reader: Array = field(init=False)
    put_by: Array = field(init=False)
    meetings: int = 1

    def __post_init__(self) -> None:
        self.bits = np.zeros(self.count, np.uint32)
        self.written, self.looked = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        self.writer, self.reader = np.full(self.count, -1), np.full(self.count, -1)
        self.put_by = np.empty(self.count, np.int64)

    def data_ptr(self) -> Words:
        return Words(self, Int32(0))

    def put(self, at: Array, threads: Array, words: Array) -> None:
        fresh = self.looked[at] == self.meetings
        if (fresh & (self.reader[at] != threads)).any():
            raise Fault("shared memory is written while another thread may still read it")
        numbers = np.arange(len(at))
        self.put_by[at] = numbers  # one of two at a place stays: no sorting is needed
        if np.count_nonzero(self.put_by[at] != numbers):
            raise Fault("two threads write one word")
        self.bits[at], self.written[at], self.writer[at] = words, self.meetings, threads

    def get(self, at: Array, threads: Array) -> Array:
        fresh = self.written[at] == self.meetings
        if (fresh & (self.writer[at] != threads)).any():
            raise Fault("shared memory is read before the thread that writes it was waited for")
        if (self.written[at] == 0).any():
            raise Fault("shared memory is read that nothing wrote")
        many = (self.looked[at] == self.meetings) & (self.reader[at] != threads)
        self.reader[at] = np.where(many, -1, threads)
        self.looked[at] = self.meetings
        return self.bits[at]


@dataclass(frozen=True, slots=True)
class Words:
    """A pointer of each thread into shared memory."""

    memory: Shared
    offset: Number
    count: int = 0

    def __add__(self, more: Any) -> Words:
        return Words(self.memory, Int32(more) + self.offset)

    def places(self, threads: Array) -> list[Array]:
        first = np.broadcast_to(self.offset.data, threads.shape)
        if (first % self.count).any():
            raise Fault(f"{self.count} words that are not aligned")
        return [first + i for i in range(self.count)]


def copy(source: Any, to: Any, threads: Array) -> None:
    """Copy words between registers and shared memory."""
    match source, to:
        case Recast(of=registers), Words() as words:
            for at, bits in zip(words.places(threads), registers.words(), strict=True):
                words.memory.put(at, threads, np.broadcast_to(bits, threads.shape))
        case Words() as words, Recast(of=registers):
            registers.take([words.memory.get(at, threads) for at in words.places(threads)])
        case _:
            raise Fault(f"a copy from {type(source).__name__} to {type(to).__name__}")


# --- registers that wait in shared memory ---


@dataclass(frozen=True, slots=True)
class Kept:
    """Registers of each thread in shared memory, which no other thread touches."""

    words: Words
    shape: Any
    stride: Any
    threads: Callable[[], Array]

    def places(self, column: int) -> Words:
        """Return where a column of some lies."""
        return replace(self.words + column * self.stride[1], count=self.shape[0])

    def word(self, at: tuple[int, int]) -> Words:
        """Return where one of them lies."""
        offset = sum(place(c, s, d) for c, s, d in zip(at, self.shape, self.stride, strict=True))
        return replace(self.words + offset, count=1)

    def __getitem__(self, at: tuple[int, int]) -> Number:
        register = Registers(Float32, 1)
        copy(self.word(at), Recast(register), self.threads())
        return register[0]

    def __setitem__(self, at: tuple[int, int], x: Number) -> None:
        register = Registers(Float32, 1)
        register[0] = x
        copy(Recast(register), self.word(at), self.threads())


def place(c: int, shape: Any, stride: Any) -> int:
    """Return the offset of a coordinate: the first of nested extents runs fastest."""
    if isinstance(shape, int):
        return c * int(stride)
    offset = 0
    for extent, step in zip(shape, stride, strict=True):
        offset += c % extent * step
        c //= extent
    return offset
