"""Build a wheel of kernels from a matrix of calls: lowered here, compiled in workers, without a device."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlk import __version__
from rlk.aot.calls import observe
from rlk.aot.matrix import Matrix, wrong
from rlk.aot.progress import Progress
from rlk.aot.wheel import Facts, write_wheel
from rlk.backends.registry import of_name
from rlk.cache.manifest import File, Manifest
from rlk.digest import Json, canonical, digest, digest_bytes
from rlk.env import Env
from rlk.errors import Code, LaunchError, RlkError, UnsupportedError
from rlk.ir.nodes import MathModel
from rlk.ir.numerics import Tier
from rlk.lower.common.emitted import Emitted
from rlk.runtime.binding.candidates import entries_of, formed
from rlk.runtime.binding.invocation import (
    Invocation,
    Tensors,
    geometry_of,
    inputs_of,
    interface,
    judged,
    label_of,
)
from rlk.runtime.binding.shape_buckets import Sizes, sizes_of
from rlk.runtime.call.dispatch import backends_of, entry_key, lowered
from rlk.runtime.kernels import trace_cache
from rlk.runtime.kernels.build import kernel_key, obtain_later
from rlk.runtime.launch.record import ABI, LAUNCH, MODULE, ModuleRecord
from rlk.runtime.wheels import wheel_metadata
from rlk.runtime.wheels.reader import CALLS, ENTRIES, FORMAT, HEAD, OWN_NAME, program_key, wheel_name
from rlk.runtime.wheels.wheel_lookup import call_key
from rlk.runtime.wheels.wheel_metadata import CHOICES, INTERFACES
from rlk.target.facts import Target

INIT = '"""Kernels of rlk, compiled ahead: data, found by its entry point in the group rlk.aot."""\n'


@dataclass(slots=True)
class Plan:
    """The content of a wheel to build: the key of each entry, what compiles it, and what was left out.

    left: calls that another backend's wheel has to serve, and why. calls: what tracing found out of them.
    """

    on: Target
    backend: str
    name: str = OWN_NAME
    version: str = __version__
    wanted: dict[str, tuple[dict[str, Json], Future[Path]]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    calls: dict[str, dict[str, Any]] = field(default_factory=lambda: {INTERFACES: {}, CHOICES: {}})


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel that was written, its entries, and the calls that it does not hold."""

    path: Path
    entries: int
    left: tuple[str, ...]


def checked(on: Target, backend: str) -> tuple[tuple[str, str], ...]:
    """Return the versions of a backend's compiler; raise UnsupportedError where it cannot build a wheel."""
    if backend not in backends_of(on):
        raise _unsupported(backend, on, ", ".join(backends_of(on)))
    key = kernel_key(backend, "", None, on.name)
    support = of_name(backend).wheels
    wanted = None if support is None else support.unbuildable()
    if wanted is not None:
        raise _unsupported(backend, on, wanted)
    return key.toolchain


def _unsupported(backend: str, on: Target, alternatives: str) -> UnsupportedError:
    return UnsupportedError(
        Code.UNSUPPORTED,
        what="a wheel of kernels",
        backend=backend,
        target=on.name,
        alternatives=alternatives,
    )


def build(
    matrix: Matrix, pairs: list[tuple[Target, str]], out: Path, progress: Progress,
    name: str | None = None, version: str = __version__,
) -> list[Built]:  # fmt: skip
    """Compile a matrix for each pair of a target and a backend and write a wheel of each to `out`.

    name, version: of the wheels; the target and the backend are appended to the name. By default the name is
    that of rlk's wheels, which have rlk's operators only. Kernels that the store has are not compiled again.
    Raises LaunchError for a name that the wheels must not have, CompileError for what does not compile.
    """
    name = _named(matrix, name)
    toolchains = [checked(*pair) for pair in pairs]
    out.mkdir(parents=True, exist_ok=True)
    plans = [Plan(*pair, name, version) for pair in pairs]

    def plan(invocation: Invocation, tensors: Tensors) -> None:
        for each in plans:
            _plan(each, invocation, tensors, progress)

    observe(matrix, plan)
    written = [_written(p, tools, out) for p, tools in zip(plans, toolchains, strict=True)]
    progress.end()
    return written


