"""Dynamic persistent tile scheduler of the fused attention kernel, by an atomic work counter.

A persistent block publishes each work tile with the step ranges of all consumers. Resident rows have a
pipeline, released before the epilogue. A consumer runs the steps that its own rows need, and releases the
stages of the others unread.
"""

from __future__ import annotations

from rlk.ir.nodes import Value
from rlk.lower.common import abi
from rlk.lower.cute.attention.plan import LANES
from rlk.lower.cute.attention.producer import AttentionEmitter, end_of_range, end_of_steps
from rlk.lower.cute.plan import ROWS_OF_WARPGROUP

SCHEDULER_NAMES = frozenset(
    "item items blocks work_tile work_tile_pipeline next_tile all_steps full_of last_of".split()
)


def prepare(e: AttentionEmitter) -> str:
    """Reserve the scheduler's names, note its helpers, and return the name of the work counter."""
    e.names.taken |= SCHEDULER_NAMES
    e.uses("publish_work_tile", "read_work_tile", "next_work_tile")
    name = e.plan.kernel.name
    return e.memory.argument(abi.counter(name, f"{name}_work_counter"))


def limits(e: AttentionEmitter, start: Value, *stops: Value) -> None:
    """Write the first step of a tile, the last of each consumer and of all, and the ends of its ranges.

    There is at least one step: a fully masked step changes no state.
    """
    e.line(f"first_steps = {e.first_step(start)}")
    there = f"first + {ROWS_OF_WARPGROUP} * g < segment_rows"
    last = end_of_steps(there, _of_warpgroup(e, stops[-1], "imax"), at_least_one=True)
    e.line(f"last_of = {_of_each(e, last)}")
    if len(stops) > 1:
        full = end_of_range("first_steps", _of_warpgroup(e, stops[0], "imin"), "last_of[g] - 1")
        e.line(f"full_of = {_of_each(e, full)}")
    last = "last_of[0]"
    for g in range(1, e.plan.consumers):
        last = f"imax({last}, last_of[{g}])"
    e.line(f"last_steps = {last}")


def _of_each(e: AttentionEmitter, text: str) -> str:
    return f"[{text} for g in range({e.plan.consumers})]"


def _of_warpgroup(e: AttentionEmitter, value: Value, pick: str) -> str:
    """Return the minimum or maximum of a row value over consumer `g`."""
    if value not in e.rowwise:
        return e.extreme(value, pick)
    e.uses("of_rows")
    count = ROWS_OF_WARPGROUP // LANES
    return f"of_rows({e.text[value]}[{count} * g : {count} * (g + 1)], {pick})"
