"""Matrices at computed indices: a loop over those that the rows of a tile name, a product in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlk.ir.build import Builder
from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Block,
    Cast,
    Const,
    Decl,
    Dot,
    Elementwise,
    Extent,
    Fn2,
    Kernel,
    Let,
    Load,
    Loop,
    Map2,
    Pos,
    Value,
    operands,
    with_operands,
)
from rlk.ir.types import DType, TileType, tile_axes
from rlk.passes.rewrite import Replay
from rlk.passes.simplify import simplify
from rlk.passes.walk import backward_slice


def by_index(kernel: Kernel, extents: Mapping[str, int]) -> Kernel:
    """Return a specialized kernel with a loop in place of contractions whose matrix a row's index names.

    A contraction of single rows with w.at(index, N, K) has another matrix in each row. A step of the loop is
    an index from the smallest of a tile's rows to the largest: it contracts all rows of the tile with that
    matrix, and the rows that name it take the result. So rows sorted by index share their matrix, and rows
    in any order have the same bits: a row's contraction reads the row and its matrix alone. Where an index
    is refused by a guard the matrix is 0, as that of the index behind the last.

    extents: of static axes. Contractions of one index share a loop; those in streams, and factors with
    another value of each row beside the index, stay as they are.
    """
    lets = {let.value: let for let in kernel.body.lets}
    decls = {decl.name: decl for decl in kernel.params}
    found = {v: made for v, let in lets.items() if (made := _gathered(let, lets, decls)) is not None}
    if not found:
        return kernel
    replay = Replay(kernel, _Loops(lets, found, extents))
    replay.block(kernel.body.lets)
    return simplify(Kernel(kernel.name, tuple(replay.builder.params.values()), replay.builder.body()))


def names_steps(loop: Loop, lets: Mapping[Value, Let]) -> bool:
    """Return whether each element of a tile is in one step of a loop, which it names."""
    stop = lets[loop.stop].node if loop.stop in lets else None
    match stop:
        case Map2(fn=Fn2.ADD, a=start, b=one) if start == loop.start and one in lets:
            return lets[one].node == Const(1)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A contraction of single rows with a matrix for each, and the index that names it.

    guard: the condition of a row's matrix; where it is false the matrix is 0. count: the axis of matrices.
    """

    dot: Dot
    type: TileType
    matrix: Value
    index: Value
    guard: Value | None
    count: Axis


def _gathered(let: Let, lets: Mapping[Value, Let], decls: Mapping[str, Decl]) -> _Gathered | None:
    """Return what a contraction gathers for each row; None where it does not, or in another form."""
    dot = let.node
    if not isinstance(dot, Dot) or not isinstance(let.type, TileType) or not dot.each or dot.onto is not None:
        return None
    for rows, matrix in ((dot.a, dot.b), (dot.b, dot.a)):
        needed = sorted(backward_slice([matrix], lets))
        made = [lets[v].node for v in needed if dot.over in tile_axes(lets[v].type)]
        loads = [node for node in made if isinstance(node, Load)]
        named = {
            v: decls[load.param].type.axes[dim]
            for load in loads
            for dim, v in enumerate(load.index)
            if not isinstance(lets[v].node, Pos) and not set(dot.each).isdisjoint(tile_axes(lets[v].type))
        }
        if len(named) != 1 or not {*dot.each, dot.over}.issuperset(tile_axes(lets[rows].type)):
            continue
        ((index, count),) = named.items()
        mine = tile_axes(lets[index].type)
        columns = set(tile_axes(lets[matrix].type)) - {*mine, *dot.each, dot.over}
        guards: set[Value | None] = set()
        if columns and _shared(matrix, index, mine, lets, guards) and len(guards) == 1:
            return _Gathered(dot, let.type, matrix, index, guards.pop(), count)
    return None


def _shared(
    value: Value, index: Value, rows: tuple[Axis, ...], lets: Mapping[Value, Let], guards: set[Value | None]
) -> bool:
    """Return whether a value varies along the rows of an index by that alone.

    guards: gets those of its loads.
    """
    if set(rows).isdisjoint(tile_axes(lets[value].type)):
        return True
    match lets[value].node:
        case Load(index=at, guard=guard, fill=None) if index in at:
            guards.add(guard)
            others = [v for v in at if v != index]
            of_rows = guard is None or set(tile_axes(lets[guard].type)) <= set(rows)
            return of_rows and all(set(rows).isdisjoint(tile_axes(lets[v].type)) for v in others)
        case node if isinstance(node, Elementwise):
            return all(_shared(v, index, rows, lets, guards) for v in operands(node))
        case _:
            return False


