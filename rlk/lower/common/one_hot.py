"""One-hot sums: sums that select one element of a row by its index, skipped where a tile has no index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Cast,
    Combine,
    Const,
    Dot,
    Fn2,
    Kernel,
    Let,
    Map1,
    Map2,
    Node,
    Pos,
    Reduce,
    Select,
    Value,
    const_bits,
    operands,
)
from rlk.ir.types import DType, Type, tile_axes
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of

NEGATIVE_ZERO = const_bits(-0.0, DType.F32)


@dataclass(frozen=True, slots=True)
class OneHotSum:
    """A sum over `lane` of elements where an index equals `wanted`, of -0.0 elsewhere.

    It is -0.0 unless `wanted` is in [first, first + length of lane). inside: values that only the sum uses.
    """

    lane: Axis
    first: Value
    wanted: Value
    inside: tuple[Let, ...]


def one_hot_sums(kernel: Kernel) -> dict[Value, OneHotSum]:
    """Return the one-hot sums of a kernel with a contraction; memory-bound kernels hide their cost."""
    if not any(isinstance(let.node, Dot) for let in walk(kernel.body)):
        return {}
    lets = kernel.body.lets
    types, nodes = types_of(kernel), {let.value: let.node for let in lets}
    found: dict[Value, OneHotSum] = {}
    for let in lets:
        match let.node:
            case Reduce(fn=Combine.ADD, x=x, over=lane, order=order) if order is not None:
                for first, wanted in _compared(x, lane, nodes, types):
                    found[let.value] = OneHotSum(lane, first, wanted, _only_for(let, lane, kernel, types))
                    break
    return found


def _compared(
    x: Value, lane: Axis, nodes: Mapping[Value, Node], types: Mapping[Value, Type]
) -> Iterator[tuple[Value, Value]]:
    """Yield (first index, compared value) of each equality without which x is -0.0."""
    while isinstance(chosen := nodes.get(x), Select):
        last = nodes.get(chosen.b)
        if not isinstance(last, Const) or last.bits != NEGATIVE_ZERO:
            return
        for condition in _all_of(chosen.cond, nodes):
            for index, wanted in ((condition.a, condition.b), (condition.b, condition.a)):
                first = _begin(index, lane, nodes)
                if first is not None and lane not in (*tile_axes(types[first]), *tile_axes(types[wanted])):
                    yield first, wanted
        x = chosen.a


def _all_of(cond: Value, nodes: Mapping[Value, Node]) -> Iterator[Map2]:
    """Yield the equalities that a condition implies."""
    match nodes.get(cond):
        case Map2(fn=Fn2.EQ) as equal:
            yield equal
        case Map2(fn=Fn2.AND, a=a, b=b):
            yield from _all_of(a, nodes)
            yield from _all_of(b, nodes)


def _begin(index: Value, lane: Axis, nodes: Mapping[Value, Node]) -> Value | None:
    """Return b where an index is b + the position along an axis, however wide."""
    match nodes.get(index):
        case Cast(x=x, dtype=dtype) if dtype.is_int:
            return _begin(x, lane, nodes)
        case Map2(fn=Fn2.ADD, a=a, b=b):
            return next((x for x, y in ((a, b), (b, a)) if nodes.get(y) == Pos(lane)), None)
        case _:
            return None


def _only_for(let: Let, lane: Axis, kernel: Kernel, types: Mapping[Value, Type]) -> tuple[Let, ...]:
    """Return the elementwise values along an axis that only one sum uses, in their order."""
    users: dict[Value, set[Value]] = {}
    for user in walk(kernel.body):
        for value in operands(user.node):
            users.setdefault(value, set()).add(user.value)
    users |= {value: {*users.get(value, ()), -1} for value in kernel.body.results}
    inside, known = [], {let.value}
    for each in reversed(kernel.body.lets):
        light = isinstance(each.node, Map1 | Map2 | Select | Cast) and lane in tile_axes(types[each.value])
        if light and users.get(each.value, set()) <= known:
            inside.append(each)
            known.add(each.value)
    return tuple(reversed(inside))
