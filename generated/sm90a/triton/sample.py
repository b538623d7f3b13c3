"""sample on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 63a6ef2510bdb909
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
    inv_temperature = tl.load(inv_temperature_ptr + t)  # sampling.py:328
    min_p = tl.load(min_p_ptr + t)  # sampling.py:335
    top_k = tl.load(top_k_ptr + t)  # sampling.py:337
    top_p = tl.load(top_p_ptr + t)  # sampling.py:339
    equal = inv_temperature == float("inf")  # sampling.py:328
    chosen = tl.where(equal, 1.0, inv_temperature)  # sampling.py:329
    w_lane = tl.arange(0, 1024)[:, None]  # sampling.py:331
    first = tl.full((1024, 1), -2147483648, tl.int32)  # sampling.py:331
    second = tl.full((1024, 1), -2147483648, tl.int32)  # sampling.py:331
    third = tl.full((1024, 1), -2147483648, tl.int32)  # sampling.py:331
    for w_step in tl.range(0, 148):  # sampling.py:331
        product = w_step * 1024  # sampling.py:331
        w = product + w_lane  # sampling.py:331
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:332
        as_f32 = scores.to(tl.float32)  # sampling.py:332
        larger = tl.maximum(as_f32, float("-inf"))  # sampling.py:118
        total = larger + 0.0  # sampling.py:118
        as_i32 = total.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted = as_i32 >> 31  # sampling.py:119
        both = shifted & 2147483647  # sampling.py:119
        xor = as_i32 ^ both  # sampling.py:119
        shifted_2 = xor >> 16  # sampling.py:67
        smaller = tl.minimum(shifted_2, -2147483648)  # sampling.py:331
        smaller_2 = tl.minimum(first, shifted_2)  # sampling.py:331
        larger_2 = tl.maximum(second, smaller)  # sampling.py:331
        second_2 = tl.maximum(smaller_2, larger_2)  # sampling.py:331
        smaller_3 = tl.minimum(first, smaller)  # sampling.py:331
        smaller_4 = tl.minimum(second, shifted_2)  # sampling.py:331
        larger_3 = tl.maximum(smaller_3, smaller_4)  # sampling.py:331
        larger_4 = tl.maximum(third, smaller)  # sampling.py:331
        third_2 = tl.maximum(larger_3, larger_4)  # sampling.py:331
        first_2 = tl.maximum(first, shifted_2)  # sampling.py:331
        first, second, third = first_2, second_2, third_2  # sampling.py:331
    for w_step in tl.range(148, 149):  # sampling.py:331
        product = w_step * 1024  # sampling.py:331
        w = product + w_lane  # sampling.py:331
        exists = w < 151936  # sampling.py:331
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists, other=0.0)  # sampling.py:332
        as_f32 = scores.to(tl.float32)  # sampling.py:332
        larger = tl.maximum(as_f32, float("-inf"))  # sampling.py:118
        total = larger + 0.0  # sampling.py:118
        as_i32 = total.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted = as_i32 >> 31  # sampling.py:119
        both = shifted & 2147483647  # sampling.py:119
        xor = as_i32 ^ both  # sampling.py:119
        shifted_2 = xor >> 16  # sampling.py:67
        chosen_2 = tl.where(exists, shifted_2, -2147483648)  # sampling.py:331
        smaller = tl.minimum(chosen_2, -2147483648)  # sampling.py:331
        smaller_2 = tl.minimum(first, chosen_2)  # sampling.py:331
        larger_2 = tl.maximum(second, smaller)  # sampling.py:331
        second_2 = tl.maximum(smaller_2, larger_2)  # sampling.py:331
        smaller_3 = tl.minimum(first, smaller)  # sampling.py:331
        smaller_4 = tl.minimum(second, chosen_2)  # sampling.py:331
        larger_3 = tl.maximum(smaller_3, smaller_4)  # sampling.py:331
        larger_4 = tl.maximum(third, smaller)  # sampling.py:331
        third_2 = tl.maximum(larger_3, larger_4)  # sampling.py:331
        first_2 = tl.maximum(first, chosen_2)  # sampling.py:331
        first, second, third = first_2, second_2, third_2  # sampling.py:331
    max_w_lane = max_over_w_lane(first)  # sampling.py:333
    shifted = max_w_lane << 16  # sampling.py:71
    below = max_w_lane < 0  # sampling.py:73
    either = shifted | 65535  # sampling.py:73
    chosen_2 = tl.where(below, either, shifted)  # sampling.py:73
    shifted_2 = chosen_2 >> 31  # sampling.py:74
    both = shifted_2 & 2147483647  # sampling.py:74
    xor = chosen_2 ^ both  # sampling.py:74
    as_f32 = xor.to(tl.float32, bitcast=True)  # sampling.py:74
    larger = tl.maximum(first, -32641)  # sampling.py:334
    larger_2 = tl.maximum(second, -32641)  # sampling.py:334
    larger_3 = tl.maximum(third, -32641)  # sampling.py:334
    log = portable_log(min_p)  # sampling.py:248
    quotient = tl.div_rn(log, chosen)  # sampling.py:250
    total = as_f32 + quotient  # sampling.py:251
    larger_4 = tl.maximum(total, float("-inf"))  # sampling.py:251
    smaller = tl.minimum(larger_4, as_f32)  # sampling.py:251
    larger_5 = tl.maximum(smaller, float("-inf"))  # sampling.py:118
    total_2 = larger_5 + 0.0  # sampling.py:118
    as_i32 = total_2.to(tl.int32, bitcast=True)  # sampling.py:118
    shifted_3 = as_i32 >> 31  # sampling.py:119
    both_2 = shifted_3 & 2147483647  # sampling.py:119
    xor_2 = as_i32 ^ both_2  # sampling.py:119
    below_2 = xor_2 < 0  # sampling.py:79
    total_3 = xor_2 + 65535  # sampling.py:79
    chosen_3 = tl.where(below_2, xor_2, total_3)  # sampling.py:79
    shifted_4 = chosen_3 >> 16  # sampling.py:79
    difference = shifted_4 - 1  # sampling.py:252
    larger_6 = tl.maximum(difference, -32641)  # sampling.py:252
    below_3 = top_k > 0  # sampling.py:192
    below_4 = top_k < 151936  # sampling.py:192
    both_3 = below_3 & below_4  # sampling.py:192
    j = tl.arange(0, 16)[None, :]  # sampling.py:140
    shifted_5 = j << 12  # sampling.py:140
    total_4 = shifted_5 + -32768  # sampling.py:140
    at_most = total_4 <= larger  # sampling.py:195
    as_i32_2 = at_most.to(tl.int32)  # sampling.py:195
    at_most_2 = total_4 <= larger_2  # sampling.py:195
    as_i32_3 = at_most_2.to(tl.int32)  # sampling.py:195
    at_most_3 = total_4 <= larger_3  # sampling.py:195
    as_i32_4 = at_most_3.to(tl.int32)  # sampling.py:195
    total_5 = as_i32_2 + as_i32_3  # sampling.py:196
    total_6 = total_5 + as_i32_4  # sampling.py:196
    sum_w_lane = sum_over_w_lane(total_6)  # sampling.py:196
    at_most_4 = top_k <= sum_w_lane  # sampling.py:196
    chosen_4 = tl.where(at_most_4, j, 0)  # sampling.py:130
    max_j_piece = max_over_j_piece(chosen_4)  # sampling.py:130
    shifted_6 = max_j_piece << 12  # sampling.py:142
    total_7 = shifted_6 + -32768  # sampling.py:142
    shifted_7 = j << 8  # sampling.py:140
    total_8 = shifted_7 + total_7  # sampling.py:140
    at_most_5 = total_8 <= larger  # sampling.py:195
    as_i32_5 = at_most_5.to(tl.int32)  # sampling.py:195
    at_most_6 = total_8 <= larger_2  # sampling.py:195
    as_i32_6 = at_most_6.to(tl.int32)  # sampling.py:195
    at_most_7 = total_8 <= larger_3  # sampling.py:195
    as_i32_7 = at_most_7.to(tl.int32)  # sampling.py:195
    total_9 = as_i32_5 + as_i32_6  # sampling.py:196
    total_10 = total_9 + as_i32_7  # sampling.py:196
    sum_w_lane_2 = sum_over_w_lane(total_10)  # sampling.py:196
    at_most_8 = top_k <= sum_w_lane_2  # sampling.py:196
    chosen_5 = tl.where(at_most_8, j, 0)  # sampling.py:130
    max_j_piece_2 = max_over_j_piece(chosen_5)  # sampling.py:130
    shifted_8 = max_j_piece_2 << 8  # sampling.py:142
    total_11 = shifted_8 + total_7  # sampling.py:142
    shifted_9 = j << 4  # sampling.py:140
    total_12 = shifted_9 + total_11  # sampling.py:140
    at_most_9 = total_12 <= larger  # sampling.py:195
    as_i32_8 = at_most_9.to(tl.int32)  # sampling.py:195
    at_most_10 = total_12 <= larger_2  # sampling.py:195
    as_i32_9 = at_most_10.to(tl.int32)  # sampling.py:195
    at_most_11 = total_12 <= larger_3  # sampling.py:195
    as_i32_10 = at_most_11.to(tl.int32)  # sampling.py:195
    total_13 = as_i32_8 + as_i32_9  # sampling.py:196
    total_14 = total_13 + as_i32_10  # sampling.py:196
    sum_w_lane_3 = sum_over_w_lane(total_14)  # sampling.py:196
    at_most_12 = top_k <= sum_w_lane_3  # sampling.py:196
    chosen_6 = tl.where(at_most_12, j, 0)  # sampling.py:130
    max_j_piece_3 = max_over_j_piece(chosen_6)  # sampling.py:130
    shifted_10 = max_j_piece_3 << 4  # sampling.py:142
    total_15 = shifted_10 + total_11  # sampling.py:142
    total_16 = j + total_15  # sampling.py:140
    at_most_13 = total_16 <= larger  # sampling.py:195
    as_i32_11 = at_most_13.to(tl.int32)  # sampling.py:195
    at_most_14 = total_16 <= larger_2  # sampling.py:195
    as_i32_12 = at_most_14.to(tl.int32)  # sampling.py:195
    at_most_15 = total_16 <= larger_3  # sampling.py:195
    as_i32_13 = at_most_15.to(tl.int32)  # sampling.py:195
    total_17 = as_i32_11 + as_i32_12  # sampling.py:196
    total_18 = total_17 + as_i32_13  # sampling.py:196
    sum_w_lane_4 = sum_over_w_lane(total_18)  # sampling.py:196
    at_most_16 = top_k <= sum_w_lane_4  # sampling.py:196
    chosen_7 = tl.where(at_most_16, j, 0)  # sampling.py:130
    max_j_piece_4 = max_over_j_piece(chosen_7)  # sampling.py:130
    total_19 = max_j_piece_4 + total_15  # sampling.py:142
    larger_7 = tl.maximum(total_19, larger_6)  # sampling.py:205
    chosen_8 = tl.where(both_3, larger_7, larger_6)  # sampling.py:206
    product = as_f32 * chosen  # sampling.py:92
    s = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    s_2 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    s_3 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    for w_step in tl.range(0, 148):  # sampling.py:175
        product_2 = w_step * 1024  # sampling.py:175
        w = product_2 + w_lane  # sampling.py:175
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:176
        as_f32_2 = scores.to(tl.float32)  # sampling.py:176
        larger_8 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_20 = larger_8 + 0.0  # sampling.py:118
        as_i32_14 = total_20.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_11 = as_i32_14 >> 31  # sampling.py:119
        both_4 = shifted_11 & 2147483647  # sampling.py:119
        xor_3 = as_i32_14 ^ both_4  # sampling.py:119
        shifted_12 = xor_3 >> 16  # sampling.py:67
        below_5 = chosen_8 < shifted_12  # sampling.py:178
        as_i32_15 = below_5.to(tl.int32)  # sampling.py:178
        product_3 = as_f32_2 * chosen  # sampling.py:92
        difference_2 = product_3 - product  # sampling.py:96
        product_4 = difference_2 * 1.442695  # sampling.py:96
        exp2 = tl.exp2(product_4)  # sampling.py:96
        equal_2 = as_f32_2 == as_f32  # sampling.py:98
        larger_9 = tl.maximum(exp2, 0.0)  # sampling.py:98
        chosen_9 = tl.where(equal_2, 1.0, larger_9)  # sampling.py:98
        total_21 = chosen_9 + 2.0  # sampling.py:100
        as_i32_16 = total_21.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_3 = as_i32_16 - 1073741824  # sampling.py:100
        chosen_10 = tl.where(below_5, difference_3, 0)  # sampling.py:179
        equal_3 = shifted_12 == chosen_8  # sampling.py:180
        as_i32_17 = equal_3.to(tl.int32)  # sampling.py:180
        s_4 = s + as_i32_15  # sampling.py:175
        s_5 = s_2 + chosen_10  # sampling.py:175
        s_6 = s_3 + as_i32_17  # sampling.py:175
        s, s_2, s_3 = s_4, s_5, s_6  # sampling.py:175
    for w_step in tl.range(148, 149):  # sampling.py:175
        product_2 = w_step * 1024  # sampling.py:175
        w = product_2 + w_lane  # sampling.py:175
        exists = w < 151936  # sampling.py:175
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists, other=0.0)  # sampling.py:176
        as_f32_2 = scores.to(tl.float32)  # sampling.py:176
        larger_8 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_20 = larger_8 + 0.0  # sampling.py:118
        as_i32_14 = total_20.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_11 = as_i32_14 >> 31  # sampling.py:119
        both_4 = shifted_11 & 2147483647  # sampling.py:119
        xor_3 = as_i32_14 ^ both_4  # sampling.py:119
        shifted_12 = xor_3 >> 16  # sampling.py:67
        below_5 = chosen_8 < shifted_12  # sampling.py:178
        as_i32_15 = below_5.to(tl.int32)  # sampling.py:178
        product_3 = as_f32_2 * chosen  # sampling.py:92
        difference_2 = product_3 - product  # sampling.py:96
        product_4 = difference_2 * 1.442695  # sampling.py:96
        exp2 = tl.exp2(product_4)  # sampling.py:96
        equal_2 = as_f32_2 == as_f32  # sampling.py:98
        larger_9 = tl.maximum(exp2, 0.0)  # sampling.py:98
        chosen_9 = tl.where(equal_2, 1.0, larger_9)  # sampling.py:98
        total_21 = chosen_9 + 2.0  # sampling.py:100
        as_i32_16 = total_21.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_3 = as_i32_16 - 1073741824  # sampling.py:100
        chosen_10 = tl.where(below_5, difference_3, 0)  # sampling.py:179
        equal_3 = shifted_12 == chosen_8  # sampling.py:180
        as_i32_17 = equal_3.to(tl.int32)  # sampling.py:180
        chosen_11 = tl.where(exists, as_i32_15, 0)  # sampling.py:175
        chosen_12 = tl.where(exists, chosen_10, 0)  # sampling.py:175
        chosen_13 = tl.where(exists, as_i32_17, 0)  # sampling.py:175
        s_4 = s + chosen_11  # sampling.py:175
        s_5 = s_2 + chosen_12  # sampling.py:175
        s_6 = s_3 + chosen_13  # sampling.py:175
        s, s_2, s_3 = s_4, s_5, s_6  # sampling.py:175
    sum_w_lane_5 = sum_over_w_lane_2(s)  # sampling.py:181
    both_4 = s_2 & 65535  # sampling.py:124
    sum_w_lane_6 = sum_over_w_lane_2(both_4)  # sampling.py:124
    shifted_11 = s_2 >> 16  # sampling.py:124
    sum_w_lane_7 = sum_over_w_lane_2(shifted_11)  # sampling.py:124
    as_i64 = sum_w_lane_7.to(tl.int64)  # sampling.py:125
    shifted_12 = as_i64 << 16  # sampling.py:125
    as_i64_2 = sum_w_lane_6.to(tl.int64)  # sampling.py:125
    total_20 = shifted_12 + as_i64_2  # sampling.py:125
    sum_w_lane_8 = sum_over_w_lane_2(s_3)  # sampling.py:182
    below_5 = sum_w_lane_5 < top_k  # sampling.py:208
    unless = ~both_3  # sampling.py:208
    either_2 = below_5 | unless  # sampling.py:208
    larger_8 = tl.maximum(as_f32, float("-inf"))  # sampling.py:118
    total_21 = larger_8 + 0.0  # sampling.py:118
    as_i32_14 = total_21.to(tl.int32, bitcast=True)  # sampling.py:118
    shifted_13 = as_i32_14 >> 31  # sampling.py:119
    both_5 = shifted_13 & 2147483647  # sampling.py:119
    xor_3 = as_i32_14 ^ both_5  # sampling.py:119
    shifted_14 = xor_3 >> 16  # sampling.py:67
    chosen_9 = tl.where(either_2, chosen_8, shifted_14)  # sampling.py:187
    shifted_15 = chosen_8 >> 12  # sampling.py:144
    shifted_16 = chosen_9 >> 12  # sampling.py:144
    differs = shifted_15 != shifted_16  # sampling.py:144
    steps = tl.where(differs, tl.full((), 149, tl.int32), 0)  # sampling.py:200
    full_steps = tl.where(differs, tl.full((), 148, tl.int32), 0)  # sampling.py:200
    s_4 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:200
    for w_step in tl.range(0, full_steps):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_22 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_22.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_17 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_17 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_18 = xor_4 >> 16  # sampling.py:67
        at_most_17 = total_4 <= shifted_18  # sampling.py:201
        as_i32_16 = at_most_17.to(tl.int32)  # sampling.py:201
        s_5 = s_4 + as_i32_16  # sampling.py:200
        s_4 = s_5  # sampling.py:200
    for w_step in tl.range(full_steps, steps):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        exists = w < 151936  # sampling.py:200
        exists_2 = exists & differs  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_22 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_22.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_17 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_17 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_18 = xor_4 >> 16  # sampling.py:67
        at_most_17 = total_4 <= shifted_18  # sampling.py:201
        as_i32_16 = at_most_17.to(tl.int32)  # sampling.py:201
        chosen_10 = tl.where(exists_2, as_i32_16, 0)  # sampling.py:200
        s_5 = s_4 + chosen_10  # sampling.py:200
        s_4 = s_5  # sampling.py:200
    sum_w_lane_9 = sum_over_w_lane(s_4)  # sampling.py:202
    at_most_17 = top_k <= sum_w_lane_9  # sampling.py:202
    chosen_10 = tl.where(at_most_17, j, 0)  # sampling.py:130
    max_j_piece_5 = max_over_j_piece(chosen_10)  # sampling.py:130
    shifted_17 = max_j_piece_5 << 12  # sampling.py:146
    total_22 = shifted_17 + -32768  # sampling.py:146
    shifted_18 = shifted_15 << 12  # sampling.py:146
    chosen_11 = tl.where(differs, total_22, shifted_18)  # sampling.py:146
    total_23 = shifted_7 + chosen_11  # sampling.py:140
    shifted_19 = chosen_8 >> 8  # sampling.py:144
    shifted_20 = chosen_9 >> 8  # sampling.py:144
    differs_2 = shifted_19 != shifted_20  # sampling.py:144
    steps_2 = tl.where(differs_2, tl.full((), 149, tl.int32), 0)  # sampling.py:200
    full_steps_2 = tl.where(differs_2, tl.full((), 148, tl.int32), 0)  # sampling.py:200
    s_5 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:200
    for w_step in tl.range(0, full_steps_2):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_24 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_24.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_21 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_21 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_22 = xor_4 >> 16  # sampling.py:67
        at_most_18 = total_23 <= shifted_22  # sampling.py:201
        as_i32_16 = at_most_18.to(tl.int32)  # sampling.py:201
        s_6 = s_5 + as_i32_16  # sampling.py:200
        s_5 = s_6  # sampling.py:200
    for w_step in tl.range(full_steps_2, steps_2):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        exists = w < 151936  # sampling.py:200
        exists_2 = exists & differs_2  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_24 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_24.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_21 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_21 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_22 = xor_4 >> 16  # sampling.py:67
        at_most_18 = total_23 <= shifted_22  # sampling.py:201
        as_i32_16 = at_most_18.to(tl.int32)  # sampling.py:201
        chosen_12 = tl.where(exists_2, as_i32_16, 0)  # sampling.py:200
        s_6 = s_5 + chosen_12  # sampling.py:200
        s_5 = s_6  # sampling.py:200
    sum_w_lane_10 = sum_over_w_lane(s_5)  # sampling.py:202
    at_most_18 = top_k <= sum_w_lane_10  # sampling.py:202
    chosen_12 = tl.where(at_most_18, j, 0)  # sampling.py:130
    max_j_piece_6 = max_over_j_piece(chosen_12)  # sampling.py:130
    shifted_21 = max_j_piece_6 << 8  # sampling.py:146
    total_24 = shifted_21 + chosen_11  # sampling.py:146
    shifted_22 = shifted_19 << 8  # sampling.py:146
    chosen_13 = tl.where(differs_2, total_24, shifted_22)  # sampling.py:146
    total_25 = shifted_9 + chosen_13  # sampling.py:140
    shifted_23 = chosen_8 >> 4  # sampling.py:144
    shifted_24 = chosen_9 >> 4  # sampling.py:144
    differs_3 = shifted_23 != shifted_24  # sampling.py:144
    steps_3 = tl.where(differs_3, tl.full((), 149, tl.int32), 0)  # sampling.py:200
    full_steps_3 = tl.where(differs_3, tl.full((), 148, tl.int32), 0)  # sampling.py:200
    s_6 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:200
    for w_step in tl.range(0, full_steps_3):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_26 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_26.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_25 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_25 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_26 = xor_4 >> 16  # sampling.py:67
        at_most_19 = total_25 <= shifted_26  # sampling.py:201
        as_i32_16 = at_most_19.to(tl.int32)  # sampling.py:201
        s_7 = s_6 + as_i32_16  # sampling.py:200
        s_6 = s_7  # sampling.py:200
    for w_step in tl.range(full_steps_3, steps_3):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        exists = w < 151936  # sampling.py:200
        exists_2 = exists & differs_3  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_26 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_26.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_25 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_25 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_26 = xor_4 >> 16  # sampling.py:67
        at_most_19 = total_25 <= shifted_26  # sampling.py:201
        as_i32_16 = at_most_19.to(tl.int32)  # sampling.py:201
        chosen_14 = tl.where(exists_2, as_i32_16, 0)  # sampling.py:200
        s_7 = s_6 + chosen_14  # sampling.py:200
        s_6 = s_7  # sampling.py:200
    sum_w_lane_11 = sum_over_w_lane(s_6)  # sampling.py:202
    at_most_19 = top_k <= sum_w_lane_11  # sampling.py:202
    chosen_14 = tl.where(at_most_19, j, 0)  # sampling.py:130
    max_j_piece_7 = max_over_j_piece(chosen_14)  # sampling.py:130
    shifted_25 = max_j_piece_7 << 4  # sampling.py:146
    total_26 = shifted_25 + chosen_13  # sampling.py:146
    shifted_26 = shifted_23 << 4  # sampling.py:146
    chosen_15 = tl.where(differs_3, total_26, shifted_26)  # sampling.py:146
    total_27 = j + chosen_15  # sampling.py:140
    differs_4 = chosen_8 != chosen_9  # sampling.py:144
    steps_4 = tl.where(differs_4, tl.full((), 149, tl.int32), 0)  # sampling.py:200
    full_steps_4 = tl.where(differs_4, tl.full((), 148, tl.int32), 0)  # sampling.py:200
    s_7 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:200
    for w_step in tl.range(0, full_steps_4):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_28 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_28.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_27 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_27 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_28 = xor_4 >> 16  # sampling.py:67
        at_most_20 = total_27 <= shifted_28  # sampling.py:201
        as_i32_16 = at_most_20.to(tl.int32)  # sampling.py:201
        s_8 = s_7 + as_i32_16  # sampling.py:200
        s_7 = s_8  # sampling.py:200
    for w_step in tl.range(full_steps_4, steps_4):  # sampling.py:200
        product_2 = w_step * 1024  # sampling.py:200
        w = product_2 + w_lane  # sampling.py:200
        exists = w < 151936  # sampling.py:200
        exists_2 = exists & differs_4  # sampling.py:200
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:201
        as_f32_2 = scores.to(tl.float32)  # sampling.py:201
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_28 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_28.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_27 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_27 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_28 = xor_4 >> 16  # sampling.py:67
        at_most_20 = total_27 <= shifted_28  # sampling.py:201
        as_i32_16 = at_most_20.to(tl.int32)  # sampling.py:201
        chosen_16 = tl.where(exists_2, as_i32_16, 0)  # sampling.py:200
        s_8 = s_7 + chosen_16  # sampling.py:200
        s_7 = s_8  # sampling.py:200
    sum_w_lane_12 = sum_over_w_lane(s_7)  # sampling.py:202
    at_most_20 = top_k <= sum_w_lane_12  # sampling.py:202
    chosen_16 = tl.where(at_most_20, j, 0)  # sampling.py:130
    max_j_piece_8 = max_over_j_piece(chosen_16)  # sampling.py:130
    total_28 = max_j_piece_8 + chosen_15  # sampling.py:146
    chosen_17 = tl.where(differs_4, total_28, chosen_8)  # sampling.py:146
    unless_2 = ~either_2  # sampling.py:210
    steps_5 = tl.where(unless_2, tl.full((), 149, tl.int32), 0)  # sampling.py:175
    full_steps_5 = tl.where(unless_2, tl.full((), 148, tl.int32), 0)  # sampling.py:175
    s_8 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    s_9 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    s_10 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    for w_step in tl.range(0, full_steps_5):  # sampling.py:175
        product_2 = w_step * 1024  # sampling.py:175
        w = product_2 + w_lane  # sampling.py:175
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:176
        as_f32_2 = scores.to(tl.float32)  # sampling.py:176
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_29 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_29.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_27 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_27 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_28 = xor_4 >> 16  # sampling.py:67
        below_6 = chosen_17 < shifted_28  # sampling.py:178
        as_i32_16 = below_6.to(tl.int32)  # sampling.py:178
        product_3 = as_f32_2 * chosen  # sampling.py:92
        difference_2 = product_3 - product  # sampling.py:96
        product_4 = difference_2 * 1.442695  # sampling.py:96
        exp2 = tl.exp2(product_4)  # sampling.py:96
        equal_2 = as_f32_2 == as_f32  # sampling.py:98
        larger_10 = tl.maximum(exp2, 0.0)  # sampling.py:98
        chosen_18 = tl.where(equal_2, 1.0, larger_10)  # sampling.py:98
        total_30 = chosen_18 + 2.0  # sampling.py:100
        as_i32_17 = total_30.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_3 = as_i32_17 - 1073741824  # sampling.py:100
        chosen_19 = tl.where(below_6, difference_3, 0)  # sampling.py:179
        equal_3 = shifted_28 == chosen_17  # sampling.py:180
        as_i32_18 = equal_3.to(tl.int32)  # sampling.py:180
        s_11 = s_8 + as_i32_16  # sampling.py:175
        s_12 = s_9 + chosen_19  # sampling.py:175
        s_13 = s_10 + as_i32_18  # sampling.py:175
        s_8, s_9, s_10 = s_11, s_12, s_13  # sampling.py:175
    for w_step in tl.range(full_steps_5, steps_5):  # sampling.py:175
        product_2 = w_step * 1024  # sampling.py:175
        w = product_2 + w_lane  # sampling.py:175
        exists = w < 151936  # sampling.py:175
        exists_2 = exists & unless_2  # sampling.py:175
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:176
        as_f32_2 = scores.to(tl.float32)  # sampling.py:176
        larger_9 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
        total_29 = larger_9 + 0.0  # sampling.py:118
        as_i32_15 = total_29.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_27 = as_i32_15 >> 31  # sampling.py:119
        both_6 = shifted_27 & 2147483647  # sampling.py:119
        xor_4 = as_i32_15 ^ both_6  # sampling.py:119
        shifted_28 = xor_4 >> 16  # sampling.py:67
        below_6 = chosen_17 < shifted_28  # sampling.py:178
        as_i32_16 = below_6.to(tl.int32)  # sampling.py:178
        product_3 = as_f32_2 * chosen  # sampling.py:92
        difference_2 = product_3 - product  # sampling.py:96
        product_4 = difference_2 * 1.442695  # sampling.py:96
        exp2 = tl.exp2(product_4)  # sampling.py:96
        equal_2 = as_f32_2 == as_f32  # sampling.py:98
        larger_10 = tl.maximum(exp2, 0.0)  # sampling.py:98
        chosen_18 = tl.where(equal_2, 1.0, larger_10)  # sampling.py:98
        total_30 = chosen_18 + 2.0  # sampling.py:100
        as_i32_17 = total_30.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_3 = as_i32_17 - 1073741824  # sampling.py:100
        chosen_19 = tl.where(below_6, difference_3, 0)  # sampling.py:179
        equal_3 = shifted_28 == chosen_17  # sampling.py:180
        as_i32_18 = equal_3.to(tl.int32)  # sampling.py:180
        chosen_20 = tl.where(exists_2, as_i32_16, 0)  # sampling.py:175
        chosen_21 = tl.where(exists_2, chosen_19, 0)  # sampling.py:175
        chosen_22 = tl.where(exists_2, as_i32_18, 0)  # sampling.py:175
        s_11 = s_8 + chosen_20  # sampling.py:175
        s_12 = s_9 + chosen_21  # sampling.py:175
        s_13 = s_10 + chosen_22  # sampling.py:175
        s_8, s_9, s_10 = s_11, s_12, s_13  # sampling.py:175
    sum_w_lane_13 = sum_over_w_lane_2(s_8)  # sampling.py:181
    both_6 = s_9 & 65535  # sampling.py:124
    sum_w_lane_14 = sum_over_w_lane_2(both_6)  # sampling.py:124
    shifted_27 = s_9 >> 16  # sampling.py:124
    sum_w_lane_15 = sum_over_w_lane_2(shifted_27)  # sampling.py:124
    as_i64_3 = sum_w_lane_15.to(tl.int64)  # sampling.py:125
    shifted_28 = as_i64_3 << 16  # sampling.py:125
    as_i64_4 = sum_w_lane_14.to(tl.int64)  # sampling.py:125
    total_29 = shifted_28 + as_i64_4  # sampling.py:125
    sum_w_lane_16 = sum_over_w_lane_2(s_10)  # sampling.py:182
    chosen_18 = tl.where(either_2, sum_w_lane_5, sum_w_lane_13)  # sampling.py:211
    chosen_19 = tl.where(either_2, total_20, total_29)  # sampling.py:211
    chosen_20 = tl.where(either_2, sum_w_lane_8, sum_w_lane_16)  # sampling.py:211
    below_6 = larger_6 < chosen_17  # sampling.py:212
    difference_2 = top_k - chosen_18  # sampling.py:212
    smaller_2 = tl.minimum(chosen_20, difference_2)  # sampling.py:212
    chosen_21 = tl.where(below_6, smaller_2, 0)  # sampling.py:212
    below_7 = top_p < 1.0  # sampling.py:218
    as_i64_5 = chosen_21.to(tl.int64)  # sampling.py:220
    shifted_29 = chosen_17 << 16  # sampling.py:71
    below_8 = chosen_17 < 0  # sampling.py:73
    either_3 = shifted_29 | 65535  # sampling.py:73
    chosen_22 = tl.where(below_8, either_3, shifted_29)  # sampling.py:73
    shifted_30 = chosen_22 >> 31  # sampling.py:74
    both_7 = shifted_30 & 2147483647  # sampling.py:74
    xor_4 = chosen_22 ^ both_7  # sampling.py:74
    as_f32_2 = xor_4.to(tl.float32, bitcast=True)  # sampling.py:74
    product_2 = as_f32_2 * chosen  # sampling.py:92
    difference_3 = product_2 - product  # sampling.py:96
    product_3 = difference_3 * 1.442695  # sampling.py:96
    exp2 = tl.exp2(product_3)  # sampling.py:96
    equal_2 = as_f32_2 == as_f32  # sampling.py:98
    larger_9 = tl.maximum(exp2, 0.0)  # sampling.py:98
    chosen_23 = tl.where(equal_2, 1.0, larger_9)  # sampling.py:98
    total_30 = chosen_23 + 2.0  # sampling.py:100
    as_i32_15 = total_30.to(tl.int32, bitcast=True)  # sampling.py:100
    difference_4 = as_i32_15 - 1073741824  # sampling.py:100
    as_i64_6 = difference_4.to(tl.int64)  # sampling.py:220
    product_4 = as_i64_5 * as_i64_6  # sampling.py:220
    larger_10 = tl.maximum(top_p, 0.0)  # sampling.py:221
    smaller_3 = tl.minimum(larger_10, 1.0)  # sampling.py:221
    product_5 = smaller_3 * 1048576.0  # sampling.py:221
    as_i64_7 = product_5.to(tl.int64)  # sampling.py:221
    total_31 = chosen_19 + product_4  # sampling.py:222
    product_6 = total_31 * as_i64_7  # sampling.py:222
    total_32 = product_6 + 1048575  # sampling.py:222
    shifted_31 = total_32 >> 20  # sampling.py:222
    larger_11 = tl.maximum(shifted_31, 1)  # sampling.py:222
    shifted_32 = larger << 16  # sampling.py:71
    below_9 = larger < 0  # sampling.py:73
    either_4 = shifted_32 | 65535  # sampling.py:73
    chosen_24 = tl.where(below_9, either_4, shifted_32)  # sampling.py:73
    shifted_33 = chosen_24 >> 31  # sampling.py:74
    both_8 = shifted_33 & 2147483647  # sampling.py:74
    xor_5 = chosen_24 ^ both_8  # sampling.py:74
    as_f32_3 = xor_5.to(tl.float32, bitcast=True)  # sampling.py:74
    product_7 = as_f32_3 * chosen  # sampling.py:92
    difference_5 = product_7 - product  # sampling.py:96
    product_8 = difference_5 * 1.442695  # sampling.py:96
    exp2_2 = tl.exp2(product_8)  # sampling.py:96
    equal_3 = as_f32_3 == as_f32  # sampling.py:98
    larger_12 = tl.maximum(exp2_2, 0.0)  # sampling.py:98
    chosen_25 = tl.where(equal_3, 1.0, larger_12)  # sampling.py:98
    total_33 = chosen_25 + 2.0  # sampling.py:100
    as_i32_16 = total_33.to(tl.int32, bitcast=True)  # sampling.py:100
    difference_6 = as_i32_16 - 1073741824  # sampling.py:100
    shifted_34 = larger_2 << 16  # sampling.py:71
    below_10 = larger_2 < 0  # sampling.py:73
    either_5 = shifted_34 | 65535  # sampling.py:73
    chosen_26 = tl.where(below_10, either_5, shifted_34)  # sampling.py:73
    shifted_35 = chosen_26 >> 31  # sampling.py:74
    both_9 = shifted_35 & 2147483647  # sampling.py:74
    xor_6 = chosen_26 ^ both_9  # sampling.py:74
    as_f32_4 = xor_6.to(tl.float32, bitcast=True)  # sampling.py:74
    product_9 = as_f32_4 * chosen  # sampling.py:92
    difference_7 = product_9 - product  # sampling.py:96
    product_10 = difference_7 * 1.442695  # sampling.py:96
    exp2_3 = tl.exp2(product_10)  # sampling.py:96
    equal_4 = as_f32_4 == as_f32  # sampling.py:98
    larger_13 = tl.maximum(exp2_3, 0.0)  # sampling.py:98
    chosen_27 = tl.where(equal_4, 1.0, larger_13)  # sampling.py:98
    total_34 = chosen_27 + 2.0  # sampling.py:100
    as_i32_17 = total_34.to(tl.int32, bitcast=True)  # sampling.py:100
    difference_8 = as_i32_17 - 1073741824  # sampling.py:100
    shifted_36 = larger_3 << 16  # sampling.py:71
    below_11 = larger_3 < 0  # sampling.py:73
    either_6 = shifted_36 | 65535  # sampling.py:73
    chosen_28 = tl.where(below_11, either_6, shifted_36)  # sampling.py:73
    shifted_37 = chosen_28 >> 31  # sampling.py:74
    both_10 = shifted_37 & 2147483647  # sampling.py:74
    xor_7 = chosen_28 ^ both_10  # sampling.py:74
    as_f32_5 = xor_7.to(tl.float32, bitcast=True)  # sampling.py:74
    product_11 = as_f32_5 * chosen  # sampling.py:92
    difference_9 = product_11 - product  # sampling.py:96
    product_12 = difference_9 * 1.442695  # sampling.py:96
    exp2_4 = tl.exp2(product_12)  # sampling.py:96
    equal_5 = as_f32_5 == as_f32  # sampling.py:98
    larger_14 = tl.maximum(exp2_4, 0.0)  # sampling.py:98
    chosen_29 = tl.where(equal_5, 1.0, larger_14)  # sampling.py:98
    total_35 = chosen_29 + 2.0  # sampling.py:100
    as_i32_18 = total_35.to(tl.int32, bitcast=True)  # sampling.py:100
    difference_10 = as_i32_18 - 1073741824  # sampling.py:100
    chosen_30 = tl.where(at_most, difference_6, 0)  # sampling.py:227
    both_11 = chosen_30 & 65535  # sampling.py:124
    sum_w_lane_17 = sum_over_w_lane(both_11)  # sampling.py:124
    shifted_38 = chosen_30 >> 16  # sampling.py:124
    sum_w_lane_18 = sum_over_w_lane(shifted_38)  # sampling.py:124
    as_i64_8 = sum_w_lane_18.to(tl.int64)  # sampling.py:125
    shifted_39 = as_i64_8 << 16  # sampling.py:125
    as_i64_9 = sum_w_lane_17.to(tl.int64)  # sampling.py:125
    total_36 = shifted_39 + as_i64_9  # sampling.py:125
    chosen_31 = tl.where(at_most_2, difference_8, 0)  # sampling.py:227
    both_12 = chosen_31 & 65535  # sampling.py:124
    sum_w_lane_19 = sum_over_w_lane(both_12)  # sampling.py:124
    shifted_40 = chosen_31 >> 16  # sampling.py:124
    sum_w_lane_20 = sum_over_w_lane(shifted_40)  # sampling.py:124
    as_i64_10 = sum_w_lane_20.to(tl.int64)  # sampling.py:125
    shifted_41 = as_i64_10 << 16  # sampling.py:125
    as_i64_11 = sum_w_lane_19.to(tl.int64)  # sampling.py:125
    total_37 = shifted_41 + as_i64_11  # sampling.py:125
    chosen_32 = tl.where(at_most_3, difference_10, 0)  # sampling.py:227
    both_13 = chosen_32 & 65535  # sampling.py:124
    sum_w_lane_21 = sum_over_w_lane(both_13)  # sampling.py:124
    shifted_42 = chosen_32 >> 16  # sampling.py:124
    sum_w_lane_22 = sum_over_w_lane(shifted_42)  # sampling.py:124
    as_i64_12 = sum_w_lane_22.to(tl.int64)  # sampling.py:125
    shifted_43 = as_i64_12 << 16  # sampling.py:125
    as_i64_13 = sum_w_lane_21.to(tl.int64)  # sampling.py:125
    total_38 = shifted_43 + as_i64_13  # sampling.py:125
    total_39 = total_36 + total_37  # sampling.py:230
    total_40 = total_39 + total_38  # sampling.py:230
    at_most_21 = larger_11 <= total_40  # sampling.py:230
    chosen_33 = tl.where(at_most_21, j, 0)  # sampling.py:130
    max_j_piece_9 = max_over_j_piece(chosen_33)  # sampling.py:130
    shifted_44 = max_j_piece_9 << 12  # sampling.py:142
    total_41 = shifted_44 + -32768  # sampling.py:142
    total_42 = shifted_7 + total_41  # sampling.py:140
    at_most_22 = total_42 <= larger  # sampling.py:227
    chosen_34 = tl.where(at_most_22, difference_6, 0)  # sampling.py:227
    both_14 = chosen_34 & 65535  # sampling.py:124
    sum_w_lane_23 = sum_over_w_lane(both_14)  # sampling.py:124
    shifted_45 = chosen_34 >> 16  # sampling.py:124
    sum_w_lane_24 = sum_over_w_lane(shifted_45)  # sampling.py:124
    as_i64_14 = sum_w_lane_24.to(tl.int64)  # sampling.py:125
    shifted_46 = as_i64_14 << 16  # sampling.py:125
    as_i64_15 = sum_w_lane_23.to(tl.int64)  # sampling.py:125
    total_43 = shifted_46 + as_i64_15  # sampling.py:125
    at_most_23 = total_42 <= larger_2  # sampling.py:227
    chosen_35 = tl.where(at_most_23, difference_8, 0)  # sampling.py:227
    both_15 = chosen_35 & 65535  # sampling.py:124
    sum_w_lane_25 = sum_over_w_lane(both_15)  # sampling.py:124
    shifted_47 = chosen_35 >> 16  # sampling.py:124
    sum_w_lane_26 = sum_over_w_lane(shifted_47)  # sampling.py:124
    as_i64_16 = sum_w_lane_26.to(tl.int64)  # sampling.py:125
    shifted_48 = as_i64_16 << 16  # sampling.py:125
    as_i64_17 = sum_w_lane_25.to(tl.int64)  # sampling.py:125
    total_44 = shifted_48 + as_i64_17  # sampling.py:125
    at_most_24 = total_42 <= larger_3  # sampling.py:227
    chosen_36 = tl.where(at_most_24, difference_10, 0)  # sampling.py:227
    both_16 = chosen_36 & 65535  # sampling.py:124
    sum_w_lane_27 = sum_over_w_lane(both_16)  # sampling.py:124
    shifted_49 = chosen_36 >> 16  # sampling.py:124
    sum_w_lane_28 = sum_over_w_lane(shifted_49)  # sampling.py:124
    as_i64_18 = sum_w_lane_28.to(tl.int64)  # sampling.py:125
    shifted_50 = as_i64_18 << 16  # sampling.py:125
    as_i64_19 = sum_w_lane_27.to(tl.int64)  # sampling.py:125
    total_45 = shifted_50 + as_i64_19  # sampling.py:125
    total_46 = total_43 + total_44  # sampling.py:230
    total_47 = total_46 + total_45  # sampling.py:230
    at_most_25 = larger_11 <= total_47  # sampling.py:230
    chosen_37 = tl.where(at_most_25, j, 0)  # sampling.py:130
    max_j_piece_10 = max_over_j_piece(chosen_37)  # sampling.py:130
    shifted_51 = max_j_piece_10 << 8  # sampling.py:142
    total_48 = shifted_51 + total_41  # sampling.py:142
    total_49 = shifted_9 + total_48  # sampling.py:140
    at_most_26 = total_49 <= larger  # sampling.py:227
    chosen_38 = tl.where(at_most_26, difference_6, 0)  # sampling.py:227
    both_17 = chosen_38 & 65535  # sampling.py:124
    sum_w_lane_29 = sum_over_w_lane(both_17)  # sampling.py:124
    shifted_52 = chosen_38 >> 16  # sampling.py:124
    sum_w_lane_30 = sum_over_w_lane(shifted_52)  # sampling.py:124
    as_i64_20 = sum_w_lane_30.to(tl.int64)  # sampling.py:125
    shifted_53 = as_i64_20 << 16  # sampling.py:125
    as_i64_21 = sum_w_lane_29.to(tl.int64)  # sampling.py:125
    total_50 = shifted_53 + as_i64_21  # sampling.py:125
    at_most_27 = total_49 <= larger_2  # sampling.py:227
    chosen_39 = tl.where(at_most_27, difference_8, 0)  # sampling.py:227
    both_18 = chosen_39 & 65535  # sampling.py:124
    sum_w_lane_31 = sum_over_w_lane(both_18)  # sampling.py:124
    shifted_54 = chosen_39 >> 16  # sampling.py:124
    sum_w_lane_32 = sum_over_w_lane(shifted_54)  # sampling.py:124
    as_i64_22 = sum_w_lane_32.to(tl.int64)  # sampling.py:125
    shifted_55 = as_i64_22 << 16  # sampling.py:125
    as_i64_23 = sum_w_lane_31.to(tl.int64)  # sampling.py:125
    total_51 = shifted_55 + as_i64_23  # sampling.py:125
    at_most_28 = total_49 <= larger_3  # sampling.py:227
    chosen_40 = tl.where(at_most_28, difference_10, 0)  # sampling.py:227
    both_19 = chosen_40 & 65535  # sampling.py:124
    sum_w_lane_33 = sum_over_w_lane(both_19)  # sampling.py:124
    shifted_56 = chosen_40 >> 16  # sampling.py:124
    sum_w_lane_34 = sum_over_w_lane(shifted_56)  # sampling.py:124
    as_i64_24 = sum_w_lane_34.to(tl.int64)  # sampling.py:125
    shifted_57 = as_i64_24 << 16  # sampling.py:125
    as_i64_25 = sum_w_lane_33.to(tl.int64)  # sampling.py:125
    total_52 = shifted_57 + as_i64_25  # sampling.py:125
    total_53 = total_50 + total_51  # sampling.py:230
    total_54 = total_53 + total_52  # sampling.py:230
    at_most_29 = larger_11 <= total_54  # sampling.py:230
    chosen_41 = tl.where(at_most_29, j, 0)  # sampling.py:130
    max_j_piece_11 = max_over_j_piece(chosen_41)  # sampling.py:130
    shifted_58 = max_j_piece_11 << 4  # sampling.py:142
    total_55 = shifted_58 + total_48  # sampling.py:142
    total_56 = j + total_55  # sampling.py:140
    at_most_30 = total_56 <= larger  # sampling.py:227
    chosen_42 = tl.where(at_most_30, difference_6, 0)  # sampling.py:227
    both_20 = chosen_42 & 65535  # sampling.py:124
    sum_w_lane_35 = sum_over_w_lane(both_20)  # sampling.py:124
    shifted_59 = chosen_42 >> 16  # sampling.py:124
    sum_w_lane_36 = sum_over_w_lane(shifted_59)  # sampling.py:124
    as_i64_26 = sum_w_lane_36.to(tl.int64)  # sampling.py:125
    shifted_60 = as_i64_26 << 16  # sampling.py:125
    as_i64_27 = sum_w_lane_35.to(tl.int64)  # sampling.py:125
    total_57 = shifted_60 + as_i64_27  # sampling.py:125
    at_most_31 = total_56 <= larger_2  # sampling.py:227
    chosen_43 = tl.where(at_most_31, difference_8, 0)  # sampling.py:227
    both_21 = chosen_43 & 65535  # sampling.py:124
    sum_w_lane_37 = sum_over_w_lane(both_21)  # sampling.py:124
    shifted_61 = chosen_43 >> 16  # sampling.py:124
    sum_w_lane_38 = sum_over_w_lane(shifted_61)  # sampling.py:124
    as_i64_28 = sum_w_lane_38.to(tl.int64)  # sampling.py:125
    shifted_62 = as_i64_28 << 16  # sampling.py:125
    as_i64_29 = sum_w_lane_37.to(tl.int64)  # sampling.py:125
    total_58 = shifted_62 + as_i64_29  # sampling.py:125
    at_most_32 = total_56 <= larger_3  # sampling.py:227
    chosen_44 = tl.where(at_most_32, difference_10, 0)  # sampling.py:227
    both_22 = chosen_44 & 65535  # sampling.py:124
    sum_w_lane_39 = sum_over_w_lane(both_22)  # sampling.py:124
    shifted_63 = chosen_44 >> 16  # sampling.py:124
    sum_w_lane_40 = sum_over_w_lane(shifted_63)  # sampling.py:124
    as_i64_30 = sum_w_lane_40.to(tl.int64)  # sampling.py:125
    shifted_64 = as_i64_30 << 16  # sampling.py:125
    as_i64_31 = sum_w_lane_39.to(tl.int64)  # sampling.py:125
    total_59 = shifted_64 + as_i64_31  # sampling.py:125
    total_60 = total_57 + total_58  # sampling.py:230
    total_61 = total_60 + total_59  # sampling.py:230
    at_most_33 = larger_11 <= total_61  # sampling.py:230
    chosen_45 = tl.where(at_most_33, j, 0)  # sampling.py:130
    max_j_piece_12 = max_over_j_piece(chosen_45)  # sampling.py:130
    total_62 = max_j_piece_12 + total_55  # sampling.py:142
    chosen_46 = tl.where(below_7, total_62, chosen_17)  # sampling.py:239
    larger_15 = tl.maximum(chosen_46, chosen_17)  # sampling.py:239
    steps_6 = tl.where(below_7, tl.full((), 149, tl.int32), 0)  # sampling.py:175
    full_steps_6 = tl.where(below_7, tl.full((), 148, tl.int32), 0)  # sampling.py:175
    w_state = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    s_11 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    w_state_2 = tl.full((1024, 1), 0, tl.int32)  # sampling.py:175
    for w_step in tl.range(0, full_steps_6):  # sampling.py:175
        product_13 = w_step * 1024  # sampling.py:175
        w = product_13 + w_lane  # sampling.py:175
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:176
        as_f32_6 = scores.to(tl.float32)  # sampling.py:176
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_63 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_63.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_65 = as_i32_19 >> 31  # sampling.py:119
        both_23 = shifted_65 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_23  # sampling.py:119
        shifted_66 = xor_8 >> 16  # sampling.py:67
        below_12 = larger_15 < shifted_66  # sampling.py:178
        as_i32_20 = below_12.to(tl.int32)  # sampling.py:178
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_47 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_64 = chosen_47 + 2.0  # sampling.py:100
        as_i32_21 = total_64.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_21 - 1073741824  # sampling.py:100
        chosen_48 = tl.where(below_12, difference_12, 0)  # sampling.py:179
        equal_7 = shifted_66 == larger_15  # sampling.py:180
        as_i32_22 = equal_7.to(tl.int32)  # sampling.py:180
        s_12 = w_state + as_i32_20  # sampling.py:175
        s_13 = s_11 + chosen_48  # sampling.py:175
        s_14 = w_state_2 + as_i32_22  # sampling.py:175
        w_state, s_11, w_state_2 = s_12, s_13, s_14  # sampling.py:175
    for w_step in tl.range(full_steps_6, steps_6):  # sampling.py:175
        product_13 = w_step * 1024  # sampling.py:175
        w = product_13 + w_lane  # sampling.py:175
        exists = w < 151936  # sampling.py:175
        exists_2 = exists & below_7  # sampling.py:175
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:176
        as_f32_6 = scores.to(tl.float32)  # sampling.py:176
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_63 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_63.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_65 = as_i32_19 >> 31  # sampling.py:119
        both_23 = shifted_65 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_23  # sampling.py:119
        shifted_66 = xor_8 >> 16  # sampling.py:67
        below_12 = larger_15 < shifted_66  # sampling.py:178
        as_i32_20 = below_12.to(tl.int32)  # sampling.py:178
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_47 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_64 = chosen_47 + 2.0  # sampling.py:100
        as_i32_21 = total_64.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_21 - 1073741824  # sampling.py:100
        chosen_48 = tl.where(below_12, difference_12, 0)  # sampling.py:179
        equal_7 = shifted_66 == larger_15  # sampling.py:180
        as_i32_22 = equal_7.to(tl.int32)  # sampling.py:180
        chosen_49 = tl.where(exists_2, as_i32_20, 0)  # sampling.py:175
        chosen_50 = tl.where(exists_2, chosen_48, 0)  # sampling.py:175
        chosen_51 = tl.where(exists_2, as_i32_22, 0)  # sampling.py:175
        s_12 = w_state + chosen_49  # sampling.py:175
        s_13 = s_11 + chosen_50  # sampling.py:175
        s_14 = w_state_2 + chosen_51  # sampling.py:175
        w_state, s_11, w_state_2 = s_12, s_13, s_14  # sampling.py:175
    both_23 = s_11 & 65535  # sampling.py:124
    sum_w_lane_41 = sum_over_w_lane_2(both_23)  # sampling.py:124
    shifted_65 = s_11 >> 16  # sampling.py:124
    sum_w_lane_42 = sum_over_w_lane_2(shifted_65)  # sampling.py:124
    as_i64_32 = sum_w_lane_42.to(tl.int64)  # sampling.py:125
    shifted_66 = as_i64_32 << 16  # sampling.py:125
    as_i64_33 = sum_w_lane_41.to(tl.int64)  # sampling.py:125
    total_63 = shifted_66 + as_i64_33  # sampling.py:125
    below_12 = total_63 < larger_11  # sampling.py:240
    unless_3 = ~below_7  # sampling.py:240
    either_7 = below_12 | unless_3  # sampling.py:240
    chosen_47 = tl.where(either_7, larger_15, shifted_14)  # sampling.py:187
    shifted_67 = larger_15 >> 12  # sampling.py:144
    shifted_68 = chosen_47 >> 12  # sampling.py:144
    differs_5 = shifted_67 != shifted_68  # sampling.py:144
    steps_7 = tl.where(differs_5, tl.full((), 149, tl.int32), 0)  # sampling.py:234
    full_steps_7 = tl.where(differs_5, tl.full((), 148, tl.int32), 0)  # sampling.py:234
    s_12 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:234
    for w_step in tl.range(0, full_steps_7):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_64 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_64.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_69 = as_i32_19 >> 31  # sampling.py:119
        both_24 = shifted_69 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_24  # sampling.py:119
        shifted_70 = xor_8 >> 16  # sampling.py:67
        at_most_34 = total_4 <= shifted_70  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_48 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_65 = chosen_48 + 2.0  # sampling.py:100
        as_i32_20 = total_65.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_49 = tl.where(at_most_34, difference_12, 0)  # sampling.py:236
        s_13 = s_12 + chosen_49  # sampling.py:234
        s_12 = s_13  # sampling.py:234
    for w_step in tl.range(full_steps_7, steps_7):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        exists = w < 151936  # sampling.py:234
        exists_2 = exists & differs_5  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_64 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_64.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_69 = as_i32_19 >> 31  # sampling.py:119
        both_24 = shifted_69 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_24  # sampling.py:119
        shifted_70 = xor_8 >> 16  # sampling.py:67
        at_most_34 = total_4 <= shifted_70  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_48 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_65 = chosen_48 + 2.0  # sampling.py:100
        as_i32_20 = total_65.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_49 = tl.where(at_most_34, difference_12, 0)  # sampling.py:236
        chosen_50 = tl.where(exists_2, chosen_49, 0)  # sampling.py:234
        s_13 = s_12 + chosen_50  # sampling.py:234
        s_12 = s_13  # sampling.py:234
    both_24 = s_12 & 65535  # sampling.py:124
    sum_w_lane_43 = sum_over_w_lane(both_24)  # sampling.py:124
    shifted_69 = s_12 >> 16  # sampling.py:124
    sum_w_lane_44 = sum_over_w_lane(shifted_69)  # sampling.py:124
    as_i64_34 = sum_w_lane_44.to(tl.int64)  # sampling.py:125
    shifted_70 = as_i64_34 << 16  # sampling.py:125
    as_i64_35 = sum_w_lane_43.to(tl.int64)  # sampling.py:125
    total_64 = shifted_70 + as_i64_35  # sampling.py:125
    at_most_34 = larger_11 <= total_64  # sampling.py:237
    chosen_48 = tl.where(at_most_34, j, 0)  # sampling.py:130
    max_j_piece_13 = max_over_j_piece(chosen_48)  # sampling.py:130
    shifted_71 = max_j_piece_13 << 12  # sampling.py:146
    total_65 = shifted_71 + -32768  # sampling.py:146
    shifted_72 = shifted_67 << 12  # sampling.py:146
    chosen_49 = tl.where(differs_5, total_65, shifted_72)  # sampling.py:146
    total_66 = shifted_7 + chosen_49  # sampling.py:140
    shifted_73 = larger_15 >> 8  # sampling.py:144
    shifted_74 = chosen_47 >> 8  # sampling.py:144
    differs_6 = shifted_73 != shifted_74  # sampling.py:144
    steps_8 = tl.where(differs_6, tl.full((), 149, tl.int32), 0)  # sampling.py:234
    full_steps_8 = tl.where(differs_6, tl.full((), 148, tl.int32), 0)  # sampling.py:234
    s_13 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:234
    for w_step in tl.range(0, full_steps_8):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_67 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_67.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_75 = as_i32_19 >> 31  # sampling.py:119
        both_25 = shifted_75 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_25  # sampling.py:119
        shifted_76 = xor_8 >> 16  # sampling.py:67
        at_most_35 = total_66 <= shifted_76  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_50 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_68 = chosen_50 + 2.0  # sampling.py:100
        as_i32_20 = total_68.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_51 = tl.where(at_most_35, difference_12, 0)  # sampling.py:236
        s_14 = s_13 + chosen_51  # sampling.py:234
        s_13 = s_14  # sampling.py:234
    for w_step in tl.range(full_steps_8, steps_8):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        exists = w < 151936  # sampling.py:234
        exists_2 = exists & differs_6  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_67 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_67.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_75 = as_i32_19 >> 31  # sampling.py:119
        both_25 = shifted_75 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_25  # sampling.py:119
        shifted_76 = xor_8 >> 16  # sampling.py:67
        at_most_35 = total_66 <= shifted_76  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_50 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_68 = chosen_50 + 2.0  # sampling.py:100
        as_i32_20 = total_68.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_51 = tl.where(at_most_35, difference_12, 0)  # sampling.py:236
        chosen_52 = tl.where(exists_2, chosen_51, 0)  # sampling.py:234
        s_14 = s_13 + chosen_52  # sampling.py:234
        s_13 = s_14  # sampling.py:234
    both_25 = s_13 & 65535  # sampling.py:124
    sum_w_lane_45 = sum_over_w_lane(both_25)  # sampling.py:124
    shifted_75 = s_13 >> 16  # sampling.py:124
    sum_w_lane_46 = sum_over_w_lane(shifted_75)  # sampling.py:124
    as_i64_36 = sum_w_lane_46.to(tl.int64)  # sampling.py:125
    shifted_76 = as_i64_36 << 16  # sampling.py:125
    as_i64_37 = sum_w_lane_45.to(tl.int64)  # sampling.py:125
    total_67 = shifted_76 + as_i64_37  # sampling.py:125
    at_most_35 = larger_11 <= total_67  # sampling.py:237
    chosen_50 = tl.where(at_most_35, j, 0)  # sampling.py:130
    max_j_piece_14 = max_over_j_piece(chosen_50)  # sampling.py:130
    shifted_77 = max_j_piece_14 << 8  # sampling.py:146
    total_68 = shifted_77 + chosen_49  # sampling.py:146
    shifted_78 = shifted_73 << 8  # sampling.py:146
    chosen_51 = tl.where(differs_6, total_68, shifted_78)  # sampling.py:146
    total_69 = shifted_9 + chosen_51  # sampling.py:140
    shifted_79 = larger_15 >> 4  # sampling.py:144
    shifted_80 = chosen_47 >> 4  # sampling.py:144
    differs_7 = shifted_79 != shifted_80  # sampling.py:144
    steps_9 = tl.where(differs_7, tl.full((), 149, tl.int32), 0)  # sampling.py:234
    full_steps_9 = tl.where(differs_7, tl.full((), 148, tl.int32), 0)  # sampling.py:234
    s_14 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:234
    for w_step in tl.range(0, full_steps_9):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_70 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_70.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_81 = as_i32_19 >> 31  # sampling.py:119
        both_26 = shifted_81 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_26  # sampling.py:119
        shifted_82 = xor_8 >> 16  # sampling.py:67
        at_most_36 = total_69 <= shifted_82  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_52 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_71 = chosen_52 + 2.0  # sampling.py:100
        as_i32_20 = total_71.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_53 = tl.where(at_most_36, difference_12, 0)  # sampling.py:236
        s_15 = s_14 + chosen_53  # sampling.py:234
        s_14 = s_15  # sampling.py:234
    for w_step in tl.range(full_steps_9, steps_9):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        exists = w < 151936  # sampling.py:234
        exists_2 = exists & differs_7  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_70 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_70.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_81 = as_i32_19 >> 31  # sampling.py:119
        both_26 = shifted_81 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_26  # sampling.py:119
        shifted_82 = xor_8 >> 16  # sampling.py:67
        at_most_36 = total_69 <= shifted_82  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_52 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_71 = chosen_52 + 2.0  # sampling.py:100
        as_i32_20 = total_71.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_53 = tl.where(at_most_36, difference_12, 0)  # sampling.py:236
        chosen_54 = tl.where(exists_2, chosen_53, 0)  # sampling.py:234
        s_15 = s_14 + chosen_54  # sampling.py:234
        s_14 = s_15  # sampling.py:234
    both_26 = s_14 & 65535  # sampling.py:124
    sum_w_lane_47 = sum_over_w_lane(both_26)  # sampling.py:124
    shifted_81 = s_14 >> 16  # sampling.py:124
    sum_w_lane_48 = sum_over_w_lane(shifted_81)  # sampling.py:124
    as_i64_38 = sum_w_lane_48.to(tl.int64)  # sampling.py:125
    shifted_82 = as_i64_38 << 16  # sampling.py:125
    as_i64_39 = sum_w_lane_47.to(tl.int64)  # sampling.py:125
    total_70 = shifted_82 + as_i64_39  # sampling.py:125
    at_most_36 = larger_11 <= total_70  # sampling.py:237
    chosen_52 = tl.where(at_most_36, j, 0)  # sampling.py:130
    max_j_piece_15 = max_over_j_piece(chosen_52)  # sampling.py:130
    shifted_83 = max_j_piece_15 << 4  # sampling.py:146
    total_71 = shifted_83 + chosen_51  # sampling.py:146
    shifted_84 = shifted_79 << 4  # sampling.py:146
    chosen_53 = tl.where(differs_7, total_71, shifted_84)  # sampling.py:146
    total_72 = j + chosen_53  # sampling.py:140
    differs_8 = larger_15 != chosen_47  # sampling.py:144
    steps_10 = tl.where(differs_8, tl.full((), 149, tl.int32), 0)  # sampling.py:234
    full_steps_10 = tl.where(differs_8, tl.full((), 148, tl.int32), 0)  # sampling.py:234
    s_15 = tl.full((1024, 16), 0, tl.int32)  # sampling.py:234
    for w_step in tl.range(0, full_steps_10):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_73 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_73.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_85 = as_i32_19 >> 31  # sampling.py:119
        both_27 = shifted_85 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_27  # sampling.py:119
        shifted_86 = xor_8 >> 16  # sampling.py:67
        at_most_37 = total_72 <= shifted_86  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_54 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_74 = chosen_54 + 2.0  # sampling.py:100
        as_i32_20 = total_74.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_55 = tl.where(at_most_37, difference_12, 0)  # sampling.py:236
        s_16 = s_15 + chosen_55  # sampling.py:234
        s_15 = s_16  # sampling.py:234
    for w_step in tl.range(full_steps_10, steps_10):  # sampling.py:234
        product_13 = w_step * 1024  # sampling.py:234
        w = product_13 + w_lane  # sampling.py:234
        exists = w < 151936  # sampling.py:234
        exists_2 = exists & differs_8  # sampling.py:234
        scores = tl.load(scores_ptr + t.to(tl.int64) * scores_t_stride + w, mask=exists_2, other=0.0)  # sampling.py:235
        as_f32_6 = scores.to(tl.float32)  # sampling.py:235
        larger_16 = tl.maximum(as_f32_6, float("-inf"))  # sampling.py:118
        total_73 = larger_16 + 0.0  # sampling.py:118
        as_i32_19 = total_73.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_85 = as_i32_19 >> 31  # sampling.py:119
        both_27 = shifted_85 & 2147483647  # sampling.py:119
        xor_8 = as_i32_19 ^ both_27  # sampling.py:119
        shifted_86 = xor_8 >> 16  # sampling.py:67
        at_most_37 = total_72 <= shifted_86  # sampling.py:236
        product_14 = as_f32_6 * chosen  # sampling.py:92
        difference_11 = product_14 - product  # sampling.py:96
        product_15 = difference_11 * 1.442695  # sampling.py:96
        exp2_5 = tl.exp2(product_15)  # sampling.py:96
        equal_6 = as_f32_6 == as_f32  # sampling.py:98
        larger_17 = tl.maximum(exp2_5, 0.0)  # sampling.py:98
        chosen_54 = tl.where(equal_6, 1.0, larger_17)  # sampling.py:98
        total_74 = chosen_54 + 2.0  # sampling.py:100
        as_i32_20 = total_74.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_12 = as_i32_20 - 1073741824  # sampling.py:100
        chosen_55 = tl.where(at_most_37, difference_12, 0)  # sampling.py:236
        chosen_56 = tl.where(exists_2, chosen_55, 0)  # sampling.py:234
        s_16 = s_15 + chosen_56  # sampling.py:234
        s_15 = s_16  # sampling.py:234
    both_27 = s_15 & 65535  # sampling.py:124
    sum_w_lane_49 = sum_over_w_lane(both_27)  # sampling.py:124
    shifted_85 = s_15 >> 16  # sampling.py:124
    sum_w_lane_50 = sum_over_w_lane(shifted_85)  # sampling.py:124
    as_i64_40 = sum_w_lane_50.to(tl.int64)  # sampling.py:125
    shifted_86 = as_i64_40 << 16  # sampling.py:125
    as_i64_41 = sum_w_lane_49.to(tl.int64)  # sampling.py:125
    total_73 = shifted_86 + as_i64_41  # sampling.py:125
    at_most_37 = larger_11 <= total_73  # sampling.py:237
    chosen_54 = tl.where(at_most_37, j, 0)  # sampling.py:130
    max_j_piece_16 = max_over_j_piece(chosen_54)  # sampling.py:130
    total_74 = max_j_piece_16 + chosen_53  # sampling.py:146
    chosen_55 = tl.where(differs_8, total_74, larger_15)  # sampling.py:146
    below_13 = chosen_17 < chosen_55  # sampling.py:242
    chosen_56 = tl.where(below_13, 2147483647, chosen_21)  # sampling.py:242
    chosen_57 = tl.where(below_7, larger_11, 4611686018427387904)  # sampling.py:243
    chosen_58 = tl.where(equal, 4611686018427387904, chosen_57)  # sampling.py:341
    chosen_59 = tl.where(equal, shifted_14, chosen_55)  # sampling.py:342
    chosen_60 = tl.where(equal, 1, chosen_56)  # sampling.py:342
    tl.store(best_ptr + t, as_f32)  # sampling.py:344
    tl.store(goal_ptr + t, chosen_58)  # sampling.py:345
    tl.store(cut_ptr + t, chosen_59)  # sampling.py:346
    tl.store(most_ties_ptr + t, chosen_60)  # sampling.py:346


@triton.jit
def sample_2(blocks_ptr, seed_ptr, request_id_ptr, position_ptr, inv_temperature_ptr, token_ptr, threshold_ptr, ties_ptr, last_ptr, best_ptr, goal_ptr, cut_ptr, most_ties_ptr, blocks_t_stride, errors_ptr):
    # A program owns 1 of T (rows).
    t = tl.program_id(0)
    inv_temperature = tl.load(inv_temperature_ptr + t)  # sampling.py:328
    request_id = tl.load(request_id_ptr + t)  # sampling.py:264
    position = tl.load(position_ptr + t)  # sampling.py:264
    seed = tl.load(seed_ptr + t)  # sampling.py:264
    equal = inv_temperature == float("inf")  # sampling.py:328
    chosen = tl.where(equal, 1.0, inv_temperature)  # sampling.py:329
    j = tl.arange(0, 16)[:, None]  # sampling.py:140
    shifted = j << 8  # sampling.py:140
    shifted_2 = j << 4  # sampling.py:140
    best = tl.load(best_ptr + t)  # sampling.py:344
    goal = tl.load(goal_ptr + t)  # sampling.py:345
    cut = tl.load(cut_ptr + t)  # sampling.py:346
    most_ties = tl.load(most_ties_ptr + t)  # sampling.py:346
    as_u32 = request_id.to(tl.uint32)  # sampling.py:264
    shifted_3 = request_id >> 32  # sampling.py:264
    as_u32_2 = shifted_3.to(tl.uint32)  # sampling.py:264
    as_u32_3 = position.to(tl.uint32)  # sampling.py:264
    shifted_4 = position >> 32  # sampling.py:264
    as_u32_4 = shifted_4.to(tl.uint32)  # sampling.py:264
    as_u32_5 = seed.to(tl.uint32)  # sampling.py:264
    shifted_5 = seed >> 32  # sampling.py:264
    as_u32_6 = shifted_5.to(tl.uint32)  # sampling.py:264
    word0, word1, word2, word3 = philox(as_u32, as_u32_2, as_u32_3, as_u32_4, as_u32_5, as_u32_6)  # sampling.py:265
    shifted_6 = word0 >> 9  # sampling.py:266
    as_i64 = shifted_6.to(tl.int64)  # sampling.py:266
    shifted_7 = as_i64 << 1  # sampling.py:266
    total = shifted_7 + 1  # sampling.py:266
    u = tl.arange(0, 1024)[None, :]  # sampling.py:278
    product = u * 149  # sampling.py:280
    piece_begin = tl.minimum(product, 151936)  # sampling.py:280
    total_2 = piece_begin + 149  # sampling.py:280
    piece_end = tl.minimum(total_2, 151936)  # sampling.py:280
    product_2 = best * chosen  # sampling.py:92
    s = tl.full((1, 1024), 0, tl.int32)  # sampling.py:280
    s_2 = tl.full((1, 1024), 0, tl.int32)  # sampling.py:280
    for u_step in tl.range(0, 149):  # sampling.py:280
        total_3 = piece_begin + u_step  # sampling.py:280
        exists = total_3 < piece_end  # sampling.py:280
        blocks = tl.load(blocks_ptr + t.to(tl.int64) * blocks_t_stride + total_3, mask=exists, other=0.0)  # sampling.py:281
        as_f32 = blocks.to(tl.float32)  # sampling.py:281
        larger = tl.maximum(as_f32, float("-inf"))  # sampling.py:118
        total_4 = larger + 0.0  # sampling.py:118
        as_i32 = total_4.to(tl.int32, bitcast=True)  # sampling.py:118
        shifted_8 = as_i32 >> 31  # sampling.py:119
        both = shifted_8 & 2147483647  # sampling.py:119
        xor = as_i32 ^ both  # sampling.py:119
        shifted_9 = xor >> 16  # sampling.py:67
        equal_2 = shifted_9 == cut  # sampling.py:283
        as_i32_2 = equal_2.to(tl.int32)  # sampling.py:283
        below = cut < shifted_9  # sampling.py:284
        product_3 = as_f32 * chosen  # sampling.py:92
        difference = product_3 - product_2  # sampling.py:96
        product_4 = difference * 1.442695  # sampling.py:96
        exp2 = tl.exp2(product_4)  # sampling.py:96
        equal_3 = as_f32 == best  # sampling.py:98
        larger_2 = tl.maximum(exp2, 0.0)  # sampling.py:98
        chosen_2 = tl.where(equal_3, 1.0, larger_2)  # sampling.py:98
        total_5 = chosen_2 + 2.0  # sampling.py:100
        as_i32_3 = total_5.to(tl.int32, bitcast=True)  # sampling.py:100
        difference_2 = as_i32_3 - 1073741824  # sampling.py:100
        chosen_3 = tl.where(below, difference_2, 0)  # sampling.py:284
        chosen_4 = tl.where(exists, as_i32_2, 0)  # sampling.py:280
        chosen_5 = tl.where(exists, chosen_3, 0)  # sampling.py:280
        s_3 = s + chosen_4  # sampling.py:280
        s_4 = s_2 + chosen_5  # sampling.py:280
        s, s_2 = s_3, s_4  # sampling.py:280
    shifted_8 = cut << 16  # sampling.py:71
    below = cut < 0  # sampling.py:73
    either = shifted_8 | 65535  # sampling.py:73
    chosen_2 = tl.where(below, either, shifted_8)  # sampling.py:73
    shifted_9 = chosen_2 >> 31  # sampling.py:74
    both = shifted_9 & 2147483647  # sampling.py:74
    xor = chosen_2 ^ both  # sampling.py:74
    as_f32 = xor.to(tl.float32, bitcast=True)  # sampling.py:74
    product_3 = as_f32 * chosen  # sampling.py:92
    difference = product_3 - product_2  # sampling.py:96
    product_4 = difference * 1.442695  # sampling.py:96
    exp2 = tl.exp2(product_4)  # sampling.py:96
    equal_2 = as_f32 == best  # sampling.py:98
    larger = tl.maximum(exp2, 0.0)  # sampling.py:98
    chosen_3 = tl.where(equal_2, 1.0, larger)  # sampling.py:98
    total_3 = chosen_3 + 2.0  # sampling.py:100
    as_i32 = total_3.to(tl.int32, bitcast=True)  # sampling.py:100
    difference_2 = as_i32 - 1073741824  # sampling.py:100
    sum_u_piece = sum_over_u_piece(s)  # sampling.py:291
    smaller = tl.minimum(sum_u_piece, most_ties)  # sampling.py:291
    larger_2 = tl.maximum(difference_2, 1)  # sampling.py:293
    as_i64_2 = larger_2.to(tl.int64)  # sampling.py:293
    both_2 = s_2 & 65535  # sampling.py:124
    sum_u_piece_2 = sum_over_u_piece(both_2)  # sampling.py:124
    shifted_10 = s_2 >> 16  # sampling.py:124
    sum_u_piece_3 = sum_over_u_piece(shifted_10)  # sampling.py:124
    as_i64_3 = sum_u_piece_3.to(tl.int64)  # sampling.py:125
    shifted_11 = as_i64_3 << 16  # sampling.py:125
    as_i64_4 = sum_u_piece_2.to(tl.int64)  # sampling.py:125
    total_4 = shifted_11 + as_i64_4  # sampling.py:125
    difference_3 = goal - total_4  # sampling.py:294
    larger_3 = tl.maximum(difference_3, 0)  # sampling.py:294
    difference_4 = as_i64_2 - 1  # sampling.py:294
    total_5 = larger_3 + difference_4  # sampling.py:294
    as_i64_5 = smaller.to(tl.int64)  # sampling.py:295
    quotient = total_5 // as_i64_2  # sampling.py:295
    smaller_2 = tl.minimum(as_i64_5, quotient)  # sampling.py:295
    as_i32_2 = smaller_2.to(tl.int32)  # sampling.py:295
    as_i64_6 = as_i32_2.to(tl.int64)  # sampling.py:296
    difference_5 = as_i64_6 - 1  # sampling.py:296
    below_2 = u < shifted  # sampling.py:159
    chosen_4 = tl.where(below_2, s, 0)  # sampling.py:159
    both_3 = chosen_4 & 65535  # sampling.py:124
    sum_u_piece_4 = sum_over_u_piece_2(both_3)  # sampling.py:124
    shifted_12 = chosen_4 >> 16  # sampling.py:124
    sum_u_piece_5 = sum_over_u_piece_2(shifted_12)  # sampling.py:124
    as_i64_7 = sum_u_piece_5.to(tl.int64)  # sampling.py:125
    shifted_13 = as_i64_7 << 16  # sampling.py:125
    as_i64_8 = sum_u_piece_4.to(tl.int64)  # sampling.py:125
    total_6 = shifted_13 + as_i64_8  # sampling.py:125
    at_most = total_6 <= difference_5  # sampling.py:164
    chosen_5 = tl.where(at_most, j, 0)  # sampling.py:130
    max_j_piece = max_over_j_piece(chosen_5)  # sampling.py:130
    shifted_14 = max_j_piece << 8  # sampling.py:164
    total_7 = shifted_2 + shifted_14  # sampling.py:163
    below_3 = u < total_7  # sampling.py:159
    chosen_6 = tl.where(below_3, s, 0)  # sampling.py:159
    both_4 = chosen_6 & 65535  # sampling.py:124
    sum_u_piece_6 = sum_over_u_piece_2(both_4)  # sampling.py:124
    shifted_15 = chosen_6 >> 16  # sampling.py:124
    sum_u_piece_7 = sum_over_u_piece_2(shifted_15)  # sampling.py:124
    as_i64_9 = sum_u_piece_7.to(tl.int64)  # sampling.py:125
    shifted_16 = as_i64_9 << 16  # sampling.py:125
    as_i64_10 = sum_u_piece_6.to(tl.int64)  # sampling.py:125
    total_8 = shifted_16 + as_i64_10  # sampling.py:125
    at_most_2 = total_8 <= difference_5  # sampling.py:164
    chosen_7 = tl.where(at_most_2, j, 0)  # sampling.py:130
    max_j_piece_2 = max_over_j_piece(chosen_7)  # sampling.py:130
    shifted_17 = max_j_piece_2 << 4  # sampling.py:164
    total_9 = shifted_17 + shifted_14  # sampling.py:164
    total_10 = j + total_9  # sampling.py:163
    below_4 = u < total_10  # sampling.py:159
    chosen_8 = tl.where(below_4, s, 0)  # sampling.py:159
    both_5 = chosen_8 & 65535  # sampling.py:124
    sum_u_piece_8 = sum_over_u_piece_2(both_5)  # sampling.py:124
    shifted_18 = chosen_8 >> 16  # sampling.py:124
    sum_u_piece_9 = sum_over_u_piece_2(shifted_18)  # sampling.py:124
    as_i64_11 = sum_u_piece_9.to(tl.int64)  # sampling.py:125
    shifted_19 = as_i64_11 << 16  # sampling.py:125
    as_i64_12 = sum_u_piece_8.to(tl.int64)  # sampling.py:125
    total_11 = shifted_19 + as_i64_12  # sampling.py:125
    at_most_3 = total_11 <= difference_5  # sampling.py:164
    chosen_9 = tl.where(at_most_3, j, 0)  # sampling.py:130
    max_j_piece_3 = max_over_j_piece(chosen_9)  # sampling.py:130
    total_12 = max_j_piece_3 + total_9  # sampling.py:164
    below_5 = u < total_12  # sampling.py:159
    chosen_10 = tl.where(below_5, s, 0)  # sampling.py:159
    both_6 = chosen_10 & 65535  # sampling.py:124
    sum_u_piece_10 = sum_over_u_piece(both_6)  # sampling.py:124
    shifted_20 = chosen_10 >> 16  # sampling.py:124
    sum_u_piece_11 = sum_over_u_piece(shifted_20)  # sampling.py:124
    as_i64_13 = sum_u_piece_11.to(tl.int64)  # sampling.py:125
    shifted_21 = as_i64_13 << 16  # sampling.py:125
    as_i64_14 = sum_u_piece_10.to(tl.int64)  # sampling.py:125
    total_13 = shifted_21 + as_i64_14  # sampling.py:125
    difference_6 = difference_5 - total_13  # sampling.py:166
    below_6 = u < 149  # sampling.py:288
    product_5 = total_12 * 149  # sampling.py:288
    total_14 = product_5 + u  # sampling.py:288
    chosen_11 = tl.where(below_6, total_14, -1)  # sampling.py:288
    at_most_4 = chosen_11 >= 0  # sampling.py:288
    below_7 = chosen_11 < 151936  # sampling.py:288
    both_7 = at_most_4 & below_7  # sampling.py:288
    as_bf16 = tl.full((), float("-inf"), tl.float32).to(tl.bfloat16)  # sampling.py:288
    blocks = tl.load(blocks_ptr + t.to(tl.int64) * blocks_t_stride + chosen_11, mask=both_7, other=as_bf16)  # sampling.py:288
    as_f32_2 = blocks.to(tl.float32)  # sampling.py:288
    larger_4 = tl.maximum(as_f32_2, float("-inf"))  # sampling.py:118
    total_15 = larger_4 + 0.0  # sampling.py:118
    as_i32_3 = total_15.to(tl.int32, bitcast=True)  # sampling.py:118
    shifted_22 = as_i32_3 >> 31  # sampling.py:119
    both_8 = shifted_22 & 2147483647  # sampling.py:119
    xor_2 = as_i32_3 ^ both_8  # sampling.py:119
    shifted_23 = xor_2 >> 16  # sampling.py:67
    equal_3 = shifted_23 == cut  # sampling.py:297
    as_i32_4 = equal_3.to(tl.int32)  # sampling.py:297
    chosen_12 = tl.where(below_2, as_i32_4, 0)  # sampling.py:159
    both_9 = chosen_12 & 65535  # sampling.py:124
    sum_u_piece_12 = sum_over_u_piece_2(both_9)  # sampling.py:124
    shifted_24 = chosen_12 >> 16  # sampling.py:124
    sum_u_piece_13 = sum_over_u_piece_2(shifted_24)  # sampling.py:124
    as_i64_15 = sum_u_piece_13.to(tl.int64)  # sampling.py:125
    shifted_25 = as_i64_15 << 16  # sampling.py:125
    as_i64_16 = sum_u_piece_12.to(tl.int64)  # sampling.py:125
    total_16 = shifted_25 + as_i64_16  # sampling.py:125
    at_most_5 = total_16 <= difference_6  # sampling.py:164
    chosen_13 = tl.where(at_most_5, j, 0)  # sampling.py:130
    max_j_piece_4 = max_over_j_piece(chosen_13)  # sampling.py:130
    shifted_26 = max_j_piece_4 << 8  # sampling.py:164
    total_17 = shifted_2 + shifted_26  # sampling.py:163
    below_8 = u < total_17  # sampling.py:159
    chosen_14 = tl.where(below_8, as_i32_4, 0)  # sampling.py:159
    both_10 = chosen_14 & 65535  # sampling.py:124
    sum_u_piece_14 = sum_over_u_piece_2(both_10)  # sampling.py:124
    shifted_27 = chosen_14 >> 16  # sampling.py:124
    sum_u_piece_15 = sum_over_u_piece_2(shifted_27)  # sampling.py:124
    as_i64_17 = sum_u_piece_15.to(tl.int64)  # sampling.py:125
    shifted_28 = as_i64_17 << 16  # sampling.py:125
    as_i64_18 = sum_u_piece_14.to(tl.int64)  # sampling.py:125
    total_18 = shifted_28 + as_i64_18  # sampling.py:125
    at_most_6 = total_18 <= difference_6  # sampling.py:164
    chosen_15 = tl.where(at_most_6, j, 0)  # sampling.py:130
    max_j_piece_5 = max_over_j_piece(chosen_15)  # sampling.py:130
    shifted_29 = max_j_piece_5 << 4  # sampling.py:164
    total_19 = shifted_29 + shifted_26  # sampling.py:164
    total_20 = j + total_19  # sampling.py:163
    below_9 = u < total_20  # sampling.py:159
    chosen_16 = tl.where(below_9, as_i32_4, 0)  # sampling.py:159
    both_11 = chosen_16 & 65535  # sampling.py:124
    sum_u_piece_16 = sum_over_u_piece_2(both_11)  # sampling.py:124
    shifted_30 = chosen_16 >> 16  # sampling.py:124
    sum_u_piece_17 = sum_over_u_piece_2(shifted_30)  # sampling.py:124
    as_i64_19 = sum_u_piece_17.to(tl.int64)  # sampling.py:125
    shifted_31 = as_i64_19 << 16  # sampling.py:125
    as_i64_20 = sum_u_piece_16.to(tl.int64)  # sampling.py:125
    total_21 = shifted_31 + as_i64_20  # sampling.py:125
    at_most_7 = total_21 <= difference_6  # sampling.py:164
    chosen_17 = tl.where(at_most_7, j, 0)  # sampling.py:130
    max_j_piece_6 = max_over_j_piece(chosen_17)  # sampling.py:130
    total_22 = max_j_piece_6 + total_19  # sampling.py:164
    below_10 = as_i32_2 > 0  # sampling.py:298
    total_23 = product_5 + total_22  # sampling.py:298
    chosen_18 = tl.where(below_10, total_23, -1)  # sampling.py:298
    equal_4 = u == total_12  # sampling.py:299
    as_i32_5 = difference_6.to(tl.int32)  # sampling.py:299
    total_24 = as_i32_5 + 1  # sampling.py:299
    chosen_19 = tl.where(equal_4, total_24, 0)  # sampling.py:299
    chosen_20 = tl.where(below_5, s, chosen_19)  # sampling.py:299
    product_6 = chosen_20 * difference_2  # sampling.py:300
    total_25 = s_2 + product_6  # sampling.py:300
    both_12 = total_25 & 65535  # sampling.py:124
    sum_u_piece_18 = sum_over_u_piece(both_12)  # sampling.py:124
    shifted_32 = total_25 >> 16  # sampling.py:124
    sum_u_piece_19 = sum_over_u_piece(shifted_32)  # sampling.py:124
    as_i64_21 = sum_u_piece_19.to(tl.int64)  # sampling.py:125
    shifted_33 = as_i64_21 << 16  # sampling.py:125
    as_i64_22 = sum_u_piece_18.to(tl.int64)  # sampling.py:125
    total_26 = shifted_33 + as_i64_22  # sampling.py:125
    shifted_34 = total_26 >> 16  # sampling.py:271
    product_7 = shifted_34 * total  # sampling.py:271
    both_13 = total_26 & 65535  # sampling.py:271
    product_8 = both_13 * total  # sampling.py:271
    shifted_35 = product_7 >> 8  # sampling.py:272
    both_14 = product_7 & 255  # sampling.py:272
    shifted_36 = both_14 << 16  # sampling.py:272
    total_27 = shifted_36 + product_8  # sampling.py:272
    shifted_37 = total_27 >> 24  # sampling.py:272
    total_28 = shifted_35 + shifted_37  # sampling.py:272
    chosen_21 = tl.where(below_2, total_25, 0)  # sampling.py:159
    both_15 = chosen_21 & 65535  # sampling.py:124
    sum_u_piece_20 = sum_over_u_piece_2(both_15)  # sampling.py:124
    shifted_38 = chosen_21 >> 16  # sampling.py:124
    sum_u_piece_21 = sum_over_u_piece_2(shifted_38)  # sampling.py:124
    as_i64_23 = sum_u_piece_21.to(tl.int64)  # sampling.py:125
    shifted_39 = as_i64_23 << 16  # sampling.py:125
    as_i64_24 = sum_u_piece_20.to(tl.int64)  # sampling.py:125
    total_29 = shifted_39 + as_i64_24  # sampling.py:125
    at_most_8 = total_29 <= total_28  # sampling.py:164
    chosen_22 = tl.where(at_most_8, j, 0)  # sampling.py:130
    max_j_piece_7 = max_over_j_piece(chosen_22)  # sampling.py:130
    shifted_40 = max_j_piece_7 << 8  # sampling.py:164
    total_30 = shifted_2 + shifted_40  # sampling.py:163
    below_11 = u < total_30  # sampling.py:159
    chosen_23 = tl.where(below_11, total_25, 0)  # sampling.py:159
    both_16 = chosen_23 & 65535  # sampling.py:124
    sum_u_piece_22 = sum_over_u_piece_2(both_16)  # sampling.py:124
    shifted_41 = chosen_23 >> 16  # sampling.py:124
    sum_u_piece_23 = sum_over_u_piece_2(shifted_41)  # sampling.py:124
    as_i64_25 = sum_u_piece_23.to(tl.int64)  # sampling.py:125
    shifted_42 = as_i64_25 << 16  # sampling.py:125
    as_i64_26 = sum_u_piece_22.to(tl.int64)  # sampling.py:125
    total_31 = shifted_42 + as_i64_26  # sampling.py:125
    at_most_9 = total_31 <= total_28  # sampling.py:164
    chosen_24 = tl.where(at_most_9, j, 0)  # sampling.py:130
    max_j_piece_8 = max_over_j_piece(chosen_24)  # sampling.py:130
    shifted_43 = max_j_piece_8 << 4  # sampling.py:164
    total_32 = shifted_43 + shifted_40  # sampling.py:164
    total_33 = j + total_32  # sampling.py:163
    below_12 = u < total_33  # sampling.py:159
    chosen_25 = tl.where(below_12, total_25, 0)  # sampling.py:159
    both_17 = chosen_25 & 65535  # sampling.py:124
    sum_u_piece_24 = sum_over_u_piece_2(both_17)  # sampling.py:124
    shifted_44 = chosen_25 >> 16  # sampling.py:124
    sum_u_piece_25 = sum_over_u_piece_2(shifted_44)  # sampling.py:124
    as_i64_27 = sum_u_piece_25.to(tl.int64)  # sampling.py:125
    shifted_45 = as_i64_27 << 16  # sampling.py:125
    as_i64_28 = sum_u_piece_24.to(tl.int64)  # sampling.py:125
    total_34 = shifted_45 + as_i64_28  # sampling.py:125
    at_most_10 = total_34 <= total_28  # sampling.py:164
    chosen_26 = tl.where(at_most_10, j, 0)  # sampling.py:130
    max_j_piece_9 = max_over_j_piece(chosen_26)  # sampling.py:130
    total_35 = max_j_piece_9 + total_32  # sampling.py:164
    below_13 = u < total_35  # sampling.py:159
    chosen_27 = tl.where(below_13, total_25, 0)  # sampling.py:159
    both_18 = chosen_27 & 65535  # sampling.py:124
    sum_u_piece_26 = sum_over_u_piece(both_18)  # sampling.py:124
    shifted_46 = chosen_27 >> 16  # sampling.py:124
    sum_u_piece_27 = sum_over_u_piece(shifted_46)  # sampling.py:124
    as_i64_29 = sum_u_piece_27.to(tl.int64)  # sampling.py:125
    shifted_47 = as_i64_29 << 16  # sampling.py:125
    as_i64_30 = sum_u_piece_26.to(tl.int64)  # sampling.py:125
    total_36 = shifted_47 + as_i64_30  # sampling.py:125
    difference_7 = total_28 - total_36  # sampling.py:166
    product_9 = total_35 * 149  # sampling.py:288
    total_37 = product_9 + u  # sampling.py:288
    chosen_28 = tl.where(below_6, total_37, -1)  # sampling.py:288
    at_most_11 = chosen_28 >= 0  # sampling.py:288
    below_14 = chosen_28 < 151936  # sampling.py:288
    both_19 = at_most_11 & below_14  # sampling.py:288
    blocks_2 = tl.load(blocks_ptr + t.to(tl.int64) * blocks_t_stride + chosen_28, mask=both_19, other=as_bf16)  # sampling.py:288
    as_f32_3 = blocks_2.to(tl.float32)  # sampling.py:288
    larger_5 = tl.maximum(as_f32_3, float("-inf"))  # sampling.py:118
    total_38 = larger_5 + 0.0  # sampling.py:118
    as_i32_6 = total_38.to(tl.int32, bitcast=True)  # sampling.py:118
    shifted_48 = as_i32_6 >> 31  # sampling.py:119
    both_20 = shifted_48 & 2147483647  # sampling.py:119
    xor_3 = as_i32_6 ^ both_20  # sampling.py:119
    shifted_49 = xor_3 >> 16  # sampling.py:67
    below_15 = cut < shifted_49  # sampling.py:304
    equal_5 = shifted_49 == cut  # sampling.py:304
    at_most_12 = total_37 <= chosen_18  # sampling.py:304
    both_21 = equal_5 & at_most_12  # sampling.py:304
    either_2 = below_15 | both_21  # sampling.py:304
    product_10 = as_f32_3 * chosen  # sampling.py:92
    difference_8 = product_10 - product_2  # sampling.py:96
    product_11 = difference_8 * 1.442695  # sampling.py:96
    exp2_2 = tl.exp2(product_11)  # sampling.py:96
    equal_6 = as_f32_3 == best  # sampling.py:98
    larger_6 = tl.maximum(exp2_2, 0.0)  # sampling.py:98
    chosen_29 = tl.where(equal_6, 1.0, larger_6)  # sampling.py:98
    total_39 = chosen_29 + 2.0  # sampling.py:100
    as_i32_7 = total_39.to(tl.int32, bitcast=True)  # sampling.py:100
    difference_9 = as_i32_7 - 1073741824  # sampling.py:100
    chosen_30 = tl.where(either_2, difference_9, 0)  # sampling.py:305
    chosen_31 = tl.where(below_2, chosen_30, 0)  # sampling.py:159
    both_22 = chosen_31 & 65535  # sampling.py:124
    sum_u_piece_28 = sum_over_u_piece_2(both_22)  # sampling.py:124
    shifted_50 = chosen_31 >> 16  # sampling.py:124
    sum_u_piece_29 = sum_over_u_piece_2(shifted_50)  # sampling.py:124
    as_i64_31 = sum_u_piece_29.to(tl.int64)  # sampling.py:125
    shifted_51 = as_i64_31 << 16  # sampling.py:125
    as_i64_32 = sum_u_piece_28.to(tl.int64)  # sampling.py:125
    total_40 = shifted_51 + as_i64_32  # sampling.py:125
    at_most_13 = total_40 <= difference_7  # sampling.py:164
    chosen_32 = tl.where(at_most_13, j, 0)  # sampling.py:130
    max_j_piece_10 = max_over_j_piece(chosen_32)  # sampling.py:130
    shifted_52 = max_j_piece_10 << 8  # sampling.py:164
    total_41 = shifted_2 + shifted_52  # sampling.py:163
    below_16 = u < total_41  # sampling.py:159
    chosen_33 = tl.where(below_16, chosen_30, 0)  # sampling.py:159
    both_23 = chosen_33 & 65535  # sampling.py:124
    sum_u_piece_30 = sum_over_u_piece_2(both_23)  # sampling.py:124
    shifted_53 = chosen_33 >> 16  # sampling.py:124
    sum_u_piece_31 = sum_over_u_piece_2(shifted_53)  # sampling.py:124
    as_i64_33 = sum_u_piece_31.to(tl.int64)  # sampling.py:125
    shifted_54 = as_i64_33 << 16  # sampling.py:125
    as_i64_34 = sum_u_piece_30.to(tl.int64)  # sampling.py:125
    total_42 = shifted_54 + as_i64_34  # sampling.py:125
    at_most_14 = total_42 <= difference_7  # sampling.py:164
    chosen_34 = tl.where(at_most_14, j, 0)  # sampling.py:130
    max_j_piece_11 = max_over_j_piece(chosen_34)  # sampling.py:130
    shifted_55 = max_j_piece_11 << 4  # sampling.py:164
    total_43 = shifted_55 + shifted_52  # sampling.py:164
    total_44 = j + total_43  # sampling.py:163
    below_17 = u < total_44  # sampling.py:159
    chosen_35 = tl.where(below_17, chosen_30, 0)  # sampling.py:159
    both_24 = chosen_35 & 65535  # sampling.py:124
    sum_u_piece_32 = sum_over_u_piece_2(both_24)  # sampling.py:124
    shifted_56 = chosen_35 >> 16  # sampling.py:124
    sum_u_piece_33 = sum_over_u_piece_2(shifted_56)  # sampling.py:124
    as_i64_35 = sum_u_piece_33.to(tl.int64)  # sampling.py:125
    shifted_57 = as_i64_35 << 16  # sampling.py:125
    as_i64_36 = sum_u_piece_32.to(tl.int64)  # sampling.py:125
    total_45 = shifted_57 + as_i64_36  # sampling.py:125
    at_most_15 = total_45 <= difference_7  # sampling.py:164
    chosen_36 = tl.where(at_most_15, j, 0)  # sampling.py:130
    max_j_piece_12 = max_over_j_piece(chosen_36)  # sampling.py:130
    total_46 = max_j_piece_12 + total_43  # sampling.py:164
    total_47 = product_9 + total_46  # sampling.py:306
    below_18 = best > float("-inf")  # sampling.py:348
    unless = ~below_18  # sampling.py:349
    bad_row = tl.where(unless, t + 1, 0)  # sampling.py:349
    tl.atomic_max(errors_ptr, 1, mask=bad_row > 0, sem="relaxed")  # sampling.py:349
    tl.atomic_max(errors_ptr + 1, bad_row, mask=bad_row > 0, sem="relaxed")  # sampling.py:349
    chosen_37 = tl.where(below_18, total_47, -1)  # sampling.py:351
    as_i64_37 = chosen_37.to(tl.int64)  # sampling.py:351
    chosen_38 = tl.where(below_18, as_f32, float("-inf"))  # sampling.py:352
    chosen_39 = tl.where(below_18, as_i32_2, 0)  # sampling.py:353
    chosen_40 = tl.where(below_18, chosen_18, -1)  # sampling.py:354
    tl.store(token_ptr + t, as_i64_37)  # sampling.py:350
    tl.store(threshold_ptr + t, chosen_38)  # sampling.py:350
    tl.store(ties_ptr + t, chosen_39)  # sampling.py:350
    tl.store(last_ptr + t, chosen_40)  # sampling.py:350


def call(kernels, scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, blocks, seed, request_id, position, token, threshold, ties, last, T, scores_t_stride, blocks_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.sample_1((programs,), scores, inv_temperature, top_k, top_p, min_p, best, goal, cut, most_ties, scores_t_stride)
    programs = T
    if programs > 0:
        kernels.sample_2((programs,), blocks, seed, request_id, position, inv_temperature, token, threshold, ties, last, best, goal, cut, most_ties, blocks_t_stride, errors)
