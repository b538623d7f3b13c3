"""Tree reductions over a block as text: in a thread's list, by lane exchange, through shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rlk.lower.common.lines import Function, Line
from rlk.lower.common.thread_values import ThreadValues

INDENT = "    "


@dataclass(frozen=True, slots=True)
class Folding:
    """The combination of terms: names of a state's components, the function of two states, and the wave.

    warp: threads that exchange by shuffles. nested: one half of a list is combined before the other is read,
    so that few terms are live.
    """

    state: tuple[str, ...]
    combine: str
    warp: int
    nested: bool = False

    def combined(self, one: Sequence[str], two: Sequence[str], at: str = "c") -> str:
        """Return the line that stores the combination of two states at `at` of the first component."""
        to = ", ".join(f"{x}[{at}]" for x in self.state)
        return f"{to} = {self.combine}({', '.join((*one, *two))})"


def reduce_buffers(folding: Folding, thread_values: ThreadValues) -> tuple[str, ...]:
    """Return the names of the shared buffers of waves, if some index bits select the wave."""
    across = any(1 << at >= folding.warp for _, at in thread_values.threads)
    return tuple(f"{x}_reduce_smem" for x in folding.state) if across else ()


def tree(
    name: str,
    about: str,
    folding: Folding,
    thread_values: ThreadValues,
    lists: Sequence[ThreadValues],
    order: Sequence[int],
) -> Function:
    """Return the macro that combines along an axis, in place: index bit after index bit in this order.

    lists: the layouts of a thread's list, the last fastest. Results are in the lists' first elements, along
    the remaining axes.
    """
    told = dict(thread_values.threads)
    left = [(each.axis, bit) for each in reversed(lists) for bit in each.listed]
    lines: list[Line] = []
    count = 1 << len(left)
    first = list(takewhile(lambda bit: bit not in told, order)) if folding.nested else []
    if len(first) > 1:
        lines += _nested(folding, [left.index((thread_values.axis, bit)) for bit in first], count)
        left = [each for each in left if each not in [(thread_values.axis, bit) for bit in first]]
        count = 1 << len(left)
        order = order[len(first) :]
    for bit in order:
        if bit not in told:
            place = left.index((thread_values.axis, bit))
            left.pop(place)
            count //= 2
            lines += _in_list(folding, 1 << place, count)
        elif 1 << told[bit] < folding.warp:
            lines += _in_wave(folding, 1 << told[bit], count)
        else:
            lines += _across_waves(folding, 1 << told[bit], count)
    met = reduce_buffers(folding, thread_values)
    arguments = (*folding.state, *met, *(["thread"] if met else []))
    return Function(name, arguments, about, tuple(lines))


def _each(count: int, *lines: str) -> Iterator[Line]:
    yield Line(f"for c in tl.unroll({count}):")
    for line in lines:
        yield Line(INDENT + line)


def _in_list(folding: Folding, apart: int, pairs: int) -> Iterator[Line]:
    at = f"c // {apart} * {2 * apart} + c % {apart}" if apart > 1 else "2 * c"
    one = [f"{x}[{at}]" for x in folding.state]
    two = [f"{x}[{at} + {apart}]" for x in folding.state]
    yield from _each(pairs, folding.combined(one, two))


def _nested(folding: Folding, bits: Sequence[int], count: int) -> Iterator[Line]:
    """Yield the loops that combine a list along some bits of its places, the first ones innermost."""
    others = [at for at in range(count.bit_length() - 1) if at not in bits]
    names = [f"b{at}" for at in (*others, *reversed(bits[1:]))]
    depth = len(others)
    for i, name in enumerate(names):
        yield Line(f"{INDENT * i}for {name} in tl.unroll(2):")
    for i in range(len(bits)):
        inside = names[: len(names) - i]
        at = " + ".join(f"{name} * {1 << int(name[1:])}" for name in inside) or "0"
        one = [f"{x}[{at}]" for x in folding.state]
        two = [f"{x}[{at} + {1 << bits[i]}]" for x in folding.state]
        yield Line(INDENT * len(inside) + folding.combined(one, two, at))
    names = [f"c // {1 << i} % 2 * {1 << at}" for i, at in enumerate(others)]
    if depth and others != list(range(depth)):
        yield from _each(1 << depth, *(f"{x}[c] = {x}[{' + '.join(names)}]" for x in folding.state))


def _in_wave(folding: Folding, apart: int, count: int) -> Iterator[Line]:
    # without its width the exchange is one of 32 lanes
    other = [f"tl.shfl_xor({x}[c], {apart}, width={folding.warp})" for x in folding.state]
    yield from _each(count, folding.combined([f"{x}[c]" for x in folding.state], other))


def _across_waves(folding: Folding, apart: int, count: int) -> Iterator[Line]:
    yield Line("tl.sync_threads()  # what was exchanged before has been read")
    yield from _each(count, *(f"{x}_reduce_smem[c, thread] = {x}[c]" for x in folding.state))
    yield Line("tl.sync_threads()")
    other = [f"{x}_reduce_smem[c, thread ^ {apart}]" for x in folding.state]
    yield from _each(count, folding.combined([f"{x}[c]" for x in folding.state], other))
