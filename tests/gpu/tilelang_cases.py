"""Which calls TileLang's kernels run on a Hopper, and under which schedules beside the chosen ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpu.calls import Case
from gpu.cute_cases import CASES as OF_CUTE
from gpu.cute_cases import SOME, product

from rlk.schedule.schedule import Schedule

REFUSED = ("sample", "varlen_attention", "paged_attention")
CASES: dict[str, Case] = {
    **{name: case for name, case in OF_CUTE.items() if not name.startswith(REFUSED)},
    "matmul 2048 x 4096 x 4096": product(2048, 4096, 4096, rows=(*SOME, 1024, 2047)),
}
"""Those of the CuTe lowering, but a sampler's, whose exchanges have no room in a block, and attention's."""

CHANGES: dict[str, Callable[[Schedule], Schedule]] = {
    "chosen": lambda s: s,
    "twice the threads": lambda s: replace(s, warps=min(32, 2 * s.warps)),
    "half the threads": lambda s: replace(s, warps=max(1, s.warps // 2)),
    "shallow steps": lambda s: replace(s, depth=16),
    "three stages, groups of two": lambda s: replace(s, stages=3, group=2) if s.stages > 1 else s,
}
"""Of schedules; the first is what a call runs."""
