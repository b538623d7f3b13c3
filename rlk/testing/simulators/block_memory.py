"""Shared and global memory of simulated blocks: access tracking, and alignment of vectors.

Between two barriers an element of shared memory may be written by one thread or read by any, not both: a
device runs warps in no order, so that another use is a race.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlk.testing.simulators.simt import Array, Boolean, Fault, Int32, Memory, Number, all_differ

NOBODY, SEVERAL, EVERYONE = -1, -2, -3
"""In the place of a thread's number: none since the last barrier, more than one, all of them before it."""
VECTOR = 16  # bytes of the widest access


class SharedTensor:
    """A tensor in shared memory: values, and who wrote and who read each since the last barrier.

    writer: NOBODY where nothing was written yet. reads: the offsets of reads since the last barrier, which
    `reader` does not have yet: most are followed by a barrier, and no write asks for them.
    """

    def __init__(self, kind: type[Number], shape: tuple[int, ...], threads: Array) -> None:
        self.kind, self.shape, self.threads = kind, shape, threads
        size = math.prod(shape)
        self.values = np.full(size, np.nan if kind.dtype.is_float else -1, kind.held)
        self.writer = np.full(size, NOBODY)
        self.reader = np.full(size, NOBODY)
        self.reads: list[Array] = []

    def barrier(self) -> None:
        """Order all accesses so far before later ones, for all threads."""
        self.writer[self.writer != NOBODY] = EVERYONE
        self.reader[...] = NOBODY
        self.reads.clear()

    def place(self, index: Any) -> Array:
        """Return the offset of each thread's element."""
        if len(index) != len(self.shape):
            raise Fault(f"{len(index)} indices of shared memory of {len(self.shape)} dims")
        offset: Any = 0
        for i, extent in zip(index, self.shape, strict=True):
            at = i if isinstance(i, int) else Int32(i).data
            low, high = (at, at) if isinstance(at, int) else (at.min(), at.max())
            if low < 0 or high >= extent:
                raise Fault(f"an index of shared memory outside of [0, {extent})")
            offset = offset * extent + at
        return offset if np.ndim(offset) else np.full(self.threads.shape, offset)

    def __getitem__(self, index: Any) -> Any:
        if any(i is None for i in index):
            return _View(self, int(index[0]))
        at = self.place(index)
        writer = self.writer[at]
        if not ((writer == EVERYONE) | (writer == self.threads)).all():
            raise Fault(
                "shared memory is read that nobody wrote"
                if (writer == NOBODY).any()
                else "shared memory is read that another thread writes before the next barrier"
            )
        self.reads.append(at)
        return self.kind.of(self.values[at])

    def __setitem__(self, index: Any, x: Number) -> None:
        at = self.place(index)
        if type(x) is not self.kind:
            raise Fault(f"{type(x).__name__} in shared memory of {self.kind.__name__}")
        if not all_differ(at):
            raise Fault("two threads write one element of shared memory")
        self._note_reads()
        for who in (self.writer[at], self.reader[at]):
            if ((who >= 0) & (who != self.threads) | (who == SEVERAL)).any():
                raise Fault("shared memory is written that another thread uses before the next barrier")
        self.values[at], self.writer[at] = x.data, self.threads

    def _note_reads(self) -> None:
        for at in self.reads:
            before = self.reader[at]
            first = (before == NOBODY) | (before == self.threads)
            self.reader[at] = np.where(first, self.threads, SEVERAL)
            # of the threads that read one element, all but the one written last find another's number there
            self.reader[at[self.reader[at] != self.threads]] = SEVERAL
        self.reads.clear()


class _View:
    """One of several reduce_buffers of a tensor."""

    def __init__(self, reduce_smem: SharedTensor, first: int) -> None:
        self.reduce_smem, self.first = reduce_smem, first

    def __getitem__(self, index: Any) -> Any:
        return self.reduce_smem[(self.first, *index)]

    def __setitem__(self, index: Any, x: Number) -> None:
        self.reduce_smem[(self.first, *index)] = x


# --- vectors ---


def load_vector(memory: Memory, index: Any, count: int) -> list[Number]:
    return load_vector_where(True, memory, index, None, count)


def load_vector_where(condition: Any, memory: Memory, index: Any, other: Any, count: int) -> list[Number]:
    """Read neighbours, the first aligned to the size of all."""
    _aligned(condition, memory, index, count)
    return [memory.read(condition, _beside(index, i), other) for i in range(count)]


def store_vector(memory: Memory, index: Any, x: list[Number]) -> None:
    store_vector_where(True, memory, index, x)


def store_vector_where(condition: Any, memory: Memory, index: Any, x: list[Number]) -> None:
    """Write neighbours, the first aligned to the size of all."""
    _aligned(condition, memory, index, len(x))
    for i, each in enumerate(x):
        memory.write(condition, _beside(index, i), each)


def _beside(index: Any, i: int) -> Any:
    *rest, last = index if isinstance(index, tuple) else (index,)
    return (*rest, last + i) if rest else last + i


def _aligned(condition: Any, memory: Memory, index: Any, count: int) -> None:
    size = count * memory.dtype.bytes
    on = memory.touched(Boolean(condition), index)
    offsets = memory.offsets(index, on)[on] * memory.dtype.bytes + memory.flat.ctypes.data
    if memory.strides[-1] != 1 or size > VECTOR or (offsets % size).any():
        raise Fault(f"a vector of {size} bytes that is not aligned")
