"""Emitter of TileLang kernels: one line for each IR node, for one element or a thread's list."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from rlk.errors import Code, InternalError
from rlk.ir.dims import Axis, union
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
    Select,
    Store,
    Stream,
    Value,
    const_bits,
    const_value,
)
from rlk.ir.tree import Ascending, bind
from rlk.ir.types import DType, TileType, TupleType
from rlk.lang.reserved import CPP
from rlk.lower.common.emitter import StatementEmitter
from rlk.lower.common.lines import INDENT, Line, notes_of, place_of
from rlk.lower.common.liveness import live
from rlk.lower.common.names import Names, axis_name, stem
from rlk.lower.common.prelude import Helper, Helpers
from rlk.lower.common.spelling import VERBS, constant_cast, order_name
from rlk.lower.common.thread_values import ThreadValues, first_along_others, nearest_first
from rlk.lower.tilelang import text
from rlk.lower.tilelang.attention import Attention
from rlk.lower.tilelang.contract import Dots, Factors
from rlk.lower.tilelang.functions import functions, portable
from rlk.lower.tilelang.loops import Loops
from rlk.lower.tilelang.memory import Memory
from rlk.lower.tilelang.plan import TilePlan, refused, rings
from rlk.lower.tilelang.ring import Ring
from rlk.lower.tilelang.trees import Folding, reduce_buffers, tree

OF_FRAME = frozenset({"tl", "block", "thread", "c", "programs", "f32", "memory", "struct", "part"})
OF_CPP = CPP | {"half"}
"""Names with another meaning in HIP source."""
_FLOATS = {Combine.ADD: "add", Combine.MAX: "larger", Combine.MIN: "smaller"}
_INTEGERS = {Combine.ADD: "add", Combine.MAX: "imax", Combine.MIN: "imin", Combine.OR: "imax"}


class Emitter(StatementEmitter):
    """Writes one kernel, one element or a thread's list at a time; its helpers are macros."""

    def __init__(self, plan: TilePlan, helpers: dict[str, Helper], checks: list[str]) -> None:
        own = Helpers(functions(plan.target.vendor), helpers)
        super().__init__(plan.kernel, Names(set(own.prelude) | OF_FRAME | OF_CPP), own, checks)
        self.plan = plan
        self.repeated: dict[Value, Callable[[], str]] = {}  # elements of lists that are computed at each use
        self.element = "c"  # which element of the list is written now
        self.storage: list[Line] = []  # variables and lists of a thread
        self.reduce_buffers: dict[tuple[DType, int], int] = {}  # of waves that meet: elements of a thread
        self.current: tuple[ThreadValues, ...] = ()  # what the list that is written now runs over
        self.group: tuple[ThreadValues, ...] = ()  # the lists of the loop that is still open
        self.memory = Memory(self)
        self.nested = rings(plan.kernel, plan.schedule, plan.target)
        self.repeats = self.nested or plan.kind == "back_to_back_gemm"  # lists of numbers that are no floats
        self.loops = Loops(self)
        self.dots = self.factors()

    def factors(self) -> Factors:
        """Return the part of the emitter for the kernel's contractions."""
        if self.plan.kind == "back_to_back_gemm":
            return Attention(self)
        return Ring(self) if self.nested and self.plan.thread_value_layouts else Dots(self)

    # --- writing --------------------------------------------------------------------------------------------

    def line(self, statement: str) -> None:
        self.group = ()
        super().line(statement)

    def lines_of(self, statements: Sequence[str]) -> None:
        for statement in statements:
            self.line(statement)

    def define(self, name: str, expression: str) -> None:
        self.group = ()
        super().define(name, expression)

    def each(self, *statements: str) -> None:
        """Append statements for each element of the current list; neighbours share a loop."""
        if not self.current:
            for statement in statements:
                self.line(statement)
            return
        if self.group != self.current:
            self.line(f"for c in tl.unroll({self.size}):")
            self.group = self.current
        for statement in statements:
            self.lines.append(Line(INDENT * (self.depth + 1) + statement, self.place))

    @contextmanager
    def inner(self, header: str) -> Iterator[None]:
        """Indent what follows below a header."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1
        self.group = ()

    def stored(self, hint: str, dtype: DType, count: int) -> str:
        """Give a thread a list of so many elements and return its name."""
        name = self.names.fresh(hint)
        self.declare(name, f'tl.alloc_local(({count},), "{text.TYPES[dtype]}")')
        return name

    def variable(self, hint: str, dtype: DType) -> str:
        """Give a thread a variable and return its name."""
        name = self.names.fresh(hint)
        self.declare(name, f'tl.alloc_var("{text.TYPES[dtype]}")')
        return name

    def declare(self, name: str, expression: str) -> None:
        """Append a declaration before all statements."""
        self.storage.append(Line(f"{name} = {expression}", assigned=(name, expression)))

    # --- operands -------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return math.prod(s.count for s in self.current)

    def indexed(self, name: str, axes: tuple[Axis, ...]) -> str:
        """Return the element of a list that belongs to element `c` of the one that is written."""
        own = self.plan.lists(axes)
        at = self.at(own)
        return f"{name}[{at}]" if at else name

    def at(self, own: tuple[ThreadValues, ...]) -> str:
        """Return where in a list the element is that belongs to `c`; nothing without a list."""
        if not own:
            return ""
        first, last = self.current.index(own[0]), self.current.index(own[-1])
        if self.current[first : last + 1] == own:
            inner = math.prod(s.count for s in self.current[last + 1 :])
            at = self.element if inner == 1 else f"{self.element} // {inner}"
            return at if first == 0 else f"{at} % {math.prod(s.count for s in own)}"
        terms, below = [], 1
        for thread_values in reversed(own):
            inner = math.prod(s.count for s in self.current[self.current.index(thread_values) + 1 :])
            terms.append(f"{self.element} // {inner} % {thread_values.count} * {below}")
            below *= thread_values.count
        return " + ".join(terms)

    def __getitem__(self, value: Value) -> str:
        """Return the text of one element of a value: of a list, that which belongs to `c`."""
        if value in self.consts:
            return text.literal(const_value(*self.consts[value]), self.consts[value][1])
        if value in self.repeated:
            return self.again(self.repeated[value], self.plan.lists(self.tile(value).axes))
        return self.indexed(self.text[value], self.tile(value).axes)

    def again(self, expression: Callable[[], str], own: tuple[ThreadValues, ...]) -> str:
        """Return the text of an expression over some lists, for the element that belongs to this one."""
        before = self.current, self.element
        at = self.at(own)
        self.element = self.element if at in ("", self.element) else f"({at})"
        self.current = own
        made = f"({expression()})"
        self.current, self.element = before
        return made

    def plain(self, value: Value) -> str:
        """Return an operand where an integer constant needs no type."""
        if value in self.consts and self.consts[value][1].is_int:
            return repr(const_value(*self.consts[value]))
        return self[value]

    # --- the kernel -----------------------------------------------------------------------------------------

    def run(self) -> tuple[Line, ...]:
        """Write the whole body, after what it lays out in registers and shared memory."""
        self.dots.run()
        threads = self.plan.threads
        met = []
        for (dtype, i), count in self.reduce_buffers.items():
            given = f'({count}, {threads}), "{text.TYPES[dtype]}", "shared"'
            met.append(Line(f"{buffer_name(dtype, i)} = tl.alloc_shared({given})"))
        shared = self.dots.bytes
        shared += sum(n * self.plan.threads * dtype.bytes for (dtype, _), n in self.reduce_buffers.items())
        if shared > self.plan.block.shared or self.dots.asked + shared > max(self.plan.block.ring, shared):
            what = f"{self.dots.asked + shared} bytes of shared memory in a block"
            raise refused(what, self.plan.target, instead="a smaller chunk")
        return live((*met, *self.storage, *self.lines))

    def restart(self, plan: TilePlan) -> None:
        """Forget every value: the kernel is written again for a part of a thread's elements."""
        self.plan, arguments = plan, self.memory.arguments
        self.text, self.repeated, self.consts, self.many = {}, {}, {}, {}
        self.memory = Memory(self)
        self.memory.arguments = arguments

    def block(self, lets: Sequence[Let]) -> None:
        for let in lets:
            self.place = place_of(let.loc)
            self.lines += notes_of(let, self.depth + bool(self.group))
            self.current = self.lists(let)
            self.node(let)

    def lists(self, let: Let) -> tuple[ThreadValues, ...]:
        """Return the layouts of the axes of the list of a node's value, or of an effect."""
        match let.node:
            case Store(index=index, value=value, guard=guard):
                given = (*index, value, *(() if guard is None else (guard,)))
                return self.plan.lists(union(*(self.tile(v).axes for v in given)))
            case Check(bad=bad):
                return self.plan.lists(self.tile(bad).axes)
            case _:
                return self.plan.lists(let.type.axes) if isinstance(let.type, TileType) else ()

    def node(self, let: Let) -> None:
        """Write one node."""
        match let.node:
            case _ if let.value in self.dots.never_materialized or let.value in self.dots.waiting:
                pass
            case Dot():
                self.dots.dot(let)
            case Const(bits=bits):
                self.consts[let.value] = (bits, self.tile(let.value).dtype)
            case Cast(x=x, dtype=dtype) if made := constant_cast(self.consts.get(x), dtype):
                self.consts[let.value] = made
            case Param(name=name):  # a copy: TileLang names a parameter after the argument of a macro
                copy = text.variable(name, self.tile(let.value).dtype)
                self.text[let.value] = self.let(name, copy)
            case Pos(axis=axis):
                self.position(let, axis)
            case Extent(axis=axis):
                self.extent(let, axis)
            case Load() if let.value in self.dots.turned:
                self.dots.factor(let)
            case Load() as load:
                self.value(let, load.param, lambda: self.memory.read(load))
            case Store() as store:
                self.memory.store(store)
            case Check(bad=bad, what=what):
                self.memory.check(bad, what)
            case Reduce() as reduce if let.value in self.dots.one_hot:
                self.dots.pick(let, reduce)
            case Reduce() as reduce:
                self.reduce(let, reduce)
            case Merge() as merge:
                self.merge(let, merge)
            case Loop() as loop:
                self.loops.loop(let, loop)
            case Result(of=of, index=index):
                self.text[let.value] = self.many[of][index]
            case Map1() | Map2() | Math() | Fma() | Select() | Cast() | Bits():
                self.value(let, stem(let), lambda: self.expression(let))
            case Philox(counter=counter, key=key):
                self.random(let, (*counter, *key))
            case Stream() | Keep():
                raise InternalError(Code.NODE_NOT_CORE, let.loc, node=type(let.node).__name__)
            case _:
                assert_never(let.node)

    def value(self, let: Let, hint: str, expression: Callable[[], str]) -> None:
        """Write a value, for each of its elements; expression: the text of the one that is written."""
        written = expression()
        self.repeated.pop(let.value, None)
        if not self.current:
            variable = text.variable(written, self.tile(let.value).dtype)
            self.text[let.value] = self.let(let.name or hint, variable)
            return
        if self.repeats and not self.tile(let.value).dtype.is_float and not isinstance(let.node, Load):
            self.repeated[let.value] = expression  # cheaper than to keep
            return
        name = self.stored(let.name or hint, self.tile(let.value).dtype, self.size)
        self.text[let.value] = name
        self.each(f"{name}[c] = {written}")

    def position(self, let: Let, axis: Axis) -> None:
        """Write the indices of an axis that a thread has."""
        thread_values = self.plan.thread_values(axis)
        if axis in self.memory.coordinates:
            self.text[let.value] = self.memory.coordinates[axis]
        elif thread_values is None:
            self.consts[let.value] = (0, DType.I32)
        else:
            bits = self.plan.threads.bit_length() - 1
            self.value(let, axis_name(axis), lambda: thread_values.place(bits, self.element))

    def extent(self, let: Let, axis: Axis) -> None:
        """Write the extent of an axis."""
        made = self.memory.extent(axis)
        if made.isdigit():
            self.consts[let.value] = (const_bits(int(made), DType.I32), DType.I32)
        else:
            self.text[let.value] = made

    def expression(self, let: Let) -> str:
        """Return the right-hand side of an elementwise node, for one element."""
        match let.node:
            case Map1(fn=fn1, x=x):
                return text.map1(fn1, self[x], self.tile(x).dtype, self.call)
            case Map2(fn=fn2, a=a, b=b):
                return self.binary(fn2, a, b)
            case Math(fn=fn, x=x, model=model):
                return f"{self.function(fn, model)}({self[x]})"
            case Fma(a=a, b=b, c=c):
                return self.call("fma", self[a], self[b], self[c])
            case Select(cond=cond, a=a, b=b):
                return f"tl.Select({self[cond]}, {self[a]}, {self[b]})"
            case Cast(x=x, dtype=DType.F16) if self.tile(x).dtype is DType.F32:
                return self.call("signed_half", self[x])
            case Cast(x=x, dtype=dtype) if dtype.is_float8:
                return f'tl.Cast("{text.TYPES[dtype]}", {self.conversion(f"to_{dtype}")}({self[x]}))'
            case Cast(x=x) if self.tile(x).dtype.is_float8:
                return f'{self.conversion(f"from_{self.tile(x).dtype}")}(tl.Cast("int32", {self[x]}))'
            case Cast(x=x, dtype=dtype) if dtype.is_int8 and x in self.consts and self.tile(x).dtype.is_int:
                number = int(const_value(*self.consts[x]))  # TVM folds the cast, and takes no wider literal
                return text.literal((number + 128) % 256 - 128 if dtype is DType.I8 else number % 256, dtype)
            case Cast(x=x, dtype=dtype):
                return f'tl.Cast("{text.TYPES[dtype]}", {self[x]})'
            case Bits(x=x, dtype=dtype):
                return f'tl.reinterpret({self[x]}, "{text.TYPES[dtype]}")'
            case _:
                raise AssertionError(let.node)

    def random(self, let: Let, words: tuple[Value, ...]) -> None:
        """Write four random words for each element of the counter and key."""
        self.current = self.plan.lists(union(*(self.tile(v).axes for v in words)))
        made = [self.stored(f"word_{i}", DType.U32, self.size) for i in range(4)]
        at = "c" if self.current else "0"
        to = ", ".join(f"{name}[{at}]" for name in made)
        self.each(f"{to} = {self.call('philox', *(self[v] for v in words))}")
        self.many[let.value] = tuple(made if self.current else (f"{name}[0]" for name in made))

    def binary(self, fn: Fn2, a: Value, b: Value) -> str:
        """Return the text of a function of two operands, of which one at most is a bare number."""
        dtype = self.tile(a).dtype
        if fn in text.SIGNS:
            one = self[a] if b in self.consts else self.plain(a)
            return text.map2(fn, one, self.plain(b), dtype, self.call)
        return text.map2(fn, self[a], self[b], dtype, self.call)

    def conversion(self, name: str) -> str:
        """Return the name of a conversion of 8-bit floats, adding its definition to the helpers."""
        made = portable(name)
        self.helpers.add(made)
        return made.name

    def function(self, fn: MathFn, model: MathModel) -> str:
        """Return the name of a transcendental function, adding its definition to the helpers."""
        match model:
            case MathModel.PORTABLE:
                made = portable(fn.value)
                self.helpers.add(made)
                return made.name
            case MathModel.SM90 if fn is MathFn.EXP2 and self.plan.target.softmax is MathModel.SM90:
                self.uses("hardware_exp2")
                return "hardware_exp2"
            case MathModel.SM90 | MathModel.SOFTMAX:
                what = f"{fn.value} as {model.value} computes it"
                raise refused(what, self.plan.target, instead='math="portable"')

    # --- combining ------------------------------------------------------------------------------------------

    def reduce(self, let: Let, reduce: Reduce) -> None:
        """Write a reduction along an axis that is distributed over threads and lists."""
        type, over, fn = self.tile(reduce.x), reduce.over, reduce.fn
        self.current = self.plan.lists(type.axes)
        thread_values = self.plan.thread_values(over)
        if thread_values is None:  # one element
            if reduce.x in self.repeated:
                self.repeated[let.value] = self.repeated[reduce.x]
            else:
                self.text[let.value] = self.whole(reduce.x)
            return
        ordered = fn is Combine.ADD and type.dtype.is_float and reduce.order is not None
        order = (
            bind(reduce.order, thread_values.length).order
            if ordered and reduce.order
            else nearest_first(thread_values)
        )
        shown = order_name(reduce.order) if ordered and reduce.order else "in any order"
        combine = (_FLOATS if type.dtype.is_float else _INTEGERS)[fn]
        self.uses(combine)
        is_bool = type.dtype is DType.BOOL
        term = f"tl.Select({self[reduce.x]}, 1, 0)" if is_bool else self[reduce.x]
        (made,) = self.fold(
            f"{VERBS[fn]}_over_{axis_name(over)}", f"The {VERBS[fn]} over {over}, {shown}.",
            Folding(("x",), combine, self.plan.target.warp, self.nested), over, order,
            [(let.name or f"{VERBS[fn]}_{axis_name(over)}", term, DType.I32 if is_bool else type.dtype)],
            type.axes,
        )  # fmt: skip
        self.text[let.value] = made
        if is_bool:
            self.current = self.plan.lists(self.tile(let.value).axes)
            self.value(let, VERBS[fn], lambda: f"{self.indexed(made, self.tile(let.value).axes)} != 0")

    def fold(
        self, name: str, about: str, folding: Folding, over: Axis, order: Sequence[int],
        terms: Sequence[tuple[str, str, DType]], axes: tuple[Axis, ...],
    ) -> tuple[str, ...]:  # fmt: skip
        """Write a tree over an axis; return the names of the results.

        terms: of each component a name, an element's text and its type. axes: along which the terms vary.
        """
        thread_values = self.plan.thread_values(over)
        assert thread_values is not None
        lists = self.plan.lists(axes)
        count = math.prod(s.count for s in lists)
        state = [self.stored(hint, dtype, count) for hint, _, dtype in terms]
        self.current = lists
        at = "c" if lists else "0"
        self.each(*(f"{to}[{at}] = {term}" for to, (_, term, _) in zip(state, terms, strict=True)))
        macro = self.helpers.define(
            name, lambda unique: tree(unique, about, folding, thread_values, lists, order)
        )
        met = []
        if reduce_buffers(folding, thread_values):
            met = [*(self.reduce_smem(dtype, i, count) for i, (_, _, dtype) in enumerate(terms)), "thread"]
        self.line(f"{macro}({', '.join([*state, *met])})")
        if any(s.axis != over for s in lists):
            return tuple(state)
        return tuple(self.let(hint, f"{x}[0]") for x, (hint, _, _) in zip(state, terms, strict=True))

    def reduce_smem(self, dtype: DType, component: int, count: int) -> str:
        """Return the shared buffer for exchanges of a component between waves, of the longest list."""
        key = (dtype, component)
        self.reduce_buffers[key] = max(self.reduce_buffers.get(key, 0), count)
        return buffer_name(dtype, component)

    def merge(self, let: Let, merge: Merge) -> None:
        """Write a merge of states along an axis."""
        if isinstance(merge.order, Ascending) or merge.onto is not None:
            raise InternalError(Code.INTERNAL, let.loc, what=f"pieces of {merge.over} merged in one launch")
        assert isinstance(let.type, TupleType)
        thread_values, state = self.plan.thread_values(merge.over), merge.monoid.symbols
        if thread_values is None:
            self.many[let.value] = tuple(map(self.whole, merge.states))
            return
        axes = union(*(self.tile(s).axes for s in merge.states))
        dtypes = [self.tile(s).dtype for s in merge.states]
        combine = self.merger(merge, dtypes)
        self.current = self.plan.lists(axes)
        terms = [(s, self[v], d) for s, v, d in zip(state, merge.states, dtypes, strict=True)]
        made = self.fold(
            f"{merge.monoid.kind.value}_over_{axis_name(merge.over)}",
            f"The states merged over {merge.over}, {order_name(merge.order)}.",
            Folding(tuple(_component(s) for s in state), combine, self.plan.target.warp, self.nested),
            merge.over, bind(merge.order, thread_values.length).order, terms, axes,
        )  # fmt: skip
        left = self.plan.lists(tuple(axis for axis in axes if axis != merge.over))
        self.many[let.value] = tuple(
            self.among(left, item, x) for item, x in zip(let.type.items, made, strict=True)
        )

    def among(self, left: tuple[ThreadValues, ...], type: TileType, name: str) -> str:
        """Return a thread's elements along some axes of a list along more, where they are repeated."""
        self.current = self.plan.lists(type.axes)
        if self.current == left:
            return name
        if not self.current:
            return self.let(name, f"{name}[0]")
        own = self.stored(name, type.dtype, self.size)
        self.each(f"{own}[c] = {name}[{first_along_others(self.current, left)}]")
        return own

    def merger(self, merge: Merge, dtypes: Sequence[DType]) -> str:
        """Return the macro that merges two states of a monoid: `ir.fold`'s definition on elements."""
        inner = Emitter(replace(self.plan, thread_value_layouts=()), self.helpers.found, self.checks)
        function = inner.merge_function(f"merge_{merge.monoid.kind.value}", merge, dtypes)
        return self.helpers.define(function.name, lambda unique: replace(function, name=unique))

    def whole(self, value: Value) -> str:
        """Return the name of a value as it is, a list or one element."""
        if value in self.consts:
            return self[value]
        if value not in self.repeated:
            return self.text[value]
        type = self.tile(value)
        self.current = self.plan.lists(type.axes)
        if not self.current:
            return self[value]
        name = self.stored("elements", type.dtype, self.size)
        self.each(f"{name}[c] = {self[value]}")
        return name


def buffer_name(dtype: DType, component: int) -> str:
    """Return the name of the shared memory that waves exchange a component of a state through."""
    return f"{dtype.value}_reduce_smem" if component == 0 else f"{dtype.value}_reduce_smem_{component + 1}"


def _component(name: str) -> str:
    """Return the name of a component where it would hide a builtin."""
    return {"max": "m", "sum": "s"}.get(name, name)
