"""Visit every let of a block, regions included, in order."""

from __future__ import annotations

from collections.abc import Iterator

from rlk.ir.nodes import Block, Let, Loop, Stream


def walk(block: Block) -> Iterator[Let]:
    """Yield every let; the lets of a region come before the let that holds it."""
    for let in block.lets:
        match let.node:
            case Loop(body=body) | Stream(body=body):
                yield from walk(body)
            case _:
                pass
        yield let
