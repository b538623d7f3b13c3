"""Kernels that one launch runs on lists of tensors: which can, and the table that tells programs theirs.

A program with one elementwise kernel over one dynamic axis runs on each item of lists. `item_of_program` has
the item of each program, i32. `item_table` has a row for each item, i64: the addresses of its tensors, its
extent, its own scalars (an f32 as its bits), and the number of its first program.
"""

from __future__ import annotations

from rlk.errors import LoweringError
from rlk.ir.dims import Axis
from rlk.ir.nodes import Check, Dot, Kernel, Loop, Merge, Program, Reduce, Role
from rlk.ir.types import TileType
from rlk.lower.common.emitted import CallArg, From, Signature
from rlk.passes.places import place_of
from rlk.passes.walk import walk

ITEMS, TABLE, PROGRAMS = "item_of_program", "item_table", "programs"
ROW, FIRST = "item_row_ptr", "tile_of_item"
_OWN = frozenset({ITEMS, TABLE, PROGRAMS, FIRST, ROW.removesuffix("_ptr")})


def rows_of(program: Program) -> Axis:
    """Return the only axis of a program that can run on lists; raise LoweringError for others."""
    kernel = program.kernels[0]
    axes = {axis for d in kernel.params for axis in d.type.axes}
    types = [let.type for let in walk(kernel.body)]
    axes |= {axis for type in types if isinstance(type, TileType) for axis in type.axes}
    combines = any(isinstance(let.node, _REFUSED) for let in walk(kernel.body))
    tensors = [d for d in kernel.params if d.role is not Role.SCALAR]
    flat = len(axes) == 1 and all(len(d.type.axes) == 1 for d in tensors)
    flat = flat and _OWN.isdisjoint({d.name for d in kernel.params})
    axis = next(iter(axes), None)
    if axis is None or len(program.kernels) > 1 or combines or not flat or not axis.dynamic:
        lacks = (
            "one launch over lists of tensors for a program that is not elementwise along one dynamic axis"
        )
        instead = "tensors of one dim: x.view(-1); or a launch for each item, as op.each makes it"
        raise LoweringError(lacks, instead, place_of(kernel))
    return axis


_REFUSED = (Reduce, Dot, Merge, Loop, Check)


def refuse(program: Program, signature: Signature) -> None:
    """Raise LoweringError where a lowering without this form is asked for it."""
    if signature.listed is not None:
        place = place_of(program.kernels[0])
        raise LoweringError("one launch over lists of tensors", "backend triton, or op.each", place)


def columns(kernel: Kernel, axis: Axis, listed: frozenset[str]) -> tuple[CallArg, ...]:
    """Return what a row of the table has, in order, but for the number of its first program."""
    tensors = [CallArg(d.name, From.TENSOR, d.name) for d in kernel.params if d.role is not Role.SCALAR]
    own = [d.name for d in kernel.params if d.role is Role.SCALAR and d.name in listed]
    extent = CallArg(axis.name, From.EXTENT, axis.name)
    return (*tensors, extent, *(CallArg(name, From.SCALAR, name) for name in own))


def parameters(kernel: Kernel, axis: Axis, tile: int, listed: frozenset[str]) -> tuple[CallArg, ...]:
    """Return the parameters of `call`; `programs` says how many elements one has, as its dim."""
    shared = [d.name for d in kernel.params if d.role is Role.SCALAR and d.name not in listed]
    tables = (CallArg(ITEMS, From.TENSOR, ITEMS), CallArg(TABLE, From.TENSOR, TABLE))
    scalars = (CallArg(name, From.SCALAR, name) for name in shared)
    return (*tables, CallArg(PROGRAMS, From.EXTENT, axis.name, tile), *scalars)
