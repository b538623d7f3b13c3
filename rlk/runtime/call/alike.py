"""Facts that ranks must have alike: their texts, and their comparison through torch.distributed's store."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from rlk.digest import digest_bytes
from rlk.errors import Code, LaunchError, RlkError

SHOWN = 8
"""Facts that an error names, and numbers of a short tensor that it shows."""
REFUSED = "refused"
"""The tokens of a rank that refused its ids; and the fact, alone, that says what a rank raises."""
VERSIONS, MODEL = ("rlk", "torch"), ("numerics id", "leaves")
SHAPE = re.compile(r"\w+ \[[\d, ]*\]( frozen)?")
"""The dtype and shape of a parameter."""
CALL = (
    "call", "tokens", "digest of ids", "cu_seqlens", "context_lens", "temperature", "needs", "support",
    "labels",
)  # fmt: skip
"""Facts of a call that ranks which share weights make together."""
SAME_CALLS = (
    "ranks that share weights make the same calls, with the ids of all tokens, whichever rows they keep: "
    "prompts, seeds and options of generate too"
)
_calls: Counter[tuple[str, str]] = Counter()
"""Comparisons of this process by kind and group: every rank of a group makes the same ones, in one order."""
_kept: Counter[tuple[str, str]] = Counter()
"""The first of them of which this rank's keys are in the store: it waits for nobody where it refuses."""


def compare(
    op: str, group: dist.ProcessGroup, seconds: float, own: Mapping[str, str], *, kind: str, of: str = ""
) -> None:
    """Exchange facts of the ranks of a group through the store; raise the same LaunchError on all.

    Arguments and errors are those of `exchanged`, and RANKS_DIFFER.
    """
    check_alike(op, exchanged(op, group, seconds, own, kind=kind, of=of))


def exchanged(
    op: str, group: dist.ProcessGroup, seconds: float, own: Mapping[str, str], *, kind: str, of: str = ""
) -> dict[int, dict[str, str]]:
    """Return the facts of each rank of a group, through the store: no communication backend is used.

    seconds: how long this rank waits for the others. kind: comparisons of one kind are counted together. of:
    what op is called with, where others do not come.
    Raises RANKS_MISSING, which names the ranks that told nothing, and RANKS_STORE.
    """
    members = dist.get_process_group_ranks(group)
    rank, among = dist.get_rank(), (kind, _name(members))
    number, key = _calls[among], _next(kind, members)
    _calls[among] += 1
    store, end = _get_default_store(), time.monotonic() + seconds
    try:
        store.set(f"{key}/{rank}", json.dumps(own))
        _wait(f"{op}{of}", store, [f"{key}/{r}" for r in members], members, end, seconds)
        for each in range(_kept[among], number):  # all ranks have left these comparisons
            for old in (f"{_key(*among, each)}/{rank}", f"{_key(*among, each)}/{rank}/read"):
                store.delete_key(old)
        _kept[among] = number
        every: dict[int, dict[str, str]] = {r: json.loads(store.get(f"{key}/{r}")) for r in members}
        # nobody raises, and so takes the store away, before all have read
        store.set(f"{key}/{rank}/read", "")
        _wait(op, store, [f"{key}/{r}/read" for r in members], members, end, seconds)
    except RuntimeError as error:  # LaunchError is none
        said = str(error).partition("\n")[0]
        raise LaunchError(Code.RANKS_STORE, op=op, error=f"{type(error).__name__}: {said}") from error
    return every


def refuse(group: dist.ProcessGroup, error: Exception, *, kind: str) -> None:
    """Tell the ranks of a group what this one raises instead of comparing facts; wait for none of them.

    Those that come to this comparison raise RANKS_DIFFER; a rank that compares nothing finds it by
    `check_none_waits`.
    """
    rank, members = dist.get_rank(), dist.get_process_group_ranks(group)
    key = _next(kind, members)
    _calls[kind, _name(members)] += 1
    with suppress(RuntimeError):  # the store is gone: the error itself is raised
        store = _get_default_store()
        store.set(f"{key}/{rank}", json.dumps({REFUSED: said_of(error)}))
        store.set(f"{key}/{rank}/read", "")


def said_of(error: Exception) -> str:
    """Return what other ranks are told of an error: its first line."""
    said = str(error).partition("\n")[0]
    return said if isinstance(error, RlkError) else f"{type(error).__name__}: {said}"


def default_seconds() -> float:
    """Return the timeout of the default group's store: that of init_process_group, unless it got a store."""
    return float(_get_default_store().timeout.total_seconds())


