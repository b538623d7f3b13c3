"""The dispatcher: chooses the code of a call once per shape; refuses where no backend has its numerics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from rlk.backends.interface import Schedules
from rlk.backends.registry import (
    changes,
    complete,
    default_backends,
    in_wheels,
    of_name,
    of_target,
    on_cpu,
)
from rlk.cache import CacheKey
from rlk.digest import digest
from rlk.env import Env
from rlk.errors import Code, LaunchError, RlkError, UnsupportedError
from rlk.ir.nodes import MathModel, Program, Role
from rlk.ir.numerics import Tier
from rlk.ir.text import print_program
from rlk.lower.common.abi import host_parameters
from rlk.lower.common.emitted import CallArg, Emitted, From, Signature
from rlk.lower.common.memory import memory_shape, placed, workspaces
from rlk.runtime.binding.arguments import (
    MOST_EXTENT,
    TORCH_DTYPES,
    VECTOR,
    Geometry,
    output_shape,
)
from rlk.runtime.binding.candidates import bound_for, entries_of, formed, forms, lowered_by, sooner_of
from rlk.runtime.binding.guards import Choice, traced_choice
from rlk.runtime.binding.host_stub import (
    compose,
    divisible,
    error_words,
    host_values,
    raise_data_errors,
)
from rlk.runtime.binding.invocation import (
    Invocation,
    Run,
    Scalars,
    Tensors,
    geometry_of,
    inputs_of,
    interface,
    interfaces,
    is_empty,
    judged,
    model_of,
    of_one_stride,
    outputs_of,
    scattered,
    target_of,
)
from rlk.runtime.binding.shape_buckets import Sizes, sizes_of
from rlk.runtime.kernels.build import kernel_key, obtain, stored
from rlk.runtime.kernels.loader import Interpreter, interpret, load
from rlk.runtime.kernels.trace_cache import (
    Compiled,
    Outline,
    known_choice,
    known_code,
    known_interface,
    known_outline,
    outline,
)
from rlk.runtime.launch.record import ModuleRecord
from rlk.runtime.wheels.wheel_lookup import Answer, Found, ship
from rlk.runtime.wheels.wheel_metadata import recorded_interface
from rlk.schedule.schedule import Schedule
from rlk.schedule.user_table import Entries, Table, using
from rlk.target.facts import HOPPER, TARGETS, Target, target

Made = TypeVar("Made")
Lowered = tuple[Program, Signature, Schedules, Emitted]
MOST_SHAPES = 4096  # bound calls that are kept; the oldest are dropped together
MOST_CHOICES = 256  # of calls that differ in their dynamic extents alone
MOST_TEXTS = 64  # programs and texts likewise: large, and seldom asked for once their kernels are there


@dataclass(frozen=True, slots=True)
class Decision:
    """The code that a call on a device runs: shown by `rlk.explain`.

    backends: the names of those that run its parts, in order; before the sizes of a call are known, of those
    of which the fastest runs it. Without a device: "oracle", or the interpreter of a backend's source.
    source: where its kernel comes from: an installed wheel, a store, a compiler. refused: which kernels of
    installed wheels were not taken, and why.
    """

    backends: tuple[str, ...]
    target: str
    math: MathModel
    numerics_id: str
    tiers: tuple[tuple[str, Tier], ...]
    schedules: tuple[str, ...] = ()
    source: str = ""
    refused: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """The names of its backends, with commas."""
        return ", ".join(self.backends)

    def __str__(self) -> str:
        lines = [f"backend      {self.backend} on {self.target}", f"numerics id  {self.numerics_id}"]
        lines.append(f"exp2 model   {self.math.value} (softmax folds)")
        lines += [f"tier         {name}: {found.value}" for name, found in self.tiers]
        lines += [f"schedule     {text}" for text in self.schedules]
        lines += [f"kernel       {self.source}"] if self.source else []
        lines += [f"refused      {why}" for why in self.refused]
        return "\n".join(lines)


def decide(invocation: Invocation, device: torch.device) -> Decision:
    """Return what a call would run as far as its sizes do not decide it."""
    model, on = model_of(invocation, device), target_of(device) or cpu_target()
    name = "cpu" if on is None else on.name
    identity, tiers = judged(invocation, model, name)
    backends = (_without_device(),) if on is None else asked_for(on)
    return Decision(backends, name, model, identity, tiers)


def _without_device() -> str:
    """Return what runs calls on CPU tensors."""
    return f"{_interpreted()}-interpreter" if dispatch.interpreters else "oracle"


def asked_for(on: Target) -> tuple[str, ...]:
    """Return the backends of which the fastest runs a call: the one that RLK_BACKEND names, or several."""
    wanted = Env.current().backend
    if wanted is None:
        return tuple(each.name for each in default_backends(on))
    built = lowering(on)
    if wanted not in built:
        alternatives = ", ".join(built)
        raise UnsupportedError(
            Code.UNSUPPORTED, what="RLK_BACKEND", backend=wanted, target=on.name, alternatives=alternatives
        )
    return (wanted,)


def _interpreted() -> str:
    """Return the backend whose source interpreters run: the complete one where there is no other."""
    return next((name for name in dispatch.interpreters if name != complete().name), complete().name)


def lowering(on: Target) -> tuple[str, ...]:
    """Return the backends that a call on a target may ask for."""
    return tuple(each.name for each in of_target(on))


def backends_of(on: Target) -> tuple[str, ...]:
    """Return the backends whose kernels lie in wheels for a target, and stand in for one another.

    TileLang's are among them where AMD's devices run; on Hopper they run if they are asked for.
    """
    return tuple(each.name for each in in_wheels(on))


def serving(on: Target) -> tuple[str, ...]:
    """Return the backends whose wheels serve a call: the one that the environment names, else all."""
    return backends_of(on) if Env.current().backend is None else asked_for(on)


def standing_in(on: Target) -> tuple[str, ...]:
    """Return the backends whose wheels serve a call that cannot be compiled here.

    What a backend refuses that does not fall back is an error where it is asked for.
    """
    asked = None if Env.current().backend is None else of_name(asked_for(on)[0])
    return serving(on) if asked is not None and not (asked.complete or asked.falls_back) else backends_of(on)


def cpu_target() -> Target | None:
    """Return the target of calls on CPU tensors; None where the oracle or an interpreter runs them."""
    return None if dispatch.interpreters else on_cpu()


Recorder = Callable[[Invocation, Tensors], Run]


class Dispatcher:
    """Runs invocations; remembers, for every exact shape seen, the bound call.

    interpreters: by the backend whose generated source they run; where there are any, calls on CPU tensors
    run in them instead of the oracle.
    """

    def __init__(self) -> None:
        self.bound: dict[object, Run] = {}
        self.interpreters: dict[str, Interpreter] = {}
        self.recorder: Recorder | None = None
        self._memory: dict[Callable[..., Any], dict[object, Any]] = {}
        self.forgetting: list[Callable[[], None]] = [self.bound.clear]

    def forgets(self, forget: Callable[[], None]) -> None:
        """Call `forget` whenever bound calls become stale."""
        self.forgetting.append(forget)

    def remembered(self, make: Callable[..., Made], *what: Hashable) -> Made:
        """Return what `make` gives for these arguments, made once until bound calls are forgotten."""
        made = self._memory.setdefault(make, {})
        found: Made | None = made.get(what)
        if found is None:
            if len(made) >= (MOST_TEXTS if make in (formed, _lowered) else MOST_SHAPES):
                made.clear()
            found = made[what] = make(*what)
        return found

    @property
    def interpreter(self) -> Interpreter | None:
        """The interpreter of the complete backend's source, if one is set."""
        return self.interpreters.get(complete().name)

    def interpret_with(self, interpreter: Interpreter | None, **others: Interpreter | None) -> None:
        """Run calls on CPU tensors in an interpreter of Triton source from now on; None: in the oracle.

        others: interpreters of other backends' source, by name, of which the first is asked before Triton's.
        """
        every = {**others, complete().name: interpreter}
        self.interpreters = {name: each for name, each in every.items() if each is not None}
        self.forget()

    def forget(self) -> None:
        """Forget every bound call."""
        self._memory.clear()
        for forget in self.forgetting:
            forget()

    @contextmanager
    def recorded(self, recorder: Recorder) -> Iterator[None]:
        """Run what `recorder` returns instead of kernels, in all threads; what was bound is forgotten."""
        before, self.recorder = self.recorder, recorder
        self.forget()
        try:
            yield
        finally:
            self.recorder = before
            self.forget()

    def find(self, invocation: Invocation, tensors: Tensors) -> Run:
        """Return the bound call for tensors of these shapes, strides, devices and alignments.

        Raises LaunchError, before anything is launched, when an argument does not fit.
        """
        if self.recorder is not None:
            return self.recorder(invocation, tensors)
        key = (
            invocation.key,
            *[
                (t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % VECTOR, t.is_neg())
                for t in tensors.values()
            ],
        )
        run = self.bound.get(key)
        if run is None:
            if len(self.bound) >= MOST_SHAPES:
                self.bound.clear()
            run = self.bound[key] = bind(invocation, tensors)
        return run

    def __call__(self, invocation: Invocation, tensors: Tensors, scalars: Scalars) -> Tensors:
        """Run an invocation on the tensors' device and return its outputs by name."""
        return self.find(invocation, tensors)(tensors, scalars)


