"""Wheel metadata of calls: a call that a wheel was built for is neither traced nor lowered.

It is valid only for the version of rlk's sources that recorded it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rlk.digest import digest
from rlk.env import Env
from rlk.ir.nodes import MathModel, Program
from rlk.ir.text import parse_program, print_program
from rlk.runtime.binding.candidates import forms
from rlk.runtime.binding.invocation import Interface, Invocation, judged
from rlk.runtime.binding.shape_buckets import Sizes
from rlk.runtime.kernels import trace_cache
from rlk.runtime.wheels.reader import Wheel, installed, program_key
from rlk.target.facts import Target

INTERFACES, CHOICES = "interfaces", "choices"
Said = TypeVar("Said")


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of tracing a call, recorded in a wheel.

    key: how a wheel names the form that its backend wants most. identity: the numerics id. wanted: the
    backend whose form is wanted most of all. program: the form's outline.
    """

    key: str
    identity: str
    wanted: str
    program: Program


def named(invocation: Invocation, *facts: Any) -> str | None:
    """Return the name of an invocation's record; None for an operator that rlk does not ship."""
    name = trace_cache.name_of(invocation)
    return None if name is None else digest([name, *facts])


def choice_name(invocation: Invocation, model: MathModel, sizes: Sizes) -> str | None:
    """Return the name of the choice for calls of these sizes."""
    return named(invocation, model.value, trace_cache.of_sizes(sizes))


def write_choice(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, backend: str, backends: Sequence[str]
) -> dict[str, Any] | None:
    """Return the record of a call in a backend's wheel, or None. backends: all of the target's."""
    every = list(forms(invocation, model, sizes, on, backends))
    form = next((each for each in every if each.backend == backend), None)
    if form is None:
        return None
    return {
        "key": program_key(backend, on, form.program, form.schedules, sizes.signature),
        "numerics_id": judged(invocation, model, on.name)[0],
        "wanted": every[0].backend,
        "program": print_program(trace_cache.outline(form.program)),
    }


def _read_choice(kept: dict[str, Any]) -> Choice:
    key, identity, wanted = (str(kept[name]) for name in ("key", "numerics_id", "wanted"))
    if not key.isalnum() or not identity.isalnum():  # a key names a folder
        raise ValueError(f"{key} and {identity} name nothing")
    return Choice(key, identity, wanted, parse_program(kept["program"]))


def recorded_interface(invocation: Invocation, on: Target, backends: Iterable[str]) -> Interface | None:
    """Return an invocation's interface, if an installed wheel says it."""
    if not Env.current().aot:
        return None
    wheels = (wheel for backend in backends for wheel in installed(on, backend)[0])
    said = (_said(wheel, INTERFACES, named(invocation), trace_cache.read_interface) for wheel in wheels)
    return next((each for each in said if each is not None), None)


def recorded_choice(wheel: Wheel, invocation: Invocation, model: MathModel, sizes: Sizes) -> Choice | None:
    """Return the recorded choice for a call in a wheel."""
    return _said(wheel, CHOICES, choice_name(invocation, model, sizes), _read_choice)


def _said(wheel: Wheel, what: str, name: str | None, read: Callable[[dict[str, Any]], Said]) -> Said | None:
    try:
        text = trace_cache.own_text() if wheel.calls and name is not None else None
        kept = None if text is None or wheel.calls["text"] != text else wheel.calls[what].get(name)
        return None if kept is None else read(kept)
    except trace_cache.UNREADABLE:
        return None
