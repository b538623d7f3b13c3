"""GEMM mainloop as text: both factors staged through shared memory, one MFMA accumulator."""

from __future__ import annotations

import math
from dataclasses import replace

from rlk.ir.dims import fixed_extent
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Decl, Let, Load, Loop, Pos, Reduce, Value, operands
from rlk.ir.types import DType
from rlk.lower.common.arguments import tiles_of
from rlk.lower.common.contract import Contraction, Contractions, Factor, contractions_of_tiles
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.common.one_hot import OneHotSum
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.tilelang import text
from rlk.lower.tilelang.memory import WithMemory
from rlk.lower.tilelang.plan import refused

OF_COPIES = frozenset({"at", "row", "k"})  # names of a copy to shared memory
INSTRUCTION = 16  # rows and columns of a matrix instruction
NOWHERE = -1  # the offset of an out-of-bounds row


class Factors:
    """The contractions of an emitter's kernel, and their factors."""

    asked = 0  # bytes of dynamic shared memory of a launch
    imports: tuple[str, ...] = ()  # lines of the module
    turned: frozenset[Value] = frozenset()  # loads that are only factors

    def __init__(self, emitter: WithMemory, found: Contractions) -> None:
        self.e = emitter
        self.plan = emitter.plan
        self.of, self.never_materialized = found.of, found.never_materialized
        self.one_hot: dict[Value, OneHotSum] = {}  # sums that most blocks need not compute
        self.waiting: set[Value] = set()  # values that only those sums need
        self.bytes = 0  # of shared memory

    def run(self) -> None:
        """Write the whole kernel."""
        raise NotImplementedError

    def dot(self, let: Let) -> None:
        """Write a contraction, or a part of it."""
        raise NotImplementedError

    def factor(self, let: Let) -> None:
        """Write a load of `turned`."""
        raise NotImplementedError

    def pick(self, let: Let, reduce: Reduce) -> None:
        """Write a sum of `picked`."""
        raise NotImplementedError

    def body(self, loop: Loop) -> None:
        """Write the body of a loop."""
        self.e.block(loop.body.lets)

    def shared(self, hint: str, shape: tuple[int, ...], dtype: DType) -> str:
        """Declare shared memory and return its name."""
        name = self.e.names.fresh(hint)
        self.e.storage.append(Line(f'{name} = tl.alloc_shared({shape}, "{text.TYPES[dtype]}", "shared")'))
        self.bytes += math.prod(shape) * dtype.bytes
        return name

    def decl(self, factor: Factor) -> Decl:
        return self.e.memory.decls[factor.load.param]

    def side(self, factor: Factor) -> ThreadValues:
        """Return the thread-value layout of a factor's rows."""
        found = [s for s in self.plan.thread_value_layouts if s.axis in factor.axes]
        if len(found) != 1 or found[0].length < INSTRUCTION:
            lengths = ", ".join(f"{s.length} of {s.axis}" for s in found) or "one row"
            lacks = f"a contraction with {factor.name} of {lengths} in a block"
            instead = f"one axis of {INSTRUCTION} or more in {factor.name} beside the contracted one"
            raise refused(lacks, self.plan.target, instead=instead)
        return found[0]

    def start(self, factor: Factor) -> str:
        """Return the offset of a factor's row in its tensor."""
        decl, e = self.decl(factor), self.e
        others = [(dim, v) for dim, v in enumerate(factor.load.index) if dim != factor.at]
        address = e.memory.address(decl, [*others, *((factor.at, v) for v in factor.base)])
        mask = e.memory.mask(factor.axes, factor.load.guard)
        start = f"tl.int64({address})"
        return start if mask is None else f"tl.Select({mask}, {start}, tl.int64({NOWHERE}))"


