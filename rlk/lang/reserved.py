"""Names that specs, their parameters, outputs and axes may not have: those of generated kernels' own."""

from __future__ import annotations

import keyword
from collections.abc import Iterable

from rlk.errors import Code, Loc, SpecError
from rlk.ir.dims import Axis

MODULES = frozenset(
    "tl triton cute cutlass cuda torch math struct utils pipeline cpasync warpgroup sm90 ctypes "
    "OperandMajorMode NEAREST ROW_MAJOR COL_MAJOR "
    "Boolean Int8 Int16 Int32 Int64 Uint8 Uint16 Uint32 Uint64 Float16 Float32 Float64 BFloat16".split()
)
"""Modules, types and constants of generated modules."""
CPP = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
    "consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete "
    "do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long "
    "mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename union unsigned using virtual void "
    "volatile wchar_t while xor xor_eq threadIdx blockIdx blockDim gridDim".split()
)
"""Keywords of HIP source, which TileLang writes, and the places of a thread in it."""
RESERVED = (
    MODULES
    | CPP
    | frozenset(
        # functions and arguments of host functions
        "call kernels stream programs overlap errors "
        # loop counters, places of a thread, shared memory, values that nothing reads
        "c thread block shared _ "
        # types of HIP's kernels
        "f32 "
        # Python's functions that kernels call
        "range len float int tuple zip enumerate type min max sum abs "
        # functions of preludes
        "acquire_from across add add_here all_below any_lane as_variable bits_of by_rows byte_alone "
        "byte_pair byte_places bytes_as_floats clear_end combine commit_from copy_either_vector div divided "
        "segment_ends segment_of_tile earlier epilogue_offsets exchanged exp2 fma fmax fmin folded "
        "from_vectors halved halves held high_product imax imin is_nan keep_k_order larger magnitude "
        "matrix_places memory merged merged_across merged_lanes mul mulhi multiply negative_zero "
        "next_work_tile number_of of_rows pair_across pair_along philox publish_work_tile put_pairs "
        "put_sum put_sums read_work_tile rounded_down segment_near segment_of segment_of_few select "
        "signed_half smaller square_root statistics_of sub_pair tile_registers tma_load to_vectors vector_of "
        "warp_products".split()
    )
)
"""Identifiers of generated modules that no value of a spec gives them."""
COMBINED = ("sum", "max", "min", "any", "total", "softmax_sum", "power_sum", "argmax", "top")
PREFIXES = (
    *(f"{what}_over_" for what in COMBINED), "portable_", "hardware_", "load_vector", "store_vector",
    "reduce_smem_", "__",
)  # fmt: skip
"""Beginnings of the names of functions in generated modules."""
SUFFIXES = ("_ptr", "_stride", "_where")
"""Ends of the names of a tensor's address and strides, and of guarded functions."""


def is_free(name: str) -> bool:
    """Return whether no generated kernel uses a name for itself."""
    hidden = keyword.iskeyword(name) or name in RESERVED
    return not hidden and not name.startswith(PREFIXES) and not name.endswith(SUFFIXES)


def check_free(name: str, axes: Iterable[Axis], loc: Loc) -> None:
    """Refuse the name of a parameter or output that generated kernels or axes use; raise SpecError."""
    if not is_free(name) or name in {a.name for a in axes}:
        raise SpecError(Code.RESERVED_NAME, loc, name=name, instead=f"{name}_value")
