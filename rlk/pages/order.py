"""The orders of a program's float additions, read off its traced form and said in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlk.ir.dims import Axis
from rlk.ir.dotmodel import DotModel
from rlk.ir.monoid import Kind, Monoid
from rlk.ir.nodes import (
    Block,
    Combine,
    Dot,
    Fold,
    Let,
    Loop,
    Merge,
    MergeOrder,
    Program,
    Reduce,
    Stream,
    Value,
)
from rlk.ir.online import SLACK
from rlk.ir.tree import ASCENDING, Rule, Tree
from rlk.ir.types import TileType

_WORDS: dict[MergeOrder, str] = {
    Rule.HALVING: "a halving tree (the upper half is added onto the lower)",
    Rule.PAIRWISE: "a pairwise tree (neighbours first)",
    Rule.VECTOR8: "a vector8 tree (eight neighbours as a halving tree, then these sums)",
    ASCENDING: "ascending order",
}
CHAINS = {
    DotModel.CHAIN16: "one f32 accumulator over ascending {0}, 16 products at a time (chain16)",
    DotModel.FMA: "one f32 accumulator over ascending {0}, a fused multiply-add for each product",
}

_RESCALED = (
    "one f32 accumulator in each piece (chain16), rescaled where the maximum moves; "
    "pieces merge as their states do"
)
LATE = f" where a chunk's exceeds it by more than {SLACK:g}"


def orders(program: Program) -> list[str]:
    """Return a sentence for every order in which a traced program adds floats, each once."""
    found = (text for kernel in program.kernels for text in _block(kernel.body, {}))
    return list(dict.fromkeys(found))


def words(order: MergeOrder) -> str:
    """Return the name of an order, and its meaning."""
    if isinstance(order, Tree):
        return f"a tree that pairs away bits {', '.join(map(str, order.order))} of the index, in this order"
    return _WORDS[order]


def _block(block: Block, types: dict[Value, object]) -> Iterator[str]:
    for let in block.lets:
        types[let.value] = let.type
        yield from _let(let, types)


def _let(let: Let, types: dict[Value, object]) -> Iterator[str]:
    match let.node:
        case Loop(body=body):
            yield from _block(body, types)
        case Stream(axis=axis, body=body, folds=folds) as stream:
            yield from _block(body, types)
            for fold in folds:
                if _adds(fold, types):
                    products, rest = _contracted(fold, types)
                    yield f"{_what(rest)} over {axis}: {_along(axis, rest)}."
                    yield from (f"Contraction over {axis} of e and {name}: {_RESCALED}." for name in products)
            if stream.init:
                way = "the last element to the first" if stream.reverse else "the first element to the last"
                yield f"Recurrence along {axis}: one step after the other, from {way}."
        case Dot(over=axis, model=model, each=each):
            of = f", for each index of {' and '.join(map(str, each))}" if each else ""
            yield f"Contraction over {axis}{of}: {_cut(axis, CHAINS[model].format(axis))}."
        case Reduce(fn=Combine.ADD, over=axis, order=order) if _is_float(let.type) and order is not None:
            yield f"Sum over {axis}: {words(order)}; missing elements are -0.0."
        case Merge(monoid=monoid, over=axis, order=order):
            yield f"{_what(monoid)} over {axis}: states merge in {words(order)}."
        case _:
            return


def _is_float(type: object) -> bool:
    return isinstance(type, TileType) and type.dtype.is_float


def _adds(fold: Fold, types: dict[Value, object]) -> bool:
    """Return whether a fold adds floats: integers, maxima and indices have no order."""
    return (fold.monoid.kind is Kind.TOTAL or fold.monoid.is_softmax) and _is_float(types[fold.inputs[0]])


def _contracted(fold: Fold, types: dict[Value, object]) -> tuple[list[str], Monoid]:
    """Return the payloads that are contracted with a softmax's weights, and the monoid without them."""
    score, *payloads = (set(getattr(types[value], "axes", ())) for value in fold.inputs)
    if not fold.monoid.is_softmax:
        return [], fold.monoid
    named = dict(zip(fold.monoid.payloads, payloads, strict=True))
    products = [name for name, axes in named.items() if axes - score]
    return products, replace(fold.monoid, payloads=tuple(n for n in named if n not in products))


def _what(monoid: Monoid) -> str:
    if monoid.is_softmax:
        centred = ", sum of e (z - maximum)" * monoid.centred
        sums = centred + "".join(f", sum of e {name}" for name in monoid.payloads)
        return f"Softmax state (maximum, sum of e{sums})"
    return "Contraction" if monoid.contracts else "Sum"


def _cut(axis: Axis, chain: str) -> str:
    """Say how the accumulators of a contraction are added, if its axis has several."""
    if axis.split is not None:
        size = f"ceil({axis} / {axis.split})"
        return f"{chain} for each of {axis.split} pieces of {size}, which are added pairwise"
    if axis.piece is not None:
        return f"{chain} for every {axis.piece} of it, which are added ascending"
    return chain


def _along(axis: Axis, monoid: Monoid) -> str:
    """Say in which order a stream's chunks and pieces are absorbed."""
    start = "the start of its segment" if axis.over else "its start"
    if axis.leaf == "segment":
        return f"one accumulator takes chunks of {axis.chunk}, ascending from {start}"
    softmax = monoid.is_softmax
    chunk = f"chunks of {axis.chunk}" if (axis.chunk or 1) > 1 else "one element after the other"
    within = f", each summed as {words(monoid.lanes)}" if (axis.chunk or 1) > 1 else ""
    if axis.leaf == "piece":
        moves = f"moves{LATE * (monoid.kind is Kind.POWER_SUM)}"
        steps = f"{chunk}{within}, join one running state, ascending, whose maximum {moves}"
    elif softmax:
        steps = f"{chunk}, each with its own maximum{within.replace(', each', ' and')}, merge ascending"
    else:
        steps = f"{chunk}{within}, ascending"
    if axis.split is not None:
        return (
            f"in each of {axis.split} pieces of ceil({axis} / {axis.split}), {steps}; pieces merge pairwise"
        )
    if axis.piece is None or axis.piece == axis.chunk:
        many = f"; {axis.fan_in} of these at a time are added in the same way, and those ascending"
        return (
            f"{steps} from {start}" if axis.fan_in is None else f"{steps.removesuffix(', ascending')}{many}"
        )
    return f"{steps}, in pieces of {axis.piece} from {start}; pieces merge ascending"


def part_of(program: Program) -> Iterator[tuple[Axis, str]]:
    """Yield what each axis is to a traced program: streamed, contracted, reduced whole, or parallel."""
    for kernel in program.kernels:
        used = list(_used(kernel.body))
        yield from used
        combined = {axis.whole for axis, _ in used}
        axes = (axis for decl in kernel.params for axis in decl.type.axes)
        yield from ((axis, "parallel") for axis in axes if axis.whole not in combined)


def _used(block: Block) -> Iterator[tuple[Axis, str]]:
    for let in block.lets:
        match let.node:
            case Loop(body=body):
                yield from _used(body)
            case Stream(axis=axis, body=body):
                yield axis, "streamed"
                yield from _used(body)
            case Dot(over=axis):
                yield axis, "contracted"
            case Reduce(over=axis) | Merge(over=axis):
                yield axis, "reduced whole"
            case _:
                pass
