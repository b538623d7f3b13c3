"""Block-wide tree reductions as text: in lists, by warp shuffles, through shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlk.lower.common.lines import Line
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.cute.reduce_steps import Step, Where, steps


@dataclass(frozen=True, slots=True)
class Tree:
    """The lines of a reduction helper, and its buffers in shared memory.

    reduce_buffers: elements of a thread in each cross-warp exchange. calls: prelude functions of the lines.
    thread: whether they read the index of the thread.
    """

    lines: tuple[Line, ...]
    reduce_buffers: tuple[int, ...]
    calls: tuple[str, ...]
    thread: bool


_COMBINE = {
    Where.LIST: "folded",
    Where.RECURSIVE_HALVING: "halved",
    Where.LANES: "exchanged",
    Where.WARPS: "across",
}
_MERGE = {Where.LIST: "merged", Where.LANES: "merged_lanes", Where.WARPS: "merged_across"}


def combining(
    thread_values: ThreadValues, lists: Sequence[ThreadValues], order: Sequence[int], combine: str
) -> Tree:
    """Return the tree reduction of the list `x` by a prelude function, by recursive halving between lanes."""
    found = steps(thread_values, lists, order, halving=True)
    calls = [(_COMBINE[step.where], step) for step in found]
    lines, buffers = _lines(calls, lists, ("x", "x", combine), lambda i: f"reduce_buffers[{i}]")
    return Tree(lines, buffers, (combine, *(name for name, _ in calls)), _thread(found))


def merging(
    thread_values: ThreadValues,
    lists: Sequence[ThreadValues],
    order: Sequence[int],
    state: Sequence[str],
    merge: str,
) -> Tree:
    """Return the tree of a merge of states, each a list."""
    names, many = ", ".join(state), len(state)
    of = f"{names}{',' * (many == 1)}", f"({names},)", merge
    found = steps(thread_values, lists, order, halving=False)
    calls = [(_MERGE[step.where], step) for step in found]
    lines, buffers = _lines(calls, lists, of, lambda i: f"reduce_buffers[{many * i}:{many * i + many}]")
    return Tree(lines, buffers, tuple(name for name, _ in calls), _thread(found))


def _thread(found: Sequence[Step]) -> bool:
    return any(step.where in (Where.RECURSIVE_HALVING, Where.WARPS) for step in found)


def _lines(
    calls: Sequence[tuple[str, Step]],
    lists: Sequence[ThreadValues],
    of: tuple[str, str, str],
    reduce_smem: Callable[[int], str],
) -> tuple[tuple[Line, ...], tuple[int, ...]]:
    """Return the lines, and the elements of a thread in each exchange. of: result, argument, combination."""
    result, given, combine = of
    count = math.prod(each.count for each in lists)
    lines: list[Line] = []
    buffers: list[int] = []
    for name, step in calls:
        match step.where:
            case Where.LIST | Where.LANES:
                operands: tuple[str, ...] = (given, str(step.strides[0]), combine)
            case Where.RECURSIVE_HALVING:
                operands = (given, str(step.strides[0]), "thread", combine)
            case Where.WARPS:
                operands = (given, reduce_smem(len(buffers)), str(step.strides), "thread", combine)
                buffers.append(count)
        lines.append(Line(f"{result} = {name}({', '.join(operands)})"))
        if step.where in (Where.LIST, Where.RECURSIVE_HALVING):
            count //= 2
    return tuple(lines), tuple(buffers)
