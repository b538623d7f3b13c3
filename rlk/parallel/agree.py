"""The check, at start, that all ranks run the same numerics on the same model."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import rlk
from rlk.digest import digest_bytes
from rlk.errors import Code, LaunchError
from rlk.integrations.patching import Patched
from rlk.nn.ranks import Ranks
from rlk.runtime.binding.checks import positive
from rlk.runtime.call.collective import check_alike, one_process, process_group

NAME = "agree"
_calls: Counter[str] = Counter()
"""Calls of this process by group: every rank of a group makes the same calls, in the same order."""


def agree(
    model: torch.nn.Module | Patched | None = None,
    *,
    device: torch.device | str | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float = 60.0,
    **facts: object,
) -> None:
    """Compare what the ranks run, and raise the same LaunchError on all of them where they differ.

    Call it on every rank of the group after init_process_group and before the first collective: it uses the
    store of torch.distributed alone, no communication backend. What is compared: the versions of rlk and of
    torch; of a model its `numerics_id(device)` and leaves, if it has them (`rlk.nn.CausalLM`, or what
    `rlk.patch` returned; device: by default that of its parameters), and each parameter's name, dtype and
    shape (the whole shape of a DTensor); and `facts`, by name: the number of micro-batches, the learning
    rate, a seed as text; tensors and NumPy arrays, also in lists, tuples and dicts, by dtype, shape and a
    digest of their bytes.

    timeout: seconds that a rank waits for others. A rank that does not call it within them, or dies, is an
    error on the others that names it (RANKS_MISSING); facts that differ are RANKS_DIFFER, with the values of
    the first ranks. Without init_process_group there is nobody to compare with, and it returns. Later, in
    collectives, ranks that die end by the timeout of init_process_group.
    """
    positive(NAME, "timeout", timeout)
    if group is None and one_process():
        return
    _compare(NAME, process_group(NAME, group), timeout, _of_model(model, device), facts)


def agree_at_start(op: str, model: torch.nn.Module | Patched, ranks: Ranks, **facts: object) -> None:
    """Compare what the ranks of a model are about to share, as `agree` does, before any of them sends.

    A rank waits for the others as long as the timeout of the default group's store: that of
    init_process_group, unless it was given a store. Raises LaunchError of `op`.
    """
    if ranks.size > 1:
        seconds = _get_default_store().timeout.total_seconds()
        _compare(op, ranks.group, seconds, _of_model(model, None), facts | {"ranks": ranks.size})


def _compare(
    op: str, group: dist.ProcessGroup, timeout: float, own: Mapping[str, str], facts: Mapping[str, object]
) -> None:
    """Exchange facts of the ranks of a group through the store; raise the same LaunchError on all."""
    members = dist.get_process_group_ranks(group)
    mine = {**_versions(), **own, **{name: _text(value) for name, value in facts.items()}}
    rank, among = dist.get_rank(), ",".join(map(str, members))
    key = f"rlk/agree/{among}/{_calls[among]}"
    _calls[among] += 1
    store = _get_default_store()
    end = time.monotonic() + timeout
    try:
        store.set(f"{key}/{rank}", json.dumps(mine))
        _wait(op, store, [f"{key}/{r}" for r in members], members, end, timeout)
        every = {r: json.loads(store.get(f"{key}/{r}")) for r in members}
        # nobody raises, and so takes the store away, before all have read
        store.set(f"{key}/{rank}/read", "")
        _wait(op, store, [f"{key}/{r}/read" for r in members], members, end, timeout)
    except RuntimeError as error:  # the store is gone: LaunchError is no RuntimeError
        raise LaunchError(
            Code.RANKS_MISSING, op=op, missing="the store's or some", ranks=len(members), seconds=timeout
        ) from error
    check_alike(op, every)


def _text(value: object) -> str:
    """Return the text of a fact: equal for equal ones alone, where torch and NumPy leave elements out."""
    match value:
        case torch.Tensor():
            x = value.detach().cpu().contiguous()
            content = x.view(-1).view(torch.uint8).numpy().tobytes()
            return f"{x.dtype} {list(x.shape)} {digest_bytes(content)[:16]}"
        case np.ndarray():
            return f"{value.dtype} {list(value.shape)} {digest_bytes(value.tobytes())[:16]}"
        case Mapping():
            return f"{{{', '.join(f'{key!r}: {_text(each)}' for key, each in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(_text, value))}]"
    return str(value)


def _wait(
    op: str, store: dist.Store, keys: list[str], members: list[int], end: float, timeout: float
) -> None:
    """Wait for keys of ranks; raise LaunchError that names those without one at the end."""
    try:
        store.wait(keys, timedelta(seconds=max(end - time.monotonic(), 0.001)))
    except RuntimeError:  # a DistStoreError, but a file store raises no such kind
        late = [str(r) for r, key in zip(members, keys, strict=True) if not store.check([key])]
        if late:
            missing = f"rank {', '.join(late)}" if len(late) == 1 else f"ranks {', '.join(late)}"
            raise LaunchError(
                Code.RANKS_MISSING, op=op, missing=missing, ranks=len(members), seconds=timeout
            ) from None


def _versions() -> dict[str, str]:
    return {"rlk": rlk.__version__, "torch": torch.__version__}


def _of_model(model: torch.nn.Module | Patched | None, device: torch.device | str | None) -> dict[str, str]:
    if model is None:
        return {}
    found: dict[str, str] = {}
    any_model: Any = model
    whole = model.model if isinstance(model, Patched) else model
    parameters = list(whole.named_parameters())
    if hasattr(model, "numerics_id"):
        on = parameters[0][1].device if device is None else device
        found["numerics id"] = any_model.numerics_id("cpu" if torch.device(on).type == "meta" else on)
    if hasattr(getattr(model, "config", None), "leaves"):
        found["leaves"] = str(any_model.config.leaves)
    for name, p in parameters:
        found[name] = f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}"
    return found
