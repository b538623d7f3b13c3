"""Assembly of a whole module: helpers, kernels with their host functions, and launches in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlk.ir.nodes import Program
from rlk.lower.common import abi, lists
from rlk.lower.common.emitted import CallArg, Emitted, From, Signature
from rlk.lower.common.host import host_function, launch_lines
from rlk.lower.common.layout import laid_out
from rlk.lower.common.lines import Function
from rlk.lower.common.names import named
from rlk.lower.common.prelude import Helper, sources
from rlk.lower.common.render import render
from rlk.lower.common.spelling import Header, header
from rlk.lower.cute import contraction, rows
from rlk.lower.cute.attention import kernel as attention
from rlk.lower.cute.attention.plan import AttentionPlan
from rlk.lower.cute.placement import plan
from rlk.lower.cute.plan import ContractionPlan, refused
from rlk.passes.places import in_kernel
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target


@dataclass(frozen=True, slots=True)
class Module:
    """The fields of the module template; kernels are rendered already."""

    header: Header
    functions: tuple[str, ...]
    kernels: tuple[str, ...]
    call: Function


def lower(
    program: Program,
    schedules: Sequence[Schedule],
    target: Target,
    signature: Signature,
    *,
    numerics_id: str = "unset",
) -> Emitted:
    """Return the CuTe DSL module of a specialized program, one schedule for each of its kernels.

    The text is the same, byte for byte, for equal arguments. Raises LoweringError where a nest has no form
    in this lowering.
    """
    lists.refuse(program, signature)
    helpers: dict[str, Helper] = {}
    checks: list[str] = []
    loop_indices = abi.turn_axes(program)
    looped = {each.kernel for each in program.order if each.turns}
    written, builds, launch, about = [], [], {}, []
    used: list[CallArg] = []
    for kernel, schedule in zip(map(named, program.kernels), schedules, strict=True):
        with in_kernel(kernel):
            placed = plan(kernel, schedule, target, signature)
            if isinstance(placed, ContractionPlan):
                made = contraction.write(placed, helpers, checks, loop_indices)
            elif isinstance(placed, AttentionPlan):
                made = attention.write(placed, helpers, checks, loop_indices)
            else:
                made = rows.write(placed, helpers, checks, loop_indices)
            if made.build.name in looped and any(a.kind is From.WORK_COUNTER for a in made.arguments):
                raise refused("a counter of a kernel that a loop launches", target)
        used += (*made.arguments, *made.sizes)
        written.append(render("cute", made.template, made.subject))
        about.append(str(placed if isinstance(placed, AttentionPlan) else schedule))
        builds.append(made.build)
        launch[kernel.name] = launch_lines(kernel.name, made.arguments, made.programs)
    parameters, host = host_function(program, signature, used, launch)
    head = header(program, signature, target, numerics_id, about)
    functions = sources("cute", (helpers[name] for name in sorted(helpers)))
    source = laid_out(render("cute", "module.py.j2", Module(head, functions, tuple(written), host)))
    file = f"rlk/{target.folder}/cute/{program.name}.py"
    return Emitted(source, tuple(builds), parameters, tuple(checks), file, backend="cute")
