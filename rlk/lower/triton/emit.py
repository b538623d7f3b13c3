"""Emitter of Triton kernels: one line for each IR node, in the order of the IR."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import assert_never

from rlk.errors import Code, InternalError, LoweringError
from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import (
    Bits,
    Cast,
    Check,
    Combine,
    Const,
    Dot,
    Extent,
    Fma,
    Fn2,
    Keep,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    MathFn,
    MathModel,
    Merge,
    Param,
    Philox,
    Pos,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
    const_value,
    operands,
)
from rlk.ir.tree import Ascending
from rlk.ir.types import DType, TileType
from rlk.lower.common.emitter import StatementEmitter
from rlk.lower.common.hoist_loads import load_levels
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.liveness import live
from rlk.lower.common.names import Names, axis_name, stem
from rlk.lower.common.one_hot import OneHotSum, one_hot_sums
from rlk.lower.common.prelude import Helper, Helpers
from rlk.lower.common.rescale import rescale_of
from rlk.lower.common.spelling import VERBS, constant_cast
from rlk.lower.common.static import Static
from rlk.lower.triton import text
from rlk.lower.triton.addresses import Addresses
from rlk.lower.triton.attention import Attention
from rlk.lower.triton.contract import Dots
from rlk.lower.triton.functions import float_literal, functions, portable
from rlk.lower.triton.in_pieces import in_pieces
from rlk.lower.triton.masks import is_whole
from rlk.lower.triton.parts import in_parts
from rlk.lower.triton.plan import TritonPlan
from rlk.lower.triton.reductions import merging, pairs_of, tree, unordered
from rlk.passes.by_index import names_steps
from rlk.passes.rotation import Window
from rlk.passes.walk import walk
from rlk.target.facts import HOPPER

MOST_CARRIED = 16  # elements of a lane that an unrolled loop carries


class Emitter(StatementEmitter):
    """Writes one kernel, all elements of a program's tile at once."""

    def __init__(self, plan: TritonPlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan.kernel, Names(), Helpers(functions(), helpers), checks)
        self.plan = plan
        self.variables: set[str] = set()  # of loops: the only names that are assigned twice
        inside = {d.axis: 1 for d in plan.dims}
        for dim in plan.dims:
            inside[dim.axis] *= dim.length
        tiled = {s.axis for s in plan.tiled}
        self.static = Static({a: n for a, n in inside.items() if a not in tiled})
        self.lets = {let.value: let for let in walk(plan.kernel.body)}
        self.nodes = {value: let.node for value, let in self.lets.items()}
        lets = [*walk(plan.kernel.body)]
        self.readers = Counter(v for let in lets for v in operands(let.node))
        self.read_here = {v for let in lets if not isinstance(let.node, Store) for v in operands(let.node)}
        self.read_here |= {v for let in lets if isinstance(let.node, Loop) for v in let.node.body.results}
        self.reductions = Counter((n.fn, n.over) for n in self.nodes.values() if isinstance(n, Reduce))
        self.bounds: dict[tuple[Value, str], str] = {}
        self.pairs: dict[Value, Let] = {}  # of sums: the second by the first
        sums = one_hot_sums(plan.kernel).items()
        self.one_hot = {v: p for v, p in sums if p.lane in inside and not self.shape(p.first)}
        self.waiting = {let.value for p in self.one_hot.values() for let in p.inside}
        self.addresses = Addresses(self)
        self.dots: Dots | Attention = Dots(self) if plan.outer is None else Attention(self)

    # --- writing --------------------------------------------------------------------------------------------

    @contextmanager
    def inner(self, header: str) -> Iterator[None]:
        """Indent what follows below a header; names given inside end with it."""
        with super().inner(header):
            yield
        self.dots.leave()

    def shape(self, value: Value) -> tuple[int, ...]:
        return self.plan.shape(self.tile(value).axes)

    def __getitem__(self, value: Value) -> str:
        """Return the text of a value as an operand: a name, or a literal."""
        return self.literal(value) if value in self.consts else self.text[value]

    def literal(self, value: Value) -> str:
        """Return the text of a constant."""
        number = const_value(*self.consts[value])
        if not isinstance(number, float):
            return repr(number)
        if number == 0 and math.copysign(1.0, number) < 0:
            return self.helpers.call("negative_zero")
        return float_literal(number)

    def typed(self, value: Value) -> str:
        """Return the text of a value with its dtype, also where Triton sees nothing but literals."""
        if value not in self.consts or self.consts[value][1] is DType.F32:
            return self[value]
        return f"tl.full((), {self[value]}, {text.TYPES[self.consts[value][1]]})"

    # --- the kernel -----------------------------------------------------------------------------------------

    def run(self) -> tuple[Line, ...]:
        """Write the whole body."""
        self.dots.prepare()
        with self.addresses.programs():
            if self.plan.schedule.parts > 1:
                in_parts(self, self.plan.kernel.body.lets)
            else:
                in_pieces(self, self.plan.kernel.body.lets)
            if self.plan.remainder is not None:
                self.remainder(self.plan.remainder.axis)
        return live(self.lines)

    def remainder(self, axis: Axis) -> None:
        """Write once more what a kernel computes along an axis, for its last elements."""
        along: set[Value] = {v for v, t in self.types.items() if isinstance(t, TileType) and axis in t.axes}
        lets = self.plan.kernel.body.lets
        for let in lets:  # words of random numbers, stores and checks have no axes of their own
            if any(v in along for v in operands(let.node)):
                along.add(let.value)
        with self.addresses.last_elements():
            self.block(tuple(let for let in lets if let.value in along))

    def note(self, let: Let) -> None:
        super().note(let)
        self.static.note(let)

    def node(self, let: Let) -> None:
        """Write one node."""
        match let.node:
            case _ if let.value in self.dots.never_materialized | self.waiting:
                pass
            case Select() if let.value in self.dots.masked:
                assert isinstance(self.dots, Attention)
                self.text[let.value] = self.dots.choice(let)
            case Dot():
                self.text[let.value] = self.dots.dot(let)
            case Const(bits=bits):
                self.consts[let.value] = (bits, self.tile(let.value).dtype)
            case Cast(x=x, dtype=dtype) if made := constant_cast(self.consts.get(x), dtype):
                self.consts[let.value] = made
            case Param(name=name):
                self.text[let.value] = name
            case Pos(axis=axis):
                self.position(let, axis)
            case Extent(axis=axis):
                self.text[let.value] = self.addresses.extent(axis)
            case Load() if let.value in self.dots.turned:
                assert isinstance(self.dots, Attention)
                self.text[let.value] = self.dots.factor(let)
            case Load() as load:
                self.text[let.value] = self.addresses.load(load, let)
            case Store() as store:
                self.addresses.store(store)
            case Check(bad=bad, what=what):
                self.addresses.check(bad, what)
            case Reduce(x=x, over=over) if not any(d.axis == over for d in self.plan.dims):
                self.text[let.value] = self[x]  # one element
            case Reduce() as reduce if let.value in self.one_hot:
                self.pick(let, reduce, self.one_hot[let.value])
            case Reduce() if let.value in self.text:
                pass  # written with the one that it is a pair of
            case Reduce() as reduce if let.value in self.pairs:
                self.both(let, self.pairs[let.value])
            case Reduce() as reduce:
                name = let.name or f"{VERBS[reduce.fn]}_{axis_name(reduce.over)}"
                self.text[let.value] = self.let(name, self.reduced(reduce))
            case Merge() as merge:
                self.merge(let, merge)
            case Loop() as loop:
                self.loop(let, loop)
            case Result(of=of, index=index):
                self.text[let.value] = self.many[of][index]
            case Map1() | Map2() | Math() | Fma() | Select() | Cast() | Bits():
                self.elementwise(let)
            case Philox(counter=counter, key=key):
                self.random(let, (*counter, *key))
            case Stream() | Keep():
                raise InternalError(Code.NODE_NOT_CORE, let.loc, node=type(let.node).__name__)
            case _:
                assert_never(let.node)

    def position(self, let: Let, axis: Axis) -> None:
        """Write the indices of an axis: those of a program's tile, or all of an axis that it has whole."""
        if axis in self.addresses.coordinates:
            self.text[let.value] = self.addresses.coordinates[axis]
        elif not any(d.axis == axis for d in self.plan.dims):
            self.consts[let.value] = (0, DType.I32)
        else:
            self.text[let.value] = self.let(let.name or axis_name(axis), self.addresses.indices(axis))

    # --- elementwise ----------------------------------------------------------------------------------------

    def lane(self, window: Window) -> str:
        """Return the text of the places in a chunk."""
        place = self.nodes[window.place]
        assert isinstance(place, Map2)
        return self[place.b]

    def elementwise(self, let: Let) -> None:
        match let.node:
            case Map2() if let.value in self.plan.windows:
                place = self.addresses.rotated(self.plan.windows[let.value])
                self.text[let.value] = self.let(let.name or stem(let), place)
                return
            case Map2(fn=Fn2.MIN | Fn2.MAX as fn, a=a, b=b) if self.static.smaller(a, b) is not None:
                smaller = self.static.smaller(a, b)
                assert smaller is not None
                chosen = smaller if fn is Fn2.MIN else (b if smaller == a else a)
                if self.tile(chosen).axes == self.tile(let.value).axes:
                    self.text[let.value] = self[chosen]
                    return
        self.text[let.value] = self.let(let.name or stem(let), self.expression(let))

    def expression(self, let: Let) -> str:
        """Return the right-hand side of an elementwise node."""
        match let.node:
            case Map1(fn=fn1, x=x):
                return text.map1(fn1, self.typed(x), self.tile(x).dtype)
            case Map2(fn=Fn2.DIV, a=a, b=b) if self.one_divisor(a, b):
                return self.helpers.call("divided", self[a], self[b])
            case Map2(fn=fn2, a=a, b=b):
                return self.binary(fn2, a, b)
            case Math(fn=fn, x=x, model=model):
                return f"{self.function(fn, model)}({self[x]})"
            case Fma(a=a, b=b, c=c):
                return f"tl.fma({self[a]}, {self[b]}, {self[c]})"
            case Select(cond=cond, a=a, b=b):
                one = self.typed(a) if b in self.consts else self[a]
                return f"tl.where({self[cond]}, {one}, {self[b]})"
            case Cast(x=x, dtype=DType.F16) if self.plan.target.vendor == "amd" and self.is_product(x):
                return self.helpers.call("signed_half", self[x])
            case Cast(x=x, dtype=dtype) if dtype.is_float8 and self.plan.target.name == HOPPER:
                # its conversion rounds, saturates and writes NaN as the portable one does
                made = f"{self.receiver(x)}.to({text.FLOAT8[dtype]}).to(tl.uint8, bitcast=True)"
                return self.helpers.call("byte_alone", made) if let.value in self.read_here else made
            case Cast(x=x, dtype=dtype) if dtype.is_float8:
                return f"{self.conversion(f'to_{dtype}')}({self.receiver(x)}).to({text.TYPES[dtype]})"
            case Cast(x=x) if self.tile(x).dtype.is_float8:
                return f"{self.conversion(f'from_{self.tile(x).dtype}')}({self[x]}.to(tl.int32))"
            case Cast(x=x, dtype=dtype):
                return f"{self.receiver(x)}.to({text.TYPES[dtype]})"
            case Bits(x=x, dtype=dtype):
                return f"{self.receiver(x)}.to({text.TYPES[dtype]}, bitcast=True)"
            case _:
                raise AssertionError(let.node)

    def random(self, let: Let, words: tuple[Value, ...]) -> None:
        """Write a block of random words over all axes of its counter and key."""
        made = tuple(self.names.fresh(f"word{i}") for i in range(4))
        self.line(f"{', '.join(made)} = {self.helpers.call('philox', *map(self.receiver, words))}")
        self.many[let.value] = made

    def is_product(self, value: Value) -> bool:
        """Return whether a value is a product of two f32."""
        match self.nodes.get(value):
            case Map2(fn=Fn2.MUL):
                return self.tile(value).dtype is DType.F32
            case _:
                return False

    def one_divisor(self, a: Value, b: Value) -> bool:
        """Return whether the sums of a row are divided by one number, so that they can share a reciprocal.

        On Hopper alone: for sm_100a, whose sums are in a memory of their own, Triton 3.6 does not compile it.
        """
        if self.plan.outer is None or self.plan.target.name != HOPPER:
            return False
        if a in self.consts or b in self.consts:
            return False
        shapes = self.shape(a), self.shape(b)
        return self.tile(a).dtype is DType.F32 and len(shapes[1]) == 2 and shapes[0][1] > shapes[1][1] == 1

    def receiver(self, value: Value) -> str:
        """Return the text of a value that a method is called on."""
        if value not in self.consts:
            return self[value]
        return f"tl.full((), {self.literal(value)}, {text.TYPES[self.consts[value][1]]})"

    def binary(self, fn: Fn2, a: Value, b: Value) -> str:
        dtype = self.tile(a).dtype
        if a in self.consts and b in self.consts:
            return text.map2(fn, self.receiver(a), self[b], dtype)
        if a in self.consts:
            turned = text.swapped(fn, self[a], self[b], dtype)
            return turned or text.map2(fn, self.typed(a), self[b], dtype)
        return text.map2(fn, self[a], self[b], dtype)

    def function(self, fn: MathFn, model: MathModel) -> str:
        """Return the name of a transcendental function, adding its definition to the helpers."""
        match model:
            case MathModel.SM90:
                if fn is not MathFn.EXP2 or self.plan.target.softmax is not MathModel.SM90:
                    raise LoweringError(
                        f"{fn.value} as {model.value} computes it",
                        'math="portable"',
                        backend="triton",
                        target=self.plan.target.name,
                    )
                return "tl.exp2"
            case MathModel.PORTABLE:
                made = portable(fn.value)
                self.helpers.add(made)
                return made.name
            case MathModel.SOFTMAX:
                raise InternalError(Code.INTERNAL, what="softmax folds are bound to no model")

    def conversion(self, name: str) -> str:
        """Return the name of a conversion of 8-bit floats, adding its definition to the helpers."""
        made = portable(name)
        self.helpers.add(made)
        return made.name

    # --- combining ------------------------------------------------------------------------------------------

    def reduced(self, reduce: Reduce) -> str:
        """Return the right-hand side of a reduction."""
        type, over, fn, order = self.tile(reduce.x), reduce.over, reduce.fn, reduce.order
        ordered = fn is Combine.ADD and type.dtype.is_float and order is not None

        def make(unique: str) -> Function:
            if ordered and order is not None:
                return tree(unique, self.plan.dims_of(type.axes), type.axes, over, order)
            chain = self.reductions[fn, over] > 2
            return unordered(unique, fn, self.plan.dims_of(type.axes), type.axes, over, chain)

        return f"{self.helpers.define(f'{VERBS[fn]}_over_{axis_name(over)}', make)}({self[reduce.x]})"

    def block(self, lets: Sequence[Let]) -> None:
        """Write nodes in their order, but the second sum of a pair with the first.

        Sums that a schedule keeps inside of a warp have no steps to share, nor those of a product's tile.
        """
        schedule = self.plan.schedule
        if self.plan.kind in ("rows", "merge") and schedule.warps > 1 and not schedule.placed:
            found, lets = pairs_of(lets, self.summed)
            self.pairs |= found
        super().block(lets)

    def summed(self, let: Let) -> tuple[object, ...] | None:
        """Return what two sums must have in common to be a pair; None for what is no sum in a fixed order."""
        match let.node:
            case Reduce(fn=Combine.ADD, x=x, over=over, order=order) if order is not None:
                type = self.tile(x)
                alone = x in self.consts or let.value in self.one_hot or let.value in self.waiting
                inside = any(d.axis == over for d in self.plan.dims)
                # both tiles of chunks would be in registers: a loss of 16.8 M tokens takes 138 us, not 124
                whole = over.part is Part.ALL or not self.plan.tiled
                return (type, over, order) if type.dtype.is_float and inside and whole and not alone else None
            case _:
                return None

    def both(self, first: Let, second: Let) -> None:
        """Write two sums of one order: their steps between threads are common."""
        one, other = first.node, second.node
        assert isinstance(one, Reduce) and isinstance(other, Reduce)
        over, order, axes = one.over, one.order, self.tile(one.x).axes
        assert order is not None
        name = self.helpers.define(
            f"sums_over_{axis_name(over)}",
            lambda unique: tree(unique, self.plan.dims_of(axes), axes, over, order, pair=True),
        )
        made = [self.names.fresh(let.name or f"sum_{axis_name(over)}") for let in (first, second)]
        self.line(f"{', '.join(made)} = {name}({self[one.x]}, {self[other.x]})")
        self.text.update(zip((first.value, second.value), made, strict=True))

    def pick(self, let: Let, reduce: Reduce, one_hot: OneHotSum) -> None:
        """Write a sum of -0.0 everywhere but at an index, for the tiles that have the index of some row."""
        length = math.prod(d.length for d in self.plan.dims if d.axis == one_hot.lane)
        shape = self.shape(one_hot.wanted)
        name = self.let(let.name or f"selected_{axis_name(one_hot.lane)}", self.nothing(self.tile(let.value)))
        ahead = self.let("ahead", f"{self[one_hot.wanted]} - {self[one_hot.first]}")
        here = self.let("here", f"({ahead} >= 0) & ({ahead} < {length})")
        if shape:
            here = f"tl.max(tl.reshape({here}.to(tl.int32), ({math.prod(shape)},)), 0) > 0"
        with self.inner(f"if {here}:"):
            self.waiting -= {each.value for each in one_hot.inside}
            self.block(one_hot.inside)
            self.line(f"{name} = {self.reduced(reduce)}")
        self.text[let.value] = name

    def nothing(self, type: TileType) -> str:
        """Return the sum of no elements."""
        zero = self.helpers.call("negative_zero")
        return f"tl.full({self.plan.shape(type.axes)}, {zero}, {text.TYPES[type.dtype]})"

    def merge(self, let: Let, merge: Merge) -> None:
        over, axes, order = merge.over, self.tile(merge.states[0]).axes, merge.order
        if order is Ascending.ASCENDING:
            raise InternalError(Code.INTERNAL, let.loc, what=f"pieces of {over} merged in one launch")
        state = merge.monoid.symbols
        if not any(d.axis == over for d in self.plan.dims):
            self.many[let.value] = tuple(self[s] for s in merge.states)
            return
        dtypes = tuple(self.tile(s).dtype for s in merge.states)
        kind = merge.monoid.kind.value
        combine = self.helpers.define(f"merge_{kind}", lambda unique: self.merger(unique, merge, dtypes))
        name = self.helpers.define(
            f"{kind}_over_{axis_name(over)}",
            lambda unique: merging(unique, state, combine, self.plan.dims, axes, over, order),
        )
        given = ", ".join(self.whole(s, axes) for s in merge.states)
        made = tuple(self.names.fresh(s) for s in state)
        self.line(f"{', '.join(made)} = {name}({given})")
        self.many[let.value] = made

    def whole(self, value: Value, axes: tuple[Axis, ...]) -> str:
        """Return a value's text, broadcast to the shape of these axes where it has fewer."""
        shape = self.plan.shape(axes)
        if value not in self.consts and self.shape(value) == shape:
            return self[value]
        if not shape:
            return self.typed(value)
        if value in self.consts:
            return f"tl.full({shape}, {self.literal(value)}, {text.TYPES[self.consts[value][1]]})"
        return f"tl.broadcast_to({self[value]}, {shape})"

    def merger(self, name: str, merge: Merge, dtypes: tuple[DType, ...]) -> Function:
        """Return the function that merges two states of a monoid, with values of its own."""
        inner = Emitter(replace(self.plan, windows={}), self.helpers.found, self.checks)
        return inner.merge_function(name, merge, dtypes)

    # --- loops ----------------------------------------------------------------------------------------------

    def loop(self, let: Let, loop: Loop) -> None:
        whole = is_whole(loop)
        runs_full = not whole and loop.full is not None and loop.full == loop.stop
        start = self.bound(loop.start, "tl.min") if whole else self.begin(loop)
        stop = self.bound(loop.stop, "tl.min" if runs_full else "tl.max")
        carried = self.carry(let.value, loop)
        self.many[let.value] = carried
        if start == stop:
            return
        step, *args = loop.body.args
        self.dots.enter(loop)
        name = self.names.fresh(f"{axis_name(loop.axis)}_step")
        options = self.loop_options(loop)
        if self.plan.kind == "merge" and loop.exists is not None and start == "0" and self.unrolled(loop):
            # steps that are left over would wait for their loads one by one
            many = self.plan.schedule.unroll
            stop = f"({stop} + {many - 1}) // {many} * {many}"
        with self.inner(f"for {name} in tl.range({start}, {stop}{options}):"):
            self.text[step] = name
            for arg, variable in zip(args, carried, strict=True):
                self.text[arg] = variable
            with self.named(loop, name):
                self.steps(loop)
                self.assign(carried, loop.body.results, loop.types)
        self.names.taken.discard(name)

    def named(self, loop: Loop, step: str) -> AbstractContextManager[None]:
        """Write the condition that a row of the tile names a step, where each row names one."""
        shape = self.shape(loop.start)
        if not shape or not names_steps(loop, self.lets):
            return nullcontext()
        here = f"({self[loop.start]} == {step}).to(tl.int32)"
        return self.inner(f"if tl.max(tl.reshape({here}, ({math.prod(shape)},)), 0) > 0:")

    def begin(self, loop: Loop) -> str:
        """Return the start of a loop: the largest of `first`, for the loop after full steps begin."""
        if loop.first is None:
            return self.bound(loop.start, "tl.min")
        first = self.bound(loop.first, "tl.max")
        if loop.start == loop.first:
            return first
        return self.let("rest", f"tl.maximum({first}, {self.bound(loop.start, 'tl.min')})")

    def steps(self, loop: Loop) -> None:
        """Write a loop's body, with conditional rescaling and the values that only it needs under `if`."""
        found = rescale_of(loop)
        if found is None:
            self.levels(loop.body.lets)
            return
        waiting, types = found.waiting, [self.tile(old) for _, old, _ in found.changes]
        at = next(i for i, let in enumerate(loop.body.lets) if let.value == found.at)
        self.block(tuple(let for let in loop.body.lets[:at] if let.value not in waiting))
        variables = tuple(self.text[old] for _, old, _ in found.changes)
        with self.inner(f"if {self[found.condition]}:"):
            self.block(found.rare)
            self.assign(variables, tuple(new for _, _, new in found.changes), types)
        self.text.update(zip((value for value, _, _ in found.changes), variables, strict=True))
        self.block(tuple(let for let in loop.body.lets[at:] if let.value not in waiting))

    def levels(self, lets: tuple[Let, ...]) -> None:
        """Write a step; if the schedule says so, with barriers around loads at loaded indices.

        ptxas moves no load across one. Else it waits for a thread's first index before it loads at the next:
        18 times for 16 tokens of a loss.
        """
        inputs = frozenset(d.name for d in self.plan.kernel.params if d.role is Role.IN)
        apart = self.plan.schedule.levels and self.plan.target.vendor == "nvidia"
        found = load_levels(lets, inputs) if apart else [lets]
        for i, level in enumerate(found):
            if i:
                self.line("tl.debug_barrier()")
            self.block(level)

    def assign(
        self, variables: tuple[str, ...], values: tuple[Value, ...], types: Sequence[TileType]
    ) -> None:
        """Write the carried values of a loop's next step."""
        new = [self.whole(v, t.axes) for v, t in zip(values, types, strict=True)]
        moved = [(x, y) for x, y in zip(variables, new, strict=True) if x != y]
        if moved:
            self.line(f"{', '.join(x for x, _ in moved)} = {', '.join(y for _, y in moved)}")

    def loop_options(self, loop: Loop) -> str:
        schedule = self.plan.schedule
        stages = f", num_stages={schedule.stages}" if schedule.stages > 1 else ""
        return stages + (f", loop_unroll_factor={schedule.unroll}" if self.unrolled(loop) else "")

    def unrolled(self, loop: Loop) -> bool:
        """Return whether a loop is unrolled as its schedule says."""
        schedule = self.plan.schedule
        carried = sum(math.prod(self.plan.shape(type.axes)) for type in loop.types)
        # arithmetic bounds a loop that carries more, whose compilation takes as long as its text
        return schedule.unroll > 1 and carried <= MOST_CARRIED * schedule.warps * self.plan.target.warp

    def carry(self, value: Value, loop: Loop) -> tuple[str, ...]:
        """Give every carried value a variable that holds its initial value; a dead one is taken over."""
        hints = self.hints(value, loop)
        out = []
        for init, type, hint in zip(loop.init, loop.types, hints, strict=True):
            known = self.text.get(init)
            if known is not None and self.readers[init] == 1 and known in self.variables:
                out.append(known)
            else:
                out.append(self.let(hint, self.whole(init, type.axes)))
        self.variables.update(out)
        return tuple(out)

    def hints(self, value: Value, loop: Loop) -> list[str]:
        """Name carried values after the loop's results."""
        return [
            self.yields.get((value, i)) or f"{axis_name(loop.axis)}_state" for i in range(len(loop.types))
        ]

    def bound(self, value: Value, pick: str) -> str:
        """Return a loop bound as one number: the smallest or the largest where it varies."""
        known = self.static[value]
        if known is not None:
            return str(int(known.min() if pick == "tl.min" else known.max()))
        if (value, pick) not in self.bounds:
            self.bounds[value, pick] = self.reduced_bound(value, pick)
        return self.bounds[value, pick]

    def reduced_bound(self, value: Value, pick: str) -> str:
        shape = self.shape(value)
        if not shape:
            return self[value]
        name = f"{'first' if pick == 'tl.min' else 'last'}_{self[value]}"
        return self.let(name, f"{pick}(tl.reshape({self[value]}, ({math.prod(shape)},)), 0)")
