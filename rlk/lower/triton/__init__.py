"""The Triton lowering: the portable baseline, and the one that also runs interpreted on a CPU."""

from __future__ import annotations

from rlk.lower.triton.module import TritonOptions as TritonOptions
from rlk.lower.triton.module import lower as lower
