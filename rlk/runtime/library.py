"""The operators as torch.library ops: schema, fake and autograd derived from the spec."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from rlk.ir.types import DType
from rlk.lang.op import Formal, Op
from rlk.lang.types import ScalarType, StaticType, TensorType
from rlk.runtime.arguments import TORCH_DTYPES, measure, output_shape
from rlk.runtime.calls import Statics, check_differentiable, gradients, invoke, output_names
from rlk.runtime.dispatch import dispatch
from rlk.runtime.invocation import Scalars, Tensors, inputs_of, outputs_of, row_axis

NAMESPACE = "rlk"
AUTO = "auto"  # the math option of a schema, where None is not a string
_library = torch.library.Library(NAMESPACE, "DEF")


def through_dispatcher(
    op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None
) -> Tensors:
    """Call an operator through torch's dispatcher, so that compilers and fake tensors see it."""
    check_differentiable(op, tensors)
    given = {**tensors, **scalars, **statics}
    arguments = [_encode(given.get(f.name, _default(f))) for f in op.formals]
    outputs = getattr(getattr(torch.ops, NAMESPACE), op.name)(*arguments, math or AUTO)
    dtypes = tuple((name, tensor.dtype) for name, tensor in tensors.items())
    names = _names(op.name, dtypes, tuple(scalars), tuple(statics.items()))
    return dict(zip(names, outputs, strict=True))


def _names(
    op: str,
    dtypes: tuple[tuple[str, torch.dtype], ...],
    scalars: tuple[str, ...],
    statics: tuple[tuple[str, object], ...],
) -> tuple[str, ...]:
    """Return the names of an operator's outputs: a constant of what selects the variant."""
    tensors = {name: torch.empty(0, dtype=dtype) for name, dtype in dtypes}
    return output_names(invoke(_registered[op], tensors, dict.fromkeys(scalars, 0), dict(statics), None))


# what torch.compiler.assume_constant_result sets, without importing the compiler (1.3 s) for every eager user
_names._dynamo_marked_constant = True  # type: ignore[attr-defined]

_registered: dict[str, Op] = {}


def _default(formal: Formal) -> object:
    return None if formal.default is inspect.Parameter.empty else formal.default


