"""Parameters as this rank holds them: local tensors, gradients, and the place of a shard in its parameter."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlk.errors import Code, LaunchError
from rlk.runtime.call.collective import SHARE, Share

MAIN = "main_grad"
"""The attribute of a parameter that holds its f32 gradient, where its dtype is another (Megatron's name)."""


def share_of(op: str, name: str, p: torch.Tensor) -> Share | None:
    """Return a parameter's place among the shares of `rlk.parallel`, None for a whole one.

    Raises LaunchError for a DTensor of a share, as FSDP2 makes it of what a rank has.
    """
    share: Share | None = getattr(p, SHARE, None)
    if share is not None and isinstance(p, DTensor):
        found = f"a DTensor of a share of a weight, {tuple(p.shape)}"
        wanted = "a share of rlk.parallel, a whole parameter, or a DTensor of one"
        raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=found, wanted=wanted)
    return share


def gradient(p: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a parameter: `main_grad` where it has one, else `grad`."""
    found = getattr(p, MAIN, None)
    return p.grad if found is None else found


def local(x: torch.Tensor) -> torch.Tensor:
    """Return the memory of this rank of a parameter, a gradient or a state."""
    return x.to_local() if isinstance(x, DTensor) else x


@dataclass(frozen=True, slots=True)
class Place:
    """Element first + t // width * stride + t % width of a whole parameter is element t of a shard."""

    first: int
    width: int
    stride: int


def place(op: str, name: str, p: torch.Tensor) -> Place:
    """Return the place of this rank's elements of a parameter, split along one dim at most."""
    share = share_of(op, name, p)
    if share is not None:
        width = prod(p.shape[share.dim :])
        return Place(share.group.rank() * width, width, share.group.size() * width)
    if not isinstance(p, DTensor):
        return Place(0, max(p.numel(), 1), 0)
    split = {each.dim for each in p.placements if isinstance(each, Shard)}
    plain = all(type(each) in (Shard, Replicate) for each in p.placements)
    if len(split) > 1 or not plain:
        wanted = "a parameter that is split along one dim, or not"
        raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=p.placements, wanted=wanted)
    if not split:
        return Place(0, max(p.numel(), 1), 0)
    (dim,) = split
    shape, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    inner = prod(p.shape[dim + 1 :])
    return Place(offset[dim] * inner, max(shape[dim] * inner, 1), p.shape[dim] * inner)
