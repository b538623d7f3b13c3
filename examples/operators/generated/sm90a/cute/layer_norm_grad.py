"""layer_norm_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: b4e45fc347236537
schedule: tiles 1, 16 warps, 3 stages, unroll 1 placed N[11:3] N[2:0]
schedule: tiles N=32, 1 warps, 1 stages, unroll 64 placed N[4:0]
inputs:
  x: bf16 [T, N=4096]
  weight: bf16 [N=4096]
  mean: f32 [T]
  rstd: f32 [T]
  d_y: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, N=4096]
  d_weight: bf16 [N=4096]
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


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine with the elements of lane ^ lanes (butterfly).
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def folded(x, stride, combine):
    # Combine elements i and i + stride of a list.
    return [combine(x[i], x[i + stride]) for i in range(len(x)) if not i & stride]


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


def negative_zero():
    # -0.0. The DSL keeps constants by value, so Float32(-0.0) may become Float32(0.0), which came first.
    return Int32(-(2**31)).bitcast(Float32)


def store_vector(memory, index, x):
    # Store a vector.
    made = cute.make_rmem_tensor((len(x),), memory.element_type)
    for i in range(len(x)):
        made[i] = x[i]
    cute.autovec_copy(made, vector_of(memory, index, len(x)))


def sum_over_n(x, thread, reduce_buffers):
    # The sum over N, vector8.
    x = folded(x, 4, add)
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = across(x, reduce_buffers[0], (256, 128, 64, 32), thread, add)
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
def layer_norm_grad_1_rows(
    x: cute.Tensor, weight: cute.Tensor, mean: cute.Tensor, rstd: cute.Tensor, d_y: cute.Tensor, d_x: cute.Tensor,
    sum_of_piece: cute.Tensor, T: Int32
):
    # A block owns 1 of T.piece (rows). N: 4096 indices, 8 to each of 512 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    reduce_smem_2 = shared.allocate_tensor(Float32, cute.make_layout((1, 512), stride=(512, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t_piece = block
    t_piece_times_64 = t_piece * 64  # layer_norm.py:39
    piece_begin = cutlass.min(T, t_piece_times_64)
    piece_begin_plus_64 = piece_begin + 64
    piece_end = cutlass.min(T, piece_begin_plus_64)
    piece_end_minus_piece_begin = piece_end - piece_begin
    n = [thread * 8 + c for c in range(8)]  # layer_norm.py:41
    total = tuple([negative_zero() for c in range(8)])  # layer_norm.py:39
    next_t = Int32(0)
    comes = next_t < piece_end_minus_piece_begin
    t = piece_begin + next_t
    rstd_value = load_where(comes, rstd, t, Float32(0))  # layer_norm.py:40
    mean_value = load_where(comes, mean, t, Float32(0))  # layer_norm.py:41
    x_value = load_vector_where(comes, x, (t, n[0]), BFloat16(0), 8)
    d_y_value = load_vector_where(comes, d_y, (t, n[0]), BFloat16(0), 8)  # layer_norm.py:42
    weight_value = load_vector_where(comes, weight, n[0], BFloat16(0), 8)  # layer_norm.py:43
    x_ahead = tuple(x_value)
    d_y_ahead = tuple(d_y_value)
    weight_ahead = tuple(weight_value)
    next_t_2 = Int32(1)
    comes_2 = next_t_2 < piece_end_minus_piece_begin
    t_2 = piece_begin + next_t_2  # layer_norm.py:39
    rstd_value_2 = load_where(comes_2, rstd, t_2, Float32(0))  # layer_norm.py:40
    mean_value_2 = load_where(comes_2, mean, t_2, Float32(0))  # layer_norm.py:41
    x_value_2 = load_vector_where(comes_2, x, (t_2, n[0]), BFloat16(0), 8)
    d_y_value_2 = load_vector_where(comes_2, d_y, (t_2, n[0]), BFloat16(0), 8)  # layer_norm.py:42
    weight_value_2 = load_vector_where(comes_2, weight, n[0], BFloat16(0), 8)  # layer_norm.py:43
    x_ahead_2 = tuple(x_value_2)
    d_y_ahead_2 = tuple(d_y_value_2)
    weight_ahead_2 = tuple(weight_value_2)
    for t_step in cutlass.range(0, piece_end_minus_piece_begin, unroll=1):  # layer_norm.py:39
        next_t_3 = t_step + 2
        comes_3 = next_t_3 < piece_end_minus_piece_begin
        t_3 = piece_begin + next_t_3
        rstd_value_3 = load_where(comes_3, rstd, t_3, Float32(0))  # layer_norm.py:40
        mean_value_3 = load_where(comes_3, mean, t_3, Float32(0))  # layer_norm.py:41
        x_value_3 = load_vector_where(comes_3, x, (t_3, n[0]), BFloat16(0), 8)
        d_y_value_3 = load_vector_where(comes_3, d_y, (t_3, n[0]), BFloat16(0), 8)  # layer_norm.py:42
        weight_value_3 = load_vector_where(comes_3, weight, n[0], BFloat16(0), 8)  # layer_norm.py:43
        t_4 = piece_begin + t_step  # layer_norm.py:39
        x_f32 = [BFloat16(x_ahead[c]).to(Float32) for c in range(8)]  # layer_norm.py:41
        h_difference = [x_f32[c] - mean_value for c in range(8)]
        h = [mul(h_difference[c], rstd_value) for c in range(8)]
        g = [BFloat16(d_y_ahead[c]).to(Float32) for c in range(8)]  # layer_norm.py:42
        weight_f32 = [BFloat16(weight_ahead[c]).to(Float32) for c in range(8)]  # layer_norm.py:43
        gw = [mul(g[c], weight_f32[c]) for c in range(8)]
        gw_times_h = [mul(gw[c], h[c]) for c in range(8)]  # layer_norm.py:44
        sum_n = sum_over_n(gw_times_h, thread, (reduce_smem_1,))
        along = div(sum_n, Float32(4096.0))
        sum_n_2 = sum_over_n(gw, thread, (reduce_smem_2,))  # layer_norm.py:45
        level = div(sum_n_2, Float32(4096.0))
        gw_minus_level = [gw[c] - level for c in range(8)]  # layer_norm.py:47
        h_times_along = [mul(h[c], along) for c in range(8)]
        d_x_difference = [gw_minus_level[c] - h_times_along[c] for c in range(8)]
        d_x_product = [mul(d_x_difference[c], rstd_value) for c in range(8)]
        d_x_product_bf16 = [Float32(d_x_product[c]).to(BFloat16) for c in range(8)]
        store_vector(d_x, (t_4, n[0]), d_x_product_bf16)
        g_times_h = [mul(g[c], h[c]) for c in range(8)]  # layer_norm.py:49
        total_2 = [total[c] + g_times_h[c] for c in range(8)]
        (
            total, rstd_value, rstd_value_2, mean_value, mean_value_2, x_ahead, x_ahead_2, d_y_ahead, d_y_ahead_2,
            weight_ahead, weight_ahead_2
        ) = (
            tuple(total_2), rstd_value_2, rstd_value_3, mean_value_2, mean_value_3, x_ahead_2, tuple(x_value_3),
            d_y_ahead_2, tuple(d_y_value_3), weight_ahead_2, tuple(weight_value_3)
        )
    for c in cutlass.range_constexpr(0, 8, 4):  # layer_norm.py:39
        store_vector(sum_of_piece, (t_piece, n[c]), total[c:c + 4])


@cute.jit
def launch_layer_norm_grad_1(
    x_ptr: cute.Pointer, weight_ptr: cute.Pointer, mean_ptr: cute.Pointer, rstd_ptr: cute.Pointer,
    d_y_ptr: cute.Pointer, d_x_ptr: cute.Pointer, sum_of_piece_ptr: cute.Pointer, T: Int32, x_t_stride: Int64,
    d_y_t_stride: Int64, d_x_t_stride: Int64, sum_of_piece_t_piece_stride: Int64, programs: Int32, overlap: Int32,
    stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 4096), stride=(x_t_stride, 1)))
    weight = cute.make_tensor(weight_ptr, cute.make_layout((4096,), stride=(1,)))
    mean = cute.make_tensor(mean_ptr, cute.make_layout((T,), stride=(1,)))
    rstd = cute.make_tensor(rstd_ptr, cute.make_layout((T,), stride=(1,)))
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 4096), stride=(d_y_t_stride, 1)))
    d_x = cute.make_tensor(d_x_ptr, cute.make_layout((T, 4096), stride=(d_x_t_stride, 1)))
    sum_of_piece = cute.make_tensor(
        sum_of_piece_ptr, cute.make_layout((((T + 63) // 64), 4096), stride=(sum_of_piece_t_piece_stride, 1))
    )
    layer_norm_grad_1_rows(x, weight, mean, rstd, d_y, d_x, sum_of_piece, T).launch(
        grid=(programs, 1, 1), block=(512, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.kernel
def layer_norm_grad_2_rows(d_weight: cute.Tensor, sum_of_piece: cute.Tensor, T: Int32):
    # A block owns 32 of N (merge). N: 32 indices, 1 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    n = block * 32 + thread
    d_weight_value = negative_zero()  # layer_norm.py:39
    for t_piece_step in cutlass.range(0, ((T + 63) // 64), unroll=64):
        sum_of_piece_value = sum_of_piece[(t_piece_step, n)]
        total = d_weight_value + sum_of_piece_value  # layer_norm.py:49
        d_weight_value = total
    d_weight_bf16 = Float32(d_weight_value).to(BFloat16)  # layer_norm.py:53
    d_weight[n] = d_weight_bf16  # layer_norm.py:52


@cute.jit
def launch_layer_norm_grad_2(
    d_weight_ptr: cute.Pointer, sum_of_piece_ptr: cute.Pointer, T: Int32, sum_of_piece_t_piece_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    d_weight = cute.make_tensor(d_weight_ptr, cute.make_layout((4096,), stride=(1,)))
    sum_of_piece = cute.make_tensor(
        sum_of_piece_ptr, cute.make_layout((((T + 63) // 64), 4096), stride=(sum_of_piece_t_piece_stride, 1))
    )
    layer_norm_grad_2_rows(d_weight, sum_of_piece, T).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, x, weight, mean, rstd, d_y, d_x, sum_of_piece, d_weight, T, x_t_stride, d_y_t_stride, d_x_t_stride,
    sum_of_piece_t_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64)
    if programs > 0:
        kernels.layer_norm_grad_1(
            (programs,), x, weight, mean, rstd, d_y, d_x, sum_of_piece, T, x_t_stride, d_y_t_stride, d_x_t_stride,
            sum_of_piece_t_piece_stride
        )
    programs = ((4096 + 31) // 32)
    if programs > 0:
        kernels.layer_norm_grad_2((programs,), d_weight, sum_of_piece, T, sum_of_piece_t_piece_stride)
