"""zloss_head_grad on gfx942, written by rlk 0.1.0: do not edit.

numerics: 77b8c3310086294d
schedule: tiles T.within=64, V.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed V.within[5:0]
    T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, T.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] T.within[5:4]
schedule: tiles D=64, V.within=64, 4 warps, 1 stages, unroll 1, depth 32, group 1 placed D[5:0] V.within[5:4]
inputs:
  hidden: bf16 [T, D=4096]
  weight: bf16 [V=128256, D=4096]
  targets: i64 [T]
  lse: f32 [T]
  d_loss: f32 [T]
outputs:
  d_hidden: bf16 [T, D=4096]
  d_weight: bf16 [V=128256, D=4096]
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
def smaller(a, b):
    # NaN loses, -0.0 < +0.0: of two equal numbers, the sign that one has.
    same = number_of(bits_of(a) | bits_of(b))
    other = tl.Select(a == b, same, tl.Select(is_nan(a), b, a))
    return as_variable(tl.Select(b < a, b, tl.Select(a < b, a, other)))


@tl.prim_func
def zloss_head_grad_1(
    hidden: memory("hidden", "bfloat16"), weight: memory("weight", "bfloat16"), targets: memory("targets", "int64"),
    lse: memory("lse", "float32"), d_loss: memory("d_loss", "float32"), dz: memory("dz", "bfloat16"),
    T_length: tl.int32, hidden_t_stride: tl.int64, weight_v_stride: tl.int64, dz_t_within_stride: tl.int64,
    z_weight: tl.float32, T_piece: tl.int32, V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of V.within (dot_map). T.within: 64 indices, 16 to each of 4 threads; V.within: 64
    # indices, 1 to each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        t = tl.alloc_local((16,), "int32")
        z_sums = tl.alloc_fragment((64, 64), "float32")
        z_tile = tl.alloc_shared((64, 64), "float32", "shared")
        hidden_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        hidden_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        z = tl.alloc_local((16,), "float32")
        lse_value = tl.alloc_local((16,), "float32")
        targets_value = tl.alloc_local((16,), "int64")
        d_loss_value = tl.alloc_local((16,), "float32")
        z_minus_lse = tl.alloc_local((16,), "float32")
        p_product = tl.alloc_local((16,), "float32")
        p = tl.alloc_local((16,), "float32")
        pull_product = tl.alloc_local((16,), "float32")
        pull_sum = tl.alloc_local((16,), "float32")
        pull = tl.alloc_local((16,), "float32")
        hit_equal = tl.alloc_local((16,), "bool")
        hit = tl.alloc_local((16,), "float32")
        pull_minus_hit = tl.alloc_local((16,), "float32")
        dz_product = tl.alloc_local((16,), "float32")
        dz_product_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 251)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        v_within = tl.truncmod(block, 251) * 64 + thread % 64
        v_within_inside = v_within < 16032
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        T_piece_value = tl.alloc_var("int32", T_piece)
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        for c in tl.unroll(16):
            t[c] = t_piece_begin + t_within[c]
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        v = tl.alloc_var("int32", v_piece_begin + v_within)
        z_weight_value = tl.alloc_var("float32", z_weight)
        for c in tl.unroll(16):  # zloss_head.py:37
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                hidden_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t[c]) * hidden_t_stride), tl.int64(-1)
                )
        v_within_place = thread % 64
        if writes_2:
            weight_start[v_within_place] = tl.Select(
                v_within_inside, tl.int64(tl.int64(v) * weight_v_stride), tl.int64(-1)
            )
        tl.clear(z_sums)
        tl.sync_threads()
        for d_step in tl.serial(0, 128):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, d_step * 32 + at % 32
                hidden_tile[row, at % 32] = tl.if_then_else(
                    (hidden_start[row] != -1) & (k < 4096), hidden[hidden_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
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
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        v_within_place_2 = thread % 64
        for c in tl.unroll(16):
            z[c] = z_tile[t_within_place_2[c], v_within_place_2]
            lse_value[c] = tl.if_then_else(t_within_inside[c], lse[t[c]], tl.Cast("float32", 0))  # zloss_head.py:38
            # zloss_head.py:40
            targets_value[c] = tl.if_then_else(t_within_inside[c], targets[t[c]], tl.Cast("int64", 0))
            # zloss_head.py:41
            d_loss_value[c] = tl.if_then_else(t_within_inside[c], d_loss[t[c]], tl.Cast("float32", 0))
            z_minus_lse[c] = z[c] - lse_value[c]  # zloss_head.py:38
            p_product[c] = z_minus_lse[c] * f32(1.4426950216293335)
            p[c] = portable_exp2(p_product[c])
        z_weight_times_2 = tl.alloc_var("float32", f32(2.0) * z_weight_value)  # zloss_head.py:39
        for c in tl.unroll(16):
            pull_product[c] = z_weight_times_2 * lse_value[c]
            pull_sum[c] = f32(1.0) + pull_product[c]
            pull[c] = p[c] * pull_sum[c]
        v_i64 = tl.alloc_var("int64", tl.Cast("int64", v))  # zloss_head.py:40
        for c in tl.unroll(16):
            hit_equal[c] = v_i64 == targets_value[c]
            hit[c] = tl.Select(hit_equal[c], f32(1.0), f32(0.0))
            pull_minus_hit[c] = pull[c] - hit[c]  # zloss_head.py:41
            dz_product[c] = d_loss_value[c] * pull_minus_hit[c]
            dz_product_bf16[c] = tl.Cast("bfloat16", dz_product[c])
            if t_within_inside[c] & v_within_inside:
                dz[tl.int64(t_within[c]) * dz_t_within_stride + v_within] = dz_product_bf16[c]


@tl.prim_func
def zloss_head_grad_2_0(
    weight: memory("weight", "bfloat16"), dz: memory("dz", "bfloat16"), merged_2_0: memory("merged_2_0", "float32"),
    T_length: tl.int32, dz_t_within_stride: tl.int64, weight_v_stride: tl.int64, merged_2_0_t_within_stride: tl.int64,
    V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # zloss_head.py:43
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            if t_within_inside[c]:
                merged_2_0[tl.int64(t_within[c]) * merged_2_0_t_within_stride + d] = d_hidden[c]


@tl.prim_func
def zloss_head_grad_2_1(
    weight: memory("weight", "bfloat16"), dz: memory("dz", "bfloat16"), merged_2_0: memory("merged_2_0", "float32"),
    merged_2_1: memory("merged_2_1", "float32"), T_length: tl.int32, dz_t_within_stride: tl.int64,
    weight_v_stride: tl.int64, merged_2_0_t_within_stride: tl.int64, merged_2_1_t_within_stride: tl.int64,
    V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # zloss_head.py:43
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            earlier[c] = tl.if_then_else(
                t_within_inside[c], merged_2_0[tl.int64(t_within[c]) * merged_2_0_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + d_hidden[c]
            if t_within_inside[c]:
                merged_2_1[tl.int64(t_within[c]) * merged_2_1_t_within_stride + d] = merged[c]


@tl.prim_func
def zloss_head_grad_2_2(
    weight: memory("weight", "bfloat16"), dz: memory("dz", "bfloat16"), merged_2_0: memory("merged_2_0", "float32"),
    merged_2_1: memory("merged_2_1", "float32"), merged_2_2: memory("merged_2_2", "float32"), T_length: tl.int32,
    dz_t_within_stride: tl.int64, weight_v_stride: tl.int64, merged_2_0_t_within_stride: tl.int64,
    merged_2_1_t_within_stride: tl.int64, merged_2_2_t_within_stride: tl.int64, V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        earlier_2 = tl.alloc_local((16,), "float32")
        merged_2 = tl.alloc_local((16,), "float32")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):  # zloss_head.py:43
            t_within_place[c] = thread // 64 * 16 + c
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            earlier[c] = tl.if_then_else(
                t_within_inside[c], merged_2_0[tl.int64(t_within[c]) * merged_2_0_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + d_hidden[c]
            earlier_2[c] = tl.if_then_else(
                t_within_inside[c], merged_2_1[tl.int64(t_within[c]) * merged_2_1_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged_2[c] = earlier_2[c] + merged[c]
            if t_within_inside[c]:
                merged_2_2[tl.int64(t_within[c]) * merged_2_2_t_within_stride + d] = merged_2[c]


@tl.prim_func
def zloss_head_grad_2_3(
    weight: memory("weight", "bfloat16"), d_hidden: memory("d_hidden", "bfloat16"), dz: memory("dz", "bfloat16"),
    merged_2_0: memory("merged_2_0", "float32"), merged_2_1: memory("merged_2_1", "float32"),
    merged_2_2: memory("merged_2_2", "float32"), T_length: tl.int32, dz_t_within_stride: tl.int64,
    weight_v_stride: tl.int64, merged_2_0_t_within_stride: tl.int64, merged_2_1_t_within_stride: tl.int64,
    merged_2_2_t_within_stride: tl.int64, d_hidden_t_stride: tl.int64, T_piece: tl.int32, V_piece: tl.int32,
    programs: tl.int32
):
    # A block owns 64 of T.within, 64 of D (dot_map). T.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        t_within = tl.alloc_local((16,), "int32")
        t_within_inside = tl.alloc_local((16,), "bool")
        t = tl.alloc_local((16,), "int32")
        d_hidden_sums = tl.alloc_fragment((64, 64), "float32")
        d_hidden_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        t_within_place = tl.alloc_local((16,), "int32")
        weight_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        weight_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        t_within_place_2 = tl.alloc_local((16,), "int32")
        d_hidden_value = tl.alloc_local((16,), "float32")
        earlier = tl.alloc_local((16,), "float32")
        merged = tl.alloc_local((16,), "float32")
        earlier_2 = tl.alloc_local((16,), "float32")
        merged_2 = tl.alloc_local((16,), "float32")
        earlier_3 = tl.alloc_local((16,), "float32")
        merged_3 = tl.alloc_local((16,), "float32")
        merged_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            t_within[c] = rest * 64 + thread // 64 * 16 + c
            t_within_inside[c] = t_within[c] < T_length
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        T_piece_value = tl.alloc_var("int32", T_piece)
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        for c in tl.unroll(16):
            t[c] = t_piece_begin + t_within[c]
            t_within_place[c] = thread // 64 * 16 + c  # zloss_head.py:43
            if writes:
                dz_start[t_within_place[c]] = tl.Select(
                    t_within_inside[c], tl.int64(tl.int64(t_within[c]) * dz_t_within_stride), tl.int64(-1)
                )
        d_place = thread % 64
        if writes_2:
            weight_start[d_place] = tl.int64(d + tl.int64(v_piece_begin) * weight_v_stride)
        tl.clear(d_hidden_sums)
        tl.sync_threads()
        for v_within_step in tl.serial(0, 501):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at // 32, v_within_step * 32 + at % 32
                dz_tile[row, at % 32] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < 16032), dz[dz_start[row] + k], tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, v_within_step * 32 + at // 64
                weight_tile[row, at // 64] = tl.if_then_else(
                    (weight_start[row] != -1) & (k < 16032), weight[weight_start[row] + tl.int64(k) * weight_v_stride],
                    tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, weight_tile, d_hidden_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_hidden_sums, d_hidden_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            t_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_hidden_value[c] = d_hidden_tile[t_within_place_2[c], d_place_2]
            earlier[c] = tl.if_then_else(
                t_within_inside[c], merged_2_0[tl.int64(t_within[c]) * merged_2_0_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged[c] = earlier[c] + d_hidden_value[c]
            earlier_2[c] = tl.if_then_else(
                t_within_inside[c], merged_2_1[tl.int64(t_within[c]) * merged_2_1_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged_2[c] = earlier_2[c] + merged[c]
            earlier_3[c] = tl.if_then_else(
                t_within_inside[c], merged_2_2[tl.int64(t_within[c]) * merged_2_2_t_within_stride + d],
                tl.Cast("float32", 0)
            )
            merged_3[c] = earlier_3[c] + merged_2[c]
            merged_bf16[c] = tl.Cast("bfloat16", merged_3[c])  # zloss_head.py:44
            if t_within_inside[c]:
                d_hidden[tl.int64(t[c]) * d_hidden_t_stride + d] = merged_bf16[c]


@tl.prim_func
def zloss_head_grad_3(
    hidden: memory("hidden", "bfloat16"), d_weight: memory("d_weight", "bfloat16"), dz: memory("dz", "bfloat16"),
    hidden_t_stride: tl.int64, T_length: tl.int32, dz_t_within_stride: tl.int64, d_weight_v_stride: tl.int64,
    T_piece: tl.int32, V_piece: tl.int32, programs: tl.int32
):
    # A block owns 64 of V.within, 64 of D (dot_map). V.within: 64 indices, 16 to each of 4 threads; D: 64 indices, 1 to
    # each of 64 threads.
    with tl.Kernel(programs, threads=256) as block:
        thread = tl.get_thread_binding()
        v_within = tl.alloc_local((16,), "int32")
        v_within_inside = tl.alloc_local((16,), "bool")
        v = tl.alloc_local((16,), "int32")
        d_weight_sums = tl.alloc_fragment((64, 64), "float32")
        d_weight_tile = tl.alloc_shared((64, 64), "float32", "shared")
        dz_start = tl.alloc_shared((64,), "int64", "shared")
        v_within_place = tl.alloc_local((16,), "int32")
        hidden_start = tl.alloc_shared((64,), "int64", "shared")
        dz_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        hidden_tile = tl.alloc_shared((64, 32), "bfloat16", "shared")
        v_within_place_2 = tl.alloc_local((16,), "int32")
        d_weight_value = tl.alloc_local((16,), "float32")
        d_weight_bf16 = tl.alloc_local((16,), "bfloat16")
        rest = tl.truncdiv(block, 64)
        for c in tl.unroll(16):
            v_within[c] = rest * 64 + thread // 64 * 16 + c
            v_within_inside[c] = v_within[c] < 16032
        d = tl.truncmod(block, 64) * 64 + thread % 64
        writes = (thread & 63) == 0
        writes_2 = (thread & 192) == 0
        T_piece_value = tl.alloc_var("int32", T_piece)
        t_piece_begin = tl.alloc_var("int32", T_piece_value * 8192)
        V_piece_value = tl.alloc_var("int32", V_piece)
        v_piece_begin = tl.alloc_var("int32", V_piece_value * 16032)
        for c in tl.unroll(16):
            v[c] = v_piece_begin + v_within[c]
            v_within_place[c] = thread // 64 * 16 + c  # zloss_head.py:46
            if writes:
                dz_start[v_within_place[c]] = tl.Select(v_within_inside[c], tl.int64(v_within[c]), tl.int64(-1))
        d_place = thread % 64
        if writes_2:
            hidden_start[d_place] = tl.int64(d + tl.int64(t_piece_begin) * hidden_t_stride)
        tl.clear(d_weight_sums)
        tl.sync_threads()
        for t_within_step in tl.serial(0, ((T_length + 31) // 32)):
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_within_step * 32 + at // 64
                dz_tile[row, at // 64] = tl.if_then_else(
                    (dz_start[row] != -1) & (k < T_length), dz[dz_start[row] + tl.int64(k) * dz_t_within_stride],
                    tl.Cast("bfloat16", 0)
                )
            for c in tl.unroll(8):
                at = c * 256 + thread
                row, k = at % 64, t_within_step * 32 + at // 64
                hidden_tile[row, at // 64] = tl.if_then_else(
                    (hidden_start[row] != -1) & (k < T_length),
                    hidden[hidden_start[row] + tl.int64(k) * hidden_t_stride], tl.Cast("bfloat16", 0)
                )
            tl.sync_threads()
            tl.gemm(dz_tile, hidden_tile, d_weight_sums, transpose_B=True)
            tl.sync_threads()
        tl.copy(d_weight_sums, d_weight_tile)
        tl.sync_threads()
        for c in tl.unroll(16):
            v_within_place_2[c] = thread // 64 * 16 + c
        d_place_2 = thread % 64
        for c in tl.unroll(16):
            d_weight_value[c] = d_weight_tile[v_within_place_2[c], d_place_2]
            d_weight_bf16[c] = tl.Cast("bfloat16", d_weight_value[c])  # zloss_head.py:47
            if v_within_inside[c]:
                d_weight[tl.int64(v[c]) * d_weight_v_stride + d] = d_weight_bf16[c]


def call(
    kernels, hidden, weight, targets, lse, d_loss, dz, merged_2_0, merged_2_1, merged_2_2, d_hidden, d_weight, z_weight,
    T, hidden_t_stride, weight_v_stride, dz_t_within_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
    merged_2_2_t_within_stride, d_hidden_t_stride, d_weight_v_stride
):
    """Launch every kernel in order; `kernels` holds them, loaded, by name."""
    for T_piece in range((T + 8191) // 8192):
        T_length = min(8192, T - T_piece * 8192)
        for V_piece in range(8):
            programs = ((T_length + 63) // 64) * 251
            if programs > 0:
                kernels.zloss_head_grad_1(
                    (programs,), hidden, weight, targets, lse, d_loss, dz, T_length, hidden_t_stride, weight_v_stride,
                    dz_t_within_stride, z_weight, T_piece, V_piece
                )
            if V_piece in (0, 2, 4, 6):
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.zloss_head_grad_2_0(
                        (programs,), weight, dz, merged_2_0, T_length, dz_t_within_stride, weight_v_stride,
                        merged_2_0_t_within_stride, V_piece
                    )
            if V_piece in (1, 5):
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.zloss_head_grad_2_1(
                        (programs,), weight, dz, merged_2_0, merged_2_1, T_length, dz_t_within_stride, weight_v_stride,
                        merged_2_0_t_within_stride, merged_2_1_t_within_stride, V_piece
                    )
            if V_piece == 3:
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.zloss_head_grad_2_2(
                        (programs,), weight, dz, merged_2_0, merged_2_1, merged_2_2, T_length, dz_t_within_stride,
                        weight_v_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
                        merged_2_2_t_within_stride, V_piece
                    )
            if V_piece == 7:
                programs = ((T_length + 63) // 64) * 64
                if programs > 0:
                    kernels.zloss_head_grad_2_3(
                        (programs,), weight, d_hidden, dz, merged_2_0, merged_2_1, merged_2_2, T_length,
                        dz_t_within_stride, weight_v_stride, merged_2_0_t_within_stride, merged_2_1_t_within_stride,
                        merged_2_2_t_within_stride, d_hidden_t_stride, T_piece, V_piece
                    )
            programs = 251 * 64
            if programs > 0:
                kernels.zloss_head_grad_3(
                    (programs,), hidden, d_weight, dz, hidden_t_stride, T_length, dz_t_within_stride, d_weight_v_stride,
                    T_piece, V_piece
                )
