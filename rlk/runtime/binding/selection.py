"""The invocation that an operator's arguments select: dtypes bound, presence, statics, model of exp2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import MathModel
from rlk.lang.op import Op, Variant, dtype_choices
from rlk.lang.types import DTypeVar, TensorType
from rlk.runtime.binding.arguments import RLK_DTYPES, TORCH_DTYPES
from rlk.runtime.binding.invocation import Invocation, Scalars, Tensors

Statics = Mapping[str, object]
_invocations: dict[object, Invocation] = {}


WORDS: dict[str, tuple[str, dict[object, object]]] = {}
"""Public names of operators and of their inputs, by the operator's name."""


def worded(op: Op, public: str, **names: str) -> None:
    """Say errors of calls of an operator as its caller would: under a public name, inputs by other names."""
    WORDS[op.name] = (public, dict(names))


def public_name(op: str) -> str:
    """Return the name that callers know an operator by."""
    return WORDS[op][0] if op in WORDS else op


def invoke(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Invocation:
    """Return the invocation that the arguments select."""
    return selected(op, dtypes_of(op, tensors), tuple(scalars), statics, math)


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
        found = Invocation(
            op, Variant.of(bind_dtypes(op, dict(dtypes)), present, statics), model(math, op.name)
        )
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


def dtypes_of(op: Op, tensors: Tensors) -> DTypes:
    """Return the dtypes of tensors; raise LaunchError with the name of an argument that is no tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            got = type(tensor).__name__
            raise LaunchError(Code.ARG_TYPE, op=op.name, name=name, wanted="torch.Tensor", got=got)
    return tuple((name, tensor.dtype) for name, tensor in tensors.items())


def bind_dtypes(op: Op, dtypes: Mapping[str, torch.dtype]) -> dict[str, Any]:
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


_MORE: dict[int, tuple[str, ...]] = {}


def note_extra_gradient(op: Op, name: str) -> None:
    """Note an input whose gradient is computed beside the operator's own."""
    _MORE[id(op)] = (*_MORE.get(id(op), ()), name)


def differentiable_in(op: Op) -> tuple[str, ...]:
    """Return the inputs that a gradient may be asked for."""
    return (*(op.gradient.wrt if op.gradient is not None else ()), *_MORE.get(id(op), ()))


def check_differentiable(op: Op, tensors: Tensors) -> None:
    """Raise LaunchError when a gradient is asked for that the operator does not have."""
    wrt = differentiable_in(op)
    for name, tensor in tensors.items():
        if tensor.requires_grad and name not in wrt:
            raise LaunchError(
                Code.NOT_DIFFERENTIABLE, op=op.name, name=name, choices=", ".join(wrt) or "no input"
            )
