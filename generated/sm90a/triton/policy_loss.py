"""policy_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 519059d5f751f6a3
schedule: tiles 1, 4 warps, 1 stages, unroll 1, at most 80 registers, loads in levels
schedule: tiles 1, 4 warps, 1 stages, unroll 1
inputs:
  logp: f32 [T]
  old_logp: f32 [T]
  advantages: f32 [B]
  ref_logp: f32 [T]
  order: i32 [S]
  active: bool [T]
  sequence: i32 [T]
outputs:
  per_token: f32 [T]
  loss: f32
  count: i32
  clip_fraction: f32
  approx_kl: f32
scalars:
  beta: f32
  surrogate_least: f32
  surrogate_most: f32
"""

import triton
import triton.language as tl


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


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
def portable_k3(x):
    # e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative.
    f0 = tl.minimum(x, 89.0)
    f1 = tl.maximum(f0, -40.0)
    f2 = tl.fma(f1, 1.442695, 12582912.0)
    i3 = x.to(tl.int32, bitcast=True)
    i4 = i3 & 2147483647
    f5 = i4.to(tl.float32, bitcast=True)
    f6 = tl.where((f5 < 0.75), 12582912.0, f2)
    f7 = f6 - 12582912.0
    f8 = tl.fma(f7, -0.6931472, f1)
    f9 = tl.fma(f7, 1.9046542e-09, f8)
    f10 = f9 * f9
    f11 = tl.fma(2.6118526e-06, f9, 2.5040988e-05)
    f12 = tl.fma(f11, f9, 0.00019858872)
    f13 = tl.fma(f12, f9, 0.0013888375)
    f14 = tl.fma(f13, f9, 0.008333275)
    f15 = tl.fma(f14, f9, 0.041666668)
    f16 = tl.fma(f15, f9, 0.16666667)
    f17 = f9 * f16
    f18 = f10 * 0.5
    f19 = tl.fma(f10, f17, f18)
    i20 = f6.to(tl.int32, bitcast=True)
    i21 = i20 << 23
    i22 = i21 + 1056964608
    f23 = i22.to(tl.float32, bitcast=True)
    f24 = f23 - 0.5
    f25 = tl.fma(f0, -0.5, f24)
    f26 = tl.fma(f23, f9, f25)
    f27 = tl.fma(f23, f19, f26)
    f28 = f27 + f27
    f29 = tl.where((f5 < 0.75), f19, f28)
    f30 = tl.where((x == x), f29, x)
    return f30


@triton.jit
def sum_over_s_lane(x):
    # The sum over S.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 512)), 0)
    x = tl.sum(tl.reshape(x, (2, 256)), 0)
    x = tl.sum(tl.reshape(x, (2, 128)), 0)
    x = tl.sum(tl.reshape(x, (2, 64)), 0)
    x = tl.sum(tl.reshape(x, (2, 32)), 0)
    x = tl.sum(tl.reshape(x, (2, 16)), 0)
    x = tl.sum(tl.reshape(x, (2, 8)), 0)
    x = tl.sum(tl.reshape(x, (2, 4)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2,)), 0)
    return x


@triton.jit
def sum_over_s_lane_2(x):
    # The add over S.lane: no order changes it.
    x = tl.sum(x, 0)
    return x


@triton.jit
def sums_over_s_piece_lane(x, y):
    # The sums over S_piece.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.join(x, y)
    x = tl.sum(tl.reshape(x, (2, 2048, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 1024, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 512, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 256, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 128, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 64, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 32, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 16, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 8, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 4, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 2, 2)), 0)
    x = tl.sum(tl.reshape(x, (2, 2)), 0)
    return tl.split(x)


@triton.jit
def sum_over_s_piece_lane(x):
    # The add over S_piece.lane: no order changes it.
    x = tl.sum(x, 0)
    return x


