"""Products with a weight gradient that is added onto an f32 buffer, in eager code and in torch's registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rlk.lang.op import OWN, Op
from rlk.ops.sharded import check_plain
from rlk.runtime.binding.checks import has_dtype, is_tensor, wrong_value
from rlk.runtime.binding.invocation import Tensors
from rlk.runtime.binding.selection import check_differentiable, invoke
from rlk.runtime.call import library
from rlk.runtime.call.autograd import differentiated, gradients, once, read_by
from rlk.runtime.call.dispatch import dispatch
from rlk.runtime.call.entry import _modes, call, observing

BUFFER = "weight_grad_out"
_library = torch.library.Library(OWN, "FRAGMENT")


def check_buffer(w: torch.Tensor, buffer: torch.Tensor, op: str) -> None:
    """Raise LaunchError for a buffer that the gradient of w cannot be added onto."""
    has_dtype(op, BUFFER, is_tensor(op, BUFFER, buffer), torch.float32)
    if buffer.shape != w.shape or not buffer.is_contiguous() or buffer.device != w.device:
        wanted = f"contiguous {list(w.shape)} on {w.device}"
        raise wrong_value(op, BUFFER, list(buffer.shape), wanted)


@dataclass(frozen=True, slots=True)
class BufferedProduct:
    """A product y of x and w, whose gradient of w is added onto a buffer in backward; w.grad stays as it is.

    name: of the public operator. by_leaves: its specs, by their leaves. read: the tensors that the gradient
    of w reads beside the cotangent. add: adds it, as `add(d_y, *read, buffer)`.
    """

    name: str
    by_leaves: Mapping[int, Op]
    read: tuple[str, ...]
    add: Callable[..., None]

    def __call__(
        self, leaves: int, tensors: Tensors, statics: Mapping[str, Any], buffer: torch.Tensor
    ) -> torch.Tensor:
        """Return y."""
        op = self.by_leaves[leaves]
        if observing():
            return call(op, tensors, {}, statics)["y"]
        check_plain(self.name, tensors | {BUFFER: buffer})
        check_differentiable(op, tensors)
        if torch.compiler.is_compiling() or _modes():
            registered = getattr(torch.ops.rlk, self.registered)
            made: list[torch.Tensor] = registered(
                *library.encoded(op, tensors, {}, statics, None), leaves, buffer
            )
            return made[0]
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())):
            return call(op, tensors, {}, statics)["y"]
        y: torch.Tensor = _Buffered.apply((self, op, tensors, statics, buffer), *tensors.values())
        return y

    # --- torch.library --------------------------------------------------------------------------------------

    @property
    def registered(self) -> str:
        """Return the name of the product in torch's registry."""
        return f"{self.name}_onto"

    @property
    def sum(self) -> str:
        """Return the name of the sum onto the buffer in torch's registry."""
        return f"{self.name}_weight_grad_into"

    def register(self) -> None:
        """Define the product, and the sum onto the buffer, in torch's registry."""
        parameters = library.parameters(self.by_leaves[1])
        given = ", ".join(f"Tensor {name}" for name in ("d_y", *self.read))
        _library.define(f"{self.registered}({parameters}, int leaves, Tensor {BUFFER}) -> Tensor[]")
        _library.define(f"{self.sum}({given}, Tensor(a!) {BUFFER}) -> ()")
        _library.impl(self.registered, self._run, "CompositeExplicitAutograd")
        _library.impl(self.sum, self.add, "CompositeExplicitAutograd")
        name = f"{OWN}::{self.registered}"
        torch.library.register_fake(name, self._fake, lib=_library)
        torch.library.register_fake(f"{OWN}::{self.sum}", lambda *_: None, lib=_library)
        torch.library.register_autograd(name, self._gradients, setup_context=self._setup, lib=_library)

    def _fake(self, *args: Any) -> list[torch.Tensor]:
        *given, leaves, _ = args
        return library.fake(self.by_leaves[leaves], tuple(given))

    def _run(self, *args: Any) -> list[torch.Tensor]:
        *given, leaves, _ = args
        op = self.by_leaves[leaves]
        tensors, scalars, statics, math = library.decoded(op, tuple(given))
        return list(dispatch(invoke(op, tensors, scalars, statics, math), tensors, scalars).values())

    def _setup(self, ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
        *given, ctx.leaves, ctx.buffer = inputs  # a buffer is not read: another node may write it before
        library.setup(self.by_leaves[ctx.leaves], ctx, tuple(given), output)

    def _gradients(self, ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
        op = self.by_leaves[ctx.leaves]
        arguments = library.gradient_arguments(op, ctx, grads)
        saved, cotangents, wanted, *rest = arguments
        found = library.computed(op, (saved, cotangents, [n for n in wanted if n != "w"], *rest))
        there, (d_y,) = dict(zip((f.name for f in op.formals), saved, strict=False)), cotangents
        if "w" in wanted and d_y is not None:
            getattr(torch.ops.rlk, self.sum)(d_y, *(there[name] for name in self.read), ctx.buffer)
        return (*library.handed_on(op, ctx, arguments, found), None, None)


class _Buffered(torch.autograd.Function):
    """The gradients of a product: that of w goes to the buffer, the others are those of the product."""

    @staticmethod
    def forward(ctx: Any, given: tuple[Any, ...], *inputs: Any) -> Any:
        ctx.product, op, tensors, statics, ctx.buffer = given
        tensors = {n: t.detach() for n, t in tensors.items()}
        invocation = invoke(op, tensors, {}, statics, None)
        made = dispatch(invocation, tensors, {})
        ctx.set_materialize_grads(False)
        needs = dict(zip(tensors, ctx.needs_input_grad[1:], strict=True))
        read = read_by(op, [n for n, needed in needs.items() if needed])
        saved = [n for n in tensors if n in read]
        ctx.save_for_backward(*(tensors[n] for n in saved))
        ctx.names, ctx.read, ctx.invocation = tuple(tensors), saved, invocation
        return made["y"]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        product: BufferedProduct = ctx.product
        saved = dict(zip(ctx.read, ctx.saved_tensors, strict=True))
        wanted = [n for n, need in zip(ctx.names, ctx.needs_input_grad[1:], strict=True) if need]
        found: Tensors = {}
        if grad is not None:
            with torch.no_grad():
                others = [n for n in wanted if n != "w"]
                found = gradients(ctx.invocation, saved, {"y": grad}, {}, others)
                if "w" in wanted:
                    product.add(grad, *(saved[name] for name in product.read), ctx.buffer)
        found = once(product.name, found, differentiated(ctx, (*saved.values(), grad)))
        return (None, *(found.get(n) for n in ctx.names))