def look_up(invocation: Invocation, tensors: Tensors, on: Target | None = None) -> None:
    """Look up, for a device, what a wheel says of an invocation, or what an earlier process found out.

    on: the target, where no tensor lies on one.
    """
    device = next((t.device for t in tensors.values()), None)
    if on is None and device is not None and device.type in ("cpu", "cuda"):
        on = target_of(device)
    if on is not None and invocation not in interfaces:
        interfaces[invocation] = recorded_interface(invocation, on, backends_of(on)) or known_interface(
            invocation, on, lambda: interface(invocation)
        )


def bind(invocation: Invocation, tensors: Tensors) -> Run:
    """Return the call for tensors of exactly these shapes, strides and alignments."""
    if negated := {name for name, t in tensors.items() if t.is_neg()}:  # memory has other signs than shown
        for name in sorted(negated & invocation.into):
            wanted = "tensor that is no lazily negated view, since it is written"
            got = f"one: t = {name}.resolve_neg(); pass t as {name}, then {name}.copy_(t)"
            raise LaunchError(Code.ARG_TYPE, op=invocation.spec.name, name=name, wanted=wanted, got=got)
        run = bind(invocation, resolved(tensors))
        return lambda given, scalars: run(resolved(given), scalars)
    look_up(invocation, tensors)
    copied = scattered(invocation, tensors)
    if copied:
        return _of_copies(invocation, tensors, copied)
    used = {d.name: tensors[d.name] for d in inputs_of(invocation) if d.role is Role.IN}
    used |= {name: tensors[name] for name in invocation.into}
    used = used or (tensors if invocation.unstored else {})
    if not used:  # nothing says how many rows there are, and on which device
        raise LaunchError(Code.READS_NOTHING, invocation.spec.loc, op=invocation.spec.name)
    geometry = geometry_of(invocation, tensors)
    device = next(iter(used.values())).device
    on = target_of(device) or cpu_target()
    model = model_of(invocation, device)
    if is_empty(invocation, geometry):
        return _empty(invocation, geometry, device)
    empty = frozenset(d.name for d in outputs_of(invocation) if 0 in output_shape(d, geometry))
    if empty != invocation.unstored:  # no program would store the others
        return bind(replace(invocation, unstored=empty), tensors)
    if on is not None:
        return bind_lowered(invocation, model, geometry, used, on, device)
    if dispatch.interpreters:
        return bind_lowered(invocation, model, geometry, used, target(HOPPER), None)
    from rlk.runtime.call.oracle import bind_oracle

    return bind_oracle(invocation, model, geometry)


