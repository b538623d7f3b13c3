"""Calls of TileLang's kernels on a Hopper, and their schedules beside the chosen ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpu.calls import Case
from gpu.cases import CASES as EVERY
from gpu.cute_cases import CASES as OF_CUTE
from gpu.cute_cases import SOME, product

from rlk.schedule.schedule import Schedule

ATTENTION = (
    "paged_attention decode, pieces apart", "prefix_attention 2 x 4 heads of 128",
    "prefix_attention decode of 8 heads of 64 f16, window",
    "varlen_attention_grad 2 x 4 heads of 128, ragged", "varlen_attention_grad 8 heads of 64 f16, window",
    "varlen_attention_grad 1 x 7 heads of 96, softcap and sinks",
)  # fmt: skip
CASES: dict[str, Case] = {
    **{name: case for name, case in OF_CUTE.items() if not name.startswith("sample")},
    **{name: EVERY[name] for name in ATTENTION},
    "matmul 2048 x 4096 x 4096": product(2048, 4096, 4096, rows=(*SOME, 1024, 2047)),
}
"""Those of the CuTe lowering, but a sampler's, whose exchanges have no room in a block; and of attention."""


def halved(schedule: Schedule) -> Schedule:
    """Return a schedule with fewer rows of attention to a block; 16 are the least."""
    rows = [axis for axis, tile in schedule.tiles if axis in ("Q*G", "C*G", "J") and tile > 16]
    return schedule.with_tile(rows[0], schedule.tile(rows[0]) // 2) if rows else schedule


CHANGES: dict[str, Callable[[Schedule], Schedule]] = {
    "chosen": lambda s: s,
    "twice the threads": lambda s: replace(s, warps=min(32, 2 * s.warps)),
    "half the threads": lambda s: replace(s, warps=max(1, s.warps // 2)),
    "half the rows of segments": halved,
    "shallow steps": lambda s: replace(s, depth=16),
    "three stages, groups of two": lambda s: replace(s, stages=3, group=2) if s.stages > 1 else s,
}
"""Of schedules; the first is what a call runs."""
