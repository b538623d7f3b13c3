"""Rewrite streams and folds into loops over chunks, pieces as an axis, and merges: the core of the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TypeVar

from rlk.errors import Loc, LoweringError
from rlk.ir import fold as folds
from rlk.ir import online
from rlk.ir.build import Builder
from rlk.ir.dims import Axis, Part, union, without
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import (
    Block,
    Cast,
    Check,
    Combine,
    Decl,
    Dot,
    Extent,
    Fn2,
    Fold,
    Kernel,
    Let,
    Load,
    Loop,
    Merge,
    Pos,
    Reduce,
    Result,
    Role,
    Store,
    Stream,
    Value,
    bounds_of,
    operands,
)
from rlk.ir.tree import Order, Rule
from rlk.ir.types import DType, TileType, TupleType
from rlk.passes.mask import identity
from rlk.passes.rewrite import Replay, rewrite

COUNTED = 32  # adjacent elements of a piece whose totals are lanes: 64 bytes of 16-bit elements, a warp's
State = tuple[Value, ...]
Merging = Callable[[Builder, Monoid, State, State], State]
X = TypeVar("X")


def expand(kernel: Kernel, apart: frozenset[str] = frozenset()) -> Kernel:
    """Return the kernel without streams.

    A stream over an axis A of n elements, in chunks of c, becomes a `Loop` over steps; the index of an
    element is piece * size + step * c + lane.

    - leaf "chunk": with A.split the piece is an index of the axis A.pieces, and piece states merge by
      `Tree.pairwise`; with A.piece (a size) the states of pieces go through a workspace and merge in
      ascending order, one at a time or A.fan_in at once: `cut` splits the kernel there. For A in `apart`
      chunks are parallel, along an axis of steps.
      For A in `apart`, integers that are kept for each piece of single elements are added in vectors of a
      piece, and go through a workspace: no order of theirs has other bits.
    - leaf "piece": one loop runs over the chunks of all pieces, and merges the state of a piece when the next
      one begins; for A in `apart` pieces are parallel, each with a loop of its own, and their states go
      through a workspace.
    - leaf "segment": one state takes all chunks.

    The loop carries the stream's carried values; a step whose element does not exist leaves them as they are.
    A stream in the body of another is a loop in the body of its loop. Its loads and stores have the masks of
    both, as far as they vary with the elements of both.
    """
    return rewrite(kernel, _Expand(apart))


@dataclass(slots=True)
class _Expand:
    """The rule: streams become loops, and their results the final states of these loops."""

    apart: frozenset[str]
    bodies: list[_Body] = field(default_factory=list)  # of open streams, the innermost last
    states: dict[Value, list[Value]] = field(default_factory=dict)
    names: dict[Value, set[str]] = field(default_factory=dict)  # of states as folds name them

    def __call__(self, replay: Replay, let: Let) -> bool:
        match let.node:
            case Stream() as stream:
                self.names[let.value] = {"", *(n for f in stream.folds for n in f.yielded)}
                if (stream.init or stream.reverse) and (stream.axis.chunk or 1) > 1:
                    stream = _one_by_one(stream)
                apart = frozenset[str]() if self.bodies else self.apart  # a step has one program
                if stream.axis.leaf == "chunk":
                    self.states[let.value] = _stream(replay, stream, apart)
                else:
                    _mergeable(stream, let.loc)
                    types = _types_of_states(replay, stream, let)
                    self.states[let.value] = _online(replay, stream, types, apart)
                return True
            case Result(of=of, index=index) if of in self.states:
                state = replay.renamed[let.value] = self.states[of][index]
                if let.name not in self.names[of]:  # the author's
                    replay.builder.rename(state, let.name)
                return True
            case _:
                return False


def _one_by_one(stream: Stream) -> Stream:
    """Return a stream with a carry, or in reverse, whose steps are single elements of its chunks."""
    old, axis = stream.axis, replace(stream.axis, chunk=1)

    def single(let: Let) -> Let:
        match let.node:
            case Pos(axis=found) if found == old:
                return replace(let, node=Pos(axis))
            case Dot(each=each) as dot if each and old in each:
                return replace(let, node=replace(dot, each=tuple(axis if x == old else x for x in each)))
            case Stream(body=body) as inner:
                lets = tuple(map(single, body.lets))
                return replace(let, node=replace(inner, body=replace(body, lets=lets)))
            case _:
                return let

    return replace(stream, axis=axis, body=replace(stream.body, lets=tuple(map(single, stream.body.lets))))


def _stream(replay: Replay, stream: Stream, apart: frozenset[str]) -> list[Value]:
    """Append the loops and merges of a stream whose folds restart at each chunk; return all states, flat."""
    b = replay.builder
    begin, end = _pieces(replay, stream)
    if stream.axis.name in apart and counts_pieces(stream):
        return _counted(replay, stream, begin, end)
    if stream.axis.name in apart:
        states = _parallel_steps(replay, stream, begin, end)
    else:
        states = _loop(replay, stream, begin, end)
    if stream.axis.split is not None:
        states = [_pairwise(b, f, s, stream.axis.pieces) for f, s in zip(stream.folds, states, strict=True)]
    elif stream.axis.piece is not None and stream.folds:
        states = _merge_ascending(b, stream, states, stream.axis.pieces)
    return [value for state in states for value in state]


def _pairwise(b: Builder, fold: Fold, state: State, pieces: Axis) -> State:
    """Append the merge of the states of pieces, where the fold does not yield them unmerged."""
    if fold.kept:
        return state
    with b.at(fold.loc):
        return b.results(b.let(Merge(fold.monoid, state, pieces, Rule.PAIRWISE)), fold.monoid.symbols)


def counts_pieces(stream: Stream) -> bool:
    """Return whether a stream of single elements does no more than to keep integer totals of each piece."""
    kinds = {fold.monoid.kind if fold.kept else None for fold in stream.folds}
    inputs = {v for fold in stream.folds for v in fold.inputs}
    dtypes = {
        let.type.dtype for let in stream.body.lets if let.value in inputs and isinstance(let.type, TileType)
    }
    whole = not stream.init and not stream.reverse and all(bound is None for bound in bounds_of(stream))
    single = stream.axis.split is not None and (stream.axis.chunk or 1) == 1
    acts = any(isinstance(let.node, Check | Store | Stream | Loop) for let in stream.body.lets)
    return single and whole and not acts and kinds == {Kind.TOTAL} and dtypes == {DType.I32}


def _counted(replay: Replay, stream: Stream, begin: Value, end: Value) -> list[Value]:
    """Append the totals of pieces by vectors of adjacent elements, and materialize them; return them."""
    b, axis = replay.builder, stream.axis
    wide = replace(axis, chunk=COUNTED, split=None)
    lets = tuple(replace(let, node=Pos(wide)) if let.node == Pos(axis) else let for let in stream.body.lets)
    body = replace(stream.body, lets=lets)
    states = _loop(replay, replace(stream, axis=wide, body=body), begin, end)
    found = [b.reduce(Combine.ADD, state, wide.lanes, None) for (state,) in states]
    # pieces last: a row's totals, which one program reads later, are adjacent
    axes = [tuple(sorted(b.tile(x).axes, key=lambda a: a.part is Part.PIECE)) for x in found]
    index = [tuple(b.let(Pos(a)) for a in each) for each in axes]
    names = [_workspace(b, f"sum_of_{axis.pieces.part.value}", DType.I32, each) for each in axes]
    for name, at, x in zip(names, index, found, strict=True):
        b.let(Store(name, at, x))
    return [b.let(Load(name, at), name) for name, at in zip(names, index, strict=True)]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of memory that have the states: at their own positions, or at an index of another axis."""

    axis: Axis | None = None
    row: Value | None = None
    kept: Value | None = None

    def place(self, b: Builder, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], tuple[Value, ...]]:
        """Return the dims of a tensor of states over these axes, and the index of each state there."""
        if self.axis is None or self.row is None:
            return axes, tuple(b.let(Pos(axis)) for axis in axes)
        rest = tuple(axis for axis in axes if axis not in b.tile(self.row).axes)
        return (self.axis, *rest), (self.row, *(b.let(Pos(axis)) for axis in rest))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A component of states in memory: its workspace, the axes of a state, and the rows of the workspace."""

    name: str
    axes: tuple[Axis, ...]
    rows: _Rows

    def load(self, b: Builder, at: Value, exists: Value | None, fill: Value | None = None) -> Value:
        """Append the load of the component at an index `at` of the stored axis, `fill` unless `exists`."""
        index = (at, *self.rows.place(b, self.axes)[1])
        return b.let(Load(self.name, index, _both(b, exists, self.rows.kept), fill), self.name)


def _both(b: Builder, exists: Value | None, kept: Value | None) -> Value | None:
    """Return the conjunction of two masks that may be missing."""
    if exists is None or kept is None:
        return kept if exists is None else exists
    return b.map2(Fn2.AND, exists, kept)


def _merge_ascending(
    b: Builder, stream: Stream, states: list[State], over: Axis, rows: _Rows = _Rows(),
    count: Value | None = None,
) -> list[State]:  # fmt: skip
    """Store the states along an axis, then load and merge them in order: `cut` makes this two kernels.

    They merge one at a time, or a fan at a time, whose states are reduced along lanes first as elements of a
    chunk. count: of each row's states that may hold elements, from the first on; others are neither stored
    nor merged.
    """
    held = None if count is None else b.map2(Fn2.LT, b.let(Pos(over)), count, f"{over.part.value}_exists")
    stored = [
        [
            _store_state(b, over, f"{n}_of_{over.part.value}", v, rows, held)
            for n, v in zip(f.monoid.state, s, strict=True)
        ]
        for f, s in zip(stream.folds, states, strict=True)
    ]
    fan = over.fan
    start, bounded = b.i32(0), count is not None
    count = b.let(Extent(over)) if count is None else count
    stop, full = (count, None) if fan is None else _steps(b, count, fan.chunk or 1)
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        if fan is None:
            exists = b.map2(Fn2.LT, step, count, "exists") if bounded else None
            loaded = _loaded(b, stored, step, exists, stream.folds if bounded else ())
        else:
            exists, loaded = _fan(b, stream.folds, stored, fan, step, count)
        carried, merged = _carry(b, stream.folds, loaded)
    init = _identities(b, stream.folds, loaded)
    types = tuple(b.tile(v) for v in carried)
    body = Block((step, *carried), tuple(lets), merged)
    made = b.let(Loop(over, start, stop, init, types, body, full, exists))
    results = iter(b.results(made, tuple(n for f in stream.folds for n in f.monoid.symbols)))
    return [tuple(next(results) for _ in state) for state in loaded]


def _steps(b: Builder, length: Value, chunk: int) -> tuple[Value, Value]:
    """Return the number of chunks of a length, and the number of full ones."""
    stop = b.map2(Fn2.DIV, b.add(length, b.i32(chunk - 1)), b.i32(chunk), "steps")
    return stop, b.map2(Fn2.DIV, length, b.i32(chunk), "full_steps")


def _fan(
    b: Builder, folded: tuple[Fold, ...], stored: list[list[_Stored]], fan: Axis, step: Value, count: Value
) -> tuple[Value, list[State]]:
    """Append the loads of one fan of states; return the mask of existing ones and each fold's states."""
    name = fan.name.lower()
    at = b.add(b.mul(step, b.i32(fan.chunk or 1)), b.let(Pos(fan), f"{name}_lane"), name)
    exists = b.map2(Fn2.LT, at, count, "exists")
    states = _loaded(b, stored, at, exists)
    return exists, [_leaf(b, f, state, fan, exists, at) for f, state in zip(folded, states, strict=True)]


