"""Invocations: a spec, a variant and a model of exp2, with their programs, tensors and target."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import torch

from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.ir.dims import Axis, completed
from rlk.ir.nodes import Decl, Dot, MathModel, Program, Role
from rlk.ir.numerics import Tier, home, numerics_id, tier
from rlk.ir.text import axes_in
from rlk.lang.op import OWN, Op, Variant, Vjp, declared
from rlk.lang.types import TensorType
from rlk.passes.in_place import in_place
from rlk.passes.pipeline import canonical, specialize
from rlk.passes.shard import shard
from rlk.passes.unstored import unstored
from rlk.passes.walk import walk
from rlk.runtime.binding.arguments import Geometry, collapse, measure, output_shape
from rlk.runtime.binding.checks import wrong_value
from rlk.target.facts import Target, target

Spec = Op | Vjp
Tensors = dict[str, torch.Tensor]
Scalars = dict[str, float | int]
Run = Callable[[Tensors, Scalars], Tensors]
_numbers: dict[object, int] = {}
_NONE = torch.empty(0)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A spec, its variant, and the model of exp2 in softmax folds (None: that of the device).

    shard: an axis by name, and how many ranks share its pieces. into: outputs that the caller gives memory
    for, beside the inputs: contiguous, or of the dims that the output declares, the last one of stride 1.
    unstored: outputs without elements in a call, where others have some.
    """

    spec: Spec
    variant: Variant
    math: MathModel | None = None
    shard: tuple[str, int] = ("", 1)
    into: frozenset[str] = frozenset()
    unstored: frozenset[str] = frozenset()
    key: int = field(init=False, compare=False, default=-1)

    def __post_init__(self) -> None:
        # a small integer stands for the invocation in the keys of bound calls: hashing it is free
        what = (id(self.spec), self.variant, self.math, self.shard, self.into, self.unstored)
        object.__setattr__(self, "key", _numbers.setdefault(what, len(_numbers)))

    def __hash__(self) -> int:
        return self.key


@cache
def traced(invocation: Invocation) -> Program:
    """Return the canonical program of an invocation, which defines its bits."""
    return _canonical(invocation, invocation.spec.trace(invocation.variant))


@cache
def for_kernels(invocation: Invocation, apart: frozenset[str] = frozenset()) -> Program:
    """Return the canonical program that kernels are made of; `apart` as `canonical` takes it."""
    spec, variant = invocation.spec, invocation.variant
    plain = spec.trace(variant)
    made = spec.trace_for_kernels(variant) if isinstance(spec, Op) else plain
    return traced(invocation) if made is plain and not apart else _canonical(invocation, made, apart)


def _canonical(invocation: Invocation, program: Program, apart: frozenset[str] = frozenset()) -> Program:
    return canonical(shard(unstored(program, invocation.unstored), *invocation.shard), apart=apart)


def operator_of(spec: Spec) -> Op:
    """Return the operator that a spec is, or is the gradient of."""
    return spec.op if isinstance(spec, Vjp) else spec


def label_of(spec: Spec) -> str:
    """Return the name of an operator or a gradient, with its namespace if it is not rlk's."""
    own = operator_of(spec)
    return own.qualified.removesuffix(own.name) + spec.name


def is_own(spec: Spec) -> bool:
    """Return whether an operator is rlk's, or one of an unknown origin."""
    return operator_of(spec).calls.namespace in ("", OWN)


