"""embedding_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: fb4f8bccb4e49366
schedule: tiles D=1024, 4 warps, 1 stages, unroll 1 placed D[9:3] S.lane[2:0] D[2:0]
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


def add(a, b):
    # A term of a sum.
    return a + b


def folded(x, apart, combine):
    # Combine the elements of a thread that lie so far apart.
    return [combine(x[i], x[i + apart]) for i in range(len(x)) if not i & apart]


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


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


def store_vector(memory, index, x):
    # Write elements that follow each other at once.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


def sum_over_s_lane(x):
    # The sum over S.lane, halving.
    x = folded(x, 32, add)
    x = folded(x, 16, add)
    x = folded(x, 8, add)
    return x


def vector_of(memory, index, count):
    # Neighbours in memory, the first at a multiple of so many.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def embedding_grad_rows(d_y: cute.Tensor, order: cute.Tensor, segments: cute.Tensor, d_weight: cute.Tensor, T: Int32, S: Int32):
    # A block owns 1 of V, 1024 of D (col_fold). S.lane: 8 indices, 8 to each of 1 threads; D: 1024 indices, 8 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rest = block // 4
    v = rest
    d = [block % 4 * 1024 + thread * 8 + c for c in range(8)]
    at_most = 0 <= v  # model.py:101
    below = v < 151937  # model.py:101
    both = at_most & below  # model.py:101
    segments_2 = load_where(both, segments, v, Int64(0))  # model.py:101
    total = v + 1  # model.py:101
    at_most_2 = 0 <= total  # model.py:101
    below_2 = total < 151937  # model.py:101
    both_2 = at_most_2 & below_2  # model.py:101
    segments_3 = load_where(both_2, segments, total, Int64(0))  # model.py:101
    as_i32 = Int64(segments_2).to(Int32)  # model.py:101
    as_i32_2 = Int64(segments_3).to(Int32)  # model.py:101
    difference = as_i32_2 - as_i32  # model.py:101
    total_2 = difference + 7  # model.py:101
    steps = total_2 // 8  # model.py:101
    full_steps = difference // 8  # model.py:101
    s_lane = [Int32(c) for c in range(8)]  # model.py:101
    as_i64 = Int32(T).to(Int64)  # model.py:102
    s = tuple([Int32(-(2**31)).bitcast(Float32) for c in range(8)])  # model.py:101
    for s_step in cutlass.range(0, full_steps, unroll=1):  # model.py:101
        product = s_step * 8  # model.py:101
        total_3 = as_i32 + product  # model.py:101
        s_2 = [total_3 + s_lane[c] for c in range(8)]  # model.py:101
        order_2 = [order[s_2[c]] for c in range(8)]  # model.py:102
        at_most_3 = [0 <= order_2[c] for c in range(8)]  # model.py:102
        below_3 = [order_2[c] < as_i64 for c in range(8)]  # model.py:102
        both_3 = [at_most_3[c] & below_3[c] for c in range(8)]  # model.py:102
        d_y_2 = [one for c in range(0, 64, 8) for one in load_vector_where((both_3[c // 8]), d_y, (order_2[c // 8].to(Int32), d[c % 8]), BFloat16(0), 8)]  # model.py:102
        as_f32 = [BFloat16(d_y_2[c]).to(Float32) for c in range(64)]  # model.py:102
        sum_s_lane = sum_over_s_lane(as_f32)  # model.py:101
        s_3 = [s[c] + sum_s_lane[c] for c in range(8)]  # model.py:101
        s = tuple(s_3)  # model.py:101
    s_2 = tuple(s)  # model.py:101
    for s_step_2 in cutlass.range(full_steps, steps, unroll=1):  # model.py:101
        product = s_step_2 * 8  # model.py:101
        total_3 = as_i32 + product  # model.py:101
        s_3 = [total_3 + s_lane[c] for c in range(8)]  # model.py:101
        exists = [s_3[c] < as_i32_2 for c in range(8)]  # model.py:101
        order_2 = [load_where(exists[c], order, s_3[c], Int64(0)) for c in range(8)]  # model.py:102
        at_most_3 = [0 <= order_2[c] for c in range(8)]  # model.py:102
        below_3 = [order_2[c] < as_i64 for c in range(8)]  # model.py:102
        both_3 = [at_most_3[c] & below_3[c] for c in range(8)]  # model.py:102
        both_4 = [exists[c] & both_3[c] for c in range(8)]  # model.py:102
        d_y_2 = [one for c in range(0, 64, 8) for one in load_vector_where((both_4[c // 8]), d_y, (order_2[c // 8].to(Int32), d[c % 8]), BFloat16(0), 8)]  # model.py:102
        as_f32 = [BFloat16(d_y_2[c]).to(Float32) for c in range(64)]  # model.py:102
        chosen = [select(exists[c // 8], as_f32[c], Int32(-(2**31)).bitcast(Float32)) for c in range(64)]  # model.py:101
        sum_s_lane = sum_over_s_lane(chosen)  # model.py:101
        s_4 = [s_2[c] + sum_s_lane[c] for c in range(8)]  # model.py:101
        s_2 = tuple(s_4)  # model.py:101
    total_3 = [s_2[c] + Float32(0.0) for c in range(8)]  # model.py:104
    as_bf16 = [Float32(total_3[c]).to(BFloat16) for c in range(8)]  # model.py:104
    store_vector(d_weight, (v, d[0]), as_bf16)  # model.py:104


@cute.jit
def launch_embedding_grad(d_y_ptr: cute.Pointer, order_ptr: cute.Pointer, segments_ptr: cute.Pointer, d_weight_ptr: cute.Pointer, T: Int32, d_y_t_stride: Int64, S: Int32, d_weight_v_stride: Int64, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 4096), stride=(d_y_t_stride, 1)))
    order = cute.make_tensor(order_ptr, cute.make_layout((S,), stride=(1,)))
    segments = cute.make_tensor(segments_ptr, cute.make_layout((151937,), stride=(1,)))
    d_weight = cute.make_tensor(d_weight_ptr, cute.make_layout((151936, 4096), stride=(d_weight_v_stride, 1)))
    embedding_grad_rows(d_y, order, segments, d_weight, T, S).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), stream=stream,
    )


def call(kernels, d_y, order, segments, d_weight, T, S, d_y_t_stride, d_weight_v_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 151936 * 4
    if programs > 0:
        kernels.embedding_grad((programs,), d_y, order, segments, d_weight, T, d_y_t_stride, S, d_weight_v_stride)
