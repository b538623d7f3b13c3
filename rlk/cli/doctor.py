"""Say what rlk finds on this machine: versions, devices, the kernel store, and what the arithmetic does."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from rlk import __version__
from rlk.backends.interface import Backend
from rlk.backends.registry import complete, in_wheels, installed, registered
from rlk.cache import Reader, Store
from rlk.cli.places import unusable
from rlk.cli.text import Progress, fields, size
from rlk.env import Env
from rlk.errors import Code, LaunchError, RlkError
from rlk.ir.dotmodel import DotModel, validated
from rlk.runtime.binding.invocation import target_of
from rlk.runtime.call.dispatch import backends_of
from rlk.runtime.kernels import probes
from rlk.runtime.kernels.probes import Place
from rlk.runtime.reference import TARGETS
from rlk.runtime.wheels import reader
from rlk.target.facts import TARGETS as KNOWN
from rlk.target.facts import Target
from rlk.terminal import printable
from rlk.testing import probe_dot

PACKAGES = ("torch", "numpy", "numba", "jinja2")
EXP2_ARGUMENTS = 10**7
DOT_OUTPUTS = 10**6
Lines = list[tuple[str, object]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk doctor`."""
    parser.add_argument(
        "--device", metavar="cuda:0", help="which device to probe; default: the first, if any"
    )
    parser.add_argument(
        "--probe-exp2",
        action="store_true",
        help=f"compare the device's exp2 with the model of sm_90 on {EXP2_ARGUMENTS:,} arguments",
    )
    parser.add_argument(
        "--probe-dot",
        action="store_true",
        help=f"compare {DOT_OUTPUTS:,} dots of bf16, f16 and f32 each with their models",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print all findings; return 1 if one of them breaks a promise of bits."""
    where = _device(arguments.device)
    wrong: list[str] = []
    _section("versions", _versions())
    _section("compilers", _compilers())
    _section("devices", _devices())
    _section("kernel store", _store(wrong))
    _section("arithmetic", _arithmetic(where, arguments, wrong))
    for problem in wrong:
        print(f"WRONG  {problem}")
    print(f"{len(wrong)} problems" if wrong else "no problem found")
    return 1 if wrong else 0


def _section(title: str, lines: Lines) -> None:
    print(f"{title}\n{fields(lines)}\n")


def _device(name: str | None) -> torch.device | None:
    """Return the device to probe, None where there is none; raise LaunchError if the named one is missing."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name is None:
        return torch.device("cuda", 0) if count else None
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu":
        return None
    if device.type != "cuda" or (device.index or 0) >= count:
        there = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
        raise LaunchError(
            Code.ARG_VALUE, op="rlk doctor", name="--device", value=name, wanted=f"one of {there}"
        )
    return torch.device("cuda", device.index or 0)


def _versions() -> Lines:
    lines: Lines = [("rlk", __version__), ("python", f"{platform.python_version()} on {platform.machine()}")]
    return lines + [(name, _version(name)) for name in PACKAGES]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _compilers() -> Lines:
    """Return the packages that compile kernels, and for which targets each backend has what it needs."""
    packages = dict.fromkeys(name for each in registered() for name in each.packages)
    lines: Lines = [(name, _version(name)) for name in packages]
    ready = {b.name: [on.name for on in KNOWN.values() if _compiles(b, on)] for b in registered()}
    said = [f"{backend} for {', '.join(names)}" for backend, names in ready.items() if names]
    others = [f"{name} ({value}): RLK_BACKEND={name} asks for it" for name, value in installed().items()]
    none = f"none can be compiled here: {complete().install()}, or install a wheel of kernels"
    lines.append(("GPU kernels", "\n".join(said) or none))
    return [*lines, *([("other backends", "\n".join(others))] if others else [])]


def _compiles(by: Backend, on: Target) -> bool:
    return by in in_wheels(on) and by.available(on.name)


def _devices() -> Lines:
    lines: Lines = [("cpu", "the oracle: exact bits, not fast")]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.device("cuda", index)
        try:
            on = target_of(device)
            target = on.name if on is not None else "?"
        except RlkError as error:
            target = f"unsupported: {error}"
        memory = size(torch.cuda.get_device_properties(device).total_memory)
        lines.append((f"cuda:{index}", f"{torch.cuda.get_device_name(device)}, {memory}, target {target}"))
    if len(lines) == 1:
        lines.append(("gpu", "none found by torch"))
    return lines


def _store(wrong: list[str]) -> Lines:
    env = Env.current()
    store = Store(env.cache_dir, limit=env.cache_limit)
    entries = store.entries()
    used = size(sum(e.size for e in entries))
    lines: Lines = [("place", store.root), ("entries", f"{len(entries)}, {used} of {size(env.cache_limit)}")]
    if store.root != env.cache_dir:
        wrong.append(f"the store {env.cache_dir} cannot be used: kernels are compiled anew in every process")
    health = "usable" if store.root == env.cache_dir else f"refused: {env.cache_dir}"
    lines.append(("health", f"{health}; rlk cache verify hashes every file"))
    lines += _closed("the store", unusable(env.cache_dir, filled=True), wrong)
    if env.system_cache is not None:
        refused = Reader(env.system_cache).problem
        lines.append(("system cache", f"{env.system_cache}{f': {refused}' if refused else ''}"))
        lines += _closed("the system cache", unusable(env.system_cache, filled=False), wrong)
    return [*lines, *_wheels()]


def _closed(what: str, reasons: list[str], wrong: list[str]) -> Lines:
    """Return the folders of a store that are of no use, as a problem where there are any."""
    if reasons:
        wrong.append(f"{what} has folders that are of no use to this user: its owner can open them by chmod")
    return [("not usable", printable(why)) for why in reasons]


def _wheels() -> Lines:
    """Return the installed wheels of kernels, and why those that are refused are."""
    pairs = [(on, backend) for on in KNOWN.values() for backend in backends_of(on)]
    found = [reader.installed(*pair) for pair in pairs]
    held = [w.label for each, _ in found for w in each]
    refused = [why for _, reasons in found for why in reasons]
    return [("wheel", printable(label)) for label in held] + [
        ("refused wheel", printable(why)) for why in refused
    ]


def _arithmetic(where: torch.device | None, asked: argparse.Namespace, wrong: list[str]) -> Lines:
    lines: Lines = [("NumPy subnormals", _subnormals("NumPy", probes.numpy_flushes(), wrong))]
    on = None if where is None else target_of(where)
    place = probes.interpreter() if where is None or on is None else _place(where, on)
    if place is None:
        return [*lines, ("compiled kernels", "not probed, which needs triton")]
    found: Lines = [
        ("a * b + c", _tried(place.name, lambda: f"{_fusion(place, wrong)} ({place.name})", wrong)),
        ("subnormals", _tried(place.name, lambda: f"{_flushing(place, wrong)} ({place.name})", wrong)),
    ]
    if on is None:
        found += [(f"for {name}", _tried(name, partial(_compiled, name, wrong), wrong)) for name in TARGETS]
        found.append(
            ("GPU", "not probed: no device here; the lines above read what is compiled, not what runs")
        )
    found.append(("exp2", _tried(place.name, lambda: _exp2(place, on, asked.probe_exp2, wrong), wrong)))
    found.append(("dots", _tried(place.name, lambda: _dots(place, on, asked.probe_dot, wrong), wrong)))
    return lines + found


def _tried(what: str, probe: Callable[[], str], wrong: list[str]) -> str:
    """Return what a probe says; that it cannot run is a finding too, and others are tried all the same."""
    try:
        return probe()
    except Exception as error:  # whatever a Triton that rlk does not know raises, or its compiler
        (reason, *_) = [*str(error).splitlines(), type(error).__name__]
        problem = f"kernels do not {'compile for' if what in TARGETS else 'run on'} {what}"
        if not any(each.startswith(problem) for each in wrong):
            wrong.append(f"{problem}: {reason}")
        return "not probed: it cannot run"


def _fusion(place: Place, wrong: list[str]) -> str:
    fused = probes.fuses(place)
    if fused:
        wrong.append(f"{place.name} fuses a * b + c: its bits are not the IR's")
    return "fused" if fused else "two roundings, as the IR says"


def _flushing(place: Place, wrong: list[str]) -> str:
    return _subnormals(place.name, probes.flushes(place), wrong)


def _compiled(name: str, wrong: list[str]) -> str:
    """Say what the compiled text of a * b + c does on a target that is not here."""
    found = probes.assembly(name)
    if found.fuses or found.flushes:
        wrong.append(f"code compiled for {name} fuses a * b + c or flushes subnormals")
    fused = "fused" if found.fuses else "two roundings"
    return f"{fused}, subnormals {'flushed to 0' if found.flushes else 'kept'} (compiled text)"


def _place(where: torch.device, on: Target) -> Place:
    return probes.device(where.index or 0, on.name, "hip" if on.vendor == "amd" else "cuda")


def _subnormals(name: str, flushed: bool, wrong: list[str]) -> str:
    if flushed:
        wrong.append(f"{name} flushes subnormals to 0: its bits are not the IR's")
    return "flushed to 0" if flushed else "kept"


def _exp2(place: Place, on: Target | None, asked: bool, wrong: list[str]) -> str:
    """Compare the device's exp2 with the model, where that was asked for and says something."""
    if on is None:
        return "not probed: the interpreter's exp2 is the model itself; a GPU of sm_90 is needed"
    if not asked:
        return "not probed: add --probe-exp2"
    progress = Progress(EXP2_ARGUMENTS)

    def say(done: int) -> None:
        progress.done = min(done, EXP2_ARGUMENTS)
        progress.say("exp2")

    found = probes.probe_exp2(place, EXP2_ARGUMENTS, say)
    progress.clear()
    text = f"{found.differing:,} of {found.compared:,} results differ from the model of sm_90"
    if not found.differing:
        return text
    if on.name == "sm_90a":
        wrong.append(f"exp2 of {place.name} differs from its model, first at {found.first!r}")
        return text
    return f"{text}; {on.name} uses the portable exp2, so this is no problem"


def _dots(place: Place, on: Target | None, asked: bool, wrong: list[str]) -> str:
    """Compare the device's matrix units with the dot models, where that was asked for and says something."""
    if on is None:
        return "not probed: the interpreter's dots are the models themselves; a GPU of sm_90 is needed"
    if not asked:
        return "not probed: add --probe-dot"
    text: list[str] = []
    for kind in ("bf16", "f16", "f32"):
        progress = Progress(DOT_OUTPUTS)

        def say(done: int, kind: str = kind, progress: Progress = progress) -> None:
            progress.done = min(done, DOT_OUTPUTS)
            progress.say(f"dots of {kind}")

        found = probe_dot.probe(place, kind, DOT_OUTPUTS, say=say)
        progress.clear()
        first, *details = probe_dot.describe(found)
        text += [f"{kind}: {first}", *details]
        if found.wrong and kind != "f32" and DotModel.CHAIN16 in validated(on.name):
            wrong.append(f"{kind} dots of {place.name} differ from chain16: {found.examples[0]}")
    return "\n".join(text)
