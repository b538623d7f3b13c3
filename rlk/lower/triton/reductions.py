"""Order of additions as text: each float sum adds two terms, and pairs one index bit of an axis away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Combine,
    Const,
    Elementwise,
    Let,
    Value,
    operands,
)
from rlk.ir.tree import Order, bind
from rlk.lower.common.lines import Function, Line
from rlk.lower.triton.plan import Dim
from rlk.passes.walk import backward_slice


@dataclass(slots=True)
class _Shape:
    """A tensor's dims while bits of one axis go away: of each its axis and the bits left, highest first."""

    dims: list[tuple[Axis, list[int]]]

    @property
    def lengths(self) -> list[int]:
        return [1 << len(bits) for _, bits in self.dims]

    def part(self, axis: Axis, bit: int) -> tuple[list[int], int]:
        """Return the shape in which the bit is a dim of its own, and where; take the bit away."""
        before: list[int] = []
        for i, (a, bits) in enumerate(self.dims):
            if a == axis and bit in bits:
                high = bits.index(bit)
                low = len(bits) - high - 1
                bits.remove(bit)
                after = self.lengths[i + 1 :]
                around = [1 << high] if high else []
                rest = [1 << low] if low else []
                if not bits:
                    del self.dims[i]
                shape = before + around + [2] + rest + after
                return shape, len(before) + len(around)
            before.append(1 << len(bits))
        raise AssertionError((axis, bit))


def _start(dims: tuple[Dim, ...], axes: tuple[Axis, ...]) -> _Shape:
    present = [d for d in dims if d.axis in axes]
    return _Shape([(d.axis, list(reversed(range(d.low, d.low + d.bits)))) for d in present])


def tree(
    name: str, dims: tuple[Dim, ...], axes: tuple[Axis, ...], over: Axis, order: Order, *, pair: bool = False
) -> Function:
    """Return the function that adds along an axis in the order of a tree; pair: two tiles of one shape.

    A thread has both terms of a pair, so that each step between threads moves them together.
    """
    what = f"The sum{'s' * pair} over {over}"
    return _folding(name, ("x",), "tl.sum({}, {})", dims, axes, over, order, what, pair=pair)


def merging(
    name: str, state: tuple[str, ...], combine: str, dims: tuple[Dim, ...], axes: tuple[Axis, ...],
    over: Axis, order: Order,
) -> Function:  # fmt: skip
    """Return the function that merges states along an axis in the order of a tree."""
    text = "tl.reduce({}, {}, " + combine + ")"
    return _folding(name, state, text, dims, axes, over, order, f"The states merged over {over}")


def _folding(
    name: str, state: tuple[str, ...], text: str, dims: tuple[Dim, ...], axes: tuple[Axis, ...],
    over: Axis, order: Order, what: str, pair: bool = False,
) -> Function:  # fmt: skip
    """Return a function that combines two terms at a time, one index bit after the other."""
    shape = _start(dims, axes)
    width = sum(len(bits) for a, bits in shape.dims if a == over)
    lines = [Line("x = tl.join(x, y)")] if pair else []
    both = [2] if pair else []
    for bit in bind(order, 1 << width).order:
        parted, where = shape.part(over, bit)
        parts = [f"tl.reshape({x}, {_tuple(parted + both)})" for x in state]
        given = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        lines.append(Line(f"{', '.join(state)} = {text.format(given, where)}"))
    rest = tuple(d for d in dims if d.axis in axes and d.axis != over)
    if rest:
        final = _tuple([d.length if d in rest else 1 for d in dims] + both)
        made = ", ".join(f"tl.reshape({x}, {final})" for x in state)
    else:
        made = ", ".join(state)
    lines.append(Line(f"return tl.split({made})" if pair else f"return {made}"))
    shown = order.value if not hasattr(order, "order") else f"bits {order.order}"
    about = f"{what}, {shown}: two terms at a time, so that no layout chooses."
    return Function(name, ("x", "y") if pair else state, about, tuple(lines))


def unordered(
    name: str, fn: Combine, dims: tuple[Dim, ...], axes: tuple[Axis, ...], over: Axis, chain: bool
) -> Function:
    """Return the function of a reduction whose result does not depend on the order.

    chain: its results go into others of the same kind, as in L.top: their dims of length 1 are kept then.
    Behind a reshape Triton computes a chain again in every layout that uses it, and code doubles with each.
    """
    text = {Combine.MAX: "tl.max", Combine.MIN: "tl.min", Combine.ADD: "tl.sum", Combine.OR: "tl.max"}[fn]
    shape = _start(dims, axes)
    compact = _tuple(shape.lengths)
    start = f"tl.reshape(x, {compact})" if len(shape.lengths) != len(dims) else "x"
    lines = [Line(f"x = {start}.to(tl.int32)" if fn is Combine.OR else f"x = {start}")]
    if start == "x" and fn is not Combine.OR:
        lines.clear()
    rest = tuple(d for d in dims if d.axis in axes and d.axis != over)
    ranks = [d.rank for d in dims if d.axis in axes]
    kept = chain and len(shape.lengths) == len(dims) and bool(rest)
    while any(a == over for a, _ in shape.dims):
        # register dims first, lane dims last
        where = max((ranks[i], i) for i, (a, _) in enumerate(shape.dims) if a == over)[1]
        if kept:
            shape.dims[where] = (rest[0].axis, [])
            lines.append(Line(f"x = {text}(x, {where}, keep_dims=True)"))
        else:
            del shape.dims[where], ranks[where]
            lines.append(Line(f"x = {text}(x, {where})"))
    if fn is Combine.OR:
        lines.append(Line("x = x != 0"))
    final = _tuple([d.length if d in rest else 1 for d in dims])
    lines.append(Line(f"return tl.reshape(x, {final})" if rest and not kept else "return x"))
    return Function(name, ("x",), f"The {fn.value} over {over}: no order changes it.", tuple(lines))


def pairs_of(
    lets: Sequence[Let], common: Callable[[Let], tuple[object, ...] | None]
) -> tuple[dict[Value, Let], list[Let]]:
    """Return the sums that are written together with an earlier one, by that one, and the lets in order.

    common: what the two of a pair share, None for what is no such sum. What a later one adds is computed
    before the earlier one, if it is computed from no sum between them.
    """
    found: dict[Value, Let] = {}
    waiting: dict[tuple[object, ...], Let] = {}
    made: list[Let] = []
    for let in lets:
        key = common(let)
        first = None if key is None else waiting.pop(key, None)
        if first is not None:
            at = made.index(first)
            since = {other.value: other for other in made[at:]}
            slice = backward_slice(operands(let.node), since)
            if all(isinstance(since[value].node, Elementwise | Const) for value in slice):
                found[first.value] = let
                made[at:] = sorted(made[at:], key=lambda other: other.value not in slice)
        if key is not None and let not in found.values():
            waiting[key] = let
        made.append(let)
    return found, made


def _tuple(lengths: list[int]) -> str:
    return f"({', '.join(map(str, lengths))}{',' if len(lengths) == 1 else ''})"
