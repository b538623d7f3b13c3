"""`prefix_attention` with a gradient as ops of torch.library, for compilers, which cannot trace the gather.

How many keys prompts and completions have together is known to the device alone, so that a graph cannot
hold the gathered keys. It holds these ops, whose results have the shapes of their inputs. The gradient
computes the gathered forward again: the bits are those of an eager call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlk.lang.op import OWN
from rlk.ops import attention
from rlk.ops.attention import INPUTS, OPTIONS, TENSORS
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.binding.selection import invoke
from rlk.runtime.call.autograd import gradients
from rlk.runtime.call.entry import call
from rlk.specs import attention as spec
from rlk.specs import model as model_spec

OP = "prefix_attention"
SIGNATURE = (
    "Tensor q, Tensor k_prefix, Tensor v_prefix, Tensor k, Tensor v, Tensor cu_seqlens_prefix, "
    "Tensor cu_seqlens, Tensor groups, Tensor? cu_seqlens_q, Tensor? sinks, "
    "bool causal, int? window, float? softcap, float? scale, str? math"
)
_library = torch.library.Library(OWN, "FRAGMENT")


def register() -> None:
    """Define the op and its gradient in torch's registry."""
    name, grad = f"{OP}_gathered", f"{OP}_gathered_grad"
    _library.define(f"{name}({SIGNATURE}) -> (Tensor, Tensor)")
    _library.define(f"{grad}(Tensor d_o, Tensor? d_lse, str[] wanted, {SIGNATURE}) -> Tensor[]")
    for what, run, fake in ((name, _run, _fake), (grad, _grad, _grad_fake)):
        _library.impl(what, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{OWN}::{what}", fake, lib=_library)
    torch.library.register_autograd(f"{OWN}::{name}", _autograd, setup_context=_setup, lib=_library)


def _run(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    named = dict(zip((*TENSORS, *OPTIONS), given, strict=True))
    with torch.no_grad():
        return tuple(attention.prefix_attention(**named))  # type: ignore[return-value]


def _fake(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, v = given[0], given[INPUTS.index("v")]
    o = v.new_empty((q.shape[0], q.shape[1], v.shape[2]))
    return o, q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[: len(TENSORS)])
    ctx.options = inputs[len(TENSORS) :]


def _autograd(ctx: Any, d_o: torch.Tensor | None, d_lse: torch.Tensor | None) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    wanted = [name for name, need in zip(TENSORS, ctx.needs_input_grad, strict=False) if need]
    if d_o is None:  # as of `varlen_attention`, whose lse alone has no gradient
        q, v = saved[0], saved[INPUTS.index("v")]
        d_o = v.new_zeros((q.shape[0], q.shape[1], v.shape[2]))
    made = torch.ops.rlk.prefix_attention_gathered_grad(d_o, d_lse, wanted, *saved, *ctx.options)
    found = dict(zip(wanted, made, strict=True))
    return (*(found.get(name) for name in TENSORS), *(None for _ in OPTIONS))


def _grad(d_o: torch.Tensor, d_lse: torch.Tensor | None, wanted: Sequence[str], *given: Any) -> list[Any]:
    named = dict(zip((*TENSORS, *OPTIONS), given, strict=True))
    with torch.no_grad():
        found = _gradients(d_o, d_lse, named)
    return [found[name].contiguous() for name in wanted]


def _grad_fake(d_o: torch.Tensor, d_lse: Any, wanted: Sequence[str], *given: Any) -> list[Any]:
    named = dict(zip(TENSORS, given, strict=False))
    return [torch.empty_like(named[name], memory_format=torch.contiguous_format) for name in wanted]


def _gradients(d_o: torch.Tensor, d_lse: torch.Tensor | None, named: dict[str, Any]) -> Tensors:
    """Return the gradients of every tensor that has one, by name."""
    parts = {name: (named[f"{name}_prefix"], named[name]) for name in ("k", "v")}
    asks = named["cu_seqlens"] if named["cu_seqlens_q"] is None else named["cu_seqlens_q"]
    bounds = attention.shared_bounds(named["cu_seqlens_prefix"], named["cu_seqlens"], asks, named["groups"])
    row, cu = attention.gathered_rows(bounds, len(named["k_prefix"]))
    tables = {name: torch.cat(part) for name, part in parts.items()}
    keys, values = tables["k"][row], tables["v"][row]
    tensors, scalars, statics = attention.queries(
        OP, named["q"], keys.shape, asks, named["causal"], named["window"], named["softcap"], named["scale"],
        named["sinks"],
    )  # fmt: skip
    tensors |= {"k": keys, "v": values, "begin_k": cu[:-1], "end_k": cu[1:]}
    op, math = spec.varlen_attention, named["math"]
    made = call(op, tensors, scalars, statics, math)
    saved = {name: x for name, x in (tensors | made).items() if name in op.saves}
    group = tensors["q"].shape[1:3]
    cotangents = {"o": d_o.unflatten(1, group)}
    if d_lse is not None:
        cotangents["lse"] = d_lse.unflatten(0, group)
    wanted = ["q", "k", "v", *(["sinks"] if named["sinks"] is not None else [])]
    inner = gradients(invoke(op, tensors, scalars, statics, math), saved, cotangents, scalars, wanted)
    found = {"q": inner["q"].flatten(1, 2)}
    if "sinks" in inner:
        found["sinks"] = inner["sinks"].flatten()
    for name, table in tables.items():
        flat = {"ids": row, "weight": table.flatten(1)}
        d_y = {"y": inner[name].flatten(1)}
        of = gradients(invoke(model_spec.embedding, flat, {}, {}, None), flat, d_y, {}, ["weight"])["weight"]
        split = of.unflatten(1, table.shape[1:]).split([len(part) for part in parts[name]])
        found |= dict(zip((f"{name}_prefix", name), split, strict=True))
    return found
