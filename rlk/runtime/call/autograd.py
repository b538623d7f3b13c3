"""Gradients of operators: one autograd node for all, and the invocation of a gradient's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import Role
from rlk.lang.op import Op, Variant, Vjp
from rlk.lang.types import DTypeVar, TensorType
from rlk.lang.variants import cotangents as cotangents_in
from rlk.runtime.binding.arguments import TORCH_DTYPES, collapse
from rlk.runtime.binding.invocation import Invocation, Run, Scalars, Tensors, inputs_of, outputs_of
from rlk.runtime.binding.selection import public_name
from rlk.runtime.call.dispatch import dispatch, look_up

Extra = Callable[[Invocation, Tensors, Scalars], torch.Tensor]


def extra_gradient(op: Op, name: str) -> Callable[[Extra], Extra]:
    """Register the function that computes one more gradient from saved tensors and cotangents."""

    def register(fn: Extra) -> Extra:
        op.calls.extra[name] = fn
        return fn

    return register


@dataclass(frozen=True, slots=True)
class Separate:
    """Gradients that are computed one by one, each by kernels of its own.

    reads: by input, the saved tensors that its gradient reads, for its values or its shape. passed: by input,
    the output whose cotangent, in the dtype of the input, is its gradient: no kernel copies it.
    """

    reads: Mapping[str, tuple[str, ...]]
    passed: Mapping[str, str]


def separate_gradients(op: Op, reads: Mapping[str, tuple[str, ...]], passed: Mapping[str, str]) -> None:
    """Compute the gradients of an operator one by one: one that needs pieces leaves the others whole."""
    op.calls.separate = Separate(reads, passed)


def _separate(op: Op) -> Separate | None:
    found = op.calls.separate
    return found if isinstance(found, Separate) else None


def passed_on(
    invocation: Invocation, cotangents: Mapping[str, torch.Tensor | None], wanted: Sequence[str]
) -> Tensors:
    """Return the wanted gradients that are cotangents."""
    assert isinstance(invocation.spec, Op)
    how = _separate(invocation.spec)
    found = {} if how is None else {n: cotangents.get(how.passed[n]) for n in wanted if n in how.passed}
    return {n: in_dtype(invocation, n, g) for n, g in found.items() if g is not None}


def in_dtype(invocation: Invocation, name: str, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype that an operator or its gradient declares by a name."""
    op = invocation.spec
    assert isinstance(op, Op) and op.gradient is not None
    dtype = _declared_dtype(op, name, invocation.variant)
    return x if x.dtype is dtype else x.to(dtype)


@cache
def _declared_dtype(op: Op, name: str, variant: Variant) -> torch.dtype:
    assert op.gradient is not None
    formal = next(f for f in (*op.formals, *op.gradient.formals) if f.name == name)
    assert isinstance(formal.type, TensorType)
    dtype = formal.type.dtype
    return TORCH_DTYPES[dict(variant.dtypes)[dtype.name] if isinstance(dtype, DTypeVar) else dtype]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The names that autograd records of a call, found once for all calls of one kind.

    names: of the inputs. outputs: of the results that have a gradient; where none has, of all. saved: of
    inputs and results, those that the wanted gradients read. detached: whether no result has a gradient.
    parts: inputs that may say where their gradient goes (`place`).
    """

    invocation: Invocation
    names: tuple[str, ...]
    outputs: tuple[str, ...]
    saved: tuple[str, ...]
    detached: bool
    parts: tuple[str, ...]


Place = Callable[[], torch.Tensor | None]
"""Returns memory of the sizes of a tensor for its gradient; None where it has some already."""


def place(x: torch.Tensor, where: Place) -> None:
    """Let the gradient of a tensor be written into memory that backward asks for: a part of a larger one.

    An operator without such a gradient (`Calls.parts`) takes memory of its own, and so does the second of two
    that read the tensor: whoever joins the parts copies these.
    """
    x.rlk_place = where  # type: ignore[attr-defined]


def recorded(invocation: Invocation, tensors: Tensors) -> Recorded:
    """Return what autograd records of a call with inputs that require these gradients."""
    op = invocation.spec
    assert isinstance(op, Op)
    outputs = output_names(invocation)
    read = read_by(op, [n for n, t in tensors.items() if t.requires_grad])
    everything = {*tensors, *outputs}
    differentiable = {*cotangents_of(op), *op.calls.refused}
    connected = tuple(n for n in outputs if n in differentiable)
    return Recorded(
        invocation,
        tuple(tensors),
        connected or outputs,
        tuple(n for n in op.saves if n in everything and n in read),
        not connected,
        tuple(n for n in op.calls.parts if n in tensors),
    )


def run_differentiably(how: Recorded, run: Run, tensors: Tensors, scalars: Scalars) -> Tensors:
    """Run a bound call so that autograd differentiates it; return its outputs by name."""
    # Function.apply looks for wrappers of torch.func among the arguments: `call` sent those elsewhere
    apply = _Differentiable.apply if transforming() else _apply
    # one argument, and no output without a gradient: apply takes time for each
    task: list[Any] = [how, run, tensors, scalars]
    outputs = apply(task, *tensors.values())
    made: Tensors = task.pop()
    return made | dict(zip(how.outputs, outputs, strict=True))


transforming = torch._C._are_functorch_transforms_active
"""Whether a transform of torch.func runs."""


@cache
def output_names(invocation: Invocation) -> tuple[str, ...]:
    """Return the names of an invocation's outputs, in order."""
    return tuple(d.name for d in outputs_of(invocation))


