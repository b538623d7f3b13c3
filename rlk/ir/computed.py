"""The computation of a program without its names: the content of a numerics id.

Programs have the same text here, and compute the same bits, if they differ only in names (of axes,
workspaces, payloads, kernels), in checks of their data, in unused values, in extents that are known at run
time only, or in the bounds of loop steps without a mask. Definitions that the text only names are listed
beside it: portable functions as operations, merges of fold states as tile IR, trees as permutations, the
constants of dot models and of Philox. Field names of nodes are part of the text, so renaming one would change
numerics ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

from rlk.ir import dotmodel, philox, portable
from rlk.ir.dims import Axis, Share
from rlk.ir.dotmodel import DotModel
from rlk.ir.fold import merging
from rlk.ir.monoid import Monoid
from rlk.ir.nodes import (
    Block,
    Cast,
    Check,
    Decl,
    Dot,
    Kernel,
    Launch,
    Let,
    Load,
    Loop,
    Math,
    MathModel,
    Merge,
    Node,
    Param,
    Philox,
    Program,
    Reduce,
    Role,
    Store,
    Value,
    operands,
)
from rlk.ir.text import print_program
from rlk.ir.tree import Order, Rule, bind
from rlk.ir.types import DType, TileType, TupleType, Type

WIDTHS = range(25)
"""The numbers of index bits for which a rule of trees is spelled out; no whole axis has more."""

Content = Mapping[str, object]


def computed(program: Program) -> Content:
    """Return the computation of a canonical program, as plain data to digest."""
    bare = without_names(program)
    named = _Named()
    for kernel in bare.kernels:
        named.block(kernel.body)
    text = values_in_order(print_program(bare))
    return {"program": text, "definitions": dict(sorted(named.found.items()))}


# --- definitions that a text only names ---


@dataclass(slots=True)
class _Named:
    """Collects the definitions of all functions, trees, merges and models that blocks name."""

    found: dict[str, object] = field(default_factory=dict)

    def block(self, block: Block, outer: Mapping[Value, Type] | None = None) -> None:
        types = {**(outer or {}), **{let.value: let.type for let in block.lets}}
        for let in block.lets:
            match let.node:
                case Loop(body=body):
                    self.block(body, types)
                case Cast(x=x, dtype=dtype):
                    self.cast(types.get(x), dtype)
                case Math(fn=fn, model=MathModel.PORTABLE):
                    self.found[f"portable {fn.value}"] = portable.listing(fn.value)
                case Dot(model=model):
                    self.found[f"dot {model.value}"] = dot_rule(model)
                case Philox():
                    self.found["philox"] = philox.DEFINITION
                case Reduce(order=order) if order is not None:
                    self.tree(order)
                case Merge(monoid=monoid, order=order, exp2=exp2):
                    type = types[let.value]
                    assert isinstance(type, TupleType)
                    self.merge(monoid, tuple(item.dtype for item in type.items), exp2)
                    if isinstance(order, Rule):
                        self.tree(order)
                case _:
                    pass

    def cast(self, given: Type | None, dtype: DType) -> None:
        for way, type in (("from", given), ("to", TileType(dtype))):
            if isinstance(type, TileType) and type.dtype.is_float8:
                self.found[f"{way} {type.dtype}"] = portable.listing(f"{way}_{type.dtype}")

    def tree(self, order: Order) -> None:
        if isinstance(order, Rule):
            self.found[f"tree {order.value}"] = tree_rule(order)

    def merge(self, monoid: Monoid, dtypes: tuple[DType, ...], exp2: MathModel) -> None:
        merged = merging(monoid, dtypes, exp2)
        program = without_names(Program("merge", (Kernel("merge", (), merged),)))
        kind = f"{'centred ' * monoid.centred}{monoid.kind.value}"
        name = f"merge {kind} of {' '.join(map(str, dtypes))} by {exp2.value}"
        self.found[name] = values_in_order(print_program(program))
        self.block(merged)


@cache
def tree_rule(rule: Rule) -> tuple[tuple[int, ...], ...]:
    """Return the permutations of index bits that a rule means, one for each width."""
    return tuple(bind(rule, 1 << bits).order for bits in WIDTHS)


def dot_rule(model: DotModel) -> Content:
    """Return the constants of a dot model; its name stands for its steps."""
    floors = {str(dtype): floor for dtype, floor in dotmodel.FLOOR.items()}
    match model:
        case DotModel.CHAIN16:
            cut = {"group": dotmodel.GROUP, "fraction": dotmodel.FRACTION, "least": dotmodel.LEAST}
            return {**cut, "floors": floors}
        case DotModel.CDNA3:
            return {"step": dotmodel.STEP[model], "floors": floors}
        case DotModel.FMA | DotModel.CDNA2 | DotModel.INTEGER:
            return {"step": dotmodel.STEP[model]}


# --- a program without names ---


def without_names(program: Program) -> Program:
    """Return the program with numbers for names, in order of appearance, and without checks and dead values.

    Names of inputs, scalars and results stay: they are the interface.
    """
    kernels = tuple(replace(kernel, body=_Used().block(kernel.body)) for kernel in program.kernels)
    public = {d.name for kernel in kernels for d in kernel.params if d.role is not Role.WORK}
    names = _Numbers(tensors={name: name for name in public})
    bare = (Kernel(names.kernel(k.name), names.of(k.params), names.of(k.body)) for k in kernels)
    return Program("program", tuple(bare), names.of(program.launches))


def values_in_order(text: str) -> str:
    """Return a printed program whose values are numbered in order of appearance."""
    numbers: dict[str, str] = {}
    return re.sub(r"%\d+", lambda found: numbers.setdefault(found[0], f"%{len(numbers)}"), text)


@cache
def _compared(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that equality compares; none of another class."""
    return tuple(f.name for f in fields(kind) if f.compare) if is_dataclass(kind) else ()


