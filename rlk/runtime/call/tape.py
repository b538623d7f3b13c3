"""A record of the bound calls that a thread makes without gradients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlk.runtime.binding.invocation import Run, Scalars, Tensors


@dataclass(frozen=True, slots=True)
class Call:
    """A bound call, its arguments, and its results by name."""

    run: Run
    tensors: Tensors
    scalars: Scalars
    made: Tensors


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    """The calls of one thread, in order; it keeps their tensors alive."""

    thread: int = field(default_factory=threading.get_ident)
    calls: list[Call] = field(default_factory=list)


tapes: list[Tape] = []


@contextmanager
def taped() -> Iterator[list[Call]]:
    """Record the bound calls that this thread makes without gradients."""
    tape = Tape()
    tapes.append(tape)
    try:
        yield tape.calls
    finally:
        tapes.remove(tape)


def run_and_tape(run: Run, tensors: Tensors, scalars: Scalars) -> Tensors:
    """Run a bound call, and record it where its thread has a tape."""
    made, thread = run(tensors, scalars), threading.get_ident()
    for tape in tapes:
        if tape.thread == thread:
            tape.calls.append(Call(run, tensors, scalars, made))
    return made
