"""paged_attention on gfx942, written by rlk 0.1.0: do not edit.

numerics: 5320c50985d40d2f
schedule: tiles Q*G=16, W=128, 1 warps, 1 stages, unroll 1
"""

import struct

import tilelang.language as tl
from tilelang.rocm.language.tir import tvm_mfma


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
def max_over_s_lane(x):
    # The max over S.lane, in any order.
    for c in tl.unroll(8):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(4):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(2):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = larger(x[2 * c], x[2 * c + 1])
    for c in tl.unroll(1):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(1):
        x[c] = larger(x[c], tl.shfl_xor(x[c], 32, width=64))


@tl.macro
def most(a, b):
    # Of integers.
    return tl.max(a, b)


@tl.macro
def most_over_q_g(x):
    # The most over Q*G, in any order.
    for c in tl.unroll(1):
        x[c] = most(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = most(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = most(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = most(x[c], tl.shfl_xor(x[c], 8, width=64))


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
def segment_of(begin, tile, count, each, rows):
    # The segment that a tile of rows lies in: segment i has tiles from begin[i] * each // rows + i on.
    low = tl.alloc_var("int32", 0)
    high = tl.alloc_var("int32", count)
    middle = tl.alloc_var("int32")
    while high - low > 1:
        middle = (low + high) // 2
        if tl.truncdiv(tl.Cast("int32", begin[middle]) * each, rows) + middle > tile:
            high = middle
        else:
            low = middle
    return low


@tl.macro
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return held(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def sum_over_s_lane(x):
    # The sum over S.lane, halving.
    for c in tl.unroll(8):
        x[c] = add(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
    for c in tl.unroll(4):
        x[c] = add(x[c // 4 * 8 + c % 4], x[c // 4 * 8 + c % 4 + 4])
    for c in tl.unroll(4):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(4):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(2):
        x[c] = add(x[c // 2 * 4 + c % 2], x[c // 2 * 4 + c % 2 + 2])
    for c in tl.unroll(1):
        x[c] = add(x[2 * c], x[2 * c + 1])


@tl.prim_func
def paged_attention(
    q: memory("q", "bfloat16"), k_cache: memory("k_cache", "bfloat16"), v_cache: memory("v_cache", "bfloat16"),
    block_table: memory("block_table", "int32"), context_lens: memory("context_lens", "int32"),
    begin_q: memory("begin_q", "int32"), end_q: memory("end_q", "int32"), o: memory("o", "bfloat16"),
    lse: memory("lse", "float32"), Q: tl.int32, B: tl.int32, T: tl.int32, q_t_stride: tl.int64, q_h_stride: tl.int64,
    q_g_stride: tl.int64, M: tl.int32, P: tl.int32, block_table_b_stride: tl.int64, k_cache_p_stride: tl.int64,
    k_cache_o_stride: tl.int64, k_cache_h_stride: tl.int64, v_cache_p_stride: tl.int64, v_cache_o_stride: tl.int64,
    v_cache_h_stride: tl.int64, o_t_stride: tl.int64, o_h_stride: tl.int64, o_g_stride: tl.int64,
    lse_h_stride: tl.int64, lse_g_stride: tl.int64, scale: tl.float32, programs: tl.int32
):
    # A block owns 1 of H, 128 of W, 1 of B, 16 of Q*G (back_to_back_gemm). Q*G: 16 indices, 1 to each of 16 threads;
    # S.lane: 64 indices, 16 to each of 4 threads; W: 128 indices, 32 to each of 4 threads; E: 128 indices, 32 to each
    # of 4 threads.
    with tl.Kernel(programs, threads=64) as block:
        thread = tl.get_thread_binding()
        w = tl.alloc_local((32,), "int32")
        e = tl.alloc_local((32,), "int32")
        k_cache_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        v_cache_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        q_3 = tl.alloc_local((32,), "bfloat16")
        most_q_g = tl.alloc_local((1,), "int32")
        max_of_piece = tl.alloc_var("float32")
        sum_of_piece = tl.alloc_var("float32")
        o_of_piece = tl.alloc_local((32,), "float32")
        m = tl.alloc_var("float32")
        s = tl.alloc_var("float32")
        o_2 = tl.alloc_local((32,), "float32")
        block_table_2 = tl.alloc_local((16,), "int32")
        block_table_3 = tl.alloc_local((16,), "int32")
        k_cache_from = tl.alloc_local((16,), "int64")
        block_table_4 = tl.alloc_local((16,), "int32")
        v_cache_from = tl.alloc_local((16,), "int64")
        z = tl.alloc_local((16,), "float32")
        k_cache_tile_part = tl.alloc_local((4,), "bfloat16")
        product_3 = tl.alloc_local((16,), "float32")
        product_6 = tl.alloc_local((32,), "float32")
        product_7 = tl.alloc_local((32,), "float32")
        total_6 = tl.alloc_local((32,), "float32")
        chosen_2 = tl.alloc_local((16,), "float32")
        m_chunk = tl.alloc_local((16,), "float32")
        difference_6 = tl.alloc_local((16,), "float32")
        e_2 = tl.alloc_local((16,), "float32")
        s_chunk = tl.alloc_local((16,), "float32")
        o_before = tl.alloc_local((32,), "float32")
        p = tl.alloc_local((16,), "bfloat16")
        o_new = tl.alloc_local((32,), "float32")
        v_cache_tile_part = tl.alloc_local((4,), "bfloat16")
        product_11 = tl.alloc_local((32,), "float32")
        product_12 = tl.alloc_local((32,), "float32")
        total_9 = tl.alloc_local((32,), "float32")
        quotient = tl.alloc_local((32,), "float32")
        chosen_5 = tl.alloc_local((32,), "float32")
        total_10 = tl.alloc_local((32,), "float32")
        as_bf16 = tl.alloc_local((32,), "bfloat16")
        tiles = tl.alloc_var("int32", Q * 4 // 16 + B)
        tile = tl.alloc_var("int32", tiles - 1 - tl.truncmod(block, tiles))
        segments = tl.alloc_var("int32", B)
        b = segment_of(begin_q, tile, segments, 4, 16)
        begin = tl.alloc_var("int32", tl.Cast("int32", begin_q[b]) * 4)
        end = tl.alloc_var("int32", tl.Cast("int32", end_q[b]) * 4)
        first = tl.alloc_var("int32", (tile - (tl.truncdiv(begin, 16) + b)) * 16)
        q_g = first + thread % 16
        if first < end - begin:
            h = tl.truncdiv(block, tiles)
            for c in tl.unroll(32):
                w[c] = thread // 16 * 4 + c % 4 + c // 4 * 16
            writes = (thread & 48) == 0
            for c in tl.unroll(32):
                e[c] = thread // 16 * 4 + c % 4 + c // 4 * 16
            begin_q_2 = tl.alloc_var("int32", begin_q[b])  # attention.py:301
            end_q_2 = tl.alloc_var("int32", end_q[b])  # attention.py:302
            q_2 = tl.alloc_var("int32", tl.truncdiv(q_g, tl.int32(4)))  # attention.py:301
            difference = tl.alloc_var("int32", end_q_2 - begin_q_2)  # attention.py:302
            total = tl.alloc_var("int32", begin_q_2 + q_2)  # attention.py:303
            below = tl.alloc_var("bool", q_2 < difference)
            at_most = tl.alloc_var("bool", 0 <= total)  # attention.py:203
            below_2 = tl.alloc_var("bool", total < T)
            both = tl.alloc_var("bool", at_most & below_2)
            both_2 = tl.alloc_var("bool", below & both)
            g = tl.alloc_var("int32", tl.truncmod(q_g, tl.int32(4)))
            for c in tl.unroll(32):
                q_3[c] = tl.if_then_else(
                    both_2 & (q_g < end - begin),
                    q[tl.int64(total) * q_t_stride + tl.int64(h) * q_h_stride + tl.int64(g) * q_g_stride + e[c]],
                    tl.Cast("bfloat16", 0)
                )
            context_lens_2 = tl.alloc_var("int32", context_lens[b])  # attention.py:303
            scale_2 = tl.alloc_var("float32", scale)
            difference_2 = tl.alloc_var("int32", context_lens_2 - difference)
            total_2 = tl.alloc_var("int32", q_2 + difference_2)
            total_3 = tl.alloc_var("int32", total_2 + 1)  # attention.py:309
            larger_2 = tl.alloc_var("int32", tl.max(tl.int32(0), context_lens_2))  # attention.py:205
            larger_3 = tl.alloc_var("int32", tl.max(tl.int32(0), total_3))
            seen = tl.alloc_var("int32", tl.min(larger_2, larger_3))
            full_steps = tl.alloc_var("int32", tl.truncdiv(seen, tl.int32(64)))
            total_4 = tl.alloc_var("int32", seen + 63)
            steps = tl.alloc_var("int32", tl.truncdiv(total_4, tl.int32(64)))
            product = tl.alloc_var("float32", scale_2 * f32(1.4426950216293335))  # attention.py:277
            most_q_g[0] = steps  # attention.py:205
            most_over_q_g(most_q_g)
            most_q_g_2 = most_q_g[0]
            max_of_piece = f32(float("-inf"))
            sum_of_piece = f32(0.0)
            for c in tl.unroll(32):
                o_of_piece[c] = f32(0.0)
            m = f32(float("-inf"))
            s = f32(-0.0)
            for c in tl.unroll(32):
                o_2[c] = f32(-0.0)
            for s_step in tl.serial(0, most_q_g_2):
                product_2 = tl.alloc_var("int32", s_step * 64)
                for c in tl.unroll(16):  # attention.py:206
                    block_table_2[c] = tl.if_then_else(
                        (
                            ((product_2 + (thread // 16 * 4 + c % 4 + c // 4 * 16)) < context_lens_2)
                            & (
                                (
                                    0
                                    <= (
                                        tl.truncdiv(
                                            (product_2 + (thread // 16 * 4 + c % 4 + c // 4 * 16)), tl.int32(64)
                                        )
                                    )
                                )
                                & (
                                    (tl.truncdiv((product_2 + (thread // 16 * 4 + c % 4 + c // 4 * 16)), tl.int32(64)))
                                    < M
                                )
                            )
                        ),
                        block_table[
                            tl.int64(b) * block_table_b_stride
                            + (tl.truncdiv((product_2 + (thread // 16 * 4 + c % 4 + c // 4 * 16)), tl.int32(64)))
                        ],
                        tl.Cast("int32", 0)
                    )
                tl.sync_threads()  # attention.py:207
                for c in tl.unroll(16):
                    block_table_3[c] = tl.if_then_else(
                        (
                            ((product_2 + (thread // 16 + c * 4)) < context_lens_2)
                            & (
                                (0 <= (tl.truncdiv((product_2 + (thread // 16 + c * 4)), tl.int32(64))))
                                & ((tl.truncdiv((product_2 + (thread // 16 + c * 4)), tl.int32(64))) < M)
                            )
                        ),
                        block_table[
                            tl.int64(b) * block_table_b_stride
                            + (tl.truncdiv((product_2 + (thread // 16 + c * 4)), tl.int32(64)))
                        ],
                        tl.Cast("int32", 0)
                    )
                    k_cache_from[c] = tl.Select(
                        (
                            ((product_2 + (thread // 16 + c * 4)) < context_lens_2)
                            & (
                                ((0 <= block_table_3[c]) & (block_table_3[c] < P))
                                & (
                                    (0 <= (tl.truncmod((product_2 + (thread // 16 + c * 4)), tl.int32(64))))
                                    & ((tl.truncmod((product_2 + (thread // 16 + c * 4)), tl.int32(64))) < 64)
                                )
                            )
                        ),
                        tl.int64(
                            tl.int64(block_table_3[c]) * k_cache_p_stride
                            + tl.int64((tl.truncmod((product_2 + (thread // 16 + c * 4)), tl.int32(64))))
                            * k_cache_o_stride
                            + tl.int64(h) * k_cache_h_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(16):
                    row = thread // 16 + c * 4
                    at = thread % 16 * 8
                    if k_cache_from[c] != -1:
                        for i in tl.unroll(8):
                            k_cache_tile[row, at + i] = k_cache[k_cache_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            k_cache_tile[row, at + i] = tl.Cast("bfloat16", 0)
                for c in tl.unroll(16):  # attention.py:208
                    block_table_4[c] = tl.if_then_else(
                        (
                            ((product_2 + (thread // 16 + c * 4)) < context_lens_2)
                            & (
                                (0 <= (tl.truncdiv((product_2 + (thread // 16 + c * 4)), tl.int32(64))))
                                & ((tl.truncdiv((product_2 + (thread // 16 + c * 4)), tl.int32(64))) < M)
                            )
                        ),
                        block_table[
                            tl.int64(b) * block_table_b_stride
                            + (tl.truncdiv((product_2 + (thread // 16 + c * 4)), tl.int32(64)))
                        ],
                        tl.Cast("int32", 0)
                    )
                    v_cache_from[c] = tl.Select(
                        (
                            ((product_2 + (thread // 16 + c * 4)) < context_lens_2)
                            & (
                                ((0 <= block_table_4[c]) & (block_table_4[c] < P))
                                & (
                                    (0 <= (tl.truncmod((product_2 + (thread // 16 + c * 4)), tl.int32(64))))
                                    & ((tl.truncmod((product_2 + (thread // 16 + c * 4)), tl.int32(64))) < 64)
                                )
                            )
                        ),
                        tl.int64(
                            tl.int64(block_table_4[c]) * v_cache_p_stride
                            + tl.int64((tl.truncmod((product_2 + (thread // 16 + c * 4)), tl.int32(64))))
                            * v_cache_o_stride
                            + tl.int64(h) * v_cache_h_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(16):
                    row = thread // 16 + c * 4
                    at = thread % 16 * 8
                    if v_cache_from[c] != -1:
                        for i in tl.unroll(8):
                            v_cache_tile[row, at + i] = v_cache[v_cache_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            v_cache_tile[row, at + i] = tl.Cast("bfloat16", 0)
                tl.sync_threads()  # attention.py:207
                for c in tl.unroll(16):
                    z[c] = f32(0.0)
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            k_cache_tile_part[i] = k_cache_tile[
                                column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i
                            ]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            k_cache_tile_part.data, 0, q_3.data, step, z.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:277
                    product_3[c] = z[c] * product
                remainder = tl.alloc_var("int32", tl.truncmod(s_step, tl.int32(8)))  # attention.py:205
                turn = tl.alloc_var("bool", remainder == 0)
                if turn:
                    m_2 = tl.alloc_var("float32", larger(m, max_of_piece))
                    equal = tl.alloc_var("bool", m_2 == f32(float("-inf")))
                    chosen = tl.alloc_var("float32", tl.Select(equal, f32(0.0), m_2))
                    difference_3 = tl.alloc_var("float32", m - chosen)
                    exp2 = tl.alloc_var("float32", portable_exp2(difference_3))
                    difference_4 = tl.alloc_var("float32", max_of_piece - chosen)
                    exp2_2 = tl.alloc_var("float32", portable_exp2(difference_4))
                    product_4 = tl.alloc_var("float32", s * exp2)
                    product_5 = tl.alloc_var("float32", sum_of_piece * exp2_2)
                    total_5 = tl.alloc_var("float32", product_4 + product_5)
                    for c in tl.unroll(32):
                        product_6[c] = o_2[c] * exp2
                        product_7[c] = o_of_piece[c] * exp2_2
                        total_6[c] = product_6[c] + product_7[c]
                    max_of_piece = f32(float("-inf"))
                    m = m_2
                    s = total_5
                    for c in tl.unroll(32):
                        o_2[c] = total_6[c]
                for c in tl.unroll(16):
                    chosen_2[c] = tl.Select(
                        (
                            ((product_2 + (thread // 16 * 4 + c % 4 + c // 4 * 16)) < context_lens_2)
                            & ((product_2 + (thread // 16 * 4 + c % 4 + c // 4 * 16)) < total_3)
                        ),
                        product_3[c], f32(float("-inf"))
                    )
                    m_chunk[c] = chosen_2[c]
                max_over_s_lane(m_chunk)
                m_chunk_2 = m_chunk[0]
                total_7 = tl.alloc_var("float32", max_of_piece + f32(8.0))
                below_3 = tl.alloc_var("bool", total_7 < m_chunk_2)
                m_new = tl.alloc_var("float32", tl.Select(below_3, m_chunk_2, max_of_piece))
                equal_2 = tl.alloc_var("bool", m_new == f32(float("-inf")))
                chosen_3 = tl.alloc_var("float32", tl.Select(equal_2, f32(0.0), m_new))
                difference_5 = tl.alloc_var("float32", max_of_piece - chosen_3)
                again = tl.alloc_var("float32", portable_exp2(difference_5))
                for c in tl.unroll(16):
                    difference_6[c] = chosen_2[c] - chosen_3
                    e_2[c] = portable_exp2(difference_6[c])
                product_8 = tl.alloc_var("float32", sum_of_piece * again)
                for c in tl.unroll(16):
                    s_chunk[c] = e_2[c]
                sum_over_s_lane(s_chunk)
                s_chunk_2 = s_chunk[0]
                s_new = tl.alloc_var("float32", product_8 + s_chunk_2)
                for c in tl.unroll(32):
                    o_before[c] = o_of_piece[c] * again
                for c in tl.unroll(16):
                    p[c] = tl.Cast("bfloat16", e_2[c])
                for c in tl.unroll(32):
                    o_new[c] = o_before[c]
                for column in tl.unroll(8):
                    for step in tl.unroll(4):
                        for i in tl.unroll(4):
                            v_cache_tile_part[i] = v_cache_tile[
                                step * 16 + thread // 16 % 4 * 4 + i, column * 16 + thread % 16
                            ]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            v_cache_tile_part.data, 0, p.data, step, o_new.data, column, dtype="float32x4"
                        )
                max_of_piece = m_new
                sum_of_piece = s_new
                for c in tl.unroll(32):
                    o_of_piece[c] = o_new[c]
            m_3 = tl.alloc_var("float32", larger(m, max_of_piece))
            equal_3 = tl.alloc_var("bool", m_3 == f32(float("-inf")))
            chosen_4 = tl.alloc_var("float32", tl.Select(equal_3, f32(0.0), m_3))
            difference_7 = tl.alloc_var("float32", m - chosen_4)
            exp2_3 = tl.alloc_var("float32", portable_exp2(difference_7))
            difference_8 = tl.alloc_var("float32", max_of_piece - chosen_4)
            exp2_4 = tl.alloc_var("float32", portable_exp2(difference_8))
            product_9 = tl.alloc_var("float32", s * exp2_3)
            product_10 = tl.alloc_var("float32", sum_of_piece * exp2_4)
            total_8 = tl.alloc_var("float32", product_9 + product_10)
            for c in tl.unroll(32):
                product_11[c] = o_2[c] * exp2_3
                product_12[c] = o_of_piece[c] * exp2_4
                total_9[c] = product_11[c] + product_12[c]
            equal_4 = tl.alloc_var("bool", total_8 == f32(0.0))  # attention.py:325
            for c in tl.unroll(32):
                quotient[c] = total_9[c] / total_8
                chosen_5[c] = tl.Select(equal_4, f32(0.0), quotient[c])
                total_10[c] = chosen_5[c] + f32(0.0)
                as_bf16[c] = tl.Cast("bfloat16", total_10[c])  # attention.py:326
                if below & (q_g < end - begin):
                    o[
                        tl.int64(total) * o_t_stride + tl.int64(h) * o_h_stride + tl.int64(g) * o_g_stride + w[c]
                    ] = as_bf16[c]
            log = tl.alloc_var("float32", portable_log(total_8))  # attention.py:327
            fused = tl.alloc_var("float32", fma(m_3, f32(0.6931471824645996), log))
            if below & (q_g < end - begin) & writes:
                lse[tl.int64(h) * lse_h_stride + tl.int64(g) * lse_g_stride + total] = fused


def call(
    kernels, q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, scale, Q, B, T, M, P, q_t_stride,
    q_h_stride, q_g_stride, block_table_b_stride, k_cache_p_stride, k_cache_o_stride, k_cache_h_stride,
    v_cache_p_stride, v_cache_o_stride, v_cache_h_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (Q * 4 // 16 + B) * 8 * 1
    if programs > 0:
        kernels.paged_attention(
            (programs,), q, k_cache, v_cache, block_table, context_lens, begin_q, end_q, o, lse, Q, B, T, q_t_stride,
            q_h_stride, q_g_stride, M, P, block_table_b_stride, k_cache_p_stride, k_cache_o_stride, k_cache_h_stride,
            v_cache_p_stride, v_cache_o_stride, v_cache_h_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride,
            lse_g_stride, scale
        )
