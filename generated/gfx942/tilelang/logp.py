"""logp on gfx942, written by rlk 0.1.0: do not edit.

numerics: 010b1c96225da63a
schedule: tiles 1, 2 warps, 1 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[7:6] V.lane[2:0]
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
def max_over_v_lane(x, x_reduce_smem, thread):
    # The max over V.lane, in any order.
    for c in tl.unroll(8):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(4):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 4, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = larger(x[c], x_reduce_smem[c, thread ^ 64])


@tl.macro
def merge_softmax_sum(max_a, sum_a, centred_a, max_b, sum_b, centred_b):
    # The state of two disjoint sets: centred softmax_sum().
    m = tl.alloc_var("float32", larger(max_a, max_b))
    equal = tl.alloc_var("bool", m == f32(float("-inf")))
    chosen = tl.alloc_var("float32", tl.Select(equal, f32(0.0), m))
    difference = tl.alloc_var("float32", max_a - chosen)
    product = tl.alloc_var("float32", difference * f32(1.4426950216293335))
    exp2 = tl.alloc_var("float32", portable_exp2(product))
    larger_2 = tl.alloc_var("float32", larger(difference, f32(-3.4028234663852886e+38)))
    equal_2 = tl.alloc_var("bool", m == f32(float("-inf")))
    chosen_2 = tl.alloc_var("float32", tl.Select(equal_2, f32(0.0), m))
    difference_2 = tl.alloc_var("float32", max_b - chosen_2)
    product_2 = tl.alloc_var("float32", difference_2 * f32(1.4426950216293335))
    exp2_2 = tl.alloc_var("float32", portable_exp2(product_2))
    larger_3 = tl.alloc_var("float32", larger(difference_2, f32(-3.4028234663852886e+38)))
    product_3 = tl.alloc_var("float32", sum_a * exp2)
    product_4 = tl.alloc_var("float32", sum_b * exp2_2)
    total = tl.alloc_var("float32", product_3 + product_4)
    product_5 = tl.alloc_var("float32", centred_a * exp2)
    product_6 = tl.alloc_var("float32", centred_b * exp2_2)
    fused = tl.alloc_var("float32", fma(product_3, larger_2, product_5))
    fused_2 = tl.alloc_var("float32", fma(product_4, larger_3, product_6))
    total_2 = tl.alloc_var("float32", fused + fused_2)
    return m, total, total_2


@tl.macro
def number_of(i):
    # As a float.
    return tl.reinterpret(i, "float32")


@tl.macro
def portable_exp2(x):
    # 2**x. Exact for integers; results below 2**-126 are +0, as on the hardware it stands in for.
    y0 = tl.alloc_var("float32", smaller(x, f32(127.0)))
    y1 = tl.alloc_var("float32", y0 + f32(12582912.0))
    y2 = tl.alloc_var("float32", y1 - f32(12582912.0))
    y3 = tl.alloc_var("float32", x - y2)
    y4 = tl.alloc_var("float32", fma(f32(0.00018058953), y3, f32(0.0013314332)))
    y5 = tl.alloc_var("float32", fma(y4, y3, f32(0.009607519)))
    y6 = tl.alloc_var("float32", fma(y5, y3, f32(0.055505678)))
    y7 = tl.alloc_var("float32", fma(y6, y3, f32(0.24022758)))
    y8 = tl.alloc_var("float32", fma(y7, y3, f32(0.6931471)))
    y9 = tl.alloc_var("float32", fma(y8, y3, f32(1.0)))
    i10 = tl.alloc_var("int32", bits_of(y1))
    i11 = tl.alloc_var("int32", i10 << 23)
    i12 = tl.alloc_var("int32", i11 + tl.int32(1065353216))
    y13 = tl.alloc_var("float32", number_of(i12))
    y14 = tl.alloc_var("float32", y9 * y13)
    y15 = tl.alloc_var("float32", tl.Select(x < f32(-126.0), f32(0.0), y14))
    return y15


@tl.macro
def portable_log(x):
    # Natural logarithm; log(+-0) = -inf, log(x < 0) = NaN.
    y0 = tl.alloc_var("float32", x * f32(8388608.0))
    y1 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), y0, x))
    i2 = tl.alloc_var("int32", bits_of(y1))
    i3 = tl.alloc_var("int32", i2 - tl.int32(1061158912))
    i4 = tl.alloc_var("int32", i3 >> 23)
    i5 = tl.alloc_var("int32", i4 << 23)
    i6 = tl.alloc_var("int32", i2 - i5)
    y7 = tl.alloc_var("float32", number_of(i6))
    y8 = tl.alloc_var("float32", y7 - f32(1.0))
    y9 = tl.alloc_var("float32", tl.Cast("float32", i4))
    y10 = tl.alloc_var("float32", tl.Select(x < f32(1.1754943508222875e-38), f32(-23.0), f32(0.0)))
    y11 = tl.alloc_var("float32", y9 + y10)
    y12 = tl.alloc_var("float32", fma(f32(-0.045135185), y8, f32(0.10471279)))
    y13 = tl.alloc_var("float32", fma(y12, y8, f32(-0.13164203)))
    y14 = tl.alloc_var("float32", fma(y13, y8, f32(0.14478002)))
    y15 = tl.alloc_var("float32", fma(y14, y8, f32(-0.16646925)))
    y16 = tl.alloc_var("float32", fma(y15, y8, f32(0.19990832)))
    y17 = tl.alloc_var("float32", fma(y16, y8, f32(-0.25000107)))
    y18 = tl.alloc_var("float32", fma(y17, y8, f32(0.3333345)))
    y19 = tl.alloc_var("float32", fma(y18, y8, f32(-0.5)))
    y20 = tl.alloc_var("float32", y8 * y8)
    y21 = tl.alloc_var("float32", fma(y19, y20, y8))
    y22 = tl.alloc_var("float32", fma(y11, f32(0.693147182), y21))
    y23 = tl.alloc_var("float32", tl.Select(x < f32(float("inf")), y22, x))
    y24 = tl.alloc_var("float32", tl.Select(x == f32(0.0), f32(float("-inf")), y23))
    y25 = tl.alloc_var("float32", tl.Select(x < f32(0.0), f32(float("nan")), y24))
    return y25


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return held(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def softmax_sum_over_v_piece(m, s, centred):
    # The states merged over V.piece, pairwise.
    for c in tl.unroll(1):
        m[c], s[c], centred[c] = merge_softmax_sum(
            m[c], s[c], centred[c], tl.shfl_xor(m[c], 8, width=64), tl.shfl_xor(s[c], 8, width=64),
            tl.shfl_xor(centred[c], 8, width=64)
        )
    for c in tl.unroll(1):
        m[c], s[c], centred[c] = merge_softmax_sum(
            m[c], s[c], centred[c], tl.shfl_xor(m[c], 16, width=64), tl.shfl_xor(s[c], 16, width=64),
            tl.shfl_xor(centred[c], 16, width=64)
        )
    for c in tl.unroll(1):
        m[c], s[c], centred[c] = merge_softmax_sum(
            m[c], s[c], centred[c], tl.shfl_xor(m[c], 32, width=64), tl.shfl_xor(s[c], 32, width=64),
            tl.shfl_xor(centred[c], 32, width=64)
        )


@tl.macro
def sum_over_v_lane(x, x_reduce_smem, thread):
    # The sum over V.lane, halving.
    for c in tl.unroll(8):
        x[c] = add(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])


@tl.prim_func
def logp(
    logits: memory("logits", "bfloat16"), ids: memory("ids", "int64"), logp: memory("logp", "float32"),
    lse: memory("lse", "float32"), entropy: memory("entropy", "float32"), logits_t_stride: tl.int64,
    errors: memory("errors", "int32"), T: tl.int32, inv_temperature: tl.float32, ignore_index: tl.int64,
    programs: tl.int32
):
    # A block owns 1 of T (rows). V.piece: 8 indices, 1 to each of 8 threads; V.lane: 256 indices, 16 to each of 16
    # threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((16, 128), "float32", "shared")
        v_lane = tl.alloc_local((16,), "int32")
        m = tl.alloc_var("float32")
        s = tl.alloc_var("float32")
        centred = tl.alloc_var("float32")
        v = tl.alloc_local((16,), "int32")
        logits_3 = tl.alloc_local((16,), "bfloat16")
        as_f32 = tl.alloc_local((16,), "float32")
        product_3 = tl.alloc_local((16,), "float32")
        m_chunk = tl.alloc_local((16,), "float32")
        difference = tl.alloc_local((16,), "float32")
        product_4 = tl.alloc_local((16,), "float32")
        e = tl.alloc_local((16,), "float32")
        larger_2 = tl.alloc_local((16,), "float32")
        product_5 = tl.alloc_local((16,), "float32")
        s_chunk = tl.alloc_local((16,), "float32")
        centred_chunk = tl.alloc_local((16,), "float32")
        m_3 = tl.alloc_var("float32")
        s_2 = tl.alloc_var("float32")
        centred_2 = tl.alloc_var("float32")
        v_2 = tl.alloc_local((16,), "int32")
        exists = tl.alloc_local((16,), "bool")
        exists_2 = tl.alloc_local((16,), "bool")
        logits_4 = tl.alloc_local((16,), "bfloat16")
        as_f32_2 = tl.alloc_local((16,), "float32")
        product_13 = tl.alloc_local((16,), "float32")
        chosen_3 = tl.alloc_local((16,), "float32")
        m_chunk_3 = tl.alloc_local((16,), "float32")
        difference_4 = tl.alloc_local((16,), "float32")
        product_14 = tl.alloc_local((16,), "float32")
        e_2 = tl.alloc_local((16,), "float32")
        larger_5 = tl.alloc_local((16,), "float32")
        product_15 = tl.alloc_local((16,), "float32")
        s_chunk_3 = tl.alloc_local((16,), "float32")
        centred_chunk_3 = tl.alloc_local((16,), "float32")
        m_5 = tl.alloc_local((1,), "float32")
        s_3 = tl.alloc_local((1,), "float32")
        centred_3 = tl.alloc_local((1,), "float32")
        t = block
        writes = thread == 0
        ids_2 = tl.alloc_var("int64", ids[t])  # logp.py:134
        at_most = tl.alloc_var("bool", 0 <= ids_2)  # logp.py:146
        below = tl.alloc_var("bool", ids_2 < 128256)
        both = tl.alloc_var("bool", at_most & below)
        as_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", f32(float("nan"))))
        logits_2 = tl.alloc_var(
            "bfloat16", tl.if_then_else(both, logits[tl.int64(t) * logits_t_stride + ids_2], as_bf16)
        )
        inv_temperature_2 = tl.alloc_var("float32", inv_temperature)
        ignore_index_2 = tl.alloc_var("int64", ignore_index)
        differs = tl.alloc_var("bool", ids_2 != ignore_index_2)  # logp.py:200
        v_piece = tl.alloc_var("int32", thread // 8 % 8)  # logp.py:138
        product = tl.alloc_var("int32", v_piece * 16032)
        piece_begin = tl.alloc_var("int32", tl.min(tl.int32(128256), product))
        total = tl.alloc_var("int32", piece_begin + 16032)
        piece_end = tl.alloc_var("int32", tl.min(tl.int32(128256), total))
        for c in tl.unroll(16):
            v_lane[c] = thread % 8 * 8 + thread // 64 * 64 + c % 8 + c // 8 * 128
        steps = tl.alloc_var("int32", tl.Select(differs, tl.int32(63), tl.int32(0)))
        full_steps = tl.alloc_var("int32", tl.Select(differs, tl.int32(62), tl.int32(0)))
        m = f32(float("-inf"))
        s = f32(0.0)
        centred = f32(-0.0)
        for v_step in tl.serial(0, full_steps):
            product_2 = tl.alloc_var("int32", v_step * 256)
            total_2 = tl.alloc_var("int32", piece_begin + product_2)
            for c in tl.unroll(16):
                v[c] = total_2 + v_lane[c]
                logits_3[c] = logits[tl.int64(t) * logits_t_stride + v[c]]  # logp.py:139
                as_f32[c] = tl.Cast("float32", logits_3[c])  # logp.py:48
                product_3[c] = as_f32[c] * inv_temperature_2  # logp.py:57
                m_chunk[c] = product_3[c]  # logp.py:138
            max_over_v_lane(m_chunk, f32_reduce_smem, thread)
            m_chunk_2 = m_chunk[0]
            equal = tl.alloc_var("bool", m_chunk_2 == f32(float("-inf")))
            chosen = tl.alloc_var("float32", tl.Select(equal, f32(0.0), m_chunk_2))
            for c in tl.unroll(16):
                difference[c] = product_3[c] - chosen
                product_4[c] = difference[c] * f32(1.4426950216293335)
                e[c] = portable_exp2(product_4[c])
                larger_2[c] = larger(difference[c], f32(-3.4028234663852886e+38))
                product_5[c] = e[c] * larger_2[c]
                s_chunk[c] = e[c]
            sum_over_v_lane(s_chunk, f32_reduce_smem, thread)
            s_chunk_2 = s_chunk[0]
            for c in tl.unroll(16):
                centred_chunk[c] = product_5[c]
            sum_over_v_lane(centred_chunk, f32_reduce_smem, thread)
            centred_chunk_2 = centred_chunk[0]
            m_2 = tl.alloc_var("float32", larger(m, m_chunk_2))
            equal_2 = tl.alloc_var("bool", m_2 == f32(float("-inf")))
            chosen_2 = tl.alloc_var("float32", tl.Select(equal_2, f32(0.0), m_2))
            difference_2 = tl.alloc_var("float32", m - chosen_2)
            product_6 = tl.alloc_var("float32", difference_2 * f32(1.4426950216293335))
            exp2 = tl.alloc_var("float32", portable_exp2(product_6))
            larger_3 = tl.alloc_var("float32", larger(difference_2, f32(-3.4028234663852886e+38)))
            difference_3 = tl.alloc_var("float32", m_chunk_2 - chosen_2)
            product_7 = tl.alloc_var("float32", difference_3 * f32(1.4426950216293335))
            exp2_2 = tl.alloc_var("float32", portable_exp2(product_7))
            larger_4 = tl.alloc_var("float32", larger(difference_3, f32(-3.4028234663852886e+38)))
            product_8 = tl.alloc_var("float32", s * exp2)
            product_9 = tl.alloc_var("float32", s_chunk_2 * exp2_2)
            total_3 = tl.alloc_var("float32", product_8 + product_9)
            product_10 = tl.alloc_var("float32", centred * exp2)
            product_11 = tl.alloc_var("float32", centred_chunk_2 * exp2_2)
            fused = tl.alloc_var("float32", fma(product_8, larger_3, product_10))
            fused_2 = tl.alloc_var("float32", fma(product_9, larger_4, product_11))
            total_4 = tl.alloc_var("float32", fused + fused_2)
            m = m_2
            s = total_3
            centred = total_4
        m_3 = m
        s_2 = s
        centred_2 = centred
        for v_step_2 in tl.serial(full_steps, steps):
            product_12 = tl.alloc_var("int32", v_step_2 * 256)
            total_5 = tl.alloc_var("int32", piece_begin + product_12)
            for c in tl.unroll(16):
                v_2[c] = total_5 + v_lane[c]
                exists[c] = v_2[c] < piece_end
                exists_2[c] = exists[c] & differs
                logits_4[c] = tl.if_then_else(  # logp.py:139
                    exists_2[c], logits[tl.int64(t) * logits_t_stride + v_2[c]], tl.Cast("bfloat16", 0)
                )
                as_f32_2[c] = tl.Cast("float32", logits_4[c])  # logp.py:48
                product_13[c] = as_f32_2[c] * inv_temperature_2  # logp.py:57
                chosen_3[c] = tl.Select(exists_2[c], product_13[c], f32(float("-inf")))  # logp.py:138
                m_chunk_3[c] = chosen_3[c]
            max_over_v_lane(m_chunk_3, f32_reduce_smem, thread)
            m_chunk_4 = m_chunk_3[0]
            equal_3 = tl.alloc_var("bool", m_chunk_4 == f32(float("-inf")))
            chosen_4 = tl.alloc_var("float32", tl.Select(equal_3, f32(0.0), m_chunk_4))
            for c in tl.unroll(16):
                difference_4[c] = chosen_3[c] - chosen_4
                product_14[c] = difference_4[c] * f32(1.4426950216293335)
                e_2[c] = portable_exp2(product_14[c])
                larger_5[c] = larger(difference_4[c], f32(-3.4028234663852886e+38))
                product_15[c] = e_2[c] * larger_5[c]
                s_chunk_3[c] = e_2[c]
            sum_over_v_lane(s_chunk_3, f32_reduce_smem, thread)
            s_chunk_4 = s_chunk_3[0]
            for c in tl.unroll(16):
                centred_chunk_3[c] = product_15[c]
            sum_over_v_lane(centred_chunk_3, f32_reduce_smem, thread)
            centred_chunk_4 = centred_chunk_3[0]
            m_4 = tl.alloc_var("float32", larger(m_3, m_chunk_4))
            equal_4 = tl.alloc_var("bool", m_4 == f32(float("-inf")))
            chosen_5 = tl.alloc_var("float32", tl.Select(equal_4, f32(0.0), m_4))
            difference_5 = tl.alloc_var("float32", m_3 - chosen_5)
            product_16 = tl.alloc_var("float32", difference_5 * f32(1.4426950216293335))
            exp2_3 = tl.alloc_var("float32", portable_exp2(product_16))
            larger_6 = tl.alloc_var("float32", larger(difference_5, f32(-3.4028234663852886e+38)))
            difference_6 = tl.alloc_var("float32", m_chunk_4 - chosen_5)
            product_17 = tl.alloc_var("float32", difference_6 * f32(1.4426950216293335))
            exp2_4 = tl.alloc_var("float32", portable_exp2(product_17))
            larger_7 = tl.alloc_var("float32", larger(difference_6, f32(-3.4028234663852886e+38)))
            product_18 = tl.alloc_var("float32", s_2 * exp2_3)
            product_19 = tl.alloc_var("float32", s_chunk_4 * exp2_4)
            total_6 = tl.alloc_var("float32", product_18 + product_19)
            product_20 = tl.alloc_var("float32", centred_2 * exp2_3)
            product_21 = tl.alloc_var("float32", centred_chunk_4 * exp2_4)
            fused_3 = tl.alloc_var("float32", fma(product_18, larger_6, product_20))
            fused_4 = tl.alloc_var("float32", fma(product_19, larger_7, product_21))
            total_7 = tl.alloc_var("float32", fused_3 + fused_4)
            m_3 = m_4
            s_2 = total_6
            centred_2 = total_7
        m_5[0] = m_3
        s_3[0] = s_2
        centred_3[0] = centred_2
        softmax_sum_over_v_piece(m_5, s_3, centred_3)
        m_6 = m_5[0]
        s_4 = s_3[0]
        centred_4 = centred_3[0]
        as_f32_3 = tl.alloc_var("float32", tl.Cast("float32", logits_2))  # logp.py:48
        product_22 = tl.alloc_var("float32", as_f32_3 * inv_temperature_2)  # logp.py:57
        log = tl.alloc_var("float32", portable_log(s_4))  # logp.py:149
        total_8 = tl.alloc_var("float32", m_6 + log)
        difference_7 = tl.alloc_var("float32", product_22 - total_8)  # logp.py:150
        is_nan_2 = tl.alloc_var("bool", is_nan(difference_7))  # logp.py:151
        both_2 = tl.alloc_var("bool", differs & is_nan_2)
        if both_2 & writes:
            tl.atomic_max(errors[0], 1)
            tl.atomic_max(errors[1], t + 1)
        chosen_6 = tl.alloc_var("float32", tl.Select(differs, difference_7, f32(0.0)))  # logp.py:153
        chosen_7 = tl.alloc_var("float32", tl.Select(differs, total_8, f32(0.0)))  # logp.py:154
        quotient = tl.alloc_var("float32", centred_4 / s_4)  # logp.py:155
        difference_8 = tl.alloc_var("float32", log - quotient)
        chosen_8 = tl.alloc_var("float32", tl.Select(differs, difference_8, f32(0.0)))
        if writes:  # logp.py:152
            logp[t] = chosen_6
        if writes:
            lse[t] = chosen_7
        if writes:
            entropy[t] = chosen_8


def call(kernels, logits, ids, logp, lse, entropy, inv_temperature, ignore_index, T, logits_t_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.logp(
            (programs,), logits, ids, logp, lse, entropy, logits_t_stride, errors, T, inv_temperature, ignore_index
        )
