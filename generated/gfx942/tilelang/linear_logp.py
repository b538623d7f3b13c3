"""linear_logp on gfx942, written by rlk 0.1.0: do not edit.

numerics: 86e8ae4ad63024f3
schedule: tiles T=32, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed V.lane[5:0] T[4:3]
schedule: tiles T=32, 8 warps, 1 stages, unroll 4
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
def merge_total(sum_a, sum_b):
    # The state of two disjoint sets: total().
    s = tl.alloc_var("float32", sum_a + sum_b)
    return s


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
            m[c], s[c], centred[c], tl.shfl_xor(m[c], 1, width=64), tl.shfl_xor(s[c], 1, width=64),
            tl.shfl_xor(centred[c], 1, width=64)
        )
    for c in tl.unroll(1):
        m[c], s[c], centred[c] = merge_softmax_sum(
            m[c], s[c], centred[c], tl.shfl_xor(m[c], 2, width=64), tl.shfl_xor(s[c], 2, width=64),
            tl.shfl_xor(centred[c], 2, width=64)
        )
    for c in tl.unroll(1):
        m[c], s[c], centred[c] = merge_softmax_sum(
            m[c], s[c], centred[c], tl.shfl_xor(m[c], 4, width=64), tl.shfl_xor(s[c], 4, width=64),
            tl.shfl_xor(centred[c], 4, width=64)
        )


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
def total_over_v_piece(s):
    # The states merged over V.piece, pairwise.
    for c in tl.unroll(1):
        s[c] = merge_total(s[c], tl.shfl_xor(s[c], 1, width=64))
    for c in tl.unroll(1):
        s[c] = merge_total(s[c], tl.shfl_xor(s[c], 2, width=64))
    for c in tl.unroll(1):
        s[c] = merge_total(s[c], tl.shfl_xor(s[c], 4, width=64))


@tl.prim_func
def linear_logp_1(
    hidden: memory("hidden", "bfloat16"), weight: memory("weight", "bfloat16"), ids: memory("ids", "int64"),
    max_of_step: memory("max_of_step", "float32"), sum_of_step1: memory("sum_of_step1", "float32"),
    centred_of_step2: memory("centred_of_step2", "float32"), sum_of_step3: memory("sum_of_step3", "float32"),
    T: tl.int32, hidden_t_stride: tl.int64, weight_v_stride: tl.int64, max_of_step_v_step_stride: tl.int64,
    max_of_step_v_piece_stride: tl.int64, sum_of_step1_v_step_stride: tl.int64, sum_of_step1_v_piece_stride: tl.int64,
    centred_of_step2_v_step_stride: tl.int64, centred_of_step2_v_piece_stride: tl.int64,
    sum_of_step3_v_step_stride: tl.int64, sum_of_step3_v_piece_stride: tl.int64, inv_temperature: tl.float32,
    ignore_index: tl.int64, programs: tl.int32
):
    # A block owns 1 of V.step, 1 of V.piece, 32 of T (stream_dot). V.lane: 256 indices, 4 to each of 64 threads; T: 32
    # indices, 8 to each of 4 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t = tl.alloc_local((8,), "int32")
        t_inside = tl.alloc_local((8,), "bool")
        ids_2 = tl.alloc_local((8,), "int64")
        v_lane = tl.alloc_local((4,), "int32")
        v = tl.alloc_local((4,), "int32")
        exists = tl.alloc_local((4,), "bool")
        differs = tl.alloc_local((8,), "bool")
        exists_2 = tl.alloc_local((32,), "bool")
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
        product_3 = tl.alloc_local((32,), "float32")
        as_i64 = tl.alloc_local((4,), "int64")
        equal = tl.alloc_local((32,), "bool")
        chosen = tl.alloc_local((32,), "float32")
        chosen_2 = tl.alloc_local((32,), "float32")
        m_chunk = tl.alloc_local((32,), "float32")
        equal_2 = tl.alloc_local((8,), "bool")
        chosen_3 = tl.alloc_local((8,), "float32")
        difference = tl.alloc_local((32,), "float32")
        product_4 = tl.alloc_local((32,), "float32")
        e = tl.alloc_local((32,), "float32")
        larger_2 = tl.alloc_local((32,), "float32")
        product_5 = tl.alloc_local((32,), "float32")
        s_chunk = tl.alloc_local((32,), "float32")
        centred_chunk = tl.alloc_local((32,), "float32")
        chosen_4 = tl.alloc_local((32,), "float32")
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
        for c in tl.unroll(8):  # linear_logp.py:61
            ids_2[c] = tl.if_then_else(t_inside[c], ids[t[c]], tl.Cast("int64", 0))
        product = tl.alloc_var("int32", v_piece * 16032)  # linear_logp.py:64
        piece_begin = tl.alloc_var("int32", tl.min(tl.int32(128256), product))
        total = tl.alloc_var("int32", piece_begin + 16032)
        piece_end = tl.alloc_var("int32", tl.min(tl.int32(128256), total))
        product_2 = tl.alloc_var("int32", v_step * 256)
        total_2 = tl.alloc_var("int32", piece_begin + product_2)
        for c in tl.unroll(4):
            v_lane[c] = thread % 64 + c * 64
            v[c] = total_2 + v_lane[c]
            exists[c] = v[c] < piece_end
        inv_temperature_2 = tl.alloc_var("float32", inv_temperature)
        ignore_index_2 = tl.alloc_var("int64", ignore_index)
        for c in tl.unroll(8):  # logp.py:200
            differs[c] = ids_2[c] != ignore_index_2
        for c in tl.unroll(32):  # linear_logp.py:64
            exists_2[c] = exists[c // 8] & differs[c % 8]
        for c in tl.unroll(8):  # linear_logp.py:65
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
            product_3[c] = z[c] * inv_temperature_2  # logp.py:57
        for c in tl.unroll(4):  # linear_logp.py:71
            as_i64[c] = tl.Cast("int64", v[c])
        for c in tl.unroll(32):
            equal[c] = as_i64[c // 8] == ids_2[c % 8]
            chosen[c] = tl.Select(equal[c], product_3[c], f32(-0.0))
            chosen_2[c] = tl.Select(exists_2[c], product_3[c], f32(float("-inf")))  # linear_logp.py:64
            m_chunk[c] = chosen_2[c]
        max_over_v_lane(m_chunk)
        for c in tl.unroll(8):
            equal_2[c] = m_chunk[c] == f32(float("-inf"))
            chosen_3[c] = tl.Select(equal_2[c], f32(0.0), m_chunk[c])
        for c in tl.unroll(32):
            difference[c] = chosen_2[c] - chosen_3[c % 8]
            product_4[c] = difference[c] * f32(1.4426950216293335)
            e[c] = portable_exp2(product_4[c])
            larger_2[c] = larger(difference[c], f32(-3.4028234663852886e+38))
            product_5[c] = e[c] * larger_2[c]
            s_chunk[c] = e[c]
        sum_over_v_lane(s_chunk)
        for c in tl.unroll(32):
            centred_chunk[c] = product_5[c]
        sum_over_v_lane(centred_chunk)
        for c in tl.unroll(32):
            chosen_4[c] = tl.Select(exists_2[c], chosen[c], f32(-0.0))
            sum_v_lane[c] = chosen_4[c]
        sum_over_v_lane(sum_v_lane)
        for c in tl.unroll(8):
            if t_inside[c] & writes:
                max_of_step[
                    tl.int64(v_step) * max_of_step_v_step_stride + tl.int64(v_piece) * max_of_step_v_piece_stride + t[c]
                ] = m_chunk[c]
            if t_inside[c] & writes:
                sum_of_step1[
                    tl.int64(v_step) * sum_of_step1_v_step_stride + tl.int64(v_piece) * sum_of_step1_v_piece_stride
                    + t[c]
                ] = s_chunk[c]
            if t_inside[c] & writes:
                centred_of_step2[
                    tl.int64(v_step) * centred_of_step2_v_step_stride
                    + tl.int64(v_piece) * centred_of_step2_v_piece_stride + t[c]
                ] = centred_chunk[c]
            if t_inside[c] & writes:
                sum_of_step3[
                    tl.int64(v_step) * sum_of_step3_v_step_stride + tl.int64(v_piece) * sum_of_step3_v_piece_stride
                    + t[c]
                ] = sum_v_lane[c]


@tl.prim_func
def linear_logp_2(
    ids: memory("ids", "int64"), logp: memory("logp", "float32"), lse: memory("lse", "float32"),
    entropy: memory("entropy", "float32"), max_of_step: memory("max_of_step", "float32"),
    sum_of_step1: memory("sum_of_step1", "float32"), centred_of_step2: memory("centred_of_step2", "float32"),
    sum_of_step3: memory("sum_of_step3", "float32"), T: tl.int32, max_of_step_v_step_stride: tl.int64,
    max_of_step_v_piece_stride: tl.int64, sum_of_step1_v_step_stride: tl.int64, sum_of_step1_v_piece_stride: tl.int64,
    centred_of_step2_v_step_stride: tl.int64, centred_of_step2_v_piece_stride: tl.int64,
    sum_of_step3_v_step_stride: tl.int64, sum_of_step3_v_piece_stride: tl.int64, errors: memory("errors", "int32"),
    ignore_index: tl.int64, programs: tl.int32
):
    # A block owns 32 of T (merge). V.piece: 8 indices, 1 to each of 8 threads; T: 32 indices, 1 to each of 32 threads.
    with tl.Kernel(programs, threads=512) as block:
        thread = tl.get_thread_binding()
        m = tl.alloc_var("float32")
        s = tl.alloc_var("float32")
        centred = tl.alloc_var("float32")
        s_2 = tl.alloc_var("float32")
        m_3 = tl.alloc_local((1,), "float32")
        s_4 = tl.alloc_local((1,), "float32")
        centred_2 = tl.alloc_local((1,), "float32")
        s_6 = tl.alloc_local((1,), "float32")
        t = block * 32 + thread // 8 % 32
        t_inside = t < T
        writes = (thread & 263) == 0
        ids_2 = tl.alloc_var("int64", tl.if_then_else(t_inside, ids[t], tl.Cast("int64", 0)))  # linear_logp.py:61
        ignore_index_2 = tl.alloc_var("int64", ignore_index)
        differs = tl.alloc_var("bool", ids_2 != ignore_index_2)  # logp.py:200
        v_piece = tl.alloc_var("int32", thread % 8)  # linear_logp.py:64
        m = f32(float("-inf"))
        s = f32(0.0)
        centred = f32(-0.0)
        s_2 = f32(-0.0)
        for v_step_step in tl.serial(0, 63):
            max_of_step_2 = tl.alloc_var(
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
            sum_of_step1_2 = tl.alloc_var(
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
            centred_of_step2_2 = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    t_inside,
                    centred_of_step2[
                        tl.int64(v_step_step) * centred_of_step2_v_step_stride
                        + tl.int64(v_piece) * centred_of_step2_v_piece_stride + t
                    ],
                    tl.Cast("float32", 0)
                )
            )
            sum_of_step3_2 = tl.alloc_var(
                "float32",
                tl.if_then_else(
                    t_inside,
                    sum_of_step3[
                        tl.int64(v_step_step) * sum_of_step3_v_step_stride
                        + tl.int64(v_piece) * sum_of_step3_v_piece_stride + t
                    ],
                    tl.Cast("float32", 0)
                )
            )
            m_2 = tl.alloc_var("float32", larger(m, max_of_step_2))
            equal = tl.alloc_var("bool", m_2 == f32(float("-inf")))
            chosen = tl.alloc_var("float32", tl.Select(equal, f32(0.0), m_2))
            difference = tl.alloc_var("float32", m - chosen)
            product = tl.alloc_var("float32", difference * f32(1.4426950216293335))
            exp2 = tl.alloc_var("float32", portable_exp2(product))
            larger_2 = tl.alloc_var("float32", larger(difference, f32(-3.4028234663852886e+38)))
            difference_2 = tl.alloc_var("float32", max_of_step_2 - chosen)
            product_2 = tl.alloc_var("float32", difference_2 * f32(1.4426950216293335))
            exp2_2 = tl.alloc_var("float32", portable_exp2(product_2))
            larger_3 = tl.alloc_var("float32", larger(difference_2, f32(-3.4028234663852886e+38)))
            product_3 = tl.alloc_var("float32", s * exp2)
            product_4 = tl.alloc_var("float32", sum_of_step1_2 * exp2_2)
            total = tl.alloc_var("float32", product_3 + product_4)
            product_5 = tl.alloc_var("float32", centred * exp2)
            product_6 = tl.alloc_var("float32", centred_of_step2_2 * exp2_2)
            fused = tl.alloc_var("float32", fma(product_3, larger_2, product_5))
            fused_2 = tl.alloc_var("float32", fma(product_4, larger_3, product_6))
            total_2 = tl.alloc_var("float32", fused + fused_2)
            s_3 = tl.alloc_var("float32", s_2 + sum_of_step3_2)
            m = m_2
            s = total
            centred = total_2
            s_2 = s_3
        m_3[0] = m
        s_4[0] = s
        centred_2[0] = centred
        softmax_sum_over_v_piece(m_3, s_4, centred_2)
        m_4 = m_3[0]
        s_5 = s_4[0]
        centred_3 = centred_2[0]
        s_6[0] = s_2
        total_over_v_piece(s_6)
        s_7 = s_6[0]
        at_most = tl.alloc_var("bool", 0 <= ids_2)  # linear_logp.py:78
        below = tl.alloc_var("bool", ids_2 < 128256)
        both = tl.alloc_var("bool", at_most & below)
        log = tl.alloc_var("float32", portable_log(s_5))  # linear_logp.py:83
        total_3 = tl.alloc_var("float32", m_4 + log)
        chosen_2 = tl.alloc_var("float32", tl.Select(both, s_7, f32(float("nan"))))  # linear_logp.py:84
        difference_3 = tl.alloc_var("float32", chosen_2 - total_3)
        is_nan_2 = tl.alloc_var("bool", is_nan(difference_3))  # linear_logp.py:85
        both_2 = tl.alloc_var("bool", differs & is_nan_2)
        if both_2 & t_inside & writes:
            tl.atomic_max(errors[0], 1)
            tl.atomic_max(errors[1], t + 1)
        chosen_3 = tl.alloc_var("float32", tl.Select(differs, difference_3, f32(0.0)))  # linear_logp.py:87
        chosen_4 = tl.alloc_var("float32", tl.Select(differs, total_3, f32(0.0)))  # linear_logp.py:88
        quotient = tl.alloc_var("float32", centred_3 / s_5)  # linear_logp.py:89
        difference_4 = tl.alloc_var("float32", log - quotient)
        chosen_5 = tl.alloc_var("float32", tl.Select(differs, difference_4, f32(0.0)))
        if t_inside & writes:  # linear_logp.py:86
            logp[t] = chosen_3
        if t_inside & writes:
            lse[t] = chosen_4
        if t_inside & writes:
            entropy[t] = chosen_5


def call(
    kernels, hidden, weight, ids, max_of_step, sum_of_step1, centred_of_step2, sum_of_step3, logp, lse, entropy,
    inv_temperature, ignore_index, T, hidden_t_stride, weight_v_stride, max_of_step_v_step_stride,
    max_of_step_v_piece_stride, sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride,
    centred_of_step2_v_piece_stride, sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, errors
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    programs = 63 * 8 * ((T + 31) // 32)
    if programs > 0:
        kernels.linear_logp_1(
            (programs,), hidden, weight, ids, max_of_step, sum_of_step1, centred_of_step2, sum_of_step3, T,
            hidden_t_stride, weight_v_stride, max_of_step_v_step_stride, max_of_step_v_piece_stride,
            sum_of_step1_v_step_stride, sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride,
            centred_of_step2_v_piece_stride, sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, inv_temperature,
            ignore_index
        )
    programs = ((T + 31) // 32)
    if programs > 0:
        kernels.linear_logp_2(
            (programs,), ids, logp, lse, entropy, max_of_step, sum_of_step1, centred_of_step2, sum_of_step3, T,
            max_of_step_v_step_stride, max_of_step_v_piece_stride, sum_of_step1_v_step_stride,
            sum_of_step1_v_piece_stride, centred_of_step2_v_step_stride, centred_of_step2_v_piece_stride,
            sum_of_step3_v_step_stride, sum_of_step3_v_piece_stride, errors, ignore_index
        )
