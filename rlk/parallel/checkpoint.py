"""Checkpoints of shared models: each rank reads the parts that it keeps, and one writes the whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rlk.errors import Code, LaunchError
from rlk.nn.checkpoint import check_tensors, dtype_of, load_tensors, read_checkpoint, write_checkpoint
from rlk.nn.experts import stored
from rlk.nn.model import CausalLM, check_device, check_dtype
from rlk.nn.modules import take_memory
from rlk.nn.ranks import Ranks
from rlk.parallel.agree import facts_at_start, told_at_start
from rlk.parallel.models import shared
from rlk.parallel.plan import OP, Styles, check_shares, cuts_of, group_of, ranks_in
from rlk.parallel.styles import Plan, plan_facts, resolved
from rlk.runtime.binding.checks import wrong_type
from rlk.runtime.call.alike import SHOWN, check_alike, said_of
from rlk.sync.shards import reshard, whole

LOAD, SAVE = "rlk.parallel.from_pretrained", "rlk.parallel.save_pretrained"
STOPPED = "stopped"
"""The fact that says what ranks have failed, and why."""


def from_pretrained(
    path: str | os.PathLike[str],
    mesh: DeviceMesh | dist.ProcessGroup,
    *,
    tp: str | int | None = None,
    sp: bool = False,
    plan: Plan | None = None,
    dtype: torch.dtype | None = None,
    leaves: int | None = None,
    device: torch.device | str | None = None,
    **resolve: Any,
) -> CausalLM:
    """Load this rank's shares of a model: as `parallelize(CausalLM.from_pretrained(path, ...), mesh, ...)`.

    A rank reads the parts of the files' tensors that it keeps, and never has memory for a whole weight that
    ranks share. Arguments are those of `CausalLM.from_pretrained` and `parallelize`. Everything is checked
    before memory is taken. Raises LaunchError; where one rank of a group cannot load, for any reason, all
    raise, and where ranks loaded other numerics or shapes, as `parallelize` does.
    """
    try:
        group = group_of(mesh, tp)
    except LaunchError as error:  # no group to tell it to
        raise error.reworded(op={OP: LOAD}) from None
    failure: Exception | None = None
    facts: dict[str, str] = {}
    try:
        model, styles = _loaded(path, ranks_in(group, sp), plan, dtype, leaves, device, resolve)
        if group.size() > 1:
            facts = facts_at_start(model, group, sp=sp, **plan_facts(model, styles))
    except LaunchError as error:
        told_of = error.reworded(op=dict.fromkeys((OP, "CausalLM"), LOAD))
        failure = told_of.with_traceback(error.__traceback__)
    except Exception as error:
        failure = error
    check_alike(LOAD, _raise_on_all(failure, LOAD, "load their shares", path, [group], facts))
    return model


def save_pretrained(
    model: CausalLM,
    folder: str | os.PathLike[str],
    *,
    config: object | None = None,
    max_shard_size: int | str = "5GB",
) -> None:
    """Write the whole weights of a shared model: as `CausalLM.save_pretrained`, whose arguments these are.

    Every rank of one group calls it; the first gathers the weights on its host, one after the other, and
    writes them. Where FSDP2 shards these, or whole weights, the ranks of its mesh call it; with other data
    parallelism the ranks of one replica alone call it. Raises LaunchError; where the first rank cannot write,
    it raises what stopped it, the others LaunchError. They wait for one that cannot gather a weight.
    """
    if not isinstance(model, CausalLM):
        wanted = "rlk.nn.CausalLM: rlk.sync.transfer(model, whole) into one, and save that"
        raise wrong_type(SAVE, "model", model, wanted)
    ranks = model.model.ranks
    if ranks is None and not any(isinstance(p, DTensor) for p in model.parameters()):
        model.save_pretrained(folder, config=config, max_shard_size=max_shard_size)
        return
    reshard(model)
    groups = _groups_of(model, ranks)
    writes = all(group.rank() == 0 for group in groups)
    weights: dict[str, torch.Tensor] = {}
    failure: Exception | None = None
    for name, p in model.named_parameters():  # of tied weights the embedding's name alone
        weight = whole(p)  # also after a failure: the other ranks gather it
        try:
            if writes and failure is None:
                weights[name] = weight.cpu()
        except Exception as error:
            failure = error
    try:
        if writes and failure is None:
            write_checkpoint(
                folder, model.config_to_write(config), stored(weights, model.config), max_shard_size
            )
    except Exception as error:
        failure = error
    _raise_on_all(failure, SAVE, "write", folder, groups)


def _groups_of(model: CausalLM, ranks: Ranks | None) -> list[dist.ProcessGroup]:
    """Return the groups whose ranks have parts of a model: one for each dim of the mesh that they make."""
    found = {} if ranks is None else {ranks.group.group_name: ranks.group}
    for p in model.parameters():
        if isinstance(p, DTensor):
            each = [p.device_mesh.get_group(dim) for dim in range(p.device_mesh.ndim)]
            found |= {group.group_name: group for group in each}
    return list(found.values())


def _raise_on_all(
    failure: Exception | None,
    op: str,
    doing: str,
    path: str | os.PathLike[str],
    groups: Sequence[dist.ProcessGroup],
    facts: Mapping[str, str] | None = None,
) -> dict[int, dict[str, str]]:
    """Raise on every rank where one failed: alone it would leave the others waiting for it later.

    They tell each other so, and facts, through the store. Returns the facts of each rank of the last group.
    """
    stopped = {} if failure is None else {dist.get_rank(): said_of(failure)}
    every: dict[int, dict[str, str]] = {}
    for group in groups:  # dims of a mesh: after the last one all ranks know
        if group.size() > 1:
            own = {**(facts or {}), STOPPED: json.dumps(stopped)}
            every = told_at_start(op, group, own)
            for each in every.values():
                stopped |= json.loads(each.pop(STOPPED))
    if failure is not None:
        raise failure
    if stopped:
        which = ", ".join(f"{rank} ({said})" for rank, said in sorted(stopped.items())[:SHOWN])
        what, instead = f"ranks that cannot {doing}: {which}", "see what they raised"
        raise LaunchError(Code.CHECKPOINT_FILE, path=os.fspath(path), what=what, instead=instead)
    return every


def _loaded(
    path: str | os.PathLike[str],
    ranks: Ranks,
    plan: Plan | None,
    dtype: torch.dtype | None,
    leaves: int | None,
    device: torch.device | str | None,
    resolve: dict[str, Any],
) -> tuple[CausalLM, Styles]:
    """Return a rank's model, and how ranks share its modules."""
    if dtype is not None:
        check_dtype(dtype)
    check_device(device)
    found, config = read_checkpoint(path, leaves, **resolve)
    model = CausalLM(config, device="meta", dtype=dtype_of(found) if dtype is None else dtype)
    styles = resolved(model, plan, ranks.sequence)
    check_shares(config, ranks, styles)
    sources = check_tensors(found, stored(dict(model.named_parameters()), config), config)
    cuts = {}
    if ranks.size > 1:
        cuts = cuts_of(model, ranks, styles)
        shared(model, ranks, styles)
    take_memory(model, device)
    load_tensors(stored(dict(model.named_parameters()), config), found, sources, cuts)
    model.source = found.config
    return model, styles
