"""The operators as torch.library ops: schema, fake and autograd derived from the spec."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache
from operator import index
from typing import Any

import torch

from rlk.env import Env
from rlk.errors import SpecError
from rlk.ir.nodes import Decl
from rlk.ir.types import DType
from rlk.lang.op import OWN, Formal, Op, Variant, variants
from rlk.lang.types import ScalarType, StaticType, TensorType
from rlk.lang.variants import outputs
from rlk.runtime.binding.arguments import RLK_DTYPES, TORCH_DTYPES, output_shape
from rlk.runtime.binding.invocation import (
    Invocation,
    Scalars,
    Tensors,
    geometry_of,
    of_one_stride,
    outputs_of,
    scattered,
)
from rlk.runtime.binding.selection import (
    DTypes,
    Statics,
    check_differentiable,
    check_scalars,
    differentiable_in,
    invoke,
    public_name,
    selected,
)
from rlk.runtime.call.autograd import (
    backward_of,
    differentiated,
    gradients,
    once,
    output_names,
    passed_on,
    pulls,
)
from rlk.runtime.call.mutation import check_traced, run_of

# before anything is registered, which torch allows once: a bad variable is said at every import
Env.current()
AUTO = "auto"  # the math option of a schema, where None is not a string
_own = torch.library.Library(OWN, "DEF")
_libraries: dict[Op, torch.library.Library] = {}
"""The registrations of operators that are not rlk's: each goes when its library is destroyed."""


def through_dispatcher(
    op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None
) -> Tensors:
    """Call an operator through torch's dispatcher, so that compilers and fake tensors see it."""
    if not op.into or torch.is_grad_enabled():
        check_differentiable(op, tensors)
    arguments = encoded(op, tensors, scalars, statics, math)
    outputs = getattr(getattr(torch.ops, op.calls.namespace), op.name)(*arguments)
    return named(op, tensors, scalars, statics, outputs)


