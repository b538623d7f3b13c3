"""A linear head whose vocabulary is shared out among ranks, or whose weight gradient adds to a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rlk.errors import RlkError
from rlk.ops.active_rows import active, compacted
from rlk.ops.head_bias import bias_gradient
from rlk.ops.support import words_from
from rlk.runtime.binding.arguments import PLAIN
from rlk.runtime.binding.checks import has_dtype, integer, is_tensor, wrong_type, wrong_value
from rlk.runtime.binding.invocation import Scalars, Tensors
from rlk.runtime.binding.selection import check_differentiable, invoke, model
from rlk.runtime.call import library
from rlk.runtime.call.alike import refuse
from rlk.runtime.call.autograd import differentiated, once
from rlk.runtime.call.collective import (
    SUMS,
    of_same_facts,
    one_process,
    ordered_gather,
    process_group,
    sum_over_ranks,
)
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import _modes, call, observing
from rlk.specs.linear_logp import linear_logp, linear_logp_backward, linear_logp_join

OP = "linear_logp"
PIECES = 8
"""Pieces of a vocabulary, as `ops.linear_logp` folds it."""
NO_GROUP = ""  # its name in a schema
NO_ID = -(2**63)
"""An id that no shard has: rows that do not count are said by the mask alone."""

OF_WEIGHT = ("weight", "bias")
"""The inputs that have no dim of rows."""

Made = TypeVar("Made")
Statics = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard of the vocabulary. group: None for one rank. ranks: their number. start, size: of this one."""

    group: dist.ProcessGroup | None
    ranks: int
    start: int
    size: int
    weight_grad: torch.Tensor | None

    @staticmethod
    def of(group: Any, start: int, weight: torch.Tensor, weight_grad: torch.Tensor | None) -> Shard:
        """Return the shard that the arguments describe, whose edges `checked` checks. Raises LaunchError."""
        _check_buffer(weight, weight_grad)
        size = weight.shape[0]
        if not isinstance(start, torch.SymInt):
            start = integer(OP, "vocab_start", start)
        if group is None:
            if start != 0:
                wanted = "0 without a group"
                raise wrong_value(OP, "vocab_start", start, wanted)
            return Shard(None, 1, 0, size, weight_grad)
        members = process_group(OP, group)
        ranks = members.size()
        if ranks not in (1, 2, 4, PIECES):
            raise wrong_value(OP, "group", ranks, "1, 2, 4 or 8 ranks")
        return Shard(members, ranks, start, size, weight_grad)

    def checked(self) -> Shard:
        """Return the shard; raise LaunchError where its edges cut a piece, or it begins elsewhere."""
        if self.group is None:
            return self
        size, rank = self.size, self.group.rank()
        if size % (PIECES // self.ranks):
            wanted = f"a multiple of {PIECES // self.ranks} rows on each of {self.ranks} ranks"
            raise wrong_value(OP, "weight.shape[0]", size, wanted)
        if self.start != rank * size:
            wanted = f"{rank * size}: rank {rank} holds as many rows as the others"
            raise wrong_value(OP, "vocab_start", self.start, wanted)
        return self

    @property
    def part(self) -> tuple[str, int]:
        return ("V", self.ranks)


def _check_buffer(weight: torch.Tensor, buffer: torch.Tensor | None) -> None:
    if buffer is None:
        return
    name = "weight_grad_out"
    has_dtype(OP, name, is_tensor(OP, name, buffer), torch.float32)
    if buffer.shape != weight.shape or not buffer.is_contiguous() or buffer.device != weight.device:
        wanted = f"contiguous {list(weight.shape)} on {weight.device}"
        raise wrong_value(OP, name, list(buffer.shape), wanted)


def sharded_linear_logp(
    tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None, shard: Shard
) -> Tensors:
    """Return the outputs of `linear_logp` by name, of a whole vocabulary of which this rank has a shard."""
    if observing():  # a rank first runs the operator on its shard
        shard.checked()
        return call(linear_logp, tensors, scalars, statics, math)
    if torch.compiler.is_compiling() or _modes():
        return _through_dispatcher(tensors, scalars, statics, math, shard.checked())
    if shard.ranks == 1 or _alike.get():
        return _differentiable(tensors, scalars, statics, math, shard.checked())
    return of_same_arguments(tensors, scalars, statics, math, shard)


def check_call(tensors: Tensors, math: str | None, shard: Shard) -> None:
    """Raise LaunchError for what no rank can call a shared head with."""
    if not observing():
        buffer = {} if shard.weight_grad is None else {"weight_grad_out": shard.weight_grad}
        check_plain(OP, tensors | buffer)
        model(math, OP)
        if torch.is_grad_enabled():
            check_differentiable(linear_logp, tensors)


def or_tell(make: Callable[[], Made], group: object, kinds: type[Exception] = Exception) -> Made:
    """Return make(), which sends nothing; if it raises, the ranks of a group are told what.

    kinds: of errors that they are told.
    """
    if group is None or torch.compiler.is_compiling() or observing() or _modes() or _alike.get():
        return make()
    try:
        return make()
    except kinds as error:
        if not one_process() and isinstance(group, dist.ProcessGroup) and group.size() > 1:
            refuse(group, error, kind=SUMS)
        raise


def of_same_arguments(
    tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None, shard: Shard
) -> Tensors:
    """Return the outputs by name, after comparing what ranks must have alike: all raise, or none."""
    assert shard.group is not None
    hidden, ids = tensors["hidden"], tensors["ids"]
    summed = torch.is_grad_enabled() and hidden.requires_grad
    rows, device, numbers = ids.numel(), hidden.device.type, tuple(sorted(scalars.items()))
    beside = shard.start - shard.group.rank() * shard.size  # 0 on every rank
    forms = tuple(_form(name, tensors) for name in sorted(tensors))
    terms = (OP, rows, device, forms, numbers, tuple(sorted(statics.items())), math, summed, beside)

    def facts() -> dict[str, str]:
        found = {"call": OP, "rows of hidden": str(rows), "device of hidden": device}
        for name, dtype, per_row, shape, other in forms:
            dims = ", ".join((*["rows"] * per_row, *map(str, shape)))
            found[name] = f"{dtype} [{dims}]{f' on {other}' * bool(other)}"
        found |= {"vocab_start": str(shard.start) if beside else "that of equal shards"}
        found |= {name: str(value) for name, value in (*numbers, *statics.items(), ("math", math))}
        return found | {"gradient of hidden": "summed" if summed else "none"}

    def run() -> Tensors:
        def made() -> Tensors:
            return _differentiable(tensors, scalars, statics, math, shard.checked())

        return or_tell(made, shard.group, RlkError)

    return of_same_facts(run, (shard.group,), OP, terms, facts, "rows of hidden")


def _form(name: str, tensors: Tensors) -> tuple[str, torch.dtype, bool, tuple[int, ...], str]:
    """Return what ranks have alike of a tensor, and the device if it is not that of hidden.

    Name, dtype, whether it has the rows of ids, and its other dims.
    """
    x, ids, on = tensors[name], tensors["ids"], tensors["hidden"].device
    rows = ids.dim()
    per_row = name not in OF_WEIGHT and x.shape[:rows] == ids.shape
    return name, x.dtype, per_row, tuple(x.shape[rows * per_row :]), "" if x.device == on else str(x.device)


_alike: ContextVar[bool] = ContextVar("alike", default=False)


@contextmanager
def arguments_alike() -> Iterator[None]:
    """Let calls compare nothing: of ranks that are known to have the same arguments."""
    before = _alike.set(True)
    try:
        yield
    finally:
        _alike.reset(before)


def _differentiable(
    tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None, shard: Shard
) -> Tensors:
    needed = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
    if not needed:
        return forward(tensors, scalars, statics, math, shard)
    names = ("logp", "lse", "entropy") if "entropy" in statics["needs"] else ("logp", "lse")
    made = _Head.apply((tensors, scalars, statics, math, shard, names), *tensors.values())
    return dict(zip(names, made, strict=True))


def _through_dispatcher(
    tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None, shard: Shard
) -> Tensors:
    """Call a sharded head through torch's dispatcher, so that compilers and fake tensors see it."""
    check_differentiable(linear_logp, tensors)
    arguments = library.encoded(linear_logp, tensors, scalars, statics, math)
    group = NO_GROUP if shard.group is None else shard.group.group_name
    made = torch.ops.rlk.linear_logp_shard(*arguments, group, shard.weight_grad)
    return library.named(linear_logp, tensors, scalars, statics, made)


def check_plain(op: str, tensors: Tensors) -> None:
    """Raise LaunchError for a tensor of a subclass."""
    # no subclasses but tensors without numbers: a DTensor has its numbers elsewhere
    for name, tensor in tensors.items():
        if type(tensor) not in PLAIN and type(tensor).__name__ != "FakeTensor":
            raise wrong_type(op, name, tensor, "dense torch.Tensor")


def forward(tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None, shard: Shard) -> Tensors:
    """Return the outputs by name; f32 logits, where they are kept, are those of the shard."""
    if shard.ranks == 1:
        return dispatch(invoke(linear_logp, tensors, scalars, statics, math), tensors, scalars)
    local, own = _local(tensors, scalars, shard), {**scalars, "ignore_index": NO_ID}
    invocation = invoke(linear_logp, local, own, {**statics, "states": True}, math)
    states = dispatch(replace(invocation, shard=shard.part), local, own)
    logits = {n: states.pop(n) for n in ("logits",) if n in states}
    names, rows = tuple(states), tensors["ids"].numel()
    stack = torch.stack([states[n].reshape(rows) for n in names])
    gathered = ordered_gather(stack, shard.group, op=OP)
    joined: Tensors = {"ids": tensors["ids"]} | {n: gathered[:, i] for i, n in enumerate(names)}
    joined |= {"mask": tensors["mask"]} if "mask" in tensors else {}
    numbers = {"ignore_index": scalars["ignore_index"], "vocabulary": shard.size * shard.ranks}
    return dispatch(invoke(linear_logp_join, joined, numbers, {}, math), joined, numbers) | logits


def _local(tensors: Tensors, scalars: Scalars, shard: Shard) -> Tensors:
    """Return the inputs of one rank: ids count from its first row, the mask says which rows count."""
    local = tensors | {n: tensors[n] - shard.start for n in ("ids", "last") if n in tensors}
    if "words" in tensors:
        local["words"] = words_from(tensors["words"], shard.start, shard.size)
    return local | {"mask": active(tensors, scalars)}


class _Head(torch.autograd.Function):
    """The gradient of one rank: d_hidden is summed over ranks before it is rounded, d_weight is its own."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], *inputs: Any) -> Any:
        tensors, scalars, statics, math, shard, names = call
        tensors = {n: t.detach() for n, t in tensors.items()}
        made = forward(tensors, scalars, statics, math, shard)
        ctx.set_materialize_grads(False)
        saved = tensors | {n: made[n] for n in ("lse", "entropy", "logits") if n in made}
        ctx.save_for_backward(*saved.values())
        ctx.names, ctx.saved_names, ctx.call = tuple(tensors), tuple(saved), call[1:]
        return tuple(made[n] for n in names)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        saved = dict(zip(ctx.saved_names, ctx.saved_tensors, strict=True))
        scalars, statics, math, shard, names = ctx.call
        wants = tuple(n for n, need in zip(ctx.names, ctx.needs_input_grad[1:], strict=True) if need)
        given = {f"d_{n}": g.contiguous() for n, g in zip(names, grads, strict=True) if g is not None}
        found = gradients(saved, given, scalars, math, shard, wants) if given and wants else {}
        found = once(OP, found, differentiated(ctx, (*saved.values(), *grads)))
        return (None, *(found.get(n) for n in ctx.names))


def gradients(
    saved: Tensors, given: Tensors, scalars: Scalars, math: str | None, shard: Shard, wants: tuple[str, ...]
) -> Tensors:
    """Return the gradients of the wanted inputs by name; that of weight may go to the shard's buffer."""
    local, own = _local(saved, scalars, shard) | given, {**scalars, "ignore_index": NO_ID}
    found: Tensors = {"bias": bias_gradient(local, own, model(math, OP))} if "bias" in wants else {}
    wants = tuple(n for n in wants if n != "bias")
    if not wants:
        return found
    local["order"] = compacted(local["mask"])
    into: Tensors = {}
    if "weight" in wants and shard.weight_grad is not None:
        local["weight_grad"], into = shard.weight_grad, {"d_weight": shard.weight_grad}
    statics = {"wants": wants, "partial": shard.ranks > 1}
    invocation = invoke(linear_logp_backward, local, own, statics, math)
    made = dispatch(replace(invocation, shard=shard.part, into=frozenset(into)), local | into, own)
    if "hidden" in wants:
        whole = made["d_hidden"]
        if shard.ranks > 1:
            assert shard.group is not None
            whole = sum_over_ranks(whole, shard.group, OP, saved["hidden"].dtype)
        found["hidden"] = whole
    if "weight" in wants and not into:
        found["weight"] = made["d_weight"]
    return found
