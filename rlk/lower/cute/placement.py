"""Choice of the kernel form, and thread-value layouts of kernels without a contraction."""

from __future__ import annotations

import math

from rlk.ir.dims import fixed_extent
from rlk.ir.nodes import Kernel
from rlk.lower.common.bounds import bounds
from rlk.lower.common.emitted import Signature
from rlk.lower.common.hoist_loads import hoist_loads
from rlk.lower.common.peel import peel
from rlk.lower.common.segments import segments
from rlk.lower.common.thread_values import TiledAxis, distribute, fewer_elements
from rlk.lower.cute import plan as plans
from rlk.lower.cute.attention import plan as attention_plan
from rlk.lower.cute.attention.plan import AttentionPlan
from rlk.lower.cute.plan import SECOND_DYNAMIC, STATIC, Plan, RowsPlan, refused
from rlk.schedule.axes import kind, roles
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

MOST_LISTED = 64  # elements of a list, to bound registers
LANES = 32


def plan(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> Plan | AttentionPlan:
    """Return the plan of a specialized kernel; raise LoweringError if this lowering has no form for it."""
    found = roles(kernel, dict(signature.extents))
    if kind(kernel) == "back_to_back_gemm":
        return attention_plan.plan(kernel, schedule, target, signature)
    if found.contracted or signature.split_rows or signature.strided:
        return plans.plan(kernel, schedule, target, signature)
    return _rows(kernel, schedule, target, signature)


def _rows(kernel: Kernel, schedule: Schedule, target: Target, signature: Signature) -> RowsPlan:
    schedule.check_powers()
    extents = dict(signature.extents)
    peeled = peel(bounds(kernel, dict(roles(kernel, extents).inside)))
    found = roles(peeled, extents)
    rows = segments(peeled, found.parallel)
    counted = (a for a in found.parallel if rows is None or a != rows.over)
    tiled = tuple(TiledAxis(a, schedule.tile(str(a)), fixed_extent(a, extents)) for a in counted)
    tiled = tuple(sorted(tiled, key=lambda o: o.tiles is not None))
    if any(o.tiles is None for o in tiled[1:]):
        raise refused(SECOND_DYNAMIC, target, instead=STATIC)
    if rows is not None and tiled[0] != TiledAxis(rows.axis, 1, None):
        raise refused(f"more than one row of the segments {rows.axis} in a block", target)
    lengths = {a: n for a, n in found.inside if n > 1} | {o.axis: o.tile for o in tiled if o.tile > 1}
    thread_value_layouts = distribute(lengths, schedule.placed, LANES * schedule.warps)
    listed = math.prod(s.count for s in thread_value_layouts)
    if listed > MOST_LISTED:
        axes = ", ".join(f"{axis} ({length})" for axis, length in lengths.items())
        lacks = f"registers for {listed} elements of {axes} in a thread, which may have {MOST_LISTED}"
        raise refused(lacks, target, instead=fewer_elements(lengths))
    ordered = hoist_loads(peeled, lambda type: lengths.keys().isdisjoint(type.axes))
    return RowsPlan(
        kernel=ordered,
        kind=kind(kernel),
        tiled=tiled,
        thread_value_layouts=thread_value_layouts,
        threads=LANES * schedule.warps,
        ahead=schedule.stages - 1,
        unroll=schedule.unroll,
        signature=signature,
        target=target,
        segments=rows,
    )