@triton.jit
def policy_loss_1(
    logp_ptr, old_logp_ptr, advantages_ptr, ref_logp_ptr, order_ptr, active_ptr, sequence_ptr, per_token_ptr,
    sum_of_piece_ptr, sum_of_piece1_ptr, sum_of_piece2_ptr, sum_of_piece3_ptr, S, T, B, beta, surrogate_least,
    surrogate_most
):
    # A program owns 1 of S.piece (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    s_piece = tl.program_id(0)
    s_piece_times_1024 = s_piece * 1024  # loss.py:83
    piece_begin = tl.minimum(S, s_piece_times_1024)
    piece_begin_plus_1024 = piece_begin + 1024
    piece_end = tl.minimum(S, piece_begin_plus_1024)
    piece_end_minus_piece_begin = piece_end - piece_begin
    steps_sum = piece_end_minus_piece_begin + 1023
    steps = steps_sum // 1024
    full_steps = piece_end_minus_piece_begin // 1024
    s_lane = tl.max_contiguous(tl.arange(0, 1024), 1)
    total = negative_zero()
    total_2 = tl.full((), 0, tl.int32)
    total_3 = tl.full((), 0, tl.int32)
    total_4 = negative_zero()
    for s_step in tl.range(0, full_steps):
        s_step_times_1024 = s_step * 1024
        s_begin = piece_begin + s_step_times_1024
        s = s_begin + s_lane
        order = tl.load(order_ptr + s)  # loss.py:84
        tl.debug_barrier()
        order_ge_0 = order >= 0  # policy.py:140
        order_lt_T = order < T
        active_guard = order_ge_0 & order_lt_T
        active = tl.load(active_ptr + order, mask=active_guard, other=0)
        sequence = tl.load(sequence_ptr + order, mask=active_guard, other=0)
        logp = tl.load(logp_ptr + order, mask=active_guard, other=0.0)
        old_logp = tl.load(old_logp_ptr + order, mask=active_guard, other=0.0)
        ref_logp = tl.load(ref_logp_ptr + order, mask=active_guard, other=0.0)
        tl.debug_barrier()
        sequence_ge_0 = sequence >= 0  # policy.py:146
        sequence_lt_B = sequence < B
        advantages_guard = sequence_ge_0 & sequence_lt_B
        advantages = tl.load(advantages_ptr + sequence, mask=advantages_guard, other=0.0)
        tl.debug_barrier()
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
        value = tl.where(flows, plain, limited)  # surrogates.py:68
        clipped = ~flows  # surrogates.py:77
        raw = ref_logp - logp  # policy.py:331
        value_2 = portable_k3(raw)  # loss.py:23
        beta_times_value = beta * value_2  # policy.py:386
        value_3 = value + beta_times_value
        value_masked = tl.where(active, value_3, 0.0)  # policy.py:499
        tl.store(per_token_ptr + order, value_masked)
        loss = tl.where(active, value_3, negative_zero())  # policy.py:500
        count = active.to(tl.int32)
        active_and_clipped = active & clipped  # policy.py:517
        clipped_2 = active_and_clipped.to(tl.int32)
        neg_log_ratio = log_ratio * -1.0  # policy.py:519
        total_k3 = portable_k3(neg_log_ratio)
        total_k3_masked = tl.where(active, total_k3, negative_zero())
        sum_s_lane = sum_over_s_lane(loss)  # loss.py:86
        sum_s_lane_2 = sum_over_s_lane_2(count)
        sum_s_lane_3 = sum_over_s_lane_2(clipped_2)
        sum_s_lane_4 = sum_over_s_lane(total_k3_masked)
        total_5 = total + sum_s_lane
        total_6 = total_2 + sum_s_lane_2
        total_7 = total_3 + sum_s_lane_3
        total_8 = total_4 + sum_s_lane_4
        total, total_2, total_3, total_4 = total_5, total_6, total_7, total_8
    for s_step in tl.range(full_steps, steps):  # loss.py:83
        s_step_times_1024 = s_step * 1024
        s_begin = piece_begin + s_step_times_1024
        s = s_begin + s_lane
        exists = s < piece_end
        order = tl.load(order_ptr + s, mask=exists, other=0)  # loss.py:84
        tl.debug_barrier()
        order_ge_0 = order >= 0  # policy.py:140
        order_lt_T = order < T
        active_guard = order_ge_0 & order_lt_T
        active_guard_2 = exists & active_guard
        active = tl.load(active_ptr + order, mask=active_guard_2, other=0)
        sequence = tl.load(sequence_ptr + order, mask=active_guard_2, other=0)
        logp = tl.load(logp_ptr + order, mask=active_guard_2, other=0.0)
        old_logp = tl.load(old_logp_ptr + order, mask=active_guard_2, other=0.0)
        ref_logp = tl.load(ref_logp_ptr + order, mask=active_guard_2, other=0.0)
        tl.debug_barrier()
        sequence_ge_0 = sequence >= 0  # policy.py:146
        sequence_lt_B = sequence < B
        advantages_guard = sequence_ge_0 & sequence_lt_B
        advantages_guard_2 = exists & advantages_guard
        advantages = tl.load(advantages_ptr + sequence, mask=advantages_guard_2, other=0.0)
        tl.debug_barrier()
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
        value = tl.where(flows, plain, limited)  # surrogates.py:68
        clipped = ~flows  # surrogates.py:77
        raw = ref_logp - logp  # policy.py:331
        value_2 = portable_k3(raw)  # loss.py:23
        beta_times_value = beta * value_2  # policy.py:386
        value_3 = value + beta_times_value
        value_masked = tl.where(active, value_3, 0.0)  # policy.py:499
        tl.store(per_token_ptr + order, value_masked, mask=exists)
        loss = tl.where(active, value_3, negative_zero())  # policy.py:500
        count = active.to(tl.int32)
        active_and_clipped = active & clipped  # policy.py:517
        clipped_2 = active_and_clipped.to(tl.int32)
        neg_log_ratio = log_ratio * -1.0  # policy.py:519
        total_k3 = portable_k3(neg_log_ratio)
        total_k3_masked = tl.where(active, total_k3, negative_zero())
        loss_masked = tl.where(exists, loss, negative_zero())  # loss.py:86
        sum_s_lane = sum_over_s_lane(loss_masked)
        count_masked = tl.where(exists, count, 0)
        sum_s_lane_2 = sum_over_s_lane_2(count_masked)
        clipped_masked = tl.where(exists, clipped_2, 0)
        sum_s_lane_3 = sum_over_s_lane_2(clipped_masked)
        total_k3_masked_2 = tl.where(exists, total_k3_masked, negative_zero())
        sum_s_lane_4 = sum_over_s_lane(total_k3_masked_2)
        total_5 = total + sum_s_lane
        total_6 = total_2 + sum_s_lane_2
        total_7 = total_3 + sum_s_lane_3
        total_8 = total_4 + sum_s_lane_4
        total, total_2, total_3, total_4 = total_5, total_6, total_7, total_8
    tl.store(sum_of_piece_ptr + s_piece, total)  # loss.py:83
    tl.store(sum_of_piece1_ptr + s_piece, total_2)
    tl.store(sum_of_piece2_ptr + s_piece, total_3)
    tl.store(sum_of_piece3_ptr + s_piece, total_4)


