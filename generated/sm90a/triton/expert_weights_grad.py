"""expert_weights_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 435684e2f5e8f2aa
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  scores: bf16 [T, E=128]
  ids: i32 [T, K=8]
  d_weights: f32 [T, K=8]
outputs:
  d_scores: bf16 [T, E=128]
scalars:
  scale: f32
"""

import triton
import triton.language as tl


@triton.jit
def any_over_e(x):
    # The or over E: no order changes it.
    x = x.to(tl.int32)
    x = tl.max(x, 1)
    x = x != 0
    return tl.reshape(x, (8, 1))


@triton.jit
def max_over_e(x):
    # The max over E: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def portable_exp(x):
    # e**x, with gradual underflow.
    f0 = tl.minimum(x, 89.0)
    f1 = tl.maximum(f0, -104.0)
    f2 = tl.fma(f1, 1.442695, 12582912.0)
    f3 = f2 - 12582912.0
    f4 = tl.fma(f3, -0.6931472, f1)
    f5 = tl.fma(f3, 1.9046542e-09, f4)
    f6 = tl.fma(0.001381949, f5, 0.0083686905)
    f7 = tl.fma(f6, f5, 0.04166828)
    f8 = tl.fma(f7, f5, 0.16666521)
    f9 = tl.fma(f8, f5, 0.49999994)
    f10 = tl.fma(f9, f5, 1.0)
    f11 = tl.fma(f10, f5, 1.0)
    i12 = f2.to(tl.int32, bitcast=True)
    i13 = i12 - 1262485504
    i14 = i13 >> 1
    i15 = i14 << 23
    i16 = i15 + 1065353216
    f17 = i16.to(tl.float32, bitcast=True)
    i18 = i13 - i14
    i19 = i18 << 23
    i20 = i19 + 1065353216
    f21 = i20.to(tl.float32, bitcast=True)
    f22 = f11 * f17
    f23 = f22 * f21
    f24 = tl.where((x == x), f23, x)
    return f24


