"""Loops of the host function, which launch kernels for the pieces of an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.nodes import Launch, Phase, Turn

INDENT = "    "
Extents = Mapping[str, int]


def host_lines(
    launches: Sequence[Launch], of: Mapping[str, Sequence[str]], extents: Extents, depth: int = 0
) -> list[str]:
    """Return the lines that launch kernels in order; adjacent launches share their common outer loops.

    of: the lines that launch a kernel once. extents: of the static axes. depth: of the enclosing loops.
    """
    lines: list[str] = []
    at = 0
    while at < len(launches):
        launch = launches[at]
        if len(launch.turns) == depth:
            lines += _when(launch, of[launch.kernel])
            at += 1
            continue
        axis = launch.turns[depth].axis
        end = at
        while end < len(launches) and len(launches[end].turns) > depth:
            if launches[end].turns[depth].axis != axis:
                break
            end += 1
        inner = host_lines(launches[at:end], of, extents, depth + 1)
        counted = any(_counts(turn, axis) for each in launches[at:end] for turn in each.turns)
        lines += _loop(launch.turns[depth], extents, inner, counted)
        at = end
    return lines


def loop_extents(launches: Sequence[Launch], extents: Extents) -> tuple[Axis, ...]:
    """Return the axes whose extents the loops need as arguments."""
    axes = dict.fromkeys(turn.axis.whole for launch in launches for turn in launch.turns)
    return tuple(a for a in axes if a.name not in extents)


def length_name(axis: Axis) -> str:
    """Return the name of the length of a loop's current piece."""
    return f"{axis.name}_length"


def _counts(turn: Turn, axis: Axis) -> bool:
    """Return whether the condition of a turn reads how many pieces an axis has."""
    return turn.axis == axis and turn.only in (Phase.MIDDLE, Phase.LAST)


def _loop(turn: Turn, extents: Extents, inner: list[str], counted: bool) -> list[str]:
    """Return the lines of a loop. counted: whether conditions inside read the number of pieces."""
    axis = turn.axis
    whole = extents.get(axis.name, axis.name)
    size, count = str(axis.piece), _ceil(whole, axis.piece or 1)
    if axis.split is not None:
        size, count = _ceil(whole, axis.split), str(axis.split)
    lines: list[str] = []
    if counted:
        lines.append(f"{_pieces(axis)} = {count}")
        count = _pieces(axis)
    lines.append(f"for {turn.index} in range({count}):")
    if fixed_extent(axis.within, extents) is None:
        each = size if size.isdigit() else f"({size})"
        rest = f"{whole} - {turn.index} * {each}"
        rest = rest if axis.split is None else f"max(0, {rest})"
        lines.append(f"{INDENT}{length_name(axis)} = min({size}, {rest})")
    return lines + [INDENT + line for line in inner]


def _ceil(whole: int | str, size: int) -> str:
    """Return the text of whole / size, rounded up."""
    return f"({whole} + {size - 1}) // {size}" if isinstance(whole, str) else str(-(-whole // size))


def _when(launch: Launch, lines: Sequence[str]) -> list[str]:
    """Return the lines of a launch under the conditions of its loops."""
    conditions = [_condition(turn) for turn in launch.turns if turn.only is not None]
    if not conditions:
        return list(lines)
    return [f"if {' and '.join(conditions)}:", *(INDENT + line for line in lines)]


def _condition(turn: Turn) -> str:
    last = f"{_pieces(turn.axis)} - 1"
    match turn.only:
        case Phase.FIRST:
            return f"{turn.index} == 0"
        case Phase.REST:
            return f"{turn.index} > 0"
        case Phase.MIDDLE:
            return f"0 < {turn.index} < {last}"
        case Phase.LAST:
            return f"{turn.index} == {last}"
        case (one,):
            return f"{turn.index} == {one}"
        case several:
            return f"{turn.index} in {several}"


def _pieces(axis: Axis) -> str:
    return f"{axis.name}_pieces"
