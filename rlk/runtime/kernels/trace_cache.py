"""The trace cache: results of tracing and choosing, kept in the store for later processes.

A process that finds it neither traces nor lowers. An entry's key has a digest of all of rlk's own text, so
that nothing outlives the code that found it out; of operators that others wrote, what names a call digests
everything that their specs read (`rlk.lang.reads`), and nothing is kept where that cannot be followed.
Whatever fails here, a call finds out for itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from rlk.backends.registry import changes, of_name, registered
from rlk.cache import CALLS, CacheKey
from rlk.digest import STARTED, changed_after, digest, digest_sources
from rlk.env import Env
from rlk.errors import RlkError
from rlk.ir.nodes import Block, Decl, Kernel, MathModel, Program, Role
from rlk.ir.text import parse_program, print_program
from rlk.ir.types import DType, TileType
from rlk.lang.op import Vjp
from rlk.lang.reads import digest_of
from rlk.lower.common.emitted import CallArg
from rlk.resources import templates
from rlk.runtime.binding.guards import Choice
from rlk.runtime.binding.invocation import Interface, Invocation, operator_of
from rlk.runtime.binding.shape_buckets import Sizes
from rlk.runtime.kernels import build
from rlk.runtime.kernels.build import kernel_key, stored
from rlk.runtime.launch.record import ABI, read_call, write_call
from rlk.schedule.user_table import Entries
from rlk.target.facts import Target

logger = logging.getLogger("rlk.cache")
FILE = "found.json"
PACKAGE = Path(__file__).resolve().parents[2]
UNREADABLE = (OSError, ValueError, TypeError, KeyError, AttributeError, RlkError)
Found = TypeVar("Found")


def outline(program: Program) -> Program:
    """Return a program without what its kernels do: their parameters, and the order of launches."""
    kernels = tuple(Kernel(k.name, k.params, Block((), (), ())) for k in program.kernels)
    return Program(program.name, kernels, program.launches)


# --- what names a call in every process ---


def name_of(invocation: Invocation) -> list[Any] | None:
    """Return what names an invocation in every process; None where its spec reads what cannot be followed."""
    spec, op, variant = invocation.spec, operator_of(invocation.spec), invocation.variant
    reads, statics = spec.reads(), sorted([name, repr(value)] for name, value in variant.statics)
    if reads is None:
        return None
    if reads:  # a static of others may be any object, and its repr that of another
        held = digest_of(variant.statics)
        if held is None:
            return None
        statics = [["", held]]
    return [
        "gradient" if isinstance(spec, Vjp) else "operator",
        spec.name,
        op.does,
        reads,
        sorted([name, str(dtype)] for name, dtype in variant.dtypes),
        sorted(variant.present),
        statics,
        sorted(variant.wanted),
        None if invocation.math is None else invocation.math.value,
        invocation.shard,
        sorted(invocation.into),
        sorted(invocation.unstored),
    ]


@cache
def own_text() -> str | None:
    """Return a digest of rlk's own text; None where it was changed after this process began to read it."""
    every = sorted(PACKAGE.iterdir())  # but for what an installed package has inside and a checkout beside it
    own = (p for p in every if p.is_file() or (p / "__init__.py").is_file())
    found = digest_sources([*own, templates()])
    if _changed():
        logger.debug("rlk's text was changed since this process began: nothing is kept of calls")
        return None
    return found


def _changed() -> bool:
    return changed_after([PACKAGE, templates()], STARTED)


@cache
def _tools() -> tuple[tuple[str, str], ...]:
    """Return what beside rlk's text decides what it lowers to, by the backends whose choices are kept."""
    return tuple(tool for each in registered() if each.choosing is not None for tool in each.choosing())


changes(_tools.cache_clear)


def _key(what: str, on: Target, facts: list[Any]) -> CacheKey | None:
    text = own_text()
    if text is None:
        return None
    return CacheKey(
        ir=digest([what, facts]),
        schedule=None,
        target=on.name,
        backend=CALLS,
        emitter=text,
        toolchain=_tools(),
        flags=Env.current().toolchain,
        abi=ABI,
    )


# --- entries of the store ---


def cached(
    what: str,
    on: Target,
    facts: list[Any],
    make: Callable[[], Found],
    write: Callable[[Found], dict[str, Any]],
    read: Callable[[dict[str, Any]], Found],
) -> Found:
    """Return what an earlier process kept under this name and these facts; else make it, and keep it.

    It is kept in the background: a call waits for no disk.
    """
    try:
        key = _key(what, on, facts)
        place = None if key is None else stored(key)
        if place is not None:
            return read(json.loads((place[0] / FILE).read_bytes()))
    except UNREADABLE as error:
        logger.debug("what is kept of %s cannot be read: %s", facts[0][1], error)
        return make()
    found = make()
    if key is not None:
        try:
            text = json.dumps(write(found))
            if read(json.loads(text)) == found:
                build.pool().submit(partial(_put, key, text, f"a call of {facts[0][1]}"))
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RlkError) as error:
            logger.debug("what was found of %s is not kept: %s", facts[0][1], error)
    return found


def _put(key: CacheKey, text: str, label: str) -> None:
    if not _changed():  # what was found out may have read some of rlk's text only now

        def write(folder: Path) -> None:
            (folder / FILE).write_text(text)

        build.store().offer(key, write, label=label)


