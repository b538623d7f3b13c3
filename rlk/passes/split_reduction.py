"""Split reductions: contractions over axes with pieces, one per piece, merged in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rlk.errors import Code, SpecError
from rlk.ir.build import Builder
from rlk.ir.dims import Axis, Part
from rlk.ir.dotmodel import DotModel
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import (
    Cast,
    Check,
    Decl,
    Dot,
    Extent,
    Fn2,
    Keep,
    Kernel,
    Let,
    Load,
    Merge,
    MergeOrder,
    Pos,
    Reduce,
    Role,
    Select,
    Store,
    Stream,
    Value,
)
from rlk.ir.tree import ASCENDING, Rule
from rlk.ir.types import DType, TileType, tile_axes
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.walk import walk


def pieces(kernel: Kernel, apart: frozenset[str] = frozenset()) -> Kernel:
    """Return the kernel without `Keep`, and with every contraction along the pieces of its axis.

    An index of an axis A that has pieces and is contracted or materialized becomes piece * size + j, over the
    axes A.pieces and A.within; elements beyond the end of a piece are neither loaded nor stored, and count as
    0. A `Keep` is a store to a workspace and a load: `cut` splits the kernel there. apart: names of axes
    whose pieces are contracted in parallel, with results materialized before they merge (unless a factor is
    materialized by pieces); a named axis that nothing combines gets pieces too.
    """
    kept = {a.name for let in walk(kernel.body) if isinstance(let.node, Keep) for a in tile_axes(let.type)}
    return rewrite(kernel, _Pieces(cut_axes(kernel) | _rows(kernel, apart), apart - kept))


def _rows(kernel: Kernel, apart: frozenset[str]) -> frozenset[Axis]:
    """Return the named axes with a size of pieces that are not streamed."""
    found = {a for let in walk(kernel.body) for a in tile_axes(let.type) if a.name in apart and a.piece}
    return frozenset(found - {let.node.axis for let in walk(kernel.body) if isinstance(let.node, Stream)})


def cut_axes(kernel: Kernel) -> frozenset[Axis]:
    """Return the axes that are contracted or materialized by pieces."""
    found: set[Axis] = set()
    for let in walk(kernel.body):
        match let.node:
            case Dot(over=over):
                found.add(over)
            case Keep():
                found |= set(tile_axes(let.type))
            case _:
                pass
    return frozenset(a for a in found if a.part is Part.ALL and (a.split or a.piece))


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of an index of a whole axis, and whether the index is in bounds."""

    pos: Value
    exists: Value


