"""Shared and global memory of simulated blocks: access tracking, and alignment of vectors.

Between two barriers an element of shared memory may be written by one thread or read by any, not both: a
device runs warps in no order, so that another use is a race.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlk.testing.simulators.simt import Array, Boolean, Fault, Int32, Memory, Number

NOBODY, SEVERAL = -1, -2
VECTOR = 16  # bytes of the widest access


class Board:
    """A tensor in shared memory: values, and who wrote and who read each since the last barrier."""

    def __init__(self, kind: type[Number], shape: tuple[int, ...], threads: Array) -> None:
        self.kind, self.threads = kind, threads
        self.values = np.full(shape, np.nan if kind.dtype.is_float else -1, kind.held)
        self.filled = np.zeros(shape, bool)
        self.writer = np.full(shape, NOBODY)
        self.reader = np.full(shape, NOBODY)

    def barrier(self) -> None:
        """Order all accesses so far before later ones, for all threads."""
        self.writer[...] = NOBODY
        self.reader[...] = NOBODY

    def place(self, index: Any) -> tuple[Array, ...]:
        if len(index) != self.values.ndim:
            raise Fault(f"{len(index)} indices of shared memory of {self.values.ndim} dims")
        found = tuple(np.broadcast_to(Int32(i).data, self.threads.shape) for i in index)
        for at, extent in zip(found, self.values.shape, strict=True):
            if ((at < 0) | (at >= extent)).any():
                raise Fault(f"an index of shared memory outside of [0, {extent})")
        return found

    def __getitem__(self, index: Any) -> Any:
        if any(i is None for i in index):
            return _View(self, int(index[0]))
        at = self.place(index)
        if not self.filled[at].all():
            raise Fault("shared memory is read that nobody wrote")
        others = (self.writer[at] != NOBODY) & (self.writer[at] != self.threads)
        if others.any():
            raise Fault("shared memory is read that another thread writes before the next barrier")
        for where, thread in zip(zip(*at, strict=True), self.threads, strict=True):
            one = self.reader[where]
            self.reader[where] = thread if one in (NOBODY, thread) else SEVERAL
        return self.kind.of(self.values[at])

    def __setitem__(self, index: Any, x: Number) -> None:
        at = self.place(index)
        if type(x) is not self.kind:
            raise Fault(f"{type(x).__name__} in shared memory of {self.kind.__name__}")
        if len(set(zip(*(a.tolist() for a in at), strict=True))) != len(self.threads):
            raise Fault("two threads write one element of shared memory")
        for who in (self.writer[at], self.reader[at]):
            if ((who != NOBODY) & (who != self.threads)).any():
                raise Fault("shared memory is written that another thread uses before the next barrier")
        self.values[at], self.filled[at], self.writer[at] = x.data, True, self.threads


class _View:
    """One of several reduce_buffers of a tensor."""

    def __init__(self, reduce_smem: Board, first: int) -> None:
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
