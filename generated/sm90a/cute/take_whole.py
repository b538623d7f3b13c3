"""take_whole on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 200718c7f438a0d7
schedule: tiles D=512, 4 warps, 1 stages, unroll 1 placed D[7:1] D[0:0] D[8:8]
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
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # So many elements, read at once, or what stands for them.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


def store_vector(memory, index, x):
    # Write elements that follow each other at once.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


def vector_of(memory, index, count):
    # Neighbours in memory, the first at a multiple of so many.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def take_whole_rows(source: cute.Tensor, x: cute.Tensor, y: cute.Tensor, R: Int32, T: Int32):
    # A block owns 1 of T, 512 of D (rows). D: 512 indices, 4 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rest = block // 8
    t = rest
    d = [block % 8 * 512 + thread * 2 + c % 2 + c // 2 * 256 for c in range(4)]
    source_2 = source[t]  # packing.py:52
    at_most = 0 <= source_2  # packing.py:52
    as_i64 = Int32(R).to(Int64)  # packing.py:52
    below = source_2 < as_i64  # packing.py:52
    both = at_most & below  # packing.py:52
    x_2 = [one for c in range(0, 4, 2) for one in load_vector_where(both, x, (source_2.to(Int32), d[c]), Int64(0), 2)]  # packing.py:52
    for c in cutlass.range_constexpr(0, 4, 2):  # packing.py:52
        store_vector(y, (t, d[c]), x_2[c:c + 2])  # packing.py:52


@cute.jit
def launch_take_whole(source_ptr: cute.Pointer, x_ptr: cute.Pointer, y_ptr: cute.Pointer, R: Int32, T: Int32, x_r_stride: Int64, y_t_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    source = cute.make_tensor(source_ptr, cute.make_layout((T,), stride=(1,)))
    x = cute.make_tensor(x_ptr, cute.make_layout((R, 4096), stride=(x_r_stride, 1)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 4096), stride=(y_t_stride, 1)))
    take_whole_rows(source, x, y, R, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, source, x, y, R, T, x_r_stride, y_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 8
    if programs > 0:
        kernels.take_whole((programs,), source, x, y, R, T, x_r_stride, y_t_stride)
