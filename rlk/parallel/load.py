"""Checkpoints read into the shares of a rank: a rank reads the parts of tensors that it keeps."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from rlk.errors import Code, LaunchError, RlkError
from rlk.nn.checkpoint import check_tensors, load_tensors, read_checkpoint
from rlk.nn.experts import stored
from rlk.nn.model import CausalLM, check_dtype
from rlk.nn.modules import take_memory
from rlk.nn.ranks import Ranks
from rlk.parallel.models import shared
from rlk.parallel.plan import check_shares, cuts_of, ranks_of
from rlk.runtime.call.collective import ordered_gather

OP = "rlk.parallel.from_pretrained"


def from_pretrained(
    path: str | os.PathLike[str],
    mesh: DeviceMesh | dist.ProcessGroup,
    *,
    tp: str | int | None = None,
    sp: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    leaves: int | None = None,
    device: torch.device | str | None = None,
    **resolve: Any,
) -> CausalLM:
    """Load this rank's shares of a model: as `parallelize(CausalLM.from_pretrained(path, ...), mesh, ...)`.

    A rank reads the parts of the files' tensors that it keeps, and never has memory for a whole weight that
    ranks share. Arguments are those of `CausalLM.from_pretrained` and `parallelize`. Everything is checked
    before memory is taken. Raises LaunchError; where one rank cannot load its shares, all raise.
    """
    check_dtype(dtype)
    ranks = ranks_of(mesh, tp, sp)
    failure: RlkError | None = None
    try:
        model = _loaded(path, ranks, dtype, leaves, device, resolve)
    except RlkError as error:
        failure = error
    if ranks.size > 1:  # a rank that raised alone would leave the others waiting in their first collective
        on = torch.get_default_device() if device is None else device
        failed = ordered_gather(torch.tensor(failure is not None, device=on), ranks.group, op=OP)
        if failure is None and bool(failed.any()):
            which = ", ".join(map(str, failed.nonzero().flatten().tolist()))
            what = f"ranks that cannot load their shares: {which}"
            raise LaunchError(
                Code.CHECKPOINT_FILE, path=os.fspath(path), what=what, instead="see what they raised"
            )
    if failure is not None:
        raise failure
    return model


def _loaded(
    path: str | os.PathLike[str],
    ranks: Ranks,
    dtype: torch.dtype,
    leaves: int | None,
    device: torch.device | str | None,
    resolve: dict[str, Any],
) -> CausalLM:
    found, config = read_checkpoint(path, leaves, **resolve)
    check_shares(config, ranks)
    model = CausalLM(config, device="meta", dtype=dtype)
    sources = check_tensors(found, stored(dict(model.named_parameters()), config), config)
    cuts = {}
    if ranks.size > 1:
        cuts = cuts_of(model, ranks)
        shared(model, ranks)
    take_memory(model, device)
    load_tensors(stored(dict(model.named_parameters()), config), found, sources, cuts)
    model.source = found.config
    return model
