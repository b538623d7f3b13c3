"""Results of every rank of a shared linear head: `python -m head_cases BACKEND WORLD RANK FOLDER`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from linear_cases import NEEDS, TOKENS, cotangents, head, options_of
from rank_cases import LIMIT, Found, Kind, member, refused
from torch.distributed.distributed_c10d import _get_default_store

from rlk import Layout, ops
from rlk.ops import Loss, sharded
from rlk.runtime.call import alike, collective

ROWS, DEPTH, VOCABULARY = (3, 7), 24, 8 * 270  # two chunks in each piece
PARTS = 8  # ids are chosen at the edges of 8 shards, so at those of 2 and 4
MANY = 1 << 30
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """One call of a linear head: its sizes, its options by name, what is given, what has a gradient.

    given: the results that have a cotangent. leaves: the inputs that have a gradient. buffer: the gradient of
    weight is added to a buffer. edges: ids at the edges of shards and outside of the vocabulary.
    """

    options: tuple[str, ...] = ()
    given: tuple[str, ...] = NEEDS
    leaves: tuple[str, ...] = ("hidden", "weight")
    rows: tuple[int, ...] = ROWS
    depth: int = DEPTH
    vocabulary: int = VOCABULARY
    dtype: torch.dtype = torch.float16  # more of the f32 sums is seen than in bf16
    ids: torch.dtype = torch.int64
    keep: bool = False
    buffer: bool = False
    edges: bool = False
    math: str | None = None


TEMPERATURE = ("temperature by row", "softcap", "logit_scale")
IGNORED = ("mask", "ignore_index")
LONG = Head(("mask",), rows=(TOKENS + 40,), depth=3, vocabulary=2 * PARTS, buffer=True)
HEADS: dict[str, Head] = {
    "plain": Head(),
    "bf16, sm90": Head(dtype=torch.bfloat16, math="sm90"),
    "packed": Head(rows=(21,), ids=torch.int32),
    "temperature by row, softcap, scale": Head(TEMPERATURE),
    "mask and ignored ids": Head(IGNORED, edges=True),
    "ids at edges and outside": Head(edges=True, ids=torch.int32),
    "a frozen bias": Head(("bias",)),
    "logp alone": Head(given=("logp",)),
    "lse alone": Head(given=("lse",)),
    "entropy alone": Head(given=("entropy",)),
    "logp and entropy": Head(given=("logp", "entropy"), dtype=torch.bfloat16),
    "hidden is frozen": Head(leaves=("weight",)),
    "weight is frozen": Head(leaves=("hidden",)),
    "nothing has a gradient": Head(leaves=()),
    "logits are kept": Head(("bias", *TEMPERATURE, *IGNORED), keep=True, edges=True),
    "a buffer is added to": Head(buffer=True),
    "a buffer, and all options": Head(
        ("bias", *TEMPERATURE, *IGNORED), keep=True, buffer=True, edges=True, dtype=torch.bfloat16
    ),
    "a support by thresholds": Head(("threshold",)),
    "a support of ids": Head(("listed", *TEMPERATURE), edges=True),
    "a support of ids, a buffer, bf16": Head(("listed", *IGNORED), buffer=True, dtype=torch.bfloat16),
    "a support by thresholds, and all options": Head(
        ("threshold", *TEMPERATURE, *IGNORED), keep=True, buffer=True, edges=True
    ),
    "one row": Head(rows=(1,), dtype=torch.bfloat16),
    "no row": Head(rows=(0,)),
    "as many words as ranks": Head(rows=(5,), depth=3, vocabulary=PARTS),
    "more rows than a piece": LONG,
    "more rows than a piece, kept": replace(LONG, keep=True),
}
POLICIES = {
    "packed": Head(rows=(21,)),
    "padded": Head(dtype=torch.bfloat16),
    "kept, to a buffer": Head(keep=True, buffer=True),
}


def drawn(head_: Head) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return hidden, weight, ids and options of the whole vocabulary."""
    size, count = head_.vocabulary, head_.vocabulary // PARTS
    known = options_of(head_.rows, size, head_.dtype)
    ignored = known["ignore_index"]["ignore_index"] if "ignore_index" in head_.options else -100
    hidden, weight, ids = head(head_.rows, head_.depth, size, head_.dtype, ignored=ignored)
    known |= supports_of(hidden, weight) if {"threshold", "listed"} & {*head_.options} else {}
    options = {name: x for option in head_.options for name, x in known[option].items()}
    if head_.edges:
        flat = ids.view(-1)
        # what is left of these by subtracting where a shard begins is the ignored id
        flat[6:13] = ignored + count * torch.arange(1, PARTS)
        flat[13:21] = torch.tensor([0, count - 1, count, size // 2, size - 1, size, size + 5, -5])
    return hidden, weight, ids.to(head_.ids), options


def supports_of(hidden: torch.Tensor, weight: torch.Tensor) -> dict[str, dict[str, Any]]:
    """Return a support of each row by a threshold, and one of ids drawn by row.

    A threshold is the score of a token, which every other row keeps. In some rows no id is of the first
    shards; the last row keeps one id alone.
    """
    rows, size = hidden.shape[:-1], len(weight)
    count = math.prod(rows)
    scores = ops.matmul(hidden, weight, out_dtype=torch.float32).reshape(count, size)
    at = torch.arange(count) * (size // count)
    edge = scores[torch.arange(count), at].reshape(rows)
    last = (at - torch.arange(count) % 2).to(torch.int32).reshape(rows)
    kept = torch.rand(count, size, generator=torch.Generator().manual_seed(6)) < 0.5
    kept[: count // 2, : size // 3] = False
    kept[count - 1 :, :-1] = False
    kept[count - 1 :, -1] = True
    listed = ops.Csr(torch.tensor([0, *kept.sum(-1).cumsum(0)]), kept.nonzero()[:, 1])
    by_threshold = ops.Support(edge, torch.ones(rows, dtype=torch.int32), last)
    return {"threshold": {"support": by_threshold}, "listed": {"support": listed}}


def shard_of(rank: int, world: int, vocabulary: int) -> slice:
    return slice(rank * (vocabulary // world), (rank + 1) * (vocabulary // world))


def buffer_of(head_: Head) -> torch.Tensor:
    """Return what is in the buffer of the whole weight before a gradient is added to it."""
    shape = (head_.vocabulary, head_.depth)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Options], dict[str, torch.Tensor]]


def computed(
    head_: Head, call: Call, device: torch.device, world: int = 1, rank: int = 0, group: object = None
) -> Found:
    """Return what one rank finds: results, gradients, and the buffer."""
    hidden, weight, ids, options = drawn(head_)
    part = shard_of(rank, world, len(weight))
    options |= {"bias": options["bias"][part]} if "bias" in options else {}
    options = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    if "support" in options:
        options["support"] = type(options["support"])(*(x.to(device) for x in options["support"]))
    options |= {"math": head_.math} if head_.math else {}
    options |= {"group": group, "vocab_start": part.start} if group is not None else {}
    options |= {"keep_logits": MANY} if head_.keep else {}
    added = buffer_of(head_)[part].to(device) if head_.buffer else None
    options |= {} if added is None else {"weight_grad_out": added}
    leaves = {"hidden": hidden.to(device), "weight": weight[part].to(device)}
    for name in head_.leaves:
        leaves[name].requires_grad_()
    made = call(leaves["hidden"], leaves["weight"], ids.to(device), options)
    given = cotangents(head_.rows, tuple(made))
    smooth = {n: y for n, y in made.items() if n in head_.given or n == "loss"} if head_.leaves else {}
    if smooth:
        some = [None if n == "loss" else given[n].to(device) for n in smooth]
        torch.autograd.backward(list(smooth.values()), some)
    found = {n: y.detach().cpu() for n, y in made.items()}
    found |= {f"d_{n}": x.grad.cpu() for n, x in leaves.items() if x.grad is not None}
    return found | ({} if added is None else {"buffer": added.cpu()})


def log_probs(head_: Head, *where: Any, compiled: bool = False) -> Found:
    """Return what one rank finds for `linear_logp`, in one graph where it is compiled."""

    def call(
        hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, options: Options
    ) -> dict[str, torch.Tensor]:
        made = ops.linear_logp(hidden, weight, ids, needs=NEEDS, **options)
        return {name: getattr(made, name) for name in NEEDS}

    if compiled:
        torch._dynamo.reset()
        return computed(head_, torch.compile(call, fullgraph=True, backend="aot_eager"), *where)
    return computed(head_, call, *where)


def policy_losses(head_: Head, *where: Any) -> Found:
    """Return what one rank finds for `linear_policy_loss`."""

    def call(
        hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, options: Options
    ) -> dict[str, torch.Tensor]:
        numbers = cotangents(head_.rows, ("old_logp", "ref_logp"), seed=8)
        numbers = {n: x.to(ids.device) - 8.0 for n, x in numbers.items()}
        advantages = torch.tensor([1.0, -0.5, 2.0], device=ids.device)
        record = Loss(beta=0.1, entropy_coef=0.01)
        at = torch.tensor([0, 8, 13, 20] if len(head_.rows) == 1 else [7, 5, 3], device=ids.device)
        packed = len(head_.rows) == 1
        layout = Layout.packed(at, tokens=21, outside="padding") if packed else Layout.padded(at, 7)
        ids = ids.clamp(min=0)
        old, ref = numbers["old_logp"], numbers["ref_logp"]
        made = ops.linear_policy_loss(
            hidden, weight, ids, old, advantages, layout=layout, loss=record, ref_logp=ref, **options
        )
        return {"loss": made.loss, "per_token": made.per_token, **made.metrics}

    return computed(head_, call, *where)


SENT = (
    "plain", "packed", "a frozen bias", "ids at edges and outside", "entropy alone", "hidden is frozen",
    "weight is frozen", "nothing has a gradient", "a buffer, and all options", "no row",
)  # fmt: skip
"""Heads that processes compute; all of them are computed by ranks of one process."""

LARGE = Head(rows=(4, 33), depth=512, vocabulary=8 * 640)
ON_DEVICES = {
    "a buffer, and all options": replace(
        LARGE, options=("bias", *TEMPERATURE, *IGNORED), keep=True, buffer=True, edges=True
    ),
    "many words": Head(
        rows=(40,), depth=128, vocabulary=128256 // 8, dtype=torch.bfloat16, ids=torch.int32, given=("logp",)
    ),
}
"""Heads that devices compute, each of which compiles kernels."""


def everything(world: int, rank: int, device: torch.device) -> Found:
    """Return what a rank finds in the group of all, and in one of two ranks."""
    if device.type != "cpu":
        where = (device, world, rank, dist.group.WORLD)
        return {"heads": {name: log_probs(head_, *where) for name, head_ in ON_DEVICES.items()}}
    name, where = SENT[-2], (device, world, rank, dist.group.WORLD)
    found: Found = {"compiled": log_probs(HEADS[name], *where, compiled=True)}
    sizes = {world: (rank, dist.group.WORLD)}
    if world == 4:
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        sizes[2] = rank // 2, groups[rank % 2]
    for size, (place, group) in sizes.items():
        where = (device, size, place, group)
        found[f"heads of {size}"] = {name: log_probs(HEADS[name], *where) for name in SENT}
        found[f"policies of {size}"] = {
            name: policy_losses(head_, *where) for name, head_ in POLICIES.items()
        }
    return found | {"disagreements": disagreements(world, rank)}


def disagreements(world: int, rank: int) -> Found:
    """Return what ranks raise of which the last one calls a head otherwise; how often they compare calls."""
    last, compared = rank == world - 1, 0
    hidden, weight = (torch.ones(n, 8, dtype=torch.bfloat16) for n in (21, 272))
    half = torch.float16 if last else torch.bfloat16

    def called(
        count: int = 21,
        size: int = 270,
        dtype: torch.dtype = torch.bfloat16,
        of_weight: torch.dtype | None = None,
        of_ids: torch.dtype = torch.int64,
        **options: Any,
    ) -> object:
        leaf = hidden[:count].to(dtype).requires_grad_(options.pop("summed", True))
        ids = torch.arange(count, dtype=of_ids)
        given = {"group": dist.group.WORLD, "vocab_start": rank * size} | options
        return ops.linear_logp(leaf, weight[:size].to(of_weight or dtype), ids, **given)

    buffer, kind = torch.zeros(270, 8), Kind if last else torch.Tensor
    # new to the group: of a known call the others would learn by the timeout of their backend
    refusals: dict[str, Callable[[], object]] = {
        "buffer": lambda: called(17, weight_grad_out=buffer.half() if last else buffer),
        "temperature": lambda: called(16, temperature=-1.0 if last else 1.0),
        "math": lambda: called(15, math=["sm90"] if last else None),
        "kept": lambda: called(support=ops.Csr(torch.arange(22), torch.arange(21) - int(last))),
        "start": lambda: called(12, **{"vocab_start": "0"} if last else {}),
        "slope": lambda: called(temperature=torch.ones(21).requires_grad_(last)),
        "tensors": lambda: called(14, bias=buffer[:, 0].bfloat16().as_subclass(kind)),
    }

    calls: dict[str, Callable[[], object]] = {
        "rows": lambda: called(20 if last else 21),
        "shards": lambda: called(size=272 if last else 270, vocab_start=rank * 270),
        "begins": lambda: called(**{"vocab_start": 0} if last else {}),
        "dtype": lambda: called(dtype=half),
        "dtype of weight": lambda: called(of_weight=torch.float32 if last else None),
        "dtype of ids": lambda: called(of_ids=torch.int32 if last else torch.int64),
        "bias": lambda: called(bias=torch.ones(269 if last else 270, dtype=torch.bfloat16)),
        "mask": lambda: called(**{"mask": torch.arange(21) < 9} if last else {}),
        "softcap": lambda: called(softcap=3.0 if last else 2.0),
        "needs": lambda: called(needs=("logp", "entropy") if last else ("logp",)),
        "frozen": lambda: called(summed=not last),
        "alike": called,
    }
    found: Found = {name: refused(call) for name, call in calls.items()}
    found["refused"] = {name: refused(call) for name, call in refusals.items()}

    def counted(*given: Any, **options: Any) -> None:
        nonlocal compared
        compared += 1

    with patch.object(collective, "compare", counted):
        for count in (21, 19, 18, 19):
            called(count)
        found["compared"] = compared
        with patch.object(collective, "KNOWN", 2):
            for count in (13, 12, 13, 11, 13):
                called(count)
    called(10)  # after which all ranks have left what some refused
    numbers, store = range(alike._calls[all_ranks := (collective.SUMS, "0,1,2,3")]), _get_default_store()
    keys = sum(store.check([f"{alike._key(*all_ranks, n)}/{rank}"]) for n in numbers)
    found["refused"]["known"] = refused_where_known(last, partial(called, 10))
    return found | {"forgotten": compared - found["compared"], "keys": keys}


def refused_where_known(last: bool, called: Callable[..., object]) -> tuple[str, str]:
    """Return what ranks raise of a call that they know and the last refuses; later they are out of step."""
    store = _get_default_store()
    if last:
        said = refused(lambda: called(temperature=-1.0))
        store.set("refused", "")
        return said

    sent = []

    def lost(*_: object, **options: object) -> None:
        sent.append(options)
        store.wait(["refused"], LIMIT)
        raise RuntimeError("the other rank does not come")  # as a backend says after its timeout

    with patch.object(sharded, "ordered_gather", lost):
        said = refused(called)
    assert sent
    return said


def prepare(world: int) -> None:
    """Import and trace, before there are ranks, what they have in common with one that has a whole head."""
    log_probs(HEADS["plain"], torch.device("cpu"), 1, 0, None, compiled=True)
    torch._dynamo.reset()


def main(backend: str, world: int, rank: int, folder: Path) -> None:
    """Run everything as one rank, and write what it found."""
    with member(backend, world, rank, folder) as device:
        torch.save(everything(world, rank, device), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