@cache
def shape_givers(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the declarations of the operator's own inputs, read by this invocation's kernels or not."""
    op = operator_of(invocation.spec)
    found = (declared(f, invocation.variant) for f in op.formals)
    return tuple(d for d in found if d is not None and d.role is Role.IN)


def row_axis(spec: Spec) -> Axis | None:
    """Return the axis that may stand for several leading dims: the first of the operator's first tensor."""
    tensors = (f.type.axes for f in operator_of(spec).formals if isinstance(f.type, TensorType))
    first = next(tensors, ())
    return first[0] if first and first[0].dynamic else None


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface of an invocation: inputs, outputs and axes, without its kernels.

    inputs: the tensors and scalars that its kernels read, each once. outputs: in the order in which the spec
    writes them. dynamic: the axes whose extents never enter a key. pieces: of axes by name, the sizes of the
    pieces that they are cut into. one_stride: whether rows need one stride, because a kernel contracts them.
    sized: the axes whose extents the spec declares. in_place: outputs whose kernels may write the input that
    they go to.
    """

    inputs: tuple[Decl, ...]
    outputs: tuple[Decl, ...]
    dynamic: frozenset[str]
    pieces: tuple[tuple[str, tuple[int, ...]], ...]
    one_stride: bool
    sized: tuple[Axis, ...] = ()
    in_place: frozenset[str] = frozenset()


interfaces: dict[Invocation, Interface] = {}
"""What is known without a trace."""


def interface(invocation: Invocation) -> Interface:
    """Return the interface of an invocation; trace it if necessary."""
    found = interfaces.get(invocation)
    if found is None:
        found = interfaces[invocation] = _interface(invocation)
    return found


def _interface(invocation: Invocation) -> Interface:
    program = traced(invocation)
    read = (d for k in program.kernels for d in k.params if d.role in (Role.IN, Role.SCALAR))
    traced_params = invocation.spec.trace(invocation.variant).kernels[0].params
    order = {d.name: d for d in traced_params if d.role is Role.OUT}
    written = order | {d.name: d for k in program.kernels for d in k.params if d.role is Role.OUT}
    every = (d for k in program.kernels for d in k.params)
    axes = (a for d in (*every, *shape_givers(invocation)) for a in d.type.axes)
    bounds = (name for name, _ in operator_of(invocation.spec).bounds)
    pieces: dict[str, set[int]] = {}
    used = axes_in(program)
    whole = dict.fromkeys((*used, *(a.whole for d in traced_params for a in d.type.axes)))
    sized = tuple(a for a in whole if a.extent is not None)
    for axis in used:
        if axis.piece is not None:
            pieces.setdefault(axis.name, set()).add(axis.piece)
    return Interface(
        tuple({d.name: d for d in read}.values()),
        tuple(written[name] for name in order),
        frozenset({*(a.name for a in (*axes, *sized) if a.whole.dynamic), *bounds}),
        tuple((name, tuple(sorted(sizes))) for name, sizes in sorted(pieces.items())),
        _contracts_rows(invocation.spec, program),
        sized,
        in_place(program, written_into(invocation.spec, written)),
    )


def written_into(spec: Spec, outputs: Container[str]) -> dict[str, str]:
    """Return, of these outputs, those that are written into inputs, each with its input."""
    into = spec.into if isinstance(spec, Op) else {}
    return {name: source for name, source in into.items() if name in outputs}


def _contracts_rows(spec: Spec, program: Program) -> bool:
    """Return whether a program contracts the axis that stands for leading dims."""
    rows = row_axis(spec)
    lets = (let for kernel in program.kernels for let in walk(kernel.body))
    return rows is not None and any(isinstance(x.node, Dot) and x.node.over.name == rows.name for x in lets)


def inputs_of(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the tensors and scalars that the kernels of an invocation read, each once."""
    return interface(invocation).inputs


def outputs_of(invocation: Invocation) -> tuple[Decl, ...]:
    """Return the outputs of an invocation, in the order in which the spec writes them."""
    return interface(invocation).outputs


@cache
def target_of(device: torch.device) -> Target | None:
    """Return the target that a device is, or None for the CPU; raise where rlk has no backend at all."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UnsupportedError(
            Code.NO_BACKEND, op="rlk", device=device, why="unknown device type", alternatives="cuda, cpu"
        )
    try:
        if torch.version.hip:
            return target(torch.cuda.get_device_properties(device).gcnArchName.split(":")[0])
        major, minor = torch.cuda.get_device_capability(device)
    except (AssertionError, RuntimeError) as error:  # torch was built without CUDA, or has no such device
        why = str(error).partition("\n")[0]
        raise UnsupportedError(
            Code.NO_BACKEND, op="rlk", device=device, why=why, alternatives="cpu"
        ) from None
    return target(f"sm_{major}{minor}a" if major >= 9 else f"sm_{major}{minor}")


def model_of(invocation: Invocation, device: torch.device) -> MathModel:
    """Return the model of exp2 in softmax folds: the caller's, else the target's, else portable."""
    on = target_of(device)
    chosen = invocation.math or (MathModel.PORTABLE if on is None else on.softmax)
    if on is not None and chosen is not MathModel.PORTABLE and chosen is not on.softmax:
        raise UnsupportedError(
            Code.UNSUPPORTED,
            what=f"math={chosen.value!r}",
            backend="every backend",
            target=on.name,
            alternatives=f"math={on.softmax.value!r}, math='portable'",
        )
    return chosen


def bound_program(invocation: Invocation, model: MathModel, extents: Mapping[str, int]) -> Program:
    """Return the program with static extents and the math model bound."""
    return specialize(traced(invocation), extents, model)


@cache
def judged(invocation: Invocation, model: MathModel, target: str) -> tuple[str, tuple[tuple[str, Tier], ...]]:
    """Return the numerics id of an invocation on a target, and the tier of each of its outputs."""
    program = bound_program(invocation, model, {})
    whose = home(program, target)
    return numerics_id((program,), whose), tuple(sorted(tier(program, whose).items()))


def is_empty(invocation: Invocation, geometry: Geometry) -> bool:
    """Return whether the results are zeros that nothing needs to be launched for.

    An empty axis is not enough: a result that has elements may depend on other inputs. It is enough for
    gradients by hand, which are sums over nothing then, and for axes whose extents kernels are compiled for.
    """
    empty = {name for name, size in geometry.extents.items() if size == 0}
    spec = invocation.spec
    if not empty or isinstance(spec, Vjp) and spec.fn is not None:
        return bool(empty)
    found = interface(invocation)
    static = empty - found.dynamic
    if isinstance(spec, Op):  # a derived gradient has the extents that its operator took
        if static:
            _check_static_extents(invocation, geometry, static)
        if all(decl.name.startswith("d_") for decl in found.outputs):
            return True
    return bool(static) or all(0 in output_shape(decl, geometry) for decl in found.outputs)


def _check_static_extents(invocation: Invocation, geometry: Geometry, empty: set[str]) -> None:
    """Refuse an axis without elements whose extent kernels are compiled for, where results have elements.

    rlk's own functions without `returns` know what their results are then.
    """
    op = operator_of(invocation.spec)
    if op.calls.namespace == OWN and not op.returns:
        return
    shown = [d for d in outputs_of(invocation) if not op.returns or d.name in op.returns]
    if any(0 not in output_shape(decl, geometry) for decl in shown):
        raise _no_elements(op, sorted(empty)[0])


def geometry_of(invocation: Invocation, tensors: Tensors) -> Geometry:
    """Return the sizes of a call; raise LaunchError for an argument that is missing or does not fit."""
    name, sizes = invocation.spec.name, sized_by(invocation, tensors)
    missing = [d.name for d in sizes if d.name not in tensors]
    if missing:
        raise LaunchError(Code.ARG_MISSING, op=name, name=", ".join(missing), why="")
    given = {d.name: tensors[d.name] for d in sizes}
    written = invocation.spec.into.values() if isinstance(invocation.spec, Op) else ()
    found = measure(name, row_axis(invocation.spec), sizes, given, written)
    apart = {n: tensors[n].stride() for n in invocation.into if not tensors.get(n, _NONE).is_contiguous()}
    found = replace(found, strides={**found.strides, **apart}) if apart else found
    if isinstance(invocation.spec, Op):  # whose gradient is not asked for where a call was refused
        check_nonempty(invocation.spec, found.extents)
    return replace(found, extents=all_extents(invocation, found.extents))


def all_extents(invocation: Invocation, extents: Mapping[str, int]) -> dict[str, int]:
    """Return extents with those that follow from them: bounds of segments, and what axes declare."""
    made = operator_of(invocation.spec).bounded(extents)
    sized = interface(invocation).sized
    return completed(invocation.spec.name, sized, made) if sized else made


def sized_by(invocation: Invocation, tensors: Tensors) -> tuple[Decl, ...]:
    """Return the declarations of the inputs whose sizes are those of a call.

    A gradient's kernels may not read the input whose gradient they write; its sizes count all the same.
    """
    read = {d.name: d for d in inputs_of(invocation) if d.role is Role.IN}
    others = (d for d in shape_givers(invocation) if d.name in tensors and d.name not in read)
    return (*read.values(), *others)


def scattered(invocation: Invocation, tensors: Tensors) -> tuple[str, ...]:
    """Return the inputs whose rows no one stride advances through, where kernels know but one."""
    if not interface(invocation).one_stride:
        return ()
    rows = row_axis(invocation.spec)
    found = []
    for decl in sized_by(invocation, tensors):
        tensor = tensors.get(decl.name)
        if tensor is not None and decl.type.axes[:1] == (rows,):
            lead = tensor.dim() - len(decl.type.axes) + 1
            if lead > 1 and collapse(tuple(tensor.shape[:lead]), tensor.stride()[:lead]) is None:
                found.append(decl.name)
    return tuple(found)


def of_one_stride(tensors: Tensors, names: tuple[str, ...]) -> Tensors:
    """Return tensors of which those of these names are contiguous."""
    return {**tensors, **{name: tensors[name].contiguous() for name in names}} if names else tensors


def check_nonempty(op: Op, extents: Mapping[str, int]) -> None:
    """Raise LaunchError for a call that has rows, and nothing along an axis that they need."""
    rows = row_axis(op)
    for name in op.nonempty:
        if extents[name] == 0 and (rows is None or extents[rows.name]):
            raise _no_elements(op, name)


def _no_elements(op: Op, axis: str) -> LaunchError:
    """Return the error of an axis without elements, at the first dim that has it.

    The dim is said as "weight.shape[0]"; from the end where rows lead it.
    """
    types = {f.name: f.type for f in op.formals if isinstance(f.type, TensorType)}
    name, axes = next((n, t.axes) for n, t in types.items() if axis in [a.name for a in t.axes])
    dim = [a.name for a in axes].index(axis)
    place = f"{name}.shape[{dim - len(axes) if axes[0] == row_axis(op) else dim}]"
    return wrong_value(op.name, place, 0, "at least 1")


def strided(invocation: Invocation, geometry: Geometry) -> frozenset[str]:
    """Return the inputs whose last dim is not contiguous."""
    found = (d for d in inputs_of(invocation) if d.role is Role.IN and d.type.axes)
    return frozenset(
        d.name
        for d in found
        if geometry.strides[d.name][-1] != 1 and geometry.extents[d.type.axes[-1].name] > 1
    )
