"""A builder for blocks of tile IR: numbers values, and gives nodes their inferred types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rlk.errors import NOWHERE, Loc
from rlk.ir.dims import Axis
from rlk.ir.infer import infer
from rlk.ir.nodes import (
    Block,
    Combine,
    Const,
    Decl,
    Fn1,
    Fn2,
    Let,
    Map1,
    Map2,
    Math,
    MathFn,
    MathModel,
    Node,
    Reduce,
    Result,
    Select,
    Value,
    const_bits,
)
from rlk.ir.types import DType, TileType, TupleType, Type


@dataclass(slots=True)
class Builder:
    """Appends nodes to the innermost open block."""

    params: dict[str, Decl] = field(default_factory=dict)
    types: dict[Value, Type] = field(default_factory=dict)
    next: Value = 0
    loc: Loc = NOWHERE
    open: list[list[Let]] = field(default_factory=lambda: [[]])

    # --- values ---

    def fresh(self, type: Type) -> Value:
        """Return a new value of a type without a node: an argument of a region."""
        value = self.next
        self.next += 1
        self.types[value] = type
        return value

    def let(self, node: Node, name: str = "") -> Value:
        """Append value = node and return the value."""
        type = infer(node, self.types, self.params, self.loc)
        value = self.fresh(type)
        self.open[-1].append(Let(value, node, type, name, self.loc))
        return value

    def node(self, value: Value) -> Node | None:
        """Return the node of a value of an open block; None of a region's arguments and results."""
        for lets in reversed(self.open):
            for let in reversed(lets):
                if let.value == value:
                    return let.node
        return None

    def rename(self, value: Value, name: str) -> None:
        """Give a value of an open block another name."""
        for lets in reversed(self.open):
            for i, let in enumerate(lets):
                if let.value == value:
                    lets[i] = replace(let, name=name)
                    return

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        """Give the nodes that are appended inside a place in the spec, if there is one."""
        before, self.loc = self.loc, loc if loc.line else self.loc
        try:
            yield
        finally:
            self.loc = before

    def tile(self, value: Value) -> TileType:
        """Return the tile type of a value."""
        type = self.types[value]
        assert isinstance(type, TileType), (value, type)
        return type

    @contextmanager
    def region(self) -> Iterator[list[Let]]:
        """Open a block; the list it yields is filled while it is open. The place in the spec is as before."""
        lets: list[Let] = []
        self.open.append(lets)
        before = self.loc
        try:
            yield lets
        finally:
            self.open.pop()
            self.loc = before

    def body(self) -> Block:
        """Return the block of the nodes that were appended at the top level."""
        return Block((), tuple(self.open[0]))

    # --- shorthands ---

    def const(self, value: float | int | bool, dtype: DType) -> Value:
        node = Const(const_bits(value, dtype))
        made = self.fresh(TileType(dtype))
        self.open[-1].append(Let(made, node, self.types[made], "", self.loc))
        return made

    def f32(self, value: float) -> Value:
        return self.const(value, DType.F32)

    def i32(self, value: int) -> Value:
        return self.const(value, DType.I32)

    def map1(self, fn: Fn1, x: Value, name: str = "") -> Value:
        return self.let(Map1(fn, x), name)

    def map2(self, fn: Fn2, a: Value, b: Value, name: str = "") -> Value:
        return self.let(Map2(fn, a, b), name)

    def math(self, fn: MathFn, x: Value, model: MathModel, name: str = "") -> Value:
        return self.let(Math(fn, x, model), name)

    def select(self, cond: Value, a: Value, b: Value, name: str = "") -> Value:
        return self.let(Select(cond, a, b), name)

    def add(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.ADD, a, b, name)

    def sub(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.SUB, a, b, name)

    def mul(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.MUL, a, b, name)

    def max(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.MAX, a, b, name)

    def min(self, a: Value, b: Value, name: str = "") -> Value:
        return self.map2(Fn2.MIN, a, b, name)

    def reduce(self, fn: Combine, x: Value, over: Axis, order: object = None, name: str = "") -> Value:
        return self.let(Reduce(fn, x, over, order), name)  # type: ignore[arg-type]

    def results(self, of: Value, names: tuple[str, ...] = ()) -> tuple[Value, ...]:
        """Project every value that a node yields."""
        type = self.types[of]
        assert isinstance(type, TupleType)
        hints = names or ("",) * len(type.items)
        return tuple(self.let(Result(of, i), hints[i]) for i in range(len(type.items)))
