"""Vectorized loads and stores of rows: 16 bytes at once where alignment and masks allow it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from rlk.ir.dims import Axis, Part, fixed_extent, union
from rlk.ir.nodes import (
    Cast,
    Const,
    Extent,
    Fn1,
    Fn2,
    Let,
    Load,
    Map1,
    Map2,
    Node,
    Pos,
    Select,
    Store,
    Value,
    const_value,
)
from rlk.ir.types import DType, TileType
from rlk.lower.common.names import axis_name, stride_name
from rlk.lower.common.thread_values import ThreadValues, TiledAxis
from rlk.lower.cute import text
from rlk.lower.cute.memory import Memory
from rlk.lower.cute.plan import RowsPlan
from rlk.lower.cute.writer import Writer
from rlk.passes.walk import walk

VECTOR = 16  # bytes of the widest access; what extents are multiples of that `Signature.divisible` names


class Alignment:
    """Known alignment of indices and masks of each vector of a list, from how they are computed."""

    def __init__(self, plan: RowsPlan, types: Mapping[Value, object]) -> None:
        self.plan, self.types = plan, types
        self.nodes: dict[Value, Node] = {let.value: let.node for let in walk(plan.kernel.body)}

    def divisor(self, value: Value) -> int:
        """Return a number that divides every element of an integer; 0 of zeros."""
        match self.nodes.get(value):
            case Const(bits=bits):
                type = self.types[value]
                assert isinstance(type, TileType)
                return abs(int(const_value(bits, type.dtype)))
            case Map2(fn=Fn2.ADD | Fn2.SUB | Fn2.MIN | Fn2.MAX, a=a, b=b) | Select(a=a, b=b):
                return math.gcd(self.divisor(a), self.divisor(b))
            case Map2(fn=Fn2.MUL, a=a, b=b):
                return self.divisor(a) * self.divisor(b)
            case Cast(x=x):
                return self.divisor(x)
            case Extent(axis=axis):
                known = fixed_extent(axis, dict(self.plan.signature.extents))
                told = axis.part is Part.ALL and axis.name in self.plan.signature.divisible
                return known if known is not None else VECTOR if told else 1
            case _:
                return 1

    def first(self, value: Value, thread_values: ThreadValues) -> int | None:
        """Return what divides the first index of each vector, if the others count up by one; else None."""
        match self.nodes.get(value):
            case Pos(axis=axis) if axis == thread_values.axis:
                return thread_values.vector
            case Map2(fn=Fn2.ADD, a=a, b=b):
                for one, other in ((a, b), (b, a)):
                    counts = self.first(one, thread_values)
                    if counts is not None and not self.along(other, thread_values.axis):
                        return math.gcd(counts, self.divisor(other))
                return None
            case Map2(fn=Fn2.SUB, a=a, b=b) if not self.along(b, thread_values.axis):
                counts = self.first(a, thread_values)
                return None if counts is None else math.gcd(counts, self.divisor(b))
            case _:
                return None

    def even(self, value: Value, thread_values: ThreadValues, width: int) -> bool:
        """Return whether a condition is the same for every element of a vector."""
        if not self.along(value, thread_values.axis):
            return True
        match self.nodes.get(value):
            case Map2(fn=Fn2.AND | Fn2.OR, a=a, b=b):
                return self.even(a, thread_values, width) and self.even(b, thread_values, width)
            case Map1(fn=Fn1.NOT, x=x):
                return self.even(x, thread_values, width)
            case Map2(fn=Fn2.LT, a=index, b=end) | Map2(fn=Fn2.LE, a=end, b=index):
                counts = self.first(index, thread_values)
                ends = not self.along(end, thread_values.axis) and self.divisor(end) % width == 0
                return counts is not None and counts % width == 0 and ends
            case _:
                return False

    def along(self, value: Value, axis: Axis) -> bool:
        type = self.types[value]
        return isinstance(type, TileType) and axis in type.axes


class ListWriter(Writer, Protocol):
    """Everything that reads and writes of rows use of an emitter.

    current: the spreads of the list that is written now; size: its elements.
    """

    @property
    def plan(self) -> RowsPlan: ...

    thread_bits: int
    current: tuple[ThreadValues, ...]

    @property
    def size(self) -> int: ...

    def indexed(self, name: str, axes: tuple[Axis, ...]) -> str: ...

    def listing(self, value: Value) -> str: ...

    def writer(self, axes: tuple[Axis, ...]) -> str: ...


class RowsMemory(Memory):
    """Reads and writes of lists by vectors; one thread writes what several have."""

    e: ListWriter
    plan: RowsPlan

    def __init__(self, emitter: ListWriter) -> None:
        super().__init__(emitter)
        self.e, self.plan = emitter, emitter.plan
        self.known = Alignment(self.plan, emitter.types)
        self.one = emitter.names.fresh("one")
        self.ahead = ""  # the condition under which a step that is read early exists

    def write_tile_coordinate(self, tiled: TiledAxis, thread_values: ThreadValues | None, tile: str) -> None:
        """Write the indices of a parallel axis that a thread has, and which of them there are."""
        if thread_values is None:
            self.coordinates[tiled.axis] = self.e.let(axis_name(tiled.axis), tile)
            return
        name = axis_name(tiled.axis)
        self.e.current = (thread_values,) if thread_values.count > 1 else ()
        place = thread_values.place(self.e.thread_bits)
        index = f"{tile} * {tiled.tile} + {place}"
        self.coordinates[tiled.axis] = self.e.let(name, self.e.each(index) if self.e.current else index)
        if not tiled.exact:
            inside = (
                f"{self.e.indexed(self.coordinates[tiled.axis], (tiled.axis,))} < {self.extent(tiled.axis)}"
            )
            written = self.e.each(inside) if self.e.current else inside
            self.inside[tiled.axis] = self.e.let(f"{name}_inside", written)

    # --- accesses -------------------------------------------------------------------------------------------

    def load(self, load: Load, let: Let) -> None:
        width = self.width(load.param, load.index, load.guard)
        if width == 1 or not self.e.listed(let.value):
            self.e.value(let, load.param, self.read(load))
            return
        dtype, count = self.decls[load.param].type.dtype, self.e.size
        self.e.list_index = "0" if count == width else "c"
        mask = self.mask(union(*(self.e.tile(i).axes for i in load.index)), load.guard)
        at = self.index(load.index)
        if mask is None:
            vector = self.e.call("load_vector", load.param, at, str(width))
        else:
            other = f"{text.TYPES[dtype]}(0)" if load.fill is None else self.e[load.fill]
            vector = self.e.call("load_vector_where", mask, load.param, at, other, str(width))
        self.e.list_index = "c"
        of_each = f"[{self.one} for c in range(0, {count}, {width}) for {self.one} in {vector}]"
        made = vector if count == width else of_each
        self.e.text[let.value] = self.e.let(let.name or load.param, made)

    def store(self, store: Store) -> None:
        axes = union(*(self.e.tile(i).axes for i in store.index))
        self.writer = self.e.writer(axes)
        super().store(store)
        self.writer = ""

    def check(self, bad: Value, what: str) -> None:
        self.writer = self.e.writer(self.e.tile(bad).axes)
        if self.e.current:
            with self.e.inner(f"for c in cutlass.range_constexpr({self.e.size}):"):
                self.report(bad, what)
        else:
            self.report(bad, what)
        self.writer = ""

    def owner(self, axis: Axis) -> str:
        return self.e.indexed(self.coordinates[axis], (axis,))

    def store_list(self, store: Store, axes: tuple[Axis, ...]) -> None:
        """Write a thread's list, by vectors where its elements follow each other in memory."""
        width = self.width(store.param, store.index, store.guard)
        self.e.list_index = "0" if width == self.e.size > 1 else "c"
        mask = " & ".join(x for x in (self.mask(axes, store.guard), self.writer) if x)
        at, x = self.index(store.index), self.written(store.value)
        self.e.list_index = "c"
        if width == self.e.size > 1:
            self.store_vector(store, mask, at, self.e.listing(store.value))
            return
        with self.e.inner(f"for c in cutlass.range_constexpr({self.steps(width)}):"):
            if width > 1:
                self.store_vector(store, mask, at, f"{self.e.listing(store.value)}[c:c + {width}]")
            elif mask:
                self.e.line(self.e.call("store_where", mask, store.param, at, x))
            else:
                self.e.line(f"{store.param}[{at}] = {x}")

    def store_vector(self, store: Store, mask: str, at: str, x: str) -> None:
        given = store.param, at, x
        if mask:
            self.e.line(self.e.call("store_vector_where", mask, *given))
        else:
            self.e.line(self.e.call("store_vector", *given))

    def steps(self, width: int) -> str:
        return f"0, {self.e.size}, {width}" if width > 1 else str(self.e.size)

    def width(self, param: str, index: tuple[Value, ...], guard: Value | None) -> int:
        """Return how many elements of a list one access has: those of 16 aligned bytes, or one."""
        decl, divisible = self.decls[param], self.plan.signature.divisible
        strides = {stride_name(decl, d) for d in range(len(decl.type.axes) - 1)}
        if not self.e.current or decl.type.dtype is DType.BOOL or not {param, *strides} <= divisible:
            return 1
        thread_values = self.e.current[-1]
        width = min(thread_values.vector, VECTOR // decl.type.dtype.bytes)
        *others, last = index
        first = self.known.first(last, thread_values)
        mask = self.inside.get(thread_values.axis) is None or self.ends(thread_values.axis, width)
        counted = first is not None and first % width == 0
        apart = not any(self.known.along(v, thread_values.axis) for v in others)
        same = guard is None or self.known.even(guard, thread_values, width)
        return width if counted and apart and same and mask else 1

    def ends(self, axis: Axis, width: int) -> bool:
        """Return whether a parallel axis ends between two vectors."""
        known = fixed_extent(axis, dict(self.plan.signature.extents))
        return known is not None and known % width == 0

    def mask(self, axes: tuple[Axis, ...], guard: Value | None) -> str | None:
        always = guard is None or self.e.consts.get(guard) == (1, DType.BOOL)
        terms = [self.ahead] if self.ahead else []
        terms += [] if guard is None or always else [self.e[guard]]
        terms += [self.e.indexed(name, (a,)) for a, name in self.inside.items() if a in axes]
        return " & ".join(f"({t})" if " " in t else t for t in terms) or None
