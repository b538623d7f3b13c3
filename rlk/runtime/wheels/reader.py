"""Installed wheels of kernels: their contents, whether they may be used, and where a kernel lies.

A wheel is found by its entry point in the group "rlk.aot", and never imported. Its package is data:
wheel.json and, below entries/, a folder for each kernel, in the form of the store's entries, named after what
it computes. calls.json is rlk.runtime.wheels.wheel_metadata's.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rlk.backends import registry
from rlk.cache.manifest import BadEntry, File, Manifest, decode_manifest, read_plain
from rlk.cache.trust import Trust
from rlk.digest import digest
from rlk.env import Env
from rlk.ir.nodes import Program
from rlk.ir.text import print_program
from rlk.lower.common.emitted import Signature
from rlk.runtime.launch.record import ABI
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

FORMAT = 1
GROUP = "rlk.aot"
HEAD = "wheel.json"
CALLS = "calls.json"
ENTRIES = "entries"
LARGEST_HEAD = 1 << 20
LARGEST_CALLS = 1 << 26


@dataclass(frozen=True, slots=True)
class Wheel:
    """An installed wheel of kernels: its name, version and package's folder, what its two files say."""

    name: str
    version: str
    folder: Path
    head: tuple[tuple[str, Any], ...]
    calls: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The wheel as people name it."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry of a wheel: its folder, and the members of its key."""

    wheel: Wheel
    folder: Path
    key: dict[str, Any]
    manifest: Manifest


OWN_NAME = "rlk_aot"
"""How the names of rlk's own wheels begin."""


def wheel_name(on: Target, backend: str, name: str = OWN_NAME) -> str:
    """Return the name of a wheel for a target and a backend: rlk's own, or that of another package."""
    return f"{name}_{on.folder}_{backend}"


def program_key(
    backend: str, on: Target, program: Program, schedules: tuple[Schedule, ...], plain: Signature
) -> str:
    """Return the name of what a kernel computes and how: text of another emitter or compiler has it too.

    plain: what a call's arguments fix, but for what is divisible.
    """
    fixed = [plain.extents, plain.split_rows, sorted(plain.strided)]
    return digest([FORMAT, backend, on.name, print_program(program), [str(s) for s in schedules], fixed])[:32]


@cache
def installed(on: Target, backend: str) -> tuple[tuple[Wheel, ...], tuple[str, ...]]:
    """Return the installed wheels of a target and backend that may be used, and why others may not."""
    name = wheel_name(on, backend)
    try:
        found = [metadata.distribution(name)]
    except metadata.PackageNotFoundError:
        return (), ()
    return _judged(found, on, backend)


@cache
def others(on: Target, backend: str) -> tuple[tuple[Wheel, ...], tuple[str, ...]]:
    """Return wheels of other names, which takes a walk over everything that is installed."""
    own = wheel_name(on, backend)
    found = [
        each
        for each in metadata.distributions()
        if any(e.group == GROUP for e in each.entry_points) and each.name.replace("-", "_") != own
    ]
    return _judged(found, on, backend, quiet=True)


def _judged(
    found: list[metadata.Distribution], on: Target, backend: str, *, quiet: bool = False
) -> tuple[tuple[Wheel, ...], tuple[str, ...]]:
    """Split distributions into wheels and reasons; quiet: those of another target or backend are no news."""
    wheels: list[Wheel] = []
    reasons: list[str] = []
    for each in found:
        for point in each.entry_points:
            if point.group != GROUP:
                continue
            folder = Path(str(each.locate_file(point.value.replace(".", "/"))))
            try:
                wheel = Wheel(each.name, each.version, folder, tuple(read_head(folder).items()))
            except BadEntry as error:
                reasons.append(f"{each.name} {each.version}: {error}")
                continue
            why = _refusal(wheel, on, backend)
            if why is None:
                try:
                    wheel = replace(wheel, calls=_read_calls(wheel))
                except BadEntry as error:
                    reasons.append(f"{wheel.label}: {error}")
                wheels.append(wheel)
            elif not (quiet and why.startswith("it is for ")):
                reasons.append(f"{wheel.label}: {why}")
    return tuple(wheels), tuple(reasons)


@cache
def trusted() -> Trust:
    """Return whose wheels are believed: who can write rlk's own code can run code here anyway."""
    return Trust.like(Path(__file__).resolve().parents[2])