def resolved(tensors: Tensors) -> Tensors:
    """Return tensors whose memory has the values that they show: of lazily negated views, copies."""
    return {name: t.resolve_neg() for name, t in tensors.items()}


def _of_copies(invocation: Invocation, tensors: Tensors, names: tuple[str, ...]) -> Run:
    """Return the call that first copies inputs whose rows have several strides."""
    run = bind(invocation, of_one_stride(tensors, names))
    return lambda given, scalars: run(of_one_stride(given, names), scalars)


def _empty(invocation: Invocation, geometry: Geometry, device: torch.device) -> Run:
    """Return the call for inputs without elements: zeros, nothing launched."""
    shapes = [(d.name, output_shape(d, geometry), TORCH_DTYPES[d.type.dtype]) for d in outputs_of(invocation)]

    def run(tensors: Tensors, scalars: Scalars) -> Tensors:
        return {n: torch.zeros(shape, dtype=dtype, device=device) for n, shape, dtype in shapes}

    return run


def lowered(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    schedules: tuple[Schedule, ...] | None = None,
    backend: str | tuple[str, ...] | None = None,
) -> Lowered:
    """Return the bound program, its signature, the schedules chosen, and its source.

    schedules: of the program that is launched, whose form their number says: pieces side by side, launched
    one after the other, or, of the CuTe lowering, looped over by each block; by default those of heuristics.
    backend: a name, or several of which the fastest is taken; by default those of `asked_for` on a device,
    and for tensors on a CPU the one that an interpreter runs. The source says which it is for: the complete
    one's where a backend that falls back refuses, for all have the program's numerics id, and so its bits.
    Where another refuses raises UnsupportedError.
    """
    return dispatch.remembered(
        _lowered, requested(invocation, model, geometry, tensors, on, schedules, backend)
    )


