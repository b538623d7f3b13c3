"""choose_experts on gfx942, written by rlk 0.1.0: do not edit.

numerics: 8cae73bdf987d114
schedule: tiles T=8, 2 warps, 1 stages, unroll 1
inputs:
  scores: bf16 [T, E=128]
outputs:
  ids: i32 [T, E.piece=8]
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
def as_variable(x):
    # A variable: the text of a value without one is copied to each of its uses.
    variable = tl.alloc_var(x.dtype, x)
    return variable


@tl.macro
def bits_of(x):
    # The bits of an f32 as an i32.
    return tl.reinterpret(x, "int32")


@tl.macro
def imax(a, b):
    # The maximum of integers.
    return tl.max(a, b)


@tl.macro
def imin(a, b):
    # The minimum of integers.
    return tl.min(a, b)


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
def min_over_e(x, x_reduce_smem, thread):
    # The min over E, in any order.
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 32, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = imin(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def number_of(i):
    # The f32 of these bits.
    return tl.reinterpret(i, "float32")


@tl.prim_func
def choose_experts(
    scores: memory("scores", "bfloat16"), ids: memory("ids", "int32"), T: tl.int32, scores_t_stride: tl.int64,
    ids_t_stride: tl.int64, programs: tl.int32
):
    # A block owns 8 of T (rows). E: 128 indices, 1 to each of 128 threads; T: 8 indices, 8 to each of 1 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        i32_reduce_smem = tl.alloc_shared((8, 128), "int32", "shared")
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        scores_value = tl.alloc_local((8,), "bfloat16")
        compared = tl.alloc_local((8,), "float32")
        compared_max_neg_inf = tl.alloc_local((8,), "float32")
        bits_sum = tl.alloc_local((8,), "float32")
        bits = tl.alloc_local((8,), "int32")
        bits_shr_31 = tl.alloc_local((8,), "int32")
        keys_both = tl.alloc_local((8,), "int32")
        keys = tl.alloc_local((8,), "int32")
        best = tl.alloc_local((8,), "int32")
        keys_is_best = tl.alloc_local((8,), "bool")
        e_masked = tl.alloc_local((8,), "int32")
        at_2 = tl.alloc_local((8,), "int32")
        e_is_at = tl.alloc_local((8,), "bool")
        keys_2 = tl.alloc_local((8,), "int32")
        best_2 = tl.alloc_local((8,), "int32")
        keys_is_best_2 = tl.alloc_local((8,), "bool")
        e_masked_2 = tl.alloc_local((8,), "int32")
        at_3 = tl.alloc_local((8,), "int32")
        e_is_at_2 = tl.alloc_local((8,), "bool")
        keys_3 = tl.alloc_local((8,), "int32")
        best_3 = tl.alloc_local((8,), "int32")
        keys_is_best_3 = tl.alloc_local((8,), "bool")
        e_masked_3 = tl.alloc_local((8,), "int32")
        at_4 = tl.alloc_local((8,), "int32")
        e_is_at_3 = tl.alloc_local((8,), "bool")
        keys_4 = tl.alloc_local((8,), "int32")
        best_4 = tl.alloc_local((8,), "int32")
        keys_is_best_4 = tl.alloc_local((8,), "bool")
        e_masked_4 = tl.alloc_local((8,), "int32")
        at_5 = tl.alloc_local((8,), "int32")
        e_is_at_4 = tl.alloc_local((8,), "bool")
        keys_5 = tl.alloc_local((8,), "int32")
        best_5 = tl.alloc_local((8,), "int32")
        keys_is_best_5 = tl.alloc_local((8,), "bool")
        e_masked_5 = tl.alloc_local((8,), "int32")
        at_6 = tl.alloc_local((8,), "int32")
        e_is_at_5 = tl.alloc_local((8,), "bool")
        keys_6 = tl.alloc_local((8,), "int32")
        best_6 = tl.alloc_local((8,), "int32")
        keys_is_best_6 = tl.alloc_local((8,), "bool")
        e_masked_6 = tl.alloc_local((8,), "int32")
        at_7 = tl.alloc_local((8,), "int32")
        e_is_at_6 = tl.alloc_local((8,), "bool")
        keys_7 = tl.alloc_local((8,), "int32")
        best_7 = tl.alloc_local((8,), "int32")
        keys_is_best_7 = tl.alloc_local((8,), "bool")
        e_masked_7 = tl.alloc_local((8,), "int32")
        at_8 = tl.alloc_local((8,), "int32")
        e_is_at_7 = tl.alloc_local((8,), "bool")
        keys_8 = tl.alloc_local((8,), "int32")
        best_8 = tl.alloc_local((8,), "int32")
        keys_is_best_8 = tl.alloc_local((8,), "bool")
        e_masked_8 = tl.alloc_local((8,), "int32")
        at_9 = tl.alloc_local((8,), "int32")
        low = tl.alloc_local((8,), "int32")
        high = tl.alloc_local((8,), "int32")
        low_2 = tl.alloc_local((8,), "int32")
        high_2 = tl.alloc_local((8,), "int32")
        low_3 = tl.alloc_local((8,), "int32")
        high_3 = tl.alloc_local((8,), "int32")
        low_4 = tl.alloc_local((8,), "int32")
        high_4 = tl.alloc_local((8,), "int32")
        low_5 = tl.alloc_local((8,), "int32")
        high_5 = tl.alloc_local((8,), "int32")
        low_6 = tl.alloc_local((8,), "int32")
        high_6 = tl.alloc_local((8,), "int32")
        low_7 = tl.alloc_local((8,), "int32")
        high_7 = tl.alloc_local((8,), "int32")
        low_8 = tl.alloc_local((8,), "int32")
        high_8 = tl.alloc_local((8,), "int32")
        low_9 = tl.alloc_local((8,), "int32")
        high_9 = tl.alloc_local((8,), "int32")
        low_10 = tl.alloc_local((8,), "int32")
        high_10 = tl.alloc_local((8,), "int32")
        low_11 = tl.alloc_local((8,), "int32")
        high_11 = tl.alloc_local((8,), "int32")
        low_12 = tl.alloc_local((8,), "int32")
        high_12 = tl.alloc_local((8,), "int32")
        low_13 = tl.alloc_local((8,), "int32")
        high_13 = tl.alloc_local((8,), "int32")
        low_14 = tl.alloc_local((8,), "int32")
        high_14 = tl.alloc_local((8,), "int32")
        low_15 = tl.alloc_local((8,), "int32")
        high_15 = tl.alloc_local((8,), "int32")
        low_16 = tl.alloc_local((8,), "int32")
        high_16 = tl.alloc_local((8,), "int32")
        low_17 = tl.alloc_local((8,), "int32")
        high_17 = tl.alloc_local((8,), "int32")
        low_18 = tl.alloc_local((8,), "int32")
        high_18 = tl.alloc_local((8,), "int32")
        low_19 = tl.alloc_local((8,), "int32")
        high_19 = tl.alloc_local((8,), "int32")
        low_20 = tl.alloc_local((8,), "int32")
        high_20 = tl.alloc_local((8,), "int32")
        low_21 = tl.alloc_local((8,), "int32")
        high_21 = tl.alloc_local((8,), "int32")
        low_22 = tl.alloc_local((8,), "int32")
        high_22 = tl.alloc_local((8,), "int32")
        low_23 = tl.alloc_local((8,), "int32")
        high_23 = tl.alloc_local((8,), "int32")
        low_24 = tl.alloc_local((8,), "int32")
        high_24 = tl.alloc_local((8,), "int32")
        low_25 = tl.alloc_local((8,), "int32")
        high_25 = tl.alloc_local((8,), "int32")
        low_26 = tl.alloc_local((8,), "int32")
        high_26 = tl.alloc_local((8,), "int32")
        low_27 = tl.alloc_local((8,), "int32")
        high_27 = tl.alloc_local((8,), "int32")
        at_10 = tl.alloc_local((8,), "int32")
        at_11 = tl.alloc_local((8,), "int32")
        for c in tl.unroll(8):
            t[c] = block * 8 + c
            t_inside[c] = t[c] < T
        writes = thread == 0
        e = tl.alloc_var("int32", thread)  # moe.py:133
        for c in tl.unroll(8):
            scores_value[c] = tl.if_then_else(
                t_inside[c], scores[tl.int64(t[c]) * scores_t_stride + e], tl.Cast("bfloat16", 0)
            )
            compared[c] = tl.Cast("float32", scores_value[c])
            compared_max_neg_inf[c] = larger(compared[c], f32(float("-inf")))  # moe.py:51
            bits_sum[c] = compared_max_neg_inf[c] + f32(0.0)
            bits[c] = tl.reinterpret(bits_sum[c], "int32")
            bits_shr_31[c] = bits[c] >> 31  # moe.py:52
            keys_both[c] = bits_shr_31[c] & 2147483647
            keys[c] = bits[c] ^ keys_both[c]
            best[c] = keys[c]  # moe.py:62
        max_over_e(best, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best[c] = keys[c] == best[c]
            e_masked[c] = tl.Select(keys_is_best[c], e, tl.int32(128))
            at_2[c] = e_masked[c]
        min_over_e(at_2, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at[c] = e == at_2[c]
            keys_2[c] = tl.Select(e_is_at[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys[c])
            best_2[c] = keys_2[c]  # moe.py:62
        max_over_e(best_2, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_2[c] = keys_2[c] == best_2[c]
            e_masked_2[c] = tl.Select(keys_is_best_2[c], e, tl.int32(128))
            at_3[c] = e_masked_2[c]
        min_over_e(at_3, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at_2[c] = e == at_3[c]
            keys_3[c] = tl.Select(e_is_at_2[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys_2[c])
            best_3[c] = keys_3[c]  # moe.py:62
        max_over_e(best_3, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_3[c] = keys_3[c] == best_3[c]
            e_masked_3[c] = tl.Select(keys_is_best_3[c], e, tl.int32(128))
            at_4[c] = e_masked_3[c]
        min_over_e(at_4, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at_3[c] = e == at_4[c]
            keys_4[c] = tl.Select(e_is_at_3[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys_3[c])
            best_4[c] = keys_4[c]  # moe.py:62
        max_over_e(best_4, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_4[c] = keys_4[c] == best_4[c]
            e_masked_4[c] = tl.Select(keys_is_best_4[c], e, tl.int32(128))
            at_5[c] = e_masked_4[c]
        min_over_e(at_5, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at_4[c] = e == at_5[c]
            keys_5[c] = tl.Select(e_is_at_4[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys_4[c])
            best_5[c] = keys_5[c]  # moe.py:62
        max_over_e(best_5, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_5[c] = keys_5[c] == best_5[c]
            e_masked_5[c] = tl.Select(keys_is_best_5[c], e, tl.int32(128))
            at_6[c] = e_masked_5[c]
        min_over_e(at_6, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at_5[c] = e == at_6[c]
            keys_6[c] = tl.Select(e_is_at_5[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys_5[c])
            best_6[c] = keys_6[c]  # moe.py:62
        max_over_e(best_6, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_6[c] = keys_6[c] == best_6[c]
            e_masked_6[c] = tl.Select(keys_is_best_6[c], e, tl.int32(128))
            at_7[c] = e_masked_6[c]
        min_over_e(at_7, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at_6[c] = e == at_7[c]
            keys_7[c] = tl.Select(e_is_at_6[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys_6[c])
            best_7[c] = keys_7[c]  # moe.py:62
        max_over_e(best_7, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_7[c] = keys_7[c] == best_7[c]
            e_masked_7[c] = tl.Select(keys_is_best_7[c], e, tl.int32(128))
            at_8[c] = e_masked_7[c]
        min_over_e(at_8, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:140
            e_is_at_7[c] = e == at_8[c]
            keys_8[c] = tl.Select(e_is_at_7[c], tl.reinterpret(tl.uint32(0x80000000), "int32"), keys_7[c])
            best_8[c] = keys_8[c]  # moe.py:62
        max_over_e(best_8, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:63
            keys_is_best_8[c] = keys_8[c] == best_8[c]
            e_masked_8[c] = tl.Select(keys_is_best_8[c], e, tl.int32(128))
            at_9[c] = e_masked_8[c]
        min_over_e(at_9, i32_reduce_smem, thread)
        for c in tl.unroll(8):  # moe.py:108
            low[c] = tl.min(at_2[c], at_3[c])
            high[c] = tl.max(at_2[c], at_3[c])
            low_2[c] = tl.min(at_4[c], at_5[c])
            high_2[c] = tl.max(at_4[c], at_5[c])
            low_3[c] = tl.min(at_6[c], at_7[c])
            high_3[c] = tl.max(at_6[c], at_7[c])
            low_4[c] = tl.min(at_8[c], at_9[c])
            high_4[c] = tl.max(at_8[c], at_9[c])
            low_5[c] = tl.min(high[c], low_2[c])
            high_5[c] = tl.max(high[c], low_2[c])
            low_6[c] = tl.min(high_2[c], low_3[c])
            high_6[c] = tl.max(high_2[c], low_3[c])
            low_7[c] = tl.min(high_3[c], low_4[c])
            high_7[c] = tl.max(high_3[c], low_4[c])
            low_8[c] = tl.min(low[c], low_5[c])
            high_8[c] = tl.max(low[c], low_5[c])
            low_9[c] = tl.min(high_5[c], low_6[c])
            high_9[c] = tl.max(high_5[c], low_6[c])
            low_10[c] = tl.min(high_6[c], low_7[c])
            high_10[c] = tl.max(high_6[c], low_7[c])
            low_11[c] = tl.min(high_7[c], high_4[c])
            high_11[c] = tl.max(high_7[c], high_4[c])
            low_12[c] = tl.min(high_8[c], low_9[c])
            high_12[c] = tl.max(high_8[c], low_9[c])
            low_13[c] = tl.min(high_9[c], low_10[c])
            high_13[c] = tl.max(high_9[c], low_10[c])
            low_14[c] = tl.min(high_10[c], low_11[c])
            high_14[c] = tl.max(high_10[c], low_11[c])
            low_15[c] = tl.min(low_8[c], low_12[c])
            high_15[c] = tl.max(low_8[c], low_12[c])
            low_16[c] = tl.min(high_12[c], low_13[c])
            high_16[c] = tl.max(high_12[c], low_13[c])
            low_17[c] = tl.min(high_13[c], low_14[c])
            high_17[c] = tl.max(high_13[c], low_14[c])
            low_18[c] = tl.min(high_14[c], high_11[c])
            high_18[c] = tl.max(high_14[c], high_11[c])
            low_19[c] = tl.min(high_15[c], low_16[c])
            high_19[c] = tl.max(high_15[c], low_16[c])
            low_20[c] = tl.min(high_16[c], low_17[c])
            high_20[c] = tl.max(high_16[c], low_17[c])
            low_21[c] = tl.min(high_17[c], low_18[c])
            high_21[c] = tl.max(high_17[c], low_18[c])
            low_22[c] = tl.min(low_15[c], low_19[c])
            high_22[c] = tl.max(low_15[c], low_19[c])
            low_23[c] = tl.min(high_19[c], low_20[c])
            high_23[c] = tl.max(high_19[c], low_20[c])
            low_24[c] = tl.min(high_20[c], low_21[c])
            high_24[c] = tl.max(high_20[c], low_21[c])
            low_25[c] = tl.min(high_21[c], high_18[c])
            high_25[c] = tl.max(high_21[c], high_18[c])
            low_26[c] = tl.min(high_22[c], low_23[c])
            high_26[c] = tl.max(high_22[c], low_23[c])
            low_27[c] = tl.min(high_23[c], low_24[c])
            high_27[c] = tl.max(high_23[c], low_24[c])
            at_10[c] = tl.min(high_24[c], low_25[c])
            at_11[c] = tl.max(high_24[c], low_25[c])
            if t_inside[c] & writes:  # moe.py:147
                ids[tl.int64(t[c]) * ids_t_stride] = low_22[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 1] = low_26[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 2] = high_26[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 3] = low_27[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 4] = high_27[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 5] = at_10[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 6] = at_11[c]
            if t_inside[c] & writes:
                ids[tl.int64(t[c]) * ids_t_stride + 7] = high_25[c]


def call(kernels, scores, ids, T, scores_t_stride, ids_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 7) // 8)
    if programs > 0:
        kernels.choose_experts((programs,), scores, ids, T, scores_t_stride, ids_t_stride)
