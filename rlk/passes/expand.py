"""Rewrite streams and folds into loops over chunks, pieces as an axis, and merges: the core of the IR."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlk.errors import Code, UnsupportedError
from rlk.ir import fold as folds
from rlk.ir.build import Builder
from rlk.ir.dims import Axis, without
from rlk.ir.nodes import (
    Block,
    Cast,
    Check,
    Decl,
    Extent,
    Fn2,
    Fold,
    Kernel,
    Let,
    Load,
    Loop,
    Merge,
    Pos,
    Result,
    Role,
    Store,
    Stream,
    Value,
    operands,
)
from rlk.ir.tree import Rule
from rlk.ir.types import DType, TileType
from rlk.passes.rewrite import Replay, rewrite

State = tuple[Value, ...]


def expand(kernel: Kernel, apart: frozenset[str] = frozenset()) -> Kernel:
    """Return the kernel without streams.

    A stream over an axis A of n elements, in chunks of c, becomes a `Loop` over steps; inside, an element
    sits at piece * size + step * c + lane. With A.split the piece is an index of the axis A.piece, and piece
    states merge by `Tree.pairwise`; with A.piece (a size) the states of pieces go through a workspace and
    merge in ascending order, one at a time or A.fan_in at once: `cut` puts the cut there. What steps hand on
    is carried by the loop; a step whose element does not exist hands on what it got.
    """
    return rewrite(kernel, _Expand(apart))


@dataclass(slots=True)
class _Expand:
    """The rule: streams become loops, and their results the states that the loops leave."""

    apart: frozenset[str]
    states: dict[Value, list[Value]] = field(default_factory=dict)

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Stream() as stream:
                if stream.axis.leaf != "chunk":
                    raise UnsupportedError(
                        Code.UNSUPPORTED,
                        let.loc,
                        what=f"leaf={stream.axis.leaf!r} of axis {stream.axis}",
                        backend="the expansion of streams",
                        target="any target",
                        alternatives='leaf="chunk"',
                    )
                self.states[let.value] = _stream(replay, stream, self.apart)
                return True
            case Result(of=of, index=index) if of in self.states:
                replay.renamed[let.value] = self.states[of][index]
                return True
            case _:
                return False


def _stream(replay: Replay, stream: Stream, apart: frozenset[str]) -> list[Value]:
    """Append what a stream means; return the states of its folds, in a row."""
    b = replay.builder
    begin, end = _pieces(replay, stream)
    if stream.axis.name in apart:
        states = _apart(replay, stream, begin, end)
    else:
        states = _loop(replay, stream, begin, end)
    if stream.axis.split is not None:
        states = [
            s
            if f.kept
            else b.results(b.let(Merge(f.monoid, s, stream.axis.pieces, Rule.PAIRWISE)), f.monoid.state)
            for f, s in zip(stream.folds, states, strict=True)
        ]
    elif stream.axis.piece is not None and stream.folds:
        states = _merge_ascending(b, stream, states, stream.axis.pieces)
    return [value for state in states for value in state]


def _merge_ascending(b: Builder, stream: Stream, states: list[State], over: Axis) -> list[State]:
    """Store the states along an axis, then load and merge them in order: `cut` makes this two kernels.

    One at a time, or a fan of them: combined along its lanes first, as the elements of a chunk are.
    """
    stored = [
        [
            _store_state(b, over, f"{n}_of_{over.part.value}", v)
            for n, v in zip(f.monoid.state, s, strict=True)
        ]
        for f, s in zip(stream.folds, states, strict=True)
    ]
    fan = over.fan
    start, count = b.i32(0), b.let(Extent(over))
    stop, full = (count, None) if fan is None else _steps(b, count, fan.chunk or 1)
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        if fan is None:
            exists, loaded = None, _loaded(b, stored, step)
        else:
            exists, loaded = _fan(b, stream.folds, stored, fan, step, count)
        carried, merged = _carry(b, stream.folds, loaded)
    init = _identities(b, stream.folds, loaded)
    types = tuple(b.tile(v) for v in carried)
    body = Block((step, *carried), tuple(lets), merged)
    made = b.let(Loop(over, start, stop, init, types, body, full, exists))
    results = iter(b.results(made, tuple(n for f in stream.folds for n in f.monoid.state)))
    return [tuple(next(results) for _ in state) for state in loaded]


def _steps(b: Builder, length: Value, chunk: int) -> tuple[Value, Value]:
    """Return in how many chunks a length is walked, and how many of them are full."""
    stop = b.map2(Fn2.DIV, b.add(length, b.i32(chunk - 1)), b.i32(chunk), "steps")
    return stop, b.map2(Fn2.DIV, length, b.i32(chunk), "full_steps")


def _fan(
    b: Builder, folded: tuple[Fold, ...], stored: list[list[str]], fan: Axis, step: Value, count: Value
) -> tuple[Value, list[State]]:
    """Append the reading of one fan of states; return which of them exist, and each fold's of them all."""
    name = fan.name.lower()
    at = b.add(b.mul(step, b.i32(fan.chunk or 1)), b.let(Pos(fan), f"{name}_lane"), name)
    exists = b.map2(Fn2.LT, at, count, "exists")
    states = _loaded(b, stored, at, exists)
    pairs = zip(folded, states, strict=True)
    return exists, [folds.leaf(b, f.monoid, state, fan, exists, at) for f, state in pairs]


