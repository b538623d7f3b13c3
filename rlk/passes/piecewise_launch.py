"""Piecewise launches: host loops over the pieces of an axis, with workspaces of the size of one piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rlk.errors import LoweringError
from rlk.ir.dims import Axis, Part
from rlk.ir.monoid import Kind
from rlk.ir.nodes import (
    Decl,
    Dot,
    Fn2,
    Kernel,
    Launch,
    Let,
    Load,
    Loop,
    Map2,
    Merge,
    Param,
    Phase,
    Pos,
    Program,
    Result,
    Role,
    Store,
    Turn,
    Value,
    operands,
)
from rlk.ir.tree import ASCENDING, Rule
from rlk.ir.types import DType, TileType
from rlk.passes.rewrite import Replay
from rlk.passes.simplify import simplify
from rlk.passes.walk import walk

Nest = tuple[Axis, ...]  # of pieces, outermost first
Only = tuple[int, ...] | Phase | None


def sweep(program: Program, extents: Mapping[str, int]) -> Program:
    """Return the program with a host loop of launches over the pieces of every axis contracted by pieces.

    extents: of one call; an axis with a single piece is not merged. Each result gets a nest of loops: axes of
    pieces of the result itself are the outer loops, the axis of pieces that it sums is the innermost; kernels
    that produce its workspaces are launched in the same nest. Partial sums are in f32 workspaces: a pairwise
    tree is merged as a binary counter counts. A sum with an initial value accumulates into the result itself,
    so its loops may be nested in any order. The bits are those of the program without loops.
    """
    axes = swept(program)
    if not axes:
        return program
    single = frozenset(a.name for a in axes if a.piece is not None and extents[a.name] <= a.piece)
    nests = _nests(program, axes, single)
    kernels: dict[str, Kernel] = {}
    launches: list[Launch] = []
    for nest, results in nests.items():
        for kernel in _needed(program, results):
            _check(kernel, axes, nest)
            depth = max((nest.index(a) + 1 for a in _along(kernel, axes)), default=0)
            merge = _merge(kernel, axes)
            merged = None if merge is None else merge.over
            for part, only in _iterations(kernel, axes, single):
                loops = tuple(Turn(a, only if a == merged else None) for a in nest[:depth])
                made = kernels.setdefault(part.name, part)
                assert made == part
                launches.append(Launch(part.name, loops))
    return replace(program, kernels=tuple(kernels.values()), launches=tuple(launches))


def _nests(program: Program, axes: frozenset[Axis], single: frozenset[str]) -> dict[Nest, list[Kernel]]:
    """Return the results of every nest; a result with loops in any order joins an existing nest."""
    nests: dict[Nest, list[Kernel]] = {}
    results = [k for k in program.kernels if any(d.role is Role.OUT for d in k.params)]
    for kernel in sorted(results, key=lambda k: _accumulates(k, axes)):
        nest = _nest(kernel, axes, single)
        if _accumulates(kernel, axes):
            nest = next((other for other in nests if set(nest) <= set(other)), nest)
        nests.setdefault(nest, []).append(kernel)
    return nests


def _accumulates(kernel: Kernel, axes: frozenset[Axis]) -> bool:
    """Return whether a sum with an initial value accumulates into its result in memory."""
    merge = _merge(kernel, axes)
    return merge is not None and merge.onto is not None


def swept(program: Program) -> frozenset[Axis]:
    """Return the axes of pieces with host loops: merged where they are contracted, or axes of results."""
    found: set[Axis] = set()
    for kernel in program.kernels:
        nodes = [let.node for let in walk(kernel.body)]
        contracted = {n.over.pieces for n in nodes if isinstance(n, Dot) and n.over.part is Part.WITHIN}
        found |= contracted & {n.over for n in nodes if isinstance(n, Merge)}
        for decl in kernel.params:
            if decl.role is Role.WORK:
                inside = {a.pieces for a in decl.type.axes if a.part is Part.WITHIN}
                found |= inside.intersection(decl.type.axes)
    return frozenset(found)


def _along(kernel: Kernel, axes: frozenset[Axis]) -> tuple[Axis, ...]:
    """Return the axes with host loops that a kernel varies along."""
    types = (let.type for let in walk(kernel.body))
    found = dict.fromkeys(a for t in types if isinstance(t, TileType) for a in t.axes)
    return tuple(a for a in found if a in axes)


def _merge(kernel: Kernel, axes: frozenset[Axis]) -> Merge | None:
    """Return the merge of pieces in a kernel."""
    merges = (let.node for let in walk(kernel.body) if isinstance(let.node, Merge))
    return next((m for m in merges if m.over in axes), None)


def _nest(kernel: Kernel, axes: frozenset[Axis], single: frozenset[str]) -> Nest:
    """Return the loops of a result, outermost first: axes of one piece, others by name, the merged axis."""
    merge = _merge(kernel, axes)
    merged = None if merge is None or merge.onto is not None else merge.over
    return tuple(sorted(_along(kernel, axes), key=lambda a: (a.name not in single, a == merged, str(a))))


def _needed(program: Program, results: list[Kernel]) -> Iterable[Kernel]:
    """Return the kernels that some results need, themselves included, in the order of the program."""
    wanted = {k.name for k in results}
    for kernel in reversed(program.kernels):
        read = {p for k in program.kernels if k.name in wanted for p in _loaded(k)}
        if read & _written(kernel):
            wanted.add(kernel.name)
    return [k for k in program.kernels if k.name in wanted]


def _loaded(kernel: Kernel) -> set[str]:
    return {let.node.param for let in walk(kernel.body) if isinstance(let.node, Load)}


def _written(kernel: Kernel) -> set[str]:
    return {let.node.param for let in walk(kernel.body) if isinstance(let.node, Store)}


def _check(kernel: Kernel, axes: frozenset[Axis], nest: Nest) -> None:
    """Raise LoweringError for a kernel that piecewise launches cannot compute."""
    lets = tuple(walk(kernel.body))
    types = {let.value: let.type for let in lets}
    merges = [(let, let.node) for let in lets if isinstance(let.node, Merge) and let.node.over in axes]
    if len(merges) > 1:
        over = merges[1][1].over.whole
        raise LoweringError(
            f"a result of two contractions by pieces of {over}",
            'materialize one of them: first = L.keep(L.dot(...), "first"), then L.dot(...) + first',
            merges[1][0].loc,
        )
    for made, merge in merges:
        if merge.onto is not None and not _only_stored(made.value, lets):
            what = "a contraction with onto= that is not an output as it is"
            raise LoweringError(
                what, "write it as an output, and compute with it in another operator", made.loc
            )
        for let in lets:
            index = let.node.index if isinstance(let.node, Store) else ()
            found = (types[i] for i in index)
            if any(isinstance(t, TileType) and merge.over in t.axes for t in found):
                over = merge.over.whole
                what = f"an output along {over} in the kernel that contracts {over} by pieces"
                raise LoweringError(what, "write that output in an operator of its own", let.loc)
    for axis in _along(kernel, axes):
        if axis not in nest:
            what = f"an output without {axis} of a value that is kept along it, by pieces"
            instead = f"a contraction or reduction of {axis.whole} in the kernel that reads it, or no piece="
            raise LoweringError(what, instead, kernel.body.lets[-1].loc)


def _only_stored(merged: Value, lets: Iterable[Let]) -> bool:
    """Return whether the result of a merge goes into one store and nowhere else."""
    result = next(let.value for let in lets if let.node == Result(merged, 0))
    readers = [let.node for let in lets if result in operands(let.node)]
    return len(readers) == 1 and isinstance(readers[0], Store)


# --- all pieces in one launch -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OnePiece:
    """A kernel for one piece of an axis, without the merge; the scalar `index` is the piece's number."""

    kernel: Kernel
    axis: Axis
    index: str


