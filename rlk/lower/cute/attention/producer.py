"""Tile coordinates, step ranges and producer copies of the fused attention kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

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
from rlk.ir.types import tile_axes
from rlk.lower.common import abi
from rlk.lower.common.lines import Line
from rlk.lower.common.names import axis_name
from rlk.lower.common.tma_tiles import TmaTile
from rlk.lower.cute import text
from rlk.lower.cute.attention.plan import LANES, AttentionPlan, Copies, made_of
from rlk.lower.cute.attention.step import PRODUCER, STATES, TILE_CONSUMER, TILE_PRODUCER
from rlk.lower.cute.emit import Emitter
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import lines
from rlk.lower.cute.plan import WARPGROUP, Fragment, refused
from rlk.passes.walk import backward_slice, walk

ROWS = 2  # of an accumulator that a thread has a part of
KEPT_IN_L2 = 12 << 20  # bytes of a sequence's keys and values, of all heads, that blocks may read together
PLACE = "8 * (c // 2) + c % 2"  # of an element of a list among the columns from the first of its thread
OF_FRAME = frozenset(
    "thread block warp epilogue_tile vectors group lane memory mine row quad first_of_quad r c i "
    "j column down stream programs tiles tile together first segment_rows rows mma_qk mma_pv only share "
    "full_steps last_steps first_steps late_steps layouts rescales".split()
) | {*STATES, PRODUCER, TILE_PRODUCER, TILE_CONSUMER}


TRANSPOSED = ("transposed", "transposed_factor")
FRAGMENT = "_fragment"  # behind the name of a wgmma register fragment, which has a view by rows


@dataclass(frozen=True, slots=True)
class Place:
    """Lines that compute a tile's coordinates: tile count, tile index, segment search, and the rest."""

    count: tuple[Line, ...]
    tile: tuple[Line, ...]
    search: tuple[Line, ...]
    rest: tuple[Line, ...]
    segment: str  # its name

    @property
    def consumer(self) -> tuple[Line, ...]:
        """Return the lines of a consumer, which reads the segment from the work tile."""
        return (*self.tile, *self.rest)

    @property
    def every(self) -> tuple[Line, ...]:
        return (*self.tile, *self.search, *self.rest)


Limits = Callable[..., None]
"""A function of an emitter, a loop's start and the ends of its parts that writes the step range of a tile."""


def one_tile_limits(e: AttentionEmitter, start: Value, *stops: Value) -> None:
    """Write the first and last step of a block's tile, and the ends of its step ranges.

    Where S is issued ahead there is at least one step: a fully masked step changes no state.
    """
    e.line(f"first_steps = {e.first_step(start)}")
    last = end_of_steps("first < segment_rows", e.extreme(stops[-1], "imax"), at_least_one=e.plan.ahead)
    e.line(f"last_steps = {last}")
    begin = "first_steps"
    if len(stops) > 2:  # masked steps come before the full ones, too
        e.line(f"late_steps = {end_of_range(begin, e.extreme(stops[0], 'imax'), 'last_steps')}")
        begin = "late_steps"
    if len(stops) > 1:
        last = "last_steps - 1" if e.plan.ahead else "last_steps"
        e.line(f"full_steps = {end_of_range(begin, e.extreme(stops[-2], 'imin'), last)}")


def end_of_steps(there: str, stop: str, *, at_least_one: bool) -> str:
    """Return the end of the steps of rows, `stop`; of out-of-bounds rows, the fewest steps."""
    fewest = "first_steps + 1" if at_least_one else "first_steps"
    return f"select({there}, {f'imax({stop}, {fewest})' if at_least_one else stop}, {fewest})"


def end_of_range(begin: str, stop: str, last: str) -> str:
    """Return where a range of steps ends that begins at `begin`: at `stop`, or before it at `last`."""
    return f"imax({begin}, imin({stop}, {last}))"


