"""`linear_jsd_loss` and its gradient as ops of torch.library: autograd and compilers see no row pieces."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from rlk.lang.op import OWN
from rlk.ops.linear_distill import OP, WRT, Divergence, Heads, divergence, gradients
from rlk.runtime.call.autograd import differentiated, once

SIGNATURE = (
    "Tensor hidden, Tensor weight, Tensor teacher_hidden, Tensor teacher_weight, "
    "Tensor? inv_temperature_row, Tensor? mask, float? inv_temperature, float beta, str form, str? math"
)
RESULTS = tuple(f.name for f in fields(Divergence))
TENSORS = 6  # of the parameters, first
_library = torch.library.Library(OWN, "FRAGMENT")


def register() -> None:
    """Define the op and its gradient in torch's registry."""
    results = ", ".join("Tensor" for _ in RESULTS)
    saved = ", ".join(f"Tensor {name}" for name in RESULTS[1:])
    _library.define(f"{OP}({SIGNATURE}) -> ({results})")
    _library.define(f"{OP}_grad(Tensor d_loss, {saved}, str[] wanted, {SIGNATURE}) -> Tensor[]")
    for name, run, fake in ((OP, _run, _fake), (f"{OP}_grad", _grad, _grad_fake)):
        _library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{OWN}::{name}", fake, lib=_library)
    torch.library.register_autograd(f"{OWN}::{OP}", _autograd, setup_context=_setup, lib=_library)


def _run(*given: Any) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        made = divergence(Heads(*given))
    return tuple(getattr(made, name) for name in RESULTS)


def _fake(*given: Any) -> tuple[torch.Tensor, ...]:
    heads = Heads(*given)
    rows = heads.hidden.shape[0]
    sizes = [0 if name == "mean" and heads.form == "forward" else rows for name in RESULTS]
    return tuple(heads.hidden.new_empty(size, dtype=torch.float32) for size in sizes)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:TENSORS])
    ctx.options = inputs[TENSORS:]


def _autograd(ctx: Any, d_loss: torch.Tensor | None, *_: torch.Tensor | None) -> tuple[Any, ...]:
    wanted = [name for name, need in zip(WRT, ctx.needs_input_grad, strict=False) if need]
    found: dict[str, torch.Tensor] = {}
    if d_loss is not None and wanted:
        saved, inputs = ctx.saved_tensors[: len(RESULTS) - 1], ctx.saved_tensors[len(RESULTS) - 1 :]
        made = torch.ops.rlk.linear_jsd_loss_grad(d_loss, *saved, wanted, *inputs, *ctx.options)
        found = once(OP, dict(zip(wanted, made, strict=True)), differentiated(ctx, (*saved, *inputs, d_loss)))
    return (*(found.get(name) for name in WRT), *(None for _ in fields(Heads)[len(WRT) :]))


def _grad(d_loss: torch.Tensor, *given: Any) -> list[torch.Tensor]:
    saved, wanted, inputs = given[: len(RESULTS) - 1], given[len(RESULTS) - 1], given[len(RESULTS) :]
    with torch.no_grad():
        found = gradients(Heads(*inputs), Divergence(d_loss, *saved), d_loss, tuple(wanted))
    return [found[name] for name in wanted]


def _grad_fake(d_loss: torch.Tensor, *given: Any) -> list[torch.Tensor]:
    wanted, inputs = given[len(RESULTS) - 1], Heads(*given[len(RESULTS) :])
    shaped = {"hidden": inputs.hidden, "weight": inputs.weight}
    return [shaped[name].new_empty(shaped[name].shape) for name in wanted]
