"""The values of a traced program inside of its gradient: read where they are saved, else computed again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from rlk.errors import Code, Loc, SpecError
from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Check,
    Const,
    Dot,
    Keep,
    Kernel,
    Let,
    Load,
    Pos,
    Reduce,
    Result,
    Role,
    Store,
    Stream,
    Value,
    bounds_of,
    operands,
    with_operands,
)
from rlk.ir.types import TileType, TupleType
from rlk.lang.readings import component, readings
from rlk.lang.surface import L
from rlk.lang.trace import TensorArg, Tile, Tracer

_WARNED: dict[str | tuple[str, type[Warning], int], int] = {}  # what was said, and of which lines
_BOUNDS = ("begin", "end", "when", "since", "until", "row", "kept", "after")


def tape_of(block: Block) -> Iterator[Let]:
    """Yield every let in order; those of a stream's body before the stream."""
    for let in block.lets:
        if isinstance(let.node, Stream):
            yield from tape_of(let.node.body)
        yield let


def active_values(tape: tuple[Let, ...], wanted: frozenset[str]) -> frozenset[Value]:
    """Return the floats (and streams of such) that depend on a wanted input through floats.

    So does a carried value of a stream in which anything does, and a float made of the bits of such a float.
    """
    found: set[Value] = set()
    while True:
        before = len(found)
        _spread(tape, wanted, found)
        for stream in (let.node for let in tape if isinstance(let.node, Stream)):
            inner = {*stream.init, *(let.value for let in stream.body.lets)}
            if not inner.isdisjoint(found):
                found |= {*stream.body.args}
        if len(found) == before:
            return frozenset(found)


def _spread(tape: tuple[Let, ...], wanted: frozenset[str], found: set[Value]) -> None:
    """Add the values that depend on a wanted input or on values that were found before."""
    lets = {let.value: let for let in tape}
    bits: set[Value] = set()  # integers made of the bits of active floats
    tables: set[str] = set()
    for let in tape:
        read = {*operands(let.node)}
        match let.node:
            case Stream(init=init, body=body, folds=folds):
                read |= {*init, *body.results, *(v for f in folds for v in f.inputs)}
                hit = not read.isdisjoint(found)
            case Load(param=name, fill=fill):
                hit = name in wanted or name in tables or fill in found
            case Store(param=name, value=value):
                tables |= {name} if value in found else set()
                hit = False
            case Bits(x=x):
                hit = x in found or x in bits
            case Cast(x=x):
                hit = x in found
            case Result(of=of, index=index) if isinstance(lets[of].node, Stream):
                hit = of in found and _is_active(lets[of].node, index, found)
            case _:
                hit = not read.isdisjoint(found)
        is_tile = isinstance(let.type, TileType)
        if hit and not (isinstance(let.type, TileType) and not let.type.dtype.is_float):
            found.add(let.value)
        if not read.isdisjoint(bits) or hit and isinstance(let.node, Bits) and is_tile:
            bits.add(let.value)


def _is_active(stream: object, index: int, active: set[Value]) -> bool:
    assert isinstance(stream, Stream)
    fold, _ = component(stream, index)
    return fold is None or not active.isdisjoint(stream.folds[fold].inputs)


def _renamed(let: Let, axes: Mapping[Axis, Axis]) -> Let:
    """Return a let along other axes; a stream's body is as before."""
    node = let.node
    match node:
        case Pos(axis=axis):
            node = Pos(axes.get(axis, axis))
        case Reduce(over=over):
            node = replace(node, over=axes.get(over, over))
        case Dot(over=over, each=each):
            batch = each and tuple(axes.get(a, a) for a in each)
            node = replace(node, over=axes.get(over, over), each=batch)
        case _:
            pass
    match let.type:
        case TileType() as tile:
            return replace(let, node=node, type=_renamed_type(tile, axes))
        case TupleType(items=items):
            return replace(let, type=TupleType(tuple(_renamed_type(t, axes) for t in items)))
        case _:
            return let


