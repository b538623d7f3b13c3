"""policy_loss_of_sequences_grad on sm_90a, written by rlk 0.1.0: do not edit.

numerics: b36010a06a852012
schedule: tiles 1, 2 warps, 1 stages, unroll 1
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
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
def sum_over_q_lane(x):
    # The sum over Q.lane, halving: two terms at a time, so that no layout chooses.
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
def policy_loss_of_sequences_grad_1(advantages_ptr, order_ptr, active_ptr, begin_ptr, end_ptr, ratio_of_sequence_ptr, weight_of_sequence_ptr, slopes_of_sequence_ptr, S, T, surrogate_least, surrogate_most):
    # A program owns 1 of B (rows).
    b = tl.program_id(0)
    begin = tl.load(begin_ptr + b)  # policy.py:537
    end = tl.load(end_ptr + b)  # policy.py:537
    difference = end - begin  # policy.py:537
    total = difference + 1023  # policy.py:537
    steps = total // 1024  # policy.py:537
    full_steps = difference // 1024  # policy.py:537
    q_lane = tl.arange(0, 1024)  # policy.py:537
    larger = tl.maximum(difference, 1)  # policy.py:451
    as_f32 = larger.to(tl.float32)  # policy.py:451
    s = negative_zero()  # policy.py:537
    for q_step in tl.range(0, full_steps):  # policy.py:537
        advantages = tl.load(advantages_ptr + b)  # policy.py:112
        ratio_of_sequence = tl.load(ratio_of_sequence_ptr + b)  # policy.py:112
        weight_of_sequence = tl.load(weight_of_sequence_ptr + b)  # policy.py:112
        product = q_step * 1024  # policy.py:537
        total_2 = begin + product  # policy.py:537
        q = total_2 + q_lane  # policy.py:537
        at_most = q >= 0  # policy.py:538
        below = q < S  # policy.py:538
        both = at_most & below  # policy.py:538
        order = tl.load(order_ptr + q, mask=both, other=0)  # policy.py:538
        at_most_2 = order >= 0  # policy.py:106
        below_2 = order < T  # policy.py:106
        both_2 = at_most_2 & below_2  # policy.py:106
        active = tl.load(active_ptr + order, mask=both_2, other=0)  # policy.py:106
        exp = portable_exp(ratio_of_sequence)  # policy.py:316
        equal = advantages == 0.0  # policy.py:317
        chosen = tl.where(equal, 1.0, exp)  # policy.py:317
        product_2 = chosen * advantages  # surrogates.py:56
        negative = product_2 * -1.0  # surrogates.py:56
        larger_2 = tl.maximum(chosen, surrogate_least)  # surrogates.py:59
        smaller = tl.minimum(larger_2, surrogate_most)  # surrogates.py:61
        product_3 = smaller * advantages  # surrogates.py:62
        negative_2 = product_3 * -1.0  # surrogates.py:62
        below_3 = negative < negative_2  # surrogates.py:65
        unless = ~below_3  # surrogates.py:65
        differs = advantages != 0.0  # surrogates.py:72
        both_3 = unless & differs  # surrogates.py:72
        chosen_2 = tl.where(both_3, negative, 0.0)  # surrogates.py:72
        product_4 = weight_of_sequence * chosen_2  # policy.py:367
        chosen_3 = tl.where(active, product_4, negative_zero())  # policy.py:540
        quotient = tl.div_rn(chosen_3, as_f32)  # policy.py:456
        sum_q_lane = sum_over_q_lane(quotient)  # policy.py:537
        s_2 = s + sum_q_lane  # policy.py:537
        s = s_2  # policy.py:537
    for q_step in tl.range(full_steps, steps):  # policy.py:537
        advantages = tl.load(advantages_ptr + b)  # policy.py:112
        ratio_of_sequence = tl.load(ratio_of_sequence_ptr + b)  # policy.py:112
        weight_of_sequence = tl.load(weight_of_sequence_ptr + b)  # policy.py:112
        product = q_step * 1024  # policy.py:537
        total_2 = begin + product  # policy.py:537
        q = total_2 + q_lane  # policy.py:537
        exists = q < end  # policy.py:537
        at_most = q >= 0  # policy.py:538
        below = q < S  # policy.py:538
        both = at_most & below  # policy.py:538
        both_2 = exists & both  # policy.py:538
        order = tl.load(order_ptr + q, mask=both_2, other=0)  # policy.py:538
        at_most_2 = order >= 0  # policy.py:106
        below_2 = order < T  # policy.py:106
        both_3 = at_most_2 & below_2  # policy.py:106
        both_4 = exists & both_3  # policy.py:106
        active = tl.load(active_ptr + order, mask=both_4, other=0)  # policy.py:106
        exp = portable_exp(ratio_of_sequence)  # policy.py:316
        equal = advantages == 0.0  # policy.py:317
        chosen = tl.where(equal, 1.0, exp)  # policy.py:317
        product_2 = chosen * advantages  # surrogates.py:56
        negative = product_2 * -1.0  # surrogates.py:56
        larger_2 = tl.maximum(chosen, surrogate_least)  # surrogates.py:59
        smaller = tl.minimum(larger_2, surrogate_most)  # surrogates.py:61
        product_3 = smaller * advantages  # surrogates.py:62
        negative_2 = product_3 * -1.0  # surrogates.py:62
        below_3 = negative < negative_2  # surrogates.py:65
        unless = ~below_3  # surrogates.py:65
        differs = advantages != 0.0  # surrogates.py:72
        both_5 = unless & differs  # surrogates.py:72
        chosen_2 = tl.where(both_5, negative, 0.0)  # surrogates.py:72
        product_4 = weight_of_sequence * chosen_2  # policy.py:367
        chosen_3 = tl.where(active, product_4, negative_zero())  # policy.py:540
        quotient = tl.div_rn(chosen_3, as_f32)  # policy.py:456
        chosen_4 = tl.where(exists, quotient, negative_zero())  # policy.py:537
        sum_q_lane = sum_over_q_lane(chosen_4)  # policy.py:537
        s_2 = s + sum_q_lane  # policy.py:537
        s = s_2  # policy.py:537
    total_2 = s + 0.0  # policy.py:542
    tl.store(slopes_of_sequence_ptr + b, total_2)  # policy.py:542


@triton.jit
def policy_loss_of_sequences_grad_2(active_ptr, sequence_ptr, begin_ptr, end_ptr, sequences_ptr, d_loss_ptr, slopes_of_sequence_ptr, d_logp_ptr, T, B):
    # A program owns 2048 of T (rows).
    t = tl.program_id(0) * 2048 + tl.arange(0, 2048)
    t_inside = t < T
    d_loss = tl.load(d_loss_ptr)  # policy.py:579
    sequences = tl.load(sequences_ptr)  # policy.py:468
    active = tl.load(active_ptr + t, mask=t_inside, other=0)  # policy.py:106
    sequence = tl.load(sequence_ptr + t, mask=t_inside, other=0)  # policy.py:106
    at_most = sequence >= 0  # policy.py:112
    below = sequence < B  # policy.py:112
    both = at_most & below  # policy.py:112
    end = tl.load(end_ptr + sequence, mask=both & t_inside, other=0)  # policy.py:112
    begin = tl.load(begin_ptr + sequence, mask=both & t_inside, other=0)  # policy.py:112
    larger = tl.maximum(sequences, 1)  # policy.py:468
    as_f32 = larger.to(tl.float32)  # policy.py:468
    quotient = tl.div_rn(d_loss, as_f32)  # policy.py:473
    slopes_of_sequence = tl.load(slopes_of_sequence_ptr + sequence, mask=both & t_inside, other=0.0)  # policy.py:112
    difference = end - begin  # policy.py:450
    larger_2 = tl.maximum(difference, 1)  # policy.py:451
    as_f32_2 = larger_2.to(tl.float32)  # policy.py:451
    quotient_2 = tl.div_rn(slopes_of_sequence, as_f32_2)  # policy.py:546
    product = quotient * quotient_2  # policy.py:553
    chosen = tl.where(active, product, 0.0)  # policy.py:513
    tl.store(d_logp_ptr + t, chosen, mask=t_inside)  # policy.py:515


def call(kernels, advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, sequence, sequences, d_loss, d_logp, surrogate_least, surrogate_most, S, T, B):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.policy_loss_of_sequences_grad_1((programs,), advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, S, T, surrogate_least, surrogate_most)
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.policy_loss_of_sequences_grad_2((programs,), active, sequence, begin, end, sequences, d_loss, slopes_of_sequence, d_logp, T, B)
