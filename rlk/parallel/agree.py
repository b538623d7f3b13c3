"""The check, at start, that all ranks run the same numerics on the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import rlk
from rlk.env import UNSET, Env
from rlk.integrations.patching import Patched
from rlk.runtime.binding.checks import positive
from rlk.runtime.call.alike import REFUSED, check_alike, compare, default_seconds, exchanged, said_of, text_of
from rlk.runtime.call.collective import process_group, runs_alone

NAME = "agree"


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
    torch, and RLK_TRANSPORT; of a model its `numerics_id(device)` and leaves, if it has them
    (`rlk.nn.CausalLM`, or what `rlk.patch` returned; device: by default that of its parameters), and each
    parameter's name, dtype and shape (the whole shape of a DTensor), and whether it is frozen; and `facts`,
    by name: the number of micro-batches, the learning rate, a seed as text; tensors and NumPy arrays, also in
    lists, tuples and dicts, by dtype, shape and a digest of their bytes.

    timeout: seconds that a rank waits for others. A rank that does not call it within them, or dies, is an
    error on the others that names it (RANKS_MISSING); facts that differ are RANKS_DIFFER, with the values of
    the first ranks. One process has nobody to compare with, and it returns; where a launcher started several
    (WORLD_SIZE), a missing init_process_group is an error. Later, in collectives, ranks that die end by the
    timeout of init_process_group.
    """
    positive(NAME, "timeout", timeout)
    if group is None and runs_alone(NAME):
        return
    compare(NAME, process_group(NAME, group), timeout, _facts(model, device, facts), kind=NAME)


def agree_at_start(
    op: str, model: torch.nn.Module | Patched, group: dist.ProcessGroup, **facts: object
) -> None:
    """Compare what the ranks of a model are about to share, as `agree` does, before any of them sends.

    A rank waits for the others as long as the timeout of the default group's store: that of
    init_process_group, unless it was given a store. Raises LaunchError of `op`; where one rank has no facts,
    such as the numerics of a device that it lacks, it raises why, and the others that it did.
    """
    if group.size() == 1:
        return
    refusal: Exception | None = None
    try:
        own = facts_at_start(model, group, **facts)
    except Exception as error:
        refusal, own = error, {REFUSED: said_of(error)}
    every = told_at_start(op, group, own)
    if refusal is not None:
        raise refusal
    check_alike(op, every)


def facts_at_start(
    model: torch.nn.Module | Patched, group: dist.ProcessGroup, **facts: object
) -> dict[str, str]:
    """Return what a rank of a group tells of a model that ranks are about to share."""
    return _facts(model, None, facts | {"ranks": group.size()})


def told_at_start(op: str, group: dist.ProcessGroup, own: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return the facts of each rank of a group, by the store alone. Raises LaunchError of `op`."""
    return exchanged(op, group, default_seconds(), own, kind=NAME)


def _facts(
    model: torch.nn.Module | Patched | None,
    device: torch.device | str | None,
    more: Mapping[str, object],
) -> dict[str, str]:
    """Return what a rank tells: versions, of a model its numerics and shapes, and facts of the caller."""
    told = {name: text_of(value) for name, value in more.items()}
    return _versions() | _of_model(model, device) | told


def _versions() -> dict[str, str]:
    return {
        "rlk": rlk.__version__,
        "torch": torch.__version__,
        "RLK_TRANSPORT": Env.current().transport or UNSET,
    }


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
        frozen = "" if p.requires_grad else " frozen"  # ranks sum the gradients that all of them need
        found[name] = f"{str(p.dtype).removeprefix('torch.')} {list(p.shape)}{frozen}"
    return found
