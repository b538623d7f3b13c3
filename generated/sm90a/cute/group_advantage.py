"""group_advantage on sm_90a, written by rlk 0.1.0: do not edit.

numerics: 469d90de7a5a25ff
schedule: tiles 1, 1 warps, 3 stages, unroll 1 placed S.lane[3:2] S.lane[1:0]
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.pipeline as pipeline
import cutlass.utils as utils
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Boolean, Float16, Float32, Int16, Int32, Int64, Uint8, Uint32
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup

NEAREST = cute.math.RoundingMode.NEAREST_EVEN
ROW_MAJOR, COL_MAJOR = utils.LayoutEnum.ROW_MAJOR, utils.LayoutEnum.COL_MAJOR


def add(a, b):
    # A term of a sum.
    return a + b


def div(a, b):
    # Correctly rounded.
    return a / b


def exchanged(x, lanes, combine):
    # Combine each element with that of the thread so many lanes away.
    return [combine(a, cute.arch.shuffle_sync_bfly(a, offset=lanes)) for a in x]


def fma(a, b, c):
    # a * b + c with one rounding.
    return cute.math.fma(a, b, c, rounding=NEAREST)


def fmax(a, b):
    # NaN loses.
    return cute.arch.fmax(a, b)


def least(a, b):
    # Of integers.
    return cutlass.min(a, b)


@cute.jit
def load_where(condition, memory: cute.Tensor, index, other):
    # An element, or what stands for it.
    x = other
    if condition:
        x = type(other)(memory[index])
    return x


def max_over_s_lane(x):
    # The max over S.lane, in any order.
    x = exchanged(x, 1, fmax)
    x = exchanged(x, 2, fmax)
    x = exchanged(x, 4, fmax)
    x = exchanged(x, 8, fmax)
    return x[0]


def min_over_s_lane(x):
    # The min over S.lane, in any order.
    x = exchanged(x, 1, least)
    x = exchanged(x, 2, least)
    x = exchanged(x, 4, least)
    x = exchanged(x, 8, least)
    return x[0]


def mul(a, b):
    # One rounding, never part of a fused operation.
    return cute.math.mul(a, b, rounding=NEAREST)


def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    f0 = mul(x, Float32(16777216.0))
    f1 = select((x < Float32(1.1754943508222875e-38)), f0, x)
    i2 = Float32(f1).bitcast(Int32)
    i3 = i2 >> Int32(1)
    i4 = Int32(1595932665) - i3
    f5 = Int32(i4).bitcast(Float32)
    f6 = mul(f5, Float32(-0.7039522528648376))
    f7 = mul(f1, f5)
    f8 = fma(f7, f5, Float32(-2.389244556427002))
    f9 = mul(f6, f8)
    f10 = mul(f1, f9)
    f11 = fma(f10, f9, Float32(-1.0))
    f12 = mul(f9, f11)
    f13 = fma(f11, Float32(0.375), Float32(-0.5))
    f14 = fma(f12, f13, f9)
    f15 = select((x < Float32(1.1754943508222875e-38)), Float32(4096.0), Float32(1.0))
    f16 = mul(f14, f15)
    f17 = select((x == Float32(float("inf"))), Float32(0.0), x)
    f18 = select((x < Float32(float("inf"))), f16, f17)
    i19 = Float32(x).bitcast(Int32)
    i20 = i19 & Int32(-2147483648)
    i21 = i20 | Int32(2139095040)
    f22 = Int32(i21).bitcast(Float32)
    f23 = select((x == Float32(0.0)), f22, f18)
    f24 = select((x < Float32(0.0)), Float32(float("nan")), f23)
    return f24


@cute.jit
def report_where(bad, errors: cute.Pointer, code: cutlass.Constexpr, row):
    # Write what was found, and one more than its row, into the device's error words.
    if bad:
        cute.arch.atomic_max(errors, Int32(code))
        cute.arch.atomic_max(errors + 1, row)


def select(condition, a, b):
    # Without a branch.
    return cutlass.select_(condition, a, b)


@cute.jit
def store_where(condition, memory: cute.Tensor, index, x):
    # Write an element if the condition holds.
    if condition:
        memory[index] = x


def sum_over_s_lane(x):
    # The sum over S.lane, in any order.
    x = exchanged(x, 1, add)
    x = exchanged(x, 2, add)
    x = exchanged(x, 4, add)
    x = exchanged(x, 8, add)
    return x[0]


def sum_over_s_lane_2(x):
    # The sum over S.lane, halving.
    x = exchanged(x, 2, add)
    x = exchanged(x, 1, add)
    x = exchanged(x, 8, add)
    x = exchanged(x, 4, add)
    return x[0]


@cute.kernel
def group_advantage_rows(rewards: cute.Tensor, bounds: cute.Tensor, advantages: cute.Tensor, N: Int32, G: Int32, errors: cute.Pointer, eps: Float32):
    # A block owns 1 of G (rows). S.lane: 16 indices, 1 to each of 16 threads.
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    g = block
    writes = thread == 0
    writes_2 = (thread & 16) == 0
    bounds_2 = bounds[(g, 0)]  # advantage.py:106
    bounds_3 = bounds[(g, 1)]  # advantage.py:106
    difference = G - 1  # advantage.py:105
    as_i64 = Int32(N).to(Int64)  # advantage.py:105
    equal = g == 0  # advantage.py:107
    chosen = select(equal, Int64(0), bounds_2)  # advantage.py:107
    larger = cutlass.max(chosen, 0)  # advantage.py:107
    smaller = cutlass.min(larger, as_i64)  # advantage.py:107
    equal_2 = g == difference  # advantage.py:108
    chosen_2 = select(equal_2, as_i64, bounds_3)  # advantage.py:108
    smaller_2 = cutlass.min(chosen_2, as_i64)  # advantage.py:108
    larger_2 = cutlass.max(smaller, smaller_2)  # advantage.py:108
    differs = smaller != bounds_2  # advantage.py:109
    differs_2 = larger_2 != bounds_3  # advantage.py:109
    either = differs | differs_2  # advantage.py:109
    report_where(either & writes, errors, 1, g + 1)  # advantage.py:110
    as_i32 = Int64(smaller).to(Int32)  # advantage.py:51
    as_i32_2 = Int64(larger_2).to(Int32)  # advantage.py:51
    difference_2 = as_i32_2 - as_i32  # advantage.py:51
    total = difference_2 + 15  # advantage.py:51
    steps = total // 16  # advantage.py:51
    full_steps = difference_2 // 16  # advantage.py:51
    s_lane = thread // 4 % 4 + thread % 4 * 4  # advantage.py:51
    m = Float32(float("-inf"))  # advantage.py:51
    s_state = Int32(2147483647)  # advantage.py:51
    s = Int32(0)  # advantage.py:51
    next_s = Int32(0)  # advantage.py:51
    comes = next_s < full_steps  # advantage.py:51
    product = next_s * 16  # advantage.py:51
    total_2 = as_i32 + product  # advantage.py:51
    s_2 = total_2 + s_lane  # advantage.py:51
    at_most = 0 <= s_2  # advantage.py:52
    below = s_2 < N  # advantage.py:52
    both = at_most & below  # advantage.py:52
    rewards_2 = load_where(comes & both, rewards, s_2, Float32(0))  # advantage.py:52
    next_s_2 = Int32(1)  # advantage.py:52
    comes_2 = next_s_2 < full_steps  # advantage.py:52
    product_2 = next_s_2 * 16  # advantage.py:51
    total_3 = as_i32 + product_2  # advantage.py:51
    s_3 = total_3 + s_lane  # advantage.py:51
    at_most_2 = 0 <= s_3  # advantage.py:52
    below_2 = s_3 < N  # advantage.py:52
    both_2 = at_most_2 & below_2  # advantage.py:52
    rewards_3 = load_where(comes_2 & both_2, rewards, s_3, Float32(0))  # advantage.py:52
    for s_step in cutlass.range(0, full_steps, unroll=1):  # advantage.py:51
        next_s_3 = s_step + 2  # advantage.py:51
        comes_3 = next_s_3 < full_steps  # advantage.py:51
        product_3 = next_s_3 * 16  # advantage.py:51
        total_4 = as_i32 + product_3  # advantage.py:51
        s_4 = total_4 + s_lane  # advantage.py:51
        at_most_3 = 0 <= s_4  # advantage.py:52
        below_3 = s_4 < N  # advantage.py:52
        both_3 = at_most_3 & below_3  # advantage.py:52
        rewards_4 = load_where(comes_3 & both_3, rewards, s_4, Float32(0))  # advantage.py:52
        product_4 = s_step * 16  # advantage.py:51
        total_5 = as_i32 + product_4  # advantage.py:51
        s_5 = total_5 + s_lane  # advantage.py:51
        is_nan = rewards_2 != rewards_2  # advantage.py:54
        unless = select(is_nan, Boolean(False), Boolean(True))  # advantage.py:54
        as_i32_3 = Boolean(unless).to(Int32)  # advantage.py:54
        max_s_lane = max_over_s_lane([rewards_2])  # advantage.py:51
        equal_3 = rewards_2 == max_s_lane  # advantage.py:51
        chosen_3 = select(equal_3, s_5, Int32(2147483647))  # advantage.py:51
        min_s_lane = min_over_s_lane([chosen_3])  # advantage.py:51
        sum_s_lane = sum_over_s_lane([as_i32_3])  # advantage.py:51
        below_4 = m < max_s_lane  # advantage.py:51
        equal_4 = m == max_s_lane  # advantage.py:51
        below_5 = min_s_lane < s_state  # advantage.py:51
        both_4 = equal_4 & below_5  # advantage.py:51
        either_2 = below_4 | both_4  # advantage.py:51
        m_2 = select(either_2, max_s_lane, m)  # advantage.py:51
        index = select(either_2, min_s_lane, s_state)  # advantage.py:51
        s_6 = s + sum_s_lane  # advantage.py:51
        m, s_state, s, rewards_2, rewards_3 = m_2, index, s_6, rewards_3, rewards_4  # advantage.py:51
    m_2 = m  # advantage.py:51
    s_state_2 = s_state  # advantage.py:51
    s_4 = s  # advantage.py:51
    for s_step_2 in cutlass.range(full_steps, steps, unroll=1):  # advantage.py:51
        product_3 = s_step_2 * 16  # advantage.py:51
        total_4 = as_i32 + product_3  # advantage.py:51
        s_5 = total_4 + s_lane  # advantage.py:51
        exists = s_5 < as_i32_2  # advantage.py:51
        at_most_3 = 0 <= s_5  # advantage.py:52
        below_3 = s_5 < N  # advantage.py:52
        both_3 = at_most_3 & below_3  # advantage.py:52
        both_4 = exists & both_3  # advantage.py:52
        rewards_4 = load_where(both_4, rewards, s_5, Float32(0))  # advantage.py:52
        is_nan = rewards_4 != rewards_4  # advantage.py:54
        unless = select(is_nan, Boolean(False), Boolean(True))  # advantage.py:54
        as_i32_3 = Boolean(unless).to(Int32)  # advantage.py:54
        chosen_3 = select(exists, rewards_4, Float32(float("-inf")))  # advantage.py:51
        max_s_lane = max_over_s_lane([chosen_3])  # advantage.py:51
        equal_3 = chosen_3 == max_s_lane  # advantage.py:51
        chosen_4 = select(equal_3, s_5, Int32(2147483647))  # advantage.py:51
        chosen_5 = select(exists, chosen_4, Int32(2147483647))  # advantage.py:51
        min_s_lane = min_over_s_lane([chosen_5])  # advantage.py:51
        chosen_6 = select(exists, as_i32_3, Int32(0))  # advantage.py:51
        sum_s_lane = sum_over_s_lane([chosen_6])  # advantage.py:51
        below_4 = m_2 < max_s_lane  # advantage.py:51
        equal_4 = m_2 == max_s_lane  # advantage.py:51
        below_5 = min_s_lane < s_state_2  # advantage.py:51
        both_5 = equal_4 & below_5  # advantage.py:51
        either_2 = below_4 | both_5  # advantage.py:51
        m_3 = select(either_2, max_s_lane, m_2)  # advantage.py:51
        index = select(either_2, min_s_lane, s_state_2)  # advantage.py:51
        s_6 = s_4 + sum_s_lane  # advantage.py:51
        m_2, s_state_2, s_4 = m_3, index, s_6  # advantage.py:51
    s_5 = Int32(-(2**31)).bitcast(Float32)  # advantage.py:56
    next_s_3 = Int32(0)  # advantage.py:56
    comes_3 = next_s_3 < full_steps  # advantage.py:56
    product_3 = next_s_3 * 16  # advantage.py:56
    total_4 = as_i32 + product_3  # advantage.py:56
    s_6 = total_4 + s_lane  # advantage.py:56
    at_most_3 = 0 <= s_6  # advantage.py:57
    below_3 = s_6 < N  # advantage.py:57
    both_3 = at_most_3 & below_3  # advantage.py:57
    rewards_4 = load_where(comes_3 & both_3, rewards, s_6, Float32(0))  # advantage.py:57
    next_s_4 = Int32(1)  # advantage.py:57
    comes_4 = next_s_4 < full_steps  # advantage.py:57
    product_4 = next_s_4 * 16  # advantage.py:56
    total_5 = as_i32 + product_4  # advantage.py:56
    s_7 = total_5 + s_lane  # advantage.py:56
    at_most_4 = 0 <= s_7  # advantage.py:57
    below_4 = s_7 < N  # advantage.py:57
    both_4 = at_most_4 & below_4  # advantage.py:57
    rewards_5 = load_where(comes_4 & both_4, rewards, s_7, Float32(0))  # advantage.py:57
    for s_step_3 in cutlass.range(0, full_steps, unroll=1):  # advantage.py:56
        next_s_5 = s_step_3 + 2  # advantage.py:56
        comes_5 = next_s_5 < full_steps  # advantage.py:56
        product_5 = next_s_5 * 16  # advantage.py:56
        total_6 = as_i32 + product_5  # advantage.py:56
        s_8 = total_6 + s_lane  # advantage.py:56
        at_most_5 = 0 <= s_8  # advantage.py:57
        below_5 = s_8 < N  # advantage.py:57
        both_5 = at_most_5 & below_5  # advantage.py:57
        rewards_6 = load_where(comes_5 & both_5, rewards, s_8, Float32(0))  # advantage.py:57
        is_nan = rewards_4 != rewards_4  # advantage.py:58
        difference_3 = rewards_4 - m_2  # advantage.py:58
        chosen_3 = select(is_nan, Int32(-(2**31)).bitcast(Float32), difference_3)  # advantage.py:58
        sum_s_lane = sum_over_s_lane_2([chosen_3])  # advantage.py:56
        s_9 = s_5 + sum_s_lane  # advantage.py:56
        s_5, rewards_4, rewards_5 = s_9, rewards_5, rewards_6  # advantage.py:56
    s_8 = s_5  # advantage.py:56
    for s_step_4 in cutlass.range(full_steps, steps, unroll=1):  # advantage.py:56
        product_5 = s_step_4 * 16  # advantage.py:56
        total_6 = as_i32 + product_5  # advantage.py:56
        s_9 = total_6 + s_lane  # advantage.py:56
        exists = s_9 < as_i32_2  # advantage.py:56
        at_most_5 = 0 <= s_9  # advantage.py:57
        below_5 = s_9 < N  # advantage.py:57
        both_5 = at_most_5 & below_5  # advantage.py:57
        both_6 = exists & both_5  # advantage.py:57
        rewards_6 = load_where(both_6, rewards, s_9, Float32(0))  # advantage.py:57
        is_nan = rewards_6 != rewards_6  # advantage.py:58
        difference_3 = rewards_6 - m_2  # advantage.py:58
        chosen_3 = select(is_nan, Int32(-(2**31)).bitcast(Float32), difference_3)  # advantage.py:58
        chosen_4 = select(exists, chosen_3, Int32(-(2**31)).bitcast(Float32))  # advantage.py:56
        sum_s_lane = sum_over_s_lane_2([chosen_4])  # advantage.py:56
        s_10 = s_8 + sum_s_lane  # advantage.py:56
        s_8 = s_10  # advantage.py:56
    larger_3 = cutlass.max(s_4, 1)  # advantage.py:80
    as_f32 = Int32(larger_3).to(Float32)  # advantage.py:80
    quotient = div(s_8, as_f32)  # advantage.py:59
    s_9 = Int32(-(2**31)).bitcast(Float32)  # advantage.py:60
    next_s_5 = Int32(0)  # advantage.py:60
    comes_5 = next_s_5 < full_steps  # advantage.py:60
    product_5 = next_s_5 * 16  # advantage.py:60
    total_6 = as_i32 + product_5  # advantage.py:60
    s_10 = total_6 + s_lane  # advantage.py:60
    at_most_5 = 0 <= s_10  # advantage.py:61
    below_5 = s_10 < N  # advantage.py:61
    both_5 = at_most_5 & below_5  # advantage.py:61
    rewards_6 = load_where(comes_5 & both_5, rewards, s_10, Float32(0))  # advantage.py:61
    next_s_6 = Int32(1)  # advantage.py:61
    comes_6 = next_s_6 < full_steps  # advantage.py:61
    product_6 = next_s_6 * 16  # advantage.py:60
    total_7 = as_i32 + product_6  # advantage.py:60
    s_11 = total_7 + s_lane  # advantage.py:60
    at_most_6 = 0 <= s_11  # advantage.py:61
    below_6 = s_11 < N  # advantage.py:61
    both_6 = at_most_6 & below_6  # advantage.py:61
    rewards_7 = load_where(comes_6 & both_6, rewards, s_11, Float32(0))  # advantage.py:61
    for s_step_5 in cutlass.range(0, full_steps, unroll=1):  # advantage.py:60
        next_s_7 = s_step_5 + 2  # advantage.py:60
        comes_7 = next_s_7 < full_steps  # advantage.py:60
        product_7 = next_s_7 * 16  # advantage.py:60
        total_8 = as_i32 + product_7  # advantage.py:60
        s_12 = total_8 + s_lane  # advantage.py:60
        at_most_7 = 0 <= s_12  # advantage.py:61
        below_7 = s_12 < N  # advantage.py:61
        both_7 = at_most_7 & below_7  # advantage.py:61
        rewards_8 = load_where(comes_7 & both_7, rewards, s_12, Float32(0))  # advantage.py:61
        difference_3 = rewards_6 - m_2  # advantage.py:72
        difference_4 = difference_3 - quotient  # advantage.py:72
        is_nan = rewards_6 != rewards_6  # advantage.py:63
        product_8 = mul(difference_4, difference_4)  # advantage.py:63
        chosen_3 = select(is_nan, Int32(-(2**31)).bitcast(Float32), product_8)  # advantage.py:63
        sum_s_lane = sum_over_s_lane_2([chosen_3])  # advantage.py:60
        s_13 = s_9 + sum_s_lane  # advantage.py:60
        s_9, rewards_6, rewards_7 = s_13, rewards_7, rewards_8  # advantage.py:60
    s_12 = s_9  # advantage.py:60
    for s_step_6 in cutlass.range(full_steps, steps, unroll=1):  # advantage.py:60
        product_7 = s_step_6 * 16  # advantage.py:60
        total_8 = as_i32 + product_7  # advantage.py:60
        s_13 = total_8 + s_lane  # advantage.py:60
        exists = s_13 < as_i32_2  # advantage.py:60
        at_most_7 = 0 <= s_13  # advantage.py:61
        below_7 = s_13 < N  # advantage.py:61
        both_7 = at_most_7 & below_7  # advantage.py:61
        both_8 = exists & both_7  # advantage.py:61
        rewards_8 = load_where(both_8, rewards, s_13, Float32(0))  # advantage.py:61
        difference_3 = rewards_8 - m_2  # advantage.py:72
        difference_4 = difference_3 - quotient  # advantage.py:72
        is_nan = rewards_8 != rewards_8  # advantage.py:63
        product_8 = mul(difference_4, difference_4)  # advantage.py:63
        chosen_3 = select(is_nan, Int32(-(2**31)).bitcast(Float32), product_8)  # advantage.py:63
        chosen_4 = select(exists, chosen_3, Int32(-(2**31)).bitcast(Float32))  # advantage.py:60
        sum_s_lane = sum_over_s_lane_2([chosen_4])  # advantage.py:60
        s_14 = s_12 + sum_s_lane  # advantage.py:60
        s_12 = s_14  # advantage.py:60
    difference_3 = s_4 - 1  # advantage.py:80
    larger_4 = cutlass.max(difference_3, 1)  # advantage.py:80
    as_f32_2 = Int32(larger_4).to(Float32)  # advantage.py:80
    quotient_2 = div(s_12, as_f32_2)  # advantage.py:75
    equal_3 = quotient_2 == Float32(0.0)  # advantage.py:143
    rsqrt_of = portable_rsqrt(quotient_2)  # advantage.py:97
    product_7 = mul(quotient_2, rsqrt_of)  # advantage.py:97
    total_8 = product_7 + eps  # advantage.py:87
    next_s_7 = Int32(0)  # advantage.py:145
    comes_7 = next_s_7 < full_steps  # advantage.py:145
    product_8 = next_s_7 * 16  # advantage.py:137
    total_9 = as_i32 + product_8  # advantage.py:137
    s_13 = total_9 + s_lane  # advantage.py:137
    at_most_7 = 0 <= s_13  # advantage.py:138
    below_7 = s_13 < N  # advantage.py:138
    both_7 = at_most_7 & below_7  # advantage.py:138
    rewards_8 = load_where(comes_7 & both_7, rewards, s_13, Float32(0))  # advantage.py:138
    next_s_8 = Int32(1)  # advantage.py:138
    comes_8 = next_s_8 < full_steps  # advantage.py:138
    product_9 = next_s_8 * 16  # advantage.py:137
    total_10 = as_i32 + product_9  # advantage.py:137
    s_14 = total_10 + s_lane  # advantage.py:137
    at_most_8 = 0 <= s_14  # advantage.py:138
    below_8 = s_14 < N  # advantage.py:138
    both_8 = at_most_8 & below_8  # advantage.py:138
    rewards_9 = load_where(comes_8 & both_8, rewards, s_14, Float32(0))  # advantage.py:138
    for s_step_7 in cutlass.range(0, full_steps, unroll=1):  # advantage.py:145
        next_s_9 = s_step_7 + 2  # advantage.py:145
        comes_9 = next_s_9 < full_steps  # advantage.py:145
        product_10 = next_s_9 * 16  # advantage.py:137
        total_11 = as_i32 + product_10  # advantage.py:137
        s_15 = total_11 + s_lane  # advantage.py:137
        at_most_9 = 0 <= s_15  # advantage.py:138
        below_9 = s_15 < N  # advantage.py:138
        both_9 = at_most_9 & below_9  # advantage.py:138
        rewards_10 = load_where(comes_9 & both_9, rewards, s_15, Float32(0))  # advantage.py:138
        product_11 = s_step_7 * 16  # advantage.py:137
        total_12 = as_i32 + product_11  # advantage.py:137
        s_16 = total_12 + s_lane  # advantage.py:137
        difference_4 = rewards_8 - m_2  # advantage.py:72
        difference_5 = difference_4 - quotient  # advantage.py:72
        quotient_3 = div(difference_5, total_8)  # advantage.py:143
        chosen_3 = select(equal_3, Float32(0.0), quotient_3)  # advantage.py:143
        is_nan = rewards_8 != rewards_8  # advantage.py:144
        chosen_4 = select(is_nan, Float32(0.0), chosen_3)  # advantage.py:144
        chosen_5 = select(either, Float32(float("nan")), chosen_4)  # advantage.py:144
        store_where(writes_2, advantages, s_16, chosen_5)  # advantage.py:145
        rewards_8, rewards_9 = rewards_9, rewards_10  # advantage.py:145
    for s_step_8 in cutlass.range(full_steps, steps, unroll=1):  # advantage.py:145
        product_10 = s_step_8 * 16  # advantage.py:137
        total_11 = as_i32 + product_10  # advantage.py:137
        s_15 = total_11 + s_lane  # advantage.py:137
        exists = s_15 < as_i32_2  # advantage.py:137
        at_most_9 = 0 <= s_15  # advantage.py:138
        below_9 = s_15 < N  # advantage.py:138
        both_9 = at_most_9 & below_9  # advantage.py:138
        both_10 = exists & both_9  # advantage.py:138
        rewards_10 = load_where(both_10, rewards, s_15, Float32(0))  # advantage.py:138
        difference_4 = rewards_10 - m_2  # advantage.py:72
        difference_5 = difference_4 - quotient  # advantage.py:72
        quotient_3 = div(difference_5, total_8)  # advantage.py:143
        chosen_3 = select(equal_3, Float32(0.0), quotient_3)  # advantage.py:143
        is_nan = rewards_10 != rewards_10  # advantage.py:144
        chosen_4 = select(is_nan, Float32(0.0), chosen_3)  # advantage.py:144
        chosen_5 = select(either, Float32(float("nan")), chosen_4)  # advantage.py:144
        store_where(exists & writes_2, advantages, s_15, chosen_5)  # advantage.py:145


@cute.jit
def launch_group_advantage(rewards_ptr: cute.Pointer, bounds_ptr: cute.Pointer, advantages_ptr: cute.Pointer, N: Int32, G: Int32, errors_ptr: cute.Pointer, bounds_g_stride: Int64, eps: Float32, programs: Int32, stream: cuda.CUstream):
    # Describe the tensors, and start the kernel on a stream.
    rewards = cute.make_tensor(rewards_ptr, cute.make_layout((N,), stride=(1,)))
    bounds = cute.make_tensor(bounds_ptr, cute.make_layout((G, 2), stride=(bounds_g_stride, 1)))
    advantages = cute.make_tensor(advantages_ptr, cute.make_layout((N,), stride=(1,)))
    group_advantage_rows(rewards, bounds, advantages, N, G, errors_ptr, eps).launch(
        grid=(programs, 1, 1), block=(32, 1, 1), stream=stream,
    )


def call(kernels, rewards, bounds, advantages, eps, N, G, bounds_g_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = G
    if programs > 0:
        kernels.group_advantage((programs,), rewards, bounds, advantages, N, G, errors, bounds_g_stride, eps)
