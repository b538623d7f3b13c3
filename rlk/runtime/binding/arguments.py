"""Arguments of a call: extents, strides and leading dims, or a LaunchError that names the argument."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from rlk.errors import Code, LaunchError
from rlk.ir.dims import Axis, completed, extent_of
from rlk.ir.nodes import Decl, Role
from rlk.ir.types import DType
from rlk.lower.common.memory import memory_shape
from rlk.runtime.binding.parts import PartOfWeight

TORCH_DTYPES: dict[DType, torch.dtype] = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.U32: torch.uint32,
    DType.BOOL: torch.bool,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.E4M3: torch.float8_e4m3fn,
    DType.E5M2: torch.float8_e5m2,
}
RLK_DTYPES = {theirs: ours for ours, theirs in TORCH_DTYPES.items()}
MOST_EXTENT = 2**31 - 1  # kernels count in 32 bits
VECTOR = 16  # bytes of the widest load, and the divisor that compilers are told of
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, PartOfWeight})
"""The classes of tensors that are called directly; others go through torch's dispatcher, or are refused."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of one call.

    extents: of every axis. lead: the dims that the row axis stands for. split: whether they need two strides.
    strides: of each input, and each output that the caller gives memory for, in elements, by dim of its
    declaration; of the row axis, the inner one.
    outer: the stride of the outer of the two row dims, where there are two.
    """

    extents: dict[str, int]
    lead: tuple[int, ...]
    split: bool
    strides: dict[str, tuple[int, ...]]
    outer: dict[str, int]
    row_axis: Axis | None

    @property
    def inner_extent(self) -> int:
        """Return the extent of the inner of the two row dims."""
        return self.lead[-1] if self.lead else 1


def measure(
    op: str,
    row_axis: Axis | None,
    decls: tuple[Decl, ...],
    tensors: Mapping[str, torch.Tensor],
    written: Collection[str] = (),
) -> Geometry:
    """Return the sizes of a call; raise LaunchError for a tensor that does not fit.

    row_axis: as the first dim of a tensor it may stand for any number of leading dims. written: names of
    inputs that the call writes, of which a copy would lose the result.
    """
    inputs = [d for d in decls if d.role is Role.IN]
    first = tensors[inputs[0].name]
    extents: dict[str, int] = {}
    owners: dict[str, str] = {}
    lead: tuple[int, ...] | None = None
    for decl in inputs:
        tensor = tensors[decl.name]
        _check_tensor(op, decl, tensor, inputs[0].name, first, decl.name in written)
        axes = decl.type.axes
        leads = 1
        if axes and axes[0] == row_axis:
            leads = tensor.dim() - len(axes) + 1
            mine = tuple(tensor.shape[:leads])
            if lead is not None and mine != lead:
                owner = owners[axes[0].name]
                raise LaunchError(
                    Code.ARG_SIZE,
                    op=op,
                    name=decl.name,
                    axis="rows",
                    got=mine,
                    other=owner,
                    wanted=lead,
                )
            lead = mine
            _note(op, extents, owners, axes[0].name, math.prod(mine), decl.name)
            axes = axes[1:]
        elif tensor.dim() != len(axes):
            wanted = f"{len(axes)} dims [{', '.join(a.name for a in axes)}]"
            shape = tuple(tensor.shape)
            raise LaunchError(
                Code.ARG_RANK, op=op, name=decl.name, got=tensor.dim(), shape=shape, wanted=wanted
            )
        else:
            leads = 0
        for axis, size in zip(axes, tensor.shape[leads:], strict=True):
            _note(op, extents, owners, axis.name, size, decl.name)
    extents = completed(op, (a for d in inputs for a in d.type.axes), extents, owners)
    lead = lead or ()
    rows, split = _rows(op, inputs, tensors, row_axis, lead, written)
    strides = {
        d.name: (rows[d.name][1], *tensors[d.name].stride()[len(lead) :])
        if d.name in rows
        else tuple(tensors[d.name].stride())
        for d in inputs
    }
    outer = {name: pair[0] for name, pair in rows.items()}
    return Geometry(extents, lead, split, strides, outer, row_axis)


def _check_tensor(
    op: str, decl: Decl, tensor: torch.Tensor, first_name: str, first: torch.Tensor, is_written: bool
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise LaunchError(
            Code.ARG_TYPE, op=op, name=decl.name, wanted="torch.Tensor", got=type(tensor).__name__
        )
    if RLK_DTYPES.get(tensor.dtype) is not decl.type.dtype:
        wanted = TORCH_DTYPES[decl.type.dtype]
        raise LaunchError(Code.ARG_DTYPE, op=op, name=decl.name, got=tensor.dtype, wanted=wanted)
    if tensor.device != first.device:
        got, wanted_device = tensor.device, first.device
        raise LaunchError(
            Code.ARG_DEVICE, op=op, name=decl.name, got=got, other=first_name, wanted=wanted_device
        )
    if tensor.dim() < len(decl.type.axes) - 1:
        wanted_dims = f"at least {len(decl.type.axes) - 1}"
        shape = tuple(tensor.shape)
        raise LaunchError(
            Code.ARG_RANK, op=op, name=decl.name, got=tensor.dim(), shape=shape, wanted=wanted_dims
        )
    static_last = decl.type.axes and not decl.type.axes[-1].dynamic
    if static_last and tensor.shape[-1] > 1 and tensor.stride(-1) != 1 and tensor.numel():
        code = Code.WRITTEN_STRIDE if is_written else Code.ARG_STRIDE
        raise LaunchError(code, op=op, name=decl.name, got=tensor.stride(-1))


def _note(op: str, extents: dict[str, int], owners: dict[str, str], axis: str, size: int, name: str) -> None:
    if extents.setdefault(axis, size) != size:
        raise LaunchError(
            Code.ARG_SIZE, op=op, name=name, axis=axis, got=size, other=owners[axis], wanted=extents[axis]
        )
    owners.setdefault(axis, name)


def _rows(
    op: str,
    inputs: list[Decl],
    tensors: Mapping[str, torch.Tensor],
    row_axis: Axis | None,
    lead: tuple[int, ...],
    written: Collection[str],
) -> tuple[dict[str, tuple[int, int]], bool]:
    """Return (outer, inner) row strides of every tensor with the row axis, and whether two are needed."""
    found = {
        d.name: tensors[d.name].stride()[: len(lead)]
        for d in inputs
        if row_axis is not None and d.type.axes and d.type.axes[0] == row_axis
    }
    flat = {name: collapse(lead, strides) for name, strides in found.items()}
    if all(stride is not None for stride in flat.values()):
        return {name: (0, stride or 0) for name, stride in flat.items()}, False
    pairs: dict[str, tuple[int, int]] = {}
    for name, strides in found.items():
        outer = collapse(lead[:-1], strides[:-1])
        if outer is None:
            code = Code.WRITTEN_STRIDE if name in written else Code.ARG_STRIDE
            raise LaunchError(code, op=op, name=name, got=tuple(strides))
        pairs[name] = (outer, strides[-1])
    return pairs, True


def collapse(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return the single stride of row-major indices over these dims; None without one."""
    if 0 in sizes:
        return 1
    kept = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    if not kept:
        return 1 if not strides else strides[-1]
    for (_, outer), (size, inner) in zip(kept, kept[1:], strict=False):
        if outer != size * inner:
            return None
    return kept[-1][1]


def output_shape(decl: Decl, geometry: Geometry) -> tuple[int, ...]:
    """Return the shape of an output: leading dims preserved, other axes at their extents."""
    shape: tuple[int, ...] = ()
    for axis in decl.type.axes:
        shape += geometry.lead if axis == geometry.row_axis else (axis_extent(axis, geometry.extents),)
    return shape


def axis_extent(axis: Axis, extents: Mapping[str, int]) -> int:
    """Return the extent of an axis, or of the axis of its pieces or steps."""
    return extent_of(axis, extents[axis.name])


def contiguous(decl: Decl, geometry: Geometry) -> tuple[int, ...]:
    """Return the strides of an output or workspace, in elements, by dim of its declaration."""
    strides: list[int] = []
    inner = 1
    for size in reversed(memory_shape(decl, geometry.extents)):
        strides.append(inner)
        inner *= size
    return tuple(reversed(strides))