def _leaf(
    b: Builder, fold: Fold, inputs: State, lanes: Axis | None, exists: Value | None, pos: Value
) -> State:
    """Append the state of one chunk."""
    with b.at(fold.loc):
        return folds.leaf(b, fold.monoid, inputs, lanes, exists, pos)


def _store_state(b: Builder, over: Axis, name: str, value: Value, rows: _Rows, held: Value | None) -> _Stored:
    """Store one component of the states, those that are held, to a workspace of its own."""
    tile = b.tile(value)
    piece = b.let(Pos(over))
    axes = without(tile.axes, over)
    dims, index = rows.place(b, axes)
    unique = _workspace(b, name, tile.dtype, (over, *dims))
    b.let(Store(unique, (piece, *index), value, _both(b, held, rows.kept)))
    return _Stored(unique, axes, rows)


def _workspace(b: Builder, name: str, dtype: DType, axes: tuple[Axis, ...]) -> str:
    """Declare a workspace of its own and return its name."""
    unique = f"{name}{sum(1 for d in b.params.values() if d.role is Role.WORK) or ''}"
    b.params[unique] = Decl(unique, TileType(dtype, axes), Role.WORK)
    return unique


def _loaded(
    b: Builder, stored: list[list[_Stored]], at: Value, exists: Value | None = None,
    folded: tuple[Fold, ...] = (),
) -> list[State]:  # fmt: skip
    """Load the states at an index of the stored axis, guarded by `exists`.

    folded: the folds of states that begin a piece of the axis, which stand for those that do not exist.
    """
    fills: list[tuple[Value | None, ...]] = [(None,) * len(state) for state in stored]
    if folded:
        dtypes = [b.params[state[0].name].type.dtype for state in stored]
        fills = [online.start(b, f.monoid, t) for f, t in zip(folded, dtypes, strict=True)]
    return [
        tuple(component.load(b, at, exists, fill) for component, fill in zip(state, each, strict=True))
        for state, each in zip(stored, fills, strict=True)
    ]


