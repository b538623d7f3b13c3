"""expert_weights on sm_90a, written by rlk 0.1.0: do not edit.

numerics: d716a681413956c1
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  scores: bf16 [T, E=128]
  ids: i32 [T, K=8]
outputs:
  weights: f32 [T, K=8]
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
def expert_weights(
    scores_ptr, ids_ptr, weights_ptr, T, scores_t_stride, ids_t_stride, errors_ptr, weights_t_stride, scale
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
    p_over_total = tl.div_rn(p, total_2)  # moe.py:172
    w = scale * p_over_total
    p_over_total_2 = tl.div_rn(p_2, total_2)
    w_2 = scale * p_over_total_2
    p_over_total_3 = tl.div_rn(p_3, total_2)
    w_3 = scale * p_over_total_3
    p_over_total_4 = tl.div_rn(p_4, total_2)
    w_4 = scale * p_over_total_4
    p_over_total_5 = tl.div_rn(p_5, total_2)
    w_5 = scale * p_over_total_5
    p_over_total_6 = tl.div_rn(p_6, total_2)
    w_6 = scale * p_over_total_6
    p_over_total_7 = tl.div_rn(p_7, total_2)
    w_7 = scale * p_over_total_7
    p_over_total_8 = tl.div_rn(p_8, total_2)
    w_8 = scale * p_over_total_8
    tl.store(weights_ptr + t.to(tl.int64) * weights_t_stride, w, mask=t_inside)  # moe.py:173
    tl.store(weights_ptr + 1 + t.to(tl.int64) * weights_t_stride, w_2, mask=t_inside)
    tl.store(weights_ptr + 2 + t.to(tl.int64) * weights_t_stride, w_3, mask=t_inside)
    tl.store(weights_ptr + 3 + t.to(tl.int64) * weights_t_stride, w_4, mask=t_inside)
    tl.store(weights_ptr + 4 + t.to(tl.int64) * weights_t_stride, w_5, mask=t_inside)
    tl.store(weights_ptr + 5 + t.to(tl.int64) * weights_t_stride, w_6, mask=t_inside)
    tl.store(weights_ptr + 6 + t.to(tl.int64) * weights_t_stride, w_7, mask=t_inside)
    tl.store(weights_ptr + 7 + t.to(tl.int64) * weights_t_stride, w_8, mask=t_inside)


def call(kernels, scores, ids, weights, scale, T, scores_t_stride, ids_t_stride, weights_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.expert_weights(
            (programs,), scores, ids, weights, T, scores_t_stride, ids_t_stride, errors, weights_t_stride, scale
        )
