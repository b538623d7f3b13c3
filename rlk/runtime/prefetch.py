"""`rlk.explain` and `rlk.prefetch`: the kernels of a call, described or compiled without running it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlk.backends.interface import Schedules
from rlk.digest import digest
from rlk.errors import Code, LaunchError, UnsupportedError
from rlk.ir.nodes import MathModel, Program, Role
from rlk.ir.numerics import Tier
from rlk.lang.op import Op
from rlk.lower.common.emitted import Emitted
from rlk.runtime.binding import selection
from rlk.runtime.binding.arguments import TORCH_DTYPES, Geometry, output_shape
from rlk.runtime.binding.candidates import entries_of
from rlk.runtime.binding.invocation import (
    Invocation,
    Run,
    Scalars,
    Tensors,
    geometry_of,
    inputs_of,
    is_empty,
    model_of,
    of_one_stride,
    outputs_of,
    scattered,
    shape_givers,
    target_of,
)
from rlk.runtime.binding.selection import Statics
from rlk.runtime.binding.shape_buckets import sizes_of
from rlk.runtime.call import entry as calls
from rlk.runtime.call.dispatch import (
    Decision,
    Request,
    asked_for,
    coded,
    cpu_target,
    decide,
    dispatch,
    entry_key,
    look_up,
    lowered,
    lowered_code,
    representative_sizes,
    requested,
    serving,
    text_of,
)
from rlk.runtime.kernels.build import obtain_later, stored
from rlk.runtime.kernels.pool import pool
from rlk.runtime.wheels.wheel_lookup import ship
from rlk.schedule.user_table import entry_of
from rlk.target.facts import Target

Public = Callable[..., Any]
Observer = Callable[[Invocation, Tensors], None]
FILLED = 1 << 20  # elements up to which a stand-in holds zeros: others stay untouched, and take no memory


class _Reached(BaseException):
    """Leaves a public operator once all that it calls is known."""


def _reached(op: Public, args: tuple[Any, ...], options: dict[str, Any]) -> list[tuple[Invocation, Tensors]]:
    """Return what a public operator would run, in order, with the tensors of each call.

    Of an operator composed of several specs each is called once; what an earlier one returns has no values.
    """
    if not callable(op):
        wanted = "function of rlk.ops, such as rlk.ops.logp"
        raise LaunchError(Code.ARG_TYPE, op="rlk.explain", name="op", wanted=wanted, got=repr(op))
    found: list[tuple[Invocation, Tensors]] = []
    parts = len(getattr(op, "specs", (op,)))

    def observe(spec: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Tensors:
        found.append((selection.invoke(spec, tensors, scalars, statics, math), tensors))
        if len(found) == parts:
            raise _Reached
        return without_values(*found[-1])

    with calls.observed(observe):
        try:
            op(*args, **options)
        except _Reached:
            return found
    raise LaunchError(Code.ARG_TYPE, op="rlk", name="op", wanted="operator of rlk.ops", got=op)


def without_values(invocation: Invocation, tensors: Tensors) -> Tensors:
    """Return outputs as a call would return them, never written."""
    tensors = of_one_stride(tensors, scattered(invocation, tensors))
    geometry, first = geometry_of(invocation, tensors), next(iter(tensors.values()))
    return {
        d.name: first.new_empty(output_shape(d, geometry), dtype=TORCH_DTYPES[d.type.dtype])
        for d in outputs_of(invocation)
    }


def unwritten(invocation: Invocation, tensors: Tensors, observer: Observer) -> Run:
    """Observe an invocation; return a call whose outputs nothing wrote, zeros where they are small."""
    observer(invocation, tensors)
    geometry = geometry_of(invocation, tensors)
    made = [(d.name, output_shape(d, geometry), TORCH_DTYPES[d.type.dtype]) for d in outputs_of(invocation)]

    def run(given: Tensors, scalars: Scalars) -> Tensors:
        return {n: given[n] if n in invocation.into else stand_in(*shape, dtype=t) for n, shape, t in made}

    return run


def stand_in(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    """Return a tensor on the host for a recorded call, whose values nothing reads."""
    made = torch.empty(shape, dtype=dtype)
    return (made.zero_() if made.numel() <= FILLED else made).requires_grad_(grad)


def explain(op: Public, /, *args: Any, **options: Any) -> Decision:
    """Return what `op(*args, **options)` would run: backend, numerics id, tiers, schedules.

    Nothing is launched. Raises what the call would raise.
    """
    return joined([_explained(*reached) for reached in _reached(op, args, options)])


def joined(parts: Sequence[Decision]) -> Decision:
    """Return one decision for parts that run one after the other on a device.

    Its outputs are those of the last part, and exact where all before them is. Its id digests their ids, and
    it names every backend that runs a part.
    """
    if len(parts) == 1:
        return parts[0]
    *before, last = parts
    exact = all(tier is Tier.EXACT for part in before for _, tier in part.tiers)
    return replace(
        parts[0],
        backends=tuple(dict.fromkeys(name for part in parts for name in part.backends)),
        numerics_id=digest([part.numerics_id for part in parts])[: len(last.numerics_id)],
        tiers=last.tiers if exact else tuple((name, Tier.PINNED) for name, _ in last.tiers),
        schedules=tuple(schedule for part in parts for schedule in part.schedules),
        source=", ".join(dict.fromkeys(part.source for part in parts if part.source)),
        refused=tuple(dict.fromkeys(why for part in parts for why in part.refused)),
    )


def _explained(invocation: Invocation, tensors: Tensors) -> Decision:
    device = next(iter(tensors.values())).device
    decision = decide(invocation, device)
    on = target_of(device) or cpu_target()
    tensors = of_one_stride(tensors, scattered(invocation, tensors))
    geometry = geometry_of(invocation, tensors)
    if on is None:
        return decision
    model = model_of(invocation, device)
    call = (invocation, model, geometry, _used(invocation, tensors), on)
    answer = ship(*call, serving(on), whole=True)
    if answer.found is not None:
        form, wheel = answer.found.form, answer.found.kernel.wheel
        decision = replace(decision, backends=(form.backend,))
        decision = replace(decision, schedules=_said(form.backend, form.program, form.schedules, *call))
        return replace(decision, source=wheel.label, refused=answer.refused)
    program, _, schedules, emitted = lowered(*call)
    source = source_of(program, schedules, emitted, on)
    return replace(
        decision,
        backends=(emitted.backend,),
        schedules=_said(emitted.backend, program, schedules, *call),
        source=source,
        refused=answer.refused,
    )


def _said(
    backend: str, program: Program, schedules: Schedules, invocation: Invocation, model: MathModel,
    geometry: Geometry, tensors: Tensors, on: Target,
) -> tuple[str, ...]:  # fmt: skip
    """Return the schedules of kernels as text, with the entries of the user's table that they come from."""
    sizes = sizes_of(invocation, geometry)
    entries = entries_of(invocation, on, sizes)
    found = [entry_of(entries, backend, kernel, dict(sizes.extents)) for kernel in program.kernels]
    marks = [f" (from {entry.place})" if entry is not None else "" for entry in found]
    return tuple(f"{schedule}{mark}" for schedule, mark in zip(schedules, marks, strict=True))


