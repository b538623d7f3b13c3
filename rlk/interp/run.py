"""The oracle: executes programs of tile IR in NumPy, node by node, with one `match`.

A tile is an array with one dim per axis that it varies along. Axes that are not reduced may be split into
tiles of any size; tests check that the bits do not depend on it.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

import numpy as np

from rlk.errors import Code, InternalError, LaunchError, Loc, SpecError
from rlk.interp import arithmetic as ops
from rlk.interp import floats
from rlk.interp.arithmetic import Arithmetic, Exact, Wide
from rlk.interp.memory import Array, buffer, extent, extents_of, flat
from rlk.interp.philox import philox
from rlk.ir.dims import Part
from rlk.ir.dotmodel import DotModel
from rlk.ir.fold import merging
from rlk.ir.nodes import (
    Bits,
    Block,
    Cast,
    Check,
    Combine,
    Const,
    Dot,
    Extent,
    Fma,
    Fn2,
    Keep,
    Kernel,
    Let,
    Load,
    Loop,
    Map1,
    Map2,
    Math,
    MathModel,
    Merge,
    Param,
    Philox,
    Pos,
    Program,
    Reduce,
    Result,
    Role,
    Select,
    Store,
    Stream,
    Value,
    defined,
)
from rlk.ir.tree import ASCENDING, Rule, bind, padded
from rlk.ir.types import DType, TileType

FACTOR_ELEMENTS = 1 << 22  # of the largest factor of a contraction in a tile
TILE_ELEMENTS = 1 << 17  # of the largest value in a tile: amortizes Python's overhead, fits a cache
PLANS = 256  # kernels whose plans are kept

Axes = tuple[int, ...]
"""Axes by their numbers in a kernel's order, ascending."""


class Tile(NamedTuple):
    """An array and its axes: data has one dim per axis."""

    data: Array
    axes: Axes = ()


