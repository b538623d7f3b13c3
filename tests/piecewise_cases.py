"""Small specs that contract axes with pieces, what they mean in NumPy, and an executor of launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.interp import arithmetic
from rlk.interp.dot import dot
from rlk.interp.floats import bf16_bits
from rlk.interp.run import Tile, _Launch, _Tile
from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.nodes import Dot, Kernel, Launch, MathModel, Phase, Program, Role, Turn
from rlk.ir.types import DType
from rlk.lang import DTypeVar, L, Op, Tensor, Variant, bf16, f16, f32, op
from rlk.lower.common.memory import memory_shape, placed
from rlk.passes.piecewise_launch import sweep
from rlk.passes.pipeline import canonical, specialize

Array = NDArray[Any]
Arrays = dict[str, Array]
Extents = Mapping[str, int]

M = Axis("M", dynamic=True)
N = Axis("N")
K = Axis("K")
S = Axis("S", split=4)
E = Axis("E", split=8)
P = Axis("P", piece=3, dynamic=True)
F = DTypeVar("F", (bf16, f16, f32))


@op()
def by_fours(x: Tensor[F, M, S], w: Tensor[F, N, S]):
    return L.out(y=L.dot(x, w, over=S))


@op()
def by_eighths(x: Tensor[F, E, M], w: Tensor[F, E, N]):
    z = L.dot(x, w, over=E)
    return L.out(y=z, y2=z * 2.0 + 1.0)


@op()
def by_threes(x: Tensor[F, P, N], w: Tensor[F, P, K]):
    return L.out(y=L.dot(x, w, over=P))


@op()
def head(a: Tensor[F, P, K], b: Tensor[F, E, K]):
    """A product that is kept, and contracted along either of its axes, as the gradient of a head does."""
    kept = L.keep((L.dot(a, b, over=K) * 0.5).to(a.dtype), "kept")
    L.place("left", (P, K), ({}, L.dot(kept, b, over=E)))
    L.place("right", (E, K), ({}, L.dot(kept, a, over=P)))
    return L.out()


SPECS: dict[str, Op] = {o.name: o for o in (by_fours, by_eighths, by_threes, head)}
DTYPES = {"bf16": bf16, "f16": f16, "f32": f32}


def program(spec: Op, dtype: str = "bf16", apart: frozenset[str] = frozenset()) -> Program:
    """Return the canonical program of a spec."""
    return canonical(spec.trace(Variant.of({"F": DTYPES[dtype]}, frozenset(), {})), apart=apart)


def swept(what: Program, extents: Extents) -> Program:
    """Return a program piece by piece, all extents bound but those of axes that are never static."""
    static = {name: n for name, n in extents.items() if name not in ("M", "P", "T")}
    return sweep(specialize(what, static, MathModel.PORTABLE), extents)


def stored(x: Array, dtype: str) -> Array:
    """Return f32 values as the oracle keeps them in memory: bf16 as its patterns."""
    match dtype:
        case "bf16":
            return bf16_bits(x)
        case "f16":
            return x.astype(np.float16)
        case _:
            return x.astype(np.float32)


def inputs(spec: Op, extents: Extents, dtype: str = "bf16", seed: int = 0) -> Arrays:
    """Draw the tensors of a spec."""
    rng = np.random.default_rng(seed)
    decls = [d for k in program(spec, dtype).kernels for d in k.params if d.role is Role.IN]
    shapes = {d.name: tuple(extents[a.name] for a in d.type.axes) for d in decls}
    return {
        name: stored(rng.standard_normal(shape).astype(np.float32), dtype) for name, shape in shapes.items()
    }


# --- meaning ---


def merged(a: Array, b: Array, dtype: str, pieces: list[slice], pairwise: bool) -> Array:
    """Return a[M, K] b[N, K]^T: a product for each piece of K, merged pairwise or ascending."""
    model = DotModel.FMA if dtype == "f32" else DotModel.CHAIN16
    parts = [dot(a[:, p], b[:, p], model, DType(dtype)) + np.float32(0.0) for p in pieces]
    while pairwise and len(parts) > 1:
        parts = [x + y for x, y in zip(parts[::2], parts[1::2], strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def split_of(n: int, count: int) -> list[slice]:
    size = -(-n // count)
    return [slice(min(n, i * size), min(n, (i + 1) * size)) for i in range(count)]


def threes_of(n: int) -> list[slice]:
    return [slice(low, low + 3) for low in range(0, n, 3)]


def meaning(spec: Op, given: Arrays, dtype: str) -> Arrays:
    """Return the outputs of a spec by products of arrays."""
    match spec.name:
        case "by_fours":
            x, w = given["x"], given["w"]
            return {"y": merged(x, w, dtype, split_of(x.shape[1], 4), True)}
        case "by_eighths":
            y = merged(given["x"].T, given["w"].T, dtype, split_of(len(given["x"]), 8), True)
            return {"y": y, "y2": y * np.float32(2.0) + np.float32(1.0)}
        case "by_threes":
            return {"y": merged(given["x"].T, given["w"].T, dtype, threes_of(len(given["x"])), False)}
        case _:
            a, b = given["a"], given["b"]
            model = DotModel.FMA if dtype == "f32" else DotModel.CHAIN16
            kept = stored(dot(a, b, model, DType(dtype)) * np.float32(0.5), dtype)
            return {
                "left": merged(kept, b.T, dtype, split_of(len(b), 8), True),
                "right": merged(kept.T, a.T, dtype, threes_of(len(a)), False),
            }


# --- loops of launches, run by the oracle ---


@dataclass(frozen=True)
class Step:
    """A launch of a kernel, with the number of the piece of each axis that is looped over."""

    kernel: str
    pieces: tuple[tuple[Axis, int], ...]


def steps(
    launches: Sequence[Launch], extents: Extents, outer: tuple[tuple[Axis, int], ...] = ()
) -> Iterator[Step]:
    """Yield launches in order: neighbours whose next loop is over one axis share it."""
    depth = len(outer)
    for axis, group in groupby(launches, lambda a: a.turns[depth].axis if len(a.turns) > depth else None):
        inside = list(group)
        if axis is None:
            yield from (
                Step(a.kernel, outer) for a in inside if not outer or takes(a.turns[-1], outer[-1], extents)
            )
            continue
        for i in range(count_of(axis, extents)):
            yield from steps(inside, extents, (*outer, (axis, i)))


def takes(turn: Turn, at: tuple[Axis, int], extents: Extents) -> bool:
    """Return whether a kernel takes part in a turn."""
    last = count_of(at[0], extents) - 1
    match turn.only:
        case None:
            return True
        case Phase.FIRST:
            return at[1] == 0
        case Phase.MIDDLE:
            return 0 < at[1] < last
        case Phase.LAST:
            return at[1] == last
        case chosen:
            return at[1] in chosen


def count_of(axis: Axis, extents: Extents) -> int:
    return axis.split or -(-extents[axis.name] // (axis.piece or 1))


def length_of(axis: Axis, piece: int, extents: Extents) -> int:
    """Return how many elements a piece has."""
    size = axis.piece or -(-extents[axis.name] // (axis.split or 1))
    return max(0, min(size, extents[axis.name] - piece * size))


def execute(what: Program, given: Mapping[str, Any], extents: Extents) -> Arrays:
    """Run launches in order by the oracle, workspaces in one block where `placed` puts them."""
    starts, size = placed(what, extents)
    block = np.full(size, 0xFF, np.uint8)
    decls = {d.name: d for k in what.kernels for d in k.params}
    memory: dict[str, Any] = dict(given)
    for name, decl in decls.items():
        kind = arithmetic.storage(decl.type.dtype)
        shape = memory_shape(decl, extents) if decl.role in (Role.OUT, Role.WORK) else ()
        bytes = int(np.prod(shape)) * np.dtype(kind).itemsize
        if decl.role is Role.OUT:
            memory[name] = np.full(bytes, 0xFF, np.uint8).view(kind).reshape(shape)
        if decl.role is Role.WORK:
            memory[name] = block[starts[name] : starts[name] + bytes].view(kind).reshape(shape)
    kernels = {k.name: k for k in what.kernels}
    for step in steps(what.order, extents):
        once(kernels[step.kernel], step, memory, extents)
    return {name: memory[name] for name, decl in decls.items() if decl.role is Role.OUT}


def once(kernel: Kernel, step: Step, memory: dict[str, Any], extents: Extents) -> None:
    """Run one launch: inside it the extent of a looped axis is what makes its pieces as long as this one."""
    here, numbers = dict(extents), {}
    for axis, piece in step.pieces:
        here[axis.name] = length_of(axis, piece, extents) * (axis.split or 1)
        numbers[f"{axis.name}_piece"] = np.int32(piece)
    launch = _Launch(kernel, {**memory, **numbers}, here, arithmetic.Exact(MathModel.PORTABLE))
    ranges = {axis: range(launch.length(axis)) for axis in launch.plan.parallel}
    if all(ranges.values()):
        _Tiles(launch, ranges).run()


class _Tiles(_Tile):
    """Contracts pieces without elements too."""

    def product(self, node: Dot, a: Tile, b: Tile, onto: Tile | None) -> Tile:
        if self.size(self.launch.plan.rank[node.over]):
            return super().product(node, a, b, onto)
        assert onto is None
        over = self.launch.plan.rank[node.over]
        axes = tuple(sorted({axis for tile in (a, b) for axis in tile.axes if axis != over}))
        return Tile(np.zeros([self.size(axis) for axis in axes], np.float32), axes)
