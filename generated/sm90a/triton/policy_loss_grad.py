"""policy_loss_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 06eb7cb1eb76f541
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
inputs:
  logp: f32 [T]
  old_logp: f32 [T]
  advantages: f32 [B]
  ref_logp: f32 [T]
  active: bool [T]
  sequence: i32 [T]
  count: i32
  d_loss: f32
outputs:
  d_logp: f32 [T]
scalars:
  beta: f32
  surrogate_least: f32
  surrogate_most: f32
"""

import triton
import triton.language as tl


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
def portable_expm1(x):
    # e**x - 1, accurate near 0; expm1(-0) = -0.
    f0 = tl.minimum(x, 89.0)
    f1 = tl.maximum(f0, -30.0)
    f2 = tl.fma(f1, 1.442695, 12582912.0)
    f3 = f2 - 12582912.0
    f4 = f2 - 12582912.0
    f5 = tl.fma(f4, -0.6931472, f1)
    f6 = tl.fma(f4, 1.9046542e-09, f5)
    f7 = f6 + 0.5
    f8 = tl.where((f3 == 1.0), f7, f6)
    f9 = tl.fma(0.00019764257, f6, 0.0013932347)
    f10 = tl.fma(f9, f6, 0.008333543)
    f11 = tl.fma(f10, f6, 0.041666493)
    f12 = tl.fma(f11, f6, 0.16666666)
    f13 = tl.fma(f12, f6, 0.5)
    f14 = f6 * f6
    f15 = tl.fma(f13, f14, f8)
    i16 = f2.to(tl.int32, bitcast=True)
    i17 = i16 << 23
    i18 = i17 + 1056964608
    f19 = i18.to(tl.float32, bitcast=True)
    f20 = f19 - 0.5
    f21 = f19 - f20
    f22 = f21 - 0.5
    f23 = tl.fma(f15, f19, f22)
    f24 = f23 + f20
    f25 = tl.where((f3 == 1.0), f15, f24)
    f26 = f25 + f25
    f27 = tl.where((f3 == 0.0), f15, f26)
    i28 = x.to(tl.int32, bitcast=True)
    i29 = i28 & 2147483647
    f30 = i29.to(tl.float32, bitcast=True)
    f31 = tl.where((0.0 < f30), f27, x)
    return f31