def source_of(program: Program, schedules: Schedules, emitted: Emitted, on: Target) -> str:
    """Return where the kernels of a lowered program come from: a store, or a compiler if there is one."""
    try:
        present = stored(entry_key(program, schedules, emitted, on))
    except UnsupportedError as error:
        return f"none: {error}"
    return f"compiled at the first call by {emitted.backend}" if present is None else present[1]


def prefetch(op: Public, /, *args: Any, **options: Any) -> Future[Path | None]:
    """Start compiling what `op(*args, **options)` runs, in a worker process; nothing is launched.

    The tensors may be small as long as dtypes, static sizes and alignments are the real call's, and where it
    contracts the class of its rows too (up to 16, 32, 64, 128, 256, 512, 1024, more). Gradients of norms have
    one form up to 7680 rows and another for more. Returns a future of the cache entry; None where nothing is
    compiled (CPU tensors).
    """
    started = [_prefetched(*reached) for reached in _reached(op, args, options)]
    return started[0] if len(started) == 1 else pool().submit(lambda: [f.result() for f in started][-1])


def _prefetched(invocation: Invocation, tensors: Tensors) -> Future[Path | None]:
    device = next(iter(tensors.values())).device
    on = target_of(device) or cpu_target()
    if on is None:
        return _done(None)
    return prepared(invocation, model_of(invocation, device), tensors, on)


