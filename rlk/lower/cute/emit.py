"""Emitter base of CuTe kernels: one line for each IR node, for one element or a thread's list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from rlk.ir import fold
from rlk.ir.build import Builder
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
    const_bits,
    const_value,
)
from rlk.ir.tree import Ascending, Order, Rule, bind
from rlk.ir.types import DType, TileType, Type
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.names import Names, axis_name
from rlk.lower.common.spelling import STEMS
from rlk.lower.cute import text
from rlk.lower.cute.functions import HELPERS, Helper, portable
from rlk.lower.cute.memory import Memory
from rlk.lower.cute.plan import Fragment, Placed, refused
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of

INDENT = "    "


@dataclass(frozen=True, slots=True)
class TreeStep:
    """One step of a tree over a list `x`; across: whether its two terms are of two threads."""

    line: Line
    across: bool


class Emitter:
    """Writes the values of one kernel; `helpers` collects the functions that its lines call, by name."""

    def __init__(self, plan: Placed, helpers: dict[str, Helper], checks: list[str]) -> None:
        self.plan, self.helpers, self.checks = plan, helpers, checks
        self.fragment: Fragment | None = plan.fragment
        self.types: dict[Value, Type] = types_of(plan.kernel)
        self.names = Names(set(HELPERS))
        self.text: dict[Value, str] = {}
        self.consts: dict[Value, tuple[int, DType]] = {}
        self.many: dict[Value, tuple[str, ...]] = {}
        self.list_index = "c"  # which element of lists is written now
        self.lines: list[Line] = []
        self.depth = 0
        self.place = ""
        self.yields = {
            (let.node.of, let.node.index): let.name
            for let in walk(plan.kernel.body)
            if isinstance(let.node, Result)
        }
        self.memory = Memory(self)

    # --- writing --------------------------------------------------------------------------------------------

    def line(self, statement: str) -> None:
        self.lines.append(Line(INDENT * self.depth + statement, self.place))

    def let(self, hint: str, expression: str) -> str:
        """Append name = expression and return the name."""
        name = self.names.fresh(hint)
        self.line(f"{name} = {expression}")
        return name

    @contextmanager
    def inner(self, header: str) -> Iterator[None]:
        """Indent what follows below a header; names given inside end with it."""
        self.line(header)
        self.depth += 1
        with self.names.scope():
            yield
        self.depth -= 1

    def uses(self, *names: str) -> None:
        """Note which helpers a line calls."""
        for name in names:
            if name not in self.helpers:
                self.helpers[name] = HELPERS[name]
                self.calls(HELPERS[name])

    def tile(self, value: Value) -> TileType:
        type = self.types[value]
        assert isinstance(type, TileType)
        return type

    def listed(self, value: Value) -> bool:
        """Return whether a thread has a list of a value's elements."""
        return self.fragment is not None and self.fragment.axis in self.tile(value).axes

    def __getitem__(self, value: Value) -> str:
        """Return the text of one element of a value: of a list, that at `list_index`."""
        if value in self.consts:
            return text.literal(const_value(*self.consts[value]), self.consts[value][1])
        return f"{self.text[value]}[{self.list_index}]" if self.listed(value) else self.text[value]

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

    def block(self, lets: Sequence[Let]) -> None:
        for let in lets:
            self.at(let)
            self.node(let)

    def at(self, let: Let) -> None:
        """Note the place that the next lines come from."""
        self.place = f"{let.loc.file.rsplit('/', 1)[-1]}:{let.loc.line}" if let.loc.line else ""

    def node(self, let: Let) -> None:
        """Write one node."""
        match let.node:
            case Const(bits=bits):
                self.consts[let.value] = (bits, self.tile(let.value).dtype)
            case Cast(x=x, dtype=dtype) if x in self.consts and dtype.is_int and self.consts[x][1].is_int:
                self.consts[let.value] = (const_bits(int(const_value(*self.consts[x])), dtype), dtype)
            case Cast(x=x, dtype=DType.F32) if x in self.consts and self.consts[x][1].is_int:
                number = float(np.float32(int(const_value(*self.consts[x]))))
                self.consts[let.value] = (const_bits(number, DType.F32), DType.F32)
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
                raise refused(f"a node {type(let.node).__name__} in this place", self.plan.target, let.loc)
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
                made = text.map1(fn1, self[x], self.tile(x).dtype)
                if made is None:
                    raise refused(f"{fn1.value} of {self.tile(x).dtype}", target, loc)
                self.uses(*(name for name in ("select", "magnitude") if f"{name}(" in made))
                return made
            case Map2(fn=fn2, a=a, b=b):
                made = text.map2(fn2, self.operand(a, b), self.operand(b, a), self.tile(a).dtype)
                if made is None:
                    raise refused(f"{fn2.value} of {self.tile(a).dtype}", target, loc)
                self.uses(*(name for name in HELPERS if made.startswith(f"{name}(")))
                return made
            case Math(fn=fn, x=x, model=model):
                return f"{self.function(fn, model)}({self[x]})"
            case Fma(a=a, b=b, c=c):
                self.uses("fma")
                return f"fma({self[a]}, {self[b]}, {self[c]})"
            case Select(cond=cond, a=a, b=b):
                self.uses("select")
                return f"select({self[cond]}, {self[a]}, {self[b]})"
            case Cast(x=x, dtype=dtype):
                return f"{self.typed(x)}.to({text.TYPES[dtype]})"
            case Bits(x=x, dtype=dtype):
                return f"{self.typed(x)}.bitcast({text.TYPES[dtype]})"
            case _:
                raise AssertionError(let.node)

    def random(self, let: Let, words: tuple[Value, ...]) -> None:
        """Write a block of random words, of elements that a thread has one of."""
        if any(self.listed(w) for w in words):
            raise refused("random words of every element of a list", self.plan.target, let.loc)
        self.uses("philox")
        made = tuple(self.names.fresh(f"word{i}") for i in range(4))
        self.line(f"{', '.join(made)} = philox({', '.join(map(self.typed, words))})")
        self.many[let.value] = made

    def function(self, fn: MathFn, model: MathModel) -> str:
        """Return the name of a transcendental function, adding its definition to the helpers."""
        match model:
            case MathModel.SM90 if fn is MathFn.EXP2:
                self.uses("exp2")
                return "exp2"
            case MathModel.PORTABLE:
                name = f"portable_{fn.value}"
                made = self.helpers.setdefault(name, portable(fn.value))
                self.calls(made)
                return name
            case _:
                raise refused(f"{fn.value} as {model.value} computes it", self.plan.target)

    def calls(self, helper: Helper) -> None:
        """Note the helpers that a helper's lines call."""
        words = " ".join(line.text for line in helper.function.body)
        self.uses(*(name for name in HELPERS if f"{name}(" in words or f", {name})" in words))

    # --- combining ------------------------------------------------------------------------------------------

    def reduced(self, let: Let, reduce: Reduce) -> str:
        """Return the right-hand side of a reduction along the axis that threads hold."""
        name, about, steps = self.reduction(let, reduce)
        lines = (step.line for step in steps)
        return f"{self.helper(name, 'x', f'{about}.', (*lines, Line('return x[0]')))}({self.text[reduce.x]})"

    def reduction(self, let: Let, reduce: Reduce) -> tuple[str, str, tuple[TreeStep, ...]]:
        """Return the name of a helper that reduces the list `x`, its description, and its steps."""
        if self.fragment is None or reduce.over != self.fragment.axis or not self.listed(reduce.x):
            raise refused(f"a sum over {reduce.over}", self.plan.target, let.loc)
        is_float = self.tile(reduce.x).dtype.is_float
        combine = {Combine.ADD: "add", Combine.MAX: "fmax", Combine.MIN: "fmin"}.get(reduce.fn)
        if combine is None or not (is_float or combine == "add"):
            raise refused(f"{reduce.fn.value} over {reduce.over}", self.plan.target, let.loc)
        order = reduce.order if combine == "add" and is_float and reduce.order is not None else Rule.HALVING
        name = f"{VERBS[reduce.fn]}_over_{axis_name(reduce.over)}"
        about = f"The {VERBS[reduce.fn]} over {reduce.over}, {order_name(order)}"
        steps = self.folding(order, f"x = folded(x, {{}}, {combine})", f"x = exchanged(x, {{}}, {combine})")
        return name, about, tuple(steps)

    def folding(self, order: Order, within: str, across: str) -> Iterator[TreeStep]:
        """Yield a line for each step of a tree: two elements of a thread, or of two threads."""
        assert self.fragment is not None
        lanes = self.fragment.lanes
        left = [bit for bit in range(self.fragment.length.bit_length() - 1) if bit not in lanes]
        for bit in bind(order, self.fragment.length).order:
            if bit in lanes:
                yield TreeStep(Line(across.format(1 << lanes.index(bit))), True)
            else:
                yield TreeStep(Line(within.format(1 << left.index(bit))), False)
                left.remove(bit)

    def helper(self, name: str, arguments: str, about: str, lines: tuple[Line, ...]) -> str:
        """Return the name of a helper with these lines; equal ones are shared."""
        count, unique = 1, name
        made = Helper(Function(unique, tuple(arguments.split(", ")), about, lines))
        while unique in self.helpers and self.helpers[unique] != made:
            count += 1
            unique = f"{name}_{count}"
            made = Helper(Function(unique, made.function.arguments, about, lines))
        self.helpers[unique] = made
        self.calls(made)
        return unique

    def merge(self, let: Let, merge: Merge) -> None:
        """Write a merge; of states that threads hold along one index, these are the result."""
        if isinstance(merge.order, Ascending) or merge.onto is not None:
            raise refused(f"pieces of {merge.over} merged in one launch", self.plan.target, let.loc)
        if self.fragment is not None and merge.over == self.fragment.axis:
            raise refused("states merged across threads", self.plan.target, let.loc)
        self.many[let.value] = tuple(self.text[s] for s in merge.states)

    def merger(self, merge: Merge) -> str:
        """Write the function that merges two states of a monoid: `ir.fold`'s definition on elements."""
        b = Builder()
        state = merge.monoid.state
        dtypes = [self.tile(s).dtype for s in merge.states]
        one, two = (tuple(b.fresh(TileType(d)) for d in dtypes) for _ in range(2))
        results = fold.merge(b, merge.monoid, one, two, merge.exp2)
        inner = Emitter(self.plan, self.helpers, self.checks)
        inner.fragment, inner.types = None, dict(b.types)
        arguments = [inner.names.fresh(f"{s}_{side}") for side in "ab" for s in state]
        inner.text.update(zip((*one, *two), arguments, strict=True))
        inner.block(b.open[0])
        lines = (
            *inner.lines,
            Line(f"return {', '.join(inner[r] for r in results)}{',' * (len(results) == 1)}"),
        )
        about = f"The state of two disjoint sets: {merge.monoid}."
        return self.helper(f"merge_{merge.monoid.kind.value}", ", ".join(arguments), about, lines)

    # --- loops ----------------------------------------------------------------------------------------------

    def loop(self, let: Let, loop: Loop) -> None:
        """Write a loop."""
        raise refused(f"steps of {loop.axis} in this place", self.plan.target, let.loc)


def order_name(order: Order) -> str:
    """Return how a tree pairs its terms, in words."""
    return order.value if isinstance(order, Rule) else f"by the index bits {order.order}"


VERBS = {Combine.ADD: "sum", Combine.MAX: "max", Combine.MIN: "min", Combine.OR: "any"}


def _stem_of(reduce: Reduce) -> str:
    return f"{VERBS[reduce.fn]}_{axis_name(reduce.over)}"


def stem(let: Let) -> str:
    """Return a name for a value that the author gave none."""
    match let.node:
        case Map2(fn=fn2):
            return STEMS[fn2]
        case Map1(fn=fn1):
            return {"neg": "negative", "abs": "magnitude", "not": "unless", "isnan": "is_nan"}.get(
                fn1.value, fn1.value
            )
        case Math(fn=fn):
            return "power" if fn is MathFn.EXP2 else f"{fn.value}_of"
        case Fma():
            return "fused_sum"
        case Select():
            return "chosen"
        case Cast(dtype=dtype) | Bits(dtype=dtype):
            return f"as_{dtype.value}"
        case _:
            return "value"
