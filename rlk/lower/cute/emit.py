"""Emitter base of CuTe kernels: one line for each IR node, for one element or a thread's list."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Bits,
    Cast,
    Check,
    Combine,
    Const,
    Dot,
    Extent,
    Fma,
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
    const_value,
)
from rlk.ir.tree import Ascending, Order, Rule, bind
from rlk.ir.types import DType
from rlk.lower.common.emitter import StatementEmitter
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.names import Names, axis_name, stem
from rlk.lower.common.prelude import Helper, Helpers
from rlk.lower.common.spelling import VERBS, constant_cast, order_name
from rlk.lower.cute import text
from rlk.lower.cute.functions import functions, portable
from rlk.lower.cute.memory import Memory
from rlk.lower.cute.plan import Fragment, Placed, refused


@dataclass(frozen=True, slots=True)
class TreeStep:
    """One step of a tree over a list `x`; across: whether its two terms are of two threads."""

    line: Line
    across: bool


class Emitter(StatementEmitter):
    """Writes the values of one kernel, one element or a thread's list at a time."""

    def __init__(self, plan: Placed, helpers: dict[str, Helper], checks: list[str]) -> None:
        super().__init__(plan.kernel, Names(set(functions())), Helpers(functions(), helpers), checks)
        self.plan = plan
        self.fragment: Fragment | None = plan.fragment
        self.list_index = "c"  # which element of lists is written now
        self.memory = Memory(self)

    # --- operands -------------------------------------------------------------------------------------------

    def listed(self, value: Value) -> bool:
        """Return whether a thread has a list of a value's elements."""
        return self.fragment is not None and self.fragment.axis in self.tile(value).axes

    def __getitem__(self, value: Value) -> str:
        """Return the text of one element of a value: of a list, that at `list_index`."""
        if value in self.consts:
            return self.literal(const_value(*self.consts[value]), self.consts[value][1])
        return f"{self.text[value]}[{self.list_index}]" if self.listed(value) else self.text[value]

    def literal(self, number: float | int | bool, dtype: DType) -> str:
        """Return the text of a constant."""
        return self.call("negative_zero") if text.is_negative_zero(number) else text.literal(number, dtype)

    def operand(self, value: Value, beside: Value) -> str:
        """Return the text of an operand: an integer constant beside a variable needs no type."""
        if value in self.consts and self.consts[value][1].is_int and beside not in self.consts:
            return repr(const_value(*self.consts[value]))
        return self[value]

    def typed(self, value: Value) -> str:
        """Return an operand as a number of the DSL, which some functions return bare."""
        return self[value] if value in self.consts else f"{text.TYPES[self.tile(value).dtype]}({self[value]})"

    def each(self, expression: str) -> str:
        """Return the list of an expression over the elements that a thread has."""
        assert self.fragment is not None
        return f"[{expression} for c in range({self.fragment.count})]"

    def value(self, let: Let, hint: str, expression: str) -> None:
        """Write a value, for each of its elements."""
        written = self.each(expression) if self.listed(let.value) else expression
        self.text[let.value] = self.let(let.name or hint, written)

    # --- nodes ----------------------------------------------------------------------------------------------

    def node(self, let: Let) -> None:
        """Write one node."""
        match let.node:
            case Const(bits=bits):
                self.consts[let.value] = (bits, self.tile(let.value).dtype)
            case Cast(x=x, dtype=dtype) if made := constant_cast(self.consts.get(x), dtype):
                self.consts[let.value] = made
            case Param(name=name):
                self.text[let.value] = name
            case Pos(axis=axis):
                self.position(let, axis)
            case Extent(axis=axis):
                self.text[let.value] = self.memory.extent(axis)
            case Load() as load:
                self.memory.load(load, let)
            case Store() as store:
                self.memory.store(store)
            case Check(bad=bad, what=what):
                self.memory.check(bad, what)
            case Reduce() as reduce:
                self.text[let.value] = self.let(let.name or _stem_of(reduce), self.reduced(let, reduce))
            case Merge() as merge:
                self.merge(let, merge)
            case Loop() as loop:
                self.loop(let, loop)
            case Result(of=of, index=index):
                self.text[let.value] = self.many[of][index]
            case Map1() | Map2() | Math() | Fma() | Select() | Cast() | Bits():
                self.value(let, stem(let), self.expression(let))
            case Philox(counter=counter, key=key):
                self.random(let, (*counter, *key))
            case Dot() | Stream() | Keep():
                what = f"L.{type(let.node).__name__.lower()} in this place of a kernel"
                raise refused(what, self.plan.target, let.loc)
            case _:
                assert_never(let.node)

    def position(self, let: Let, axis: Axis) -> None:
        """Write the indices of an axis that a thread has."""
        if axis in self.memory.coordinates:
            self.text[let.value] = self.memory.coordinates[axis]
        else:
            self.consts[let.value] = (0, DType.I32)

    def expression(self, let: Let) -> str:
        """Return the right-hand side of an elementwise node, for one element."""
        target, loc = self.plan.target, let.loc
        match let.node:
            case Map1(fn=fn1, x=x):
                made = text.map1(fn1, self[x], self.tile(x).dtype, self.call)
                if made is None:
                    raise refused(f"{fn1.value} of {self.tile(x).dtype}", target, loc)
                return made
            case Map2(fn=fn2, a=a, b=b):
                one, two = self.operand(a, b), self.operand(b, a)
                made = text.map2(fn2, one, two, self.tile(a).dtype, self.call)
                if made is None:
                    raise refused(f"{fn2.value} of {self.tile(a).dtype}", target, loc)
                return made
            case Math(fn=fn, x=x, model=model):
                return f"{self.function(fn, model)}({self[x]})"
            case Fma(a=a, b=b, c=c):
                return self.call("fma", self[a], self[b], self[c])
            case Select(cond=cond, a=a, b=b):
                return self.call("select", self[cond], self[a], self[b])
            case Cast(x=x, dtype=dtype) if dtype.is_float8:
                return f"{self.conversion(f'to_{dtype}')}({self[x]}).to({text.TYPES[dtype]})"
            case Cast(x=x) if self.tile(x).dtype.is_float8:
                return f"{self.conversion(f'from_{self.tile(x).dtype}')}({self.typed(x)}.to(Int32))"
            case Cast(x=x, dtype=dtype):
                return f"{self.typed(x)}.to({text.TYPES[dtype]})"
            case Bits(x=x, dtype=dtype):
                return f"{self.typed(x)}.bitcast({text.TYPES[dtype]})"
            case _:
                raise AssertionError(let.node)

    def random(self, let: Let, words: tuple[Value, ...]) -> None:
        """Write a block of random words, or one for each element that a thread has."""
        drawn = self.call("philox", *map(self.typed, words))
        if any(self.listed(w) for w in words):
            blocks = self.let("words", self.each(drawn))
            made = tuple(self.let(f"word{i}", f"[block[{i}] for block in {blocks}]") for i in range(4))
        else:
            made = tuple(self.names.fresh(f"word{i}") for i in range(4))
            self.line(f"{', '.join(made)} = {drawn}")
        self.many[let.value] = made

    def function(self, fn: MathFn, model: MathModel) -> str:
        """Return the name of a transcendental function, adding its definition to the helpers."""
        match model:
            case MathModel.SM90 if fn is MathFn.EXP2:
                self.uses("exp2")
                return "exp2"
            case MathModel.PORTABLE:
                made = portable(fn.value)
                self.helpers.add(made)
                return made.name
            case _:
                what = f"{fn.value} as {model.value} computes it"
                raise refused(what, self.plan.target, instead='math="portable"')

    def conversion(self, name: str) -> str:
        """Return the name of a conversion of 8-bit floats, adding its definition to the helpers."""
        made = portable(name)
        self.helpers.add(made)
        return made.name

    # --- combining ------------------------------------------------------------------------------------------

    def reduced(self, let: Let, reduce: Reduce) -> str:
        """Return the right-hand side of a reduction along the axis that threads hold."""
        name, about, steps = self.reduction(let, reduce)
        lines = (step.line for step in steps)
        return f"{self.helper(name, 'x', f'{about}.', (*lines, Line('return x[0]')))}({self.text[reduce.x]})"

    def reduction(self, let: Let, reduce: Reduce) -> tuple[str, str, tuple[TreeStep, ...]]:
        """Return the name of a helper that reduces the list `x`, its description, and its steps."""
        if self.fragment is None or reduce.over != self.fragment.axis or not self.listed(reduce.x):
            what = f"a reduction over {reduce.over}, which is not the axis of columns, beside a contraction"
            raise refused(what, self.plan.target, let.loc)
        is_float = self.tile(reduce.x).dtype.is_float
        combine = {Combine.ADD: "add", Combine.MAX: "fmax", Combine.MIN: "fmin"}.get(reduce.fn)
        if combine is None or not (is_float or combine == "add"):
            what = f"{reduce.fn.value} of {self.tile(reduce.x).dtype} over {reduce.over} beside a contraction"
            raise refused(what, self.plan.target, let.loc)
        order = reduce.order if combine == "add" and is_float and reduce.order is not None else Rule.HALVING
        name = f"{VERBS[reduce.fn]}_over_{axis_name(reduce.over)}"
        fixed = combine == "add" and is_float and reduce.order is not None
        about = f"The {VERBS[reduce.fn]} over {reduce.over}, {order_name(order) if fixed else 'in any order'}"
        return name, about, tuple(self.folding(order, combine))

    def folding(self, order: Order, combine: str) -> Iterator[TreeStep]:
        """Yield a line for each step of a tree over the list `x`, whose terms are of one thread or of two."""
        assert self.fragment is not None
        self.uses(combine)
        lanes = self.fragment.lanes
        left = [bit for bit in range(self.fragment.length.bit_length() - 1) if bit not in lanes]
        for bit in bind(order, self.fragment.length).order:
            if bit in lanes:
                made = self.call("exchanged", "x", str(1 << lanes.index(bit)), combine)
                yield TreeStep(Line(f"x = {made}"), True)
            else:
                made = self.call("folded", "x", str(1 << left.index(bit)), combine)
                yield TreeStep(Line(f"x = {made}"), False)
                left.remove(bit)

    def helper(self, name: str, arguments: str, about: str, lines: tuple[Line, ...]) -> str:
        """Return the name of a helper with these lines; equal ones are shared."""
        return self.helpers.define(name, lambda unique: Function(unique, (arguments,), about, lines))

    def merge(self, let: Let, merge: Merge) -> None:
        """Write a merge; of states that threads hold along one index, these are the result."""
        if isinstance(merge.order, Ascending) or merge.onto is not None:
            raise refused(f"pieces of {merge.over} merged in one launch", self.plan.target, let.loc)
        if self.fragment is not None and merge.over == self.fragment.axis:
            what = f"L.softmax_states over {merge.over} beside a contraction"
            raise refused(what, self.plan.target, let.loc)
        self.many[let.value] = tuple(self.text[s] for s in merge.states)

    def merger(self, merge: Merge) -> str:
        """Write the function that merges two states of a monoid: `ir.fold`'s definition on elements."""
        inner = Emitter(self.plan, self.helpers.found, self.checks)
        inner.fragment = None
        dtypes = [self.tile(s).dtype for s in merge.states]
        function = inner.merge_function(f"merge_{merge.monoid.kind.value}", merge, dtypes, lone=",")
        return self.helpers.define(function.name, lambda unique: replace(function, name=unique))

    # --- loops ----------------------------------------------------------------------------------------------

    def loop(self, let: Let, loop: Loop) -> None:
        """Write a loop."""
        what = f"a stream of {loop.axis.whole} beside a contraction"
        raise refused(what, self.plan.target, let.loc, 'z = L.keep(z, "z") of the product before it')


def _stem_of(reduce: Reduce) -> str:
    return f"{VERBS[reduce.fn]}_{axis_name(reduce.over)}"