def _identities(b: Builder, folded: tuple[Fold, ...], states: list[State]) -> State:
    return tuple(
        identity
        for f, state in zip(folded, states, strict=True)
        for identity in folds.init(b, f.monoid, b.tile(state[0]).dtype)
    )


def _pieces(replay: Replay, stream: Stream) -> tuple[Value, Value]:
    """Return the begins and ends of pieces, i32, over the piece axis if there is one."""
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
    """Append the loop over steps; return the states of each fold, then the carried values."""
    b, axis = replay.builder, stream.axis
    chunk = axis.chunk or 1
    first, kinds = tuple(replay[v] for v in stream.init), _in_steps(replay, stream.types)
    stop, full = _steps(b, b.sub(end, begin), chunk)
    start = b.i32(0)
    when = replay.optional(stream.when)
    if when is not None:
        # a select, so that static extents may fold it: one bound for the whole tile
        stop, full = b.select(when, stop, start, "steps"), b.select(when, full, start, "full_steps")
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        held = replay.carried(stream.body.args, kinds)
        each = _chunk(replay, stream, begin, end, step)
        leaves = _leaves(replay, stream, each, lists=True)
        carried, merged = _carry(b, stream.folds, leaves, folds.absorbed)
        handed = tuple(
            b.select(each.exists, replay[v], old) for v, old in zip(stream.body.results, held, strict=True)
        )
    init = _identities(b, stream.folds, leaves)
    types = tuple(b.tile(v) for v in carried)
    body = Block((step, *carried, *held), tuple(lets), (*merged, *handed))
    made = b.let(Loop(axis, start, stop, (*init, *first), (*types, *kinds), body, full, each.exists))
    results = iter(
        b.results(made, (*(n for f in stream.folds for n in f.monoid.symbols), *("" for _ in held)))
    )
    states = [tuple(next(results) for _ in state) for state in (*leaves, *((held,) if held else ()))]
    return [
        state
        if f is None or not _listed(f, stream.axis)
        else folds.best_of_lanes(b, f.monoid, state, axis.lanes)
        for f, state in zip_longest(stream.folds, states)
    ]


