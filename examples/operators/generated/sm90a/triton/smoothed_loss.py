"""smoothed_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: bd50af97bab9ad47
schedule: tiles 1, 2 warps, 1 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[7:6] V.lane[2:0]
inputs:
  logits: bf16 [T, V=128256]
  targets: i64 [T]
outputs:
  loss: f32 [T]
  lse: f32 [T]
scalars:
  smoothing: f32
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def max_over_v_lane(x):
    # The max over V.lane: no order changes it.
    x = tl.max(x, 3)
    x = tl.max(x, 0)
    x = tl.max(x, 1)
    return tl.reshape(x, (1, 8, 1, 1))


@triton.jit
def sum_over_v_lane(x):
    # The sum over V.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 2, 8, 8, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 8, 8, 8)), 0)
    x = tl.sum(tl.reshape(x, (8, 2, 4, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (8, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (8, 2)), 1)
    return tl.reshape(x, (1, 8, 1, 1))


@triton.jit
def merge_softmax_sum(m_a, l_a, m_b, l_b):
    # The state of two disjoint sets: softmax_sum().
    m = tl.maximum(m_a, m_b)
    is_empty = m == float("-inf")
    m_safe = tl.where(is_empty, 0.0, m)
    alpha_a_distance = m_a - m_safe
    alpha_a_exponent = alpha_a_distance * 1.442695
    alpha_a = tl.exp2(alpha_a_exponent)
    is_empty_2 = m == float("-inf")
    m_safe_2 = tl.where(is_empty_2, 0.0, m)
    alpha_b_distance = m_b - m_safe_2
    alpha_b_exponent = alpha_b_distance * 1.442695
    alpha_b = tl.exp2(alpha_b_exponent)
    l_a_scaled = l_a * alpha_a
    l_b_scaled = l_b * alpha_b
    l = l_a_scaled + l_b_scaled
    return m, l


@triton.jit
def softmax_sum_over_v_piece(m, l):
    # The states merged over V.piece, pairwise: two terms at a time, so that no layout chooses.
    m, l = tl.reduce((tl.reshape(m, (4, 2)), tl.reshape(l, (4, 2))), 1, merge_softmax_sum)
    m, l = tl.reduce((tl.reshape(m, (2, 2)), tl.reshape(l, (2, 2))), 1, merge_softmax_sum)
    m, l = tl.reduce((tl.reshape(m, (2,)), tl.reshape(l, (2,))), 0, merge_softmax_sum)
    return m, l


@triton.jit
def merge_total(total_a, total_b):
    # The state of two disjoint sets: total().
    total = total_a + total_b
    return total


@triton.jit
def total_over_v_piece(total):
    # The states merged over V.piece, pairwise: two terms at a time, so that no layout chooses.
    total = tl.reduce(tl.reshape(total, (4, 2)), 1, merge_total)
    total = tl.reduce(tl.reshape(total, (2, 2)), 1, merge_total)
    total = tl.reduce(tl.reshape(total, (2,)), 0, merge_total)
    return total


@triton.jit
def portable_log(x):
    # Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN.
    f0 = x * 8388608.0
    f1 = tl.where((x < 1.1754944e-38), f0, x)
    i2 = f1.to(tl.int32, bitcast=True)
    i3 = i2 - 1061158912
    i4 = i3 >> 23
    i5 = i4 << 23
    i6 = i2 - i5
    f7 = i6.to(tl.float32, bitcast=True)
    f8 = f7 - 1.0
    f9 = i4.to(tl.float32)
    f10 = tl.where((x < 1.1754944e-38), -23.0, 0.0)
    f11 = f9 + f10
    f12 = tl.fma(-0.045135185, f8, 0.10471279)
    f13 = tl.fma(f12, f8, -0.13164203)
    f14 = tl.fma(f13, f8, 0.14478002)
    f15 = tl.fma(f14, f8, -0.16646925)
    f16 = tl.fma(f15, f8, 0.19990832)
    f17 = tl.fma(f16, f8, -0.25000107)
    f18 = tl.fma(f17, f8, 0.3333345)
    f19 = tl.fma(f18, f8, -0.5)
    f20 = f8 * f8
    f21 = tl.fma(f19, f20, f8)
    f22 = tl.fma(f11, 0.6931472, f21)
    f23 = tl.where((x < float("inf")), f22, x)
    f24 = tl.where((x == 0.0), float("-inf"), f23)
    f25 = tl.where((x < 0.0), float("nan"), f24)
    return f25


@triton.jit
def smoothed_loss(logits_ptr, targets_ptr, loss_ptr, lse_ptr, logits_t_stride, smoothing):
    # A program owns 1 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0)
    targets = tl.load(targets_ptr + t)  # smoothed_loss.py:32
    targets_ge_0 = targets >= 0
    logits_guard_below = targets < 128256
    logits_guard = targets_ge_0 & logits_guard_below
    as_bf16 = tl.full((), float("nan"), tl.float32).to(tl.bfloat16)
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + targets, mask=logits_guard, other=as_bf16)
    v_piece = tl.arange(0, 8)[None, :, None, None]  # smoothed_loss.py:27
    piece_begin_product = v_piece * 16032
    piece_end_sum = piece_begin_product + 16032
    v_lane = (
        tl.arange(0, 4)[:, None, None, None] * 64 + tl.arange(0, 8)[None, None, :, None] * 8
        + tl.arange(0, 8)[None, None, None, :]
    )
    m = tl.full((1, 8, 1, 1), float("-inf"), tl.float32)
    l = tl.full((1, 8, 1, 1), negative_zero(), tl.float32)
    total = tl.full((1, 8, 1, 1), negative_zero(), tl.float32)
    for v_step in tl.range(0, 62):
        v_step_times_256 = v_step * 256
        v_begin = piece_begin_product + v_step_times_256
        v = v_begin + v_lane
        logits_2 = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v)  # smoothed_loss.py:28
        z = logits_2.to(tl.float32)
        m_chunk = max_over_v_lane(z)  # smoothed_loss.py:29
        is_empty = m_chunk == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_chunk)
        p_distance = z - m_safe
        p_exponent = p_distance * 1.442695
        p = tl.exp2(p_exponent)
        l_chunk = sum_over_v_lane(p)
        sum_v_lane = sum_over_v_lane(z)  # smoothed_loss.py:30
        m_2 = tl.maximum(m, m_chunk)  # smoothed_loss.py:29
        is_empty_2 = m_2 == float("-inf")
        m_safe_2 = tl.where(is_empty_2, 0.0, m_2)
        alpha_a_distance = m - m_safe_2
        alpha_a_exponent = alpha_a_distance * 1.442695
        alpha_a = tl.exp2(alpha_a_exponent)
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = alpha_b_distance * 1.442695
        alpha_b = tl.exp2(alpha_b_exponent)
        l_a_scaled = l * alpha_a
        l_b_scaled = l_chunk * alpha_b
        l_2 = l_a_scaled + l_b_scaled
        total_2 = total + sum_v_lane  # smoothed_loss.py:30
        m, l, total = m_2, l_2, total_2
    for v_step in tl.range(62, 63):  # smoothed_loss.py:27
        v_step_times_256 = v_step * 256
        v_begin = piece_begin_product + v_step_times_256
        v = v_begin + v_lane
        exists = v < piece_end_sum
        # smoothed_loss.py:28
        logits_2 = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=exists, other=0.0)
        z = logits_2.to(tl.float32)
        z_masked = tl.where(exists, z, float("-inf"))  # smoothed_loss.py:29
        m_chunk = max_over_v_lane(z_masked)
        is_empty = m_chunk == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_chunk)
        p_distance = z_masked - m_safe
        p_exponent = p_distance * 1.442695
        p = tl.exp2(p_exponent)
        l_chunk = sum_over_v_lane(p)
        z_masked_2 = tl.where(exists, z, negative_zero())  # smoothed_loss.py:30
        sum_v_lane = sum_over_v_lane(z_masked_2)
        m_2 = tl.maximum(m, m_chunk)  # smoothed_loss.py:29
        is_empty_2 = m_2 == float("-inf")
        m_safe_2 = tl.where(is_empty_2, 0.0, m_2)
        alpha_a_distance = m - m_safe_2
        alpha_a_exponent = alpha_a_distance * 1.442695
        alpha_a = tl.exp2(alpha_a_exponent)
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = alpha_b_distance * 1.442695
        alpha_b = tl.exp2(alpha_b_exponent)
        l_a_scaled = l * alpha_a
        l_b_scaled = l_chunk * alpha_b
        l_2 = l_a_scaled + l_b_scaled
        total_2 = total + sum_v_lane  # smoothed_loss.py:30
        m, l, total = m_2, l_2, total_2
    m_2, l_2 = softmax_sum_over_v_piece(m, l)  # smoothed_loss.py:29
    total_2 = total_over_v_piece(total)  # smoothed_loss.py:30
    log_l = portable_log(l_2)  # smoothed_loss.py:31
    lse = m_2 + log_l
    hit = logits.to(tl.float32)  # smoothed_loss.py:32
    level = tl.div_rn(total_2, 128256.0)  # smoothed_loss.py:33
    _1_minus_smoothing = 1.0 - smoothing  # smoothed_loss.py:34
    lse_minus_hit = lse - hit
    loss_product = _1_minus_smoothing * lse_minus_hit
    lse_minus_level = lse - level
    loss_product_2 = smoothing * lse_minus_level
    loss_value = loss_product + loss_product_2
    tl.store(loss_ptr + t, loss_value)
    tl.store(lse_ptr + t, lse)


def call(kernels, logits, targets, loss, lse, smoothing, T, logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.smoothed_loss((programs,), logits, targets, loss, lse, logits_t_stride, smoothing)
