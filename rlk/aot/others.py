"""Calls of registered operators that are not rlk's: tensors made from annotations, sizes from a matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from rlk.aot.matrix import NO_MODEL, Model, wrong
from rlk.ir.types import DType
from rlk.lang.op import Formal, Op
from rlk.lang.types import DTypeVar, ScalarType, TensorType
from rlk.runtime.binding.arguments import TORCH_DTYPES
from rlk.runtime.reference import dtype_of, number_of
from rlk.runtime.registry import others

Make = Callable[..., torch.Tensor]


def other(name: str) -> Op | None:
    """Return a registered operator that is not rlk's, by its qualified name."""
    return others().get(name)


def arguments(
    op: Op, rows: int, dtype: str | Mapping[str, str], sizes: Mapping[str, object], model: Model,
    options: dict[str, Any], make: Make, grad: bool,
) -> dict[str, Any]:  # fmt: skip
    """Return the arguments of a call: tensors without memory, and the options.

    dtype: of each variable that may have it, or those of variables by name. sizes: of axes by name, each a
    number or the name of a model's size; the rest are those that the operator is registered with, and the
    number of rows for axes of run-time extent. An optional tensor is there where an option of its name is
    true. Raises LaunchError for an axis whose size nothing says, and a dtype that a variable may not have.
    """
    axes = {axis.name for f in op.formals if isinstance(f.type, TensorType) for axis in f.type.axes}
    for name in sizes:
        if name not in axes:
            raise wrong(f"{op.qualified}: sizes", name, f"of axes of its tensors: {', '.join(sorted(axes))}")
    dtypes = _dtypes(op, dtype)
    wrt = op.gradient.wrt if op.gradient is not None and grad else ()
    given: dict[str, Any] = {}
    for formal in op.formals:
        chosen = options.pop(formal.name, None)
        match formal.type:
            case TensorType(axes=axes):
                if not formal.optional or chosen:
                    shape = [_extent(op, axis.name, axis.dynamic, rows, sizes, model) for axis in axes]
                    kind = TORCH_DTYPES[dtypes[formal.name]]
                    given[formal.name] = make(*shape, dtype=kind, grad=formal.name in wrt)
            case ScalarType() if chosen is None and not formal.optional:
                given[formal.name] = number_of(formal)
            case _ if chosen is not None:
                given[formal.name] = chosen
    if options:
        taken = ", ".join(f.name for f in op.formals)
        raise wrong(f"{op.qualified}: options", ", ".join(options), f"of {taken}")
    return given


def _dtypes(op: Op, given: str | Mapping[str, str]) -> dict[str, DType]:
    """Return the dtype of each tensor of an operator."""
    types = {f.name: f.type.dtype for f in op.formals if isinstance(f.type, TensorType)}
    choices = {t.name: [str(c) for c in t.choices] for t in types.values() if isinstance(t, DTypeVar)}
    for name, dtype in given.items() if isinstance(given, Mapping) else ():
        if dtype not in choices.get(name, ()):
            wanted = ", ".join(f"{n} = {' or '.join(some)}" for n, some in choices.items()) or "no variables"
            raise wrong(f"{op.qualified}: dtypes", f"{name} = {dtype}", wanted)

    def preferred(formal: Formal) -> DType | None:
        kind = types[formal.name]
        if isinstance(given, str):
            return DType(given)
        return DType(given[kind.name]) if isinstance(kind, DTypeVar) and kind.name in given else None

    return {f.name: dtype_of(f, preferred(f)) for f in op.formals if f.name in types}


def _extent(op: Op, axis: str, dynamic: bool, rows: int, sizes: Mapping[str, object], model: Model) -> int:
    found = sizes.get(axis, op.record.extents.get(axis, rows if dynamic else None))
    if isinstance(found, str):
        if model is NO_MODEL:
            wanted = f"a number: the file has no [[model]] whose {found} it would be"
            raise wrong(f"{op.qualified}: the size of {axis}", found, wanted)
        found = getattr(model, found, None)
    if type(found) is not int or found < 1:
        wanted = f'sizes = {{ {axis} = 4096 }}, or the name of a size of the model, such as "hidden"'
        raise wrong(f"{op.qualified}: the size of {axis}", found, wanted)
    return found