def _listed(fold: Fold, axis: Axis) -> bool:
    """Return whether every lane has a list of its own in a loop, and the lists are merged once behind it."""
    return fold.monoid.kind is Kind.TOP_K and (axis.chunk or 1) > 1


def _parallel_steps(replay: Replay, stream: Stream, begin: Value, end: Value) -> list[State]:
    """Append all chunks in parallel, along an axis of steps; return the states merged in step order."""
    b, steps = replay.builder, stream.axis.steps
    step = b.let(Pos(steps), f"{stream.axis.name.lower()}_step")
    leaves = _leaves(replay, stream, _chunk(replay, stream, begin, end, step))
    return _merge_ascending(b, stream, leaves, steps) if stream.folds else leaves


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk: the axis of its elements if it has several, their positions, and the mask of existing."""

    lanes: Axis | None
    pos: Value
    exists: Value


def _chunk(replay: Replay, stream: Stream, begin: Value, end: Value, step: Value) -> _Chunk:
    """Append the body for one step."""
    b, axis = replay.builder, stream.axis
    chunk = axis.chunk or 1
    lanes = axis.lanes if chunk > 1 else None
    terms = [stream.when, stream.until, stream.since]
    name = "exists" if terms == [None] * len(terms) else "in_range"
    if stream.reverse:
        pos = b.sub(b.sub(end, b.i32(1)), step, axis.name.lower())
        inside = b.map2(Fn2.LE, begin, pos, name)
    else:
        pos = b.add(begin, b.mul(step, b.i32(chunk)), f"{axis.name.lower()}_begin")
        if lanes is not None:
            pos = b.add(pos, b.let(Pos(lanes), f"{axis.name.lower()}_lane"), axis.name.lower())
        inside = b.map2(Fn2.LT, pos, end, name)
    exists = inside
    if stream.when is not None:
        last = stream.until is None and stream.since is None
        exists = b.map2(Fn2.AND, inside, replay[stream.when], "exists" if last else "active")
    if stream.until is not None:
        visible = b.map2(Fn2.LT, pos, _as_i32(b, replay[stream.until]))
        exists = b.map2(Fn2.AND, exists, visible, "exists" if stream.since is None else "before_end")
    if stream.since is not None:
        exists = b.map2(Fn2.AND, exists, b.map2(Fn2.LE, _as_i32(b, replay[stream.since]), pos), "exists")
    place = b.loc
    rule = replay.rule
    assert isinstance(rule, _Expand)
    bounds = {bound for bound in bounds_of(stream) if bound is not None}
    body = _Body(replay, axis, pos, inside, exists, (*rule.bodies,), bounds)
    body.streamed.update(stream.body.args)
    rule.bodies.append(body)
    body.replay(stream.body.lets)
    rule.bodies.pop()
    b.loc = place
    return _Chunk(lanes, pos, exists)


def _leaves(replay: Replay, stream: Stream, chunk: _Chunk, lists: bool = False) -> list[State]:
    """Append the state of one chunk, for each fold; lists: of each lane, for folds that merge lanes later."""
    b, exists, pos = replay.builder, chunk.exists, chunk.pos
    by_lane = (f.kept or (lists and _listed(f, stream.axis)) for f in stream.folds)
    return [
        _leaf(b, f, tuple(replay[v] for v in f.inputs), None if alone else chunk.lanes, exists, pos)
        for f, alone in zip(stream.folds, by_lane, strict=True)
    ]


def _carry(
    b: Builder, folded: tuple[Fold, ...], leaves: list[State], merge: Merging = folds.merge
) -> tuple[State, State]:
    """Merge each fold's carried state with the chunk's; return the carried arguments and merged values."""
    carried: list[Value] = []
    merged: list[Value] = []
    for f, state in zip(folded, leaves, strict=True):
        args = tuple(b.fresh(b.types[v]) for v in state)
        carried += args
        with b.at(f.loc):
            merged += merge(b, f.monoid, args, state)
    return tuple(carried), tuple(merged)


# --- folds that restart at each piece ---


@dataclass(frozen=True, slots=True)
class _Steps:
    """The chunks [start, stop) of a segment, counted from its first element, with elements visible to a row.

    full: all elements of chunks below it (and from `first` on, if given) are visible; None where the first
    chunk may be partly visible.
    """

    start: Value
    stop: Value
    full: Value | None
    first: Value | None = None


def _mergeable(stream: Stream, loc: Loc) -> None:
    """Raise unless the states of pieces merge one at a time, as one loop over all pieces does it."""
    kept = next((f"kept {f.monoid.kind.value}" for f in stream.folds if f.kept), None)
    what = kept or (stream.axis.fan_in and f"fan_in={stream.axis.fan_in}")
    if what:
        lacks = f"a fold with {what} along axis {stream.axis}, whose leaf is the piece"
        raise LoweringError(lacks, f'an axis with leaf="chunk", the default, in place of {stream.axis}', loc)


def _types_of_states(replay: Replay, stream: Stream, let: Let) -> list[TileType]:
    """Return the types of the states of all folds, flat."""
    assert isinstance(let.type, TupleType)
    items = iter(let.type.items)
    each = [tuple(next(items) for _ in f.yielded)[: len(f.monoid.state)] for f in stream.folds]
    return list(_in_steps(replay, [type for state in each for type in state]))


def _in_steps(replay: Replay, types: Sequence[TileType]) -> tuple[TileType, ...]:
    """Return types of the traced form as the steps of open streams have them: along lanes and pieces."""
    rule = replay.rule
    assert isinstance(rule, _Expand)
    along = {body.axis: replay.builder.tile(body.pos).axes for body in rule.bodies}
    return tuple(replace(t, axes=union(*(along.get(axis, (axis,)) for axis in t.axes))) for t in types)


def _online(replay: Replay, stream: Stream, types: list[TileType], apart: frozenset[str]) -> list[Value]:
    """Append the loops and merges of a stream whose folds restart at pieces or never; return states, flat."""
    b, axis = replay.builder, stream.axis
    begin = b.i32(0) if stream.begin is None else _as_i32(b, replay[stream.begin])
    end = b.let(Extent(axis)) if stream.end is None else _as_i32(b, replay[stream.end])
    steps = _visible_steps(replay, stream, begin, end)
    names = tuple(n for f in stream.folds for n in f.monoid.symbols)
    if axis.leaf == "segment":
        return list(b.results(_loop_over_chunks(replay, stream, (begin, end), steps, types), names))
    if axis.name in apart and not any(f.open or f.after for f in stream.folds):
        count = _pieces_with_steps(b, axis, steps)
        steps = _of_piece(b, axis, steps)
        along = [TileType(t.dtype, (axis.pieces, *t.axes)) for t in types]
        made = _loop_over_chunks(replay, stream, (begin, end), steps, along)
        rows = _Rows(stream.rows, replay.optional(stream.row), replay.optional(stream.kept))
        states = _by_fold(stream.folds, b.results(made, names))
        return _flat(_merge_ascending(b, stream, states, axis.pieces, rows, count))
    made = _loop_over_chunks(replay, stream, (begin, end), steps, types * 2)
    names_before = tuple(f"{n}_before" for n in names)
    both = b.results(made, tuple(n for f in stream.folds for n in f.monoid.piece_symbols) + names_before)
    last, before = (_by_fold(stream.folds, each) for each in (both[: len(names)], both[len(names) :]))
    merged = _merged(b, stream.folds, before, last)
    found = zip(stream.folds, last, before, merged, strict=True)
    return _flat([(*open, *rest) if f.open else whole for f, open, rest, whole in found])


def _visible_steps(replay: Replay, stream: Stream, begin: Value, end: Value) -> _Steps:
    """Append the bounds of the chunks of a segment that have elements visible to a row."""
    b, chunk = replay.builder, stream.axis.chunk or 1
    zero, size = b.i32(0), b.i32(chunk)
    length = b.max(zero, b.sub(end, begin), "length")
    if stream.until is not None:
        length = b.min(length, b.max(zero, b.sub(_as_i32(b, replay[stream.until]), begin), "visible"), "seen")
    start = zero
    full: Value | None = None
    first: Value | None = None
    whole = stream.axis.leaf == "segment"
    if stream.since is None or whole:
        full = b.map2(Fn2.DIV, length, size, "full_steps")
    if stream.since is not None:
        unseen = b.max(zero, b.sub(_as_i32(b, replay[stream.since]), begin), "unseen")
        start = b.map2(Fn2.DIV, unseen, size, "first_step")
    if stream.after is not None:
        start = b.max(start, b.map2(Fn2.DIV, _as_i32(b, replay[stream.after]), size), "first_step")
        # a row may see fewer chunks than the given states contain
        full = None if full is None else b.max(start, full, "full_steps")
    stop = b.map2(Fn2.DIV, b.add(length, b.i32(chunk - 1)), size, "steps")
    if stream.since is not None and whole:
        seen = b.map2(Fn2.DIV, b.add(unseen, b.i32(chunk - 1)), size)
        first = b.min(seen, stop, "first_full_step")
    when = replay.optional(stream.when)
    if when is not None:
        stop = b.select(when, stop, zero, "steps")
        full = None if full is None else b.select(when, full, zero, "full_steps")
    return _Steps(start, stop, full, first)


def _pieces_with_steps(b: Builder, axis: Axis, steps: _Steps) -> Value | None:
    """Append the number of pieces up to the last visible chunk of each row, at least one; None if all are.

    Merging a state without elements changes no bit but the sign of a zero that is no sum of elements, and
    one piece is enough for that: so it is in the loop over all pieces, too.
    """
    if not b.tile(steps.stop).axes:
        return None
    size = b.i32(axis.steps_of_piece)
    found = b.map2(Fn2.DIV, b.add(steps.stop, b.i32(axis.steps_of_piece - 1)), size)
    return b.min(b.let(Extent(axis.pieces)), b.max(b.i32(1), found), "pieces")


def _of_piece(b: Builder, axis: Axis, steps: _Steps) -> _Steps:
    """Append the bounds of a row's visible chunks within each piece, along the axis of pieces."""
    count = b.i32(axis.steps_of_piece)
    first = b.mul(b.let(Pos(axis.pieces), f"{axis.name.lower()}_piece"), count)
    last = b.add(first, count)
    start, stop = b.max(steps.start, first, "first_step"), b.min(steps.stop, last, "steps")
    full = steps.full
    return _Steps(start, stop, None if full is None else b.max(start, b.min(full, last), "full_steps"))


