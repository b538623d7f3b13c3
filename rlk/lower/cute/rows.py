"""Kernels without a contraction whose blocks combine along axes: lists of threads, lanes, shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlk.ir.dims import Axis, Part, fixed_extent, union
from rlk.ir.nodes import (
    Check,
    Combine,
    Extent,
    Let,
    Load,
    Loop,
    Merge,
    Philox,
    Reduce,
    Role,
    Store,
    Value,
    const_bits,
    operands,
)
from rlk.ir.tree import Ascending, Rule, bind
from rlk.ir.types import DType, TileType, TupleType
from rlk.lower.common.arguments import tiles_of
from rlk.lower.common.lines import Line
from rlk.lower.common.liveness import live, names_read
from rlk.lower.common.names import axis_name
from rlk.lower.common.segments import Segments
from rlk.lower.common.spelling import VERBS, order_name, tile_comment
from rlk.lower.common.thread_values import ThreadValues, first_along_others, nearest_first
from rlk.lower.cute import text
from rlk.lower.cute.block_reduce import Tree, combining, merging
from rlk.lower.cute.emit import Emitter
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import (
    Frame,
    KernelText,
    build,
    framed,
    lines,
    sizes,
)
from rlk.lower.cute.plan import RowsPlan, refused
from rlk.lower.cute.reduce_steps import Where, steps
from rlk.lower.cute.vectors import RowsMemory
from rlk.passes.walk import backward_slice, walk

OF_FRAME = frozenset({"thread", "block", "c", "stream", "programs", "shared"})
MOST_REDUCE_BUFFERS = 64
_FLOATS = {Combine.ADD: "add", Combine.MAX: "fmax", Combine.MIN: "fmin"}
_INTEGERS = {Combine.ADD: "add", Combine.MAX: "imax", Combine.MIN: "imin", Combine.OR: "imax"}


@dataclass(frozen=True, slots=True)
class RowsText:
    """Template fields of a row kernel."""

    frame: Frame
    shared: tuple[Line, ...]
    body: tuple[Line, ...]
    fewest_blocks: int

    @property
    def reads_block(self) -> bool:
        """Return whether a thread depends on its block: a kernel of one block does not."""
        return {"block"} <= names_read(self.body)


def write(
    plan: RowsPlan, helpers: dict[str, Helper], checks: list[str], loop_indices: Mapping[str, str]
) -> KernelText:
    """Write a kernel whose blocks have tiles of the parallel axes."""
    emitter = RowsEmitter(plan, helpers, checks)
    emitter.write_coordinates()
    emitter.block(plan.kernel.body.lets)
    body = live(lines(emitter.lines))
    about = tile_comment("block", plan.tiled, plan.kind, plan.thread_value_layouts)
    frame, given = framed(plan, emitter, loop_indices, about)
    first = plan.tiled[0] if plan.tiled else None
    extent = "1" if first is None else emitter.memory.extent(first.axis)
    counts = [tiles_of(extent, 1 if first is None else first.tile)]
    counts += [str(o.tiles) for o in plan.tiled[1:]]
    if plan.segments is not None:
        whole, over = plan.segments.whole, plan.segments.over.name
        counts[0] = f"({whole} * {plan.segments.each} + {over})"
    return KernelText(
        template="rows.py.j2",
        subject=RowsText(frame, emitter.shared(), body, plan.fewest_blocks),
        arguments=tuple(given),
        sizes=sizes(emitter, extent),
        programs=(f"programs = {' * '.join(counts)}",),
        build=build(plan.kernel, given, emitter),
    )


class RowsEmitter(Emitter):
    """Writes one kernel; a list runs over those axes of a value of which a thread has several indices."""

    plan: RowsPlan
    memory: RowsMemory

    def __init__(self, plan: RowsPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan, helpers, checks)
        self.plan = plan
        self.names.taken |= OF_FRAME | {f"reduce_smem_{i + 1}" for i in range(MOST_REDUCE_BUFFERS)}
        self.thread_value_layouts = {s.axis: s for s in plan.thread_value_layouts}
        self.thread_bits = plan.threads.bit_length() - 1
        self.current: tuple[ThreadValues, ...] = ()  # layouts of the list that is being written
        self.reduce_buffers: dict[
            tuple[DType, tuple[int, ...], tuple[int, int]], str
        ] = {}  # of shared memory
        self.met = 0  # cross-warp exchanges so far, outside of loops
        self.inside_loop = False
        self.turn = ""  # half of a double-buffered reduction buffer, in loops with one exchange a step
        self.writers: dict[int, str] = {}
        self.memory = RowsMemory(self)

    # --- places ---------------------------------------------------------------------------------------------

    def write_coordinates(self) -> None:
        """Write tile coordinates, and the writer predicates of values that several threads have."""
        rest = "block"
        tiles: dict[Axis, str] = {}
        for tiled in reversed(self.plan.tiled[1:]):
            tiles[tiled.axis] = f"{rest} % {tiled.tiles}"
            rest = self.let("rest", f"{rest} // {tiled.tiles}") if tiled.tiles != 1 else rest
        if self.plan.segments is not None:
            rest = self.segment(self.plan.segments, rest)
        for tiled in self.plan.tiled:
            tile = tiles.get(tiled.axis, rest)
            self.memory.write_tile_coordinate(tiled, self.thread_value_layouts.get(tiled.axis), tile)
        for let in walk(self.plan.kernel.body):
            match let.node:
                case Store(index=index):
                    self.appoint(union(*(self.tile(i).axes for i in index)))
                case Check(bad=bad):
                    self.appoint(self.tile(bad).axes)
                case _:
                    pass

    def segment(self, found: Segments, tile: str) -> str:
        """Write the segment of a block's row; return the row's index in it."""
        given = tile, self.memory.extent(found.over), "cute.arch.lane_idx()", str(found.each), "1"
        owner = self.call("segment_of", found.begin, *given)
        name = self.memory.coordinates[found.over] = self.let(axis_name(found.over), owner)
        return f"{tile} - ({found.begin}[{name}].to(Int32) * {found.each} + {name})"

    def shares(self, axes: tuple[Axis, ...]) -> int:
        """Return the bits of the thread index along which a value of these axes is replicated."""
        told = 0
        for axis in axes:
            told |= self.thread_value_layouts[axis].mask if axis in self.thread_value_layouts else 0
        return self.plan.threads - 1 & ~told

    def appoint(self, axes: tuple[Axis, ...]) -> None:
        """Write the predicate of the first thread among replicas of a value."""
        bits = self.shares(axes)
        if bits and bits not in self.writers:
            alone = "thread == 0" if bits == self.plan.threads - 1 else f"(thread & {bits}) == 0"
            self.writers[bits] = self.let("writes", alone)

    def writer(self, axes: tuple[Axis, ...]) -> str:
        return self.writers.get(self.shares(axes), "")

    # --- lists ----------------------------------------------------------------------------------------------

    def lists(self, axes: Sequence[Axis]) -> tuple[ThreadValues, ...]:
        """Return the layouts of a thread's list over these axes, the last fastest."""
        return tuple(s for s in self.plan.thread_value_layouts if s.axis in axes and s.count > 1)

    @property
    def size(self) -> int:
        return math.prod(s.count for s in self.current)

    def listed(self, value: Value) -> bool:
        return bool(self.lists(self.tile(value).axes))

    def each(self, expression: str) -> str:
        return f"[{expression} for c in range({self.size})]"

    def indexed(self, name: str, axes: tuple[Axis, ...]) -> str:
        """Return the element of a list that belongs to element `c` of the one that is written."""
        own = self.lists(axes)
        if not own:
            return name
        first, last = self.current.index(own[0]), self.current.index(own[-1])
        assert self.current[first : last + 1] == own
        inner = math.prod(s.count for s in self.current[last + 1 :])
        at = self.list_index if inner == 1 else f"c // {inner}"
        return f"{name}[{at}]" if first == 0 else f"{name}[{at} % {math.prod(s.count for s in own)}]"

    def __getitem__(self, value: Value) -> str:
        if value in self.consts:
            return super().__getitem__(value)
        return self.indexed(self.text[value], self.tile(value).axes)

    def listing(self, value: Value) -> str:
        """Return a value as the list that is written now, also where it has fewer axes."""
        if value not in self.consts and self.lists(self.tile(value).axes) == self.current:
            return self.text[value]
        return self.each(self[value])

    def over(self, axes: tuple[Axis, ...], value: Value) -> str:
        """Return a value broadcast along some axes."""
        self.current = self.lists(axes)
        return self.listing(value) if self.current else self[value]

    def node(self, let: Let) -> None:
        match let.node:
            case Store(index=index, value=value):
                self.current = self.lists(union(*(self.tile(v).axes for v in (*index, value))))
            case Check(bad=bad):
                self.current = self.lists(self.tile(bad).axes)
            case Philox(counter=counter, key=key):
                self.current = self.lists(union(*(self.tile(v).axes for v in (*counter, *key))))
            case Extent(axis=axis) if self.known(axis) is not None:
                self.consts[let.value] = (const_bits(self.known(axis) or 0, DType.I32), DType.I32)
                return
            case Reduce(x=x, over=over) if over not in self.thread_value_layouts:
                self.text[let.value] = self.over(self.tile(x).axes, x)  # one element
                return
            case _ if isinstance(let.type, TileType):
                self.current = self.lists(let.type.axes)
            case _:
                self.current = ()
        super().node(let)

    def known(self, axis: Axis) -> int | None:
        return fixed_extent(axis, dict(self.plan.signature.extents))

    def position(self, let: Let, axis: Axis) -> None:
        if axis not in self.thread_value_layouts or axis in self.memory.coordinates:
            super().position(let, axis)
            return
        thread_values = self.thread_value_layouts[axis]
        place = thread_values.place(self.thread_bits)
        place = place if thread_values.threads else f"Int32({place})"
        self.text[let.value] = self.let(
            let.name or axis_name(axis), self.each(place) if self.current else place
        )

    # --- combining ------------------------------------------------------------------------------------------

    def tree(self, reduce: Reduce) -> Tree:
        thread_values, dtype = self.thread_value_layouts[reduce.over], self.tile(reduce.x).dtype
        combine = (_FLOATS if dtype.is_float else _INTEGERS).get(reduce.fn)
        if combine is None:
            raise refused(f"{reduce.fn.value} of {dtype} over {reduce.over}", self.plan.target)
        return combining(thread_values, self.lists(self.tile(reduce.x).axes), self.order(reduce), combine)

    def order(self, node: Reduce | Merge) -> Sequence[int]:
        """Return the index bits of the combined axis in the order in which they are paired away."""
        thread_values = self.thread_value_layouts[node.over]
        if isinstance(node, Reduce) and not self.ordered(node):
            return nearest_first(thread_values)
        assert node.order is not None and not isinstance(node.order, Ascending)
        return bind(node.order, thread_values.length).order

    def ordered(self, reduce: Reduce) -> bool:
        is_float = self.tile(reduce.x).dtype.is_float
        return reduce.fn is Combine.ADD and is_float and reduce.order is not None

    def reduced(self, let: Let, reduce: Reduce) -> str:
        tree, dtype = self.tree(reduce), self.tile(reduce.x).dtype
        order = order_name(reduce.order or Rule.HALVING) if self.ordered(reduce) else "in any order"
        about = f"The {VERBS[reduce.fn]} over {reduce.over}, {order}."
        many = bool(self.lists(self.tile(let.value).axes))
        made = self.combiner(
            f"{VERBS[reduce.fn]}_over_{axis_name(reduce.over)}", ("x",), about, tree, "x" if many else "x[0]"
        )
        given = self.over(self.tile(reduce.x).axes, reduce.x)
        x = given if self.current else f"[{given}]"
        if dtype is DType.BOOL:
            one = self.memory.one
            x = f"[{self.call('select', one, 'Int32(1)', 'Int32(0)')} for {one} in {x}]"
            found = f"{made}({', '.join([x, *self.beside(tree, (DType.I32,))])})"
            return f"[{one} != 0 for {one} in {found}]" if many else f"{found} != 0"
        return f"{made}({', '.join([x, *self.beside(tree, (dtype,))])})"

    def combiner(self, name: str, arguments: tuple[str, ...], about: str, tree: Tree, result: str) -> str:
        """Return the name of a helper that combines along an axis."""
        given = list(arguments)
        given += ["thread"] * tree.thread
        given += ["reduce_buffers"] * bool(tree.reduce_buffers)
        self.uses(*tree.calls)
        return self.helper(name, ", ".join(given), about, (*tree.lines, Line(f"return {result}")))

    def beside(self, tree: Tree, dtypes: tuple[DType, ...]) -> list[str]:
        """Return the other arguments of a reduction: the thread, and buffers in shared memory."""
        reduce_buffers = []
        for count in tree.reduce_buffers:
            self.met += not self.inside_loop
            for i, dtype in enumerate(dtypes):
                shape = (2, count, self.plan.threads) if self.turn else (count, self.plan.threads)
                name = self.reduce_smem(dtype, shape, i)
                reduce_buffers.append(f"{name}[{self.turn}, None, None]" if self.turn else name)
        return ["thread"] * tree.thread + ([f"({', '.join(reduce_buffers)},)"] if reduce_buffers else [])

    def reduce_smem(self, dtype: DType, shape: tuple[int, ...], index: int) -> str:
        """Return the buffer of this exchange: outside of loops two buffers alternate."""
        meeting = len(self.reduce_buffers) + 2 if self.inside_loop else self.met % 2
        key = dtype, shape, (meeting, index)
        if key not in self.reduce_buffers:
            self.reduce_buffers[key] = f"reduce_smem_{len(self.reduce_buffers) + 1}"
        return self.reduce_buffers[key]

    def shared(self) -> tuple[Line, ...]:
        """Return the allocations of reduction buffers; refuse more than the target has."""
        size = sum(dtype.bytes * math.prod(shape) for dtype, shape, _ in self.reduce_buffers)
        if size > self.plan.target.shared << 10:
            raise refused(f"{size} bytes of shared memory for sums", self.plan.target)
        found = [Line("shared = utils.SmemAllocator()")] if self.reduce_buffers else []
        for (dtype, shape, _), name in self.reduce_buffers.items():
            strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
            layout = f"cute.make_layout({shape}, stride={strides})"
            found.append(Line(f"{name} = shared.allocate_tensor({text.TYPES[dtype]}, {layout}, 16)"))
        return tuple(found)

    def merge(self, let: Let, merge: Merge) -> None:
        if isinstance(merge.order, Ascending) or merge.onto is not None:
            raise refused(f"pieces of {merge.over} merged in one launch", self.plan.target, let.loc)
        assert isinstance(let.type, TupleType)
        if merge.over not in self.thread_value_layouts:  # one element
            pairs = zip(let.type.items, merge.states, strict=True)
            self.many[let.value] = tuple(self.over(item.axes, s) for item, s in pairs)
            return
        axes = union(*(self.tile(s).axes for s in merge.states))
        given = [self.over(axes, s) for s in merge.states]
        thread_values, state, lists = (
            self.thread_value_layouts[merge.over],
            merge.monoid.symbols,
            self.current,
        )
        tree = merging(thread_values, lists, self.order(merge), state, self.merger(merge))
        left = tuple(s for s in lists if s.axis != merge.over)
        result = ", ".join(s if left else f"{s}[0]" for s in state)
        about = f"The states merged over {merge.over}, {order_name(merge.order)}."
        name = self.combiner(
            f"{merge.monoid.kind.value}_over_{axis_name(merge.over)}", state, about, tree, result
        )
        made = tuple(self.names.fresh(s) for s in state)
        terms = [x if lists else f"[{x}]" for x in given]
        dtypes = tuple(self.tile(s).dtype for s in merge.states)
        self.line(f"{', '.join(made)} = {name}({', '.join([*terms, *self.beside(tree, dtypes)])})")
        self.many[let.value] = tuple(
            self.among(left, item.axes, x) for item, x in zip(let.type.items, made, strict=True)
        )

    def among(self, left: tuple[ThreadValues, ...], axes: tuple[Axis, ...], name: str) -> str:
        """Return a thread's elements along some axes of a list along more, where they are repeated."""
        self.current = self.lists(axes)
        if self.current == left:
            return name
        at = first_along_others(self.current, left)
        return self.let(name, self.each(f"{name}[{at}]") if self.current else f"{name}[0]")

    # --- loops ----------------------------------------------------------------------------------------------

    def loop(self, let: Let, loop: Loop) -> None:
        """Write a loop that is uniform over the block; loop-carried values are its only variables."""
        if any(
            axis in self.thread_value_layouts for v in (loop.start, loop.stop) for axis in self.tile(v).axes
        ):
            what = f"a stream of {loop.axis.whole} whose bounds differ between the elements of a tile"
            raise refused(what, self.plan.target, let.loc)
        first = [self.over(t.axes, v) for v, t in zip(loop.init, loop.types, strict=True)]
        if loop.start == loop.stop:
            self.many[let.value] = tuple(first)
            return
        carried = []
        for i, (init, type) in enumerate(zip(first, loop.types, strict=True)):
            hint = self.yields.get((let.value, i)) or f"{axis_name(loop.axis)}_state"
            carried.append(self.let(hint, f"tuple({init})" if self.lists(type.axes) else init))
        self.many[let.value] = tuple(carried)
        step, *args = loop.body.args
        self.text.update(zip(args, carried, strict=True))
        start, stop = (self.operand(v, step) for v in (loop.start, loop.stop))
        early = self.early(loop) if self.plan.ahead and loop.exists is None else []
        place = self.place
        queues = self.read_ahead(loop, early, start, stop)
        self.place = place
        name = self.names.fresh(f"{axis_name(loop.axis)}_step")
        meetings = self.meetings(loop)
        if meetings and self.inside_loop:
            self.line("cute.arch.sync_threads()")  # reads of the buffer must end before it is overwritten
        last, unroll = stop, self.plan.unroll
        if loop.axis.part is Part.PIECE and loop.exists is not None and unroll > 1 and start == "0":
            # steps that are left over would wait for their loads one by one
            last = f"({stop} + {unroll - 1}) // {unroll} * {unroll}"
        with self.inner(f"for {name} in cutlass.range({start}, {last}, unroll={unroll}):"):
            before = self.turn, self.inside_loop
            self.turn, self.inside_loop = f"{name} % 2" if meetings == 1 else "", True
            coming = self.of_step(loop, early, f"{name} + {self.plan.ahead}", stop)
            self.text[step] = name
            self.text.update({load.value: queue[0] for load, queue in zip(early, queues, strict=True)})
            self.block(self.needed(loop, early))
            new = []
            for v, type in zip(loop.body.results, loop.types, strict=True):
                made = self.over(type.axes, v)
                new.append(f"tuple({made})" if self.lists(type.axes) else made)
            moved = [x for queue, last in zip(queues, coming, strict=True) for x in (*queue[1:], last)]
            variables = [*carried, *(x for queue in queues for x in queue)]
            if variables:
                self.line(f"{', '.join(variables)} = {', '.join([*new, *moved])}")
            self.turn, self.inside_loop = before

    def meetings(self, loop: Loop) -> int:
        """Return the cross-warp exchanges of a loop step."""
        count = 0
        for let in loop.body.lets:
            match let.node:
                case Reduce(over=over) | Merge(over=over) as node if over in self.thread_value_layouts:
                    found = steps(
                        self.thread_value_layouts[over], self.lists((over,)), self.order(node), halving=False
                    )
                    count += sum(each.where is Where.WARPS for each in found)
                case _:
                    pass
        return count

    def early(self, loop: Loop) -> list[Let]:
        """Return the loads that can be prefetched: they depend on the step index alone."""
        inside = {let.value: let for let in loop.body.lets}
        inputs = {d.name for d in self.plan.kernel.params if d.role is Role.IN}
        return [
            let
            for let in loop.body.lets
            if isinstance(let.node, Load)
            and let.node.param in inputs
            and not any(isinstance(each.node, Load | Reduce) for each in self.needs(let, inside))
            and not any(v in loop.body.args[1:] for e in self.needs(let, inside) for v in operands(e.node))
            and not any(v in loop.body.args[1:] for v in operands(let.node))
        ]

    def needs(self, let: Let, inside: Mapping[Value, Let]) -> list[Let]:
        """Return the backward slice of a value inside a step, in order."""
        wanted = backward_slice(operands(let.node), inside)
        return [each for value, each in inside.items() if value in wanted]

    def needed(self, loop: Loop, early: list[Let]) -> list[Let]:
        """Return the values that a step still computes when some of its loads are prefetched."""
        inside = {let.value: let for let in loop.body.lets}
        theirs = {each.value for let in early for each in self.needs(let, inside)}
        used, found = set(loop.body.results), []
        for let in reversed(loop.body.lets):
            if let in early or let.value in theirs - used:
                continue
            used |= _reads(let)
            found.append(let)
        return found[::-1]

    def of_step(self, loop: Loop, early: list[Let], step: str, stop: str) -> list[str]:
        """Write the prefetches of a step, predicated on its existence; return their names."""
        if not early:
            return []
        inside = {let.value: let for let in loop.body.lets}
        wanted = {each.value for let in early for each in self.needs(let, inside)}
        before = dict(self.text)
        index = self.let(f"next_{axis_name(loop.axis)}", step)
        self.memory.ahead = self.let("comes", f"{index} < {stop}")
        self.text[loop.body.args[0]] = index
        self.block([let for let in loop.body.lets if let.value in wanted or let in early])
        self.memory.ahead = ""
        made = [f"tuple({self.text[e.value]})" if self.listed(e.value) else self.text[e.value] for e in early]
        self.text = before
        return made

    def read_ahead(self, loop: Loop, early: list[Let], start: str, stop: str) -> list[list[str]]:
        """Write the prefetches of the first steps; return the queue variables of each load."""
        queues: list[list[str]] = [[] for _ in early]
        if not early:
            return queues
        for turn in range(self.plan.ahead):
            first = f"Int32({int(start) + turn})" if start.isdigit() else f"{start} + {turn}"
            made = self.of_step(loop, early, first, stop)
            for queue, let, given in zip(queues, early, made, strict=True):
                assert isinstance(let.node, Load)
                queue.append(self.let(f"{let.node.param}_ahead", given) if self.listed(let.value) else given)
        return queues


def _reads(let: Let) -> set[Value]:
    """Return the values that a node takes, those of the body of a loop included."""
    found = set(operands(let.node))
    if isinstance(let.node, Loop):
        found |= set(let.node.body.results)
        for each in walk(let.node.body):
            found |= set(operands(each.node))
            found |= set(each.node.body.results) if isinstance(each.node, Loop) else set()
    return found
