"""combine_rows_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 4e8fa1c6d8864863
schedule: tiles 1, 4 warps, 1 stages, unroll 1 placed D[9:3] D[2:0] D[10:10]
inputs:
  order: i32 [R]
  rows: bf16 [R, D=2048]
  weights: f32 [T, K=8]
  d_y: bf16 [T, D=2048]
outputs:
  d_weights: f32 [T, K=8]
  d_rows: bf16 [R, D=2048]
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


def across(x, reduce_smem, strides, thread, combine):
    # Combine with the elements of thread ^ stride, stride by stride, through shared memory.
    for i in range(len(x)):
        reduce_smem[i, thread] = x[i]
    cute.arch.sync_threads()
    far = [sum(a for k, a in enumerate(strides) if j >> k & 1) for j in range(1 << len(strides))]
    x = [[x[i], *(reduce_smem[i, thread ^ f] for f in far[1:])] for i in range(len(x))]
    for _ in strides:
        x = [folded(terms, 1, combine) for terms in x]
    return [terms[0] for terms in x]


def add(a, b):
    # a + b: the combine of sum reductions.
    return a + b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


def load_vector(memory, index, count):
    # Load a vector.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_vector_where(condition, memory: cute.Tensor, index, other, count: cutlass.Constexpr):
    # Load a vector, or `other` where the condition is false.
    x = cute.make_rmem_tensor((count,), memory.element_type)
    x.fill(other)
    if condition:
        cute.autovec_copy(vector_of(memory, index, count), x)
    return [x[i] for i in range(count)]


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # Load an element, or `other`.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Store an element where the condition holds.
    if condition:
        memory[index] = x


def sum_over_d(x, thread, reduce_buffers):
    # The sum over D, vector8.
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = folded(x, 1, add)
    x = across(x, reduce_buffers[0], (64, 32), thread, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x[0]


def vector_of(memory, index, count):
    # A view of `count` contiguous, aligned elements.
    at = cute.assume(cute.crd2idx(index, memory.layout), divby=count)
    return cute.make_tensor(memory.iterator + at, (count,))


@cute.kernel
def combine_rows_grad_rows(
    order: cute.Tensor, rows: cute.Tensor, weights: cute.Tensor, d_y: cute.Tensor, d_weights: cute.Tensor,
    d_rows: cute.Tensor, T: Int32, R: Int32
):
    # A block owns 1 of R (rows). D: 2048 indices, 16 to each of 128 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((1, 128), stride=(128, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    r = block
    writes = thread == 0
    order_value = order[r]  # moe.py:318
    token = order_value // 8
    choice = order_value % 8
    token_ge_0 = 0 <= token  # moe.py:319
    token_lt_T = token < T
    d_y_guard = token_ge_0 & token_lt_T
    choice_ge_0 = 0 <= choice  # moe.py:320
    choice_lt_8 = choice < 8
    weights_guard = choice_ge_0 & choice_lt_8
    weights_guard_2 = d_y_guard & weights_guard
    weights_value = load_where(weights_guard_2, weights, (token, choice), Float32(0))
    d = [thread * 8 + c % 8 + c // 8 * 1024 for c in range(16)]  # moe.py:319
    d_y_value = [
        one for c in range(0, 16, 8) for one in load_vector_where(d_y_guard, d_y, (token, d[c]), BFloat16(0), 8)
    ]
    rows_value = [one for c in range(0, 16, 8) for one in load_vector(rows, (r, d[c]), 8)]  # moe.py:321
    d_2 = [BFloat16(d_y_value[c]).to(Float32) for c in range(16)]  # moe.py:319
    rows_f32 = [BFloat16(rows_value[c]).to(Float32) for c in range(16)]  # moe.py:321
    slope_product = [mul(rows_f32[c], d_2[c]) for c in range(16)]
    slope = sum_over_d(slope_product, thread, (reduce_smem_1,))
    store_where(writes, d_weights, (token, choice), slope)  # moe.py:323
    d_times_weights = [mul(d_2[c], weights_value) for c in range(16)]  # moe.py:325
    d_times_weights_bf16 = [Float32(d_times_weights[c]).to(BFloat16) for c in range(16)]
    for c in cutlass.range_constexpr(0, 16, 8):
        store_vector(d_rows, (r, d[c]), d_times_weights_bf16[c:c + 8])


@cute.jit
def launch_combine_rows_grad(
    order_ptr: cute.Pointer, rows_ptr: cute.Pointer, weights_ptr: cute.Pointer, d_y_ptr: cute.Pointer,
    d_weights_ptr: cute.Pointer, d_rows_ptr: cute.Pointer, T: Int32, R: Int32, rows_r_stride: Int64,
    weights_t_stride: Int64, d_y_t_stride: Int64, d_weights_t_stride: Int64, d_rows_r_stride: Int64, programs: Int32,
    overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    order = cute.make_tensor(order_ptr, cute.make_layout((R,), stride=(1,)))
    rows = cute.make_tensor(rows_ptr, cute.make_layout((R, 2048), stride=(rows_r_stride, 1)))
    weights = cute.make_tensor(weights_ptr, cute.make_layout((T, 8), stride=(weights_t_stride, 1)))
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 2048), stride=(d_y_t_stride, 1)))
    d_weights = cute.make_tensor(d_weights_ptr, cute.make_layout((T, 8), stride=(d_weights_t_stride, 1)))
    d_rows = cute.make_tensor(d_rows_ptr, cute.make_layout((R, 2048), stride=(d_rows_r_stride, 1)))
    combine_rows_grad_rows(order, rows, weights, d_y, d_weights, d_rows, T, R).launch(
        grid=(programs, 1, 1), block=(128, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, order, rows, weights, d_y, d_weights, d_rows, T, R, rows_r_stride, weights_t_stride, d_y_t_stride,
    d_weights_t_stride, d_rows_r_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = R
    if programs > 0:
        kernels.combine_rows_grad(
            (programs,), order, rows, weights, d_y, d_weights, d_rows, T, R, rows_r_stride, weights_t_stride,
            d_y_t_stride, d_weights_t_stride, d_rows_r_stride
        )
