"""Global loads and stores of a thread: addresses, predicates, writer election, error words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rlk.ir.dims import Axis, union
from rlk.ir.nodes import Check, Decl, Load, Store, Value
from rlk.ir.types import DType
from rlk.lower.common import abi
from rlk.lower.common.arguments import Arguments, tiles_of
from rlk.lower.common.names import axis_name
from rlk.lower.common.segments import Segments
from rlk.lower.common.spelling import row_number
from rlk.lower.common.thread_values import TiledAxis
from rlk.lower.tilelang import text
from rlk.lower.tilelang.plan import rings
from rlk.lower.tilelang.writer import Writer
from rlk.passes.walk import walk

ERRORS = abi.ERRORS.name


class Memory(Arguments):
    """Accesses of tensors, all of them flat rows of elements, by an emitter."""

    def __init__(self, emitter: Writer) -> None:
        self.e = emitter
        self.plan = emitter.plan
        super().__init__(emitter.plan.kernel, emitter.plan.signature, emitter.checks)
        self.limit: tuple[Axis, str] | None = None  # of segments: what is more than the index of each row
        self.writers: dict[int, str] = {}
        for decl in self.plan.kernel.params:
            self.e.names.tensors.add(decl.name)
            self.e.names.taken |= {decl.name, *(axis.name for axis in decl.type.axes)}
        self.e.names.taken.add(ERRORS)

    # --- the grid -------------------------------------------------------------------------------------------

    @contextmanager
    def programs(self) -> Iterator[None]:
        """Write the tiles of a block; the body is under the condition that its row tile is not empty."""
        if self.plan.segments is None:
            self.write_coordinates()
            yield
            return
        condition, rest = self.segment(self.plan.segments)
        with self.e.inner(f"if {condition}:"):
            self.write_coordinates(rest)
            yield

    def write_coordinates(self, rest: str | None = None) -> None:
        """Write the tiles of a block, and the elected writer threads of replicated values.

        rest: the part of a block's number for axes other than segments, if there are segments.
        """
        rest, tiles = self.grouped() if rest is None else (rest, {})
        shared = [tiled for tiled in self.plan.tiled if tiled.axis not in self.coordinates]
        for tiled in reversed(shared[1:]):
            if tiled.axis in tiles:
                continue
            count = self.tiles(tiled)
            tiles[tiled.axis] = "0" if count == "1" else f"tl.truncmod({rest}, {count})"
            rest = rest if count == "1" else self.e.let("rest", f"tl.truncdiv({rest}, {count})")
        for tiled in shared:
            self.write_coordinate(tiled, tiles.get(tiled.axis, rest))
        for let in walk(self.plan.kernel.body):
            match let.node:
                case Store(index=index):
                    self.appoint(union(*(self.e.tile(i).axes for i in index)))
                case Check(bad=bad):
                    self.appoint(self.e.tile(bad).axes)
                case _:
                    pass

    def grouped(self) -> tuple[str, dict[Axis, str]]:
        """Write the row tile of a block, and return the rest of its number.

        A group of row tiles is consecutive for each column tile, so that the group's rows stay in the cache.
        """
        of_rows, group = self.plan.tiled[-1:], self.plan.schedule.group
        if not rings(self.plan.kernel, self.plan.schedule, self.plan.target) or group == 1:
            return "block", {}
        others = [self.tiles(tiled) for tiled in self.plan.tiled[:-1]]
        blocks = self.e.let("blocks", " * ".join([str(group), *others]))
        first = self.e.let("first", f"tl.truncdiv(block, {blocks}) * {group}")
        beside = self.e.let("beside", f"tl.min({group}, {self.tiles(of_rows[0])} - {first})")
        within = self.e.let("within", f"tl.truncmod(block, {blocks})")
        tile = self.e.let("tile", f"{first} + tl.truncmod({within}, {beside})")
        return self.e.let("rest", f"tl.truncdiv({within}, {beside})"), {of_rows[0].axis: tile}

    def segment(self, found: Segments) -> tuple[str, str]:
        """Write the segment of a block's row tile, and the tile's rows in it.

        Returns the condition that the tile has rows, and the part of a block's number for other axes.
        """
        rows, over = (next(o for o in self.plan.tiled if o.axis == a) for a in (found.axis, found.over))
        tiles = self.number("tiles", self.tiles_of_segments(found))
        tile = self.number("tile", f"{tiles} - 1 - tl.truncmod(block, {tiles})")
        count = self.number("segments", self.extent(over.axis))  # a copy, as of every scalar in a macro
        given = found.begin, tile, count, str(found.each), str(rows.tile)
        self.coordinates[over.axis] = owner = self.e.let(
            axis_name(over.axis), self.e.call("segment_of", *given)
        )
        begin, end = (
            self.number(name, f'tl.Cast("int32", {tensor}[{owner}]) * {found.each}')
            for name, tensor in (("begin", found.begin), ("end", found.end))
        )
        before = f"tl.truncdiv({begin}, {rows.tile}) + {owner}"
        first = self.number("first", f"({tile} - ({before})) * {rows.tile}")
        thread_values = self.plan.thread_values(rows.axis)
        if thread_values is None:
            self.coordinates[rows.axis] = first
        else:
            index = f"{first} + {thread_values.place(self.plan.threads.bit_length() - 1)}"
            self.coordinates[rows.axis] = self.write(rows.axis, axis_name(rows.axis), DType.I32, index)
            self.limit = (rows.axis, f"{end} - {begin}")
        return f"{first} < {end} - {begin}", f"tl.truncdiv(block, {tiles})"

    def number(self, hint: str, expression: str) -> str:
        """Write a number that every thread of a block has, and return its name."""
        return self.e.let(hint, text.variable(expression, DType.I32))

    def programs_of(self) -> str:
        """Return the number of blocks as host text; with segments an upper bound."""
        found = self.plan.segments
        if found is None:
            return " * ".join(self.tiles(tiled) for tiled in self.plan.tiled) or "1"
        rest = [o for o in self.plan.tiled if o.axis not in (found.axis, found.over)]
        return " * ".join([f"({self.tiles_of_segments(found)})", *(self.tiles(o) for o in rest)])

    def tiles_of_segments(self, found: Segments) -> str:
        """Return an upper bound of the row tiles of all segments, if each begins a tile."""
        whole = self.argument(abi.extent(found.whole))
        tile = self.plan.schedule.tile(str(found.axis))
        return f"{whole} * {found.each} // {tile} + {self.extent(found.over)}"

    def tiles(self, tiled: TiledAxis) -> str:
        """Return the number of tiles of a parallel axis."""
        if tiled.tiles is not None:
            return str(tiled.tiles)
        return tiles_of(self.extent(tiled.axis), tiled.tile)

    def write_coordinate(self, tiled: TiledAxis, tile: str) -> None:
        """Write a thread's indices of a parallel axis, and their bounds mask."""
        name, thread_values = axis_name(tiled.axis), self.plan.thread_values(tiled.axis)
        if thread_values is None:
            self.coordinates[tiled.axis] = self.e.let(name, tile)
            return
        place = thread_values.place(self.plan.threads.bit_length() - 1)
        first = "" if tile == "0" else f"{tile} * {tiled.tile} + "
        self.coordinates[tiled.axis] = self.write(tiled.axis, name, DType.I32, f"{first}{place}")
        if not tiled.exact:
            index = self.e.indexed(self.coordinates[tiled.axis], (tiled.axis,))
            inside = f"{index} < {self.extent(tiled.axis)}"
            self.inside[tiled.axis] = self.write(tiled.axis, f"{name}_inside", DType.BOOL, inside)

    def write(self, axis: Axis, hint: str, dtype: DType, expression: str) -> str:
        """Write something of each index of an axis and return its name."""
        self.e.current = self.plan.lists((axis,))
        if not self.e.current:
            return self.e.let(hint, expression)
        name = self.e.stored(hint, dtype, self.e.size)
        self.e.each(f"{name}[c] = {expression}")
        return name

    def shares(self, axes: tuple[Axis, ...]) -> int:
        """Return the bits of a thread's number that select no index of these axes (replicas)."""
        told = 0
        for axis in axes:
            thread_values = self.plan.thread_values(axis)
            told |= 0 if thread_values is None else thread_values.mask
        return self.plan.threads - 1 & ~told

    def appoint(self, axes: tuple[Axis, ...]) -> None:
        """Write whether a thread is the first of those that have the same indices of some axes."""
        bits = self.shares(axes)
        if bits and bits not in self.writers:
            alone = "thread == 0" if bits == self.plan.threads - 1 else f"(thread & {bits}) == 0"
            self.writers[bits] = self.e.let("writes", alone)

    # --- accesses -------------------------------------------------------------------------------------------

    def read(self, load: Load) -> str:
        """Return the text of one element that is read."""
        decl = self.decls[load.param]
        axes = union(*(self.e.tile(i).axes for i in load.index))
        element = f"{load.param}[{self.address(decl, list(enumerate(load.index)))}]"
        mask = self.mask(axes, load.guard)
        if mask is None:
            return element
        other = f'tl.Cast("{text.TYPES[decl.type.dtype]}", 0)' if load.fill is None else self.e[load.fill]
        return f"tl.if_then_else({mask}, {element}, {other})"

    def store(self, store: Store) -> None:
        """Write a store by one of the threads that have an element."""
        axes = union(*(self.e.tile(i).axes for i in store.index))
        at = self.address(self.decls[store.param], list(enumerate(store.index)))
        self.alone(axes, store.guard, f"{store.param}[{at}] = {self.e[store.value]}")

    def alone(self, axes: tuple[Axis, ...], guard: Value | None, *statements: str) -> None:
        """Write statements for the first thread of those that share indices of some axes."""
        terms = [self.mask(axes, guard), self.writers.get(self.shares(axes))]
        condition = " & ".join(term for term in terms if term)
        if condition:
            self.e.each(f"if {condition}:", *(f"    {statement}" for statement in statements))
        else:
            self.e.each(*statements)

    def by_one(self, axes: tuple[Axis, ...], statement: str) -> None:
        """Write a statement for the first thread of those that share indices, there or not, of some axes."""
        writes = self.writers.get(self.shares(axes))
        self.e.each(*((f"if {writes}:", f"    {statement}") if writes else (statement,)))

    def mask(self, axes: tuple[Axis, ...], guard: Value | None) -> str | None:
        """Return the predicate of an access; None if every thread is in bounds."""
        always = guard is None or self.e.consts.get(guard) == (1, DType.BOOL)
        terms = [] if guard is None or always else [self.e[guard]]
        terms += [self.e.indexed(name, (axis,)) for axis, name in self.inside.items() if axis in axes]
        if self.limit is not None and self.limit[0] in axes:
            row = self.e.indexed(self.coordinates[self.limit[0]], self.limit[:1])
            terms.append(f"({row} < {self.limit[1]})")
        return " & ".join(terms) or None

    def address(self, decl: Decl, index: list[tuple[int, Value]]) -> str:
        """Return the offset of an element in its tensor, in elements."""
        return " + ".join(term for dim, value in index for term in self.terms(decl, dim, value)) or "0"

    def terms(self, decl: Decl, dim: int, value: Value) -> list[str]:
        """Return the offset of one index in an address, in elements."""
        index = self.e.plain(value)
        if index == "0":
            return []
        if dim == 0 and abi.has_two_row_strides(decl, self.plan.signature):
            inner, outer_stride, inner_stride = map(self.argument, abi.row_strides(decl))
            return [
                f"tl.int64(tl.truncdiv({index}, {inner})) * {outer_stride}",
                f"tl.int64(tl.truncmod({index}, {inner})) * {inner_stride}",
            ]
        if abi.has_unit_stride(decl, dim, self.plan.signature):
            return [index]
        # rows times a stride may exceed 2**31
        if self.e.tile(value).dtype is not DType.I64 and value not in self.e.consts:
            index = f"tl.int64({index})"
        return [f"{index} * {self.stride(decl, dim)}"]

    # --- checks ---------------------------------------------------------------------------------------------

    def check(self, bad: Value, what: str) -> None:
        """Write the code of a finding and one more than its row into the device's error words."""
        axes, code = self.e.tile(bad).axes, self.error_code(what)
        reports = (f"tl.atomic_max({ERRORS}[{at}], {x})" for at, x in ((0, code), (1, self.row(axes))))
        self.alone(axes, bad, *reports)

    def row(self, axes: tuple[Axis, ...]) -> str:
        """Return the text of an element's row number for the error word, counted from 1."""
        own = (axis for axis in self.coordinates if axis in axes)
        return row_number(own, lambda axis: self.e.indexed(self.coordinates[axis], (axis,))) or "1"


class WithMemory(Writer, Protocol):
    """An emitter with the part for memory accesses."""

    memory: Memory
