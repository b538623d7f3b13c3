"""Calls of operators, eager or through torch's dispatcher, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.autograd import forward_ad

from rlk.errors import Code, LaunchError
from rlk.lang.op import Op, refuse_unregistered
from rlk.runtime.binding.arguments import PLAIN, VECTOR
from rlk.runtime.binding.invocation import Invocation, Run, Scalars, Tensors
from rlk.runtime.binding.selection import (
    Statics,
    bind_dtypes,
    check_differentiable,
    check_names,
    check_scalars,
    dtypes_of,
    invoke,
    model,
    public_name,
    refuse_tangents,
    worded,
)
from rlk.runtime.call.autograd import Recorded, recorded, run_differentiably
from rlk.runtime.call.dispatch import MOST_SHAPES, dispatch
from rlk.runtime.call.mutation import run_of
from rlk.runtime.call.tape import run_and_tape, tapes

__all__ = ["call", "observed", "observing", "watched", "worded"]

_NOTHING: Tensors = {}


def call(
    op: Op,
    tensors: Tensors,
    scalars: Scalars,
    statics: Statics,
    math: str | None = None,
    into: Tensors = _NOTHING,
) -> Tensors:
    """Run an operator and return its outputs by name; differentiable in the inputs that its vjp names.

    tensors: the inputs that are there; scalars: the same. into: memory for some outputs, of their shapes and
    dtypes, of a call without gradients. Raises LaunchError before anything is launched.
    """
    if _observers:
        return _written(_observers[-1](op, tensors, scalars, statics, math), into)
    if torch.compiler.is_compiling() or _modes():
        return _written(_through_dispatcher(op, tensors, scalars, statics, math), into)
    try:
        given = tensors | into if into else tensors
        values = given.values()
        for t in values:
            if type(t) not in PLAIN:
                return _written(_unknown(op, tensors, scalars, statics, math), into)
        if forward_ad._current_level >= 0:  # inside of a dual_level
            refuse_tangents(op, tensors)
        try:
            # one key for everything that selects code; compiled kernels assume 16-byte alignment
            sizes = [
                (t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % VECTOR, t.is_neg()) for t in values
            ]
        except RuntimeError:  # a tensor without memory, such as those of torch.func
            return _written(_unknown(op, tensors, scalars, statics, math), into)
        key = (id(op), math, *given, *scalars, *statics.values(), *sizes)
        known = _known.get(key)
        if known is None:
            check_names(op, tensors, scalars, statics)
            invocation = invoke(op, tensors, scalars, statics, math)
            if into:
                invocation = replace(invocation, into=frozenset(into))
            if len(_known) >= MOST_SHAPES:
                _known.clear()
            known = _known[key] = (invocation, run_of(invocation, given), {})
        invocation, run, ways = known
        if scalars:
            check_scalars(op, scalars)
        if torch.is_grad_enabled():
            wanted = tuple([t.requires_grad for t in values])
            if True in wanted:
                how = ways.get(wanted)
                if how is None:
                    check_differentiable(op, tensors)
                    how = ways[wanted] = recorded(invocation, tensors)
                return run_differentiably(how, run, tensors, scalars)
        return run_and_tape(run, given, scalars) if tapes else run(given, scalars)
    except LaunchError as error:
        names = op.calls.names
        if not names and public_name(op) == op.name:
            raise
        raise error.reworded(op={op.name: public_name(op)}, name=names, other=names) from None
    except TypeError:
        model(math, op.name)  # the only part of the key that may be unhashable: the caller's own value
        raise


def _written(made: Tensors, into: Tensors) -> Tensors:
    """Copy outputs into given memory, where a call could not write them there; return all outputs."""
    for name, memory in into.items():
        memory.copy_(made[name])
    return made | into


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


_TRANSFORMED = (torch._C._functorch.is_gradtrackingtensor, torch._C._functorch.is_batchedtensor)
_modes = torch._C._len_torch_dispatch_stack  # whether something watches, as selective checkpoints do
_known: dict[object, tuple[Invocation, Run, dict[tuple[bool, ...], Recorded]]] = {}
dispatch.forgets(_known.clear)


def watched(*tensors: torch.Tensor) -> bool:
    """Return whether torch.compile, a dispatch mode or a subclass of Tensor sees calls with some tensors."""
    return torch.compiler.is_compiling() or bool(_modes()) or any(type(t) not in PLAIN for t in tensors)


def _unknown(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Tensors:
    """Refuse arguments that are no tensors; send subclasses and fake tensors through torch's dispatcher."""
    for name, t in zip(tensors, tensors.values(), strict=True):
        if isinstance(t, torch.Tensor) and t.layout is not torch.strided:
            raise LaunchError(Code.ARG_TYPE, op=op.name, name=name, wanted="dense tensor", got=t.layout)
        if isinstance(t, torch.Tensor) and any(is_one(t) for is_one in _TRANSFORMED):
            raise LaunchError(Code.TRANSFORMED, op=op.name, name=name)
    bind_dtypes(op, dict(dtypes_of(op, tensors)))
    check_names(op, tensors, scalars, statics)
    return _through_dispatcher(op, tensors, scalars, statics, math)


def _through_dispatcher(
    op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None
) -> Tensors:
    from rlk.runtime.call.library import through_dispatcher

    if not op.calls.namespace:
        refuse_unregistered(op.name)
    # by name: if a program has DTensors, their module is imported already
    spread = [name for name, t in tensors.items() if type(t).__name__ == "DTensor"]
    if spread and op.into:
        name, why = spread[0], "an operator that writes into its inputs takes tensors of this process"
        placed = list(getattr(tensors[name], "placements", ()))
        raise LaunchError(Code.ARG_PLACED, op=public_name(op), name=name, got=placed, why=why)
    if spread:
        from rlk.runtime.call.dtensor import across

        return across(call, op, tensors, scalars, statics, math)
    return through_dispatcher(op, tensors, scalars, statics, math)
