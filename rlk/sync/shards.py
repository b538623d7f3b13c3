"""Weights of which ranks have shards: DTensors, and the shares of tensor parallelism, gathered one by one."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from rlk.runtime.binding.checks import wrong_value
from rlk.runtime.call.collective import SHARE, Share, ordered_gather


def is_shard(x: torch.Tensor) -> bool:
    """Return whether a parameter is a shard of ranks that can be gathered."""
    return isinstance(x, DTensor) or getattr(x, SHARE, None) is not None


def check_shard(op: str, name: str, x: torch.Tensor) -> None:
    """Raise LaunchError for a shard that cannot be gathered: a part of a sum, a DTensor of a share."""
    if not isinstance(x, DTensor):
        return
    if getattr(x, SHARE, None) is not None:
        wanted = "a DTensor of a whole weight, or a share that FSDP2 does not shard again"
        raise wrong_value(op, name, "a DTensor of a share of a weight", wanted)
    if any(each.is_partial() for each in x.placements):
        raise wrong_value(op, name, f"a DTensor of {x.placements}", "shards or copies, not parts of a sum")


def part_of(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of a shard, marked as it is: of merged weights, whose rows ranks share."""
    if rows is x:
        return x
    made = rows.detach()
    setattr(made, SHARE, getattr(x, SHARE))
    return made


def shape_of(x: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a whole weight."""
    share: Share | None = getattr(x, SHARE, None)
    ranks = {} if share is None else {share.dim: share.group.size()}
    return tuple(n * ranks.get(dim, 1) for dim, n in enumerate(x.shape))


def whole(x: torch.Tensor) -> torch.Tensor:
    """Return a whole weight, on every rank; x itself if it is no shard."""
    if isinstance(x, DTensor):
        gathered: torch.Tensor = x.detach().full_tensor()
        return gathered
    share: Share | None = getattr(x, SHARE, None)
    if share is None:
        return x.detach()
    parts = ordered_gather(x.detach(), share.group, op="rlk.sync")
    return parts.movedim(0, share.dim).flatten(share.dim, share.dim + 1)


def own(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a whole weight: that of a share x, or all of it."""
    share: Share | None = getattr(x, SHARE, None)
    if share is None:
        return weight
    return weight.chunk(share.group.size(), share.dim)[share.group.rank()]