def _store_state(b: Builder, over: Axis, name: str, value: Value) -> str:
    """Store one component of the states to a workspace of its own; return the workspace's name."""
    unique = f"{name}{sum(1 for d in b.params.values() if d.role is Role.WORK) or ''}"
    tile = b.tile(value)
    axes = (over, *without(tile.axes, over))
    b.params[unique] = Decl(unique, TileType(tile.dtype, axes), Role.WORK)
    b.let(Store(unique, tuple(b.let(Pos(axis)) for axis in axes), value))
    return unique


def _loaded(b: Builder, stored: list[list[str]], at: Value, exists: Value | None = None) -> list[State]:
    """Load the states that were stored at a place of their axis, where they exist."""
    return [tuple(_load_state(b, name, at, exists) for name in names) for names in stored]


def _load_state(b: Builder, name: str, at: Value, exists: Value | None) -> Value:
    rows = b.params[name].type.axes[1:]
    return b.let(Load(name, (at, *(b.let(Pos(axis)) for axis in rows)), exists), name)


def _identities(b: Builder, folded: tuple[Fold, ...], states: list[State]) -> State:
    return tuple(
        identity
        for f, state in zip(folded, states, strict=True)
        for identity in folds.init(b, f.monoid, b.tile(state[0]).dtype)
    )


def _pieces(replay: Replay, stream: Stream) -> tuple[Value, Value]:
    """Return where the pieces begin and end, i32, over the piece axis if there is one."""
    b, axis = replay.builder, stream.axis
    low = b.i32(0) if stream.begin is None else _as_i32(b, replay[stream.begin])
    high = b.let(Extent(axis)) if stream.end is None else _as_i32(b, replay[stream.end])
    if axis.split is None and axis.piece is None:
        return low, high
    if axis.split is not None:
        length = b.sub(high, low)
        size = b.map2(Fn2.DIV, b.add(length, b.i32(axis.split - 1)), b.i32(axis.split), "piece_size")
    else:
        size = b.i32(axis.piece or 0)
    piece = b.let(Pos(axis.pieces), f"{axis.name.lower()}_piece")
    begin = b.min(high, b.add(low, b.mul(piece, size)), "piece_begin")
    return begin, b.min(high, b.add(begin, size), "piece_end")


def _as_i32(b: Builder, value: Value) -> Value:
    return value if b.tile(value).dtype is DType.I32 else b.let(Cast(value, DType.I32))


def _loop(replay: Replay, stream: Stream, begin: Value, end: Value) -> list[State]:
    """Append the loop over steps; return the states of each fold, and behind them what is carried."""
    b, axis = replay.builder, stream.axis
    chunk = axis.chunk or 1
    first = tuple(replay[v] for v in stream.init)
    stop, full = _steps(b, b.sub(end, begin), chunk)
    start = b.i32(0)
    when = replay.optional(stream.when)
    if when is not None:
        # a choice between two numbers that static extents decide: one bound for the whole tile
        stop, full = b.select(when, stop, start, "steps"), b.select(when, full, start, "full_steps")
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        held = replay.carried(stream.body.args, stream.types)
        exists, leaves = _chunk(replay, stream, begin, end, step)
        carried, merged = _carry(b, stream.folds, leaves)
        handed = tuple(
            b.select(exists, replay[v], old) for v, old in zip(stream.body.results, held, strict=True)
        )
    init = _identities(b, stream.folds, leaves)
    types = tuple(b.tile(v) for v in carried)
    body = Block((step, *carried, *held), tuple(lets), (*merged, *handed))
    made = b.let(Loop(axis, start, stop, (*init, *first), (*types, *stream.types), body, full, exists))
    results = iter(b.results(made, (*(n for f in stream.folds for n in f.monoid.state), *("" for _ in held))))
    return [tuple(next(results) for _ in state) for state in (*leaves, *((held,) if held else ()))]


