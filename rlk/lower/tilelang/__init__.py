"""The TileLang lowering: CDNA through HIP, a thread's lists and shared memory written out."""

from __future__ import annotations

from rlk.lower.tilelang.module import lower as lower
from rlk.lower.tilelang.plan import TARGETS as TARGETS
