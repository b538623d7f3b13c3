"""take_rows on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c3115081ff687c05
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
def take_rows_rows(source: cute.Tensor, x: cute.Tensor, back: cute.Tensor, y: cute.Tensor, R: Int32, errors: cute.Pointer, T: Int32):
    # A block owns 1 of T, 2048 of D (rows). D: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rest = block // 2
    t = rest
    d = [block % 2 * 2048 + thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]
    writes = thread == 0
    source_2 = source[t]  # packing.py:38
    at_most = 0 <= source_2  # packing.py:38
    as_i64 = Int32(R).to(Int64)  # packing.py:38
    below = source_2 < as_i64  # packing.py:38
    both = at_most & below  # packing.py:38
    back_2 = load_where(both, back, source_2.to(Int32), Int64(0))  # packing.py:38
    x_2 = [one for c in range(0, 16, 8) for one in load_vector_where(both, x, (source_2.to(Int32), d[c]), BFloat16(0), 8)]  # packing.py:40
    as_i64_2 = Int32(t).to(Int64)  # packing.py:38
    differs = back_2 != as_i64_2  # packing.py:38
    both_2 = at_most & differs  # packing.py:39
    report_where(both_2 & writes, errors, 1, t + 1)  # packing.py:39
    for c in cutlass.range_constexpr(0, 16, 8):  # packing.py:40
        store_vector(y, (t, d[c]), x_2[c:c + 8])  # packing.py:40


@cute.jit
def launch_take_rows(source_ptr: cute.Pointer, x_ptr: cute.Pointer, back_ptr: cute.Pointer, y_ptr: cute.Pointer, R: Int32, errors_ptr: cute.Pointer, T: Int32, x_r_stride: Int64, y_t_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    source = cute.make_tensor(source_ptr, cute.make_layout((T,), stride=(1,)))
    x = cute.make_tensor(x_ptr, cute.make_layout((R, 4096), stride=(x_r_stride, 1)))
    back = cute.make_tensor(back_ptr, cute.make_layout((R,), stride=(1,)))
    y = cute.make_tensor(y_ptr, cute.make_layout((T, 4096), stride=(y_t_stride, 1)))
    take_rows_rows(source, x, back, y, R, errors_ptr, T).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, source, x, back, y, R, T, x_r_stride, y_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 2
    if programs > 0:
        kernels.take_rows((programs,), source, x, back, y, R, errors, T, x_r_stride, y_t_stride)
