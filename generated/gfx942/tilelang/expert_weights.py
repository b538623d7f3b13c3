"""expert_weights on gfx942, written by rlk 0.1.0: do not edit.

numerics: d716a681413956c1
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  scores: bf16 [T, E=128]
  ids: i32 [T, K=8]
outputs:
  weights: f32 [T, K=8]
scalars:
  scale: f32
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
def any_over_e(x, x_reduce_smem, thread):
    # The any over E, in any order.
    for c in tl.unroll(8):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = imax(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def as_variable(x):
    # A variable: the text of a value without one is copied to each of its uses.
    variable = tl.alloc_var(x.dtype, x)
    return variable


@tl.macro
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def fma(a, b, c):
    # a * b + c with one rounding.
    return tl.call_extern("float32", "fmaf", a, b, c)


@tl.macro
def imax(a, b):
    # The maximum of integers.
    return tl.max(a, b)


@tl.macro
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


@tl.macro
def larger(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that both have.
    same = number_of(bits_of(a) & bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(a < b, b, tl.Select(b < a, a, other)))


@tl.macro
def max_over_e(x, x_reduce_smem, thread):
    # The max over E, in any order.
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = larger(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def number_of(i):
    # The f32 of these bits.
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
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.prim_func
def expert_weights(
    scores: memory("scores", "bfloat16"), ids: memory("ids", "int32"), weights: memory("weights", "float32"),
    T: tl.int32, scores_t_stride: tl.int64, ids_t_stride: tl.int64, errors: memory("errors", "int32"),
    weights_t_stride: tl.int64, scale: tl.float32, programs: tl.int32
):
    # A block owns 8 of T (rows). E: 128 indices, 1 to each of 128 threads; T: 8 indices, 8 to each of 1 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        i32_reduce_smem = tl.alloc_shared((8, 128), "int32", "shared")
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        scores_value = tl.alloc_local((8,), "bfloat16")
        ids_value = tl.alloc_local((8,), "int32")
        ids_value_2 = tl.alloc_local((8,), "int32")
        ids_value_3 = tl.alloc_local((8,), "int32")
        ids_value_4 = tl.alloc_local((8,), "int32")
        ids_value_5 = tl.alloc_local((8,), "int32")
        ids_value_6 = tl.alloc_local((8,), "int32")
        ids_value_7 = tl.alloc_local((8,), "int32")
        ids_value_8 = tl.alloc_local((8,), "int32")
        ids_ge_0 = tl.alloc_local((8,), "bool")
        ids_lt_128 = tl.alloc_local((8,), "bool")
        scores_guard = tl.alloc_local((8,), "bool")
        scores_value_2 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_2 = tl.alloc_local((8,), "bool")
        ids_lt_128_2 = tl.alloc_local((8,), "bool")
        scores_guard_2 = tl.alloc_local((8,), "bool")
        scores_value_3 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_3 = tl.alloc_local((8,), "bool")
        ids_lt_128_3 = tl.alloc_local((8,), "bool")
        scores_guard_3 = tl.alloc_local((8,), "bool")
        scores_value_4 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_4 = tl.alloc_local((8,), "bool")
        ids_lt_128_4 = tl.alloc_local((8,), "bool")
        scores_guard_4 = tl.alloc_local((8,), "bool")
        scores_value_5 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_5 = tl.alloc_local((8,), "bool")
        ids_lt_128_5 = tl.alloc_local((8,), "bool")
        scores_guard_5 = tl.alloc_local((8,), "bool")
        scores_value_6 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_6 = tl.alloc_local((8,), "bool")
        ids_lt_128_6 = tl.alloc_local((8,), "bool")
        scores_guard_6 = tl.alloc_local((8,), "bool")
        scores_value_7 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_7 = tl.alloc_local((8,), "bool")
        ids_lt_128_7 = tl.alloc_local((8,), "bool")
        scores_guard_7 = tl.alloc_local((8,), "bool")
        scores_value_8 = tl.alloc_local((8,), "bfloat16")
        ids_ge_0_8 = tl.alloc_local((8,), "bool")
        ids_lt_128_8 = tl.alloc_local((8,), "bool")
        scores_guard_8 = tl.alloc_local((8,), "bool")
        scores_value_9 = tl.alloc_local((8,), "bfloat16")
        x = tl.alloc_local((8,), "float32")
        c_2 = tl.alloc_local((8,), "float32")
        c_3 = tl.alloc_local((8,), "float32")
        c_4 = tl.alloc_local((8,), "float32")
        c_5 = tl.alloc_local((8,), "float32")
        c_6 = tl.alloc_local((8,), "float32")
        c_7 = tl.alloc_local((8,), "float32")
        c_8 = tl.alloc_local((8,), "float32")
        c_9 = tl.alloc_local((8,), "float32")
        ids_lt_0 = tl.alloc_local((8,), "bool")
        ids_ge_128 = tl.alloc_local((8,), "bool")
        either = tl.alloc_local((8,), "bool")
        ids_lt_0_2 = tl.alloc_local((8,), "bool")
        ids_ge_128_2 = tl.alloc_local((8,), "bool")
        either_2 = tl.alloc_local((8,), "bool")
        ids_lt_0_3 = tl.alloc_local((8,), "bool")
        ids_ge_128_3 = tl.alloc_local((8,), "bool")
        either_3 = tl.alloc_local((8,), "bool")
        ids_lt_0_4 = tl.alloc_local((8,), "bool")
        ids_ge_128_4 = tl.alloc_local((8,), "bool")
        either_4 = tl.alloc_local((8,), "bool")
        ids_lt_0_5 = tl.alloc_local((8,), "bool")
        ids_ge_128_5 = tl.alloc_local((8,), "bool")
        either_5 = tl.alloc_local((8,), "bool")
        ids_lt_0_6 = tl.alloc_local((8,), "bool")
        ids_ge_128_6 = tl.alloc_local((8,), "bool")
        either_6 = tl.alloc_local((8,), "bool")
        ids_lt_0_7 = tl.alloc_local((8,), "bool")
        ids_ge_128_7 = tl.alloc_local((8,), "bool")
        either_7 = tl.alloc_local((8,), "bool")
        ids_lt_0_8 = tl.alloc_local((8,), "bool")
        ids_ge_128_8 = tl.alloc_local((8,), "bool")
        either_8 = tl.alloc_local((8,), "bool")
        either_9 = tl.alloc_local((8,), "bool")
        either_10 = tl.alloc_local((8,), "bool")
        either_11 = tl.alloc_local((8,), "bool")
        either_12 = tl.alloc_local((8,), "bool")
        either_13 = tl.alloc_local((8,), "bool")
        either_14 = tl.alloc_local((8,), "bool")
        either_15 = tl.alloc_local((8,), "bool")
        ids_le_ids = tl.alloc_local((8,), "bool")
        ids_le_ids_2 = tl.alloc_local((8,), "bool")
        ids_le_ids_3 = tl.alloc_local((8,), "bool")
        ids_le_ids_4 = tl.alloc_local((8,), "bool")
        ids_le_ids_5 = tl.alloc_local((8,), "bool")
        ids_le_ids_6 = tl.alloc_local((8,), "bool")
        ids_le_ids_7 = tl.alloc_local((8,), "bool")
        either_16 = tl.alloc_local((8,), "bool")
        either_17 = tl.alloc_local((8,), "bool")
        either_18 = tl.alloc_local((8,), "bool")
        either_19 = tl.alloc_local((8,), "bool")
        either_20 = tl.alloc_local((8,), "bool")
        either_21 = tl.alloc_local((8,), "bool")
        is_nan_x = tl.alloc_local((8,), "bool")
        any_e = tl.alloc_local((8,), "int32")
        any_value = tl.alloc_local((8,), "bool")
        nan = tl.alloc_local((8,), "float32")
        largest = tl.alloc_local((8,), "float32")
        c_minus_largest = tl.alloc_local((8,), "float32")
        p = tl.alloc_local((8,), "float32")
        c_minus_largest_2 = tl.alloc_local((8,), "float32")
        p_2 = tl.alloc_local((8,), "float32")
        c_minus_largest_3 = tl.alloc_local((8,), "float32")
        p_3 = tl.alloc_local((8,), "float32")
        c_minus_largest_4 = tl.alloc_local((8,), "float32")
        p_4 = tl.alloc_local((8,), "float32")
        c_minus_largest_5 = tl.alloc_local((8,), "float32")
        p_5 = tl.alloc_local((8,), "float32")
        c_minus_largest_6 = tl.alloc_local((8,), "float32")
        p_6 = tl.alloc_local((8,), "float32")
        c_minus_largest_7 = tl.alloc_local((8,), "float32")
        p_7 = tl.alloc_local((8,), "float32")
        c_minus_largest_8 = tl.alloc_local((8,), "float32")
        p_8 = tl.alloc_local((8,), "float32")
        p_plus_p = tl.alloc_local((8,), "float32")
        total_sum = tl.alloc_local((8,), "float32")
        total_sum_2 = tl.alloc_local((8,), "float32")
        total_sum_3 = tl.alloc_local((8,), "float32")
        total_sum_4 = tl.alloc_local((8,), "float32")
        total_sum_5 = tl.alloc_local((8,), "float32")
        total = tl.alloc_local((8,), "float32")
        total_2 = tl.alloc_local((8,), "float32")
        p_over_total = tl.alloc_local((8,), "float32")
        w = tl.alloc_local((8,), "float32")
        p_over_total_2 = tl.alloc_local((8,), "float32")
        w_2 = tl.alloc_local((8,), "float32")
        p_over_total_3 = tl.alloc_local((8,), "float32")
        w_3 = tl.alloc_local((8,), "float32")
        p_over_total_4 = tl.alloc_local((8,), "float32")
        w_4 = tl.alloc_local((8,), "float32")
        p_over_total_5 = tl.alloc_local((8,), "float32")
        w_5 = tl.alloc_local((8,), "float32")
        p_over_total_6 = tl.alloc_local((8,), "float32")
        w_6 = tl.alloc_local((8,), "float32")
        p_over_total_7 = tl.alloc_local((8,), "float32")
        w_7 = tl.alloc_local((8,), "float32")
        p_over_total_8 = tl.alloc_local((8,), "float32")
        w_8 = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            t[c] = block * 8 + c
            t_inside[c] = t[c] < T
        writes = thread == 0
        e = tl.alloc_var("int32", thread)  # moe.py:185
        for c in tl.unroll(8):
            scores_value[c] = tl.if_then_else(
                t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + e], tl.Cast("bfloat16", 0)
            )
            # moe.py:186
            ids_value[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride], tl.Cast("int32", 0))
            ids_value_2[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 1], tl.Cast("int32", 0))
            ids_value_3[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 2], tl.Cast("int32", 0))
            ids_value_4[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 3], tl.Cast("int32", 0))
            ids_value_5[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 4], tl.Cast("int32", 0))
            ids_value_6[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 5], tl.Cast("int32", 0))
            ids_value_7[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 6], tl.Cast("int32", 0))
            ids_value_8[c] = tl.if_then_else(t_inside[c], ids[tl.int64(t[c]) * ids_t_stride + 7], tl.Cast("int32", 0))
            ids_ge_0[c] = 0 <= ids_value[c]  # moe.py:187
            ids_lt_128[c] = ids_value[c] < 128
            scores_guard[c] = ids_ge_0[c] & ids_lt_128[c]
        as_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", f32(float("nan"))))
        for c in tl.unroll(8):
            scores_value_2[c] = tl.if_then_else(
                scores_guard[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value[c]], as_bf16
            )
            ids_ge_0_2[c] = 0 <= ids_value_2[c]
            ids_lt_128_2[c] = ids_value_2[c] < 128
            scores_guard_2[c] = ids_ge_0_2[c] & ids_lt_128_2[c]
            scores_value_3[c] = tl.if_then_else(
                scores_guard_2[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_2[c]], as_bf16
            )
            ids_ge_0_3[c] = 0 <= ids_value_3[c]
            ids_lt_128_3[c] = ids_value_3[c] < 128
            scores_guard_3[c] = ids_ge_0_3[c] & ids_lt_128_3[c]
            scores_value_4[c] = tl.if_then_else(
                scores_guard_3[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_3[c]], as_bf16
            )
            ids_ge_0_4[c] = 0 <= ids_value_4[c]
            ids_lt_128_4[c] = ids_value_4[c] < 128
            scores_guard_4[c] = ids_ge_0_4[c] & ids_lt_128_4[c]
            scores_value_5[c] = tl.if_then_else(
                scores_guard_4[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_4[c]], as_bf16
            )
            ids_ge_0_5[c] = 0 <= ids_value_5[c]
            ids_lt_128_5[c] = ids_value_5[c] < 128
            scores_guard_5[c] = ids_ge_0_5[c] & ids_lt_128_5[c]
            scores_value_6[c] = tl.if_then_else(
                scores_guard_5[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_5[c]], as_bf16
            )
            ids_ge_0_6[c] = 0 <= ids_value_6[c]
            ids_lt_128_6[c] = ids_value_6[c] < 128
            scores_guard_6[c] = ids_ge_0_6[c] & ids_lt_128_6[c]
            scores_value_7[c] = tl.if_then_else(
                scores_guard_6[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_6[c]], as_bf16
            )
            ids_ge_0_7[c] = 0 <= ids_value_7[c]
            ids_lt_128_7[c] = ids_value_7[c] < 128
            scores_guard_7[c] = ids_ge_0_7[c] & ids_lt_128_7[c]
            scores_value_8[c] = tl.if_then_else(
                scores_guard_7[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_7[c]], as_bf16
            )
            ids_ge_0_8[c] = 0 <= ids_value_8[c]
            ids_lt_128_8[c] = ids_value_8[c] < 128
            scores_guard_8[c] = ids_ge_0_8[c] & ids_lt_128_8[c]
            scores_value_9[c] = tl.if_then_else(
                scores_guard_8[c] & t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + ids_value_8[c]], as_bf16
            )
        scale_value = tl.alloc_var("float32", scale)
        for c in tl.unroll(8):  # moe.py:185
            x[c] = tl.Cast("float32", scores_value[c])
            c_2[c] = tl.Cast("float32", scores_value_2[c])  # moe.py:187
            c_3[c] = tl.Cast("float32", scores_value_3[c])
            c_4[c] = tl.Cast("float32", scores_value_4[c])
            c_5[c] = tl.Cast("float32", scores_value_5[c])
            c_6[c] = tl.Cast("float32", scores_value_6[c])
            c_7[c] = tl.Cast("float32", scores_value_7[c])
            c_8[c] = tl.Cast("float32", scores_value_8[c])
            c_9[c] = tl.Cast("float32", scores_value_9[c])
            ids_lt_0[c] = ids_value[c] < 0  # moe.py:188
            ids_ge_128[c] = 128 <= ids_value[c]
            either[c] = ids_lt_0[c] | ids_ge_128[c]
            ids_lt_0_2[c] = ids_value_2[c] < 0
            ids_ge_128_2[c] = 128 <= ids_value_2[c]
            either_2[c] = ids_lt_0_2[c] | ids_ge_128_2[c]
            ids_lt_0_3[c] = ids_value_3[c] < 0
            ids_ge_128_3[c] = 128 <= ids_value_3[c]
            either_3[c] = ids_lt_0_3[c] | ids_ge_128_3[c]
            ids_lt_0_4[c] = ids_value_4[c] < 0
            ids_ge_128_4[c] = 128 <= ids_value_4[c]
            either_4[c] = ids_lt_0_4[c] | ids_ge_128_4[c]
            ids_lt_0_5[c] = ids_value_5[c] < 0
            ids_ge_128_5[c] = 128 <= ids_value_5[c]
            either_5[c] = ids_lt_0_5[c] | ids_ge_128_5[c]
            ids_lt_0_6[c] = ids_value_6[c] < 0
            ids_ge_128_6[c] = 128 <= ids_value_6[c]
            either_6[c] = ids_lt_0_6[c] | ids_ge_128_6[c]
            ids_lt_0_7[c] = ids_value_7[c] < 0
            ids_ge_128_7[c] = 128 <= ids_value_7[c]
            either_7[c] = ids_lt_0_7[c] | ids_ge_128_7[c]
            ids_lt_0_8[c] = ids_value_8[c] < 0
            ids_ge_128_8[c] = 128 <= ids_value_8[c]
            either_8[c] = ids_lt_0_8[c] | ids_ge_128_8[c]
            either_9[c] = either[c] | either_2[c]  # moe.py:189
            either_10[c] = either_9[c] | either_3[c]
            either_11[c] = either_10[c] | either_4[c]
            either_12[c] = either_11[c] | either_5[c]
            either_13[c] = either_12[c] | either_6[c]
            either_14[c] = either_13[c] | either_7[c]
            either_15[c] = either_14[c] | either_8[c]
            if either_15[c] & t_inside[c] & writes:
                tl.atomic_max(errors[0], 1)
                tl.atomic_max(errors[1], t[c] + 1)
            ids_le_ids[c] = ids_value_2[c] <= ids_value[c]  # moe.py:154
            ids_le_ids_2[c] = ids_value_3[c] <= ids_value_2[c]
            ids_le_ids_3[c] = ids_value_4[c] <= ids_value_3[c]
            ids_le_ids_4[c] = ids_value_5[c] <= ids_value_4[c]
            ids_le_ids_5[c] = ids_value_6[c] <= ids_value_5[c]
            ids_le_ids_6[c] = ids_value_7[c] <= ids_value_6[c]
            ids_le_ids_7[c] = ids_value_8[c] <= ids_value_7[c]
            either_16[c] = ids_le_ids[c] | ids_le_ids_2[c]  # moe.py:155
            either_17[c] = either_16[c] | ids_le_ids_3[c]
            either_18[c] = either_17[c] | ids_le_ids_4[c]
            either_19[c] = either_18[c] | ids_le_ids_5[c]
            either_20[c] = either_19[c] | ids_le_ids_6[c]
            either_21[c] = either_20[c] | ids_le_ids_7[c]
            if either_21[c] & t_inside[c] & writes:
                tl.atomic_max(errors[0], 2)
                tl.atomic_max(errors[1], t[c] + 1)
            is_nan_x[c] = is_nan(x[c])  # moe.py:191
            any_e[c] = tl.Select(is_nan_x[c], 1, 0)
        any_over_e(any_e, i32_reduce_smem, thread)
        for c in tl.unroll(8):
            any_value[c] = any_e[c] != 0
            nan[c] = tl.Select(any_value[c], f32(float("nan")), f32(0.0))
            largest[c] = x[c]  # moe.py:195
        max_over_e(largest, f32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:196
            c_minus_largest[c] = c_2[c] - largest[c]
            p[c] = portable_exp(c_minus_largest[c])
            c_minus_largest_2[c] = c_3[c] - largest[c]
            p_2[c] = portable_exp(c_minus_largest_2[c])
            c_minus_largest_3[c] = c_4[c] - largest[c]
            p_3[c] = portable_exp(c_minus_largest_3[c])
            c_minus_largest_4[c] = c_5[c] - largest[c]
            p_4[c] = portable_exp(c_minus_largest_4[c])
            c_minus_largest_5[c] = c_6[c] - largest[c]
            p_5[c] = portable_exp(c_minus_largest_5[c])
            c_minus_largest_6[c] = c_7[c] - largest[c]
            p_6[c] = portable_exp(c_minus_largest_6[c])
            c_minus_largest_7[c] = c_8[c] - largest[c]
            p_7[c] = portable_exp(c_minus_largest_7[c])
            c_minus_largest_8[c] = c_9[c] - largest[c]
            p_8[c] = portable_exp(c_minus_largest_8[c])
            p_plus_p[c] = p[c] + p_2[c]  # moe.py:199
            total_sum[c] = p_plus_p[c] + p_3[c]
            total_sum_2[c] = total_sum[c] + p_4[c]
            total_sum_3[c] = total_sum_2[c] + p_5[c]
            total_sum_4[c] = total_sum_3[c] + p_6[c]
            total_sum_5[c] = total_sum_4[c] + p_7[c]
            total[c] = total_sum_5[c] + p_8[c]
            total_2[c] = total[c] + nan[c]  # moe.py:202
            p_over_total[c] = p[c] / total_2[c]  # moe.py:172
            w[c] = scale_value * p_over_total[c]
            p_over_total_2[c] = p_2[c] / total_2[c]
            w_2[c] = scale_value * p_over_total_2[c]
            p_over_total_3[c] = p_3[c] / total_2[c]
            w_3[c] = scale_value * p_over_total_3[c]
            p_over_total_4[c] = p_4[c] / total_2[c]
            w_4[c] = scale_value * p_over_total_4[c]
            p_over_total_5[c] = p_5[c] / total_2[c]
            w_5[c] = scale_value * p_over_total_5[c]
            p_over_total_6[c] = p_6[c] / total_2[c]
            w_6[c] = scale_value * p_over_total_6[c]
            p_over_total_7[c] = p_7[c] / total_2[c]
            w_7[c] = scale_value * p_over_total_7[c]
            p_over_total_8[c] = p_8[c] / total_2[c]
            w_8[c] = scale_value * p_over_total_8[c]
            if t_inside[c] & writes:  # moe.py:173
                weights[tl.int64(t[c]) * weights_t_stride] = w[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 1] = w_2[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 2] = w_3[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 3] = w_4[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 4] = w_5[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 5] = w_6[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 6] = w_7[c]
            if t_inside[c] & writes:
                weights[tl.int64(t[c]) * weights_t_stride + 7] = w_8[c]


def call(kernels, scores, ids, weights, scale, T, scores_t_stride, ids_t_stride, weights_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.expert_weights(
            (programs,), scores, ids, weights, T, scores_t_stride, ids_t_stride, errors, weights_t_stride, scale
        )