@dataclass(slots=True)
class _Pieces:
    """The rule. `along` holds the cut axes along which a value of the old kernel varies."""

    axes: frozenset[Axis]
    apart: frozenset[str]
    places: dict[Axis, _Place] = field(default_factory=dict)
    along: dict[Value, frozenset[Axis]] = field(default_factory=dict)
    loaded: set[Value] = field(default_factory=set)  # of the new kernel: 0 beyond the end of a piece

    def __call__(self, replay: Replay, let: Let) -> bool:
        if isinstance(let.type, TileType):
            self.along[let.value] = self.axes.intersection(let.type.axes)
        r, b = replay, replay.builder
        for axis in sorted(self.axes - self.places.keys(), key=str):
            self.places[axis] = _place(b, axis)  # in the outermost block, before its first let
        match let.node:
            case Pos(axis=axis) if axis in self.axes:
                r.renamed[let.value] = self.places[axis].pos
            case Load(param=param, index=index, guard=guard, fill=fill) if self.varies(*index):
                new = tuple(r[i] for i in index)
                inside = self.guard(b, r.optional(guard), *index)
                r.renamed[let.value] = b.let(Load(param, new, inside, r.optional(fill)), let.name)
                self.loaded |= {r.renamed[let.value]} if fill is None else set()
            case Store(param=param, index=index, value=value, guard=guard) if self.varies(*index):
                new = tuple(r[i] for i in index)
                b.let(Store(param, new, r[value], self.guard(b, r.optional(guard), *index)))
            case Check(bad=bad, what=what) if self.varies(bad):
                b.let(Check(self.guard(b, r[bad], bad) or r[bad], what))
            case Dot(over=over) as dot if over in self.axes:
                r.renamed[let.value] = self.dot(replay, dot, let.name)
            case Dot(each=each) as dot if self.axes.intersection(each or ()):
                r.renamed[let.value] = b.let(r.node(replace(dot, each=self.cut(each))), let.name)
            case Keep(x=x):
                r.renamed[let.value] = _keep(b, r[x], let.name, self.guard(b, None, x))
                self.loaded.add(r.renamed[let.value])
            case Reduce(over=over) if over in self.axes:
                raise SpecError(Code.PIECES_COMBINED, let.loc, axis=over, what="reduced whole")
            case Stream(axis=axis) if axis in self.axes:
                raise SpecError(Code.PIECES_COMBINED, let.loc, axis=axis, what="streamed")
            case _:
                return False
        return True

    def varies(self, *values: Value) -> bool:
        return any(self.along.get(v) for v in values)

    def guard(self, b: Builder, guard: Value | None, *values: Value, but: Axis | None = None) -> Value | None:
        """Return a guard that also masks out-of-bounds elements of these indices, but for one axis."""
        found = {axis for v in values for axis in self.along.get(v, ()) if axis != but}
        for axis in sorted(found, key=str):
            exists = self.places[axis].exists
            guard = exists if guard is None else b.map2(Fn2.AND, guard, exists)
        return guard

    def dot(self, replay: Replay, dot: Dot, name: str) -> Value:
        """Append the contraction of every piece, and their merge."""
        b, axis = replay.builder, dot.over
        x, y = (self.factor(b, replay[v], axis) for v in (dot.a, dot.b))
        product = b.let(Dot(x, y, axis.within, dot.model, each=self.cut(dot.each)), name)
        # the zero padding of a short piece adds +0.0 to a chain of fma that ended as -0.0
        settled = b.add(product, b.f32(0.0), name) if dot.model is DotModel.FMA else product
        if axis.name in self.apart:
            there = self.guard(b, None, dot.a, dot.b, but=axis)
            settled = _keep(b, settled, f"{name or 'product'}_of_pieces", there)
        order: MergeOrder = ASCENDING if axis.split is None else Rule.PAIRWISE
        onto = replay.optional(dot.onto)
        merged = b.let(Merge(Monoid(Kind.TOTAL), (settled,), axis.pieces, order, onto=onto))
        return b.results(merged, (name,))[0]

    def cut(self, each: tuple[Axis, ...] | None) -> tuple[Axis, ...] | None:
        """Return the batch axes of a contraction, pieces and positions in them for those that are cut."""
        parts = ((a.pieces, a.within) if a in self.axes else (a,) for a in each or ())
        return tuple(part for both in parts for part in both) or None

    def factor(self, b: Builder, factor: Value, axis: Axis) -> Value:
        """Return a factor that is 0 beyond the end of a piece, also one that is computed."""
        if factor in self.loaded:
            return factor
        dtype = b.tile(factor).dtype
        zero = b.f32(0.0) if dtype is DType.F32 else b.let(Cast(b.f32(0.0), dtype))
        return b.let(Select(self.places[axis].exists, factor, zero))


def _place(b: Builder, axis: Axis) -> _Place:
    stem, extent = axis.name.lower(), b.let(Extent(axis))
    if axis.split is not None:
        whole = b.add(extent, b.i32(axis.split - 1))
        size = b.map2(Fn2.DIV, whole, b.i32(axis.split), f"{stem}_piece_size")
    else:
        size = b.i32(axis.piece or 1)
    base = b.mul(b.let(Pos(axis.pieces), f"{stem}_piece"), size, f"{stem}_piece_begin")
    within = b.let(Pos(axis.within), f"{stem}_within")
    rest = b.max(b.i32(0), b.sub(extent, base))
    length = b.min(size, rest, f"{stem}_length")
    return _Place(b.add(base, within, stem), b.map2(Fn2.LT, within, length, f"{stem}_exists"))


def _keep(b: Builder, value: Value, name: str, guard: Value | None) -> Value:
    """Store a value in a workspace of its own, pieces outermost, and load it again."""
    unique, count = name, 1
    while unique in b.params:
        count += 1
        unique = f"{name}_{count}"
    tile = b.tile(value)
    axes = tuple(sorted(tile.axes, key=lambda a: a.part is not Part.PIECE))
    b.params[unique] = Decl(unique, TileType(tile.dtype, axes), Role.WORK)
    index = tuple(b.let(Pos(axis)) for axis in axes)
    b.let(Store(unique, index, value, guard))
    return b.let(Load(unique, index, guard), name)
