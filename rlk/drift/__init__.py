"""Comparison of two engines that score the same tokens, and of a rollout with its trainer.

`rlk drift A B` runs it; nothing of it needs models that compute by rlk.
"""

from __future__ import annotations

from rlk.drift.digests import Digest, weight_checksums
from rlk.drift.engine import Engine, Facts, Scores, Sequences, Unwatched, Watch
from rlk.drift.engines import Nn, Patched, Transformers, opened
from rlk.drift.metrics import LogProbDrift, log_prob_drift
from rlk.drift.monitor import Monitor, verl_metrics
from rlk.drift.operators import ChangedExperts, Comparison, Difference, compare_operators
from rlk.drift.options import Options
from rlk.drift.parity import Finding, same_inputs
from rlk.drift.recorded import Recorded, save_scores
from rlk.drift.report import Report, compare
from rlk.drift.vllm_engine import Vllm

__all__ = [
    "ChangedExperts",
    "Comparison",
    "Difference",
    "Digest",
    "Engine",
    "Facts",
    "Finding",
    "LogProbDrift",
    "Monitor",
    "Nn",
    "Options",
    "Patched",
    "Recorded",
    "Report",
    "Scores",
    "Sequences",
    "Transformers",
    "Unwatched",
    "Vllm",
    "Watch",
    "compare",
    "compare_operators",
    "log_prob_drift",
    "opened",
    "same_inputs",
    "save_scores",
    "verl_metrics",
    "weight_checksums",
]