def _renamed_type(type: TileType, axes: Mapping[Axis, Axis]) -> TileType:
    return replace(type, axes=tuple(axes.get(a, a) for a in type.axes))


class Forward:
    """The traced program of an operator, and those of its values that the gradient has.

    tracer: of the gradient. saves: the inputs and outputs that it reads. apart: axes that the gradient
    streams and contracts: outside of the spec's streams they are others, of their names, without chunks.
    """

    def __init__(
        self,
        tracer: Tracer,
        kernel: Kernel,
        name: str,
        loc: Loc,
        saves: tuple[str, ...],
        apart: frozenset[Axis] = frozenset(),
    ) -> None:
        self.t, self.b = tracer, tracer.builder
        self.name, self.loc, self.saves = name, loc, saves
        mine = {let.node.axis for let in tape_of(kernel.body) if isinstance(let.node, Stream)}
        self.flat = {axis: replace(axis, chunk=None, leaf="chunk") for axis in apart & mine}
        self.streamed = {flat: axis for axis, flat in self.flat.items()}
        self.tape = tuple(_renamed(let, self.flat) for let in tape_of(kernel.body))
        self.lets = {let.value: let for let in self.tape}
        self.params = {d.name: d for d in kernel.params}
        self.decls = {n: replace(d, type=_renamed_type(d.type, self.flat)) for n, d in self.params.items()}
        streams = [let for let in self.tape if isinstance(let.node, Stream)]
        for node in (let.node for let in streams):
            if isinstance(node, Stream):
                self._refuse_nests(node)
        self.home = {x.value: s for s in streams if isinstance(s.node, Stream) for x in s.node.body.lets}
        self.carried = {v: s for s in streams if isinstance(s.node, Stream) for v in s.node.body.args}
        self.saved = dict(self._saved())
        self.readings = dict(readings(self.lets))
        self.found = {*self.readings, *self._values_of_folds()}
        self.env: dict[Value, Value] = {}
        self.kept: dict[Value, Value] = {}

    def _refuse_nests(self, stream: Stream) -> None:
        """Raise for what no derivative is known of in a stream's body."""
        for let in stream.body.lets:
            if isinstance(let.node, Stream):
                raise self.refused(let, "a stream inside a stream")
            if isinstance(let.node, Reduce) and let.node.over == stream.axis:
                raise self.refused(let, f"a reduction of a chunk of {stream.axis}")

    def _saved(self) -> Iterator[tuple[Value, str]]:
        """Yield the values that the gradient reads from a saved output, each with its name."""
        for let in self.tape:
            node = let.node
            if isinstance(node, Store) and node.param in self.saves and self.is_whole(node):
                yield node.value, node.param

    def _values_of_folds(self) -> Iterator[Value]:
        """Yield the values of sums and of largest elements; those of softmax folds are in `readings`."""
        for let in self.tape:
            stream = self.lets[let.node.of].node if isinstance(let.node, Result) else None
            if isinstance(let.node, Result) and isinstance(stream, Stream):
                fold, _ = component(stream, let.node.index)
                if fold is None or not stream.folds[fold].monoid.is_softmax:
                    yield let.value

    def has_chunks(self, axis: Axis) -> bool:
        """Return whether a sum over an axis is a stream."""
        return self.streamed.get(axis, axis).chunk is not None

    def refused(self, let: Let, what: str, instead: str = "") -> SpecError:
        """Return the error of a node without a rule, at the author's line."""
        write = f"write the gradient: @{self.name}.vjp(...)"
        instead = f"{instead}; or {write}" if instead else write
        return SpecError(Code.VJP_DERIVED, let.loc, op=self.name, what=what, instead=instead)

    def recurrence(self, stream: Let) -> SpecError:
        return self.refused(stream, "a recurrence", "carry the gradient from the other end (reverse=True)")

    @contextmanager
    def placed(self, loc: Loc) -> Iterator[None]:
        """Give what is recorded inside the author's line of the forward."""
        before, self.t.place = self.t.place, loc
        try:
            yield
        finally:
            self.t.place = before

    # --- what the forward does ---

    def is_whole(self, node: Load | Store) -> bool:
        """Return whether a tensor is read or written at its own positions, without a condition."""
        return node.guard is None and not self.gathers(node)

    def gathers(self, node: Load | Store) -> list[Axis]:
        """Return the dims of a tensor that are not indexed by their own positions."""
        dims = self.decls[node.param].type.axes
        return [d for d, i in zip(dims, node.index, strict=True) if self.lets[i].node != Pos(d)]

    def stores(self, name: str) -> list[Let]:
        """Return the stores to an output or a table."""
        return [let for let in self.tape if isinstance(let.node, Store) and let.node.param == name]

    def uses(self, value: Value) -> int:
        """Return how many nodes read a value."""
        return sum(value in operands(let.node) for let in self.tape)

    # --- values in the gradient ---

    def value(self, value: Value) -> Tile:
        """Return a value of the forward: read, if the operator saves it, else computed again."""
        for let in self._missing([value]):
            with self.placed(let.loc):
                self._again(let)
        return self.t.wrap(self.env[value])

    def result(self, of: Value, index: int) -> Tile:
        """Return a result of a stream of the forward, in memory."""
        for let in self.tape:
            if let.node == Result(of, index):
                return self.in_memory(self.value(let.value), let.name)
        for let in self._missing([of]):
            self._again(let)
        return self.in_memory(self.t.wrap(self.b.let(Result(self.env[of], index))), "state")

    def in_memory(self, tile: Tile, name: str) -> Tile:
        """Return a value materialized, unless it is read: no element along a stream runs the stream again."""
        if isinstance(self.b.node(tile.value), Load | Keep):
            return tile
        if tile.value not in self.kept:
            self.kept[tile.value] = self.table(tile, name).at(*tile.axes).value
        return self.t.wrap(self.kept[tile.value])

    def table(self, tile: Tile, name: str) -> TensorArg:
        """Materialize a value of the gradient."""
        stem = f"{name or 'value'}_kept"
        free = (stem, *(f"{stem}_{i}" for i in range(2, len(self.b.params) + 3)))
        axes = tuple(self.streamed.get(a, a) for a in tile.axes)
        where = {self.streamed[a]: L.pos(a) for a in tile.axes if a in self.streamed}
        return self.t.table(next(n for n in free if n not in self.b.params), tile, axes, where, None)

    def _missing(self, values: list[Value]) -> list[Let]:
        """Return what is not computed yet of all that values depend on, in the forward's order."""
        found: set[Value] = set()
        while values:
            value = values.pop()
            if value in self.env or value in found:
                continue
            if value in self.carried:
                raise self.recurrence(self.carried[value])
            if value in self.home:
                self.check_whole(self.home[value])
            found.add(value)
            if value not in self.saved:
                values += self._reads(self.lets[value])
        return [let for let in self.tape if let.value in found]

    def check_whole(self, let: Let) -> None:
        """Raise for a stream of segments: an element of the axis does not know its segment."""
        assert isinstance(let.node, Stream)
        begin, end, _, since, until, row, kept, after = bounds_of(let.node)
        if any(v is not None for v in (begin, end, since, until, row, kept, after)):
            what = f"a stream of segments of {let.node.axis}"
            raise self.refused(let, what, "gather by the index of each element's segment")

    def _reads(self, let: Let) -> list[Value]:
        """Return the values outside of it that a node needs."""
        found = [*operands(let.node)]
        match let.node:
            case Stream(body=body, folds=folds):
                inner = {*body.args, *(x.value for x in body.lets)}
                free = [v for x in body.lets if not isinstance(x.node, Store | Check) for v in self._reads(x)]
                free += [*body.results, *(v for fold in folds for v in fold.inputs)]
                found += [v for v in free if v not in inner]
            case Load(param=name) if self.decls[name].role is Role.WORK:
                found += [v for s in self.stores(name) for v in operands(s.node)]
            case _:
                pass
        return found

    def _again(self, let: Let) -> None:
        """Record a value of the forward in the gradient."""
        if let.value in self.saved:
            tensor = TensorArg(self.t, self.b.params[self.saved[let.value]])
            self.env[let.value] = tensor.at(*(self.flat.get(a, a) for a in tensor.axes)).value
            return
        self._provide(let)
        if isinstance(let.node, Stream):
            self.env[let.value] = self.b.let(self._stream(let.node), let.name)
        else:
            self.env[let.value] = self.copy(let, self.env)
        if let.value in self.found:
            read = self.readings.get(let.value)
            name = let.name or ("" if read is None else read.what.removeprefix("."))
            self._warn_of_products(let, name)
            self.env[let.value] = self.in_memory(self.t.wrap(self.env[let.value]), name).value

    def _warn_of_products(self, let: Let, name: str) -> None:
        """Tell the author where a value is computed again that a stream of products was needed for."""
        streams = [self.lets[v].node for v in self._upstream(let.value)]
        if any(isinstance(x.node, Dot) for s in streams if isinstance(s, Stream) for x in s.body.lets):
            what, short = name or "a value of its stream", name or "v"
            text = (
                f"{self.name}: the derived gradient computes {what} again, and with it all products of its "
                "stream, in a kernel that not every size has a schedule for: save it, "
                f'L.out(..., {short}=...) and saves=(..., "{short}")'
            )
            warnings.warn_explicit(text, UserWarning, let.loc.file, let.loc.line, registry=_WARNED)

    def _upstream(self, value: Value) -> set[Value]:
        """Return all values of the forward that a value depends on, up to those that are saved."""
        found, left = set[Value](), [value]
        while left:
            each = left.pop()
            if each not in found and each in self.lets and each not in self.saved:
                found.add(each)
                left += operands(self.lets[each].node)
        return found

    def _provide(self, let: Let) -> None:
        """Declare what a load reads: an input that is saved, or a table, which is written first."""
        for x in (*(let.node.body.lets if isinstance(let.node, Stream) else ()), let):
            if isinstance(x.node, Load) and x.node.param not in self.b.params:
                name = x.node.param
                if self.decls[name].role is not Role.WORK:
                    raise SpecError(Code.VJP_SAVED, x.loc, name=name, op=self.name)
                self.b.params[name] = self.params[name]
                for store in self.stores(name):
                    self.copy(store, self.env)

    def copy(self, let: Let, env: Mapping[Value, Value]) -> Value:
        """Append a node with renamed operands, at its line of the spec."""
        self.b.loc = let.loc
        if isinstance(let.node, Const):
            made = self.b.fresh(let.type)
            self.b.open[-1].append(replace(let, value=made))
            return made
        return self.b.let(with_operands(let.node, lambda v: env.get(v, v)), let.name)

    def _stream(self, stream: Stream) -> Stream:
        """Return a stream of the forward with renamed values; it stores nothing."""
        env = self.env
        with self.b.region() as lets:
            args = tuple(self.b.fresh(t) for t in stream.types)
            local = {**env, **dict(zip(stream.body.args, args, strict=True))}
            flat = {axis: other for axis, other in self.flat.items() if axis != stream.axis}
            for let in stream.body.lets:
                if not isinstance(let.node, Store | Check):
                    local[let.value] = self.copy(_renamed(let, flat), local)
            results = tuple(local[v] for v in stream.body.results)
        folds = tuple(
            replace(f, inputs=tuple(local[v] for v in f.inputs), after=tuple(env[v] for v in f.after))
            for f in stream.folds
        )
        values = (None if v is None else env[v] for v in bounds_of(stream))
        bounds = dict(zip(_BOUNDS, values, strict=True))
        body = Block(args, tuple(lets), results)
        init = tuple(env[v] for v in stream.init)
        return replace(stream, body=body, folds=folds, init=init, **bounds)  # type: ignore[arg-type]