def _encode(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def schema(op: Op) -> str:
    """Return the schema of an operator: its parameters in order, then the math model; a list of outputs."""
    return f"{op.name}({', '.join(_parameter(f) for f in op.formals)}, str math) -> Tensor[]"


def _parameter(formal: Formal) -> str:
    match formal.type:
        case TensorType(optional=optional):
            return f"Tensor{'?' if optional else ''} {formal.name}"
        case ScalarType(dtype=dtype, optional=optional):
            return f"{'float' if dtype is DType.F32 else 'int'}{'?' if optional else ''} {formal.name}"
        case StaticType():
            kinds = {tuple: "str[]", bool: "bool", str: "str", int: "int"}
            return f"{kinds[type(formal.default)]} {formal.name}"


@cache
def register(op: Op) -> Any:
    """Define an operator in torch's registry, once, and return its callable."""
    _registered[op.name] = op
    _library.define(schema(op))
    _library.impl(op.name, lambda *args: _implementation(op, args), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{op.name}", lambda *args: _fake(op, args), lib=_library)
    if op.gradient is not None:
        _library.define(
            f"{op.gradient.name}(Tensor?[] saved, Tensor?[] cotangents, str[] wanted, "
            "float[] floats, int[] ints, str variant) -> Tensor[]"
        )
        _library.impl(
            op.gradient.name, lambda *args: _grad_implementation(op, *args), "CompositeExplicitAutograd"
        )
        name = f"{NAMESPACE}::{op.gradient.name}"
        torch.library.register_fake(name, lambda *args: _grad_fake(op, *args), lib=_library)
        torch.library.register_autograd(
            f"{NAMESPACE}::{op.name}",
            lambda ctx, grads: _autograd(op, ctx, grads),
            setup_context=lambda ctx, inputs, output: _setup(op, ctx, inputs, output),
            lib=_library,
        )
    return getattr(getattr(torch.ops, NAMESPACE), op.name)


def _decode(op: Op, args: tuple[Any, ...]) -> tuple[Tensors, Scalars, dict[str, object], str | None]:
    """Return tensors, scalars, statics and the math model of a registered op's arguments."""
    math = args[len(op.formals)] if len(args) > len(op.formals) else AUTO
    given = dict(zip((f.name for f in op.formals), args, strict=False))
    tensors = {f.name: given[f.name] for f in op.formals
               if isinstance(f.type, TensorType) and given[f.name] is not None}  # fmt: skip
    scalars = {f.name: given[f.name] for f in op.formals
               if isinstance(f.type, ScalarType) and given[f.name] is not None}  # fmt: skip
    statics = {f.name: tuple(given[f.name]) if isinstance(given[f.name], list) else given[f.name]
               for f in op.formals if isinstance(f.type, StaticType)}  # fmt: skip
    return tensors, scalars, statics, None if math == AUTO else math


def _implementation(op: Op, args: tuple[Any, ...]) -> list[torch.Tensor]:
    tensors, scalars, statics, math = _decode(op, args)
    invocation = invoke(op, tensors, scalars, statics, math)
    return list(dispatch(invocation, tensors, scalars).values())


def _fake(op: Op, args: tuple[Any, ...]) -> list[torch.Tensor]:
    tensors, scalars, statics, math = _decode(op, args)
    invocation = invoke(op, tensors, scalars, statics, math)
    geometry = measure(op.name, row_axis(op), inputs_of(invocation), tensors)
    first = next(iter(tensors.values()))
    return [
        first.new_empty(output_shape(d, geometry), dtype=TORCH_DTYPES[d.type.dtype])
        for d in outputs_of(invocation)
    ]


def _setup(op: Op, ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    tensors, scalars, statics, math = _decode(op, inputs)
    names = output_names(invoke(op, tensors, scalars, statics, math))
    saved = {n: t for n, t in {**tensors, **dict(zip(names, output, strict=True))}.items() if n in op.saves}
    ctx.saved_names = tuple(saved)
    ctx.save_for_backward(*saved.values())
    ctx.inputs = tuple(None if isinstance(x, torch.Tensor) else x for x in inputs)
    ctx.dtypes = {n: t.dtype for n, t in tensors.items()}
    ctx.output_names = names


def _autograd(op: Op, ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    assert op.gradient is not None
    formals = [f.name for f in op.formals]
    wanted = [
        n for n, need in zip(formals, ctx.needs_input_grad, strict=False) if need and n in op.gradient.wrt
    ]
    given = dict(zip(ctx.saved_names, ctx.saved_tensors, strict=True))
    key = _Variants.keep(op, ctx)
    saved = [given.get(n) for n in (*formals, *ctx.output_names)]
    floats, ints = _Variants.numbers(op, ctx.inputs)
    made = getattr(getattr(torch.ops, NAMESPACE), op.gradient.name)(
        saved, list(grads), wanted, floats, ints, key
    )
    found = dict(zip(wanted, made, strict=True))
    # torch takes an empty list for one of tensors, and wants as many gradients
    return (*([] if x == [] else found.get(n) for n, x in zip(formals, ctx.inputs, strict=False)), None)


class _Variants:
    """Remembers, by a string that a schema can carry, which variant of an operator a gradient belongs to."""

    kept: dict[str, tuple[Mapping[str, torch.dtype], tuple[Any, ...], tuple[str, ...]]] = {}

    @classmethod
    def keep(cls, op: Op, ctx: Any) -> str:
        present = tuple(x is not None for x in ctx.inputs)
        statics = [x for f, x in zip(op.formals, ctx.inputs, strict=False) if isinstance(f.type, StaticType)]
        key = repr(
            (op.name, sorted((n, str(d)) for n, d in ctx.dtypes.items()), present, statics, ctx.inputs[-1])
        )
        cls.kept[key] = (ctx.dtypes, ctx.inputs, ctx.output_names)
        return key

    @staticmethod
    def numbers(op: Op, inputs: tuple[Any, ...]) -> tuple[list[float], list[int]]:
        """Return the scalars that are there, by kind, in order: run-time values travel as such."""
        scalars = [
            (f.type, x)
            for f, x in zip(op.formals, inputs, strict=False)
            if isinstance(f.type, ScalarType) and x is not None
        ]
        return (
            [x for t, x in scalars if t.dtype is DType.F32],
            [x for t, x in scalars if t.dtype is not DType.F32],
        )


def _grad_arguments(
    op: Op, saved: list[Any], floats: list[float], ints: list[int], variant: str
) -> tuple[Any, Tensors, Scalars, tuple[str, ...]]:
    dtypes, inputs, names = _Variants.kept[variant]
    formals = [f.name for f in op.formals]
    there = {n: t for n, t in zip((*formals, *names), saved, strict=True) if t is not None}
    left, right = iter(floats), iter(ints)
    scalars: Scalars = {}
    for f, x in zip(op.formals, inputs, strict=False):
        if isinstance(f.type, ScalarType) and x is not None:
            scalars[f.name] = next(left if f.type.dtype is DType.F32 else right)
    _, _, statics, math = _decode(op, inputs)
    stand_in = {n: torch.empty(0, dtype=d) for n, d in dtypes.items()}
    return invoke(op, stand_in, scalars, statics, math), there, scalars, names


def _grad_implementation(
    op: Op, saved: list[Any], cotangents: list[Any], wanted: list[str], floats: list[float], ints: list[int],
    variant: str,
) -> list[torch.Tensor]:  # fmt: skip
    invocation, there, scalars, names = _grad_arguments(op, saved, floats, ints, variant)
    found = gradients(invocation, there, dict(zip(names, cotangents, strict=True)), scalars, wanted)
    return [found[n] for n in wanted]


def _grad_fake(
    op: Op, saved: list[Any], cotangents: list[Any], wanted: list[str], floats: list[float], ints: list[int],
    variant: str,
) -> list[torch.Tensor]:  # fmt: skip
    assert op.gradient is not None
    dtypes, _, names = _Variants.kept[variant]
    there = dict(zip((*(f.name for f in op.formals), *names), saved, strict=True))
    there |= {f"d_{n}": g for n, g in zip(names, cotangents, strict=True)}
    return [_like(op, n, there).new_empty(_like(op, n, there).shape, dtype=dtypes[n]) for n in wanted]


def _like(op: Op, name: str, there: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    """Return a tensor of an input's shape: itself if it is saved, else one that is declared with its axes."""
    assert op.gradient is not None
    own = op.formal(name)
    assert isinstance(own.type, TensorType)
    for formal in (own, *op.formals, *op.gradient.formals):
        found = there.get(formal.name)
        if isinstance(formal.type, TensorType) and formal.type.axes == own.type.axes and found is not None:
            return found
    raise NotImplementedError(f"the gradient of {name} under a tracer needs its shape, and nothing has it")
