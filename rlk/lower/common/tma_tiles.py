"""TMA tiles of streamed factors: consecutive rows of a tensor, or all heads of consecutive tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlk.ir.dims import Axis
from rlk.ir.nodes import Const, Fn2, Load, Map2, Node, Pos, Value
from rlk.ir.types import TileType, Type


@dataclass(frozen=True, slots=True)
class TmaTile:
    """A TMA tile: its first row, the end of the rows, and the dims of a tensor, the fastest first.

    first: index of the first row. end: one past the last row. each: rows of the first of two dims: the heads
    of a token (packed GQA).
    """

    first: Value
    end: Value
    dims: tuple[int, ...]
    each: int = 1

    def coordinate(self, first: str) -> str:
        """Return the TMA coordinate of a row index."""
        return first if len(self.dims) == 1 else f"(0, {first} // {self.each})"


def tma_tile_of(
    load: Load,
    extents: Sequence[int | None],
    nodes: Mapping[Value, Node],
    types: Mapping[Value, Type],
    axes: tuple[Axis, Axis],
    rows: int,
) -> TmaTile | None:
    """Return the TMA tile of a step's rows; None unless they are consecutive and whole tokens.

    Out-of-bounds rows are a suffix: a step is full if its last row is in bounds.

    extents: of the tensor, None where dynamic. axes: of a block's rows, and of a step's, which are `rows`.
    """

    def within(value: Value) -> set[Axis]:
        type = types[value]
        return set(type.axes) & set(axes) if isinstance(type, TileType) else set()

    moving = tuple(d for d, value in enumerate(load.index) if within(value))
    split = _heads(tuple(load.index[d] for d in moving), nodes)
    if split is None:
        return None
    row, order, each = split
    found = nodes[row]
    if not isinstance(found, Map2) or found.fn is not Fn2.ADD:
        return None
    first = [v for v in (found.a, found.b) if not within(v)]
    own = [nodes[v] for v in (found.a, found.b) if v not in first]
    lanes = len(first) == 1 and isinstance(own[0], Pos) and own[0].axis == axes[1]
    match None if load.guard is None else nodes[load.guard]:
        case Map2(fn=Fn2.LT, a=a, b=b) if a == row and not within(b):
            end = b
        case _:
            return None
    dims = tuple(moving[i] for i in order)
    whole = len(dims) == 1 or extents[dims[0]] == each
    if not lanes or not whole or rows % each or not is_multiple(first[0], each, nodes):
        return None
    return TmaTile(first[0], end, dims, each)


def _heads(
    index: tuple[Value, ...], nodes: Mapping[Value, Node]
) -> tuple[Value, tuple[int, ...], int] | None:
    """Return the row of (token, head) indices, the dim order, the fastest first, and the number of heads.

    Token and head are quotient and remainder of a row; with one head the token is the row.
    """
    if len(index) == 1:
        return index[0], (0,), 1
    heads = [i for i, value in enumerate(index) if isinstance(n := nodes[value], Map2) and n.fn is Fn2.MOD]
    if len(index) != 2 or len(heads) != 1:
        return None
    (head,) = heads
    remainder, token = nodes[index[head]], index[1 - head]
    assert isinstance(remainder, Map2)
    row, by = remainder.a, nodes[remainder.b]
    if not isinstance(by, Const):
        return None
    match nodes[token]:
        case Map2(fn=Fn2.DIV, a=a, b=b) if (a, b) == (row, remainder.b):
            return row, (head, 1 - head), by.bits
        case _:
            return (row, (head, 1 - head), 1) if token == row and by.bits == 1 else None


def is_multiple(value: Value, of: int, nodes: Mapping[Value, Node]) -> bool:
    """Return whether an integer is always a multiple of another."""
    match nodes.get(value):
        case _ if of == 1:
            return True
        case Const(bits=bits):
            return bits % of == 0
        case Map2(fn=Fn2.ADD, a=a, b=b):
            return is_multiple(a, of, nodes) and is_multiple(b, of, nodes)
        case Map2(fn=Fn2.MUL, a=a, b=b):
            return is_multiple(a, of, nodes) or is_multiple(b, of, nodes)
        case _:
            return False
