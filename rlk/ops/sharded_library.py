"""A sharded linear head as a torch.library op, for compilers: its shard and its gradient buffer."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d

from rlk.lang.op import OWN
from rlk.ops.sharded import NO_GROUP, OP, Shard, forward, gradients
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call import library
from rlk.runtime.call.autograd import output_names
from rlk.specs.linear_logp import linear_logp

NAME = f"{OP}_shard"
SAVED = (
    "Tensor?[] saved, Tensor?[] cotangents, str[] wanted, float[] floats, int[] ints, str variant, str group"
)
_library = torch.library.Library(OWN, "FRAGMENT")


def register() -> None:
    """Define the op and its gradients in torch's registry."""
    _library.define(
        f"{NAME}({library.parameters(linear_logp)}, str group, Tensor? weight_grad_out) -> Tensor[]"
    )
    _library.define(f"{NAME}_grad({SAVED}) -> Tensor[]")
    _library.define(f"{NAME}_grad_into({SAVED}, Tensor(a!) weight_grad_out) -> Tensor")
    for name, run, fake in (
        (NAME, _run, lambda *args: library.fake(linear_logp, args[:-2])),
        (f"{NAME}_grad", _grad, _grad_fake),
        (f"{NAME}_grad_into", _grad_into, _grad_into_fake),
    ):
        _library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{OWN}::{name}", fake, lib=_library)
    torch.library.register_autograd(f"{OWN}::{NAME}", _autograd, setup_context=_setup, lib=_library)


def _shard(group: str, weight: torch.Tensor, buffer: torch.Tensor | None) -> Shard:
    if group == NO_GROUP:
        return Shard.of(None, 0, weight, buffer)
    members = distributed_c10d._resolve_process_group(group)
    return Shard.of(members, members.rank() * weight.shape[0], weight, buffer).checked()


def _run(*args: Any) -> list[torch.Tensor]:
    *given, group, buffer = args
    tensors, scalars, statics, math = library.decoded(linear_logp, tuple(given))
    made = forward(tensors, scalars, statics, math, _shard(group, tensors["weight"], buffer))
    return [made[n] for n in output_names(invoke(linear_logp, tensors, scalars, statics, math))]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    *given, ctx.group, ctx.buffer = inputs  # a buffer is not read: another node may write it before
    library.setup(linear_logp, ctx, tuple(given), output)


def _autograd(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    arguments = (*library.gradient_arguments(linear_logp, ctx, grads), ctx.group)
    wanted = arguments[2]
    if ctx.buffer is None or "weight" not in wanted:
        found = dict(zip(wanted, torch.ops.rlk.linear_logp_shard_grad(*arguments), strict=True))
    else:
        saved, cotangents, _, *rest = arguments
        others = [n for n in wanted if n != "bias"]
        made = torch.ops.rlk.linear_logp_shard_grad_into(saved, cotangents, others, *rest, ctx.buffer)
        found = {"hidden": made} if "hidden" in wanted else {}
        if "bias" in wanted:
            run = torch.ops.rlk.linear_logp_shard_grad
            (found["bias"],) = run(saved, cotangents, ["bias"], *rest)
    return (*library.handed_on(linear_logp, ctx, arguments, found), None, None)


def _gradients(
    saved: list[Any], cotangents: list[Any], wanted: list[str], floats: list[float], ints: list[int],
    variant: str, group: str, buffer: torch.Tensor | None,
) -> Tensors:  # fmt: skip
    invocation, there, scalars = library.read(linear_logp, saved, floats, ints, variant)
    names = output_names(invocation)
    given = {f"d_{n}": g.contiguous() for n, g in zip(names, cotangents, strict=True) if g is not None}
    shard = _shard(group, there["weight"], buffer)
    return gradients(there, given, scalars, library.math_of(variant), shard, tuple(wanted))


def _grad(*args: Any) -> list[torch.Tensor]:
    found = _gradients(*args, None)
    return [found[n] for n in args[2]]


def _grad_fake(*args: Any) -> list[torch.Tensor]:
    return library.gradient_fake(linear_logp, *args[:-1])


def _grad_into(*args: Any) -> torch.Tensor:
    found = _gradients(*args)
    return found["hidden"] if "hidden" in found else args[-1].new_empty(0)


def _grad_into_fake(*args: Any) -> torch.Tensor:
    made = dict(zip(args[2], library.gradient_fake(linear_logp, *args[:-2]), strict=True))
    return made["hidden"] if "hidden" in made else args[-1].new_empty(0)
