"""How an operator is called: eager or through torch's dispatcher, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import MathModel
from rlk.lang.op import Op, Variant, dtype_choices
from rlk.lang.types import DTypeVar, TensorType
from rlk.runtime.arguments import RLK_DTYPES, TORCH_DTYPES, VECTOR, collapse
from rlk.runtime.dispatch import MOST_SHAPES, dispatch
from rlk.runtime.invocation import Invocation, Run, Scalars, Tensors, outputs_of

Statics = Mapping[str, object]
Prepare = Callable[[Tensors, Scalars], Tensors]
_PREPARE: dict[int, Prepare] = {}
_invocations: dict[object, Invocation] = {}


def prepares(op: Op) -> Callable[[Prepare], Prepare]:
    """Register what computes the inputs that a gradient takes beside saved tensors and cotangents."""

    def register(fn: Prepare) -> Prepare:
        _PREPARE[id(op)] = fn
        return fn

    return register


def call(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None = None) -> Tensors:
    """Run an operator and return its outputs by name; differentiable in the inputs that its vjp names.

    tensors: the inputs that are there; scalars: the same. Raises LaunchError before anything is launched.
    """
    if _observers:
        return _observers[-1](op, tensors, scalars, statics, math)
    if torch.compiler.is_compiling() or _modes():
        return _through_dispatcher(op, tensors, scalars, statics, math)
    try:
        values = tensors.values()
        for t in values:
            if type(t) not in _PLAIN:
                return _unknown(op, tensors, scalars, statics, math)
        try:
            # one key for everything that selects code; compiled kernels assume 16-byte alignment
            sizes = [(t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % VECTOR) for t in values]
        except RuntimeError:  # a tensor without memory, such as those of torch.func
            return _unknown(op, tensors, scalars, statics, math)
        key = (id(op), math, *tensors, *scalars, *statics.values(), *sizes)
        known = _known.get(key)
        if known is None:
            invocation = invoke(op, tensors, scalars, statics, math)
            if len(_known) >= MOST_SHAPES:
                _known.clear()
            known = _known[key] = (invocation, dispatch.find(invocation, tensors))
        invocation, run = known
        if torch.is_grad_enabled():
            for t in values:
                if t.requires_grad:
                    check_differentiable(op, tensors)
                    return _differentiable(invocation, run, tensors, scalars)
        return run(tensors, scalars)
    except LaunchError as error:
        if op.name not in _words:
            raise
        public, names = _words[op.name]
        raise error.reworded(op={op.name: public}, name=names, other=names) from None
    except TypeError:
        model(math, op.name)  # the one part of the key that may be unhashable: it is what the caller wrote
        raise


_words: dict[str, tuple[str, dict[object, object]]] = {}


def worded(op: Op, public: str, **names: str) -> None:
    """Say errors of calls of an operator as its caller would: under a public name, inputs by other names."""
    _words[op.name] = (public, dict(names))


Observer = Callable[[Op, Tensors, Scalars, Statics, str | None], Tensors]
_observers: list[Observer] = []


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Hand every call to an observer instead of running it."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.pop()


def observing() -> bool:
    """Return whether calls are handed to an observer instead of being run."""
    return bool(_observers)


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_modes = torch._C._len_torch_dispatch_stack  # whether something watches, as selective checkpoints do
_known: dict[object, tuple[Invocation, Run]] = {}
dispatch.forgets(_known.clear)


def _unknown(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Tensors:
    """Refuse what is no tensor; send subclasses and fake tensors through torch's dispatcher."""
    for name, t in zip(tensors, tensors.values(), strict=True):
        if isinstance(t, torch.Tensor) and t.layout is not torch.strided:
            raise LaunchError(Code.ARG_TYPE, op=op.name, name=name, wanted="dense tensor", got=t.layout)
    _bound(op, dict(_dtypes(op, tensors)))
    return _through_dispatcher(op, tensors, scalars, statics, math)


