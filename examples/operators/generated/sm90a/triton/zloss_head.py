"""zloss_head on sm_90a, written by rlk 0.1.0: do not edit.

numerics: f94e51503483bc07
schedule: tiles T=128, 8 warps, 4 stages, unroll 1, depth 64, group 16, 132 programs
schedule: tiles T=32, 8 warps, 1 stages, unroll 8
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
  targets: i64 [T]
outputs:
  loss: f32 [T]
  lse: f32 [T]
scalars:
  z_weight: f32
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
    m, l = tl.reduce((tl.reshape(m, (32, 4, 2)), tl.reshape(l, (32, 4, 2))), 2, merge_softmax_sum)
    m, l = tl.reduce((tl.reshape(m, (32, 2, 2)), tl.reshape(l, (32, 2, 2))), 2, merge_softmax_sum)
    m, l = tl.reduce((tl.reshape(m, (32, 2)), tl.reshape(l, (32, 2))), 1, merge_softmax_sum)
    return tl.reshape(m, (32, 1)), tl.reshape(l, (32, 1))


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
def zloss_head_1(
    hidden_ptr, weight_ptr, targets_ptr, max_of_step_ptr, sum_of_step1_ptr, sum_of_step2_ptr, T, hidden_t_stride,
    weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
    sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
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
        piece_begin_product = v_piece * 16032  # zloss_head.py:26
        piece_begin = tl.minimum(piece_begin_product, 128256)
        piece_end_sum = piece_begin + 16032
        piece_end = tl.minimum(piece_end_sum, 128256)
        v_step_times_256 = v_step * 256
        v_begin = piece_begin + v_step_times_256
        v_lane = tl.arange(0, 256)[None, :]
        v = v_begin + v_lane
        exists = v < piece_end
        z = tl.zeros((128, 256), tl.float32)  # zloss_head.py:27
        for d_first in tl.range(0, 4096, 64):
            hidden = hidden_tiles.load([t_first, d_first])
            weight = weight_tiles.load([v_begin, d_first])
            z = tl.dot(hidden, weight.T, z, max_num_imprecise_acc=1)
        targets = tl.load(targets_ptr + t, mask=t_inside, other=0)  # zloss_head.py:29
        v_i64 = v.to(tl.int64)
        sum_of_step2_equal = v_i64 == targets
        z_masked = tl.where(sum_of_step2_equal, z, 0.0)
        z_masked_2 = tl.where(exists, z, float("-inf"))  # zloss_head.py:28
        m_chunk = max_over_v_lane(z_masked_2)
        is_empty = m_chunk == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_chunk)
        p_distance = z_masked_2 - m_safe
        p_exponent = p_distance * 1.442695
        p = tl.exp2(p_exponent)
        l_chunk = sum_over_v_lane(p)
        z_masked_3 = tl.where(exists, z_masked, negative_zero())  # zloss_head.py:29
        sum_v_lane = sum_over_v_lane(z_masked_3)
        tl.store(  # zloss_head.py:26
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
            sum_of_step2_ptr + v_step.to(tl.int64) * sum_of_step2_v_step_stride
            + v_piece.to(tl.int64) * sum_of_step2_v_piece_stride + t,
            sum_v_lane, mask=t_inside
        )


@triton.jit
def zloss_head_2(
    loss_ptr, lse_ptr, max_of_step_ptr, sum_of_step1_ptr, sum_of_step2_ptr, T, max_of_step_v_step_stride,
    max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride,
    sum_of_step2_v_piece_stride, z_weight
):
    # A program owns 32 of T (merge).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    t = tl.program_id(0) * 32 + tl.arange(0, 32)[:, None]
    t_inside = t < T
    v_piece = tl.arange(0, 8)[None, :]  # zloss_head.py:26
    m = tl.full((32, 8), float("-inf"), tl.float32)
    l = tl.full((32, 8), negative_zero(), tl.float32)
    total = tl.full((32, 8), negative_zero(), tl.float32)
    for v_step_step in tl.range(0, 63, loop_unroll_factor=8):
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
        sum_of_step2 = tl.load(
            sum_of_step2_ptr + v_step_step.to(tl.int64) * sum_of_step2_v_step_stride
            + v_piece.to(tl.int64) * sum_of_step2_v_piece_stride + t,
            mask=t_inside, other=0.0
        )
        m_2 = tl.maximum(m, max_of_step)  # zloss_head.py:28
        is_empty = m_2 == float("-inf")
        m_safe = tl.where(is_empty, 0.0, m_2)
        alpha_a_distance = m - m_safe
        alpha_a_exponent = alpha_a_distance * 1.442695
        alpha_a = tl.exp2(alpha_a_exponent)
        alpha_b_distance = max_of_step - m_safe
        alpha_b_exponent = alpha_b_distance * 1.442695
        alpha_b = tl.exp2(alpha_b_exponent)
        l_a_scaled = l * alpha_a
        l_b_scaled = sum_of_step1 * alpha_b
        l_2 = l_a_scaled + l_b_scaled
        total_2 = total + sum_of_step2  # zloss_head.py:29
        m, l, total = m_2, l_2, total_2
    m_2, l_2 = softmax_sum_over_v_piece(m, l)  # zloss_head.py:28
    total_2 = total_over_v_piece(total)  # zloss_head.py:29
    log_l = portable_log(l_2)  # zloss_head.py:30
    lse = m_2 + log_l
    lse_minus_hit = lse - total_2  # zloss_head.py:31
    lse_times_lse = lse * lse
    loss_product = z_weight * lse_times_lse
    loss_value = lse_minus_hit + loss_product
    tl.store(loss_ptr + t, loss_value, mask=t_inside)
    tl.store(lse_ptr + t, lse, mask=t_inside)


def call(
    kernels, hidden, weight, targets, max_of_step, sum_of_step1, sum_of_step2, loss, lse, z_weight, T, hidden_t_stride,
    weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
    sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = min(63 * 8 * ((T + 127) // 128), 132)
    if programs > 0:
        kernels.zloss_head_1(
            (programs,), hidden, weight, targets, max_of_step, sum_of_step1, sum_of_step2, T, hidden_t_stride,
            weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
            sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
        )
    programs = ((T + 31) // 32)
    if programs > 0:
        kernels.zloss_head_2(
            (programs,), loss, lse, max_of_step, sum_of_step1, sum_of_step2, T, max_of_step_v_step_stride,
            max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride,
            sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride, z_weight
        )
