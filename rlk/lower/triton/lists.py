"""Triton kernels on lists of tensors: a program reads the addresses of its item from a table."""

from __future__ import annotations

from rlk.ir.dims import Axis
from rlk.ir.nodes import Decl
from rlk.ir.types import DType
from rlk.lower.common import lists
from rlk.lower.common.emitted import CallArg, From, KernelArg, KernelBuild
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.spelling import argument_type
from rlk.lower.triton import text
from rlk.lower.triton.emit import Emitter


def prologue(emitter: Emitter, axis: Axis, listed: frozenset[str]) -> tuple[Line, ...]:
    """Return the lines that load what a program's item has of its own, and the number of its tile."""
    kernel = emitter.plan.kernel
    decls = {d.name: d for d in kernel.params}
    every = lists.columns(kernel, axis, listed)
    known = emitter.plan.signature.divisible
    lines = [
        f"{lists.ROW} = {lists.TABLE}_ptr + tl.load({lists.ITEMS}_ptr + tl.program_id(0)) * {len(every) + 1}",
        *(_column(at, arg, decls, arg.name in known) for at, arg in enumerate(every)),
        f"{lists.FIRST} = tl.program_id(0) - tl.load({lists.ROW} + {len(every)}).to(tl.int32)",
    ]
    return tuple(map(Line, lines))


def _column(at: int, argument: CallArg, decls: dict[str, Decl], divisible: bool) -> str:
    """Return the line that loads one value of an item's row."""
    value, name = f"tl.load({lists.ROW} + {at})", argument.name
    match argument.kind:
        case From.TENSOR:
            pointed = text.TYPES[decls[argument.source].type.dtype]
            name, value = f"{name}_ptr", f"{value}.to(tl.pointer_type({pointed}))"
        case From.EXTENT:
            value = f"{value}.to(tl.int32)"
        case _:
            value = _scalar(value, decls[name].type.dtype)
    return f"{name} = {f'tl.multiple_of({value}, 16)' if divisible else value}"


def _scalar(value: str, dtype: DType) -> str:
    match dtype:
        case DType.F32:
            return f"{value}.to(tl.int32).to(tl.float32, bitcast=True)"
        case DType.BOOL:
            return f"{value} != 0"
        case DType.I64:
            return value
        case _:
            return f"{value}.to({text.TYPES[dtype]})"


def build(emitter: Emitter, parameters: tuple[CallArg, ...]) -> KernelBuild:
    """Return the compiler options of a kernel on lists."""
    decls = {d.name: d for d in emitter.plan.kernel.params}
    schedule = emitter.plan.schedule
    args = [KernelArg(f"{lists.ITEMS}_ptr", "*i32"), KernelArg(f"{lists.TABLE}_ptr", "*i64")]
    args += [KernelArg(p.name, argument_type(p, decls)) for p in parameters if p.kind is From.SCALAR]
    return KernelBuild(emitter.plan.kernel.name, tuple(args), schedule.warps, schedule.stages)


def host(program: str, kernel: str, parameters: tuple[CallArg, ...]) -> Function:
    """Return the function `call` of a module on lists."""
    given = ", ".join(p.name for p in parameters if p.name != lists.PROGRAMS)
    lines = (Line(f"kernels.{kernel}(({lists.PROGRAMS},), {given})"),)
    return Function("call", tuple(p.name for p in parameters), program, lines)
