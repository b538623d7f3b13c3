"""Names of values in generated text: hints of the IR, roles where it has none, made unique in a scope."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Const,
    Decl,
    Dot,
    Elementwise,
    Extent,
    Fma,
    Fn1,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    MathFn,
    MathModel,
    Pos,
    Reduce,
    Result,
    Select,
    Store,
    Value,
    const_value,
    operands,
)
from rlk.ir.types import TileType
from rlk.lang.reserved import MODULES, PREFIXES
from rlk.passes.walk import walk

# Hints that would hide a builtin, in the letters of the papers.
_RENAMED = {
    "max": "m",
    "sum": "total",
    "min": "low",
    "abs": "magnitude",
    "range": "span",
    "float": "real",
    "int": "whole",
}


def axis_name(axis: Axis) -> str:
    """Return the stem of the names of an axis's indices."""
    name = axis.name.lower()
    return name if axis.part is Part.ALL else f"{name}_{axis.part.value}"


def stride_name(decl: Decl, dim: int) -> str:
    """Return the name of the stride of a dim as a parameter."""
    return f"{decl.name}_{axis_name(decl.type.axes[dim])}_stride"


@dataclass(slots=True)
class Names:
    """Gives out identifiers; those given inside `scope` are free again after it.

    tensors: parameters, after which what is loaded from them or stored there would be called.
    """

    taken: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)

    def fresh(self, hint: str) -> str:
        """Return an identifier like the hint that no name in scope has."""
        base = re.sub(r"\W+", "_", _RENAMED.get(hint, hint)).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        if hasattr(builtins, base) or base in MODULES or base.startswith(PREFIXES):
            base = f"{base}_value"
        if base in self.tensors:
            base = f"{base}_value"
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Free the names given inside."""
        before = set(self.taken)
        try:
            yield
        finally:
            self.taken = before


# --- roles -------------------------------------------------------------------------------------------------

LONGEST = 24  # letters of a name that is made of two others
_STEMS = {
    Fn2.ADD: "sum",
    Fn2.SUB: "difference",
    Fn2.MUL: "product",
    Fn2.DIV: "quotient",
    Fn2.MOD: "remainder",
    Fn2.MAX: "larger",
    Fn2.MIN: "smaller",
    Fn2.AND: "both",
    Fn2.OR: "either",
    Fn2.XOR: "xor",
    Fn2.SHL: "shifted",
    Fn2.SHR: "shifted",
    Fn2.LT: "below",
    Fn2.LE: "at_most",
    Fn2.EQ: "equal",
    Fn2.NE: "differs",
    Fn2.MULHI: "high",
}
_BETWEEN = {
    Fn2.ADD: "plus",
    Fn2.SUB: "minus",
    Fn2.MUL: "times",
    Fn2.DIV: "over",
    Fn2.MOD: "mod",
    Fn2.MAX: "max",
    Fn2.MIN: "min",
    Fn2.AND: "and",
    Fn2.OR: "or",
    Fn2.XOR: "xor",
    Fn2.SHL: "shl",
    Fn2.SHR: "shr",
    Fn2.LT: "lt",
    Fn2.LE: "le",
    Fn2.EQ: "is",
    Fn2.NE: "not",
    Fn2.MULHI: "mulhi",
}
_SWAPPED = {fn: _BETWEEN[fn] for fn in (Fn2.ADD, Fn2.MUL, Fn2.MAX, Fn2.MIN, Fn2.EQ, Fn2.NE)} | {
    Fn2.LT: "gt",
    Fn2.LE: "ge",
}
"""The words of a function whose constant comes first."""
_OF_ONE = {Fn1.NEG: "neg", Fn1.ABS: "abs", Fn1.NOT: "not", Fn1.ISNAN: "is_nan", Fn1.SQRT: "sqrt"}
_CONSTANTS = {math.log2(math.e): "log2e", math.log(2): "ln2", math.inf: "inf", -math.inf: "neg_inf"}


def stem(let: Let) -> str:
    """Return the name of a value that has none: what its node does."""
    match let.node:
        case Map2(fn=fn2):
            return _STEMS[fn2]
        case Map1(fn=fn1):
            return _OF_ONE.get(fn1, fn1.value)
        case Math(fn=fn):
            return fn.value
        case Fma():
            return "fma_sum"
        case Select():
            return "selected"
        case Cast(dtype=dtype) | Bits(dtype=dtype):
            return f"as_{dtype.value}"
        case _:
            return "value"


def named(kernel: Kernel) -> Kernel:
    """Return the kernel with a name for every elementwise value.

    A value that neither the author nor the IR named is called after its operands (`m_plus_8`, `p_bf16`),
    or, if that is long, after the value that it is computed for (`d_z_product`). Names are hints: they
    change no bit.
    """
    roles = _Roles(kernel)
    return replace(kernel, body=roles.block(kernel.body))


class _Roles:
    """Names by role.

    labels: names of values. made: values whose names are made of others. goals: what values are needed for.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.lets = {let.value: let for let in walk(kernel.body)}
        self.labels: dict[Value, str] = {}
        self.made: set[Value] = set()
        self.goals: dict[Value, str] = {}
        results = (let for let in self.lets.values() if isinstance(let.node, Result))
        self.yields = {(r.node.of, r.node.index): r.name for r in results if isinstance(r.node, Result)}
        for let in reversed(self.lets.values()):
            self.note_goals(let)

    def note_goals(self, let: Let) -> None:
        """Note what the operands of a let are for: the first that is named decides."""
        match let.node:
            case Store(param=param, value=value, guard=guard):
                self.goals[value] = f"{param}_value"
                if guard is not None:
                    self.goals[guard] = f"{param}_guard"
            case Load(param=param, guard=guard) if guard is not None:
                self.goals[guard] = f"{param}_guard"
            case Loop(body=body, init=init):
                for i, values in enumerate(zip(init, body.results, strict=True)):
                    self.goals |= dict.fromkeys(values, self.yields.get((let.value, i), ""))
            case _:
                goal = let.name or self.goals.get(let.value, "")
                if goal:
                    self.goals |= dict.fromkeys(operands(let.node), goal)

    def block(self, block: Block) -> Block:
        lets = []
        for let in block.lets:
            if isinstance(loop := let.node, Loop):
                step, *carried = loop.body.args
                self.labels[step] = f"{axis_name(loop.axis)}_step"
                self.labels |= {a: n for i, a in enumerate(carried) if (n := self.yields.get((let.value, i)))}
                let = replace(let, node=replace(loop, body=self.block(loop.body)))
            elif isinstance(let.node, Elementwise) and not let.name:
                let = replace(let, name=self.name(let))
                self.labels[let.value] = let.name
            elif label := let.name or self.known(let):
                self.labels[let.value] = label
            lets.append(let)
        return replace(block, lets=tuple(lets))

    def known(self, let: Let) -> str:
        """Return the label of a value that emitters name, or do not name at all."""
        match let.node:
            case Load(param=param):
                return param
            case Pos(axis=axis):
                return axis_name(axis)
            case Extent(axis=axis):
                return axis.name if axis.part is Part.ALL else f"{axis_name(axis)}_count"
            case Const(bits=bits) if isinstance(let.type, TileType):
                return _number(const_value(bits, let.type.dtype))
            case Reduce(fn=fn, over=over):
                return f"{fn.value}_over_{axis_name(over)}"
            case _:
                return ""

    def name(self, let: Let) -> str:
        """Return the name of an elementwise value."""
        goal = self.goals.get(let.value, "")
        match let.node:
            case Cast(x=x, dtype=dtype) if x in self.labels:
                return self.of(let, f"{self.labels[x].removesuffix('_masked')}_{dtype.value}")
            case Bits(x=x) if x in self.labels:
                return self.of(let, f"{self.labels[x]}_bits")
            case Select(a=a, b=b) if a in self.labels and self.is_number(b):
                return self.of(let, f"{self.labels[a].removesuffix('_masked')}_masked")
            case Select(a=a, b=b) if b in self.labels and self.is_number(a):
                return self.of(let, f"{self.labels[b]}_or_{self.labels[a]}" if a in self.labels else goal)
            case Map2(fn=Fn2.AND) if goal.endswith("_guard"):
                return goal
            case Map2() if goal.endswith("_value") and self.stored(let.value):
                return goal
            case Fma() | Select() | Math() if goal.endswith("_value") and self.stored(let.value):
                return goal
            case Map2(fn=fn2, a=a, b=b) if self.is_number(a) and self.short(a, b) and fn2 in _SWAPPED:
                return self.of(let, f"{self.labels[b]}_{_SWAPPED[fn2]}_{self.labels[a]}")
            case Math(fn=MathFn.EXP2, model=model) if model is not MathModel.PORTABLE:
                return "p"  # of a softmax
            case Map2(fn=Fn2.MUL, a=a, b=b) if self.is_probability(a) and self.is_pulled(b):
                return "ds"
            case Map2(fn=fn2, a=a, b=b) if self.short(a, b):
                return self.of(let, f"{self.labels[a]}_{_BETWEEN[fn2]}_{self.labels[b]}")
            case Map1(fn=fn1, x=x) if self.short(x):
                return self.of(let, f"{_OF_ONE.get(fn1, fn1.value)}_{self.labels[x]}")
            case Math(fn=fn, x=x) if self.short(x):
                return self.of(let, f"{fn.value}_{self.labels[x]}")
        self.made.add(let.value)
        goal = goal.removesuffix("_value")
        return f"{goal}_{stem(let)}" if goal and len(goal) <= LONGEST else stem(let)

    def of(self, let: Let, name: str) -> str:
        """Return a name made of others, if it is no longer than names may be."""
        self.made.add(let.value)
        return name if name and len(name) <= 2 * LONGEST else stem(let)

    def short(self, *values: Value) -> bool:
        """Return whether a name of these is short and says something: they have names of their own."""
        known = [self.labels.get(v, "") for v in values]
        return all(known) and not self.made.intersection(values) and sum(map(len, known)) <= LONGEST

    def stored(self, value: Value) -> bool:
        """Return whether a value is stored as it is."""
        return any(isinstance(x.node, Store) and x.node.value == value for x in self.lets.values())

    def is_number(self, value: Value) -> bool:
        return value in self.lets and isinstance(self.lets[value].node, Const)

    def node(self, value: Value) -> object:
        return self.lets[value].node if value in self.lets else None

    def is_probability(self, value: Value) -> bool:
        """Return whether a value is a power of two, or one with some elements masked."""
        match self.node(value):
            case Math(fn=MathFn.EXP2):
                return True
            case Select(a=a, b=b) if self.is_number(b):
                return self.is_probability(a)
            case _:
                return False

    def is_pulled(self, value: Value) -> bool:
        """Return whether a value is dP - delta: the gradient of a softmax multiplies it with P."""
        match self.node(value):
            case Map2(fn=Fn2.SUB, a=a):
                return isinstance(self.node(a), Dot)
            case Map2(fn=Fn2.MUL, a=a):
                return self.is_pulled(a)
            case _:
                return False


def _number(x: float | int | bool) -> str:
    """Return the text of a constant in a name; none for one that has no short text."""
    near = (name for value, name in _CONSTANTS.items() if x == value or math.isclose(x, value, rel_tol=1e-6))
    if name := next(near, ""):
        return name
    whole = isinstance(x, int) or (math.isfinite(x) and x == int(x))
    return str(int(x)) if whole and 0 <= x < 10_000 else ""
