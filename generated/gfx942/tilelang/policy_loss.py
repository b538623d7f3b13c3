"""policy_loss on gfx942, written by rlk 0.1.0: do not edit.

numerics: 519059d5f751f6a3
schedule: tiles 1, 2 warps, 1 stages, unroll 1
schedule: tiles 1, 8 warps, 1 stages, unroll 1
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
def portable_k3(x):
    # e**d - 1 - d, accurate everywhere: the k3 estimate of a KL divergence; never negative.
    y0 = tl.alloc_var("float32", smaller(x, f32(89.0)))
    y1 = tl.alloc_var("float32", larger(y0, f32(-40.0)))
    y2 = tl.alloc_var("float32", fma(y1, f32(1.44269504), f32(12582912.0)))
    i3 = tl.alloc_var("int32", bits_of(x))
    i4 = tl.alloc_var("int32", i3 & tl.int32(2147483647))
    y5 = tl.alloc_var("float32", number_of(i4))
    y6 = tl.alloc_var("float32", tl.Select(y5 < f32(0.75), f32(12582912.0), y2))
    y7 = tl.alloc_var("float32", y6 - f32(12582912.0))
    y8 = tl.alloc_var("float32", fma(y7, f32(-0.693147182), y1))
    y9 = tl.alloc_var("float32", fma(y7, f32(1.90465421e-09), y8))
    y10 = tl.alloc_var("float32", y9 * y9)
    y11 = tl.alloc_var("float32", fma(f32(2.6118526e-06), y9, f32(2.5040988e-05)))
    y12 = tl.alloc_var("float32", fma(y11, y9, f32(0.00019858872)))
    y13 = tl.alloc_var("float32", fma(y12, y9, f32(0.0013888375)))
    y14 = tl.alloc_var("float32", fma(y13, y9, f32(0.008333275)))
    y15 = tl.alloc_var("float32", fma(y14, y9, f32(0.041666668)))
    y16 = tl.alloc_var("float32", fma(y15, y9, f32(0.16666667)))
    y17 = tl.alloc_var("float32", y9 * y16)
    y18 = tl.alloc_var("float32", y10 * f32(0.5))
    y19 = tl.alloc_var("float32", fma(y10, y17, y18))
    i20 = tl.alloc_var("int32", bits_of(y6))
    i21 = tl.alloc_var("int32", i20 << 23)
    i22 = tl.alloc_var("int32", i21 + tl.int32(1056964608))
    y23 = tl.alloc_var("float32", number_of(i22))
    y24 = tl.alloc_var("float32", y23 - f32(0.5))
    y25 = tl.alloc_var("float32", fma(y0, f32(-0.5), y24))
    y26 = tl.alloc_var("float32", fma(y23, y9, y25))
    y27 = tl.alloc_var("float32", fma(y23, y19, y26))
    y28 = tl.alloc_var("float32", y27 + y27)
    y29 = tl.alloc_var("float32", tl.Select(y5 < f32(0.75), y19, y28))
    y30 = tl.alloc_var("float32", tl.Select(tl.Not(is_nan(x)), y29, x))
    return y30


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return held(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def sum_over_s_lane(x, x_reduce_smem, thread):
    # The sum over S.lane, halving.
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
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


@tl.macro
def sum_over_s_lane_2(x, x_reduce_smem, thread):
    # The sum over S.lane, in any order.
    for c in tl.unroll(4):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def sum_over_s_piece_lane(x, x_reduce_smem, thread):
    # The sum over S_piece.lane, halving.
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 256])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
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


@tl.macro
def sum_over_s_piece_lane_2(x, x_reduce_smem, thread):
    # The sum over S_piece.lane, in any order.
    for c in tl.unroll(4):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 128])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 256])


@tl.prim_func
def policy_loss_1(
    logp: memory("logp", "float32"), old_logp: memory("old_logp", "float32"),
    advantages: memory("advantages", "float32"), ref_logp: memory("ref_logp", "float32"),
    order: memory("order", "int32"), active: memory("active", "bool"), sequence: memory("sequence", "int32"),
    per_token: memory("per_token", "float32"), sum_of_piece: memory("sum_of_piece", "float32"),
    sum_of_piece1: memory("sum_of_piece1", "int32"), sum_of_piece2: memory("sum_of_piece2", "int32"),
    sum_of_piece3: memory("sum_of_piece3", "float32"), S: tl.int32, T: tl.int32, B: tl.int32, beta: tl.float32,
    surrogate_least: tl.float32, surrogate_most: tl.float32, programs: tl.int32
):
    # A block owns 1 of S.piece (rows). S.lane: 1024 indices, 8 to each of 128 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        i32_reduce_smem = tl.alloc_shared((8, 128), "int32", "shared")
        s_lane = tl.alloc_local((8,), "int32")
        s = tl.alloc_var("float32")
        s_2 = tl.alloc_var("int32")
        s_3 = tl.alloc_var("int32")
        s_4 = tl.alloc_var("float32")
        s_5 = tl.alloc_local((8,), "int32")
        order_2 = tl.alloc_local((8,), "int32")
        at_most = tl.alloc_local((8,), "bool")
        below = tl.alloc_local((8,), "bool")
        both = tl.alloc_local((8,), "bool")
        active_2 = tl.alloc_local((8,), "bool")
        sequence_2 = tl.alloc_local((8,), "int32")
        at_most_2 = tl.alloc_local((8,), "bool")
        below_2 = tl.alloc_local((8,), "bool")
        both_2 = tl.alloc_local((8,), "bool")
        advantages_2 = tl.alloc_local((8,), "float32")
        logp_2 = tl.alloc_local((8,), "float32")
        old_logp_2 = tl.alloc_local((8,), "float32")
        ref_logp_2 = tl.alloc_local((8,), "float32")
        difference_2 = tl.alloc_local((8,), "float32")
        exp = tl.alloc_local((8,), "float32")
        equal = tl.alloc_local((8,), "bool")
        chosen = tl.alloc_local((8,), "float32")
        product_3 = tl.alloc_local((8,), "float32")
        negative = tl.alloc_local((8,), "float32")
        larger_2 = tl.alloc_local((8,), "float32")
        smaller_2 = tl.alloc_local((8,), "float32")
        product_4 = tl.alloc_local((8,), "float32")
        negative_2 = tl.alloc_local((8,), "float32")
        below_3 = tl.alloc_local((8,), "bool")
        unless = tl.alloc_local((8,), "bool")
        chosen_2 = tl.alloc_local((8,), "float32")
        unless_2 = tl.alloc_local((8,), "bool")
        difference_3 = tl.alloc_local((8,), "float32")
        k3 = tl.alloc_local((8,), "float32")
        product_5 = tl.alloc_local((8,), "float32")
        total_4 = tl.alloc_local((8,), "float32")
        chosen_3 = tl.alloc_local((8,), "float32")
        chosen_4 = tl.alloc_local((8,), "float32")
        as_i32 = tl.alloc_local((8,), "int32")
        both_3 = tl.alloc_local((8,), "bool")
        as_i32_2 = tl.alloc_local((8,), "int32")
        negative_3 = tl.alloc_local((8,), "float32")
        k3_2 = tl.alloc_local((8,), "float32")
        chosen_5 = tl.alloc_local((8,), "float32")
        sum_s_lane = tl.alloc_local((8,), "float32")
        sum_s_lane_3 = tl.alloc_local((8,), "int32")
        sum_s_lane_5 = tl.alloc_local((8,), "int32")
        sum_s_lane_7 = tl.alloc_local((8,), "float32")
        s_10 = tl.alloc_var("float32")
        s_11 = tl.alloc_var("int32")
        s_12 = tl.alloc_var("int32")
        s_13 = tl.alloc_var("float32")
        s_14 = tl.alloc_local((8,), "int32")
        exists = tl.alloc_local((8,), "bool")
        order_3 = tl.alloc_local((8,), "int32")
        at_most_3 = tl.alloc_local((8,), "bool")
        below_4 = tl.alloc_local((8,), "bool")
        both_4 = tl.alloc_local((8,), "bool")
        both_5 = tl.alloc_local((8,), "bool")
        active_3 = tl.alloc_local((8,), "bool")
        sequence_3 = tl.alloc_local((8,), "int32")
        at_most_4 = tl.alloc_local((8,), "bool")
        below_5 = tl.alloc_local((8,), "bool")
        both_6 = tl.alloc_local((8,), "bool")
        both_7 = tl.alloc_local((8,), "bool")
        advantages_3 = tl.alloc_local((8,), "float32")
        logp_3 = tl.alloc_local((8,), "float32")
        old_logp_3 = tl.alloc_local((8,), "float32")
        ref_logp_3 = tl.alloc_local((8,), "float32")
        difference_4 = tl.alloc_local((8,), "float32")
        exp_2 = tl.alloc_local((8,), "float32")
        equal_2 = tl.alloc_local((8,), "bool")
        chosen_6 = tl.alloc_local((8,), "float32")
        product_7 = tl.alloc_local((8,), "float32")
        negative_4 = tl.alloc_local((8,), "float32")
        larger_3 = tl.alloc_local((8,), "float32")
        smaller_3 = tl.alloc_local((8,), "float32")
        product_8 = tl.alloc_local((8,), "float32")
        negative_5 = tl.alloc_local((8,), "float32")
        below_6 = tl.alloc_local((8,), "bool")
        unless_3 = tl.alloc_local((8,), "bool")
        chosen_7 = tl.alloc_local((8,), "float32")
        unless_4 = tl.alloc_local((8,), "bool")
        difference_5 = tl.alloc_local((8,), "float32")
        k3_3 = tl.alloc_local((8,), "float32")
        product_9 = tl.alloc_local((8,), "float32")
        total_6 = tl.alloc_local((8,), "float32")
        chosen_8 = tl.alloc_local((8,), "float32")
        chosen_9 = tl.alloc_local((8,), "float32")
        as_i32_3 = tl.alloc_local((8,), "int32")
        both_8 = tl.alloc_local((8,), "bool")
        as_i32_4 = tl.alloc_local((8,), "int32")
        negative_6 = tl.alloc_local((8,), "float32")
        k3_4 = tl.alloc_local((8,), "float32")
        chosen_10 = tl.alloc_local((8,), "float32")
        chosen_11 = tl.alloc_local((8,), "float32")
        sum_s_lane_9 = tl.alloc_local((8,), "float32")
        chosen_12 = tl.alloc_local((8,), "int32")
        sum_s_lane_11 = tl.alloc_local((8,), "int32")
        chosen_13 = tl.alloc_local((8,), "int32")
        sum_s_lane_13 = tl.alloc_local((8,), "int32")
        chosen_14 = tl.alloc_local((8,), "float32")
        sum_s_lane_15 = tl.alloc_local((8,), "float32")
        s_piece = block
        writes = thread == 0
        beta_2 = tl.alloc_var("float32", beta)
        surrogate_least_2 = tl.alloc_var("float32", surrogate_least)
        surrogate_most_2 = tl.alloc_var("float32", surrogate_most)
        product = tl.alloc_var("int32", s_piece * 1024)  # loss.py:79
        piece_begin = tl.alloc_var("int32", tl.min(S, product))
        total = tl.alloc_var("int32", piece_begin + 1024)
        piece_end = tl.alloc_var("int32", tl.min(S, total))
        difference = tl.alloc_var("int32", piece_end - piece_begin)
        total_2 = tl.alloc_var("int32", difference + 1023)
        steps = tl.alloc_var("int32", tl.truncdiv(total_2, tl.int32(1024)))
        full_steps = tl.alloc_var("int32", tl.truncdiv(difference, tl.int32(1024)))
        for c in tl.unroll(8):
            s_lane[c] = thread + c * 128
        s = f32(-0.0)
        s_2 = tl.int32(0)
        s_3 = tl.int32(0)
        s_4 = f32(-0.0)
        for s_step in tl.serial(0, full_steps):
            product_2 = tl.alloc_var("int32", s_step * 1024)
            total_3 = tl.alloc_var("int32", piece_begin + product_2)
            for c in tl.unroll(8):
                s_5[c] = total_3 + s_lane[c]
                order_2[c] = order[s_5[c]]  # loss.py:80
                at_most[c] = 0 <= order_2[c]  # policy.py:140
                below[c] = order_2[c] < T
                both[c] = at_most[c] & below[c]
                active_2[c] = tl.if_then_else(both[c], active[order_2[c]], tl.Cast("bool", 0))
                sequence_2[c] = tl.if_then_else(both[c], sequence[order_2[c]], tl.Cast("int32", 0))
                at_most_2[c] = 0 <= sequence_2[c]  # policy.py:146
                below_2[c] = sequence_2[c] < B
                both_2[c] = at_most_2[c] & below_2[c]
                advantages_2[c] = tl.if_then_else(both_2[c], advantages[sequence_2[c]], tl.Cast("float32", 0))
                logp_2[c] = tl.if_then_else(both[c], logp[order_2[c]], tl.Cast("float32", 0))  # policy.py:140
                old_logp_2[c] = tl.if_then_else(both[c], old_logp[order_2[c]], tl.Cast("float32", 0))
                ref_logp_2[c] = tl.if_then_else(both[c], ref_logp[order_2[c]], tl.Cast("float32", 0))
                difference_2[c] = logp_2[c] - old_logp_2[c]  # policy.py:191
                exp[c] = portable_exp(difference_2[c])  # policy.py:369
                equal[c] = advantages_2[c] == f32(0.0)  # policy.py:371
                chosen[c] = tl.Select(equal[c], f32(1.0), exp[c])
                product_3[c] = chosen[c] * advantages_2[c]  # surrogates.py:58
                negative[c] = product_3[c] * f32(-1.0)
                larger_2[c] = larger(chosen[c], surrogate_least_2)  # surrogates.py:61
                smaller_2[c] = smaller(larger_2[c], surrogate_most_2)  # surrogates.py:63
                product_4[c] = smaller_2[c] * advantages_2[c]  # surrogates.py:64
                negative_2[c] = product_4[c] * f32(-1.0)
                below_3[c] = negative[c] < negative_2[c]  # surrogates.py:67
                unless[c] = tl.Not(below_3[c])
                chosen_2[c] = tl.Select(unless[c], negative[c], negative_2[c])  # surrogates.py:68
                unless_2[c] = tl.Not(unless[c])  # surrogates.py:77
                difference_3[c] = ref_logp_2[c] - logp_2[c]  # policy.py:331
                k3[c] = portable_k3(difference_3[c])  # loss.py:23
                product_5[c] = beta_2 * k3[c]  # policy.py:386
                total_4[c] = chosen_2[c] + product_5[c]
                chosen_3[c] = tl.Select(active_2[c], total_4[c], f32(0.0))  # policy.py:499
                per_token[order_2[c]] = chosen_3[c]
                chosen_4[c] = tl.Select(active_2[c], total_4[c], f32(-0.0))  # policy.py:500
                as_i32[c] = tl.Cast("int32", active_2[c])
                both_3[c] = active_2[c] & unless_2[c]  # policy.py:517
                as_i32_2[c] = tl.Cast("int32", both_3[c])
                negative_3[c] = difference_2[c] * f32(-1.0)  # policy.py:519
                k3_2[c] = portable_k3(negative_3[c])
                chosen_5[c] = tl.Select(active_2[c], k3_2[c], f32(-0.0))
                sum_s_lane[c] = chosen_4[c]  # loss.py:79
            sum_over_s_lane(sum_s_lane, f32_reduce_smem, thread)
            sum_s_lane_2 = sum_s_lane[0]
            for c in tl.unroll(8):
                sum_s_lane_3[c] = as_i32[c]
            sum_over_s_lane_2(sum_s_lane_3, i32_reduce_smem, thread)
            sum_s_lane_4 = sum_s_lane_3[0]
            for c in tl.unroll(8):
                sum_s_lane_5[c] = as_i32_2[c]
            sum_over_s_lane_2(sum_s_lane_5, i32_reduce_smem, thread)
            sum_s_lane_6 = sum_s_lane_5[0]
            for c in tl.unroll(8):
                sum_s_lane_7[c] = chosen_5[c]
            sum_over_s_lane(sum_s_lane_7, f32_reduce_smem, thread)
            sum_s_lane_8 = sum_s_lane_7[0]
            s_6 = tl.alloc_var("float32", s + sum_s_lane_2)
            s_7 = tl.alloc_var("int32", s_2 + sum_s_lane_4)
            s_8 = tl.alloc_var("int32", s_3 + sum_s_lane_6)
            s_9 = tl.alloc_var("float32", s_4 + sum_s_lane_8)
            s = s_6
            s_2 = s_7
            s_3 = s_8
            s_4 = s_9
        s_10 = s
        s_11 = s_2
        s_12 = s_3
        s_13 = s_4
        for s_step_2 in tl.serial(full_steps, steps):
            product_6 = tl.alloc_var("int32", s_step_2 * 1024)
            total_5 = tl.alloc_var("int32", piece_begin + product_6)
            for c in tl.unroll(8):
                s_14[c] = total_5 + s_lane[c]
                exists[c] = s_14[c] < piece_end
                order_3[c] = tl.if_then_else(exists[c], order[s_14[c]], tl.Cast("int32", 0))  # loss.py:80
                at_most_3[c] = 0 <= order_3[c]  # policy.py:140
                below_4[c] = order_3[c] < T
                both_4[c] = at_most_3[c] & below_4[c]
                both_5[c] = exists[c] & both_4[c]
                active_3[c] = tl.if_then_else(both_5[c], active[order_3[c]], tl.Cast("bool", 0))
                sequence_3[c] = tl.if_then_else(both_5[c], sequence[order_3[c]], tl.Cast("int32", 0))
                at_most_4[c] = 0 <= sequence_3[c]  # policy.py:146
                below_5[c] = sequence_3[c] < B
                both_6[c] = at_most_4[c] & below_5[c]
                both_7[c] = exists[c] & both_6[c]
                advantages_3[c] = tl.if_then_else(both_7[c], advantages[sequence_3[c]], tl.Cast("float32", 0))
                logp_3[c] = tl.if_then_else(both_5[c], logp[order_3[c]], tl.Cast("float32", 0))  # policy.py:140
                old_logp_3[c] = tl.if_then_else(both_5[c], old_logp[order_3[c]], tl.Cast("float32", 0))
                ref_logp_3[c] = tl.if_then_else(both_5[c], ref_logp[order_3[c]], tl.Cast("float32", 0))
                difference_4[c] = logp_3[c] - old_logp_3[c]  # policy.py:191
                exp_2[c] = portable_exp(difference_4[c])  # policy.py:369
                equal_2[c] = advantages_3[c] == f32(0.0)  # policy.py:371
                chosen_6[c] = tl.Select(equal_2[c], f32(1.0), exp_2[c])
                product_7[c] = chosen_6[c] * advantages_3[c]  # surrogates.py:58
                negative_4[c] = product_7[c] * f32(-1.0)
                larger_3[c] = larger(chosen_6[c], surrogate_least_2)  # surrogates.py:61
                smaller_3[c] = smaller(larger_3[c], surrogate_most_2)  # surrogates.py:63
                product_8[c] = smaller_3[c] * advantages_3[c]  # surrogates.py:64
                negative_5[c] = product_8[c] * f32(-1.0)
                below_6[c] = negative_4[c] < negative_5[c]  # surrogates.py:67
                unless_3[c] = tl.Not(below_6[c])
                chosen_7[c] = tl.Select(unless_3[c], negative_4[c], negative_5[c])  # surrogates.py:68
                unless_4[c] = tl.Not(unless_3[c])  # surrogates.py:77
                difference_5[c] = ref_logp_3[c] - logp_3[c]  # policy.py:331
                k3_3[c] = portable_k3(difference_5[c])  # loss.py:23
                product_9[c] = beta_2 * k3_3[c]  # policy.py:386
                total_6[c] = chosen_7[c] + product_9[c]
                chosen_8[c] = tl.Select(active_3[c], total_6[c], f32(0.0))  # policy.py:499
                if exists[c]:
                    per_token[order_3[c]] = chosen_8[c]
                chosen_9[c] = tl.Select(active_3[c], total_6[c], f32(-0.0))  # policy.py:500
                as_i32_3[c] = tl.Cast("int32", active_3[c])
                both_8[c] = active_3[c] & unless_4[c]  # policy.py:517
                as_i32_4[c] = tl.Cast("int32", both_8[c])
                negative_6[c] = difference_4[c] * f32(-1.0)  # policy.py:519
                k3_4[c] = portable_k3(negative_6[c])
                chosen_10[c] = tl.Select(active_3[c], k3_4[c], f32(-0.0))
                chosen_11[c] = tl.Select(exists[c], chosen_9[c], f32(-0.0))  # loss.py:79
                sum_s_lane_9[c] = chosen_11[c]
            sum_over_s_lane(sum_s_lane_9, f32_reduce_smem, thread)
            sum_s_lane_10 = sum_s_lane_9[0]
            for c in tl.unroll(8):
                chosen_12[c] = tl.Select(exists[c], as_i32_3[c], tl.int32(0))
                sum_s_lane_11[c] = chosen_12[c]
            sum_over_s_lane_2(sum_s_lane_11, i32_reduce_smem, thread)
            sum_s_lane_12 = sum_s_lane_11[0]
            for c in tl.unroll(8):
                chosen_13[c] = tl.Select(exists[c], as_i32_4[c], tl.int32(0))
                sum_s_lane_13[c] = chosen_13[c]
            sum_over_s_lane_2(sum_s_lane_13, i32_reduce_smem, thread)
            sum_s_lane_14 = sum_s_lane_13[0]
            for c in tl.unroll(8):
                chosen_14[c] = tl.Select(exists[c], chosen_10[c], f32(-0.0))
                sum_s_lane_15[c] = chosen_14[c]
            sum_over_s_lane(sum_s_lane_15, f32_reduce_smem, thread)
            sum_s_lane_16 = sum_s_lane_15[0]
            s_15 = tl.alloc_var("float32", s_10 + sum_s_lane_10)
            s_16 = tl.alloc_var("int32", s_11 + sum_s_lane_12)
            s_17 = tl.alloc_var("int32", s_12 + sum_s_lane_14)
            s_18 = tl.alloc_var("float32", s_13 + sum_s_lane_16)
            s_10 = s_15
            s_11 = s_16
            s_12 = s_17
            s_13 = s_18
        if writes:
            sum_of_piece[s_piece] = s_10
        if writes:
            sum_of_piece1[s_piece] = s_11
        if writes:
            sum_of_piece2[s_piece] = s_12
        if writes:
            sum_of_piece3[s_piece] = s_13


@tl.prim_func
def policy_loss_2(
    loss: memory("loss", "float32"), count: memory("count", "int32"), clip_fraction: memory("clip_fraction", "float32"),
    approx_kl: memory("approx_kl", "float32"), sum_of_piece: memory("sum_of_piece", "float32"),
    sum_of_piece1: memory("sum_of_piece1", "int32"), sum_of_piece2: memory("sum_of_piece2", "int32"),
    sum_of_piece3: memory("sum_of_piece3", "float32"), S: tl.int32, programs: tl.int32
):
    # A block owns everything (rows). S_piece.lane: 4096 indices, 8 to each of 512 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 512), "float32", "shared")
        i32_reduce_smem = tl.alloc_shared((8, 512), "int32", "shared")
        s_piece_lane = tl.alloc_local((8,), "int32")
        s = tl.alloc_var("float32")
        s_2 = tl.alloc_var("int32")
        s_3 = tl.alloc_var("int32")
        s_4 = tl.alloc_var("float32")
        s_piece = tl.alloc_local((8,), "int32")
        sum_of_piece_2 = tl.alloc_local((8,), "float32")
        sum_of_piece1_2 = tl.alloc_local((8,), "int32")
        sum_of_piece2_2 = tl.alloc_local((8,), "int32")
        sum_of_piece3_2 = tl.alloc_local((8,), "float32")
        sum_s_piece_lane = tl.alloc_local((8,), "float32")
        sum_s_piece_lane_3 = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_5 = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_7 = tl.alloc_local((8,), "float32")
        s_9 = tl.alloc_var("float32")
        s_10 = tl.alloc_var("int32")
        s_11 = tl.alloc_var("int32")
        s_12 = tl.alloc_var("float32")
        s_piece_2 = tl.alloc_local((8,), "int32")
        exists = tl.alloc_local((8,), "bool")
        sum_of_piece_3 = tl.alloc_local((8,), "float32")
        sum_of_piece1_3 = tl.alloc_local((8,), "int32")
        sum_of_piece2_3 = tl.alloc_local((8,), "int32")
        sum_of_piece3_3 = tl.alloc_local((8,), "float32")
        chosen = tl.alloc_local((8,), "float32")
        sum_s_piece_lane_9 = tl.alloc_local((8,), "float32")
        chosen_2 = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_11 = tl.alloc_local((8,), "int32")
        chosen_3 = tl.alloc_local((8,), "int32")
        sum_s_piece_lane_13 = tl.alloc_local((8,), "int32")
        chosen_4 = tl.alloc_local((8,), "float32")
        sum_s_piece_lane_15 = tl.alloc_local((8,), "float32")
        writes = thread == 0
        total = tl.alloc_var("int32", ((S + 1023) // 1024) + 4095)  # loss.py:79
        steps = tl.alloc_var("int32", tl.truncdiv(total, tl.int32(4096)))
        full_steps = tl.alloc_var("int32", tl.truncdiv(((S + 1023) // 1024), tl.int32(4096)))
        for c in tl.unroll(8):
            s_piece_lane[c] = thread + c * 512
        s = f32(-0.0)
        s_2 = tl.int32(0)
        s_3 = tl.int32(0)
        s_4 = f32(-0.0)
        for s_piece_step in tl.serial(0, full_steps):
            product = tl.alloc_var("int32", s_piece_step * 4096)
            for c in tl.unroll(8):
                s_piece[c] = product + s_piece_lane[c]
                sum_of_piece_2[c] = sum_of_piece[s_piece[c]]
                sum_of_piece1_2[c] = sum_of_piece1[s_piece[c]]
                sum_of_piece2_2[c] = sum_of_piece2[s_piece[c]]
                sum_of_piece3_2[c] = sum_of_piece3[s_piece[c]]
                sum_s_piece_lane[c] = sum_of_piece_2[c]
            sum_over_s_piece_lane(sum_s_piece_lane, f32_reduce_smem, thread)
            sum_s_piece_lane_2 = sum_s_piece_lane[0]
            for c in tl.unroll(8):
                sum_s_piece_lane_3[c] = sum_of_piece1_2[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_3, i32_reduce_smem, thread)
            sum_s_piece_lane_4 = sum_s_piece_lane_3[0]
            for c in tl.unroll(8):
                sum_s_piece_lane_5[c] = sum_of_piece2_2[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_5, i32_reduce_smem, thread)
            sum_s_piece_lane_6 = sum_s_piece_lane_5[0]
            for c in tl.unroll(8):
                sum_s_piece_lane_7[c] = sum_of_piece3_2[c]
            sum_over_s_piece_lane(sum_s_piece_lane_7, f32_reduce_smem, thread)
            sum_s_piece_lane_8 = sum_s_piece_lane_7[0]
            s_5 = tl.alloc_var("float32", s + sum_s_piece_lane_2)
            s_6 = tl.alloc_var("int32", s_2 + sum_s_piece_lane_4)
            s_7 = tl.alloc_var("int32", s_3 + sum_s_piece_lane_6)
            s_8 = tl.alloc_var("float32", s_4 + sum_s_piece_lane_8)
            s = s_5
            s_2 = s_6
            s_3 = s_7
            s_4 = s_8
        s_9 = s
        s_10 = s_2
        s_11 = s_3
        s_12 = s_4
        for s_piece_step_2 in tl.serial(full_steps, steps):
            product_2 = tl.alloc_var("int32", s_piece_step_2 * 4096)
            for c in tl.unroll(8):
                s_piece_2[c] = product_2 + s_piece_lane[c]
                exists[c] = s_piece_2[c] < ((S + 1023) // 1024)
                sum_of_piece_3[c] = tl.if_then_else(exists[c], sum_of_piece[s_piece_2[c]], tl.Cast("float32", 0))
                sum_of_piece1_3[c] = tl.if_then_else(exists[c], sum_of_piece1[s_piece_2[c]], tl.Cast("int32", 0))
                sum_of_piece2_3[c] = tl.if_then_else(exists[c], sum_of_piece2[s_piece_2[c]], tl.Cast("int32", 0))
                sum_of_piece3_3[c] = tl.if_then_else(exists[c], sum_of_piece3[s_piece_2[c]], tl.Cast("float32", 0))
                chosen[c] = tl.Select(exists[c], sum_of_piece_3[c], f32(-0.0))
                sum_s_piece_lane_9[c] = chosen[c]
            sum_over_s_piece_lane(sum_s_piece_lane_9, f32_reduce_smem, thread)
            sum_s_piece_lane_10 = sum_s_piece_lane_9[0]
            for c in tl.unroll(8):
                chosen_2[c] = tl.Select(exists[c], sum_of_piece1_3[c], tl.int32(0))
                sum_s_piece_lane_11[c] = chosen_2[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_11, i32_reduce_smem, thread)
            sum_s_piece_lane_12 = sum_s_piece_lane_11[0]
            for c in tl.unroll(8):
                chosen_3[c] = tl.Select(exists[c], sum_of_piece2_3[c], tl.int32(0))
                sum_s_piece_lane_13[c] = chosen_3[c]
            sum_over_s_piece_lane_2(sum_s_piece_lane_13, i32_reduce_smem, thread)
            sum_s_piece_lane_14 = sum_s_piece_lane_13[0]
            for c in tl.unroll(8):
                chosen_4[c] = tl.Select(exists[c], sum_of_piece3_3[c], f32(-0.0))
                sum_s_piece_lane_15[c] = chosen_4[c]
            sum_over_s_piece_lane(sum_s_piece_lane_15, f32_reduce_smem, thread)
            sum_s_piece_lane_16 = sum_s_piece_lane_15[0]
            s_13 = tl.alloc_var("float32", s_9 + sum_s_piece_lane_10)
            s_14 = tl.alloc_var("int32", s_10 + sum_s_piece_lane_12)
            s_15 = tl.alloc_var("int32", s_11 + sum_s_piece_lane_14)
            s_16 = tl.alloc_var("float32", s_12 + sum_s_piece_lane_16)
            s_9 = s_13
            s_10 = s_14
            s_11 = s_15
            s_12 = s_16
        larger_2 = tl.alloc_var("int32", tl.max(s_10, tl.int32(1)))  # policy.py:566
        as_f32 = tl.alloc_var("float32", tl.Cast("float32", larger_2))
        total_2 = tl.alloc_var("float32", s_9 + f32(0.0))  # policy.py:568
        quotient = tl.alloc_var("float32", total_2 / as_f32)  # policy.py:560
        as_f32_2 = tl.alloc_var("float32", tl.Cast("float32", s_11))  # policy.py:573
        quotient_2 = tl.alloc_var("float32", as_f32_2 / as_f32)
        total_3 = tl.alloc_var("float32", s_12 + f32(0.0))  # policy.py:575
        quotient_3 = tl.alloc_var("float32", total_3 / as_f32)
        if writes:  # policy.py:473
            loss[0] = quotient
        if writes:
            count[0] = s_10
        if writes:
            clip_fraction[0] = quotient_2
        if writes:
            approx_kl[0] = quotient_3


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