def _apart(replay: Replay, stream: Stream, begin: Value, end: Value) -> list[State]:
    """Append all chunks side by side, along an axis of steps; return the states merged in step order."""
    b, steps = replay.builder, stream.axis.steps
    step = b.let(Pos(steps), f"{stream.axis.name.lower()}_step")
    _, leaves = _chunk(replay, stream, begin, end, step)
    return _merge_ascending(b, stream, leaves, steps) if stream.folds else leaves


def _chunk(
    replay: Replay, stream: Stream, begin: Value, end: Value, step: Value
) -> tuple[Value, list[State]]:
    """Append the body for one step; return which of its elements exist, and the states of the chunk."""
    b, axis = replay.builder, stream.axis
    chunk = axis.chunk or 1
    lanes = axis.lanes if chunk > 1 else None
    if stream.reverse:
        pos = b.sub(b.sub(end, b.i32(1)), step, axis.name.lower())
        inside = b.map2(Fn2.LE, begin, pos, "exists")
    else:
        pos = b.add(begin, b.mul(step, b.i32(chunk)))
        if lanes is not None:
            pos = b.add(pos, b.let(Pos(lanes), f"{axis.name.lower()}_lane"), axis.name.lower())
        inside = b.map2(Fn2.LT, pos, end, "exists")
    exists = inside
    if stream.when is not None:
        exists = b.map2(Fn2.AND, inside, replay[stream.when], "exists")
    place = b.loc
    body = _Body(replay, axis, pos, inside, exists)
    body.streamed.update(stream.body.args)
    body.replay(stream.body.lets)
    b.loc = place
    return exists, [
        folds.leaf(b, f.monoid, tuple(replay[v] for v in f.inputs), None if f.kept else lanes, exists, pos)
        for f in stream.folds
    ]


def _carry(b: Builder, folded: tuple[Fold, ...], leaves: list[State]) -> tuple[State, State]:
    """Merge each fold's carried state with the chunk's; return the carried arguments and merged values."""
    carried: list[Value] = []
    merged: list[Value] = []
    for f, state in zip(folded, leaves, strict=True):
        args = tuple(b.fresh(b.types[v]) for v in state)
        carried += args
        merged += folds.merge(b, f.monoid, args, state)
    return tuple(carried), tuple(merged)


class _Body:
    """Replays a stream's body: its positions become piece, step and lane; its loads and stores get guards."""

    def __init__(self, replay: Replay, axis: Axis, pos: Value, inside: Value, exists: Value) -> None:
        self.outer, self.axis, self.pos = replay, axis, pos
        self.inside, self.exists = inside, exists
        self.streamed: set[Value] = set()

    def replay(self, lets: tuple[Let, ...]) -> None:
        r, b = self.outer, self.outer.builder
        for let in lets:
            b.loc = let.loc
            if self.streamed.intersection(operands(let.node)):
                self.streamed.add(let.value)
            match let.node:
                case Pos(axis=axis) if axis == self.axis:
                    r.renamed[let.value] = self.pos
                    self.streamed.add(let.value)
                case Load(param=param, index=index, guard=guard, fill=fill) if let.value in self.streamed:
                    new = tuple(r[i] for i in index)
                    node = Load(param, new, self._and(self._read(new), guard), r.optional(fill))
                    r.renamed[let.value] = b.let(node, let.name)
                case Store(param=param, index=index, value=value, guard=guard):
                    b.let(Store(param, tuple(r[i] for i in index), r[value], self._and(self.exists, guard)))
                case Check(bad=bad, what=what):
                    b.let(Check(b.map2(Fn2.AND, self.exists, r[bad]), what))
                case _:
                    if not r.rule(r, let):
                        r.copy(let)

    def _read(self, index: tuple[Value, ...]) -> Value:
        """Return where a load reads: a tensor without the rows of `when` is read for all of them at once."""
        b = self.outer.builder
        rows = set(b.tile(self.exists).axes) - set(b.tile(self.inside).axes)
        return self.exists if rows <= {a for i in index for a in b.tile(i).axes} else self.inside

    def _and(self, exists: Value, guard: Value | None) -> Value:
        r = self.outer
        return exists if guard is None else r.builder.map2(Fn2.AND, exists, r[guard])