def check_none_waits(op: str, group: dist.ProcessGroup, own: Mapping[str, str], *, kind: str) -> None:
    """Raise RANKS_DIFFER if others of a group wait to compare facts, of a call that this rank failed in."""
    members = dist.get_process_group_ranks(group)
    key = _next(kind, members)
    try:
        store = _get_default_store()
        told = {r: json.loads(store.get(f"{key}/{r}")) for r in members if store.check([f"{key}/{r}"])}
    except RuntimeError:  # the store is gone: what was raised before says why
        return
    check_alike(op, {dist.get_rank(): own, **told})


def _next(kind: str, members: Sequence[int]) -> str:
    """Return the name in the store of a group's next comparison of a kind."""
    among = _name(members)
    return _key(kind, among, _calls[kind, among])


def _key(kind: str, among: str, number: int) -> str:
    return f"rlk/{kind}/{among}/{number}"


def _name(members: Sequence[int]) -> str:
    return ",".join(map(str, members))


def _wait(
    op: str, store: dist.Store, keys: list[str], members: list[int], end: float, seconds: float
) -> None:
    """Wait for keys of ranks; raise LaunchError that names those without one at the end."""
    try:
        store.wait(keys, timedelta(seconds=max(end - time.monotonic(), 0.001)))
    except RuntimeError:  # a DistStoreError, but a file store raises no such kind
        late = [str(r) for r, key in zip(members, keys, strict=True) if not store.check([key])]
        if late:
            missing = f"rank {', '.join(late)}" if len(late) == 1 else f"ranks {', '.join(late)}"
            raise LaunchError(
                Code.RANKS_MISSING, op=op, missing=missing, ranks=len(members), seconds=seconds
            ) from None


def check_alike(op: str, every: Mapping[int, Mapping[str, str]]) -> None:
    """Raise LaunchError with the facts, by name, that are not the same on all ranks, the keys of `every`.

    Where a rank refused, that alone is named.
    """
    if any(facts.keys() == {REFUSED} for facts in every.values()):  # among others it is one of the caller's
        every = {r: facts if facts.keys() == {REFUSED} else {} for r, facts in every.items()}
    if lines := differences(every):
        more = [f"    and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        text = "\n".join([f"    {line}" for line in lines[:SHOWN]] + more)
        count = f"{len(lines)} fact{'' if len(lines) == 1 else 's'}"
        raise LaunchError(Code.RANKS_DIFFER, op=op, count=count, found=text, remedy=_remedy(every))


def _remedy(every: Mapping[int, Mapping[str, str]]) -> str:
    """Return what mends the facts that differ, in the order in which they are shown."""
    names = dict.fromkeys(name for facts in every.values() for name in facts)
    found, same = dict[str, None](), list[str]()
    for name in names:
        values = [facts.get(name, "nothing") for facts in every.values()]
        if len(set(values)) == 1:
            continue
        if name in VERSIONS:
            found["start all ranks with one version of rlk and of torch"] = None
        elif name in MODEL or any(SHAPE.fullmatch(value) for value in values):
            found["give all ranks one model, with the same leaves and frozen parameters"] = None
        elif names.keys() == {REFUSED} or REFUSED in values:
            rank = next(r for r, facts in every.items() if name in facts and REFUSED in (name, facts[name]))
            found[f"see the error of rank {rank}"] = None
        elif name in CALL:
            found[SAME_CALLS] = None
        else:
            option = "plan" if name.startswith("plan of ") else name
            same += [] if option in same else [option]
    if same:
        more = f" and {len(same) - SHOWN} more" if len(same) > SHOWN else ""
        found[f"give all ranks the same {', '.join(same[:SHOWN])}{more}"] = None
    return "; ".join(found)


def differences(every: Mapping[int, Mapping[str, str]]) -> list[str]:
    """Return a line for each fact that is not the same on all ranks: one rank of each value."""
    found = []
    for name in dict.fromkeys(name for facts in every.values() for name in facts):
        values: dict[str, int] = {}
        for rank, facts in every.items():
            values.setdefault(facts.get(name, "nothing"), rank)
        if len(values) > 1:
            found.append(f"{name}: " + ", ".join(f"{v} on rank {r}" for v, r in values.items()))
    return found


def text_of(value: object) -> str:
    """Return the text of a fact: equal for equal ones alone, where torch and NumPy leave elements out."""
    match value:
        case torch.Tensor():
            x = value.detach().cpu().contiguous()
            content = x.view(-1).view(torch.uint8).numpy().tobytes()
            return f"{x.dtype} {list(x.shape)} {digest_bytes(content)[:16]}"
        case np.ndarray():
            return f"{value.dtype} {list(value.shape)} {digest_bytes(value.tobytes())[:16]}"
        case Mapping():
            items = sorted((repr(key), text_of(each)) for key, each in value.items())  # equal in any order
            return f"{{{', '.join(f'{key}: {each}' for key, each in items)}}}"
        case list() | tuple():
            return f"[{', '.join(map(text_of, value))}]"
    return str(value)
