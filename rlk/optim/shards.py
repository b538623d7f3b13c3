"""Parameters as this rank holds them: local tensors, gradients, and the place of a shard in its parameter."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlk.errors import Code, LaunchError
from rlk.runtime.call.collective import share_of

MAIN = "main_grad"
"""The attribute of a parameter that holds its f32 gradient, where its dtype is another (Megatron's name)."""


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
    """Return the place of this rank's elements of a parameter.

    p: whole, a share of `rlk.parallel`, or a DTensor of either, which is split along one dim at most. Raises
    LaunchError.
    """
    shape, offset = [*p.shape], [0] * p.dim()
    if isinstance(p, DTensor):
        split = {each.dim for each in p.placements if isinstance(each, Shard)}
        if len(split) > 1 or not all(type(each) in (Shard, Replicate) for each in p.placements):
            wanted = "a parameter that is split along one dim, or not"
            raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=p.placements, wanted=wanted)
        own = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
        shape, offset = [*own[0]], [*own[1]]
    extents = [*p.shape]
    if (share := share_of(p)) is not None:
        offset[share.dim] += share.group.rank() * extents[share.dim]
        extents[share.dim] *= share.group.size()
    return _place(op, name, shape, offset, extents)


def _place(op: str, name: str, shape: list[int], offset: list[int], extents: list[int]) -> Place:
    """Return the place of a block of a shape at an offset of a tensor of some extents."""
    split = [dim for dim, (n, whole) in enumerate(zip(shape, extents, strict=True)) if n != whole]
    if not split:
        return Place(0, max(prod(shape), 1), 0)
    last = split[-1]
    if any(dim and prod(extents[:dim]) > 1 for dim in split[:-1]):
        wanted = "a parameter that is split along its first dim and another at most"
        raise LaunchError(Code.ARG_VALUE, op=op, name=name, value=tuple(shape), wanted=wanted)
    inner = prod(extents[last + 1 :])
    stride = extents[last] * inner
    before = sum(offset[dim] * prod(extents[dim + 1 : last]) for dim in split[:-1])
    return Place(before * stride + offset[last] * inner, max(shape[last] * inner, 1), stride)