def one_piece(kernel: Kernel) -> OnePiece | None:
    """Return the kernel for one piece of its contracted axis; None unless a launch can loop over all.

    It can if the kernel only adds the contractions of a fixed number of pieces by a pairwise tree and
    all else
    depends on this sum alone: a loop over pieces in ascending order adds them as a binary counter counts.
    """
    lets = tuple(walk(kernel.body))
    dots = {let.value: let.node.over for let in lets if isinstance(let.node, Dot)}
    merges = [let.node for let in lets if isinstance(let.node, Merge)]
    if len(dots) != 1 or len(merges) != 1 or any(d.role is Role.WORK for d in kernel.params):
        return None
    (merge,), ((product, over),) = merges, dots.items()
    axis = merge.over
    added = merge.monoid.kind is Kind.TOTAL and merge.order is Rule.PAIRWISE and merge.onto is None
    if not added or axis.split is None or merge.states != (product,) or over != axis.within:
        return None
    along = {let.value for let in lets if isinstance(let.type, TileType) and axis in let.type.axes}
    readers = [let for let in lets if along.intersection(operands(let.node))]
    if any(let.value not in along and let.node != merge for let in readers):
        return None
    made = _one_piece(kernel, frozenset({axis}), merge, (), None, kernel.name)
    return OnePiece(made, axis, Turn(axis).index)