def _check_folder(place: Path) -> None:
    """Raise BadEntry for what is not a directory, or one that other users could have written."""
    try:
        status = os.lstat(place)
    except OSError as error:
        raise BadEntry(f"{place.name} cannot be read: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise BadEntry(f"{place.name} is not a directory")
    problem = trusted().problem(status)
    if problem is not None:
        advice = f"; run: chmod -R go-w '{place}'" if "written" in problem else ""
        raise BadEntry(f"{place.name} {problem}{advice}")


def read_head(folder: Path) -> dict[str, Any]:
    """Return what wheel.json says; raise BadEntry where it cannot be read or may be another user's."""
    for place in (folder, folder / ENTRIES):
        _check_folder(place)
    try:
        members = json.loads(read_plain(folder / HEAD, LARGEST_HEAD, trusted()))
    except (OSError, ValueError, RecursionError) as error:
        raise BadEntry(f"{HEAD} cannot be read: {error}") from None
    if not isinstance(members, dict) or members.get("format") != FORMAT:
        what = members.get("format") if isinstance(members, dict) else "unknown"
        raise BadEntry(f"its format is {what}, this rlk reads {FORMAT}")
    return members


def _refusal(wheel: Wheel, on: Target, backend: str) -> str | None:
    head = dict(wheel.head)
    if (head.get("target"), head.get("backend")) != (on.name, backend):
        return f"it is for {head.get('backend')} on {head.get('target')}, not for {backend} on {on.name}"
    if head.get("abi") != ABI:
        return f"its kernels are launched as {head.get('abi')}, this rlk launches {ABI}"
    support = registry.of_name(backend).wheels
    missing = None if support is None else support.unloadable()
    if missing is not None:
        return missing
    flags = [list(flag) for flag in Env.current().toolchain]
    if head.get("flags") != flags:
        return (
            f"it was built with {head.get('flags') or 'no'} variables of compilers, here: {flags or 'none'}"
        )
    return None


def _read_calls(wheel: Wheel) -> dict[str, Any]:
    """Return what calls.json says; raise BadEntry where it may be another user's, or is not whole."""
    said = dict(wheel.head).get("calls")
    if said is None:
        return {}
    try:
        if said["bytes"] > LARGEST_CALLS:
            raise ValueError(f"{said['bytes']} bytes")
        manifest = Manifest(None, CALLS, (File(CALLS, said["bytes"], said["sha256"]),))
        manifest.check_sizes(wheel.folder, trusted())
        manifest.check_content(wheel.folder)
        members: dict[str, Any] = json.loads((wheel.folder / CALLS).read_bytes())
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadEntry(f"{CALLS} cannot be read: {error}") from None
    return members


def kernels(wheel: Wheel, key: str) -> Iterator[Kernel | str]:
    """Yield the entries of a wheel that compute what a key names, or why one of them cannot be used."""
    yield from _below(wheel, wheel.folder / ENTRIES / key[:2] / key)


def every_kernel(wheel: Wheel) -> Iterator[Kernel | str]:
    """Yield all entries of a wheel, or why they cannot be used."""
    for shard in _listing(wheel.folder / ENTRIES):
        for each in _listing(shard):
            yield from _below(wheel, each)


def _below(wheel: Wheel, place: Path) -> Iterator[Kernel | str]:
    for folder in _listing(place):
        try:
            for each in (place.parent, place, folder):
                _check_folder(each)
            manifest = decode_manifest(folder, folder.name, trusted())
            manifest.check_sizes(folder, trusted())
            if not isinstance(manifest.key, dict):
                raise BadEntry("its key is no object")
            if manifest.key.get("program") != place.name:
                raise BadEntry("it lies in the folder of another program")
            divisible = manifest.key.get("divisible")
            if not isinstance(divisible, list) or not all(isinstance(each, str) for each in divisible):
                raise BadEntry("its key does not say what has to be divisible")
        except (BadEntry, OSError) as error:
            yield f"{wheel.label}: entry {folder.name[:12]}: {error}"
            continue
        yield Kernel(wheel, folder, manifest.key, manifest)


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


_hashed: set[Path] = set()


def sound(kernel: Kernel) -> str | None:
    """Hash an entry's files at its first use in this process; say what is wrong, or None."""
    if kernel.folder in _hashed:
        return None
    try:
        kernel.manifest.check_content(kernel.folder)
    except (BadEntry, OSError) as error:
        return f"{kernel.wheel.label}: entry {kernel.folder.name[:12]}: {error}"
    _hashed.add(kernel.folder)
    return None


_forgetting: list[Callable[[], None]] = []


def forgets(forget: Callable[[], None]) -> None:
    """Call `forget` whenever what is known of installed wheels becomes stale."""
    _forgetting.append(forget)


def forget() -> None:
    """Look for installed wheels again at the next call."""
    for each in _forgetting:
        each()
    installed.cache_clear()
    others.cache_clear()
    trusted.cache_clear()
    _hashed.clear()
