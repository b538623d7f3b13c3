"""prefix_attention on gfx942, written by rlk 0.1.0: do not edit.

numerics: 6513d429a8c85010
schedule: tiles C*G=64, W=128, 4 warps, 1 stages, unroll 1
schedule: tiles Q*G=64, W=128, 4 warps, 1 stages, unroll 1
inputs:
  q: bf16 [T, H=8, G=4, E=128]
  k_prefix: bf16 [K, H=8, E=128]
  v_prefix: bf16 [K, H=8, W=128]
  begin_prefix: i32 [N]
  end_prefix: i32 [N]
  begin_asks: i32 [N]
  end_asks: i32 [N]
  place: i32 [T]
  k: bf16 [S, H=8, E=128]
  v: bf16 [S, H=8, W=128]
  begin_shared: i32 [B]
  end_shared: i32 [B]
  begin_q: i32 [B]
  end_q: i32 [B]
  begin_k: i32 [B]
  end_k: i32 [B]
outputs:
  o: bf16 [T, H=8, G=4, W=128]
  lse: f32 [H=8, G=4, T]
scalars:
  scale: f32
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
def imax_over_c_g(x, x_reduce_smem, thread):
    # The imax over C*G, in any order.
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 8, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = imax(x[c], x_reduce_smem[c, thread ^ 64])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = imax(x[c], x_reduce_smem[c, thread ^ 128])


@tl.macro
def imax_over_q_g(x, x_reduce_smem, thread):
    # The imax over Q*G, in any order.
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = imax(x[c], tl.shfl_xor(x[c], 8, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = imax(x[c], x_reduce_smem[c, thread ^ 64])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = imax(x[c], x_reduce_smem[c, thread ^ 128])


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
def max_over_k_lane(x):
    # The max over K.lane, in any order.
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
def number_of(i):
    # The f32 of these bits.
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
    # Segment of a tile of rows: segment i starts at tile begin[i] * each // rows + i.
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
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def sum_over_k_lane(x):
    # The sum over K.lane, halving.
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
def prefix_attention_1(
    q: memory("q", "bfloat16"), k_prefix: memory("k_prefix", "bfloat16"), v_prefix: memory("v_prefix", "bfloat16"),
    begin_prefix: memory("begin_prefix", "int32"), end_prefix: memory("end_prefix", "int32"),
    begin_asks: memory("begin_asks", "int32"), end_asks: memory("end_asks", "int32"), place: memory("place", "int32"),
    m_of_piece: memory("m_of_piece", "float32"), s_of_piece: memory("s_of_piece", "float32"),
    o_of_piece: memory("o_of_piece", "float32"), m_of_prompt: memory("m_of_prompt", "float32"),
    s_of_prompt: memory("s_of_prompt", "float32"), o_of_prompt: memory("o_of_prompt", "float32"), C: tl.int32,
    N: tl.int32, T: tl.int32, q_t_stride: tl.int64, q_h_stride: tl.int64, q_g_stride: tl.int64,
    k_prefix_k_stride: tl.int64, k_prefix_h_stride: tl.int64, v_prefix_k_stride: tl.int64, v_prefix_h_stride: tl.int64,
    m_of_piece_t_stride: tl.int64, m_of_piece_h_stride: tl.int64, s_of_piece_t_stride: tl.int64,
    s_of_piece_h_stride: tl.int64, o_of_piece_t_stride: tl.int64, o_of_piece_h_stride: tl.int64,
    o_of_piece_g_stride: tl.int64, m_of_prompt_t_stride: tl.int64, m_of_prompt_h_stride: tl.int64,
    s_of_prompt_t_stride: tl.int64, s_of_prompt_h_stride: tl.int64, o_of_prompt_t_stride: tl.int64,
    o_of_prompt_h_stride: tl.int64, o_of_prompt_g_stride: tl.int64, scale: tl.float32, programs: tl.int32
):
    # A block owns 1 of H, 1 of N, 128 of W, 64 of C*G (back_to_back_gemm). C*G: 64 indices, 1 to each of 64 threads;
    # K.lane: 64 indices, 16 to each of 4 threads; W: 128 indices, 32 to each of 4 threads; E: 128 indices, 32 to each
    # of 4 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        i32_reduce_smem = tl.alloc_shared((1, 256), "int32", "shared")
        w = tl.alloc_local((32,), "int32")
        e = tl.alloc_local((32,), "int32")
        k_prefix_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        v_prefix_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        q_value = tl.alloc_local((32,), "bfloat16")
        imax_c_g = tl.alloc_local((1,), "int32")
        m_piece = tl.alloc_var("float32")
        l_piece = tl.alloc_var("float32")
        acc_o = tl.alloc_local((32,), "float32")
        m_before = tl.alloc_var("float32")
        l_before = tl.alloc_var("float32")
        o_before = tl.alloc_local((32,), "float32")
        k_prefix_from = tl.alloc_local((4,), "int64")
        v_prefix_from = tl.alloc_local((4,), "int64")
        qk = tl.alloc_local((16,), "float32")
        k_prefix_tile_part = tl.alloc_local((4,), "bfloat16")
        s = tl.alloc_local((16,), "float32")
        o_a_scaled = tl.alloc_local((32,), "float32")
        o_b_scaled = tl.alloc_local((32,), "float32")
        o = tl.alloc_local((32,), "float32")
        s_masked = tl.alloc_local((16,), "float32")
        m_chunk = tl.alloc_local((16,), "float32")
        p_exponent = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        l_chunk = tl.alloc_local((16,), "float32")
        acc_o_scaled = tl.alloc_local((32,), "float32")
        p_bf16 = tl.alloc_local((16,), "bfloat16")
        acc_o_new = tl.alloc_local((32,), "float32")
        v_prefix_tile_part = tl.alloc_local((4,), "bfloat16")
        tiles = tl.alloc_var("int32", C * 4 // 64 + N)
        tile = tl.alloc_var("int32", tiles - 1 - tl.truncmod(block, tiles))
        segments = tl.alloc_var("int32", N)
        n = segment_of(begin_asks, tile, segments, 4, 64)
        begin = tl.alloc_var("int32", tl.Cast("int32", begin_asks[n]) * 4)
        end = tl.alloc_var("int32", tl.Cast("int32", end_asks[n]) * 4)
        first = tl.alloc_var("int32", (tile - (tl.truncdiv(begin, 64) + n)) * 64)
        c_g = first + thread % 16 + thread // 64 * 16
        if first < end - begin:
            h = tl.truncdiv(block, tiles)
            for c in tl.unroll(32):
                w[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            writes = (thread & 48) == 0
            for c in tl.unroll(32):
                e[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            begin_asks_value = tl.alloc_var("int32", begin_asks[n])  # attention.py:249
            end_asks_value = tl.alloc_var("int32", end_asks[n])  # attention.py:250
            c_2 = tl.alloc_var("int32", tl.truncdiv(c_g, tl.int32(4)))
            token = tl.alloc_var("int32", begin_asks_value + c_2)
            end_asks_minus_begin_asks = tl.alloc_var("int32", end_asks_value - begin_asks_value)
            inside = tl.alloc_var("bool", c_2 < end_asks_minus_begin_asks)
            token_ge_0 = tl.alloc_var("bool", 0 <= token)  # attention.py:252
            token_lt_T = tl.alloc_var("bool", token < T)
            q_guard = tl.alloc_var("bool", token_ge_0 & token_lt_T)
            q_guard_2 = tl.alloc_var("bool", inside & q_guard)
            g = tl.alloc_var("int32", tl.truncmod(c_g, tl.int32(4)))
            for c in tl.unroll(32):
                q_value[c] = tl.if_then_else(
                    q_guard_2 & (c_g < end - begin),
                    q[tl.int64(token) * q_t_stride + tl.int64(h) * q_h_stride + tl.int64(g) * q_g_stride + e[c]],
                    tl.Cast("bfloat16", 0)
                )
            begin_prefix_value = tl.alloc_var("int32", begin_prefix[n])  # attention.py:249
            end_prefix_value = tl.alloc_var("int32", end_prefix[n])  # attention.py:253
            place_value = tl.alloc_var(  # attention.py:251
                "int32", tl.if_then_else(inside & (c_g < end - begin), place[token], tl.int32(1073741824))
            )
            scale_value = tl.alloc_var("float32", scale)
            # attention.py:253
            end_prefix_minus_begin_prefix = tl.alloc_var("int32", end_prefix_value - begin_prefix_value)
            whole_quotient = tl.alloc_var("int32", tl.truncdiv(end_prefix_minus_begin_prefix, tl.int32(64)))
            whole = tl.alloc_var("int32", whole_quotient * 64)
            begin_prefix_plus_whole = tl.alloc_var("int32", begin_prefix_value + whole)  # attention.py:255
            place_plus_1 = tl.alloc_var("int32", place_value + 1)  # attention.py:313
            until = tl.alloc_var("int32", place_plus_1 + begin_prefix_value)
            length_difference = tl.alloc_var("int32", begin_prefix_plus_whole - begin_prefix_value)  # attention.py:255
            length = tl.alloc_var("int32", tl.max(tl.int32(0), length_difference))
            until_minus_begin_prefix = tl.alloc_var("int32", until - begin_prefix_value)
            visible = tl.alloc_var("int32", tl.max(tl.int32(0), until_minus_begin_prefix))
            seen = tl.alloc_var("int32", tl.min(length, visible))
            seen_plus_63 = tl.alloc_var("int32", seen + 63)
            steps = tl.alloc_var("int32", tl.truncdiv(seen_plus_63, tl.int32(64)))
            scale_times_log2e = tl.alloc_var("float32", scale_value * f32(1.4426950216293335))  # attention.py:281
            imax_c_g[0] = steps  # attention.py:255
            imax_over_c_g(imax_c_g, i32_reduce_smem, thread)
            imax_c_g_2 = imax_c_g[0]
            m_piece = f32(float("-inf"))
            l_piece = f32(0.0)
            for c in tl.unroll(32):
                acc_o[c] = f32(0.0)
            m_before = f32(float("-inf"))
            l_before = f32(-0.0)
            for c in tl.unroll(32):
                o_before[c] = f32(-0.0)
            for k_step in tl.serial(0, imax_c_g_2):
                k_step_times_64 = tl.alloc_var("int32", k_step * 64)
                k_begin = tl.alloc_var("int32", begin_prefix_value + k_step_times_64)
                tl.sync_threads()  # attention.py:256
                for c in tl.unroll(4):
                    k_prefix_from[c] = tl.Select(
                        ((k_begin + (thread // 16 + c * 16)) < begin_prefix_plus_whole),
                        tl.int64(
                            tl.int64((k_begin + (thread // 16 + c * 16))) * k_prefix_k_stride
                            + tl.int64(h) * k_prefix_h_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if k_prefix_from[c] != -1:
                        for i in tl.unroll(8):
                            k_prefix_tile[row, at + i] = k_prefix[k_prefix_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            k_prefix_tile[row, at + i] = tl.Cast("bfloat16", 0)
                for c in tl.unroll(4):  # attention.py:257
                    v_prefix_from[c] = tl.Select(
                        ((k_begin + (thread // 16 + c * 16)) < begin_prefix_plus_whole),
                        tl.int64(
                            tl.int64((k_begin + (thread // 16 + c * 16))) * v_prefix_k_stride
                            + tl.int64(h) * v_prefix_h_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if v_prefix_from[c] != -1:
                        for i in tl.unroll(8):
                            v_prefix_tile[row, at + i] = v_prefix[v_prefix_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            v_prefix_tile[row, at + i] = tl.Cast("bfloat16", 0)
                tl.sync_threads()  # attention.py:247
                for c in tl.unroll(16):
                    qk[c] = f32(0.0)
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            k_prefix_tile_part[i] = k_prefix_tile[
                                column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i
                            ]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            k_prefix_tile_part.data, 0, q_value.data, step, qk.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:281
                    s[c] = qk[c] * scale_times_log2e
                k_step_mod_8 = tl.alloc_var("int32", tl.truncmod(k_step, tl.int32(8)))  # attention.py:255
                new_piece = tl.alloc_var("bool", k_step_mod_8 == 0)
                if new_piece:
                    m = tl.alloc_var("float32", larger(m_before, m_piece))  # attention.py:257
                    is_empty = tl.alloc_var("bool", m == f32(float("-inf")))
                    m_safe = tl.alloc_var("float32", tl.Select(is_empty, f32(0.0), m))
                    alpha_a_exponent = tl.alloc_var("float32", m_before - m_safe)
                    alpha_a = tl.alloc_var("float32", portable_exp2(alpha_a_exponent))
                    alpha_b_exponent = tl.alloc_var("float32", m_piece - m_safe)
                    alpha_b = tl.alloc_var("float32", portable_exp2(alpha_b_exponent))
                    l_a_scaled = tl.alloc_var("float32", l_before * alpha_a)
                    l_b_scaled = tl.alloc_var("float32", l_piece * alpha_b)
                    l = tl.alloc_var("float32", l_a_scaled + l_b_scaled)
                    for c in tl.unroll(32):
                        o_a_scaled[c] = o_before[c] * alpha_a
                        o_b_scaled[c] = acc_o[c] * alpha_b
                        o[c] = o_a_scaled[c] + o_b_scaled[c]
                    m_piece = f32(float("-inf"))
                    m_before = m
                    l_before = l
                    for c in tl.unroll(32):
                        o_before[c] = o[c]
                for c in tl.unroll(16):
                    s_masked[c] = tl.Select(
                        (
                            ((k_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < begin_prefix_plus_whole)
                            & ((k_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < until)
                        ),
                        s[c], f32(float("-inf"))
                    )
                    m_chunk[c] = s_masked[c]
                max_over_k_lane(m_chunk)
                m_chunk_2 = m_chunk[0]
                # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
                m_limit = tl.alloc_var("float32", m_piece + f32(8.0))
                m_grows = tl.alloc_var("bool", m_limit < m_chunk_2)
                m_new = tl.alloc_var("float32", tl.Select(m_grows, m_chunk_2, m_piece))
                is_empty_2 = tl.alloc_var("bool", m_new == f32(float("-inf")))
                m_safe_2 = tl.alloc_var("float32", tl.Select(is_empty_2, f32(0.0), m_new))
                alpha_exponent = tl.alloc_var("float32", m_piece - m_safe_2)
                alpha = tl.alloc_var("float32", portable_exp2(alpha_exponent))
                for c in tl.unroll(16):
                    p_exponent[c] = s_masked[c] - m_safe_2
                    p[c] = portable_exp2(p_exponent[c])
                l_scaled = tl.alloc_var("float32", l_piece * alpha)
                for c in tl.unroll(16):
                    l_chunk[c] = p[c]
                sum_over_k_lane(l_chunk)
                l_chunk_2 = l_chunk[0]
                l_new = tl.alloc_var("float32", l_scaled + l_chunk_2)
                for c in tl.unroll(32):
                    acc_o_scaled[c] = acc_o[c] * alpha
                for c in tl.unroll(16):
                    p_bf16[c] = tl.Cast("bfloat16", p[c])
                for c in tl.unroll(32):
                    acc_o_new[c] = acc_o_scaled[c]
                for column in tl.unroll(8):
                    for step in tl.unroll(4):
                        for i in tl.unroll(4):
                            v_prefix_tile_part[i] = v_prefix_tile[
                                step * 16 + thread // 16 % 4 * 4 + i, column * 16 + thread % 16
                            ]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            v_prefix_tile_part.data, 0, p_bf16.data, step, acc_o_new.data, column, dtype="float32x4"
                        )
                m_piece = m_new
                l_piece = l_new
                for c in tl.unroll(32):
                    acc_o[c] = acc_o_new[c]
            if inside & (c_g < end - begin) & writes:  # attention.py:289
                m_of_piece[tl.int64(token) * m_of_piece_t_stride + tl.int64(h) * m_of_piece_h_stride + g] = m_piece
            if inside & (c_g < end - begin) & writes:
                s_of_piece[tl.int64(token) * s_of_piece_t_stride + tl.int64(h) * s_of_piece_h_stride + g] = l_piece
            for c in tl.unroll(32):
                if inside & (c_g < end - begin):
                    o_of_piece[
                        tl.int64(token) * o_of_piece_t_stride + tl.int64(h) * o_of_piece_h_stride
                        + tl.int64(g) * o_of_piece_g_stride + w[c]
                    ] = acc_o[c]
            if inside & (c_g < end - begin) & writes:
                m_of_prompt[tl.int64(token) * m_of_prompt_t_stride + tl.int64(h) * m_of_prompt_h_stride + g] = m_before
            if inside & (c_g < end - begin) & writes:
                s_of_prompt[tl.int64(token) * s_of_prompt_t_stride + tl.int64(h) * s_of_prompt_h_stride + g] = l_before
            for c in tl.unroll(32):
                if inside & (c_g < end - begin):
                    o_of_prompt[
                        tl.int64(token) * o_of_prompt_t_stride + tl.int64(h) * o_of_prompt_h_stride
                        + tl.int64(g) * o_of_prompt_g_stride + w[c]
                    ] = o_before[c]


@tl.prim_func
def prefix_attention_2(
    q: memory("q", "bfloat16"), k_prefix: memory("k_prefix", "bfloat16"), v_prefix: memory("v_prefix", "bfloat16"),
    k: memory("k", "bfloat16"), v: memory("v", "bfloat16"), begin_shared: memory("begin_shared", "int32"),
    end_shared: memory("end_shared", "int32"), begin_q: memory("begin_q", "int32"), end_q: memory("end_q", "int32"),
    begin_k: memory("begin_k", "int32"), end_k: memory("end_k", "int32"), m_of_piece: memory("m_of_piece", "float32"),
    s_of_piece: memory("s_of_piece", "float32"), o_of_piece: memory("o_of_piece", "float32"),
    m_of_prompt: memory("m_of_prompt", "float32"), s_of_prompt: memory("s_of_prompt", "float32"),
    o_of_prompt: memory("o_of_prompt", "float32"), o: memory("o", "bfloat16"), lse: memory("lse", "float32"),
    Q: tl.int32, B: tl.int32, T: tl.int32, q_t_stride: tl.int64, q_h_stride: tl.int64, q_g_stride: tl.int64,
    m_of_piece_t_stride: tl.int64, m_of_piece_h_stride: tl.int64, s_of_piece_t_stride: tl.int64,
    s_of_piece_h_stride: tl.int64, o_of_piece_t_stride: tl.int64, o_of_piece_h_stride: tl.int64,
    o_of_piece_g_stride: tl.int64, m_of_prompt_t_stride: tl.int64, m_of_prompt_h_stride: tl.int64,
    s_of_prompt_t_stride: tl.int64, s_of_prompt_h_stride: tl.int64, o_of_prompt_t_stride: tl.int64,
    o_of_prompt_h_stride: tl.int64, o_of_prompt_g_stride: tl.int64, k_s_stride: tl.int64, k_h_stride: tl.int64,
    k_prefix_k_stride: tl.int64, k_prefix_h_stride: tl.int64, v_s_stride: tl.int64, v_h_stride: tl.int64,
    v_prefix_k_stride: tl.int64, v_prefix_h_stride: tl.int64, o_t_stride: tl.int64, o_h_stride: tl.int64,
    o_g_stride: tl.int64, lse_h_stride: tl.int64, lse_g_stride: tl.int64, scale: tl.float32, programs: tl.int32
):
    # A block owns 1 of H, 128 of W, 1 of B, 64 of Q*G (back_to_back_gemm). Q*G: 64 indices, 1 to each of 64 threads;
    # S.lane: 64 indices, 16 to each of 4 threads; W: 128 indices, 32 to each of 4 threads; E: 128 indices, 32 to each
    # of 4 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        i32_reduce_smem = tl.alloc_shared((1, 256), "int32", "shared")
        w = tl.alloc_local((32,), "int32")
        e = tl.alloc_local((32,), "int32")
        k_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        v_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        q_value = tl.alloc_local((32,), "bfloat16")
        o_of_piece_value = tl.alloc_local((32,), "float32")
        o_of_prompt_value = tl.alloc_local((32,), "float32")
        imax_q_g = tl.alloc_local((1,), "int32")
        m_piece = tl.alloc_var("float32")
        l_piece = tl.alloc_var("float32")
        acc_o = tl.alloc_local((32,), "float32")
        m_before = tl.alloc_var("float32")
        l_before = tl.alloc_var("float32")
        o_before = tl.alloc_local((32,), "float32")
        k_from = tl.alloc_local((4,), "int64")
        k_prefix_from = tl.alloc_local((4,), "int64")
        v_from = tl.alloc_local((4,), "int64")
        v_prefix_from = tl.alloc_local((4,), "int64")
        qk = tl.alloc_local((16,), "float32")
        k_tile_part = tl.alloc_local((4,), "bfloat16")
        s = tl.alloc_local((16,), "float32")
        o_a_scaled = tl.alloc_local((32,), "float32")
        o_b_scaled = tl.alloc_local((32,), "float32")
        o_value = tl.alloc_local((32,), "float32")
        s_masked = tl.alloc_local((16,), "float32")
        m_chunk = tl.alloc_local((16,), "float32")
        p_exponent = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        l_chunk = tl.alloc_local((16,), "float32")
        acc_o_scaled = tl.alloc_local((32,), "float32")
        p_bf16 = tl.alloc_local((16,), "bfloat16")
        acc_o_new = tl.alloc_local((32,), "float32")
        v_tile_part = tl.alloc_local((4,), "bfloat16")
        o_a_scaled_2 = tl.alloc_local((32,), "float32")
        o_b_scaled_2 = tl.alloc_local((32,), "float32")
        o_value_2 = tl.alloc_local((32,), "float32")
        o_over_l = tl.alloc_local((32,), "float32")
        o_over_l_or_0 = tl.alloc_local((32,), "float32")
        mean = tl.alloc_local((32,), "float32")
        mean_bf16 = tl.alloc_local((32,), "bfloat16")
        tiles = tl.alloc_var("int32", Q * 4 // 64 + B)
        tile = tl.alloc_var("int32", tiles - 1 - tl.truncmod(block, tiles))
        segments = tl.alloc_var("int32", B)
        b = segment_of(begin_q, tile, segments, 4, 64)
        begin = tl.alloc_var("int32", tl.Cast("int32", begin_q[b]) * 4)
        end = tl.alloc_var("int32", tl.Cast("int32", end_q[b]) * 4)
        first = tl.alloc_var("int32", (tile - (tl.truncdiv(begin, 64) + b)) * 64)
        q_g = first + thread % 16 + thread // 64 * 16
        if first < end - begin:
            h = tl.truncdiv(block, tiles)
            for c in tl.unroll(32):
                w[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            writes = (thread & 48) == 0
            for c in tl.unroll(32):
                e[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            begin_q_value = tl.alloc_var("int32", begin_q[b])  # attention.py:305
            end_q_value = tl.alloc_var("int32", end_q[b])  # attention.py:306
            g = tl.alloc_var("int32", tl.truncmod(q_g, tl.int32(4)))  # attention.py:252
            query = tl.alloc_var("int32", tl.truncdiv(q_g, tl.int32(4)))  # attention.py:305
            count = tl.alloc_var("int32", end_q_value - begin_q_value)  # attention.py:306
            token = tl.alloc_var("int32", begin_q_value + query)  # attention.py:307
            inside = tl.alloc_var("bool", query < count)
            token_ge_0 = tl.alloc_var("bool", 0 <= token)  # attention.py:263
            token_lt_T = tl.alloc_var("bool", token < T)
            q_guard = tl.alloc_var("bool", token_ge_0 & token_lt_T)
            q_guard_2 = tl.alloc_var("bool", inside & q_guard)
            for c in tl.unroll(32):
                q_value[c] = tl.if_then_else(
                    q_guard_2 & (q_g < end - begin),
                    q[tl.int64(token) * q_t_stride + tl.int64(h) * q_h_stride + tl.int64(g) * q_g_stride + e[c]],
                    tl.Cast("bfloat16", 0)
                )
            begin_shared_value = tl.alloc_var("int32", begin_shared[b])  # attention.py:259
            begin_k_value = tl.alloc_var("int32", begin_k[b])
            end_shared_value = tl.alloc_var("int32", end_shared[b])  # attention.py:260
            end_k_value = tl.alloc_var("int32", end_k[b])  # attention.py:261
            scale_value = tl.alloc_var("float32", scale)
            scale_times_log2e = tl.alloc_var("float32", scale_value * f32(1.4426950216293335))  # attention.py:281
            shared = tl.alloc_var("int32", end_shared_value - begin_shared_value)  # attention.py:260
            end_k_minus_begin_k = tl.alloc_var("int32", end_k_value - begin_k_value)  # attention.py:261
            keys = tl.alloc_var("int32", shared + end_k_minus_begin_k)
            keys_minus_count = tl.alloc_var("int32", keys - count)  # attention.py:307
            key = tl.alloc_var("int32", query + keys_minus_count)
            m_of_piece_value = tl.alloc_var(  # attention.py:264
                "float32",
                tl.if_then_else(
                    inside & (q_g < end - begin),
                    m_of_piece[tl.int64(token) * m_of_piece_t_stride + tl.int64(h) * m_of_piece_h_stride + g],
                    tl.Cast("float32", 0)
                )
            )
            s_of_piece_value = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    inside & (q_g < end - begin),
                    s_of_piece[tl.int64(token) * s_of_piece_t_stride + tl.int64(h) * s_of_piece_h_stride + g],
                    tl.Cast("float32", 0)
                )
            )
            for c in tl.unroll(32):
                o_of_piece_value[c] = tl.if_then_else(
                    inside & (q_g < end - begin),
                    o_of_piece[
                        tl.int64(token) * o_of_piece_t_stride + tl.int64(h) * o_of_piece_h_stride
                        + tl.int64(g) * o_of_piece_g_stride + w[c]
                    ],
                    tl.Cast("float32", 0)
                )
            m_of_prompt_value = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    inside & (q_g < end - begin),
                    m_of_prompt[tl.int64(token) * m_of_prompt_t_stride + tl.int64(h) * m_of_prompt_h_stride + g],
                    tl.Cast("float32", 0)
                )
            )
            s_of_prompt_value = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    inside & (q_g < end - begin),
                    s_of_prompt[tl.int64(token) * s_of_prompt_t_stride + tl.int64(h) * s_of_prompt_h_stride + g],
                    tl.Cast("float32", 0)
                )
            )
            for c in tl.unroll(32):
                o_of_prompt_value[c] = tl.if_then_else(
                    inside & (q_g < end - begin),
                    o_of_prompt[
                        tl.int64(token) * o_of_prompt_t_stride + tl.int64(h) * o_of_prompt_h_stride
                        + tl.int64(g) * o_of_prompt_g_stride + w[c]
                    ],
                    tl.Cast("float32", 0)
                )
            shared_over_64 = tl.alloc_var("int32", tl.truncdiv(shared, tl.int32(64)))  # attention.py:265
            skipped = tl.alloc_var("int32", shared_over_64 * 64)
            key_plus_1 = tl.alloc_var("int32", key + 1)  # attention.py:313
            length = tl.alloc_var("int32", tl.max(tl.int32(0), keys))  # attention.py:266
            visible = tl.alloc_var("int32", tl.max(tl.int32(0), key_plus_1))
            seen = tl.alloc_var("int32", tl.min(length, visible))
            skipped_over_64 = tl.alloc_var("int32", tl.truncdiv(skipped, tl.int32(64)))
            first_step = tl.alloc_var("int32", tl.max(tl.int32(0), skipped_over_64))
            seen_plus_63 = tl.alloc_var("int32", seen + 63)
            steps = tl.alloc_var("int32", tl.truncdiv(seen_plus_63, tl.int32(64)))
            imax_q_g[0] = steps
            imax_over_q_g(imax_q_g, i32_reduce_smem, thread)
            imax_q_g_2 = imax_q_g[0]
            m_piece = m_of_piece_value
            l_piece = s_of_piece_value
            for c in tl.unroll(32):
                acc_o[c] = o_of_piece_value[c]
            m_before = m_of_prompt_value
            l_before = s_of_prompt_value
            for c in tl.unroll(32):
                o_before[c] = o_of_prompt_value[c]
            for s_step in tl.serial(first_step, imax_q_g_2):
                s_step_times_64 = tl.alloc_var("int32", s_step * 64)
                tl.sync_threads()  # attention.py:270
                for c in tl.unroll(4):
                    k_from[c] = tl.Select(
                        (
                            ((s_step_times_64 + (thread // 16 + c * 16)) < keys)
                            & (shared <= (s_step_times_64 + (thread // 16 + c * 16)))
                        ),
                        tl.int64(
                            tl.int64((begin_k_value + ((s_step_times_64 + (thread // 16 + c * 16)) - shared)))
                            * k_s_stride
                            + tl.int64(h) * k_h_stride
                        ),
                        tl.int64(-1)
                    )
                    k_prefix_from[c] = tl.Select(
                        (
                            ((s_step_times_64 + (thread // 16 + c * 16)) < keys)
                            & (tl.Not((shared <= (s_step_times_64 + (thread // 16 + c * 16)))))
                        ),
                        tl.int64(
                            tl.int64((begin_shared_value + (s_step_times_64 + (thread // 16 + c * 16))))
                            * k_prefix_k_stride
                            + tl.int64(h) * k_prefix_h_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if k_from[c] != -1:
                        for i in tl.unroll(8):
                            k_tile[row, at + i] = k[k_from[c] + at + i]
                    else:
                        if k_prefix_from[c] != -1:
                            for i in tl.unroll(8):
                                k_tile[row, at + i] = k_prefix[k_prefix_from[c] + at + i]
                        else:
                            for i in tl.unroll(8):
                                k_tile[row, at + i] = tl.Cast("bfloat16", 0)
                for c in tl.unroll(4):
                    v_from[c] = tl.Select(
                        (
                            ((s_step_times_64 + (thread // 16 + c * 16)) < keys)
                            & (shared <= (s_step_times_64 + (thread // 16 + c * 16)))
                        ),
                        tl.int64(
                            tl.int64((begin_k_value + ((s_step_times_64 + (thread // 16 + c * 16)) - shared)))
                            * v_s_stride
                            + tl.int64(h) * v_h_stride
                        ),
                        tl.int64(-1)
                    )
                    v_prefix_from[c] = tl.Select(
                        (
                            ((s_step_times_64 + (thread // 16 + c * 16)) < keys)
                            & (tl.Not((shared <= (s_step_times_64 + (thread // 16 + c * 16)))))
                        ),
                        tl.int64(
                            tl.int64((begin_shared_value + (s_step_times_64 + (thread // 16 + c * 16))))
                            * v_prefix_k_stride
                            + tl.int64(h) * v_prefix_h_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if v_from[c] != -1:
                        for i in tl.unroll(8):
                            v_tile[row, at + i] = v[v_from[c] + at + i]
                    else:
                        if v_prefix_from[c] != -1:
                            for i in tl.unroll(8):
                                v_tile[row, at + i] = v_prefix[v_prefix_from[c] + at + i]
                        else:
                            for i in tl.unroll(8):
                                v_tile[row, at + i] = tl.Cast("bfloat16", 0)
                tl.sync_threads()  # attention.py:247
                for c in tl.unroll(16):
                    qk[c] = f32(0.0)
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            k_tile_part[i] = k_tile[column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            k_tile_part.data, 0, q_value.data, step, qk.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:281
                    s[c] = qk[c] * scale_times_log2e
                s_step_mod_8 = tl.alloc_var("int32", tl.truncmod(s_step, tl.int32(8)))  # attention.py:266
                new_piece = tl.alloc_var("bool", s_step_mod_8 == 0)
                if new_piece:
                    m = tl.alloc_var("float32", larger(m_before, m_piece))  # attention.py:274
                    is_empty = tl.alloc_var("bool", m == f32(float("-inf")))
                    m_safe = tl.alloc_var("float32", tl.Select(is_empty, f32(0.0), m))
                    alpha_a_exponent = tl.alloc_var("float32", m_before - m_safe)
                    alpha_a = tl.alloc_var("float32", portable_exp2(alpha_a_exponent))
                    alpha_b_exponent = tl.alloc_var("float32", m_piece - m_safe)
                    alpha_b = tl.alloc_var("float32", portable_exp2(alpha_b_exponent))
                    l_a_scaled = tl.alloc_var("float32", l_before * alpha_a)
                    l_b_scaled = tl.alloc_var("float32", l_piece * alpha_b)
                    l = tl.alloc_var("float32", l_a_scaled + l_b_scaled)
                    for c in tl.unroll(32):
                        o_a_scaled[c] = o_before[c] * alpha_a
                        o_b_scaled[c] = acc_o[c] * alpha_b
                        o_value[c] = o_a_scaled[c] + o_b_scaled[c]
                    m_piece = f32(float("-inf"))
                    m_before = m
                    l_before = l
                    for c in tl.unroll(32):
                        o_before[c] = o_value[c]
                for c in tl.unroll(16):
                    s_masked[c] = tl.Select(
                        (
                            ((s_step_times_64 + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < keys)
                            & ((s_step_times_64 + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < key_plus_1)
                        ),
                        s[c], f32(float("-inf"))
                    )
                    m_chunk[c] = s_masked[c]
                max_over_s_lane(m_chunk)
                m_chunk_2 = m_chunk[0]
                # numerators of up to 2 ** 8 keep the scale: most chunks rescale no sum
                m_limit = tl.alloc_var("float32", m_piece + f32(8.0))
                m_grows = tl.alloc_var("bool", m_limit < m_chunk_2)
                m_new = tl.alloc_var("float32", tl.Select(m_grows, m_chunk_2, m_piece))
                is_empty_2 = tl.alloc_var("bool", m_new == f32(float("-inf")))
                m_safe_2 = tl.alloc_var("float32", tl.Select(is_empty_2, f32(0.0), m_new))
                alpha_exponent = tl.alloc_var("float32", m_piece - m_safe_2)
                alpha = tl.alloc_var("float32", portable_exp2(alpha_exponent))
                for c in tl.unroll(16):
                    p_exponent[c] = s_masked[c] - m_safe_2
                    p[c] = portable_exp2(p_exponent[c])
                l_scaled = tl.alloc_var("float32", l_piece * alpha)
                for c in tl.unroll(16):
                    l_chunk[c] = p[c]
                sum_over_s_lane(l_chunk)
                l_chunk_2 = l_chunk[0]
                l_new = tl.alloc_var("float32", l_scaled + l_chunk_2)
                for c in tl.unroll(32):
                    acc_o_scaled[c] = acc_o[c] * alpha
                for c in tl.unroll(16):
                    p_bf16[c] = tl.Cast("bfloat16", p[c])
                for c in tl.unroll(32):
                    acc_o_new[c] = acc_o_scaled[c]
                for column in tl.unroll(8):
                    for step in tl.unroll(4):
                        for i in tl.unroll(4):
                            v_tile_part[i] = v_tile[step * 16 + thread // 16 % 4 * 4 + i, column * 16 + thread % 16]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            v_tile_part.data, 0, p_bf16.data, step, acc_o_new.data, column, dtype="float32x4"
                        )
                m_piece = m_new
                l_piece = l_new
                for c in tl.unroll(32):
                    acc_o[c] = acc_o_new[c]
            m_2 = tl.alloc_var("float32", larger(m_before, m_piece))
            is_empty_3 = tl.alloc_var("bool", m_2 == f32(float("-inf")))
            m_safe_3 = tl.alloc_var("float32", tl.Select(is_empty_3, f32(0.0), m_2))
            alpha_a_exponent_2 = tl.alloc_var("float32", m_before - m_safe_3)
            alpha_a_2 = tl.alloc_var("float32", portable_exp2(alpha_a_exponent_2))
            alpha_b_exponent_2 = tl.alloc_var("float32", m_piece - m_safe_3)
            alpha_b_2 = tl.alloc_var("float32", portable_exp2(alpha_b_exponent_2))
            l_a_scaled_2 = tl.alloc_var("float32", l_before * alpha_a_2)
            l_b_scaled_2 = tl.alloc_var("float32", l_piece * alpha_b_2)
            l_2 = tl.alloc_var("float32", l_a_scaled_2 + l_b_scaled_2)
            for c in tl.unroll(32):
                o_a_scaled_2[c] = o_before[c] * alpha_a_2
                o_b_scaled_2[c] = acc_o[c] * alpha_b_2
                o_value_2[c] = o_a_scaled_2[c] + o_b_scaled_2[c]
            l_is_0 = tl.alloc_var("bool", l_2 == f32(0.0))  # attention.py:329
            for c in tl.unroll(32):
                o_over_l[c] = o_value_2[c] / l_2
                o_over_l_or_0[c] = tl.Select(l_is_0, f32(0.0), o_over_l[c])
                mean[c] = o_over_l_or_0[c] + f32(0.0)
                mean_bf16[c] = tl.Cast("bfloat16", mean[c])  # attention.py:330
                if inside & (q_g < end - begin):
                    o[
                        tl.int64(token) * o_t_stride + tl.int64(h) * o_h_stride + tl.int64(g) * o_g_stride + w[c]
                    ] = mean_bf16[c]
            log_l = tl.alloc_var("float32", portable_log(l_2))  # attention.py:331
            lse_value = tl.alloc_var("float32", fma(m_2, f32(0.6931471824645996), log_l))
            if inside & (q_g < end - begin) & writes:
                lse[tl.int64(h) * lse_h_stride + tl.int64(g) * lse_g_stride + token] = lse_value


def call(
    kernels, q, k_prefix, v_prefix, begin_prefix, end_prefix, begin_asks, end_asks, place, m_of_piece, s_of_piece,
    o_of_piece, m_of_prompt, s_of_prompt, o_of_prompt, k, v, begin_shared, end_shared, begin_q, end_q, begin_k, end_k,
    o, lse, scale, C, N, T, Q, B, q_t_stride, q_h_stride, q_g_stride, k_prefix_k_stride, k_prefix_h_stride,
    v_prefix_k_stride, v_prefix_h_stride, m_of_piece_t_stride, m_of_piece_h_stride, s_of_piece_t_stride,
    s_of_piece_h_stride, o_of_piece_t_stride, o_of_piece_h_stride, o_of_piece_g_stride, m_of_prompt_t_stride,
    m_of_prompt_h_stride, s_of_prompt_t_stride, s_of_prompt_h_stride, o_of_prompt_t_stride, o_of_prompt_h_stride,
    o_of_prompt_g_stride, k_s_stride, k_h_stride, v_s_stride, v_h_stride, o_t_stride, o_h_stride, o_g_stride,
    lse_h_stride, lse_g_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = (C * 4 // 64 + N) * 8 * 1
    if programs > 0:
        kernels.prefix_attention_1(
            (programs,), q, k_prefix, v_prefix, begin_prefix, end_prefix, begin_asks, end_asks, place, m_of_piece,
            s_of_piece, o_of_piece, m_of_prompt, s_of_prompt, o_of_prompt, C, N, T, q_t_stride, q_h_stride, q_g_stride,
            k_prefix_k_stride, k_prefix_h_stride, v_prefix_k_stride, v_prefix_h_stride, m_of_piece_t_stride,
            m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride, o_of_piece_t_stride, o_of_piece_h_stride,
            o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride, s_of_prompt_t_stride, s_of_prompt_h_stride,
            o_of_prompt_t_stride, o_of_prompt_h_stride, o_of_prompt_g_stride, scale
        )
    programs = (Q * 4 // 64 + B) * 8 * 1
    if programs > 0:
        kernels.prefix_attention_2(
            (programs,), q, k_prefix, v_prefix, k, v, begin_shared, end_shared, begin_q, end_q, begin_k, end_k,
            m_of_piece, s_of_piece, o_of_piece, m_of_prompt, s_of_prompt, o_of_prompt, o, lse, Q, B, T, q_t_stride,
            q_h_stride, q_g_stride, m_of_piece_t_stride, m_of_piece_h_stride, s_of_piece_t_stride, s_of_piece_h_stride,
            o_of_piece_t_stride, o_of_piece_h_stride, o_of_piece_g_stride, m_of_prompt_t_stride, m_of_prompt_h_stride,
            s_of_prompt_t_stride, s_of_prompt_h_stride, o_of_prompt_t_stride, o_of_prompt_h_stride,
            o_of_prompt_g_stride, k_s_stride, k_h_stride, k_prefix_k_stride, k_prefix_h_stride, v_s_stride, v_h_stride,
            v_prefix_k_stride, v_prefix_h_stride, o_t_stride, o_h_stride, o_g_stride, lse_h_stride, lse_g_stride, scale
        )
