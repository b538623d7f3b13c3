"""The text of a whole module: helpers, kernels, and the host function that launches them in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata

from rlk.ir.dims import Axis, Part
from rlk.ir.nodes import Kernel, Program, Role
from rlk.lower.common import abi, lists
from rlk.lower.common.arguments import count_of, tiles_of
from rlk.lower.common.emitted import (
    CallArg,
    Emitted,
    From,
    KernelBuild,
    LoweringOptions,
    Signature,
)
from rlk.lower.common.host import host_function, kernel_args, launch_lines
from rlk.lower.common.host_loops import length_name
from rlk.lower.common.layout import laid_out
from rlk.lower.common.lines import Function, Line
from rlk.lower.common.names import named
from rlk.lower.common.prelude import Helper, sources
from rlk.lower.common.render import render
from rlk.lower.common.spelling import Header, header, tile_comment
from rlk.lower.triton import lists as on_lists
from rlk.lower.triton.emit import Emitter
from rlk.lower.triton.plan import TritonPlan, plan
from rlk.passes.places import in_kernel
from rlk.schedule.schedule import Schedule
from rlk.target.facts import HOPPER, Target

WAIT = Line("tl.extra.cuda.gdc_wait()")
"""At the head of a kernel: those before it have ended."""
SIGNAL = Line("tl.extra.cuda.gdc_launch_dependents()")
"""Behind the wait, but for GEMMs: the next kernel may start, which then waits for this one."""
GEMMS = "dot_map", "stream_dot"


@dataclass(frozen=True, slots=True)
class Module:
    """The fields of the module template."""

    header: Header
    functions: tuple[str, ...]
    call: Function


@dataclass(frozen=True, slots=True)
class TritonOptions(LoweringOptions):
    """version: of the Triton that will compile the source."""

    version: tuple[int, int]


def lower(
    program: Program,
    schedules: Sequence[Schedule],
    target: Target,
    signature: Signature,
    *,
    numerics_id: str = "unset",
    options: TritonOptions | None = None,
) -> Emitted:
    """Return the Triton module of a specialized program, one schedule for each of its kernels.

    The text is the same, byte for byte, for equal arguments. options: by default for the installed Triton.
    """
    version = installed() if options is None else options.version
    axis = None if signature.listed is None else lists.rows_of(program)
    helpers: dict[str, Helper] = {}
    checks: list[str] = []
    kernels: list[Function] = []
    builds: list[KernelBuild] = []
    heads: list[tuple[Line, ...]] = []
    launch: dict[str, list[str]] = {}
    loop_indices = abi.turn_axes(program)
    used: list[CallArg] = []
    for kernel, schedule in zip(map(named, program.kernels), schedules, strict=True):
        with in_kernel(kernel):
            placed = plan(kernel, schedule, target, signature, version)
            emitter = Emitter(placed, helpers, checks)
            body = emitter.run()
        tensors = [d for d in kernel.params if d.role is not Role.SCALAR]
        arguments = abi.kernel_arguments(kernel, tensors, emitter.addresses.arguments.values(), loop_indices)
        used += (*arguments, *map(abi.extent, _sizes(placed)))
        about = tile_comment("program", placed.tiled, placed.kind)
        kernels.append(Function(kernel.name, tuple(map(_in_kernel, arguments)), about, body))
        builds.append(_build(kernel, emitter, arguments))
        heads.append((WAIT,) if placed.kind in GEMMS else (WAIT, SIGNAL))
        launch[kernel.name] = _launch(kernel, placed, arguments)
    parameters, host = host_function(program, signature, used, launch)
    if axis is not None:
        parameters, kernels, builds, host = _on_lists(emitter, axis, kernels[0])
    if target.name == HOPPER:
        kernels = [replace(each, body=(*head, *each.body)) for head, each in zip(heads, kernels, strict=True)]
        builds = [replace(each, overlaps=True) for each in builds]
    head = header(program, signature, target, numerics_id, schedules)
    functions = sources("triton", (*helpers.values(), *kernels))
    source = laid_out(render("triton", "module.py.j2", Module(head, functions, host)))
    file = f"rlk/{target.folder}/triton/{program.name}.py"
    return Emitted(source, tuple(builds), parameters, tuple(checks), file)


def _on_lists(
    emitter: Emitter, axis: Axis, one: Function
) -> tuple[tuple[CallArg, ...], list[Function], list[KernelBuild], Function]:
    """Return the parameters, the kernel, its build and the host function of a program that runs on lists.

    one: the kernel on one item.
    """
    kernel, listed = emitter.plan.kernel, emitter.plan.signature.listed
    assert listed is not None
    parameters = lists.parameters(kernel, axis, emitter.plan.schedule.tile(str(axis)), listed)
    build = on_lists.build(emitter, parameters)
    body = (*on_lists.prologue(emitter, axis, listed), *one.body)
    about = f"{one.about} Of its item, which may be any of a list."
    function = Function(one.name, tuple(a.name for a in build.args), about, body)
    return parameters, [function], [build], on_lists.host(emitter.plan.kernel.name, one.name, parameters)


@cache
def installed() -> tuple[int, int]:
    """Return the version of the installed Triton (3.6 where there is none), without importing it."""
    try:
        major, minor, *_ = metadata.version("triton").split(".")
    except metadata.PackageNotFoundError:
        return (3, 6)
    return int(major), int(minor)


def _in_kernel(argument: CallArg) -> str:
    return f"{argument.name}_ptr" if argument.kind in (From.TENSOR, From.ERRORS) else argument.name


def _build(kernel: Kernel, emitter: Emitter, arguments: list[CallArg]) -> KernelBuild:
    known = emitter.plan.signature.divisible
    args = kernel_args(arguments, emitter.addresses.decls, lambda a: a.name in known, _in_kernel)
    schedule = emitter.plan.schedule
    return KernelBuild(kernel.name, args, schedule.warps, schedule.stages, registers=schedule.registers)


def _sizes(placed: TritonPlan) -> list[str]:
    """Return the axes whose extents the host needs to count tiles."""
    found = placed.segments
    asks = [s.axis for s in placed.tiled if s.length is None and s.axis.part is not Part.WITHIN]
    return [axis.name if found is None or axis != found.axis else found.whole for axis in asks]


def _launch(kernel: Kernel, placed: TritonPlan, arguments: list[CallArg]) -> list[str]:
    """Return the host lines that launch one kernel, unless it has no programs."""
    tiles = " * ".join(_counts(placed)) or "1"
    limit = placed.schedule.programs
    programs = f"min({tiles}, {limit})" if limit else tiles
    return launch_lines(kernel.name, arguments, [f"programs = {programs}"])


def _counts(placed: TritonPlan) -> list[str]:
    """Return how many tiles the parallel axes have; those of segments are counted together, none too few."""
    found = placed.segments
    if found is None:
        return [_count(placed, i) for i in range(len(placed.tiled))]
    rows, tile = f"{found.whole} * {found.each}", placed.schedule.tile(str(found.axis))
    tiles = f"({rows} // {tile} + {found.over.name})"
    if placed.listed is not None:
        tiles = f"min({rows}, {rows} // {tile} + {placed.listed})"
    rest = [i for i, s in enumerate(placed.tiled) if s.axis not in (found.axis, found.over)]
    return [tiles, *(_count(placed, i) for i in rest)]


def _count(placed: TritonPlan, index: int) -> str:
    """Return how many tiles a parallel axis has, as host text."""
    tiled = placed.tiled[index]
    if tiled.tiles is not None:
        return str(tiled.tiles)
    axis = tiled.axis
    extent = length_name(axis) if axis.part is Part.WITHIN else axis.name
    return tiles_of(count_of(axis, extent), tiled.tile)
