"""logp on sm_90a, written by rlk 0.1.0: do not edit.

numerics: c3ffa29cee66a130
schedule: tiles 1, 2 warps, 1 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[7:6] V.lane[2:0]
inputs:
  logits: bf16 [T, V=128256]
  ids: i64 [T]
outputs:
  logp: f32 [T]
  lse: f32 [T]
  entropy: f32 [T]
scalars:
  inv_temperature: f32
  ignore_index: i64
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
def merge_softmax_sum(m_a, l_a, centred_a, m_b, l_b, centred_b):
    # The state of two disjoint sets: centred softmax_sum().
    m = tl.maximum(m_a, m_b)
    is_empty = m == float("-inf")
    m_safe = tl.where(is_empty, 0.0, m)
    alpha_a_distance = m_a - m_safe
    alpha_a_exponent = alpha_a_distance * 1.442695
    alpha_a = tl.exp2(alpha_a_exponent)
    alpha_a_moved_by = tl.maximum(alpha_a_distance, -3.4028234663852886e+38)
    is_empty_2 = m == float("-inf")
    m_safe_2 = tl.where(is_empty_2, 0.0, m)
    alpha_b_distance = m_b - m_safe_2
    alpha_b_exponent = alpha_b_distance * 1.442695
    alpha_b = tl.exp2(alpha_b_exponent)
    alpha_b_moved_by = tl.maximum(alpha_b_distance, -3.4028234663852886e+38)
    l_a_scaled = l_a * alpha_a
    l_b_scaled = l_b * alpha_b
    l = l_a_scaled + l_b_scaled
    centred_a_scaled = centred_a * alpha_a
    centred_b_scaled = centred_b * alpha_b
    centred_a_moved = tl.fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
    centred_b_moved = tl.fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
    centred = centred_a_moved + centred_b_moved
    return m, l, centred


@triton.jit
def softmax_sum_over_v_piece(m, l, centred):
    # The states merged over V.piece, pairwise: two terms at a time, so that no layout chooses.
    m, l, centred = tl.reduce(
        (tl.reshape(m, (4, 2)), tl.reshape(l, (4, 2)), tl.reshape(centred, (4, 2))), 1, merge_softmax_sum
    )
    m, l, centred = tl.reduce(
        (tl.reshape(m, (2, 2)), tl.reshape(l, (2, 2)), tl.reshape(centred, (2, 2))), 1, merge_softmax_sum
    )
    m, l, centred = tl.reduce(
        (tl.reshape(m, (2,)), tl.reshape(l, (2,)), tl.reshape(centred, (2,))), 0, merge_softmax_sum
    )
    return m, l, centred


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
def logp(
    logits_ptr, ids_ptr, logp_ptr, lse_ptr, entropy_ptr, logits_t_stride, errors_ptr, inv_temperature, ignore_index
):
    # A program owns 1 of T (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0)
    ids = tl.load(ids_ptr + t)  # logp.py:141
    ids_ge_0 = ids >= 0  # logp.py:153
    logits_guard_below = ids < 128256
    logits_guard = ids_ge_0 & logits_guard_below
    as_bf16 = tl.full((), float("nan"), tl.float32).to(tl.bfloat16)
    logits = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + ids, mask=logits_guard, other=as_bf16)
    active = ids != ignore_index  # logp.py:207
    v_piece = tl.arange(0, 8)[None, :, None, None]  # logp.py:145
    piece_begin_product = v_piece * 16032
    piece_end_sum = piece_begin_product + 16032
    v_lane = (
        tl.arange(0, 4)[:, None, None, None] * 64 + tl.arange(0, 8)[None, None, :, None] * 8
        + tl.arange(0, 8)[None, None, None, :]
    )
    steps = tl.where(active, tl.full((), 63, tl.int32), 0)
    full_steps = tl.where(active, tl.full((), 62, tl.int32), 0)
    m = tl.full((1, 8, 1, 1), float("-inf"), tl.float32)
    l = tl.full((1, 8, 1, 1), 0.0, tl.float32)
    centred = tl.full((1, 8, 1, 1), negative_zero(), tl.float32)
    for v_step in tl.range(0, full_steps):
        v_step_times_256 = v_step * 256
        v_begin = piece_begin_product + v_step_times_256
        v = v_begin + v_lane
        logits_2 = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v)  # logp.py:146
        z = logits_2.to(tl.float32)  # logp.py:48
        z_2 = z * inv_temperature  # logp.py:57
        m_chunk = max_over_v_lane(z_2)  # logp.py:148
        is_empty = m_chunk == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_chunk)
        p_distance = z_2 - m_safe
        p_exponent = p_distance * 1.442695
        p = tl.exp2(p_exponent)
        p_moved_by = tl.maximum(p_distance, -3.4028234663852886e+38)
        p_times_p_moved_by = p * p_moved_by
        l_chunk = sum_over_v_lane(p)
        centred_chunk = sum_over_v_lane(p_times_p_moved_by)
        m_2 = tl.maximum(m, m_chunk)
        is_empty_2 = m_2 == float("-inf")
        m_safe_2 = tl.where(is_empty_2, 0.0, m_2)
        alpha_a_distance = m - m_safe_2
        alpha_a_exponent = alpha_a_distance * 1.442695
        alpha_a = tl.exp2(alpha_a_exponent)
        alpha_a_moved_by = tl.maximum(alpha_a_distance, -3.4028234663852886e+38)
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = alpha_b_distance * 1.442695
        alpha_b = tl.exp2(alpha_b_exponent)
        alpha_b_moved_by = tl.maximum(alpha_b_distance, -3.4028234663852886e+38)
        l_a_scaled = l * alpha_a
        l_b_scaled = l_chunk * alpha_b
        l_2 = l_a_scaled + l_b_scaled
        centred_a_scaled = centred * alpha_a
        centred_b_scaled = centred_chunk * alpha_b
        centred_a_moved = tl.fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
        centred_b_moved = tl.fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
        centred_2 = centred_a_moved + centred_b_moved
        m, l, centred = m_2, l_2, centred_2
    for v_step in tl.range(full_steps, steps):  # logp.py:145
        v_step_times_256 = v_step * 256
        v_begin = piece_begin_product + v_step_times_256
        v = v_begin + v_lane
        in_range = v < piece_end_sum
        exists = in_range & active
        logits_2 = tl.load(logits_ptr + t.to(tl.int64) * logits_t_stride + v, mask=exists, other=0.0)  # logp.py:146
        z = logits_2.to(tl.float32)  # logp.py:48
        z_2 = z * inv_temperature  # logp.py:57
        z_masked = tl.where(exists, z_2, float("-inf"))  # logp.py:148
        m_chunk = max_over_v_lane(z_masked)
        is_empty = m_chunk == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_chunk)
        p_distance = z_masked - m_safe
        p_exponent = p_distance * 1.442695
        p = tl.exp2(p_exponent)
        p_moved_by = tl.maximum(p_distance, -3.4028234663852886e+38)
        p_times_p_moved_by = p * p_moved_by
        l_chunk = sum_over_v_lane(p)
        centred_chunk = sum_over_v_lane(p_times_p_moved_by)
        m_2 = tl.maximum(m, m_chunk)
        is_empty_2 = m_2 == float("-inf")
        m_safe_2 = tl.where(is_empty_2, 0.0, m_2)
        alpha_a_distance = m - m_safe_2
        alpha_a_exponent = alpha_a_distance * 1.442695
        alpha_a = tl.exp2(alpha_a_exponent)
        alpha_a_moved_by = tl.maximum(alpha_a_distance, -3.4028234663852886e+38)
        alpha_b_distance = m_chunk - m_safe_2
        alpha_b_exponent = alpha_b_distance * 1.442695
        alpha_b = tl.exp2(alpha_b_exponent)
        alpha_b_moved_by = tl.maximum(alpha_b_distance, -3.4028234663852886e+38)
        l_a_scaled = l * alpha_a
        l_b_scaled = l_chunk * alpha_b
        l_2 = l_a_scaled + l_b_scaled
        centred_a_scaled = centred * alpha_a
        centred_b_scaled = centred_chunk * alpha_b
        centred_a_moved = tl.fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
        centred_b_moved = tl.fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
        centred_2 = centred_a_moved + centred_b_moved
        m, l, centred = m_2, l_2, centred_2
    m_2, l_2, centred_2 = softmax_sum_over_v_piece(m, l, centred)
    z = logits.to(tl.float32)  # logp.py:48
    hit = z * inv_temperature  # logp.py:57
    log_l = portable_log(l_2)  # logp.py:156
    lse = m_2 + log_l
    chosen = hit - lse  # logp.py:157
    is_nan_chosen = chosen != chosen  # logp.py:158
    both = active & is_nan_chosen
    bad_row = tl.where(both, t + 1, 0)
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")
    chosen_masked = tl.where(active, chosen, 0.0)  # logp.py:160
    lse_masked = tl.where(active, lse, 0.0)  # logp.py:161
    centred_over_l = tl.div_rn(centred_2, l_2)  # logp.py:162
    entropy_difference = log_l - centred_over_l
    entropy_difference_masked = tl.where(active, entropy_difference, 0.0)
    tl.store(logp_ptr + t, chosen_masked)  # logp.py:159
    tl.store(lse_ptr + t, lse_masked)
    tl.store(entropy_ptr + t, entropy_difference_masked)


def call(kernels, logits, ids, logp, lse, entropy, inv_temperature, ignore_index, T, logits_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.logp(
            (programs,), logits, ids, logp, lse, entropy, logits_t_stride, errors, inv_temperature, ignore_index
        )
