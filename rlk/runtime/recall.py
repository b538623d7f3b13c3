"""What an earlier process found out about a call, kept in the store beside its kernels.

A process that finds it neither traces nor lowers. An entry's key has a digest of all of rlk's own text, so
that nothing outlives the code that found it out. Of operators that others wrote nothing is kept: their text
is not rlk's to follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlk.cache import CALLS, CacheKey
from rlk.digest import digest, digest_sources
from rlk.env import Env
from rlk.ir.nodes import Block, Decl, Kernel, MathModel, Program, Role
from rlk.ir.text import parse_program, print_program
from rlk.lower.common.emitted import CallArg
from rlk.resources import templates
from rlk.runtime import cute
from rlk.runtime.build import kernel_key, store, stored, triton_version
from rlk.runtime.invocation import Interface, Invocation, operator_of
from rlk.runtime.pool import pool
from rlk.runtime.record import ABI, read_call, write_call
from rlk.runtime.sizes import Sizes
from rlk.target.facts import Target

FILE = "found.json"
FORMAT = 1
PACKAGE = Path(__file__).resolve().parent.parent


def outline(program: Program) -> Program:
    """Return a program without what its kernels do: their parameters, and the order of launches."""
    kernels = tuple(Kernel(k.name, k.params, Block((), (), ())) for k in program.kernels)
    return Program(program.name, kernels, program.launches)


def identity(invocation: Invocation) -> list[Any] | None:
    """Return what names an invocation in every process; None where others wrote its operator."""
    op, variant = operator_of(invocation.spec), invocation.variant
    if op.source.split(".")[0] != "rlk":
        return None
    return [
        op.source,
        invocation.spec.name,
        sorted([name, str(dtype)] for name, dtype in variant.dtypes),
        sorted(variant.present),
        sorted([name, repr(value)] for name, value in variant.statics),
        sorted(variant.wanted),
        None if invocation.math is None else invocation.math.value,
        list(invocation.shard),
        sorted(invocation.into),
    ]  # fmt: skip


@cache
def _tools() -> tuple[tuple[str, str], ...]:
    """Return what beside rlk's text decides what it lowers to."""
    return (("triton", triton_version() or "none"), *(cute.toolchain() or (("cute", "none"),)))


def _key(what: str, on: Target, facts: list[Any]) -> CacheKey:
    return CacheKey(
        ir=digest([FORMAT, what, facts]),
        schedule=None,
        target=on.name,
        backend=CALLS,
        emitter=digest_sources([PACKAGE, templates()]),
        toolchain=_tools(),
        flags=Env.current().toolchain,
        abi=ABI,
    )


def recalled(what: str, on: Target, facts: list[Any]) -> Any:
    """Return what was kept under this name and these facts, as JSON has it; None where nothing is."""
    found = stored(_key(what, on, facts))
    if found is None:
        return None
    try:
        return json.loads((found[0] / FILE).read_bytes())
    except FileNotFoundError:  # evicted meanwhile
        return None


def keep(what: str, on: Target, facts: list[Any], found: dict[str, Any], label: str) -> None:
    """Keep what was found out, as far as the store can, and in the background: a call waits for no disk."""
    key = _key(what, on, facts)

    def write(folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(found))

    pool().submit(lambda: store().get_or_build(key, write, label=f"a call of {label}"))


def known_interface(invocation: Invocation, on: Target, make: Callable[[Invocation], Interface]) -> Interface:
    """Return an invocation's interface: as an earlier process found it, or made now and kept."""
    name = identity(invocation)
    if name is None:
        return make(invocation)
    kept = recalled("interface", on, [name])
    if kept is not None:
        return _interface(kept)
    found = make(invocation)
    keep("interface", on, [name], _of_interface(invocation.spec.name, found), invocation.spec.name)
    return found


def _of_interface(name: str, found: Interface) -> dict[str, Any]:
    program = Program(name, (Kernel(name, (*found.inputs, *found.outputs), Block((), (), ())),))
    return {
        "program": print_program(program),
        "dynamic": sorted(found.dynamic),
        "pieces": found.pieces,
    }


def _interface(kept: dict[str, Any]) -> Interface:
    (kernel,) = parse_program(kept["program"]).kernels
    written: list[Decl] = [d for d in kernel.params if d.role is Role.OUT]
    return Interface(
        tuple(d for d in kernel.params if d.role is not Role.OUT),
        tuple(written),
        frozenset(kept["dynamic"]),
        tuple((axis, tuple(sizes)) for axis, sizes in kept["pieces"]),
    )


@dataclass(frozen=True, slots=True)
class Outline:
    """What calls of the same sizes launch, whatever the lowering: its kernels without their bodies.

    call: what the host passes.
    """

    program: Program
    call: tuple[CallArg, ...]


def known_outline(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, make: Callable[[], Outline]
) -> Outline:
    """Return the outline of calls of these sizes: as an earlier process found it, or made now and kept."""
    name = identity(invocation)
    if name is None:
        return make()
    facts = [name, model.value, _of_sizes(sizes)]
    kept = recalled("outline", on, facts)
    if kept is not None:
        return Outline(parse_program(kept["program"]), read_call(kept["call"]))
    found = make()
    plain = {
        "program": print_program(found.program),
        "call": write_call(found.call),
    }
    keep("outline", on, facts, plain, invocation.spec.name)
    return found


def _of_sizes(sizes: Sizes) -> list[Any]:
    return [sizes.static, sizes.extents, sizes.split, sorted(sizes.strided)]


@dataclass(frozen=True, slots=True)
class Compiled:
    """Which entry of a store a call runs, and what it launches: kernels without their bodies.

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
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, asked: str, aligned: frozenset[str],
    make: Callable[[], Compiled],
) -> Compiled:  # fmt: skip
    """Return what calls run that have these parameters aligned: as it was found before, or made and kept."""
    name = identity(invocation)
    if name is None or asked == "tilelang":
        return make()
    facts = [name, model.value, _of_sizes(sizes), asked, sorted(aligned)]
    kept = recalled("code", on, facts)
    if kept is not None:
        program = parse_program(kept["program"])
        return Compiled(kept["backend"], kept["ir"], tuple(kept["schedules"]), program, kept["file"])
    found = make()
    plain = {
        "backend": found.backend,
        "ir": found.ir,
        "schedules": found.schedules,
        "program": print_program(found.program),
        "file": found.file,
    }
    keep("code", on, facts, plain, invocation.spec.name)
    return found