def _through_dispatcher(
    op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None
) -> Tensors:
    from rlk.runtime.library import through_dispatcher

    # by name: only who has DTensors has imported them
    if any(type(t).__name__ == "DTensor" for t in tensors.values()):
        from rlk.runtime.meshes import across

        return across(op, tensors, scalars, statics, math)
    return through_dispatcher(op, tensors, scalars, statics, math)


def invoke(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Invocation:
    """Return the invocation that the arguments select."""
    return selected(op, _dtypes(op, tensors), tuple(scalars), statics, math)


DTypes = tuple[tuple[str, torch.dtype], ...]
"""The dtypes of the tensors that are there, by name."""


def selected(
    op: Op, dtypes: DTypes, scalars: tuple[str, ...], statics: Statics, math: str | None
) -> Invocation:
    """Return the invocation that tensors of these dtypes select, with the scalars of these names."""
    key = (id(op), dtypes, scalars, tuple(statics.items()), math)
    found = _invocations.get(key)
    if found is None:
        present = frozenset({*(name for name, _ in dtypes), *scalars})
        found = Invocation(op, Variant.of(_bound(op, dict(dtypes)), present, statics), model(math, op.name))
        _invocations[key] = found
    return found


def model(math: str | None, op: str = "rlk") -> MathModel | None:
    """Return the model that a `math=` option of an operator names."""
    if math is None:
        return None
    choices = {"portable": MathModel.PORTABLE, "sm90": MathModel.SM90}
    if not isinstance(math, str) or math not in choices:
        raise LaunchError(Code.ARG_VALUE, op=op, name="math", value=math, wanted=", ".join(choices))
    return choices[math]


def _dtypes(op: Op, tensors: Tensors) -> DTypes:
    """Return the dtypes of tensors; raise LaunchError naming what is none."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            got = type(tensor).__name__
            raise LaunchError(Code.ARG_TYPE, op=op.name, name=name, wanted="torch.Tensor", got=got)
    return tuple((name, tensor.dtype) for name, tensor in tensors.items())


def _bound(op: Op, dtypes: Mapping[str, torch.dtype]) -> dict[str, Any]:
    """Return the dtype of every dtype variable; raise LaunchError naming the tensor that has another one."""
    bound: dict[str, Any] = {}
    for formal in op.formals:
        if not isinstance(formal.type, TensorType) or formal.name not in dtypes:
            continue
        wanted = formal.type.dtype
        found = RLK_DTYPES.get(dtypes[formal.name])
        choices = wanted.choices if isinstance(wanted, DTypeVar) else (wanted,)
        if isinstance(wanted, DTypeVar) and found in choices:
            choices = (bound.setdefault(wanted.name, found),)
        if found not in choices:
            names = " or ".join(str(TORCH_DTYPES[c]) for c in choices)
            raise LaunchError(
                Code.ARG_DTYPE, op=op.name, name=formal.name, got=dtypes[formal.name], wanted=names
            )
    return dtype_choices(op.formals) | bound


def check_differentiable(op: Op, tensors: Tensors) -> None:
    """Raise LaunchError when a gradient is asked for that the operator does not have."""
    wrt = op.gradient.wrt if op.gradient is not None else ()
    for name, tensor in tensors.items():
        if tensor.requires_grad and name not in wrt:
            raise LaunchError(
                Code.NOT_DIFFERENTIABLE, op=op.name, name=name, choices=", ".join(wrt) or "no input"
            )


# --- gradients ----------------------------------------------------------------------------------------------


def _differentiable(invocation: Invocation, run: Run, tensors: Tensors, scalars: Scalars) -> Tensors:
    outputs = _Differentiable.apply(invocation, run, tensors, scalars, *tensors.values())
    return dict(zip(output_names(invocation), outputs, strict=True))


@cache
def output_names(invocation: Invocation) -> tuple[str, ...]:
    """Return the names of an invocation's outputs, in order."""
    return tuple(d.name for d in outputs_of(invocation))


@cache
def cotangents_of(op: Op) -> Mapping[str, int]:
    """Return the outputs whose cotangents the gradient takes, and how many axes each is declared with."""
    assert op.gradient is not None
    return {
        f.name.removeprefix("d_"): len(f.type.axes)
        for f in op.gradient.formals
        if f.name.startswith("d_") and isinstance(f.type, TensorType)
    }


class _Differentiable(torch.autograd.Function):
    """One autograd node for every operator."""

    @staticmethod
    def forward(
        ctx: Any, invocation: Invocation, run: Run, given: Tensors, scalars: Scalars, *inputs: Any
    ) -> Any:
        op = invocation.spec
        assert isinstance(op, Op)
        made = run(given, scalars)
        ctx.set_materialize_grads(False)
        ctx.invocation, ctx.names, ctx.scalars = invocation, tuple(given), scalars
        everything = {**given, **made}
        ctx.saved_names = [n for n in op.saves if n in everything]
        ctx.save_for_backward(*[everything[n] for n in ctx.saved_names])
        taken = cotangents_of(op)
        ctx.mark_non_differentiable(*[t for n, t in made.items() if n not in taken])
        return tuple(made.values())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        saved = dict(zip(ctx.saved_names, ctx.saved_tensors, strict=True))
        given = dict(zip(output_names(ctx.invocation), grads, strict=True))
        wanted = [n for n, need in zip(ctx.names, ctx.needs_input_grad[4:], strict=True) if need]
        with torch.no_grad():
            found = gradients(ctx.invocation, saved, given, ctx.scalars, wanted)
        found = once(ctx.invocation.spec.name, found)
        return (None, None, None, None, *(found.get(n) for n in ctx.names))


def once(op: str, grads: Tensors) -> Tensors:
    """Return gradients to hand on: under create_graph=True a second derivative raises, it is not 0."""
    if not torch.is_grad_enabled() or not grads:
        return grads
    leaves = [g.detach().requires_grad_() for g in grads.values()]
    return dict(zip(grads, _Once.apply(op, *leaves), strict=True))


class _Once(torch.autograd.Function):
    """Hands gradients on, and refuses to be differentiated."""

    @staticmethod
    def forward(ctx: Any, op: str, *grads: torch.Tensor) -> Any:
        ctx.op = op
        return tuple(g.view_as(g) for g in grads)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor | None) -> Any:
        raise LaunchError(Code.DOUBLE_BACKWARD, op=ctx.op)


