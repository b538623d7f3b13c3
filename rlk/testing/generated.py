"""Run a program's generated kernels on the CPU, from NumPy arrays to NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp import floats
from rlk.ir.nodes import Decl, MathModel, Program, Role
from rlk.ir.types import DType, TileType
from rlk.lower import cute, tilelang, triton
from rlk.lower.common.emitted import CallArg, Emitted, From, Signature
from rlk.lower.common.memory import memory_shape
from rlk.passes.pipeline import launched, specialize
from rlk.passes.walk import walk
from rlk.schedule.heuristics import choose
from rlk.schedule.schedule import Schedule
from rlk.schedule.tilelang_tiles import by_tilelang_tiles
from rlk.target.facts import Target, target
from rlk.testing.simulators import hopper
from rlk.testing.simulators.cdna import hip, host
from rlk.testing.simulators.interpreter import interpret

Array = NDArray[Any]
LOWERINGS = {"triton": triton, "cute": cute, "tilelang": tilelang}
Device = Callable[[Emitted], AbstractContextManager[tuple[Callable[..., None], Any]]]
"""What runs a module: entered, it gives the host function, and by name the kernels that this one launches."""

_NUMPY = {
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.U32: np.uint32,
    DType.BOOL: np.bool_,
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
    backend: str = "triton",
    device: Device | None = None,
    waves: int = 0,
) -> Ran:
    """Lower a canonical program for the inputs' sizes, run its kernels, and return what they store.

    inputs: arrays (bf16 as u16 patterns) and scalars by name; kernels get them as they lie. split_rows: pass
    the rows as two dims with this inner extent, as for a tensor that cannot be flattened. extents: of axes
    that no input has. divisible: see Signature. device: what runs the kernels; if not given, the
    backend's interpreter, or for "tilelang" its HIP on the CPU, with the waves in the order that `waves`
    names.
    """
    on = on or target("gfx942" if backend == "tilelang" else "sm_90a")
    extents = {**(extents or {}), **extents_of(canonical, inputs)}
    types = [let.type for k in canonical.kernels for let in walk(k.body)]
    dynamic = {a.name for t in types if isinstance(t, TileType) for a in t.axes if a.dynamic}
    dynamic |= {a.name for k in canonical.kernels for d in k.params for a in d.type.axes if a.dynamic}
    static = {n: e for n, e in extents.items() if n not in dynamic}
    program = launched(canonical, static, softmax or on.softmax, extents)
    if backend == "cute" and schedules is not None and len(schedules) != len(program.kernels):
        program = specialize(canonical, static, softmax or on.softmax)  # blocks walk the pieces
    signature = Signature(tuple(sorted(static.items())), split_rows is not None, divisible)
    chosen = schedules or [choose(k, on, signature, extents) for k in program.kernels]
    if backend == "tilelang" and schedules is None:
        chosen = by_tilelang_tiles(program, chosen, extents, on)
    emitted = LOWERINGS[backend].lower(program, chosen, on, signature)
    decls = {d.name: d for k in program.kernels for d in k.params}
    memory = {d.name: _buffer(d, inputs, extents) for d in decls.values() if d.role is not Role.SCALAR}
    errors = np.zeros(2, np.int32)
    values = [_value(a, memory, inputs, extents, errors, split_rows) for a in emitted.call]
    with (device or _interpreter(backend, on, waves))(emitted) as (call, kernels):
        call(kernels, *values)
    written = {n: _array(memory[n]) for n, d in decls.items() if d.role in (Role.OUT, Role.WORK)}
    return Ran(written, (int(errors[0]), int(errors[1])), emitted)


def extents_of(program: Program, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the extents of all axes that an input has."""
    found: dict[str, int] = {}
    for kernel in program.kernels:
        for decl in kernel.params:
            if decl.name in inputs and decl.role is not Role.SCALAR:
                found.update((a.name, n) for a, n in zip(decl.type.axes, np.shape(inputs[decl.name])))
    return found


def _interpreter(backend: str, on: Target, waves: int) -> Device:
    """Return what runs the modules of a backend on the CPU."""
    match backend:
        case "tilelang":
            return partial(_run_waves, on=on, waves=waves)
        case "cute":
            return _interpreted_threads
        case _:
            return _interpreted


@contextmanager
def _run_waves(emitted: Emitted, on: Target, waves: int) -> Iterator[tuple[Callable[..., None], Any]]:
    """Run TileLang kernels through their HIP source, compiled for the CPU."""
    launchers = {k.name: host.launcher(emitted, k, on.name, waves) for k in emitted.kernels}
    yield hip.load(emitted.source).call, SimpleNamespace(**launchers)


@contextmanager
def _interpreted(emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
    """Run Triton kernels program by program."""
    module = interpret(emitted.source, filename=emitted.file)

    def launcher(name: str) -> Any:
        return lambda grid, *args: getattr(module, name)[grid](*args)

    yield module.call, SimpleNamespace(**{k.name: launcher(k.name) for k in emitted.kernels})


@contextmanager
def _interpreted_threads(emitted: Emitted) -> Iterator[tuple[Callable[..., None], Any]]:
    """Run CuTe kernels thread by thread."""
    module = hopper.interpret(emitted.source, filename=emitted.file)

    def launcher(name: str) -> Any:
        host = getattr(module, f"launch_{name}")
        return lambda grid, *args: host(*args, grid[0], None)

    yield module.call, SimpleNamespace(**{k.name: launcher(k.name) for k in emitted.kernels})


def _buffer(decl: Decl, inputs: Mapping[str, Any], extents: Mapping[str, int]) -> Any:
    """Return an input as a torch tensor, or memory that no store has written: all NaN, all ones."""
    import torch

    bf16 = decl.type.dtype is DType.BF16
    if decl.name in inputs:
        given = np.asarray(inputs[decl.name])
        if not given.ndim or given.strides[-1] != given.itemsize:
            given = np.ascontiguousarray(given)  # a last dim has stride 1
        if bf16 and given.dtype == np.float32:
            given = floats.bf16_bits(given)
        tensor = torch.from_numpy(given.view(np.int16) if bf16 else given)
    else:
        shape = memory_shape(decl, extents)
        kind = np.int16 if bf16 else _NUMPY[decl.type.dtype]
        ones = 1 if kind is np.bool_ else 0xFF
        raw = np.full((*shape, np.dtype(kind).itemsize), ones, np.uint8)
        tensor = torch.from_numpy(raw.view(kind).reshape(shape))
    return tensor.view(torch.bfloat16) if bf16 else tensor


def _array(tensor: Any) -> Array:
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
