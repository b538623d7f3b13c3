"""The text of a whole module: macros, kernels, and the host function that launches them in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlk.ir.nodes import Program, Role
from rlk.ir.types import DType
from rlk.lower.common import abi, lists
from rlk.lower.common.emitted import (
    OF_POINTERS,
    CallArg,
    Emitted,
    KernelBuild,
    Signature,
)
from rlk.lower.common.host import host_function, kernel_args, launch_lines
from rlk.lower.common.layout import laid_out
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.names import named
from rlk.lower.common.prelude import Helper, Helpers, sources
from rlk.lower.common.render import render
from rlk.lower.common.spelling import Header, argument_type, header, tile_comment
from rlk.lower.tilelang import text
from rlk.lower.tilelang.emit import Emitter
from rlk.lower.tilelang.functions import FRAME, functions
from rlk.lower.tilelang.plan import TilePlan, plan
from rlk.passes.places import in_kernel
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target


@dataclass(frozen=True, slots=True)
class KernelText:
    """The fields of the template of a kernel."""

    function: Function
    threads: int


@dataclass(frozen=True, slots=True)
class Module:
    """The fields of the module template."""

    header: Header
    imports: tuple[str, ...]
    functions: tuple[str, ...]
    kernels: tuple[KernelText, ...]
    call: Function


def lower(
    program: Program,
    schedules: Sequence[Schedule],
    target: Target,
    signature: Signature,
    *,
    numerics_id: str = "unset",
) -> Emitted:
    """Return the TileLang module of a specialized program, one schedule for each of its kernels.

    The text is the same, byte for byte, for equal arguments. Raises LoweringError where a nest has no form
    in this lowering.
    """
    lists.refuse(program, signature)
    frame = Helpers(functions(target.vendor))
    frame.use(*FRAME)
    helpers: dict[str, Helper] = {}
    checks: list[str] = []
    loop_indices = abi.turn_axes(program)
    kernels, builds, emitters = [], [], []
    launch: dict[str, list[str]] = {}
    used: list[CallArg] = []
    for kernel, schedule in zip(map(named, program.kernels), schedules, strict=True):
        with in_kernel(kernel):
            placed = plan(kernel, schedule, target, signature)
            emitter = Emitter(placed, helpers, checks)
            emitters.append(emitter)
            body = emitter.run()
        counts = emitter.memory.programs_of()
        tensors = [d for d in kernel.params if d.role is not Role.SCALAR]
        given = abi.kernel_arguments(kernel, tensors, emitter.memory.arguments.values(), loop_indices)
        used += given
        kernels.append(KernelText(_function(placed, emitter, given, body), placed.threads))
        builds.append(_build(placed, emitter, given))
        launch[kernel.name] = launch_lines(kernel.name, given, [f"programs = {counts}"])
    parameters, host = host_function(program, signature, used, launch)
    head = header(program, signature, target, numerics_id, schedules)
    macros = (helpers[name] for name in sorted(helpers) if name not in FRAME)
    written = sources("tilelang", (*frame.found.values(), *macros))
    imports = tuple(dict.fromkeys(line for emitter in emitters for line in emitter.dots.imports))
    source = laid_out(
        render("tilelang", "module.py.j2", Module(head, imports, written, tuple(kernels), host))
    )
    file = f"rlk/{target.folder}/tilelang/{program.name}.py"
    return Emitted(source, tuple(builds), parameters, tuple(checks), file, backend="tilelang")


def _function(
    placed: TilePlan, emitter: Emitter, given: Sequence[CallArg], body: tuple[Line, ...]
) -> Function:
    """Return a kernel's name, its typed parameters, and its lines."""
    about = tile_comment("block", placed.tiled, placed.kind, placed.thread_value_layouts)
    return Function(placed.kernel.name, tuple(_parameter(a, emitter) for a in given), about, body)


def _parameter(argument: CallArg, emitter: Emitter) -> str:
    kind = argument_type(argument, emitter.memory.decls)
    if argument.kind not in OF_POINTERS:
        return f"{argument.name}: tl.{text.OF_SCALARS[kind]}"
    decl = emitter.memory.decls.get(argument.name)
    dtype = DType.I32 if decl is None else decl.type.dtype  # error words are no tensor of the program
    return f'{argument.name}: memory("{argument.name}", "{text.TYPES[dtype]}")'


def _build(placed: TilePlan, emitter: Emitter, given: Sequence[CallArg]) -> KernelBuild:
    known = placed.signature.divisible
    args = kernel_args(given, emitter.memory.decls, lambda argument: argument.name in known)
    warps = placed.threads // placed.target.warp
    return KernelBuild(placed.kernel.name, args, warps, shared=emitter.dots.asked)
