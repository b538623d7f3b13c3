"""State dicts of models whose weights ranks share, for torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rlk.integrations.patching import Patched
from rlk.nn.ranks import Ranks
from rlk.runtime.binding.checks import wrong_type
from rlk.runtime.binding.parts import part, plain
from rlk.runtime.call.collective import share_of
from rlk.runtime.call.marked import mark_anew
from rlk.sync.shards import check_target, reshard, shape_of

NAME = "sharded_state_dict"


@torch.no_grad()
def sharded_state_dict(model: torch.nn.Module | Patched) -> dict[str, torch.Tensor]:
    """Return a model's state for torch.distributed.checkpoint (DCP), whose tensors are the model's memory.

    model: one that `parallelize` or `from_pretrained` shared, also under FSDP2, one with layers of
    `rlk.parallel`, or any other. A rank's share of a weight is a DTensor of the whole weight, all else what
    `state_dict()` has. So `dcp.save` writes whole weights under the model's names, and `dcp.load` into the
    state of a model reads its parts of them into the model, whichever ranks shared or sharded the model that
    was saved. Every rank calls dcp.save and dcp.load, those of data parallelism too. These DTensors are for
    DCP alone: nothing computes with them. Raises LaunchError.
    """
    whole = model.model if isinstance(model, Patched) else model
    if not isinstance(whole, torch.nn.Module):
        raise wrong_type(NAME, "model", model, "torch.nn.Module")
    reshard(whole)
    mark_anew(whole)
    mesh_of: dict[dist.ProcessGroup, DeviceMesh] = {}
    # the parameters themselves, which are marked, by names without those of wrappers (activation checkpoints)
    state = whole.state_dict(keep_vars=True)
    return {name: _for_dcp(name, x, mesh_of) for name, x in state.items()}


def _for_dcp(name: str, p: Any, mesh_of: dict[dist.ProcessGroup, DeviceMesh]) -> Any:
    """Return a share as a DTensor of the whole weight on the ranks that share it, all else as it is."""
    if not isinstance(p, torch.Tensor):
        return p  # what a module's get_extra_state returned
    share = share_of(p)
    if share is None:
        return p.detach()
    check_target(NAME, name, p)
    if share.group not in mesh_of:
        mesh_of[share.group] = DeviceMesh.from_group(share.group, p.device.type)
    local, offset = p.detach(), [0] * p.dim()
    if isinstance(local, DTensor):  # a shard of the share
        _, found = compute_local_shape_and_global_offset(p.shape, local.device_mesh, local.placements)
        local, offset = local.to_local(), [*found]
    offset[share.dim] += share.group.rank() * p.shape[share.dim]
    # which tells DCP the part's place; async_save cannot copy a DTensor of a view, as merged weights are
    held = LocalShardsWrapper(*([local], [tuple(offset)]) if local.numel() else ([], []))
    shape = shape_of(p)
    stride = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(
        held, mesh_of[share.group], [Shard(share.dim)], run_check=False, shape=torch.Size(shape),
        stride=stride,
    )  # fmt: skip


def mark_parts(module: torch.nn.Module, names: Collection[str], ranks: Ranks) -> None:
    """Let parameters of a module, of which a rank has a part, say so in state dicts."""
    if names and ranks.size > 1:
        module.register_state_dict_post_hook(partial(_mark, tuple(names)))
        module.register_load_state_dict_pre_hook(partial(_unmark, tuple(names)))


def _mark(names: tuple[str, ...], module: torch.nn.Module, state: Any, prefix: str, _: object) -> None:
    for name in names:
        x = state.get(f"{prefix}{name}")
        if x is not None and not isinstance(x, torch.nn.Parameter):  # keep_vars=True
            state[f"{prefix}{name}"] = part(x)


def _unmark(names: tuple[str, ...], module: torch.nn.Module, state: Any, prefix: str, *_: object) -> None:
    for name in names:  # which load_state_dict(assign=True) would make parameters
        if isinstance(x := state.get(f"{prefix}{name}"), torch.Tensor):
            state[f"{prefix}{name}"] = plain(x)
