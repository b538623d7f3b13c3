"""Program candidates of a call, before any text is written: programs and schedules, in order of choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from rlk.backends.interface import Backend, Bound, Schedules
from rlk.backends.registry import complete, of_name, of_target
from rlk.errors import NOWHERE, LoweringError, ScheduleError, UnsupportedError
from rlk.ir.nodes import MathModel, Program
from rlk.lower.common.emitted import Emitted, LoweringOptions, Signature
from rlk.lower.common.memory import aligned_workspaces, workspaces
from rlk.passes.pipeline import launched, specialize
from rlk.passes.places import place_of
from rlk.runtime.binding.invocation import Invocation, for_kernels, label_of, operator_of
from rlk.runtime.binding.shape_buckets import Sizes, class_of
from rlk.schedule import user_table
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.schedule.user_table import Entries, Entry, overridden, refused
from rlk.target.facts import Target

Made = TypeVar("Made")


def entries_of(invocation: Invocation, on: Target, sizes: Sizes) -> Entries:
    """Return the entries of the user's table for an operator, with these dtypes on a target.

    Raises ScheduleError for an axis or a dtype variable that the operator has not, and for bounds of a
    dynamic axis that divide a class of extents, all members of which run one kernel.
    """
    found = user_table.current().of(label_of(invocation.spec), on.name)
    if not found:
        return found
    dtypes = {name: dtype.value for name, dtype in invocation.variant.dtypes}
    for entry in found:
        _check_conditions(entry, invocation, sizes, dtypes)
    asked = ((), tuple(sorted(invocation.variant.wanted)))
    return tuple(
        e for e in found if e.gradients in asked and all(dtypes[name] == dtype for name, dtype in e.dtypes)
    )


def _check_conditions(entry: Entry, invocation: Invocation, sizes: Sizes, dtypes: Mapping[str, str]) -> None:
    formals = operator_of(invocation.spec).formals
    axes = {axis.name for f in formals for axis in getattr(f.type, "axes", ())}
    static = {name for name, _ in sizes.static}
    for name, _ in entry.dtypes:
        if name not in dtypes:
            why = f"the dtype variables of {entry.op} are {', '.join(sorted(dtypes)) or 'none'}"
            raise user_table.wrong_condition(entry, f"dtypes.{name}", why)
    inputs = {f.name for f in formals}
    for name in entry.gradients:
        if name not in inputs:
            why = f"the inputs of {entry.op} are {', '.join(sorted(inputs))}"
            raise user_table.wrong_condition(entry, f"gradients has {name!r}", why)
    for axis, held in entry.sizes:
        if axis not in axes | {name for name, _ in sizes.extents}:
            why = f"the axes of {entry.op} are {', '.join(sorted(axes))}"
            raise user_table.wrong_condition(entry, f"sizes.{axis}", why)
        bounds = [n for n in (held.over, held.most) if n is not None and n > 0]
        cut = next((n for n in bounds if axis not in static and class_of(n) != n), None)
        if cut is not None:
            why = f"{cut} divides a class of sizes: write {class_of(cut)}, or a power of two"
            raise user_table.wrong_condition(entry, f"sizes.{axis}", why)


def formed(
    invocation: Invocation,
    model: MathModel,
    sizes: Sizes,
    on: Target,
    schedules: tuple[Schedule, ...] | None = None,
) -> tuple[Program, Schedules]:
    """Return the program that is launched for calls of these sizes, and its schedules.

    schedules: of the program that is asked for, whose form their number says; by default heuristics choose.
    Another number than that of the launched kernels is for a form of a backend with more of them, or for
    streams that run serially.
    """
    static, extents = dict(sizes.static), dict(sizes.extents)
    whole = for_kernels(invocation)
    aside = apart(whole, extents)

    def chosen(program: Program) -> tuple[Program, Schedules]:
        return program, tuple(choose(k, on, sizes.signature, extents) for k in program.kernels)

    made = chosen(launched(for_kernels(invocation, aside), static, model, extents))
    if schedules is None or not aside or len(schedules) == len(made[1]):
        return made
    if len(schedules) > len(made[1]):  # the serial form has no more kernels than this one
        bound = bound_for(invocation, model, sizes, on, *made)
        every = (each.program for by in (*of_target(on), complete()) for each in by.candidates(bound))
        if any(len(program.kernels) == len(schedules) for program in every):
            return made
    return chosen(launched(whole, static, model, extents))


def bound_for(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, program: Program, chosen: Schedules
) -> Bound:
    """Return what a backend gives schedules for, of what `formed` returned."""

    def whole() -> Program:
        return specialize(for_kernels(invocation), dict(sizes.static), model)

    return Bound(program, chosen, whole, on, dict(sizes.extents))


def lowered_by(
    by: Backend,
    bound: Bound,
    signature: Signature,
    identity: str,
    schedules: Schedules | None = None,
    options: LoweringOptions | None = None,
    entries: Entries = (),
) -> tuple[Program, Schedules, Emitted]:
    """Return what a backend lowers, its schedules, and its source; raise UnsupportedError without a form.

    schedules: instead of those of its candidates. options: of the lowering. entries: of the user's table,
    which change those of its candidates.
    """
    # a backend without options of its own need not take them
    given = {"numerics_id": identity} if options is None else {"numerics_id": identity, "options": options}

    before = {decl.name for decl in workspaces(bound.program)}

    def lowered(what: Program, placed: Schedules) -> tuple[Program, Schedules, Emitted]:
        own, known = {decl.name for decl in workspaces(what)}, signature
        if own - before:  # the signature is that of the program as it is launched
            made = aligned_workspaces(what, dict(signature.extents))
            known = replace(signature, divisible=signature.divisible | made)
        return what, placed, by.lower(what, placed, bound.target, known, **given)

    if schedules is not None:
        return lowered(by.program_of(bound, schedules), schedules)
    why: UnsupportedError | None = None
    for each in by.candidates(bound):
        if not each.by_default:
            continue
        chosen = _tried(by, each.program, bound.target, each.schedules)
        if isinstance(chosen, UnsupportedError):
            why = chosen
            continue
        placed, used = overridden(entries, by.name, each.program.kernels, chosen, bound.extents)
        made = _tried(by, each.program, bound.target, partial(lowered, each.program, placed))
        if not isinstance(made, UnsupportedError):
            return made
        if used:
            plain = _tried(by, each.program, bound.target, partial(lowered, each.program, chosen))
            if not isinstance(plain, UnsupportedError):
                raise refused(used, made)
        why = made
    assert why is not None, f"{by.name} has no candidate and does not say why"
    raise why


def _tried(by: Backend, program: Program, on: Target, work: Callable[[], Made]) -> Made | UnsupportedError:
    """Return what a step of a lowering returns, or the error of a program that it does not support."""
    try:
        return work()
    except UnsupportedError as error:
        return error
    except ScheduleError as error:
        return _without_schedule(by, program, on, error)


def _without_schedule(by: Backend, program: Program, on: Target, error: ScheduleError) -> LoweringError:
    """Return the error of a program for which heuristics know no schedule: its author has not chosen one."""
    place = next((p for p in map(place_of, program.kernels) if p != NOWHERE), NOWHERE)
    lacks = f"a schedule for a kernel of this form ({error.diagnostics[0].message})"
    instead = "a kernel with less in it: L.keep cuts one in two; or another backend"
    return LoweringError(lacks, instead, place, backend=by.name, target=on.name)


@dataclass(frozen=True, slots=True)
class Form:
    """A program with its schedules, and the lowering that writes it; entries: the user's that are used."""

    backend: str
    program: Program
    schedules: Schedules
    entries: Entries = ()


def forms(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, backends: Sequence[str]
) -> Iterator[Form]:
    """Yield what may run calls of these sizes, the fastest first.

    All forms have the numerics id of the call, and so its bits.
    """
    program, chosen = formed(invocation, model, sizes, on)
    bound = bound_for(invocation, model, sizes, on, program, chosen)
    entries = entries_of(invocation, on, sizes)
    among = [of_name(name) for name in backends]
    sooner = sooner_of(among, bound) if len(among) > 1 else None
    for each in sorted(among, key=lambda each: each is not sooner):
        for candidate in each.candidates(bound):
            try:
                before = candidate.schedules() if candidate.by_default else None
            except UnsupportedError:
                continue
            if before is not None:
                kernels = candidate.program.kernels
                placed, used = overridden(entries, each.name, kernels, before, bound.extents)
                yield Form(each.name, candidate.program, placed, used)


def sooner_of(among: Sequence[Backend], bound: Bound) -> Backend:
    """Return the backend of several that is asked first: one that is faster, else the complete one."""
    faster = (b for b in among if b.faster and b.faster(bound.program, bound.target, bound.extents))
    return next(faster, complete())