@triton.jit
def policy_loss_grad(
    logp_ptr, old_logp_ptr, advantages_ptr, ref_logp_ptr, active_ptr, sequence_ptr, count_ptr, d_loss_ptr, d_logp_ptr,
    T, B, beta, surrogate_least, surrogate_most
):
    # A program owns 2048 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    t_inside = t < T // 16 * 16
    d_loss = tl.load(d_loss_ptr)  # policy.py:707
    count = tl.load(count_ptr)  # policy.py:550
    active = tl.load(active_ptr + t, mask=t_inside, other=0)  # policy.py:140
    sequence = tl.load(sequence_ptr + t, mask=t_inside, other=0)
    sequence_ge_0 = sequence >= 0  # policy.py:146
    sequence_lt_B = sequence < B
    advantages_guard = sequence_ge_0 & sequence_lt_B
    advantages = tl.load(advantages_ptr + sequence, mask=advantages_guard & t_inside, other=0.0)
    logp = tl.load(logp_ptr + t, mask=t_inside, other=0.0)  # policy.py:140
    old_logp = tl.load(old_logp_ptr + t, mask=t_inside, other=0.0)
    ref_logp = tl.load(ref_logp_ptr + t, mask=t_inside, other=0.0)
    count_max_1 = tl.maximum(count, 1)  # policy.py:550
    denominator = count_max_1.to(tl.float32)
    scale = tl.div_rn(d_loss, denominator)  # policy.py:560
    log_ratio = logp - old_logp  # policy.py:191
    ratio = portable_exp(log_ratio)  # policy.py:369
    advantages_is_0 = advantages == 0.0  # policy.py:371
    ratio_2 = tl.where(advantages_is_0, 1.0, ratio)
    ratio_times_advantages = ratio_2 * advantages  # surrogates.py:58
    plain = ratio_times_advantages * -1.0
    bounded = tl.maximum(ratio_2, surrogate_least)  # surrogates.py:61
    bounded_2 = tl.minimum(bounded, surrogate_most)  # surrogates.py:63
    bounded_times_advantages = bounded_2 * advantages  # surrogates.py:64
    limited = bounded_times_advantages * -1.0
    plain_lt_limited = plain < limited  # surrogates.py:67
    flows = ~plain_lt_limited
    advantages_not_0 = advantages != 0.0  # surrogates.py:76
    slope_both = flows & advantages_not_0
    slope = tl.where(slope_both, plain, 0.0)
    raw = ref_logp - logp  # policy.py:331
    expm1_raw = portable_expm1(raw)  # loss.py:36
    slope_2 = expm1_raw * -1.0
    by_logp = beta * slope_2  # policy.py:386
    slope_3 = slope + by_logp  # policy.py:457
    scale_times_slope = scale * slope_3  # policy.py:619
    d_logp = tl.where(active, scale_times_slope, 0.0)  # policy.py:600
    tl.store(d_logp_ptr + t, d_logp, mask=t_inside)  # policy.py:602
    if tl.program_id(0) == T // 2048:
        t_2 = T // 16 * 16 + tl.arange(0, 16)
        t_inside_2 = t_2 < T
        active_2 = tl.load(active_ptr + t_2, mask=t_inside_2, other=0)  # policy.py:140
        sequence_2 = tl.load(sequence_ptr + t_2, mask=t_inside_2, other=0)
        sequence_ge_0_2 = sequence_2 >= 0  # policy.py:146
        sequence_lt_B_2 = sequence_2 < B
        advantages_guard_2 = sequence_ge_0_2 & sequence_lt_B_2
        advantages_2 = tl.load(advantages_ptr + sequence_2, mask=advantages_guard_2 & t_inside_2, other=0.0)
        logp_2 = tl.load(logp_ptr + t_2, mask=t_inside_2, other=0.0)  # policy.py:140
        old_logp_2 = tl.load(old_logp_ptr + t_2, mask=t_inside_2, other=0.0)
        ref_logp_2 = tl.load(ref_logp_ptr + t_2, mask=t_inside_2, other=0.0)
        log_ratio_2 = logp_2 - old_logp_2  # policy.py:191
        ratio_3 = portable_exp(log_ratio_2)  # policy.py:369
        advantages_is_0_2 = advantages_2 == 0.0  # policy.py:371
        ratio_4 = tl.where(advantages_is_0_2, 1.0, ratio_3)
        ratio_times_advantages_2 = ratio_4 * advantages_2  # surrogates.py:58
        plain_2 = ratio_times_advantages_2 * -1.0
        bounded_3 = tl.maximum(ratio_4, surrogate_least)  # surrogates.py:61
        bounded_4 = tl.minimum(bounded_3, surrogate_most)  # surrogates.py:63
        bounded_times_advantages_2 = bounded_4 * advantages_2  # surrogates.py:64
        limited_2 = bounded_times_advantages_2 * -1.0
        plain_lt_limited_2 = plain_2 < limited_2  # surrogates.py:67
        flows_2 = ~plain_lt_limited_2
        advantages_not_0_2 = advantages_2 != 0.0  # surrogates.py:76
        slope_both_2 = flows_2 & advantages_not_0_2
        slope_4 = tl.where(slope_both_2, plain_2, 0.0)
        raw_2 = ref_logp_2 - logp_2  # policy.py:331
        expm1_raw_2 = portable_expm1(raw_2)  # loss.py:36
        slope_5 = expm1_raw_2 * -1.0
        by_logp_2 = beta * slope_5  # policy.py:386
        slope_6 = slope_4 + by_logp_2  # policy.py:457
        scale_times_slope_2 = scale * slope_6  # policy.py:619
        d_logp_2 = tl.where(active_2, scale_times_slope_2, 0.0)  # policy.py:600
        tl.store(d_logp_ptr + t_2, d_logp_2, mask=t_inside_2)  # policy.py:602


def call(
    kernels, logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, beta, surrogate_least,
    surrogate_most, T, B
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.policy_loss_grad(
            (programs,), logp, old_logp, advantages, ref_logp, active, sequence, count, d_loss, d_logp, T, B, beta,
            surrogate_least, surrogate_most
        )
