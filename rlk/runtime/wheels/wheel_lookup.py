"""Wheel lookup: the installed wheel that holds a kernel of a call, and why others are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rlk.cache.manifest import BadEntry
from rlk.digest import digest
from rlk.env import Env
from rlk.ir.nodes import MathModel
from rlk.lower.common.emitted import Signature
from rlk.runtime.binding.arguments import Geometry
from rlk.runtime.binding.candidates import Form, entries_of, forms
from rlk.runtime.binding.host_stub import divisible
from rlk.runtime.binding.invocation import Invocation, Tensors, is_own, judged, label_of
from rlk.runtime.binding.shape_buckets import Sizes, sizes_of
from rlk.runtime.kernels.trace_cache import outline
from rlk.runtime.launch.record import ModuleRecord
from rlk.runtime.wheels.reader import (
    Kernel,
    Wheel,
    every_kernel,
    forgets,
    installed,
    kernels,
    others,
    program_key,
    sound,
)
from rlk.runtime.wheels.wheel_metadata import recorded_choice
from rlk.target.facts import Target

logger = logging.getLogger("rlk.aot")
MOST_CHOICES = 1024  # that are kept; the oldest are dropped together


@dataclass(frozen=True, slots=True)
class Found:
    """The code that a call runs from a wheel."""

    form: Form
    kernel: Kernel
    module: ModuleRecord

    @property
    def needs(self) -> frozenset[str]:
        """The parameters of the host function that have to be aligned: `Signature.divisible`."""
        return frozenset(self.kernel.key["divisible"])


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the installed wheels to a call: a kernel or None, and the refused kernels."""

    found: Found | None
    refused: tuple[str, ...] = ()


def call_key(invocation: Invocation, plain: Signature) -> str:
    """Return the name of a call as its author wrote it, whatever the spec makes of it."""
    v = invocation.variant
    facts = [
        label_of(invocation.spec), [[n, str(d)] for n, d in v.dtypes], sorted(v.present),
        [[n, repr(x)] for n, x in v.statics], sorted(v.wanted), list(invocation.shard),
        [list(each) for each in plain.extents], plain.split_rows, sorted(plain.strided),
    ]  # fmt: skip
    return digest(facts)[:32]


def ship(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    backends: tuple[str, ...],
    *,
    whole: bool = False,
) -> Answer:
    """Return the kernel of an installed wheel that runs a call, of the first backend that has one.

    whole: say why wheels that know this call are refused. Then, and for operators that are not rlk's, wheels
    of any name are looked at; the first time that takes a walk over everything that is installed.
    What the user's table of schedules has for this call is taken with that schedule only.
    """
    if not Env.current().aot:
        return Answer(None, ("RLK_AOT=0: installed wheels are not used",) if whole else ())
    every = whole or not is_own(invocation.spec)
    searched = {b: (installed(on, b), *((others(on, b),) if every else ())) for b in backends}
    wheels = {b: [w for found, _ in each for w in found] for b, each in searched.items()}
    refused = [why for each in searched.values() for _, reasons in each for why in reasons]
    if not any(wheels.values()):
        return _told(Answer(None, tuple(refused)))
    sizes = sizes_of(invocation, geometry)

    def fit(form: Form, held: list[Found]) -> Found | None:
        """Return the kernel with the most divisibility assumptions that hold for this call's arguments."""
        fitting = [
            each
            for each in held
            if each.needs <= divisible(form.program, invocation, geometry, tensors, each.module.call)
        ]
        return max(fitting, key=lambda each: len(each.needs), default=None)

    # wheels record choices without the user's table: where it has the operator they are not asked
    told = bool(entries_of(invocation, on, sizes))
    call = (invocation, model, sizes, on, backends, told)
    known = None if whole or told else _first_choice.get(call)
    if known is None and not whole and not told:
        known = _recorded(invocation, model, sizes, wheels, refused)
        if known is not None:
            _keep(call, *known)
    if known is not None and (found := fit(*known)) is not None:
        return _told(Answer(found, tuple(refused)))
    identity, _ = judged(invocation, model, on.name)
    plain = sizes.signature
    for place, form in enumerate(forms(invocation, model, sizes, on, [b for b in backends if wheels[b]])):
        key = program_key(form.backend, on, form.program, form.schedules, plain)
        for wheel in wheels[form.backend]:
            held = _held(form, wheel, key, identity, refused)
            if held and place == 0 and wheel is wheels[form.backend][0] and not whole and not told:
                _keep(call, Form(form.backend, outline(form.program), ()), held)
            found = fit(form, held)
            if found is not None:
                return _told(Answer(found, tuple(dict.fromkeys(refused))))
        if form.entries:
            refused.append(
                f"{form.entries[0].place}: no wheel has {form.entries[0].kernel} with this schedule"
            )
            break
    if whole:
        refused += _near(invocation, identity, plain, on, backends)
    return _told(Answer(None, tuple(dict.fromkeys(refused))))