@dataclass(frozen=True, slots=True)
class Request:
    """The key of a call's code: calls with equal requests run the same code.

    schedules: instead of what heuristics choose. asked: the backends of which the fastest runs it. aligned:
    parameters of the host function that are: `Signature.divisible`. kept: whether the store is asked
    what an earlier process found out, and told what this one does. entries: of the user's table of schedules.
    """

    invocation: Invocation
    model: MathModel
    sizes: Sizes
    on: Target
    schedules: Schedules | None
    asked: tuple[str, ...]
    aligned: frozenset[str]
    entries: Entries = ()
    kept: bool = field(default=False, compare=False)


def requested(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    schedules: Schedules | None = None,
    backend: str | tuple[str, ...] | None = None,
    kept: bool = False,
) -> Request:
    """Return what decides the code of a call; arguments as `lowered` takes them, `kept` as a request's."""
    sizes = sizes_of(invocation, geometry)
    asked = (backend,) if isinstance(backend, str) else backend or _asked(on, tensors)
    entries = entries_of(invocation, on, sizes) if schedules is None else ()
    if schedules is None:
        sizes = representative_sizes(invocation, model, sizes, on, asked, entries, kept)
    found = dispatch.remembered(_outline, invocation, model, sizes, on, schedules, kept)
    aligned = divisible(found.program, invocation, geometry, tensors, found.call)
    return Request(invocation, model, sizes, on, schedules, asked, aligned, entries, kept)


def representative_sizes(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, asked: tuple[str, ...],
    entries: Entries, kept: bool,
) -> Sizes:  # fmt: skip
    """Return the first sizes seen whose guards these satisfy: they have the same forms and schedules.

    asked, entries, kept: as in a request.
    """
    static = dict(sizes.static)
    dynamic = {axis: size for axis, size in sizes.extents if axis not in static}
    rest = replace(sizes, extents=sizes.static)
    found = dispatch.remembered(_choices, invocation, model, rest, on, asked, entries)

    def of(extents: Mapping[str, int]) -> Sizes:
        return replace(sizes, extents=tuple(sorted({**static, **extents}.items())))

    def decided(extents: Mapping[str, int]) -> object:
        among = tuple(dict.fromkeys((*asked, complete().name)))  # the complete one runs what others refuse
        made = forms(invocation, model, of(extents), on, among)
        return tuple((form.backend, form.schedules) for form in made)

    def make() -> Choice:
        return traced_choice(dynamic, decided)

    choice = next((each for each in found if each.holds(dynamic)), None)
    while choice is None and len(found) < MOST_CHOICES:
        try:
            call = (invocation, model, sizes, on, asked, entries, len(found))
            made = known_choice(*call, make) if kept else make()
        except RlkError:  # which is raised where the call is lowered
            return sizes
        found.append(made)
        choice = made if made.holds(dynamic) else None
    return sizes if choice is None else of(dict(choice.extents))


def _choices(*call: Hashable) -> list[Choice]:
    """Return the choices that are known of calls that differ in their dynamic extents alone: none yet."""
    return []


def _outline(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, schedules: Schedules | None,
    kept: bool,
) -> Outline:  # fmt: skip
    def made() -> Outline:
        program, _ = dispatch.remembered(formed, invocation, model, sizes, on, schedules)
        return Outline(outline(program), host_parameters(program, sizes.signature))

    return known_outline(invocation, model, sizes, on, made) if kept else made()


def _lowered(request: Request) -> Lowered:
    invocation, model, sizes, schedules = request.invocation, request.model, request.sizes, request.schedules
    on = request.on
    program, chosen = dispatch.remembered(formed, invocation, model, sizes, on, schedules)
    signature = replace(sizes.signature, divisible=request.aligned)
    identity, _ = judged(invocation, model, on.name)
    bound = bound_for(invocation, model, sizes, on, program, chosen)
    among = [of_name(name) for name in request.asked]
    first = sooner_of(among, bound) if len(among) > 1 else among[0]
    if not first.complete and (first.falls_back or len(among) > 1):
        try:
            what, placed, emitted = lowered_by(
                first, bound, signature, identity, schedules, entries=request.entries
            )
            return what, signature, placed, emitted
        except UnsupportedError:
            if schedules is not None and first.program_of(bound, schedules) is not program:
                raise  # no other backend can stand in for blocks that walk pieces
        first = complete()
    what, placed, emitted = lowered_by(first, bound, signature, identity, schedules, entries=request.entries)
    return what, signature, placed, emitted


