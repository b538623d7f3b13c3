"""linear_logp on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 3b1bdfe160ebee9b
schedule: tiles T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles T=32, 8 warps, 1 stages, unroll 4
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
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
def max_over_v_lane(x):
    # The max over V.lane: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (128, 1))


@triton.jit
def sum_over_v_lane(x):
    # The sum over V.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (128, 2, 128)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 64)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 32)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 16)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (128, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (128, 2)), 1)
    return tl.reshape(x, (128, 1))


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


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
        (tl.reshape(m, (32, 4, 2)), tl.reshape(l, (32, 4, 2)), tl.reshape(centred, (32, 4, 2))), 2, merge_softmax_sum
    )
    m, l, centred = tl.reduce(
        (tl.reshape(m, (32, 2, 2)), tl.reshape(l, (32, 2, 2)), tl.reshape(centred, (32, 2, 2))), 2, merge_softmax_sum
    )
    m, l, centred = tl.reduce(
        (tl.reshape(m, (32, 2)), tl.reshape(l, (32, 2)), tl.reshape(centred, (32, 2))), 1, merge_softmax_sum
    )
    return tl.reshape(m, (32, 1)), tl.reshape(l, (32, 1)), tl.reshape(centred, (32, 1))


@triton.jit
def merge_total(total_a, total_b):
    # The state of two disjoint sets: total().
    total = total_a + total_b
    return total


@triton.jit
def total_over_v_piece(total):
    # The states merged over V.piece, pairwise: two terms at a time, so that no layout chooses.
    total = tl.reduce(tl.reshape(total, (32, 4, 2)), 2, merge_total)
    total = tl.reduce(tl.reshape(total, (32, 2, 2)), 2, merge_total)
    total = tl.reduce(tl.reshape(total, (32, 2)), 1, merge_total)
    return tl.reshape(total, (32, 1))


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
def linear_logp_1(
    hidden_ptr, weight_ptr, ids_ptr, max_of_step_ptr, sum_of_step1_ptr, centred_of_step2_ptr, sum_of_step3_ptr, T,
    hidden_t_stride, weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
    sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride, centred_of_step2_v_piece_stride,
    sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, inv_temperature, ignore_index
):
    # A program owns 1 of V.step, 1 of V.piece, 128 of T (stream_dot).
    tl.extra.cuda.gdc_wait()
    hidden_tiles = tl.make_tensor_descriptor(
        hidden_ptr, shape=[T, 4096], strides=[hidden_t_stride, 1], block_shape=[128, 64]
    )
    weight_tiles = tl.make_tensor_descriptor(
        weight_ptr, shape=[128256, 4096], strides=[weight_v_stride, 1], block_shape=[256, 64]
    )
    for program in tl.range(tl.program_id(0), 63 * 8 * ((T + 127) // 128), tl.num_programs(0)):
        band = 16 * 504
        band_first = program // band * 16
        band_rows = tl.minimum(((T + 127) // 128) - band_first, 16)
        t_first = (band_first + program % band % band_rows) * 128
        t = t_first + tl.arange(0, 128)[:, None]
        t_inside = t < T
        column = program % band // band_rows
        program_2 = column // 8
        v_piece = column % 8
        v_step = program_2
        ids = tl.load(ids_ptr + t, mask=t_inside, other=0)  # linear_logp.py:70
        piece_begin_product = v_piece * 16032  # linear_logp.py:74
        piece_begin = tl.minimum(piece_begin_product, 128256)
        piece_end_sum = piece_begin + 16032
        piece_end = tl.minimum(piece_end_sum, 128256)
        v_step_times_256 = v_step * 256
        v_begin = piece_begin + v_step_times_256
        v_lane = tl.arange(0, 256)[None, :]
        v = v_begin + v_lane
        in_range = v < piece_end
        active = ids != ignore_index  # logp.py:207
        exists = in_range & active  # linear_logp.py:74
        acc = tl.zeros((128, 256), tl.float32)  # linear_logp.py:75
        for d_first in tl.range(0, 4096, 64):
            hidden = hidden_tiles.load([t_first, d_first])
            weight = weight_tiles.load([v_begin, d_first])
            acc = tl.dot(hidden, weight.T, acc, max_num_imprecise_acc=1)
        z = acc * inv_temperature  # logp.py:57
        z_masked = tl.where(exists, z, float("-inf"))  # linear_logp.py:79
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
        selected_v_lane = tl.full((128, 1), negative_zero(), tl.float32)  # linear_logp.py:81
        ahead = ids - v_begin
        here = (ahead >= 0) & (ahead < 256)
        if tl.max(tl.reshape(here.to(tl.int32), (128,)), 0) > 0:
            v_i64 = v.to(tl.int64)
            sum_of_step3_equal = v_i64 == ids
            z_masked_2 = tl.where(sum_of_step3_equal, z, negative_zero())
            z_masked_3 = tl.where(exists, z_masked_2, negative_zero())
            selected_v_lane = sum_over_v_lane(z_masked_3)
        tl.store(  # linear_logp.py:74
            max_of_step_ptr + v_step.to(tl.int64) * max_of_step_v_step_stride
            + v_piece.to(tl.int64) * max_of_step_v_piece_stride + t,
            m_chunk, mask=t_inside
        )
        tl.store(
            sum_of_step1_ptr + v_step.to(tl.int64) * sum_of_step1_v_step_stride
            + v_piece.to(tl.int64) * sum_of_step1_v_piece_stride + t,
            l_chunk, mask=t_inside
        )
        tl.store(
            centred_of_step2_ptr + v_step.to(tl.int64) * centred_of_step2_v_step_stride
            + v_piece.to(tl.int64) * centred_of_step2_v_piece_stride + t,
            centred_chunk, mask=t_inside
        )
        tl.store(
            sum_of_step3_ptr + v_step.to(tl.int64) * sum_of_step3_v_step_stride
            + v_piece.to(tl.int64) * sum_of_step3_v_piece_stride + t,
            selected_v_lane, mask=t_inside
        )


@triton.jit
def linear_logp_2(
    ids_ptr, logp_ptr, lse_ptr, entropy_ptr, max_of_step_ptr, sum_of_step1_ptr, centred_of_step2_ptr, sum_of_step3_ptr,
    T, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride,
    centred_of_step2_v_step_stride, centred_of_step2_v_piece_stride, sum_of_step3_v_step_stride,
    sum_of_step3_v_piece_stride, errors_ptr, ignore_index
):
    # A program owns 32 of T (merge).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 32 + tl.arange(0, 32)[:, None]
    t_inside = t < T
    ids = tl.load(ids_ptr + t, mask=t_inside, other=0)  # linear_logp.py:70
    active = ids != ignore_index  # logp.py:207
    v_piece = tl.arange(0, 8)[None, :]  # linear_logp.py:74
    m = tl.full((32, 8), float("-inf"), tl.float32)
    l = tl.full((32, 8), 0.0, tl.float32)
    centred = tl.full((32, 8), negative_zero(), tl.float32)
    total = tl.full((32, 8), negative_zero(), tl.float32)
    for v_step_step in tl.range(0, 63, loop_unroll_factor=4):
        max_of_step = tl.load(
            max_of_step_ptr + v_step_step.to(tl.int64) * max_of_step_v_step_stride
            + v_piece.to(tl.int64) * max_of_step_v_piece_stride + t,
            mask=t_inside, other=0.0
        )
        sum_of_step1 = tl.load(
            sum_of_step1_ptr + v_step_step.to(tl.int64) * sum_of_step1_v_step_stride
            + v_piece.to(tl.int64) * sum_of_step1_v_piece_stride + t,
            mask=t_inside, other=0.0
        )
        centred_of_step2 = tl.load(
            centred_of_step2_ptr + v_step_step.to(tl.int64) * centred_of_step2_v_step_stride
            + v_piece.to(tl.int64) * centred_of_step2_v_piece_stride + t,
            mask=t_inside, other=0.0
        )
        sum_of_step3 = tl.load(
            sum_of_step3_ptr + v_step_step.to(tl.int64) * sum_of_step3_v_step_stride
            + v_piece.to(tl.int64) * sum_of_step3_v_piece_stride + t,
            mask=t_inside, other=0.0
        )
        m_2 = tl.maximum(m, max_of_step)  # linear_logp.py:79
        is_empty = m_2 == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_2)
        alpha_a_distance = m - m_safe
        alpha_a_exponent = alpha_a_distance * 1.442695
        alpha_a = tl.exp2(alpha_a_exponent)
        alpha_a_moved_by = tl.maximum(alpha_a_distance, -3.4028234663852886e+38)
        alpha_b_distance = max_of_step - m_safe
        alpha_b_exponent = alpha_b_distance * 1.442695
        alpha_b = tl.exp2(alpha_b_exponent)
        alpha_b_moved_by = tl.maximum(alpha_b_distance, -3.4028234663852886e+38)
        l_a_scaled = l * alpha_a
        l_b_scaled = sum_of_step1 * alpha_b
        l_2 = l_a_scaled + l_b_scaled
        centred_a_scaled = centred * alpha_a
        centred_b_scaled = centred_of_step2 * alpha_b
        centred_a_moved = tl.fma(l_a_scaled, alpha_a_moved_by, centred_a_scaled)
        centred_b_moved = tl.fma(l_b_scaled, alpha_b_moved_by, centred_b_scaled)
        centred_2 = centred_a_moved + centred_b_moved
        total_2 = total + sum_of_step3  # linear_logp.py:81
        m, l, centred, total = m_2, l_2, centred_2, total_2
    m_2, l_2, centred_2 = softmax_sum_over_v_piece(m, l, centred)  # linear_logp.py:79
    total_2 = total_over_v_piece(total)  # linear_logp.py:81
    ids_ge_0 = ids >= 0  # linear_logp.py:88
    inside_below = ids < 128256
    inside = ids_ge_0 & inside_below
    log_l = portable_log(l_2)  # linear_logp.py:93
    lse = m_2 + log_l
    hit_masked = tl.where(inside, total_2, float("nan"))  # linear_logp.py:94
    chosen = hit_masked - lse
    is_nan_chosen = chosen != chosen  # linear_logp.py:95
    both = active & is_nan_chosen
    bad_row = tl.where(both & t_inside, t + 1, 0)
    bad_row_2 = tl.max(tl.reshape(bad_row, (32,)), 0)
    tl.atomic_max(errors_ptr, 1, mask=bad_row_2 > 0, sem="relaxed")
    tl.atomic_max(errors_ptr + 1, bad_row_2, mask=bad_row_2 > 0, sem="relaxed")
    chosen_masked = tl.where(active, chosen, 0.0)  # linear_logp.py:97
    lse_masked = tl.where(active, lse, 0.0)  # linear_logp.py:98
    centred_over_l = tl.div_rn(centred_2, l_2)  # linear_logp.py:99
    entropy_difference = log_l - centred_over_l
    entropy_difference_masked = tl.where(active, entropy_difference, 0.0)
    tl.store(logp_ptr + t, chosen_masked, mask=t_inside)  # linear_logp.py:96
    tl.store(lse_ptr + t, lse_masked, mask=t_inside)
    tl.store(entropy_ptr + t, entropy_difference_masked, mask=t_inside)


def call(
    kernels, hidden, weight, ids, max_of_step, sum_of_step1, centred_of_step2, sum_of_step3, logp, lse, entropy,
    inv_temperature, ignore_index, T, hidden_t_stride, weight_v_stride, max_of_step_v_step_stride,
    max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride,
    centred_of_step2_v_piece_stride, sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, errors
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(63 * 8 * ((T + 127) // 128), 132)
    if programs > 0:
        kernels.linear_logp_1(
            (programs,), hidden, weight, ids, max_of_step, sum_of_step1, centred_of_step2, sum_of_step3, T,
            hidden_t_stride, weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride,
            sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride,
            centred_of_step2_v_piece_stride, sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, inv_temperature,
            ignore_index
        )
    programs = ((T + 31) // 32)
    if programs > 0:
        kernels.linear_logp_2(
            (programs,), ids, logp, lse, entropy, max_of_step, sum_of_step1, centred_of_step2, sum_of_step3, T,
            max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
            sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride, centred_of_step2_v_piece_stride,
            sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, errors, ignore_index
        )
