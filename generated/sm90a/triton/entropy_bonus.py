"""entropy_bonus on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 75daa7e468f74cba
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
def entropy_bonus_1(entropy_ptr, order_ptr, active_ptr, sum_of_piece_ptr, sum_of_piece1_ptr, S, T):
    # A program owns 1 of S.piece (rows).
    s_piece = tl.program_id(0)
    product = s_piece * 1024  # value.py:80
    piece_begin = tl.minimum(S, product)  # value.py:80
    total = piece_begin + 1024  # value.py:80
    piece_end = tl.minimum(S, total)  # value.py:80
    difference = piece_end - piece_begin  # value.py:80
    total_2 = difference + 1023  # value.py:80
    steps = total_2 // 1024  # value.py:80
    full_steps = difference // 1024  # value.py:80
    s_lane = tl.arange(0, 1024)  # value.py:80
    s = negative_zero()  # value.py:80
    s_2 = tl.full((), 0, tl.int32)  # value.py:80
    for s_step in tl.range(0, full_steps):  # value.py:80
        product_2 = s_step * 1024  # value.py:80
        total_3 = piece_begin + product_2  # value.py:80
        s_3 = total_3 + s_lane  # value.py:80
        order = tl.load(order_ptr + s_3)  # value.py:81
        at_most = order >= 0  # value.py:82
        below = order < T  # value.py:82
        both = at_most & below  # value.py:82
        active = tl.load(active_ptr + order, mask=both, other=0)  # value.py:82
        entropy = tl.load(entropy_ptr + order, mask=both, other=0.0)  # value.py:83
        chosen = tl.where(active, entropy, negative_zero())  # value.py:83
        as_i32 = active.to(tl.int32)  # value.py:84
        sum_s_lane = sum_over_s_lane(chosen)  # value.py:80
        sum_s_lane_2 = sum_over_s_lane_2(as_i32)  # value.py:80
        s_4 = s + sum_s_lane  # value.py:80
        s_5 = s_2 + sum_s_lane_2  # value.py:80
        s, s_2 = s_4, s_5  # value.py:80
    for s_step in tl.range(full_steps, steps):  # value.py:80
        product_2 = s_step * 1024  # value.py:80
        total_3 = piece_begin + product_2  # value.py:80
        s_3 = total_3 + s_lane  # value.py:80
        exists = s_3 < piece_end  # value.py:80
        order = tl.load(order_ptr + s_3, mask=exists, other=0)  # value.py:81
        at_most = order >= 0  # value.py:82
        below = order < T  # value.py:82
        both = at_most & below  # value.py:82
        both_2 = exists & both  # value.py:82
        active = tl.load(active_ptr + order, mask=both_2, other=0)  # value.py:82
        entropy = tl.load(entropy_ptr + order, mask=both_2, other=0.0)  # value.py:83
        chosen = tl.where(active, entropy, negative_zero())  # value.py:83
        as_i32 = active.to(tl.int32)  # value.py:84
        chosen_2 = tl.where(exists, chosen, negative_zero())  # value.py:80
        sum_s_lane = sum_over_s_lane(chosen_2)  # value.py:80
        chosen_3 = tl.where(exists, as_i32, 0)  # value.py:80
        sum_s_lane_2 = sum_over_s_lane_2(chosen_3)  # value.py:80
        s_4 = s + sum_s_lane  # value.py:80
        s_5 = s_2 + sum_s_lane_2  # value.py:80
        s, s_2 = s_4, s_5  # value.py:80
    tl.store(sum_of_piece_ptr + s_piece, s)  # value.py:80
    tl.store(sum_of_piece1_ptr + s_piece, s_2)  # value.py:80


@triton.jit
def entropy_bonus_2(loss_ptr, mean_ptr, count_ptr, sum_of_piece_ptr, sum_of_piece1_ptr, S, coef):
    # A program owns everything (rows).
    total = ((S + 1023) // 1024) + 4095  # value.py:80
    steps = total // 4096  # value.py:80
    full_steps = ((S + 1023) // 1024) // 4096  # value.py:80
    s_piece_lane = tl.arange(0, 4096)  # value.py:80
    s = negative_zero()  # value.py:80
    s_2 = tl.full((), 0, tl.int32)  # value.py:80
    for s_piece_step in tl.range(0, full_steps):  # value.py:80
        product = s_piece_step * 4096  # value.py:80
        s_piece = product + s_piece_lane  # value.py:80
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece)  # value.py:80
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece)  # value.py:80
        sum_s_piece_lane = sum_over_s_piece_lane(sum_of_piece)  # value.py:80
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(sum_of_piece1)  # value.py:80
        s_3 = s + sum_s_piece_lane  # value.py:80
        s_4 = s_2 + sum_s_piece_lane_2  # value.py:80
        s, s_2 = s_3, s_4  # value.py:80
    for s_piece_step in tl.range(full_steps, steps):  # value.py:80
        product = s_piece_step * 4096  # value.py:80
        s_piece = product + s_piece_lane  # value.py:80
        exists = s_piece < ((S + 1023) // 1024)  # value.py:80
        sum_of_piece = tl.load(sum_of_piece_ptr + s_piece, mask=exists, other=0.0)  # value.py:80
        sum_of_piece1 = tl.load(sum_of_piece1_ptr + s_piece, mask=exists, other=0)  # value.py:80
        chosen = tl.where(exists, sum_of_piece, negative_zero())  # value.py:80
        sum_s_piece_lane = sum_over_s_piece_lane(chosen)  # value.py:80
        chosen_2 = tl.where(exists, sum_of_piece1, 0)  # value.py:80
        sum_s_piece_lane_2 = sum_over_s_piece_lane_2(chosen_2)  # value.py:80
        s_3 = s + sum_s_piece_lane  # value.py:80
        s_4 = s_2 + sum_s_piece_lane_2  # value.py:80
        s, s_2 = s_3, s_4  # value.py:80
    total_2 = s + 0.0  # value.py:85
    larger = tl.maximum(s_2, 1)  # value.py:85
    as_f32 = larger.to(tl.float32)  # value.py:85
    quotient = tl.div_rn(total_2, as_f32)  # value.py:85
    product = coef * quotient  # value.py:87
    negative = product * -1.0  # value.py:87
    total_3 = negative + 0.0  # value.py:87
    tl.store(loss_ptr, total_3)  # value.py:87
    tl.store(mean_ptr, quotient)  # value.py:87
    tl.store(count_ptr, s_2)  # value.py:87


def call(kernels, entropy, order, active, sum_of_piece, sum_of_piece1, loss, mean, count, coef, S, T):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((S + 1023) // 1024)
    if programs > 0:
        kernels.entropy_bonus_1((programs,), entropy, order, active, sum_of_piece, sum_of_piece1, S, T)
    programs = 1
    if programs > 0:
        kernels.entropy_bonus_2((programs,), loss, mean, count, sum_of_piece, sum_of_piece1, S, coef)
