"""qk_norm_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 07fb4bd4ba8fc3c3
schedule: tiles 1, 1 warps, 3 stages, unroll 1
schedule: tiles E=32, 1 warps, 1 stages, unroll 64
schedule: tiles E=32, 1 warps, 1 stages, unroll 32
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

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_over_e(x):
    # The sum over E, vector8: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (16, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (16, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (16, 2)), 1)
    x = tl.sum(tl.reshape(x, (2, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 4)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2,)), 0)
    return x


@triton.jit
def qk_norm_grad_1(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, position_ids_ptr, rstd_ptr, d_y_ptr, d_x_ptr, sum_of_piece1_ptr, T, P,
    rstd_t_stride, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride,
    d_x_h_stride, sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride
):
    # A program owns 1 of T.piece, 1 of H (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 32
    h = program % 32
    t_piece = program_2
    e = tl.arange(0, 128)  # norm.py:16
    weight = tl.load(weight_ptr + e)
    w = weight.to(tl.float32)
    t_piece_times_64 = t_piece * 64  # heads.py:139
    piece_begin = tl.minimum(T, t_piece_times_64)
    piece_begin_plus_64 = piece_begin + 64
    piece_end = tl.minimum(T, piece_begin_plus_64)
    piece_end_minus_piece_begin = piece_end - piece_begin
    ahead = e < 64  # heads.py:71
    e_minus_64 = e - 64  # heads.py:72
    angle = tl.where(ahead, e, e_minus_64)
    e_plus_64 = e + 64
    partner = tl.where(ahead, e_plus_64, e_minus_64)
    P_i64 = P.to(tl.int64)  # heads.py:77
    angle_ge_0 = angle >= 0
    angle_lt_64 = angle < 64
    cos_guard = angle_ge_0 & angle_lt_64
    total = tl.full((128,), negative_zero(), tl.float32)  # heads.py:139
    for t_step in tl.range(0, piece_end_minus_piece_begin, num_stages=3):
        t = piece_begin + t_step
        rstd = tl.load(rstd_ptr + t.to(tl.int64) * rstd_t_stride + h)  # heads.py:140
        position_ids = tl.load(position_ids_ptr + t)  # heads.py:158
        x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + h.to(tl.int64) * x_h_stride + e)  # heads.py:141
        position_ids_ge_0 = position_ids >= 0  # heads.py:77
        cos_guard_below = position_ids < P_i64
        cos_guard_2 = position_ids_ge_0 & cos_guard_below
        cos_guard_3 = cos_guard_2 & cos_guard
        cos = tl.load(cos_ptr + position_ids * cos_p_stride + angle, mask=cos_guard_3, other=float("nan"))
        sin = tl.load(sin_ptr + position_ids * sin_p_stride + angle, mask=cos_guard_3, other=float("nan"))
        d_y = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + h.to(tl.int64) * d_y_h_stride + partner)  # heads.py:160
        d_y_2 = tl.load(d_y_ptr + t.to(tl.int64) * d_y_t_stride + h.to(tl.int64) * d_y_h_stride + e)  # heads.py:161
        x_f32 = x.to(tl.float32)  # heads.py:141
        n = x_f32 * rstd
        other = d_y.to(tl.float32)  # heads.py:160
        own = d_y_2.to(tl.float32)  # heads.py:161
        neg_sin = sin * -1.0  # heads.py:82
        turned = other * neg_sin
        own_times_cos = own * cos  # heads.py:83
        neg_turned = turned * -1.0
        made_selected = tl.where(ahead, neg_turned, turned)
        made = own_times_cos + made_selected
        made_bf16 = made.to(tl.bfloat16)  # heads.py:84
        g = made_bf16.to(tl.float32)  # heads.py:161
        gw = g * w  # heads.py:144
        gw_times_n = gw * n  # heads.py:145
        sum_e = sum_over_e(gw_times_n)
        mean = tl.div_rn(sum_e, 128.0)
        n_times_mean = n * mean  # heads.py:146
        d_x_difference = gw - n_times_mean
        d_x_product = d_x_difference * rstd
        d_x_product_bf16 = d_x_product.to(tl.bfloat16)
        tl.store(d_x_ptr + t.to(tl.int64) * d_x_t_stride + h.to(tl.int64) * d_x_h_stride + e, d_x_product_bf16)
        n_bf16 = n.to(tl.bfloat16)  # heads.py:148
        n_bf16_f32 = n_bf16.to(tl.float32)
        total_product = g * n_bf16_f32
        total_2 = total + total_product
        total = total_2
    tl.store(  # heads.py:139
        sum_of_piece1_ptr + t_piece.to(tl.int64) * sum_of_piece1_t_piece_stride
        + h.to(tl.int64) * sum_of_piece1_h_stride + e,
        total
    )


@triton.jit
def qk_norm_grad_2(
    partials_ptr, sum_of_piece1_ptr, T, sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride, partials_h_stride
):
    # A program owns 1 of H, 32 of E (merge).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 4
    e = (program % 4) * 32 + tl.arange(0, 32)
    h = program_2
    dw = tl.full((32,), negative_zero(), tl.float32)  # heads.py:139
    for t_piece_step in tl.range(0, ((T + 63) // 64), loop_unroll_factor=64):
        sum_of_piece1 = tl.load(
            sum_of_piece1_ptr + t_piece_step.to(tl.int64) * sum_of_piece1_t_piece_stride
            + h.to(tl.int64) * sum_of_piece1_h_stride + e
        )
        total = dw + sum_of_piece1  # heads.py:148
        dw = total
    tl.store(partials_ptr + h.to(tl.int64) * partials_h_stride + e, dw)  # heads.py:151


@triton.jit
def qk_norm_grad_3(partials_ptr, d_weight_ptr, partials_h_stride):
    # A program owns 32 of E (merge).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    e = tl.program_id(0) * 32 + tl.arange(0, 32)
    total = tl.full((32,), negative_zero(), tl.float32)  # heads.py:167
    for h_step in tl.range(0, 32, loop_unroll_factor=32):
        partials = tl.load(partials_ptr + h_step.to(tl.int64) * partials_h_stride + e)  # heads.py:168
        total_2 = total + partials
        total = total_2
    total_bf16 = total.to(tl.bfloat16)  # heads.py:151
    tl.store(d_weight_ptr + e, total_bf16)


def call(
    kernels, x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, partials, d_weight, T, P, rstd_t_stride,
    x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride, d_x_h_stride,
    sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride, partials_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 63) // 64) * 32
    if programs > 0:
        kernels.qk_norm_grad_1(
            (programs,), x, weight, cos, sin, position_ids, rstd, d_y, d_x, sum_of_piece1, T, P, rstd_t_stride,
            x_t_stride, x_h_stride, cos_p_stride, sin_p_stride, d_y_t_stride, d_y_h_stride, d_x_t_stride, d_x_h_stride,
            sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride
        )
    programs = 32 * 4
    if programs > 0:
        kernels.qk_norm_grad_2(
            (programs,), partials, sum_of_piece1, T, sum_of_piece1_t_piece_stride, sum_of_piece1_h_stride,
            partials_h_stride
        )
    programs = 4
    if programs > 0:
        kernels.qk_norm_grad_3((programs,), partials, d_weight, partials_h_stride)