def _named(matrix: Matrix, name: str | None) -> str:
    """Return the beginning of the wheels' names; raise LaunchError for one that they must not have."""
    others = [calls.op for calls in matrix.calls if "." in calls.op]
    if name is None and others:
        why = f"for kernels of {others[0]}, an operator that is not rlk's"
        raise LaunchError(Code.ARG_MISSING, op="rlk aot build", name="--name", why=why)
    if name is None:
        return OWN_NAME
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise wrong("--name", name, "a name of lower-case letters, digits and _")
    if name.startswith("rlk"):
        raise wrong("--name", name, "a name that does not begin with rlk")
    return name


def _plan(plan: Plan, invocation: Invocation, tensors: Tensors, progress: Progress) -> None:
    """Start compiling what an invocation runs, unless that was started."""
    on, backend = plan.on, plan.backend
    model, geometry = invocation.math or on.softmax, geometry_of(invocation, tensors)
    used = {
        n: tensors[n] for n in (*(d.name for d in inputs_of(invocation)), *invocation.into) if n in tensors
    }
    sizes = sizes_of(invocation, geometry)
    _note(plan, invocation, model, sizes)
    plain, (program, chosen) = sizes.signature, formed(invocation, model, sizes, on)
    first = program_key(backend, on, program, chosen, plain)
    # what else the text depends on: which sizes, strides and addresses are multiples of 16
    multiples = [(n, [s % 16 for s in (*t.shape, *t.stride())], t.data_ptr() % 16) for n, t in used.items()]
    extents = dict(sizes.extents)
    told = [e.place for e in entries_of(invocation, on, sizes) if e.meets(backend, e.kernel, extents)]
    facts = (first, repr(multiples), repr(told))
    if facts in plan.seen:
        return
    plan.seen.add(facts)
    call, name = (invocation, model, geometry, used, on), what_is(invocation, dict(plain.extents))
    try:
        program, signature, schedules, emitted = lowered(*call, None, backend)
    except UnsupportedError as error:
        if of_name(backend).complete or of_name(backend).falls_back:
            raise
        plan.left[name] = error.args[0].splitlines()[0]
        return
    if emitted.backend != backend:
        plan.left[name] = f"{backend} has no form for it"
        return
    identity, tiers = judged(invocation, model, on.name)
    parameters = {arg.name for arg in emitted.call}
    key: dict[str, Json] = {
        "format": FORMAT,
        "program": program_key(backend, on, program, schedules, replace(signature, divisible=frozenset())),
        "numerics_id": identity,
        "exact": all(tier is Tier.EXACT for _, tier in tiers),
        "op": label_of(invocation.spec),
        "call": call_key(invocation, plain),
        "what": name,
        "schedules": [str(s) for s in schedules],
        "divisible": list[Json](sorted(signature.divisible & parameters)),
        "target": on.name,
        "backend": backend,
        "abi": ABI,
    }
    if digest(key) in plan.wanted:
        return
    started = obtain_later(entry_key(program, schedules, emitted, on), _constant(emitted), label=program.name)
    progress.follow(started, f"{on.name} {backend} {name}")
    plan.wanted[digest(key)] = key, started


def _note(plan: Plan, invocation: Invocation, model: MathModel, sizes: Sizes) -> None:
    """Keep what tracing a call finds out, unless its spec reads what cannot be followed."""
    name, own = wheel_metadata.choice_name(invocation, model, sizes), wheel_metadata.named(invocation)
    if name is None or own is None or name in plan.calls[CHOICES]:
        return
    plan.calls[INTERFACES][own] = trace_cache.write_interface(invocation.spec.name, interface(invocation))
    found = wheel_metadata.write_choice(invocation, model, sizes, plan.on, plan.backend, backends_of(plan.on))
    if found is not None:
        plan.calls[CHOICES][name] = found


