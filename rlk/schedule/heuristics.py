"""Which schedule a kernel gets when nobody names one: from its dataflow and extents, never from its name."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Kernel
from rlk.ir.tree import padded
from rlk.schedule.axes import Roles, kind, roles
from rlk.schedule.schedule import Schedule, Span
from rlk.target.facts import Target

ROW = 2048  # elements that a program without sums should hold
COLUMNS = 128  # columns of a fold along rows
VECTOR_BITS = 3  # of 16-bit elements in a 16-byte load


def choose(kernel: Kernel, target: Target, signature: object, extents: Mapping[str, int]) -> Schedule:
    """Return the schedule of a specialized kernel on a target.

    extents: of all axes, as this call has them; only static ones may change what is chosen.
    """
    found = roles(kernel, extents)
    lengths = dict(found.inside)
    pieces = next((a for a in lengths if a.part is Part.PIECE), None)
    lanes = next((a for a in lengths if pieces is not None and a == pieces.whole.lanes), None)
    if pieces is not None and lanes is not None and lengths[lanes] >= 128:
        return pieces_as_lanes(pieces, lanes, lengths, extents.get(lanes.name, 0))
    match kind(kernel):
        case "col_fold":
            return _columns(found, extents)
        case _:
            return _rows(found, extents)


def pieces_as_lanes(pieces: Axis, lanes: Axis, lengths: Mapping[Axis, int], extent: int) -> Schedule:
    """Place a chunk so that its tree stays inside a warp: vectors, high bits in registers, pieces on lanes.

    Triton gives 16-byte vectors to the last dim, then lanes and warps to the others from the first on.
    """
    bits = lengths[lanes].bit_length() - 1
    piece = Span(str(pieces), 0, lengths[pieces].bit_length() - 1)
    aligned = extent % (8 * lengths[pieces]) == 0
    middle = 3 if aligned else 2
    placed = (
        Span(str(lanes), VECTOR_BITS, middle),
        piece,
        Span(str(lanes), VECTOR_BITS + middle, bits - VECTOR_BITS - middle),
        Span(str(lanes), 0, VECTOR_BITS),
    )
    return Schedule(placed=placed, warps=2 if aligned else 4)


def _rows(found: Roles, extents: Mapping[str, int]) -> Schedule:
    """A program holds whole rows, or a stretch of the contiguous axis where nothing is reduced."""
    held = 1
    for _, length in found.inside:
        held *= length
    tiles: dict[str, int] = {}
    for axis in reversed(found.parallel):
        room = ROW // held if not found.inside else 1
        extent = extents.get(axis.name) if not axis.dynamic and axis.part is Part.ALL else None
        tile = max(1, min(room, ROW if extent is None else padded(extent)))
        if tile > 1:
            tiles[str(axis)] = tile
            held *= tile
    return Schedule(tiles=tuple(sorted(tiles.items())), warps=warps(held))


def _columns(found: Roles, extents: Mapping[str, int]) -> Schedule:
    """A program owns a few columns and walks the rows."""
    axis = found.parallel[-1]
    extent = extents.get(axis.name) if not axis.dynamic else None
    tile = COLUMNS if extent is None else min(COLUMNS, padded(extent))
    return Schedule(tiles=((str(axis), tile),), warps=4)


def warps(elements: int) -> int:
    """Return how many warps a tile feeds with 16 elements a lane; rows never get more than 8."""
    return max(1, min(8, padded(elements // 512)))