_said: set[str] = set()
_first_choice: dict[object, tuple[Form, list[Found]]] = {}
"""Of calls of the same sizes: the form that is wanted most, and what the first wheel has of it."""
forgets(_first_choice.clear)


def _keep(call: object, brief: Form, held: list[Found]) -> None:
    if len(_first_choice) >= MOST_CHOICES:
        _first_choice.clear()
    _first_choice[call] = brief, [replace(each, form=brief) for each in held]


def _recorded(
    invocation: Invocation, model: MathModel, sizes: Sizes, wheels: Mapping[str, list[Wheel]],
    refused: list[str],
) -> tuple[Form, list[Found]] | None:  # fmt: skip
    """Return the recorded first choice of the search, if the wheels record it and contain its kernel."""
    said = {b: recorded_choice(each[0], invocation, model, sizes) for b, each in wheels.items() if each}
    wanted = next((each.wanted for each in said.values() if each is not None), None)
    backend = next(iter(said)) if len(said) == 1 else wanted
    if backend is None or (choice := said.get(backend)) is None:
        return None
    form = Form(backend, choice.program, ())
    held = _held(form, wheels[backend][0], choice.key, choice.identity, refused)
    return (form, held) if held else None


def _told(answer: Answer) -> Answer:
    """Log refused kernels, once in a process."""
    for why in answer.refused:
        if why not in _said:
            _said.add(why)
            logger.warning("%s", why)
    return answer


def _held(form: Form, wheel: Wheel, key: str, identity: str, refused: list[str]) -> list[Found]:
    held = []
    for kernel in _usable(wheel, key, identity, refused):
        try:
            held.append(Found(form, kernel, ModuleRecord.read(kernel.folder)))
        except (BadEntry, OSError) as error:
            refused.append(f"{wheel.label}: entry {kernel.folder.name[:12]}: {error}")
    return held


def _usable(wheel: Wheel, key: str, identity: str, refused: list[str]) -> Iterator[Kernel]:
    """Yield the complete entries of a key with the requested numerics; collect reasons of refused ones."""
    for kernel in kernels(wheel, key):
        why = kernel if isinstance(kernel, str) else _differs(kernel, identity) or sound(kernel)
        if why is not None:
            refused.append(why)
        elif isinstance(kernel, Kernel):
            yield kernel


def _differs(kernel: Kernel, identity: str) -> str | None:
    theirs = kernel.key.get("numerics_id")
    if theirs == identity:
        return None
    op = kernel.key.get("op")
    return f"{kernel.wheel.label}: its {op} has numerics id {theirs}, the installed spec's is {identity}"


def _near(
    invocation: Invocation, identity: str, plain: Signature, on: Target, backends: tuple[str, ...]
) -> list[str]:
    """Say why entries for the same call do not serve it: another id, or other schedules or alignments."""
    name, reasons = call_key(invocation, plain), dict[str, None]()
    for backend in backends:
        for wheel in installed(on, backend)[0] + others(on, backend)[0]:
            known = [k for k in every_kernel(wheel) if isinstance(k, Kernel) and k.key.get("call") == name]
            differing = [why for k in known if (why := _differs(k, identity)) is not None]
            if differing:
                reasons |= dict.fromkeys(differing)
            elif known:
                what = f"its {invocation.spec.name} of this signature is for other rows or alignments"
                reasons[f"{wheel.label}: {what}"] = None
    return list(reasons)