@dataclass(slots=True)
class _Loops:
    """The rule: the first contraction of an index becomes a loop, which yields those of the others, too."""

    lets: Mapping[Value, Let]
    found: Mapping[Value, _Gathered]
    extents: Mapping[str, int]

    def __call__(self, replay: Replay, let: Let) -> bool:
        if let.value in replay.renamed:
            return True
        if let.value not in self.found:
            return False
        group = self.together(let.value)
        needed = backward_slice((v for dot in group for v in operands(self.lets[dot].node)), self.lets)
        replay.block(tuple(each for v, each in self.lets.items() if v in needed and v not in replay.renamed))
        replay.builder.loc = let.loc
        names = tuple(self.lets[dot].name for dot in group)
        made = replay.builder.results(self.loop(replay, [self.found[dot] for dot in group]), names)
        replay.renamed.update(zip(group, made, strict=True))
        return True

    def together(self, first: Value) -> list[Value]:
        """Return the contractions that share a loop: those of one index that no other one of them feeds."""
        mine, group = self.found[first], [first]
        for value, other in self.found.items():
            fed = backward_slice(operands(other.dot), self.lets)
            same = (other.index, other.guard, other.count) == (mine.index, mine.guard, mine.count)
            if value > first and same and fed.isdisjoint(self.found):
                group.append(value)
        return group

    def loop(self, replay: Replay, group: Sequence[_Gathered]) -> Value:
        """Append the loop of contractions that one index names; return it."""
        b, mine = replay.builder, group[0]
        index, end = replay[mine.index], self.count(b, mine.count)
        if b.tile(index).dtype is not DType.I32:
            index = b.let(Cast(index, DType.I32))
        if mine.guard is not None:
            index = b.select(replay[mine.guard], index, end)
        stop = b.add(index, b.i32(1))
        types = tuple(g.type for g in group)
        init = tuple(b.const(0, type.dtype) for type in types)
        with b.region() as lets:
            step = b.fresh(TileType(DType.I32))
            carried = tuple(b.fresh(type) for type in types)
            here = b.map2(Fn2.EQ, index, step, "here")
            exists = None if mine.guard is None else b.map2(Fn2.LT, step, end)
            found = tuple(self.product(replay, g, step, exists) for g in group)
            taken = tuple(b.select(here, new, old) for new, old in zip(found, carried, strict=True))
        body = Block((step, *carried), tuple(lets), taken)
        return b.let(Loop(mine.count, index, stop, init, types, body))

    def count(self, b: Builder, axis: Axis) -> Value:
        """Return the number of matrices."""
        known = self.extents.get(axis.name)
        return b.let(Extent(axis)) if known is None else b.i32(known)

    def product(self, replay: Replay, one: _Gathered, step: Value, exists: Value | None) -> Value:
        """Append the contraction of all rows with the matrix of a step."""
        b, rows = replay.builder, tile_axes(self.lets[one.index].type)
        matrix = self.of_step(replay, one, one.matrix, step, exists)
        factors = {v: matrix if v == one.matrix else replay[v] for v in (one.dot.a, one.dot.b)}
        each = tuple(axis for axis in one.dot.each or () if axis not in rows)
        dot = replace(one.dot, a=factors[one.dot.a], b=factors[one.dot.b], each=each or None)
        return b.let(dot, self.lets[one.matrix].name)

    def of_step(
        self, replay: Replay, one: _Gathered, value: Value, step: Value, exists: Value | None
    ) -> Value:
        """Append what a value is for the rows that name a step."""
        let, rows = self.lets[value], tile_axes(self.lets[one.index].type)
        if value == one.index:
            return step
        if set(rows).isdisjoint(tile_axes(let.type)):
            return replay[value]
        node = replace(let.node, guard=None) if isinstance(let.node, Load) else let.node
        node = with_operands(node, lambda v: self.of_step(replay, one, v, step, exists))
        if isinstance(node, Load):
            node = replace(node, guard=exists)
        return replay.builder.let(node, let.name)

