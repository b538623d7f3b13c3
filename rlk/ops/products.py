"""Products with a weight gradient that is added onto an f32 buffer, and gradients of a rank's part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from rlk.lang.op import OWN, Op
from rlk.ops.sharded import check_plain
from rlk.runtime.binding.checks import has_dtype, is_tensor, wrong_value
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.binding.selection import check_differentiable, invoke
from rlk.runtime.call import library
from rlk.runtime.call.autograd import differentiated, gradients, once, read_by, separate_gradients
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import _modes, call, observing
from rlk.specs import matmul as spec

OP = "matmul"
NAME = "matmul_onto"
INTO = "matmul_weight_grad_into"
Statics = Mapping[str, Any]
_library = torch.library.Library(OWN, "FRAGMENT")

for _op in spec.BY_LEAVES.values():
    # bias and residual give the shapes of their gradients alone
    separate_gradients(_op, {"x": ("w",), "w": ("x",)}, {"residual": "y"})


def check_buffer(w: torch.Tensor, buffer: torch.Tensor, op: str = OP) -> None:
    """Raise LaunchError for a buffer that the gradient of w cannot be added onto."""
    name = "weight_grad_out"
    has_dtype(op, name, is_tensor(op, name, buffer), torch.float32)
    if buffer.shape != w.shape or not buffer.is_contiguous() or buffer.device != w.device:
        wanted = f"contiguous {list(w.shape)} on {w.device}"
        raise wrong_value(op, name, list(buffer.shape), wanted)


def product_onto(leaves: int, tensors: Tensors, statics: Statics, buffer: torch.Tensor) -> torch.Tensor:
    """Return a product; the gradient of w is added onto the buffer in backward, and w.grad stays as it is."""

    def traced(arguments: tuple[Any, ...]) -> list[torch.Tensor]:
        made: list[torch.Tensor] = getattr(torch.ops.rlk, NAME)(*arguments, leaves, buffer)
        return made

    return onto_buffer(spec.BY_LEAVES[leaves], OP, tensors, statics, buffer, traced, _add)


def _add(d_y: torch.Tensor, saved: Tensors, buffer: torch.Tensor) -> None:
    add_weight_gradient(d_y, saved["x"], buffer)


Add = Callable[[torch.Tensor, Tensors, torch.Tensor], None]
"""Adds the gradient of w onto a buffer, of the cotangent and of what that gradient reads."""


def onto_buffer(
    op: Op, name: str, tensors: Tensors, statics: Statics, buffer: torch.Tensor,
    traced: Callable[[tuple[Any, ...]], list[torch.Tensor]], add: Add,
) -> torch.Tensor:  # fmt: skip
    """Return y of an operator whose gradient of w is added onto a buffer; w.grad stays as it is.

    name: of the public operator. traced: the call of its form in torch's registry.
    """
    if observing():
        return call(op, tensors, {}, statics)["y"]
    check_plain(name, tensors | {"weight_grad_out": buffer})
    check_differentiable(op, tensors)
    if torch.compiler.is_compiling() or _modes():
        return traced(library.encoded(op, tensors, {}, statics, None))[0]
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())):
        return call(op, tensors, {}, statics)["y"]
    y: torch.Tensor = _Onto.apply((op, name, tensors, statics, buffer, add), *tensors.values())
    return y


class _Onto(torch.autograd.Function):
    """The gradients of a product: that of w goes to the buffer, the others are those of the product."""

    @staticmethod
    def forward(ctx: Any, given: tuple[Any, ...], *inputs: Any) -> Any:
        op, ctx.op, tensors, statics, ctx.buffer, ctx.add = given
        tensors = {n: t.detach() for n, t in tensors.items()}
        invocation = invoke(op, tensors, {}, statics, None)
        made = dispatch(invocation, tensors, {})
        ctx.set_materialize_grads(False)
        needs = dict(zip(tensors, ctx.needs_input_grad[1:], strict=True))
        read = read_by(op, [n for n, needed in needs.items() if needed])
        kept = [n for n in tensors if n in read]
        ctx.save_for_backward(*(tensors[n] for n in kept))
        ctx.names, ctx.kept, ctx.invocation = tuple(tensors), kept, invocation
        return made["y"]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        saved = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        wanted = [n for n, need in zip(ctx.names, ctx.needs_input_grad[1:], strict=True) if need]
        found: Tensors = {}
        if grad is not None:
            with torch.no_grad():
                others = [n for n in wanted if n != "w"]
                found = gradients(ctx.invocation, saved, {"y": grad}, {}, others)
                if "w" in wanted:
                    ctx.add(grad, saved, ctx.buffer)
        found = once(ctx.op, found, differentiated(ctx, (*saved.values(), grad)))
        return (None, *(found.get(n) for n in ctx.names))


def add_weight_gradient(d_y: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> None:
    """Add d_y^T x onto an f32 buffer, in place; the sums of pieces of 8192 tokens are first added ascending.

    d_y: [..., N], rounded to the dtype of x. x: [..., K]. buffer: [N, K], contiguous.
    """
    tensors = {
        "d_y": d_y.to(x.dtype).contiguous(),
        "x": x,
        "weight_grad": buffer,
        "d_w": buffer,
    }
    read = {n: t for n, t in tensors.items() if n != "d_w"}
    invocation = invoke(spec.matmul_backward, read, {}, {"wants": ("w",)}, None)
    dispatch(replace(invocation, into=frozenset({"d_w"})), tensors, {})


def weight_gradient(d_y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return d_y^T x in the dtype of x, rounded once; arguments as of `add_weight_gradient`."""
    tensors = {"d_y": d_y.to(x.dtype).contiguous(), "x": x}
    return dispatch(invoke(spec.matmul_backward, tensors, {}, {"wants": ("w",)}, None), tensors, {})["d_w"]


