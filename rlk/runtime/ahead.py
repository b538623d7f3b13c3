"""What a call would run, told or compiled without running it: `rlk.explain` and `rlk.prefetch`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.nodes import Role
from rlk.lang.op import Op
from rlk.runtime import calls
from rlk.runtime.build import obtain_later
from rlk.runtime.calls import Statics
from rlk.runtime.dispatch import Decision, decide, entry_key, lowered
from rlk.runtime.invocation import Invocation, Scalars, Tensors, geometry_of, inputs_of, model_of, target_of

Public = Callable[..., Any]


class _Reached(BaseException):
    """Carries the first invocation of a public operator out of it, before anything is launched."""

    def __init__(self, invocation: Invocation, tensors: Tensors) -> None:
        self.invocation, self.tensors = invocation, tensors


def _first(op: Public, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Invocation, Tensors]:
    """Return what a public operator would run first, with its tensors."""

    def observe(spec: Op, tensors: Tensors, scalars: Scalars, statics: Statics, math: str | None) -> Tensors:
        raise _Reached(calls.invoke(spec, tensors, scalars, statics, math), tensors)

    with calls.observed(observe):
        try:
            op(*args, **options)
        except _Reached as reached:
            return reached.invocation, reached.tensors
    raise LaunchError(Code.ARG_TYPE, op="rlk", name="op", wanted="operator of rlk.ops", got=op)


def explain(op: Public, *args: Any, **options: Any) -> Decision:
    """Return what `op(*args, **options)` would run: backend, numerics id, tiers, schedules.

    Nothing is launched. Raises what the call would raise.
    """
    invocation, tensors = _first(op, args, options)
    device = next(iter(tensors.values())).device
    decision = decide(invocation, device)
    on = target_of(device)
    geometry = geometry_of(invocation, tensors)
    if on is None:
        return decision
    model = model_of(invocation, device)
    _, _, schedules, _ = lowered(invocation, model, geometry, _used(invocation, tensors), on)
    return replace(decision, schedules=tuple(map(str, schedules)))


def prefetch(op: Public, *args: Any, **options: Any) -> Future[Path | None]:
    """Start compiling what `op(*args, **options)` runs, in a worker process; nothing is launched.

    The tensors may be small as long as dtypes, static sizes and alignments are the real call's. Returns a
    future of the cache entry; None where nothing is compiled (CPU tensors).
    """
    invocation, tensors = _first(op, args, options)
    device = next(iter(tensors.values())).device
    on = target_of(device)
    if on is None:
        done: Future[Path | None] = Future()
        done.set_result(None)
        return done
    model = model_of(invocation, device)
    geometry = geometry_of(invocation, tensors)
    program, _, schedules, emitted = lowered(invocation, model, geometry, _used(invocation, tensors), on)
    found: Future[Any] = obtain_later(
        entry_key(program, schedules, emitted, on), lambda: emitted, label=program.name
    )
    return found


def _used(invocation: Invocation, tensors: Tensors) -> dict[str, torch.Tensor]:
    return {d.name: tensors[d.name] for d in inputs_of(invocation) if d.role is Role.IN}
