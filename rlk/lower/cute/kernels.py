"""Template data common to all CuTe kernels: signatures on both sides, tensors, and lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rlk.ir.nodes import Kernel
from rlk.lower.common import abi
from rlk.lower.common.emitted import OF_POINTERS, CallArg, From, KernelBuild
from rlk.lower.common.host import kernel_args
from rlk.lower.common.lines import Line
from rlk.lower.common.spelling import argument_type, tile_comment
from rlk.lower.cute import text
from rlk.lower.cute.attention.plan import AttentionPlan
from rlk.lower.cute.emit import Emitter
from rlk.lower.cute.plan import ContractionPlan, RowsPlan

Order = Sequence[int | Sequence[int]]
"""Of a tensor's dims; several may be taken for one, the fastest first."""


@dataclass(frozen=True, slots=True)
class TensorText:
    """A tensor as the host describes it: a pointer, extents and strides."""

    name: str
    shape: str
    stride: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Template fields of every kernel: name, parameters, tensors, launch arguments."""

    name: str
    about: str
    host_parameters: str
    parameters: str
    tensors: tuple[TensorText, ...]
    given: str  # arguments from host function to kernel
    threads: int


def arguments(kernel: Kernel, emitter: Emitter, loop_indices: Mapping[str, str]) -> list[CallArg]:
    """Return the arguments of a kernel in order: tensors, extents and strides, scalars."""
    return abi.kernel_arguments(
        kernel, emitter.memory.tensors(), emitter.memory.arguments.values(), loop_indices
    )


def tensors_of(
    emitter: Emitter, copied: Mapping[str, int], orders: Mapping[str, Order]
) -> tuple[TensorText, ...]:
    """Describe every tensor; copied: divisors of the strides of tensors with vector or TMA access.

    orders: of the dims of some.
    """
    found = []
    for decl in emitter.memory.tensors():
        shape, strides = emitter.memory.layout(decl)
        by = copied.get(decl.name, 1)
        known = [by > 1 and s != "1" and n != "1" for s, n in zip(strides, shape, strict=True)]
        each = [f"cute.assume({s}, divby={by})" if k else s for s, k in zip(strides, known, strict=True)]
        order = orders.get(decl.name, range(len(shape)))
        found.append(TensorText(decl.name, *(_ordered(of, order) for of in (shape, each))))
    return tuple(found)


def framed(
    plan: ContractionPlan | AttentionPlan | RowsPlan,
    emitter: Emitter,
    loop_indices: Mapping[str, str],
    about: str,
    *,
    copied: Mapping[str, int] = MappingProxyType({}),
    vectors: Mapping[str, int] = MappingProxyType({}),
    orders: Mapping[str, Order] = MappingProxyType({}),
) -> tuple[Frame, list[CallArg]]:
    """Return the frame of a kernel, and its arguments.

    copied: tensors that TMA loads, with stride divisors; vectors: those with vector loads. orders: dims
    of TMA descriptors.
    """
    tensors = tensors_of(emitter, {**copied, **vectors}, orders)
    given = arguments(plan.kernel, emitter, loop_indices)
    frame = Frame(
        name=plan.kernel.name,
        about=about,
        host_parameters=host_parameters(given, emitter),
        parameters=parameters(given, emitter, copied),
        tensors=tensors,
        given=passed(given, copied),
        threads=plan.threads,
    )
    return frame, given


def owning(plan: ContractionPlan | AttentionPlan) -> str:
    """Return the comment with the tile of a block."""
    return tile_comment("block", (plan.rows, *plan.others), plan.kind)


def _ordered(parts: Sequence[str], order: Order) -> str:
    """Return parts in an order, those of several dims together."""
    return _tuple([parts[d] if isinstance(d, int) else _ordered(parts, d) for d in order])


def _tuple(parts: tuple[str, ...] | list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def host_parameters(given: list[CallArg], emitter: Emitter) -> str:
    """Return the parameters of the host function."""
    return ", ".join(f"{_outside(a)}: {_host_type(a, emitter)}" for a in given)


def parameters(given: list[CallArg], emitter: Emitter, copied: Mapping[str, int]) -> str:
    """Return the device function's parameters: all but TMA tensors and strides."""
    kept = [a for a in given if a.name not in copied and a.kind is not From.STRIDE]
    return ", ".join(f"{a.name}: {_type(a, emitter)}" for a in kept)


def passed(given: list[CallArg], copied: Mapping[str, int]) -> str:
    """Return the host's arguments for these parameters."""
    kept = [a for a in given if a.name not in copied and a.kind is not From.STRIDE]
    return ", ".join(a.name if a.kind is From.TENSOR else _outside(a) for a in kept)


def build(kernel: Kernel, given: list[CallArg], emitter: Emitter) -> KernelBuild:
    """Return the build of a kernel."""
    known = emitter.plan.signature.divisible

    def divisible(argument: CallArg) -> bool:
        return argument.name in known or argument.kind is From.SCRATCH  # torch aligns what it makes

    args = kernel_args(given, emitter.memory.decls, divisible, _outside)
    return KernelBuild(kernel.name, args, overlaps=True)


def _outside(argument: CallArg) -> str:
    return f"{argument.name}_ptr" if argument.kind in OF_POINTERS else argument.name


def _host_type(argument: CallArg, emitter: Emitter) -> str:
    if argument.kind in OF_POINTERS:
        return "cute.Pointer"
    return text.OF_SCALARS[argument_type(argument, emitter.memory.decls)]


def _type(argument: CallArg, emitter: Emitter) -> str:
    match argument.kind:
        case From.TENSOR:
            return "cute.Tensor"
        case From.ERRORS | From.WORK_COUNTER | From.SCRATCH:
            return "cute.Pointer"
        case _:
            return text.OF_SCALARS[argument_type(argument, emitter.memory.decls)]


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel for its template, with its launch arguments and its build."""

    template: str
    subject: object
    arguments: tuple[CallArg, ...]
    sizes: tuple[CallArg, ...]
    programs: tuple[str, ...]  # host lines that count the blocks
    build: KernelBuild


def sizes(emitter: Emitter, extent: str) -> tuple[CallArg, ...]:
    """Return the argument of the host's grid size, where it is not static."""
    kinds = (From.EXTENT, From.LENGTH)
    return tuple(a for a in emitter.memory.arguments.values() if a.kind in kinds and a.name == extent)


def lines(of: list[Line]) -> tuple[Line, ...]:
    """Take the lines written so far."""
    taken = tuple(of)
    of.clear()
    return taken