def _asked(on: Target, tensors: Tensors) -> tuple[str, ...]:
    """Return the backends of which the fastest runs a call."""
    if next(iter(tensors.values())).is_cuda or on.name not in TARGETS:
        asked = asked_for(on)
        # a TMA descriptor of a tensor without elements is none: on an H200 the load is an illegal instruction
        if all(t.numel() for t in tensors.values()) or not all(map(_may_fall_back, asked)):
            return asked
        return (complete().name,)
    return (_interpreted(),)


def _may_fall_back(name: str) -> bool:
    backend = of_name(name)
    return backend.complete or backend.falls_back


def bind_lowered(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    device: torch.device | None,
    schedules: tuple[Schedule, ...] | None = None,
    backend: str | None = None,
) -> Run:
    """Return the call of a lowering; without a device its kernels run in an interpreter of its source.

    schedules, backend: as `lowered` takes them.
    """
    if device is not None:
        from_wheels = schedules is None and backend is None
        program, host, call, checks = resolve(
            invocation, model, geometry, tensors, on, device, schedules, backend, from_wheels
        )
        addressed = device.type != "cpu"
        return _caller(
            invocation, program, call, checks, geometry, tensors, device, host, addressed=addressed
        )
    program, _, chosen, emitted = lowered(invocation, model, geometry, tensors, on, schedules, backend)
    host = interpret(emitted, dispatch.interpreters[emitted.backend])
    where = torch.device("cpu")
    parts = invocation, program, emitted.call, emitted.checks, geometry, tensors, where, host
    return _caller(*parts, addressed=False)


Resolved = tuple[Program, Callable[..., Any], tuple[CallArg, ...], tuple[str, ...]]


def resolve(
    invocation: Invocation,
    model: MathModel,
    geometry: Geometry,
    tensors: Tensors,
    on: Target,
    device: torch.device,
    schedules: tuple[Schedule, ...] | None = None,
    backend: str | None = None,
    from_wheels: bool = True,
) -> Resolved:
    """Return the program that a call runs on a device, its host function, its parameters and its data errors.

    from_wheels: whether an installed wheel is asked first; else out of a store of kernels, or newly compiled.
    Where nothing can be compiled a wheel of another backend stands in, with the same numerics id.
    """
    call = (invocation, model, geometry, tensors, on)
    if from_wheels:
        found = ship(*call, serving(on)).found
        if found is not None:
            return _held(found, on, device)
    try:
        request = requested(*call, schedules, backend, from_wheels)
        dispatch.remembered(coded, request).key(on)  # which says whether its compiler is there
    except UnsupportedError as error:
        with using(Table()):  # no schedule of a user's is there, and none can be compiled
            answer = ship(*call, standing_in(on), whole=True) if from_wheels else None
        if answer is not None and answer.found is not None:
            return _held(answer.found, on, device)
        raise (error if answer is None else without_compiler(error, on, answer)) from error
    program, host, module = dispatch.remembered(_loaded, request, index_of(device))
    return program, host, module.call, module.checks


def without_compiler(error: UnsupportedError, on: Target, answer: Answer) -> UnsupportedError:
    """Return an error that also says why no installed wheel helps."""
    if error.diagnostics[0].code is not Code.UNSUPPORTED:
        return error
    fields = dict(error.diagnostics[0].fields)
    wheels = "; ".join(answer.refused) or "none is installed that holds it"
    alternatives = f"{fields.pop('alternatives')}, or a wheel of kernels for {on.name} ({wheels})"
    return UnsupportedError(Code.UNSUPPORTED, error.diagnostics[0].loc, **fields, alternatives=alternatives)


def _held(found: Found, on: Target, device: torch.device) -> Resolved:
    host, module = dispatch.remembered(load, found.kernel.folder, kind_of(on), index_of(device))
    return found.form.program, host, module.call, module.checks


def kind_of(on: Target) -> str:
    """Return whose driver launches on a target; the vendor where that is neither CUDA's nor HIP's."""
    return {"amd": "hip", "nvidia": "cuda"}.get(on.vendor, on.vendor)