def started(
    observe: Callable[[Observer], None],
    on: Target,
    follow: Callable[[Future[Path | None], str], None] | None = None,
) -> dict[Future[Path | None], str]:
    """Start preparing on a target what recorded calls launch: futures of entries, with the operators' names.

    observe: calls what it is given with each launch. follow: told of each as it is started. A kernel that
    several launches run is started once: others that waited for it would keep the pool from compiling.
    """
    made: dict[Future[Path | None], str] = {}
    seen: set[object] = set()
    started: dict[object, Future[Path | None]] = {}

    def prepare(invocation: Invocation, tensors: Tensors) -> None:
        facts = (invocation.key, *[(n, t.shape, t.stride(), t.data_ptr() % 16) for n, t in tensors.items()])
        if facts in seen:
            return
        seen.add(facts)
        found = prepared(invocation, invocation.math or on.softmax, tensors, on, started)
        new = found not in made
        made[found] = invocation.spec.name
        if new and follow is not None:
            follow(found, invocation.spec.name)

    observe(prepare)
    return made


def prepared(
    invocation: Invocation,
    model: MathModel,
    tensors: Tensors,
    on: Target,
    started: dict[object, Future[Path | None]] | None = None,
) -> Future[Path | None]:
    """Start preparing what an invocation runs on a target, which need not be here: a future of its entry.

    tensors: those of the call, on any device. started: kernels that were, which are not started again. A
    kernel of an installed wheel is there already; one that another process compiles is waited for.
    """
    look_up(invocation, {}, on)
    tensors = of_one_stride(tensors, scattered(invocation, tensors))
    geometry = geometry_of(invocation, tensors)
    if is_empty(invocation, geometry):
        return _done(None)
    used = _used(invocation, tensors) | {name: tensors[name] for name in invocation.into}
    call = (invocation, model, geometry, used, on)
    held = ship(*call, serving(on)).found
    if held is not None:
        return _done(held.kernel.folder)
    request = requested(*call, None, asked_for(on), kept=True)
    code = dispatch.remembered(coded, request)
    before = {} if started is None else started
    name = (code.backend, code.ir, code.schedules)
    if name not in before:
        there = stored(code.key(on))
        before[name] = _compiled(request, on) if there is None else _done(there[0])
    return before[name]


def _compiled(request: Request, on: Target) -> Future[Path | None]:
    """Start compiling a call's code: it is lowered by this process, whatever an earlier one found out."""
    code, emitted = lowered_code(request), text_of(request)
    found: Future[Any] = obtain_later(code.key(on), lambda: emitted, label=code.program.name)
    return found


def chosen_for(
    invocation: Invocation, tensors: Tensors, on: Target
) -> Callable[[Mapping[str, int]], Hashable]:
    """Return a function of axes' extents that differs where other code is chosen, alignment aside.

    Extents are at most those of the tensors, on any device, which may have nothing written to them.
    """
    look_up(invocation, {}, on)
    into = (d for d in outputs_of(invocation) if d.name in invocation.into)
    decls = (*shape_givers(invocation), *into)

    def chosen(extents: Mapping[str, int]) -> Hashable:
        given = dict(tensors)
        for decl in decls:
            for dim, axis in enumerate(decl.type.axes) if decl.name in given else ():
                if axis.name in extents:
                    given[decl.name] = given[decl.name].narrow(dim, 0, extents[axis.name])
        sizes = sizes_of(invocation, geometry_of(invocation, given))
        entries = entries_of(invocation, on, sizes)
        model = invocation.math or on.softmax
        return representative_sizes(invocation, model, sizes, on, asked_for(on), entries, kept=True)

    return chosen


def _done(path: Path | None) -> Future[Path | None]:
    done: Future[Path | None] = Future()
    done.set_result(path)
    return done


def _used(invocation: Invocation, tensors: Tensors) -> dict[str, torch.Tensor]:
    return {d.name: tensors[d.name] for d in inputs_of(invocation) if d.role is Role.IN}