def encoded(op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> list[object]:
    """Return the arguments of an operator's schema, in order."""
    given = {**tensors, **scalars, **_constant(statics)}
    return [*(_encode(given.get(f.name, _default(f))) for f in op.formals), math or AUTO]


def named(
    op: Op, tensors: Tensors, scalars: Scalars, statics: Statics, outputs: list[torch.Tensor]
) -> Tensors:
    """Return the outputs of a call by name."""
    dtypes = tuple((name, tensor.dtype) for name, tensor in tensors.items())
    names = _names(op.qualified, dtypes, tuple(scalars), tuple(_constant(statics).items()))
    if not op.into:
        return dict(zip(names, outputs, strict=True))
    there = _fresh_names(op.qualified)
    several = (outputs,) if len(there) == 1 else outputs or ()
    made = dict(zip(there, several, strict=True))
    made |= {name: tensors[source] for name, source in op.into.items() if source in tensors}
    return {name: made[name] for name in names if name in made}


def _constant(statics: Statics) -> dict[str, object]:
    """Return statics whose integers are constants of a compiled graph, which is traced again for others."""
    return {name: index(x) if type(x) in (int, torch.SymInt) else x for name, x in statics.items()}


@cache
def fresh(op: Op) -> tuple[str, ...]:
    """Return the outputs of any variant of an operator that are written into no input."""
    if op.returns:
        return tuple(name for name in op.returns if name not in op.into)
    made = (d.name for variant in (op.default_variant(), *variants(op)) for d in _written_by(op, variant))
    return tuple(name for name in dict.fromkeys(made) if name not in op.into)


def _written_by(op: Op, variant: Variant) -> tuple[Decl, ...]:
    try:
        return outputs(op.trace(variant))
    except (SpecError, AttributeError, TypeError):  # a combination that the author refuses, or forgot
        return ()


def _fresh_names(op: str) -> tuple[str, ...]:
    return fresh(_registered[op])


_fresh_names._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as that of `_names`


def _names(
    op: str, dtypes: DTypes, scalars: tuple[str, ...], statics: tuple[tuple[str, object], ...]
) -> tuple[str, ...]:
    """Return the names of an operator's outputs, a function of the variant."""
    return output_names(selected(_registered[op], dtypes, scalars, dict(statics), None))


# the attribute of torch.compiler.assume_constant_result, without importing the compiler (1.3 s) in eager use
_names._dynamo_marked_constant = True  # type: ignore[attr-defined]

_registered: dict[str, Op] = {}


def registered(name: str) -> Op:
    """Return the operator of this name in torch's registry."""
    return _registered[name]


def _default(formal: Formal) -> object:
    return None if formal.default is inspect.Parameter.empty else formal.default


def _encode(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def schema(op: Op) -> str:
    """Return the schema of an operator: its parameters in order, then the math model; a list of outputs.

    Of an operator that writes into inputs, the outputs of any variant that it does not: torch functionalizes
    no op that returns a list.
    """
    results = "Tensor[]"
    if op.into:
        results = ", ".join(["Tensor"] * len(fresh(op)))
        results = results if len(fresh(op)) == 1 else f"({results})"
    return f"{op.name}({parameters(op)}='{AUTO}') -> {results}"


def parameters(op: Op) -> str:
    """Return the parameters of an operator's schema."""
    marks = {name: f"(a{i}!)" for i, name in enumerate(op.into.values())}
    return f"{', '.join(_parameter(f, marks.get(f.name, '')) for f in op.formals)}, str math"


def _parameter(formal: Formal, mark: str) -> str:
    """Return a parameter of a schema; mark: of memory that is written."""
    match formal.type:
        case TensorType(optional=optional):
            return f"Tensor{mark}{'?' if optional else ''} {formal.name}"
        case ScalarType(dtype=dtype, optional=optional):
            return f"{'float' if dtype is DType.F32 else 'int'}{'?' if optional else ''} {formal.name}"
        case StaticType():
            kinds = {tuple: "str[]", bool: "bool", str: "str", int: "int"}
            return f"{kinds[type(formal.default)]} {formal.name}"


def defined(namespace: str, name: str) -> bool:
    """Return whether torch has an op of this name."""
    return bool(torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}"))


def unregister(op: Op) -> None:
    """Remove an operator from torch's registry, which must not be rlk's own."""
    namespace, op.calls.namespace = op.calls.namespace, ""
    _registered.pop(f"{namespace}.{op.name}", None)
    _libraries.pop(op)._destroy()
    for name in (op.name, *([op.gradient.name] if op.gradient is not None else [])):
        getattr(torch.ops, namespace).__dict__.pop(name, None)  # where torch remembers what it looked up


def register(op: Op, namespace: str = OWN) -> Any:
    """Define an operator in torch's registry, once, and return its callable."""
    if op.calls.namespace == namespace:
        return getattr(getattr(torch.ops, namespace), op.name)
    op.calls.namespace = namespace
    _registered[op.qualified] = op
    library = _own if namespace == OWN else torch.library.Library(namespace, "FRAGMENT")
    if library is not _own:
        _libraries[op] = library
    library.define(schema(op))
    library.impl(op.name, lambda *args: _implementation(op, args), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::{op.name}", lambda *args: fake(op, args), lib=library)
    if op.gradient is not None:
        library.define(
            f"{op.gradient.name}(Tensor?[] saved, Tensor?[] cotangents, str[] wanted, "
            "float[] floats, int[] ints, str variant) -> Tensor[]"
        )
        library.impl(
            op.gradient.name, lambda *args: _grad_implementation(op, *args), "CompositeExplicitAutograd"
        )
        name = f"{namespace}::{op.gradient.name}"
        torch.library.register_fake(name, lambda *args: gradient_fake(op, *args), lib=library)
        torch.library.register_autograd(
            f"{namespace}::{op.name}",
            lambda ctx, grads: _autograd(op, ctx, grads),
            setup_context=lambda ctx, inputs, output: setup(op, ctx, inputs, output),
            lib=library,
        )
    return getattr(getattr(torch.ops, namespace), op.name)


def decoded(op: Op, args: tuple[Any, ...]) -> tuple[Tensors, Scalars, dict[str, object], str | None]:
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


def _implementation(op: Op, args: tuple[Any, ...]) -> Any:
    tensors, scalars, statics, math = decoded(op, args)
    invocation = invoke(op, tensors, scalars, statics, math)
    check_scalars(op, scalars)
    made = run_of(invocation, tensors)(tensors, scalars)
    return list(made.values()) if not op.into else _results(op, made, next(iter(tensors.values())))


def _results(op: Op, made: Tensors, like: torch.Tensor) -> Any:
    """Return the outputs that are written into no input, empty tensors for those of other variants."""
    every = tuple(made[n] if n in made else like.new_empty(0) for n in fresh(op))
    return every[0] if len(every) == 1 else every or None


def fake(op: Op, args: tuple[Any, ...]) -> Any:
    """Return tensors like those that a call would return."""
    tensors, scalars, statics, math = decoded(op, args)
    invocation = invoke(op, tensors, scalars, statics, math)
    if op.into:
        check_traced(op.name, tensors, op.into)
    tensors = of_one_stride(tensors, scattered(invocation, tensors))
    geometry = geometry_of(invocation, tensors)
    first = next(iter(tensors.values()))
    made = {
        d.name: first.new_empty(output_shape(d, geometry), dtype=TORCH_DTYPES[d.type.dtype])
        for d in outputs_of(invocation)
        if d.name not in op.into
    }
    return list(made.values()) if not op.into else _results(op, made, first)


def setup(op: Op, ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    """Save in an autograd node the tensors that the gradient reads, and its variant."""
    tensors, scalars, statics, math = decoded(op, inputs)
    invocation = invoke(op, tensors, scalars, statics, math)
    names = output_names(invocation)
    saved = {n: t for n, t in {**tensors, **dict(zip(names, output, strict=True))}.items() if n in op.saves}
    ctx.saved_names = tuple(saved)
    ctx.save_for_backward(*saved.values())
    ctx.lists = frozenset(f.name for f, x in zip(op.formals, inputs, strict=False) if x == [])
    dtypes = {n: RLK_DTYPES[t.dtype].value for n, t in tensors.items()}
    # a text that says it all: a graph may be kept by its compiler, and run by a process that compiled nothing
    ctx.variant = json.dumps([dtypes, list(scalars), statics, math])
    ctx.scalars, ctx.output_names = scalars, names


def gradient_arguments(op: Op, ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    """Return the arguments of the gradient's schema; the third are the names of the wanted gradients."""
    assert op.gradient is not None
    formals, among = [f.name for f in op.formals], differentiable_in(op)
    wanted = [n for n, need in zip(formals, ctx.needs_input_grad, strict=False) if need and n in among]
    given = dict(zip(ctx.saved_names, ctx.saved_tensors, strict=True))
    saved = [given.get(n) for n in (*formals, *ctx.output_names)]
    return saved, list(grads), wanted, *by_kind(op, ctx.scalars), ctx.variant


def handed_on(op: Op, ctx: Any, arguments: tuple[Any, ...], found: Tensors) -> tuple[Any, ...]:
    """Return gradients in the order of an operator's parameters and its math model.

    arguments: of the gradient's schema.
    """
    found = once(public_name(op), found, differentiated(ctx, (*arguments[0], *arguments[1])))
    # torch takes an empty list for one of tensors, and wants as many gradients
    every = (*([] if f.name in ctx.lists else found.get(f.name) for f in op.formals), None)
    return every[: len(ctx.needs_input_grad)]  # the math model may have been left out


def _autograd(op: Op, ctx: Any, grads: list[torch.Tensor | None]) -> tuple[Any, ...]:
    arguments = gradient_arguments(op, ctx, grads)
    return handed_on(op, ctx, arguments, computed(op, arguments))


def computed(op: Op, arguments: tuple[Any, ...]) -> Tensors:
    """Return the gradients that the arguments of a gradient's schema ask for, by name."""
    assert op.gradient is not None
    saved, grads, wanted, floats, ints, variant = arguments
    invocation, _, _ = variant_of(op, variant)
    given = dict(zip(output_names(invocation), grads, strict=True))
    # here, not in the op: an op must not return its own argument
    found = passed_on(invocation, given, wanted)
    rest = [n for n in wanted if n not in found]
    if op.gradient.fn is None and rest:
        # nor can it return no gradient
        there = {str(i): t for i, t in enumerate((*saved, *grads)) if t is not None}
        rest = rest if pulls(backward_of(invocation, given, rest), there) else []
    if rest:
        run = getattr(getattr(torch.ops, op.calls.namespace), op.gradient.name)
        found |= dict(zip(rest, run(saved, grads, rest, floats, ints, variant), strict=True))
    return found


def by_kind(op: Op, scalars: Scalars) -> tuple[list[float], list[int]]:
    """Return floats and integers, in order: run-time values travel as such."""
    floats = [x for n, x in scalars.items() if _is_float(op, n)]
    return floats, [x for n, x in scalars.items() if not _is_float(op, n)]  # type: ignore[misc]


def _is_float(op: Op, name: str) -> bool:
    return op.formal(name).type.dtype is DType.F32  # type: ignore[union-attr]


@cache
def variant_of(op: Op, text: str) -> tuple[Invocation, dict[str, torch.dtype], tuple[str, ...]]:
    """Parse a text of `setup`: return an invocation, the dtypes of its inputs, the names of scalars."""
    dtypes, scalars, statics, math = json.loads(text)
    found = {n: TORCH_DTYPES[DType(d)] for n, d in dtypes.items()}
    chosen = {n: tuple(x) if isinstance(x, list) else x for n, x in statics.items()}
    return selected(op, tuple(found.items()), tuple(scalars), chosen, math), found, tuple(scalars)


def math_of(text: str) -> str | None:
    """Return the math option that a text of `setup` says."""
    found: str | None = json.loads(text)[-1]
    return found


def read(
    op: Op, saved: list[Any], floats: list[float], ints: list[int], variant: str
) -> tuple[Invocation, Tensors, Scalars]:
    """Return the inputs of the gradient from the arguments of its schema."""
    invocation, _, names = variant_of(op, variant)
    left, right = iter(floats), iter(ints)
    scalars: Scalars = {n: next(left if _is_float(op, n) else right) for n in names}
    keys = (*(f.name for f in op.formals), *output_names(invocation))
    return invocation, {n: t for n, t in zip(keys, saved, strict=True) if t is not None}, scalars


def _grad_implementation(
    op: Op, saved: list[Any], cotangents: list[Any], wanted: list[str], floats: list[float], ints: list[int],
    variant: str,
) -> list[torch.Tensor]:  # fmt: skip
    invocation, there, scalars = read(op, saved, floats, ints, variant)
    given = dict(zip(output_names(invocation), cotangents, strict=True))
    found = gradients(invocation, there, given, scalars, wanted)
    return [found[n] for n in wanted]


def gradient_fake(
    op: Op, saved: list[Any], cotangents: list[Any], wanted: list[str], floats: list[float], ints: list[int],
    variant: str,
) -> list[torch.Tensor]:  # fmt: skip
    """Return tensors like those that a call of the gradient would return."""
    assert op.gradient is not None
    invocation, dtypes, _ = variant_of(op, variant)
    names = output_names(invocation)
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