def _loop_over_chunks(
    replay: Replay, stream: Stream, bounds: tuple[Value, Value], steps: _Steps, types: list[TileType]
) -> Value:
    """Append the loop over chunks, which carries the state of a piece.

    types: of that state, or of it and of the merged state of the pieces before it: then the first chunk of a
    piece merges the state of the last piece, and starts a new one.
    """
    b, axis, folded = replay.builder, stream.axis, stream.folds
    held = sum(len(f.monoid.state) for f in folded)
    dtypes = [group[0].dtype for group in _by_fold(folded, tuple(types[:held]))]
    begun = _flat([online.start(b, f.monoid, t) for f, t in zip(folded, dtypes, strict=True)])
    nothing = _flat([folds.init(b, f.monoid, t) for f, t in zip(folded, dtypes, strict=True)])
    with b.region() as lets:
        step = b.fresh(TileType(DType.I32))
        carried = tuple(b.fresh(t) for t in types)
        mine, before = _by_fold(folded, carried[:held]), carried[held:]
        chunk = _chunk(replay, stream, *bounds, step)
        if before:
            # after the chunk's scores: a lowering that waits for their wgmma has the last piece's sums too
            mine, before = _begin_piece(b, folded, _first_of_piece(b, axis, step), mine, before)
        new = [_absorbed(replay, f, state, chunk) for f, state in zip(folded, mine, strict=True)]
        results = (*_flat(new), *before)
    after = [tuple(replay[v] for v in f.after) for f in folded]
    init = (*begun, *nothing)[: len(types)]
    if any(after):
        pairs = zip(_by_fold(folded, begun), _by_fold(folded, nothing), after, strict=True)
        halves = [(s[: len(s) // 2], s[len(s) // 2 :]) if s else (mine, rest) for mine, rest, s in pairs]
        init = (*_flat([first for first, _ in halves]), *_flat([second for _, second in halves]))
    body = Block((step, *carried), tuple(lets), results)
    bounds_of_full = (steps.full, chunk.exists, steps.first)
    return b.let(Loop(axis, steps.start, steps.stop, init, tuple(types), body, *bounds_of_full))


def _absorbed(replay: Replay, fold: Fold, state: State, chunk: _Chunk) -> State:
    """Append the state of a piece with a chunk."""
    inputs = tuple(replay[v] for v in fold.inputs)
    with replay.builder.at(fold.loc):
        return online.absorb(replay.builder, fold.monoid, state, inputs, chunk.lanes, chunk.exists, chunk.pos)


def _first_of_piece(b: Builder, axis: Axis, step: Value) -> Value:
    return b.map2(Fn2.EQ, b.map2(Fn2.MOD, step, b.i32(axis.steps_of_piece)), b.i32(0), "new_piece")


def _begin_piece(
    b: Builder, folded: tuple[Fold, ...], new_piece: Value, last: list[State], before: State
) -> tuple[list[State], State]:
    """Append a step's initial states: of a new piece, and the last one merged with those before it."""
    merged = _flat(_merged(b, folded, _by_fold(folded, before), last))
    begun = _flat([online.restart(b, f.monoid, state) for f, state in zip(folded, last, strict=True)])
    pairs = zip((*begun, *merged), (*_flat(last), *before), strict=True)
    chosen = [old if new == old else b.select(new_piece, new, old) for new, old in pairs]
    return _by_fold(folded, chosen[: len(begun)]), tuple(chosen[len(begun) :])


def _merged(b: Builder, folded: tuple[Fold, ...], one: list[State], two: list[State]) -> list[State]:
    """Append the merge of each fold's two states."""
    return [_merge(b, f, x, y) for f, x, y in zip(folded, one, two, strict=True)]


def _merge(b: Builder, fold: Fold, one: State, two: State) -> State:
    """Append the merge of two states of a fold."""
    with b.at(fold.loc):
        return folds.merge(b, fold.monoid, one, two)


def _flat(states: list[State]) -> list[Value]:
    return [value for state in states for value in state]


def _by_fold(folded: tuple[Fold, ...], values: Iterable[X]) -> list[tuple[X, ...]]:
    """Split flat values of states into one tuple for each fold."""
    rest = iter(values)
    return [tuple(next(rest) for _ in f.monoid.state) for f in folded]


class _Body:
    """Replays a stream's body: its positions become piece, step and lane; its loads and stores get guards.

    around: the bodies of the streams that it is in. bounds: of the stream.
    """

    def __init__(
        self, replay: Replay, axis: Axis, pos: Value, inside: Value, exists: Value,
        around: tuple[_Body, ...], bounds: Set[Value],
    ) -> None:  # fmt: skip
        self.outer, self.axis, self.pos = replay, axis, pos
        self.inside, self.exists = inside, exists
        self.all, self.bounds = (*around, self), bounds
        self.streamed: set[Value] = set()

    def replay(self, lets: tuple[Let, ...]) -> None:
        r, b = self.outer, self.outer.builder
        for let in lets:
            b.loc = let.loc
            for body in self.all:
                if body.streamed.intersection(_reads(let)):
                    body.streamed.add(let.value)
            match let.node:
                case Pos(axis=axis) if (mine := self._of(axis)) is not None:
                    r.renamed[let.value] = mine.pos
                    b.rename(mine.pos, let.name)
                    mine.streamed.add(let.value)
                    for body in self.all:
                        if not body.streamed.isdisjoint(mine.bounds):
                            body.streamed.add(let.value)
                case Load(param=param, index=index, guard=guard, fill=fill) if self._with(let.value):
                    new = tuple(r[i] for i in index)
                    bound = r.optional(guard)
                    for body in self._with(let.value):
                        bound = self._and(body._read(new), bound)
                    r.renamed[let.value] = b.let(Load(param, new, bound, r.optional(fill)), let.name)
                case Store(param=param, index=index, value=value, guard=guard):
                    exists = self._exist(r.optional(guard))
                    b.let(Store(param, tuple(r[i] for i in index), r[value], exists))
                case Check(bad=bad, what=what):
                    b.let(Check(self._exist(r[bad]), what))
                case Dot() as dot:
                    r.renamed[let.value] = b.let(self._per_segment(dot), let.name)
                case Reduce(fn=fn, x=x, over=over, order=order) if over == self.axis:
                    r.renamed[let.value] = self._of_chunk(fn, r[x], order, let.name)
                case _:
                    if not r.rule(r, let):
                        r.copy(let)

    def _of_chunk(self, fn: Combine, x: Value, order: Order | None, name: str) -> Value:
        """Return the reduction of the elements of a chunk that exist."""
        b = self.outer.builder
        kept = b.select(self.exists, x, identity(b, fn, b.tile(x).dtype))
        return kept if (self.axis.chunk or 1) == 1 else b.reduce(fn, kept, self.axis.lanes, order, name)

    def _of(self, axis: Axis) -> _Body | None:
        """Return the body of an open stream of an axis."""
        return next((body for body in self.all if body.axis == axis), None)

    def _with(self, value: Value) -> list[_Body]:
        """Return the bodies with whose elements a value varies."""
        return [body for body in self.all if value in body.streamed]

    def _exist(self, guard: Value | None) -> Value:
        """Return the mask of the elements of all open streams, under a guard."""
        first, *others = self.all
        exists = self._and(first.exists, guard)
        for body in others:
            exists = self._and(body.exists, exists)
        return exists

    def _per_segment(self, dot: Dot) -> Dot:
        """Return the contraction with the axis of segments as a batch axis, if both factors vary along it."""
        r, b = self.outer, self.outer.builder
        a, c = (set(b.tile(r[v]).axes) for v in (dot.a, dot.b))
        shared = [x for x in b.tile(self.pos).axes if x in a & c and x.part is Part.ALL]
        # a chunk of one element is a step of the loop, and no axis of a tile
        named = (x for x in dot.each or () if x != self.axis or (x.chunk or 1) > 1)
        each = tuple(dict.fromkeys((*named, *shared)))
        return replace(dot, a=r[dot.a], b=r[dot.b], onto=r.optional(dot.onto), each=each or None)

    def _read(self, index: tuple[Value, ...]) -> Value:
        """Return the mask of a load: a tensor without the rows of `when` is loaded once for all of them."""
        b = self.outer.builder
        rows = set(b.tile(self.exists).axes) - set(b.tile(self.inside).axes)
        return self.exists if rows <= {a for i in index for a in b.tile(i).axes} else self.inside

    def _and(self, exists: Value, guard: Value | None) -> Value:
        return exists if guard is None else self.outer.builder.map2(Fn2.AND, exists, guard)


def _reads(let: Let) -> set[Value]:
    """Return the values that a let reads, in its region too."""
    read = set(operands(let.node))
    if isinstance(let.node, Stream):
        read |= {value for inner in let.node.body.lets for value in _reads(inner)}
    return read
