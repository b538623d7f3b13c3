"""Block-wide tree reductions as text: in lists, by warp shuffles, through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlk.lower.common.lines import Line
from rlk.lower.common.thread_values import ThreadValues
from rlk.lower.cute.reduce_steps import Step, Where, steps


@dataclass(frozen=True, slots=True)
class Tree:
    """The lines of a reduction helper, and its buffers in shared memory.

    reduce_buffers: elements of a thread in each cross-warp exchange.
    """

    lines: tuple[Line, ...]
    reduce_buffers: tuple[int, ...]


def combining(
    thread_values: ThreadValues, lists: Sequence[ThreadValues], order: Sequence[int], combine: str
) -> Tree:
    """Return the tree reduction of the list `x`, by recursive halving between lanes."""
    texts = {
        Where.LIST: f"x = folded(x, {{}}, {combine})",
        Where.HALVES: f"x = halved(x, {{}}, thread, {combine})",
        Where.LANES: f"x = exchanged(x, {{}}, {combine})",
        Where.WARPS: f"x = across(x, {{reduce_smem}}, {{}}, thread, {combine})",
    }
    return _lines(
        steps(thread_values, lists, order, halves=True), lists, texts, lambda i: f"reduce_buffers[{i}]"
    )


def merging(
    thread_values: ThreadValues,
    lists: Sequence[ThreadValues],
    order: Sequence[int],
    state: Sequence[str],
    merge: str,
) -> Tree:
    """Return the tree of a merge of states, each a list."""
    names = ", ".join(state)
    given = f"({names},)"
    left = f"{names}{',' * (len(state) == 1)}"
    texts = {
        Where.LIST: f"{left} = merged({given}, {{}}, {merge})",
        Where.LANES: f"{left} = merged_lanes({given}, {{}}, {merge})",
        Where.WARPS: f"{left} = merged_across({given}, {{reduce_smem}}, {{}}, thread, {merge})",
    }
    many = len(state)
    made = steps(thread_values, lists, order, halves=False)
    return _lines(made, lists, texts, lambda i: f"reduce_buffers[{many * i}:{many * i + many}]")


def _lines(
    found: Sequence[Step],
    lists: Sequence[ThreadValues],
    texts: dict[Where, str],
    reduce_smem: Callable[[int], str],
) -> Tree:
    count = 1
    for each in lists:
        count *= each.count
    lines: list[Line] = []
    reduce_buffers: list[int] = []
    for step in found:
        strides = str(step.strides) if step.where is Where.WARPS else str(step.strides[0])
        lines.append(Line(texts[step.where].format(strides, reduce_smem=reduce_smem(len(reduce_buffers)))))
        if step.where is Where.WARPS:
            reduce_buffers.append(count)
        if step.where in (Where.LIST, Where.HALVES):
            count //= 2
    return Tree(tuple(lines), tuple(reduce_buffers))
