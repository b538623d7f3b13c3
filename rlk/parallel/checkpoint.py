"""Checkpoints of shared models: each rank reads the parts that it keeps, and one writes the whole."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rlk.errors import Code, LaunchError
from rlk.nn.checkpoint import check_tensors, dtype_of, load_tensors, read_checkpoint, write_checkpoint
from rlk.nn.experts import stored
from rlk.nn.model import CausalLM, check_dtype
from rlk.nn.modules import take_memory
from rlk.nn.ranks import Ranks
from rlk.parallel.agree import agree_at_start
from rlk.parallel.models import shared
from rlk.parallel.plan import check_shares, cuts_of, ranks_of
from rlk.parallel.styles import Plan, resolved, told
from rlk.runtime.call.collective import ordered_gather, share_of

LOAD, SAVE = "rlk.parallel.from_pretrained", "rlk.parallel.save_pretrained"


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
    before memory is taken. Raises LaunchError; where one rank cannot load, for any reason, all raise, and
    where ranks loaded other numerics or shapes, as `parallelize` does.
    """
    if dtype is not None:
        check_dtype(dtype)
    ranks = ranks_of(mesh, tp, sp)
    failure: Exception | None = None
    try:
        model, facts = _loaded(path, ranks, plan, dtype, leaves, device, resolve)
    except Exception as error:
        failure = error
    _raise_on_all(failure, LOAD, "load their shares", path, ranks)
    agree_at_start(LOAD, model, ranks, sp=sp, **facts)
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
    writes them. With data parallelism the ranks of one replica alone call it. Raises LaunchError; where the
    first rank cannot write, it raises what stopped it, the others LaunchError.
    """
    ranks = model.model.ranks
    if ranks is None:
        model.save_pretrained(folder, config=config, max_shard_size=max_shard_size)
        return
    given = model.config_to_write(config)
    whole = {}
    for name, p in model.named_parameters():  # of tied weights the embedding's name alone
        share = share_of(p)
        if share is not None:
            parts = ordered_gather(p.detach(), ranks.group, op=SAVE)
        if ranks.rank == 0:
            whole[name] = p.detach().cpu() if share is None else torch.cat([*parts.cpu()], share.dim)
    failure: Exception | None = None
    try:
        if ranks.rank == 0:
            write_checkpoint(folder, given, whole, max_shard_size)
    except Exception as error:
        failure = error
    _raise_on_all(failure, SAVE, "write", folder, ranks)


def _raise_on_all(
    failure: Exception | None, op: str, doing: str, path: str | os.PathLike[str], ranks: Ranks
) -> None:
    """Raise on every rank where one failed: alone it would leave the others waiting for it later."""
    if ranks.size > 1:
        flag = torch.tensor(failure is not None, device=_device_of(ranks.group))
        failed = ordered_gather(flag, ranks.group, op=op)
        if failure is None and bool(failed.any()):
            which = ", ".join(map(str, failed.nonzero().flatten().tolist()))
            what, instead = f"ranks that cannot {doing}: {which}", "see what they raised"
            raise LaunchError(Code.CHECKPOINT_FILE, path=os.fspath(path), what=what, instead=instead)
    if failure is not None:
        raise failure


def _device_of(group: dist.ProcessGroup) -> torch.device:
    """Return a device whose tensors a group moves: the host where it can, wherever the model may be."""
    kinds = [torch.device(each.type) for each in group._device_types]
    host = torch.device("cpu")
    return host if host in kinds or not kinds else kinds[0]


def _loaded(
    path: str | os.PathLike[str],
    ranks: Ranks,
    plan: Plan | None,
    dtype: torch.dtype | None,
    leaves: int | None,
    device: torch.device | str | None,
    resolve: dict[str, Any],
) -> tuple[CausalLM, dict[str, str]]:
    """Return a rank's model, and its plan as facts that ranks compare."""
    found, config = read_checkpoint(path, leaves, **resolve)
    model = CausalLM(config, device="meta", dtype=dtype_of(found) if dtype is None else dtype)
    styles = resolved(model, plan, ranks.sequence)
    check_shares(config, ranks, styles)
    facts = told(model, styles)
    sources = check_tensors(found, stored(dict(model.named_parameters()), config), config)
    cuts = {}
    if ranks.size > 1:
        cuts = cuts_of(model, ranks, styles)
        shared(model, ranks, styles)
    take_memory(model, device)
    load_tensors(stored(dict(model.named_parameters()), config), found, sources, cuts)
    model.source = found.config
    return model, facts
