"""Models over several ranks with the bits of one: shared weights, data parallelism, agreement of ranks."""

from __future__ import annotations

from rlk.nn.ranks import Ranks
from rlk.parallel.agree import agree
from rlk.parallel.checkpoint import from_pretrained, save_pretrained
from rlk.parallel.data import OrderedGradients, accumulate_in_order, global_count
from rlk.parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    SequenceParallelRMSNorm,
    VocabParallelEmbedding,
)
from rlk.parallel.models import parallelize
from rlk.parallel.plan import PLAN, ranks_of
from rlk.parallel.state import sharded_state_dict

__all__ = [
    "PLAN",
    "ColumnParallelLinear",
    "OrderedGradients",
    "Ranks",
    "RowParallelLinear",
    "SequenceParallelRMSNorm",
    "VocabParallelEmbedding",
    "accumulate_in_order",
    "agree",
    "from_pretrained",
    "global_count",
    "parallelize",
    "ranks_of",
    "save_pretrained",
    "sharded_state_dict",
]
