"""Epilogues in column parts, one after the other, to lower register pressure."""

from __future__ import annotations

from dataclasses import replace

from rlk.errors import Code, ScheduleError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Dot, Let, Loop, Merge, Reduce, Value, operands
from rlk.ir.types import TileType
from rlk.lower.triton.addresses import Addressed


def in_parts(e: Addressed, lets: tuple[Let, ...]) -> None:
    """Write a kernel's outermost block, with the epilogue of its contraction once per part of the inner dim.

    The accumulator is split along index bits in registers, so that no element moves between threads.
    """
    parts, dims = e.plan.schedule.parts, e.plan.dims
    at = next((i for i, let in enumerate(lets) if isinstance(let.node, Dot)), len(lets))
    combines = any(isinstance(let.node, Dot | Reduce | Merge | Loop) for let in lets[at + 1 :])
    if at == len(lets) or len(dims) != 2 or combines or dims[1].length < 2 * parts:
        raise ScheduleError(
            Code.SCHEDULE_FIELD,
            field="parts",
            value=parts,
            why="1, but for functions of each element of one contraction",
        )
    outer, inner = dims
    varying = _varying(lets, inner.axis)
    e.block(lets[: at + 1])
    e.block(tuple(let for let in lets[at + 1 :] if let.value not in varying))
    product, length = lets[at].value, inner.length // parts
    pieces = _pieces(e, e.text[product], outer.length, inner.length, length)
    plan = replace(e.plan, dims=(outer, replace(inner, bits=length.bit_length() - 1)))
    again = tuple(let for let in lets if let.value in varying and let.value != product)
    for number, piece in enumerate(pieces):
        with e.addresses.part(plan, inner.axis, number * length):
            e.text[product] = piece
            e.block(again)


def _varying(lets: tuple[Let, ...], axis: Axis) -> frozenset[Value]:
    """Return the values along an axis, and the effects that read one."""
    found: set[Value] = set()
    for let in lets:
        if isinstance(let.type, TileType):
            if axis in let.type.axes:
                found.add(let.value)
        elif not found.isdisjoint(operands(let.node)):
            found.add(let.value)
    return frozenset(found)


def _pieces(e: Addressed, name: str, rows: int, columns: int, length: int) -> list[str]:
    """Write the parts of an accumulator, halves of halves, and return their names in order."""
    if columns == length:
        return [name]
    low, high = e.names.fresh("low"), e.names.fresh("high")
    halves = e.helpers.call("halves", name, str(rows), str(columns // 2))
    e.line(f"{low}, {high} = {halves}")
    return [part for half in (low, high) for part in _pieces(e, half, rows, columns // 2, length)]
