"""Ranks of one process, one after the other: each runs again until all have sent what the others wait for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist

from rlk.ops import sharded
from rlk.runtime.call.collective import pairwise_sum

Found = TypeVar("Found")
Terms = Callable[[torch.Tensor], torch.Tensor]


class Waiting(Exception):
    """A rank has sent its part of an exchange that other ranks have not come to."""


def tree(terms: torch.Tensor) -> torch.Tensor:
    """Return the sum of terms[R, ...] over R by a pairwise tree."""
    out = torch.empty_like(terms[0])
    pairwise_sum(terms.clone(), out=out)
    return out


@dataclass
class Exchange:
    """Messages between ranks, exchange by exchange.

    stacked: what is done to the gathered states. added: how terms are summed.
    """

    ranks: int
    stacked: Terms = lambda x: x
    added: Terms = tree
    sent: list[list[torch.Tensor]] = field(default_factory=list)
    rank: int = 0
    step: int = 0

    def terms(self, x: torch.Tensor) -> torch.Tensor:
        at, self.step = self.step, self.step + 1
        if at == len(self.sent):
            self.sent.append([])
        if len(self.sent[at]) < self.ranks:
            assert len(self.sent[at]) == self.rank, "a rank that has sent this came again too early"
            self.sent[at].append(x.detach().clone())
            raise Waiting
        assert torch.equal(bits(self.sent[at][self.rank]), bits(x)), "a rank sends other bits the second time"
        return torch.stack(self.sent[at])

    def gather(self, x: torch.Tensor, group: object, *, op: str) -> torch.Tensor:
        return self.stacked(self.terms(x))

    def total(self, x: torch.Tensor, group: object, op: str, out_dtype: torch.dtype) -> torch.Tensor:
        return self.added(self.terms(x)).to(out_dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)


def in_turn(step: Callable[[int, dist.ProcessGroup], Found], exchange: Exchange) -> list[Found]:
    """Return what step(rank, group) gives on every rank, exchanges going through `exchange`."""
    found: list[Found] = []
    with ExitStack() as patches:
        patches.enter_context(patch.object(sharded, "ordered_gather", exchange.gather))
        patches.enter_context(patch.object(sharded, "sum_over_ranks", exchange.total))
        patches.enter_context(sharded.arguments_alike())  # there is no store
        patches.enter_context(patch.object(dist, "is_initialized", lambda: True))
        while not found:
            for rank in range(exchange.ranks):
                exchange.rank, exchange.step = rank, 0
                try:
                    found.append(step(rank, dist.ProcessGroup(rank, exchange.ranks)))
                except Waiting:
                    assert not found, "a rank went on, another waits"
    return found
