"""The TileLang lowering: CDNA through HIP, with explicit register lists of threads and shared memory."""

from __future__ import annotations

from rlk.lower.tilelang.module import lower as lower
from rlk.lower.tilelang.plan import TARGETS as TARGETS
