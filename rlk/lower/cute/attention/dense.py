"""Rows of fused attention that are no segments: one segment, with the masks that an author would write."""

from __future__ import annotations

from rlk.ir.dims import Axis
from rlk.ir.nodes import Extent, Fn2, Kernel, Let, Load, Pos, Store, Value
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.simplify import simplify


def masked(kernel: Kernel, rows: Axis, extent: int | None) -> Kernel:
    """Return the kernel with masks of the rows that exist, which a tile may pass.

    extent: of the rows, where it is static.
    """

    def rule(replay: Replay, let: Let) -> bool:
        b = replay.builder

        def inside(index: tuple[Value, ...], guard: Value | None) -> Value | None:
            new = tuple(replay[v] for v in index)
            if all(rows not in b.tile(v).axes for v in new):
                return replay.optional(guard)
            end = b.let(Extent(rows)) if extent is None else b.i32(extent)
            there = b.map2(Fn2.LT, b.let(Pos(rows)), end, "inside")
            return there if guard is None else b.map2(Fn2.AND, there, replay[guard])

        match let.node:
            case Load(param=param, index=index, guard=guard, fill=fill):
                bound, new = inside(index, guard), tuple(replay[v] for v in index)
                replay.renamed[let.value] = b.let(Load(param, new, bound, replay.optional(fill)), let.name)
            case Store(param=param, index=index, value=value, guard=guard):
                bound, new = inside(index, guard), tuple(replay[v] for v in index)
                b.let(Store(param, new, replay[value], bound))
            case _:
                return False
        return True

    return simplify(rewrite(kernel, rule))
