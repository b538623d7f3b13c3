"""The shapes and variants at which kernels are checked in, and their source there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rlk.backends.interface import Backend, Bound
from rlk.backends.registry import complete, of_name, registered
from rlk.errors import UnsupportedError
from rlk.ir.dims import completed, steps_of
from rlk.ir.nodes import Program
from rlk.ir.text import axes_in
from rlk.ir.types import DType
from rlk.lang.op import Formal, Op, Variant
from rlk.lang.record import Unshown
from rlk.lang.types import DTypeVar, ScalarType, TensorType
from rlk.lang.variants import cotangents, differentiable, gradient_variant
from rlk.lower.common.abi import host_parameters, multiple_of
from rlk.lower.common.emitted import Emitted, From, Signature
from rlk.lower.common.memory import memory_shape
from rlk.passes.pipeline import canonical, launched, specialize
from rlk.runtime.binding.candidates import lowered_by
from rlk.runtime.registry import numerics, operators
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target, target

TARGETS = ("sm_90a", "gfx942")
ROWS = 8192
_EXTENTS = {"H": 32, "E": 128, "C": 64, "P": 40960, "D": 4096, "B": 64, "U": 151937, "R": 8}


def reference_variant(op: Op) -> Variant:
    """Return the variant of an operator that stands for it: that of its record, else the plain one."""
    plain = op.default_variant()
    statics = {**dict(plain.statics), **op.record.statics}
    return Variant.of(dict(plain.dtypes), set(op.record.present), statics)


def dtype_of(formal: Formal, preferred: DType | None) -> DType:
    """Return a dtype of a tensor: the preferred one if its annotation allows it, else its first."""
    assert isinstance(formal.type, TensorType)
    kind = formal.type.dtype
    choices = kind.choices if isinstance(kind, DTypeVar) else (kind,)
    return preferred if preferred in choices else choices[0]


def number_of(formal: Formal) -> float | int:
    """Return a scalar's default, else the number of its declared range that is next to 1."""
    assert isinstance(formal.type, ScalarType)
    if formal.default is not inspect.Parameter.empty and formal.default is not None:
        return formal.default  # type: ignore[return-value]
    least, most = formal.type.least, formal.type.most
    one = min(1.0 if most is None else most, 1.0) if least is None or least < 1.0 else least
    return one if formal.type.dtype.is_float else int(one)


