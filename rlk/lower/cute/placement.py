"""Which form a kernel without a contraction has, and how its tiles lie on the threads of a block."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.nodes import Kernel
from rlk.lower.common.bounds import bounds
from rlk.lower.common.early import early
from rlk.lower.common.emitted import Signature
from rlk.lower.common.peel import peel
from rlk.lower.cute import plan as plans
from rlk.lower.cute.plan import Owned, Plan, RowsPlan, refused
from rlk.lower.cute.spread import Spread
from rlk.schedule.axes import kind, roles
from rlk.schedule.schedule import Schedule, Span
from rlk.target.facts import Target

MOST_LISTED = 64  # elements of a list: registers end soon after
LANES = 32


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> Plan:
    """Place a specialized kernel; raise UnsupportedError where this lowering has no form for it."""
    found = roles(kernel, dict(signature.extents))
    if found.contracted or signature.split_rows or signature.strided:
        return plans.plan(kernel, schedule, target, signature)
    return _rows(kernel, schedule, target, signature)


def _rows(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> RowsPlan:
    extents = dict(signature.extents)
    peeled = peel(bounds(kernel, dict(roles(kernel, extents).inside)))
    found = roles(peeled, extents)
    owned = tuple(Owned(a, schedule.tile(str(a)), fixed_extent(a, extents)) for a in found.parallel)
    if any(o.tiles is None for o in owned[1:]):
        raise refused("a second parallel axis of unknown extent", target)
    lengths = {a: n for a, n in found.inside if n > 1} | {o.axis: o.tile for o in owned if o.tile > 1}
    spreads = spread_out(lengths, schedule.placed, schedule.warps)
    listed = math.prod(s.count for s in spreads)
    if listed > MOST_LISTED:
        raise refused(f"lists of {listed} elements", target)
    ordered = early(peeled, lambda type: lengths.keys().isdisjoint(type.axes))
    return RowsPlan(
        kernel=ordered,
        kind=kind(kernel),
        owned=owned,
        spreads=spreads,
        threads=LANES * schedule.warps,
        ahead=schedule.stages - 1,
        unroll=schedule.unroll,
        signature=signature,
        target=target,
    )


def spread_out(lengths: Mapping[Axis, int], placed: tuple[Span, ...], warps: int) -> tuple[Spread, ...]:
    """Hand the threads of a block out: to the spans of index bits in their order, then to the other bits.

    What is left when every thread is told from the others lies in the lists of threads.
    """
    named = {str(axis): axis for axis in lengths}
    bits = [(named[s.axis], b) for s in placed if s.axis in named for b in range(s.low, s.low + s.bits)]
    every = [(axis, bit) for axis, n in lengths.items() for bit in range(n.bit_length() - 1)]
    bits = [each for each in bits if each in every]
    bits += [each for each in every if each not in bits]
    room = (LANES * warps).bit_length() - 1
    told = {each: at for at, each in enumerate(bits[:room])}
    return tuple(
        Spread(axis, n, tuple((b, told[axis, b]) for b in range(n.bit_length() - 1) if (axis, b) in told))
        for axis, n in lengths.items()
    )