def input_gradient(d_y: torch.Tensor, w: torch.Tensor, leaves: int) -> torch.Tensor:
    """Return d_y w in the dtype of w, N in `leaves` equal pieces added pairwise, rounded once.

    d_y: [..., N], rounded to the dtype of w. w: [N, K]. Raises LaunchError.
    """
    return _input_gradient(d_y, w, leaves, partial=False)


def partial_input_gradient(d_y: torch.Tensor, w: torch.Tensor, leaves: int) -> torch.Tensor:
    """Return d_y w in f32, N in `leaves` equal pieces added pairwise: one rank's subtree of d x.

    d_y: [..., N], rounded to the dtype of w. w: [N, K], of the rank. Raises LaunchError.
    """
    return _input_gradient(d_y, w, leaves, partial=True)


def _input_gradient(d_y: torch.Tensor, w: torch.Tensor, leaves: int, partial: bool) -> torch.Tensor:
    check_pieces("w.shape[0]", w.shape[0], leaves)
    tensors = {"d_y": d_y.to(w.dtype).contiguous(), "w": w}
    statics = {"wants": ("x",), "grad_leaves": leaves, "partial": partial}
    return dispatch(invoke(spec.matmul_backward, tensors, {}, statics, None), tensors, {})["d_x"]


def check_pieces(name: str, extent: int, leaves: int) -> None:
    """Raise LaunchError for an extent that cannot be cut into equal pieces."""
    if leaves > 1 and extent % leaves:
        wanted = f"a multiple of {leaves}, the leaves that it is cut into"
        raise wrong_value(OP, name, extent, wanted)


# --- torch.library ---


def register() -> None:
    """Define the product with a buffer, and the sum onto it, in torch's registry."""
    _library.define(
        f"{NAME}({library.parameters(spec.matmul)}, int leaves, Tensor weight_grad_out) -> Tensor[]"
    )
    _library.define(f"{INTO}(Tensor d_y, Tensor x, Tensor(a!) weight_grad_out) -> ()")
    _library.impl(NAME, _run, "CompositeExplicitAutograd")
    _library.impl(INTO, add_weight_gradient, "CompositeExplicitAutograd")
    name = f"{OWN}::{NAME}"
    torch.library.register_fake(name, lambda *a: library.fake(spec.BY_LEAVES[a[-2]], a[:-2]), lib=_library)
    torch.library.register_fake(f"{OWN}::{INTO}", lambda *_: None, lib=_library)
    torch.library.register_autograd(name, _autograd, setup_context=_setup, lib=_library)


def _run(*args: Any) -> list[torch.Tensor]:
    *given, leaves, _ = args
    op = spec.BY_LEAVES[leaves]
    tensors, scalars, statics, math = library.decoded(op, tuple(given))
    return list(dispatch(invoke(op, tensors, scalars, statics, math), tensors, scalars).values())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    *given, ctx.leaves, ctx.buffer = inputs  # a buffer is not read: another node may write it before
    library.setup(spec.BY_LEAVES[ctx.leaves], ctx, tuple(given), output)


def _autograd(ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    op = spec.BY_LEAVES[ctx.leaves]
    arguments = library.gradient_arguments(op, ctx, grads)
    saved, cotangents, wanted, *rest = arguments
    found = library.computed(op, (saved, cotangents, [n for n in wanted if n != "w"], *rest))
    x, (d_y,) = dict(zip((f.name for f in op.formals), saved, strict=False))["x"], cotangents
    if "w" in wanted and d_y is not None:
        getattr(torch.ops.rlk, INTO)(d_y, x, ctx.buffer)
    return (*library.handed_on(op, ctx, arguments, found), None, None)
