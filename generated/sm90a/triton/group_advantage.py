"""group_advantage on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 469d90de7a5a25ff
schedule: tiles G=64, 2 warps, 1 stages, unroll 1
"""

import triton
import triton.language as tl


@triton.jit
def max_over_s_lane(x):
    # The max over S.lane: no order changes it.
    x = tl.max(x, 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def min_over_s_lane(x):
    # The min over S.lane: no order changes it.
    x = tl.min(x, 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def sum_over_s_lane(x):
    # The add over S.lane: no order changes it.
    x = tl.sum(x, 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def negative_zero():
    # Triton reads the literal -0.0 as +0.0.
    return tl.full((), -2147483648, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_over_s_lane_2(x):
    # The sum over S.lane, halving: two terms at a time, so that no layout chooses.
    x = tl.sum(tl.reshape(x, (64, 2, 8)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 4)), 1)
    x = tl.sum(tl.reshape(x, (64, 2, 2)), 1)
    x = tl.sum(tl.reshape(x, (64, 2)), 1)
    return tl.reshape(x, (64, 1))


@triton.jit
def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    f0 = x * 16777216.0
    f1 = tl.where((x < 1.1754944e-38), f0, x)
    i2 = f1.to(tl.int32, bitcast=True)
    i3 = i2 >> 1
    i4 = 1595932665 - i3
    f5 = i4.to(tl.float32, bitcast=True)
    f6 = f5 * -0.70395225
    f7 = f1 * f5
    f8 = tl.fma(f7, f5, -2.3892446)
    f9 = f6 * f8
    f10 = f1 * f9
    f11 = tl.fma(f10, f9, -1.0)
    f12 = f9 * f11
    f13 = tl.fma(f11, 0.375, -0.5)
    f14 = tl.fma(f12, f13, f9)
    f15 = tl.where((x < 1.1754944e-38), 4096.0, 1.0)
    f16 = f14 * f15
    f17 = tl.where((x == float("inf")), 0.0, x)
    f18 = tl.where((x < float("inf")), f16, f17)
    i19 = x.to(tl.int32, bitcast=True)
    i20 = i19 & -2147483648
    i21 = i20 | 2139095040
    f22 = i21.to(tl.float32, bitcast=True)
    f23 = tl.where((x == 0.0), f22, f18)
    f24 = tl.where((x < 0.0), float("nan"), f23)
    return f24


@triton.jit
def group_advantage(rewards_ptr, bounds_ptr, advantages_ptr, G, bounds_g_stride, N, errors_ptr, eps):
    # A program owns 64 of G (rows).
    g = tl.program_id(0) * 64 + tl.arange(0, 64)[:, None]
    g_inside = g < G
    bounds = tl.load(bounds_ptr + g.to(tl.int64) * bounds_g_stride, mask=g_inside, other=0)  # advantage.py:106
    bounds_2 = tl.load(bounds_ptr + 1 + g.to(tl.int64) * bounds_g_stride, mask=g_inside, other=0)  # advantage.py:106
    difference = G - 1  # advantage.py:105
    as_i64 = N.to(tl.int64)  # advantage.py:105
    equal = g == 0  # advantage.py:107
    chosen = tl.where(equal, 0, bounds)  # advantage.py:107
    larger = tl.maximum(chosen, 0)  # advantage.py:107
    smaller = tl.minimum(larger, as_i64)  # advantage.py:107
    equal_2 = g == difference  # advantage.py:108
    chosen_2 = tl.where(equal_2, as_i64, bounds_2)  # advantage.py:108
    smaller_2 = tl.minimum(chosen_2, as_i64)  # advantage.py:108
    larger_2 = tl.maximum(smaller, smaller_2)  # advantage.py:108
    differs = smaller != bounds  # advantage.py:109
    differs_2 = larger_2 != bounds_2  # advantage.py:109
    either = differs | differs_2  # advantage.py:109
    bad_row = tl.where(either & g_inside, g + 1, 0)  # advantage.py:110
    bad_row_2 = tl.max(tl.reshape(bad_row, (64,)), 0)  # advantage.py:110
    tl.atomic_max(errors_ptr, 1, mask=bad_row_2 > 0, sem="relaxed")  # advantage.py:110
    tl.atomic_max(errors_ptr + 1, bad_row_2, mask=bad_row_2 > 0, sem="relaxed")  # advantage.py:110
    as_i32 = smaller.to(tl.int32)  # advantage.py:51
    as_i32_2 = larger_2.to(tl.int32)  # advantage.py:51
    difference_2 = as_i32_2 - as_i32  # advantage.py:51
    total = difference_2 + 15  # advantage.py:51
    steps = total // 16  # advantage.py:51
    full_steps = difference_2 // 16  # advantage.py:51
    s_lane = tl.arange(0, 16)[None, :]  # advantage.py:51
    first_full_steps = tl.min(tl.reshape(full_steps, (64,)), 0)  # advantage.py:51
    m = tl.full((64, 1), float("-inf"), tl.float32)  # advantage.py:51
    s_state = tl.full((64, 1), 2147483647, tl.int32)  # advantage.py:51
    s = tl.full((64, 1), 0, tl.int32)  # advantage.py:51
    for s_step in tl.range(0, first_full_steps):  # advantage.py:51
        product = s_step * 16  # advantage.py:51
        total_2 = as_i32 + product  # advantage.py:51
        s_2 = total_2 + s_lane  # advantage.py:51
        at_most = s_2 >= 0  # advantage.py:52
        below = s_2 < N  # advantage.py:52
        both = at_most & below  # advantage.py:52
        rewards = tl.load(rewards_ptr + s_2, mask=both & g_inside, other=0.0)  # advantage.py:52
        is_nan = rewards != rewards  # advantage.py:54
        unless = ~is_nan  # advantage.py:54
        as_i32_3 = unless.to(tl.int32)  # advantage.py:54
        max_s_lane = max_over_s_lane(rewards)  # advantage.py:51
        equal_3 = rewards == max_s_lane  # advantage.py:51
        chosen_3 = tl.where(equal_3, s_2, 2147483647)  # advantage.py:51
        min_s_lane = min_over_s_lane(chosen_3)  # advantage.py:51
        sum_s_lane = sum_over_s_lane(as_i32_3)  # advantage.py:51
        below_2 = m < max_s_lane  # advantage.py:51
        equal_4 = m == max_s_lane  # advantage.py:51
        below_3 = min_s_lane < s_state  # advantage.py:51
        both_2 = equal_4 & below_3  # advantage.py:51
        either_2 = below_2 | both_2  # advantage.py:51
        m_2 = tl.where(either_2, max_s_lane, m)  # advantage.py:51
        index = tl.where(either_2, min_s_lane, s_state)  # advantage.py:51
        s_3 = s + sum_s_lane  # advantage.py:51
        m, s_state, s = m_2, index, s_3  # advantage.py:51
    last_steps = tl.max(tl.reshape(steps, (64,)), 0)  # advantage.py:51
    for s_step in tl.range(first_full_steps, last_steps):  # advantage.py:51
        product = s_step * 16  # advantage.py:51
        total_2 = as_i32 + product  # advantage.py:51
        s_2 = total_2 + s_lane  # advantage.py:51
        exists = s_2 < as_i32_2  # advantage.py:51
        at_most = s_2 >= 0  # advantage.py:52
        below = s_2 < N  # advantage.py:52
        both = at_most & below  # advantage.py:52
        both_2 = exists & both  # advantage.py:52
        rewards = tl.load(rewards_ptr + s_2, mask=both_2 & g_inside, other=0.0)  # advantage.py:52
        is_nan = rewards != rewards  # advantage.py:54
        unless = ~is_nan  # advantage.py:54
        as_i32_3 = unless.to(tl.int32)  # advantage.py:54
        chosen_3 = tl.where(exists, rewards, float("-inf"))  # advantage.py:51
        max_s_lane = max_over_s_lane(chosen_3)  # advantage.py:51
        equal_3 = chosen_3 == max_s_lane  # advantage.py:51
        chosen_4 = tl.where(equal_3, s_2, 2147483647)  # advantage.py:51
        chosen_5 = tl.where(exists, chosen_4, 2147483647)  # advantage.py:51
        min_s_lane = min_over_s_lane(chosen_5)  # advantage.py:51
        chosen_6 = tl.where(exists, as_i32_3, 0)  # advantage.py:51
        sum_s_lane = sum_over_s_lane(chosen_6)  # advantage.py:51
        below_2 = m < max_s_lane  # advantage.py:51
        equal_4 = m == max_s_lane  # advantage.py:51
        below_3 = min_s_lane < s_state  # advantage.py:51
        both_3 = equal_4 & below_3  # advantage.py:51
        either_2 = below_2 | both_3  # advantage.py:51
        m_2 = tl.where(either_2, max_s_lane, m)  # advantage.py:51
        index = tl.where(either_2, min_s_lane, s_state)  # advantage.py:51
        s_3 = s + sum_s_lane  # advantage.py:51
        m, s_state, s = m_2, index, s_3  # advantage.py:51
    s_2 = tl.full((64, 1), negative_zero(), tl.float32)  # advantage.py:56
    for s_step in tl.range(0, first_full_steps):  # advantage.py:56
        product = s_step * 16  # advantage.py:56
        total_2 = as_i32 + product  # advantage.py:56
        s_3 = total_2 + s_lane  # advantage.py:56
        at_most = s_3 >= 0  # advantage.py:57
        below = s_3 < N  # advantage.py:57
        both = at_most & below  # advantage.py:57
        rewards = tl.load(rewards_ptr + s_3, mask=both & g_inside, other=0.0)  # advantage.py:57
        is_nan = rewards != rewards  # advantage.py:58
        difference_3 = rewards - m  # advantage.py:58
        chosen_3 = tl.where(is_nan, negative_zero(), difference_3)  # advantage.py:58
        sum_s_lane = sum_over_s_lane_2(chosen_3)  # advantage.py:56
        s_4 = s_2 + sum_s_lane  # advantage.py:56
        s_2 = s_4  # advantage.py:56
    for s_step in tl.range(first_full_steps, last_steps):  # advantage.py:56
        product = s_step * 16  # advantage.py:56
        total_2 = as_i32 + product  # advantage.py:56
        s_3 = total_2 + s_lane  # advantage.py:56
        exists = s_3 < as_i32_2  # advantage.py:56
        at_most = s_3 >= 0  # advantage.py:57
        below = s_3 < N  # advantage.py:57
        both = at_most & below  # advantage.py:57
        both_2 = exists & both  # advantage.py:57
        rewards = tl.load(rewards_ptr + s_3, mask=both_2 & g_inside, other=0.0)  # advantage.py:57
        is_nan = rewards != rewards  # advantage.py:58
        difference_3 = rewards - m  # advantage.py:58
        chosen_3 = tl.where(is_nan, negative_zero(), difference_3)  # advantage.py:58
        chosen_4 = tl.where(exists, chosen_3, negative_zero())  # advantage.py:56
        sum_s_lane = sum_over_s_lane_2(chosen_4)  # advantage.py:56
        s_4 = s_2 + sum_s_lane  # advantage.py:56
        s_2 = s_4  # advantage.py:56
    larger_3 = tl.maximum(s, 1)  # advantage.py:80
    as_f32 = larger_3.to(tl.float32)  # advantage.py:80
    quotient = tl.div_rn(s_2, as_f32)  # advantage.py:59
    s_3 = tl.full((64, 1), negative_zero(), tl.float32)  # advantage.py:60
    for s_step in tl.range(0, first_full_steps):  # advantage.py:60
        product = s_step * 16  # advantage.py:60
        total_2 = as_i32 + product  # advantage.py:60
        s_4 = total_2 + s_lane  # advantage.py:60
        at_most = s_4 >= 0  # advantage.py:61
        below = s_4 < N  # advantage.py:61
        both = at_most & below  # advantage.py:61
        rewards = tl.load(rewards_ptr + s_4, mask=both & g_inside, other=0.0)  # advantage.py:61
        difference_3 = rewards - m  # advantage.py:72
        difference_4 = difference_3 - quotient  # advantage.py:72
        is_nan = rewards != rewards  # advantage.py:63
        product_2 = difference_4 * difference_4  # advantage.py:63
        chosen_3 = tl.where(is_nan, negative_zero(), product_2)  # advantage.py:63
        sum_s_lane = sum_over_s_lane_2(chosen_3)  # advantage.py:60
        s_5 = s_3 + sum_s_lane  # advantage.py:60
        s_3 = s_5  # advantage.py:60
    for s_step in tl.range(first_full_steps, last_steps):  # advantage.py:60
        product = s_step * 16  # advantage.py:60
        total_2 = as_i32 + product  # advantage.py:60
        s_4 = total_2 + s_lane  # advantage.py:60
        exists = s_4 < as_i32_2  # advantage.py:60
        at_most = s_4 >= 0  # advantage.py:61
        below = s_4 < N  # advantage.py:61
        both = at_most & below  # advantage.py:61
        both_2 = exists & both  # advantage.py:61
        rewards = tl.load(rewards_ptr + s_4, mask=both_2 & g_inside, other=0.0)  # advantage.py:61
        difference_3 = rewards - m  # advantage.py:72
        difference_4 = difference_3 - quotient  # advantage.py:72
        is_nan = rewards != rewards  # advantage.py:63
        product_2 = difference_4 * difference_4  # advantage.py:63
        chosen_3 = tl.where(is_nan, negative_zero(), product_2)  # advantage.py:63
        chosen_4 = tl.where(exists, chosen_3, negative_zero())  # advantage.py:60
        sum_s_lane = sum_over_s_lane_2(chosen_4)  # advantage.py:60
        s_5 = s_3 + sum_s_lane  # advantage.py:60
        s_3 = s_5  # advantage.py:60
    difference_3 = s - 1  # advantage.py:80
    larger_4 = tl.maximum(difference_3, 1)  # advantage.py:80
    as_f32_2 = larger_4.to(tl.float32)  # advantage.py:80
    quotient_2 = tl.div_rn(s_3, as_f32_2)  # advantage.py:75
    equal_3 = quotient_2 == 0.0  # advantage.py:143
    rsqrt = portable_rsqrt(quotient_2)  # advantage.py:97
    product = quotient_2 * rsqrt  # advantage.py:97
    total_2 = product + eps  # advantage.py:87
    for s_step in tl.range(0, first_full_steps):  # advantage.py:145
        product_2 = s_step * 16  # advantage.py:137
        total_3 = as_i32 + product_2  # advantage.py:137
        s_4 = total_3 + s_lane  # advantage.py:137
        at_most = s_4 >= 0  # advantage.py:138
        below = s_4 < N  # advantage.py:138
        both = at_most & below  # advantage.py:138
        rewards = tl.load(rewards_ptr + s_4, mask=both & g_inside, other=0.0)  # advantage.py:138
        difference_4 = rewards - m  # advantage.py:72
        difference_5 = difference_4 - quotient  # advantage.py:72
        quotient_3 = tl.div_rn(difference_5, total_2)  # advantage.py:143
        chosen_3 = tl.where(equal_3, 0.0, quotient_3)  # advantage.py:143
        is_nan = rewards != rewards  # advantage.py:144
        chosen_4 = tl.where(is_nan, 0.0, chosen_3)  # advantage.py:144
        chosen_5 = tl.where(either, float("nan"), chosen_4)  # advantage.py:144
        tl.store(advantages_ptr + s_4, chosen_5, mask=g_inside)  # advantage.py:145
    for s_step in tl.range(first_full_steps, last_steps):  # advantage.py:145
        product_2 = s_step * 16  # advantage.py:137
        total_3 = as_i32 + product_2  # advantage.py:137
        s_4 = total_3 + s_lane  # advantage.py:137
        exists = s_4 < as_i32_2  # advantage.py:137
        at_most = s_4 >= 0  # advantage.py:138
        below = s_4 < N  # advantage.py:138
        both = at_most & below  # advantage.py:138
        both_2 = exists & both  # advantage.py:138
        rewards = tl.load(rewards_ptr + s_4, mask=both_2 & g_inside, other=0.0)  # advantage.py:138
        difference_4 = rewards - m  # advantage.py:72
        difference_5 = difference_4 - quotient  # advantage.py:72
        quotient_3 = tl.div_rn(difference_5, total_2)  # advantage.py:143
        chosen_3 = tl.where(equal_3, 0.0, quotient_3)  # advantage.py:143
        is_nan = rewards != rewards  # advantage.py:144
        chosen_4 = tl.where(is_nan, 0.0, chosen_3)  # advantage.py:144
        chosen_5 = tl.where(either, float("nan"), chosen_4)  # advantage.py:144
        tl.store(advantages_ptr + s_4, chosen_5, mask=exists & g_inside)  # advantage.py:145


def call(kernels, rewards, bounds, advantages, eps, G, N, bounds_g_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((G + 63) // 64)
    if programs > 0:
        kernels.group_advantage((programs,), rewards, bounds, advantages, G, bounds_g_stride, N, errors, eps)
