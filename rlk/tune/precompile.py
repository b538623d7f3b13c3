"""Compilation of every schedule of every shape in worker processes, before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rlk.errors import RlkError
from rlk.lower.common.emitted import Emitted
from rlk.runtime.binding.invocation import geometry_of
from rlk.runtime.call.dispatch import entry_key, lowered
from rlk.runtime.kernels.build import obtain_later
from rlk.target.facts import Target
from rlk.tune.problem import SHIPPED, Plan, Problem, Schedules, plan, problem
from rlk.tune.shapes import Shape

Pair = tuple[Shape, str]
Follow = Callable[[Future[Path], str], None]


@dataclass(slots=True)
class Compiled:
    """Schedules to try for each shape, the number of their modules, and reasons of failed schedules.

    unreached: what the time did not suffice for; of a shape without a plan `SHIPPED` stands for all.
    """

    plans: dict[Shape, Plan] = field(default_factory=dict)
    modules: int = 0
    failed: dict[Pair, str] = field(default_factory=dict)
    refused: dict[Shape, str] = field(default_factory=dict)
    unreached: list[Pair] = field(default_factory=list)


def compile_all(
    wanted: Sequence[Shape], backend: str, on: Target, deadline: float, follow: Follow = lambda *_: None
) -> Compiled:
    """Compile for a target, which need not be here, until a deadline by time.monotonic.

    follow: is told of each module whose compilation starts, with the shape that it is for.
    """
    found = Compiled()
    waiting: dict[str, Future[Path]] = {}
    pairs: dict[Pair, str] = {}
    for shape in wanted:
        if time.monotonic() >= deadline:
            found.unreached.append((shape, SHIPPED))
            continue
        call = problem(shape, "meta")
        try:
            found.plans[shape] = plan(call, backend, on)
        except RlkError as error:  # the other shapes are still worth their machine time
            found.refused[shape] = str(error)
            continue
        for name, schedules in found.plans[shape].schedules.items():
            known = len(waiting)
            try:
                pairs[shape, name] = _start(call, schedules, backend, on, waiting)
                if len(waiting) > known:
                    follow(waiting[pairs[shape, name]], f"{shape}, {name}")
            except Exception as error:  # a schedule that has no text is a result
                found.failed[shape, name] = f"{type(error).__name__}: {error}"
    for pair, digest in pairs.items():
        try:
            why = waiting[digest].exception(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, CancelledError):
            waiting[digest].cancel()
            found.unreached.append(pair)
            continue
        if why is not None:
            found.failed[pair] = f"{type(why).__name__}: {why}"
    found.modules = len(waiting)
    return found


def _start(
    call: Problem, schedules: Schedules, backend: str, on: Target, waiting: dict[str, Future[Path]]
) -> str:
    """Start compiling a call under these schedules, unless that was started; return the digest of its key."""
    geometry = geometry_of(call.invocation, call.tensors[0])
    program, _, chosen, emitted = lowered(
        call.invocation, on.softmax, geometry, call.tensors[0], on, schedules, backend
    )
    if emitted.backend != backend:
        raise ValueError(f"{backend} has no form for it")
    key = entry_key(program, chosen, emitted, on)
    digest = key.digest()
    if digest not in waiting:
        waiting[digest] = obtain_later(key, partial(_itself, emitted), label=emitted.file)
    return digest


def _itself(emitted: Emitted) -> Emitted:
    return emitted