def index_of(device: torch.device) -> int:
    """Return the number of a device: the current one's where it has none, 0 of the CPU."""
    if device.type == "cpu":
        return 0
    return device.index if device.index is not None else torch.cuda.current_device()


def entry_key(program: Program, schedules: tuple[Schedule, ...], emitted: Emitted, on: Target) -> CacheKey:
    """Return the cache key of a lowered program: the text says everything that the compiler sees."""
    ir = digest([print_program(program), emitted.source, repr(emitted.kernels)])
    return kernel_key(emitted.backend, ir, [str(s) for s in schedules], on.name)


def coded(request: Request) -> Compiled:
    """Return which entry of a store holds what a call runs: as an earlier process found it, or lowered.

    That process may have ended before the kernel was there, or it was evicted.
    """
    r = request
    if not r.kept:
        return lowered_code(r)
    asked = (r.invocation, r.model, r.sizes, r.on, r.asked, r.aligned, r.entries)
    return known_code(*asked, lambda: lowered_code(r))


def lowered_code(request: Request) -> Compiled:
    """Return which entry of a store holds what a call runs, as this process lowers it."""
    return dispatch.remembered(_coded, request)


def _coded(request: Request) -> Compiled:
    program, _, chosen, emitted = dispatch.remembered(_lowered, request)
    key = entry_key(program, chosen, emitted, request.on)
    schedules = tuple(str(each) for each in chosen)
    return Compiled(emitted.backend, key.ir, schedules, outline(program), emitted.file)


def text_of(request: Request) -> Emitted:
    """Return the text of a call's code."""
    return dispatch.remembered(_lowered, request)[3]


def _loaded(request: Request, device: int) -> tuple[Program, Callable[..., Any], ModuleRecord]:
    """Return what a call launches: out of a store, or newly compiled."""
    code, on = dispatch.remembered(coded, request), request.on
    for _ in range(2):  # an entry may be evicted between being found and being read
        present = stored(code.key(on))
        if present is None:
            code = lowered_code(request)  # what is compiled was lowered by this process
        folder = present[0] if present else obtain(code.key(on), lambda: text_of(request), label=code.file)
        try:
            # calls of other sizes or alignments may run the same entry
            host, module = dispatch.remembered(load, folder, kind_of(on), device)
        except FileNotFoundError:
            continue
        return code.program, host, module
    raise LaunchError(Code.INTERNAL, what=f"the cache entry of {code.file} keeps vanishing")


def _caller(
    invocation: Invocation,
    program: Program,
    call: tuple[CallArg, ...],
    checks: tuple[str, ...],
    geometry: Geometry,
    tensors: Tensors,
    device: torch.device,
    host: Callable[..., Any],
    *,
    addressed: bool,
) -> Run:
    """Return the bound call: sizes and strides are constants of it, tensors and scalars its arguments.

    addressed: its launches are a driver's, which reads addresses.
    """
    _check_extents(invocation, call, geometry)
    outs = [(d.name, output_shape(d, geometry), TORCH_DTYPES[d.type.dtype]) for d in outputs_of(invocation)]
    made = workspaces(program)
    work = [(d.name, memory_shape(d, geometry.extents), TORCH_DTYPES[d.type.dtype]) for d in made]
    values = [v for _, v in host_values(call, (*outputs_of(invocation), *made), geometry)]
    check = Env.current().check
    block = placed(program, geometry.extents)
    run = compose(outs, work, values, tensors, host, device, block, invocation.into, addressed)

    def checked(given: Tensors, scalars: Scalars) -> Tensors:
        error_words(device).zero_()  # unchecked calls and replayed graphs leave findings of their own
        made = run(given, scalars)
        raise_data_errors(invocation.spec.name, checks, device)
        return made

    return checked if check else run


def _check_extents(invocation: Invocation, call: tuple[CallArg, ...], geometry: Geometry) -> None:
    """Raise LaunchError for an extent that kernels cannot count."""
    for arg in call:
        got = geometry.extents[arg.source] if arg.kind is From.EXTENT else 0
        if got > MOST_EXTENT:
            having = (d.name for d in inputs_of(invocation) if arg.source in [a.name for a in d.type.axes])
            name, wanted = next(having, "a tensor"), f"at most {MOST_EXTENT}: call it for parts"
            op = invocation.spec.name
            raise LaunchError(Code.ARG_EXTENT, op=op, name=name, axis=arg.source, got=got, wanted=wanted)


dispatch = Dispatcher()
changes(dispatch.forget)