@dataclass(slots=True)
class _Numbers:
    """Numbers the names of each kind in order of appearance."""

    tensors: dict[str, str]
    axes: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    payloads: dict[str, str] = field(default_factory=dict)

    def axis(self, name: str) -> str:
        return self.axes.setdefault(name, f"a{len(self.axes)}")

    def tensor(self, name: str) -> str:
        return self.tensors.setdefault(name, f"#{len(self.tensors)}")

    def kernel(self, name: str) -> str:
        return self.kernels.setdefault(name, f"k{len(self.kernels)}")

    def payload(self, name: str) -> str:
        return self.payloads.setdefault(name, f"y{len(self.payloads)}")

    def of(self, value: Any) -> Any:
        """Return frozen data with every name in it replaced."""
        match value:
            case int() | str() | None:  # most of all
                return value
            case Axis(name=name, over=over, extent=extent):
                name = self.axis(name)  # first: numbers are in order of appearance
                over = over and self.axis(over)
                if isinstance(extent, Share):
                    extent = replace(extent, axis=self.axis(extent.axis), dynamic=False)
                return replace(value, name=name, over=over, dynamic=False, extent=extent)
            case Decl(name=name, type=type):
                return replace(value, name=self.tensor(name), type=self.of(type))
            case Load(param=param) | Store(param=param):
                return replace(value, param=self.tensor(param))
            case Param(name=name):
                return Param(self.tensor(name))
            case Monoid(payloads=payloads):
                return replace(value, payloads=tuple(map(self.payload, payloads)))
            case Launch(kernel=kernel, turns=turns):
                return Launch(self.kernel(kernel), self.of(turns))
            case tuple():
                return tuple(map(self.of, value))
            case Enum():
                return value
            case _ if names := _compared(value.__class__):
                kept = {name: self.of(getattr(value, name)) for name in names}
                return replace(value, **kept)
            case _:
                return value


@dataclass(slots=True)
class _Used:
    """Drops checks, and values that neither a store nor a result depends on."""

    used: set[Value] = field(default_factory=set)

    def block(self, block: Block) -> Block:
        self.used.update(block.results)
        kept: list[Let] = []
        for let in reversed(block.lets):
            node = let.node
            if isinstance(node, Check) or not (let.value in self.used or _stores(node)):
                continue
            if isinstance(node, Loop):
                # full, exists and first bound the steps whose masks are true: they choose code, not values
                body = self.block(node.body)
                node = replace(node, body=body, full=None, exists=None, first=None)
            self.used.update(operands(node))
            kept.append(replace(let, node=node))
        return replace(block, lets=tuple(reversed(kept)))


def _stores(node: Node) -> bool:
    """Return whether a node writes memory, in its body too."""
    match node:
        case Store():
            return True
        case Loop(body=body):
            return any(_stores(let.node) for let in body.lets)
        case _:
            return False