@triton.jit
def expert_weights_grad(
    scores_ptr, ids_ptr, d_weights_ptr, d_scores_ptr, T, scores_t_stride, ids_t_stride, d_weights_t_stride, errors_ptr,
    d_scores_t_stride, scale
):
    # A program owns 8 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 8 + tl.arange(0, 8)[:, None]
    t_inside = t < T
    e = tl.arange(0, 128)[None, :]  # moe.py:185
    scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + e, mask=t_inside, other=0.0)
    ids = tl.load(ids_ptr + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)  # moe.py:186
    ids_2 = tl.load(ids_ptr + 1 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_3 = tl.load(ids_ptr + 2 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_4 = tl.load(ids_ptr + 3 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_5 = tl.load(ids_ptr + 4 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_6 = tl.load(ids_ptr + 5 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_7 = tl.load(ids_ptr + 6 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_8 = tl.load(ids_ptr + 7 + t.to(tl.int64) * ids_t_stride, mask=t_inside, other=0)
    ids_ge_0 = ids >= 0  # moe.py:187
    ids_lt_128 = ids < 128
    scores_guard = ids_ge_0 & ids_lt_128
    as_bf16 = tl.full((), float("nan"), tl.float32).to(tl.bfloat16)
    scores_2 = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + ids, mask=scores_guard & t_inside, other=as_bf16)
    ids_ge_0_2 = ids_2 >= 0
    ids_lt_128_2 = ids_2 < 128
    scores_guard_2 = ids_ge_0_2 & ids_lt_128_2
    scores_3 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_2, mask=scores_guard_2 & t_inside, other=as_bf16
    )
    ids_ge_0_3 = ids_3 >= 0
    ids_lt_128_3 = ids_3 < 128
    scores_guard_3 = ids_ge_0_3 & ids_lt_128_3
    scores_4 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_3, mask=scores_guard_3 & t_inside, other=as_bf16
    )
    ids_ge_0_4 = ids_4 >= 0
    ids_lt_128_4 = ids_4 < 128
    scores_guard_4 = ids_ge_0_4 & ids_lt_128_4
    scores_5 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_4, mask=scores_guard_4 & t_inside, other=as_bf16
    )
    ids_ge_0_5 = ids_5 >= 0
    ids_lt_128_5 = ids_5 < 128
    scores_guard_5 = ids_ge_0_5 & ids_lt_128_5
    scores_6 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_5, mask=scores_guard_5 & t_inside, other=as_bf16
    )
    ids_ge_0_6 = ids_6 >= 0
    ids_lt_128_6 = ids_6 < 128
    scores_guard_6 = ids_ge_0_6 & ids_lt_128_6
    scores_7 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_6, mask=scores_guard_6 & t_inside, other=as_bf16
    )
    ids_ge_0_7 = ids_7 >= 0
    ids_lt_128_7 = ids_7 < 128
    scores_guard_7 = ids_ge_0_7 & ids_lt_128_7
    scores_8 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_7, mask=scores_guard_7 & t_inside, other=as_bf16
    )
    ids_ge_0_8 = ids_8 >= 0
    ids_lt_128_8 = ids_8 < 128
    scores_guard_8 = ids_ge_0_8 & ids_lt_128_8
    scores_9 = tl.load(
        scores_ptr + t.to(tl.int64) * scores_t_stride + ids_8, mask=scores_guard_8 & t_inside, other=as_bf16
    )
    d_weights = tl.load(d_weights_ptr + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)  # moe.py:214
    d_weights_2 = tl.load(d_weights_ptr + 1 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    d_weights_3 = tl.load(d_weights_ptr + 2 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    d_weights_4 = tl.load(d_weights_ptr + 3 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    d_weights_5 = tl.load(d_weights_ptr + 4 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    d_weights_6 = tl.load(d_weights_ptr + 5 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    d_weights_7 = tl.load(d_weights_ptr + 6 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    d_weights_8 = tl.load(d_weights_ptr + 7 + t.to(tl.int64) * d_weights_t_stride, mask=t_inside, other=0.0)
    x = scores.to(tl.float32)  # moe.py:185
    c = scores_2.to(tl.float32)  # moe.py:187
    c_2 = scores_3.to(tl.float32)
    c_3 = scores_4.to(tl.float32)
    c_4 = scores_5.to(tl.float32)
    c_5 = scores_6.to(tl.float32)
    c_6 = scores_7.to(tl.float32)
    c_7 = scores_8.to(tl.float32)
    c_8 = scores_9.to(tl.float32)
    ids_lt_0 = ids < 0  # moe.py:188
    ids_ge_128 = ids >= 128
    either = ids_lt_0 | ids_ge_128
    ids_lt_0_2 = ids_2 < 0
    ids_ge_128_2 = ids_2 >= 128
    either_2 = ids_lt_0_2 | ids_ge_128_2
    ids_lt_0_3 = ids_3 < 0
    ids_ge_128_3 = ids_3 >= 128
    either_3 = ids_lt_0_3 | ids_ge_128_3
    ids_lt_0_4 = ids_4 < 0
    ids_ge_128_4 = ids_4 >= 128
    either_4 = ids_lt_0_4 | ids_ge_128_4
    ids_lt_0_5 = ids_5 < 0
    ids_ge_128_5 = ids_5 >= 128
    either_5 = ids_lt_0_5 | ids_ge_128_5
    ids_lt_0_6 = ids_6 < 0
    ids_ge_128_6 = ids_6 >= 128
    either_6 = ids_lt_0_6 | ids_ge_128_6
    ids_lt_0_7 = ids_7 < 0
    ids_ge_128_7 = ids_7 >= 128
    either_7 = ids_lt_0_7 | ids_ge_128_7
    ids_lt_0_8 = ids_8 < 0
    ids_ge_128_8 = ids_8 >= 128
    either_8 = ids_lt_0_8 | ids_ge_128_8
    either_9 = either | either_2  # moe.py:189
    either_10 = either_9 | either_3
    either_11 = either_10 | either_4
    either_12 = either_11 | either_5
    either_13 = either_12 | either_6
    either_14 = either_13 | either_7
    either_15 = either_14 | either_8
    bad_row = tl.where(either_15 & t_inside, t + 1, 0)
    bad_row_2 = tl.max(tl.reshape(bad_row, (8,)), 0)
    tl.atomic_max(errors_ptr, 1, mask=bad_row_2 > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row_2, mask=bad_row_2 > 0, sem="relaxed")
    ids_le_ids = ids_2 <= ids  # moe.py:154
    ids_le_ids_2 = ids_3 <= ids_2
    ids_le_ids_3 = ids_4 <= ids_3
    ids_le_ids_4 = ids_5 <= ids_4
    ids_le_ids_5 = ids_6 <= ids_5
    ids_le_ids_6 = ids_7 <= ids_6
    ids_le_ids_7 = ids_8 <= ids_7
    either_16 = ids_le_ids | ids_le_ids_2  # moe.py:155
    either_17 = either_16 | ids_le_ids_3
    either_18 = either_17 | ids_le_ids_4
    either_19 = either_18 | ids_le_ids_5
    either_20 = either_19 | ids_le_ids_6
    either_21 = either_20 | ids_le_ids_7
    bad_row_3 = tl.where(either_21 & t_inside, t + 1, 0)
    bad_row_4 = tl.max(tl.reshape(bad_row_3, (8,)), 0)
    tl.atomic_max(errors_ptr, 2, mask=bad_row_4 > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row_4, mask=bad_row_4 > 0, sem="relaxed")
    is_nan_x = x != x  # moe.py:191
    any_e = any_over_e(is_nan_x)
    nan = tl.where(any_e, float("nan"), 0.0)
    largest = max_over_e(x)  # moe.py:195
    c_minus_largest = c - largest  # moe.py:196
    p = portable_exp(c_minus_largest)
    c_minus_largest_2 = c_2 - largest
    p_2 = portable_exp(c_minus_largest_2)
    c_minus_largest_3 = c_3 - largest
    p_3 = portable_exp(c_minus_largest_3)
    c_minus_largest_4 = c_4 - largest
    p_4 = portable_exp(c_minus_largest_4)
    c_minus_largest_5 = c_5 - largest
    p_5 = portable_exp(c_minus_largest_5)
    c_minus_largest_6 = c_6 - largest
    p_6 = portable_exp(c_minus_largest_6)
    c_minus_largest_7 = c_7 - largest
    p_7 = portable_exp(c_minus_largest_7)
    c_minus_largest_8 = c_8 - largest
    p_8 = portable_exp(c_minus_largest_8)
    p_plus_p = p + p_2  # moe.py:199
    total_sum = p_plus_p + p_3
    total_sum_2 = total_sum + p_4
    total_sum_3 = total_sum_2 + p_5
    total_sum_4 = total_sum_3 + p_6
    total_sum_5 = total_sum_4 + p_7
    total = total_sum_5 + p_8
    total_2 = total + nan  # moe.py:202
    b = tl.div_rn(p, total_2)  # moe.py:213
    b_2 = tl.div_rn(p_2, total_2)
    b_3 = tl.div_rn(p_3, total_2)
    b_4 = tl.div_rn(p_4, total_2)
    b_5 = tl.div_rn(p_5, total_2)
    b_6 = tl.div_rn(p_6, total_2)
    b_7 = tl.div_rn(p_7, total_2)
    b_8 = tl.div_rn(p_8, total_2)
    a = d_weights * scale  # moe.py:214
    a_2 = d_weights_2 * scale
    a_3 = d_weights_3 * scale
    a_4 = d_weights_4 * scale
    a_5 = d_weights_5 * scale
    a_6 = d_weights_6 * scale
    a_7 = d_weights_7 * scale
    a_8 = d_weights_8 * scale
    a_times_b = a * b  # moe.py:215
    a_times_b_2 = a_2 * b_2
    a_times_b_3 = a_3 * b_3
    a_times_b_4 = a_4 * b_4
    a_times_b_5 = a_5 * b_5
    a_times_b_6 = a_6 * b_6
    a_times_b_7 = a_7 * b_7
    a_times_b_8 = a_8 * b_8
    mean_sum = a_times_b + a_times_b_2
    mean_sum_2 = mean_sum + a_times_b_3
    mean_sum_3 = mean_sum_2 + a_times_b_4
    mean_sum_4 = mean_sum_3 + a_times_b_5
    mean_sum_5 = mean_sum_4 + a_times_b_6
    mean_sum_6 = mean_sum_5 + a_times_b_7
    mean = mean_sum_6 + a_times_b_8
    a_minus_mean = a - mean  # moe.py:216
    slope = b * a_minus_mean
    a_minus_mean_2 = a_2 - mean
    slope_2 = b_2 * a_minus_mean_2
    a_minus_mean_3 = a_3 - mean
    slope_3 = b_3 * a_minus_mean_3
    a_minus_mean_4 = a_4 - mean
    slope_4 = b_4 * a_minus_mean_4
    a_minus_mean_5 = a_5 - mean
    slope_5 = b_5 * a_minus_mean_5
    a_minus_mean_6 = a_6 - mean
    slope_6 = b_6 * a_minus_mean_6
    a_minus_mean_7 = a_7 - mean
    slope_7 = b_7 * a_minus_mean_7
    a_minus_mean_8 = a_8 - mean
    slope_8 = b_8 * a_minus_mean_8
    d_x = mean - mean  # moe.py:219
    e_is_ids = e == ids  # moe.py:221
    d_x_2 = tl.where(e_is_ids, slope, d_x)
    e_is_ids_2 = e == ids_2
    d_x_3 = tl.where(e_is_ids_2, slope_2, d_x_2)
    e_is_ids_3 = e == ids_3
    d_x_4 = tl.where(e_is_ids_3, slope_3, d_x_3)
    e_is_ids_4 = e == ids_4
    d_x_5 = tl.where(e_is_ids_4, slope_4, d_x_4)
    e_is_ids_5 = e == ids_5
    d_x_6 = tl.where(e_is_ids_5, slope_5, d_x_5)
    e_is_ids_6 = e == ids_6
    d_x_7 = tl.where(e_is_ids_6, slope_6, d_x_6)
    e_is_ids_7 = e == ids_7
    d_x_8 = tl.where(e_is_ids_7, slope_7, d_x_7)
    e_is_ids_8 = e == ids_8
    d_x_9 = tl.where(e_is_ids_8, slope_8, d_x_8)
    d_x_bf16 = d_x_9.to(tl.bfloat16)  # moe.py:224
    tl.store(d_scores_ptr + t.to(tl.int64) * d_scores_t_stride + e, d_x_bf16, mask=t_inside)


def call(
    kernels, scores, ids, d_weights, d_scores, scale, T, scores_t_stride, ids_t_stride, d_weights_t_stride,
    d_scores_t_stride, errors
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.expert_weights_grad(
            (programs,), scores, ids, d_weights, d_scores, T, scores_t_stride, ids_t_stride, d_weights_t_stride, errors,
            d_scores_t_stride, scale
        )
