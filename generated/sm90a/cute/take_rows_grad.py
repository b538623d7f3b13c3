"""take_rows_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: fe78123907db09c6
schedule: tiles D=2048, 4 warps, 1 stages, unroll 1 placed D[9:3] D[2:0] D[10:10]
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
def take_rows_grad_rows(back: cute.Tensor, d_y: cute.Tensor, d_x: cute.Tensor, T: Int32, R: Int32):
    # A block owns 1 of R, 2048 of D (rows). D: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rest = block // 2
    r = rest
    d = [block % 2 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    back_2 = back[r]  # packing.py:46
    at_most = 0 <= back_2  # packing.py:46
    as_i64 = Int32(T).to(Int64)  # packing.py:46
    below = back_2 < as_i64  # packing.py:46
    both = at_most & below  # packing.py:46
    d_y_2 = [one for c in range(0, 16, 8) for one in load_vector_where(both, d_y, (back_2.to(Int32), d[c]), BFloat16(0), 8)]  # packing.py:46
    for c in cutlass.range_constexpr(0, 16, 8):  # packing.py:46
        store_vector(d_x, (r, d[c]), d_y_2[c:c + 8])  # packing.py:46


@cute.jit
def launch_take_rows_grad(back_ptr: cute.Pointer, d_y_ptr: cute.Pointer, d_x_ptr: cute.Pointer, T: Int32, R: Int32, d_y_t_stride: Int64, d_x_r_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    back = cute.make_tensor(back_ptr, cute.make_layout((R,), stride=(1,)))
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 4096), stride=(d_y_t_stride, 1)))
    d_x = cute.make_tensor(d_x_ptr, cute.make_layout((R, 4096), stride=(d_x_r_stride, 1)))
    take_rows_grad_rows(back, d_y, d_x, T, R).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, back, d_y, d_x, T, R, d_y_t_stride, d_x_r_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R * 2
    if programs > 0:
        kernels.take_rows_grad((programs,), back, d_y, d_x, T, R, d_y_t_stride, d_x_r_stride)
