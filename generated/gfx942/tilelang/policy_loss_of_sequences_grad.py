"""policy_loss_of_sequences_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: b36010a06a852012
schedule: tiles 1, 2 warps, 1 stages, unroll 1
schedule: tiles T=2048, 4 warps, 1 stages, unroll 1
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
def number_of(i):
    # As a float.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_exp(x):
    # e**x, with gradual underflow.
    y0 = tl.alloc_var("float32", smaller(x, f32(89.0)))
    y1 = tl.alloc_var("float32", larger(y0, f32(-104.0)))
    y2 = tl.alloc_var("float32", fma(y1, f32(1.44269504), f32(12582912.0)))
    y3 = tl.alloc_var("float32", y2 - f32(12582912.0))
    y4 = tl.alloc_var("float32", fma(y3, f32(-0.693147182), y1))
    y5 = tl.alloc_var("float32", fma(y3, f32(1.90465421e-09), y4))
    y6 = tl.alloc_var("float32", fma(f32(0.001381949), y5, f32(0.0083686905)))
    y7 = tl.alloc_var("float32", fma(y6, y5, f32(0.04166828)))
    y8 = tl.alloc_var("float32", fma(y7, y5, f32(0.16666521)))
    y9 = tl.alloc_var("float32", fma(y8, y5, f32(0.49999994)))
    y10 = tl.alloc_var("float32", fma(y9, y5, f32(1.0)))
    y11 = tl.alloc_var("float32", fma(y10, y5, f32(1.0)))
    i12 = tl.alloc_var("int32", bits_of(y2))
    i13 = tl.alloc_var("int32", i12 - tl.int32(1262485504))
    i14 = tl.alloc_var("int32", i13 >> 1)
    i15 = tl.alloc_var("int32", i14 << 23)
    i16 = tl.alloc_var("int32", i15 + tl.int32(1065353216))
    y17 = tl.alloc_var("float32", number_of(i16))
    i18 = tl.alloc_var("int32", i13 - i14)
    i19 = tl.alloc_var("int32", i18 << 23)
    i20 = tl.alloc_var("int32", i19 + tl.int32(1065353216))
    y21 = tl.alloc_var("float32", number_of(i20))
    y22 = tl.alloc_var("float32", y11 * y17)
    y23 = tl.alloc_var("float32", y22 * y21)
    y24 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y23, x))
    return y24


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return held(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def sum_over_q_lane(x, x_board, thread):
    # The sum over Q.lane, halving.
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_board[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_board[c, thread ^ 64])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def policy_loss_of_sequences_grad_1(advantages: memory("advantages", "float32"), order: memory("order", "int32"), active: memory("active", "bool"), begin: memory("begin", "int32"), end: memory("end", "int32"), ratio_of_sequence: memory("ratio_of_sequence", "float32"), weight_of_sequence: memory("weight_of_sequence", "float32"), slopes_of_sequence: memory("slopes_of_sequence", "float32"), S: tl.int32, T: tl.int32, B: tl.int32, surrogate_least: tl.float32, surrogate_most: tl.float32, programs: tl.int32):
    # A block owns 1 of B (rows). Q.lane: 1024 indices, 8 to each of 128 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_board = tl.alloc_shared((8, 128), "float32", "shared")
        q_lane = tl.alloc_local((8,), "int32")
        s = tl.alloc_var("float32")
        q = tl.alloc_local((8,), "int32")
        at_most = tl.alloc_local((8,), "bool")
        below = tl.alloc_local((8,), "bool")
        both = tl.alloc_local((8,), "bool")
        order_2 = tl.alloc_local((8,), "int32")
        at_most_2 = tl.alloc_local((8,), "bool")
        below_2 = tl.alloc_local((8,), "bool")
        both_2 = tl.alloc_local((8,), "bool")
        active_2 = tl.alloc_local((8,), "bool")
        chosen_3 = tl.alloc_local((8,), "float32")
        quotient = tl.alloc_local((8,), "float32")
        sum_q_lane = tl.alloc_local((8,), "float32")
        s_3 = tl.alloc_var("float32")
        q_2 = tl.alloc_local((8,), "int32")
        exists = tl.alloc_local((8,), "bool")
        at_most_3 = tl.alloc_local((8,), "bool")
        below_4 = tl.alloc_local((8,), "bool")
        both_4 = tl.alloc_local((8,), "bool")
        both_5 = tl.alloc_local((8,), "bool")
        order_3 = tl.alloc_local((8,), "int32")
        at_most_4 = tl.alloc_local((8,), "bool")
        below_5 = tl.alloc_local((8,), "bool")
        both_6 = tl.alloc_local((8,), "bool")
        both_7 = tl.alloc_local((8,), "bool")
        active_3 = tl.alloc_local((8,), "bool")
        chosen_6 = tl.alloc_local((8,), "float32")
        quotient_2 = tl.alloc_local((8,), "float32")
        chosen_7 = tl.alloc_local((8,), "float32")
        sum_q_lane_3 = tl.alloc_local((8,), "float32")
        b = block
        writes = thread == 0
        begin_2 = tl.alloc_var("int32", begin[b])  # policy.py:537
        end_2 = tl.alloc_var("int32", end[b])  # policy.py:537
        surrogate_least_2 = tl.alloc_var("float32", surrogate_least)
        surrogate_most_2 = tl.alloc_var("float32", surrogate_most)
        difference = tl.alloc_var("int32", end_2 - begin_2)  # policy.py:537
        total = tl.alloc_var("int32", difference + 1023)  # policy.py:537
        steps = tl.alloc_var("int32", tl.truncdiv(total, tl.int32(1024)))  # policy.py:537
        full_steps = tl.alloc_var("int32", tl.truncdiv(difference, tl.int32(1024)))  # policy.py:537
        for c in tl.unroll(8):  # policy.py:537
            q_lane[c] = thread + c * 128  # policy.py:537
        larger_2 = tl.alloc_var("int32", tl.max(difference, tl.int32(1)))  # policy.py:451
        as_f32 = tl.alloc_var("float32", tl.Cast("float32", larger_2))  # policy.py:451
        s = f32(-0.0)  # policy.py:537
        for q_step in tl.serial(0, full_steps):  # policy.py:537
            advantages_2 = tl.alloc_var("float32", advantages[b])  # policy.py:112
            ratio_of_sequence_2 = tl.alloc_var("float32", ratio_of_sequence[b])  # policy.py:112
            weight_of_sequence_2 = tl.alloc_var("float32", weight_of_sequence[b])  # policy.py:112
            product = tl.alloc_var("int32", q_step * 1024)  # policy.py:537
            total_2 = tl.alloc_var("int32", begin_2 + product)  # policy.py:537
            for c in tl.unroll(8):  # policy.py:537
                q[c] = total_2 + q_lane[c]  # policy.py:537
                at_most[c] = 0 <= q[c]  # policy.py:538
                below[c] = q[c] < S  # policy.py:538
                both[c] = at_most[c] & below[c]  # policy.py:538
                order_2[c] = tl.if_then_else(both[c], order[q[c]], tl.Cast("int32", 0))  # policy.py:538
                at_most_2[c] = 0 <= order_2[c]  # policy.py:106
                below_2[c] = order_2[c] < T  # policy.py:106
                both_2[c] = at_most_2[c] & below_2[c]  # policy.py:106
                active_2[c] = tl.if_then_else(both_2[c], active[order_2[c]], tl.Cast("bool", 0))  # policy.py:106
            exp = tl.alloc_var("float32", portable_exp(ratio_of_sequence_2))  # policy.py:316
            equal = tl.alloc_var("bool", advantages_2 == f32(0.0))  # policy.py:317
            chosen = tl.alloc_var("float32", tl.Select(equal, f32(1.0), exp))  # policy.py:317
            product_2 = tl.alloc_var("float32", chosen * advantages_2)  # surrogates.py:56
            negative = tl.alloc_var("float32", product_2 * f32(-1.0))  # surrogates.py:56
            larger_3 = tl.alloc_var("float32", larger(chosen, surrogate_least_2))  # surrogates.py:59
            smaller_2 = tl.alloc_var("float32", smaller(larger_3, surrogate_most_2))  # surrogates.py:61
            product_3 = tl.alloc_var("float32", smaller_2 * advantages_2)  # surrogates.py:62
            negative_2 = tl.alloc_var("float32", product_3 * f32(-1.0))  # surrogates.py:62
            below_3 = tl.alloc_var("bool", negative < negative_2)  # surrogates.py:65
            unless = tl.alloc_var("bool", tl.Not(below_3))  # surrogates.py:65
            differs = tl.alloc_var("bool", advantages_2 != f32(0.0))  # surrogates.py:72
            both_3 = tl.alloc_var("bool", unless & differs)  # surrogates.py:72
            chosen_2 = tl.alloc_var("float32", tl.Select(both_3, negative, f32(0.0)))  # surrogates.py:72
            product_4 = tl.alloc_var("float32", weight_of_sequence_2 * chosen_2)  # policy.py:367
            for c in tl.unroll(8):  # policy.py:540
                chosen_3[c] = tl.Select(active_2[c], product_4, f32(-0.0))  # policy.py:540
                quotient[c] = chosen_3[c] / as_f32  # policy.py:456
                sum_q_lane[c] = quotient[c]  # policy.py:537
            sum_over_q_lane(sum_q_lane, f32_board, thread)  # policy.py:537
            sum_q_lane_2 = sum_q_lane[0]  # policy.py:537
            s_2 = tl.alloc_var("float32", s + sum_q_lane_2)  # policy.py:537
            s = s_2  # policy.py:537
        s_3 = s  # policy.py:537
        for q_step_2 in tl.serial(full_steps, steps):  # policy.py:537
            advantages_3 = tl.alloc_var("float32", advantages[b])  # policy.py:112
            ratio_of_sequence_3 = tl.alloc_var("float32", ratio_of_sequence[b])  # policy.py:112
            weight_of_sequence_3 = tl.alloc_var("float32", weight_of_sequence[b])  # policy.py:112
            product_5 = tl.alloc_var("int32", q_step_2 * 1024)  # policy.py:537
            total_3 = tl.alloc_var("int32", begin_2 + product_5)  # policy.py:537
            for c in tl.unroll(8):  # policy.py:537
                q_2[c] = total_3 + q_lane[c]  # policy.py:537
                exists[c] = q_2[c] < end_2  # policy.py:537
                at_most_3[c] = 0 <= q_2[c]  # policy.py:538
                below_4[c] = q_2[c] < S  # policy.py:538
                both_4[c] = at_most_3[c] & below_4[c]  # policy.py:538
                both_5[c] = exists[c] & both_4[c]  # policy.py:538
                order_3[c] = tl.if_then_else(both_5[c], order[q_2[c]], tl.Cast("int32", 0))  # policy.py:538
                at_most_4[c] = 0 <= order_3[c]  # policy.py:106
                below_5[c] = order_3[c] < T  # policy.py:106
                both_6[c] = at_most_4[c] & below_5[c]  # policy.py:106
                both_7[c] = exists[c] & both_6[c]  # policy.py:106
                active_3[c] = tl.if_then_else(both_7[c], active[order_3[c]], tl.Cast("bool", 0))  # policy.py:106
            exp_2 = tl.alloc_var("float32", portable_exp(ratio_of_sequence_3))  # policy.py:316
            equal_2 = tl.alloc_var("bool", advantages_3 == f32(0.0))  # policy.py:317
            chosen_4 = tl.alloc_var("float32", tl.Select(equal_2, f32(1.0), exp_2))  # policy.py:317
            product_6 = tl.alloc_var("float32", chosen_4 * advantages_3)  # surrogates.py:56
            negative_3 = tl.alloc_var("float32", product_6 * f32(-1.0))  # surrogates.py:56
            larger_4 = tl.alloc_var("float32", larger(chosen_4, surrogate_least_2))  # surrogates.py:59
            smaller_3 = tl.alloc_var("float32", smaller(larger_4, surrogate_most_2))  # surrogates.py:61
            product_7 = tl.alloc_var("float32", smaller_3 * advantages_3)  # surrogates.py:62
            negative_4 = tl.alloc_var("float32", product_7 * f32(-1.0))  # surrogates.py:62
            below_6 = tl.alloc_var("bool", negative_3 < negative_4)  # surrogates.py:65
            unless_2 = tl.alloc_var("bool", tl.Not(below_6))  # surrogates.py:65
            differs_2 = tl.alloc_var("bool", advantages_3 != f32(0.0))  # surrogates.py:72
            both_8 = tl.alloc_var("bool", unless_2 & differs_2)  # surrogates.py:72
            chosen_5 = tl.alloc_var("float32", tl.Select(both_8, negative_3, f32(0.0)))  # surrogates.py:72
            product_8 = tl.alloc_var("float32", weight_of_sequence_3 * chosen_5)  # policy.py:367
            for c in tl.unroll(8):  # policy.py:540
                chosen_6[c] = tl.Select(active_3[c], product_8, f32(-0.0))  # policy.py:540
                quotient_2[c] = chosen_6[c] / as_f32  # policy.py:456
                chosen_7[c] = tl.Select(exists[c], quotient_2[c], f32(-0.0))  # policy.py:537
                sum_q_lane_3[c] = chosen_7[c]  # policy.py:537
            sum_over_q_lane(sum_q_lane_3, f32_board, thread)  # policy.py:537
            sum_q_lane_4 = sum_q_lane_3[0]  # policy.py:537
            s_4 = tl.alloc_var("float32", s_3 + sum_q_lane_4)  # policy.py:537
            s_3 = s_4  # policy.py:537
        total_4 = tl.alloc_var("float32", s_3 + f32(0.0))  # policy.py:542
        if writes:  # policy.py:542
            slopes_of_sequence[b] = total_4  # policy.py:542


@tl.prim_func
def policy_loss_of_sequences_grad_2(active: memory("active", "bool"), sequence: memory("sequence", "int32"), begin: memory("begin", "int32"), end: memory("end", "int32"), sequences: memory("sequences", "int32"), d_loss: memory("d_loss", "float32"), slopes_of_sequence: memory("slopes_of_sequence", "float32"), d_logp: memory("d_logp", "float32"), T: tl.int32, B: tl.int32, programs: tl.int32):
    # A block owns 2048 of T (rows). T: 2048 indices, 8 to each of 256 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        active_2 = tl.alloc_local((8,), "bool")
        sequence_2 = tl.alloc_local((8,), "int32")
        at_most = tl.alloc_local((8,), "bool")
        below = tl.alloc_local((8,), "bool")
        both = tl.alloc_local((8,), "bool")
        end_2 = tl.alloc_local((8,), "int32")
        begin_2 = tl.alloc_local((8,), "int32")
        slopes_of_sequence_2 = tl.alloc_local((8,), "float32")
        difference = tl.alloc_local((8,), "int32")
        larger_3 = tl.alloc_local((8,), "int32")
        as_f32_2 = tl.alloc_local((8,), "float32")
        quotient_2 = tl.alloc_local((8,), "float32")
        product = tl.alloc_local((8,), "float32")
        chosen = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            t[c] = block * 2048 + thread + c * 256
            t_inside[c] = t[c] < T
        d_loss_2 = tl.alloc_var("float32", d_loss[0])  # policy.py:579
        sequences_2 = tl.alloc_var("int32", sequences[0])  # policy.py:468
        for c in tl.unroll(8):  # policy.py:106
            active_2[c] = tl.if_then_else(t_inside[c], active[t[c]], tl.Cast("bool", 0))  # policy.py:106
            sequence_2[c] = tl.if_then_else(t_inside[c], sequence[t[c]], tl.Cast("int32", 0))  # policy.py:106
            at_most[c] = 0 <= sequence_2[c]  # policy.py:112
            below[c] = sequence_2[c] < B  # policy.py:112
            both[c] = at_most[c] & below[c]  # policy.py:112
            end_2[c] = tl.if_then_else(both[c] & t_inside[c], end[sequence_2[c]], tl.Cast("int32", 0))  # policy.py:112
            begin_2[c] = tl.if_then_else(both[c] & t_inside[c], begin[sequence_2[c]], tl.Cast("int32", 0))  # policy.py:112
        larger_2 = tl.alloc_var("int32", tl.max(sequences_2, tl.int32(1)))  # policy.py:468
        as_f32 = tl.alloc_var("float32", tl.Cast("float32", larger_2))  # policy.py:468
        quotient = tl.alloc_var("float32", d_loss_2 / as_f32)  # policy.py:473
        for c in tl.unroll(8):  # policy.py:112
            slopes_of_sequence_2[c] = tl.if_then_else(both[c] & t_inside[c], slopes_of_sequence[sequence_2[c]], tl.Cast("float32", 0))  # policy.py:112
            difference[c] = end_2[c] - begin_2[c]  # policy.py:450
            larger_3[c] = tl.max(difference[c], tl.int32(1))  # policy.py:451
            as_f32_2[c] = tl.Cast("float32", larger_3[c])  # policy.py:451
            quotient_2[c] = slopes_of_sequence_2[c] / as_f32_2[c]  # policy.py:546
            product[c] = quotient * quotient_2[c]  # policy.py:553
            chosen[c] = tl.Select(active_2[c], product[c], f32(0.0))  # policy.py:513
            if t_inside[c]:  # policy.py:515
                d_logp[t[c]] = chosen[c]  # policy.py:515


def call(kernels, advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, sequence, sequences, d_loss, d_logp, surrogate_least, surrogate_most, S, T, B):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = B
    if programs > 0:
        kernels.policy_loss_of_sequences_grad_1((programs,), advantages, order, active, begin, end, ratio_of_sequence, weight_of_sequence, slopes_of_sequence, S, T, B, surrogate_least, surrogate_most)
    programs = ((T + 2047) // 2048)
    if programs > 0:
        kernels.policy_loss_of_sequences_grad_2((programs,), active, sequence, begin, end, sequences, d_loss, slopes_of_sequence, d_logp, T, B)