class AttentionEmitter(Emitter):
    """Writes lines of producer and consumers.

    rowwise: values with one element for each row `r` of a thread. whole: values whose text is one element
    already. targets: values whose elements are assigned to an existing register.
    """

    plan: AttentionPlan
    work_counter = ""  # the work counter of persistent blocks

    def __init__(self, plan: AttentionPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.plan = plan
        self.names.taken |= OF_FRAME
        for copies in plan.copied:
            self.names.taken |= {
                f"{copies.param}_{what}" for what in ("ring", "tiles", "factor", *TRANSPOSED)
            }
        self.names.taken |= {f"{each.param}_statistics" for each in plan.row_statistics} | {
            plan.statistics_ring
        }
        self.names.taken |= {text.numbered("mma_pv", i) for i in range(len(plan.sums))}
        self.lets = {let.value: let for let in walk(plan.kernel.body)}
        self.score_names = tuple(self.fragment_name(let.name or "s") for let in plan.last.scores)
        self.prob_names = tuple(
            self.fragment_name(self.lets[operands(let.node)[0]].name or "p") for let in plan.last.sums
        )
        self.rowwise: set[Value] = set()
        self.whole: set[Value] = set()
        self.columns: set[Value] = set()  # of those, the indices that count along a row
        self.place_in_row = PLACE  # of an element of a list that is written now
        self.targets: dict[Value, str] = {}
        self.pages: set[str] = set()  # names of page indices that are -1 where there is no page
        self.written: set[Value] = set()
        self.fragments = {fragment.axis: fragment for fragment in (plan.scores, *plan.sums)}

    def fragment_name(self, hint: str) -> str:
        """Return the name of a wgmma fragment's view by rows."""
        name = self.names.fresh(hint)
        self.names.taken.add(name + FRAGMENT)
        return name

    # --- values ---------------------------------------------------------------------------------------------

    def axes(self, value: Value) -> tuple[Axis, ...]:
        return tile_axes(self.types[value])

    def by_row(self, value: Value) -> bool:
        return self.plan.rows.axis in self.axes(value)

    def fragment_of(self, value: Value) -> Fragment | None:
        """Return the fragment of a value, if it has one."""
        return next((fragment for axis, fragment in self.fragments.items() if axis in self.axes(value)), None)

    def listed(self, value: Value) -> bool:
        return self.fragment_of(value) is not None

    def __getitem__(self, value: Value) -> str:
        if value in self.whole:
            return f"(quad + {self.place_in_row})" if value in self.columns else self.text[value]
        return f"{super().__getitem__(value)}[r]" if value in self.rowwise else super().__getitem__(value)

    def position(self, let: Let, axis: Axis) -> None:
        if axis in self.fragments and axis not in self.memory.coordinates:
            self.text[let.value] = f"(quad + {PLACE})"
            self.columns.add(let.value)
            self.whole.add(let.value)
        else:
            super().position(let, axis)

    def both(self, expression: str, count: int = ROWS) -> str:
        return f"[{expression} for r in range({count})]"

    def needed(self, values: Iterable[Value]) -> list[Let]:
        """Return the backward slice of values that is not written yet, in order.

        Contractions count without their factors in memory.
        """
        left = {value: let for value, let in self.lets.items() if value not in self.written}
        wanted = backward_slice(values, left, self.operands)
        return [let for let in left.values() if let.value in wanted]

    def operands(self, let: Let) -> tuple[Value, ...]:
        beside = {each.param for each in self.plan.row_statistics}
        if isinstance(let.node, Load) and let.node.param not in beside:
            return tuple(operands(let.node))
        return made_of(let)

    def write(self, lets: Iterable[Let], count: int = 0) -> None:
        """Write values in order; row values as lists over `count` rows."""
        for let in lets:
            self.note(let)
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
            assigned = self.lines.pop().assigned
            assert assigned is not None, let
            name, expression = assigned
            self.define(name, self.both(expression, count))
            self.rowwise.add(let.value)

    @contextmanager
    def isolated(self, *, scope: bool = True) -> Iterator[None]:
        """Restore the emitter's state afterwards; free names that were given, unless scope is False."""
        saved = dict(self.text), dict(self.consts), dict(self.memory.coordinates), set(self.written)
        sets = set(self.rowwise), set(self.whole), self.fragments
        with self.names.scope() if scope else nullcontext():
            yield
        self.text, self.consts, self.memory.coordinates, self.written = saved
        self.rowwise, self.whole, self.fragments = sets

    def top(self) -> list[Let]:
        """Return the lets beside the loop's."""
        return [let for let in self.plan.kernel.body.lets if not isinstance(let.node, Loop | Result)]

    # --- the place of a tile --------------------------------------------------------------------------------

    def of_tile(self) -> Place:
        """Return the lines of all threads: tile coordinates, segment, and scalar values.

        Longest tiles first (LPT): the last rows of segments with a causal mask, the first rows where keys see
        later queries. In the latter case tiles of all heads come before the next rows: head after head takes
        an eighth longer (measured). So do they in a persistent kernel of sequences whose keys the L2 cache
        keeps: the tiles of all heads that are taken last are then short.
        """
        found, tile = self.plan.segments, self.plan.rows.tile
        self.uses("segment_of")
        whole, over = self.memory.argument(abi.extent(found.whole)), found.over
        count = self.memory.extent(over)
        self.define("tiles", f"{whole} * {found.each} // {tile} + {count}")
        start, *_, stop = self.bounds()
        ascending = self.by_row(start) and not self.by_row(stop)
        width = f"({self.width})" if len(self.plan.others) > 1 else self.width
        tile_index, of_others = f"{self.item} % tiles", f"{self.item} // tiles"
        if ascending and self.plan.others:
            tile_index, of_others = f"{self.item} // {width}", f"{self.item} % {width}"
        elif self.plan.dynamic_schedule and (kept := self.kept_keys()) is not None:
            rows, most = kept
            self.uses("select", "imax")
            self.define("together", f"{rows} // imax({count}, 1) <= {most}")
            tile_index = f"select(together, {self.item} // {width}, {tile_index})"
            of_others = f"select(together, {self.item} % {width}, {of_others})"
        count_of = lines(self.lines)
        self.define("tile", f"{'' if ascending else 'tiles - 1 - '}{tile_index}")
        tile_of = lines(self.lines)
        segment = f"segment_of({found.begin}, tile, {count}, lane, {found.each}, {tile})"
        name = self.memory.coordinates[over] = self.let(axis_name(over), segment)
        search = lines(self.lines)
        begin = self.let("segment_begin", f"{found.begin}[{name}].to(Int32) * {found.each}")
        self.define("segment_rows", f"{found.end}[{name}].to(Int32) * {found.each} - {begin}")
        self.define("first", f"(tile - ({begin} // {tile} + {name})) * {tile}")
        self.other_axes(of_others)
        fixed = (let for let in self.top() if not self.by_row(let.value) and not self.listed(let.value))
        scalar = [let for let in fixed if not isinstance(let.node, Store) and not self.waits(let)]
        inside = [v for part in self.plan.parts for let in part.loop.body.lets for v in operands(let.node)]
        wanted = {let.value for let in self.needed([*inside, *self.bounds()])}
        self.write(let for let in scalar if let.value in wanted and not self.contracted(let.value))
        return Place(count_of, tile_of, search, lines(self.lines), name)

    def kept_keys(self) -> tuple[str, int] | None:
        """Return the number of keys of all sequences, and up to how many of each L2 keeps those of all heads.

        None where keys are in pages, or a kernel is for any number of heads.
        """
        decls = {d.name: d.type for d in self.plan.kernel.params}
        heads = [self.memory.extent(other.axis) for other in self.plan.others]
        found = set()
        for copies in self.plan.streamed:
            tile = copies.tma_tile
            if tile is None or tile.page is not None:
                return None
            found.add(decls[copies.param].axes[tile.dims[-1]].name)
        if not heads or len(found) != 1 or not all(each.isdigit() for each in heads):
            return None
        row = sum(copies.elements for copies in self.plan.streamed) * self.plan.dtype.bytes
        return self.memory.argument(abi.extent(found.pop())), KEPT_IN_L2 // (row * math.prod(map(int, heads)))

    @property
    def width(self) -> str:
        """Return the text of the number of tiles with the same rows."""
        return " * ".join(self.memory.extent(o.axis) for o in self.plan.others) or "1"

    def other_axes(self, rest: str) -> None:
        """Write the block's index of each other parallel axis, the last axis fastest."""
        left = list(reversed(self.plan.others))
        for i, other in enumerate(left):
            count = self.memory.extent(other.axis)
            index = rest if i == len(left) - 1 else f"{rest} % {count}"
            self.memory.coordinates[other.axis] = self.let(axis_name(other.axis), index)
            rest = f"({rest}) // {count}"

    def waits(self, let: Let) -> bool:
        """Return whether a value outside the loop depends on its results."""
        found = backward_slice([let.value], self.lets)
        return any(isinstance(self.lets[value].node, Result | Loop) for value in found)

    def contracted(self, value: Value) -> bool:
        """Return whether a value varies along the contracted axis of S: producer copies alone need it."""
        dots = (let.node for let in self.plan.last.scores)
        return any(isinstance(dot, Dot) and dot.over in self.axes(value) for dot in dots)

    def bounds(self) -> tuple[Value, ...]:
        """Return where the loop starts, and where each of its parts ends."""
        return self.plan.parts[0].loop.start, *(part.loop.stop for part in self.plan.parts)

    @property
    def item(self) -> str:
        """Return the name of the work tile's index."""
        return "item" if self.plan.dynamic_schedule else "block"

    def steps(self, limits: Limits) -> tuple[Line, ...]:
        """Return the lines that compute a tile's step range in every warp: each lane takes some rows."""
        count = self.plan.rows.tile // LANES
        with self.isolated(scope=self.plan.dynamic_schedule):  # else they are beside a consumer's names
            axis = self.plan.rows.axis
            rows = self.let(axis_name(axis), self.both(f"first + lane + {LANES} * r", count))
            self.fragments, self.memory.coordinates[axis] = {}, f"{rows}[r]"
            self.write(self.needed(self.bounds()), count)
            self.uses("select", "imin", "imax")
            limits(self, *self.bounds())
        return lines(self.lines)

    def first_step(self, start: Value) -> str:
        """Return the first step of all rows, clamped to the piece of the block."""
        first, axis = self.extreme(start, "imin"), self.plan.last.loop.axis
        if axis.leaf != "piece" or axis.pieces not in self.memory.coordinates:
            return first
        count = axis.steps_of_piece
        return f"imin({first}, {self.memory.coordinates[axis.pieces]} * {count} + {count - 1})"

    def extreme(self, value: Value, pick: str) -> str:
        """Return the minimum or maximum of a row value over a tile."""
        if value not in self.rowwise:
            return self[value] if value in self.consts else f"Int32({self[value]})"
        self.uses("of_rows")
        return f"of_rows({self.text[value]}, {pick})"

    # --- copies ---------------------------------------------------------------------------------------------

    def copies(self, batch: tuple[Copies, ...], stage: str) -> tuple[Line, ...]:
        """Return the cp.async copy of tiles by a producer warpgroup, row by row."""
        loads = [x for copies in batch if isinstance(x := self.lets[copies.load].node, Load)]
        elements = [self.elements_of(load) for load in loads]
        axis = self.plan.rows.axis if self.by_row(batch[0].load) else self.plan.scores.axis
        across, down, passes = batch[0].across, batch[0].down, batch[0].passes
        with self.isolated():
            self.fragments = {}
            needed = self.needed([v for load in loads for v in self.operands_of(load)])
            self.write(let for let in needed if not {axis, *elements} & {*self.axes(let.value)})
            self.line(f"column = {batch[0].width} * (thread % {across})")
            with self.inner(f"for i in cutlass.range_constexpr({passes}):"):
                self.line(f"down = thread // {across} + {down} * i")
                index = "first + down" if axis == self.plan.rows.axis else "down"
                self.memory.coordinates[axis] = self.let(axis_name(axis), index)
                for copies, load, element in zip(batch, loads, elements, strict=True):
                    column = f"column + {copies.width * across} * j"
                    self.memory.coordinates[element] = f"({column})"
                    self.write(self.needed(self.operands_of(load)))
                    place = f"(down, {column}, {stage})" if copies.along else f"({column}, down, {stage})"
                    name = "copy_vector_where" if copies.beside is None else "copy_either_vector"
                    self.uses(name)
                    given = ", ".join(self.source(each) for each in self.sources(load))
                    with self.inner(f"for j in cutlass.range_constexpr({copies.vectors}):"):
                        self.line(f"{name}({given}, {copies.param}_tiles, {place}, {copies.width})")
        return lines(self.lines)

    def tma_loads(self, batch: tuple[Copies, ...]) -> tuple[Line, ...]:
        """Return the TMA loads of tiles."""
        self.uses("tma_load")
        with self.isolated():
            self.fragments = {}
            for copies in batch:
                assert copies.tma_tile is not None
                load, tma_tile = self.load_of(copies), copies.tma_tile
                others = [v for d, v in enumerate(load.index[:-1]) if d not in tma_tile.dims]
                if tma_tile.page is not None:
                    self.first_row_of_page(tma_tile, load)
                self.write(self.needed([tma_tile.first, *others]))
                index = "".join(f", {self.memory.coordinate(v)}" for v in others)
                of = f"{copies.param}[None, None{index}]" if others else copies.param
                begin = tma_tile.coordinate(self.memory.coordinate(tma_tile.first))
                first, shape = (begin, "0"), (copies.rows, copies.elements)
                if not copies.along:
                    first, shape = first[::-1], shape[::-1]
                given = f"tma_{copies.param}, {of}, ({', '.join(first)}), {shape}, {copies.param}_tiles"
                self.line(f"tma_load({copies.param}_ring, {PRODUCER}, {given})")
        return lines(self.lines)

    def first_row_of_page(self, tma_tile: TmaTile, load: Load) -> None:
        """Write the page of a step's first row; TMA fills with zeros where there is none, or no such row."""
        page, guard = tma_tile.page, load.guard
        assert page is not None and guard is not None
        self.memory.coordinates[self.plan.scores.axis] = "Int32(0)"
        self.write(self.needed([page, guard]))
        if self.text[page] not in self.pages:
            self.uses("select")
            found = f"select({self[guard]}, {self.memory.coordinate(page)}, Int32(-1))"
            self.text[page] = self.let("page_or_none", found)
            self.pages.add(self.text[page])

    def load_of(self, copies: Copies) -> Load:
        load = self.lets[copies.load].node
        assert isinstance(load, Load)
        return load

    def statistics(self) -> tuple[Line, ...]:
        """Return the cp.async copy of a step's row statistics: one row for each thread."""
        self.copy_statistics(range(WARPGROUP // self.plan.scores.length))
        return lines(self.lines)

    def statistics_beside_tma(self) -> tuple[Line, ...]:
        """Return the same by the last warps alone, with a pipeline of their own."""
        count = WARPGROUP // self.plan.scores.length
        given = f"{WARPGROUP - self.plan.statistics_threads}, thread, {self.plan.statistics_ring}, {PRODUCER}"
        self.uses("acquire_from", "commit_from")
        self.line(f"acquire_from({given})")
        self.copy_statistics(range(count - 1, count))
        self.line(f"commit_from({given})")
        return lines(self.lines)

    def copy_statistics(self, parts: range) -> None:
        """Write that copy; parts: groups of `chunk` threads, over which the tensors are distributed."""
        chunk, statistics = self.plan.scores.length, self.plan.row_statistics
        loads = [x for n in statistics if isinstance(x := self.lets[n.load].node, Load)]
        with self.isolated():
            self.fragments = {}
            if loads:
                self.line(f"down = thread % {chunk}")
                self.memory.coordinates[self.plan.scores.axis] = "down"
                self.uses("copy_statistic_where")
            self.write(self.needed([v for load in loads for v in self.operands_of(load)]))
            for i, load in enumerate(loads):
                mine = f"thread // {chunk} == {parts[i % len(parts)]}"
                given = f"{mine}, {self.source(load)}, {load.param}_statistics"
                self.line(f"copy_statistic_where({given}, (down, {PRODUCER}.index))")

    def sources(self, load: Load) -> list[Load]:
        """Return the loads of a factor: of a tensor, and of the one that fills its missing rows."""
        fill = None if load.fill is None else self.lets[load.fill].node
        return [load, *([fill] if isinstance(fill, Load) else [])]

    def source(self, load: Load) -> str:
        mask = self.memory.mask((), load.guard) or "Boolean(True)"
        return f"{mask}, {load.param}, {self.memory.index(load.index)}"

    def operands_of(self, load: Load) -> list[Value]:
        found = self.sources(load)
        return [v for x in found for v in (*x.index, *(() if x.guard is None else (x.guard,)))]

    def elements_of(self, load: Load) -> Axis:
        """Return the contiguous axis of a factor."""
        node = self.lets[load.index[-1]].node
        if not isinstance(node, Pos) or node.axis.chunk is not None:
            raise refused(f"{load.param} whose last dim is not contiguous", self.plan.target)
        return node.axis

    def name_step(self, name: str) -> None:
        """Set the name of the step index of the loop's last part."""
        self.text[self.plan.last.loop.body.args[0]] = name
