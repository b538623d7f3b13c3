"""Models whose weights several ranks share, with the bits of one rank."""

from __future__ import annotations

from rlk.nn.ranks import Ranks
from rlk.parallel.checkpoint import from_pretrained, save_pretrained
from rlk.parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceParallelRMSNorm,
    VocabParallelEmbedding,
)
from rlk.parallel.models import parallelize
from rlk.parallel.plan import PLAN, ranks_of

__all__ = [
    "PLAN",
    "ColumnParallelLinear",
    "Ranks",
    "RowParallelLinear",
    "SequenceParallelRMSNorm",
    "VocabParallelEmbedding",
    "from_pretrained",
    "parallelize",
    "ranks_of",
    "save_pretrained",
]
