"""Kernels without a contraction, and without long sums: a thread for each element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlk.lower.common.lines import Line
from rlk.lower.cute.emit import Emitter
from rlk.lower.cute.functions import Helper
from rlk.lower.cute.kernels import (
    Frame,
    KernelText,
    arguments,
    build,
    host_parameters,
    lines,
    parameters,
    passed,
    sizes,
    tensors_of,
)
from rlk.lower.cute.plan import LanesPlan

OF_FRAME = frozenset({"thread", "block", "r", "c", "stream", "programs"})


@dataclass(frozen=True, slots=True)
class LanesText:
    """What the template of a kernel with an element to each thread reads."""

    frame: Frame
    body: tuple[Line, ...]


def write(
    plan: LanesPlan, helpers: dict[str, Helper], checks: list[str], turns: Mapping[str, str]
) -> KernelText:
    """Write a kernel whose threads have an element each."""
    emitter = Emitter(plan, helpers, checks)
    emitter.names.taken |= OF_FRAME
    if plan.held is not None:
        emitter.memory.of_lists = f"list(range({plan.held.count}))"
    _own(plan, emitter)
    emitter.block(plan.kernel.body.lets)
    body = lines(emitter.lines)
    tensors = tensors_of(emitter, {})
    given = arguments(plan.kernel, emitter, turns)
    extent = emitter.memory.extent(plan.owned[0].axis)
    count = " * ".join([extent, *(str(o.length) for o in plan.owned[1:])])
    frame = Frame(
        name=plan.kernel.name,
        about=f"A thread owns one of {', '.join(str(o.axis) for o in plan.owned)} ({plan.kind}).",
        host_parameters=host_parameters(given, emitter),
        parameters=parameters(given, emitter, {}),
        tensors=tensors,
        given=passed(given, {}),
        threads=plan.threads,
    )
    return KernelText(
        template="lanes.py.j2",
        subject=LanesText(frame, body),
        arguments=tuple(given),
        sizes=sizes(emitter, extent),
        programs=(f"programs = ({count} + {plan.threads - 1}) // {plan.threads}",),
        build=build(plan.kernel, given, emitter),
    )


def _own(plan: LanesPlan, emitter: Emitter) -> None:
    """Write which index of each parallel axis a thread has: those of the last follow each other."""
    first, *others = plan.owned
    if not others:
        emitter.memory.owns(first, f"block * {plan.threads} + thread")
        return
    index = emitter.let("element", f"Int64(block) * {plan.threads} + thread")  # of more than 2**31
    for owned in reversed(others):
        emitter.memory.owns(owned, f"({index} % {owned.length}).to(Int32)")
        index = emitter.let("rest", f"{index} // {owned.length}")
    emitter.memory.owns(first, f"{index}.to(Int32)")
