"""Reverse mode on traced programs: the gradient of a spec as another program of the same language.

Cotangents are f32: casts between floats pass them on, and a gradient is rounded once, to the dtype of its
input. Values of the forward are computed again from what the operator saves; those that it saves are read.
Additions have a fixed order: the cotangents of a value are added from its last use to its first; a sum over
a whole axis has the tree of the forward's first sum over it, or halving; a sum over an axis with `chunk` is a
stream, as `L.total` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from rlk.errors import Code, SpecError
from rlk.ir.dims import Axis, union
from rlk.ir.monoid import Kind
from rlk.ir.nodes import (
    Bits,
    Cast,
    Check,
    Combine,
    Const,
    Dot,
    Extent,
    Fma,
    Fn2,
    Fold,
    Keep,
    Kernel,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    Merge,
    Param,
    Philox,
    Pos,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
    operands,
)
from rlk.ir.tree import Order, Rule
from rlk.ir.types import DType, NoType, TileType, TupleType
from rlk.lang.folds import LN2, Total
from rlk.lang.readings import Reading, component, first_result
from rlk.lang.recompute import Forward, active_values, tape_of
from rlk.lang.slopes import LOG2E, MAP1, MAP2, MATH, Slope, same
from rlk.lang.surface import L
from rlk.lang.trace import TensorArg, Tile


def backward(
    make: Callable[[frozenset[Axis]], Forward], wanted: Collection[str], given: Mapping[str, TensorArg]
) -> None:
    """Record the gradient of a traced kernel: outputs d_<input> of the wanted inputs.

    make: returns the kernel, given the axes that are apart. given: the cotangents of outputs, those that are
    there. Raises VJP_SAVED, VJP_DERIVED and VJP_SUM, with the author's line.
    """
    apart: frozenset[Axis] = frozenset()
    while True:
        forward = make(apart)
        before = forward.t.state()
        made = _Reverse(forward, wanted, given, apart)
        made.run()
        clash = made.streamed_and_cut()
        if clash is None:
            return
        stream, axis = clash
        if axis in apart:
            what = f"a contraction over the pieces of {axis} beside a stream of {axis}"
            instead = f"declare {axis} without piece=, so both are one sum; or save what the stream finds"
            raise forward.refused(stream, what, instead)
        apart |= {axis}
        forward.t.restore(before)


def reached(forward: Kernel, wrt: Collection[str]) -> list[str]:
    """Return the outputs of a kernel that are differentiable functions of one of the named inputs."""
    tape = tuple(tape_of(forward.body))
    active = active_values(tape, frozenset(wrt))
    stores = [let.node for let in tape if isinstance(let.node, Store)]
    outs = {d.name for d in forward.params if d.role is Role.OUT and d.type.dtype.is_float}
    return list(dict.fromkeys(s.param for s in stores if s.param in outs and s.value in active))


@dataclass(frozen=True, slots=True)
class _Part:
    """A term of a cotangent, which varies along `axes`; along those that the tile lacks it is constant."""

    tile: Tile
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class _At:
    """The value of a node of the forward and its operands, for the rules of `slopes`."""

    forward: Forward
    let: Let

    @property
    def y(self) -> Tile:
        return self.forward.value(self.let.value)

    @property
    def a(self) -> Tile:
        return self.forward.value(operands(self.let.node)[0])

    @property
    def b(self) -> Tile:
        return self.forward.value(operands(self.let.node)[1])


class _Reverse:
    """One reverse pass. Values are the forward's, tiles the gradient's."""

    def __init__(
        self,
        forward: Forward,
        wanted: Collection[str],
        given: Mapping[str, TensorArg],
        apart: frozenset[Axis],
    ) -> None:
        """apart: axes that are streamed and contracted; `Forward` has those that the spec streams."""
        self.f, self.given = forward, given
        self.t, self.b = forward.t, forward.b
        self.active = active_values(self.f.tape, frozenset(wanted))
        self.orders: dict[Axis, Order] = {}
        for let in self.f.tape:
            if isinstance(let.node, Reduce) and let.node.order is not None:
                self.orders.setdefault(let.node.over, let.node.order)
        self.rows = self.row_axis()
        self.rows_apart = self.rows if self.rows in apart else None
        self.visited: Value = -1
        self.parts: dict[Value, list[_Part]] = {}
        self.inputs: dict[str, list[_Part]] = {name: [] for name in wanted}
        self.factors: dict[tuple[Value, DType], Tile] = {}
        self.pulls: dict[tuple[Value, int], list[tuple[str, Value, Tile]]] = {}  # of what is read off folds

    def run(self) -> None:
        """Visit the values that vary along rows, sum over rows, and visit the others."""
        rows = self.rows
        along = self.along(rows)
        late = [let for let in self.f.tape if let.value not in along]
        for let in reversed(self.f.tape):
            if let.value in along:
                self.visit(let)
        if rows is not None:
            self.sum_rows(rows, late)
        for let in reversed(late):
            self.visit(let)
        for name in self.inputs:
            if f"d_{name}" not in self.b.params:
                self.write(name, self.gradient(name))
        self.drop_unused()

    # --- sums ---

    def pull(self, value: Value, tile: Tile, axes: tuple[Axis, ...]) -> None:
        """Add a term to the cotangent of a value of the forward, if it depends on a wanted input."""
        if value in self.f.carried and value in self.active:
            raise self.f.recurrence(self.f.carried[value])
        if value in self.active:
            self.parts.setdefault(value, []).append(_Part(self.leaving(tile, self.f.home.get(value)), axes))

    def leaving(self, tile: Tile, to: Let | None) -> Tile:
        """Return what is sent from the node that is visited: out of a stream, 0 where the axis is empty."""
        home = self.f.home.get(self.visited)
        return tile if home is None or home is to else self.visible(home, tile)

    def gathered(self, axes: tuple[Axis, ...], parts: Iterable[_Part]) -> Tile:
        """Return the sum of terms, summed over all axes but these."""
        groups: dict[tuple[tuple[Axis, ...], tuple[Axis, ...]], Tile] = {}
        for part in parts:
            extra = [a for a in part.axes if a not in axes]
            varying = tuple(a for a in extra if a in part.tile.axes)
            key = varying, tuple(a for a in extra if a not in varying)
            groups[key] = groups[key] + part.tile if key in groups else part.tile
        return reduce(add, (self.summed(tile, *key) for key, tile in groups.items()))

    def summed(self, tile: Tile, over: tuple[Axis, ...], constant: tuple[Axis, ...] = ()) -> Tile:
        """Return the sum over axes, first those that are whole; along `constant` all terms are the same."""
        open_axes = [a for a in over if a.over is not None or (a.dynamic and not self.f.has_chunks(a))]
        if open_axes:
            axes = " and ".join(map(str, open_axes))
            raise SpecError(Code.VJP_SUM, self.t.here(), op=self.f.name, axes=axes, axis=open_axes[0])
        for axis in sorted(over, key=self.f.has_chunks):
            if self.f.has_chunks(axis):
                (tile,) = self.streamed(axis, [tile])
                tile = self.f.in_memory(tile, "total")  # what is read along the axis sums once
            else:
                tile = L.sum(tile, over=axis, tree=self.orders.get(axis, Rule.HALVING))
        for axis in constant:
            tile = tile * L.extent(axis).to(DType.F32)
        return tile

    def row_axis(self) -> Axis | None:
        """Return the first axis with chunks that the forward does not stream; gradients are sums over it."""
        streamed = {let.node.axis for let in self.f.tape if isinstance(let.node, Stream)}
        return next((a for a in self.t.dims if a.chunk is not None and a not in streamed), None)

    def along(self, axis: Axis | None) -> set[Value]:
        """Return the values of the forward that vary along an axis, or depend on such; all without one."""
        found: set[Value] = set()
        for let in self.f.tape:
            read = {*operands(let.node)}
            if isinstance(let.node, Stream):
                read |= {v for x in let.node.body.lets for v in (x.value, *operands(x.node))}
            if axis is None or axis in _axes_of(let) or not read.isdisjoint(found):
                found.add(let.value)
        return found

    def sum_rows(self, rows: Axis, late: list[Let]) -> None:
        """Sum what came from rows to values that are the same in all, in one stream with what rows store."""
        sums: list[tuple[Let, Tile]] = []
        for let in late:
            parts = self.parts.get(let.value, [])
            mine = [p for p in parts if rows in p.tile.axes]
            if mine:
                with self.f.placed(let.loc):
                    sums.append((let, self.gathered((*_axes_of(let), rows), mine)))
                self.parts[let.value] = [p for p in parts if rows not in p.tile.axes]
        if not sums:
            return
        stored = {n: self.gradient(n) for n in self.inputs if rows in self.f.decls[n].type.axes}
        with self.f.placed(sums[0][0].loc):
            totals = self.streamed(rows, [tile for _, tile in sums], stored)
        self.visited = -1
        for (let, _), total in zip(sums, totals, strict=True):
            self.pull(let.value, total, total.axes)

    def streamed(self, axis: Axis, tiles: list[Tile], stored: Mapping[str, Tile] | None = None) -> list[Tile]:
        """Return the sums of tiles over an axis with chunks: what they are computed of moves into a stream.

        stored: gradients to store in it. Products and results of other streams are materialized before;
        where there are any, nothing is stored in the stream.
        """
        flat = {let.value: let for let in self.b.open[0]}
        stored = stored or {}
        inside = _backward(flat, axis, [t.value for t in (*tiles, *stored.values())])
        ends = {v for v in inside if _is_costly(flat[v], flat)}
        if ends:
            stored, inside = {}, _backward(flat, axis, [t.value for t in tiles], ends)
        tables = {v: self.f.table(self.t.wrap(v), flat[v].name) for v in flat if v in inside & ends}
        totals = [Total() for _ in tiles]
        for v in L.stream(self.f.streamed.get(axis, axis)):
            local: dict[Value, Value] = {}
            for value in (value for value in flat if value in inside):
                if value in tables:
                    where = (v.pos if dim == v.axis else dim for dim in tables[value].axes)
                    local[value] = tables[value].at(*where).value
                elif flat[value].node == Pos(axis):
                    local[value] = v.pos.value
                else:
                    local[value] = self.f.copy(flat[value], local)
            for total, tile in zip(totals, tiles, strict=True):
                total.absorb(self.t.wrap(local[tile.value]))
            for name, tile in stored.items():
                self.write(name, self.t.wrap(local.get(tile.value, tile.value)), {axis: v.pos.value})
        return [total.value for total in totals]

    # --- gradients of inputs ---

    def gradient(self, name: str) -> Tile:
        """Return the gradient of an input, rounded; 0 where no cotangent reaches it."""
        type, parts = self.f.decls[name].type, self.inputs[name]
        lines = (x.loc for x in self.f.tape if isinstance(x.node, Load) and x.node.param == name)
        with self.f.placed(next(lines, self.f.loc)):
            return (self.gathered(type.axes, parts) if parts else L.number(0.0, DType.F32)).to(type.dtype)

    def write(self, name: str, tile: Tile, at: Mapping[Axis, Value] | None = None) -> None:
        """Store the gradient of an input, dims in the input's order. at: positions that are no axis's own."""
        axes, known = self.f.decls[name].type.axes, at or {}  # as outside of streams
        index = tuple(known[a] if a in known else self.b.let(Pos(a), a.name.lower()) for a in axes)
        self.t.write(f"d_{name}", self.f.params[name].type.axes, index, tile.value)

    def drop_unused(self) -> None:
        """Drop the values that nothing reads: those that moved into a stream."""
        lets, used, left = self.b.open[0], set[Value](), list[Let]()
        for let in reversed(lets):
            inner = let.node.body.lets if isinstance(let.node, Stream) else ()
            if let.value in used or any(isinstance(x.node, Store) for x in (let, *inner)):
                used |= {v for x in (let, *inner) for v in operands(x.node)}
                if isinstance(let.node, Stream):
                    used |= {*let.node.body.results, *(v for fold in let.node.folds for v in fold.inputs)}
                left.append(let)
        lets[:] = reversed(left)

    def streamed_and_cut(self) -> tuple[Let, Axis] | None:
        """Return a stream whose axis the gradient also contracts or materializes by pieces."""
        lets = self.b.open[0]
        cut = {x.node.over for x in lets if isinstance(x.node, Dot)}
        cut |= {a for x in lets if isinstance(x.node, Keep) for a in _axes_of(x)}
        for let in lets:
            axis = let.node.axis if isinstance(let.node, Stream) else None
            if axis is not None and axis in cut and (axis.split or axis.piece):
                return let, axis
        return None

    # --- the rule of each node ---

    def visit(self, let: Let) -> None:
        """Send the cotangent of a value to its operands."""
        self.visited = let.value
        with self.f.placed(let.loc):
            if isinstance(let.node, Stream):
                self.folds(let, let.node)
            elif isinstance(let.node, Store):
                self.stored(let, let.node)
            elif self.parts.get(let.value):
                g = self.gathered(_axes_of(let), self.parts.pop(let.value))
                if let.name and not any(x.value == g.value and x.name for x in self.b.open[-1]):
                    self.b.rename(g.value, f"d_{let.name}")
                self.node(let, g, union(_axes_of(let), g.axes))

    def stored(self, let: Let, node: Store) -> None:
        """Load the cotangent of what is stored to an output, from where it is stored."""
        if node.param not in self.given or node.value not in self.active:
            return
        index = tuple(self.f.value(i).value for i in node.index)
        guard = None if node.guard is None else self.f.value(node.guard).value
        name = f"d_{node.param}"
        g = self.t.wrap(self.b.let(Load(name, index, guard), name)).to(DType.F32)
        self.pull(node.value, self.leaving(g, None), g.axes)

    def node(self, let: Let, g: Tile, axes: tuple[Axis, ...]) -> None:
        """Apply the rule of a node to its cotangent, which varies along `axes`."""
        if let.value in self.f.readings:
            reading = self.f.readings[let.value]
            found = self.pulls.setdefault((reading.stream, reading.fold), [])
            found.append((reading.what, let.value, g))
            return
        match let.node:
            case Map1(fn=fn, x=x):
                self.send(let, g, axes, (x, MAP1[fn]))
            case Map2(fn=fn2, a=a, b=b):
                self.send(let, g, axes, *zip((a, b), MAP2[fn2], strict=True))
            case Math(fn=math, x=x):
                self.send(let, g, axes, (x, MATH[math]))
            case Fma(a=a, b=b, c=c):
                self.send(let, g, axes, *zip((a, b, c), (*MAP2[Fn2.MUL], same), strict=True))
            case Select(cond=cond, a=a, b=b):
                self.send(
                    let, g, axes,
                    (a, lambda g, at: L.where(self.f.value(cond), g, 0.0)),
                    (b, lambda g, at: L.where(self.f.value(cond), 0.0, g)),
                )  # fmt: skip
            case Cast(x=x) | Keep(x=x):
                self.send(let, g, axes, (x, same))
            case Load() as load:
                self.load(let, load, g, axes)
            case Reduce() as reduction:
                self.reduction(let, reduction, g, axes)
            case Dot() as dot:
                self.dot(let, dot, g, axes)
            case Result(of=of, index=index):
                self.result(let, self.f.lets[of], index, g)
            case Bits():
                raise self.f.refused(let, "the bits of a float")
            case Merge() | Loop() | Stream() | Store() | Check():
                raise AssertionError("no value of the traced form")
            case Param() | Const() | Pos() | Extent() | Philox():
                raise AssertionError("no function of an input")

    def send(self, let: Let, g: Tile, axes: tuple[Axis, ...], *to: tuple[Value, Slope | None]) -> None:
        """Send a cotangent through slopes to the operands that depend on a wanted input."""
        for value, slope in to:
            if value in self.active and slope is not None:
                self.pull(value, slope(g, _At(self.f, let)), axes)

    def load(self, let: Let, load: Load, g: Tile, axes: tuple[Axis, ...]) -> None:
        """Send a cotangent to an input, or to what a table was written with."""
        if load.guard is not None:
            guard = self.f.value(load.guard)
            if load.fill is not None:
                self.pull(load.fill, L.where(guard, 0.0, g), axes)
            g = L.where(guard, g, 0.0)
        gathered = self.f.gathers(load)
        dims = self.f.decls[load.param].type.axes
        if load.param not in self.inputs:
            for store in self.f.stores(load.param):
                assert isinstance(store.node, Store)
                if gathered or not self.f.is_whole(store.node):
                    raise self.f.refused(let, f"a gather from the table {load.param}")
                self.pull(store.node.value, g, axes)
            return
        if gathered:
            if len(gathered) > 1 or not {*_axes_of(let)} <= {*dims} - {*gathered}:
                what = f"a gather of {load.param}, in which several may read one element"
                raise self.f.refused(let, what, "sum over those that read an element in a stream")
            (dim,) = gathered
            index = self.f.value(load.index[dims.index(dim)])
            g = L.where(L.pos(dim).to(index.dtype) == index, g, 0.0)
        self.inputs[load.param].append(_Part(self.leaving(g, None), union(axes, tuple(gathered))))

    def reduction(self, let: Let, node: Reduce, g: Tile, axes: tuple[Axis, ...]) -> None:
        """Send a cotangent to all that is summed, or to the first of the largest (smallest) elements."""
        if node.fn is not Combine.ADD:
            over = node.over
            hits = L.where(self.f.value(node.x) == self.f.value(let.value), L.pos(over), L.extent(over))
            g = L.where(L.pos(over) == L.min(hits, over=over), g, 0.0)
        self.pull(node.x, g, union(axes, (node.over,)))

    def dot(self, let: Let, node: Dot, g: Tile, axes: tuple[Axis, ...]) -> None:
        """Send g b to a and g a to b, each contracted over the axis that the other factor alone has.

        Before a contraction of 16-bit factors g is rounded to their dtype, and materialized; factors of fp8,
        which are f16 in the product, are bf16 here: f16 has no room for cotangents of nobody's scaling.
        """
        a8, b8 = self.float8_of(node.a), self.float8_of(node.b)
        if a8 is None or b8 is None:  # a product of 16 bits, whatever one factor was cast from
            a8 = b8 = None
        if node.onto is not None:
            self.pull(node.onto, g, axes)
        for axis in node.each or ():
            g = self.along_axis(g, axis)  # both factors of a product have all batch axes
        for factor, other, source in ((node.a, node.b, b8), (node.b, node.a, a8)):
            if factor not in self.active:
                continue
            y = self.f.value(other) if source is None else self.f.value(source).to(DType.BF16)
            own = [a for a in y.axes if a not in (node.over, *(node.each or ()))]
            if len(own) > 1:
                what = f"a product with a factor over {' and '.join(map(str, own))}"
                raise self.f.refused(let, what, "contract factors with one axis of their own")
            if not own or own[0] not in g.axes:
                made = self.summed(g * y.to(DType.F32), tuple(own))
            else:
                rows = [a for a in _axes_of(self.f.lets[factor]) if a not in (node.over, *(node.each or ()))]
                full = g if y.dtype is DType.F32 else reduce(self.along_axis, rows, g)  # no vector: a tile
                made = self.product(self.factor(let, full, y.dtype), y, own[0], node.each or ())
                if (own[0].split or own[0].piece) and self.f.uses(factor) > 1:  # one such product in a sum
                    made = self.materialized(made, f"d_{let.name or 'z'}_product")
            self.pull(factor, made, _axes_of(self.f.lets[factor]))

    def float8_of(self, factor: Value) -> Value | None:
        """Return the tile of e4m3 or e5m2 that a factor of a product is a cast from, if it is one."""
        let = self.f.lets[factor]
        while isinstance(let.node, Cast):
            let = self.f.lets[let.node.x]
            if isinstance(let.type, TileType) and let.type.dtype.is_float8:
                return let.value
        return None

    @staticmethod
    def along_axis(g: Tile, axis: Axis) -> Tile:
        """Return a cotangent that varies along an axis, in whose elements it is the same."""
        return g if axis in g.axes else L.where(L.pos(axis) < L.extent(axis), g, 0.0)

    def factor(self, let: Let, g: Tile, dtype: DType) -> Tile:
        """Return a cotangent as a factor of a contraction: rounded, and in memory."""
        node, key = self.b.node(g.value), (g.value, dtype)
        is_widened = isinstance(node, Cast) and self.b.tile(node.x).dtype is dtype
        rounded = self.t.wrap(node.x) if isinstance(node, Cast) and is_widened else g.to(dtype)
        if isinstance(self.b.node(rounded.value), Load | Keep):
            return rounded
        if key not in self.factors:
            name = f"d_{let.name or 'z'}_{dtype}"
            self.factors[key] = self.materialized(rounded, name)
        return self.factors[key]

    def materialized(self, tile: Tile, name: str) -> Tile:
        """Return a value in memory: by pieces of its axes, unless sums over rows stream one of them."""
        if self.rows_apart in tile.axes:
            return self.f.in_memory(tile, name)
        return self.t.wrap(self.b.let(Keep(tile.value), name))

    def product(self, a: Tile, b: Tile, over: Axis, each: tuple[Axis, ...]) -> Tile:
        """Return a contraction; of rows that are summed too, over an axis of their name without chunks."""
        if over != self.rows_apart:
            return L.dot(a, b, over=over, each=each)
        alone = replace(over, chunk=None, leaf="chunk")
        return L.dot(self.read_along(a, over, alone), self.read_along(b, over, alone), over=alone, each=each)

    def read_along(self, tile: Tile, axis: Axis, alone: Axis) -> Tile:
        """Return a factor in memory, read along another axis of the same name."""
        node = self.b.node(tile.value)
        if not isinstance(node, Load) or not any(self.b.node(i) == Pos(axis) for i in node.index):
            node = self.b.node(self.f.in_memory(tile, "factor").value)
        assert isinstance(node, Load)
        index = tuple(self.b.let(Pos(alone)) if self.b.node(i) == Pos(axis) else i for i in node.index)
        return self.t.wrap(self.b.let(replace(node, index=index), node.param))

    # --- folds ---

    def result(self, let: Let, source: Let, index: int, g: Tile) -> None:
        """Note the cotangent of a fold's value; refuse that of a value without a rule."""
        stream = source.node
        if not isinstance(stream, Stream):
            raise self.f.refused(let, "merged states")
        fold, at = component(stream, index)
        if fold is None:
            raise self.f.recurrence(source)
        monoid = stream.folds[fold].monoid
        if monoid.is_softmax:
            what = f"{monoid.state[at]}, a state of a softmax fold"
            line = replace(let, loc=stream.folds[fold].loc)
            raise self.f.refused(line, what, "read .lse(), .mean(name) or .entropy()")
        what = str(at) if monoid.count else monoid.kind.value
        self.pulls.setdefault((source.value, fold), []).append((what, let.value, g))

    def folds(self, let: Let, stream: Stream) -> None:
        """Send the cotangents of folds to what was absorbed, element by element along the axis."""
        for i, fold in enumerate(stream.folds):
            found = self.pulls.pop((let.value, i), [])
            if not found:
                continue
            with self.f.placed(fold.loc):
                self.check_fold(let, fold)
                if fold.monoid.is_softmax:
                    self.softmax(let, i, fold, found)
                    continue
                for what, _, g in found:
                    if fold.monoid.kind in (Kind.ARGMAX, Kind.TOP_K, Kind.LARGEST):
                        of = fold.monoid.count + int(what) if fold.monoid.count else 1
                        at = _argmax_beside(stream, fold) if fold.monoid.kind is Kind.LARGEST else i
                        best = self.f.result(let.value, first_result(stream, at) + of)
                        g = L.where(L.pos(self.f.flat.get(stream.axis, stream.axis)) == best, g, 0.0)
                    self.absorbed(let, fold.inputs[0], g)

    def check_fold(self, let: Let, fold: Fold) -> None:
        """Raise for a fold without a rule."""
        line = replace(let, loc=fold.loc)
        self.f.check_whole(line)
        if fold.kept or fold.open or fold.after or fold.monoid.contracts:
            raise self.f.refused(line, "a fold of products, or with kept or open states")
        score, *payloads = ({*_axes_of(self.f.lets[v])} for v in fold.inputs)
        if any(not axes <= score for axes in payloads):
            raise self.f.refused(line, "a payload that is contracted, as in attention")

    def absorbed(self, stream: Let, value: Value, g: Tile) -> None:
        """Send a cotangent to what a fold absorbed; out of the stream's body as `leaving` does."""
        assert isinstance(stream.node, Stream)
        g = g if self.f.home.get(value) is stream else self.visible(stream, g)
        axis = self.f.flat.get(stream.node.axis, stream.node.axis)
        self.pull(value, g, union(_axes_of(self.f.lets[value]), g.axes, (axis,)))

    def visible(self, stream: Let, g: Tile) -> Tile:
        """Return a cotangent of an element of a stream: 0 where the axis is empty."""
        assert isinstance(stream.node, Stream)
        when = stream.node.when
        return g if when is None else L.where(self.f.value(when), g, 0.0)

    def softmax(self, let: Let, index: int, fold: Fold, pulls: list[tuple[str, Value, Tile]]) -> None:
        """Send cotangents to scores z and payloads x, with p = e^(z - lse).

        lse: g p to z. Mean m of x: g p to x, g p (x - m) to z. Entropy H: -g p (z - lse + H) to z. Scores of
        a power sum are z / ln 2.
        """
        powers = fold.monoid.kind is Kind.POWER_SUM
        scores, *payloads = fold.inputs
        z = self.f.value(scores)
        centred = (z * LN2 if powers else z) - self.lse(let, index, powers)
        p = L.softmax_exp2(centred * LOG2E)
        for what, value, g in pulls:
            gp = g * p
            if what == "lse":
                slope = gp
            else:
                read = self.f.value(value)
                if what == "entropy":
                    slope = L.where(p > 0.0, -(gp * (centred + read)), 0.0)
                else:
                    x = payloads[fold.monoid.payloads.index(what.removeprefix("."))]
                    slope = gp * (self.f.value(x).to(DType.F32) - read)
                    self.absorbed(let, x, gp)
            self.absorbed(let, scores, slope * LN2 if powers else slope)

    def lse(self, let: Let, index: int, powers: bool) -> Tile:
        """Return the log-sum-exp of a fold's scores, in memory."""
        for value, reading in self.f.readings.items():
            if reading == Reading(let.value, index, "lse"):
                return self.f.value(value)
        assert isinstance(let.node, Stream)
        first = first_result(let.node, index)
        m, s = (self.f.result(let.value, first + i) for i in range(2))
        return (m * LN2 if powers else m) + L.log(s)


