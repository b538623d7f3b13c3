"""Products of signed bytes that warps multiply by themselves in the CuTe lowering: mma.sync, no wgmma."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Axis
from rlk.ir.nodes import Cast, Dot, Kernel, Let, Load, Value, operands
from rlk.ir.types import DType, TileType, Type
from rlk.passes.prologue import prologue
from rlk.passes.walk import walk
from rlk.schedule.axes import types_of
from rlk.schedule.cute_table import FEW


def by_warps(kernel: Kernel, rows: Axis, columns: int) -> bool:
    """Return whether warps multiply by themselves: bytes with few columns, which each warp reads alone.

    rows: the axis of the computed factor, whose rows are those of instructions. columns: of a tile, along
    the other factor. Warps without rows of a segment would have to skip steps.
    """
    if columns > FEW[-1] or rows.over is not None:
        return False
    lets, types = {let.value: let for let in walk(kernel.body)}, types_of(kernel)
    dots = [let.node for let in lets.values() if isinstance(let.node, Dot)]
    pairs = ((dot.over, *pair) for dot in dots for pair in ((dot.a, dot.b), (dot.b, dot.a)))
    return any(
        _has(types.get(one), rows)
        and bool(casts_of_bytes(prologue(one, over, lets), over, types))
        and _ends_along(lets.get(other), over, types)
        for over, one, other in pairs
    )


def casts_of_bytes(made: tuple[Let, ...], over: Axis, types: Mapping[Value, Type]) -> tuple[Let, ...]:
    """Return the casts of signed bytes to 16-bit floats by which a factor's prologue begins, if it has them.

    The bytes are contiguous along the contracted axis, and no other value needs what is between the casts.
    """
    loads = [let for let in made if isinstance(let.node, Load)]
    if not loads or not _ends_along(loads[0], over, types) or not _is(loads[0], DType.I8):
        return ()
    found, last = [], loads[0].value
    while True:
        users = [let for let in made if last in operands(let.node)]
        if len(users) != 1 or not isinstance(users[0].node, Cast):
            return ()
        found.append(users[0])
        last, dtype = users[0].value, users[0].node.dtype
        if dtype in (DType.BF16, DType.F16):
            return tuple(found)
        if dtype not in (DType.I32, DType.F32):
            return ()


def _ends_along(let: Let | None, over: Axis, types: Mapping[Value, Type]) -> bool:
    """Return whether a value is a load from a tensor whose last dim is that of an axis."""
    return let is not None and isinstance(let.node, Load) and _has(types.get(let.node.index[-1]), over)


def _has(type: Type | None, axis: Axis) -> bool:
    return isinstance(type, TileType) and axis in type.axes


def _is(let: Let, dtype: DType) -> bool:
    return isinstance(let.type, TileType) and let.type.dtype is dtype