@triton.jit
def policy_loss_2(
    loss_ptr, count_ptr, clip_fraction_ptr, approx_kl_ptr, sum_of_piece_ptr, sum_of_piece1_ptr, sum_of_piece2_ptr,
    sum_of_piece3_ptr, S
):
    # A program owns everything (rows).
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    s_piece_count_plus_4095 = ((S + 1023) // 1024) + 4095  # loss.py:83
    steps = s_piece_count_plus_4095 // 4096
    full_steps = ((S + 1023) // 1024) // 4096
    s_piece_lane = tl.arange(0, 4096)
    total = negative_zero()
    total_2 = tl.full((), 0, tl.int32)
    total_3 = tl.full((), 0, tl.int32)
    total_4 = negative_zero()
    for s_piece_step in tl.range(0, full_steps):
        s_piece_step_times_4096 = s_piece_step * 4096
        s_piece = s_piece_step_times_4096 + s_piece_lane
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece)
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece)
        sum_of_piece2 = tl.load(sum_of_piece2_ptr + s_piece)
        sum_of_piece3 = tl.load(sum_of_piece3_ptr + s_piece)
        sum_s_piece_lane, sum_s_piece_lane_2 = sums_over_s_piece_lane(sum_of_piece, sum_of_piece3)  # loss.py:86
        sum_s_piece_lane_3 = sum_over_s_piece_lane(sum_of_piece1)
        sum_s_piece_lane_4 = sum_over_s_piece_lane(sum_of_piece2)
        total_5 = total + sum_s_piece_lane
        total_6 = total_2 + sum_s_piece_lane_3
        total_7 = total_3 + sum_s_piece_lane_4
        total_8 = total_4 + sum_s_piece_lane_2
        total, total_2, total_3, total_4 = total_5, total_6, total_7, total_8
    for s_piece_step in tl.range(full_steps, steps):  # loss.py:83
        s_piece_step_times_4096 = s_piece_step * 4096
        s_piece = s_piece_step_times_4096 + s_piece_lane
        exists = s_piece < ((S + 1023) // 1024)
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece, mask=exists, other=0.0)
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece, mask=exists, other=0)
        sum_of_piece2 = tl.load(sum_of_piece2_ptr + s_piece, mask=exists, other=0)
        sum_of_piece3 = tl.load(sum_of_piece3_ptr + s_piece, mask=exists, other=0.0)
        sum_of_piece_masked = tl.where(exists, sum_of_piece, negative_zero())  # loss.py:86
        sum_of_piece3_masked = tl.where(exists, sum_of_piece3, negative_zero())
        sum_s_piece_lane, sum_s_piece_lane_2 = sums_over_s_piece_lane(sum_of_piece_masked, sum_of_piece3_masked)
        sum_of_piece1_masked = tl.where(exists, sum_of_piece1, 0)
        sum_s_piece_lane_3 = sum_over_s_piece_lane(sum_of_piece1_masked)
        sum_of_piece2_masked = tl.where(exists, sum_of_piece2, 0)
        sum_s_piece_lane_4 = sum_over_s_piece_lane(sum_of_piece2_masked)
        total_5 = total + sum_s_piece_lane
        total_6 = total_2 + sum_s_piece_lane_3
        total_7 = total_3 + sum_s_piece_lane_4
        total_8 = total_4 + sum_s_piece_lane_2
        total, total_2, total_3, total_4 = total_5, total_6, total_7, total_8
    total_max_1 = tl.maximum(total_2, 1)  # policy.py:566
    tokens = total_max_1.to(tl.float32)
    x = total + 0.0  # policy.py:568
    loss = tl.div_rn(x, tokens)  # policy.py:560
    total_f32 = total_3.to(tl.float32)  # policy.py:573
    clip_fraction = tl.div_rn(total_f32, tokens)
    total_plus_0 = total_4 + 0.0  # policy.py:575
    approx_kl_value = tl.div_rn(total_plus_0, tokens)
    tl.store(loss_ptr, loss)  # policy.py:473
    tl.store(count_ptr, total_2)
    tl.store(clip_fraction_ptr, clip_fraction)
    tl.store(approx_kl_ptr, approx_kl_value)


def call(
    kernels, logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece, sum_of_piece1,
    sum_of_piece2, sum_of_piece3, loss, count, clip_fraction, approx_kl, beta, surrogate_least, surrogate_most, S, T, B
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((S + 1023) // 1024)
    if programs > 0:
        kernels.policy_loss_1(
            (programs,), logp, old_logp, advantages, ref_logp, order, active, sequence, per_token, sum_of_piece,
            sum_of_piece1, sum_of_piece2, sum_of_piece3, S, T, B, beta, surrogate_least, surrogate_most
        )
    programs = 1
    if programs > 0:
        kernels.policy_loss_2(
            (programs,), loss, count, clip_fraction, approx_kl, sum_of_piece, sum_of_piece1, sum_of_piece2,
            sum_of_piece3, S
        )
