"""policy_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 519059d5f751f6a3
schedule: tiles 1, 2 warps, 1 stages, unroll 1
schedule: tiles 1, 8 warps, 1 stages, unroll 1
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
def sum_over_s_piece_lane(x):
    # The sum over S_piece.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (2, 2048)), 0)
    x = tl.sum(tl.reshape(x, (2, 1024)), 0)
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
def sum_over_s_piece_lane_2(x):
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
    s_piece = tl.program_id(0)
    product = s_piece * 1024  # loss.py:79
    piece_begin = tl.minimum(S, product)
    total = piece_begin + 1024
    piece_end = tl.minimum(S, total)
    difference = piece_end - piece_begin
    total_2 = difference + 1023
    steps = total_2 // 1024
    full_steps = difference // 1024
    s_lane = tl.arange(0, 1024)
    s = negative_zero()
    s_2 = tl.full((), 0, tl.int32)
    s_3 = tl.full((), 0, tl.int32)
    s_4 = negative_zero()
    for s_step in tl.range(0, full_steps):
        product_2 = s_step * 1024
        total_3 = piece_begin + product_2
        s_5 = total_3 + s_lane
        order = tl.load(order_ptr + s_5)  # loss.py:80
        at_most = order >= 0  # policy.py:140
        below = order < T
        both = at_most & below
        active = tl.load(active_ptr + order, mask=both, other=0)
        sequence = tl.load(sequence_ptr + order, mask=both, other=0)
        at_most_2 = sequence >= 0  # policy.py:146
        below_2 = sequence < B
        both_2 = at_most_2 & below_2
        advantages = tl.load(advantages_ptr + sequence, mask=both_2, other=0.0)
        logp = tl.load(logp_ptr + order, mask=both, other=0.0)  # policy.py:140
        old_logp = tl.load(old_logp_ptr + order, mask=both, other=0.0)
        ref_logp = tl.load(ref_logp_ptr + order, mask=both, other=0.0)
        difference_2 = logp - old_logp  # policy.py:191
        exp = portable_exp(difference_2)  # policy.py:369
        equal = advantages == 0.0  # policy.py:371
        chosen = tl.where(equal, 1.0, exp)
        product_3 = chosen * advantages  # surrogates.py:58
        negative = product_3 * -1.0
        larger = tl.maximum(chosen, surrogate_least)  # surrogates.py:61
        smaller = tl.minimum(larger, surrogate_most)  # surrogates.py:63
        product_4 = smaller * advantages  # surrogates.py:64
        negative_2 = product_4 * -1.0
        below_3 = negative < negative_2  # surrogates.py:67
        unless = ~below_3
        chosen_2 = tl.where(unless, negative, negative_2)  # surrogates.py:68
        unless_2 = ~unless  # surrogates.py:77
        difference_3 = ref_logp - logp  # policy.py:331
        k3 = portable_k3(difference_3)  # loss.py:23
        product_5 = beta * k3  # policy.py:386
        total_4 = chosen_2 + product_5
        chosen_3 = tl.where(active, total_4, 0.0)  # policy.py:499
        tl.store(per_token_ptr + order, chosen_3)
        chosen_4 = tl.where(active, total_4, negative_zero())  # policy.py:500
        as_i32 = active.to(tl.int32)
        both_3 = active & unless_2  # policy.py:517
        as_i32_2 = both_3.to(tl.int32)
        negative_3 = difference_2 * -1.0  # policy.py:519
        k3_2 = portable_k3(negative_3)
        chosen_5 = tl.where(active, k3_2, negative_zero())
        sum_s_lane = sum_over_s_lane(chosen_4)  # loss.py:79
        sum_s_lane_2 = sum_over_s_lane_2(as_i32)
        sum_s_lane_3 = sum_over_s_lane_2(as_i32_2)
        sum_s_lane_4 = sum_over_s_lane(chosen_5)
        s_6 = s + sum_s_lane
        s_7 = s_2 + sum_s_lane_2
        s_8 = s_3 + sum_s_lane_3
        s_9 = s_4 + sum_s_lane_4
        s, s_2, s_3, s_4 = s_6, s_7, s_8, s_9
    for s_step in tl.range(full_steps, steps):
        product_2 = s_step * 1024
        total_3 = piece_begin + product_2
        s_5 = total_3 + s_lane
        exists = s_5 < piece_end
        order = tl.load(order_ptr + s_5, mask=exists, other=0)  # loss.py:80
        at_most = order >= 0  # policy.py:140
        below = order < T
        both = at_most & below
        both_2 = exists & both
        active = tl.load(active_ptr + order, mask=both_2, other=0)
        sequence = tl.load(sequence_ptr + order, mask=both_2, other=0)
        at_most_2 = sequence >= 0  # policy.py:146
        below_2 = sequence < B
        both_3 = at_most_2 & below_2
        both_4 = exists & both_3
        advantages = tl.load(advantages_ptr + sequence, mask=both_4, other=0.0)
        logp = tl.load(logp_ptr + order, mask=both_2, other=0.0)  # policy.py:140
        old_logp = tl.load(old_logp_ptr + order, mask=both_2, other=0.0)
        ref_logp = tl.load(ref_logp_ptr + order, mask=both_2, other=0.0)
        difference_2 = logp - old_logp  # policy.py:191
        exp = portable_exp(difference_2)  # policy.py:369
        equal = advantages == 0.0  # policy.py:371
        chosen = tl.where(equal, 1.0, exp)
        product_3 = chosen * advantages  # surrogates.py:58
        negative = product_3 * -1.0
        larger = tl.maximum(chosen, surrogate_least)  # surrogates.py:61
        smaller = tl.minimum(larger, surrogate_most)  # surrogates.py:63
        product_4 = smaller * advantages  # surrogates.py:64
        negative_2 = product_4 * -1.0
        below_3 = negative < negative_2  # surrogates.py:67
        unless = ~below_3
        chosen_2 = tl.where(unless, negative, negative_2)  # surrogates.py:68
        unless_2 = ~unless  # surrogates.py:77
        difference_3 = ref_logp - logp  # policy.py:331
        k3 = portable_k3(difference_3)  # loss.py:23
        product_5 = beta * k3  # policy.py:386
        total_4 = chosen_2 + product_5
        chosen_3 = tl.where(active, total_4, 0.0)  # policy.py:499
        tl.store(per_token_ptr + order, chosen_3, mask=exists)
        chosen_4 = tl.where(active, total_4, negative_zero())  # policy.py:500
        as_i32 = active.to(tl.int32)
        both_5 = active & unless_2  # policy.py:517
        as_i32_2 = both_5.to(tl.int32)
        negative_3 = difference_2 * -1.0  # policy.py:519
        k3_2 = portable_k3(negative_3)
        chosen_5 = tl.where(active, k3_2, negative_zero())
        chosen_6 = tl.where(exists, chosen_4, negative_zero())  # loss.py:79
        sum_s_lane = sum_over_s_lane(chosen_6)
        chosen_7 = tl.where(exists, as_i32, 0)
        sum_s_lane_2 = sum_over_s_lane_2(chosen_7)
        chosen_8 = tl.where(exists, as_i32_2, 0)
        sum_s_lane_3 = sum_over_s_lane_2(chosen_8)
        chosen_9 = tl.where(exists, chosen_5, negative_zero())
        sum_s_lane_4 = sum_over_s_lane(chosen_9)
        s_6 = s + sum_s_lane
        s_7 = s_2 + sum_s_lane_2
        s_8 = s_3 + sum_s_lane_3
        s_9 = s_4 + sum_s_lane_4
        s, s_2, s_3, s_4 = s_6, s_7, s_8, s_9
    tl.store(sum_of_piece_ptr + s_piece, s)
    tl.store(sum_of_piece1_ptr + s_piece, s_2)
    tl.store(sum_of_piece2_ptr + s_piece, s_3)
    tl.store(sum_of_piece3_ptr + s_piece, s_4)


@triton.jit
def policy_loss_2(
    loss_ptr, count_ptr, clip_fraction_ptr, approx_kl_ptr, sum_of_piece_ptr, sum_of_piece1_ptr, sum_of_piece2_ptr,
    sum_of_piece3_ptr, S
):
    # A program owns everything (rows).
    total = ((S + 1023) // 1024) + 4095  # loss.py:79
    steps = total // 4096
    full_steps = ((S + 1023) // 1024) // 4096
    s_piece_lane = tl.arange(0, 4096)
    s = negative_zero()
    s_2 = tl.full((), 0, tl.int32)
    s_3 = tl.full((), 0, tl.int32)
    s_4 = negative_zero()
    for s_piece_step in tl.range(0, full_steps):
        product = s_piece_step * 4096
        s_piece = product + s_piece_lane
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece)
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece)
        sum_of_piece2 = tl.load(sum_of_piece2_ptr + s_piece)
        sum_of_piece3 = tl.load(sum_of_piece3_ptr + s_piece)
        sum_s_piece_lane = sum_over_s_piece_lane(sum_of_piece)
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(sum_of_piece1)
        sum_s_piece_lane_3 = sum_over_s_piece_lane_2(sum_of_piece2)
        sum_s_piece_lane_4 = sum_over_s_piece_lane(sum_of_piece3)
        s_5 = s + sum_s_piece_lane
        s_6 = s_2 + sum_s_piece_lane_2
        s_7 = s_3 + sum_s_piece_lane_3
        s_8 = s_4 + sum_s_piece_lane_4
        s, s_2, s_3, s_4 = s_5, s_6, s_7, s_8
    for s_piece_step in tl.range(full_steps, steps):
        product = s_piece_step * 4096
        s_piece = product + s_piece_lane
        exists = s_piece < ((S + 1023) // 1024)
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece, mask=exists, other=0.0)
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece, mask=exists, other=0)
        sum_of_piece2 = tl.load(sum_of_piece2_ptr + s_piece, mask=exists, other=0)
        sum_of_piece3 = tl.load(sum_of_piece3_ptr + s_piece, mask=exists, other=0.0)
        chosen = tl.where(exists, sum_of_piece, negative_zero())
        sum_s_piece_lane = sum_over_s_piece_lane(chosen)
        chosen_2 = tl.where(exists, sum_of_piece1, 0)
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(chosen_2)
        chosen_3 = tl.where(exists, sum_of_piece2, 0)
        sum_s_piece_lane_3 = sum_over_s_piece_lane_2(chosen_3)
        chosen_4 = tl.where(exists, sum_of_piece3, negative_zero())
        sum_s_piece_lane_4 = sum_over_s_piece_lane(chosen_4)
        s_5 = s + sum_s_piece_lane
        s_6 = s_2 + sum_s_piece_lane_2
        s_7 = s_3 + sum_s_piece_lane_3
        s_8 = s_4 + sum_s_piece_lane_4
        s, s_2, s_3, s_4 = s_5, s_6, s_7, s_8
    larger = tl.maximum(s_2, 1)  # policy.py:566
    as_f32 = larger.to(tl.float32)
    total_2 = s + 0.0  # policy.py:568
    quotient = tl.div_rn(total_2, as_f32)  # policy.py:560
    as_f32_2 = s_3.to(tl.float32)  # policy.py:573
    quotient_2 = tl.div_rn(as_f32_2, as_f32)
    total_3 = s_4 + 0.0  # policy.py:575
    quotient_3 = tl.div_rn(total_3, as_f32)
    tl.store(loss_ptr, quotient)  # policy.py:473
    tl.store(count_ptr, s_2)
    tl.store(clip_fraction_ptr, quotient_2)
    tl.store(approx_kl_ptr, quotient_3)


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