def reference_extents(op: Op, program: Program, rows: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the extents of a program's axes at an operator's reference shapes; rows: of some, instead."""
    sized = [axis for axis in axes_in(program) if axis.extent is not None]
    axes = {axis.name: axis for k in program.kernels for d in k.params for axis in d.type.axes}
    steps = steps_of(sized)
    open_axes = {name: axis for name, axis in axes.items() if axis.extent is None}
    dynamic = {name: name in open_axes and open_axes[name].dynamic for name in (*open_axes, *steps)}
    sized_too = {axis.name for axis in sized}
    known = {**_EXTENTS, **op.record.extents, **(rows or {})}
    made = {
        name: known.get(name, ROWS if rows else 4096)
        for name, rows in dynamic.items()
        if name not in sized_too
    }
    made = {name: -(-n // steps.get(name, 1)) * steps.get(name, 1) for name, n in made.items()}
    return completed(op.name, sized, op.bounded(made))


def placed(op: Op, traced: Program, rows: Mapping[str, int] | None = None) -> Program:
    """Return the canonical program with the chunks side by side that a call of these sizes would place so."""
    plain = canonical(traced)
    return canonical(traced, apart=apart(plain, reference_extents(op, plain, rows)))


def reference_gradient(op: Op, variant: Variant) -> Program | None:
    """Return the gradient's canonical program with every cotangent, for every input; None without one."""
    wanted, given = differentiable(op, variant), cotangents(op, variant)
    if op.gradient is None or not wanted or not given:
        return None
    return canonical(op.gradient.trace(gradient_variant(variant, wanted, given)))


def traces(op: Op, variant: Variant) -> tuple[Program, Program | None]:
    """Return the trace that kernels are made of, and the canonical definition where that is another one."""
    made, traced = op.trace_for_kernels(variant), op.trace(variant)
    return made, None if made is traced else canonical(traced)


def emit(
    program: Program,
    extents: dict[str, int],
    on: Target,
    backend: str | None = None,
    defined: Program | None = None,
) -> tuple[Emitted, tuple[Schedule, ...], Program]:
    """Return a canonical program's source at these extents, its schedules, and what was lowered.

    backend: by default the complete one. defined: the program whose id it has, if that is another one.
    Raises UnsupportedError where a backend has no form for it.
    """
    by = complete() if backend is None else of_name(backend)
    return by_backend(prepared(program, extents, on, defined), by)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A canonical program at reference extents, as every backend lowers it."""

    bound: Bound
    signature: Signature
    identity: str


def prepared(
    program: Program, extents: dict[str, int], on: Target, defined: Program | None = None
) -> Prepared:
    """Return what lowerings of a canonical program by several backends share."""
    axes = {axis.whole for k in program.kernels for d in k.params for axis in d.type.axes}
    static = {axis.name: extents[axis.name] for axis in axes if not axis.dynamic}
    bound = launched(program, static, on.softmax, extents)
    signature = Signature(tuple(sorted(static.items())))
    chosen = tuple(choose(kernel, on, signature, extents) for kernel in bound.kernels)
    name, _ = numerics(program if defined is None else defined, on)
    signature = replace(signature, divisible=divisible(bound, signature, extents))
    given = Bound(bound, chosen, lambda: specialize(program, static, on.softmax), on, extents)
    return Prepared(given, signature, name)


def by_backend(given: Prepared, by: Backend) -> tuple[Emitted, tuple[Schedule, ...], Program]:
    """Return the source by a backend, its schedules, and what was lowered; raise UnsupportedError."""
    options = None if by.checked_in_options is None else by.checked_in_options()
    bound, chosen, emitted = lowered_by(by, given.bound, given.signature, given.identity, options=options)
    return emitted, chosen, bound


def divisible(program: Program, signature: Signature, extents: dict[str, int]) -> frozenset[str]:
    """Return the tensors and strides that compilers may take for aligned where all is contiguous."""
    decls = {d.name: d for k in program.kernels for d in k.params}
    call = host_parameters(program, signature)
    found = {argument.name for argument in call if argument.kind is From.TENSOR}
    for argument in call:
        if argument.kind is From.STRIDE:
            stride = math.prod(memory_shape(decls[argument.source], extents)[argument.dim + 1 :])
            found |= {argument.name} if stride % multiple_of(argument, decls) == 0 else set()
    return frozenset(found)


def reference_sources(ops: Iterable[Op] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the path below generated/ and the source of every checked-in kernel, or of all those of `ops`."""
    every = operators().values() if ops is None else tuple(ops)
    for on in map(target, TARGETS):
        for op in every:
            left_out = op.record.unshown if ops is None else ()
            if any(not each.program and not each.backend for each in left_out):
                continue  # nothing of it is shown: it need not be traced
            variant = reference_variant(op)
            made, defined = traces(op, variant)
            programs = {"forward": placed(op, made), "gradient": reference_gradient(op, variant)}
            for what, program in programs.items():
                if program is not None:
                    of = defined if what == "forward" else None
                    yield from _sources(program, reference_extents(op, program), on, what, left_out, of)


def _sources(
    program: Program,
    extents: dict[str, int],
    on: Target,
    what: str,
    left_out: tuple[Unshown, ...],
    defined: Program | None,
) -> Iterator[tuple[str, str]]:
    """Yield a program's source by each backend that has a form for it."""
    given = prepared(program, extents, on, defined)
    for by in registered():
        if on.name not in by.checked_in or any(each.holds(what, by.name) for each in left_out):
            continue
        try:
            emitted, _, _ = by_backend(given, by)
        except UnsupportedError:
            if by.complete:
                raise
            continue
        yield f"{on.folder}/{by.name}/{program.name}.py", emitted.source
