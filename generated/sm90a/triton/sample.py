"""sample on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 8c054c1a116dfd1c
schedule: tiles 1, 16 warps, 1 stages, unroll 1
schedule: tiles 1, 16 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def max_over_w_lane(x):
    # The max over W.lane: no order changes it.
    x = tl.reshape(x, (1024,))
    x = tl.max(x, 0)
    return x


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
def sum_over_w_lane(x):
    # The add over W.lane: no order changes it.
    x = tl.sum(x, 0)
    return tl.reshape(x, (1, 16))


@triton.jit
def max_over_j_piece(x):
    # The max over J.piece: no order changes it.
    x = tl.reshape(x, (16,))
    x = tl.max(x, 0)
    return x


@triton.jit
def sum_over_w_lane_2(x):
    # The add over W.lane: no order changes it.
    x = tl.reshape(x, (1024,))
    x = tl.sum(x, 0)
    return x


@triton.jit
def philox(c0, c1, c2, c3, k0, k1):
    # Four random words: Philox 4x32-10.
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high1, low1 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def sum_over_u_piece(x):
    # The add over U.piece: no order changes it.
    x = tl.reshape(x, (1024,))
    x = tl.sum(x, 0)
    return x


@triton.jit
def sum_over_u_piece_2(x):
    # The add over U.piece: no order changes it.
    x = tl.sum(x, 1)
    return tl.reshape(x, (16, 1))


@triton.jit
def sample_1(scores_ptr, inv_temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr, best_ptr, goal_ptr, cut_ptr, most_ties_ptr, scores_t_stride):
    # A program owns 1 of T (rows).
    t = tl.program_id(0)
    inv_temperature = tl.load(inv_temperature_ptr + t)  # sampling.py:312
    min_p = tl.load(min_p_ptr + t)  # sampling.py:318
    top_k = tl.load(top_k_ptr + t)  # sampling.py:320
    top_p = tl.load(top_p_ptr + t)  # sampling.py:322
    equal = inv_temperature == float("inf")  # sampling.py:312
    chosen = tl.where(equal, 1.0, inv_temperature)  # sampling.py:313
    w_lane = tl.arange(0, 1024)[:, None]  # sampling.py:315
    m = tl.full((1024, 1), float("-inf"), tl.float32)  # sampling.py:315
    w_state = tl.full((1024, 1), 2147483647, tl.int32)  # sampling.py:315
    for w_step in tl.range(0, 148):  # sampling.py:315
        product = w_step * 1024  # sampling.py:315
        w = product + w_lane  # sampling.py:315
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:316
        as_f32 = scores.to(tl.float32)  # sampling.py:316
        equal_2 = as_f32 == as_f32  # sampling.py:315
        chosen_2 = tl.where(equal_2, w, 2147483647)  # sampling.py:315
        below = m < as_f32  # sampling.py:315
        equal_3 = m == as_f32  # sampling.py:315
        below_2 = chosen_2 < w_state  # sampling.py:315
        both = equal_3 & below_2  # sampling.py:315
        either = below | both  # sampling.py:315
        m_2 = tl.where(either, as_f32, m)  # sampling.py:315
        index = tl.where(either, chosen_2, w_state)  # sampling.py:315
        m, w_state = m_2, index  # sampling.py:315
    for w_step in tl.range(148, 149):  # sampling.py:315
        product = w_step * 1024  # sampling.py:315
        w = product + w_lane  # sampling.py:315
        exists = w < 151936  # sampling.py:315
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists, other=0.0)  # sampling.py:316
        as_f32 = scores.to(tl.float32)  # sampling.py:316
        chosen_2 = tl.where(exists, as_f32, float("-inf"))  # sampling.py:315
        equal_2 = chosen_2 == chosen_2  # sampling.py:315
        chosen_3 = tl.where(equal_2, w, 2147483647)  # sampling.py:315
        chosen_4 = tl.where(exists, chosen_3, 2147483647)  # sampling.py:315
        below = m < chosen_2  # sampling.py:315
        equal_3 = m == chosen_2  # sampling.py:315
        below_2 = chosen_4 < w_state  # sampling.py:315
        both = equal_3 & below_2  # sampling.py:315
        either = below | both  # sampling.py:315
        m_2 = tl.where(either, chosen_2, m)  # sampling.py:315
        index = tl.where(either, chosen_4, w_state)  # sampling.py:315
        m, w_state = m_2, index  # sampling.py:315
    max_w_lane = max_over_w_lane(m)  # sampling.py:317
    log = portable_log(min_p)  # sampling.py:236
    quotient = tl.div_rn(log, chosen)  # sampling.py:238
    total = max_w_lane + quotient  # sampling.py:239
    larger = tl.maximum(total, float("-inf"))  # sampling.py:239
    smaller = tl.minimum(larger, max_w_lane)  # sampling.py:239
    larger_2 = tl.maximum(smaller, float("-inf"))  # sampling.py:113
    total_2 = larger_2 + 0.0  # sampling.py:113
    as_i32 = total_2.to(tl.int32, bitcast=True)  # sampling.py:113
    shifted = as_i32 >> 31  # sampling.py:114
    both = shifted & 2147483647  # sampling.py:114
    xor = as_i32 ^ both  # sampling.py:114
    below = xor < 0  # sampling.py:84
    total_3 = xor + 65535  # sampling.py:84
    chosen_2 = tl.where(below, xor, total_3)  # sampling.py:84
    shifted_2 = chosen_2 >> 16  # sampling.py:84
    difference = shifted_2 - 1  # sampling.py:240
    larger_3 = tl.maximum(difference, -32641)  # sampling.py:240
    below_2 = top_k > 0  # sampling.py:186
    below_3 = top_k < 151936  # sampling.py:186
    both_2 = below_2 & below_3  # sampling.py:186
    larger_4 = tl.maximum(max_w_lane, float("-inf"))  # sampling.py:113
    total_4 = larger_4 + 0.0  # sampling.py:113
    as_i32_2 = total_4.to(tl.int32, bitcast=True)  # sampling.py:113
    shifted_3 = as_i32_2 >> 31  # sampling.py:114
    both_3 = shifted_3 & 2147483647  # sampling.py:114
    xor_2 = as_i32_2 ^ both_3  # sampling.py:114
    shifted_4 = xor_2 >> 16  # sampling.py:72
    larger_5 = tl.maximum(m, float("-inf"))  # sampling.py:113
    total_5 = larger_5 + 0.0  # sampling.py:113
    as_i32_3 = total_5.to(tl.int32, bitcast=True)  # sampling.py:113
    shifted_5 = as_i32_3 >> 31  # sampling.py:114
    both_4 = shifted_5 & 2147483647  # sampling.py:114
    xor_3 = as_i32_3 ^ both_4  # sampling.py:114
    shifted_6 = xor_3 >> 16  # sampling.py:72
    j = tl.arange(0, 16)[None, :]  # sampling.py:139
    shifted_7 = j << 12  # sampling.py:139
    total_6 = shifted_7 + -32768  # sampling.py:139
    at_most = total_6 <= shifted_6  # sampling.py:190
    as_i32_4 = at_most.to(tl.int32)  # sampling.py:124
    sum_w_lane = sum_over_w_lane(as_i32_4)  # sampling.py:124
    at_most_2 = top_k <= sum_w_lane  # sampling.py:190
    chosen_3 = tl.where(at_most_2, j, 0)  # sampling.py:129
    max_j_piece = max_over_j_piece(chosen_3)  # sampling.py:129
    shifted_8 = max_j_piece << 12  # sampling.py:141
    total_7 = shifted_8 + -32768  # sampling.py:141
    shifted_9 = j << 8  # sampling.py:139
    total_8 = shifted_9 + total_7  # sampling.py:139
    at_most_3 = total_8 <= shifted_6  # sampling.py:190
    as_i32_5 = at_most_3.to(tl.int32)  # sampling.py:124
    sum_w_lane_2 = sum_over_w_lane(as_i32_5)  # sampling.py:124
    at_most_4 = top_k <= sum_w_lane_2  # sampling.py:190
    chosen_4 = tl.where(at_most_4, j, 0)  # sampling.py:129
    max_j_piece_2 = max_over_j_piece(chosen_4)  # sampling.py:129
    shifted_10 = max_j_piece_2 << 8  # sampling.py:141
    total_9 = shifted_10 + total_7  # sampling.py:141
    shifted_11 = j << 4  # sampling.py:139
    total_10 = shifted_11 + total_9  # sampling.py:139
    at_most_5 = total_10 <= shifted_6  # sampling.py:190
    as_i32_6 = at_most_5.to(tl.int32)  # sampling.py:124
    sum_w_lane_3 = sum_over_w_lane(as_i32_6)  # sampling.py:124
    at_most_6 = top_k <= sum_w_lane_3  # sampling.py:190
    chosen_5 = tl.where(at_most_6, j, 0)  # sampling.py:129
    max_j_piece_3 = max_over_j_piece(chosen_5)  # sampling.py:129
    shifted_12 = max_j_piece_3 << 4  # sampling.py:141
    total_11 = shifted_12 + total_9  # sampling.py:141
    total_12 = j + total_11  # sampling.py:139
    at_most_7 = total_12 <= shifted_6  # sampling.py:190
    as_i32_7 = at_most_7.to(tl.int32)  # sampling.py:124
    sum_w_lane_4 = sum_over_w_lane(as_i32_7)  # sampling.py:124
    at_most_8 = top_k <= sum_w_lane_4  # sampling.py:190
    chosen_6 = tl.where(at_most_8, j, 0)  # sampling.py:129
    max_j_piece_4 = max_over_j_piece(chosen_6)  # sampling.py:129
    total_13 = max_j_piece_4 + total_11  # sampling.py:141
    larger_6 = tl.maximum(total_13, -32641)  # sampling.py:199
    smaller_2 = tl.minimum(larger_6, shifted_4)  # sampling.py:199
    shifted_13 = smaller_2 >> 12  # sampling.py:143
    shifted_14 = shifted_4 >> 12  # sampling.py:143
    differs = shifted_13 != shifted_14  # sampling.py:143
    both_5 = both_2 & differs  # sampling.py:194
    steps = tl.where(both_5, tl.full((), 149, tl.int32), 0)  # sampling.py:194
    full_steps = tl.where(both_5, tl.full((), 148, tl.int32), 0)  # sampling.py:194
    s = tl.full((1024, 16), 0, tl.int32)  # sampling.py:194
    for w_step in tl.range(0, full_steps):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_14 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_14.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_15 = as_i32_8 >> 31  # sampling.py:114
        both_6 = shifted_15 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_6  # sampling.py:114
        shifted_16 = xor_4 >> 16  # sampling.py:72
        at_most_9 = total_6 <= shifted_16  # sampling.py:195
        as_i32_9 = at_most_9.to(tl.int32)  # sampling.py:195
        s_2 = s + as_i32_9  # sampling.py:194
        s = s_2  # sampling.py:194
    for w_step in tl.range(full_steps, steps):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        exists = w < 151936  # sampling.py:194
        exists_2 = exists & both_5  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_14 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_14.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_15 = as_i32_8 >> 31  # sampling.py:114
        both_6 = shifted_15 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_6  # sampling.py:114
        shifted_16 = xor_4 >> 16  # sampling.py:72
        at_most_9 = total_6 <= shifted_16  # sampling.py:195
        as_i32_9 = at_most_9.to(tl.int32)  # sampling.py:195
        chosen_7 = tl.where(exists_2, as_i32_9, 0)  # sampling.py:194
        s_2 = s + chosen_7  # sampling.py:194
        s = s_2  # sampling.py:194
    sum_w_lane_5 = sum_over_w_lane(s)  # sampling.py:196
    at_most_9 = top_k <= sum_w_lane_5  # sampling.py:196
    chosen_7 = tl.where(at_most_9, j, 0)  # sampling.py:129
    max_j_piece_5 = max_over_j_piece(chosen_7)  # sampling.py:129
    shifted_15 = max_j_piece_5 << 12  # sampling.py:145
    total_14 = shifted_15 + -32768  # sampling.py:145
    shifted_16 = shifted_13 << 12  # sampling.py:145
    chosen_8 = tl.where(differs, total_14, shifted_16)  # sampling.py:145
    total_15 = shifted_9 + chosen_8  # sampling.py:139
    shifted_17 = smaller_2 >> 8  # sampling.py:143
    shifted_18 = shifted_4 >> 8  # sampling.py:143
    differs_2 = shifted_17 != shifted_18  # sampling.py:143
    both_6 = both_2 & differs_2  # sampling.py:194
    steps_2 = tl.where(both_6, tl.full((), 149, tl.int32), 0)  # sampling.py:194
    full_steps_2 = tl.where(both_6, tl.full((), 148, tl.int32), 0)  # sampling.py:194
    s_2 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:194
    for w_step in tl.range(0, full_steps_2):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_16 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_16.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_19 = as_i32_8 >> 31  # sampling.py:114
        both_7 = shifted_19 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_7  # sampling.py:114
        shifted_20 = xor_4 >> 16  # sampling.py:72
        at_most_10 = total_15 <= shifted_20  # sampling.py:195
        as_i32_9 = at_most_10.to(tl.int32)  # sampling.py:195
        s_3 = s_2 + as_i32_9  # sampling.py:194
        s_2 = s_3  # sampling.py:194
    for w_step in tl.range(full_steps_2, steps_2):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        exists = w < 151936  # sampling.py:194
        exists_2 = exists & both_6  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_16 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_16.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_19 = as_i32_8 >> 31  # sampling.py:114
        both_7 = shifted_19 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_7  # sampling.py:114
        shifted_20 = xor_4 >> 16  # sampling.py:72
        at_most_10 = total_15 <= shifted_20  # sampling.py:195
        as_i32_9 = at_most_10.to(tl.int32)  # sampling.py:195
        chosen_9 = tl.where(exists_2, as_i32_9, 0)  # sampling.py:194
        s_3 = s_2 + chosen_9  # sampling.py:194
        s_2 = s_3  # sampling.py:194
    sum_w_lane_6 = sum_over_w_lane(s_2)  # sampling.py:196
    at_most_10 = top_k <= sum_w_lane_6  # sampling.py:196
    chosen_9 = tl.where(at_most_10, j, 0)  # sampling.py:129
    max_j_piece_6 = max_over_j_piece(chosen_9)  # sampling.py:129
    shifted_19 = max_j_piece_6 << 8  # sampling.py:145
    total_16 = shifted_19 + chosen_8  # sampling.py:145
    shifted_20 = shifted_17 << 8  # sampling.py:145
    chosen_10 = tl.where(differs_2, total_16, shifted_20)  # sampling.py:145
    total_17 = shifted_11 + chosen_10  # sampling.py:139
    shifted_21 = smaller_2 >> 4  # sampling.py:143
    shifted_22 = shifted_4 >> 4  # sampling.py:143
    differs_3 = shifted_21 != shifted_22  # sampling.py:143
    both_7 = both_2 & differs_3  # sampling.py:194
    steps_3 = tl.where(both_7, tl.full((), 149, tl.int32), 0)  # sampling.py:194
    full_steps_3 = tl.where(both_7, tl.full((), 148, tl.int32), 0)  # sampling.py:194
    s_3 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:194
    for w_step in tl.range(0, full_steps_3):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_18 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_18.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_23 = as_i32_8 >> 31  # sampling.py:114
        both_8 = shifted_23 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_8  # sampling.py:114
        shifted_24 = xor_4 >> 16  # sampling.py:72
        at_most_11 = total_17 <= shifted_24  # sampling.py:195
        as_i32_9 = at_most_11.to(tl.int32)  # sampling.py:195
        s_4 = s_3 + as_i32_9  # sampling.py:194
        s_3 = s_4  # sampling.py:194
    for w_step in tl.range(full_steps_3, steps_3):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        exists = w < 151936  # sampling.py:194
        exists_2 = exists & both_7  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_18 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_18.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_23 = as_i32_8 >> 31  # sampling.py:114
        both_8 = shifted_23 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_8  # sampling.py:114
        shifted_24 = xor_4 >> 16  # sampling.py:72
        at_most_11 = total_17 <= shifted_24  # sampling.py:195
        as_i32_9 = at_most_11.to(tl.int32)  # sampling.py:195
        chosen_11 = tl.where(exists_2, as_i32_9, 0)  # sampling.py:194
        s_4 = s_3 + chosen_11  # sampling.py:194
        s_3 = s_4  # sampling.py:194
    sum_w_lane_7 = sum_over_w_lane(s_3)  # sampling.py:196
    at_most_11 = top_k <= sum_w_lane_7  # sampling.py:196
    chosen_11 = tl.where(at_most_11, j, 0)  # sampling.py:129
    max_j_piece_7 = max_over_j_piece(chosen_11)  # sampling.py:129
    shifted_23 = max_j_piece_7 << 4  # sampling.py:145
    total_18 = shifted_23 + chosen_10  # sampling.py:145
    shifted_24 = shifted_21 << 4  # sampling.py:145
    chosen_12 = tl.where(differs_3, total_18, shifted_24)  # sampling.py:145
    total_19 = j + chosen_12  # sampling.py:139
    differs_4 = smaller_2 != shifted_4  # sampling.py:143
    both_8 = both_2 & differs_4  # sampling.py:194
    steps_4 = tl.where(both_8, tl.full((), 149, tl.int32), 0)  # sampling.py:194
    full_steps_4 = tl.where(both_8, tl.full((), 148, tl.int32), 0)  # sampling.py:194
    s_4 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:194
    for w_step in tl.range(0, full_steps_4):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_20 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_20.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_25 = as_i32_8 >> 31  # sampling.py:114
        both_9 = shifted_25 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_9  # sampling.py:114
        shifted_26 = xor_4 >> 16  # sampling.py:72
        at_most_12 = total_19 <= shifted_26  # sampling.py:195
        as_i32_9 = at_most_12.to(tl.int32)  # sampling.py:195
        s_5 = s_4 + as_i32_9  # sampling.py:194
        s_4 = s_5  # sampling.py:194
    for w_step in tl.range(full_steps_4, steps_4):  # sampling.py:194
        product = w_step * 1024  # sampling.py:194
        w = product + w_lane  # sampling.py:194
        exists = w < 151936  # sampling.py:194
        exists_2 = exists & both_8  # sampling.py:194
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:195
        as_f32 = scores.to(tl.float32)  # sampling.py:195
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_20 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_20.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_25 = as_i32_8 >> 31  # sampling.py:114
        both_9 = shifted_25 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_9  # sampling.py:114
        shifted_26 = xor_4 >> 16  # sampling.py:72
        at_most_12 = total_19 <= shifted_26  # sampling.py:195
        as_i32_9 = at_most_12.to(tl.int32)  # sampling.py:195
        chosen_13 = tl.where(exists_2, as_i32_9, 0)  # sampling.py:194
        s_5 = s_4 + chosen_13  # sampling.py:194
        s_4 = s_5  # sampling.py:194
    sum_w_lane_8 = sum_over_w_lane(s_4)  # sampling.py:196
    at_most_12 = top_k <= sum_w_lane_8  # sampling.py:196
    chosen_13 = tl.where(at_most_12, j, 0)  # sampling.py:129
    max_j_piece_8 = max_over_j_piece(chosen_13)  # sampling.py:129
    total_20 = max_j_piece_8 + chosen_12  # sampling.py:145
    chosen_14 = tl.where(differs_4, total_20, smaller_2)  # sampling.py:145
    below_4 = larger_3 < chosen_14  # sampling.py:201
    both_9 = both_2 & below_4  # sampling.py:201
    chosen_15 = tl.where(both_9, chosen_14, larger_3)  # sampling.py:202
    product = max_w_lane * chosen  # sampling.py:87
    s_5 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:174
    s_6 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:174
    s_7 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:174
    for w_step in tl.range(0, 148):  # sampling.py:174
        product_2 = w_step * 1024  # sampling.py:174
        w = product_2 + w_lane  # sampling.py:174
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:175
        as_f32 = scores.to(tl.float32)  # sampling.py:175
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_21 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_21.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_25 = as_i32_8 >> 31  # sampling.py:114
        both_10 = shifted_25 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_10  # sampling.py:114
        shifted_26 = xor_4 >> 16  # sampling.py:72
        below_5 = chosen_15 < shifted_26  # sampling.py:177
        as_i32_9 = below_5.to(tl.int32)  # sampling.py:177
        product_3 = as_f32 * chosen  # sampling.py:87
        difference_2 = product_3 - product  # sampling.py:91
        product_4 = difference_2 * 1.442695  # sampling.py:91
        exp2 = tl.exp2(product_4)  # sampling.py:91
        equal_2 = as_f32 == max_w_lane  # sampling.py:93
        larger_8 = tl.maximum(exp2, 0.0)  # sampling.py:93
        chosen_16 = tl.where(equal_2, 1.0, larger_8)  # sampling.py:93
        total_22 = chosen_16 + 2.0  # sampling.py:95
        as_i32_10 = total_22.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_3 = as_i32_10 - 1073741824  # sampling.py:95
        chosen_17 = tl.where(below_5, difference_3, 0)  # sampling.py:178
        equal_3 = shifted_26 == chosen_15  # sampling.py:179
        as_i32_11 = equal_3.to(tl.int32)  # sampling.py:179
        s_8 = s_5 + as_i32_9  # sampling.py:174
        s_9 = s_6 + chosen_17  # sampling.py:174
        s_10 = s_7 + as_i32_11  # sampling.py:174
        s_5, s_6, s_7 = s_8, s_9, s_10  # sampling.py:174
    for w_step in tl.range(148, 149):  # sampling.py:174
        product_2 = w_step * 1024  # sampling.py:174
        w = product_2 + w_lane  # sampling.py:174
        exists = w < 151936  # sampling.py:174
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists, other=0.0)  # sampling.py:175
        as_f32 = scores.to(tl.float32)  # sampling.py:175
        larger_7 = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_21 = larger_7 + 0.0  # sampling.py:113
        as_i32_8 = total_21.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_25 = as_i32_8 >> 31  # sampling.py:114
        both_10 = shifted_25 & 2147483647  # sampling.py:114
        xor_4 = as_i32_8 ^ both_10  # sampling.py:114
        shifted_26 = xor_4 >> 16  # sampling.py:72
        below_5 = chosen_15 < shifted_26  # sampling.py:177
        as_i32_9 = below_5.to(tl.int32)  # sampling.py:177
        product_3 = as_f32 * chosen  # sampling.py:87
        difference_2 = product_3 - product  # sampling.py:91
        product_4 = difference_2 * 1.442695  # sampling.py:91
        exp2 = tl.exp2(product_4)  # sampling.py:91
        equal_2 = as_f32 == max_w_lane  # sampling.py:93
        larger_8 = tl.maximum(exp2, 0.0)  # sampling.py:93
        chosen_16 = tl.where(equal_2, 1.0, larger_8)  # sampling.py:93
        total_22 = chosen_16 + 2.0  # sampling.py:95
        as_i32_10 = total_22.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_3 = as_i32_10 - 1073741824  # sampling.py:95
        chosen_17 = tl.where(below_5, difference_3, 0)  # sampling.py:178
        equal_3 = shifted_26 == chosen_15  # sampling.py:179
        as_i32_11 = equal_3.to(tl.int32)  # sampling.py:179
        chosen_18 = tl.where(exists, as_i32_9, 0)  # sampling.py:174
        chosen_19 = tl.where(exists, chosen_17, 0)  # sampling.py:174
        chosen_20 = tl.where(exists, as_i32_11, 0)  # sampling.py:174
        s_8 = s_5 + chosen_18  # sampling.py:174
        s_9 = s_6 + chosen_19  # sampling.py:174
        s_10 = s_7 + chosen_20  # sampling.py:174
        s_5, s_6, s_7 = s_8, s_9, s_10  # sampling.py:174
    sum_w_lane_9 = sum_over_w_lane_2(s_5)  # sampling.py:180
    both_10 = s_6 & 65535  # sampling.py:119
    sum_w_lane_10 = sum_over_w_lane_2(both_10)  # sampling.py:119
    shifted_25 = s_6 >> 16  # sampling.py:119
    sum_w_lane_11 = sum_over_w_lane_2(shifted_25)  # sampling.py:119
    as_i64 = sum_w_lane_11.to(tl.int64)  # sampling.py:120
    shifted_26 = as_i64 << 16  # sampling.py:120
    as_i64_2 = sum_w_lane_10.to(tl.int64)  # sampling.py:120
    total_21 = shifted_26 + as_i64_2  # sampling.py:120
    sum_w_lane_12 = sum_over_w_lane_2(s_7)  # sampling.py:180
    difference_2 = top_k - sum_w_lane_9  # sampling.py:204
    smaller_3 = tl.minimum(sum_w_lane_12, difference_2)  # sampling.py:204
    chosen_16 = tl.where(both_9, smaller_3, 0)  # sampling.py:204
    below_5 = top_p < 1.0  # sampling.py:210
    as_i64_3 = chosen_16.to(tl.int64)  # sampling.py:212
    shifted_27 = chosen_15 << 16  # sampling.py:76
    below_6 = chosen_15 < 0  # sampling.py:78
    either = shifted_27 | 65535  # sampling.py:78
    chosen_17 = tl.where(below_6, either, shifted_27)  # sampling.py:78
    shifted_28 = chosen_17 >> 31  # sampling.py:79
    both_11 = shifted_28 & 2147483647  # sampling.py:79
    xor_4 = chosen_17 ^ both_11  # sampling.py:79
    as_f32 = xor_4.to(tl.float32, bitcast=True)  # sampling.py:79
    product_2 = as_f32 * chosen  # sampling.py:87
    difference_3 = product_2 - product  # sampling.py:91
    product_3 = difference_3 * 1.442695  # sampling.py:91
    exp2 = tl.exp2(product_3)  # sampling.py:91
    equal_2 = as_f32 == max_w_lane  # sampling.py:93
    larger_7 = tl.maximum(exp2, 0.0)  # sampling.py:93
    chosen_18 = tl.where(equal_2, 1.0, larger_7)  # sampling.py:93
    total_22 = chosen_18 + 2.0  # sampling.py:95
    as_i32_8 = total_22.to(tl.int32, bitcast=True)  # sampling.py:95
    difference_4 = as_i32_8 - 1073741824  # sampling.py:95
    as_i64_4 = difference_4.to(tl.int64)  # sampling.py:212
    product_4 = as_i64_3 * as_i64_4  # sampling.py:212
    larger_8 = tl.maximum(top_p, 0.0)  # sampling.py:213
    smaller_4 = tl.minimum(larger_8, 1.0)  # sampling.py:213
    product_5 = smaller_4 * 1048576.0  # sampling.py:213
    as_i64_5 = product_5.to(tl.int64)  # sampling.py:213
    total_23 = total_21 + product_4  # sampling.py:214
    product_6 = total_23 * as_i64_5  # sampling.py:214
    total_24 = product_6 + 1048575  # sampling.py:214
    shifted_29 = total_24 >> 20  # sampling.py:214
    larger_9 = tl.maximum(shifted_29, 1)  # sampling.py:214
    product_7 = m * chosen  # sampling.py:87
    difference_5 = product_7 - product  # sampling.py:91
    product_8 = difference_5 * 1.442695  # sampling.py:91
    exp2_2 = tl.exp2(product_8)  # sampling.py:91
    equal_3 = m == max_w_lane  # sampling.py:93
    larger_10 = tl.maximum(exp2_2, 0.0)  # sampling.py:93
    chosen_19 = tl.where(equal_3, 1.0, larger_10)  # sampling.py:93
    total_25 = chosen_19 + 2.0  # sampling.py:95
    as_i32_9 = total_25.to(tl.int32, bitcast=True)  # sampling.py:95
    difference_6 = as_i32_9 - 1073741824  # sampling.py:95
    chosen_20 = tl.where(at_most, difference_6, 0)  # sampling.py:218
    both_12 = chosen_20 & 65535  # sampling.py:119
    sum_w_lane_13 = sum_over_w_lane(both_12)  # sampling.py:119
    shifted_30 = chosen_20 >> 16  # sampling.py:119
    sum_w_lane_14 = sum_over_w_lane(shifted_30)  # sampling.py:119
    as_i64_6 = sum_w_lane_14.to(tl.int64)  # sampling.py:120
    shifted_31 = as_i64_6 << 16  # sampling.py:120
    as_i64_7 = sum_w_lane_13.to(tl.int64)  # sampling.py:120
    total_26 = shifted_31 + as_i64_7  # sampling.py:120
    at_most_13 = larger_9 <= total_26  # sampling.py:218
    chosen_21 = tl.where(at_most_13, j, 0)  # sampling.py:129
    max_j_piece_9 = max_over_j_piece(chosen_21)  # sampling.py:129
    shifted_32 = max_j_piece_9 << 12  # sampling.py:141
    total_27 = shifted_32 + -32768  # sampling.py:141
    total_28 = shifted_9 + total_27  # sampling.py:139
    at_most_14 = total_28 <= shifted_6  # sampling.py:218
    chosen_22 = tl.where(at_most_14, difference_6, 0)  # sampling.py:218
    both_13 = chosen_22 & 65535  # sampling.py:119
    sum_w_lane_15 = sum_over_w_lane(both_13)  # sampling.py:119
    shifted_33 = chosen_22 >> 16  # sampling.py:119
    sum_w_lane_16 = sum_over_w_lane(shifted_33)  # sampling.py:119
    as_i64_8 = sum_w_lane_16.to(tl.int64)  # sampling.py:120
    shifted_34 = as_i64_8 << 16  # sampling.py:120
    as_i64_9 = sum_w_lane_15.to(tl.int64)  # sampling.py:120
    total_29 = shifted_34 + as_i64_9  # sampling.py:120
    at_most_15 = larger_9 <= total_29  # sampling.py:218
    chosen_23 = tl.where(at_most_15, j, 0)  # sampling.py:129
    max_j_piece_10 = max_over_j_piece(chosen_23)  # sampling.py:129
    shifted_35 = max_j_piece_10 << 8  # sampling.py:141
    total_30 = shifted_35 + total_27  # sampling.py:141
    total_31 = shifted_11 + total_30  # sampling.py:139
    at_most_16 = total_31 <= shifted_6  # sampling.py:218
    chosen_24 = tl.where(at_most_16, difference_6, 0)  # sampling.py:218
    both_14 = chosen_24 & 65535  # sampling.py:119
    sum_w_lane_17 = sum_over_w_lane(both_14)  # sampling.py:119
    shifted_36 = chosen_24 >> 16  # sampling.py:119
    sum_w_lane_18 = sum_over_w_lane(shifted_36)  # sampling.py:119
    as_i64_10 = sum_w_lane_18.to(tl.int64)  # sampling.py:120
    shifted_37 = as_i64_10 << 16  # sampling.py:120
    as_i64_11 = sum_w_lane_17.to(tl.int64)  # sampling.py:120
    total_32 = shifted_37 + as_i64_11  # sampling.py:120
    at_most_17 = larger_9 <= total_32  # sampling.py:218
    chosen_25 = tl.where(at_most_17, j, 0)  # sampling.py:129
    max_j_piece_11 = max_over_j_piece(chosen_25)  # sampling.py:129
    shifted_38 = max_j_piece_11 << 4  # sampling.py:141
    total_33 = shifted_38 + total_30  # sampling.py:141
    total_34 = j + total_33  # sampling.py:139
    at_most_18 = total_34 <= shifted_6  # sampling.py:218
    chosen_26 = tl.where(at_most_18, difference_6, 0)  # sampling.py:218
    both_15 = chosen_26 & 65535  # sampling.py:119
    sum_w_lane_19 = sum_over_w_lane(both_15)  # sampling.py:119
    shifted_39 = chosen_26 >> 16  # sampling.py:119
    sum_w_lane_20 = sum_over_w_lane(shifted_39)  # sampling.py:119
    as_i64_12 = sum_w_lane_20.to(tl.int64)  # sampling.py:120
    shifted_40 = as_i64_12 << 16  # sampling.py:120
    as_i64_13 = sum_w_lane_19.to(tl.int64)  # sampling.py:120
    total_35 = shifted_40 + as_i64_13  # sampling.py:120
    at_most_19 = larger_9 <= total_35  # sampling.py:218
    chosen_27 = tl.where(at_most_19, j, 0)  # sampling.py:129
    max_j_piece_12 = max_over_j_piece(chosen_27)  # sampling.py:129
    total_36 = max_j_piece_12 + total_33  # sampling.py:141
    larger_11 = tl.maximum(total_36, chosen_15)  # sampling.py:227
    smaller_5 = tl.minimum(larger_11, shifted_4)  # sampling.py:227
    shifted_41 = smaller_5 >> 12  # sampling.py:143
    differs_5 = shifted_41 != shifted_14  # sampling.py:143
    both_16 = below_5 & differs_5  # sampling.py:222
    steps_5 = tl.where(both_16, tl.full((), 149, tl.int32), 0)  # sampling.py:222
    full_steps_5 = tl.where(both_16, tl.full((), 148, tl.int32), 0)  # sampling.py:222
    s_8 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:222
    for w_step in tl.range(0, full_steps_5):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_37 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_37.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_42 = as_i32_10 >> 31  # sampling.py:114
        both_17 = shifted_42 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_17  # sampling.py:114
        shifted_43 = xor_5 >> 16  # sampling.py:72
        at_most_20 = total_6 <= shifted_43  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_28 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_38 = chosen_28 + 2.0  # sampling.py:95
        as_i32_11 = total_38.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_29 = tl.where(at_most_20, difference_8, 0)  # sampling.py:224
        s_9 = s_8 + chosen_29  # sampling.py:222
        s_8 = s_9  # sampling.py:222
    for w_step in tl.range(full_steps_5, steps_5):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        exists = w < 151936  # sampling.py:222
        exists_2 = exists & both_16  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_37 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_37.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_42 = as_i32_10 >> 31  # sampling.py:114
        both_17 = shifted_42 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_17  # sampling.py:114
        shifted_43 = xor_5 >> 16  # sampling.py:72
        at_most_20 = total_6 <= shifted_43  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_28 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_38 = chosen_28 + 2.0  # sampling.py:95
        as_i32_11 = total_38.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_29 = tl.where(at_most_20, difference_8, 0)  # sampling.py:224
        chosen_30 = tl.where(exists_2, chosen_29, 0)  # sampling.py:222
        s_9 = s_8 + chosen_30  # sampling.py:222
        s_8 = s_9  # sampling.py:222
    both_17 = s_8 & 65535  # sampling.py:119
    sum_w_lane_21 = sum_over_w_lane(both_17)  # sampling.py:119
    shifted_42 = s_8 >> 16  # sampling.py:119
    sum_w_lane_22 = sum_over_w_lane(shifted_42)  # sampling.py:119
    as_i64_14 = sum_w_lane_22.to(tl.int64)  # sampling.py:120
    shifted_43 = as_i64_14 << 16  # sampling.py:120
    as_i64_15 = sum_w_lane_21.to(tl.int64)  # sampling.py:120
    total_37 = shifted_43 + as_i64_15  # sampling.py:120
    at_most_20 = larger_9 <= total_37  # sampling.py:225
    chosen_28 = tl.where(at_most_20, j, 0)  # sampling.py:129
    max_j_piece_13 = max_over_j_piece(chosen_28)  # sampling.py:129
    shifted_44 = max_j_piece_13 << 12  # sampling.py:145
    total_38 = shifted_44 + -32768  # sampling.py:145
    shifted_45 = shifted_41 << 12  # sampling.py:145
    chosen_29 = tl.where(differs_5, total_38, shifted_45)  # sampling.py:145
    total_39 = shifted_9 + chosen_29  # sampling.py:139
    shifted_46 = smaller_5 >> 8  # sampling.py:143
    differs_6 = shifted_46 != shifted_18  # sampling.py:143
    both_18 = below_5 & differs_6  # sampling.py:222
    steps_6 = tl.where(both_18, tl.full((), 149, tl.int32), 0)  # sampling.py:222
    full_steps_6 = tl.where(both_18, tl.full((), 148, tl.int32), 0)  # sampling.py:222
    s_9 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:222
    for w_step in tl.range(0, full_steps_6):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_40 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_40.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_47 = as_i32_10 >> 31  # sampling.py:114
        both_19 = shifted_47 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_19  # sampling.py:114
        shifted_48 = xor_5 >> 16  # sampling.py:72
        at_most_21 = total_39 <= shifted_48  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_30 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_41 = chosen_30 + 2.0  # sampling.py:95
        as_i32_11 = total_41.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_31 = tl.where(at_most_21, difference_8, 0)  # sampling.py:224
        s_10 = s_9 + chosen_31  # sampling.py:222
        s_9 = s_10  # sampling.py:222
    for w_step in tl.range(full_steps_6, steps_6):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        exists = w < 151936  # sampling.py:222
        exists_2 = exists & both_18  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_40 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_40.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_47 = as_i32_10 >> 31  # sampling.py:114
        both_19 = shifted_47 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_19  # sampling.py:114
        shifted_48 = xor_5 >> 16  # sampling.py:72
        at_most_21 = total_39 <= shifted_48  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_30 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_41 = chosen_30 + 2.0  # sampling.py:95
        as_i32_11 = total_41.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_31 = tl.where(at_most_21, difference_8, 0)  # sampling.py:224
        chosen_32 = tl.where(exists_2, chosen_31, 0)  # sampling.py:222
        s_10 = s_9 + chosen_32  # sampling.py:222
        s_9 = s_10  # sampling.py:222
    both_19 = s_9 & 65535  # sampling.py:119
    sum_w_lane_23 = sum_over_w_lane(both_19)  # sampling.py:119
    shifted_47 = s_9 >> 16  # sampling.py:119
    sum_w_lane_24 = sum_over_w_lane(shifted_47)  # sampling.py:119
    as_i64_16 = sum_w_lane_24.to(tl.int64)  # sampling.py:120
    shifted_48 = as_i64_16 << 16  # sampling.py:120
    as_i64_17 = sum_w_lane_23.to(tl.int64)  # sampling.py:120
    total_40 = shifted_48 + as_i64_17  # sampling.py:120
    at_most_21 = larger_9 <= total_40  # sampling.py:225
    chosen_30 = tl.where(at_most_21, j, 0)  # sampling.py:129
    max_j_piece_14 = max_over_j_piece(chosen_30)  # sampling.py:129
    shifted_49 = max_j_piece_14 << 8  # sampling.py:145
    total_41 = shifted_49 + chosen_29  # sampling.py:145
    shifted_50 = shifted_46 << 8  # sampling.py:145
    chosen_31 = tl.where(differs_6, total_41, shifted_50)  # sampling.py:145
    total_42 = shifted_11 + chosen_31  # sampling.py:139
    shifted_51 = smaller_5 >> 4  # sampling.py:143
    differs_7 = shifted_51 != shifted_22  # sampling.py:143
    both_20 = below_5 & differs_7  # sampling.py:222
    steps_7 = tl.where(both_20, tl.full((), 149, tl.int32), 0)  # sampling.py:222
    full_steps_7 = tl.where(both_20, tl.full((), 148, tl.int32), 0)  # sampling.py:222
    s_10 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:222
    for w_step in tl.range(0, full_steps_7):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_43 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_43.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_52 = as_i32_10 >> 31  # sampling.py:114
        both_21 = shifted_52 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_21  # sampling.py:114
        shifted_53 = xor_5 >> 16  # sampling.py:72
        at_most_22 = total_42 <= shifted_53  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_32 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_44 = chosen_32 + 2.0  # sampling.py:95
        as_i32_11 = total_44.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_33 = tl.where(at_most_22, difference_8, 0)  # sampling.py:224
        s_11 = s_10 + chosen_33  # sampling.py:222
        s_10 = s_11  # sampling.py:222
    for w_step in tl.range(full_steps_7, steps_7):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        exists = w < 151936  # sampling.py:222
        exists_2 = exists & both_20  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_43 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_43.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_52 = as_i32_10 >> 31  # sampling.py:114
        both_21 = shifted_52 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_21  # sampling.py:114
        shifted_53 = xor_5 >> 16  # sampling.py:72
        at_most_22 = total_42 <= shifted_53  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_32 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_44 = chosen_32 + 2.0  # sampling.py:95
        as_i32_11 = total_44.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_33 = tl.where(at_most_22, difference_8, 0)  # sampling.py:224
        chosen_34 = tl.where(exists_2, chosen_33, 0)  # sampling.py:222
        s_11 = s_10 + chosen_34  # sampling.py:222
        s_10 = s_11  # sampling.py:222
    both_21 = s_10 & 65535  # sampling.py:119
    sum_w_lane_25 = sum_over_w_lane(both_21)  # sampling.py:119
    shifted_52 = s_10 >> 16  # sampling.py:119
    sum_w_lane_26 = sum_over_w_lane(shifted_52)  # sampling.py:119
    as_i64_18 = sum_w_lane_26.to(tl.int64)  # sampling.py:120
    shifted_53 = as_i64_18 << 16  # sampling.py:120
    as_i64_19 = sum_w_lane_25.to(tl.int64)  # sampling.py:120
    total_43 = shifted_53 + as_i64_19  # sampling.py:120
    at_most_22 = larger_9 <= total_43  # sampling.py:225
    chosen_32 = tl.where(at_most_22, j, 0)  # sampling.py:129
    max_j_piece_15 = max_over_j_piece(chosen_32)  # sampling.py:129
    shifted_54 = max_j_piece_15 << 4  # sampling.py:145
    total_44 = shifted_54 + chosen_31  # sampling.py:145
    shifted_55 = shifted_51 << 4  # sampling.py:145
    chosen_33 = tl.where(differs_7, total_44, shifted_55)  # sampling.py:145
    total_45 = j + chosen_33  # sampling.py:139
    differs_8 = smaller_5 != shifted_4  # sampling.py:143
    both_22 = below_5 & differs_8  # sampling.py:222
    steps_8 = tl.where(both_22, tl.full((), 149, tl.int32), 0)  # sampling.py:222
    full_steps_8 = tl.where(both_22, tl.full((), 148, tl.int32), 0)  # sampling.py:222
    s_11 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:222
    for w_step in tl.range(0, full_steps_8):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_46 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_46.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_56 = as_i32_10 >> 31  # sampling.py:114
        both_23 = shifted_56 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_23  # sampling.py:114
        shifted_57 = xor_5 >> 16  # sampling.py:72
        at_most_23 = total_45 <= shifted_57  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_34 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_47 = chosen_34 + 2.0  # sampling.py:95
        as_i32_11 = total_47.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_35 = tl.where(at_most_23, difference_8, 0)  # sampling.py:224
        s_12 = s_11 + chosen_35  # sampling.py:222
        s_11 = s_12  # sampling.py:222
    for w_step in tl.range(full_steps_8, steps_8):  # sampling.py:222
        product_9 = w_step * 1024  # sampling.py:222
        w = product_9 + w_lane  # sampling.py:222
        exists = w < 151936  # sampling.py:222
        exists_2 = exists & both_22  # sampling.py:222
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:223
        as_f32_2 = scores.to(tl.float32)  # sampling.py:223
        larger_12 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
        total_46 = larger_12 + 0.0  # sampling.py:113
        as_i32_10 = total_46.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_56 = as_i32_10 >> 31  # sampling.py:114
        both_23 = shifted_56 & 2147483647  # sampling.py:114
        xor_5 = as_i32_10 ^ both_23  # sampling.py:114
        shifted_57 = xor_5 >> 16  # sampling.py:72
        at_most_23 = total_45 <= shifted_57  # sampling.py:224
        product_10 = as_f32_2 * chosen  # sampling.py:87
        difference_7 = product_10 - product  # sampling.py:91
        product_11 = difference_7 * 1.442695  # sampling.py:91
        exp2_3 = tl.exp2(product_11)  # sampling.py:91
        equal_4 = as_f32_2 == max_w_lane  # sampling.py:93
        larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:93
        chosen_34 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:93
        total_47 = chosen_34 + 2.0  # sampling.py:95
        as_i32_11 = total_47.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_8 = as_i32_11 - 1073741824  # sampling.py:95
        chosen_35 = tl.where(at_most_23, difference_8, 0)  # sampling.py:224
        chosen_36 = tl.where(exists_2, chosen_35, 0)  # sampling.py:222
        s_12 = s_11 + chosen_36  # sampling.py:222
        s_11 = s_12  # sampling.py:222
    both_23 = s_11 & 65535  # sampling.py:119
    sum_w_lane_27 = sum_over_w_lane(both_23)  # sampling.py:119
    shifted_56 = s_11 >> 16  # sampling.py:119
    sum_w_lane_28 = sum_over_w_lane(shifted_56)  # sampling.py:119
    as_i64_20 = sum_w_lane_28.to(tl.int64)  # sampling.py:120
    shifted_57 = as_i64_20 << 16  # sampling.py:120
    as_i64_21 = sum_w_lane_27.to(tl.int64)  # sampling.py:120
    total_46 = shifted_57 + as_i64_21  # sampling.py:120
    at_most_23 = larger_9 <= total_46  # sampling.py:225
    chosen_34 = tl.where(at_most_23, j, 0)  # sampling.py:129
    max_j_piece_16 = max_over_j_piece(chosen_34)  # sampling.py:129
    total_47 = max_j_piece_16 + chosen_33  # sampling.py:145
    chosen_35 = tl.where(differs_8, total_47, smaller_5)  # sampling.py:145
    below_7 = chosen_15 < chosen_35  # sampling.py:229
    both_24 = below_5 & below_7  # sampling.py:229
    chosen_36 = tl.where(both_24, 2147483647, chosen_16)  # sampling.py:230
    chosen_37 = tl.where(both_24, chosen_35, chosen_15)  # sampling.py:231
    chosen_38 = tl.where(below_5, larger_9, 4611686018427387904)  # sampling.py:231
    chosen_39 = tl.where(equal, 4611686018427387904, chosen_38)  # sampling.py:324
    chosen_40 = tl.where(equal, shifted_4, chosen_37)  # sampling.py:326
    chosen_41 = tl.where(equal, 1, chosen_36)  # sampling.py:326
    tl.store(best_ptr + t, max_w_lane)  # sampling.py:328
    tl.store(goal_ptr + t, chosen_39)  # sampling.py:329
    tl.store(cut_ptr + t, chosen_40)  # sampling.py:330
    tl.store(most_ties_ptr + t, chosen_41)  # sampling.py:330


@triton.jit
def sample_2(blocks_ptr, seed_ptr, request_id_ptr, position_ptr, inv_temperature_ptr, token_ptr, threshold_ptr, ties_ptr, last_ptr, best_ptr, goal_ptr, cut_ptr, most_ties_ptr, blocks_t_stride, errors_ptr):
    # A program owns 1 of T (rows).
    t = tl.program_id(0)
    inv_temperature = tl.load(inv_temperature_ptr + t)  # sampling.py:312
    request_id = tl.load(request_id_ptr + t)  # sampling.py:248
    position = tl.load(position_ptr + t)  # sampling.py:248
    seed = tl.load(seed_ptr + t)  # sampling.py:248
    equal = inv_temperature == float("inf")  # sampling.py:312
    chosen = tl.where(equal, 1.0, inv_temperature)  # sampling.py:313
    j = tl.arange(0, 16)[:, None]  # sampling.py:139
    shifted = j << 8  # sampling.py:139
    shifted_2 = j << 4  # sampling.py:139
    best = tl.load(best_ptr + t)  # sampling.py:328
    goal = tl.load(goal_ptr + t)  # sampling.py:329
    cut = tl.load(cut_ptr + t)  # sampling.py:330
    most_ties = tl.load(most_ties_ptr + t)  # sampling.py:330
    as_u32 = request_id.to(tl.uint32)  # sampling.py:248
    shifted_3 = request_id >> 32  # sampling.py:248
    as_u32_2 = shifted_3.to(tl.uint32)  # sampling.py:248
    as_u32_3 = position.to(tl.uint32)  # sampling.py:248
    shifted_4 = position >> 32  # sampling.py:248
    as_u32_4 = shifted_4.to(tl.uint32)  # sampling.py:248
    as_u32_5 = seed.to(tl.uint32)  # sampling.py:248
    shifted_5 = seed >> 32  # sampling.py:248
    as_u32_6 = shifted_5.to(tl.uint32)  # sampling.py:248
    word0, word1, word2, word3 = philox(as_u32, as_u32_2, as_u32_3, as_u32_4, as_u32_5, as_u32_6)  # sampling.py:249
    shifted_6 = word0 >> 9  # sampling.py:250
    as_i64 = shifted_6.to(tl.int64)  # sampling.py:250
    shifted_7 = as_i64 << 1  # sampling.py:250
    total = shifted_7 + 1  # sampling.py:250
    u = tl.arange(0, 1024)[None, :]  # sampling.py:262
    product = u * 149  # sampling.py:264
    piece_begin = tl.minimum(product, 151936)  # sampling.py:264
    total_2 = piece_begin + 149  # sampling.py:264
    piece_end = tl.minimum(total_2, 151936)  # sampling.py:264
    product_2 = best * chosen  # sampling.py:87
    s = tl.full((1, 1024), 0, tl.int32)  # sampling.py:264
    s_2 = tl.full((1, 1024), 0, tl.int32)  # sampling.py:264
    for u_step in tl.range(0, 149):  # sampling.py:264
        total_3 = piece_begin + u_step  # sampling.py:264
        exists = total_3 < piece_end  # sampling.py:264
        blocks = tl.load(blocks_ptr + t.to(tl.int64) * blocks_t_stride + total_3, mask=exists, other=0.0)  # sampling.py:265
        as_f32 = blocks.to(tl.float32)  # sampling.py:265
        larger = tl.maximum(as_f32, float("-inf"))  # sampling.py:113
        total_4 = larger + 0.0  # sampling.py:113
        as_i32 = total_4.to(tl.int32, bitcast=True)  # sampling.py:113
        shifted_8 = as_i32 >> 31  # sampling.py:114
        both = shifted_8 & 2147483647  # sampling.py:114
        xor = as_i32 ^ both  # sampling.py:114
        shifted_9 = xor >> 16  # sampling.py:72
        equal_2 = shifted_9 == cut  # sampling.py:267
        as_i32_2 = equal_2.to(tl.int32)  # sampling.py:267
        below = cut < shifted_9  # sampling.py:268
        product_3 = as_f32 * chosen  # sampling.py:87
        difference = product_3 - product_2  # sampling.py:91
        product_4 = difference * 1.442695  # sampling.py:91
        exp2 = tl.exp2(product_4)  # sampling.py:91
        equal_3 = as_f32 == best  # sampling.py:93
        larger_2 = tl.maximum(exp2, 0.0)  # sampling.py:93
        chosen_2 = tl.where(equal_3, 1.0, larger_2)  # sampling.py:93
        total_5 = chosen_2 + 2.0  # sampling.py:95
        as_i32_3 = total_5.to(tl.int32, bitcast=True)  # sampling.py:95
        difference_2 = as_i32_3 - 1073741824  # sampling.py:95
        chosen_3 = tl.where(below, difference_2, 0)  # sampling.py:268
        chosen_4 = tl.where(exists, as_i32_2, 0)  # sampling.py:264
        chosen_5 = tl.where(exists, chosen_3, 0)  # sampling.py:264
        s_3 = s + chosen_4  # sampling.py:264
        s_4 = s_2 + chosen_5  # sampling.py:264
        s, s_2 = s_3, s_4  # sampling.py:264
    shifted_8 = cut << 16  # sampling.py:76
    below = cut < 0  # sampling.py:78
    either = shifted_8 | 65535  # sampling.py:78
    chosen_2 = tl.where(below, either, shifted_8)  # sampling.py:78
    shifted_9 = chosen_2 >> 31  # sampling.py:79
    both = shifted_9 & 2147483647  # sampling.py:79
    xor = chosen_2 ^ both  # sampling.py:79
    as_f32 = xor.to(tl.float32, bitcast=True)  # sampling.py:79
    product_3 = as_f32 * chosen  # sampling.py:87
    difference = product_3 - product_2  # sampling.py:91
    product_4 = difference * 1.442695  # sampling.py:91
    exp2 = tl.exp2(product_4)  # sampling.py:91
    equal_2 = as_f32 == best  # sampling.py:93
    larger = tl.maximum(exp2, 0.0)  # sampling.py:93
    chosen_3 = tl.where(equal_2, 1.0, larger)  # sampling.py:93
    total_3 = chosen_3 + 2.0  # sampling.py:95
    as_i32 = total_3.to(tl.int32, bitcast=True)  # sampling.py:95
    difference_2 = as_i32 - 1073741824  # sampling.py:95
    sum_u_piece = sum_over_u_piece(s)  # sampling.py:275
    smaller = tl.minimum(sum_u_piece, most_ties)  # sampling.py:275
    larger_2 = tl.maximum(difference_2, 1)  # sampling.py:277
    as_i64_2 = larger_2.to(tl.int64)  # sampling.py:277
    both_2 = s_2 & 65535  # sampling.py:119
    sum_u_piece_2 = sum_over_u_piece(both_2)  # sampling.py:119
    shifted_10 = s_2 >> 16  # sampling.py:119
    sum_u_piece_3 = sum_over_u_piece(shifted_10)  # sampling.py:119
    as_i64_3 = sum_u_piece_3.to(tl.int64)  # sampling.py:120
    shifted_11 = as_i64_3 << 16  # sampling.py:120
    as_i64_4 = sum_u_piece_2.to(tl.int64)  # sampling.py:120
    total_4 = shifted_11 + as_i64_4  # sampling.py:120
    difference_3 = goal - total_4  # sampling.py:278
    larger_3 = tl.maximum(difference_3, 0)  # sampling.py:278
    difference_4 = as_i64_2 - 1  # sampling.py:278
    total_5 = larger_3 + difference_4  # sampling.py:278
    as_i64_5 = smaller.to(tl.int64)  # sampling.py:279
    quotient = total_5 // as_i64_2  # sampling.py:279
    smaller_2 = tl.minimum(as_i64_5, quotient)  # sampling.py:279
    as_i32_2 = smaller_2.to(tl.int32)  # sampling.py:279
    as_i64_6 = as_i32_2.to(tl.int64)  # sampling.py:280
    difference_5 = as_i64_6 - 1  # sampling.py:280
    below_2 = u < shifted  # sampling.py:158
    chosen_4 = tl.where(below_2, s, 0)  # sampling.py:158
    both_3 = chosen_4 & 65535  # sampling.py:119
    sum_u_piece_4 = sum_over_u_piece_2(both_3)  # sampling.py:119
    shifted_12 = chosen_4 >> 16  # sampling.py:119
    sum_u_piece_5 = sum_over_u_piece_2(shifted_12)  # sampling.py:119
    as_i64_7 = sum_u_piece_5.to(tl.int64)  # sampling.py:120
    shifted_13 = as_i64_7 << 16  # sampling.py:120
    as_i64_8 = sum_u_piece_4.to(tl.int64)  # sampling.py:120
    total_6 = shifted_13 + as_i64_8  # sampling.py:120
    at_most = total_6 <= difference_5  # sampling.py:163
    chosen_5 = tl.where(at_most, j, 0)  # sampling.py:129
    max_j_piece = max_over_j_piece(chosen_5)  # sampling.py:129
    shifted_14 = max_j_piece << 8  # sampling.py:163
    total_7 = shifted_2 + shifted_14  # sampling.py:162
    below_3 = u < total_7  # sampling.py:158
    chosen_6 = tl.where(below_3, s, 0)  # sampling.py:158
    both_4 = chosen_6 & 65535  # sampling.py:119
    sum_u_piece_6 = sum_over_u_piece_2(both_4)  # sampling.py:119
    shifted_15 = chosen_6 >> 16  # sampling.py:119
    sum_u_piece_7 = sum_over_u_piece_2(shifted_15)  # sampling.py:119
    as_i64_9 = sum_u_piece_7.to(tl.int64)  # sampling.py:120
    shifted_16 = as_i64_9 << 16  # sampling.py:120
    as_i64_10 = sum_u_piece_6.to(tl.int64)  # sampling.py:120
    total_8 = shifted_16 + as_i64_10  # sampling.py:120
    at_most_2 = total_8 <= difference_5  # sampling.py:163
    chosen_7 = tl.where(at_most_2, j, 0)  # sampling.py:129
    max_j_piece_2 = max_over_j_piece(chosen_7)  # sampling.py:129
    shifted_17 = max_j_piece_2 << 4  # sampling.py:163
    total_9 = shifted_17 + shifted_14  # sampling.py:163
    total_10 = j + total_9  # sampling.py:162
    below_4 = u < total_10  # sampling.py:158
    chosen_8 = tl.where(below_4, s, 0)  # sampling.py:158
    both_5 = chosen_8 & 65535  # sampling.py:119
    sum_u_piece_8 = sum_over_u_piece_2(both_5)  # sampling.py:119
    shifted_18 = chosen_8 >> 16  # sampling.py:119
    sum_u_piece_9 = sum_over_u_piece_2(shifted_18)  # sampling.py:119
    as_i64_11 = sum_u_piece_9.to(tl.int64)  # sampling.py:120
    shifted_19 = as_i64_11 << 16  # sampling.py:120
    as_i64_12 = sum_u_piece_8.to(tl.int64)  # sampling.py:120
    total_11 = shifted_19 + as_i64_12  # sampling.py:120
    at_most_3 = total_11 <= difference_5  # sampling.py:163
    chosen_9 = tl.where(at_most_3, j, 0)  # sampling.py:129
    max_j_piece_3 = max_over_j_piece(chosen_9)  # sampling.py:129
    total_12 = max_j_piece_3 + total_9  # sampling.py:163
    below_5 = u < total_12  # sampling.py:158
    chosen_10 = tl.where(below_5, s, 0)  # sampling.py:158
    both_6 = chosen_10 & 65535  # sampling.py:119
    sum_u_piece_10 = sum_over_u_piece(both_6)  # sampling.py:119
    shifted_20 = chosen_10 >> 16  # sampling.py:119
    sum_u_piece_11 = sum_over_u_piece(shifted_20)  # sampling.py:119
    as_i64_13 = sum_u_piece_11.to(tl.int64)  # sampling.py:120
    shifted_21 = as_i64_13 << 16  # sampling.py:120
    as_i64_14 = sum_u_piece_10.to(tl.int64)  # sampling.py:120
    total_13 = shifted_21 + as_i64_14  # sampling.py:120
    difference_6 = difference_5 - total_13  # sampling.py:165
    below_6 = u < 149  # sampling.py:272
    product_5 = total_12 * 149  # sampling.py:272
    total_14 = product_5 + u  # sampling.py:272
    chosen_11 = tl.where(below_6, total_14, -1)  # sampling.py:272
    at_most_4 = chosen_11 >= 0  # sampling.py:272
    below_7 = chosen_11 < 151936  # sampling.py:272
    both_7 = at_most_4 & below_7  # sampling.py:272
    as_bf16 = tl.full((), float("-inf"), tl.float32).to(tl.bfloat16)  # sampling.py:272
    blocks = tl.load(blocks_ptr + t.to(tl.int64) * blocks_t_stride + chosen_11, mask=both_7, other=as_bf16)  # sampling.py:272
    as_f32_2 = blocks.to(tl.float32)  # sampling.py:272
    larger_4 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:113
    total_15 = larger_4 + 0.0  # sampling.py:113
    as_i32_3 = total_15.to(tl.int32, bitcast=True)  # sampling.py:113
    shifted_22 = as_i32_3 >> 31  # sampling.py:114
    both_8 = shifted_22 & 2147483647  # sampling.py:114
    xor_2 = as_i32_3 ^ both_8  # sampling.py:114
    shifted_23 = xor_2 >> 16  # sampling.py:72
    equal_3 = shifted_23 == cut  # sampling.py:281
    as_i32_4 = equal_3.to(tl.int32)  # sampling.py:281
    chosen_12 = tl.where(below_2, as_i32_4, 0)  # sampling.py:158
    both_9 = chosen_12 & 65535  # sampling.py:119
    sum_u_piece_12 = sum_over_u_piece_2(both_9)  # sampling.py:119
    shifted_24 = chosen_12 >> 16  # sampling.py:119
    sum_u_piece_13 = sum_over_u_piece_2(shifted_24)  # sampling.py:119
    as_i64_15 = sum_u_piece_13.to(tl.int64)  # sampling.py:120
    shifted_25 = as_i64_15 << 16  # sampling.py:120
    as_i64_16 = sum_u_piece_12.to(tl.int64)  # sampling.py:120
    total_16 = shifted_25 + as_i64_16  # sampling.py:120
    at_most_5 = total_16 <= difference_6  # sampling.py:163
    chosen_13 = tl.where(at_most_5, j, 0)  # sampling.py:129
    max_j_piece_4 = max_over_j_piece(chosen_13)  # sampling.py:129
    shifted_26 = max_j_piece_4 << 8  # sampling.py:163
    total_17 = shifted_2 + shifted_26  # sampling.py:162
    below_8 = u < total_17  # sampling.py:158
    chosen_14 = tl.where(below_8, as_i32_4, 0)  # sampling.py:158
    both_10 = chosen_14 & 65535  # sampling.py:119
    sum_u_piece_14 = sum_over_u_piece_2(both_10)  # sampling.py:119
    shifted_27 = chosen_14 >> 16  # sampling.py:119
    sum_u_piece_15 = sum_over_u_piece_2(shifted_27)  # sampling.py:119
    as_i64_17 = sum_u_piece_15.to(tl.int64)  # sampling.py:120
    shifted_28 = as_i64_17 << 16  # sampling.py:120
    as_i64_18 = sum_u_piece_14.to(tl.int64)  # sampling.py:120
    total_18 = shifted_28 + as_i64_18  # sampling.py:120
    at_most_6 = total_18 <= difference_6  # sampling.py:163
    chosen_15 = tl.where(at_most_6, j, 0)  # sampling.py:129
    max_j_piece_5 = max_over_j_piece(chosen_15)  # sampling.py:129
    shifted_29 = max_j_piece_5 << 4  # sampling.py:163
    total_19 = shifted_29 + shifted_26  # sampling.py:163
    total_20 = j + total_19  # sampling.py:162
    below_9 = u < total_20  # sampling.py:158
    chosen_16 = tl.where(below_9, as_i32_4, 0)  # sampling.py:158
    both_11 = chosen_16 & 65535  # sampling.py:119
    sum_u_piece_16 = sum_over_u_piece_2(both_11)  # sampling.py:119
    shifted_30 = chosen_16 >> 16  # sampling.py:119
    sum_u_piece_17 = sum_over_u_piece_2(shifted_30)  # sampling.py:119
    as_i64_19 = sum_u_piece_17.to(tl.int64)  # sampling.py:120
    shifted_31 = as_i64_19 << 16  # sampling.py:120
    as_i64_20 = sum_u_piece_16.to(tl.int64)  # sampling.py:120
    total_21 = shifted_31 + as_i64_20  # sampling.py:120
    at_most_7 = total_21 <= difference_6  # sampling.py:163
    chosen_17 = tl.where(at_most_7, j, 0)  # sampling.py:129
    max_j_piece_6 = max_over_j_piece(chosen_17)  # sampling.py:129
    total_22 = max_j_piece_6 + total_19  # sampling.py:163
    below_10 = as_i32_2 > 0  # sampling.py:282
    total_23 = product_5 + total_22  # sampling.py:282
    chosen_18 = tl.where(below_10, total_23, -1)  # sampling.py:282
    equal_4 = u == total_12  # sampling.py:283
    as_i32_5 = difference_6.to(tl.int32)  # sampling.py:283
    total_24 = as_i32_5 + 1  # sampling.py:283
    chosen_19 = tl.where(equal_4, total_24, 0)  # sampling.py:283
    chosen_20 = tl.where(below_5, s, chosen_19)  # sampling.py:283
    product_6 = chosen_20 * difference_2  # sampling.py:284
    total_25 = s_2 + product_6  # sampling.py:284
    both_12 = total_25 & 65535  # sampling.py:119
    sum_u_piece_18 = sum_over_u_piece(both_12)  # sampling.py:119
    shifted_32 = total_25 >> 16  # sampling.py:119
    sum_u_piece_19 = sum_over_u_piece(shifted_32)  # sampling.py:119
    as_i64_21 = sum_u_piece_19.to(tl.int64)  # sampling.py:120
    shifted_33 = as_i64_21 << 16  # sampling.py:120
    as_i64_22 = sum_u_piece_18.to(tl.int64)  # sampling.py:120
    total_26 = shifted_33 + as_i64_22  # sampling.py:120
    shifted_34 = total_26 >> 16  # sampling.py:255
    product_7 = shifted_34 * total  # sampling.py:255
    both_13 = total_26 & 65535  # sampling.py:255
    product_8 = both_13 * total  # sampling.py:255
    shifted_35 = product_7 >> 8  # sampling.py:256
    both_14 = product_7 & 255  # sampling.py:256
    shifted_36 = both_14 << 16  # sampling.py:256
    total_27 = shifted_36 + product_8  # sampling.py:256
    shifted_37 = total_27 >> 24  # sampling.py:256
    total_28 = shifted_35 + shifted_37  # sampling.py:256
    chosen_21 = tl.where(below_2, total_25, 0)  # sampling.py:158
    both_15 = chosen_21 & 65535  # sampling.py:119
    sum_u_piece_20 = sum_over_u_piece_2(both_15)  # sampling.py:119
    shifted_38 = chosen_21 >> 16  # sampling.py:119
    sum_u_piece_21 = sum_over_u_piece_2(shifted_38)  # sampling.py:119
    as_i64_23 = sum_u_piece_21.to(tl.int64)  # sampling.py:120
    shifted_39 = as_i64_23 << 16  # sampling.py:120
    as_i64_24 = sum_u_piece_20.to(tl.int64)  # sampling.py:120
    total_29 = shifted_39 + as_i64_24  # sampling.py:120
    at_most_8 = total_29 <= total_28  # sampling.py:163
    chosen_22 = tl.where(at_most_8, j, 0)  # sampling.py:129
    max_j_piece_7 = max_over_j_piece(chosen_22)  # sampling.py:129
    shifted_40 = max_j_piece_7 << 8  # sampling.py:163
    total_30 = shifted_2 + shifted_40  # sampling.py:162
    below_11 = u < total_30  # sampling.py:158
    chosen_23 = tl.where(below_11, total_25, 0)  # sampling.py:158
    both_16 = chosen_23 & 65535  # sampling.py:119
    sum_u_piece_22 = sum_over_u_piece_2(both_16)  # sampling.py:119
    shifted_41 = chosen_23 >> 16  # sampling.py:119
    sum_u_piece_23 = sum_over_u_piece_2(shifted_41)  # sampling.py:119
    as_i64_25 = sum_u_piece_23.to(tl.int64)  # sampling.py:120
    shifted_42 = as_i64_25 << 16  # sampling.py:120
    as_i64_26 = sum_u_piece_22.to(tl.int64)  # sampling.py:120
    total_31 = shifted_42 + as_i64_26  # sampling.py:120
    at_most_9 = total_31 <= total_28  # sampling.py:163
    chosen_24 = tl.where(at_most_9, j, 0)  # sampling.py:129
    max_j_piece_8 = max_over_j_piece(chosen_24)  # sampling.py:129
    shifted_43 = max_j_piece_8 << 4  # sampling.py:163
    total_32 = shifted_43 + shifted_40  # sampling.py:163
    total_33 = j + total_32  # sampling.py:162
    below_12 = u < total_33  # sampling.py:158
    chosen_25 = tl.where(below_12, total_25, 0)  # sampling.py:158
    both_17 = chosen_25 & 65535  # sampling.py:119
    sum_u_piece_24 = sum_over_u_piece_2(both_17)  # sampling.py:119
    shifted_44 = chosen_25 >> 16  # sampling.py:119
    sum_u_piece_25 = sum_over_u_piece_2(shifted_44)  # sampling.py:119
    as_i64_27 = sum_u_piece_25.to(tl.int64)  # sampling.py:120
    shifted_45 = as_i64_27 << 16  # sampling.py:120
    as_i64_28 = sum_u_piece_24.to(tl.int64)  # sampling.py:120
    total_34 = shifted_45 + as_i64_28  # sampling.py:120
    at_most_10 = total_34 <= total_28  # sampling.py:163
    chosen_26 = tl.where(at_most_10, j, 0)  # sampling.py:129
    max_j_piece_9 = max_over_j_piece(chosen_26)  # sampling.py:129
    total_35 = max_j_piece_9 + total_32  # sampling.py:163
    below_13 = u < total_35  # sampling.py:158
    chosen_27 = tl.where(below_13, total_25, 0)  # sampling.py:158
    both_18 = chosen_27 & 65535  # sampling.py:119
    sum_u_piece_26 = sum_over_u_piece(both_18)  # sampling.py:119
    shifted_46 = chosen_27 >> 16  # sampling.py:119
    sum_u_piece_27 = sum_over_u_piece(shifted_46)  # sampling.py:119
    as_i64_29 = sum_u_piece_27.to(tl.int64)  # sampling.py:120
    shifted_47 = as_i64_29 << 16  # sampling.py:120
    as_i64_30 = sum_u_piece_26.to(tl.int64)  # sampling.py:120
    total_36 = shifted_47 + as_i64_30  # sampling.py:120
    difference_7 = total_28 - total_36  # sampling.py:165
    product_9 = total_35 * 149  # sampling.py:272
    total_37 = product_9 + u  # sampling.py:272
    chosen_28 = tl.where(below_6, total_37, -1)  # sampling.py:272
    at_most_11 = chosen_28 >= 0  # sampling.py:272
    below_14 = chosen_28 < 151936  # sampling.py:272
    both_19 = at_most_11 & below_14  # sampling.py:272
    blocks_2 = tl.load(blocks_ptr + t.to(tl.int64) * blocks_t_stride + chosen_28, mask=both_19, other=as_bf16)  # sampling.py:272
    as_f32_3 = blocks_2.to(tl.float32)  # sampling.py:272
    larger_5 = tl.maximum(as_f32_3, float("-inf"))  # sampling.py:113
    total_38 = larger_5 + 0.0  # sampling.py:113
    as_i32_6 = total_38.to(tl.int32, bitcast=True)  # sampling.py:113
    shifted_48 = as_i32_6 >> 31  # sampling.py:114
    both_20 = shifted_48 & 2147483647  # sampling.py:114
    xor_3 = as_i32_6 ^ both_20  # sampling.py:114
    shifted_49 = xor_3 >> 16  # sampling.py:72
    below_15 = cut < shifted_49  # sampling.py:288
    equal_5 = shifted_49 == cut  # sampling.py:288
    at_most_12 = total_37 <= chosen_18  # sampling.py:288
    both_21 = equal_5 & at_most_12  # sampling.py:288
    either_2 = below_15 | both_21  # sampling.py:288
    product_10 = as_f32_3 * chosen  # sampling.py:87
    difference_8 = product_10 - product_2  # sampling.py:91
    product_11 = difference_8 * 1.442695  # sampling.py:91
    exp2_2 = tl.exp2(product_11)  # sampling.py:91
    equal_6 = as_f32_3 == best  # sampling.py:93
    larger_6 = tl.maximum(exp2_2, 0.0)  # sampling.py:93
    chosen_29 = tl.where(equal_6, 1.0, larger_6)  # sampling.py:93
    total_39 = chosen_29 + 2.0  # sampling.py:95
    as_i32_7 = total_39.to(tl.int32, bitcast=True)  # sampling.py:95
    difference_9 = as_i32_7 - 1073741824  # sampling.py:95
    chosen_30 = tl.where(either_2, difference_9, 0)  # sampling.py:289
    chosen_31 = tl.where(below_2, chosen_30, 0)  # sampling.py:158
    both_22 = chosen_31 & 65535  # sampling.py:119
    sum_u_piece_28 = sum_over_u_piece_2(both_22)  # sampling.py:119
    shifted_50 = chosen_31 >> 16  # sampling.py:119
    sum_u_piece_29 = sum_over_u_piece_2(shifted_50)  # sampling.py:119
    as_i64_31 = sum_u_piece_29.to(tl.int64)  # sampling.py:120
    shifted_51 = as_i64_31 << 16  # sampling.py:120
    as_i64_32 = sum_u_piece_28.to(tl.int64)  # sampling.py:120
    total_40 = shifted_51 + as_i64_32  # sampling.py:120
    at_most_13 = total_40 <= difference_7  # sampling.py:163
    chosen_32 = tl.where(at_most_13, j, 0)  # sampling.py:129
    max_j_piece_10 = max_over_j_piece(chosen_32)  # sampling.py:129
    shifted_52 = max_j_piece_10 << 8  # sampling.py:163
    total_41 = shifted_2 + shifted_52  # sampling.py:162
    below_16 = u < total_41  # sampling.py:158
    chosen_33 = tl.where(below_16, chosen_30, 0)  # sampling.py:158
    both_23 = chosen_33 & 65535  # sampling.py:119
    sum_u_piece_30 = sum_over_u_piece_2(both_23)  # sampling.py:119
    shifted_53 = chosen_33 >> 16  # sampling.py:119
    sum_u_piece_31 = sum_over_u_piece_2(shifted_53)  # sampling.py:119
    as_i64_33 = sum_u_piece_31.to(tl.int64)  # sampling.py:120
    shifted_54 = as_i64_33 << 16  # sampling.py:120
    as_i64_34 = sum_u_piece_30.to(tl.int64)  # sampling.py:120
    total_42 = shifted_54 + as_i64_34  # sampling.py:120
    at_most_14 = total_42 <= difference_7  # sampling.py:163
    chosen_34 = tl.where(at_most_14, j, 0)  # sampling.py:129
    max_j_piece_11 = max_over_j_piece(chosen_34)  # sampling.py:129
    shifted_55 = max_j_piece_11 << 4  # sampling.py:163
    total_43 = shifted_55 + shifted_52  # sampling.py:163
    total_44 = j + total_43  # sampling.py:162
    below_17 = u < total_44  # sampling.py:158
    chosen_35 = tl.where(below_17, chosen_30, 0)  # sampling.py:158
    both_24 = chosen_35 & 65535  # sampling.py:119
    sum_u_piece_32 = sum_over_u_piece_2(both_24)  # sampling.py:119
    shifted_56 = chosen_35 >> 16  # sampling.py:119
    sum_u_piece_33 = sum_over_u_piece_2(shifted_56)  # sampling.py:119
    as_i64_35 = sum_u_piece_33.to(tl.int64)  # sampling.py:120
    shifted_57 = as_i64_35 << 16  # sampling.py:120
    as_i64_36 = sum_u_piece_32.to(tl.int64)  # sampling.py:120
    total_45 = shifted_57 + as_i64_36  # sampling.py:120
    at_most_15 = total_45 <= difference_7  # sampling.py:163
    chosen_36 = tl.where(at_most_15, j, 0)  # sampling.py:129
    max_j_piece_12 = max_over_j_piece(chosen_36)  # sampling.py:129
    total_46 = max_j_piece_12 + total_43  # sampling.py:163
    total_47 = product_9 + total_46  # sampling.py:290
    below_18 = best > float("-inf")  # sampling.py:332
    unless = ~below_18  # sampling.py:333
    bad_row = tl.where(unless, t + 1, 0)  # sampling.py:333
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")  # sampling.py:333
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")  # sampling.py:333
    chosen_37 = tl.where(below_18, total_47, -1)  # sampling.py:335
    as_i64_37 = chosen_37.to(tl.int64)  # sampling.py:335
    chosen_38 = tl.where(below_18, as_f32, float("-inf"))  # sampling.py:336
    chosen_39 = tl.where(below_18, as_i32_2, 0)  # sampling.py:337
    chosen_40 = tl.where(below_18, chosen_18, -1)  # sampling.py:338
    tl.store(token_ptr + t, as_i64_37)  # sampling.py:334
    tl.store(threshold_ptr + t, chosen_38)  # sampling.py:334
    tl.store(ties_ptr + t, chosen_39)  # sampling.py:334
    tl.store(last_ptr + t, chosen_40)  # sampling.py:334


def call(kernels, scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, blocks, seed, request_id, position, token, threshold, ties, last, T, scores_t_stride, blocks_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.sample_1((programs,), scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, scores_t_stride)
    programs = T
    if programs > 0:
        kernels.sample_2((programs,), blocks, seed, request_id, position, inv_temperature, token, threshold, ties, last, best, goal, cut, most_ties, blocks_t_stride, errors)
