"""Traversal of every let of a block, regions included, in order; backward slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from rlk.ir.nodes import Block, Let, Loop, Stream, Value, operands


def walk(block: Block) -> Iterator[Let]:
    """Yield every let; the lets of a region come before the let that holds it."""
    for let in block.lets:
        match let.node:
            case Loop(body=body) | Stream(body=body):
                yield from walk(body)
            case _:
                pass
        yield let


def _operands(let: Let) -> Iterable[Value]:
    return operands(let.node)


def backward_slice(
    values: Iterable[Value], lets: Mapping[Value, Let], reads: Callable[[Let], Iterable[Value]] = _operands
) -> set[Value]:
    """Return the backward slice of values within `lets`: those defined there, and all that they depend on.

    reads: the values that a let depends on; by default its operands.
    """
    found: set[Value] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in lets and value not in found:
            found.add(value)
            waiting += reads(lets[value])
    return found
