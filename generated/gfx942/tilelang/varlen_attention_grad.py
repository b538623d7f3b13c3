"""varlen_attention_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: a5008d6ce96d2054
schedule: tiles G=4, T=2, 2 warps, 1 stages, unroll 1
schedule: tiles Q*G=64, 4 warps, 1 stages, unroll 1
schedule: tiles J=64, 4 warps, 1 stages, unroll 1
inputs:
  o: bf16 [T, H=8, G=4, W=128]
  lse: f32 [H=8, G=4, T]
  d_o: bf16 [T, H=8, G=4, W=128]
  d_lse: f32 [H=8, G=4, T]
  q: bf16 [T, H=8, G=4, E=128]
  k: bf16 [S, H=8, E=128]
  v: bf16 [S, H=8, W=128]
  begin_q: i32 [B]
  end_q: i32 [B]
  begin_k: i32 [B]
  end_k: i32 [B]
outputs:
  d_q: bf16 [T, H=8, G=4, E=128]
  d_k: bf16 [S, H=8, E=128]
  d_v: bf16 [S, H=8, W=128]
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
def imin(a, b):
    # The minimum of integers.
    return tl.min(a, b)


@tl.macro
def imin_over_j(x, x_reduce_smem, thread):
    # The imin over J, in any order.
    for c in tl.unroll(1):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 1, width=64))
    for c in tl.unroll(1):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(1):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(1):
        x[c] = imin(x[c], tl.shfl_xor(x[c], 8, width=64))
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = imin(x[c], x_reduce_smem[c, thread ^ 64])
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(1):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(1):
        x[c] = imin(x[c], x_reduce_smem[c, thread ^ 128])


@tl.macro
def is_nan(x):
    # By the bits: the compiler folds x != x.
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


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
def sum_over_w(x, x_reduce_smem, thread):
    # The sum over W, halving.
    tl.sync_threads()  # what was exchanged before has been read
    for c in tl.unroll(8):
        x_reduce_smem[c, thread] = x[c]
    tl.sync_threads()
    for c in tl.unroll(8):
        x[c] = add(x[c], x_reduce_smem[c, thread ^ 64])
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 32, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 16, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 8, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 4, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 2, width=64))
    for c in tl.unroll(8):
        x[c] = add(x[c], tl.shfl_xor(x[c], 1, width=64))


@tl.prim_func
def varlen_attention_grad_1(
    o: memory("o", "bfloat16"), lse: memory("lse", "float32"), d_o: memory("d_o", "bfloat16"),
    d_lse: memory("d_lse", "float32"), shift: memory("shift", "float32"), delta: memory("delta", "float32"),
    T: tl.int32, lse_h_stride: tl.int64, lse_g_stride: tl.int64, d_o_t_stride: tl.int64, d_o_h_stride: tl.int64,
    d_o_g_stride: tl.int64, o_t_stride: tl.int64, o_h_stride: tl.int64, o_g_stride: tl.int64, d_lse_h_stride: tl.int64,
    d_lse_g_stride: tl.int64, shift_t_stride: tl.int64, shift_h_stride: tl.int64, delta_t_stride: tl.int64,
    delta_h_stride: tl.int64, programs: tl.int32
):
    # A block owns 1 of H, 2 of T, 4 of G (rows). W: 128 indices, 1 to each of 128 threads; T: 2 indices, 2 to each of 1
    # threads; G: 4 indices, 4 to each of 1 threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((8, 128), "float32", "shared")
        t = tl.alloc_local((2,), "int32")
        t_inside = tl.alloc_local((2,), "bool")
        g = tl.alloc_local((4,), "int32")
        lse_value = tl.alloc_local((8,), "float32")
        d_o_value = tl.alloc_local((8,), "bfloat16")
        o_value = tl.alloc_local((8,), "bfloat16")
        d_lse_value = tl.alloc_local((8,), "float32")
        lse_times_log2e = tl.alloc_local((8,), "float32")
        shift_neg = tl.alloc_local((8,), "float32")
        d_o_f32 = tl.alloc_local((8,), "float32")
        o_f32 = tl.alloc_local((8,), "float32")
        row_product = tl.alloc_local((8,), "float32")
        row_2 = tl.alloc_local((8,), "float32")
        delta_value = tl.alloc_local((8,), "float32")
        rest = tl.truncdiv(block, ((T + 1) // 2))
        h = rest
        for c in tl.unroll(2):
            t[c] = tl.truncmod(block, ((T + 1) // 2)) * 2 + c
            t_inside[c] = t[c] < T
        for c in tl.unroll(4):
            g[c] = c
        writes = thread == 0
        for c in tl.unroll(8):  # attention.py:97
            lse_value[c] = tl.if_then_else(
                t_inside[c // 4], lse[tl.int64(h) * lse_h_stride + tl.int64(g[c % 4]) * lse_g_stride + t[c // 4]],
                tl.Cast("float32", 0)
            )
        w = tl.alloc_var("int32", thread)  # attention.py:99
        for c in tl.unroll(8):
            d_o_value[c] = tl.if_then_else(
                t_inside[c // 4],
                d_o[
                    tl.int64(t[c // 4]) * d_o_t_stride + tl.int64(h) * d_o_h_stride + tl.int64(g[c % 4]) * d_o_g_stride
                    + w
                ],
                tl.Cast("bfloat16", 0)
            )
            o_value[c] = tl.if_then_else(
                t_inside[c // 4],
                o[tl.int64(t[c // 4]) * o_t_stride + tl.int64(h) * o_h_stride + tl.int64(g[c % 4]) * o_g_stride + w],
                tl.Cast("bfloat16", 0)
            )
            d_lse_value[c] = tl.if_then_else(  # attention.py:100
                t_inside[c // 4], d_lse[tl.int64(h) * d_lse_h_stride + tl.int64(g[c % 4]) * d_lse_g_stride + t[c // 4]],
                tl.Cast("float32", 0)
            )
            lse_times_log2e[c] = lse_value[c] * f32(1.4426950216293335)  # attention.py:97
            shift_neg[c] = lse_times_log2e[c] * f32(-1.0)
            if t_inside[c // 4] & writes:
                shift[tl.int64(t[c // 4]) * shift_t_stride + tl.int64(h) * shift_h_stride + g[c % 4]] = shift_neg[c]
            d_o_f32[c] = tl.Cast("float32", d_o_value[c])  # attention.py:99
            o_f32[c] = tl.Cast("float32", o_value[c])
            row_product[c] = d_o_f32[c] * o_f32[c]
            row_2[c] = row_product[c]
        sum_over_w(row_2, f32_reduce_smem, thread)
        for c in tl.unroll(8):  # attention.py:100
            delta_value[c] = row_2[c] - d_lse_value[c]
            if t_inside[c // 4] & writes:
                delta[tl.int64(t[c // 4]) * delta_t_stride + tl.int64(h) * delta_h_stride + g[c % 4]] = delta_value[c]


@tl.prim_func
def varlen_attention_grad_2(
    q: memory("q", "bfloat16"), k: memory("k", "bfloat16"), v: memory("v", "bfloat16"),
    begin_q: memory("begin_q", "int32"), end_q: memory("end_q", "int32"), begin_k: memory("begin_k", "int32"),
    end_k: memory("end_k", "int32"), d_o: memory("d_o", "bfloat16"), shift: memory("shift", "float32"),
    delta: memory("delta", "float32"), d_q: memory("d_q", "bfloat16"), Q: tl.int32, B: tl.int32, q_t_stride: tl.int64,
    q_h_stride: tl.int64, q_g_stride: tl.int64, d_o_t_stride: tl.int64, d_o_h_stride: tl.int64, d_o_g_stride: tl.int64,
    shift_t_stride: tl.int64, shift_h_stride: tl.int64, delta_t_stride: tl.int64, delta_h_stride: tl.int64,
    k_s_stride: tl.int64, k_h_stride: tl.int64, v_s_stride: tl.int64, v_h_stride: tl.int64, d_q_t_stride: tl.int64,
    d_q_h_stride: tl.int64, d_q_g_stride: tl.int64, scale: tl.float32, programs: tl.int32
):
    # A block owns 1 of H, 1 of B, 64 of Q*G (back_to_back_gemm). Q*G: 64 indices, 1 to each of 64 threads; Z.lane: 64
    # indices, 16 to each of 4 threads; E: 128 indices, 32 to each of 4 threads; W: 128 indices, 32 to each of 4
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        i32_reduce_smem = tl.alloc_shared((1, 256), "int32", "shared")
        e = tl.alloc_local((32,), "int32")
        w = tl.alloc_local((32,), "int32")
        k_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        v_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        q_value = tl.alloc_local((32,), "bfloat16")
        d_o_value = tl.alloc_local((32,), "bfloat16")
        imax_q_g = tl.alloc_local((1,), "int32")
        dq = tl.alloc_local((32,), "float32")
        k_from = tl.alloc_local((4,), "int64")
        v_from = tl.alloc_local((4,), "int64")
        s = tl.alloc_local((16,), "float32")
        k_tile_part = tl.alloc_local((4,), "bfloat16")
        p_fma_sum = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        dp = tl.alloc_local((16,), "float32")
        v_tile_part = tl.alloc_local((4,), "bfloat16")
        dp_minus_delta = tl.alloc_local((16,), "float32")
        p_masked = tl.alloc_local((16,), "float32")
        ds = tl.alloc_local((16,), "float32")
        ds_bf16 = tl.alloc_local((16,), "bfloat16")
        acc_new = tl.alloc_local((32,), "float32")
        k_tile_part_2 = tl.alloc_local((4,), "bfloat16")
        dq_times_scale = tl.alloc_local((32,), "float32")
        dq_times_scale_bf16 = tl.alloc_local((32,), "bfloat16")
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
                e[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            for c in tl.unroll(32):
                w[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            begin_q_value = tl.alloc_var("int32", begin_q[b])  # attention.py:305
            end_q_value = tl.alloc_var("int32", end_q[b])  # attention.py:306
            g = tl.alloc_var("int32", tl.truncmod(q_g, tl.int32(4)))  # attention.py:97
            query = tl.alloc_var("int32", tl.truncdiv(q_g, tl.int32(4)))  # attention.py:305
            count = tl.alloc_var("int32", end_q_value - begin_q_value)  # attention.py:306
            token = tl.alloc_var("int32", begin_q_value + query)  # attention.py:307
            inside = tl.alloc_var("bool", query < count)
            for c in tl.unroll(32):  # attention.py:114
                q_value[c] = tl.if_then_else(
                    inside & (q_g < end - begin),
                    q[tl.int64(token) * q_t_stride + tl.int64(h) * q_h_stride + tl.int64(g) * q_g_stride + e[c]],
                    tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(32):  # attention.py:115
                d_o_value[c] = tl.if_then_else(
                    inside & (q_g < end - begin),
                    d_o[
                        tl.int64(token) * d_o_t_stride + tl.int64(h) * d_o_h_stride + tl.int64(g) * d_o_g_stride + w[c]
                    ],
                    tl.Cast("bfloat16", 0)
                )
            begin_k_value = tl.alloc_var("int32", begin_k[b])  # attention.py:112
            end_k_value = tl.alloc_var("int32", end_k[b])  # attention.py:113
            scale_value = tl.alloc_var("float32", scale)
            keys = tl.alloc_var("int32", end_k_value - begin_k_value)
            keys_minus_count = tl.alloc_var("int32", keys - count)  # attention.py:307
            key = tl.alloc_var("int32", query + keys_minus_count)
            shift_value = tl.alloc_var(  # attention.py:116
                "float32",
                tl.if_then_else(
                    inside & (q_g < end - begin),
                    shift[tl.int64(token) * shift_t_stride + tl.int64(h) * shift_h_stride + g], tl.Cast("float32", 0)
                )
            )
            delta_value = tl.alloc_var(  # attention.py:117
                "float32",
                tl.if_then_else(
                    inside & (q_g < end - begin),
                    delta[tl.int64(token) * delta_t_stride + tl.int64(h) * delta_h_stride + g], tl.Cast("float32", 0)
                )
            )
            key_plus_1 = tl.alloc_var("int32", key + 1)  # attention.py:313
            until = tl.alloc_var("int32", key_plus_1 + begin_k_value)
            length = tl.alloc_var("int32", tl.max(tl.int32(0), keys))  # attention.py:119
            until_minus_begin_k = tl.alloc_var("int32", until - begin_k_value)
            visible = tl.alloc_var("int32", tl.max(tl.int32(0), until_minus_begin_k))
            seen = tl.alloc_var("int32", tl.min(length, visible))
            seen_plus_63 = tl.alloc_var("int32", seen + 63)
            steps = tl.alloc_var("int32", tl.truncdiv(seen_plus_63, tl.int32(64)))
            scale_times_log2e = tl.alloc_var("float32", scale_value * f32(1.4426950216293335))  # attention.py:167
            imax_q_g[0] = steps  # attention.py:119
            imax_over_q_g(imax_q_g, i32_reduce_smem, thread)
            imax_q_g_2 = imax_q_g[0]
            for c in tl.unroll(32):
                dq[c] = f32(0.0)
            for z_step in tl.serial(0, imax_q_g_2):
                z_step_times_64 = tl.alloc_var("int32", z_step * 64)
                z_begin = tl.alloc_var("int32", begin_k_value + z_step_times_64)
                tl.sync_threads()  # attention.py:120
                for c in tl.unroll(4):
                    k_from[c] = tl.Select(
                        ((z_begin + (thread // 16 + c * 16)) < end_k_value),
                        tl.int64(tl.int64((z_begin + (thread // 16 + c * 16))) * k_s_stride + tl.int64(h) * k_h_stride),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if k_from[c] != -1:
                        for i in tl.unroll(8):
                            k_tile[row, at + i] = k[k_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            k_tile[row, at + i] = tl.Cast("bfloat16", 0)
                for c in tl.unroll(4):
                    v_from[c] = tl.Select(
                        ((z_begin + (thread // 16 + c * 16)) < end_k_value),
                        tl.int64(tl.int64((z_begin + (thread // 16 + c * 16))) * v_s_stride + tl.int64(h) * v_h_stride),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if v_from[c] != -1:
                        for i in tl.unroll(8):
                            v_tile[row, at + i] = v[v_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            v_tile[row, at + i] = tl.Cast("bfloat16", 0)
                tl.sync_threads()  # attention.py:121
                for c in tl.unroll(16):
                    s[c] = f32(0.0)
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            k_tile_part[i] = k_tile[column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            k_tile_part.data, 0, q_value.data, step, s.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:167
                    p_fma_sum[c] = fma(s[c], scale_times_log2e, shift_value)
                    p[c] = portable_exp2(p_fma_sum[c])
                    dp[c] = f32(0.0)  # attention.py:122
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            v_tile_part[i] = v_tile[column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            v_tile_part.data, 0, d_o_value.data, step, dp.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:123
                    dp_minus_delta[c] = dp[c] - delta_value
                    p_masked[c] = tl.Select(
                        (
                            ((z_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < end_k_value)
                            & ((z_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < until)
                        ),
                        p[c], f32(0.0)
                    )
                    ds[c] = p_masked[c] * dp_minus_delta[c]
                    ds_bf16[c] = tl.Cast("bfloat16", ds[c])
                for c in tl.unroll(32):
                    acc_new[c] = dq[c]
                for column in tl.unroll(8):
                    for step in tl.unroll(4):
                        for i in tl.unroll(4):
                            k_tile_part_2[i] = k_tile[step * 16 + thread // 16 % 4 * 4 + i, column * 16 + thread % 16]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            k_tile_part_2.data, 0, ds_bf16.data, step, acc_new.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(32):
                    dq[c] = acc_new[c]
            for c in tl.unroll(32):  # attention.py:124
                dq_times_scale[c] = dq[c] * scale_value
                dq_times_scale_bf16[c] = tl.Cast("bfloat16", dq_times_scale[c])
                if inside & (q_g < end - begin):
                    d_q[
                        tl.int64(token) * d_q_t_stride + tl.int64(h) * d_q_h_stride + tl.int64(g) * d_q_g_stride + e[c]
                    ] = dq_times_scale_bf16[c]


@tl.prim_func
def varlen_attention_grad_3(
    q: memory("q", "bfloat16"), k: memory("k", "bfloat16"), v: memory("v", "bfloat16"),
    begin_q: memory("begin_q", "int32"), end_q: memory("end_q", "int32"), begin_k: memory("begin_k", "int32"),
    end_k: memory("end_k", "int32"), d_o: memory("d_o", "bfloat16"), shift: memory("shift", "float32"),
    delta: memory("delta", "float32"), d_k: memory("d_k", "bfloat16"), d_v: memory("d_v", "bfloat16"), J: tl.int32,
    B: tl.int32, k_s_stride: tl.int64, k_h_stride: tl.int64, v_s_stride: tl.int64, v_h_stride: tl.int64,
    q_t_stride: tl.int64, q_h_stride: tl.int64, q_g_stride: tl.int64, d_o_t_stride: tl.int64, d_o_h_stride: tl.int64,
    d_o_g_stride: tl.int64, shift_t_stride: tl.int64, shift_h_stride: tl.int64, delta_t_stride: tl.int64,
    delta_h_stride: tl.int64, d_k_s_stride: tl.int64, d_k_h_stride: tl.int64, d_v_s_stride: tl.int64,
    d_v_h_stride: tl.int64, scale: tl.float32, programs: tl.int32
):
    # A block owns 1 of H, 64 of J, 1 of B (back_to_back_gemm). J: 64 indices, 1 to each of 64 threads; R.lane: 64
    # indices, 16 to each of 4 threads; E: 128 indices, 32 to each of 4 threads; W: 128 indices, 32 to each of 4
    # threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        i32_reduce_smem = tl.alloc_shared((1, 256), "int32", "shared")
        e = tl.alloc_local((32,), "int32")
        w = tl.alloc_local((32,), "int32")
        q_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        d_o_tile = tl.alloc_shared((64, 136), "bfloat16", "shared")
        k_value = tl.alloc_local((32,), "bfloat16")
        v_value = tl.alloc_local((32,), "bfloat16")
        imin_j = tl.alloc_local((1,), "int32")
        dv = tl.alloc_local((32,), "float32")
        dk = tl.alloc_local((32,), "float32")
        q_from = tl.alloc_local((4,), "int64")
        d_o_from = tl.alloc_local((4,), "int64")
        shift_value = tl.alloc_local((16,), "float32")
        delta_value = tl.alloc_local((16,), "float32")
        s = tl.alloc_local((16,), "float32")
        q_tile_part = tl.alloc_local((4,), "bfloat16")
        p_fma_sum = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        dp = tl.alloc_local((16,), "float32")
        d_o_tile_part = tl.alloc_local((4,), "bfloat16")
        dp_minus_delta = tl.alloc_local((16,), "float32")
        p_masked = tl.alloc_local((16,), "float32")
        p_bf16 = tl.alloc_local((16,), "bfloat16")
        acc_new = tl.alloc_local((32,), "float32")
        d_o_tile_part_2 = tl.alloc_local((4,), "bfloat16")
        ds = tl.alloc_local((16,), "float32")
        ds_bf16 = tl.alloc_local((16,), "bfloat16")
        acc_new_2 = tl.alloc_local((32,), "float32")
        q_tile_part_2 = tl.alloc_local((4,), "bfloat16")
        dk_times_scale = tl.alloc_local((32,), "float32")
        dk_times_scale_bf16 = tl.alloc_local((32,), "bfloat16")
        dv_bf16 = tl.alloc_local((32,), "bfloat16")
        tiles = tl.alloc_var("int32", J * 1 // 64 + B)
        tile = tl.alloc_var("int32", tiles - 1 - tl.truncmod(block, tiles))
        segments = tl.alloc_var("int32", B)
        b = segment_of(begin_k, tile, segments, 1, 64)
        begin = tl.alloc_var("int32", tl.Cast("int32", begin_k[b]) * 1)
        end = tl.alloc_var("int32", tl.Cast("int32", end_k[b]) * 1)
        first = tl.alloc_var("int32", (tile - (tl.truncdiv(begin, 64) + b)) * 64)
        j = first + thread % 16 + thread // 64 * 16
        if first < end - begin:
            h = tl.truncdiv(block, tiles)
            for c in tl.unroll(32):
                e[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            for c in tl.unroll(32):
                w[c] = thread // 16 % 4 * 4 + c % 4 + c // 4 * 16
            begin_k_value = tl.alloc_var("int32", begin_k[b])  # attention.py:112
            end_k_value = tl.alloc_var("int32", end_k[b])  # attention.py:113
            keys = tl.alloc_var("int32", end_k_value - begin_k_value)
            token = tl.alloc_var("int32", begin_k_value + j)  # attention.py:131
            inside = tl.alloc_var("bool", j < keys)
            for c in tl.unroll(32):  # attention.py:132
                k_value[c] = tl.if_then_else(
                    inside & (j < end - begin), k[tl.int64(token) * k_s_stride + tl.int64(h) * k_h_stride + e[c]],
                    tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(32):
                v_value[c] = tl.if_then_else(
                    inside & (j < end - begin), v[tl.int64(token) * v_s_stride + tl.int64(h) * v_h_stride + w[c]],
                    tl.Cast("bfloat16", 0)
                )
            begin_q_value = tl.alloc_var("int32", begin_q[b])  # attention.py:305
            end_q_value = tl.alloc_var("int32", end_q[b])  # attention.py:306
            scale_value = tl.alloc_var("float32", scale)
            count = tl.alloc_var("int32", end_q_value - begin_q_value)
            scale_times_log2e = tl.alloc_var("float32", scale_value * f32(1.4426950216293335))  # attention.py:167
            key_plus_count = tl.alloc_var("int32", j + count)  # attention.py:135
            query = tl.alloc_var("int32", key_plus_count - keys)
            begin_q_plus_query = tl.alloc_var("int32", begin_q_value + query)  # attention.py:158
            since = tl.alloc_var("int32", begin_q_plus_query * 4)
            begin_q_times_4 = tl.alloc_var("int32", begin_q_value * 4)  # attention.py:137
            end_q_times_4 = tl.alloc_var("int32", end_q_value * 4)
            length_difference = tl.alloc_var("int32", end_q_times_4 - begin_q_times_4)
            length = tl.alloc_var("int32", tl.max(tl.int32(0), length_difference))
            unseen_difference = tl.alloc_var("int32", since - begin_q_times_4)
            unseen = tl.alloc_var("int32", tl.max(tl.int32(0), unseen_difference))
            first_step = tl.alloc_var("int32", tl.truncdiv(unseen, tl.int32(64)))
            length_plus_63 = tl.alloc_var("int32", length + 63)
            steps = tl.alloc_var("int32", tl.truncdiv(length_plus_63, tl.int32(64)))
            imin_j[0] = first_step
            imin_over_j(imin_j, i32_reduce_smem, thread)
            imin_j_2 = imin_j[0]
            for c in tl.unroll(32):
                dv[c] = f32(0.0)
            for c in tl.unroll(32):
                dk[c] = f32(0.0)
            for r_step in tl.serial(imin_j_2, steps):
                r_step_times_64 = tl.alloc_var("int32", r_step * 64)
                r_begin = tl.alloc_var("int32", begin_q_times_4 + r_step_times_64)
                tl.sync_threads()  # attention.py:139
                for c in tl.unroll(4):
                    q_from[c] = tl.Select(
                        ((r_begin + (thread // 16 + c * 16)) < end_q_times_4),
                        tl.int64(
                            tl.int64((tl.truncdiv((r_begin + (thread // 16 + c * 16)), tl.int32(4)))) * q_t_stride
                            + tl.int64(h) * q_h_stride
                            + tl.int64((tl.truncmod((r_begin + (thread // 16 + c * 16)), tl.int32(4)))) * q_g_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if q_from[c] != -1:
                        for i in tl.unroll(8):
                            q_tile[row, at + i] = q[q_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            q_tile[row, at + i] = tl.Cast("bfloat16", 0)
                for c in tl.unroll(4):
                    d_o_from[c] = tl.Select(
                        ((r_begin + (thread // 16 + c * 16)) < end_q_times_4),
                        tl.int64(
                            tl.int64((tl.truncdiv((r_begin + (thread // 16 + c * 16)), tl.int32(4)))) * d_o_t_stride
                            + tl.int64(h) * d_o_h_stride
                            + tl.int64((tl.truncmod((r_begin + (thread // 16 + c * 16)), tl.int32(4)))) * d_o_g_stride
                        ),
                        tl.int64(-1)
                    )
                for c in tl.unroll(4):
                    row = thread // 16 + c * 16
                    at = thread % 16 * 8
                    if d_o_from[c] != -1:
                        for i in tl.unroll(8):
                            d_o_tile[row, at + i] = d_o[d_o_from[c] + at + i]
                    else:
                        for i in tl.unroll(8):
                            d_o_tile[row, at + i] = tl.Cast("bfloat16", 0)
                for c in tl.unroll(16):  # attention.py:140
                    shift_value[c] = tl.if_then_else(
                        ((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < end_q_times_4),
                        shift[
                            tl.int64(
                                (tl.truncdiv((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)), tl.int32(4)))
                            )
                            * shift_t_stride
                            + tl.int64(h) * shift_h_stride
                            + (tl.truncmod((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)), tl.int32(4)))
                        ],
                        tl.Cast("float32", 0)
                    )
                    delta_value[c] = tl.if_then_else(  # attention.py:141
                        ((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < end_q_times_4),
                        delta[
                            tl.int64(
                                (tl.truncdiv((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)), tl.int32(4)))
                            )
                            * delta_t_stride
                            + tl.int64(h) * delta_h_stride
                            + (tl.truncmod((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)), tl.int32(4)))
                        ],
                        tl.Cast("float32", 0)
                    )
                tl.sync_threads()  # attention.py:142
                for c in tl.unroll(16):
                    s[c] = f32(0.0)
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            q_tile_part[i] = q_tile[column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            q_tile_part.data, 0, k_value.data, step, s.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:167
                    p_fma_sum[c] = fma(s[c], scale_times_log2e, shift_value[c])
                    p[c] = portable_exp2(p_fma_sum[c])
                    dp[c] = f32(0.0)  # attention.py:146
                for column in tl.unroll(4):
                    for step in tl.unroll(8):
                        for i in tl.vectorized(4):
                            d_o_tile_part[i] = d_o_tile[column * 16 + thread % 16, step * 16 + thread // 16 % 4 * 4 + i]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            d_o_tile_part.data, 0, v_value.data, step, dp.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:147
                    dp_minus_delta[c] = dp[c] - delta_value[c]
                    p_masked[c] = tl.Select(  # attention.py:144
                        (
                            ((r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)) < end_q_times_4)
                            & (since <= (r_begin + (thread // 16 % 4 * 4 + c % 4 + c // 4 * 16)))
                        ),
                        p[c], f32(0.0)
                    )
                    p_bf16[c] = tl.Cast("bfloat16", p_masked[c])
                for c in tl.unroll(32):
                    acc_new[c] = dv[c]
                for column in tl.unroll(8):
                    for step in tl.unroll(4):
                        for i in tl.unroll(4):
                            d_o_tile_part_2[i] = d_o_tile[
                                step * 16 + thread // 16 % 4 * 4 + i, column * 16 + thread % 16
                            ]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            d_o_tile_part_2.data, 0, p_bf16.data, step, acc_new.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(16):  # attention.py:147
                    ds[c] = p_masked[c] * dp_minus_delta[c]
                    ds_bf16[c] = tl.Cast("bfloat16", ds[c])
                for c in tl.unroll(32):
                    acc_new_2[c] = dk[c]
                for column in tl.unroll(8):
                    for step in tl.unroll(4):
                        for i in tl.unroll(4):
                            q_tile_part_2[i] = q_tile[step * 16 + thread // 16 % 4 * 4 + i, column * 16 + thread % 16]
                        tvm_mfma(
                            "f32_16x16x16bf16_1k", "row", "row", "bfloat16x4", "bfloat16x4", "float32x4",
                            q_tile_part_2.data, 0, ds_bf16.data, step, acc_new_2.data, column, dtype="float32x4"
                        )
                for c in tl.unroll(32):
                    dv[c] = acc_new[c]
                for c in tl.unroll(32):
                    dk[c] = acc_new_2[c]
            for c in tl.unroll(32):  # attention.py:149
                dk_times_scale[c] = dk[c] * scale_value
                dk_times_scale_bf16[c] = tl.Cast("bfloat16", dk_times_scale[c])
                if inside & (j < end - begin):
                    d_k[tl.int64(token) * d_k_s_stride + tl.int64(h) * d_k_h_stride + e[c]] = dk_times_scale_bf16[c]
            for c in tl.unroll(32):  # attention.py:151
                dv_bf16[c] = tl.Cast("bfloat16", dv[c])
                if inside & (j < end - begin):
                    d_v[tl.int64(token) * d_v_s_stride + tl.int64(h) * d_v_h_stride + w[c]] = dv_bf16[c]


def call(
    kernels, o, lse, d_o, d_lse, shift, delta, q, k, v, begin_q, end_q, begin_k, end_k, d_q, d_k, d_v, scale, T, Q, B,
    J, lse_h_stride, lse_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, o_t_stride, o_h_stride, o_g_stride,
    d_lse_h_stride, d_lse_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, q_t_stride,
    q_h_stride, q_g_stride, k_s_stride, k_h_stride, v_s_stride, v_h_stride, d_q_t_stride, d_q_h_stride, d_q_g_stride,
    d_k_s_stride, d_k_h_stride, d_v_s_stride, d_v_h_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 8 * ((T + 1) // 2) * 1
    if programs > 0:
        kernels.varlen_attention_grad_1(
            (programs,), o, lse, d_o, d_lse, shift, delta, T, lse_h_stride, lse_g_stride, d_o_t_stride, d_o_h_stride,
            d_o_g_stride, o_t_stride, o_h_stride, o_g_stride, d_lse_h_stride, d_lse_g_stride, shift_t_stride,
            shift_h_stride, delta_t_stride, delta_h_stride
        )
    programs = (Q * 4 // 64 + B) * 8
    if programs > 0:
        kernels.varlen_attention_grad_2(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_q, Q, B, q_t_stride, q_h_stride,
            q_g_stride, d_o_t_stride, d_o_h_stride, d_o_g_stride, shift_t_stride, shift_h_stride, delta_t_stride,
            delta_h_stride, k_s_stride, k_h_stride, v_s_stride, v_h_stride, d_q_t_stride, d_q_h_stride, d_q_g_stride,
            scale
        )
    programs = (J * 1 // 64 + B) * 8
    if programs > 0:
        kernels.varlen_attention_grad_3(
            (programs,), q, k, v, begin_q, end_q, begin_k, end_k, d_o, shift, delta, d_k, d_v, J, B, k_s_stride,
            k_h_stride, v_s_stride, v_h_stride, q_t_stride, q_h_stride, q_g_stride, d_o_t_stride, d_o_h_stride,
            d_o_g_stride, shift_t_stride, shift_h_stride, delta_t_stride, delta_h_stride, d_k_s_stride, d_k_h_stride,
            d_v_s_stride, d_v_h_stride, scale
        )
