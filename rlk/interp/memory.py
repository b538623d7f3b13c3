"""Extents of axes and buffers of parameters for the interpreter of tile IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlk.errors import Code, LaunchError
from rlk.interp import arithmetic as ops
from rlk.interp.arithmetic import Arithmetic
from rlk.ir.dims import Axis, Part, completed, extent_of
from rlk.ir.nodes import Decl, Program, Role
from rlk.ir.text import axes_in
from rlk.ir.types import DType

Array = NDArray[Any]
PROGRAMS = 256  # whose axes are kept


def extents_of(program: Program, inputs: Mapping[str, Any], given: Mapping[str, int]) -> dict[str, int]:
    """Return the extent of every axis by name, from the shapes of the inputs."""
    found = dict(given)
    for kernel in program.kernels:
        for decl in kernel.params:
            if decl.role is Role.SCALAR or decl.name not in inputs:
                continue
            shape = np.shape(inputs[decl.name])
            if len(shape) != len(decl.type.axes):
                raise LaunchError(
                    Code.ARG_RANK,
                    op=program.name,
                    name=decl.name,
                    got=len(shape),
                    shape=shape,
                    wanted=len(decl.type.axes),
                )
            for axis, n in zip(decl.type.axes, shape, strict=True):
                if axis.part is Part.ALL and found.setdefault(axis.name, n) != n:
                    raise LaunchError(
                        Code.ARG_SIZE,
                        op=program.name,
                        name=decl.name,
                        axis=axis.name,
                        got=n,
                        other="another tensor",
                        wanted=found[axis.name],
                    )
    return completed(program.name, _declared(program), found)


_axes: dict[int, tuple[Program, tuple[Axis, ...]]] = {}


def _declared(program: Program) -> tuple[Axis, ...]:
    """Return the axes that declare an extent, of this very object: calls run one program again and again."""
    if id(program) not in _axes:  # a program in the table is alive: no other one has its id
        if len(_axes) >= PROGRAMS:
            _axes.clear()
        _axes[id(program)] = program, tuple(a for a in axes_in(program) if a.extent is not None)
    return _axes[id(program)][1]


def extent(axis: Axis, extents: Mapping[str, int]) -> int:
    """Return the extent of an axis: the number of its elements, pieces, or lanes of a chunk."""
    fixed = axis.part is Part.LANE or (axis.part is Part.PIECE and axis.split is not None)
    if not fixed and axis.name not in extents:
        raise LaunchError(Code.ARG_MISSING, op="oracle", name=f"extent of {axis}", why="in extents=")
    return extent_of(axis, extents.get(axis.name, 0))


def buffer(
    op: str, decl: Decl, inputs: Mapping[str, Any], extents: Mapping[str, int], arithmetic: Arithmetic
) -> Array:
    """Return the buffer of a parameter, filled with NaN (integers: -1), so that missing stores show."""
    dtype = decl.type.dtype
    kept = arithmetic.float if arithmetic.float is np.float64 and dtype.is_float else ops.storage(dtype)
    if decl.name in inputs:
        data = np.asarray(inputs[decl.name])
        if any(s < 0 or s % data.itemsize for s in data.strides):
            data = np.ascontiguousarray(data)
        if dtype.is_float:
            return data if data.dtype == kept else _held(data, dtype, arithmetic)
        return data.astype(kept, copy=False)
    if decl.role in (Role.IN, Role.SCALAR):
        raise LaunchError(Code.ARG_MISSING, op=op, name=decl.name, why="by the oracle")
    shape = tuple(extent(axis, extents) for axis in decl.type.axes)
    return unwritten(shape, kept)


def unwritten(shape: tuple[int, ...], kind: Any) -> Array:
    """Return memory that nothing has stored to: all bits are ones (NaN, -1), booleans are false."""
    made = np.zeros(shape, kind)
    if made.dtype != np.bool_:
        made.view(f"u{made.dtype.itemsize}").fill(np.iinfo(f"u{made.dtype.itemsize}").max)
    return made


def flat(memory: Array) -> Array:
    """Return memory as one dim, by element offset, without a copy."""
    span = 1 + sum((n - 1) * s for n, s in zip(memory.shape, memory.strides, strict=True)) // memory.itemsize
    return np.lib.stride_tricks.as_strided(memory, (span,), (memory.itemsize,))


def _held(data: Array, dtype: DType, arithmetic: Arithmetic) -> Array:
    """Convert an input of another storage to floats of the arithmetic."""
    wide = ops.decode(data, dtype)
    return (
        wide.astype(arithmetic.float, copy=False) if wide.dtype.kind == "f" else wide.astype(arithmetic.float)
    )
