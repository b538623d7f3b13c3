"""Contractions of what a kernel computed: products stay in lists of threads, where the next finds its factor.

A product's columns are the rows of the kernel, 16 to a wave, and its rows the other axis: so a lane has four
neighbours along that axis, and these are what a matrix instruction takes from it as a factor (CDNA3
instruction set, 7.1). Factors from memory come to shared memory, each row after its address was found once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Decl, Dot, Let, Load, Loop, Pos, Value, operands
from rlk.ir.types import DType, TileType
from rlk.lower.common.contract import Contractions
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.common.spread import Spread
from rlk.lower.tilelang import text
from rlk.lower.tilelang.contract import NOWHERE, Factors
from rlk.lower.tilelang.plan import refused
from rlk.lower.tilelang.units import DEPTH, GIVEN, UNITS, Product
from rlk.passes.walk import walk

if TYPE_CHECKING:
    from rlk.lower.tilelang.emit import Emitter

VECTOR = 8  # elements that a thread copies in a row; as many are between rows, so that lanes meet other banks
OF_LOOPS = frozenset("row at i column step four_sums float16_rows bfloat16_rows".split())
"""Names that loops over elements use, and nothing else."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A chunk of a tensor in shared memory: rows along a streamed axis, of `width` elements along another."""

    name: str
    streamed: Axis
    along: Axis
    width: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that rows of a tile are copied from: where one starts in it; always: each row is there."""

    decl: Decl
    start: str
    always: bool


class Chained(Factors):
    """The part of an emitter that knows contractions of which one factor is held and the other in memory."""

    def __init__(self, emitter: Emitter) -> None:
        self.lets = {let.value: let for let in walk(emitter.plan.kernel.body)}
        dots = [let for let in self.lets.values() if isinstance(let.node, Dot)]
        self.factors = {let.value: self.sorted(let, emitter) for let in dots}
        self.turned = frozenset(other for _, other in self.factors.values())
        self.unit = UNITS[emitter.plan.target.vendor]
        self.imports = self.unit.imports
        super().__init__(emitter, Contractions({}, self.only_for_tiles()))
        emitter.names.taken |= OF_LOOPS
        self.again: dict[Value, str] = {}
        self.tiles: dict[tuple[str, Axis], Tile] = {}
        self.copied: set[str] = set()  # tiles that threads have not met since they wrote them
        self.read: set[str] = set()  # tiles that some thread may still read

    def sorted(self, let: Let, e: Emitter) -> tuple[Value, Value]:
        """Return the factor with the rows, and the other one, which is in memory."""
        dot, rows = let.node, e.plan.spreads[:1]
        assert isinstance(dot, Dot)
        if dot.model is not DotModel.CHAIN16 or dot.model not in e.plan.block.dots:
            raise refused(f"a {dot.model.value} contraction beside one of computed factors", e.plan.target)
        for held, other in ((dot.a, dot.b), (dot.b, dot.a)):
            axes = [self.axes(e, value) for value in (held, other)]
            streamed = any(axis.chunk is not None for axis in axes[1])
            loaded = isinstance(self.lets[other].node, Load)
            if rows and rows[0].axis in axes[0] and rows[0].axis not in axes[1] and loaded and streamed:
                return held, other
        what = "a contraction of two factors that are computed, or not streamed"
        raise refused(what, e.plan.target, let.loc)

    def axes(self, e: Emitter, value: Value) -> tuple[Axis, ...]:
        type = e.types[value]
        return type.axes if isinstance(type, TileType) else ()

    def only_for_tiles(self) -> frozenset[Value]:
        """Return what nothing but tiles needs: it is written where they are."""
        found: set[Value] = set()
        users: dict[Value, set[Value]] = {}
        for value, let in self.lets.items():
            for operand in operands(let.node):
                users.setdefault(operand, set()).add(value)
            for result in let.node.body.results if isinstance(let.node, Loop) else ():
                users.setdefault(result, set()).add(value)
        for value in reversed(self.lets):
            let = self.lets[value]
            streamed = isinstance(let.type, TileType) and any(a.chunk is not None for a in let.type.axes)
            if streamed and value in users and users[value] <= found | self.turned:
                found.add(value)
        return frozenset(found - self.turned)

    # --- the kernel -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write the whole kernel."""
        e = self.e
        with e.memory.programs():
            owned = {o.axis for o in self.plan.owned}
            for spread in self.plan.spreads:
                if spread.axis not in owned and spread.axis.chunk is None:
                    self.holds(spread)
            for value in self.lets:
                if value in self.turned:
                    self.tile(value)
            for name, dtype, count in self.unit.lists(self.e.tile(next(iter(self.turned))).dtype):
                e.storage.append(Line(f'{name} = tl.alloc_local(({count},), "{text.TYPES[dtype]}")'))
            e.block(self.plan.kernel.body.lets)

    def holds(self, spread: Spread) -> None:
        """Write the indices of an axis that is only contracted, and which of them there are."""
        memory, name = self.e.memory, axis_name(spread.axis)
        place = spread.place(self.plan.threads.bit_length() - 1)
        memory.owned[spread.axis] = memory.write(spread.axis, name, DType.I32, place)
        if self.extent(spread.axis) != spread.length:
            index = self.e.indexed(memory.owned[spread.axis], (spread.axis,))
            inside = f"{index} < {self.extent(spread.axis)}"
            memory.inside[spread.axis] = memory.write(spread.axis, f"{name}_inside", DType.BOOL, inside)

    def extent(self, axis: Axis) -> int:
        extent = fixed_extent(axis, dict(self.plan.signature.extents))
        if extent is None:
            raise refused(f"a factor of unknown length along {axis}", self.plan.target)
        return extent

    def body(self, loop: Loop) -> None:
        """Write the body of a loop; what a step copies, the one before may still read."""
        self.read |= {tile.name for tile in self.tiles.values()}
        self.e.loops.turned(loop)

    def meet(self) -> None:
        """Write where all threads meet."""
        self.e.line("tl.sync_threads()")
        self.copied.clear()
        self.read.clear()

    # --- products -------------------------------------------------------------------------------------------

    def dot(self, let: Let) -> None:
        """Write a contraction of a chunk, onto its accumulator if it has one."""
        e, dot = self.e, let.node
        assert isinstance(dot, Dot)
        held, other = self.factors[let.value]
        tile, type = self.tile(other), e.tile(let.value)
        if tile.name in self.copied:
            self.meet()
        self.read.add(tile.name)
        e.current = self.plan.lists(type.axes)
        name = e.stored(let.name or "product", DType.F32, e.size)
        e.each(f"{name}[c] = {'f32(0.0)' if dot.onto is None else e[dot.onto]}")
        along = dot.over == tile.along
        made = tile.streamed if along else tile.along
        length, columns = tile.width, self.spread(tile.streamed).length
        if not along:
            length, columns = columns, length
        given = e.stored(f"{tile.name}_part", tile.dtype, GIVEN)
        each = (self.spread(dot.over).count, self.spread(made).count)
        calls = self.unit.calls(Product(e.text[held], given, name, tile.dtype, each))
        across = f"column * {self.unit.columns} + {self.unit.across}"
        deep = f"step * {DEPTH} + {self.unit.deep}"
        with e.inner(f"for column in tl.unroll({columns // self.unit.columns}):"):
            e.lines_of(calls.before)
            with e.inner(f"for step in tl.unroll({length // DEPTH}):"):
                with e.inner(
                    f"for i in tl.{'vectorized' if along and self.unit.vector else 'unroll'}({GIVEN}):"
                ):
                    e.line(
                        f"{given}[i] = {tile.name}[{f'{across}, {deep}' if along else f'{deep}, {across}'}]"
                    )
                e.lines_of(calls.step)
            e.lines_of(calls.after)
        e.text[let.value] = name

    def spread(self, axis: Axis) -> Spread:
        found = self.plan.spread(axis)
        assert found is not None
        return found

    # --- tiles ----------------------------------------------------------------------------------------------

    def tile(self, value: Value) -> Tile:
        """Return the tile of a factor from memory; loads of one tensor share it."""
        load = self.lets[value].node
        assert isinstance(load, Load)
        streamed = next(a for a in self.axes(self.e, value) if a.chunk is not None)
        along = next((a for a in self.axes(self.e, value) if self.plan.spread(a) and a != streamed), None)
        if along is None or self.lets[load.index[-1]].node != Pos(along):
            raise refused("a factor that does not lie along the last dim of a tensor", self.plan.target)
        if (load.param, along) not in self.tiles:
            width = -(-self.extent(along) // DEPTH) * DEPTH
            shape = (self.spread(streamed).length, width + VECTOR)
            dtype = self.e.memory.decls[load.param].type.dtype
            name = self.shared(f"{load.param}_tile", shape, dtype)
            self.tiles[load.param, along] = Tile(name, streamed, along, width, dtype)
        return self.tiles[load.param, along]

    def factor(self, let: Let) -> None:
        """Write the copy of a chunk, a vector of a row to a thread."""
        load, e = let.node, self.e
        assert isinstance(load, Load)
        tile = self.tile(let.value)
        if tile.name in self.read:
            self.meet()
        lanes, vector, rows = self.copying(tile)
        sources = []
        with self.placed(rows):
            given: Load | None = load
            while given is not None:
                sources.append(self.source(given))
                fill = None if given.fill is None else self.lets[given.fill].node
                given = fill if isinstance(fill, Load) else None
        with e.inner(f"for c in tl.unroll({rows.count}):"):
            e.line(f"row = {rows.place(self.plan.threads.bit_length() - 1)}")
            e.line(f"at = thread % {lanes} * {vector}")
            with e.inner(f"if at < {tile.width}:") if lanes * vector > tile.width else nullcontext():
                self.vector(tile, "row, at", sources, vector)
        self.copied.add(tile.name)

    def vector(self, tile: Tile, at: str, sources: Sequence[Source], size: int) -> None:
        """Write the copy of a vector from the first of some tensors that has its row, or of zeros."""
        e = self.e
        if not sources or not sources[0].always:
            if sources:
                with e.inner(f"if {sources[0].start} != {NOWHERE}:"):
                    self.elements(tile, at, sources[0], size)
                with e.inner("else:"):
                    self.vector(tile, at, sources[1:], size)
                return
            with e.inner(f"for i in tl.unroll({size}):"):
                e.line(f"{tile.name}[{at} + i] = {self.zero(tile)}")
            return
        self.elements(tile, at, sources[0], size)

    def elements(self, tile: Tile, at: str, source: Source, size: int) -> None:
        """Write the copy of a vector; what lies beyond the tensor's row is zero."""
        e, decl, length = self.e, source.decl, self.extent(tile.along)
        index = f"{at.partition(', ')[2]} + i"
        along = index
        if decl.name in self.plan.signature.strided:
            along = f"tl.int64({index}) * {e.memory.stride(decl, len(decl.type.axes) - 1)}"
        element = f"{decl.name}[{source.start} + {along}]"
        if length < tile.width:
            element = f"tl.if_then_else({index} < {length}, {element}, {self.zero(tile)})"
        with e.inner(f"for i in tl.unroll({size}):"):
            e.line(f"{tile.name}[{at} + i] = {element}")

    def zero(self, tile: Tile) -> str:
        return f'tl.Cast("{text.TYPES[tile.dtype]}", 0)'

    def copying(self, tile: Tile) -> tuple[int, int, Spread]:
        """Return how many lanes share a row, how much of it each copies, and how rows lie on threads."""
        rows, padded = self.spread(tile.streamed).length, self.spread(tile.along).length
        vector = max(1, min(VECTOR, rows * padded // self.plan.threads))
        lanes = padded // vector
        first, bits = lanes.bit_length() - 1, self.plan.threads.bit_length() - 1
        told = min(rows.bit_length() - 1, bits - first)
        return lanes, vector, Spread(tile.streamed, rows, tuple((b, b + first) for b in range(told)))

    @contextmanager
    def placed(self, rows: Spread) -> Iterator[None]:
        """Let what runs along a streamed axis lie as it is copied."""
        e, before, known = self.e, self.plan, self.e.text
        spreads = tuple(rows if s.axis == rows.axis else s for s in before.spreads)
        e.plan = self.plan = e.memory.plan = replace(before, spreads=spreads)
        e.text, self.again = dict(known), {}
        yield
        e.plan = self.plan = e.memory.plan = before
        e.text = known

    def source(self, load: Load) -> Source:
        """Write where each row that a thread copies starts in a tensor."""
        e, decl = self.e, self.e.memory.decls[load.param]
        axes: dict[Axis, None] = {}
        for value in (*load.index[:-1], *(() if load.guard is None else (load.guard,))):
            self.write_again(value)
            axes |= dict.fromkeys(self.axes(e, value))
        e.current = self.plan.lists(tuple(axes))
        address = f"tl.int64({e.memory.address(decl, list(enumerate(load.index[:-1])))})"
        mask = e.memory.mask(tuple(axes), load.guard)
        start = address if mask is None else f"tl.Select({mask}, {address}, tl.int64({NOWHERE}))"
        name = e.stored(f"{decl.name}_from", DType.I64, e.size)
        e.each(f"{name}[{'c' if e.current else '0'}] = {start}")
        return Source(decl, f"{name}[{'c' if e.current else '0'}]", mask is None)

    def write_again(self, value: Value) -> None:
        """Write what runs along a streamed axis as copies need it, and what that is computed from."""
        e = self.e
        if value in self.again or not any(axis.chunk is not None for axis in self.axes(e, value)):
            return
        let = self.lets[value]
        for operand in operands(let.node):
            self.write_again(operand)
        e.current = e.lists(let)
        unheld, self.unheld = self.unheld, frozenset()
        e.node(let)
        self.unheld = unheld
        self.again[value] = e.text.get(value, "")