class Dots(Factors):
    """Contractions of an emitter through shared memory."""

    def __init__(self, emitter: WithMemory) -> None:
        plan = emitter.plan
        super().__init__(emitter, contractions_of_tiles(plan.kernel, plan.target, refused))
        emitter.names.taken |= OF_COPIES

    def run(self) -> None:
        """Write the whole kernel."""
        with self.e.memory.programs():
            for contraction in self.of.values():
                for factor in (contraction.a, contraction.b):
                    self.e.memory.appoint((self.side(factor).axis,))
            self.e.block(self.plan.kernel.body.lets)

    def length(self, contraction: Contraction) -> str:
        """Return the length of the contracted axis."""
        if contraction.stop is not None:
            return self.e.plain(contraction.stop)
        known = fixed_extent(contraction.over, dict(self.plan.signature.extents))
        return self.e.memory.extent(contraction.over) if known is None else str(known)

    # --- the loop -------------------------------------------------------------------------------------------

    def dot(self, let: Let) -> None:
        """Write a contraction; its product is left in lists, through shared memory."""
        contraction = self.of[let.value]
        if contraction.model not in self.plan.block.dots:
            what = f"a contraction by {contraction.model.value}"
            raise refused(what, self.plan.target, let.loc, "factors of 16 bits")
        sides = (self.side(contraction.a), self.side(contraction.b))
        if sides[0].axis == sides[1].axis:
            raise refused("a contraction of two factors along one axis", self.plan.target, let.loc)
        rows, columns = (side.length for side in sides)
        name = let.name or "acc"
        sums = self.e.names.fresh(f"{name}_sums")
        self.e.storage.append(Line(f'{sums} = tl.alloc_fragment(({rows}, {columns}), "float32")'))
        made = self.shared(f"{name}_tile", (rows, columns), DType.F32)
        factors = (contraction.a, contraction.b)
        starts = [self.starts(f, side) for f, side in zip(factors, sides, strict=True)]
        tiles = [self.tile(f, side) for f, side in zip(factors, sides, strict=True)]
        of_rows = [self.numbers(f, side) for f, side in zip(factors, sides, strict=True)]
        self.e.line(f"tl.clear({sums})")
        self.e.line("tl.sync_threads()")
        self.steps(contraction, starts, tiles, of_rows, sums)
        self.e.line(f"tl.copy({sums}, {made})")
        self.e.line("tl.sync_threads()")
        places = [self.place(side) for side in sides]
        self.e.current = self.plan.lists(self.e.tile(let.value).axes)
        at = ", ".join(self.e.indexed(place, (side.axis,)) for place, side in zip(places, sides, strict=True))
        self.e.value(let, "acc", lambda: f"{made}[{at}]")

    def steps(
        self,
        contraction: Contraction,
        starts: list[str],
        tiles: list[str],
        of_rows: list[dict[Value, str]],
        sums: str,
    ) -> None:
        """Write the loop over the contracted axis, in ascending order."""
        depth, length = self.plan.schedule.depth, self.length(contraction)
        count = str(-(-int(length) // depth)) if length.isdigit() else tiles_of(length, depth)
        step = self.e.names.fresh(f"{axis_name(contraction.over)}_step")
        with self.e.inner(f"for {step} in tl.serial(0, {count}):"):
            for number, (start, tile) in enumerate(zip(starts, tiles, strict=True)):
                factor = (contraction.a, contraction.b)[number]
                # 0.0 * -0.0 + x == x for every x, including x = -0.0
                zero = "f32(-0.0)" if contraction.model is DotModel.FMA and number else ""
                self.filled(factor, start, tile, f"{step} * {depth}", length, zero, of_rows[number])
            self.e.line("tl.sync_threads()")
            self.e.line(f"tl.gemm({tiles[0]}, {tiles[1]}, {sums}, transpose_B=True)")
            self.e.line("tl.sync_threads()")

    def filled(
        self,
        factor: Factor,
        start: str,
        tile: str,
        first: str,
        length: str,
        zero: str,
        of_rows: dict[Value, str],
    ) -> None:
        """Write the copy of a step of a factor, coalesced: adjacent threads load adjacent elements.

        A computed factor is computed on the way. of_rows: numbers of rows that it needs, in shared memory.
        """
        decl, depth, threads = self.decl(factor), self.plan.schedule.depth, self.plan.threads
        rows, last = self.side(factor).length, factor.at == len(decl.type.axes) - 1
        if rows * depth % threads:
            what = f"a contraction in steps of {rows} x {depth} by {threads} threads"
            raise refused(what, self.plan.target)
        row, k = (f"at // {depth}", f"at % {depth}") if last else (f"at % {rows}", f"at // {rows}")
        strided = not last or decl.name in self.plan.signature.strided
        along = f"tl.int64(k) * {self.e.memory.stride(decl, factor.at)}" if strided else "k"
        nothing = f'tl.Cast("{text.TYPES[decl.type.dtype]}", 0)'
        zero = zero or f'tl.Cast("{text.TYPES[self.dtype(factor)]}", 0)'
        with self.e.inner(f"for c in tl.unroll({rows * depth // threads}):"):
            self.e.line(f"at = c * {threads} + thread")
            self.e.line(f"row, k = {row}, {first} + {k}")
            there = f"({start}[row] != {NOWHERE}) & (k < {length})"
            element = f"{decl.name}[{start}[row] + {along}]"
            if factor.prologue:
                element = self.computed(factor, f"tl.if_then_else({there}, {element}, {nothing})", of_rows)
            self.e.line(f"{tile}[row, {k}] = tl.if_then_else({there}, {element}, {zero})")

    def computed(self, factor: Factor, element: str, rows: dict[Value, str]) -> str:
        """Write what a factor's element is computed of, given that of its tensor; return its text."""
        e, plan, known, hidden = self.e, self.plan, dict(self.e.text), self.never_materialized
        e.plan = replace(plan, thread_value_layouts=())
        self.never_materialized = frozenset()
        e.text.update({value: f"{name}[row]" for value, name in rows.items()})
        for let in factor.prologue:
            e.current = ()
            if isinstance(let.node, Load):
                e.text[let.value] = e.let(factor.load.param, text.variable(element, e.tile(let.value).dtype))
            elif isinstance(let.node, Pos):
                e.text[let.value] = "k"
            else:
                e.node(let)
        made = e[factor.prologue[-1].value]
        e.plan, e.text, self.never_materialized = plan, known, hidden
        return made

    def numbers(self, factor: Factor, side: ThreadValues) -> dict[Value, str]:
        """Write the numbers of rows that a computed factor needs to shared memory; return their names."""
        mine = {let.value for let in factor.prologue}
        read = [v for let in factor.prologue if not isinstance(let.node, Load) for v in operands(let.node)]
        found: dict[Value, str] = {}
        for value in read:
            if value not in mine | found.keys() and side.axis in self.e.tile(value).axes:
                name = self.shared(f"{factor.name}_of_rows", (side.length,), self.e.tile(value).dtype)
                place = self.place(side)
                self.e.current = self.plan.lists((side.axis,))
                at = self.e.indexed(place, (side.axis,))
                self.e.memory.by_one((side.axis,), f"{name}[{at}] = {self.e[value]}")
                found[value] = name
        return found

    def dtype(self, factor: Factor) -> DType:
        """Return the dtype of what a contraction multiplies."""
        if factor.prologue:
            return self.e.tile(factor.prologue[-1].value).dtype
        return self.decl(factor).type.dtype

    # --- shared memory --------------------------------------------------------------------------------------

    def tile(self, factor: Factor, side: ThreadValues) -> str:
        """Declare the shared memory of a step of a factor."""
        shape = (side.length, self.plan.schedule.depth)
        return self.shared(f"{factor.name}_tile", shape, self.dtype(factor))

    def starts(self, factor: Factor, side: ThreadValues) -> str:
        """Write the offset of each row of a factor in its tensor."""
        name = self.shared(f"{factor.name}_start", (side.length,), DType.I64)
        place = self.place(side)
        self.e.current = self.plan.lists((side.axis,))
        start = self.start(factor)
        self.e.memory.by_one((side.axis,), f"{name}[{self.e.indexed(place, (side.axis,))}] = {start}")
        return name

    def place(self, side: ThreadValues) -> str:
        """Write a thread's indices of an axis within a tile."""
        place = side.place(self.plan.threads.bit_length() - 1)
        return self.e.memory.write(side.axis, f"{axis_name(side.axis)}_place", DType.I32, place)
