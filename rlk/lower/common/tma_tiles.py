"""TMA tiles of streamed factors: consecutive rows of a tensor or of a page, or all heads of tokens."""

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
    of a token (packed GQA). inside: the predicate that a row is in bounds. page: the index of the page of all
    rows, where they lie in one; `first` and `page` are then of each row.
    """

    first: Value
    end: Value
    dims: tuple[int, ...]
    inside: Value
    each: int = 1
    page: Value | None = None

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
        case Map2(fn=Fn2.LT, a=a, b=b) if a == row and not within(b) and load.guard is not None:
            end, inside = b, load.guard
        case _:
            return None
    dims = tuple(moving[i] for i in order)
    whole = len(dims) == 1 or extents[dims[0]] == each
    if not lanes or not whole or rows % each or not is_multiple(first[0], each, nodes):
        return None
    return TmaTile(first[0], end, dims, inside, each)


def paged_tma_tile_of(
    load: Load,
    nodes: Mapping[Value, Node],
    types: Mapping[Value, Type],
    steps: Axis,
    rows: int,
) -> TmaTile | None:
    """Return the TMA tile of a step's rows that lie in one page, which a table gives; None of others.

    The page size is a multiple of the `rows` of a step, along `steps`. Rows past the end of a segment are a
    suffix; all other predicates of the load hold for all rows of a page or for none.
    """

    def within(value: Value) -> bool:
        type = types[value]
        return isinstance(type, TileType) and steps in type.axes

    moving = {d: nodes[value] for d, value in enumerate(load.index) if within(value)}
    tables = [d for d, node in moving.items() if isinstance(node, Load)]
    slots = [d for d, node in moving.items() if isinstance(node, Map2) and node.fn is Fn2.MOD]
    if load.guard is None or len(moving) != 2 or len(tables) != 1 or len(slots) != 1:
        return None
    table, slot = moving[tables[0]], moving[slots[0]]
    assert isinstance(table, Load) and isinstance(slot, Map2)
    row, size = slot.a, nodes[slot.b]
    pages = [nodes[value] for value in table.index if within(value)]
    if not isinstance(size, Const) or size.bits % rows or pages != [Map2(Fn2.DIV, row, slot.b)]:
        return None
    match nodes[row]:
        case Map2(fn=Fn2.ADD, a=a, b=b):
            first = [v for v in (a, b) if not within(v)]
            lanes = [nodes[v] for v in (a, b) if within(v)]
        case _:
            return None
    whole = len(first) == 1 and is_multiple(first[0], rows, nodes)
    if not whole or not isinstance(lanes[0], Pos) or lanes[0].axis != steps:
        return None
    for value in conjunction(load.guard, nodes):
        match nodes[value]:
            case Map2(fn=Fn2.LT, a=a, b=b) if a == row and not within(b):
                return TmaTile(load.index[slots[0]], b, (slots[0],), value, page=load.index[tables[0]])
    return None


def conjunction(condition: Value, nodes: Mapping[Value, Node]) -> tuple[Value, ...]:
    """Return a condition and the terms of its conjunction."""
    match nodes.get(condition):
        case Map2(fn=Fn2.AND, a=a, b=b):
            return condition, *conjunction(a, nodes), *conjunction(b, nodes)
        case _:
            return (condition,)


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
