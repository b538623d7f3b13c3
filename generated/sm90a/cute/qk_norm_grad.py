"""qk_norm_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 07fb4bd4ba8fc3c3
schedule: tiles 1, 1 warps, 3 stages, unroll 1 placed E[6:3] E[2:0]
schedule: tiles E=32, 1 warps, 1 stages, unroll 64 placed E[4:0]
schedule: tiles E=32, 1 warps, 1 stages, unroll 32 placed E[4:0]
inputs:
  x: bf16 [T, H=32, E=128]
  weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
  rstd: f32 [T, H=32]
  d_y: bf16 [T, H=32, E=128]
outputs:
  d_x: bf16 [T, H=32, E=128]
  d_weight: bf16 [E=128]
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


def select(condition, a, b):
    # condition ? a : b, without a branch.
    return cutlass.select_(condition, a, b)


def sum_over_e(x):
    # The sum over E, vector8.
    x = folded(x, 2, add)
    x = folded(x, 1, add)
    x = exchanged(x, 16, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    return x[0]


@cute.kernel
def qk_norm_grad_1_rows(
    x: cute.Tensor, weight: cute.Tensor, cos: cute.Tensor, sin: cute.Tensor, position_ids: cute.Tensor,
    rstd: cute.Tensor, d_y: cute.Tensor, d_x: cute.Tensor, sum_of_piece1: cute.Tensor, T: Int32, P: Int32
):
    # A block owns 1 of T.piece, 1 of H (rows). E: 128 indices, 4 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 32
    t_piece = rest
    h = block % 32
    e = [thread // 16 + thread % 16 * 8 + c * 2 for c in range(4)]  # norm.py:16
    weight_value = [weight[e[c]] for c in range(4)]
    w = [BFloat16(weight_value[c]).to(Float32) for c in range(4)]
    t_piece_times_64 = t_piece * 64  # heads.py:139
    piece_begin = cutlass.min(T, t_piece_times_64)
    piece_begin_plus_64 = piece_begin + 64
    piece_end = cutlass.min(T, piece_begin_plus_64)
    piece_end_minus_piece_begin = piece_end - piece_begin
    ahead = [e[c] < 64 for c in range(4)]  # heads.py:71
    e_minus_64 = [e[c] - 64 for c in range(4)]  # heads.py:72
    angle = [select(ahead[c], e[c], e_minus_64[c]) for c in range(4)]
    e_plus_64 = [e[c] + 64 for c in range(4)]
    partner = [select(ahead[c], e_plus_64[c], e_minus_64[c]) for c in range(4)]
    P_i64 = Int32(P).to(Int64)  # heads.py:77
    angle_ge_0 = [0 <= angle[c] for c in range(4)]
    angle_lt_64 = [angle[c] < 64 for c in range(4)]
    cos_guard = [angle_ge_0[c] & angle_lt_64[c] for c in range(4)]
    total = tuple([negative_zero() for c in range(4)])  # heads.py:139
    next_t = Int32(0)
    comes = next_t < piece_end_minus_piece_begin
    t = piece_begin + next_t
    rstd_value = load_where(comes, rstd, (t, h), Float32(0))  # heads.py:140
    position_ids_value = load_where(comes, position_ids, t, Int64(0))  # heads.py:158
    x_value = [load_where(comes, x, (t, h, e[c]), BFloat16(0)) for c in range(4)]  # heads.py:141
    d_y_value = [load_where(comes, d_y, (t, h, partner[c]), BFloat16(0)) for c in range(4)]  # heads.py:160
    d_y_value_2 = [load_where(comes, d_y, (t, h, e[c]), BFloat16(0)) for c in range(4)]  # heads.py:161
    x_ahead = tuple(x_value)
    d_y_ahead = tuple(d_y_value)
    d_y_ahead_2 = tuple(d_y_value_2)
    next_t_2 = Int32(1)
    comes_2 = next_t_2 < piece_end_minus_piece_begin
    t_2 = piece_begin + next_t_2  # heads.py:139
    rstd_value_2 = load_where(comes_2, rstd, (t_2, h), Float32(0))  # heads.py:140
    position_ids_value_2 = load_where(comes_2, position_ids, t_2, Int64(0))  # heads.py:158
    x_value_2 = [load_where(comes_2, x, (t_2, h, e[c]), BFloat16(0)) for c in range(4)]  # heads.py:141
    d_y_value_3 = [load_where(comes_2, d_y, (t_2, h, partner[c]), BFloat16(0)) for c in range(4)]  # heads.py:160
    d_y_value_4 = [load_where(comes_2, d_y, (t_2, h, e[c]), BFloat16(0)) for c in range(4)]  # heads.py:161
    x_ahead_2 = tuple(x_value_2)
    d_y_ahead_3 = tuple(d_y_value_3)
    d_y_ahead_4 = tuple(d_y_value_4)
    for t_step in cutlass.range(0, piece_end_minus_piece_begin, unroll=1):  # heads.py:139
        next_t_3 = t_step + 2
        comes_3 = next_t_3 < piece_end_minus_piece_begin
        t_3 = piece_begin + next_t_3
        rstd_value_3 = load_where(comes_3, rstd, (t_3, h), Float32(0))  # heads.py:140
        position_ids_value_3 = load_where(comes_3, position_ids, t_3, Int64(0))  # heads.py:158
        x_value_3 = [load_where(comes_3, x, (t_3, h, e[c]), BFloat16(0)) for c in range(4)]  # heads.py:141
        d_y_value_5 = [load_where(comes_3, d_y, (t_3, h, partner[c]), BFloat16(0)) for c in range(4)]  # heads.py:160
        d_y_value_6 = [load_where(comes_3, d_y, (t_3, h, e[c]), BFloat16(0)) for c in range(4)]  # heads.py:161
        t_4 = piece_begin + t_step  # heads.py:139
        position_ids_ge_0 = 0 <= position_ids_value  # heads.py:77
        cos_guard_below = position_ids_value < P_i64
        cos_guard_2 = position_ids_ge_0 & cos_guard_below
        cos_guard_3 = [cos_guard_2 & cos_guard[c] for c in range(4)]
        cos_value = [
            load_where(cos_guard_3[c], cos, (position_ids_value.to(Int32), angle[c]), Float32(float("nan")))
            for c in range(4)
        ]
        sin_value = [
            load_where(cos_guard_3[c], sin, (position_ids_value.to(Int32), angle[c]), Float32(float("nan")))
            for c in range(4)
        ]
        x_f32 = [BFloat16(x_ahead[c]).to(Float32) for c in range(4)]  # heads.py:141
        n = [mul(x_f32[c], rstd_value) for c in range(4)]
        other = [BFloat16(d_y_ahead[c]).to(Float32) for c in range(4)]  # heads.py:160
        own = [BFloat16(d_y_ahead_2[c]).to(Float32) for c in range(4)]  # heads.py:161
        neg_sin = [-sin_value[c] for c in range(4)]  # heads.py:82
        turned = [mul(other[c], neg_sin[c]) for c in range(4)]
        own_times_cos = [mul(own[c], cos_value[c]) for c in range(4)]  # heads.py:83
        neg_turned = [-turned[c] for c in range(4)]
        made_selected = [select(ahead[c], neg_turned[c], turned[c]) for c in range(4)]
        made = [own_times_cos[c] + made_selected[c] for c in range(4)]
        made_bf16 = [Float32(made[c]).to(BFloat16) for c in range(4)]  # heads.py:84
        g = [BFloat16(made_bf16[c]).to(Float32) for c in range(4)]  # heads.py:161
        gw = [mul(g[c], w[c]) for c in range(4)]  # heads.py:144
        gw_times_n = [mul(gw[c], n[c]) for c in range(4)]  # heads.py:145
        sum_e = sum_over_e(gw_times_n)
        mean = div(sum_e, Float32(128.0))
        n_times_mean = [mul(n[c], mean) for c in range(4)]  # heads.py:146
        d_x_difference = [gw[c] - n_times_mean[c] for c in range(4)]
        d_x_product = [mul(d_x_difference[c], rstd_value) for c in range(4)]
        d_x_product_bf16 = [Float32(d_x_product[c]).to(BFloat16) for c in range(4)]
        for c in cutlass.range_constexpr(4):
            d_x[(t_4, h, e[c])] = d_x_product_bf16[c]
        n_bf16 = [Float32(n[c]).to(BFloat16) for c in range(4)]  # heads.py:148
        n_bf16_f32 = [BFloat16(n_bf16[c]).to(Float32) for c in range(4)]
        total_product = [mul(g[c], n_bf16_f32[c]) for c in range(4)]
        total_2 = [total[c] + total_product[c] for c in range(4)]
        (
            total, rstd_value, rstd_value_2, position_ids_value, position_ids_value_2, x_ahead, x_ahead_2, d_y_ahead,
            d_y_ahead_3, d_y_ahead_2, d_y_ahead_4
        ) = (
            tuple(total_2), rstd_value_2, rstd_value_3, position_ids_value_2, position_ids_value_3, x_ahead_2,
            tuple(x_value_3), d_y_ahead_3, tuple(d_y_value_5), d_y_ahead_4, tuple(d_y_value_6)
        )
    for c in cutlass.range_constexpr(4):  # heads.py:139
        sum_of_piece1[(t_piece, h, e[c])] = total[c]


@cute.jit
def launch_qk_norm_grad_1(
    x_ptr: cute.Pointer, weight_ptr: cute.Pointer, cos_ptr: cute.Pointer, sin_ptr: cute.Pointer,
    position_ids_ptr: cute.Pointer, rstd_ptr: cute.Pointer, d_y_ptr: cute.Pointer, d_x_ptr: cute.Pointer,
    sum_of_piece1_ptr: cute.Pointer, T: Int32, P: Int32, x_t_stride: Int64, x_h_stride: Int64, cos_p_stride: Int64,
    sin_p_stride: Int64, rstd_t_stride: Int64, d_y_t_stride: Int64, d_y_h_stride: Int64, d_x_t_stride: Int64,
    d_x_h_stride: Int64, sum_of_piece1_t_piece_stride: Int64, sum_of_piece1_h_stride: Int64, programs: Int32,
    overlap: Int32, stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    x = cute.make_tensor(x_ptr, cute.make_layout((T, 32, 128), stride=(x_t_stride, x_h_stride, 1)))
    weight = cute.make_tensor(weight_ptr, cute.make_layout((128,), stride=(1,)))
    cos = cute.make_tensor(cos_ptr, cute.make_layout((P, 64), stride=(cos_p_stride, 1)))
    sin = cute.make_tensor(sin_ptr, cute.make_layout((P, 64), stride=(sin_p_stride, 1)))
    position_ids = cute.make_tensor(position_ids_ptr, cute.make_layout((T,), stride=(1,)))
    rstd = cute.make_tensor(rstd_ptr, cute.make_layout((T, 32), stride=(rstd_t_stride, 1)))
    d_y = cute.make_tensor(d_y_ptr, cute.make_layout((T, 32, 128), stride=(d_y_t_stride, d_y_h_stride, 1)))
    d_x = cute.make_tensor(d_x_ptr, cute.make_layout((T, 32, 128), stride=(d_x_t_stride, d_x_h_stride, 1)))
    sum_of_piece1 = cute.make_tensor(
        sum_of_piece1_ptr,
        cute.make_layout((((T + 63) // 64), 32, 128), stride=(sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride, 1))
    )
    qk_norm_grad_1_rows(x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, T, P).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.kernel
def qk_norm_grad_2_rows(partials: cute.Tensor, sum_of_piece1: cute.Tensor, T: Int32):
    # A block owns 1 of H, 32 of E (merge). E: 32 indices, 1 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    rest = block // 4
    h = rest
    e = block % 4 * 32 + thread
    dw = negative_zero()  # heads.py:139
    for t_piece_step in cutlass.range(0, ((T + 63) // 64), unroll=64):
        sum_of_piece1_value = sum_of_piece1[(t_piece_step, h, e)]
        total = dw + sum_of_piece1_value  # heads.py:148
        dw = total
    partials[(h, e)] = dw  # heads.py:151


@cute.jit
def launch_qk_norm_grad_2(
    partials_ptr: cute.Pointer, sum_of_piece1_ptr: cute.Pointer, T: Int32, partials_h_stride: Int64,
    sum_of_piece1_t_piece_stride: Int64, sum_of_piece1_h_stride: Int64, programs: Int32, overlap: Int32,
    stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    partials = cute.make_tensor(partials_ptr, cute.make_layout((32, 128), stride=(partials_h_stride, 1)))
    sum_of_piece1 = cute.make_tensor(
        sum_of_piece1_ptr,
        cute.make_layout((((T + 63) // 64), 32, 128), stride=(sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride, 1))
    )
    qk_norm_grad_2_rows(partials, sum_of_piece1, T).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), use_pdl=overlap, stream=stream,
    )


@cute.kernel
def qk_norm_grad_3_rows(partials: cute.Tensor, d_weight: cute.Tensor):
    # A block owns 32 of E (merge). E: 32 indices, 1 to each of 32 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    e = block * 32 + thread
    total = negative_zero()  # heads.py:167
    for h_step in cutlass.range(0, 32, unroll=32):
        partials_value = partials[(h_step, e)]  # heads.py:168
        total_2 = total + partials_value
        total = total_2
    total_bf16 = Float32(total).to(BFloat16)  # heads.py:151
    d_weight[e] = total_bf16


@cute.jit
def launch_qk_norm_grad_3(
    partials_ptr: cute.Pointer, d_weight_ptr: cute.Pointer, partials_h_stride: Int64, programs: Int32, overlap: Int32,
    stream: cuda.CUstream
):
    # Host side: tensor descriptors and the launch.
    partials = cute.make_tensor(partials_ptr, cute.make_layout((32, 128), stride=(partials_h_stride, 1)))
    d_weight = cute.make_tensor(d_weight_ptr, cute.make_layout((128,), stride=(1,)))
    qk_norm_grad_3_rows(partials, d_weight).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), use_pdl=overlap, stream=stream,
    )


def call(
    kernels, x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, partials, d_weight, T, P, x_t_stride,
    x_h_stride, cos_p_stride, sin_p_stride, rstd_t_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride, d_x_h_stride,
    sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride, partials_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 32
    if programs > 0:
        kernels.qk_norm_grad_1(
            (programs,), x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, T, P, x_t_stride, x_h_stride,
            cos_p_stride, sin_p_stride, rstd_t_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride, d_x_h_stride,
            sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride
        )
    programs = 32 * 4
    if programs > 0:
        kernels.qk_norm_grad_2(
            (programs,), partials, sum_of_piece1, T, partials_h_stride, sum_of_piece1_t_piece_stride,
            sum_of_piece1_h_stride
        )
    programs = ((128 + 31) // 32)
    if programs > 0:
        kernels.qk_norm_grad_3((programs,), partials, d_weight, partials_h_stride)