State = tuple[Tile, ...]
Scope = dict[Value, Tile | State]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    tensors: outputs and workspaces as stored (bf16 as u16 patterns; f64 in wide mode). errors: the messages
    of failing checks, and the number of elements that failed. rows: the last row of each.
    """

    tensors: dict[str, Array]
    errors: dict[str, int]
    rows: dict[str, int]

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name]


def run(
    program: Program,
    inputs: Mapping[str, Any],
    *,
    softmax: MathModel = MathModel.PORTABLE,
    dots: DotModel = DotModel.CHAIN16,
    extents: Mapping[str, int] | None = None,
    tile: Mapping[str, int] | None = None,
    threads: int | None = None,
) -> Outcome:
    """Run a program and return the exact bits of its outputs and workspaces.

    inputs: tensors and scalars by name; 16-bit floats as f16 arrays, u16 patterns of bf16, or f32 that fit.
    An output given here is the buffer that is written. softmax: the model of exp2 in softmax folds. dots:
    the model of contractions with chain16. extents: of axes that no input has. tile: sizes of parallel axes
    by name, e.g. {"T": 3}; others are whole. Without it tiles fit a cache. Raises LaunchError on missing or
    misshaped inputs.
    """
    return _run(program, inputs, Exact(softmax, dots), extents or {}, tile, threads)


def run_wide(
    program: Program,
    inputs: Mapping[str, Any],
    *,
    extents: Mapping[str, int] | None = None,
    tile: Mapping[str, int] | None = None,
    threads: int | None = None,
) -> Outcome:
    """Run a program with every float an f64, without rounding to 16 or 32 bits."""
    return _run(program, inputs, Wide(), extents or {}, tile, threads)


def _run(
    program: Program,
    inputs: Mapping[str, Any],
    arithmetic: Arithmetic,
    given: Mapping[str, int],
    tile: Mapping[str, int] | None,
    threads: int | None,
) -> Outcome:
    memory: dict[str, Array] = {}
    errors: Counter[str] = Counter()
    rows: dict[str, int] = {}
    extents = extents_of(program, inputs, given)
    for kernel in program.kernels:
        for decl in kernel.params:
            if decl.name not in memory:
                memory[decl.name] = buffer(program.name, decl, inputs, extents, arithmetic)
        launch = _Launch(kernel, memory, extents, arithmetic)
        tiles = [_Tile(launch, ranges) for ranges in _tiles(launch, tile)]
        if len(tiles) == 1:
            tiles[0].run()
        else:
            with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
                list(pool.map(_Tile.run, tiles))
        for each in tiles:
            errors.update(each.errors)
            rows |= {what: max(row, rows.get(what, 0)) for what, row in each.rows.items()}
    written = {d.name for k in program.kernels for d in k.params if d.role in (Role.OUT, Role.WORK)}
    return Outcome({name: memory[name] for name in sorted(written)}, dict(errors), rows)


# --- one kernel ---


class _Plan:
    """The axes of a kernel in their order, those that may be tiled, and the types of its values."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.decls = {d.name: d for d in kernel.params}
        self._carried: dict[int, tuple[Loop, list[Axes]]] = {}
        lets = tuple(_walk(kernel.body))
        types = [let.type for let in lets if isinstance(let.type, TileType)]
        used = dict.fromkeys(axis for type in types for axis in type.axes)
        laid_out = dict.fromkeys(axis for d in kernel.params for axis in d.type.axes)
        contracted = {let.node.over for let in lets if isinstance(let.node, Dot)}
        reduced = {let.node.over for let in lets if isinstance(let.node, Reduce | Merge)}
        combined = contracted | reduced
        # lanes vary fastest; the rest as the tensors lay them out
        self.order = sorted(dict.fromkeys((*laid_out, *used)), key=lambda axis: axis.part is Part.LANE)
        self.rank = rank = {axis: i for i, axis in enumerate(self.order)}
        self.whole = {rank[axis] for axis in reduced if axis.part is Part.ALL}
        self.parallel = tuple(
            i
            for axis, i in rank.items()
            if axis in used and axis not in combined and axis.part is not Part.LANE
        )
        shapes = {tuple(rank[axis] for axis in type.axes) for type in types}
        factor = {rank[axis] for axis in contracted if axis in rank}
        self.factors = [axes for axes in shapes if not factor.isdisjoint(axes)]
        self.others = [axes for axes in shapes if factor.isdisjoint(axes)]
        self.dtypes = {let.value: let.type.dtype for let in lets if isinstance(let.type, TileType)}
        for let in lets:
            if isinstance(let.node, Loop):
                self.dtypes.update(
                    zip(let.node.body.args[1:], (t.dtype for t in let.node.types), strict=True)
                )

    def carried(self, loop: Loop) -> list[Axes]:
        """Return the axes of what a loop of the kernel carries."""
        if (found := self._carried.get(id(loop))) is None:
            axes = [tuple(self.rank[axis] for axis in t.axes) for t in loop.types]
            found = self._carried[id(loop)] = loop, axes  # which lives as long as its id is known here
        return found[1]


_plans: dict[int, _Plan] = {}


def _plan(kernel: Kernel) -> _Plan:
    """Return the plan of this very object: comparing whole kernels would take longer than planning."""
    found = _plans.get(id(kernel))  # a kernel in the table is alive: no other one has its id
    if found is None:
        if len(_plans) >= PLANS:
            _plans.clear()
        found = _plans[id(kernel)] = _Plan(kernel)
    return found


class _Launch:
    """A kernel with its memory and extents."""

    def __init__(
        self, kernel: Kernel, memory: dict[str, Array], extents: Mapping[str, int], arithmetic: Arithmetic
    ) -> None:
        self.plan, self.memory, self.arithmetic = _plan(kernel), memory, arithmetic
        self.extents = extents
        self._lengths: dict[int, int] = {}

    def extent(self, axis: int) -> int:
        """Return the number of elements, pieces or lanes of an axis."""
        return extent(self.plan.order[axis], self.extents)

    def length(self, axis: int) -> int:
        """Return the length of a tile's dim: an axis that is reduced whole is padded to a power of two."""
        if axis not in self._lengths:
            n = self.extent(axis)
            self._lengths[axis] = padded(n) if axis in self.plan.whole else n
        return self._lengths[axis]


def _walk(block: Block) -> Iterator[Let]:
    for let in block.lets:
        if isinstance(let.node, Loop):
            yield from _walk(let.node.body)
        yield let


Ranges = dict[int, range]


