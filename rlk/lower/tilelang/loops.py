"""Loops as text: their bounds in a block, and their carried values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rlk.ir.nodes import Let, Loop, Value
from rlk.ir.types import TileType
from rlk.lower.common.names import axis_name
from rlk.lower.common.rescale import rescale_of
from rlk.lower.common.thread_values import nearest_first
from rlk.lower.tilelang.memory import WithMemory
from rlk.lower.tilelang.trees import Folding
from rlk.lower.tilelang.writer import Writer


class Loops:
    """Loops of an emitter; carried values are variables and lists of a thread."""

    def __init__(self, emitter: Writer) -> None:
        self.e = emitter

    def loop(self, let: Let, loop: Loop) -> None:
        """Write a loop."""
        e = self.e
        runs_full = loop.full is not None and loop.full == loop.stop
        start = self.bound(loop.start, "imin")
        stop = self.bound(loop.stop, "imin" if runs_full else "imax")
        carried = []
        for i, (init, type) in enumerate(zip(loop.init, loop.types, strict=True)):
            hint = e.yields.get((let.value, i)) or f"{axis_name(loop.axis)}_state"
            carried.append(self.carried(hint, type))
            self.assign(carried[-1], init, type)
        e.many[let.value] = tuple(carried)
        if start == stop:
            return
        step, *args = loop.body.args
        name = e.names.fresh(f"{axis_name(loop.axis)}_step")
        with e.inner(f"for {name} in tl.serial({start}, {stop}):"):
            e.text[step] = name
            e.types[step] = TileType(e.tile(step).dtype)  # one for all, wherever a loop starts
            e.text.update(zip(args, carried, strict=True))
            e.dots.body(loop)
            self.advance(carried, args, loop.body.results, loop.types)

    def turned(self, loop: Loop) -> None:
        """Write a step, with conditional rescaling and the values that only it needs under its condition."""
        e, found = self.e, rescale_of(loop)
        if found is None:
            e.block(loop.body.lets)
            return
        waiting, at = found.waiting, [let.value for let in loop.body.lets].index(found.at)
        e.block(tuple(let for let in loop.body.lets[:at] if let.value not in waiting))
        variables = [e.text[old] for _, old, _ in found.changes]
        with e.inner(f"if {e[found.condition]}:"):
            e.block(found.rare)
            old, new = ([change[i] for change in found.changes] for i in (1, 2))
            self.advance(variables, old, new, [e.tile(value) for value in old])
        e.text.update(zip((value for value, _, _ in found.changes), variables, strict=True))
        e.block(tuple(let for let in loop.body.lets[at:] if let.value not in waiting))

    # --- what is carried ------------------------------------------------------------------------------------

    def carried(self, hint: str, type: TileType) -> str:
        """Give a carried value its variable or list."""
        if not self.e.plan.lists(type.axes):
            return self.e.variable(hint, type.dtype)
        return self.e.stored(hint, type.dtype, self.e.plan.size(type.axes))

    def assign(self, to: str, value: Value, type: TileType) -> None:
        """Write a value into a variable or list."""
        e = self.e
        e.current = e.plan.lists(type.axes)
        if e.current:
            e.each(f"{to}[c] = {e[value]}")
        else:
            e.define(to, e[value])

    def advance(
        self,
        carried: Sequence[str],
        args: Sequence[Value],
        values: Sequence[Value],
        types: Sequence[TileType],
    ) -> None:
        """Write the assignments of carried values; one that is overwritten before its use is saved first."""
        own = dict(zip(args, carried, strict=True))
        results = list(zip(carried, args, values, types, strict=True))
        saved: dict[Value, str] = {}
        for _, arg, value, type in results:
            if value in own and value != arg and value not in saved:
                saved[value] = self.carried(f"{own[value]}_before", type)
                self.assign(saved[value], value, type)
        for to, arg, value, type in results:
            before = self.e.text.get(value, "")
            if value != arg and before != to:
                self.e.text[value] = saved.get(value, before)
                self.assign(to, value, type)
                self.e.text[value] = before

    # --- bounds ---------------------------------------------------------------------------------------------

    def bound(self, value: Value, combine: str) -> str:
        """Return a loop bound as one number: the smallest or the largest of a block where it varies."""
        e = self.e
        axes = e.tile(value).axes
        along = [axis for axis in axes if e.plan.thread_values(axis) is not None]
        e.current = e.plan.lists(axes)
        if not along:
            return e.plain(value)
        made = e[value]
        for axis in along:
            thread_values = e.plan.thread_values(axis)
            assert thread_values is not None
            e.uses(combine)
            (made,) = e.fold(
                f"{combine}_over_{axis_name(axis)}", f"The {combine} over {axis}, in any order.",
                Folding(("x",), combine, e.plan.target.warp, e.nested), axis, nearest_first(thread_values),
                [(f"{combine}_{axis_name(axis)}", made, e.tile(value).dtype)], axes,
            )  # fmt: skip
            axes = tuple(a for a in axes if a != axis)
            e.current = e.plan.lists(axes)
            made = e.indexed(made, axes)
        return made


class WithLoops(WithMemory, Protocol):
    """An emitter with the parts that know memory and loops."""

    loops: Loops