@cache
def cotangents_of(op: Op) -> Mapping[str, int]:
    """Return the outputs whose cotangents the gradient takes, each with its declared number of axes."""
    assert op.gradient is not None
    return {
        f.name.removeprefix("d_"): len(f.type.axes)
        for f in op.gradient.formals
        if f.name.startswith("d_") and isinstance(f.type, TensorType)
    }


class _Differentiable(torch.autograd.Function):
    """One autograd node for every operator."""

    @staticmethod
    def forward(ctx: Any, task: list[Any], *inputs: Any) -> Any:
        how, run, given, scalars = task
        made = run(given, scalars)
        task.append(made)
        ctx.set_materialize_grads(False)
        ctx.how = how
        ctx.scalars = scalars
        if how.parts:
            ctx.places = [(n, getattr(given[n], "rlk_place", None)) for n in how.parts]
        ctx.save_for_backward(*[made[n] if n in made else given[n] for n in how.saved])
        outputs = tuple([made[n] for n in how.outputs])
        if how.detached:
            ctx.mark_non_differentiable(*outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        how: Recorded = ctx.how
        saved = dict(zip(how.saved, ctx.saved_tensors, strict=True))
        given = dict(zip(how.outputs, grads, strict=True))
        op = how.invocation.spec
        assert isinstance(op, Op)
        _refuse_outputs(op, given)
        needs = ctx.needs_input_grad[1:]
        wanted = [n for n, need in zip(how.names, needs, strict=True) if need]
        alike = {n: other for n, other in op.calls.alike.items() if n in wanted and other in wanted}
        wanted = [n for n in wanted if n not in alike]
        if not torch.is_grad_enabled():
            places = ctx.places if how.parts else ()
            into = {n: where() for n, where in places if where is not None and n in wanted}
            memory = {n: t for n, t in into.items() if t is not None}
            found = gradients(how.invocation, saved, given, ctx.scalars, wanted, memory)
        else:  # under create_graph=True
            with torch.no_grad():
                found = gradients(how.invocation, saved, given, ctx.scalars, wanted)
            found = once(public_name(op), found, differentiated(ctx, (*saved.values(), *grads)))
        return (None, *[found.get(alike.get(n, n)) for n in how.names])


_apply = super(torch.autograd.Function, _Differentiable).apply


def read_by(op: Op, wanted: Sequence[str]) -> frozenset[str]:
    """Return the saved tensors that the gradients of some inputs read."""
    how = _separate(op)
    return frozenset(op.saves if how is None else (n for name in wanted for n in how.reads.get(name, ())))


def _refuse_outputs(op: Op, cotangents: Mapping[str, torch.Tensor | None]) -> None:
    """Raise LaunchError for the cotangent of an output that has no gradient."""
    for name in sorted(op.calls.refused):
        if cotangents.get(name) is not None:
            choices = ", ".join(cotangents_of(op))
            raise LaunchError(Code.NOT_DIFFERENTIABLE, op=public_name(op), name=name, choices=choices)


def differentiated(ctx: Any, read: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
    """Return what gradients depend on and requires a gradient: none but under create_graph=True.

    read: saved tensors, which a checkpoint hands out once, and cotangents. Inputs that are not saved are
    found if they are leaves.
    """
    if not torch.is_grad_enabled():
        return ()
    leaves = [getattr(node, "variable", None) for node, _ in ctx.next_functions]
    there = (x for x in (*read, *leaves) if x is not None and x.requires_grad)
    return list({id(x): x for x in there}.values())


def once(op: str, grads: Tensors, sources: Sequence[torch.Tensor]) -> Tensors:
    """Return gradients to hand on: under create_graph=True a second derivative raises, it is not 0.

    sources: what they depend on, so that a derivative by it reaches them.
    """
    if not torch.is_grad_enabled() or not grads:
        return grads
    leaves = [g.detach().requires_grad_() for g in grads.values()]
    made = _Once.apply(op, len(leaves), *leaves, *sources)
    return dict(zip(grads, made, strict=True))


class _Once(torch.autograd.Function):
    """Hands gradients on, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, op: str, count: int, *grads_and_sources: torch.Tensor) -> Any:
        ctx.op = op
        return tuple(g.view_as(g) for g in grads_and_sources[:count])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Any:
        raise LaunchError(Code.DOUBLE_BACKWARD, op=ctx.op)


def gradients(
    invocation: Invocation,
    saved: Tensors,
    cotangents: Mapping[str, torch.Tensor | None],
    scalars: Scalars,
    wanted: list[str],
    memory: Tensors = MappingProxyType({}),  # type: ignore[assignment]
) -> Tensors:
    """Return the gradients of the wanted inputs by name, given cotangents of outputs.

    Inputs on which no output with a cotangent depends have none. memory: of some gradients, written to.
    """
    op = invocation.spec
    assert isinstance(op, Op) and op.gradient is not None
    takes = cotangents_of(op)
    given = {
        n: in_dtype(invocation, f"d_{n}", g) for n, g in cotangents.items() if g is not None and n in takes
    }
    if not given or not wanted:
        return {}
    found = passed_on(invocation, given, wanted)
    extra = {n: fn for n, fn in op.calls.extra.items() if n in wanted}
    rest = [n for n in wanted if n not in found and n not in extra]
    there = {f"d_{n}": _readable(g, takes[n]) for n, g in given.items()} if rest or extra else {}
    tensors = saved | there
    found |= {n: fn(invocation, tensors, scalars) for n, fn in extra.items()}
    if rest and op.calls.prepare is not None:
        tensors |= op.calls.prepare(saved, scalars)
    for group in [[n] for n in rest] if _separate(op) is not None else [rest] if rest else []:
        backward = _backward(invocation, frozenset(there), frozenset(group))
        if not pulls(backward, tensors):
            continue
        into = {f"d_{n}": memory[n] for n in group if n in memory}
        if into:
            backward = replace(backward, into=frozenset(into))
        made = dispatch(backward, tensors | into, scalars)
        found |= {n: made[f"d_{n}"] for n in group}
    return found


def pulls(backward: Invocation, tensors: Tensors) -> bool:
    """Return whether some output that has a cotangent depends on some input that a gradient is of."""
    if not isinstance(backward.spec, Vjp) or backward.spec.fn is not None:
        return True
    look_up(backward, tensors)
    return any(d.role is Role.IN for d in inputs_of(backward))


def backward_of(
    invocation: Invocation, cotangents: Mapping[str, torch.Tensor | None], wanted: Sequence[str]
) -> Invocation:
    """Return the invocation of the gradients of some inputs, given cotangents of outputs."""
    op = invocation.spec
    assert isinstance(op, Op)
    given = {f"d_{n}" for n, g in cotangents.items() if g is not None and n in cotangents_of(op)}
    return _backward(invocation, frozenset(given), frozenset(wanted))


def write_gradients(invocation: Invocation, saved: Tensors, cotangents: Tensors, into: Tensors) -> None:
    """Write the gradients of some inputs, by name, into memory of the caller's: [rows, N], rows apart or not.

    For an operator without scalars whose gradients are written by one kernel.
    """
    op = invocation.spec
    assert isinstance(op, Op) and op.gradient is not None
    takes = cotangents_of(op)
    given = {f"d_{n}": _readable(in_dtype(invocation, f"d_{n}", g), takes[n]) for n, g in cotangents.items()}
    memory = {f"d_{n}": t for n, t in into.items()}
    backward = replace(_backward(invocation, frozenset(given), frozenset(into)), into=frozenset(memory))
    dispatch(backward, saved | given | memory, {})


@cache
def _backward(invocation: Invocation, cotangents: frozenset[str], wanted: frozenset[str]) -> Invocation:
    op = invocation.spec
    assert isinstance(op, Op) and op.gradient is not None
    v = invocation.variant
    cotangents_in(op, v)  # raises where one is declared in another type than its output
    for f in op.gradient.formals:
        if f.name.startswith("d_") and not f.optional and f.name not in cotangents:
            assert isinstance(f.type, TensorType)
            raise LaunchError(
                Code.COTANGENT_MISSING, op.gradient.loc, op=op.gradient.name, name=f.name,
                output=f.name.removeprefix("d_"), annotation=replace(f.type, optional=True).written(),
            )  # fmt: skip
    return Invocation(
        op.gradient, Variant(v.dtypes, v.present | cotangents, v.statics, wanted), invocation.math
    )


def _readable(grad: torch.Tensor, axes: int) -> torch.Tensor:
    """Return a cotangent that a kernel can read: autograd hands out expanded and transposed tensors."""
    outer = grad.dim() - axes  # the leading dims that one stride must advance through
    fits = axes < 2 or grad.stride(-1) == 1
    if fits and collapse(grad.shape[:outer], grad.stride()[:outer]) is not None:
        return grad
    return grad.contiguous()
