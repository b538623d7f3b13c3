"""Bind what a signature knows: the extents of static axes, and the models of transcendental functions."""

from __future__ import annotations

from collections.abc import Mapping

from rlk.ir.dims import Part
from rlk.ir.nodes import Extent, Kernel, Let, Math, MathModel
from rlk.passes.rewrite import Replay, rewrite

Extents = Mapping[str, int]


def bind_extents(kernel: Kernel, extents: Extents) -> Kernel:
    """Return the kernel with the extents of the named axes as constants."""

    def rule(replay: Replay, let: Let) -> bool:
        match let.node:
            case Extent(axis=axis) if axis.part is Part.ALL and axis.name in extents:
                replay.renamed[let.value] = replay.builder.i32(extents[axis.name])
            case Extent(axis=axis) if axis.part is Part.PIECE and axis.split is not None:
                replay.renamed[let.value] = replay.builder.i32(axis.split)
            case Extent(axis=axis) if axis.part is Part.PIECE and axis.name in extents and axis.piece is not None:
                replay.renamed[let.value] = replay.builder.i32(-(-extents[axis.name] // axis.piece))
            case _:
                return False
        return True

    return rewrite(kernel, rule)


def bind_math(kernel: Kernel, softmax: MathModel) -> Kernel:
    """Return the kernel with the exp2 of softmax folds in the model of a target."""

    def rule(replay: Replay, let: Let) -> bool:
        match let.node:
            case Math(fn=fn, x=x, model=MathModel.SOFTMAX):
                replay.renamed[let.value] = replay.builder.math(fn, replay[x], softmax, let.name)
                return True
            case _:
                return False

    return rewrite(kernel, rule)
