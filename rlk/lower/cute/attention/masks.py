"""Zero out-of-bounds rows of TMA tiles in shared memory (consumer warpgroups)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rlk.ir.nodes import Map2, Value, operands
from rlk.lower.cute.attention.plan import Copies
from rlk.lower.cute.attention.producer import AttentionEmitter
from rlk.lower.cute.plan import WARPGROUP


def guards_of(factors: Iterable[Copies]) -> dict[Copies, Value]:
    """Return the in-bounds predicate of each factor that TMA loads."""
    return {copies: copies.tma_tile.inside for copies in factors if copies.tma_tile is not None}


def clear(e: AttentionEmitter, guards: Mapping[Copies, Value], state: str) -> None:
    """Zero the out-of-bounds rows of tiles: 0 * inf and 0 * NaN are not 0.

    Each consumer warpgroup zeroes for itself, behind a branch, and then meets at a named barrier.
    """
    ends: dict[str, None] = {}
    e.uses("select", "clear_vector_where")
    for copies, guard in guards.items():
        first, stop = _end_of(e, guard)
        e.write(e.needed([first, stop]))
        ends[f"({e[stop]} < {e[first]} + {copies.rows})"] = None
    with e.inner(f"if {' | '.join(ends)}:"):
        for guard, alike in _alike(guards):
            _clear_rows(e, alike, guard, state)
        e.line("cute.arch.fence_view_async_shared()")
        e.line(f"cute.arch.barrier(barrier_id=group, number_of_threads={WARPGROUP})")


def _alike(guards: Mapping[Copies, Value]) -> Iterator[tuple[Value, list[Copies]]]:
    """Yield the factors that one loop clears: of equal rows, which threads take in the same way."""
    found: dict[tuple[Value, int, int, int], list[Copies]] = {}
    for copies, guard in guards.items():
        found.setdefault((guard, copies.rows, copies.elements, copies.width), []).append(copies)
    yield from ((key[0], alike) for key, alike in found.items())


def _clear_rows(e: AttentionEmitter, alike: list[Copies], guard: Value, state: str) -> None:
    axis, copies = e.plan.scores.axis, alike[0]
    with e.isolated():
        e.fragments = {}
        of_rows = {value for value in e.written if axis in e.axes(value)}
        e.written, e.whole = e.written - of_rows, e.whole - of_rows
        e.line(f"column = {copies.width} * (mine % {copies.across})")
        with e.inner(f"for i in cutlass.range_constexpr({copies.passes}):"):
            e.line(f"down = mine % {WARPGROUP} // {copies.across} + {copies.down} * i")
            e.memory.coordinates[axis] = "down"
            e.write(e.needed([guard]))
            missing = f"select({e[guard]}, Boolean(False), Boolean(True))"
            with e.inner(f"for j in cutlass.range_constexpr({copies.vectors}):"):
                column = f"column + {copies.width * copies.across} * j"
                for each in alike:
                    place = f"down, {column}" if each.along else f"{column}, down"
                    given = f"{each.param}_tiles, ({place}, {state}.index), {each.width}"
                    e.line(f"clear_vector_where({missing}, {given})")


def _end_of(e: AttentionEmitter, guard: Value) -> tuple[Value, Value]:
    """Return the first row of a step, and the end of the rows."""
    there = e.lets[guard].node
    assert isinstance(there, Map2)
    parts = operands(e.lets[there.a].node)
    return next(v for v in parts if e.plan.scores.axis not in e.axes(v)), there.b
