"""rms_norm_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 44094d594e766885
schedule: tiles 1, 16 warps, 3 stages, unroll 1 placed N[11:3] N[2:0]
schedule: tiles N=32, 1 warps, 1 stages, unroll 64 placed N[4:0]
inputs:
  weight: bf16 [N=4096]
  residual_out: bf16 [T, N=4096]
  rstd: f32 [T]
  d_y: bf16 [T, N=4096]
  d_residual_out: bf16 [T, N=4096]
outputs:
  d_x: bf16 [T, N=4096]
  d_residual: bf16 [T, N=4096]
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
def rms_norm_grad_1_rows(
    weight: cute.Tensor, residual_out: cute.Tensor, rstd: cute.Tensor, d_y: cute.Tensor, d_residual_out: cute.Tensor,
    d_x: cute.Tensor, d_residual: cute.Tensor, sum_of_piece: cute.Tensor, T: Int32
):
    # A block owns 1 of T.piece (rows). N: 4096 indices, 8 to each of 512 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator()
    reduce_smem_1 = shared.allocate_tensor(Float32, cute.make_layout((2, 1, 512), stride=(512, 512, 1)), 16)
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    t_piece = block
    n = [thread * 8 + c for c in range(8)]  # norm.py:16
    weight_value = load_vector(weight, n[0], 8)
    w = [BFloat16(weight_value[c]).to(Float32) for c in range(8)]
    t_piece_times_64 = t_piece * 64  # norm.py:64
    piece_begin = cutlass.min(T, t_piece_times_64)
    piece_begin_plus_64 = piece_begin + 64
    piece_end = cutlass.min(T, piece_begin_plus_64)
    piece_end_minus_piece_begin = piece_end - piece_begin
    total = tuple([negative_zero() for c in range(8)])
    next_t = Int32(0)
    comes = next_t < piece_end_minus_piece_begin
    t = piece_begin + next_t
    rstd_value = load_where(comes, rstd, t, Float32(0))  # norm.py:65
    residual_out_value = load_vector_where(comes, residual_out, (t, n[0]), BFloat16(0), 8)  # norm.py:66
    d_y_value = load_vector_where(comes, d_y, (t, n[0]), BFloat16(0), 8)  # norm.py:67
    d_residual_out_value = load_vector_where(comes, d_residual_out, (t, n[0]), BFloat16(0), 8)  # norm.py:72
    residual_out_ahead = tuple(residual_out_value)
    d_y_ahead = tuple(d_y_value)
    d_residual_out_ahead = tuple(d_residual_out_value)
    next_t_2 = Int32(1)
    comes_2 = next_t_2 < piece_end_minus_piece_begin
    t_2 = piece_begin + next_t_2  # norm.py:64
    rstd_value_2 = load_where(comes_2, rstd, t_2, Float32(0))  # norm.py:65
    residual_out_value_2 = load_vector_where(comes_2, residual_out, (t_2, n[0]), BFloat16(0), 8)  # norm.py:66
    d_y_value_2 = load_vector_where(comes_2, d_y, (t_2, n[0]), BFloat16(0), 8)  # norm.py:67
    d_residual_out_value_2 = load_vector_where(comes_2, d_residual_out, (t_2, n[0]), BFloat16(0), 8)  # norm.py:72
    residual_out_ahead_2 = tuple(residual_out_value_2)
    d_y_ahead_2 = tuple(d_y_value_2)
    d_residual_out_ahead_2 = tuple(d_residual_out_value_2)
    for t_step in cutlass.range(0, piece_end_minus_piece_begin, unroll=1):  # norm.py:64
        next_t_3 = t_step + 2
        comes_3 = next_t_3 < piece_end_minus_piece_begin
        t_3 = piece_begin + next_t_3
        rstd_value_3 = load_where(comes_3, rstd, t_3, Float32(0))  # norm.py:65
        residual_out_value_3 = load_vector_where(comes_3, residual_out, (t_3, n[0]), BFloat16(0), 8)  # norm.py:66
        d_y_value_3 = load_vector_where(comes_3, d_y, (t_3, n[0]), BFloat16(0), 8)  # norm.py:67
        d_residual_out_value_3 = load_vector_where(comes_3, d_residual_out, (t_3, n[0]), BFloat16(0), 8)  # norm.py:72
        t_4 = piece_begin + t_step  # norm.py:64
        residual_out_f32 = [BFloat16(residual_out_ahead[c]).to(Float32) for c in range(8)]  # norm.py:66
        n_2 = [mul(residual_out_f32[c], rstd_value) for c in range(8)]
        g = [BFloat16(d_y_ahead[c]).to(Float32) for c in range(8)]  # norm.py:67
        gw = [mul(g[c], w[c]) for c in range(8)]  # norm.py:68
        gw_times_n = [mul(gw[c], n_2[c]) for c in range(8)]  # norm.py:69
        sum_n = sum_over_n(gw_times_n, thread, (reduce_smem_1[t_step % 2, None, None],))
        mean = div(sum_n, Float32(4096.0))
        n_times_mean = [mul(n_2[c], mean) for c in range(8)]  # norm.py:70
        dh_difference = [gw[c] - n_times_mean[c] for c in range(8)]
        dh = [mul(dh_difference[c], rstd_value) for c in range(8)]
        d_residual_out_f32 = [BFloat16(d_residual_out_ahead[c]).to(Float32) for c in range(8)]  # norm.py:72
        dh_2 = [dh[c] + d_residual_out_f32[c] for c in range(8)]
        grad = [Float32(dh_2[c]).to(BFloat16) for c in range(8)]  # norm.py:73
        store_vector(d_x, (t_4, n[0]), grad)  # norm.py:75
        store_vector(d_residual, (t_4, n[0]), grad)  # norm.py:77
        n_bf16 = [Float32(n_2[c]).to(BFloat16) for c in range(8)]  # norm.py:79
        n_bf16_f32 = [BFloat16(n_bf16[c]).to(Float32) for c in range(8)]
        total_product = [mul(g[c], n_bf16_f32[c]) for c in range(8)]
        total_2 = [total[c] + total_product[c] for c in range(8)]
        (
            total, rstd_value, rstd_value_2, residual_out_ahead, residual_out_ahead_2, d_y_ahead, d_y_ahead_2,
            d_residual_out_ahead, d_residual_out_ahead_2
        ) = (
            tuple(total_2), rstd_value_2, rstd_value_3, residual_out_ahead_2, tuple(residual_out_value_3), d_y_ahead_2,
            tuple(d_y_value_3), d_residual_out_ahead_2, tuple(d_residual_out_value_3)
        )
    for c in cutlass.range_constexpr(0, 8, 4):  # norm.py:64
        store_vector(sum_of_piece, (t_piece, n[c]), total[c:c + 4])


@cute.jit
def launch_rms_norm_grad_1(
    weight_ptr: cute.Pointer, residual_out_ptr: cute.Pointer, rstd_ptr: cute.Pointer, d_y_ptr: cute.Pointer,
    d_residual_out_ptr: cute.Pointer, d_x_ptr: cute.Pointer, d_residual_ptr: cute.Pointer,
    sum_of_piece_ptr: cute.Pointer, T: Int32, residual_out_t_stride: Int64, d_y_t_stride: Int64,
    d_residual_out_t_stride: Int64, d_x_t_stride: Int64, d_residual_t_stride: Int64, sum_of_piece_t_piece_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    weight = cute.make_tensor(weight_ptr, cute.make_layout((4096,), stride=(1,)))
    residual_out = cute.make_tensor(residual_out_ptr, cute.make_layout((T, 4096), stride=(residual_out_t_stride, 1)))
    rstd = cute.make_tensor(rstd_ptr, cute.make_layout((T,), stride=(1,)))
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 4096), stride=(d_y_t_stride, 1)))
    d_residual_out = cute.make_tensor(
        d_residual_out_ptr, cute.make_layout((T, 4096), stride=(d_residual_out_t_stride, 1))
    )
    d_x = cute.make_tensor(d_x_ptr, cute.make_layout((T, 4096), stride=(d_x_t_stride, 1)))
    d_residual = cute.make_tensor(d_residual_ptr, cute.make_layout((T, 4096), stride=(d_residual_t_stride, 1)))
    sum_of_piece = cute.make_tensor(
        sum_of_piece_ptr, cute.make_layout((((T + 63) // 64), 4096), stride=(sum_of_piece_t_piece_stride, 1))
    )
    rms_norm_grad_1_rows(weight, residual_out, rstd, d_y, d_residual_out, d_x, d_residual, sum_of_piece, T).launch(
        grid=(programs, 1, 1), block=(512, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.kernel
def rms_norm_grad_2_rows(d_weight: cute.Tensor, sum_of_piece: cute.Tensor, T: Int32):
    # A block owns 32 of N (merge). N: 32 indices, 1 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    n = block * 32 + thread
    dw = negative_zero()  # norm.py:64
    for t_piece_step in cutlass.range(0, ((T + 63) // 64), unroll=64):
        sum_of_piece_value = sum_of_piece[(t_piece_step, n)]
        total = dw + sum_of_piece_value  # norm.py:79
        dw = total
    dw_bf16 = Float32(dw).to(BFloat16)  # norm.py:80
    d_weight[n] = dw_bf16


@cute.jit
def launch_rms_norm_grad_2(
    d_weight_ptr: cute.Pointer, sum_of_piece_ptr: cute.Pointer, T: Int32, sum_of_piece_t_piece_stride: Int64,
    programs: Int32, overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    d_weight = cute.make_tensor(d_weight_ptr, cute.make_layout((4096,), stride=(1,)))
    sum_of_piece = cute.make_tensor(
        sum_of_piece_ptr, cute.make_layout((((T + 63) // 64), 4096), stride=(sum_of_piece_t_piece_stride, 1))
    )
    rms_norm_grad_2_rows(d_weight, sum_of_piece, T).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, weight, residual_out, rstd, d_y, d_residual_out, d_x, d_residual, sum_of_piece, d_weight, T,
    residual_out_t_stride, d_y_t_stride, d_residual_out_t_stride, d_x_t_stride, d_residual_t_stride,
    sum_of_piece_t_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64)
    if programs > 0:
        kernels.rms_norm_grad_1(
            (programs,), weight, residual_out, rstd, d_y, d_residual_out, d_x, d_residual, sum_of_piece, T,
            residual_out_t_stride, d_y_t_stride, d_residual_out_t_stride, d_x_t_stride, d_residual_t_stride,
            sum_of_piece_t_piece_stride
        )
    programs = ((4096 + 31) // 32)
    if programs > 0:
        kernels.rms_norm_grad_2((programs,), d_weight, sum_of_piece, T, sum_of_piece_t_piece_stride)
