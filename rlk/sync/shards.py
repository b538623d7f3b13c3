"""Weights of which ranks have shards: DTensors, and the shares of tensor parallelism, gathered one by one."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlk.runtime.binding.checks import wrong_value
from rlk.runtime.call.collective import SHARE, ordered_gather, share_of


def reshard(model: torch.nn.Module) -> None:
    """Let FSDP2 put its shards back, since a forward pass without backward may leave gathered parameters."""
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()


def is_shard(x: torch.Tensor) -> bool:
    """Return whether a parameter is a shard of ranks that can be gathered."""
    return isinstance(x, DTensor) or share_of(x) is not None


def check_shard(op: str, name: str, x: torch.Tensor) -> None:
    """Raise LaunchError for a shard that cannot be gathered: a part of a sum."""
    if isinstance(x, DTensor) and any(each.is_partial() for each in x.placements):
        raise wrong_value(op, name, f"a DTensor of {x.placements}", "shards or copies, not parts of a sum")


def check_target(op: str, name: str, x: torch.Tensor) -> None:
    """Raise LaunchError for a shard that no part of a whole weight can be put into."""
    check_shard(op, name, x)
    if isinstance(x, DTensor) and not all(type(each) in (Shard, Replicate) for each in x.placements):
        wanted = "shards or copies along dims of its mesh"
        raise wrong_value(op, name, f"a DTensor of {x.placements}", wanted)


def part_of(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of a shard, marked as it is: of merged weights, whose rows ranks share."""
    if rows is x:
        return x
    made = rows.detach()
    setattr(made, SHARE, share_of(x))
    return made


def shape_of(x: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a whole weight."""
    share = share_of(x)
    ranks = {} if share is None else {share.dim: share.group.size()}
    return tuple(n * ranks.get(dim, 1) for dim, n in enumerate(x.shape))


def whole(x: torch.Tensor) -> torch.Tensor:
    """Return a whole weight, on every rank; x itself if it is no shard."""
    share, made = share_of(x), x.detach()
    if isinstance(made, DTensor):
        made = made.full_tensor()
    if share is None:
        return made
    parts = ordered_gather(made, share.group, op="rlk.sync")
    return parts.movedim(0, share.dim).flatten(share.dim, share.dim + 1)


def put(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Write this rank's part of a whole weight into x, a share, a DTensor, or a DTensor of a share.

    x may have the rows [N, ...] of weight as groups [N / n, n, ...].
    """
    share = share_of(x)
    if share is not None:
        weight = weight.chunk(share.group.size(), share.dim)[share.group.rank()]
    held = x.detach()
    if isinstance(held, DTensor):
        shape, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
        weight = weight[tuple(slice(at, at + n) for at, n in zip(offset, shape, strict=True))]
        held = held.to_local()
    held.copy_(weight.reshape(held.shape))
