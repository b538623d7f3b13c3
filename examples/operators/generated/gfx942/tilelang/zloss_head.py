"""zloss_head on gfx942, written by rlk 0.1.0: do not edit.

numerics: 5da936fcec5aaa88
schedule: tiles T=32, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed V.lane[5:0] T[4:3]
schedule: tiles T=32, 8 warps, 1 stages, unroll 8
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
  targets: i64 [T]
outputs:
  loss: f32 [T]
  lse: f32 [T]
scalars:
  z_weight: f32
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
def max_over_v_lane(x):
    # The max over V.lane, in any order.
    for c in tl.unroll(16):
        x[c] = larger(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
    for c in tl.unroll(8):
        x[c] = larger(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
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
        m[c], l[c] = merge_softmax_sum(m[c], l[c], tl.shfl_xor(m[c], 1, width=64), tl.shfl_xor(l[c], 1, width=64))
    for c in tl.unroll(1):
        m[c], l[c] = merge_softmax_sum(m[c], l[c], tl.shfl_xor(m[c], 2, width=64), tl.shfl_xor(l[c], 2, width=64))
    for c in tl.unroll(1):
        m[c], l[c] = merge_softmax_sum(m[c], l[c], tl.shfl_xor(m[c], 4, width=64), tl.shfl_xor(l[c], 4, width=64))


@tl.macro
def sum_over_v_lane(x):
    # The sum over V.lane, halving.
    for c in tl.unroll(16):
        x[c] = add(x[c // 16 * 32 + c % 16], x[c // 16 * 32 + c % 16 + 16])
    for c in tl.unroll(8):
        x[c] = add(x[c // 8 * 16 + c % 8], x[c // 8 * 16 + c % 8 + 8])
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


@tl.macro
def total_over_v_piece(total):
    # The states merged over V.piece, pairwise.
    for c in tl.unroll(1):
        total[c] = merge_total(total[c], tl.shfl_xor(total[c], 1, width=64))
    for c in tl.unroll(1):
        total[c] = merge_total(total[c], tl.shfl_xor(total[c], 2, width=64))
    for c in tl.unroll(1):
        total[c] = merge_total(total[c], tl.shfl_xor(total[c], 4, width=64))


@tl.prim_func
def zloss_head_1(
    hidden: memory("hidden", "bfloat16"), weight: memory("weight", "bfloat16"), targets: memory("targets", "int64"),
    max_of_step: memory("max_of_step", "float32"), sum_of_step1: memory("sum_of_step1", "float32"),
    sum_of_step2: memory("sum_of_step2", "float32"), T: tl.int32, hidden_t_stride: tl.int64, weight_v_stride: tl.int64,
    max_of_step_v_step_stride: tl.int64, max_of_step_v_piece_stride: tl.int64, sum_of_step1_v_step_stride: tl.int64,
    sum_of_step1_v_piece_stride: tl.int64, sum_of_step2_v_step_stride: tl.int64, sum_of_step2_v_piece_stride: tl.int64,
    programs: tl.int32
):
    # A block owns 1 of V.step, 1 of V.piece, 32 of T (stream_dot). V.lane: 256 indices, 4 to each of 64 threads; T: 32
    # indices, 8 to each of 4 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        v_lane = tl.alloc_local((4,), "int32")
        v = tl.alloc_local((4,), "int32")
        exists = tl.alloc_local((4,), "bool")
        z_sums = tl.alloc_fragment((32, 256), "float32")
        z_tile = tl.alloc_shared((32, 256), "float32", "shared")
        hidden_start = tl.alloc_shared((32,), "int64", "shared")
        t_place = tl.alloc_local((8,), "int32")
        weight_start = tl.alloc_shared((256,), "int64", "shared")
        v_lane_place = tl.alloc_local((4,), "int32")
        hidden_tile = tl.alloc_shared((32, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((256, 32), "bfloat16", "shared")
        t_place_2 = tl.alloc_local((8,), "int32")
        v_lane_place_2 = tl.alloc_local((4,), "int32")
        z = tl.alloc_local((32,), "float32")
        targets_value = tl.alloc_local((8,), "int64")
        v_i64 = tl.alloc_local((4,), "int64")
        sum_of_step2_equal = tl.alloc_local((32,), "bool")
        z_masked = tl.alloc_local((32,), "float32")
        z_masked_2 = tl.alloc_local((32,), "float32")
        m_chunk = tl.alloc_local((32,), "float32")
        is_empty = tl.alloc_local((8,), "bool")
        m_safe = tl.alloc_local((8,), "float32")
        p_distance = tl.alloc_local((32,), "float32")
        p_exponent = tl.alloc_local((32,), "float32")
        p = tl.alloc_local((32,), "float32")
        l_chunk = tl.alloc_local((32,), "float32")
        z_masked_3 = tl.alloc_local((32,), "float32")
        sum_v_lane = tl.alloc_local((32,), "float32")
        rest = tl.truncdiv(block, ((T + 31) // 32))
        rest_2 = tl.truncdiv(rest, 8)
        v_step = rest_2
        v_piece = tl.truncmod(rest, 8)
        for c in tl.unroll(8):
            t[c] = tl.truncmod(block, ((T + 31) // 32)) * 32 + thread // 64 * 8 + c
            t_inside[c] = t[c] < T
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        piece_begin_product = tl.alloc_var("int32", v_piece * 16032)  # zloss_head.py:26
        piece_begin = tl.alloc_var("int32", tl.min(tl.int32(128256), piece_begin_product))
        piece_end_sum = tl.alloc_var("int32", piece_begin + 16032)
        piece_end = tl.alloc_var("int32", tl.min(tl.int32(128256), piece_end_sum))
        v_step_times_256 = tl.alloc_var("int32", v_step * 256)
        v_begin = tl.alloc_var("int32", piece_begin + v_step_times_256)
        for c in tl.unroll(4):
            v_lane[c] = thread % 64 + c * 64
            v[c] = v_begin + v_lane[c]
            exists[c] = v[c] < piece_end
        for c in tl.unroll(8):  # zloss_head.py:27
            t_place[c] = thread // 64 * 8 + c
            if writes:
                hidden_start[t_place[c]] = tl.Select(
                    t_inside[c], tl.int64(tl.int64(t[c]) * hidden_t_stride), tl.int64(-1)
                )
        for c in tl.unroll(4):
            v_lane_place[c] = thread % 64 + c * 64
            if writes_2:
                weight_start[v_lane_place[c]] = tl.Select(
                    exists[c], tl.int64(tl.int64(v[c]) * weight_v_stride), tl.int64(-1)
                )
        tl.clear(z_sums)
        tl.sync_threads()
        for d_step in tl.serial(0, 128):
            for c in tl.unroll(4):
                at = c * 256 + thread
                row, k = at // 32, d_step * 32 + at % 32
                hidden_tile[row, at % 32] = tl.if_then_else(
                    (hidden_start[row] != -1) & (k < 4096), hidden[hidden_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(32):
                at = c * 256 + thread
                row, k = at // 32, d_step * 32 + at % 32
                weight_tile[row, at % 32] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 4096), weight[weight_start[row] + k], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(hidden_tile, weight_tile, z_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(z_sums, z_tile)
        tl.sync_threads()
        for c in tl.unroll(8):
            t_place_2[c] = thread // 64 * 8 + c
        for c in tl.unroll(4):
            v_lane_place_2[c] = thread % 64 + c * 64
        for c in tl.unroll(32):
            z[c] = z_tile[t_place_2[c % 8], v_lane_place_2[c // 8]]
        for c in tl.unroll(8):  # zloss_head.py:29
            targets_value[c] = tl.if_then_else(t_inside[c], targets[t[c]], tl.Cast("int64", 0))
        for c in tl.unroll(4):
            v_i64[c] = tl.Cast("int64", v[c])
        for c in tl.unroll(32):
            sum_of_step2_equal[c] = v_i64[c // 8] == targets_value[c % 8]
            z_masked[c] = tl.Select(sum_of_step2_equal[c], z[c], f32(0.0))
            z_masked_2[c] = tl.Select(exists[c // 8], z[c], f32(float("-inf")))  # zloss_head.py:28
            m_chunk[c] = z_masked_2[c]
        max_over_v_lane(m_chunk)
        for c in tl.unroll(8):
            is_empty[c] = m_chunk[c] == f32(float("-inf"))
            m_safe[c] = tl.Select(is_empty[c], f32(0.0), m_chunk[c])
        for c in tl.unroll(32):
            p_distance[c] = z_masked_2[c] - m_safe[c % 8]
            p_exponent[c] = p_distance[c] * f32(1.4426950216293335)
            p[c] = portable_exp2(p_exponent[c])
            l_chunk[c] = p[c]
        sum_over_v_lane(l_chunk)
        for c in tl.unroll(32):  # zloss_head.py:29
            z_masked_3[c] = tl.Select(exists[c // 8], z_masked[c], f32(-0.0))
            sum_v_lane[c] = z_masked_3[c]
        sum_over_v_lane(sum_v_lane)
        for c in tl.unroll(8):  # zloss_head.py:26
            if t_inside[c] & writes:
                max_of_step[
                    tl.int64(v_step) * max_of_step_v_step_stride + tl.int64(v_piece) * max_of_step_v_piece_stride + t[c]
                ] = m_chunk[c]
            if t_inside[c] & writes:
                sum_of_step1[
                    tl.int64(v_step) * sum_of_step1_v_step_stride + tl.int64(v_piece) * sum_of_step1_v_piece_stride
                    + t[c]
                ] = l_chunk[c]
            if t_inside[c] & writes:
                sum_of_step2[
                    tl.int64(v_step) * sum_of_step2_v_step_stride + tl.int64(v_piece) * sum_of_step2_v_piece_stride
                    + t[c]
                ] = sum_v_lane[c]


@tl.prim_func
def zloss_head_2(
    loss: memory("loss", "float32"), lse: memory("lse", "float32"), max_of_step: memory("max_of_step", "float32"),
    sum_of_step1: memory("sum_of_step1", "float32"), sum_of_step2: memory("sum_of_step2", "float32"), T: tl.int32,
    max_of_step_v_step_stride: tl.int64, max_of_step_v_piece_stride: tl.int64, sum_of_step1_v_step_stride: tl.int64,
    sum_of_step1_v_piece_stride: tl.int64, sum_of_step2_v_step_stride: tl.int64, sum_of_step2_v_piece_stride: tl.int64,
    z_weight: tl.float32, programs: tl.int32
):
    # A block owns 32 of T (merge). V.piece: 8 indices, 1 to each of 8 threads; T: 32 indices, 1 to each of 32 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        m = tl.alloc_var("float32")
        l = tl.alloc_var("float32")
        total = tl.alloc_var("float32")
        m_3 = tl.alloc_local((1,), "float32")
        l_3 = tl.alloc_local((1,), "float32")
        total_3 = tl.alloc_local((1,), "float32")
        t = block * 32 + thread // 8 % 32
        t_inside = t < T
        writes = (thread & 263) == 0
        z_weight_value = tl.alloc_var("float32", z_weight)
        v_piece = tl.alloc_var("int32", thread % 8)  # zloss_head.py:26
        m = f32(float("-inf"))
        l = f32(-0.0)
        total = f32(-0.0)
        for v_step_step in tl.serial(0, 63):
            max_of_step_value = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    t_inside,
                    max_of_step[
                        tl.int64(v_step_step) * max_of_step_v_step_stride
                        + tl.int64(v_piece) * max_of_step_v_piece_stride + t
                    ],
                    tl.Cast("float32", 0)
                )
            )
            sum_of_step1_value = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    t_inside,
                    sum_of_step1[
                        tl.int64(v_step_step) * sum_of_step1_v_step_stride
                        + tl.int64(v_piece) * sum_of_step1_v_piece_stride + t
                    ],
                    tl.Cast("float32", 0)
                )
            )
            sum_of_step2_value = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    t_inside,
                    sum_of_step2[
                        tl.int64(v_step_step) * sum_of_step2_v_step_stride
                        + tl.int64(v_piece) * sum_of_step2_v_piece_stride + t
                    ],
                    tl.Cast("float32", 0)
                )
            )
            m_2 = tl.alloc_var("float32", larger(m, max_of_step_value))  # zloss_head.py:28
            is_empty = tl.alloc_var("bool", m_2 == f32(float("-inf")))
            m_safe = tl.alloc_var("float32", tl.Select(is_empty, f32(0.0), m_2))
            alpha_a_distance = tl.alloc_var("float32", m - m_safe)
            alpha_a_exponent = tl.alloc_var("float32", alpha_a_distance * f32(1.4426950216293335))
            alpha_a = tl.alloc_var("float32", portable_exp2(alpha_a_exponent))
            alpha_b_distance = tl.alloc_var("float32", max_of_step_value - m_safe)
            alpha_b_exponent = tl.alloc_var("float32", alpha_b_distance * f32(1.4426950216293335))
            alpha_b = tl.alloc_var("float32", portable_exp2(alpha_b_exponent))
            l_a_scaled = tl.alloc_var("float32", l * alpha_a)
            l_b_scaled = tl.alloc_var("float32", sum_of_step1_value * alpha_b)
            l_2 = tl.alloc_var("float32", l_a_scaled + l_b_scaled)
            total_2 = tl.alloc_var("float32", total + sum_of_step2_value)  # zloss_head.py:29
            m = m_2
            l = l_2
            total = total_2
        m_3[0] = m  # zloss_head.py:28
        l_3[0] = l
        softmax_sum_over_v_piece(m_3, l_3)
        m_4 = m_3[0]
        l_4 = l_3[0]
        total_3[0] = total  # zloss_head.py:29
        total_over_v_piece(total_3)
        total_4 = total_3[0]
        log_l = tl.alloc_var("float32", portable_log(l_4))  # zloss_head.py:30
        lse_value = tl.alloc_var("float32", m_4 + log_l)
        lse_minus_hit = tl.alloc_var("float32", lse_value - total_4)  # zloss_head.py:31
        lse_times_lse = tl.alloc_var("float32", lse_value * lse_value)
        loss_product = tl.alloc_var("float32", z_weight_value * lse_times_lse)
        loss_value = tl.alloc_var("float32", lse_minus_hit + loss_product)
        if t_inside & writes:
            loss[t] = loss_value
        if t_inside & writes:
            lse[t] = lse_value


def call(
    kernels, hidden, weight, targets, max_of_step, sum_of_step1, sum_of_step2, loss, lse, z_weight, T, hidden_t_stride,
    weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
    sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 63 * 8 * ((T + 31) // 32)
    if programs > 0:
        kernels.zloss_head_1(
            (programs,), hidden, weight, targets, max_of_step, sum_of_step1, sum_of_step2, T, hidden_t_stride,
            weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
            sum_of_step1_v_piece_stride, sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride
        )
    programs = ((T + 31) // 32)
    if programs > 0:
        kernels.zloss_head_2(
            (programs,), loss, lse, max_of_step, sum_of_step1, sum_of_step2, T, max_of_step_v_step_stride,
            max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride,
            sum_of_step2_v_step_stride, sum_of_step2_v_piece_stride, z_weight
        )
