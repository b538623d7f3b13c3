"""Row independence: whether results of a row depend on that row alone, so that ranks may shard rows."""

from __future__ import annotations

from rlk.ir.dims import Axis
from rlk.ir.nodes import (
    Extent,
    Kernel,
    Load,
    Loop,
    Merge,
    Node,
    Pos,
    Program,
    Reduce,
    Role,
    Store,
    Stream,
    operands,
)
from rlk.passes.walk import walk


def rows_are_independent(program: Program, rows: Axis) -> bool:
    """Return whether `rows` is the first axis of every output, and a row reads only itself along it.

    program: the traced form.
    """
    outputs = (d for k in program.kernels for d in k.params if d.role is Role.OUT)
    return all(d.type.axes[:1] == (rows,) for d in outputs) and all(_alone(k, rows) for k in program.kernels)


def _alone(kernel: Kernel, rows: Axis) -> bool:
    lets = tuple(walk(kernel.body))
    own = {let.value for let in lets if let.node == Pos(rows)}
    places = {d.name: [a == rows for a in d.type.axes] for d in kernel.params}
    for let in lets:
        match let.node:
            case Extent(axis=axis) | Loop(axis=axis) | Stream(axis=axis) if axis.name == rows.name:
                return False
            case Reduce(over=axis) | Merge(over=axis) if axis.name == rows.name:
                return False
            case Load(param=param, index=index) | Store(param=param, index=index):
                if any((i in own) != is_row for i, is_row in zip(index, places[param], strict=True)):
                    return False
            case _:
                pass
        if own.intersection(operands(let.node)[_indices(let.node) :]):
            return False
    return True


def _indices(node: Node) -> int:
    return len(node.index) if isinstance(node, Load | Store) else 0
