"""reported on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 82de1af30c1256ad
schedule: tiles B=128, 4 warps, 1 stages, unroll 1 placed B[6:0]
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Boolean, Float16, Float32, Int16, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN
ROW_MAJOR, COL_MAJOR = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Write what was found, and one more than its row, into the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


@cute.kernel
def reported_rows(bad: cute.Tensor, good: cute.Tensor, B: Int32, errors: cute.Pointer):
    # A block owns 128 of B (rows). B: 128 indices, 1 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    b = block * 128 + thread
    b_inside = b < B
    bad_2 = load_where(b_inside, bad, b, Uint8(0)) != 0  # packing.py:58
    report_where(bad_2 & b_inside, errors, 1, b + 1)  # packing.py:58
    unless = select(bad_2, Boolean(False), Boolean(True))  # packing.py:59
    store_where(b_inside, good, b, select(unless, Uint8(1), Uint8(0)))  # packing.py:59


@cute.jit
def launch_reported(bad_ptr: cute.Pointer, good_ptr: cute.Pointer, B: Int32, errors_ptr: cute.Pointer, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    bad = cute.make_tensor(bad_ptr, cute.make_layout((B,), stride=(1,)))
    good = cute.make_tensor(good_ptr, cute.make_layout((B,), stride=(1,)))
    reported_rows(bad, good, B, errors_ptr).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, bad, good, B, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((B + 127) // 128)
    if programs > 0:
        kernels.reported((programs,), bad, good, B, errors)
