"""Axis roles: parallel axes, tiled over programs, and axes that one program has whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType

from rlk.errors import LoweringError
from rlk.ir.dims import Axis, Part, extent_of, union
from rlk.ir.nodes import Block, Dot, Kernel, Let, Load, Loop, Merge, Reduce, Role, Store, Value
from rlk.ir.tree import padded
from rlk.ir.types import TileType, Type, tile_axes
from rlk.passes.pack_gqa import computed_factor
from rlk.passes.places import place_of
from rlk.passes.walk import walk


@dataclass(frozen=True, slots=True)
class Roles:
    """The axes of a kernel by role.

    parallel: tiled over programs. inside: whole in each program, with the tile's length. contracted: loop
    axes of dots, which no tile has.
    """

    parallel: tuple[Axis, ...]
    inside: tuple[tuple[Axis, int], ...]
    contracted: tuple[Axis, ...] = ()


def types_of(kernel: Kernel) -> dict[Value, Type]:
    """Return the type of every value, arguments of loop bodies included."""
    types: dict[Value, Type] = {let.value: let.type for let in walk(kernel.body)}
    for let in walk(kernel.body):
        if isinstance(let.node, Loop):
            step, *carried = let.node.body.args
            start = types[let.node.start]
            assert isinstance(start, TileType)
            types[step] = TileType(start.dtype)
            types.update(zip(carried, let.node.types, strict=True))
    return types


def roles(kernel: Kernel, extents: Mapping[str, int]) -> Roles:
    """Return the roles of a kernel's axes: parallel ones in its tensors' order, contiguous ones last."""
    lets = tuple(walk(kernel.body))
    used = union(*(let.type.axes for let in lets if isinstance(let.type, TileType)))
    combined = {let.node.over for let in lets if isinstance(let.node, Reduce | Merge)}
    contracted = tuple(dict.fromkeys(let.node.over for let in lets if isinstance(let.node, Dot)))
    inside = tuple(a for a in used if a in combined or a.part is Part.LANE)
    laid_out = union(*(d.type.axes for d in kernel.params))
    order = {a: i for i, a in enumerate(laid_out)}
    near, last = _contiguous(lets, Load | Store), _contiguous(lets, Store) if contracted else frozenset()
    parallel = sorted(
        (a for a in used if a not in inside and a not in contracted),
        key=lambda a: (a in near, a in last, order.get(a, len(order)), str(a)),
    )
    try:
        return Roles(tuple(parallel), tuple((a, length(a, extents)) for a in inside), contracted)
    except LoweringError as error:
        over = next(a for a in inside if not _bounded(a, extents))
        raise error.placed(place_of(kernel, over)) from error


def _contiguous(lets: tuple[Let, ...], accesses: UnionType | type) -> frozenset[Axis]:
    """Return the axes that index the last dim of loads or stores with more than one index."""
    types = {let.value: let.type for let in lets}
    found: set[Axis] = set()
    for let in lets:
        if isinstance(let.node, Load | Store) and isinstance(let.node, accesses) and len(let.node.index) > 1:
            type = types.get(let.node.index[-1])
            found |= set(type.axes) if isinstance(type, TileType) else set()
    return frozenset(found)


def length(axis: Axis, extents: Mapping[str, int]) -> int:
    """Return the tile length of an axis that one program has whole."""
    match axis.part:
        case Part.LANE if axis.chunk is not None:
            return axis.chunk
        case Part.PIECE if axis.split is not None:
            return axis.split
        case _ if axis.name in extents:
            return padded(extent_of(axis, extents[axis.name]))
        case _:
            raise LoweringError(
                f"a reduction over the whole dynamic axis {axis}",
                f'Axis("{axis.name}", chunk=1024, dynamic=True), along which it is a stream of chunks; or an '
                "axis without dynamic=True",
            )


def _bounded(axis: Axis, extents: Mapping[str, int]) -> bool:
    """Return whether `length` knows the tile length of an axis."""
    try:
        length(axis, extents)
    except LoweringError:
        return False
    return True


def kind(kernel: Kernel) -> str:
    """Return the kind of a kernel's loop nest, from its dataflow.

    "stream_dot" reduces its product, "dot_map" does not, "back_to_back_gemm" multiplies a computed factor;
    "merge" combines the states of other kernels, "col_fold" folds along an outer dim.
    """
    lets = tuple(walk(kernel.body))
    if computed_factor(kernel):
        return "back_to_back_gemm"
    if any(isinstance(let.node, Dot) for let in lets):
        return "stream_dot" if any(isinstance(let.node, Reduce) for let in lets) else "dot_map"
    work = {d.name for d in kernel.params if d.role is Role.WORK}
    written = {let.node.param for let in lets if isinstance(let.node, Store)}
    types = types_of(kernel)
    loops = [let.node.body for let in lets if isinstance(let.node, Loop)]
    merged = any(isinstance(let.node, Merge) for let in lets) or any(map(_only_merges, loops))
    if merged and _merges(kernel, work - written, types):
        return "merge"
    return "col_fold" if any(_folds_columns(body, types) for body in loops) else "rows"


def _only_merges(body: Block) -> bool:
    """Return whether a loop only merges loaded states, and folds no elements."""
    return not any(isinstance(let.node, Reduce) for let in walk(body))


def _merges(kernel: Kernel, partial: set[str], types: Mapping[Value, Type]) -> bool:
    """Return whether a loop or reduction reads partial states of other launches, several numbers a row."""
    lets = tuple(walk(kernel.body))
    stepped = {x.value for loop in lets if isinstance(loop.node, Loop) for x in walk(loop.node.body)}
    combined = {let.node.over for let in lets if isinstance(let.node, Reduce | Merge)}
    for let in lets:
        if isinstance(let.node, Load) and let.node.param in partial:
            type = types[let.value]
            if let.value in stepped or (isinstance(type, TileType) and combined.intersection(type.axes)):
                return True
    return False


def _folds_columns(body: Block, types: Mapping[Value, Type]) -> bool:
    """Return whether a loop reads tiles whose streamed axis is not the contiguous one."""
    for let in walk(body):
        if isinstance(let.node, Load) and len(let.node.index) > 1:
            tiles = [types[i] for i in let.node.index]
            axes = [tile_axes(t) for t in tiles]
            outer = {a.part for group in axes[:-1] for a in group}
            last = {a.part for a in axes[-1]}
            if Part.LANE in outer and last == {Part.ALL}:
                return True
    return False