# --- values of the gradient -----------------------------------------------------------------------


def _argmax_beside(stream: Stream, largest: Fold) -> int:
    """Return the argmax fold of what another fold takes the largest of."""
    return next(
        i
        for i, fold in enumerate(stream.folds)
        if fold.monoid.kind is Kind.ARGMAX and fold.inputs == largest.inputs
    )


def _axes_of(let: Let) -> tuple[Axis, ...]:
    match let.type:
        case TileType(axes=axes):
            return axes
        case TupleType(items=items):
            return union(*(item.axes for item in items))
        case NoType():
            return ()


def _backward(
    lets: Mapping[Value, Let], axis: Axis, values: Iterable[Value], ends: Collection[Value] = ()
) -> set[Value]:
    """Return the values along an axis that others depend on, down to the first of `ends`."""
    found, waiting = set[Value](), list(values)
    while waiting:
        value = waiting.pop()
        if value not in found and value in lets and axis in _axes_of(lets[value]):
            found.add(value)
            waiting += () if value in ends else operands(lets[value].node)
    return found


def _is_costly(let: Let, lets: Mapping[Value, Let]) -> bool:
    """Return whether a stream should read a value in place of computing it in each of its steps."""
    match let.node:
        case Dot() | Keep() | Merge() | Stream():
            return True
        case Result(of=of):
            return not isinstance(lets[of].node, Philox)
        case _:
            return False
