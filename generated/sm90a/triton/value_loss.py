"""value_loss on sm_90a, written by rlk 0.1.0: do not edit.

numerics: e7e0c03da0a3f90d
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
def sum_over_s_lane(x):
    # The add over S.lane: no order changes it.
    x = tl.sum(x, 0)
    return x


@triton.jit
def sum_over_s_lane_2(x):
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
def sum_over_s_piece_lane(x):
    # The add over S_piece.lane: no order changes it.
    x = tl.sum(x, 0)
    return x


@triton.jit
def sum_over_s_piece_lane_2(x):
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
def value_loss_1(values_ptr, returns_ptr, old_values_ptr, order_ptr, active_ptr, per_token_ptr, sum_of_piece_ptr, sum_of_piece1_ptr, sum_of_piece2_ptr, S, T, clip):
    # A program owns 1 of S.piece (rows).
    s_piece = tl.program_id(0)
    product = s_piece * 1024  # value.py:38
    piece_begin = tl.minimum(S, product)  # value.py:38
    total = piece_begin + 1024  # value.py:38
    piece_end = tl.minimum(S, total)  # value.py:38
    difference = piece_end - piece_begin  # value.py:38
    total_2 = difference + 1023  # value.py:38
    steps = total_2 // 1024  # value.py:38
    full_steps = difference // 1024  # value.py:38
    s_lane = tl.arange(0, 1024)  # value.py:38
    s = tl.full((), 0, tl.int32)  # value.py:38
    s_2 = negative_zero()  # value.py:38
    s_3 = tl.full((), 0, tl.int32)  # value.py:38
    for s_step in tl.range(0, full_steps):  # value.py:38
        product_2 = s_step * 1024  # value.py:38
        total_3 = piece_begin + product_2  # value.py:38
        s_4 = total_3 + s_lane  # value.py:38
        order = tl.load(order_ptr + s_4)  # value.py:39
        at_most = order >= 0  # value.py:40
        below = order < T  # value.py:40
        both = at_most & below  # value.py:40
        active = tl.load(active_ptr + order, mask=both, other=0)  # value.py:40
        old_values = tl.load(old_values_ptr + order, mask=both, other=0.0)  # value.py:41
        values = tl.load(values_ptr + order, mask=both, other=0.0)  # value.py:42
        returns = tl.load(returns_ptr + order, mask=both, other=0.0)  # value.py:42
        difference_2 = values - returns  # value.py:15
        difference_3 = old_values - clip  # value.py:15
        total_4 = old_values + clip  # value.py:15
        larger = tl.maximum(values, difference_3)  # value.py:15
        smaller = tl.minimum(larger, total_4)  # value.py:15
        difference_4 = smaller - returns  # value.py:15
        product_3 = difference_2 * difference_2  # value.py:43
        product_4 = difference_4 * difference_4  # value.py:20
        below_2 = product_3 < product_4  # value.py:20
        chosen = tl.where(below_2, product_4, product_3)  # value.py:46
        both_2 = active & below_2  # value.py:47
        as_i32 = both_2.to(tl.int32)  # value.py:47
        product_5 = chosen * 0.5  # value.py:48
        chosen_2 = tl.where(active, product_5, 0.0)  # value.py:49
        tl.store(per_token_ptr + order, chosen_2)  # value.py:49
        chosen_3 = tl.where(active, product_5, negative_zero())  # value.py:50
        as_i32_2 = active.to(tl.int32)  # value.py:51
        sum_s_lane = sum_over_s_lane(as_i32)  # value.py:38
        sum_s_lane_2 = sum_over_s_lane_2(chosen_3)  # value.py:38
        sum_s_lane_3 = sum_over_s_lane(as_i32_2)  # value.py:38
        s_5 = s + sum_s_lane  # value.py:38
        s_6 = s_2 + sum_s_lane_2  # value.py:38
        s_7 = s_3 + sum_s_lane_3  # value.py:38
        s, s_2, s_3 = s_5, s_6, s_7  # value.py:38
    for s_step in tl.range(full_steps, steps):  # value.py:38
        product_2 = s_step * 1024  # value.py:38
        total_3 = piece_begin + product_2  # value.py:38
        s_4 = total_3 + s_lane  # value.py:38
        exists = s_4 < piece_end  # value.py:38
        order = tl.load(order_ptr + s_4, mask=exists, other=0)  # value.py:39
        at_most = order >= 0  # value.py:40
        below = order < T  # value.py:40
        both = at_most & below  # value.py:40
        both_2 = exists & both  # value.py:40
        active = tl.load(active_ptr + order, mask=both_2, other=0)  # value.py:40
        old_values = tl.load(old_values_ptr + order, mask=both_2, other=0.0)  # value.py:41
        values = tl.load(values_ptr + order, mask=both_2, other=0.0)  # value.py:42
        returns = tl.load(returns_ptr + order, mask=both_2, other=0.0)  # value.py:42
        difference_2 = values - returns  # value.py:15
        difference_3 = old_values - clip  # value.py:15
        total_4 = old_values + clip  # value.py:15
        larger = tl.maximum(values, difference_3)  # value.py:15
        smaller = tl.minimum(larger, total_4)  # value.py:15
        difference_4 = smaller - returns  # value.py:15
        product_3 = difference_2 * difference_2  # value.py:43
        product_4 = difference_4 * difference_4  # value.py:20
        below_2 = product_3 < product_4  # value.py:20
        chosen = tl.where(below_2, product_4, product_3)  # value.py:46
        both_3 = active & below_2  # value.py:47
        as_i32 = both_3.to(tl.int32)  # value.py:47
        product_5 = chosen * 0.5  # value.py:48
        chosen_2 = tl.where(active, product_5, 0.0)  # value.py:49
        tl.store(per_token_ptr + order, chosen_2, mask=exists)  # value.py:49
        chosen_3 = tl.where(active, product_5, negative_zero())  # value.py:50
        as_i32_2 = active.to(tl.int32)  # value.py:51
        chosen_4 = tl.where(exists, as_i32, 0)  # value.py:38
        sum_s_lane = sum_over_s_lane(chosen_4)  # value.py:38
        chosen_5 = tl.where(exists, chosen_3, negative_zero())  # value.py:38
        sum_s_lane_2 = sum_over_s_lane_2(chosen_5)  # value.py:38
        chosen_6 = tl.where(exists, as_i32_2, 0)  # value.py:38
        sum_s_lane_3 = sum_over_s_lane(chosen_6)  # value.py:38
        s_5 = s + sum_s_lane  # value.py:38
        s_6 = s_2 + sum_s_lane_2  # value.py:38
        s_7 = s_3 + sum_s_lane_3  # value.py:38
        s, s_2, s_3 = s_5, s_6, s_7  # value.py:38
    tl.store(sum_of_piece_ptr + s_piece, s)  # value.py:38
    tl.store(sum_of_piece1_ptr + s_piece, s_2)  # value.py:38
    tl.store(sum_of_piece2_ptr + s_piece, s_3)  # value.py:38


@triton.jit
def value_loss_2(loss_ptr, count_ptr, clip_fraction_ptr, sum_of_piece_ptr, sum_of_piece1_ptr, sum_of_piece2_ptr, S):
    # A program owns everything (rows).
    total = ((S + 1023) // 1024) + 4095  # value.py:38
    steps = total // 4096  # value.py:38
    full_steps = ((S + 1023) // 1024) // 4096  # value.py:38
    s_piece_lane = tl.arange(0, 4096)  # value.py:38
    s = tl.full((), 0, tl.int32)  # value.py:38
    s_2 = negative_zero()  # value.py:38
    s_3 = tl.full((), 0, tl.int32)  # value.py:38
    for s_piece_step in tl.range(0, full_steps):  # value.py:38
        product = s_piece_step * 4096  # value.py:38
        s_piece = product + s_piece_lane  # value.py:38
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece)  # value.py:38
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece)  # value.py:38
        sum_of_piece2 = tl.load(sum_of_piece2_ptr + s_piece)  # value.py:38
        sum_s_piece_lane = sum_over_s_piece_lane(sum_of_piece)  # value.py:38
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(sum_of_piece1)  # value.py:38
        sum_s_piece_lane_3 = sum_over_s_piece_lane(sum_of_piece2)  # value.py:38
        s_4 = s + sum_s_piece_lane  # value.py:38
        s_5 = s_2 + sum_s_piece_lane_2  # value.py:38
        s_6 = s_3 + sum_s_piece_lane_3  # value.py:38
        s, s_2, s_3 = s_4, s_5, s_6  # value.py:38
    for s_piece_step in tl.range(full_steps, steps):  # value.py:38
        product = s_piece_step * 4096  # value.py:38
        s_piece = product + s_piece_lane  # value.py:38
        exists = s_piece < ((S + 1023) // 1024)  # value.py:38
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece, mask=exists, other=0)  # value.py:38
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece, mask=exists, other=0.0)  # value.py:38
        sum_of_piece2 = tl.load(sum_of_piece2_ptr + s_piece, mask=exists, other=0)  # value.py:38
        chosen = tl.where(exists, sum_of_piece, 0)  # value.py:38
        sum_s_piece_lane = sum_over_s_piece_lane(chosen)  # value.py:38
        chosen_2 = tl.where(exists, sum_of_piece1, negative_zero())  # value.py:38
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(chosen_2)  # value.py:38
        chosen_3 = tl.where(exists, sum_of_piece2, 0)  # value.py:38
        sum_s_piece_lane_3 = sum_over_s_piece_lane(chosen_3)  # value.py:38
        s_4 = s + sum_s_piece_lane  # value.py:38
        s_5 = s_2 + sum_s_piece_lane_2  # value.py:38
        s_6 = s_3 + sum_s_piece_lane_3  # value.py:38
        s, s_2, s_3 = s_4, s_5, s_6  # value.py:38
    larger = tl.maximum(s_3, 1)  # value.py:52
    as_f32 = larger.to(tl.float32)  # value.py:52
    total_2 = s_2 + 0.0  # value.py:55
    quotient = tl.div_rn(total_2, as_f32)  # value.py:55
    as_f32_2 = s.to(tl.float32)  # value.py:57
    quotient_2 = tl.div_rn(as_f32_2, as_f32)  # value.py:57
    tl.store(loss_ptr, quotient)  # value.py:54
    tl.store(count_ptr, s_3)  # value.py:54
    tl.store(clip_fraction_ptr, quotient_2)  # value.py:54


def call(kernels, values, returns, old_values, order, active, per_token, sum_of_piece, sum_of_piece1, sum_of_piece2, loss, count, clip_fraction, clip, S, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((S + 1023) // 1024)
    if programs > 0:
        kernels.value_loss_1((programs,), values, returns, old_values, order, active, per_token, sum_of_piece, sum_of_piece1, sum_of_piece2, S, T, clip)
    programs = 1
    if programs > 0:
        kernels.value_loss_2((programs,), loss, count, clip_fraction, sum_of_piece, sum_of_piece1, sum_of_piece2, S)
