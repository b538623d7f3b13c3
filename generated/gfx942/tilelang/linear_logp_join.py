"""linear_logp_join on gfx942, written by rlk 0.1.0: do not edit.

numerics: e67f059310c5747e
schedule: tiles T=128, 2 warps, 1 stages, unroll 1
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
def merge_softmax_sum(max_a, sum_a, max_b, sum_b):
    # The state of two disjoint sets: softmax_sum().
    m_2 = tl.alloc_var("float32", larger(max_a, max_b))
    equal = tl.alloc_var("bool", m_2 == f32(float("-inf")))
    chosen = tl.alloc_var("float32", tl.Select(equal, f32(0.0), m_2))
    difference = tl.alloc_var("float32", max_a - chosen)
    product = tl.alloc_var("float32", difference * f32(1.4426950216293335))
    exp2 = tl.alloc_var("float32", portable_exp2(product))
    equal_2 = tl.alloc_var("bool", m_2 == f32(float("-inf")))
    chosen_2 = tl.alloc_var("float32", tl.Select(equal_2, f32(0.0), m_2))
    difference_2 = tl.alloc_var("float32", max_b - chosen_2)
    product_2 = tl.alloc_var("float32", difference_2 * f32(1.4426950216293335))
    exp2_2 = tl.alloc_var("float32", portable_exp2(product_2))
    product_3 = tl.alloc_var("float32", sum_a * exp2)
    product_4 = tl.alloc_var("float32", sum_b * exp2_2)
    total = tl.alloc_var("float32", product_3 + product_4)
    return m_2, total


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
def softmax_sum_over_r(m, s):
    # The states merged over R, pairwise.
    for c in tl.unroll(8):
        m[c], s[c] = merge_softmax_sum(m[c], s[c], tl.shfl_xor(m[c], 1, width=64), tl.shfl_xor(s[c], 1, width=64))
    for c in tl.unroll(8):
        m[c], s[c] = merge_softmax_sum(m[c], s[c], tl.shfl_xor(m[c], 2, width=64), tl.shfl_xor(s[c], 2, width=64))
    for c in tl.unroll(8):
        m[c], s[c] = merge_softmax_sum(m[c], s[c], tl.shfl_xor(m[c], 4, width=64), tl.shfl_xor(s[c], 4, width=64))


@tl.macro
def sum_over_r(x):
    # The sum over R, pairwise.
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))


@tl.prim_func
def linear_logp_join(ids: memory("ids", "int64"), m: memory("m", "float32"), s: memory("s", "float32"), hits: memory("hits", "float32"), logp: memory("logp", "float32"), lse: memory("lse", "float32"), T: tl.int32, m_r_stride: tl.int64, s_r_stride: tl.int64, hits_r_stride: tl.int64, errors: memory("errors", "int32"), ignore_index: tl.int64, vocabulary: tl.int64, programs: tl.int32):
    # A block owns 128 of T (rows). R: 8 indices, 1 to each of 8 threads; T: 128 indices, 8 to each of 16 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        ids_2 = tl.alloc_local((8,), "int64")
        m_2 = tl.alloc_local((8,), "float32")
        s_2 = tl.alloc_local((8,), "float32")
        hits_2 = tl.alloc_local((8,), "float32")
        differs = tl.alloc_local((8,), "bool")
        m_3 = tl.alloc_local((8,), "float32")
        s_3 = tl.alloc_local((8,), "float32")
        sum_r = tl.alloc_local((8,), "float32")
        at_most = tl.alloc_local((8,), "bool")
        below = tl.alloc_local((8,), "bool")
        both = tl.alloc_local((8,), "bool")
        log = tl.alloc_local((8,), "float32")
        total = tl.alloc_local((8,), "float32")
        chosen = tl.alloc_local((8,), "float32")
        difference = tl.alloc_local((8,), "float32")
        is_nan_2 = tl.alloc_local((8,), "bool")
        both_2 = tl.alloc_local((8,), "bool")
        chosen_2 = tl.alloc_local((8,), "float32")
        chosen_3 = tl.alloc_local((8,), "float32")
        for c in tl.unroll(8):
            t[c] = block * 128 + thread // 8 + c * 16
            t_inside[c] = t[c] < T
        writes = (thread & 7) == 0
        for c in tl.unroll(8):  # linear_logp.py:224
            ids_2[c] = tl.if_then_else(t_inside[c], ids[t[c]], tl.Cast("int64", 0))  # linear_logp.py:224
        r = tl.alloc_var("int32", thread % 8)  # linear_logp.py:226
        for c in tl.unroll(8):  # linear_logp.py:226
            m_2[c] = tl.if_then_else(t_inside[c], m[tl.int64(r) * m_r_stride + t[c]], tl.Cast("float32", 0))  # linear_logp.py:226
            s_2[c] = tl.if_then_else(t_inside[c], s[tl.int64(r) * s_r_stride + t[c]], tl.Cast("float32", 0))  # linear_logp.py:226
            hits_2[c] = tl.if_then_else(t_inside[c], hits[tl.int64(r) * hits_r_stride + t[c]], tl.Cast("float32", 0))  # linear_logp.py:228
        ignore_index_2 = tl.alloc_var("int64", ignore_index)
        vocabulary_2 = tl.alloc_var("int64", vocabulary)
        for c in tl.unroll(8):  # logp.py:197
            differs[c] = ids_2[c] != ignore_index_2  # logp.py:197
            m_3[c] = m_2[c]  # linear_logp.py:226
            s_3[c] = s_2[c]  # linear_logp.py:226
        softmax_sum_over_r(m_3, s_3)  # linear_logp.py:226
        for c in tl.unroll(8):  # linear_logp.py:228
            sum_r[c] = hits_2[c]  # linear_logp.py:228
        sum_over_r(sum_r)  # linear_logp.py:228
        for c in tl.unroll(8):  # linear_logp.py:229
            at_most[c] = 0 <= ids_2[c]  # linear_logp.py:229
            below[c] = ids_2[c] < vocabulary_2  # linear_logp.py:229
            both[c] = at_most[c] & below[c]  # linear_logp.py:229
            log[c] = portable_log(s_3[c])  # linear_logp.py:86
            total[c] = m_3[c] + log[c]  # linear_logp.py:86
            chosen[c] = tl.Select(both[c], sum_r[c], f32(float("nan")))  # linear_logp.py:87
            difference[c] = chosen[c] - total[c]  # linear_logp.py:87
            is_nan_2[c] = is_nan(difference[c])  # linear_logp.py:88
            both_2[c] = differs[c] & is_nan_2[c]  # linear_logp.py:88
            if both_2[c] & t_inside[c] & writes:  # linear_logp.py:88
                tl.atomic_max(errors[0], 1)  # linear_logp.py:88
                tl.atomic_max(errors[1], t[c] + 1)  # linear_logp.py:88
            chosen_2[c] = tl.Select(differs[c], difference[c], f32(0.0))  # linear_logp.py:90
            chosen_3[c] = tl.Select(differs[c], total[c], f32(0.0))  # linear_logp.py:91
            if t_inside[c] & writes:  # linear_logp.py:89
                logp[t[c]] = chosen_2[c]  # linear_logp.py:89
            if t_inside[c] & writes:  # linear_logp.py:89
                lse[t[c]] = chosen_3[c]  # linear_logp.py:89


def call(kernels, ids, m, s, hits, logp, lse, ignore_index, vocabulary, T, m_r_stride, s_r_stride, hits_r_stride, errors):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = ((T + 127) // 128)
    if programs > 0:
        kernels.linear_logp_join((programs,), ids, m, s, hits, logp, lse, T, m_r_stride, s_r_stride, hits_r_stride, errors, ignore_index, vocabulary)