# --- iterations ---------------------------------------------------------------------------------------------


def _iterations(
    kernel: Kernel, axes: frozenset[Axis], single: frozenset[str]
) -> Iterable[tuple[Kernel, Only]]:
    """Yield the kernels of the innermost loop, each with the iterations that launch it."""
    merge = _merge(kernel, axes)
    if merge is None or merge.over.name in single:
        yield _one_piece(kernel, axes, merge, (), None, kernel.name), None
    elif merge.onto is not None:
        for phase in (Phase.FIRST, Phase.REST):
            name = f"{kernel.name}_{phase.value}"
            yield _one_piece(kernel, axes, merge, (), None, name, phase is Phase.REST), phase
    elif merge.order is ASCENDING:
        for phase in (Phase.FIRST, Phase.MIDDLE, Phase.LAST):
            read = () if phase is Phase.FIRST else (0,)
            kept = None if phase is Phase.LAST else 0
            yield _one_piece(kernel, axes, merge, read, kept, f"{kernel.name}_{phase.value}"), phase
    else:
        count = merge.over.split or 1
        for carries in range(count.bit_length()):
            iterations = tuple(i for i in range(count) if _trailing_ones(i) == carries)
            kept = None if iterations == (count - 1,) else carries
            name = f"{kernel.name}_{carries}"
            yield _one_piece(kernel, axes, merge, tuple(range(carries)), kept, name), iterations


def _trailing_ones(i: int) -> int:
    return (~i & (i + 1)).bit_length() - 1


def _one_piece(
    kernel: Kernel, axes: frozenset[Axis], merge: Merge | None, read: tuple[int, ...], kept: int | None,
    name: str, again: bool = False,
) -> Kernel:  # fmt: skip
    """Return the kernel for one piece of each axis.

    read: the levels of the partial sums that are merged with the piece's own, in this order. kept: the level
    to which the sum is stored; None for the final result. again: the result in memory has a partial sum
    already.
    """
    partials = f"{kernel.name.rpartition('_')[2]}"
    replay = Replay(kernel, _Piece(axes, merge, read, kept, f"merged_{partials}", again))
    replay.block(_until(kernel.body.lets, merge if kept is not None else None))
    return simplify(Kernel(name, tuple(replay.builder.params.values()), replay.builder.body()))


def _until(lets: tuple[Let, ...], merge: Merge | None) -> tuple[Let, ...]:
    """Return the lets up to a merge's result, for a kernel that only stores a partial sum."""
    if merge is None:
        return lets
    last = next(let.value for let in lets if let.node == merge)
    end = next(i for i, let in enumerate(lets) if let.node == Result(last, 0))
    return tuple(let for let in lets[: end + 1] if not isinstance(let.node, Store))


def _without(decl: Decl, pieces: frozenset[Axis]) -> Decl:
    """Return a workspace that holds one piece."""
    if decl.role is not Role.WORK:
        return decl
    return replace(decl, type=_of_one_piece(decl.type, pieces))


def _of_one_piece(type: TileType, pieces: frozenset[Axis]) -> TileType:
    return TileType(type.dtype, tuple(axis for axis in type.axes if axis not in pieces))