def _calls(plan: Plan) -> bytes | None:
    """Return what a wheel says of its calls; None where rlk's text was changed meanwhile."""
    text, held = trace_cache.own_text(), {key["program"] for key, _ in plan.wanted.values()}
    if text is None:
        return None
    choices = {name: each for name, each in plan.calls[CHOICES].items() if each["key"] in held}
    return canonical({"text": text, **plan.calls, CHOICES: choices}) + b"\n"


def _constant(emitted: Emitted) -> Callable[[], Emitted]:
    return lambda: emitted


def what_is(invocation: Invocation, extents: dict[str, int]) -> str:
    """Return a call's variant in words: sizes, dtypes, optional inputs, statics, the share of a rank."""
    v = invocation.variant
    sizes = " ".join(f"{name}={size}" for name, size in sorted(extents.items()))
    types = " ".join(sorted({str(dtype) for _, dtype in v.dtypes}))
    given = ", ".join(sorted(v.present))
    statics = ", ".join(f"{name}={value!r}" for name, value in v.statics)
    wanted = "for " + ", ".join(sorted(v.wanted)) if v.wanted else ""
    axis, ranks = invocation.shard
    share = f"{axis} over {ranks} ranks" if ranks > 1 else ""
    return "; ".join(
        part
        for part in (f"{label_of(invocation.spec)} {sizes}", types, given, statics, wanted, share)
        if part
    )


def _written(plan: Plan, toolchain: tuple[tuple[str, str], ...], out: Path) -> Built:
    """Wait for the compilers and write the wheel."""
    files: dict[str, bytes] = {"__init__.py": INIT.encode()}
    failures: list[RlkError] = []
    for name, (key, started) in sorted(plan.wanted.items()):
        try:
            files |= dict(_entry(name, key, started.result()))
        except RlkError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    head: dict[str, Json] = {
        "format": FORMAT,
        "abi": ABI,
        "target": plan.on.name,
        "backend": plan.backend,
        "rlk": __version__,
        "toolchain": dict(toolchain),
        "flags": [list(flag) for flag in Env.current().toolchain],
        "entries": len(plan.wanted),
    }
    calls = _calls(plan)
    if calls is not None:
        files[CALLS] = calls
        head["calls"] = {"bytes": len(calls), "sha256": digest_bytes(calls)}
    files[HEAD] = canonical(head) + b"\n"
    path = write_wheel(_facts(plan), files, out)
    return Built(path, len(plan.wanted), tuple(f"{name}: {why}" for name, why in sorted(plan.left.items())))


def _entry(name: str, key: dict[str, Json], folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an entry of the store that a launch needs, with a manifest of their own."""
    record = ModuleRecord.read(folder)
    names = [MODULE, LAUNCH, *(kernel.file for kernel in record.kernels)]
    held = {each: (folder / each).read_bytes() for each in sorted(names)}
    files = tuple(File(each, len(data), digest_bytes(data)) for each, data in held.items())
    place = f"{ENTRIES}/{str(key['program'])[:2]}/{key['program']}/{name}"
    for each, data in held.items():
        yield f"{place}/{each}", data
    yield f"{place}/manifest.json", Manifest(key, str(key["op"]), files).encode()


def _facts(plan: Plan) -> Facts:
    """Return the metadata of a wheel: device code runs under any host, code of the host under this one."""
    support = of_name(plan.backend).wheels
    assert support is not None  # `checked` saw to it
    requires, tag = [f"rlk>={__version__}", *support.requires], "py3-none-any"
    if support.host_code:
        tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    summary = f"Kernels of rlk for {plan.on.name}, compiled ahead by {plan.backend}"
    name = wheel_name(plan.on, plan.backend, plan.name)
    return Facts(name, plan.version, summary, tuple(requires), tag)