def _tiles(launch: _Launch, wanted: Mapping[str, int] | None) -> Iterator[Ranges]:
    """Yield the ranges of the parallel axes, tile by tile."""
    plan = launch.plan
    sizes = {axis: launch.length(axis) for axis in plan.parallel}
    steps = dict(sizes)
    if wanted is None:
        # factors first: a larger tile of a contraction copies its factors fewer times
        for shapes, most in ((plan.factors, FACTOR_ELEMENTS), (plan.others, TILE_ELEMENTS)):
            for axis in plan.parallel:
                held = (_elements(launch, axes, steps) for axes in shapes if axis in axes)
                steps[axis] = max(1, min(steps[axis], steps[axis] * most // max(*held, 1, 1)))
    else:
        known = {str(plan.order[axis]): axis for axis in plan.parallel}
        steps.update({known[name]: n for name, n in wanted.items() if name in known})
    cuts = [
        [range(low, min(low + max(steps[axis], 1), n)) for low in range(0, n, max(steps[axis], 1))]
        for axis, n in sizes.items()
    ]
    for ranges in itertools.product(*cuts):
        yield dict(zip(sizes, ranges, strict=True))


def _elements(launch: _Launch, axes: Axes, steps: Mapping[int, int]) -> int:
    count = 1
    for axis in axes:
        count *= steps[axis] if axis in steps else launch.length(axis)
    return count


# --- one tile ---


@dataclass(slots=True)
class _Tile:
    """Evaluates a kernel's body on one tile of its parallel axes."""

    launch: _Launch
    ranges: Ranges
    errors: Counter[str] = field(default_factory=Counter)
    rows: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        with np.errstate(all="ignore"):
            self.block(self.launch.plan.kernel.body.lets, {})

    def block(self, lets: tuple[Let, ...], scope: Scope) -> None:
        for let in lets:
            scope[let.value] = self.let(let, scope)

    def let(self, let: Let, scope: Scope) -> Tile | State:
        """Evaluate a node: return a tile, or the tiles of a loop or merge; () for a store or check."""
        launch = self.launch
        match let.node:  # what there is most of first
            case Map2(fn=fn2, a=a, b=b):
                (u, v), axes = self.joined(_tile(scope[a]), _tile(scope[b]))
                if fn2 in _PARTIAL:
                    assert isinstance(let.type, TileType)
                    self.defined(fn2, u, v, let.type.dtype, let.loc)
                return Tile(ops.map2(fn2, u, v), axes)
            case Const(bits=bits):
                assert isinstance(let.type, TileType)
                return Tile(launch.arithmetic.const(bits, let.type.dtype))
            case Select(cond=cond, a=a, b=b):
                (p, u, v), axes = self.joined(_tile(scope[cond]), _tile(scope[a]), _tile(scope[b]))
                return Tile(np.where(p, u, v), axes)
            case Load(param=param, index=index, guard=guard, fill=fill):
                at = [_tile(scope[i]) for i in index]
                return self.load(param, at, _maybe(scope, guard), _maybe(scope, fill), let.loc)
            case Map1(fn=fn, x=x):
                one = _tile(scope[x])
                return Tile(ops.map1(fn, one.data), one.axes)
            case Cast(x=x, dtype=dtype):
                one = _tile(scope[x])
                return Tile(launch.arithmetic.cast(one.data, dtype), one.axes)
            case Pos(axis=axis):
                number = launch.plan.rank[axis]
                inside = self.ranges[number] if number in self.ranges else range(launch.length(number))
                return Tile(np.arange(inside.start, inside.stop, dtype=np.int32), (number,))
            case Param(name=name):
                return Tile(np.asarray(launch.memory[name]))
            case Fma(a=a, b=b, c=c):
                (u, v, w), axes = self.joined(_tile(scope[a]), _tile(scope[b]), _tile(scope[c]))
                return Tile(launch.arithmetic.fma(u, v, w), axes)
            case Math(fn=fn3, x=x, model=model):
                one = _tile(scope[x])
                return Tile(launch.arithmetic.math(fn3, one.data, model), one.axes)
            case Extent(axis=axis):
                return Tile(np.array(extent(axis, launch.extents), np.int32))
            case Bits(x=x, dtype=dtype):
                one = _tile(scope[x])
                return Tile(launch.arithmetic.bits(one.data, launch.plan.dtypes[x], dtype), one.axes)
            case Philox(counter=counter, key=key):
                words, axes = self.joined(*(_tile(scope[w]) for w in (*counter, *key)))
                block = philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
                return tuple(Tile(word, axes) for word in block)
            case Store(param=param, index=index, value=value, guard=guard):
                at = [_tile(scope[i]) for i in index]
                self.store(param, at, _tile(scope[value]), _maybe(scope, guard), let.loc)
                return ()
            case Check(bad=bad, what=what):
                self.check(_tile(scope[bad]), what)
                return ()
            case Reduce(x=x):
                return self.reduce(let.node, _tile(scope[x]), let.loc)
            case Dot(a=a, b=b, onto=onto):
                return self.dot(let.node, _tile(scope[a]), _tile(scope[b]), _maybe(scope, onto))
            case Merge(states=states, onto=onto):
                return self.merge(let.node, tuple(_tile(scope[s]) for s in states), _maybe(scope, onto))
            case Loop():
                return self.loop(let.node, scope)
            case Result(of=of, index=i):
                state = scope[of]
                assert not isinstance(state, Tile)
                return state[i]
            case Stream() | Keep():
                raise SpecError(Code.NODE_NOT_CORE, let.loc, node=type(let.node).__name__)
            case _:
                assert_never(let.node)

    def defined(self, fn: Fn2, a: Array, b: Array, dtype: DType, loc: Loc) -> None:
        """Raise where a function of integers has no portable value."""
        rule = fn.domain(dtype)
        if rule is None or not a.size or not b.size:
            return
        least, (low, high) = a.min(), (b.min(), b.max())
        if not (defined(fn, least, low, dtype) and defined(fn, least, high, dtype)):
            pairs = zip(*(x.ravel() for x in np.broadcast_arrays(a, b)), strict=True)
            found = next((x, y) for x, y in pairs if not defined(fn, x, y, dtype))
            what = f"{fn.value} of {found[0]} by {found[1]}"
            raise SpecError(Code.INTEGER_UNDEFINED, loc, what=what, rule=rule)

    # --- shapes ---

    def size(self, axis: int) -> int:
        return len(self.ranges[axis]) if axis in self.ranges else self.launch.length(axis)

    def joined(self, *tiles: Tile) -> tuple[list[Array], Axes]:
        """Return the arrays with the dims of all axes of all tiles, in one order, so that they broadcast."""
        first = tiles[0].axes if tiles else ()
        if all(tile.axes == first for tile in tiles):
            return [tile.data for tile in tiles], first
        axes, places = _union(*(tile.axes for tile in tiles))
        return [t.data if place is None else t.data[place] for t, place in zip(tiles, places)], axes

    def spread(self, tile: Tile, axes: Axes) -> Tile:
        """Return the tile with (at least) the named axes."""
        every, (place, _) = _union(tile.axes, axes)
        if every == tile.axes:
            return tile
        data = tile.data if place is None else tile.data[place]
        return Tile(np.broadcast_to(data, tuple(self.size(a) for a in every)), every)

    # --- memory ---

    def slices(self, param: str, index: Sequence[Tile]) -> list[int | slice | None]:
        """Return the element or the range that each dim's indices name, along axes of that dim alone.

        None for a dim with other indices, or with one out of range.
        """
        uses = Counter(axis for tile in index for axis in tile.axes)
        return [
            _range(tile, n) if all(uses[axis] == 1 for axis in tile.axes) else None
            for tile, n in zip(index, self.launch.memory[param].shape, strict=True)
        ]

    def inside(self, param: str, dim: int, tile: Tile, guard: Tile | None, loc: Loc) -> Tile:
        """Return the indices of a dim, 0 for those out of range; raise where one of these is unguarded."""
        n = self.launch.memory[param].shape[dim]
        outside = (tile.data < 0) | (tile.data >= n)
        if not np.count_nonzero(outside):
            return tile
        (bad, on), _ = self.joined(Tile(outside, tile.axes), guard or _ALWAYS)
        if np.count_nonzero(bad & on):
            raise LaunchError(Code.INDEX_OUTSIDE, loc, dim=dim, param=param, n=n)
        return Tile(np.where(outside, 0, tile.data), tile.axes)

    def offsets(self, param: str, index: Sequence[Tile], guard: Tile | None, loc: Loc) -> Tile:
        """Return element offsets into memory; raise where an unguarded index is out of range."""
        memory = self.launch.memory[param]
        offset = Tile(np.array(0, np.int64))
        for i, tile in enumerate(index):
            inside = self.inside(param, i, tile, guard, loc).data.astype(np.int64)
            stride = memory.strides[i] // memory.itemsize
            (a, b), axes = self.joined(offset, Tile(inside * stride, tile.axes))
            offset = Tile(a + b, axes)
        return offset

    def elements(self, param: str, index: Sequence[Tile], guard: Tile | None, loc: Loc) -> Tile:
        """Return memory at the indices: a view if all are ranges, whole rows of ranges if some are."""
        memory, cut = self.launch.memory[param], self.slices(param, index)
        if memory.size and None not in cut:
            return _ordered(memory[(*cut, ...)], tuple(axis for tile in index for axis in tile.axes))
        ranges = [i for i, part in enumerate(cut) if part is not None]
        others = [i for i, part in enumerate(cut) if part is None]
        if not memory.size or (others and not any(index[i].axes for i in ranges)):
            offset = self.offsets(param, index, guard, loc)
            # all indices into nothing are guarded
            found = (
                flat(memory).take(offset.data) if memory.size else np.zeros(offset.data.shape, memory.dtype)
            )
            return Tile(found, offset.axes)
        at, axes = self.joined(*(self.inside(param, i, index[i], guard, loc) for i in others))
        rows = memory.transpose((*others, *ranges))
        found = rows[(*at, *(cut[i] for i in ranges), ...)]
        return _ordered(found, (*axes, *(axis for i in ranges for axis in index[i].axes)))

    def load(
        self, param: str, index: Sequence[Tile], guard: Tile | None, fill: Tile | None, loc: Loc
    ) -> Tile:
        found = self.elements(param, index, guard, loc)
        data = ops.decode(found.data, self.launch.plan.decls[param].type.dtype)
        # a copy of a view: a later store may change the memory
        read = Tile(data.copy("K") if data is found.data else data, found.axes)
        if guard is None:
            return read
        if np.count_nonzero(guard.data) == guard.data.size:
            return self.spread(read, guard.axes)
        (on, x, other), axes = self.joined(guard, read, fill or Tile(np.zeros((), read.data.dtype)))
        return Tile(np.where(on, x, other), axes)

    def store(self, param: str, index: Sequence[Tile], value: Tile, guard: Tile | None, loc: Loc) -> None:
        memory, dtype = self.launch.memory[param], self.launch.plan.decls[param].type.dtype
        if memory.dtype == ops.storage(dtype):
            value = Tile(ops.encode(value.data, dtype), value.axes)
        cut = self.slices(param, index)
        if None not in cut:
            target = _ordered(memory[(*cut, ...)], tuple(axis for tile in index for axis in tile.axes))
            (to, data, on), axes = self.joined(target, value, guard or _ALWAYS)
            if axes == target.axes:
                np.copyto(to, data, where=on, casting="unsafe")
                return
        offset = self.offsets(param, index, guard, loc)
        (at, data, on), axes = self.joined(offset, value, guard or _ALWAYS)
        at, data, on = np.broadcast_arrays(at, data, on)
        at, data = at[on], data[on]
        if axes != offset.axes and len(np.unique(at)) != len(at):
            raise InternalError(Code.INTERNAL, loc, what=f"an element of {param} is written twice")
        if memory.size:
            flat(memory)[at] = data

    def check(self, bad: Tile, what: str) -> None:
        """Count failures once, in the first tile of every axis that the condition does not vary along."""
        if all(r.start == 0 for axis, r in self.ranges.items() if axis not in bad.axes):
            count = int(np.count_nonzero(bad.data))
            if count:
                self.errors[what] += count
                first = self.ranges[bad.axes[0]].start if bad.axes and bad.axes[0] in self.ranges else 0
                self.rows[what] = first + int(np.nonzero(bad.data)[0].max()) if bad.axes else 0

    # --- combines ---

    def dot(self, node: Dot, a: Tile, b: Tile, onto: Tile | None) -> Tile:
        """Contract, with one product for every index of the batch axes."""
        rank = self.launch.plan.rank
        batch = (rank[axis] for axis in (*(node.each or ()), node.over.pieces) if axis in rank)
        one = next((axis for axis in batch if axis in a.axes and axis in b.axes), None)
        if one is None:
            return self.product(node, a, b, onto)
        begin = onto and self.spread(onto, (one,))
        each = [
            self.dot(node, _at(a, one, i), _at(b, one, i), begin and _at(begin, one, i))
            for i in range(self.size(one))
        ]
        axes = tuple(sorted((*each[0].axes, one)))
        return Tile(np.stack([tile.data for tile in each], axes.index(one)), axes)

    def product(self, node: Dot, a: Tile, b: Tile, onto: Tile | None) -> Tile:
        over = self.launch.plan.rank[node.over]
        left, right = ([axis for axis in t.axes if axis != over] for t in (a, b))
        rows, columns = (
            np.moveaxis(t.data, t.axes.index(over), -1).reshape(-1, self.size(over)) for t in (a, b)
        )
        begin = None
        if onto is not None:
            from_axes = self.spread(onto, tuple(sorted((*left, *right))))
            turned = [from_axes.axes.index(axis) for axis in (*left, *right)]
            begin = np.transpose(from_axes.data, turned).reshape(len(rows), len(columns))
        dtype = self.launch.plan.dtypes[node.a]
        made = self.launch.arithmetic.dot(rows, columns, node.model, dtype, begin)
        return _ordered(made.reshape([self.size(axis) for axis in (*left, *right)]), (*left, *right))

    def reduce(self, node: Reduce, x: Tile, loc: Loc) -> Tile:
        dim = x.axes.index(self.launch.plan.rank[node.over])
        axes = x.axes[:dim] + x.axes[dim + 1 :]
        self.padded(node, x.data, dim, loc)
        is_float = x.data.dtype.kind == "f"
        match node.fn:
            case Combine.ADD if is_float:
                assert node.order is not None
                return Tile(floats.tree_sum(x.data, dim, node.order), axes)
            case Combine.ADD:
                return Tile(np.add.reduce(x.data, axis=dim, dtype=x.data.dtype), axes)
            case Combine.MAX:
                return Tile(floats.tree_fold(ops.maximum, x.data, dim, Rule.HALVING), axes)
            case Combine.MIN:
                return Tile(floats.tree_fold(ops.minimum, x.data, dim, Rule.HALVING), axes)
            case Combine.OR:
                return Tile(np.bitwise_or.reduce(x.data, axis=dim), axes)
            case _:
                assert_never(node.fn)

    def padded(self, node: Reduce, x: Array, dim: int, loc: Loc) -> None:
        """Raise where the padding of a reduced axis is not the identity of the reduction."""
        n = self.launch.extent(self.launch.plan.rank[node.over])
        beyond = np.moveaxis(x, dim, 0)[n:]
        if beyond.size:
            neutral = np.array(ops.identity(node.fn, x.dtype), x.dtype)
            bits = f"u{x.itemsize}"
            if (beyond.view(bits) != neutral.view(bits)).any():
                what = f"beyond axis {node.over} {beyond.flat[0]} enters a {node.fn.value}, not {neutral}"
                raise InternalError(Code.INTERNAL, loc, what=what)

    def merge(self, node: Merge, states: State, onto: Tile | None) -> State:
        """Merge states along an axis: ascending, or index bits are paired away in the tree's order."""
        block = merging(node.monoid, tuple(self.launch.plan.dtypes[s] for s in node.states), node.exp2)
        over = self.launch.plan.rank[node.over]
        length = self.launch.length(over)
        if node.order is ASCENDING:
            merged = tuple(_at(state, over, 0) for state in states) if onto is None else (onto,)
            for i in range(onto is None, length):
                merged = self.pair(block, merged, tuple(_at(state, over, i) for state in states))
            return merged
        bits = list(range(length.bit_length() - 1))
        for bit in bind(node.order, length).order:
            inner = 1 << bits.index(bit)
            bits.remove(bit)
            pairs = [_pair(state, over, inner) for state in states]
            states = self.pair(block, tuple(left for left, _ in pairs), tuple(right for _, right in pairs))
        return tuple(_at(state, over, 0) for state in states)

    def pair(self, block: Block, one: State, two: State) -> State:
        """Return the merge of two states by its block."""
        scope: Scope = dict(zip(block.args, (*one, *two), strict=True))
        self.block(block.lets, scope)
        return tuple(_tile(scope[v]) for v in block.results)

    # --- control ---

    def loop(self, node: Loop, scope: Scope) -> State:
        """Run the steps; where a step is outside [start, stop) the carried values stay."""
        start, stop = _tile(scope[node.start]), _tile(scope[node.stop])
        (low, high), axes = self.joined(start, stop)
        held = self.launch.plan.carried(node)
        carried = tuple(self.spread(_tile(scope[v]), each) for v, each in zip(node.init, held, strict=True))
        if not low.size or not high.size:
            return carried
        for step in range(int(low.min()), int(high.max())):
            scope[node.body.args[0]] = Tile(np.array(step, start.data.dtype))
            scope.update(zip(node.body.args[1:], carried, strict=True))
            self.block(node.body.lets, scope)
            live = Tile((low <= step) & (step < high), axes)
            new = (
                self.spread(_tile(scope[v]), each) for v, each in zip(node.body.results, held, strict=True)
            )
            carried = tuple(self.chosen(live, a, b) for a, b in zip(new, carried, strict=True))
        return carried

    def chosen(self, cond: Tile, a: Tile, b: Tile) -> Tile:
        if np.count_nonzero(cond.data) == cond.data.size:
            return a
        (on, x, y), axes = self.joined(cond, a, b)
        return Tile(np.where(on, x, y), axes)


_PARTIAL = frozenset(fn for fn in Fn2 if any(fn.domain(dtype) for dtype in DType))
_KEEP = slice(None)
_ALWAYS = Tile(np.array(True))


@lru_cache(1 << 12)
def _union(*each: Axes) -> tuple[Axes, tuple[Any, ...]]:
    """Return the union of axes, and for each the index that adds the missing dims, None if there are none."""
    axes = tuple(sorted({axis for one in each for axis in one}))
    places = (None if one == axes else tuple(_KEEP if a in one else None for a in axes) for one in each)
    return axes, tuple(places)


def _ordered(data: Array, axes: Axes) -> Tile:
    """Return a tile of an array whose dims have axes in any order."""
    if all(a < b for a, b in itertools.pairwise(axes)):
        return Tile(data, axes)
    order = sorted(range(len(axes)), key=axes.__getitem__)
    return Tile(data.transpose(order), tuple(axes[i] for i in order))


def _range(index: Tile, n: int) -> int | slice | None:
    """Return the one element or the range of [0, n) that an index names along at most one axis, else None."""
    at = index.data
    if len(index.axes) > 1 or not at.size:
        return None
    low = int(at[0]) if at.ndim else int(at)
    high = low + at.size
    if low < 0 or high > n:
        return None
    if not at.ndim:
        return low
    # most that are no range end elsewhere
    return None if at[-1] != high - 1 or np.count_nonzero(at != np.arange(low, high)) else slice(low, high)


def _tile(value: Tile | State) -> Tile:
    assert isinstance(value, Tile)
    return value


def _maybe(scope: Scope, value: Value | None) -> Tile | None:
    return None if value is None else _tile(scope[value])


def _pair(tile: Tile, axis: int, inner: int) -> tuple[Tile, Tile]:
    """Split an axis by one bit of its index; the bits below it count `inner` indices."""
    dim = tile.axes.index(axis)
    shape = tile.data.shape
    pairs = tile.data.reshape(*shape[:dim], -1, 2, inner, *shape[dim + 1 :])
    before = (_KEEP,) * (dim + 1)
    half = (*shape[:dim], -1, *shape[dim + 1 :])
    return tuple(Tile(pairs[*before, side].reshape(half), tile.axes) for side in (0, 1))  # type: ignore[return-value]


def _at(tile: Tile, axis: int, index: int) -> Tile:
    dim = tile.axes.index(axis)
    return Tile(tile.data[(_KEEP,) * dim + (index, ...)], tile.axes[:dim] + tile.axes[dim + 1 :])
