"""The invocation that an operator's arguments select: dtypes bound, presence, statics, model of exp2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import MathModel
from rlk.ir.types import DType
from rlk.lang.op import OWN, Op, Variant, dtype_choices
from rlk.lang.types import DTypeVar, ScalarType, StaticType, TensorType
from rlk.runtime.binding.arguments import RLK_DTYPES, TORCH_DTYPES
from rlk.runtime.binding.invocation import Invocation, Scalars, Tensors

Statics = Mapping[str, object]
_invocations: dict[object, Invocation] = {}


def worded(op: Op, public: str, **names: str) -> None:
    """Say errors of calls of an operator as its caller would: under a public name, inputs by other names."""
    op.calls.public, op.calls.names = public, dict(names)


def public_name(op: Op) -> str:
    """Return the name that callers know an operator by."""
    return op.calls.public or op.qualified


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


def check_names(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics) -> None:
    """Raise LaunchError for a name that is no parameter of its kind, or a required one that is missing."""
    kinds: tuple[tuple[str, Any, set[str]], ...] = (
        ("tensor", TensorType, {*tensors}),
        ("scalar", ScalarType, {*scalars}),
        ("static", StaticType, {*statics}),
    )
    for kind, type, given in kinds:
        formals = {f.name: f for f in op.formals if isinstance(f.type, type)}
        for name in sorted(given - formals.keys()):
            choices = ", ".join(formals) or "none"
            raise LaunchError(Code.UNKNOWN_NAME, what=f"{op.name}: {kind}", name=name, choices=choices)
        missing = [n for n, f in formals.items() if n not in given and kind != "static" and not f.optional]
        if missing:
            raise LaunchError(Code.ARG_MISSING, op=op.name, name=", ".join(missing), why=f"({kind})")


def check_scalars(op: Op, scalars: Scalars) -> None:
    """Raise LaunchError for a number that an integer scalar cannot hold: kernels would wrap it."""
    for name, dtype, low, high in _integers(op):
        value = scalars.get(name)
        if value is not None and not (low <= value <= high and value == int(value)):
            wanted = f"an {dtype}: a whole number from {low} to {high}"
            raise LaunchError(Code.ARG_VALUE, op=op.name, name=name, value=value, wanted=wanted)


@cache
def _integers(op: Op) -> tuple[tuple[str, DType, int, int], ...]:
    """Return the integer scalars of an operator with their smallest and largest values."""
    types = [(f.name, f.type.dtype) for f in op.formals if isinstance(f.type, ScalarType)]
    signed = {n: (dtype, dtype is not DType.U32, 8 * dtype.bytes) for n, dtype in types if dtype.is_int}
    return tuple(
        (n, dtype, -(1 << bits - 1) if sign else 0, (1 << bits - sign) - 1)
        for n, (dtype, sign, bits) in signed.items()
    )


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


def differentiable_in(op: Op) -> tuple[str, ...]:
    """Return the inputs that a gradient may be asked for."""
    return (*(op.gradient.wrt if op.gradient is not None else ()), *op.calls.extra)


def refuse_tangents(op: Op, tensors: Tensors) -> None:
    """Raise LaunchError for a dual tensor of forward-mode differentiation."""
    for name, tensor in tensors.items():
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise LaunchError(Code.FORWARD_MODE, op=op.name, name=name)


def check_differentiable(op: Op, tensors: Tensors) -> None:
    """Raise LaunchError when a gradient is asked for that the operator does not have."""
    wrt = differentiable_in(op)
    for name, tensor in tensors.items():
        if tensor.requires_grad and name not in wrt:
            choices = ", ".join(wrt) or "no input"
            if op.into:
                choices += "; write an operator without into= where a gradient is wanted"
            elif not wrt and op.calls.namespace != OWN:
                own = f'@{op.name}.vjp("{name}") or {op.name}.derive_vjp("{name}")'
                choices += f"; its author writes one by {own}"
            raise LaunchError(Code.NOT_DIFFERENTIABLE, op=op.name, name=name, choices=choices)
