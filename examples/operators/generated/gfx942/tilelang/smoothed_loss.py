"""smoothed_loss on gfx942, written by rlk 0.1.0: do not edit.

numerics: ea1026d714bde2c3
schedule: tiles 1, 2 warps, 1 stages, unroll 1 placed V.lane[5:3] V.piece[2:0] V.lane[7:6] V.lane[2:0]
inputs:
  logits: bf16 [T, V=128256]
  targets: i64 [T]
outputs:
  loss: f32 [T]
  lse: f32 [T]
scalars:
  smoothing: f32
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
def merge_softmax_sum(m_a, l_a, m_b, l_b):
    # The state of two disjoint sets: softmax_sum().
    m = tl.alloc_var("float32", larger(m_a, m_b))
    is_empty = tl.alloc_var("bool", m == f32(float("-inf")))
    m_safe = tl.alloc_var("float32", tl.Select(is_empty, f32(0.0), m))
    alpha_a_distance = tl.alloc_var("float32", m_a - m_safe)
    alpha_a_exponent = tl.alloc_var("float32", alpha_a_distance * f32(1.4426950216293335))
    alpha_a = tl.alloc_var("float32", portable_exp2(alpha_a_exponent))
    is_empty_2 = tl.alloc_var("bool", m == f32(float("-inf")))
    m_safe_2 = tl.alloc_var("float32", tl.Select(is_empty_2, f32(0.0), m))
    alpha_b_distance = tl.alloc_var("float32", m_b - m_safe_2)
    alpha_b_exponent = tl.alloc_var("float32", alpha_b_distance * f32(1.4426950216293335))
    alpha_b = tl.alloc_var("float32", portable_exp2(alpha_b_exponent))
    l_a_scaled = tl.alloc_var("float32", l_a * alpha_a)
    l_b_scaled = tl.alloc_var("float32", l_b * alpha_b)
    l = tl.alloc_var("float32", l_a_scaled + l_b_scaled)
    return m, l


@tl.macro
def merge_total(total_a, total_b):
    # The state of two disjoint sets: total().
    total = tl.alloc_var("float32", total_a + total_b)
    return total


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
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.macro
def softmax_sum_over_v_piece(m, l):
    # The states merged over V.piece, pairwise.
    for c in tl.unroll(1):
        m[c], l[c] = merge_softmax_sum(m[c], l[c], tl.shfl_xor(m[c], 8, width=64), tl.shfl_xor(l[c], 8, width=64))
    for c in tl.unroll(1):
        m[c], l[c] = merge_softmax_sum(m[c], l[c], tl.shfl_xor(m[c], 16, width=64), tl.shfl_xor(l[c], 16, width=64))
    for c in tl.unroll(1):
        m[c], l[c] = merge_softmax_sum(m[c], l[c], tl.shfl_xor(m[c], 32, width=64), tl.shfl_xor(l[c], 32, width=64))


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


@tl.macro
def total_over_v_piece(total):
    # The states merged over V.piece, pairwise.
    for c in tl.unroll(1):
        total[c] = merge_total(total[c], tl.shfl_xor(total[c], 8, width=64))
    for c in tl.unroll(1):
        total[c] = merge_total(total[c], tl.shfl_xor(total[c], 16, width=64))
    for c in tl.unroll(1):
        total[c] = merge_total(total[c], tl.shfl_xor(total[c], 32, width=64))


@tl.prim_func
def smoothed_loss(
    logits: memory("logits", "bfloat16"), targets: memory("targets", "int64"), loss: memory("loss", "float32"),
    lse: memory("lse", "float32"), logits_t_stride: tl.int64, T: tl.int32, smoothing: tl.float32, programs: tl.int32
):
    # A block owns 1 of T (rows). V.piece: 8 indices, 1 to each of 8 threads; V.lane: 256 indices, 16 to each of 16
    # threads.
    with tl.Kernel(programs, threads=128) as block:
        thread = tl.get_thread_binding()
        f32_reduce_smem = tl.alloc_shared((16, 128), "float32", "shared")
        v_lane = tl.alloc_local((16,), "int32")
        m = tl.alloc_var("float32")
        l = tl.alloc_var("float32")
        total = tl.alloc_var("float32")
        v = tl.alloc_local((16,), "int32")
        logits_value_2 = tl.alloc_local((16,), "bfloat16")
        z = tl.alloc_local((16,), "float32")
        m_chunk = tl.alloc_local((16,), "float32")
        p_distance = tl.alloc_local((16,), "float32")
        p_exponent = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        l_chunk = tl.alloc_local((16,), "float32")
        sum_v_lane = tl.alloc_local((16,), "float32")
        m_3 = tl.alloc_var("float32")
        l_3 = tl.alloc_var("float32")
        total_3 = tl.alloc_var("float32")
        v_2 = tl.alloc_local((16,), "int32")
        exists = tl.alloc_local((16,), "bool")
        logits_value_3 = tl.alloc_local((16,), "bfloat16")
        z_2 = tl.alloc_local((16,), "float32")
        z_masked = tl.alloc_local((16,), "float32")
        m_chunk_3 = tl.alloc_local((16,), "float32")
        p_distance_2 = tl.alloc_local((16,), "float32")
        p_exponent_2 = tl.alloc_local((16,), "float32")
        p_2 = tl.alloc_local((16,), "float32")
        l_chunk_3 = tl.alloc_local((16,), "float32")
        z_masked_2 = tl.alloc_local((16,), "float32")
        sum_v_lane_3 = tl.alloc_local((16,), "float32")
        m_5 = tl.alloc_local((1,), "float32")
        l_5 = tl.alloc_local((1,), "float32")
        total_5 = tl.alloc_local((1,), "float32")
        t = block
        writes = thread == 0
        targets_value = tl.alloc_var("int64", targets[t])  # smoothed_loss.py:32
        targets_ge_0 = tl.alloc_var("bool", 0 <= targets_value)
        logits_guard_below = tl.alloc_var("bool", targets_value < 128256)
        logits_guard = tl.alloc_var("bool", targets_ge_0 & logits_guard_below)
        as_bf16 = tl.alloc_var("bfloat16", tl.Cast("bfloat16", f32(float("nan"))))
        logits_value = tl.alloc_var(
            "bfloat16", tl.if_then_else(logits_guard, logits[tl.int64(t) * logits_t_stride + targets_value], as_bf16)
        )
        smoothing_value = tl.alloc_var("float32", smoothing)
        v_piece = tl.alloc_var("int32", thread // 8 % 8)  # smoothed_loss.py:27
        piece_begin_product = tl.alloc_var("int32", v_piece * 16032)
        piece_begin = tl.alloc_var("int32", tl.min(tl.int32(128256), piece_begin_product))
        piece_end_sum = tl.alloc_var("int32", piece_begin + 16032)
        piece_end = tl.alloc_var("int32", tl.min(tl.int32(128256), piece_end_sum))
        for c in tl.unroll(16):
            v_lane[c] = thread % 8 * 8 + thread // 64 * 64 + c % 8 + c // 8 * 128
        m = f32(float("-inf"))
        l = f32(-0.0)
        total = f32(-0.0)
        for v_step in tl.serial(0, 62):
            v_step_times_256 = tl.alloc_var("int32", v_step * 256)
            v_begin = tl.alloc_var("int32", piece_begin + v_step_times_256)
            for c in tl.unroll(16):
                v[c] = v_begin + v_lane[c]
                logits_value_2[c] = logits[tl.int64(t) * logits_t_stride + v[c]]  # smoothed_loss.py:28
                z[c] = tl.Cast("float32", logits_value_2[c])
                m_chunk[c] = z[c]  # smoothed_loss.py:29
            max_over_v_lane(m_chunk, f32_reduce_smem, thread)
            m_chunk_2 = m_chunk[0]
            is_empty = tl.alloc_var("bool", m_chunk_2 == f32(float("-inf")))
            m_safe = tl.alloc_var("float32", tl.Select(is_empty, f32(0.0), m_chunk_2))
            for c in tl.unroll(16):
                p_distance[c] = z[c] - m_safe
                p_exponent[c] = p_distance[c] * f32(1.4426950216293335)
                p[c] = portable_exp2(p_exponent[c])
                l_chunk[c] = p[c]
            sum_over_v_lane(l_chunk, f32_reduce_smem, thread)
            l_chunk_2 = l_chunk[0]
            for c in tl.unroll(16):  # smoothed_loss.py:30
                sum_v_lane[c] = z[c]
            sum_over_v_lane(sum_v_lane, f32_reduce_smem, thread)
            sum_v_lane_2 = sum_v_lane[0]
            m_2 = tl.alloc_var("float32", larger(m, m_chunk_2))  # smoothed_loss.py:29
            is_empty_2 = tl.alloc_var("bool", m_2 == f32(float("-inf")))
            m_safe_2 = tl.alloc_var("float32", tl.Select(is_empty_2, f32(0.0), m_2))
            alpha_a_distance = tl.alloc_var("float32", m - m_safe_2)
            alpha_a_exponent = tl.alloc_var("float32", alpha_a_distance * f32(1.4426950216293335))
            alpha_a = tl.alloc_var("float32", portable_exp2(alpha_a_exponent))
            alpha_b_distance = tl.alloc_var("float32", m_chunk_2 - m_safe_2)
            alpha_b_exponent = tl.alloc_var("float32", alpha_b_distance * f32(1.4426950216293335))
            alpha_b = tl.alloc_var("float32", portable_exp2(alpha_b_exponent))
            l_a_scaled = tl.alloc_var("float32", l * alpha_a)
            l_b_scaled = tl.alloc_var("float32", l_chunk_2 * alpha_b)
            l_2 = tl.alloc_var("float32", l_a_scaled + l_b_scaled)
            total_2 = tl.alloc_var("float32", total + sum_v_lane_2)  # smoothed_loss.py:30
            m = m_2
            l = l_2
            total = total_2
        m_3 = m  # smoothed_loss.py:27
        l_3 = l
        total_3 = total
        for v_step_2 in tl.serial(62, 63):
            v_step_times_256_2 = tl.alloc_var("int32", v_step_2 * 256)
            v_begin_2 = tl.alloc_var("int32", piece_begin + v_step_times_256_2)
            for c in tl.unroll(16):
                v_2[c] = v_begin_2 + v_lane[c]
                exists[c] = v_2[c] < piece_end
                logits_value_3[c] = tl.if_then_else(  # smoothed_loss.py:28
                    exists[c], logits[tl.int64(t) * logits_t_stride + v_2[c]], tl.Cast("bfloat16", 0)
                )
                z_2[c] = tl.Cast("float32", logits_value_3[c])
                z_masked[c] = tl.Select(exists[c], z_2[c], f32(float("-inf")))  # smoothed_loss.py:29
                m_chunk_3[c] = z_masked[c]
            max_over_v_lane(m_chunk_3, f32_reduce_smem, thread)
            m_chunk_4 = m_chunk_3[0]
            is_empty_3 = tl.alloc_var("bool", m_chunk_4 == f32(float("-inf")))
            m_safe_3 = tl.alloc_var("float32", tl.Select(is_empty_3, f32(0.0), m_chunk_4))
            for c in tl.unroll(16):
                p_distance_2[c] = z_masked[c] - m_safe_3
                p_exponent_2[c] = p_distance_2[c] * f32(1.4426950216293335)
                p_2[c] = portable_exp2(p_exponent_2[c])
                l_chunk_3[c] = p_2[c]
            sum_over_v_lane(l_chunk_3, f32_reduce_smem, thread)
            l_chunk_4 = l_chunk_3[0]
            for c in tl.unroll(16):  # smoothed_loss.py:30
                z_masked_2[c] = tl.Select(exists[c], z_2[c], f32(-0.0))
                sum_v_lane_3[c] = z_masked_2[c]
            sum_over_v_lane(sum_v_lane_3, f32_reduce_smem, thread)
            sum_v_lane_4 = sum_v_lane_3[0]
            m_4 = tl.alloc_var("float32", larger(m_3, m_chunk_4))  # smoothed_loss.py:29
            is_empty_4 = tl.alloc_var("bool", m_4 == f32(float("-inf")))
            m_safe_4 = tl.alloc_var("float32", tl.Select(is_empty_4, f32(0.0), m_4))
            alpha_a_distance_2 = tl.alloc_var("float32", m_3 - m_safe_4)
            alpha_a_exponent_2 = tl.alloc_var("float32", alpha_a_distance_2 * f32(1.4426950216293335))
            alpha_a_2 = tl.alloc_var("float32", portable_exp2(alpha_a_exponent_2))
            alpha_b_distance_2 = tl.alloc_var("float32", m_chunk_4 - m_safe_4)
            alpha_b_exponent_2 = tl.alloc_var("float32", alpha_b_distance_2 * f32(1.4426950216293335))
            alpha_b_2 = tl.alloc_var("float32", portable_exp2(alpha_b_exponent_2))
            l_a_scaled_2 = tl.alloc_var("float32", l_3 * alpha_a_2)
            l_b_scaled_2 = tl.alloc_var("float32", l_chunk_4 * alpha_b_2)
            l_4 = tl.alloc_var("float32", l_a_scaled_2 + l_b_scaled_2)
            total_4 = tl.alloc_var("float32", total_3 + sum_v_lane_4)  # smoothed_loss.py:30
            m_3 = m_4
            l_3 = l_4
            total_3 = total_4
        m_5[0] = m_3  # smoothed_loss.py:29
        l_5[0] = l_3
        softmax_sum_over_v_piece(m_5, l_5)
        m_6 = m_5[0]
        l_6 = l_5[0]
        total_5[0] = total_3  # smoothed_loss.py:30
        total_over_v_piece(total_5)
        total_6 = total_5[0]
        log_l = tl.alloc_var("float32", portable_log(l_6))  # smoothed_loss.py:31
        lse_value = tl.alloc_var("float32", m_6 + log_l)
        hit = tl.alloc_var("float32", tl.Cast("float32", logits_value))  # smoothed_loss.py:32
        level = tl.alloc_var("float32", total_6 / f32(128256.0))  # smoothed_loss.py:33
        _1_minus_smoothing = tl.alloc_var("float32", f32(1.0) - smoothing_value)  # smoothed_loss.py:34
        lse_minus_hit = tl.alloc_var("float32", lse_value - hit)
        loss_product = tl.alloc_var("float32", _1_minus_smoothing * lse_minus_hit)
        lse_minus_level = tl.alloc_var("float32", lse_value - level)
        loss_product_2 = tl.alloc_var("float32", smoothing_value * lse_minus_level)
        loss_value = tl.alloc_var("float32", loss_product + loss_product_2)
        if writes:
            loss[t] = loss_value
        if writes:
            lse[t] = lse_value


def call(kernels, logits, targets, loss, lse, smoothing, T, logits_t_stride):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = T
    if programs > 0:
        kernels.smoothed_loss((programs,), logits, targets, loss, lse, logits_t_stride, T, smoothing)