def gradients(
    invocation: Invocation,
    saved: Tensors,
    cotangents: Mapping[str, torch.Tensor | None],
    scalars: Scalars,
    wanted: list[str],
) -> Tensors:
    """Return the gradients of the wanted inputs by name, given cotangents of outputs."""
    op = invocation.spec
    assert isinstance(op, Op) and op.gradient is not None
    takes = cotangents_of(op)
    there = {f"d_{n}": _readable(g, takes[n]) for n, g in cotangents.items() if g is not None and n in takes}
    if not there or not wanted:
        return {}
    tensors = saved | there
    if id(op) in _PREPARE:
        tensors |= _PREPARE[id(op)](saved, scalars)
    backward = _backward(invocation, frozenset(there), frozenset(wanted))
    made = dispatch(backward, tensors, scalars)
    return {n: made[f"d_{n}"] for n in wanted}


@cache
def _backward(invocation: Invocation, cotangents: frozenset[str], wanted: frozenset[str]) -> Invocation:
    op = invocation.spec
    assert isinstance(op, Op) and op.gradient is not None
    v = invocation.variant
    required = {f.name for f in op.gradient.formals if f.name.startswith("d_") and not f.optional}
    if not required <= cotangents:
        missing = ", ".join(sorted(n.removeprefix("d_") for n in required - cotangents))
        raise LaunchError(Code.ARG_MISSING, op=op.gradient.name, name=missing, why="to have a gradient")
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
