"""Masks of axes that are padded to powers of two: identities in reductions, guards of loads and stores."""

from __future__ import annotations

from dataclasses import replace

from rlk.ir.build import Builder
from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Combine, Extent, Fn2, Kernel, Let, Load, Map2, Pos, Reduce, Store, Value
from rlk.ir.types import DType
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.walk import walk


def whole_axes(kernel: Kernel) -> frozenset[Axis]:
    """Return the axes that a Reduce takes whole, not in chunks of a stream."""
    return frozenset(
        let.node.over
        for let in walk(kernel.body)
        if isinstance(let.node, Reduce) and let.node.over.part is Part.ALL
    )


def mask(kernel: Kernel) -> Kernel:
    """Return the kernel with explicit bounds for its whole axes.

    Elements at or beyond the extent load 0, enter a Reduce as its identity, and are not stored.
    """
    axes = whole_axes(kernel)

    def rule(replay: Replay, let: Let) -> bool:
        b = replay.builder
        match let.node:
            case Reduce(fn=fn, x=x, over=over, order=order) if over in axes:
                value = replay[x]
                inside = _inside(b, over)
                kept = b.select(inside, value, identity(b, fn, b.tile(value).dtype))
                replay.renamed[let.value] = b.reduce(fn, kept, over, order, let.name)
            case Load(param=param, index=index, guard=guard, fill=fill) if _varies(b, replay, index, axes):
                new = tuple(replay[i] for i in index)
                bound = bounds(b, replay.optional(guard), new, axes)
                replay.renamed[let.value] = b.let(Load(param, new, bound, replay.optional(fill)), let.name)
            case Store(param=param, index=index, value=value, guard=guard) if _varies(b, replay, index, axes):
                new = tuple(replay[i] for i in index)
                b.let(Store(param, new, replay[value], bounds(b, replay.optional(guard), new, axes)))
            case _:
                return False
        return True

    return rewrite(kernel, rule)


def identity(b: Builder, fn: Combine, dtype: DType) -> Value:
    """Append the identity of a reduction: combined with any value it leaves that value's bits."""
    match fn, dtype:
        case Combine.ADD, DType.F32:
            return b.f32(-0.0)
        case Combine.MAX, DType.F32:
            return b.f32(float("-inf"))
        case Combine.MIN, DType.F32:
            return b.f32(float("inf"))
        case Combine.ADD, _:
            return b.const(0, dtype)
        case Combine.OR, _:
            return b.const(False, dtype)
        case Combine.MAX, _:
            return b.const(0 if dtype is DType.U32 else -(1 << (8 * dtype.bytes - 1)), dtype)
        case Combine.MIN, _:
            return b.const((1 << (8 * dtype.bytes - (dtype is not DType.U32))) - 1, dtype)
    raise AssertionError((fn, dtype))


def _varies(b: Builder, replay: Replay, index: tuple[Value, ...], axes: frozenset[Axis]) -> bool:
    return any(a in axes for i in index for a in b.tile(replay[i]).axes)


def _inside(b: Builder, axis: Axis) -> Value:
    return b.map2(Fn2.LT, b.let(Pos(axis)), b.let(Extent(axis)))


def bounds(b: Builder, guard: Value | None, index: tuple[Value, ...], axes: frozenset[Axis]) -> Value | None:
    """Append the guard of an access that is inside of whole axes too."""
    found = dict.fromkeys(a for i in index for a in b.tile(i).axes if a in axes)
    for axis in found:
        inside = _inside(b, axis)
        guard = inside if guard is None else b.map2(Fn2.AND, guard, inside)
    return guard


def without_bounds(lets: list[Let], axes: frozenset[Axis]) -> list[Let]:
    """Return lets whose loads have no bounds of some axes, for a kernel that has these axes in tiles."""
    nodes = {let.value: let.node for let in lets}

    def kept(guard: Value | None) -> Value | None:
        match nodes.get(guard) if guard is not None else None:
            case Map2(fn=Fn2.AND, a=a, b=b):
                return kept(a) if kept(b) is None else guard
            case Map2(fn=Fn2.LT, a=a, b=b):
                ends = nodes.get(a), nodes.get(b)
                return None if any(ends == (Pos(axis), Extent(axis)) for axis in axes) else guard
            case _:
                return guard

    def unbounded(let: Let) -> Let:
        if not isinstance(let.node, Load) or let.node.guard is None:
            return let
        guard = kept(let.node.guard)
        fill = None if guard is None else let.node.fill
        return replace(let, node=replace(let.node, guard=guard, fill=fill))

    return [unbounded(let) for let in lets]
