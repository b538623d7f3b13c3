"""Programs without the stores of outputs that have no elements in a call."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from rlk.ir.nodes import Block, Let, Program, Store, Stream


def unstored(program: Program, names: Collection[str]) -> Program:
    """Return a traced program that does not store some outputs, which it still declares.

    A kernel has a program for each row: without rows none would store an output that has no axis of rows.
    """
    kernels = (replace(kernel, body=_block(kernel.body, names)) for kernel in program.kernels)
    return replace(program, kernels=tuple(kernels)) if names else program


def _block(block: Block, names: Collection[str]) -> Block:
    lets: list[Let] = []
    for let in block.lets:
        if isinstance(let.node, Store) and let.node.param in names:
            continue
        if isinstance(let.node, Stream):
            let = replace(let, node=replace(let.node, body=_block(let.node.body, names)))
        lets.append(let)
    return replace(block, lets=tuple(lets))
