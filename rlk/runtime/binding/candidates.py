"""Program candidates of a call, before any text is written: programs and schedules, in order of choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlk.backends.interface import Backend, Bound, Schedules
from rlk.backends.registry import complete, of_name
from rlk.errors import NOWHERE, LoweringError, ScheduleError, UnsupportedError
from rlk.ir.nodes import MathModel, Program
from rlk.lower.common.emitted import Emitted, LoweringOptions, Signature
from rlk.passes.pipeline import launched, specialize
from rlk.passes.places import place_of
from rlk.runtime.binding.invocation import Invocation, traced
from rlk.runtime.binding.shape_buckets import Sizes
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target


def formed(
    invocation: Invocation,
    model: MathModel,
    sizes: Sizes,
    on: Target,
    schedules: tuple[Schedule, ...] | None = None,
) -> tuple[Program, Schedules]:
    """Return the program that is launched for calls of these sizes, and its schedules.

    schedules: of the program that is asked for, whose form their number says; by default heuristics choose.
    """
    static, extents = dict(sizes.static), dict(sizes.extents)
    whole = traced(invocation)
    aside = apart(whole, extents)
    program = launched(traced(invocation, aside) if aside else whole, static, model, extents)
    if schedules is not None and len(schedules) != len(program.kernels):
        # schedules of the serial form
        program = launched(whole, static, model, extents)
    return program, tuple(choose(k, on, sizes.signature, extents) for k in program.kernels)


def bound_for(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, program: Program, chosen: Schedules
) -> Bound:
    """Return what a backend gives schedules for, of what `formed` returned."""

    def whole() -> Program:
        return specialize(traced(invocation), dict(sizes.static), model)

    return Bound(program, chosen, whole, on, dict(sizes.extents))


def lowered_by(
    by: Backend,
    bound: Bound,
    signature: Signature,
    identity: str,
    schedules: Schedules | None = None,
    options: LoweringOptions | None = None,
) -> tuple[Program, Schedules, Emitted]:
    """Return what a backend lowers, its schedules, and its source; raise UnsupportedError without a form.

    schedules: instead of those of its candidates. options: of the lowering.
    """
    # a backend without options of its own need not take them
    given = {"numerics_id": identity} if options is None else {"numerics_id": identity, "options": options}

    def lowered(what: Program, placed: Schedules) -> tuple[Program, Schedules, Emitted]:
        return what, placed, by.lower(what, placed, bound.target, signature, **given)

    if schedules is not None:
        return lowered(by.program_of(bound, schedules), schedules)
    refused: UnsupportedError | None = None
    for each in by.candidates(bound):
        if not each.by_default:
            continue
        try:
            return lowered(each.program, each.schedules())
        except UnsupportedError as error:
            refused = error
        except ScheduleError as error:
            refused = _without_schedule(by, each.program, bound.target, error)
    assert refused is not None, f"{by.name} has no candidate and does not say why"
    raise refused


def _without_schedule(by: Backend, program: Program, on: Target, error: ScheduleError) -> LoweringError:
    """Return the error of a program for which heuristics know no schedule: its author has not chosen one."""
    place = next((p for p in map(place_of, program.kernels) if p != NOWHERE), NOWHERE)
    lacks = f"a schedule for a kernel of this form ({error.diagnostics[0].message})"
    instead = "a kernel with less in it: L.keep cuts one in two; or another backend"
    return LoweringError(lacks, instead, place, backend=by.name, target=on.name)


@dataclass(frozen=True, slots=True)
class Form:
    """A program with its schedules, and the lowering that writes it."""

    backend: str
    program: Program
    schedules: Schedules


def forms(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, backends: Sequence[str]
) -> Iterator[Form]:
    """Yield what may run calls of these sizes, the fastest first.

    All forms have the numerics id of the call, and so its bits.
    """
    program, chosen = formed(invocation, model, sizes, on)
    bound = bound_for(invocation, model, sizes, on, program, chosen)
    among = [of_name(name) for name in backends]
    sooner = sooner_of(among, bound) if len(among) > 1 else None
    for each in sorted(among, key=lambda each: each is not sooner):
        for candidate in each.candidates(bound):
            try:
                chosen = candidate.schedules() if candidate.by_default else None
            except UnsupportedError:
                continue
            if chosen is not None:
                yield Form(each.name, candidate.program, chosen)


def sooner_of(among: Sequence[Backend], bound: Bound) -> Backend:
    """Return the backend of several that is asked first: one that is faster, else the complete one."""
    faster = (b for b in among if b.faster and b.faster(bound.program, bound.target, bound.extents))
    return next(faster, complete())
