"""Embeddings of a vocabulary that ranks share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from rlk import ops
from rlk.nn.ranks import Ranks
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import gradients
from rlk.specs.model import embedding as spec


def embedding_of_ranks(ids: torch.Tensor, weight: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return `ops.embedding` of ids [T] of the whole vocabulary: the rows [T, D] that this rank has.

    weight: the rank's own rows [V / ranks, D]. Raises LaunchError, on every rank, for other ids on one, where
    they are on the host of all. What raises before, on one rank, goes through `or_all_raise`.
    """
    if ranks.size == 1:
        return ops.embedding(ids, weight)
    ranks.check_same_ids("embedding", ids)
    made: torch.Tensor = _Gathered.apply(ids, weight, ranks)
    return made


def whole_embedding_of_ranks(ids: torch.Tensor, weight: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Return the rows that this rank has of `ops.embedding`, of a weight of which every rank has all.

    Raises LaunchError as `embedding_of_ranks` does.
    """
    ranks.check_same_ids("embedding", ids)
    return ranks.own_rows(ops.embedding(ids, weight))


class _Gathered(torch.autograd.Function):
    """Embeddings of tokens whose rows ranks share; a rank has the gradient of its own rows."""

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, weight: torch.Tensor, ranks: Ranks) -> torch.Tensor:
        local = ids.to(torch.int64) - ranks.rank * len(weight)
        elsewhere = (local < 0) | (local >= len(weight))
        own = torch.where(elsewhere, -1, local)
        ctx.save_for_backward(own, weight)
        ctx.ranks = ranks
        # an id outside of the vocabulary sets every rank's error word; the first rank gives its row of NaN
        outside = (ids < 0) | (ids >= len(weight) * ranks.size)
        x = ops.embedding(torch.where(elsewhere & ~outside, 0, own), weight.detach())
        zero = elsewhere & ~outside if ranks.rank == 0 else elsewhere
        x = x.masked_fill(zero[:, None], 0)
        # one rank has other bits than 0: a sum of bytes moves them, and loses neither NaN nor the sign of 0
        dist.all_reduce(x.view(torch.uint8), group=ranks.group)
        return x[ranks.rows(len(ids))].clone() if ranks.sequence else x  # no view, which keeps all rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        own, weight = ctx.saved_tensors
        given = {"ids": own, "weight": weight}  # tokens of other ranks, -1, lie before the first segment
        d_y = ctx.ranks.all_tokens(d_y, len(own))
        found = gradients(invoke(spec, given, {}, {}, None), given, {"y": d_y}, {}, ["weight"])
        return None, found["weight"], None