@dataclass(slots=True)
class _Piece:
    """The rule: the number of a piece is a scalar, and every index inside it exists."""

    axes: frozenset[Axis]
    merge: Merge | None
    read: tuple[int, ...]
    kept: int | None
    partial: str
    again: bool
    lets: dict[Value, Let] | None = None
    merged: Value | None = None

    def __call__(self, replay: Replay, let: Let) -> bool:
        if self.lets is None:
            self.lets = {}
            works = {d.name: _without(d, self.axes) for d in replay.builder.params.values()}
            replay.builder.params.update(works)
        self.lets[let.value] = let
        r, b = replay, replay.builder
        match let.node:
            case Pos(axis=axis) if axis in self.axes:
                index = Turn(axis).index
                b.params[index] = Decl(index, TileType(DType.I32), Role.SCALAR)
                r.renamed[let.value] = b.let(Param(index), let.name)
            case Map2(fn=Fn2.LT, a=a) if self.is_within(a):
                # the extent of the axis is the length of the piece
                r.renamed[let.value] = b.const(True, DType.BOOL)
            case Load(param=param, index=index, guard=guard, fill=fill) if self.works(replay, param):
                new = Load(param, self.kept_index(replay, index), r.optional(guard), r.optional(fill))
                r.renamed[let.value] = b.let(new, let.name)
            case Store(param=param, index=index, value=value, guard=guard) if self.works(replay, param):
                b.let(Store(param, self.kept_index(replay, index), r[value], r.optional(guard)))
            case Store() as store if self.accumulates(store.value):
                self.accumulate(replay, store)
            case Loop() as loop:
                types = tuple(_of_one_piece(t, self.axes) for t in loop.types)
                r.renamed[let.value] = b.let(r.loop(replace(loop, types=types)), let.name)
            case Dot(each=each) as dot if self.axes.intersection(each or ()):
                left = tuple(axis for axis in each or () if axis not in self.axes)
                r.renamed[let.value] = b.let(r.node(replace(dot, each=left or None)), let.name)
            case Merge() as merge if merge == self.merge:
                self.merged = let.value
                r.renamed[let.value] = self.merge_with_partials(replay, r[merge.states[0]])
            case Result(of=of) if of == self.merged and of is not None:
                r.renamed[let.value] = r[of]
            case _:
                return False
        return True

    def accumulates(self, value: Value) -> bool:
        """Return whether a value is the result of the merge, and the merge has an initial value."""
        if self.merge is None or self.merge.onto is None or self.merged is None:
            return False
        let = (self.lets or {}).get(value)
        return let is not None and let.node == Result(self.merged, 0)

    def accumulate(self, replay: Replay, store: Store) -> None:
        """Append the store of the sum so far plus the piece."""
        r, b = replay, replay.builder
        assert self.merge is not None and self.merge.onto is not None
        index, guard = tuple(r[i] for i in store.index), r.optional(store.guard)
        earlier = b.let(Load(store.param, index, guard), "earlier") if self.again else r[self.merge.onto]
        b.let(Store(store.param, index, b.add(earlier, r[store.value], "merged"), guard))

    def is_within(self, value: Value) -> bool:
        let = (self.lets or {}).get(value)
        match None if let is None else let.node:
            case Pos(axis=axis):
                return axis.part is Part.WITHIN and axis.pieces in self.axes
            case _:
                return False

    def works(self, replay: Replay, param: str) -> bool:
        return replay.builder.params[param].role is Role.WORK

    def kept_index(self, replay: Replay, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the indices of a workspace without those of pieces."""
        lets = self.lets or {}
        nodes = {i: lets[i].node if i in lets else None for i in index}  # a step of a loop has no node
        return tuple(replay[i] for i, n in nodes.items() if not (isinstance(n, Pos) and n.axis in self.axes))

    def merge_with_partials(self, replay: Replay, value: Value) -> Value:
        """Append the sum with earlier partial sums, and the store of a new one."""
        b = replay.builder
        axes = b.tile(value).axes
        index = tuple(b.let(Pos(axis)) for axis in axes)

        def partial(level: int) -> str:
            name = f"{self.partial}_{level}"
            b.params[name] = Decl(name, TileType(b.tile(value).dtype, axes), Role.WORK)
            return name

        for level in self.read:
            value = b.add(b.let(Load(partial(level), index), "earlier"), value, "merged")
        if self.kept is not None:
            b.let(Store(partial(self.kept), index, value))
        return value
