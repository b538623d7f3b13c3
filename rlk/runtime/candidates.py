"""Program candidates of a call, before any text is written: programs and schedules, in order of choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlk.errors import UnsupportedError
from rlk.ir.nodes import MathModel, Program
from rlk.lower.common.emitted import Emitted, Signature
from rlk.passes.pipeline import launched, specialize
from rlk.runtime.invocation import Invocation, traced
from rlk.runtime.shape_buckets import Sizes
from rlk.schedule.backend_choice import by_cute_first
from rlk.schedule.heuristics import apart, choose
from rlk.schedule.schedule import Schedule
from rlk.schedule.tilelang_tiles import by_tilelang_tiles
from rlk.target.facts import Target

Schedules = tuple[Schedule, ...]


def formed(
    invocation: Invocation,
    model: MathModel,
    sizes: Sizes,
    on: Target,
    schedules: tuple[Schedule, ...] | None = None,
) -> tuple[Program, Schedules]:
    """Return the program that is launched for calls of these sizes, and its schedules.

    schedules: of the program that is asked for, whose form their number says; by default heuristics choose.
    """
    static, extents = dict(sizes.static), dict(sizes.extents)
    whole = traced(invocation)
    aside = apart(whole, extents)
    program = launched(traced(invocation, aside) if aside else whole, static, model, extents)
    if schedules is not None and len(schedules) != len(program.kernels):
        # schedules of the serial form
        program = launched(whole, static, model, extents)
    return program, tuple(choose(k, on, sizes.signature, extents) for k in program.kernels)


def by_cute(
    program: Program, chosen: Schedules, whole: Program, on: Target, signature: Signature,
    extents: Mapping[str, int], identity: str, schedules: Schedules | None = None,
) -> tuple[Program, Schedules, Emitted]:  # fmt: skip
    """Return what is lowered, its schedules, and its source; raise UnsupportedError where there is no form.

    program, chosen: as another lowering launches it. whole: the same, specialized and not swept; its blocks
    walk the pieces of what they contract, where heuristics want that and the lowering can, or where
    `schedules` are for it.
    """
    from rlk.lower import cute

    def written(what: Program, placed: Schedules) -> tuple[Program, Schedules, Emitted]:
        return what, placed, cute.lower(what, placed, on, signature, numerics_id=identity)

    if schedules is not None:
        return written(whole if walks_pieces(whole, schedules) else program, schedules)
    refused: UnsupportedError | None = None
    for what, placed in of_cute(program, chosen, whole, on, extents):
        try:
            return written(what, placed)
        except UnsupportedError as error:
            refused = error
    assert refused is not None
    raise refused


@dataclass(frozen=True, slots=True)
class Form:
    """A program with its schedules, and the lowering that writes it."""

    backend: str
    program: Program
    schedules: Schedules


def forms(
    invocation: Invocation, model: MathModel, sizes: Sizes, on: Target, backends: Sequence[str]
) -> Iterator[Form]:
    """Yield what may run calls of these sizes, the fastest first.

    All forms have the numerics id of the call, and so its bits.
    """
    program, chosen = formed(invocation, model, sizes, on)
    extents = dict(sizes.extents)
    sooner = "cute" if len(backends) > 1 and by_cute_first(program, on, extents) else "triton"
    for backend in sorted(backends, key=lambda each: each != sooner):
        try:
            match backend:
                case "cute":
                    whole = specialize(traced(invocation), dict(sizes.static), model)
                    for each in of_cute(program, chosen, whole, on, extents):
                        yield Form(backend, *each)
                case "tilelang":
                    yield Form(backend, program, by_tilelang_tiles(program, chosen, extents, on))
                case _:
                    yield Form(backend, program, chosen)
        except UnsupportedError:
            pass  # the forms before it are there


def of_cute(
    program: Program, chosen: Schedules, whole: Program, on: Target, extents: Mapping[str, int]
) -> Iterator[tuple[Program, Schedules]]:
    """Yield the forms that the CuTe lowering may write, the one that is wanted most first.

    The last one's schedules may raise UnsupportedError.
    """
    from rlk.schedule.cute_tiles import by_warpgroups, in_turn

    if in_turn(whole, on, extents):
        alone = tuple(choose(k, on, None, extents) for k in whole.kernels)
        try:
            walking = by_warpgroups(whole, alone, on, extents)
        except UnsupportedError:
            pass  # pieces that it launches one after the other
        else:
            yield whole, walking
    yield program, by_warpgroups(program, chosen, on, extents)


def walks_pieces(whole: Program, schedules: Schedules) -> bool:
    """Return whether schedules are for a program whose blocks walk all pieces: their number says so."""
    from rlk.schedule.cute_tiles import walks

    return walks(whole) and len(schedules) == len(whole.kernels)


def by_tilelang(
    program: Program, chosen: Schedules, on: Target, signature: Signature, extents: Mapping[str, int],
    identity: str, schedules: Schedules | None = None,
) -> tuple[Schedules, Emitted]:  # fmt: skip
    """Return the schedules of a program in TileLang, and its source; raise UnsupportedError without a form.

    program, chosen: as another lowering launches it. schedules: instead of what heuristics choose.
    """
    from rlk.lower import tilelang

    placed = schedules or by_tilelang_tiles(program, chosen, extents, on)
    return placed, tilelang.lower(program, placed, on, signature, numerics_id=identity)
