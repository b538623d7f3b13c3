"""Names that a parameter of a spec may not have: generated kernels use them for themselves."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from rlk.errors import Code, Loc, SpecError
from rlk.ir.dims import Axis

RESERVED = frozenset(
    # modules that kernels import, and arguments of host functions
    "tl triton cute cutlass cuda torch math struct utils pipeline cpasync sm90 ctypes "
    "call kernels stream programs errors "
    # loop counters and places of a thread
    "c thread block "
    # types
    "Boolean Int8 Int16 Int32 Int64 Uint8 Uint16 Uint32 Uint64 Float16 Float32 Float64 BFloat16 f32 "
    # Python's functions that kernels call
    "range len float int tuple zip enumerate type min max sum abs "
    # functions of preludes
    "acquire_from across add any_lane bits_of by_rows combine commit_from copy_either_vector div divided "
    "earlier epilogue_offsets exchanged exp2 fma fmax fmin folded from_vectors halved halves held "
    "high_product imax imin is_nan larger magnitude memory merged merged_across merged_lanes mul mulhi "
    "multiply negative_zero next_work_tile number_of of_rows philox publish_work_tile put_sum read_work_tile "
    "segment_of segment_of_few select signed_half smaller statistics_of tma_load to_vectors vector_of".split()
)
"""Identifiers of generated modules that no value of a spec gives them."""
PREFIXES = ("portable_", "hardware_", "sum_over_", "max_over_", "load_vector", "store_vector")
"""Beginnings of the names of functions in generated modules."""
SUFFIXES = ("_ptr", "_stride", "_where")
"""Ends of the names of a tensor's address and strides, and of guarded functions."""


def check_free(name: str, axes: Iterable[Axis], loc: Loc) -> None:
    """Refuse the name of a parameter that generated kernels use; raise SpecError."""
    hidden = keyword.iskeyword(name) or name in RESERVED
    if hidden or name.startswith(PREFIXES) or name.endswith(SUFFIXES) or name in {a.name for a in axes}:
        raise SpecError(Code.RESERVED_NAME, loc, name=name, instead=f"{name}_value")
