"""Vectorized epilogue: 16-byte accesses through a transpose in shared memory by four threads of a row.

An accumulator fragment has pairs of columns, two of every eight. Stored directly, a warp touches eight rows
for 16 bytes each; transposed through 1 KB of shared memory, it stores 64 contiguous bytes of every row.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rlk.ir.dims import Axis, fixed_extent
from rlk.ir.nodes import Decl, Load, Store, Value
from rlk.ir.types import DType
from rlk.lower.common.names import stride_name
from rlk.lower.cute.plan import ContractionPlan

THREADS = 4  # that share a row
VECTOR = 16  # bytes
ROW = 128  # bytes of a row in one transpose, of eight rows of a warp
EPILOGUE_WORDS = 256  # of 4 bytes of a warp


@dataclass(frozen=True, slots=True)
class Vectors:
    """A vectorized access: elements of one transpose, and their type."""

    dtype: DType
    elements: int

    @property
    def width(self) -> int:
        """Return the elements of a vector."""
        return VECTOR // self.dtype.bytes

    @property
    def count(self) -> int:
        """Return the vectors of a thread in one transpose."""
        return self.elements // self.width

    @property
    def place(self) -> str:
        """Return the first column of the i-th vector, from the thread's first column."""
        return f"8 * (c // 2) + {self.width // 2 - 1} * quad + {THREADS * self.width} * i"


def vectors_of_rows(decl: Decl, axis: Axis, elements: int, divisible: Collection[str]) -> Vectors | None:
    """Return the transpose of `elements` of a thread's list along an axis of a tensor.

    None if the tensor's rows are not along the axis, or if vectors in them may be unaligned.
    """
    if not decl.type.axes or decl.type.axes[-1] != axis or not decl.type.dtype.is_float:
        return None
    strides = {stride_name(decl, d) for d in range(len(decl.type.axes) - 1)}
    found = Vectors(decl.type.dtype, elements)
    aligned = {decl.name, *strides} <= {*divisible} and elements % found.width == 0
    return found if aligned else None


def vectors(
    access: Load | Store, size: int, plan: ContractionPlan, consts: Mapping[Value, tuple[int, DType]]
) -> Vectors | None:
    """Return the transpose of `size` elements of a thread's list; `consts` are bits and types of constants.

    None if vectors may be unaligned or may pass the end of a row, if single elements or a fill are masked, or
    if memory has another dtype than registers.
    """
    decl = next(d for d in plan.kernel.params if d.name == access.param)
    always = access.guard is None or consts.get(access.guard) == (1, DType.BOOL)
    if not always or isinstance(access, Load) and access.fill is not None:
        return None
    if isinstance(access, Store) and access.value in consts:
        return None
    elements = min(size, ROW // THREADS // decl.type.dtype.bytes)
    found = vectors_of_rows(decl, plan.fragment.axis, elements, plan.signature.divisible)
    extent = fixed_extent(plan.fragment.axis, dict(plan.signature.extents))
    if found is None or extent is None or extent % found.width:
        return None
    return found if size % elements == 0 else None
