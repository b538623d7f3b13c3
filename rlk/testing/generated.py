"""Run a program's generated kernels on the CPU, from NumPy arrays to NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.backends.interface import Backend, Bound
from rlk.backends.registry import complete, of_name
from rlk.errors import Code, InternalError
from rlk.interp import floats
from rlk.interp.arithmetic import INTEGERS
from rlk.ir.nodes import Decl, MathModel, Program, Role
from rlk.ir.types import DType, TileType
from rlk.lower.common.emitted import CallArg, Emitted, From, Signature
from rlk.lower.common.memory import memory_shape
from rlk.passes.pipeline import launched, specialize
from rlk.passes.walk import walk
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target, target
from rlk.testing.simulators.warp_exchange import Shared

Array = NDArray[Any]
Device = Callable[[Emitted], AbstractContextManager[tuple[Callable[..., None], Any]]]
"""What runs a module: entered, it gives the host function, and by name the kernels that this one launches."""

_NUMPY = {
    **INTEGERS,
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.E4M3: np.uint8,
    DType.E5M2: np.uint8,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """tensors: outputs and workspaces (bf16 as u16 patterns). errors: the code and the row of the words."""

    tensors: dict[str, Array]
    errors: tuple[int, int]
    emitted: Emitted


def run_generated(
    canonical: Program,
    inputs: Mapping[str, Any],
    *,
    schedules: Sequence[Schedule] | None = None,
    on: Target | None = None,
    softmax: MathModel | None = None,
    split_rows: int | None = None,
    extents: Mapping[str, int] | None = None,
    divisible: frozenset[str] = frozenset(),
    backend: str | None = None,
    device: Device | None = None,
    waves: int = 0,
) -> Ran:
    """Lower a canonical program for the inputs' sizes, run its kernels, and return what they store.

    inputs: arrays (bf16 as u16 patterns) and scalars by name; kernels get them as they lie. split_rows: pass
    the rows as two dims with this inner extent, as for a tensor that cannot be flattened. extents: of axes
    that no input has. divisible: see Signature. backend: by default the complete one. device: what runs the
    kernels; if not given, what simulates the backend, with the waves in the order that `waves` names.
    """
    by = complete() if backend is None else of_name(backend)
    on = on or target(by.checked_in[0])
    extents = {**(extents or {}), **extents_of(canonical, inputs)}
    types = [let.type for k in canonical.kernels for let in walk(k.body)]
    dynamic = {a.name for t in types if isinstance(t, TileType) for a in t.axes if a.dynamic}
    dynamic |= {a.name for k in canonical.kernels for d in k.params for a in d.type.axes if a.dynamic}
    static = {n: e for n, e in extents.items() if n not in dynamic}
    program = launched(canonical, static, softmax or on.softmax, extents)
    signature = Signature(tuple(sorted(static.items())), split_rows is not None, divisible)
    chosen = tuple(choose(k, on, signature, extents) for k in program.kernels)
    bound = Bound(program, chosen, lambda: specialize(canonical, static, softmax or on.softmax), on, extents)
    if schedules is None:
        placed = by.simulator_schedules(bound)
    else:
        placed = tuple(schedules)
        program = by.program_of(bound, placed)
    emitted = by.lower(program, placed, on, signature)
    decls = {d.name: d for k in program.kernels for d in k.params}
    memory = {d.name: buffer(d, inputs, extents) for d in decls.values() if d.role is not Role.SCALAR}
    errors = np.zeros(2, np.int32)
    values = [_value(a, memory, inputs, extents, errors, split_rows) for a in emitted.call]
    with (device or _simulation(by, on, waves))(emitted) as (call, kernels):
        call(kernels, *values)
    written = {n: array(memory[n]) for n, d in decls.items() if d.role in (Role.OUT, Role.WORK)}
    return Ran(written, (int(errors[0]), int(errors[1])), emitted)


def extents_of(program: Program, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the extents of all axes that an input has."""
    found: dict[str, int] = {}
    for kernel in program.kernels:
        for decl in kernel.params:
            if decl.name in inputs and decl.role is not Role.SCALAR:
                found.update((a.name, n) for a, n in zip(decl.type.axes, np.shape(inputs[decl.name])))
    return found


def _simulation(by: Backend, on: Target, waves: int) -> Device:
    """Return what runs the modules of a backend on the CPU."""
    simulate = by.simulate
    if simulate is None:
        raise InternalError(Code.INTERNAL, what=f"nothing runs the source of {by.name} on the CPU")
    return lambda emitted: simulate(emitted, on, waves)


def buffer(decl: Decl, inputs: Mapping[str, Any], extents: Mapping[str, int]) -> Any:
    """Return an input as a torch tensor, or memory that no store has written: all NaN, all ones."""
    import torch

    bf16 = decl.type.dtype is DType.BF16
    if decl.name in inputs:
        given = np.asarray(inputs[decl.name])
        if not given.ndim or given.strides[-1] != given.itemsize:
            given = np.ascontiguousarray(given)  # a last dim has stride 1
        if bf16 and given.dtype == np.float32:
            given = floats.bf16_bits(given)
        if decl.type.dtype.is_float8 and given.dtype == np.float32:
            given = floats.float8_bits(given, decl.type.dtype.value)
        tensor = torch.from_numpy(given.view(np.int16) if bf16 else given)
    else:
        shape = memory_shape(decl, extents)
        kind = np.int16 if bf16 else _NUMPY[decl.type.dtype]
        ones = 1 if kind is np.bool_ else 0xFF
        raw = np.full((*shape, np.dtype(kind).itemsize), ones, np.uint8)
        tensor = torch.from_numpy(raw.view(kind).reshape(shape))
    return tensor.view(torch.bfloat16) if bf16 else tensor


def array(tensor: Any) -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy()).view(np.uint16)
    return np.asarray(tensor.numpy())


def _value(
    argument: CallArg,
    memory: Mapping[str, Any],
    inputs: Mapping[str, Any],
    extents: Mapping[str, int],
    errors: Array,
    inner: int | None,
) -> Any:
    match argument.kind:
        case From.TENSOR:
            return memory[argument.source]
        case From.SCALAR:
            return inputs[argument.source]
        case From.EXTENT:
            return extents[argument.source]
        case From.STRIDE | From.INNER_STRIDE:
            return memory[argument.source].stride(argument.dim)
        case From.OUTER_STRIDE:
            return memory[argument.source].stride(argument.dim) * (inner or 1)
        case From.INNER_EXTENT:
            return inner
        case From.LOOP_INDEX | From.LENGTH:
            raise AssertionError(f"{argument.name} is found by the loops of the host function")
        case From.ERRORS:
            return errors
        case From.WORK_COUNTER:
            return np.zeros(1, np.int32)
        case From.SCRATCH:
            return Shared(argument.dim).data_ptr()
