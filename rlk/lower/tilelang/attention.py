"""Fused attention (back-to-back GEMM): accumulators stay in registers as factors of the next product.

Only factors from memory are staged through shared memory (see `units`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Decl, Dot, Let, Load, Loop, Pos, Value, operands
from rlk.ir.types import DType, tile_axes
from rlk.lower.common.contract import Contractions
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.tilelang import text
from rlk.lower.tilelang.contract import NOWHERE, Factors
from rlk.lower.tilelang.loops import WithLoops
from rlk.lower.tilelang.plan import refused
from rlk.lower.tilelang.units import DEPTH, GIVEN, UNITS, Product
from rlk.passes.walk import walk

VECTOR = 8  # elements of a thread's copy; rows are padded by as many to avoid bank conflicts
OF_LOOPS = frozenset("row at i column step four_sums of_rows".split())


@dataclass(frozen=True, slots=True)
class Tile:
    """A chunk of a tensor in shared memory: rows along a streamed axis, of `width` elements along another."""

    name: str
    streamed: Axis
    along: Axis
    width: int
    dtype: DType


class Attention(Factors):
    """Contractions of an emitter with one factor in registers and the other in memory.

    copied: tiles written since the last barrier. read: tiles that other threads may still read.
    """

    e: WithLoops

    def __init__(self, emitter: WithLoops) -> None:
        self.lets = {let.value: let for let in walk(emitter.plan.kernel.body)}
        self.types = emitter.types
        self.unit = UNITS[emitter.plan.target.vendor]
        self.imports = self.unit.imports
        super().__init__(emitter, Contractions({}, frozenset()))
        dots = [let for let in self.lets.values() if isinstance(let.node, Dot)]
        self.factors = {let.value: self.sides(let) for let in dots}
        self.turned = frozenset(other for _, other in self.factors.values())
        others = {v for x in self.lets.values() if x.value not in self.turned for v in operands(x.node)}
        needed = {v for value in self.turned for v in operands(self.lets[value].node)}
        self.never_materialized = frozenset(v for v in needed - others if isinstance(self.lets[v].node, Load))
        emitter.names.taken |= OF_LOOPS
        self.tiles: dict[tuple[str, Axis], Tile] = {}
        self.copied: set[str] = set()
        self.read: set[str] = set()

    def sides(self, let: Let) -> tuple[Value, Value]:
        """Return the factor with the rows, and the other one, which is in memory."""
        dot, target = let.node, self.plan.target
        assert isinstance(dot, Dot)
        for of_rows, other in ((dot.a, dot.b), (dot.b, dot.a)):
            axes = self.axes(other)
            fits = isinstance(self.lets[other].node, Load) and any(a.chunk is not None for a in axes)
            if fits and not any(s.axis in axes for s in self.plan.thread_value_layouts[:1]):
                if dot.model is DotModel.CHAIN16:
                    return of_rows, other
                raise refused("a contraction of f32 beside one of computed factors", target, let.loc)
        what = "a contraction of two factors of which none is a chunk of an input"
        raise refused(what, target, let.loc, "x[v] of the stream")

    def axes(self, value: Value) -> tuple[Axis, ...]:
        return tile_axes(self.types[value])

    # --- the kernel -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write the whole kernel."""
        e = self.e
        with e.memory.programs():
            tiled = {o.axis for o in self.plan.tiled}
            for thread_values in self.plan.thread_value_layouts:
                if thread_values.axis not in tiled and thread_values.axis.chunk is None:
                    self.holds(thread_values)
            tiles = [self.tile(value) for value in self.lets if value in self.turned]
            for name, dtype, count in self.unit.lists:
                kind = text.TYPES[dtype or tiles[0].dtype]
                e.storage.append(Line(f'{name} = tl.alloc_local(({count},), "{kind}")'))
            e.block(self.plan.kernel.body.lets)

    def holds(self, thread_values: ThreadValues) -> None:
        """Write the indices of an axis that is only contracted, and their bounds mask."""
        axis, memory, name = thread_values.axis, self.e.memory, axis_name(thread_values.axis)
        place = thread_values.place(self.plan.threads.bit_length() - 1)
        memory.coordinates[axis] = memory.write(axis, name, DType.I32, place)
        if self.extent(axis) != thread_values.length:
            inside = f"{self.e.indexed(memory.coordinates[axis], (axis,))} < {self.extent(axis)}"
            memory.inside[axis] = memory.write(axis, f"{name}_inside", DType.BOOL, inside)

    def extent(self, axis: Axis) -> int:
        extent = fixed_extent(axis, dict(self.plan.signature.extents))
        if extent is None:
            what = f"fused attention with a factor along the dynamic axis {axis}"
            raise refused(what, self.plan.target, instead="an axis without dynamic=True")
        return extent

    def body(self, loop: Loop) -> None:
        """Write the body of a loop; the previous step may still read the tiles that a step overwrites."""
        self.read |= {tile.name for tile in self.tiles.values()}
        self.e.loops.turned(loop)

    def meet(self) -> None:
        """Write a barrier of all threads."""
        self.e.line("tl.sync_threads()")
        self.copied.clear()
        self.read.clear()

    def dot(self, let: Let) -> None:
        """Write a contraction of a chunk, into its accumulator if it has one."""
        e, dot, unit = self.e, let.node, self.unit
        assert isinstance(dot, Dot)
        of_rows, other = self.factors[let.value]
        tile = self.tile(other)
        if tile.name in self.copied:
            self.meet()
        self.read.add(tile.name)
        e.current = self.plan.lists(self.axes(let.value))
        name = e.stored(let.name or "acc", DType.F32, e.size)
        e.each(f"{name}[c] = {'f32(0.0)' if dot.onto is None else e[dot.onto]}")
        across, deep = f"column * {unit.columns} + {unit.across}", f"step * {DEPTH} + {unit.deep}"
        made, at, each = tile.streamed, f"{across}, {deep}", "vectorized"
        columns, length = self.thread_values(made).length, tile.width
        if dot.over == tile.streamed:
            made, at, each = tile.along, f"{deep}, {across}", "unroll"
            columns, length = length, columns
        given = e.stored(f"{tile.name}_part", tile.dtype, GIVEN)
        counts = self.thread_values(dot.over).count, self.thread_values(made).count
        before, step, after = unit.calls(
            Product(e.text[of_rows], counts[0], given, name, counts[1], tile.dtype)
        )
        with e.inner(f"for column in tl.unroll({columns // unit.columns}):"):
            e.lines_of(before)
            with e.inner(f"for step in tl.unroll({length // DEPTH}):"):
                with e.inner(f"for i in tl.{each if unit.imports else 'unroll'}({GIVEN}):"):
                    e.line(f"{given}[i] = {tile.name}[{at}]")
                e.lines_of(step)
            e.lines_of(after)
        e.text[let.value] = name

    def thread_values(self, axis: Axis) -> ThreadValues:
        found = self.plan.thread_values(axis)
        assert found is not None
        return found

    # --- tiles ----------------------------------------------------------------------------------------------

    def tile(self, value: Value) -> Tile:
        """Return the tile of a factor from memory; loads of one tensor share it."""
        load, axes = self.lets[value].node, self.axes(value)
        assert isinstance(load, Load)
        streamed = next(a for a in axes if a.chunk is not None)
        along = next((a for a in axes if self.plan.thread_values(a) and a != streamed), None)
        if along is None or self.lets[load.index[-1]].node != Pos(along):
            what = f"fused attention with a factor that does not lie along the last dim of {load.param}"
            raise refused(what, self.plan.target)
        if (load.param, along) not in self.tiles:
            width = -(-self.extent(along) // DEPTH) * DEPTH
            dtype = self.e.memory.decls[load.param].type.dtype
            name = self.shared(
                f"{load.param}_tile", (self.thread_values(streamed).length, width + VECTOR), dtype
            )
            self.tiles[load.param, along] = Tile(name, streamed, along, width, dtype)
        return self.tiles[load.param, along]

    def factor(self, let: Let) -> None:
        """Write the copy of a chunk, a vector of a row to a thread."""
        e, bits, tile = self.e, self.plan.threads.bit_length() - 1, self.tile(let.value)
        if tile.name in self.read:
            self.meet()
        length, padded = self.thread_values(tile.streamed).length, self.thread_values(tile.along).length
        vector = max(1, min(VECTOR, length * padded >> bits))
        lanes = (padded // vector).bit_length() - 1  # bits that tell vectors of a row apart
        told = range(min(length.bit_length() - 1, bits - lanes))
        rows = ThreadValues(tile.streamed, length, tuple((b, b + lanes) for b in told))
        sources, value = [], let.value
        with self.placed(rows):
            while isinstance(load := self.lets[value].node, Load):
                sources.append(self.source(load))
                if load.fill is None:
                    break
                value = load.fill
        with e.inner(f"for c in tl.unroll({rows.count}):"):
            e.line(f"row = {rows.place(bits)}")
            e.line(f"at = thread % {1 << lanes} * {vector}")
            with e.inner(f"if at < {tile.width}:") if padded > tile.width else nullcontext():
                self.vector(tile, sources, vector)
        self.copied.add(tile.name)

    def vector(self, tile: Tile, sources: Sequence[tuple[Decl, str]], size: int) -> None:
        """Write the copy of a vector from the first tensor whose row is in bounds, or of zeros."""
        e, length = self.e, self.extent(tile.along)
        element = zero = f'tl.Cast("{text.TYPES[tile.dtype]}", 0)'
        if sources:
            decl, start = sources[0]
            along = "at + i"
            if decl.name in self.plan.signature.strided:
                along = f"tl.int64({along}) * {e.memory.stride(decl, len(decl.type.axes) - 1)}"
            element = f"{decl.name}[{start} + {along}]"
            if length < tile.width:
                element = f"tl.if_then_else(at + i < {length}, {element}, {zero})"
        with e.inner(f"if {sources[0][1]} != {NOWHERE}:") if sources else nullcontext():
            with e.inner(f"for i in tl.unroll({size}):"):
                e.line(f"{tile.name}[row, at + i] = {element}")
        if sources:
            with e.inner("else:"):
                self.vector(tile, sources[1:], size)

    @contextmanager
    def placed(self, rows: ThreadValues) -> Iterator[None]:
        """Use the thread-value layout of copies for values along a streamed axis: they are written again."""
        e, before, never_materialized = self.e, self.plan, self.never_materialized
        known, repeated = e.text, e.repeated
        thread_value_layouts = tuple(rows if s.axis == rows.axis else s for s in before.thread_value_layouts)
        e.plan = self.plan = e.memory.plan = replace(before, thread_value_layouts=thread_value_layouts)
        e.text = {v: x for v, x in known.items() if rows.axis not in self.axes(v)}
        e.repeated = {v: x for v, x in repeated.items() if rows.axis not in self.axes(v)}
        self.never_materialized = frozenset()
        yield
        e.plan = self.plan = e.memory.plan = before
        e.text, e.repeated, self.never_materialized = known, repeated, never_materialized

    def source(self, load: Load) -> tuple[Decl, str]:
        """Write the offset in a tensor of each row that a thread copies."""
        e, decl = self.e, self.e.memory.decls[load.param]
        given = (*load.index[:-1], *(() if load.guard is None else (load.guard,)))
        for value in given:
            self.write_again(value)
        axes = tuple({axis: None for value in given for axis in self.axes(value)})
        e.current = self.plan.lists(axes)
        start = f"tl.int64({e.memory.address(decl, list(enumerate(load.index[:-1])))})"
        mask = e.memory.mask(axes, load.guard)
        start = start if mask is None else f"tl.Select({mask}, {start}, tl.int64({NOWHERE}))"
        at = "c" if e.current else "0"
        name = e.stored(f"{decl.name}_from", DType.I64, e.size)
        e.each(f"{name}[{at}] = {start}")
        return decl, f"{name}[{at}]"

    def write_again(self, value: Value) -> None:
        """Write values that have no text in the current layout, with their backward slices."""
        if not any(value in known for known in (self.e.text, self.e.repeated, self.e.consts)):
            for operand in operands(self.lets[value].node):
                self.write_again(operand)
            self.e.current = self.e.lists(self.lets[value])
            self.e.node(self.lets[value])
