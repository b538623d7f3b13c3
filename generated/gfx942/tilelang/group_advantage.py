"""group_advantage on gfx942, written by rlk 0.1.0: do not edit.

numerics: 469d90de7a5a25ff
schedule: tiles G=64, 2 warps, 1 stages, unroll 1
"""

import struct

import tilelang.language as tl


def memory(name, dtype):
    """The elements of a tensor in a row: addresses are counted from the first."""
    return tl.Tensor((tl.dynamic(f"{name}_size", "int64"),), dtype)


def f32(number):
    """A constant by its bits: HIP text has seven digits, and a sum with 0.0 would be folded away."""
    return tl.reinterpret(tl.uint32(struct.unpack("<I", struct.pack("<f", number))[0]), "float32")


@tl.macro
def add(a, b):
    # A term of a sum.
    return a + b


@tl.macro
def bits_of(x):
    # As an integer.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def held(x):
    # A variable: the text of a value without one is copied to each of its uses.
    variable = tl.alloc_var(x.dtype, x)
    return variable


@tl.macro
def is_nan(x):
    # By its bits.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def larger(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.
    same = number_of(bits_of(a) & bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return held(tl.Select(a < b, b, tl.Select(b < a, a, other)))


@tl.macro
def least(a, b):
    # Of integers.
    return tl.min(a, b)


@tl.macro
def least_over_g(x, x_board, thread):
    # The least over G, in any order.
    for c in tl.unroll(4):
        x[c] = least(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = least(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = least(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = least(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = least(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_board[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = least(x[c], x_board[c, thread ^ 64])


@tl.macro
def max_over_s_lane(x):
    # The max over S.lane, in any order.
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.macro
def min_over_s_lane(x):
    # The min over S.lane, in any order.
    for c in tl.unroll(8):
        x[c] = least(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = least(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = least(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = least(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.macro
def most(a, b):
    # Of integers.
    return tl.max(a, b)


@tl.macro
def most_over_g(x, x_board, thread):
    # The most over G, in any order.
    for c in tl.unroll(4):
        x[c] = most(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = most(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = most(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = most(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = most(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_board[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = most(x[c], x_board[c, thread ^ 64])


@tl.macro
def number_of(i):
    # As a float.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_rsqrt(x):
    # 1 / sqrt(x); rsqrt(+-0) = +-inf, rsqrt(x < 0) = NaN.
    y0 = tl.alloc_var("float32", x * f32(16777216.0))
    y1 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), y0, x))
    i2 = tl.alloc_var("int32", bits_of(y1))
    i3 = tl.alloc_var("int32", i2 >> 1)
    i4 = tl.alloc_var("int32", tl.int32(1595932665) - i3)
    y5 = tl.alloc_var("float32", number_of(i4))
    y6 = tl.alloc_var("float32", y5 * f32(-0.703952253))
    y7 = tl.alloc_var("float32", y1 * y5)
    y8 = tl.alloc_var("float32", fma(y7, y5, f32(-2.38924456)))
    y9 = tl.alloc_var("float32", y6 * y8)
    y10 = tl.alloc_var("float32", y1 * y9)
    y11 = tl.alloc_var("float32", fma(y10, y9, f32(-1.0)))
    y12 = tl.alloc_var("float32", y9 * y11)
    y13 = tl.alloc_var("float32", fma(y11, f32(0.375), f32(-0.5)))
    y14 = tl.alloc_var("float32", fma(y12, y13, y9))
    y15 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), f32(4096.0), f32(1.0)))
    y16 = tl.alloc_var("float32", y14 * y15)
    y17 = tl.alloc_var("float32", tl.Select(x == f32(float("inf")), f32(0.0), x))
    y18 = tl.alloc_var("float32", tl.Select(x < f32(float("inf")), y16, y17))
    i19 = tl.alloc_var("int32", bits_of(x))
    i20 = tl.alloc_var("int32", i19 & tl.reinterpret(tl.uint32(0x80000000), "int32"))
    i21 = tl.alloc_var("int32", i20 | tl.int32(2139095040))
    y22 = tl.alloc_var("float32", number_of(i21))
    y23 = tl.alloc_var("float32", tl.Select(x == f32(0.0), y22, y18))
    y24 = tl.alloc_var("float32", tl.Select(x < f32(0.0), f32(float("nan")), y23))
    return y24


@tl.macro
def sum_over_s_lane(x):
    # The sum over S.lane, in any order.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))


@tl.macro
def sum_over_s_lane_2(x):
    # The sum over S.lane, halving.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def group_advantage(rewards: memory("rewards", "float32"), bounds: memory("bounds", "int64"), advantages: memory("advantages", "float32"), G: tl.int32, bounds_g_stride: tl.int64, N: tl.int32, errors: memory("errors", "int32"), eps: tl.float32, programs: tl.int32):
    # A block owns 64 of G (rows). S.lane: 16 indices, 1 to each of 16 threads; G: 64 indices, 8 to each of 8 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        i32_board = tl.alloc_shared((8, 128), "int32", "shared")
        g = tl.alloc_local((8,), "int32")
        g_inside = tl.alloc_local((8,), "bool")
        bounds_2 = tl.alloc_local((8,), "int64")
        bounds_3 = tl.alloc_local((8,), "int64")
        equal = tl.alloc_local((8,), "bool")
        chosen = tl.alloc_local((8,), "int64")
        larger_2 = tl.alloc_local((8,), "int64")
        smaller_2 = tl.alloc_local((8,), "int64")
        equal_2 = tl.alloc_local((8,), "bool")
        chosen_2 = tl.alloc_local((8,), "int64")
        smaller_3 = tl.alloc_local((8,), "int64")
        larger_3 = tl.alloc_local((8,), "int64")
        differs = tl.alloc_local((8,), "bool")
        differs_2 = tl.alloc_local((8,), "bool")
        either = tl.alloc_local((8,), "bool")
        as_i32 = tl.alloc_local((8,), "int32")
        as_i32_2 = tl.alloc_local((8,), "int32")
        difference_2 = tl.alloc_local((8,), "int32")
        total = tl.alloc_local((8,), "int32")
        steps = tl.alloc_local((8,), "int32")
        full_steps = tl.alloc_local((8,), "int32")
        least_g = tl.alloc_local((8,), "int32")
        m = tl.alloc_local((8,), "float32")
        s_state = tl.alloc_local((8,), "int32")
        s = tl.alloc_local((8,), "int32")
        total_2 = tl.alloc_local((8,), "int32")
        s_2 = tl.alloc_local((8,), "int32")
        at_most = tl.alloc_local((8,), "bool")
        below = tl.alloc_local((8,), "bool")
        both = tl.alloc_local((8,), "bool")
        rewards_2 = tl.alloc_local((8,), "float32")
        is_nan_2 = tl.alloc_local((8,), "bool")
        unless = tl.alloc_local((8,), "bool")
        as_i32_3 = tl.alloc_local((8,), "int32")
        max_s_lane = tl.alloc_local((8,), "float32")
        equal_3 = tl.alloc_local((8,), "bool")
        chosen_3 = tl.alloc_local((8,), "int32")
        min_s_lane = tl.alloc_local((8,), "int32")
        sum_s_lane = tl.alloc_local((8,), "int32")
        below_2 = tl.alloc_local((8,), "bool")
        equal_4 = tl.alloc_local((8,), "bool")
        below_3 = tl.alloc_local((8,), "bool")
        both_2 = tl.alloc_local((8,), "bool")
        either_2 = tl.alloc_local((8,), "bool")
        m_2 = tl.alloc_local((8,), "float32")
        index = tl.alloc_local((8,), "int32")
        s_3 = tl.alloc_local((8,), "int32")
        least_g_3 = tl.alloc_local((8,), "int32")
        most_g = tl.alloc_local((8,), "int32")
        m_3 = tl.alloc_local((8,), "float32")
        s_state_2 = tl.alloc_local((8,), "int32")
        s_4 = tl.alloc_local((8,), "int32")
        total_3 = tl.alloc_local((8,), "int32")
        s_5 = tl.alloc_local((8,), "int32")
        exists = tl.alloc_local((8,), "bool")
        at_most_2 = tl.alloc_local((8,), "bool")
        below_4 = tl.alloc_local((8,), "bool")
        both_3 = tl.alloc_local((8,), "bool")
        both_4 = tl.alloc_local((8,), "bool")
        rewards_3 = tl.alloc_local((8,), "float32")
        is_nan_3 = tl.alloc_local((8,), "bool")
        unless_2 = tl.alloc_local((8,), "bool")
        as_i32_4 = tl.alloc_local((8,), "int32")
        chosen_4 = tl.alloc_local((8,), "float32")
        max_s_lane_2 = tl.alloc_local((8,), "float32")
        equal_5 = tl.alloc_local((8,), "bool")
        chosen_5 = tl.alloc_local((8,), "int32")
        chosen_6 = tl.alloc_local((8,), "int32")
        min_s_lane_2 = tl.alloc_local((8,), "int32")
        chosen_7 = tl.alloc_local((8,), "int32")
        sum_s_lane_2 = tl.alloc_local((8,), "int32")
        below_5 = tl.alloc_local((8,), "bool")
        equal_6 = tl.alloc_local((8,), "bool")
        below_6 = tl.alloc_local((8,), "bool")
        both_5 = tl.alloc_local((8,), "bool")
        either_3 = tl.alloc_local((8,), "bool")
        m_4 = tl.alloc_local((8,), "float32")
        index_2 = tl.alloc_local((8,), "int32")
        s_6 = tl.alloc_local((8,), "int32")
        least_g_5 = tl.alloc_local((8,), "int32")
        s_7 = tl.alloc_local((8,), "float32")
        total_4 = tl.alloc_local((8,), "int32")
        s_8 = tl.alloc_local((8,), "int32")
        at_most_3 = tl.alloc_local((8,), "bool")
        below_7 = tl.alloc_local((8,), "bool")
        both_6 = tl.alloc_local((8,), "bool")
        rewards_4 = tl.alloc_local((8,), "float32")
        is_nan_4 = tl.alloc_local((8,), "bool")
        difference_3 = tl.alloc_local((8,), "float32")
        chosen_8 = tl.alloc_local((8,), "float32")
        sum_s_lane_3 = tl.alloc_local((8,), "float32")
        s_9 = tl.alloc_local((8,), "float32")
        least_g_7 = tl.alloc_local((8,), "int32")
        most_g_3 = tl.alloc_local((8,), "int32")
        s_10 = tl.alloc_local((8,), "float32")
        total_5 = tl.alloc_local((8,), "int32")
        s_11 = tl.alloc_local((8,), "int32")
        exists_2 = tl.alloc_local((8,), "bool")
        at_most_4 = tl.alloc_local((8,), "bool")
        below_8 = tl.alloc_local((8,), "bool")
        both_7 = tl.alloc_local((8,), "bool")
        both_8 = tl.alloc_local((8,), "bool")
        rewards_5 = tl.alloc_local((8,), "float32")
        is_nan_5 = tl.alloc_local((8,), "bool")
        difference_4 = tl.alloc_local((8,), "float32")
        chosen_9 = tl.alloc_local((8,), "float32")
        chosen_10 = tl.alloc_local((8,), "float32")
        sum_s_lane_4 = tl.alloc_local((8,), "float32")
        s_12 = tl.alloc_local((8,), "float32")
        larger_4 = tl.alloc_local((8,), "int32")
        as_f32 = tl.alloc_local((8,), "float32")
        quotient = tl.alloc_local((8,), "float32")
        least_g_9 = tl.alloc_local((8,), "int32")
        s_13 = tl.alloc_local((8,), "float32")
        total_6 = tl.alloc_local((8,), "int32")
        s_14 = tl.alloc_local((8,), "int32")
        at_most_5 = tl.alloc_local((8,), "bool")
        below_9 = tl.alloc_local((8,), "bool")
        both_9 = tl.alloc_local((8,), "bool")
        rewards_6 = tl.alloc_local((8,), "float32")
        difference_5 = tl.alloc_local((8,), "float32")
        difference_6 = tl.alloc_local((8,), "float32")
        is_nan_6 = tl.alloc_local((8,), "bool")
        product_6 = tl.alloc_local((8,), "float32")
        chosen_11 = tl.alloc_local((8,), "float32")
        sum_s_lane_5 = tl.alloc_local((8,), "float32")
        s_15 = tl.alloc_local((8,), "float32")
        least_g_11 = tl.alloc_local((8,), "int32")
        most_g_5 = tl.alloc_local((8,), "int32")
        s_16 = tl.alloc_local((8,), "float32")
        total_7 = tl.alloc_local((8,), "int32")
        s_17 = tl.alloc_local((8,), "int32")
        exists_3 = tl.alloc_local((8,), "bool")
        at_most_6 = tl.alloc_local((8,), "bool")
        below_10 = tl.alloc_local((8,), "bool")
        both_10 = tl.alloc_local((8,), "bool")
        both_11 = tl.alloc_local((8,), "bool")
        rewards_7 = tl.alloc_local((8,), "float32")
        difference_7 = tl.alloc_local((8,), "float32")
        difference_8 = tl.alloc_local((8,), "float32")
        is_nan_7 = tl.alloc_local((8,), "bool")
        product_8 = tl.alloc_local((8,), "float32")
        chosen_12 = tl.alloc_local((8,), "float32")
        chosen_13 = tl.alloc_local((8,), "float32")
        sum_s_lane_6 = tl.alloc_local((8,), "float32")
        s_18 = tl.alloc_local((8,), "float32")
        difference_9 = tl.alloc_local((8,), "int32")
        larger_5 = tl.alloc_local((8,), "int32")
        as_f32_2 = tl.alloc_local((8,), "float32")
        quotient_2 = tl.alloc_local((8,), "float32")
        equal_7 = tl.alloc_local((8,), "bool")
        rsqrt = tl.alloc_local((8,), "float32")
        product_9 = tl.alloc_local((8,), "float32")
        total_8 = tl.alloc_local((8,), "float32")
        least_g_13 = tl.alloc_local((8,), "int32")
        total_9 = tl.alloc_local((8,), "int32")
        s_19 = tl.alloc_local((8,), "int32")
        at_most_7 = tl.alloc_local((8,), "bool")
        below_11 = tl.alloc_local((8,), "bool")
        both_12 = tl.alloc_local((8,), "bool")
        rewards_8 = tl.alloc_local((8,), "float32")
        difference_10 = tl.alloc_local((8,), "float32")
        difference_11 = tl.alloc_local((8,), "float32")
        quotient_3 = tl.alloc_local((8,), "float32")
        chosen_14 = tl.alloc_local((8,), "float32")
        is_nan_8 = tl.alloc_local((8,), "bool")
        chosen_15 = tl.alloc_local((8,), "float32")
        chosen_16 = tl.alloc_local((8,), "float32")
        least_g_15 = tl.alloc_local((8,), "int32")
        most_g_7 = tl.alloc_local((8,), "int32")
        total_10 = tl.alloc_local((8,), "int32")
        s_20 = tl.alloc_local((8,), "int32")
        exists_4 = tl.alloc_local((8,), "bool")
        at_most_8 = tl.alloc_local((8,), "bool")
        below_12 = tl.alloc_local((8,), "bool")
        both_13 = tl.alloc_local((8,), "bool")
        both_14 = tl.alloc_local((8,), "bool")
        rewards_9 = tl.alloc_local((8,), "float32")
        difference_12 = tl.alloc_local((8,), "float32")
        difference_13 = tl.alloc_local((8,), "float32")
        quotient_4 = tl.alloc_local((8,), "float32")
        chosen_17 = tl.alloc_local((8,), "float32")
        is_nan_9 = tl.alloc_local((8,), "bool")
        chosen_18 = tl.alloc_local((8,), "float32")
        chosen_19 = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            g[c] = block * 64 + thread // 16 + c * 8
            g_inside[c] = g[c] < G
        writes = (thread & 15) == 0
        for c in tl.unroll(8):  # advantage.py:106
            bounds_2[c] = tl.if_then_else(g_inside[c], bounds[tl.int64(g[c]) * bounds_g_stride], tl.Cast("int64", 0))  # advantage.py:106
            bounds_3[c] = tl.if_then_else(g_inside[c], bounds[tl.int64(g[c]) * bounds_g_stride + 1], tl.Cast("int64", 0))  # advantage.py:106
        eps_2 = tl.alloc_var("float32", eps)
        difference = tl.alloc_var("int32", G - 1)  # advantage.py:105
        as_i64 = tl.alloc_var("int64", tl.Cast("int64", N))  # advantage.py:105
        for c in tl.unroll(8):  # advantage.py:107
            equal[c] = g[c] == 0  # advantage.py:107
            chosen[c] = tl.Select(equal[c], tl.int64(0), bounds_2[c])  # advantage.py:107
            larger_2[c] = tl.max(chosen[c], tl.int64(0))  # advantage.py:107
            smaller_2[c] = tl.min(larger_2[c], as_i64)  # advantage.py:107
            equal_2[c] = g[c] == difference  # advantage.py:108
            chosen_2[c] = tl.Select(equal_2[c], as_i64, bounds_3[c])  # advantage.py:108
            smaller_3[c] = tl.min(chosen_2[c], as_i64)  # advantage.py:108
            larger_3[c] = tl.max(smaller_2[c], smaller_3[c])  # advantage.py:108
            differs[c] = smaller_2[c] != bounds_2[c]  # advantage.py:109
            differs_2[c] = larger_3[c] != bounds_3[c]  # advantage.py:109
            either[c] = differs[c] | differs_2[c]  # advantage.py:109
            if either[c] & g_inside[c] & writes:  # advantage.py:110
                tl.atomic_max(errors[0], 1)  # advantage.py:110
                tl.atomic_max(errors[1], g[c] + 1)  # advantage.py:110
            as_i32[c] = tl.Cast("int32", smaller_2[c])  # advantage.py:51
            as_i32_2[c] = tl.Cast("int32", larger_3[c])  # advantage.py:51
            difference_2[c] = as_i32_2[c] - as_i32[c]  # advantage.py:51
            total[c] = difference_2[c] + 15  # advantage.py:51
            steps[c] = tl.truncdiv(total[c], tl.int32(16))  # advantage.py:51
            full_steps[c] = tl.truncdiv(difference_2[c], tl.int32(16))  # advantage.py:51
        s_lane = tl.alloc_var("int32", thread % 16)  # advantage.py:51
        for c in tl.unroll(8):  # advantage.py:51
            least_g[c] = full_steps[c]  # advantage.py:51
        least_over_g(least_g, i32_board, thread)  # advantage.py:51
        least_g_2 = least_g[0]  # advantage.py:51
        for c in tl.unroll(8):  # advantage.py:51
            m[c] = f32(float("-inf"))  # advantage.py:51
            s_state[c] = tl.int32(2147483647)  # advantage.py:51
            s[c] = tl.int32(0)  # advantage.py:51
        for s_step in tl.serial(0, least_g_2):  # advantage.py:51
            product = tl.alloc_var("int32", s_step * 16)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                total_2[c] = as_i32[c] + product  # advantage.py:51
                s_2[c] = total_2[c] + s_lane  # advantage.py:51
                at_most[c] = 0 <= s_2[c]  # advantage.py:52
                below[c] = s_2[c] < N  # advantage.py:52
                both[c] = at_most[c] & below[c]  # advantage.py:52
                rewards_2[c] = tl.if_then_else(both[c] & g_inside[c], rewards[s_2[c]], tl.Cast("float32", 0))  # advantage.py:52
                is_nan_2[c] = is_nan(rewards_2[c])  # advantage.py:54
                unless[c] = tl.Not(is_nan_2[c])  # advantage.py:54
                as_i32_3[c] = tl.Cast("int32", unless[c])  # advantage.py:54
                max_s_lane[c] = rewards_2[c]  # advantage.py:51
            max_over_s_lane(max_s_lane)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                equal_3[c] = rewards_2[c] == max_s_lane[c]  # advantage.py:51
                chosen_3[c] = tl.Select(equal_3[c], s_2[c], tl.int32(2147483647))  # advantage.py:51
                min_s_lane[c] = chosen_3[c]  # advantage.py:51
            min_over_s_lane(min_s_lane)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                sum_s_lane[c] = as_i32_3[c]  # advantage.py:51
            sum_over_s_lane(sum_s_lane)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                below_2[c] = m[c] < max_s_lane[c]  # advantage.py:51
                equal_4[c] = m[c] == max_s_lane[c]  # advantage.py:51
                below_3[c] = min_s_lane[c] < s_state[c]  # advantage.py:51
                both_2[c] = equal_4[c] & below_3[c]  # advantage.py:51
                either_2[c] = below_2[c] | both_2[c]  # advantage.py:51
                m_2[c] = tl.Select(either_2[c], max_s_lane[c], m[c])  # advantage.py:51
                index[c] = tl.Select(either_2[c], min_s_lane[c], s_state[c])  # advantage.py:51
                s_3[c] = s[c] + sum_s_lane[c]  # advantage.py:51
                m[c] = m_2[c]  # advantage.py:51
                s_state[c] = index[c]  # advantage.py:51
                s[c] = s_3[c]  # advantage.py:51
        for c in tl.unroll(8):  # advantage.py:51
            least_g_3[c] = full_steps[c]  # advantage.py:51
        least_over_g(least_g_3, i32_board, thread)  # advantage.py:51
        least_g_4 = least_g_3[0]  # advantage.py:51
        for c in tl.unroll(8):  # advantage.py:51
            most_g[c] = steps[c]  # advantage.py:51
        most_over_g(most_g, i32_board, thread)  # advantage.py:51
        most_g_2 = most_g[0]  # advantage.py:51
        for c in tl.unroll(8):  # advantage.py:51
            m_3[c] = m[c]  # advantage.py:51
            s_state_2[c] = s_state[c]  # advantage.py:51
            s_4[c] = s[c]  # advantage.py:51
        for s_step_2 in tl.serial(least_g_4, most_g_2):  # advantage.py:51
            product_2 = tl.alloc_var("int32", s_step_2 * 16)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                total_3[c] = as_i32[c] + product_2  # advantage.py:51
                s_5[c] = total_3[c] + s_lane  # advantage.py:51
                exists[c] = s_5[c] < as_i32_2[c]  # advantage.py:51
                at_most_2[c] = 0 <= s_5[c]  # advantage.py:52
                below_4[c] = s_5[c] < N  # advantage.py:52
                both_3[c] = at_most_2[c] & below_4[c]  # advantage.py:52
                both_4[c] = exists[c] & both_3[c]  # advantage.py:52
                rewards_3[c] = tl.if_then_else(both_4[c] & g_inside[c], rewards[s_5[c]], tl.Cast("float32", 0))  # advantage.py:52
                is_nan_3[c] = is_nan(rewards_3[c])  # advantage.py:54
                unless_2[c] = tl.Not(is_nan_3[c])  # advantage.py:54
                as_i32_4[c] = tl.Cast("int32", unless_2[c])  # advantage.py:54
                chosen_4[c] = tl.Select(exists[c], rewards_3[c], f32(float("-inf")))  # advantage.py:51
                max_s_lane_2[c] = chosen_4[c]  # advantage.py:51
            max_over_s_lane(max_s_lane_2)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                equal_5[c] = chosen_4[c] == max_s_lane_2[c]  # advantage.py:51
                chosen_5[c] = tl.Select(equal_5[c], s_5[c], tl.int32(2147483647))  # advantage.py:51
                chosen_6[c] = tl.Select(exists[c], chosen_5[c], tl.int32(2147483647))  # advantage.py:51
                min_s_lane_2[c] = chosen_6[c]  # advantage.py:51
            min_over_s_lane(min_s_lane_2)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                chosen_7[c] = tl.Select(exists[c], as_i32_4[c], tl.int32(0))  # advantage.py:51
                sum_s_lane_2[c] = chosen_7[c]  # advantage.py:51
            sum_over_s_lane(sum_s_lane_2)  # advantage.py:51
            for c in tl.unroll(8):  # advantage.py:51
                below_5[c] = m_3[c] < max_s_lane_2[c]  # advantage.py:51
                equal_6[c] = m_3[c] == max_s_lane_2[c]  # advantage.py:51
                below_6[c] = min_s_lane_2[c] < s_state_2[c]  # advantage.py:51
                both_5[c] = equal_6[c] & below_6[c]  # advantage.py:51
                either_3[c] = below_5[c] | both_5[c]  # advantage.py:51
                m_4[c] = tl.Select(either_3[c], max_s_lane_2[c], m_3[c])  # advantage.py:51
                index_2[c] = tl.Select(either_3[c], min_s_lane_2[c], s_state_2[c])  # advantage.py:51
                s_6[c] = s_4[c] + sum_s_lane_2[c]  # advantage.py:51
                m_3[c] = m_4[c]  # advantage.py:51
                s_state_2[c] = index_2[c]  # advantage.py:51
                s_4[c] = s_6[c]  # advantage.py:51
        for c in tl.unroll(8):  # advantage.py:56
            least_g_5[c] = full_steps[c]  # advantage.py:56
        least_over_g(least_g_5, i32_board, thread)  # advantage.py:56
        least_g_6 = least_g_5[0]  # advantage.py:56
        for c in tl.unroll(8):  # advantage.py:56
            s_7[c] = f32(-0.0)  # advantage.py:56
        for s_step_3 in tl.serial(0, least_g_6):  # advantage.py:56
            product_3 = tl.alloc_var("int32", s_step_3 * 16)  # advantage.py:56
            for c in tl.unroll(8):  # advantage.py:56
                total_4[c] = as_i32[c] + product_3  # advantage.py:56
                s_8[c] = total_4[c] + s_lane  # advantage.py:56
                at_most_3[c] = 0 <= s_8[c]  # advantage.py:57
                below_7[c] = s_8[c] < N  # advantage.py:57
                both_6[c] = at_most_3[c] & below_7[c]  # advantage.py:57
                rewards_4[c] = tl.if_then_else(both_6[c] & g_inside[c], rewards[s_8[c]], tl.Cast("float32", 0))  # advantage.py:57
                is_nan_4[c] = is_nan(rewards_4[c])  # advantage.py:58
                difference_3[c] = rewards_4[c] - m_3[c]  # advantage.py:58
                chosen_8[c] = tl.Select(is_nan_4[c], f32(-0.0), difference_3[c])  # advantage.py:58
                sum_s_lane_3[c] = chosen_8[c]  # advantage.py:56
            sum_over_s_lane_2(sum_s_lane_3)  # advantage.py:56
            for c in tl.unroll(8):  # advantage.py:56
                s_9[c] = s_7[c] + sum_s_lane_3[c]  # advantage.py:56
                s_7[c] = s_9[c]  # advantage.py:56
        for c in tl.unroll(8):  # advantage.py:56
            least_g_7[c] = full_steps[c]  # advantage.py:56
        least_over_g(least_g_7, i32_board, thread)  # advantage.py:56
        least_g_8 = least_g_7[0]  # advantage.py:56
        for c in tl.unroll(8):  # advantage.py:56
            most_g_3[c] = steps[c]  # advantage.py:56
        most_over_g(most_g_3, i32_board, thread)  # advantage.py:56
        most_g_4 = most_g_3[0]  # advantage.py:56
        for c in tl.unroll(8):  # advantage.py:56
            s_10[c] = s_7[c]  # advantage.py:56
        for s_step_4 in tl.serial(least_g_8, most_g_4):  # advantage.py:56
            product_4 = tl.alloc_var("int32", s_step_4 * 16)  # advantage.py:56
            for c in tl.unroll(8):  # advantage.py:56
                total_5[c] = as_i32[c] + product_4  # advantage.py:56
                s_11[c] = total_5[c] + s_lane  # advantage.py:56
                exists_2[c] = s_11[c] < as_i32_2[c]  # advantage.py:56
                at_most_4[c] = 0 <= s_11[c]  # advantage.py:57
                below_8[c] = s_11[c] < N  # advantage.py:57
                both_7[c] = at_most_4[c] & below_8[c]  # advantage.py:57
                both_8[c] = exists_2[c] & both_7[c]  # advantage.py:57
                rewards_5[c] = tl.if_then_else(both_8[c] & g_inside[c], rewards[s_11[c]], tl.Cast("float32", 0))  # advantage.py:57
                is_nan_5[c] = is_nan(rewards_5[c])  # advantage.py:58
                difference_4[c] = rewards_5[c] - m_3[c]  # advantage.py:58
                chosen_9[c] = tl.Select(is_nan_5[c], f32(-0.0), difference_4[c])  # advantage.py:58
                chosen_10[c] = tl.Select(exists_2[c], chosen_9[c], f32(-0.0))  # advantage.py:56
                sum_s_lane_4[c] = chosen_10[c]  # advantage.py:56
            sum_over_s_lane_2(sum_s_lane_4)  # advantage.py:56
            for c in tl.unroll(8):  # advantage.py:56
                s_12[c] = s_10[c] + sum_s_lane_4[c]  # advantage.py:56
                s_10[c] = s_12[c]  # advantage.py:56
        for c in tl.unroll(8):  # advantage.py:80
            larger_4[c] = tl.max(s_4[c], tl.int32(1))  # advantage.py:80
            as_f32[c] = tl.Cast("float32", larger_4[c])  # advantage.py:80
            quotient[c] = s_10[c] / as_f32[c]  # advantage.py:59
            least_g_9[c] = full_steps[c]  # advantage.py:60
        least_over_g(least_g_9, i32_board, thread)  # advantage.py:60
        least_g_10 = least_g_9[0]  # advantage.py:60
        for c in tl.unroll(8):  # advantage.py:60
            s_13[c] = f32(-0.0)  # advantage.py:60
        for s_step_5 in tl.serial(0, least_g_10):  # advantage.py:60
            product_5 = tl.alloc_var("int32", s_step_5 * 16)  # advantage.py:60
            for c in tl.unroll(8):  # advantage.py:60
                total_6[c] = as_i32[c] + product_5  # advantage.py:60
                s_14[c] = total_6[c] + s_lane  # advantage.py:60
                at_most_5[c] = 0 <= s_14[c]  # advantage.py:61
                below_9[c] = s_14[c] < N  # advantage.py:61
                both_9[c] = at_most_5[c] & below_9[c]  # advantage.py:61
                rewards_6[c] = tl.if_then_else(both_9[c] & g_inside[c], rewards[s_14[c]], tl.Cast("float32", 0))  # advantage.py:61
                difference_5[c] = rewards_6[c] - m_3[c]  # advantage.py:72
                difference_6[c] = difference_5[c] - quotient[c]  # advantage.py:72
                is_nan_6[c] = is_nan(rewards_6[c])  # advantage.py:63
                product_6[c] = difference_6[c] * difference_6[c]  # advantage.py:63
                chosen_11[c] = tl.Select(is_nan_6[c], f32(-0.0), product_6[c])  # advantage.py:63
                sum_s_lane_5[c] = chosen_11[c]  # advantage.py:60
            sum_over_s_lane_2(sum_s_lane_5)  # advantage.py:60
            for c in tl.unroll(8):  # advantage.py:60
                s_15[c] = s_13[c] + sum_s_lane_5[c]  # advantage.py:60
                s_13[c] = s_15[c]  # advantage.py:60
        for c in tl.unroll(8):  # advantage.py:60
            least_g_11[c] = full_steps[c]  # advantage.py:60
        least_over_g(least_g_11, i32_board, thread)  # advantage.py:60
        least_g_12 = least_g_11[0]  # advantage.py:60
        for c in tl.unroll(8):  # advantage.py:60
            most_g_5[c] = steps[c]  # advantage.py:60
        most_over_g(most_g_5, i32_board, thread)  # advantage.py:60
        most_g_6 = most_g_5[0]  # advantage.py:60
        for c in tl.unroll(8):  # advantage.py:60
            s_16[c] = s_13[c]  # advantage.py:60
        for s_step_6 in tl.serial(least_g_12, most_g_6):  # advantage.py:60
            product_7 = tl.alloc_var("int32", s_step_6 * 16)  # advantage.py:60
            for c in tl.unroll(8):  # advantage.py:60
                total_7[c] = as_i32[c] + product_7  # advantage.py:60
                s_17[c] = total_7[c] + s_lane  # advantage.py:60
                exists_3[c] = s_17[c] < as_i32_2[c]  # advantage.py:60
                at_most_6[c] = 0 <= s_17[c]  # advantage.py:61
                below_10[c] = s_17[c] < N  # advantage.py:61
                both_10[c] = at_most_6[c] & below_10[c]  # advantage.py:61
                both_11[c] = exists_3[c] & both_10[c]  # advantage.py:61
                rewards_7[c] = tl.if_then_else(both_11[c] & g_inside[c], rewards[s_17[c]], tl.Cast("float32", 0))  # advantage.py:61
                difference_7[c] = rewards_7[c] - m_3[c]  # advantage.py:72
                difference_8[c] = difference_7[c] - quotient[c]  # advantage.py:72
                is_nan_7[c] = is_nan(rewards_7[c])  # advantage.py:63
                product_8[c] = difference_8[c] * difference_8[c]  # advantage.py:63
                chosen_12[c] = tl.Select(is_nan_7[c], f32(-0.0), product_8[c])  # advantage.py:63
                chosen_13[c] = tl.Select(exists_3[c], chosen_12[c], f32(-0.0))  # advantage.py:60
                sum_s_lane_6[c] = chosen_13[c]  # advantage.py:60
            sum_over_s_lane_2(sum_s_lane_6)  # advantage.py:60
            for c in tl.unroll(8):  # advantage.py:60
                s_18[c] = s_16[c] + sum_s_lane_6[c]  # advantage.py:60
                s_16[c] = s_18[c]  # advantage.py:60
        for c in tl.unroll(8):  # advantage.py:80
            difference_9[c] = s_4[c] - 1  # advantage.py:80
            larger_5[c] = tl.max(difference_9[c], tl.int32(1))  # advantage.py:80
            as_f32_2[c] = tl.Cast("float32", larger_5[c])  # advantage.py:80
            quotient_2[c] = s_16[c] / as_f32_2[c]  # advantage.py:75
            equal_7[c] = quotient_2[c] == f32(0.0)  # advantage.py:143
            rsqrt[c] = portable_rsqrt(quotient_2[c])  # advantage.py:97
            product_9[c] = quotient_2[c] * rsqrt[c]  # advantage.py:97
            total_8[c] = product_9[c] + eps_2  # advantage.py:87
            least_g_13[c] = full_steps[c]  # advantage.py:145
        least_over_g(least_g_13, i32_board, thread)  # advantage.py:145
        least_g_14 = least_g_13[0]  # advantage.py:145
        for s_step_7 in tl.serial(0, least_g_14):  # advantage.py:145
            product_10 = tl.alloc_var("int32", s_step_7 * 16)  # advantage.py:137
            for c in tl.unroll(8):  # advantage.py:137
                total_9[c] = as_i32[c] + product_10  # advantage.py:137
                s_19[c] = total_9[c] + s_lane  # advantage.py:137
                at_most_7[c] = 0 <= s_19[c]  # advantage.py:138
                below_11[c] = s_19[c] < N  # advantage.py:138
                both_12[c] = at_most_7[c] & below_11[c]  # advantage.py:138
                rewards_8[c] = tl.if_then_else(both_12[c] & g_inside[c], rewards[s_19[c]], tl.Cast("float32", 0))  # advantage.py:138
                difference_10[c] = rewards_8[c] - m_3[c]  # advantage.py:72
                difference_11[c] = difference_10[c] - quotient[c]  # advantage.py:72
                quotient_3[c] = difference_11[c] / total_8[c]  # advantage.py:143
                chosen_14[c] = tl.Select(equal_7[c], f32(0.0), quotient_3[c])  # advantage.py:143
                is_nan_8[c] = is_nan(rewards_8[c])  # advantage.py:144
                chosen_15[c] = tl.Select(is_nan_8[c], f32(0.0), chosen_14[c])  # advantage.py:144
                chosen_16[c] = tl.Select(either[c], f32(float("nan")), chosen_15[c])  # advantage.py:144
                if g_inside[c]:  # advantage.py:145
                    advantages[s_19[c]] = chosen_16[c]  # advantage.py:145
        for c in tl.unroll(8):  # advantage.py:145
            least_g_15[c] = full_steps[c]  # advantage.py:145
        least_over_g(least_g_15, i32_board, thread)  # advantage.py:145
        least_g_16 = least_g_15[0]  # advantage.py:145
        for c in tl.unroll(8):  # advantage.py:145
            most_g_7[c] = steps[c]  # advantage.py:145
        most_over_g(most_g_7, i32_board, thread)  # advantage.py:145
        most_g_8 = most_g_7[0]  # advantage.py:145
        for s_step_8 in tl.serial(least_g_16, most_g_8):  # advantage.py:145
            product_11 = tl.alloc_var("int32", s_step_8 * 16)  # advantage.py:137
            for c in tl.unroll(8):  # advantage.py:137
                total_10[c] = as_i32[c] + product_11  # advantage.py:137
                s_20[c] = total_10[c] + s_lane  # advantage.py:137
                exists_4[c] = s_20[c] < as_i32_2[c]  # advantage.py:137
                at_most_8[c] = 0 <= s_20[c]  # advantage.py:138
                below_12[c] = s_20[c] < N  # advantage.py:138
                both_13[c] = at_most_8[c] & below_12[c]  # advantage.py:138
                both_14[c] = exists_4[c] & both_13[c]  # advantage.py:138
                rewards_9[c] = tl.if_then_else(both_14[c] & g_inside[c], rewards[s_20[c]], tl.Cast("float32", 0))  # advantage.py:138
                difference_12[c] = rewards_9[c] - m_3[c]  # advantage.py:72
                difference_13[c] = difference_12[c] - quotient[c]  # advantage.py:72
                quotient_4[c] = difference_13[c] / total_8[c]  # advantage.py:143
                chosen_17[c] = tl.Select(equal_7[c], f32(0.0), quotient_4[c])  # advantage.py:143
                is_nan_9[c] = is_nan(rewards_9[c])  # advantage.py:144
                chosen_18[c] = tl.Select(is_nan_9[c], f32(0.0), chosen_17[c])  # advantage.py:144
                chosen_19[c] = tl.Select(either[c], f32(float("nan")), chosen_18[c])  # advantage.py:144
                if exists_4[c] & g_inside[c]:  # advantage.py:145
                    advantages[s_20[c]] = chosen_19[c]  # advantage.py:145


def call(kernels, rewards, bounds, advantages, eps, G, N, bounds_g_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((G + 63) // 64)
    if programs > 0:
        kernels.group_advantage((programs,), rewards, bounds, advantages, G, bounds_g_stride, N, errors, eps)
