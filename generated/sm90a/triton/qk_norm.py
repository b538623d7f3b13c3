"""qk_norm on sm_90a, written by rlk 0.1.0: do not edit.

numerics: b4cacf877e888f4d
schedule: tiles H=8, 2 warps, 1 stages, unroll 1
inputs:
  x: bf16 [T, H=32, E=128]
  weight: bf16 [E=128]
  cos: f32 [P, C=64]
  sin: f32 [P, C=64]
  position_ids: i64 [T]
outputs:
  y: bf16 [T, H=32, E=128]
  rstd: f32 [T, H=32]
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
def qk_norm(
    x_ptr, weight_ptr, cos_ptr, sin_ptr, position_ids_ptr, y_ptr, rstd_ptr, x_t_stride, x_h_stride, P, cos_p_stride,
    sin_p_stride, y_t_stride, y_h_stride, rstd_t_stride, eps
):
    # A program owns 1 of T, 8 of H (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    program_2 = program // 4
    h = (program % 4) * 8 + tl.arange(0, 8)[:, None]
    t = program_2
    position_ids = tl.load(position_ids_ptr + t)  # heads.py:123
    e = tl.arange(0, 128)[None, :]  # heads.py:119
    x = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + h.to(tl.int64) * x_h_stride + e)
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
    weight = tl.load(weight_ptr + e)  # norm.py:16
    x_2 = tl.load(x_ptr + t.to(tl.int64) * x_t_stride + h.to(tl.int64) * x_h_stride + partner)  # heads.py:125
    weight_2 = tl.load(weight_ptr + partner)  # heads.py:126
    h_2 = x.to(tl.float32)  # heads.py:119
    h_times_h = h_2 * h_2  # heads.py:88
    sum_e = sum_over_e(h_times_h)
    rstd_quotient = tl.div_rn(sum_e, 128.0)
    rstd_sum = rstd_quotient + eps
    rstd = portable_rsqrt(rstd_sum)
    n = h_2 * rstd  # heads.py:93
    n_bf16 = n.to(tl.bfloat16)  # heads.py:95
    n_2 = n_bf16.to(tl.float32)
    weight_f32 = weight.to(tl.float32)  # norm.py:16
    own_product = n_2 * weight_f32  # heads.py:96
    own_product_bf16 = own_product.to(tl.bfloat16)
    own = own_product_bf16.to(tl.float32)  # heads.py:124
    other = x_2.to(tl.float32)  # heads.py:125
    n_3 = other * rstd  # heads.py:93
    n_bf16_2 = n_3.to(tl.bfloat16)  # heads.py:95
    n_4 = n_bf16_2.to(tl.float32)
    weight_f32_2 = weight_2.to(tl.float32)  # norm.py:16
    other_product = n_4 * weight_f32_2  # heads.py:96
    other_product_bf16 = other_product.to(tl.bfloat16)
    other_2 = other_product_bf16.to(tl.float32)  # heads.py:126
    turned = other_2 * sin  # heads.py:82
    own_times_cos = own * cos  # heads.py:83
    neg_turned = turned * -1.0
    made_selected = tl.where(ahead, neg_turned, turned)
    made = own_times_cos + made_selected
    made_bf16 = made.to(tl.bfloat16)  # heads.py:84
    tl.store(y_ptr + t.to(tl.int64) * y_t_stride + h.to(tl.int64) * y_h_stride + e, made_bf16)  # heads.py:127
    tl.store(rstd_ptr + t.to(tl.int64) * rstd_t_stride + h, rstd)


def call(
    kernels, x, weight, cos, sin, position_ids, y, rstd, eps, P, T, x_t_stride, x_h_stride, cos_p_stride, sin_p_stride,
    y_t_stride, y_h_stride, rstd_t_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T * 4
    if programs > 0:
        kernels.qk_norm(
            (programs,), x, weight, cos, sin, position_ids, y, rstd, x_t_stride, x_h_stride, P, cos_p_stride,
            sin_p_stride, y_t_stride, y_h_stride, rstd_t_stride, eps
        )
