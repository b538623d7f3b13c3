"""Specialization to a signature: the extents of static axes, and the models of transcendental functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rlk.ir.dims import Axis, Part, extent_of, fixed_extent, is_power_of_two
from rlk.ir.nodes import Extent, Fn2, Kernel, Let, Map2, Math, MathModel, Merge, Node, Pos
from rlk.ir.types import DType
from rlk.passes.mask import whole_axes
from rlk.passes.rewrite import Replay, rewrite
from rlk.passes.walk import walk

Extents = Mapping[str, int]


def bind_extents(kernel: Kernel, extents: Extents) -> Kernel:
    """Return the kernel with the extents of the named axes as constants.

    Bounds checks against these extents are dropped; for a padded axis only if the extent is 2**n.
    """
    nodes = {let.value: let.node for let in walk(kernel.body)}
    padded = {a for a in whole_axes(kernel) if not is_power_of_two(extents.get(a.name, 0))}

    def rule(replay: Replay, let: Let) -> bool:
        match let.node:
            case Map2(fn=Fn2.LT, a=a, b=b) if _bounds(nodes.get(a), nodes.get(b), padded):
                replay.renamed[let.value] = replay.builder.const(True, DType.BOOL)
            case Map2(fn=Fn2.LT, a=a) if _fills_pieces(nodes.get(a), extents):
                replay.renamed[let.value] = replay.builder.const(True, DType.BOOL)
            case Extent(axis=axis) if axis.part is Part.PIECE and axis.split is not None:
                replay.renamed[let.value] = replay.builder.i32(axis.split)
            case Extent(axis=axis) if axis.name in extents:
                replay.renamed[let.value] = replay.builder.i32(extent_of(axis, extents[axis.name]))
            case _:
                return False
        return True

    return rewrite(kernel, rule)


def _bounds(index: Node | None, extent: Node | None, padded: set[Axis]) -> bool:
    """Return whether index < extent is true for every element of an axis."""
    match index, extent:
        case Pos(axis=axis), Extent(axis=other):
            return axis == other and axis.part is Part.ALL and axis not in padded
        case _:
            return False


def _fills_pieces(index: Node | None, extents: Extents) -> bool:
    """Return whether an index runs inside pieces of equal length, so that every element exists."""
    match index:
        case Pos(axis=axis):
            return axis.part is Part.WITHIN and fixed_extent(axis, extents) is not None
        case _:
            return False


def bind_math(kernel: Kernel, softmax: MathModel) -> Kernel:
    """Return the kernel with the exp2 of softmax folds in the model of a target."""

    def rule(replay: Replay, let: Let) -> bool:
        match let.node:
            case Math(fn=fn, x=x, model=MathModel.SOFTMAX):
                replay.renamed[let.value] = replay.builder.math(fn, replay[x], softmax, let.name)
                return True
            case Merge(monoid=monoid, exp2=MathModel.SOFTMAX) as merge if monoid.is_softmax:
                bound = replace(merge, states=tuple(replay[s] for s in merge.states), exp2=softmax)
                replay.renamed[let.value] = replay.builder.let(bound, let.name)
                return True
            case _:
                return False

    return rewrite(kernel, rule)