def known_interface(invocation: Invocation, on: Target, make: Callable[[], Interface]) -> Interface:
    """Return an invocation's interface: as an earlier process found it, or made now and kept."""
    name = name_of(invocation)
    if name is None:
        return make()

    write = partial(write_interface, invocation.spec.name)
    return cached("interface", on, [name], make, write, read_interface)


def write_interface(name: str, found: Interface) -> dict[str, Any]:
    """Return the interface of a spec of this name as JSON has it."""
    sized = (Decl("sized", TileType(DType.I32, found.sized), Role.WORK),) if found.sized else ()
    kernel = Kernel(name, (*found.inputs, *found.outputs, *sized), Block((), (), ()))
    text = print_program(Program(name, (kernel,)))
    dynamic = sorted(found.dynamic)
    rest = {"one_stride": found.one_stride, "in_place": sorted(found.in_place)}
    return {"program": text, "dynamic": dynamic, "pieces": found.pieces, **rest}


def read_interface(kept: dict[str, Any]) -> Interface:
    """Read back what `write_interface` wrote."""
    (kernel,) = parse_program(kept["program"]).kernels
    return Interface(
        tuple(d for d in kernel.params if d.role in (Role.IN, Role.SCALAR)),
        tuple(d for d in kernel.params if d.role is Role.OUT),
        frozenset(kept["dynamic"]),
        tuple((axis, tuple(sizes)) for axis, sizes in kept["pieces"]),
        bool(kept["one_stride"]),
        tuple(a for d in kernel.params if d.role is Role.WORK for a in d.type.axes),
        frozenset(kept["in_place"]),
    )


@dataclass(frozen=True, slots=True)
class Outline:
    """The launches of calls of the same sizes, for any lowering: its kernels without their bodies.

    call: what the host passes.
    """

    program: Program
    call: tuple[CallArg, ...]


def known_outline(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, make: Callable[[], Outline]
) -> Outline:
    """Return the outline of calls of these sizes: as an earlier process found it, or made now and kept."""
    name = name_of(invocation)
    if name is None:
        return make()

    def write(found: Outline) -> dict[str, Any]:
        return {"program": print_program(found.program), "call": write_call(found.call)}

    def read(kept: dict[str, Any]) -> Outline:
        return Outline(parse_program(kept["program"]), read_call(kept["call"]))

    return cached("outline", on, [name, model.value, of_sizes(sizes)], make, write, read)


def of_sizes(sizes: Sizes) -> list[Any]:
    """Return what names sizes, beside what names an invocation."""
    return [sizes.static, sizes.extents, sizes.split, sorted(sizes.strided)]


def known_choice(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, asked: tuple[str, ...],
    entries: Entries, number: int, make: Callable[[], Choice],
) -> Choice:  # fmt: skip
    """Return a choice of code by its number: as an earlier process made it, or made now and kept.

    sizes: of which the classes of dynamic extents are not read.
    """
    name = name_of(invocation)
    if name is None or any(of_name(each).choosing is None for each in asked):
        return make()

    def write(found: Choice) -> dict[str, Any]:
        return {"steps": found.steps, "extents": found.extents}

    def read(kept: dict[str, Any]) -> Choice:
        steps = ((str(operation), a, b) for operation, a, b in kept["steps"])
        return Choice(tuple(steps), tuple((str(axis), int(size)) for axis, size in kept["extents"]))

    axes = [axis for axis, _ in sizes.extents]
    known = [name, model.value, [sizes.static, axes, sizes.split, sorted(sizes.strided)]]
    told = [entry.facts for entry in entries]
    return cached("choice", on, [*known, asked, told, number], make, write, read)


@dataclass(frozen=True, slots=True)
class Compiled:
    """The store entry that a call runs, and its launches: kernels without their bodies.

    ir, schedules: of the entry's key. file: the pseudo path of its source.
    """

    backend: str
    ir: str
    schedules: tuple[str, ...]
    program: Program
    file: str

    def key(self, on: Target) -> CacheKey:
        """Return the key of the entry; raise UnsupportedError where its compiler is not installed."""
        return kernel_key(self.backend, self.ir, list(self.schedules), on.name)


def known_code(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, asked: tuple[str, ...],
    aligned: frozenset[str], entries: Entries, make: Callable[[], Compiled],
) -> Compiled:  # fmt: skip
    """Return what calls run that have these parameters aligned: as it was found before, or made and kept.

    entries: of the user's table of schedules, for the operator: they decide what is found.
    """
    name = name_of(invocation)
    if name is None or any(of_name(each).choosing is None for each in asked):
        return make()

    def write(found: Compiled) -> dict[str, Any]:
        return {
            "backend": found.backend,
            "ir": found.ir,
            "schedules": found.schedules,
            "program": print_program(found.program),
            "file": found.file,
        }

    def read(kept: dict[str, Any]) -> Compiled:
        program, schedules = parse_program(kept["program"]), tuple(kept["schedules"])
        return Compiled(kept["backend"], kept["ir"], schedules, program, kept["file"])

    told = [entry.facts for entry in entries]
    facts = [name, model.value, of_sizes(sizes), asked, sorted(aligned), told]
    return cached("code", on, facts, make, write, read)
