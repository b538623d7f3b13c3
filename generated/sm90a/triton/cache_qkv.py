"""cache_qkv on sm_90a, written by rlk 0.1.0: do not edit.

numerics: cfab151da164a14e
schedule: tiles J=8, 2 warps, 1 stages, unroll 1
inputs:
  qkv: bf16 [T, J=48, E=128]
  slots: i64 [T]
  q_weight: bf16 [E=128]
  k_weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  q_out: bf16 [T, H=32, E=128]
  k_out: bf16 [B, O, G=8, E=128]
  v_out: bf16 [B, O, G=8, E=128]
scalars:
  eps: f32
"""

import triton
import triton.language as tl


@triton.jit
def sum_over_e(x):
    # The sum over E, vector8: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (8, 16, 2, 4)), 2)
    x = tl.sum(tl.reshape(x, (8, 16, 2, 2)), 2)
    x = tl.sum(tl.reshape(x, (8, 16, 2)), 2)
    x = tl.sum(tl.reshape(x, (8, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (8, 2)), 1)
    return tl.reshape(x, (8, 1))


@triton.jit
def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    f0 = x * 16777216.0
    f1 = tl.where((x < 1.1754944e-38), f0, x)
    i2 = f1.to(tl.int32, bitcast=True)
    i3 = i2 >> 1
    i4 = 1595932665 - i3
    f5 = i4.to(tl.float32, bitcast=True)
    f6 = f5 * -0.70395225
    f7 = f1 * f5
    f8 = tl.fma(f7, f5, -2.3892446)
    f9 = f6 * f8
    f10 = f1 * f9
    f11 = tl.fma(f10, f9, -1.0)
    f12 = f9 * f11
    f13 = tl.fma(f11, 0.375, -0.5)
    f14 = tl.fma(f12, f13, f9)
    f15 = tl.where((x < 1.1754944e-38), 4096.0, 1.0)
    f16 = f14 * f15
    f17 = tl.where((x == float("inf")), 0.0, x)
    f18 = tl.where((x < float("inf")), f16, f17)
    i19 = x.to(tl.int32, bitcast=True)
    i20 = i19 & -2147483648
    i21 = i20 | 2139095040
    f22 = i21.to(tl.float32, bitcast=True)
    f23 = tl.where((x == 0.0), f22, f18)
    f24 = tl.where((x < 0.0), float("nan"), f23)
    return f24


@triton.jit
def cache_qkv(
    qkv_ptr, slots_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, position_ids_ptr, q_out_ptr, k_out_ptr, v_out_ptr,
    qkv_t_stride, qkv_j_stride, P, cos_p_stride, sin_p_stride, O, B, errors_ptr, q_out_t_stride, q_out_h_stride,
    k_out_b_stride, k_out_o_stride, k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, eps
):
    # A program owns 1 of T, 8 of J (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 6
    j = (program % 6) * 8 + tl.arange(0, 8)[:, None]
    t = program_2
    position_ids = tl.load(position_ids_ptr + t)  # heads.py:277
    slots = tl.load(slots_ptr + t)  # heads.py:215
    e = tl.arange(0, 128)[None, :]  # heads.py:275
    qkv = tl.load(qkv_ptr + t.to(tl.int64) * qkv_t_stride + j.to(tl.int64) * qkv_j_stride + e)
    ahead = e < 64  # heads.py:71
    e_minus_64 = e - 64  # heads.py:72
    angle = tl.where(ahead, e, e_minus_64)
    e_plus_64 = e + 64
    partner = tl.where(ahead, e_plus_64, e_minus_64)
    position_ids_ge_0 = position_ids >= 0  # heads.py:77
    P_i64 = P.to(tl.int64)
    cos_guard_below = position_ids < P_i64
    cos_guard = position_ids_ge_0 & cos_guard_below
    angle_ge_0 = angle >= 0
    angle_lt_64 = angle < 64
    cos_guard_2 = angle_ge_0 & angle_lt_64
    cos_guard_3 = cos_guard & cos_guard_2
    cos = tl.load(cos_ptr + position_ids * cos_p_stride + angle, mask=cos_guard_3, other=float("nan"))
    sin = tl.load(sin_ptr + position_ids * sin_p_stride + angle, mask=cos_guard_3, other=float("nan"))
    qkv_2 = tl.load(qkv_ptr + t.to(tl.int64) * qkv_t_stride + j.to(tl.int64) * qkv_j_stride + partner)  # heads.py:278
    q_weight = tl.load(q_weight_ptr + e)  # heads.py:281
    k_weight = tl.load(k_weight_ptr + e)
    q_weight_2 = tl.load(q_weight_ptr + partner)  # heads.py:284
    k_weight_2 = tl.load(k_weight_ptr + partner)
    is_q = j < 32  # heads.py:274
    is_v = j >= 40
    made = qkv.to(tl.float32)  # heads.py:276
    other = qkv_2.to(tl.float32)  # heads.py:278
    made_times_made = made * made  # heads.py:88
    sum_e = sum_over_e(made_times_made)
    rstd_quotient = tl.div_rn(sum_e, 128.0)
    rstd_sum = rstd_quotient + eps
    rstd = portable_rsqrt(rstd_sum)
    weight = tl.where(is_q, q_weight, k_weight)  # heads.py:281
    n = made * rstd  # heads.py:93
    n_bf16 = n.to(tl.bfloat16)  # heads.py:95
    n_2 = n_bf16.to(tl.float32)
    weight_f32 = weight.to(tl.float32)  # norm.py:16
    made_product = n_2 * weight_f32  # heads.py:96
    made_product_bf16 = made_product.to(tl.bfloat16)
    made_2 = made_product_bf16.to(tl.float32)  # heads.py:282
    weight_2 = tl.where(is_q, q_weight_2, k_weight_2)  # heads.py:285
    n_3 = other * rstd  # heads.py:93
    n_bf16_2 = n_3.to(tl.bfloat16)  # heads.py:95
    n_4 = n_bf16_2.to(tl.float32)
    weight_f32_2 = weight_2.to(tl.float32)  # norm.py:16
    other_product = n_4 * weight_f32_2  # heads.py:96
    other_product_bf16 = other_product.to(tl.bfloat16)
    other_2 = other_product_bf16.to(tl.float32)  # heads.py:285
    turned = other_2 * sin  # heads.py:82
    made_times_cos = made_2 * cos  # heads.py:83
    neg_turned = turned * -1.0
    made_selected = tl.where(ahead, neg_turned, turned)
    made_3 = made_times_cos + made_selected
    turned_2 = made_3.to(tl.bfloat16)  # heads.py:84
    size = O.to(tl.int64)  # heads.py:215
    there = slots >= 0  # heads.py:216
    B_i64 = B.to(tl.int64)  # heads.py:217
    kept_product = B_i64 * size
    kept_below = slots < kept_product
    kept = there & kept_below
    below = slots < -1  # heads.py:218
    not_kept = ~kept
    both = there & not_kept
    either = below | both
    bad_row = tl.where(either, t + 1, 0)
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")
    at = tl.where(kept, slots, 0)  # heads.py:219
    at_over_size = at // size  # heads.py:220
    B_2 = at_over_size.to(tl.int32)
    at_mod_size = at % size
    O_2 = at_mod_size.to(tl.int32)
    # heads.py:288
    tl.store(q_out_ptr + t.to(tl.int64) * q_out_t_stride + j.to(tl.int64) * q_out_h_stride + e, turned_2, mask=is_q)
    j_minus_32 = j - 32  # heads.py:289
    not_is_q = ~is_q
    not_is_v = ~is_v
    k_out_guard = not_is_q & not_is_v
    k_out_guard_2 = k_out_guard & kept
    tl.store(
        k_out_ptr + B_2.to(tl.int64) * k_out_b_stride + O_2.to(tl.int64) * k_out_o_stride
        + j_minus_32.to(tl.int64) * k_out_g_stride + e,
        turned_2, mask=k_out_guard_2
    )
    j_minus_40 = j - 40  # heads.py:290
    v_out_guard = is_v & kept
    tl.store(
        v_out_ptr + B_2.to(tl.int64) * v_out_b_stride + O_2.to(tl.int64) * v_out_o_stride
        + j_minus_40.to(tl.int64) * v_out_g_stride + e,
        qkv, mask=v_out_guard
    )


def call(
    kernels, qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, eps, P, O, B, T, qkv_t_stride,
    qkv_j_stride, cos_p_stride, sin_p_stride, q_out_t_stride, q_out_h_stride, k_out_b_stride, k_out_o_stride,
    k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, errors
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 6
    if programs > 0:
        kernels.cache_qkv(
            (programs,), qkv, slots, q_weight, k_weight, cos, sin, position_ids, q_out, k_out, v_out, qkv_t_stride,
            qkv_j_stride, P, cos_p_stride, sin_p_stride, O, B, errors, q_out_t_stride, q_out_h_stride, k_out_b_stride,
            k_out_o_stride, k_out_g_stride, v_out_b_stride, v_out_o_stride, v_out_g_stride, eps
        )
