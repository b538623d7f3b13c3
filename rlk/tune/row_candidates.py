"""Candidate schedules of kernels without a contraction: those next to the one that heuristics choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlk.errors import ScheduleError
from rlk.ir.dims import extent_of
from rlk.ir.nodes import Kernel, Loop
from rlk.ir.tree import padded
from rlk.passes.walk import walk
from rlk.schedule.axes import roles
from rlk.schedule.schedule import MAX_WARPS, Schedule, Span

MOST = 12  # candidates of a kernel
FACTORS = (2, 0.5, 4, 0.25)  # of warps, of a tile
STAGES = (1, 2, 3, 4)
WARP_BITS = 5
LARGEST = 1 << 14  # elements of a program's tile


def row_candidates(kernel: Kernel, shipped: Schedule, extents: Mapping[str, int]) -> dict[str, Schedule]:
    """Return schedules by their text: other numbers of warps, tiles of parallel axes, stages and unrolling.

    Where the shipped one places the bits of threads and registers (CuTe), theirs are moved in the same order.
    """
    found: dict[str, Schedule] = {}
    for made in _near(kernel, shipped, extents):
        if made != shipped and len(found) < MOST:
            found.setdefault(str(made), made)
    return found


def _near(kernel: Kernel, shipped: Schedule, extents: Mapping[str, int]) -> Iterator[Schedule]:
    loops = [let for let in walk(kernel.body) if isinstance(let.node, Loop)]
    for factor in FACTORS:
        warps = int(shipped.warps * factor)
        if 1 <= warps <= MAX_WARPS and not _beyond(shipped, warps):
            yield replace(shipped, warps=warps)
        yield from _tiles(kernel, shipped, factor, extents)
        if loops:
            yield replace(shipped, stages=STAGES[FACTORS.index(factor)])
            if shipped.unroll * factor >= 1:
                yield replace(shipped, unroll=int(shipped.unroll * factor))


def _beyond(shipped: Schedule, warps: int) -> bool:
    """Return whether so many warps have more index bits than the schedule places."""
    bits = sum(span.bits for span in shipped.placed)
    return bool(shipped.placed) and warps > shipped.warps and WARP_BITS + warps.bit_length() - 1 > bits


def _tiles(
    kernel: Kernel, shipped: Schedule, factor: float, extents: Mapping[str, int]
) -> Iterator[Schedule]:
    """Yield schedules with another tile of each parallel axis that has one, or of the last."""
    found = roles(kernel, extents)
    named = [str(axis) for axis in found.parallel]
    inside = 1
    for _, length in found.inside:
        inside *= length
    for axis in found.parallel[::-1]:
        name = str(axis)
        old = shipped.tile(name)
        if old == 1 and name != named[-1]:
            continue
        tile = int(old * factor)
        known = axis.name in extents and not axis.dynamic
        most = padded(extent_of(axis, extents[axis.name])) if known else LARGEST
        others = inside
        for other, count in shipped.tiles:
            others *= count if other != name else 1
        if not 1 <= tile <= most or tile * others > LARGEST:
            continue
        made = _placed(shipped, name, old, tile)
        if made is not None:
            yield made


def _placed(shipped: Schedule, axis: str, old: int, tile: int) -> Schedule | None:
    """Return a schedule with another tile of an axis, whose new bits are of registers; None if in vain."""
    tiles = {name: n for name, n in shipped.tiles if name != axis} | ({axis: tile} if tile > 1 else {})
    listed = tuple(sorted(tiles.items()))
    if not shipped.placed:
        return replace(shipped, tiles=listed)
    placed = [
        Span(s.axis, bit, 1) for s in shipped.placed for bit in range(s.low + s.bits - 1, s.low - 1, -1)
    ]
    threads = WARP_BITS + shipped.warps.bit_length() - 1
    warps = shipped.warps
    if tile > old:
        new = [Span(axis, bit, 1) for bit in range(tile.bit_length() - 2, old.bit_length() - 2, -1)]
        placed[threads:threads] = new
    else:
        gone = {(axis, bit) for bit in range(tile.bit_length() - 1, old.bit_length() - 1)}
        lost = sum((s.axis, s.low) in gone for s in placed[:threads])
        warps >>= lost
        placed = [s for s in placed if (s.axis, s.low) not in gone]
    if warps < 1:
        return None
    try:
        return replace(shipped, tiles=listed, placed=_joined(placed), warps=warps)
    except ScheduleError:
        return None


def _joined(bits: list[Span]) -> tuple[Span, ...]:
    """Return spans of single bits, high ones first, with adjacent ones joined."""
    found: list[Span] = []
    for span in bits:
        last = found[-1] if found else None
        if last is not None and last.axis == span.axis and span.low + 1 == last.low:
            found[-1] = Span(last.axis, span.low, last.bits + 1)
        else:
            found.append(span)
    return tuple(found)
