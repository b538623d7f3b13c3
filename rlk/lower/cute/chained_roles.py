"""What the roles of a kernel say that contracts what it computed: places, copies, steps, what is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Const,
    Dot,
    Let,
    Load,
    Loop,
    Pos,
    Result,
    Store,
    Value,
    operands,
)
from rlk.ir.types import TileType
from rlk.lower.common.emitted import From
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.cute.chained_plan import ChainedPlan, Copies
from rlk.lower.cute.emit import Emitter
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import Held, refused
from rlk.passes.walk import behind, walk

ROWS = 2  # of an accumulator that a thread has a part of
LANES = 32
PLACE = "8 * (c // 2) + c % 2"  # of an element of a list among the columns from the first of its thread
OF_FRAME = frozenset(
    "thread block warp box vectors group lane memory put get got mine row quad first_of_quad r c i j column "
    "down stream programs tiles tile first count rows weights scores sums scoring summing acc_scores "
    "acc_of_scores acc_of_weights only share layout_a layout_b layout_c full_steps last_steps "
    "first_steps".split()
)


class ChainedEmitter(Emitter):
    """Writes the lines of both roles.

    rowwise: values of which a thread has a list over rows, at `r`. whole: values whose text is that of one
    element already. targets: where an element goes that has a place waiting for it.
    """

    plan: ChainedPlan

    def __init__(self, plan: ChainedPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.plan = plan
        self.names.taken |= OF_FRAME
        for copies in plan.copied:
            self.names.taken |= {f"{copies.param}_{what}" for what in ("ring", "tiles", "factor")}
        self.lets = {let.value: let for let in walk(plan.kernel.body)}
        self.rowwise: set[Value] = set()
        self.whole: set[Value] = set()
        self.targets: dict[Value, str] = {}
        self.written: set[Value] = set()
        self.axes_held = {plan.scores.axis: plan.scores, plan.sums.axis: plan.sums}

    # --- values ---------------------------------------------------------------------------------------------

    def axes(self, value: Value) -> tuple[Axis, ...]:
        type = self.types[value]
        return type.axes if isinstance(type, TileType) else ()

    def by_row(self, value: Value) -> bool:
        return self.plan.rows.axis in self.axes(value)

    def held_by(self, value: Value) -> Held | None:
        """Return how threads hold a value's list."""
        return next((held for axis, held in self.axes_held.items() if axis in self.axes(value)), None)

    def listed(self, value: Value) -> bool:
        return self.held_by(value) is not None

    def __getitem__(self, value: Value) -> str:
        if value in self.whole:
            return self.text[value]
        return f"{super().__getitem__(value)}[r]" if value in self.rowwise else super().__getitem__(value)

    def position(self, let: Let, axis: Axis) -> None:
        if axis in self.axes_held and axis not in self.memory.owned:
            self.text[let.value] = f"(quad + {PLACE})"
            self.whole.add(let.value)
        else:
            super().position(let, axis)

    def both(self, expression: str, count: int = ROWS) -> str:
        return f"[{expression} for r in range({count})]"

    def needed(self, values: Iterable[Value]) -> list[Let]:
        """Return the lets that some values are made of and that are not written yet, in order.

        A contraction needs nothing that is in memory.
        """
        left = {value: let for value, let in self.lets.items() if value not in self.written}
        wanted = behind(values, left, self.operands)
        return [let for let in left.values() if let.value in wanted]

    def operands(self, let: Let) -> tuple[Value, ...]:
        match let.node:
            case Dot(a=a, onto=onto):
                return () if onto is None else (a, onto)
            case Loop():
                return ()
            case _:
                return tuple(operands(let.node))

    def write(self, lets: Iterable[Let], count: int = 0) -> None:
        """Write values in order; those of a row as lists over so many rows."""
        for let in lets:
            self.at(let)
            if count and self.by_row(let.value) and not isinstance(let.node, Const):
                self.row(let, count)
            else:
                self.node(let)
            self.written.add(let.value)

    def row(self, let: Let, count: int) -> None:
        """Write a value of each row as a list over the rows of a thread."""
        before = len(self.lines)
        self.node(let)
        if len(self.lines) > before:
            name, expression = self.lines.pop().text.strip().split(" = ", 1)
            self.line(f"{name} = {self.both(expression, count)}")
            self.rowwise.add(let.value)

    @contextmanager
    def apart(self, *, scope: bool = True) -> Iterator[None]:
        """Forget what is written inside; free its names, unless they stay in the scope of what follows."""
        kept = dict(self.text), dict(self.consts), dict(self.memory.owned), set(self.written)
        sets = set(self.rowwise), set(self.whole), self.axes_held
        with self.names.scope() if scope else nullcontext():
            yield
        self.text, self.consts, self.memory.owned, self.written = kept
        self.rowwise, self.whole, self.axes_held = sets

    def top(self) -> list[Let]:
        """Return the lets beside the loop's."""
        return [let for let in self.plan.kernel.body.lets if not isinstance(let.node, Loop | Result)]

    # --- the place of a tile --------------------------------------------------------------------------------

    def of_tile(self) -> tuple[Line, ...]:
        """Return what all threads compute: the tile of a block, its segment, and what is of one number.

        The last rows of all segments come first: where a row sees what is before it, they take longest.
        """
        found, tile = self.plan.segments, self.plan.rows.tile
        self.uses("segment_of")
        whole, over = self.memory.argument(found.whole, From.EXTENT, found.whole), found.over
        count = self.memory.extent(over)
        self.line(f"tiles = {whole} * {found.each} // {tile} + {count}")
        self.line("tile = tiles - 1 - block % tiles")
        segment = f"segment_of({found.begin}, tile, {count}, lane, {found.each}, {tile})"
        name = self.memory.owned[over] = self.let(axis_name(over), segment)
        begin = self.let("begin", f"{found.begin}[{name}].to(Int32) * {found.each}")
        self.line(f"count = {found.end}[{name}].to(Int32) * {found.each} - {begin}")
        self.line(f"first = (tile - ({begin} // {tile} + {name})) * {tile}")
        self.other_axes("block // tiles")
        fixed = (let for let in self.top() if not self.by_row(let.value) and not self.listed(let.value))
        scalar = [let for let in fixed if not isinstance(let.node, Store) and not self.waits(let)]
        inside = [v for part in self.plan.parts for let in part.loop.body.lets for v in operands(let.node)]
        wanted = {let.value for let in self.needed([*inside, *self.bounds()])}
        self.write(let for let in scalar if let.value in wanted and not self.contracted(let.value))
        return lines(self.lines)

    def other_axes(self, rest: str) -> None:
        """Write the indices of the axes of which a block has one, the last of them fastest."""
        left = list(reversed(self.plan.others))
        for i, owned in enumerate(left):
            index = rest if i == len(left) - 1 else f"{rest} % {owned.tiles}"
            self.memory.owned[owned.axis] = self.let(axis_name(owned.axis), index)
            rest = f"({rest}) // {owned.tiles}"

    def waits(self, let: Let) -> bool:
        """Return whether a value beside the loop is made of what it yields."""
        found = behind([let.value], self.lets)
        return any(isinstance(self.lets[value].node, Result | Loop) for value in found)

    def contracted(self, value: Value) -> bool:
        """Return whether a value lies along the axis that scores are sums over, as copies alone need it."""
        dot = self.plan.last.scores.node
        return isinstance(dot, Dot) and dot.over in self.axes(value)

    def bounds(self) -> tuple[Value, ...]:
        """Return where the loop starts, where its first part ends, and where it ends."""
        first, last = self.plan.parts[0].loop, self.plan.last.loop
        return first.start, first.stop, last.stop

    def steps(self) -> tuple[Line, ...]:
        """Return what every warp computes of the steps of its tile: of all rows, each lane having some.

        There is one step at least: one that no row sees changes no state.
        """
        count = self.plan.rows.tile // LANES
        with self.apart(scope=False):
            axis = self.plan.rows.axis
            rows = self.let(axis_name(axis), self.both(f"first + lane + {LANES} * r", count))
            self.axes_held, self.memory.owned[axis] = {}, f"{rows}[r]"
            start, full, stop = self.bounds()
            self.write(self.needed((start, full, stop)), count)
            first, last = self.extreme(start, "least"), self.extreme(stop, "most")
            self.uses("select", "least", "most")
            self.line(f"first_steps = {first}")
            self.line(f"last_steps = select(first < count, most({last}, {first} + 1), {first} + 1)")
            if len(self.plan.parts) > 1:
                self.line(f"full_steps = most({first}, least({self.extreme(full, 'least')}, last_steps - 1))")
        return lines(self.lines)

    def extreme(self, value: Value, pick: str) -> str:
        """Return the least or the most of a number over all rows of a tile."""
        if value not in self.rowwise:
            return self[value] if value in self.consts else f"Int32({self[value]})"
        self.uses("of_rows")
        return f"of_rows({self.text[value]}, {pick})"

    # --- copies ---------------------------------------------------------------------------------------------

    def copies(self, copies: Copies, stage: str, *, turned: bool) -> tuple[Line, ...]:
        """Return the copy of a tile by the threads of a warpgroup; turned: its rows are the inner dim."""
        load = self.lets[copies.load].node
        assert isinstance(load, Load)
        streamed, element = self.plan.scores.axis, self.elements_of(load)
        axis = self.plan.rows.axis if self.by_row(copies.load) else streamed
        with self.apart():
            self.axes_held = {}
            common = [
                let
                for let in self.needed(self.operands_of(load))
                if not {axis, element} & {*self.axes(let.value)}
            ]
            self.write(common)
            across = copies.across
            self.line(f"column = {copies.width} * (thread % {across})")
            with self.inner(f"for i in cutlass.range_constexpr({copies.passes}):"):
                self.line(f"down = thread // {across} + {copies.down} * i")
                index = "first + down" if axis == self.plan.rows.axis else "down"
                self.memory.owned[axis] = self.let(axis_name(axis), index)
                self.memory.owned[element] = f"(column + {copies.width * across} * j)"
                self.write(self.needed(self.operands_of(load)))
                self.uses("copy_vector_where")
                mask = self.memory.mask((), load.guard) or "Boolean(True)"
                elements = f"column + {copies.width * across} * j"
                place = f"({elements}, down, {stage})" if turned else f"(down, {elements}, {stage})"
                with self.inner(f"for j in cutlass.range_constexpr({copies.vectors}):"):
                    at = self.memory.index(load.index)
                    tiles = f"{copies.param}_tiles"
                    self.line(
                        f"copy_vector_where({mask}, {copies.param}, {at}, {tiles}, {place}, {copies.width})"
                    )
        return lines(self.lines)

    def operands_of(self, load: Load) -> list[Value]:
        return [*load.index, *(() if load.guard is None else (load.guard,))]

    def elements_of(self, load: Load) -> Axis:
        """Return the axis along which a factor's elements follow each other."""
        node = self.lets[load.index[-1]].node
        if not isinstance(node, Pos) or node.axis.chunk is not None:
            raise refused(f"elements of {load.param} that do not follow each other", self.plan.target)
        return node.axis

    def name_step(self, name: str) -> None:
        """Let the loop's last part count its steps by this name."""
        self.text[self.plan.last.loop.body.args[0]] = name
