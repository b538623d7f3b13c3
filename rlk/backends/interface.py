"""The interface of a backend: its name and targets, what it can do, and the functions that do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from rlk.ir.nodes import Program
from rlk.lower.common.emitted import Emitted, LoweringOptions, Signature
from rlk.resources import templates
from rlk.runtime.launch.record import LaunchRecord
from rlk.schedule.schedule import Schedule
from rlk.target.facts import Target

Schedules = tuple[Schedule, ...]
Toolchain = tuple[tuple[str, str], ...]
"""Tools and their versions, as they stand in keys."""
Launcher = Callable[..., None]
"""`launch(grid, *arguments)` of one kernel, on its device's current stream."""
Simulated = AbstractContextManager[tuple[Callable[..., None], Any]]
"""Entered, it gives a module's host function, and by name the kernels that this one launches."""


class ToolError(Exception):
    """A tool that a backend compiles with is missing or refuses; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A program with its sizes bound, for which a backend gives schedules.

    program: as it is launched: pieces side by side, or one after the other in loops of the host function.
    chosen: its schedules by heuristics, one for each kernel. whole: returns the same program without loops of
    the host function, for a lowering whose blocks loop over the pieces. target, extents: of the call.
    """

    program: Program
    chosen: Schedules
    whole: Callable[[], Program]
    target: Target
    extents: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form of a bound program that a backend can run.

    schedules: returns one for each kernel by heuristics; raises UnsupportedError where there are none.
    by_default: whether it runs without schedules of the user's or the tuner's that are for it.
    """

    program: Program
    schedules: Callable[[], Schedules]
    by_default: bool = True


def lowering_sources(name: str) -> tuple[Path, ...]:
    """Return the text that decides what one of rlk's own lowerings writes."""
    lowerings = Path(__file__).resolve().parent.parent / "lower"
    return lowerings / "common", lowerings / name, templates() / name


def as_launched(bound: Bound) -> Iterator[Candidate]:
    """Yield the program that is launched, with the schedules that heuristics choose: the default."""
    yield Candidate(bound.program, lambda: bound.chosen)


class Lower(Protocol):
    """Writes the source of a program; raises UnsupportedError for a program that it does not support.

    options: the backend's own; given only by `Backend.checked_in_options`.
    """

    def __call__(
        self, program: Program, schedules: Schedules, target: Target, signature: Signature, *,
        numerics_id: str = ..., options: LoweringOptions | None = ...,
    ) -> Emitted: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wheels:
    """The needs of wheels of a backend's kernels.

    targets: for which there are wheels; on these it stands in for other backends, and they for it. requires:
    requirements of the wheel's metadata beside rlk. host_code: whether the binaries hold code of the host, so
    that a wheel is for one platform. unbuildable, unloadable: say why no wheel can be built, or why kernels
    of a wheel cannot be loaded by this installation; None where they can.
    """

    targets: frozenset[str]
    requires: tuple[str, ...] = ()
    host_code: bool = False
    unbuildable: Callable[[], str | None] = lambda: None
    unloadable: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Backend:
    """One way from a canonical program to kernels.

    Its law: for every program that it accepts it has the oracle's bits, under the numerics id of the program.

    name: lower-case letters, digits and `_`; the value of RLK_BACKEND, and part of keys.
    targets: names of the targets that it compiles for.
    sources: files and folders whose text decides what it writes and compiles; digested into keys.
    packages: distributions that its compiler consists of. install: returns the command that installs them.
    toolchain: of a target's name, the versions that decide a kernel's bytes; None where a package is missing.
    ready: whether kernels can be compiled here, as far as that does not depend on a target.

    candidates: the forms of a bound program that it can run, the fastest first.
    lower: (program, schedules, target, signature, numerics_id=) -> Emitted, whose `backend` is `name`.
    compile: (emitted, target, folder): writes module.py, binaries and launch.json to a folder. It runs in a
    process that sees no device and imports the function by name: it must lie at the top of a module.
    load: (folder, records, kind, device) -> the launcher of each kernel, by name. kind: whose driver, "cuda",
    "hip" or the target's vendor.

    complete: whether it lowers every program: it runs what others refuse. falls_back: whether the complete
    backend runs what it refuses when it is asked for by name; else that is an error. faster: (program,
    target, extents) -> whether it is asked before the complete backend, where the user names none.
    cpu: the target as which it runs calls on CPU tensors where RLK_BACKEND names it; None: the oracle does.
    choosing: returns the versions beside rlk's own text that decide what it writes; with them the choice of a
    call is kept in the store. None: it is not kept.
    wheels: None where its kernels are not shipped. checked_in: targets for which its kernels are in
    generated/; checked_in_options: returns options of `lower` for these, so that their text does not depend
    on what is installed.
    table: returns the module of its table of measured tiles, which `rlk tune` proposes entries for.

    simulate: (emitted, target, order of waves) -> what runs a module on the CPU with a device's bits.
    unsimulated: (target) -> why `simulate` cannot run here for a target; None where it can.
    simulator_schedules: schedules for that where none are given: of small tiles.
    interpret: (emitted, module as an interpreter gives it) -> the launchers of its kernels, by name.
    """

    name: str
    targets: frozenset[str]
    sources: tuple[Path, ...]
    install: Callable[[], str]
    toolchain: Callable[[str], Toolchain | None]
    lower: Lower
    compile: Callable[[Emitted, str, Path], None]
    load: Callable[[Path, tuple[LaunchRecord, ...], str, int], dict[str, Launcher]]
    candidates: Callable[[Bound], Iterator[Candidate]] = as_launched
    packages: tuple[str, ...] = ()
    ready: Callable[[], bool] = lambda: True
    complete: bool = False
    falls_back: bool = False
    faster: Callable[[Program, Target, Mapping[str, int]], bool] | None = None
    cpu: Target | None = None
    choosing: Callable[[], Toolchain] | None = None
    wheels: Wheels | None = None
    checked_in: tuple[str, ...] = ()
    checked_in_options: Callable[[], LoweringOptions] | None = None
    table: Callable[[], ModuleType] | None = None
    simulate: Callable[[Emitted, Target, int], Simulated] | None = None
    unsimulated: Callable[[str], str | None] = lambda target: None
    simulator_schedules: Callable[[Bound], Schedules] = lambda bound: bound.chosen
    interpret: Callable[[Emitted, Any], dict[str, Launcher]] | None = None

    def program_of(self, bound: Bound, schedules: Schedules) -> Program:
        """Return the form that given schedules are for, one for each of its kernels."""
        forms = (each.program for each in self.candidates(bound))
        return next((form for form in forms if len(form.kernels) == len(schedules)), bound.program)

    def available(self, target: str) -> bool:
        """Return whether kernels for a target can be compiled here."""
        return target in self.targets and self.toolchain(target) is not None and self.ready()

    @property
    def compiler(self) -> str:
        """The place of `compile` for a compile process: "module:function"."""
        return f"{self.compile.__module__}:{self.compile.__qualname__}"
