"""Models over several ranks: gradients of data parallelism in the order of micro-batches, checks of ranks."""

from __future__ import annotations

from rlk.parallel.agree import agree
from rlk.parallel.data import OrderedGradients, accumulate_in_order, global_count

__all__ = ["OrderedGradients", "accumulate_in_order", "agree", "global_count"]
